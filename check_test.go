package baton

// The invariants that are numbered in the comments of the types, by the same numbers. Each bridge of each test is checked at the end of
// every critical section, and so is each client; benchmarks are not. What is broken is a panic that names the number: under the lock
// there is no test to tell.

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// TestInvariantsAreChecked: each number in a comment of the seven files has its check, and each check its number there.
func TestInvariantsAreChecked(t *testing.T) {
	number := regexp.MustCompile(`\b[QCMBHKPR][0-9]+\b`)
	promised, checked := map[string]bool{}, map[string]bool{}
	for _, room := range rooms {
		for line := range strings.Lines(source(t, room)) {
			if _, comment, ok := strings.Cut(line, "//"); ok {
				for _, n := range number.FindAllString(comment, -1) {
					promised[n] = true
				}
			}
		}
	}
	for _, n := range number.FindAllString(strings.Join(regexp.MustCompile(`invariant\("\w+"`).FindAllString(source(t, "check_test.go"), -1), " "), -1) {
		checked[n] = true
	}
	if len(promised) == 0 || !maps.Equal(promised, checked) {
		t.Errorf("the comments number %v, the checks %v", slices.Sorted(maps.Keys(promised)), slices.Sorted(maps.Keys(checked)))
	}
}

// inspectors see each bridge that a test makes, before its use.
var inspectors = []func(b *bridge){
	func(b *bridge) { b.mu.check = fatal(b.check) },
	func(b *bridge) { b.c.mu.check = fatal(b.c.check) },
	func(b *bridge) { b.c.pin.mu.checkWith(b.c.pin.check) },
	func(b *bridge) { b.c.relax.mu.checkWith(b.c.relax.check) },
}

// checkWith sets the check of a lock that is in use for the client's other bridges.
func (l *lock) checkWith(check func()) {
	l.Lock()
	defer l.Mutex.Unlock()
	l.check = fatal(check)
}

// fatal is a check that ends the process if it panics: everything else would wait for the lock.
func fatal(check func()) func() {
	return func() {
		defer func() {
			if broken := recover(); broken != nil {
				fmt.Fprintf(os.Stderr, "panic: %v\n\n%s", broken, debug.Stack())
				os.Exit(2)
			}
		}()
		check()
	}
}

func init() {
	inspect = func(b *bridge) {
		if flag.Lookup("test.bench").Value.String() != "" {
			return
		}
		for _, f := range inspectors {
			f(b)
		}
	}
}

// unchecked ends the checks of a client, for tests that count allocations, of which checks make some, and for those of great numbers.
func unchecked(c *Client) {
	c.each(false, func(b *bridge) { b.mu.check = nil })
	c.mu.Lock()
	c.mu.check = nil
	c.mu.Unlock()
}

// invariant panics if what a number promises does not hold.
func invariant(number string, holds bool, of ...any) {
	if !holds {
		panic(fmt.Sprintf("baton: invariant %s is broken: %+v", number, of))
	}
}

// looksClosely says whether a queue is looked at message by message: always if it is short, else at each power of two, so that tests with
// thousands in flight take linear time.
func (q *queue) looksClosely() bool { return q.commands <= 64 || q.commands&(q.commands-1) == 0 }

func (q *queue) check(p place) {
	invariant("Q1", (q.head == nil) == (q.tail == nil) && (q.head != nil || q.commands == 0 && q.bytes == 0), *q)
	if !q.looksClosely() {
		return
	}
	commands, bytes := 0, 0
	var prev *message
	for m := q.head; m != nil; prev, m = m, m.next {
		invariant("Q1", m.prev == prev, m)
		invariant("Q3", m.place == p && 0 <= m.got && m.got < m.want, m)
		invariant("Q4", p == inFlight || !m.abandoned && m.got == 0, m)
		commands, bytes = commands+m.want-m.got, bytes+len(m.buf)
	}
	invariant("Q1", q.tail == prev)
	invariant("Q2", q.commands == commands && q.bytes == bytes, *q, commands, bytes)
}

func (c *conn) check() {
	c.inFlight.check(inFlight)
	wrote, waits := c.wrote.Load(), int64(len(c.out.tail))
	for _, part := range c.out.sealed {
		waits += int64(len(part))
	}
	invariant("C1", wrote <= c.taken && c.taken <= c.given && c.given-c.taken == waits, wrote, c.taken, c.given, waits)
	invariant("C2", wrote == c.taken || c.writing || c.broken != nil, wrote, c.taken)
	if c.inFlight.looksClosely() {
		for m := c.inFlight.head; m != nil; m = m.next {
			invariant("C3", m.end-m.begin == int64(len(m.buf)) && (m.next == nil || m.next.begin == m.end), m, m.next)
		}
	}
	last := c.inFlight.tail
	invariant("C3", last == nil || last.end == c.given || last.end < c.given && c.broken != nil, last, c.given)
	invariant("C4", len(c.kick) == 0 || c.awake)
	invariant("C4", c.broken != nil || c.given == c.taken || c.writing || c.awake || c.waking, c.given, c.taken)
	invariant("C4", c.broken != nil || !c.retired || c.inFlight.attendedLocked() || c.writing || c.awake)
	unread := c.inFlight.head != nil && c.inFlight.head.begin < c.taken
	invariant("C5", c.role != byNobody || c.broken == nil && !unread, c.role, unread, c.broken)
	invariant("C6", !c.readDone || c.broken != nil)
	invariant("C6", !c.ended || c.readDone && !c.writing && c.inFlight.empty() && waits == 0)
}

func (h *handoff) check() {
	invariant("M1", h.phase != PhaseHolding || h.budget > 0, h)
	invariant("M2", (h.next() == never) == (h.phase == PhaseDone), h)
}

func (b *bridge) check() {
	b.backlog.check(queued)
	for i, c := range b.conns {
		c.check()
		invariant("B1", c.mu == &b.mu && !c.ended && !slices.Contains(b.conns[:i], c), c.addr)
		invariant("B2", c == b.cur || c == b.next || c.retired || c.broken != nil, c.addr)
	}
	for _, c := range []*conn{b.cur, b.next, b.old} {
		invariant("B1", c == nil || slices.Contains(b.conns, c) || b.ended != nil)
	}
	invariant("B12", b.session == nil || b.lazy && b.hand.phase == PhaseDone)
	invariant("B12", b.hub == nil || !b.lazy)
	inFlight := uint64(b.outstandingLocked() - b.backlog.commands)
	invariant("B11", b.stats.Sent >= b.stats.Answered+inFlight, b.stats, inFlight)
	if b.hub != nil {
		b.hub.check()
	}
	if b.ended != nil {
		return // nothing begins any more
	}
	b.hand.check()
	invariant("B2", b.cur == nil || !b.cur.retired && b.cur != b.next)
	invariant("B2", b.next == nil || !b.next.retired)
	holding := b.hand.phase == PhaseHolding
	invariant("B3", (b.next != nil) == holding && (b.cur != nil || !holding), b.hand, b.cur == nil, b.next == nil)
	invariant("B4", !holding || b.hub != nil || !b.cur.inFlight.empty() || b.cur.broken != nil, b.hand)
	if cur := b.cur; cur.aliveLocked() && !holding && !b.backlog.empty() {
		invariant("B5", cur.awake || cur.writing || cur.waking || !cur.roomLocked(b.backlog.head, b.c.opts.MaxInFlight))
	}
	began := b.currentAt != 0 || b.lazy || b.hub != nil // before, Dial connects, or will ask for a connection
	invariant("B6", !began || !b.needLocked() || b.dialling, b.hand, b.cur == nil)
	invariant("B6", b.cancelDial == nil || b.dialling)
	invariant("B7", b.hand.next() == never || b.timerAt != 0 && b.timerAt <= b.hand.next(), b.hand, b.timerAt)
	waits := b.outstandingLocked() > 0 && b.c.opts.Timeout > 0
	invariant("B7", !waits || b.sweepAt != 0 && b.timerAt != 0 && b.timerAt <= b.sweepAt, b.sweepAt, b.timerAt)
	invariant("B8", b.told == nil || b.next != nil)
	for _, n := range b.renews {
		invariant("B9", n <= b.renewal.number, n, b.renewal.number)
	}
	invariant("B10", b.hand.budget <= max(b.c.opts.Maintenance.HoldCap, 0) || b.hub != nil, b.hand)
}

func (h *hub) check() {
	live := 0
	for c, f := range h.feeds {
		invariant("H1", f.c == c && slices.Contains(h.b.conns, c))
		if f.live {
			live++
		}
	}
	invariant("H2", live <= 1, live)
	for t, subs := range h.topics {
		invariant("H3", len(subs) > 0, t)
		for i, s := range subs {
			in := s.topics[t.name]
			invariant("H3", s.kind == t.kind && in != nil && in.err == nil && s.err == nil && !slices.Contains(subs[:i], s), t)
			invariant("H4", len(s.queue) <= h.b.c.opts.MaxMessages+1, len(s.queue))
		}
	}
}

func (c *Client) check() {
	for _, b := range c.free {
		invariant("K1", c.dedicated[b] && b.session == nil)
		invariant("K2", !slices.Contains(c.over, b))
	}
	invariant("K1", len(c.free) <= c.opts.MaxDedicated, len(c.free))
	for _, b := range c.over {
		invariant("K2", c.dedicated[b])
	}
}

func (p *pin) check() {
	a := &p.a
	invariant("P1", a.found == "" || !a.wasTold(a.found), a.found, a.told)
	for i, host := range a.told {
		invariant("P2", !slices.Contains(a.told[:i], host), a.told)
	}
}

func (r *relaxation) check() {
	t := now()
	for k := range r.windows {
		invariant("R1", r.windows[k].tick() <= t.add(r.m.RelaxedWindowMax), k)
	}
	invariant("R2", len(r.seen) <= 64)
}
