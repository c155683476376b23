package main

// This file holds what a soak keeps of faults and failures: which failures a fault explains, and which break the contract. Anybody
// adds to the ledger, under its lock; failures are judged by the conductor while the load rests, when all faults are known.

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/baton"
)

// A violation is a way to break the contract.
type violation string

const (
	lost          violation = "lost"
	executedTwice violation = "executed twice"
	wrongReply    violation = "wrong replies"
	excluded      violation = "failures that the contract excludes"
	missed        violation = "messages missed"
	repeated      violation = "messages repeated"
	leftOver      violation = "left over after Close"
)

// grade is what a disturbance may break. They add up.
type grade uint8

const (
	windowEnd grade = 1 << iota // connections are closed at the end of an announced window: sessions, which are never handed off
	sluggish                    // servers answer late: what is impatient
	hard                        // connections are cut, and perhaps none are accepted: what is in flight
)

const (
	// afterwards is how long a fault is felt beyond its end: until the next dial after back-off, and until a client that the machine
	// keeps from running has noticed.
	afterwards = 3 * time.Second

	// standstillFrom is how long this process has to stand still for the end of a window in which it did to count as a cut: a fifth of
	// what is left of the shortest window when a handoff without a name is due. Nothing can be in time on a machine that does not run.
	standstillFrom = 250 * time.Millisecond
)

type disturbance struct {
	name     string
	grade    grade
	from, to time.Time
	since    time.Time // of the end of a window: when it was announced
}

// A suspect is a failure that has to be explained.
type suspect struct {
	who          string
	err          error
	by           grade // what may explain it; 0: nothing
	began, ended time.Time
}

type ledger struct {
	began time.Time // set before use

	mu           sync.Mutex
	disturbances []disturbance // the latest
	faultCount   int
	suspects     []suspect
	excused      map[string]int
	violations   map[violation]int
	first        []string
	cancelled    int
	standstills  int
	episodes     []string // the latest, with their times
}

const (
	keptDisturbances = 500 // more than lie between two readings
	keptEpisodes     = 12
	keptViolations   = 10
)

// disturb notes that something is about to be disturbed, until it is told that this is over.
func (l *ledger) disturb(name string, g grade) (over func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g&(hard|sluggish) != 0 {
		l.faultCount++
	}
	far := time.Now().Add(time.Hour)
	began := time.Now()
	l.addLocked(disturbance{name: name, grade: g, from: began, to: far})
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i := range l.disturbances {
			if d := &l.disturbances[i]; d.from.Equal(began) && d.to.Equal(far) {
				d.to = time.Now().Add(afterwards)
			}
		}
	}
}

// expect notes a disturbance that is to come.
func (l *ledger) expect(d disturbance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(d)
}

func (l *ledger) addLocked(d disturbance) {
	if len(l.disturbances) == keptDisturbances {
		l.disturbances = l.disturbances[:copy(l.disturbances, l.disturbances[1:])]
	}
	l.disturbances = append(l.disturbances, d)
}

// felt is until when cuts are felt.
func (l *ledger) felt() (until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.disturbances {
		if d.grade&hard != 0 && d.to.After(until) {
			until = d.to
		}
	}
	return until
}

func (l *ledger) faults() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.faultCount
}

// tell notes what the conductor does, for the report of a violation.
func (l *ledger) tell(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.episodes) == keptEpisodes {
		l.episodes = l.episodes[:copy(l.episodes, l.episodes[1:])]
	}
	l.episodes = append(l.episodes, fmt.Sprintf("%.3f s ", time.Since(l.began).Seconds())+fmt.Sprintf(format, args...))
}

// failed takes a failure. What was never sent may be explained by one grade of disturbances, what may have been executed by another.
func (l *ledger) failed(who string, err error, began time.Time, unsent, sent grade) {
	s := suspect{who: who, err: err, by: unsent, began: began, ended: time.Now()}
	if baton.MaybeExecuted(err) {
		s.by = sent
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.suspects = append(l.suspects, s)
}

// left counts a call that ended by its own context or timeout.
func (l *ledger) left() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancelled++
}

// violate counts a violation, and keeps the first few with what led to them.
func (l *ledger) violate(v violation, what error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violateLocked(v, time.Now(), what)
}

func (l *ledger) violateLocked(v violation, at time.Time, what error) {
	if l.violations == nil {
		l.violations = map[violation]int{}
	}
	l.violations[v]++
	if len(l.first) == keptViolations {
		return
	}
	text := fmt.Sprintf("%.3f s: %s: %v", at.Sub(l.began).Seconds(), v, what)
	if l.violations[v] == 1 {
		text += "; it had been played: " + strings.Join(l.episodes, " · ")
	}
	l.first = append(l.first, text)
}

func (l *ledger) violated() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, count := range l.violations {
		n += count
	}
	return n
}

// judge looks for what explains the failures. What nothing explains is a violation.
func (l *ledger) judge() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.excused == nil {
		l.excused = map[string]int{}
	}
	for _, s := range l.suspects {
		if name := l.explainLocked(s); name != "" {
			l.excused[name]++
			continue
		}
		l.violateLocked(excluded, s.ended, fmt.Errorf("%s, begun %v before: %w (maybe executed: %v)", s.who,
			s.ended.Sub(s.began).Round(time.Microsecond), s.err, baton.MaybeExecuted(s.err)))
	}
	l.suspects = nil // nor is the room for them: it would be that of the worst fault so far, which rises
}

func (l *ledger) explainLocked(s suspect) string {
	for _, d := range l.disturbances {
		if d.from.After(s.ended) || d.to.Before(s.began) {
			continue
		}
		if d.grade&s.by != 0 {
			return d.name
		}
		if d.grade == windowEnd && s.by&hard != 0 {
			if why := l.lateLocked(d, s.began); why != "" {
				return d.name + why
			}
		}
	}
	return ""
}

// lateLocked says why something may still be in flight when a window ends, though the handoff is the client's to make in time. Nothing
// is in time on a machine that does not run. And a slow server need not have answered what it was given before the handoff was
// due: half of the window, and the jitter.
func (l *ledger) lateLocked(end disturbance, began time.Time) string {
	window := end.to.Sub(end.since) - afterwards
	switch straggler := began.Before(end.since.Add(window * 6 / 10)); {
	case l.metLocked(stoodStill, end.since, end.to):
		return " in which the machine stood still"
	case straggler && l.metLocked(slowServer, end.since, end.to):
		return " of a slow server"
	}
	return ""
}

// metLocked says whether there was such a disturbance in that time.
func (l *ledger) metLocked(name string, from, to time.Time) bool {
	return slices.ContainsFunc(l.disturbances, func(d disturbance) bool {
		return d.name == name && d.from.Before(to) && d.to.After(from)
	})
}

const (
	stoodStill = "a standstill of the machine"
	slowServer = "a slow server"
)

// watchStandstills notes when this process does not run, until over is closed.
func (s *soaker) watchStandstills(over chan struct{}) {
	const step = 10 * time.Millisecond
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-over:
			return
		case <-ticker.C:
		}
		now := time.Now()
		if now.Sub(last) >= standstillFrom {
			s.expect(disturbance{name: stoodStill, grade: sluggish, from: last, to: now.Add(afterwards)})
			s.mu.Lock()
			s.standstills++
			s.mu.Unlock()
		}
		last = now
	}
}
