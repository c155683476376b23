package batontest

// A relay passes bytes on unchanged and only looks where frames end. Each connection has two goroutines: one takes commands
// from the client to the target, one takes replies back. What the relay answers by itself waits for the replies that go
// before it, which both goroutines count, under link.mu. Lock order: link.mu, node.mu, peer.mu.

import (
	"net"
	"strings"
	"sync"
	"time"
)

// A Relay is a TCP address before a real server, which announces no maintenance by itself. It passes everything on
// byte by byte, except for CLIENT MAINT_NOTIFICATIONS: it answers that itself, when all earlier replies of the
// connection have gone out. It obeys the options that are not about data and users.
//
// It knows its place by counting replies. CLIENT REPLY, MONITOR and, with protocol 2, published messages and UNSUBSCRIBE
// without names put the count out; then its own answers and delays may come in the wrong place, though never within a frame.
type Relay struct {
	*node
	target string
}

// NewRelay starts a relay on 127.0.0.1 and a free port, unless the options say otherwise, before a server at "host:port" or
// the path of a unix socket. It ends TLS itself and speaks plainly to the target. It panics if it cannot listen. While the
// target cannot be reached, clients' connections are closed.
func NewRelay(target string, opts ...Option) *Relay {
	return newRelay(target, configure(defaults, opts), newSite())
}

func newRelay(target string, c config, to *site) *Relay {
	r := &Relay{target: target}
	r.node = newNode(c, to, r.converse)
	r.node.start()
	return r
}

// Sibling starts another address before the same target, with the same options and those given here. Siblings share the
// sequence numbers, and what is replayed to those who opt in.
func (r *Relay) Sibling(opts ...Option) *Relay { return r.SiblingTo(r.target, opts...) }

// SiblingTo is Sibling before another target.
func (r *Relay) SiblingTo(target string, opts ...Option) *Relay {
	return newRelay(target, r.siblingConfig(opts), r.site)
}

// A link joins a client's connection to one of the target.
type link struct {
	p      *peer
	target net.Conn
	proto  int // as far as the client's commands tell; owned by the connection's goroutine

	mu         sync.Mutex
	asked      int64          // replies that the target has given or owes; to SUBSCRIBE and its kind all confirmations are one
	given      int64          // of these, passed on
	marks      []mark         // by at
	confirming []confirmation // by at
}

// A mark says what happens when so many replies have been passed on.
type mark struct {
	at     int64
	answer func()    // the relay's own reply; nil: the target's next reply is late
	due    time.Time // when that one may be passed on
}

// A confirmation is what the reply with a number consists of, if the command was of SUBSCRIBE's kind: a push for each
// name. An error comes in their place, or that it was queued in a transaction.
type confirmation struct {
	at   int64
	verb string // the first word of each push
	left int    // pushes to come
}

const (
	dialTarget  = 5 * time.Second
	replySize   = 64 << 10
	maxUnpassed = 1 << 20 // bytes waiting for a client that does not read: beyond it the target is not read either
)

// converse runs on the connection's goroutine.
func (r *Relay) converse(p *peer) {
	network := "tcp"
	if strings.Contains(r.target, "/") {
		network = "unix"
	}
	target, err := net.DialTimeout(network, r.target, dialTarget)
	if err != nil {
		return
	}
	l := &link{p: p, target: target, proto: 2}
	p.closeWith(target)
	ended := make(chan struct{})
	r.wg.Go(func() {
		defer close(ended)
		l.passReplies()
		p.finish()
	})
	l.passCommands()
	target.(interface{ CloseWrite() error }).CloseWrite() // what the client has asked for is still answered
	<-ended
}

// passCommands returns when the client has ended its side, or the target takes no more.
func (l *link) passCommands() {
	p := l.p
	var args [][]byte
	from, asked := 0, int64(0) // buf[r-from:r] was judged and not passed on; the replies that it asks for
	pass := func() bool {
		l.mu.Lock()
		l.asked += asked
		l.mu.Unlock()
		_, err := l.target.Write(p.buf[p.r-from : p.r])
		from, asked = 0, 0
		return err == nil
	}
	for {
		var n int
		var err error
		args, n, err = parseCommand(args[:0], p.buf[p.r:p.w])
		if err != nil {
			args, n = args[:0], p.w-p.r // the target will say what is wrong with it
		}
		if n == 0 {
			if from > 0 && !pass() {
				return
			}
			if p.fill() != nil {
				return
			}
			continue
		}
		v := l.judge(args)
		if v.answer != nil {
			if from > 0 && !pass() {
				return
			}
			p.r += n
			if v.delay > 0 {
				p.wait(nil, v.delay)
			}
			l.interject(v.answer)
			continue
		}
		if v.verb != "" {
			l.expect(confirmation{l.asked + asked, v.verb, v.names})
		}
		p.r, from, asked = p.r+n, from+n, asked+v.replies
		if v.delay > 0 {
			l.mark(mark{at: l.asked + asked - v.replies, due: time.Now().Add(v.delay)})
			if !pass() {
				return
			}
			p.wait(nil, v.delay)
		}
	}
}

// A verdict is what becomes of a command.
type verdict struct {
	replies int64  // the target's
	verb    string // of a command of SUBSCRIBE's kind, in lower case,
	names   int    // and how many it is about
	answer  func() // in place of the target's
	delay   time.Duration
}

func (l *link) judge(args [][]byte) verdict {
	if len(args) == 0 {
		return verdict{}
	}
	n := l.p.node
	if n.cfg.onCommand != nil {
		n.cfg.onCommand(int(l.p.id), texts(args))
	}
	v := verdict{replies: 1}
	switch cmd := args[0]; {
	case isWord(cmd, "CLIENT") && len(args) > 1 && isWord(args[1], "MAINT_NOTIFICATIONS"):
		opt, proto := texts(args[2:]), l.proto
		v.answer = func() { n.optIn(l.p, opt, proto) }
	case isWord(cmd, "HELLO") && len(args) > 1 && (isWord(args[1], "2") || isWord(args[1], "3")):
		l.setProto(int(args[1][0] - '0'))
	case isWord(cmd, "RESET"):
		l.setProto(2)
	case len(cmd) >= 9 && isWord(cmd[len(cmd)-9:], "SUBSCRIBE"):
		v.verb, v.names = strings.ToLower(string(cmd)), max(1, len(args)-1)
	}
	if len(*n.hooks.Load()) > 0 {
		name, _ := resolve(args)
		l.apply(n.hookFor(name), name, &v)
	}
	return v
}

func (l *link) apply(h hook, name string, v *verdict) {
	v.delay = h.delay
	switch {
	case h.raw != "":
		v.answer = func() { l.p.push([]byte(h.raw)) }
	case h.deny:
		v.answer = func() { l.p.push(appendValue(nil, 3, noPermission(name))) }
	}
}

func isWord(b []byte, word string) bool {
	return len(b) == len(word) && strings.EqualFold(string(b), word)
}

func (l *link) setProto(proto int) {
	l.proto = proto
	if proto == 2 {
		l.p.node.optOut(l.p)
	}
}

func (l *link) mark(m mark) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks = append(l.marks, m)
}

func (l *link) expect(c confirmation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.confirming = append(l.confirming, c)
}

// interject answers when all that has been asked so far is answered.
func (l *link) interject(answer func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.given >= l.asked {
		answer()
		return
	}
	l.marks = append(l.marks, mark{at: l.asked, answer: answer})
}

// passReplies returns when the target has ended the connection.
func (l *link) passReplies() {
	var s scanner
	buf := make([]byte, replySize)
	for {
		n, err := l.target.Read(buf)
		l.pass(&s, buf[:n])
		l.p.flush()
		l.p.awaitSent(maxUnpassed)
		if err != nil {
			return
		}
	}
}

func (l *link) pass(s *scanner, b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, to := 0, 0 // b[from:to] is looked at and not passed on
	within := !s.idle()
	for to < len(b) {
		if len(l.marks) > 0 && s.idle() && (b[to] != '>' || l.confirmsLocked()) {
			l.p.pass(b[from:to], false)
			from = to
			l.awaitDueLocked()
		}
		n, done := s.next(b[to:])
		to += n
		if done {
			l.countLocked(s)
		}
		if done && (within || len(l.marks) > 0) { // the first end of a frame lets out the pushes that wait for one
			l.p.pass(b[from:to], false)
			from, within = to, false
			l.answerLocked()
		}
	}
	l.p.pass(b[from:], !s.idle())
}

// confirmsLocked says whether the next reply is confirmations.
func (l *link) confirmsLocked() bool {
	return len(l.confirming) > 0 && l.confirming[0].at == l.given
}

// countLocked is called at the end of each frame.
func (l *link) countLocked(s *scanner) {
	switch {
	case l.confirmsLocked() && string(s.word) == l.confirming[0].verb && l.confirming[0].left > 1:
		l.confirming[0].left--
		return
	case l.confirmsLocked() && (s.kind != '>' || string(s.word) == l.confirming[0].verb):
		l.confirming = l.confirming[1:]
	case s.kind == '>':
		return
	}
	l.given++
}

// awaitDueLocked is called ahead of a reply. It unlocks while it waits.
func (l *link) awaitDueLocked() {
	for len(l.marks) > 0 && l.marks[0].answer == nil && l.marks[0].at <= l.given {
		m := l.marks[0]
		l.marks = l.marks[1:]
		if m.at < l.given {
			continue
		}
		l.mu.Unlock()
		l.p.flush()
		late := time.NewTimer(time.Until(m.due))
		select {
		case <-late.C:
		case <-l.p.gone:
		}
		late.Stop()
		l.mu.Lock()
	}
}

func (l *link) answerLocked() {
	for len(l.marks) > 0 && l.marks[0].answer != nil && l.marks[0].at <= l.given {
		l.marks[0].answer()
		l.marks = l.marks[1:]
	}
}
