package baton

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTickDeadlineZeroIsUnset(t *testing.T) {
	var d TickDeadline
	if d.IsSet() || d.Passed() || d.Pending() || d.Remaining() != 0 {
		t.Fatalf("the zero deadline: set %v, passed %v, pending %v, remaining %v", d.IsSet(), d.Passed(), d.Pending(), d.Remaining())
	}
}

func TestTickDeadlineExtendingNeverShortens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d TickDeadline
		d.Extend(10 * time.Second)
		d.Extend(time.Second)
		d.Extend(-time.Second)
		if got := d.Remaining(); got != 10*time.Second {
			t.Fatalf("remaining %v after shorter extensions, want 10s", got)
		}
		d.Extend(11 * time.Second)
		if got := d.Remaining(); got != 11*time.Second {
			t.Fatalf("remaining %v after a longer extension, want 11s", got)
		}
	})
}

func TestTickDeadlinePassedStaysAsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d TickDeadline
		d.Extend(time.Second)
		time.Sleep(time.Second)
		if !d.Passed() || d.Pending() {
			t.Fatal("a deadline has passed at the very moment that it names")
		}
		time.Sleep(time.Hour)
		if got := d.Remaining(); got != -time.Hour {
			t.Fatalf("passed %v ago, want 1h", -got)
		}
		d.Extend(time.Minute)
		if d.Passed() {
			t.Fatal("a passed deadline can be set anew")
		}
	})
}

func TestTickDeadlineClampsAbsurdSpans(t *testing.T) {
	for _, span := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, maxSpan + 1} {
		var d TickDeadline
		d.Extend(span)
		if left := d.Remaining(); left > maxSpan || left < maxSpan-time.Minute {
			t.Errorf("Extend(%d): remaining %v, want a year", int64(span), left)
		}
	}
	var d TickDeadline
	d.Extend(math.MinInt64)
	if !d.Passed() || !d.IsSet() {
		t.Error("the most negative span is a deadline that has passed")
	}
}

func TestTickDeadlineConcurrentExtensionsKeepTheLatest(t *testing.T) {
	base := now()
	var d TickDeadline
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 100 {
				d.extendTo(base.add(time.Duration(i*100+j) * time.Millisecond))
			}
		})
	}
	wg.Wait()
	if got, want := d.tick(), base.add(6399*time.Millisecond); got != want {
		t.Fatalf("the latest of all extensions is lost: off by %v", want.until(got))
	}
}

func TestTicksIgnoreWhereTheBubbleStands(t *testing.T) {
	if now() <= 0 {
		t.Fatal("a tick outside a bubble is not positive")
	}
	synctest.Test(t, func(t *testing.T) {
		before := now()
		time.Sleep(3 * time.Second)
		if before <= 0 || before.until(now()) != 3*time.Second {
			t.Fatalf("ticks in virtual time: began at %d, advanced %v", before, before.until(now()))
		}
	})
}
