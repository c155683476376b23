package main

// What must be reached, as data, and how far it was.

import (
	"fmt"
	"strings"
)

// A rival is what baton is measured against in a row.
type rival int

const (
	bestPeer       rival = iota // the peers' configuration with the highest median throughput in the cell
	rueidisDefault              // rueidis as it comes
	theFloor                    // see floor.go
	nobody                      // the figure itself counts
)

var rivalNames = [...]string{"the best peer", "rueidis' default", "the floor", ""}

// A goal is a row's demand on the cells that it is about.
type goal struct {
	about   func(cell) bool
	of      metric
	atLeast bool // otherwise at most
	bound   float64
	against rival
	who     string // the contender that has to reach it
}

// tolerance is what a count of allocations may be off by: the runtime and this program allocate a little beside the client.
const tolerance = 0.05

var goals = concat(
	throughput(1, bestPeer, smallCells(1)), latency(p50, 1, bestPeer, smallCells(1)), latency(p99, 1, bestPeer, smallCells(1)),

	throughput(1.05, bestPeer, smallCells(8)), latency(p99, 1, bestPeer, smallCells(8)),

	throughput(1.35, bestPeer, smallCells(64)), throughput(2, rueidisDefault, smallCells(64)),
	throughput(0.6, theFloor, smallCells(64)), latency(p99, 0.6, rueidisDefault, smallCells(64)),

	throughput(1.2, bestPeer, smallCells(512)), throughput(3, rueidisDefault, smallCells(512)),
	throughput(0.45, theFloor, smallCells(512)), latency(p99, 0.3, rueidisDefault, smallCells(512)),

	throughput(1.2, bestPeer, smallCells(4096)), latency(p99, 1, bestPeer, smallCells(4096)),

	throughput(1.1, bestPeer, otherCell), latency(p99, 1, bestPeer, otherCell),

	allocations(1, batonName, both(smallCell, operationIs(getSmall))),
	allocations(0, batonName, operationIs(setSmall)),
	allocations(0, batonAppendName, both(smallCell, operationIs(getSmall))),
	allocations(4, batonName, operationIs(mgetMany)),
	allocations(4, batonName, operationIs(pipelineMany)),

	processorTimes(0.35, smallCells(64)), processorTimes(0.35, smallCells(512)),
)

func concat(lists ...[]goal) (all []goal) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

func throughput(bound float64, against rival, about func(cell) bool) []goal {
	return []goal{{about, perSecond, true, bound, against, batonName}}
}

func latency(of metric, bound float64, against rival, about func(cell) bool) []goal {
	return []goal{{about, of, false, bound, against, batonName}}
}

func allocations(bound float64, who string, about func(cell) bool) []goal {
	return []goal{{about, allocs, false, bound + tolerance, nobody, who}}
}

func processorTimes(bound float64, about func(cell) bool) []goal {
	return []goal{{about, processor, false, bound, rueidisDefault, batonName}}
}

func smallCell(c cell) bool {
	return !c.beside && (c.op.name == getSmall.name || c.op.name == setSmall.name)
}

func otherCell(c cell) bool { return !smallCell(c) }

func smallCells(callers int) func(cell) bool {
	return func(c cell) bool { return smallCell(c) && c.callers == callers }
}

func operationIs(o operation) func(cell) bool {
	return func(c cell) bool { return c.op.name == o.name }
}

func both(a, b func(cell) bool) func(cell) bool {
	return func(c cell) bool { return a(c) && b(c) }
}

// A row is a goal in one cell.
type row struct {
	goal
	cell    string
	rival   string
	reached spread // of the ratios of the rounds, or of the figures themselves; its median is the ratio of the medians
	note    string
}

func (r row) ok() bool {
	if r.atLeast {
		return r.reached.median >= r.bound
	}
	return r.reached.median <= r.bound
}

func (r row) verdict() verdict {
	if r.ok() {
		return met
	}
	return broken
}

// reachRows judges every goal in every cell that it is about.
func reachRows(results []result, ownProcess bool) (rows []row) {
	for _, r := range results {
		for _, g := range goals {
			if !g.about(r.cell) || g.of.ownCosts && !ownProcess {
				continue
			}
			if judged, ok := judge(g, r); ok {
				rows = append(rows, judged)
			}
		}
	}
	return rows
}

// judge compares in one cell. It cannot if somebody did not take part.
func judge(g goal, r result) (row, bool) {
	ours := r.entrant(g.who)
	if ours == nil {
		return row{}, false
	}
	out := row{goal: g, cell: r.cell.name(), reached: ours.spread(g.of)}
	if g.against == nobody {
		return out, true
	}
	theirs := r.rival(g.against)
	if theirs == nil {
		return row{}, false
	}
	out.rival = theirs.name
	out.reached = ratioSpread(ours.figures(g.of), theirs.figures(g.of))
	if lowest := r.promptest(g.of); g.against == bestPeer && g.of.latency && lowest != nil && lowest != theirs {
		out.note = fmt.Sprintf("%s of %s", figure(ratioSpread(ours.figures(g.of), lowest.figures(g.of)).median), lowest.name)
	}
	return out, true
}

// ratioSpread is the ratio of the medians and the range of the ratios of the rounds.
func ratioSpread(ours, theirs []float64) spread {
	s := spreadOf(ratios(ours, theirs))
	s.median = spreadOf(ours).median / spreadOf(theirs).median
	return s
}

func (r *result) rival(of rival) *entrant {
	switch of {
	case bestPeer:
		return r.best()
	case rueidisDefault:
		return r.entrant(rueidisName)
	case theFloor:
		return r.entrant(floorName)
	}
	return nil
}

func (r *result) peers() (peers []*entrant) {
	for _, e := range r.entrants {
		if e.lib != batonName && e.lib != floorName {
			peers = append(peers, e)
		}
	}
	return peers
}

// best is the peer with the highest median throughput.
func (r *result) best() (best *entrant) {
	for _, e := range r.peers() {
		if best == nil || e.spread(perSecond).median > best.spread(perSecond).median {
			best = e
		}
	}
	return best
}

// promptest is the peer with the lowest latency among those that do at least half of what the best does: a client that does
// little can do it promptly.
func (r *result) promptest(of metric) (promptest *entrant) {
	best := r.best()
	if best == nil {
		return nil
	}
	enough := best.spread(perSecond).median / 2
	for _, e := range r.peers() {
		if e.spread(perSecond).median < enough {
			continue
		}
		if promptest == nil || e.spread(of).median < promptest.spread(of).median {
			promptest = e
		}
	}
	return promptest
}

// reachTable is all rows, and how many of them were reached.
func reachTable(results []result, ownProcess bool) string {
	var b strings.Builder
	b.WriteString("## What must be reached\n\nRatios of the medians (range of the rounds).\n\n")
	b.WriteString("| cell | what | wanted | reached | | also |\n|---|---|---|---|---|---|\n")
	rows, reached := reachRows(results, ownProcess), 0
	for _, r := range rows {
		if r.ok() {
			reached++
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.cell, r.what(), r.wanted(), r.result(), r.verdict(), r.note)
	}
	fmt.Fprintf(&b, "\n%d of %d\n", reached, len(rows))
	return b.String()
}

func (r row) what() string {
	if r.who != batonName {
		return r.of.name + " of " + r.who
	}
	return r.of.name
}

func (r row) wanted() string {
	sign := "≤"
	if r.atLeast {
		sign = "≥"
	}
	if r.against == nobody {
		return fmt.Sprintf("%s %.0f", sign, r.bound)
	}
	return fmt.Sprintf("%s %v × %s", sign, r.bound, rivalNames[r.against])
}

func (r row) result() string {
	text := shortSpread(r.reached, true)
	if r.against == bestPeer {
		text += " × " + r.rival
	}
	return text
}
