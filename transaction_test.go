package baton

// Transactions: what DoTx says of every answer there is, that a handoff moves one whole or not at all, and Client.Watch.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/baton/batontest"
)

// --- help ---

// txResult is what a DoTx returned.
type txResult struct {
	replies []Reply
	err     error
}

// txLater gives a transaction and returns when it is under way, in a bubble.
func txLater(c interface {
	DoTx(context.Context, *Batch) ([]Reply, error)
}, commands ...string) func() txResult {
	result := later(func() txResult { r, err := c.DoTx(background, loneBatch(commands...)); return txResult{r, err} })
	synctest.Wait()
	return result
}

// txSpell writes replies down.
func txSpell(replies []Reply) string {
	if replies == nil {
		return "none"
	}
	return spell(ofElems(KindArray, replies))
}

// txSum is the sum of numbers that came as numbers or as text.
func txSum(t *testing.T, replies []Reply) (sum int) {
	t.Helper()
	for _, r := range replies {
		n, err := r.Int64()
		if err != nil {
			var text string
			text, err = r.Text()
			if err == nil {
				n, err = strconv.ParseInt(text, 10, 64)
			}
		}
		if err != nil {
			t.Errorf("a counter is %s", spell(r))
		}
		sum += int(n)
	}
	return sum
}

// --- DoTx ---

// It is one message, on the connection that is shared, and nothing else stands in it.
func TestDoTxIsOneMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var conns []*recorder
		s := newLone(t)
		s.say = answers{"MULTI": "+OK\r\n", "SET": "+QUEUED\r\n", "GET": "+QUEUED\r\n", "BLPOP": "+QUEUED\r\n", "XREAD": "+QUEUED\r\n", "EXEC": "*4\r\n+OK\r\n$1\r\n1\r\n_\r\n*0\r\n"}
		c := s.client(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn {
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, &recorder{Conn: nc})
			return conns[len(conns)-1]
		})})
		b := &Batch{}
		b.Add("SET", "a", 1)
		b.Add("get", []byte("a"))
		b.Add("BLPOP", "k", 0) // blocks nothing here
		b.Add("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
		for range 2 { // and the batch is as it was
			replies, err := c.DoTx(background, b)
			if err != nil || txSpell(replies) != `[+OK "1" null []]` {
				t.Errorf("%s, %v", txSpell(replies), err)
			}
			written := conns[0].written()
			if last := written[len(written)-1]; !strings.EqualFold(last, "MULTI | SET a 1 | GET a | BLPOP k 0 | XREAD BLOCK 0 STREAMS s $ | EXEC") {
				t.Errorf("was written: %s", last)
			}
		}
		if b.Len() != 4 || len(s.dialled()) != 1 {
			t.Errorf("the batch has %d commands, %d dials", b.Len(), len(s.dialled()))
		}
		if st := c.Stats(); st.Sent != 12 || st.Answered != 12 || st.InFlight != 0 || st.Failed != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// What the server pushes may stand before or after each of its replies, and be an announcement.
func TestDoTxWithPushesBetweenItsReplies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{KeepAlive: -1})
		result := txLater(c, "DEL a", "INCR n")
		p.expects("MULTI", "DEL a", "INCR n", "EXEC")
		const push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"
		p.says(push + "+OK\r\n" + push + "+QUEUED\r\n" + moves(1, 10, addrB))
		q := s.readyAt(addrB)
		time.Sleep(time.Second)
		p.says(push + "+QUEUED\r\n" + push + push + "*2\r\n:1\r\n:2\r\n" + push)
		if r := result(); r.err != nil || txSpell(r.replies) != "[1 2]" {
			t.Errorf("%s, %v", txSpell(r.replies), r.err)
		}
		next := async(c, "GET", "next")
		q.expects("GET next")
		q.says("+next\r\n")
		answered(t, next, "next")
	})
}

// Bounds that are smaller than a transaction do not split it.
func TestDoTxIsLargerThanAllBounds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxInFlight, o.MaxBacklog, o.MaxBacklogBytes = 2, 3, 100 })
		big := strings.Repeat("x", 3*maxCopy)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for range 20 {
					tx := &Batch{}
					tx.Add("SET", w, big)
					for range 5 {
						tx.Add("STRLEN", w)
					}
					tx.Add("DEL", w)
					replies, err := s.c.DoTx(background, tx)
					if errors.Is(err, ErrBacklogFull) && !MaybeExecuted(err) {
						time.Sleep(time.Millisecond)
					} else if n := fmt.Sprint(len(big)); err != nil || txSpell(replies) != "[+OK "+strings.Repeat(n+" ", 5)+"1]" {
						t.Errorf("%.80s, %v", txSpell(replies), err)
					}
				}
			})
		}
		time.Sleep(time.Microsecond)
		s.move(1)
		wg.Wait()
		if n := s.a.Executed("EXEC") + s.b.Executed("EXEC"); n < 20 || n != s.a.Executed("DEL")+s.b.Executed("DEL") {
			t.Errorf("%d EXEC", n)
		}
	})
}

func TestDoTxOfNothingSendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		if replies, err := c.DoTx(background, &Batch{}); replies != nil || err != nil {
			t.Errorf("an empty batch: %v, %v", replies, err)
		}
		ctx, cancel := context.WithCancel(background)
		cancel()
		if replies, err := c.DoTx(ctx, loneBatch("SET k 1")); replies != nil || !errors.Is(err, context.Canceled) || MaybeExecuted(err) {
			t.Errorf("a context that has ended: %v, %v", replies, err)
		}
		c.Close()
		if replies, err := c.DoTx(background, loneBatch("SET k 1")); replies != nil || !errors.Is(err, ErrClosed) || MaybeExecuted(err) || errors.Is(err, ErrTxAborted) {
			t.Errorf("a client that is closed: %v, %v", replies, err)
		}
		if said := s.all()[0].heard(); len(said) > 0 {
			t.Errorf("was said: %q", said)
		}
	})
}

func TestDoTxOnAServer(t *testing.T) {
	for name, opts := range map[string][]batontest.Option{"protocol 3": nil, "protocol 2": {batontest.Protocol2()}, "one byte at a time": {batontest.Chunk(1)}} {
		sub(t, name, func(t *testing.T) {
			s := newStage(t, nil, opts...)
			for _, x := range []struct{ commands, want string }{
				{"SET k 1,INCR k,GET k", `[+OK 2 "2"]`},
				{"GET none", "[null]"},
				{"RPUSH l a b,LRANGE l 0 -1", `[2 ["a" "b"]]`},
				{"BLPOP l 0,BLPOP none 0", `[["l" "a"] null]`}, // in a transaction nothing blocks
				{"INCR k,INCR l,INCR k", "[3 -WRONGTYPE Operation against a key holding the wrong kind of value 4]"}, // one that fails is its own reply
			} {
				replies, err := s.c.DoTx(background, loneBatch(strings.Split(x.commands, ",")...))
				if got := strings.ReplaceAll(txSpell(replies), "-WRONGTYPE: ", "-WRONGTYPE "); got != x.want || err != nil {
					t.Errorf("%s: %s, %v, want %s", x.commands, got, err, x.want)
				}
			}
			if n := len(s.dials.to()); n != 1 {
				t.Errorf("%d dials", n)
			}
			s.statsAreClean()
		})
	}
}

// txFailures are answers to MULTI, DEL a, HSET h f 1, INCR n and EXEC that are no success.
var txFailures = map[string]struct {
	said    [5]string
	replies string // as DoTx returns them; "": not looked at
	code    string // of the server's error in what DoTx returns; "": there is none
	index   string // of the command that is named; "": none is
	aborted bool   // it is ErrTxAborted
}{
	// C21: what came behind a MULTI that was refused may have been executed one by one, and the replies say so.
	"C21, MULTI is refused: BUSY":                 {[5]string{"-BUSY Redis is busy running a script.\r\n", ":1\r\n", ":2\r\n", ":3\r\n", "-ERR EXEC without MULTI\r\n"}, "[1 2 3]", "BUSY", "", false},
	"C21, for a part of it":                       {[5]string{"-BUSY Redis is busy running a script.\r\n", "-BUSY still\r\n", ":2\r\n", ":3\r\n", "-ERR EXEC without MULTI\r\n"}, "[-BUSY still 2 3]", "BUSY", "", false},
	"MULTI is refused: LOADING":                   {[5]string{"-LOADING dataset\r\n", "-LOADING dataset\r\n", "-LOADING dataset\r\n", "-LOADING dataset\r\n", "-ERR EXEC without MULTI\r\n"}, "[-LOADING dataset -LOADING dataset -LOADING dataset]", "LOADING", "", false},
	"MULTI is refused: NOPERM":                    {[5]string{"-NOPERM no multi\r\n", ":1\r\n", "-NOPERM no hset\r\n", ":3\r\n", "-NOPERM no exec\r\n"}, "[1 -NOPERM no hset 3]", "NOPERM", "", false},
	"MULTI is refused, EXEC is null":              {[5]string{"-BUSY b\r\n", ":1\r\n", ":2\r\n", ":3\r\n", "_\r\n"}, "[1 2 3]", "BUSY", "", false},
	"MULTI is refused, EXEC looks like a success": {[5]string{"-BUSY b\r\n", ":1\r\n", ":2\r\n", ":3\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n"}, "[1 2 3]", "BUSY", "", false},
	"the first is refused": {[5]string{"+OK\r\n", "-ERR unknown command 'DEL'\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
		"[-ERR unknown command 'DEL' +QUEUED +QUEUED]", "ERR", "0", false},
	"the last is refused": {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "-NOPERM no incr\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
		"[+QUEUED +QUEUED -NOPERM no incr]", "NOPERM", "2", false},
	"two are refused": {[5]string{"+OK\r\n", "+QUEUED\r\n", "-OOM too much\r\n", "-NOPERM no incr\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
		"[+QUEUED -OOM too much -NOPERM no incr]", "OOM", "1", false},
	"C13, READONLY": {[5]string{"+OK\r\n", "+QUEUED\r\n", readOnlyReply, "+QUEUED\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
		"[+QUEUED -READONLY You can't write against a read only replica. +QUEUED]", "READONLY", "1", false},
	"EXEC alone is refused":         {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "-MISCONF no disk\r\n"}, "", "MISCONF", "", false},
	"EXEC is aborted for no reason": {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "-EXECABORT Transaction discarded because of: too much memory\r\n"}, "", "EXECABORT", "", false},
	"EXEC without MULTI":            {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "-ERR EXEC without MULTI\r\n"}, "", "ERR", "", false},
	"EXEC is null":                  {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "_\r\n"}, "none", "", "", true},
	"EXEC is null, protocol 2":      {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*-1\r\n"}, "none", "", "", true},
	"EXEC has too little":           {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n:1\r\n:2\r\n"}, "", "", "", false},
	"EXEC has nothing":              {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*0\r\n"}, "", "", "", false},
	"EXEC has too much":             {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n"}, "", "", "", false},
	"EXEC is no array":              {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+OK\r\n"}, "", "", "", false},
	"EXEC is a number":              {[5]string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", ":3\r\n"}, "", "", "", false},
}

func TestCaseC13C21ATransactionThatFails(t *testing.T) {
	for name, x := range txFailures {
		for _, inSession := range []bool{false, true} {
			sub(t, fmt.Sprintf("%s, in a session: %v", name, inSession), func(t *testing.T) {
				s := newLone(t)
				s.say = answers{"MULTI": x.said[0], "DEL": x.said[1], "HSET": x.said[2], "INCR": x.said[3], "EXEC": x.said[4]}
				c := s.client(Options{})
				tx := c.DoTx
				if inSession {
					tx = loneSession(t, c).DoTx
				}
				replies, err := tx(background, loneBatch("DEL a", "HSET h f 1", "INCR n"))
				var refusal *ServerError
				switch {
				case err == nil || MaybeExecuted(err) || errors.Is(err, ErrTxAborted) != x.aborted:
					t.Errorf("%v (aborted: %v, maybe executed: %v)", err, errors.Is(err, ErrTxAborted), MaybeExecuted(err))
				case errors.As(err, &refusal) != (x.code != "") || x.code != "" && refusal.Code != x.code:
					t.Errorf("%v, want the server's %s in it", err, x.code)
				case x.index != "" && !strings.Contains(err.Error(), x.index):
					t.Errorf("%v does not name command %s", err, x.index)
				case strings.HasPrefix(name, "MULTI is refused") && !strings.Contains(err.Error(), "MULTI"):
					t.Errorf("%v does not say that it was MULTI", err)
				}
				spelled := txSpell(replies)
				for _, code := range []string{"BUSY", "LOADING", "NOPERM", "ERR", "OOM", "READONLY"} {
					spelled = strings.ReplaceAll(spelled, "-"+code+": ", "-"+code+" ")
				}
				if x.replies != "" && spelled != x.replies {
					t.Errorf("the replies are %s, want %s", spelled, x.replies)
				}
				if after := textOf(c.Do(background, "GET", "after")); after != "GET after" { // nothing is off by one
					t.Errorf("a command after it gets %s", after)
				}
				if n := s.times("MULTI"); n != 1 {
					t.Errorf("it was written %d times", n)
				}
				if st := c.Stats(); st.InFlight != 0 || st.Sent != st.Answered+st.Failed {
					t.Errorf("%+v", st)
				}
			})
		}
	}
}

// F7, C13: what is cut after any reply, or in the middle of any, fails whole, and nothing of it is written again.
func TestCaseC13F7ATransactionThatIsCut(t *testing.T) {
	said := "+OK\r\n+QUEUED\r\n-READONLY You can't write\r\n+QUEUED\r\n*3\r\n:1\r\n:2\r\n:3\r\n"
	for n := range len(said) {
		if n > 0 && said[n-1] != '\n' && n%7 != 0 {
			continue
		}
		for _, reset := range []bool{false, true} {
			sub(t, fmt.Sprintf("after %d bytes, reset: %v", n, reset), func(t *testing.T) {
				s := newScript(t)
				c, p := s.connect(Options{KeepAlive: -1})
				result := txLater(c, "DEL a", "HSET h f 1", "INCR n")
				waits := async(c, "GET", "behind") // written behind it
				p.expects("MULTI", "DEL a", "HSET h f 1", "INCR n", "EXEC", "GET behind")
				p.says(said[:n])
				synctest.Wait()
				if reset {
					p.reset()
				} else {
					p.Close()
				}
				if r := result(); !MaybeExecuted(r.err) || errors.Is(r.err, ErrTxAborted) || r.replies != nil {
					t.Errorf("%s, %v", txSpell(r.replies), r.err)
				}
				failedWith(t, "what was behind it", waits, nil, true)
				q := s.readyAt(addrA)
				next := async(c, "GET", "next")
				q.expects("GET next")
				q.says("+next\r\n")
				answered(t, next, "next")
			})
		}
	}
}

// txStingy accepts so many bytes of a transaction, and then nothing any more.
type txStingy struct {
	net.Conn
	armed *atomic.Bool
	bytes int
}

func (s *txStingy) Write(b []byte) (int, error) {
	if !strings.Contains(string(b), "MULTI") || !s.armed.CompareAndSwap(true, false) {
		return s.Conn.Write(b)
	}
	n, _ := s.Conn.Write(b[:s.bytes])
	return n, syscall.EPIPE
}

// F7: dropped between any two bytes it is written elsewhere whole, if nothing of it was accepted, or not at all.
func TestCaseF7ATransactionThatIsWrittenInPart(t *testing.T) {
	size := len(command("MULTI")) + len(command("DEL", "a")) + len(command("INCR", "n")) + len(command("EXEC"))
	for bytes := range size + 1 {
		if bytes > 2 && bytes < size-1 && bytes%5 != 0 {
			continue
		}
		sub(t, fmt.Sprintf("%d bytes of %d", bytes, size), func(t *testing.T) {
			s := newLone(t)
			var armed atomic.Bool
			s.say = answers{"MULTI": "+OK\r\n", "DEL": "+QUEUED\r\n", "INCR": "+QUEUED\r\n", "EXEC": "*2\r\n:1\r\n:2\r\n"}
			c := s.client(Options{KeepAlive: -1, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &txStingy{nc, &armed, bytes} })})
			armed.Store(true)
			if bytes > 0 { // else the first connection answers
				s.set(func() { s.lines[0].mute = true })
			}
			result := txLater(c, "DEL a", "INCR n")
			time.Sleep(2 * time.Second)
			r := result()
			switch again := len(s.all()) > 1 && len(s.all()[1].heard()) > 0; {
			case bytes == 0 && (r.err != nil || txSpell(r.replies) != "[1 2]" || strings.Join(s.all()[1].heard(), ",") != "MULTI,DEL a,INCR n,EXEC"):
				t.Errorf("%s, %v, on the next connection: %v", txSpell(r.replies), r.err, again)
			case bytes > 0 && (!MaybeExecuted(r.err) || r.replies != nil || again):
				t.Errorf("%s, %v, on the next connection: %v", txSpell(r.replies), r.err, again)
			}
		})
	}
}

func TestDoTxAndItsCaller(t *testing.T) {
	sub(t, "leaves it in flight", func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{KeepAlive: -1})
		ctx, cancel := context.WithCancel(background)
		left := loneAsync(func() Reply {
			replies, err := c.DoTx(ctx, loneBatch("DEL a"))
			if replies != nil {
				t.Errorf("%v", replies)
			}
			return failure(err)
		})
		p.expects("MULTI", "DEL a", "EXEC")
		next := async(c, "GET", "next")
		cancel()
		failedWith(t, "it", left, context.Canceled, true)
		p.says("+OK\r\n+QUEUED\r\n*1\r\n:1\r\n+next\r\n")
		answered(t, next, "next")
		if p.hungUp() {
			t.Error("the connection that others share was closed")
		}
	})
	sub(t, "is too late", func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: time.Second, KeepAlive: -1})
		began := time.Now()
		result := txLater(c, "BLPOP k 30") // which has no time of its own here
		p.expects("MULTI", "BLPOP k 30", "EXEC")
		if r := result(); !errors.Is(r.err, ErrTimeout) || !MaybeExecuted(r.err) || r.replies != nil || !loneOnTime(time.Since(began), time.Second, time.Second) {
			t.Errorf("%s, %v after %v", txSpell(r.replies), r.err, time.Since(began))
		}
	})
	sub(t, "leaves before it is written", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		s.refuseAll()
		s.all()[0].Close()
		synctest.Wait()
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		if replies, err := c.DoTx(ctx, loneBatch("DEL a")); replies != nil || !errors.Is(err, context.DeadlineExceeded) || MaybeExecuted(err) {
			t.Errorf("%v, %v", replies, err)
		}
		s.refuseNone()
		time.Sleep(time.Minute)
		if n := s.times("MULTI") + s.times("DEL a") + s.times("EXEC"); n > 0 {
			t.Error("it was never sent, and was read")
		}
	})
	sub(t, "is told at once when there is no connection", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Backlog: FailFast})
		s.refuseAll()
		s.all()[0].Close()
		synctest.Wait()
		if replies, err := c.DoTx(background, loneBatch("DEL a")); replies != nil || !errors.Is(err, ErrNoConnection) || MaybeExecuted(err) || errors.Is(err, ErrTxAborted) {
			t.Errorf("%v, %v", replies, err)
		}
	})
	sub(t, "is told of Close", func(t *testing.T) {
		s := newScript(t)
		c, _ := s.connect(Options{})
		result := txLater(c, "DEL a")
		c.Close()
		if r := result(); !errors.Is(r.err, ErrClosed) || !MaybeExecuted(r.err) || r.replies != nil {
			t.Errorf("%s, %v", txSpell(r.replies), r.err)
		}
	})
}

// What begins or ends a transaction, or would change the connection, has no place in one.
func TestWhatMayNotBeInATransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		session := loneSession(t, c)
		for _, text := range []string{"MULTI", "EXEC", "DISCARD", "WATCH k", "UNWATCH", "SELECT 1", "AUTH p", "QUIT", "CLIENT TRACKING ON", "READONLY", "SUBSCRIBE a", "HELLO 3", "RESET"} {
			for _, args := range loneSpellings(text) {
				b := loneBatch("SET k 1")
				b.Add(args...)
				if replies, err := c.DoTx(background, b); replies != nil || loneRefusal(err, text, nil) != "" {
					t.Errorf("%s: %v, %v", text, replies, err)
				}
			}
		}
		for _, text := range []string{"MULTI", "EXEC", "DISCARD", "WATCH k", "SUBSCRIBE a", "HELLO 3", "RESET"} {
			for _, args := range loneSpellings(text) {
				b := loneBatch("SET k 1")
				b.Add(args...)
				if replies, err := session.DoTx(background, b); replies != nil || loneRefusal(err, text, nil) != "" || errors.Is(err, ErrTxAborted) {
					t.Errorf("%s in a session: %v, %v", text, replies, err)
				}
			}
		}
		for _, l := range s.all() {
			for _, said := range l.heard() {
				if said != "PING" {
					t.Errorf("%q was sent", said)
				}
			}
		}
	})
}

func TestDoTxInASession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, nil)
		session := loneSession(t, s.c)
		replies, err := session.DoTx(background, loneBatch("SET k 1", "INCR k", "SELECT 5", "SET k five", "SELECT 0"))
		if err != nil || txSpell(replies) != "[+OK 2 +OK +OK +OK]" {
			t.Errorf("%s, %v", txSpell(replies), err)
		}
		session.Do(background, "WATCH", "k")
		if replies, err := session.DoTx(background, loneBatch("INCR k")); err != nil || txSpell(replies) != "[3]" {
			t.Errorf("nobody has changed what it watches: %s, %v", txSpell(replies), err)
		}
		session.Do(background, "WATCH", "k")
		must(t, s.c, "SET k 7")
		if replies, err := session.DoTx(background, loneBatch("INCR k")); replies != nil || !errors.Is(err, ErrTxAborted) || MaybeExecuted(err) {
			t.Errorf("somebody has: %s, %v", txSpell(replies), err)
		}
		if replies, err := session.DoTx(background, loneBatch("INCR k")); err != nil || txSpell(replies) != "[8]" {
			t.Errorf("and the next: %s, %v", txSpell(replies), err)
		}
	})
}

// --- handoffs ---

// In each phase of a handoff it goes whole to one connection.
func TestCaseF7ATransactionInEachPhaseOfAHandoff(t *testing.T) {
	const okay = "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"
	succeeded := func(t *testing.T, result func() txResult) {
		t.Helper()
		if r := result(); r.err != nil || txSpell(r.replies) != "[1]" {
			t.Errorf("%s, %v", txSpell(r.replies), r.err)
		}
	}
	sub(t, "written before it, and lingering", func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{KeepAlive: -1})
		result := txLater(c, "DEL a")
		p.expects("MULTI", "DEL a", "EXEC")
		p.says("+OK\r\n")
		p.moving(1, 10, addrB)
		q := s.readyAt(addrB)
		time.Sleep(5 * time.Second) // the hold is long over
		inPhase(t, c, PhaseDone)
		next := txLater(c, "DEL b")
		q.expects("MULTI", "DEL b", "EXEC")
		q.says(okay)
		succeeded(t, next)
		p.says("+QUEUED\r\n*1\r\n:1\r\n")
		succeeded(t, result)
		if !p.hungUp() {
			t.Error("the old connection is open")
		}
	})
	sub(t, "preparing", func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{KeepAlive: -1})
		p.moving(1, 10, addrB)
		s.acceptAt(addrB)
		result := txLater(c, "DEL a")
		p.expects("MULTI", "DEL a", "EXEC")
		p.says(okay)
		succeeded(t, result)
	})
	sub(t, "holding", func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{KeepAlive: -1, Maintenance: Maintenance{HoldCap: time.Minute}})
		first := txLater(c, "DEL a")
		p.moving(1, 10, addrB)
		q := s.readyAt(addrB)
		inPhase(t, c, PhaseHolding)
		held := txLater(c, "DEL b")
		p.expects("MULTI", "DEL a", "EXEC")
		p.says("+OK\r\n+QUEUED\r\n")
		inPhase(t, c, PhaseHolding) // its EXEC is not answered
		p.says("*1\r\n:1\r\n")
		succeeded(t, first)
		q.expects("MULTI", "DEL b", "EXEC")
		q.says(okay)
		succeeded(t, held)
		if st := c.Stats(); st.Held != 3 || st.Failed != 0 {
			t.Errorf("%+v", st)
		}
	})
	sub(t, "given, and not begun to be written", func(t *testing.T) {
		s := newScript(t)
		gate := make(chan struct{}, 1)
		var dials atomic.Int32
		c, p := s.connect(Options{KeepAlive: -1, Dialer: through(s.dial, func(nc net.Conn) net.Conn {
			if dials.Add(1) == 1 {
				return &gated{nc, gate}
			}
			return nc
		})})
		gate <- struct{}{}            // it is closed
		get := async(c, "GET", "1")   // stands at it
		result := txLater(c, "DEL a") // and is behind that
		p.moving(1, 10, addrB)
		q := s.readyAt(addrB)
		q.expects("MULTI", "DEL a", "EXEC") // when the hold is over
		q.says(okay)
		succeeded(t, result)
		<-gate
		p.expects("GET 1")
		p.says("+one\r\n")
		answered(t, get, "one")
		if !p.hungUp() {
			t.Error("more was written to the old connection, or it is open")
		}
	})
	sub(t, "cut at the end of the window", func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{KeepAlive: -1})
		result := txLater(c, "DEL a")
		p.expects("MULTI", "DEL a", "EXEC")
		p.says("+OK\r\n+QUEUED\r\n")
		p.moving(1, 5, addrB)
		q := s.readyAt(addrB)
		time.Sleep(5 * time.Second)
		p.Close()
		if r := result(); !MaybeExecuted(r.err) || !errors.Is(r.err, ErrMaintenance) || errors.Is(r.err, ErrTxAborted) || r.replies != nil {
			t.Errorf("%s, %v", txSpell(r.replies), r.err)
		}
		next := async(c, "GET", "1")
		q.expects("GET 1") // and nothing of the transaction before it
		q.says("+one\r\n")
		answered(t, next, "one")
	})
}

// txBook checks that transactions are carried out whole: on each connection nothing stands between a MULTI and its EXEC but the two
// commands of one transfer.
type txBook struct {
	t    *testing.T
	mu   sync.Mutex
	open map[string][]string // by connection: what came since MULTI
	done int
}

func (b *txBook) of(name string) batontest.Option {
	return batontest.OnCommand(func(conn int, args []string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		at := name + strconv.Itoa(conn)
		since, inside := b.open[at]
		switch command := strings.Join(args, " "); {
		case args[0] == "MULTI" && !inside:
			b.open[at] = []string{}
		case args[0] == "EXEC" && inside && len(since) == 2 && strings.HasPrefix(since[0], "DECRBY from ") && strings.TrimPrefix(since[0], "DECRBY from ") == strings.TrimPrefix(since[1], "INCRBY to "):
			delete(b.open, at)
			b.done++
		case args[0] == "EXEC" && inside && strings.Join(since, ",") == "GET from,GET to":
			delete(b.open, at)
		case args[0] == "MULTI" || args[0] == "EXEC":
			b.t.Errorf("%s after %q", command, since)
		case inside:
			b.open[at] = append(since, command)
		}
	})
}

// Transfers between two counters under full load through a hundred handoffs: whoever looks, the sum is what it was.
func TestTransfersThroughAHundredHandoffs(t *testing.T) {
	t.Parallel()
	handoffs := 100
	if testing.Short() {
		handoffs = 10
	}
	for _, conns := range []int{1, 3} {
		if conns > 1 {
			handoffs /= 10
		}
		sub(t, fmt.Sprintf("conns=%d", conns), func(t *testing.T) {
			book := &txBook{t: t, open: map[string][]string{}}
			a := memoryServer(t, book.of("a"))
			b := a.Sibling(book.of("b"))
			t.Cleanup(b.Close)
			for _, s := range []*batontest.Server{a, b} {
				for _, command := range []string{"MULTI", "EXEC", "ECHO"} { // so that there is always something in flight
					s.Delay(command, time.Millisecond)
				}
			}
			c := dialMemory(t, a, func(o *Options) { o.Conns = conns })
			must(t, c, "MSET from 1000000 to 0")
			var busy, over atomic.Bool
			var transfers, looks atomic.Int64
			rests := func() { // no load matters but that around a handoff
				for !busy.Load() && !over.Load() {
					time.Sleep(10 * time.Millisecond)
				}
			}
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					tx := &Batch{}
					for n := w + 1; !over.Load(); n += 8 {
						tx.Reset()
						tx.Add("DECRBY", "from", n)
						tx.Add("INCRBY", "to", n)
						replies, err := c.DoTx(background, tx)
						if err != nil || len(replies) != 2 {
							t.Errorf("transfer: %s, %v", txSpell(replies), err)
							return
						}
						if sum := txSum(t, replies); sum != 1000000 {
							t.Errorf("a transfer saw a sum of %d", sum)
						}
						transfers.Add(1)
						if err := c.Do(background, "ECHO", "another").Err(); err != nil {
							t.Errorf("another command: %v", err)
						}
						rests()
					}
				})
			}
			wg.Go(func() {
				for !over.Load() {
					replies, err := c.DoTx(background, loneBatch("GET from", "GET to"))
					if err != nil || len(replies) != 2 {
						t.Errorf("look: %s, %v", txSpell(replies), err)
						return
					}
					if sum := txSum(t, replies); sum != 1000000 {
						t.Errorf("the sum is %d", sum)
					}
					looks.Add(1)
					rests()
				}
			})
			from, to := a, b
			for i := range handoffs {
				busy.Store(true)
				time.Sleep(time.Duration(i) * 17 * time.Microsecond)
				from.Move(to.Addr(), time.Second)
				time.Sleep(150 * time.Millisecond) // a jitter of a tenth of the window, and the hold
				busy.Store(false)
				time.Sleep(time.Second)
				from, to = to, from
			}
			over.Store(true)
			wg.Wait()
			replies, err := c.DoTx(background, loneBatch("GET from", "GET to"))
			if err != nil || len(replies) != 2 || txSum(t, replies) != 1000000 || textOf(replies[1]) == "0" {
				t.Errorf("at the end the counters are %s, %v", txSpell(replies), err)
			}
			st := c.Stats()
			if int64(book.done) != transfers.Load() || looks.Load() == 0 || st.Failed != 0 || st.InFlight != 0 || st.Sent != st.Answered || st.Handoffs != uint64(handoffs*conns) {
				t.Errorf("%d succeeded, %d were executed, %d looks, %+v", transfers.Load(), book.done, looks.Load(), st)
			}
		})
	}
}

// A handoff at every moment: a transaction is carried out once, and whole.
func TestAHandoffAtEveryMomentOfATransaction(t *testing.T) {
	for moment := range 40 {
		sub(t, fmt.Sprintf("%d ms", 4*moment), func(t *testing.T) {
			book := &txBook{t: t, open: map[string][]string{}}
			a := memoryServer(t, book.of("a"))
			b := a.Sibling(book.of("b"))
			t.Cleanup(b.Close)
			for _, s := range []*batontest.Server{a, b} {
				s.Delay("MULTI", 10*time.Millisecond)
				s.Delay("EXEC", 10*time.Millisecond)
			}
			c := dialMemory(t, a, func(o *Options) { o.Dialer = slow(o.Dialer, 4*time.Millisecond) })
			must(t, c, "MSET from 0 to 0")
			a.Move(b.Addr(), time.Second) // a jitter of at most 100 ms, and a handshake of some round trips
			time.Sleep(4 * time.Duration(moment) * time.Millisecond)
			var results []func() txResult
			for n := range 3 {
				results = append(results, txLater(c, fmt.Sprint("DECRBY from ", n+1), fmt.Sprint("INCRBY to ", n+1)))
				time.Sleep(time.Millisecond)
			}
			for _, result := range results {
				if r := result(); r.err != nil || len(r.replies) != 2 {
					t.Errorf("%s, %v", txSpell(r.replies), r.err)
				}
			}
			if book.done != 3 {
				t.Errorf("%d were executed", book.done)
			}
			if got := textOf(c.Do(background, "GET", "to")); got != "6" {
				t.Errorf("the counter is %s", got)
			}
			time.Sleep(time.Second)
			if st := c.Stats(); st.Handoffs != 1 || st.Failed != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// --- Watch ---

func TestWatch(t *testing.T) {
	sub(t, "a success", func(t *testing.T) {
		s := newStage(t, nil)
		must(t, s.c, "MSET k 1 l 2")
		replies, err := s.c.Watch(background, []string{"k", "l"}, func(session *Session, tx *Batch) error {
			k, err := session.Do(background, "GET", "k").Text()
			if tx.Len() != 0 {
				t.Error("the batch is not empty")
			}
			tx.Add("SET", "k", k+k)
			tx.Add("GET", "k")
			return err
		})
		if err != nil || txSpell(replies) != `[+OK "11"]` {
			t.Errorf("%s, %v", txSpell(replies), err)
		}
		synctest.Wait()
		if n := s.a.Conns(); n != 1 || len(s.dials.to()) != 2 {
			t.Errorf("%d connections are open, %d dials", n, len(s.dials.to()))
		}
	})
	sub(t, "tried again when somebody has changed a key, on a fresh connection each time", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxDedicated = 1 })
		var sessions []*Session
		replies, err := s.c.Watch(background, []string{"k", "l"}, func(session *Session, tx *Batch) error {
			n := len(sessions)
			sessions = append(sessions, session)
			synctest.Wait()
			if tx.Len() != 0 || slices.Contains(sessions[:n], session) || s.a.Conns() != 2 {
				t.Errorf("try %d: %d commands are in the batch, %d connections", n, tx.Len(), s.a.Conns())
			}
			if n > 0 && sessions[n-1].Do(background, "GET", "k").Err() == nil {
				t.Error("the session of the try before is open")
			}
			if n < 3 {
				must(t, s.c, "SET "+[]string{"k", "l", "k"}[n]+" x")
			}
			tx.Add("SET", "k", n)
			return nil
		})
		if err != nil || txSpell(replies) != "[+OK]" || len(sessions) != 4 || textOf(s.c.Do(background, "GET", "k")) != "3" {
			t.Errorf("%s, %v after %d tries", txSpell(replies), err, len(sessions))
		}
		synctest.Wait()
		if n := s.a.Conns(); n != 1 || len(s.dials.to()) != 5 {
			t.Errorf("%d connections are open, %d dials", n, len(s.dials.to()))
		}
	})
	sub(t, "many who increment", func(t *testing.T) {
		s := newStage(t, nil)
		s.a.Delay("GET", time.Millisecond)
		must(t, s.c, "SET k 0")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 {
					_, err := s.c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
						k, err := session.Do(background, "GET", "k").Text()
						n, _ := strconv.Atoi(k)
						tx.Add("SET", "k", n+1)
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if got := textOf(s.c.Do(background, "GET", "k")); got != "40" {
			t.Errorf("k is %s, want 40", got)
		}
	})
	sub(t, "the function's own error is returned as it is, and nothing sent", func(t *testing.T) {
		s := newStage(t, nil)
		mine := errors.New("mine")
		for _, own := range []error{mine, ErrTxAborted, context.Canceled, fmt.Errorf("%w, wrapped", mine)} {
			tries := 0
			replies, err := s.c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
				tries++
				tx.Add("SET", "k", 1)
				return own
			})
			if err != own || replies != nil || tries != 1 {
				t.Errorf("%v, %v after %d tries, want %v", replies, err, tries, own)
			}
		}
		synctest.Wait()
		if n := s.a.Conns(); n != 1 || s.a.Executed("MULTI") != 0 {
			t.Errorf("%d connections are open, %d MULTI", n, s.a.Executed("MULTI"))
		}
	})
	sub(t, "an empty batch ends it", func(t *testing.T) {
		s := newStage(t, nil)
		tries := 0
		replies, err := s.c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
			tries++
			must(t, s.c, "SET k x")
			return session.Do(background, "GET", "k").Err()
		})
		synctest.Wait()
		if replies != nil || err != nil || tries != 1 || s.a.Executed("MULTI") != 0 || s.a.Conns() != 1 {
			t.Errorf("%v, %v after %d tries, %d MULTI, %d connections", replies, err, tries, s.a.Executed("MULTI"), s.a.Conns())
		}
	})
	sub(t, "until its context ends", func(t *testing.T) {
		s := newStage(t, nil)
		ctx, cancel := contextFor(3 * time.Second)
		defer cancel()
		began, tries := time.Now(), 0
		replies, err := s.c.Watch(ctx, []string{"k"}, func(session *Session, tx *Batch) error {
			tries++
			time.Sleep(110 * time.Millisecond) // so that the end comes in here
			tx.Add("SET", "k", tries)
			return s.c.Do(background, "SET", "k", "x").Err() // somebody always does
		})
		if d := time.Since(began); replies != nil || !errors.Is(err, context.DeadlineExceeded) || MaybeExecuted(err) || d < 3*time.Second || d > 3200*time.Millisecond || tries < 2 || tries > 31 {
			t.Errorf("%v, %v after %v, %d tries", replies, err, d, tries)
		}
		synctest.Wait()
		if got := textOf(s.c.Do(background, "GET", "k")); got != "x" || s.a.Conns() != 1 {
			t.Errorf("k is %s, %d connections", got, s.a.Conns())
		}
	})
	sub(t, "its context ended before", func(t *testing.T) {
		s := newStage(t, nil)
		ctx, cancel := context.WithCancel(background)
		cancel()
		_, err := s.c.Watch(ctx, []string{"k"}, func(*Session, *Batch) error { t.Error("called"); return nil })
		if !errors.Is(err, context.Canceled) || MaybeExecuted(err) || len(s.dials.to()) != 1 {
			t.Errorf("%v, %d dials", err, len(s.dials.to()))
		}
	})
	sub(t, "its context ends while it waits for a connection", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxDedicated = 1 })
		loneSession(t, s.c)
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		if _, err := s.c.Watch(ctx, []string{"k"}, func(*Session, *Batch) error { t.Error("called"); return nil }); !errors.Is(err, context.DeadlineExceeded) || MaybeExecuted(err) {
			t.Error(err)
		}
	})
	sub(t, "tried again when the session is lost between WATCH and EXEC", func(t *testing.T) {
		s := newStage(t, nil)
		tries := 0
		replies, err := s.c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
			tries++
			tx.Add("SET", "k", tries)
			if tries < 3 {
				s.a.Cut()
				synctest.Wait()
			}
			return nil
		})
		if err != nil || txSpell(replies) != "[+OK]" || tries != 3 || textOf(s.c.Do(background, "GET", "k")) != "3" {
			t.Errorf("%s, %v after %d tries", txSpell(replies), err, tries)
		}
		if n := s.a.Executed("MULTI"); n != 1 {
			t.Errorf("%d MULTI", n)
		}
	})
	// What may have been executed is never tried again.
	sub(t, "not tried again when EXEC is lost", func(t *testing.T) {
		s := newLone(t)
		s.say = answers{"EXEC": hangUp}
		c := s.client(Options{})
		tries := 0
		replies, err := c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
			tries++
			tx.Add("SET", "k", 1)
			return nil
		})
		if !MaybeExecuted(err) || errors.Is(err, ErrTxAborted) || replies != nil || tries != 1 || s.times("EXEC") != 1 {
			t.Errorf("%v, %v after %d tries", replies, err, tries)
		}
		if n := len(s.open(addrA)); n != 1 {
			t.Errorf("%d connections are open", n)
		}
	})
	for name, say := range map[string]answers{
		"WATCH is refused":     {"WATCH": "-NOPERM no watch\r\n"},
		"MULTI is refused":     {"WATCH": "+OK\r\n", "MULTI": "-NOPERM no multi\r\n", "EXEC": "-ERR EXEC without MULTI\r\n"},
		"a command is refused": {"WATCH": "+OK\r\n", "MULTI": "+OK\r\n", "SET": "-NOPERM no set\r\n", "EXEC": "-EXECABORT Transaction discarded because of previous errors.\r\n"},
	} {
		sub(t, name, func(t *testing.T) {
			s := newLone(t)
			s.say = say
			c := s.client(Options{})
			tries := 0
			_, err := c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
				tries++
				tx.Add("SET", "k", 1)
				return nil
			})
			var refusal *ServerError
			if !errors.As(err, &refusal) || refusal.Code != "NOPERM" || errors.Is(err, ErrTxAborted) || tries > 1 || (tries == 0) != (name == "WATCH is refused") {
				t.Errorf("%v after %d tries", err, tries)
			}
			if n := len(s.open(addrA)); n != 1 {
				t.Errorf("%d connections are open", n)
			}
		})
	}
	sub(t, "the batch holds what does not belong there", func(t *testing.T) {
		s := newStage(t, nil)
		tries := 0
		_, err := s.c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
			tries++
			tx.Add("SET", "k", 1)
			tx.Add("EXEC")
			return nil
		})
		if !errors.Is(err, ErrNotHere) || MaybeExecuted(err) || tries != 1 || s.a.Executed("MULTI") != 0 {
			t.Errorf("%v after %d tries", err, tries)
		}
	})
	sub(t, "the client is closed in the middle", func(t *testing.T) {
		s := newStage(t, nil)
		tries := 0
		began := time.Now()
		_, err := s.c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
			tries++
			tx.Add("SET", "k", 1)
			return s.c.Close()
		})
		if !errors.Is(err, ErrClosed) || MaybeExecuted(err) || tries != 1 || time.Since(began) > 0 {
			t.Errorf("%v after %d tries and %v", err, tries, time.Since(began))
		}
	})
	sub(t, "nobody is there", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Backlog: FailFast})
		s.refuseAll()
		if _, err := c.Watch(background, []string{"k"}, func(*Session, *Batch) error { t.Error("called"); return nil }); !errors.Is(err, ErrNoConnection) || MaybeExecuted(err) {
			t.Error(err)
		}
	})
	sub(t, "a session that is told to move is used to its end, and the next is in the new place", func(t *testing.T) {
		s := newStage(t, nil)
		tries := 0
		replies, err := s.c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
			if tx.Add("SET", "k", tries); tries == 0 {
				s.move(10)
				time.Sleep(2 * time.Second)
				s.a.Cut() // early
				synctest.Wait()
			}
			tries++
			return nil
		})
		if err != nil || txSpell(replies) != "[+OK]" || tries != 2 || s.a.Executed("EXEC") != 0 || s.b.Executed("EXEC") != 1 {
			t.Errorf("%s, %v after %d tries, %d and %d EXEC", txSpell(replies), err, tries, s.a.Executed("EXEC"), s.b.Executed("EXEC"))
		}
		time.Sleep(time.Minute) // and sessions are dialled at the configured address again
		replies, err = s.c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
			tx.Add("GET", "k")
			s.move(5)
			time.Sleep(2 * time.Second)
			return nil
		})
		if err != nil || txSpell(replies) != `["1"]` || s.a.Executed("EXEC") != 1 {
			t.Errorf("in a window: %s, %v", txSpell(replies), err)
		}
	})
}

// --- everything at once ---

// Blocked pops, transactions, and counters that are watched, while servers move, cut, refuse, and connections are renewed, in an order
// that a seed chooses. Nobody's success or failure is a lie: what succeeded happened once, what was never sent did not happen.
func TestRandomUseOfConnectionsOfOnesOwn(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		sub(t, fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			a := memoryServer(t)
			b, quiet := a.Sibling(), a.Sibling()
			t.Cleanup(b.Close)
			t.Cleanup(quiet.Close)
			direct := dialMemory(t, quiet, nil)
			must(t, direct, "MSET from 1000000 to 0 watched 0")
			c := dialMemory(t, a, func(o *Options) {
				o.Conns, o.MaxDedicated, o.Backlog = 1+r.IntN(2), 3+r.IntN(6), BacklogPolicy(r.IntN(2))
				o.Timeout, o.KeepAlive, o.Maintenance.RelaxedTimeout = 500*time.Millisecond, 100*time.Millisecond, time.Second
				o.Dialer = slow(o.Dialer, 2*time.Millisecond)
			})
			var over atomic.Bool
			var wg sync.WaitGroup
			var mu sync.Mutex // guards the rest
			popped, maybePopped := map[int]int{}, 0
			done, maybe := map[string]int{}, map[string]int{}
			ended := func(what string, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					done[what]++
				} else if MaybeExecuted(err) {
					maybe[what]++
				}
			}
			work := func(n int, f func(ctx context.Context, r *rand.Rand)) {
				for range n {
					r := rand.New(rand.NewPCG(seed, r.Uint64()))
					wg.Go(func() {
						for !over.Load() {
							ctx, cancel := contextFor(time.Duration(10+r.IntN(400)) * time.Millisecond)
							f(ctx, r)
							cancel()
							time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
						}
					})
				}
			}
			work(4, func(ctx context.Context, r *rand.Rand) {
				elems, err := c.Do(ctx, "BLPOP", "q", []any{0, "0.05", 0.3}[r.IntN(3)]).Elems()
				mu.Lock()
				defer mu.Unlock()
				if len(elems) == 2 {
					id, _ := strconv.Atoi(textOf(elems[1]))
					popped[id]++
				} else if MaybeExecuted(err) {
					maybePopped++
				}
			})
			work(3, func(ctx context.Context, r *rand.Rand) {
				n := 1 + r.IntN(9)
				_, err := c.DoTx(ctx, loneBatch(fmt.Sprint("DECRBY from ", n), fmt.Sprint("INCRBY to ", n)))
				ended("transfer", err)
			})
			work(2, func(ctx context.Context, r *rand.Rand) {
				_, err := c.Watch(ctx, []string{"watched"}, func(session *Session, tx *Batch) error {
					text, err := session.Do(ctx, "GET", "watched").Text()
					n, _ := strconv.Atoi(text)
					tx.Add("SET", "watched", n+1)
					return err
				})
				ended("watched", err)
			})
			work(1, func(ctx context.Context, r *rand.Rand) {
				if session, err := c.Session(ctx); err == nil {
					session.Do(ctx, "BLPOP", "none", 0)
					if r.IntN(2) == 0 {
						session.Do(ctx, "SELECT", 1)
					}
					session.Close()
				}
			})
			wg.Go(func() {
				for !over.Load() {
					if replies, err := direct.DoTx(background, loneBatch("GET from", "GET to")); err != nil || txSum(t, replies) != 1000000 {
						t.Errorf("the sum is %s, %v", txSpell(replies), err)
					}
					time.Sleep(7 * time.Millisecond)
				}
			})
			pushed := 0
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
				for range r.IntN(10) {
					must(t, direct, fmt.Sprint("RPUSH q ", pushed))
					pushed++
				}
				here, there := a, b
				if r.IntN(2) == 0 {
					here, there = b, a
				}
				switch r.IntN(12) {
				case 0, 1:
					here.Move(there.Addr(), time.Duration(200+r.IntN(800))*time.Millisecond)
				case 2:
					here.Cut()
				case 3:
					here.Refuse(true)
					time.AfterFunc(time.Duration(r.IntN(300))*time.Millisecond, func() { here.Refuse(false) })
				case 4:
					go c.Renew(background)
				}
				time.Sleep(time.Duration(r.IntN(80)) * time.Millisecond)
			}
			over.Store(true)
			wg.Wait()
			time.Sleep(5 * time.Second) // what a server has read it carries out
			c.Close()
			if st := c.Stats(); st.Backlog != 0 {
				t.Errorf("%+v", st)
			}
			time.Sleep(time.Second) // what is under way on a slow connection
			if st := c.Stats(); st.InFlight != 0 || st.Conns != 0 || st.Sent-st.Answered > st.Failed {
				t.Errorf("%+v", st)
			}
			left, _ := direct.Do(background, "LRANGE", "q", 0, -1).Texts()
			for _, text := range left {
				id, _ := strconv.Atoi(text)
				if popped[id]++; popped[id] > 1 {
					t.Errorf("%d was popped and is still there", id)
				}
			}
			if lost := pushed - len(popped); lost > maybePopped || lost < 0 {
				t.Errorf("of %d elements %d are lost, and %d callers were told that this may be", pushed, lost, maybePopped)
			}
			for id, n := range popped {
				if n != 1 || id >= pushed {
					t.Errorf("%d was popped %d times", id, n)
				}
			}
			n, _ := strconv.Atoi(textOf(direct.Do(background, "GET", "watched")))
			if n < done["watched"] || n > done["watched"]+maybe["watched"] || n == 0 {
				t.Errorf("the counter that is watched is %d; %d succeeded, %d may have", n, done["watched"], maybe["watched"])
			}
			if n := a.Executed("DECRBY") + b.Executed("DECRBY"); n < done["transfer"] || n > done["transfer"]+maybe["transfer"] || n == 0 {
				t.Errorf("%d transfers were executed; %d succeeded, %d may have", n, done["transfer"], maybe["transfer"])
			}
		})
	}
}
