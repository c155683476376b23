package main

// The other end of a codec's connection: no socket and no server, but a net.Conn in memory that answers each command while it is written.
// It looks no closer at commands than it must: the cost of this file is in the figures of all libraries.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A canned server has one reply, for one command; it does not change once it is dialled. Handshakes it answers, too.
type canned struct {
	// How the command begins on the wire, with its name as libraries write it, and its length: it is recognized by the one and
	// passed over by the other.
	upper, lower string
	length       int
	replies      map[int]strip // by protocol
	heard        *heard        // nil, or where commands are noted: then none is passed over
}

// A strip is a reply several times over, so that many can be copied at once.
type strip struct {
	text   string
	length int // of one
}

// heard is all commands that were no handshake.
type heard struct {
	mu       sync.Mutex
	commands [][]string
}

// newCanned: times is how many replies a strip has.
func newCanned(command []string, times int, reply2, reply3 string) *canned {
	name := bulk(command[0])
	begin := encoded(command...)
	begin = begin[:strings.Index(begin, name)]
	return &canned{
		upper:  begin + strings.ToUpper(name),
		lower:  begin + strings.ToLower(name),
		length: len(encoded(command...)),
		replies: map[int]strip{
			2: {strings.Repeat(reply2, times), len(reply2)},
			3: {strings.Repeat(reply3, times), len(reply3)},
		},
	}
}

func (s *canned) dial(context.Context, string, string) (net.Conn, error) {
	c := &cannedConn{server: s, canned: s.replies[2]}
	c.arrived.L = &c.mu
	return c, nil
}

// recognizes tells whether a command at the beginning of p need not be parsed.
func (s *canned) recognizes(p []byte) bool {
	n := len(s.upper)
	return s.heard == nil && len(p) >= n && (string(p[:n]) == s.upper || string(p[:n]) == s.lower)
}

// A cannedConn is a connection to a canned server. Everything below mu is guarded by it.
type cannedConn struct {
	server  *canned
	mu      sync.Mutex
	arrived sync.Cond // something that a reader waits for

	canned strip  // the reply, as the chosen protocol has it
	in     []byte // the beginning of a command whose rest is to come
	left   int    // bytes to come of a recognized command

	out      []answer // first to last
	deadline time.Time
	closed   bool
}

// An answer is bytes that are to be read: so many of text, over and over, from at on.
type answer struct {
	text     string
	at, left int
}

// Write takes commands and answers those that are complete.
func (c *cannedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	n := len(p)
	if len(c.in) > 0 {
		c.in = append(c.in, p...)
		p = c.in
	}
	rest, err := c.takeLocked(p)
	c.in = append(c.in[:0], rest...)
	c.arrived.Broadcast()
	if err != nil {
		return 0, err
	}
	return n, nil
}

// takeLocked returns what it has to see again, with more behind it.
func (c *cannedConn) takeLocked(p []byte) (rest []byte, err error) {
	for len(p) > 0 {
		switch {
		case c.left > 0:
			n := min(c.left, len(p))
			p = p[n:]
			if c.left -= n; c.left == 0 {
				c.answerLocked(c.canned.text, c.canned.length)
			}
		case c.server.recognizes(p):
			c.left = c.server.length
		default:
			args, n, err := parseCommand(p)
			if n == 0 || err != nil {
				return p, err
			}
			p = p[n:]
			c.executeLocked(args)
		}
	}
	return nil, nil
}

// parseCommand parses the command at the beginning of p, of n bytes. If it is not complete, n is 0.
func parseCommand(p []byte) (args []string, n int, err error) {
	rest := p
	count, ok, err := cutHeader(&rest, '*')
	for range count {
		var length int
		if length, ok, err = cutHeader(&rest, '$'); !ok || len(rest) < length+2 {
			return nil, 0, err
		}
		args, rest = append(args, string(rest[:length])), rest[length+2:]
	}
	if !ok || len(args) == 0 {
		return nil, 0, err
	}
	return args, len(p) - len(rest), nil
}

func cutHeader(p *[]byte, tag byte) (n int, ok bool, err error) {
	line, rest, ok := bytes.Cut(*p, []byte("\r\n"))
	if !ok {
		return 0, false, nil
	}
	*p = rest
	if len(line) == 0 || line[0] != tag {
		return 0, false, errors.New("a command begins with " + strconv.Quote(string(line)))
	}
	n, err = strconv.Atoi(string(line[1:]))
	return n, err == nil, err
}

// executeLocked answers what was parsed as a Redis server without authentication and maintenance notifications does.
func (c *cannedConn) executeLocked(args []string) {
	reply := "+OK\r\n"
	switch name := strings.ToUpper(args[0]); {
	case name == "HELLO":
		c.canned = c.server.replies[3]
		reply = aggregate('%', bulk("server"), bulk("redis"), bulk("version"), bulk("7.0.15"), bulk("proto"), ":3\r\n")
	case name == "PING":
		reply = "+PONG\r\n"
	case name == "AUTH", name == "SELECT":
	case name == "CLIENT" && len(args) > 1 && strings.EqualFold(args[1], "MAINT_NOTIFICATIONS"):
		reply = "-ERR unknown subcommand 'maint_notifications'\r\n"
	case name == "CLIENT":
	default:
		c.answerLocked(c.canned.text, c.canned.length)
		c.server.heard.note(args)
		return
	}
	c.answerLocked(reply, len(reply))
}

func (h *heard) note(command []string) {
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.commands = append(h.commands, command)
	}
}

// are tells whether these commands were heard, by whatever case of letters in their names, and no others.
func (h *heard) are(command []string, times int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, got := range h.commands {
		if !strings.EqualFold(got[0], command[0]) || !slices.Equal(got[1:], command[1:]) {
			return false
		}
	}
	return len(h.commands) == times
}

func (c *cannedConn) answerLocked(text string, n int) {
	if last := len(c.out) - 1; last >= 0 && c.out[last].text == text {
		c.out[last].left += n
		return
	}
	c.out = append(c.out, answer{text: text, left: n})
}

// Read reads all that is there and fits, and waits if nothing is.
func (c *cannedConn) Read(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.waitLocked(); err != nil {
		return 0, err
	}
	for n < len(p) && len(c.out) > 0 {
		a := &c.out[0]
		copied := copy(p[n:], a.text[a.at:min(a.at+a.left, len(a.text))])
		n += copied
		if a.at += copied; a.at == len(a.text) {
			a.at = 0
		}
		if a.left -= copied; a.left == 0 {
			c.out = append(c.out[:0], c.out[1:]...)
		}
	}
	return n, nil
}

// waitLocked takes a timer only if it has to wait: most deadlines are set and never needed.
func (c *cannedConn) waitLocked() error {
	for {
		limited := !c.deadline.IsZero()
		switch {
		case c.closed:
			return io.EOF
		case limited && time.Until(c.deadline) <= 0:
			return os.ErrDeadlineExceeded
		case len(c.out) > 0:
			return nil
		case limited:
			timer := time.AfterFunc(time.Until(c.deadline), c.wake)
			c.arrived.Wait()
			timer.Stop()
		default:
			c.arrived.Wait()
		}
	}
}

func (c *cannedConn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrived.Broadcast()
}

// SetReadDeadline holds for a Read that waits already, too.
func (c *cannedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	c.arrived.Broadcast()
	return nil
}

func (c *cannedConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline has nothing to do: no Write waits.
func (c *cannedConn) SetWriteDeadline(time.Time) error { return nil }

func (c *cannedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.arrived.Broadcast()
	return nil
}

func (c *cannedConn) LocalAddr() net.Addr  { return cannedAddr }
func (c *cannedConn) RemoteAddr() net.Addr { return cannedAddr }

// cannedAddr is what all libraries are told to dial.
var cannedAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6379}
