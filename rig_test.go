package baton

// The rig of all tests: clients of in-process servers in a bubble of virtual time, and scripted peers, servers that
// say byte for byte what a test tells them to.

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/baton/batontest"
)

var background = context.Background()

// The net package makes a channel of its own when it first looks a name up. Made in a bubble it could not be used elsewhere.
func init() { (&net.Resolver{PreferGo: true}).LookupHost(background, "localhost") }

// bubble runs f in virtual time. When f returns nothing may be left running in it.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// memoryServer is an in-memory server that ends with the test.
func memoryServer(t *testing.T, opts ...batontest.Option) *batontest.Server {
	s := batontest.NewServer(append(opts, batontest.InMemory())...)
	t.Cleanup(s.Close)
	return s
}

// sibling is another address of s that ends with the test.
func sibling(t *testing.T, s *batontest.Server) *batontest.Server {
	b := s.Sibling()
	t.Cleanup(b.Close)
	return b
}

// dialMemory connects to an in-memory server, with options that the test may have changed by change.
func dialMemory(t *testing.T, s *batontest.Server, change func(*Options)) *Client {
	t.Helper()
	o := Options{Addr: s.Addr(), Dialer: asSockets(s.Dial)}
	if change != nil {
		change(&o)
	}
	return dialOptions(t, o)
}

func dialOptions(t *testing.T, o Options) *Client {
	t.Helper()
	c, err := Dial(background, o)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// journal collects events.
type journal struct {
	mu     sync.Mutex
	events []Event
}

func (j *journal) add(e Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

// of are the events of one kind so far.
func (j *journal) of(kind EventKind) []Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.events), func(e Event) bool { return e.Kind != kind })
}

func (j *journal) count(kind EventKind) int { return len(j.of(kind)) }

// script is a server of which every connection is a peer in the test's hands.
type script struct {
	t     *testing.T
	peers chan *peer // those that were dialled and not yet taken by accept

	mu    sync.Mutex
	dials []string // the addresses dialled, in order
	fail  func(addr string) error
}

func newScript(t *testing.T) *script { return &script{t: t, peers: make(chan *peer, 1024)} }

// dial fits Options.Dialer.
func (s *script) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	s.dials = append(s.dials, addr)
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		if err := fail(addr); err != nil {
			return nil, err
		}
	}
	client, server := batontest.Pipe()
	s.peers <- &peer{Conn: server, t: s.t, addr: addr, r: bufio.NewReader(server)}
	return &addressed{client, addr}, nil
}

// addressed is a connection whose remote address is what was dialled, if that is an IP:port.
type addressed struct {
	net.Conn
	addr string
}

func (a *addressed) RemoteAddr() net.Addr {
	tcp, err := net.ResolveTCPAddr("tcp", a.addr)
	if err != nil {
		return a.Conn.RemoteAddr()
	}
	return tcp
}

// SyscallConn makes it count as a socket, whose buffer takes what a caller writes by itself. A pipe of batontest has one.
func (a *addressed) SyscallConn() (syscall.RawConn, error) { return nil, syscall.ENOTSUP }

// asSockets is a Dialer whose connections count as sockets.
func asSockets(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &addressed{nc, addr}, nil
	}
}

func (s *script) dialled() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.dials)
}

// accept is the next connection that was dialled.
func (s *script) accept() *peer {
	s.t.Helper()
	select {
	case p := <-s.peers:
		return p
	case <-time.After(time.Hour):
		s.t.Fatal("nobody connected within an hour")
		return nil
	}
}

// connect is a client of a scripted server, shaken hands with, and its peer.
func (s *script) connect(o Options) (*Client, *peer) {
	s.t.Helper()
	if o.Addr == "" {
		o.Addr = "10.9.0.1:6379"
	}
	if o.Dialer == nil {
		o.Dialer = s.dial
	}
	type result struct {
		c   *Client
		err error
	}
	results := make(chan result)
	go func() {
		c, err := Dial(background, o)
		results <- result{c, err}
	}()
	p := s.accept()
	p.handshake()
	r := <-results
	if r.err != nil {
		s.t.Fatalf("dial: %v", r.err)
	}
	s.t.Cleanup(func() { r.c.Close() })
	return r.c, p
}

// peer is the server's end of a scripted connection.
type peer struct {
	net.Conn
	t    *testing.T
	addr string // as dialled
	r    *bufio.Reader
}

// says writes raw bytes. What was ended by the client meanwhile is no failure here.
func (p *peer) says(raw string) { io.WriteString(p.Conn, raw) }

// says MOVING with a sequence number, a window in seconds and a successor.
func (p *peer) moving(seq, seconds int, successor string) {
	p.says(fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:%d\r\n:%d\r\n$%d\r\n%s\r\n", seq, seconds, len(successor), successor))
}

// command is the next command, its words joined by spaces; "" when the client has closed the connection.
func (p *peer) command() string {
	p.t.Helper()
	n, err := p.header('*')
	if err != nil {
		return ""
	}
	words := make([]string, n)
	for i := range words {
		size, err := p.header('$')
		if err != nil {
			return ""
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(p.r, word); err != nil {
			return ""
		}
		words[i] = string(word[:size])
	}
	return strings.Join(words, " ")
}

func (p *peer) header(tag byte) (int, error) {
	line, err := p.r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != tag {
		p.t.Errorf("the client wrote %q where a %q was due", line, tag)
		return 0, io.ErrUnexpectedEOF
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// expects that the next commands are these.
func (p *peer) expects(commands ...string) {
	p.t.Helper()
	for _, want := range commands {
		if got := p.command(); got != want {
			p.t.Fatalf("the client sent %q, want %q", got, want)
		}
	}
}

// handshake plays the server's part of a handshake as Redis 8 with notifications does, whatever is asked in it.
func (p *peer) handshake() {
	p.t.Helper()
	p.handshakeSaying("")
}

// handshakeSaying is handshake with raw bytes right behind the +OK of the opt-in.
func (p *peer) handshakeSaying(behindOptIn string) {
	p.t.Helper()
	for {
		switch command := p.command(); {
		case command == "":
			return // it was given up
		case strings.HasPrefix(command, "HELLO"):
			p.says("%3\r\n+server\r\n+redis\r\n+version\r\n+8.0.0\r\n+proto\r\n:3\r\n")
		case strings.HasPrefix(command, "CLIENT MAINT_NOTIFICATIONS"):
			p.says("+OK\r\n" + behindOptIn)
		case command == "PING":
			p.says("+PONG\r\n")
			return
		default:
			p.says("+OK\r\n")
		}
	}
}

// closed says whether the client has closed the connection by now.
func (p *peer) closed() bool {
	p.SetReadDeadline(time.Now().Add(time.Millisecond))
	defer p.SetReadDeadline(time.Time{})
	_, err := p.r.Peek(1)
	ne, timeout := err.(net.Error)
	return err != nil && !(timeout && ne.Timeout())
}

// load keeps workers busy incrementing keys of their own until stop is called, which returns how many INCRs
// succeeded and the errors of those that did not. A worker whose reply is not the next number of its own key has
// read somebody else's reply or been executed twice.
func load(t *testing.T, c *Client, workers int, pause time.Duration) (stop func() (done int, failed []error)) {
	t.Helper()
	var (
		mu     sync.Mutex
		done   int
		failed []error
		wg     sync.WaitGroup
		over   = make(chan struct{})
	)
	for w := range workers {
		key := "load:" + strconv.Itoa(w)
		wg.Go(func() {
			for want := int64(1); ; want++ {
				select {
				case <-over:
					return
				default:
				}
				got, err := c.Do(background, "INCR", key).Int64()
				mu.Lock()
				if err != nil {
					failed = append(failed, err)
					want-- // whether it was executed is looked at by the caller
				} else {
					done++
					if got != want {
						t.Errorf("%s: INCR number %d answered %d", key, want, got)
						want = got
					}
				}
				mu.Unlock()
				if pause > 0 {
					time.Sleep(pause)
				}
			}
		})
	}
	return func() (int, []error) {
		close(over)
		wg.Wait()
		return done, failed
	}
}

// settled waits in real time, outside of bubbles, until no more goroutines run than before.
func settled(t *testing.T, before int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines are left, there were %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// later runs f at once, on a goroutine of its own. What it returns waits for f's result.
func later[T any](f func() T) (result func() T) {
	results := make(chan T, 1)
	go func() { results <- f() }()
	return func() T { return <-results }
}

// batchResult is what DoBatch returned.
type batchResult struct {
	replies []Reply
	err     error
}

// batchLater is later of a batch.
func batchLater(c *Client, b *Batch) func() batchResult {
	return later(func() batchResult { r, err := c.DoBatch(background, b); return batchResult{r, err} })
}

// dialer is the type of Options.Dialer.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// through is a dialer whose connections are as wrap makes them.
func through(dial dialer, wrap func(net.Conn) net.Conn) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return wrap(nc), nil
	}
}

// attend has f handle every connection that is dialled, each on a goroutine of its own, until the test ends.
func (s *script) attend(f func(p *peer)) {
	over := make(chan struct{})
	s.t.Cleanup(func() { close(over) })
	go func() {
		for {
			select {
			case p := <-s.peers:
				go f(p)
			case <-over:
				return
			}
		}
	}()
}

// serve says to each command what answer returns, until the connection ends.
func (p *peer) serve(answer func(command string) string) {
	for command := p.command(); command != ""; command = p.command() {
		switch raw := answer(command); raw {
		case hangUp:
			p.Close()
		default:
			p.says(raw)
		}
	}
}

// hangUp as an answer closes the connection.
const hangUp = "\x00"

// answers are what a server says to the commands that begin with a key; of several keys the longest counts. To all others
// it says what Redis 8 with notifications does: see (answers).to.
type answers map[string]string

func (a answers) to(command string) string {
	key, found := "", false
	for k := range a {
		if strings.HasPrefix(command, k) && len(k) >= len(key) {
			key, found = k, true
		}
	}
	name, argument, _ := strings.Cut(command, " ")
	switch {
	case found:
		return a[key]
	case name == "HELLO":
		return helloThree
	case name == "PING":
		return "+PONG\r\n"
	case name == "ECHO":
		return fmt.Sprintf("$%d\r\n%s\r\n", len(argument), argument)
	}
	return "+OK\r\n"
}

const helloThree = "%3\r\n+server\r\n+redis\r\n+version\r\n+8.0.0\r\n+proto\r\n:3\r\n"

// recorder is a connection that remembers what was written to it, write by write.
type recorder struct {
	net.Conn
	mu     sync.Mutex
	writes []string
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.writes = append(r.writes, commandsIn(b))
	r.mu.Unlock()
	return r.Conn.Write(b)
}

func (r *recorder) written() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

// commandsIn are the commands in b, their words joined by spaces, the commands by " | ".
func commandsIn(b []byte) string {
	var commands []string
	for lines := strings.Split(string(b), "\r\n"); len(lines) > 1; {
		n, err := strconv.Atoi(strings.TrimPrefix(lines[0], "*"))
		if err != nil || len(lines) < 1+2*n {
			return fmt.Sprintf("%q", b)
		}
		var words []string
		for i := range n {
			words = append(words, lines[2+2*i])
		}
		commands, lines = append(commands, strings.Join(words, " ")), lines[1+2*n:]
	}
	return strings.Join(commands, " | ")
}
