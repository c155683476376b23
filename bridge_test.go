package baton

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
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

	"example.com/baton/batontest"
)

// --- help ---

// all are the events so far.
func (j *journal) all() []Event {
	synctest.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events)
}

// sub runs a subtest in a bubble of its own.
func sub(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, f) })
}

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(background, d)
}

// async gives a command and returns when the bridge has it, in a bubble. Its reply comes on the channel.
func async(c *Client, args ...any) <-chan Reply { return asyncIn(background, c, args...) }

func asyncIn(ctx context.Context, c *Client, args ...any) <-chan Reply {
	ch := make(chan Reply, 1)
	go func() { ch <- c.Do(ctx, args...) }()
	synctest.Wait()
	return ch
}

// reply is what came on ch within an hour.
func reply(t *testing.T, ch <-chan Reply) Reply {
	t.Helper()
	select {
	case r := <-ch:
		return r
	case <-time.After(time.Hour):
		t.Fatal("a command was not answered within an hour")
		return Reply{}
	}
}

func answered(t *testing.T, ch <-chan Reply, want string) {
	t.Helper()
	if got, err := reply(t, ch).Text(); err != nil || got != want {
		t.Errorf("the reply is %q, %v, want %q", got, err, want)
	}
}

// pending says that nothing has come on ch yet.
func pending(t *testing.T, what string, ch <-chan Reply) {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-ch:
		t.Errorf("%s ended too early, with %v, %v", what, r.Kind(), r.Err())
	default:
	}
}

// failedWith says that ch brings an error that is target, and whether the command may have been executed.
func failedWith(t *testing.T, what string, ch <-chan Reply, target error, maybe bool) {
	t.Helper()
	err := reply(t, ch).Err()
	if err == nil || target != nil && !errors.Is(err, target) || MaybeExecuted(err) != maybe {
		t.Errorf("%s: error %v (maybe executed: %v), want %v (%v)", what, err, MaybeExecuted(err), target, maybe)
	}
}

// echo answers each command with itself, at once, and each PING, until the client has gone.
func (p *peer) echo() {
	for command := p.command(); command != ""; command = p.command() {
		if command == "PING" {
			command = "PONG"
		}
		p.says("$" + strconv.Itoa(len(command)) + "\r\n" + command + "\r\n")
	}
}

// hungUp says whether the client has closed the connection by now, whatever it wrote before.
func (p *peer) hungUp() bool {
	synctest.Wait()
	p.SetReadDeadline(time.Now().Add(time.Millisecond))
	defer p.SetReadDeadline(time.Time{})
	_, err := io.Copy(io.Discard, p.r)
	return err == nil || !errors.Is(err, os.ErrDeadlineExceeded)
}

// reset ends the connection abruptly.
func (p *peer) reset() { p.Conn.(interface{ Reset() }).Reset() }

const (
	addrA = "10.9.0.1:6379"
	addrB = "10.9.0.2:6379"
	addrC = "10.9.0.3:6379"
)

// acceptAt is the next connection, which must be to addr.
func (s *script) acceptAt(addr string) *peer {
	s.t.Helper()
	p := s.accept()
	if p.addr != addr {
		s.t.Fatalf("the client dialled %s, want %s", p.addr, addr)
	}
	return p
}

// readyAt is the next connection, which must be to addr, shaken hands with and in the client's hands.
func (s *script) readyAt(addr string) *peer {
	s.t.Helper()
	p := s.acceptAt(addr)
	p.handshake()
	synctest.Wait()
	return p
}

// textOf is a reply's text, or its error's.
func textOf(r Reply) string {
	text, err := r.Text()
	if err != nil {
		return err.Error()
	}
	return text
}

// phaseOf is where the client's first bridge stands.
func phaseOf(c *Client) Phase {
	c.bridges[0].mu.Lock()
	defer c.bridges[0].mu.Unlock()
	return c.bridges[0].hand.phase
}

func inPhase(t *testing.T, c *Client, want Phase) {
	t.Helper()
	synctest.Wait()
	if got := phaseOf(c); got != want {
		t.Fatalf("the bridge is %v, want %v", got, want)
	}
}

// ledger records what servers carry out: the arguments of every ECHO, by how often, and their order.
type ledger struct {
	mu    sync.Mutex
	times map[string]int
	order []string
	at    []string // the name of the server, for each of order
}

func newLedger() *ledger { return &ledger{times: map[string]int{}} }

// of is the option with which a server writes into the ledger.
func (l *ledger) of(name string) batontest.Option {
	return batontest.OnCommand(func(_ int, args []string) {
		if len(args) != 2 || !strings.EqualFold(args[0], "ECHO") {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.times[args[1]]++
		l.order, l.at = append(l.order, args[1]), append(l.at, name)
	})
}

func (l *ledger) count(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times[id]
}

// dialBook notes every dial of a client.
type dialBook struct {
	mu    sync.Mutex
	addrs []string
	at    []time.Time
}

func (d *dialBook) over(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.mu.Lock()
		d.addrs, d.at = append(d.addrs, addr), append(d.at, time.Now())
		d.mu.Unlock()
		return dial(ctx, network, addr)
	}
}

// to are the addresses dialled so far, and when says when they were.
func (d *dialBook) to() []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.addrs)
}

func (d *dialBook) when() []time.Time {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.at)
}

func (d *dialBook) count(addr string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.addrs {
		if a == addr {
			n++
		}
	}
	return n
}

// stage is the usual scene: a client of a, which has a sibling b, and everything written down.
type stage struct {
	t      *testing.T
	a, b   *batontest.Server
	c      *Client
	j      *journal
	dials  *dialBook
	ledger *ledger
}

// newStage sets the scene, with options that the test may have changed by change, and more options for both servers.
func newStage(t *testing.T, change func(*Options), more ...batontest.Option) *stage {
	t.Helper()
	s := &stage{t: t, j: &journal{}, dials: &dialBook{}, ledger: newLedger()}
	s.a = memoryServer(t, append(more, s.ledger.of("a"))...)
	s.b = s.a.Sibling(s.ledger.of("b"))
	t.Cleanup(s.b.Close)
	o := Options{Addr: s.a.Addr(), Dialer: s.a.Dial, OnEvent: s.j.add}
	if change != nil {
		change(&o)
	}
	o.Dialer = s.dials.over(o.Dialer)
	s.c = dialOptions(t, o)
	synctest.Wait()
	return s
}

// move announces b for seconds, as a's next number.
func (s *stage) move(seconds int) { s.a.Move(s.b.Addr(), time.Duration(seconds)*time.Second) }

// serves says that commands are answered now, at the given server.
func (s *stage) serves(server *batontest.Server) {
	s.t.Helper()
	before := server.Executed("ECHO")
	if got, err := s.c.Do(background, "ECHO", "are you there").Text(); err != nil || got != "are you there" {
		s.t.Errorf("a command after it all: %q, %v", got, err)
	}
	if server.Executed("ECHO") != before+1 {
		s.t.Errorf("a command went elsewhere than to %s", server.Addr())
	}
}

// nothingFailed stops a load, and says that all its commands were answered and executed exactly once.
func (s *stage) nothingFailed(stop func() (int, []error)) {
	s.t.Helper()
	done, failed := stop()
	if len(failed) > 0 {
		s.t.Errorf("%d of %d commands failed, the first with %v", len(failed), done+len(failed), failed[0])
	}
	if n := s.a.Executed("INCR") + s.b.Executed("INCR"); n != done {
		s.t.Errorf("%d INCRs succeeded and %d were executed", done, n)
	}
	if done == 0 {
		s.t.Error("there was no load")
	}
}

// errStat looks for what Stats must never be after everything went well.
func (s *stage) statsAreClean() {
	s.t.Helper()
	if st := s.c.Stats(); st.Failed != 0 || st.TimedOut != 0 || st.InFlight != 0 || st.Backlog != 0 || st.Sent != st.Answered {
		s.t.Errorf("stats after it all: %+v", st)
	}
}

// --- the contract, line by line ---

func TestContract1NoCommandFails(t *testing.T) {
	t.Parallel()
	for _, conns := range []int{1, 4} {
		for _, window := range []int{1, 5, 15} {
			sub(t, fmt.Sprintf("under load, conns=%d window=%ds", conns, window), func(t *testing.T) {
				s := newStage(t, func(o *Options) { o.Conns = conns })
				stop := load(t, s.c, 16, 8*time.Millisecond)
				time.Sleep(50 * time.Millisecond)
				s.move(window)
				time.Sleep(time.Duration(window)*time.Second + 2*time.Second)
				s.nothingFailed(stop)
				s.statsAreClean()
				s.serves(s.b)
				if n := s.dials.count(s.b.Addr()); n != conns {
					t.Errorf("%d dials of the successor for %d bridges", n, conns)
				}
				if got := s.c.Stats().Handoffs; got != uint64(conns) {
					t.Errorf("%d handoffs for %d bridges", got, conns)
				}
				if s.a.Conns() != 0 || s.b.Conns() != conns {
					t.Errorf("%d connections to the old server and %d to the new one", s.a.Conns(), s.b.Conns())
				}
			})
		}
	}
	sub(t, "batches", func(t *testing.T) {
		s := newStage(t, nil)
		s.a.Delay("ECHO", 3*time.Millisecond)
		var wg sync.WaitGroup
		end := time.Now().Add(3 * time.Second)
		for w := range 8 {
			wg.Go(func() {
				for i := 0; time.Now().Before(end); i++ {
					var b Batch
					for k := range 20 {
						b.Add("ECHO", fmt.Sprintf("%d:%d:%d", w, i, k))
					}
					replies, err := s.c.DoBatch(background, &b)
					if err != nil || len(replies) != 20 {
						t.Errorf("batch %d of worker %d: %d replies, %v", i, w, len(replies), err)
						return
					}
					for k, r := range replies {
						if got, _ := r.Text(); got != fmt.Sprintf("%d:%d:%d", w, i, k) {
							t.Errorf("batch %d of worker %d: reply %d is %q", i, w, k, got)
						}
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(time.Second)
		s.move(1)
		wg.Wait()
		for id, n := range s.ledger.times {
			if n != 1 {
				t.Errorf("%s was executed %d times", id, n)
			}
		}
		if s.c.Stats().Handoffs != 1 {
			t.Error("there was no handoff")
		}
	})
	sub(t, "what was written is answered by the connection it was written to", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		first, second := async(c, "GET", "1"), async(c, "GET", "2")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		third := async(c, "GET", "3")
		a.expects("GET 1", "GET 2")
		a.says("+one\r\n")
		answered(t, first, "one")
		a.says("+two\r\n")
		answered(t, second, "two")
		b.expects("GET 3")
		b.says("+three\r\n")
		answered(t, third, "three")
		if !a.hungUp() {
			t.Error("the old connection is empty, and open")
		}
	})
	sub(t, "what was not written goes to the replacement", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute})
		// The peer reads nothing, so that 256 KiB fit into the socket and the write of the third command sticks half-way.
		big := strings.Repeat("x", 100<<10)
		var got []<-chan Reply
		for i := range 6 {
			got = append(got, async(c, "SET", strconv.Itoa(i), big))
		}
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		time.Sleep(time.Second) // the hold is over
		inPhase(t, c, PhaseDone)
		go b.echo()
		for i := 3; i < 6; i++ {
			if text, err := reply(t, got[i]).Text(); err != nil || !strings.HasPrefix(text, "SET "+strconv.Itoa(i)) {
				t.Errorf("command %d, which was not written: %.20q, %v", i, text, err)
			}
		}
		pending(t, "a command that is half-way written", got[2])
		a.expects("SET 0 " + big)
		a.says("+zero\r\n")
		answered(t, got[0], "zero")
		a.reset()
		failedWith(t, "in flight at the cut", got[1], nil, true)
		failedWith(t, "written in part", got[2], nil, true)
	})
	sub(t, "what had not begun to be written at the cut goes to the replacement", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute})
		big := strings.Repeat("x", 100<<10)
		var got []<-chan Reply
		for i := range 6 {
			got = append(got, async(c, "SET", strconv.Itoa(i), big))
		}
		a.moving(1, 10, addrB)
		b := s.acceptAt(addrB)
		a.reset() // before the handshake
		b.handshake()
		go b.echo()
		for i := range 3 {
			failedWith(t, "in flight at the cut", got[i], nil, true)
		}
		for i := 3; i < 6; i++ {
			if text, err := reply(t, got[i]).Text(); err != nil || !strings.HasPrefix(text, "SET "+strconv.Itoa(i)) {
				t.Errorf("command %d, which was not written: %.20q, %v", i, text, err)
			}
		}
	})
	sub(t, "only what is in flight at the server's close fails", func(t *testing.T) {
		s := newStage(t, nil)
		s.a.Delay("GET", time.Minute)
		slow := async(s.c, "GET", "k")
		time.Sleep(time.Millisecond)
		s.a.Delay("GET", 0)
		s.move(2)
		time.Sleep(500 * time.Millisecond) // what is given now would stand behind it
		stop := load(t, s.c, 8, 5*time.Millisecond)
		time.Sleep(4 * time.Second)
		s.nothingFailed(stop)
		failedWith(t, "the command that outlasted the window", slow, nil, true)
		if st := s.c.Stats(); st.Failed != 1 || st.LastHandoff.Cut != 1 {
			t.Errorf("one command was cut, and stats say failed %d, cut %d", st.Failed, st.LastHandoff.Cut)
		}
	})
	sub(t, "its own context ends it", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		ctx, cancel := context.WithCancel(background)
		written := asyncIn(ctx, c, "GET", "1")
		a.moving(1, 10, addrB)
		s.readyAt(addrB)
		held := asyncIn(ctx, c, "GET", "2")
		inPhase(t, c, PhaseHolding)
		cancel()
		failedWith(t, "a command in flight", written, context.Canceled, true)
		failedWith(t, "a held command", held, context.Canceled, false)
		a.expects("GET 1")
		pendingPeer(t, a)
	})
}

// pendingPeer says that nothing more has been written to p.
func pendingPeer(t *testing.T, p *peer) {
	t.Helper()
	p.SetReadDeadline(time.Now().Add(time.Millisecond))
	defer p.SetReadDeadline(time.Time{})
	if b, err := p.r.Peek(1); err == nil {
		t.Errorf("the client wrote %q…", b)
	}
}

// TestContract2NothingExecutedTwice cuts connections at every moment around a handoff. Each command is unique, and
// what the servers carried out is compared with what its caller was told.
func TestContract2NothingExecutedTwice(t *testing.T) {
	cuts := map[string]func(s *stage){
		"old":         func(s *stage) { s.a.Cut() },
		"replacement": func(s *stage) { s.b.Cut() },
		"both":        func(s *stage) { s.a.Cut(); s.b.Cut() },
		"none":        func(*stage) {},
	}
	for name, cut := range cuts {
		t.Run("cut "+name, func(t *testing.T) {
			for at := time.Duration(0); at < 110*time.Millisecond; at += 3700 * time.Microsecond {
				bubble(t, func(t *testing.T) {
					s := newStage(t, nil)
					s.a.Delay("ECHO", 7*time.Millisecond)
					s.b.Delay("ECHO", 3*time.Millisecond)
					stop := uniqueLoad(t, s.c, s.ledger, 6)
					time.Sleep(20 * time.Millisecond)
					s.move(1) // the jitter is up to 100 ms
					time.Sleep(at)
					cut(s)
					time.Sleep(300 * time.Millisecond)
					stop(name == "none")
				})
			}
		})
	}
	sub(t, "no byte is written a second time", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute})
		big := strings.Repeat("x", 300<<10)
		first := async(c, "SET", "k", big) // sticks in the middle of its write
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		time.Sleep(time.Second)
		a.reset()
		failedWith(t, "the command", first, nil, true)
		pendingPeer(t, b)
	})
}

// uniqueLoad keeps workers busy with commands of which each is sent once. stop checks every one of them against the ledger:
// answered means right and executed once, maybe executed means at most once, and every other error means not at all.
func uniqueLoad(t *testing.T, c *Client, l *ledger, workers int) (stop func(noneFails bool)) {
	var (
		wg    sync.WaitGroup
		over  atomic.Bool
		mu    sync.Mutex
		done  = map[string]error{}
		right = map[string]bool{}
	)
	for w := range workers {
		wg.Go(func() {
			for i := 0; !over.Load(); i++ {
				id := fmt.Sprintf("%d:%d", w, i)
				got, err := c.Do(background, "ECHO", id).Text()
				mu.Lock()
				done[id], right[id] = err, err != nil || got == id
				mu.Unlock()
				time.Sleep(time.Millisecond)
			}
		})
	}
	return func(noneFails bool) {
		over.Store(true)
		wg.Wait()
		synctest.Wait()
		for id, err := range done {
			n := l.count(id)
			switch {
			case !right[id]:
				t.Errorf("%s was answered with another's reply", id)
			case err == nil && n != 1, err != nil && MaybeExecuted(err) && n > 1, err != nil && !MaybeExecuted(err) && n != 0:
				t.Errorf("%s was executed %d times, and its error is %v", id, n, err)
			case err != nil && noneFails:
				t.Errorf("%s failed with %v", id, err)
			}
		}
	}
}

func TestContract3NobodyReadsAnothersReply(t *testing.T) {
	for seed := range uint64(10) {
		sub(t, fmt.Sprintf("callers leave at random, seed=%d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			s := newStage(t, func(o *Options) { o.Conns = 1 + int(seed%3) })
			s.a.Delay("ECHO", 2*time.Millisecond)
			s.b.Delay("ECHO", time.Millisecond)
			var wg sync.WaitGroup
			end := time.Now().Add(time.Second)
			for w := range 16 {
				patience := time.Duration(1+r.IntN(40)) * time.Millisecond
				wg.Go(func() {
					var b Batch
					dst := make([]byte, 0, 64)
					for i := 0; time.Now().Before(end); i++ {
						id := fmt.Sprintf("%d:%d", w, i)
						ctx, cancel := contextFor(patience)
						switch i % 3 {
						case 0:
							if got, err := s.c.Do(ctx, "ECHO", id).Text(); err == nil && got != id {
								t.Errorf("%s got %q", id, got)
							}
						case 1:
							got, err := s.c.DoAppend(ctx, dst, "ECHO", id)
							if err == nil && string(got) != id || err != nil && len(got) != 0 {
								t.Errorf("%s got %q, %v", id, got, err)
							}
						case 2:
							b.Reset()
							b.Add("ECHO", id+"a")
							b.Add("ECHO", id+"b")
							replies, err := s.c.DoBatch(ctx, &b)
							if err == nil && (textOf(replies[0]) != id+"a" || textOf(replies[1]) != id+"b") {
								t.Errorf("%s got %v", id, replies)
							}
						}
						cancel()
						time.Sleep(time.Millisecond)
					}
				})
			}
			time.Sleep(200 * time.Millisecond)
			s.move(1)
			wg.Wait()
			if s.c.Stats().Handoffs == 0 {
				t.Error("there was no handoff")
			}
		})
	}
	sub(t, "the reply of a caller who left comes on the old connection", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		ctx, cancel := context.WithCancel(background)
		left := asyncIn(ctx, c, "GET", "1")
		stayed := async(c, "GET", "2")
		cancel()
		failedWith(t, "the caller who left", left, context.Canceled, true)
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		held := async(c, "GET", "3")
		inPhase(t, c, PhaseHolding)
		a.says("+one\r\n+two\r\n")
		answered(t, stayed, "two")
		b.expects("GET 3")
		b.says("+three\r\n")
		answered(t, held, "three")
	})
	sub(t, "a reply that no command asked for ends the connection it came on", func(t *testing.T) {
		for _, phase := range []Phase{PhasePreparing, PhaseHolding} {
			s := newScript(t)
			c, a := s.connect(Options{})
			inFlight := async(c, "GET", "1")
			a.moving(1, 10, addrB)
			b := s.acceptAt(addrB)
			if phase == PhaseHolding {
				b.handshake()
			}
			inPhase(t, c, phase)
			a.says("+one\r\n+stray\r\n")
			answered(t, inFlight, "one")
			synctest.Wait()
			if phase == PhasePreparing {
				b.handshake()
				synctest.Wait()
			}
			got := async(c, "GET", "2")
			b.expects("GET 2")
			b.says("+two\r\n")
			answered(t, got, "two")
			if !a.hungUp() {
				t.Error("the connection with a stray reply is still open")
			}
		}
	})
	sub(t, "a reply on the replacement while work is held", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		inFlight := async(c, "GET", "1")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		held := async(c, "GET", "2")
		inPhase(t, c, PhaseHolding)
		b.says("+stray\r\n")
		inPhase(t, c, PhasePreparing)
		a.expects("GET 1", "GET 2")
		a.says("+one\r\n+two\r\n")
		answered(t, inFlight, "one")
		answered(t, held, "two")
	})
}

// TestContract4Order gives numbered commands one by one and has the servers write down the order in which they come.
func TestContract4Order(t *testing.T) {
	inOrder := func(t *testing.T, l *ledger, n int) {
		t.Helper()
		if len(l.order) != n {
			t.Fatalf("%d commands were executed, want %d", len(l.order), n)
		}
		for i, id := range l.order {
			if id != strconv.Itoa(i) {
				t.Fatalf("command %s was executed as number %d", id, i)
			}
		}
		if !slices.IsSorted(l.at) || l.at[0] != "a" || l.at[n-1] != "b" {
			t.Fatal("the commands did not go from a to b")
		}
	}
	for _, delay := range []time.Duration{time.Microsecond, 2 * time.Millisecond, 30 * time.Millisecond} {
		sub(t, fmt.Sprintf("one connection, replies after %v", delay), func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.Dialer = slow(o.Dialer, delay) })
			var got []<-chan Reply
			for i := range 1000 {
				if i == 50 {
					s.move(1)
				}
				got = append(got, async(s.c, "ECHO", strconv.Itoa(i)))
				if i%3 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			for i, ch := range got {
				answered(t, ch, strconv.Itoa(i))
			}
			inOrder(t, s.ledger, 1000)
			if delay > time.Millisecond && s.c.Stats().Held == 0 {
				t.Error("nothing was held, so this shows nothing")
			}
		})
	}
	sub(t, "batches and single commands", func(t *testing.T) {
		s := newStage(t, nil)
		s.a.Delay("ECHO", 200*time.Microsecond)
		s.move(1)
		n := 0
		var wg sync.WaitGroup
		for i := range 150 {
			var b Batch
			for range 1 + i%4 {
				b.Add("ECHO", n)
				n++
			}
			wg.Go(func() {
				if _, err := s.c.DoBatch(background, &b); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		inOrder(t, s.ledger, n)
	})
	sub(t, "what was not written stays in front of what was held", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute})
		big := strings.Repeat("x", 100<<10)
		for i := range 6 {
			async(c, "SET", strconv.Itoa(i), big) // three of them fill the socket
		}
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		for i := 6; i < 9; i++ {
			async(c, "SET", strconv.Itoa(i), "held")
		}
		inPhase(t, c, PhaseHolding)
		time.Sleep(time.Second)
		for i := 3; i < 6; i++ {
			b.expects("SET " + strconv.Itoa(i) + " " + big)
		}
		b.expects("SET 6 held", "SET 7 held", "SET 8 held")
	})
	sub(t, "a replacement that dies leaves the order as it was", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		async(c, "GET", "0")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		for i := 1; i < 4; i++ {
			async(c, "GET", strconv.Itoa(i))
		}
		inPhase(t, c, PhaseHolding)
		b.Close()
		inPhase(t, c, PhasePreparing)
		async(c, "GET", "4")
		a.expects("GET 0", "GET 1", "GET 2", "GET 3", "GET 4")
	})
	sub(t, "one caller is never overtaken by itself", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Conns, o.Maintenance.HoldCap = 3, -1 })
		s.a.Delay("ECHO", 4*time.Millisecond)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 150 {
					if err := s.c.Do(background, "ECHO", fmt.Sprintf("%d:%03d", w, i)).Err(); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		s.move(1)
		wg.Wait()
		for w := range 8 {
			mine := slices.DeleteFunc(slices.Clone(s.ledger.order), func(id string) bool { return !strings.HasPrefix(id, strconv.Itoa(w)+":") })
			if len(mine) != 150 || !slices.IsSorted(mine) {
				t.Errorf("the %d commands of caller %d were executed out of order", len(mine), w)
			}
		}
	})
}

// TestContract5PauseIsOneRoundTrip measures, in virtual time, how long new work waits.
func TestContract5PauseIsOneRoundTrip(t *testing.T) {
	const rtt = 4 * time.Millisecond
	// longest runs f under a load of ECHOs and returns how long the slowest of them took.
	longest := func(s *stage, f func()) time.Duration {
		var wg sync.WaitGroup
		var most atomic.Int64
		over := make(chan struct{})
		for w := range 24 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-over:
						return
					default:
					}
					start := time.Now()
					if err := s.c.Do(background, "ECHO", fmt.Sprint(w, i)).Err(); err != nil {
						s.t.Error(err)
					}
					for took := int64(time.Since(start)); ; {
						if old := most.Load(); old >= took || most.CompareAndSwap(old, took) {
							break
						}
					}
					time.Sleep(time.Duration(w) * time.Millisecond) // the first pauses not at all: something is always in flight
				}
			})
		}
		f()
		close(over)
		wg.Wait()
		return time.Duration(most.Load())
	}
	sub(t, "under load", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Dialer = slow(o.Dialer, rtt) })
		before := longest(s, func() { time.Sleep(time.Second) })
		during := longest(s, func() { s.move(5); time.Sleep(4 * time.Second) })
		h := s.c.Stats().LastHandoff
		if h.Promoted.IsZero() || h.Holding.IsZero() {
			t.Fatalf("there was no hold: %+v", h)
		}
		if h.HeldMax > rtt+time.Millisecond || during > before+rtt+time.Millisecond {
			t.Errorf("held for %v, the slowest command took %v and %v before; a round trip takes %v", h.HeldMax, during, before, rtt)
		}
	})
	sub(t, "only while a replacement is ready", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Dialer = slow(o.Dialer, rtt) })
		s.b.Stall(true)
		before := longest(s, func() { time.Sleep(time.Second) })
		during := longest(s, func() { s.move(5); time.Sleep(4 * time.Second) })
		if during > before {
			t.Errorf("while the successor stalls a command takes %v, before %v", during, before)
		}
		if n := s.c.Stats().Held; n != 0 {
			t.Errorf("%d commands were held", n)
		}
	})
	caps := []struct {
		option, want time.Duration
	}{{0, 50 * time.Millisecond}, {20 * time.Millisecond, 20 * time.Millisecond}, {3 * time.Second, 3 * time.Second}, {-1, 0}}
	for _, c := range caps {
		sub(t, fmt.Sprintf("HoldCap %v ends it", c.option), func(t *testing.T) {
			s := newScript(t)
			client, a := s.connect(Options{Maintenance: Maintenance{HoldCap: c.option}})
			slow := async(client, "GET", "slow")
			a.moving(1, 1, addrB) // a window that is shorter than one of the caps
			b := s.readyAt(addrB)
			start := time.Now()
			held := async(client, "GET", "held")
			b.expects("GET held")
			if took := time.Since(start); took != c.want {
				t.Errorf("held for %v, want %v", took, c.want)
			}
			b.says("+value\r\n")
			answered(t, held, "value")
			a.says("+at last\r\n")
			answered(t, slow, "at last")
			h := client.Stats().LastHandoff
			if h.HeldMax != c.want || (h.Held == 1) != (c.want > 0) || h.Holding.IsZero() != (c.want == 0) || h.Lingered != 1 {
				t.Errorf("the timeline says %+v", h)
			}
		})
	}
	sub(t, "a straggler that answers ends a long hold", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Maintenance: Maintenance{HoldCap: time.Hour}})
		slow := async(c, "GET", "slow")
		a.moving(1, 1, addrB)
		b := s.readyAt(addrB)
		start := time.Now()
		async(c, "GET", "held")
		time.Sleep(3 * time.Second) // the window is over, and it changes nothing
		inPhase(t, c, PhaseHolding)
		a.says("+at last\r\n")
		b.expects("GET held")
		answered(t, slow, "at last")
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("held for %v", took)
		}
	})
	sub(t, "an idle bridge is promoted at once", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		a.moving(1, 10, addrB)
		s.readyAt(addrB)
		inPhase(t, c, PhaseDone)
		if !a.hungUp() {
			t.Error("the old connection is still open")
		}
		if h := c.Stats().LastHandoff; !h.Holding.IsZero() || h.Promoted != h.Ready || h.Held != 0 {
			t.Errorf("the timeline says %+v", h)
		}
	})
	sub(t, "replacements that die share one budget", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute})
		async(c, "GET", "slow")
		a.moving(1, 60, addrB)
		var heldFor time.Duration
		for range 5 {
			b := s.readyAt(addrB)
			inPhase(t, c, PhaseHolding)
			start := time.Now()
			time.Sleep(9 * time.Millisecond)
			b.reset()
			inPhase(t, c, PhasePreparing)
			heldFor += time.Since(start)
		}
		b := s.readyAt(addrB)
		start := time.Now()
		async(c, "GET", "held")
		b.expects("GET held")
		if heldFor += time.Since(start); heldFor != 50*time.Millisecond {
			t.Errorf("held for %v in all, want 50ms", heldFor)
		}
	})
	sub(t, "callers who left end it too", func(t *testing.T) {
		// The reply of a caller who left still counts as in flight: it has a place in line.
		s := newScript(t)
		c, a := s.connect(Options{})
		ctx, cancel := context.WithCancel(background)
		asyncIn(ctx, c, "GET", "left")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		cancel()
		inPhase(t, c, PhaseHolding)
		held := async(c, "GET", "held")
		a.says("+late\r\n")
		inPhase(t, c, PhaseDone)
		b.expects("GET held")
		b.says("+value\r\n")
		answered(t, held, "value")
	})
}

// slow is a dialler of connections on which everything takes half of rtt in each direction.
func slow(dial func(context.Context, string, string) (net.Conn, error), rtt time.Duration) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		far, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		near, mine := batontest.Pipe()
		carry := func(to, from net.Conn) {
			type piece struct {
				b  []byte
				at time.Time
			}
			pieces := make(chan piece, 1024)
			go func() {
				buf := make([]byte, 16<<10)
				for {
					n, err := from.Read(buf)
					if n > 0 {
						pieces <- piece{slices.Clone(buf[:n]), time.Now().Add(rtt / 2)}
					}
					if err != nil {
						close(pieces)
						return
					}
				}
			}()
			for p := range pieces {
				time.Sleep(time.Until(p.at))
				if _, err := to.Write(p.b); err != nil {
					from.Close()
				}
			}
			to.Close()
		}
		go carry(far, mine)
		go carry(mine, far)
		return &addressed{near, addr}, nil
	}
}

func TestContract6StragglersFinish(t *testing.T) {
	sub(t, "commands and a batch", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, Timeout: time.Minute})
		one := async(c, "GET", "1")
		var batch Batch
		batch.Add("GET", "2")
		batch.Add("GET", "3")
		replies := make(chan []Reply, 1)
		go func() {
			r, err := c.DoBatch(background, &batch)
			if err != nil {
				t.Errorf("the batch: %v", err)
			}
			replies <- r
		}()
		synctest.Wait()
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		go b.echo()
		a.says("+one\r\n+two\r\n") // the batch is answered in part when the hold ends
		answered(t, one, "one")
		answered(t, async(c, "GET", "4"), "GET 4")
		for range 30 { // seconds: long after the window
			time.Sleep(time.Second)
			answered(t, async(c, "GET", "5"), "GET 5")
		}
		if a.hungUp() {
			t.Fatal("the old connection was closed under a straggler")
		}
		if n := j.count(EventOldClosed); n != 0 {
			t.Errorf("%d events say that it is closed", n)
		}
		a.says("+three\r\n")
		r := <-replies
		if len(r) != 2 || textOf(r[0]) != "two" || textOf(r[1]) != "three" {
			t.Errorf("the batch got %v", r)
		}
		if !a.hungUp() {
			t.Error("nobody waits on the old connection, and it is open")
		}
		h := c.Stats().LastHandoff
		if h.Cut != 0 || h.Closed.Sub(h.Promoted) < 30*time.Second || h.Lingered != 1 {
			t.Errorf("the timeline says %+v", h)
		}
		if e := j.of(EventOldClosed); len(e) != 1 || e[0].Addr != addrA {
			t.Errorf("events: %v", e)
		}
	})
	sub(t, "nothing new is written to it", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{KeepAlive: time.Second, Timeout: time.Hour})
		async(c, "GET", "1")
		a.expects("GET 1")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		go b.echo()
		for range 60 {
			time.Sleep(time.Second)
			answered(t, async(c, "GET", "2"), "GET 2")
		}
		pendingPeer(t, a)
	})
	sub(t, "a straggler times out by itself, and its reply is dropped", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Second, Maintenance: Maintenance{RelaxedTimeout: -1}})
		one, two := async(c, "GET", "1"), async(c, "GET", "2")
		a.moving(1, 10, addrB)
		s.readyAt(addrB)
		failedWith(t, "the first straggler", one, ErrTimeout, true)
		failedWith(t, "the second straggler", two, ErrTimeout, true)
		a.says("+late\r\n+later\r\n")
		if !a.hungUp() {
			t.Error("nobody waits on the old connection, and it is open")
		}
	})
	sub(t, "stragglers of several handoffs", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute})
		one := async(c, "GET", "1")
		a.moving(1, 2, addrB)
		b := s.readyAt(addrB)
		time.Sleep(time.Second)
		two := async(c, "GET", "2")
		b.moving(2, 2, addrC)
		d := s.readyAt(addrC)
		time.Sleep(time.Second)
		three := async(c, "GET", "3")
		a.says("+one\r\n")
		b.says("+two\r\n")
		d.says("+three\r\n")
		answered(t, one, "one")
		answered(t, two, "two")
		answered(t, three, "three")
		if !a.hungUp() || !b.hungUp() || d.hungUp() {
			t.Error("the old connections are open, or the new one is not")
		}
	})
}

// TestContract7HeldWorkDoesNotTimeOut has relaxation off and timeouts that are shorter than the hold.
func TestContract7HeldWorkDoesNotTimeOut(t *testing.T) {
	options := func() Options {
		return Options{Timeout: 100 * time.Millisecond, Maintenance: Maintenance{RelaxedTimeout: -1, HoldCap: time.Second}}
	}
	// holding is a client that holds because of a command that is not answered.
	holding := func(t *testing.T) (*script, *Client, *peer, *peer) {
		s := newScript(t)
		c, a := s.connect(options())
		async(c, "GET", "slow")
		a.moving(1, 10, addrB)
		over := make(chan struct{})
		go func() { // it is slow, not dead
			for range 250 {
				select {
				case <-over:
					return
				case <-time.After(40 * time.Millisecond):
					a.says(">1\r\n+alive\r\n")
				}
			}
		}()
		t.Cleanup(func() { close(over) })
		b := s.readyAt(addrB)
		inPhase(t, c, PhaseHolding)
		return s, c, a, b
	}
	sub(t, "and its clock starts anew at the promotion", func(t *testing.T) {
		_, c, _, b := holding(t)
		first := async(c, "GET", "1")
		time.Sleep(990 * time.Millisecond) // the slow command's second is not over: it was given at once, and this later
		second := async(c, "GET", "2")
		pending(t, "a held command", first)
		b.expects("GET 1", "GET 2")
		time.Sleep(90 * time.Millisecond)
		pending(t, "a command whose clock began at the promotion", first)
		b.says("+one\r\n")
		answered(t, first, "one")
		start := time.Now()
		failedWith(t, "a command that is not answered after the hold either", second, ErrTimeout, true)
		if took := time.Since(start); took > 30*time.Millisecond {
			t.Errorf("it timed out %v late", took)
		}
	})
	sub(t, "its context ends it at once", func(t *testing.T) {
		_, c, _, b := holding(t)
		ctx, cancel := contextFor(300 * time.Millisecond)
		defer cancel()
		start := time.Now()
		failedWith(t, "a held command", asyncIn(ctx, c, "GET", "1"), context.DeadlineExceeded, false)
		if took := time.Since(start); took != 300*time.Millisecond {
			t.Errorf("it ended after %v", took)
		}
		ctx2, cancel2 := context.WithCancel(background)
		held, other := asyncIn(ctx2, c, "GET", "2"), async(c, "GET", "3")
		cancel2()
		synctest.Wait()
		failedWith(t, "a held command", held, context.Canceled, false)
		b.expects("GET 3")
		b.says("+three\r\n")
		answered(t, other, "three")
	})
	sub(t, "when the replacement dies and it flows to the old connection", func(t *testing.T) {
		_, c, a, b := holding(t)
		a.expects("GET slow")
		held := async(c, "GET", "1")
		time.Sleep(500 * time.Millisecond)
		b.reset()
		a.expects("GET 1")
		time.Sleep(50 * time.Millisecond)
		a.says("+slow\r\n+one\r\n")
		answered(t, held, "one")
	})
	sub(t, "when the old connection dies", func(t *testing.T) {
		_, c, a, b := holding(t)
		held := async(c, "GET", "1")
		time.Sleep(500 * time.Millisecond)
		a.reset()
		b.expects("GET 1")
		time.Sleep(50 * time.Millisecond)
		b.says("+one\r\n")
		answered(t, held, "one")
	})
	sub(t, "while a handoff is in force and there is no connection", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(options())
		a.moving(1, 10, addrB)
		synctest.Wait()
		a.reset()
		waiting := async(c, "GET", "1")
		b := s.acceptAt(addrB)
		time.Sleep(2 * time.Second) // a slow handshake, within DialTimeout
		b.handshake()
		b.expects("GET 1")
		time.Sleep(50 * time.Millisecond)
		b.says("+one\r\n")
		answered(t, waiting, "one")
	})
	sub(t, "but not for ever without a connection", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(options())
		a.moving(1, 3600, addrB)
		synctest.Wait()
		s.mu.Lock()
		s.fail = func(string) error { return syscall.ECONNREFUSED }
		s.mu.Unlock()
		a.reset()
		start := time.Now()
		failedWith(t, "the command", async(c, "GET", "1"), ErrTimeout, false)
		if took := time.Since(start); took < 35*time.Second || took > 37*time.Second {
			t.Errorf("it waited %v, want the longest window and a dial: 35s", took)
		}
	})
	sub(t, "work that was never held keeps its timeout", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(options())
		a.moving(1, 10, addrB)
		start := time.Now()
		failedWith(t, "a command on the old connection", async(c, "GET", "1"), ErrTimeout, true)
		if took := time.Since(start); took > 120*time.Millisecond {
			t.Errorf("it waited %v", took)
		}
	})
}

func TestContract8FailFastIsForRealFailures(t *testing.T) {
	failFast := Options{Backlog: FailFast}
	sub(t, "a handoff under load", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Backlog = FailFast })
		s.a.Delay("INCR", 2*time.Millisecond)
		stop := load(t, s.c, 16, time.Millisecond)
		time.Sleep(50 * time.Millisecond)
		s.move(2)
		time.Sleep(5 * time.Second)
		s.nothingFailed(stop)
		s.serves(s.b)
	})
	sub(t, "the current connection dies while the replacement is dialled", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(failFast)
		a.moving(1, 10, addrB)
		b := s.acceptAt(addrB)
		inFlight := async(c, "GET", "1")
		a.reset()
		failedWith(t, "in flight at the cut", inFlight, nil, true)
		waiting := async(c, "GET", "2")
		time.Sleep(time.Second)
		pending(t, "a command during a handoff", waiting)
		b.handshake()
		b.expects("GET 2")
		b.says("+two\r\n")
		answered(t, waiting, "two")
	})
	sub(t, "the current connection dies and the successor refuses for a while", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(failFast)
		var refuse atomic.Bool
		refuse.Store(true)
		s.mu.Lock()
		s.fail = func(string) error {
			if refuse.Load() {
				return syscall.ECONNREFUSED
			}
			return nil
		}
		s.mu.Unlock()
		a.moving(1, 10, addrB)
		synctest.Wait()
		a.reset()
		waiting := async(c, "GET", "1")
		time.Sleep(3 * time.Second)
		pending(t, "a command during a handoff", waiting)
		refuse.Store(false)
		b := s.readyAt(addrB)
		b.expects("GET 1")
		b.says("+one\r\n")
		answered(t, waiting, "one")
	})
	sub(t, "the handoff ends without a connection", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(failFast)
		s.mu.Lock()
		s.fail = func(string) error { return syscall.ECONNREFUSED }
		s.mu.Unlock()
		a.moving(1, 2, addrB)
		synctest.Wait()
		a.reset()
		start := time.Now()
		waiting := async(c, "GET", "1")
		failedWith(t, "a command when the handoff is given up", waiting, ErrNoConnection, false)
		if took := time.Since(start); took < 2*time.Second || took > 13*time.Second {
			t.Errorf("the handoff was given up after %v", took)
		}
		err := c.Do(background, "GET", "2").Err()
		if !errors.Is(err, ErrNoConnection) || !errors.Is(err, syscall.ECONNREFUSED) || MaybeExecuted(err) {
			t.Errorf("with no handoff and no connection a command fails with %v", err)
		}
	})
	sub(t, "without a handoff it fails fast", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(failFast)
		a.reset()
		synctest.Wait()
		failedWith(t, "a command", async(c, "GET", "1"), ErrNoConnection, false)
		b := s.acceptAt(addrA)
		failedWith(t, "a command while it is dialled", async(c, "GET", "2"), ErrNoConnection, false)
		b.handshake()
		synctest.Wait()
		go b.echo()
		answered(t, async(c, "GET", "3"), "GET 3")
	})
	sub(t, "what was queued when the connection ends without a handoff", func(t *testing.T) {
		s := newScript(t)
		o := failFast
		o.MaxInFlight = 1
		c, a := s.connect(o)
		written, waiting := async(c, "GET", "1"), async(c, "GET", "2")
		a.reset()
		failedWith(t, "written", written, nil, true)
		failedWith(t, "queued", waiting, ErrNoConnection, false)
	})
	sub(t, "held work, and the old connection dies", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(failFast)
		inFlight := async(c, "GET", "1")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		held := async(c, "GET", "2")
		inPhase(t, c, PhaseHolding)
		a.reset()
		failedWith(t, "in flight at the cut", inFlight, nil, true)
		b.expects("GET 2")
		b.says("+two\r\n")
		answered(t, held, "two")
	})
	sub(t, "held work, and both connections die", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(failFast)
		async(c, "GET", "1")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		held := async(c, "GET", "2")
		b.reset()
		a.reset()
		d := s.readyAt(addrB)
		go d.echo()
		// Either end may be noticed first: it was written to the old connection, or the new one was promoted and lost.
		if err := reply(t, held).Err(); err != nil && !MaybeExecuted(err) && !errors.Is(err, ErrNoConnection) {
			t.Errorf("the held command: %v", err)
		}
		answered(t, async(c, "GET", "3"), "GET 3")
	})
}

// TestContract9NotificationsDoNoHarm says everything that a hostile or confused server may, before, between and
// behind replies: nothing may fail, and nobody may be dialled whom there is no reason to dial.
func TestContract9NotificationsDoNoHarm(t *testing.T) {
	t.Parallel()
	harmless := map[string]string{
		"unknown type":               ">2\r\n$3\r\nfoo\r\n*1\r\n%1\r\n+a\r\n_\r\n",
		"invalidate":                 ">2\r\n$10\r\ninvalidate\r\n_\r\n",
		"pub/sub message":            ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
		"unsubscribe":                ">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
		"empty":                      ">0\r\n",
		"number for a name":          ">1\r\n:1\r\n",
		"null for a name":            ">1\r\n_\r\n",
		"error for a name":           ">2\r\n-MOVING x\r\n:1\r\n",
		"array for a name":           ">1\r\n*2\r\n+MOVING\r\n:1\r\n",
		"long name":                  ">1\r\n$3000\r\n" + strings.Repeat("M", 3000) + "\r\n",
		"MIGRATING with nothing":     ">1\r\n$9\r\nMIGRATING\r\n",
		"MIGRATING of rubbish":       ">4\r\n$9\r\nMIGRATING\r\n*1\r\n_\r\n%1\r\n+a\r\n+b\r\n#t\r\n",
		"MIGRATED with nothing":      ">1\r\n$8\r\nMIGRATED\r\n",
		"FAILED_OVER, nobody failed": ">2\r\n$11\r\nFAILED_OVER\r\n:1\r\n",
		"SMIGRATED of rubbish":       ">3\r\n$9\r\nSMIGRATED\r\n:19\r\n*3\r\n_\r\n*1\r\n:3\r\n*3\r\n:1\r\n:2\r\n_\r\n",
		"absurd time":                ">3\r\n$9\r\nMIGRATING\r\n:1\r\n:9223372036854775807\r\n",
		"attribute before it":        "|1\r\n+ttl\r\n:3600\r\n>2\r\n$8\r\nMIGRATED\r\n:1\r\n",
		"a thousand at once":         strings.Repeat(">3\r\n$9\r\nMIGRATING\r\n:1\r\n:15\r\n", 1000),
		"contradiction":              ">3\r\n$9\r\nMIGRATING\r\n:3\r\n:15\r\n>2\r\n$8\r\nMIGRATED\r\n:2\r\n>2\r\n$11\r\nFAILED_OVER\r\n:1\r\n",
	}
	for name, raw := range harmless {
		sub(t, name, func(t *testing.T) {
			s := newStage(t, nil)
			stop := load(t, s.c, 8, time.Millisecond)
			for range 20 {
				s.a.PushRaw([]byte(raw))
				time.Sleep(3 * time.Millisecond)
			}
			time.Sleep(time.Second)
			s.nothingFailed(stop)
			s.statsAreClean()
			if st := s.c.Stats(); len(s.dials.to()) != 1 || st.Handoffs+st.Reconnects != 0 || s.a.Conns() != 1 {
				t.Errorf("%d dials, stats %+v", len(s.dials.to()), st)
			}
		})
	}
	// MOVING in forms that name somebody who does not exist, or nobody: the client may dial, but it stays served.
	moves := map[string]string{
		"nobody there":         ">4\r\n$6\r\nMOVING\r\n:1\r\n:4\r\n$14\r\n10.8.8.8:12075\r\n",
		"IPv6, nobody there":   ">4\r\n$6\r\nMOVING\r\n:1\r\n:4\r\n$17\r\n2001:db8::5:12075\r\n",
		"rubbish":              ">4\r\n$6\r\nMOVING\r\n:1\r\n:4\r\n$16\r\n\x00\xff\r\n ../etc:22\r\n\r\n",
		"a very long name":     ">4\r\n$6\r\nMOVING\r\n:1\r\n:4\r\n$5004\r\n" + strings.Repeat("h", 5000) + ":111\r\n",
		"with nothing":         ">1\r\n$6\r\nMOVING\r\n",
		"of the wrong types":   ">4\r\n$6\r\nMOVING\r\n#t\r\n*0\r\n%1\r\n+a\r\n+b\r\n",
		"negative everything":  ">4\r\n$6\r\nMOVING\r\n:-5\r\n:-5\r\n$2\r\n:0\r\n",
		"again and again":      strings.Repeat(">4\r\n$6\r\nMOVING\r\n:1\r\n:4\r\n$14\r\n10.8.8.8:12075\r\n", 500),
		"older and older":      ">4\r\n$6\r\nMOVING\r\n:9\r\n:4\r\n$14\r\n10.8.8.8:12075\r\n>4\r\n$6\r\nMOVING\r\n:8\r\n:4\r\n$14\r\n10.8.8.9:12075\r\n",
		"in another direction": ">4\r\n$6\r\nMOVING\r\n:1\r\n:4\r\n$14\r\n10.8.8.8:12075\r\n>4\r\n$6\r\nMOVING\r\n:1\r\n:4\r\n$14\r\n10.8.8.9:12075\r\n",
	}
	for name, raw := range moves {
		sub(t, "MOVING, "+name, func(t *testing.T) {
			s := newStage(t, nil)
			s.a.Delay("INCR", time.Millisecond)
			stop := load(t, s.c, 4, 20*time.Millisecond)
			for range 5 {
				s.a.PushRaw([]byte(raw))
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(30 * time.Second)
			s.nothingFailed(stop)
			s.statsAreClean()
			s.serves(s.a)
			if n := len(s.dials.to()); n > 30 {
				t.Errorf("%d dials: %v", n, s.dials.to())
			}
			if slices.Contains(s.dials.to(), "10.8.8.9:12075") {
				t.Error("a copy, or an older announcement, was followed")
			}
		})
	}
	sub(t, "at every byte of a reply stream", func(t *testing.T) {
		// Replies with pushes in between, in segments of every size.
		stream := "+one\r\n" + moves["nobody there"] + harmless["unknown type"] + "$3\r\ntwo\r\n" + harmless["contradiction"] + "*1\r\n:3\r\n" + harmless["empty"]
		for size := 1; size <= len(stream); size += 1 + size/8 {
			s := newScript(t)
			c, a := s.connect(Options{})
			one, two, three := async(c, "GET", "1"), async(c, "GET", "2"), async(c, "GET", "3")
			for rest := stream; rest != ""; rest = rest[min(size, len(rest)):] {
				a.says(rest[:min(size, len(rest))])
				synctest.Wait()
			}
			answered(t, one, "one")
			answered(t, two, "two")
			if e, err := reply(t, three).Elems(); err != nil || len(e) != 1 {
				t.Errorf("in pieces of %d: %v, %v", size, e, err)
			}
			if c.Stats().Reconnects != 0 || phaseOf(c) != PhasePreparing {
				t.Errorf("in pieces of %d: the connection was lost, or MOVING was", size)
			}
			c.Close()
		}
	})
	sub(t, "each on a connection that was retired", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, Timeout: time.Hour})
		slow := async(c, "GET", "slow")
		a.moving(1, 10, addrB)
		s.readyAt(addrB)
		time.Sleep(time.Second)
		inPhase(t, c, PhaseDone)
		events := len(j.all())
		for _, raw := range moves {
			a.says(raw)
		}
		a.moving(77, 10, addrC)
		time.Sleep(time.Minute)
		a.says("+value\r\n")
		answered(t, slow, "value")
		if n := len(s.dialled()); n != 2 {
			t.Errorf("dialled %v", s.dialled())
		}
		if synctest.Wait(); len(j.all())-j.count(EventTightened) != events+1 { // its closing
			t.Errorf("events: %v", j.all()[events:])
		}
	})
	t.Run("TLS is never loosened", testTLSSuccessors)
}

// testTLSSuccessors has a successor of each kind that must not be trusted, and of each that may.
func testTLSSuccessors(t *testing.T) {
	for _, c := range []struct {
		name    string
		addr    string                                                     // of the successor
		tls     func(mine, theirs, other tls.Certificate) *tls.Certificate // nil: it speaks plainly
		trusted bool
	}{
		{"unknown authority", addrB, func(_, theirs, _ tls.Certificate) *tls.Certificate { return &theirs }, false},
		{"a certificate for another name", addrB, func(_, _, other tls.Certificate) *tls.Certificate { return &other }, false},
		{"plain text", addrB, nil, false},
		{"A15: an IP with the certificate of the configured name", addrB, func(mine, _, _ tls.Certificate) *tls.Certificate { return &mine }, true},
		{"a name with the certificate of the configured name", "db-2.example.com:6379", func(mine, _, _ tls.Certificate) *tls.Certificate { return &mine }, true},
	} {
		sub(t, c.name, func(t *testing.T) {
			mine, pool := batontest.SelfSigned("db.example.com")
			theirs, _ := batontest.SelfSigned("db.example.com")
			other, otherPool := batontest.SelfSigned("db-9.example.com")
			_ = otherPool
			conf := func(cert tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }
			a := memoryServer(t, batontest.WithAddr("db.example.com:6379"), batontest.WithTLS(conf(mine)), batontest.WithUser("default", "secret"))
			var theirTLS *tls.Config
			if c.tls != nil {
				theirTLS = conf(*c.tls(mine, theirs, other))
			}
			b := a.Sibling(batontest.WithAddr(c.addr), batontest.WithTLS(theirTLS), batontest.WithUser("default", "secret"))
			t.Cleanup(b.Close)
			j := &journal{}
			client := dialMemory(t, a, func(o *Options) {
				o.TLS, o.OnEvent, o.Password = &tls.Config{RootCAs: pool}, j.add, "secret"
				o.DialTimeout, o.Maintenance.RelaxedTimeout = time.Second, time.Second
			})
			stop := load(t, client, 4, 10*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
			a.Push("MOVING", 5, 4, c.addr)
			time.Sleep(1900 * time.Millisecond) // less than half of the window, when the configured address has its turn
			if got := b.Executed("HELLO") > 0; got != c.trusted {
				t.Errorf("credentials were sent to the successor: %v, want %v", got, c.trusted)
			}
			if got := client.Stats().Handoffs; got > 0 != c.trusted {
				t.Errorf("%d handoffs to it", got)
			}
			if n := j.count(EventDialFailed); n > 0 == c.trusted || n > 20 {
				t.Errorf("%d dials failed", n)
			}
			if _, failed := stop(); len(failed) > 0 {
				t.Errorf("%d commands failed: %v", len(failed), failed[0])
			}
		})
	}
}

// --- successors that are no good ---

// trap is what a dial of the successor meets instead of it.
type trap func(ctx context.Context) (net.Conn, error)

// trapped is a trap that accepts and then does f.
func trapped(t *testing.T, f func(p *peer)) trap {
	return func(context.Context) (net.Conn, error) {
		client, server := batontest.Pipe()
		go f(&peer{Conn: server, t: t, r: bufio.NewReader(server)})
		return client, nil
	}
}

// answersStep is a trap that goes along with the handshake until the command that begins with step, and answers that with
// raw: "" is to hang up, "stall" to say nothing any more.
func answersStep(t *testing.T, step, raw string) trap {
	return trapped(t, func(p *peer) {
		defer p.Close()
		for {
			command := p.command()
			switch {
			case command == "":
				return
			case strings.HasPrefix(command, step):
				if raw == "" {
					return
				}
				if raw != "stall" {
					p.says(raw)
				}
				io.Copy(io.Discard, p.r)
				return
			case strings.HasPrefix(command, "HELLO"):
				p.says("%3\r\n+server\r\n+redis\r\n+version\r\n+8.0.0\r\n+proto\r\n:3\r\n")
			default:
				p.says("+OK\r\n")
			}
		}
	})
}

// TestHandoffBadSuccessors has the successor misbehave for the first third of the window, in every way and at every
// step, and then come good: traffic flows on the old connection throughout, and in the end it is handed off.
func TestHandoffBadSuccessors(t *testing.T) {
	t.Parallel()
	type bad struct {
		name string
		trap func(t *testing.T) trap
		mode Mode
	}
	bads := []bad{
		{name: "refusing", trap: func(*testing.T) trap {
			return func(context.Context) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
		}},
		{name: "a blackhole", trap: func(*testing.T) trap {
			return func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		}},
		{name: "a dialler that ignores its context", trap: func(*testing.T) trap {
			return func(context.Context) (net.Conn, error) {
				time.Sleep(3 * time.Second)
				return nil, errors.New("at last")
			}
		}},
		{name: "hanging up at once", trap: func(t *testing.T) trap { return trapped(t, func(p *peer) { p.Close() }) }},
		{name: "resetting at once", trap: func(t *testing.T) trap { return trapped(t, func(p *peer) { p.reset() }) }},
		{name: "talking before it is asked", trap: func(t *testing.T) trap {
			return trapped(t, func(p *peer) { p.says("+OK\r\n"); p.handshake(); p.hangsOn() })
		}},
		{name: "speaking HTTP", trap: func(t *testing.T) trap {
			return trapped(t, func(p *peer) { p.says("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"); p.hangsOn() })
		}},
		{name: "speaking binary", trap: func(t *testing.T) trap {
			return trapped(t, func(p *peer) { p.says(strings.Repeat("\x16\x03\x01\xff\x00", 1000)); p.hangsOn() })
		}},
		{name: "speaking without end", trap: func(t *testing.T) trap {
			return trapped(t, func(p *peer) {
				for range 1000 {
					if _, err := io.WriteString(p.Conn, ">1\r\n+x\r\n"); err != nil {
						break
					}
				}
				p.hangsOn()
			})
		}},
		{name: "refusing the password", trap: func(t *testing.T) trap {
			return answersStep(t, "HELLO", "-WRONGPASS invalid username-password pair or user is disabled.\r\n")
		}},
		{name: "wanting a password", trap: func(t *testing.T) trap {
			return answersStep(t, "HELLO", "-NOAUTH HELLO must be called with the client already authenticated\r\n")
		}},
		{name: "loading at HELLO", trap: func(t *testing.T) trap {
			return answersStep(t, "HELLO", "-LOADING Redis is loading the dataset in memory\r\n")
		}},
		{name: "loading at PING", trap: func(t *testing.T) trap {
			return answersStep(t, "PING", "-LOADING Redis is loading the dataset in memory\r\n")
		}},
		{name: "without its master", trap: func(t *testing.T) trap {
			return answersStep(t, "PING", "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n")
		}},
		{name: "without the database", trap: func(t *testing.T) trap { return answersStep(t, "SELECT", "-ERR DB index is out of range\r\n") }},
		{name: "answering PING with something else", trap: func(t *testing.T) trap { return answersStep(t, "PING", "+PANG\r\n") }},
		{name: "answering HELLO with OK", trap: func(t *testing.T) trap { return answersStep(t, "HELLO", "+OK\r\n") }},
		{name: "protocol 2 where that will not do", mode: Enabled, trap: func(t *testing.T) trap {
			return answersStep(t, "HELLO", "-ERR unknown command 'HELLO'\r\n")
		}},
		{name: "without notifications where they must be", mode: Enabled, trap: func(t *testing.T) trap {
			return answersStep(t, "CLIENT MAINT", "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n+PONG\r\n")
		}},
	}
	for _, step := range []string{"HELLO", "CLIENT SETINFO LIB-NAME", "CLIENT SETINFO LIB-VER", "SELECT", "CLIENT MAINT", "PING"} {
		for name, raw := range map[string]string{"hanging up": "", "stalling": "stall", "rubbish": "?!\r\n", "half an answer": "$100\r\nab"} {
			bads = append(bads, bad{name: name + " at " + step, trap: func(t *testing.T) trap { return answersStep(t, step, raw) }})
		}
	}
	for _, c := range bads {
		sub(t, c.name, func(t *testing.T) {
			var s *stage
			var good atomic.Bool
			meets := c.trap(t)
			s = newStage(t, func(o *Options) {
				o.DB, o.DialTimeout, o.Maintenance.RelaxedTimeout, o.Maintenance.Mode = 2, time.Second, time.Second, c.mode
				serves := o.Dialer
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr != o.Addr && !good.Load() {
						return meets(ctx)
					}
					return serves(ctx, network, addr)
				}
			})
			stop := load(t, s.c, 3, 17*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
			s.move(12)
			time.Sleep(4 * time.Second)
			st := s.c.Stats()
			if st.Handoffs != 0 || st.Held != 0 || s.j.count(EventDialFailed) == 0 {
				t.Errorf("while the successor is bad: %d dials failed, stats %+v", s.j.count(EventDialFailed), st)
			}
			// One at once, then after 50, 100, 200, 400, 800 ms, and then one in at least 3/4 of a second.
			if n := s.dials.count(s.b.Addr()); n < 2 || n > 12 || s.dials.count(s.a.Addr()) != 1 {
				t.Errorf("dials in 4 s: %v", s.dials.to())
			}
			if n := s.a.Conns(); n != 1 {
				t.Errorf("%d connections to the old server", n)
			}
			good.Store(true)
			time.Sleep(2300 * time.Millisecond) // a dial and a pause
			if st := s.c.Stats(); st.Handoffs != 1 || s.b.Conns() != 1 || s.a.Conns() != 0 {
				t.Errorf("the successor came good, and yet: %+v", st)
			}
			time.Sleep(10 * time.Second)
			s.nothingFailed(stop)
			s.statsAreClean()
			s.serves(s.b)
		})
	}
}

// hangsOn reads until the client closes.
func (p *peer) hangsOn() {
	io.Copy(io.Discard, p.r)
	p.Close()
}

// refuseAll has the script refuse every dial of these addresses from now on; of none: of all.
func (s *script) refuseAll(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = func(addr string) error {
		if len(addrs) == 0 || slices.Contains(addrs, addr) {
			return syscall.ECONNREFUSED
		}
		return nil
	}
}

func (s *script) refuseNone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = nil
}

// TestHandoffConfiguredAddressInTurn has a successor that refuses for ever.
func TestHandoffConfiguredAddressInTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		book := &dialBook{}
		c, a := s.connectVia(Options{Timeout: time.Hour, KeepAlive: -1}, book)
		s.refuseAll()
		start := time.Now()
		a.moving(1, 10, addrB)
		inFlight := async(c, "GET", "1")
		time.Sleep(time.Minute)
		half, end := start.Add(5*time.Second), start.Add(10*time.Second)
		turns := 0
		for i, addr := range book.to()[1:] {
			at := book.when()[i+1]
			switch {
			case at.Before(half) && addr != addrB:
				t.Errorf("%s was dialled %v into the window", addr, at.Sub(start))
			case at.After(end) && addr != addrA:
				t.Errorf("%s was dialled %v after the window", addr, at.Sub(end))
			case at.After(half) && at.Before(end):
				if addr == addrA {
					turns++
				}
				if previous := book.to()[i]; i > 0 && book.when()[i].After(half) && previous == addr {
					t.Errorf("%s was dialled twice in a row from half of the window on", addr)
				}
			}
		}
		if turns < 2 {
			t.Errorf("from half of the window on the configured address had %d turns: %v", turns, book.to())
		}
		if n := len(book.to()); n > 30 {
			t.Errorf("%d dials", n)
		}
		pending(t, "a command on the old connection", inFlight)
		a.says("+one\r\n")
		answered(t, inFlight, "one")
	})
	sub(t, "and takes over when it answers", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		s.refuseAll(addrB)
		start := time.Now()
		a.moving(1, 10, addrB)
		again := s.readyAt(addrA)
		if at := time.Since(start); at < 5*time.Second || at > 8*time.Second {
			t.Errorf("the configured address was dialled %v into the window", at)
		}
		inPhase(t, c, PhaseDone)
		got := async(c, "GET", "1")
		again.expects("GET 1")
		again.says("+one\r\n")
		answered(t, got, "one")
	})
	sub(t, "a stalled successor delays no longer than a dial", func(t *testing.T) {
		s := newScript(t)
		_, a := s.connect(Options{DialTimeout: time.Second, Maintenance: Maintenance{RelaxedTimeout: time.Second}})
		start := time.Now()
		a.moving(1, 10, addrB)
		for {
			p := s.accept()
			if p.addr == addrA {
				break
			}
		}
		if at := time.Since(start); at < 5*time.Second || at > 8*time.Second {
			t.Errorf("the configured address was dialled %v into the window", at)
		}
	})
}

// connectVia is connect with a book of the dials.
func (s *script) connectVia(o Options, book *dialBook) (*Client, *peer) {
	s.t.Helper()
	o.Addr, o.Dialer = addrA, book.over(s.dial)
	result := make(chan *Client)
	go func() {
		c, err := Dial(background, o)
		if err != nil {
			s.t.Error(err)
		}
		result <- c
	}()
	p := s.accept()
	p.handshake()
	c := <-result
	s.t.Cleanup(func() { c.Close() })
	synctest.Wait()
	return c, p
}

// TestHandoffGivenUp: the window runs out with nothing ready, and the old connection serves on.
func TestHandoffGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		book := &dialBook{}
		c, a := s.connectVia(Options{OnEvent: j.add, DialTimeout: 2 * time.Second, Maintenance: Maintenance{RelaxedTimeout: time.Second}}, book)
		s.refuseAll()
		start := time.Now()
		a.moving(1, 4, addrB)
		time.Sleep(6*time.Second - time.Millisecond)
		inPhase(t, c, PhasePreparing)
		time.Sleep(2 * time.Millisecond)
		inPhase(t, c, PhaseDone)
		dials := len(book.to())
		time.Sleep(20 * time.Second)
		if n := len(book.to()); n != dials || n > 15 {
			t.Errorf("%d dials, and %d of them after it was given up", n, n-dials)
		}
		if e := j.of(EventGivenUp); len(e) != 1 || e[0].Seq != 1 || e[0].Successor != addrB || e[0].Addr != addrA || e[0].Phase != PhaseDone ||
			!errors.Is(e[0].Err, syscall.ECONNREFUSED) || e[0].Time.Sub(start) != 6*time.Second {
			t.Errorf("events: %+v", e)
		}
		if st := c.Stats(); st.HandoffsGivenUp != 1 || st.Handoffs != 0 {
			t.Errorf("stats: %+v", st)
		}
		got := async(c, "GET", "1")
		a.expects("GET 1")
		a.says("+one\r\n")
		answered(t, got, "one")
		// The pin has ended: when the server closes after all, the configured address is dialled (A25).
		s.refuseNone()
		a.Close()
		b := s.readyAt(addrA)
		got = async(c, "GET", "2")
		b.expects("GET 2")
		b.says("+two\r\n")
		answered(t, got, "two")
	})
	sub(t, "in the middle of a dial", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, DialTimeout: 3 * time.Second, KeepAlive: -1, Maintenance: Maintenance{RelaxedTimeout: -1}})
		a.moving(1, 4, addrB)
		for { // everybody accepts and says nothing
			p := s.accept()
			if time.Sleep(time.Millisecond); phaseOf(c) != PhasePreparing || len(s.dialled()) > 10 {
				t.Fatalf("dialled %v", s.dialled())
			}
			if len(s.dialled()) == 4 {
				time.Sleep(2900 * time.Millisecond)
				inPhase(t, c, PhaseDone)
				if !p.hungUp() {
					t.Error("the dial under way goes on")
				}
				break
			}
		}
		time.Sleep(time.Minute)
		if last := j.all()[len(j.all())-1]; last.Kind != EventGivenUp {
			t.Errorf("after it was given up there is still an event: %v, %v", last.Kind, last.Err)
		}
		if n := len(s.dialled()); n != 4 || a.hungUp() {
			t.Errorf("dialled %v", s.dialled())
		}
	})
	sub(t, "and the server closes while it is still dialling", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		s.refuseAll()
		a.moving(1, 2, addrB)
		time.Sleep(3 * time.Second)
		inFlight := async(c, "GET", "1")
		a.Close()
		failedWith(t, "in flight at the close", inFlight, nil, true)
		waiting := async(c, "GET", "2")
		s.refuseNone()
		b := s.readyAt(addrA)
		b.expects("GET 2")
		b.says("+two\r\n")
		answered(t, waiting, "two")
	})
	sub(t, "and another announcement is heard afterwards", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{KeepAlive: -1})
		s.refuseAll()
		a.moving(5, 1, addrB)
		time.Sleep(time.Minute)
		inPhase(t, c, PhaseDone)
		s.refuseNone()
		a.moving(6, 1, addrC)
		b := s.readyAt(addrC)
		go b.echo()
		answered(t, async(c, "GET", "1"), "GET 1")
	})
}

// TestHandoffWindows: zero, negative, short, long and absurd ones.
func TestHandoffWindows(t *testing.T) {
	for seconds, most := range map[int]time.Duration{0: 0, -3: 0, -1 << 62: 0, 1: 100 * time.Millisecond, 2: 200 * time.Millisecond,
		3600: time.Second, 1 << 30: time.Second, 1<<63 - 1: time.Second} {
		sub(t, fmt.Sprintf("%d s", seconds), func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{})
			start := time.Now()
			a.moving(1, seconds, addrB)
			b := s.acceptAt(addrB)
			if jitter := time.Since(start); jitter > most {
				t.Errorf("it was dialled after %v, want at most %v", jitter, most)
			}
			b.handshake()
			go b.echo()
			inPhase(t, c, PhaseDone)
			answered(t, async(c, "GET", "1"), "GET 1")
			if !a.hungUp() {
				t.Error("the old connection is open")
			}
		})
		sub(t, fmt.Sprintf("%d s, and the successor refuses", seconds), func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{Timeout: 2 * time.Hour, KeepAlive: -1})
			s.refuseAll()
			a.moving(1, seconds, addrB)
			got := async(c, "GET", "1")
			end := 20 * time.Second
			if seconds > 15 {
				end = time.Hour + 20*time.Second
			}
			time.Sleep(end)
			inPhase(t, c, PhaseDone)
			dials := s.dialled()[1:]
			if dials[0] != addrB {
				t.Errorf("not even one attempt: %v", dials[0])
			}
			if bound := 20 + int(end/(700*time.Millisecond)); len(dials) > bound {
				t.Errorf("%d dials in %v", len(dials), end)
			}
			a.says("+one\r\n")
			answered(t, got, "one")
		})
	}
}

// TestHandoffOldConnectionDiesEarly cuts the old connection at every stage of a handoff: only what was in flight fails,
// maybe executed, and everything else goes to the replacement.
func TestHandoffOldConnectionDiesEarly(t *testing.T) {
	ends := map[string]func(p *peer){"closed": func(p *peer) { p.Close() }, "reset": func(p *peer) { p.reset() }}
	for how, end := range ends {
		for _, policy := range []BacklogPolicy{Queue, FailFast} {
			// run plays a handoff and cuts at the given stage. Command 1 is in flight, 2 was given before the cut, 3 after it.
			run := func(stage string) {
				sub(t, fmt.Sprintf("%s in %s, policy %d", how, stage, policy), func(t *testing.T) {
					s := newScript(t)
					j := &journal{}
					release := make(chan struct{})
					s.fail = func(addr string) error {
						if addr == addrB && stage == "dial" {
							<-release
						}
						return nil
					}
					c, a := s.connect(Options{Backlog: policy, OnEvent: j.add, Timeout: time.Minute})
					one := async(c, "GET", "1")
					a.expects("GET 1")
					a.moving(1, 10, addrB)
					synctest.Wait()
					var b *peer
					var before <-chan Reply
					switch stage {
					case "jitter":
					case "dial":
						time.Sleep(time.Second)
					case "handshake":
						b = s.acceptAt(addrB)
						b.expects("HELLO 3")
					case "hold":
						b = s.readyAt(addrB)
						before = async(c, "GET", "2")
						inPhase(t, c, PhaseHolding)
					case "lingering":
						b = s.readyAt(addrB)
						before = async(c, "GET", "2")
						time.Sleep(100 * time.Millisecond)
						inPhase(t, c, PhaseDone)
					}
					start := time.Now()
					end(a)
					failedWith(t, "in flight at the cut", one, nil, true)
					after := async(c, "GET", "3")
					if time.Since(start) != 0 {
						t.Errorf("the cut was noticed %v late", time.Since(start))
					}
					switch stage {
					case "jitter": // which has no point any more
						b = s.readyAt(addrB)
						if time.Since(start) != 0 {
							t.Errorf("without a connection the dial waited %v", time.Since(start))
						}
					case "dial":
						close(release)
						b = s.readyAt(addrB)
					case "handshake":
						b.says("%1\r\n+proto\r\n:3\r\n")
						b.handshake()
					}
					if before != nil {
						b.expects("GET 2")
						b.says("+two\r\n")
						answered(t, before, "two")
					}
					b.expects("GET 3")
					if took := time.Since(start); took != 0 && stage != "dial" {
						t.Errorf("it went to the replacement %v late", took)
					}
					b.says("+three\r\n")
					answered(t, after, "three")
					synctest.Wait()
					st := c.Stats()
					if st.Failed != 1 || st.Handoffs != 1 || st.Conns != 1 {
						t.Errorf("stats: %+v", st)
					}
					h := st.LastHandoff
					if h.Cut != 1 || h.Closed.IsZero() {
						t.Errorf("one command was cut on the old connection, and the timeline says cut %d, closed %v", h.Cut, h.Closed)
					}
					if n, m := j.count(EventOldClosed), j.count(EventLost); n != 1 || (m == 1) != (stage != "lingering") {
						t.Errorf("%d events say that the old connection is closed, and %d that it was lost", n, m)
					}
					if n := len(s.dialled()); n != 2 {
						t.Errorf("dialled %v", s.dialled())
					}
				})
			}
			for _, stage := range []string{"jitter", "dial", "handshake", "hold", "lingering"} {
				run(stage)
			}
		}
	}
}

// TestHandoffReplacementDiesWhileWorkIsHeld: the work flows to the old connection, and the handoff goes on.
func TestHandoffReplacementDiesWhileWorkIsHeld(t *testing.T) {
	ends := map[string]func(p *peer){
		"closed":  func(p *peer) { p.Close() },
		"reset":   func(p *peer) { p.reset() },
		"rubbish": func(p *peer) { p.says("?!\r\n") },
		"stray":   func(p *peer) { p.says(":1\r\n") },
	}
	for how, end := range ends {
		sub(t, how, func(t *testing.T) {
			s := newScript(t)
			j := &journal{}
			c, a := s.connect(Options{OnEvent: j.add})
			one := async(c, "GET", "1")
			a.moving(1, 10, addrB)
			b := s.readyAt(addrB)
			two, three := async(c, "GET", "2"), async(c, "GET", "3")
			time.Sleep(30 * time.Millisecond)
			inPhase(t, c, PhaseHolding)
			end(b)
			inPhase(t, c, PhasePreparing)
			four := async(c, "GET", "4")
			a.expects("GET 1", "GET 2", "GET 3", "GET 4")
			a.says("+one\r\n+two\r\n+three\r\n")
			for i, ch := range []<-chan Reply{one, two, three} {
				answered(t, ch, []string{"one", "two", "three"}[i])
			}
			// The next replacement has 20 ms of the hold left.
			b = s.readyAt(addrB)
			inPhase(t, c, PhaseHolding)
			start := time.Now()
			five := async(c, "GET", "5")
			b.expects("GET 5")
			if took := time.Since(start); took != 20*time.Millisecond {
				t.Errorf("the second hold lasted %v, want 20ms", took)
			}
			b.says("+five\r\n")
			answered(t, five, "five")
			a.says("+four\r\n")
			answered(t, four, "four")
			synctest.Wait()
			h := c.Stats().LastHandoff
			checkTimeline(t, h)
			if h.HeldMax > 50*time.Millisecond || h.Held != 3 {
				t.Errorf("held %d commands for at most %v", h.Held, h.HeldMax)
			}
			if n := c.Stats().Failed; n != 0 {
				t.Errorf("%d commands failed", n)
			}
		})
	}
	sub(t, "and the next one finds the bridge idle", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		one := async(c, "GET", "1")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		two := async(c, "GET", "2")
		b.reset()
		synctest.Wait()
		a.says("+one\r\n+two\r\n")
		answered(t, one, "one")
		answered(t, two, "two")
		b = s.accept()
		time.Sleep(3 * time.Second)
		b.handshake()
		synctest.Wait()
		h := c.Stats().LastHandoff
		checkTimeline(t, h)
		if h.HeldMax > 50*time.Millisecond {
			t.Errorf("the timeline says that a command was held for %v: %+v", h.HeldMax, h)
		}
	})
}

// checkTimeline says that the steps of a handoff that have come are in their order.
func checkTimeline(t *testing.T, h Handoff) {
	t.Helper()
	names := []string{"received", "began", "ready", "holding", "promoted"}
	last := 0
	times := []time.Time{h.Received, h.Began, h.Ready, h.Holding, h.Promoted}
	if !h.Closed.IsZero() && h.Closed.Before(h.Received) { // the old connection may have died at any time
		t.Errorf("closed %v, received %v", h.Closed, h.Received)
	}
	for i, at := range times {
		if at.IsZero() {
			continue
		}
		if at.Before(times[last]) {
			t.Errorf("the timeline has %s %v before %s", names[i], times[last].Sub(at), names[last])
		}
		last = i
	}
}

// TestHandoffSuccessorHangsUpAfterTheHandshake, again and again.
func TestHandoffSuccessorHangsUpAfterTheHandshake(t *testing.T) {
	sub(t, "with a command in flight", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Hour})
		async(c, "GET", "slow")
		go func() { a.expects("GET slow"); a.echo() }()
		a.moving(1, 30, addrB)
		start := time.Now()
		dials := 0
		for time.Since(start) < 4*time.Second {
			b := s.acceptAt(addrB)
			b.handshake()
			b.Close()
			dials++
			synctest.Wait()
			if got := phaseOf(c); got != PhasePreparing {
				t.Fatalf("after dial %d the bridge is %v", dials, got)
			}
		}
		if dials > 12 {
			t.Errorf("%d dials in 4 s", dials)
		}
		b := s.readyAt(addrB)
		go b.echo()
		time.Sleep(time.Second)
		answered(t, async(c, "GET", "1"), "GET 1")
		if c.Stats().Handoffs != 1 {
			t.Error("it came good and there was no handoff")
		}
	})
	sub(t, "with nothing in flight", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Hour})
		a.moving(1, 30, addrB)
		start := time.Now()
		dials := 0
		for time.Since(start) < 4*time.Second {
			b := s.acceptAt(addrB)
			b.handshake()
			b.Close()
			dials++
			synctest.Wait()
		}
		if dials > 14 {
			t.Errorf("%d dials in 4 s", dials)
		}
		waiting := async(c, "GET", "1")
		b := s.readyAt(addrB)
		go b.echo()
		answered(t, waiting, "GET 1")
	})
}

// TestHandoffLyingSuccessors: they work, and say things.
func TestHandoffLyingSuccessors(t *testing.T) {
	sub(t, "names where we are", func(t *testing.T) {
		// Our own address is nowhere to go: it counts as unnamed, and the configured address is dialled at half of the window.
		s := newScript(t)
		_, a := s.connect(Options{KeepAlive: -1})
		start := time.Now()
		a.moving(1, 10, addrA)
		p := s.readyAt(addrA)
		if at := time.Since(start); at < 5*time.Second || at > 6*time.Second {
			t.Errorf("it was dialled after %v, want half of the window and the jitter", at)
		}
		if !a.hungUp() || p.hungUp() {
			t.Error("the old connection is open, or the new one is not")
		}
		time.Sleep(time.Minute)
		if n := len(s.dialled()); n != 2 {
			t.Errorf("dialled %v", s.dialled())
		}
	})
	sub(t, "A20: names itself for ever with the same number", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		a.moving(7, 15, addrB)
		b := s.acceptAt(addrB)
		b.handshakeSaying(movingFrame(7, 15, addrB))
		inPhase(t, c, PhaseDone)
		for range 30 {
			b.moving(7, 15, addrB)
			time.Sleep(500 * time.Millisecond)
		}
		go b.echo()
		answered(t, async(c, "GET", "1"), "GET 1")
		if n := len(s.dialled()); n != 2 || c.Stats().Handoffs != 1 {
			t.Errorf("one announcement caused dials of %v", s.dialled())
		}
	})
	sub(t, "names the old server with the same number", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		a.moving(7, 15, addrB)
		b := s.acceptAt(addrB)
		b.handshakeSaying(movingFrame(7, 15, addrA))
		for range 30 {
			b.moving(7, 15, addrA)
			time.Sleep(500 * time.Millisecond)
		}
		if n := len(s.dialled()); n != 2 || c.Stats().Handoffs != 1 {
			t.Errorf("one announcement caused dials of %v", s.dialled())
		}
	})
	sub(t, "speaks protocol 2", func(t *testing.T) {
		// In Auto that works, without further handoffs.
		s := newScript(t)
		c, a := s.connect(Options{Password: "secret", ClientName: "me", DB: 3})
		one := async(c, "GET", "1")
		a.moving(1, 10, addrB)
		b := s.acceptAt(addrB)
		b.expects("HELLO 3 AUTH default secret SETNAME me")
		b.says("-ERR unknown command 'HELLO'\r\n")
		b.expects("AUTH secret")
		b.says("+OK\r\n")
		b.expects("CLIENT SETNAME me")
		b.says("+OK\r\n")
		b.expects("CLIENT SETINFO LIB-NAME baton", "CLIENT SETINFO LIB-VER "+libVersion, "SELECT 3")
		b.says("+OK\r\n+OK\r\n+OK\r\n")
		b.expects("PING")
		b.says("+PONG\r\n")
		inPhase(t, c, PhaseHolding)
		a.says("+one\r\n")
		answered(t, one, "one")
		two := async(c, "GET", "2")
		b.expects("GET 2")
		b.says("$3\r\ntwo\r\n")
		answered(t, two, "two")
	})
}

// TestHandoffSuccessorWithoutNotifications: A43, in Auto it works, whatever the first server granted.
func TestHandoffSuccessorWithoutNotifications(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, nil)
		s.b.SetRespond("client maint_notifications", "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n")
		stop := load(t, s.c, 4, 10*time.Millisecond)
		s.move(2)
		time.Sleep(5 * time.Second)
		s.nothingFailed(stop)
		s.serves(s.b)
		if s.a.Conns() != 0 || s.b.OptedIn() != 0 || len(s.dials.to()) != 2 {
			t.Errorf("dials: %v", s.dials.to())
		}
	})
}

// TestHandoffRisingNumbers has announcement after announcement, each new, send the client to and fro, faster than it can go.
func TestHandoffRisingNumbers(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 110 * time.Millisecond} {
		for _, window := range []int{0, 1} {
			sub(t, fmt.Sprintf("every %v, window=%ds", pause, window), func(t *testing.T) {
				s := newStage(t, func(o *Options) { o.Conns = 2; o.Dialer = slow(o.Dialer, 6*time.Millisecond) })
				t.Cleanup(func() { time.Sleep(time.Second) })
				stop := load(t, s.c, 8, 3*time.Millisecond)
				time.Sleep(50 * time.Millisecond)
				for seq := range 40 {
					to := s.b
					if seq%2 == 1 {
						to = s.a
					}
					s.a.Push("MOVING", seq, window, to.Addr())
					s.b.Push("MOVING", seq, window, to.Addr())
					time.Sleep(pause)
				}
				last := sibling(t, s.a)
				s.a.Push("MOVING", 100, window, last.Addr())
				s.b.Push("MOVING", 100, window, last.Addr())
				time.Sleep(15 * time.Second)
				done, failed := stop()
				if len(failed) > 0 || s.a.Executed("INCR")+s.b.Executed("INCR")+last.Executed("INCR") != done {
					t.Errorf("%d commands failed: %v", len(failed), failed)
				}
				s.statsAreClean()
				if s.a.Conns() != 0 || s.b.Conns() != 0 || last.Conns() != 2 {
					t.Errorf("%d connections to a, %d to b, %d to the server that the last announcement names", s.a.Conns(), s.b.Conns(), last.Conns())
				}
				if n := len(s.dials.to()); n > 2+2*41+2 {
					t.Errorf("%d dials", n)
				}
			})
		}
	}
}

func movingFrame(seq, seconds int, successor string) string {
	return fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:%d\r\n:%d\r\n$%d\r\n%s\r\n", seq, seconds, len(successor), successor)
}

// TestCaseG5SuccessorInheritsAllSettings, over TLS and with credentials that are asked afresh.
func TestCaseG5SuccessorInheritsAllSettings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		asked := 0
		o := Options{ClientName: "me", DB: 3, Credentials: func(context.Context) (string, string, error) {
			asked++
			return "alice", fmt.Sprintf("secret-%d", asked), nil
		}}
		_, a := s.connect(o)
		a.moving(1, 10, addrB)
		b := s.acceptAt(addrB)
		b.expects("HELLO 3 AUTH alice secret-2 SETNAME me")
		b.says("%1\r\n+proto\r\n:3\r\n")
		b.expects("CLIENT SETINFO LIB-NAME baton", "CLIENT SETINFO LIB-VER "+libVersion, "SELECT 3")
		b.says("+OK\r\n+OK\r\n+OK\r\n")
		b.expects("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip", "PING")
		b.says("+OK\r\n+PONG\r\n")
		if !a.hungUp() {
			t.Error("there was no handoff")
		}
	})
}

// --- echoes, copies and stale notices ---

// TestHandoffCopiesAreIgnored hands off to B with number 5, and then says things on the new connection or on another
// one: none of it may lead anywhere.
func TestHandoffCopiesAreIgnored(t *testing.T) {
	for name, raw := range map[string]string{
		"A2: a lower number":                movingFrame(4, 15, addrC),
		"the same number":                   movingFrame(5, 15, addrC),
		"the same number, no successor":     ">4\r\n$6\r\nMOVING\r\n:5\r\n:15\r\n_\r\n",
		"no number":                         ">4\r\n$6\r\nMOVING\r\n_\r\n:15\r\n$13\r\n" + addrC + "\r\n",
		"number 0":                          movingFrame(0, 15, addrC),
		"a negative number":                 movingFrame(-1, 15, addrC),
		"a lower number and another window": movingFrame(4, 3600, addrC),
	} {
		for _, where := range []string{"in the handshake", "on the new connection", "before it is dialled", "while it is dialled", "while work is held", "on the retired connection"} {
			sub(t, name+" "+where, func(t *testing.T) {
				s := newScript(t)
				c, a := s.connect(Options{Timeout: time.Minute})
				slow := async(c, "GET", "slow")
				a.expects("GET slow")
				a.moving(5, 15, addrB)
				if where == "before it is dialled" {
					a.says(raw)
				}
				b := s.acceptAt(addrB)
				if where == "while it is dialled" {
					a.says(raw)
					time.Sleep(2 * time.Second) // longer than a jitter
				}
				if where == "in the handshake" {
					b.handshakeSaying(raw)
				} else {
					b.handshake()
				}
				inPhase(t, c, PhaseHolding)
				if where == "while work is held" {
					a.says(raw)
					b.says(raw)
					inPhase(t, c, PhaseHolding)
				}
				time.Sleep(time.Second)
				inPhase(t, c, PhaseDone)
				switch where {
				case "on the new connection":
					b.says(raw)
				case "on the retired connection":
					a.says(raw)
				}
				inPhase(t, c, PhaseDone)
				a.says("+at last\r\n")
				answered(t, slow, "at last")
				go b.echo()
				time.Sleep(14 * time.Second)
				answered(t, async(c, "GET", "1"), "GET 1")
				if n := len(s.dialled()); n != 2 || c.Stats().Handoffs != 1 {
					t.Errorf("dialled %v, %d handoffs", s.dialled(), c.Stats().Handoffs)
				}
			})
		}
	}
	sub(t, "A21: number 0 twice", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		a.moving(0, 15, addrB)
		a.moving(0, 15, addrC)
		b := s.acceptAt(addrB)
		b.handshakeSaying(movingFrame(0, 15, addrB))
		time.Sleep(10 * time.Second)
		if n := len(s.dialled()); n != 2 || c.Stats().Handoffs != 1 {
			t.Errorf("dialled %v", s.dialled())
		}
		b.moving(1, 15, addrC) // 0 was seen: 1 is new
		s.readyAt(addrC)
		if c.Stats().Handoffs != 2 {
			t.Error("the number after 0 is not believed")
		}
	})
	sub(t, "without a number, once", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		raw := ">4\r\n$6\r\nMOVING\r\n_\r\n:15\r\n$13\r\n" + addrB + "\r\n"
		a.says(raw + raw)
		b := s.acceptAt(addrB)
		b.handshakeSaying(raw)
		time.Sleep(10 * time.Second)
		if n := len(s.dialled()); n != 2 || c.Stats().Handoffs != 1 {
			t.Errorf("dialled %v", s.dialled())
		}
		b.moving(0, 15, addrC) // a number, where there was none
		s.readyAt(addrC)
	})
	sub(t, "a copy does not prolong", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{DialTimeout: time.Second, Maintenance: Maintenance{RelaxedTimeout: -1}})
		s.refuseAll()
		a.moving(5, 4, addrB)
		for range 9 {
			time.Sleep(500 * time.Millisecond)
			a.moving(5, 4, addrB)
		}
		inPhase(t, c, PhasePreparing)
		time.Sleep(501 * time.Millisecond)
		inPhase(t, c, PhaseDone)
		if c.Stats().HandoffsGivenUp != 1 {
			t.Error("it was not given up")
		}
	})
	sub(t, "a restarted counter is believed when the memory has ended", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{KeepAlive: -1})
		a.moving(900, 2, addrB)
		b := s.readyAt(addrB)
		time.Sleep(time.Minute)
		b.moving(1, 2, addrC)
		s.readyAt(addrC)
		if c.Stats().Handoffs != 2 {
			t.Error("the second announcement was not followed")
		}
	})
}

// TestHandoffMovingInTheHandshake, right behind the +OK, of the very first connection.
func TestHandoffMovingInTheHandshake(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		peers := make(chan *peer)
		go func() {
			p := s.accept()
			p.handshakeSaying(movingFrame(3, 10, addrB))
			peers <- p
		}()
		c := dialOptions(t, Options{Addr: addrA, Dialer: s.dial, OnEvent: j.add})
		a := <-peers
		one := async(c, "GET", "1")
		a.expects("GET 1")
		b := s.readyAt(addrB)
		inPhase(t, c, PhaseHolding)
		a.says("+one\r\n")
		answered(t, one, "one")
		if !a.hungUp() || b.hungUp() {
			t.Error("the old connection is open, or the new one is not")
		}
		if j.count(EventNotification) != 1 || j.count(EventPromoted) != 1 {
			t.Errorf("events: %v", j.all())
		}
	})
	sub(t, "a newer one in the replacement's", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		a.moving(3, 10, addrB)
		b := s.acceptAt(addrB)
		b.handshakeSaying(movingFrame(4, 10, addrC))
		d := s.readyAt(addrC)
		inPhase(t, c, PhaseDone)
		if !a.hungUp() || !b.hungUp() || d.hungUp() || c.Stats().Handoffs != 2 {
			t.Errorf("the client did not end on C: %+v", c.Stats())
		}
	})
	for _, on := range []string{"the replacement", "the old connection"} {
		sub(t, "a newer one on "+on+" while work is held", func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{})
			one := async(c, "GET", "1")
			a.moving(3, 10, addrB)
			b := s.readyAt(addrB)
			map[string]*peer{"the replacement": b, "the old connection": a}[on].moving(4, 10, addrC)
			inPhase(t, c, PhaseHolding)
			a.says("+one\r\n")
			answered(t, one, "one")
			s.readyAt(addrC)
			if !b.hungUp() || c.Stats().Handoffs != 2 {
				t.Errorf("the client did not end on C: %+v", c.Stats())
			}
		})
	}
	sub(t, "a newer one while work is held, and then the replacement dies", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute, DialTimeout: time.Second, Maintenance: Maintenance{RelaxedTimeout: -1}})
		async(c, "GET", "1")
		a.moving(3, 2, addrB)
		b := s.readyAt(addrB)
		a.moving(4, 60, addrC)
		inPhase(t, c, PhaseHolding)
		b.reset()
		inPhase(t, c, PhasePreparing)
		s.refuseAll()
		time.Sleep(10 * time.Second) // longer than the first announcement was good for
		inPhase(t, c, PhasePreparing)
		s.refuseNone()
		s.readyAt(addrC)
		time.Sleep(time.Second)
		if h := c.Stats().LastHandoff; h.Seq != 4 || h.Promoted.IsZero() {
			t.Errorf("the last handoff: %+v", h)
		}
	})
	sub(t, "a newer one while it is dialled replaces the attempt", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add})
		a.moving(3, 10, addrB)
		b := s.acceptAt(addrB)
		start := time.Now()
		a.moving(4, 10, addrC)
		d := s.readyAt(addrC)
		if took := time.Since(start); took > time.Second {
			t.Errorf("the newer successor was dialled after %v", took)
		}
		if !b.hungUp() || !a.hungUp() || d.hungUp() || c.Stats().Handoffs != 1 || j.count(EventDialFailed) != 0 {
			t.Errorf("the client did not end on C, or an attempt that was replaced counts as failed: %+v", c.Stats())
		}
	})
}

// TestCaseA7MovingReadLateOnARetiredConnection, long after everything.
func TestCaseA7MovingReadLateOnARetiredConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, Timeout: time.Hour})
		slow := async(c, "GET", "slow")
		a.moving(1, 2, addrB)
		b := s.readyAt(addrB)
		go b.echo()
		time.Sleep(10 * time.Minute)
		events := len(j.all())
		a.moving(1, 15, addrB)
		a.moving(9, 15, addrC)
		time.Sleep(time.Minute)
		if n := len(j.all()); n != events || len(s.dialled()) != 2 {
			t.Errorf("it caused %v and dials of %v", j.all()[events:], s.dialled())
		}
		a.says("+one\r\n")
		answered(t, slow, "one")
	})
}

// TestCaseA8DialUnderWayCountsAsOld: a connection that was being dialled when the announcement came is used, and
// handed off.
func TestCaseA8DialUnderWayCountsAsOld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, first := s.connect(Options{Conns: 2})
		second := s.acceptAt(addrA) // in the middle of its handshake
		first.moving(1, 10, addrB)
		b1 := s.readyAt(addrB)
		second.handshake()
		synctest.Wait()
		b2 := s.readyAt(addrB) // by the pin alone: second itself was told nothing
		if !first.hungUp() || !second.hungUp() || b1.hungUp() || b2.hungUp() {
			t.Error("not both bridges are on B")
		}
		go b1.echo()
		go b2.echo()
		for range 4 {
			answered(t, async(c, "GET", "1"), "GET 1")
		}
		if n := len(s.dialled()); n != 4 || c.Stats().Handoffs != 2 {
			t.Errorf("dialled %v", s.dialled())
		}
	})
	sub(t, "of a bridge that has lost its connection", func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 2})
		a2 := s.readyAt(addrA)
		a2.Close()
		again := s.acceptAt(addrA)
		a1.moving(1, 10, addrB)
		b1 := s.readyAt(addrB)
		again.handshake()
		b2 := s.readyAt(addrB)
		if !again.hungUp() || b1.hungUp() || b2.hungUp() || c.Stats().Handoffs != 2 {
			t.Errorf("not both bridges are on B: %+v", c.Stats())
		}
	})
	sub(t, "every dial after the announcement follows the pin", func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 2})
		a2 := s.readyAt(addrA)
		a1.moving(1, 10, addrB)
		s.readyAt(addrB)
		a2.Close() // it was told nothing
		b2 := s.acceptAt(addrB)
		b2.handshakeSaying(movingFrame(1, 10, addrB)) // an echo also for a bridge that never joined
		time.Sleep(9 * time.Second)
		if n := len(s.dialled()); n != 4 || b2.hungUp() || c.Stats().Handoffs != 1 {
			t.Errorf("dialled %v", s.dialled())
		}
	})
}

// TestStaleAttemptIsNoReplacement has a dial succeed in the very moment in which an announcement is joined, too late to be cancelled:
// it began before the announcement, so it is where the announcement leads away from.
func TestStaleAttemptIsNoReplacement(t *testing.T) {
	for _, alive := range []bool{true, false} {
		sub(t, fmt.Sprintf("current connection alive: %v", alive), func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{})
			s.refuseAll(addrB)
			a.moving(1, 60, addrB)
			if synctest.Wait(); !alive {
				a.Close()
			}
			stale := make(chan *peer)
			go func() { stale <- s.readyAt(addrC) }()
			nc, err := c.opts.dial(background, "tcp", addrC, false)
			if err != nil {
				t.Fatal(err)
			}
			nc.attempt = 1
			p := <-stale
			inPhase(t, c, PhasePreparing)
			c.bridges[0].arrived(nc, nil, 1)
			inPhase(t, c, PhasePreparing) // it is handed off in either case
			if p.hungUp() != alive {
				t.Errorf("the stale connection is closed: %v", !alive)
			}
			one := async(c, "GET", "1")
			if serving := map[bool]*peer{true: a, false: p}[alive]; true {
				serving.expects("GET 1")
				serving.says("+one\r\n")
			}
			answered(t, one, "one")
			s.refuseNone()
			s.readyAt(addrB)
			if c.Stats().Handoffs != 1 {
				t.Error("there was no handoff")
			}
		})
	}
}

// TestHandoffRestartInPlace: a server announces that it moves to its own address, as one that is restarted there.
func TestHandoffRestartInPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Conns = 3 })
		stop := load(t, s.c, 12, 40*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		s.a.Push("MOVING", s.a.NextSeq(), 6, s.a.Addr())
		time.Sleep(2900 * time.Millisecond)
		if n := len(s.dials.to()); n != 3 {
			t.Errorf("before half of the window there were %d dials beyond the first", n-3)
		}
		time.Sleep(3 * time.Second)
		if st := s.c.Stats(); st.Handoffs != 3 || s.a.Conns() != 3 {
			t.Errorf("%d handoffs, %d connections", st.Handoffs, s.a.Conns())
		}
		time.Sleep(time.Minute)
		s.nothingFailed(stop)
		if n := len(s.dials.to()); n != 6 {
			t.Errorf("%d dials", n)
		}
	})
}

// TestHandoffSeveralConns: every bridge moves when its connection is told, and none waits for another.
func TestHandoffSeveralConns(t *testing.T) {
	sub(t, "one successor that is stuck delays no other", func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 3})
		a2, a3 := s.readyAt(addrA), s.readyAt(addrA)
		a1.moving(1, 15, addrB)
		stuck := s.acceptAt(addrB)
		a2.moving(1, 15, addrB)
		a3.moving(1, 15, addrB)
		s.readyAt(addrB)
		s.readyAt(addrB)
		time.Sleep(2 * time.Second)
		if a1.hungUp() || !a2.hungUp() || !a3.hungUp() {
			t.Error("the two that were not stuck did not move, or the one that was did")
		}
		stuck.handshake()
		if !a1.hungUp() || c.Stats().Handoffs != 3 {
			t.Error("the third did not move")
		}
	})
	sub(t, "one that is not told stays", func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 2})
		a2 := s.readyAt(addrA)
		a1.moving(1, 5, addrB)
		b := s.readyAt(addrB)
		go b.echo()
		go a2.echo()
		time.Sleep(time.Minute)
		for range 4 {
			answered(t, async(c, "GET", "1"), "GET 1")
		}
		if c.Stats().Handoffs != 1 || len(s.dialled()) != 3 {
			t.Errorf("dialled %v", s.dialled())
		}
	})
	sub(t, "one that is told late, by a copy, moves with what is left of the window", func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 2})
		a2 := s.readyAt(addrA)
		a1.moving(1, 10, addrB)
		s.readyAt(addrB)
		time.Sleep(5 * time.Second)
		a2.moving(1, 10, addrB)
		s.readyAt(addrB)
		if !a2.hungUp() || c.Stats().Handoffs != 2 {
			t.Error("it did not move")
		}
	})
	sub(t, "a window of zero is for each of them", func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 2})
		a2 := s.readyAt(addrA)
		a1.moving(1, 0, addrB)
		s.readyAt(addrB)
		time.Sleep(10 * time.Millisecond)
		a2.moving(1, 0, addrB)
		s.readyAt(addrB)
		if !a1.hungUp() || !a2.hungUp() || c.Stats().Handoffs != 2 {
			t.Error("not both moved")
		}
	})
	sub(t, "one whose opt-in was refused moves when a sibling is told", func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 2})
		a2 := s.acceptAt(addrA)
		for command := ""; command != "PING"; {
			switch command = a2.command(); {
			case strings.HasPrefix(command, "HELLO"):
				a2.says("%1\r\n+proto\r\n:3\r\n")
			case strings.HasPrefix(command, "CLIENT MAINT"):
				a2.says("-ERR maintenance notifications are disabled on this server\r\n")
			case command == "PING":
				a2.says("+PONG\r\n")
			default:
				a2.says("+OK\r\n")
			}
		}
		synctest.Wait()
		a1.moving(1, 10, addrB)
		s.readyAt(addrB)
		time.Sleep(2 * time.Second)
		if n := len(s.dialled()); n != 4 {
			t.Fatalf("dialled %v: the bridge that cannot be told does not move", s.dialled())
		}
		s.readyAt(addrB)
		if !a2.hungUp() || c.Stats().Handoffs != 2 {
			t.Error("it did not move")
		}
	})
	sub(t, "one that is already there takes nothing away from its siblings", func(t *testing.T) {
		s := newScript(t)
		_, a1 := s.connect(Options{Conns: 2})
		a2 := s.readyAt(addrA)
		a1.moving(1, 2, addrB)
		b := s.readyAt(addrB)
		time.Sleep(20 * time.Second) // forgotten
		// All are told of the next one, and the one on B first.
		b.moving(2, 10, addrB)
		synctest.Wait()
		start := time.Now()
		a2.moving(2, 10, addrB)
		p := s.accept()
		if p.addr != addrB || time.Since(start) > time.Second {
			t.Errorf("told to move to B, the other bridge dialled %s after %v", p.addr, time.Since(start))
		}
	})
}

// --- the ends ---

// TestCloseInEachPhase and after it: everything outstanding ends at once, honestly, and nothing is left running (the
// bubble sees to that).
func TestCloseInEachPhase(t *testing.T) {
	for _, stage := range []string{"jitter", "dial", "handshake", "hold", "lingering", "no connection", "backoff"} {
		sub(t, stage, func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{Timeout: time.Minute})
			one := async(c, "GET", "1")
			block := make(chan struct{})
			t.Cleanup(func() { close(block) })
			if stage == "dial" {
				s.mu.Lock()
				s.fail = func(string) error { <-block; return nil }
				s.mu.Unlock()
			}
			if stage == "backoff" {
				s.refuseAll()
			}
			a.moving(1, 10, addrB)
			synctest.Wait()
			var b *peer
			two, maybe := (<-chan Reply)(nil), true
			switch stage {
			case "dial", "backoff":
				time.Sleep(1500 * time.Millisecond)
			case "handshake":
				b = s.acceptAt(addrB)
			case "hold":
				b = s.readyAt(addrB)
				inPhase(t, c, PhaseHolding)
				maybe = false
			case "lingering":
				b = s.readyAt(addrB)
				time.Sleep(time.Second)
			case "no connection":
				a.Close()
				failedWith(t, "in flight at the cut", one, nil, true)
				one = nil
				maybe = false
			}
			two = async(c, "GET", "2")
			start := time.Now()
			c.Close()
			if one != nil {
				failedWith(t, "written", one, ErrClosed, true)
			}
			failedWith(t, "the last command", two, ErrClosed, maybe)
			failedWith(t, "a command afterwards", async(c, "GET", "3"), ErrClosed, false)
			if time.Since(start) != 0 {
				t.Errorf("closing took %v", time.Since(start))
			}
			if !a.hungUp() || b != nil && !b.hungUp() {
				t.Error("a connection is still open")
			}
			if err := c.Close(); err != nil {
				t.Errorf("closing again: %v", err)
			}
			if st := c.Stats(); st.Conns != 0 || st.InFlight != 0 || st.Backlog != 0 {
				t.Errorf("stats: %+v", st)
			}
		})
	}
}

func TestShutdownInEachPhase(t *testing.T) {
	shutdown := func(c *Client, d time.Duration) <-chan error {
		ch := make(chan error, 1)
		go func() {
			ctx, cancel := contextFor(d)
			defer cancel()
			ch <- c.Shutdown(ctx)
		}()
		synctest.Wait()
		return ch
	}
	for _, stage := range []string{"jitter", "handshake", "hold", "lingering", "no connection"} {
		sub(t, stage, func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{Timeout: time.Minute})
			one := async(c, "GET", "1")
			a.moving(1, 10, addrB)
			synctest.Wait()
			var b *peer
			switch stage {
			case "handshake":
				b = s.acceptAt(addrB)
			case "hold", "lingering":
				b = s.readyAt(addrB)
			case "no connection":
				a.Close()
				failedWith(t, "in flight at the cut", one, nil, true)
			}
			two := async(c, "GET", "2")
			if stage == "lingering" {
				time.Sleep(time.Second)
			}
			done := shutdown(c, time.Hour)
			failedWith(t, "a command after Shutdown began", async(c, "GET", "3"), ErrClosed, false)
			a.moving(2, 10, addrC) // ignored
			time.Sleep(5 * time.Second)
			select {
			case err := <-done:
				t.Fatalf("Shutdown did not wait: %v", err)
			default:
			}
			switch stage {
			case "jitter", "handshake":
				a.expects("GET 1", "GET 2")
				a.says("+one\r\n")
				answered(t, one, "one")
				a.says("+two\r\n")
				answered(t, two, "two")
			case "hold", "lingering":
				b.expects("GET 2")
				b.says("+two\r\n")
				answered(t, two, "two")
				a.says("+one\r\n")
				answered(t, one, "one")
			case "no connection":
				b = s.readyAt(addrB)
				b.expects("GET 2")
				b.says("+two\r\n")
				answered(t, two, "two")
			}
			synctest.Wait()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("Shutdown: %v", err)
				}
			default:
				t.Error("everything was answered, and Shutdown waits")
			}
			if !a.hungUp() || b != nil && !b.hungUp() {
				t.Error("a connection is still open")
			}
			if slices.Contains(s.dialled(), addrC) {
				t.Error("an announcement during Shutdown was followed")
			}
		})
	}
	sub(t, "its context ends", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute, Maintenance: Maintenance{HoldCap: time.Hour}})
		one := async(c, "GET", "1")
		a.moving(1, 10, addrB)
		s.readyAt(addrB)
		two := async(c, "GET", "2")
		done := shutdown(c, 3*time.Second)
		failedWith(t, "written", one, ErrClosed, true)
		failedWith(t, "held", two, ErrClosed, false)
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v", err)
		}
	})
	sub(t, "what it waits for is failed by a handoff that is given up", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Backlog: FailFast})
		s.refuseAll()
		a.moving(1, 2, addrB)
		synctest.Wait()
		a.Close()
		synctest.Wait()
		one := async(c, "GET", "1")
		done := shutdown(c, time.Hour)
		failedWith(t, "the command", one, ErrNoConnection, false)
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		default:
			t.Error("nothing is outstanding any more, and Shutdown waits")
			<-done
		}
	})
	sub(t, "what it waits for leaves", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Maintenance: Maintenance{HoldCap: time.Hour}})
		ctx, cancel := context.WithCancel(background)
		one := async(c, "GET", "1")
		a.moving(1, 10, addrB)
		s.readyAt(addrB)
		two := asyncIn(ctx, c, "GET", "2")
		done := shutdown(c, time.Hour)
		cancel()
		failedWith(t, "held", two, context.Canceled, false)
		a.says("+one\r\n")
		answered(t, one, "one")
		if err := <-done; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

// --- back-pressure ---

func TestHoldWithAFullBacklog(t *testing.T) {
	for _, o := range []Options{{MaxBacklog: 10}, {MaxBacklogBytes: 300}} {
		sub(t, fmt.Sprintf("commands %d, bytes %d", o.MaxBacklog, o.MaxBacklogBytes), func(t *testing.T) {
			s := newScript(t)
			o.Maintenance.HoldCap = time.Hour
			c, a := s.connect(o)
			slow := async(c, "GET", "slow")
			a.moving(1, 10, addrB)
			b := s.readyAt(addrB)
			var held []<-chan Reply
			for i := range 10 {
				held = append(held, async(c, "SET", i, "value"))
			}
			for i := 10; phaseOf(c) == PhaseHolding && i < 30; i++ {
				held = append(held, async(c, "SET", i, "value"))
			}
			inPhase(t, c, PhaseDone)
			go b.echo()
			for i, ch := range held {
				answered(t, ch, fmt.Sprintf("SET %d value", i))
			}
			a.says("+at last\r\n")
			answered(t, slow, "at last")
			if n := c.Stats().Failed; n != 0 {
				t.Errorf("%d commands failed", n)
			}
		})
	}
	sub(t, "with back-pressure beneath", func(t *testing.T) {
		// MaxInFlight fills before the hold; what waits for it is held like the rest, in order.
		s := newScript(t)
		c, a := s.connect(Options{MaxInFlight: 2})
		var got []<-chan Reply
		for i := range 5 {
			got = append(got, async(c, "GET", i))
		}
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		for i := 5; i < 8; i++ {
			got = append(got, async(c, "GET", i))
		}
		inPhase(t, c, PhaseHolding)
		a.expects("GET 0", "GET 1")
		a.says("+GET 0\r\n")
		inPhase(t, c, PhaseHolding)
		a.says("+GET 1\r\n")
		inPhase(t, c, PhaseDone)
		go b.echo()
		for i, ch := range got {
			answered(t, ch, fmt.Sprintf("GET %d", i))
		}
		if !a.hungUp() {
			t.Error("the old connection is open")
		}
	})
	sub(t, "of large commands", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Maintenance.HoldCap = time.Second; o.Dialer = slow(o.Dialer, 20*time.Millisecond) })
		value := strings.Repeat("x", 100<<10)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 40 {
					if err := s.c.Do(background, "SET", fmt.Sprint("big:", w), value).Err(); err != nil {
						t.Errorf("worker %d, command %d: %v", w, i, err)
						return
					}
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		s.move(1)
		wg.Wait()
		if n := s.a.Executed("SET") + s.b.Executed("SET"); n != 320 || s.b.Executed("SET") == 0 {
			t.Errorf("%d executed, %d of them on the new server", n, s.b.Executed("SET"))
		}
		s.statsAreClean()
	})
}

// lateWrites is a connection whose Write returns only some time after it has delivered, as when the writer is
// descheduled. The reply can be there first.
type lateWrites struct {
	net.Conn
	late time.Duration
}

func (c lateWrites) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	time.Sleep(c.late)
	return n, err
}

// TestReplyBeforeTheWriteHasReturned has work wait in the backlog at that moment: somebody must see to it.
func TestReplyBeforeTheWriteHasReturned(t *testing.T) {
	options := func(o *Options) {
		o.MaxInFlight = 1
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &addressed{lateWrites{c, 5 * time.Millisecond}, addr}, nil
		}
	}
	sub(t, "of a caller", func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // until the last write has returned
		s := newStage(t, options)
		s.a.Delay("ECHO", 2*time.Millisecond)
		s.a.Delay("INCR", 2*time.Millisecond)
		start := time.Now()
		one, two := async(s.c, "ECHO", "1"), async(s.c, "ECHO", "2")
		answered(t, one, "1")
		answered(t, two, "2")
		if took := time.Since(start); took > 20*time.Millisecond {
			t.Errorf("the second command was seen to after %v", took)
		}
	})
	sub(t, "under load, across a handoff", func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // until the last write has returned
		s := newStage(t, options)
		s.a.Delay("ECHO", 2*time.Millisecond)
		s.a.Delay("INCR", 2*time.Millisecond)
		stop := load(t, s.c, 4, 3*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		s.move(1)
		time.Sleep(3 * time.Second)
		s.nothingFailed(stop)
		s.serves(s.b)
	})
}

// --- who may be followed ---

func TestAllowSuccessor(t *testing.T) {
	sub(t, "is asked, off the reader and outside of the lock", func(t *testing.T) {
		s := newScript(t)
		var c *Client
		var asked []string
		allow := func(addr string) bool {
			asked = append(asked, addr)
			return !errors.Is(c.Do(background, "GET", "from the callback").Err(), ErrClosed)
		}
		c, a := s.connect(Options{Maintenance: Maintenance{AllowSuccessor: allow}})
		go a.echo()
		a.moving(1, 10, addrB)
		s.readyAt(addrB)
		if len(asked) != 1 || asked[0] != addrB || c.Stats().Handoffs != 1 {
			t.Errorf("asked about %v", asked)
		}
	})
	for _, conns := range []int{1, 3} {
		sub(t, fmt.Sprintf("refuses: it counts as unnamed, conns=%d", conns), func(t *testing.T) {
			var book dialBook
			s := newStage(t, func(o *Options) {
				o.Conns = conns
				o.Maintenance.AllowSuccessor = func(string) bool { return false }
				o.Dialer = book.over(o.Dialer)
			})
			stop := load(t, s.c, 6, 10*time.Millisecond)
			start := time.Now()
			s.a.Push("MOVING", 3, 10, s.b.Addr())
			time.Sleep(30 * time.Second)
			s.nothingFailed(stop)
			if n := book.count(s.b.Addr()); n != 0 {
				t.Errorf("the refused successor was dialled %d times", n)
			}
			for i, at := range book.when() {
				if since := at.Sub(start); since > 0 && (since < 5*time.Second || since > 7*time.Second) {
					t.Errorf("dial %d, of %s, came %v after the announcement, want half of the window", i, book.to()[i], since)
				}
			}
			if n := s.c.Stats().Handoffs; n != uint64(conns) {
				t.Errorf("%d handoffs", n)
			}
		})
	}
	sub(t, "blocks for ever", func(t *testing.T) {
		s := newScript(t)
		block := make(chan struct{})
		t.Cleanup(func() { close(block) })
		var asked atomic.Int32
		c, a := s.connect(Options{DialTimeout: time.Second, Maintenance: Maintenance{
			RelaxedTimeout: time.Second, AllowSuccessor: func(string) bool { asked.Add(1); <-block; return true }}})
		one := async(c, "GET", "1")
		a.moving(1, 4, addrB)
		time.Sleep(1900 * time.Millisecond)
		a.says("+one\r\n") // traffic flows
		answered(t, one, "one")
		time.Sleep(2 * time.Second)
		if n := len(s.dialled()); n < 2 || s.dialled()[1] != addrA {
			t.Errorf("from half of the window on the configured address has its turn; dialled: %v", s.dialled())
		}
		time.Sleep(10 * time.Second)
		for len(s.peers) > 0 {
			s.accept().Close()
		}
		a.Close() // long after the window
		select {
		case p := <-s.peers:
			if p.addr != addrA {
				t.Errorf("dialled %s", p.addr)
			}
			p.handshake()
			go p.echo()
			answered(t, async(c, "GET", "2"), "GET 2")
		case <-time.After(30 * time.Second):
			t.Error("the client does not connect any more, because a callback blocks")
		}
		if n := asked.Load(); n > 20 {
			t.Errorf("it was asked %d times, and each costs a goroutine", n)
		}
	})
}

// --- what an operator sees ---

func TestHandoffEventsAndTimeline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add})
		var times []time.Time
		note := func() { times = append(times, time.Now()) }
		slow := async(c, "GET", "slow")
		time.Sleep(time.Second)
		note()
		a.moving(17, 10, addrB)
		b := s.acceptAt(addrB)
		note()
		time.Sleep(40 * time.Millisecond)
		b.handshake()
		synctest.Wait()
		note()
		one, two := async(c, "GET", "1"), async(c, "GET", "2")
		_ = one
		time.Sleep(30 * time.Millisecond)
		go b.echo()
		time.Sleep(20 * time.Millisecond)
		note()
		answered(t, two, "GET 2")
		time.Sleep(time.Second)
		note()
		a.says("+slow\r\n")
		answered(t, slow, "slow")
		time.Sleep(time.Second)
		type line struct {
			kind  EventKind
			at    time.Time
			addr  string
			phase Phase
			held  int
		}
		want := []line{
			{EventNotification, times[0], addrA, PhaseDone, 0}, {EventRelaxed, times[0], addrA, PhaseDone, 0},
			{EventPreparing, times[0], addrA, PhasePreparing, 0}, {EventReady, times[2], addrB, PhasePreparing, 0},
			{EventHolding, times[2], addrA, PhaseHolding, 0}, {EventPromoted, times[3], addrB, PhaseDone, 2},
			{EventLingering, times[3], addrA, PhaseDone, 1}, {EventOldClosed, times[4], addrA, PhaseDone, 0},
		}
		var got []line
		for _, e := range j.all() {
			got = append(got, line{e.Kind, e.Time, e.Addr, e.Phase, e.Held})
			if e.Seq != 17 || e.Successor != addrB || e.Kind == EventNotification && (e.Notification != "MOVING" || e.Window != 10*time.Second) {
				t.Errorf("event: %+v", e)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("the events are\n%v\nwant\n%v", got, want)
		}
		h := c.Stats().LastHandoff
		wantH := Handoff{Seq: 17, Successor: addrB, Received: times[0], Began: times[1], Ready: times[2], Holding: times[2],
			Promoted: times[3], Closed: times[4], Held: 2, HeldMax: 50 * time.Millisecond, Lingered: 1}
		if h.Received.Sub(times[0]).Abs() < time.Microsecond { // a tick as wall-clock time
			h.Received = times[0]
		}
		if h != wantH {
			t.Errorf("the timeline is\n%+v\nwant\n%+v", h, wantH)
		}
		if st := c.Stats(); st.Handoffs != 1 || st.Held != 2 || st.Reconnects != 0 || st.Failed != 0 || st.Sent != 3 || st.Answered != 3 || st.Conns != 1 {
			t.Errorf("stats: %+v", st)
		}
	})
	sub(t, "an ordinary loss is none of it", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		_, a := s.connect(Options{OnEvent: j.add, KeepAlive: -1})
		a.moving(17, 1, addrB)
		b := s.readyAt(addrB)
		time.Sleep(time.Hour)
		seen := len(j.all())
		s.refuseAll()
		b.Close()
		time.Sleep(120 * time.Millisecond)
		s.refuseNone()
		s.accept().handshake()
		synctest.Wait()
		kinds := map[EventKind]bool{}
		for _, e := range j.all()[seen:] {
			kinds[e.Kind] = true
			if e.Seq != 0 || e.Successor != "" {
				t.Errorf("an hour after the handoff %v says that it belongs to number %d, to %s", e.Kind, e.Seq, e.Successor)
			}
		}
		if !kinds[EventLost] || !kinds[EventDialFailed] || !kinds[EventConnected] || kinds[EventPromoted] {
			t.Errorf("events: %v", j.all()[seen:])
		}
	})
	sub(t, "every handoff's old connection is reported closed", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, Timeout: time.Hour})
		one := async(c, "GET", "1")
		a.moving(1, 1, addrB)
		b := s.readyAt(addrB)
		time.Sleep(time.Second)
		b.moving(2, 1, addrC)
		s.readyAt(addrC)
		a.says("+one\r\n")
		answered(t, one, "one")
		synctest.Wait()
		if p, n := j.count(EventPromoted), j.count(EventOldClosed); p != 2 || n != 2 {
			t.Errorf("%d handoffs, and %d old connections are reported closed", p, n)
		}
	})
	sub(t, "a callback that blocks costs nothing but events", func(t *testing.T) {
		block := make(chan struct{})
		s := newStage(t, func(o *Options) { o.OnEvent = func(Event) { <-block } })
		stop := load(t, s.c, 4, 10*time.Millisecond)
		for range 400 {
			s.a.Push("MIGRATING", s.a.NextSeq(), 1)
		}
		s.move(2)
		time.Sleep(5 * time.Second)
		s.nothingFailed(stop)
		if st := s.c.Stats(); st.EventsLost == 0 || st.Handoffs != 1 {
			t.Errorf("stats: %+v", st)
		}
		close(block)
	})
}

// TestCaseA49MovingInTheMiddleOfABatch: continuous load, and then the server stops replying.
func TestCaseA49MovingInTheMiddleOfABatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: 2 * time.Second, Maintenance: Maintenance{RelaxedTimeout: -1}})
		var batch Batch
		for i := range 6 {
			batch.Add("SET", i, strings.Repeat("x", 100<<10))
		}
		type result struct {
			r   []Reply
			err error
		}
		results := make(chan result, 1)
		start := time.Now()
		go func() {
			r, err := c.DoBatch(background, &batch)
			results <- result{r, err}
		}()
		synctest.Wait() // its write has stopped in the middle
		a.moving(1, 5, addrB)
		b := s.readyAt(addrB)
		go b.echo()
		held := async(c, "GET", "1")
		if took := reply(t, held); took.Err() != nil || time.Since(start) > time.Second {
			t.Errorf("the hold ended after %v: %v", time.Since(start), took.Err())
		}
		// The rest of the batch is still written to where it was begun.
		for i := range 6 {
			a.expects(fmt.Sprintf("SET %d %s", i, strings.Repeat("x", 100<<10)))
			a.says("+" + strconv.Itoa(i) + "\r\n")
		}
		r := <-results
		if r.err != nil || len(r.r) != 6 || textOf(r.r[5]) != "5" {
			t.Errorf("the batch: %v, %v", r.r, r.err)
		}
	})
	sub(t, "and the server stops replying", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Second, Maintenance: Maintenance{RelaxedTimeout: -1}})
		one := async(c, "GET", "1")
		a.moving(1, 5, addrB)
		b := s.readyAt(addrB)
		go b.echo()
		answered(t, async(c, "GET", "2"), "GET 2")
		failedWith(t, "the straggler", one, ErrTimeout, true)
		time.Sleep(2 * time.Second) // silent for twice the timeout
		if !a.hungUp() {
			t.Error("a silent retired connection is kept")
		}
	})
}

// TestHandoffsThatFailLeaveNothing (A33, A42) has announcement after announcement fail, and looks at what is left of them.
func TestHandoffsThatFailLeaveNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.DialTimeout, o.Maintenance.RelaxedTimeout = time.Second, time.Second })
		s.b.Refuse(true)
		stop := load(t, s.c, 2, 50*time.Millisecond)
		synctest.Wait()
		before := runtime.NumGoroutine()
		for seq := range 1000 {
			s.a.Push("MOVING", seq, 1, s.b.Addr())
			time.Sleep(20 * time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > before+3 {
			t.Errorf("%d goroutines, %d before", n, before)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines in the end, %d before", n, before)
		}
		s.nothingFailed(stop)
		s.serves(s.a)
		if st := s.c.Stats(); st.Conns != 1 || s.a.Conns() != 1 {
			t.Errorf("stats: %+v", st)
		}
	})
}

// TestThousandHandoffs goes to and fro between two servers, in virtual time.
func TestThousandHandoffs(t *testing.T) {
	handoffs := 1000
	if testing.Short() {
		handoffs = 100
	}
	bubble(t, func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.OnEvent = nil })
		s.a.Delay("INCR", 100*time.Microsecond)
		s.b.Delay("INCR", 100*time.Microsecond)
		stop := load(t, s.c, 8, 50*time.Millisecond)
		from, to := s.a, s.b
		heap := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		var goroutines int
		var used uint64
		for i := range handoffs {
			if i == handoffs/10 {
				synctest.Wait()
				goroutines, used = runtime.NumGoroutine(), heap()
			}
			from.Move(to.Addr(), time.Second)
			time.Sleep(1010 * time.Millisecond)
			if n := s.c.Stats().Handoffs; n != uint64(i+1) || from.Conns() != 0 || to.Conns() != 1 {
				t.Fatalf("handoff %d: %d done, %d connections to the old server, %d to the new one", i+1, n, from.Conns(), to.Conns())
			}
			from, to = to, from
		}
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > goroutines+4 { // one of each handoff would be hundreds
			t.Errorf("%d goroutines, %d after a tenth of it", n, goroutines)
		}
		if n := heap(); n > used+2<<20 {
			t.Errorf("a heap of %d KiB, %d after a tenth of it", n>>10, used>>10)
		}
		s.nothingFailed(stop)
		s.statsAreClean()
		if n := len(s.dials.to()); n != handoffs+1 {
			t.Errorf("%d dials for %d handoffs", n, handoffs)
		}
	})
}

var randomSeed = flag.Uint64("baton.seed", 0, "run the tests that choose an order by a seed with this one alone")

// TestHandoffWithoutAUsableSuccessor: A4, A26, A34, A37. The configured address is dialled at half of the window.
func TestHandoffWithoutAUsableSuccessor(t *testing.T) {
	for _, endpoint := range []string{"_", "$-1", "$0\r\n", "$4\r\nnull", "$1\r\n?", "$6\r\n?:7002", "$5\r\n:7002", "$20\r\nhost-1.example.com:0", "$18\r\nhost-1.example.com", "*0"} {
		sub(t, fmt.Sprintf("%q", endpoint), func(t *testing.T) {
			s := newScript(t)
			j := &journal{}
			c, a := s.connect(Options{OnEvent: j.add})
			start := time.Now()
			a.says(">4\r\n$6\r\nMOVING\r\n:0\r\n:15\r\n" + endpoint + "\r\n")
			one := async(c, "GET", "1")
			b := s.readyAt(addrA)
			if at := time.Since(start); at < 7500*time.Millisecond || at > 8500*time.Millisecond {
				t.Errorf("it was dialled after %v, want half of the window and the jitter", at)
			}
			a.says("+one\r\n")
			answered(t, one, "one")
			go b.echo()
			answered(t, async(c, "GET", "2"), "GET 2")
			if e := j.of(EventNotification); len(e) != 1 || e[0].Successor != "" || e[0].Window != 15*time.Second {
				t.Errorf("events: %+v", e)
			}
			if n := len(s.dialled()); n != 2 {
				t.Errorf("dialled %v", s.dialled())
			}
		})
	}
}

func TestHandoffOfAUnixSocket(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		var networks []string
		var mu sync.Mutex
		results := make(chan *Client)
		go func() {
			c, err := Dial(background, Options{Network: "unix", Addr: "/run/redis.sock", Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				mu.Lock()
				networks = append(networks, network)
				mu.Unlock()
				nc, err := s.dial(ctx, network, addr)
				return nc.(*addressed).Conn, err // as a socket without an address to speak of
			}})
			if err != nil {
				t.Error(err)
			}
			results <- c
		}()
		a := s.acceptAt("/run/redis.sock")
		a.handshake()
		c := <-results
		t.Cleanup(func() { c.Close() })
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		go b.echo()
		answered(t, async(c, "GET", "1"), "GET 1")
		if !slices.Equal(networks, []string{"unix", "tcp"}) {
			t.Errorf("dialled over %v", networks)
		}
	})
}

// TestHandoffANewerAnnouncementWithoutAConnection is followed at once: there is nobody to be considerate of.
func TestHandoffANewerAnnouncementWithoutAConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 2})
		a2 := s.readyAt(addrA)
		s.refuseAll(addrA, addrB)
		a1.moving(1, 100, addrB)
		synctest.Wait()
		a1.Close()
		time.Sleep(20 * time.Second) // it is in the middle of a pause of a second
		a2.moving(2, 100, addrC)
		waiting := []<-chan Reply{async(c, "GET", "1"), async(c, "GET", "2")} // one of them to the bridge without a connection
		go a2.echo()
		for range 2 {
			go s.readyAt(addrC).echo()
		}
		for i, ch := range waiting {
			answered(t, ch, fmt.Sprint("GET ", i+1))
		}
		if n := c.Stats().Handoffs; n != 2 {
			t.Errorf("%d handoffs", n)
		}
	})
	sub(t, "by the bridge that has none", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		s.refuseAll(addrA, addrB)
		// The old connection is lost while its last words are still to be read: a newer announcement.
		a.moving(1, 100, addrB)
		time.Sleep(10 * time.Second)
		start := time.Now()
		a.moving(2, 100, addrC)
		a.Close()
		s.readyAt(addrC)
		if took := time.Since(start); took != 0 {
			t.Errorf("without a connection the newer successor was dialled after %v", took)
		}
		inPhase(t, c, PhaseDone)
	})
}

// TestHandoffWithoutTimeouts: a negative Timeout is none, and the handoff has its own clock.
func TestHandoffWithoutTimeouts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: -1})
		slow := async(c, "GET", "slow")
		a.moving(1, 2, addrB)
		b := s.readyAt(addrB)
		start := time.Now()
		held := async(c, "GET", "held")
		b.expects("GET held")
		if took := time.Since(start); took != 50*time.Millisecond {
			t.Errorf("held for %v", took)
		}
		b.says("+value\r\n")
		answered(t, held, "value")
		time.Sleep(24 * time.Hour)
		a.says("+at last\r\n")
		answered(t, slow, "at last")
	})
	sub(t, "and a handoff that is given up", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: -1})
		s.refuseAll()
		a.moving(1, 2, addrB)
		time.Sleep(time.Minute)
		inPhase(t, c, PhaseDone)
	})
}

// TestHandoffCredentialsThatBlock for ever cost a dial each time, and the old connection serves.
func TestHandoffCredentialsThatBlock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		block := make(chan struct{})
		t.Cleanup(func() { close(block) })
		var asked atomic.Int32
		c, a := s.connect(Options{DialTimeout: time.Second, KeepAlive: -1, Maintenance: Maintenance{RelaxedTimeout: time.Second},
			Credentials: func(context.Context) (string, string, error) {
				if n := asked.Add(1); n > 1 && n < 6 {
					<-block
				}
				return "u", "p", nil
			}})
		one := async(c, "GET", "1")
		a.moving(1, 10, addrB)
		time.Sleep(3 * time.Second)
		a.says("+one\r\n")
		answered(t, one, "one")
		b := s.accept() // the configured address may have its turn
		b.handshake()
		go b.echo()
		synctest.Wait()
		answered(t, async(c, "GET", "2"), "GET 2")
		if n := asked.Load(); n != 6 {
			t.Errorf("credentials were asked for %d times", n)
		}
	})
}

// TestLastHandoffOfSeveralConns is that of all of them together.
func TestLastHandoffOfSeveralConns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a1 := s.connect(Options{Conns: 2, Timeout: time.Minute})
		a2 := s.readyAt(addrA)
		one, two := async(c, "GET", "1"), async(c, "GET", "2")
		a1.moving(3, 1, addrB)
		a2.moving(3, 1, addrB)
		b1, b2 := s.acceptAt(addrB), s.acceptAt(addrB)
		b1.handshake()
		synctest.Wait()
		if h := c.Stats().LastHandoff; !h.Ready.IsZero() || !h.Promoted.IsZero() || h.Seq != 3 || h.Successor != addrB || h.Received.IsZero() {
			t.Errorf("with one of two ready: %+v", h)
		}
		three, four := async(c, "GET", "3"), async(c, "GET", "4") // one of them is held
		time.Sleep(time.Second)
		b2.handshake()
		synctest.Wait()
		ready := time.Now()
		time.Sleep(time.Second)
		if h := c.Stats().LastHandoff; h.Ready != ready || h.Promoted != ready.Add(50*time.Millisecond) || h.HeldMax != 50*time.Millisecond || h.Held != 1 || !h.Closed.IsZero() {
			t.Errorf("with both promoted: %+v", h)
		}
		a1.says("+x\r\n+x\r\n")
		a2.says("+x\r\n+x\r\n")
		b1.says("+x\r\n")
		b2.says("+x\r\n")
		for _, ch := range []<-chan Reply{one, two, three, four} {
			reply(t, ch)
		}
		synctest.Wait()
		if h := c.Stats().LastHandoff; h.Closed.IsZero() {
			t.Errorf("with both over: %+v", h)
		}
	})
}
