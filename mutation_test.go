package baton

// A test of the simulation itself: copies of the package, each broken on purpose in one place, of which it must find each. That the places
// exist is looked at always; to build and play the copies takes minutes, and is done where BATON_MUTATIONS is set.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// mutation is one deliberate break: text that stands in a file exactly once, and what stands there instead.
type mutation struct {
	name     string
	file     string
	old, new string
	race     bool // it is found with the race detector
}

// certain is how many of the mutations, the first, are found within a thousand scenarios: those that BATON_MUTATIONS=few asks for. The others
// are within some thousand.
const certain = 9

// simulationTime is more than a busy machine needs for all the scenarios of a copy.
const simulationTime = 20 * time.Minute

var mutations = []mutation{
	{name: "what was written is written again after a cut", file: "conn.go",
		old: "c.unsentFromLocked(c.wrote.Load())", new: "c.unsentFromLocked(0)"},
	{name: "what was written in part is written again after a cut", file: "conn.go",
		old: "m.begin >= from && m.got == 0", new: "m.end > from && m.got == 0"},
	{name: "a promotion leaves the lock", file: "bridge.go",
		old: "b.cur, b.next, b.clockFrom = b.next, nil, t", new: "b.mu.Unlock(); time.Sleep(20 * time.Microsecond); b.mu.Lock(); b.cur, b.next, b.clockFrom = b.next, nil, t"},
	{name: "an abandoned slot is dropped", file: "bridge.go",
		old: "if m.abandoned = !own; own {", new: "if m.abandoned = !own; !own && len(b.conns) > 0 {\n\t\tb.conns[0].inFlight.removeLocked(m, popped)\n\t}\n\tif own {"},
	{name: "the hold is entered without a look at the queue", file: "bridge.go",
		old: "b.cur.inFlight.empty() && b.hub == nil {", new: "b.cur.inFlight.empty() && b.hub == nil && b.stats.Sent == 0 {"},
	{name: "a copy of an announcement joins, and cancels the dial", file: "bridge.go",
		old: "case c.attempt < a.number && b.quest.moved != a.number:", new: "case c.attempt < a.number:"},
	{name: "a live connection is retired by the clock", file: "bridge.go",
		old: "b.stats.HandoffsGivenUp++", new: "b.stats.HandoffsGivenUp++\n\t\tif b.cur != nil {\n\t\t\tb.cur.hangUpLocked(errRetired)\n\t\t}"},
	{name: "a message is recycled before its signal", file: "bridge.go",
		old: "if own && err != nil {\n\t\tm.recycle()", new: "if own = err != nil; own {\n\t\tm.recycle()"},
	{name: "a message is given back before its reply is taken", file: "bridge.go", race: true,
		old: "reply := m.reply\n\tm.recycle()", new: "m.recycle()\n\treply := m.reply"},

	{name: "what comes back unsent is in reverse order", file: "backlog.go",
		old: "range slices.Backward(unsent)", new: "range slices.All(unsent)"},
	{name: "what was taken and not written counts as sent", file: "conn.go",
		old: "c.unsentFromLocked(c.wrote.Load())", new: "c.unsentFromLocked(c.taken)"},
	{name: "what is being written is taken back by a promotion", file: "conn.go",
		old: "return c.unsentFromLocked(c.taken)", new: "return c.unsentFromLocked(c.wrote.Load())"},
	{name: "what is cut off counts as never sent", file: "conn.go",
		old: "failAll(cut, cause, true)", new: "failAll(cut, cause, false)"},
	{name: "FailFast at the door during a handoff", file: "bridge.go",
		old: "!b.cur.aliveLocked() && b.hand.phase == PhaseDone && b.currentAt != 0", new: "!b.cur.aliveLocked() && b.currentAt != 0"},
	{name: "FailFast when a connection ends during a handoff", file: "bridge.go",
		old: "b.hand.phase != PhaseDone || b.cur.aliveLocked() || b.ended != nil || b.awaitedLocked(now())", new: "b.cur.aliveLocked() || b.ended != nil"},
	{name: "held work is swept", file: "bridge.go",
		old: "if b.hand.phase != PhaseHolding && !b.awaitedLocked(t) {", new: "if !b.awaitedLocked(t) {"},
	{name: "Timeout does not begin anew behind a handoff", file: "bridge.go",
		old: "b.backlog.sweepLocked(b.clockFrom, limit)", new: "b.backlog.sweepLocked(0, limit)"},
	{name: "the connection of what blocks is kept when its caller leaves", file: "bridge.go",
		old: "if m.span > 0 && !own && b.ended == nil {", new: "if m.span > 0 && !own && b.ended == errLeft {"},
	{name: "the overlap is one too long", file: "bridge.go",
		old: "twice[p.topic]--; twice[p.topic] < 0", new: "twice[p.topic]--; twice[p.topic] < -1"},
	{name: "the overlap is not removed", file: "bridge.go",
		old: "twice[p.topic]--; twice[p.topic] < 0", new: "twice[p.topic]--; twice[p.topic] < 1<<30"},
	{name: "a gap is not told", file: "bridge.go",
		old: "if in.confirmed && !sure[t] {", new: "if in.confirmed && !sure[t] && len(sure) > 0 {"},
	{name: "a gap is told where none is", file: "bridge.go",
		old: "if in.confirmed && !sure[t] {", new: "if in.confirmed && len(sure) >= 0 {"},
	{name: "a session's connection is used again", file: "bridge.go",
		old: "if b.session != nil || b.over() != nil {", new: "if b.session = nil; b.over() != nil {"},
	{name: "an EXEC on a lost session is not said to be aborted", file: "bridge.go",
		old: "if MaybeExecuted(err) || !errors.Is(err, ErrClosed) && !errors.Is(err, ErrNoConnection) {", new: "if err != ErrTxAborted {"},
	{name: "a caller who reads is not tapped", file: "conn.go",
		old: "if c.role == byCaller {\n\t\tc.nc", new: "if c.role == byCaller && c.alone < 0 {\n\t\tc.nc"},
	{name: "the role of reading is lost with a caller", file: "conn.go",
		old: "c.readErr = err\n\t}\n\tc.recallLocked()", new: "c.readErr = err\n\t}"},
	{name: "new work overtakes the backlog", file: "bridge.go",
		old: "case !c.aliveLocked() || !b.backlog.empty() || !c.roomLocked", new: "case !c.aliveLocked() || !c.roomLocked"},
	{name: "a retired connection does not linger", file: "conn.go",
		old: "if c.retired && !c.inFlight.attendedLocked() {", new: "if c.retired {"},
	{name: "a retired connection lingers for ever", file: "conn.go",
		old: "if c.retired && !c.inFlight.attendedLocked() {", new: "if c.retired && c.ended {"},
	{name: "Close forgets what is queued", file: "bridge.go",
		old: "c.inFlight.sweepLocked(0, never)\n\t}\n\tb.backlog.sweepLocked(0, never)", new: "c.inFlight.sweepLocked(0, never)\n\t}"},
	{name: "a pop does not end the hold", file: "bridge.go",
		old: "case c == b.cur && b.hand.phase == PhaseHolding && c.inFlight.empty() && b.hub == nil:", new: "case c == b.cur && b.hand.phase == PhaseHolding && c.inFlight.empty() && b.hub != nil:"},
	{name: "a hold has its whole budget again", file: "handoff.go",
		old: "h.phase, a = PhasePreparing, prepare\n\t\th.budget = t.until(h.holdUntil)", new: "h.phase, a = PhasePreparing, prepare"},
	{name: "silence is judged in half of the time", file: "bridge.go",
		old: "t >= quiet.add(timeout).add(timeout)", new: "t >= quiet.add(timeout)"},
	{name: "nobody looks for silence", file: "bridge.go",
		old: "t >= quiet.add(timeout).add(timeout)", new: "t >= quiet.add(timeout).add(timeout).add(1<<60)"},
	{name: "an abandoned command is written again", file: "backlog.go",
		old: "\t\tif m.abandoned {\n\t\t\tm.recycle()\n\t\t} else {\n\t\t\tq.insertLocked(m, nil, queued)", new: "\t\tif m.abandoned && m.want < 0 {\n\t\t\tm.recycle()\n\t\t} else {\n\t\t\tq.insertLocked(m, nil, queued)"},
	{name: "a message that was cut off is not told", file: "backlog.go",
		old: "m.err = &commandError{cause, sent}\n", new: "m.err = &commandError{cause, sent}\n\t\tif m.got > 0 {\n\t\t\tcontinue\n\t\t}\n"},
	{name: "MaxInFlight holds work back for ever", file: "bridge.go",
		old: "case c == b.cur && !b.backlog.empty(), c.retired:", new: "case c.retired:"},
	{name: "what is unsent is not written by the replacement", file: "bridge.go",
		old: "b.cur.wakeLocked()\n\tif b.hub != nil {", new: "if b.hub != nil {"},
	{name: "what is queued counts as sent", file: "bridge.go",
		old: "err = &commandError{b.failureLocked(cause), !own}", new: "err = &commandError{b.failureLocked(cause), true}"},
	{name: "a refused successor is dialled", file: "bridge.go",
		old: "to.named && allow != nil {", new: "to.named && allow != nil && c.ctx == nil {"},
	{name: "back-off does not grow", file: "pin.go",
		old: "most := min(50*time.Millisecond<<min(failures-1, 5), time.Second)", new: "most := 5 * time.Millisecond"},
	{name: "a reply may be as deep as it likes", file: "resp3.go",
		old: "fits := len(d.stack) <= d.limits.depth && ", new: "fits := "},
	{name: "with TLS, too, an address is asked for", file: "conn.go",
		old: "auto++ // the name", new: "// the name"},
	{name: "what blocks is not swept", file: "bridge.go",
		old: "c.inFlight.sweepLocked(0, limit)", new: "if !b.lazy {\n\t\t\tc.inFlight.sweepLocked(0, limit)\n\t\t}"},
	{name: "a transaction has no replies", file: "bridge.go",
		old: "\treturn results, nil\n", new: "\treturn nil, nil\n"},
	{name: "Remove does nothing", file: "bridge.go",
		old: "\ts.h.removeLocked(s, names, errors.New(\"baton: removed meanwhile\"))\n", new: ""},
	{name: "an idle connection is not pinged", file: "bridge.go",
		old: "\tb.pingLocked(c, nil, t).abandoned = true\n", new: ""},
	{name: "FailFast waits at the door", file: "bridge.go",
		old: "case b.c.opts.Backlog == FailFast && !b.cur.aliveLocked()", new: "case b.c.opts.Backlog == FailFast && b.lazy && !b.cur.aliveLocked()"},
	{name: "a refused opt-in is accepted in Enabled", file: "conn.go",
		old: "{{command: command, must: o.Maintenance.Mode == Enabled}}", new: "{{command: command}}"},
	{name: "Moving says nothing", file: "bridge.go",
		old: "\t\t\town.moving <- a.wall.Add(a.window) // the only value, so there is room\n", new: ""},
	{name: "Renew fails", file: "bridge.go",
		old: "\treturn failed\n", new: "\treturn cmp.Or(failed, ErrTimeout)\n"},
}

func TestMutations(t *testing.T) {
	for _, m := range mutations {
		source, err := os.ReadFile(m.file)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(source, []byte(m.old)); n != 1 {
			t.Errorf("%s: what it replaces stands in %s %d times", m.name, m.file, n)
		}
	}
	only := os.Getenv("BATON_MUTATIONS")
	if only == "" || t.Failed() {
		return
	}
	raced := false
	for i, m := range mutations {
		if only == "1" || only == "few" && i < certain || strings.Contains(m.name, only) {
			scenarios := 8000
			if i < certain {
				scenarios = 1000
			}
			t.Run(m.name, func(t *testing.T) { m.isFound(t, scenarios) })
			raced = raced || m.race
		}
	}
	t.Run("nothing", func(t *testing.T) { mutation{}.isNotFound(t, 1000) })
	if raced {
		t.Run("nothing, with the race detector", func(t *testing.T) { mutation{race: true}.isNotFound(t, 100) }) // a race is found in the first ten
	}
}

var (
	simLine      = regexp.MustCompile(`(?m)^\d+ scenarios from seed .*$`)
	simComplaint = regexp.MustCompile(`(?m): (seed \d+: .{0,200})`)
	simPanic     = regexp.MustCompile(`(?ms)^((?:panic|fatal error): [^\n]*).*?^goroutine ([^\n]*)`) // and which goroutine's it is
)

// isFound has so many scenarios of a broken copy simulated. A run that fails without saying in which scenario has found nothing: the machine
// may be slow, or short of memory.
func (m mutation) isFound(t *testing.T, scenarios int) {
	out, err := m.simulated(t, scenarios)
	switch found := m.complaint(out); {
	case err == nil:
		t.Errorf("not found: %s", simLine.FindString(out))
	case found == "":
		t.Errorf("nothing was found, and the simulation has not come to its end: %v\n%s", err, out[:min(len(out), 4000)])
	default:
		t.Log("found: " + found)
	}
}

// isNotFound has the copy simulated as it is: what is said of the broken ones is worth nothing if that fails, too.
func (m mutation) isNotFound(t *testing.T, scenarios int) {
	out, err := m.simulated(t, scenarios)
	if err != nil {
		t.Fatalf("what is not broken fails: %v\n%s", err, out)
	}
	t.Log(simLine.FindString(out))
}

// complaint is what a simulation that failed says against a scenario, or nothing.
func (m mutation) complaint(out string) string {
	if m.race {
		if strings.Contains(out, "WARNING: DATA RACE") {
			return "DATA RACE"
		}
		return ""
	}
	if said := simComplaint.FindStringSubmatch(out); said != nil {
		return said[1]
	}
	// A time that is up panics, too, but outside of every bubble. A timer's goroutine is in one, and does not know its seed.
	if panicked := simPanic.FindStringSubmatch(out); panicked != nil && strings.Contains(panicked[2], "synctest bubble") {
		return panicked[1] + ", goroutine " + panicked[2]
	}
	return ""
}

func TestMutationsAreFoundByWhatIsSaid(t *testing.T) {
	const (
		says  = "=== NAME  TestSimulation/all/1\n    simulation_test.go:1205: seed 7: 3: it was executed twice\n"
		late  = "panic: test timed out after 5m0s\n\trunning tests:\n\t\tTestSimulation (5m0s)\n\ngoroutine 9 [running]:\ntesting\n\n"
		crash = "panic: baton: BUG: why\n\n"
		other = "goroutine 5 [running]:\nmain\n\n"
		its   = `goroutine 6 [running, synctest bubble 3 labels:{"seed": "8"}]:` + "\nmain\n\n"
		timer = "goroutine 6 [running, synctest bubble 3]:\nmain\n\n"
		race  = "==================\nWARNING: DATA RACE\nRead at\n"
	)
	for out, want := range map[string]string{
		says:                  "seed 7: 3: it was executed twice",
		says + late + its:     "seed 7: 3: it was executed twice",
		late + its:            "", // this is only what was under way
		crash + its + other:   `panic: baton: BUG: why, goroutine 6 [running, synctest bubble 3 labels:{"seed": "8"}]:`,
		crash + timer + other: "panic: baton: BUG: why, goroutine 6 [running, synctest bubble 3]:",
		crash + other + its:   "",
		"signal: killed":      "",
		"":                    "",
	} {
		if got := (mutation{}).complaint(out); got != want {
			t.Errorf("%q, want %q, of:\n%s", got, want, out)
		}
		if got := (mutation{race: true}).complaint(out); got != "" {
			t.Errorf("without a race: %q, of:\n%s", got, out)
		}
		if got := (mutation{race: true}).complaint(out + race); got != "DATA RACE" {
			t.Errorf("with a race: %q, of:\n%s", got, out)
		}
	}
}

// simulated builds a copy, broken if there is a file to break, and has so many scenarios of it simulated. What it says, it says at once, so that
// nothing is lost in a crash.
func (m mutation) simulated(t *testing.T, scenarios int) (string, error) {
	dir := t.TempDir()
	for _, pattern := range []string{"go.mod", "go.sum", "*.go", "batontest/*.go"} {
		files, _ := filepath.Glob(pattern)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "simulation_") && !slices.Contains([]string{"rig_test.go", "check_test.go", "readme_test.go"}, name) {
				continue // what the simulation needs is built much faster
			}
			source, err := os.ReadFile(name)
			if err == nil {
				err = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
			}
			if err == nil {
				if name == m.file {
					source = bytes.Replace(source, []byte(m.old), []byte(m.new), 1)
				}
				err = os.WriteFile(filepath.Join(dir, name), source, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	args := []string{"test", "-c", "-o", "broken.test"}
	if m.race {
		args = append(args, "-race")
	}
	run := func(name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), simulationTime+time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("go", args...); err != nil {
		t.Fatalf("it cannot be built: %v\n%s", err, out)
	}
	shrink := "1ms"
	if m.race {
		shrink = "0" // who is given a wrong reply may notice before the race detector does, and then it goes on
	}
	return run("./broken.test", "-test.v", "-test.run=^TestSimulation$", fmt.Sprintf("-test.timeout=%v", simulationTime),
		fmt.Sprintf("-sim.runs=%d", scenarios), "-sim.shrink="+shrink)
}
