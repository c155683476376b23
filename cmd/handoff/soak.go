package main

// This file holds the soak: the three places that the load is sent round between, the order of events, and what is told. The
// caller's goroutine is the conductor: it plays one episode after the other (soak_faults.go), and between them has the load
// (soak_load.go) rest, to read the process (vitals.go) and to judge what has failed (soak_ledger.go).

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/baton"
	"example.com/baton/batontest"
)

const (
	// frontDoor is the address that the clients are configured with. It exists in their dialer alone, and leads where the soak says.
	frontDoor = "192.0.2.1:6379"

	// commandTime is longer than any fault lasts, by far: a command of the client that is judged does not time out.
	commandTime = 30 * time.Second

	// callsEnd is how long the conductor waits for all calls that are under way: then one of them never ends.
	callsEnd = 2 * commandTime

	// maxReadings is as many as a slope is found from in a moment: it takes each two of them.
	maxReadings = 1000

	// maxSoakWorkers is as many as a server that takes a millisecond for each INCR answers well within a window.
	maxSoakWorkers = 512
)

// place is an address that the load can be at.
type place interface {
	endpoint
	Cut()
	Refuse(on bool)
	Stall(on bool)
	Freeze(on bool)
	Delay(command string, d time.Duration)
	Push(frame ...any)
	NextSeq() int64
}

// soaker is one soak.
type soaker struct {
	// Set before the load begins, read-only afterwards.
	cfg    config
	every  time.Duration // between readings, at least
	script []episode
	places []place
	dead   string        // an address where nobody is
	direct baton.Options // to the data, past all faults
	shown  baton.Options // of the client that is judged; the others' are made from it
	client *baton.Client
	keys   string
	began  time.Time
	stderr io.Writer

	door atomic.Pointer[string] // where frontDoor leads

	// rest is held for reading by whoever of the load has something under way, and taken by the conductor for the load to rest.
	rest sync.RWMutex
	load *load
	crew *crew
	ledger

	// Owned by the conductor.
	rand        *rand.Rand
	ctx         context.Context
	at          place // where the clients are sent
	deck        []*episode
	played      map[string]int
	announced   int
	readings    []reading
	interrupted bool
	latest      []string // episodes since the last reading
	toldOf      int      // violations that were told of
}

// runSoak returns the exit status.
func runSoak(ctx context.Context, cfg config, stdout, stderr io.Writer) int {
	good, err := soak(ctx, cfg, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "handoff: %v\n", err)
	}
	if !good || err != nil {
		return 1
	}
	return 0
}

// soak runs one and tells how it went.
func soak(ctx context.Context, cfg config, stdout, stderr io.Writer) (bool, error) {
	outset := read(0)
	s, err := newSoaker(ctx, cfg, stderr)
	if err != nil {
		return false, err
	}
	if !cfg.json {
		fmt.Fprintln(stdout, s.intention())
	}
	err = s.run(ctx)
	s.close()
	if err != nil {
		return false, err
	}
	s.leftOver(outset)
	r := s.report()
	if cfg.csv != "" {
		if err := saveCSV(cfg.csv, r.Readings); err != nil {
			return false, err
		}
	}
	if cfg.json {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		r.write(stdout)
	}
	return r.good(), err
}

func saveCSV(name string, all []reading) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(writeCSV(f, all), f.Close())
}

// newSoaker sets the places up.
func newSoaker(ctx context.Context, cfg config, stderr io.Writer) (*soaker, error) {
	s := &soaker{cfg: cfg, every: max(min(max(cfg.soak/120, 250*time.Millisecond), 4*time.Second), cfg.soak/maxReadings), script: episodes, stderr: stderr,
		keys: "baton:soak:" + strconv.FormatInt(time.Now().UnixNano(), 36) + ":",
		rand: rand.New(rand.NewPCG(cfg.seed, 0)), played: map[string]int{}}
	if cfg.addr != "" {
		if err := checkShared(ctx, cfg, s.keys+"shared"); err != nil {
			return nil, err
		}
	}
	// What is kept of the soak has its room from the beginning, so as not to rise itself.
	s.disturbances = make([]disturbance, 0, keptDisturbances)
	s.readings = make([]reading, 0, maxReadings)
	var opts []batontest.Option
	if cfg.tls {
		cert, pool := batontest.SelfSigned("127.0.0.1", "192.0.2.1")
		opts = append(opts, batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{cert}}))
		s.shown.TLS = &tls.Config{RootCAs: pool}
	}
	if err := s.build(opts); err != nil {
		s.close()
		return nil, err
	}
	s.at = s.places[0]
	s.lead(s.at)
	s.shown.Addr, s.shown.Dialer, s.shown.Conns, s.shown.Timeout = frontDoor, s.dial, cfg.conns, commandTime
	s.shown.MaxMessages = 1 << 16 // a subscriber that the machine keeps from running for a minute is no fault of the client
	s.shown.Maintenance.Mode = baton.Enabled
	return s, nil
}

// build starts three places before the same data: servers of this process, or relays before the real ones.
func (s *soaker) build(opts []batontest.Option) error {
	addrs, err := quietAddrs(4)
	if err != nil {
		return err
	}
	s.dead = addrs[3]
	with := func(i int) []batontest.Option { return append(slices.Clone(opts), batontest.WithAddr(addrs[i])) }
	if s.cfg.addr != "" {
		a := batontest.NewRelay(s.cfg.addr, with(0)...)
		s.places = []place{a, a.SiblingTo(s.cfg.to, with(1)...), a.SiblingTo(s.cfg.addr, with(2)...)}
		s.direct = directly(s.cfg.to)
		return nil
	}
	a := batontest.NewServer(with(0)...)
	data := a.Sibling()
	s.places = []place{a, a.Sibling(with(1)...), a.Sibling(with(2)...), data} // the last is never announced, nor disturbed
	s.direct = baton.Options{Addr: data.Addr(), TLS: s.shown.TLS}
	s.direct.Maintenance.Mode = baton.Disabled
	return nil
}

// quietAddrs are free addresses whose ports are not those that the system gives to outgoing connections: of thousands of dials to
// a port that nobody listens on one would connect to itself, and keep the port.
func quietAddrs(n int) (addrs []string, err error) {
	const first, count, tries = 20000, 10000, 200
	for range tries {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(count)))
		if ln, err := net.Listen("tcp", addr); err == nil && !slices.Contains(addrs, addr) {
			ln.Close()
			if addrs = append(addrs, addr); len(addrs) == n {
				return addrs, nil
			}
		}
	}
	return nil, fmt.Errorf("no free ports from %d to %d", first, first+count)
}

func (s *soaker) close() {
	for _, p := range s.places {
		p.Close()
	}
}

// lead has the configured address lead to p.
func (s *soaker) lead(p place) {
	addr := p.Addr()
	s.door.Store(&addr)
}

// dial is the clients' dialer.
func (s *soaker) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if addr == frontDoor {
		addr = *s.door.Load()
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// run is the soak itself: the load begins, the conductor plays, and at the end everything that was counted is compared.
func (s *soaker) run(ctx context.Context) (err error) {
	s.ctx = ctx
	if s.client, err = baton.Dial(ctx, s.shown); err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer s.client.Close()
	s.load = newLoad(s.client, s.cfg, s.keys)
	s.began, s.ledger.began = s.load.began, s.load.began
	if s.crew, err = newCrew(ctx, s); err != nil {
		return err
	}
	defer s.crew.close()
	s.crew.begin()
	watch := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watchStandstills(watch)
	}()
	err = s.conduct()
	close(s.load.over)
	if err == nil {
		err = s.crew.finish()
	}
	close(watch)
	<-watched
	s.judge()
	return err
}

// conduct returns when the soak is over, or a call never ends.
func (s *soaker) conduct() error {
	last := time.Now()
	for time.Since(s.began) < s.cfg.soak && s.ctx.Err() == nil {
		s.play(s.draw())
		if time.Since(last) < s.every {
			continue
		}
		if err := s.look(); err != nil {
			return err
		}
		last = time.Now()
	}
	s.interrupted = s.ctx.Err() != nil
	return s.look()
}

// draw takes the next episode from a deck that holds each as often as it weighs, so that chance leaves out none for long.
func (s *soaker) draw() *episode {
	if len(s.deck) == 0 {
		for i := range s.script {
			for range s.script[i].weight {
				s.deck = append(s.deck, &s.script[i])
			}
		}
		s.rand.Shuffle(len(s.deck), func(i, j int) { s.deck[i], s.deck[j] = s.deck[j], s.deck[i] })
	}
	e := s.deck[0]
	s.deck = s.deck[1:]
	return e
}

func (s *soaker) play(e *episode) {
	s.tell("%s", e.name)
	s.latest = append(s.latest, e.name)
	s.played[e.name]++
	e.play(s)
}

// pause waits for d, or says that the soak is interrupted.
func (s *soaker) pause(d time.Duration) bool { return sleepUntil(s.ctx.Done(), time.Now().Add(d)) }

// look has the load rest, reads the process, judges what has failed, and tells.
func (s *soaker) look() error {
	rests := make(chan struct{})
	go func() {
		s.rest.Lock()
		close(rests)
	}()
	select {
	case <-rests:
	case <-time.After(callsEnd):
		stacks := make([]byte, 1<<20)
		fmt.Fprintf(s.stderr, "%s\n", stacks[:runtime.Stack(stacks, true)])
		return fmt.Errorf("a call has not ended after %v, seed %d; all goroutines are above", callsEnd, s.cfg.seed)
	}
	defer s.rest.Unlock()
	s.settle()
	s.judge()
	r := read(time.Since(s.began))
	r.Commands, r.Handoffs = s.crew.commands(), s.client.Stats().Handoffs
	r.Faults, r.Violations = s.faults(), s.violated()
	s.readings = append(s.readings, r)
	s.live(r)
	for ; s.toldOf < len(s.first); s.toldOf++ { // at once: somebody may be looking
		fmt.Fprintf(s.stderr, "violation: %s\n", s.first[s.toldOf])
	}
	s.latest = s.latest[:0]
	return nil
}

// settle waits for what is about to end: retired connections and dials that nobody needs. It has a second for that.
func (s *soaker) settle() {
	const look, enough = 10 * time.Millisecond, 3
	goroutines, files, same := 0, 0, 0
	for end := time.Now().Add(time.Second); same < enough && time.Now().Before(end); time.Sleep(look) {
		g, f := runtime.NumGoroutine(), descriptors()
		if same++; g != goroutines || f != files {
			goroutines, files, same = g, f, 0
		}
	}
}

// live is one line for each reading.
func (s *soaker) live(r reading) {
	rate, before := 0.0, reading{}
	if n := len(s.readings); n > 1 {
		before = s.readings[n-2]
	}
	if r.At > before.At {
		rate = float64(r.Commands-before.Commands) / (r.At - before.At)
	}
	files := strconv.Itoa(r.Descriptors)
	if r.Descriptors < 0 {
		files = "?"
	}
	fmt.Fprintf(s.stderr, "%6.1f s %9s commands/s %7s KiB heap %4d goroutines %4s descriptors %5d handoffs %3d faults %2d violations  %s\n",
		r.At, group(uint64(rate)), group(r.Heap/1024), r.Goroutines, files, r.Handoffs, r.Faults, r.Violations, strings.Join(s.latest, ", "))
}

// leftOver compares the process with what it was before anything was started. The runtime may keep two descriptors for its poller.
func (s *soaker) leftOver(outset reading) {
	const poller, patience = 2, 3 * time.Second
	now := read(0)
	more := func() bool {
		return now.Goroutines > outset.Goroutines || now.Descriptors > outset.Descriptors+poller
	}
	for end := time.Now().Add(patience); more() && time.Now().Before(end); now = read(0) {
		time.Sleep(10 * time.Millisecond)
	}
	if more() {
		stacks := make([]byte, 1<<18)
		s.violate(leftOver, fmt.Errorf("%d goroutines and %d descriptors after everything was closed, %d and %d before it was begun\n%s",
			now.Goroutines, now.Descriptors, outset.Goroutines, outset.Descriptors, stacks[:runtime.Stack(stacks, true)]))
	}
}

func (s *soaker) intention() string {
	kind := "three servers in this process"
	if s.cfg.addr != "" {
		kind = fmt.Sprintf("three relays before %s and %s", s.cfg.addr, s.cfg.to)
	}
	var also string
	if s.cfg.tls {
		also += ", TLS"
	}
	if s.cfg.mix {
		also += ", with pops, messages and transactions"
	}
	return fmt.Sprintf("a soak of %v, seed %d: %s\n%d workers, connections: %d%s; beside them contexts that end, batches, sessions, blocking commands,\n"+
		"subscriptions that come and go, an impatient client, and clients that are dialled and closed\n", s.cfg.soak, s.cfg.seed, kind, s.cfg.workers, s.cfg.conns, also)
}

// soakReport is how it went. The field names of the JSON object are promised.
type soakReport struct {
	Seed         uint64            `json:"seed"`
	Seconds      float64           `json:"seconds"`
	Interrupted  bool              `json:"interrupted"`
	Commands     uint64            `json:"commands"` // of the workers
	P50US        float64           `json:"p50_us"`
	P99US        float64           `json:"p99_us"`
	LongestMS    float64           `json:"longest_ms"`
	Announced    int               `json:"announced"` // MOVING, without repetitions
	Handoffs     uint64            `json:"handoffs"`  // of connections of the client that is judged
	GivenUp      uint64            `json:"handoffs_given_up"`
	Reconnects   uint64            `json:"reconnects"`
	Episodes     map[string]int    `json:"episodes"`
	Cancelled    int               `json:"cancelled"` // by their own contexts, or the impatient client's timeout
	Excused      map[string]int    `json:"excused"`   // failures, by the fault that explains them
	Standstills  int               `json:"standstills"`
	Violations   map[violation]int `json:"violations"`
	First        []string          `json:"first_violations"`
	Slopes       map[string]*slope `json:"slopes"`
	Readings     []reading         `json:"readings"`
	slopesInLine []slope
}

func (s *soaker) report() *soakReport {
	stats := s.client.Stats()
	r := &soakReport{Seed: s.cfg.seed, Seconds: s.crew.ended.Sub(s.began).Seconds(), Interrupted: s.interrupted, Commands: s.crew.commands(),
		Announced: s.announced, Handoffs: stats.Handoffs, GivenUp: stats.HandoffsGivenUp, Reconnects: stats.Reconnects,
		Episodes: s.played, Cancelled: s.cancelled, Excused: s.excused, Standstills: s.standstills, Violations: s.violations, First: s.first,
		Readings: s.readings, slopesInLine: slopes(s.readings), Slopes: map[string]*slope{}}
	if r.Violations == nil {
		r.Violations, r.First = map[violation]int{}, []string{} // nobody has to expect null
	}
	h := s.crew.latencies()
	r.P50US, r.P99US, r.LongestMS = micros(h.quantile(.5)), micros(h.quantile(.99)), millis(h.max)
	for i := range r.slopesInLine {
		r.Slopes[r.slopesInLine[i].name] = &r.slopesInLine[i]
	}
	return r
}

// good is what the exit status says. What falls is no leak; that a soak was too short to see one is said, and no failure.
func (r *soakReport) good() bool { return len(r.Violations) == 0 && r.named(rising) == nil }

func (r *soakReport) write(out io.Writer) {
	fmt.Fprintf(out, "%s commands in %.1f s: p50 %.0f µs, p99 %.0f µs, longest %.1f ms\n", group(r.Commands), r.Seconds, r.P50US, r.P99US, r.LongestMS)
	fmt.Fprintf(out, "%d moves announced; %s replacements promoted, %d handoffs given up, %d connections lost and replaced\n", r.Announced,
		group(r.Handoffs), r.GivenUp, r.Reconnects)
	fmt.Fprintf(out, "played: %s\n", counted(r.Episodes))
	if len(r.Excused) > 0 {
		fmt.Fprintf(out, "failed, and may: %s\n", counted(r.Excused))
	}
	fmt.Fprintf(out, "gave up by their own context or timeout: %s\n", group(uint64(r.Cancelled)))
	if r.Standstills > 0 {
		fmt.Fprintf(out, "the machine stood still %d times, for %v or more\n", r.Standstills, standstillFrom)
	}
	fmt.Fprintln(out)
	for _, s := range r.slopesInLine {
		fmt.Fprintf(out, "%-12s %s\n", s.name, s.describe())
	}
	fmt.Fprintln(out)
	for _, text := range r.First {
		fmt.Fprintf(out, "violation: %s\n", text)
	}
	fmt.Fprintf(out, "%s, seed %d\n", r.word(), r.Seed)
}

// counted are numbers by name, the largest first.
func counted[K ~string](m map[K]int) string {
	names := slices.SortedFunc(maps.Keys(m), func(a, b K) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(string(a), string(b))
	})
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d %s", m[name], name)
	}
	return b.String()
}

func (r *soakReport) word() string {
	var bad, also []string
	if len(r.Violations) > 0 {
		bad = append(bad, counted(r.Violations))
	}
	for _, name := range r.named(rising) {
		bad = append(bad, "rising: "+name)
	}
	for _, state := range []stateOfSeries{falling, unavailable} {
		if names := r.named(state); names != nil {
			also = append(also, string(state)+": "+strings.Join(names, ", "))
		}
	}
	switch {
	case len(bad) > 0:
		return "FAILED: " + strings.Join(bad, "; ")
	case r.Interrupted:
		return "interrupted, good so far: 0 violations"
	case r.named(undecided) != nil:
		return "GOOD as far as it goes: 0 violations, and too short for slopes"
	case also != nil:
		return "GOOD: 0 violations, and nothing rises; " + strings.Join(also, "; ")
	}
	return "GOOD: 0 violations, and no slope can be told from zero"
}

// named are the series of which this is to be said.
func (r *soakReport) named(state stateOfSeries) (names []string) {
	for _, s := range r.slopesInLine {
		if s.State == state {
			names = append(names, s.name)
		}
	}
	return names
}
