package baton

// Where one caller's use of a connection meets another's: the end of a session and who comes next, calls of Subscribe side by side, a server
// that refuses or ends what was not expected to be, connections that end at the moment at which they take over. Each test shows a fault
// that was once there.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// --- sessions and what blocks ---

// seamSlow is a context that takes its time to say, when it is asked again, whether it has ended.
type seamSlow struct {
	context.Context
	asked atomic.Bool
}

func (s *seamSlow) Err() error {
	if s.asked.Swap(true) {
		time.Sleep(time.Second)
	}
	return s.Context.Err()
}

func TestWhatAnEndedSessionHadQueuedIsNeverWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		s.say = answers{"ECHO": loneOwed}
		c := s.client(Options{MaxDedicated: 1, MaxInFlight: 1})
		first := loneSession(t, c)
		blocked := loneAsync(func() Reply { return first.Do(background, "ECHO", "k") })
		queued := loneAsync(func() Reply { return first.Do(&seamSlow{Context: background}, "SET", "x", "1") })
		first.Close()
		second := loneSession(t, c)
		if err := second.Do(background, "GET", "y").Err(); err != nil {
			t.Error(err)
		}
		failedWith(t, "what was in flight", blocked, ErrClosed, true)
		failedWith(t, "what was queued", queued, ErrClosed, false)
		if n := s.times("SET x 1"); n != 0 {
			t.Errorf("it was written %d times", n)
		}
	})
}

func TestASessionThatBlockedEndsNobodyElse(t *testing.T) {
	for _, slow := range []bool{false, true} {
		for _, next := range []string{"a session", "what blocks"} {
			for range 3 { // which of the callers wakes first is left to chance
				sub(t, fmt.Sprintf("then %s, slow %v", next, slow), func(t *testing.T) {
					s, ctx := newLone(t), background
					if slow {
						ctx = &seamSlow{Context: background}
					}
					c := s.client(Options{MaxDedicated: 1})
					first := loneSession(t, c)
					blocked := loneAsync(func() Reply { return first.Do(ctx, "BLPOP", "k", 0) })
					first.Close()
					do := c.Do
					if next == "a session" {
						do = loneSession(t, c).Do
					}
					after := loneAsync(func() Reply { return do(background, "BLPOP", "l", 100) })
					time.Sleep(2 * time.Second)
					s.who("BLPOP l 100").unblock(loneBulk("it"))
					answered(t, after, "it")
					failedWith(t, "the first", blocked, ErrClosed, true)
				})
			}
		}
	}
}

// A server repeats its announcement to whoever opts in, so what the connection before waited for may be half an hour away.
func TestWhoComesAfterACallerWhoLeftIsConnectedAtOnce(t *testing.T) {
	for _, window := range []int{60, 3600} {
		sub(t, fmt.Sprintf("window %d s", window), func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{})
			s.announce(noName(1, window))
			ctx, cancel := context.WithCancel(background)
			left := asyncIn(ctx, c, "BLPOP", "k", 0)
			s.who("BLPOP k 0").says(noName(1, window))
			synctest.Wait()
			cancel()
			failedWith(t, "who left", left, context.Canceled, true)
			next := async(c, "BLPOP", "l", 100)
			time.Sleep(time.Second)
			s.who("BLPOP l 100").unblock(loneBulk("it"))
			answered(t, next, "it")
		})
	}
}

func TestATimeoutIsNotBlamedOnWhoCameBefore(t *testing.T) {
	for before, use := range map[string]func(t *testing.T, c *Client){
		"a session that was closed": func(t *testing.T, c *Client) { loneSession(t, c).Close() },
		"a caller who left":         func(t *testing.T, c *Client) { c.Do(background, "BLPOP", "k", 1) },
	} {
		for now, call := range map[string]func(c *Client) error{
			"a session":   func(c *Client) error { _, err := c.Session(background); return err },
			"what blocks": func(c *Client) error { return c.Do(background, "BLPOP", "k", 1).Err() },
		} {
			sub(t, before+", then "+now, func(t *testing.T) {
				s := newLone(t)
				c := s.client(Options{MaxDedicated: 1, Timeout: time.Second})
				use(t, c)
				defer s.stalls()()
				if err := call(c); !errors.Is(err, ErrTimeout) || errors.Is(err, ErrClosed) || strings.Contains(err.Error(), "left") {
					t.Error(err)
				}
			})
		}
	}
}

func TestAHandoffThatACallerLeftHasAnEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		ctx, cancel := context.WithCancel(background)
		left := asyncIn(ctx, c, "BLPOP", "k", 0)
		s.announce(movingFrame(1, 15, addrB))
		cancel()
		failedWith(t, "who left", left, context.Canceled, true)
		time.Sleep(time.Minute)
		if h := c.Stats().LastHandoff; h.Promoted.IsZero() || h.Closed.IsZero() {
			t.Errorf("after a minute: %+v", h)
		}
	})
}

func TestMaxDedicatedMayBeWithoutALimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newLone(t).client(Options{MaxDedicated: math.MaxInt})
		loneSession(t, c)
		if err := c.Renew(background); err != nil {
			t.Error(err)
		}
	})
}

// What is counted of a connection goes over to the client's own count when it has ended.
func TestCountsNeverGoDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newLone(t).client(Options{})
		var wg sync.WaitGroup
		var over atomic.Int32
		for range 3 {
			wg.Go(func() {
				defer over.Add(1)
				for range 150 {
					session := loneSession(t, c)
					session.Do(background, "GET", "x")
					session.Close()
				}
			})
		}
		for last := (Stats{}); over.Load() < 3; {
			now := c.Stats()
			if now.Sent < last.Sent || now.Answered < last.Answered || now.Failed < last.Failed {
				t.Fatalf("%+v\nafter %+v", now, last)
			}
			last = now
		}
		wg.Wait()
	})
}

// seamStuck is a connection whose writes fail from some moment on, and whose Close blocks.
type seamStuck struct {
	net.Conn
	fails, over chan struct{}
}

func (s *seamStuck) Write(b []byte) (int, error) {
	select {
	case <-s.fails:
		return 0, errors.New("broken pipe")
	default:
		return s.Conn.Write(b)
	}
}

func (s *seamStuck) Close() error { <-s.over; return s.Conn.Close() }

func TestWhatALostConnectionHasInFlightTimesOut(t *testing.T) {
	for _, kind := range []string{"ordinary", "session"} {
		sub(t, kind, func(t *testing.T) {
			s := newLone(t)
			s.say = answers{"ECHO": loneOwed}
			fails, over := make(chan struct{}), make(chan struct{})
			defer close(over)
			c := s.client(Options{Timeout: time.Second, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &seamStuck{nc, fails, over} })})
			do := c.Do
			if kind == "session" {
				do = loneSession(t, c).Do
			}
			first := loneAsync(func() Reply { return do(background, "ECHO", "1") })
			close(fails)
			second := loneAsync(func() Reply { return do(background, "ECHO", "2") })
			time.Sleep(time.Minute)
			if len(first) != 1 || len(second) != 1 {
				t.Errorf("after a minute %d and %d of them are over", len(first), len(second))
			}
		})
	}
}

func TestASessionThatWasLostAndThenClosedIsClosed(t *testing.T) {
	for by, end := range map[string]func(*Client, *Session){
		"Session.Close": func(_ *Client, s *Session) { s.Close() },
		"Client.Close":  func(c *Client, _ *Session) { c.Close() },
	} {
		sub(t, by, func(t *testing.T) {
			s := newLone(t)
			c := s.client(Options{})
			session := loneSession(t, c)
			s.all()[1].Close()
			synctest.Wait()
			failedWith(t, "lost", loneAsync(func() Reply { return session.Do(background, "GET", "x") }), ErrNoConnection, false)
			end(c, session)
			failedWith(t, "closed", loneAsync(func() Reply { return session.Do(background, "GET", "x") }), ErrClosed, false)
		})
	}
}

func TestWatchBeginsAgainWhereverItsSessionWasLostBeforeEXEC(t *testing.T) {
	for _, at := range []string{"PING", "WATCH", "GET"} {
		sub(t, at, func(t *testing.T) {
			s := newLone(t)
			s.say = answers{at: hangUp, "EXEC": "*1\r\n+OK\r\n"}
			c := s.client(Options{})
			tries := 0
			done := later(func() error {
				_, err := c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
					tries++
					tx.Add("SET", "k", 1)
					return session.Do(background, "GET", "k").Err()
				})
				return err
			})
			synctest.Wait()
			s.set(func() { delete(s.say, at) })
			if err := done(); err != nil || at == "GET" && tries == 1 {
				t.Errorf("%v after %d tries", err, tries)
			}
		})
	}
}

func TestWatchOfWhoClosesItsSessionEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		c := s.client(Options{})
		tries := 0
		_, err := c.Watch(background, []string{"k"}, func(session *Session, tx *Batch) error {
			if tries++; tries > 10 {
				return errors.New("enough")
			}
			session.Close()
			tx.Add("SET", "x", 1)
			return nil
		})
		if !errors.Is(err, ErrClosed) || tries != 1 {
			t.Errorf("%v after %d tries", err, tries)
		}
	})
}

// --- calls of Subscribe and Add ---

// TestAddWhileAReplacementStalls: the connection in service is well, so the call waits until that is given up, and succeeds.
func TestAddWhileAReplacementStalls(t *testing.T) {
	for name, o := range map[string]Options{
		"DialTimeout 30 s":          {DialTimeout: 30 * time.Second},
		"no relaxation, Timeout 1s": {Timeout: time.Second, Maintenance: Maintenance{RelaxedTimeout: -1}},
		"defaults":                  {},
	} {
		sub(t, name, func(t *testing.T) {
			_, s, old, heard := onAir(t, o, "a")
			old.moving(1, 30, addrB)
			s.accept().handshake() // and then it says nothing any more
			synctest.Wait()
			go old.serve(confirms)
			if err := heard.Add(background, "b"); err != nil {
				t.Error(err)
			}
		})
	}
}

const seamBusy = "-BUSY Redis is busy running a script\r\n"

func TestAServerThatIsBusyRefusesASubscribeAtOnceAndNothingElseEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, s, hub, other := onAir(t, Options{}, "a")
		start, done := time.Now(), subscribing(c, "b")
		hub.obeys(answers{"SUBSCRIBE b": seamBusy, "PING": seamBusy})
		refusedWith(t, done().err, "BUSY")
		if d := time.Since(start); d > time.Second {
			t.Errorf("after %v", d)
		}
		time.Sleep(time.Minute)
		hub.says(framed("message", "a", "1"))
		receives(t, other, "a 1")
		if d := s.dialled(); len(d) != 2 {
			t.Errorf("dialled %v", d)
		}
	})
}

func TestAServerThatIsBusyHoldsUpNoLaterSubscribe(t *testing.T) {
	for _, names := range [][]string{{"x"}, {"x", "y"}} {
		sub(t, strings.Join(names, " "), func(t *testing.T) {
			c, _, hub, other := onAir(t, Options{}, "a")
			done := subscribing(c, names...)
			hub.obeys(nil)
			done().s.Close()
			hub.obeys(answers{"UNSUBSCRIBE " + strings.Join(names, " "): seamBusy, "PING": seamBusy})
			if st := c.Stats(); st.InFlight != 0 {
				t.Errorf("%d in flight", st.InFlight)
			}
			for range 60 { // it is not silent
				time.Sleep(time.Second)
				hub.says(framed("message", "a", "1"))
				receives(t, other, "a 1")
			}
			done = subscribing(c, "z")
			hub.obeys(nil)
			if err := done().err; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnUnsolicitedPushIsNoAnswerToWhatIsUnderWay(t *testing.T) {
	for _, push := range []string{"UNSUBSCRIBE a", "UNSUBSCRIBE nobody", "SUBSCRIBE nobody"} {
		sub(t, push, func(t *testing.T) {
			c, s, hub, _ := onAir(t, Options{}, "a", "c")
			done := subscribing(c, "x")
			hub.obeys(answers{"SUBSCRIBE x": confirms(push) + "-NOPERM no\r\n"})
			refusedWith(t, done().err, "NOPERM")
			hub.obeys(nil)
			time.Sleep(time.Second)
			if d := s.dialled(); hub.closed() || len(d) != 2 {
				t.Errorf("the connection was closed; dialled %v", d)
			}
		})
	}
}

func TestErrorsThatNothingAsksForEndTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _, hub, _ := onAir(t, Options{}, "a")
		done := subscribing(c, "b")
		hub.expects("SUBSCRIBE b", "PING")
		hub.says("-ERR one\r\n-ERR two\r\n-ERR three\r\n")
		synctest.Wait()
		if !hub.closed() {
			t.Error("of three errors only two can be answers")
		}
		c.Close()
		done()
	})
}

func TestAConnectionIsNotDeadBecauseAPongStandsBehindMessages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, s, hub, other := onAir(t, Options{Timeout: time.Second}, "a")
		done := subscribing(c, "b")
		hub.expects("SUBSCRIBE b", "PING")
		for range 30 { // for three seconds
			time.Sleep(100 * time.Millisecond)
			hub.says(framed("message", "a", "1"))
			receives(t, other, "a 1")
		}
		hub.says(confirms("SUBSCRIBE b") + "+PONG\r\n")
		if err := done().err; !errors.Is(err, ErrTimeout) {
			t.Errorf("Subscribe: %v", err)
		}
		hub.obeys(nil)
		if d := s.dialled(); hub.closed() || len(d) != 2 {
			t.Errorf("the connection was closed; dialled %v", d)
		}
	})
}

func TestResubscribingMayTakeLongerThanATimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.Timeout = 100 * time.Millisecond })
		r.set(func() {
			r.hook = func(s airStep) {
				if !s.after {
					time.Sleep(time.Millisecond)
				}
			}
		})
		e := tune(t, c, "c0")
		for i := range 200 {
			tune(t, c, fmt.Sprint("c", i+1))
		}
		r.hub().kill()
		time.Sleep(10 * time.Second)
		if d := r.dialled(); len(d) != 3 {
			t.Errorf("%d dials, want 3", len(d))
		}
		r.publish("c0")
		e.hears(t, "gap -1", "c0 1")
	})
}

func TestWhoAddsWhatAnotherCallAddsKeepsIt(t *testing.T) {
	sub(t, "the other is refused in part", func(t *testing.T) {
		_, _, hub, s := onAir(t, Options{}, "a")
		one := later(func() error { return s.Add(background, "x", "y") })
		hub.expects("SUBSCRIBE x", "SUBSCRIBE y", "PING")
		two := later(func() error { return s.Add(background, "x") })
		synctest.Wait()
		hub.says(confirms("SUBSCRIBE x") + "-NOPERM no\r\n+PONG\r\n")
		hub.obeys(nil)
		refusedWith(t, one(), "NOPERM")
		if err := two(); err != nil {
			t.Error(err)
		}
		hub.says(framed("message", "x", "1"))
		receives(t, s, "x 1")
	})
	sub(t, "the other gives up", func(t *testing.T) {
		_, _, hub, s := onAir(t, Options{}, "a")
		ctx, cancel := context.WithCancel(background)
		one := later(func() error { return s.Add(ctx, "x") })
		hub.expects("SUBSCRIBE x", "PING")
		two := later(func() error { return s.Add(background, "x") })
		synctest.Wait()
		cancel()
		if err := one(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		hub.says(confirms("SUBSCRIBE x") + "+PONG\r\n")
		hub.obeys(nil)
		if err := two(); err != nil {
			t.Error(err)
		}
		hub.says(framed("message", "x", "1"))
		receives(t, s, "x 1")
	})
}

func TestARefusalIsNotTheReasonForWhatComesLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, hub, s := onAir(t, Options{}, "a")
		x := later(func() error { return s.Add(background, "x") })
		hub.obeys(answers{"SUBSCRIBE x": "-NOPERM no\r\n"})
		refusedWith(t, x(), "NOPERM")
		y := later(func() error { return s.Add(background, "y") })
		hub.expects("SUBSCRIBE y", "PING")
		s.Remove(background, "y")
		if err := y(); err == nil || strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("what was removed meanwhile: %v", err)
		}
	})
}

// seamLocked is a context that notes whether it is asked under a lock.
type seamLocked struct {
	context.Context
	lock *lock
	held bool
}

func (l *seamLocked) Err() error {
	if l.lock.TryLock() {
		l.lock.Unlock()
	} else {
		l.held = true
	}
	return l.Context.Err()
}

func TestASubscriptionAsksNoContextUnderItsLock(t *testing.T) {
	over, cancel := context.WithCancel(background)
	cancel()
	for name, f := range map[string]func(s *Subscription, ctx context.Context){
		"Add":     func(s *Subscription, ctx context.Context) { s.Add(ctx, "a") },
		"Remove":  func(s *Subscription, ctx context.Context) { s.Remove(ctx, "b") },
		"Receive": func(s *Subscription, ctx context.Context) { s.Receive(ctx) },
	} {
		sub(t, name, func(t *testing.T) {
			c, _, hub, s := onAir(t, Options{Timeout: -1}, "a")
			hub.says(framed("message", "a", "1"))
			for _, inner := range []context.Context{background, over} {
				synctest.Wait() // or somebody else may have the lock
				ctx := &seamLocked{Context: inner, lock: &c.hub.b.mu}
				if f(s, ctx); ctx.held {
					t.Error("it was asked under the lock")
				}
			}
		})
	}
}

func TestAnErrorSaysWhoseItIsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newLone(t)
		confirming := answers{"SUBSCRIBE a": confirms("SUBSCRIBE a"), "SUBSCRIBE x": "-NOPERM no\r\n"}
		saying := func(a answers) { s.set(func() { s.say = a }) }
		saying(confirming)
		c := s.client(Options{Timeout: time.Second, MaxDedicated: 1})
		is := func(what string, err error) {
			t.Helper()
			if text := fmt.Sprint(err); err == nil || strings.Count(text, "baton: ") != 1 {
				t.Errorf("%s: %s", what, text)
			}
		}
		a, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		is("refused", a.Add(background, "x"))
		saying(answers{"SUBSCRIBE x": loneOwed})
		is("not answered", a.Add(background, "x"))
		session := loneSession(t, c)
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		_, err = c.Session(ctx)
		is("no session left", err)
		session.Close()
		is("EXEC of a session that is closed", session.Do(background, "EXEC").Err())
		saying(answers{"": "-LOADING no\r\n", "EXEC": "-EXECABORT Transaction discarded\r\n"})
		_, err = c.DoTx(background, loneBatch("SET x 1"))
		is("a transaction that is refused", err)
		s.refuseAll()
		_, err = c.Session(background)
		is("a session with nobody there", err)
		for _, l := range s.all() {
			l.Close()
		}
		_, err = c.Subscribe(background, "z")
		is("Subscribe with nobody there", err)
		c.Close()
		_, err = c.Subscribe(background, "z")
		is("Subscribe when it is closed", err)
		_, err = c.Session(background)
		is("Session when it is closed", err)
		for err = nil; err == nil || errors.Is(err, ErrGap); {
			_, err = a.Receive(background)
		}
		is("Receive when it is closed", err)
	})
}

// Whatever a subscriber keeps of a message, it is that alone, and a message is in memory once, however many wait for it.
func TestAMessageIsKeptOnceAndItsNamesApartFromIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _, hub, one := onAir(t, Options{}, "a")
		two, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		hub.says(framed("message", "a", "payload"))
		synctest.Wait()
		first, second := one.queue[0], two.queue[0]
		if unsafe.StringData(first.payload) != unsafe.StringData(second.payload) {
			t.Error("the payload was copied for each subscriber")
		}
		m, err := one.Receive(background)
		if err != nil || string(m.Payload) != "payload" {
			t.Errorf("%q, %v", m.Payload, err)
		}
		if unsafe.StringData(m.Channel) == unsafe.StringData(first.channel) {
			t.Error("who keeps the channel's name keeps all that was read with it")
		}
	})
}

// --- connections that are subscribed, at their beginning and end ---

func TestWhatIsUnsubscribedAsSoonAsItIsConfirmedGoesOn(t *testing.T) {
	for range 5 { // who gets the lock first is left to chance
		bubble(t, func(t *testing.T) {
			_, s, hub, a := onAir(t, Options{}, "a")
			hub.Close()
			hub = s.accept()
			hub.handshake()
			hub.expects("SUBSCRIBE a", "PING")
			hub.says(confirms("SUBSCRIBE a") + "+PONG\r\n" + confirms("UNSUBSCRIBE a"))
			time.Sleep(time.Second)
			if got := wordsOf(hub.obeys(nil), "SUBSCRIBE"); !slices.Equal(got, []string{"a"}) {
				t.Errorf("%q were subscribed again", got)
			}
			hub.says(framed("message", "a", "1"))
			receives(t, a, "gap -1", "a 1")
		})
	}
}

func TestAServerThatAlwaysUnsubscribesIsNotAskedInATightLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		e, asked := tune(t, c, "a"), 0
		hub := r.hub()
		r.set(func() {
			r.hook = func(s airStep) {
				if time.Sleep(25 * time.Microsecond); s.command == "SUBSCRIBE a" && s.after {
					asked++
					hub.say(confirmation("UNSUBSCRIBE", "a", 0))
				}
			}
		})
		hub.say(confirmation("UNSUBSCRIBE", "a", 0))
		time.Sleep(time.Second)
		r.set(func() { r.hook = nil })
		if asked < 2 || asked > 50 {
			t.Errorf("it was asked %d times in a second", asked)
		}
		time.Sleep(time.Minute)
		r.publish("a")
		time.Sleep(time.Second)
		if heard, err := e.all(); err != nil || !slices.Contains(heard, "a 1") {
			t.Errorf("in the end it heard %q, %v", heard, err)
		}
	})
}

// What was dialled instead may be the client's connection by then, and would be taken out again.
func TestAConnectionThatEndsRightBehindItsPongDoesNotTakeOver(t *testing.T) {
	for range 30 { // how far the end has come when the answer is known is left to chance
		bubble(t, func(t *testing.T) {
			c, _, hub, _ := onAir(t, Options{}, "a")
			h := c.hub
			ended := later(func() error {
				h.b.mu.Lock()
				defer h.b.mu.Unlock()
				f := h.feeds[h.b.cur]
				if _, err := h.fenceLocked(f, nil, nil); err == nil && !f.c.aliveLocked() {
					return errors.New("a connection that has ended was found good")
				}
				return nil
			})
			hub.expects("PING")
			hub.says("+PONG\r\n")
			hub.Close()
			if err := ended(); err != nil {
				t.Fatal(err)
			}
			c.Close()
		})
	}
}

func TestAHandoffAwayFromABusyServerMissesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, s, old, sub := onAir(t, Options{}, "a", "b")
		old.moving(1, 30, addrB)
		next := s.accept()
		next.handshake()
		for i := range 20 {
			next.obeys(nil)
			old.says(framed("message", "a", fmt.Sprint(i)))
			next.says(framed("message", "a", fmt.Sprint(i)))
			old.obeys(answers{"PING": seamBusy, "UNSUBSCRIBE a b": seamBusy})
			receives(t, sub, fmt.Sprint("a ", i))
			time.Sleep(500 * time.Millisecond)
		}
		receivesNothing(t, sub)
		if st := c.Stats(); st.Handoffs != 1 || !old.closed() {
			t.Errorf("after 10 s: %+v", st)
		}
	})
}

func TestOneSubscriptionsOrderIsKeptAcrossItsChannels(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		e := tune(t, c, "a", "b")
		old := r.hub()
		var asked []string
		r.set(func() {
			r.hook = func(s airStep) {
				if s.l == old && strings.HasPrefix(s.command, "UNSUBSCRIBE") {
					if asked = append(asked, s.command); !s.after {
						r.publish("a", "b")
					}
				}
			}
		})
		old.move(1, 30, addrB)
		time.Sleep(5 * time.Second)
		if e.hears(t, "a 1", "b 1"); !slices.Equal(asked, []string{"UNSUBSCRIBE a b", "UNSUBSCRIBE a b"}) {
			t.Errorf("the old connection was told %q", asked)
		}
	})
}

func TestTheOverlapIsTheFewestThatAreCertainOrElseTheMost(t *testing.T) {
	slow := func(before, after []published, least int) (most int) {
		for n := range min(len(before), len(after)) + 1 {
			if slices.Equal(before[len(before)-n:], after[:n]) {
				if most = n; n >= least {
					break
				}
			}
		}
		return most
	}
	var all [][]published // of two payloads, up to six of them
	for n := range 7 {
		for bits := range 1 << n {
			some := make([]published, n)
			for i := range some {
				some[i].payload = string(rune('a' + bits>>i&1))
			}
			all = append(all, some)
		}
	}
	for _, before := range all {
		for _, after := range all {
			for least := range 8 {
				if got, want := overlap(before, after, least), slow(before, after, least); got != want {
					t.Fatalf("%v %v %d: %d, want %d", before, after, least, got, want)
				}
			}
		}
	}
}
