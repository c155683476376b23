package batontest

// One connection to a node: its goroutine reads, whoever has something to send appends it to the out-buffer, and one
// goroutine at a time writes that. So nobody waits for a client that does not read.

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	lastBytes  = 10 * time.Millisecond  // beyond the window, for what has been answered and not yet sent
	inlineSend = 100 * time.Millisecond // how long the reading goroutine may be kept by a client that does not read
	readSize   = 32 << 10
	maxAhead   = 1 << 20 // bytes read beyond a command that waits
	maxSpare   = 1 << 20 // larger buffers are not kept
)

var errShort = errors.New("batontest: connection ended")

// A peer is one connection to a node.
type peer struct {
	node *node
	id   int64
	raw  net.Conn
	nc   net.Conn      // raw, or TLS over it
	gone chan struct{} // closed with dead

	// Guarded by node.mu.
	opted, named bool

	// Owned by the connection's goroutine, except that a read under way owns buf[w:].
	buf   []byte // buf[r:w] was read and not yet parsed
	r, w  int
	ahead chan readResult // the read under way; nil: none

	mu       sync.Mutex
	sent     sync.Cond // broadcast when sending has got on, or ended
	out      []byte    // to be sent
	spare    []byte
	deferred []byte // pushes that wait for the end of a frame
	mid      bool   // out ends within a frame
	sending  bool   // somebody is: only that goroutine writes to nc, and it looks at out again when it is done
	closing  bool   // close when out is empty
	dead     bool
	other    net.Conn  // closed with raw: a relay's connection to its target
	total    int       // bytes sent; owned by who is sending
	writeBy  time.Time // the write deadline in force; owned by who is sending
}

type readResult struct {
	n   int
	err error
}

func (p *peer) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead
}

// kill ends the connection at once; what has not been sent is lost.
func (p *peer) kill(reset bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killLocked(reset)
}

func (p *peer) killLocked(reset bool) {
	if p.dead {
		return
	}
	p.dead = true
	close(p.gone)
	p.sent.Broadcast()
	switch c := p.raw.(type) {
	case *pipeConn:
		if reset {
			c.Reset()
		}
	case *net.TCPConn:
		if reset {
			c.SetLinger(0)
		}
	}
	p.raw.Close()
	if p.other != nil {
		p.other.Close()
	}
}

// closeWith has c closed when p ends.
func (p *peer) closeWith(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.other = c
	if p.dead {
		c.Close()
	}
}

// finish closes the connection when everything has been sent.
func (p *peer) finish() {
	p.mu.Lock()
	p.closing = true
	if !p.sending && len(p.out) == 0 && p.nc == p.raw {
		p.killLocked(false)
	}
	p.mu.Unlock()
	p.kick()
}

// write appends to what is to be sent; flush or kick has it sent.
func (p *peer) write(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writeLocked(b)
}

func (p *peer) writeLocked(b []byte) {
	p.out = append(p.out, b...)
	if len(p.out) > p.node.cfg.outputLimit {
		p.killLocked(true)
	}
}

// push sends b soon, between two frames. It may be called on any goroutine while the connection is one of its node's.
func (p *peer) push(b []byte) {
	p.mu.Lock()
	if p.mid {
		p.deferred = append(p.deferred, b...)
	} else {
		p.writeLocked(b)
	}
	p.mu.Unlock()
	p.kick()
}

// pass appends bytes that end within a frame or at the end of one.
func (p *peer) pass(b []byte, mid bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writeLocked(b)
	p.mid = mid
	if !mid {
		p.writeLocked(p.deferred)
		p.deferred = p.deferred[:0]
	}
}

// awaitSent returns when no more than so many bytes wait to be sent.
func (p *peer) awaitSent(limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.out) > limit && !p.dead {
		p.sent.Wait()
	}
}

// kick has a goroutine of its own send what waits.
func (p *peer) kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.sending && !p.dead && (len(p.out) > 0 || p.closing) {
		p.sending = true
		p.node.wg.Go(func() { p.send(false) })
	}
}

// flush sends what waits, on this goroutine if that is quick. A client that does not read must not keep the connection's
// goroutine from reading: some write everything before they read anything. So a goroutine of its own takes over when a pipe
// is full, or a socket's write has taken inlineSend; over TLS, where such a write could not be continued, it always does.
func (p *peer) flush() {
	p.mu.Lock()
	inline := p.raw == p.nc && !p.sending && !p.dead && len(p.out) > 0
	if pipe, is := p.raw.(*pipeConn); is {
		inline = inline && pipe.room() >= len(p.out)
	}
	if inline {
		p.sending = true
	}
	p.mu.Unlock()
	if inline {
		p.send(true)
	} else {
		p.kick()
	}
}

// send is called with sending set, and clears it. Inline it writes once; a goroutine goes on if more has come meanwhile.
func (p *peer) send(inline bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.out) > 0 && !p.dead {
		b := p.out
		p.out, p.spare = p.spare[:0], nil
		p.mu.Unlock()
		n, err := p.writeOut(b, inline)
		p.mu.Lock()
		p.sent.Broadcast()
		switch {
		case inline && errors.Is(err, os.ErrDeadlineExceeded):
			p.out = append(b[n:], p.out...)
		case err != nil:
			p.killLocked(err == errDropped)
		case cap(b) <= maxSpare:
			p.spare = b
		}
		if inline && len(p.out) > 0 {
			p.node.wg.Go(func() { p.send(false) })
			return
		}
	}
	p.sending = false
	if p.closing && !p.dead {
		p.closeLocked()
	}
}

// closeLocked is called when everything has been sent.
func (p *peer) closeLocked() {
	if p.raw == p.nc {
		p.killLocked(false)
		return
	}
	p.sending = true
	p.node.wg.Go(func() { // TLS says goodbye, which may block
		p.nc.Close()
		p.kill(false)
	})
}

var errDropped = errors.New("batontest: DropAfter")

// writeOut writes b as the options say.
func (p *peer) writeOut(b []byte, inline bool) (n int, err error) {
	if !p.node.awaitThaw(p) {
		return 0, errShort
	}
	p.setWriteDeadline(inline)
	dropped := false
	if limit := p.node.cfg.dropAfter; limit > 0 && p.total+len(b) >= limit {
		b, dropped = b[:limit-p.total], true
	}
	step := len(b)
	if p.node.cfg.chunk > 0 {
		step = p.node.cfg.chunk
	}
	for n < len(b) && err == nil {
		var k int
		k, err = p.nc.Write(b[n:min(len(b), n+step)])
		n += k
	}
	p.total += n
	if dropped && err == nil {
		err = errDropped
	}
	return n, err
}

// setWriteDeadline moves the deadline of inline writes once per half of its span only.
func (p *peer) setWriteDeadline(inline bool) {
	if _, is := p.raw.(*pipeConn); is {
		return // flush has looked for room
	}
	var by time.Time
	if inline {
		now := time.Now()
		if p.writeBy.Sub(now) > inlineSend/2 {
			return
		}
		by = now.Add(inlineSend)
	}
	if !by.Equal(p.writeBy) {
		p.nc.SetWriteDeadline(by)
		p.writeBy = by
	}
}

// fill reads more into buf. It may move what is there.
func (p *peer) fill() error {
	if p.ahead == nil {
		p.makeRoom()
		n, err := p.nc.Read(p.buf[p.w:])
		return p.filled(readResult{n, err})
	}
	res := <-p.ahead
	p.ahead = nil
	return p.filled(res)
}

func (p *peer) filled(res readResult) error {
	p.w += res.n
	if !p.node.awaitThaw(p) {
		return errShort
	}
	if res.n > 0 {
		return nil
	}
	return res.err
}

func (p *peer) makeRoom() {
	if p.r == p.w {
		p.r, p.w = 0, 0
		if len(p.buf) > maxSpare {
			p.buf = nil
		}
	}
	if len(p.buf)-p.w >= readSize/2 {
		return
	}
	to := p.buf
	if len(to)-(p.w-p.r) < readSize/2 {
		to = make([]byte, max(readSize, 2*len(p.buf)))
	}
	p.w = copy(to, p.buf[p.r:p.w])
	p.r, p.buf = 0, to
}

// wait returns true when ready is closed, and false after d (0: never) or when the connection has ended, which it notices by
// reading ahead. Arguments of the command that waits are gone afterwards.
func (p *peer) wait(ready <-chan struct{}, d time.Duration) bool {
	var timeout <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		p.readAhead()
		select {
		case <-ready:
			return true
		case <-timeout:
			return false
		case <-p.gone:
			return false
		case res := <-p.ahead:
			p.ahead = nil
			if p.filled(res) != nil {
				p.finish()
				return false
			}
		}
	}
}

func (p *peer) readAhead() {
	if p.ahead != nil || p.w-p.r > maxAhead {
		return
	}
	p.makeRoom()
	ch, to := make(chan readResult, 1), p.buf[p.w:]
	p.ahead = ch
	p.node.wg.Go(func() {
		n, err := p.nc.Read(to)
		ch <- readResult{n, err}
	})
}
