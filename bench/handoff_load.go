package main

// The load of a handoff: callers that each push one number after the other onto a list of their own. What the lists hold
// afterwards shows what was executed, and how often; what the callers were told shows what should have been. Each caller notes
// for itself, and shares two words that it only reads.

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	redigo "github.com/gomodule/redigo/redis"
)

// slot is how finely latencies are kept over time.
const slot = 10 * time.Millisecond

type pushLoad struct {
	// Set before the callers start.
	m       mover
	callers []*pushCaller
	began   time.Time

	counts    atomic.Bool  // false: warming up
	announced atomic.Int64 // in ns since began; 0: not yet
	over      atomic.Bool
	end       sync.WaitGroup
}

type pushCaller struct {
	list string

	// Owned by the caller's goroutine, and read when that has ended.
	sent          int          // the numbers 1 to sent were pushed
	failed        map[int]bool // of them
	firstErr      error
	before, after time.Duration // the longest command: before the announcement, and what ended after it
	afterAt       time.Duration // when the latter ended
	longest       []uint32      // by slot: the longest command that was under way in it, in µs
	failedIn      map[int]int   // by slot
}

// startPushes has callers push, for about as long as lasts.
func startPushes(m mover, callers int, lasts time.Duration) *pushLoad {
	l := &pushLoad{m: m, began: time.Now()}
	for i := range callers {
		l.callers = append(l.callers, &pushCaller{
			list:     "bench:handoff:" + strconv.Itoa(i),
			failed:   map[int]bool{},
			failedIn: map[int]int{},
			longest:  make([]uint32, int((lasts+patience)/slot)),
		})
	}
	for _, c := range l.callers {
		l.end.Go(func() { c.push(l) })
	}
	return l
}

func (c *pushCaller) push(l *pushLoad) {
	ctx := context.Background()
	start := time.Since(l.began)
	for !l.over.Load() {
		c.sent++
		err := l.m.Append(ctx, c.list, c.sent)
		end := time.Since(l.began)
		if err != nil {
			c.fail(err, int(end/slot))
		}
		c.note(l, start, end)
		start = end
	}
}

func (c *pushCaller) fail(err error, in int) {
	c.failed[c.sent] = true
	c.failedIn[in]++
	if c.firstErr == nil {
		c.firstErr = err
	}
}

func (c *pushCaller) note(l *pushLoad, start, end time.Duration) {
	took := end - start
	switch announced := time.Duration(l.announced.Load()); {
	case announced != 0 && end >= announced:
		if took > c.after {
			c.after, c.afterAt = took, end
		}
	case l.counts.Load():
		c.before = max(c.before, took)
	}
	for s := int(start / slot); s <= int(end/slot) && s < len(c.longest); s++ {
		c.longest[s] = max(c.longest[s], uint32(took/time.Microsecond))
	}
}

// announce is called right before the announcement.
func (l *pushLoad) announce() { l.announced.Store(int64(time.Since(l.began))) }

// finish ends the load and returns when all callers have returned.
func (l *pushLoad) finish() error {
	l.over.Store(true)
	return awaitEnd(&l.end, l.m)
}

// awaitEnd returns when all of end have, or an error. It closes their client when they take too long.
func awaitEnd(end *sync.WaitGroup, m mover) error {
	if returns(end) {
		return nil
	}
	m.Close()
	if returns(end) {
		return nil
	}
	return errHangs
}

// A tally is what became of all commands of a load.
type tally struct {
	sent, failed  int
	twice         int // executions beyond the first of a command
	lost          int // commands that were answered and not executed
	before, after time.Duration
	afterAt       time.Duration
	longest       []uint32    // by slot, in µs
	failedIn      map[int]int // by slot
	announced     time.Duration
	firstErr      error
}

// settle compares what the callers were told with the lists at addr, and deletes those.
func (l *pushLoad) settle(addr string) (*tally, error) {
	c, err := redigo.Dial("tcp", addr, redigo.DialReadTimeout(patience))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t := &tally{
		longest:   make([]uint32, len(l.callers[0].longest)),
		failedIn:  map[int]int{},
		announced: time.Duration(l.announced.Load()),
	}
	for _, p := range l.callers {
		executed, err := readList(c, p.list, p.sent)
		if err != nil {
			return nil, err
		}
		t.add(p, executed)
	}
	return t, nil
}

// readList counts the numbers 1 to most in a list, and deletes it.
func readList(c redigo.Conn, list string, most int) (executed []uint8, err error) {
	const chunk = 10000
	executed = make([]uint8, most+1)
	for from := 0; ; from += chunk {
		numbers, err := redigo.Ints(c.Do("LRANGE", list, from, from+chunk-1))
		if err != nil {
			return nil, err
		}
		for _, n := range numbers {
			if n < 1 || n > most {
				return nil, fmt.Errorf("%s holds %d, and no more than %d was pushed", list, n, most)
			}
			executed[n]++
		}
		if len(numbers) < chunk {
			_, err = c.Do("DEL", list)
			return executed, err
		}
	}
}

func (t *tally) add(c *pushCaller, executed []uint8) {
	t.sent, t.failed = t.sent+c.sent, t.failed+len(c.failed)
	t.before = max(t.before, c.before)
	if c.after > t.after {
		t.after, t.afterAt = c.after, c.afterAt
	}
	if t.firstErr == nil {
		t.firstErr = c.firstErr
	}
	for n := 1; n <= c.sent; n++ {
		switch times := executed[n]; {
		case times > 1:
			t.twice += int(times) - 1
		case times == 0 && !c.failed[n]:
			t.lost++
		}
	}
	for s, took := range c.longest {
		t.longest[s] = max(t.longest[s], took)
	}
	for s, n := range c.failedIn {
		t.failedIn[s] += n
	}
}

// A moment is what was noted in one slot.
type moment struct {
	at      time.Duration // the slot's beginning, after the announcement
	longest time.Duration // of the commands that were under way in it
	failed  int           // commands that ended in it
}

// over is the moments between two times after the announcement.
func (t *tally) over(from, to time.Duration) (moments []moment) {
	for s, took := range t.longest {
		at := time.Duration(s)*slot - t.announced
		if at >= from && at < to && took > 0 {
			moments = append(moments, moment{at.Truncate(time.Microsecond), time.Duration(took) * time.Microsecond, t.failedIn[s]})
		}
	}
	return moments
}

// near is the longest command of those that were under way around the announcement, or around the end of the window.
func (t *tally) near(z sizes) (longest time.Duration) {
	const around = time.Second
	for _, m := range append(t.over(0, 2*around), t.over(z.window-around, wholeWindow(z))...) {
		longest = max(longest, m.longest)
	}
	return longest
}
