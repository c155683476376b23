package baton

// Renew, MaxAge and READONLY: handoffs that no server announces. And what an operator sees of these and of the others: events in
// their order, log lines, errors that say when maintenance was under way, and no secret in any of them.

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
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

// --- Renew ---

// rotation is a database of which address, certificates and credentials change together, and which refuses the old ones.
type rotation struct {
	t     *testing.T
	ca    *authority
	nodes []*batontest.Server

	mu       sync.Mutex
	round    int
	server   *tls.Certificate
	client   *tls.Certificate
	password string
	asked    int            // how often for credentials
	hellos   map[int]string // by connection, what it said first
	wrong    []string       // what no client may say
}

func newRotation(t *testing.T) *rotation {
	r := &rotation{t: t, ca: newAuthority(t), hellos: map[int]string{}}
	conf := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		mine := r.client.Certificate[0]
		return &tls.Config{Certificates: []tls.Certificate{*r.server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: r.ca.pool,
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
				if !bytes.Equal(raw[0], mine) {
					return errors.New("an old certificate")
				}
				return nil
			}}, nil
	}}
	watch := batontest.OnCommand(func(conn int, args []string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch _, greeted := r.hellos[conn]; {
		case !greeted:
			r.hellos[conn] = strings.Join(args, " ")
		case args[0] == "HELLO" || args[0] == "AUTH":
			r.wrong = append(r.wrong, args[0]+" on a live connection")
		}
	})
	r.password = "password-0"
	a := memoryServer(t, batontest.WithTLS(conf), batontest.WithUser("app", r.password), watch)
	r.nodes = []*batontest.Server{a, a.Sibling(), a.Sibling()}
	for _, n := range r.nodes[1:] {
		t.Cleanup(n.Close)
	}
	for _, n := range r.nodes {
		n.Delay("INCR", time.Millisecond) // so that there is always something in flight
	}
	r.issueLocked()
	r.refuse()
	return r
}

func (r *rotation) issueLocked() {
	r.server, r.client = r.ca.issue(homeName), r.ca.issue("client.example.com")
}

func (r *rotation) refuse() {
	for i, n := range r.nodes {
		n.Refuse(i != r.round%len(r.nodes))
	}
}

// rotate changes everything.
func (r *rotation) rotate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	r.password = fmt.Sprintf("password-%d", r.round)
	r.issueLocked()
	r.nodes[0].SetUser("app", r.password)
	r.refuse()
}

func (r *rotation) current() *batontest.Server { return r.nodes[r.round%len(r.nodes)] }

func (r *rotation) options(conns int) Options {
	return Options{Addr: homeAddr, Conns: conns,
		TLS: &tls.Config{RootCAs: r.ca.pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.client, nil
		}},
		Credentials: func(context.Context) (string, string, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked++
			return "app", r.password, nil
		},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != homeAddr {
				r.t.Errorf("dialled %s", addr)
			}
			r.mu.Lock()
			to := r.current()
			r.mu.Unlock()
			return to.Dial(ctx, network, to.Addr())
		}}
}

// TestRenewThroughAHundredRotations: credentials, certificates and address change each time, and the old ones are refused.
func TestRenewThroughAHundredRotations(t *testing.T) {
	t.Parallel()
	for conns, rounds := range map[int]int{1: 100, 4: 15} {
		sub(t, fmt.Sprintf("conns=%d", conns), func(t *testing.T) {
			r := newRotation(t)
			dials := &dialBook{}
			o := r.options(conns)
			o.Dialer = dials.over(o.Dialer)
			c := dialOptions(t, o)
			synctest.Wait()
			stop := traffic(t, c, 8, 0)
			for i := range rounds {
				time.Sleep(20 * time.Millisecond)
				r.rotate()
				if err := c.Renew(background); err != nil {
					t.Fatalf("renewal %d: %v", i, err)
				}
				if n := c.Stats().Handoffs; n != uint64((i+1)*conns) {
					t.Fatalf("after renewal %d there were %d handoffs", i, n)
				}
				time.Sleep(60 * time.Millisecond) // the hold, and what lingers
				if n := r.current().Conns(); n != conns || r.nodes[0].Conns()+r.nodes[1].Conns()+r.nodes[2].Conns() != conns {
					t.Fatalf("after renewal %d: %d connections to the new address, %d+%d+%d in all", i, n, r.nodes[0].Conns(), r.nodes[1].Conns(), r.nodes[2].Conns())
				}
			}
			done, failed := stop()
			executed := 0
			for _, n := range r.nodes {
				executed += n.Executed("INCR")
			}
			if len(failed) > 0 || executed != done || done < 50*rounds {
				t.Errorf("%d succeeded, %d executed, %d failed: %v", done, executed, len(failed), failed)
			}
			want := conns * (rounds + 1)
			if r.asked != want || len(dials.to()) != want || len(r.hellos) != want || len(r.wrong) > 0 {
				t.Errorf("%d dials, credentials asked %d times, %d connections, want %d; %v", len(dials.to()), r.asked, len(r.hellos), want, r.wrong)
			}
			last := fmt.Sprintf("HELLO 3 AUTH app password-%d", rounds)
			n := 0
			for _, hello := range r.hellos {
				if hello == last {
					n++
				}
			}
			if n != conns {
				t.Errorf("%d connections were made with the last password, want %d", n, conns)
			}
			if st := c.Stats(); st.Reconnects != 0 || st.HandoffsGivenUp != 0 || st.Failed != 0 {
				t.Errorf("stats: %+v", st)
			}
		})
	}
}

// TestCaseE5RotationUnderLoad: eight connections, none of which is dropped or authenticated again when credentials change; every later
// dial uses the newest. E2: also the dial after a long idle time. E4: always HELLO with AUTH in it.
func TestCaseE5RotationUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRotation(t)
		dials := &dialBook{}
		o := r.options(8)
		o.Dialer = dials.over(o.Dialer)
		c := dialOptions(t, o)
		time.Sleep(10 * time.Millisecond)
		stop := traffic(t, c, 16, time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		first := r.current()
		r.rotate() // and nobody is told
		time.Sleep(time.Second)
		if first.Conns() != 8 || len(dials.to()) != 8 || c.Stats().Handoffs != 0 {
			t.Errorf("the rotation alone changed something: %d connections, %d dials", first.Conns(), len(dials.to()))
		}
		if err := c.Renew(background); err != nil {
			t.Error(err)
		}
		if done, failed := stop(); len(failed) > 0 || done == 0 {
			t.Errorf("%d commands failed: %v", len(failed), failed[0])
		}
		if n := len(dials.to()); n != 16 {
			t.Errorf("%d dials", n)
		}
		time.Sleep(20 * time.Minute)
		r.rotate()
		r.nodes[1].Cut()
		time.Sleep(5 * time.Second)
		if n := r.current().Conns(); n != 8 {
			t.Errorf("%d connections with the newest credentials after an idle time and a loss", n)
		}
		if err := c.Do(background, "PING").Err(); err != nil {
			t.Error(err)
		}
		if len(r.wrong) > 0 {
			t.Errorf("%v", r.wrong)
		}
	})
}

// TestCaseE6ARefusedPassword: Renew reports it, and the connections keep the identity that they have.
func TestCaseE6ARefusedPassword(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var password atomic.Value
		password.Store(secret)
		s := newStage(t, func(o *Options) {
			o.Credentials = func(context.Context) (string, string, error) { return "default", password.Load().(string), nil }
		}, batontest.WithUser("default", secret))
		stop := traffic(t, s.c, 4, 10*time.Millisecond)
		password.Store("wrong-" + secret)
		err := s.c.Renew(background)
		var refusal *ServerError
		if !errors.As(err, &refusal) || refusal.Code != "WRONGPASS" || strings.Contains(err.Error(), secret) {
			t.Errorf("Renew with a wrong password: %v", err)
		}
		if len(s.a.Addr()) == 0 || s.a.Conns() != 1 || s.c.Stats().Reconnects != 0 {
			t.Errorf("%d connections, stats: %+v", s.a.Conns(), s.c.Stats())
		}
		s.serves(s.a) // as who it was
		password.Store(secret)
		if err := s.c.Renew(background); err != nil {
			t.Errorf("Renew with the right one again: %v", err)
		}
		s.nothingFailed(stop)
		if err := s.c.Do(background, "AUTH", "default", secret).Err(); !errors.Is(err, ErrNotHere) {
			t.Errorf("AUTH on a live connection: %v", err)
		}
	})
}

// TestCaseA50CredentialsAndMovingAtOnce: both complete, and the new connection asks for credentials afresh.
func TestCaseA50CredentialsAndMovingAtOnce(t *testing.T) {
	for _, order := range []string{"Renew first", "MOVING first"} {
		for _, conns := range []int{1, 4} {
			sub(t, fmt.Sprintf("%s, conns=%d", order, conns), func(t *testing.T) {
				var mu sync.Mutex
				password, said := secret+"-1", map[string]int{}
				note := batontest.OnCommand(func(_ int, args []string) {
					mu.Lock()
					defer mu.Unlock()
					if args[0] == "HELLO" || args[0] == "AUTH" {
						said[strings.Join(args, " ")]++
					}
				})
				a := memoryServer(t, batontest.WithUser("default", password), note)
				b := sibling(t, a)
				dials := &dialBook{}
				c := dialMemory(t, a, func(o *Options) {
					o.Conns = conns
					o.Credentials = func(context.Context) (string, string, error) {
						mu.Lock()
						defer mu.Unlock()
						return "default", password, nil
					}
					o.Dialer = dials.over(distant(a.Dial, 2*time.Millisecond))
				})
				t.Cleanup(func() { c.Close(); time.Sleep(time.Second) })
				time.Sleep(50 * time.Millisecond)
				stop := traffic(t, c, 8, 5*time.Millisecond)
				time.Sleep(50 * time.Millisecond)
				mu.Lock()
				password = secret + "-2"
				mu.Unlock()
				a.SetUser("default", secret+"-2")
				if order == "MOVING first" {
					a.Move(b.Addr(), 4*time.Second)
				}
				renewed := later(func() error { return c.Renew(background) })
				if order == "Renew first" {
					synctest.Wait()
					a.Move(b.Addr(), 4*time.Second)
				}
				if err := renewed(); err != nil {
					t.Errorf("Renew: %v", err)
				}
				time.Sleep(10 * time.Second)
				done, failed := stop()
				if len(failed) > 0 || a.Executed("INCR")+b.Executed("INCR") != done {
					t.Errorf("%d commands failed: %v", len(failed), failed)
				}
				if b.Conns() != conns || a.Conns() != 0 {
					t.Errorf("%d connections to the old server, %d to the new one", a.Conns(), b.Conns())
				}
				mu.Lock()
				defer mu.Unlock()
				old, fresh := said["HELLO 3 AUTH default "+secret+"-1"], said["HELLO 3 AUTH default "+secret+"-2"]
				if old != conns || fresh < conns || len(said) != 2 || len(dials.to()) > 3*conns {
					t.Errorf("the servers were told %v, dials of %v", said, dials.to())
				}
			})
		}
	}
}

// whenever waits until it is so, in steps of half a millisecond.
func whenever(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Microsecond) {
		if synctest.Wait(); so() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it never came to this: %s", what)
		}
	}
}

// TestRenewInEachPhaseOfAnAnnouncedHandoff: the announcement wins, and what it dials after the call counts as renewed.
func TestRenewInEachPhaseOfAnAnnouncedHandoff(t *testing.T) {
	for _, c := range []struct {
		name string
		when func(s *stage) bool
		// What is dialled in all, and where the client ends.
		dials string
	}{
		{"in the jitter", func(s *stage) bool { return phaseOf(s.c) == PhasePreparing && s.dials.count(s.b.Addr()) == 0 }, "ab"},
		{"in the dial", func(s *stage) bool { return s.dials.count(s.b.Addr()) == 1 }, "abb"},
		{"in the handshake", func(s *stage) bool { return s.b.Executed("HELLO") == 1 }, "abb"},
		{"while work is held", func(s *stage) bool { return phaseOf(s.c) == PhaseHolding }, "abb"},
		{"just after the promotion", func(s *stage) bool { return s.c.Stats().Handoffs == 1 }, "abb"},
		{"later in the window", func(s *stage) bool {
			return time.Since(s.c.Stats().LastHandoff.Promoted) < time.Hour && s.a.Conns() == 0
		}, "abb"},
		{"when it is over", func(s *stage) bool {
			return s.c.Stats().Handoffs == 1 && time.Since(s.c.Stats().LastHandoff.Received) > 15*time.Second
		}, "aba"},
	} {
		sub(t, c.name, func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.Dialer = distant(o.Dialer, 10*time.Millisecond) })
			t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
			s.a.Delay("INCR", time.Millisecond) // one after the other, so that there is always something in flight
			s.b.Delay("INCR", time.Millisecond)
			stop := traffic(t, s.c, 3, 0)
			time.Sleep(100 * time.Millisecond)
			s.move(4)
			whenever(t, c.name, func() bool { return c.when(s) })
			began := time.Now()
			if err := s.c.Renew(background); err != nil {
				t.Errorf("Renew: %v", err)
			}
			if took := time.Since(began); took > 1500*time.Millisecond {
				t.Errorf("Renew took %v", took)
			}
			time.Sleep(6 * time.Second)
			s.nothingFailed(stop)
			dialled := ""
			for _, addr := range s.dials.to() {
				dialled += map[string]string{s.a.Addr(): "a", s.b.Addr(): "b"}[addr]
			}
			if dialled != c.dials || s.c.Stats().Handoffs != uint64(len(c.dials)-1) {
				t.Errorf("dialled %s, want %s; %d handoffs", dialled, c.dials, s.c.Stats().Handoffs)
			}
			if c.dials[len(c.dials)-1] == 'b' {
				s.serves(s.b)
			} else {
				s.serves(s.a)
			}
			s.statsAreClean()
		})
	}
	sub(t, "while it waits for half of the window", func(t *testing.T) {
		s := newStage(t, nil)
		stop := traffic(t, s.c, 3, 5*time.Millisecond)
		began := time.Now()
		s.a.Push("MOVING", 1, 14, nil)
		time.Sleep(time.Second)
		if err := s.c.Renew(background); err != nil {
			t.Errorf("Renew: %v", err)
		}
		if took := time.Since(began); took < 7*time.Second || took > 8100*time.Millisecond {
			t.Errorf("it was renewed after %v, want half of the window and the jitter: the announcement goes first", took)
		}
		time.Sleep(30 * time.Second)
		s.nothingFailed(stop)
		if n := len(s.dials.to()); n != 2 || s.c.Stats().Handoffs != 1 {
			t.Errorf("%d dials, %d handoffs", n, s.c.Stats().Handoffs)
		}
	})
	sub(t, "while its successor refuses", func(t *testing.T) {
		s := newStage(t, nil)
		s.b.Refuse(true)
		stop := traffic(t, s.c, 3, 5*time.Millisecond)
		began := time.Now()
		s.a.Push("MOVING", 1, 14, s.b.Addr())
		time.Sleep(3 * time.Second)
		if err := s.c.Renew(background); err != nil {
			t.Errorf("Renew: %v", err)
		}
		if took := time.Since(began); took < 7*time.Second || took > 10*time.Second {
			t.Errorf("it was renewed after %v, want soon after half of the window, when the configured address has its turn", took)
		}
		time.Sleep(40 * time.Second)
		s.nothingFailed(stop)
		if n := s.dials.count(s.a.Addr()); n != 2 || s.c.Stats().Handoffs != 1 {
			t.Errorf("dials of %v, %d handoffs", s.dials.to(), s.c.Stats().Handoffs)
		}
	})
}

// TestAnAnnouncementInEachPhaseOfARenewal: it wins, too.
func TestAnAnnouncementInEachPhaseOfARenewal(t *testing.T) {
	for _, c := range []struct {
		name     string
		when     func(s *stage) bool
		handoffs uint64
	}{
		{"in the dial", func(s *stage) bool { return len(s.dials.to()) == 2 }, 1},
		{"in the handshake", func(s *stage) bool { return s.a.Executed("HELLO") == 2 }, 1},
		{"while work is held", func(s *stage) bool { return phaseOf(s.c) == PhaseHolding }, 2},
		{"just after the promotion", func(s *stage) bool { return s.c.Stats().Handoffs == 1 }, 2},
	} {
		sub(t, c.name, func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.Dialer = distant(o.Dialer, 10*time.Millisecond) })
			t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
			s.a.Delay("INCR", time.Millisecond) // one after the other, so that there is always something in flight
			s.b.Delay("INCR", time.Millisecond)
			stop := traffic(t, s.c, 3, 0)
			time.Sleep(100 * time.Millisecond)
			renewed := later(func() error { return s.c.Renew(background) })
			whenever(t, c.name, func() bool { return c.when(s) })
			s.move(4)
			if err := renewed(); err != nil {
				t.Errorf("Renew: %v", err)
			}
			time.Sleep(6 * time.Second)
			s.nothingFailed(stop)
			s.serves(s.b)
			if n := len(s.dials.to()); n != 3 || s.dials.count(s.b.Addr()) != 1 || s.c.Stats().Handoffs != c.handoffs {
				t.Errorf("dials of %v, %d handoffs, want %d", s.dials.to(), s.c.Stats().Handoffs, c.handoffs)
			}
			if s.a.Conns() != 0 {
				t.Errorf("%d connections to the old server", s.a.Conns())
			}
			s.statsAreClean()
		})
	}
}

// TestRenewWhenDialsFail: they are tried again until DialTimeout has passed; the old connection serves on.
func TestRenewWhenDialsFail(t *testing.T) {
	sub(t, "for ever", func(t *testing.T) {
		s := newStage(t, nil)
		stop := traffic(t, s.c, 3, 20*time.Millisecond)
		s.a.Refuse(true)
		began := time.Now()
		err := s.c.Renew(background)
		took := time.Since(began)
		if !errors.Is(err, syscall.ECONNREFUSED) || took < 5*time.Second || took > 6500*time.Millisecond {
			t.Errorf("Renew returned %v after %v, want the last dial's error after DialTimeout, 5 s", err, took)
		}
		n := len(s.dials.to())
		if n < 6 || n > 1+1+5+6+1 { // at once, five times in the first 1.2 s, and then in 750 ms and more
			t.Errorf("%d dials", n-1)
		}
		time.Sleep(20 * time.Second)
		if st := s.c.Stats(); len(s.dials.to()) != n || st.HandoffsGivenUp != 1 || st.Handoffs != 0 || s.j.count(EventGivenUp) != 1 {
			t.Errorf("after it was given up: %d dials more, stats %+v", len(s.dials.to())-n, st)
		}
		if e := s.j.of(EventGivenUp); len(e) == 1 && (!errors.Is(e[0].Err, syscall.ECONNREFUSED) || e[0].Seq != 0 || e[0].Successor != "") {
			t.Errorf("given up: %+v", e[0])
		}
		s.a.Refuse(false)
		if err := s.c.Renew(background); err != nil || s.c.Stats().Handoffs != 1 {
			t.Errorf("Renew once more: %v, %d handoffs", err, s.c.Stats().Handoffs)
		}
		s.nothingFailed(stop)
	})
	sub(t, "for three seconds", func(t *testing.T) {
		s := newStage(t, nil)
		stop := traffic(t, s.c, 3, 20*time.Millisecond)
		s.a.Refuse(true)
		time.AfterFunc(3*time.Second, func() { s.a.Refuse(false) })
		if err := s.c.Renew(background); err != nil || s.c.Stats().Handoffs != 1 || s.j.count(EventGivenUp) != 0 {
			t.Errorf("Renew: %v, %d handoffs", err, s.c.Stats().Handoffs)
		}
		s.nothingFailed(stop)
	})
	for name, fault := range map[string]func(a *batontest.Server){
		"by stalling":     func(a *batontest.Server) { a.Stall(true) },
		"by loading":      func(a *batontest.Server) { a.SetRespond("PING", "-LOADING Redis is loading the dataset in memory\r\n") },
		"by speaking so":  func(a *batontest.Server) { a.SetRespond("HELLO", "?so\r\n") },
		"by a slow hello": func(a *batontest.Server) { a.Delay("HELLO", time.Minute) },
	} {
		sub(t, name, func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.KeepAlive = -1 })
			stop := traffic(t, s.c, 3, 20*time.Millisecond)
			fault(s.a)
			began := time.Now()
			err := s.c.Renew(background)
			took := time.Since(began)
			if err == nil || errors.Is(err, ErrClosed) || took < 5*time.Second || took > 10*time.Second {
				t.Errorf("Renew returned %v after %v", err, took)
			}
			if s.c.Stats().HandoffsGivenUp != 1 {
				t.Error("it was not given up")
			}
			time.Sleep(20 * time.Second)
			s.nothingFailed(stop)
			if n := len(s.dials.to()); n > 15 {
				t.Errorf("%d dials", n)
			}
		})
	}
}

// TestRenewAndItsContext: when it ends Renew returns, and what it has begun goes on.
func TestRenewAndItsContext(t *testing.T) {
	sub(t, "ends during the dial", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.DialTimeout = 20 * time.Second })
		s.a.Delay("HELLO", 10*time.Second)
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		began := time.Now()
		if err := s.c.Renew(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("Renew returned %v after %v", err, time.Since(began))
		}
		time.Sleep(15 * time.Second)
		if s.c.Stats().Handoffs != 1 || len(s.dials.to()) != 2 {
			t.Errorf("what was under way did not go on: %d handoffs, %d dials", s.c.Stats().Handoffs, len(s.dials.to()))
		}
		s.a.Delay("HELLO", 0)
		if err := s.c.Renew(background); err != nil {
			t.Errorf("another Renew: %v", err)
		}
		s.serves(s.a)
	})
	sub(t, "is over before", func(t *testing.T) {
		s := newStage(t, nil)
		ctx, cancel := context.WithCancel(background)
		cancel()
		if err := s.c.Renew(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Renew returned %v", err)
		}
		time.Sleep(time.Minute)
		s.serves(s.a)
		if n := len(s.dials.to()); n > 2 {
			t.Errorf("%d dials", n)
		}
	})
}

// TestRenewsTogether: whoever calls gets connections that were dialled after the call, without one dial for each caller.
func TestRenewsTogether(t *testing.T) {
	for _, conns := range []int{1, 4} {
		sub(t, fmt.Sprintf("twenty at once, conns=%d", conns), func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.Conns = conns; o.Dialer = distant(o.Dialer, 10*time.Millisecond) })
			t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
			time.Sleep(100 * time.Millisecond)
			stop := traffic(t, s.c, 6, 5*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
			var all []func() error
			for range 20 {
				all = append(all, later(func() error { return s.c.Renew(background) }))
			}
			for _, renewed := range all {
				if err := renewed(); err != nil {
					t.Errorf("Renew: %v", err)
				}
			}
			time.Sleep(time.Second)
			s.nothingFailed(stop)
			if n := len(s.dials.to()) - conns; n < conns || n > 2*conns || s.a.Conns() != conns {
				t.Errorf("%d dials of %d bridges, %d connections", n, conns, s.a.Conns())
			}
		})
	}
	sub(t, "a second during the dial of the first needs another", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Dialer = distant(o.Dialer, 10*time.Millisecond) })
		t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
		stop := traffic(t, s.c, 3, 5*time.Millisecond)
		first := later(func() error { return s.c.Renew(background) })
		time.Sleep(5 * time.Millisecond)
		second := later(func() error {
			err := s.c.Renew(background)
			if n := len(s.dials.to()); n != 3 {
				t.Errorf("the second returned after %d dials", n)
			}
			return err
		})
		if err := errors.Join(first(), second()); err != nil {
			t.Error(err)
		}
		s.nothingFailed(stop)
		if s.c.Stats().Handoffs != 2 {
			t.Errorf("%d handoffs", s.c.Stats().Handoffs)
		}
	})
	for _, refuse := range []bool{false, true} {
		// Further calls must not put the first one off for ever.
		sub(t, fmt.Sprintf("one after the other, faster than a dial, refused=%v", refuse), func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.Dialer = distant(o.Dialer, 20*time.Millisecond) })
			t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
			stop := traffic(t, s.c, 3, 5*time.Millisecond)
			s.a.Refuse(refuse)
			most := 300 * time.Millisecond // its own dial, and one that was under way
			if refuse {
				most = 11 * time.Second
			}
			var wg sync.WaitGroup
			var longest atomic.Int64
			for began := time.Now(); time.Since(began) < 15*time.Second; time.Sleep(20 * time.Millisecond) {
				wg.Go(func() {
					called := time.Now()
					if err := s.c.Renew(background); (err != nil) != refuse {
						t.Errorf("Renew: %v", err)
					}
					longest.Store(max(longest.Load(), int64(time.Since(called))))
				})
			}
			wg.Wait()
			if took := time.Duration(longest.Load()); took > most {
				t.Errorf("a Renew took %v, want at most %v", took, most)
			}
			s.nothingFailed(stop)
			if n := len(s.dials.to()); n > 1+int(16*time.Second/(60*time.Millisecond)) {
				t.Errorf("%d dials", n)
			}
		})
	}
}

// TestRenewOfSeveralConns: side by side, and it returns when the last one is replaced.
func TestRenewOfSeveralConns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var stuck atomic.Int32
		s := newStage(t, func(o *Options) {
			o.Conns, o.DialTimeout = 4, 20*time.Second
			serves := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if stuck.Add(-1) == 0 {
					time.Sleep(10 * time.Second)
				}
				return serves(ctx, network, addr)
			}
		})
		time.Sleep(time.Second)
		stop := traffic(t, s.c, 8, 5*time.Millisecond)
		stuck.Store(2)
		began := time.Now()
		renewed := later(func() error { return s.c.Renew(background) })
		time.Sleep(time.Second)
		if n := s.c.Stats().Handoffs; n != 3 || s.a.Conns() != 4 {
			t.Errorf("%d of 4 are replaced while one dial is stuck, %d connections", n, s.a.Conns())
		}
		if err := renewed(); err != nil || time.Since(began) != 10*time.Second {
			t.Errorf("Renew returned %v after %v, want it when the last is replaced", err, time.Since(began))
		}
		time.Sleep(time.Second)
		s.nothingFailed(stop)
		if n := len(s.dials.to()); n != 8 || s.c.Stats().Handoffs != 4 {
			t.Errorf("%d dials, %d handoffs", n, s.c.Stats().Handoffs)
		}
	})
	sub(t, "of which one fails", func(t *testing.T) {
		var fail atomic.Bool
		var turn atomic.Int32
		s := newStage(t, func(o *Options) {
			o.Conns = 3
			serves := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if fail.Load() && turn.Add(1) > 2 {
					return nil, syscall.ECONNREFUSED
				}
				return serves(ctx, network, addr)
			}
		})
		time.Sleep(time.Second)
		stop := traffic(t, s.c, 6, 5*time.Millisecond)
		fail.Store(true)
		if err := s.c.Renew(background); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Renew: %v", err)
		}
		if st := s.c.Stats(); st.Handoffs != 2 || st.HandoffsGivenUp != 1 || s.a.Conns() != 3 {
			t.Errorf("stats: %+v, %d connections", st, s.a.Conns())
		}
		s.nothingFailed(stop)
	})
}

// TestRenewAndTheEndOfTheClient.
func TestRenewAndTheEndOfTheClient(t *testing.T) {
	sub(t, "after Close", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Conns = 2 })
		s.c.Close()
		if err := s.c.Renew(background); !errors.Is(err, ErrClosed) {
			t.Errorf("Renew: %v", err)
		}
	})
	for _, phase := range []string{"in the dial", "in the hold", "in the back-off"} {
		sub(t, "Close "+phase, func(t *testing.T) {
			s := newStage(t, nil)
			switch phase {
			case "in the dial":
				s.a.Delay("HELLO", time.Minute)
			case "in the hold":
				s.a.Delay("ECHO", time.Minute)
				async(s.c, "ECHO", "slow")
			default:
				s.a.Refuse(true)
			}
			renewed := later(func() error { return s.c.Renew(background) })
			time.Sleep(30 * time.Millisecond)
			began := time.Now()
			s.c.Close()
			if err := renewed(); !errors.Is(err, ErrClosed) || time.Since(began) != 0 {
				t.Errorf("Renew returned %v, %v after Close", err, time.Since(began))
			}
		})
	}
	for _, phase := range []string{"in the dial", "in the hold", "not begun"} {
		sub(t, "Shutdown, "+phase, func(t *testing.T) {
			s := newStage(t, nil)
			s.a.Delay("ECHO", 3*time.Second)
			slow := async(s.c, "ECHO", "slow")
			if phase == "in the dial" {
				s.a.Delay("HELLO", time.Minute)
			}
			renewed := later(func() error { time.Sleep(time.Millisecond); return s.c.Renew(background) })
			if phase != "not begun" {
				time.Sleep(20 * time.Millisecond)
			}
			down := later(func() error { return s.c.Shutdown(background) })
			synctest.Wait()
			if err := s.c.Renew(background); !errors.Is(err, ErrClosed) {
				t.Errorf("Renew during Shutdown: %v", err)
			}
			answered(t, slow, "slow")
			if err := down(); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
			if err := renewed(); err != nil && !errors.Is(err, ErrClosed) || err == nil && phase != "in the hold" {
				t.Errorf("the Renew before it: %v", err)
			}
		})
	}
}

// TestRenewWithoutAConnection: the reconnect is the renewal, if its dial began after the call.
func TestRenewWithoutAConnection(t *testing.T) {
	sub(t, "which comes back", func(t *testing.T) {
		s := newStage(t, nil)
		s.a.Refuse(true)
		s.a.Cut()
		time.Sleep(2 * time.Second)
		time.AfterFunc(2*time.Second, func() { s.a.Refuse(false) })
		n := len(s.dials.to())
		if err := s.c.Renew(background); err != nil {
			t.Errorf("Renew: %v", err)
		}
		s.serves(s.a)
		if dials := len(s.dials.to()) - n; dials > 10 || s.a.Conns() != 1 {
			t.Errorf("%d dials, %d connections", dials, s.a.Conns())
		}
	})
	sub(t, "whose dial is under way", func(t *testing.T) {
		s := newStage(t, nil)
		s.a.Delay("HELLO", time.Second)
		s.a.Cut()
		time.Sleep(500 * time.Millisecond)
		s.a.Delay("HELLO", 0) // the next one is fast
		waiting := async(s.c, "ECHO", "waiting")
		if err := s.c.Renew(background); err != nil {
			t.Errorf("Renew: %v", err)
		}
		answered(t, waiting, "waiting")
		s.serves(s.a)
		if n := len(s.dials.to()); n != 3 || s.a.Conns() != 1 {
			t.Errorf("%d dials, %d connections; want the lost one, the one under way, and one for the renewal", n, s.a.Conns())
		}
	})
	sub(t, "which does not come back", func(t *testing.T) {
		s := newStage(t, nil)
		s.a.Refuse(true)
		s.a.Cut()
		time.Sleep(2 * time.Second)
		began := time.Now()
		if err := s.c.Renew(background); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > 11*time.Second {
			t.Errorf("Renew returned %v after %v", err, time.Since(began))
		}
		time.Sleep(time.Minute)
		s.a.Refuse(false)
		time.Sleep(2 * time.Second) // it goes on as before
		s.serves(s.a)
	})
	sub(t, "of those that were never made", func(t *testing.T) {
		var made atomic.Int32
		s := newStage(t, func(o *Options) {
			o.Conns = 3
			serves := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if n := made.Add(1); n > 1 && n < 9 {
					return nil, syscall.ECONNREFUSED
				}
				return serves(ctx, network, addr)
			}
		})
		if err := s.c.Renew(background); err != nil {
			t.Errorf("Renew: %v", err)
		}
		time.Sleep(time.Second)
		if s.a.Conns() != 3 {
			t.Errorf("%d connections", s.a.Conns())
		}
	})
}

// TestRenewIsAHandoff: the hold and the stragglers are as in an announced one, it works where there are no announcements, and it
// relaxes nothing.
func TestRenewIsAHandoff(t *testing.T) {
	sub(t, "a straggler finishes, and Renew does not wait for it", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Timeout = time.Minute })
		s.a.Delay("ECHO", 10*time.Second)
		slow := async(s.c, "ECHO", "slow")
		s.a.Delay("ECHO", 0)
		began := time.Now()
		if err := s.c.Renew(background); err != nil || time.Since(began) != 50*time.Millisecond {
			t.Errorf("Renew returned %v after %v, want it after HoldCap", err, time.Since(began))
		}
		s.serves(s.a)
		pending(t, "the straggler", slow)
		answered(t, slow, "slow")
		time.Sleep(time.Second)
		if st := s.c.Stats(); st.Conns != 1 || st.Handoffs != 1 || st.Reconnects != 0 || st.Failed != 0 {
			t.Errorf("stats: %+v", st)
		}
	})
	for name, opt := range map[string]batontest.Option{
		"where the opt-in is refused": batontest.RefuseOptIn("ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."),
		"in protocol 2":               batontest.Protocol2(),
		"in mode Disabled":            batontest.Chunk(1 << 20),
	} {
		for _, policy := range []BacklogPolicy{Queue, FailFast} {
			sub(t, fmt.Sprintf("%s, policy=%d", name, policy), func(t *testing.T) {
				s := newStage(t, func(o *Options) {
					if o.Backlog = policy; strings.Contains(name, "Disabled") {
						o.Maintenance.Mode = Disabled
					}
					o.Dialer = distant(o.Dialer, 10*time.Millisecond)
				}, opt)
				t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
				stop := traffic(t, s.c, 4, time.Millisecond)
				for range 5 {
					if err := s.c.Renew(background); err != nil {
						t.Errorf("Renew: %v", err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				s.nothingFailed(stop)
				s.statsAreClean()
				if st := s.c.Stats(); st.Handoffs != 5 || s.a.Conns() != 1 {
					t.Errorf("%d connections, stats: %+v", s.a.Conns(), st)
				}
			})
		}
	}
	sub(t, "no timeout is relaxed", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: 400 * time.Millisecond})
		renewed := later(func() error { return c.Renew(background) })
		b := s.readyAt(addrA)
		if err := renewed(); err != nil || !a.hungUp() {
			t.Errorf("Renew: %v; the old connection is closed: %v", err, a.hungUp())
		}
		time.Sleep(time.Second)
		began := time.Now()
		got := async(c, "GET", "1")
		b.expects("GET 1")
		err := reply(t, got).Err()
		if took := time.Since(began); !errors.Is(err, ErrTimeout) || errors.Is(err, ErrMaintenance) || took > 500*time.Millisecond {
			t.Errorf("after a renewal a command failed with %v after %v, want Timeout, 400 ms", err, took)
		}
	})
	sub(t, "a server that dies in the middle of it", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		renewed := later(func() error { return c.Renew(background) })
		b := s.acceptAt(addrA)
		a.Close()
		waiting := async(c, "GET", "1")
		b.handshake()
		go b.echo()
		answered(t, waiting, "GET 1")
		if err := renewed(); err != nil {
			t.Errorf("Renew: %v", err)
		}
	})
	sub(t, "the replacement dies in the hold", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: time.Minute})
		slow := async(c, "GET", "slow")
		renewed := later(func() error { return c.Renew(background) })
		b := s.acceptAt(addrA)
		b.handshake()
		inPhase(t, c, PhaseHolding)
		held := async(c, "GET", "held")
		b.Close()
		inPhase(t, c, PhasePreparing)
		a.expects("GET slow", "GET held")
		a.says("+slow\r\n+held\r\n")
		answered(t, slow, "slow")
		answered(t, held, "held")
		b = s.readyAt(addrA)
		go b.echo()
		if err := renewed(); err != nil {
			t.Errorf("Renew: %v", err)
		}
		answered(t, async(c, "GET", "1"), "GET 1")
	})
}

// --- MaxAge ---

// TestMaxAge: each connection is renewed between nine tenths of MaxAge and MaxAge, at a random time, again and again.
func TestMaxAge(t *testing.T) {
	const age = 100 * time.Second
	for _, conns := range []int{1, 4} {
		sub(t, fmt.Sprintf("over 1,000 s, conns=%d", conns), func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.Conns, o.MaxAge = conns, age })
			stop := traffic(t, s.c, 2, 250*time.Millisecond)
			time.Sleep(1000 * time.Second)
			s.nothingFailed(stop)
			// Each is renewed 10 or 11 times in 1,000 s.
			dials := s.dials.when()
			if n := len(dials) - conns; n < 10*conns || n > 11*conns || s.c.Stats().Handoffs != uint64(n) {
				t.Errorf("%d renewals of %d connections, %d handoffs", n, conns, s.c.Stats().Handoffs)
			}
			if conns == 1 {
				shortest, longest := time.Hour, time.Duration(0)
				for i := range dials[1:] {
					shortest, longest = min(shortest, dials[i+1].Sub(dials[i])), max(longest, dials[i+1].Sub(dials[i]))
				}
				if shortest < age*9/10 || longest > age+time.Second || longest-shortest < age/100 {
					t.Errorf("renewals after %v to %v, want them spread from 90 to 100 s", shortest, longest)
				}
			} else {
				first := dials[conns : 2*conns]
				if spread := first[conns-1].Sub(first[0]); spread < 50*time.Millisecond { // the chance of that is 1e-8
					t.Errorf("all connections were renewed within %v", spread)
				}
			}
			if s.a.Conns() != conns || s.c.Stats().Reconnects != 0 || s.j.count(EventLost) != 0 {
				t.Errorf("%d connections, stats: %+v", s.a.Conns(), s.c.Stats())
			}
			s.statsAreClean()
		})
	}
	sub(t, "of an idle client", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge, o.KeepAlive = age, -1 })
		time.Sleep(1000 * time.Second)
		if n := s.c.Stats().Handoffs; n != 10 && n != 11 {
			t.Errorf("%d renewals", n)
		}
		s.serves(s.a)
	})
	sub(t, "a handoff is a renewal, too", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge = age })
		time.Sleep(80 * time.Second)
		s.a.Push("MOVING", 1, 2, s.b.Addr())
		time.Sleep(89 * time.Second)
		if n := s.c.Stats().Handoffs; n != 1 {
			t.Errorf("%d handoffs 89 s after the last one", n)
		}
		time.Sleep(12 * time.Second)
		if n := s.c.Stats().Handoffs; n != 2 || s.a.Conns() != 1 {
			t.Errorf("%d handoffs 101 s after the last one; %d connections to the configured address", n, s.a.Conns())
		}
	})
	sub(t, "so is a reconnect", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge = age })
		for range 20 {
			time.Sleep(80 * time.Second)
			s.a.Cut()
		}
		time.Sleep(80 * time.Second)
		if n := s.c.Stats().Handoffs; n != 0 {
			t.Errorf("%d renewals of connections that lived for 80 s each", n)
		}
	})
	sub(t, "when the server takes no connections the old one serves on", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge = age })
		stop := traffic(t, s.c, 2, 250*time.Millisecond)
		time.Sleep(80 * time.Second)
		s.a.Refuse(true)
		time.Sleep(1000 * time.Second)
		if st := s.c.Stats(); st.Handoffs != 0 || st.HandoffsGivenUp == 0 || st.Reconnects != 0 || s.a.Conns() != 1 {
			t.Errorf("%d connections, stats: %+v", s.a.Conns(), st)
		}
		// Each attempt takes 5 s and up to 12 dials, and the next is not before a tenth of MaxAge.
		if n := len(s.dials.to()); n > 1+100*13 {
			t.Errorf("%d dials", n)
		}
		s.a.Refuse(false)
		time.Sleep(age + 10*time.Second)
		if n := s.c.Stats().Handoffs; n == 0 || n > 2 {
			t.Errorf("%d handoffs after it came back", n)
		}
		s.nothingFailed(stop)
	})
	for _, short := range []time.Duration{1, time.Millisecond, time.Second} {
		sub(t, fmt.Sprintf("absurdly short: %v", short), func(t *testing.T) {
			s := newStage(t, func(o *Options) { o.MaxAge = short; o.Dialer = distant(o.Dialer, 10*time.Millisecond) })
			t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
			stop := traffic(t, s.c, 3, 5*time.Millisecond)
			time.Sleep(10 * time.Second)
			s.nothingFailed(stop)
			if n := len(s.dials.to()); n > 1+10*1000/30 { // it takes three round trips to be ready
				t.Errorf("%d dials in 10 s", n)
			}
			if s.c.Stats().Handoffs == 0 {
				t.Error("nothing was renewed")
			}
		})
	}
	sub(t, "ends with the client", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge = time.Second })
		s.c.Close()
		time.Sleep(time.Minute)
		if n := len(s.dials.to()); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
}

// --- READONLY ---

const (
	readOnlyReply    = "-READONLY You can't write against a read only replica.\r\n"
	failingOverFrame = ">4\r\n$12\r\nFAILING_OVER\r\n:%d\r\n:2\r\n$6\r\n[\"21\"]\r\n"
	failedOverFrame  = ">3\r\n$11\r\nFAILED_OVER\r\n:%d\r\n$6\r\n[\"21\"]\r\n"
)

// TestCaseD14ReadOnly: a server that takes no writes any more is left, if a failover is the reason.
func TestCaseD14ReadOnly(t *testing.T) {
	for _, c := range []struct {
		name   string
		before []string // what is announced, and pauses
		leaves bool
	}{
		{"in the window", []string{fmt.Sprintf(failingOverFrame, 1)}, true},
		{"long in the window", []string{fmt.Sprintf(failingOverFrame, 1), "9s"}, true},
		{"just after it", []string{fmt.Sprintf(failingOverFrame, 1), "2s", fmt.Sprintf(failedOverFrame, 2)}, true},
		{"29 s after it", []string{fmt.Sprintf(failingOverFrame, 1), "2s", fmt.Sprintf(failedOverFrame, 2), "29s"}, true},
		{"after it, the beginning of which was lost", []string{fmt.Sprintf(failedOverFrame, 2), "1s"}, true},
		{"outside of it", nil, false},
		{"31 s after it", []string{fmt.Sprintf(failingOverFrame, 1), "2s", fmt.Sprintf(failedOverFrame, 2), "31s"}, false},
		{"31 s after one that never ended", []string{fmt.Sprintf(failingOverFrame, 1), "31s"}, false},
		{"while slots migrate", []string{">4\r\n$9\r\nMIGRATING\r\n:0\r\n:2\r\n$6\r\n[\"27\"]\r\n"}, false},
	} {
		sub(t, c.name, func(t *testing.T) {
			s := newScript(t)
			j := &journal{}
			client, a := s.connect(Options{OnEvent: j.add, KeepAlive: -1})
			for _, step := range c.before {
				if pause, err := time.ParseDuration(step); err == nil {
					time.Sleep(pause)
				} else {
					a.says(step)
					synctest.Wait()
				}
			}
			set := async(client, "SET", "k", "v")
			a.expects("SET k v")
			a.says(readOnlyReply)
			err := reply(t, set).Err()
			var refusal *ServerError
			if !errors.As(err, &refusal) || refusal.Code != "READONLY" || MaybeExecuted(err) {
				t.Errorf("the caller gets %v (maybe executed: %v), want the server's error", err, MaybeExecuted(err))
			}
			if !c.leaves {
				time.Sleep(time.Minute)
				if n := len(s.dialled()); n != 1 || client.Stats().Handoffs != 0 {
					t.Errorf("dialled %v", s.dialled())
				}
				get := async(client, "GET", "k")
				a.expects("GET k")
				a.says("+v\r\n")
				answered(t, get, "v")
				return
			}
			began := time.Now()
			b := s.acceptAt(addrA)
			if waited := time.Since(began); waited > 0 {
				t.Errorf("it was dialled %v after READONLY", waited)
			}
			get := async(client, "GET", "k") // meanwhile the old connection serves
			a.expects("GET k")
			a.says("+v\r\n")
			answered(t, get, "v")
			b.handshake()
			inPhase(t, client, PhaseDone)
			go b.echo()
			answered(t, async(client, "SET", "k", "w"), "SET k w")
			time.Sleep(2 * time.Minute)
			if n := len(s.dialled()); n != 2 || client.Stats().Handoffs != 1 || client.Stats().Reconnects != 0 || !a.hungUp() {
				t.Errorf("dialled %v, stats: %+v", s.dialled(), client.Stats())
			}
			if j.count(EventLost) != 0 || j.count(EventPromoted) != 1 {
				t.Error("it does not look like a handoff")
			}
		})
	}
	for name, ask := range map[string]func(c *Client) error{
		"of DoAppend": func(c *Client) error { _, err := c.DoAppend(background, nil, "SET", "k", "v"); return err },
		"in a batch": func(c *Client) error {
			var b Batch
			b.Add("GET", "k")
			b.Add("SET", "k", "v")
			b.Add("GET", "k")
			replies, err := c.DoBatch(background, &b)
			if err != nil || len(replies) != 3 || replies[0].Err() != nil || replies[2].Err() != nil {
				return fmt.Errorf("the batch: %v, %w", replies, err)
			}
			return replies[1].Err()
		},
		"whose caller has left": func(c *Client) error {
			ctx, cancel := contextFor(time.Millisecond)
			defer cancel()
			if err := c.Do(ctx, "SET", "k", "v").Err(); !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return &ServerError{Code: "READONLY"}
		},
	} {
		sub(t, name, func(t *testing.T) {
			s := newStage(t, nil)
			if name == "whose caller has left" {
				s.a.Delay("SET", 100*time.Millisecond)
			}
			s.a.Push("FAILING_OVER", 1, 2, `["21"]`)
			s.a.SetRespond("SET", readOnlyReply)
			var refusal *ServerError
			if err := ask(s.c); !errors.As(err, &refusal) || refusal.Code != "READONLY" {
				t.Errorf("the caller gets %v", err)
			}
			time.Sleep(time.Second)
			if n := s.c.Stats().Handoffs; n != 1 || len(s.dials.to()) != 2 {
				t.Errorf("%d handoffs, %d dials", n, len(s.dials.to()))
			}
		})
	}
	sub(t, "as a mere value", func(t *testing.T) {
		s := newStage(t, nil)
		s.a.Push("FAILING_OVER", 1, 2, `["21"]`)
		for _, raw := range []string{"$9\r\n-READONLY\r\n", "+READONLY x\r\n", "*1\r\n$10\r\n-READONLY \r\n", "-ERR READONLY \r\n"} {
			s.a.SetRespond("GET", raw)
			s.c.Do(background, "GET", "k")
		}
		time.Sleep(time.Minute)
		if n := len(s.dials.to()); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
	sub(t, "in mode Disabled", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Maintenance.Mode = Disabled })
		s.a.SetRespond("SET", readOnlyReply)
		for range 10 {
			s.c.Do(background, "SET", "k", "v")
		}
		time.Sleep(time.Minute)
		if n := len(s.dials.to()); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
	sub(t, "many at once lead to one renewal", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Dialer = distant(o.Dialer, 10*time.Millisecond) })
		t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
		s.a.Push("FAILING_OVER", 1, 2, `["21"]`)
		time.Sleep(time.Second)
		s.a.SetRespond("SET", readOnlyReply)
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { s.c.Do(background, "SET", "k", "v") })
		}
		wg.Wait()
		s.a.SetRespond("SET", "")
		time.Sleep(time.Second)
		if err := s.c.Do(background, "SET", "k", "v").Err(); err != nil || len(s.dials.to()) != 2 || s.c.Stats().Handoffs != 1 {
			t.Errorf("%v, dials of %v", err, s.dials.to())
		}
	})
	sub(t, "the failover's own address is left for the configured one", func(t *testing.T) {
		// After a handoff to B and the end of its window, B becomes a replica.
		s := newScript(t)
		c, a := s.connect(Options{KeepAlive: -1})
		a.moving(1, 1, addrB)
		b := s.readyAt(addrB)
		time.Sleep(time.Minute)
		b.says(fmt.Sprintf(failingOverFrame, 2))
		set := async(c, "SET", "k", "v")
		b.expects("SET k v")
		b.says(readOnlyReply)
		reply(t, set)
		s.readyAt(addrA)
		inPhase(t, c, PhaseDone)
	})
}

// TestReadOnlyForEver: every server takes no writes, for ever. That is no dial loop.
func TestReadOnlyForEver(t *testing.T) {
	t.Parallel()
	for _, announced := range []string{"once", "for ever", "for ever, and it never ends"} {
		for _, conns := range []int{1, 3} {
			sub(t, fmt.Sprintf("a failover announced %s, conns=%d", announced, conns), func(t *testing.T) {
				s := newStage(t, func(o *Options) { o.Conns = conns; o.Dialer = distant(o.Dialer, 10*time.Millisecond) })
				t.Cleanup(func() { s.c.Close(); time.Sleep(time.Second) })
				time.Sleep(time.Second)
				s.a.SetRespond("SET", readOnlyReply)
				stop := traffic(t, s.c, 1, time.Second)
				start := time.Now()
				worst := time.Duration(0)
				for seq := 1; time.Since(start) < 1000*time.Second; seq += 2 {
					if seq == 1 || announced != "once" {
						s.a.Push("FAILING_OVER", seq, 2, `["21"]`)
					}
					if announced == "for ever" {
						s.a.Push("FAILED_OVER", seq+1, `["21"]`)
					}
					for range 10 {
						began := time.Now()
						var refusal *ServerError
						if err := s.c.Do(background, "SET", "k", "v").Err(); !errors.As(err, &refusal) || refusal.Code != "READONLY" {
							t.Fatalf("SET: %v", err)
						}
						worst = max(worst, time.Since(began))
						time.Sleep(500 * time.Millisecond)
					}
				}
				s.nothingFailed(stop)
				most := 2 + 5 + 100 + 10
				if announced == "once" {
					most = 2 + 5 + 3 // for 30 s
				}
				if n := len(s.dials.to()) - conns; n < conns || n > most*conns {
					t.Errorf("%d dials of %d bridges in 1,000 s, want at most %d each", n, conns, most)
				}
				if s.c.Stats().Reconnects != 0 || s.a.Conns() != conns || worst > 60*time.Millisecond {
					t.Errorf("%d connections, the longest wait %v, stats: %+v", s.a.Conns(), worst, s.c.Stats())
				}
			})
		}
	}
}

// --- what an operator sees ---

// story is the events so far as lines: kind, address, sequence number, successor, commands.
func (j *journal) story() []string {
	var lines []string
	for _, e := range j.all() {
		line := string(e.Kind) + " " + e.Addr
		if e.Notification != "" {
			line += " " + e.Notification
		}
		if e.Seq != 0 {
			line += fmt.Sprintf(" #%d", e.Seq)
		}
		if e.Successor != "" {
			line += " to " + e.Successor
		}
		if e.Held != 0 {
			line += fmt.Sprintf(" %d commands", e.Held)
		}
		if e.Err != nil {
			line += ": error"
		}
		lines = append(lines, line)
	}
	return lines
}

func tells(t *testing.T, j *journal, want ...string) {
	t.Helper()
	if got := j.story(); !slices.Equal(got, want) {
		t.Errorf("the events are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// TestEventsOfEachStory: complete, and in order.
func TestEventsOfEachStory(t *testing.T) {
	sub(t, "a handoff under load, to the end of its window", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, Timeout: time.Hour, KeepAlive: -1})
		one, two := async(c, "GET", "1"), async(c, "GET", "2")
		start := time.Now()
		a.moving(17, 15, addrB)
		b := s.readyAt(addrB)
		held := async(c, "GET", "held")
		time.Sleep(time.Second) // the hold is over, and two commands are left behind
		go b.echo()
		answered(t, held, "GET held")
		time.Sleep(time.Second)
		a.says("+one\r\n+two\r\n")
		answered(t, one, "one")
		answered(t, two, "two")
		time.Sleep(time.Minute)
		tells(t, j,
			"notification "+addrA+" MOVING #17 to "+addrB,
			"timeouts relaxed "+addrA+" MOVING #17 to "+addrB,
			"handoff preparing "+addrA+" #17 to "+addrB,
			"replacement ready "+addrB+" #17 to "+addrB,
			"holding "+addrA+" #17 to "+addrB,
			"promoted "+addrB+" #17 to "+addrB+" 1 commands",
			"old connection lingers "+addrA+" #17 to "+addrB+" 2 commands",
			"old connection closed "+addrA+" #17 to "+addrB,
			"timeouts tightened "+addrB+" MOVING")
		tightened := j.of(EventTightened)
		if len(tightened) == 1 && tightened[0].Time.Sub(start) != 15*time.Second {
			t.Errorf("tightened after %v, want the window, 15 s", tightened[0].Time.Sub(start))
		}
		if st := c.Stats().LastHandoff; st.Lingered != 2 || st.Held != 1 || st.Cut != 0 {
			t.Errorf("the timeline: %+v", st)
		}
	})
	sub(t, "a handoff of an idle client", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		_, a := s.connect(Options{OnEvent: j.add, KeepAlive: -1})
		a.moving(17, 15, addrB)
		s.readyAt(addrB)
		tells(t, j,
			"notification "+addrA+" MOVING #17 to "+addrB,
			"timeouts relaxed "+addrA+" MOVING #17 to "+addrB,
			"handoff preparing "+addrA+" #17 to "+addrB,
			"replacement ready "+addrB+" #17 to "+addrB,
			"promoted "+addrB+" #17 to "+addrB,
			"old connection closed "+addrA+" #17 to "+addrB)
	})
	sub(t, "a handoff that fails", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, KeepAlive: -1})
		s.refuseAll()
		start := time.Now()
		a.moving(17, 2, addrB)
		time.Sleep(time.Minute)
		story := j.story()
		failures := 0
		story = slices.DeleteFunc(story, func(line string) bool {
			failed := line == "dial failed "+addrA+" #17 to "+addrB+": error"
			if failed {
				failures++
			}
			return failed
		})
		want := []string{
			"notification " + addrA + " MOVING #17 to " + addrB,
			"timeouts relaxed " + addrA + " MOVING #17 to " + addrB,
			"handoff preparing " + addrA + " #17 to " + addrB,
			"timeouts tightened " + addrA + " MOVING", // in 10 s
			"handoff given up " + addrA + " #17 to " + addrB + ": error",
		}
		if !slices.Equal(story, want) {
			t.Errorf("the events beside failed dials are\n\t%s\nwant\n\t%s", strings.Join(story, "\n\t"), strings.Join(want, "\n\t"))
		}
		if n := len(s.dialled()) - 1; failures != n || n < 5 {
			t.Errorf("%d dials are reported to have failed, of %d", failures, n)
		}
		if e := j.of(EventGivenUp); len(e) == 1 && (e[0].Time.Sub(start) != 12*time.Second || !errors.Is(e[0].Err, syscall.ECONNREFUSED)) {
			t.Errorf("given up after %v, with %v; want the window and a relaxed dial, 12 s", e[0].Time.Sub(start), e[0].Err)
		}
		if st := c.Stats(); st.HandoffsGivenUp != 1 || st.Handoffs != 0 {
			t.Errorf("stats: %+v", st)
		}
	})
	sub(t, "an ordinary loss", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, KeepAlive: -1})
		time.Sleep(time.Minute)
		s.refuseAll()
		a.Close()
		time.Sleep(100 * time.Millisecond) // two dials: at once and after at most 50 ms; the third is due after 112 ms at the earliest
		s.refuseNone()
		s.readyAt(addrA)
		tells(t, j, "connection lost "+addrA+": error", "dial failed : error", "dial failed : error", "connected again "+addrA)
		if st := c.Stats(); st.Reconnects != 1 || st.Handoffs != 0 {
			t.Errorf("stats: %+v", st)
		}
	})
	sub(t, "a renewal under load", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, a := s.connect(Options{OnEvent: j.add, Timeout: time.Hour, KeepAlive: -1})
		slow := async(c, "GET", "slow")
		renewed := later(func() error { return c.Renew(background) })
		s.readyAt(addrA)
		if err := renewed(); err != nil {
			t.Error(err)
		}
		a.says("+slow\r\n")
		answered(t, slow, "slow")
		time.Sleep(time.Minute)
		tells(t, j, "handoff preparing "+addrA, "replacement ready "+addrA, "holding "+addrA, "promoted "+addrA,
			"old connection lingers "+addrA+" 1 commands", "old connection closed "+addrA)
	})
	sub(t, "other maintenance", func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		_, a := s.connect(Options{OnEvent: j.add, KeepAlive: -1})
		start := time.Now()
		a.says(">4\r\n$9\r\nMIGRATING\r\n:3\r\n:2\r\n$6\r\n[\"27\"]\r\n")
		time.Sleep(time.Second)
		a.says(">4\r\n$9\r\nMIGRATING\r\n:3\r\n:2\r\n$6\r\n[\"27\"]\r\n") // a copy
		a.says(">3\r\n$8\r\nMIGRATED\r\n:4\r\n$6\r\n[\"27\"]\r\n")
		time.Sleep(time.Second)
		a.says(fmt.Sprintf(failingOverFrame, 5))
		time.Sleep(time.Second)
		a.says(">3\r\n$10\r\nSMIGRATING\r\n:18\r\n$9\r\n8892-8991\r\n")
		time.Sleep(time.Minute)
		tells(t, j,
			"notification "+addrA+" MIGRATING #3", "timeouts relaxed "+addrA+" MIGRATING #3",
			"notification "+addrA+" MIGRATED #4", "timeouts tightened "+addrA+" MIGRATED #4",
			"notification "+addrA+" FAILING_OVER #5", "timeouts relaxed "+addrA+" FAILING_OVER #5",
			"notification "+addrA+" SMIGRATING #18", "timeouts relaxed "+addrA+" SMIGRATING #18",
			"timeouts tightened "+addrA+" FAILING_OVER", "timeouts tightened "+addrA+" SMIGRATING")
		var at []time.Duration
		for _, e := range j.of(EventTightened) {
			at = append(at, e.Time.Sub(start))
		}
		if !slices.Equal(at, []time.Duration{time.Second, 12 * time.Second, 13 * time.Second}) {
			t.Errorf("tightened after %v", at)
		}
	})
	sub(t, "several connections", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Conns = 3 })
		time.Sleep(time.Second)
		s.move(4)
		time.Sleep(time.Minute)
		for kind, want := range map[EventKind]int{EventNotification: 1, EventRelaxed: 1, EventPreparing: 3, EventReady: 3, EventPromoted: 3,
			EventOldClosed: 3, EventTightened: 1, EventLost: 0, EventConnected: 0, EventDialFailed: 0, EventGivenUp: 0, EventRefused: 0} {
			if n := s.j.count(kind); n != want {
				t.Errorf("%q was reported %d times, want %d", kind, n, want)
			}
		}
	})
}

// TestEventRefused: once for each client, with the reason, and only where there is one.
func TestEventRefused(t *testing.T) {
	for name, c := range map[string]struct {
		opt  batontest.Option
		mode Mode
		says string // in the reason; "": nothing is reported
	}{
		"unknown subcommand":    {batontest.RefuseOptIn("ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."), Auto, "unknown subcommand"},
		"disabled":              {batontest.RefuseOptIn("ERR maintenance notifications are disabled on this server"), Auto, "disabled on this server"},
		"no permission":         {batontest.RefuseOptIn("NOPERM this user has no permissions to run the 'client|maint_notifications' command"), Auto, "NOPERM"},
		"protocol 2":            {batontest.Protocol2(), Auto, "protocol 2"},
		"granted":               {batontest.Chunk(1 << 20), Auto, ""},
		"not asked":             {batontest.RefuseOptIn("ERR unknown subcommand"), Disabled, ""},
		"not asked, protocol 2": {batontest.Protocol2(), Disabled, ""},
	} {
		for _, conns := range []int{1, 3} {
			sub(t, fmt.Sprintf("%s, conns=%d", name, conns), func(t *testing.T) {
				h := &logbook{}
				s := newStage(t, func(o *Options) { o.Conns, o.Maintenance.Mode, o.Logger = conns, c.mode, slog.New(h) }, c.opt)
				for range 5 {
					time.Sleep(time.Second)
					s.a.Cut()
				}
				if err := s.c.Renew(background); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute)
				got := s.j.of(EventRefused)
				if c.says == "" {
					if len(got) != 0 {
						t.Errorf("reported: %+v", got)
					}
					return
				}
				if len(got) != 1 || got[0].Err == nil || !strings.Contains(got[0].Err.Error(), c.says) || got[0].Addr != s.a.Addr() {
					t.Errorf("reported: %+v, want one that says %q", got, c.says)
				}
				if e := s.j.all(); len(e) > 0 && e[0].Kind != EventRefused {
					t.Errorf("the first event is %v", e[0].Kind)
				}
				if logged := h.of(EventRefused); len(logged) != 1 || logged[0].Level != slog.LevelDebug {
					t.Errorf("logged: %v", logged)
				}
			})
		}
	}
	sub(t, "by the successor", func(t *testing.T) {
		s := newStage(t, nil)
		s.b.SetRespond("client maint_notifications", "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n")
		time.Sleep(time.Second)
		if n := s.j.count(EventRefused); n != 0 {
			t.Errorf("reported %d times before", n)
		}
		s.move(2)
		time.Sleep(10 * time.Second)
		if got := s.j.of(EventRefused); len(got) != 1 || got[0].Addr != s.b.Addr() {
			t.Errorf("reported: %+v", got)
		}
	})
}

// logbook is a slog handler that keeps what it is given.
type logbook struct {
	mu      sync.Mutex
	records []slog.Record
}

func (h *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (h *logbook) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *logbook) WithGroup(string) slog.Handler            { return h }
func (h *logbook) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records = append(h.records, r)
	return nil
}

func (h *logbook) all() []slog.Record {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.records)
}

// of are those that tell of this kind of event.
func (h *logbook) of(kind EventKind) []slog.Record {
	return slices.DeleteFunc(h.all(), func(r slog.Record) bool { return !strings.Contains(r.Message, string(kind)) })
}

// text is all that they say.
func (h *logbook) text() string {
	var b strings.Builder
	text := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})
	for _, r := range h.all() {
		text.Handle(background, r)
	}
	return b.String()
}

// TestLogLevels: one structured line for each event, in the same order. What is as it should be is no warning, what is wrong is one.
func TestLogLevels(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &logbook{}
		s := newStage(t, func(o *Options) { o.Logger, o.Timeout = slog.New(h), time.Hour })
		stop := traffic(t, s.c, 3, 10*time.Millisecond)
		s.a.Delay("ECHO", 500*time.Millisecond)
		slow := async(s.c, "ECHO", "slow")
		s.move(4)
		time.Sleep(time.Minute)
		answered(t, slow, "slow")
		if err := s.c.Renew(background); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		s.nothingFailed(stop)
		for _, r := range h.all() {
			if r.Level > slog.LevelInfo {
				t.Errorf("nothing was wrong, and yet: %v %s", r.Level, r.Message)
			}
		}
		planned := len(h.all())
		s.a.Refuse(true)
		s.b.Refuse(true)
		if s.c.Renew(background) == nil {
			t.Error("Renew succeeded, and nobody listens")
		}
		s.a.Cut()
		time.Sleep(5 * time.Second)
		s.a.Refuse(false)
		time.Sleep(5 * time.Second)
		if len(h.all()) == planned {
			t.Error("nothing was logged of failures")
		}
		events := s.j.all()
		records := h.all()
		if len(events) != len(records) {
			t.Fatalf("%d events and %d lines", len(events), len(records))
		}
		seen := map[EventKind]bool{}
		for i, e := range events {
			r := records[i]
			seen[e.Kind] = true
			if !strings.Contains(r.Message, string(e.Kind)) {
				t.Errorf("line %d is %q, the event %q", i, r.Message, e.Kind)
			}
			attrs := map[string]string{}
			r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value.String(); return true })
			if attrs["addr"] != e.Addr || attrs["phase"] != e.Phase.String() || attrs["seq"] != fmt.Sprint(e.Seq) || attrs["successor"] != e.Successor {
				t.Errorf("the line of %q says %v, the event is %+v", e.Kind, attrs, e)
			}
			bad := e.Kind == EventLost || e.Kind == EventDialFailed || e.Kind == EventGivenUp
			if bad != (r.Level >= slog.LevelWarn) || r.Level > slog.LevelWarn {
				t.Errorf("%q is logged at %v", e.Kind, r.Level)
			}
		}
		for _, kind := range []EventKind{EventNotification, EventRelaxed, EventTightened, EventPreparing, EventReady, EventHolding, EventPromoted,
			EventLingering, EventOldClosed, EventDialFailed, EventGivenUp, EventLost, EventConnected} {
			if !seen[kind] {
				t.Errorf("there was no %q", kind)
			}
		}
	})
}

// TestErrMaintenance: errors of commands that were cut, timed out or whose context ended say so while maintenance is under way, and
// only then.
func TestErrMaintenance(t *testing.T) {
	const phrase = "during maintenance"
	// meets brings the client into a state and returns the peer to which commands go.
	type state struct {
		name        string
		maintenance bool
		meets       func(s *script, c *Client, a *peer) *peer
	}
	states := []state{
		{"no maintenance", false, func(s *script, c *Client, a *peer) *peer { return a }},
		{"a relaxed window", true, func(s *script, c *Client, a *peer) *peer {
			a.says(">4\r\n$9\r\nMIGRATING\r\n:3\r\n:30\r\n$6\r\n[\"27\"]\r\n")
			return a
		}},
		{"a handoff that is being prepared", true, func(s *script, c *Client, a *peer) *peer {
			s.refuseAll()
			a.moving(1, 30, addrB)
			return a
		}},
		{"a handoff that outlasts its relaxed window", true, func(s *script, c *Client, a *peer) *peer {
			s.refuseAll()
			a.moving(1, 300, addrB)
			time.Sleep(100 * time.Second)
			return a
		}},
		{"a window that has been closed, and its tail", false, func(s *script, c *Client, a *peer) *peer {
			a.says(">4\r\n$9\r\nMIGRATING\r\n:3\r\n:30\r\n$6\r\n[\"27\"]\r\n>3\r\n$8\r\nMIGRATED\r\n:4\r\n$6\r\n[\"27\"]\r\n")
			time.Sleep(45 * time.Second)
			return a
		}},
		{"a handoff long ago", false, func(s *script, c *Client, a *peer) *peer {
			a.moving(1, 2, addrB)
			b := s.readyAt(addrB)
			time.Sleep(time.Hour)
			return b
		}},
	}
	for _, st := range states {
		for _, how := range []string{"cut", "timed out", "its context ended", "its context ended, never sent", "refused by the server"} {
			sub(t, st.name+", "+how, func(t *testing.T) {
				s := newScript(t)
				c, a := s.connect(Options{KeepAlive: -1, Timeout: time.Second, Maintenance: Maintenance{RelaxedTimeout: 2 * time.Second, RelaxedWindowMax: time.Minute}})
				p := st.meets(s, c, a)
				synctest.Wait()
				ctx, cancel := context.WithCancel(background)
				defer cancel()
				var got <-chan Reply
				cause, maybe := error(nil), true
				switch how {
				case "cut":
					got = asyncIn(ctx, c, "GET", "1")
					p.expects("GET 1")
					p.Close()
				case "timed out":
					got, cause = asyncIn(ctx, c, "GET", "1"), ErrTimeout
				case "its context ended":
					got, cause = asyncIn(ctx, c, "GET", "1"), context.Canceled
					cancel()
				case "its context ended, never sent":
					s.refuseAll()
					p.Close()
					synctest.Wait()
					got, cause, maybe = asyncIn(ctx, c, "GET", "1"), context.Canceled, false
					cancel()
				default:
					got = asyncIn(ctx, c, "GET", "1")
					p.says("-ERR no\r\n")
					if err := reply(t, got).Err(); err == nil || errors.Is(err, ErrMaintenance) || strings.Contains(err.Error(), phrase) || MaybeExecuted(err) {
						t.Errorf("what a server says is no failure of maintenance: %v", err)
					}
					return
				}
				err := reply(t, got).Err()
				if err == nil || cause != nil && !errors.Is(err, cause) || MaybeExecuted(err) != maybe {
					t.Fatalf("the error is %v, maybe executed: %v; want %v, %v", err, MaybeExecuted(err), cause, maybe)
				}
				text := err.Error()
				if errors.Is(err, ErrMaintenance) != st.maintenance || strings.Contains(text, phrase) != st.maintenance {
					t.Errorf("the error is %q; it says that maintenance was under way: %v, want %v", text, errors.Is(err, ErrMaintenance), st.maintenance)
				}
				if !strings.HasPrefix(text, "baton: ") || strings.Count(text, "baton: ") != 1 || strings.Count(text, phrase) > 1 ||
					strings.Contains(text, "never sent") == maybe || strings.Contains(text, "may have been executed") != maybe {
					t.Errorf("the error's text: %q", text)
				}
			})
		}
	}
	sub(t, "the server closes the old connection at the end of the window", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.Timeout = time.Hour })
		s.a.Delay("ECHO", time.Minute)
		cut := async(s.c, "ECHO", "cut")
		s.move(4)
		time.Sleep(3 * time.Second)
		s.a.Delay("ECHO", 0)
		s.serves(s.b)
		err := reply(t, cut).Err()
		if !errors.Is(err, ErrMaintenance) || !MaybeExecuted(err) || !strings.Contains(err.Error(), phrase) {
			t.Errorf("the straggler that was cut: %v", err)
		}
	})
	sub(t, "held, and its context ends", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Maintenance: Maintenance{HoldCap: time.Hour}})
		async(c, "GET", "slow")
		a.moving(1, 10, addrB)
		s.readyAt(addrB)
		inPhase(t, c, PhaseHolding)
		ctx, cancel := context.WithCancel(background)
		held := asyncIn(ctx, c, "GET", "held")
		cancel()
		err := reply(t, held).Err()
		if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrMaintenance) || MaybeExecuted(err) || !strings.Contains(err.Error(), "never sent") {
			t.Errorf("a held command whose context ended: %v", err)
		}
	})
	sub(t, "every command of a batch", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{})
		a.says(">4\r\n$9\r\nMIGRATING\r\n:3\r\n:30\r\n$6\r\n[\"27\"]\r\n")
		var b Batch
		b.Add("GET", "1")
		b.Add("GET", "2")
		result := later(func() error {
			replies, err := c.DoBatch(background, &b)
			if len(replies) != 2 || replies[0].Err() != nil || !errors.Is(replies[1].Err(), ErrMaintenance) {
				t.Errorf("the replies are %v", replies)
			}
			return err
		})
		a.expects("GET 1", "GET 2")
		a.says("+one\r\n")
		a.Close()
		if err := result(); !errors.Is(err, ErrMaintenance) || !MaybeExecuted(err) {
			t.Errorf("the batch: %v", err)
		}
	})
}

// TestNothingSecretIsTold: passwords are in no event, no log line and no error, even where a server or a proxy repeats them.
func TestNothingSecretIsTold(t *testing.T) {
	const old = "0ld-" + secret
	for name, says := range map[string]string{
		"refused":              "-WRONGPASS invalid username-password pair: alice %s\r\n",
		"HELLO unknown":        "-ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'alice' '%s'\r\n",
		"not authenticated":    "-NOAUTH not with %s\r\n",
		"in a push":            ">2\r\n$6\r\nMOVING\r\n$15\r\n%s\r\n-ERR %[1]s\r\n",
		"in no known form":     "?%s\r\n",
		"for a reply":          "+%s\r\n",
		"for a protocol":       "%%1\r\n+proto\r\n+%s\r\n",
		"more than was asked":  "%%1\r\n+proto\r\n:3\r\n+%s\r\n",
		"in the next step":     "%%1\r\n+proto\r\n:3\r\n-ERR %s\r\n-ERR %[1]s\r\n-ERR %[1]s\r\n",
		"by an echo":           "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$5\r\nalice\r\n$15\r\n%s\r\n*2\r\n$4\r\nECHO\r\n$15\r\n%[1]s\r\n",
		"in a verbatim string": "=19\r\ntxt:%s\r\n",
	} {
		for _, mode := range []Mode{Auto, Enabled} {
			sub(t, fmt.Sprintf("%s, mode=%d", name, mode), func(t *testing.T) {
				h, j := &logbook{}, &journal{}
				var rotated atomic.Bool
				a := memoryServer(t, batontest.WithUser("alice", old))
				c := dialMemory(t, a, func(o *Options) {
					o.Logger, o.OnEvent, o.DB, o.Maintenance.Mode = slog.New(h), j.add, 2, mode
					o.Credentials = func(context.Context) (string, string, error) {
						if rotated.Load() {
							return "alice", secret, nil
						}
						return "alice", old, nil
					}
				})
				rotated.Store(true)
				a.SetRespond("HELLO", fmt.Sprintf(says, secret))
				renewed := c.Renew(background)
				a.Push("MOVING", 1, 2, addrB)
				time.Sleep(30 * time.Second)
				a.Cut()
				time.Sleep(10 * time.Second)
				failed := c.Do(background, "GET", "k").Err()
				told := h.text() + fmt.Sprintf("%v\n%+v\n%v\n%+v\n%+v", renewed, j.all(), failed, failed, c.Stats())
				var dial error
				if _, dial = Dial(background, c.opts); dial != nil {
					told += dial.Error()
				}
				if j.count(EventDialFailed) == 0 || renewed == nil {
					t.Errorf("there is nothing to tell: %v, %v", renewed, j.story())
				}
				for _, s := range []string{secret, old} {
					if i := strings.Index(told, s); i >= 0 {
						t.Errorf("a password is in %q", told[max(i-200, 0):i+len(s)])
					}
				}
			})
		}
	}
	sub(t, "of a proxy", func(t *testing.T) {
		_, err := Dial(background, Options{Addr: "db.example.com:7000", Proxy: "socks5://user:" + secret + "@127.0.0.1:1\x7f"})
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("the error: %v", err)
		}
		_, err = Dial(background, Options{Addr: "db.example.com:7000", Proxy: "http://user:" + secret + "@127.0.0.1:1"})
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("the error: %v", err)
		}
	})
}

// TestMaxAgeThatCannotBeObeyed: the moment comes while there is no connection, while a renewal is under way, or in a Shutdown. Time
// must not stand still there: a timer whose moment has passed and that is set again would be a busy loop.
func TestMaxAgeThatCannotBeObeyed(t *testing.T) {
	sub(t, "no connection", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge = 10 * time.Second })
		time.Sleep(8 * time.Second)
		s.a.Refuse(true)
		s.a.Cut()
		time.Sleep(time.Minute)
		s.a.Refuse(false)
		time.Sleep(2 * time.Second)
		s.serves(s.a)
	})
	sub(t, "a Renew under way", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge, o.DialTimeout = 10*time.Second, 30*time.Second })
		time.Sleep(8 * time.Second)
		s.a.Delay("HELLO", 20*time.Second)
		if err := s.c.Renew(background); err != nil {
			t.Error(err)
		}
		s.serves(s.a)
	})
	sub(t, "a handoff under way", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge = 10 * time.Second })
		time.Sleep(8 * time.Second)
		s.a.Push("MOVING", 1, 60, nil)
		time.Sleep(45 * time.Second)
		if n := s.c.Stats().Handoffs; n == 0 {
			t.Error("there was no handoff")
		}
	})
	sub(t, "Shutdown", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge, o.Timeout = 10*time.Second, time.Hour })
		s.a.Delay("ECHO", time.Minute)
		slow := async(s.c, "ECHO", "slow")
		if err := s.c.Shutdown(background); err != nil {
			t.Error(err)
		}
		answered(t, slow, "slow")
	})
	sub(t, "Close", func(t *testing.T) {
		s := newStage(t, func(o *Options) { o.MaxAge = 10 * time.Second })
		s.c.Close()
		time.Sleep(time.Minute)
	})
}
