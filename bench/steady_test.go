package main

import (
	"context"
	"encoding/csv"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"example.com/baton/batontest"
)

// prepared is a server in this process that has the values that the cells read.
func prepared(t *testing.T) *batontest.Server {
	t.Helper()
	s := batontest.NewServer()
	t.Cleanup(s.Close)
	if err := prepare(s.Addr()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryContenderReadsAndWritesWhatItIsToldTo(t *testing.T) {
	addr := prepared(t).Addr()
	direct, err := redis.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	for _, who := range contenders() {
		t.Run(who.name, func(t *testing.T) {
			opened, err := who.open(addr, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer opened.Close()
			c, value := forCaller(opened), strings.Repeat("v", 1+len(who.name))
			if err := c.Set(t.Context(), "mine", value); err != nil {
				t.Error(err)
			}
			if got, err := redis.String(direct.Do("GET", "mine")); got != value {
				t.Errorf("Set wrote %q, %v", got, err)
			}
			reads(t, "Get", len(value))(c.Get(t.Context(), "mine"))
			keys := newKeyList([]string{"mine", smallKey, "mine"})
			reads(t, "MGet", 2*len(value)+small)(c.MGet(t.Context(), keys))
			reads(t, "Pipeline", 2*len(value)+small)(c.Pipeline(t.Context(), keys))
		})
	}
}

// reads checks how many bytes something read.
func reads(t *testing.T, what string, want int) func(int, error) {
	return func(got int, err error) {
		t.Helper()
		if got != want || err != nil {
			t.Errorf("%s read %d bytes, %v; want %d", what, got, err, want)
		}
	}
}

// turnsIn counts the lines of a CSV, a turn each, by "cell by client".
func turnsIn(t *testing.T, path string) map[string]int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	client, turns := slices.Index(lines[0], "client"), map[string]int{}
	for _, line := range lines[1:] {
		turns[line[0]+" by "+line[client]]++
	}
	return turns
}

func TestSteadyLeavesATurnOfEverybodyInEveryCell(t *testing.T) {
	out := t.TempDir()
	cells, clients := regexp.MustCompile("/8 |1MiB|MGET"), regexp.MustCompile("")
	cfg := config{out: out, server: "inprocess", cells: cells, clients: clients,
		pace: pace{opening: 5 * time.Millisecond, warmUp: time.Millisecond, counted: 10 * time.Millisecond, rounds: 2}}
	if err := runSteady(cfg); err != nil {
		t.Fatal(err)
	}
	turns := turnsIn(t, filepath.Join(out, "steady.csv"))
	for _, c := range steadyCells() {
		if !cells.MatchString(c.name()) {
			continue
		}
		for _, who := range contenders() {
			if n := turns[c.name()+" by "+who.name]; n != 2 {
				t.Errorf("%s had %d turns in %s", who.name, n, c.name())
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(out, "steady.md")); !strings.Contains(string(text), "What must be reached") {
		t.Errorf("no verdict in steady.md (%v)", err)
	}
}

func TestAWrongValueFailsTheTurn(t *testing.T) {
	wrong := getSmall
	wrong.bytes++
	addr := prepared(t).Addr()
	opened, err := batons[0].open(addr, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	callers := crowd{contexts: []context.Context{t.Context()}, notes: newNotes(1, time.Millisecond)}
	e := enter(batons[0], opened, cell{op: wrong, callers: 1}, &callers)
	if _, err := e.turn(0, time.Hour); err == nil {
		t.Error("a value of the wrong size was counted")
	}
}

func TestTheFloorCountsWhatTheServerExecutes(t *testing.T) {
	s := prepared(t)
	const depth = 8
	f, err := openFloor(s.Addr(), getSmall.request, getSmall.reply, depth)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before := s.Executed("get")
	turn, err := f.take(0, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	// What was in flight at either end may be counted or not.
	counted := turn.perSecond * 0.05
	if executed := float64(s.Executed("get") - before); executed < depth || counted < 1 || counted > executed {
		t.Errorf("it counted about %.0f of %.0f", counted, executed)
	}
	if _, err := openFloor(s.Addr(), getSmall.request, getMedium.reply[:len(getSmall.reply)], 1); err == nil {
		t.Error("it took an unexpected reply")
	}
}

func TestReadsAndWritesOfSocketsAreCounted(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says")
	}
	addr := prepared(t).Addr()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	const times = 100
	before, buf := readsAndWrites(), make([]byte, 16)
	for range times {
		if _, err := nc.Write([]byte("PING\r\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	// each side reads and writes
	if calls := readsAndWrites() - before; calls < 4*times || calls > 10*times {
		t.Errorf("%d calls for %d commands and their replies", calls, times)
	}
}

func TestALagDelaysReplies(t *testing.T) {
	s := prepared(t)
	const by = 20 * time.Millisecond
	l, err := newLag(s.Addr(), by)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := redis.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begin := time.Now()
	if v, err := redis.String(conn.Do("GET", smallKey)); v != smallValue {
		t.Fatal(v, err)
	}
	if took := time.Since(begin); took < by {
		t.Errorf("the reply came after %v", took)
	}
}

func TestMediansAndRatios(t *testing.T) {
	for _, tt := range []struct {
		figures []float64
		want    spread
	}{
		{[]float64{7}, spread{7, 7, 7}},
		{[]float64{3, 1, 2}, spread{2, 1, 3}},
		{[]float64{4, 1, 3, 10}, spread{3.5, 1, 10}},
	} {
		if got := spreadOf(tt.figures); got != tt.want {
			t.Errorf("spread of %v: %v", tt.figures, got)
		}
	}
	if got := spreadOf(nil); !math.IsNaN(got.median) {
		t.Errorf("spread of nothing: %v", got)
	}
	// the medians are 20 and 10; the rounds say 1, 2 and 5
	if got, want := ratioSpread([]float64{10, 20, 50}, []float64{10, 10, 10}), (spread{2, 1, 5}); got != want {
		t.Errorf("ratios %v, want %v", got, want)
	}
	if got, want := ratioSpread([]float64{10, 40}, []float64{20, 10}), (spread{25.0 / 15, 0.5, 4}); got != want {
		t.Errorf("ratios %v, want %v", got, want)
	}
}

func TestQuantilesAreOfAllCallers(t *testing.T) {
	latencies := make(notes, 2)
	for i := range 1000 {
		latencies[i%2] = append(latencies[i%2], time.Duration(i+1)*time.Microsecond)
	}
	p50, p99, p999 := quantiles(latencies)
	for got, want := range map[time.Duration]time.Duration{p50: 500, p99: 990, p999: 999} {
		if want *= time.Microsecond; (got - want).Abs() > want/500 {
			t.Errorf("%v instead of %v", got, want)
		}
	}
}

// competitors are entrants whose turns did so much a second with this p99.
func competitors(turns map[string][]turn) (r result) {
	for _, who := range contenders() {
		if of, ok := turns[who.name]; ok {
			r.entrants = append(r.entrants, &entrant{name: who.name, lib: who.lib, turns: of})
		}
	}
	return r
}

func TestTheBestPeerIsThatOfTheHighestMedianAndNeverBaton(t *testing.T) {
	r := competitors(map[string][]turn{
		batonName:       {{perSecond: 900, p99: 9000}, {perSecond: 900, p99: 9000}, {perSecond: 900, p99: 9000}},
		batonAppendName: {{perSecond: 999}, {perSecond: 999}, {perSecond: 999}},
		rueidisName:     {{perSecond: 300, p99: 6000}, {perSecond: 310, p99: 6000}, {perSecond: 300, p99: 6000}},
		"redigo":        {{perSecond: 200, p99: 3000}, {perSecond: 200, p99: 3000}, {perSecond: 800, p99: 3000}},
		"go-redis":      {{perSecond: 100, p99: 1000}, {perSecond: 100, p99: 1000}, {perSecond: 100, p99: 1000}},
	})
	if best := r.best(); best.name != rueidisName {
		t.Errorf("the best is %s", best.name)
	}
	if promptest := r.promptest(p99); promptest.name != "redigo" {
		t.Errorf("the promptest of those that do half of it is %s", promptest.name)
	}
	above, _ := judge(throughput(3, bestPeer, nil)[0], r)
	if !above.ok() || above.reached != (spread{3, 900.0 / 310, 3}) {
		t.Errorf("900 is not 3 × 300: %v", above.reached)
	}
	if below, _ := judge(throughput(3.01, bestPeer, nil)[0], r); below.ok() {
		t.Error("900 is 3.01 × 300")
	}
	late, _ := judge(latency(p99, 1, bestPeer, nil)[0], r)
	if late.ok() || late.reached.median != 1.5 || late.note != "3.00 of redigo" {
		t.Errorf("a p99 of 9 against 6 and 3: %+v", late)
	}
	if _, judged := judge(throughput(1, theFloor, nil)[0], r); judged {
		t.Error("compared with a floor that is not there")
	}
}

func TestAllocationsAreComparedWithNobody(t *testing.T) {
	r := competitors(map[string][]turn{batonName: {{allocs: 1.02}}, batonAppendName: {{allocs: 0.3}}})
	if one, ok := judge(allocations(1, batonName, nil)[0], r); !ok || !one.ok() {
		t.Errorf("1.02 is not 1: %v", one.reached)
	}
	if none, ok := judge(allocations(0, batonAppendName, nil)[0], r); !ok || none.ok() {
		t.Errorf("0.3 is none: %v", none.reached)
	}
}

func TestEveryGoalIsAboutACell(t *testing.T) {
	cells := steadyCells()
	for i, g := range goals {
		found := 0
		for _, c := range cells {
			if g.about(c) {
				found++
			}
		}
		if found == 0 {
			t.Errorf("goal %d, %s of %s, is about none", i, g.of.name, g.who)
		}
	}
}

func TestFiguresAreShort(t *testing.T) {
	for v, want := range map[float64]string{0.1234: "0.12", 12.34: "12.3", 123.4: "123", 1234.5: "1,235", 1234567: "1,234,567"} {
		if got := figure(v); got != want {
			t.Errorf("%v is written %s", v, got)
		}
	}
}

func TestScaleMeasuresEveryPoint(t *testing.T) {
	addr := prepared(t).Addr()
	s := scaling{name: "callers and batches", points: byCallers().points[:3]}
	s.points = append(s.points, byBatch().points[2])
	if err := s.run(addr, pace{counted: 10 * time.Millisecond, opening: 10 * time.Millisecond, rounds: 2}); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.points {
		if len(p.took) != 2 || p.took[0].perSecond <= 0 {
			t.Errorf("%s: %+v", p.label, p.took)
		}
	}
	if n := strings.Count(s.table(), "\n"); n != 2+len(s.points) {
		t.Errorf("%d lines:\n%s", n, s.table())
	}
}

func TestAnIdleClientHoldsItsGoroutines(t *testing.T) {
	r, err := idle(batons[0], prepared(t).Addr())
	if err != nil {
		t.Fatal(err)
	}
	// the server is in this process: at least a goroutine of its own and one of the client for each
	if r.goroutines < 2*crew || r.heap <= 0 {
		t.Errorf("%d clients hold %+v", crew, r)
	}
}
