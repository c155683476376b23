package main

// This file holds the episodes of a soak: handoffs that no command may notice, and faults that excuse what they break, and nothing
// else. The conductor's goroutine plays one at a time, and each lifts what it has done. Windows are long enough for every handoff in
// them, also for one that begins late because it follows others closely: by half of its window, and the jitter of a tenth.

import (
	"context"
	"sync"
	"time"
)

// An episode is one thing that can happen.
type episode struct {
	name   string
	weight int // how often it comes in one deck
	play   func(s *soaker)
}

var episodes = []episode{
	{"named handoff", 3, (*soaker).playNamed},
	{"unnamed handoff", 2, (*soaker).playUnnamed},
	{"repeated announcement", 2, (*soaker).playRepeated},
	{"dead successor", 1, (*soaker).playDead},
	{"successor that refuses at first", 1, (*soaker).playRefusing},
	{"moved on while on the way", 1, (*soaker).playOnwards},
	{"another successor", 1, (*soaker).playOtherwise},
	{"handoff of a slow server", 1, (*soaker).playSlowHandoff},
	{"handoff and a freeze", 1, (*soaker).playFrozenHandoff},
	{"handoff and Renew", 1, (*soaker).playRenewInHandoff},
	{"Renew", 3, (*soaker).playRenew},
	{"other maintenance", 1, (*soaker).playOther},
	{"notifications that make no sense", 1, (*soaker).playNonsense},
	{"slow server", 1, (*soaker).playSlow},
	{"freeze", 2, (*soaker).playFreeze},
	{"cut", 3, (*soaker).playCut},
	{"cut in a handoff", 2, (*soaker).playCutInHandoff},
	{"refusals", 1, (*soaker).playRefusals},
	{"successor that stalls", 1, (*soaker).playStalling},
	{"restart in place", 1, (*soaker).playInPlace},
	{"sent round in circles", 1, (*soaker).playCircle},
}

// between is a random time.
func (s *soaker) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.rand.Int64N(int64(most-least)+1))
}

// seconds is a random whole number of seconds: that is what can be announced.
func (s *soaker) seconds(least, most int) time.Duration {
	return time.Duration(least+s.rand.IntN(most-least+1)) * time.Second
}

// other is a place to go to, none of not.
func (s *soaker) other(not ...place) place {
	for {
		p := s.places[s.rand.IntN(3)] // a fourth is for the data alone
		free := true
		for _, n := range not {
			free = free && p != n
		}
		if free {
			return p
		}
	}
}

// A move is an announced window.
type move struct {
	from  place
	began time.Time
	span  time.Duration
}

// move announces. What may break when the window ends is its grade: windowEnd for a handoff that must go well.
func (s *soaker) move(from place, successor string, window time.Duration, name string, g grade) move {
	m := move{from, time.Now(), window}
	s.tell("%s to %q in %v", from.Addr(), successor, window)
	s.announced++
	end := m.began.Add(window)
	s.expect(disturbance{name, g, end.Add(-10 * time.Millisecond), end.Add(afterwards), m.began})
	from.Move(successor, window)
	return m
}

// until waits for the part of the window to come.
func (s *soaker) until(m move, part float64) bool {
	return sleepUntil(s.ctx.Done(), m.began.Add(time.Duration(part*float64(m.span))))
}

// ends waits for the end of the window and for the last bytes.
func (s *soaker) ends(m move) {
	s.until(m, 1)
	for late := time.Now().Add(margin); m.from.Conns() > 0 && time.Now().Before(late) && s.ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
}

// arrive has the configured address lead to p at a random moment before the end of the given part of the window, and takes p for
// where the clients are from then on.
func (s *soaker) arrive(m move, p place, part float64) {
	s.until(m, part*s.rand.Float64())
	s.lead(p)
	s.at = p
}

const cleanEnd = "the end of a window"

func (s *soaker) playNamed() {
	from, to := s.at, s.other(s.at)
	m := s.move(from, to.Addr(), s.seconds(2, 3), cleanEnd, windowEnd)
	s.arrive(m, to, 0.8)
	s.ends(m)
}

// Half of the window on the configured address is dialled, which leads to the new place by then.
func (s *soaker) playUnnamed() {
	m := s.move(s.at, "", s.seconds(3, 4), cleanEnd, windowEnd)
	s.arrive(m, s.other(s.at), 0.4)
	s.ends(m)
}

// The same announcement again, and an older one that names somebody else.
func (s *soaker) playRepeated() {
	from, to := s.at, s.other(s.at)
	older := from.NextSeq()
	m := s.move(from, to.Addr(), s.seconds(2, 3), cleanEnd, windowEnd)
	s.arrive(m, to, 0.2)
	for range 1 + s.rand.IntN(6) {
		s.pause(s.between(0, m.span/10))
		from.Push("MOVING", older+1, int(m.span.Seconds()), to.Addr())
		if s.rand.IntN(2) == 0 {
			from.Push("MOVING", older, 1, s.dead)
		}
	}
	s.ends(m)
}

// calm waits until no cut is felt any more: a client without a connection dials the successor, too, and has nothing to go on with if
// that is dead.
func (s *soaker) calm() { sleepUntil(s.ctx.Done(), s.felt()) }

// From half of the window on the configured address is dialled in turn.
func (s *soaker) playDead() {
	s.calm()
	m := s.move(s.at, s.dead, s.seconds(6, 7), cleanEnd, windowEnd)
	s.arrive(m, s.other(s.at), 0.4)
	s.ends(m)
}

func (s *soaker) playRefusing() {
	s.calm()
	from, to := s.at, s.other(s.at)
	to.Refuse(true)
	m := s.move(from, to.Addr(), s.seconds(5, 6), cleanEnd, windowEnd)
	s.until(m, 0.3*s.rand.Float64())
	to.Refuse(false)
	s.arrive(m, to, 0.5)
	s.ends(m)
}

// A place must move as well while the clients are still on their way to it. Whoever comes there is told the whole window again, though
// a part of it is over, and goes on by half of that, and the jitter: so the second window is more than twice the first.
func (s *soaker) playOnwards() {
	a, b := s.at, s.other(s.at)
	c := s.other(a, b)
	first := s.move(a, b.Addr(), s.seconds(2, 3), cleanEnd, windowEnd)
	s.arrive(first, b, 0.25)
	second := s.move(b, c.Addr(), s.seconds(8, 9), cleanEnd, windowEnd)
	s.arrive(second, c, 0.3)
	s.ends(first)
	s.ends(second)
}

// A server changes its mind. Clients that are at the first place by then stay there.
func (s *soaker) playOtherwise() {
	a, b := s.at, s.other(s.at)
	c := s.other(a, b)
	first := s.move(a, b.Addr(), 6*time.Second, cleanEnd, windowEnd)
	s.arrive(first, b, 0.25)
	second := s.move(a, c.Addr(), 6*time.Second, cleanEnd, windowEnd)
	s.arrive(second, c, 0.5)
	s.ends(first)
	s.ends(second)
}

// slowed is how late a server answers each INCR: all that are in flight on one connection take a tenth of a second, on a machine that runs.
func (s *soaker) slowed() time.Duration {
	return 100 * time.Millisecond / time.Duration(s.cfg.workers+besideWorkers)
}

// slow has all places answer late until it is told that this is over.
func (s *soaker) slow() (over func()) {
	lifted := s.disturb(slowServer, sluggish)
	for _, p := range s.places[:3] {
		p.Delay("INCR", s.slowed())
	}
	return func() {
		for _, p := range s.places[:3] {
			p.Delay("INCR", 0)
		}
		lifted()
	}
}

func (s *soaker) playSlow() {
	over := s.slow()
	s.pause(s.between(200*time.Millisecond, 1500*time.Millisecond))
	over()
}

func (s *soaker) playSlowHandoff() {
	over := s.slow()
	from, to := s.at, s.other(s.at)
	m := s.move(from, to.Addr(), 4*time.Second, cleanEnd, windowEnd)
	s.arrive(m, to, 0.8)
	s.ends(m)
	over()
}

func (s *soaker) freeze(p place, d time.Duration) {
	over := s.disturb("a freeze", sluggish)
	p.Freeze(true)
	s.pause(d)
	p.Freeze(false)
	over()
}

func (s *soaker) playFreeze() { s.freeze(s.at, s.between(20*time.Millisecond, 2*time.Second)) }

// Either side of a handoff stands still for a moment. What is in flight on the old one is answered when it goes on.
func (s *soaker) playFrozenHandoff() {
	from, to := s.at, s.other(s.at)
	m := s.move(from, to.Addr(), 4*time.Second, cleanEnd, windowEnd)
	frozen := from
	if s.rand.IntN(2) == 0 {
		frozen = to
	}
	s.pause(s.between(0, 400*time.Millisecond))
	s.freeze(frozen, s.between(20*time.Millisecond, 800*time.Millisecond))
	s.arrive(m, to, 0.8)
	s.ends(m)
}

// renew calls Renew, at times from several goroutines. Nothing but a fault may make it fail.
func (s *soaker) renew() {
	ctx, cancel := context.WithTimeout(s.ctx, commandTime)
	defer cancel()
	var calls sync.WaitGroup
	for range 1 + s.rand.IntN(3) {
		calls.Go(func() {
			began := time.Now()
			if err := s.client.Renew(ctx); err != nil && s.ctx.Err() == nil {
				s.failed("Renew", err, began, hard, hard)
			}
		})
	}
	calls.Wait()
}

func (s *soaker) playRenew() {
	for range 1 + s.rand.IntN(3) {
		s.renew()
		s.pause(s.between(0, 200*time.Millisecond))
	}
}

func (s *soaker) playRenewInHandoff() { s.inHandoff(600*time.Millisecond, s.renew) }

// inHandoff does something at any moment of a handoff, until so long after its announcement.
func (s *soaker) inHandoff(until time.Duration, do func()) {
	from, to := s.at, s.other(s.at)
	m := s.move(from, to.Addr(), 4*time.Second, cleanEnd, windowEnd)
	s.pause(s.between(0, until))
	do()
	s.arrive(m, to, 0.8)
	s.ends(m)
}

// What relaxes timeouts, and at times its end.
func (s *soaker) playOther() {
	opener, closer := "MIGRATING", "MIGRATED"
	if s.rand.IntN(2) == 0 {
		opener, closer = "FAILING_OVER", "FAILED_OVER"
	}
	for range 1 + s.rand.IntN(3) {
		s.at.Push(opener, s.at.NextSeq(), 2, []string{"1", "2"})
	}
	s.pause(s.between(0, 500*time.Millisecond))
	if s.rand.IntN(3) > 0 {
		s.at.Push(closer, s.at.NextSeq(), []string{"1", "2"})
	}
}

func (s *soaker) playNonsense() {
	frames := [][]any{{"MOVING"}, {"MOVING", "one", "two", "three"}, {"MOVING", -1, -1, "?"}, {"MOVING", nil, nil, nil}, {"MIGRATED"},
		{"SMIGRATED", "x", 3}, {"MOVED_ELSEWHERE", 1, 2, "a"}, {"MOVING", []any{1}, []any{}, []any{"x"}}, {7, 8}, {nil}, {"invalidate", nil}}
	for range 1 + s.rand.IntN(5) {
		s.at.Push(frames[s.rand.IntN(len(frames))]...)
		s.pause(s.between(0, 50*time.Millisecond))
	}
}

// cut resets the connections to one place, or to all.
func (s *soaker) cut() {
	over := s.disturb("a cut", hard)
	if s.rand.IntN(2) == 0 {
		s.at.Cut()
	} else {
		for _, p := range s.places[:3] {
			p.Cut()
		}
	}
	over()
}

func (s *soaker) playCut() {
	for range 1 + s.rand.IntN(2) {
		s.cut()
		s.pause(s.between(0, 400*time.Millisecond))
	}
}

// Every dial goes to the successor, also after a cut.
func (s *soaker) playCutInHandoff() { s.inHandoff(800*time.Millisecond, s.cut) }

func (s *soaker) playRefusals() {
	over := s.disturb("refusals", hard)
	s.at.Refuse(true)
	s.at.Cut()
	s.pause(s.between(20*time.Millisecond, 1500*time.Millisecond))
	s.at.Refuse(false)
	over()
}

// Dials of the successor hang, and with them the handoff may be late: then the end of the window cuts.
func (s *soaker) playStalling() {
	const name = "a successor that stalls"
	from, to := s.at, s.other(s.at)
	over := s.disturb(name, hard)
	to.Stall(true)
	m := s.move(from, to.Addr(), s.seconds(3, 4), name, hard)
	s.pause(s.between(100*time.Millisecond, time.Second))
	to.Stall(false)
	to.Cut() // what hangs
	over()
	s.arrive(m, to, 0.8)
	s.ends(m)
}

// The same address again: what is connected at the end of the window is cut, whenever it was dialled.
func (s *soaker) playInPlace() {
	successor := ""
	if s.rand.IntN(2) == 0 {
		successor = s.at.Addr()
	}
	s.ends(s.move(s.at, successor, s.seconds(1, 2), "a restart in place", hard))
}

// Two places that send clients to each other.
func (s *soaker) playCircle() {
	a, b := s.at, s.other(s.at)
	const name = "being sent round in circles"
	var last move
	for range 2 + s.rand.IntN(3) {
		last = s.move(a, b.Addr(), 2*time.Second, name, hard)
		s.lead(b)
		a, b = b, a
		s.at = a
		s.pause(s.between(50*time.Millisecond, 700*time.Millisecond))
	}
	s.ends(last)
	s.pause(100 * time.Millisecond)
}
