package baton

// This file holds where the next dial of a client goes: the announcement in force and its pin, and the back-off between dials.
// Readers tell it of announcements and diallers ask it for targets, all under its one lock, which is taken after a bridge's and
// held for a few comparisons. It must not know connections.

import (
	"math/rand/v2"
	"sync"
	"time"
)

// announcement is one MOVING as the client remembers it.
type announcement struct {
	number    uint64 // from the counter that dials take theirs from: which of the two came first
	seq       int64
	numbered  bool   // seq was given; 0 is a real one
	successor string // host:port, or empty: none is named
	received  tick   // when it was first read
	wall      time.Time
	window    time.Duration
}

func (a *announcement) deadline() tick { return a.received.add(a.window) }
func (a *announcement) half() tick     { return a.received.add(a.window / 2) }

// pin is the newest announcement. It is remembered, and is told from its copies, until one dial after its deadline; its
// successor is what every dial of the client goes to until the deadline.
type pin struct {
	grace time.Duration // what one dial may take; set before use

	mu sync.Mutex
	a  announcement // guarded by mu; number 0: there was none yet
}

// remembered is the announcement in force at t, if there is one.
func (p *pin) remembered(t tick) (announcement, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.a, p.rememberedLocked(t)
}

func (p *pin) rememberedLocked(t tick) bool {
	return p.a.number != 0 && t < p.a.deadline().add(p.grace)
}

// announce tells the pin of a MOVING and returns the announcement in force. A number above the remembered one is a new
// announcement and takes its place, with a number that take gives. The same, a lower or no number is a copy: it moves nothing.
// Sequence numbers are compared only while the announcement is remembered, so a server whose counter restarts is believed again
// afterwards.
func (p *pin) announce(n *notification, t tick, take func() uint64) announcement {
	p.mu.Lock()
	defer p.mu.Unlock()
	isCopy := !n.numbered || p.a.numbered && n.seq <= p.a.seq
	if !p.rememberedLocked(t) || !isCopy {
		p.a = announcement{take(), n.seq, n.numbered, n.successor, t, time.Now(), n.window}
	}
	return p.a
}

// target is where a dial that begins at t goes, after so many failures in a row: the successor of announcement number, or, with
// number 0, the configured address. From half of the window on, a successor that keeps failing and the configured address take
// turns. The deadline ends the pin, but not before one dial of the successor: tried is the number of the announcement that the
// bridge dialled for last.
func (p *pin) target(t tick, failures int, tried uint64, configured string) (addr string, number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := tried != p.a.number && p.rememberedLocked(t)
	inTurn := t < p.a.half() || t < p.a.deadline() && failures%2 == 0
	if p.a.successor == "" || !first && !inTurn {
		return configured, 0
	}
	return p.a.successor, p.a.number
}

// refuse makes announcement number one that names nobody. A newer one is left alone.
func (p *pin) refuse(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.a.number == number {
		p.a.successor = ""
	}
}

// backoff is how long to wait before the next dial after so many failures in a row: 50 ms, doubling to 1 s, less up to a
// quarter, so that the clients of one server do not come back in step.
func backoff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	d := min(50*time.Millisecond<<min(failures-1, 5), time.Second)
	return d - rand.N(d/4)
}

// jitter is how long a bridge waits before it dials what was announced: a random part of a tenth of the window, at most a
// second, so that the clients of one node do not reach its successor all at once.
func jitter(window time.Duration) time.Duration {
	if most := min(window/10, time.Second); most > 0 {
		return rand.N(most)
	}
	return 0
}
