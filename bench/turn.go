package main

// One turn: some callers do the same over and over for a fixed time. The first part warms up and is not counted.

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A turn is what one contender did when it was its turn.
type turn struct {
	perSecond      float64
	p50, p99, p999 time.Duration // 0: not measured
	allocs         float64       // for each operation, as are the next two
	processor      time.Duration
	calls          float64
	beside         float64 // operations a second of the caller beside the counted ones
}

// The phases of a turn, in order.
const (
	warmingUp int32 = iota
	counting
	over
)

var (
	beginning = time.Now()
	errHangs  = errors.New("calls do not return")
)

// A window is the counted time of a turn: callers look at the phase after each operation.
type window struct {
	phase        atomic.Int32
	began, ended time.Duration // since beginning
	used         usage         // of what was used before, until it ended; then of what was used in it
}

// pass lets the phases pass. It ends early, with an error, if one is sent.
func (w *window) pass(warmUp, counted time.Duration, failed <-chan error) error {
	defer w.phase.Store(over)
	for _, step := range []struct {
		wait time.Duration
		then func()
	}{
		{warmUp, func() { w.used, w.began = begin(), time.Since(beginning); w.phase.Store(counting) }},
		{counted, func() { w.used, w.ended = w.used.since(), time.Since(beginning) }},
	} {
		select {
		case <-time.After(step.wait):
			step.then()
		case err := <-failed:
			return err
		}
	}
	return nil
}

// turn is what the window measured, given the operations that ended in it. Those in flight when it began are counted though they
// began before, and those in flight when it ended are not, though they began in it.
func (w *window) turn(operations int) turn {
	n, took := float64(operations), w.ended-w.began
	return turn{
		perSecond: n / took.Seconds(),
		allocs:    float64(w.used.mallocs) / n,
		processor: time.Duration(float64(w.used.processor) / n),
		calls:     float64(w.used.calls) / n,
	}
}

// A crowd is the callers of a cell.
type crowd struct {
	do       []func(ctx context.Context) error // of each caller
	beside   func(ctx context.Context) error   // nil, or what one more caller does meanwhile
	contexts []context.Context                 // of each caller
	notes    notes
}

// notes are the latencies of a turn, by caller. All crowds of a cell write theirs into the same memory, one after the other: with
// memory for each, the heap would be so large that garbage cost nobody anything.
type notes [][]time.Duration

// expected is more operations than anything did in a second on the machines that this was written on: memory for the latencies
// of a turn is made for so many, so that keeping them allocates nothing. With more it does.
const expected = 2_000_000

func newNotes(callers int, longest time.Duration) notes {
	n := make(notes, callers)
	for i := range n {
		n[i] = make([]time.Duration, 0, int(expected*longest.Seconds())/callers+16)
	}
	return n
}

// take has everybody call until the turn is over.
func (c *crowd) take(warmUp, counted time.Duration) (turn, error) {
	var w window
	var wg sync.WaitGroup
	failed := make(chan error, len(c.contexts)+1)
	for i, ctx := range c.contexts {
		wg.Go(func() { c.call(ctx, i, &w.phase, failed) })
	}
	var beside int
	if c.beside != nil {
		wg.Go(func() { beside = c.callBeside(&w.phase, failed) })
	}
	err := w.pass(warmUp, counted, failed)
	if !returns(&wg) {
		return turn{}, errors.Join(err, errHangs)
	}
	if err == nil && len(failed) > 0 {
		err = <-failed
	}
	if err != nil {
		return turn{}, err
	}
	t := w.turn(c.operations())
	t.p50, t.p99, t.p999 = quantiles(c.notes)
	t.beside = float64(beside) / (w.ended - w.began).Seconds()
	return t, nil
}

// patience is longer than the timeouts of all clients.
const patience = 30 * time.Second

func returns(wg *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(patience):
		return false
	}
}

// call reads the clock once for each operation: the end of one is the beginning of the next.
func (c *crowd) call(ctx context.Context, caller int, phase *atomic.Int32, failed chan<- error) {
	kept := c.notes[caller][:0]
	defer func() { c.notes[caller] = kept }()
	for from := time.Since(beginning); ; {
		if err := c.do[caller](ctx); err != nil {
			failed <- err
			return
		}
		to := time.Since(beginning)
		switch phase.Load() {
		case counting:
			kept = append(kept, to-from)
		case over:
			return
		}
		from = to
	}
}

func (c *crowd) callBeside(phase *atomic.Int32, failed chan<- error) (operations int) {
	for {
		if err := c.beside(context.Background()); err != nil {
			failed <- err
			return operations
		}
		switch phase.Load() {
		case counting:
			operations++
		case over:
			return operations
		}
	}
}

func (c *crowd) operations() (n int) {
	for _, kept := range c.notes {
		n += len(kept)
	}
	return n
}

// quantiles merges the latencies of all callers.
func quantiles(latencies notes) (p50, p99, p999 time.Duration) {
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	for _, kept := range latencies {
		for _, d := range kept {
			h.RecordValue(min(int64(d), int64(time.Minute)))
		}
	}
	at := h.ValueAtPercentilesSlice([]float64{50, 99, 99.9})
	return time.Duration(at[0]), time.Duration(at[1]), time.Duration(at[2])
}
