package main

// This file holds the load of a soak. Everybody in the crew does one thing after the other, holds soaker.rest for reading meanwhile
// and nothing in between, and knows what each answer must be. What they keep is bounded: the soak must not be what rises.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/baton"
)

const (
	roamers    = 4 // whose contexts end
	batchers   = 2
	maxBatch   = 32
	watchers   = 2
	visitors   = 2 // who hold a session
	impatients = 8
	guests     = 4 // goroutines of the client that is dialled and closed

	// besideWorkers is how many INCRs can be in flight beside those of the workers.
	besideWorkers = roamers + batchers*maxBatch + impatients + guests + visitors

	// shortly is how long one thing may take: the load has to come to rest for a reading.
	shortly = 100 * time.Millisecond
)

// crew is everybody.
type crew struct {
	s         *soaker
	direct    *baton.Client // to the data
	impatient *baton.Client
	ended     time.Time
	end       sync.WaitGroup

	// Each is one goroutine's, and the conductor's while the load rests.
	counters []*worker // all but the workers of the load
	watched  []*worker // they count up the same counter
	strands  []*strand
	movers   []*mover
	accounts [2]string
	airs     []*air
}

func newCrew(ctx context.Context, s *soaker) (c *crew, err error) {
	c = &crew{s: s, accounts: [2]string(named(s.keys+"account:", 2))}
	if c.direct, err = baton.Dial(ctx, s.direct); err != nil {
		return nil, fmt.Errorf("connecting directly: %w", err)
	}
	o := s.shown
	o.Backlog, o.Timeout, o.Conns, o.MaxAge, o.KeepAlive = baton.FailFast, time.Second, 2, 7*time.Second, 2*time.Second
	if c.impatient, err = baton.Dial(ctx, o); err != nil {
		c.direct.Close()
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return c, nil
}

func (c *crew) close() {
	c.direct.Close()
	c.impatient.Close()
}

// counter is a counter of somebody's own.
func (c *crew) counter(name string) *worker {
	w := &worker{l: c.s.load, key: c.s.keys + name + strconv.Itoa(len(c.counters))}
	c.counters = append(c.counters, w)
	return w
}

// begin starts everybody.
func (c *crew) begin() {
	s := c.s
	for _, w := range s.load.workers {
		c.end.Go(func() { c.work(w) })
	}
	for i := range roamers {
		w := c.counter("roamer:")
		c.goes(i, time.Millisecond, func(r *rand.Rand) { c.roam(w, r) })
	}
	for i := range batchers {
		w, b := c.counter("batch:"), new(baton.Batch)
		c.goes(i, time.Millisecond, func(r *rand.Rand) { c.batch(w, b, r) })
	}
	for i := range watchers {
		w := &worker{key: s.keys + "watched"}
		c.watched = append(c.watched, w)
		c.goes(i, 10*time.Millisecond, func(*rand.Rand) { c.watch(w) })
	}
	for i := range visitors {
		w := c.counter("session:")
		c.goes(i, 20*time.Millisecond, func(*rand.Rand) { c.visit(w) })
	}
	for i := range impatients {
		w := c.counter("impatient:")
		c.goes(i, time.Millisecond, func(*rand.Rand) { c.beImpatient(w) })
	}
	for i := range 2 {
		q := c.strand("pops:")
		c.goes(i, 5*time.Millisecond, func(r *rand.Rand) { c.pushAndPop(q, r) })
	}
	for i := range 2 {
		c.goes(i, 10*time.Millisecond, func(r *rand.Rand) { c.comeAndGo(s.keys+"passing:"+strconv.Itoa(i), r) })
	}
	var own []*worker
	for range guests {
		own = append(own, c.counter("guest:"))
	}
	c.goes(0, 20*time.Millisecond, func(r *rand.Rand) { c.dialAndClose(own, r) })
	if s.cfg.mix {
		c.beginMix()
	}
}

// goes has something done over and over, until the load is over, with pauses. The same seed gives everybody the same chances.
func (c *crew) goes(index int, every time.Duration, once func(*rand.Rand)) {
	r := rand.New(rand.NewPCG(c.s.cfg.seed, uint64(index+1)))
	c.end.Go(func() {
		for {
			select {
			case <-c.s.load.over:
				return
			default:
			}
			c.s.rest.RLock()
			once(r)
			c.s.rest.RUnlock()
			if every > 0 && !sleepUntil(c.s.load.over, time.Now().Add(every)) {
				return
			}
		}
	})
}

// upTo is a time below d.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// work is as worker.work, and rests.
func (c *crew) work(w *worker) {
	ctx := context.Background()
	incr, get := []any{"INCR", w.key}, []any{"GET", w.key}
	buf := make([]byte, 0, 32)
	pace := w.pacer()
	defer pace.stop()
	for n := int64(0); ; n++ {
		if w.l.rate > 0 {
			pace.wait(n)
		}
		select {
		case <-w.l.over:
			return
		default:
		}
		c.s.rest.RLock()
		began := time.Now()
		if n%4 != 3 || w.value == 0 {
			v, err := c.s.client.Do(ctx, incr...).Int64()
			c.counted("INCR", w, v, err, began, 0, hard)
		} else if text, err := c.s.client.DoAppend(ctx, buf, get...); err != nil {
			c.s.failed("GET", err, began, 0, hard)
		} else if err := w.expectText(text); err != nil {
			c.s.violate(wrongReply, err)
		}
		end := time.Now()
		w.noted[before].note(end.Sub(began), end.Sub(c.s.began))
		c.s.rest.RUnlock()
	}
}

// counted takes what an INCR of w's counter brought.
func (c *crew) counted(who string, w *worker, v int64, err error, began time.Time, unsent, sent grade) {
	if err == nil {
		w.done++
		if err := w.expect(v, 1); err != nil {
			c.s.violate(wrongReply, fmt.Errorf("%s: %w", who, err))
		}
		return
	}
	c.doubted(w, err)
	c.s.failed(who, err, began, unsent, sent)
}

// doubted notes that an INCR may have been executed, if so.
func (c *crew) doubted(w *worker, err error) {
	if baton.MaybeExecuted(err) {
		w.unsure++
		w.slack++
	}
}

// ofContext says whether a call ended by its own context.
func ofContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// roam increments with a context that ends at any moment, or was over before.
func (c *crew) roam(w *worker, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), upTo(r, 3*time.Millisecond))
	if r.IntN(4) == 0 {
		ctx, cancel = context.WithCancel(context.Background())
		time.AfterFunc(upTo(r, 3*time.Millisecond), cancel)
	}
	defer cancel()
	began := time.Now()
	v, err := c.s.client.Do(ctx, "INCR", w.key).Int64()
	if ctx.Err() != nil && ofContext(err) {
		c.doubted(w, err)
		c.s.left()
		return
	}
	c.counted("INCR with a context that ends", w, v, err, began, 0, hard)
}

func (c *crew) batch(w *worker, b *baton.Batch, r *rand.Rand) {
	b.Reset()
	n := 1 + r.IntN(maxBatch)
	for range n {
		b.Add("INCR", w.key)
	}
	began := time.Now()
	replies, err := c.s.client.DoBatch(context.Background(), b)
	if err != nil && replies == nil {
		for range n {
			c.doubted(w, err)
		}
		c.s.failed("a batch", err, began, 0, hard)
		return
	}
	for _, reply := range replies {
		v, err := reply.Int64()
		c.counted("a batch", w, v, err, began, 0, hard)
	}
}

// watch increments a counter that others increment, by WATCH. Sessions are cut at the end of a window.
func (c *crew) watch(w *worker) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	began := time.Now()
	_, err := c.s.client.Watch(ctx, []string{w.key}, func(s *baton.Session, b *baton.Batch) error {
		v, err := number(s.Do(ctx, "GET", w.key))
		b.Add("SET", w.key, v+1)
		return err
	})
	if err == nil {
		w.done++
		return
	}
	c.doubted(w, err)
	c.s.failed("Watch", err, began, windowEnd|hard, windowEnd|hard)
}

// number is a counter's value, 0 if it was never incremented.
func number(r baton.Reply) (int64, error) {
	text, err := r.Text()
	if errors.Is(err, baton.ErrNull) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// visit holds a session, which is never handed off: it ends with the window. Then every call fails at once, never sent.
func (c *crew) visit(w *worker) {
	const may = windowEnd | hard
	ctx, began := context.Background(), time.Now()
	session, err := c.s.client.Session(ctx)
	if err != nil {
		c.s.failed("Session", err, began, may, may)
		return
	}
	defer session.Close()
	for range 3 {
		v, err := session.Do(ctx, "INCR", w.key).Int64()
		if c.counted("a session's INCR", w, v, err, began, may, may); err != nil {
			if again := session.Do(ctx, "INCR", w.key).Err(); again == nil || baton.MaybeExecuted(again) {
				c.s.violate(wrongReply, fmt.Errorf("a session that has ended by %w still answers: %w", err, again))
			}
			return
		}
	}
	for _, command := range [][]any{{"MULTI"}, {"INCR", w.key}} {
		if err := session.Do(ctx, command...).Err(); err != nil {
			c.s.failed("a session's transaction", err, began, may, may)
			return
		}
	}
	results, err := session.Do(ctx, "EXEC").Elems()
	v := int64(0)
	if err == nil {
		v, err = results[0].Int64()
	}
	c.counted("a session's EXEC", w, v, err, began, may, may)
}

// beImpatient increments on a client that fails fast, and has little time for servers that are slow.
func (c *crew) beImpatient(w *worker) {
	const may = hard | sluggish
	began := time.Now()
	v, err := c.impatient.Do(context.Background(), "INCR", w.key).Int64()
	if errors.Is(err, baton.ErrTimeout) {
		c.doubted(w, err)
		c.s.left()
		return
	}
	c.counted("an impatient INCR", w, v, err, began, may, may)
	if err != nil {
		sleepUntil(c.s.load.over, time.Now().Add(shortly/4)) // it failed at once, and the next one would
	}
}

// dialAndClose has a client of its own for a moment, and closes it in the middle of its work.
func (c *crew) dialAndClose(own []*worker, r *rand.Rand) {
	o := c.s.shown
	o.Conns, o.Backlog = 1+r.IntN(2), baton.BacklogPolicy(r.IntN(2))
	began := time.Now()
	client, err := baton.Dial(context.Background(), o)
	if err != nil {
		c.s.failed("Dial", err, began, hard, hard)
		return
	}
	var end sync.WaitGroup
	for _, w := range own {
		end.Go(func() {
			for err := error(nil); err == nil; {
				var v int64
				start := time.Now()
				if v, err = client.Do(context.Background(), "INCR", w.key).Int64(); errors.Is(err, baton.ErrClosed) {
					c.doubted(w, err)
				} else {
					c.counted("an INCR of a guest", w, v, err, start, hard, hard)
				}
			}
		})
	}
	end.Go(func() {
		sub, err := client.Subscribe(context.Background(), c.s.keys+"nothing")
		for err == nil {
			_, err = sub.Receive(context.Background())
		}
		if !errors.Is(err, baton.ErrClosed) {
			c.s.failed("a guest's subscription", err, began, hard, hard)
		}
	})
	time.Sleep(upTo(r, shortly/2))
	if r.IntN(2) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), upTo(r, shortly/10))
		client.Shutdown(ctx)
		cancel()
	}
	client.Close()
	end.Wait()
}

// comeAndGo subscribes to a channel, hears what is published on it, and leaves.
func (c *crew) comeAndGo(channel string, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	began := time.Now()
	sub, err := c.s.client.Subscribe(ctx, channel)
	if err == nil && r.IntN(2) == 0 {
		err = errors.Join(sub.Add(ctx, channel+":more"), sub.Remove(ctx, channel+":more"))
	}
	if sub != nil {
		defer sub.Close()
	}
	if err != nil {
		c.s.failed("Subscribe", err, began, hard, hard)
		return
	}
	turn := strconv.FormatUint(r.Uint64(), 36) + ":" // so that what comes late of an earlier one is not taken for this one's
	certain := make(map[int]bool)
	last := 0
	for n := 1; n <= 1+r.IntN(20); n++ {
		if err := c.s.client.Do(ctx, "PUBLISH", channel, turn+strconv.Itoa(n)).Err(); err != nil {
			c.s.failed("PUBLISH", err, began, 0, hard)
			continue
		}
		certain[n], last = true, n
	}
	c.listen(ctx, sub, turn, certain, last, began)
}

// listen returns when it has heard the last message, or it is not to be expected any more.
func (c *crew) listen(ctx context.Context, sub *baton.Subscription, turn string, certain map[int]bool, last int, began time.Time) {
	for heard := 0; heard < last; {
		m, err := sub.Receive(ctx)
		if err != nil {
			c.s.failed("a subscription that comes and goes", err, began, hard, hard)
			return
		}
		text, mine := strings.CutPrefix(string(m.Payload), turn)
		n, err := strconv.Atoi(text)
		if !mine {
			continue
		}
		if err != nil || n <= heard {
			c.s.violate(repeated, fmt.Errorf("%q came after %d on a subscription that comes and goes", m.Payload, heard))
		}
		for skipped := heard + 1; skipped < n; skipped++ {
			if certain[skipped] {
				c.s.violate(missed, fmt.Errorf("number %d before %d on a subscription that comes and goes", skipped, n))
			}
		}
		heard = max(heard, n)
	}
}

// A strand is a list to which numbers are pushed in their order, and from which one popper takes them.
type strand struct {
	key string

	mu                    sync.Mutex
	sent, last            int          // the highest that was pushed, and popped
	owed                  map[int]bool // pushed, perhaps, and not popped
	forgotten             int          // of these, so far behind that they will not come
	unsurePush, unsurePop int          // that failed, maybe executed
}

func (c *crew) strand(name string) *strand {
	q := &strand{key: c.s.keys + name + strconv.Itoa(len(c.strands)), owed: map[int]bool{}}
	c.strands = append(c.strands, q)
	return q
}

// push pushes the next number.
func (c *crew) push(q *strand, by *baton.Client, sent grade) {
	q.mu.Lock()
	q.sent++
	n := q.sent
	q.owed[n] = true
	q.mu.Unlock()
	began := time.Now()
	err := by.Do(context.Background(), "RPUSH", q.key, n).Err()
	if err == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if baton.MaybeExecuted(err) {
		q.unsurePush++
	} else {
		delete(q.owed, n)
	}
	c.s.failed("RPUSH", err, began, 0, sent)
}

// pop takes a number, if one comes in time.
func (c *crew) pop(q *strand, wait time.Duration) {
	began := time.Now()
	reply, err := c.s.client.Do(context.Background(), "BLPOP", q.key, wait.Seconds()).Texts()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err == nil && len(reply) == 2 && reply[0] == q.key:
		q.takeLocked(c.s, reply[1])
	case err == nil:
		c.s.violate(wrongReply, fmt.Errorf("BLPOP %s was answered with %q", q.key, reply))
	case errors.Is(err, baton.ErrNull):
	default:
		if baton.MaybeExecuted(err) {
			q.unsurePop++
		}
		c.s.failed("BLPOP", err, began, 0, hard)
	}
}

func (q *strand) takeLocked(s *soaker, text string) {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil || n < 1 || n > q.sent:
		s.violate(wrongReply, fmt.Errorf("%q was popped from %s, to which 1 to %d were pushed", text, q.key, q.sent))
		return
	case !q.owed[n]:
		s.violate(executedTwice, fmt.Errorf("%d was popped from %s again", n, q.key))
	case n < q.last && q.unsurePush == 0:
		s.violate(wrongReply, fmt.Errorf("%d was popped from %s behind %d", n, q.key, q.last))
	}
	delete(q.owed, n)
	const farBehind = 1000
	for old := range q.owed {
		if old < q.last-farBehind {
			delete(q.owed, old)
			q.forgotten++
		}
	}
	q.last = max(q.last, n)
}

// pushAndPop blocks for what never comes, with a context that ends before or after that, or for what is there. No element is popped for
// somebody who leaves: that could be lost.
func (c *crew) pushAndPop(q *strand, r *rand.Rand) {
	wait := 10*time.Millisecond + upTo(r, shortly/2)
	if r.IntN(2) == 0 {
		c.push(q, c.s.client, hard)
		c.pop(q, wait)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), upTo(r, 2*wait))
	defer cancel()
	began := time.Now()
	switch reply := c.s.client.Do(ctx, "BLPOP", q.key+":nothing", wait.Seconds()); {
	case ctx.Err() != nil && ofContext(reply.Err()):
		c.s.left()
	case reply.Err() != nil:
		c.s.failed("BLPOP", reply.Err(), began, 0, hard)
	case !reply.IsNull():
		c.s.violate(wrongReply, errors.New("something was popped from an empty list"))
	}
}

// An air is a channel that is listened to all along.
type air struct {
	channel  string
	sent     int
	last     int  // heard
	gap      bool // some may be missing before the next, as the subscription was told
	over     bool // the ending was heard
	listened chan struct{}
}

// beginMix adds what -mix does: lists that fill by themselves, channels that are listened to all along, and transactions.
func (c *crew) beginMix() {
	s := c.s
	for range mixLists {
		q := c.strand("list:")
		c.goes(0, pushEvery, func(*rand.Rand) { c.push(q, c.direct, 0) })
		c.goes(0, 0, func(*rand.Rand) { c.pop(q, shortly) })
	}
	for range mixMovers {
		v, b := new(mover), new(baton.Batch)
		c.movers = append(c.movers, v)
		c.goes(len(c.movers), moveEvery, func(r *rand.Rand) { c.transfer(v, b, r) })
	}
	sub, err := s.client.Subscribe(context.Background(), named(s.keys+"channel:", mixChannels)...)
	if err != nil {
		s.violate(excluded, fmt.Errorf("subscribing: %w", err))
		return
	}
	heard := map[string]*air{}
	done := make(chan struct{})
	for _, channel := range named(s.keys+"channel:", mixChannels) {
		a := &air{channel: channel, listened: done}
		c.airs, heard[channel] = append(c.airs, a), a
	}
	c.goes(0, publishEvery, func(*rand.Rand) { c.publish() })
	go func() {
		defer close(done)
		defer sub.Close()
		c.listenAllAlong(sub, heard)
	}()
}

// publish says the next number on each channel.
func (c *crew) publish() {
	for _, a := range c.airs {
		a.sent++
		began := time.Now()
		if err := c.direct.Do(context.Background(), "PUBLISH", a.channel, a.sent).Err(); err != nil {
			c.s.failed("a PUBLISH past all faults", err, began, 0, 0)
		}
	}
}

// listenAllAlong returns when every ending was heard, or the client is closed.
func (c *crew) listenAllAlong(sub *baton.Subscription, heard map[string]*air) {
	for open := len(heard); open > 0; {
		m, err := sub.Receive(context.Background())
		if errors.Is(err, baton.ErrClosed) {
			return
		}
		if errors.Is(err, baton.ErrGap) {
			for _, a := range heard {
				a.gap = true
			}
		}
		if err != nil {
			c.s.failed("the subscription", err, time.Now(), hard, hard)
			continue
		}
		a := heard[m.Channel]
		switch {
		case a == nil:
			c.s.violate(wrongReply, fmt.Errorf("a message on channel %q, which nobody subscribed to", m.Channel))
		case string(m.Payload) != ending:
			a.hear(c.s, string(m.Payload))
		case !a.over:
			a.over = true
			open--
		}
	}
}

func (a *air) hear(s *soaker, text string) {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		s.violate(wrongReply, fmt.Errorf("%q on channel %s is not what was sent", text, a.channel))
		return
	case n <= a.last:
		s.violate(repeated, fmt.Errorf("%d came after %d on channel %s", n, a.last, a.channel))
	case n > a.last+1 && !a.gap:
		s.violate(missed, fmt.Errorf("%d came after %d on channel %s", n, a.last, a.channel))
	}
	a.last, a.gap = max(a.last, n), false
}

// transfer moves an amount from one account to the other, in a transaction that sees their sum.
func (c *crew) transfer(v *mover, b *baton.Batch, r *rand.Rand) {
	amount := r.IntN(2001) - 1000
	b.Reset()
	b.Add("DECRBY", c.accounts[0], amount)
	b.Add("INCRBY", c.accounts[1], amount)
	began := time.Now()
	replies, err := c.s.client.DoTx(context.Background(), b)
	if err != nil {
		c.s.failed("a transaction", err, began, 0, hard)
	} else if err := checkSum(replies); err != nil {
		c.s.violate(wrongReply, err)
	}
	v.moved++
}

// finish returns when everybody has ended, and compares what they were told with what is stored.
func (c *crew) finish() error {
	ended := make(chan struct{})
	go func() {
		c.end.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(callsEnd):
		return fmt.Errorf("a call has not ended after %v", callsEnd)
	}
	c.ended = time.Now()
	c.hearEndings()
	c.s.client.Close()
	c.impatient.Close()
	for _, p := range c.s.places[:3] {
		p.Close() // what was sent and not answered comes now or never
	}
	time.Sleep(shortly) // or, at a real server, in a moment
	return c.readBack()
}

// hearEndings says the end on each channel until it is heard: a subscription that was just cut has to come back first.
func (c *crew) hearEndings() {
	if len(c.airs) == 0 {
		return
	}
	for until := time.Now().Add(2 * afterwards); time.Now().Before(until); time.Sleep(shortly / 2) {
		select {
		case <-c.airs[0].listened:
			return
		default:
		}
		for _, a := range c.airs {
			c.direct.Do(context.Background(), "PUBLISH", a.channel, ending)
		}
	}
	c.s.violate(missed, errors.New("the end was not heard on every channel"))
}

// readBack looks at everything that is stored, and deletes it.
func (c *crew) readBack() error {
	for _, w := range slices.Concat(c.s.load.workers, c.counters) {
		if err := c.compare(w.key, w.done, w.unsure); err != nil {
			return err
		}
	}
	done, unsure := int64(0), int64(0)
	for _, w := range c.watched {
		done, unsure = done+w.done, unsure+w.unsure
	}
	if err := c.compare(c.s.keys+"watched", done, unsure); err != nil {
		return err
	}
	for _, q := range c.strands {
		if err := c.settle(q); err != nil {
			return err
		}
	}
	var b baton.Batch
	for _, account := range c.accounts {
		b.Add("GETDEL", account)
	}
	replies, err := c.direct.DoBatch(context.Background(), &b)
	if err == nil {
		if err := checkSum(replies); err != nil {
			c.s.violate(wrongReply, err)
		}
	}
	return err
}

func (c *crew) compare(key string, done, unsure int64) error {
	stored, err := number(c.direct.Do(context.Background(), "GETDEL", key))
	if err != nil {
		return fmt.Errorf("reading back what was stored: %w", err)
	}
	less, more := compare(stored, done, unsure)
	for v, n := range map[violation]int64{lost: less, executedTwice: more} {
		if n > 0 {
			c.s.violate(v, fmt.Errorf("%s is %d, after %d that were answered and %d that may have been executed", key, stored, done, unsure))
		}
	}
	return nil
}

// settle looks for what was pushed, not popped, and is not there.
func (c *crew) settle(q *strand) error {
	left, err := c.direct.Do(context.Background(), "LRANGE", q.key, 0, -1).Texts()
	if err != nil {
		return fmt.Errorf("reading back what was stored: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, text := range left {
		q.takeLocked(c.s, text)
	}
	if gone := len(q.owed) + q.forgotten - q.unsurePush - q.unsurePop; gone > 0 {
		c.s.violate(lost, fmt.Errorf("%d numbers of %s were pushed and never came, of %d", gone, q.key, q.sent))
	}
	return c.direct.Do(context.Background(), "DEL", q.key).Err()
}

// commands is how many the workers have sent. It is called while the load rests, as is latencies.
func (c *crew) commands() (n uint64) {
	for _, w := range c.s.load.workers {
		n += w.noted[before].count
	}
	return n
}

func (c *crew) latencies() (h histogram) {
	for _, w := range c.s.load.workers {
		h.add(&w.noted[before])
	}
	return h
}
