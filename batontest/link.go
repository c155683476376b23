package batontest

// A link is the network on the way to a server: it passes bytes on without looking at them, late, few at a time, or not at all. Each
// connection through it is a wire, and each direction of a wire has two goroutines: one reads and decides what becomes of what it read,
// the other delivers that when it is due. Lock order: link.mu, wire.mu. Neither is held across I/O, but for closing.

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Link is a TCP address before another one: a [Server], a [Relay], or a real server, spoken to plainly or with TLS. It passes all
// bytes on, and does with them what networks do. What it is told holds for all of its connections, those there are and those to come,
// unless it says otherwise. It opens sockets, and so cannot be used in a bubble of testing/synctest.
type Link struct {
	addr string
	wg   sync.WaitGroup // every goroutine; each is started by one that is counted, or with closed false under mu

	mu     sync.Mutex
	ln     net.Listener
	target string
	wires  map[*wire]struct{}
	closed bool
	conduct
	thawed chan struct{} // closed when frozen ends
}

// conduct is how bytes are passed on.
type conduct struct {
	latency   time.Duration
	bandwidth int // bytes a second; 0: any number
	chunk     int
	frozen    bool
	black     bool // nothing arrives
	mute      bool // no reply arrives, but ends
}

// NewLink starts a link on 127.0.0.1 and a free port to "host:port" or the path of a unix socket. It panics if it cannot listen. While
// the target cannot be reached, connections are reset.
func NewLink(target string) *Link {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("batontest: " + err.Error())
	}
	l := &Link{addr: ln.Addr().String(), ln: ln, target: target, wires: map[*wire]struct{}{}}
	l.wg.Go(l.accept)
	return l
}

// Addr is where the link listens.
func (l *Link) Addr() string { return l.addr }

// Target has connections that are made from now on lead elsewhere, as when a name or a virtual address moves.
func (l *Link) Target(addr string) { l.change(func() { l.target = addr }) }

// Latency has what is read from now on arrive so much later, in each direction.
func (l *Link) Latency(d time.Duration) { l.change(func() { l.latency = d }) }

// Bandwidth limits each direction of each connection to so many bytes a second; 0 lifts that. About a second's worth waits within the
// link, and beyond it the sender feels it.
func (l *Link) Bandwidth(bytesPerSecond int) { l.change(func() { l.bandwidth = bytesPerSecond }) }

// Chunk writes n bytes at a time, in both directions; 0 ends that. The network may join what is written faster than it is read.
func (l *Link) Chunk(n int) { l.change(func() { l.chunk = n }) }

// Freeze says whether bytes stand still, as while packets are lost and sent again: connections are accepted and neither read nor
// written to, so that senders' buffers fill up. When it ends everything arrives.
func (l *Link) Freeze(on bool) {
	l.change(func() {
		switch {
		case on && !l.frozen:
			l.thawed = make(chan struct{})
		case !on && l.frozen:
			close(l.thawed)
		}
		l.frozen = on
	})
}

// Blackhole says whether all that is sent vanishes, the ends of connections as well; sockets stay open. A connection that has lost
// anything stays as it is for good, since no network goes on in the middle of a stream: when the black hole ends, new ones work, and
// those on which nothing was said.
func (l *Link) Blackhole(on bool) { l.change(func() { l.black = on }) }

// Mute says whether replies vanish: what clients send arrives and is carried out, and of what the target says nothing arrives but the
// connection's end. A connection that has lost a reply stays mute.
func (l *Link) Mute(on bool) { l.change(func() { l.mute = on }) }

func (l *Link) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// Reset ends all connections with a TCP reset, to both sides; what is under way is lost. New ones are accepted.
func (l *Link) Reset() {
	for _, w := range l.current() {
		w.end(true)
	}
}

// HalfClose ends the direction from the target to the client of all connections, as a server does that shuts its side down: the client
// reads the end of the stream, and what it sends still arrives. What the target says from then on vanishes.
func (l *Link) HalfClose() {
	for _, w := range l.current() {
		w.halfClose()
	}
}

// Conns is the number of connections that clients have not ended. In a black hole it counts them, too.
func (l *Link) Conns() (n int) {
	for _, w := range l.current() {
		if !w.left() {
			n++
		}
	}
	return n
}

// Close ends the link and its connections, and returns when no goroutine of it is left. Closing again does nothing.
func (l *Link) Close() {
	l.change(func() { l.closed = true })
	l.ln.Close()
	for _, w := range l.current() {
		w.end(false)
	}
	l.wg.Wait()
}

func (l *Link) current() (wires []*wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.wires {
		wires = append(wires, w)
	}
	return wires
}

func (l *Link) conductNow() conduct {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conduct
}

// accept ends when the listener is closed.
func (l *Link) accept() {
	for {
		client, err := l.ln.Accept()
		switch {
		case err == nil:
			l.admit(client)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(time.Millisecond) // out of descriptors: the connections' ends will mend it
		}
	}
}

func (l *Link) admit(client net.Conn) {
	if tcp, ok := client.(*net.TCPConn); ok {
		tcp.SetReadBuffer(64 << 10) // a frozen link is full soon: left alone, the kernel's buffer grows to megabytes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		client.Close()
		return
	}
	client.(*net.TCPConn).SetReadBuffer(linkBuffer)
	w := &wire{l: l, client: client, gone: make(chan struct{})}
	l.wires[w] = struct{}{}
	target := l.target
	l.wg.Go(func() { w.run(target) })
}

// A wire is one connection through a link.
type wire struct {
	l      *Link
	client net.Conn
	gone   chan struct{} // closed with over
	lossy  atomic.Int32  // directions in which something was lost: nothing arrives there any more

	mu         sync.Mutex
	server     net.Conn // nil until it is connected
	over       bool
	clientLeft bool
}

// run joins the client to the target and returns when both directions have ended.
func (w *wire) run(target string) {
	network := "tcp"
	if strings.Contains(target, "/") {
		network = "unix"
	}
	server, err := net.DialTimeout(network, target, dialTarget)
	if err == nil && w.joined(server) {
		var both sync.WaitGroup
		both.Go(func() { w.pump(w.client, server, false) })
		both.Go(func() { w.pump(server, w.client, true) })
		both.Wait()
	}
	w.end(err != nil)
	w.l.change(func() { delete(w.l.wires, w) })
}

func (w *wire) joined(server net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		server.Close()
		return false
	}
	w.server = server
	return true
}

// end closes both sides.
func (w *wire) end(reset bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.over, w.clientLeft = true, true
	close(w.gone)
	shut(w.client, reset)
	if w.server != nil {
		shut(w.server, reset)
	}
}

func (w *wire) left() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clientLeft
}

func (w *wire) halfClose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.server != nil && !w.over {
		closeWrite(w.client)
	}
}

func shut(c net.Conn, reset bool) {
	if tcp, is := c.(*net.TCPConn); is && reset {
		tcp.SetLinger(0)
	}
	c.Close()
}

func closeWrite(c net.Conn) { c.(interface{ CloseWrite() error }).CloseWrite() }

// A parcel is what one read brought.
type parcel struct {
	b   []byte
	due time.Time
	end error // how the stream ended behind it; nil: it goes on
}

const (
	linkBuffer   = 256 << 10 // what the kernel takes in for a client that is not read: without a limit it is up to dozens of MiB
	parcelSize   = 32 << 10
	parcelsAhead = 64                    // that wait to be delivered: beyond it nothing more is read
	parcelSpan   = 20 * time.Millisecond // of a limited bandwidth, so that it flows instead of coming in lumps
)

// pump reads one direction until it ends and hands it to a goroutine that delivers it; it returns when that has ended, too.
func (w *wire) pump(from, to net.Conn, replies bool) {
	parcels := make(chan parcel, parcelsAhead)
	var delivering sync.WaitGroup
	delivering.Go(func() { w.deliver(to, parcels) })
	defer delivering.Wait()
	defer close(parcels)
	buf := make([]byte, parcelSize)
	var last time.Time
	for lost, mute := false, false; ; {
		how := w.l.conductNow()
		n, err := from.Read(buf[:how.readSize()])
		if err != nil && !replies {
			w.mu.Lock()
			w.clientLeft = true
			w.mu.Unlock()
		}
		w.awaitThaw()
		how = w.l.conductNow()
		lossy := lost || mute
		lost, mute = lost || how.black, mute || how.mute && replies
		if !lossy && (lost || mute) {
			w.lossy.Add(1)
		}
		p := parcel{bytes.Clone(buf[:n]), how.due(n, &last), err}
		if mute {
			p.b = nil
		}
		if !lost {
			select {
			case parcels <- p:
			case <-w.gone:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *conduct) readSize() int {
	if c.bandwidth == 0 {
		return parcelSize
	}
	return min(max(int(float64(c.bandwidth)*parcelSpan.Seconds()), 1), parcelSize)
}

// due is when n bytes that were read now arrive, if those before arrive at last.
func (c *conduct) due(n int, last *time.Time) time.Time {
	at := time.Now().Add(c.latency)
	if at.Before(*last) {
		at = *last // nothing overtakes
	}
	if c.bandwidth > 0 {
		at = at.Add(time.Duration(float64(n) / float64(c.bandwidth) * float64(time.Second)))
	}
	*last = at
	return at
}

// deliver writes what arrives. What can no longer be written is dropped: how the connection ends is read on its other side.
func (w *wire) deliver(to net.Conn, parcels <-chan parcel) {
	for p := range parcels {
		if wait := time.Until(p.due); wait > 0 {
			w.sleep(wait)
		}
		w.awaitThaw()
		for err := error(nil); len(p.b) > 0 && err == nil; {
			n := len(p.b)
			if chunk := w.l.conductNow().chunk; chunk > 0 {
				n = min(n, chunk)
			}
			_, err = to.Write(p.b[:n])
			p.b = p.b[n:]
		}
		switch {
		case p.end == nil:
		case p.end == io.EOF:
			closeWrite(to)
		default: // a reset is passed on as one
			w.end(true)
		}
	}
}

func (w *wire) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.gone:
	}
}

// awaitThaw returns when bytes may flow, or the wire has ended.
func (w *wire) awaitThaw() {
	for {
		w.l.mu.Lock()
		frozen, thawed := w.l.frozen, w.l.thawed
		w.l.mu.Unlock()
		if !frozen {
			return
		}
		select {
		case <-thawed:
		case <-w.gone:
			return
		}
	}
}
