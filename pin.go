package baton

// This file holds where the next dial of a client goes, and when: the announcement in force with its pin, the poll for a successor
// that nobody named, each bridge's quest for its next connection, and the back-off between dials. Readers tell the pin of
// announcements and diallers ask it for targets, all under its one lock, which is taken after a bridge's and held for a few
// comparisons. It must not know connections.

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// announcement is one MOVING as the client remembers it.
type announcement struct {
	number    uint64 // from the counter that dials take theirs from: which of the two came first
	seq       int64
	numbered  bool   // seq was given; 0 is a real one
	successor string // host:port, or empty: none is named, or it was refused
	found     string // IP:port that the poll found
	received  tick   // when it was first read
	wall      time.Time
	window    time.Duration
	told      []string // the addresses, without ports, that connections to were told of it; only appended to
	renewal   bool     // it is no announcement, but a renewal,
	asked     bool     // and not one that what a server said is the reason for
}

// covers says that n is a copy of a, or older: it has the same, a lower or no number. Numbers mean something only while a is remembered,
// so a server whose counter restarts is believed again afterwards.
func (a *announcement) covers(n *notification) bool {
	return !n.numbered || a.numbered && n.seq <= a.seq
}

func (a *announcement) deadline() tick { return a.received.add(a.window) }
func (a *announcement) half() tick     { return a.received.add(a.window / 2) }

// pin is the newest announcement. It is remembered, and is told from its copies, until one dial after its deadline; its
// successor is what every dial of the client goes to until the deadline.
type pin struct {
	grace      time.Duration // what one dial may take during maintenance; set before use, as are the others
	configured string
	host, port string // of configured, if that is a name and it is baton that looks it up; else empty

	mu      sync.Mutex
	a       announcement // guarded by mu, as are the others; number 0: there was none yet
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

// announce tells the pin of a MOVING and returns the announcement in force. A new one takes the place of the one before, with a number
// that take gives; a copy moves nothing.
func (p *pin) announce(n *notification, t tick, take func() uint64) announcement {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rememberedLocked(t) || !p.a.covers(n) {
		p.a = announcement{number: take(), seq: n.seq, numbered: n.numbered, successor: n.successor, received: t, wall: time.Now(), window: n.window}
	}
	return p.a
}

// location is where a bridge's connection is, zero if it has none that serves.
type location struct {
	addr, remote string // as dialled, and as connected
	attempt      uint64 // the number that its dial took
}

// tell notes that a connection to remote was told to move by announcement number.
func (p *pin) tell(number uint64, remote string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if host, _ := splitEndpoint(remote); p.a.number == number && !p.a.wasTold(remote) {
		p.a.told = append(p.a.told, host)
		if found, _ := splitEndpoint(p.a.found); found == host {
			p.a.found = "" // it is no better
		}
	}
}

// wasTold says whether a connection to where remote is was told to move by a.
func (a *announcement) wasTold(remote string) bool {
	host, _ := splitEndpoint(remote)
	return slices.Contains(a.told, host)
}

// refuse makes announcement number one that names nobody. A newer one is left alone.
func (p *pin) refuse(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.a.number == number {
		p.a.successor = ""
	}
}

// maxAgain is how often a bridge looks for another place because what an announcement brought it to must move as well.
const maxAgain = 3

func (q *quest) mayAgain(number uint64) bool { return q.number != number || q.again < maxAgain }

// quest is one bridge's search for its next connection, guarded by the bridge's lock.
type quest struct {
	number  uint64 // of the announcement, or the renewal, that the bridge joined last
	renewal bool
	again   int           // how often it was joined again
	jitter  time.Duration // that is added for it
	tried   uint64        // the number of the last announcement whose successor was dialled, or what was found
	at      tick          // the next dial is not before
	last    tick          // the last dial began
	tries   int           // dials in a row that failed or brought a connection that did not last, and the one that replaces the last

	chain    int // handoffs that each began before the one before was long over
	chainEnd tick
}

// join sets out at moment for what a promises. latest is when a dial is due even if that is close upon the one before: better soon than
// too late. Without a connection the next dial has its moment already, and an announcement does not hurry it: it may be one of many.
func (q *quest) join(a announcement, t, moment, latest tick, connected bool) {
	if a.number != q.number {
		q.again = 0
	}
	q.number, q.renewal, q.tried, q.jitter = a.number, a.renewal, 0, 0 // tried: what was dialled before may be stale
	if !connected {
		return
	}
	q.jitter = jitter(a.window)
	q.at = moment.add(q.jitter)
	if q.again > 0 || a.asked {
		return // they are bounded otherwise
	}
	if q.chain++; t >= q.chainEnd {
		q.chain = 1
	}
	if a.renewal {
		latest = never
	}
	q.at = max(q.at, min(q.last.add(spacing(q.chain)), latest))
	q.chainEnd = max(a.deadline(), q.at.add(maxSpacing))
}

// begun notes that a dial begins.
func (q *quest) begun(to target, t tick) {
	if q.last = t; to.number != 0 {
		q.tried = to.number
	}
}

// retry sets the moment of the next dial after one that was of no use, and was at least so much of a failure: at once when a connection
// is lost after a long life, else with back-off, so that a server that refuses us, or hangs up on us, is not dialled in a tight loop.
func (q *quest) retry(t tick, least int) {
	q.tries = max(q.tries, least)
	q.at = t.add(backoff(q.tries))
	q.tries++
}

// hasten has what the poll found dialled.
func (q *quest) hasten(t tick) { q.at, q.tried = t.add(q.jitter), 0 }

// maxSpacing is the longest time that is kept between the dials of handoffs that follow each other closely.
const maxSpacing = 10 * time.Second

// spacing is the time that handoff number chain of those that fall into each other's windows keeps from the dial before: a server that
// sends us on and on, or two that send us to each other, are not followed in a tight loop.
func spacing(chain int) time.Duration {
	if chain < 3 {
		return 0
	}
	return min(500*time.Millisecond<<min(chain-3, 5), maxSpacing)
}

// target is where a dial goes.
type target struct {
	addr   string
	number uint64 // of the announcement that led there; 0: none did
	named  bool   // as its successor
	poll   bool   // the caller is to begin the poll
}

// plan is when the next dial of q is, and where it goes if that is not after t.
//
// A named successor, or what the poll found in place of one, is dialled at q's own moment; from half of the window on the configured
// address takes turns with it while it fails. The deadline ends the pin, but not before one dial with it. If there is neither,
// something new can be expected at the configured address from half of the window on.
func (p *pin) plan(t tick, q *quest, here location) (at tick, to target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &p.a
	if !p.rememberedLocked(t) {
		return q.at, target{addr: p.configured}
	}
	to = target{addr: a.successor, number: a.number, named: true}
	unnamed := q.unnamed(a, here)
	if unnamed {
		to.addr, to.named = a.found, false
	}
	poll := unnamed && p.host != "" && !p.polling
	p.polling = p.polling || poll
	to.poll = poll
	inTurn := t < a.half() || t < a.deadline() && max(q.tries-1, 0)%2 == 0
	switch {
	case to.addr != "" && (q.tried != a.number || inTurn):
		return q.at, to
	case to.addr != "" || here.addr == "": // without a connection there is nothing to wait for
		return q.at, target{addr: p.configured, poll: poll}
	}
	if at = max(q.at, a.half().add(q.jitter)); q.again == maxAgain && p.host != "" {
		at = never // the last one is not spent by the clock: the poll may still find something
	}
	return at, target{addr: p.configured, poll: poll}
}

// unnamed says that q finds no other place named: none is, or the one where its connection was already when it set out.
func (q *quest) unnamed(a *announcement, here location) bool {
	there := a.successor == here.addr || a.successor == here.remote
	return a.successor == "" || there && (here.attempt < a.number || q.number == a.number)
}

// poll looks the configured host up, at once and then once a second while a bridge waits for that, for an address to which no connection
// that was told is connected. It ends when no announcement is remembered. waiting says whether a bridge waits; then found says that it
// need not any more.
func (p *pin) poll(ctx context.Context, r *net.Resolver, waiting func(a announcement, found bool) bool) {
	for pause := time.Duration(0); ; pause = time.Second {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		a := p.a
		p.polling = p.rememberedLocked(now())
		goOn := p.polling
		p.mu.Unlock()
		if !goOn {
			return
		}
		if a.found != "" || !waiting(a, false) {
			continue
		}
		lookup, cancel := context.WithTimeout(ctx, p.grace)
		ips, _ := r.LookupNetIP(lookup, "ip", p.host) // one that fails finds nothing
		if cancel(); p.find(a.number, ips) {
			waiting(a, true)
		}
	}
}

// find notes the first address to which no connection is connected that was told of announcement number.
func (p *pin) find(number uint64, ips []netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ip := range ips {
		if at := net.JoinHostPort(ip.Unmap().String(), p.port); p.a.number == number && !p.a.wasTold(at) {
			p.a.found = at
			return true
		}
	}
	return false
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
