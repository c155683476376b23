package batontest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestMain fails the run if a goroutine of this package outlives the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	left := leaked()
	for end := time.Now().Add(5 * time.Second); left != "" && time.Now().Before(end); left = leaked() {
		time.Sleep(10 * time.Millisecond)
	}
	if left != "" {
		fmt.Println("goroutines left:\n" + left)
		code = 1
	}
	os.Exit(code)
}

func leaked() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "batontest.(") && !strings.Contains(g, "TestMain") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

// A talker is a client that says what the test dictates and compares what it hears.
type talker struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func newTalker(t *testing.T, c net.Conn, err error) *talker {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &talker{c, t, bufio.NewReader(c)}
}

type dialer interface {
	Addr() string
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
}

// dial connects in memory.
func dial(t *testing.T, to dialer) *talker {
	t.Helper()
	c, err := to.Dial(context.Background(), "tcp", to.Addr())
	return newTalker(t, c, err)
}

func dialTCP(t *testing.T, addr string) *talker {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	return newTalker(t, c, err)
}

// optIn is a handshake; what it is answered with is not looked at.
func (c *talker) optIn() *talker {
	c.t.Helper()
	c.say("HELLO 3")
	c.skip("*0\r\n")
	c.ask("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type external-ip", "+OK\r\n")
	return c
}

// say sends a command of words.
func (c *talker) say(command string) {
	c.t.Helper()
	words := strings.Fields(command)
	b := appendHead(nil, '*', len(words))
	for _, w := range words {
		b = appendBulk(b, w)
	}
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// hear expects exactly these bytes next.
func (c *talker) hear(want string) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	b := make([]byte, len(want))
	n, err := io.ReadFull(c.r, b)
	if string(b[:n]) != want {
		c.t.Fatalf("heard %q (%v), want %q", b[:n], err, want)
	}
}

// skip reads on until it has heard end.
func (c *talker) skip(end string) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	var heard []byte
	for !strings.HasSuffix(string(heard), end) {
		b, err := c.r.ReadByte()
		if err != nil {
			c.t.Fatalf("heard %q (%v), want it to end with %q", heard, err, end)
		}
		heard = append(heard, b)
	}
}

func (c *talker) ask(command, want string) {
	c.t.Helper()
	c.say(command)
	c.hear(want)
}

// silent expects that nothing comes for d.
func (c *talker) silent(d time.Duration) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(d))
	if b, err := c.r.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("heard %q, %v; want silence", b, err)
	}
}

// ended expects the end of the connection, with this error.
func (c *talker) ended(want error) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	if b, err := c.r.ReadByte(); !errors.Is(err, want) {
		c.t.Fatalf("heard %q, %v; want %v", b, err, want)
	}
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// inMemory starts a server that ends with the test.
func inMemory(t *testing.T, opts ...Option) *Server {
	s := NewServer(append(opts, InMemory())...)
	t.Cleanup(s.Close)
	return s
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
