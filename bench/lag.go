package main

// A network that is farther away than the loopback: a relay of bytes that passes what the server says on later. It delays one
// direction only, and does not limit how much is under way: latency, not bandwidth. It runs in this process and takes its share.

import (
	"net"
	"sync"
	"time"
)

type lag struct {
	ln net.Listener
	by time.Duration

	mu     sync.Mutex
	opened []net.Conn // guarded by mu
	closed bool       // guarded by mu
}

// A chunk is bytes and when they are due.
type chunk struct {
	bytes []byte
	due   time.Time
}

// newLags is one for each. Those that it returns are to be closed, even if not all could be opened.
func newLags(target string, by ...time.Duration) (lags []*lag, _ error) {
	for _, d := range by {
		l, err := newLag(target, d)
		if err != nil {
			return lags, err
		}
		lags = append(lags, l)
	}
	return lags, nil
}

func closeLags(lags []*lag) {
	for _, l := range lags {
		l.Close()
	}
}

func newLag(target string, by time.Duration) (*lag, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &lag{ln: ln, by: by}
	go l.accept(target)
	return l, nil
}

func (l *lag) Addr() string { return l.ln.Addr().String() }

func (l *lag) accept(target string) {
	for {
		near, err := l.ln.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", target)
		if err != nil {
			near.Close()
			continue
		}
		if !l.keep(near, far) {
			return
		}
		go pass(far, near, 0)
		go pass(near, far, l.by)
	}
}

// keep remembers connections until Close. They are closed at once if that was before.
func (l *lag) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		closeAll(conns)
		return false
	}
	l.opened = append(l.opened, conns...)
	return true
}

func (l *lag) Close() {
	l.ln.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	closeAll(l.opened)
}

func closeAll(conns []net.Conn) {
	for _, nc := range conns {
		nc.Close()
	}
}

// pass ends, and closes both, when one of them is closed.
func pass(to, from net.Conn, late time.Duration) {
	chunks := make(chan chunk, 1<<10) // one command each, that is 100,000 of them a second with 10 ms
	go func() {
		defer to.Close()
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			to.Write(c.bytes) // if it fails, reading ends soon
		}
	}()
	defer close(chunks)
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		chunks <- chunk{append([]byte(nil), buf[:n]...), time.Now().Add(late)}
	}
}
