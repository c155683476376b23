// Package baton is a Redis client whose connection hands itself to another server, under full load, without failing a command,
// when the server announces maintenance.
//
// A Client has one or more bridges. A bridge is one logical connection: it writes to its current physical connection, keeps
// what cannot be written yet in its backlog, and replaces the connection when that is lost, or when its server says that it
// will be. Then the replacement is brought up first, new work is held for one round trip while the old connection empties, the
// replacement takes over, and what is still unanswered finishes on the old one. README.md has the contract.
//
// Read the files in this order: tickdeadline, resp3, backlog, conn, pin, handoff, bridge.
package baton

// This file holds the public Client and the bridge: the one lock, the write path, the dialler, and what the handoff's actions
// mean. Every goroutine comes through here: callers, readers and flushers of connections, the dialler, the timer. Each bridge
// has one mutex; what was read before it was taken is not believed after it, because a mutex is not fair and anything may have
// happened while waiting. It is never held across a system call, a callback, a dial or an operation that can block. Lock order:
// bridge, then pin or relaxation; never two bridges.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
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
	counter  atomic.Uint64      // numbers dials and announcements in the order in which they begin
	turn     atomic.Uint32      // whose bridge is next
	lost     atomic.Uint64      // events nobody had room for
	deaf     atomic.Bool        // that there are no notifications was told
	pin      pin
	relax    relaxation
	messages sync.Pool     // of *message
	idle     chan struct{} // of capacity one: while shutting down, something became idle
}

// Dial connects and returns when the first connection is ready, or says why it is not: errors.As finds a *ServerError (WRONGPASS,
// NOAUTH, NOPERM, …), a *net.OpError, a TLS error; errors.Is finds context.DeadlineExceeded when DialTimeout or ctx ran out. Only a
// server that says LOADING, MASTERDOWN or BUSY is asked again. After an error nothing is left behind. ctx bounds this call alone, not the client.
func Dial(ctx context.Context, opts Options) (*Client, error) {
	opts, err := opts.resolved()
	if err != nil {
		return nil, err
	}
	c := &Client{opts: opts, idle: make(chan struct{}, 1)}
	c.pin.configured, c.pin.grace = opts.Addr, max(opts.DialTimeout, opts.Maintenance.RelaxedTimeout)
	looksUp := opts.Network == "tcp" && opts.Proxy == "" && (opts.Dialer == nil || opts.Resolver != nil)
	if host, port := splitEndpoint(opts.Addr); looksUp && net.ParseIP(host) == nil {
		c.pin.host, c.pin.port = host, port
	}
	c.relax.m = &c.opts.Maintenance
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for range opts.Conns {
		b := &bridge{c: c, dialKick: make(chan struct{}, 1), renews: map[chan<- error]uint64{}}
		b.timer = time.AfterFunc(math.MaxInt64, b.tick)
		c.bridges = append(c.bridges, b)
	}
	if opts.OnEvent != nil || opts.Logger != nil {
		c.events = make(chan Event, 256)
	}
	if err := c.dialFirst(ctx); err != nil {
		c.Close()
		return nil, err
	}
	if c.events != nil {
		go c.report()
	}
	for _, b := range c.bridges[1:] {
		b.mu.Lock()
		b.wantLocked()
		b.mu.Unlock()
	}
	return c, nil
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
		case <-time.After(backoff(failures)):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// dial makes one attempt to connect.
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
func (c *Client) Do(ctx context.Context, args ...any) Reply {
	m := newMessage(&c.messages, 1)
	own, err := c.send(ctx, m, args)
	if !own {
		return failure(err)
	}
	reply := m.reply
	if err != nil {
		reply = failure(err)
	}
	m.recycle()
	return reply
}

// DoAppend sends one command whose reply is a string and appends it to dst, without allocating if dst has room. After an error
// dst is returned as it was. baton does not touch dst once DoAppend has returned.
func (c *Client) DoAppend(ctx context.Context, dst []byte, args ...any) ([]byte, error) {
	m := newMessage(&c.messages, 1)
	m.appending, m.dst = true, dst
	own, err := c.send(ctx, m, args)
	if !own {
		return dst, err
	}
	if err == nil {
		dst = m.dst
	}
	m.recycle()
	return dst, err
}

// send is one command on its way: admitted, encoded, given to a bridge and waited for.
func (c *Client) send(ctx context.Context, m *message, args []any) (own bool, err error) {
	if err = admit(args); err == nil {
		m.buf, err = appendCommand(m.buf, args)
	}
	if err != nil {
		return true, err
	}
	return c.run(ctx, m)
}

// run gives m to a bridge and waits for its replies. own says whether m is the caller's again, to be recycled; it is not when the
// caller left while m was in flight.
func (c *Client) run(ctx context.Context, m *message) (own bool, err error) {
	if err := ctx.Err(); err != nil {
		return true, &commandError{err, false}
	}
	b := c.bridges[0]
	if len(c.bridges) > 1 {
		b = c.bridges[c.turn.Add(1)%uint32(len(c.bridges))]
	}
	m.start = now()
	if err := b.enter(m); err != nil {
		return true, err
	}
	return b.await(ctx, m)
}

// Batch is a list of commands that are written together. The zero Batch is empty and ready. It is not for use by several
// goroutines at the same time, and may be reused when the call that it was given to has returned.
type Batch struct {
	buf []byte
	n   int
	err error // of the first command that cannot be sent
}

// Add adds a command. One that cannot be sent makes the batch unusable until Reset: the call that it is given to returns why,
// and sends nothing.
func (b *Batch) Add(args ...any) {
	err := admit(args)
	if err == nil {
		b.buf, err = appendCommand(b.buf, args)
	}
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("%w (command %d of the batch)", err, b.n)
	}
	b.n++
}

// Len is the number of commands added since the last Reset.
func (b *Batch) Len() int { return b.n }

// Reset empties the batch, keeping its memory.
func (b *Batch) Reset() { b.buf, b.n, b.err = b.buf[:0], 0, nil }

// DoBatch sends the commands of a batch in one piece and waits for all replies, which are in the order of the commands. It is not
// a transaction. The error is nil if every reply came, though any of them may be a server's error. If some did not come, the
// replies that did are returned, and the others are failures; if none did, or the call ended by ctx, Timeout or Close, none are.
func (c *Client) DoBatch(ctx context.Context, b *Batch) ([]Reply, error) {
	if b.err != nil || b.n == 0 {
		return nil, b.err
	}
	m := newMessage(&c.messages, b.n)
	m.buf = append(m.buf, b.buf...)
	m.replies = make([]Reply, b.n)
	own, err := c.run(ctx, m)
	if !own {
		return nil, err
	}
	replies := m.replies
	if err != nil && m.got == 0 {
		replies = nil
	}
	m.recycle()
	return replies, err
}

// Stats are counts since Dial, and states at the moment of the call.
type Stats struct {
	Sent            uint64 // commands written
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
	s := Stats{EventsLost: c.lost.Load()}
	for _, b := range c.bridges {
		b.mu.Lock()
		for sum, n := range map[*uint64]uint64{&s.Sent: b.sent, &s.Answered: b.answered, &s.Failed: b.failed, &s.TimedOut: b.timedOut,
			&s.Held: b.held, &s.Reconnects: b.reconnects, &s.Handoffs: b.handoffs, &s.HandoffsGivenUp: b.givenUp} {
			*sum += n
		}
		s.Backlog += b.backlog.commands
		s.InFlight += b.outstandingLocked() - b.backlog.commands
		s.Conns += len(b.conns)
		s.LastHandoff.merge(&b.record)
		b.mu.Unlock()
	}
	return s
}

// Close ends the client at once. What was not written fails with ErrClosed, never sent; what was written and not answered fails
// with ErrClosed and may have been executed. It does not wait for OnEvent. It returns nil, also the second time.
func (c *Client) Close() error {
	for _, b := range c.bridges {
		b.close()
	}
	c.cancel()
	return nil
}

// Shutdown refuses new work, waits for what is queued or in flight, and closes the client. When ctx ends first it closes at once
// and returns ctx's error. A handoff that is holding work goes on; further announcements are ignored.
func (c *Client) Shutdown(ctx context.Context) error {
	defer c.Close()
	for {
		outstanding := 0
		for _, b := range c.bridges {
			b.mu.Lock()
			b.draining = true
			outstanding += b.outstandingLocked()
			b.mu.Unlock()
		}
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

// Renew replaces every connection by one whose dial began after the call: after credentials, certificates or addresses changed. No
// command fails because of it. It returns when all are replaced, nil, or when DialTimeout (relaxed, during maintenance) has passed in
// vain for one of them, with the error of the last dial; the old connection then serves on. A handoff that is under way comes first, and
// what it brings may do. When ctx ends Renew returns at once, and what it has begun goes on.
func (c *Client) Renew(ctx context.Context) error {
	t, wall, results := now(), time.Now(), make(chan error, len(c.bridges))
	for _, b := range c.bridges {
		b.mu.Lock()
		if b.closed || b.draining {
			results <- ErrClosed
		} else {
			b.renewLocked(announcement{wall: wall, asked: true}, results, t)
		}
		b.mu.Unlock()
	}
	var failed error
	for range c.bridges {
		select {
		case err := <-results:
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
	for _, b := range c.bridges {
		b.mu.Lock()
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
		b.mu.Unlock()
	}
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

// bridge is one logical connection.
type bridge struct {
	c        *Client
	timer    *time.Timer   // runs tick
	dialKick chan struct{} // of capacity one: the dialler's moment or reason has changed

	mu sync.Mutex // guards all that follows, and the state of the bridge's connections

	cur     *conn   // what new work goes to; nil: there is none. It may be broken, until its writing has ended
	next    *conn   // the replacement, while Holding
	conns   []*conn // all that are not over yet: these two, and retired or broken ones
	backlog queue

	hand   handoff
	record Handoff       // of the handoff that was joined last
	old    *conn         // which that handoff replaces or replaced, while it lives
	told   *notification // the MOVING with the highest number that next has read
	later  bool          // a newer one than was joined waits for the end of a hold

	dialling    bool // the dialler's goroutine runs
	quest       quest
	cancelDial  context.CancelFunc
	lastDialErr error // why there is no connection, or no replacement: of the last dial, if it failed, or of the loss
	connected   bool  // there was a connection once
	currentAt   tick  // cur became current, or the last one was lost
	clockFrom   tick  // what stands in the backlog since before counts as given then: a hold or a handoff has just ended

	renewal announcement            // what Renew, MaxAge or a failover asks for: a connection whose dial began after it; number 0: nothing
	renews  map[chan<- error]uint64 // the calls of Renew that wait for it, with their numbers
	renewAt tick                    // when MaxAge asks for the next; 0: never
	timerAt tick                    // when tick runs; 0: not armed
	sweepAt tick                    // 0: nothing waited at the last sweep

	draining, closed bool

	sent, answered, failed, timedOut, held, reconnects, handoffs, givenUp uint64 // as in Stats
}

// enter gives m to the bridge. It decides everything in one critical section: a message that may be written joins the queue of
// those in flight and its bytes the out-buffer; one that may not joins the backlog. After an error m is still the caller's, and
// was never sent.
func (b *bridge) enter(m *message) error {
	b.mu.Lock()
	if err := b.refuseLocked(m); err != nil {
		b.failed += uint64(m.want)
		err = b.failureLocked(err)
		b.mu.Unlock()
		return &commandError{err, false}
	}
	if b.sweepAt == 0 {
		b.watchLocked(m.start)
	}
	c, p, mine := b.cur, outBuffer{}, false
	switch {
	case b.hand.phase == PhaseHolding:
		b.held += uint64(m.want)
		b.record.Held += m.want
		b.backlog.pushLocked(m, queued)
	case !c.aliveLocked() || !b.backlog.empty() || !c.roomLocked(m, b.c.opts.MaxInFlight):
		b.backlog.pushLocked(m, queued)
	default:
		b.writeLocked(c, m)
		p, mine = c.departLocked()
	}
	b.mu.Unlock()
	if mine {
		c.write(p)
	}
	return nil
}

func (b *bridge) writeLocked(c *conn, m *message) {
	b.sent += uint64(m.want)
	c.enqueueLocked(m)
}

// takeBackLocked puts work that was given to a connection, and of which not a byte was sent, at the head of the backlog.
func (b *bridge) takeBackLocked(unsent []*message) {
	b.sent -= uint64(b.backlog.returnLocked(unsent))
}

// refuseLocked says why m may not enter. A full backlog ends a hold, which makes room as far as the replacement takes any.
func (b *bridge) refuseLocked(m *message) error {
	if b.closed || b.draining {
		return ErrClosed
	}
	if b.c.opts.Backlog == FailFast && !b.cur.aliveLocked() && b.hand.phase == PhaseDone && b.connected {
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
	case cause == nil && b.closed:
		cause = ErrClosed
	case cause == nil:
		b.timedOut += uint64(m.want)
		if cause = ErrTimeout; own && !b.cur.aliveLocked() {
			cause = fmt.Errorf("%w: %w", ErrTimeout, b.noConnectionLocked())
		}
	}
	b.failed += uint64(m.want)
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
	return true, own, &commandError{b.failureLocked(cause), !own}
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
	if c != b.cur || b.hand.phase == PhaseHolding || !c.aliveLocked() || b.closed {
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
	b.answered += uint64(replies)
	if c == b.old && c.retired {
		b.record.Lingered += replies
	}
	switch {
	case c == b.cur && b.hand.phase == PhaseHolding && c.inFlight.empty():
		b.stepLocked(drained, now())
	case c == b.cur && !b.backlog.empty(), c.retired:
		c.wakeLocked() // there is room again; or nobody waits on it any more, which the flusher judges
	}
	b.idleLocked()
}

// unsentLocked takes back what was given to a connection that is broken and of which it sent nothing, and sees to what the bridge
// is without it. It may be told of the same connection more than once.
func (b *bridge) unsentLocked(c *conn, unsent []*message) {
	b.takeBackLocked(unsent)
	if b.closed {
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
			b.quest.again = max(b.quest.again-1, 0) // the dial that follows has another reason
			fallthrough
		case PhaseHolding:
			b.old = c
		}
		b.emitLocked(Event{Kind: EventLost, Addr: c.addr, Err: c.broken})
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
	b.conns = slices.DeleteFunc(b.conns, func(other *conn) bool { return other == c })
	if b.failed += uint64(cut); cut > 0 {
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
	} else if !c.retired || b.closed {
		return // it was lost, which has been told, or closed with the client
	}
	b.emitLocked(e)
}

// failFastLocked fails the backlog under FailFast, when there is neither a connection nor a handoff that will bring one.
func (b *bridge) failFastLocked() {
	if b.c.opts.Backlog != FailFast || b.hand.phase != PhaseDone || b.cur.aliveLocked() || b.closed {
		return
	}
	cut := b.backlog.cutLocked(b.backlog.head, popped)
	b.failed += uint64(attended(cut))
	failAll(cut, b.failureLocked(b.noConnectionLocked()), false)
	b.idleLocked()
}

// pushed reads a push frame. Bridges whose opt-in was refused are told nothing by their server, and learn of an announcement here.
func (b *bridge) pushed(c *conn, push Reply) {
	n, ok := parseNotification(push)
	if !ok {
		return
	}
	b.mu.Lock()
	b.notifiedLocked(c, n)
	b.mu.Unlock()
	if n.kind != moving {
		return
	}
	for _, sibling := range b.c.bridges {
		sibling.mu.Lock()
		if sibling.cur.aliveLocked() && sibling.cur.deaf != nil {
			sibling.followLocked(now())
		}
		sibling.mu.Unlock()
	}
}

// notifiedLocked acts on a notification. What a retired connection still has to say was said elsewhere, and may be long past.
func (b *bridge) notifiedLocked(c *conn, n notification) {
	if c.retired || b.closed || b.draining || c.protocol == 2 || b.c.opts.Maintenance.Mode == Disabled {
		return
	}
	t := now()
	if n.kind == moving && !n.timed {
		if n.window = b.c.opts.Maintenance.RelaxedTimeout; n.window < 0 {
			n.window = defaultRelaxed
		}
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

// toldLocked is what a connection being told to move leads to. One whose dial began after the announcement is what the announcement
// led to. That comparison is the whole of what tells a replacement from what it replaces, so it holds behind a proxy, and for a server
// restarted in its place. To be told once more is an echo there if the server itself named the place; if nobody did, this may be the
// old place again.
func (b *bridge) toldLocked(c *conn, n *notification, t tick) {
	a := b.c.pin.announce(n, t, func() uint64 { return b.c.counter.Add(1) })
	again := c == b.cur && !c.named && n.seq == a.seq && n.numbered == a.numbered
	if c.attempt < a.number || again {
		b.c.pin.tell(a.number, c.remote)
	}
	switch {
	case c.attempt < a.number && b.quest.number != a.number:
		b.joinLocked(a, t, t)
	case c.attempt > a.number && again && b.hand.phase == PhaseDone && b.quest.mayAgain(a.number):
		b.joinLocked(a, t, t.add(max(t.until(a.deadline()), 0)/2))
		b.quest.again++
	}
}

// followLocked joins the announcement that the client remembers, if the dial of the current connection began before it.
func (b *bridge) followLocked(t tick) {
	if a, ok := b.c.pin.remembered(t); ok && b.cur.attempt < a.number && b.quest.number != a.number {
		b.joinLocked(a, t, t)
	}
}

// joinLocked makes an announcement, or a renewal, the bridge's own; moment is when something can be expected to come of a dial. While
// Holding it waits: the promotion is a round trip away, and the connection that it makes current began before the announcement, which is
// looked at then.
func (b *bridge) joinLocked(a announcement, t, moment tick) {
	if b.later = b.hand.phase == PhaseHolding; b.later || b.draining {
		return
	}
	if a.number != b.quest.number {
		b.hand.budget, b.lastDialErr = b.c.opts.Maintenance.HoldCap, nil
	}
	b.record = Handoff{Seq: a.seq, Successor: a.successor, Received: a.wall}
	b.old = nil
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

// readOnlyLocked replaces a connection whose server takes no writes, if that is a failover's doing: the configured address leads to
// the new master, or will soon.
func (b *bridge) readOnlyLocked(c *conn) {
	if t := now(); b.c.relax.failover.pendingAt(t) && c == b.cur && b.renewal.number == 0 {
		b.renewLocked(announcement{wall: time.Now()}, nil, t)
	}
}

// stepLocked feeds the machine and carries out what it says.
func (b *bridge) stepLocked(e happening, t tick) {
	if b.closed {
		return
	}
	a := b.hand.step(e, t)
	if b.cancelDial != nil && (a == prepare && e == joined || a == giveUp && b.cur != nil) {
		b.cancelDial()
		b.cancelDial = nil // so its end is no failure
	}
	switch a {
	case prepare:
		b.emitLocked(Event{Kind: EventPreparing})
		if e == replacementEnded { // what was held flows again
			b.clockFrom = t
			b.holdEndedLocked()
			b.record.Ready, b.record.Holding = time.Time{}, time.Time{}
		}
		b.wantLocked()
	case hold:
		b.record.Holding = time.Now()
		b.emitLocked(Event{Kind: EventHolding})
	case promote:
		b.promoteLocked(t)
	case giveUp:
		b.givenUp++
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

// promoteLocked lets the replacement take over, in one critical section and without I/O: the old connection gives back what it
// has not begun to write and lingers until it is empty, the new one becomes current.
func (b *bridge) promoteLocked(t tick) {
	b.holdEndedLocked()
	b.record.Promoted = time.Now()
	if b.cur != nil {
		b.takeBackLocked(b.cur.retireLocked())
		b.old = b.cur
	}
	b.cur, b.next, b.clockFrom = b.next, nil, t
	b.handoffs++
	if !b.quest.renewal {
		b.c.relax.eventOver(t)
	}
	b.emitLocked(Event{Kind: EventPromoted, Held: b.record.Held})
	if b.old != nil && !b.old.inFlight.empty() {
		b.emitLocked(Event{Kind: EventLingering, Addr: b.old.addr, Held: b.old.inFlight.commands})
	}
	b.becomeCurrentLocked(t)
}

// holdEndedLocked notes for how long work was held.
func (b *bridge) holdEndedLocked() {
	if began := b.record.Holding; !began.IsZero() {
		b.record.HeldMax = max(b.record.HeldMax, time.Since(began))
	}
}

// becomeCurrentLocked has new work go to cur, and judges what was announced meanwhile.
func (b *bridge) becomeCurrentLocked(t tick) {
	b.currentAt, b.connected, b.lastDialErr = t, true, nil
	b.cur.wakeLocked()
	if b.c.opts.KeepAlive > 0 {
		b.armLocked(t.add(b.c.opts.KeepAlive))
	}
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
	return !b.closed && b.next == nil && (b.cur == nil || b.hand.phase == PhasePreparing)
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
			case <-b.dialKick: // there is something new to consider
			case <-b.c.ctx.Done():
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
	case b.closed || b.cur != nil && !replaces:
		go c.raw.Close() // a system call, so not under the lock
	case replaces:
		b.next, b.record.Ready = c, time.Now()
		b.startLocked(c)
		b.emitLocked(Event{Kind: EventReady, Addr: c.addr})
		if b.cur == nil || b.cur.broken == nil && b.cur.inFlight.empty() {
			b.stepLocked(ready, t)
		} else {
			b.stepLocked(readyBusy, t)
		}
	default:
		b.cur = c
		if b.connected {
			b.reconnects++
			b.emitLocked(Event{Kind: EventConnected})
		}
		b.startLocked(c)
		b.becomeCurrentLocked(t)
	}
}

// startLocked sets a new connection going, and reads the pushes that came in its handshake. One that closes a window is history
// there: the last of them is replayed, even hours later, to whoever opts in.
func (b *bridge) startLocked(c *conn) {
	b.conns = append(b.conns, c)
	c.owner, c.mu = b, &b.mu
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

// watchLocked begins to sweep: something waits.
func (b *bridge) watchLocked(t tick) {
	if b.c.opts.Timeout > 0 {
		b.sweepAt = t.add(min(max(b.c.opts.Timeout/8, 5*time.Millisecond), time.Second))
		b.armLocked(b.sweepAt)
	}
}

// armLocked makes the timer run at t at the latest; 0 is no moment.
func (b *bridge) armLocked(t tick) {
	if t != 0 && t != never && !b.closed && (b.timerAt == 0 || t < b.timerAt) {
		b.timerAt = t
		b.timer.Reset(max(now().until(t), 0))
	}
}

// tick is what time does to the bridge; it runs on the timer's goroutine.
func (b *bridge) tick() {
	b.mu.Lock()
	t := now()
	b.timerAt = 0
	if t >= b.hand.next() {
		b.stepLocked(timePassed, t)
	}
	var silent []*conn
	if b.sweepAt != 0 && t >= b.sweepAt {
		b.sweepAt = 0
		if silent = b.sweepLocked(t); b.outstandingLocked() > 0 {
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
	b.armLocked(b.hand.next())
	b.armLocked(b.sweepAt)
	b.armLocked(b.renewAt)
	b.mu.Unlock()
	for _, c := range silent {
		c.raw.Close()
	}
}

// sweepLocked tells the callers whose time is up to leave, and finds the connections that have fallen silent: with something
// outstanding, no byte for twice the effective timeout. Time in which a write takes long but gets on does not count; a write that is
// stuck does, or a host that is gone would be noticed under load only when TCP gives up, in a quarter of an hour.
func (b *bridge) sweepLocked(t tick) (silent []*conn) {
	o := &b.c.opts
	timeout := b.c.relax.effective(o.Timeout, t)
	limit := t.add(-timeout)
	awaited := b.hand.phase != PhaseDone && b.cur == nil && t < b.currentAt.add(o.Maintenance.RelaxedWindowMax).add(b.c.pin.grace)
	if b.hand.phase != PhaseHolding && !awaited {
		b.backlog.sweepLocked(b.clockFrom, limit)
	}
	for _, c := range b.conns {
		c.inFlight.sweepLocked(0, limit)
		wrote := c.wrote.Load()
		if c.writing && c.swept == c.taken && c.sweptTo < wrote {
			c.quietFrom = t // the write that was under way at the sweep before has got on: that time does not count
		}
		c.swept, c.sweptTo = c.taken, wrote
		quiet := max(c.quietFrom, tick(c.lastRead.Load()))
		if !c.inFlight.empty() && c.broken == nil && t >= quiet.add(timeout).add(timeout) {
			c.breakLocked(fmt.Errorf("baton: connection to %s lost: not a byte for %v", c.addr, quiet.until(t).Round(time.Millisecond)))
			silent = append(silent, c)
		}
	}
	return silent
}

// keepAliveLocked sends a PING if the current connection has been idle for KeepAlive. Nobody waits for its reply; if none comes,
// the connection is silent.
func (b *bridge) keepAliveLocked(t tick) {
	c, every := b.cur, b.c.opts.KeepAlive
	if !c.aliveLocked() || every < 0 || b.c.opts.Timeout < 0 {
		return
	}
	if due := tick(c.lastRead.Load()).add(every); t < due || b.outstandingLocked() > 0 || b.hand.phase == PhaseHolding {
		b.armLocked(max(due, t.add(max(every/4, time.Millisecond))))
		return
	}
	m := newMessage(&b.c.messages, 1)
	m.buf, _ = appendCommand(m.buf, []any{"PING"})
	m.start, m.abandoned = t, true
	b.writeLocked(c, m)
	c.wakeLocked()
	b.watchLocked(t)
	b.armLocked(t.add(every))
}

// ageLocked has the current connection renewed after a while, or up to a tenth earlier.
func (b *bridge) ageLocked(t tick, after time.Duration) {
	if b.c.opts.MaxAge > 0 {
		after = max(after, time.Second)
		b.renewAt = t.add(after - rand.N(after/10))
		b.armLocked(b.renewAt)
	}
}

// expireLocked reports the relaxed windows that have run out.
func (b *bridge) expireLocked(t tick) {
	name, next := b.c.relax.expired(t)
	for ; name != ""; name, next = b.c.relax.expired(t) {
		b.emitLocked(Event{Kind: EventTightened, Notification: name})
	}
	b.armLocked(next)
}

// close ends the bridge: what was not taken to be written is returned to the backlog, everybody who waits is woken to give up,
// and the sockets are closed. It waits for nobody.
func (b *bridge) close() {
	b.mu.Lock()
	b.closed = true
	b.renewedLocked(math.MaxUint64, ErrClosed)
	b.timer.Stop()
	for _, c := range b.conns {
		if !c.retired {
			b.takeBackLocked(c.retireLocked())
		}
		c.breakLocked(ErrClosed)
		c.inFlight.sweepLocked(0, never)
		go c.raw.Close() // a system call, or a user's code
	}
	b.backlog.sweepLocked(0, never)
	b.mu.Unlock()
}

// elsewhere are the commands that would change the state of a connection that others share, or whose replies do not come one
// for one; with them, what to use instead.
var elsewhere = map[string]string{
	"SUBSCRIBE": "", "PSUBSCRIBE": "", "SSUBSCRIBE": "", "UNSUBSCRIBE": "", "PUNSUBSCRIBE": "", "SUNSUBSCRIBE": "",
	"MONITOR": "", "SYNC": "", "PSYNC": "", "RESET": "", "READONLY": "", "READWRITE": "", "ASKING": "",
	"MULTI": "", "EXEC": "", "DISCARD": "", "WATCH": "", "UNWATCH": "", "QUIT": "use Client.Close", "SELECT": "use Options.DB",
	"AUTH": "use Options.Credentials", "HELLO": "use Options.Credentials", "CLIENT SETNAME": "use Options.ClientName",
	"CLIENT REPLY": "", "CLIENT TRACKING": "", "CLIENT CACHING": "", "CLIENT NO-EVICT": "", "CLIENT NO-TOUCH": "",
	"CLIENT MAINT_NOTIFICATIONS": "use Options.Maintenance",
	"BLPOP":                      "", "BRPOP": "", "BLMOVE": "", "BLMPOP": "", "BRPOPLPUSH": "", "BZPOPMIN": "", "BZPOPMAX": "", "BZMPOP": "",
	"XREAD BLOCK": "", "XREADGROUP BLOCK": "", "WAIT": "", "WAITAOF": "",
}

// admit says whether a command may go to a connection that others share.
func admit(args []any) error {
	var buf [64]byte
	name := appendWord(buf[:0], args, 0)
	switch string(name) {
	case "CLIENT":
		name = appendWord(append(name, ' '), args, 1)
	case "XREAD", "XREADGROUP":
		var word [32]byte
		for i := 1; i < len(args); i++ {
			switch string(appendWord(word[:0], args, i)) {
			case "GROUP":
				i += 2 // two names
			case "STREAMS":
				i = len(args) // keys
			case "BLOCK":
				i, name = len(args), append(name, " BLOCK"...)
			}
		}
	}
	if instead, ok := elsewhere[string(name)]; ok {
		return &commandError{fmt.Errorf("%w: %s: %s", ErrNotHere, string(name), cmp.Or(instead, "it needs a connection of its own")), false}
	}
	return nil
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
