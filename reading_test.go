package baton

// The reading role: commands that follow each other one at a time are read for by their own callers, and the reader stands aside (type
// reading). Each test makes a lone caller first, so that the next command's caller is in the role, and then has something happen to it.

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/baton/batontest"
)

var readers = map[reading]string{byReader: "the reader", byNobody: "nobody", byCaller: "a caller"}

// solo is a client, one of whose connections is used by one caller at a time, and the server, in the test's hands.
type solo struct {
	*testing.T
	s  *script
	c  *Client
	p  *peer // the server's end of the current connection
	j  *journal
	at [2]atomic.Pointer[func()] // what its connections do at a moment, once
}

// The moments at which a connection of a solo can be made to do something.
const (
	inWrite = iota // written, and the write has not returned yet
	inRead         // read, and the read has not returned yet
)

// watchedSocket is a socket that does what its owner wants done in a call, just before that returns.
type watchedSocket struct {
	net.Conn
	l *solo
}

func (m *watchedSocket) SyscallConn() (syscall.RawConn, error) { return nil, syscall.ENOTSUP }

func (m *watchedSocket) Write(b []byte) (int, error) {
	n, err := m.Conn.Write(b)
	m.l.now(inWrite)
	return n, err
}

func (m *watchedSocket) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if n > 0 {
		m.l.now(inRead)
	}
	return n, err
}

func (l *solo) now(at int) {
	if f := l.at[at].Swap(nil); f != nil {
		(*f)()
	}
}

// newSolo is a solo whose reader stands aside.
func newSolo(t *testing.T, o Options) *solo {
	t.Helper()
	l := &solo{T: t, s: newScript(t), j: &journal{}}
	o.OnEvent = l.j.add
	if o.Dialer == nil {
		o.Dialer = l.s.dial
	}
	o.Dialer = through(o.Dialer, func(nc net.Conn) net.Conn { return &watchedSocket{nc, l} })
	l.c, l.p = l.s.connect(o)
	l.warm(background)
	return l
}

// warm has commands follow each other until the reader stands aside. ctx is known to the connection then.
func (l *solo) warm(ctx context.Context) {
	l.Helper()
	synctest.Wait()
	l.ask(ctx, "warm")
	for n := 0; n < 100 && roleOf(l.T, l.c.bridges[0]) != byNobody; n++ {
		l.ask(ctx, "warm")
	}
	l.readBy(byNobody, "after commands alone in a row")
}

// echo is a command whose reply is its key.
func (l *solo) echo(ctx context.Context, key string) func() Reply {
	return later(func() Reply { return l.c.Do(ctx, "ECHO", key) })
}

// value is what the server says to the echo of these keys.
func value(keys ...string) (raw string) {
	for _, key := range keys {
		raw += fmt.Sprintf("$%d\r\n%s\r\n", len(key), key)
	}
	return raw
}

// gets expects that an echo got its own reply.
func (l *solo) gets(got func() Reply, key string) {
	l.Helper()
	if text, err := got().Text(); text != key || err != nil {
		l.Fatalf("ECHO %s: %q, %v", key, text, err)
	}
}

// answers expects these commands on the current connection and answers them.
func (l *solo) answers(keys ...string) {
	l.Helper()
	for _, key := range keys {
		l.p.expects("ECHO " + key)
	}
	l.p.says(value(keys...))
}

// ask is a command that is answered at once.
func (l *solo) ask(ctx context.Context, key string) {
	l.Helper()
	got := l.echo(ctx, key)
	l.answers(key)
	l.gets(got, key)
	synctest.Wait()
}

// reading is an echo in flight whose caller reads for it.
func (l *solo) reading(ctx context.Context, key string) func() Reply {
	l.Helper()
	got := l.echo(ctx, key)
	l.p.expects("ECHO " + key)
	l.readBy(byCaller, "while the reply to ECHO "+key+" is awaited")
	return got
}

// readBy expects that so-and-so reads from the current connection, and that this may be.
func (l *solo) readBy(want reading, when string) {
	l.Helper()
	synctest.Wait()
	if got := roleOf(l.T, l.c.bridges[0]); got != want {
		l.Fatalf("%s: %s reads, want %s", when, readers[got], readers[want])
	}
}

// roleOf is who reads from a bridge's current connection.
func roleOf(t *testing.T, b *bridge) reading {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		if fault := roleFaultLocked(c); fault != "" {
			t.Errorf("%s", fault)
		}
	}
	if b.cur == nil {
		return byReader // what is dialled next
	}
	return b.cur.role
}

// roleFaultLocked is what must never be of the role, between any two critical sections.
func roleFaultLocked(c *conn) string {
	switch {
	case c.role != byNobody:
	case c.broken != nil:
		return "nobody reads a broken connection to its end"
	case c.readDone:
		return "nobody reads, and reading has ended"
	case c.inFlight.head != nil && c.inFlight.head.begin < c.taken:
		return "nobody reads, and a command was taken to be written"
	}
	return ""
}

// rest expects that the client has come to rest: nothing is in flight, the reader reads, and no timer runs for that.
func (l *solo) rest() {
	l.Helper()
	time.Sleep(nobodyReads)
	l.readBy(byReader, "without a call for some time")
	if s := l.c.Stats(); s.InFlight != 0 || s.Backlog != 0 {
		l.Errorf("at rest: %+v", s)
	}
}

// eachContext calls f with the contexts that callers come with.
func eachContext(f func(name string, ctx context.Context)) {
	cancellable, cancel := context.WithCancel(background)
	defer cancel()
	ending, cancel := context.WithTimeout(background, time.Hour)
	defer cancel()
	f("background", background)
	f("cancellable", cancellable)
	f("with a deadline", ending)
}

// --- the role is taken, and taken back ---

func TestALoneCallerReadsForItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		eachContext(func(name string, ctx context.Context) {
			l := newSolo(t, Options{})
			time.Sleep(time.Second)
			l.ask(ctx, "late")
			for i := range asideFrom {
				got := l.echo(ctx, "k")
				l.p.expects("ECHO k")
				l.readBy(byReader, fmt.Sprintf("%s: command %d in a row", name, i))
				l.p.says(value("k"))
				l.gets(got, "k")
			}
			for i := range 100 {
				l.readBy(byNobody, fmt.Sprintf("%s: after %d commands", name, asideFrom+i))
				l.gets(l.answered(l.reading(ctx, "k"), "k"), "k")
				time.Sleep(time.Duration(i%2) * closely)
			}
			l.rest()
		})
	})
}

// answered has the server answer an echo.
func (l *solo) answered(got func() Reply, key string) func() Reply {
	l.p.says(value(key))
	return got
}

func TestOthersThanLoneCallersAreReadForByTheReader(t *testing.T) {
	large := strings.Repeat("k", callerWrites)
	for name, f := range map[string]func(l *solo){
		"two at a time": func(l *solo) {
			a, b := l.echo(background, "k"), l.echo(background, "k")
			l.p.expects("ECHO k", "ECHO k")
			l.readBy(byReader, "two at a time")
			l.p.says(value("k", "k"))
			l.gets(a, "k")
			l.gets(b, "k")
		},
		"calls that do not follow closely": func(l *solo) {
			time.Sleep(closely + 1)
			got := l.echo(background, "k")
			l.p.expects("ECHO k")
			l.readBy(byReader, "a command that comes late")
			l.gets(l.answered(got, "k"), "k")
		},
		"commands that a caller does not write": func(l *solo) {
			got := l.echo(background, large)
			l.p.expects("ECHO " + large)
			l.readBy(byReader, "a large command")
			l.gets(l.answered(got, large), large)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newSolo(t, Options{})
				l.gets(l.answered(l.reading(background, "k"), "k"), "k")
				l.ask(background, large) // the flusher writes it: the reader is called back
				for range 3 * asideFrom {
					f(l)
					l.readBy(byReader, "after "+name)
				}
			})
		})
	}
	t.Run("what is no socket", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			l := &solo{T: t, s: newScript(t)}
			l.c, l.p = l.s.connect(Options{Dialer: through(l.s.dial, func(nc net.Conn) net.Conn { return struct{ net.Conn }{nc} })})
			for range 3 * asideFrom {
				l.ask(background, "k")
				l.readBy(byReader, "what is no socket")
			}
		})
	})
}

// However busy a connection was, a caller who is alone on it later soon reads for itself again.
func TestALoneCallerIsAloneAgainAfterOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		for _, n := range []int{2, 3, 7, 8, 20, 1000} {
			var all []func() Reply
			for range n {
				all = append(all, l.echo(background, "k"))
			}
			l.answers(slices.Repeat([]string{"k"}, n)...)
			for _, got := range all {
				l.gets(got, "k")
			}
			for range 100 {
				l.ask(background, "k")
			}
			l.readBy(byNobody, fmt.Sprintf("%d at once, and then one after the other", n))
		}
	})
}

func TestTheReaderTakesTheRoleBackWithoutACall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{KeepAlive: -1})
		for _, hadCaller := range []bool{false, true} {
			if hadCaller {
				l.warm(background)
				l.gets(l.answered(l.reading(background, "k"), "k"), "k")
			}
			time.Sleep(nobodyReads - 1)
			l.readBy(byNobody, "a moment before nobodyReads has passed")
			time.Sleep(time.Nanosecond)
			l.readBy(byReader, "when nobodyReads has passed")
		}
		l.noTimer("when it has run out")
		time.Sleep(time.Hour)
		l.readBy(byReader, "after an hour")
		l.warm(background)
		time.Sleep(closely + 1)
		l.ask(background, "late")
		l.readBy(byReader, "when it was called back")
		l.noTimer("when it was called back")
		l.warm(background)
		l.rest()
	})
}

// noTimer expects that no timer runs for the role.
func (l *solo) noTimer(when string) {
	l.Helper()
	c := l.c.bridges[0].cur
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unused.Stop() {
		l.Errorf("%s: a timer runs", when)
	}
}

// A reader that is called back while the timer runs out leaves nothing that calls it back the next time.
func TestTheRoleIsGivenToAndFroManyTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		other, cancel := context.WithCancel(background)
		defer cancel()
		for i := range 100 {
			switch i % 4 {
			case 0:
				time.Sleep(nobodyReads)
			case 1:
				time.Sleep(nobodyReads)
				l.ask(background, "k") // at the same moment as the timer
			case 2:
				ctx, cancel := context.WithCancel(other) // one that was not seen before
				l.ask(ctx, "k")
				cancel()
			case 3:
				a, b := l.echo(background, "a"), l.echo(other, "a")
				l.answers("a", "a")
				l.gets(a, "a")
				l.gets(b, "a")
			}
			l.warm(background)
			l.gets(l.answered(l.reading(background, "k"), "k"), "k")
			l.readBy(byNobody, "after a caller")
		}
		l.rest()
	})
}

// --- while nobody reads ---

const oddPushes = ">1\r\n+x\r\n>0\r\n>4\r\n+invalidate\r\n*1\r\n+a\r\n:1\r\n%0\r\n"

func TestWhatComesWhileNobodyReadsIsActedOnSoon(t *testing.T) {
	for _, c := range []struct {
		name  string
		comes func(p *peer)
		kind  EventKind
	}{
		{"MOVING", func(p *peer) { p.moving(1, 10, "10.9.0.2:6379") }, EventPreparing},
		{"MIGRATING", func(p *peer) { p.says(">4\r\n+MIGRATING\r\n:1\r\n:10\r\n+1\r\n") }, EventRelaxed},
		{"MOVING behind pushes that mean nothing", func(p *peer) { p.says(oddPushes); p.moving(1, 10, "10.9.0.2:6379") }, EventPreparing},
		{"a reply that nobody asked for", func(p *peer) { p.says("+OK\r\n") }, EventLost},
		{"what is no reply", func(p *peer) { p.says("what?\r\n") }, EventLost},
		{"the end", func(p *peer) { p.Close() }, EventLost},
		{"an abrupt end", func(p *peer) { p.reset() }, EventLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newSolo(t, Options{})
				c.comes(l.p)
				synctest.Wait()
				if n := l.j.count(c.kind); n != 0 {
					t.Fatalf("%d events while nobody reads", n)
				}
				if time.Sleep(nobodyReads); c.kind == EventLost {
					l.p = l.s.accept()
					l.p.handshake()
				}
				if synctest.Wait(); l.j.count(c.kind) != 1 {
					t.Errorf("within nobodyReads: %+v", l.j.events)
				}
				l.ask(background, "k")
			})
		})
	}
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		l.p.says(oddPushes)
		l.rest()
		l.ask(background, "k")
		if s := l.c.Stats(); s.Reconnects != 0 || len(l.s.dialled()) != 1 {
			t.Errorf("pushes that mean nothing: %+v", s)
		}
	})
}

// Calls that follow each other for ever put the reader's return off, but each of them reads what has come before its reply.
func TestAPushIsReadByTheNextCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		l.p.moving(1, 10, "10.9.0.2:6379")
		l.gets(l.answered(l.reading(background, "k"), "k"), "k")
		if synctest.Wait(); l.j.count(EventPreparing) != 1 {
			t.Errorf("after the next call: %+v", l.j.events)
		}
	})
}

// The end of a connection that a caller finds is what the reader would have found.
func TestAnEndThatACallerFinds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, end := range []func(p *peer){func(p *peer) { p.Close() }, (*peer).reset, func(p *peer) { p.says("what?\r\n") }} {
			l := newSolo(t, Options{})
			got := l.reading(background, "a")
			behind := l.echo(background, "b")
			l.p.expects("ECHO b")
			end(l.p)
			err := got().Err()
			if other := behind().Err(); !MaybeExecuted(err) || fmt.Sprint(other) != fmt.Sprint(err) {
				t.Errorf("%v, and for the next command %v", err, other)
			}
			l.p = l.s.accept()
			l.p.handshake()
			if synctest.Wait(); l.j.count(EventLost) != 1 || errors.Unwrap(err).Error() != l.j.of(EventLost)[0].Err.Error() {
				t.Errorf("%v: %+v", err, l.j.events)
			}
			l.warm(background)
			l.gets(l.answered(l.reading(background, "k"), "k"), "k")
			l.rest()
		}
	})
}

// --- what one read brings ---

func TestAReplyAndPushesInPieces(t *testing.T) {
	const push = ">4\r\n+MIGRATING\r\n:1\r\n:10\r\n+1\r\n"
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		for _, c := range []struct{ before, behind string }{{"", ""}, {push, ""}, {"", push}, {oddPushes, push}} {
			raw := c.before + value("hello") + c.behind
			complete := len(raw) - len(c.behind)
			for cut := range len(raw) + 1 {
				got := l.reading(background, "hello")
				l.p.says(raw[:cut])
				l.readBy(map[bool]reading{true: byNobody, false: byCaller}[cut >= complete], fmt.Sprintf("at %d of %q", cut, raw))
				l.p.says(raw[cut:])
				l.gets(got, "hello")
			}
		}
		l.rest()
		if n := l.j.count(EventNotification); n == 0 {
			t.Error("no push was read")
		}
	})
}

func TestALargeReplyInManyPieces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		big := strings.Repeat("0123456789abcdef", 64<<10)
		raw := value(big)
		got := l.reading(background, "k")
		for len(raw) > 0 {
			n := min(len(raw), 5000)
			l.readBy(byCaller, fmt.Sprintf("%d bytes are to come", len(raw)))
			l.p.says(raw[:n])
			raw = raw[n:]
		}
		l.gets(got, big)
		l.ask(background, "k")
	})
}

func TestEveryCallByACallerWhoReads(t *testing.T) {
	var batch Batch
	for range 9 {
		batch.Add("INCR", "n")
	}
	pieces := strings.Repeat(":7\r\n", 4) + "-ERR no\r\n" + strings.Repeat(":7\r\n", 4)
	queueing := "+OK\r\n" + strings.Repeat("+QUEUED\r\n", 9)
	for _, c := range []struct {
		name, raw string
		written   int
		call      func(c *Client) (string, error)
		want      string
	}{
		{"DoAppend", value("hello"), 1, func(c *Client) (string, error) {
			dst, err := c.DoAppend(background, []byte("I say "), "GET", "k")
			return string(dst), err
		}, "I say hello"},
		{"DoAppend of no string", ":1\r\n", 1, func(c *Client) (string, error) {
			dst, err := c.DoAppend(background, []byte("I say "), "GET", "k")
			return fmt.Sprint(string(dst), err != nil), nil
		}, "I say true"},
		{"DoBatch", pieces, 9, func(c *Client) (string, error) {
			replies, err := c.DoBatch(background, &batch)
			if err != nil {
				return "", err
			}
			return fmt.Sprint(len(replies), replies[4].Err(), replies[5].Err()), nil
		}, "9 ERR no <nil>"},
		{"DoTx", queueing + "*9\r\n" + strings.Repeat(":7\r\n", 9), 11, func(c *Client) (string, error) {
			replies, err := c.DoTx(background, &batch)
			return fmt.Sprint(len(replies)), err
		}, "9"},
		{"DoTx that is aborted", queueing + "_\r\n", 11, func(c *Client) (string, error) {
			_, err := c.DoTx(background, &batch)
			return fmt.Sprint(errors.Is(err, ErrTxAborted)), nil
		}, "true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newSolo(t, Options{})
				for size := 1; size <= len(c.raw); size += 1 + size/3 {
					type outcome struct {
						text string
						err  error
					}
					got := later(func() outcome { text, err := c.call(l.c); return outcome{text, err} })
					for range c.written {
						l.p.command()
					}
					l.readBy(byCaller, "while the replies are awaited")
					for piece := range slices.Chunk([]byte(c.raw), size) {
						synctest.Wait()
						l.p.says(string(piece))
					}
					if o := got(); o.text != c.want || o.err != nil {
						t.Fatalf("in pieces of %d: %q, %v, want %q", size, o.text, o.err, c.want)
					}
					synctest.Wait()
				}
				l.rest()
			})
		})
	}
}

// --- leaving ---

// ways are those in which a caller is made to leave, and when.
var ways = []struct {
	name string
	o    Options
	want error
	end  func(l *solo, cancel func())
}{
	{"cancelled", Options{}, context.Canceled, func(l *solo, cancel func()) { cancel() }},
	{"a deadline", Options{}, context.DeadlineExceeded, func(l *solo, _ func()) { time.Sleep(time.Hour) }},
	{"Timeout", Options{Timeout: 80 * time.Millisecond}, ErrTimeout, func(l *solo, _ func()) { time.Sleep(90 * time.Millisecond) }},
	{"Close", Options{}, ErrClosed, func(l *solo, _ func()) { l.c.Close() }},
}

// A caller who reads is made to leave when so many bytes of its replies have come: it returns at that very instant, the rest of the
// replies is dropped when it comes, and the next command gets its own.
func TestACallerWhoReadsLeavesAtOnce(t *testing.T) {
	raw := "$3\r\none\r\n>1\r\n+x\r\n" + value("two") + ":3\r\n"
	var batch Batch
	batch.Add("GET", "one")
	batch.Add("GET", "two")
	batch.Add("GET", "three")
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			for cut := range len(raw) {
				bubble(t, func(t *testing.T) { leavesAt(t, cut, raw, &batch, way.o, way.want, way.end) })
			}
		})
	}
}

func leavesAt(t *testing.T, cut int, raw string, batch *Batch, o Options, want error, end func(l *solo, cancel func())) {
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Hour
	}
	o.KeepAlive = -1
	l := newSolo(t, o)
	ctx, cancel := context.WithDeadline(background, time.Now().Add(time.Hour))
	defer cancel()
	l.ask(ctx, "known") // from now on
	l.warm(ctx)
	var took time.Duration
	began := time.Now()
	got := later(func() error {
		_, err := l.c.DoBatch(ctx, batch)
		took = time.Since(began)
		return err
	})
	l.p.expects("GET one", "GET two", "GET three")
	l.readBy(byCaller, "before")
	l.p.says(raw[:cut])
	synctest.Wait()
	end(l, cancel)
	left := time.Since(began)
	if err := got(); !errors.Is(err, want) || !MaybeExecuted(err) || took > left {
		t.Fatalf("%d bytes had come: %v, %v late", cut, err, took-left)
	}
	if errors.Is(want, ErrClosed) {
		return
	}
	next := l.echo(background, "next")
	if cut%2 == 0 { // written before the rest comes, or behind it
		l.p.expects("ECHO next")
	}
	l.p.says(raw[cut:])
	if cut%2 != 0 {
		l.p.expects("ECHO next")
	}
	l.gets(l.answered(next, "next"), "next")
	l.warm(background)
	l.rest()
	if s := l.c.Stats(); s.Reconnects != 0 || l.j.count(EventLost) != 0 {
		t.Errorf("%+v", s)
	}
}

// --- contexts ---

func TestAContextThatIsNotKnownIsReadForByTheReader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		a, cancelA := context.WithCancel(background)
		b, cancelB := context.WithCancel(background)
		defer cancelA()
		aside := 0
		for i := range 4 * asideFrom { // they take turns: neither is ever known
			ctx := []context.Context{a, b}[i%2]
			got := l.echo(ctx, "k")
			l.p.expects("ECHO k")
			l.readBy(byReader, "with contexts that take turns")
			l.gets(l.answered(got, "k"), "k")
			if synctest.Wait(); roleOf(t, l.c.bridges[0]) == byNobody {
				aside++
			}
		}
		if aside > 4 {
			t.Errorf("the reader stood aside %d times for nothing in %d commands", aside, 4*asideFrom)
		}
		got := l.echo(b, "k")
		l.p.expects("ECHO k")
		cancelB()
		if err := got().Err(); !errors.Is(err, context.Canceled) || !MaybeExecuted(err) {
			t.Error(err)
		}
		l.p.says(value("k"))
		l.warm(a)
		l.gets(l.answered(l.reading(a, "k"), "k"), "k")
		l.gets(l.answered(l.reading(background, "k"), "k"), "k") // one that cannot end is known
		l.rest()
	})
}

func TestAContextThatIsOverSendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		ctx, cancel := context.WithCancel(background)
		l.warm(ctx)
		cancel()
		for range 3 {
			if err := l.c.Do(ctx, "GET", "k").Err(); !errors.Is(err, context.Canceled) || MaybeExecuted(err) {
				t.Error(err)
			}
			l.readBy(byNobody, "after a call that sent nothing")
		}
		l.gets(l.answered(l.reading(background, "k"), "k"), "k")
		other, cancel := context.WithCancel(background)
		defer cancel()
		l.warm(other)
		l.gets(l.answered(l.reading(other, "k"), "k"), "k")
	})
}

// The known context ends while a caller with another one reads: that one's reply is read by the reader.
func TestTheKnownContextEndsWhileAnotherCallerReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for cut := range len(value("k")) {
			l := newSolo(t, Options{})
			ctx, cancel := context.WithCancel(background)
			l.warm(ctx)
			got := l.reading(background, "k")
			l.p.says(value("k")[:cut])
			cancel()
			l.readBy(byReader, "after the known context has ended")
			l.p.says(value("k")[cut:])
			l.gets(got, "k")
			l.rest()
		}
	})
}

// The known context is shared: all who wait with it leave at its end, the one who reads among them.
func TestASharedContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		l.warm(ctx)
		all := []func() Reply{l.reading(ctx, "1"), l.echo(ctx, "2"), l.echo(ctx, "2")}
		l.p.expects("ECHO 2", "ECHO 2")
		other := l.echo(background, "3")
		l.p.expects("ECHO 3")
		start := time.Now()
		cancel()
		for _, got := range all {
			if err := got().Err(); !errors.Is(err, context.Canceled) || !MaybeExecuted(err) || time.Since(start) > 0 {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		}
		l.p.says(value("1", "2", "2", "3"))
		l.gets(other, "3")
		l.rest()
	})
}

// A context ends at the moment at which the reply comes.
func TestAReplyThatRacesWithTheEndOfTheContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		left := 0
		for i := range 600 {
			ctx, cancel := context.WithCancel(background)
			l.warm(ctx)
			key := fmt.Sprint(i)
			got := l.reading(ctx, key)
			half := len(value(key)) * (i % 3) / 3
			l.p.says(value(key)[:half])
			if i%2 == 0 {
				go cancel()
			} else {
				defer cancel()
				time.AfterFunc(0, cancel)
			}
			l.p.says(value(key)[half:])
			switch text, err := got().Text(); {
			case err == nil && text == key:
			case errors.Is(err, context.Canceled) && MaybeExecuted(err):
				left++
			default:
				t.Fatalf("%q, %v", text, err)
			}
			l.ask(background, "next")
		}
		if l.rest(); left == 0 {
			t.Error("no caller left: the test shows nothing")
		}
	})
}

// --- several callers ---

// A second and a third caller come when so many bytes of the first one's reply have been read. Their replies come in one piece with the
// rest of it, or not.
func TestOthersComeAtEachMomentOfARead(t *testing.T) {
	raw := value("first") + ">1\r\n+x\r\n"
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		for cut := range len(raw) + 1 {
			for together := range 2 {
				first := l.reading(background, "first")
				l.p.says(raw[:cut])
				synctest.Wait()
				second := l.echo(background, "second")
				l.p.expects("ECHO second")
				third := l.echo(background, "third")
				l.p.expects("ECHO third")
				if together == 1 {
					l.p.says(raw[cut:] + value("second", "third"))
				} else {
					l.p.says(raw[cut:])
					l.gets(first, "first")
					if cut < len(value("first")) {
						l.readBy(byReader, "when more is in flight")
					}
					l.p.says(value("second"))
					l.gets(second, "second")
					l.p.says(value("third"))
					synctest.Wait()
				}
				l.gets(third, "third")
				if together == 1 {
					l.gets(first, "first")
					l.gets(second, "second")
				}
				l.warm(background)
			}
		}
		l.rest()
	})
}

// A caller who reads completes the commands of others, too, and if they are all done leaves the role to nobody.
func TestACallerWhoReadsCompletesOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		first := l.reading(background, "first")
		second := l.echo(background, "second")
		l.p.expects("ECHO second")
		l.p.says(value("first", "second"))
		l.gets(first, "first")
		l.gets(second, "second")
		l.readBy(byNobody, "when both are done")
		l.gets(l.answered(l.reading(background, "k"), "k"), "k")
		l.rest()
	})
}

// hooked is a connection's owner who does something when a push was read, once, on the goroutine that reads.
type hooked struct {
	connOwner
	then func()
	once sync.Once
}

func (h *hooked) pushed(*conn, Reply) { h.once.Do(h.then) }

// Something happens when the reader has delivered the reply that has it stand aside, and before it does: then it stays.
func TestTheReaderLooksAgainBeforeItStandsAside(t *testing.T) {
	for name, f := range map[string]func(l *solo) (other func() Reply){
		"another command": func(l *solo) func() Reply { return l.echo(background, "other") },
		"Close":           func(l *solo) func() Reply { l.c.Close(); return nil },
		"a replacement": func(l *solo) func() Reply {
			go l.c.Renew(background)
			l.s.accept().handshake()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				closing := make(chan struct{}) // so that a connection that has ended looks as if it had not
				l := newFaulty(t, Options{}, &faulty{closing: closing})
				reply := l.beforeItStandsAside(f)
				if reply != nil {
					l.p.expects("ECHO other")
					l.gets(l.answered(reply, "other"), "other")
				}
				if close(closing); reply == nil && !l.p.hungUp() {
					t.Error("the connection is open")
				}
			})
		})
	}
}

// beforeItStandsAside has f happen then, on the reader's goroutine, and returns the other command's result.
func (l *solo) beforeItStandsAside(f func(l *solo) func() Reply) func() Reply {
	l.Helper()
	l.warm(background)
	l.rest()
	l.ask(background, "late")
	for range asideFrom - 1 {
		l.ask(background, "k")
	}
	c, other := l.c.bridges[0].cur, make(chan func() Reply, 1)
	c.mu.Lock()
	c.owner = &hooked{connOwner: c.owner, then: func() {
		reply := f(l)
		synctest.Wait()
		other <- reply
	}}
	c.mu.Unlock()
	got := l.echo(background, "k")
	l.p.expects("ECHO k")
	l.p.says(value("k") + ">1\r\n+x\r\n")
	l.gets(got, "k")
	reply := <-other
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role != byReader {
		l.Errorf("%s reads", readers[c.role])
	}
	return reply
}

// incident is one thing that can happen to a command whose caller reads.
type incident struct {
	name   string
	happen func(l *solo, cancel func())
	ends   string // in the error of the command, if that has no reply yet; "": it gets its reply
	cut    bool   // the connection is lost
	closed bool   // the client is closed
}

var incidents = []incident{
	{"nothing", func(*solo, func()) {}, "", false, false},
	{"its context ends", func(_ *solo, cancel func()) { cancel() }, "context canceled", false, false},
	{"time passes", func(*solo, func()) { time.Sleep(3 * nobodyReads) }, "", false, false},
	{"its time is over", func(*solo, func()) { time.Sleep(1500 * time.Millisecond) }, "timeout", false, false},
	{"the server ends the connection", func(l *solo, _ func()) { l.p.Close() }, "lost", true, false},
	{"the server resets the connection", func(l *solo, _ func()) { l.p.reset() }, "lost", true, false},
	{"the server says what is no reply", func(l *solo, _ func()) { l.p.says("what?\r\n") }, "protocol error", true, false},
	{"another connection takes the place", (*solo).renew, "", false, false},
	{"the client is closed", func(l *solo, _ func()) { l.c.Close() }, ErrClosed.Error(), false, true},
}

// renew has another connection take the place of the current one, which lives on while it has something in flight.
func (l *solo) renew(func()) {
	go func() {
		if err := l.c.Renew(background); err != nil {
			l.Errorf("Renew: %v", err)
		}
	}()
	time.Sleep(l.c.opts.Maintenance.HoldCap)
}

// The moments of a command whose caller reads.
const (
	beingWritten = iota
	nothingRead
	replyBeingRead
	replyRead // the caller has the role still
	returned
)

// What happens at any moment happens, with another command given just before it or just after it.
func TestEverythingAtEveryMomentOfACommandWhoseCallerReads(t *testing.T) {
	for _, e := range incidents {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			for when := range returned + 1 {
				for others := range 3 {
					bubble(t, func(t *testing.T) {
						(&mishap{newSolo(t, Options{Timeout: time.Second, KeepAlive: -1}), e, when, others}).play()
					})
				}
			}
		})
	}
}

// mishap is one incident at one moment.
type mishap struct {
	*solo
	incident
	when   int
	others int // 1: another command is given before it happens, 2: behind it, 0: neither
}

func (s *mishap) play() {
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	s.warm(ctx)
	s.s.attend(func(p *peer) { p.serve(answers{}.to) })
	happened := make(chan func() Reply, 1)
	f := func() { happened <- s.happens(cancel) }
	s.arm(f)
	first := s.echo(ctx, "first")
	s.p.expects("ECHO first")
	if s.when == nothingRead {
		synctest.Wait()
		f()
	}
	var other func() Reply
	if s.when <= nothingRead {
		other = <-happened
		synctest.Wait()
	}
	s.p.says(value("first") + ">1\r\n+x\r\n")
	go s.p.serve(answers{}.to)
	s.judge(first())
	if s.when == returned {
		f()
	}
	if s.when > nothingRead {
		other = <-happened
	}
	s.after(other)
}

// arm has f happen at the mishap's moment, if that is one of a call of the caller's.
func (s *mishap) arm(f func()) {
	switch b := s.c.bridges[0]; s.when {
	case beingWritten:
		s.at[inWrite].Store(&f)
	case replyBeingRead:
		s.at[inRead].Store(&f)
	case replyRead:
		b.mu.Lock()
		b.cur.owner = &hooked{connOwner: b.cur.owner, then: f}
		b.mu.Unlock()
	}
}

// happens has it happen, and returns the result of the other command, if there is one.
func (s *mishap) happens(cancel func()) (other func() Reply) {
	synctest.Wait()
	if s.others == 1 {
		other = s.echo(background, "other")
		synctest.Wait()
	}
	s.happen(s.solo, cancel)
	synctest.Wait()
	if s.others == 2 {
		other = s.echo(background, "other")
		synctest.Wait()
	}
	return other
}

// judge looks at what became of the command.
func (s *mishap) judge(got Reply) {
	s.Helper()
	text, err := got.Text()
	switch {
	case s.ends != "" && s.when <= nothingRead:
		if err == nil || !strings.Contains(err.Error(), s.ends) || !MaybeExecuted(err) {
			s.Errorf("at moment %d, others %d: %q, %v", s.when, s.others, text, err)
		}
	case text != "first" || err != nil:
		s.Errorf("at moment %d, others %d: %q, %v", s.when, s.others, text, err)
	}
}

// after looks at what became of the other command, and of the client.
func (s *mishap) after(other func() Reply) {
	s.Helper()
	if other != nil {
		text, err := other().Text()
		fails := s.closed || s.cut || s.ends == "timeout" && s.others == 1
		if err == nil && text != "other" || err != nil && !fails {
			s.Errorf("at moment %d, others %d: the other command: %q, %v", s.when, s.others, text, err)
		}
	}
	if s.closed {
		return
	}
	time.Sleep(nobodyReads + 1)
	if text, err := s.c.Do(background, "ECHO", "next").Text(); text != "next" || err != nil {
		s.Errorf("at moment %d, others %d: the next command: %q, %v", s.when, s.others, text, err)
	}
	time.Sleep(time.Second)
	s.rest()
	if st := s.c.Stats(); st.Conns != 1 || st.Reconnects > 0 != s.cut {
		s.Errorf("at moment %d, others %d: %+v", s.when, s.others, st)
	}
}

// Two callers and what becomes of the first, in every order: its reply comes in two pieces, others come with contexts of their own, a push
// comes between replies, the first one's context ends. Whatever comes first, each gets its own reply, or left.
func TestEveryOrderOfEventsWhileACallerReads(t *testing.T) {
	t.Parallel()
	orders, settled := 0, []bool{true, false} // whether each is seen to its end before the next
	permute([]string{"one half", "the other", "a second", "a third", "end"}, func(order []string) {
		if slices.Index(order, "one half") > slices.Index(order, "the other") {
			return
		}
		orders++
		for _, settle := range settled {
			bubble(t, func(t *testing.T) { plays(newSolo(t, Options{}), order, settle) })
		}
	})
	if orders != 60 {
		t.Errorf("%d orders", orders)
	}
}

// permute calls f with every order of all.
func permute(all []string, f func([]string)) {
	var order []string
	var next func()
	next = func() {
		if len(order) == len(all) {
			f(order)
			return
		}
		for _, s := range all {
			if !slices.Contains(order, s) {
				order = append(order, s)
				next()
				order = order[:len(order)-1]
			}
		}
	}
	next()
}

// plays has events follow each other while a caller reads.
func plays(l *solo, order []string, settle bool) {
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	another, stop := context.WithCancel(background)
	defer stop()
	l.warm(ctx)
	first := l.reading(ctx, "first")
	half, others := len(value("first"))/2, map[string]func() Reply{}
	var behind []string // those given behind it, in the order in which they were written
	for _, event := range order {
		switch event {
		case "one half":
			l.p.says(value("first")[:half])
		case "the other":
			l.p.says(value("first")[half:] + ">1\r\n+x\r\n")
		case "end":
			cancel()
		default:
			others[event] = l.echo(map[string]context.Context{"a second": background, "a third": another}[event], event)
			if settle {
				l.p.expects("ECHO " + event)
				behind = append(behind, event)
			}
		}
		if settle {
			synctest.Wait()
		}
	}
	for len(behind) < 2 {
		behind = append(behind, strings.TrimPrefix(l.p.command(), "ECHO "))
	}
	l.p.says(value(behind...))
	text, err := first().Text()
	left := settle && slices.Index(order, "end") < slices.Index(order, "the other")
	if (left || text != "first" || err != nil) && (!errors.Is(err, context.Canceled) || !MaybeExecuted(err) || settle && !left) {
		l.Errorf("%q, seen to its end: %v: %q, %v", order, settle, text, err)
	}
	for key, got := range others {
		l.gets(got, key)
	}
	l.warm(background)
	l.rest()
}

// --- handoffs ---

// A caller reads on the old connection from the announcement on until its reply comes, or its context ends: while the replacement is
// dialled, in the hold, or when the old connection lingers. What is given meanwhile gets its reply, and the old connection is closed when
// nobody waits on it.
func TestAHandoffWhileACallerReads(t *testing.T) {
	for _, until := range []struct {
		after time.Duration
		phase Phase
	}{{5 * time.Second, PhasePreparing}, {10*time.Second + 20*time.Millisecond, PhaseHolding}, {20 * time.Second, PhaseDone}} {
		for _, leaves := range []bool{false, true} {
			bubble(t, func(t *testing.T) { newSolo(t, Options{Timeout: -1}).handsOff(until.after, until.phase, leaves) })
		}
	}
}

// handsOff has the replacement come after 10 s.
func (l *solo) handsOff(after time.Duration, phase Phase, leaves bool) {
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	l.warm(ctx)
	got, old, began := l.reading(ctx, "old"), l.p, time.Now()
	old.moving(1, 30, addrB)
	next := later(func() *peer {
		p := l.s.acceptAt(addrB)
		time.Sleep(time.Until(began.Add(10 * time.Second)))
		p.handshake()
		return p
	})
	time.Sleep(after)
	other := l.echo(background, "other") // to the old one, held, or to the new one
	synctest.Wait()
	if now := l.phase(); now != phase {
		l.Errorf("after %v it is %v, want %v", after, now, phase)
	}
	if leaves {
		cancel()
		if err := got().Err(); !errors.Is(err, context.Canceled) || !MaybeExecuted(err) || time.Since(began) != after {
			l.Errorf("%v: %v after %v", phase, err, time.Since(began))
		}
	}
	old.says(value("old"))
	if !leaves {
		l.gets(got, "old")
	}
	closed := later(func() bool { old.serve(answers{}.to); return true })
	l.p = next()
	go l.p.serve(answers{}.to)
	l.gets(other, "other")
	closed()
	synctest.Wait()
	if s := l.c.Stats(); s.Handoffs != 1 || s.Conns != 1 || s.Reconnects != 0 {
		l.Errorf("%v, leaves: %v: %+v", phase, leaves, s)
	}
	l.rest()
}

func (l *solo) phase() Phase {
	b := l.c.bridges[0]
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hand.phase
}

// A connection that is replaced while nobody reads from it is closed all the same, at once.
func TestAConnectionIsReplacedWhileNobodyReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		for range 3 {
			old := l.p
			go l.c.Renew(background)
			l.p = l.s.accept()
			l.readBy(byNobody, "while the replacement is dialled")
			l.p.handshake()
			if l.readBy(byReader, "after the promotion"); l.c.Stats().Conns != 1 || old.command() != "" {
				t.Errorf("%+v", l.c.Stats())
			}
			l.warm(background)
			l.gets(l.answered(l.reading(background, "k"), "k"), "k")
		}
		if s := l.c.Stats(); s.Handoffs != 3 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// In a hold, what the caller reads ends it: the work that was held goes to the replacement that very instant.
func TestACallerWhoReadsEndsTheHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		got, old := l.reading(background, "k"), l.p
		go l.c.Renew(background)
		l.p = l.s.accept()
		l.p.handshake()
		synctest.Wait()
		held := l.echo(background, "held")
		l.readBy(byCaller, "in the hold")
		start := time.Now()
		old.says(value("k"))
		l.gets(got, "k")
		l.answers("held")
		if l.gets(held, "held"); time.Since(start) > 0 || l.c.Stats().Held != 1 {
			t.Errorf("after %v: %+v", time.Since(start), l.c.Stats())
		}
		l.rest()
	})
}

// --- faulty connections ---

// faulty is a socket that can be made to fail.
type faulty struct {
	net.Conn
	broken  atomic.Bool   // no write is accepted any more
	closing chan struct{} // Close waits for it, if it is not nil
	timeout error         // of SetReadDeadline
}

func (f *faulty) SyscallConn() (syscall.RawConn, error) { return nil, syscall.ENOTSUP }

func (f *faulty) Write(b []byte) (int, error) {
	if f.broken.Load() {
		return 0, syscall.ENOBUFS
	}
	return f.Conn.Write(b)
}

func (f *faulty) Close() error {
	if f.closing != nil {
		<-f.closing
	}
	return f.Conn.Close()
}

func (f *faulty) SetReadDeadline(t time.Time) error {
	if f.timeout != nil {
		return f.timeout
	}
	return f.Conn.SetReadDeadline(t)
}

// newFaulty is a solo whose first connection is f.
func newFaulty(t *testing.T, o Options, f *faulty) *solo {
	l, made := &solo{T: t, s: newScript(t), j: &journal{}}, false
	o.OnEvent = l.j.add
	o.Dialer = through(l.s.dial, func(nc net.Conn) net.Conn {
		if made {
			return &addressed{nc, addrA}
		}
		f.Conn, made = nc, true
		return f
	})
	l.c, l.p = l.s.connect(o)
	return l
}

// A caller whose own write fails does not wait for the connection that failed it: its command goes to the next, and it returns with that.
func TestACallerWhoseWriteFailsReturnsWithTheNextConnectionsReply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &faulty{}
		l := newFaulty(t, Options{}, f)
		l.warm(background)
		f.broken.Store(true)
		start := time.Now()
		got := l.echo(background, "k")
		l.p = l.s.accept()
		l.p.handshake()
		l.answers("k")
		if l.gets(got, "k"); time.Since(start) > 0 {
			t.Errorf("after %v", time.Since(start))
		}
		time.Sleep(2 * time.Second)
		l.rest()
	})
}

// The write of another fails while a caller reads: that goes to the next connection, and the caller's reply, if it comes within a second, to
// the caller.
func TestAWriteFailsWhileACallerReads(t *testing.T) {
	for _, comes := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			f := &faulty{}
			l := newFaulty(t, Options{}, f)
			l.warm(background)
			first, old, start := l.reading(background, "first"), l.p, time.Now()
			f.broken.Store(true)
			second := l.echo(background, "second")
			l.p = l.s.accept()
			l.p.handshake()
			l.answers("second")
			if l.gets(second, "second"); time.Since(start) > 0 {
				t.Errorf("the second command returned after %v", time.Since(start))
			}
			if comes {
				time.Sleep(900 * time.Millisecond)
				old.says(value("first"))
				l.gets(first, "first")
			} else if err := first().Err(); !errors.Is(err, syscall.ENOBUFS) || !MaybeExecuted(err) || time.Since(start) != time.Second {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			time.Sleep(2 * time.Second)
			l.rest()
		})
	}
}

func TestACloseThatBlocksHoldsUpNoCallerWhoReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		block := make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(block) })
		l := newFaulty(t, Options{}, &faulty{closing: block})
		l.warm(background)
		got, start := l.reading(background, "k"), time.Now()
		l.c.Close()
		if err := got().Err(); !errors.Is(err, ErrClosed) || !MaybeExecuted(err) || time.Since(start) > 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		time.Sleep(2 * time.Hour)
	})
}

// What looks like a socket and has no deadlines cannot be read by callers: nothing would make them leave.
func TestASocketWithoutDeadlinesIsReadByTheReader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newFaulty(t, Options{Timeout: time.Second}, &faulty{timeout: errors.New("deadline not supported")})
		for range 3 * asideFrom {
			l.ask(background, "k")
			l.readBy(byReader, "without deadlines")
		}
		ctx, cancel := context.WithTimeout(background, time.Millisecond)
		defer cancel()
		if err := l.c.Do(ctx, "ECHO", "k").Err(); !errors.Is(err, context.DeadlineExceeded) || !MaybeExecuted(err) {
			t.Error(err)
		}
	})
}

// --- pushes to a reader who was called back ---

// What comes to an idle connection is read at once, and does not have the reader stand aside: for a push it never does.
func TestAPushHasTheReaderStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{KeepAlive: -1})
		l.gets(l.answered(l.reading(background, "k"), "k"), "k")
		l.rest()
		for range 3 {
			l.p.says(oddPushes)
			l.readBy(byReader, "after pushes")
			time.Sleep(time.Minute)
		}
		l.ask(background, "late")
		big := strings.Repeat("x", 1<<20)
		got := l.echo(background, "k")
		l.p.expects("ECHO k")
		for piece := range slices.Chunk([]byte(value(big)), 64<<10) {
			l.p.says(string(piece))
			l.readBy(byReader, "between pieces of a reply")
		}
		l.gets(got, big)
	})
}

// --- TLS ---

// records is the server's end of a TLS connection, whose writes can be kept back in part.
type records struct {
	net.Conn
	pass    int // how many bytes of the next write go through, if it is not negative
	waiting []byte
}

func (r *records) Write(b []byte) (int, error) {
	if r.pass < 0 {
		return r.Conn.Write(b)
	}
	n := min(r.pass, len(b))
	r.waiting = append(r.waiting, b[n:]...)
	if n == 0 {
		return len(b), nil
	}
	_, err := r.Conn.Write(b[:n])
	return len(b), err
}

// release lets the rest through.
func (r *records) release() {
	r.pass = -1
	r.Conn.Write(r.waiting)
	r.waiting = nil
}

// A caller leaves in the middle of a TLS record; the reader and the next caller go on in its middle.
func TestACallerLeavesInTheMiddleOfATLSRecord(t *testing.T) {
	certificate, pool := batontest.SelfSigned("db")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		bubble(t, func(t *testing.T) {
			l, r := newTLS(t, certificate, &tls.Config{RootCAs: pool, ServerName: "db", MaxVersion: version})
			for cut := range 60 {
				ctx, cancel := context.WithCancel(background)
				l.warm(ctx)
				got, start := l.reading(ctx, "left"), time.Now()
				r.pass = cut
				l.p.says(value("left"))
				synctest.Wait()
				cancel()
				if text, err := got().Text(); time.Since(start) > 0 || err != nil && (!errors.Is(err, context.Canceled) || !MaybeExecuted(err)) || err == nil && len(r.waiting) > 0 {
					t.Fatalf("%d bytes of the record had come: %q, %v after %v", cut, text, err, time.Since(start))
				}
				next := l.echo(background, "next")
				l.p.expects("ECHO next")
				synctest.Wait()
				r.release()
				l.gets(l.answered(next, "next"), "next")
			}
			if l.rest(); l.c.Stats().Reconnects != 0 {
				t.Errorf("%+v", l.c.Stats())
			}
		})
	}
}

// newTLS is a solo over TLS, and what is below the server's end of it.
func newTLS(t *testing.T, certificate tls.Certificate, conf *tls.Config) (*solo, *records) {
	l := &solo{T: t, s: newScript(t), j: &journal{}}
	dialled := later(func() *Client {
		return dialOptions(t, Options{Addr: addrA, Dialer: l.s.dial, TLS: conf, OnEvent: l.j.add})
	})
	l.p = l.s.accept()
	r := &records{Conn: l.p.Conn, pass: -1}
	l.p.Conn = tls.Server(r, &tls.Config{Certificates: []tls.Certificate{certificate}})
	l.p.r.Reset(l.p.Conn)
	l.p.handshake()
	l.c = dialled()
	l.warm(background)
	return l, r
}

// --- blocking commands and sessions ---

// dedicated is the solo's only dedicated bridge.
func (l *solo) dedicated() *bridge {
	l.Helper()
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	for b := range l.c.dedicated {
		return b
	}
	l.Fatal("there is no dedicated bridge")
	return nil
}

// blocked is a BLPOP in flight on the dedicated connection p whose caller reads for it.
func (l *solo) blocked(ctx context.Context, p *peer, seconds string) (popped func() Reply) {
	l.Helper()
	pop := func() func() Reply {
		popped := later(func() Reply { return l.c.Do(ctx, "BLPOP", "k", seconds) })
		if *p == (peer{}) {
			*p = *l.s.accept()
			p.handshake()
		}
		p.expects("BLPOP k " + seconds)
		synctest.Wait()
		return popped
	}
	for range asideFrom + 3 {
		popped := pop()
		p.says("*2\r\n" + value("k", "v"))
		if err := popped().Err(); err != nil {
			l.Fatal(err)
		}
		synctest.Wait()
	}
	popped = pop()
	if got := roleOf(l.T, l.dedicated()); got != byCaller {
		l.Fatalf("%s reads for BLPOP, want its caller", readers[got])
	}
	return popped
}

// The caller of a blocking command reads for it, and leaves at once as any other; the connection is closed then.
func TestTheCallerOfABlockingCommandReads(t *testing.T) {
	for _, way := range []struct {
		name string
		want error
		end  func(l *solo, p *peer, cancel func())
		took time.Duration
	}{
		{"answered", nil, func(_ *solo, p *peer, _ func()) { time.Sleep(5 * time.Second); p.says("*2\r\n" + value("k", "v")) }, 5 * time.Second},
		{"null in time", nil, func(_ *solo, p *peer, _ func()) { time.Sleep(10 * time.Second); p.says("_\r\n") }, 10 * time.Second},
		{"cancelled", context.Canceled, func(_ *solo, _ *peer, cancel func()) { time.Sleep(time.Second); cancel() }, time.Second},
		{"cancelled in the middle", context.Canceled, func(_ *solo, p *peer, cancel func()) { p.says("*2\r\n$1"); time.Sleep(time.Second); cancel() }, time.Second},
		{"its time is over", ErrTimeout, func(*solo, *peer, func()) { time.Sleep(11125 * time.Millisecond) }, 11125 * time.Millisecond},
		{"Close", ErrClosed, func(l *solo, _ *peer, _ func()) { time.Sleep(time.Second); l.c.Close() }, time.Second},
		{"the end", io.EOF, func(_ *solo, p *peer, _ func()) { time.Sleep(time.Second); p.Close() }, time.Second},
	} {
		t.Run(way.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l, p := newSolo(t, Options{Timeout: time.Second}), &peer{}
				ctx, cancel := context.WithCancel(background)
				defer cancel()
				popped, start := l.blocked(ctx, p, "10"), time.Now()
				way.end(l, p, cancel)
				err := popped().Err()
				if !errors.Is(err, way.want) || MaybeExecuted(err) != (way.want != nil) || time.Since(start) > way.took {
					t.Errorf("%v after %v", err, time.Since(start))
				}
				if way.want != nil && way.want != io.EOF && !p.hungUp() {
					t.Error("the connection is open after its caller has left")
				}
			})
		})
	}
}

// A session's caller reads for itself as any other. What the server announces reaches the session while nobody reads; Close ends what is
// being read for.
func TestASessionsCallerReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{})
		opened := later(func() *Session {
			session, err := l.c.Session(background)
			if err != nil {
				t.Error(err)
			}
			return session
		})
		p := l.s.accept()
		p.handshake()
		p.expects("PING")
		p.says("+PONG\r\n")
		session := opened()
		ask := func() func() Reply {
			got := later(func() Reply { return session.Do(background, "GET", "k") })
			p.expects("GET k")
			synctest.Wait()
			return got
		}
		for range asideFrom + 3 {
			got := ask()
			p.says(value("v"))
			l.gets(got, "v")
			synctest.Wait()
		}
		if got := roleOf(t, session.b); got != byNobody {
			t.Fatalf("%s reads on the session", readers[got])
		}
		p.moving(1, 10, addrB)
		time.Sleep(nobodyReads)
		synctest.Wait()
		select {
		case <-session.Moving():
		default:
			t.Error("the session was not told")
		}
		for range asideFrom + 1 {
			got := ask()
			p.says(value("v"))
			l.gets(got, "v")
			synctest.Wait()
		}
		got, start := ask(), time.Now()
		session.Close()
		if err := got().Err(); !errors.Is(err, ErrClosed) || !MaybeExecuted(err) || time.Since(start) > 0 || !p.hungUp() {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// --- the time ---

// A PING that falls due while nobody reads is written and its reply read as ever.
func TestKeepAliveWhileNobodyReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{KeepAlive: nobodyReads / 2, Timeout: time.Second})
		for range 3 {
			start := time.Now()
			l.gets(l.answered(l.reading(background, "k"), "k"), "k")
			l.p.expects("PING")
			if took := time.Since(start); took < nobodyReads/2 || took > nobodyReads {
				t.Errorf("PING after %v", took)
			}
			l.readBy(byReader, "behind a PING")
			l.p.says("+PONG\r\n")
			l.readBy(byReader, "after a PONG")
			l.warm(background)
		}
		l.p.expects("PING") // one that is not answered is silence
		start := time.Now()
		l.p = l.s.accept()
		l.p.handshake()
		if took := time.Since(start); took < 2*time.Second-nobodyReads || took > 2500*time.Millisecond || l.j.count(EventLost) != 1 {
			t.Errorf("redialled after %v: %+v", took, l.j.events)
		}
	})
}

// A server that falls silent while a caller reads: the caller leaves in its time, and the connection is given up in its own.
func TestSilenceWhileACallerReads(t *testing.T) {
	for _, sent := range []string{"", "$4\r\nsi"} {
		bubble(t, func(t *testing.T) {
			l := newSolo(t, Options{Timeout: 800 * time.Millisecond})
			got, start := l.reading(background, "silence"), time.Now()
			l.p.says(sent)
			if err := got().Err(); !errors.Is(err, ErrTimeout) || !MaybeExecuted(err) || time.Since(start) > 900*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			l.p = l.s.accept()
			l.p.handshake()
			if took := time.Since(start); took < 1600*time.Millisecond || took > 1700*time.Millisecond {
				t.Errorf("given up after %v", took)
			}
			l.warm(background)
			l.gets(l.answered(l.reading(background, "k"), "k"), "k")
		})
	}
}

// --- bounds, and the end ---

func TestMaxInFlightWhileACallerReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newSolo(t, Options{MaxInFlight: 1})
		for range 20 {
			first := l.reading(background, "first")
			second := l.echo(background, "second")
			synctest.Wait()
			third := l.echo(background, "third")
			if synctest.Wait(); l.c.Stats().Backlog != 2 || l.p.r.Buffered() > 0 {
				t.Fatalf("%+v", l.c.Stats())
			}
			l.gets(l.answered(first, "first"), "first")
			l.answers("second")
			l.gets(second, "second")
			l.answers("third")
			l.gets(third, "third")
			l.warm(background)
		}
		l.rest()
	})
}

func TestShutdownWhileACallerReads(t *testing.T) {
	for name, f := range map[string]func(l *solo){
		"it waits for the reply": func(l *solo) {
			got := l.reading(background, "k")
			over := later(func() error { return l.c.Shutdown(background) })
			time.Sleep(time.Second)
			if err := l.c.Do(background, "ECHO", "late").Err(); !errors.Is(err, ErrClosed) || MaybeExecuted(err) {
				l.Error(err)
			}
			l.readBy(byCaller, "while Shutdown waits")
			l.gets(l.answered(got, "k"), "k")
			if err := over(); err != nil {
				l.Error(err)
			}
		},
		"its context ends": func(l *solo) {
			got := l.reading(background, "k")
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			start := time.Now()
			if err := l.c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				l.Error(err)
			}
			if err := got().Err(); !errors.Is(err, ErrClosed) || !MaybeExecuted(err) || time.Since(start) != time.Second {
				l.Errorf("%v after %v", err, time.Since(start))
			}
		},
		"nobody reads": func(l *solo) {
			start := time.Now()
			if err := l.c.Shutdown(background); err != nil || time.Since(start) > 0 {
				l.Errorf("%v after %v", err, time.Since(start))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newSolo(t, Options{})
				if f(l); !l.p.hungUp() {
					t.Error("the connection is open after Shutdown")
				}
			})
		})
	}
}

// --- whatever comes ---

// Few callers, with pauses, contexts that end and ones that do not, and a server that answers in pieces, pushes in between, moves, and at
// times ends the connection: everyone gets its own reply or leaves in time, and the client comes to rest.
func TestTheRoleInRandomOrders(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		bubble(t, func(t *testing.T) {
			w := &weather{T: t, s: newScript(t), seed: seed, cuts: seed%2 == 1}
			w.s.attend(w.serves)
			w.c = dialOptions(t, Options{Addr: addrA, Dialer: w.s.dial, Timeout: 300 * time.Millisecond, MaxInFlight: 1 + int(seed%3)*100})
			var callers sync.WaitGroup
			for i := range 1 + int(seed%4) {
				callers.Go(func() { w.calls(rand.New(rand.NewPCG(seed, uint64(i)))) })
			}
			callers.Wait()
			w.comesToRest()
		})
	}
}

// weather is a client that has to do with a server of that kind.
type weather struct {
	*testing.T
	s        *script
	c        *Client
	seed     uint64
	cuts     bool // connections are ended
	peers    atomic.Uint64
	seq      atomic.Int64
	byCaller atomic.Int64 // commands whose callers read for them
	replies  atomic.Int64
}

// calls is one caller, who has phases of haste.
func (w *weather) calls(random *rand.Rand) {
	known, cancel := context.WithCancel(background)
	defer cancel()
	for i := range 400 {
		ctx, stop := known, context.CancelFunc(func() {})
		switch random.IntN(40) {
		case 0:
			ctx, stop = context.WithTimeout(background, time.Duration(random.IntN(3000))*time.Microsecond)
		case 1:
			ctx, stop = context.WithCancel(background)
			time.AfterFunc(time.Duration(random.IntN(3000))*time.Microsecond, stop)
		case 2, 3, 4, 5, 6, 7, 8:
			ctx = background
		}
		w.call(ctx, fmt.Sprint(random.Uint64()))
		stop()
		if i/50%3 == 2 {
			time.Sleep(time.Duration(random.IntN(int(30 * time.Millisecond))))
		}
	}
}

// call is one command, of which nothing else than its own reply or the end of its time is good.
func (w *weather) call(ctx context.Context, key string) {
	start := time.Now()
	end, ends := ctx.Deadline()
	text, err := w.c.Do(ctx, "ECHO", key).Text()
	switch {
	case err == nil && text == key:
		w.replies.Add(1)
	case err == nil:
		w.Errorf("seed %d: ECHO %s: %q", w.seed, key, text)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		if ends && time.Since(end) > 0 && time.Since(start) > 0 {
			w.Errorf("seed %d: it left %v after its context had ended", w.seed, time.Since(end))
		}
	case !w.cuts || !MaybeExecuted(err):
		w.Errorf("seed %d: ECHO %s: %v", w.seed, key, err)
	}
}

// serves is the server on one connection.
func (w *weather) serves(p *peer) {
	random := rand.New(rand.NewPCG(w.seed, 1000+w.peers.Add(1)))
	p.handshake()
	for command := p.command(); command != ""; command = p.command() {
		if roleOf(w.T, w.c.bridges[0]) == byCaller {
			w.byCaller.Add(1)
		}
		raw := value(strings.TrimPrefix(command, "ECHO "))
		if command == "PING" {
			raw = "+PONG\r\n"
		}
		switch random.IntN(60) {
		case 0:
			raw = oddPushes + raw
		case 1, 2:
			raw += ">1\r\n+x\r\n"
		case 3:
			raw += fmt.Sprintf(">4\r\n+MOVING\r\n:%d\r\n:1\r\n$%d\r\n%s\r\n", w.seq.Add(1), len(addrB), addrB)
		case 4:
			if w.cuts && random.IntN(3) == 0 {
				p.says(raw[:random.IntN(len(raw))])
				p.Close()
				return
			}
		}
		w.says(p, raw, random)
	}
}

// says says raw in pieces, and takes its time now and then.
func (w *weather) says(p *peer, raw string, random *rand.Rand) {
	for raw != "" {
		n := len(raw)
		if random.IntN(4) == 0 {
			n = 1 + random.IntN(n)
		}
		p.says(raw[:n])
		if raw = raw[n:]; random.IntN(4) == 0 {
			time.Sleep(time.Duration(random.IntN(int(2 * time.Millisecond))))
		}
	}
}

// comesToRest looks at what is left when nobody calls any more.
func (w *weather) comesToRest() {
	time.Sleep(time.Minute)
	synctest.Wait()
	if text, err := w.c.Do(background, "ECHO", "last").Text(); text != "last" || err != nil {
		w.Errorf("seed %d: %q, %v", w.seed, text, err)
	}
	time.Sleep(time.Second)
	synctest.Wait()
	if got := roleOf(w.T, w.c.bridges[0]); got != byReader {
		w.Errorf("seed %d: %s reads at rest", w.seed, readers[got])
	}
	if s := w.c.Stats(); s.InFlight != 0 || s.Backlog != 0 || s.Conns != 1 || s.Handoffs == 0 || !w.cuts && s.Reconnects != 0 {
		w.Errorf("seed %d: %+v", w.seed, s)
	}
	if callers, all := w.byCaller.Load(), w.replies.Load(); callers < all/100 || callers > all*99/100 {
		w.Errorf("seed %d: of %d commands %d were read for by their callers: the test shows little", w.seed, all, callers)
	}
}

// --- real sockets ---

// One caller, sometimes two, on a socket of every kind: whoever reads, the replies are right, contexts are obeyed, and nothing is left.
func TestTheRoleOnRealSockets(t *testing.T) {
	certificate, pool := batontest.SelfSigned("127.0.0.1")
	for name, c := range map[string]struct {
		server []batontest.Option
		o      Options
	}{
		"TCP":                   {nil, Options{}},
		"TCP, in small pieces":  {[]batontest.Option{batontest.Chunk(7)}, Options{}},
		"TLS":                   {[]batontest.Option{batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})}, Options{TLS: &tls.Config{RootCAs: pool}}},
		"TLS, in small pieces":  {[]batontest.Option{batontest.Chunk(50), batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})}, Options{TLS: &tls.Config{RootCAs: pool}}},
		"a unix socket":         {[]batontest.Option{batontest.Unix(filepath.Join(t.TempDir(), "s"))}, Options{Network: "unix"}},
		"TCP, two connections":  {nil, Options{Conns: 2}},
		"TCP, one in flight":    {nil, Options{MaxInFlight: 1}},
		"TCP, the server moves": {nil, Options{Maintenance: Maintenance{Mode: Enabled}}},
	} {
		leavesNothing(t, func(t *testing.T) {
			s := batontest.NewServer(c.server...)
			defer s.Close()
			c.o.Addr = s.Addr()
			client, err := Dial(background, c.o)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			defer client.Close()
			var callers sync.WaitGroup
			rounds := 2500
			if c.o.Maintenance.Mode == Enabled {
				rounds = 10000
				callers.Go(func() { movesOn(t, s) })
			}
			for i := range 2 {
				callers.Go(func() { talks(t, name, client, uint64(i), rounds>>(2*i)) })
			}
			callers.Wait()
			eventually(t, name+": nothing is in flight", func() bool { return client.Stats().InFlight == 0 })
			if st := client.Stats(); st.Reconnects != 0 || st.TimedOut != 0 || c.o.Maintenance.Mode == Enabled && st.Handoffs == 0 {
				t.Errorf("%s: %+v", name, st)
			}
		})
	}
}

// movesOn has the server announce successors, and be one after the other.
func movesOn(t *testing.T, s *batontest.Server) {
	for range 3 {
		next := s.Sibling()
		t.Cleanup(next.Close)
		s.Move(next.Addr(), time.Second)
		time.Sleep(150 * time.Millisecond)
		s = next
	}
}

// talks is one caller in haste, whose contexts end at any moment; the second one has pauses.
func talks(t *testing.T, name string, client *Client, i uint64, rounds int) {
	random := rand.New(rand.NewPCG(i, 7))
	left := 0
	for n := 0; n < rounds; {
		known, cancel := context.WithCancel(background)
		for range random.IntN(60) {
			key := fmt.Sprint(name, i, n)
			if n++; random.IntN(40) == 0 { // it ends at any moment of one of the next commands
				time.AfterFunc(time.Duration(random.IntN(500))*time.Microsecond, cancel)
			}
			text, err := client.Do(known, "ECHO", key).Text()
			if errors.Is(err, context.Canceled) {
				left++
				break
			}
			if err != nil || text != key {
				t.Errorf("%s: ECHO %s: %q, %v", name, key, text, err)
			}
			if i > 0 && n%20 == 0 {
				time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
			}
		}
		cancel()
	}
	if left == 0 {
		t.Errorf("%s: no context ended in time", name)
	}
}

// What a caller who reads for itself may allocate: on a socket, with contexts of every kind, with notifications on, before a handoff and
// right after it. The server allocates nothing.
func TestACallerWhoReadsAllocatesNoMore(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector has pools drop what they hold")
	}
	dst := make([]byte, 0, 128)
	for _, call := range []struct {
		name string
		most float64
		do   func(ctx context.Context, c *Client) error
		request,
		answer string
	}{
		{"GET", 1, func(ctx context.Context, c *Client) error { return c.Do(ctx, "GET", "key").Err() }, string(command("GET", "key")), bulk(64)},
		{"SET", 0, func(ctx context.Context, c *Client) error { return c.Do(ctx, "SET", "key", "v").Err() }, string(command("SET", "key", "v")), "+OK\r\n"},
		{"DoAppend", 0, func(ctx context.Context, c *Client) error {
			_, err := c.DoAppend(ctx, dst, "GET", "key")
			return err
		}, string(command("GET", "key")), bulk(64)},
	} {
		t.Run(call.name, func(t *testing.T) {
			l := listens(t, len(call.request), call.answer)
			client, err := Dial(background, Options{Addr: l.Addr().String(), Timeout: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			allocates(t, client, "at first", call.most, call.do)
			if err := client.Renew(background); err != nil {
				t.Fatal(err)
			}
			allocates(t, client, "after a handoff", call.most, call.do)
		})
	}
}

// listens is a server that shakes hands and then says the same to each request of so many bytes.
func listens(t *testing.T, request int, answer string) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for nc, err := l.Accept(); err == nil; nc, err = l.Accept() {
			p := &peer{Conn: nc, t: t, r: bufio.NewReader(nc)}
			go func() {
				defer p.Close()
				p.handshake()
				p.canned(request, []byte(answer))
			}()
		}
	}()
	return l
}

// allocates measures a call by a lone caller with contexts of every kind, and that such a caller reads for itself.
func allocates(t *testing.T, c *Client, when string, most float64, do func(context.Context, *Client) error) {
	unchecked(c)
	eachContext(func(name string, ctx context.Context) {
		alone := false
		run := func() {
			if err := do(ctx, c); err != nil {
				t.Fatal(err)
			}
			alone = alone || roleOf(t, c.bridges[0]) == byNobody
		}
		for range 100 {
			run()
		}
		if got := testing.AllocsPerRun(500, run); got > most || !alone {
			t.Errorf("%s, with a context that is %s: %v allocations, want %v at most; its caller reads: %v", when, name, got, most, alone)
		}
	})
}
