package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// smokeSizes are too small for figures of any worth. What is counted must still come out right.
var smokeSizes = sizes{callers: 8, warm: 100 * time.Millisecond, window: time.Second, tail: 200 * time.Millisecond, fault: 200 * time.Millisecond,
	cutAfter: 300 * time.Millisecond, again: 300 * time.Millisecond, popAfter: 600 * time.Millisecond, perSecond: 200}

// smoke plays a scenario on a server of its own.
func smoke(t *testing.T, name string, who subject) *handoffRun {
	t.Helper()
	sc := scenarios[slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == name })]
	sc.floor = false
	srv := startInProcess()
	defer srv.stop()
	r, err := sc.playOnce(who, smokeSizes, srv.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	return r
}

// What a client is told and what the server did agree, whatever became of the connections.
func TestSmokeEverySubjectIsCountedThroughAHandoff(t *testing.T) {
	for _, who := range subjects {
		t.Run(who.name, func(t *testing.T) {
			t.Parallel()
			r := smoke(t, normal, who)
			f := r.figures
			if f[figureCommands] == 0 || f[figureLost] != 0 {
				t.Errorf("%v commands, %v of them answered and not executed", f[figureCommands], f[figureLost])
			}
			if r.tally.over(-smokeSizes.warm, 0) == nil || r.tally.over(0, smokeSizes.window) == nil {
				t.Error("nothing was noted before the announcement, or after it")
			}
		})
	}
}

func TestSmokeBatonLosesNothing(t *testing.T) {
	zero := map[string][]string{
		normal:          {figureFailed, figureTwice, figureLost},
		refuses:         {figureFailed, figureTwice, figureLost},
		dies:            {figureTwice, figureLost},
		twice:           {figureFailed, figureTwice, figureLost},
		messages:        {figureMissed, figureRepeated, figureDisordered, popsBefore + ": " + popCut, popsWithin + ": " + popCut},
		messagesRefuses: {figureMissed, figureRepeated, figureDisordered},
	}
	for _, name := range slices.Sorted(maps.Keys(zero)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := smoke(t, name, subjects[len(subjects)-1])
			for _, figure := range zero[name] {
				if v, known := r.figures[figure]; !known || v != 0 {
					t.Errorf("%s: %v", figure, v)
				}
			}
			if r.figures[figureCommands]+r.figures[figureMessages] == 0 {
				t.Error("nothing was done")
			}
		})
	}
}

func TestSmokeSubscribersOfAllSubjectsHear(t *testing.T) {
	for _, who := range subjects[:len(subjects)-1] {
		t.Run(who.name, func(t *testing.T) {
			t.Parallel()
			r := smoke(t, messages, who)
			if f := r.figures; f[figureMessages] == 0 || f[figureMissed] >= f[figureMessages] {
				t.Errorf("%v of %v messages missed", f[figureMissed], f[figureMessages])
			}
			for _, set := range []string{popsBefore, popsWithin} {
				ends := 0.0
				for _, way := range popEnds {
					ends += r.figures[set+": "+way]
				}
				if ends != pops {
					t.Errorf("%s: %v of %v ended", set, ends, pops)
				}
			}
		})
	}
}

func TestTallyTellsExecutionsFromAnswers(t *testing.T) {
	c := &pushCaller{sent: 6, failed: map[int]bool{4: true, 5: true}, failedIn: map[int]int{1: 2}, firstErr: errors.New("cut"),
		before: time.Millisecond, after: 3 * time.Millisecond, longest: []uint32{1000, 3000}}
	got := &tally{longest: make([]uint32, 2), failedIn: map[int]int{}}
	got.add(c, []uint8{0, 1, 3, 0, 0, 2, 1}) // 2 three times; 3 never, though answered; 5 twice, though it failed
	if got.sent != 6 || got.failed != 2 || got.twice != 3 || got.lost != 1 || got.firstErr == nil {
		t.Errorf("%+v", got)
	}
	if got.before != time.Millisecond || got.after != 3*time.Millisecond || got.longest[1] != 3000 || got.failedIn[1] != 2 {
		t.Errorf("%+v", got)
	}
}

func TestACallerNotesACommandInEverySlotThatItLasted(t *testing.T) {
	c := &pushCaller{longest: make([]uint32, 5)}
	l := &pushLoad{}
	l.counts.Store(true)
	c.note(l, 12*time.Millisecond, 34*time.Millisecond)
	l.announced.Store(int64(35 * time.Millisecond))
	c.note(l, 34*time.Millisecond, 36*time.Millisecond) // it was under way at the announcement
	if !slices.Equal(c.longest, []uint32{0, 22000, 22000, 22000, 0}) || c.before != 22*time.Millisecond || c.after != 2*time.Millisecond {
		t.Errorf("%+v", c)
	}
}

func TestAudienceKnowsWhatItMissed(t *testing.T) {
	var a audience
	for _, payload := range []string{"0", "1", "3", "2", "3", "x", "6"} {
		a.hear(payload)
	}
	if missed, repeated, disordered := a.miss(7); missed != 3 || repeated != 1 || disordered != 1 {
		t.Errorf("%d missed, %d repeated, %d out of order", missed, repeated, disordered)
	}
}

// A promise is kept, broken, or not judged.
func TestPromisesAreJudgedByTheFigures(t *testing.T) {
	ran := func(scenario string, figures map[string]float64) *handoffRun {
		return &handoffRun{scenario: scenario, subject: batonName, figures: figures}
	}
	for _, c := range []struct {
		what string
		met  func(results) verdict
		runs results
		want verdict
	}{
		{"no runs", most(0, figureFailed, normal), nil, notRun},
		{"a figure that is unknown", most(0, figureFailed, normal), results{ran(normal, nil)}, broken},
		{"one bad run of two", most(0, figureFailed, normal),
			results{ran(normal, map[string]float64{figureFailed: 0}), ran(normal, map[string]float64{figureFailed: 1})}, broken},
		{"one scenario of two", most(0, figureFailed, normal, dies), results{ran(normal, map[string]float64{figureFailed: 0})}, notRun},
		{"a bad one, and one that was not run", most(0, figureFailed, normal, dies), results{ran(normal, map[string]float64{figureFailed: 1})}, broken},
		{"a stall within the allowance", calm(normal, figureStall), results{ran(normal, map[string]float64{figureStall: 14, figureFloor: 9})}, met},
		{"a stall beyond it", calm(normal, figureStall), results{ran(normal, map[string]float64{figureStall: 15, figureFloor: 9})}, broken},
		{"dead before the swap", survived(smokeSizes), results{ran(dies, map[string]float64{figureJitter: 290, figureFailed: 8})}, met},
		{"dead after the swap", survived(smokeSizes), results{ran(dies, map[string]float64{figureJitter: 200, figureFailed: 1})}, broken},
		{"left in time", left, results{ran(normal, map[string]float64{figureJitter: 500, figureLastOnOld: 520})}, met},
		{"left late", left, results{ran(normal, map[string]float64{figureJitter: 500, figureLastOnOld: 521})}, broken},
		{"three pops of four", answered(popsBefore), results{ran(messages, map[string]float64{popsBefore + ": " + popAnswered: 3})}, broken},
		{"both, one broken", everyOf(most(0, figureTwice, normal), calm(normal, figureStall)),
			results{ran(normal, map[string]float64{figureTwice: 0, figureStall: 20, figureFloor: 9})}, broken},
	} {
		if got := c.met(c.runs); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

func TestAShortRunSaysWhatItLeavesOut(t *testing.T) {
	played, missing := pairings(config{short: true})
	full, none := pairings(config{})
	if len(played) == 0 || len(missing) == 0 || len(played)+len(missing) != len(full) || len(none) != 0 {
		t.Errorf("%d played and %d left out, of %d", len(played), len(missing), len(full))
	}
	text := leftOut(missing)
	for _, p := range missing {
		if !strings.Contains(text, p.scenario.name+" with ") || !strings.Contains(text, p.subject.name) {
			t.Errorf("%s is not in %q", p.cell(), text)
		}
	}
}

func TestRoundsRotateSubjectsAndKeepScenarios(t *testing.T) {
	a, b := scenario{name: "a"}, scenario{name: "b"}
	pairs := []pairing{{a, subject{name: "1"}}, {a, subject{name: "2"}}, {a, subject{name: "3"}}, {b, subject{name: "1"}}, {b, subject{name: "2"}}}
	var got []string
	for _, p := range rotated(pairs, 1) {
		got = append(got, p.cell())
	}
	if want := []string{"a/2", "a/3", "a/1", "b/2", "b/1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The files of made-up runs: they are all there, and hold what they should.
func TestHandoffFiles(t *testing.T) {
	dir := t.TempDir()
	z := fullSizes
	if err := publishHandoffs(dir, madeUpRuns(z), z, handoffNotes("server", z, 2, nil)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"handoff.md":          "| failed commands | 3 [2 to 4] | 3 [2 to 4] |",
		"handoff.csv":         "normal,redigo,2,failed,4\n",
		"handoff-latency.csv": "baton,1,0,500,0\nbaton,1,10,500,0\n",
		"handoff.svg":         "commands failed",
		"handoff.png":         "PNG",
	} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(content), want) {
			t.Errorf("%s: %v; without %q", name, err, want)
		}
	}
}

func madeUpRuns(z sizes) (rs results) {
	for _, who := range subjects {
		for round := range 2 {
			t := &tally{longest: make([]uint32, 4000), failedIn: map[int]int{1601: 2 + 2*round}, announced: time.Second}
			for s := range t.longest {
				t.longest[s] = 500
			}
			r := &handoffRun{scenario: normal, subject: who.name, round: round + 1, figures: map[string]float64{}}
			r.noteTally(t, z, true)
			r.figures[figureFailed] = float64(2 + 2*round)
			rs = append(rs, r)
		}
	}
	return rs
}
