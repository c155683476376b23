package baton

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// --- the machine ---

var allHappenings = []happening{joined, ready, readyBusy, drained, backlogFull, currentEnded, replacementEnded, timePassed}

// TestMachineEveryCell walks every cell of phase and happening, including those in which nothing happens.
func TestMachineEveryCell(t *testing.T) {
	const t0 = tick(origin)
	type cell struct {
		phase Phase
		e     happening
	}
	type outcome struct {
		phase Phase
		a     action
	}
	does := map[cell]outcome{
		{PhaseDone, joined}:                {PhasePreparing, prepare},
		{PhasePreparing, joined}:           {PhasePreparing, prepare},
		{PhasePreparing, ready}:            {PhaseDone, promote},
		{PhasePreparing, readyBusy}:        {PhaseHolding, hold},
		{PhasePreparing, timePassed}:       {PhaseDone, giveUp},
		{PhaseHolding, drained}:            {PhaseDone, promote},
		{PhaseHolding, backlogFull}:        {PhaseDone, promote},
		{PhaseHolding, currentEnded}:       {PhaseDone, promote},
		{PhaseHolding, replacementEnded}:   {PhasePreparing, prepare},
		{PhaseHolding, timePassed}:         {PhaseDone, promote},
		{PhaseDone, timePassed}:            {PhaseDone, nothing},
		{PhaseHolding, joined}:             {PhaseHolding, nothing},
		{PhasePreparing, backlogFull}:      {PhasePreparing, nothing},
		{PhasePreparing, currentEnded}:     {PhasePreparing, nothing},
		{PhasePreparing, replacementEnded}: {PhasePreparing, nothing},
		{PhasePreparing, drained}:          {PhasePreparing, nothing},
		{PhaseDone, ready}:                 {PhaseDone, nothing},
		{PhaseDone, readyBusy}:             {PhaseDone, nothing},
		{PhaseDone, drained}:               {PhaseDone, nothing},
		{PhaseDone, backlogFull}:           {PhaseDone, nothing},
		{PhaseDone, currentEnded}:          {PhaseDone, nothing},
		{PhaseDone, replacementEnded}:      {PhaseDone, nothing},
		{PhaseHolding, ready}:              {PhaseHolding, nothing},
		{PhaseHolding, readyBusy}:          {PhaseHolding, nothing},
	}
	for _, phase := range []Phase{PhaseDone, PhasePreparing, PhaseHolding} {
		for _, e := range allHappenings {
			want, named := does[cell{phase, e}]
			if !named {
				t.Fatalf("the test has no cell for %v and happening %d", phase, e)
			}
			// At t0 every deadline has just come.
			h := handoff{phase: phase, giveUpAt: t0, holdUntil: t0, budget: 50 * time.Millisecond}
			if a := h.step(e, t0); a != want.a || h.phase != want.phase {
				t.Errorf("%v, happening %d: action %d and then %v, want action %d and then %v", phase, e, a, h.phase, want.a, want.phase)
			}
			if want.a == nothing && (h.giveUpAt != t0 || h.holdUntil != t0 || h.budget != 50*time.Millisecond) {
				t.Errorf("%v, happening %d, which changes nothing, changed something: %+v", phase, e, h)
			}
		}
	}
}

func TestMachineTimeThatHasNotComeChangesNothing(t *testing.T) {
	const t0 = tick(origin)
	for _, phase := range []Phase{PhaseDone, PhasePreparing, PhaseHolding} {
		h := handoff{phase: phase, giveUpAt: t0 + 1, holdUntil: t0 + 1, budget: time.Second}
		if before := h; h.step(timePassed, t0) != nothing || h != before {
			t.Errorf("%v: a moment too early, and yet %+v", phase, h)
		}
	}
}

func TestMachineKnowsWhenTimeMatters(t *testing.T) {
	h := handoff{giveUpAt: 11, holdUntil: 22}
	for phase, want := range map[Phase]tick{PhaseDone: never, PhasePreparing: 11, PhaseHolding: 22} {
		if h.phase = phase; h.next() != want {
			t.Errorf("%v: the next moment is %d, want %d", phase, h.next(), want)
		}
	}
}

// TestMachineSpendsOneBudget has replacement after replacement die while work is held: together they hold no longer
// than the budget, and when that is spent the next one takes over at once.
func TestMachineSpendsOneBudget(t *testing.T) {
	t0 := tick(origin)
	h := handoff{budget: 50 * time.Millisecond, giveUpAt: t0.add(time.Minute)}
	h.step(joined, t0)
	for spent := time.Duration(0); spent < 50*time.Millisecond; spent += 10 * time.Millisecond {
		if a := h.step(readyBusy, t0); a != hold {
			t.Fatalf("with %v spent the machine does %d, want to hold", spent, a)
		}
		if left := t0.until(h.holdUntil); left != 50*time.Millisecond-spent {
			t.Fatalf("with %v spent the hold may still last %v", spent, left)
		}
		t0 = t0.add(10 * time.Millisecond)
		h.step(replacementEnded, t0)
		t0 = t0.add(time.Second) // the next one is dialled: that is not counted
	}
	if a := h.step(readyBusy, t0); a != promote || h.phase != PhaseDone {
		t.Fatalf("with nothing left of the budget: action %d, phase %v, want to promote", a, h.phase)
	}
}

func TestMachineNeverHoldsWithoutBudget(t *testing.T) {
	for _, budget := range []time.Duration{0, -1, math.MinInt64} {
		h := handoff{phase: PhasePreparing, budget: budget, giveUpAt: never}
		if a := h.step(readyBusy, origin); a != promote || h.phase != PhaseDone {
			t.Errorf("budget %v: action %d, phase %v, want to promote at once", budget, a, h.phase)
		}
	}
}

// --- reading notifications ---

func pushOf(t *testing.T, raw string) Reply {
	t.Helper()
	d := newDecoder(limits{1 << 20, 128, 1 << 20})
	for r := strings.NewReader(raw); ; {
		f, ok, err := d.next()
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if ok {
			return d.reply(f)
		}
		if n, err := d.readFrom(r); n == 0 && err != nil {
			t.Fatalf("%q is not whole", raw)
		}
	}
}

// framed is a push frame of bulk strings.
func framed(words ...string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, ">%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

func TestParseNotification(t *testing.T) {
	const (
		s       = time.Second
		mov     = ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n"
		to      = "54.78.247.156:12075"
		shards  = "$6\r\n[\"27\"]\r\n"
		triplet = "*3\r\n$20\r\n10.129.228.140:13486\r\n$18\r\n10.252.90.18:13486\r\n$9\r\n8892-8991\r\n"
	)
	moved := func(seq int64, window time.Duration, successor string) notification {
		return notification{name: "MOVING", kind: moving, seq: seq, numbered: true, window: window, timed: true, successor: successor}
	}
	with := func(n notification, change func(*notification)) notification { change(&n); return n }
	opened := func(name string, kind windowKind, seq int64, window time.Duration) notification {
		return notification{name: name, kind: kind, seq: seq, numbered: true, window: window, timed: true}
	}
	over := func(name string, kind windowKind, seq int64) notification {
		return notification{name: name, kind: kind, closes: true, seq: seq, numbered: true}
	}
	for _, c := range []struct {
		name, raw string
		want      notification
	}{
		// As captured from Redis Enterprise 8.
		{"moving, named", ">4\r\n$6\r\nMOVING\r\n:17\r\n:15\r\n$19\r\n" + to + "\r\n", moved(17, 15*s, to)},
		{"moving, unnamed, number 0", ">4\r\n$6\r\nMOVING\r\n:0\r\n:15\r\n_\r\n", moved(0, 15*s, "")},
		{"migrating", ">4\r\n$9\r\nMIGRATING\r\n:0\r\n:2\r\n" + shards, opened("MIGRATING", migrating, 0, 2*s)},
		{"migrated", ">3\r\n$8\r\nMIGRATED\r\n:1\r\n" + shards, over("MIGRATED", migrating, 1)},
		{"failing over", ">4\r\n$12\r\nFAILING_OVER\r\n:0\r\n:2\r\n" + shards, opened("FAILING_OVER", failingOver, 0, 2*s)},
		{"failed over", ">3\r\n$11\r\nFAILED_OVER\r\n:1\r\n" + shards, over("FAILED_OVER", failingOver, 1)},
		{"smigrating", ">3\r\n$10\r\nSMIGRATING\r\n:18\r\n$9\r\n8892-8991\r\n", notification{name: "SMIGRATING", kind: slotMigrating, seq: 18, numbered: true}},
		{"smigrated", ">3\r\n$9\r\nSMIGRATED\r\n:19\r\n*1\r\n" + triplet, over("SMIGRATED", slotMigrating, 19)},
		// Forms.
		{"simple strings", ">4\r\n+MOVING\r\n:1\r\n:15\r\n+" + to + "\r\n", moved(1, 15*s, to)},
		{"verbatim endpoint", mov + "=23\r\ntxt:" + to + "\r\n", moved(1, 15*s, to)},
		{"integers as strings", framed("MOVING", "1", "15", to), moved(1, 15*s, to)},
		{"integers as strings with blanks", framed("MOVING", " 1", "15 ", to), moved(1, 15*s, to)},
		{"lower case", framed("moving", "1", "15", to), moved(1, 15*s, to)},
		{"mixed case", framed("Moving", "1", "15", to), moved(1, 15*s, to)},
		{"trailing elements", ">6\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$19\r\n" + to + "\r\n$1\r\nx\r\n*1\r\n:3\r\n", moved(1, 15*s, to)},
		{"no endpoint", ">3\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n", moved(1, 15*s, "")},
		{"no time", ">3\r\n$6\r\nMOVING\r\n:1\r\n$19\r\n" + to + "\r\n", with(moved(1, 0, to), func(n *notification) { n.timed = false })},
		{"null time", ">4\r\n$6\r\nMOVING\r\n:1\r\n_\r\n$19\r\n" + to + "\r\n", with(moved(1, 0, to), func(n *notification) { n.timed = false })},
		{"neither time nor endpoint", ">2\r\n$6\r\nMOVING\r\n:1\r\n", with(moved(1, 0, ""), func(n *notification) { n.timed = false })},
		{"the name alone", ">1\r\n$6\r\nMOVING\r\n", notification{name: "MOVING"}},
		{"no number", ">4\r\n$6\r\nMOVING\r\n_\r\n:15\r\n$19\r\n" + to + "\r\n", with(moved(0, 15*s, to), func(n *notification) { n.numbered = false })},
		{"a number that is none", framed("MOVING", "x", "15", to), with(moved(0, 15*s, to), func(n *notification) { n.numbered = false })},
		{"an array for a number", ">4\r\n$6\r\nMOVING\r\n*1\r\n:1\r\n:15\r\n$19\r\n" + to + "\r\n", with(moved(0, 15*s, to), func(n *notification) { n.numbered = false })},
		{"negative number", ">4\r\n$6\r\nMOVING\r\n:-7\r\n:15\r\n_\r\n", moved(-7, 15*s, "")},
		{"negative time", ">4\r\n$6\r\nMOVING\r\n:1\r\n:-3\r\n$19\r\n" + to + "\r\n", moved(1, 0, to)},
		{"most negative time", ">4\r\n$6\r\nMOVING\r\n:1\r\n:-9223372036854775808\r\n_\r\n", moved(1, 0, "")},
		{"zero time", ">4\r\n$6\r\nMOVING\r\n:1\r\n:0\r\n_\r\n", moved(1, 0, "")},
		{"absurd time", ">4\r\n$6\r\nMOVING\r\n:1\r\n:9223372036854775807\r\n_\r\n", moved(1, time.Hour, "")},
		{"an hour and a second", ">4\r\n$6\r\nMOVING\r\n:1\r\n:3601\r\n_\r\n", moved(1, time.Hour, "")},
		{"an attribute before an element", ">4\r\n$6\r\nMOVING\r\n|1\r\n+a\r\n+b\r\n:1\r\n:15\r\n_\r\n", moved(1, 15*s, "")},
		// A1.
		{"IPv6 in brackets", mov + "$19\r\n[2001:db8::5]:12075\r\n", moved(1, 15*s, "[2001:db8::5]:12075")},
		{"IPv6 without", mov + "$17\r\n2001:db8::5:12075\r\n", moved(1, 15*s, "[2001:db8::5]:12075")},
		// A26 and A37: nobody is named.
		{"empty", mov + "$0\r\n\r\n", moved(1, 15*s, "")},
		{"RESP2 null", mov + "$-1\r\n", moved(1, 15*s, "")},
		{"the text null", mov + "$4\r\nnull\r\n", moved(1, 15*s, "")},
		{"?", mov + "$1\r\n?\r\n", moved(1, 15*s, "")},
		{"?:7002", mov + "$6\r\n?:7002\r\n", moved(1, 15*s, "")},
		{":7002", mov + "$5\r\n:7002\r\n", moved(1, 15*s, "")},
		{"port 0", mov + "$20\r\nhost-1.example.com:0\r\n", moved(1, 15*s, "")},
		{"no port", mov + "$18\r\nhost-1.example.com\r\n", moved(1, 15*s, "")},
		{"port too high", mov + "$10\r\nhost:65536\r\n", moved(1, 15*s, "")},
		{"port with a sign", mov + "$7\r\nhost:+1\r\n", moved(1, 15*s, "")},
		{"IPv6 without a port", mov + "$13\r\n[2001:db8::5]\r\n", moved(1, 15*s, "")},
		{"an array", mov + "*1\r\n$1\r\nx\r\n", moved(1, 15*s, "")},
		// A27.
		{"all of strings and one too many", framed("MIGRATING", "8", "20", `["3"]`, "x"), opened("MIGRATING", migrating, 8, 20*s)},
		{"failing_over", framed("failing_over", "8", "20"), opened("FAILING_OVER", failingOver, 8, 20*s)},
		{"time -3", ">3\r\n$9\r\nMIGRATING\r\n:8\r\n:-3\r\n", opened("MIGRATING", migrating, 8, 0)},
		{"no time for migrating", ">2\r\n$9\r\nMIGRATING\r\n:8\r\n", notification{name: "MIGRATING", kind: migrating, seq: 8, numbered: true}},
		{"slots that look like a time", ">3\r\n$10\r\nSMIGRATING\r\n:8\r\n$3\r\n123\r\n", notification{name: "SMIGRATING", kind: slotMigrating, seq: 8, numbered: true}},
		{"slots one per element", ">4\r\n$10\r\nSMIGRATING\r\n:8\r\n:123\r\n:124\r\n", notification{name: "SMIGRATING", kind: slotMigrating, seq: 8, numbered: true}},
		{"a malformed triplet", ">3\r\n$9\r\nSMIGRATED\r\n:19\r\n*2\r\n*1\r\n:1\r\n" + triplet, over("SMIGRATED", slotMigrating, 19)},
		{"no triplets", ">2\r\n$9\r\nSMIGRATED\r\n:19\r\n", over("SMIGRATED", slotMigrating, 19)},
		{"shards missing", ">2\r\n$8\r\nMIGRATED\r\n:1\r\n", over("MIGRATED", migrating, 1)},
	} {
		got, ok := parseNotification(pushOf(t, c.raw))
		if !ok || got != c.want {
			t.Errorf("%s: %q\n is read as %+v, %v\n want       %+v", c.name, c.raw, got, ok, c.want)
		}
	}
}

func TestParseNotificationLeavesOtherPushesAlone(t *testing.T) {
	for _, raw := range []string{
		">2\r\n$3\r\nfoo\r\n*1\r\n%1\r\n+a\r\n_\r\n", ">2\r\n$10\r\ninvalidate\r\n_\r\n", ">1\r\n:1\r\n", ">1\r\n_\r\n", ">0\r\n",
		">3\r\n$7\r\nmessage\r\n$6\r\nMOVING\r\n$1\r\nx\r\n", ">2\r\n*1\r\n$6\r\nMOVING\r\n:1\r\n", framed("MOVINGX", "1"), framed("", "MOVING"),
	} {
		if n, ok := parseNotification(pushOf(t, raw)); ok {
			t.Errorf("%q is read as %+v", raw, n)
		}
	}
}

// --- relaxed windows ---

// relaxed is a relaxation and a clock that the test moves.
type relaxed struct {
	relaxation
	t tick
}

func newRelaxed(change func(*Maintenance)) *relaxed {
	o := Options{}
	if change != nil {
		change(&o.Maintenance)
	}
	o, err := o.resolved()
	if err != nil {
		panic(err)
	}
	return &relaxed{relaxation{m: &o.Maintenance}, origin}
}

func (r *relaxed) wait(d time.Duration) { r.t = r.t.add(d) }

// reads observes a frame: name, number, seconds.
func (r *relaxed) reads(name string, seq int64, seconds int) (fresh, opened, closed bool) {
	n := frames[name]
	n.seq, n.numbered, n.window, n.timed = seq, seq >= 0, time.Duration(seconds)*time.Second, true
	r.observe(&n, r.t, func(kind EventKind) {
		fresh, opened, closed = true, opened || kind == EventRelaxed, closed || kind == EventTightened
	})
	return fresh, opened, closed
}

func (r *relaxed) is() bool { return r.effective(time.Second, r.t) == 10*time.Second }

func TestRelaxedWindowIsAnnouncedTimeWithinItsBounds(t *testing.T) {
	for _, c := range []struct {
		seconds int
		want    time.Duration
	}{{0, 10 * time.Second}, {2, 10 * time.Second}, {15, 15 * time.Second}, {30, 30 * time.Second}, {31, 30 * time.Second}, {3600, 30 * time.Second}} {
		for _, name := range []string{"moving", "migrating", "failing_over", "smigrating"} {
			r := newRelaxed(nil)
			r.reads(name, 1, c.seconds)
			r.wait(c.want - 1)
			early := r.is()
			r.wait(1)
			if !early || r.is() {
				t.Errorf("%s of %d s does not relax for exactly %v", name, c.seconds, c.want)
			}
		}
	}
}

func TestCaseA3WindowsCloseOneByOne(t *testing.T) {
	r := newRelaxed(func(m *Maintenance) { m.PostEventRelaxed = -1 })
	r.reads("migrating", 10, 20)
	r.reads("failing_over", 11, 20)
	if _, _, closed := r.reads("migrated", 12, 0); !closed || !r.is() {
		t.Fatal("MIGRATED closed more than MIGRATING's window, or not that")
	}
	if _, _, closed := r.reads("failed_over", 13, 0); !closed || r.is() {
		t.Fatal("with all windows closed it is still relaxed")
	}
}

func TestRelaxedWindowCountsItsDistinctOpeners(t *testing.T) {
	r := newRelaxed(func(m *Maintenance) { m.PostEventRelaxed = -1 })
	r.reads("migrating", 10, 20)
	r.reads("migrating", 11, 20)
	if fresh, opened, _ := r.reads("migrating", 10, 20); fresh || opened {
		t.Fatal("a copy on another connection counts as an opener")
	}
	r.reads("migrated", 12, 0)
	if fresh, _, closed := r.reads("migrated", 12, 0); fresh || closed || !r.is() {
		t.Fatal("a copy of a closing frame closed what the second opener holds open")
	}
	if r.reads("migrated", 13, 0); r.is() {
		t.Fatal("as many closed it as opened it, and it is open")
	}
	// What closes without an opener leaves no debt.
	r.reads("migrated", 14, 0)
	if r.reads("migrating", 15, 20); !r.is() {
		t.Fatal("a closing frame in advance cancelled an opener")
	}
}

func TestRelaxedOpenersOfAPastWindowAreForgotten(t *testing.T) {
	r := newRelaxed(func(m *Maintenance) { m.PostEventRelaxed = -1 })
	r.reads("migrating", 10, 20) // its closing frame is lost
	if r.wait(20 * time.Second); r.is() {
		t.Fatal("there is no backstop")
	}
	r.reads("migrating", 11, 20)
	if r.reads("migrated", 12, 0); r.is() {
		t.Fatal("an opener of a window that ended by itself keeps a later one open")
	}
}

func TestRelaxedBackstop(t *testing.T) {
	r := newRelaxed(func(m *Maintenance) { m.RelaxedTimeout, m.RelaxedWindowMax = 10*time.Second, 12*time.Second })
	r.reads("failing_over", 1, 3600)
	if r.wait(12 * time.Second); r.is() {
		t.Fatal("relaxed for longer than the longest window")
	}
}

func TestRelaxedTail(t *testing.T) {
	r := newRelaxed(nil)
	r.reads("migrating", 1, 30)
	r.wait(time.Second)
	r.reads("migrated", 2, 0)
	r.wait(20*time.Second - 1)
	if !r.is() {
		t.Fatal("there is no tail of twice the relaxed timeout after the event")
	}
	if r.wait(1); r.is() {
		t.Fatal("the tail is too long")
	}
	r.eventOver(r.t)
	r.wait(20*time.Second - 1)
	if early := r.is(); !early {
		t.Fatal("there is no tail after a handoff")
	}
	// A shorter notice never cuts a longer window short.
	r.reads("migrating", 3, 30)
	r.reads("failing_over", 4, 1)
	r.reads("failed_over", 5, 0)
	if r.wait(30*time.Second - 1); !r.is() {
		t.Fatal("a shorter notice cut a longer window short")
	}
}

func TestRelaxationOff(t *testing.T) {
	r := newRelaxed(func(m *Maintenance) { m.RelaxedTimeout, m.PostEventRelaxed = -1, time.Hour })
	for i, name := range []string{"moving", "migrating", "failing_over", "smigrating", "migrated"} {
		r.reads(name, int64(i), 15)
	}
	r.eventOver(r.t)
	for _, timeout := range []time.Duration{-1, 1, time.Second, time.Hour} {
		if got := r.effective(timeout, r.t); got != timeout {
			t.Errorf("relaxation is off, and %v counts as %v", timeout, got)
		}
	}
	if r.m.RelaxedWindowMax != 30*time.Second {
		t.Errorf("with relaxation off the longest window is %v, want 30s", r.m.RelaxedWindowMax)
	}
}

func TestCaseA11RelaxingNeverTightens(t *testing.T) {
	r := newRelaxed(nil)
	r.reads("moving", 1, 15)
	for timeout, want := range map[time.Duration]time.Duration{
		time.Millisecond: 10 * time.Second, 10 * time.Second: 10 * time.Second, 30 * time.Second: 30 * time.Second,
		time.Hour: time.Hour, -1: -1, math.MinInt64: math.MinInt64,
	} {
		if got := r.effective(timeout, r.t); got != want {
			t.Errorf("in a window %v counts as %v, want %v", timeout, got, want)
		}
	}
}

func TestCopiesAreFreshOnceHoweverManyConnections(t *testing.T) {
	r := newRelaxed(nil)
	for seq := range int64(40) {
		for connection := range 8 {
			if fresh, _, _ := r.reads("migrating", seq, 15); fresh != (connection == 0) {
				t.Fatalf("number %d on connection %d: fresh %v", seq, connection, fresh)
			}
		}
		// The same number with another name is another event.
		if fresh, _, _ := r.reads("failing_over", seq, 15); !fresh {
			t.Fatalf("number %d of another type is taken for a copy", seq)
		}
	}
	r.wait(r.m.RelaxedWindowMax)
	if fresh, _, _ := r.reads("migrating", 39, 15); !fresh {
		t.Fatal("a counter that restarted is never believed again")
	}
	if fresh, _, _ := r.reads("migrating", -1, 15); !fresh {
		t.Fatal("a frame without a number is dropped")
	}
}

func TestCaseA28OneEventForAllConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := memoryServer(t)
		j := &journal{}
		c := dialMemory(t, s, func(o *Options) { o.Conns, o.OnEvent = 4, j.add })
		synctest.Wait()
		for range 3 {
			s.Push("MIGRATING", 5, 15, `["1"]`)
			s.Push("MIGRATED", 6, `["1"]`)
		}
		time.Sleep(time.Second)
		if n := j.count(EventNotification); n != 2 {
			t.Errorf("%d notification events for two notifications", n)
		}
		if n, m := j.count(EventRelaxed), j.count(EventTightened); n != 1 || m != 1 {
			t.Errorf("the window opened %d times and closed %d times", n, m)
		}
		if e := j.of(EventNotification)[0]; e.Notification != "MIGRATING" || e.Seq != 5 || e.Window != 15*time.Second || e.Addr != s.Addr() || e.Time.IsZero() {
			t.Errorf("the event says %+v", e)
		}
		if n := c.Stats().Handoffs; n != 0 {
			t.Errorf("%d handoffs", n)
		}
	})
}

// takes is how long a command that is never answered takes to end, from now. When a window ends, its connection may
// be found silent in the same sweep.
func takes(t *testing.T, c *Client) time.Duration {
	t.Helper()
	start := time.Now()
	err := c.Do(background, "GET", "stalled").Err()
	if !MaybeExecuted(err) {
		t.Errorf("a stalled command ended with %v", err)
	}
	return time.Since(start)
}

func around(d, want time.Duration) bool { return d >= want && d <= want+want/8+time.Second/8 }

// TestRelaxedTimeoutsOfCommands opens windows in every way and looks at how long stalled commands wait.
func TestRelaxedTimeoutsOfCommands(t *testing.T) {
	const tight, loose = 500 * time.Millisecond, 10 * time.Second
	for _, c := range []struct {
		name  string
		says  []string
		after time.Duration // pause between what the server says and the command
		want  time.Duration
	}{
		{"nothing said", nil, 0, tight},
		{"MIGRATING", []string{">3\r\n$9\r\nMIGRATING\r\n:1\r\n:15\r\n"}, 0, loose},
		{"MIGRATING, and its announced time is over", []string{">3\r\n$9\r\nMIGRATING\r\n:1\r\n:15\r\n"}, 16 * time.Second, tight},
		{"A14: only pushes arrive while the backstop passes", []string{">3\r\n$9\r\nMIGRATING\r\n:1\r\n:3600\r\n"}, 31 * time.Second, tight},
		{"SMIGRATING without a time", []string{">3\r\n$10\r\nSMIGRATING\r\n:1\r\n$1\r\n5\r\n"}, 9 * time.Second, time.Second},
		{"A3", []string{">3\r\n$9\r\nMIGRATING\r\n:10\r\n:15\r\n", ">3\r\n$12\r\nFAILING_OVER\r\n:11\r\n:15\r\n", ">2\r\n$8\r\nMIGRATED\r\n:12\r\n"}, 0, loose},
		{"the tail", []string{">3\r\n$9\r\nMIGRATING\r\n:1\r\n:15\r\n", ">2\r\n$8\r\nMIGRATED\r\n:2\r\n"}, 19 * time.Second, time.Second},
		{"after the tail", []string{">3\r\n$9\r\nMIGRATING\r\n:1\r\n:15\r\n", ">2\r\n$8\r\nMIGRATED\r\n:2\r\n"}, 21 * time.Second, tight},
		{"an unknown push", []string{">3\r\n$9\r\nMIGRATIND\r\n:1\r\n:15\r\n"}, 0, tight},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newScript(t)
				client, p := s.connect(Options{Timeout: tight, KeepAlive: -1})
				for _, raw := range c.says {
					p.says(raw)
				}
				time.Sleep(cmp.Or(c.after, time.Millisecond))
				if got := takes(t, client); !around(got, c.want) {
					t.Errorf("a stalled command waited %v, want %v", got, c.want)
				}
			})
		})
	}
}

func TestRelaxationCoversCommandsAlreadyWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: 500 * time.Millisecond})
		got := async(c, "GET", "k")
		p.expects("GET k")
		time.Sleep(400 * time.Millisecond)
		p.says(">3\r\n$12\r\nFAILING_OVER\r\n:1\r\n:2\r\n")
		time.Sleep(8 * time.Second)
		p.says("+value\r\n")
		answered(t, got, "value")
	})
}

func TestCaseA11ConfiguredTimeoutLongerThanRelaxed(t *testing.T) {
	for _, timeout := range []time.Duration{30 * time.Second, -1} {
		t.Run(timeout.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newScript(t)
				c, p := s.connect(Options{Timeout: timeout})
				p.says(">3\r\n$9\r\nMIGRATING\r\n:1\r\n:15\r\n")
				got := async(c, "GET", "k")
				p.expects("GET k")
				time.Sleep(20 * time.Second)
				p.says("+value\r\n")
				answered(t, got, "value")
			})
		})
	}
}

func TestCaseA35CommandJustAfterMovingOnAnIdleConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: 500 * time.Millisecond, DialTimeout: 500 * time.Millisecond})
		a.moving(1, 15, "10.9.0.2:6379")
		time.Sleep(10 * time.Millisecond)
		got := async(c, "GET", "k")
		a.expects("GET k") // it goes to the old connection, which then takes its time
		b := s.accept()
		time.Sleep(2 * time.Second) // longer than DialTimeout, which is relaxed as well
		b.handshake()
		time.Sleep(time.Second)
		a.says("+value\r\n")
		answered(t, got, "value")
		got = async(c, "GET", "l")
		b.expects("GET l")
		b.says("+new\r\n")
		answered(t, got, "new")
	})
}

func TestRelaxationCoversSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: 500 * time.Millisecond, KeepAlive: -1})
		p.says(">3\r\n$12\r\nFAILING_OVER\r\n:1\r\n:30\r\n")
		got := async(c, "GET", "k")
		p.expects("GET k")
		time.Sleep(9 * time.Second) // 18 timeouts without a byte
		if p.closed() {
			t.Fatal("a silent connection was given up in a relaxed window")
		}
		p.says("+value\r\n")
		answered(t, got, "value")
	})
}

func TestReplayedCompletionsAreHistory(t *testing.T) {
	for _, closer := range []string{">3\r\n$8\r\nMIGRATED\r\n:1\r\n$6\r\n[\"27\"]\r\n", ">3\r\n$11\r\nFAILED_OVER\r\n:1\r\n$6\r\n[\"21\"]\r\n"} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			j := &journal{}
			o := Options{Timeout: 500 * time.Millisecond, Addr: "10.9.0.1:6379", Dialer: s.dial, OnEvent: j.add}
			go func() {
				p := s.accept()
				p.handshakeSaying(closer)
				p.command()
			}()
			c := dialOptions(t, o)
			if got := takes(t, c); !around(got, 500*time.Millisecond) {
				t.Errorf("a completion replayed in the handshake relaxed a timeout to %v", got)
			}
			if n := len(j.all()); n != 0 {
				t.Errorf("it caused %d events: %v", n, j.all())
			}
		})
	}
}

func TestReplayedCompletionClosesNoOpenWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: 500 * time.Millisecond, Maintenance: Maintenance{PostEventRelaxed: -1}})
		a.says(">3\r\n$9\r\nMIGRATING\r\n:4\r\n:30\r\n")
		synctest.Wait()
		a.Close()
		b := s.accept()
		b.handshakeSaying(">2\r\n$8\r\nMIGRATED\r\n:1\r\n")
		if got := takes(t, c); !around(got, 10*time.Second) {
			t.Errorf("a stalled command waited %v in an open window", got)
		}
	})
}

func TestAnOpenerInTheHandshakeIsNews(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		o := Options{Timeout: 500 * time.Millisecond, Addr: "10.9.0.1:6379", Dialer: s.dial, OnEvent: j.add}
		go func() {
			p := s.accept()
			p.handshakeSaying(">3\r\n$12\r\nFAILING_OVER\r\n:1\r\n:15\r\n")
			p.command()
		}()
		c := dialOptions(t, o)
		if got := takes(t, c); !around(got, 10*time.Second) {
			t.Errorf("a stalled command waited %v, want the relaxed timeout", got)
		}
		if j.count(EventNotification) != 1 || j.count(EventRelaxed) != 1 {
			t.Errorf("events: %v", j.all())
		}
	})
}

// TestAMissingTimeCountsAsTheRelaxedTimeout has a successor that comes good shortly before that is over.
func TestAMissingTimeCountsAsTheRelaxedTimeout(t *testing.T) {
	for _, relaxed := range []time.Duration{0, -1, 20 * time.Second} {
		t.Run(relaxed.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newScript(t)
				j := &journal{}
				_, a := s.connect(Options{OnEvent: j.add, Maintenance: Maintenance{RelaxedTimeout: relaxed}})
				a.says(">3\r\n$6\r\nMOVING\r\n:1\r\n$13\r\n10.9.0.2:6379\r\n")
				synctest.Wait()
				want := cmp.Or(max(relaxed, 0), 10*time.Second)
				if e := j.of(EventNotification); len(e) != 1 || e[0].Window != want || e[0].Successor != "10.9.0.2:6379" {
					t.Errorf("the window counts as %v, want %v", e, want)
				}
			})
		})
	}
}

func TestRelaxationOffOpensNoWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		c, p := s.connect(Options{Timeout: time.Second, OnEvent: j.add, Maintenance: Maintenance{RelaxedTimeout: -1}})
		p.says(">3\r\n$12\r\nFAILING_OVER\r\n:1\r\n:30\r\n")
		synctest.Wait()
		if n := j.count(EventNotification); n != 1 {
			t.Errorf("%d notification events", n)
		}
		if n := j.count(EventRelaxed); n != 0 {
			t.Errorf("%d events say that a relaxed window opened, and relaxation is off", n)
		}
		if got := takes(t, c); !around(got, time.Second) {
			t.Errorf("a stalled command waited %v", got)
		}
	})
}

func TestOrdinaryTailAfterAHandoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, a := s.connect(Options{Timeout: 500 * time.Millisecond})
		a.moving(1, 1, "10.9.0.2:6379")
		b := s.accept()
		b.handshake()
		synctest.Wait()
		time.Sleep(15 * time.Second) // the window of 10 s is over, the tail of 20 s is not
		if got := takes(t, c); !around(got, 5*time.Second) {
			t.Errorf("a stalled command waited %v, want until the tail's end", got)
		}
	})
}

func TestContextIsNeverRelaxed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{})
		p.says(">3\r\n$12\r\nFAILING_OVER\r\n:1\r\n:30\r\n")
		synctest.Wait()
		ctx, cancel := contextFor(300 * time.Millisecond)
		defer cancel()
		start := time.Now()
		err := c.Do(ctx, "GET", "k").Err()
		if took := time.Since(start); took != 300*time.Millisecond || !MaybeExecuted(err) {
			t.Errorf("the command ended after %v with %v", took, err)
		}
	})
}

// A user who turns notifications off does not expect a push that was never asked for to move the client, nor his credentials.
func TestDisabledObeysNoNotification(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		_, p := s.connect(Options{OnEvent: j.add, Maintenance: Maintenance{Mode: Disabled}})
		p.moving(1, 15, "10.9.0.2:6379")
		time.Sleep(20 * time.Second)
		if d := s.dialled(); len(d) != 1 || j.count(EventNotification) > 0 {
			t.Errorf("dialled %v", d)
		}
	})
}

// A host name that no DNS could hold names nobody; it is not dialled, nor kept in errors and events.
func TestAnEndpointLongerThanAnyNameIsNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		j := &journal{}
		_, p := s.connect(Options{OnEvent: j.add})
		p.moving(1, 15, strings.Repeat("a", 1<<20)+":1")
		time.Sleep(5 * time.Second)
		if d := s.dialled(); len(d) != 1 || j.of(EventNotification)[0].Successor != "" {
			t.Errorf("%d dials; the successor has %d letters", len(d), len(j.of(EventNotification)[0].Successor))
		}
	})
}

// The old connection is closed when nobody waits on it any more, also when that is because the last caller has left.
func TestARetiredConnectionWhoseCallersLeftIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: -1})
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		defer cancel()
		reply := later(func() Reply { return c.Do(ctx, "GET", "k") })
		p.expects("GET k")
		p.moving(1, 1, "10.9.0.2:6379")
		s.accept().handshake()
		time.Sleep(5 * time.Second)
		if n := c.Stats().Conns; n != 2 {
			t.Errorf("%d connections while somebody waits on the old one, want 2", n)
		}
		if err := reply().Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if n := c.Stats().Conns; n != 1 {
			t.Errorf("%d connections after the last caller left the old one, want 1", n)
		}
	})
}

// Nor does it stay for a command behind the last answer whose caller has left.
func TestARetiredConnectionIsClosedAtTheLastAnswerThatIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: -1})
		waited := later(func() Reply { return c.Do(background, "GET", "waited") })
		p.expects("GET waited")
		ctx, cancel := context.WithCancel(background)
		left := later(func() Reply { return c.Do(ctx, "GET", "left") })
		p.expects("GET left")
		cancel()
		left()
		p.moving(1, 1, "10.9.0.2:6379")
		s.accept().handshake()
		time.Sleep(5 * time.Second)
		p.says("+here\r\n")
		if got, err := waited().Text(); got != "here" {
			t.Error(got, err)
		}
		synctest.Wait()
		if n := c.Stats().Conns; n != 1 {
			t.Errorf("%d connections when nobody waits on the old one, want 1", n)
		}
	})
}

// A bridge that was told to stay where it is follows the next announcement like any other.
func TestARestartInPlaceIsForgottenByTheNextAnnouncement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		here, there := "10.9.0.1:6379", "10.9.0.2:6379"
		peers := make(chan *peer, 10)
		s.attend(func(p *peer) { p.handshake(); peers <- p; p.serve(answers(nil).to) })
		dialOptions(t, Options{Addr: here, Dialer: s.dial, Conns: 2})
		for _, p := range []*peer{<-peers, <-peers} { // both are dialled before the announcement: a later one would be where it leads
			p.moving(1, 10, here)
		}
		time.Sleep(time.Minute)
		first, second := <-peers, <-peers
		before := len(s.dialled())
		first.moving(2, 15, there)
		time.Sleep(10 * time.Millisecond)
		second.Close() // before it is told
		time.Sleep(5 * time.Second)
		for _, addr := range s.dialled()[before:] {
			if addr != there {
				t.Errorf("a dial while the pin is in force went to %s", addr)
			}
		}
	})
}

// A server that sends the client on and on, or sends it on and hangs up, is followed without a tight loop.
func TestBeingSentOnForEverIsNoDialLoop(t *testing.T) {
	for _, hangsUp := range []bool{false, true} {
		for _, window := range []int{0, 15} {
			bubble(t, func(t *testing.T) {
				t.Cleanup(func() { time.Sleep(time.Second) }) // until the last dial has returned
				s := newScript(t)
				var number atomic.Int64
				s.attend(func(p *peer) {
					n := number.Add(1)
					p.handshakeSaying(movingFrame(int(n), window, fmt.Sprintf("10.9.0.%d:6379", 1+n%2)))
					if hangsUp && n > 1 {
						time.Sleep(time.Millisecond)
						p.Close()
					}
					p.serve(answers(nil).to)
				})
				dialOptions(t, Options{Addr: "10.9.0.1:6379", Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
					time.Sleep(time.Millisecond)
					return s.dial(ctx, network, addr)
				}})
				time.Sleep(10 * time.Second)
				if n := len(s.dialled()); n > 300 {
					t.Errorf("window %d s, hangs up %v: %d dials in ten seconds", window, hangsUp, n)
				}
			})
		}
	}
}
