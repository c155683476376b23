package main

// This file holds the load and what it measures. Each worker is a goroutine with a counter of its own on the server,
// a place of its own to note latencies, and nothing that it shares with others but the client and three words that
// are read: the measuring must not be what is measured. The conductor, drive, is the caller's goroutine.

import (
	"context"
	"fmt"
	"math/bits"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"example.com/baton"
)

// stretch is a part of the run.
type stretch int32

const (
	warmUp    stretch = iota // connections, buffers and the heap find their size
	before                   // from then to the announcement
	during                   // from the announcement to the end of the window, when the old server closes its sockets
	after                    // from then to the end
	stretches = iota
)

func (s stretch) String() string { return [...]string{"warm-up", "before", "during", "after"}[s] }

// warmUpTime is not counted as before: the longest stall there would excuse too much.
const warmUpTime = 200 * time.Millisecond

type load struct {
	// Set before the workers start, read-only afterwards.
	client  *baton.Client
	rate    int // 0: flat out
	workers []*worker
	began   time.Time
	over    chan struct{} // closed: the workers end
	end     sync.WaitGroup

	now atomic.Int32 // the stretch; written by the conductor, read by the workers

	// Owned by the conductor. Zero while its moment has not come.
	announced, closed, ended time.Time
	interrupted              bool
}

func newLoad(client *baton.Client, cfg config, keys string) *load {
	l := &load{client: client, rate: cfg.rate, over: make(chan struct{})}
	for i := range cfg.workers {
		l.workers = append(l.workers, &worker{l: l, index: i, key: keys + strconv.Itoa(i)})
	}
	l.began = time.Now()
	return l
}

func (l *load) stretch() stretch { return stretch(l.now.Load()) }

// drive runs the load, has the move announced, and returns when the last command has ended.
func (l *load) drive(ctx context.Context, cfg config, s *stage) {
	for _, w := range l.workers {
		l.end.Go(w.work)
	}
	l.conduct(ctx, cfg, s)
	l.interrupted = ctx.Err() != nil
	close(l.over)
	l.end.Wait()
	l.ended = time.Now()
}

func (l *load) conduct(ctx context.Context, cfg config, s *stage) {
	if !sleepUntil(ctx.Done(), l.began.Add(warmUpTime)) {
		return
	}
	l.now.Store(int32(before))
	if !sleepUntil(ctx.Done(), l.began.Add(cfg.announceAt())) {
		return
	}
	l.now.Store(int32(during))
	l.announced = time.Now()
	s.from.Move(s.to.Addr(), cfg.window)
	if !sleepUntil(ctx.Done(), l.announced.Add(cfg.window)) {
		return
	}
	for late := time.Now().Add(margin); s.from.Conns() > 0 && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
	l.closed = time.Now()
	l.now.Store(int32(after))
	sleepUntil(ctx.Done(), l.began.Add(cfg.duration))
}

// sleepUntil says whether t has come. The alternative is that over was closed.
func sleepUntil(over <-chan struct{}, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-over:
		return false
	}
}

// worker sends one command after the other: three INCRs of its own key, then a GET of it. Its counter goes up by what
// it has been told, so each reply is known beforehand, and another's reply, or a second execution, gives itself away.
type worker struct {
	l     *load
	index int
	key   string

	// Owned by the worker's goroutine, and read when that has ended.
	done   int64 // INCRs that were answered
	unsure int64 // INCRs that failed, maybe executed
	value  int64 // of the counter, as answered last
	slack  int64 // how much more it may be: failed INCRs, maybe executed, that have not shown since
	failures
	noted [stretches]histogram
}

// failures are those of one goroutine. A wrong answer is one.
type failures struct {
	failed   uint64
	maybe    uint64 // of these, maybe executed
	firstErr error
}

func (f *failures) fail(err error) {
	f.failed++
	if baton.MaybeExecuted(err) {
		f.maybe++
	}
	if f.firstErr == nil {
		f.firstErr = err
	}
}

func (w *worker) work() {
	ctx := context.Background() // an interrupted run lets its last commands finish
	incr, get := []any{"INCR", w.key}, []any{"GET", w.key}
	buf := make([]byte, 0, 32)
	pace := w.pacer()
	defer pace.stop()
	start := time.Since(w.l.began)
	for n := int64(0); ; n++ {
		if w.l.rate > 0 {
			start = pace.wait(n)
		}
		select {
		case <-w.l.over:
			return
		default:
		}
		began := w.l.stretch()
		var err error
		if n%4 != 3 || w.value == 0 {
			var v int64
			if v, err = w.l.client.Do(ctx, incr...).Int64(); err == nil {
				w.done++
				err = w.expect(v, 1)
			} else if baton.MaybeExecuted(err) {
				w.unsure++
				w.slack++
			}
		} else {
			var text []byte
			if text, err = w.l.client.DoAppend(ctx, buf, get...); err == nil {
				err = w.expectText(text)
			}
		}
		end := time.Since(w.l.began)
		w.noted[belongsTo(began, w.l.stretch())].note(end-start, end)
		if err != nil {
			w.fail(err)
		}
		start = end
	}
}

// belongsTo is the stretch that a command counts in that lasted from one to another: whatever touches the handoff is
// the handoff's.
func belongsTo(began, ended stretch) stretch {
	if began < during && ended >= during {
		return during
	}
	return began
}

// expect compares an answer with what the counter must be, step more than before.
func (w *worker) expect(v, step int64) error {
	least := w.value + step
	w.value = v
	if v < least || v > least+w.slack {
		return fmt.Errorf("%s is %d, where %d was due", w.key, v, least)
	}
	w.slack -= v - least
	return nil
}

func (w *worker) expectText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return err
	}
	return w.expect(v, 0)
}

// pacer keeps a worker to its times, which are fixed beforehand: a stall delays commands, it does not thin them out.
type pacer struct {
	w     *worker
	timer *time.Timer
}

func (w *worker) pacer() pacer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return pacer{w, t}
}

// wait returns at the moment of the worker's n-th command, or when the load is over. The workers take turns.
func (p pacer) wait(n int64) (now time.Duration) {
	l := p.w.l
	turn := n*int64(len(l.workers)) + int64(p.w.index)
	at := time.Duration(float64(turn) / float64(l.rate) * float64(time.Second))
	if now = time.Since(l.began); now >= at {
		return now
	}
	p.timer.Reset(at - now)
	select {
	case <-p.timer.C:
	case <-l.over:
	}
	return time.Since(l.began)
}

func (p pacer) stop() { p.timer.Stop() }

// histogram counts durations in buckets that are a 32nd of their value wide, so what is read from it is at most 2 %
// off, but for the maximum, which is exact.
type histogram struct {
	buckets [32 * 32]uint32
	count   uint64
	max     time.Duration
	maxAt   time.Duration // into the run: when that one ended
}

func (h *histogram) note(d, ended time.Duration) {
	h.buckets[bucketOf(d)]++
	h.count++
	if d > h.max {
		h.max, h.maxAt = d, ended
	}
}

// bucketOf: below 32 ns a bucket is a nanosecond; each doubling from there has 32 buckets. The last ends at 68 s.
func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	double := max(bits.Len64(v)-6, 0)
	return min(double*32+int(v>>double), len(histogram{}.buckets)-1)
}

// middleOf is the duration in the middle of a bucket.
func middleOf(bucket int) time.Duration {
	double := max(bucket/32-1, 0)
	return time.Duration(bucket-double*32)<<double + 1<<double/2
}

func (h *histogram) add(other *histogram) {
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
	h.count += other.count
	if other.max > h.max {
		h.max, h.maxAt = other.max, other.maxAt
	}
}

// quantile is the duration that a fraction q of all do not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	rank, seen := uint64(q*float64(h.count)), uint64(0)
	for i, n := range h.buckets {
		if seen += uint64(n); n > 0 && seen > rank {
			return min(middleOf(i), h.max)
		}
	}
	return h.max
}
