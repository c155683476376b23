package baton

// This file holds where the next dial of a client goes, and when: the announcement in force with its pin, the poll for a successor
// that nobody named, each bridge's quest for its next connection, and the back-off between dials. Readers tell the pin of announcements
// and diallers ask it for targets, under its one lock, which is taken after a bridge's. It must not know connections.

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"
)

// announcement is one MOVING as the client remembers it.
type announcement struct {
	notification        // as it was first read; without its successor, if that was refused
	number       uint64 // from the counter that dials take theirs from: which of the two came first
	wall         time.Time
	found        string   // IP:port that the poll found. P1: nobody was told to leave it
	told         []string // the hosts that connections to were told of it; only appended to. P2: each once
	renewal      bool     // it is no announcement, but a renewal,
	asked        bool     // and not one that what a server said is the reason for
}

// covers says that n is a copy or older: it has the same, a lower or no number. Once a is forgotten, a counter that restarted is believed again.
func (a *announcement) covers(n *notification) bool {
	return !n.numbered || a.numbered && n.seq <= a.seq
}

// wasTold says whether a connection to the host of addr was told to move by a.
func (a *announcement) wasTold(addr string) bool {
	host, _ := splitEndpoint(addr)
	return slices.Contains(a.told, host)
}

func (a *announcement) deadline() tick { return a.received.add(a.window) }
func (a *announcement) half() tick     { return a.received.add(a.window / 2) }

// pin is the newest announcement: every dial goes to its successor until its deadline, and copies are told from it until one dial later.
type pin struct {
	grace      time.Duration // what one dial may take during maintenance; set before use, as are the others
	configured string
	host, port string // of configured, if that is a name and it is baton that looks it up; else empty

	mu      lock
	a       announcement // guarded by mu, as is polling; number 0: there was none yet
	polling bool         // the poll runs
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

// announce tells the pin of a MOVING and returns what is in force: a new announcement, with a number that take gives, or what covers n.
func (p *pin) announce(n *notification, t tick, take func() uint64) announcement {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rememberedLocked(t) || !p.a.covers(n) {
		p.a = announcement{notification: *n, number: take(), wall: time.Now()}
		p.a.received = t
	}
	return p.a
}

// tell notes that a connection to remote was told to move by announcement number.
func (p *pin) tell(number uint64, remote string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if host, _ := splitEndpoint(remote); p.a.number == number && !p.a.wasTold(remote) {
		p.a.told = append(p.a.told, host)
		if p.a.wasTold(p.a.found) {
			p.a.found = "" // it is no better
		}
	}
}

// refuse makes announcement number one that names nobody. A newer one is left alone.
func (p *pin) refuse(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.a.number == number {
		p.a.successor = ""
	}
}

// location is where a bridge's connection is, zero if it has none that serves.
type location struct {
	addr, remote string // as dialled, and as connected
	attempt      uint64 // the number that its dial took
}

// quest is one bridge's search for its next connection, guarded by the bridge's lock.
type quest struct {
	random   dice
	number   uint64 // of the announcement, or the renewal, that the bridge joined last
	moved    uint64 // of the announcement that it joined last
	renewal  bool
	again    int           // how often it was joined again
	jitter   time.Duration // that is added for it
	tried    uint64        // the number of the last announcement whose successor was dialled, or what was found
	at       tick          // the next dial is not before
	last     tick          // the last dial began
	spaced   tick          // and this one is not before, so that handoffs that follow each other closely are apart
	tries    int           // dials in a row that failed or brought a connection that did not last, and the one that replaces the last
	chain    int           // handoffs that each began before the one before was long over
	chainEnd tick
}

const (
	maxAgain   = 3                      // how often a bridge looks for another place because what an announcement brought it to must move as well
	minSpacing = 500 * time.Millisecond // the time that is kept at first between the dials of handoffs that follow each other closely
	maxSpacing = 10 * time.Second       // and in the end
)

func (q *quest) mayAgain(number uint64) bool { return q.moved != number || q.again < maxAgain }

// join sets out at moment for what a promises. latest is when a dial is due even if that is close upon the one before: better soon than
// too late. Without a connection the next dial has its moment already, and an announcement does not hurry it: it may be one of many.
func (q *quest) join(a announcement, t, moment, latest tick, connected bool) {
	known := a.number == q.number || a.number == q.moved
	if !known && !a.renewal {
		q.moved, q.again = a.number, 0
	}
	q.number, q.renewal, q.tried, q.jitter, q.spaced = a.number, a.renewal, 0, 0, 0 // tried: what was dialled before may be stale
	if !connected {
		return
	}
	q.jitter = q.random.jitter(a.window)
	q.at = moment.add(q.jitter)
	if known || a.asked {
		return // they are bounded otherwise
	}
	if q.chain++; t >= q.chainEnd {
		q.chain = 1
	}
	if a.renewal {
		latest = never
	}
	if q.chain > 2 { // a server that sends us on and on, or two that send us to each other, are not followed in a tight loop
		spacing := min(minSpacing<<min(q.chain-3, 5), maxSpacing)
		q.spaced = max(q.last.add(minSpacing), min(q.last.add(spacing), latest))
		q.at = max(q.at, q.spaced)
	}
	q.chainEnd = max(a.deadline(), q.at.add(maxSpacing))
}

// begun notes that a dial begins. The number of its target is 0, or no lower than what was tried before.
func (q *quest) begun(to target, t tick) { q.last, q.tried = t, max(q.tried, to.number) }

// hasten has what the poll found dialled.
func (q *quest) hasten(t tick) { q.at, q.tried = max(t.add(q.jitter), q.spaced), 0 }

// retry sets the moment of the next dial after one that was of no use, and was at least so much of a failure: at once when a connection
// is lost after a long life, else with back-off, so that a server that refuses us, or hangs up on us, is not dialled in a tight loop.
func (q *quest) retry(t tick, least int) {
	q.tries = max(q.tries, least)
	q.at = t.add(q.random.backoff(q.tries))
	q.tries++
}

// unnamed says that q finds no other place named: none is, or the one where its connection was already when it set out.
func (q *quest) unnamed(a *announcement, here location) bool {
	there := strings.EqualFold(a.successor, here.addr) || a.successor == here.remote
	return a.successor == "" || there && (here.attempt < a.number || q.number == a.number)
}

// target is where a dial goes.
type target struct {
	addr   string
	number uint64 // of the announcement that led there; 0: none did
	named  bool   // as its successor
	poll   bool   // the caller is to begin the poll
}

// plan is when the next dial of q is, and where it goes if that is not after t. A named successor, or what the poll found in place of
// one, is dialled at q's own moment. Something new can be expected at the configured address from half of the window on: then it takes
// turns with what fails, and without either it is waited for. The deadline ends the pin, but not before one dial with it.
func (p *pin) plan(t tick, q *quest, here location) (at tick, to target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &p.a
	if to.addr = p.configured; !p.rememberedLocked(t) {
		return q.at, to
	}
	place, named := a.successor, !q.unnamed(a, here)
	if !named {
		place, to.poll = a.found, p.host != "" && !p.polling
		p.polling = p.polling || to.poll
	}
	inTurn := t < a.half() || t < a.deadline() && max(q.tries-1, 0)%2 == 0
	switch {
	case place != "" && (q.tried != a.number && (q.number == a.number || t < a.deadline()) || inTurn):
		to.addr, to.number, to.named = place, a.number, named
		return q.at, to
	case place != "" || here.addr == "": // without a connection there is nothing to wait for
		return q.at, to
	case q.again == maxAgain && p.host != "": // the last one is not spent by the clock: the poll may still find something
		return never, to
	}
	return max(q.at, a.half().add(q.jitter)), to
}

// poll looks the configured host up, at once and then once a second while a bridge waits for that, for an address that nobody was told to
// leave. It ends when no announcement is remembered. waiting says whether a bridge waits; found tells it that it need not any more.
func (p *pin) poll(ctx context.Context, r *net.Resolver, waiting func(a announcement, found bool) bool) {
	for {
		p.mu.Lock()
		a, ok := p.a, p.rememberedLocked(now())
		p.polling = ok
		p.mu.Unlock()
		if !ok {
			return
		}
		if a.found == "" && waiting(a, false) {
			lookup, cancel := context.WithTimeout(ctx, p.grace)
			hosts, _ := r.LookupHost(lookup, p.host) // one that fails finds nothing
			if cancel(); p.find(a.number, hosts) {
				waiting(a, true)
			}
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// find notes the first of hosts that nobody was told to leave, unless announcement number has been replaced.
func (p *pin) find(number uint64, hosts []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, host := range hosts {
		if p.a.number == number && !slices.Contains(p.a.told, host) {
			p.a.found = net.JoinHostPort(host, p.port)
			return true
		}
	}
	return false
}

// dice is a source of random spans, from zero to below what it is given; nil: rand.N. A test that repeats a seed has its own.
type dice func(below time.Duration) time.Duration

func (d dice) roll(below time.Duration) time.Duration {
	if d != nil {
		return d(below)
	}
	return rand.N(below)
}

// backoff is the wait before the next dial after so many failures: 50 ms, doubling to 1 s, less up to a quarter, so that clients do not keep step.
func (d dice) backoff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	most := min(50*time.Millisecond<<min(failures-1, 5), time.Second)
	return most - d.roll(most/4)
}

// jitter is a random wait of at most a tenth of the window and a second: the clients of one node must not reach its successor all at once.
func (d dice) jitter(window time.Duration) time.Duration {
	return d.roll(max(min(window/10, time.Second), 1))
}
