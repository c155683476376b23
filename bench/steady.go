package main

// The steady comparison: every contender in every cell, in turns. A round gives each contender one turn, so that what the machine
// does meanwhile meets them all, and begins with another one each time.

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// An entrant is a contender opened for one cell.
type entrant struct {
	name, lib string
	take      func(warmUp, counted time.Duration) (turn, error)
	close     func()
	turns     []turn // one for each round
}

// A result is what a cell's entrants did.
type result struct {
	cell     cell
	entrants []*entrant // the floor last
}

// A pace is how long turns are, and how many.
type pace struct {
	opening         time.Duration // a turn of everybody's before the first, in which connections are opened
	warmUp, counted time.Duration
	rounds          int
}

// A second sees several garbage collections. -short sees one at most, and is for a look.
func paceOf(short bool, rounds int) pace {
	switch {
	case rounds <= 0 && short:
		rounds = 3
	case rounds <= 0:
		rounds = 5
	}
	if short {
		return pace{20 * time.Millisecond, 15 * time.Millisecond, 55 * time.Millisecond, rounds}
	}
	return pace{500 * time.Millisecond, 200 * time.Millisecond, 800 * time.Millisecond, rounds}
}

func runSteady(cfg config) error {
	srv, err := startPrepared(cfg.server)
	if err != nil {
		return err
	}
	defer srv.stop()
	fmt.Printf("# Steady load\n\n%s.\n\n", about(srv, cfg))
	var results []result
	for _, c := range steadyCells() {
		if !cfg.cells.MatchString(c.name()) || cfg.short && !c.brief {
			continue
		}
		r, err := runCell(c, srv.addr, cfg)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		fmt.Println(cellTable(r, srv.process))
		results = append(results, r)
	}
	return reportSteady(cfg, srv, results)
}

// about says how something was measured.
func about(srv *server, cfg config) string {
	p := cfg.pace
	return fmt.Sprintf("%s, %d processors, %s, %d rounds of %v", srv.name, runtime.GOMAXPROCS(0), runtime.Version(), p.rounds, p.counted)
}

// reportSteady prints what was reached and writes everything down.
func reportSteady(cfg config, srv *server, results []result) error {
	reached := reachTable(results, srv.process)
	fmt.Println(reached)
	text := fmt.Sprintf("# Steady load\n\n%s.\n\n", about(srv, cfg))
	for _, r := range results {
		text += cellTable(r, srv.process) + "\n"
	}
	if err := os.WriteFile(filepath.Join(cfg.out, "steady.md"), []byte(text+reached), 0o644); err != nil {
		return err
	}
	return writeSteadyCSV(filepath.Join(cfg.out, "steady.csv"), results, srv.process)
}

// runCell gives everybody their turns in one cell.
func runCell(c cell, addr string, cfg config) (result, error) {
	contexts, release := c.contexts()
	defer release()
	r, kept := result{cell: c}, newNotes(c.callers, cfg.pace.counted)
	defer func() {
		for _, e := range r.entrants {
			e.close()
		}
	}()
	for _, who := range contenders() {
		if !cfg.clients.MatchString(who.name) {
			continue
		}
		opened, err := who.open(addr, c.callers+1) // and the one beside
		if err != nil {
			return r, fmt.Errorf("%s: %w", who.name, err)
		}
		r.entrants = append(r.entrants, enter(who, opened, c, &crowd{contexts: contexts, notes: kept}))
	}
	if !c.beside && cfg.clients.MatchString(floorName) {
		f, err := openFloor(addr, c.op.request, c.op.reply, c.callers)
		if err != nil {
			return r, err
		}
		r.entrants = append(r.entrants, &entrant{name: floorName, lib: floorName, take: f.take, close: f.Close})
	}
	return r, r.play(cfg.pace)
}

// enter has the callers of a cell call a client.
func enter(who contender, opened client, c cell, callers *crowd) *entrant {
	for range c.callers {
		callers.do = append(callers.do, c.op.checked(forCaller(opened)))
	}
	if c.beside {
		callers.beside = getLarge.checked(forCaller(opened))
	}
	return &entrant{name: who.name, lib: who.lib, take: callers.take, close: opened.Close}
}

// play gives everybody their turns.
func (r *result) play(p pace) error {
	for _, e := range r.entrants {
		if _, err := e.turn(0, p.opening); err != nil {
			return err
		}
	}
	for round := range p.rounds {
		for i := range r.entrants {
			e := r.entrants[(round+i)%len(r.entrants)]
			t, err := e.turn(p.warmUp, p.counted)
			if err != nil {
				return err
			}
			e.turns = append(e.turns, t)
		}
	}
	return nil
}

func (e *entrant) turn(warmUp, counted time.Duration) (turn, error) {
	runtime.GC() // of what others left
	t, err := e.take(warmUp, counted)
	if err != nil {
		err = fmt.Errorf("%s: %w", e.name, err)
	}
	return t, err
}

// entrant is the one with a name, or nil.
func (r *result) entrant(name string) *entrant {
	for _, e := range r.entrants {
		if e.name == name {
			return e
		}
	}
	return nil
}

// figures are those of one kind, of all turns.
func (e *entrant) figures(of metric) []float64 {
	all := make([]float64, len(e.turns))
	for i, t := range e.turns {
		all[i] = of.value(t)
	}
	return all
}

func (e *entrant) spread(of metric) spread { return spreadOf(e.figures(of)) }
