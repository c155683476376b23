package batontest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const optIn = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type external-ip"

func moving(seq, secs int, successor string) string {
	if successor == "" {
		return fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:%d\r\n:%d\r\n_\r\n", seq, secs)
	}
	return fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:%d\r\n:%d\r\n$%d\r\n%s\r\n", seq, secs, len(successor), successor)
}

func TestMove(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := inMemory(t)
		b := a.Sibling()
		defer b.Close()
		told, plain, elsewhere := dial(t, a).optIn(), dial(t, a), dial(t, b).optIn()
		plain.ask("PING", "+PONG\r\n")
		equal(t, "connections", a.Conns(), 2)
		equal(t, "opted in", a.OptedIn(), 1)

		start := time.Now()
		a.Move(b.Addr(), 14500*time.Millisecond)
		told.hear(moving(0, 15, b.Addr()))
		time.Sleep(10 * time.Second)
		late := dial(t, a)
		late.say("HELLO 3")
		late.skip("*0\r\n")
		late.say(optIn)
		late.say("PING")
		late.hear("+OK\r\n" + moving(0, 15, b.Addr()) + "+PONG\r\n")
		late.ask("CLIENT MAINT_NOTIFICATIONS ON", "+OK\r\n"+moving(0, 15, "")) // no type: no name
		late.ask("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none", "+OK\r\n"+moving(0, 15, ""))
		for _, c := range []*talker{told, plain, late} {
			c.ended(io.EOF)
			equal(t, "closed after", time.Since(start), 14500*time.Millisecond)
		}
		equal(t, "connections", a.Conns(), 0)
		elsewhere.silent(time.Second)

		again := dial(t, a).optIn() // the window is over
		again.silent(time.Second)
		b.Move("", 0)
		elsewhere.hear(moving(1, 0, ""))
		elsewhere.ended(io.EOF)
		again.ask("PING", "+PONG\r\n")
	})
}

func TestMoveAgainWhileMoving(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		c := dial(t, s).optIn()
		s.Move("a:1", 10*time.Second)
		time.Sleep(5 * time.Second)
		s.Move("b:1", 10*time.Second)
		c.hear(moving(0, 10, "a:1") + moving(1, 10, "b:1"))
		time.Sleep(4 * time.Second)
		d := dial(t, s)
		d.say("HELLO 3")
		d.skip("*0\r\n")
		d.ask(optIn, "+OK\r\n"+moving(1, 10, "b:1"))
		d.ended(io.EOF)
		e := dial(t, s)
		e.ended(io.EOF)
	})
}

func TestCloseAfter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t, CloseAfter(4*time.Second))
		c := dial(t, s).optIn()
		start := time.Now()
		s.Move("a:1", 15*time.Second)
		c.hear(moving(0, 15, "a:1"))
		time.Sleep(15 * time.Second)
		dial(t, s).optIn().ended(io.EOF) // heard of nothing, and is closed all the same
		c.ended(io.EOF)
		equal(t, "closed after", time.Since(start), 19*time.Second)
	})
}

func TestPushAndReplay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := inMemory(t)
		b := a.Sibling()
		defer b.Close()
		c, plain := dial(t, a).optIn(), dial(t, a)
		plain.ask("PING", "+PONG\r\n")
		a.Push("MIGRATING", a.NextSeq(), 2, `["27"]`)
		a.Push("MIGRATED", b.NextSeq(), `["27"]`)
		a.Push("SMIGRATED", 19, []any{[]any{"a:1", "b:1", "1-5"}})
		a.PushRaw([]byte(">0\r\n"))
		migrated := ">3\r\n$8\r\nMIGRATED\r\n:1\r\n$6\r\n[\"27\"]\r\n"
		c.hear(">4\r\n$9\r\nMIGRATING\r\n:0\r\n:2\r\n$6\r\n[\"27\"]\r\n" + migrated +
			">3\r\n$9\r\nSMIGRATED\r\n:19\r\n*1\r\n*3\r\n$3\r\na:1\r\n$3\r\nb:1\r\n$3\r\n1-5\r\n>0\r\n")
		time.Sleep(time.Hour)
		b.Move("x:1", time.Second)
		d := dial(t, b)
		d.ask(optIn, "+OK\r\n") // protocol 2 is told nothing
		equal(t, "opted in", b.OptedIn(), 0)
		d.say("HELLO 3")
		d.skip("*0\r\n")
		d.ask(optIn, "+OK\r\n"+migrated+moving(2, 1, "x:1"))
		d.say("HELLO 2")
		d.skip("*0\r\n")
		b.Push("MIGRATED", 5, "")
		d.silent(time.Millisecond)
		plain.silent(time.Millisecond)
	})
}

func TestOptInOfABlockedOrDelayedConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		c := dial(t, s).optIn()
		c.say("BLPOP l 10")
		synctest.Wait()
		s.Move("a:1", time.Minute)
		c.hear(moving(0, 60, "a:1")) // though a reply is owed
		c.hear("_\r\n")
		s.Delay("client maint_notifications", time.Second)
		c.say(optIn)
		c.silent(999 * time.Millisecond)
		c.hear("+OK\r\n" + moving(0, 60, "a:1"))
	})
}

func TestRefuseOptIn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		message := "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."
		a := inMemory(t)
		b := a.Sibling(RefuseOptIn(message))
		defer b.Close()
		c := dial(t, b)
		c.say("HELLO 3")
		c.skip("*0\r\n")
		c.ask(optIn, "-"+message+"\r\n")
		c.ask("PING", "+PONG\r\n")
		equal(t, "opted in", b.OptedIn(), 0)
		dial(t, a).optIn()
		equal(t, "asked", b.Executed("client maint_notifications"), 1)
	})
}

func TestProtocol2(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := dial(t, inMemory(t, Protocol2()))
		c.ask("HELLO 3", "-ERR unknown command 'HELLO', with args beginning with: '3' \r\n")
		c.ask("PING", "+PONG\r\n")
	})
}

func TestExecutedCountsPerAddress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := inMemory(t)
		b := a.Sibling()
		defer b.Close()
		c, d := dial(t, a), dial(t, b)
		c.ask("INCR n", ":1\r\n")
		d.ask("incr n", ":2\r\n")
		d.ask("MULTI", "+OK\r\n")
		d.ask("INCR n", "+QUEUED\r\n")
		equal(t, "before EXEC", b.Executed("INCR"), 1)
		d.ask("EXEC", "*1\r\n:3\r\n")
		d.ask("INCR", "-ERR wrong number of arguments for 'incr' command\r\n")
		equal(t, "a", a.Executed("INCR"), 1)
		equal(t, "b", b.Executed("Incr"), 2)
		equal(t, "unknown", a.Executed("nosuch"), 0)
		d.ask("CLIENT SETNAME x", "+OK\r\n")
		equal(t, "subcommand", b.Executed("client setname"), 1)
		equal(t, "command", b.Executed("client"), 1)
	})
}

func TestDelay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		c, d := dial(t, s), dial(t, s)
		start := time.Now()
		s.Delay("INCR", 3*time.Second)
		c.say("PING")
		c.say("INCR n")
		c.say("PING")
		c.hear("+PONG\r\n")
		equal(t, "what is ahead waits", time.Since(start), 0)
		synctest.Wait()
		d.ask("GET n", "$1\r\n1\r\n") // carried out, not answered
		c.hear(":1\r\n+PONG\r\n")
		equal(t, "the reply took", time.Since(start), 3*time.Second)
		s.Delay("incr", 0)
		c.ask("INCR n", ":2\r\n")
		equal(t, "then", time.Since(start), 3*time.Second)

		s.Delay("get", time.Hour)
		c.say("GET n")
		c.Close()
		d.say("GET n")
		synctest.Wait()
		equal(t, "one has left", s.Conns(), 1)
		s.Close()
		d.ended(io.EOF)
		equal(t, "Close took", time.Since(start), 3*time.Second)
	})
}

func TestCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		c := dial(t, s)
		c.ask("PING", "+PONG\r\n")
		s.Cut()
		equal(t, "connections", s.Conns(), 0)
		c.ended(syscall.ECONNRESET)
		dial(t, s).ask("PING", "+PONG\r\n")
	})
}

func TestRefuse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t, RefuseConnections())
		refused := func(addr string) {
			t.Helper()
			_, err := s.Dial(context.Background(), "tcp", addr)
			var op *net.OpError
			if !errors.As(err, &op) || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dial %s: %v", addr, err)
			}
		}
		refused(s.Addr())
		refused("10.99.0.1:6379")
		refused("nowhere.example:6379")
		s.Refuse(false)
		c := dial(t, s)
		s.Refuse(true)
		refused(s.Addr())
		c.ask("PING", "+PONG\r\n")
		s.Refuse(false)
		s.Close()
		refused(s.Addr())
	})
}

func TestStall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t, StallHandshakes())
		stalled := dial(t, s)
		stalled.say("PING")
		s.Stall(false)
		stalled.silent(time.Hour)
		c := dial(t, s)
		s.Stall(true)
		c.ask("PING", "+PONG\r\n")
		equal(t, "connections", s.Conns(), 2)
		stalled.Close()
		synctest.Wait()
		equal(t, "connections", s.Conns(), 1)
		dial(t, s).say("PING")
	})
}

func TestFreeze(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		old := dial(t, s).optIn()
		s.Freeze(true)
		fresh := dial(t, s)
		for _, c := range []*talker{old, fresh} {
			c.say("INCR n")
			c.silent(time.Minute)
		}
		s.Move("a:1", time.Hour)
		old.silent(time.Minute)
		equal(t, "executed", s.Executed("incr"), 0)
		s.Freeze(false)
		fresh.skip("\r\n")
		old.skip(moving(0, 3600, "a:1"))
		synctest.Wait()
		equal(t, "executed", s.Executed("incr"), 2)
		s.Freeze(true)
		s.Close()
		old.skip("") // whatever was left
	})
}

func TestDropAfter(t *testing.T) {
	for _, socket := range []bool{false, true} {
		s := NewServer(DropAfter(10))
		c := dial(t, s)
		if socket {
			c = dialTCP(t, s.Addr())
		}
		c.ask("PING", "+PONG\r\n")
		c.say("PING")
		c.hear("+PO")
		c.ended(syscall.ECONNRESET)
		s.Close()
	}
}

func TestChunk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := dial(t, inMemory(t, Chunk(1)))
		c.say("PING")
		buf := make([]byte, 100)
		for _, want := range "+PONG\r\n" {
			n, _ := c.Read(buf)
			equal(t, "read", string(buf[:n]), string(want))
		}
	})
}

func TestLies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var said [][]string
		s := inMemory(t, Greeting("+HI\r\n"), Respond("get", "*1\r\n>1\r\n+x\r\n:1\r\n"), Deny("client setname"), Deny("HELLO"),
			OnCommand(func(conn int, args []string) { said = append(said, append([]string{fmt.Sprint(conn)}, args...)) }))
		c := dial(t, s)
		c.hear("+HI\r\n")
		c.ask("HELLO 3", "-NOPERM this user has no permissions to run the 'hello' command\r\n")
		c.ask("CLIENT SETNAME x", "-NOPERM this user has no permissions to run the 'client|setname' command\r\n")
		c.ask("CLIENT ID", ":1\r\n")
		c.ask("GET x", "*1\r\n>1\r\n+x\r\n:1\r\n")
		equal(t, "executed", s.Executed("GET"), 1)
		s.SetRespond("GET", "")
		c.ask("GET x", "$-1\r\n")
		s.SetRespond("NoSuch", "+FINE\r\n")
		c.ask("NOSUCH x", "+FINE\r\n")
		equal(t, "executed", s.Executed("nosuch"), 1)
		if len(said) != 6 || !slices.Equal(said[1], []string{"1", "CLIENT", "SETNAME", "x"}) {
			t.Errorf("hook was told %q", said)
		}
	})
}

func TestDial(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := inMemory(t)
		b := a.Sibling(WithAddr("[2001:db8::5]:12075"))
		defer b.Close()
		name := a.Sibling(WithAddr("db.example.com:6379"))
		defer name.Close()
		for _, addr := range []string{a.Addr(), b.Addr(), name.Addr()} {
			c, err := b.Dial(context.Background(), "tcp", addr)
			talk := newTalker(t, c, err)
			talk.ask("PING", "+PONG\r\n")
			remote, ok := c.RemoteAddr().(*net.TCPAddr)
			if !ok || addr != name.Addr() && remote.String() != addr {
				t.Errorf("RemoteAddr %v, dialled %v", c.RemoteAddr(), addr)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := a.Dial(ctx, "tcp", a.Addr()); !errors.Is(err, context.Canceled) {
			t.Error("dial with a cancelled context:", err)
		}
		if other := inMemory(t); other.Addr() == a.Addr() {
			t.Error("an address was given twice")
		}
	})
}

func TestOverSockets(t *testing.T) {
	cert, pool := SelfSigned("127.0.0.1", "db.example.com")
	tlsConf := &tls.Config{Certificates: []tls.Certificate{cert}}
	for _, tc := range []struct {
		name string
		opts []Option
		dial func(addr string) (net.Conn, error)
	}{
		{"tcp", nil, func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }},
		{"unix", []Option{Unix(filepath.Join(t.TempDir(), "s"))}, func(addr string) (net.Conn, error) { return net.Dial("unix", addr) }},
		{"tls by IP", []Option{WithTLS(tlsConf)}, func(addr string) (net.Conn, error) {
			return tls.Dial("tcp", addr, &tls.Config{RootCAs: pool})
		}},
		{"tls by name", []Option{WithTLS(tlsConf), Chunk(3)}, func(addr string) (net.Conn, error) {
			return tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, ServerName: "db.example.com"})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := NewServer(tc.opts...)
			defer s.Close()
			connect := func() *talker {
				t.Helper()
				c, err := tc.dial(s.Addr())
				return newTalker(t, c, err)
			}
			c := connect()
			c.optIn()
			big := strings.Repeat("x", 1<<17)
			c.ask("SET big "+big, "+OK\r\n")
			c.ask("GET big", "$131072\r\n"+big+"\r\n")
			s.Move("a:1", 50*time.Millisecond)
			c.hear(moving(0, 1, "a:1"))
			if _, err := c.r.ReadByte(); err == nil {
				t.Error("not closed")
			}
			s.Refuse(true)
			if _, err := tc.dial(s.Addr()); err == nil {
				t.Error("not refused")
			}
			s.Refuse(false)
			d := connect()
			d.ask("QUIT", "+OK\r\n")
			d.ended(io.EOF)
			e := connect()
			e.ask("PING", "+PONG\r\n")
			s.Cut()
			if _, err := e.r.ReadByte(); err == nil {
				t.Error("not cut")
			}
			s.Close()
			s.Close()
			if _, err := tc.dial(s.Addr()); err == nil {
				t.Error("not closed")
			}
		})
	}
}

// Some clients write a whole pipeline before they read the first reply.
func TestAClientMayWriteEverythingFirst(t *testing.T) {
	const n = 100_000
	command, reply := "*2\r\n$4\r\nECHO\r\n$64\r\n"+strings.Repeat("x", 64)+"\r\n", "$64\r\n"+strings.Repeat("x", 64)+"\r\n"
	for _, socket := range []bool{false, true} {
		s := NewServer()
		c := dial(t, s)
		if socket {
			c = dialTCP(t, s.Addr())
		}
		if _, err := io.WriteString(c, strings.Repeat(command, n)); err != nil {
			t.Fatal(err)
		}
		c.hear(strings.Repeat(reply, n))
		s.Close()
	}
}

func TestAClientThatNeverReadsIsDropped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t, OutputLimit(1<<20))
		c, other := dial(t, s), dial(t, s)
		other.ask("SET big "+strings.Repeat("x", 1<<17), "+OK\r\n")
		for range 20 {
			c.say("GET big")
		}
		synctest.Wait()
		equal(t, "connections", s.Conns(), 1)
		other.ask("PING", "+PONG\r\n")
	})
}

// Announcements come between replies, whatever the load, and each connection hears all of them in order.
func TestPushesUnderLoad(t *testing.T) {
	s := NewServer()
	defer s.Close()
	const pushes, conns = 200, 4
	var wg sync.WaitGroup
	for range conns {
		c := dialTCP(t, s.Addr()).optIn()
		wg.Go(func() {
			for next := 0; next < pushes; {
				if _, err := io.WriteString(c, strings.Repeat("INCR n\r\n", 10)); err != nil {
					t.Error(err)
					return
				}
				for replies := 0; replies < 10; {
					line, err := c.r.ReadString('\n')
					switch {
					case err != nil:
						t.Error(err)
						return
					case line[0] == ':':
						replies++
					default:
						rest := fmt.Sprintf("$1\r\nx\r\n:%d\r\n", next)
						if line != ">2\r\n" {
							t.Errorf("heard %q", line)
							return
						}
						c.hear(rest)
						next++
					}
				}
			}
		})
	}
	go func() {
		for i := range pushes {
			s.Push("x", i)
			time.Sleep(100 * time.Microsecond)
		}
	}()
	wg.Wait()
}

func TestCloseEndsEverything(t *testing.T) {
	bubble(t, func(t *testing.T) { // which fails if a goroutine is left
		s := NewServer(InMemory())
		idle, blocked, frozen := dial(t, s), dial(t, s), dial(t, s)
		idle.ask("PING", "+PONG\r\n")
		blocked.say("BLPOP l 0")
		synctest.Wait()
		s.Freeze(true)
		frozen.say("PING")
		synctest.Wait()
		s.Move("a:1", time.Hour)
		s.Close()
		for _, c := range []*talker{idle, blocked, frozen} {
			c.ended(io.EOF)
		}
		s.Close()
		s.Move("a:1", time.Second)
		s.Freeze(false)
		s.Push("x")
	})
}

func TestSelfSignedInABubble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cert, pool := SelfSigned("db.example.com")
		s := inMemory(t, WithTLS(&tls.Config{Certificates: []tls.Certificate{cert}}))
		raw, err := s.Dial(context.Background(), "tcp", s.Addr())
		c := newTalker(t, tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: "db.example.com"}), err)
		c.ask("PING", "+PONG\r\n")
		c.Close()
		raw, _ = s.Dial(context.Background(), "tcp", s.Addr())
		if err := tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: "other.example.com"}).Handshake(); err == nil {
			t.Error("another name was accepted")
		}
		raw.Close()
	})
}

func TestPanicsWhenItCannotListen(t *testing.T) {
	s := NewServer()
	defer s.Close()
	defer func() {
		if recover() == nil {
			t.Error("two servers listen on one port")
		}
	}()
	NewServer(WithAddr(s.Addr()))
}
