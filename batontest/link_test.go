package batontest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func newTestLink(t *testing.T, target string) *Link {
	l := NewLink(target)
	t.Cleanup(l.Close)
	return l
}

// until waits for something that must come.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// untilLost waits until something was lost in so many directions of a link's connections: what is said arrives there in its own time.
func untilLost(t *testing.T, l *Link, directions int32) {
	t.Helper()
	until(t, "it is lost", func() bool {
		var n int32
		for _, w := range l.current() {
			n += w.lossy.Load()
		}
		return n == directions
	})
}

func TestLinkPassesEverythingOn(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		l := newTestLink(t, target)
		for _, chunk := range []int{0, 1, 1000} {
			l.Chunk(chunk)
			c := dialTCP(t, l.Addr())
			big := strings.Repeat("x", 50_000)
			c.ask("SET big "+big, "+OK\r\n")
			c.ask("GET big", fmt.Sprintf("$%d\r\n%s\r\n", len(big), big))
			c.say("ECHO last")
			c.Conn.(*net.TCPConn).CloseWrite()
			c.hear("$4\r\nlast\r\n")
			c.ended(io.EOF)
		}
		until(t, "no connection is left", func() bool { return l.Conns() == 0 })
	})
}

func TestLinkPassesTLSOnToARelay(t *testing.T) {
	cert, pool := SelfSigned("127.0.0.1")
	s := NewServer()
	defer s.Close()
	r := newTestRelay(t, s.Addr(), WithTLS(&tls.Config{Certificates: []tls.Certificate{cert}}))
	l := newTestLink(t, r.Addr())
	l.Chunk(1)
	raw, err := tls.Dial("tcp", l.Addr(), &tls.Config{RootCAs: pool})
	newTalker(t, raw, err).optIn().ask("ECHO secret", "$6\r\nsecret\r\n")
}

func TestLinkResets(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		l := newTestLink(t, target)
		a, b := dialTCP(t, l.Addr()), dialTCP(t, l.Addr())
		a.ask("PING", "+PONG\r\n")
		b.say("BLPOP list 0")
		until(t, "both", func() bool { return l.Conns() == 2 })
		l.Reset()
		a.ended(syscall.ECONNRESET)
		b.ended(syscall.ECONNRESET)
		c := dialTCP(t, l.Addr())
		c.ask("RPUSH list 1", ":1\r\n") // nobody pops it
		c.ask("LLEN list", ":1\r\n")
		equal(t, "connections", l.Conns(), 1)
	})
}

// A reset of the target's is passed on as one.
func TestLinkPassesResetsOn(t *testing.T) {
	s := NewServer()
	defer s.Close()
	c := dialTCP(t, newTestLink(t, s.Addr()).Addr())
	c.ask("PING", "+PONG\r\n")
	s.Cut()
	c.ended(syscall.ECONNRESET)
}

func TestLinkHalfCloses(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		l := newTestLink(t, target)
		c := dialTCP(t, l.Addr())
		c.ask("PING", "+PONG\r\n")
		l.HalfClose()
		c.ended(io.EOF)
		c.say("SET k v") // the server still reads
		other := dialTCP(t, l.Addr())
		until(t, "what was said behind the end is carried out", func() bool {
			other.say("EXISTS k")
			reply, _ := other.r.ReadString('\n')
			return reply == ":1\r\n"
		})
		equal(t, "connections", l.Conns(), 2)
		c.Close()
		until(t, "one is left", func() bool { return l.Conns() == 1 })
	})
}

func TestLinkFreezes(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		l := newTestLink(t, target)
		c := dialTCP(t, l.Addr())
		c.ask("PING", "+PONG\r\n")
		l.Freeze(true)
		l.Freeze(true)
		c.say("PING")
		c.silent(20 * time.Millisecond)
		late := dialTCP(t, l.Addr())
		late.say("PING")
		late.silent(20 * time.Millisecond)
		l.Freeze(false)
		l.Freeze(false)
		c.hear("+PONG\r\n")
		late.hear("+PONG\r\n")

		l.Freeze(true)
		command := fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n", 32<<20, make([]byte, 32<<20))
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Write(command)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("while nothing is read, %d bytes were written: %v", n, err)
		}
		c.SetWriteDeadline(time.Time{})
		l.Freeze(false)
		c.Write(command[n:])
		c.hear("+OK\r\n")
	})
}

func TestLinkIsABlackHole(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		l := newTestLink(t, target)
		silent, c, quiet, leaver := dialTCP(t, l.Addr()), dialTCP(t, l.Addr()), dialTCP(t, l.Addr()), dialTCP(t, l.Addr())
		c.ask("PING", "+PONG\r\n")
		until(t, "all", func() bool { return l.Conns() == 4 })
		l.Blackhole(true)
		c.say("SET k lost")
		untilLost(t, l, 1)
		c.silent(20 * time.Millisecond)
		leaver.Close()
		until(t, "it is seen that one left", func() bool { return l.Conns() == 3 })
		within := dialTCP(t, l.Addr())
		within.say("PING")
		untilLost(t, l, 3) // with the leaver's end
		within.silent(20 * time.Millisecond)
		l.Blackhole(false)
		quiet.ask("EXISTS k", ":0\r\n")
		silent.ask("PING", "+PONG\r\n")
		c.say("SET k late")
		c.silent(20 * time.Millisecond)
		within.say("PING")
		within.silent(20 * time.Millisecond)
		quiet.ask("EXISTS k", ":0\r\n")
		dialTCP(t, l.Addr()).ask("PING", "+PONG\r\n")
	})
}

func TestLinkIsMute(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		l := newTestLink(t, target)
		c, other := dialTCP(t, l.Addr()), dialTCP(t, newTestLink(t, target).Addr())
		c.ask("PING", "+PONG\r\n")
		l.Mute(true)
		c.say("SET k v")
		until(t, "it is carried out", func() bool {
			other.say("EXISTS k")
			reply, _ := other.r.ReadString('\n')
			return reply == ":1\r\n"
		})
		untilLost(t, l, 1)
		l.Mute(false)
		c.say("PING")
		c.silent(20 * time.Millisecond)
		dialTCP(t, l.Addr()).ask("PING", "+PONG\r\n")
		c.say("QUIT")
		c.ended(io.EOF)
	})
}

func TestLinkIsSlow(t *testing.T) {
	targets(t, func(t *testing.T, target string) {
		l := newTestLink(t, target)
		const latency, bandwidth, size = 30 * time.Millisecond, 1 << 20, 100_000
		c := dialTCP(t, l.Addr())
		c.ask("SET big "+strings.Repeat("x", size), "+OK\r\n")
		l.Latency(latency)
		start := time.Now()
		for range 3 {
			c.say("PING")
		}
		c.hear(strings.Repeat("+PONG\r\n", 3))
		if took := time.Since(start); took < 2*latency {
			t.Errorf("there and back took %v, with %v each", took, latency)
		}
		l.Latency(0)
		l.Bandwidth(bandwidth)
		start = time.Now()
		c.say("GET big")
		c.hear(fmt.Sprintf("$%d\r\n%s\r\n", size, strings.Repeat("x", size)))
		const least = size * time.Second / bandwidth * 9 / 10 // the read that was under way when the limit came may bring more
		if took := time.Since(start); took < least-parcelSize*time.Second/bandwidth {
			t.Errorf("%d bytes at %d a second took %v", size, bandwidth, took)
		}
		l.Bandwidth(0)
	})
}

func TestLinkLeadsElsewhere(t *testing.T) {
	one, two := NewServer(), NewServer()
	defer one.Close()
	l := newTestLink(t, one.Addr())
	c := dialTCP(t, l.Addr())
	c.ask("SET k one", "+OK\r\n")
	l.Target(two.Addr())
	d := dialTCP(t, l.Addr())
	d.ask("GET k", "$-1\r\n")
	c.ask("GET k", "$3\r\none\r\n")
	two.Close()
	d.ended(io.EOF)
	if refused, err := net.Dial("tcp", l.Addr()); err == nil { // else the reset was the faster
		newTalker(t, refused, nil).ended(syscall.ECONNRESET)
	}
	l.Close()
	c.ended(io.EOF)
	if _, err := net.Dial("tcp", l.Addr()); err == nil {
		t.Error("a closed link accepts a connection")
	}
	l.Close()
	equal(t, "connections", l.Conns(), 0)
}
