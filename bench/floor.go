package main

// The floor: what the socket and the server leave. One goroutine writes commands that are encoded already, another counts replies
// by their length, on one connection with as many operations in flight as there would be callers. There is no API, nothing is
// decoded, and nobody is woken, so it has no latencies. Clients can be faster where they need no second goroutine: with one caller.

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

const floorName = "floor"

// A floor repeats one operation.
type floor struct {
	nc       net.Conn
	requests []byte // as many as may be in flight
	depth    int
	reply    []byte // to one operation
	buf      []byte
	credits  chan int // operations that were answered, for the writer
}

// floorRead is how much is read at once: what the socket's buffer holds, if replies are large.
const floorRead = 256 << 10

func openFloor(addr string, request, reply string, depth int) (*floor, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	f := &floor{
		nc:       nc,
		requests: []byte(strings.Repeat(request, depth)),
		depth:    depth,
		reply:    []byte(reply),
		buf:      make([]byte, floorRead),
	}
	if err := f.try(); err != nil {
		nc.Close()
		return nil, err
	}
	return f, nil
}

// try does one operation and compares the reply: from here on the length is enough.
func (f *floor) try() error {
	if _, err := f.nc.Write(f.requests[:len(f.requests)/f.depth]); err != nil {
		return err
	}
	got := make([]byte, 0, len(f.reply))
	for len(got) < len(f.reply) {
		n, err := f.nc.Read(f.buf)
		if err != nil {
			return err
		}
		got = append(got, f.buf[:n]...)
	}
	if !bytes.Equal(got, f.reply) {
		return fmt.Errorf("floor: unexpected reply %.40q", got)
	}
	return nil
}

// take is as crowd.take.
func (f *floor) take(warmUp, counted time.Duration) (turn, error) {
	var w window
	failed := make(chan error, 2)
	f.credits = make(chan int, f.depth)
	f.credits <- f.depth
	ended := make(chan struct{})
	go func() { f.write(failed); close(ended) }()
	operations := make(chan int, 1)
	go func() { operations <- f.count(&w.phase, failed) }()
	err := w.pass(warmUp, counted, failed)
	if err != nil {
		f.nc.Close() // ends both
	}
	n := <-operations
	<-ended
	return w.turn(n), err
}

// write writes an operation for each credit, as many at once as there are. It ends when there will be no more.
func (f *floor) write(failed chan<- error) {
	request := len(f.requests) / f.depth
	for n := range f.credits {
		for more := true; more; {
			select {
			case k := <-f.credits: // 0 when it is closed
				n += k
				more = k > 0
			default:
				more = false
			}
		}
		if _, err := f.nc.Write(f.requests[:n*request]); err != nil {
			failed <- err
			return
		}
	}
}

// count reads replies until the turn is over and everything in flight has been answered.
func (f *floor) count(phase *atomic.Int32, failed chan<- error) (operations int) {
	closed, inFlight, unfinished := false, f.depth, 0 // unfinished: bytes of the reply that was read in part
	for inFlight > 0 {
		n, err := f.nc.Read(f.buf)
		if err != nil {
			failed <- err
			break
		}
		unfinished += n
		done := unfinished / len(f.reply)
		unfinished %= len(f.reply)
		switch now := phase.Load(); {
		case now == over:
			if !closed {
				closed = true
				close(f.credits)
			}
			inFlight -= done
			continue
		case now == counting:
			operations += done
		}
		if done > 0 {
			f.credits <- done
		}
	}
	if !closed {
		close(f.credits)
	}
	return operations
}

func (f *floor) Close() { f.nc.Close() }
