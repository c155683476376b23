package batontest

// In-memory connections that behave like TCP ones on a fast network: buffered, with deadlines, half-closing and resets.
// Everything waits on sync.Cond or time, so a goroutine that is blocked here counts as blocked in a synctest bubble.
// Each direction has one lock, which is never held while anything else is locked.

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// pipeBuffer is how much a direction holds before writes block: about what a socket's buffers hold, so that a
// peer which stops reading is felt by the writer neither sooner nor much later than on a network.
const pipeBuffer = 256 << 10

// Pipe returns the two ends of a connection in memory. Unlike those of [net.Pipe] they are buffered, 256 KiB each way: a
// Write blocks only while the buffer is full. They behave like TCP connections: after Close the other end reads what is
// buffered and then [io.EOF], and its writes fail with EPIPE. Both ends also have these methods, reached with a type assertion:
//
//	CloseWrite() error  // as of *net.TCPConn
//	Reset()             // closes abruptly: the other end reads what is buffered, then ECONNRESET; its writes fail with it at once
//
// They may be used in a synctest bubble if they were made in it.
func Pipe() (client, server net.Conn) {
	return newPipe(madeUpAddr(clientNet), madeUpAddr(serverNet))
}

func newPipe(clientAddr, serverAddr net.Addr) (client, server *pipeConn) {
	up, down := newStream(), newStream()
	client = &pipeConn{in: down, out: up, local: clientAddr, remote: serverAddr}
	server = &pipeConn{in: up, out: down, local: serverAddr, remote: clientAddr}
	return client, server
}

type pipeConn struct {
	in, out       *stream
	local, remote net.Addr
	maxRead       int // the most that one Read returns, 0: no limit; set before use
	closed        atomic.Bool
}

// A stream is one direction of a pipe. Everything is guarded by mu.
type stream struct {
	mu       sync.Mutex
	readable sync.Cond // broadcast when a Read may have something to return
	writable sync.Cond // the same for Write
	buf      []byte    // buf[off:] was written and not yet read
	off      int
	writing  bool // a Write is under way; others wait, so that writes do not mix
	noReader bool
	noWriter bool
	reset    bool
	readBy   deadline
	writeBy  deadline
}

func newStream() *stream {
	s := &stream{}
	s.readable.L, s.writable.L = &s.mu, &s.mu
	return s
}

func (c *pipeConn) Read(b []byte) (int, error) {
	s := c.in
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case c.closed.Load():
			return 0, c.opError("read", net.ErrClosed)
		case s.readBy.passed:
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, nil
		case s.off < len(s.buf):
			if c.maxRead > 0 && c.maxRead < len(b) {
				b = b[:c.maxRead]
			}
			n := copy(b, s.buf[s.off:])
			s.off += n
			s.writable.Broadcast()
			return n, nil
		case s.reset:
			return 0, c.opError("read", os.NewSyscallError("read", syscall.ECONNRESET))
		case s.noWriter:
			return 0, io.EOF
		}
		s.readable.Wait()
	}
}

func (c *pipeConn) Write(b []byte) (n int, err error) {
	s := c.out
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := false // whether s.writing is ours to clear
	defer func() {
		if mine {
			s.writing = false
			s.writable.Broadcast()
		}
	}()
	for {
		switch {
		case c.closed.Load():
			return n, c.opError("write", net.ErrClosed)
		case s.writeBy.passed:
			return n, c.opError("write", os.ErrDeadlineExceeded)
		case s.reset:
			return n, c.opError("write", os.NewSyscallError("write", syscall.ECONNRESET))
		case s.noReader || s.noWriter:
			return n, c.opError("write", os.NewSyscallError("write", syscall.EPIPE))
		case n == len(b):
			return n, nil
		}
		room := pipeBuffer - (len(s.buf) - s.off)
		if room == 0 || s.writing && !mine {
			s.writable.Wait()
			continue
		}
		s.writing, mine = true, true
		n += s.add(b[n:min(len(b), n+room)])
		s.readable.Broadcast()
	}
}

// room is how much can be written without blocking, if nobody else writes.
func (c *pipeConn) room() int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return pipeBuffer - (len(c.out.buf) - c.out.off)
}

func (s *stream) add(b []byte) int {
	if s.off > 0 && len(s.buf)+len(b) > cap(s.buf) || s.off == len(s.buf) {
		s.buf = s.buf[:copy(s.buf, s.buf[s.off:])]
		s.off = 0
	}
	s.buf = append(s.buf, b...)
	return len(b)
}

func (c *pipeConn) Close() error {
	if c.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.end(false)
	return nil
}

// Reset closes the connection as a TCP reset does.
func (c *pipeConn) Reset() {
	if !c.closed.Swap(true) {
		c.end(true)
	}
}

func (c *pipeConn) end(reset bool) {
	c.in.change(func(s *stream) { s.noReader, s.reset = true, s.reset || reset; s.readBy.set(s, time.Time{}, nil) })
	c.out.change(func(s *stream) { s.noWriter, s.reset = true, s.reset || reset; s.writeBy.set(s, time.Time{}, nil) })
}

// CloseWrite tells the other end that nothing more will come; reading goes on.
func (c *pipeConn) CloseWrite() error {
	if c.closed.Load() {
		return c.opError("close", net.ErrClosed)
	}
	c.out.change(func(s *stream) { s.noWriter = true })
	return nil
}

func (s *stream) change(f func(*stream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
	s.readable.Broadcast()
	s.writable.Broadcast()
}

func (c *pipeConn) LocalAddr() net.Addr  { return c.local }
func (c *pipeConn) RemoteAddr() net.Addr { return c.remote }

func (c *pipeConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *pipeConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(c.in, &c.in.readBy, &c.in.readable, t)
}

func (c *pipeConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(c.out, &c.out.writeBy, &c.out.writable, t)
}

func (c *pipeConn) setDeadline(s *stream, d *deadline, wake *sync.Cond, t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	d.set(s, t, wake)
	return nil
}

// A deadline is guarded by its stream's lock.
type deadline struct {
	passed bool
	timer  *time.Timer
	age    int // of the setting: a timer that could not be stopped in time belongs to an earlier one
}

// set is called with s.mu held. It does not compare clocks later on: t may lack the monotonic reading that the timer obeys.
func (d *deadline) set(s *stream, t time.Time, wake *sync.Cond) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.age++
	age := d.age
	d.passed = false
	switch left := time.Until(t); {
	case t.IsZero():
	case left <= 0:
		d.passed = true
		wake.Broadcast()
	default:
		d.timer = time.AfterFunc(left, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if d.age == age {
				d.passed = true
				wake.Broadcast()
			}
		})
	}
}

func (c *pipeConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// Made-up addresses, distinct in the process: servers from 10.0.0.1:6379 on, clients from 10.128.0.1:40000.
const (
	serverNet = iota
	clientNet
)

var madeUp [2]atomic.Uint32

func madeUpAddr(net_ int) *net.TCPAddr {
	k := madeUp[net_].Add(1)
	port, high := 6379, byte(0)
	if net_ == clientNet {
		port, high = 40000, 128
	}
	return &net.TCPAddr{IP: net.IPv4(10, high|byte(k>>16)&127, byte(k>>8), byte(k)), Port: port}
}
