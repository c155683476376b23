package batontest

// What a Server and a Relay have in common: one address, its connections, and maintenance. A node accepts; each
// connection (peer) has one goroutine, which reads and runs serve. Whoever has something to send appends it to the
// peer's out-buffer, and one goroutine at a time writes that. Lock order: store.mu, node.mu, peer.mu. None is held across I/O.

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A site is what siblings share: one database, as several proxies announce and serve it.
type site struct {
	ids atomic.Int64 // of connections
	seq atomic.Int64 // the next sequence number

	mu     sync.Mutex       // a leaf: nothing is locked under it
	nodes  map[string]*node // by address
	closer []byte           // the last MIGRATED or FAILED_OVER frame, replayed to whoever opts in
}

func newSite() *site { return &site{nodes: map[string]*node{}} }

// A node is one address. It is embedded: its exported methods are those of Server and Relay.
type node struct {
	cfg    config
	site   *site
	addr   string
	ip     *net.TCPAddr // what connections in memory see as the address
	serve  func(*peer)  // runs on the connection's goroutine until the connection is to end
	frozen atomic.Bool  // advisory: says whether thawed is worth a look
	hooks  atomic.Pointer[map[string]hook]
	wg     sync.WaitGroup // every goroutine; each is started by one that is counted, or with closed false under mu

	mu      sync.Mutex
	ln      net.Listener // nil in memory, and while connections are refused
	peers   map[*peer]struct{}
	refuse  bool
	stall   bool
	closed  bool
	thawed  chan struct{} // closed when frozen ends
	moving  *move         // the latest
	windows map[*move]*time.Timer
}

// A hook changes what becomes of one command. It is never modified.
type hook struct {
	delay time.Duration
	raw   string // the answer, whatever the command; "": its own
	deny  bool
}

// A move is an announced window. It is never modified.
type move struct {
	named, unnamed []byte // the frame, for those who asked for a name and those who did not
	until          time.Time
}

func newNode(cfg config, s *site, serve func(*peer)) *node {
	n := &node{cfg: cfg, site: s, serve: serve, peers: map[*peer]struct{}{}, windows: map[*move]*time.Timer{}}
	hooks := maps.Clone(cfg.hooks)
	n.hooks.Store(&hooks)
	n.refuse, n.stall = cfg.refuse, cfg.stall
	return n
}

// siblingConfig is n's configuration for another address.
func (n *node) siblingConfig(opts []Option) config {
	c := n.cfg
	c.addr, c.users = "", nil // users are the database's
	return configure(c, opts)
}

// start takes the address. Connections come from then on.
func (n *node) start() {
	if n.cfg.inMemory {
		n.ip = madeUpAddr(serverNet)
		n.addr = cmp.Or(n.cfg.addr, n.ip.String())
		if ip := parseIPAddr(n.addr); ip != nil {
			n.ip = ip
		}
	} else {
		addr := n.cfg.addr
		if addr == "" && !n.cfg.unix {
			addr = "127.0.0.1:0"
		}
		n.listen(addr)
	}
	n.site.mu.Lock()
	defer n.site.mu.Unlock()
	n.site.nodes[n.addr] = n
}

// parseIPAddr returns nil for what would have to be looked up.
func parseIPAddr(addr string) *net.TCPAddr {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil
	}
	return net.TCPAddrFromAddrPort(ap)
}

func (n *node) network() string {
	if n.cfg.unix {
		return "unix"
	}
	return "tcp"
}

// listen opens the socket for the first time, which fixes the address.
func (n *node) listen(addr string) {
	ln, err := net.Listen(n.network(), addr)
	if err != nil {
		panic("batontest: " + err.Error())
	}
	n.addr = ln.Addr().String()
	n.ip, _ = ln.Addr().(*net.TCPAddr)
	if n.ip == nil {
		n.ip = madeUpAddr(serverNet)
	}
	if n.refuse {
		ln.Close()
		return
	}
	n.ln = ln
	n.wg.Go(func() { n.acceptFrom(ln) })
}

// acceptFrom ends when ln is closed.
func (n *node) acceptFrom(ln net.Listener) {
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) // out of descriptors: the connections' ends will mend it
			continue
		}
		if !n.accept(nc) {
			nc.Close()
		}
	}
}

// accept takes a connection, unless connections are refused.
func (n *node) accept(nc net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.refuse {
		return false
	}
	p := &peer{node: n, id: n.site.ids.Add(1), raw: nc, nc: nc, gone: make(chan struct{})}
	p.sent.L = &p.mu
	n.peers[p] = struct{}{}
	if n.stall {
		n.wg.Go(func() {
			io.Copy(io.Discard, nc)
			p.kill(false)
			n.forget(p)
		})
		return true
	}
	if n.cfg.tls != nil {
		p.nc = tls.Server(nc, n.cfg.tls)
	}
	n.wg.Go(func() {
		if n.awaitThaw(p) {
			p.push([]byte(n.cfg.greeting))
			n.serve(p)
		}
		p.finish()
		<-p.gone
		n.forget(p)
	})
	return true
}

func (n *node) forget(p *peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.peers, p)
}

// Dial connects in memory to this address or a sibling's, whether or not that also listens on a socket. It fits
// baton's Options.Dialer. The connection is one end of a [Pipe], and its RemoteAddr is the *net.TCPAddr of addr. Unknown,
// closed and refusing addresses give a *net.OpError of ECONNREFUSED.
func (n *node) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	fail := func(a net.Addr, err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: a, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(nil, err)
	}
	n.site.mu.Lock()
	to := n.site.nodes[addr]
	n.site.mu.Unlock()
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	if to == nil {
		if ip := parseIPAddr(addr); ip != nil {
			return fail(ip, refused)
		}
		return fail(nil, refused)
	}
	client, server := newPipe(madeUpAddr(clientNet), to.ip)
	client.maxRead = to.cfg.chunk
	if !to.accept(server) {
		return fail(to.ip, refused)
	}
	return client, nil
}

// Addr is the address: "IP:port", or the path of a unix socket.
func (n *node) Addr() string { return n.addr }

// NextSeq takes the next sequence number of the database, for use with Push. The first is 0.
func (n *node) NextSeq() int64 { return n.site.seq.Add(1) - 1 }

// Move announces that this address moves: MOVING, with the next sequence number, to every connection that opted in, and
// again, with the same number and the full time, right behind the +OK to each that opts in while the window is open. When it
// is over (and CloseAfter has passed, too) every connection to this address is closed, those that never opted in as well.
// The time announced is window in whole seconds, rounded up. The successor is announced as it stands; "" announces
// none, and so does a connection's opt-in without an endpoint type or with "none". New connections are accepted all along.
// Moving again while a window is open announces the new move; at the end of each the connections are closed.
func (n *node) Move(successor string, window time.Duration) {
	seq, secs := n.NextSeq(), (window+time.Second-1)/time.Second
	m := &move{unnamed: appendPush(nil, []any{"MOVING", seq, int(secs), nil}), until: time.Now().Add(window)}
	m.named = m.unnamed
	if successor != "" {
		m.named = appendPush(nil, []any{"MOVING", seq, int(secs), successor})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	n.moving = m
	for _, p := range n.optedLocked() {
		p.push(m.frame(p))
	}
	n.windows[m] = time.AfterFunc(window+n.cfg.closeAfter, func() { n.endWindow(m) })
}

// endWindow closes what is connected, as a process does that sends its last bytes first; who does not read them is cut.
func (n *node) endWindow(m *move) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	closing := slices.Collect(maps.Keys(n.peers))
	for _, p := range closing {
		p.finish()
	}
	n.windows[m] = time.AfterFunc(lastBytes, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.windows, m)
		for _, p := range closing {
			p.kill(false)
		}
	})
}

func (m *move) frame(p *peer) []byte {
	if p.named {
		return m.named
	}
	return m.unnamed
}

// Push sends a push frame to every connection that opted in: strings and []byte as bulk strings, integers, nil, floats, booleans, and
// []any or []string as arrays. The last MIGRATED or FAILED_OVER is remembered and replayed, at this address and its
// siblings, to every connection that opts in later, right behind the +OK and ahead of a MOVING.
func (n *node) Push(frame ...any) {
	b := appendPush(nil, frame)
	if kind, _ := frame[0].(string); strings.EqualFold(kind, "MIGRATED") || strings.EqualFold(kind, "FAILED_OVER") {
		n.site.mu.Lock()
		n.site.closer = b
		n.site.mu.Unlock()
	}
	n.PushRaw(b)
}

// PushRaw sends bytes, well formed or not, to every connection that opted in, between two replies.
func (n *node) PushRaw(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.optedLocked() {
		p.push(b)
	}
}

// optedLocked is in the order in which they connected.
func (n *node) optedLocked() []*peer {
	var opted []*peer
	for p := range n.peers {
		if p.opted && p.alive() {
			opted = append(opted, p)
		}
	}
	slices.SortFunc(opted, func(a, b *peer) int { return cmp.Compare(a.id, b.id) })
	return opted
}

// optIn carries out CLIENT MAINT_NOTIFICATIONS args and answers it. It does both in one step, so that nothing is
// announced ahead of the +OK or missed behind it. Protocol 2 cannot be told anything: the +OK is all it gets.
func (n *node) optIn(p *peer, args []string, proto int) {
	on, named, problem := parseOptIn(args)
	if problem = cmp.Or(n.cfg.refuseOptIn, problem); problem != "" {
		p.push([]byte("-" + problem + "\r\n"))
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p.opted, p.named = on && proto == 3, named
	reply := []byte("+OK\r\n")
	if p.opted {
		n.site.mu.Lock()
		reply = append(reply, n.site.closer...)
		n.site.mu.Unlock()
		if n.moving != nil && time.Now().Before(n.moving.until) {
			reply = append(reply, n.moving.frame(p)...)
		}
	}
	p.push(reply)
}

func parseOptIn(args []string) (on, named bool, problem string) {
	if len(args) > 0 && strings.EqualFold(args[0], "OFF") {
		return false, false, ""
	}
	if len(args) == 0 || !strings.EqualFold(args[0], "ON") || len(args)%2 == 0 {
		return false, false, "ERR syntax error"
	}
	for i := 1; i < len(args); i += 2 {
		kind := strings.ToLower(args[i+1])
		if !strings.EqualFold(args[i], "moving-endpoint-type") ||
			!slices.Contains([]string{"internal-ip", "internal-fqdn", "external-ip", "external-fqdn", "none"}, kind) {
			return false, false, "ERR syntax error"
		}
		named = kind != "none"
	}
	return true, named, ""
}

// optOut is for connections that return to protocol 2.
func (n *node) optOut(p *peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.opted = false
}

// Delay makes the answer to a command late by d, from the next one on; 0 ends that. The command is carried out at once, only its
// reply waits, and with it the later commands of that connection. Other connections, announcements and Close are not
// delayed. A subcommand is named like this: "client maint_notifications", which takes effect with its reply.
func (n *node) Delay(command string, d time.Duration) {
	n.setHook(command, func(h *hook) { h.delay = d })
}

// SetRespond has a command answered with these bytes, whatever it is, in place of carrying it out; "" ends that.
func (n *node) SetRespond(command, raw string) {
	n.setHook(command, func(h *hook) { h.raw = raw })
}

// hookFor returns the hook of a subcommand, else that of the command.
func (n *node) hookFor(args [][]byte) hook {
	hooks := *n.hooks.Load()
	if len(hooks) == 0 {
		return hook{}
	}
	name, _ := resolve(args)
	if h, ok := hooks[name]; ok {
		return h
	}
	base, _, _ := strings.Cut(name, " ")
	return hooks[base]
}

func noPermission(name string) string {
	return "-NOPERM this user has no permissions to run the '" + strings.ReplaceAll(name, " ", "|") + "' command\r\n"
}

func (n *node) setHook(command string, change func(*hook)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	hooks := maps.Clone(*n.hooks.Load())
	setHook(&hooks, command, change)
	n.hooks.Store(&hooks)
}

func setHook(hooks *map[string]hook, command string, change func(*hook)) {
	name := strings.ToLower(command)
	if *hooks == nil {
		*hooks = map[string]hook{}
	}
	h := (*hooks)[name]
	change(&h)
	(*hooks)[name] = h
	if h == (hook{}) {
		delete(*hooks, name)
	}
}

// Cut resets all connections at once. New ones are accepted.
func (n *node) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.killLocked(true)
}

func (n *node) killLocked(reset bool) {
	for p := range n.peers {
		p.kill(reset)
	}
}

// Refuse says whether new connections are refused, as if nobody listened. Existing ones are not affected.
func (n *node) Refuse(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = on
	switch {
	case n.closed || n.cfg.inMemory:
	case on && n.ln != nil:
		n.ln.Close()
		n.ln = nil
	case !on && n.ln == nil:
		n.ln = relisten(n.network(), n.addr)
		ln := n.ln
		n.wg.Go(func() { n.acceptFrom(ln) })
	}
}

// relisten is patient: the port may be a connection's own for a moment.
func relisten(network, addr string) net.Listener {
	for try := 0; ; try++ {
		ln, err := net.Listen(network, addr)
		if err == nil {
			return ln
		}
		if try == 100 {
			panic("batontest: " + err.Error())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Stall says whether connections are accepted and then never answered, not even their TLS handshake. It is decided
// when they are made, for good: existing ones are not affected.
func (n *node) Stall(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stall = on
}

// Freeze says whether this address stands still, as a process does after SIGSTOP: connections, existing or new, are
// neither read nor answered until it is thawed, and then everything is. What is announced meanwhile is sent then, but windows end on time.
func (n *node) Freeze(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if on == n.frozen.Load() {
		return
	}
	if on {
		n.thawed = make(chan struct{})
	} else {
		close(n.thawed)
	}
	n.frozen.Store(on)
}

// awaitThaw reports false if the connection has ended.
func (n *node) awaitThaw(p *peer) bool {
	for n.frozen.Load() {
		n.mu.Lock()
		thawed := n.thawed
		n.mu.Unlock()
		select {
		case <-thawed:
		case <-p.gone:
			return false
		}
	}
	return true
}

// Conns is the number of connections.
func (n *node) Conns() int { return n.count(func(*peer) bool { return true }) }

// OptedIn is the number of connections that are told of maintenance.
func (n *node) OptedIn() int { return n.count(func(p *peer) bool { return p.opted }) }

func (n *node) count(f func(*peer) bool) (k int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for p := range n.peers {
		if f(p) && p.alive() {
			k++
		}
	}
	return k
}

// Close closes this address and its connections, and returns when no goroutine of it is left. Siblings live on, and so does
// the data. Closing again does nothing.
func (n *node) Close() {
	n.mu.Lock()
	n.closed = true
	if n.ln != nil {
		n.ln.Close()
		n.ln = nil
	}
	for m, timer := range n.windows {
		timer.Stop()
		delete(n.windows, m)
	}
	n.killLocked(false)
	n.mu.Unlock()
	n.wg.Wait()
}

const (
	lastBytes  = 10 * time.Millisecond  // beyond the window, for what has been answered and not yet sent
	inlineSend = 100 * time.Millisecond // how long the reading goroutine may be kept by a client that does not read
	readSize   = 32 << 10
	maxAhead   = 1 << 20 // bytes read beyond a command that waits
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
	slow     bool   // an inline send met its deadline: until out is empty nobody sends inline
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

// flush sends what waits, on the connection's goroutine if that is quick. A client that does not read must not keep it from
// reading: some write everything before they read anything. After inlineSend a goroutine takes over.
func (p *peer) flush() {
	if p.raw != p.nc { // TLS: a write that met its deadline could not be continued
		p.kick()
		return
	}
	p.mu.Lock()
	inline := !p.sending && !p.slow && !p.dead && len(p.out) > 0
	if inline {
		p.sending = true
	}
	p.mu.Unlock()
	if inline {
		p.send(true)
	}
}

// send is called with sending set, and clears it. With inline set it may hand over to a goroutine.
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
		if inline && errors.Is(err, os.ErrDeadlineExceeded) {
			p.out = append(b[n:], p.out...)
			p.slow = true
			p.node.wg.Go(func() { p.send(false) })
			return
		}
		if err != nil {
			p.killLocked(err == errDropped)
		}
		p.spare = b
		if cap(b) > 1<<20 {
			p.spare = nil
		}
	}
	p.sending, p.slow = false, false
	if p.closing && !p.dead {
		if p.nc != p.raw {
			p.node.wg.Go(func() { // the close_notify may block
				p.nc.Close()
				p.kill(false)
			})
			p.sending = true
			return
		}
		p.killLocked(false)
	}
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
		if len(p.buf) > 1<<20 {
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
