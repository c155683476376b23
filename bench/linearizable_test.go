package main

// Histories of many callers on few keys, over handoffs, renewals and cuts, on sockets, at full load. Porcupine says whether there is
// an order in which a single server could have executed them one by one, each between its call and its return. What failed and may
// have been executed has no return: it has taken effect at any later time, or never. What failed and was never sent is left out: so
// an error that says so and is wrong is found. Each caller notes for itself; after a while all keys are checked, each by itself.

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"example.com/baton"
	"example.com/baton/batontest"
)

var (
	linearizableFor  = flag.Duration("linearizable", eraTime, "how long each of the linearizability tests has its load on, in parts that are checked in turn")
	linearizableSeed = flag.Uint64("linearizable.seed", 0, "of the linearizability tests; 0: any")
)

const (
	eraTime   = 1500 * time.Millisecond // of load before the histories are checked: some hundred thousand operations
	moreEras  = 20                      // at most, until what a test is for has come: a machine may be busy
	hotKeys   = 4                       // that all callers use at a time
	keyLife   = 1000                    // operations on each of them: then others take their place. Checking takes longer than in proportion
	checkTime = time.Minute             // for one key, and a hundredth of a second is usual
	oneLeaves = 1000                    // of so many operations one has a context that ends at any moment

	// Operations that a cut has left without a return are what makes checking hard, as each can be anywhere behind its call: these
	// are as many callers as leave about four on each key.
	callers        = 48
	callersWithCut = 16
)

// An operation's kinds.
const (
	opGet = iota
	opSet
	opIncr
	opAppend
)

// opInput and opOutput are what goes into an operation and what comes out.
type opInput struct {
	kind int
	arg  string
}

type opOutput struct {
	unknown bool // there was no return
	refused bool // INCR: the value is no integer
	null    bool
	number  int64 // INCR: the value; APPEND: its length
	text    string
}

// register is one key of a server. Its state is the value; no key and an empty one are the same to these commands but for null.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		value, in, out := state.(string), input.(opInput), output.(opOutput)
		next, want := execute(value, in)
		return out.unknown || out == want, next
	},
	DescribeOperation: func(input, output any) string { return describe(input.(opInput), output.(opOutput)) },
}

// execute is what a server does, and answers.
func execute(value string, in opInput) (next string, out opOutput) {
	switch in.kind {
	case opGet:
		return value, opOutput{null: value == "", text: value}
	case opSet:
		return in.arg, opOutput{}
	case opAppend:
		next = value + in.arg
		return next, opOutput{number: int64(len(next))}
	}
	n, err := strconv.ParseInt(cmp.Or(value, "0"), 10, 64)
	if err != nil || n == math.MaxInt64 {
		return value, opOutput{refused: true}
	}
	return strconv.FormatInt(n+1, 10), opOutput{number: n + 1}
}

func describe(in opInput, out opOutput) string {
	name := [...]string{"GET", "SET", "INCR", "APPEND"}[in.kind]
	switch {
	case out.unknown:
		return fmt.Sprintf("%s %s → ?", name, in.arg)
	case out.refused:
		return name + " → refused"
	case in.kind == opGet && out.null:
		return "GET → null"
	}
	return fmt.Sprintf("%s %s → %s%d", name, in.arg, out.text, out.number)
}

// A historian is one caller and what it notes.
type historian struct {
	id      int
	rand    *rand.Rand
	history map[string][]porcupine.Operation // by key
	count   int
	open    int // operations without a return
	unsent  int // left out
	odd     error
}

// An era is the load between two checks.
type era struct {
	client *baton.Client
	prefix string
	began  time.Time
	turn   atomic.Int64 // operations begun: they say which keys are hot
	over   atomic.Bool
}

func (h *historian) live(s *era) {
	for !s.over.Load() {
		life := s.turn.Add(1) / (hotKeys * keyLife)
		h.do(s, fmt.Sprintf("%s%d:%d", s.prefix, life, h.rand.IntN(hotKeys)))
	}
}

// digit is appended: none is 0, so that a value is an integer to every server, or too long to be one.
func (h *historian) digit() string { return string(rune('1' + h.rand.IntN(9))) }

func (h *historian) next() opInput {
	switch n := h.rand.IntN(10); {
	case n < 4:
		return opInput{kind: opGet}
	case n < 7:
		return opInput{kind: opIncr}
	case n < 9:
		return opInput{opAppend, h.digit()}
	}
	return opInput{opSet, strconv.Itoa(1 + h.rand.IntN(1e6))}
}

// do is one operation. The clock is read before it is given to the client, and when the client has answered.
func (h *historian) do(s *era, key string) {
	in := h.next()
	args := []any{[...]string{"GET", "SET", "INCR", "APPEND"}[in.kind], key}
	if in.arg != "" {
		args = append(args, in.arg)
	}
	ctx, cancel := context.Background(), func() {}
	if h.rand.IntN(oneLeaves) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(h.rand.Int64N(int64(2*time.Millisecond))))
	}
	defer cancel()
	op := porcupine.Operation{ClientId: h.id, Input: in, Call: int64(time.Since(s.began))}
	reply := s.client.Do(ctx, args...)
	op.Return = int64(time.Since(s.began))
	out, err := h.hear(in, reply)
	h.count++
	switch {
	case err == nil:
	case baton.MaybeExecuted(err):
		h.open++
		op.Return, out.unknown = math.MaxInt64, true
		if in.kind == opGet {
			return // whether it was executed makes no difference to anybody
		}
	default:
		h.unsent++
		if ctx.Err() == nil {
			h.odd = cmp.Or(h.odd, err)
		}
		return
	}
	op.Output = out
	h.history[key] = append(h.history[key], op)
}

// hear reads a reply. A server's error is an answer.
func (h *historian) hear(in opInput, reply baton.Reply) (out opOutput, err error) {
	var refusal *baton.ServerError
	switch err = reply.Err(); {
	case errors.As(err, &refusal) && in.kind == opIncr && refusal.Code == "ERR":
		return opOutput{refused: true}, nil
	case err != nil:
		return out, err
	case in.kind == opGet && reply.IsNull():
		return opOutput{null: true}, nil
	case in.kind == opGet:
		out.text, err = reply.Text()
		out.text = strings.Clone(out.text)
	case in.kind == opSet:
		var text string
		if text, err = reply.Text(); err == nil && text != "OK" {
			err = fmt.Errorf("SET was answered with %q", text)
		}
	default:
		out.number, err = reply.Int64()
	}
	return out, err
}

// A site is an address of the data that can announce, and be cut.
type site interface {
	Addr() string
	Move(successor string, window time.Duration)
	Cut()
	Close()
}

// A tour sends the clients from site to site. The address that they are configured with leads to the latest, so that after a Renew or a cut they
// are where the next move is announced.
type tour struct {
	sites []site
	cuts  bool
	rand  *rand.Rand
	at    int
	door  atomic.Pointer[string] // where frontDoor leads
	moved atomic.Int64           // replacements that took over where an announcement had sent them: Renew's do not count
}

func (w *tour) lead() {
	addr := w.sites[w.at].Addr()
	w.door.Store(&addr)
}

// dial is the clients' dialer.
func (w *tour) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if addr == frontDoor {
		addr = *w.door.Load()
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

func (w *tour) note(e baton.Event) {
	if e.Kind == baton.EventPromoted && e.Successor != "" && e.Addr == e.Successor {
		w.moved.Add(1)
	}
}

// travel announces moves, renews and cuts until it is over. A window takes a second, and the next begins before it ends.
func (w *tour) travel(c *baton.Client, over *atomic.Bool) {
	const step, moveEvery = 50 * time.Millisecond, 14 // 0.7 s: four sites later a window is long over
	for n := 1; !over.Load(); n++ {
		time.Sleep(step)
		if n%moveEvery == moveEvery/2 {
			from := w.sites[w.at]
			w.at = (w.at + 1) % len(w.sites)
			from.Move(w.sites[w.at].Addr(), time.Second)
			w.lead()
			continue // for a step, so that it is read
		}
		switch w.rand.IntN(3) {
		case 0:
			ctx, cancel := context.WithTimeout(context.Background(), step)
			c.Renew(ctx) // at times it is in vain: a cut may come upon it
			cancel()
		case 1:
			if w.cuts {
				for _, s := range w.sites {
					s.Cut()
				}
			}
		}
	}
}

// runEra has load for a while and returns what was noted, by key.
func runEra(t *testing.T, w *tour, c *baton.Client, number int, seed uint64) map[string][]porcupine.Operation {
	s := &era{client: c, prefix: fmt.Sprintf("linearizable:%d:", number), began: time.Now()}
	var all []*historian
	var end sync.WaitGroup
	many := callers
	if w.cuts {
		many = callersWithCut
	}
	for i := range many {
		h := &historian{id: i, rand: rand.New(rand.NewPCG(seed, uint64(1+number*many+i))), history: map[string][]porcupine.Operation{}}
		all = append(all, h)
		end.Go(func() { h.live(s) })
	}
	end.Go(func() { w.travel(c, &s.over) })
	time.Sleep(min(eraTime, *linearizableFor))
	s.over.Store(true)
	end.Wait()
	total := historian{history: map[string][]porcupine.Operation{}}
	for _, h := range all {
		for key, ops := range h.history {
			total.history[key] = append(total.history[key], ops...)
		}
		total.count, total.open, total.unsent, total.odd = total.count+h.count, total.open+h.open, total.unsent+h.unsent, cmp.Or(total.odd, h.odd)
	}
	if total.odd != nil {
		t.Errorf("an operation was never sent, and its context was not over: %v", total.odd)
	}
	t.Logf("%d operations on %d keys, %d without a return, %d never sent; %d handoffs, %d of them by a move, and %d reconnections so far",
		total.count, len(total.history), total.open, total.unsent, c.Stats().Handoffs, w.moved.Load(), c.Stats().Reconnects)
	return total.history
}

// checkAll checks each key, on all processors.
func checkAll(t *testing.T, histories map[string][]porcupine.Operation) {
	var end sync.WaitGroup
	defer end.Wait()
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for key, history := range histories {
		turns <- struct{}{}
		end.Go(func() {
			check(t, key, history)
			<-turns
		})
	}
}

// check checks one key, and draws what cannot be.
func check(t *testing.T, key string, history []porcupine.Operation) {
	switch porcupine.CheckOperationsTimeout(register, history, checkTime) {
	case porcupine.Illegal:
		_, info := porcupine.CheckOperationsVerbose(register, history, checkTime)
		path := filepath.Join(t.ArtifactDir(), strings.ReplaceAll(key, ":", "-")+".html")
		t.Errorf("%s: no order of these %d operations explains what came of them (drawn in %s, kept with -artifacts: %v)", key, len(history), path,
			porcupine.VisualizePath(register, info, path))
	case porcupine.Unknown:
		t.Errorf("%s: not decided in %v, with %d operations", key, checkTime, len(history))
	}
}

// isLinearizable is one test: a client on a tour.
func isLinearizable(t *testing.T, sites []site, conns int, cuts bool) {
	for _, s := range sites {
		t.Cleanup(s.Close)
	}
	seed := cmp.Or(*linearizableSeed, rand.Uint64N(1e9))
	t.Logf("-linearizable.seed %d", seed)
	w := &tour{sites: sites, cuts: cuts, rand: rand.New(rand.NewPCG(seed, 0))}
	w.lead()
	c, err := baton.Dial(t.Context(), baton.Options{Addr: frontDoor, Dialer: w.dial, Conns: conns, Timeout: 30 * time.Second, OnEvent: w.note})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	missing := func() bool { return w.moved.Load() == 0 || cuts && c.Stats().Reconnects == 0 }
	for began, n := time.Now(), 0; (time.Since(began) < *linearizableFor || missing() && n < moreEras) && !t.Failed(); n++ {
		checkAll(t, runEra(t, w, c, n, seed))
		if n%50 == 49 { // what is not used any more
			c.Do(t.Context(), "FLUSHALL")
		}
	}
	if s := c.Stats(); missing() {
		t.Errorf("%d handoffs, %d of them by a move; %d reconnections", s.Handoffs, w.moved.Load(), s.Reconnects)
	}
}

func servers() []site {
	a := batontest.NewServer()
	return []site{a, a.Sibling(), a.Sibling(), a.Sibling()}
}

// relays are before one redis-server, whose data it is.
func relays(t *testing.T) []site {
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("BATON_REQUIRE_REDIS") != "1" {
		t.Skip("there is no redis-server")
	}
	srv, err := startRedis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	a := batontest.NewRelay(srv.addr)
	return []site{a, a.Sibling(), a.Sibling(), a.Sibling()}
}

func TestLinearizableOverHandoffs(t *testing.T)        { isLinearizable(t, servers(), 1, false) }
func TestLinearizableOverHandoffsAndCuts(t *testing.T) { isLinearizable(t, servers(), 1, true) }
func TestLinearizableWithSeveralConnections(t *testing.T) {
	isLinearizable(t, servers(), 3, true)
}
func TestLinearizableOnRedis(t *testing.T)         { isLinearizable(t, relays(t), 1, false) }
func TestLinearizableOnRedisWithCuts(t *testing.T) { isLinearizable(t, relays(t), 2, true) }

// op is an operation from one time to another; 0: it has no return.
func op(from, to int64, in opInput, out opOutput) porcupine.Operation {
	if to == 0 {
		to, out = math.MaxInt64, opOutput{unknown: true}
	}
	return porcupine.Operation{Call: from, Return: to, Input: in, Output: out}
}

// The checker refuses what a client that executes twice, or reads what is old, would show.
func TestLinearizableCheckerRefuses(t *testing.T) {
	incr, get := opInput{kind: opIncr}, opInput{kind: opGet}
	set, appended := opInput{opSet, "5"}, opInput{opAppend, "7"}
	n := func(n int64) opOutput { return opOutput{number: n} }
	text := func(s string) opOutput { return opOutput{text: s} }
	for name, c := range map[string]struct {
		good    bool
		history []porcupine.Operation
	}{
		"one after the other":           {true, []porcupine.Operation{op(1, 2, incr, n(1)), op(3, 4, appended, n(2)), op(5, 6, get, text("17")), op(7, 8, incr, n(18))}},
		"side by side, the later first": {true, []porcupine.Operation{op(1, 9, incr, n(2)), op(2, 8, incr, n(1))}},
		"a stale read":                  {false, []porcupine.Operation{op(1, 2, set, opOutput{}), op(3, 4, incr, n(6)), op(5, 6, get, text("5"))}},
		"a read that may be before":     {true, []porcupine.Operation{op(1, 2, set, opOutput{}), op(3, 5, incr, n(6)), op(4, 6, get, text("5"))}},
		"null behind a SET":             {false, []porcupine.Operation{op(1, 2, set, opOutput{}), op(3, 4, get, opOutput{null: true})}},
		"an INCR executed twice":        {false, []porcupine.Operation{op(1, 2, incr, n(1)), op(3, 4, incr, n(3))}},
		"one that may have been":        {true, []porcupine.Operation{op(1, 0, incr, opOutput{}), op(1, 2, incr, n(1)), op(3, 4, incr, n(3))}},
		"once, and not twice":           {false, []porcupine.Operation{op(1, 0, incr, opOutput{}), op(1, 2, incr, n(1)), op(3, 4, incr, n(4))}},
		"long after it failed":          {true, []porcupine.Operation{op(1, 0, set, opOutput{}), op(2, 3, incr, n(1)), op(4, 5, incr, n(2)), op(6, 7, get, text("5"))}},
		"before it was called":          {false, []porcupine.Operation{op(1, 2, get, text("5")), op(3, 0, set, opOutput{})}},
		"never sent, and executed":      {false, []porcupine.Operation{op(3, 4, get, text("5"))}},
		"an INCR that was lost":         {false, []porcupine.Operation{op(1, 2, incr, n(1)), op(3, 4, get, opOutput{null: true})}},
		"an APPEND executed twice":      {false, []porcupine.Operation{op(1, 2, appended, n(1)), op(3, 4, get, text("77"))}},
		"somebody else's reply":         {false, []porcupine.Operation{op(1, 2, incr, n(1)), op(1, 2, incr, n(1))}},
		"no integer":                    {true, []porcupine.Operation{op(1, 2, opInput{opSet, "x"}, opOutput{}), op(3, 4, incr, opOutput{refused: true}), op(5, 6, get, text("x"))}},
		"an integer, and refused":       {false, []porcupine.Operation{op(1, 2, set, opOutput{}), op(3, 4, incr, opOutput{refused: true})}},
	} {
		got := porcupine.CheckOperationsTimeout(register, c.history, checkTime)
		if want := map[bool]porcupine.CheckResult{true: porcupine.Ok, false: porcupine.Illegal}[c.good]; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// A history as they are, with one answer changed, is refused as well: it is not lost in the many.
func TestLinearizableCheckerFindsOneAmongMany(t *testing.T) {
	sites := servers()
	for _, s := range sites {
		t.Cleanup(s.Close)
	}
	c, err := baton.Dial(t.Context(), baton.Options{Addr: sites[0].Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := &era{client: c, began: time.Now(), prefix: "many:"}
	var end sync.WaitGroup
	var all []*historian
	for i := range 8 {
		h := &historian{id: i, rand: rand.New(rand.NewPCG(1, uint64(i))), history: map[string][]porcupine.Operation{}}
		all = append(all, h)
		end.Go(func() {
			for range 100 {
				h.do(s, "many")
			}
		})
	}
	end.Wait()
	var history []porcupine.Operation
	for _, h := range all {
		history = append(history, h.history["many"]...)
	}
	if got := porcupine.CheckOperationsTimeout(register, history, checkTime); got != porcupine.Ok {
		t.Fatalf("as it was: %v", got)
	}
	for tries := range 10 {
		changed := slices.Clone(history)
		o := &changed[slices.IndexFunc(changed[tries*50:], func(o porcupine.Operation) bool {
			return o.Input.(opInput).kind == opIncr && o.Output.(opOutput).number > 0
		})+tries*50]
		out := o.Output.(opOutput)
		out.number++ // as if one more had been executed
		o.Output = out
		if got := porcupine.CheckOperationsTimeout(register, changed, checkTime); got != porcupine.Illegal {
			t.Errorf("with %s, which was one less: %v", describe(o.Input.(opInput), out), got)
		}
	}
}
