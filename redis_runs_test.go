package baton

// Longer runs against a real redis-server, which continuous integration makes, and go test ./... does not: they are skipped
// unless BATON_REDIS_RUNS=1 is set, and then a redis-server is required. They are paced by what has happened, and no result
// depends on how long anything takes.

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/baton/batontest"
)

// runRedis is startRedis, of a run.
func runRedis(t *testing.T, settings ...string) *redis {
	t.Helper()
	if os.Getenv("BATON_REDIS_RUNS") != "1" {
		t.Skip("BATON_REDIS_RUNS=1 makes it run")
	}
	t.Setenv("BATON_REQUIRE_REDIS", "1")
	return startRedis(t, settings...)
}

// What is announced again and again: from the third handoff on each waits for half of the window. The relays close what is
// left behind much later, so that a machine that stands still meanwhile is no failure; by then a lap of the ring is not over.
const (
	runWindow = time.Second
	runLate   = 9 * time.Second
	runLap    = 24 // relays
)

// runRing is relays before one server, between which a client goes round, so that the windows that are open at the same time are
// those of different relays.
type runRing struct {
	t      *testing.T
	relays []*batontest.Relay
	at     int
	over   []net.Conn // ends with the last window of a relay, which closes what is connected to it
	c      *Client
	events journal
}

func newRunRing(t *testing.T, target string, relays int, late time.Duration, change func(*Options)) *runRing {
	g := &runRing{t: t, over: make([]net.Conn, relays)}
	for i := range relays {
		if i == 0 {
			g.relays = append(g.relays, batontest.NewRelay(target, batontest.CloseAfter(late)))
		} else {
			g.relays = append(g.relays, g.relays[0].Sibling())
		}
		t.Cleanup(g.relays[i].Close)
	}
	o := Options{Addr: g.relays[0].Addr(), OnEvent: g.events.add}
	o.Maintenance.Mode = Enabled
	change(&o)
	g.c = dialOptions(t, o)
	return g
}

// move announces a move to the next relay.
func (g *runRing) move(window time.Duration) {
	g.t.Helper()
	from, next := g.relays[g.at], (g.at+1)%len(g.relays)
	if c := g.over[next]; c != nil { // its window is not over: it would cut off what came there
		io.Copy(io.Discard, c)
		c.Close()
	}
	c, err := net.Dial("tcp", from.Addr())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	g.over[g.at] = c
	from.Move(g.relays[next].Addr(), window)
	g.at = next
}

// undisturbed expects that so many replacements took over, and that this is all that happened.
func (g *runRing) undisturbed(handoffs uint64) {
	g.t.Helper()
	s := g.c.Stats()
	if s.Failed > 0 || s.TimedOut > 0 || s.Reconnects > 0 || s.HandoffsGivenUp > 0 || s.Handoffs != handoffs {
		g.t.Errorf("want %d handoffs and nothing else, have %+v", handoffs, s)
	}
	for _, kind := range []EventKind{EventLost, EventDialFailed, EventGivenUp} {
		if e := g.events.of(kind); len(e) > 0 {
			g.t.Errorf("events: %v", e)
		}
	}
}

// runEar is a subscriber to channels on which the numbers 1, 2, 3, … are published.
type runEar struct {
	t     *testing.T
	sub   *Subscription
	wg    sync.WaitGroup
	heard atomic.Int64
	gaps  atomic.Int64 // and what came behind each may have left out numbers

	last map[string]int // by channel, owned by the goroutine that listens
}

func runChannels(n int) (names []string) {
	for i := range n {
		names = append(names, "channel:"+strconv.Itoa(i))
	}
	return names
}

func newRunEar(t *testing.T, c *Client, channels []string) *runEar {
	t.Helper()
	sub, err := c.Subscribe(background, channels...)
	if err != nil {
		t.Fatal(err)
	}
	e := &runEar{t: t, sub: sub, last: map[string]int{}}
	e.wg.Go(func() {
		afterGap := map[string]bool{}
		for m, err := range sub.All(background) {
			switch n, bad := strconv.Atoi(string(m.Payload)); {
			case errors.Is(err, ErrClosed):
				return
			case errors.Is(err, ErrGap):
				e.gaps.Add(1)
				for _, channel := range channels {
					afterGap[channel] = true
				}
			case err != nil || bad != nil:
				t.Errorf("received %q, %v", m.Payload, err)
			default:
				if last := e.last[m.Channel]; n != last+1 && (!afterGap[m.Channel] || n <= last) {
					t.Errorf("%s: %d came behind %d", m.Channel, n, last)
				}
				e.last[m.Channel] = n
				delete(afterGap, m.Channel)
				e.heard.Add(1)
			}
		}
	})
	t.Cleanup(e.close)
	return e
}

func (e *runEar) close() {
	e.sub.Close()
	e.wg.Wait()
}

// further waits until so many more messages have come.
func (e *runEar) further(n int64) {
	e.t.Helper()
	from := e.heard.Load()
	eventually(e.t, fmt.Sprintf("%d more messages", n), func() bool { return e.heard.Load() >= from+n })
}

// runPublish publishes the next number on each channel, a tick apart, until what it returns is called, which returns the last number.
// It leaves out a tick when too much has not been heard yet, if that is said. A PUBLISH that failed is an error unless it may fail.
func runPublish(t *testing.T, c *Client, channels []string, tick time.Duration, tooMuch func(last int) bool, mayFail bool) (stop func() (last int)) {
	var n int
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		var b Batch
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-over:
				return
			}
			if tooMuch != nil && tooMuch(n) {
				continue
			}
			n++
			b.Reset()
			for _, channel := range channels {
				b.Add("PUBLISH", channel, n)
			}
			if _, err := c.DoBatch(background, &b); err != nil && !mayFail {
				t.Errorf("PUBLISH: %v", err)
			}
		}
	})
	var once sync.Once
	stop = func() int {
		once.Do(func() { close(over) })
		wg.Wait()
		return n
	}
	t.Cleanup(func() { stop() })
	return stop
}

// 10,000 messages a second, if the machine can.
func TestRedisRunMessagesThroughHandoffs(t *testing.T) {
	r := runRedis(t, "--client-output-buffer-limit", "pubsub 0 0 0")
	g := newRunRing(t, r.addr, runLap, runLate, func(o *Options) { o.MaxMessages = 1 << 20 }) // how fast the test reads is not what is tested
	channels := runChannels(100)
	e := newRunEar(t, g.c, channels)
	behind := func(last int) bool { return int64(last*len(channels)) > e.heard.Load()+5000 } // half a second: a machine that is slower gets less
	stop := runPublish(t, r.admin(), channels, 10*time.Millisecond, behind, false)
	const handoffs, moving = 100, 2 // connections: for commands and for subscriptions
	began := time.Now()
	for n := uint64(1); n <= handoffs; n++ {
		e.further(200)
		g.move(runWindow)
		eventually(t, fmt.Sprintf("handoff %d", n), func() bool { return g.c.Stats().Handoffs >= n*moving })
	}
	e.further(200)
	last := stop()
	eventually(t, "everything that was published", func() bool { return e.heard.Load() >= int64(last*len(channels)) })
	t.Logf("%d messages in %v", e.heard.Load(), time.Since(began).Round(time.Millisecond))
	e.close()
	for _, channel := range channels {
		if e.last[channel] != last {
			t.Errorf("%s: the last message is %d of %d", channel, e.last[channel], last)
		}
	}
	if n := e.gaps.Load(); n > 0 {
		t.Errorf("%d gaps were reported", n)
	}
	g.undisturbed(handoffs * moving)
}

// runTransfers moves amounts from one account to the other, in transactions that also count themselves, on a counter of each worker.
type runTransfers struct {
	t    *testing.T
	c    *Client
	over atomic.Bool
	wg   sync.WaitGroup

	acked, maybe, unsent []atomic.Int64 // by worker
	failures             sync.Map       // the errors' texts
}

const runSum = 1_000_000

func newRunTransfers(t *testing.T, c *Client, workers int) *runTransfers {
	t.Helper()
	x := &runTransfers{t: t, c: c, acked: make([]atomic.Int64, workers), maybe: make([]atomic.Int64, workers), unsent: make([]atomic.Int64, workers)}
	must(t, c, "MSET from "+strconv.Itoa(runSum)+" to 0")
	for w := range workers {
		x.wg.Go(func() {
			var b Batch
			for !x.over.Load() {
				x.transfer(&b, w)
			}
		})
	}
	t.Cleanup(func() { x.over.Store(true); x.wg.Wait() })
	return x
}

func (x *runTransfers) transfer(b *Batch, w int) {
	amount := rand.IntN(2001) - 1000
	b.Reset()
	b.Add("DECRBY", "from", amount)
	b.Add("INCRBY", "to", amount)
	b.Add("INCR", "transfers:"+strconv.Itoa(w))
	replies, err := x.c.DoTx(background, b)
	switch {
	case MaybeExecuted(err):
		x.maybe[w].Add(1)
	case err != nil:
		x.unsent[w].Add(1)
	default:
		from, err1 := replies[0].Int64()
		to, err2 := replies[1].Int64()
		n, err3 := replies[2].Int64()
		low := x.acked[w].Add(1)
		if high := low + x.maybe[w].Load(); from+to != runSum || n < low || n > high {
			x.t.Errorf("a transaction saw %d and %d, and was number %d, want %d together and number %d to %d (%v)",
				from, to, n, runSum, low, high, errors.Join(err1, err2, err3))
			x.over.Store(true)
		}
		return
	}
	x.failures.Store(err.Error(), true)
	time.Sleep(time.Millisecond) // what fails at once would fail a million times
}

func (x *runTransfers) done() (n int64) {
	for w := range x.acked {
		n += x.acked[w].Load()
	}
	return n
}

func (x *runTransfers) further(n int64) {
	x.t.Helper()
	from := x.done()
	eventually(x.t, fmt.Sprintf("%d more transactions", n), func() bool { return x.done() >= from+n || x.over.Load() })
}

// sum looks at both accounts at one moment, through another client.
func (x *runTransfers) sum(other *Client) {
	x.t.Helper()
	var b Batch
	b.Add("GET", "from")
	b.Add("GET", "to")
	replies, err := other.DoTx(background, &b)
	if err != nil {
		x.t.Errorf("looking at both accounts: %v", err)
		return
	}
	sum := 0
	for _, r := range replies {
		text, _ := r.Text()
		n, _ := strconv.Atoi(text)
		sum += n
	}
	if sum != runSum {
		x.t.Errorf("the accounts have %d, want %d", sum, runSum)
	}
}

// stop ends the load and compares what is stored with what was answered.
func (x *runTransfers) stop(other *Client) (maybe, unsent int64) {
	x.t.Helper()
	x.over.Store(true)
	x.wg.Wait()
	x.sum(other)
	for w := range x.acked {
		n, err := other.Do(background, "INCRBY", "transfers:"+strconv.Itoa(w), 0).Int64()
		if low, high := x.acked[w].Load(), x.acked[w].Load()+x.maybe[w].Load(); n < low || n > high || err != nil {
			x.t.Errorf("worker %d: %d transactions were executed, %d answered, and %d more may have been (%v)", w, n, low, high-low, err)
		}
		maybe, unsent = maybe+x.maybe[w].Load(), unsent+x.unsent[w].Load()
	}
	x.failures.Range(func(text, _ any) bool { x.t.Logf("failures: %s", text); return true })
	x.t.Logf("%d transactions, %d maybe executed, %d never sent", x.done(), maybe, unsent)
	return maybe, unsent
}

func TestRedisRunTransactionsThroughHandoffs(t *testing.T) {
	r := runRedis(t)
	g, other := newRunRing(t, r.addr, runLap, runLate, func(*Options) {}), r.admin()
	x := newRunTransfers(t, g.c, 16)
	const handoffs = 100
	for n := uint64(1); n <= handoffs; n++ {
		x.further(500)
		x.sum(other)
		g.move(runWindow)
		eventually(t, fmt.Sprintf("handoff %d", n), func() bool { return g.c.Stats().Handoffs >= n })
	}
	x.further(500)
	if maybe, unsent := x.stop(other); maybe > 0 || unsent > 0 {
		t.Errorf("%d transactions may have been executed, %d were never sent", maybe, unsent)
	}
	g.undisturbed(handoffs)
}

var runBlockedLine = regexp.MustCompile(`(?m)^.* flags=\w*b\w* .* cmd=brpop .*$`)

// runBlocked waits until so many BRPOPs are blocked at the server.
func runBlocked(t *testing.T, admin *Client, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d blocked pops", n), func() bool {
		list, err := admin.Do(background, "CLIENT", "LIST").Text()
		return err == nil && len(runBlockedLine.FindAllString(list, -1)) == n
	})
}

// runPop is BRPOP, later: its element.
func runPop(c *Client, list string, seconds int) (result func() batchResult) {
	return later(func() batchResult {
		reply := c.Do(background, "BRPOP", list, seconds)
		elems, err := reply.Elems()
		return batchResult{elems, err}
	})
}

// popped is what a pop returned, in words.
func (r batchResult) popped() string {
	if r.err != nil {
		return r.err.Error()
	}
	return spell(r.replies[len(r.replies)-1])
}

// runPopper pops numbers, which are pushed in order, so that one popped twice shows.
type runPopper struct {
	t      *testing.T
	over   atomic.Bool
	wg     sync.WaitGroup
	popped atomic.Int64
}

func newRunPopper(t *testing.T, c, pusher *Client) *runPopper {
	p := &runPopper{t: t}
	p.wg.Go(func() {
		for n := 1; !p.over.Load(); n++ {
			pusher.Do(background, "RPUSH", "numbers", n) // it may fail
			time.Sleep(time.Millisecond)
		}
	})
	p.wg.Go(func() {
		for last := int64(0); !p.over.Load(); {
			elems, err := c.Do(background, "BLPOP", "numbers", 1).Texts()
			if err != nil {
				continue // so may this, and then a number is missing
			}
			n, err := strconv.ParseInt(elems[1], 10, 64)
			if n <= last || err != nil {
				t.Errorf("%q was popped behind %d", elems[1], last)
			}
			last = n
			p.popped.Add(1)
		}
	})
	t.Cleanup(func() { p.over.Store(true); p.wg.Wait() })
	return p
}

func (p *runPopper) further(n int64) {
	p.t.Helper()
	from := p.popped.Load()
	eventually(p.t, fmt.Sprintf("%d more pops", n), func() bool { return p.popped.Load() >= from+n })
}

func TestRedisRunBlockedPopsAndAHandoff(t *testing.T) {
	r := runRedis(t)
	g, admin := newRunRing(t, r.addr, 2, 0, func(*Options) {}), r.admin()
	l := count(t, g.c, "k", 32)
	short, long := runPop(g.c, "short", 60), runPop(g.c, "long", 60) // the times are theirs if all else fails
	runBlocked(t, admin, 2)
	l.further(1000)
	g.move(15 * time.Second)
	eventually(t, "the handoff of three connections", func() bool { return g.c.Stats().Handoffs == 3 })
	eventually(t, "only the pops, and what waits for the end of the window, are at the old address", func() bool { return g.relays[0].Conns() == 3 })
	l.further(5000)
	must(t, admin, "RPUSH short a")
	if got := short().popped(); got != `"a"` {
		t.Errorf("the pop that was answered early in the window: %s", got)
	}
	fresh := runPop(g.c, "fresh", 60)
	runBlocked(t, admin, 2)
	l.further(5000)
	must(t, admin, "RPUSH fresh b", "RPUSH long c")
	if got := fresh().popped(); got != `"b"` {
		t.Errorf("the pop that began within the window: %s", got)
	}
	if got := long().popped(); got != `"c"` {
		t.Errorf("the pop that was answered late in the window: %s", got)
	}
	eventually(t, "nobody is left at the old address", func() bool { return g.relays[0].Conns() == 1 })
	if _, maybe, unsent := l.stop(); maybe > 0 || unsent > 0 {
		t.Errorf("%d commands may have been executed, %d were never sent", maybe, unsent)
	}
	g.undisturbed(3)
}

// What outlasts the window is cut, and pops nothing then.
func TestRedisRunABlockedPopOutlastsTheWindow(t *testing.T) {
	r := runRedis(t)
	g, admin := newRunRing(t, r.addr, 2, 0, func(*Options) {}), r.admin()
	l := count(t, g.c, "k", 32)
	pop := runPop(g.c, "list", 0)
	runBlocked(t, admin, 1)
	g.move(3 * time.Second)
	if got := pop(); !MaybeExecuted(got.err) {
		t.Errorf("the pop that was cut: %s, want an error that says maybe executed", got.popped())
	}
	runBlocked(t, admin, 0)
	must(t, admin, "RPUSH list a")
	if got := runPop(g.c, "list", 60)().popped(); got != `"a"` {
		t.Errorf("the next pop: %s, want what was pushed after the cut", got)
	}
	l.further(1000)
	if _, maybe, unsent := l.stop(); maybe > 0 || unsent > 0 {
		t.Errorf("%d commands may have been executed, %d were never sent", maybe, unsent)
	}
}

// The server is killed without notice in the middle of pops, a subscription, transactions and sessions, and started again.
func TestRedisRunKilled(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("", func(t *testing.T) {
		r := runRedis(t, "--appendonly", "yes", "--appendfsync", "no") // what was answered is in the file, which outlives the process
		c, admin := r.client(nil), r.admin()
		channels := runChannels(10)
		e := newRunEar(t, c, channels)
		runPublish(t, admin, channels, time.Millisecond, nil, true)
		x, p := newRunTransfers(t, c, 8), newRunPopper(t, c, admin)
		for kill := int64(1); kill <= 2; kill++ {
			x.further(500)
			e.further(500)
			p.further(100)
			pops := make([]func() batchResult, 4)
			for i := range pops {
				pops[i] = runPop(c, "list", 0)
			}
			runBlocked(t, admin, len(pops))
			idle, blocked := runSession(t, c), runSession(t, c)
			for _, command := range []string{"SET mine before", "WATCH mine", "GET mine"} {
				if err := idle.Do(background, words(command)...).Err(); err != nil {
					t.Fatalf("%s: %v", command, err)
				}
			}
			inSession := later(func() error { return blocked.Do(background, "BRPOP", "list", 0).Err() })
			runBlocked(t, admin, len(pops)+1)

			r.kill()
			for _, pop := range pops {
				if got := pop(); !MaybeExecuted(got.err) {
					t.Errorf("a pop that was blocked: %s, want an error that says maybe executed", got.popped())
				}
			}
			if err := inSession(); !MaybeExecuted(err) {
				t.Errorf("a pop that was blocked in a session: %v, want an error that says maybe executed", err)
			}
			runOver(t, idle)
			r.start()

			x.further(500)
			e.further(500)
			p.further(100)
			if n := e.gaps.Load(); n != kill {
				t.Errorf("%d gaps were reported after %d losses", n, kill)
			}
			runOver(t, idle) // also now
			must(t, c, "RPUSH list a")
			if got := runPop(c, "list", 60)().popped(); got != `"a"` {
				t.Errorf("a pop after the loss: %s", got)
			}
			if n, err := c.Do(background, "LLEN", "list").Int64(); n != 0 || err != nil {
				t.Errorf("%d elements are left, %v", n, err)
			}
			replies, err := c.Watch(background, []string{"mine"}, func(s *Session, b *Batch) error {
				text, err := s.Do(background, "GET", "mine").Text()
				b.Add("SET", "mine", text+" and after")
				b.Add("GET", "mine")
				return err
			})
			if err != nil || spell(replies[1]) != `"before and after"` {
				t.Errorf("a transaction that watches, after the loss: %v, %v", replies, err)
			}
		}
		if maybe, unsent := x.stop(admin); maybe > 2*8 || unsent > 0 { // each worker has one in flight
			t.Errorf("%d transactions may have been executed, want no more than were in flight; %d were never sent, though they could have waited", maybe, unsent)
		}
	})
	settled(t, before)
}

func runSession(t *testing.T, c *Client) *Session {
	t.Helper()
	s, err := c.Session(background)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// runOver expects that s has ended, or soon notices, and then says so of every call.
func runOver(t *testing.T, s *Session) {
	t.Helper()
	eventually(t, "the session knows that it has ended", func() bool { return errors.Is(s.Do(background, "PING").Err(), ErrNoConnection) })
	var b, exec Batch
	b.Add("SET", "mine", "torn")
	exec.Add("MULTI")
	exec.Add("SET", "mine", "torn")
	exec.Add("EXEC")
	_, tx := s.DoTx(background, &b)
	_, byHand := s.DoBatch(background, &exec)
	for call, err := range map[string]error{"DoTx": tx, "MULTI, SET, EXEC": byHand, "EXEC": s.Do(background, "EXEC").Err()} {
		if !errors.Is(err, ErrTxAborted) || MaybeExecuted(err) {
			t.Errorf("%s on a session whose server was killed: %v (maybe executed: %v), want ErrTxAborted, never sent", call, err, MaybeExecuted(err))
		}
	}
	if err := s.Do(background, "SET", "mine", "torn").Err(); !errors.Is(err, ErrNoConnection) || MaybeExecuted(err) {
		t.Errorf("SET on a session whose server was killed: %v (maybe executed: %v), want ErrNoConnection, never sent", err, MaybeExecuted(err))
	}
}
