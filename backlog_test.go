package baton

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// modelled is a queue with the naive model that it must agree with.
type modelled struct {
	t     *testing.T
	q     queue
	model []*message
}

// check compares the queue with its model: the links either way, the counts, and the owner of each message.
func (s *modelled) check(p place) {
	s.t.Helper()
	var forth, back []*message
	commands, bytes := 0, 0
	for m := s.q.head; m != nil; m = m.next {
		forth = append(forth, m)
		commands += m.want
		bytes += len(m.buf)
		if m.place != p {
			s.t.Fatalf("a message stands here whose place is %d, want %d", m.place, p)
		}
	}
	for m := s.q.tail; m != nil; m = m.prev {
		back = append(back, m)
	}
	slices.Reverse(back)
	if !slices.Equal(forth, s.model) || !slices.Equal(back, s.model) {
		s.t.Fatalf("the queue is %d long forwards and %d backwards, the model %d, or the order differs", len(forth), len(back), len(s.model))
	}
	if commands != s.q.commands || bytes != s.q.bytes || s.q.empty() != (len(s.model) == 0) {
		s.t.Fatalf("the queue counts %d commands and %d bytes, there are %d and %d", s.q.commands, s.q.bytes, commands, bytes)
	}
}

func (s *modelled) push(m *message, p place) {
	s.q.pushLocked(m, p)
	s.model = append(s.model, m)
}

func (s *modelled) remove(i int, p place) *message {
	m := s.model[i]
	s.q.removeLocked(m, p)
	s.model = slices.Delete(slices.Clone(s.model), i, i+1)
	return m
}

// cut takes what stands from i on; i may be the length.
func (s *modelled) cut(i int, p place) []*message {
	var first *message
	if i < len(s.model) {
		first = s.model[i]
	}
	cut := s.q.cutLocked(first, p)
	if !slices.Equal(cut, s.model[i:]) {
		s.t.Fatalf("cut off were %d messages, want %d", len(cut), len(s.model)-i)
	}
	s.model = slices.Clip(s.model[:i])
	return cut
}

// The backlog and the queue of a connection, under random operations as a bridge does them, agree with two slices.
func TestTheQueuesAgreeWithANaiveModel(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		var pool sync.Pool
		backlog, flight := &modelled{t: t}, &modelled{t: t}
		alive := map[*message]bool{} // given and not yet with a caller again
		for range 400 {
			switch n := random.IntN(12); {
			case n < 4: // a caller gives a message
				m := newMessage(&pool, 1+random.IntN(3))
				if alive[m] {
					t.Fatal("the pool gave out a message that is in use")
				}
				if m.next != nil || m.prev != nil || m.got != 0 || m.abandoned || m.err != nil || m.dst != nil || len(m.signals) != 0 || len(m.buf) != 0 {
					t.Fatalf("the pool gave out a message that is not clean: %+v", m)
				}
				m.buf = append(m.buf, make([]byte, random.IntN(50))...)
				alive[m] = true
				if n == 0 && len(backlog.model) == 0 {
					flight.push(m, inFlight)
				} else {
					backlog.push(m, queued)
				}
			case n < 6 && len(backlog.model) > 0: // the flusher tops up
				flight.push(backlog.remove(0, inFlight), inFlight)
			case n == 6 && len(flight.model) > 0: // a reply
				m := flight.remove(0, popped)
				delete(alive, m)
				m.recycle()
			case n == 7 && len(backlog.model) > 0: // a caller leaves the backlog, from anywhere
				m := backlog.remove(random.IntN(len(backlog.model)), withCaller)
				delete(alive, m)
				m.recycle()
			case n == 8 && len(flight.model) > 0: // a caller leaves what is in flight
				flight.model[random.IntN(len(flight.model))].abandoned = true
			case n == 9: // a connection ends: some of it unsent
				at := random.IntN(len(flight.model) + 1)
				unsent := flight.cut(at, queued)
				want, kept := 0, []*message(nil)
				for _, m := range unsent {
					want += m.want
					if m.abandoned {
						delete(alive, m)
					} else {
						kept = append(kept, m)
					}
				}
				if got := backlog.q.returnLocked(unsent); got != want {
					t.Fatalf("%d commands were returned, want %d", got, want)
				}
				backlog.model = append(kept, backlog.model...)
			case n == 10: // the sweep
				for _, m := range backlog.model {
					m.start = 0
				}
				backlog.q.sweepLocked(0, 1)
				for _, m := range backlog.model {
					if len(m.signals) != 1 {
						t.Fatalf("a message that is late has %d signals", len(m.signals))
					}
				}
			case n == 11: // what is in flight is cut off
				cut := flight.cut(0, popped)
				failAll(cut, errors.New("cut"), true)
				for _, m := range cut {
					delete(alive, m)
				}
			}
			backlog.check(queued)
			flight.check(inFlight)
		}
	}
}

// A look that nobody received does not reach the next caller.
func TestARecycledMessageHasNoSignalsLeft(t *testing.T) {
	var pool sync.Pool
	m := newMessage(&pool, 1)
	var q queue
	q.pushLocked(m, queued)
	q.sweepLocked(0, never)
	q.sweepLocked(0, never) // it looks once
	q.removeLocked(m, popped)
	m.signals <- done
	if len(m.signals) != 2 {
		t.Fatalf("%d signals, want look and done", len(m.signals))
	}
	m.recycle()
	if len(m.signals) != 0 {
		t.Errorf("%d signals are left", len(m.signals))
	}
}

// A buffer of a rare size is left to the garbage collector.
func TestARecycledMessageKeepsItsBufferUpToOneMiB(t *testing.T) {
	for _, size := range []int{10, maxCopy, 10 * maxCopy, 1 << 20, 1<<20 + 1} {
		var pool sync.Pool
		m := newMessage(&pool, 1)
		m.buf = make([]byte, size)
		m.dst, m.replies, m.err, m.appending, m.got = []byte("x"), make([]Reply, 1), errors.New("x"), true, 1
		m.recycle()
		if kept := cap(m.buf) > 0; kept != (size <= 1<<20) {
			t.Errorf("a buffer of %d bytes: kept is %v", size, kept)
		}
		if len(m.buf) != 0 || m.dst != nil || m.replies != nil || m.err != nil || m.appending || m.got != 0 {
			t.Errorf("not clean: %+v", m)
		}
	}
}

func TestABacklogAdmitsWhatFitsAndAnythingIfItIsEmpty(t *testing.T) {
	var pool sync.Pool
	message := func(want, size int) *message {
		m := newMessage(&pool, want)
		m.buf = make([]byte, size)
		return m
	}
	for _, c := range []struct {
		have, haveBytes, want, size int
		admits                      bool
	}{
		{0, 0, 100, 1000, true}, {9, 10, 1, 1, true}, {9, 10, 2, 1, false}, {10, 10, 1, 1, false}, {1, 99, 1, 1, true}, {1, 99, 1, 2, false}, {1, 100, 1, 0, true},
		{1, 10, 9, 90, true}, {1, 10, 9, 91, false}, {1, 10, 10, 90, false}, {100, 1000, 1, 1, false},
	} {
		var q queue
		if c.have > 0 {
			q.pushLocked(message(c.have, c.haveBytes), queued)
		}
		if got := q.admitsLocked(message(c.want, c.size), 10, 100); got != c.admits {
			t.Errorf("with %d commands and %d bytes, %d more of %d bytes: %v", c.have, c.haveBytes, c.want, c.size, got)
		}
	}
}

// The sweep wakes those who began to wait at the limit or before, where those who stand in line since before `from` count as
// begun then; each once; and none that was given up.
func TestTheSweepRule(t *testing.T) {
	for _, c := range []struct {
		name        string
		starts      []tick
		abandoned   string // which are given up: x
		from, limit tick
		want        string // which are woken: x
	}{
		{"nobody", nil, "", 0, 100, ""},
		{"before, at and behind the limit", []tick{8, 9, 10, 11, 12}, ".....", 0, 10, "xxx.."},
		{"nobody is late", []tick{11, 12}, "..", 0, 10, ".."},
		{"everybody is", []tick{1, 2}, "..", 0, 10, "xx"},
		{"a handoff ended behind the limit", []tick{1, 2, 3}, "...", 11, 10, "..."},
		{"a handoff ended at the limit", []tick{1, 2, 30}, "...", 10, 10, "xx."},
		{"a handoff ended long before", []tick{5, 9, 30}, "...", 4, 10, "xx."},
		{"those given up are passed over", []tick{1, 2, 3, 4}, "x.x.", 0, 10, ".x.x"},
		{"at Close", []tick{1, never - 1}, "..", 0, never, "xx"},
	} {
		var pool sync.Pool
		var q queue
		var all []*message
		for i, start := range c.starts {
			m := newMessage(&pool, 1)
			m.start, m.abandoned = start, c.abandoned[i] == 'x'
			q.pushLocked(m, queued)
			all = append(all, m)
		}
		for range 2 {
			q.sweepLocked(c.from, c.limit)
			got := ""
			for _, m := range all {
				got += []string{".", "x", "xx"}[len(m.signals)]
			}
			if got != c.want {
				t.Errorf("%s: woken are %q, want %q", c.name, got, c.want)
			}
		}
	}
}

// What was given up is not returned; what is left keeps its order, ahead of what waits.
func TestWhatIsReturnedGoesToTheHeadInItsOrder(t *testing.T) {
	var pool sync.Pool
	var backlog, flight queue
	name := func(q *queue, names string, p place) {
		for i := range len(names) {
			m := newMessage(&pool, 1)
			m.buf = append(m.buf, names[i])
			q.pushLocked(m, p)
		}
	}
	name(&flight, "abcde", inFlight)
	name(&backlog, "xyz", queued)
	for m := flight.head; m != nil; m = m.next {
		m.abandoned = strings.ContainsAny(string(m.buf), "ad")
	}
	if n := backlog.returnLocked(flight.cutLocked(flight.head, queued)); n != 5 {
		t.Errorf("%d commands were returned, want 5, the abandoned ones included: none of them was sent", n)
	}
	var got []byte
	for m := backlog.head; m != nil; m = m.next {
		got = append(got, m.buf...)
	}
	if string(got) != "bcexyz" || !flight.empty() || backlog.commands != 6 || backlog.bytes != 6 {
		t.Errorf("the backlog is %q, want bcexyz; %+v", got, backlog)
	}
	if n := backlog.returnLocked(nil); n != 0 {
		t.Errorf("of nothing %d were returned", n)
	}
}

// Failed messages keep the replies that came, and say in the others why they did not.
func TestFailingABatchKeepsTheRepliesThatCame(t *testing.T) {
	var pool sync.Pool
	cause := errors.New("cut")
	for got := range 4 {
		for _, sent := range []bool{true, false} {
			m := newMessage(&pool, 3)
			m.replies, m.got = make([]Reply, 3), got
			failAll([]*message{m}, cause, sent)
			if len(m.signals) != 1 || !errors.Is(m.err, cause) || MaybeExecuted(m.err) != sent {
				t.Errorf("%d came: %v, %d signals", got, m.err, len(m.signals))
			}
			for i, r := range m.replies {
				if errors.Is(r.Err(), cause) != (i >= got) {
					t.Errorf("%d came: reply %d is %v", got, i, r.Err())
				}
			}
		}
	}
}

// The sweep is judged within an eighth of Timeout, between 5 ms and 1 s, in the backlog as in flight: from the time of Do.
func TestTimeoutIsJudgedWithinAnEighth(t *testing.T) {
	for _, timeout := range []time.Duration{3 * time.Millisecond, 8 * time.Millisecond, 100 * time.Millisecond, 4 * time.Second, 20 * time.Second, time.Hour} {
		for _, written := range []bool{true, false} {
			bubble(t, func(t *testing.T) {
				s := newScript(t)
				c, p := s.connect(Options{Timeout: timeout, KeepAlive: -1})
				s.fail = func(string) error { return errors.New("no") }
				if !written {
					p.Close()
					time.Sleep(time.Millisecond)
				}
				start := time.Now()
				err := c.Do(background, "GET", "k").Err()
				late := time.Since(start) - timeout
				if !errors.Is(err, ErrTimeout) || MaybeExecuted(err) != written || late < 0 || late > max(min(timeout/8, time.Second), 5*time.Millisecond) {
					t.Errorf("Timeout %v, written %v: %v, %v late", timeout, written, err, late)
				}
			})
		}
	}
}
