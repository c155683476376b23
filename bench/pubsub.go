package main

// What a handoff does to those who wait: a subscriber that is sent numbered messages at a steady rate, and callers that are
// blocked in a pop when the move is announced. Messages and elements come past the client, directly to the server.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	redigo "github.com/gomodule/redigo/redis"
)

const (
	channel   = "bench:handoff:channel"
	pops      = 4                      // blocked at once
	popAhead  = 200 * time.Millisecond // before the announcement
	lastWords = 2 * time.Second        // for the last message to come
)

// audience is one subscriber and what it has heard.
type audience struct {
	stop context.CancelFunc
	gone chan error

	mu         sync.Mutex
	ready      bool // a message has come
	heard      []int
	last       int
	outOfOrder int
}

// subscribe returns when messages come.
func subscribe(m mover, publisher redigo.Conn) (*audience, error) {
	ctx, stop := context.WithCancel(context.Background())
	a := &audience{stop: stop, gone: make(chan error, 1)}
	go func() { a.gone <- m.Listen(ctx, channel, a.hear) }()
	for deadline := time.Now().Add(usual); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := publisher.Do("PUBLISH", channel, 0); err != nil {
			return nil, errors.Join(err, a.leave())
		}
		if a.isReady() {
			return a, nil
		}
	}
	return nil, errors.Join(errors.New("no message came"), a.leave())
}

func (a *audience) isReady() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ready
}

// hear takes numbers from 1 on, and 0 as a sign that it is subscribed.
func (a *audience) hear(payload string) {
	n, err := strconv.Atoi(payload)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready = true
	if err != nil || n < 1 {
		return
	}
	for len(a.heard) <= n {
		a.heard = append(a.heard, 0)
	}
	if a.heard[n]++; n < a.last && a.heard[n] == 1 {
		a.outOfOrder++
	}
	a.last = max(a.last, n)
}

func (a *audience) leave() error {
	a.stop()
	select {
	case err := <-a.gone:
		return err
	case <-time.After(patience):
		return errors.New("the subscriber did not leave")
	}
}

// await returns when message n has come, or is not going to.
func (a *audience) await(n int) {
	for deadline := time.Now().Add(lastWords); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		a.mu.Lock()
		come := a.last >= n
		a.mu.Unlock()
		if come {
			return
		}
	}
}

// miss says what did not come, or came again, of messages 1 to sent.
func (a *audience) miss(sent int) (missed, repeated, outOfOrder int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n := 1; n <= sent; n++ {
		switch {
		case n >= len(a.heard) || a.heard[n] == 0:
			missed++
		case a.heard[n] > 1:
			repeated += a.heard[n] - 1
		}
	}
	return missed, repeated, a.outOfOrder
}

// A broadcast sends numbered messages at times that are fixed beforehand, on a goroutine of its own.
type broadcast struct {
	over chan struct{}
	done chan struct{}
	sent int // read when done is closed, and so is
	err  error
}

func startBroadcast(c redigo.Conn, perSecond int) *broadcast {
	b := &broadcast{over: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(b.done)
		for began := time.Now(); b.err == nil; {
			due := began.Add(time.Duration(b.sent+1) * time.Second / time.Duration(perSecond))
			select {
			case <-b.over:
				return
			case <-time.After(time.Until(due)):
			}
			if _, b.err = c.Do("PUBLISH", channel, b.sent+1); b.err == nil {
				b.sent++
			}
		}
	}()
	return b
}

func (b *broadcast) end() (sent int, err error) {
	close(b.over)
	<-b.done
	return b.sent, b.err
}

// A popSet is some pops that are issued at one time and answered at another, both after the announcement.
type popSet struct {
	name       string
	issue, due time.Duration
}

// The names of the sets.
const (
	popsBefore = "pops from before the window"
	popsWithin = "pops that outlast the window"
)

// popSets are blocked at the announcement, and at the end of the window.
func popSets(z sizes) []popSet {
	return []popSet{
		{popsBefore, -popAhead, z.popAfter},
		{popsWithin, z.window / 2, z.window + z.tail/2},
	}
}

// The ways in which pops end.
const (
	popAnswered = "answered"
	popCut      = "cut"
	popTimedOut = "timed out"
	popOther    = "failed otherwise"
)

var popEnds = []string{popAnswered, popCut, popTimedOut, popOther}

// A waiting is a number of callers that are blocked in a pop each.
type waiting struct {
	set  popSet
	m    mover
	end  sync.WaitGroup
	errs [pops]error // one for each goroutine, until that has ended
}

// start has the pops issued. They give up by themselves well after they are due to be answered.
func (w *waiting) start() {
	for i := range w.errs {
		w.end.Go(func() {
			element, err := w.m.Pop(context.Background(), w.list(i), w.set.due-w.set.issue+lastWords)
			if err == nil && element != strconv.Itoa(i) {
				err = fmt.Errorf("popped %q", element)
			}
			w.errs[i] = err
		})
	}
}

func (w *waiting) list(i int) string { return fmt.Sprintf("bench:handoff:%s:%d", w.set.name, i) }

// answer gives each an element.
func (w *waiting) answer(c redigo.Conn) (err error) {
	for i := range pops {
		_, e := c.Do("RPUSH", w.list(i), i)
		err = errors.Join(err, e)
	}
	return err
}

// note says how they ended, when all have. What nobody popped is deleted.
func (w *waiting) note(r *handoffRun, c redigo.Conn) (err error) {
	if err := awaitEnd(&w.end, w.m); err != nil {
		return err
	}
	for _, way := range popEnds {
		r.figures[w.set.name+": "+way] = 0
	}
	for i, e := range w.errs {
		r.figures[w.set.name+": "+popEnd(e)]++
		if r.firstErr == nil {
			r.firstErr = e
		}
		_, e = c.Do("DEL", w.list(i))
		err = errors.Join(err, e)
	}
	return err
}

func popEnd(err error) string {
	switch {
	case err == nil:
		return popAnswered
	case isTimeout(err):
		return popTimedOut
	case isCut(err):
		return popCut
	}
	return popOther
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout() || strings.Contains(err.Error(), "timeout")
}

// isCut: the connection was lost under it.
func isCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || strings.Contains(err.Error(), "clos")
}
