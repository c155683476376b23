package main

// What was measured, as Markdown for people and as CSV for everything else.

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// A verdict says whether something is as it must be.
type verdict int

// In order: of several the last counts.
const (
	met verdict = iota
	notRun
	broken
)

func (v verdict) String() string { return [...]string{"yes", "not run", "**no**"}[v] }

// A metric is one figure of a turn.
type metric struct {
	name     string // with its unit, as in the CSV
	value    func(turn) float64
	ownCosts bool // means nothing if the server is in this process
	latency  bool // the floor has none
}

var (
	perSecond = metric{name: "operations/s", value: func(t turn) float64 { return t.perSecond }}
	p50       = metric{name: "p50 µs", latency: true, value: func(t turn) float64 { return micros(t.p50.Nanoseconds()) }}
	p99       = metric{name: "p99 µs", latency: true, value: func(t turn) float64 { return micros(t.p99.Nanoseconds()) }}
	p999      = metric{name: "p99.9 µs", latency: true, value: func(t turn) float64 { return micros(t.p999.Nanoseconds()) }}
	allocs    = metric{name: "allocations", ownCosts: true, value: func(t turn) float64 { return t.allocs }}
	processor = metric{name: "client CPU µs", ownCosts: true, value: func(t turn) float64 { return micros(t.processor.Nanoseconds()) }}
	calls     = metric{name: "reads and writes", ownCosts: true, value: func(t turn) float64 { return t.calls }}
	beside    = metric{name: "1MiB reads/s", latency: true, value: func(t turn) float64 { return t.beside }}

	metrics = []metric{perSecond, p50, p99, p999, allocs, processor, calls, beside}
)

func micros(ns int64) float64 { return float64(ns) / 1e3 }

// shown tells whether a figure of an entrant was measured.
func (m metric) shown(e *entrant, ownProcess bool) bool {
	return (ownProcess || !m.ownCosts) && (e.name != floorName || !m.latency)
}

// cellTable is a line for each entrant: medians, and the range of the throughput and of the p99.
func cellTable(r result, ownProcess bool) string {
	columns := metrics
	if !r.cell.beside {
		columns = metrics[:len(metrics)-1]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n| |", r.cell.name())
	for _, m := range columns {
		fmt.Fprintf(&b, " %s |", m.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(columns)) + "\n")
	for _, e := range r.entrants {
		fmt.Fprintf(&b, "| %s |", e.name)
		for _, m := range columns {
			b.WriteString(" ")
			if m.shown(e, ownProcess) {
				b.WriteString(shortSpread(e.spread(m), m.name == perSecond.name || m.name == p99.name))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func shortSpread(s spread, withRange bool) string {
	if !withRange {
		return figure(s.median)
	}
	return fmt.Sprintf("%s (%s to %s)", figure(s.median), figure(s.min), figure(s.max))
}

// figure writes three digits that count, and all of those before the point.
func figure(v float64) string {
	switch {
	case math.IsNaN(v), math.IsInf(v, 0):
		return ""
	case math.Abs(v) >= 1000:
		return thousands(int64(math.Round(v)))
	case math.Abs(v) >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case math.Abs(v) >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// precise is a figure as the CSV has it.
func precise(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

func thousands(n int64) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// writeSteadyCSV writes a line for each turn.
func writeSteadyCSV(path string, results []result, ownProcess bool) error {
	head := []string{"cell", "operation", "callers", "context", "client", "round"}
	for _, m := range metrics {
		head = append(head, m.name)
	}
	lines := [][]string{head}
	for _, r := range results {
		for _, e := range r.entrants {
			for round := range e.turns {
				lines = append(lines, csvLine(r.cell, e, round, ownProcess))
			}
		}
	}
	return writeCSV(path, lines)
}

func csvLine(c cell, e *entrant, round int, ownProcess bool) []string {
	ctx := "background"
	if c.cancellable {
		ctx = "cancellable"
	}
	line := []string{c.name(), c.op.name, strconv.Itoa(c.callers), ctx, e.name, strconv.Itoa(round + 1)}
	for _, m := range metrics {
		text := ""
		if m.shown(e, ownProcess) {
			text = precise(m.value(e.turns[round]))
		}
		line = append(line, text)
	}
	return line
}

func writeCSV(path string, lines [][]string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := csv.NewWriter(f).WriteAll(lines); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
