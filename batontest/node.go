package batontest

// What a Server and a Relay have in common: one address, its connections, maintenance and faults. A node accepts, and runs
// serve on a goroutine for each connection. It knows nothing of commands, except for the opt-in. Lock order: store.mu or
// link.mu, node.mu, peer.mu. None is held across I/O.

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
	m := &move{unnamed: appendValue(nil, 3, push{"MOVING", seq, int(secs), nil}), until: time.Now().Add(window)}
	m.named = m.unnamed
	if successor != "" {
		m.named = appendValue(nil, 3, push{"MOVING", seq, int(secs), successor})
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
	b := appendValue(nil, 3, push(frame))
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
// delayed. A subcommand is named like this: "client maint_notifications", which takes effect with its reply. So does a
// SUBSCRIBE of whatever kind, since no message comes ahead of its confirmation.
func (n *node) Delay(command string, d time.Duration) {
	n.setHook(command, func(h *hook) { h.delay = d })
}

// SetRespond has a command answered with these bytes, whatever it is, in place of carrying it out; "" ends that.
func (n *node) SetRespond(command, raw string) {
	n.setHook(command, func(h *hook) { h.raw = raw })
}

// hookFor returns the hook of a subcommand, else that of the command.
func (n *node) hookFor(name string) hook {
	hooks := *n.hooks.Load()
	if len(hooks) == 0 {
		return hook{}
	}
	if h, found := hooks[name]; found {
		return h
	}
	base, _, _ := strings.Cut(name, " ")
	return hooks[base]
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
