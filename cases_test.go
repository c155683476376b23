package baton

// Cases that users and maintainers of other clients reported, each with its whole kind; what the policies mean in every phase;
// how a client ends in every phase; relaxed windows; and how the bridges of one client move together. What a name's lookup, trust
// and renewals have to do with it is tested in files of their own.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
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

// --- help ---

// crowd are all the connections of a script, in the order in which they were dialled.
type crowd struct {
	mu   sync.Mutex
	all  []*peer
	gone map[*peer]bool
}

// gather has attendTo play the server on every connection, until the client has closed it.
func gather(s *script, attendTo func(p *peer)) *crowd {
	c := &crowd{gone: map[*peer]bool{}}
	s.attend(func(p *peer) {
		c.mu.Lock()
		c.all = append(c.all, p)
		c.mu.Unlock()
		attendTo(p)
		c.mu.Lock()
		c.gone[p] = true
		c.mu.Unlock()
	})
	return c
}

// at are the connections to addr that are open.
func (c *crowd) at(addr string) (open []*peer) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.all {
		if p.addr == addr && !c.gone[p] {
			open = append(open, p)
		}
	}
	return open
}

// shakesHands is what a good server does on a connection.
func shakesHands(p *peer) {
	p.handshake()
	p.echo()
}

// moves is a MOVING that names its successor, or nobody.
func moves(seq any, seconds int, successor string) string {
	number, endpoint := "_\r\n", "_\r\n"
	if seq != nil {
		number = fmt.Sprintf(":%d\r\n", seq)
	}
	if successor != "" {
		endpoint = fmt.Sprintf("$%d\r\n%s\r\n", len(successor), successor)
	}
	return fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n%s:%d\r\n%s", number, seconds, endpoint)
}

// opens is a frame that opens a window of its kind, and closes one that closes it.
func opens(name string, seq, seconds int) string {
	return fmt.Sprintf(">3\r\n$%d\r\n%s\r\n:%d\r\n:%d\r\n", len(name), name, seq, seconds)
}

func closes(name string, seq int) string {
	return fmt.Sprintf(">2\r\n$%d\r\n%s\r\n:%d\r\n", len(name), name, seq)
}

// served says that a command is answered, by a peer that echoes.
func served(t *testing.T, c *Client, what string) {
	t.Helper()
	if got, err := c.Do(background, "GET", "1").Text(); got != "GET 1" || err != nil {
		t.Errorf("%s: a command is answered with %q, %v", what, got, err)
	}
}

// dialledAfter are the times of all dials but the first few, counted from start.
func (d *dialBook) dialledAfter(first int, start time.Time) (after []time.Duration) {
	for _, at := range d.when()[first:] {
		after = append(after, at.Sub(start))
	}
	return after
}

// goroutines counts those of the bubble when it is quiet. (The runtime has some of its own, which come and go.)
func goroutines() int {
	synctest.Wait()
	buf := make([]byte, 1<<20)
	return bytes.Count(buf[:runtime.Stack(buf, true)], []byte("synctest bubble"))
}

// --- handoffs and notifications ---

// A1: an IPv6 endpoint is split at its last colon, with brackets or without, and dialled with them.
func TestCaseA1IPv6Successors(t *testing.T) {
	for named, want := range map[string]string{
		"[2001:db8::5]:12075":        "[2001:db8::5]:12075",
		"2001:db8::5:12075":          "[2001:db8::5]:12075",
		"2001:DB8:0:0:0:0:0:5:12075": "[2001:db8::5]:12075",
		"::1:6380":                   "[::1]:6380",
		"[::1]:6380":                 "[::1]:6380",
		"::ffff:10.9.0.2:6379":       "10.9.0.2:6379",
	} {
		sub(t, named, func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{})
			a.moving(1, 15, named)
			b := s.readyAt(want)
			go b.echo()
			served(t, c, "on the successor")
			if !a.hungUp() {
				t.Error("the old connection is open")
			}
		})
		sub(t, named+" is where the client is", func(t *testing.T) {
			s := newScript(t)
			_, a := s.connect(Options{Addr: want})
			start := time.Now()
			a.moving(1, 10, named)
			s.readyAt(want)
			if took := time.Since(start); took < 5*time.Second || took > 6*time.Second {
				t.Errorf("it was dialled after %v, want half of the window and the jitter, as if nobody was named", took)
			}
		})
	}
}

// A2: what is not news changes nothing: nothing is retired, dialled or relaxed.
func TestCaseA2AReplayChangesNothing(t *testing.T) {
	for name, replay := range map[string]string{
		"a lower number":                movingFrame(4, 15, addrC),
		"a lower number, nobody named":  moves(4, 15, ""),
		"the same number":               movingFrame(5, 15, addrC),
		"the same number, as it was":    movingFrame(5, 15, addrB),
		"no number":                     moves(nil, 15, addrC),
		"a lower number, a long window": movingFrame(4, 3600, addrC),
	} {
		sub(t, name, func(t *testing.T) {
			s, j := newScript(t), &journal{}
			c, a := s.connect(Options{Timeout: 500 * time.Millisecond, KeepAlive: -1, OnEvent: j.add, Maintenance: Maintenance{PostEventRelaxed: -1}})
			a.moving(5, 15, addrB)
			b := s.readyAt(addrB)
			time.Sleep(13 * time.Second)
			b.says(replay)
			time.Sleep(2500 * time.Millisecond) // the window of the first is over
			if got := takes(t, c); !around(got, 500*time.Millisecond) {
				t.Errorf("a replay relaxed a timeout to %v", got)
			}
			if d := s.dialled(); len(d) != 2 || c.Stats().Handoffs != 1 || j.count(EventRelaxed) != 1 || j.count(EventPreparing) != 1 {
				t.Errorf("dialled %v, events %v", d, j.all())
			}
		})
	}
}

// A3: a closing frame closes a window of its own kind, and no other. MOVING's is closed by none.
func TestCaseA3EveryPairOfKinds(t *testing.T) {
	closers := map[string]string{"migrating": "migrated", "failing_over": "failed_over", "smigrating": "smigrated"}
	for closed, closer := range closers {
		for _, open := range []string{"moving", "migrating", "failing_over", "smigrating"} {
			for _, first := range []string{closed, open} {
				r := newRelaxed(func(m *Maintenance) { m.PostEventRelaxed = -1 })
				second := map[bool]string{true: open, false: closed}[first == closed]
				if r.reads(first, 1, 30); open != closed {
					r.reads(second, 2, 30)
				}
				r.reads(closer, 3, 0)
				if want := open != closed; r.is() != want {
					t.Errorf("%s and %s opened, %s closed: relaxed %v, want %v", first, second, closer, r.is(), want)
				}
				if r.reads(closers[open], 4, 0); open != "moving" && r.is() {
					t.Errorf("%s and %s opened and closed: still relaxed", first, second)
				}
			}
		}
	}
}

// A5, A44: notifications are asked for where they are heard: on every connection that speaks protocol 3, and there a push is acted on
// even if it comes with the answer; on no other connection, be it the first, a redial or a replacement.
func TestCaseA5A44NotificationsAreAskedForWhereTheyAreHeard(t *testing.T) {
	sub(t, "a push in the segment of the answer, on every connection", func(t *testing.T) {
		s, j := newScript(t), &journal{}
		first := later(func() *peer {
			p := s.acceptAt(addrA)
			p.handshakeSaying(opens("MIGRATING", 1, 15))
			return p
		})
		dialOptions(t, Options{Addr: addrA, Dialer: s.dial, OnEvent: j.add, KeepAlive: -1})
		heard := func(what string, n int) {
			t.Helper()
			if synctest.Wait(); j.count(EventNotification) != n {
				t.Errorf("%s: %d notifications were heard, want %d: %v", what, j.count(EventNotification), n, j.of(EventNotification))
			}
		}
		p := first()
		heard("the first connection", 1)
		p.Close()
		p = s.acceptAt(addrA)
		p.handshakeSaying(opens("MIGRATING", 2, 15))
		heard("a redial", 2)
		p.moving(3, 10, addrB)
		p = s.acceptAt(addrB)
		p.handshakeSaying(opens("MIGRATING", 4, 15))
		heard("a replacement", 4)
	})
	for name, hello := range map[string]string{
		"HELLO is unknown":          "-ERR unknown command 'HELLO'\r\n",
		"HELLO is not allowed":      "-NOPERM this user has no permissions to run the 'hello' command\r\n",
		"the protocol is unknown":   "-NOPROTO unsupported protocol version\r\n",
		"the answer is protocol 2":  "%1\r\n+proto\r\n:2\r\n",
		"the answer is an array, 2": "*2\r\n+proto\r\n:2\r\n",
	} {
		for _, mode := range []Mode{Auto, Enabled, Disabled} {
			sub(t, fmt.Sprintf("%s, mode %d", name, mode), func(t *testing.T) {
				var asked atomic.Int32
				s := newScript(t)
				all := gather(s, func(p *peer) {
					p.serve(func(command string) string {
						if strings.HasPrefix(command, "CLIENT MAINT") {
							asked.Add(1)
						}
						return answers{"HELLO": hello}.to(command)
					})
				})
				c, err := Dial(background, Options{Addr: addrA, Dialer: s.dial, Password: "secret", KeepAlive: -1, Maintenance: Maintenance{Mode: mode}})
				if mode == Enabled {
					if err == nil || !strings.Contains(err.Error(), "HELLO") {
						t.Errorf("the error of the dial is %v, want one that says HELLO", err)
					}
				} else {
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { c.Close() })
					all.at(addrA)[0].says(movingFrame(1, 10, addrB)) // which nobody asked for
					time.Sleep(11 * time.Second)
					all.at(addrA)[0].Close()
					if got, err := c.Do(background, "ECHO", "again").Text(); got != "again" {
						t.Errorf("after a redial: %q, %v", got, err)
					}
					if d := s.dialled(); !slices.Equal(d, []string{addrA, addrA}) {
						t.Errorf("dialled %v", d)
					}
				}
				if n := asked.Load(); n > 0 {
					t.Errorf("notifications were asked for %d times where there can be none", n)
				}
			})
		}
	}
}

// A10: a connection that another has taken the place of never serves again, however long ago it was and whatever becomes of the other.
func TestCaseA10RetiredIsForEver(t *testing.T) {
	for _, window := range []int{0, 1, 15} {
		sub(t, fmt.Sprintf("window=%ds", window), func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{Timeout: 3 * time.Hour, KeepAlive: -1})
			slow := async(c, "GET", "slow")
			a.expects("GET slow")
			a.moving(1, window, addrB)
			b := s.readyAt(addrB)
			go b.echo()
			time.Sleep(time.Hour) // the window, what is remembered of it and everything relaxed are long over
			for range 10 {
				served(t, c, "an hour later")
			}
			s.refuseAll()
			b.Close()
			waiting := async(c, "GET", "2")
			time.Sleep(time.Minute)
			pending(t, "a command while the retired connection alone is left", waiting)
			pendingPeer(t, a)
			s.refuseNone()
			again := s.readyAt(addrA)
			again.expects("GET 2")
			again.says("+two\r\n")
			answered(t, waiting, "two")
			a.says("+at last\r\n")
			answered(t, slow, "at last")
			if !a.hungUp() || again.hungUp() {
				t.Error("the retired connection is open, or the new one is not")
			}
		})
	}
}

// A11: on every path the looser timeout counts, and none is the loosest.
func TestCaseA11TheLooserTimeoutOnEveryPath(t *testing.T) {
	for _, timeout := range []time.Duration{30 * time.Second, -1} {
		relaxing := func(t *testing.T, o Options) (*script, *Client, *peer) {
			s := newScript(t)
			o.Timeout, o.KeepAlive = timeout, -1
			c, p := s.connect(o)
			p.says(opens("FAILING_OVER", 1, 30))
			synctest.Wait()
			return s, c, p
		}
		sub(t, fmt.Sprintf("a batch, Timeout %v", timeout), func(t *testing.T) {
			_, c, p := relaxing(t, Options{})
			var b Batch
			b.Add("GET", "1")
			b.Add("GET", "2")
			err := later(func() error { _, err := c.DoBatch(background, &b); return err })
			p.expects("GET 1", "GET 2")
			time.Sleep(20 * time.Second)
			p.says("+1\r\n+2\r\n")
			if err := err(); err != nil {
				t.Error(err)
			}
		})
		sub(t, fmt.Sprintf("work without a connection, Timeout %v", timeout), func(t *testing.T) {
			s, c, p := relaxing(t, Options{})
			s.refuseAll()
			p.Close()
			waiting := async(c, "GET", "1")
			time.Sleep(20 * time.Second)
			s.refuseNone()
			go s.readyAt(addrA).echo()
			answered(t, waiting, "GET 1")
		})
		sub(t, fmt.Sprintf("silence, Timeout %v", timeout), func(t *testing.T) {
			_, c, p := relaxing(t, Options{})
			silent := async(c, "GET", "1")
			p.expects("GET 1")
			time.Sleep(55 * time.Second) // twice the relaxed timeout is 20 s, twice the configured one 60 s
			if p.hungUp() {
				t.Error("the connection was given up for silence of less than twice the configured timeout")
			}
			if timeout < 0 {
				pending(t, "a command without a timeout", silent)
			}
		})
	}
	sub(t, "a dial", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{DialTimeout: 30 * time.Second})
		a.moving(1, 15, addrB)
		b := s.acceptAt(addrB)
		time.Sleep(25 * time.Second)
		b.handshake()
		synctest.Wait()
		if n := c.Stats().Handoffs; n != 1 || !a.hungUp() {
			t.Errorf("a handshake of 25 s with a DialTimeout of 30 s: %d handoffs", n)
		}
	})
}

// A14: a window ends whether or not a command looks at it, for commands as for silence.
func TestCaseA14AWindowEndsWhileOnlyPushesArrive(t *testing.T) {
	for _, opener := range []string{opens("MIGRATING", 1, 3600), opens("FAILING_OVER", 1, 3600), opens("SMIGRATING", 1, 3600), movingFrame(1, 3600, addrB)} {
		sub(t, opener[8:17], func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{Timeout: 500 * time.Millisecond, KeepAlive: -1, Maintenance: Maintenance{PostEventRelaxed: -1}})
			if p.says(opener); strings.Contains(opener, "MOVING") {
				p = s.readyAt(addrB)
			}
			for range 31 { // the longest window is 30 s
				p.says(">1\r\n+foo\r\n")
				time.Sleep(time.Second)
			}
			if got := takes(t, c); !around(got, 500*time.Millisecond) {
				t.Errorf("a stalled command waited %v, want the configured timeout", got)
			}
			time.Sleep(750 * time.Millisecond)
			if !p.hungUp() {
				t.Error("silent for more than twice the configured timeout, and kept")
			}
		})
	}
}

// A20: one announcement, repeated to every connection that is ever made, leads each bridge to one dial if it names a successor,
// and to four if it does not: the replacement may be the old place once more, and is told so three times at most.
func TestCaseA20OneAnnouncementRepeatedForEver(t *testing.T) {
	for _, c := range []struct {
		name, successor string
		each            int
	}{{"a successor", addrB, 1}, {"nobody", "", 4}, {"where the client is", addrA, 4}} {
		for _, conns := range []int{1, 4} {
			sub(t, fmt.Sprintf("naming %s, conns=%d", c.name, conns), func(t *testing.T) {
				s, book := newScript(t), &dialBook{}
				var begun atomic.Bool
				frame := moves(7, 15, c.successor)
				all := gather(s, func(p *peer) {
					if begun.Load() {
						p.handshakeSaying(frame)
					} else {
						p.handshake()
					}
					p.echo()
				})
				client := dialOptions(t, Options{Addr: addrA, Dialer: book.over(s.dial), Conns: conns})
				told := all.at(addrA)
				start := time.Now()
				begun.Store(true)
				for _, p := range told {
					p.says(frame)
				}
				for range 600 {
					time.Sleep(500 * time.Millisecond)
					served(t, client, "all along")
				}
				after := book.dialledAfter(conns, start)
				if len(after) != conns*c.each || client.Stats().Handoffs != uint64(conns*c.each) {
					t.Errorf("%d dials and %d handoffs of %d bridges, want %d for each", len(after), client.Stats().Handoffs, conns, c.each)
				}
				if c.each > 1 && (after[0] < 7500*time.Millisecond || after[len(after)-1] > 20*time.Second) {
					t.Errorf("the dials came after %v", after)
				}
				at := map[bool]string{true: addrB, false: addrA}[c.successor == addrB]
				if n := len(all.at(at)); n != conns {
					t.Errorf("%d connections to %s in the end, want %d", n, at, conns)
				}
			})
		}
	}
}

// A21: 0 is a number like any other, for every kind of frame.
func TestCaseA21NumberZeroIsReal(t *testing.T) {
	sub(t, "MOVING", func(t *testing.T) {
		s, j := newScript(t), &journal{}
		c, a := s.connect(Options{OnEvent: j.add})
		a.says(moves(0, 15, "") + moves(0, 15, addrB) + moves(0, 15, "") + moves(-1, 15, addrB))
		b := s.readyAt(addrA)
		for _, raw := range []string{moves(-1, 15, addrC), moves(nil, 15, addrC)} {
			b.says(raw)
		}
		time.Sleep(5 * time.Second)
		if d := s.dialled(); len(d) != 2 || c.Stats().Handoffs != 1 {
			t.Errorf("dialled %v, events %v", d, j.all())
		}
		b.says(moves(1, 15, addrC))
		s.readyAt(addrC)
	})
	for opener, closer := range map[string]string{"migrating": "migrated", "failing_over": "failed_over", "smigrating": "smigrated"} {
		r := newRelaxed(func(m *Maintenance) { m.PostEventRelaxed = -1 })
		if fresh, _, _ := r.reads(opener, 0, 15); !fresh {
			t.Errorf("%s with number 0 is not news", opener)
		}
		if fresh, _, _ := r.reads(opener, 0, 15); fresh {
			t.Errorf("%s with number 0 is news twice", opener)
		}
		if r.reads(closer, 1, 0); r.is() {
			t.Errorf("%s with number 0 counts as two, of which one is not closed", opener)
		}
	}
}

// A26, A37, D15: what names nobody is neither dialled nor asked about, is reported as naming nobody, and does not stand in the way of a
// successor that is named later.
func TestCaseA26A37D15PlaceholdersAreNobody(t *testing.T) {
	for _, endpoint := range []string{"null", "NULL", "?", "?:7002", ":7002", "host-1.example.com:0", "host-1.example.com", "10.9.0.2:65536", "[2001:db8::5]:0", ""} {
		for _, conns := range []int{1, 3} {
			sub(t, fmt.Sprintf("%q, conns=%d", endpoint, conns), func(t *testing.T) {
				s, j, book := newScript(t), &journal{}, &dialBook{}
				var asked atomic.Int32
				all := gather(s, shakesHands)
				c := dialOptions(t, Options{Addr: addrA, Dialer: book.over(s.dial), OnEvent: j.add, Conns: conns, KeepAlive: -1,
					Maintenance: Maintenance{AllowSuccessor: func(addr string) bool { asked.Add(1); return addr == addrB }}})
				on, start := all.at(addrA), time.Now()
				for _, p := range on {
					p.says(movingFrame(1, 10, endpoint))
				}
				time.Sleep(30 * time.Second)
				for _, after := range book.dialledAfter(conns, start) {
					if after < 5*time.Second || after > 6*time.Second {
						t.Errorf("a dial %v after the announcement, want half of the window and the jitter", after)
					}
				}
				if to := slices.Compact(book.to()); len(to) != 1 || len(book.to()) != 2*conns || asked.Load() != 0 {
					t.Errorf("dialled %v, and asked about a successor %d times", book.to(), asked.Load())
				}
				if e := j.of(EventNotification); len(e) != 1 || e[0].Successor != "" {
					t.Errorf("events: %v", e)
				}
				for _, p := range all.at(addrA) {
					p.moving(2, 1, addrB)
				}
				time.Sleep(5 * time.Second)
				if n := len(all.at(addrB)); n != conns || int(asked.Load()) != conns {
					t.Errorf("%d bridges of %d moved to a successor that was named", n, conns)
				}
				served(t, c, "after it all")
			})
		}
	}
}

// A27: frames are read for what they mean, not for their form.
func TestCaseA27FormsOfFrames(t *testing.T) {
	const tight, loose = 500 * time.Millisecond, 10 * time.Second
	for _, c := range []struct {
		name, raw string
		after     time.Duration
		want      time.Duration // how long a stalled command waits then
	}{
		{"all of strings, and one too many", ">5\r\n$9\r\nMIGRATING\r\n$1\r\n8\r\n$2\r\n20\r\n$5\r\n[\"3\"]\r\n$1\r\nx\r\n", 0, loose},
		{"all of strings, and their window's end", ">5\r\n$9\r\nMIGRATING\r\n$1\r\n8\r\n$2\r\n20\r\n$5\r\n[\"3\"]\r\n$1\r\nx\r\n", 21 * time.Second, tight},
		{"lower case", framed("failing_over", "8", "20"), 0, loose},
		{"simple strings", ">3\r\n+FAILING_OVER\r\n:8\r\n:20\r\n", 0, loose},
		{"time -3", ">3\r\n$9\r\nMIGRATING\r\n:8\r\n:-3\r\n", 0, loose},
		{"time -3 relaxes for the least that there is", ">3\r\n$9\r\nMIGRATING\r\n:8\r\n:-3\r\n", 10500 * time.Millisecond, tight},
		{"slots that look like a time", ">3\r\n$10\r\nSMIGRATING\r\n:8\r\n$3\r\n123\r\n", 0, loose},
		{"slots that look like a time are none", ">3\r\n$10\r\nSMIGRATING\r\n:8\r\n$3\r\n123\r\n", 10500 * time.Millisecond, tight},
		{"slots one per element", ">5\r\n$10\r\nSMIGRATING\r\n:8\r\n:25\r\n:26\r\n:27\r\n", 10500 * time.Millisecond, tight},
		{"a malformed triplet among others", opens("SMIGRATING", 8, 20) + ">3\r\n$9\r\nSMIGRATED\r\n:9\r\n*2\r\n*1\r\n:1\r\n*3\r\n+a:1\r\n+b:1\r\n+1-2\r\n", 0, tight},
	} {
		sub(t, c.name, func(t *testing.T) {
			s := newScript(t)
			client, p := s.connect(Options{Timeout: tight, KeepAlive: -1, Maintenance: Maintenance{PostEventRelaxed: -1}})
			p.says(c.raw)
			time.Sleep(cmp.Or(c.after, time.Millisecond))
			if got := takes(t, client); !around(got, c.want) {
				t.Errorf("a stalled command waited %v, want %v", got, c.want)
			}
		})
	}
	for name, raw := range map[string]string{
		"all of strings": framed("MOVING", "1", "-3", addrB, "x"), "lower case": framed("moving", "1", "-3", addrB), "time -3": movingFrame(1, -3, addrB),
	} {
		sub(t, "MOVING, "+name+", acts now", func(t *testing.T) {
			s := newScript(t)
			_, a := s.connect(Options{})
			start := time.Now()
			a.says(raw)
			s.readyAt(addrB)
			if took := time.Since(start); took != 0 || !a.hungUp() {
				t.Errorf("it was dialled after %v", took)
			}
		})
	}
}

// A39: a unix socket has no host and no address to speak of. In every mode it connects, and asks that nobody be named.
func TestCaseA39AUnixSocketInEveryMode(t *testing.T) {
	for mode, want := range [][]string{
		{"CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none", "PING"}, {"CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none", "PING"}, {"PING"},
	} {
		for name, wrap := range map[string]func(net.Conn) net.Conn{
			"its path for an address": func(nc net.Conn) net.Conn {
				return &elsewhereConn{nc, &net.UnixAddr{Net: "unix", Name: "/run/redis.sock"}}
			},
			"no address": func(nc net.Conn) net.Conn { return &elsewhereConn{nc, nil} },
		} {
			sub(t, fmt.Sprintf("mode %d, %s", mode, name), func(t *testing.T) {
				s := newScript(t)
				dialled := later(func() error {
					c, err := Dial(background, Options{Network: "unix", Addr: "/run/redis.sock", Dialer: through(s.dial, wrap), Maintenance: Maintenance{Mode: Mode(mode)}})
					if err == nil {
						c.Close()
					}
					return err
				})
				p := s.acceptAt("/run/redis.sock")
				p.expects("HELLO 3")
				p.says(helloThree)
				p.expects(strings.Split(setInfo, " | ")...)
				p.says("+OK\r\n+OK\r\n")
				p.expects(want...)
				p.says(strings.Repeat("+OK\r\n", len(want)-1) + "+PONG\r\n")
				if err := dialled(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A42: where there is nothing to poll, a thousand announcements that name nobody are one wait, whatever numbers they have; and after
// Close there is none.
func TestCaseA42AThousandWaitsAreOne(t *testing.T) {
	for name, number := range map[string]func(i int) any{
		"of one number": func(int) any { return 7 }, "of rising numbers": func(i int) any { return i }, "without a number": func(int) any { return nil },
	} {
		for _, closeIt := range []bool{false, true} {
			sub(t, fmt.Sprintf("%s, closed in the middle: %v", name, closeIt), func(t *testing.T) {
				s, book := newScript(t), &dialBook{}
				all := gather(s, shakesHands)
				without := goroutines()
				c := dialOptions(t, Options{Addr: addrA, Dialer: book.over(s.dial), KeepAlive: -1})
				told := all.at(addrA)[0]
				before := goroutines()
				for i := range 1000 {
					told.says(moves(number(i), 15, ""))
					time.Sleep(5 * time.Millisecond)
				}
				if n := goroutines(); n > before+1 { // the dialler
					t.Errorf("%d goroutines, %d before", n, before)
				}
				if closeIt {
					c.Close()
					if n := goroutines(); n > without {
						t.Errorf("%d goroutines after Close, %d before the client", n, without)
					}
					return
				}
				time.Sleep(2 * time.Minute)
				if n := goroutines(); n > before {
					t.Errorf("%d goroutines in the end, %d before", n, before)
				}
				if n := len(book.to()); n != 2 || c.Stats().Handoffs != 1 {
					t.Errorf("%d dials, %d handoffs, want one beside the first dial", n, c.Stats().Handoffs)
				}
				served(t, c, "after it all")
			})
		}
	}
}

// A43: that one connection was granted notifications does not make a later refusal fatal; nor does one refusal end the asking.
func TestCaseA43GrantedOnceRefusedLater(t *testing.T) {
	const refusal = "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"
	for name, next := range map[string]func(p *peer) string{
		"at a redial":    func(p *peer) string { p.Close(); return addrA },
		"at a successor": func(p *peer) string { p.says(movingFrame(1, 1, addrB)); return addrB },
	} {
		sub(t, name, func(t *testing.T) {
			s := newScript(t)
			var asked atomic.Int32
			all := gather(s, func(p *peer) {
				p.serve(func(command string) string {
					if strings.HasPrefix(command, "CLIENT MAINT") && asked.Add(1) == 2 {
						return refusal
					}
					return answers(nil).to(command)
				})
			})
			c := dialOptions(t, Options{Addr: addrA, Dialer: s.dial, KeepAlive: -1})
			works := func(what string, addr string) *peer {
				t.Helper()
				if got, err := c.Do(background, "ECHO", what).Text(); got != what {
					t.Errorf("%s: %q, %v", what, got, err)
				}
				open := all.at(addr)
				if len(open) != 1 {
					t.Fatalf("%s: %d connections to %s", what, len(open), addr)
				}
				return open[0]
			}
			addr := next(works("granted", addrA))
			time.Sleep(30 * time.Second)
			works("refused", addr).Close()
			time.Sleep(30 * time.Second)
			works("granted again", addrA).says(movingFrame(2, 1, addrC))
			time.Sleep(30 * time.Second)
			works("heard again", addrC)
			if n := asked.Load(); n != 4 {
				t.Errorf("notifications were asked for %d times on 4 connections", n)
			}
		})
	}
	sub(t, "where they are demanded it fails that dial, and the next one is asked again", func(t *testing.T) {
		s, j := newScript(t), &journal{}
		c, p := s.connect(Options{OnEvent: j.add, Maintenance: Maintenance{Mode: Enabled}})
		waiting := async(c, "GET", "1")
		p.expects("GET 1")
		p.says("+one\r\n")
		answered(t, waiting, "one")
		p.Close()
		go s.accept().serve(answers{"CLIENT MAINT": refusal}.to)
		q := s.accept()
		if e := j.of(EventDialFailed); len(e) != 1 || !strings.Contains(e[0].Err.Error(), "MAINT_NOTIFICATIONS") {
			t.Errorf("the events of failed dials: %v", e)
		}
		q.handshake()
		go q.echo()
		served(t, c, "after the refusal")
	})
}

// A48: announcements, PINGs of idle connections, Stats, and the end of the client by several at once, of two clients that were
// given the same options. The race detector looks on; and until the end no command fails.
func TestCaseA48HandoffsHealthChecksAndCloseTogether(t *testing.T) {
	for seed := range uint64(20) {
		bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 48))
			a := memoryServer(t)
			b := sibling(t, a)
			o := Options{Addr: a.Addr(), Dialer: asSockets(a.Dial), Conns: 3, KeepAlive: 3 * time.Millisecond, Timeout: 200 * time.Millisecond,
				OnEvent: func(Event) {}, Maintenance: Maintenance{HoldCap: time.Duration(r.IntN(3)) * time.Millisecond, AllowSuccessor: func(string) bool { return true }}}
			dials := []func() (*Client, error){}
			for range 2 {
				type result struct {
					c   *Client
					err error
				}
				dialled := later(func() result { c, err := Dial(background, o); return result{c, err} })
				dials = append(dials, func() (*Client, error) { r := dialled(); return r.c, r.err })
			}
			var wg sync.WaitGroup
			var closing atomic.Bool
			for k, dialled := range dials {
				c, err := dialled()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				for w := range 6 {
					pause := time.Duration(1+r.IntN(12)) * time.Millisecond // some let the connection be idle for longer than KeepAlive
					wg.Go(func() {
						for i := 0; ; i++ {
							want := fmt.Sprint(k, ":", w, ":", i)
							got, err := c.Do(background, "ECHO", want).Text()
							if closing.Load() && errors.Is(err, ErrClosed) {
								return
							}
							if err != nil || got != want {
								t.Errorf("seed %d: the reply to %q is %q, %v", seed, want, got, err)
								return
							}
							time.Sleep(pause)
						}
					})
				}
				wg.Go(func() {
					for i := 0; !closing.Load(); i++ {
						if c.Stats(); i%20 == 19 {
							if err := c.Renew(background); err != nil && !errors.Is(err, ErrClosed) {
								t.Errorf("seed %d: Renew: %v", seed, err)
							}
						}
						time.Sleep(time.Millisecond)
					}
				})
				end := time.Duration(40+r.IntN(200)) * time.Millisecond
				for range 2 {
					wg.Go(func() {
						time.Sleep(240 * time.Millisecond)
						closing.Store(true)
						time.Sleep(end)
						c.Close()
					})
				}
				wg.Go(func() {
					time.Sleep(240*time.Millisecond + end)
					ctx, cancel := contextFor(time.Millisecond)
					defer cancel()
					c.Shutdown(ctx)
				})
			}
			for i := range 30 {
				to := []*batontest.Server{b, a}[i%2].Addr()
				seq := a.NextSeq()
				a.Push("MOVING", seq, r.IntN(2), to)
				b.Push("MOVING", seq, r.IntN(2), to)
				time.Sleep(time.Duration(1+r.IntN(15)) * time.Millisecond)
			}
			wg.Wait()
			time.Sleep(time.Second)
			if n := a.Conns() + b.Conns(); n != 0 {
				t.Errorf("seed %d: %d connections are left", seed, n)
			}
		})
	}
}

// --- credentials ---

// E4: a password alone is that of the user default, in HELLO; and no connection is authenticated a second time while it lives, however
// often what is asked for changes, whatever is under way.
func TestCaseE4NoAuthOnALiveConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		var tokens atomic.Int32
		var mu sync.Mutex
		said := map[*peer][]string{}
		all := gather(s, func(p *peer) {
			p.serve(func(command string) string {
				mu.Lock()
				said[p] = append(said[p], command)
				mu.Unlock()
				return answers(nil).to(command)
			})
		})
		c := dialOptions(t, Options{Addr: addrA, Dialer: s.dial, Credentials: func(context.Context) (string, string, error) {
			return "", fmt.Sprint("token-", tokens.Add(1)), nil
		}})
		var wg sync.WaitGroup
		end := time.Now().Add(30 * time.Second)
		for w := range 4 {
			wg.Go(func() {
				for i := 0; time.Now().Before(end); i++ {
					var b Batch
					b.Add("ECHO", fmt.Sprint(w, ":", i))
					b.Add("INCR", "k")
					if _, err := c.DoBatch(background, &b); err != nil && !MaybeExecuted(err) {
						t.Error(err)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		for i, addr := range []string{addrB, addrC, addrA} {
			time.Sleep(7 * time.Second)
			all.at(s.dialled()[i])[0].says(movingFrame(i, 1, addr))
		}
		time.Sleep(7 * time.Second)
		all.at(addrA)[0].Close()
		wg.Wait()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for i, p := range all.all {
			hello := fmt.Sprint("HELLO 3 AUTH default token-", i+1)
			if said[p][0] != hello {
				t.Errorf("connection %d began with %q, want %q", i, said[p][0], hello)
			}
			for _, command := range said[p][1:] {
				if strings.HasPrefix(command, "AUTH") || strings.HasPrefix(command, "HELLO") {
					t.Errorf("connection %d: %q while it lives", i, command)
				}
			}
			if len(said[p]) < 100 {
				t.Errorf("connection %d carried %d commands", i, len(said[p]))
			}
		}
		if len(all.all) != 5 || tokens.Load() != 5 {
			t.Errorf("%d connections, and credentials were asked for %d times, want 5", len(all.all), tokens.Load())
		}
	})
}

// --- windows ---

// TestAbsurdWindowsWithoutASuccessor are clamped before anything is made of them, however they are written.
func TestAbsurdWindowsWithoutASuccessor(t *testing.T) {
	for seconds, half := range map[string]time.Duration{
		":-9223372036854775808\r\n":         0,
		":9223372036854775807\r\n":          30 * time.Minute,
		"$19\r\n9223372036854775807\r\n":    30 * time.Minute,
		"(3492890328409238509324850943\r\n": 5 * time.Second, // no integer, so no time: it counts as the relaxed timeout
		"$20\r\n92233720368547758070\r\n":   5 * time.Second,
		"$4\r\nsoon\r\n":                    5 * time.Second,
		",1e300\r\n":                        5 * time.Second,
	} {
		sub(t, fmt.Sprintf("%q", seconds), func(t *testing.T) {
			s, book := newScript(t), &dialBook{}
			c, a := s.connectVia(Options{KeepAlive: -1}, book)
			start := time.Now()
			a.says(">4\r\n$6\r\nMOVING\r\n:1\r\n" + seconds + "_\r\n")
			b := s.readyAt(addrA)
			if took := time.Since(start); took < half || took > half+min(half/5, time.Second) {
				t.Errorf("it was dialled after %v, want %v and the jitter", took, half)
			}
			go b.echo()
			time.Sleep(2 * time.Hour)
			served(t, c, "after it")
			if n := len(book.to()); n != 2 || !a.hungUp() {
				t.Errorf("%d dials", n)
			}
		})
	}
}

// TestHoldCapsOfEverySize is about those that TestContract5PauseIsOneRoundTrip leaves out: the most and the least that can be said.
func TestHoldCapsOfEverySize(t *testing.T) {
	for holdCap, want := range map[time.Duration]time.Duration{
		math.MinInt64: 0, -time.Nanosecond: 0, 0: 50 * time.Millisecond, time.Nanosecond: time.Nanosecond, math.MaxInt64: 40 * time.Second,
	} {
		for _, window := range []int{0, 1, 15} {
			sub(t, fmt.Sprintf("HoldCap %v, window=%ds", holdCap, window), func(t *testing.T) {
				s := newScript(t)
				c, a := s.connect(Options{Timeout: time.Hour, Maintenance: Maintenance{HoldCap: holdCap}})
				slow := async(c, "GET", "slow")
				a.expects("GET slow")
				a.moving(1, window, addrB)
				b := s.readyAt(addrB)
				start := time.Now()
				time.AfterFunc(40*time.Second, func() { a.says("+at last\r\n") })
				held := async(c, "GET", "held")
				b.expects("GET held")
				if took := time.Since(start); took != want {
					t.Errorf("it was held for %v, want %v", took, want)
				}
				b.says("+value\r\n")
				answered(t, held, "value")
				answered(t, slow, "at last")
			})
		}
	}
}

// TestHandoffsForOneNumberShareOneHold: HoldCap is for an announcement, however often it is followed.
func TestHandoffsForOneNumberShareOneHold(t *testing.T) {
	for _, first := range []time.Duration{0, 20 * time.Millisecond, 50 * time.Millisecond} {
		sub(t, fmt.Sprintf("of which the first handoff takes %v", first), func(t *testing.T) {
			s := newScript(t)
			c, cur := s.connect(Options{Timeout: time.Hour, KeepAlive: -1})
			cur.says(moves(1, 20, ""))
			for handoff, want := range []time.Duration{first, 50*time.Millisecond - first, 0} {
				slow := async(c, "GET", "slow")
				cur.expects("GET slow")
				next := s.acceptAt(addrA)
				next.handshakeSaying(moves(1, 20, ""))
				synctest.Wait()
				start, old := time.Now(), cur
				held := async(c, "GET", "held")
				if handoff == 0 && first < 50*time.Millisecond {
					time.AfterFunc(first, func() { old.says("+at last\r\n") })
				}
				next.expects("GET held")
				if took := time.Since(start); took != want {
					t.Errorf("handoff %d held for %v, want %v", handoff, took, want)
				}
				next.says("+value\r\n")
				answered(t, held, "value")
				if handoff > 0 || first == 50*time.Millisecond {
					old.says("+at last\r\n")
				}
				answered(t, slow, "at last")
				cur = next
			}
		})
	}
}

// TestAbsurdSettingsAreOrdinaryOnes: durations that no sum can hold.
func TestAbsurdSettingsAreOrdinaryOnes(t *testing.T) {
	const most = math.MaxInt64
	for name, o := range map[string]Options{
		"RelaxedTimeout":   {Maintenance: Maintenance{RelaxedTimeout: most}},
		"RelaxedTimeout/2": {Maintenance: Maintenance{RelaxedTimeout: most / 2}},
		"RelaxedWindowMax": {Maintenance: Maintenance{RelaxedWindowMax: most}},
		"PostEventRelaxed": {Maintenance: Maintenance{PostEventRelaxed: most}},
		"Timeout":          {Timeout: most},
		"DialTimeout":      {DialTimeout: most},
		"KeepAlive":        {KeepAlive: most},
		"MaxAge":           {MaxAge: most},
		"all": {Timeout: most, DialTimeout: most, KeepAlive: most, MaxAge: most,
			Maintenance: Maintenance{RelaxedTimeout: most, RelaxedWindowMax: most, PostEventRelaxed: most, HoldCap: most}},
	} {
		sub(t, name, func(t *testing.T) {
			if _, err := o.resolved(); err != nil {
				t.Fatal(err)
			}
			s := newScript(t)
			c, a := s.connect(o)
			slow := async(c, "GET", "slow")
			a.expects("GET slow")
			a.says(opens("MIGRATING", 1, most) + closes("MIGRATED", 2) + movingFrame(3, 15, addrB))
			b := s.readyAt(addrB)
			time.Sleep(time.Second)
			go b.echo()
			if o.Maintenance.HoldCap == 0 {
				served(t, c, "on the successor")
			}
			a.says("+at last\r\n")
			answered(t, slow, "at last")
			served(t, c, "in the end")
			if d := s.dialled(); len(d) != 2 || c.Stats().Failed > 0 {
				t.Errorf("dialled %v, stats %+v", d, c.Stats())
			}
		})
	}
}

// --- relaxed windows ---

// TestRelaxedWindowsBelongToTheClient: what one connection is told covers all of them, and what another is told ends it.
func TestRelaxedWindowsBelongToTheClient(t *testing.T) {
	for name, c := range map[string]struct {
		closed bool
		want   time.Duration
	}{"open": {false, 10 * time.Second}, "closed on another": {true, 500 * time.Millisecond}} {
		sub(t, name, func(t *testing.T) {
			s := newScript(t)
			client, a1 := s.connect(Options{Conns: 3, Timeout: 500 * time.Millisecond, KeepAlive: -1, Maintenance: Maintenance{PostEventRelaxed: -1}})
			a2, a3 := s.readyAt(addrA), s.readyAt(addrA)
			a1.says(opens("FAILING_OVER", 1, 15))
			a2.says(opens("FAILING_OVER", 1, 15)) // a copy is no second opener
			synctest.Wait()
			if c.closed {
				a3.says(closes("FAILED_OVER", 2))
			}
			synctest.Wait()
			start := time.Now()
			var replies []<-chan Reply
			for range 3 {
				replies = append(replies, async(client, "GET", "stalled"))
			}
			for i, r := range replies {
				failedWith(t, "a stalled command", r, ErrTimeout, true)
				if took := time.Since(start); !around(took, c.want) {
					t.Errorf("command %d, on one of three bridges, waited %v, want %v", i, took, c.want)
				}
			}
		})
	}
}

// TestRelaxationCoversWorkWithoutAConnection: the backlog is judged by the same clock.
func TestRelaxationCoversWorkWithoutAConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: 500 * time.Millisecond})
		a.says(opens("FAILING_OVER", 1, 30))
		synctest.Wait()
		s.refuseAll()
		a.Close()
		waiting := async(c, "GET", "1")
		start := time.Now()
		time.Sleep(9 * time.Second)
		pending(t, "a command in the backlog", waiting)
		failedWith(t, "a command in the backlog", waiting, ErrTimeout, false)
		if took := time.Since(start); !around(took, 10*time.Second) {
			t.Errorf("it waited %v, want the relaxed timeout", took)
		}
	})
}

// TestTheEndOfAWindowIsReported, by its closing frame or by itself, once, whatever was told in between and to how many.
func TestTheEndOfAWindowIsReported(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame string // 3 s after it opened
		after time.Duration
	}{
		{"closed", closes("MIGRATED", 2), 3 * time.Second},
		{"by itself", "", 15 * time.Second},
		{"prolonged", opens("MIGRATING", 2, 15), 18 * time.Second},
		{"not prolonged by a copy", opens("MIGRATING", 1, 15), 15 * time.Second},
		{"not prolonged by a shorter one", opens("MIGRATING", 2, 2), 15 * time.Second},
		{"by itself, since one of two is closed", opens("MIGRATING", 2, 15) + closes("MIGRATED", 3), 18 * time.Second},
		{"closed, since both of two are", opens("MIGRATING", 2, 15) + closes("MIGRATED", 3) + closes("MIGRATED", 4), 3 * time.Second},
	} {
		for _, conns := range []int{1, 3} {
			sub(t, fmt.Sprintf("%s, conns=%d", c.name, conns), func(t *testing.T) {
				s, j := newScript(t), &journal{}
				_, a := s.connect(Options{OnEvent: j.add, Conns: conns})
				told := []*peer{a}
				for range conns - 1 {
					told = append(told, s.readyAt(addrA))
				}
				start := time.Now()
				for _, p := range told {
					p.says(opens("MIGRATING", 1, 15))
				}
				time.Sleep(3 * time.Second)
				for _, p := range told {
					p.says(c.frame)
				}
				time.Sleep(time.Minute)
				if e := j.of(EventRelaxed); len(e) != 1 || e[0].Time != start {
					t.Errorf("the window's beginning is reported as %v", e)
				}
				if e := j.of(EventTightened); len(e) != 1 || e[0].Time.Sub(start) < c.after || e[0].Time.Sub(start) > c.after+time.Second || e[0].Notification == "" {
					t.Errorf("the window's end, %v after its beginning, is reported as %v", c.after, e)
				}
			})
		}
	}
}

// TestTheClockStartsAnewWhenAHandoffIsGivenUp, for what has waited for its connection all along.
func TestTheClockStartsAnewWhenAHandoffIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: 400 * time.Millisecond, DialTimeout: 2 * time.Second, Maintenance: Maintenance{RelaxedTimeout: -1}})
		s.refuseAll()
		start := time.Now()
		a.moving(1, 4, addrB)
		synctest.Wait()
		a.Close()
		waiting := async(c, "GET", "1")
		time.Sleep(6*time.Second - time.Millisecond)
		inPhase(t, c, PhasePreparing)
		time.Sleep(2 * time.Millisecond)
		inPhase(t, c, PhaseDone)
		pending(t, "a command when the handoff has just been given up", waiting)
		failedWith(t, "a command without a connection", waiting, ErrTimeout, false)
		if took := time.Since(start); took < 6400*time.Millisecond || took > 6500*time.Millisecond {
			t.Errorf("it waited %v, want the window, a dial, and its timeout", took)
		}
	})
}

// --- policies ---

// TestFailFastInEveryPhase has a handoff be in each of its stages, with the old connection alive, lost until others can be made, and
// lost for good. Only the last fails anybody, and not before the handoff has ended.
func TestFailFastInEveryPhase(t *testing.T) {
	const name = "db.example.com:6379"
	type handoffTo struct {
		name  string
		addr  string
		o     Options
		begin func(s *script, c *Client, a *peer)
		ends  time.Duration // after it began, in vain
	}
	moved := func(successor string) func(*script, *Client, *peer) {
		return func(_ *script, _ *Client, a *peer) { a.says(moves(1, 30, successor)) }
	}
	then := func(begin func(*script, *Client, *peer), wait time.Duration) func(*script, *Client, *peer) {
		return func(s *script, c *Client, a *peer) { begin(s, c, a); time.Sleep(wait) }
	}
	const most = 40 * time.Second // the window and a dial, which is relaxed
	for _, h := range []handoffTo{
		{"the jitter", addrA, Options{}, moved(addrB), most},
		{"back-off", addrA, Options{}, then(moved(addrB), 5*time.Second), most},
		{"in turn", addrA, Options{}, then(moved(addrB), 20*time.Second), most},
		{"after the window", addrA, Options{}, then(moved(addrB), 32*time.Second), most},
		{"waiting for half of the window", addrA, Options{}, then(moved(""), 5*time.Second), most},
		{"told where it is", addrA, Options{}, then(moved(addrA), 5*time.Second), most},
		{"the poll", name, Options{}, then(moved(""), 5*time.Second), most},
		{"a renewal", addrA, Options{}, func(_ *script, c *Client, _ *peer) { go c.Renew(background); synctest.Wait() }, 5 * time.Second},
	} {
		for _, lost := range []string{"no", "for a while", "for good"} {
			sub(t, h.name+", connection lost: "+lost, func(t *testing.T) {
				s := newScript(t)
				var up atomic.Bool
				up.Store(true)
				s.fail = func(string) error {
					if !up.Load() {
						return syscall.ECONNREFUSED
					}
					return nil
				}
				o := h.o
				o.Addr, o.Backlog, o.KeepAlive, o.Timeout, o.MaxInFlight = h.addr, FailFast, -1, time.Hour, 1
				if h.addr == name {
					o.Resolver = nameServer(func(string) []string { return []string{"10.9.0.1"} })
				}
				c, a := s.connect(o)
				synctest.Wait()
				up.Store(false)
				start := time.Now()
				h.begin(s, c, a)
				inPhase(t, c, PhasePreparing)
				if lost == "no" {
					one := async(c, "GET", "1")
					a.expects("GET 1")
					a.says("+one\r\n")
					answered(t, one, "one")
					time.Sleep(h.ends - time.Since(start) + 100*time.Millisecond)
					inPhase(t, c, PhaseDone) // given up
					two := async(c, "GET", "2")
					a.expects("GET 2")
					a.says("+two\r\n")
					answered(t, two, "two")
					a.Close()
					synctest.Wait()
					failedWith(t, "after the handoff, without a connection", async(c, "GET", "3"), ErrNoConnection, false)
					return
				}
				early := async(c, "GET", "early")
				a.expects("GET early")
				queued := async(c, "GET", "queued")
				a.reset()
				failedWith(t, "in flight at the cut", early, nil, true)
				one := async(c, "GET", "1")
				time.Sleep(time.Second)
				pending(t, "a command that waited when the connection was lost", queued)
				pending(t, "a command during the handoff", one)
				if lost == "for a while" {
					up.Store(true)
					gather(s, shakesHands)
					answered(t, queued, "GET queued")
					answered(t, one, "GET 1")
					inPhase(t, c, PhaseDone)
					served(t, c, "after the handoff")
					return
				}
				time.Sleep(h.ends - time.Since(start) - 100*time.Millisecond)
				pending(t, "a command at the end of the handoff", one)
				failedWith(t, "a command when it is given up", queued, ErrNoConnection, false)
				failedWith(t, "a command when it is given up", one, ErrNoConnection, false)
				if took := time.Since(start); took > h.ends+100*time.Millisecond {
					t.Errorf("it was given up after %v, want %v", took, h.ends)
				}
				failedWith(t, "a command at the door", async(c, "GET", "2"), ErrNoConnection, false)
			})
		}
	}
	sub(t, "holding, and the replacement is lost", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Backlog: FailFast})
		one := async(c, "GET", "1")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		held := async(c, "GET", "2")
		inPhase(t, c, PhaseHolding)
		b.reset()
		a.expects("GET 1", "GET 2")
		a.says("+one\r\n+two\r\n")
		answered(t, one, "one")
		answered(t, held, "two")
	})
	sub(t, "just promoted, and the replacement is lost", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Backlog: FailFast, MaxInFlight: 1, Timeout: time.Minute})
		slow := async(c, "GET", "slow")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		one, two := async(c, "GET", "1"), async(c, "GET", "2")
		time.Sleep(100 * time.Millisecond)
		inPhase(t, c, PhaseDone)
		b.expects("GET 1")
		b.reset()
		failedWith(t, "in flight at the cut", one, nil, true)
		failedWith(t, "queued behind it", two, ErrNoConnection, false)
		failedWith(t, "at the door", async(c, "GET", "3"), ErrNoConnection, false)
		a.says("+at last\r\n")
		answered(t, slow, "at last")
	})
	sub(t, "a straggler on the old connection does not count as one", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Backlog: FailFast, Timeout: time.Minute})
		async(c, "GET", "slow")
		a.moving(1, 1, addrB)
		b := s.readyAt(addrB)
		time.Sleep(20 * time.Second)
		s.refuseAll()
		b.Close()
		synctest.Wait()
		failedWith(t, "a command", async(c, "GET", "1"), ErrNoConnection, false)
		a.expects("GET slow")
		pendingPeer(t, a)
	})
}

// TestAFullBacklogInAHandoff: what there is no room for was never sent, what there was room for is served in order.
func TestAFullBacklogInAHandoff(t *testing.T) {
	for _, policy := range []BacklogPolicy{Queue, FailFast} {
		sub(t, fmt.Sprintf("without a connection, policy %d", policy), func(t *testing.T) {
			s := newScript(t)
			c, a := s.connect(Options{Backlog: policy, MaxBacklog: 3})
			a.moving(1, 10, addrB)
			b := s.acceptAt(addrB)
			a.Close()
			synctest.Wait()
			var got []<-chan Reply
			for i := range 3 {
				got = append(got, async(c, "GET", i))
			}
			failedWith(t, "one too many", async(c, "GET", "no"), ErrBacklogFull, false)
			b.handshake()
			go b.echo()
			for i, ch := range got {
				answered(t, ch, fmt.Sprint("GET ", i))
			}
		})
	}
	sub(t, "the replacement takes but one", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{MaxBacklog: 3, MaxInFlight: 1, Maintenance: Maintenance{HoldCap: time.Hour}})
		slow := async(c, "GET", "slow")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		var got []<-chan Reply
		for i := range 3 {
			got = append(got, async(c, "GET", i))
		}
		inPhase(t, c, PhaseHolding)
		got = append(got, async(c, "GET", 3)) // which ends the hold
		inPhase(t, c, PhaseDone)
		failedWith(t, "one too many", async(c, "GET", "no"), ErrBacklogFull, false)
		go b.echo()
		for i, ch := range got {
			answered(t, ch, fmt.Sprint("GET ", i))
		}
		a.says("+at last\r\n")
		answered(t, slow, "at last")
	})
	sub(t, "who leaves makes room, and the hold goes on", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{MaxBacklog: 2, Maintenance: Maintenance{HoldCap: time.Hour}})
		slow := async(c, "GET", "slow")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		ctx, cancel := context.WithCancel(background)
		one, two := asyncIn(ctx, c, "GET", "1"), async(c, "GET", "2")
		cancel()
		failedWith(t, "held", one, context.Canceled, false)
		three := async(c, "GET", "3")
		inPhase(t, c, PhaseHolding)
		a.says("+at last\r\n")
		answered(t, slow, "at last")
		go b.echo()
		answered(t, two, "GET 2")
		answered(t, three, "GET 3")
	})
	sub(t, "a batch that does not fit ends it", func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{MaxBacklog: 3, Maintenance: Maintenance{HoldCap: time.Hour}})
		slow := async(c, "GET", "slow")
		a.moving(1, 10, addrB)
		b := s.readyAt(addrB)
		go b.echo()
		one, two := async(c, "GET", "1"), async(c, "GET", "2")
		var batch Batch
		batch.Add("GET", "3")
		batch.Add("GET", "4")
		replies, err := c.DoBatch(background, &batch)
		if err != nil || len(replies) != 2 || textOf(replies[1]) != "GET 4" {
			t.Errorf("the batch: %v, %v", replies, err)
		}
		answered(t, one, "GET 1")
		answered(t, two, "GET 2")
		a.says("+at last\r\n")
		answered(t, slow, "at last")
	})
}

// --- the ends ---

// ending is a client in the middle of something.
type ending struct {
	s    *script
	c    *Client
	cur  *peer        // its current connection,
	one  <-chan Reply // on which this is unanswered: GET 1
	over func() error // the result of a Renew that is under way; nil: there is none

	blocks bool // what a user supplied, or the resolver, does not return
}

// endings are the stages that TestCloseInEachPhase and TestShutdownInEachPhase leave out: those in which nothing is dialled, or not for
// an announcement.
var endings = map[string]func(t *testing.T) ending{
	"waiting for half of the window": func(t *testing.T) ending {
		e := begin(t, Options{})
		e.cur.says(moves(1, 10, ""))
		time.Sleep(time.Second)
		return e.asks()
	},
	"the poll": func(t *testing.T) ending {
		e := begin(t, Options{Addr: "db.example.com:6379", Resolver: nameServer(func(string) []string { return []string{"10.9.0.1"} })})
		e.cur.says(moves(1, 10, ""))
		time.Sleep(1500 * time.Millisecond)
		return e.asks()
	},
	"told again, waiting": func(t *testing.T) ending {
		e := begin(t, Options{})
		e.cur.says(moves(1, 20, ""))
		e.cur = e.s.acceptAt(addrA)
		e.cur.handshakeSaying(moves(1, 20, ""))
		synctest.Wait()
		return e.asks()
	},
	"told again, dialling": func(t *testing.T) ending {
		e := begin(t, Options{})
		e.cur.says(moves(1, 20, ""))
		e.cur = e.s.acceptAt(addrA)
		e.cur.handshakeSaying(moves(1, 20, ""))
		e.s.acceptAt(addrA)
		return e.asks()
	},
	"a renewal, dialling": func(t *testing.T) ending {
		e := begin(t, Options{}).renews()
		e.s.acceptAt(addrA)
		return e.asks()
	},
	"a renewal, backing off": func(t *testing.T) ending {
		e := begin(t, Options{})
		e.s.refuseAll()
		e = e.renews()
		time.Sleep(time.Second)
		return e.asks()
	},
	"a renewal, holding": func(t *testing.T) ending {
		e := begin(t, Options{Maintenance: Maintenance{HoldCap: time.Hour}}).asks().renews()
		e.s.readyAt(addrA)
		inPhase(t, e.c, PhaseHolding)
		return e
	},
	"given up": func(t *testing.T) ending {
		e := begin(t, Options{})
		e.s.refuseAll()
		e.cur.moving(1, 1, addrB)
		time.Sleep(time.Minute)
		return e.asks()
	},
	"AllowSuccessor blocks": func(t *testing.T) ending {
		block := make(chan struct{})
		t.Cleanup(func() { close(block) })
		e := begin(t, Options{Maintenance: Maintenance{AllowSuccessor: func(string) bool { <-block; return true }}})
		e.cur.moving(1, 10, addrB)
		time.Sleep(2 * time.Second)
		e.blocks = true
		return e.asks()
	},
}

func begin(t *testing.T, o Options) ending {
	e := ending{s: newScript(t)}
	o.Timeout, o.KeepAlive = time.Hour, -1
	e.c, e.cur = e.s.connect(o)
	synctest.Wait()
	return e
}

// asks gives a command that is not answered.
func (e ending) asks() ending {
	e.one = async(e.c, "GET", "1")
	e.cur.expects("GET 1")
	return e
}

func (e ending) renews() ending {
	e.over = later(func() error { return e.c.Renew(background) })
	synctest.Wait()
	return e
}

// TestCloseInEveryWait: at once, honestly, and nothing is left running (the bubble looks).
func TestCloseInEveryWait(t *testing.T) {
	for name, stage := range endings {
		sub(t, name, func(t *testing.T) {
			before := goroutines()
			e := stage(t)
			start, dials := time.Now(), len(e.s.dialled())
			e.c.Close()
			if n := goroutines(); n > before && !e.blocks {
				t.Errorf("%d goroutines are left at once", n-before)
			}
			if e.one != nil {
				failedWith(t, "in flight", e.one, ErrClosed, true)
			}
			failedWith(t, "afterwards", async(e.c, "GET", "2"), ErrClosed, false)
			if e.over != nil {
				if err := e.over(); !errors.Is(err, ErrClosed) {
					t.Errorf("Renew: %v", err)
				}
			}
			if err := e.c.Renew(background); !errors.Is(err, ErrClosed) {
				t.Errorf("Renew afterwards: %v", err)
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("it took %v", took)
			}
			if !e.cur.hungUp() {
				t.Error("the connection is open")
			}
			if st := e.c.Stats(); st.Conns+st.InFlight+st.Backlog != 0 {
				t.Errorf("stats: %+v", st)
			}
			if time.Sleep(time.Minute); len(e.s.dialled()) != dials {
				t.Errorf("%d dials after Close", len(e.s.dialled())-dials)
			}
		})
	}
}

// TestShutdownInEveryWait waits for what is in flight, and for nothing else.
func TestShutdownInEveryWait(t *testing.T) {
	for name, stage := range endings {
		sub(t, name, func(t *testing.T) {
			before := goroutines()
			e := stage(t)
			over := make(chan error, 1)
			go func() { over <- e.c.Shutdown(background) }()
			synctest.Wait()
			failedWith(t, "afterwards", async(e.c, "GET", "2"), ErrClosed, false)
			e.cur.moving(99, 0, addrC) // ignored
			if e.one != nil {
				time.Sleep(100 * time.Millisecond)
				select {
				case err := <-over:
					t.Fatalf("it did not wait for what is in flight: %v", err)
				default:
				}
				e.cur.says("+one\r\n")
				answered(t, e.one, "one")
			}
			synctest.Wait()
			select {
			case err := <-over:
				if err != nil {
					t.Errorf("Shutdown: %v", err)
				}
			default:
				t.Error("nothing is in flight, and it waits")
				e.c.Close()
			}
			if e.over != nil {
				e.over()
			}
			if n := goroutines(); n > before && !e.blocks {
				t.Errorf("%d goroutines are left at once", n-before)
			}
			dials := len(e.s.dialled())
			if slices.Contains(e.s.dialled(), addrC) {
				t.Error("an announcement during Shutdown was followed")
			}
			if !e.cur.hungUp() || e.c.Stats().Conns != 0 {
				t.Error("a connection is open")
			}
			if time.Sleep(time.Minute); len(e.s.dialled()) != dials {
				t.Errorf("%d dials after it", len(e.s.dialled())-dials)
			}
		})
	}
}

// TestADroppedClientKeepsWhatIsItsOwn: nobody uses it any more or closes it, and announcements, losses and outages go on for 1,000 s.
func TestADroppedClientKeepsWhatIsItsOwn(t *testing.T) {
	for _, conns := range []int{1, 3} {
		for _, addr := range []string{"10.9.3.1:6379", "db.example.com:6379"} {
			sub(t, fmt.Sprintf("conns=%d, %s", conns, addr), func(t *testing.T) {
				a := memoryServer(t, batontest.WithAddr("10.9.3.1:6379"))
				b := a.Sibling(batontest.WithAddr("10.9.3.2:6379"))
				t.Cleanup(b.Close)
				var elsewhere atomic.Bool
				o := Options{Addr: addr, Dialer: slow(a.Dial, 20*time.Millisecond), Conns: conns, OnEvent: func(Event) {}}
				if addr != a.Addr() {
					o.MaxAge = 40 * time.Second
					o.Resolver = nameServer(func(string) []string {
						return []string{map[bool]string{false: "10.9.3.1", true: "10.9.3.2"}[elsewhere.Load()]}
					})
				}
				dialOptions(t, o)
				time.Sleep(time.Second)
				before := goroutines()
				start := time.Now()
				for i := 0; time.Since(start) < 1000*time.Second; i++ {
					from, to := a, b
					if b.Conns() > 0 {
						from, to = b, a
					}
					switch i % 8 {
					case 0:
						from.Move(to.Addr(), 2*time.Second)
					case 1:
						from.Move("", 4*time.Second)
						elsewhere.Store(to == b)
					case 2:
						from.Push("MIGRATING", from.NextSeq(), 15)
						from.Push("MIGRATED", from.NextSeq())
					case 3:
						from.Push("MOVING", from.NextSeq(), 1<<62, "10.8.8.8:1")
					case 4:
						for range 20 {
							from.Push("MOVING", from.NextSeq(), 0, to.Addr())
						}
					case 5:
						from.Cut()
					case 6:
						from.Move("10.8.8.8:1", time.Second)
					case 7:
						a.Refuse(true)
						b.Refuse(true)
						from.Cut()
						time.Sleep(3 * time.Second)
						a.Refuse(false)
						b.Refuse(false)
					}
					time.Sleep(5 * time.Second)
				}
				time.Sleep(2 * time.Minute)
				if n := goroutines(); n > before {
					t.Errorf("%d goroutines after 1,000 s, %d before", n, before)
				}
				if n := a.Conns() + b.Conns(); n != conns {
					t.Errorf("%d connections after 1,000 s, want %d", n, conns)
				}
			})
		}
	}
}

// --- all bridges on the node ---

// TestAllBridgesOnTheNode has four of them.
func TestAllBridgesOnTheNode(t *testing.T) {
	const conns = 4
	four := func(t *testing.T, o Options, book *dialBook) (*script, *Client, []*peer) {
		s := newScript(t)
		o.Conns, o.KeepAlive = conns, -1
		c, a := s.connectVia(o, book)
		on := []*peer{a}
		for range conns - 1 {
			on = append(on, s.readyAt(addrA))
		}
		return s, c, on
	}
	closed := func(peers []*peer) (n int) {
		for _, p := range peers {
			if p.hungUp() {
				n++
			}
		}
		return n
	}
	sub(t, "each joins once, side by side, and at its own pace", func(t *testing.T) {
		book := &dialBook{}
		s, c, on := four(t, Options{}, book)
		start := time.Now()
		for _, p := range on {
			p.moving(1, 15, addrB)
		}
		var there []*peer
		for range conns {
			there = append(there, s.acceptAt(addrB))
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("the last of them dialled after %v, while none was ready yet", took)
		}
		for i, p := range there {
			time.Sleep(time.Second)
			p.handshake()
			for _, q := range on {
				q.moving(1, 15, addrB) // copies, also to those that are in the middle of it
			}
			p.moving(1, 15, addrB) // and an echo
			if n := closed(on); n != i+1 || c.Stats().Handoffs != uint64(i+1) {
				t.Errorf("with %d successors ready %d bridges have moved", i+1, n)
			}
		}
		time.Sleep(time.Minute)
		if n := len(book.to()); n != 2*conns || closed(there) != 0 {
			t.Errorf("dialled %v", book.to())
		}
	})
	sub(t, "nobody is named: each once, at half of the window", func(t *testing.T) {
		book := &dialBook{}
		s, c, on := four(t, Options{}, book)
		start := time.Now()
		for _, p := range on {
			p.says(moves(1, 10, ""))
		}
		all := gather(s, shakesHands)
		time.Sleep(time.Minute)
		for _, after := range book.dialledAfter(conns, start) {
			if after < 5*time.Second || after > 6*time.Second {
				t.Errorf("a dial %v after the announcement", after)
			}
		}
		if n := len(book.to()); n != 2*conns || c.Stats().Handoffs != conns || closed(on) != conns || len(all.at(addrA)) != conns {
			t.Errorf("dialled %v, %d handoffs", book.to(), c.Stats().Handoffs)
		}
	})
	sub(t, "one that holds for long delays no other", func(t *testing.T) {
		book := &dialBook{}
		s, c, on := four(t, Options{Timeout: time.Hour, Maintenance: Maintenance{HoldCap: time.Hour}}, book)
		slow := async(c, "GET", "slow")
		for _, p := range on {
			p.moving(1, 15, addrB)
		}
		all := gather(s, shakesHands)
		time.Sleep(2 * time.Second)
		if n := c.Stats().Handoffs; n != conns-1 || len(all.at(addrB)) != conns {
			t.Errorf("%d bridges have moved while one holds", n)
		}
		for _, p := range on {
			if p.r.Buffered() > 0 || len(p.command()) > 0 { // it is on this one; the others are closed
				p.says("+at last\r\n")
			}
		}
		answered(t, slow, "at last")
		if synctest.Wait(); c.Stats().Handoffs != conns {
			t.Error("the last did not move")
		}
	})
	sub(t, "one whose successor refuses delays no other", func(t *testing.T) {
		book := &dialBook{}
		s, c, on := four(t, Options{}, book)
		s.refuseAll(addrC)
		on[0].moving(1, 15, addrC)
		time.Sleep(2 * time.Second)
		start := time.Now()
		for _, p := range on {
			p.moving(2, 15, addrB) // the one with the stuck attempt, too
		}
		for range conns {
			s.readyAt(addrB)
		}
		if took := time.Since(start); took > time.Second || closed(on) != conns || c.Stats().Handoffs != conns {
			t.Errorf("%d have moved after %v", closed(on), took)
		}
	})
	sub(t, "one that sits on another node stays", func(t *testing.T) {
		book := &dialBook{}
		s, c, on := four(t, Options{}, book)
		on[1].moving(1, 1, addrC)
		elsewhere := s.readyAt(addrC)
		time.Sleep(time.Minute) // until that is forgotten
		for _, i := range []int{0, 2, 3} {
			on[i].moving(2, 5, addrB)
		}
		for range 3 {
			go s.readyAt(addrB).echo()
		}
		time.Sleep(time.Minute)
		if elsewhere.hungUp() || len(book.to()) != conns+1+3 || c.Stats().Handoffs != 4 {
			t.Errorf("dialled %v", book.to())
		}
		elsewhere.moving(3, 5, addrA) // and moves when it is told itself
		s.readyAt(addrA)
		if !elsewhere.hungUp() || len(book.to()) != conns+1+3+1 {
			t.Errorf("dialled %v", book.to())
		}
	})
	sub(t, "those that were being dialled when it came count as old", func(t *testing.T) {
		s, book := newScript(t), &dialBook{}
		c, first := s.connectVia(Options{Conns: conns, KeepAlive: -1}, book)
		var under []*peer
		for range conns - 1 {
			under = append(under, s.acceptAt(addrA))
		}
		first.moving(1, 15, addrB)
		s.readyAt(addrB)
		for _, p := range under {
			p.handshake() // they are told nothing themselves
		}
		for range conns - 1 {
			s.readyAt(addrB)
		}
		time.Sleep(time.Minute)
		if n := len(book.to()); n != 2*conns || closed(under) != conns-1 || c.Stats().Handoffs != conns {
			t.Errorf("dialled %v, %d handoffs", book.to(), c.Stats().Handoffs)
		}
	})
	for _, successor := range []string{addrB, ""} {
		sub(t, fmt.Sprintf("those whose opt-in was refused follow, once, to %q", successor), func(t *testing.T) {
			s, book := newScript(t), &dialBook{}
			var number atomic.Int32
			all := gather(s, func(p *peer) {
				refused := number.Add(1)%2 == 0
				p.serve(func(command string) string {
					if refused && strings.HasPrefix(command, "CLIENT MAINT") {
						return "-ERR maintenance notifications are disabled on this server\r\n"
					}
					return answers(nil).to(command)
				})
			})
			c := dialOptions(t, Options{Addr: addrA, Dialer: book.over(s.dial), Conns: conns, KeepAlive: -1})
			on, start := all.at(addrA), time.Now()
			for range 30 { // copies delay nobody
				for _, i := range []int{0, 2} {
					on[i].says(moves(1, 10, successor))
				}
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			earliest := map[string]time.Duration{"": 5 * time.Second}[successor]
			for _, after := range book.dialledAfter(conns, start) {
				if after < earliest || after > earliest+time.Second {
					t.Errorf("a dial %v after the announcement", after)
				}
			}
			if n := len(book.to()); n != 2*conns || c.Stats().Handoffs != conns || len(all.at(cmp.Or(successor, addrA))) != conns {
				t.Errorf("dialled %v, %d handoffs", book.to(), c.Stats().Handoffs)
			}
		})
	}
}

// --- parsing, lost replies and server state: what the tests of those rooms leave out ---

// B12: the end of a subscription that nobody has is nobody's.
func TestCaseB12AnUnsubscribeOfNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{})
		for _, name := range []string{"unsubscribe", "punsubscribe", "sunsubscribe", "subscribe", "message"} {
			one := async(c, "GET", "1")
			p.expects("GET 1")
			p.says(fmt.Sprintf(">3\r\n$%d\r\n%s\r\n$1\r\nc\r\n:0\r\n>3\r\n$%d\r\n%s\r\n_\r\n:0\r\n+one\r\n", len(name), name, len(name), name))
			answered(t, one, "one")
		}
		if n := len(s.dialled()); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
}

// C13: a batch that is cut after a failover's answers fails as it stands, and not one command of it is sent again.
func TestCaseC13NothingOfACutBatchIsSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{})
		var b Batch
		for _, key := range []string{"1", "2", "3", "4"} {
			b.Add("DEL", key)
		}
		got := batchLater(c, &b)
		p.expects("DEL 1", "DEL 2", "DEL 3", "DEL 4")
		p.says("+OK\r\n-READONLY You can't write against a read only replica.\r\n")
		p.Close()
		r := got()
		if r.err == nil || !MaybeExecuted(r.err) || !errors.Is(r.err, io.EOF) || len(r.replies) != 4 {
			t.Fatalf("%d replies, %v", len(r.replies), r.err)
		}
		var server *ServerError
		if textOf(r.replies[0]) != "OK" || !errors.As(r.replies[1].Err(), &server) || MaybeExecuted(r.replies[1].Err()) || !MaybeExecuted(r.replies[2].Err()) || !MaybeExecuted(r.replies[3].Err()) {
			t.Errorf("the replies are %v", r.replies)
		}
		q := s.readyAt(addrA)
		pendingPeer(t, q)
	})
}

// --- the handshake ---

// B15: what comes before the answer to HELLO is not that answer, and shifts nothing: the connection is refused, at whatever moment it comes
// and in however many pieces. A push there is no answer, and is acted upon.
func TestCaseB15AFrameBeforeTheAnswerToHELLO(t *testing.T) {
	for name, stray := range map[string]string{
		"a status": "+OK\r\n", "a PONG": "+PONG\r\n", "an error": "-ERR what?\r\n", "a number": ":3\r\n", "null": "_\r\n", "null of protocol 2": "$-1\r\n",
		"a string": "$5\r\nhello\r\n", "an array": "*1\r\n+OK\r\n", "HELLO's own": helloThree, "HELLO's own, of protocol 2": "*2\r\n+proto\r\n:2\r\n",
		"a map": "%1\r\n+a\r\n+b\r\n", "two": "+OK\r\n+OK\r\n", "one with an attribute": "|1\r\n+a\r\n+b\r\n+OK\r\n", "one behind a push": ">1\r\n+foo\r\n+OK\r\n",
	} {
		for _, at := range []string{"when it accepts", "with the answer", "a second before the answer", "byte by byte"} {
			for _, mode := range []Mode{Auto, Enabled, Disabled} {
				sub(t, fmt.Sprintf("%s, %s, mode %d", name, at, mode), func(t *testing.T) {
					t.Cleanup(func() { time.Sleep(2 * time.Second) }) // so that the server notices that nobody listens
					s := newScript(t)
					s.attend(func(p *peer) {
						switch at {
						case "when it accepts":
							p.says(stray)
						case "byte by byte":
							for _, b := range []byte(stray) {
								p.says(string(b))
								time.Sleep(time.Millisecond)
							}
						}
						first := true
						p.serve(func(command string) string {
							raw := answers(nil).to(command)
							if first && at == "a second before the answer" {
								p.says(stray)
								time.Sleep(time.Second)
							}
							if first && at == "with the answer" {
								raw = stray + raw
							}
							first = false
							return raw
						})
					})
					c, err := Dial(background, Options{Addr: addrA, Dialer: s.dial, DB: 1, Maintenance: Maintenance{Mode: mode}})
					if err == nil {
						c.Close()
						t.Fatal("the connection is used")
					}
					if !strings.Contains(err.Error(), addrA) || MaybeExecuted(err) {
						t.Error(err)
					}
				})
			}
		}
	}
	sub(t, "a push", func(t *testing.T) {
		s, j := newScript(t), &journal{}
		s.attend(func(p *peer) {
			if p.addr == addrA {
				p.says(">1\r\n+foo\r\n" + movingFrame(1, 10, addrB))
			}
			p.serve(answers(nil).to)
		})
		c := dialOptions(t, Options{Addr: addrA, Dialer: s.dial, OnEvent: j.add})
		time.Sleep(2 * time.Second)
		if got := textOf(c.Do(background, "ECHO", "x")); got != "x" || j.count(EventNotification) != 1 || c.Stats().Handoffs != 1 {
			t.Errorf("%q, %d notifications, %d handoffs", got, j.count(EventNotification), c.Stats().Handoffs)
		}
	})
}

// everyConnection has a client use a connection of every kind, each of which must work, lose them all, use them again, and be handed off.
func everyConnection(t *testing.T, c *Client, a, b *batontest.Server, subscribes bool) {
	t.Helper()
	uses := func(what string) {
		t.Helper()
		if got := textOf(c.Do(background, "ECHO", what)); got != what {
			t.Errorf("%s: a command is answered with %q", what, got)
		}
		if _, err := c.Do(background, "BLPOP", "none", 0.01).Text(); !errors.Is(err, ErrNull) {
			t.Errorf("%s: a blocking command ended with %v", what, err)
		}
		session, err := c.Session(background)
		if err != nil {
			t.Fatalf("%s: a session: %v", what, err)
		}
		if got := textOf(session.Do(background, "ECHO", what)); got != what {
			t.Errorf("%s: a session's command is answered with %q", what, got)
		}
		session.Close()
		subscription, err := c.Subscribe(background, "channel")
		if (err == nil) != subscribes {
			t.Errorf("%s: Subscribe: %v", what, err)
		}
		if err == nil {
			subscription.Close()
		}
	}
	uses("at first")
	for range 3 {
		time.Sleep(10 * time.Second)
		a.Cut()
		uses("after a loss")
	}
	a.Move(b.Addr(), time.Second)
	time.Sleep(10 * time.Second)
	uses("after a handoff")
	if st := c.Stats(); st.Failed != 0 {
		t.Errorf("%+v", st)
	}
}

// overheard is what servers were told, by connection, and what a Dialer's user sees of it.
type overheard struct {
	mu   sync.Mutex
	said map[string][]string
}

// by is the option with which a server writes down what it is told.
func (o *overheard) by(name string) batontest.Option {
	return batontest.OnCommand(func(conn int, args []string) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.said[fmt.Sprint(name, conn)] = append(o.said[fmt.Sprint(name, conn)], strings.Join(args, " "))
	})
}

// each calls f with what was said on each connection.
func (o *overheard) each(f func(said []string)) {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, said := range o.said {
		f(said)
	}
}

var refusals = map[string]string{
	"unknown":                "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.",
	"turned off":             "ERR maintenance notifications are disabled on this server",
	"a proxy's":              "ERR unknown command 'client'",
	"by the rights of users": "NOPERM this user has no permissions to run the 'client|maint_notifications' command",
}

// D2, D3: a server that refuses notifications is asked once on each connection, not at all in mode Disabled, and the refusal is nothing that
// a user sees fail: no dial, no command, no connection that is thrown away, also where one that fails would be noticed at once.
func TestCaseD2D3ARefusalIsNoFailure(t *testing.T) {
	for name, refusal := range refusals {
		for _, mode := range []Mode{Auto, Disabled} {
			sub(t, fmt.Sprintf("%s, mode %d", name, mode), func(t *testing.T) {
				o := &overheard{said: map[string][]string{}}
				a := memoryServer(t, batontest.RefuseOptIn(refusal), o.by("a"))
				b := a.Sibling(batontest.RefuseOptIn(refusal), o.by("b"))
				t.Cleanup(b.Close)
				j := &journal{}
				var dials, failed atomic.Int32 // as a breaker around the dial counts them
				c := dialMemory(t, a, func(o *Options) {
					o.Maintenance.Mode, o.OnEvent, o.Backlog, o.KeepAlive = mode, j.add, FailFast, -1
					dial := o.Dialer
					o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
						dials.Add(1)
						nc, err := dial(ctx, network, addr)
						if err != nil {
							failed.Add(1)
						}
						return nc, err
					}
				})
				for range 3 {
					if got := textOf(c.Do(background, "ECHO", "x")); got != "x" {
						t.Errorf("a command is answered with %q", got)
					}
					if s, err := c.Subscribe(background, "a"); err != nil {
						t.Error(err)
					} else {
						s.Close()
					}
					loneSession(t, c).Close()
					if err := c.Renew(background); err != nil {
						t.Error(err)
					}
					time.Sleep(10 * time.Second)
					a.Cut()
					time.Sleep(time.Second)
				}
				if n := j.count(EventDialFailed); n != 0 || failed.Load() != 0 || c.Stats().Failed != 0 {
					t.Errorf("%d dials failed, %+v", n, c.Stats())
				}
				connections := 0
				o.each(func(said []string) {
					connections++
					asked := 0
					for _, command := range said {
						if strings.Contains(command, "MAINT_NOTIFICATIONS") {
							asked++
						}
					}
					if want := map[Mode]int{Auto: 1}[mode]; asked != want {
						t.Errorf("asked %d times on one connection, want %d: %q", asked, want, said)
					}
				})
				if connections != int(dials.Load()) || connections < 10 {
					t.Errorf("%d connections, %d dials: some were for nothing", connections, dials.Load())
				}
			})
		}
	}
}

// withoutHELLO are the ways in which a server does not speak protocol 3.
var withoutHELLO = map[string][]batontest.Option{
	"HELLO is unknown":            {batontest.Respond("HELLO", "-ERR unknown command 'HELLO', with args beginning with: \r\n")},
	"HELLO is unknown to a proxy": {batontest.Respond("HELLO", "-ERR unknown command\r\n")},
	"HELLO is not allowed":        {batontest.Respond("HELLO", "-NOPERM this user has no permissions to run the 'hello' command\r\n")},
	"protocol 3 is unknown":       {batontest.Respond("HELLO", "-NOPROTO unsupported protocol version\r\n")},
	"the server is old":           {batontest.Protocol2()},
	"protocol 2 came back":        {batontest.Respond("HELLO", "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n")},
}

// D4, D5: where there is no HELLO, or no right to it, the client speaks protocol 2 with all its settings, on every connection and each time
// anew, never asks for notifications, and says of a Subscribe that it needs more. In mode Enabled it does not connect, and says that it is HELLO.
func TestCaseD4D5ServersWithoutHELLO(t *testing.T) {
	for name, opts := range withoutHELLO {
		sub(t, name, func(t *testing.T) {
			o := &overheard{said: map[string][]string{}}
			refused := name != "protocol 2 came back" // which has authenticated us
			if refused {
				opts = append(opts, batontest.WithUser("alice", secret))
			}
			a := memoryServer(t, append(slices.Clone(opts), o.by("a"))...)
			b := a.Sibling(append(slices.Clone(opts), o.by("b"))...)
			t.Cleanup(b.Close)
			settings := func(o *Options) {
				o.Username, o.Password, o.ClientName, o.DB = "alice", secret, "me", 3
			}
			c := dialMemory(t, a, settings)
			everyConnection(t, c, a, b, false)
			if got := textOf(c.Do(background, "CLIENT", "GETNAME")); got != "me" && refused {
				t.Errorf("its name is %q", got)
			}
			if _, err := c.Subscribe(background, "a"); err == nil || !strings.Contains(err.Error(), "protocol 2") {
				t.Errorf("Subscribe: %v", err)
			}
			o.each(func(said []string) {
				all := strings.Join(said, " | ")
				if !strings.HasPrefix(all, "HELLO 3 AUTH alice "+secret) || strings.Contains(all, "MAINT_NOTIFICATIONS") || !strings.Contains(all, "SELECT 3") {
					t.Errorf("a connection was told %q", all)
				}
				if refused != strings.Contains(all, "| AUTH alice "+secret+" | CLIENT SETNAME me |") {
					t.Errorf("a connection was told %q", all)
				}
			})
			enabled := Options{Addr: a.Addr(), Dialer: a.Dial, Maintenance: Maintenance{Mode: Enabled}}
			settings(&enabled)
			if c, err := Dial(background, enabled); err == nil || !strings.Contains(err.Error(), "HELLO") || strings.Contains(err.Error(), secret) {
				t.Errorf("in mode Enabled: %v, %v", c, err)
			}
		})
	}
}

// D6: wrong or missing credentials are told as they are. There is no second try in another form, in no mode, at no dial, first or later.
func TestCaseD6WrongCredentialsNeverFallBack(t *testing.T) {
	for _, refusal := range []string{"WRONGPASS invalid username-password pair or user is disabled.", "NOAUTH HELLO must be called with the client already authenticated",
		"WRONGPASS unknown command, or so it seems", "NOAUTH NOPROTO NOPERM"} {
		code, _, _ := strings.Cut(refusal, " ")
		for _, mode := range []Mode{Auto, Enabled, Disabled} {
			sub(t, fmt.Sprintf("%s, mode %d", refusal, mode), func(t *testing.T) {
				var mu sync.Mutex
				var said [][]string
				s := newScript(t)
				var refuses atomic.Bool
				all := gather(s, func(p *peer) {
					mu.Lock()
					n := len(said)
					said = append(said, nil)
					mu.Unlock()
					a := answers{}
					if refuses.Load() {
						a["HELLO"] = "-" + refusal + "\r\n"
					}
					p.serve(func(command string) string {
						mu.Lock()
						defer mu.Unlock()
						said[n] = append(said[n], command)
						return a.to(command)
					})
				})
				o := Options{Addr: addrA, Dialer: s.dial, Username: "alice", Password: secret, KeepAlive: -1, Maintenance: Maintenance{Mode: mode}}
				c := dialOptions(t, o)
				time.Sleep(5 * time.Second)
				refuses.Store(true)
				all.at(addrA)[0].Close()
				var server *ServerError
				if err := c.Do(background, "GET", "k").Err(); !errors.As(err, &server) || server.Code != code || MaybeExecuted(err) {
					t.Errorf("a command while nobody lets us in: %v", err)
				}
				again, err := Dial(background, o)
				if err == nil {
					again.Close()
				}
				if !errors.As(err, &server) || server.Code != code || !strings.Contains(err.Error(), "HELLO") {
					t.Errorf("the first dial: %v", err)
				}
				if _, err := c.Session(background); !errors.As(err, &server) || server.Code != code {
					t.Errorf("a session: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, commands := range said[1:] {
					if want := []string{"HELLO 3 AUTH alice " + secret}; !slices.Equal(commands, want) {
						t.Errorf("a server that refuses us was told %q", commands)
					}
				}
				if len(said) < 8 {
					t.Errorf("%d connections", len(said))
				}
			})
		}
	}
}

// D7: whenever there are credentials they are in HELLO, with a name or without, on every connection: a server that lets nobody say HELLO
// without them is no obstacle.
func TestCaseD7CredentialsAreInHELLO(t *testing.T) {
	for name, settings := range map[string]func(o *Options){
		"a user":           func(o *Options) { o.Username, o.Password = "alice", secret },
		"a password alone": func(o *Options) { o.Password = secret },
		"asked for": func(o *Options) {
			o.Credentials = func(context.Context) (string, string, error) { return "alice", secret, nil }
		},
		"a password alone, asked for": func(o *Options) {
			o.Credentials = func(context.Context) (string, string, error) { return "", secret, nil }
		},
	} {
		sub(t, name, func(t *testing.T) {
			o := &overheard{said: map[string][]string{}}
			users := []batontest.Option{batontest.WithUser("alice", secret), batontest.WithUser("default", secret)}
			a := memoryServer(t, append(users, o.by("a"))...)
			b := a.Sibling(append(users, o.by("b"))...)
			t.Cleanup(b.Close)
			c := dialMemory(t, a, settings)
			everyConnection(t, c, a, b, true)
			user := "alice"
			if strings.HasPrefix(name, "a password alone") {
				user = "default"
			}
			connections := 0
			o.each(func(said []string) {
				if connections++; said[0] != "HELLO 3 AUTH "+user+" "+secret {
					t.Errorf("a connection began with %q", said[0])
				}
				for _, command := range said[1:] {
					if strings.HasPrefix(command, "AUTH") || strings.HasPrefix(command, "HELLO") {
						t.Errorf("and later %q", command)
					}
				}
			})
			if connections < 12 {
				t.Errorf("%d connections", connections)
			}
			_, err := Dial(background, Options{Addr: a.Addr(), Dialer: a.Dial})
			var server *ServerError
			if !errors.As(err, &server) || server.Code != "NOAUTH" {
				t.Errorf("without any: %v", err)
			}
		})
	}
}

// D9: nothing is sent that a user did not give, but for the handshake, PINGs and what subscribes: no INFO, CONFIG, ROLE, COMMAND or CLUSTER,
// which a user may have no right to, at no moment in the life of a client.
func TestCaseD9NothingIsProbed(t *testing.T) {
	own := []string{"HELLO", "AUTH", "CLIENT SETINFO", "CLIENT SETNAME", "CLIENT MAINT_NOTIFICATIONS", "SELECT", "PING", "SUBSCRIBE", "UNSUBSCRIBE"}
	users := []string{"ECHO", "BLPOP", "SET", "CLIENT GETNAME"}
	for name, opts := range withoutHELLO {
		withoutHELLO := opts
		for _, three := range []bool{true, false} {
			if three {
				opts = nil
			} else {
				opts = withoutHELLO
			}
			sub(t, fmt.Sprintf("%s, but it is: %v", name, three), func(t *testing.T) {
				o := &overheard{said: map[string][]string{}}
				for _, probe := range []string{"INFO", "CONFIG", "ROLE", "COMMAND", "CLUSTER", "ACL", "CLIENT ID", "CLIENT LIST"} {
					opts = append(slices.Clone(opts), batontest.Deny(probe))
				}
				a := memoryServer(t, append(slices.Clone(opts), o.by("a"))...)
				b := a.Sibling(append(slices.Clone(opts), o.by("b"))...)
				t.Cleanup(b.Close)
				c := dialMemory(t, a, func(o *Options) { o.DB, o.ClientName, o.MaxAge = 1, "me", time.Minute })
				everyConnection(t, c, a, b, three)
				a.Push("FAILING_OVER", 100, 5)
				b.Push("FAILING_OVER", 100, 5)
				a.SetRespond("SET", readOnlyReply)
				b.SetRespond("SET", readOnlyReply)
				c.Do(background, "SET", "k", "v")
				c.Renew(background)
				time.Sleep(10 * time.Minute) // PINGs, and renewals for their age
				c.Shutdown(background)
				all := 0
				o.each(func(said []string) {
					for _, command := range said {
						all++
						if !slices.ContainsFunc(append(slices.Clone(own), users...), func(known string) bool { return command == known || strings.HasPrefix(command, known+" ") }) {
							t.Errorf("the server was told %q, which nobody gave", command)
						}
					}
				})
				if all < 100 {
					t.Errorf("%d commands in all: nothing happened", all)
				}
			})
		}
	}
}

// --- subscribing ---

// B11: a SUBSCRIBE is confirmed by pushes, which are no replies, or refused by an error, which is one. The call ends at the PONG that stands
// behind it, or with the error; not before, and not never, whatever of it comes in which pieces.
func TestCaseB11SubscribeEndsAtThePONGOrWithTheError(t *testing.T) {
	const no = "-NOPERM No permissions to access a channel\r\n"
	for _, verb := range []string{"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"} {
		subscribe := map[string]func(*Client, context.Context, ...string) (*Subscription, error){
			"SUBSCRIBE": (*Client).Subscribe, "PSUBSCRIBE": (*Client).PSubscribe, "SSUBSCRIBE": (*Client).SSubscribe}[verb]
		a, b := confirmation(verb, "a", 1), confirmation(verb, "b", 2)
		for name, x := range map[string]struct {
			says []string // before the PONG, one frame each
			code string   // of the server's error that is its end
		}{
			"two pushes":           {[]string{a, b}, ""},
			"pushes and others":    {[]string{">1\r\n+foo\r\n", a, closes("MIGRATED", 7), b, framed("message", "zz", "x")}, ""},
			"all refused":          {[]string{no, no}, "NOPERM"},
			"the first refused":    {[]string{no, b}, "NOPERM"},
			"the second refused":   {[]string{a, no}, "NOPERM"},
			"refused with a push":  {[]string{">1\r\n+foo\r\n", no, ">1\r\n+foo\r\n", b}, "NOPERM"},
			"moved":                {[]string{"-MOVED 5649 127.0.0.1:7001\r\n", "-MOVED 5649 127.0.0.1:7001\r\n"}, "MOVED"},
			"unknown":              {[]string{"-ERR unknown command\r\n", "-ERR unknown command\r\n"}, "ERR"},
			"one and nothing else": {[]string{a}, "?"}, // it is not confirmed, and that is known at the PONG
			"nothing at all":       {nil, "?"},
		} {
			for _, bytewise := range []bool{false, true} {
				for _, later := range []bool{false, true} { // by Add, to a subscription that there is
					sub(t, fmt.Sprintf("%s: %s, byte by byte: %v, added: %v", verb, name, bytewise, later), func(t *testing.T) {
						c, s, hub, _ := onAir(t, Options{Timeout: time.Minute}, "other")
						var old *Subscription
						if later {
							done := make(chan *Subscription, 1)
							go func() { s, _ := subscribe(c, background, "old"); done <- s }()
							synctest.Wait()
							hub.obeys(nil)
							old = <-done
						}
						results := make(chan error, 1)
						go func() {
							var err error
							if later {
								err = old.Add(background, "a", "b")
							} else {
								_, err = subscribe(c, background, "a", "b")
							}
							results <- err
						}()
						hub.expects(verb+" a", verb+" b", "PING")
						waits := func() {
							t.Helper()
							synctest.Wait()
							select {
							case err := <-results:
								t.Errorf("it ended before the PONG, with %v", err)
								results <- err
							default:
							}
						}
						for _, frame := range x.says {
							for len(frame) > 0 {
								n := len(frame)
								if bytewise {
									n = 1
								}
								hub.says(frame[:n])
								frame = frame[n:]
								waits()
							}
						}
						time.Sleep(10 * time.Second)
						waits()
						hub.says("+PONG\r\n")
						synctest.Wait()
						hub.obeys(nil) // what it does without after an error
						select {
						case err := <-results:
							var server *ServerError
							switch {
							case x.code == "" && err != nil, x.code != "" && err == nil:
								t.Errorf("it ended with %v", err)
							case len(x.code) > 1 && (!errors.As(err, &server) || server.Code != x.code):
								t.Errorf("it ended with %v, want %s", err, x.code)
							}
						case <-time.After(time.Second):
							t.Error("the PONG is here, and it goes on")
						}
						if n := len(s.dialled()); n != 2 {
							t.Errorf("%d dials", n)
						}
					})
				}
			}
		}
	}
}

// --- what was sent and what was not ---

// eachCall are the ways to give an INCR, or the like; what returns has ended.
func eachCall(c *Client) map[string]func(ctx context.Context) error {
	batch := func() *Batch {
		var b Batch
		b.Add("INCR", "k")
		return &b
	}
	return map[string]func(ctx context.Context) error{
		"Do":       func(ctx context.Context) error { return c.Do(ctx, "INCR", "k").Err() },
		"DoAppend": func(ctx context.Context) error { _, err := c.DoAppend(ctx, nil, "GETSET", "k", "INCR"); return err },
		"DoBatch":  func(ctx context.Context) error { _, err := c.DoBatch(ctx, batch()); return err },
		"DoTx":     func(ctx context.Context) error { _, err := c.DoTx(ctx, batch()); return err },
		"DoBatch that blocks": func(ctx context.Context) error {
			b := batch()
			b.Add("BLPOP", "none", 0.001)
			_, err := c.DoBatch(ctx, b)
			return err
		},
	}
}

// C11: Timeout counts from the call, also while a command stands in the backlog. Who waited there for nothing is told so: never sent. It never
// is, either, when there is a connection again, and whoever is told otherwise was.
func TestCaseC11ATimeoutInTheBacklogWasNeverSent(t *testing.T) {
	for _, call := range []string{"Do", "DoAppend", "DoBatch", "DoTx", "DoBatch that blocks"} {
		for name, x := range map[string]struct {
			o    Options
			wait func(s *script, c *Client, p *peer) // makes whatever comes wait unwritten
		}{
			"no connection": {Options{}, func(s *script, c *Client, p *peer) { s.refuseAll(); p.Close() }},
			"dials stall":   {Options{}, func(s *script, c *Client, p *peer) { p.Close() }},
			"too many in flight": {Options{MaxInFlight: 1}, func(s *script, c *Client, p *peer) {
				go c.Do(background, "GET", "slow")
				go func() { // it speaks, and so lives
					for range 10 {
						p.says(">1\r\n+foo\r\n")
						time.Sleep(time.Second)
					}
				}()
			}},
			"another waits before it": {Options{MaxInFlight: 1}, func(s *script, c *Client, p *peer) {
				s.refuseAll()
				p.Close()
				go c.Do(background, "GET", "first")
			}},
		} {
			if call == "DoBatch that blocks" && strings.Contains(name, "flight") {
				continue // it has a connection of its own
			}
			sub(t, call+", "+name, func(t *testing.T) {
				s := newScript(t)
				x.o.KeepAlive = -1
				c, p := s.connect(x.o)
				x.wait(s, c, p)
				synctest.Wait()
				start := time.Now()
				err := eachCall(c)[call](background)
				if took := time.Since(start); took < 5*time.Second || took > 5*time.Second*9/8+time.Millisecond {
					t.Errorf("it ended after %v, want Timeout", took)
				}
				if !errors.Is(err, ErrTimeout) || MaybeExecuted(err) || !strings.Contains(err.Error(), "never sent") {
					t.Errorf("it ended with %v", err)
				}
				s.refuseNone()
				for len(s.peers) > 0 { // those that stalled
					(<-s.peers).Close()
				}
				var heard []string
				var mu sync.Mutex
				s.attend(func(q *peer) {
					q.handshake()
					q.serve(func(command string) string {
						mu.Lock()
						defer mu.Unlock()
						heard = append(heard, command)
						return "+OK\r\n"
					})
				})
				if !strings.Contains(name, "flight") {
					if err := c.Do(background, "GET", "later").Err(); err != nil {
						t.Error(err)
					}
				}
				p.Close()
				time.Sleep(10 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				if said := strings.Join(heard, " | "); strings.Contains(said, "INCR") || strings.Contains(said, "MULTI") {
					t.Errorf("and yet it was sent: %q", said)
				}
			})
		}
	}
}

// C15: what was written and not answered fails, maybe executed, and is not written again; what was not written waits, and is executed once.
func TestCaseC15WrittenOnceAndNeverAgain(t *testing.T) {
	for _, call := range []string{"Do", "DoAppend", "DoBatch", "DoTx", "DoBatch that blocks"} {
		for name, end := range map[string]func(p *peer){
			"closed":              func(p *peer) { p.Close() },
			"reset":               (*peer).reset,
			"closed in the reply": func(p *peer) { p.says("$5\r\nab"); p.Close() },
			"answered by garbage": func(p *peer) { p.says("garbage\r\n") },
			"silent":              func(p *peer) {},
		} {
			sub(t, call+", "+name, func(t *testing.T) {
				var mu sync.Mutex
				executed := 0
				s := newScript(t)
				s.attend(func(p *peer) {
					p.handshake()
					p.serve(func(command string) string {
						mu.Lock()
						defer mu.Unlock()
						switch {
						case !strings.Contains(command, "INCR"):
							return map[string]string{"MULTI": "+OK\r\n", "EXEC": "*1\r\n:1\r\n"}[command]
						case executed > 0:
							executed++
							return ":1\r\n"
						}
						executed++
						synctestLater(func() { end(p) })
						return ""
					})
				})
				c := dialOptions(t, Options{Addr: addrA, Dialer: s.dial, KeepAlive: -1, Timeout: 2 * time.Second})
				err := eachCall(c)[call](background)
				if !MaybeExecuted(err) {
					t.Errorf("it ended with %v", err)
				}
				time.Sleep(time.Minute)
				mu.Lock()
				if executed != 1 {
					t.Errorf("executed %d times", executed)
				}
				mu.Unlock()
				if err := c.Do(background, "INCR", "k").Err(); err != nil {
					t.Errorf("the next: %v", err)
				}
			})
		}
	}
	for _, policy := range []BacklogPolicy{Queue, FailFast} {
		sub(t, fmt.Sprintf("never written, policy %d", policy), func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{Backlog: policy, KeepAlive: -1, MaxInFlight: 1})
			written := async(c, "INCR", "written")
			unwritten := async(c, "INCR", "unwritten")
			p.expects("INCR written")
			p.Close()
			failedWith(t, "what was written", written, nil, true)
			q := s.accept()
			q.handshake()
			if policy == FailFast {
				failedWith(t, "what was not", unwritten, ErrNoConnection, false)
				pendingPeer(t, q)
				return
			}
			q.expects("INCR unwritten")
			q.says(":1\r\n")
			if n, err := reply(t, unwritten).Int64(); n != 1 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

// synctestLater runs f when everybody else is at rest for a while.
func synctestLater(f func()) { time.AfterFunc(time.Millisecond, f) }

// --- what one test each did not show of its whole kind ---

// A45: whatever is left out is its default, in every call, and no lock is left held by what fails: the next call works.
func TestCaseA45NothingIsNeeded(t *testing.T) {
	for name, o := range map[string]Options{
		"nothing": {}, "empty settings for TLS's sake": {Maintenance: Maintenance{}}, "an empty network": {Network: "", Addr: ""},
		"everything off": {Timeout: -1, KeepAlive: -1, Maintenance: Maintenance{Mode: Disabled, RelaxedTimeout: -1, PostEventRelaxed: -1, HoldCap: -1}},
	} {
		sub(t, name, func(t *testing.T) {
			a := memoryServer(t, batontest.WithAddr("127.0.0.1:6379"))
			b := sibling(t, a)
			o.Dialer = a.Dial
			c := dialOptions(t, o)
			works := func(what string) {
				t.Helper()
				if got := textOf(c.Do(background, "ECHO", what)); got != what {
					t.Errorf("behind %s: %q", what, got)
				}
			}
			if err := c.Do(background).Err(); err == nil || MaybeExecuted(err) {
				t.Errorf("a command of no words: %v", err)
			}
			works("a command of no words")
			if err := c.Do(background, nil).Err(); err == nil || MaybeExecuted(err) {
				t.Errorf("nil for a command: %v", err)
			}
			works("nil for a command")
			if r, err := c.DoBatch(background, &Batch{}); r != nil || err != nil {
				t.Errorf("an empty batch: %v, %v", r, err)
			}
			if r, err := c.DoTx(background, &Batch{}); r != nil || err != nil {
				t.Errorf("an empty transaction: %v, %v", r, err)
			}
			if dst, err := c.DoAppend(background, nil, "ECHO", "x"); string(dst) != "x" || err != nil {
				t.Errorf("DoAppend to nothing: %q, %v", dst, err)
			}
			works("empty ones")
			s, err := c.Subscribe(background)
			if err != nil {
				t.Errorf("Subscribe to nothing: %v", err)
			} else {
				s.Remove(background)
				s.Add(background)
				s.Close()
			}
			works("Subscribe to nothing")
			session := loneSession(t, c)
			session.Close()
			session.Close()
			c.Watch(background, nil, func(*Session, *Batch) error { return nil })
			works("a session")
			if err := c.Renew(background); err != nil {
				t.Error(err)
			}
			a.Move(b.Addr(), time.Second)
			time.Sleep(5 * time.Second)
			works("a handoff")
			a.Cut()
			b.Cut()
			time.Sleep(5 * time.Second)
			works("a loss")
			if _, err := (Reply{}).Text(); !errors.Is(err, ErrNull) || MaybeExecuted(nil) {
				t.Errorf("the zero reply: %v", err)
			}
			var d TickDeadline
			if d.IsSet() {
				t.Error("the zero deadline is set")
			}
		})
	}
	sub(t, "nobody there", func(t *testing.T) {
		for range 3 {
			c, err := Dial(background, Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }})
			if c != nil || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%v, %v", c, err)
			}
		}
	})
}

// B1: a push in the middle of a reply is never an element of it. Whether the element is still to come cannot be known, so the connection ends, and
// who waits is told; nothing is shifted on the next.
func TestCaseB1APushInAReplyEndsTheConnection(t *testing.T) {
	const push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\nkey:0\r\n"
	for name, raw := range map[string]string{
		"an array": "*2\r\n$1\r\nA\r\n" + push + "$1\r\nB\r\n", "its first element": "*2\r\n" + push + "$1\r\nA\r\n$1\r\nB\r\n", "its last": "*2\r\n$1\r\nA\r\n" + push,
		"a map": "%1\r\n$1\r\nA\r\n" + push + "$1\r\nB\r\n", "a set": "~1\r\n" + push + "$1\r\nA\r\n", "another push": ">2\r\n+foo\r\n" + push, "an array in an array": "*1\r\n*1\r\n" + push,
		"an attribute": "|1\r\n+a\r\n" + push + "+b\r\n+c\r\n", "the answer of EXEC": "*2\r\n$1\r\nA\r\n" + push + "$1\r\nB\r\n",
	} {
		for _, chunk := range []int{0, 1} {
			sub(t, fmt.Sprintf("%s, in pieces of %d", name, chunk), func(t *testing.T) {
				s := newScript(t)
				c, p := s.connect(Options{KeepAlive: -1, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &chunked{nc, chunk} })})
				var err func() error
				if name == "the answer of EXEC" {
					tx := txLater(c, "GET A", "GET B")
					p.expects("MULTI", "GET A", "GET B", "EXEC")
					p.says("+OK\r\n+QUEUED\r\n+QUEUED\r\n")
					err = func() error { return tx().err }
				} else {
					got := async(c, "MGET", "A", "B")
					p.expects("MGET A B")
					err = func() error { return reply(t, got).Err() }
				}
				behind := async(c, "GET", "behind")
				p.expects("GET behind")
				p.says(raw + "+behind\r\n")
				if err := err(); !MaybeExecuted(err) || !strings.Contains(err.Error(), "push inside another value") {
					t.Errorf("who waits for it is told %v", err)
				}
				failedWith(t, "who is behind it", behind, nil, true)
				q := s.readyAt(addrA)
				next := async(c, "GET", "next")
				q.expects("GET next")
				q.says("+next\r\n")
				if answered(t, next, "next"); !p.hungUp() {
					t.Error("the connection is open")
				}
			})
		}
	}
}

// C18: what a connection that is gone had in mind, a Timeout, silence or the end of its write, is no matter of the one in its place.
func TestCaseC18AnOldConnectionHarmsNoNewOne(t *testing.T) {
	for name, end := range map[string]func(p *peer){"closed": func(p *peer) { p.Close() }, "reset": (*peer).reset, "broken": func(p *peer) { p.says("what?\r\n") }} {
		sub(t, name, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{Timeout: 2 * time.Second, KeepAlive: -1})
			for range 5 { // each is as good as dead when it ends: silent for a Timeout and most of another
				first := async(c, "GET", "unanswered")
				p.expects("GET unanswered")
				time.Sleep(1900 * time.Millisecond)
				second := async(c, "GET", "unanswered, too")
				p.expects("GET unanswered, too")
				time.Sleep(1900 * time.Millisecond)
				end(p)
				failedWith(t, "the first", first, ErrTimeout, true)
				failedWith(t, "the second", second, nil, true)
				q := s.accept()
				q.handshake()
				synctest.Wait()
				third := async(c, "GET", "slow") // the moments of the old one come while this waits
				q.expects("GET slow")
				time.Sleep(1900 * time.Millisecond)
				q.says("+slow\r\n")
				answered(t, third, "slow")
				p = q
			}
			time.Sleep(time.Minute)
			if p.hungUp() || len(s.dialled()) != 6 {
				t.Errorf("dialled %v", s.dialled())
			}
		})
	}
}

// D10: each dial says HELLO 3, whatever the one before brought. Where protocol 2 comes back, there are no notifications, which is
// told once; and where protocol 3 comes back after that, they are heard again.
func TestCaseD10ProtocolTwoIsToldAndNotForEver(t *testing.T) {
	for name := range withoutHELLO {
		sub(t, name, func(t *testing.T) {
			hello := "-ERR unknown command 'HELLO'\r\n"
			switch name {
			case "protocol 2 came back":
				hello = "*2\r\n+proto\r\n:2\r\n"
			case "HELLO is not allowed":
				hello = "-NOPERM no\r\n"
			case "protocol 3 is unknown":
				hello = "-NOPROTO no\r\n"
			}

			s, j := newScript(t), &journal{}
			var two atomic.Bool
			var mu sync.Mutex
			var hellos, asked int
			all := gather(s, func(p *peer) {
				a := answers{}
				if two.Load() {
					a["HELLO"] = hello
				}
				p.serve(func(command string) string {
					mu.Lock()
					defer mu.Unlock()
					if command == "HELLO 3" {
						hellos++
					}
					if strings.HasPrefix(command, "CLIENT MAINT") {
						asked++
					}
					return a.to(command)
				})
			})
			c := dialOptions(t, Options{Addr: addrA, Dialer: s.dial, OnEvent: j.add, KeepAlive: -1})
			for round := range 6 {
				two.Store(round%2 == 0)
				time.Sleep(5 * time.Second)
				all.at(addrA)[0].Close()
				if got := textOf(c.Do(background, "ECHO", "x")); got != "x" {
					t.Errorf("round %d: %q", round, got)
				}
				before := j.count(EventNotification)
				all.at(addrA)[0].says(opens("MIGRATING", round, 1) + closes("MIGRATED", 100+round))
				if synctest.Wait(); (j.count(EventNotification) > before) == two.Load() {
					t.Errorf("round %d, protocol 2: %v, %d notifications were heard", round, two.Load(), j.count(EventNotification)-before)
				}
			}
			if e := j.of(EventRefused); len(e) != 1 || e[0].Err == nil || !strings.Contains(e[0].Err.Error(), "protocol 2") {
				t.Errorf("it was told %v", e)
			}
			mu.Lock()
			defer mu.Unlock()
			if hellos != 7 || asked != 4 {
				t.Errorf("HELLO 3 was said %d times on 7 connections, and notifications asked for %d times on 4", hellos, asked)
			}
		})
	}
}
