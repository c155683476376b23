package baton

// Faults that were once in the code, and what shows each.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"example.com/baton/batontest"
)

// A Dial that fails leaves its timers, and with them its client.
func TestADialThatFailsLeavesNothing(t *testing.T) {
	var kept []weak.Pointer[guard]
	for range 20 {
		func() {
			g := &guard{}
			kept = append(kept, weak.Make(g))
			_, err := Dial(background, Options{Addr: "x:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
				return nil, fmt.Errorf("no: %d", g.n)
			}})
			if err == nil {
				t.Fatal("dialled")
			}
		}()
	}
	eventually(t, "clients whose Dial failed are not in memory any more, but for the last", func() bool {
		runtime.GC()
		left := 0
		for _, w := range kept {
			if w.Value() != nil {
				left++
			}
		}
		return left <= 1
	})
}

type guard struct{ n [1024]int }

// ErrMaintenance of a command that failed during a Renew.
func TestARenewalIsNoMaintenance(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{})
		go c.Renew(background)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		err := c.Do(ctx, "GET", "k").Err()
		if errors.Is(err, ErrMaintenance) {
			t.Errorf("a context's end during Renew: %v", err)
		}
		_ = p
		c.Close()
		(<-s.peers).Close()
	})
}

// The pin after its deadline.
func TestRenewAfterTheDeadlineDialsTheConfiguredAddress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEchoes(t, Options{Addr: nodeA})
		e.announce(naming(10, 5, nodeB))
		time.Sleep(7 * time.Second)
		if err := e.c.Renew(background); err != nil {
			t.Fatal(err)
		}
		_, to := e.dialledAt()
		if last := to[len(to)-1]; last != nodeA {
			t.Errorf("Renew 2 s after the deadline dialled %s", last)
		}
	})
}

func TestALossAfterTheDeadlineIsDialledAtTheConfiguredAddress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// two connections; the second sits on another node and is told nothing
		e := newEchoes(t, Options{Addr: nodeA, Conns: 2})
		e.began = time.Now()
		e.connected()[0].says(naming(10, 5, nodeB))
		time.Sleep(7 * time.Second)
		e.connected()[1].Close()
		time.Sleep(time.Second)
		_, to := e.dialledAt()
		if last := to[len(to)-1]; last != nodeA {
			t.Errorf("a connection lost 2 s after the deadline was dialled at %s", last)
		}
	})
}

// Losses while Holding give further attempts.
func TestALossInAHoldGivesNoAttemptBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		var n atomic.Int32
		var last, old atomic.Pointer[peer] // last: that connected last; old: that has a command which it does not answer
		s.attend(func(p *peer) {
			p.handshakeSaying(map[bool]string{true: noName(10, 60)}[n.Add(1) > 1])
			last.Store(p)
			for c := p.command(); c != ""; c = p.command() {
				old.Store(p)
			}
			p.Close()
		})
		j := &journal{}
		var c *Client
		c = dialOptions(t, Options{Addr: nodeA, Dialer: s.dial, Timeout: -1, KeepAlive: -1, OnEvent: func(e Event) {
			j.add(e)
			switch e.Kind {
			case EventPreparing: // a command is in flight when the replacement comes
				go c.Do(background, "GET", "k")
			case EventHolding: // the server cuts the old connection while new work is held
				old.Load().Close()
			}
		}})
		time.Sleep(time.Millisecond)
		last.Load().says(noName(10, 60))
		time.Sleep(69 * time.Second)
		if d := len(s.dialled()) - 1; d > 4 {
			t.Errorf("%d dials for one announcement, with %d holds and %d losses", d, j.count(EventHolding), j.count(EventLost))
		}
	})
}

// The poll and the spacing.
func TestWhatThePollFindsKeepsItsDistance(t *testing.T) {
	bubble(t, func(t *testing.T) {
		z := newZone(t, nodeA, nodeB)
		var seq atomic.Int32
		e := newEchoes(t, Options{Resolver: z.resolver()})
		e.told.Lock()
		e.behind = func(string) string { return noName(int(seq.Add(1))+10, 15) }
		e.told.Unlock()
		e.announce(noName(10, 15))
		time.Sleep(1000 * time.Second)
		at, _ := e.dialledAt()
		if len(at) > 160 {
			t.Errorf("%d dials in 1,000 s; with spacings of min(10 s, half of 15 s) at most about 140", len(at))
		}
	})
}

// A MOVING of no seconds, said to each connection, of which nothing is remembered for long.
func TestAnnouncementsThatAreForgottenAtOnceKeepTheirDistance(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEchoes(t, Options{Addr: nodeA, DialTimeout: 50 * time.Millisecond, Maintenance: Maintenance{RelaxedTimeout: -1}})
		e.mu.Lock()
		e.fail = func(string) error { time.Sleep(20 * time.Millisecond); return nil } // so that it is forgotten before the third
		e.mu.Unlock()
		e.repeat(noName(10, 0))
		e.announce(noName(10, 0))
		time.Sleep(100 * time.Second)
		if at, _ := e.dialledAt(); len(at) > 220 {
			t.Errorf("%d dials in 100 s, want two a second at most", len(at))
		}
	})
}

// Stale lastDialErr.
func TestAnErrorOfLongAgoIsNotBlamed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		var refuse atomic.Bool
		s.fail = func(addr string) error {
			if refuse.Load() {
				return errors.New("yesterday's refusal")
			}
			return nil
		}
		c, p := s.connect(Options{Addr: nodeA})
		refuse.Store(true)
		time.Sleep(time.Millisecond)
		p.moving(10, 5, nodeB)
		time.Sleep(24 * time.Minute)
		refuse.Store(false) // now dials stall
		stop := make(chan struct{})
		go func() { p.serve(answers{}.to); close(stop) }()
		err := c.Renew(background)
		if err == nil || strings.Contains(err.Error(), "yesterday") {
			t.Errorf("Renew that stalled: %v", err)
		}
		c.Close()
		<-stop
		for len(s.peers) > 0 {
			(<-s.peers).Close()
		}
	})
}

// A Close of a user's connection that blocks stops the dialler.
type stuckClose struct {
	net.Conn
	over chan struct{}
}

func (s *stuckClose) Close() error { s.Conn.Close(); <-s.over; return nil }

func TestACloseThatBlocksStopsNoDialler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		over := make(chan struct{})
		var n atomic.Int32
		s.attend(func(p *peer) {
			if n.Add(1) == 2 {
				p.says("-ERR go away\r\n")
				time.Sleep(time.Second)
				p.Close()
				return
			}
			p.handshake()
			p.serve(answers{}.to)
		})
		c := dialOptions(t, Options{Addr: nodeA, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &stuckClose{nc, over} })})
		go c.Renew(background)
		time.Sleep(20 * time.Second)
		err := c.Renew(background)
		if err != nil || n.Load() < 3 {
			t.Errorf("%v, %d dials", err, n.Load())
		}
		c.Close()
		close(over)
		time.Sleep(time.Minute)
	})
}

// A long password that an old server repeats, cut.
func TestALongPasswordIsNotToldInPart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		token := "eyJ" + strings.Repeat("s3cr3t", 40)
		s.attend(func(p *peer) {
			for c := p.command(); c != ""; c = p.command() {
				p.says(fmt.Sprintf("-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `%s`, \r\n", token[:108]))
			}
			p.Close()
		})
		_, err := Dial(background, Options{Addr: nodeA, Dialer: s.dial, Password: token, Maintenance: Maintenance{Mode: Enabled}})
		if err == nil || strings.Contains(err.Error(), "s3cr3ts3cr3t") {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Second)
	})
}

// A batch of which half was answered.
func TestAPartlyAnsweredBatchCountsByItsCommands(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{})
		var b Batch
		for range 10 {
			b.Add("INCR", "k")
		}
		r := later(func() error { _, err := c.DoBatch(background, &b); return err })
		for range 10 {
			p.command()
		}
		p.says(strings.Repeat(":1\r\n", 9))
		synctest.Wait()
		inFlight := c.Stats().InFlight
		p.Close()
		err := r()
		st := c.Stats()
		if st.Failed != 1 || st.Sent != st.Answered+st.Failed || inFlight != 1 {
			t.Errorf("sent %d, answered %d, failed %d, in flight %d: %v", st.Sent, st.Answered, st.Failed, inFlight, err)
		}
		(<-s.peers).Close()
	})
}

// After Close in a hold, nothing happens any more.
func TestNothingHappensAfterCloseInAHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		block := make(chan struct{})
		c, p := s.connect(Options{Addr: nodeA, Maintenance: Maintenance{HoldCap: time.Second}, OnEvent: j.add,
			Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &lateClose{nc, block} })})
		time.Sleep(time.Millisecond)
		go c.Do(background, "GET", "k")
		p.command()
		p.moving(10, 5, nodeB)
		q := s.accept()
		q.handshake()
		synctest.Wait()
		if j.count(EventHolding) != 1 {
			t.Fatal("no hold")
		}
		c.Close()
		p.says("$1\r\nx\r\n")
		synctest.Wait()
		st := c.Stats()
		if st.Handoffs != 0 || j.count(EventPromoted) != 0 {
			t.Errorf("promoted after Close")
		}
		close(block)
	})
}

type lateClose struct {
	net.Conn
	over chan struct{}
}

func (s *lateClose) Close() error { <-s.over; return s.Conn.Close() }

// A dial that a give-up has cancelled is no failure of what comes next.
func TestACancelledDialIsNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, p := s.connect(Options{Addr: nodeA, OnEvent: j.add, Maintenance: Maintenance{RelaxedTimeout: -1}})
		time.Sleep(time.Millisecond)
		var refuse atomic.Bool
		refuse.Store(true)
		s.fail = func(string) error {
			if refuse.Load() {
				return errors.New("refused")
			}
			return nil
		}
		p.moving(10, 5, nodeB)
		go func() { time.Sleep(2 * time.Second); c.Renew(background) }()
		time.Sleep(9 * time.Second)
		refuse.Store(false) // the next dial stalls and is under way when the handoff is given up
		time.Sleep(3 * time.Second)
		for _, e := range j.of(EventDialFailed) {
			if errors.Is(e.Err, context.Canceled) {
				t.Errorf("%v", e.Err)
			}
		}
		c.Close()
		for len(s.peers) > 0 {
			(<-s.peers).Close()
		}
	})
}

// Another spelling of where we are.
func TestWhereWeAreInAnotherSpelling(t *testing.T) {
	for _, x := range []struct{ configured, successor string }{
		{"[2001:db8::5]:6379", "[2001:DB8:0::5]:6379"}, {"db.example.com:6379", "DB.Example.com:6379"}, {"db.example.com:6379", "db.example.com.:6379"}, {nodeA, "[::ffff:10.1.0.1]:6379"},
	} {
		t.Run(x.successor, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e := newEchoes(t, Options{Addr: x.configured})
				e.announce(naming(10, 30, x.successor))
				time.Sleep(10 * time.Second)
				at, to := e.dialledAt()
				if len(at) > 0 {
					t.Errorf("dialled where we are at %v: %v", at, to)
				}
			})
		})
	}
}

// A context with a lock of its own, whose owner holds it while he gives commands.
type locked struct {
	context.Context
	mu sync.Mutex
}

func (l *locked) Err() error { l.mu.Lock(); defer l.mu.Unlock(); return l.Context.Err() }

func TestAContextIsNotAskedUnderTheLock(t *testing.T) {
	s := newScript(t)
	s.attend(func(p *peer) {
		p.handshake()
		p.serve(answers{"GET": ""}.to) // GET is never answered
	})
	c := dialOptions(t, Options{Addr: nodeA, Dialer: s.dial})
	inner, cancel := context.WithCancel(background)
	ctx := &locked{Context: inner}
	go c.Do(ctx, "GET", "k")
	time.Sleep(100 * time.Millisecond)
	ctx.mu.Lock()
	cancel()
	time.Sleep(100 * time.Millisecond)
	over := make(chan Stats, 1)
	go func() { over <- c.Stats() }()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Error("the client stands still while a user's context is asked")
	}
	ctx.mu.Unlock()
}

func TestAnEndpointThatCannotBeDialledIsNone(t *testing.T) {
	for _, text := range []string{".:7002", "?.:7002", "..:1", "a]b:1", "a[b:1", "[ ]:1", "a b:1"} {
		if got := usableEndpoint(text); got != "" {
			t.Errorf("%q is dialled as %q", text, got)
		}
	}
	if got := usableEndpoint("db.example.com.:1"); got != "db.example.com:1" {
		t.Error(got)
	}
}

func TestParseURLMeansAllOfTheURL(t *testing.T) {
	for _, raw := range []string{"redis:db.example.com:7000", "redis://u:1#hunter2@h", "redis://h#f", "redis://h?network=hunter2", "redis://h?addr=:hunter2"} {
		if o, err := ParseURL(raw); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %+v, %v", raw, o, err)
		}
	}
	for range 50 {
		if o, err := ParseURL("redis://h/3?DB=4"); err != nil || o.DB != 3 {
			t.Errorf("%d, %v", o.DB, err)
		}
	}
}

// Whoever has subscribed misses nothing, though somebody else left the channel in the middle of the handoff.
func TestSubscriptionToAChannelThatAnotherLeftInTheHandoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := batontest.NewServer(batontest.InMemory())
		defer s.Close()
		dial := func() *Client {
			c, err := Dial(t.Context(), Options{Addr: s.Addr(), Dialer: s.Dial})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c, publisher := dial(), dial()
		defer c.Close()
		defer publisher.Close()
		first, err := c.Subscribe(t.Context(), "news")
		if err != nil {
			t.Fatal(err)
		}
		s.Delay("subscribe", time.Second)
		go c.Subscribe(t.Context(), "slow") // the current connection is being tuned
		time.Sleep(100 * time.Millisecond)
		go c.Renew(t.Context()) // its replacement waits for that
		time.Sleep(100 * time.Millisecond)
		first.Close()           // and is then asked for "slow" alone
		time.Sleep(time.Second) // which takes its time
		second, err := c.Subscribe(t.Context(), "news")
		if err != nil {
			t.Fatal(err)
		}
		var published sync.WaitGroup
		defer published.Wait()
		published.Go(func() {
			for n := range 400 {
				publisher.Do(context.Background(), "PUBLISH", "news", n)
				time.Sleep(10 * time.Millisecond)
			}
		})
		for n := range 400 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			m, err := second.Receive(ctx)
			cancel()
			if err != nil || string(m.Payload) != fmt.Sprint(n) {
				t.Errorf("%q, %v, want %d", m.Payload, err, n)
				break
			}
		}
	})
}

// A first Subscribe waits for a successor that does not answer as long as other calls do.
func TestSubscribeWaitsForAnAnnouncedSuccessor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, func(o *Options) {
			o.Timeout, o.Maintenance.RelaxedTimeout = time.Second, -1
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr == "10.9.9.9:6379" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return dial(ctx, network, addr)
			}
		})
		s.a.Move("10.9.9.9:6379", 2*time.Second)
		synctest.Wait()
		subscription, err := s.c.Subscribe(background, "x")
		if err != nil {
			t.Fatal(err)
		}
		subscription.Close()
	})
}
