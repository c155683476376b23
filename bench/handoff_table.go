package main

// What is made of the runs: the table with what baton promises, and the files. A promise is judged by the figures of the runs
// and by nothing else; without runs it is not judged.

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

type results []*handoffRun

// of is the runs of one pairing.
func (rs results) of(scenario, who string) (found results) {
	for _, r := range rs {
		if r.scenario == scenario && r.subject == who {
			found = append(found, r)
		}
	}
	return found
}

// values are those of one figure, as far as it is known.
func (rs results) values(figure string) (vs []float64) {
	for _, r := range rs {
		if v, known := r.figures[figure]; known {
			vs = append(vs, v)
		}
	}
	return vs
}

var figureOrder = []string{figureCommands, figureFailed, figureTwice, figureLost, figureStall, figureStallEnd, figureNear, figureFloor, figureDials, figureLastOnOld,
	figureJitter, figureMessages, figureMissed, figureRepeated, figureDisordered,
	popsBefore + ": " + popAnswered, popsBefore + ": " + popCut, popsBefore + ": " + popTimedOut, popsBefore + ": " + popOther,
	popsWithin + ": " + popAnswered, popsWithin + ": " + popCut, popsWithin + ": " + popTimedOut, popsWithin + ": " + popOther}

// A handoffRow is a line of the table.
type handoffRow struct {
	title string
	tell  func(rs results, who string) string
	must  string
	met   func(rs results) verdict // of baton's runs
}

// handoffRows are the lines for runs of these sizes.
func handoffRows(z sizes) []handoffRow {
	row := func(title, must string, met func(results) verdict, parts ...func(results, string) string) handoffRow {
		return handoffRow{title, together(parts), must, met}
	}
	return []handoffRow{
		row("failed commands", "0", most(0, figureFailed, normal), told(normal, figureFailed)),
		row("executed twice", "0", most(0, figureTwice, normal), told(normal, figureTwice)),
		row("answered, but not executed", "0", most(0, figureLost, normal), told(normal, figureLost)),
		row("longest stall of one command (noise floor), ms", "noise floor + 5", calm(normal, figureStall), toldStall(normal)),
		row("of these, those near the announcement and the end of the window, ms", "noise floor + 5", calm(normal, figureNear), told(normal, figureNear)),
		row(fmt.Sprintf("successor refuses for %v: executed twice / longest stall (noise floor), ms", z.fault),
			"0 / noise floor + 5", everyOf(most(0, figureTwice, refuses), calm(refuses, figureStall)), told(refuses, figureTwice), toldStall(refuses)),
		row(fmt.Sprintf("successor stalls for %v: longest stall (noise floor), ms", z.fault),
			"noise floor + 5", calm(stalls, figureStall), toldStall(stalls)),
		row(fmt.Sprintf("old sockets die after %v of a window of %v: failed", z.cutAfter, z.window),
			fmt.Sprintf("0 if jitter + 20 ms < %v, else what is in flight", z.cutAfter), survived(z), toldDeath),
		row(fmt.Sprintf("two announcements %v apart: failed", z.again), "0", most(0, figureFailed, twice), told(twice, figureFailed)),
		row("dials from the announcement on: normal / refuses / stalls", "any / 100 / 100", most(100, figureDials, refuses, stalls),
			told(normal, figureDials), told(refuses, figureDials), told(stalls, figureDials)),
		row("last command on an old connection, ms after `MOVING`", "jitter + 20", left, toldLast),
		row("messages missed: normal / unnamed / refuses / stalls", "0 / 0 / 0 / 0",
			most(0, figureMissed, messages, messagesUnnamed, messagesRefuses, messagesStalls),
			told(messages, figureMissed), told(messagesUnnamed, figureMissed), told(messagesRefuses, figureMissed), told(messagesStalls, figureMissed)),
		row("messages that came again: normal / unnamed / refuses / stalls", "0 / 0 / 0 / 0",
			most(0, figureRepeated, messages, messagesUnnamed, messagesRefuses, messagesStalls),
			told(messages, figureRepeated), told(messagesUnnamed, figureRepeated), told(messagesRefuses, figureRepeated), told(messagesStalls, figureRepeated)),
		row(fmt.Sprintf("`BLPOP` from before a window of %v, due %v after the announcement", z.window, z.popAfter), "answered", answered(popsBefore), toldPops(popsBefore)),
		row("`BLPOP` from the middle of the window, due after its end", "answered", answered(popsWithin), toldPops(popsWithin)),
	}
}

func together(parts []func(results, string) string) func(results, string) string {
	return func(rs results, who string) string {
		var all []string
		for _, tell := range parts {
			all = append(all, tell(rs, who))
		}
		if !slices.ContainsFunc(all, func(s string) bool { return s != none }) {
			return none
		}
		return strings.Join(all, " / ")
	}
}

// none stands for what was not measured.
const none = "–"

// told is a figure's median and range.
func told(scenario, figure string) func(results, string) string {
	return func(rs results, who string) string { return ranged(rs.of(scenario, who).values(figure)) }
}

func ranged(values []float64) string {
	if len(values) == 0 {
		return none
	}
	s := spreadOf(values)
	if number(s.min) == number(s.max) {
		return number(s.median)
	}
	return fmt.Sprintf("%s [%s to %s]", number(s.median), number(s.min), number(s.max))
}

// number has digits as far as they say something.
func number(v float64) string {
	if v == math.Trunc(v) || math.Abs(v) >= 100 {
		return thousands(int64(math.Round(v)))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func toldStall(scenario string) func(results, string) string {
	return func(rs results, who string) string {
		found := rs.of(scenario, who)
		if len(found) == 0 {
			return none
		}
		return fmt.Sprintf("%s (%s)", ranged(found.values(figureStall)), ranged(found.values(figureFloor)))
	}
}

func toldDeath(rs results, who string) string {
	return told(dies, figureFailed)(rs, who) + jitter(rs.of(dies, who))
}

func toldLast(rs results, who string) string {
	return told(normal, figureLastOnOld)(rs, who) + jitter(rs.of(normal, who))
}

// jitter is told of who has one.
func jitter(rs results) string {
	if values := rs.values(figureJitter); len(values) > 0 {
		return ", jitter " + ranged(values)
	}
	return ""
}

func toldPops(set string) func(results, string) string {
	return func(rs results, who string) string {
		var parts []string
		for _, way := range popEnds {
			total := 0.0
			for _, v := range rs.of(messages, who).values(set + ": " + way) {
				total += v
			}
			if total > 0 {
				parts = append(parts, number(total)+" "+way)
			}
		}
		if len(parts) == 0 {
			return none
		}
		return strings.Join(parts, ", ")
	}
}

// eachRun is met if each run of baton in these scenarios is, and there are runs of each.
func eachRun(rs results, good func(r *handoffRun) bool, scenarios ...string) verdict {
	v := met
	for _, name := range scenarios {
		switch found := rs.of(name, batonName); {
		case len(found) == 0:
			v = max(v, notRun)
		case slices.ContainsFunc(found, func(r *handoffRun) bool { return !good(r) }):
			v = broken
		}
	}
	return v
}

// most: no run has more.
func most(limit float64, figure string, scenarios ...string) func(results) verdict {
	return func(rs results) verdict {
		return eachRun(rs, func(r *handoffRun) bool {
			v, known := r.figures[figure]
			return known && v <= limit
		}, scenarios...)
	}
}

func everyOf(a, b func(results) verdict) func(results) verdict {
	return func(rs results) verdict { return max(a(rs), b(rs)) }
}

const (
	stallAllowance = 5  // ms more than the noise floor
	swapAllowance  = 20 // ms for a dial and a round trip
)

// calm compares medians: the longest of all commands in some seconds is a figure that chance has a hand in.
func calm(scenario, figure string) func(results) verdict {
	return func(rs results) verdict {
		found := rs.of(scenario, batonName)
		switch {
		case len(found) == 0:
			return notRun
		case spreadOf(found.values(figure)).median <= spreadOf(found.values(figureFloor)).median+stallAllowance:
			return met
		}
		return broken
	}
}

func survived(z sizes) func(results) verdict {
	return func(rs results) verdict {
		return eachRun(rs, func(r *handoffRun) bool {
			allowed := float64(z.callers)
			if jitter, known := r.figures[figureJitter]; known && jitter+swapAllowance < milliseconds(z.cutAfter) {
				allowed = 0
			}
			return r.figures[figureFailed] <= allowed
		}, dies)
	}
}

func left(rs results) verdict {
	return eachRun(rs, func(r *handoffRun) bool {
		last, known := r.figures[figureLastOnOld]
		return known && last <= r.figures[figureJitter]+swapAllowance
	}, normal)
}

func answered(set string) func(results) verdict {
	return func(rs results) verdict {
		return eachRun(rs, func(r *handoffRun) bool { return r.figures[set+": "+popAnswered] == pops }, messages)
	}
}

// handoffNotes is what a reader has to know of the figures.
func handoffNotes(server string, z sizes, rounds int, left []pairing) []string {
	notes := []string{
		fmt.Sprintf("Relays before one %s; %d callers, flat out; a window of %v. %s.", server, z.callers, z.window, runsOf(rounds)),
		"Each caller pushes its own numbers onto its own list; what was executed, and how often, is read from the lists afterwards.",
		fmt.Sprintf("The longest stall is of all commands from the announcement until %v after the window; the noise floor, beside it, of the same "+
			"client in as much time before the announcement. On a busy machine either is chance, so the next row has the longest of those that were under "+
			"way from the announcement to 2 s after it, or from 1 s before the end of the window on.", z.tail),
		fmt.Sprintf("The configured address leads to the new place after %.0f %% of the window.", 100*doorMoves),
		fmt.Sprintf("Messages: %d a second, without other load, and in the normal case two times %d pops that are blocked.", z.perSecond, pops),
		"A dash: not run, or no different from the normal case, since the client is told of no successor.",
	}
	if len(left) > 0 {
		notes = append(notes, "Left out of this run: "+leftOut(left)+".")
	}
	return notes
}

func runsOf(rounds int) string {
	if rounds == 1 {
		return "One run of each, so chance has a large hand in the times"
	}
	return fmt.Sprintf("Medians of %d runs, and in brackets the range", rounds)
}

// leftOut names who is, scenario by scenario.
func leftOut(left []pairing) string {
	var all []string
	for i := 0; i < len(left); {
		name, who := left[i].scenario.name, []string(nil)
		for ; i < len(left) && left[i].scenario.name == name; i++ {
			who = append(who, left[i].subject.name)
		}
		all = append(all, name+" with "+strings.Join(who, ", "))
	}
	return strings.Join(all, "; ")
}

// handoffMarkdown is the table and its notes.
func handoffMarkdown(rs results, z sizes, notes []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## A handoff under full load\n\n")
	for _, n := range notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	head := []string{""}
	for _, who := range subjects {
		head = append(head, who.name)
	}
	head = append(head, "baton must", "does it")
	fmt.Fprintf(&b, "\n| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range handoffRows(z) {
		line := []string{row.title}
		for _, who := range subjects {
			line = append(line, row.tell(rs, who.name))
		}
		line = append(line, row.must, row.met(rs).String())
		fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
	}
	return b.String()
}

// publishHandoffs writes the table to the screen, and everything to files.
func publishHandoffs(dir string, rs results, z sizes, notes []string) error {
	text := handoffMarkdown(rs, z, notes)
	fmt.Printf("\n%s\n", text)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "handoff.md"), []byte(text), 0o644),
		writeCSV(filepath.Join(dir, "handoff.csv"), handoffRecords(rs)),
		writeCSV(filepath.Join(dir, "handoff-latency.csv"), latencyRecords(rs, z)),
		plotHandoffs(dir, rs, z),
	)
}

func handoffRecords(rs results) [][]string {
	records := [][]string{{"scenario", "client", "run", "figure", "value"}}
	for _, r := range rs {
		for _, name := range figureOrder {
			if v, known := r.figures[name]; known {
				records = append(records, []string{r.scenario, r.subject, strconv.Itoa(r.round), name, strconv.FormatFloat(v, 'f', -1, 64)})
			}
		}
	}
	return records
}

// latencyRecords are of the normal scenario, from a second before the announcement on.
func latencyRecords(rs results, z sizes) [][]string {
	records := [][]string{{"client", "run", "ms after MOVING", "longest command under way, µs", "commands failed"}}
	for _, r := range rs {
		if r.scenario != normal {
			continue
		}
		for _, p := range r.tally.over(-time.Second, wholeWindow(z)) {
			records = append(records, []string{r.subject, strconv.Itoa(r.round), strconv.FormatFloat(milliseconds(p.at), 'f', -1, 64),
				strconv.FormatInt(p.longest.Microseconds(), 10), strconv.Itoa(p.failed)})
		}
	}
	return records
}
