package main

// Where a handoff takes place: relays before one server, the configured address that first leads to one and later to another of
// them, and two witnesses, one that counts dials and one that sees the last command on an old connection. A stage serves one run.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/baton/batontest"
)

// frontDoor is the address that the clients are configured with. It exists in the stage's dialer alone, and is an IP address, so
// that nobody looks it up.
const frontDoor = "192.0.2.1:6379"

// doorMoves is the part of the window after which the configured address leads to the new place: 8.6 s of 15 s were measured on
// Redis Enterprise.
const doorMoves = 8.6 / 15

type stage struct {
	old, next, third *batontest.Relay // third only takes part if the new place moves as well
	announced        time.Time        // set before the first announcement, read-only from then on
	latest           atomic.Int64     // the highest number of a connection
	leaving          atomic.Int64     // connections up to this number are from before the announcement; 0 before it
	lastOnOld        atomic.Int64     // when one of them brought a command last, in ns after the announcement
	doorTimers       []*time.Timer    // owned by who plays the scenario

	mu     sync.Mutex
	door   string      // where the configured address leads
	dialed []time.Time // of each attempt, whatever came of it
}

func newStage(target string) (*stage, error) {
	s := &stage{}
	s.old = batontest.NewRelay(target, batontest.OnCommand(s.witness))
	next, err := quietAddr()
	if err != nil {
		s.old.Close()
		return nil, err
	}
	s.next = s.old.Sibling(batontest.WithAddr(next))
	s.third = s.old.Sibling()
	s.door = s.old.Addr()
	return s, nil
}

func (s *stage) close() {
	for _, t := range s.doorTimers {
		t.Stop()
	}
	for _, r := range []*batontest.Relay{s.old, s.next, s.third} {
		r.Close()
	}
}

// witness runs on the connections' goroutines.
func (s *stage) witness(conn int, args []string) {
	switch leaving := s.leaving.Load(); {
	case leaving == 0:
		if id := int64(conn); id > s.latest.Load() {
			s.latest.Store(id) // an older one may win the race; then a few commands later this one comes again
		}
	case int64(conn) <= leaving && strings.EqualFold(args[0], "RPUSH"):
		s.lastOnOld.Store(int64(time.Since(s.announced)))
	}
}

// dial is what all clients connect with.
func (s *stage) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	s.dialed = append(s.dialed, time.Now())
	if addr == frontDoor {
		addr = s.door
	}
	s.mu.Unlock()
	return (&net.Dialer{Timeout: usual}).DialContext(ctx, network, addr)
}

// dials is how many attempts there were from the announcement on.
func (s *stage) dials() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.dialed {
		if at.After(s.announced) {
			n++
		}
	}
	return n
}

// begin is called once, right before the first announcement.
func (s *stage) begin() {
	s.announced = time.Now()
	s.leaving.Store(s.latest.Load())
}

// move has from announce that it moves, and later has the configured address follow.
func (s *stage) move(from, to *batontest.Relay, window time.Duration) {
	s.moveTo(from, to, to.Addr(), window)
}

// moveUnnamed does not say where to.
func (s *stage) moveUnnamed(from, to *batontest.Relay, window time.Duration) {
	s.moveTo(from, to, "", window)
}

func (s *stage) moveTo(from, to *batontest.Relay, name string, window time.Duration) {
	follow := time.Duration(doorMoves * float64(window))
	s.doorTimers = append(s.doorTimers, time.AfterFunc(follow, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.door = to.Addr()
	}))
	from.Move(name, window)
}

// quietAddr is a free address whose port is not one that the system gives to outgoing connections: of thousands of dials to a
// port that nobody listens on, one would connect to itself, and keep the port.
func quietAddr() (string, error) {
	const first, count, tries = 20000, 10000, 100
	for range tries {
		addr := fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(count))
		if ln, err := net.Listen("tcp", addr); err == nil {
			return addr, ln.Close()
		}
	}
	return "", fmt.Errorf("no free port from %d to %d", first, first+count)
}
