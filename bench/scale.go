package main

// How baton scales: one dimension at a time, everything else as in the base case: 64 callers, GET of 64 bytes, one connection.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"example.com/baton"
)

// A scaling is one dimension and the points on it, which are measured in turns.
type scaling struct {
	name   string
	points []point
}

// A point is one setting.
type point struct {
	label      string
	callers    int
	op         operation
	commands   int // in one operation
	conns      int
	processors int    // 0: as many as there are
	via        string // an address to use instead of the server's
	took       []turn // one for each round
	heap       int64  // that the client holds on to after use
	crowd      *crowd // this and the next while it is open
	entrant    *entrant
}

func base(label string) point {
	return point{label: label, callers: 64, op: getSmall, commands: 1}
}

func runScale(cfg config) error {
	srv, err := startPrepared(cfg.server)
	if err != nil {
		return err
	}
	defer srv.stop()
	lags, err := newLags(srv.addr, 0, time.Millisecond, 10*time.Millisecond)
	defer closeLags(lags)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("# Scale\n\n%s.\n\n", about(srv, cfg))
	fmt.Print(text)
	tables, lines, err := runScalings(cfg, srv.addr, lags)
	if err != nil {
		return err
	}
	idle, err := idleTable(cfg, srv.addr)
	if err != nil {
		return err
	}
	fmt.Println(idle)
	if err := os.WriteFile(filepath.Join(cfg.out, "scale.md"), []byte(text+tables+idle), 0o644); err != nil {
		return err
	}
	return writeCSV(filepath.Join(cfg.out, "scale.csv"), lines)
}

func runScalings(cfg config, addr string, lags []*lag) (tables string, lines [][]string, err error) {
	lines = [][]string{{"dimension", "setting", "round", "commands/s", "p50 µs", "p99 µs", "heap KiB"}}
	for _, s := range scalings(lags) {
		if !cfg.cells.MatchString(s.name) {
			continue
		}
		if err := s.run(addr, cfg.pace); err != nil {
			return "", nil, fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Println(s.table())
		tables += s.table() + "\n"
		lines = append(lines, s.csvLines()...)
	}
	return tables, lines, nil
}

func scalings(lags []*lag) []scaling {
	return []scaling{
		byCallers(), byConns(64), byConns(1024), byPayload(), byBatch(), byLag(lags, 1), byLag(lags, 64), byLag(lags, 1024), byProcessors(),
	}
}

func byCallers() scaling {
	s := scaling{name: "callers"}
	for n := 1; n <= 16384; n *= 4 {
		p := base(thousands(int64(n)))
		p.callers = n
		s.points = append(s.points, p)
	}
	return s
}

func byConns(callers int) scaling {
	s := scaling{name: fmt.Sprintf("connections, %s callers", thousands(int64(callers)))}
	for n := 1; n <= 8; n *= 2 {
		p := base(strconv.Itoa(n))
		p.callers, p.conns = callers, n
		s.points = append(s.points, p)
	}
	return s
}

var payloads = []int{16, 256, 4 << 10, 64 << 10, 1 << 20}

func byPayload() scaling {
	s := scaling{name: "bytes of a value"}
	for _, n := range payloads {
		p := base(thousands(int64(n)))
		p.op = get(sizeKey(n), n)
		s.points = append(s.points, p)
	}
	return s
}

func sizeKey(n int) string { return "baton:bench:size:" + strconv.Itoa(n) }

func byBatch() scaling {
	s := scaling{name: "commands in a batch, 1 caller"}
	for n := 1; n <= 10_000; n *= 10 {
		p := base(thousands(int64(n)))
		p.callers, p.commands, p.op = 1, n, batchOf(n)
		s.points = append(s.points, p)
	}
	return s
}

func batchOf(n int) operation {
	keys := newKeyList(strings.Split(strings.Repeat(smallKey+" ", n-1)+smallKey, " "))
	return operation{
		name:  "batch",
		bytes: n * small,
		do:    func(ctx context.Context, c client) (int, error) { return c.Pipeline(ctx, keys) },
	}
}

func byLag(lags []*lag, callers int) scaling {
	s := scaling{name: fmt.Sprintf("latency of the network, %s callers", thousands(int64(callers)))}
	for _, l := range lags {
		p := base(l.by.String())
		p.callers, p.via = callers, l.Addr()
		s.points = append(s.points, p)
	}
	return s
}

func byProcessors() scaling {
	s := scaling{name: "GOMAXPROCS"}
	for n := 1; n <= max(4, runtime.NumCPU()); n *= 2 {
		p := base(strconv.Itoa(n))
		p.processors = n
		s.points = append(s.points, p)
	}
	return s
}

// run opens every point and gives them their turns.
func (s *scaling) run(addr string, pace pace) error {
	defer func() {
		for i := range s.points {
			if e := s.points[i].entrant; e != nil {
				e.close()
			}
		}
	}()
	for i := range s.points {
		if err := s.points[i].open(addr, pace); err != nil {
			return err
		}
	}
	for round := range pace.rounds {
		for i := range s.points {
			p := &s.points[(round+i)%len(s.points)]
			t, err := p.turn(pace.warmUp, pace.counted)
			if err != nil {
				return err
			}
			p.took = append(p.took, t)
		}
	}
	return nil
}

// open uses the client for a while, and sees what opening it and using it leave behind.
func (p *point) open(addr string, pace pace) error {
	if p.via != "" {
		addr = p.via
	}
	before := retain()
	opened, err := openBaton(baton.Options{Addr: addr, Conns: p.conns})
	if err != nil {
		return err
	}
	p.heap = retain().since(before).heap
	c := cell{op: p.op, callers: p.callers}
	contexts, _ := c.contexts()
	p.crowd = &crowd{contexts: contexts}
	p.entrant = enter(batons[0], opened, c, p.crowd)
	if err := p.primeGoroutines(); err != nil {
		return err
	}
	before = retain()
	if _, err := p.turn(0, pace.opening); err != nil {
		return err
	}
	p.heap += retain().since(before).heap
	return nil
}

// primeGoroutines has the runtime make as many goroutines as there will be callers. It keeps what they are made of, which is not
// the client's doing.
func (p *point) primeGoroutines() error {
	idle := crowd{contexts: make([]context.Context, p.callers), notes: make(notes, p.callers)}
	for range p.callers {
		idle.do = append(idle.do, func(context.Context) error { time.Sleep(time.Millisecond); return nil })
	}
	_, err := idle.take(5*time.Millisecond, 0)
	return err
}

func (p *point) turn(warmUp, counted time.Duration) (turn, error) {
	if p.processors > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(p.processors))
	}
	p.crowd.notes = newNotes(p.callers, counted)
	defer func() { p.crowd.notes = nil }() // it is not what the client retains
	t, err := p.entrant.turn(warmUp, counted)
	t.perSecond *= float64(p.commands)
	return t, err
}

func (s *scaling) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | commands/s | p50 µs | p99 µs | heap, KiB |\n|--:|--:|--:|--:|--:|\n", s.name)
	for _, p := range s.points {
		e := entrant{turns: p.took}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", p.label, shortSpread(e.spread(perSecond), true),
			figure(e.spread(p50).median), shortSpread(e.spread(p99), true), p.retainedKiB())
	}
	return b.String()
}

// retainedKiB is empty where more than the client was opened or changed.
func (p *point) retainedKiB() string {
	if p.via != "" || p.processors > 0 {
		return ""
	}
	return strings.ReplaceAll(figure(kib(p.heap)), ",", "")
}

func (s *scaling) csvLines() (lines [][]string) {
	for _, p := range s.points {
		for round, t := range p.took {
			lines = append(lines, []string{s.name, strings.ReplaceAll(p.label, ",", ""), strconv.Itoa(round + 1),
				precise(t.perSecond), precise(p50.value(t)), precise(p99.value(t)), p.retainedKiB()})
		}
	}
	return lines
}
