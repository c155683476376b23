// Package baton is a Redis client whose connection hands itself to another server, under full load, without failing a command,
// when the server announces maintenance.
//
// A Client has one or more bridges, each one logical connection: it writes to its current physical connection, keeps what cannot be written
// yet in its backlog, and replaces a connection that is lost, or will be, as its server says. Then the replacement is brought up first, new work is
// held for one round trip while the old one empties, and what is still unanswered finishes there. README.md has the contract.
//
// Read the files in this order: tickdeadline, resp3, backlog, conn, pin, handoff, bridge.
package baton

// This file holds the public Client and the bridge: the one lock, the write path, the dialler, what the handoff's actions mean. Callers, readers,
// flushers, dialler and timer all come through here. Each bridge has one mutex. It is not fair, so nothing read before it was taken is believed
// after it; it is never held across what can block: a system call, callback or dial. Lock order: bridge, then pin or relaxation; never two bridges.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Client is a Redis client. All its methods may be called by any number of goroutines at the same time.
type Client struct {
	// Set by Dial, read-only afterwards.
	opts     Options // resolved
	bridges  []*bridge
	events   chan Event // nil if nobody listens
	ctx      context.Context
	cancel   context.CancelFunc // ends dials and the goroutine of the events
	random   dice
	counter  atomic.Uint64 // numbers dials and announcements in the order in which they begin
	turn     atomic.Uint32 // whose bridge is next
	lost     atomic.Uint64 // events nobody had room for
	refused  atomic.Uint64 // commands that no bridge was free for
	deaf     atomic.Bool   // that there are no notifications was told
	pin      pin
	relax    relaxation
	messages sync.Pool     // of *message
	hub      *hub          // of the subscriptions
	slots    chan struct{} // a token for each dedicated bridge in use
	idle     chan struct{} // of capacity one: while shutting down, something became idle

	mu        lock             // guards the rest; taken before a bridge's
	dedicated map[*bridge]bool // those for blocking commands and sessions
	free      []*bridge        // K1: of these, not in use, no session's, at most MaxDedicated; the one used last at the end
	over      []*bridge        // K2: of these, ended, not in use any more, not free
	past      Stats            // the counts of those that are gone
	ending    bool             // Shutdown or Close was called
}

// Dial connects and returns when the first connection is ready, or says why it is not: errors.As finds a *ServerError (WRONGPASS,
// NOAUTH, NOPERM, …), a *net.OpError, a TLS error; errors.Is finds context.DeadlineExceeded when DialTimeout or ctx ran out. Only a
// server that says LOADING, MASTERDOWN or BUSY is asked again. After an error nothing is left behind. ctx bounds this call alone, not the client.
func Dial(ctx context.Context, opts Options) (*Client, error) {
	opts, err := opts.resolved()
	if err != nil {
		return nil, err
	}
	c := &Client{opts: opts, idle: make(chan struct{}, 1), slots: make(chan struct{}, opts.MaxDedicated), dedicated: map[*bridge]bool{}}
	c.pin.configured, c.pin.grace = opts.Addr, max(opts.DialTimeout, opts.Maintenance.RelaxedTimeout)
	looksUp := opts.Network == "tcp" && opts.Proxy == "" && (opts.Dialer == nil || opts.Resolver != nil)
	if host, port := splitEndpoint(opts.Addr); looksUp && net.ParseIP(host) == nil {
		c.pin.host, c.pin.port = host, port
	}
	c.relax.m = &c.opts.Maintenance
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for range opts.Conns {
		c.bridges = append(c.bridges, c.newBridge())
	}
	c.hub = &hub{b: c.newBridge(), topics: map[topic][]*Subscription{}, feeds: map[*conn]*feed{}, changed: make(chan struct{})}
	c.hub.b.hub = c.hub
	if opts.OnEvent != nil || opts.Logger != nil {
		c.events = make(chan Event, 256)
		go c.report()
	}
	if err := c.dialFirst(ctx); err != nil {
		c.Close()
		return nil, err
	}
	c.each(false, (*bridge).wantLocked)
	return c, nil
}

func (c *Client) newBridge() *bridge {
	b := &bridge{c: c, dialKick: make(chan struct{}, 1), renews: map[chan<- error]uint64{}, quest: quest{random: c.random}}
	b.timer = time.AfterFunc(math.MaxInt64, b.tick)
	if inspect != nil {
		inspect(b)
	}
	return b
}

var inspect func(b *bridge) // nil but in tests: it sees each bridge before its use

// each does something with every bridge, under its lock, and returns the counts of those that are gone. With end no further one comes into use.
func (c *Client) each(end bool, do func(b *bridge)) (past Stats) {
	c.mu.Lock()
	c.ending = c.ending || end
	all := slices.AppendSeq(append(slices.Clone(c.bridges), c.hub.b), maps.Keys(c.dedicated))
	past = c.past
	c.mu.Unlock()
	for _, b := range all {
		b.mu.Lock()
		do(b)
		b.mu.Unlock()
	}
	return past
}

// dialFirst connects the first bridge, on its caller's goroutine.
func (c *Client) dialFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.DialTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		first, err := c.dial(ctx, c.counter.Add(1), target{addr: c.opts.Addr})
		if err == nil {
			c.bridges[0].arrived(first, nil, first.attempt)
			return nil
		}
		if !notReady(err) {
			return err
		}
		select {
		case <-time.After(c.random.backoff(failures)):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

func (c *Client) dial(ctx context.Context, attempt uint64, to target) (*conn, error) {
	network := c.opts.Network
	if to.named {
		network = "tcp" // a successor is host:port, also for a client of a unix socket
	}
	if allow := c.opts.Maintenance.AllowSuccessor; to.named && allow != nil {
		allowed := false
		err := within(ctx, func() error { allowed = allow(to.addr); return nil }, nil)
		if err == nil && !allowed {
			c.pin.refuse(to.number)
			err = errors.New("refused")
		}
		if err != nil {
			return nil, fmt.Errorf("baton: dial %s: AllowSuccessor: %w", to.addr, err)
		}
	}
	conn, err := c.opts.dial(ctx, network, to.addr, to.named)
	if err == nil {
		conn.attempt, conn.named = attempt, to.named
	}
	return conn, err
}

// Do sends one command and waits for its reply. Arguments are strings, byte slices, integers, floats and booleans; anything else
// is an error and nothing is sent. The error, if any, is in the reply. When ctx ends, Do returns at once.
//
// A command that blocks (BLPOP, XREAD with BLOCK, …) has a connection to itself, one of MaxDedicated, for which it waits within ctx. Timeout counts
// from when its own time is over; never, if that is 0. If its caller leaves, it is closed: nothing is popped for nobody, but what just was is lost.
func (c *Client) Do(ctx context.Context, args ...any) Reply { return c.do(ctx, nil, args) }

func (c *Client) do(ctx context.Context, s *Session, args []any) Reply {
	m := newMessage(&c.messages, 1)
	if err := c.send(ctx, s, m, args); err != nil {
		return failure(err)
	}
	reply := m.reply
	m.recycle()
	return reply
}

// DoAppend sends one command whose reply is a string and appends it to dst, without allocating if dst has room. After an error
// dst is returned as it was. baton does not touch dst once DoAppend has returned.
func (c *Client) DoAppend(ctx context.Context, dst []byte, args ...any) ([]byte, error) {
	m := newMessage(&c.messages, 1)
	m.appending, m.dst = true, dst
	if err := c.send(ctx, nil, m, args); err != nil {
		return dst, err
	}
	dst = m.dst
	m.recycle()
	return dst, nil
}

// send is one command on its way: admitted, encoded, given to a bridge and waited for. After an error m is not the caller's any more.
func (c *Client) send(ctx context.Context, s *Session, m *message, args []any) error {
	limit, own := anywhere, true
	if s != nil {
		limit = byHand
	}
	r, err := admit(args, limit)
	if err == nil {
		m.buf, err = appendCommand(m.buf, args)
	}
	if err == nil {
		m.span = r.blocksFor(args)
		own, err = c.run(ctx, s, m)
	}
	if own && err != nil {
		m.recycle()
	}
	if s != nil && r.exec {
		err = aborted(err)
	}
	return err
}

// run gives m to a bridge and waits for its replies. own: m is the caller's again, to be recycled; not so if it left while m was in flight.
func (c *Client) run(ctx context.Context, s *Session, m *message) (own bool, err error) {
	if err := ctx.Err(); err != nil {
		return true, &commandError{err, false}
	}
	b := c.bridges[0]
	switch {
	case s != nil:
		b = s.b
	case m.span > 0:
		if b, err = c.borrow(ctx, nil); err != nil {
			c.refused.Add(uint64(m.want))
			return true, &commandError{err, false}
		}
		defer c.giveBack(b)
	case len(c.bridges) > 1:
		b = c.bridges[c.turn.Add(1)%uint32(len(c.bridges))]
	}
	m.start = now()
	from, err := b.enter(m, ctx.Done())
	if err != nil {
		return true, err
	}
	if from != nil {
		from.readFor(m)
	}
	return b.await(ctx, m)
}

// borrow waits, within ctx, for a dedicated bridge: for a blocking command one that is idle, if there is; for a session a new one, nobody else's.
func (c *Client) borrow(ctx context.Context, s *Session) (b *bridge, err error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		<-c.slots
		return nil, ErrClosed
	}
	c.over = slices.DeleteFunc(c.over, c.goneLocked)
	n := len(c.free)
	if s == nil && n > 0 {
		b, c.free = c.free[n-1], c.free[:n-1]
		return b, nil
	}
	if n > 0 && len(c.slots) > c.opts.MaxDedicated-n { // the one that was not used for longest makes room for the session
		c.endLocked(c.free[0])
		c.free = c.free[1:]
	}
	b = c.newBridge()
	b.lazy, b.session, c.dedicated[b] = true, s, true
	return b, nil
}

func (c *Client) endLocked(b *bridge) {
	c.over = append(c.over, b)
	b.mu.Lock()
	b.endLocked(ErrClosed)
	b.mu.Unlock()
}

// goneLocked forgets a bridge that has ended, if nothing is left of it.
func (c *Client) goneLocked(b *bridge) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.conns) > 0 || !b.backlog.empty() {
		return false
	}
	c.past.count(&b.stats)
	delete(c.dedicated, b)
	return true
}

// giveBack makes room for who waits in borrow. A bridge whose caller left, or whose session is over, ends.
func (c *Client) giveBack(b *bridge) {
	c.mu.Lock()
	if b.session != nil || b.over() != nil {
		c.endLocked(b)
	} else {
		c.free = append(c.free, b)
	}
	c.mu.Unlock()
	<-c.slots
}

// Batch is a list of commands to be written together; the zero Batch is empty. It is for one goroutine at a time, and reusable after each call.
type Batch struct {
	buf     []byte
	n       int
	reach   reach         // of the first command that may be sent by the fewest,
	refusal error         // and what the others say to it
	span    time.Duration // for which all of them together may block
	exec    bool          // there is an EXEC among them
}

// Add adds a command. One that cannot be sent makes the batch unusable until Reset: the call that it is given to sends nothing and returns why.
func (b *Batch) Add(args ...any) {
	r, err := admit(args, anywhere)
	reach := r.reach
	buf, bad := appendCommand(b.buf, args)
	if bad != nil {
		reach, err = noCall, bad
	}
	if reach > b.reach {
		b.reach, b.refusal = reach, fmt.Errorf("%w (command %d of the batch)", err, b.n)
	}
	b.buf, b.span, b.exec = buf, min(b.span+r.blocksFor(args), maxSpan), b.exec || r.exec
	b.n++
}

// Len is the number of commands added since the last Reset.
func (b *Batch) Len() int { return b.n }

// Reset empties the batch, keeping its memory.
func (b *Batch) Reset() { *b = Batch{buf: b.buf[:0]} }

// DoBatch sends the commands of a batch in one piece, not as a transaction, and waits for all replies, which are in their order. The error is nil
// if every reply came, though any may be a server's error. If some did not, those that did are returned, and the others are failures; if none did,
// or the call ended by ctx, Timeout or Close, none are. Commands that block take the batch to a connection of its own; their times add up.
func (c *Client) DoBatch(ctx context.Context, b *Batch) ([]Reply, error) {
	return c.batch(ctx, nil, b, batched, false)
}

func (c *Client) batch(ctx context.Context, s *Session, b *Batch, limit reach, tx bool) ([]Reply, error) {
	switch {
	case b.reach > limit:
		return nil, b.refusal
	case b.n == 0:
		return nil, nil
	}
	m := newMessage(&c.messages, b.n)
	if tx {
		m.want += 2
		m.buf = append(append(append(m.buf, "*1\r\n$5\r\nMULTI\r\n"...), b.buf...), "*1\r\n$4\r\nEXEC\r\n"...)
	} else {
		m.buf, m.span = append(m.buf, b.buf...), b.span // in a transaction nothing blocks
	}
	m.replies = make([]Reply, m.want)
	own, err := c.run(ctx, s, m)
	if s != nil && (tx || b.exec) {
		err = aborted(err)
	}
	if !own {
		return nil, err
	}
	replies := m.replies
	if err != nil && (m.got == 0 || tx) {
		replies = nil
	}
	m.recycle()
	return replies, err
}

// DoTx sends the commands of a batch as a transaction, MULTI … EXEC in one piece, and returns their replies. If EXEC answered null, since a watched
// key was changed, the error is ErrTxAborted. If commands were refused when queued, nothing is executed: the error wraps the first refusal, a
// *ServerError, and the replies are those to the queueing. So too if MULTI itself was refused (BUSY, LOADING, NOPERM), but then the commands behind
// it may have been executed one by one, and what blocks among them holds its connection up: the replies are the server's answer to each. With any
// other error there are no replies.
func (c *Client) DoTx(ctx context.Context, b *Batch) ([]Reply, error) {
	return outcome(c.batch(ctx, nil, b, batched, true))
}

// outcome reads the replies to MULTI, to the commands when they were queued, and to EXEC.
func outcome(replies []Reply, err error) ([]Reply, error) {
	if err != nil || replies == nil {
		return nil, err
	}
	last := len(replies) - 1
	exec, queueing := replies[last], replies[1:last]
	results, bad := exec.Elems()
	switch refused := slices.IndexFunc(queueing, func(r Reply) bool { return r.Err() != nil }); {
	case replies[0].Err() != nil:
		return queueing, fmt.Errorf("baton: no transaction, MULTI was refused: %w", replies[0].Err())
	case exec.IsNull():
		return nil, ErrTxAborted
	case bad != nil && refused >= 0:
		return queueing, fmt.Errorf("baton: nothing was executed, command %d of the transaction was refused: %w", refused, queueing[refused].Err())
	case bad != nil:
		return queueing, fmt.Errorf("baton: EXEC: %w", bad)
	case len(results) != len(queueing):
		return nil, fmt.Errorf("baton: protocol error: EXEC answered %d commands with %d replies", len(queueing), len(results))
	}
	return results, nil
}

// aborted is the error of a call with an EXEC in it on a session: if that has ended, what was watched or queued there is gone.
func aborted(err error) error {
	if MaybeExecuted(err) || !errors.Is(err, ErrClosed) && !errors.Is(err, ErrNoConnection) {
		return err
	}
	return &commandError{fmt.Errorf("%w: %w", ErrTxAborted, errors.Unwrap(err)), false}
}

// Session is a connection of one's own, for what changes the state of a connection: WATCH, SELECT, CLIENT. It is used by no one else
// before or after, and is never handed off: when it is lost, every call fails at once with ErrNoConnection, never sent, and one with an
// EXEC is ErrTxAborted, too. So it is when the caller of a blocking command leaves. Its methods may be called by several goroutines.
type Session struct {
	b      *bridge
	moving chan time.Time
	told   bool // that it will be cut; guarded by the bridge's lock
	over   sync.Once
}

// Session takes one of at most MaxDedicated connections, waiting for one within ctx, and dials it. It must be closed.
func (c *Client) Session(ctx context.Context) (*Session, error) {
	s := &Session{moving: make(chan time.Time, 1)}
	b, err := c.borrow(ctx, s)
	if err == nil {
		s.b = b
		if err = s.Do(ctx, "PING").Err(); err == nil {
			return s, nil
		}
		s.Close()
	}
	return nil, &callError{"session", err}
}

// Do is as Client.Do. An EXEC given by hand has the server's own reply: null if a watched key was changed.
func (s *Session) Do(ctx context.Context, args ...any) Reply { return s.b.c.do(ctx, s, args) }

// DoBatch is as Client.DoBatch.
func (s *Session) DoBatch(ctx context.Context, b *Batch) ([]Reply, error) {
	return s.b.c.batch(ctx, s, b, byHand, false)
}

// DoTx is as Client.DoTx.
func (s *Session) DoTx(ctx context.Context, b *Batch) ([]Reply, error) {
	return outcome(s.b.c.batch(ctx, s, b, inSession, true))
}

// Moving has one value when the server has announced that it will cut the connection: when. It is never closed.
func (s *Session) Moving() <-chan time.Time { return s.moving }

// Close ends the connection at once, and with ErrClosed what is outstanding on it. It returns nil, also the second time.
func (s *Session) Close() error {
	s.over.Do(func() { s.b.c.giveBack(s.b) })
	return nil
}

// Watch watches keys on a fresh session, has fn read what it needs and fill the batch, and sends that as by DoTx. When a key was changed, or the
// session was lost before EXEC was sent, it begins again, until ctx ends. Otherwise fn's error, or a batch left empty, ends it without replies.
func (c *Client) Watch(ctx context.Context, keys []string, fn func(*Session, *Batch) error) ([]Reply, error) {
	args := []any{"WATCH"}
	for _, key := range keys {
		args = append(args, key)
	}
	for losses := 0; ; {
		replies, again, lost, err := c.watch(ctx, args, fn)
		if !again {
			return replies, err
		}
		if lost { // perhaps nothing stays connected for long
			losses++
			select {
			case <-time.After(c.random.backoff(losses)):
			case <-ctx.Done():
			}
		}
	}
}

// watch is one try of Watch. again says that EXEC was not sent, or to no effect; lost that it is because the session was lost.
func (c *Client) watch(ctx context.Context, args []any, fn func(*Session, *Batch) error) (replies []Reply, again, lost bool, err error) {
	s, err := c.Session(ctx)
	if err != nil {
		lost = MaybeExecuted(err) && ctx.Err() == nil && !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrClosed) // its PING was cut off
		return nil, lost, lost, err
	}
	defer s.Close()
	var b Batch
	if err = s.Do(ctx, args...).Err(); err == nil {
		err = fn(s, &b)
	}
	complete := err == nil
	if complete {
		replies, err = s.DoTx(ctx, &b)
	}
	why := s.b.over()
	lost = errors.Is(why, ErrNoConnection) && why != errLeft // the server, or what is between, has ended the session
	if again = lost; complete {
		again = errors.Is(err, ErrTxAborted) && !errors.Is(err, ErrClosed)
	}
	return replies, again, lost, err
}

// Stats are counts since Dial, and states at the moment of the call.
type Stats struct {
	Sent            uint64 // commands written; here and below the client's own PINGs count, too
	Answered        uint64 // replies read, also those whose caller had left
	Failed          uint64 // commands that got no reply: cut off, timed out, cancelled, refused
	TimedOut        uint64 // of these, by Timeout
	Held            uint64 // commands that waited in a handoff's hold
	Reconnects      uint64 // connections that took the place of a lost one
	Handoffs        uint64 // replacements promoted
	HandoffsGivenUp uint64 // handoffs that ended without a replacement
	EventsLost      uint64 // events that OnEvent and Logger were too slow for

	InFlight, Backlog int     // commands written and unanswered, and waiting unwritten
	Conns             int     // connections that are ready, lingering ones included
	LastHandoff       Handoff // the one that began last, of all connections together; a renewal has no Seq and no Successor
}

// Stats tells how the client is doing.
func (c *Client) Stats() Stats {
	s := Stats{EventsLost: c.lost.Load(), Failed: c.refused.Load()}
	past := c.each(false, func(b *bridge) {
		s.count(&b.stats)
		s.Backlog += b.backlog.commands
		s.InFlight += b.outstandingLocked() - b.backlog.commands
		s.Conns += len(b.conns)
		if !b.lazy || b.ended == nil { // else it may have ended in mid-handoff
			s.LastHandoff.merge(&b.record)
		}
	})
	s.count(&past)
	return s
}

func (s *Stats) count(o *Stats) {
	s.Sent, s.Answered, s.Failed, s.TimedOut = s.Sent+o.Sent, s.Answered+o.Answered, s.Failed+o.Failed, s.TimedOut+o.TimedOut
	s.Held, s.Reconnects = s.Held+o.Held, s.Reconnects+o.Reconnects
	s.Handoffs, s.HandoffsGivenUp = s.Handoffs+o.Handoffs, s.HandoffsGivenUp+o.HandoffsGivenUp
}

// Close ends the client at once. What was not written fails with ErrClosed, never sent; what was written and not answered fails
// with ErrClosed and may have been executed. It does not wait for OnEvent. It returns nil, also the second time.
func (c *Client) Close() error {
	c.each(true, func(b *bridge) { b.endLocked(ErrClosed) })
	c.cancel()
	return nil
}

// Shutdown refuses new work, waits for what is queued or in flight, and closes the client; when ctx ends first, at once and with ctx's error. A
// handoff that is holding work goes on; further announcements are ignored. Subscriptions last until then, as do sessions, without further calls.
func (c *Client) Shutdown(ctx context.Context) error {
	defer c.Close()
	for {
		outstanding := 0
		c.each(true, func(b *bridge) {
			b.draining = true
			outstanding += b.outstandingLocked()
		})
		if outstanding == 0 {
			return nil
		}
		select {
		case <-c.idle: // something ended since draining was set
		case <-c.ctx.Done(): // by Close, or another Shutdown, which took the token
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Renew replaces every connection by one dialled after the call, since credentials, certificates or addresses changed; no command fails for it. It
// returns nil when all are replaced, or the last dial's error when DialTimeout (relaxed, during maintenance) has passed in vain for one, which serves
// on. A handoff under way comes first, and what it brings may do. When ctx ends, Renew returns, and what it began goes on. Sessions are left alone.
func (c *Client) Renew(ctx context.Context) error {
	t, wall := now(), time.Now()
	var results []chan error
	var failed error
	c.each(false, func(b *bridge) {
		switch {
		case b.session != nil || b.lazy && b.ended != nil: // they are left alone
		case b.ended != nil || b.draining:
			failed = ErrClosed
		case b.cur != nil || b.dialling: // else there is nothing to renew
			result := make(chan error, 1)
			results = append(results, result)
			b.renewLocked(announcement{wall: wall, asked: true}, result, t)
		}
	})
	for _, result := range results {
		select {
		case err := <-result:
			failed = cmp.Or(failed, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return failed
}

// waiting is the poll's question whether a bridge waits for what a does not name, and its news that this was found. A bridge waits also
// if what it dialled for a is connected to where others were told to leave, although nobody told it there.
func (c *Client) waiting(a announcement, found bool) (any bool) {
	c.each(false, func(b *bridge) {
		t, here := now(), b.hereLocked()
		prepares := b.hand.phase == PhasePreparing && !b.quest.renewal && here.addr != "" && b.quest.unnamed(&a, here)
		stayed := b.hand.phase == PhaseDone && here.attempt > a.number && !b.cur.named && a.wasTold(here.remote) && b.quest.mayAgain(a.number)
		any = any || prepares || stayed
		switch {
		case found && prepares:
			b.quest.hasten(t)
			poke(b.dialKick)
		case found && stayed:
			b.joinLocked(a, t, t)
			b.quest.again++
		}
	})
	return any
}

// report is the goroutine on which the user's Logger and OnEvent run. It ends when the client is closed and all is reported.
func (c *Client) report() {
	for over := false; !over || len(c.events) > 0; {
		select {
		case e := <-c.events:
			if c.opts.Logger != nil {
				c.opts.Logger.LogAttrs(context.Background(), e.Kind.level(), "redis: "+string(e.Kind), slog.String("addr", e.Addr),
					slog.String("notification", e.Notification), slog.Int64("seq", e.Seq), slog.String("successor", e.Successor),
					slog.Duration("window", e.Window), slog.String("phase", e.Phase.String()), slog.Int("held", e.Held), slog.Any("err", e.Err))
			}
			if c.opts.OnEvent != nil {
				c.opts.OnEvent(e)
			}
		case <-c.ctx.Done():
			over = true
		}
	}
}

// bridge is one logical connection. Conns of them are for ordinary commands, one for all subscriptions; dedicated ones, for one blocking command
// after the other or for one session, connect when needed, and end with their session, or when the caller of a blocking command leaves.
//
// What holds whenever the lock is free, until the bridge has ended:
//
//	B1   cur, next and old are among conns, each once, and none of conns is over
//	B2   what is neither cur nor next is retired or broken; these are two, and not retired
//	B3   Holding has a replacement and a connection to replace; no other phase has a replacement
//	B4   Holding has something in flight, or what it replaces is broken and about to end (subscriptions hold for another reason)
//	B5   what stands in the backlog and may be written has the flusher awake, or somebody who writes
//	B6   the dialler runs whenever a connection is needed, and only the dialler dials
//	B7   the timer comes no later than the phase ends, and than the next sweep if anything waits
//	B8   told is of a replacement
//	B9   who waits for a renewal waits for the newest, or an older one
//	B10  an announcement holds for no longer than HoldCap
//	B11  no more is answered or in flight than was sent
//	B12  a session is never in a handoff
type bridge struct {
	c        *Client
	hub      *hub          // of the bridge for subscriptions
	lazy     bool          // it is dedicated
	session  *Session      // whose it is, if any
	timer    *time.Timer   // runs tick
	dialKick chan struct{} // of capacity one: the dialler's moment or reason has changed

	mu lock // guards all that follows, and the state of the bridge's connections

	cur     *conn   // what new work goes to; nil: there is none. It may be broken, until its writing has ended
	next    *conn   // the replacement, while Holding
	conns   []*conn // all that are not over yet: these two, and retired or broken ones
	backlog queue

	hand   handoff
	traced func(before handoff, e happening, t tick, a action) // nil but in tests: what the machine was told, and said
	record Handoff                                             // of the handoff that was joined last
	old    *conn                                               // which that handoff replaces or replaced, while it lives
	told   *notification                                       // the MOVING with the highest number that next has read
	later  bool                                                // a newer one than was joined waits for the end of a hold

	dialling    bool // the dialler's goroutine runs
	quest       quest
	cancelDial  context.CancelFunc
	lastDialErr error // why there is no connection, or no replacement: of the last dial, if it failed, or of the loss
	currentAt   tick  // cur became current, or the last one was lost; 0: there was none yet
	clockFrom   tick  // what stands in the backlog since before counts as given then: a hold or a handoff has just ended

	renewal announcement            // what Renew, MaxAge or a failover asks for: a connection whose dial began after it; number 0: nothing
	renews  map[chan<- error]uint64 // the calls of Renew that wait for it, with their numbers
	renewAt tick                    // when MaxAge asks for the next; 0: never
	timerAt tick                    // when tick runs; 0: not armed
	sweepAt tick                    // 0: nothing waited at the last sweep

	draining bool
	ended    error // why nothing may enter any more; nil: it may

	stats Stats // its counts alone
}

// enter gives m to the bridge. One critical section decides everything: what may be written joins those in flight, and its bytes the out-buffer;
// else it joins the backlog. After an error m is the caller's, never sent; otherwise from, if it is not nil, is where the caller is to read.
func (b *bridge) enter(m *message, done <-chan struct{}) (from *conn, err error) {
	b.mu.Lock()
	if err := b.refuseLocked(m); err != nil {
		b.stats.Failed += uint64(m.want)
		err = b.failureLocked(err)
		b.mu.Unlock()
		return nil, &commandError{err, false}
	}
	b.watchLocked(m.start)
	c, p, writes := b.cur, outBuffer{}, false
	switch {
	case b.hand.phase == PhaseHolding:
		b.stats.Held += uint64(m.want)
		b.record.Held += m.want
		b.backlog.pushLocked(m, queued)
	case !c.aliveLocked() || !b.backlog.empty() || !c.roomLocked(m, b.c.opts.MaxInFlight):
		if b.backlog.pushLocked(m, queued); b.cur == nil && !b.dialling {
			b.wantLocked()
		}
	default:
		b.writeLocked(c, m)
		p, writes, from = c.departLocked(m, done)
	}
	b.mu.Unlock()
	if writes {
		c.write(p)
	}
	return from, nil
}

// over is why nothing may enter any more, nil as long as it may.
func (b *bridge) over() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

func (b *bridge) writeLocked(c *conn, m *message) {
	b.stats.Sent += uint64(m.want)
	c.enqueueLocked(m)
}

// takeBackLocked puts unsent work back at the head of the backlog. That of subscriptions was meant for one connection alone, and fails.
func (b *bridge) takeBackLocked(unsent []*message) {
	b.stats.Sent -= uint64(b.backlog.returnLocked(unsent))
	if b.hub != nil {
		b.failLocked(b.backlog.cutLocked(b.backlog.head, popped), ErrNoConnection)
	}
}

// failLocked fails popped messages that were never sent.
func (b *bridge) failLocked(cut []*message, cause error) {
	b.stats.Failed += uint64(attended(cut))
	failAll(cut, b.failureLocked(cause), false)
	b.idleLocked()
}

// refuseLocked says why m may not enter. A full backlog ends a hold, which makes room as far as the replacement takes any.
func (b *bridge) refuseLocked(m *message) error {
	switch {
	case b.ended != nil:
		return b.ended
	case b.draining:
		return ErrClosed
	case b.c.opts.Backlog == FailFast && !b.cur.aliveLocked() && b.hand.phase == PhaseDone && b.currentAt != 0 && !b.lazy:
		return b.noConnectionLocked()
	}
	for range 2 {
		if b.backlog.admitsLocked(m, b.c.opts.MaxBacklog, b.c.opts.MaxBacklogBytes) {
			return nil
		}
		b.stepLocked(backlogFull, now())
		b.topUpLocked(b.cur)
		b.pumpLocked()
	}
	return ErrBacklogFull
}

// noConnectionLocked is ErrNoConnection with what is known of its reason.
func (b *bridge) noConnectionLocked() error {
	if b.lastDialErr == nil {
		return ErrNoConnection
	}
	return fmt.Errorf("%w: %w", ErrNoConnection, b.lastDialErr)
}

// failureLocked is a failure that says so if it came during maintenance.
func (b *bridge) failureLocked(cause error) error {
	if cause != ErrClosed && (b.hand.phase != PhaseDone && !b.quest.renewal || b.c.relax.open(now())) {
		return fmt.Errorf("%w: %w", ErrMaintenance, cause)
	}
	return cause
}

// await waits until m is complete or its caller must leave.
func (b *bridge) await(ctx context.Context, m *message) (own bool, err error) {
	for left := ctx.Done(); ; {
		s := look
		if left == nil {
			s = <-m.signals
		} else {
			select {
			case s = <-m.signals:
			case <-left:
			}
		}
		if s == done {
			return true, m.err
		}
		if gone, own, err := b.giveUp(ctx, m); gone {
			return own, err
		}
		left = nil // it is popped: its signal is on its way, and nothing else matters any more
	}
}

// giveUp ends the wait for m because ctx is over, or because the sweep or Close asked for it, unless m is popped.
func (b *bridge) giveUp(ctx context.Context, m *message) (gone, own bool, err error) {
	cause := ctx.Err() // user code, perhaps
	b.mu.Lock()
	defer b.mu.Unlock()
	switch own = m.place == queued; {
	case m.place == popped:
		return false, false, nil
	case cause == nil && b.ended != nil:
		cause = b.ended
	case cause == nil:
		b.stats.TimedOut += uint64(m.want)
		if cause = ErrTimeout; own && !b.cur.aliveLocked() {
			cause = fmt.Errorf("%w: %w", ErrTimeout, b.noConnectionLocked())
		}
	}
	b.stats.Failed += uint64(m.want)
	if m.abandoned = !own; own {
		b.backlog.removeLocked(m, withCaller)
	}
	b.pumpLocked() // what stood behind it may have room
	for _, c := range b.conns {
		if c.retired && !own {
			c.wakeLocked() // perhaps nobody waits on it any more
		}
	}
	b.idleLocked()
	err = &commandError{b.failureLocked(cause), !own}
	if m.span > 0 && !own && b.ended == nil {
		b.endLocked(errLeft)
	}
	return true, own, err
}

// outstandingLocked counts the commands that wait on this bridge for being written or answered.
func (b *bridge) outstandingLocked() (n int) {
	n = b.backlog.commands
	for _, c := range b.conns {
		n += c.inFlight.commands
	}
	return n
}

// idleLocked tells Shutdown, if it waits, that something has ended.
func (b *bridge) idleLocked() {
	if b.draining {
		poke(b.c.idle)
	}
}

// poke leaves a token in a channel of capacity one, unless there is one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// topUpLocked moves work from the backlog to the current connection, as much as one write takes, unless it is held.
func (b *bridge) topUpLocked(c *conn) {
	if c != b.cur || b.hand.phase == PhaseHolding || !c.aliveLocked() || b.ended != nil {
		return
	}
	for m := b.backlog.head; m != nil && c.roomLocked(m, b.c.opts.MaxInFlight); m = b.backlog.head {
		b.backlog.removeLocked(m, inFlight)
		m.start = max(m.start, b.clockFrom)
		b.writeLocked(c, m)
	}
}

// answeredLocked looks, in the critical section of the pop, at whether that was what somebody waits for.
func (b *bridge) answeredLocked(c *conn, replies int) {
	b.stats.Answered += uint64(replies)
	if c == b.old && c.retired {
		b.record.Lingered += replies
	}
	switch {
	case c == b.cur && b.hand.phase == PhaseHolding && c.inFlight.empty() && b.hub == nil:
		b.stepLocked(drained, now())
	case c == b.cur && !b.backlog.empty(), c.retired:
		c.wakeLocked() // there is room again; or nobody waits on it any more, which the flusher judges
	}
	b.idleLocked()
}

// unsentLocked takes back what a broken connection did not send, and sees to what the bridge is without it. It may be called more than once.
func (b *bridge) unsentLocked(c *conn, unsent []*message) {
	b.takeBackLocked(unsent)
	if b.ended != nil {
		return
	}
	t := now()
	switch c {
	case b.cur:
		if t >= b.currentAt.add(time.Second) {
			b.quest.tries = 0
		}
		b.cur, b.currentAt = nil, t
		b.quest.retry(t, 0)
		switch b.hand.phase {
		case PhaseDone:
			b.lastDialErr = c.broken
		case PhasePreparing:
			if !b.quest.renewal {
				b.quest.again = max(b.quest.again-1, 0) // the dial that follows has another reason
			}
			fallthrough
		case PhaseHolding:
			b.old = c
		}
		b.emitLocked(Event{Kind: EventLost, Addr: c.addr, Err: c.broken})
		if b.session != nil { // which has no other
			b.ended = b.noConnectionLocked()
			b.backlog.sweepLocked(0, never)
			return
		}
		b.stepLocked(currentEnded, t)
		b.failFastLocked()
		b.wantLocked()
	case b.next:
		b.next, b.told = nil, nil
		b.quest.retry(t, 1)
		b.stepLocked(replacementEnded, t)
		if b.later {
			b.followLocked(t)
		}
	default: // it was retired: what comes back may be what a lazy bridge needs a connection for
		b.wantLocked()
	}
	b.pumpLocked()
}

// pumpLocked has the current connection's flusher look at the backlog, if there is anything in it.
func (b *bridge) pumpLocked() {
	if b.cur.aliveLocked() && !b.backlog.empty() {
		b.cur.wakeLocked()
	}
}

// endedLocked forgets a connection of which nothing is left.
func (b *bridge) endedLocked(c *conn, cut int) {
	if b.hub != nil {
		b.hub.endedLocked(c)
	}
	b.conns = slices.DeleteFunc(b.conns, func(other *conn) bool { return other == c })
	if b.stats.Failed += uint64(cut); cut > 0 {
		c.broken = b.failureLocked(c.broken)
	}
	b.idleLocked()
	e := Event{Kind: EventOldClosed, Addr: c.addr}
	if c.broken != errRetired {
		e.Err = c.broken
	}
	if c == b.old {
		b.old, b.record.Closed, b.record.Cut = nil, time.Now(), cut
		e.Seq, e.Successor = b.record.Seq, b.record.Successor
	} else if !c.retired || b.ended != nil {
		return // it was lost, which has been told, or closed with the bridge
	}
	b.emitLocked(e)
}

// failFastLocked fails the backlog under FailFast, when there is neither a connection nor a handoff that will bring one.
func (b *bridge) failFastLocked() {
	if b.c.opts.Backlog != FailFast || b.hand.phase != PhaseDone || b.cur.aliveLocked() || b.ended != nil || b.awaitedLocked(now()) {
		return
	}
	b.failLocked(b.backlog.cutLocked(b.backlog.head, popped), b.noConnectionLocked())
}

// awaitedLocked says that there is no connection because of a handoff. That a dedicated bridge has none yet is because of it, too.
func (b *bridge) awaitedLocked(t tick) bool {
	since, handoff := b.currentAt, b.hand.phase != PhaseDone
	if a, ok := b.c.pin.remembered(t); ok && (b.lazy || b.hub != nil) {
		since, handoff = max(since, a.received), true
	}
	return handoff && b.cur == nil && t < since.add(b.c.opts.Maintenance.RelaxedWindowMax).add(b.c.pin.grace)
}

// pushed reads a push frame. Bridges whose opt-in was refused are told nothing by their server, and learn of an announcement here.
func (b *bridge) pushed(c *conn, push Reply) {
	n, ok := parseNotification(push)
	if !ok {
		if b.hub != nil {
			b.hub.pushed(c, push)
		}
		return
	}
	b.mu.Lock()
	b.notifiedLocked(c, n)
	b.mu.Unlock()
	if n.kind != moving {
		return
	}
	b.c.each(false, func(sibling *bridge) {
		if sibling.cur.aliveLocked() && sibling.cur.deaf != nil {
			sibling.followLocked(now())
		}
	})
}

// notifiedLocked acts on a notification. What a retired connection still has to say was said elsewhere, and may be long past.
func (b *bridge) notifiedLocked(c *conn, n notification) {
	if c.retired || b.ended != nil || b.draining || c.protocol == 2 || b.c.opts.Maintenance.Mode == Disabled {
		return
	}
	t := now()
	if n.kind == moving && !n.timed {
		n.window = cmp.Or(max(b.c.opts.Maintenance.RelaxedTimeout, 0), defaultRelaxed)
	}
	if a, ok := b.c.pin.remembered(t); n.kind != moving || !ok || !a.covers(&n) { // a copy relaxes nothing and is not reported
		e := Event{Addr: c.addr, Notification: n.name, Successor: n.successor, Seq: n.seq, Window: n.window}
		b.c.relax.observe(&n, t, func(kind EventKind) { e.Kind = kind; b.emitLocked(e) })
		b.expireLocked(t)
	}
	switch {
	case n.kind != moving:
	case c == b.next: // judged when it is current; only the newest is of interest then
		if b.told == nil || n.numbered && n.seq > b.told.seq {
			b.told = &n
		}
	case c == b.cur || b.cur == nil: // or it was current, and what came before its end is read only now
		b.toldLocked(c, &n, t)
	}
}

// toldLocked is what a connection being told to move leads to. One whose dial began after the announcement is what that led to: this comparison
// alone tells a replacement from what it replaces, so it holds behind a proxy, and for a server restarted in its place. To be told once more is an
// echo there if the server itself named the place; if nobody did, this may be the old place again.
func (b *bridge) toldLocked(c *conn, n *notification, t tick) {
	a := b.c.pin.announce(n, t, func() uint64 { return b.c.counter.Add(1) })
	again := c == b.cur && !c.named && n.seq == a.seq && n.numbered == a.numbered
	if c.attempt < a.number || again {
		b.c.pin.tell(a.number, c.remote)
	}
	switch {
	case c.attempt < a.number && b.quest.moved != a.number:
		b.joinLocked(a, t, t)
	case c.attempt > a.number && again && b.hand.phase == PhaseDone && b.quest.mayAgain(a.number):
		b.joinLocked(a, t, t.add(max(t.until(a.deadline()), 0)/2))
		b.quest.again++
	}
}

// followLocked joins the announcement that the client remembers, if the dial of the current connection began before it.
func (b *bridge) followLocked(t tick) {
	if a, ok := b.c.pin.remembered(t); ok && b.cur.attempt < a.number && b.quest.moved != a.number {
		b.joinLocked(a, t, t)
	}
}

// joinLocked makes an announcement, or a renewal, the bridge's own; moment is when something can be expected to come of a dial. While Holding it
// waits for the promotion, a round trip away: what that makes current began before the announcement, which is looked at then.
func (b *bridge) joinLocked(a announcement, t, moment tick) {
	if b.later = b.hand.phase == PhaseHolding; b.later || b.draining {
		return
	}
	if own := b.session; own != nil { // it stays where it is
		if !own.told {
			own.told = true
			own.moving <- a.wall.Add(a.window) // the only value, so there is room
			b.emitLocked(Event{Kind: EventSessionMoving, Notification: a.name, Seq: a.seq, Successor: a.successor, Window: a.window})
		}
		return
	}
	if a.number != b.quest.number {
		b.hand.budget, b.lastDialErr = b.c.opts.Maintenance.HoldCap, nil
		switch {
		case b.hub != nil:
			b.hand.budget = maxSpan // nobody's work waits
		case b.lazy, a.number == b.quest.moved:
			b.hand.budget = 0 // no work can come: its only user waits for the old connection; or it has had its hold, before a renewal
		}
	}
	b.record, b.old = Handoff{Seq: a.seq, Successor: a.successor, Received: a.wall}, nil
	here := b.hereLocked()
	if here.addr != "" && t >= b.currentAt.add(time.Second) {
		b.quest.tries = 0
	}
	b.quest.join(a, t, moment, t.add(cmp.Or(a.window, b.c.pin.grace)/2), here.addr != "")
	b.hand.giveUpAt = max(a.deadline(), b.quest.at).add(b.c.relax.effective(b.c.opts.DialTimeout, t))
	b.stepLocked(joined, t)
}

func (b *bridge) hereLocked() location {
	if !b.cur.aliveLocked() {
		return location{}
	}
	return location{b.cur.addr, b.cur.remote, b.cur.attempt}
}

// renewLocked asks for a connection whose dial begins after this; result, if there is one, learns how that ended.
func (b *bridge) renewLocked(a announcement, result chan<- error, t tick) {
	if b.session != nil {
		return
	}
	b.renewal, b.renewal.number, b.renewal.renewal = a, b.c.counter.Add(1), true
	if result != nil {
		b.renews[result] = b.renewal.number
	}
	b.renewNextLocked(t)
}

// renewNextLocked begins the renewal that was asked for. A handoff that is under way goes first.
func (b *bridge) renewNextLocked(t tick) {
	if b.renewal.number != 0 && b.hand.phase == PhaseDone {
		b.renewal.received = t
		b.joinLocked(b.renewal, t, t)
	}
}

// renewedLocked ends the renewals up to a number.
func (b *bridge) renewedLocked(number uint64, err error) {
	for result, n := range b.renews {
		if n <= number {
			result <- err
			delete(b.renews, result)
		}
	}
	if b.renewal.number <= number {
		b.renewal = announcement{}
	}
}

// readOnlyLocked replaces a connection whose server takes no writes, in a failover: the configured address leads to the new master, or will.
func (b *bridge) readOnlyLocked(c *conn) {
	if t := now(); b.c.relax.failover.pendingAt(t) && c == b.cur && b.renewal.number == 0 {
		b.renewLocked(announcement{wall: time.Now()}, nil, t)
	}
}

// stepLocked feeds the machine and carries out what it says.
func (b *bridge) stepLocked(e happening, t tick) {
	if b.ended != nil {
		return
	}
	before := b.hand
	a := b.hand.step(e, t)
	if b.traced != nil {
		b.traced(before, e, t, a)
	}
	if began := b.record.Holding; before.phase == PhaseHolding && a != nothing && !began.IsZero() { // the hold is over
		b.record.HeldMax = max(b.record.HeldMax, time.Since(began))
	}
	if b.cancelDial != nil && (a == prepare && e == joined || a == giveUp && b.cur != nil) {
		b.cancelDial()
		b.cancelDial = nil // so its end is no failure
	}
	switch a {
	case prepare:
		b.emitLocked(Event{Kind: EventPreparing})
		if e == replacementEnded { // what was held flows again
			b.clockFrom = t
			b.record.Ready, b.record.Holding = time.Time{}, time.Time{}
		}
		b.wantLocked()
		if b.hub != nil {
			b.hub.tuneLocked(b.hub.feeds[b.cur])
		}
	case hold:
		if b.hub == nil { // no work waits for subscriptions
			b.record.Holding = time.Now()
			b.emitLocked(Event{Kind: EventHolding})
		}
	case promote:
		b.promoteLocked(t)
	case giveUp:
		b.stats.HandoffsGivenUp++
		b.clockFrom = t
		b.emitLocked(Event{Kind: EventGivenUp, Err: b.lastDialErr})
		poke(b.dialKick) // it may be asleep for long
		if b.quest.renewal {
			b.renewedLocked(b.quest.number, fmt.Errorf("baton: not renewed: %w", cmp.Or(b.lastDialErr, context.DeadlineExceeded)))
			b.ageLocked(t, b.c.opts.MaxAge/10)
		}
		b.failFastLocked()
		b.renewNextLocked(t)
	}
	b.armLocked(b.hand.next())
}

// promoteLocked lets the replacement take over, without I/O: the old connection gives back what it has not begun to write, and lingers.
func (b *bridge) promoteLocked(t tick) {
	b.record.Promoted = time.Now()
	if b.cur != nil {
		b.takeBackLocked(b.cur.retireLocked())
		b.old = b.cur
	}
	b.cur, b.next, b.clockFrom = b.next, nil, t
	b.stats.Handoffs++
	if !b.quest.renewal {
		b.c.relax.eventOver(t)
	}
	b.emitLocked(Event{Kind: EventPromoted, Held: b.record.Held})
	if b.old != nil && !b.old.inFlight.empty() {
		b.emitLocked(Event{Kind: EventLingering, Addr: b.old.addr, Held: b.old.inFlight.commands})
	}
	b.becomeCurrentLocked(t)
}

// becomeCurrentLocked has new work go to cur, and judges what was announced meanwhile.
func (b *bridge) becomeCurrentLocked(t tick) {
	b.currentAt, b.lastDialErr = t, nil
	if b.lazy {
		b.clockFrom = t // what waited for it was not late before
	}
	b.cur.wakeLocked()
	if b.hub != nil {
		b.hub.tuneLocked(b.hub.feeds[b.cur])
	}
	b.keepAliveLocked(t)
	b.ageLocked(t, b.c.opts.MaxAge)
	b.renewedLocked(b.cur.attempt, nil)
	b.followLocked(t)
	if n := b.told; n != nil {
		b.told = nil
		b.toldLocked(b.cur, n, t)
	}
	b.renewNextLocked(t)
}

// emitLocked hands an event to whoever listens, and never waits for it.
func (b *bridge) emitLocked(e Event) {
	if b.c.events == nil {
		return
	}
	e.Time, e.Phase = time.Now(), b.hand.phase
	if e.Addr == "" && b.cur != nil {
		e.Addr = b.cur.addr
	}
	switch {
	case e.Kind == EventOldClosed || e.Kind == EventRefused || e.Notification != "": // which tell of which themselves
	case b.hand.phase != PhaseDone || e.Kind == EventPromoted || e.Kind == EventLingering || e.Kind == EventGivenUp:
		e.Seq, e.Successor = b.record.Seq, b.record.Successor
	}
	select {
	case b.c.events <- e:
	default:
		b.c.lost.Add(1)
	}
}

// wantLocked has a connection dialled if one is needed, by the bridge's one dialler.
func (b *bridge) wantLocked() {
	if b.needLocked() && !b.dialling {
		b.dialling = true
		go b.dial()
	}
	poke(b.dialKick)
}

func (b *bridge) needLocked() bool {
	wanted := true
	switch {
	case b.hub != nil:
		wanted = len(b.hub.topics) > 0
	case b.lazy:
		wanted = !b.backlog.empty()
	}
	return b.ended == nil && b.next == nil && (b.cur == nil && wanted || b.hand.phase == PhasePreparing)
}

// dial is the dialler's goroutine. It lives while a connection is needed, and makes one attempt after the other.
func (b *bridge) dial() {
	for {
		b.mu.Lock()
		t := now()
		if b.dialling = b.needLocked(); !b.dialling {
			b.mu.Unlock()
			return
		}
		here := b.hereLocked()
		if b.quest.renewal {
			here = location{} // it waits for nothing
		}
		at, to := b.c.pin.plan(t, &b.quest, here)
		if to.poll {
			go b.c.pin.poll(b.c.ctx, cmp.Or(b.c.opts.Resolver, net.DefaultResolver), b.c.waiting)
		}
		if wait := t.until(at); wait > 0 {
			b.mu.Unlock()
			select {
			case <-time.After(wait):
			case <-b.dialKick: // there is something new to consider, or the bridge has ended
			}
			continue
		}
		if b.hand.phase == PhasePreparing && b.record.Began.IsZero() {
			b.record.Began = time.Now()
		}
		ctx, cancel := context.WithTimeout(b.c.ctx, b.c.relax.effective(b.c.opts.DialTimeout, t))
		b.cancelDial = cancel
		attempt := b.c.counter.Add(1)
		b.quest.begun(to, t)
		b.mu.Unlock()
		c, err := b.c.dial(ctx, attempt, to)
		cancel()
		b.arrived(c, err, attempt)
	}
}

// arrived takes a dial's result. A connection whose dial began before the announcement that the bridge joined is used only if the
// bridge has none, and then joins; nor is one of use that nobody needs any more.
func (b *bridge) arrived(c *conn, err error, attempt uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := now()
	cancelled, stale := b.cancelDial == nil, attempt < b.quest.number
	b.cancelDial = nil
	replaces := b.hand.phase == PhasePreparing && !stale
	switch {
	case err != nil && (cancelled || !b.needLocked()): // the next attempt, if there is one, has its own moment
	case err != nil:
		b.lastDialErr = err
		b.quest.retry(t, 1)
		b.emitLocked(Event{Kind: EventDialFailed, Err: err})
		if b.lazy {
			b.failFastLocked()
		}
		if b.hub != nil {
			b.hub.changedLocked()
		}
	case !b.needLocked() || b.cur != nil && !replaces:
		go c.raw.Close() // a system call, so not under the lock
	case replaces:
		b.next, b.record.Ready = c, time.Now()
		b.startLocked(c)
		b.emitLocked(Event{Kind: EventReady, Addr: c.addr})
		if b.cur == nil || b.cur.broken == nil && b.cur.inFlight.empty() && b.hub == nil {
			b.stepLocked(ready, t)
		} else {
			b.stepLocked(readyBusy, t)
		}
	default:
		b.cur = c
		if b.currentAt != 0 && !b.lazy {
			b.stats.Reconnects++
			b.emitLocked(Event{Kind: EventConnected})
		}
		b.startLocked(c)
		b.becomeCurrentLocked(t)
	}
}

// startLocked sets a connection going and reads its handshake's pushes. One that closes a window is a replay there, perhaps hours old.
func (b *bridge) startLocked(c *conn) {
	b.conns = append(b.conns, c)
	c.owner, c.mu = b, &b.mu
	if b.hub != nil {
		b.hub.startLocked(c)
	}
	if c.deaf != nil && b.c.opts.Maintenance.Mode != Disabled && b.c.deaf.CompareAndSwap(false, true) {
		b.emitLocked(Event{Kind: EventRefused, Addr: c.addr, Err: c.deaf})
	}
	go c.read()
	go c.flush()
	for _, push := range c.early {
		if n, ok := parseNotification(push); ok && !n.closes {
			b.notifiedLocked(c, n)
		}
	}
	c.early = nil
}

// watchLocked begins to sweep, unless that has begun: something waits.
func (b *bridge) watchLocked(t tick) {
	if b.sweepAt == 0 && b.c.opts.Timeout > 0 {
		b.sweepAt = t.add(min(max(b.c.opts.Timeout/8, 5*time.Millisecond), time.Second))
		b.armLocked(b.sweepAt)
	}
}

// armLocked makes the timer run at t at the latest; 0 is no moment.
func (b *bridge) armLocked(t tick) {
	if t != 0 && t != never && (b.ended == nil || b.session != nil) && (b.timerAt == 0 || t < b.timerAt) {
		b.timerAt = t
		b.timer.Reset(max(now().until(t), 0))
	}
}

// tick is what time does to the bridge; it runs on the timer's goroutine.
func (b *bridge) tick() {
	b.mu.Lock()
	t := now()
	b.timerAt = 0
	b.stepLocked(timePassed, t)
	if b.sweepAt != 0 && t >= b.sweepAt {
		b.sweepAt = 0
		if b.sweepLocked(t); b.outstandingLocked() > 0 {
			b.watchLocked(t)
		}
	}
	b.keepAliveLocked(t)
	b.expireLocked(t)
	if b.renewAt != 0 && t >= b.renewAt {
		if b.renewAt = 0; b.cur != nil && !b.draining && b.renewal.number == 0 { // else it is about to be replaced anyway
			b.renewLocked(announcement{wall: time.Now(), asked: true}, nil, t)
		}
	}
	b.armLocked(b.sweepAt)
	b.armLocked(b.renewAt)
	b.mu.Unlock()
}

// sweepLocked tells callers whose time is up to leave, and ends connections that are silent: something outstanding, no byte for twice the effective
// timeout. A write that takes long but gets on stops that clock; a stuck one does not: TCP itself gives a host up after a quarter of an hour.
func (b *bridge) sweepLocked(t tick) {
	timeout := b.c.relax.effective(b.c.opts.Timeout, t)
	limit := t.add(-timeout)
	if b.hand.phase != PhaseHolding && !b.awaitedLocked(t) {
		b.backlog.sweepLocked(b.clockFrom, limit)
	}
	for _, c := range b.conns {
		c.inFlight.sweepLocked(0, limit)
		if head := c.inFlight.head; head != nil && len(head.signals) > 0 {
			c.tapLocked()
		}
		wrote := c.wrote.Load()
		if c.writing && c.swept == c.taken && c.sweptTo < wrote {
			c.quietFrom = t // the write that was under way at the sweep before has got on: that time does not count
		}
		c.swept, c.sweptTo = c.taken, wrote
		quiet := max(c.quietFrom, tick(c.lastRead.Load()))
		if !c.inFlight.empty() { // before, there was no reason to say anything; a blocking command is one only when its own time is over
			quiet = max(quiet, c.inFlight.head.start.add(c.inFlight.head.span))
		}
		if !c.inFlight.empty() && c.broken == nil && t >= quiet.add(timeout).add(timeout) {
			c.hangUpLocked(fmt.Errorf("baton: connection to %s lost: not a byte for %v", c.addr, quiet.until(t).Round(time.Millisecond)))
		}
	}
}

// keepAliveLocked sends a PING if the connection was idle for KeepAlive. Nobody waits for it: without a reply the connection is silent.
func (b *bridge) keepAliveLocked(t tick) {
	c, every := b.cur, b.c.opts.KeepAlive
	if !c.aliveLocked() || every < 0 || b.c.opts.Timeout < 0 || b.session != nil { // in a session it could be between MULTI and EXEC
		return
	}
	if due := tick(c.lastRead.Load()).add(every); t < due || !c.inFlight.empty() || !b.backlog.empty() || b.hand.phase == PhaseHolding {
		b.armLocked(max(due, t.add(max(every/4, time.Millisecond))))
		return
	}
	b.pingLocked(c, nil, t).abandoned = true
	b.armLocked(t.add(every))
}

// pingLocked sends a PING on c, behind other commands.
func (b *bridge) pingLocked(c *conn, commands []byte, t tick) *message {
	m := newMessage(&b.c.messages, 1)
	m.buf, _ = appendCommand(append(m.buf, commands...), []any{"PING"})
	m.start = t
	b.watchLocked(t)
	b.writeLocked(c, m)
	c.wakeLocked()
	return m
}

// ageLocked has the current connection renewed after a while, or up to a tenth earlier.
func (b *bridge) ageLocked(t tick, after time.Duration) {
	if b.c.opts.MaxAge > 0 {
		after = max(after, time.Second)
		b.renewAt = t.add(after - b.c.random.roll(after/10))
		b.armLocked(b.renewAt)
	}
}

// expireLocked reports the relaxed windows that have run out.
func (b *bridge) expireLocked(t tick) {
	b.armLocked(b.c.relax.expired(t, func(name string) { b.emitLocked(Event{Kind: EventTightened, Notification: name}) }))
}

// endLocked ends the bridge and its connections, and wakes everybody who waits to give up. It waits for nobody.
func (b *bridge) endLocked(cause error) {
	b.ended = cause
	if b.cancelDial != nil {
		b.cancelDial()
	}
	poke(b.dialKick)
	if b.lazy {
		b.renewedLocked(math.MaxUint64, nil) // nothing is left that could be old
	} else {
		b.renewedLocked(math.MaxUint64, cause)
	}
	b.timer.Stop()
	for _, c := range b.conns {
		if !c.retired {
			b.takeBackLocked(c.retireLocked())
		}
		c.hangUpLocked(cause)
		c.inFlight.sweepLocked(0, never)
	}
	b.backlog.sweepLocked(0, never)
}

// Message is one that was published. Its payload belongs to the receiver.
type Message struct {
	Channel string
	Pattern string // by which PSubscribe got it, else empty
	Payload []byte
}

// GapError stands in the place of messages that a Subscription has missed: it was too slow and MaxMessages waited, or the connection was
// lost without notice. errors.Is finds ErrGap. What can be read elsewhere is best read again: everything published from now on arrives.
type GapError struct{ Missed int } // -1: nobody knows

func (e *GapError) Error() string {
	if e.Missed < 0 {
		return ErrGap.Error()
	}
	return fmt.Sprintf("%v: %d", ErrGap, e.Missed)
}

func (e *GapError) Unwrap() error { return ErrGap }

// Subscription receives what is published on its channels, or those that match its patterns. All subscriptions of a client share one
// connection, and are handed off with it: nothing is missed or comes out of order, and what arrives by both connections is passed on once,
// as far as payloads that are alike can be told apart. Its methods may be called by several goroutines; each message goes to one of them.
type Subscription struct {
	h    *hub
	kind string
	wake chan struct{} // of capacity one: there is something to receive

	// Guarded by the lock of the hub's bridge.
	topics map[string]*interest // by name
	queue  []published          // at most MaxMessages, and gaps
	err    error                // why nothing more will come
}

// topic is what can be subscribed to: kind is "" for a channel, "p" for a pattern, "s" for a shard channel.
type topic struct{ kind, name string }

// interest is that of one Subscription in one topic.
type interest struct {
	calls     int   // of Add that want it: they wait for it, or have succeeded
	confirmed bool  // the server has confirmed it once
	err       error // why there is no interest any more
}

// Subscribe subscribes to channels and returns when the server has confirmed all of them, or with an error, and nothing subscribed to, when
// it refused one, or ctx or Timeout ended. It must be closed.
func (c *Client) Subscribe(ctx context.Context, channels ...string) (*Subscription, error) {
	return c.hub.subscribe(ctx, "", channels)
}

// PSubscribe is Subscribe to all channels whose names match a pattern.
func (c *Client) PSubscribe(ctx context.Context, patterns ...string) (*Subscription, error) {
	return c.hub.subscribe(ctx, "p", patterns)
}

// SSubscribe is Subscribe to shard channels.
func (c *Client) SSubscribe(ctx context.Context, channels ...string) (*Subscription, error) {
	return c.hub.subscribe(ctx, "s", channels)
}

// Receive returns the next message, or the next gap as a *GapError, after which it can be called again. What is queued comes before the end
// of the client or of the subscription, unless that was by Subscription.Close. Any other error is ctx's, or final:
// ErrClosed, or a *ServerError if the server confirmed the subscription once and refused it later, on another connection.
func (s *Subscription) Receive(ctx context.Context) (Message, error) {
	b := s.h.b
	for {
		if err := ctx.Err(); err != nil {
			return Message{}, err
		}
		b.mu.Lock()
		var next published
		err, some := s.err, len(s.queue) > 0
		if some {
			next, s.queue[0] = s.queue[0], published{}
			s.queue = s.queue[1:]
		}
		if len(s.queue) > 0 || err != nil {
			poke(s.wake) // for whoever waits beside us
		}
		b.mu.Unlock()
		switch {
		case some && next.missed != 0:
			return Message{}, &GapError{next.missed}
		case some:
			m := Message{Channel: strings.Clone(next.channel), Payload: []byte(next.payload)} // not parts of what was read
			if next.kind == "p" {
				m.Pattern = strings.Clone(next.name)
			}
			return m, nil
		case err != nil:
			return Message{}, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		case <-b.c.ctx.Done():
			return Message{}, ErrClosed
		}
	}
}

// All is Receive again and again. It goes on after a gap, and ends after any other error.
func (s *Subscription) All(ctx context.Context) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for {
			m, err := s.Receive(ctx)
			if !yield(m, err) || err != nil && !errors.Is(err, ErrGap) {
				return
			}
		}
	}
}

// Add subscribes to more, as Client.Subscribe does. After an error it has added none of names.
func (s *Subscription) Add(ctx context.Context, names ...string) error {
	b := s.h.b
	timeout := cmp.Or(max(b.c.relax.effective(b.c.opts.Timeout, now()), 0), maxSpan) // a year for none
	late := time.NewTimer(timeout)
	defer late.Stop()
	err := ctx.Err()
	b.mu.Lock()
	defer b.mu.Unlock()
	var added []*interest
	if err == nil {
		added = s.h.addLocked(s, names)
	}
	for i := 0; i < len(added) && err == nil; i++ {
		err = s.confirmedLocked(ctx, late, timeout, added[i])
	}
	if err == nil {
		return nil
	}
	for i, in := range added {
		if in.calls--; in.calls == 0 && in.err == nil {
			s.h.removeLocked(s, names[i:i+1], err)
		}
	}
	return &callError{"subscribe", err}
}

// confirmedLocked waits, unlocked, until the server has confirmed a topic. Timeout begins anew while a handoff is to bring a connection,
// or holds what is to be asked for, and counts from the end of that.
func (s *Subscription) confirmedLocked(ctx context.Context, late *time.Timer, timeout time.Duration, in *interest) (err error) {
	b := s.h.b
	for {
		switch {
		case err == ErrTimeout && (b.awaitedLocked(now()) || b.hand.phase == PhaseHolding || now() < b.clockFrom.add(timeout)):
			late.Reset(timeout)
			err = nil
			continue
		case err == ErrTimeout && b.cur == nil:
			return fmt.Errorf("%w: %w", err, b.noConnectionLocked())
		case err != nil:
			return err
		case in.err != nil:
			return in.err
		case b.ended != nil:
			return b.ended
		case in.confirmed:
			return nil
		case b.c.opts.Backlog == FailFast && b.cur == nil && b.lastDialErr != nil && !b.awaitedLocked(now()):
			return b.noConnectionLocked()
		}
		changed := s.h.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-late.C:
			err = ErrTimeout
		case <-ctx.Done():
			err = ctx.Err()
		case <-b.c.ctx.Done(): // and the bridge is closed
		}
		b.mu.Lock()
	}
}

// Remove ends the subscription to names, without waiting for the server: nothing that comes there is received any more, but what was queued
// before. If ctx has ended it does nothing and returns its error; else that of a subscription that is over, or nil.
func (s *Subscription) Remove(ctx context.Context, names ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.h.b.mu.Lock()
	defer s.h.b.mu.Unlock()
	s.h.removeLocked(s, names, errors.New("baton: removed meanwhile"))
	return s.err
}

// Close ends the subscription; what is queued is dropped. It returns nil, also the second time.
func (s *Subscription) Close() error {
	s.h.b.mu.Lock()
	defer s.h.b.mu.Unlock()
	s.h.endLocked(s, ErrClosed)
	s.queue = nil
	return nil
}

// pushLocked queues a message or a gap. A subscriber that is slow misses messages; nobody waits for it.
func (s *Subscription) pushLocked(p published) {
	n := len(s.queue)
	if p.missed == 0 && n >= s.h.b.c.opts.MaxMessages {
		p = published{missed: 1}
	}
	if last := n - 1; p.missed != 0 && n > 0 && s.queue[last].missed != 0 { // one after another is one
		if sum := &s.queue[last].missed; *sum < 0 || p.missed < 0 {
			*sum = -1
		} else {
			*sum += p.missed
		}
	} else {
		s.queue = append(s.queue, p)
	}
	poke(s.wake)
}

// hub is what the bridge for subscriptions has beside: what is wanted, and what each connection delivers. The bridge's lock guards it. H1: each
// feed is of a connection that is not over. H2: one at most is live. H3: who wants a topic stands there once, and the topic among what it wants. H4:
// what is queued for one is no more than MaxMessages and a gap.
type hub struct {
	b       *bridge
	topics  map[topic][]*Subscription
	feeds   map[*conn]*feed
	changed chan struct{} // closed, and replaced, when a call of Add may be over
}

// feed is what comes over one connection.
type feed struct {
	c      *conn
	have   map[topic]bool // what the server was asked for and not told to end, and whether it has confirmed that
	todo   map[topic]bool // what may differ from what is wanted
	ended  map[topic]int  // how often the server has ended it by itself
	live   bool           // what comes is passed on; else it is kept for the time when it takes over
	tuning bool           // tune runs for it
	asks   []*request     // that the server has not answered yet, in their order
	seen   []published    // what came, as long as another connection may bring some of the same
	old    *feed          // what it takes over from, until it has, even if that has ended
}

// published is what came of one topic, or a gap in the queue of a subscription.
type published struct {
	topic
	channel, payload string
	missed           int // not 0: so many messages are missing here; negative: nobody knows how many
}

// request is a SUBSCRIBE of one topic, whose refusal is its own then, or an UNSUBSCRIBE of all of a kind, which the server carries out at once.
type request struct {
	verb    string // in lower case, as push frames have it
	topics  []topic
	left    int // pushes that answer it
	refusal error
}

// maxSeen bounds what is kept while two connections overlap, which is usually for some milliseconds: seconds of a busy subscription.
const maxSeen = 1 << 16

func (h *hub) subscribe(ctx context.Context, kind string, names []string) (*Subscription, error) {
	s := &Subscription{h: h, kind: kind, wake: make(chan struct{}, 1), topics: map[string]*interest{}}
	if err := s.Add(ctx, names...); err != nil {
		return nil, err
	}
	return s, nil
}

func (h *hub) addLocked(s *Subscription, names []string) (added []*interest) {
	b, f := h.b, h.feeds[h.b.cur]
	for _, name := range names {
		t := topic{s.kind, name}
		in := s.topics[name]
		if in == nil {
			in = &interest{confirmed: f != nil && f.live && f.have[t] && h.servedLocked(t), err: s.err}
			if b.draining {
				in.err = ErrClosed
			}
			if in.err == nil {
				s.topics[name] = in
				h.topics[t] = append(h.topics[t], s)
				h.touchLocked(t)
			}
		}
		in.calls++
		added = append(added, in)
	}
	if b.cur == nil && !b.dialling {
		b.lastDialErr = nil // of a time when nobody waited
		b.wantLocked()
	}
	h.tuneLocked(f)
	return added
}

// servedLocked says that somebody has t already, and so a replacement will have it.
func (h *hub) servedLocked(t topic) bool {
	return slices.ContainsFunc(h.topics[t], func(s *Subscription) bool { return s.topics[t.name].confirmed })
}

// touchLocked has all connections look at t when they are tuned.
func (h *hub) touchLocked(t topic) {
	for _, f := range h.feeds {
		f.todo[t] = true
	}
}

// removeLocked ends s's interest in names, and tells the calls of Add that wait for them why.
func (h *hub) removeLocked(s *Subscription, names []string, why error) {
	for _, name := range names {
		t := topic{s.kind, name}
		if in := s.topics[name]; in != nil {
			in.err = why
			delete(s.topics, name)
		}
		h.topics[t] = slices.DeleteFunc(h.topics[t], func(other *Subscription) bool { return other == s })
		if len(h.topics[t]) == 0 {
			delete(h.topics, t)
			h.touchLocked(t)
		}
	}
	h.changedLocked()
	h.tuneLocked(h.feeds[h.b.cur])
}

func (h *hub) endLocked(s *Subscription, err error) {
	s.err = cmp.Or(s.err, err)
	h.removeLocked(s, slices.Collect(maps.Keys(s.topics)), s.err)
	poke(s.wake)
}

// refuseLocked passes on that a topic is refused: to the calls of Add that wait for it; a subscription that had it is over.
func (h *hub) refuseLocked(t topic, err error) {
	err = &callError{strconv.Quote(t.name) + " is refused", err}
	for _, s := range slices.Clone(h.topics[t]) {
		if s.topics[t.name].confirmed {
			h.endLocked(s, err)
		} else {
			h.removeLocked(s, []string{t.name}, err)
		}
	}
}

// changedLocked has the calls of Add look whether they are over.
func (h *hub) changedLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// pushed takes a push frame, if it is about subscriptions. It runs on the reader.
func (h *hub) pushed(c *conn, push Reply) {
	elems, _ := push.Elems()
	text := func(i int) string { s, _ := elems[i].Text(); return s }
	for _, verb := range [...]string{"message", "unsubscribe", "subscribe"} {
		kind, ok := strings.CutSuffix(push.pushName(), verb)
		if !ok || kind != "" && kind != "p" && kind != "s" || len(elems) < 3 {
			continue
		}
		h.b.mu.Lock()
		defer h.b.mu.Unlock()
		t, f := topic{kind, text(1)}, h.feeds[c]
		solicited := f != nil && f.answeredLocked(verb, t)
		switch {
		case f == nil: // another took its place
		case verb == "message":
			h.messageLocked(f, published{topic: t, channel: text(len(elems) - 2), payload: text(len(elems) - 1)})
		case verb == "subscribe":
			if confirmed, asked := f.have[t]; confirmed || !asked {
				break
			}
			f.have[t] = true
			for _, s := range h.topics[t] {
				in := s.topics[t.name]
				if f.live && in.confirmed { // it had been ended by the server
					s.pushLocked(published{missed: -1})
				}
				in.confirmed = in.confirmed || f.live
			}
		case f.have[t] && solicited: // it is wanted again if the handoff that it was told for comes to nothing
			delete(f.have, t)
			f.todo[t] = true
		case f.have[t]: // a server that always does so is not to be asked in a tight loop
			delete(f.have, t)
			time.AfterFunc(h.b.c.random.backoff(f.ended[t]), func() {
				h.b.mu.Lock()
				defer h.b.mu.Unlock()
				f.todo[t] = true
				h.tuneLocked(f)
			})
			f.ended[t]++
		}
		return
	}
}

// answeredLocked says whether a push frame answers what the connection was asked, and counts that it does.
func (f *feed) answeredLocked(verb string, t topic) bool {
	if m := f.c.inFlight.head; m == nil || m.left == 0 || len(f.asks) == 0 {
		return false
	}
	r := f.asks[0]
	if r.verb != verb || r.topics[0].kind != t.kind || verb == "subscribe" && r.topics[0] != t {
		return false
	}
	if r.left--; r.left == 0 {
		f.settledLocked()
	}
	return true
}

// settledLocked says that the first of what the connection was asked is answered. That stands before the PING of what is first in flight.
func (f *feed) settledLocked() *request {
	r := f.asks[0]
	f.asks = f.asks[1:]
	f.c.inFlight.head.left--
	return r
}

// refusedLocked takes an error in place of the push frames that would answer what the connection was asked.
func (b *bridge) refusedLocked(c *conn, err error) {
	if f := b.hub.feeds[c]; f != nil && c.inFlight.head.left > 0 && len(f.asks) > 0 {
		f.settledLocked().refusal = err
	}
}

// messageLocked passes a message on, or keeps it, or both.
func (h *hub) messageLocked(f *feed, p published) {
	late := f.c
	switch {
	case !f.have[p.topic]:
		return
	case f.live:
		h.deliverLocked(p)
		late = h.b.next
	}
	if f.live && len(h.feeds) == 1 {
		f.seen = nil // nothing else brings any of it
	} else if f.seen = append(f.seen, p); len(f.seen) == maxSeen && late != nil {
		late.hangUpLocked(errors.New("baton: subscriptions take too long to move"))
	}
}

func (h *hub) deliverLocked(p published) {
	for _, s := range h.topics[p.topic] {
		s.pushLocked(p)
	}
}

func (h *hub) startLocked(c *conn) {
	cur := h.feeds[h.b.cur]
	if cur != nil && cur.live {
		cur.seen = nil
	}
	f := &feed{c: c, have: map[topic]bool{}, todo: map[topic]bool{}, ended: map[topic]int{}, old: cur}
	for t := range h.topics {
		f.todo[t] = true
	}
	h.feeds[c] = f
	h.tuneLocked(f)
}

// endedLocked forgets a connection. What it had delivered, if it was in service, is for the one that takes over from it, and nothing from before.
func (h *hub) endedLocked(c *conn) {
	if f := h.feeds[c]; f != nil {
		f.old = nil
		delete(h.feeds, c)
	}
}

// tuneLocked has what a connection, if there is one, is subscribed to brought into line with what is wanted.
func (h *hub) tuneLocked(f *feed) {
	if f != nil && !f.tuning && f.c.aliveLocked() {
		f.tuning = true
		go h.tune(f)
	}
}

// tune brings what a connection is subscribed to into line with what is wanted, and then it into service: a replacement when the current one is in
// service with an answer to everything, and is left as it is meanwhile. What is newly wanted waits for the end of that.
func (h *hub) tune(f *feed) {
	b := h.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for f.c.aliveLocked() {
		cur := h.feeds[b.cur]
		if b.hand.phase == PhaseHolding && cur != nil && (f == cur && cur.live || f != cur && (!cur.live || cur.tuning)) {
			break
		}
		asked, left := h.differenceLocked(f)
		if f.live && len(asked)+len(left) == 0 {
			break
		}
		if all, err := h.fenceLocked(f, asked, left); err != nil || !h.judgeLocked(f, all[:len(asked)]) {
			break
		}
		if !f.live {
			h.takeOverLocked(f)
		}
	}
	f.tuning = false
	if cur := h.feeds[b.cur]; cur == f {
		h.tuneLocked(h.feeds[b.next]) // it may have waited
	} else {
		h.tuneLocked(cur) // it may have been told to end what it must now go on with
	}
}

// differenceLocked is what f is to be asked for and to leave. What still comes of the latter is for nobody, even if wanted again: a hole follows.
func (h *hub) differenceLocked(f *feed) (asked, left []topic) {
	for t := range f.todo {
		switch wanted := len(h.topics[t]) > 0; {
		case wanted && f.c.protocol == 2:
			h.refuseLocked(t, errors.New("the server speaks protocol 2 only"))
		case wanted && !f.have[t]:
			f.have[t] = false
			asked = append(asked, t)
		case wanted && f.live: // again, before it was left; a replacement may not have been asked for it, so that was not clear at once
			for _, s := range h.topics[t] {
				s.topics[t.name].confirmed = true
			}
			h.changedLocked()
		case !wanted && f.have[t]:
			delete(f.have, t)
			left = append(left, t)
		}
	}
	clear(f.todo)
	return asked, left
}

// requests are what subscribes to what is asked for, in order of name, and unsubscribes from what is left, and the commands for it.
func requests(asked, left []topic) (all []*request, commands []byte) {
	for _, topics := range [][]topic{asked, left} {
		slices.SortFunc(topics, func(a, b topic) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name)) })
	}
	for i := range asked {
		all = append(all, &request{verb: "subscribe", topics: asked[i : i+1], left: 1})
	}
	for from, i := 0, 1; from < len(left); i++ {
		if i == len(left) || left[i].kind != left[from].kind {
			all = append(all, &request{verb: "unsubscribe", topics: left[from:i], left: i - from})
			from = i
		}
	}
	for _, r := range all {
		args := []any{strings.ToUpper(r.topics[0].kind + r.verb)}
		for _, t := range r.topics {
			args = append(args, t.name)
		}
		commands, _ = appendCommand(commands, args)
	}
	return all, commands
}

// fenceLocked subscribes f's connection to what it is asked for, unsubscribes it from what is left, and sends a PING. It waits, unlocked, until
// the PING is answered: everything that the server had to say before is then delivered, and what it was asked is returned, with its
// refusals. A connection in service may take any time for that, as long as it is not silent; after an error it is broken.
func (h *hub) fenceLocked(f *feed, asked, left []topic) (all []*request, err error) {
	b, t := h.b, now()
	if !f.c.aliveLocked() {
		return nil, ErrNoConnection
	}
	all, commands := requests(asked, left)
	m := b.pingLocked(f.c, commands, t)
	m.fence, m.left = true, len(all)
	f.asks = append(f.asks, all...)
	limit := maxSpan
	if serves := f.live || f.old != nil && f.c == b.cur && len(asked) == 0; !serves { // or has just taken the place of one that did
		limit = b.c.relax.effective(b.c.opts.DialTimeout, t)
	}
	ctx, cancel := context.WithTimeout(b.c.ctx, limit)
	defer cancel()
	b.mu.Unlock()
	own, err := b.await(ctx, m)
	b.mu.Lock()
	if own {
		f.asks = f.asks[min(m.left, len(f.asks)):] // to which the server said nothing
		m.recycle()
	}
	switch {
	case err != nil:
		f.c.hangUpLocked(fmt.Errorf("baton: connection to %s lost: PING: %w", f.c.addr, errors.Unwrap(err)))
	case !f.c.aliveLocked(): // it ended behind the answer
		err = ErrNoConnection
	}
	return all, err
}

// judgeLocked passes on what a connection has refused. A new one that is not ready for all is of no use.
func (h *hub) judgeLocked(f *feed, asked []*request) (usable bool) {
	for _, r := range asked {
		t := r.topics[0]
		if confirmed, asked := f.have[t]; confirmed || !asked { // if not, the server has ended it again, and it will be asked for again
			continue
		}
		if !f.live && notReady(r.refusal) {
			f.c.hangUpLocked(r.refusal)
			return false
		}
		delete(f.have, t)
		h.refuseLocked(t, cmp.Or(r.refusal, errors.New("the server did not confirm it")))
	}
	h.changedLocked()
	return true
}

// takeOverLocked lets a new connection deliver. While one replaces another, what is published comes by both, until the other has ended its
// subscriptions: nothing is missed, and what came twice is taken out here. Fences tell how much that is at least: what the old one delivers after
// the answer to a PING sent when the new one was subscribed, and what the new one has delivered before that to a PING sent before the old one ends.
// If the old one has ended before, some may be missing, but what it had delivered is taken out, too.
func (h *hub) takeOverLocked(f *feed) {
	b, old := h.b, f.old
	var sure map[topic]bool
	twice, least := map[topic]int{}, 1
	if old != nil && old.live {
		var certain, early map[topic][]published
		if _, err := h.fenceLocked(old, nil, nil); err == nil {
			n := len(old.seen)
			sure = maps.Clone(old.have)
			if _, err := h.fenceLocked(f, nil, nil); err != nil {
				return
			}
			early = byTopic(f.seen)
			if _, err := h.fenceLocked(old, nil, slices.Collect(maps.Keys(old.have))); err == nil {
				least = 0
			} else { // it has ended instead: its last messages have come, too, but perhaps not all that is early
				early = nil
			}
			certain = byTopic(old.seen[min(n, len(old.seen)):]) // if f has ended, it may be shorter
		}
		if b.next == f.c {
			b.stepLocked(drained, now())
		}
		if _, err := h.fenceLocked(f, nil, nil); err != nil {
			return
		}
		before := byTopic(old.seen)
		for t, after := range byTopic(f.seen) {
			twice[t] = overlap(before[t], after, max(len(certain[t]), len(early[t]), least))
		}
	}
	for t, subs := range h.topics {
		for _, s := range subs {
			in := s.topics[t.name]
			if in.confirmed && !sure[t] {
				s.pushLocked(published{missed: -1}) // those of several topics are one
			}
			in.confirmed = in.confirmed || f.have[t]
		}
	}
	for _, p := range f.seen {
		if twice[p.topic]--; twice[p.topic] < 0 && f.have[p.topic] { // else the server has ended it meanwhile, and a gap follows
			h.deliverLocked(p)
		}
	}
	f.live, f.seen, f.old = true, nil, nil
	maps.DeleteFunc(h.feeds, func(c *conn, _ *feed) bool { return c != f.c && c != b.next })
	h.changedLocked()
}

func byTopic(all []published) map[topic][]published {
	sorted := map[topic][]published{}
	for _, p := range all {
		sorted[p.topic] = append(sorted[p.topic], p)
	}
	return sorted
}

// overlap is how many messages one connection delivered last and another first: the fewest that are alike, of those at least that many
// that certainly came by both. That so many are not alike can only be if two servers do not deliver in step; then it is the most that are.
// Each n that fits is what the one before is left with (Knuth, Morris and Pratt), so it takes linear time.
func overlap(before, after []published, least int) int {
	most := min(len(before), len(after))
	shorter := make([]int, most) // by index: the longest beginning of after, but for itself, that it ends with up to there
	next := func(n int, p published) int {
		for n > 0 && (n == most || after[n] != p) {
			n = shorter[n-1]
		}
		if n < most && after[n] == p {
			n++
		}
		return n
	}
	for i := 1; i < most; i++ {
		shorter[i] = next(shorter[i-1], after[i])
	}
	n := 0
	for _, p := range before[len(before)-most:] {
		n = next(n, p)
	}
	for n > 0 && shorter[n-1] >= least {
		n = shorter[n-1]
	}
	return n
}

// reach is which calls may send a command: those from one on.
type reach uint8

const (
	anywhere  reach = iota
	batched         // a batch, since alone it waits for nothing
	inSession       // a session, since it changes the state of its connection
	byHand          // and not in a DoTx, since it is part of a transaction itself
	noCall          // its replies do not come one for one, or it would undo what was agreed upon in the handshake
)

// rule is how a command may be sent. That of most is zero.
type rule struct {
	reach   reach
	instead string        // what to use where it may not be sent
	unit    time.Duration // of the time for which it may block; 0: it does not
	at      int           // the argument that says how long; negative: counted from the end; 0: behind BLOCK, or it does not block
	exec    bool
}

var (
	rules   = map[string]*rule{}
	plain   = &rule{}  // of all others
	initial [32]uint32 // by length modulo 32: bit n is set if a command with a rule begins with letter n modulo 32
)

// isPlain says of most commands without a rule that they have none. Looking all up would take 66 ns, a tenth of a command's cost under load.
func isPlain(name string) bool {
	return name != "" && initial[len(name)%32]&(1<<(name[0]%32)) == 0 // in upper and lower case alike
}

func init() {
	for r, commands := range map[rule]string{
		{unit: time.Second, at: -1}:                                             "BLPOP, BRPOP, BLMOVE, BRPOPLPUSH, BZPOPMIN, BZPOPMAX",
		{unit: time.Second, at: 1}:                                              "BLMPOP, BZMPOP",
		{unit: time.Millisecond}:                                                "XREAD, XREADGROUP",
		{batched, "use Client.DoBatch", time.Millisecond, -1, false}:            "WAIT, WAITAOF",
		{reach: inSession, instead: "use Client.Session"}:                       "READONLY, READWRITE, ASKING, CLIENT TRACKING, CLIENT CACHING, CLIENT NO-EVICT, CLIENT NO-TOUCH, CLIENT CAPA, CLIENT IMPORT-SOURCE",
		{reach: inSession, instead: "use Options.DB or Client.Session"}:         "SELECT",
		{reach: inSession, instead: "use Options.Credentials"}:                  "AUTH",
		{reach: inSession, instead: "use Options.ClientName"}:                   "CLIENT SETNAME",
		{reach: inSession, instead: "use Client.Close"}:                         "QUIT",
		{reach: byHand, instead: "use Client.DoTx or Client.Watch"}:             "MULTI, DISCARD, WATCH, UNWATCH",
		{reach: byHand, instead: "use Client.DoTx or Client.Watch", exec: true}: "EXEC",
		{reach: noCall, instead: "use Client.Subscribe"}:                        "SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE",
		{reach: noCall, instead: "use Subscription.Remove"}:                     "UNSUBSCRIBE, PUNSUBSCRIBE, SUNSUBSCRIBE",
		{reach: noCall, instead: "use Options.Credentials"}:                     "HELLO",
		{reach: noCall, instead: "use Options.Maintenance"}:                     "CLIENT MAINT_NOTIFICATIONS",
		{reach: noCall, instead: "no call can send it"}:                         "MONITOR, SYNC, PSYNC, REPLCONF, RESET, CLIENT REPLY, SCRIPT DEBUG",
	} {
		for command := range strings.SplitSeq(commands, ", ") {
			rules[command] = &r
			name, _, _ := strings.Cut(command, " ")
			initial[len(name)%32] |= 1 << (name[0] % 32)
		}
	}
}

// admit finds the rule for a command. The error says that it reaches beyond limit.
func admit(args []any, limit reach) (*rule, error) {
	if len(args) > 0 {
		if name, ok := args[0].(string); ok && isPlain(name) {
			return plain, nil
		}
	}
	var buf [64]byte
	name := appendWord(buf[:0], args, 0)
	if string(name) == "CLIENT" || string(name) == "SCRIPT" {
		name = appendWord(append(name, ' '), args, 1)
	}
	r := cmp.Or(rules[string(name)], plain)
	if r.reach <= limit {
		return r, nil
	}
	return r, &commandError{fmt.Errorf("%w: %s: %s", ErrNotHere, string(name), r.instead), false}
}

// blockIn is where the word BLOCK stands in an XREAD or XREADGROUP, if it is not the name of something.
func blockIn(args []any) int {
	var word [32]byte
	for i := 1; i < len(args); i++ {
		switch string(appendWord(word[:0], args, i)) {
		case "GROUP":
			i += 2 // two names
		case "STREAMS":
			return 0 // keys follow
		case "BLOCK":
			return i
		}
	}
	return 0
}

// blocksFor is for how long a command may block: a year for 0, which means for ever; the least that counts, if the server will refuse it.
func (r *rule) blocksFor(args []any) time.Duration {
	at := r.at
	switch {
	case r.unit == 0:
		return 0
	case at < 0:
		at += len(args)
	case at == 0 && blockIn(args) == 0:
		return 0
	case at == 0:
		at = blockIn(args) + 1
	}
	var room [64]byte
	wire, _ := appendCommand(room[:0], args[min(at, len(args)-1):][:1])               // if it is missing, a word, which is no number
	_, text, _ := bytes.Cut(bytes.TrimPrefix(wire, []byte("*1\r\n")), []byte("\r\n")) // behind its length
	n, err := strconv.ParseFloat(string(bytes.TrimSpace(text)), 64)
	switch seconds := n * r.unit.Seconds(); {
	case err != nil || !(n >= 0):
		return 1
	case n == 0 || seconds > maxSpan.Seconds():
		return maxSpan
	default:
		return time.Duration(seconds*1e9) + 1
	}
}

// appendWord appends the beginning of argument i, if it is text, in upper case. No name here is longer than 30 letters.
func appendWord(dst []byte, args []any, i int) []byte {
	from := len(dst)
	if i < len(args) {
		switch v := args[i].(type) {
		case string:
			dst = append(dst, v[:min(len(v), 31)]...)
		case []byte:
			dst = append(dst, v[:min(len(v), 31)]...)
		}
	}
	for j := from; j < len(dst); j++ {
		if 'a' <= dst[j] && dst[j] <= 'z' {
			dst[j] -= 'a' - 'A'
		}
	}
	return dst
}
