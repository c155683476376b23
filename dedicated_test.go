package baton

// Commands that block and sessions: what has a connection of its own, who shares it when, how it moves, and how it ends.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"example.com/baton/batontest"
)

// --- help ---

// loneServer is a scripted server that writes down who said what. It shakes hands, answers PING, repeats what does not block, and
// leaves what blocks, and what comes behind it, to the test.
type loneServer struct {
	*script
	mu    sync.Mutex
	lines []*loneLine              // in the order in which they were ready
	say   answers                  // to the commands that begin so, in place of what is usual
	optIn func(addr string) string // the answer to the opt-in; nil: +OK
	stall chan struct{}            // not nil: no handshake before it is closed
}

// loneLine is one of its connections.
type loneLine struct {
	*peer
	s        *loneServer
	greeting []string // what the client said in its handshake; the rest is guarded by s.mu
	said     []string // and afterwards
	owed     []string // answers that are due, the first of which may be loneOwed
	mute     bool     // nothing is answered
	gone     bool     // the client has closed it, or the test
}

// loneOwed is an answer that the test gives, or nobody.
const loneOwed = "\x01"

func newLone(t *testing.T) *loneServer {
	s := &loneServer{script: newScript(t)}
	s.attend(s.attendTo)
	return s
}

func (s *loneServer) attendTo(p *peer) {
	s.mu.Lock()
	stall, optIn := s.stall, s.optIn
	s.mu.Unlock()
	if stall != nil {
		<-stall
	}
	l := &loneLine{peer: p, s: s}
	for command := p.command(); command != ""; command = p.command() {
		if l.greeting == nil || l.greeting[len(l.greeting)-1] != "PING" {
			l.greeting = append(l.greeting, command)
			said := answers{}.to(command)
			if strings.HasPrefix(command, "CLIENT MAINT_NOTIFICATIONS") && optIn != nil {
				said = optIn(p.addr)
			}
			s.set(func() {
				if command == "PING" {
					s.lines = append(s.lines, l)
				}
				p.says(said)
			})
			continue
		}
		s.set(func() {
			l.said = append(l.said, command)
			l.owed = append(l.owed, s.answerLocked(l, command))
			l.payLocked()
		})
	}
	s.set(func() { l.gone = true })
	p.Close()
}

func (s *loneServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *loneServer) answerLocked(l *loneLine, command string) string {
	key, found := "", false
	for k := range s.say {
		if strings.HasPrefix(command, k) && len(k) >= len(key) {
			key, found = k, true
		}
	}
	upper := strings.ToUpper(command)
	options := upper[:max(strings.LastIndex(upper, " STREAMS "), 0)]
	switch {
	case l.mute:
		return loneOwed
	case found:
		return s.say[key]
	case upper == "PING":
		return "+PONG\r\n"
	case upper[0] == 'B', strings.HasPrefix(upper, "WAIT"), strings.Contains(options, " BLOCK "):
		return loneOwed
	}
	return loneBulk(command)
}

func loneBulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

func (l *loneLine) payLocked() {
	for len(l.owed) > 0 && l.owed[0] != loneOwed {
		if l.owed[0] == hangUp {
			l.Close()
		} else {
			l.says(l.owed[0])
		}
		l.owed = l.owed[1:]
	}
}

// unblock answers the command that blocks, and what has come behind it.
func (l *loneLine) unblock(raw string) {
	l.t.Helper()
	synctest.Wait()
	l.s.set(func() {
		if len(l.owed) == 0 {
			l.t.Error("nothing blocks here")
			return
		}
		l.owed[0] = raw
		l.payLocked()
	})
	synctest.Wait()
}

// closedBy says whether the connection is closed by now, without any time passing.
func (l *loneLine) closedBy() (gone bool) {
	synctest.Wait()
	l.s.set(func() { gone = l.gone })
	return gone
}

// heard is what the client has said on it since the handshake.
func (l *loneLine) heard() (said []string) {
	synctest.Wait()
	l.s.set(func() { said = slices.Clone(l.said) })
	return said
}

// client is a client of s.
func (s *loneServer) client(o Options) *Client {
	s.t.Helper()
	if o.Addr == "" {
		o.Addr = addrA
	}
	if o.Dialer == nil {
		o.Dialer = s.dial
	}
	c := dialOptions(s.t, o)
	synctest.Wait()
	return c
}

// all are the connections so far, and open those to addr that are not closed.
func (s *loneServer) all() (lines []*loneLine) {
	synctest.Wait()
	s.set(func() { lines = slices.Clone(s.lines) })
	return lines
}

func (s *loneServer) open(addr string) (open []*loneLine) {
	return slices.DeleteFunc(s.all(), func(l *loneLine) bool { return l.addr != addr || l.closedBy() })
}

// times is how often a command was said, on all connections together.
func (s *loneServer) times(command string) (n int) {
	for _, l := range s.all() {
		for _, said := range l.heard() {
			if said == command {
				n++
			}
		}
	}
	return n
}

// who is the connection on which a command was said, which must have been once.
func (s *loneServer) who(command string) *loneLine {
	s.t.Helper()
	if n := s.times(command); n != 1 {
		s.t.Fatalf("%q was said %d times, want once", command, n)
	}
	lines := s.all()
	return lines[slices.IndexFunc(lines, func(l *loneLine) bool { return slices.Contains(l.heard(), command) })]
}

// announce tells everybody who is connected.
func (s *loneServer) announce(frame string) {
	for _, l := range s.all() {
		if !l.closedBy() {
			l.says(frame)
		}
	}
	synctest.Wait()
}

// stalls has the handshakes of connections that come wait for release.
func (s *loneServer) stalls() (release func()) {
	stall := make(chan struct{})
	s.set(func() { s.stall = stall })
	return sync.OnceFunc(func() {
		s.set(func() { s.stall = nil })
		close(stall)
		synctest.Wait()
	})
}

// loneAsync runs a call and returns when it is under way, in a bubble. Its reply comes on the channel.
func loneAsync(f func() Reply) <-chan Reply {
	ch := make(chan Reply, 1)
	go func() { ch <- f() }()
	synctest.Wait()
	return ch
}

// loneBatch is a batch of commands written as words.
func loneBatch(commands ...string) *Batch {
	b := &Batch{}
	for _, command := range commands {
		b.Add(words(command)...)
	}
	return b
}

// loneBatchIn gives a batch and returns when it is under way. The error comes as a reply's.
func loneBatchIn(ctx context.Context, c *Client, b *Batch) <-chan Reply {
	return loneAsync(func() Reply {
		replies, err := c.DoBatch(ctx, b)
		if err != nil {
			return failure(err)
		}
		return ofElems(KindArray, replies)
	})
}

// loneOnTime says whether a Timeout that was due after want was judged as late as it may be.
func loneOnTime(d, want, timeout time.Duration) bool {
	return d >= want && d <= want+timeout/8+5*time.Millisecond
}

// loneSession is a session that is closed at the end of the test.
func loneSession(t *testing.T, c *Client) *Session {
	t.Helper()
	s, err := c.Session(background)
	if err != nil {
		t.Fatalf("session: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// loneMoments are the values that a session's channel has by now.
func loneMoments(s *Session) (moments []time.Time) {
	synctest.Wait()
	for {
		select {
		case at, ok := <-s.Moving():
			if !ok {
				return moments
			}
			moments = append(moments, at)
		default:
			return moments
		}
	}
}

// loneCommands are all that block, with two seconds as their own time.
var loneCommands = []string{
	"BLPOP k 2", "BLPOP k l 2", "BRPOP k 2", "BLMOVE a b LEFT RIGHT 2", "BLMPOP 2 1 k LEFT", "BLMPOP 2 2 k l RIGHT COUNT 3", "BRPOPLPUSH a b 2",
	"BZPOPMIN k 2", "BZPOPMAX k l 2", "BZMPOP 2 1 k MIN", "XREAD BLOCK 2000 STREAMS s $", "XREAD COUNT 1 BLOCK 2000 STREAMS s $",
	"XREAD BLOCK 2000 COUNT 1 STREAMS s t 0 0", "XREADGROUP GROUP g me BLOCK 2000 STREAMS s >", "XREADGROUP GROUP g me COUNT 1 BLOCK 2000 NOACK STREAMS s >",
	"XREADGROUP GROUP streams block BLOCK 2000 STREAMS s >", "XREADGROUP BLOCK 2000 GROUP g me STREAMS s >",
}

// loneWaits block only where they are in a batch or a session.
var loneWaits = []string{"WAIT 1 2000", "WAITAOF 1 0 2000"}

// --- a connection of its own ---

func TestBlockingCommandsHaveAConnectionOfTheirOwn(t *testing.T) {
	for _, text := range loneCommands {
		sub(t, text, func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{})
			upper, lower, title := words(text), words(strings.ToLower(text)), words(text[:1]+strings.ToLower(text[1:]))
			for i := range title {
				title[i] = []byte(title[i].(string))
			}
			for i, args := range [][]any{upper, lower, title} {
				blocked := async(c, args...)
				said := commandsIn(command(args...))
				l := s.who(said)
				if l == s.all()[0] {
					t.Fatalf("%s is on the connection that others share", said)
				}
				get := "GET " + strconv.Itoa(i)
				answered(t, async(c, words(get)...), get)
				if s.who(get) != s.all()[0] {
					t.Errorf("%s is not on the connection that is shared", get)
				}
				pending(t, said, blocked)
				l.unblock(loneBulk("it"))
				answered(t, blocked, "it")
			}
			if n := len(s.dialled()); n != 2 {
				t.Errorf("%d dials, want two", n)
			}
			appended := make(chan Reply, 1)
			go func() {
				text, err := c.DoAppend(background, []byte("as "), upper...)
				if appended <- ofText(KindString, string(text)); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
			if n := len(s.all()[0].heard()); n != 3 {
				t.Errorf("of DoAppend something is on the connection that others share")
			}
			s.all()[1].unblock(loneBulk("it"))
			answered(t, appended, "as it")
		})
	}
}

func TestABlockingCommandTakesItsBatchAlong(t *testing.T) {
	for _, text := range slices.Concat(loneCommands, loneWaits) {
		for _, spelled := range []string{text, strings.ToLower(text)} {
			sub(t, spelled, func(t *testing.T) {
				s := newLone(t)
				c := s.client(Options{})
				batch := loneBatchIn(background, c, loneBatch("GET 1", spelled, "GET 2"))
				l := s.who(spelled)
				if said := strings.Join(l.heard(), ", "); said != "GET 1, "+spelled+", GET 2" || l == s.all()[0] {
					t.Fatalf("on its connection was said: %s", said)
				}
				answered(t, async(c, "GET", "3"), "GET 3")
				pending(t, "the batch", batch)
				l.unblock(loneBulk("it"))
				if r := reply(t, batch); r.Err() != nil || spell(r) != `["GET 1" "it" "GET 2"]` {
					t.Errorf("the batch: %s, %v", spell(r), r.Err())
				}
				if shared := s.all()[0].heard(); len(shared) != 1 {
					t.Errorf("on the shared connection was said: %q", shared)
				}
			})
		}
	}
}

func TestWhatDoesNotBlockStaysOnTheSharedConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		s.say = answers{"X": "+here\r\n", "x": "+here\r\n", "BL": "+here\r\n", "SET": "+here\r\n", "GET": "+here\r\n", "LP": "+here\r\n"}
		c := s.client(Options{})
		commands := []string{
			"XREAD STREAMS s 0", "XREAD COUNT 1 STREAMS s 0", "XREAD STREAMS BLOCK 0", "XREAD STREAMS block s 0 0", "XREAD STREAMS s BLOCK 0 0", "XREADGROUP GROUP g me STREAMS BLOCK >",
			"XREADGROUP GROUP BLOCK me STREAMS s >", "XREADGROUP GROUP g BLOCK STREAMS s >", "xreadgroup group g me streams block >", "SET BLPOP 0", "GET BLOCK", "LPOP BLPOP 0",
		}
		for _, text := range commands {
			answered(t, async(c, words(text)...), "here")
		}
		if r := reply(t, loneBatchIn(background, c, loneBatch(commands...))); r.Err() != nil || len(elemsOf(r)) != len(commands) {
			t.Errorf("in a batch: %v, %v", spell(r), r.Err())
		}
		if n := len(s.dialled()); n != 1 {
			t.Errorf("%d dials: something took a connection of its own", n)
		}
	})
}

// The database, the name and the credentials are those of every connection (C14).
func TestDedicatedConnectionsAreSetUpLikeAllOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{DB: 3, ClientName: "me", Password: "secret"})
		async(c, "BLPOP", "k", 0)
		loneSession(t, c)
		for i, l := range s.all() {
			if greeting := strings.Join(l.greeting, ", "); greeting != strings.Join(s.all()[0].greeting, ", ") || !strings.Contains(greeting, "SELECT 3") {
				t.Errorf("connection %d: %s", i, greeting)
			}
		}
		if n := len(s.all()); n != 3 {
			t.Errorf("%d connections, want three", n)
		}
	})
}

// --- their own time ---

func TestBlockingCommandsTimeOutAfterTheirOwnTime(t *testing.T) {
	const timeout = time.Second
	forms := map[string][]any{"half a second": {"BLPOP", "k", 0.5}, "half a second, text": {"BLPOP", "k", "0.5"}, "half a second first": {"BLMPOP", 0.5, 1, "k", "LEFT"}}
	for _, text := range loneCommands {
		forms[text] = words(text)
	}
	for _, two := range []any{2, int8(2), int16(2), int32(2), int64(2), uint(2), uint8(2), uint16(2), uint32(2), uint64(2), float32(2), 2.0, "2", []byte("2"), "2.0", []byte("2.000")} {
		name := fmt.Sprintf("%T %v", two, two)
		forms["last: "+name] = []any{"BRPOP", "k", two}
		forms["first: "+name] = []any{"BZMPOP", two, 1, "k", "MIN"}
	}
	for _, two := range []any{2000, int64(2000), uint16(2000), "2000", []byte("2000")} {
		forms[fmt.Sprintf("milliseconds: %T", two)] = []any{"XREAD", "BLOCK", two, "STREAMS", "s", "$"}
	}
	for name, args := range forms {
		sub(t, name, func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{Timeout: timeout})
			own := 2 * time.Second
			if strings.HasPrefix(name, "half") {
				own /= 4
			}
			began := time.Now()
			err := reply(t, async(c, args...)).Err()
			if d := time.Since(began); !errors.Is(err, ErrTimeout) || !MaybeExecuted(err) || !loneOnTime(d, own+timeout, timeout) {
				t.Errorf("after %v: %v, want a timeout after %v", d, err, own+timeout)
			}
		})
	}
	batches := map[time.Duration][][]any{
		2 * time.Second: {{"WAIT", 1, 2000}},
		3 * time.Second: {{"GET", "k"}, {"WAITAOF", 1, 0, "3000"}, {"GET", "k"}},
		4 * time.Second: {{"WAIT", "1", []byte("4000")}},
		5 * time.Second: {{"BLPOP", "k", 2}, {"BRPOP", "k", 3}}, // one after the other
		6 * time.Second: {{"BLPOP", "k", "2"}, {"GET", "k"}, {"XREAD", "BLOCK", 4000, "STREAMS", "s", "$"}},
	}
	for own, commands := range batches {
		sub(t, fmt.Sprintf("batch: %v", commands), func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{Timeout: timeout})
			b := &Batch{}
			for _, args := range commands {
				b.Add(args...)
			}
			began := time.Now()
			err := reply(t, loneBatchIn(background, c, b)).Err()
			if d := time.Since(began); !errors.Is(err, ErrTimeout) || !MaybeExecuted(err) || !loneOnTime(d, own+timeout, timeout) {
				t.Errorf("after %v: %v, want a timeout after %v", d, err, own+timeout)
			}
		})
	}
	sub(t, "a batch that was reset has forgotten it", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Timeout: timeout})
		b := loneBatch("BLPOP k 0")
		b.Reset()
		b.Add("GET", "k")
		if r := reply(t, loneBatchIn(background, c, b)); r.Err() != nil || len(s.dialled()) != 1 {
			t.Errorf("%v, %d dials", r.Err(), len(s.dialled()))
		}
		b.Reset()
		b.Add("BLPOP", "k", 2)
		began := time.Now()
		err := reply(t, loneBatchIn(background, c, b)).Err()
		if d := time.Since(began); !errors.Is(err, ErrTimeout) || !loneOnTime(d, 3*time.Second, timeout) {
			t.Errorf("after %v: %v", d, err)
		}
	})
	sub(t, "relaxed", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Timeout: timeout})
		s.announce(opens("MIGRATING", 1, 30))
		began := time.Now()
		err := reply(t, async(c, "BLPOP", "k", 2)).Err()
		if d := time.Since(began); !errors.Is(err, ErrTimeout) || !loneOnTime(d, 12*time.Second, timeout) {
			t.Errorf("after %v: %v, want a timeout after 12s", d, err)
		}
	})
	sub(t, "relaxed while it blocks", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Timeout: timeout})
		began := time.Now()
		blocked := async(c, "BLPOP", "k", 2)
		time.Sleep(2500 * time.Millisecond)
		s.announce(opens("FAILING_OVER", 1, 30))
		err := reply(t, blocked).Err()
		if d := time.Since(began); !errors.Is(err, ErrTimeout) || !loneOnTime(d, 12*time.Second, timeout) {
			t.Errorf("after %v: %v, want a timeout after 12s", d, err)
		}
	})
	sub(t, "the server answers in time", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Timeout: timeout})
		blocked := async(c, "BLPOP", "k", 2)
		time.Sleep(2900 * time.Millisecond)
		s.who("BLPOP k 2").unblock("_\r\n")
		if r := reply(t, blocked); r.Err() != nil || !r.IsNull() {
			t.Errorf("%v, %v", r.Kind(), r.Err())
		}
	})
}

func TestBlockingCommandsWithoutAnEnd(t *testing.T) {
	type given struct {
		timeout time.Duration
		args    []any
	}
	for name, g := range map[string]given{
		"0": {0, []any{"BLPOP", "k", 0}}, "text": {0, []any{"BLPOP", "k", "0"}}, "bytes": {0, []any{"BLPOP", "k", []byte("0")}}, "float": {0, []any{"BLPOP", "k", 0.0}},
		"0.0": {0, []any{"BRPOP", "k", "0.0"}}, "first": {0, []any{"BLMPOP", 0, 1, "k", "LEFT"}}, "first, text": {0, []any{"BZMPOP", "0", 1, "k", "MIN"}},
		"stream": {0, []any{"XREAD", "BLOCK", 0, "STREAMS", "s", "$"}}, "group": {0, []any{"XREADGROUP", "GROUP", "g", "me", "BLOCK", "0", "STREAMS", "s", ">"}},
		"no Timeout": {-1, []any{"BLPOP", "k", 1}}, "no Timeout, 0": {-1, []any{"BLPOP", "k", 0}},
	} {
		for _, asBatch := range []bool{false, true} {
			sub(t, fmt.Sprintf("%s, batch: %v", name, asBatch), func(t *testing.T) {
				s := newLone(t)
				c := s.client(Options{Timeout: g.timeout})
				var blocked <-chan Reply
				if asBatch {
					b := loneBatch("GET 1", "BLPOP l 1")
					b.Add(g.args...)
					blocked = loneBatchIn(background, c, b)
					time.Sleep(time.Second)
					s.who("BLPOP l 1").unblock("_\r\n")
				} else {
					blocked = async(c, g.args...)
				}
				l := s.who(commandsIn(command(g.args...)))
				time.Sleep(59 * time.Minute)
				if said := l.heard(); l.closedBy() || slices.Contains(said, "PING") {
					t.Errorf("after an hour: closed %v, said %q", l.closedBy(), said)
				}
				pending(t, "it", blocked)
				l.unblock(loneBulk("at last"))
				if r := reply(t, blocked); r.Err() != nil {
					t.Error(r.Err())
				}
			})
		}
	}
}

// The server says what is wrong with them, and the client does not take them for a moment that has passed.
func TestOwnTimesThatAreNone(t *testing.T) {
	for _, bad := range []any{"abc", "", "-1", -1, int64(math.MinInt64), -0.5, "1e300", 1e300, "inf", math.Inf(1), math.Inf(-1), "nan", math.NaN(), int64(math.MaxInt64), uint64(math.MaxUint64), "99999999999999999999", []byte("2s"), "2 2"} {
		for name, args := range map[string][]any{
			"last": {"BLPOP", "k", bad}, "first": {"BLMPOP", bad, 1, "k", "LEFT"}, "stream": {"XREAD", "BLOCK", bad, "STREAMS", "s", "$"}, "in a batch": {"WAIT", 1, bad},
		} {
			sub(t, fmt.Sprintf("%s %T %v", name, bad, bad), func(t *testing.T) {
				s := newLone(t)
				c := s.client(Options{Timeout: time.Second})
				b := &Batch{}
				b.Add(args...)
				blocked := loneBatchIn(background, c, b)
				time.Sleep(500 * time.Millisecond)
				s.all()[1].unblock("-ERR timeout is not a float or out of range\r\n")
				if r := reply(t, blocked); r.Err() != nil || len(elemsOf(r)) != 1 || elemsOf(r)[0].Kind() != KindError {
					t.Errorf("in a batch: %v, %v", spell(r), r.Err())
				}
				if args[0] == "WAIT" {
					return
				}
				blocked = async(c, args...)
				time.Sleep(500 * time.Millisecond)
				s.all()[1].unblock("-ERR timeout is not a float or out of range\r\n")
				var refusal *ServerError
				if err := reply(t, blocked).Err(); !errors.As(err, &refusal) || refusal.Code != "ERR" || MaybeExecuted(err) {
					t.Errorf("%v, want what the server said", err)
				}
			})
		}
	}
	sub(t, "missing", func(t *testing.T) {
		s := newLone(t)
		s.say = answers{"B": "-ERR wrong number of arguments\r\n", "X": "-ERR wrong number of arguments\r\n", "WAIT": "-ERR wrong number of arguments\r\n"}
		c := s.client(Options{})
		for _, text := range append(slices.Clone(loneCommands), "WAIT", "WAITAOF", "WAIT 1", "BLPOP", "BLMPOP", "BZMPOP", "XREAD BLOCK", "XREADGROUP GROUP", "XREADGROUP GROUP g me BLOCK", "BRPOPLPUSH a") {
			var refusal *ServerError
			r := reply(t, loneBatchIn(background, c, loneBatch(text)))
			if r.Err() != nil || len(elemsOf(r)) != 1 || !errors.As(elemsOf(r)[0].Err(), &refusal) {
				t.Errorf("%s: %v, %v", text, spell(r), r.Err())
			}
		}
	})
}

// loneDeadlines counts the deadlines that are set on a connection once something that blocks was written to it.
type loneDeadlines struct {
	net.Conn
	blocked atomic.Bool
	set     *atomic.Int32
}

func (d *loneDeadlines) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "BLPOP") {
		d.blocked.Store(true)
	}
	return d.Conn.Write(b)
}

func (d *loneDeadlines) SetDeadline(t time.Time) error { d.note(t); return d.Conn.SetDeadline(t) }
func (d *loneDeadlines) SetReadDeadline(t time.Time) error {
	d.note(t)
	return d.Conn.SetReadDeadline(t)
}
func (d *loneDeadlines) SetWriteDeadline(t time.Time) error {
	d.note(t)
	return d.Conn.SetWriteDeadline(t)
}

func (d *loneDeadlines) note(t time.Time) {
	if d.blocked.Load() && !t.IsZero() {
		d.set.Add(1)
	}
}

// A12: a window relaxes what there is, and nothing becomes a deadline of the socket.
func TestCaseA12BlockingInAWindow(t *testing.T) {
	for _, timeout := range []time.Duration{0, -1, time.Second} {
		for _, window := range []string{"MIGRATING", "FAILING_OVER", "SMIGRATING"} {
			sub(t, fmt.Sprintf("Timeout %v, %s", timeout, window), func(t *testing.T) {
				s := newLone(t)
				var deadlines atomic.Int32
				c := s.client(Options{Timeout: timeout, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &loneDeadlines{Conn: nc, set: &deadlines} })})
				owns := []any{0, -1, "", 100}
				blocked := map[string]<-chan Reply{}
				give := func(when string) {
					for _, own := range owns {
						blocked[fmt.Sprintf("BLPOP %s %v", when, own)] = async(c, "BLPOP", when, own)
					}
				}
				give("before") // also what waits already is relaxed
				s.announce(opens(window, 1, 20))
				give("after")
				time.Sleep(9 * time.Second)
				for said, ch := range blocked {
					pending(t, said, ch)
					s.who(said).unblock(loneBulk(said))
					answered(t, ch, said)
				}
				if n := deadlines.Load(); n != 0 {
					t.Errorf("%d deadlines were set while commands were blocked", n)
				}
			})
		}
	}
}

// --- who uses them ---

func TestDedicatedConnectionsAreReused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		for round := range 5 {
			var blocked []<-chan Reply
			for i := range 3 {
				blocked = append(blocked, async(c, "BLPOP", fmt.Sprintf("k%d.%d", round, i), 0))
			}
			lines := map[*loneLine]bool{}
			for i := range 3 {
				l := s.who(fmt.Sprintf("BLPOP k%d.%d 0", round, i))
				lines[l] = true
				l.unblock(loneBulk(strconv.Itoa(i)))
				answered(t, blocked[i], strconv.Itoa(i))
			}
			if len(lines) != 3 || lines[s.all()[0]] {
				t.Errorf("three that block at a time are on %d connections", len(lines))
			}
		}
		if n := len(s.dialled()); n != 4 {
			t.Errorf("%d dials, want one and three", n)
		}
	})
}

func TestMaxDedicated(t *testing.T) {
	sub(t, "those beyond it wait for one", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 2, Timeout: time.Second})
		one, two := async(c, "BLPOP", "1", 0), async(c, "BLPOP", "2", 0)
		three := async(c, "BLPOP", "3", 1)
		time.Sleep(time.Minute) // which is not counted
		pending(t, "the third", three)
		if n := s.times("BLPOP 3 1"); n != 0 || len(s.dialled()) != 3 {
			t.Fatalf("%d dials, want one and two", len(s.dialled()))
		}
		l := s.who("BLPOP 2 0")
		l.unblock(loneBulk("two"))
		answered(t, two, "two")
		s.who("BLPOP 3 1").unblock(loneBulk("three"))
		answered(t, three, "three")
		s.who("BLPOP 1 0").unblock(loneBulk("one"))
		answered(t, one, "one")
		if n := len(s.dialled()); n != 3 {
			t.Errorf("%d dials, want one and two", n)
		}
	})
	sub(t, "within their context", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1})
		async(c, "BLPOP", "1", 0)
		ctx, cancel := contextFor(time.Minute)
		defer cancel()
		began := time.Now()
		one, batch := asyncIn(ctx, c, "BLPOP", "2", 0), loneBatchIn(ctx, c, loneBatch("GET 1", "BLPOP 2 0"))
		opening := loneAsync(func() Reply { _, err := c.Session(ctx); return failure(err) })
		failedWith(t, "one that waits for its turn", one, context.DeadlineExceeded, false)
		failedWith(t, "a batch", batch, context.DeadlineExceeded, false)
		failedWith(t, "a session", opening, context.DeadlineExceeded, false)
		if d := time.Since(began); d != time.Minute {
			t.Errorf("they waited for %v", d)
		}
		if st := c.Stats(); st.Failed != 3 { // one, and a batch of two
			t.Errorf("%+v", st)
		}
		s.who("BLPOP 1 0").unblock("_\r\n")
		two := async(c, "BLPOP", "3", 0) // who left holds no place
		s.who("BLPOP 3 0").unblock("_\r\n")
		if err := reply(t, two).Err(); err != nil || s.times("BLPOP 2 0") != 0 {
			t.Errorf("afterwards: %v", err)
		}
	})
	sub(t, "sessions count", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 2})
		one, two := loneSession(t, c), loneSession(t, c)
		blocked := async(c, "BLPOP", "k", 0)
		third := later(func() *Session { return loneSession(t, c) })
		time.Sleep(time.Minute)
		if n := len(s.dialled()); n != 3 {
			t.Fatalf("%d dials, want one and two", n)
		}
		one.Close()
		two.Close()
		l := s.who("BLPOP k 0")
		l.unblock("_\r\n")
		if err := reply(t, blocked).Err(); err != nil {
			t.Error(err)
		}
		answered(t, loneAsync(func() Reply { return third().Do(background, "GET", "3") }), "GET 3")
	})
	sub(t, "connections that nobody uses make room", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1})
		blocked := async(c, "BLPOP", "k", 0)
		s.who("BLPOP k 0").unblock("_\r\n")
		reply(t, blocked)
		began := time.Now()
		loneSession(t, c)
		if d := time.Since(began); d > 0 {
			t.Errorf("a session had to wait for %v", d)
		}
		if n := len(s.open(addrA)); n != 2 {
			t.Errorf("%d connections, want one and one", n)
		}
	})
	sub(t, "a session closes nothing as long as there is room", func(t *testing.T) {
		s, c, _, busy, idle := loneScene(t, Options{MaxDedicated: 3})
		loneSession(t, c)
		if busy.closedBy() || idle.closedBy() || len(s.open(addrA)) != 4 {
			t.Errorf("busy: closed %v; idle: closed %v", busy.closedBy(), idle.closedBy())
		}
		next := async(c, "BLPOP", "next", 0)
		if l := s.who("BLPOP next 0"); l != idle {
			t.Error("the idle one is not used")
		}
		idle.unblock(loneBulk("it"))
		answered(t, next, "it")
	})
	sub(t, "who closes a session twice gives its place back once", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1})
		session := loneSession(t, c)
		s.all()[1].Close()
		synctest.Wait()
		session.Close()
		session.Close() // which gives back nothing more
		async(c, "BLPOP", "1", 0)
		two := async(c, "BLPOP", "2", 0)
		s.who("BLPOP 1 0")
		time.Sleep(time.Minute)
		pending(t, "one too many", two)
		if n := s.times("BLPOP 2 0"); n != 0 {
			t.Error("there are two, and one is allowed")
		}
	})
	sub(t, "a session that is closed is not the one that has its place", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1})
		old := loneSession(t, c)
		old.Do(background, "GET", "old")
		old.Close()
		next := loneSession(t, c)
		next.Do(background, "GET", "next")
		for name, err := range map[string]error{
			"Do": old.Do(background, "GET", "k").Err(), "EXEC": old.Do(background, "EXEC").Err(),
			"DoBatch": func() error { _, err := old.DoBatch(background, loneBatch("GET k")); return err }(),
			"DoTx":    func() error { _, err := old.DoTx(background, loneBatch("GET k")); return err }(),
		} {
			if !errors.Is(err, ErrClosed) || MaybeExecuted(err) || errors.Is(err, ErrTxAborted) != (name == "EXEC" || name == "DoTx") {
				t.Errorf("%s on the closed one: %v", name, err)
			}
		}
		old.Close()
		s.announce(moves(1, 10, addrB))
		if before, after := loneMoments(old), loneMoments(next); len(before) != 0 || len(after) != 1 {
			t.Errorf("the closed one learns %v, the other %v", before, after)
		}
		answered(t, loneAsync(func() Reply { return next.Do(background, "GET", "still") }), "GET still")
		if said := strings.Join(s.who("GET next").heard(), ","); said != "PING,GET next,GET still" {
			t.Errorf("was said: %s", said)
		}
	})
	sub(t, "64 if nothing is said", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		for i := range 65 {
			async(c, "BLPOP", i, 0)
		}
		if n := len(s.dialled()); n != 65 || s.times("BLPOP 64 0") != 0 {
			t.Errorf("%d dials, want one and 64", n)
		}
	})
	sub(t, "in a URL", func(t *testing.T) {
		if o, err := ParseURL("redis://db.example.com?max_dedicated=3"); err != nil || o.MaxDedicated != 3 {
			t.Errorf("%d, %v", o.MaxDedicated, err)
		}
	})
	sub(t, "negative is none", func(t *testing.T) {
		if c, err := Dial(background, Options{Addr: addrA, Dialer: newScript(t).dial, MaxDedicated: -1}); err == nil {
			c.Close()
			t.Error("a negative number is allowed")
		}
	})
}

// --- the end of the client ---

func TestCloseWhileCommandsBlock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 4})
		blocked := async(c, "BLPOP", "1", 0)
		batch := loneBatchIn(background, c, loneBatch("GET 1", "BLPOP 2 0"))
		session := loneSession(t, c)
		inSession := loneAsync(func() Reply { return session.Do(background, "BLPOP", "3", 0) })
		release := s.stalls()
		dialling := async(c, "BLPOP", "4", 0)
		waiting := async(c, "BLPOP", "5", 0)
		opening := loneAsync(func() Reply { _, err := c.Session(background); return failure(err) })
		began := time.Now()
		c.Close()
		failedWith(t, "in flight", blocked, ErrClosed, true)
		failedWith(t, "a batch in flight", batch, ErrClosed, true)
		failedWith(t, "in flight in a session", inSession, ErrClosed, true)
		failedWith(t, "that is dialled for", dialling, ErrClosed, false)
		failedWith(t, "that waits for its turn", waiting, ErrClosed, false)
		failedWith(t, "a session that waits for its turn", opening, ErrClosed, false)
		failedWith(t, "given later", async(c, "BLPOP", "6", 0), ErrClosed, false)
		failedWith(t, "a session afterwards", loneAsync(func() Reply { return session.Do(background, "GET", "k") }), ErrClosed, false)
		if _, err := c.Session(background); !errors.Is(err, ErrClosed) {
			t.Errorf("a session given later: %v", err)
		}
		if d := time.Since(began); d > 0 {
			t.Errorf("it took %v", d)
		}
		for i, l := range s.all() {
			if !l.closedBy() {
				t.Errorf("connection %d is open", i)
			}
		}
		release()
	})
	sub(t, "a session that is dialled", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		release := s.stalls()
		opening := loneAsync(func() Reply { _, err := c.Session(background); return failure(err) })
		c.Close()
		failedWith(t, "it", opening, ErrClosed, false)
		release()
		time.Sleep(time.Second)
		if n := len(s.open(addrA)); n != 0 {
			t.Errorf("%d connections are open", n)
		}
	})
}

func TestShutdownWaitsForWhatBlocks(t *testing.T) {
	stopped := func(c *Client, d time.Duration) <-chan Reply {
		return loneAsync(func() Reply {
			ctx, cancel := contextFor(d)
			defer cancel()
			if err := c.Shutdown(ctx); err != nil {
				return failure(err)
			}
			return Reply{}
		})
	}
	sub(t, "it is answered", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		session := loneSession(t, c)
		blocked := async(c, "BLPOP", "1", 0)
		inSession := loneAsync(func() Reply { return session.Do(background, "BLPOP", "2", 0) })
		over := stopped(c, time.Hour)
		failedWith(t, "given later", async(c, "BLPOP", "3", 0), ErrClosed, false)
		failedWith(t, "given later in a session", loneAsync(func() Reply { return session.Do(background, "GET", "k") }), ErrClosed, false)
		if _, err := c.Session(background); !errors.Is(err, ErrClosed) {
			t.Errorf("a session asked for later: %v", err)
		}
		time.Sleep(time.Minute)
		pending(t, "Shutdown", over)
		s.who("BLPOP 1 0").unblock(loneBulk("one"))
		answered(t, blocked, "one")
		pending(t, "Shutdown", over)
		s.who("BLPOP 2 0").unblock(loneBulk("two"))
		answered(t, inSession, "two")
		if err := reply(t, over).Err(); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if n := len(s.open(addrA)); n != 0 {
			t.Errorf("%d connections are open", n)
		}
	})
	sub(t, "its context ends", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1})
		blocked, waiting := async(c, "BLPOP", "1", 0), async(c, "BLPOP", "2", 0)
		over := stopped(c, time.Second)
		failedWith(t, "in flight", blocked, ErrClosed, true)
		failedWith(t, "that waits for its turn", waiting, ErrClosed, false)
		failedWith(t, "Shutdown", over, context.DeadlineExceeded, false)
	})
	sub(t, "the caller leaves", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		ctx, cancel := context.WithCancel(background)
		blocked := asyncIn(ctx, c, "BLPOP", "1", 0)
		over := stopped(c, time.Hour)
		cancel()
		failedWith(t, "it", blocked, context.Canceled, true)
		began := time.Now()
		if err := reply(t, over).Err(); err != nil || time.Since(began) > 0 {
			t.Errorf("Shutdown: %v, %v later", err, time.Since(began))
		}
	})
	sub(t, "the connection is lost", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		blocked := async(c, "BLPOP", "1", 0)
		over := stopped(c, time.Hour)
		s.who("BLPOP 1 0").Close()
		failedWith(t, "it", blocked, nil, true)
		began := time.Now()
		if err := reply(t, over).Err(); err != nil || time.Since(began) > 0 {
			t.Errorf("Shutdown: %v, %v later", err, time.Since(began))
		}
	})
	sub(t, "nothing blocks", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		session := loneSession(t, c)
		blocked := async(c, "BLPOP", "1", 0)
		s.who("BLPOP 1 0").unblock("_\r\n")
		reply(t, blocked)
		over := stopped(c, time.Hour)
		began := time.Now()
		if err := reply(t, over).Err(); err != nil || time.Since(began) > 0 {
			t.Errorf("Shutdown: %v, after %v", err, time.Since(began))
		}
		failedWith(t, "the session", loneAsync(func() Reply { return session.Do(background, "GET", "k") }), ErrClosed, false)
		if n := len(s.open(addrA)); n != 0 {
			t.Errorf("%d connections are open", n)
		}
	})
	sub(t, "one that waits for its turn is answered or was never sent", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1})
		s.say = answers{"BLPOP 2": loneBulk("two")}
		blocked, waiting := async(c, "BLPOP", "1", 0), async(c, "BLPOP", "2", 0)
		over := stopped(c, time.Hour)
		s.who("BLPOP 1 0").unblock(loneBulk("one"))
		answered(t, blocked, "one")
		r := reply(t, waiting)
		if err := r.Err(); err == nil && textOf(r) != "two" || err != nil && (!errors.Is(err, ErrClosed) || MaybeExecuted(err) || s.times("BLPOP 2 0") > 0) {
			t.Errorf("it got %v, and was said %d times", textOf(r), s.times("BLPOP 2 0"))
		}
		if err := reply(t, over).Err(); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

// --- the caller leaves ---

// loneLeaves are the ways to leave: how, with which options, and as what.
var loneLeaves = map[string]struct {
	timeout time.Duration
	ctx     func() (context.Context, context.CancelFunc)
	own     int
	err     error
}{
	"its context is cancelled": {0, func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(background)
		time.AfterFunc(5*time.Second, cancel)
		return ctx, cancel
	}, 0, context.Canceled},
	"its context ends": {0, func() (context.Context, context.CancelFunc) { return contextFor(5 * time.Second) }, 0, context.DeadlineExceeded},
	"Timeout":          {3 * time.Second, func() (context.Context, context.CancelFunc) { return contextFor(time.Hour) }, 2, ErrTimeout},
}

func TestWhoLeavesABlockingCommandClosesItsConnection(t *testing.T) {
	calls := map[string]func(ctx context.Context, c *Client, own int) Reply{
		"Do": func(ctx context.Context, c *Client, own int) Reply { return c.Do(ctx, "BLPOP", "k", own) },
		"DoAppend": func(ctx context.Context, c *Client, own int) Reply {
			dst, err := c.DoAppend(ctx, []byte("as it was"), "BLPOP", "k", own)
			if string(dst) != "as it was" {
				return Reply{}
			}
			return failure(err)
		},
		"DoBatch": func(ctx context.Context, c *Client, own int) Reply {
			replies, err := c.DoBatch(ctx, loneBatch("GET 1", fmt.Sprint("BLPOP k ", own), "GET 2"))
			if replies != nil {
				return Reply{}
			}
			return failure(err)
		},
	}
	for how, leave := range loneLeaves {
		for name, call := range calls {
			for _, moved := range []bool{false, true} {
				sub(t, fmt.Sprintf("%s of %s, moved: %v", how, name, moved), func(t *testing.T) {
					s := newLone(t)
					c := s.client(Options{Timeout: leave.timeout, MaxDedicated: 1, Maintenance: Maintenance{RelaxedTimeout: -1}})
					ctx, cancel := leave.ctx()
					defer cancel()
					blocked := loneAsync(func() Reply { return call(ctx, c, leave.own) })
					l := s.who(fmt.Sprint("BLPOP k ", leave.own))
					if moved {
						s.announce(moves(1, 10, addrB))
					}
					for len(blocked) == 0 {
						if l.closedBy() {
							t.Fatal("closed before the caller had left")
						}
						time.Sleep(time.Millisecond)
						synctest.Wait()
					}
					if !l.closedBy() {
						t.Error("the caller has left, and the connection is open")
					}
					failedWith(t, "it", blocked, leave.err, true)
					after := async(c, "BLPOP", "after", 0) // the only place is free again
					if next := s.who("BLPOP after 0"); next == l || moved != (next.addr == addrB) {
						t.Errorf("the next one is at %s", next.addr)
					}
					s.who("BLPOP after 0").unblock(loneBulk("it"))
					answered(t, after, "it")
					if st := c.Stats(); st.InFlight != 0 {
						t.Errorf("%d in flight", st.InFlight)
					}
				})
			}
		}
	}
}

func TestWhoLeavesBeforeABlockingCommandIsWritten(t *testing.T) {
	for how, leave := range loneLeaves {
		if leave.err == ErrTimeout {
			continue // 0 has none
		}
		sub(t, how+", dialling", func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{MaxDedicated: 1, DialTimeout: time.Minute})
			release := s.stalls()
			ctx, cancel := leave.ctx()
			defer cancel()
			blocked := asyncIn(ctx, c, "BLPOP", "k", 0)
			failedWith(t, "it", blocked, leave.err, false)
			release()
			after := async(c, "BLPOP", "after", 0)
			s.who("BLPOP after 0").unblock(loneBulk("it"))
			answered(t, after, "it")
			if n := s.times("BLPOP k 0"); n > 0 {
				t.Error("it was never sent, and the server has read it")
			}
			if n := len(s.open(addrA)); n != 2 {
				t.Errorf("%d connections, want one and one", n)
			}
		})
		sub(t, how+", nobody there", func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{MaxDedicated: 1})
			s.refuseAll()
			ctx, cancel := leave.ctx()
			defer cancel()
			failedWith(t, "it", asyncIn(ctx, c, "BLPOP", "k", 0), leave.err, false)
			s.refuseNone()
			time.Sleep(time.Minute)
			after := async(c, "BLPOP", "after", 0)
			s.who("BLPOP after 0").unblock(loneBulk("it"))
			answered(t, after, "it")
			if n := s.times("BLPOP k 0"); n > 0 {
				t.Error("it was never sent, and the server has read it")
			}
		})
	}
	sub(t, "before it is given", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1})
		ctx, cancel := context.WithCancel(background)
		cancel()
		failedWith(t, "Do", asyncIn(ctx, c, "BLPOP", "k", 0), context.Canceled, false)
		failedWith(t, "DoBatch", loneBatchIn(ctx, c, loneBatch("BLPOP k 0")), context.Canceled, false)
		if _, err := c.Session(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a session: %v", err)
		}
		async(c, "BLPOP", "after", 0)
		if s.who("BLPOP after 0"); s.times("BLPOP k 0") > 0 {
			t.Error("it was sent")
		}
	})
}

// C9: what is pushed after the caller has left is popped for nobody.
func TestCaseC9NothingIsPoppedForNobody(t *testing.T) {
	for how, leave := range loneLeaves {
		sub(t, how, func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.Timeout = leave.timeout })
			if leave.err == ErrTimeout { // the server's clock is late
				s.a.Freeze(true)
				time.AfterFunc(20*time.Second, func() { s.a.Freeze(false) })
			}
			ctx, cancel := leave.ctx()
			defer cancel()
			if err := s.c.Do(ctx, "BLPOP", "k", leave.own).Err(); !errors.Is(err, leave.err) {
				t.Fatalf("%v", err)
			}
			time.Sleep(20 * time.Second)
			must(t, s.c, "RPUSH k a")
			if n, err := s.c.Do(background, "LLEN", "k").Int64(); n != 1 || err != nil {
				t.Errorf("%d elements are left, %v, want the one", n, err)
			}
			if r := s.c.Do(background, "BLPOP", "k", 1); spell(r) != `["k" "a"]` {
				t.Errorf("the next one gets %s, %v", spell(r), r.Err())
			}
		})
	}
}

// Whoever leaves as an element is pushed gets it, or it is still there, or the error says that it may be gone.
func TestNoElementIsLostWithoutAWord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, nil)
		got := 0
		for i := range 200 {
			ctx, cancel := contextFor(time.Second)
			blocked := asyncIn(ctx, s.c, "BLPOP", "k", 0)
			time.Sleep(time.Second + time.Duration(i%3-1)*time.Nanosecond)
			go s.c.Do(background, "RPUSH", "k", i)
			r := reply(t, blocked)
			cancel()
			synctest.Wait()
			left, err := s.c.Do(background, "LPOP", "k").Int64()
			switch {
			case err == nil && left != int64(i):
				t.Fatalf("round %d: %d is left", i, left)
			case r.Err() == nil && err == nil:
				t.Fatalf("round %d: it was popped and is still there", i)
			case r.Err() != nil && err != nil && !MaybeExecuted(r.Err()):
				t.Fatalf("round %d: it is gone, and the error says %v", i, r.Err())
			case r.Err() == nil:
				got++
			}
		}
		if got == 0 || got == 200 {
			t.Errorf("%d of 200 were popped: the test shows nothing", got)
		}
	})
}

// --- handoffs ---

// loneScene is a client with a shared connection, a dedicated one that is blocked by "BLPOP busy 0", and one that is idle.
func loneScene(t *testing.T, o Options) (s *loneServer, c *Client, blocked <-chan Reply, busy, idle *loneLine) {
	s = newLone(t)
	c = s.client(o)
	blocked = async(c, "BLPOP", "busy", 0)
	other := async(c, "BLPOP", "idle", 0)
	busy, idle = s.who("BLPOP busy 0"), s.who("BLPOP idle 0")
	idle.unblock("_\r\n")
	reply(t, other)
	return s, c, blocked, busy, idle
}

func TestABlockedCommandStaysWhereItIs(t *testing.T) {
	for _, successor := range []string{addrB, ""} {
		sub(t, "successor "+successor, func(t *testing.T) {
			s, c, blocked, busy, idle := loneScene(t, Options{})
			s.announce(moves(1, 10, successor))
			time.Sleep(8 * time.Second)
			if successor == "" {
				successor = addrA
			}
			pending(t, "it", blocked)
			if busy.closedBy() {
				t.Fatal("its connection was closed")
			}
			if !idle.closedBy() {
				t.Error("the idle one is still open although there are newer ones")
			}
			answered(t, async(c, "GET", "1"), "GET 1")
			next := async(c, "BLPOP", "next", 0)
			if l := s.who("BLPOP next 0"); l == busy || l == idle || l.addr != successor {
				t.Errorf("the next one blocks at %s", l.addr)
			}
			time.Sleep(time.Minute) // while it lives
			busy.unblock(loneBulk("at last"))
			answered(t, blocked, "at last")
			if !busy.closedBy() {
				t.Error("it was answered, and its connection is open")
			}
			s.who("BLPOP next 0").unblock(loneBulk("it"))
			answered(t, next, "it")
			if st := c.Stats(); st.Failed != 0 || st.Conns != len(s.open(successor)) || len(s.open(successor)) > 3 || successor == addrB && len(s.open(addrA)) != 0 {
				t.Errorf("%d connections are open to the new place, %d to the old one, %+v", len(s.open(successor)), len(s.open(addrA)), st)
			}
			dials := len(s.dialled())
			for range 3 { // what the handoff left is used
				again := async(c, "BLPOP", "again", 0)
				s.open(successor)[slices.IndexFunc(s.open(successor), func(l *loneLine) bool { return len(l.owed) > 0 })].unblock(loneBulk("it"))
				answered(t, again, "it")
			}
			if n := len(s.dialled()); n != dials {
				t.Errorf("%d dials more", n-dials)
			}
		})
	}
	sub(t, "what blocks in the middle of a batch", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		batch := loneBatchIn(background, c, loneBatch("GET 1", "BLPOP k 0", "GET 2", "BLPOP l 0", "GET 3"))
		l := s.who("BLPOP k 0")
		s.announce(moves(1, 10, addrB))
		time.Sleep(2 * time.Second)
		l.unblock(loneBulk("k"))
		time.Sleep(2 * time.Second)
		l.unblock(loneBulk("l"))
		if r := reply(t, batch); spell(r) != `["GET 1" "k" "GET 2" "l" "GET 3"]` {
			t.Errorf("%s, %v", spell(r), r.Err())
		}
		if !l.closedBy() {
			t.Error("the old connection is open")
		}
	})
}

// It is not in the way of anybody: neither of a new one that needs a connection at once, nor of the shared connection.
func TestABlockedCommandHoldsUpNobody(t *testing.T) {
	sub(t, "the next one does not wait for half of the window", func(t *testing.T) {
		s, c, blocked, busy, _ := loneScene(t, Options{})
		s.announce(moves(1, 60, ""))
		began := time.Now()
		one := async(c, "BLPOP", "1", 0)
		two := async(c, "BLPOP", "2", 0)
		time.Sleep(time.Second)
		for said, ch := range map[string]<-chan Reply{"BLPOP 1 0": one, "BLPOP 2 0": two} {
			if l := s.who(said); l == busy {
				t.Error("it is behind what blocks")
			}
			s.who(said).unblock(loneBulk("it"))
			answered(t, ch, "it")
		}
		if d := time.Since(began); d > time.Second+10*time.Millisecond {
			t.Errorf("they took %v", d)
		}
		busy.unblock(loneBulk("it"))
		answered(t, blocked, "it")
	})
	for _, conns := range []int{1, 4} {
		// The longest that an ordinary command takes while a client moves, with what is blocked and without.
		longest := map[bool]time.Duration{}
		for _, pops := range []bool{false, true} {
			sub(t, fmt.Sprintf("ordinary commands under load, conns=%d, pops: %v", conns, pops), func(t *testing.T) {
				s := newStage(t, func(o *Options) { o.Conns = conns })
				s.a.Delay("INCR", 2*time.Millisecond)
				s.b.Delay("INCR", 2*time.Millisecond)
				var mu sync.Mutex
				var over atomic.Bool
				var wg sync.WaitGroup
				for w := range 8 {
					wg.Go(func() {
						for !over.Load() {
							began := time.Now()
							if err := s.c.Do(background, "INCR", w).Err(); err != nil {
								t.Error(err)
							}
							mu.Lock()
							longest[pops] = max(longest[pops], time.Since(began))
							mu.Unlock()
						}
					})
				}
				var short, long <-chan Reply
				if pops {
					short, long = async(s.c, "BLPOP", "short", 3), async(s.c, "BLPOP", "long", 12)
				}
				time.Sleep(100 * time.Millisecond)
				s.move(15)
				if pops {
					if r := reply(t, short); r.Err() != nil || !r.IsNull() {
						t.Errorf("the short one: %s", spell(r))
					}
					time.Sleep(time.Second)
					must(t, s.c, "RPUSH long a")
					if r := reply(t, long); spell(r) != `["long" "a"]` {
						t.Errorf("the long one: %s", spell(r))
					}
				} else {
					time.Sleep(4 * time.Second)
				}
				over.Store(true)
				wg.Wait()
				if s.c.Stats().Handoffs < uint64(conns) || s.c.Stats().Failed != 0 {
					t.Errorf("%+v", s.c.Stats())
				}
			})
		}
		if longest[true] > longest[false]+10*time.Millisecond || longest[false] == 0 {
			t.Errorf("conns=%d: with what blocks an ordinary command took up to %v, and %v without", conns, longest[true], longest[false])
		}
	}
}

// A blocked command that outlasts the window fails with the connection, and is never given to another.
func TestABlockedCommandIsCutAtTheEndOfTheWindow(t *testing.T) {
	sub(t, "written down", func(t *testing.T) {
		s, c, blocked, busy, _ := loneScene(t, Options{})
		s.announce(moves(1, 5, addrB))
		batch := loneBatchIn(background, c, loneBatch("GET 1", "BLPOP batch 0"))
		later := s.who("BLPOP batch 0")
		time.Sleep(5 * time.Second)
		busy.Close()
		err := reply(t, blocked).Err()
		if !MaybeExecuted(err) || !errors.Is(err, ErrMaintenance) || errors.Is(err, ErrTimeout) {
			t.Errorf("%v, want that it was cut in maintenance, and may have been executed", err)
		}
		if n := s.times("BLPOP busy 0"); n != 1 {
			t.Errorf("it was said %d times", n)
		}
		if later.addr == addrB {
			pending(t, "what blocks in the new place", batch)
		}
	})
	sub(t, "by a server", func(t *testing.T) {
		s := newStage(t, nil)
		blocked := async(s.c, "BLPOP", "k", 0)
		began := time.Now()
		s.move(5)
		failedWith(t, "it", blocked, ErrMaintenance, true)
		if d := time.Since(began); d < 5*time.Second || d > 6*time.Second {
			t.Errorf("it failed %v into a window of 5s", d)
		}
		must(t, s.c, "RPUSH k a")
		if r := s.c.Do(background, "BLPOP", "k", 1); spell(r) != `["k" "a"]` {
			t.Errorf("the next one gets %s", spell(r))
		}
		if n := s.a.Executed("BLPOP"); n != 1 {
			t.Errorf("the old server executed %d", n)
		}
	})
}

func TestAToldConnectionServesUntilThereIsABetterOne(t *testing.T) {
	for _, policy := range []BacklogPolicy{Queue, FailFast} {
		sub(t, fmt.Sprintf("an idle one, policy %d", policy), func(t *testing.T) {
			s, c, _, busy, idle := loneScene(t, Options{Backlog: policy})
			s.refuseAll()
			s.announce(moves(1, 30, addrB))
			for i := range 5 {
				time.Sleep(2 * time.Second)
				said := fmt.Sprintf("BLPOP %d 0", i)
				blocked := async(c, words(said)...)
				if l := s.who(said); l != idle {
					t.Fatalf("round %d: it is not on the connection that is told and lives", i)
				}
				idle.unblock(loneBulk("it"))
				answered(t, blocked, "it")
			}
			s.refuseNone()
			time.Sleep(5 * time.Second)
			blocked := async(c, "BLPOP", "new", 0)
			if l := s.who("BLPOP new 0"); l == idle || l == busy {
				t.Error("the place that was announced is there, and is not used")
			}
			s.who("BLPOP new 0").unblock(loneBulk("it"))
			answered(t, blocked, "it")
			if !idle.closedBy() || busy.closedBy() {
				t.Errorf("idle and told: closed %v; busy and told: closed %v", idle.closedBy(), busy.closedBy())
			}
		})
		sub(t, fmt.Sprintf("one that blocks when the better one comes, policy %d", policy), func(t *testing.T) {
			s, c, _, _, idle := loneScene(t, Options{Backlog: policy})
			s.refuseAll()
			s.announce(moves(1, 30, addrB))
			time.Sleep(2 * time.Second)
			blocked := async(c, "BLPOP", "told", 0)
			s.refuseNone()
			time.Sleep(5 * time.Second)
			pending(t, "it", blocked)
			if l := s.who("BLPOP told 0"); l != idle || l.closedBy() {
				t.Fatalf("it is at %s, closed: %v", l.addr, l.closedBy())
			}
			idle.unblock(loneBulk("it"))
			answered(t, blocked, "it")
			if !idle.closedBy() {
				t.Error("the old connection is open")
			}
			next := async(c, "BLPOP", "next", 0)
			if l := s.who("BLPOP next 0"); l.addr != addrB {
				t.Errorf("the next one is at %s", l.addr)
			}
			s.who("BLPOP next 0").unblock(loneBulk("it"))
			answered(t, next, "it")
		})
		// The caller of the one that was used last has left, so that its connection is gone.
		sub(t, fmt.Sprintf("an idle one beside one that was closed, policy %d", policy), func(t *testing.T) {
			s, c, _, busy, idle := loneScene(t, Options{Backlog: policy})
			ctx, cancel := context.WithCancel(background)
			left := async(c, "BLPOP", "1", 0)
			gone := asyncIn(ctx, c, "BLPOP", "2", 0)
			s.who("BLPOP 1 0").unblock("_\r\n")
			reply(t, left)
			cancel()
			reply(t, gone)
			s.refuseAll()
			s.announce(moves(1, 30, addrB))
			blocked := async(c, "BLPOP", "k", 0)
			if l := s.who("BLPOP k 0"); l != idle || l == busy {
				t.Errorf("it is at %s", l.addr)
			}
			idle.unblock(loneBulk("it"))
			answered(t, blocked, "it")
		})
		sub(t, fmt.Sprintf("none is idle, policy %d", policy), func(t *testing.T) {
			s, c, blocked, busy, idle := loneScene(t, Options{Backlog: policy})
			one := async(c, "BLPOP", "1", 0)
			s.refuseAll()
			s.announce(moves(1, 30, addrB))
			time.Sleep(time.Second)
			two := async(c, "BLPOP", "2", 0)
			time.Sleep(5 * time.Second)
			pending(t, "one for which there is no connection", two)
			s.refuseNone()
			time.Sleep(1100 * time.Millisecond)
			if l := s.who("BLPOP 2 0"); l.addr != addrB {
				t.Errorf("it is at %s", l.addr)
			}
			s.who("BLPOP 2 0").unblock(loneBulk("two"))
			answered(t, two, "two")
			idle.unblock(loneBulk("one"))
			answered(t, one, "one")
			busy.unblock(loneBulk("it"))
			answered(t, blocked, "it")
		})
		sub(t, fmt.Sprintf("nobody comes, policy %d", policy), func(t *testing.T) {
			s, c, blocked, busy, idle := loneScene(t, Options{Backlog: policy})
			s.refuseAll()
			s.announce(moves(1, 5, addrB))
			time.Sleep(time.Minute) // given up long ago
			answered(t, async(c, "GET", "1"), "GET 1")
			one := async(c, "BLPOP", "1", 0)
			if l := s.who("BLPOP 1 0"); l != idle {
				t.Error("it is not on the connection that lives")
			}
			idle.unblock(loneBulk("one"))
			answered(t, one, "one")
			busy.unblock(loneBulk("it"))
			answered(t, blocked, "it")
		})
	}
	sub(t, "cut while the successor refuses", func(t *testing.T) {
		s, c, blocked, busy, idle := loneScene(t, Options{})
		s.refuseAll()
		s.announce(moves(1, 30, addrB))
		time.Sleep(2 * time.Second)
		busy.Close()
		idle.Close()
		failedWith(t, "what was blocked", blocked, ErrMaintenance, true)
		one := async(c, "BLPOP", "1", 0)
		time.Sleep(5 * time.Second)
		pending(t, "the next one", one)
		s.refuseNone()
		time.Sleep(1100 * time.Millisecond)
		s.who("BLPOP 1 0").unblock(loneBulk("one"))
		answered(t, one, "one")
	})
}

// What a bridge dials when it first needs a connection is where the pin says, though it was never told itself.
func TestADedicatedConnectionIsDialledWhereThePinSays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		s.announce(moves(1, 10, addrB))
		async(c, "BLPOP", "k", 0)
		if l := s.who("BLPOP k 0"); l.addr != addrB {
			t.Errorf("it was dialled at %s", l.addr)
		}
		if session := loneSession(t, c); session.Do(background, "GET", "mine").Err() != nil || s.who("GET mine").addr != addrB {
			t.Error("the session was dialled elsewhere")
		}
	})
}

func TestADialUnderWayWhenTheOthersAreTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		release := s.stalls()
		blocked := async(c, "BLPOP", "k", 0)
		s.all()[0].says(moves(1, 10, addrB))
		synctest.Wait()
		release()
		time.Sleep(2 * time.Second)
		l := s.who("BLPOP k 0") // in either place: what matters is that it goes on, and what comes next
		next := async(c, "BLPOP", "next", 0)
		if n := s.who("BLPOP next 0"); n.addr != addrB {
			t.Errorf("the next one is at %s", n.addr)
		}
		l.unblock(loneBulk("it"))
		answered(t, blocked, "it")
		s.who("BLPOP next 0").unblock(loneBulk("it"))
		answered(t, next, "it")
		time.Sleep(2 * time.Second)
		if n := len(s.open(addrA)); n != 0 {
			t.Errorf("%d connections are open to the old place", n)
		}
	})
}

// Those whose opt-in was refused are told nothing; they are closed with the others.
func TestDeafDedicatedConnectionsMoveToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		var dials atomic.Int32
		s.optIn = func(addr string) string {
			if addr == addrA && dials.Add(1) > 1 {
				return "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"
			}
			return "+OK\r\n"
		}
		c := s.client(Options{})
		blocked, other := async(c, "BLPOP", "busy", 0), async(c, "BLPOP", "idle", 0)
		session := loneSession(t, c)
		busy, idle := s.who("BLPOP busy 0"), s.who("BLPOP idle 0")
		idle.unblock("_\r\n")
		reply(t, other)
		began := time.Now()
		s.all()[0].says(moves(1, 10, addrB))
		time.Sleep(3 * time.Second)
		next := async(c, "BLPOP", "next", 0)
		if l := s.who("BLPOP next 0"); l.addr != addrB {
			t.Errorf("the next one blocks at %s", l.addr)
		}
		if !idle.closedBy() || busy.closedBy() {
			t.Errorf("idle: closed %v; busy: closed %v", idle.closedBy(), busy.closedBy())
		}
		busy.unblock(loneBulk("it"))
		answered(t, blocked, "it")
		s.who("BLPOP next 0").unblock(loneBulk("it"))
		answered(t, next, "it")
		if at := loneMoments(session); len(at) != 1 || at[0].Sub(began) != 10*time.Second {
			t.Errorf("a session that is deaf learns %v, want that it is cut after 10s", at)
		}
	})
}

// Numbered elements through many handoffs: all arrive, once, in order.
func TestPopsThroughManyHandoffs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := newStage(t, nil)
		var wg sync.WaitGroup
		var over atomic.Bool
		got := make([]int, 4)
		for w := range got {
			key := fmt.Sprint("list:", w)
			wg.Go(func() { // pushes
				for i := 0; !over.Load(); i++ {
					if err := s.c.Do(background, "RPUSH", key, i).Err(); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(3+w*40) * time.Millisecond)
				}
			})
			wg.Go(func() { // pops, and waits for at most half a window
				for last := false; ; {
					r := s.c.Do(background, "BLPOP", key, 0.5)
					switch {
					case r.Err() != nil:
						t.Errorf("%s: %v", key, r.Err())
						return
					case r.IsNull():
						if last {
							return
						}
					case spell(r) != fmt.Sprintf("[%q %q]", key, fmt.Sprint(got[w])):
						t.Errorf("%s: got %s, want %d", key, spell(r), got[w])
						return
					default:
						got[w]++
					}
					last = over.Load()
				}
			})
		}
		from, to := s.a, s.b
		for range 20 {
			from.Move(to.Addr(), time.Second)
			time.Sleep(1100 * time.Millisecond)
			from, to = to, from
		}
		over.Store(true)
		wg.Wait()
		for w, n := range got {
			if pushed := s.c.Do(background, "LLEN", fmt.Sprint("list:", w)); n < 100 || spell(pushed) != "0" {
				t.Errorf("list %d: %d popped, %s are left", w, n, spell(pushed))
			}
		}
		if st := s.c.Stats(); st.Handoffs < 20 || st.Failed != 0 || st.InFlight != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// --- renewals ---

func TestRenewReplacesDedicatedConnections(t *testing.T) {
	sub(t, "idle and busy", func(t *testing.T) {
		s, c, blocked, busy, idle := loneScene(t, Options{})
		began := time.Now()
		if err := c.Renew(background); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
		time.Sleep(time.Second)
		if !idle.closedBy() || busy.closedBy() {
			t.Errorf("idle: closed %v; busy: closed %v", idle.closedBy(), busy.closedBy())
		}
		next := async(c, "BLPOP", "next", 0)
		if l := s.who("BLPOP next 0"); l == busy || l == idle {
			t.Error("the next one is on an old connection")
		}
		busy.unblock(loneBulk("it"))
		answered(t, blocked, "it")
		if !busy.closedBy() {
			t.Error("the old connection is open")
		}
		s.who("BLPOP next 0").unblock(loneBulk("it"))
		answered(t, next, "it")
		if n := len(s.dialled()); n != 6 || c.Stats().Failed != 0 {
			t.Errorf("%d dials, want three and three", n)
		}
	})
	sub(t, "one that is lost has nothing to renew", func(t *testing.T) {
		s, c, blocked, busy, idle := loneScene(t, Options{})
		idle.Close()
		busy.Close()
		failedWith(t, "what was blocked", blocked, nil, true)
		time.Sleep(time.Minute)
		dials := len(s.dialled())
		done := loneAsync(func() Reply { return failure(c.Renew(background)) })
		time.Sleep(time.Second)
		if len(done) == 0 {
			t.Fatal("Renew waits")
		}
		if err := (<-done).Err(); err != nil {
			t.Errorf("Renew: %v", err)
		}
		if n := len(s.dialled()) - dials; n < 1 || n > 3 {
			t.Errorf("%d dials", n)
		}
	})
	sub(t, "while one is dialled", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		release := s.stalls()
		blocked := async(c, "BLPOP", "k", 0)
		done := loneAsync(func() Reply { return failure(c.Renew(background)) })
		release()
		if err := reply(t, done).Err(); err != nil {
			t.Errorf("Renew: %v", err)
		}
		time.Sleep(time.Second)
		s.who("BLPOP k 0").unblock(loneBulk("it"))
		answered(t, blocked, "it")
		if n := len(s.open(addrA)); n != 2 {
			t.Errorf("%d connections, want one and one", n)
		}
	})
	sub(t, "while one is dialled, which then makes room for a session", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1})
		blocked := async(c, "BLPOP", "k", 0)
		s.who("BLPOP k 0").unblock("_\r\n")
		reply(t, blocked)
		release := s.stalls()
		done := loneAsync(func() Reply { return failure(c.Renew(background)) })
		opening := later(func() *Session { return loneSession(t, c) })
		synctest.Wait()
		release()
		if err := reply(t, done).Err(); err != nil {
			t.Errorf("Renew: %v", err)
		}
		answered(t, loneAsync(func() Reply { return opening().Do(background, "GET", "1") }), "GET 1")
		if n := len(s.open(addrA)); n != 2 {
			t.Errorf("%d connections, want one and one", n)
		}
	})
	sub(t, "while nobody is there, and the caller leaves", func(t *testing.T) {
		s, c, blocked, busy, idle := loneScene(t, Options{DialTimeout: 5 * time.Second})
		s.refuseAll()
		ctx, cancel := context.WithCancel(background)
		other := asyncIn(ctx, c, "BLPOP", "other", 0)
		done := loneAsync(func() Reply { return failure(c.Renew(background)) })
		time.Sleep(time.Second)
		cancel()
		failedWith(t, "the one that is left", other, context.Canceled, true)
		began := time.Now()
		if err := reply(t, done).Err(); err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("Renew: %v after %v", err, time.Since(began))
		}
		pending(t, "what blocks", blocked)
		if busy.closedBy() || !idle.closedBy() {
			t.Errorf("busy: closed %v; that of who left: closed %v", busy.closedBy(), idle.closedBy())
		}
		busy.unblock(loneBulk("it"))
		answered(t, blocked, "it")
	})
	sub(t, "READONLY in a failover", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		s.announce(opens("FAILING_OVER", 1, 10))
		blocked := async(c, "BLMOVE", "a", "b", "LEFT", "LEFT", 0)
		l := s.who("BLMOVE a b LEFT LEFT 0")
		l.unblock(readOnlyReply)
		var refusal *ServerError
		if err := reply(t, blocked).Err(); !errors.As(err, &refusal) || refusal.Code != "READONLY" {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Second)
		next := async(c, "BLPOP", "next", 0)
		if s.who("BLPOP next 0") == l || !l.closedBy() || s.all()[0].closedBy() {
			t.Errorf("the connection to a replica is used on, or open, or the shared one was closed")
		}
		s.who("BLPOP next 0").unblock(loneBulk("it"))
		answered(t, next, "it")
	})
	sub(t, "MaxAge", func(t *testing.T) {
		s, c, blocked, busy, idle := loneScene(t, Options{MaxAge: time.Minute, KeepAlive: -1})
		time.Sleep(62 * time.Second)
		if !idle.closedBy() {
			t.Error("an idle one is older than MaxAge, and open")
		}
		if busy.closedBy() {
			t.Error("a busy one was closed")
		}
		busy.unblock(loneBulk("it"))
		answered(t, blocked, "it")
		if !busy.closedBy() {
			t.Error("it was answered, it is too old, and it is open")
		}
		next := async(c, "BLPOP", "next", 0)
		s.who("BLPOP next 0").unblock(loneBulk("it"))
		answered(t, next, "it")
	})
}

// --- watching ---

func TestKeepAliveOfDedicatedConnections(t *testing.T) {
	sub(t, "idle", func(t *testing.T) {
		s, _, _, busy, idle := loneScene(t, Options{KeepAlive: 10 * time.Second, Timeout: 2 * time.Second, Maintenance: Maintenance{RelaxedTimeout: -1}})
		time.Sleep(time.Minute)
		if said := idle.heard(); len(said) < 5 || said[1] != "PING" {
			t.Errorf("on an idle one was said %q", said)
		}
		if said := busy.heard(); len(said) != 1 || busy.closedBy() {
			t.Errorf("on a busy one was said %q", said)
		}
		s.set(func() { idle.mute = true })
		time.Sleep(16 * time.Second)
		if !idle.closedBy() || busy.closedBy() {
			t.Errorf("an idle one that is silent: closed %v; a busy one: closed %v", idle.closedBy(), busy.closedBy())
		}
	})
	sub(t, "idle again", func(t *testing.T) {
		_, _, blocked, busy, _ := loneScene(t, Options{KeepAlive: 10 * time.Second})
		time.Sleep(time.Minute)
		busy.unblock(loneBulk("it"))
		answered(t, blocked, "it")
		time.Sleep(15 * time.Second)
		if said := busy.heard(); len(said) < 2 || said[1] != "PING" {
			t.Errorf("was said: %q", said)
		}
	})
	sub(t, "idle while the one before still blocks", func(t *testing.T) {
		s, c, _, _, _ := loneScene(t, Options{KeepAlive: 10 * time.Second})
		before := len(s.all())
		if err := c.Renew(background); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for i, l := range s.all()[before:] {
			if said := l.heard(); len(said) < 4 || said[0] != "PING" {
				t.Errorf("on replacement %d was said %q", i, said)
			}
		}
	})
	sub(t, "one that was dead is not used", func(t *testing.T) {
		s, c, _, _, idle := loneScene(t, Options{KeepAlive: 10 * time.Second, Timeout: 2 * time.Second})
		s.set(func() { idle.mute = true })
		time.Sleep(time.Minute)
		next := async(c, "BLPOP", "next", 0)
		s.who("BLPOP next 0").unblock(loneBulk("it"))
		answered(t, next, "it")
	})
}

// A blocked connection is not dead for being silent, and a server that has gone silent is noticed nevertheless: by the command's time.
func TestSilenceBehindABlockingCommand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Timeout: time.Second, KeepAlive: 2 * time.Second})
		forever, minute := async(c, "BLPOP", "forever", 0), async(c, "BLPOP", "minute", 60)
		time.Sleep(59 * time.Second)
		pending(t, "that waits for ever", forever)
		pending(t, "that waits for a minute", minute)
		time.Sleep(2200 * time.Millisecond)
		failedWith(t, "the one that is not answered in its time", minute, ErrTimeout, true)
		if l := s.who("BLPOP minute 60"); !l.closedBy() {
			t.Error("its connection is open")
		}
		time.Sleep(time.Hour)
		s.who("BLPOP forever 0").unblock(loneBulk("it"))
		answered(t, forever, "it")
		if n := c.Stats().TimedOut; n != 1 {
			t.Errorf("%d timed out", n)
		}
	})
}

// --- losses ---

func TestDedicatedConnectionLost(t *testing.T) {
	for _, policy := range []BacklogPolicy{Queue, FailFast} {
		sub(t, fmt.Sprintf("policy %d", policy), func(t *testing.T) {
			j := &journal{}
			s, c, blocked, busy, idle := loneScene(t, Options{Backlog: policy, OnEvent: j.add})
			busy.reset()
			began := time.Now()
			err := reply(t, blocked).Err()
			if !MaybeExecuted(err) || errors.Is(err, ErrMaintenance) || !errors.Is(err, syscall.ECONNRESET) || time.Since(began) > 0 {
				t.Errorf("what was blocked: %v", err)
			}
			idle.Close()
			synctest.Wait()
			next := async(c, "BLPOP", "next", 0)
			if l := s.who("BLPOP next 0"); l == busy || l == idle {
				t.Error("the next one is on a connection that was lost")
			}
			s.who("BLPOP next 0").unblock(loneBulk("it"))
			answered(t, next, "it")
			if n := s.times("BLPOP busy 0"); n != 1 {
				t.Errorf("what was blocked was said %d times", n)
			}
			answered(t, async(c, "GET", "1"), "GET 1")
		})
	}
	sub(t, "a batch of which a part was answered", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		result := batchLater(c, loneBatch("GET 1", "BLPOP k 0", "GET 2"))
		synctest.Wait()
		s.who("BLPOP k 0").Close()
		r := result()
		if !MaybeExecuted(r.err) || len(r.replies) != 3 || textOf(r.replies[0]) != "GET 1" || !MaybeExecuted(r.replies[1].Err()) || !MaybeExecuted(r.replies[2].Err()) {
			t.Errorf("%v, %v", r.replies, r.err)
		}
	})
	sub(t, "of the shared connection what blocks knows nothing", func(t *testing.T) {
		s, c, blocked, busy, _ := loneScene(t, Options{})
		s.all()[0].reset()
		time.Sleep(time.Second)
		answered(t, async(c, "GET", "1"), "GET 1")
		busy.unblock(loneBulk("it"))
		answered(t, blocked, "it")
	})
	sub(t, "many are lost at once", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 10})
		var blocked []<-chan Reply
		for i := range 10 {
			blocked = append(blocked, async(c, "BLPOP", i, 0))
		}
		for _, l := range s.all() {
			l.reset()
		}
		for i, ch := range blocked {
			failedWith(t, fmt.Sprint("number ", i), ch, syscall.ECONNRESET, true)
		}
		for i := range 10 {
			next := async(c, "BLPOP", "next", i+1)
			s.who(fmt.Sprint("BLPOP next ", i+1)).unblock(loneBulk("it"))
			answered(t, next, "it")
		}
	})
}

func TestPoliciesWhileThereIsNoDedicatedConnection(t *testing.T) {
	sub(t, "Queue", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		s.refuseAll()
		blocked := async(c, "BLPOP", "k", 0)
		batch := loneBatchIn(background, c, loneBatch("GET 1", "BLPOP batch 0"))
		time.Sleep(time.Minute)
		pending(t, "it", blocked)
		pending(t, "the batch", batch)
		answered(t, async(c, "GET", "2"), "GET 2")
		s.refuseNone()
		time.Sleep(1100 * time.Millisecond)
		s.who("BLPOP k 0").unblock(loneBulk("it"))
		answered(t, blocked, "it")
		s.who("BLPOP batch 0").unblock(loneBulk("it"))
		if r := reply(t, batch); r.Err() != nil {
			t.Error(r.Err())
		}
	})
	for name, idle := range map[string]bool{"FailFast, the first dial": false, "FailFast, after one was lost": true} {
		sub(t, name, func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{Backlog: FailFast, MaxDedicated: 1})
			if idle {
				blocked := async(c, "BLPOP", "idle", 0)
				s.who("BLPOP idle 0").unblock("_\r\n")
				reply(t, blocked)
				s.who("BLPOP idle 0").Close()
				synctest.Wait()
			}
			s.refuseAll()
			began := time.Now()
			failedWith(t, "Do", async(c, "BLPOP", "k", 0), ErrNoConnection, false)
			failedWith(t, "DoBatch", loneBatchIn(background, c, loneBatch("BLPOP k 0")), ErrNoConnection, false)
			if _, err := c.Session(background); !errors.Is(err, ErrNoConnection) || MaybeExecuted(err) {
				t.Errorf("a session: %v", err)
			}
			if d := time.Since(began); d > time.Second {
				t.Errorf("they took %v", d)
			}
			s.refuseNone()
			blocked := async(c, "BLPOP", "after", 0)
			time.Sleep(1100 * time.Millisecond)
			s.who("BLPOP after 0").unblock(loneBulk("it"))
			answered(t, blocked, "it")
			if n := s.times("BLPOP k 0"); n > 0 {
				t.Error("what failed was sent")
			}
		})
	}
	// It has no connection because of the handoff, so it does not time out in it.
	sub(t, "Timeout in a handoff", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Timeout: time.Second})
		s.refuseAll()
		s.announce(moves(1, 30, addrB))
		blocked := async(c, "BLPOP", "k", 1)
		opening := later(func() *Session { return loneSession(t, c) })
		time.Sleep(20 * time.Second) // the relaxed timeout is 10
		pending(t, "it", blocked)
		s.refuseNone()
		time.Sleep(1100 * time.Millisecond)
		s.who("BLPOP k 1").unblock(loneBulk("it"))
		answered(t, blocked, "it")
		answered(t, loneAsync(func() Reply { return opening().Do(background, "GET", "1") }), "GET 1")
	})
	sub(t, "FailFast when a handoff has brought nothing", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Backlog: FailFast})
		s.refuseAll()
		s.announce(moves(1, 5, addrB))
		began := time.Now()
		blocked := async(c, "BLPOP", "k", 0)
		failedWith(t, "it", blocked, ErrNoConnection, false)
		if d := time.Since(began); d < 5*time.Second || d > 17*time.Second { // the window, a relaxed dial, and the next attempt
			t.Errorf("it failed after %v", d)
		}
		s.refuseNone()
		time.Sleep(time.Second)
		after := async(c, "BLPOP", "after", 0)
		time.Sleep(1100 * time.Millisecond)
		s.who("BLPOP after 0").unblock(loneBulk("it"))
		answered(t, after, "it")
	})
	sub(t, "FailFast in a handoff", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Backlog: FailFast})
		s.refuseAll()
		s.announce(moves(1, 10, addrB))
		blocked := async(c, "BLPOP", "k", 0)
		time.Sleep(3 * time.Second)
		pending(t, "it", blocked)
		s.refuseNone()
		time.Sleep(1100 * time.Millisecond)
		s.who("BLPOP k 0").unblock(loneBulk("it"))
		answered(t, blocked, "it")
	})
}

// loneRefusing is a connection that, when it is armed, accepts so many bytes of what blocks, and then nothing any more.
type loneRefusing struct {
	net.Conn
	armed *atomic.Bool
	bytes int
}

func (r *loneRefusing) Write(b []byte) (int, error) {
	if !strings.Contains(string(b), "BLPOP") || !r.armed.CompareAndSwap(true, false) {
		return r.Conn.Write(b)
	}
	n, _ := r.Conn.Write(b[:r.bytes])
	return n, syscall.EPIPE
}

func TestABlockingCommandOfWhichNothingWasWrittenIsWrittenElsewhere(t *testing.T) {
	for _, bytes := range []int{0, 1, 10} {
		for _, policy := range []BacklogPolicy{Queue, FailFast} {
			sub(t, fmt.Sprintf("%d bytes were, policy %d", bytes, policy), func(t *testing.T) {
				s := newLone(t)
				var armed atomic.Bool
				armed.Store(true)
				c := s.client(Options{Backlog: policy, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &loneRefusing{nc, &armed, bytes} })})
				blocked := async(c, "BLPOP", "k", 0)
				time.Sleep(1100 * time.Millisecond) // an answer might still come that long
				switch {
				case bytes == 0 && policy == Queue:
					s.who("BLPOP k 0").unblock(loneBulk("it"))
					answered(t, blocked, "it")
				case bytes == 0: // FailFast: the loss is a moment at which it is judged
					failedWith(t, "it", blocked, ErrNoConnection, false)
				default:
					failedWith(t, "it", blocked, syscall.EPIPE, true)
					if n := s.times("BLPOP k 0"); n > 0 {
						t.Error("it was written again")
					}
				}
				after := async(c, "BLPOP", "after", 0)
				s.who("BLPOP after 0").unblock(loneBulk("it"))
				answered(t, after, "it")
			})
		}
	}
}

// --- what is counted, and what is left ---

func TestStatsOfDedicatedConnections(t *testing.T) {
	sub(t, "blocking commands", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Timeout: time.Second, KeepAlive: -1})
		answered(t, async(c, "GET", "1"), "GET 1")
		blocked := async(c, "BLPOP", "1", 0)
		batch := loneBatchIn(background, c, loneBatch("GET 2", "BLPOP 2 0", "GET 3"))
		if st := c.Stats(); st.Sent != 5 || st.Answered != 2 || st.InFlight != 3 || st.Conns != 3 || st.Backlog != 0 {
			t.Errorf("while they block: %+v", st)
		}
		s.who("BLPOP 1 0").unblock("_\r\n")
		reply(t, blocked)
		s.who("BLPOP 2 0").unblock("_\r\n")
		reply(t, batch)
		if st := c.Stats(); st.Sent != 5 || st.Answered != 5 || st.InFlight != 0 || st.Conns != 3 || st.Failed != 0 {
			t.Errorf("when they are answered: %+v", st)
		}
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		failedWith(t, "one that is left", asyncIn(ctx, c, "BLPOP", "3", 0), context.DeadlineExceeded, true)
		failedWith(t, "one that is late", async(c, "BLPOP", "4", 1), ErrTimeout, true)
		lost := async(c, "BLPOP", "5", 0)
		s.who("BLPOP 5 0").Close()
		failedWith(t, "one that is lost", lost, nil, true)
		if st := c.Stats(); st.Sent != 8 || st.Answered != 5 || st.Failed != 3 || st.TimedOut != 1 || st.InFlight != 0 || st.Conns != 1 {
			t.Errorf("with their connections gone: %+v", st)
		}
		s.refuseAll()
		waiting := async(c, "BLPOP", "6", 0)
		if st := c.Stats(); st.Backlog != 1 || st.InFlight != 0 || st.Sent != 8 {
			t.Errorf("while there is no connection: %+v", st)
		}
		s.refuseNone()
		time.Sleep(1100 * time.Millisecond)
		s.who("BLPOP 6 0").unblock("_\r\n")
		reply(t, waiting)
		if st := c.Stats(); st.Sent != 9 || st.Answered != 6 || st.Failed != 3 || st.Backlog != 0 {
			t.Errorf("at the end: %+v", st)
		}
	})
	sub(t, "sessions", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{KeepAlive: -1})
		before := c.Stats()
		for range 10 {
			session := loneSession(t, c)
			session.Do(background, "GET", "1")
			lost := loneAsync(func() Reply { return session.Do(background, "BLPOP", "k", 0) })
			if st := c.Stats(); st.InFlight != 1 || st.Conns != 2 {
				t.Errorf("while one blocks: %+v", st)
			}
			session.Close()
			failedWith(t, "what was in flight", lost, ErrClosed, true)
		}
		synctest.Wait()
		st := c.Stats()
		if st.Sent != st.Answered+st.Failed || st.Answered < before.Answered+10 || st.Failed != 10 || st.InFlight != 0 || st.Conns != 1 {
			t.Errorf("with their connections gone: %+v", st)
		}
	})
	sub(t, "handoffs", func(t *testing.T) {
		s, c, blocked, busy, _ := loneScene(t, Options{KeepAlive: -1})
		s.announce(moves(1, 10, addrB))
		time.Sleep(3 * time.Second)
		if st := c.Stats(); st.Handoffs == 0 || st.Conns < 2 || st.InFlight != 1 {
			t.Errorf("afterwards: %+v", st)
		}
		busy.unblock("_\r\n")
		reply(t, blocked)
		handoffs := c.Stats().Handoffs
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		failedWith(t, "one that is left", asyncIn(ctx, c, "BLPOP", "k", 0), context.DeadlineExceeded, true)
		if st := c.Stats(); st.Handoffs != handoffs || st.Sent != st.Answered+st.Failed {
			t.Errorf("with connections gone: %+v", st)
		}
	})
}

// What is closed because nobody wants it any more was not lost, and its successor is not a reconnect. What is lost is told.
func TestEventsOfDedicatedConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, j := newLone(t), &journal{}
		c := s.client(Options{OnEvent: j.add})
		for i := range 3 {
			ctx, cancel := context.WithCancel(background)
			left := asyncIn(ctx, c, "BLPOP", i, 0)
			cancel()
			failedWith(t, "one that is left", left, context.Canceled, true)
			session := loneSession(t, c)
			ctx, cancel = context.WithCancel(background)
			left = loneAsync(func() Reply { return session.Do(ctx, "BLPOP", i, 0) })
			cancel()
			failedWith(t, "one that is left in a session", left, context.Canceled, true)
			session.Close()
			loneSession(t, c).Close()
		}
		if events := j.all(); len(events) != 0 {
			t.Errorf("%+v", events)
		}
		lost := async(c, "BLPOP", "k", 0)
		s.who("BLPOP k 0").Close()
		reply(t, lost)
		loneSession(t, c)
		s.all()[len(s.all())-1].Close()
		if n := len(j.all()); n != 2 || j.count(EventLost) != 2 {
			t.Errorf("%+v", j.all())
		}
		if st := c.Stats(); st.Reconnects != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestDedicatedConnectionsLeaveNothing(t *testing.T) {
	sub(t, "goroutines", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 8})
		time.Sleep(time.Second)
		before := goroutines()
		for range 50 {
			ctx, cancel := contextFor(time.Second)
			failedWith(t, "one that is left", asyncIn(ctx, c, "BLPOP", "k", 0), context.DeadlineExceeded, true)
			cancel()
			session := loneSession(t, c)
			session.Do(background, "GET", "1")
			session.Close()
			lost := loneSession(t, c)
			s.all()[len(s.all())-1].Close()
			synctest.Wait()
			lost.Close()
		}
		time.Sleep(time.Second)
		if n := goroutines(); n > before {
			t.Errorf("%d goroutines, there were %d", n, before)
		}
		if n := len(s.open(addrA)); n != 1 {
			t.Errorf("%d connections are open", n)
		}
	})
	t.Run("memory", func(t *testing.T) { // a timer that is armed for ever would keep it
		s := memoryServer(t)
		var mu sync.Mutex
		var kept []weak.Pointer[addressed]
		c := dialOptions(t, Options{Addr: s.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := s.Dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			a := &addressed{nc, addr}
			mu.Lock()
			kept = append(kept, weak.Make(a))
			mu.Unlock()
			return a, nil
		}})
		for range 20 {
			session, err := c.Session(background)
			if err != nil {
				t.Fatal(err)
			}
			session.Close()
			ctx, cancel := context.WithCancel(background)
			go c.Do(ctx, "BLPOP", "k", 0)
			eventually(t, "it blocks", func() bool { return c.Stats().InFlight == 1 })
			cancel()
			eventually(t, "it has left", func() bool { return c.Stats().InFlight == 0 })
		}
		eventually(t, "of connections that are gone nothing is kept, but for the last", func() bool {
			runtime.GC()
			mu.Lock()
			defer mu.Unlock()
			left := 0
			for _, w := range kept {
				if w.Value() != nil {
					left++
				}
			}
			return left <= 3 && len(kept) >= 41
		})
	})
}

// --- what may be sent where ---

// loneRefused are the commands that must not be sent where they would disturb others, and of each what its error must name: one of
// the calls to use in its place, if there is any. Those that a session takes are marked.
var loneRefused = []struct {
	command string
	session bool
	instead []string
}{
	{"SUBSCRIBE a", false, []string{"Subscribe"}}, {"PSUBSCRIBE a*", false, []string{"PSubscribe", "Subscribe"}}, {"SSUBSCRIBE a", false, []string{"SSubscribe", "Subscribe"}},
	{"UNSUBSCRIBE", false, []string{"Subscription", "Subscribe", "Remove"}}, {"UNSUBSCRIBE a", false, []string{"Subscription", "Subscribe", "Remove"}},
	{"PUNSUBSCRIBE a*", false, []string{"Subscription", "Subscribe", "Remove"}}, {"SUNSUBSCRIBE a", false, []string{"Subscription", "Subscribe", "Remove"}},
	{"MONITOR", false, nil}, {"SYNC", false, nil}, {"PSYNC ? -1", false, nil}, {"REPLCONF ACK 1", false, nil}, {"SCRIPT DEBUG SYNC", false, nil},
	{"HELLO", false, []string{"Options"}}, {"HELLO 3", false, []string{"Options"}}, {"RESET", false, nil},
	{"CLIENT REPLY OFF", false, nil}, {"CLIENT REPLY SKIP", false, nil}, {"CLIENT MAINT_NOTIFICATIONS OFF", false, []string{"Options"}},
	{"SELECT 1", true, []string{"Options.DB", "Session"}}, {"AUTH p", true, []string{"Options", "Session"}}, {"AUTH u p", true, []string{"Options", "Session"}},
	{"QUIT", true, []string{"Close"}}, {"MULTI", true, []string{"DoTx", "Session"}}, {"EXEC", true, []string{"DoTx", "Session"}}, {"DISCARD", true, []string{"DoTx", "Session"}},
	{"WATCH k", true, []string{"Watch", "Session"}}, {"UNWATCH", true, []string{"Watch", "Session"}}, {"READONLY", true, []string{"Session"}}, {"READWRITE", true, []string{"Session"}},
	{"ASKING", true, []string{"Session"}}, {"CLIENT TRACKING ON", true, []string{"Session"}}, {"CLIENT CACHING YES", true, []string{"Session"}},
	{"CLIENT SETNAME me", true, []string{"Options.ClientName", "Session"}}, {"CLIENT NO-EVICT ON", true, []string{"Session"}}, {"CLIENT NO-TOUCH ON", true, []string{"Session"}},
	{"CLIENT CAPA redirect", true, []string{"Session"}}, {"CLIENT IMPORT-SOURCE ON", true, []string{"Session"}},
}

// loneSpellings are a command as strings and as bytes, in capitals, in small letters and mixed.
func loneSpellings(text string) (spellings [][]any) {
	for _, spelled := range []string{text, strings.ToLower(text), text[:1] + strings.ToLower(text[1:])} {
		asBytes := words(spelled)
		for i := range asBytes {
			asBytes[i] = []byte(asBytes[i].(string))
		}
		spellings = append(spellings, words(spelled), asBytes)
	}
	return spellings
}

// loneRefusal says what is wrong with err as the refusal of a command.
func loneRefusal(err error, text string, instead []string) string {
	name := strings.Fields(text)[0]
	names := func(what string) bool { return strings.Contains(err.Error(), what) }
	switch {
	case !errors.Is(err, ErrNotHere) || MaybeExecuted(err):
		return fmt.Sprintf("%v, want ErrNotHere", err)
	case !names(name):
		return fmt.Sprintf("%v does not name %s", err, name)
	case len(instead) > 0 && !slices.ContainsFunc(instead, names):
		return fmt.Sprintf("%v names none of %q", err, instead)
	}
	return ""
}

func TestWhatMayBeSentWhere(t *testing.T) {
	for _, r := range loneRefused {
		sub(t, r.command, func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{})
			session := loneSession(t, c)
			wrong := func(call string, err error, instead []string) {
				t.Helper()
				if problem := loneRefusal(err, r.command, instead); problem != "" {
					t.Errorf("%s: %s", call, problem)
				}
			}
			for i, args := range loneSpellings(r.command) {
				before := len(s.all()[1].heard())
				wrong("Do", c.Do(background, args...).Err(), r.instead)
				dst, err := c.DoAppend(background, []byte("as it was"), args...)
				if wrong("DoAppend", err, r.instead); string(dst) != "as it was" {
					t.Errorf("DoAppend returned %q", dst)
				}
				b := loneBatch("SET a 1")
				b.Add(args...)
				b.Add("BLPOP", "k", 0)
				replies, err := c.DoBatch(background, b)
				if wrong("DoBatch", err, r.instead); replies != nil {
					t.Errorf("DoBatch returned %v", replies)
				}
				replies, err = c.DoTx(background, b)
				if wrong("DoTx", err, r.instead); replies != nil {
					t.Errorf("DoTx returned %v", replies)
				}
				b.Reset()
				b.Add("SET", "a", 1)
				b.Add(args...)
				if r.session {
					said := commandsIn(command(args...))
					answered(t, loneAsync(func() Reply { return session.Do(background, args...) }), said)
					replies, err := session.DoBatch(background, b) // it was refused by the client, and is as good as before
					if err != nil || len(replies) != 2 || textOf(replies[1]) != said {
						t.Errorf("a batch in a session: %v, %v", replies, err)
					}
					if n := len(s.all()[1].heard()) - before; n != 3 {
						t.Errorf("spelling %d: the session said %d commands, want three", i, n)
					}
					continue
				}
				wrong("a session", session.Do(background, args...).Err(), r.instead)
				replies, err = session.DoBatch(background, b)
				if wrong("a session's batch", err, r.instead); replies != nil {
					t.Errorf("a session's batch returned %v", replies)
				}
				replies, err = session.DoTx(background, b)
				if wrong("a session's DoTx", err, r.instead); replies != nil {
					t.Errorf("a session's DoTx returned %v", replies)
				}
				b.Reset()
				b.Add("SET", "a", 1)
				if _, err := c.DoBatch(background, b); err != nil {
					t.Errorf("after Reset: %v", err)
				}
			}
			for _, l := range s.all() {
				for _, said := range l.heard() {
					if said != "SET a 1" && said != "PING" && !r.session || l == s.all()[0] && said != "SET a 1" {
						t.Errorf("%q was sent", said)
					}
				}
			}
			if st := c.Stats(); st.InFlight != 0 || st.Backlog != 0 || len(s.dialled()) != 2 {
				t.Errorf("%d dials, %+v", len(s.dialled()), st)
			}
		})
	}
	for _, text := range []string{"WAIT 1 0", "WAITAOF 1 0 0"} {
		sub(t, text, func(t *testing.T) {
			s := newLone(t)
			s.say = answers{"WAIT": ":1\r\n", "wait": ":1\r\n", "Wait": ":1\r\n"}
			c := s.client(Options{})
			session := loneSession(t, c)
			for _, args := range loneSpellings(text) {
				for _, err := range []error{c.Do(background, args...).Err(), func() error { _, err := c.DoAppend(background, nil, args...); return err }()} {
					if problem := loneRefusal(err, text, []string{"DoBatch", "atch", "Session"}); problem != "" {
						t.Error(problem)
					}
				}
				if n, err := session.Do(background, args...).Int64(); n != 1 || err != nil {
					t.Errorf("in a session: %d, %v", n, err)
				}
				b := loneBatch("SET a 1")
				b.Add(args...)
				if replies, err := c.DoBatch(background, b); err != nil || len(replies) != 2 {
					t.Errorf("in a batch: %v, %v", replies, err)
				}
				if replies, err := session.DoBatch(background, b); err != nil || len(replies) != 2 {
					t.Errorf("in a session's batch: %v, %v", replies, err)
				}
			}
			if n := len(s.all()[0].heard()); n != 0 {
				t.Errorf("%d commands are on the shared connection", n)
			}
		})
	}
	sub(t, "what may be sent by all", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		session := loneSession(t, c)
		for _, text := range []string{"CLIENT GETNAME", "CLIENT ID", "CLIENT", "CLIENT UNBLOCK 7", "PUBLISH a b", "GET MULTI", "SET SELECT 1", "CLIENT SETINFO lib-name x", "EXECUTE", "XREAD STREAMS MULTI 0"} {
			for _, args := range loneSpellings(text) {
				said := commandsIn(command(args...))
				answered(t, async(c, args...), said)
				answered(t, loneAsync(func() Reply { return session.Do(background, args...) }), said)
			}
		}
	})
	sub(t, "the first of several is what counts", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		b := loneBatch("GET 1", "MULTI", "GET 2", "SUBSCRIBE a", "SELECT 1")
		session := loneSession(t, c)
		for name, call := range map[string]func() ([]Reply, error){
			"DoBatch": func() ([]Reply, error) { return c.DoBatch(background, b) }, "DoTx": func() ([]Reply, error) { return c.DoTx(background, b) },
			"a session's DoBatch": func() ([]Reply, error) { return session.DoBatch(background, b) }, "a session's DoTx": func() ([]Reply, error) { return session.DoTx(background, b) },
		} {
			if replies, err := call(); !errors.Is(err, ErrNotHere) || replies != nil {
				t.Errorf("%s: %v, %v", name, replies, err)
			}
		}
		if n := len(s.all()[0].heard()); n != 0 {
			t.Errorf("%d commands were sent", n)
		}
	})
	sub(t, "what cannot be encoded", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		session := loneSession(t, c)
		b := loneBatch("GET 1")
		b.Add("GET", struct{}{})
		for name, call := range map[string]func() error{
			"a blocking command": func() error { return c.Do(background, "BLPOP", "k", struct{}{}).Err() },
			"a session":          func() error { return session.Do(background, "GET", nil).Err() },
			"nothing":            func() error { return session.Do(background).Err() },
			"a session's batch":  func() error { _, err := session.DoBatch(background, b); return err },
			"a transaction":      func() error { _, err := c.DoTx(background, b); return err },
			"a session's DoTx":   func() error { _, err := session.DoTx(background, b); return err },
		} {
			if err := call(); err == nil || MaybeExecuted(err) || errors.Is(err, ErrNotHere) {
				t.Errorf("%s: %v", name, err)
			}
		}
		answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "2") }), "GET 2")
	})
}

// --- sessions ---

func TestSession(t *testing.T) {
	sub(t, "a transaction by hand", func(t *testing.T) {
		s := newStage(t, nil)
		session := loneSession(t, s.c)
		conversation := func(lines ...string) {
			t.Helper()
			for i := 0; i < len(lines); i += 2 {
				if got := spell(session.Do(background, words(lines[i])...)); got != lines[i+1] {
					t.Errorf("%s is answered %s, want %s", lines[i], got, lines[i+1])
				}
			}
		}
		conversation("SET k 1", "+OK", "WATCH k", "+OK", "GET k", `"1"`, "MULTI", "+OK", "INCR k", "+QUEUED", "GET k", "+QUEUED", "EXEC", `[2 "2"]`)
		conversation("WATCH k", "+OK")
		must(t, s.c, "SET k 7")
		conversation("MULTI", "+OK", "INCR k", "+QUEUED", "EXEC", "null", "GET k", `"7"`)
		conversation("WATCH k", "+OK")
		must(t, s.c, "SET k 8")
		conversation("UNWATCH", "+OK", "MULTI", "+OK", "INCR k", "+QUEUED", "EXEC", "[9]")
		conversation("MULTI", "+OK", "INCR k", "+QUEUED", "DISCARD", "+OK", "GET k", `"9"`)
		if r := session.Do(background, "EXEC"); r.Kind() != KindError || errors.Is(r.Err(), ErrTxAborted) || MaybeExecuted(r.Err()) {
			t.Errorf("an EXEC by itself: %v, want what the server says", r.Err())
		}
	})
	sub(t, "what it has selected it keeps, and nobody else has it", func(t *testing.T) {
		s := newStage(t, nil)
		session := loneSession(t, s.c)
		session.Do(background, "SELECT", 5)
		session.Do(background, "SET", "k", "five")
		must(t, s.c, "SET k zero")
		for range 3 {
			time.Sleep(time.Hour)
			if got := textOf(session.Do(background, "GET", "k")); got != "five" {
				t.Errorf("in the session k is %s", got)
			}
		}
		session.Close()
		other := loneSession(t, s.c)
		for name, got := range map[string]string{"the client": textOf(s.c.Do(background, "GET", "k")), "the next session": textOf(other.Do(background, "GET", "k"))} {
			if got != "zero" {
				t.Errorf("to %s k is %s", name, got)
			}
		}
	})
	sub(t, "protocol 2", func(t *testing.T) {
		s := newStage(t, nil, batontest.Protocol2())
		session := loneSession(t, s.c)
		session.Do(background, "WATCH", "k")
		must(t, s.c, "SET k 7")
		session.Do(background, "MULTI")
		if r := session.Do(background, "EXEC"); r.Err() != nil || !r.IsNull() {
			t.Errorf("EXEC of what was changed: %s", spell(r))
		}
		if r := s.c.Do(background, "BLPOP", "none", 0.1); r.Err() != nil || !r.IsNull() {
			t.Errorf("BLPOP of nothing: %s", spell(r))
		}
	})
	sub(t, "what blocks has its own time, and WAIT its milliseconds", func(t *testing.T) {
		for text, own := range map[string]time.Duration{"BLPOP k 2": 2 * time.Second, "BLMPOP 2 1 k LEFT": 2 * time.Second, "XREAD BLOCK 2000 STREAMS s $": 2 * time.Second, "WAIT 1 3000": 3 * time.Second, "WAITAOF 1 0 3000": 3 * time.Second} {
			s := newLone(t)
			c := s.client(Options{Timeout: time.Second})
			session := loneSession(t, c)
			began := time.Now()
			err := session.Do(background, words(text)...).Err()
			if d := time.Since(began); !errors.Is(err, ErrTimeout) || !MaybeExecuted(err) || !loneOnTime(d, own+time.Second, time.Second) {
				t.Errorf("%s: after %v: %v", text, d, err)
			}
			if !s.all()[1].closedBy() {
				t.Errorf("%s: the connection is open", text)
			}
		}
		s := newLone(t)
		session := loneSession(t, s.client(Options{Timeout: time.Second}))
		forever := loneAsync(func() Reply { return session.Do(background, "BLPOP", "k", 0) })
		time.Sleep(time.Hour)
		s.all()[1].unblock(loneBulk("it"))
		answered(t, forever, "it")
		answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "1") }), "GET 1")
	})
	sub(t, "by several callers at once", func(t *testing.T) {
		s := newStage(t, nil)
		session := loneSession(t, s.c)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 50 {
					want := fmt.Sprint(w, "-", i)
					if got := textOf(session.Do(background, "ECHO", want)); got != want {
						t.Errorf("the reply to %s is %s", want, got)
					}
					if replies, err := session.DoBatch(background, loneBatch("ECHO a"+want, "ECHO b"+want)); err != nil || textOf(replies[0])+textOf(replies[1]) != "a"+want+"b"+want {
						t.Errorf("the replies to a batch are %v, %v", replies, err)
					}
					if replies, err := session.DoTx(background, loneBatch("ECHO c"+want, "ECHO d"+want)); err != nil || textOf(replies[0])+textOf(replies[1]) != "c"+want+"d"+want {
						t.Errorf("the replies to a transaction are %v, %v", replies, err)
					}
				}
			})
		}
		wg.Wait()
		if n := len(s.dials.to()); n != 2 {
			t.Errorf("%d dials", n)
		}
	})
	sub(t, "whose caller leaves what does not block goes on", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{Timeout: time.Second})
		session := loneSession(t, c)
		l := s.all()[1]
		s.set(func() { l.mute = true })
		ctx, cancel := context.WithCancel(background)
		left := loneAsync(func() Reply { return session.Do(ctx, "GET", "1") })
		late := loneAsync(func() Reply { return session.Do(background, "GET", "2") })
		cancel()
		failedWith(t, "the one that is left", left, context.Canceled, true)
		failedWith(t, "the one that is late", late, ErrTimeout, true)
		third := loneAsync(func() Reply { return session.Do(background, "GET", "3") })
		for i := range 3 {
			l.unblock(loneBulk(fmt.Sprint(i + 1)))
		}
		answered(t, third, "3")
	})
	sub(t, "what is behind a command that blocks has its Timeout", func(t *testing.T) {
		s := newLone(t)
		session := loneSession(t, s.client(Options{Timeout: time.Second}))
		blocked := loneAsync(func() Reply { return session.Do(background, "BLPOP", "k", 0) })
		began := time.Now()
		behind := loneAsync(func() Reply { return session.Do(background, "GET", "1") })
		time.Sleep(time.Minute)
		if len(behind) == 0 {
			t.Errorf("after %v it waits", time.Since(began))
		}
		s.all()[1].unblock(loneBulk("it"))
		answered(t, blocked, "it")
		failedWith(t, "it", behind, ErrTimeout, true)
		answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "2") }), "GET 2")
	})
	sub(t, "an empty batch", func(t *testing.T) {
		s := newLone(t)
		session := loneSession(t, s.client(Options{}))
		before := len(s.all()[1].heard())
		for name, call := range map[string]func(context.Context, *Batch) ([]Reply, error){"DoBatch": session.DoBatch, "DoTx": session.DoTx} {
			if replies, err := call(background, &Batch{}); replies != nil || err != nil {
				t.Errorf("%s: %v, %v", name, replies, err)
			}
		}
		if said := s.all()[1].heard()[before:]; len(said) > 0 {
			t.Errorf("was sent: %q", said)
		}
	})
}

// Session dials, and returns when its connection is ready or why it is not.
func TestSessionIsReady(t *testing.T) {
	sub(t, "its context ends", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1, DialTimeout: time.Hour, Timeout: time.Hour})
		release := s.stalls()
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		began := time.Now()
		if session, err := c.Session(ctx); session != nil || !errors.Is(err, context.DeadlineExceeded) || MaybeExecuted(err) || time.Since(began) != time.Second {
			t.Errorf("%v, %v after %v", session, err, time.Since(began))
		}
		release()
		session := loneSession(t, c) // its place was given back
		answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "1") }), "GET 1")
		if n := len(s.open(addrA)); n != 2 {
			t.Errorf("%d connections, want one and one", n)
		}
	})
	sub(t, "nobody is there for a while", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		s.refuseAll()
		opening := later(func() *Session { return loneSession(t, c) })
		time.Sleep(2 * time.Second)
		s.refuseNone()
		session := opening()
		answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "1") }), "GET 1")
	})
	sub(t, "nobody is there", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxDedicated: 1, Timeout: time.Second})
		s.refuseAll()
		began := time.Now()
		if session, err := c.Session(background); session != nil || !errors.Is(err, ErrTimeout) || MaybeExecuted(err) || !loneOnTime(time.Since(began), time.Second, time.Second) {
			t.Errorf("%v, %v after %v", session, err, time.Since(began))
		}
		s.refuseNone()
		time.Sleep(time.Minute)
		loneSession(t, c)
	})
	sub(t, "it is lost before it is ready", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		s.set(func() { s.say = answers{"PING": hangUp} }) // which comes behind the handshake
		time.AfterFunc(2*time.Second, func() { s.set(func() { s.say = nil }) })
		session, err := c.Session(background)
		if err == nil {
			answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "1") }), "GET 1")
			session.Close()
		} else if session != nil {
			t.Errorf("a session and an error: %v", err)
		}
		after, err := c.Session(background)
		for tries := 0; err != nil && tries < 3; tries++ {
			time.Sleep(time.Second)
			after, err = c.Session(background)
		}
		if err != nil {
			t.Fatal(err)
		}
		answered(t, loneAsync(func() Reply { return after.Do(background, "GET", "2") }), "GET 2")
		after.Close()
	})
}

// --- the end of a session ---

// loneEnds are the ways in which a session ends, and what is said of calls after it.
var loneEnds = map[string]struct {
	end  func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine)
	errs []error
}{
	"the server closes": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) { l.Close() }, []error{ErrNoConnection}},
	"the server resets": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) { l.reset() }, []error{ErrNoConnection}},
	"the server is asked to close": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) {
		s.set(func() { s.say = answers{"QUIT": "+OK\r\n"} })
		time.AfterFunc(time.Second, func() { l.Close() })
		session.Do(background, "QUIT")
		time.Sleep(2 * time.Second)
	}, []error{ErrNoConnection}},
	"the server falls silent": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) {
		s.set(func() { l.mute = true })
		if err := session.Do(background, "GET", "silent").Err(); !errors.Is(err, ErrTimeout) || !MaybeExecuted(err) {
			t.Errorf("what a silent server does not answer: %v", err)
		}
		time.Sleep(time.Minute)
		if !l.closedBy() {
			t.Error("the connection to a silent server is open")
		}
	}, []error{ErrNoConnection}},
	"the server breaks the protocol": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) { l.says("+what?\r\n") }, []error{ErrNoConnection}},
	"Session.Close": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) {
		if err := session.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}, []error{ErrClosed}},
	"Client.Close": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) { c.Close() }, []error{ErrClosed}},
	"Shutdown": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) {
		if err := c.Shutdown(background); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}, []error{ErrClosed}},
	"the caller leaves a blocking command": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) {
		ctx, cancel := context.WithCancel(background)
		left := loneAsync(func() Reply { return session.Do(ctx, "BLPOP", "k", 0) })
		cancel()
		failedWith(t, "it", left, context.Canceled, true)
		if !l.closedBy() {
			t.Error("the connection is open")
		}
	}, []error{ErrNoConnection, ErrClosed}},
	"the caller leaves a batch that blocks": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) {
		ctx, cancel := context.WithCancel(background)
		left := loneAsync(func() Reply { _, err := session.DoBatch(ctx, loneBatch("GET 1", "WAIT 1 0")); return failure(err) })
		cancel()
		failedWith(t, "it", left, context.Canceled, true)
		if !l.closedBy() {
			t.Error("the connection is open")
		}
	}, []error{ErrNoConnection, ErrClosed}},
	"a blocking command is not answered in its time": {func(t *testing.T, s *loneServer, c *Client, session *Session, l *loneLine) {
		failedWith(t, "it", loneAsync(func() Reply { return session.Do(background, "BLPOP", "k", 1) }), ErrTimeout, true)
		if !l.closedBy() {
			t.Error("the connection is open")
		}
	}, []error{ErrNoConnection, ErrClosed}},
}

func TestAfterTheEndOfASession(t *testing.T) {
	for name, e := range loneEnds {
		for _, watching := range []bool{false, true} {
			sub(t, fmt.Sprintf("%s, in a transaction: %v", name, watching), func(t *testing.T) {
				s := newLone(t)
				c := s.client(Options{Timeout: time.Second, MaxDedicated: 1})
				session := loneSession(t, c)
				l := s.all()[1]
				if watching {
					session.Do(background, "WATCH", "k")
					session.Do(background, "MULTI")
				}
				e.end(t, s, c, session, l)
				synctest.Wait()
				if !l.closedBy() {
					t.Error("its connection is open")
				}
				said, dials, began := len(l.heard()), len(s.dialled()), time.Now()
				batch := func(f func(context.Context, *Batch) ([]Reply, error), commands ...string) func() error {
					return func() error { _, err := f(background, loneBatch(commands...)); return err }
				}
				do := func(args ...any) func() error { return func() error { return session.Do(background, args...).Err() } }
				for call, f := range map[string]func() error{
					"GET": do("GET", "k"), "MULTI": do("MULTI"), "WATCH": do("WATCH", "k"), "BLPOP": do("BLPOP", "k", 0), "a batch": batch(session.DoBatch, "GET 1", "GET 2"),
					"a batch that blocks": batch(session.DoBatch, "GET 1", "WAIT 1 0"), "SET EXEC": do("SET", "EXEC", 1),
				} {
					err := f()
					if !slices.ContainsFunc(e.errs, func(want error) bool { return errors.Is(err, want) }) || MaybeExecuted(err) || errors.Is(err, ErrTxAborted) {
						t.Errorf("%s: %v, want %v, never sent", call, err, e.errs)
					}
				}
				for call, f := range map[string]func() error{
					"EXEC": do("EXEC"), "exec": do("exec"), "EXEC of bytes": do([]byte("Exec")), "a batch with EXEC": batch(session.DoBatch, "MULTI", "SET k 1", "EXEC", "GET k"),
					"a batch with exec": batch(session.DoBatch, "exec"), "DoTx": batch(session.DoTx, "SET k 1"),
				} {
					err := f()
					if !slices.ContainsFunc(e.errs, func(want error) bool { return errors.Is(err, want) }) || MaybeExecuted(err) || !errors.Is(err, ErrTxAborted) {
						t.Errorf("%s: %v, want %v and ErrTxAborted, never sent", call, err, e.errs)
					}
				}
				if d := time.Since(began); d > 0 {
					t.Errorf("the calls took %v", d)
				}
				if n := len(l.heard()); n != said || len(s.dialled()) != dials {
					t.Errorf("something was sent, or dialled: %q, %d dials", l.heard()[said:], len(s.dialled())-dials)
				}
				for range 2 {
					if err := session.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				}
				if _, err := c.Session(background); err == nil && e.errs[0] == ErrClosed && name != "Session.Close" {
					t.Error("a client that is closed gives a session")
				} else if err != nil && (e.errs[0] != ErrClosed || name == "Session.Close") {
					t.Errorf("the place was not given back: %v", err)
				}
			})
		}
	}
}

// What is in flight at the end fails as what may have been executed: also an EXEC, of which nothing is known then.
func TestWhatASessionHasInFlightAtItsEnd(t *testing.T) {
	for name, e := range loneEnds {
		if !slices.Contains([]string{"the server closes", "the server resets", "Session.Close", "Client.Close", "the server falls silent"}, name) {
			continue
		}
		sub(t, name, func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{Timeout: time.Second})
			session := loneSession(t, c)
			l := s.all()[1]
			s.set(func() { l.mute = true })
			get := loneAsync(func() Reply { return session.Do(background, "GET", "1") })
			exec := loneAsync(func() Reply { return session.Do(background, "EXEC") })
			batch := loneAsync(func() Reply { _, err := session.DoBatch(background, loneBatch("MULTI", "EXEC")); return failure(err) })
			tx := loneAsync(func() Reply { _, err := session.DoTx(background, loneBatch("SET k 1")); return failure(err) })
			e.end(t, s, c, session, l)
			for what, ch := range map[string]<-chan Reply{"GET": get, "EXEC": exec, "a batch": batch, "DoTx": tx} {
				if err := reply(t, ch).Err(); !MaybeExecuted(err) || errors.Is(err, ErrTxAborted) {
					t.Errorf("%s: %v, want that it may have been executed", what, err)
				}
			}
		})
	}
}

// TestWhatComesBackFromARetiredConnectionIsDialledFor: of its write not a byte was taken, and what replaced it is gone as well.
func TestWhatComesBackFromARetiredConnectionIsDialledFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		dial, made := clogging(s.script)
		c := s.client(Options{Dialer: dial})
		<-made
		pop := func() <-chan Reply { return loneAsync(func() Reply { return c.Do(background, "BLPOP", "k", 0) }) }
		first := pop()
		synctest.Wait()
		s.all()[1].unblock(loneBulk("one"))
		reply(t, first)
		(<-made).full.Store(true)
		second := pop()
		synctest.Wait()
		if err := c.Renew(background); err != nil {
			t.Fatal(err)
		}
		for _, l := range s.all()[2:] { // the replacements, of which one is the dedicated one's
			l.Close()
		}
		synctest.Wait()
		s.all()[1].Close()
		time.Sleep(5 * time.Second) // the dial has back-off
		last := s.all()[len(s.all())-1]
		last.unblock(loneBulk("two"))
		if got, err := reply(t, second).Text(); got != "two" {
			t.Error(got, err)
		}
	})
}

func TestCloseOfASessionWaitsForNothing(t *testing.T) {
	sub(t, "a write that is stuck", func(t *testing.T) {
		s := newLone(t)
		gate := make(chan struct{}, 1)
		var dials atomic.Int32
		c := s.client(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn {
			if dials.Add(1) == 2 {
				return &gated{nc, gate}
			}
			return nc
		})})
		session := loneSession(t, c)
		gate <- struct{}{}
		first := loneAsync(func() Reply { return session.Do(background, "GET", "1") })
		second := loneAsync(func() Reply { return session.Do(background, "GET", "2") })
		exec := loneAsync(func() Reply { _, err := session.DoBatch(background, loneBatch("MULTI", "EXEC")); return failure(err) })
		session.Close()
		synctest.Wait()
		<-gate
		failedWith(t, "what is being written", first, ErrClosed, true)
		failedWith(t, "what is behind it", second, ErrClosed, false)
		if err := reply(t, exec).Err(); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrTxAborted) || MaybeExecuted(err) {
			t.Errorf("an EXEC behind it: %v", err)
		}
	})
	sub(t, "a connection that does not close", func(t *testing.T) {
		s := newLone(t)
		over := make(chan struct{})
		closes := sync.OnceFunc(func() { close(over) })
		c := s.client(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &lateClose{nc, over} })})
		session := loneSession(t, c)
		blocked := loneAsync(func() Reply { return session.Do(background, "BLPOP", "k", 0) })
		began := time.Now()
		session.Close()
		time.Sleep(time.Minute)
		if len(blocked) == 0 {
			t.Errorf("after %v what was in flight waits", time.Since(began))
			closes()
		}
		failedWith(t, "it", blocked, ErrClosed, true)
		next := loneSession(t, c)
		answered(t, loneAsync(func() Reply { return next.Do(background, "GET", "1") }), "GET 1")
		c.Close()
		closes()
	})
}

// F9: what a session watches ends with it, and nobody gets its connection.
func TestCaseF9AWatchEndsWithItsSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxDedicated = 1 })
		for i := range 20 {
			session := loneSession(t, s.c)
			session.Do(background, "WATCH", "k")
			if i%2 == 0 {
				session.Do(background, "MULTI")
			}
			session.Do(background, "SELECT", 5)
			session.Close()
			synctest.Wait()
			if n := s.a.Conns(); n != 1 {
				t.Fatalf("round %d: %d connections, want the one that is shared", i, n)
			}
			must(t, s.c, "SET k "+strconv.Itoa(i))
			if r := s.c.Do(background, "BLPOP", "none", 0.001); r.Err() != nil || !r.IsNull() {
				t.Fatalf("round %d: what blocks gets %s", i, spell(r))
			}
			next := loneSession(t, s.c)
			if replies, err := next.DoTx(background, loneBatch("GET k")); err != nil || textOf(replies[0]) != strconv.Itoa(i) {
				t.Fatalf("round %d: an unrelated transaction: %v, %v", i, replies, err)
			}
			if _, err := s.c.DoTx(background, loneBatch("GET k")); err != nil {
				t.Fatalf("round %d: an unrelated transaction: %v", i, err)
			}
			next.Close()
		}
	})
}

// --- sessions and maintenance ---

func TestASessionIsToldWhenItWillBeCut(t *testing.T) {
	// told says that a session learns once that it will be cut at a moment, and stays where it is.
	told := func(t *testing.T, s *loneServer, c *Client, j *journal, session *Session, at time.Time) {
		t.Helper()
		l := s.all()[1]
		if moments := loneMoments(session); len(moments) != 1 || moments[0].Sub(at).Abs() > time.Millisecond {
			t.Errorf("it learns %v, want once, %v", moments, at)
		}
		synctest.Wait()
		if events := j.of(EventSessionMoving); len(events) != 1 || events[0].Addr != addrA || events[0].Seq != 1 || events[0].Window <= 0 {
			t.Errorf("events: %+v", events)
		}
		s.announce(moves(1, 10, addrB)) // a copy
		time.Sleep(2 * time.Second)
		s.announce(moves(0, 10, addrC)) // older
		time.Sleep(2 * time.Second)
		if moments := loneMoments(session); len(moments) > 0 || j.count(EventSessionMoving) != 1 {
			t.Errorf("once more it learns %v, %d events", moments, j.count(EventSessionMoving))
		}
		answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "still here") }), "GET still here")
		if l != s.who("GET still here") || l.closedBy() {
			t.Error("it is not where it was")
		}
	}
	for name, successor := range map[string]string{"named": addrB, "unnamed": ""} {
		sub(t, name, func(t *testing.T) {
			s, j := newLone(t), &journal{}
			c := s.client(Options{OnEvent: j.add})
			session := loneSession(t, c)
			if moments := loneMoments(session); len(moments) > 0 {
				t.Errorf("before it is told it learns %v", moments)
			}
			s.announce(moves(1, 10, successor))
			told(t, s, c, j, session, time.Now().Add(10*time.Second))
		})
	}
	sub(t, "it alone", func(t *testing.T) {
		s, j := newLone(t), &journal{}
		c := s.client(Options{OnEvent: j.add})
		session := loneSession(t, c)
		s.all()[1].says(moves(1, 10, addrB))
		told(t, s, c, j, session, time.Now().Add(10*time.Second))
	})
	sub(t, "in its handshake", func(t *testing.T) {
		s, j := newLone(t), &journal{}
		c := s.client(Options{OnEvent: j.add})
		s.set(func() { s.optIn = func(string) string { return "+OK\r\n" + moves(1, 10, addrB) } })
		session := loneSession(t, c)
		told(t, s, c, j, session, time.Now().Add(10*time.Second))
	})
	sub(t, "right behind its handshake", func(t *testing.T) {
		s, j := newLone(t), &journal{}
		c := s.client(Options{OnEvent: j.add})
		s.set(func() { s.say = answers{"PING": moves(1, 10, addrB) + "+PONG\r\n"} })
		session := loneSession(t, c)
		told(t, s, c, j, session, time.Now().Add(10*time.Second))
	})
	sub(t, "without a time", func(t *testing.T) {
		s := newLone(t)
		session := loneSession(t, s.client(Options{}))
		began := time.Now()
		s.all()[1].says(">2\r\n$6\r\nMOVING\r\n:1\r\n")
		if moments := loneMoments(session); len(moments) != 1 || moments[0].Sub(began) != 10*time.Second {
			t.Errorf("it learns %v, want the relaxed timeout", moments)
		}
	})
	sub(t, "number 0, and while nobody listens", func(t *testing.T) {
		s := newLone(t)
		session := loneSession(t, s.client(Options{}))
		for i := range 20 {
			s.all()[1].says(moves(i, 10, addrB))
		}
		answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "1") }), "GET 1")
		if n := len(loneMoments(session)); n != 1 {
			t.Errorf("%d values", n)
		}
	})
	sub(t, "an echo of the place that was named is none", func(t *testing.T) {
		s, j := newLone(t), &journal{}
		c := s.client(Options{OnEvent: j.add})
		s.set(func() { s.optIn = func(string) string { return "+OK\r\n" + moves(1, 10, addrB) } })
		s.announce(moves(1, 10, addrB))
		session := loneSession(t, c) // at B, by the pin
		if moments := loneMoments(session); len(moments) > 0 || j.count(EventSessionMoving) > 0 {
			t.Errorf("it learns %v", moments)
		}
	})
	sub(t, "in its dial", func(t *testing.T) { // it was begun before the others were told
		s := newLone(t)
		c := s.client(Options{})
		release := s.stalls()
		opening := later(func() *Session { return loneSession(t, c) })
		synctest.Wait()
		began := time.Now()
		s.all()[0].says(moves(1, 10, addrB))
		synctest.Wait()
		release()
		session := opening()
		session.Do(background, "GET", "mine")
		l := s.who("GET mine")
		if moments := loneMoments(session); l.addr == addrA && (len(moments) != 1 || moments[0].Sub(began) != 10*time.Second) {
			t.Errorf("it is in the old place and learns %v", moments)
		}
	})
	sub(t, "without notifications it learns nothing", func(t *testing.T) {
		s := newLone(t)
		session := loneSession(t, s.client(Options{Maintenance: Maintenance{Mode: Disabled}}))
		s.announce(moves(1, 10, addrB))
		if moments := loneMoments(session); len(moments) > 0 {
			t.Errorf("it learns %v", moments)
		}
		answered(t, loneAsync(func() Reply { return session.Do(background, "GET", "1") }), "GET 1")
	})
}

func TestASessionIsNeverHandedOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		session := loneSession(t, c)
		l := s.all()[1]
		session.Do(background, "WATCH", "k")
		blocked := loneAsync(func() Reply { return session.Do(background, "BLPOP", "k", 0) })
		s.announce(moves(1, 10, addrB))
		time.Sleep(30 * time.Second) // the server is late
		pending(t, "what blocks", blocked)
		l.unblock(loneBulk("it"))
		answered(t, blocked, "it")
		answered(t, loneAsync(func() Reply { return session.Do(background, "EXEC") }), "EXEC")
		if n := len(s.dialled()); n != 3 || l.closedBy() {
			t.Errorf("%d dials, want one, one, and one of the shared connection's handoff", n)
		}
		l.Close() // at last
		synctest.Wait()
		failedWith(t, "after it", loneAsync(func() Reply { return session.Do(background, "GET", "1") }), ErrNoConnection, false)
		time.Sleep(time.Minute)
		if n := len(s.dialled()); n != 3 {
			t.Errorf("%d dials: it was dialled again", n)
		}
		next := loneSession(t, c)
		answered(t, loneAsync(func() Reply { return next.Do(background, "GET", "2") }), "GET 2")
	})
}

// A53: a pipeline with a transaction in a session that moved, before and after it is cut.
func TestCaseA53ATransactionOfASessionThatMoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, nil)
		session := loneSession(t, s.c)
		session.Do(background, "WATCH", "k")
		began := time.Now()
		s.move(5)
		time.Sleep(2 * time.Second)
		s.serves(s.b)
		replies, err := session.DoBatch(background, loneBatch("MULTI", "SET k 1", "EXEC", "GET k"))
		if err != nil || len(replies) != 4 || spell(replies[2]) != "[+OK]" || spell(replies[3]) != `"1"` {
			t.Fatalf("before the cut: %v, %v", replies, err)
		}
		session.Do(background, "WATCH", "k")
		must(t, s.c, "SET k 2") // elsewhere, over the same data
		replies, err = session.DoBatch(background, loneBatch("MULTI", "SET k 3", "EXEC", "GET k"))
		if err != nil || len(replies) != 4 || !replies[2].IsNull() || spell(replies[3]) != `"2"` {
			t.Fatalf("before the cut, aborted: %v, %v", replies, err)
		}
		session.Do(background, "WATCH", "k")
		at := <-session.Moving()
		if d := at.Sub(began); d != 5*time.Second {
			t.Errorf("it is cut after %v", d)
		}
		time.Sleep(time.Until(at) + 100*time.Millisecond)
		for range 2 {
			if replies, err := session.DoBatch(background, loneBatch("MULTI", "SET k 4", "EXEC", "GET k")); replies != nil || !errors.Is(err, ErrTxAborted) || !errors.Is(err, ErrNoConnection) || MaybeExecuted(err) {
				t.Errorf("after the cut: %v, %v", replies, err)
			}
			failedWith(t, "another call", loneAsync(func() Reply { return session.Do(background, "GET", "k") }), ErrNoConnection, false)
		}
		if got := textOf(s.c.Do(background, "GET", "k")); got != "2" {
			t.Errorf("k is %s", got)
		}
	})
}

func TestNothingIsSentInASessionButByItsOwner(t *testing.T) {
	heard := func(t *testing.T, l *loneLine, want ...string) {
		t.Helper()
		if said := l.heard(); said[0] != "PING" || !slices.Equal(said[1:], want) || l.closedBy() { // the first is that of Session
			t.Errorf("was said: %q, closed: %v", l.heard(), l.closedBy())
		}
	}
	sub(t, "no PING", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{KeepAlive: time.Second, Timeout: time.Second})
		session := loneSession(t, c)
		time.Sleep(time.Hour)
		session.Do(background, "MULTI")
		time.Sleep(time.Hour)
		session.Do(background, "EXEC")
		time.Sleep(time.Hour)
		heard(t, s.all()[1], "MULTI", "EXEC")
	})
	sub(t, "READONLY in a failover", func(t *testing.T) {
		s, j := newLone(t), &journal{}
		s.say = answers{"SET": readOnlyReply}
		c := s.client(Options{OnEvent: j.add})
		session := loneSession(t, c)
		s.announce(opens("FAILING_OVER", 1, 10))
		var refusal *ServerError
		for range 3 {
			if err := session.Do(background, "SET", "k", 1).Err(); !errors.As(err, &refusal) || refusal.Code != "READONLY" {
				t.Errorf("%v", err)
			}
		}
		time.Sleep(20 * time.Second)
		heard(t, s.all()[1], "SET k 1", "SET k 1", "SET k 1")
		if moments := loneMoments(session); len(s.dialled()) != 2 || len(moments) > 0 || j.count(EventSessionMoving) > 0 {
			t.Errorf("%d dials; it learns %v", len(s.dialled()), moments)
		}
	})
	sub(t, "Renew", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		session := loneSession(t, c)
		session.Do(background, "MULTI")
		for range 3 {
			if err := c.Renew(background); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		session.Do(background, "EXEC")
		heard(t, s.all()[1], "MULTI", "EXEC")
		if n := len(s.dialled()); n != 5 {
			t.Errorf("%d dials, want one, one, and three of the shared connection", n)
		}
		session.Close()
		if err := c.Renew(background); err != nil {
			t.Errorf("with a session that is closed: %v", err)
		}
		loneSession(t, c)
		s.all()[len(s.all())-1].Close()
		synctest.Wait()
		if err := c.Renew(background); err != nil {
			t.Errorf("with a session that is lost: %v", err)
		}
	})
	sub(t, "MaxAge", func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{MaxAge: 10 * time.Second})
		session := loneSession(t, c)
		session.Do(background, "MULTI")
		time.Sleep(5 * time.Minute)
		session.Do(background, "EXEC")
		heard(t, s.all()[1], "MULTI", "EXEC")
	})
	// E4: credentials that change in the middle of a transaction are asked for by the next dial, and by nothing else.
	sub(t, "case E4, AUTH", func(t *testing.T) {
		s := newLone(t)
		var asked atomic.Int32
		c := s.client(Options{Credentials: func(context.Context) (string, string, error) { return "", fmt.Sprint("password-", asked.Add(1)), nil }})
		session := loneSession(t, c)
		session.Do(background, "MULTI")
		if err := c.Renew(background); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		session.Do(background, "SET", "k", 1)
		session.Do(background, "EXEC")
		heard(t, s.all()[1], "MULTI", "SET k 1", "EXEC")
		for i, l := range s.all() {
			if want := fmt.Sprint("HELLO 3 AUTH default password-", i+1); l.greeting[0] != want {
				t.Errorf("connection %d begins with %s, want %s", i, l.greeting[0], want)
			}
			for _, said := range l.heard() {
				if strings.HasPrefix(said, "AUTH") || strings.HasPrefix(said, "HELLO") {
					t.Errorf("%s on a live connection", said)
				}
			}
		}
		if n := asked.Load(); n != 3 {
			t.Errorf("asked %d times, want by three dials", n)
		}
	})
}

// --- a server that is killed ---

func TestTheServerIsKilledInTheMiddle(t *testing.T) {
	for name, kill := range map[string]func(s *batontest.Server){
		"cut": func(s *batontest.Server) { s.Cut() }, "away for 3s": func(s *batontest.Server) {
			s.Refuse(true)
			s.Cut()
			time.AfterFunc(3*time.Second, func() { s.Refuse(false) })
		},
	} {
		for _, policy := range []BacklogPolicy{Queue, FailFast} {
			sub(t, fmt.Sprintf("%s, policy %d", name, policy), func(t *testing.T) {
				s := newStage(t, func(o *Options) { o.Backlog = policy })
				must(t, s.c, "MSET x 50 y 50")
				s.a.Delay("GET", 10*time.Millisecond) // what is behind one of these is in flight for long
				blocked := async(s.c, "BLPOP", "k", 0)
				watching, queueing, executing := loneSession(t, s.c), loneSession(t, s.c), loneSession(t, s.c)
				watching.Do(background, "WATCH", "x")
				queueing.Do(background, "MULTI")
				queueing.Do(background, "DECRBY", "x", 10)
				queueing.Do(background, "INCRBY", "y", 10)
				exec := loneAsync(func() Reply {
					_, err := executing.DoBatch(background, loneBatch("GET x", "MULTI", "DECRBY x 1", "INCRBY y 1", "EXEC"))
					return failure(err)
				})
				get := async(s.c, "GET", "x")
				tx := loneAsync(func() Reply {
					_, err := s.c.DoTx(background, loneBatch("DECRBY x 1", "INCRBY y 1"))
					return failure(err)
				})
				began := time.Now()
				kill(s.a)
				for what, ch := range map[string]<-chan Reply{"a blocked command": blocked, "a session's batch": exec, "a command": get, "a transaction": tx} {
					if err := reply(t, ch).Err(); !MaybeExecuted(err) || errors.Is(err, ErrTxAborted) || errors.Is(err, ErrMaintenance) {
						t.Errorf("%s: %v", what, err)
					}
				}
				if _, err := watching.DoTx(background, loneBatch("DECRBY x 5", "INCRBY y 5")); !errors.Is(err, ErrTxAborted) || MaybeExecuted(err) {
					t.Errorf("a transaction whose WATCH is lost: %v", err)
				}
				if err := queueing.Do(background, "EXEC").Err(); !errors.Is(err, ErrTxAborted) || MaybeExecuted(err) {
					t.Errorf("the EXEC of a transaction that is lost: %v", err)
				}
				if err := queueing.Do(background, "GET", "x").Err(); !errors.Is(err, ErrNoConnection) || MaybeExecuted(err) {
					t.Errorf("another call: %v", err)
				}
				if d := time.Since(began); d > 0 {
					t.Errorf("the errors came after %v", d)
				}
				time.Sleep(5 * time.Second)
				x, errX := strconv.Atoi(textOf(s.c.Do(background, "GET", "x")))
				y, errY := strconv.Atoi(textOf(s.c.Do(background, "GET", "y")))
				if errX != nil || errY != nil || x+y != 100 || x < 48 || x > 50 { // the two that may have been executed are whole, and once
					t.Errorf("x is %d and y %d", x, y)
				}
				must(t, s.c, "RPUSH k a")
				if r := s.c.Do(background, "BLPOP", "k", 1); spell(r) != `["k" "a"]` {
					t.Errorf("what blocks next gets %s", spell(r))
				}
				next := loneSession(t, s.c)
				if _, err := next.DoTx(background, loneBatch("DECRBY x 1", "INCRBY y 1")); err != nil {
					t.Errorf("a new session: %v", err)
				}
			})
		}
	}
}
