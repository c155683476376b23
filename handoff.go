package baton

// This file holds what the server announces and what follows from it by rule: reading notifications, the relaxed windows, and
// the phases of a handoff as a pure machine: an event and a time go in, an action comes out. The bridge feeds it under its lock
// and carries the actions out. Nothing here knows encoding, sockets, goroutines or the clock.

import (
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxWindow is the longest window that is believed: nothing that a server announces takes longer than an hour.
const maxWindow = time.Hour

// notification is a maintenance frame.
type notification struct {
	name      string // in upper case
	kind      windowKind
	closes    bool // it ends a window of its kind, rather than opening one
	seq       int64
	numbered  bool          // seq was given; 0 is a real one
	window    time.Duration // announced time, from 0 to maxWindow
	timed     bool          // window was given
	successor string        // host:port; empty: none that can be used was named
}

// windowKind says which maintenance a window belongs to.
type windowKind uint8

const (
	moving windowKind = iota
	migrating
	failingOver
	slotMigrating
	windowKinds
)

var windowNames = [windowKinds]string{"MOVING", "MIGRATING", "FAILING_OVER", "SMIGRATING"}

// Frames as captured from Redis Enterprise 8: [type, seq, seconds, …] for openers except SMIGRATING, which has no time; [type,
// seq, …] for closers. MOVING has its endpoint in the fourth place.
var frames = map[string]notification{
	"moving":       {name: "MOVING", kind: moving},
	"migrating":    {name: "MIGRATING", kind: migrating},
	"migrated":     {name: "MIGRATED", kind: migrating, closes: true},
	"failing_over": {name: "FAILING_OVER", kind: failingOver},
	"failed_over":  {name: "FAILED_OVER", kind: failingOver, closes: true},
	"smigrating":   {name: "SMIGRATING", kind: slotMigrating},
	"smigrated":    {name: "SMIGRATED", kind: slotMigrating, closes: true},
}

// parseNotification reads a push frame leniently: numbers may be strings, what is missing is missing, what is behind is
// ignored. It says no to a push of another type.
func parseNotification(push Reply) (n notification, ok bool) {
	if n, ok = frames[push.pushName()]; !ok {
		return n, false
	}
	elems, _ := push.Elems()
	n.seq, n.numbered = integer(elems, 1)
	if n.closes || n.kind == slotMigrating {
		return n, true
	}
	endpoint := 3
	seconds, timed := integer(elems, 2)
	if n.timed = timed; timed {
		n.window = time.Duration(min(max(seconds, 0), int64(maxWindow/time.Second))) * time.Second
	} else if n.kind == moving && len(elems) == 3 {
		endpoint = 2 // the time is missing, not null
	}
	if n.kind == moving && endpoint < len(elems) {
		text, _ := elems[endpoint].Text()
		n.successor = usableEndpoint(text)
	}
	return n, true
}

// integer is the number in place i, which may be written as text.
func integer(elems []Reply, i int) (int64, bool) {
	if i >= len(elems) {
		return 0, false
	}
	if v, err := elems[i].Int64(); err == nil {
		return v, true
	}
	text, _ := elems[i].Text()
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return v, err == nil
}

// usableEndpoint is an announced endpoint as it can be dialled, or nothing: placeholders ("?", "null", no port, port 0) name
// nobody.
func usableEndpoint(text string) string {
	host, port := splitEndpoint(strings.TrimSpace(text))
	if host == "" || host == "?" || port == "" || len(host) > 253 { // the longest name that DNS knows
		return ""
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}

// relaxation is the relaxed windows of a client: while one is open, timeouts count as no less than the relaxed one. It only
// loosens. Each kind of maintenance has a window of its own, counts those that opened it, and is over when as many have closed
// it, or by itself. Its lock is taken after a bridge's and never held over anything else.
type relaxation struct {
	m *Maintenance // resolved; read-only

	tail     TickDeadline // relaxed for a while after the event; needs no lock, as the next
	failover TickDeadline // one is under way, or is just over

	mu      sync.Mutex
	windows [windowKinds]TickDeadline // guarded by mu, and so are the rest
	openers [windowKinds]int
	seen    [64]sighting // the latest events, in a ring: each connection is told of each
	latest  int
}

type sighting struct {
	name string
	seq  int64
	at   tick
}

// observe takes note of a notification read at t. fresh: it is no copy of one that another connection has read; change: what became of
// its window, if anything did.
func (r *relaxation) observe(n *notification, t tick) (fresh bool, change EventKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.numbered {
		for _, s := range r.seen {
			if s.name == n.name && s.seq == n.seq && t < s.at.add(r.m.RelaxedWindowMax) {
				return false, ""
			}
		}
		r.latest = (r.latest + 1) % len(r.seen)
		r.seen[r.latest] = sighting{n.name, n.seq, t}
	}
	if n.kind == failingOver {
		r.failover.extendTo(t.add(r.m.RelaxedWindowMax))
	}
	if r.m.RelaxedTimeout < 0 {
		return true, ""
	}
	open := r.windows[n.kind].pendingAt(t)
	if !open {
		r.openers[n.kind] = 0 // those of a window that ended by itself
	}
	if n.closes {
		r.openers[n.kind] = max(r.openers[n.kind]-1, 0)
		if open && r.openers[n.kind] == 0 {
			r.windows[n.kind], change = TickDeadline{}, EventTightened
		}
		r.eventOver(t)
		return true, change
	}
	r.openers[n.kind]++
	r.windows[n.kind].extendTo(t.add(min(max(n.window, r.m.RelaxedTimeout), r.m.RelaxedWindowMax)))
	if !open {
		change = EventRelaxed
	}
	return true, change
}

// eventOver begins the time after an event.
func (r *relaxation) eventOver(t tick) {
	if r.m.PostEventRelaxed > 0 {
		r.tail.extendTo(t.add(r.m.PostEventRelaxed))
	}
}

// expired closes a window that has run out at t, its closing frame having been lost, and returns its opener's name. If there is none,
// name is empty and next is when there will be one.
func (r *relaxation) expired(t tick) (name string, next tick) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = never
	for k := range r.windows {
		switch w := &r.windows[k]; {
		case w.passedAt(t):
			r.windows[k], r.openers[k] = TickDeadline{}, 0
			return windowNames[k], t
		case w.IsSet():
			next = min(next, w.tick())
		}
	}
	return "", next
}

// open says whether a window is open at t.
func (r *relaxation) open(t tick) (open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.windows {
		open = open || r.windows[k].pendingAt(t)
	}
	return open
}

// effective is what timeout counts as at t: the looser of itself and the relaxed one. None, which is negative, is the loosest
// of all and stays.
func (r *relaxation) effective(timeout time.Duration, t tick) time.Duration {
	if timeout >= 0 && timeout < r.m.RelaxedTimeout && (r.tail.pendingAt(t) || r.open(t)) {
		return r.m.RelaxedTimeout
	}
	return timeout
}

// Handoff is the timeline of one handoff of all connections of a client. A time is zero while its step has not come for each.
type Handoff struct {
	Seq       int64  // the sequence number of the announcement
	Successor string // empty: none was named

	Received time.Time // the announcement was read
	Began    time.Time // the random jitter was over and the first dial began
	Ready    time.Time // the replacement was ready
	Holding  time.Time // new work began to wait; zero if the old connection was idle or gone
	Promoted time.Time // the replacement took over
	Closed   time.Time // the old connection was closed

	Held     int           // commands that had to wait
	HeldMax  time.Duration // the longest that one of them did
	Lingered int           // commands that the old connection answered after the promotion
	Cut      int           // commands that were in flight on it when it was cut off
}

// merge makes of the timelines of several bridges in one handoff that of them all: a step has come when it has come for the
// last of them. Of different handoffs the later stays.
func (h *Handoff) merge(o *Handoff) {
	if o.Received != h.Received || o.Seq != h.Seq {
		if o.Received.After(h.Received) {
			*h = *o
		}
		return
	}
	for at, other := range map[*time.Time]time.Time{&h.Began: o.Began, &h.Ready: o.Ready, &h.Promoted: o.Promoted, &h.Closed: o.Closed} {
		if at.IsZero() || other.IsZero() {
			*at = time.Time{}
		} else if other.After(*at) {
			*at = other
		}
	}
	if o.Holding.After(h.Holding) {
		h.Holding = o.Holding
	}
	h.HeldMax = max(h.HeldMax, o.HeldMax)
	h.Held, h.Lingered, h.Cut = h.Held+o.Held, h.Lingered+o.Lingered, h.Cut+o.Cut
}

// handoff is the state of one bridge's handoff, changed by step alone, under the bridge's lock.
//
//	phase      new work goes to                          leaves it when
//	Preparing  the current connection; the backlog,      a replacement is ready: Holding if the current connection
//	           whatever the policy, if that has died     lives and has commands in flight, else promote.
//	                                                     The deadline (the window plus one dial) passes: Done, given up
//	Holding    the backlog                               nothing is in flight, or the hold's budget is spent, or the
//	                                                     backlog is full, or the old connection has ended: promote.
//	                                                     The replacement ends: Preparing
//	Done       the current connection                    an announcement is joined: Preparing
type handoff struct {
	phase     Phase
	giveUpAt  tick          // Preparing ends
	holdUntil tick          // Holding ends
	budget    time.Duration // what is left to hold for this announcement
}

// happening is what a handoff can be told.
type happening uint8

const (
	joined           happening = iota // an announcement was joined: giveUpAt is new, and for a new one budget
	ready                             // a replacement is ready and the current connection is idle or gone
	readyBusy                         // a replacement is ready and the current connection has commands in flight
	drained                           // nothing is in flight on the current connection any more
	backlogFull                       // a command found no room
	currentEnded                      // the current connection will not be written to any more
	replacementEnded                  // the replacement was lost before it took over
	timePassed
)

// action is what the bridge must do about it.
type action uint8

const (
	nothing action = iota
	prepare        // have a replacement dialled, whatever was under way
	hold           // stop writing new work
	promote        // let the replacement take over
	giveUp         // carry on without; nothing else changes
)

// step is the machine. What it does not name changes nothing.
func (h *handoff) step(e happening, t tick) action {
	switch p := h.phase; {
	case p == PhaseDone && e == joined, p == PhasePreparing && e == joined: // a newer announcement replaces the attempt
		return h.become(PhasePreparing, prepare)
	case p == PhasePreparing && e == readyBusy && h.budget > 0:
		h.holdUntil = t.add(h.budget)
		return h.become(PhaseHolding, hold)
	case p == PhasePreparing && (e == ready || e == readyBusy):
		return h.become(PhaseDone, promote)
	case p == PhasePreparing && e == timePassed && t >= h.giveUpAt:
		return h.become(PhaseDone, giveUp)
	case p == PhaseHolding && (e == drained || e == backlogFull || e == currentEnded || e == timePassed && t >= h.holdUntil):
		h.budget = max(t.until(h.holdUntil), 0)
		return h.become(PhaseDone, promote)
	case p == PhaseHolding && e == replacementEnded: // what was held flows to the old connection again
		h.budget = t.until(h.holdUntil)
		return h.become(PhasePreparing, prepare)
	}
	return nothing
}

// become is where the phase changes.
func (h *handoff) become(p Phase, a action) action {
	h.phase = p
	return a
}

// never is a moment that does not come.
const never tick = math.MaxInt64

// next is when time itself will change the phase.
func (h *handoff) next() tick {
	switch h.phase {
	case PhasePreparing:
		return h.giveUpAt
	case PhaseHolding:
		return h.holdUntil
	}
	return never
}
