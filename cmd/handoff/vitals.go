package main

// This file holds what a soak reads of its own process, and whether that is flat. Readings are taken while the load rests,
// by the conductor's goroutine: then what is alive is what is kept, not what happens to be under way.

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"time"
)

// A reading is of one moment.
type reading struct {
	At          float64 `json:"at_s"`        // into the soak
	Heap        uint64  `json:"heap_bytes"`  // live, see liveHeap
	Goroutines  int     `json:"goroutines"`  // of the whole process
	Descriptors int     `json:"descriptors"` // open files and sockets; -1: this system does not tell
	Commands    uint64  `json:"commands"`    // so far, as are the rest
	Handoffs    uint64  `json:"handoffs"`
	Faults      int     `json:"faults"`
	Violations  int     `json:"violations"`
}

// read takes a reading of the process.
func read(at time.Duration) reading {
	return reading{At: math.Round(at.Seconds()*1e3) / 1e3, Heap: liveHeap(), Goroutines: runtime.NumGoroutine(), Descriptors: descriptors()}
}

// liveHeap is what a garbage collection found reachable. It is read from runtime/metrics, not from MemStats: HeapAlloc counts what
// was allocated since, too. The load rests, since what is allocated during a collection counts as reachable. There are two
// collections: a sync.Pool gives up what it keeps at the second, and how much that is depends on chance.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}

// descriptors is how many files and sockets are open, or -1 where there is no such list.
func descriptors() int {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return -1
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return -1
	}
	return len(names) - 1 // without dir
}

// stateOfSeries is what can be said of a series.
type stateOfSeries string

const (
	flat        stateOfSeries = "flat"          // its slope cannot be told from zero
	rising      stateOfSeries = "RISING"        // it can: something is kept
	falling     stateOfSeries = "falling"       // nothing is lost by that
	undecided   stateOfSeries = "too short"     // there are too few readings to say
	unavailable stateOfSeries = "not available" // this system does not tell
)

const (
	// confidence is how many standard deviations the range of a slope is wide on each side: 3.29 are 99.9 %. So three series that
	// are flat look as if they rose in one of 700 soaks.
	confidence = 3.29

	// fewest readings for a judgement: of fewer even those that rise from each to the next can do so by chance, at that confidence.
	fewest = 10

	// warmUpPart is the part of the readings that is left out, in which pools and buffers find their size.
	warmUpPart = 5
)

// A slope is how fast a series rises, a minute.
type slope struct {
	State     stateOfSeries `json:"state"`
	PerMinute float64       `json:"per_minute"`
	Low       float64       `json:"low"` // the range that the true slope is in
	High      float64       `json:"high"`
	Readings  int           `json:"readings"`    // without those of the warm-up
	Weight    float64       `json:"independent"` // as many independent ones would say as much
	First     float64       `json:"first"`       // the median of the first quarter,
	Last      float64       `json:"last"`        // and that of the last
	Least     float64       `json:"least"`       // of all, the warm-up included
	Most      float64       `json:"most"`        //
	unit      string        // for people
	scale     float64       // of what is told to people
	name      string        //
}

// slopes judges the three series.
func slopes(all []reading) []slope {
	of := func(name, unit string, scale float64, value func(reading) float64) slope {
		var t, v []float64
		for _, r := range all {
			t, v = append(t, r.At/60), append(v, value(r))
		}
		s := slopeOf(t, v)
		s.name, s.unit, s.scale = name, unit, scale
		return s
	}
	return []slope{
		of("heap", "KiB", 1024, func(r reading) float64 { return float64(r.Heap) }),
		of("goroutines", "", 1, func(r reading) float64 { return float64(r.Goroutines) }),
		of("descriptors", "", 1, func(r reading) float64 { return float64(r.Descriptors) }),
	}
}

// slopeOf is the slope of v over t, by the estimator of Theil and Sen: the median of the slopes between any two readings. A few
// that are far out do not move it. Its range is Sen's, from Kendall's statistic: the slopes whose rank is within so many standard
// deviations of the middle. That takes readings for independent, which those of a heap are not, and so the variance is
// widened as Hamed and Rao do, by how much each reading still tells of the ones after it.
func slopeOf(t, v []float64) slope {
	if len(v) == 0 || v[0] < 0 {
		return slope{State: unavailable}
	}
	s := slope{Least: slices.Min(v), Most: slices.Max(v)}
	warm := len(v) / warmUpPart
	t, v = t[warm:], v[warm:]
	n := len(v)
	s.Readings, s.Weight = n, float64(n)
	quarter := (n + 3) / 4
	s.First, s.Last = median(v[:quarter]), median(v[n-quarter:])
	if n < fewest {
		s.State = undecided
		return s
	}
	between := make([]float64, 0, n*(n-1)/2)
	for i := range v {
		for j := range i {
			between = append(between, (v[i]-v[j])/(t[i]-t[j]))
		}
	}
	slices.Sort(between)
	s.PerMinute = middle(between)
	wider := dependence(t, v, s.PerMinute)
	s.Weight = float64(n) / wider
	half := confidence * math.Sqrt(kendallVariance(v)*wider) / 2
	rank := func(at float64) float64 { return between[min(max(int(math.Round(at)), 0), len(between)-1)] }
	center := float64(len(between)-1) / 2
	s.Low, s.High = rank(center-half), rank(center+half)
	switch {
	case s.Low > 0:
		s.State = rising
	case s.High < 0:
		s.State = falling
	default:
		s.State = flat
	}
	return s
}

// kendallVariance is that of the number of pairs that rise less those that fall, where there is no trend. Values that are equal
// make it smaller.
func kendallVariance(v []float64) float64 {
	term := func(n float64) float64 { return n * (n - 1) * (2*n + 5) / 18 }
	variance, count := term(float64(len(v))), map[float64]float64{}
	for _, x := range v {
		count[x]++
	}
	for _, n := range count {
		variance -= term(n)
	}
	return variance
}

// dependence is by how much the variance is wider than that of independent readings: what remains of v without its trend tells, by the
// ranks, how much a reading has to do with the next. The trend is a line; but if something that only rises, or only falls, is nearly
// all there is to v, it is that: a leak comes in steps and at the pace of what leaks, and must not hide in that.
func dependence(t, v []float64, trend float64) float64 {
	const nearly = 0.05 // of the variance may remain. Noise that wanders comes so close to rising by chance in none of the tests' runs
	n := float64(len(v))
	rest, sign := make([]float64, len(v)), 1.0
	if trend < 0 {
		sign = -1
	}
	for i := range rest {
		rest[i] = sign * v[i]
	}
	steps := neverFalling(rest)
	whole, rise := spreadAround(rest), make([]float64, len(v))
	for i := range rest {
		rise[i] = rest[i] - steps[i]
		rest[i] -= sign * trend * t[i]
	}
	if spreadAround(rise) < nearly*whole {
		rest = rise
	}
	ranks := ranksOf(rest)
	var square, product float64
	for i, r := range ranks {
		square += r * r
		if i > 0 {
			product += r * ranks[i-1]
		}
	}
	if square == 0 {
		return 1
	}
	// A series looks less dependent without its trend than it is, by this much (Marriott and Pope). And readings that alternate do
	// not make the range narrower.
	r := product / square
	r = min(max(r+(2+4*r)/n, 0), 0.95)
	wider := 1.0
	for lag, power := 1.0, r; lag < n && power > 1e-6; lag, power = lag+1, power*r {
		wider += 2 * (1 - lag/n) * power
	}
	return wider
}

// spreadAround is the sum of the squares around the mean.
func spreadAround(v []float64) (sum float64) {
	mean := 0.0
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		sum += (x - mean) * (x - mean)
	}
	return sum
}

// neverFalling is what is closest to v of all that never falls: neighbours that fall are pooled, and take their mean.
func neverFalling(v []float64) []float64 {
	type pool struct {
		sum   float64
		count int
	}
	var pools []pool
	for _, x := range v {
		pools = append(pools, pool{x, 1})
		for n := len(pools); n > 1 && pools[n-2].sum*float64(pools[n-1].count) > pools[n-1].sum*float64(pools[n-2].count); n = len(pools) {
			pools[n-2].sum += pools[n-1].sum
			pools[n-2].count += pools[n-1].count
			pools = pools[:n-1]
		}
	}
	levels := make([]float64, 0, len(v))
	for _, p := range pools {
		for range p.count {
			levels = append(levels, p.sum/float64(p.count))
		}
	}
	return levels
}

// ranksOf are the ranks of v, less their mean. Equal ones share theirs.
func ranksOf(v []float64) []float64 {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(v[a], v[b]) })
	ranks := make([]float64, len(v))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && v[order[j]] == v[order[i]] {
			j++
		}
		for k := i; k < j; k++ {
			ranks[order[k]] = float64(i+j-1)/2 - float64(len(v)-1)/2
		}
		i = j
	}
	return ranks
}

func median(v []float64) float64 { return middle(slices.Sorted(slices.Values(v))) }

// middle is the median of what is sorted.
func middle(v []float64) float64 { return (v[(len(v)-1)/2] + v[len(v)/2]) / 2 }

// describe is a slope for people.
func (s *slope) describe() string {
	number := func(v float64) string {
		return strconv.FormatFloat(math.Round(v/s.scale*1e3)/1e3, 'f', -1, 64)
	}
	unit := ""
	if s.unit != "" {
		unit = " " + s.unit
	}
	switch s.State {
	case unavailable:
		return string(unavailable) + " on this system"
	case undecided:
		return fmt.Sprintf("%s to %s%s; %s for a slope: %d readings after the warm-up, at least %d are wanted",
			number(s.Least), number(s.Most), unit, undecided, s.Readings, fewest)
	}
	return fmt.Sprintf("%-7s %s to %s%s a minute (99.9 %%, by %d readings, worth %.0f); %s%s at first, %s at last, %s to %s in all",
		s.State, number(s.Low), number(s.High), unit, s.Readings, s.Weight, number(s.First), unit, number(s.Last), number(s.Least), number(s.Most))
}

// writeCSV writes one line for each reading.
func writeCSV(out io.Writer, all []reading) error {
	w := csv.NewWriter(out)
	w.Write([]string{"at_s", "heap_bytes", "goroutines", "descriptors", "commands", "handoffs", "faults", "violations"})
	for _, r := range all {
		w.Write([]string{strconv.FormatFloat(r.At, 'f', 3, 64), fmt.Sprint(r.Heap), strconv.Itoa(r.Goroutines), strconv.Itoa(r.Descriptors),
			fmt.Sprint(r.Commands), fmt.Sprint(r.Handoffs), strconv.Itoa(r.Faults), strconv.Itoa(r.Violations)})
	}
	w.Flush()
	return w.Error()
}
