package baton

// This file holds what the server announces and what follows by rule: notifications, the relaxed windows, and the phases of a handoff as a pure
// machine: event and time in, action out. The bridge carries it out, under its lock. Nothing here knows encoding, sockets, goroutines or clocks.

import (
	"net"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// notification is a maintenance frame.
type notification struct {
	name      string // in upper case
	kind      windowKind
	closes    bool // it ends a window of its kind, rather than opening one
	seq       int64
	numbered  bool          // seq was given; 0 is a real one
	window    time.Duration // announced time, from 0 to an hour
	timed     bool          // window was given
	successor string        // host:port; empty: none that can be used was named
	received  tick          // when it was read; set by what remembers it
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

// frames as captured from Redis Enterprise 8: [type, seq, …]; openers but SMIGRATING go on with seconds, and MOVING then with its endpoint.
var frames = map[string]notification{
	"moving":       {name: "MOVING", kind: moving},
	"migrating":    {name: "MIGRATING", kind: migrating},
	"migrated":     {name: "MIGRATED", kind: migrating, closes: true},
	"failing_over": {name: "FAILING_OVER", kind: failingOver},
	"failed_over":  {name: "FAILED_OVER", kind: failingOver, closes: true},
	"smigrating":   {name: "SMIGRATING", kind: slotMigrating},
	"smigrated":    {name: "SMIGRATED", kind: slotMigrating, closes: true},
}

// parseNotification reads a push frame, if it is one, leniently: numbers may be strings, all may be missing, what is behind is ignored.
func parseNotification(push Reply) (n notification, ok bool) {
	if n, ok = frames[push.pushName()]; !ok {
		return n, false
	}
	elems, _ := push.Elems()
	n.seq, n.numbered = integer(elems, 1)
	if n.closes || n.kind == slotMigrating {
		return n, true
	}
	seconds, timed := integer(elems, 2)
	if n.timed = timed; timed {
		n.window = time.Duration(min(max(seconds, 0), 3600)) * time.Second // nothing that a server announces takes longer than an hour
	}
	if n.kind == moving && len(elems) > 2 {
		text, _ := elems[min(3, len(elems)-1)].Text() // in the third place if the time is missing, not null
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
	if err != nil { // which has a value beside it if the number is out of range
		return 0, false
	}
	return v, true
}

// usableEndpoint is an announced endpoint as it can be dialled, or nothing: placeholders ("?", "null", no port, port 0) name nobody.
func usableEndpoint(text string) string {
	host, port := splitEndpoint(strings.TrimSpace(text))
	host = strings.TrimRight(host, ".")
	none := host == "" || host == "?" || port == "" || len(host) > 253 // the longest name that DNS knows
	if none || strings.ContainsFunc(host, func(c rune) bool { return c == '[' || c == ']' || unicode.IsSpace(c) }) {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// relaxation is the relaxed windows of a client: while one is open, timeouts count as no less than the relaxed one. It only loosens.
// Each kind of maintenance has a window of its own, counts those that opened it, and is over when as many have closed it, or by itself.
type relaxation struct {
	m *Maintenance // resolved; read-only

	tail     TickDeadline // relaxed for a while after the event; needs no lock, as the next
	failover TickDeadline // one is under way, or is just over

	mu      lock                      // taken after a bridge's, and never held over anything else
	windows [windowKinds]TickDeadline // guarded by mu, as are the next two. R1: none lasts longer than RelaxedWindowMax
	openers [windowKinds]int
	seen    []notification // R2: at most the latest 64, oldest first: each connection is told of each
}

// observe takes note of a notification read at t. If it is no copy of one read before, tell is called, still under the lock so that
// what several connections read is told in its order; and once more if that opened or closed its window.
func (r *relaxation) observe(n *notification, t tick, tell func(EventKind)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	longest := r.m.RelaxedWindowMax
	for _, s := range r.seen {
		if n.numbered && s.numbered && s.name == n.name && s.seq == n.seq && t < s.received.add(longest) {
			return
		}
	}
	tell(EventNotification)
	n.received = t
	r.seen = append(r.seen[max(len(r.seen)-63, 0):], *n)
	if n.kind == failingOver {
		r.failover.extendTo(t.add(longest))
	}
	if r.m.RelaxedTimeout < 0 {
		return
	}
	window, openers := &r.windows[n.kind], &r.openers[n.kind]
	open := window.pendingAt(t)
	if n.closes {
		r.eventOver(t)
		if *openers--; open && *openers == 0 {
			*window = TickDeadline{}
			tell(EventTightened)
		}
		return
	}
	if !open {
		*openers = 0 // those of a window that ended by itself do not count
		tell(EventRelaxed)
	}
	*openers++
	window.extendTo(t.add(min(max(n.window, r.m.RelaxedTimeout), longest)))
}

// eventOver begins the time after an event.
func (r *relaxation) eventOver(t tick) { r.tail.extendTo(t.add(r.m.PostEventRelaxed)) }

// expired closes the windows that have run out at t, telling the names of their openers, and returns when there is a next one.
func (r *relaxation) expired(t tick, tell func(name string)) (next tick) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = never
	for k := range r.windows {
		switch w := &r.windows[k]; {
		case w.passedAt(t):
			*w = TickDeadline{}
			tell(windowNames[k])
		case w.IsSet():
			next = min(next, w.tick())
		}
	}
	return next
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

// effective is what timeout counts as at t: the looser of itself and the relaxed one. None, which is negative, is the loosest and stays.
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

// merge makes one timeline of several bridges' in a handoff: a step has come when it has for the last of them. Of two handoffs the later stays.
func (h *Handoff) merge(o *Handoff) {
	if o.Received != h.Received || o.Seq != h.Seq {
		if o.Received.After(h.Received) {
			*h = *o
		}
		return
	}
	for at, other := range map[*time.Time]time.Time{&h.Began: o.Began, &h.Ready: o.Ready, &h.Holding: o.Holding, &h.Promoted: o.Promoted,
		&h.Closed: o.Closed} {
		if missing := at.IsZero() || other.IsZero(); missing && at != &h.Holding { // which some never come to
			*at = time.Time{}
		} else if other.After(*at) {
			*at = other
		}
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
	budget    time.Duration // what is left to hold for this announcement; nothing, if negative. M1: Holding has some. M2: time ends all phases but Done
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

// step is the machine, and where the phase changes. What it does not name changes nothing.
func (h *handoff) step(e happening, t tick) (a action) {
	switch p := h.phase; {
	case p != PhaseHolding && e == joined: // a newer announcement replaces the attempt
		h.phase, a = PhasePreparing, prepare
	case p == PhasePreparing && e == readyBusy && h.budget > 0:
		h.phase, a = PhaseHolding, hold
		h.holdUntil = t.add(h.budget)
	case p == PhasePreparing && (e == ready || e == readyBusy):
		h.phase, a = PhaseDone, promote
	case p == PhasePreparing && e == timePassed && t >= h.giveUpAt:
		h.phase, a = PhaseDone, giveUp
	case p == PhaseHolding && (e == drained || e == backlogFull || e == currentEnded || e == timePassed && t >= h.holdUntil):
		h.phase, a = PhaseDone, promote
		h.budget = t.until(h.holdUntil)
	case p == PhaseHolding && e == replacementEnded: // what was held flows to the old connection again
		h.phase, a = PhasePreparing, prepare
		h.budget = t.until(h.holdUntil)
	}
	return a
}

// next is when time itself will change the phase.
func (h *handoff) next() tick {
	return [...]tick{PhaseDone: never, PhasePreparing: h.giveUpAt, PhaseHolding: h.holdUntil}[h.phase]
}
