package baton

// The world of the simulation: servers with one database, and the connections to them, in virtual time. Everything in it happens under one
// lock, on whichever goroutine brings it about: a client's write, or the timer of a byte under way. What the script says goes wrong goes
// wrong here. The world writes down what it saw: which bytes were accepted where, what was executed, and how each connection ended. It
// knows nothing of the client.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"example.com/baton/batontest"
)

// simNode is one address of the database. What is wrong with it is counted, since troubles may overlap.
type simNode struct {
	id        int
	addr      string
	troubles  [simTroubles]int
	delay     time.Duration // of each command
	late      bool          // the delay comes before the execution, not behind it
	announced []*simMove    // windows that are open
	parting   [][]byte      // closing frames that are replayed to whoever opts in
}

// simTrouble is a state of a node that is not as it should be.
type simTrouble uint8

const (
	simRefuses    simTrouble = iota // dials are refused
	simStalls                       // connections are accepted and nothing is ever said on them
	simFrozen                       // nothing is read, executed or sent
	simLoading                      // commands are refused with LOADING
	simReadOnly                     // writes are refused with READONLY
	simMasterDown                   // reads are refused with MASTERDOWN
	simSlow                         // each command takes a while
	simTroubles
)

var simTroubleNames = [simTroubles]string{"refuses dials", "stalls new connections", "is frozen", "is loading", "is read-only", "has no master", "is slow"}

// simMove is a MOVING whose window is open.
type simMove struct {
	frame  []byte
	until  time.Duration
	repeat bool // to whoever opts in meanwhile
}

// simEnding is how the world ends a connection.
type simEnding uint8

const (
	simAlive   simEnding = iota
	simReset             // at once: what is under way either way is lost
	simClosed            // what the server has said arrives; what it is told is lost
	simHalf              // the same, but it goes on executing
	simHole              // nothing arrives any more, either way, and nobody is told
	simStill             // it was accepted by a server that stalls: nothing ever happens on it
	simEndings           // how many there are
)

var simEndingNames = [simEndings]string{"alive", "reset", "closed", "half-closed", "cut off silently", "stalled"}

const simBuffer = 128 << 10 // that a socket holds, with what is under way: a lone caller's 16 KiB never wait

// simTouch is a place at which bytes of a command were accepted.
type simTouch struct {
	conn  *simConn
	at    time.Duration // of the first
	order int           // among all commands of the connection
	whole bool          // all of its bytes were
}

// simExecution is a command that a server has carried out.
type simExecution struct {
	at    time.Duration
	conn  *simConn
	token string
	name  string
	reply string // as simText writes it
	tx    int    // the number of its transaction; 0: none

	outsized bool // the reply is more than the client takes
}

// simCommand is a command that a server was sent.
type simCommand struct {
	args       []string
	begin, end int64
}

// simPiece is what arrives at a client at a time.
type simPiece struct {
	data []byte
	at   time.Duration
}

// simConn is one connection. Its methods are the client's end; all fields are guarded by the world's lock.
type simConn struct {
	w                       *simWorld
	id                      int
	node                    *simNode
	link                    *simLink
	dialled, opened, ponged time.Duration // the dial began, and was over, and the handshake was, but for the way of the PONG; 0: not yet
	wakes                   sync.Cond

	accepted, arrived, consumed int64         // bytes: taken from the client, come to the server, and used by it
	begunAt                     time.Duration // when the first byte of what is in buf was taken
	buf                         []byte
	commands                    []simCommand
	count                       int                // commands accepted
	last                        string             // the name of the last of them
	writes                      [][2]time.Duration // from when to when those took that were not done at once

	down      []simPiece
	sent      int64         // bytes that the server has said
	lastAt    time.Duration // when the last of them arrives
	frozen    []byte        // what it would have said
	due       func()        // carries out what has been delayed for long enough
	readErr   error         // behind what has arrived
	readErrAt time.Duration
	reads     int
	tapped    bool // a read deadline has passed

	ending   simEnding
	endedAt  time.Duration
	why      string // it ended
	window   bool   // because its node's window was over
	deaf     bool   // the server does not execute any more
	void     int    // writes since nobody listens
	closedAt time.Duration
	closed   bool // by the client
	lastRead time.Duration
	mended   time.Duration // what had been cut off silently was reset; 0: it was not

	// The server's state of it.
	user     string // who has said who it is; empty: nobody has to, or has
	name     string
	told     string        // which endpoints it shall name
	lacks    string        // what the handshake should have brought about, and had not when it was over
	moved    time.Duration // when MOVING had arrived on it first; 0: it has not
	outsized bool          // it has said more in one reply than the client takes
	protocol int
	opted    bool
	db       int
	busy     bool
	waiting  *simCommand // a blocking command
	expires  *time.Timer
	multi    []simCommand
	queueing bool
	aborted  bool // a command was refused when it was queued
	watches  map[string]bool
	dirty    bool
	subs     map[string]bool // "" kind + ":" + name
	everSub  bool
}

// simWorld is all of it.
type simWorld struct {
	s     *simScript
	began time.Time

	mu         sync.Mutex
	nodes      []*simNode
	conns      []*simConn
	executions []simExecution
	touched    map[string][]simTouch
	values     map[string]string
	lists      map[string][]string
	published  []simPublished
	dials      []simDial
	transactns int
	blocked    []*simConn      // blocking commands, first come first served
	hosts      []int           // the nodes that the name stands for
	asked      int             // how often Credentials was
	passwords  map[string]bool // that it gave, and that nobody has used
	calm       bool            // no link ends any more
	swift      bool            // no link is slow to take what is written any more
}

// simPublished is a message, in the one order of all.
type simPublished struct {
	at                     time.Duration
	kind, channel, payload string // kind is "" or "s"
}

// simDial is an attempt to connect.
type simDial struct {
	at, over time.Duration
	addr     string
	err      error
}

func newSimWorld(s *simScript) *simWorld {
	w := &simWorld{s: s, began: time.Now(), touched: map[string][]simTouch{}, values: map[string]string{}, lists: map[string][]string{}, hosts: []int{0}, passwords: map[string]bool{}}
	for i := range simNodes {
		w.nodes = append(w.nodes, &simNode{id: i, addr: simAddr(i)})
	}
	return w
}

const simNodes = 3

func simAddr(i int) string { return "10.1.0." + strconv.Itoa(i+1) + ":6379" }

// now is the time since the scenario began.
func (w *simWorld) now() time.Duration { return time.Since(w.began) }

// do is something that happens in the world.
func (w *simWorld) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// after has something happen in a while; at once, if that is no time.
func (w *simWorld) afterLocked(d time.Duration, f func()) {
	if d <= 0 {
		f()
		return
	}
	time.AfterFunc(d, func() { w.do(f) })
}

// --- dialling ---

// dial fits Options.Dialer.
func (w *simWorld) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	n := len(w.dials)
	w.dials = append(w.dials, simDial{at: w.now(), addr: addr})
	link := &w.s.links[n%len(w.s.links)]
	w.mu.Unlock()
	nc, err := w.connect(ctx, addr, link, w.now())
	w.mu.Lock()
	w.dials[n].over, w.dials[n].err = w.now(), err
	w.mu.Unlock()
	return nc, err
}

func (w *simWorld) connect(ctx context.Context, addr string, link *simLink, from time.Duration) (net.Conn, error) {
	select {
	case <-time.After(link.dial):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	i := slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.addr == addr })
	if i < 0 && addr == simDeadAddr { // packets to it are lost
		<-ctx.Done()
		return nil, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if i < 0 || w.nodes[i].troubles[simRefuses] > 0 {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	c := &simConn{w: w, id: len(w.conns), node: w.nodes[i], link: link, dialled: from, opened: w.now(), protocol: 2, subs: map[string]bool{}, watches: map[string]bool{}}
	c.wakes.L = &w.mu
	c.lastRead = c.opened
	w.conns = append(w.conns, c)
	if c.node.troubles[simStalls] > 0 {
		c.endLocked(simStill, "its node stalls")
	}
	if w.s.opts.TLS {
		return c.secured(), nil
	} else if link.socket {
		return simSocket{c}, nil
	}
	return c, nil
}

// --- TLS ---

var simCertificate, simRoots = batontest.SelfSigned(simHost, "10.1.0.1", "10.1.0.2", "10.1.0.3")

// simSecured is the client's end of a connection with TLS. What is in it is spoken to a connection as any other, which sees the plain text and
// has the faults: so a cut falls behind a record that the client knows to be written, and at the end of one that it reads. Handshakes take no
// time; who stalls, stalls before them.
type simSecured struct {
	net.Conn // records, to and from whoever decodes them
	plain    *simConn
}

func (c *simConn) secured() net.Conn {
	client, server := net.Pipe()
	config := &tls.Config{Certificates: []tls.Certificate{simCertificate}, SessionTicketsDisabled: true} // a pipe has no room for tickets
	go c.decode(server, tls.Server(server, config))
	if c.link.socket {
		return simSecuredSocket{simSecured{client, c}}
	}
	return simSecured{client, c}
}

// simSecuredSocket is as simSocket.
type simSecuredSocket struct{ simSecured }

func (simSecuredSocket) SyscallConn() (syscall.RawConn, error) { return nil, syscall.ENOTSUP }

func (s simSecured) RemoteAddr() net.Addr { return s.plain.RemoteAddr() }

func (s simSecured) SetReadDeadline(t time.Time) error {
	if s.plain.link.timeless {
		return os.ErrNoDeadline
	}
	return s.Conn.SetReadDeadline(t)
}

func (s simSecured) Close() error {
	s.plain.Close()
	return s.Conn.Close()
}

// decode is the server's end of TLS. What ends the connection behind it ends the pipe; an end without a fault is told before.
func (c *simConn) decode(pipe net.Conn, records *tls.Conn) {
	c.w.mu.Lock()
	for c.ending == simStill && !c.closed {
		c.wakes.Wait()
	}
	c.w.mu.Unlock()
	go func() {
		io.Copy(c, records)
		pipe.Close()
	}()
	if _, err := io.Copy(records, c); err == nil {
		records.CloseWrite()
	} else {
		pipe.Close()
	}
}

// --- who is who ---

const simSecret = "not-to-be-told"

// credentials fits Options.Credentials.
func (w *simWorld) credentials(ctx context.Context) (username, password string, err error) {
	select {
	case <-time.After(w.s.opts.CredentialsTake):
	case <-ctx.Done():
		return "", "", ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	if often := w.s.opts.CredentialsFail; often > 0 && w.asked%often == 0 && !w.calm {
		return "", "", errors.New("no credentials today")
	}
	password = simSecret + strconv.Itoa(w.asked)
	w.passwords[password] = true
	return "someone", password, nil
}

// mustServeLocked says that all is well again, and that a client which insists on notifications has nobody else to connect to.
func (c *simConn) mustServeLocked() bool { return c.w.calm && c.w.s.opts.Mode == Enabled }

// authenticateLocked is AUTH, or what HELLO says of it.
func (c *simConn) authenticateLocked(user, password string) *ServerError {
	known := false
	switch c.w.s.opts.Auth {
	case simPassword:
		known = user == "default" && password == simSecret
	case simUser:
		known = user == "someone" && password == simSecret
	case simRotating:
		known = user == "someone" && c.w.passwords[password]
		delete(c.w.passwords, password)
	}
	if !known {
		return &ServerError{"WRONGPASS", "invalid username-password pair or user is disabled."}
	}
	c.user = user
	return nil
}

// lackingLocked is what a client has left undone when its handshake ends.
func (c *simConn) lackingLocked() string {
	o := &c.w.s.opts
	types := map[EndpointType]string{EndpointAuto: "internal-ip", EndpointInternalIP: "internal-ip", EndpointInternalFQDN: "internal-fqdn",
		EndpointExternalIP: "external-ip", EndpointExternalFQDN: "external-fqdn", EndpointNone: "none"}
	if o.TLS { // a name is what a certificate is for
		types[EndpointAuto] = "internal-fqdn"
	}
	asks := o.Mode != Disabled && c.protocol == 3
	switch {
	case o.Auth != simNobody && c.user == "":
		return "AUTH"
	case c.db != o.DB:
		return "SELECT"
	case c.name != o.ClientName:
		return "SETNAME"
	case o.Mode == Enabled && !c.opted:
		return "the mode"
	case asks && c.told != types[o.EndpointType]:
		return "the endpoint type"
	}
	return ""
}

// simSocket counts as a socket, whose buffer takes what a caller writes by itself.
type simSocket struct{ *simConn }

func (simSocket) SyscallConn() (syscall.RawConn, error) { return nil, syscall.ENOTSUP }

func (c *simConn) LocalAddr() net.Addr { return nil }

func (c *simConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(10, 1, 0, byte(c.node.id+1)), Port: 6379}
}

// --- names ---

const simHost = "db.simulation.test"

func (w *simWorld) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return &simNames{w: w}, nil }}
}

// simNames is a connection to a DNS server, as over TCP. Every question is answered at once.
type simNames struct {
	net.Conn
	w       *simWorld
	answers bytes.Buffer
}

func (n *simNames) Close() error                { return nil }
func (n *simNames) SetDeadline(time.Time) error { return nil }

func (n *simNames) Read(b []byte) (int, error) { return n.answers.Read(b) }

func (n *simNames) Write(b []byte) (int, error) {
	var q dnsmessage.Message
	if err := q.Unpack(b[2:]); err != nil { // behind the length
		return 0, err
	}
	n.w.mu.Lock()
	hosts := n.w.hosts
	n.w.mu.Unlock()
	asked := q.Questions[0]
	q.Response, q.Authoritative, q.Additionals = true, true, nil
	if len(hosts) == 0 || asked.Name.String() != simHost+"." {
		q.RCode = dnsmessage.RCodeNameError
	}
	for _, h := range hosts {
		if q.RCode == dnsmessage.RCodeSuccess && asked.Type == dnsmessage.TypeA {
			q.Answers = append(q.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: asked.Name, Type: asked.Type, Class: asked.Class, TTL: 5},
				Body: &dnsmessage.AResource{A: [4]byte{10, 1, 0, byte(h + 1)}}})
		}
	}
	packed, err := q.Pack()
	n.answers.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...))
	return len(b), err
}

// --- the client's end ---

var errSimReset, errSimPipe = os.NewSyscallError("connection", syscall.ECONNRESET), os.NewSyscallError("write", syscall.EPIPE)

func (c *simConn) Write(b []byte) (n int, err error) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.writes = append(c.writes, [2]time.Duration{c.w.now(), simForever})
	defer func() {
		if last := &c.writes[len(c.writes)-1]; n == len(b) && last[0] == c.w.now() {
			c.writes = c.writes[:len(c.writes)-1]
		} else {
			last[1] = c.w.now()
		}
	}()
	for {
		switch {
		case c.closed:
			return n, net.ErrClosed
		case c.ending == simReset:
			return n, errSimReset
		case c.ending == simClosed && c.void > 0:
			return n, errSimPipe
		case n == len(b):
			if c.ending == simClosed {
				c.void++
			}
			return n, nil
		}
		take := min(len(b)-n, simBuffer-int(c.accepted-c.consumed))
		if limit := c.link.cutUp; limit > 0 && c.ending == simAlive && !c.w.calm {
			take = min(take, limit-int(c.accepted))
		}
		if c.link.writeMax > 0 {
			take = min(take, c.link.writeMax)
		}
		if take > 0 {
			c.acceptLocked(b[n : n+take])
			n += take
			if c.link.writePause > 0 && !c.link.socket && c.ponged > 0 && n < len(b) {
				c.pauseLocked()
			}
		}
		if limit := c.link.cutUp; limit > 0 && c.accepted == int64(limit) && c.ending == simAlive && !c.w.calm {
			c.endLocked(c.link.cutBy, fmt.Sprintf("byte %d was written", limit))
		}
		if take == 0 && c.ending != simReset && !c.closed {
			c.wakes.Wait()
		}
	}
}

// pauseLocked waits before more is taken, which the end of the connection ends.
func (c *simConn) pauseLocked() {
	until := c.w.now() + c.link.writePause
	c.wakeAtLocked(until)
	for c.w.now() < until && !c.w.swift && !c.closed && c.ending != simReset {
		c.wakes.Wait()
	}
}

// acceptLocked takes bytes from the client.
func (c *simConn) acceptLocked(b []byte) {
	if c.accepted += int64(len(b)); len(c.buf) == 0 {
		c.begunAt = c.w.now()
	}
	c.buf = append(c.buf, b...)
	for {
		args, n := simParse(c.buf)
		if n == 0 {
			break
		}
		end := c.accepted - int64(len(c.buf)-n)
		cmd := simCommand{args, end - int64(n), end}
		if token := cmd.token(); token != "" {
			c.w.touched[token] = append(c.w.touched[token], simTouch{c, c.begunAt, c.count, true})
		}
		c.commands, c.count, c.last = append(c.commands, cmd), c.count+1, cmd.args[0]
		c.buf, c.begunAt = c.buf[n:], c.w.now()
	}
	if c.ending == simClosed || c.ending == simStill || c.ending == simHole {
		if c.ending == simClosed {
			c.consumed = c.accepted
		}
		return
	}
	upTo := c.accepted
	c.w.afterLocked(c.link.up, func() {
		if c.ending != simReset && c.ending != simClosed && c.ending != simHole {
			c.arrived = max(c.arrived, upTo)
			c.serveLocked()
		}
	})
}

// simParse reads a command from the beginning of b: n is 0 if it is not complete.
func simParse(b []byte) (args []string, n int) {
	number := func(tag byte) (int, bool) {
		line := bytes.IndexByte(b[n:], '\n')
		if line < 0 {
			return 0, false
		}
		v := 0
		for _, d := range b[n+1 : n+line-1] {
			v = v*10 + int(d-'0')
		}
		if b[n] != tag {
			panic(fmt.Sprintf("simulation: the client wrote %.40q where %q was due", b[n:], tag))
		}
		n += line + 1
		return v, true
	}
	words, ok := number('*')
	for ; ok && words > 0; words-- {
		size := 0
		if size, ok = number('$'); ok {
			if ok = n+size+2 <= len(b); ok {
				args = append(args, string(b[n:n+size]))
				n += size + 2
			}
		}
	}
	if !ok {
		return nil, 0
	}
	return args, n
}

// token is what tells a command of a call from all others; that of a large one is followed by what makes it large.
func (cmd *simCommand) token() string {
	for _, a := range cmd.args[1:] {
		if strings.HasPrefix(a, "~") {
			token, _, _ := strings.Cut(a, "|")
			return token
		}
	}
	return ""
}

func (c *simConn) Read(b []byte) (int, error) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for {
		t := c.w.now()
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.tapped:
			return 0, os.ErrDeadlineExceeded
		case len(c.down) > 0 && c.down[0].at <= t:
			limit := len(b)
			if c.reads < simPieces && len(c.link.pieces) > 0 {
				limit = min(limit, c.link.pieces[c.reads%len(c.link.pieces)])
			}
			c.reads++
			n := 0
			for n < limit && len(c.down) > 0 && c.down[0].at <= t {
				k := copy(b[n:limit], c.down[0].data)
				if n += k; k == len(c.down[0].data) {
					c.down = c.down[1:]
				} else {
					c.down[0].data = c.down[0].data[k:]
				}
			}
			c.lastRead = t
			return n, nil
		case len(c.down) == 0 && c.readErr != nil && c.readErrAt <= t:
			return 0, c.readErr
		}
		c.wakes.Wait()
	}
}

const simPieces = 300 // so many reads of a connection are as small as its link says: to read a large reply byte by byte takes long

func (c *simConn) Close() error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed, c.closedAt, c.down = true, c.w.now(), nil
	c.wakes.Broadcast()
	c.w.afterLocked(c.link.up, func() { // then the server knows; what has come before is executed still, but for what waits
		c.w.forgetLocked(c)
		clear(c.subs)
		c.opted = false
		c.serveLocked()
	})
	return nil
}

// SetReadDeadline knows the two that baton sets: one that has passed, and none.
func (c *simConn) SetReadDeadline(t time.Time) error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	if c.link.timeless {
		return os.ErrNoDeadline
	}
	c.tapped = !t.IsZero()
	c.wakes.Broadcast()
	return nil
}

func (c *simConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *simConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// --- the server's end ---

// saysLocked sends bytes to the client.
func (c *simConn) saysLocked(raw []byte) {
	switch {
	case c.node.troubles[simFrozen] > 0 && c.ending == simAlive:
		c.frozen = append(c.frozen, raw...)
		return
	case c.ending != simAlive || c.closed:
		return
	}
	cut := false
	if limit := int64(c.link.cutDown); limit > 0 && c.sent+int64(len(raw)) >= limit && !c.w.calm {
		raw, cut = raw[:limit-c.sent], true
	}
	c.sent += int64(len(raw))
	if len(raw) > 0 {
		c.lastAt = max(c.lastAt, c.w.now()+c.link.down)
		c.down = append(c.down, simPiece{raw, c.lastAt})
		c.wakeAtLocked(c.lastAt)
	}
	if cut {
		by := c.link.cutBy
		if by == simReset && c.link.down > 0 {
			by = simClosed // what was said before is to arrive, as far as it goes
		}
		c.endLocked(by, fmt.Sprintf("byte %d was sent", c.link.cutDown))
	}
}

// wakeAtLocked has whoever reads look at a time.
func (c *simConn) wakeAtLocked(at time.Duration) {
	c.w.afterLocked(at-c.w.now(), c.wakes.Broadcast)
}

// endLocked is the world's end of a connection.
func (c *simConn) endLocked(how simEnding, why string) {
	t := c.w.now()
	if c.ending != simAlive || c.closed {
		return
	}
	c.ending, c.endedAt, c.why = how, t, why
	switch how {
	case simReset:
		c.down = slices.DeleteFunc(c.down, func(p simPiece) bool { return p.at > t })
		c.readErr, c.readErrAt = errSimReset, t
	case simClosed, simHalf:
		c.readErr, c.readErrAt = io.EOF, max(c.lastAt, t+c.link.down)
		c.wakeAtLocked(c.readErrAt)
	case simHole:
		c.down = slices.DeleteFunc(c.down, func(p simPiece) bool { return p.at > t })
	}
	if c.deaf = how != simHalf; c.deaf {
		c.commands = nil
		c.w.forgetLocked(c)
	}
	clear(c.subs)
	c.opted = false
	if how == simClosed {
		c.consumed = c.accepted
	}
	c.wakes.Broadcast()
}

// serveLocked carries out what has arrived, one command after the other.
func (c *simConn) serveLocked() {
	if c.due != nil && c.node.troubles[simFrozen] == 0 {
		c.due()
	}
	for !c.deaf && !c.busy && c.waiting == nil && c.node.troubles[simFrozen] == 0 && len(c.commands) > 0 && c.commands[0].end <= c.arrived {
		cmd := c.commands[0]
		c.commands, c.consumed = c.commands[1:], cmd.end
		delay := c.node.delay
		if c.node.troubles[simSlow] == 0 || c.ponged == 0 {
			delay = 0
		}
		late := c.node.late && delay > 0
		var raw []byte
		if !late {
			raw = c.executeLocked(&cmd)
		}
		if delay == 0 {
			c.saysLocked(raw)
			continue
		}
		c.busy = true
		c.w.afterLocked(delay, func() {
			c.due = func() {
				if late && !c.deaf {
					raw = c.executeLocked(&cmd)
				}
				c.busy, c.due = false, nil
				c.saysLocked(raw)
			}
			c.serveLocked()
		})
	}
	if len(c.commands) == 0 && !c.busy && c.waiting == nil && c.node.troubles[simFrozen] == 0 {
		c.consumed = max(c.consumed, c.arrived)
	}
	c.wakes.Broadcast()
}

// Replies are nil, string, int, simStatus, *ServerError, []any, map as simDict, and simFrame.
type (
	simStatus string
	simFrame  []any
	simDict   []any
	simNone   struct{} // no reply: the command waits, or is answered by pushes
)

// simEncode writes a reply as RESP3.
func simEncode(dst []byte, v any) []byte {
	list := func(tag byte, n int, elems []any) []byte {
		dst = append(strconv.AppendInt(append(dst, tag), int64(n), 10), "\r\n"...)
		for _, e := range elems {
			dst = simEncode(dst, e)
		}
		return dst
	}
	switch v := v.(type) {
	case simNone:
		return dst
	case nil:
		return append(dst, "_\r\n"...)
	case string:
		dst = append(strconv.AppendInt(append(dst, '$'), int64(len(v)), 10), "\r\n"...)
		return append(append(dst, v...), "\r\n"...)
	case int:
		return append(strconv.AppendInt(append(dst, ':'), int64(v), 10), "\r\n"...)
	case simStatus:
		return append(append(append(dst, '+'), v...), "\r\n"...)
	case *ServerError:
		return append(append(append(dst, '-'), v.Error()...), "\r\n"...)
	case []any:
		return list('*', len(v), v)
	case simFrame:
		return list('>', len(v), v)
	case simDict:
		return list('%', len(v)/2, v)
	}
	panic(fmt.Sprintf("simulation: a reply of type %T", v))
}

// simText writes a reply for comparison with what a caller got: see simReplyText.
func simText(v any) string {
	switch v := v.(type) {
	case nil:
		return "_"
	case string:
		return "$" + v
	case int:
		return ":" + strconv.Itoa(v)
	case simStatus:
		return "+" + string(v)
	case *ServerError:
		return "-" + v.Error()
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = simText(v[i])
		}
		return "[" + strings.Join(texts, " ") + "]"
	}
	return fmt.Sprint(v)
}

// executeLocked carries a command out and returns its reply, encoded.
func (c *simConn) executeLocked(cmd *simCommand) []byte {
	v := c.carryOutLocked(cmd)
	if r, ok := v.(simRaw); ok {
		return r
	}
	c.outsized = c.outsized || c.w.s.opts.exceeds(v)
	return simEncode(nil, v)
}

// exceeds says that a reply is more than a client takes.
func (o *simOptions) exceeds(v any) bool {
	text, _ := v.(string)
	elems, _ := v.([]any)
	deep := 0
	for e := elems; len(e) > 0; e, _ = e[0].([]any) {
		deep++
	}
	more := func(n, limit int) bool { return limit > 0 && n > limit }
	return more(len(text), o.MaxReply) || more(deep, o.MaxDepth) || more(max(len(elems), deep), o.MaxElements)
}

type simRaw []byte // a reply, or several frames, encoded

var (
	simWhileLoading = map[string]bool{"HELLO": true, "CLIENT": true, "SELECT": true, "MULTI": true, "EXEC": true, "DISCARD": true, "WATCH": true, "UNWATCH": true, "AUTH": true}

	simWrites     = map[string]bool{"SET": true, "INCR": true, "RPUSH": true, "BLPOP": true}
	simConnection = map[string]bool{"HELLO": true, "AUTH": true, "CLIENT": true, "SELECT": true, "MULTI": true, "EXEC": true, "DISCARD": true, "WATCH": true, "UNWATCH": true,
		"SUBSCRIBE": true, "PSUBSCRIBE": true, "SSUBSCRIBE": true, "UNSUBSCRIBE": true, "PUNSUBSCRIBE": true, "SUNSUBSCRIBE": true, "PING": true, "ECHO": true, "PUBLISH": true}
)

// refusalLocked is what the node's state has it say to a command, if it is not carried out.
func (c *simConn) refusalLocked(name string) *ServerError {
	switch tr := &c.node.troubles; {
	case c.w.s.opts.Auth != simNobody && c.user == "" && name != "HELLO" && name != "AUTH":
		return &ServerError{"NOAUTH", "Authentication required."}
	case tr[simLoading] > 0 && !simWhileLoading[name]:
		return &ServerError{"LOADING", "Redis is loading the dataset in memory"}
	case tr[simReadOnly] > 0 && simWrites[name]:
		return &ServerError{"READONLY", "You can't write against a read only replica."}
	case tr[simMasterDown] > 0 && !simConnection[name]:
		return &ServerError{"MASTERDOWN", "Link with MASTER is down and replica-serve-stale-data is set to 'no'."}
	case tr[simMasterDown] > 0 && name == "PING" && c.ponged == 0:
		return &ServerError{"MASTERDOWN", "Link with MASTER is down and replica-serve-stale-data is set to 'no'."}
	}
	return nil
}

// carryOutLocked is a command outside of EXEC.
func (c *simConn) carryOutLocked(cmd *simCommand) any {
	name := strings.ToUpper(cmd.args[0])
	if e := c.refusalLocked(name); e != nil {
		if c.queueing && name != "EXEC" && name != "DISCARD" {
			c.aborted = true
		}
		return c.executedLocked(cmd, name, e, 0)
	}
	if c.queueing && name != "EXEC" && name != "DISCARD" && name != "WATCH" {
		c.multi = append(c.multi, *cmd)
		return simStatus("QUEUED")
	}
	switch name {
	case "MULTI":
		c.queueing, c.aborted, c.multi = true, false, nil
		return c.executedLocked(cmd, name, simStatus("OK"), 0)
	case "DISCARD":
		if !c.queueing {
			return c.executedLocked(cmd, name, &ServerError{"ERR", "DISCARD without MULTI"}, 0)
		}
		c.endTransactionLocked()
		return c.executedLocked(cmd, name, simStatus("OK"), 0)
	case "EXEC":
		return c.executedLocked(cmd, name, c.execLocked(), 0)
	case "BLPOP":
		return c.blpopLocked(cmd)
	}
	return c.executedLocked(cmd, name, c.valueLocked(name, cmd.args), 0)
}

// executedLocked writes down what was carried out.
func (c *simConn) executedLocked(cmd *simCommand, name string, reply any, tx int) any {
	if token := cmd.token(); token != "" {
		c.w.executions = append(c.w.executions, simExecution{c.w.now(), c, token, name, simText(reply), tx, c.w.s.opts.exceeds(reply)})
	}
	return reply
}

func (c *simConn) endTransactionLocked() {
	c.queueing, c.aborted, c.multi, c.dirty = false, false, nil, false
	clear(c.watches)
}

func (c *simConn) execLocked() any {
	queued, dirty, aborted, multi := c.queueing, c.dirty, c.aborted, c.multi
	c.endTransactionLocked()
	switch {
	case !queued:
		return &ServerError{"ERR", "EXEC without MULTI"}
	case aborted:
		return &ServerError{"EXECABORT", "Transaction discarded because of previous errors."}
	case dirty:
		return nil
	}
	c.w.transactns++
	replies := []any{}
	for i := range multi {
		name := strings.ToUpper(multi[i].args[0])
		replies = append(replies, c.executedLocked(&multi[i], name, c.valueLocked(name, multi[i].args), c.w.transactns))
	}
	return replies
}

func (c *simConn) key(name string) string { return strconv.Itoa(c.db) + "/" + name }

// valueLocked carries out what has an answer at once.
func (c *simConn) valueLocked(name string, args []string) any {
	w := c.w
	switch name {
	case "HELLO":
		if c.link.protocol2 && !c.mustServeLocked() {
			return &ServerError{"ERR", "unknown command 'HELLO'"}
		}
		for rest := args[2:]; len(rest) > 1; rest = rest[2:] {
			if rest[0] == "SETNAME" {
				c.name = rest[1]
			} else if rest[0] == "AUTH" && len(rest) > 2 {
				if e := c.authenticateLocked(rest[1], rest[2]); e != nil {
					return e
				}
				rest = rest[1:]
			}
		}
		c.protocol = 3
		return simDict{"server", "redis", "version", "8.0.0", "proto", 3}
	case "AUTH":
		if e := c.authenticateLocked(append([]string{"default"}, args[1:]...)[len(args)-2], args[len(args)-1]); e != nil {
			return e
		}
		return simStatus("OK")
	case "CLIENT":
		return c.clientLocked(args)
	case "SELECT":
		c.db, _ = strconv.Atoi(args[1])
		return simStatus("OK")
	case "PING":
		if c.ponged == 0 {
			c.ponged, c.lacks = max(w.now(), 1), c.lackingLocked()
		}
		return simStatus("PONG")
	case "ECHO":
		return args[1]
	case "EVAL":
		return simShaped(args)
	case "GET":
		if v, ok := w.values[c.key(args[1])]; ok {
			return v
		}
		return nil
	case "SET":
		w.changedLocked(c.key(args[1]))
		w.values[c.key(args[1])] = args[2]
		return simStatus("OK")
	case "INCR":
		n, _ := strconv.Atoi(w.values[c.key(args[1])])
		w.changedLocked(c.key(args[1]))
		w.values[c.key(args[1])] = strconv.Itoa(n + 1)
		return n + 1
	case "WATCH":
		c.watches[c.key(args[1])] = true
		return simStatus("OK")
	case "UNWATCH":
		clear(c.watches)
		c.dirty = false
		return simStatus("OK")
	case "RPUSH":
		key := c.key(args[1])
		w.lists[key] = append(w.lists[key], args[2:]...)
		n := len(w.lists[key])
		w.popLocked(key)
		return n
	case "PUBLISH":
		return w.publishLocked("", args[1], args[2])
	case "SPUBLISH":
		return w.publishLocked("s", args[1], args[2])
	}
	if kind, ok := strings.CutSuffix(name, "SUBSCRIBE"); ok {
		return c.subscribeLocked(kind, args[1:])
	}
	return &ServerError{"ERR", "unknown command '" + name + "'"}
}

// simShaped is what simDeep and simWide are answered by: within each other, or one beside the other, there is so much.
func simShaped(args []string) any {
	n, _ := strconv.Atoi(args[3])
	if args[1] == simWhatNames[simWide] {
		elems := make([]any, n)
		for i := range elems {
			elems[i] = i
		}
		return elems
	}
	elems := []any{args[4]}
	for range n - 1 {
		elems = []any{elems}
	}
	return elems
}

// changedLocked tells those who watch a key.
func (w *simWorld) changedLocked(key string) {
	for _, c := range w.conns {
		if c.watches[key] {
			c.dirty = true
		}
	}
}

func (c *simConn) clientLocked(args []string) any {
	if strings.EqualFold(args[1], "SETNAME") {
		c.name = args[2]
	}
	if !strings.EqualFold(args[1], "MAINT_NOTIFICATIONS") {
		return simStatus("OK")
	}
	c.told = args[len(args)-1]
	if c.link.refuses && !c.mustServeLocked() {
		return &ServerError{"ERR", "unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."}
	}
	c.opted = true
	raw := []byte("+OK\r\n")
	for _, frame := range c.node.parting {
		raw = append(raw, frame...)
	}
	for _, m := range c.node.announced {
		if m.repeat && c.w.now() < m.until {
			raw = append(raw, m.frame...)
		}
	}
	return simRaw(raw)
}

// --- lists ---

func (c *simConn) blpopLocked(cmd *simCommand) any {
	key := c.key(cmd.args[1])
	if list := c.w.lists[key]; len(list) > 0 {
		c.w.lists[key] = list[1:]
		return c.executedLocked(cmd, "BLPOP", []any{cmd.args[1], list[0]}, 0)
	}
	if c.closed {
		return simNone{}
	}
	c.waiting = cmd
	c.w.blocked = append(c.w.blocked, c)
	seconds, _ := strconv.ParseFloat(cmd.args[len(cmd.args)-1], 64)
	if seconds > 0 {
		c.expires = time.AfterFunc(time.Duration(math.Round(seconds*1e9)), func() {
			c.w.do(func() {
				if c.waiting == cmd {
					c.servedLocked(nil)
				}
			})
		})
	}
	return simNone{}
}

// servedLocked ends a wait.
func (c *simConn) servedLocked(reply any) {
	cmd := c.waiting
	c.w.forgetLocked(c)
	c.saysLocked(simEncode(nil, c.executedLocked(cmd, "BLPOP", reply, 0)))
	c.w.afterLocked(time.Nanosecond, c.serveLocked) // not within the command that served it
}

// forgetLocked ends a wait to no effect.
func (w *simWorld) forgetLocked(c *simConn) {
	if c.waiting != nil {
		c.waiting = nil
		if c.expires != nil {
			c.expires.Stop()
		}
		w.blocked = slices.DeleteFunc(w.blocked, func(other *simConn) bool { return other == c })
	}
}

// popLocked gives what is in a list to who waits for it.
func (w *simWorld) popLocked(key string) {
	for i := 0; i < len(w.blocked) && len(w.lists[key]) > 0; {
		c := w.blocked[i]
		if c.key(c.waiting.args[1]) != key || c.node.troubles[simFrozen] > 0 {
			i++
			continue
		}
		v := w.lists[key][0]
		w.lists[key] = w.lists[key][1:]
		c.servedLocked([]any{c.waiting.args[1], v})
	}
}

// --- messages ---

// publishLocked sends a message to all who listen, at whichever node.
func (w *simWorld) publishLocked(kind, channel, payload string) int {
	n := 0
	w.published = append(w.published, simPublished{w.now(), kind, channel, payload})
	for _, c := range w.conns {
		if len(c.subs) == 0 {
			continue
		}
		if c.subs[kind+":"+channel] {
			c.saysLocked(simEncode(nil, simFrame{kind + "message", channel, payload}))
			n++
		}
		for _, pattern := range simPatterns {
			if kind == "" && c.subs["p:"+pattern] && strings.HasPrefix(channel, strings.TrimSuffix(pattern, "*")) {
				c.saysLocked(simEncode(nil, simFrame{"pmessage", pattern, channel, payload}))
				n++
			}
		}
	}
	return n
}

// subscribeLocked is SUBSCRIBE or UNSUBSCRIBE of a kind, which is as the name begins.
func (c *simConn) subscribeLocked(kind string, names []string) any {
	kind, ends := strings.CutSuffix(strings.ToLower(kind), "un")
	if !ends {
		c.everSub = true
	}
	verb := kind + "subscribe"
	if ends {
		verb = kind + "unsubscribe"
	}
	var raw []byte
	for _, name := range names {
		if delete(c.subs, kind+":"+name); !ends && !c.closed {
			c.subs[kind+":"+name] = true
		}
		raw = simEncode(raw, simFrame{verb, name, len(c.subs)})
	}
	return simRaw(raw)
}

// --- what the script does to it ---

// pushLocked sends frames to every connection of a node that has opted in.
func (n *simNode) pushLocked(w *simWorld, frame []byte) {
	for _, c := range w.conns {
		if c.node == n && c.opted && c.protocol == 3 {
			c.saysLocked(frame)
			c.movesLocked(frame)
		}
	}
}

// simMoves says that a frame is a MOVING, well formed or not.
func simMoves(frame string) bool { return strings.Contains(strings.ToUpper(frame), "MOVING\r\n") }

// movesLocked notes that a connection was told to move, if that is under way.
func (c *simConn) movesLocked(frame []byte) {
	if said := c.node.troubles[simFrozen] == 0 && c.ending == simAlive && !c.closed; said && simMoves(string(frame)) {
		c.moved = cmp.Or(c.moved, c.lastAt, 1)
	}
}

// cutLocked ends all connections of a node.
func (n *simNode) cutLocked(w *simWorld, how simEnding, why string, window bool) {
	for _, c := range w.conns {
		if c.node == n && c.ending == simAlive && !c.closed {
			c.window = window
			c.endLocked(how, why)
		}
	}
}

// calmLocked is the network coming back: the name stands for all nodes, and what was cut off silently is reset, which its ends now learn.
func (w *simWorld) calmLocked() {
	w.hosts, w.calm = []int{0, 1, 2}, true
	for _, c := range w.conns {
		if (c.ending == simHole || c.ending == simStill) && !c.closed {
			c.ending, c.down, c.mended = simReset, nil, w.now()
			c.readErr, c.readErrAt = errSimReset, w.now()
			c.wakes.Broadcast()
		}
	}
}

// swiftLocked ends the pauses of slow links.
func (w *simWorld) swiftLocked() {
	w.swift = true
	for _, c := range w.conns {
		c.wakes.Broadcast()
	}
}

// troubleLocked begins or ends a trouble.
func (n *simNode) troubleLocked(w *simWorld, what simTrouble, by int) {
	n.troubles[what] += by
	if what != simFrozen || n.troubles[what] > 0 {
		return
	}
	for _, c := range w.conns { // what has waited comes before what goes on
		if raw := c.frozen; c.node == n && len(raw) > 0 {
			c.frozen = nil
			c.saysLocked(raw)
		}
	}
	for _, c := range w.conns {
		if c.node == n {
			c.serveLocked()
		}
	}
	for key := range w.lists {
		w.popLocked(key)
	}
}
