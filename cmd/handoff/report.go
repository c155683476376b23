package main

// This file holds what is told: the live line while the load runs, on a goroutine of its own, and afterwards the
// verdict, for people or as JSON. Nothing here touches the load.

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/baton"
)

// intention is what is about to happen.
func (cfg *config) intention(s *stage) string {
	pace, kind, conns := "flat out", "two servers in this process", "one connection"
	if cfg.rate > 0 {
		pace = group(uint64(cfg.rate)) + " commands a second"
	}
	if cfg.addr != "" {
		kind = fmt.Sprintf("relays before %s and %s", cfg.addr, cfg.to)
	}
	if cfg.conns > 1 {
		conns = strconv.Itoa(cfg.conns) + " connections"
	}
	if cfg.tls {
		conns += ", TLS"
	}
	if cfg.mix {
		conns += ", with pops, messages and transactions"
	}
	return fmt.Sprintf("%s: from %s to %s\n%d workers, %s, %s; MOVING after %v, sockets closed %v later\n",
		kind, s.from.Addr(), s.to.Addr(), cfg.workers, pace, conns, cfg.announceAt(), cfg.window)
}

// live is the line that shows the run while it lasts.
type live struct {
	l        *load
	out      io.Writer
	terminal bool
	over     chan struct{}
	wg       sync.WaitGroup
}

// showLive redraws a line on a terminal, and writes one a second elsewhere, until it is stopped.
func showLive(out io.Writer, l *load) *live {
	v := &live{l: l, out: out, over: make(chan struct{})}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		v.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	v.wg.Go(v.run)
	return v
}

func (v *live) stop() {
	close(v.over)
	v.wg.Wait()
}

func (v *live) run() {
	every, form := time.Second, "%s\n"
	if v.terminal {
		every, form = 100*time.Millisecond, "\r%s\x1b[K"
		defer fmt.Fprint(v.out, "\r\x1b[K") // the verdict takes its place
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var last baton.Stats
	then := v.l.began
	for {
		select {
		case <-ticker.C:
			s, t := v.l.client.Stats(), time.Now()
			rate := float64(s.Answered-last.Answered) / t.Sub(then).Seconds()
			fmt.Fprintf(v.out, form, fmt.Sprintf("%5.1f s  %9s commands/s  %5d in flight  %s",
				t.Sub(v.l.began).Seconds(), group(uint64(rate)), s.InFlight+s.Backlog, phase(v.l.stretch(), s)))
			last, then = s, t
		case <-v.over:
			return
		}
	}
}

// phase is where the handoff stands.
func phase(now stretch, s baton.Stats) string {
	h := s.LastHandoff
	switch {
	case now == warmUp:
		return "warming up"
	case now == before:
		return "on the old server"
	case h.Received.IsZero():
		return "MOVING announced"
	case h.Promoted.IsZero() && s.HandoffsGivenUp > 0:
		return "given up"
	case h.Began.IsZero():
		return "preparing: jitter"
	case h.Ready.IsZero():
		return "preparing: dialling"
	case h.Promoted.IsZero():
		return "holding"
	case h.Closed.IsZero():
		return "promoted, stragglers finish"
	case now == during:
		return "on the new server, window open"
	}
	return "on the new server, window over"
}

// verdict is how it went. The field names of the JSON object are promised. A time that is null never came.
type verdict struct {
	Commands         uint64   `json:"commands"`
	Failed           uint64   `json:"failed"`
	MaybeExecuted    uint64   `json:"maybe_executed"` // of the failed
	Lost             int64    `json:"lost"`           // INCRs reported done, and missing from the counter
	ExecutedTwice    int64    `json:"executed_twice"` // surplus of the counters that no failure explains
	MaxStallMS       float64  `json:"max_stall_ms"`   // longest command, announcement to end of window
	MaxStallBeforeMS float64  `json:"max_stall_before_ms"`
	P50US            float64  `json:"p50_us"`
	P99US            float64  `json:"p99_us"`
	P999US           float64  `json:"p999_us"`
	JitterMS         *float64 `json:"jitter_ms"`
	HandoffMS        *float64 `json:"handoff_ms"` // end of the jitter to promotion
	HoldMS           *float64 `json:"hold_ms"`
	Held             uint64   `json:"held"`
	Lingered         int      `json:"lingered"`
	Missed           int      `json:"missed"`       // messages published, and never received; these three are 0 without -mix
	Repeated         int      `json:"repeated"`     // messages received again
	OutOfOrder       int      `json:"out_of_order"` // messages received behind a later one of their channel

	m        *mix // nil without -mix
	l        *load
	stats    baton.Stats
	parts    [stretches]histogram
	whole    histogram
	firstErr error
}

// judge compares what the workers were told with what is stored.
func judge(cfg config, l *load, m *mix, stats baton.Stats, stored []int64) *verdict {
	v := &verdict{l: l, m: m, stats: stats}
	for i, w := range l.workers {
		v.add(&w.failures)
		lost, twice := compare(stored[i], w.done, w.unsure)
		v.Lost += lost
		v.ExecutedTwice += twice
		for s := range w.noted {
			v.parts[s].add(&w.noted[s])
		}
	}
	if m != nil {
		v.addMix(m)
	}
	for s := range v.parts {
		v.whole.add(&v.parts[s])
	}
	v.Commands = v.whole.count
	v.MaxStallMS, v.MaxStallBeforeMS = millis(v.parts[during].max), millis(v.parts[before].max)
	v.P50US, v.P99US, v.P999US = micros(v.whole.quantile(.5)), micros(v.whole.quantile(.99)), micros(v.whole.quantile(.999))
	h := stats.LastHandoff
	v.JitterMS, v.HandoffMS = between(h.Received, h.Began), between(h.Began, h.Promoted)
	v.Held, v.Lingered = stats.Held, h.Lingered
	if !h.Promoted.IsZero() {
		hold := millis(h.HeldMax)
		v.HoldMS = &hold
	}
	return v
}

func (v *verdict) add(f *failures) {
	v.Failed += f.failed
	v.MaybeExecuted += f.maybe
	if v.firstErr == nil {
		v.firstErr = f.firstErr
	}
}

// addMix counts what the mix was told as the workers' commands are, but for their number and times.
func (v *verdict) addMix(m *mix) {
	for _, f := range m.all() {
		v.add(f)
	}
	pops, messages := m.pops(), m.messages()
	v.Lost += int64(pops.missing)
	v.ExecutedTwice += int64(pops.repeated)
	v.Failed += uint64(pops.outOfOrder) // they are wrong answers
	v.Missed, v.Repeated, v.OutOfOrder = messages.missing, messages.repeated, messages.outOfOrder
}

// compare says how many INCRs of one counter were lost, and how many were executed twice.
func compare(stored, done, unsure int64) (lost, twice int64) {
	return max(done-stored, 0), max(stored-done-unsure, 0)
}

// good is what the exit status says. A run that was not interrupted must have had its handoff.
func (v *verdict) good() bool {
	return !v.bad() && (v.l.interrupted || v.HandoffMS != nil)
}

func (v *verdict) bad() bool {
	return v.Failed > 0 || v.Lost > 0 || v.ExecutedTwice > 0 || v.Missed > 0 || v.Repeated > 0 || v.OutOfOrder > 0
}

func (v *verdict) writeJSON(out io.Writer) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers alone, and none of them infinite
	}
	fmt.Fprintf(out, "%s\n", b)
}

func (v *verdict) write(out io.Writer) {
	v.writeTimeline(out)
	fmt.Fprintf(out, "\n%-10s %12s %10s %10s %10s %10s\n", "", "commands", "p50", "p99", "p99.9", "longest")
	for s := before; s <= v.l.stretch(); s++ { // as far as the run came
		writeRow(out, s.String(), &v.parts[s])
	}
	writeRow(out, "whole run", &v.whole)
	fmt.Fprintln(out)
	if !v.l.announced.IsZero() {
		at := v.parts[during].maxAt - v.l.announced.Sub(v.l.began)
		fmt.Fprintf(out, "longest stall: %.1f ms before the announcement; %.1f ms after it (at %.0f ms)\n",
			v.MaxStallBeforeMS, v.MaxStallMS, millis(at))
	}
	if v.firstErr != nil {
		fmt.Fprintf(out, "first error: %v\n", v.firstErr)
	}
	fmt.Fprintf(out, "%s commands in %.1f s\n", group(v.Commands), v.l.ended.Sub(v.l.began).Seconds())
	if v.m != nil {
		v.m.write(out)
	}
	fmt.Fprintf(out, "%s: %s failed, %s maybe executed, %s lost, %s executed twice\n", v.word(),
		group(v.Failed), group(v.MaybeExecuted), group(uint64(v.Lost)), group(uint64(v.ExecutedTwice)))
}

// word is the verdict in short.
func (v *verdict) word() string {
	switch {
	case v.bad():
		return "FAILED"
	case v.HandoffMS == nil && v.l.interrupted:
		return "interrupted before the handoff"
	case v.HandoffMS == nil:
		return "FAILED, there was no handoff"
	case v.l.interrupted:
		return "interrupted, good so far"
	}
	return "GOOD"
}

// writeTimeline tells the handoff step by step, in milliseconds after the announcement.
func (v *verdict) writeTimeline(out io.Writer) {
	if v.l.announced.IsZero() {
		return
	}
	h := v.stats.LastHandoff
	type step struct {
		at   time.Time // zero: it never came
		text string
	}
	done := fmt.Sprintf("stragglers done: %s lingered, old connection closed", group(uint64(h.Lingered)))
	if h.Cut > 0 {
		done = fmt.Sprintf("old connection closed: %s lingered, %s were cut off", group(uint64(h.Lingered)), group(uint64(h.Cut)))
	}
	steps := []step{
		{h.Received, fmt.Sprintf("received: MOVING %d to %s", h.Seq, h.Successor)},
		{h.Began, "jitter over: the new connection is dialled"},
		{h.Ready, "ready"},
		{h.Holding, fmt.Sprintf("holding: %s commands waited, for %.1f ms at most", group(v.Held), millis(h.HeldMax))},
		{h.Promoted, "promoted: new work goes to the new connection"},
		{h.Closed, done},
		{v.l.closed, "window over: the old server has closed its sockets"},
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) }) // a connection may die early
	of := ""
	if v.m != nil {
		of = ", when the last connection came to it: also those of pops and messages move"
	}
	fmt.Fprintf(out, "        ms  after the announcement%s\n", of)
	for _, s := range steps {
		if !s.at.IsZero() {
			fmt.Fprintf(out, "%10.1f  %s\n", float64(s.at.Sub(v.l.announced))/1e6, s.text)
		}
	}
}

func writeRow(out io.Writer, name string, h *histogram) {
	fmt.Fprintf(out, "%-10s %12s", name, group(h.count))
	for _, d := range []time.Duration{h.quantile(.5), h.quantile(.99), h.quantile(.999), h.max} {
		fmt.Fprintf(out, " %10s", short(d))
	}
	fmt.Fprintln(out)
}

// short is d in the unit that suits it.
func short(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.0f µs", float64(d)/1e3)
	}
	return fmt.Sprintf("%.1f ms", float64(d)/1e6)
}

func millis(d time.Duration) float64 { return math.Round(float64(d)/1e3) / 1e3 }
func micros(d time.Duration) float64 { return math.Round(float64(d)/1e2) / 1e1 }

// between is the time from one step to another in milliseconds, or nothing if one of them never came.
func between(from, to time.Time) *float64 {
	if from.IsZero() || to.IsZero() {
		return nil
	}
	ms := millis(to.Sub(from))
	return &ms
}

// group writes n with commas.
func group(n uint64) string {
	s := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, digit := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}
