package baton

// This file holds TickDeadline, the one deadline type of the maintenance code, and the clock it reads. It runs on whichever goroutine
// calls it and takes no lock. It knows no timers and no goroutines: who needs to act when a deadline passes looks at it, or arms a timer.

import (
	"sync/atomic"
	"time"
)

// tick is a moment of the monotonic clock in nanoseconds: a wall clock that is set moves no tick. Only differences mean anything.
type tick int64

const (
	origin  = 1 << 61              // 73 years: ticks are positive also where time stands before the process began, as in a test's bubble
	maxSpan = 365 * 24 * time.Hour // the longest span that is added: longer than any window that means anything, far from overflowing
	never   = tick(1<<63 - 1)      // a moment that does not come
)

var epoch = time.Now()

// now reads the clock: 27 ns, half of what time.Now costs.
func now() tick { return tick(time.Since(epoch)) + origin }

// add is t moved by span, which is clamped to maxSpan either way.
func (t tick) add(span time.Duration) tick { return t + tick(min(max(span, -maxSpan), maxSpan)) }

// until is the time from t to u, negative if u is earlier.
func (t tick) until(u tick) time.Duration { return time.Duration(u - t) }

// TickDeadline is a moment on the monotonic clock that can be set, and moved later, never earlier. The zero TickDeadline is unset; a passed one
// stays as the record of when it passed. Any goroutine may call its methods at any time; it must not be copied after its first use.
//
// To end one early, its owner puts a fresh one in its place under the lock that guards the place: a deadline that could be shortened
// would let a late decision undo a newer one.
type TickDeadline struct {
	at atomic.Int64 // 0: unset
}

// Extend sets the deadline to span from now, unless it is later already. Zero or less has passed at once; more than a year is a year.
func (d *TickDeadline) Extend(span time.Duration) { d.extendTo(now().add(span)) }

func (d *TickDeadline) extendTo(t tick) {
	for old := d.at.Load(); old < int64(t) && !d.at.CompareAndSwap(old, int64(t)); old = d.at.Load() {
	}
}

// IsSet says whether the deadline was ever set, passed or not.
func (d *TickDeadline) IsSet() bool { return d.at.Load() != 0 }

// Passed says whether the deadline was set and has come. An unset one never passes.
func (d *TickDeadline) Passed() bool { return d.passedAt(now()) }

// Pending says whether the deadline is set and still to come.
func (d *TickDeadline) Pending() bool { return d.pendingAt(now()) }

// Remaining is the time until the deadline, negative by how long ago it passed, and zero if it is unset.
func (d *TickDeadline) Remaining() time.Duration {
	if at := d.tick(); at != 0 {
		return now().until(at)
	}
	return 0
}

func (d *TickDeadline) tick() tick            { return tick(d.at.Load()) }
func (d *TickDeadline) passedAt(t tick) bool  { at := d.tick(); return at != 0 && at <= t }
func (d *TickDeadline) pendingAt(t tick) bool { return d.tick() > t }
