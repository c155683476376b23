package baton

import (
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"
)

// pinned is a pin and a clock that the test moves.
type pinned struct {
	pin
	t       tick
	counter uint64
	tried   uint64 // as a bridge remembers it
}

// attempted is a dial of the successor of announcement number.
func (p *pinned) attempted(number uint64) { p.tried = max(p.tried, number) }

func newPinned() *pinned {
	return &pinned{pin: pin{grace: 5 * time.Second, configured: "configured"}, t: origin}
}

func (p *pinned) wait(d time.Duration) { p.t = p.t.add(d) }

// told is a MOVING that is read now; a negative number is none.
func (p *pinned) told(seq int64, window time.Duration, successor string) announcement {
	n := notification{name: "MOVING", kind: moving, seq: max(seq, 0), numbered: seq >= 0, window: window, timed: true, successor: successor}
	return p.announce(&n, p.t, func() uint64 { p.counter++; return p.counter })
}

func (p *pinned) goesTo(t *testing.T, failures int, want string) {
	t.Helper()
	if got := p.next(failures); got.addr != want || got.named != (want != "configured") {
		t.Errorf("after %d failures a dial goes to %+v, want %s", failures, got, want)
	}
}

// next is where a bridge that has no connection dials after so many failures.
func (p *pinned) next(failures int) target {
	_, to := p.plan(p.t, &quest{number: p.a.number, tries: failures + 1, tried: p.tried}, location{})
	return to
}

func TestPinWithoutAnAnnouncement(t *testing.T) {
	p := newPinned()
	if _, ok := p.remembered(p.t); ok {
		t.Error("nothing was announced, and something is remembered")
	}
	for failures := range 5 {
		p.goesTo(t, failures, "configured")
	}
	p.attempted(0)
	p.refuse(0)
	p.goesTo(t, 0, "configured")
}

// TestPinCopiesAndNewerOnes says what each second announcement is, next to the first.
func TestPinCopiesAndNewerOnes(t *testing.T) {
	for _, c := range []struct {
		first, second int64 // negative: without a number
		newer         bool
	}{
		{5, 6, true}, {5, 500, true}, {5, 5, false}, {5, 4, false}, {5, 0, false}, {5, -1, false},
		{0, 0, false}, {0, 1, true}, {0, -1, false}, {-1, -1, false}, {-1, 0, true}, {-1, 7, true},
		{math.MaxInt64, 0, false}, {math.MaxInt64, math.MaxInt64, false}, {math.MaxInt64 - 1, math.MaxInt64, true},
	} {
		p := newPinned()
		first := p.told(c.first, 10*time.Second, "b:1")
		p.wait(time.Second)
		got := p.told(c.second, time.Hour, "c:1")
		if c.newer {
			if got.number <= first.number || got.successor != "c:1" || got.received != p.t || got.window != time.Hour {
				t.Errorf("%d after %d is not taken for a new announcement: %+v", c.second, c.first, got)
			}
			p.goesTo(t, 0, "c:1")
			continue
		}
		if !reflect.DeepEqual(got, first) || p.counter != 1 {
			t.Errorf("%d after %d moved something: %+v, then %+v", c.second, c.first, first, got)
		}
		p.goesTo(t, 0, "b:1")
	}
}

func TestPinMemoryEndsOneDialAfterTheDeadline(t *testing.T) {
	p := newPinned()
	first := p.told(900, 10*time.Second, "b:1")
	p.wait(15*time.Second - 1)
	if a, ok := p.remembered(p.t); !ok || !reflect.DeepEqual(a, first) {
		t.Error("it is forgotten too early")
	}
	if got := p.told(1, 10*time.Second, "c:1"); !reflect.DeepEqual(got, first) {
		t.Error("a lower number is believed while a higher one is remembered")
	}
	p.wait(1)
	if _, ok := p.remembered(p.t); ok {
		t.Error("it is remembered too long")
	}
	for _, seq := range []int64{1, 0, -1} { // a counter that restarted, or none
		if got := p.told(seq, time.Second, "c:1"); got.received != p.t || got.successor != "c:1" {
			t.Errorf("number %d is not believed when nothing is remembered: %+v", seq, got)
		}
		p.wait(time.Minute)
	}
}

// TestPinTarget follows the target of a window of 10 s through time.
func TestPinTarget(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		tried bool
		odd   string // after an odd number of failures
		even  string
	}{
		{0, false, "b:1", "b:1"},
		{0, true, "b:1", "b:1"},
		{5*time.Second - 1, true, "b:1", "b:1"},
		{5 * time.Second, true, "configured", "b:1"}, // in turn
		{5 * time.Second, false, "b:1", "b:1"},       // not before one whole dial
		{10*time.Second - 1, true, "configured", "b:1"},
		{10 * time.Second, true, "configured", "configured"},
		{10 * time.Second, false, "b:1", "b:1"},
		{time.Hour, true, "configured", "configured"},
		{time.Hour, false, "configured", "configured"}, // forgotten altogether
	} {
		p := newPinned()
		a := p.told(1, 10*time.Second, "b:1")
		if c.tried {
			p.attempted(a.number)
		}
		p.wait(c.after)
		for failures := range 6 {
			want := c.even
			if failures%2 == 1 {
				want = c.odd
			}
			if got := p.next(failures); got.addr != want {
				t.Errorf("%v into the window, tried %v, %d failures: a dial goes to %s, want %s", c.after, c.tried, failures, got.addr, want)
			}
		}
	}
}

func TestPinOfAZeroWindowIsTriedOnce(t *testing.T) {
	p := newPinned()
	a := p.told(1, 0, "b:1")
	p.goesTo(t, 0, "b:1")
	p.wait(time.Second)
	p.goesTo(t, 0, "b:1") // still the first attempt
	p.attempted(a.number)
	p.goesTo(t, 1, "configured")
	p.goesTo(t, 2, "configured")
}

func TestPinANewerAnnouncementIsUntried(t *testing.T) {
	p := newPinned()
	first := p.told(1, 10*time.Second, "b:1")
	p.attempted(first.number)
	p.wait(6 * time.Second)
	p.goesTo(t, 1, "configured")
	second := p.told(2, 0, "c:1")
	p.attempted(first.number) // a late end of an older dial says nothing of it
	p.goesTo(t, 1, "c:1")
	p.attempted(second.number)
	p.goesTo(t, 1, "configured")
}

func TestPinRefusing(t *testing.T) {
	p := newPinned()
	first := p.told(1, 10*time.Second, "b:1")
	second := p.told(2, 10*time.Second, "c:1")
	p.refuse(first.number) // a late decision about an older announcement cannot touch a newer one
	p.goesTo(t, 0, "c:1")
	p.refuse(second.number)
	p.goesTo(t, 0, "configured")
	if a := p.told(2, 10*time.Second, "c:1"); a.successor != "" {
		t.Error("a copy brought a refused successor back")
	}
	if a := p.told(3, 10*time.Second, "c:1"); a.successor != "c:1" {
		t.Error("a newer announcement is refused with the old one")
	}
}

func TestPinUnderARace(t *testing.T) {
	p := pin{grace: time.Second}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var counter uint64
	take := func() uint64 { mu.Lock(); defer mu.Unlock(); counter++; return counter }
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				n := notification{seq: int64(i), numbered: true, window: time.Second, successor: "b:1"}
				a := p.announce(&n, now(), take)
				if a.seq < int64(i) {
					t.Errorf("worker %d announced %d and %d is in force", w, i, a.seq)
				}
				p.plan(now(), &quest{tries: i, tried: a.number}, location{})
				p.refuse(a.number)
				p.remembered(now())
			}
		})
	}
	wg.Wait()
	if counter != 200 {
		t.Errorf("%d announcements took %d numbers", 200, counter)
	}
}

func TestBackoffBounds(t *testing.T) {
	if dice(nil).backoff(0) != 0 {
		t.Errorf("without a failure the next dial waits %v", dice(nil).backoff(0))
	}
	for failures, most := range map[int]time.Duration{1: 50, 2: 100, 3: 200, 4: 400, 5: 800, 6: 1000, 7: 1000, 64: 1000, 1 << 30: 1000, math.MaxInt: 1000} {
		most *= time.Millisecond
		seen := map[time.Duration]bool{}
		for range 1000 {
			d := dice(nil).backoff(failures)
			if seen[d] = true; d > most || d <= most-most/4 {
				t.Fatalf("after %d failures the next dial waits %v, want up to a quarter less than %v", failures, d, most)
			}
		}
		if len(seen) < 100 {
			t.Errorf("after %d failures all wait about the same", failures)
		}
	}
}

// TestCaseG8JitterBounds: a tenth of the window, at most a second, and spread over it.
func TestCaseG8JitterBounds(t *testing.T) {
	for window, most := range map[time.Duration]time.Duration{
		0: 0, -time.Second: 0, 1: 0, 9: 0, time.Second: 100 * time.Millisecond, 2 * time.Second: 200 * time.Millisecond,
		10 * time.Second: time.Second, 15 * time.Second: time.Second, time.Hour: time.Second, math.MaxInt64: time.Second,
	} {
		var all []time.Duration
		for range 1000 {
			all = append(all, dice(nil).jitter(window))
		}
		slices.Sort(all)
		if all[0] < 0 || all[999] > most {
			t.Errorf("window %v: jitter from %v to %v, want at most %v", window, all[0], all[999], most)
		}
		if most > time.Microsecond && (all[250] > most*2/5 || all[750] < most*3/5) {
			t.Errorf("window %v: jitter is not spread: quartiles at %v and %v of %v", window, all[250], all[750], most)
		}
	}
}

// TestCaseG8ManyClientsToldAtOnce dials the successor once for each, and not all at the same moment.
func TestCaseG8ManyClientsToldAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := memoryServer(t)
		b := sibling(t, a)
		book := &dialBook{}
		for range 100 {
			dialMemory(t, a, func(o *Options) { o.Dialer = book.over(o.Dialer) })
		}
		start := time.Now()
		a.Move(b.Addr(), 15*time.Second)
		time.Sleep(2 * time.Second)
		if n := book.count(b.Addr()); n != 100 || b.Conns() != 100 {
			t.Errorf("100 clients dialled %d times and have %d connections", n, b.Conns())
		}
		tenths := map[time.Duration]int{}
		for i, addr := range book.to() {
			if addr == b.Addr() {
				tenths[book.when()[i].Sub(start)/(100*time.Millisecond)]++
			}
		}
		for tenth, n := range tenths {
			if tenth < 0 || tenth > 9 || n > 35 {
				t.Errorf("%d of 100 clients dialled in tenth %d of the first second", n, tenth)
			}
		}
	})
}

// TestCaseA25ASuccessorThatNeverConnects: it expires with the window, and every redial looks the configured name up again.
func TestCaseA25ASuccessorThatNeverConnects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		book := &dialBook{}
		_, a := s.connectVia(Options{KeepAlive: -1}, book)
		s.refuseAll(addrB)
		start := time.Now()
		a.moving(1, 4, addrB)
		time.Sleep(time.Second)
		a.Close()
		for range 20 {
			// The old node keeps hanging up.
			p := s.accept()
			p.handshake()
			p.Close()
		}
		for i, addr := range book.to() {
			if addr == addrB && book.when()[i].Sub(start) > 4*time.Second {
				t.Errorf("the successor was dialled %v after the announcement", book.when()[i].Sub(start))
			}
		}
		if last := book.to()[len(book.to())-1]; last != addrA {
			t.Errorf("the last dial went to %s", last)
		}
		// 50, 100, 200, 400, 800, 1000, … ms between dials that lead nowhere.
		if n, took := len(book.to()), time.Since(start); n > 12+int(took/(700*time.Millisecond)) {
			t.Errorf("%d dials in %v", n, took)
		}
	})
}
