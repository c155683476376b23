package baton

// The fault matrix: a real redis-server behind a relay and a link, callers of every kind, one fault per row, and what the contract
// promises for it. Each row is a subtest of TestFaultMatrix: plain, with TLS (the relay ends it), and, where the fault is the server's own,
// direct, without anything in between. Rows mostly wait, so they run side by side, however few processors there are. All waits are for
// conditions; what a row's options allow to time out is in its promise.

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.com/baton/batontest"
)

// faultRow is a line of the matrix.
type faultRow struct {
	name    string
	promise string
	may     []string // the kinds of failure that the promise has room for, beside that of a context that ended
	must    []string // of these, what is certain to be seen
	direct  bool     // the fault is the server's own
	child   bool     // the client has a process of its own
	large   bool     // there are large commands among the load
	idle    bool     // it mostly waits, and so takes nobody's turn
	server  []string // settings of the redis-server
	options func(*Options)
	fault   func(s *faultStage) // brings the fault about, sees it end, and the load go on
}

// The kinds of failure of a call, beside the codes of servers' errors.
const (
	failCut     = "cut"           // the connection ended: maybe executed
	failSilent  = "silent"        // the connection was given up, since not a byte came: maybe executed
	failLate    = "late"          // ErrTimeout, maybe executed
	failWaited  = "waited"        // ErrTimeout, never sent
	failNone    = "no connection" // never sent
	failClosed  = "closed"        // ErrClosed
	failContext = "context"
)

var (
	failTimes = []string{failLate, failWaited, failSilent}
	failOver  = []string{"READONLY", "UNBLOCKED", "EXECABORT", "LOADING"} // a server's answers: not executed
)

// failureKind says of which kind an error is, or repeats it if it is of none.
func failureKind(err error) string {
	var s *ServerError
	sent := MaybeExecuted(err)
	switch {
	case errors.As(err, &s) && !sent:
		return s.Code
	case errors.Is(err, ErrClosed):
		return failClosed
	case errors.Is(err, ErrTimeout) && sent:
		return failLate
	case errors.Is(err, ErrTimeout):
		return failWaited
	case errors.Is(err, ErrNoConnection) && !sent:
		return failNone
	case errors.Is(err, context.DeadlineExceeded):
		return failContext
	case sent && strings.Contains(err.Error(), "not a byte for"):
		return failSilent
	case sent && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)):
		return failCut
	}
	return fmt.Sprintf("%v (maybe executed: %v)", err, sent)
}

// patient has nothing time out, so that whatever fails has another reason.
func patient(o *Options) { o.Timeout, o.DialTimeout = 60*time.Second, 60*time.Second }

// hurried has what is not answered time out soon, and a connection that is silent be replaced soon.
func hurried(o *Options) {
	o.Timeout, o.DialTimeout, o.KeepAlive = 500*time.Millisecond, time.Second, time.Second
}

// hurriedDials has dials time out soon, and nothing else.
func hurriedDials(o *Options) {
	o.DialTimeout, o.Maintenance.RelaxedTimeout = 500*time.Millisecond, 500*time.Millisecond
}

var faultRows = []faultRow{
	{
		name:    "stopped",
		promise: "while the server is stopped for 10 s calls end with their timeout; what it carries out when it goes on it carries out once",
		may:     failTimes, must: []string{failLate, failWaited}, direct: true, large: true, idle: true, options: hurried,
		fault: func(s *faultStage) {
			s.stopFor(10*time.Second, s.noticed)
			s.gaps, s.moreGaps = 1, true
		},
	},
	{
		name:    "stopped within the timeout",
		promise: "a server that is stopped for 10 s is waited for, if Timeout is longer: nothing fails, no connection is lost",
		direct:  true, large: true, idle: true,
		fault: func(s *faultStage) {
			s.stopFor(10*time.Second, func() {})
			s.undisturbed()
		},
	},
	{
		name:    "reset",
		promise: "a reset fails what is in flight, once for each caller, as maybe executed; what waits is sent on the next connection",
		may:     []string{failCut}, must: []string{failCut},
		fault: func(s *faultStage) {
			for range 3 {
				s.lose(s.link.Reset)
			}
			s.loseSome(true, true, s.link.Reset) // with what is under way at any byte
		},
	},
	{
		name:    "half-close",
		promise: "a server that ends its side and reads on is as good as gone: what is in flight fails as maybe executed, and the socket is closed",
		may:     []string{failCut}, must: []string{failCut},
		fault: func(s *faultStage) {
			for range 2 {
				s.lose(s.link.HalfClose)
			}
			s.loseSome(true, true, s.link.HalfClose)
		},
	},
	{
		name:    "blackhole for a while",
		promise: "in a black hole calls end with their timeout; silent connections are closed and dialled again until that succeeds",
		may:     failTimes, must: []string{failLate, failWaited}, options: hurried,
		fault: func(s *faultStage) {
			s.link.Blackhole(true)
			s.noticed()
			s.link.Blackhole(false)
			s.gaps, s.moreGaps = 1, true
		},
	},
	{
		name:    "blackhole for ever",
		promise: "in a black hole without end every call ends, with its timeout or with Close, and Close leaves nothing",
		may:     append([]string{failClosed}, failTimes...), must: []string{failLate, failWaited}, options: hurried,
		fault: func(s *faultStage) {
			s.link.Blackhole(true)
			s.crew.calls(3)
			s.noticed()
			s.forEver = true
		},
	},
	{
		name:    "one byte at a time",
		promise: "bytes may come one by one, both ways: nothing fails",
		fault: func(s *faultStage) {
			s.link.Chunk(1)
			s.crew.further(50)
			s.undisturbed()
		},
	},
	{
		name:    "latency",
		promise: "a long way costs time alone; the replies that callers gave up on meanwhile are nobody else's",
		fault: func(s *faultStage) {
			s.link.Latency(20 * time.Millisecond)
			s.crew.further(20)
			s.undisturbed()
		},
	},
	{
		name:    "bandwidth",
		promise: "a narrow way costs time alone",
		large:   true,
		fault: func(s *faultStage) {
			s.link.Bandwidth(4 << 20)
			s.crew.further(2)
			s.link.Bandwidth(0)
			s.undisturbed()
		},
	},
	{
		name:    "full buffers within the timeout",
		promise: "while the server reads nothing and buffers are full, contexts are obeyed, and nothing else ends; then everything is sent",
		large:   true,
		fault: func(s *faultStage) {
			s.link.Freeze(true)
			s.await("a write is under way", s.writing)
			s.crew.hasty(20)
			if !s.writing() { // the kernel's buffers have room for more than was written; what is asserted holds all the same
				s.t.Log("the write was not stuck")
			}
			s.link.Freeze(false)
			s.undisturbed()
		},
	},
	{
		name:    "full buffers",
		promise: "a connection whose write is stuck is given up; half a command is never carried out; what was not begun is sent on the next",
		may:     failTimes, must: []string{failLate, failWaited}, large: true, options: hurried,
		fault: func(s *faultStage) {
			s.link.Freeze(true)
			s.await("a write is under way", s.writing)
			s.crew.hasty(20)
			s.noticed()
			s.link.Freeze(false)
			s.gaps, s.moreGaps = 1, true
		},
	},
	{
		name:    "killed and started again",
		promise: "a server that is killed fails what is in flight, as maybe executed; what waits is sent when it is back in its place",
		may:     []string{failCut}, must: []string{failCut}, direct: true,
		server: []string{"--appendonly", "yes", "--appendfsync", "no"}, // what was answered is in the file, which outlives the process
		fault: func(s *faultStage) {
			for range 2 {
				s.lose(func() { s.r.kill(); s.r.start() })
			}
		},
	},
	{
		name:    "client kill normal",
		promise: "another client kills all that send commands: what is in flight fails as maybe executed; subscribers do not notice",
		may:     []string{failCut}, must: []string{failCut}, direct: true,
		fault: func(s *faultStage) {
			for range 10 { // often enough for something to be in flight
				s.loseSome(true, false, func() { s.kill("TYPE", "normal") })
			}
		},
	},
	{
		name:    "client kill pubsub",
		promise: "another client kills all subscribers: one gap is reported for each loss; commands do not notice",
		direct:  true,
		fault: func(s *faultStage) {
			for range 3 {
				s.loseSome(false, true, func() { s.kill("TYPE", "pubsub") })
			}
		},
	},
	{
		name:    "client kill all",
		promise: "another client kills everybody: what is in flight fails as maybe executed, and a gap is reported",
		may:     []string{failCut}, must: []string{failCut}, direct: true,
		fault: func(s *faultStage) {
			for range 10 { // often enough for something to be in flight
				s.lose(func() { s.kill("USER", "default") })
			}
		},
	},
	{
		name:    "client pause all",
		promise: "a pause within the timeout is waited for",
		direct:  true,
		fault: func(s *faultStage) {
			for range 2 {
				s.do("CLIENT", "PAUSE", 500, "ALL")
				s.crew.further(10)
			}
			s.undisturbed()
		},
	},
	{
		name:    "client pause write",
		promise: "a pause of writing within the timeout is waited for, by those who read on the same connection as well",
		direct:  true,
		fault: func(s *faultStage) {
			for range 2 {
				s.do("CLIENT", "PAUSE", 500, "WRITE")
				s.crew.further(10)
			}
			s.undisturbed()
		},
	},
	{
		name:    "client pause beyond the timeout",
		promise: "in a longer pause calls end with their timeout; what the server then carries out it carries out once",
		may:     failTimes, must: []string{failLate, failWaited}, direct: true, options: hurried,
		fault: func(s *faultStage) {
			for !s.crew.seen(failLate, failWaited) {
				s.do("CLIENT", "PAUSE", (4 * s.options.Timeout).Milliseconds(), "ALL")
				s.do("PING") // is answered when it is over
			}
			s.moreGaps = true // if it took long enough for that
		},
	},
	{
		name:    "output limit",
		promise: "a client that is cut because its reply is too large: that call and what was in flight beside it fail as maybe executed",
		may:     []string{failCut}, direct: true,
		fault: func(s *faultStage) {
			s.do("CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 1mb 0")
			s.do("SET", "huge", make([]byte, 4<<20))
			for range 3 {
				s.loseSome(true, false, func() {
					if err := s.c.Do(background, "GET", "huge").Err(); failureKind(err) != failCut {
						s.t.Errorf("GET of what exceeds the limit: %v", err)
					}
				})
			}
		},
	},
	{
		name:    "output limit of subscribers",
		promise: "a subscriber that is cut because too much waits for it: a gap is reported, then messages come in order; commands do not notice",
		direct:  true,
		fault: func(s *faultStage) {
			s.do("CONFIG", "SET", "client-output-buffer-limit", "pubsub 64kb 64kb 0")
			for range 3 {
				s.loseSome(false, true, func() { s.do("PUBLISH", faultLoud, make([]byte, 1<<20)) })
			}
		},
	},
	{
		name:    "failover",
		promise: "between FAILING_OVER and FAILED_OVER a READONLY is returned, not executed, and leads to the new master; subscribers miss nothing",
		may:     failOver, must: []string{"READONLY"},
		fault: func(s *faultStage) {
			p := s.replica()
			s.relay.Push("FAILING_OVER", s.relay.NextSeq(), 2, `["1"]`)
			s.promote(p)
			s.link.Target(p.relay.Addr())
			s.demote(p)
			s.crew.kinds("READONLY")
			s.await("a handoff to the new master", func() bool { return s.c.Stats().Handoffs >= 1 })
			s.switchOver(p)
			s.relay.Push("FAILED_OVER", s.relay.NextSeq(), `["1"]`)
			s.crew.further(20)
			if n := s.c.Stats().Reconnects; n > 0 { // what the server closed behind UNBLOCKED is none
				s.t.Errorf("connections for commands or subscribers were lost, %d times", n)
			}
		},
	},
	{
		name:    "failover with a move",
		promise: "who is told to move before the old master is a replica loses no more than what was in flight there, and that is answered READONLY",
		may:     failOver,
		fault: func(s *faultStage) {
			p := s.replica()
			successor := s.linkTo(p.relay)
			s.relay.Push("FAILING_OVER", s.relay.NextSeq(), 2, `["1"]`)
			s.promote(p)
			s.relay.Move(successor.Addr(), 20*time.Second)
			s.await("everybody has moved", func() bool { return s.allAt(successor) })
			s.link.Target(p.relay.Addr()) // a session to come has to be somewhere when the window is over
			s.demote(p)
			s.switchOver(p)
			p.relay.Push("FAILED_OVER", p.relay.NextSeq(), `["1"]`)
			s.crew.further(20)
			for _, k := range s.crew.callers {
				k.atMost(1, failOver...)
			}
			s.unbroken()
		},
	},
	{
		name:    "move over a bad line",
		promise: "a handoff on slow lines that deliver few bytes at a time fails nothing",
		fault: func(s *faultStage) {
			to := s.successor()
			for _, l := range []*batontest.Link{s.link, to} {
				l.Latency(5 * time.Millisecond)
				l.Chunk(3)
			}
			s.relay.Move(to.Addr(), 20*time.Second)
			s.moved(to)
		},
	},
	{
		name:    "move into a black hole",
		promise: "a successor that cannot be reached is tried again while the old connection serves: nothing fails",
		options: hurriedDials,
		fault: func(s *faultStage) {
			to := s.successor()
			to.Blackhole(true)
			s.relay.Move(to.Addr(), 40*time.Second)
			s.await("dials that fail", func() bool { return s.events.count(EventDialFailed) >= 2 })
			s.crew.connected(10)
			to.Blackhole(false)
			s.moved(to)
		},
	},
	{
		name:    "move with resets at the successor",
		promise: "a successor that resets connections before they are ready is tried again while the old connection serves: nothing fails",
		options: hurriedDials,
		fault: func(s *faultStage) {
			to := s.successor()
			to.Mute(true) // none becomes ready
			s.relay.Move(to.Addr(), 40*time.Second)
			for failed := 0; failed < 4; failed = s.events.count(EventDialFailed) {
				s.await("an attempt, or that one failed", func() bool { return to.Conns() > 0 || s.events.count(EventDialFailed) > failed })
				to.Reset()
			}
			s.crew.connected(10)
			to.Mute(false)
			s.moved(to)
		},
	},
	{
		name:    "out of descriptors",
		promise: "without descriptors live connections go on; dials fail with EMFILE and are tried again; what waits is sent once there are some",
		may:     []string{failCut}, child: true,
		fault: (*faultStage).withoutDescriptors,
	},
}

// faultsAtOnce is how many variants of rows run at the same time: they mostly wait.
const faultsAtOnce = 12

// Run it with BATON_REDIS_RUNS=1 go test -run FaultMatrix .
func TestFaultMatrix(t *testing.T) {
	if os.Getenv("BATON_REDIS_RUNS") != "1" {
		t.Skip("BATON_REDIS_RUNS=1 makes it run")
	}
	t.Setenv("BATON_REQUIRE_REDIS", "1")
	before, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	turns := make(chan struct{}, faultsAtOnce)
	var wg sync.WaitGroup
	for i := range faultRows {
		row := &faultRows[i]
		wg.Go(func() { t.Run(row.name, func(t *testing.T) { row.run(t, turns) }) })
	}
	wg.Wait()
	settled(t, before)
	eventually(t, "no descriptor is left", func() bool { return openDescriptors(t) <= descriptors })
}

// run runs the variants of a row.
func (row *faultRow) run(t *testing.T, turns chan struct{}) {
	t.Log(row.promise)
	variants := []string{"plain", "tls"}
	if row.direct {
		variants = append(variants, "direct")
	}
	var wg sync.WaitGroup
	for _, variant := range variants {
		wg.Go(func() {
			t.Run(variant, func(t *testing.T) {
				if !row.idle {
					turns <- struct{}{}
					defer func() { <-turns }()
				}
				label := strings.ReplaceAll(t.Name(), "/", " ")
				pprof.SetGoroutineLabels(pprof.WithLabels(background, pprof.Labels(faultLabel, label))) // whatever it starts has them, too
				if row.child {
					faultParent(t, variant)
				} else {
					newFaultStage(t, row, variant).run()
				}
				eventually(t, "none of its goroutines is left", func() bool { return labelled(label) == 1 })
			})
		})
	}
	wg.Wait()
}

const faultLabel = "fault"

var labelLine = regexp.MustCompile(`(?m)^(\d+) @ [^\n]*\n# labels: \{"` + faultLabel + `":"([^"]*)"\}`)

// labelled counts the goroutines with a label.
func labelled(label string) (n int) {
	var profile strings.Builder
	pprof.Lookup("goroutine").WriteTo(&profile, 1)
	for _, found := range labelLine.FindAllStringSubmatch(profile.String(), -1) {
		if k, _ := strconv.Atoi(found[1]); found[2] == label {
			n += k
		}
	}
	return n
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// faultStage is one variant of a row: a server, what is before it, a client, and its load.
type faultStage struct {
	t       *testing.T
	row     *faultRow
	r       *redis            // nil in a child process
	relay   *batontest.Relay  // nil in a direct variant
	link    *batontest.Link   // where the client is told to connect
	links   []*batontest.Link // that and others
	closers []func()
	options Options

	admin  *Client // talks to the server past all faults
	c      *Client
	crew   *faultCrew
	ear    *faultEar
	events journal

	losses   int  // how often connections for commands were lost
	gaps     int  // and those of subscribers
	moreGaps bool // there may be more than those
	forEver  bool // the fault does not end
}

func newFaultStage(t *testing.T, row *faultRow, variant string) *faultStage {
	s := &faultStage{t: t, row: row, r: startRedis(t, row.server...)}
	s.closers = append(s.closers, s.r.kill)
	s.options = Options{Addr: s.r.addr, OnEvent: s.events.add, MaxMessages: 1 << 20}
	s.options.Maintenance.Mode = Disabled
	if variant != "direct" {
		certificate, roots := batontest.SelfSigned("127.0.0.1")
		s.before(variant, certificate)
		if variant == "tls" {
			s.options.TLS = &tls.Config{RootCAs: roots}
		}
	}
	s.admin = s.adminOf(s.r.socket)
	return s
}

// before puts a relay and a link before the server.
func (s *faultStage) before(variant string, certificate tls.Certificate) {
	relayed := []batontest.Option{batontest.CloseAfter(time.Hour)} // who does not move in time is not what is tested
	if variant == "tls" {
		relayed = append(relayed, batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{certificate}}))
	}
	s.relay = batontest.NewRelay(s.r.addr, relayed...)
	s.closers = append(s.closers, s.relay.Close)
	s.link = s.linkTo(s.relay)
	s.options.Addr, s.options.Maintenance.Mode = s.link.Addr(), Enabled
}

// adminOf is a client of a server's unix socket that is never in a hurry.
func (s *faultStage) adminOf(socket string) *Client {
	o := Options{Network: "unix", Addr: socket, Timeout: -1}
	o.Maintenance.Mode = Disabled
	return dialOptions(s.t, o)
}

func (s *faultStage) run() {
	s.begin()
	s.row.fault(s)
	s.end()
}

// begin dials and has the load going.
func (s *faultStage) begin() {
	patient(&s.options)
	if s.row.options != nil {
		s.row.options(&s.options)
	}
	s.allowFor(s.pace())
	s.await("the first connection", func() (ok bool) {
		var err error
		s.c, err = Dial(background, s.options)
		return err == nil
	})
	s.crew = newFaultCrew(s)
	s.t.Cleanup(s.abandon)
	var sub *Subscription
	s.await("the subscription", func() (ok bool) {
		var err error
		sub, err = s.c.Subscribe(background, faultChannel, faultLoud)
		return err == nil
	})
	s.ear = newFaultEar(s.t, sub)
	s.crew.further(5)
	s.hears(5)
}

// pace is how long a dial and some calls take now, where everything else starts, too.
func (s *faultStage) pace() time.Duration {
	o, began := s.options, time.Now()
	patient(&o)
	o.OnEvent = nil
	c := dialOptions(s.t, o)
	defer c.Close()
	for range 10 {
		c.Do(background, "PING")
	}
	return time.Since(began)
}

// allowFor gives who is in a hurry more time on a machine that is busy.
func (s *faultStage) allowFor(pace time.Duration) {
	o := &s.options
	slow := min(max(1, 10*pace/time.Second), 10)
	for _, d := range []*time.Duration{&o.Timeout, &o.DialTimeout, &o.KeepAlive, &o.Maintenance.RelaxedTimeout} {
		*d *= slow
	}
}

// end judges: the load goes on, it ends, nothing is left, and the server's data is what callers were told.
func (s *faultStage) end() {
	if s.forEver {
		s.c.Close() // while calls are under way
	} else {
		s.crew.further(10)
		s.hears(10)
		s.onlyLive()
	}
	s.crew.stop()
	s.ear.close()
	if n := int(s.ear.gaps.Load()); n < s.gaps || n > s.gaps && !s.moreGaps {
		s.t.Errorf("%d gaps were reported, want %d (or more: %v)", n, s.gaps, s.moreGaps)
	}
	if stats := s.c.Stats(); stats.InFlight+stats.Backlog > 0 && !s.forEver {
		s.await("nothing is queued or in flight", func() bool { stats := s.c.Stats(); return stats.InFlight+stats.Backlog == 0 })
	}
	s.c.Close()
	s.nothingLeft()
	s.crew.verdict()
	s.admin.Close()
	s.close()
}

// onlyLive waits until the client has no other sockets than its ready connections.
func (s *faultStage) onlyLive() {
	if s.link != nil {
		s.await("sockets are those of ready connections alone", func() bool { return s.sockets() == s.c.Stats().Conns })
	}
}

func (s *faultStage) sockets() (n int) {
	for _, l := range s.links {
		n += l.Conns()
	}
	return n
}

// nothingLeft waits until the client's sockets are closed, and the server has heard the last of it.
func (s *faultStage) nothingLeft() {
	s.await("the client's sockets are closed", func() bool { return s.sockets() == 0 })
	for _, l := range s.links {
		l.Close() // what a black hole has kept from the server ends now
	}
	s.await("the server has no other client", func() bool {
		list, err := s.admin.Do(background, "CLIENT", "LIST", "TYPE", "normal").Text()
		subscribers, err2 := s.admin.Do(background, "CLIENT", "LIST", "TYPE", "pubsub").Text()
		return cmp.Or(err, err2) == nil && strings.Count(list+subscribers, "\n") == 1
	})
}

// abandon ends what may be left of a stage that has failed.
func (s *faultStage) abandon() {
	s.crew.over.Store(true)
	s.c.Close()
	s.admin.Close()
	s.crew.wg.Wait()
	if s.ear != nil {
		s.ear.close()
	}
	s.close()
}

func (s *faultStage) close() {
	for _, closes := range slices.Backward(s.closers) {
		closes()
	}
	s.closers = nil
}

// await waits long for what must come.
func (s *faultStage) await(what string, so func() bool) {
	s.t.Helper()
	if !comes(so) {
		s.t.Fatalf("%s: not within %v\n%s", what, patience, s.state())
	}
}

// state is what is known when a wait was in vain.
func (s *faultStage) state() string {
	var b strings.Builder
	s.c.each(false, func(b_ *bridge) {
		fmt.Fprintf(&b, "bridge: hub %v, lazy %v, phase %v, connected %v, dialling %v, in flight %d, backlog %d, connections %d, last error %v\n",
			b_.hub != nil, b_.lazy, b_.hand.phase, b_.cur != nil, b_.dialling, b_.outstandingLocked()-b_.backlog.commands, b_.backlog.commands, len(b_.conns), b_.lastDialErr)
	})
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	for _, e := range s.events.events[max(0, len(s.events.events)-12):] {
		fmt.Fprintf(&b, "%s %s %s %v\n", e.Time.Format("05.000"), e.Kind, e.Addr, e.Err)
	}
	return b.String()
}

// do has the administrator carry out a command.
func (s *faultStage) do(args ...any) {
	s.t.Helper()
	if err := s.admin.Do(background, args...).Err(); err != nil {
		s.t.Fatalf("%.80v: %v", args, err)
	}
}

// hears waits until the subscriber has had n more messages.
func (s *faultStage) hears(n int64) {
	s.t.Helper()
	from := s.ear.heard.Load()
	s.await(fmt.Sprintf("%d more messages", n), func() bool { return s.ear.heard.Load() >= from+n })
}

func (s *faultStage) kill(filter, of string) { s.do("CLIENT", "KILL", filter, of, "SKIPME", "yes") }

// lose has all connections be lost by f, when every caller waits for a reply that will not come although the server has carried the
// command out.
func (s *faultStage) lose(f func()) {
	s.t.Helper()
	s.crew.held()
	if s.link != nil {
		s.link.Mute(true)
		s.crew.holds.Store(false)
		s.crew.stuck()
		s.link.Mute(false) // for the connections to come
	}
	s.loseSome(true, true, func() {
		f()
		s.crew.holds.Store(false)
	})
}

// loseSome has the connections for commands, those of subscribers, or both be lost by f, at whatever moment that is.
func (s *faultStage) loseSome(commands, subscribers bool, f func()) {
	s.t.Helper()
	f()
	if commands {
		s.losses++
	}
	if subscribers {
		s.gaps++
		s.await("the gap", func() bool { return s.ear.gaps.Load() >= int64(s.gaps) })
		s.hears(5)
	}
	s.crew.further(10)
}

// noticed waits until calls have timed out, connections for commands and for subscribers were given up, and dials fail, too.
func (s *faultStage) noticed() {
	s.t.Helper()
	s.crew.kinds(failLate, failWaited)
	s.await("silent connections are given up, and dials fail", func() bool {
		return !s.connected(s.c.bridges[0]) && !s.connected(s.c.hub.b) && s.events.count(EventDialFailed) >= 2
	})
}

// writing says whether a write is under way, of large commands that do not fit the buffers even if one of them was nearly written.
func (s *faultStage) writing() bool {
	b := s.c.bridges[0]
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cur != nil && b.cur.writing && b.cur.inFlight.bytes+b.backlog.bytes > 3*faultLarge
}

func (s *faultStage) connected(b *bridge) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cur != nil
}

// undisturbed expects that no connection was lost, and that none was needed again.
func (s *faultStage) undisturbed() {
	s.t.Helper()
	s.crew.further(10)
	s.unbroken()
	if n := s.events.count(EventDialFailed); n > 0 {
		s.t.Errorf("%d dials failed", n)
	}
}

// unbroken expects that no connection was lost.
func (s *faultStage) unbroken() {
	s.t.Helper()
	if e := s.events.of(EventLost); len(e) > 0 || s.c.Stats().Reconnects > 0 || s.c.Stats().HandoffsGivenUp > 0 {
		s.t.Errorf("connections were lost: %v; %+v", e, s.c.Stats())
	}
}

// stopFor has the server stand still for d, and until meanwhile has returned.
func (s *faultStage) stopFor(d time.Duration, meanwhile func()) {
	info, err := s.admin.Do(background, "INFO", "server").Text()
	_, rest, _ := strings.Cut(info, "process_id:")
	pid, bad := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	if err = cmp.Or(err, bad); err != nil {
		s.t.Fatal(err)
	}
	syscall.Kill(pid, syscall.SIGSTOP)
	time.Sleep(d) // the fault, not a wait for anything
	meanwhile()
	syscall.Kill(pid, syscall.SIGCONT)
}

// successor is a link to another relay before the same server.
func (s *faultStage) successor() *batontest.Link {
	relay := s.relay.Sibling()
	s.closers = append(s.closers, relay.Close)
	return s.linkTo(relay)
}

func (s *faultStage) linkTo(relay *batontest.Relay) *batontest.Link {
	l := batontest.NewLink(relay.Addr())
	s.links, s.closers = append(s.links, l), append(s.closers, l.Close)
	return l
}

// moved waits until everybody has moved, and expects that it cost nothing.
func (s *faultStage) moved(to *batontest.Link) {
	s.t.Helper()
	s.await("everybody has moved", func() bool { return s.allAt(to) })
	s.crew.further(10)
	s.await("nothing is left behind", func() bool { return s.link.Conns() == 0 })
	s.unbroken()
}

// allAt says whether new work goes to a link, wherever old work is. A session stays where it is.
func (s *faultStage) allAt(to *batontest.Link) bool {
	all := true
	s.c.each(false, func(b *bridge) {
		all = all && (b.cur != nil && b.cur.addr == to.Addr() || b.cur == nil && b.lazy || b.session != nil)
	})
	return all
}

// faultReplica is another server that has what the first one has, and a relay before it.
type faultReplica struct {
	r     *redis
	admin *Client
	relay *batontest.Relay
}

func (s *faultStage) replica() *faultReplica {
	s.t.Helper()
	s.do("CONFIG", "SET", "repl-diskless-sync-delay", 0)
	r := startRedis(s.t, "--repl-diskless-sync-delay", "0")
	p := &faultReplica{r, s.adminOf(r.socket), s.relay.SiblingTo(r.addr)}
	s.closers = append(s.closers, r.kill, p.relay.Close)
	s.follows(p.admin, s.r)
	return p
}

// follows has a server become a replica of another and waits until it has everything.
func (s *faultStage) follows(admin *Client, of *redis) {
	s.t.Helper()
	host, port, _ := strings.Cut(of.addr, ":")
	if err := admin.Do(background, "REPLICAOF", host, port).Err(); err != nil {
		s.t.Fatal(err)
	}
	s.await("the replica is in step", func() bool { return replicated(admin, "master_link_status") == "up" })
}

// replicated is a field of INFO replication.
func replicated(admin *Client, field string) string {
	info, _ := admin.Do(background, "INFO", "replication").Text()
	_, rest, _ := strings.Cut(info, field+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

// promote makes the replica a master that has all that the old one has. Who writes to that one stands still from then on, and nothing is
// published until switchOver.
func (s *faultStage) promote(p *faultReplica) {
	s.t.Helper()
	s.crew.quiet.Lock()
	s.do("CLIENT", "PAUSE", 600_000, "WRITE")
	s.await("the replica has everything", func() bool {
		return replicated(p.admin, "master_repl_offset") == replicated(s.admin, "master_repl_offset")
	})
	if err := p.admin.Do(background, "REPLICAOF", "NO", "ONE").Err(); err != nil {
		s.t.Fatal(err)
	}
}

// demote makes the old master a replica of the new one. What stands still there is answered READONLY.
func (s *faultStage) demote(p *faultReplica) {
	s.t.Helper()
	s.follows(s.admin, p.r)
	s.do("CLIENT", "UNPAUSE")
}

// switchOver has what is published and pushed go to the new master.
func (s *faultStage) switchOver(p *faultReplica) {
	old := s.admin
	s.closers = append(s.closers, func() { old.Close() })
	s.admin = p.admin
	s.crew.admin.Store(p.admin)
	s.crew.quiet.Unlock()
}

// faultCrew is callers of every kind, with one call at a time each.
type faultCrew struct {
	t       *testing.T
	c       *Client
	row     *faultRow
	stage   *faultStage
	over    atomic.Bool
	holds   atomic.Bool // who has a session waits before EXEC
	wg      sync.WaitGroup
	callers []*faultCaller

	quiet sync.Mutex // held by who publishes and pushes, for each time
	admin atomic.Pointer[Client]
	// Numbers for who pops, and those whose push was answered; written by who pushes, and read after that has ended.
	pushed, accepted int
}

const (
	faultPace    = 2 * time.Millisecond // between calls, so that rows leave each other something of the processors
	faultHeld    = 10 * faultPace       // is before EXEC, for a fault to find a session there
	faultChannel = "numbers"
	faultLoud    = "loud"
	faultLarge   = 3 << 20 // bytes: two of them are more than what sockets buffer (tcp_wmem: 4 MiB)
)

func newFaultCrew(s *faultStage) *faultCrew {
	w := &faultCrew{t: s.t, c: s.c, row: s.row, stage: s}
	w.admin.Store(s.admin)
	for name, call := range map[string]func(*faultCaller, string){"push1": pushCall, "push2": pushCall, "count1": countCall, "count2": countCall,
		"batch": batchCall, "tx": txCall, "pop": popCall, "hasty": hastyCall, "session": sessionCall, "watch": watchCall} {
		w.employ(name, call)
	}
	if s.row.large {
		w.employ("large1", largeCall)
		w.employ("large2", largeCall)
		w.employ("large3", largeCall)
	}
	for _, k := range w.callers {
		w.wg.Go(k.work)
	}
	w.wg.Go(w.publish)
	return w
}

func (w *faultCrew) employ(name string, call func(*faultCaller, string)) {
	k := &faultCaller{crew: w, name: name, call: call, base: int64(len(w.callers)+1) * apart, pause: faultPace, failed: map[string]int{}}
	w.callers = append(w.callers, k)
	if strings.HasPrefix(name, "large") {
		k.pause *= 10
	}
	if strings.HasPrefix(name, "count") {
		w.stage.do("SET", name, k.base)
	}
}

// publish publishes the numbers 1, 2, 3, … to the subscriber, and pushes them for the one who pops.
func (w *faultCrew) publish() {
	for n := 1; !w.over.Load(); n++ {
		for !w.quiet.TryLock() {
			if time.Sleep(faultPace); w.over.Load() {
				return
			}
		}
		admin := w.admin.Load()
		admin.Do(background, "PUBLISH", faultChannel, n) // may be lost with its server, and then the subscriber has lost its connection, too
		if admin.Do(background, "RPUSH", "queue", n).Err() == nil {
			w.accepted++
		}
		w.pushed = n
		w.quiet.Unlock()
		time.Sleep(faultPace)
	}
}

func (w *faultCrew) stop() {
	w.over.Store(true)
	w.wg.Wait()
}

// faultEar is a subscriber to numbers that are published in order.
type faultEar struct {
	sub         *Subscription
	wg          sync.WaitGroup
	heard, gaps atomic.Int64
}

func newFaultEar(t *testing.T, sub *Subscription) *faultEar {
	e := &faultEar{sub: sub}
	e.wg.Go(func() {
		last, gap := 0, true // nobody knows what was published before
		for m, err := range sub.All(background) {
			n, bad := strconv.Atoi(string(m.Payload))
			switch {
			case errors.Is(err, ErrClosed):
				return
			case errors.Is(err, ErrGap):
				gap = true
				e.gaps.Add(1)
			case err != nil || bad != nil || m.Channel != faultChannel:
				t.Errorf("received from %s: %.60q, %v", m.Channel, m.Payload, err)
			default:
				if n <= last || n > last+1 && !gap {
					t.Errorf("%d came behind %d", n, last)
				}
				last, gap = n, false
				e.heard.Add(1)
			}
		}
	})
	return e
}

func (e *faultEar) close() {
	e.sub.Close()
	e.wg.Wait()
}

// faultFate is what a caller was told of a command.
type faultFate uint8

const (
	fateDone  faultFate = iota // the reply came
	fateMaybe                  // it may have been executed
	fateNever                  // it was never sent, or refused
)

// faultCaller is one of the crew. Its commands append what nobody else appends to lists of its own.
type faultCaller struct {
	crew  *faultCrew
	name  string // and its list
	base  int64  // of its counter: far from those of others
	call  func(k *faultCaller, id string)
	pause time.Duration // between calls

	began, ended, succeeded atomic.Int64 // calls
	holding                 atomic.Bool  // a session, before EXEC

	mu     sync.Mutex // guards the rest
	failed map[string]int
	told   []faultTold
	sum    [3]int64 // by fate
}

type faultTold struct {
	id   string
	fate faultFate
}

func (k *faultCaller) work() {
	for n := 0; !k.crew.over.Load(); n++ {
		k.began.Add(1)
		k.call(k, k.name+":"+strconv.Itoa(n))
		k.ended.Add(1)
		time.Sleep(k.pause)
	}
}

// dials says whether the caller has connections of its own, which it needs again and again.
func (k *faultCaller) dials() bool { return k.name == "session" || k.name == "watch" }

func (k *faultCaller) do(args ...any) Reply { return k.crew.c.Do(background, args...) }

// outcome notes how a call ended.
func (k *faultCaller) outcome(err error) {
	if err == nil {
		k.succeeded.Add(1)
		return
	}
	kind := failureKind(err)
	k.mu.Lock()
	k.failed[kind]++
	k.mu.Unlock()
	unsent := kind == failNone && k.dials() && slices.Contains(k.crew.row.may, failCut) // a connection of one's own is lost between two commands
	if !slices.Contains(k.crew.row.may, kind) && !unsent && !(kind == failContext && k.name == "hasty") {
		k.crew.t.Errorf("%s: a call failed: %s: %v", k.name, kind, err)
	}
}

// tells notes what the caller was told of commands that append ids.
func (k *faultCaller) tells(err error, ids ...string) {
	fate := fateDone
	switch {
	case MaybeExecuted(err):
		fate = fateMaybe
	case err != nil:
		fate = fateNever
	}
	k.knows(fate, ids...)
}

// knows notes what became of commands that append ids, by what the caller was told.
func (k *faultCaller) knows(fate faultFate, ids ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		k.told = append(k.told, faultTold{id, fate})
		k.sum[fate]++
	}
}

// within expects that a number which counts the caller's commands, those before included, is possible.
func (k *faultCaller) within(n int64, own int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if low, high := k.sum[fateDone]+own, k.sum[fateDone]+k.sum[fateMaybe]+own; n < low || n > high {
		k.crew.t.Errorf("%s: the answer is %d, want %d to %d", k.name, n, low, high)
		k.crew.over.Store(true)
	}
}

// echoed expects that a reply is the caller's own.
func (k *faultCaller) echoed(r Reply, id string) error {
	text, err := r.Text()
	if err == nil && text != id {
		k.crew.t.Errorf("%s: ECHO %s was answered %q", k.name, id, text)
		k.crew.over.Store(true)
	}
	return err
}

func (k *faultCaller) append(ctx context.Context, id string) error {
	n, err := k.crew.c.Do(ctx, "RPUSH", k.name, id).Int64()
	if err == nil {
		k.within(n, 1)
	}
	k.tells(err, id)
	return err
}

func pushCall(k *faultCaller, id string) {
	k.outcome(k.append(background, id))
	k.outcome(k.echoed(k.do("ECHO", id), id))
}

func countCall(k *faultCaller, id string) {
	n, err := k.do("INCR", k.name).Int64()
	if err == nil {
		k.within(n-k.base, 1)
	}
	k.tells(err, id)
	k.outcome(err)
}

func batchCall(k *faultCaller, id string) {
	var b Batch
	b.Add("RPUSH", k.name, id+".a")
	b.Add("ECHO", id)
	b.Add("RPUSH", k.name, id+".b")
	replies, err := k.crew.c.DoBatch(background, &b)
	if replies == nil {
		k.tells(err, id+".a", id+".b")
		k.outcome(err)
		return
	}
	n, first := replies[0].Int64()
	if first == nil {
		k.within(n, 1)
	}
	second := replies[2].Err()
	k.tells(first, id+".a")
	k.tells(second, id+".b")
	k.outcome(cmp.Or(first, k.echoed(replies[1], id), second))
}

func txCall(k *faultCaller, id string) {
	var b Batch
	b.Add("RPUSH", k.name, id+".a")
	b.Add("ECHO", id)
	b.Add("RPUSH", k.name, id+".b")
	replies, err := k.crew.c.DoTx(background, &b)
	if err == nil {
		n, _ := replies[2].Int64()
		k.within(n, 2)
		err = k.echoed(replies[1], id)
	}
	k.tells(err, id+".a", id+".b")
	k.outcome(err)
}

// sessionCall has a session for two appends, of which the second is in a transaction by hand, and until something fails: then it is over. Its
// connection has a name, which is there at the end: it was the same connection all along.
func sessionCall(k *faultCaller, id string) {
	s, err := k.crew.c.Session(background)
	if err != nil {
		k.outcome(err)
		return
	}
	defer s.Close()
	do := func(args ...any) (Reply, error) {
		r := s.Do(background, args...)
		if r.Err() != nil {
			k.outcome(r.Err())
			k.ends(s, r.Err())
		}
		return r, r.Err()
	}
	if _, err := do("CLIENT", "SETNAME", id); err != nil {
		return
	}
	r, err := do("RPUSH", k.name, id+".a")
	if k.tells(err, id+".a"); err != nil {
		return
	}
	n, _ := r.Int64()
	k.within(n, 0)
	for _, command := range [][]any{{"MULTI"}, {"RPUSH", k.name, id + ".b"}} {
		if _, err := do(command...); err != nil {
			k.knows(fateNever, id+".b") // EXEC was not given
			return
		}
	}
	k.hold()
	r, err = do("EXEC")
	if k.tells(err, id+".b"); err != nil {
		if !MaybeExecuted(err) && !errors.As(err, new(*ServerError)) && !errors.Is(err, ErrTxAborted) {
			k.crew.t.Errorf("an EXEC that was not sent: %v", err)
		}
		return
	}
	results, err := r.Elems()
	if err == nil {
		n, err = results[0].Int64()
	}
	if err != nil {
		k.crew.t.Errorf("EXEC: %v", err)
		return
	}
	k.within(n, 0)
	if r, err = do("CLIENT", "GETNAME"); err != nil {
		return
	}
	if textOf(r) != id {
		k.crew.t.Errorf("the name of the session %s is %q", id, textOf(r))
	}
	k.outcome(nil)
}

func (k *faultCaller) hold() {
	k.holding.Store(true)
	for time.Sleep(faultHeld); k.crew.holds.Load() && !k.crew.over.Load(); time.Sleep(faultPace) {
	}
	k.holding.Store(false)
}

// ends expects that a session whose connection has ended says so of every further call.
func (k *faultCaller) ends(s *Session, err error) {
	switch failureKind(err) {
	case failCut, failSilent, failNone:
		again := s.Do(background, "PING").Err()
		if MaybeExecuted(again) || !errors.Is(again, ErrNoConnection) && !errors.Is(again, ErrClosed) {
			k.crew.t.Errorf("a session that was lost (%v): PING: %v", err, again)
		}
	}
}

// watchCall appends by WATCH what depends on the list's length. At times it touches what it watches, once: then the first try is in vain.
func watchCall(k *faultCaller, id string) {
	touches, tries := strings.ContainsAny(id[len(id)-1:], "369"), 0
	var before int64
	replies, err := k.crew.c.Watch(background, []string{k.name, "touched"}, func(s *Session, b *Batch) (err error) {
		if before, err = s.Do(background, "LLEN", k.name).Int64(); err != nil {
			return err
		}
		k.within(before, 0)
		b.Add("RPUSH", k.name, id)
		if tries++; touches && tries == 1 {
			err = k.do("INCR", "touched").Err()
		}
		k.hold()
		return err
	})
	if err == nil {
		if n, err := replies[0].Int64(); err != nil || n != before+1 || touches && tries == 1 {
			k.crew.t.Errorf("watch: the list has %d elements after %d (%v), touched %v, after %d tries", n, before, err, touches, tries)
		}
	}
	k.tells(err, id)
	k.outcome(err)
}

// popCall pops a number, if there is one within a second.
func popCall(k *faultCaller, _ string) {
	elems, err := k.do("BLPOP", "queue", 1).Texts()
	switch {
	case err == ErrNull:
		err = nil
	case err == nil:
		k.tells(nil, elems[1])
	case MaybeExecuted(err):
		k.tells(err, "unknown")
	}
	k.outcome(err)
}

// hastyCall leaves early, mostly.
func hastyCall(k *faultCaller, id string) {
	ctx, cancel := context.WithTimeout(background, time.Duration(rand.IntN(3000))*time.Microsecond)
	defer cancel()
	k.outcome(k.append(ctx, id))
}

// largeCall appends, too, with a command that carries much, of which the answer is how much came.
func largeCall(k *faultCaller, id string) {
	const script = "redis.call('RPUSH', KEYS[1], ARGV[1]) return #ARGV[2]"
	n, err := k.do("EVAL", script, 1, k.name, id, faultBulk).Int64()
	if err == nil && n != faultLarge {
		k.crew.t.Errorf("%s: of %d bytes %d came", k.name, faultLarge, n)
	}
	k.tells(err, id)
	k.outcome(err)
}

var faultBulk = make([]byte, faultLarge)

// further waits until every caller has had n more calls succeed; who is hasty, end.
func (w *faultCrew) further(n int64) {
	w.t.Helper()
	w.each(fmt.Sprintf("%d more calls succeed", n), n, func(k *faultCaller) *atomic.Int64 {
		if k.name == "hasty" {
			return &k.ended
		}
		return &k.succeeded
	})
}

// connected is as further, of those who have what connections they need.
func (w *faultCrew) connected(n int64) {
	w.t.Helper()
	w.each(fmt.Sprintf("%d more calls succeed", n), n, func(k *faultCaller) *atomic.Int64 {
		switch {
		case k.dials():
			return nil
		case k.name == "hasty":
			return &k.ended
		}
		return &k.succeeded
	})
}

// calls waits until every caller has had n more calls end.
func (w *faultCrew) calls(n int64) {
	w.t.Helper()
	w.each(fmt.Sprintf("%d more calls end", n), n, func(k *faultCaller) *atomic.Int64 { return &k.ended })
}

// hasty waits until so many more calls have ended whose contexts end.
func (w *faultCrew) hasty(n int64) {
	w.t.Helper()
	w.each(fmt.Sprintf("%d more calls of who is hasty end", n), n, func(k *faultCaller) *atomic.Int64 {
		if k.name == "hasty" {
			return &k.ended
		}
		return nil
	})
}

// each waits until a counter of every caller has grown by n, if it has one; by a fifth of that where each time takes a dial and more.
func (w *faultCrew) each(what string, n int64, counter func(*faultCaller) *atomic.Int64) {
	w.t.Helper()
	until := make([]int64, len(w.callers))
	for i, k := range w.callers {
		if c := counter(k); c != nil && k.dials() {
			until[i] = c.Load() + (n+4)/5
		} else if c != nil {
			until[i] = c.Load() + n
		}
	}
	for i, k := range w.callers {
		if c := counter(k); c != nil {
			w.stage.await(k.name+": "+what, func() bool { return c.Load() >= until[i] || w.over.Load() })
		}
	}
	if w.over.Load() {
		w.t.FailNow() // why, has been said
	}
}

// stuck waits until every caller, but for who is hasty, is in a call that gets no reply. To be wrong about that costs only strength.
func (w *faultCrew) stuck() {
	w.t.Helper()
	state := func() (sum int64, all bool) {
		all = true
		for _, k := range w.callers {
			if k.name != "hasty" {
				ended := k.ended.Load()
				sum, all = sum+ended, all && k.began.Load() > ended
			}
		}
		return sum, all
	}
	var last int64
	since := time.Now()
	w.stage.await("every caller is stuck", func() bool {
		sum, all := state()
		if sum != last || !all {
			last, since = sum, time.Now()
		}
		return time.Since(since) > 50*time.Millisecond
	})
}

// held waits until those who have sessions are about to give EXEC, which they do when holds has ended.
func (w *faultCrew) held() {
	w.t.Helper()
	w.holds.Store(true)
	w.stage.await("sessions are held", func() bool {
		return w.over.Load() || !slices.ContainsFunc(w.callers, func(k *faultCaller) bool { return k.dials() && !k.holding.Load() })
	})
}

// counts are how many calls failed, by kind.
func (w *faultCrew) counts() map[string]int {
	sum := map[string]int{}
	for _, k := range w.callers {
		k.mu.Lock()
		for kind, n := range k.failed {
			sum[kind] += n
		}
		k.mu.Unlock()
	}
	return sum
}

// kinds waits until failures of all these kinds have been seen.
func (w *faultCrew) kinds(kinds ...string) {
	w.t.Helper()
	w.stage.await("failures: "+strings.Join(kinds, ", "), func() bool { return w.seen(kinds...) })
}

func (w *faultCrew) seen(kinds ...string) bool {
	counts := w.counts()
	return !slices.ContainsFunc(kinds, func(kind string) bool { return counts[kind] == 0 })
}

// atMost expects that the caller has had no more than n failures of these kinds together.
func (k *faultCaller) atMost(n int, kinds ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	sum := 0
	for _, kind := range kinds {
		sum += k.failed[kind]
	}
	if sum > n {
		k.crew.t.Errorf("%s: %d calls failed, want at most %d: %v", k.name, sum, n, k.failed)
	}
}

// connections is of how many connections each loss may fail a call. One who uses Watch touches what is watched over the shared connection: the
// session's end may have been heard, and the next call have begun, before the shared one's end is.
func (k *faultCaller) connections() int {
	if k.name == "watch" {
		return 2
	}
	return 1
}

// verdict compares what callers were told with what the server has, after all have ended and the server has heard the last of them.
func (w *faultCrew) verdict() {
	w.t.Helper()
	if !w.seen(w.row.must...) {
		w.t.Errorf("failures that were certain are missing: want %v", w.row.must)
	}
	var sum [3]int64
	for _, k := range w.callers {
		k.atMost(w.stage.losses*k.connections(), failCut, failNone)
		for fate, n := range k.sum {
			sum[fate] += n
		}
		switch {
		case strings.HasPrefix(k.name, "count"):
			n, err := w.stage.admin.Do(background, "INCRBY", k.name, 0).Int64()
			if low, high := k.sum[fateDone], k.sum[fateDone]+k.sum[fateMaybe]; err != nil || n-k.base < low || n-k.base > high {
				w.t.Errorf("%s is %d, want %d to %d (%v)", k.name, n-k.base, low, high, err)
			}
		case k.name == "pop":
			w.popped(k)
		default:
			w.appended(k)
		}
	}
	w.t.Logf("%d commands done, %d maybe, %d never; failures %v", sum[fateDone], sum[fateMaybe], sum[fateNever], w.counts())
}

func (w *faultCrew) list(key string) []string {
	w.t.Helper()
	elems, err := w.stage.admin.Do(background, "LRANGE", key, 0, -1).Texts()
	if err != nil {
		w.t.Errorf("LRANGE %s: %v", key, err)
	}
	return elems
}

// appended judges a caller's list: each id is there once if it was done, at most once if it may have been, and not if it was never sent; what
// was done is in order; of a transaction there is all or nothing.
func (w *faultCrew) appended(k *faultCaller) {
	w.t.Helper()
	times, at := map[string]int{}, map[string]int{}
	for i, id := range w.list(k.name) {
		times[id]++
		at[id] = i
	}
	last := -1
	for _, told := range k.told {
		n := times[told.id]
		delete(times, told.id)
		switch {
		case told.fate == fateDone && n != 1, n > 1, told.fate == fateNever && n > 0:
			w.t.Errorf("%s was executed %d times; its caller was told %s", told.id, n, [...]string{"that it was", "that it may have been", "that it was not"}[told.fate])
		case told.fate == fateDone && at[told.id] < last:
			w.t.Errorf("%s was executed before what was given earlier", told.id)
		case told.fate == fateDone:
			last = at[told.id]
		}
		if first, second := strings.CutSuffix(told.id, ".b"); second && k.name == "tx" {
			if _, one := at[first+".a"]; one != (n == 1) {
				w.t.Errorf("of the transaction %s one half was executed", first)
			}
		}
	}
	if len(times) > 0 {
		w.t.Errorf("%s has what nobody appended: %v", k.name, times)
	}
}

// popped judges what was popped: each number once and in order, and missing are no more than pops that may have been executed.
func (w *faultCrew) popped(k *faultCaller) {
	w.t.Helper()
	got := map[string]bool{}
	last, maybe := 0, 0
	for _, told := range k.told {
		if told.fate != fateDone {
			maybe++
			continue
		}
		n, err := strconv.Atoi(told.id)
		if n <= last || n > w.pushed || err != nil {
			w.t.Errorf("%s was popped behind %d", told.id, last)
		}
		last, got[told.id] = n, true
	}
	for _, id := range w.list("queue") {
		if got[id] {
			w.t.Errorf("%s was popped and is still there", id)
		}
		got[id] = true
	}
	if missing := w.accepted - len(got); missing > maybe {
		w.t.Errorf("of %d numbers that were pushed %d are missing, after %d pops that may have been executed", w.accepted, missing, maybe)
	}
}

// --- out of descriptors ---

const faultChildEnv = "BATON_FAULT_CHILD"

// faultParent has a process of its own go through the fault: it has the server, and what is before it, the child has the client.
func faultParent(t *testing.T, variant string) {
	s := &faultStage{t: t, r: startRedis(t)}
	certificate, _ := batontest.SelfSigned("127.0.0.1")
	s.before(variant, certificate)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(background, 5*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, self, "-test.run=^TestFaultChild$", "-test.v", "-test.timeout=4m")
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", faultChildEnv, s.link.Addr(), s.r.socket, variant))
	child.Stdin = strings.NewReader(string(certificate.Certificate[0]))
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFaultChild") {
		t.Errorf("the child process: %v\n%s", err, out)
	}
	s.close()
	s.r.kill()
}

// TestFaultChild does nothing unless it runs in the process that faultParent starts.
func TestFaultChild(t *testing.T) {
	told := strings.Fields(os.Getenv(faultChildEnv))
	if len(told) == 0 {
		return
	}
	row := slices.IndexFunc(faultRows, func(row faultRow) bool { return row.child })
	s := &faultStage{t: t, row: &faultRows[row]}
	s.options = Options{Addr: told[0], OnEvent: s.events.add, MaxMessages: 1 << 20}
	if told[2] == "tls" {
		der, _ := io.ReadAll(os.Stdin)
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AddCert(certificate)
		s.options.TLS = &tls.Config{RootCAs: roots}
	}
	before, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	s.admin = s.adminOf(told[1])
	s.run()
	settled(t, before)
	eventually(t, "no descriptor is left", func() bool { return openDescriptors(t) <= descriptors })
}

// withoutDescriptors has dials fail: no descriptor is below the limit that is not in use.
func (s *faultStage) withoutDescriptors() {
	var was syscall.Rlimit
	limit := func(to syscall.Rlimit) {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &to); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		s.t.Fatal(err)
	}
	// A client that does not wait for a connection.
	o := s.options
	o.Backlog, o.OnEvent = FailFast, nil
	fast := dialOptions(s.t, o)

	limit(syscall.Rlimit{Cur: 3, Max: was.Max})
	s.t.Cleanup(func() { limit(was) })
	if f, err := os.Open(os.DevNull); !errors.Is(err, syscall.EMFILE) {
		s.t.Errorf("a file can be opened: %v, %v", f, err)
	}
	s.crew.connected(20)
	s.unbroken()
	s.kill("USER", "default")
	s.losses, s.gaps = 1, 1
	s.await("dials fail with EMFILE", func() bool {
		return slices.ContainsFunc(s.events.of(EventDialFailed), func(e Event) bool { return errors.Is(e.Err, syscall.EMFILE) })
	})
	s.await("who does not wait is told why", func() bool {
		err := fast.Do(background, "PING").Err()
		return errors.Is(err, ErrNoConnection) && errors.Is(err, syscall.EMFILE) && !MaybeExecuted(err)
	})
	if n := s.c.Stats().Reconnects; n > 0 {
		s.t.Errorf("%d connections without a descriptor", n)
	}
	limit(was)
	s.await("who does not wait has a connection, too", func() bool { return fast.Do(background, "PING").Err() == nil })
	fast.Close()
	s.await("the gap", func() bool { return s.ear.gaps.Load() == 1 })
	s.crew.further(20)
	s.hears(10)
}
