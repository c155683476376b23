package main

// Handoffs compared: each client, under full load, is told that its server moves, or is not, and the server's sockets close at
// the end of the announced window. Here are the scenarios and how one run of them is played; handoff_load.go is the load,
// pubsub.go the subscribers and blocked pops, handoff_stage.go the place, handoff_subjects.go the clients, handoff_table.go what is
// made of it, plot.go the picture. Runs follow each other, never two at a time, and each has a client and relays of its own.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	redigo "github.com/gomodule/redigo/redis"
)

// sizes are the numbers of a run.
type sizes struct {
	callers   int
	warm      time.Duration // not counted: connections and buffers find their size
	window    time.Duration // announced
	tail      time.Duration // watched beyond the end of the window, when the sockets close
	fault     time.Duration // the successor refuses or stalls for so long
	cutAfter  time.Duration // the old sockets die so long after the announcement
	again     time.Duration // the second announcement comes so long after the first
	popAfter  time.Duration // pops are answered so long after the announcement
	perSecond int           // messages
}

var (
	fullSizes = sizes{callers: 64, warm: time.Second, window: 15 * time.Second, tail: time.Second, fault: 2 * time.Second,
		cutAfter: time.Second, again: 2 * time.Second, popAfter: 12 * time.Second, perSecond: 300}
	shortSizes = sizes{callers: 64, warm: 300 * time.Millisecond, window: 2 * time.Second, tail: 500 * time.Millisecond, fault: time.Second,
		cutAfter: 500 * time.Millisecond, again: time.Second, popAfter: 1500 * time.Millisecond, perSecond: 300}
)

// handoffRounds is how often everything is played, if the flag -rounds does not ask for less.
const handoffRounds = 3

// A scenario is what happens to the servers, and who has to live with it.
type scenario struct {
	name    string
	listens bool // a subscriber and blocked pops in place of the load
	floor   bool // before the announcement passes as much time as after it: what is the longest stall without one?
	acts    func(s *stage, z sizes) []act
	lasts   func(z sizes) time.Duration // from the announcement on
	meets   func(subject) bool
	short   func(subject) bool // also in a short run
}

// An act is done so long after the announcement.
type act struct {
	at time.Duration
	do func()
}

func everySubject(subject) bool { return true }
func noSubject(subject) bool    { return false }
func whoIsTold(s subject) bool  { return s.told }
func batonAlone(s subject) bool { return s.name == batonName }

func wholeWindow(z sizes) time.Duration { return z.window + z.tail }

func bothWindows(z sizes) time.Duration { return z.again + z.window + z.tail }

func untilCut(z sizes) time.Duration { return z.cutAfter + 2*z.tail }

// The names of the scenarios, as far as the table knows them.
const (
	normal          = "normal"
	refuses         = "refuses"
	stalls          = "stalls"
	dies            = "dies"
	twice           = "twice"
	messages        = "messages"
	messagesUnnamed = "messages unnamed"
	messagesRefuses = "messages refuses"
	messagesStalls  = "messages stalls"
)

var scenarios = []scenario{
	{normal, false, true, playNormal, wholeWindow, everySubject, everySubject},
	{refuses, false, true, playRefuses, wholeWindow, whoIsTold, batonAlone},
	{stalls, false, true, playStalls, wholeWindow, whoIsTold, noSubject},
	{dies, false, false, playDies, untilCut, everySubject, batonAlone},
	{twice, false, false, playTwice, bothWindows, whoIsTold, noSubject},
	{messages, true, false, playNormal, wholeWindow, everySubject, batonAlone},
	{messagesUnnamed, true, false, playUnnamed, wholeWindow, whoIsTold, noSubject},
	{messagesRefuses, true, false, playRefuses, wholeWindow, whoIsTold, noSubject},
	{messagesStalls, true, false, playStalls, wholeWindow, whoIsTold, noSubject},
}

func playNormal(s *stage, z sizes) []act {
	return []act{{0, func() { s.move(s.old, s.next, z.window) }}}
}

func playUnnamed(s *stage, z sizes) []act {
	return []act{{0, func() { s.moveUnnamed(s.old, s.next, z.window) }}}
}

func playRefuses(s *stage, z sizes) []act {
	before := act{0, func() { s.next.Refuse(true) }}
	return append([]act{before}, append(playNormal(s, z), act{z.fault, func() { s.next.Refuse(false) }})...)
}

func playStalls(s *stage, z sizes) []act {
	before := act{0, func() { s.next.Stall(true) }}
	return append([]act{before}, append(playNormal(s, z), act{z.fault, func() { s.next.Stall(false) }})...)
}

func playDies(s *stage, z sizes) []act {
	return append(playNormal(s, z), act{z.cutAfter, s.old.Cut})
}

func playTwice(s *stage, z sizes) []act {
	return append(playNormal(s, z), act{z.again, func() { s.move(s.next, s.third, z.window) }})
}

// play does what there is to do, the announcement so long ahead, and returns when the scenario is over.
func (sc scenario) play(s *stage, z sizes, ahead time.Duration, more ...act) {
	acts := append([]act{{0, s.begin}}, append(more, sc.acts(s, z)...)...)
	slices.SortStableFunc(acts, func(a, b act) int { return int(a.at - b.at) })
	from := time.Now().Add(ahead)
	for _, a := range acts {
		time.Sleep(time.Until(from.Add(a.at)))
		a.do()
	}
	time.Sleep(time.Until(from.Add(sc.lasts(z))))
}

// before is how long the load lasts before the announcement.
func (sc scenario) before(z sizes) time.Duration {
	if sc.floor {
		return z.warm + sc.lasts(z)
	}
	return z.warm
}

// A handoffRun is a scenario as one subject went through it.
type handoffRun struct {
	scenario, subject string
	round             int
	figures           map[string]float64
	firstErr          error  // of a command
	tally             *tally // nil if there was no load
}

// The figures of a run.
const (
	figureCommands   = "commands"
	figureFailed     = "failed"
	figureTwice      = "executed twice"
	figureLost       = "answered but not executed"
	figureStall      = "longest stall, ms"
	figureStallEnd   = "its end, ms after the announcement"
	figureNear       = "longest stall near the events, ms"
	figureFloor      = "noise floor, ms"
	figureDials      = "dials"
	figureLastOnOld  = "last command on the old connection, ms"
	figureJitter     = "jitter, ms"
	figureMessages   = "messages"
	figureMissed     = "missed"
	figureRepeated   = "repeated"
	figureDisordered = "out of order"
)

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// playOnce has one subject go through it.
func (sc scenario) playOnce(who subject, z sizes, server string) (*handoffRun, error) {
	s, err := newStage(server)
	if err != nil {
		return nil, err
	}
	defer s.close()
	m, err := who.lead(s.dial, z.callers)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	r := &handoffRun{scenario: sc.name, subject: who.name, figures: map[string]float64{}}
	if sc.listens {
		err = sc.playToListeners(r, s, m, z, server)
	} else {
		err = sc.playUnderLoad(r, s, m, z, server)
	}
	return r, err
}

func (sc scenario) playUnderLoad(r *handoffRun, s *stage, m mover, z sizes, server string) error {
	l := startPushes(m, z.callers, sc.before(z)+sc.lasts(z))
	time.Sleep(z.warm)
	l.counts.Store(true)
	time.Sleep(sc.before(z) - z.warm)
	sc.play(s, z, 0, act{0, l.announce})
	r.noteStage(s, m)
	if err := l.finish(); err != nil {
		return err
	}
	t, err := l.settle(server)
	if err != nil {
		return err
	}
	r.noteTally(t, z, sc.floor)
	return nil
}

func (r *handoffRun) noteStage(s *stage, m mover) {
	r.figures[figureDials] = float64(s.dials())
	if s.leaving.Load() > 0 { // the witness saw who was there
		r.figures[figureLastOnOld] = milliseconds(time.Duration(s.lastOnOld.Load()))
	}
	if a, ok := m.(announcer); ok {
		if jitter, known := a.Jitter(); known {
			r.figures[figureJitter] = milliseconds(jitter)
		}
	}
}

func (r *handoffRun) noteTally(t *tally, z sizes, floor bool) {
	r.tally, r.firstErr = t, t.firstErr
	r.figures[figureCommands] = float64(t.sent)
	r.figures[figureFailed] = float64(t.failed)
	r.figures[figureTwice] = float64(t.twice)
	r.figures[figureLost] = float64(t.lost)
	r.figures[figureStall] = milliseconds(t.after)
	r.figures[figureStallEnd] = milliseconds(t.afterAt - t.announced)
	if floor {
		r.figures[figureFloor] = milliseconds(t.before)
		r.figures[figureNear] = milliseconds(t.near(z))
	}
}

func (sc scenario) playToListeners(r *handoffRun, s *stage, m mover, z sizes, server string) error {
	publisher, err := redigo.Dial("tcp", server, redigo.DialReadTimeout(usual))
	if err != nil {
		return err
	}
	defer publisher.Close()
	heard, err := subscribe(m, publisher)
	if err != nil {
		return err
	}
	b := startBroadcast(publisher, z.perSecond)
	time.Sleep(z.warm)
	popErr := sc.playToPops(r, s, m, z, server)
	sent, err := b.end()
	heard.await(sent)
	err = errors.Join(popErr, err, heard.leave())
	r.noteStage(s, m)
	delete(r.figures, figureLastOnOld) // it is about the load's commands
	missed, repeated, disordered := heard.miss(sent)
	r.figures[figureMessages] = float64(sent)
	r.figures[figureMissed] = float64(missed)
	r.figures[figureRepeated] = float64(repeated)
	r.figures[figureDisordered] = float64(disordered)
	return err
}

// playToPops is what happens while messages come: the scenario, and in the normal one also pops that are blocked.
func (sc scenario) playToPops(r *handoffRun, s *stage, m mover, z sizes, server string) error {
	if sc.name != messages {
		sc.play(s, z, 0)
		return nil
	}
	pusher, err := redigo.Dial("tcp", server, redigo.DialReadTimeout(usual))
	if err != nil {
		return err
	}
	defer pusher.Close()
	var acts []act
	var all []*waiting
	for _, set := range popSets(z) {
		w := &waiting{set: set, m: m}
		all = append(all, w)
		acts = append(acts, act{set.issue, w.start}, act{set.due, func() { err = errors.Join(err, w.answer(pusher)) }})
	}
	sc.play(s, z, popAhead, acts...)
	for _, w := range all {
		err = errors.Join(err, w.note(r, pusher))
	}
	return err
}

// A pairing is a scenario and who goes through it.
type pairing struct {
	scenario
	subject
}

func (p pairing) cell() string { return p.scenario.name + "/" + p.subject.name }

// overhead is what a run takes beside its scenario: connecting, and reading what was executed.
const overhead = time.Second

// pairings are those of one round, and those that are left out.
func pairings(cfg config) (played, left []pairing) {
	for _, sc := range scenarios {
		for _, who := range subjects {
			p := pairing{sc, who}
			switch {
			case !sc.meets(who):
			case cfg.short && !sc.short(who) || cfg.cells != nil && !cfg.cells.MatchString(p.cell()):
				left = append(left, p)
			default:
				played = append(played, p)
			}
		}
	}
	return played, left
}

func runHandoffs(cfg config) error {
	z, rounds := fullSizes, min(cfg.rounds, handoffRounds)
	if cfg.short {
		z, rounds = shortSizes, 1
	}
	played, left := pairings(cfg)
	if len(played) == 0 {
		return nil
	}
	srv, err := startServer(cfg.server)
	if err != nil {
		return err
	}
	defer srv.stop()
	var estimate time.Duration
	for _, p := range played {
		estimate += time.Duration(rounds) * (p.before(z) + p.lasts(z) + overhead)
	}
	fmt.Printf("\nHandoffs: %d runs one after the other, about %v; %s\n", rounds*len(played), estimate.Round(time.Second), srv.name)
	all, failed := playAll(played, z, rounds, srv.addr)
	return errors.Join(failed, publishHandoffs(cfg.out, all, z, handoffNotes(srv.name, z, rounds, left)))
}

// playAll goes round after round; in each the subjects of a scenario take turns, and begin with another one.
func playAll(pairs []pairing, z sizes, rounds int, server string) (all results, failed error) {
	for round := range rounds {
		for _, p := range rotated(pairs, round) {
			r, err := p.playOnce(p.subject, z, server)
			if err != nil {
				err = fmt.Errorf("%s: %w", p.cell(), err)
				fmt.Println(" ", err)
				failed = errors.Join(failed, err)
				continue
			}
			r.round = round + 1
			all = append(all, r)
			fmt.Println(" ", r)
		}
	}
	return all, failed
}

// rotated keeps the order of scenarios and rotates that of subjects within each.
func rotated(pairs []pairing, by int) (turned []pairing) {
	for len(pairs) > 0 {
		n := 1
		for n < len(pairs) && pairs[n].scenario.name == pairs[0].scenario.name {
			n++
		}
		for i := range n {
			turned = append(turned, pairs[(i+by)%n])
		}
		pairs = pairs[n:]
	}
	return turned
}

// String is the line that is printed when the run is over. What it does not name is 0.
func (r *handoffRun) String() string {
	var parts []string
	for _, name := range figureOrder {
		if v := r.figures[name]; v != 0 {
			parts = append(parts, fmt.Sprintf("%s %s", name, number(v)))
		}
	}
	line := fmt.Sprintf("%s/%s %d: %s", r.scenario, r.subject, r.round, strings.Join(parts, ", "))
	if r.firstErr != nil {
		line += fmt.Sprintf(" (first error: %v)", r.firstErr)
	}
	return line
}
