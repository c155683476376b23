package main

// Here soaks of a few seconds are run, and what they tell is compared with what was done to them: leaks and lies are put in on purpose,
// in the options of the client and in the servers, never in the program.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/baton"
	"example.com/baton/batontest"
)

func soaks(ctx context.Context, args ...string) ran {
	var stdout, stderr bytes.Buffer
	status := run(ctx, append([]string{"-workers", "8"}, args...), &stdout, &stderr)
	return ran{status, stdout.String(), stderr.String()}
}

// soaked is the JSON object that a soak leaves.
func (r ran) soaked(t *testing.T) (o soakReport) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(r.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil || d.More() {
		t.Fatalf("want one JSON object (%v), got %q; standard error: %s", err, r.stdout, r.stderr)
	}
	return o
}

func TestSoakForAFewSeconds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "readings.csv")
	r := soaks(t.Context(), "-soak", "3s", "-seed", "7", "-mix", "-tls", "-json", "-csv", file)
	o := r.soaked(t)
	if r.status != 0 || len(o.Violations) > 0 || len(o.First) > 0 || o.Interrupted {
		t.Errorf("status %d, violations %v\n%s", r.status, o.Violations, strings.Join(o.First, "\n"))
	}
	if o.Seed != 7 || o.Seconds < 3 || o.Commands == 0 || o.P50US <= 0 || o.P99US < o.P50US || len(o.Episodes) == 0 || len(o.Readings) == 0 {
		t.Errorf("%+v", o)
	}
	last := o.Readings[len(o.Readings)-1]
	if last.Heap == 0 || last.Goroutines < 8 || last.Commands != o.Commands && last.Commands == 0 || last.Violations != 0 {
		t.Errorf("the last reading is %+v", last)
	}
	for _, name := range []string{"heap", "goroutines", "descriptors"} {
		if s := o.Slopes[name]; s == nil || s.State == rising {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if lines := strings.Count(r.stderr, "KiB heap"); lines != len(o.Readings) {
		t.Errorf("%d lines for %d readings:\n%s", lines, len(o.Readings), r.stderr)
	}
	text, err := os.ReadFile(file)
	if lines := strings.Count(string(text), "\n"); err != nil || lines != len(o.Readings)+1 {
		t.Errorf("%d lines of CSV for %d readings, %v", lines, len(o.Readings), err)
	}
}

func TestSoakOfRealServersForPeople(t *testing.T) {
	a := batontest.NewServer() // as good as real: it announces nothing here
	defer a.Close()
	b := a.Sibling()
	defer b.Close()
	r := soaks(t.Context(), "-soak", "2s", "-conns", "2", "-rate", "1000", "-addr", a.Addr(), "-to", b.Addr())
	r.tells(t, "a soak of 2s, seed ", "three relays before", "8 workers, connections: 2", "commands in", "moves announced", "played: ", "heap", "goroutines",
		"descriptors", "0 violations", "seed ")
	if !strings.Contains(r.stderr, "KiB heap") {
		t.Errorf("the lines for the readings are %q", r.stderr)
	}
	if a.Executed("INCR") == 0 {
		t.Error("nothing was counted on the server")
	}
	c, err := baton.Dial(t.Context(), baton.Options{Addr: a.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	left, err := c.Do(t.Context(), "KEYS", "*").Texts()
	left = slices.DeleteFunc(left, func(key string) bool { return strings.Contains(key, ":guest:") }) // whose last commands may come late
	if len(left) > 0 || err != nil {
		t.Errorf("keys were left: %v, %v", left, err)
	}
}

func TestSoakThatIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r := soaks(ctx, "-soak", "1h", "-mix")
	if r.status != 0 || !strings.Contains(r.stdout, "interrupted, good so far: 0 violations") {
		t.Errorf("status %d, %q, %q", r.status, r.stdout, r.stderr)
	}
}

func TestSoakWithWrongFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-soak 10ms":                 "-soak",
		"-soak -1s":                  "-soak",
		"-soak 0s":                   "-soak",
		"-soak soon":                 "-soak",
		"-soak 10s -window 5s":       "-window does not go with -soak",
		"-soak 10s -duration 5s":     "-duration does not go with -soak",
		"-soak 10s -workers 4096":    "-workers",
		"-soak 10s -seed x":          "-seed",
		"-seed 5":                    "-seed is for a -soak",
		"-csv x":                     "-csv is for a -soak",
		"-soak 10s -to 127.0.0.1:80": "-to needs -addr",
	} {
		r := soaks(t.Context(), strings.Fields(args)...)
		if r.status != 2 || r.stdout != "" || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: status %d, standard output %q, standard error %q", args, r.status, r.stdout, r.stderr)
		}
	}
	r := soaks(t.Context(), "-soak", "1s", "-csv", filepath.Join(t.TempDir(), "no", "such", "folder"))
	if r.status != 1 || !strings.Contains(r.stderr, "no such") {
		t.Errorf("a file that cannot be written: status %d, %q", r.status, r.stderr)
	}
}

// renewals are a soak of handoffs that take milliseconds, so that a few seconds hold many readings. It ends when there are enough.
func renewals(t *testing.T, change func(*soaker)) *soakReport {
	t.Helper()
	cfg, err := parse(strings.Fields("-soak 1h -seed 3 -workers 4"), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	s, err := newSoaker(t.Context(), cfg, &lines)
	if err != nil {
		t.Fatal(err)
	}
	s.script = []episode{{"Renew", 1, func(s *soaker) {
		if s.renew(); len(s.readings) > 2*fewest {
			s.cfg.soak = 0
		}
	}}}
	s.every = 50 * time.Millisecond
	change(s)
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.close()
	t.Log("\n" + lines.String())
	return s.report()
}

// onHandoff has something done for each replacement that takes over.
func onHandoff(s *soaker, do func()) {
	s.shown.OnEvent = func(e baton.Event) {
		if e.Kind == baton.EventPromoted {
			do()
		}
	}
}

func TestSoakFindsALeakThatIsPutIn(t *testing.T) {
	var mu sync.Mutex // events of several clients come side by side, and the last after the client's end
	var kept [][]byte
	var files []*os.File
	over := make(chan struct{})
	defer close(over)
	handoffs := 0
	for _, c := range []struct {
		name, series string
		leak         func()
	}{
		{"nothing", "", func() {}},
		{"a goroutine for each handoff", "goroutines", func() { go func() { <-over }() }},
		{"a descriptor for each tenth handoff", "descriptors", func() { // there may be thousands, and only a thousand descriptors
			if handoffs++; handoffs%10 == 0 {
				if f, err := os.Open(os.DevNull); err == nil {
					files = append(files, f)
				}
			}
		}},
		{"16 KiB for each handoff", "heap", func() { kept = append(kept, make([]byte, 16<<10)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := renewals(t, func(s *soaker) {
				onHandoff(s, func() {
					mu.Lock()
					defer mu.Unlock()
					c.leak()
				})
			})
			for _, s := range r.slopesInLine {
				t.Logf("%s: %s", s.name, s.describe())
				if wants := s.name == c.series; wants && s.State != rising || c.series == "" && s.State == rising {
					t.Errorf("%s: %s", s.name, s.State)
				}
			}
			if len(r.Violations) > 0 || r.good() != (c.series == "") || c.series != "" && !strings.Contains(r.word(), "rising: "+c.series) {
				t.Errorf("%s, %v", r.word(), r.First)
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	for _, f := range files {
		f.Close()
	}
	if len(kept) == 0 || len(files) == 0 {
		t.Error("nothing was leaked")
	}
}

// A client is a clean one if nothing of it is left when all is closed.
func TestSoakFindsWhatIsLeftOver(t *testing.T) {
	outset := read(0)
	s := &soaker{}
	s.leftOver(outset)
	if len(s.violations) != 0 {
		t.Errorf("nothing was left: %v", s.first)
	}
	over := make(chan struct{})
	go func() { <-over }()
	s.leftOver(outset)
	close(over)
	if s.violations[leftOver] != 1 || !strings.Contains(s.first[0], "TestSoakFindsWhatIsLeftOver") {
		t.Errorf("a goroutine was left, and told was %v: %v", s.violations, s.first)
	}
}

// lies are what a server could do, or a client, and what a soak has to call it.
var lies = map[string]struct {
	want violation
	tell func(*soaker)
}{
	"an INCR executed twice": {executedTwice, func(s *soaker) {
		c := s.crew.direct
		c.Do(s.ctx, "INCR", s.load.workers[0].key)
	}},
	"an INCR lost": {lost, func(s *soaker) {
		w := s.load.workers[0]
		s.rest.Lock()
		w.done += 5
		s.rest.Unlock()
	}},
	"a wrong reply": {wrongReply, func(s *soaker) { s.crew.direct.Do(s.ctx, "SET", s.load.workers[0].key, 7) }},
	"an element that vanishes": {lost, func(s *soaker) {
		s.crew.strands[0].mu.Lock()
		defer s.crew.strands[0].mu.Unlock()
		s.crew.strands[0].sent++
		s.crew.strands[0].owed[s.crew.strands[0].sent] = true
	}},
	"an element that comes again": {executedTwice, func(s *soaker) {
		s.crew.strands[0].mu.Lock()
		n := s.crew.strands[0].last
		s.crew.strands[0].mu.Unlock()
		s.crew.direct.Do(s.ctx, "RPUSH", s.crew.strands[0].key, max(n, 1))
	}},
	"a message again": {repeated, func(s *soaker) { s.crew.direct.Do(s.ctx, "PUBLISH", s.crew.airs[0].channel, 1) }},
	"a message that lacks": {missed, func(s *soaker) {
		s.rest.Lock()
		s.crew.airs[0].sent++
		s.rest.Unlock()
	}},
	"accounts that differ":         {wrongReply, func(s *soaker) { s.crew.direct.Do(s.ctx, "INCR", s.crew.accounts[0]) }},
	"a cut that nobody is told of": {excluded, func(s *soaker) { s.places[0].Cut() }},
}

// What breaks the contract is found, by its name.
func TestSoakFindsServersThatLie(t *testing.T) {
	for name, c := range lies {
		t.Run(name, func(t *testing.T) {
			cfg, err := parse(strings.Fields("-soak 1h -seed 3 -workers 4 -mix"), os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			s, err := newSoaker(t.Context(), cfg, new(bytes.Buffer))
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			told := 0
			s.script = []episode{{"a lie", 1, func(s *soaker) {
				s.pause(300 * time.Millisecond)
				if told++; told < 3 {
					c.tell(s)
				} else {
					s.cfg.soak = 0
				}
			}}}
			if err := s.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r := s.report(); r.Violations[c.want] == 0 || r.good() || !strings.Contains(r.word(), string(c.want)) || len(r.First) == 0 {
				t.Errorf("%s, %v", r.word(), r.First)
			}
		})
	}
}

// A failure is explained by what was disturbed while it was under way, if that may break it.
func TestSoakLedgerExcuses(t *testing.T) {
	at := time.Now()
	after := func(ms int) time.Time { return at.Add(time.Duration(ms) * time.Millisecond) }
	cut := disturbance{name: "cut", grade: hard, from: after(100), to: after(200)}
	frozen := disturbance{name: "frozen", grade: sluggish, from: after(100), to: after(200)}
	end := disturbance{name: "end", grade: windowEnd, since: at, from: after(1000), to: after(1000).Add(afterwards)}
	stood := disturbance{name: stoodStill, grade: sluggish, from: after(300), to: after(600)}
	slow := disturbance{name: slowServer, grade: sluggish, from: after(0), to: after(1000)}
	for _, c := range []struct {
		name         string
		is           []disturbance
		by           grade
		began, ended int
		want         string
	}{
		{"in flight when cut", []disturbance{cut}, hard, 50, 150, "cut"},
		{"all through it", []disturbance{cut}, hard, 50, 250, "cut"},
		{"before", []disturbance{cut}, hard, 0, 90, ""},
		{"after", []disturbance{cut}, hard, 210, 250, ""},
		{"never sent", []disturbance{cut}, 0, 50, 150, ""},
		{"patient", []disturbance{frozen}, hard, 50, 150, ""},
		{"impatient", []disturbance{frozen}, hard | sluggish, 50, 150, "frozen"},
		{"at the end of a window", []disturbance{end}, hard, 900, 1001, ""},
		{"a session", []disturbance{end}, hard | windowEnd, 900, 1001, "end"},
		{"at the end of one that stood still", []disturbance{stood, end}, hard, 900, 1001, "end in which the machine stood still"},
		{"a straggler of a slow server", []disturbance{slow, end}, hard, 500, 1001, "end of a slow server"},
		{"given to it late", []disturbance{slow, end}, hard, 700, 1001, ""},
		{"stood still, and no window ended", []disturbance{stood}, hard, 300, 500, ""},
	} {
		l := &ledger{began: at, disturbances: c.is}
		l.suspects = []suspect{{who: c.name, err: errors.New("failed"), by: c.by, began: after(c.began), ended: after(c.ended)}}
		l.judge()
		if c.want == "" && l.violations[excluded] != 1 || c.want != "" && (l.excused[c.want] != 1 || len(l.violations) > 0) {
			t.Errorf("%s: excused %v, violations %v", c.name, l.excused, l.violations)
		}
	}
}

// A disturbance lasts until it is told that it is over, and a while longer.
func TestSoakLedgerKnowsWhatLasts(t *testing.T) {
	l := &ledger{began: time.Now()}
	over := l.disturb("first", hard)
	l.disturb("second", windowEnd)()
	l.failed("a command", errors.New("failed"), time.Now(), hard, 0)
	over()
	l.judge()
	if l.excused["first"] != 1 || l.faults() != 1 {
		t.Errorf("%v, %d faults", l.excused, l.faults())
	}
	for _, d := range l.disturbances {
		if left := time.Until(d.to); left > afterwards || left < afterwards-time.Minute {
			t.Errorf("%s lasts %v more", d.name, left)
		}
	}
	for range 3 * keptDisturbances {
		l.disturb("more", hard)()
		l.tell("more")
	}
	if len(l.disturbances) != keptDisturbances || len(l.episodes) != keptEpisodes {
		t.Errorf("%d disturbances and %d episodes are kept", len(l.disturbances), len(l.episodes))
	}
}

func TestSoakReportTellsWhatIsWrong(t *testing.T) {
	names := []string{"heap", "goroutines", "descriptors"}
	is := func(states ...stateOfSeries) (all []slope) {
		for i, state := range states {
			all = append(all, slope{name: names[i], State: state, scale: 1})
		}
		return all
	}
	for _, c := range []struct {
		r    soakReport
		good bool
		word string
	}{
		{soakReport{slopesInLine: is(flat, flat, flat)}, true, "GOOD: 0 violations, and no slope can be told from zero, seed"},
		{soakReport{slopesInLine: is(falling, flat, flat)}, true, "GOOD: 0 violations, and nothing rises; falling: heap, seed"},
		{soakReport{slopesInLine: is(falling, falling, unavailable)}, true, "nothing rises; falling: heap, goroutines; not available: descriptors, seed"},
		{soakReport{slopesInLine: is(flat, flat, unavailable)}, true, "GOOD: 0 violations, and nothing rises; not available: descriptors, seed"},
		{soakReport{slopesInLine: is(undecided, undecided, undecided)}, true, "GOOD as far as it goes: 0 violations, and too short for slopes, seed"},
		{soakReport{slopesInLine: is(falling, falling, rising)}, false, "FAILED: rising: descriptors, seed"},
		{soakReport{slopesInLine: is(rising)}, false, "FAILED: rising: heap"},
		{soakReport{slopesInLine: is(rising), Violations: map[violation]int{lost: 2}}, false, "FAILED: 2 lost; rising: heap"},
		{soakReport{slopesInLine: is(flat), Violations: map[violation]int{lost: 2, missed: 3}}, false, "3 messages missed, 2 lost"},
		{soakReport{slopesInLine: is(flat), Interrupted: true}, true, "interrupted, good so far"},
	} {
		var b strings.Builder
		c.r.write(&b)
		if c.r.good() != c.good || !strings.Contains(b.String(), c.word) {
			t.Errorf("good is %v, want %v; want %q in:\n%s", c.r.good(), c.good, c.word, b.String())
		}
	}
}

// Nobody in a soak takes a chance that its seed does not give.
func TestSoakChancesAreTheSeeds(t *testing.T) {
	global := regexp.MustCompile(`[^.\w]rand\.([A-Z]\w*)\(`)
	for _, name := range []string{"soak_load.go", "soak_faults.go"} {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range global.FindAllStringSubmatch(string(source), -1) {
			if call[1] != "New" && call[1] != "NewPCG" {
				t.Errorf("%s calls rand.%s", name, call[1])
			}
		}
	}
}

// The same seed is the same script.
func TestSoakSeedRepeatsTheScript(t *testing.T) {
	script := func(seed uint64) (names []string) {
		cfg, err := parse(strings.Fields(fmt.Sprintf("-soak 1s -seed %d", seed)), os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		s, err := newSoaker(t.Context(), cfg, new(bytes.Buffer))
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		for range 50 {
			names = append(names, s.draw().name, s.seconds(1, 5).String(), s.between(0, time.Second).String())
		}
		return names
	}
	first := script(5)
	if !slices.Equal(first, script(5)) || slices.Equal(first, script(6)) {
		t.Error("a seed is not repeated, or another makes no difference")
	}
	for _, e := range episodes {
		if !slices.Contains(first, e.name) {
			t.Errorf("%q does not come in 50 episodes", e.name)
		}
	}
}
