package baton

// This file holds the message, one call of a user on its way to a server and back, and the queue in which messages wait: the bridge's
// backlog of unwritten ones and each connection's queue of those in flight. The bridge's lock guards both. Nothing here knows a socket.

import (
	"slices"
	"sync"
	"time"
)

// BacklogPolicy says what happens to a command given while there is no connection.
type BacklogPolicy uint8

const (
	Queue    BacklogPolicy = iota // it waits for the next connection, within its context and Timeout
	FailFast                      // it fails with ErrNoConnection, never sent; not during a handoff
)

// maxCopy is the most that is copied under the lock, about 5 µs; what is larger travels by reference.
const maxCopy = 64 << 10

// place says who owns a message. It is guarded by the lock of the bridge that the message was given to.
//
//	withCaller  not given yet, or given up while queued    → queued, inFlight: the caller gives it
//	queued      the bridge's: it stands in the backlog     → inFlight: written; withCaller: given up; popped: failed
//	inFlight    the bridge's: written, or about to be      → popped: answered or cut; queued: returned unsent
//	popped      the reader's (or whoever cut it off), until its signal; then the caller's again
type place uint8

const (
	withCaller place = iota
	queued
	inFlight
	popped
)

// signal is what wakes the caller of a message.
type signal uint8

const (
	done signal = iota // the message is the caller's again, and nobody else touches it from now on; sent exactly once, by who popped it
	look               // the sweep or Close wants the caller to give up; sent under the lock, while no signal waits to be received
)

// message is one command, batch or internal command: bytes to write and replies to come. Only its owner completes or recycles it (see
// place). One that is given up in flight is abandoned, and recycled by whoever pops it, so that its reply still has a place in line.
type message struct {
	// Guarded by the bridge's lock. What the reader needs to find out whose replies came stands in the first two lines of the processor's cache:
	// another processor wrote it, and with many callers the transfer of such lines is much of what a command costs.
	next, prev *message
	place      place
	abandoned  bool // nobody waits for it

	// Set before the message is given away, then left alone until it is recycled. The bytes are its own: no argument is read after its call.
	fence     bool // a PING, behind commands that are answered by push frames or errors: Timeout is not for it
	appending bool // the reply's text is appended to dst instead of becoming reply
	want      int  // replies that answer it

	got        int   // replies assigned to it so far; with the next two guarded by the lock, again
	left       int   // of a fence: commands before it that are not answered yet
	begin, end int64 // where it stands in its connection's count of bytes, while in flight

	buf   []byte
	start tick
	span  time.Duration // that it may take by itself, since it blocks: then it has its connection to itself, or to its session; 0: it does not

	signals chan signal // of capacity two, so that neither done nor the one look that can stand before it ever blocks
	pool    *sync.Pool  // where it goes when it is recycled

	// Written by the reader while it delivers, by whoever pops the message before the signal, and read by the caller after it.
	// An abandoned message's caller never looks again, so dst is not written then.
	reply   Reply
	replies []Reply // of a batch: want long
	dst     []byte
	err     error
}

// newMessage takes a message for want replies from its client's own pool: a channel of one bubble of virtual time is no use in another.
func newMessage(pool *sync.Pool, want int) *message {
	m, ok := pool.Get().(*message)
	if !ok {
		m = &message{pool: pool, signals: make(chan signal, 2)}
	}
	m.want = want
	return m
}

// recycle gives m back to its pool. Its owner calls it, after the done signal was received if one was due.
func (m *message) recycle() {
	for len(m.signals) > 0 { // a look that nobody received
		<-m.signals
	}
	buf := m.buf[:0]
	if cap(buf) > 1<<20 { // rare in its size
		buf = nil
	}
	*m = message{buf: buf, signals: m.signals, pool: m.pool}
	m.pool.Put(m)
}

// failAll completes popped messages, which were sent or not, with the cause of their failure. The replies that came stay.
func failAll(cut []*message, cause error, sent bool) {
	for _, m := range cut {
		if m.abandoned {
			m.recycle()
			continue
		}
		m.err = &commandError{cause, sent}
		for i := m.got; i < len(m.replies); i++ {
			m.replies[i] = failure(m.err)
		}
		m.signals <- done
	}
}

// attended counts the commands among messages that were cut for which somebody still waits.
func attended(cut []*message) (commands int) {
	for _, m := range cut {
		if !m.abandoned {
			commands += m.want - m.got
		}
	}
	return commands
}

// queue is a list of messages, oldest first, that can lose any of them. It is guarded by the bridge's lock.
//
//	Q1  it is linked both ways, and empty at both ends or at none
//	Q2  commands and bytes are the sums over its messages
//	Q3  each of them is where its place says, and lacks a reply
//	Q4  in the backlog nothing is abandoned or partly answered
type queue struct {
	head, tail *message
	commands   int // replies awaited by all together
	bytes      int
}

func (q *queue) empty() bool { return q.head == nil }

// attendedLocked says whether anybody waits for one of them.
func (q *queue) attendedLocked() bool {
	m := q.head
	for m != nil && m.abandoned {
		m = m.next
	}
	return m != nil
}

func (q *queue) pushLocked(m *message, p place) { q.insertLocked(m, q.tail, p) }

// nextLocked is where the queue notes what stands behind m, and prevLocked what stands before it; nil is beyond either end.
func (q *queue) nextLocked(m *message) **message {
	if m == nil {
		return &q.head
	}
	return &m.next
}

func (q *queue) prevLocked(m *message) **message {
	if m == nil {
		return &q.tail
	}
	return &m.prev
}

// insertLocked puts m behind after, nil being the front; its new owner is p's.
func (q *queue) insertLocked(m, after *message, p place) {
	m.prev, m.next, m.place = after, *q.nextLocked(after), p
	*q.nextLocked(m.prev), *q.prevLocked(m.next) = m, m
	q.commands += m.want
	q.bytes += len(m.buf)
}

// removeLocked takes m out; its new owner is p's.
func (q *queue) removeLocked(m *message, p place) {
	*q.nextLocked(m.prev), *q.prevLocked(m.next) = m.next, m.prev
	m.prev, m.next, m.place = nil, nil, p
	q.commands -= m.want - m.got
	q.bytes -= len(m.buf)
}

// cutLocked takes m and all behind it out of the queue.
func (q *queue) cutLocked(m *message, p place) (cut []*message) {
	for m != nil {
		next := m.next
		q.removeLocked(m, p)
		cut, m = append(cut, m), next
	}
	return cut
}

// returnLocked puts what a connection did not send back at the head of the backlog, in order, and counts the commands. What was given up is recycled.
func (q *queue) returnLocked(unsent []*message) (commands int) {
	for _, m := range slices.Backward(unsent) {
		commands += m.want
		if m.abandoned {
			m.recycle()
		} else {
			q.insertLocked(m, nil, queued)
		}
	}
	return commands
}

// admitsLocked says whether m may join a backlog with such bounds. An empty one takes anything: what is larger can be sent at all.
func (q *queue) admitsLocked(m *message, commands, bytes int) bool {
	return q.empty() || q.commands+m.want <= commands && q.bytes+len(m.buf) <= bytes
}

// sweepLocked wakes the callers of messages whose own time was over at limit; what stands in line since before from counts as begun then.
// Nothing overtakes in a queue, so it goes on only while it finds some, or passes what blocks or is a fence: mostly it looks at the head.
func (q *queue) sweepLocked(from, limit tick) {
	for m := q.head; m != nil; m = m.next {
		due := max(m.start, from).add(m.span) <= limit && (!m.fence || limit == never)
		if !due && m.span == 0 && !m.fence {
			return
		}
		if due && !m.abandoned && len(m.signals) == 0 {
			m.signals <- look
		}
	}
}
