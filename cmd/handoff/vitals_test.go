package main

// Here made-up series are judged, and what is read of a process is compared with what was put there.

import (
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// series makes n readings, five seconds apart, which begin at start and rise by perMinute; noise is added to each.
func series(n int, start, perMinute float64, noise func() float64) (t, v []float64) {
	for i := range n {
		at := float64(i) * 5 / 60
		t, v = append(t, at), append(v, start+perMinute*at+noise())
	}
	return t, v
}

// steady is a generator that is the same in each run.
func steady(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 6)) }

// wandering is noise of which a part stays from each reading to the next.
func wandering(r *rand.Rand, size, stays float64) func() float64 {
	last := 0.0
	return func() float64 {
		last = stays*last + size*r.NormFloat64()
		return last
	}
}

// outliers are noise with one reading in ten far out, always above.
func outliers(r *rand.Rand, size float64) func() float64 {
	return func() float64 {
		if r.IntN(10) == 0 {
			return 50 * size * r.Float64()
		}
		return size * r.NormFloat64()
	}
}

func TestSlopeOfAFlatSeriesIsNotReported(t *testing.T) {
	const runs = 300
	for name, noise := range map[string]func(r *rand.Rand) func() float64{
		"none":      func(*rand.Rand) func() float64 { return func() float64 { return 0 } },
		"normal":    func(r *rand.Rand) func() float64 { return wandering(r, 1000, 0) },
		"wandering": func(r *rand.Rand) func() float64 { return wandering(r, 1000, 0.6) },
		"outliers":  func(r *rand.Rand) func() float64 { return outliers(r, 1000) },
		"whole":     func(r *rand.Rand) func() float64 { return func() float64 { return float64(r.IntN(2)) } },
	} {
		for _, n := range []int{13, 40, 120} {
			rose := 0
			for seed := range runs {
				s := slopeOf(series(n, 1e6, 0, noise(steady(uint64(seed)))))
				if s.State == rising {
					rose++
				}
				if s.State == undecided || s.Low > s.PerMinute || s.High < s.PerMinute {
					t.Fatalf("%s, %d readings: %+v", name, n, s)
				}
			}
			if rose > runs/100 {
				t.Errorf("%s noise, %d readings: %d of %d flat series were reported", name, n, rose, runs)
			}
		}
	}
}

func TestSlopeOfASmallLeakIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		perMinute float64
		noise     func(r *rand.Rand) func() float64
	}{
		"4 KiB a minute in noise of 8 KiB":     {4096, func(r *rand.Rand) func() float64 { return wandering(r, 8192, 0) }},
		"8 KiB a minute in noise that wanders": {8192, func(r *rand.Rand) func() float64 { return wandering(r, 8192, 0.5) }},
		"4 KiB a minute among outliers":        {4096, func(r *rand.Rand) func() float64 { return outliers(r, 4096) }},
		"a goroutine every two minutes, whole": {0.5, func(*rand.Rand) func() float64 { return func() float64 { return 0 } }},
		"two goroutines a minute, whole":       {2, func(*rand.Rand) func() float64 { return func() float64 { return 0 } }},
	} {
		for seed := range 50 {
			at, v := series(120, 1e6, c.perMinute, c.noise(steady(uint64(seed))))
			if c.perMinute < 10 {
				for i := range v {
					v[i] = math.Floor(v[i])
				}
			}
			s := slopeOf(at, v)
			if s.State != rising || s.Low > 1.1*c.perMinute || s.High < 0.9*c.perMinute { // steps are not a line
				t.Errorf("%s, seed %d: %+v", name, seed, s)
			}
		}
	}
}

// A leak does not have to be steady.
func TestSlopeOfALeakInFitsAndStartsIsReported(t *testing.T) {
	for seed := range 50 {
		r := steady(uint64(seed))
		at, v := series(25, 100, 0, func() float64 { return 0 })
		for i, sum, pace := 0, 0.0, 0; i < len(v); i++ {
			if i%5 == 0 {
				pace = r.IntN(50) // at times nothing leaks
			}
			sum += float64(pace) + float64(i%2)
			v[i] += sum
		}
		if s := slopeOf(at, v); s.State != rising {
			t.Errorf("seed %d: %+v", seed, s)
		}
	}
}

// What finds its size in the warm-up is no leak, and what shrinks is none either.
func TestSlopeLeavesOutTheWarmUp(t *testing.T) {
	at, v := series(100, 1000, 0, func() float64 { return 0 })
	for i := range 20 {
		v[i] = float64(50 * i)
	}
	if s := slopeOf(at, v); s.State != flat || s.Readings != 80 || s.First != 1000 || s.Least != 0 {
		t.Errorf("%+v", s)
	}
	if s := slopeOf(series(100, 1000, -1, func() float64 { return 0 })); s.State != falling || s.High >= 0 {
		t.Errorf("%+v", s)
	}
}

func TestSlopeSaysWhenItCannotTell(t *testing.T) {
	for n, want := range map[int]stateOfSeries{0: unavailable, 1: undecided, 11: undecided, 12: rising} {
		if s := slopeOf(series(n, 1, 1, func() float64 { return 0 })); s.State != want {
			t.Errorf("%d readings: %+v", n, s)
		}
	}
	s := slopeOf([]float64{0, 1}, []float64{-1, -1})
	if s.State != unavailable || !strings.Contains(s.describe(), "not available") {
		t.Errorf("%+v: %s", s, s.describe())
	}
}

func TestReadingCountsWhatIsKept(t *testing.T) {
	before := read(0)
	kept := make([]byte, 1<<20)
	block := make(chan struct{})
	go func() { <-block; kept[0] = 1 }()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	after := read(time.Second)
	if grown := int64(after.Heap) - int64(before.Heap); grown < 1<<20 || grown > 2<<20 {
		t.Errorf("a mebibyte more, and the heap grew by %d", grown)
	}
	if after.Goroutines != before.Goroutines+1 {
		t.Errorf("a goroutine more: %d, then %d", before.Goroutines, after.Goroutines)
	}
	_, err = os.Stat("/proc/self/fd")
	if err == nil && after.Descriptors <= before.Descriptors || err != nil && after.Descriptors != -1 {
		t.Errorf("a socket more: %d descriptors, then %d", before.Descriptors, after.Descriptors)
	}
	close(block)
	ln.Close()
}

func TestReadingsAsCSV(t *testing.T) {
	var b strings.Builder
	if err := writeCSV(&b, []reading{{At: 1.5, Heap: 2, Goroutines: 3, Descriptors: 4, Commands: 5, Handoffs: 6, Faults: 7, Violations: 8}}); err != nil {
		t.Fatal(err)
	}
	want := "at_s,heap_bytes,goroutines,descriptors,commands,handoffs,faults,violations\n1.500,2,3,4,5,6,7,8\n"
	if b.String() != want {
		t.Errorf("%q", b.String())
	}
}
