package batontest

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// targets calls f with servers to relay to: one of this package, and a real one if there is one.
func targets(t *testing.T, f func(t *testing.T, target string)) {
	t.Run("batontest", func(t *testing.T) {
		s := NewServer()
		t.Cleanup(s.Close)
		f(t, s.Addr())
	})
	t.Run("redis-server", func(t *testing.T) { f(t, realRedis(t)) })
}

func realRedis(t *testing.T) string {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("no redis-server here")
	}
	sock := filepath.Join(t.TempDir(), "sock")
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", sock, "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for range 500 {
		if c, err := net.Dial("unix", sock); err == nil {
			c.Close()
			return sock
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("redis-server does not come up")
	return ""
}

func newTestRelay(t *testing.T, target string, opts ...Option) *Relay {
	r := NewRelay(target, opts...)
	t.Cleanup(r.Close)
	return r
}

func TestRelayPassesEverythingOn(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		r := newTestRelay(t, target)
		c := dialTCP(t, r.Addr())
		big := strings.Repeat("x", 1<<20)
		c.ask("SET big "+big, "+OK\r\n")
		c.ask("GET big", fmt.Sprintf("$%d\r\n%s\r\n", len(big), big))
		io.WriteString(c, "PING\r\nPING inline\r\n*0\r\n")
		c.hear("+PONG\r\n$6\r\ninline\r\n")
		c.say("HELLO 3")
		c.skip("*0\r\n")
		c.ask("SUBSCRIBE a b", ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n")
		c.ask("PING", "+PONG\r\n")
		c.Write([]byte("*1\r\n:oops\r\n"))
		c.hear("-ERR Protocol error: expected '$', got ':'\r\n")
		c.ended(io.EOF)
	})
}

func TestRelayAnswersTheOptInInItsTurn(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		r := newTestRelay(t, target)
		c := dialTCP(t, r.Addr())
		var want strings.Builder
		c.say("HELLO 3")
		for i := range 500 {
			c.say(fmt.Sprintf("ECHO %d", i))
			fmt.Fprintf(&want, "$%d\r\n%d\r\n", len(fmt.Sprint(i)), i)
			if i%100 == 7 {
				c.say(optIn)
				want.WriteString("+OK\r\n")
			}
		}
		c.skip("modules\r\n*0\r\n")
		c.hear(want.String())
		equal(t, "opted in", r.OptedIn(), 1)
		c.ask("CLIENT MAINT_NOTIFICATIONS SIDEWAYS", "-ERR syntax error\r\n")
		c.ask("CLIENT MAINT_NOTIFICATIONS OFF", "+OK\r\n")
		equal(t, "opted in", r.OptedIn(), 0)
	})
}

func TestRelayMoves(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		a := newTestRelay(t, target)
		b := a.Sibling()
		defer b.Close()
		equal(t, "first number", a.NextSeq(), 0)
		told, plain, elsewhere := dialTCP(t, a.Addr()).optIn(), dialTCP(t, a.Addr()), dialTCP(t, b.Addr()).optIn()
		plain.ask("SET k v", "+OK\r\n")
		a.Push("MIGRATED", a.NextSeq(), "[]")
		migrated := ">3\r\n$8\r\nMIGRATED\r\n:1\r\n$2\r\n[]\r\n"
		told.hear(migrated)
		a.Move(b.Addr(), 100*time.Millisecond)
		told.hear(moving(2, 1, b.Addr()))
		late := dialTCP(t, a.Addr())
		late.say("HELLO 3")
		late.skip("*0\r\n")
		late.ask(optIn, "+OK\r\n"+migrated+moving(2, 1, b.Addr()))
		for _, c := range []*talker{told, plain, late} {
			c.ended(io.EOF)
		}
		equal(t, "connections", a.Conns(), 0)
		elsewhere.ask("GET k", "$1\r\nv\r\n")
	})
}

func TestRelayFaults(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		r := newTestRelay(t, target, Deny("client setname"), Respond("time", "*0\r\n"))
		c := dialTCP(t, r.Addr()).optIn()
		const late = time.Second // ample for what is to happen meanwhile
		start := time.Now()
		r.Delay("incr", late)
		c.say("PING")
		c.say("INCR n")
		c.say("TIME")
		c.say("CLIENT SETNAME x")
		c.say(optIn)
		c.say("PING")
		c.hear("+PONG\r\n")
		other := dialTCP(t, r.Addr())
		for carriedOut := ""; carriedOut != ":1\r\n"; {
			other.say("EXISTS n")
			carriedOut, _ = other.r.ReadString('\n')
		}
		r.PushRaw([]byte(">1\r\n+hi\r\n"))
		c.hear(">1\r\n+hi\r\n:1\r\n*0\r\n-NOPERM this user has no permissions to run the 'client|setname' command\r\n+OK\r\n+PONG\r\n")
		if took := time.Since(start); took < late {
			t.Error("the reply took", took)
		}
		r.Delay("incr", 0)

		r.Freeze(true)
		c.say("PING")
		c.silent(20 * time.Millisecond)
		r.Freeze(false)
		c.hear("+PONG\r\n")

		r.Refuse(true)
		if _, err := net.Dial("tcp", r.Addr()); err == nil {
			t.Error("not refused")
		}
		r.Refuse(false)
		r.Stall(true)
		stalled := dialTCP(t, r.Addr())
		stalled.say("PING")
		stalled.silent(20 * time.Millisecond)
		r.Stall(false)
		c.ask("PING", "+PONG\r\n")
		r.Cut()
		c.ended(syscall.ECONNRESET)
		dialTCP(t, r.Addr()).ask("PING", "+PONG\r\n")
	})
}

func TestRelaySiblings(t *testing.T) {
	one, two := NewServer(), NewServer()
	defer one.Close()
	defer two.Close()
	said := make(chan string, 10)
	a := newTestRelay(t, one.Addr(), OnCommand(func(_ int, args []string) { said <- strings.Join(args, " ") }))
	b := a.SiblingTo(two.Addr(), RefuseOptIn("ERR no"))
	defer b.Close()
	c, d := dialTCP(t, a.Addr()), dialTCP(t, b.Addr())
	c.ask("SET k one", "+OK\r\n")
	d.ask("SET k two", "+OK\r\n")
	c.ask("SUBSCRIBE x y", "*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\ny\r\n:2\r\n")
	c.ask("RESET", "+RESET\r\n")
	c.ask("GET k", "$3\r\none\r\n")
	d.ask(optIn, "-ERR no\r\n")
	c.ask(optIn, "+OK\r\n") // protocol 2
	equal(t, "opted in", a.OptedIn()+b.OptedIn(), 0)
	b.Delay("client maint_notifications", 20*time.Millisecond)
	start := time.Now()
	d.ask(optIn, "-ERR no\r\n")
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Error("the opt-in took", took)
	}
	for _, want := range []string{"SET k one", "SET k two", "SUBSCRIBE x y"} {
		equal(t, "said", <-said, want)
	}
}

func TestRelayNoticesThatAClientLeft(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		r := newTestRelay(t, target)
		blocked, other := dialTCP(t, r.Addr()), dialTCP(t, r.Addr())
		blocked.say("BLPOP l 0")
		other.ask("PING", "+PONG\r\n")
		blocked.Close()
		for r.Conns() != 1 {
			time.Sleep(time.Millisecond)
		}
		other.ask("RPUSH l 1", ":1\r\n")
		other.ask("LLEN l", ":1\r\n")
	})
}

func TestRelayOfAnUnreachableTarget(t *testing.T) {
	s := NewServer()
	r := newTestRelay(t, s.Addr())
	c := dialTCP(t, r.Addr())
	c.ask("PING", "+PONG\r\n")
	s.Close()
	c.ended(io.EOF)
	dialTCP(t, r.Addr()).ended(io.EOF)
}

func TestRelayEndsTLS(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		cert, pool := SelfSigned("127.0.0.1")
		r := newTestRelay(t, target, WithTLS(&tls.Config{Certificates: []tls.Certificate{cert}}))
		raw, err := tls.Dial("tcp", r.Addr(), &tls.Config{RootCAs: pool})
		c := newTalker(t, raw, err).optIn()
		r.Move("a:1", time.Hour)
		c.hear(moving(0, 3600, "a:1"))
	})
}

// Pushes of the relay come between frames, also while replies larger than its buffer go by, and none waits for a quiet moment.
func TestRelayPushesUnderLoad(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		r := newTestRelay(t, target)
		value := strings.Repeat("x", 100_000)
		dialTCP(t, r.Addr()).ask("SET big "+value, "+OK\r\n")
		const pushes, ahead = 50, 8
		var wg sync.WaitGroup
		for range 2 {
			c := dialTCP(t, r.Addr()).optIn()
			reply := fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
			for range ahead {
				c.say("GET big")
			}
			wg.Go(func() {
				for next := 0; next < pushes; {
					if b, err := c.r.Peek(1); err != nil {
						t.Error(err)
						return
					} else if b[0] == '>' {
						c.hear(fmt.Sprintf(">2\r\n$1\r\nx\r\n:%d\r\n", next))
						next++
						continue
					}
					c.hear(reply)
					c.say("GET big")
				}
			})
		}
		for i := range pushes {
			r.Push("x", i)
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
	})
}

// A SUBSCRIBE is one reply to the relay, however many pushes confirm it, and also if it is refused or queued.
func TestRelayCountsSubscriptions(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		r := newTestRelay(t, target)
		c := dialTCP(t, r.Addr()).optIn()
		confirmed := func(verb, name string, n int) string {
			return fmt.Sprintf(">3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n:%d\r\n", len(verb), verb, len(name), name, n)
		}
		const refused = "-ERR wrong number of arguments for 'subscribe' command\r\n"
		for _, tc := range []struct{ commands, want string }{
			{"SUBSCRIBE", refused},
			{"SUBSCRIBE a b | SUBSCRIBE | SUBSCRIBE c",
				confirmed("subscribe", "a", 1) + confirmed("subscribe", "b", 2) + refused + confirmed("subscribe", "c", 3)},
			{"SSUBSCRIBE s | PSUBSCRIBE p* | SUNSUBSCRIBE s s",
				confirmed("ssubscribe", "s", 1) + confirmed("psubscribe", "p*", 4) + confirmed("sunsubscribe", "s", 0) + confirmed("sunsubscribe", "s", 0)},
			{"PUNSUBSCRIBE | SUNSUBSCRIBE", confirmed("punsubscribe", "p*", 3) + ">3\r\n$12\r\nsunsubscribe\r\n_\r\n:0\r\n"},
			{"PUBLISH a self", confirmedMessage + ":1\r\n"},
			{"MULTI | SUBSCRIBE d | DISCARD", "+OK\r\n+QUEUED\r\n+OK\r\n"},
			{"UNSUBSCRIBE a b c", confirmed("unsubscribe", "a", 2) + confirmed("unsubscribe", "b", 1) + confirmed("unsubscribe", "c", 0)},
		} {
			const before, after = 20, 20 // commands around it, so that an answer in the wrong place is seen
			for range before {
				c.say("PING")
			}
			for command := range strings.SplitSeq(tc.commands, " | ") {
				c.say(command)
			}
			c.say(optIn)
			for range after {
				c.say("PING")
			}
			t.Log(tc.commands)
			c.hear(strings.Repeat("+PONG\r\n", before) + tc.want + "+OK\r\n" + strings.Repeat("+PONG\r\n", after))
		}
	})
}

const confirmedMessage = ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$4\r\nself\r\n"

func TestRelayDelaysASubscription(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		r := newTestRelay(t, target)
		c := dialTCP(t, r.Addr()).optIn()
		const late = 100 * time.Millisecond
		r.Delay("subscribe", late)
		start := time.Now()
		c.say("PING")
		c.say("SUBSCRIBE a b")
		c.say("PING")
		c.hear("+PONG\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n")
		if took := time.Since(start); took < late {
			t.Error("the confirmation took", took)
		}
		c.hear(">3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n+PONG\r\n")
	})
}
