package main

// This file holds what -mix adds to the load: pops that block, published messages and transactions, on the client that is
// shown. What is popped and what is published comes numbered from a client of its own, directly to the data, so it is known
// what must arrive. Each part is a goroutine with what it notes for itself, read when it has ended. It has a pace of its own,
// whatever -rate is, and no part in the histograms: the stalls that are reported are those of ordinary commands.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"example.com/baton"
)

const (
	mixLists    = 4 // each has one goroutine that pops, so that it has an order
	mixChannels = 8
	mixMovers   = 4

	pushEvery    = 20 * time.Millisecond // a number to each list: pops wait most of the time
	publishEvery = 8 * time.Millisecond  // a number to each channel: 1,000 messages a second
	moveEvery    = 2 * time.Millisecond  // a transaction of each mover

	shortPop = 3 * time.Second // from the announcement to the answer, as in the next line, if the window is long enough
	longPop  = 12 * time.Second

	patience = 2 * time.Second // with what is on its way when the load is over, or overdue
)

// ending is what follows the numbers.
const ending = "end"

type mix struct {
	// Set by newMix and begin, read-only afterwards.
	client   *baton.Client // the one that is shown
	direct   *baton.Client // to the data
	sub      *baton.Subscription
	cfg      config
	l        *load
	accounts [2]string     // counters whose sum is 0
	pushed   chan struct{} // closed when no more is pushed to the lists

	end sync.WaitGroup

	// Each is one goroutine's until that has ended.
	pusher, publisher *producer
	lists             []*list
	long              []*list // the pops that are answered once, well after the announcement
	ear               ear
	movers            []*mover
	found             failures // in the data
}

// newMix subscribes, so that nothing is published before.
func newMix(ctx context.Context, client *baton.Client, cfg config, s *stage) (*mix, error) {
	m := &mix{client: client, cfg: cfg, pushed: make(chan struct{}), ear: ear{heard: map[string]*sequence{}}}
	m.accounts = [2]string(named(s.keys+"account:", 2))
	m.pusher = newProducer("RPUSH", pushEvery, named(s.keys+"list:", mixLists)...)
	for _, key := range m.pusher.names {
		m.lists = append(m.lists, &list{key: key, from: m.pusher})
	}
	for i, key := range named(s.keys+"long:", 2) {
		m.long = append(m.long, &list{key: key, from: newProducer("RPUSH", 0, key), after: cfg.longPops()[i]})
	}
	m.publisher = newProducer("PUBLISH", publishEvery, named(s.keys+"channel:", mixChannels)...)
	for _, channel := range m.publisher.names {
		m.ear.heard[channel] = &sequence{}
	}
	for range mixMovers {
		m.movers = append(m.movers, &mover{})
	}
	var err error
	if m.direct, err = baton.Dial(ctx, s.direct); err != nil {
		return nil, fmt.Errorf("connecting directly: %w", err)
	}
	if m.sub, err = client.Subscribe(ctx, m.publisher.names...); err != nil {
		m.direct.Close()
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	return m, nil
}

// named are n names.
func named(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, prefix+strconv.Itoa(i))
	}
	return names
}

// longPops are the times from the announcement until each of them is answered: before the window is over.
func (cfg *config) longPops() [2]time.Duration {
	long := min(longPop, cfg.window-margin)
	return [2]time.Duration{min(shortPop, long*2/3), long}
}

// begin starts everything, until l is over.
func (m *mix) begin(l *load) {
	m.l = l
	m.end.Go(func() {
		m.produce(m.pusher)
		close(m.pushed)
	})
	for _, q := range m.lists {
		m.end.Go(func() { m.popAll(q) })
	}
	for _, q := range m.long {
		m.end.Go(func() { m.answerLong(q) })
		m.end.Go(func() { m.popLong(q) })
	}
	published := make(chan struct{})
	m.end.Go(func() {
		m.produce(m.publisher)
		close(published)
	})
	heard := make(chan struct{})
	m.end.Go(func() {
		m.ear.listen(m.sub)
		close(heard)
	})
	m.end.Go(func() {
		<-published
		sleepUntil(heard, time.Now().Add(patience))
		m.sub.Close()
	})
	for _, v := range m.movers {
		m.end.Go(func() { m.move(v) })
	}
}

// finish returns when everything has ended, which it does when the load is over, and closes nothing but its own client.
func (m *mix) finish() error {
	m.end.Wait()
	defer m.direct.Close()
	return m.readBack()
}

// producer sends the numbers 1, 2, 3, … to each of its names.
type producer struct {
	command string // RPUSH or PUBLISH
	names   []string
	every   time.Duration

	failures
	sent   int          // the last number
	unsure map[int]bool // numbers that failed to be sent to some of the names
}

func newProducer(command string, every time.Duration, names ...string) *producer {
	return &producer{command: command, names: names, every: every, unsure: map[int]bool{}}
}

func (m *mix) produce(p *producer) {
	var b baton.Batch
	for sleepUntil(m.l.over, m.l.began.Add(time.Duration(p.sent+1)*p.every)) {
		p.sent++
		p.send(m.direct, &b, strconv.Itoa(p.sent))
	}
	p.send(m.direct, &b, ending)
}

func (p *producer) send(c *baton.Client, b *baton.Batch, what string) {
	b.Reset()
	for _, name := range p.names {
		b.Add(p.command, name, what)
	}
	replies, err := c.DoBatch(context.Background(), b)
	for _, r := range replies {
		err = errors.Join(err, r.Err())
	}
	if err != nil {
		p.unsure[p.sent] = true
		p.fail(err)
	}
}

// sequence is what has come of the numbers that a producer sends to one name.
type sequence struct {
	come                 []bool // by number
	max                  int
	repeated, outOfOrder int // numbers that had come before, and first came behind a higher one
}

// note takes a number, unless it is none, or far from all that were sent.
func (q *sequence) note(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > q.max+1<<20 {
		return fmt.Errorf("%q is not what was sent", text)
	}
	for len(q.come) <= n {
		q.come = append(q.come, false)
	}
	switch {
	case q.come[n]:
		q.repeated++
	case n < q.max:
		q.outOfOrder++
	}
	q.come[n], q.max = true, max(q.max, n)
	return nil
}

// missing are how many have not come, of the numbers that have certainly been sent.
func (q *sequence) missing(sent int, unsure map[int]bool) (missing int) {
	for n := 1; n <= sent; n++ {
		if (n >= len(q.come) || !q.come[n]) && !unsure[n] {
			missing++
		}
	}
	return missing
}

// list is a list on the server and who pops from it.
type list struct {
	key   string
	from  *producer
	after time.Duration // of a long pop: from the announcement to its answer

	failures
	popped sequence
	unsure int           // pops that failed, maybe executed
	waited time.Duration // the longest pop
}

// pop waits for an element, and returns it, or "" if none came.
func (q *list) pop(c *baton.Client, timeout time.Duration) string {
	start := time.Now()
	reply, err := c.Do(context.Background(), "BLPOP", q.key, timeout.Seconds()).Texts()
	q.waited = max(q.waited, time.Since(start))
	switch {
	case errors.Is(err, baton.ErrNull):
		return ""
	case err == nil && len(reply) == 2 && reply[0] == q.key:
		return reply[1]
	case err == nil:
		err = fmt.Errorf("BLPOP %s was answered with %q", q.key, reply)
	}
	if baton.MaybeExecuted(err) {
		q.unsure++
	}
	q.fail(err)
	return ""
}

// take notes what was popped.
func (q *list) take(text string) {
	if err := q.popped.note(text); err != nil {
		q.fail(fmt.Errorf("%s: %w", q.key, err))
	}
}

// popAll pops until everything that is pushed has come, or nothing comes any more.
func (m *mix) popAll(q *list) {
	for {
		switch text := q.pop(m.client, time.Second); text {
		case ending:
			return
		case "":
			select {
			case <-m.pushed:
				return
			default:
			}
		default:
			q.take(text)
		}
	}
}

// announced is when the move is due to be announced.
func (m *mix) announced() time.Time { return m.l.began.Add(m.cfg.announceAt()) }

// popLong is one pop, outstanding at the announcement.
func (m *mix) popLong(q *list) {
	if !sleepUntil(m.l.over, m.announced().Add(-margin/2)) {
		return
	}
	if text := q.pop(m.client, margin/2+q.after+patience); text != "" {
		q.take(text)
	} else if q.failed == 0 {
		q.fail(fmt.Errorf("a BLPOP that was due to be answered %v after the announcement was not", q.after))
	}
}

// answerLong answers it when it is due, or the run is interrupted.
func (m *mix) answerLong(q *list) {
	sleepUntil(m.l.over, m.announced().Add(q.after))
	q.from.sent = 1
	q.from.send(m.direct, new(baton.Batch), "1")
}

// ear is who hears what is published.
type ear struct {
	failures
	heard map[string]*sequence // by channel
	gaps  int                  // how often baton said that something may be missing
}

// listen returns when it has heard the last on each channel, or sub is closed.
func (e *ear) listen(sub *baton.Subscription) {
	for open := len(e.heard); open > 0; {
		message, err := sub.Receive(context.Background())
		switch {
		case errors.Is(err, baton.ErrClosed):
			return
		case errors.Is(err, baton.ErrGap):
			e.gaps++
		case err != nil:
			e.fail(fmt.Errorf("the subscription: %w", err))
			return
		case string(message.Payload) == ending:
			open--
		default:
			e.hear(message)
		}
	}
}

func (e *ear) hear(message baton.Message) {
	q := e.heard[message.Channel]
	if q == nil {
		e.fail(fmt.Errorf("a message on channel %q, which nobody subscribed to", message.Channel))
	} else if err := q.note(string(message.Payload)); err != nil {
		e.fail(fmt.Errorf("channel %s: %w", message.Channel, err))
	}
}

// mover moves amounts from one account to the other, in transactions that see their sum.
type mover struct {
	failures
	moved int
}

func (m *mix) move(v *mover) {
	var b baton.Batch
	for sleepUntil(m.l.over, time.Now().Add(moveEvery)) {
		amount := rand.IntN(2001) - 1000
		b.Reset()
		b.Add("DECRBY", m.accounts[0], amount)
		b.Add("INCRBY", m.accounts[1], amount)
		replies, err := m.client.DoTx(context.Background(), &b)
		if err == nil {
			err = checkSum(replies)
		}
		if err != nil {
			v.fail(err)
		} else {
			v.moved++
		}
	}
}

// checkSum looks at both accounts' values, as a transaction or the last look saw them; null is 0.
func checkSum(replies []baton.Reply) error {
	sum := int64(0)
	for _, r := range replies {
		n, err := r.Int64()
		if text, isText := r.Text(); isText == nil {
			n, err = strconv.ParseInt(text, 10, 64)
		}
		if err != nil && !errors.Is(err, baton.ErrNull) {
			return err
		}
		sum += n
	}
	if sum != 0 || len(replies) != 2 {
		return fmt.Errorf("the sum of %d counters is %d, which was 0 before and between transactions", len(replies), sum)
	}
	return nil
}

// readBack looks at what is stored, and deletes it.
func (m *mix) readBack() error {
	var b baton.Batch
	keys := []any{"DEL", m.accounts[0], m.accounts[1]}
	b.Add("GET", m.accounts[0])
	b.Add("GET", m.accounts[1])
	all := m.allLists()
	for _, q := range all {
		b.Add("LRANGE", q.key, 0, -1)
		keys = append(keys, q.key)
	}
	b.Add(keys...)
	replies, err := m.direct.DoBatch(context.Background(), &b)
	if err != nil {
		return err
	}
	if err := checkSum(replies[:2]); err != nil {
		m.found.fail(err)
	}
	for i, q := range all {
		left, err := replies[2+i].Texts()
		if err != nil {
			return err
		}
		for _, text := range left {
			if text != ending {
				q.take(text)
			}
		}
	}
	return replies[len(replies)-1].Err()
}

func (m *mix) allLists() []*list { return slices.Concat(m.lists, m.long) }

// totals are of all sequences of a kind.
type totals struct{ missing, repeated, outOfOrder int }

// add adds a sequence, with its producer and how many of its numbers may have come where nobody could note them.
func (t *totals) add(q *sequence, p *producer, unnoted int) {
	t.missing += max(q.missing(p.sent, p.unsure)-unnoted, 0)
	t.repeated += q.repeated
	t.outOfOrder += q.outOfOrder
}

func (m *mix) pops() (t totals) {
	for _, q := range m.allLists() {
		t.add(&q.popped, q.from, q.unsure)
	}
	return t
}

func (m *mix) messages() (t totals) {
	for _, q := range m.ear.heard {
		t.add(q, m.publisher, 0)
	}
	return t
}

func (m *mix) write(out io.Writer) {
	pops, messages, moved, sum := m.pops(), m.messages(), 0, "unchanged"
	for _, v := range m.movers {
		moved += v.moved
	}
	if m.found.failed > 0 {
		sum = "changed"
	}
	fmt.Fprintf(out, "pops: %s from %d lists, and 2 that waited %.1f s and %.1f s; %d lost, %d twice, %d out of order\n",
		group(uint64(m.pusher.sent*len(m.lists))), len(m.lists), m.long[0].waited.Seconds(), m.long[1].waited.Seconds(),
		pops.missing, pops.repeated, pops.outOfOrder)
	fmt.Fprintf(out, "messages: %s on %d channels; %d missed, %d repeated, %d out of order\n",
		group(uint64(m.publisher.sent*len(m.ear.heard))), len(m.ear.heard), messages.missing, messages.repeated, messages.outOfOrder)
	if m.ear.gaps > 0 {
		fmt.Fprintf(out, "messages: %d times some may be missing, as the subscription was told\n", m.ear.gaps)
	}
	fmt.Fprintf(out, "transactions: %s between two counters; their sum is %s\n", group(uint64(moved)), sum)
}

// all are everybody's failures.
func (m *mix) all() []*failures {
	all := []*failures{&m.pusher.failures, &m.publisher.failures, &m.ear.failures, &m.found}
	for _, q := range m.allLists() {
		all = append(all, &q.failures)
	}
	for _, q := range m.long {
		all = append(all, &q.from.failures)
	}
	for _, v := range m.movers {
		all = append(all, &v.failures)
	}
	return all
}
