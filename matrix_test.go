package baton

// Two announcements, in every order in which they can meet, and many in an order that a seed chooses. A town plays the servers:
// a few addresses over the same data, a name that one of them has, and every connection in the test's hands. What must come of it
// is said by a small model in the test, which knows the rules and nothing of the client.

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/baton/batontest"
)

const addrD = "10.9.0.4:6379"

// letters are how tests and the model call the addresses.
var letters = map[string]string{addrA: "A", addrB: "B", addrC: "C", addrD: "D", "": "nobody"}

// town is the servers, the name server, and a client that is kept busy.
type town struct {
	t     *testing.T
	c     *Client
	dialB *gate // stops the first dial of B
	handB *gate // stops the first handshake at B, before the opt-in is answered
	slow  *gate // stops the first GET
	pace  atomic.Int64
	over  atomic.Bool
	wg    sync.WaitGroup

	mu     sync.Mutex // guards the rest
	record string     // the address that the name has
	sick   map[string]bool
	data   map[string]int64 // what INCR counts
	told   map[string]int64 // what callers were told of it
	unsure map[string]bool  // the last INCR of this key may have been executed
	failed []failedINCR
	dials  []string // letters, in order
	links  []*link  // connections, in order
	losses []time.Time
	repeat string              // said to every new connection behind the +OK of its opt-in
	watch  func(letter string) // looks at dials
}

type failedINCR struct {
	err error
	at  time.Time
}

// gate stops who comes first, if it is shut, until it is opened.
type gate struct {
	shut          atomic.Bool
	comes, opened chan struct{}
	open          func()
}

func newGate() *gate {
	g := &gate{comes: make(chan struct{}), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	return g
}

// pass ends when the gate is opened, or over is.
func (g *gate) pass(over <-chan struct{}) {
	if g.shut.CompareAndSwap(true, false) {
		close(g.comes)
		select {
		case <-g.opened:
		case <-over:
		}
	}
}

// reached waits until somebody stands at the gate.
func (g *gate) reached(t *testing.T) {
	t.Helper()
	select {
	case <-g.comes:
	case <-time.After(time.Minute):
		t.Fatal("nobody came to B within a minute")
	}
}

// link is the town's end of a connection.
type link struct {
	*peer
	letter string
	early  string        // said right behind the +OK of the opt-in
	frozen chan struct{} // open: replies wait; nil: they do not
	closed bool          // by the client
}

// newTown has a client whose configured address is a name; A has it.
func newTown(t *testing.T, conns int, change func(*Options)) *town {
	w := &town{t: t, dialB: newGate(), handB: newGate(), slow: newGate(), record: addrA,
		sick: map[string]bool{}, data: map[string]int64{}, told: map[string]int64{}, unsure: map[string]bool{}}
	w.pace.Store(int64(30 * time.Millisecond))
	o := Options{Addr: "db.example.com:6379", Conns: conns, Timeout: time.Hour, Dialer: w.dial}
	o.Resolver = nameServer(func(string) []string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return []string{strings.TrimSuffix(w.record, ":6379")}
	})
	if change != nil {
		change(&o)
	}
	w.c = dialOptions(t, o)
	t.Cleanup(func() { w.over.Store(true); w.dialB.open(); w.handB.open(); w.slow.open() })
	synctest.Wait()
	return w
}

func (w *town) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// dial fits Options.Dialer. An address that is sick refuses.
func (w *town) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	letter := letters[addr]
	w.mu.Lock()
	w.dials = append(w.dials, letter)
	if w.watch != nil {
		w.watch(letter)
	}
	sick := w.sick[addr] || letter == ""
	w.mu.Unlock()
	if sick {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	if letter == "B" {
		w.dialB.pass(ctx.Done())
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	client, server := batontest.Pipe()
	l := &link{peer: &peer{Conn: server, t: w.t, addr: addr, r: bufio.NewReader(server)}, letter: letter}
	w.set(func() { w.links = append(w.links, l) })
	go w.serve(l)
	return &addressed{client, addr}, nil
}

// serve is a server: every command takes it a millisecond.
func (w *town) serve(l *link) {
	for command := l.command(); command != ""; command = l.command() {
		reply := answers(nil).to(command)
		switch name, key, _ := strings.Cut(command, " "); {
		case strings.HasPrefix(command, "CLIENT MAINT"):
			if l.letter == "B" {
				w.handB.pass(nil)
			}
			w.set(func() { reply += l.early + w.repeat })
		case name == "GET":
			w.slow.pass(nil)
		case name == "INCR":
			time.Sleep(time.Millisecond)
			w.set(func() { w.data[key]++; reply = fmt.Sprintf(":%d\r\n", w.data[key]) })
		}
		w.mu.Lock()
		frozen := l.frozen
		w.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		l.says(reply)
	}
	w.set(func() { l.closed = true })
	l.Close()
}

// freeze has l execute commands and withhold their replies, until thaw is called.
func (w *town) freeze(l *link) (thaw func()) {
	frozen := make(chan struct{})
	w.set(func() { l.frozen = frozen })
	return func() { w.set(func() { l.frozen = nil }); close(frozen) }
}

// load keeps workers busy with INCRs of keys of their own, one each in a pace. A reply that is not the next number is somebody
// else's, or was executed twice. After an INCR that may have been executed a worker takes another key.
func (w *town) load(workers int) {
	for i := range workers {
		w.wg.Go(func() {
			for lives := 0; !w.over.Load(); time.Sleep(time.Duration(w.pace.Load())) {
				key := fmt.Sprintf("%d.%d", i, lives)
				n, err := w.c.Do(background, "INCR", key).Int64()
				w.set(func() {
					if err != nil {
						w.failed = append(w.failed, failedINCR{err, time.Now()})
						if w.unsure[key] = MaybeExecuted(err); w.unsure[key] {
							lives++
						}
					} else if w.told[key]++; n != w.told[key] {
						w.t.Errorf("INCR number %d of %s was answered with %d", w.told[key], key, n)
					}
				})
			}
		})
	}
}

// stop ends the load, and says that everything that succeeded, and nothing else, was executed once.
func (w *town) stop() {
	w.t.Helper()
	w.over.Store(true)
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, n := range w.data {
		if n != w.told[key] && !(w.unsure[key] && n == w.told[key]+1) {
			w.t.Errorf("%s was counted to %d, and its caller to %d", key, n, w.told[key])
		}
	}
	if len(w.told) == 0 {
		w.t.Error("there was no load")
	}
}

// dialled are the letters dialled beyond the client's first connections, in order of the alphabet.
func (w *town) dialled() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return sorted(w.dials[len(w.c.bridges):]...)
}

// ends are the letters at which the client has connections.
func (w *town) ends() string {
	var open []string
	for _, l := range w.open() {
		open = append(open, l.letter)
	}
	return sorted(open...)
}

func sorted(list ...string) string { return strings.Join(slices.Sorted(slices.Values(list)), "") }

// open are the connections that the client has not closed, in the order in which they were made.
func (w *town) open() (open []*link) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		if !l.closed {
			open = append(open, l)
		}
	}
	return open
}

// announces is MOVING with a number and a successor that may be missing.
func announces(number string, seconds int, successor string) string {
	if successor == "" {
		return fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n%s\r\n:%d\r\n_\r\n", number, seconds)
	}
	return fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n%s\r\n:%d\r\n$%d\r\n%s\r\n", number, seconds, len(successor), successor)
}

// --- the matrix ---

type (
	whom   string
	number string
	moment string
	reader string
)

const (
	another  whom = "naming C"
	nobody   whom = "naming nobody"
	theSame  whom = "naming the same"
	whereAre whom = "naming where we are"

	higher number = "a higher number"
	same   number = "the same number"
	lower  number = "a lower number"
	none   number = "no number"

	inJitter    moment = "during the jitter"
	inPoll      moment = "during the DNS poll"
	inDial      moment = "during the dial"
	inHandshake moment = "during the handshake"
	inHold      moment = "during the hold"
	promoted    moment = "just after the promotion"
	inWindow    moment = "later within the window"
	withNone    moment = "after the promotion, without a connection"
	afterWindow moment = "after the window"
	afterMemory moment = "after memory"

	onTheSame     reader = "on the same connection"
	beforeCurrent reader = "on the replacement before it is current"
	whenCurrent   reader = "on the replacement"
	onAnother     reader = "on another bridge"
	onRetired     reader = "on the retired connection"
)

// cell is one pair of announcements. The first has the number 10 and is read by a connection to A; it names B, or nobody, and then
// B is what the name's record says soon.
type cell struct {
	named  bool // the first names B
	lags   bool // the name's record is A's until after the second, and only then B's
	whom   whom
	number number
	moment moment
	reader reader
}

// exists says no to what cannot be, and to what another cell is already.
func (x cell) exists() bool {
	over := slices.Contains([]moment{promoted, inWindow, withNone, afterWindow, afterMemory}, x.moment)
	switch x.reader {
	case onTheSame: // which is the retired one from the promotion on
		if over {
			return false
		}
	case beforeCurrent:
		if x.moment != inHandshake && x.moment != inHold {
			return false
		}
	case whenCurrent, onRetired:
		if !over || x.moment == withNone && x.reader == whenCurrent {
			return false
		}
	}
	if x.whom == whereAre && (x.reader == beforeCurrent || x.reader == whenCurrent) {
		return false // B, which is the same
	}
	if x.lags && (!x.named || x.number != higher || x.reader != onTheSame && x.reader != onAnother) {
		return false // it is not looked at, or the poll moment's
	}
	return !x.named || x.moment != inPoll // who knows where to go does not poll
}

func (x cell) String() string {
	first := map[bool]string{true: "B was named", false: "nobody was named"}[x.named] + map[bool]string{true: " and the name lags"}[x.lags]
	return fmt.Sprintf("%s/%s/%s/%s, %s", first, x.moment, x.reader, x.whom, x.number)
}

// leads is where the second, if it is in force, leads a bridge that joins it while its connection is to at. An announcement that
// names nobody, or the place where the bridge is, leads to the first address of the name to which no connection is that was told of it.
// The name's is B, and after a while D.
func (x cell) leads(at string) string {
	switch to := map[whom]string{another: "C", theSame: "B", whereAre: "A"}[x.whom]; {
	case to != "" && to != at:
		return to
	case x.reader == beforeCurrent || x.reader == whenCurrent:
		return "D" // B was told
	}
	return "B" // A was
}

// newer says whether the second is in force.
func (x cell) newer() bool {
	return x.reader != onRetired && (x.number == higher || x.moment == afterMemory)
}

// outcomes is the model: which addresses are dialled, in order of the alphabet, and where the bridges end. Where there is more than
// one, the rules leave it open.
func (x cell) outcomes() []string {
	began := x.moment != inJitter && x.moment != inPoll // the first dial for the first announcement
	newer, two := x.newer(), x.reader == onAnother
	switch {
	case x.moment == withNone && !two: // only what was lost is dialled again
		return []string{"BB>B"}
	case x.moment == withNone && !newer:
		return []string{"BBB>BB"}
	case x.moment == withNone: // the dial under way is older than the second
		to, then := x.leads("A"), x.leads("B")
		return []string{sorted("B", "B", to, then) + ">" + sorted(to, then)}
	case !newer && two: // a copy, by which the other bridge is told of the first
		return []string{"BB>BB"}
	case !newer && !x.named && x.number == same && (x.reader == beforeCurrent || x.reader == whenCurrent):
		if x.moment == afterWindow { // nothing is left to wait half of: B at once, if at all, and D when the name says so
			return []string{"B>B", "BB>B", "BD>D", "BBD>D"}
		}
		return []string{"BD>D"} // it may be the old place again: one more attempt
	case !newer:
		return []string{"B>B"}
	case two && !began: // the dial of the first bridge obeys the pin
		to := x.leads("A")
		return []string{to + to + ">" + to + to}
	case two && slices.Contains([]moment{inDial, inHandshake, inHold}, x.moment): // what the first bridge gets is older than the second
		to, then := x.leads("A"), x.leads("B")
		return []string{sorted("B", to, then) + ">" + sorted(to, then)}
	case two: // the first bridge is not told
		to := x.leads("A")
		return []string{sorted("B", to) + ">" + sorted("B", to)}
	case !began:
		return []string{x.leads("A") + ">" + x.leads("A")}
	case x.reader == onTheSame && x.moment != inHold: // the attempt is replaced
		return []string{sorted("B", x.leads("A")) + ">" + x.leads("A")}
	}
	return []string{sorted("B", x.leads("B")) + ">" + x.leads("B")} // read or judged when B is current
}

// TestMatrixOfTwoAnnouncements plays every cell under load: nothing fails, nothing is executed twice, every reply is its caller's, and
// the dials and the end are those of the model.
func TestMatrixOfTwoAnnouncements(t *testing.T) {
	t.Parallel()
	for _, first := range []cell{{named: true}, {named: true, lags: true}, {}} {
		for _, m := range []moment{inJitter, inPoll, inDial, inHandshake, inHold, promoted, inWindow, withNone, afterWindow, afterMemory} {
			for _, r := range []reader{onTheSame, beforeCurrent, whenCurrent, onAnother, onRetired} {
				for _, what := range []whom{another, nobody, theSame, whereAre} {
					for _, n := range []number{higher, same, lower, none} {
						if x := (cell{first.named, first.lags, what, n, m, r}); x.exists() {
							sub(t, x.String(), x.play)
						}
					}
				}
			}
		}
	}
}

func (x cell) play(t *testing.T) {
	w := newTown(t, map[bool]int{true: 2, false: 1}[x.reader == onAnother], func(o *Options) { o.Maintenance.HoldCap = time.Second })
	w.load(2)
	time.Sleep(100 * time.Millisecond)
	if x.moment != inPoll && !x.lags {
		w.set(func() { w.record = addrB })
	}
	resume := x.first(w)
	x.second(w)
	if x.newer() && !x.lags && x.reader == onTheSame && (x.moment == inDial || x.moment == inHandshake) {
		time.Sleep(2100 * time.Millisecond) // longer than a round of the poll and a jitter
		if n := len(w.dialled()); n != 2 {
			t.Errorf("%d dials: the attempt was not replaced", n)
		}
	}
	resume()
	time.Sleep(1200 * time.Millisecond)
	w.set(func() { w.record = map[bool]string{true: addrB, false: addrD}[x.lags] })
	time.Sleep(3 * time.Second)
	w.pace.Store(int64(time.Second))
	w.slow.open()
	time.Sleep(7 * time.Second) // past the second window
	for _, later := range []time.Duration{0, 20 * time.Second} {
		time.Sleep(later)
		if got, want := w.dialled()+">"+w.ends(), x.outcomes(); !slices.Contains(want, got) {
			t.Errorf("dialled>ends at: %s, want %s", got, strings.Join(want, " or "))
		}
	}
	w.stop()
	if st := w.c.Stats(); len(w.failed) > 0 || st.Failed != 0 || st.InFlight != 0 || st.Backlog != 0 || st.Sent != st.Answered {
		t.Errorf("failed: %v, stats: %+v", w.failed, st)
	}
}

// first makes the first announcement and returns in the moment of the second. resume ends what stands still in that moment.
func (x cell) first(w *town) (resume func()) {
	start, a := time.Now(), w.links[0]
	w.dialB.shut.Store(x.moment == inDial)
	w.handB.shut.Store(x.moment != inDial)
	a.says(announces(":10", 10, map[bool]string{true: addrB}[x.named]))
	if x.moment == inJitter || x.moment == inPoll {
		w.handB.open()
	}
	switch x.moment {
	case inJitter:
		synctest.Wait()
		return func() {}
	case inPoll:
		time.Sleep(1500 * time.Millisecond)
		return func() { time.Sleep(200 * time.Millisecond); w.set(func() { w.record = addrB }) }
	case inDial:
		w.dialB.reached(w.t)
		return w.dialB.open
	}
	w.handB.reached(w.t)
	switch x.moment {
	case inHandshake:
		return w.handB.open
	case inHold:
		thaw := w.freeze(a)
		time.Sleep(80 * time.Millisecond) // until something is in flight
		w.handB.open()
		inPhase(w.t, w.c, PhaseHolding)
		return thaw
	}
	if x.reader == onRetired {
		w.slow.shut.Store(true)
		async(w.c, "GET", "slow") // for which the connection stays
	}
	w.handB.open()
	for begin := time.Now(); w.c.Stats().Handoffs == 0; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 5*time.Second {
			w.t.Fatal("the first announcement led to no handoff")
		}
	}
	if x.moment == withNone {
		for synctest.Wait(); w.c.Stats().InFlight > map[reader]int{onRetired: 1}[x.reader]; synctest.Wait() {
			time.Sleep(time.Millisecond)
		}
		w.dialB.shut.Store(true)
		w.links[len(w.links)-1].Close() // with nothing in flight
		w.dialB.reached(w.t)
		return w.dialB.open
	}
	if after := map[moment]time.Duration{inWindow: 4 * time.Second, afterWindow: 11 * time.Second, afterMemory: 40 * time.Second}[x.moment]; after > 0 {
		w.pace.Store(int64(time.Second))
		time.Sleep(after - time.Since(start))
		w.pace.Store(int64(30 * time.Millisecond))
	}
	return func() {}
}

// second makes the second announcement where the cell has it read.
func (x cell) second(w *town) {
	frame := announces(map[number]string{higher: ":11", same: ":10", lower: ":9", none: "_"}[x.number], 10,
		map[whom]string{another: addrC, theSame: addrB, whereAre: addrA}[x.whom])
	l := w.links[0]
	if x.reader != onTheSame && x.reader != onRetired {
		l = w.links[1] // the first bridge's second, or the second's first
	}
	if x.reader == beforeCurrent && x.moment == inHandshake {
		w.set(func() { l.early = frame })
		return
	}
	l.says(frame)
	synctest.Wait()
}

// --- orders of many ---

// TestManyAnnouncementsInAnyOrder sends three to six announcements over one to four bridges, as a seed chooses, with losses and dials that
// fail in between, and at last one that decides. A failure names its seed: go test -run ManyAnnouncements -baton.seed=N
func TestManyAnnouncementsInAnyOrder(t *testing.T) {
	t.Parallel()
	if *randomSeed != 0 {
		bubble(t, func(t *testing.T) { manyAnnouncements(t, *randomSeed) })
		return
	}
	base := uint64(time.Now().UnixNano()) | 1
	for seed := base; seed < base+map[bool]uint64{true: 100, false: 300}[testing.Short()]; seed++ {
		bubble(t, func(t *testing.T) { manyAnnouncements(t, seed) })
	}
}

// crier makes announcements in a town, and knows where they allow it to be dialled.
type crier struct {
	*town
	r       *rand.Rand
	all     []string // addresses
	highest int      // number announced

	now, before *order // the last one that is in force for certain, and the one before: guarded by town.mu
}

// order is what follows from an announcement that is in force.
type order struct {
	number       int
	since, until time.Time // made, and remembered
	named        map[string]bool
	had          map[string]bool // what the name was the name of since
	nameFrom     time.Time       // that may be dialled from then on
}

func (o *order) allows(letter string) bool {
	return o == nil || o.named[letter] || o.had[letter] && !time.Now().Before(o.nameFrom)
}

// dialling fits town.watch. In the moment of an announcement the one before may be obeyed, too.
func (k *crier) dialling(letter string) {
	if !k.now.allows(letter) && !(time.Now().Equal(k.now.since) && k.before.allows(letter)) {
		k.t.Errorf("%v: %s was dialled, against %+v", time.Now(), letter, *k.now)
	}
}

// names gives the town's name another address.
func (k *crier) names(addr string) {
	k.set(func() {
		if k.record = addr; k.now != nil {
			k.now.had[letters[addr]] = true
		}
	})
}

// cries announces to all connections, or to one of them. It is in force for certain when a bridge has a connection, all are told, and no
// number was as high.
func (k *crier) cries(all, numbered bool, n, window int, successor string) {
	number, alive, open := "_", false, k.open()
	if numbered {
		number = ":" + strconv.Itoa(n)
	}
	for _, b := range k.c.bridges {
		b.mu.Lock()
		alive = alive || b.cur.aliveLocked()
		b.mu.Unlock()
	}
	if !all && len(open) > 0 {
		open = []*link{open[k.r.IntN(len(open))]}
	}
	k.set(func() {
		now, letter, d := time.Now(), letters[successor], time.Duration(window)*time.Second
		switch {
		case all && alive && numbered && n > k.highest:
			k.before, k.now = k.now, &order{number: n, since: now, until: now.Add(d + 5*time.Second), nameFrom: now.Add(d / 2),
				named: map[string]bool{letter: true}, had: map[string]bool{letters[k.record]: true}}
			if successor == "" || slices.ContainsFunc(open, func(l *link) bool { return l.letter == letter }) {
				k.now.nameFrom = now
			}
		case k.now != nil && (numbered && n > k.now.number || !now.Before(k.now.until)):
			k.now.named[letter], k.now.nameFrom = true, now
		}
	})
	if numbered {
		k.highest = max(k.highest, n)
	}
	for _, l := range open {
		l.says(announces(number, window, successor))
	}
}

// harms loses a connection, or has one or an address fail for a while.
func (k *crier) harms() {
	open, addr, d := k.open(), k.all[k.r.IntN(len(k.all))], time.Duration(1+k.r.IntN(3000))*time.Millisecond
	switch what := k.r.IntN(4); {
	case what == 0:
		k.set(func() { k.sick[addr] = true })
		time.AfterFunc(d, func() { k.set(func() { k.sick[addr] = false }) })
	case len(open) == 0:
	case what == 1:
		time.AfterFunc(d, k.freeze(open[k.r.IntN(len(open))]))
	default:
		l := open[k.r.IntN(len(open))]
		k.set(func() { l.closed = true; k.losses = append(k.losses, time.Now()) })
		if what == 2 {
			l.reset()
		} else {
			l.Close()
		}
	}
}

func manyAnnouncements(t *testing.T, seed uint64) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	r := rand.New(rand.NewPCG(seed, 3))
	bridges := 1 + r.IntN(4)
	w := newTown(t, bridges, func(o *Options) { o.Maintenance.HoldCap = time.Duration(r.IntN(100)-1) * time.Millisecond })
	k := &crier{town: w, r: r, all: []string{addrA, addrB, addrC, addrD}}
	w.watch = k.dialling
	w.load(1 + bridges)
	said := 3 + r.IntN(4)
	for left := said; left > 0; {
		time.Sleep([]time.Duration{0, time.Duration(r.IntN(50)) * time.Millisecond, time.Duration(r.IntN(3000)) * time.Millisecond}[r.IntN(3)])
		switch r.IntN(6) {
		case 0:
			k.names(k.all[r.IntN(len(k.all))])
		case 1, 2:
			k.harms()
		default:
			left--
			n := []int{k.highest + 1, k.highest + 1, k.highest + 1 + r.IntN(5), k.highest, k.highest - 1}[r.IntN(5)]
			k.cries(r.IntN(2) == 0, r.IntN(6) > 0, n, []int{0, 1, 2, 5, 10}[r.IntN(5)], append(k.all, "", "")[r.IntN(len(k.all)+2)])
		}
	}
	k.decides(r.IntN(2) == 0, append(k.all, "")[r.IntN(len(k.all)+1)], said)
}

// decides makes an announcement that all bridges must follow, either when it is quiet, and then exactly as the model says, or at once, and
// then on every new connection, too. And then it looks at what the callers were told.
func (k *crier) decides(quiet bool, successor string, said int) {
	const window = 60
	t, bridges, name := k.t, len(k.c.bridges), k.all[k.r.IntN(len(k.all))]
	if quiet {
		time.Sleep(3 * time.Second) // the longest that harm lasts
		k.pace.Store(int64(time.Second))
		time.Sleep(40 * time.Second)
		before := len(k.dialled())
		time.Sleep(10 * time.Second)
		if at := k.ends(); len(at) != bridges || len(k.dialled()) != before {
			t.Errorf("%d bridges are quiet at %s, %d dials", bridges, at, len(k.dialled())-before)
		}
	} else if name = successor; successor == "" {
		name = addrC
	}
	k.names(name)
	at, dials, links, want := k.ends(), len(k.dialled()), len(k.links), strings.Repeat(letters[name], bridges)
	if quiet && successor != "" { // who is there already goes where the name says
		there := strings.Count(at, letters[successor])
		want = strings.Repeat(letters[name], there) + strings.Repeat(letters[successor], bridges-there)
	}
	if !quiet {
		k.set(func() { k.repeat = announces(":"+strconv.Itoa(k.highest+1), window, successor) })
	}
	k.cries(true, true, k.highest+1, window, successor)
	if quiet && strings.Contains(at, letters[name]) {
		k.set(func() { k.now.nameFrom = k.now.since.Add(window / 2 * time.Second) }) // the poll finds who was told
	}
	time.Sleep(4 * time.Second)
	k.pace.Store(int64(time.Second))
	time.Sleep((window - 4) * time.Second)
	k.set(func() { k.repeat = "" })
	time.Sleep(20 * time.Second)
	if got := k.ends(); got != sorted(strings.Split(want, "")...) {
		t.Errorf("the bridges end at %s, want %s", got, want)
	}
	once := quiet || successor != "" && !strings.Contains(at, letters[successor]) && k.now != nil && k.now.number == k.highest // somebody was told
	if n, made := len(k.dialled())-dials, len(k.links)-links; quiet && n != bridges || once && made != bridges || made > 5*bridges {
		t.Errorf("%d dials of %d bridges for the last announcement, and %d connections (once each: %v)", n, bridges, made, once)
	}
	if most := (1 + len(k.losses) + 4*said + 6) * bridges; len(k.links) > most {
		t.Errorf("%d connections were made, want at most %d", len(k.links), most)
	}
	k.stop()
	for _, f := range k.failed { // in flight when a connection was lost, and answers may come up to a second after it
		lost := func(at time.Time) bool { return !f.at.Before(at) && f.at.Sub(at) <= 1100*time.Millisecond }
		if !MaybeExecuted(f.err) || !slices.ContainsFunc(k.losses, lost) {
			t.Errorf("a command failed at %v, losses were at %v: %v", f.at, k.losses, f.err)
		}
	}
	if st := k.c.Stats(); st.Conns != bridges || st.InFlight != 0 || st.Backlog != 0 || st.Failed != uint64(len(k.failed)) {
		t.Errorf("%d commands failed, and stats say %+v", len(k.failed), st)
	}
}
