package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/baton"
	"example.com/baton/batontest"
)

// ran is what a run left.
type ran struct {
	status         int
	stdout, stderr string
}

// runs runs the program for as short as it can, two seconds.
func runs(ctx context.Context, args ...string) ran {
	var stdout, stderr bytes.Buffer
	args = append([]string{"-window", "1s", "-duration", "2s", "-workers", "16"}, args...)
	status := run(ctx, args, &stdout, &stderr)
	return ran{status, stdout.String(), stderr.String()}
}

var keys = strings.Fields(`commands failed maybe_executed lost executed_twice max_stall_ms max_stall_before_ms
	p50_us p99_us p999_us jitter_ms handoff_ms hold_ms held lingered missed repeated out_of_order`)

// object is the one JSON object on standard output, which must have the promised keys.
func (r ran) object(t *testing.T) map[string]float64 {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(r.stdout))
	var object map[string]float64
	if err := d.Decode(&object); err != nil || d.More() {
		t.Fatalf("want one JSON object (%v), got %q; standard error: %s", err, r.stdout, r.stderr)
	}
	if got := slices.Sorted(maps.Keys(object)); !slices.Equal(got, slices.Sorted(slices.Values(keys))) {
		t.Errorf("the keys are %v", got)
	}
	return object
}

// wentWell expects a handoff without a failure.
func (r ran) wentWell(t *testing.T) map[string]float64 {
	t.Helper()
	o := r.object(t)
	for _, key := range []string{"failed", "maybe_executed", "lost", "executed_twice", "missed", "repeated", "out_of_order"} {
		if o[key] != 0 {
			t.Errorf("%s is %v", key, o[key])
		}
	}
	for _, key := range []string{"commands", "p50_us", "p99_us", "p999_us", "handoff_ms"} {
		if o[key] <= 0 {
			t.Errorf("%s is %v", key, o[key])
		}
	}
	if r.status != 0 {
		t.Errorf("status %d; standard error: %s", r.status, r.stderr)
	}
	return o
}

// TestRuns runs everything that takes two seconds of real time side by side, which t.Parallel would not on two cores.
func TestRuns(t *testing.T) {
	a := batontest.NewServer() // as good as real: it announces nothing here
	defer a.Close()
	b := a.Sibling()
	defer b.Close()
	cuts := cutsEvery(30)
	defer cuts.Close()
	mixedCuts := cutsEvery(30) // of its own: while it is set up nothing is cut
	defer mixedCuts.Close()
	lies := liar()
	defer lies.Close()
	cases := []struct {
		name, args string
		check      func(*testing.T, ran)
	}{
		{"flat out", "-json", func(t *testing.T, r ran) { r.wentWell(t) }},
		{"at a rate", "-json -rate 450", atARate},
		{"TLS, several connections", "-json -tls -conns 3 -rate 2000", func(t *testing.T, r ran) { r.wentWell(t) }},
		{"for people", "-rate 2000", forPeople},
		{"real servers", "-json -tls -rate 2000 -addr " + a.Addr() + " -to " + b.Addr(), func(t *testing.T, r ran) {
			r.wentWell(t)
			if a.Executed("INCR") == 0 || b.Executed("INCR") == 0 {
				t.Errorf("%d INCRs on the old server, %d on the new one", a.Executed("INCR"), b.Executed("INCR"))
			}
			if b.Executed("DEL") < 16 {
				t.Errorf("%d of 16 counters were deleted", b.Executed("DEL"))
			}
		}},
		{"a server that cuts", "-json -addr " + cuts.Addr(), func(t *testing.T, r ran) {
			if o := r.object(t); r.status != 1 || o["failed"] == 0 || o["lost"] > 0 || o["executed_twice"] > 0 {
				t.Errorf("status %d, %v", r.status, o)
			}
		}},
		{"mixed", "-json -mix -rate 2000 -conns 2", func(t *testing.T, r ran) { r.wentWell(t) }},
		{"mixed, for people, real servers", "-mix -tls -rate 2000 -addr " + a.Addr() + " -to " + b.Addr(), mixedForPeople},
		{"mixed, a server that cuts", "-json -mix -rate 2000 -addr " + mixedCuts.Addr(), func(t *testing.T, r ran) {
			o := r.object(t) // messages are missed between two connections
			if r.status != 1 || o["failed"] == 0 || o["lost"] > 0 || o["executed_twice"] > 0 || o["repeated"] > 0 || o["out_of_order"] > 0 {
				t.Errorf("status %d, %v", r.status, o)
			}
		}},
		{"mixed, a server that lies", "-json -mix -rate 2000 -addr " + lies.Addr(), func(t *testing.T, r ran) {
			o := r.object(t) // the two long pops fail as well: they are cut off
			if r.status != 1 || o["failed"] < 3 || o["maybe_executed"] != 2 || o["lost"] == 0 || o["missed"] == 0 {
				t.Errorf("status %d, %v", r.status, o)
			}
		}},
	}
	var args []string
	for _, c := range cases {
		args = append(args, c.args)
	}
	results := runAll(args)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.check(t, results[i]) })
	}
	c, err := baton.Dial(t.Context(), baton.Options{Addr: a.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if left, err := c.Do(t.Context(), "KEYS", "*").Texts(); len(left) > 0 || err != nil {
		t.Errorf("keys were left: %v, %v", left, err)
	}
}

// runAll runs the program with each of these flags at the same time. If the machine stood still for a good part of the
// windows, which are a second long, that says nothing about the program, and all is done again.
func runAll(args []string) []ran {
	results := make([]ran, len(args))
	for attempt := 1; ; attempt++ {
		var all sync.WaitGroup
		for i, a := range args {
			all.Go(func() { results[i] = runs(context.Background(), strings.Fields(a)...) })
		}
		over := make(chan struct{})
		longest := make(chan time.Duration)
		go func() { longest <- standstill(over) }()
		all.Wait()
		close(over)
		if <-longest < 300*time.Millisecond || attempt == 4 {
			return results
		}
	}
}

// standstill is the longest, until over is closed, that a goroutine had to wait for its turn.
func standstill(over chan struct{}) (longest time.Duration) {
	for last := time.Now(); ; {
		select {
		case <-over:
			return longest
		case <-time.After(10 * time.Millisecond):
			longest = max(longest, time.Since(last))
			last = time.Now()
		}
	}
}

// cutsEvery is a server that resets its connections while it is busy with every n-th INCR. Each takes it 20 ms.
func cutsEvery(n int32) *batontest.Server {
	var incrs atomic.Int32
	var s atomic.Pointer[batontest.Server]
	s.Store(batontest.NewServer(batontest.OnCommand(func(_ int, args []string) {
		if args[0] == "INCR" && incrs.Add(1)%n == 0 {
			go s.Load().Cut()
		}
	})))
	s.Load().Delay("INCR", 20*time.Millisecond)
	return s.Load()
}

// liar is a server that answers RPUSH and PUBLISH without doing so, and changes a counter behind the transactions' backs, again and again,
// since the runs are repeated when the machine stood still.
func liar() *batontest.Server {
	var moves atomic.Int32
	var s atomic.Pointer[batontest.Server]
	s.Store(batontest.NewServer(batontest.Respond("rpush", ":1\r\n"), batontest.Respond("publish", ":1\r\n"),
		batontest.OnCommand(func(_ int, args []string) {
			if args[0] == "INCRBY" && moves.Add(1)%100 == 10 {
				go func() {
					if c, err := baton.Dial(context.Background(), baton.Options{Addr: s.Load().Addr()}); err == nil {
						c.Do(context.Background(), "INCR", args[1])
						c.Close()
					}
				}()
			}
		})))
	return s.Load()
}

func atARate(t *testing.T, r ran) {
	// 900 are due. Fewer, or more in a run that ends late, are the machine's affair; flat out would be a hundred times as many.
	if o := r.wentWell(t); o["commands"] > 4*450 {
		t.Errorf("%v commands in two seconds", o["commands"])
	}
}

func forPeople(t *testing.T, r ran) {
	r.tells(t, "16 workers", "received", "jitter over", "ready", "promoted", "stragglers done", "window over", "before", "during", "after",
		"longest stall", "GOOD")
	if !strings.Contains(r.stderr, "commands/s") || strings.Contains(r.stderr, "\r") {
		t.Errorf("the live lines are %q", r.stderr)
	}
	if strings.Contains(r.stdout, "transactions") {
		t.Errorf("there was no -mix, and it is told of:\n%s", r.stdout)
	}
}

func mixedForPeople(t *testing.T, r ran) {
	r.tells(t, "16 workers", "with pops, messages and transactions", "received", "window over",
		"pops: ", " from 4 lists, and 2 that waited ", "0 lost, 0 twice, 0 out of order",
		"messages: ", " on 8 channels; 0 missed, 0 repeated, 0 out of order", "transactions: ", "sum is unchanged", "GOOD")
	for _, none := range []string{"pops: 0 ", "messages: 0 ", "transactions: 0 "} {
		if strings.Contains(r.stdout, none) {
			t.Errorf("%q in:\n%s", none, r.stdout)
		}
	}
}

// tells expects a run that went well and was told with these words in this order.
func (r ran) tells(t *testing.T, all ...string) {
	t.Helper()
	if r.status != 0 {
		t.Errorf("status %d", r.status)
	}
	at := 0
	for _, words := range all {
		next := strings.Index(r.stdout[at:], words)
		if next < 0 {
			t.Fatalf("%q does not come in its place in:\n%s", words, r.stdout)
		}
		at += next
	}
}

// interrupter ends a run as soon as it writes something, which it first does when it is connected.
type interrupter struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (i *interrupter) Write(b []byte) (int, error) {
	i.cancel()
	return i.Buffer.Write(b)
}

func TestInterrupted(t *testing.T) {
	for _, mix := range []string{"-mix=false", "-mix"} {
		ctx, cancel := context.WithCancel(t.Context())
		stdout := &interrupter{cancel: cancel}
		status := run(ctx, []string{"-rate", "100", mix}, stdout, io.Discard)
		if status != 0 || !strings.Contains(stdout.String(), "interrupted before the handoff") {
			t.Errorf("%s: status %d, %q", mix, status, stdout.String())
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-nonsense":                         "-nonsense",
		"more":                              `"more"`,
		"-window soon":                      "-window",
		"-window 10ms":                      "-window",
		"-window 3s":                        "-duration",
		"-rate -1":                          "-rate",
		"-workers 0":                        "-workers",
		"-workers 1000000":                  "-workers",
		"-conns 0":                          "-conns",
		"-to 127.0.0.1:6379":                "-addr",
		"-addr 127.0.0.1":                   "-addr",
		"-addr 127.0.0.1:6379 -to nowhere:": "-to",
	} {
		r := runs(t.Context(), strings.Fields(args)...)
		if r.status != 2 || r.stdout != "" || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: status %d, standard output %q, standard error %q", args, r.status, r.stdout, r.stderr)
		}
	}
	if r := runs(t.Context(), "-help"); r.status != 0 || !strings.Contains(r.stderr, "same data") {
		t.Errorf("-help: status %d, %q", r.status, r.stderr)
	}
}

func TestServersThatCannotBeUsed(t *testing.T) {
	a, b := batontest.NewServer(), batontest.NewServer()
	defer a.Close()
	defer b.Close()
	r := runs(t.Context(), "-json", "-addr", a.Addr(), "-to", b.Addr())
	if r.status != 1 || r.stdout != "" || !strings.Contains(r.stderr, "same data") {
		t.Errorf("two databases: status %d, %q, %q", r.status, r.stdout, r.stderr)
	}
	b.Close()
	r = runs(t.Context(), "-json", "-addr", a.Addr(), "-to", b.Addr())
	if r.status != 1 || r.stdout != "" || !strings.Contains(r.stderr, "-to: ") {
		t.Errorf("nobody there: status %d, %q, %q", r.status, r.stdout, r.stderr)
	}
}

func TestCountersTellLossesAndRepetitions(t *testing.T) {
	for _, c := range []struct{ stored, done, unsure, lost, twice int64 }{
		{10, 10, 0, 0, 0},
		{9, 10, 0, 1, 0},
		{12, 10, 0, 0, 2},
		{12, 10, 2, 0, 0}, // both failures had been executed
		{10, 10, 2, 0, 0}, // neither had
		{13, 10, 2, 0, 1},
	} {
		if lost, twice := compare(c.stored, c.done, c.unsure); lost != c.lost || twice != c.twice {
			t.Errorf("%+v: %d lost, %d twice", c, lost, twice)
		}
	}
}

func TestAWrongReplyIsNoticed(t *testing.T) {
	w := &worker{key: "k", value: 10, slack: 1}
	for _, c := range []struct {
		v, step int64
		good    bool
	}{
		{11, 1, true},
		{13, 1, true}, // the failed one was executed
		{13, 0, true},
		{14, 0, false}, // and it cannot have been executed twice
		{15, 1, true},
		{17, 1, false},
		{17, 1, false},
		{16, 0, false},
	} {
		if err := w.expect(c.v, c.step); (err == nil) != c.good {
			t.Errorf("%d after a step of %d: %v", c.v, c.step, err)
		}
	}
}

func TestVerdict(t *testing.T) {
	ms := 1.5
	for _, c := range []struct {
		v    verdict
		good bool
		word string
	}{
		{verdict{HandoffMS: &ms, l: &load{}}, true, "GOOD"},
		{verdict{HandoffMS: &ms, Failed: 1, l: &load{}}, false, "FAILED"},
		{verdict{HandoffMS: &ms, Lost: 1, l: &load{}}, false, "FAILED"},
		{verdict{HandoffMS: &ms, ExecutedTwice: 1, l: &load{interrupted: true}}, false, "FAILED"},
		{verdict{HandoffMS: &ms, Missed: 1, l: &load{}}, false, "FAILED"},
		{verdict{HandoffMS: &ms, Repeated: 1, l: &load{}}, false, "FAILED"},
		{verdict{HandoffMS: &ms, OutOfOrder: 1, l: &load{}}, false, "FAILED"},
		{verdict{l: &load{}}, false, "FAILED, there was no handoff"},
		{verdict{l: &load{interrupted: true}}, true, "interrupted before the handoff"},
		{verdict{HandoffMS: &ms, l: &load{interrupted: true}}, true, "interrupted, good so far"},
	} {
		if c.v.good() != c.good || c.v.word() != c.word {
			t.Errorf("good is %v, want %v; %q, want %q", c.v.good(), c.good, c.v.word(), c.word)
		}
	}
}

func TestLiveLineNamesThePhase(t *testing.T) {
	at := time.Now()
	h := baton.Handoff{}
	is := func(now stretch, want string) {
		t.Helper()
		if got := phase(now, baton.Stats{LastHandoff: h}); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	is(warmUp, "warming up")
	is(before, "old server")
	is(during, "announced")
	h.Received = at
	is(during, "jitter")
	h.Began = at
	is(during, "dialling")
	h.Ready = at
	is(during, "holding")
	h.Promoted = at
	is(during, "stragglers")
	h.Closed = at
	is(during, "window open")
	is(after, "window over")
}

func TestHistogramIsTwoPerCentOff(t *testing.T) {
	var h histogram
	all := make([]time.Duration, 10_000)
	for i := range all {
		all[i] = time.Duration(rand.Int64N(1 << (5 + i%30)))
		h.note(all[i], time.Duration(i))
	}
	slices.Sort(all)
	for _, q := range []float64{0, .1, .5, .9, .99, .999} {
		want, got := all[int(q*10_000)], h.quantile(q)
		if off := got - want; max(off, -off) > want/50+1 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if last := all[len(all)-1]; h.max != last || h.quantile(1) != last {
		t.Errorf("the longest is %v, %v, want %v", h.max, h.quantile(1), last)
	}
	h.note(time.Hour, 0) // beyond the last bucket
	h.note(-1, 0)        // no clock of ours goes backwards, but it would not be a crash
	if h.max != time.Hour || new(histogram).quantile(.5) != 0 {
		t.Error("the ends are wrong")
	}
}

func TestMeasuringAllocatesNothing(t *testing.T) {
	w := &worker{key: "k"}
	var err error
	text := []byte("1")
	n := testing.AllocsPerRun(1000, func() {
		w.value = 0
		err = errors.Join(err, w.expect(1, 1), w.expectText(text))
		w.noted[belongsTo(before, during)].note(time.Millisecond, time.Second)
	})
	if n != 0 || err != nil {
		t.Errorf("%v allocations, %v", n, err)
	}
}
