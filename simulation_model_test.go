package baton

// The model of the contract: it is given the history of a scenario, what callers were told and what the world saw, and says what is not as
// promised. It runs when all is over, on one goroutine. Each thing that it lets pass quotes the promise that allows it.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"
)

// simModel is what several judgements need. What may still be added to is a copy.
type simModel struct {
	*simRun
	events   []Event
	traces   []*simTrace
	requests []simRequest
	executed map[string][]int // where in w.executions a token is
	byToken  map[string]*simCall
	nameless map[*simConn]bool   // what a connection was given the beginning of is known, see begunBy
	owner    map[*simConn]string // what a connection carries: "" for ordinary commands, else whose it is
}

func (x *simRun) judge() {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	m := &simModel{simRun: x, executed: map[string][]int{}, byToken: map[string]*simCall{}, owner: map[*simConn]string{}, nameless: map[*simConn]bool{}}
	m.copy()
	for i := range x.w.executions {
		m.executed[x.w.executions[i].token] = append(m.executed[x.w.executions[i].token], i)
	}
	for _, c := range x.calls {
		for _, token := range c.tokens {
			m.byToken[token] = c
		}
	}
	m.judgeTouches()
	m.judgeHandshakes()
	for _, c := range x.calls {
		m.judgeCall(c)
	}
	m.judgeTargets()
	m.judgePace()
	m.judgeOwners()
	m.judgeOrder()
	m.judgeAcross()
	m.judgeSessions()
	m.judgeMoving()
	m.judgeClosings()
	m.judgeRequests()
	m.judgeRenewals()
	m.judgeAnnouncements()
	m.judgeJitter()
	m.judgeTransactions()
	m.judgeMachines()
	for _, l := range x.listeners {
		m.judgeListener(l)
	}
	m.judgeSubscribed()
	m.judgeSilence()
	m.judgeIdle()
	m.judgeDoor()
	m.judgeStats()
	m.judgeEnd()
}

// copy takes what the client may still add to.
func (m *simModel) copy() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events, m.requests = slices.Clone(m.simRun.events), slices.Clone(m.simRun.requests)
	for _, tr := range m.simRun.traces {
		tr.b.mu.Lock()
		m.traces = append(m.traces, &simTrace{tr.b, slices.Clone(tr.steps)})
		tr.b.mu.Unlock()
	}
}

// judgeDials looks at a Dial that failed: it must have had a reason.
func (x *simRun) judgeDials() {
	for _, c := range x.w.conns {
		if c.ending != simAlive || c.link.cutUp > 0 || c.link.cutDown > 0 {
			return
		}
	}
	if len(x.s.actions) == 0 && x.s.profile != simFaulty {
		x.breaks("6: Dial failed without a reason: %v", x.dialErrs)
	}
}

// judgeTargets: a dial goes to what is configured, where its name leads, or to a successor that was announced and that the policy allows; and
// where notifications are not wanted, none are asked for.
func (m *simModel) judgeTargets() {
	o, bare := &m.s.opts, strings.NewReplacer("[", "", "]", "") // with or without brackets an address is the same
	for _, d := range m.w.dials {
		led := func(a simAction) bool {
			if o.Named && slices.ContainsFunc(a.hosts, func(h int) bool { return simAddr(h) == d.addr }) {
				return true
			}
			moves := simMoves(a.frame) && strings.Contains(bare.Replace(a.frame), bare.Replace(d.addr)+"\r\n")
			return a.at <= d.at && o.allows(d.addr) && o.Mode != Disabled && moves
		}
		home := d.addr == simAddr(0) || o.Named && d.at >= m.s.calm // when all is well the name leads everywhere
		if !home && !slices.ContainsFunc(m.s.actions, led) {
			m.breaks("9: %s was dialled at %v, where nobody may have led", d.addr, d.at)
		}
	}
	for _, c := range m.w.conns {
		if c.opted && o.Mode == Disabled {
			m.breaks("9: connection %d asked for notifications, which are not wanted", c.id)
		}
	}
}

// judgePace: "redial at once, then back-off with jitter", from 50 ms doubling to 1 s. Within a second that is one dial at once and six more of
// each bridge, and one more of each for an announcement or a renewal that it may still follow; what needs a connection of its own may be new.
func (m *simModel) judgePace() {
	const second = time.Second
	bridges, each := m.s.opts.Conns+1+len(m.s.callers), 1
	if m.s.opts.Named {
		each = simNodes
	}
	for i, first := range m.w.dials {
		n, most := 0, 7*bridges+len(m.dialErrs)
		for _, d := range m.w.dials[i:] {
			if d.at < first.at+second {
				n++
			}
		}
		for _, a := range m.s.actions {
			if (a.frame != "" || a.what == simRenew) && first.at-5*second <= a.at && a.at < first.at+second {
				most += bridges
			}
		}
		for _, c := range m.calls {
			if !c.ordinary() && c.ended >= first.at && c.began < first.at+second {
				most++
			}
		}
		if n > most*each {
			m.breaks("9: from %v on there were %d dials within a second, of %d bridges, and %d would be many", first.at, n, bridges, most*each)
			return
		}
	}
}

// judgeTouches: "No byte of a command is written a second time once any byte of it may have reached a server." A command of which a
// connection took only the beginning is found by what is left there, if that has its token.
func (m *simModel) judgeTouches() {
	for _, c := range m.w.conns {
		if len(c.buf) == 0 {
			continue
		}
		if from := strings.IndexByte(string(c.buf), '~'); from >= 0 {
			token, _, whole := strings.Cut(string(c.buf[from:]), "\r\n")
			if name, _, large := strings.Cut(token, "|"); whole || large {
				m.nameless[c] = true
				m.w.touched[name] = append(m.w.touched[name], simTouch{c, c.begunAt, c.count, false})
			}
		}
	}
	for token, touches := range m.w.touched {
		if len(touches) > 1 {
			m.breaks("2: %s was written %d times, to connections %v", token, len(touches), simConnsOf(touches))
		}
	}
	for token, at := range m.executed {
		if len(at) > 1 {
			m.breaks("2: %s was executed %d times", token, len(at))
		}
	}
}

// judgeHandshakes: no command is given to a connection before its handshake has brought about everything, on whatever dial.
func (m *simModel) judgeHandshakes() {
	for token, touches := range m.w.touched {
		for _, t := range touches {
			if t.conn.lacks != "" || t.conn.ponged == 0 {
				m.breaks("10: %s was written to connection %d, ready from %v on, whose handshake lacks %s", token, t.conn.id, t.conn.ponged, t.conn.lacks)
			}
		}
	}
}

func simConnsOf(touches []simTouch) (ids []int) {
	for _, t := range touches {
		ids = append(ids, t.conn.id)
	}
	return ids
}

// judgeCall holds what a caller was told against what the servers did.
func (m *simModel) judgeCall(c *simCall) {
	if !c.over {
		m.breaks("1: %s of caller %d, begun at %v, has not ended", simWhatNames[c.what], c.caller, c.began)
		return
	}
	if c.ended > max(c.limit, c.began) {
		m.breaks("1: %s %v of caller %d ended at %v, its context at %v", simWhatNames[c.what], c.tokens, c.caller, c.ended, c.limit)
	}
	for k, token := range c.tokens {
		m.judgeToken(c, k, token)
	}
	if c.err != nil {
		m.judgeError(c)
		m.judgeLeft(c)
	}
	m.judgeLate(c)
}

// judgeToken: executed at most once (see judgeTouches); exactly once if it was answered, and with that answer; never if the error says that
// it was not sent.
func (m *simModel) judgeToken(c *simCall, k int, token string) {
	at := m.executed[token]
	switch answered := c.replies[k] != ""; {
	case answered && c.what == simTx && c.err != nil: // the answers to the queueing, see judgeTransactions
	case answered && c.session > 0 && c.replies[k] == "+QUEUED": // in a transaction by hand
	case answered && len(at) == 0:
		m.breaks("2: %s was answered with %.60q and not executed", token, c.replies[k])
	case answered && m.w.executions[at[0]].outsized:
		m.breaks("6: %s was answered, with more than the limits allow", token)
	case answered && simShortened(m.w.executions[at[0]].reply) != simShortened(c.replies[k]):
		m.breaks("3: %s was answered with %.60q, and the server said %.60q", token, c.replies[k], m.w.executions[at[0]].reply)
	case answered:
	case c.err == nil:
		m.breaks("3: %s has neither an answer nor an error", token)
	case !MaybeExecuted(c.err) && len(at) > 0 && !simServerSaid(c.err):
		m.breaks("2: %s was executed, and its caller was told %v", token, c.err)
	case MaybeExecuted(c.err) && !m.mayBeSent(c):
		m.breaks("2: no byte of %s was written, and its caller was told at %v that it may have been executed: %v", token, c.ended, c.err)
	case c.what == simWatch: // which begins again when EXEC was aborted: then what was written of a try before was not executed
	case !MaybeExecuted(c.err) && len(m.w.touched[token]) > 0 && !simServerSaid(c.err) && !m.abortedByNull(c):
		m.breaks("2: bytes of %s were written, and its caller was told %v", token, c.err)
	}
}

// mayBeSent says that a connection took bytes of a call, or the beginning of a command that does not tell whose it is, or was being written to
// when the caller left: what stands behind that can no longer be taken back. Of a record that came in part nobody knows what is in it.
func (m *simModel) mayBeSent(c *simCall) bool {
	return m.s.opts.TLS && m.endedBetween(0, c.ended) || m.connOf(c) != nil || slices.ContainsFunc(m.w.conns, func(o *simConn) bool {
		return o.begunAt <= c.ended && (len(o.buf) > 0 || o.last == "MULTI") ||
			slices.ContainsFunc(o.writes, func(of [2]time.Duration) bool { return of[0] <= c.ended && c.ended <= of[1] })
	})
}

// abortedByNull says that a transaction was aborted by the server.
func (m *simModel) abortedByNull(c *simCall) bool { return c.err == ErrTxAborted }

// simShortened is a text, of which the beginning and the length stand for all if it is long.
func simShortened(s string) string {
	if len(s) > 1000 {
		return fmt.Sprintf("%s…%d", s[:40], len(s))
	}
	return s
}

func simServerSaid(err error) bool {
	var e *ServerError
	return errors.As(err, &e) && !errors.Is(err, ErrNoConnection) && !errors.Is(err, ErrTimeout)
}

// connOf is the connection to which bytes of a call were given, if one is known.
func (m *simModel) connOf(c *simCall) *simConn {
	for _, token := range c.tokens {
		if t := m.w.touched[token]; len(t) > 0 {
			return t[0].conn
		}
	}
	return nil
}

// judgeError looks for what an error is due to.
func (m *simModel) judgeError(c *simCall) {
	err, sent := c.err, MaybeExecuted(c.err)
	name := fmt.Sprintf("%s %v of caller %d (%v to %v)", simWhatNames[c.what], c.tokens, c.caller, c.began, c.ended)
	o := &m.c.opts
	switch {
	case c.what == simWatch && len(c.tokens) == 0: // judged by its parts
	case errors.Is(err, ErrNotHere):
		m.breaks("6: %s: %v", name, err)
	case errors.Is(err, ErrTxAborted):
		m.judgeAborted(c, name)
	case errors.Is(err, ErrClosed):
		m.judgeClosed(c, name)
	case errors.Is(err, ErrBacklogFull):
		if n, bytes := m.outstanding(c); n+c.want <= o.MaxBacklog && bytes+m.size(c) <= o.MaxBacklogBytes {
			m.breaks("6: %s found the backlog full, with %d commands outstanding of %d, and %d bytes of %d: %v", name, n, o.MaxBacklog, bytes, o.MaxBacklogBytes, err)
		}
	case errors.Is(err, ErrTimeout):
		m.judgeTimeout(c, name)
	case errors.Is(err, ErrNoConnection) && c.session != 0:
		m.judgeSessionLost(c, name)
	case errors.Is(err, ErrNoConnection):
		m.judgeNoConnection(c, name)
	case simServerSaid(err):
		if c.what != simTx && c.what != simWatch && c.what != simSession {
			m.breaks("6: %s: %v", name, err)
		}
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		if c.ended != max(c.began, c.limit) {
			m.breaks("6: %s failed by its context, which ended at %v: %v", name, c.limit, err)
		}
		if st := &m.s.callers[c.caller].steps[c.index]; st.patience > 0 && errors.Is(err, context.Canceled) != st.cancels {
			m.breaks("6: %s failed by its context, which ended by being cancelled (%v): %v", name, st.cancels, err)
		}
	case sent:
		m.judgeCut(c, name)
	default:
		m.breaks("6: %s failed for no reason that is known: %v", name, err)
	}
}

// outstanding are the commands of other calls that were not over at the end of one, and at most so many bytes.
func (m *simModel) outstanding(c *simCall) (n, bytes int) {
	for _, o := range m.calls {
		if o != c && o.began <= c.ended && (!o.over || o.ended >= c.ended) {
			n += o.want
			bytes += m.size(o)
		}
	}
	return n, bytes
}

// size is how many bytes a call has at most.
func (m *simModel) size(c *simCall) int {
	if c.what == simLarge {
		return 100 + m.s.callers[c.caller].steps[c.index].n
	}
	return 100 * c.want
}

// judgeCut: "Only what is still in flight when the server itself closes the old connection fails." Silence is another end: "no byte for
// twice the effective Timeout ... means dead".
func (m *simModel) judgeCut(c *simCall, name string) {
	conn := m.connOf(c)
	switch {
	case conn == nil && len(c.tokens) == 0: // by the PING with which a session begins
		if !m.endedIn(c.began, c.ended) {
			m.breaks("6: %s failed, and no connection was lost: %v", name, c.err)
		}
	case conn == nil && m.s.opts.TLS && m.endedBetween(0, c.ended): // with a record that was lost behind the client's back
	case conn == nil:
		if !m.begunBy(c) {
			m.breaks("6: %s failed with nothing of it written: %v", name, c.err)
		}
	case conn.ending != simAlive && conn.endedAt <= c.ended:
	case conn.closed && conn.closedAt <= c.ended && (conn.outsized || m.silent(conn, c.ended)):
	default:
		m.breaks("6: %s failed on connection %d, which nothing had happened to: %v", name, conn.id, c.err)
	}
}

// begunBy finds, for a call that was cut off and of which no token was taken, the connection that ended last before, behind the beginning of a
// command without telling whose it was. Each stands for one call.
func (m *simModel) begunBy(c *simCall) bool {
	var last *simConn
	var lastAt time.Duration
	for _, conn := range m.w.conns {
		at := simForever
		if conn.ending != simAlive {
			at = conn.endedAt
		}
		if conn.closed {
			at = min(at, conn.closedAt)
		}
		begun := !m.nameless[conn] && (len(conn.buf) > 0 || conn.last == "MULTI")
		if at <= c.ended && begun && (last == nil || at >= lastAt) {
			last, lastAt = conn, at
		}
	}
	if last != nil {
		m.nameless[last] = true
	}
	return last != nil
}

// silent says that nothing had come for twice the Timeout.
func (m *simModel) silent(c *simConn, at time.Duration) bool {
	timeout := m.c.opts.Timeout
	return timeout > 0 && c.lastRead+2*timeout <= at
}

// period is how often callers and connections are looked at.
func (m *simModel) period() time.Duration { return min(max(m.c.opts.Timeout/8, 5*ms), time.Second) }

// judgeSilence: "with a non-blocking command outstanding, no byte for twice the effective Timeout, not counting time in which we are writing,
// means dead."
func (m *simModel) judgeSilence() {
	timeout := m.c.opts.Timeout
	if timeout <= 0 {
		return
	}
	period := m.period()
	timeout = max(timeout, m.c.opts.Maintenance.RelaxedTimeout)
	for token, touches := range m.w.touched {
		conn, at := touches[0].conn, touches[0].at
		if c := m.byToken[token]; c == nil || c.err == nil || !c.ordinary() || conn.ending != simHole && conn.mended == 0 || at < conn.endedAt || conn.link.writePause > 0 {
			continue
		}
		if until := cmp.Or(conn.mended, conn.closedAt); until > at+2*timeout+3*period {
			m.breaks("6: %s was written to connection %d at %v, which was silent from %v on, and open until %v", token, conn.id, at, conn.endedAt, until)
		}
	}
}

// judgeIdle: "Idle: PING after KeepAlive", up to a quarter late, which makes silence of a connection that nobody uses.
func (m *simModel) judgeIdle() {
	o := &m.c.opts
	if o.Timeout <= 0 || o.KeepAlive < 0 {
		return
	}
	limit := o.KeepAlive*5/4 + 2*max(o.Timeout, o.Maintenance.RelaxedTimeout) + max(o.Maintenance.HoldCap, 0) + 3*m.period()
	for _, c := range m.w.conns {
		owner, used := m.owner[c]
		if !used || owner != "" || c.ending != simHole && c.mended == 0 || c.link.writePause > 0 {
			continue
		}
		if until := min(cmp.Or(c.mended, simForever), cmp.Or(c.closedAt, simForever)); until > c.endedAt+limit {
			m.breaks("6: connection %d was cut off silently at %v, and open until %v, with a KeepAlive of %v", c.id, c.endedAt, until, o.KeepAlive)
		}
	}
}

// judgeDoor: "FailFast is judged at the door (no connection, no handoff in force, not the first dial)": what is given then fails at once. It is
// looked at where all events are those of one bridge.
func (m *simModel) judgeDoor() {
	only := m.only()
	if only == nil || !m.s.opts.FailFast || slices.ContainsFunc(m.s.callers, func(c simCaller) bool { return c.kind != simOrdinary }) {
		return
	}
	for _, c := range m.calls {
		lost := false
		for _, e := range m.events {
			switch at := e.Time.Sub(m.w.began); {
			case at > c.began:
			case e.Kind == EventLost:
				lost = at < c.began
			case e.Kind == EventConnected || e.Kind == EventPromoted:
				lost = false
			}
		}
		inForce := slices.ContainsFunc(only.phasesAt(c.began), func(p Phase) bool { return p != PhaseDone })
		if lost && !inForce && c.limit > c.began && c.ended > c.began {
			m.breaks("8: %s %v of caller %d was given at %v, when there was no connection, and failed at %v only: %v", simWhatNames[c.what], c.tokens, c.caller,
				c.began, c.ended, c.err)
		}
	}
}

// judgeTimeout: "Timeout runs from Do; for work that stands in the backlog when a handoff of its bridge is promoted or given up, from then.
// The backlog is not swept while Holding."
func (m *simModel) judgeTimeout(c *simCall, name string) {
	timeout := m.c.opts.Timeout
	if timeout <= 0 {
		m.breaks("6: %s timed out, and there is no Timeout: %v", name, c.err)
		return
	}
	if c.blocks > 0 {
		timeout += c.blocks
	}
	from := c.began
	if only := m.only(); only != nil && c.ordinary() && !MaybeExecuted(c.err) {
		if !slices.ContainsFunc(only.phasesAt(c.ended), func(p Phase) bool { return p != PhaseHolding }) {
			m.breaks("7: %s timed out while it was held", name)
		}
		// What was in flight, and came back unsent when its connection was lost, did not stand in the backlog.
		if reset := only.lastReset(c.ended); !m.lostBetween(reset, c.ended) {
			from = max(from, reset)
		}
	}
	if timeout = max(timeout, m.relaxedAt(c.ended)); c.ended-from < timeout {
		m.breaks("6: %s timed out early, %v after %v and not %v: %v", name, c.ended-from, from, timeout, c.err)
	}
}

// lostBetween says that a connection was lost.
func (m *simModel) lostBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(m.events, func(e Event) bool {
		at := e.Time.Sub(m.w.began)
		return e.Kind == EventLost && from <= at && at <= to
	})
}

// only is the machine of the one bridge for ordinary commands; nil if there are several.
func (m *simModel) only() *simTrace {
	if m.s.opts.Conns > 1 {
		return nil
	}
	i := slices.IndexFunc(m.traces, func(tr *simTrace) bool { return tr.b == m.c.bridges[0] })
	return m.traces[i]
}

// phasesAt are those that a bridge was in at some point of an instant.
func (tr *simTrace) phasesAt(at time.Duration) []Phase {
	phases := []Phase{PhaseDone}
	for _, st := range tr.steps {
		h := st.before
		h.step(st.e, st.t)
		if st.at < at {
			phases[0] = h.phase
		} else if st.at == at {
			phases = append(phases, h.phase)
		}
	}
	return phases
}

// lastReset is when a handoff was promoted or given up last.
func (tr *simTrace) lastReset(until time.Duration) (at time.Duration) {
	for _, st := range tr.steps {
		if st.at <= until && (st.a == promote || st.a == giveUp) {
			at = st.at
		}
	}
	return at
}

// judgeLate: a call that its context does not end is ended by Timeout, "judged up to an eighth or 5 ms late": by the sweep, which may just
// have been. What is in flight knows no exception but that timeouts are relaxed; what is queued is not swept while it is held, nor while
// there is no connection because of a handoff, for at most RelaxedWindowMax and a dial, and counts from the end of that. What waits for its
// turn to have a connection of its own does so within its context.
func (m *simModel) judgeLate(c *simCall) {
	o := &m.c.opts
	again := c.what == simWatch && errors.Is(c.err, ErrTxAborted) // that it was is known when the next try begins
	if o.Timeout <= 0 || len(c.tokens) == 0 || c.blocks == maxSpan || again {
		return
	}
	limit, from := o.Timeout+c.blocks, c.began
	maintained := o.MaxAge > 0 || slices.ContainsFunc(m.s.actions, func(a simAction) bool { return a.what == simMoving || a.what == simSays || a.what == simRenew })
	if maintained {
		limit = max(o.Timeout, o.Maintenance.RelaxedTimeout) + c.blocks
	}
	switch touches := m.w.touched[c.tokens[0]]; {
	case len(touches) > 0:
		from = touches[0].at
	case !c.ordinary() && m.s.opts.MaxDedicated > 0:
		return
	case maintained:
		limit += max(o.Maintenance.HoldCap, 0) + o.Maintenance.RelaxedWindowMax + m.c.pin.grace
		for _, tr := range m.traces {
			from = max(from, tr.lastReset(c.ended))
		}
	}
	if c.ended > from+limit+2*m.period() {
		m.breaks("1: %s %v of caller %d took from %v to %v, with a Timeout of %v", simWhatNames[c.what], c.tokens, c.caller, c.began, c.ended, o.Timeout)
	}
}

// relaxedAt is what timeouts are raised to at a time, for sure: if a window opens or closes at that moment, they may be or not.
func (m *simModel) relaxedAt(at time.Duration) time.Duration {
	mt := &m.c.opts.Maintenance
	if mt.RelaxedTimeout < 0 {
		return 0
	}
	window, open := min(mt.RelaxedTimeout, mt.RelaxedWindowMax), map[string]time.Duration{}
	for _, e := range m.events {
		switch t := e.Time.Sub(m.w.began); {
		case t > at:
		case e.Kind == EventRelaxed && t < at:
			open[e.Notification] = t + window
		case e.Kind == EventTightened:
			clear(open)
		}
	}
	for _, until := range open {
		if at < until {
			return mt.RelaxedTimeout
		}
	}
	return 0
}

// judgeNoConnection: "FailFast is judged at the door (no connection, no handoff in force, not the first dial) and at two moments: a
// connection ends with no handoff in force; a handoff ends without a connection."
func (m *simModel) judgeNoConnection(c *simCall, name string) {
	if (c.what == simSession || c.what == simWatch) && len(c.tokens) == 0 && m.endedIn(c.began, c.ended) {
		return // a session is over when its connection ends, also if that is before it has begun
	}
	if !m.s.opts.FailFast {
		m.breaks("6: %s failed for want of a connection, which the policy is to wait for: %v", name, c.err)
		return
	}
	if MaybeExecuted(c.err) {
		m.breaks("2: %s failed for want of a connection, and may have been executed: %v", name, c.err)
	}
	only := m.only()
	if only == nil || !c.ordinary() {
		return
	}
	if !slices.Contains(only.phasesAt(c.ended), PhaseDone) {
		m.breaks("8: %s failed for want of a connection during a handoff: %v", name, c.err)
	}
	connected := true
	for _, e := range m.events {
		switch t := e.Time.Sub(m.w.began); {
		case t > c.ended || t == c.ended && !connected: // within an instant the order is not known
		case e.Kind == EventLost:
			connected = false
		case e.Kind == EventConnected && len(m.listeners) == 0:
			connected = true
		}
	}
	if connected {
		m.breaks("6: %s failed for want of a connection, and there was one: %v", name, c.err)
	}
}

// endedIn says that the world ended a connection which was made between from and to, or left it silent for so long that the client did.
func (m *simModel) endedIn(from, to time.Duration) bool {
	return slices.ContainsFunc(m.w.conns, func(o *simConn) bool {
		return o.opened >= from && (o.ending != simAlive && o.endedAt <= to || o.closed && o.closedAt <= to && m.silent(o, to))
	})
}

// endedBetween says that a connection ended, or was closed, between from and to, as one is of which the handshake comes to nothing.
func (m *simModel) endedBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(m.w.conns, func(o *simConn) bool {
		return o.ending != simAlive && from <= o.endedAt && o.endedAt <= to || o.closed && from <= o.closedAt && o.closedAt <= to
	})
}

// judgeSessionLost: when a session is lost, every call fails with ErrNoConnection, never sent, "and one with an EXEC is ErrTxAborted, too".
func (m *simModel) judgeSessionLost(c *simCall, name string) {
	conn := m.connOf(c)
	silenced := conn != nil && conn.closed && conn.closedAt == c.ended // its time was up when its connection was found silent
	if MaybeExecuted(c.err) && !silenced {
		m.breaks("9: %s failed for want of its connection, and may have been executed: %v", name, c.err)
	}
	if c.name == "EXEC" || c.name == "tx" {
		m.breaks("9: an EXEC on a session that is lost failed with %v", c.err)
	}
}

// judgeSessions: after the end of a session "every call fails at once, never sent". It ends with its connection, and when "the caller of a
// blocking command leaves".
func (m *simModel) judgeSessions() {
	over := map[int]bool{}
	for _, c := range m.calls {
		if c.session <= 0 || len(c.tokens) == 0 || !c.over {
			continue
		}
		if over[c.session] && c.limit > c.began {
			switch {
			case c.err == nil:
				m.breaks("9: %v succeeded on a session that was over", c.tokens)
			case MaybeExecuted(c.err) || c.ended != c.began || !errors.Is(c.err, ErrNoConnection) && !errors.Is(c.err, ErrClosed):
				m.breaks("9: %v failed on a session that was over, after %v: %v", c.tokens, c.ended-c.began, c.err)
			}
		}
		cut := c.err != nil && MaybeExecuted(c.err) && !errors.Is(c.err, ErrTimeout) && !simByContext(c.err)
		if cut || errors.Is(c.err, ErrNoConnection) || c.blocks > 0 && MaybeExecuted(c.err) {
			over[c.session] = true
		}
	}
}

// judgeMoving: Session.Moving "has one value when the server has announced that it will cut the connection: when". Nothing else has it say so,
// and it is certain if the connection is older than all that was announced, and answered behind that.
func (m *simModel) judgeMoving() {
	oldest := simForever
	for _, a := range m.s.actions {
		if simMoves(a.frame) {
			oldest = min(oldest, a.at)
		}
	}
	lived, on := map[int]time.Duration{}, map[int]*simConn{}
	for _, c := range m.calls {
		if c.session > 0 && c.over && c.err == nil && len(c.tokens) > 0 {
			lived[c.session], on[c.session] = c.ended, m.connOf(c)
		}
	}
	for _, c := range m.calls {
		if c.session <= 0 || len(c.tokens) > 0 {
			continue
		}
		conn, until := on[c.session], lived[c.session]
		told := conn != nil && conn.moved > 0 && conn.moved < until && conn.dialled < oldest && until < m.closing
		switch {
		case told && c.moving == 0:
			m.breaks("9: session %d on connection %d was told to move at %v, and Moving said nothing", c.session, conn.id, conn.moved)
		case c.moving != 0 && c.moving < oldest:
			m.breaks("9: Moving said that session %d will be cut at %v; the first announcement was at %v", c.session, c.moving, oldest)
		}
	}
}

// judgeLeft: the connection of a blocking command is closed when its caller leaves: "nothing is popped for nobody".
func (m *simModel) judgeLeft(c *simCall) {
	if conn := m.connOf(c); c.blocks > 0 && c.err != nil && MaybeExecuted(c.err) && conn != nil && (!conn.closed || conn.closedAt > c.ended) && conn.ending == simAlive {
		m.breaks("3: the caller of %v left at %v, and connection %d stayed", c.tokens, c.ended, conn.id)
	}
}

func simByContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// judgeAborted: an EXEC is ErrTxAborted if its session is gone, or if the server says null.
func (m *simModel) judgeAborted(c *simCall, name string) {
	if c.session == 0 {
		m.breaks("9: %s was aborted, and nothing was watched", name)
	}
}

// judgeOwners: a connection of a session carries nothing else, and one of blocking commands no ordinary ones.
func (m *simModel) judgeOwners() {
	for token, touches := range m.w.touched {
		c := m.byToken[token]
		if c == nil {
			continue
		}
		owner := ""
		switch {
		case c.session > 0:
			owner = fmt.Sprintf("session %d", c.session)
		case c.session < 0:
			owner = "a Watch"
		case c.blocks > 0:
			owner = "what blocks"
		}
		for _, t := range touches {
			if before, some := m.owner[t.conn]; some && before != owner {
				m.breaks("9: connection %d carried %q and %q", t.conn.id, before, owner)
			}
			m.owner[t.conn] = owner
		}
	}
}

// ordinary says that a call shares its connection with others.
func (c *simCall) ordinary() bool { return c.session == 0 && c.what < simPop }

// judgeOrder: "Commands given to one connection execute in the order in which they were given, across the handoff too, as long as the hold
// lasts." What is not written yet returns to the head of the backlog, in order: so the order of writing is that of giving, but for what was to be
// written next to an old connection that went on after its hold had ended early.
func (m *simModel) judgeOrder() {
	type written struct {
		simTouch
		call  *simCall
		token string
	}
	by := map[*simConn][]written{}
	for token, touches := range m.w.touched {
		if c := m.byToken[token]; c != nil && c.ordinary() {
			by[touches[0].conn] = append(by[touches[0].conn], written{touches[0], c, token})
		}
	}
	var conns []*simConn
	for conn, all := range by {
		slices.SortFunc(all, func(a, b written) int { return a.order - b.order })
		conns = append(conns, conn)
		latest := all[0]
		for _, wr := range all[1:] {
			if wr.call.began >= latest.call.began {
				latest = wr
			} else if !m.overtaken(wr.call.began, latest.at, wr.at) {
				m.breaks("4: %s, given at %v, was written behind %s, given at %v, on connection %d", wr.token, wr.call.began, latest.token, latest.call.began, conn.id)
			}
		}
	}
	if m.s.opts.Conns > 1 {
		return
	}
	slices.SortFunc(conns, func(a, b *simConn) int { return int(by[a][0].at - by[b][0].at) })
	var latest *written
	for _, conn := range conns {
		all := by[conn]
		if latest != nil && all[0].at > latest.at && all[0].call.began < latest.call.began &&
			!m.overtaken(all[0].call.began, latest.at, all[0].at) {
			m.breaks("4: %s, given at %v, was written to connection %d behind %s, given at %v, on connection %d", all[0].token, all[0].call.began, conn.id,
				latest.token, latest.call.began, latest.conn.id)
		}
		for i := range all {
			if latest == nil || all[i].call.began >= latest.call.began {
				latest = &all[i]
			}
		}
	}
}

// overtaken says that what was given at from could come back only after what overtook it was written, or next to it: a connection that a
// replacement had taken the place of, with commands in flight, ended between overtook and written, or both had ended by then.
func (m *simModel) overtaken(from, overtook, written time.Duration) bool {
	for _, tr := range m.traces {
		for _, st := range tr.steps {
			if busy := st.e == readyBusy || st.e == backlogFull || st.e == timePassed; st.a != promote || !busy || st.at < from || st.at > overtook {
				continue
			}
			ended := 0
			for _, c := range m.w.conns {
				if c.closed && st.at <= c.closedAt && c.closedAt <= written {
					if ended++; ended == 2 || c.closedAt > overtook {
						return true
					}
				}
			}
		}
	}
	return false
}

// judgeAcross: "execute in the order in which they were given, across the handoff too, as long as the hold lasts": behind a hold that ended
// because nothing was in flight, nothing of the old connection is executed after something of the new one.
func (m *simModel) judgeAcross() {
	only := m.only()
	if only == nil {
		return
	}
	first, last, order := map[*simConn]int{}, map[*simConn]int{}, []*simConn(nil)
	for i, e := range m.w.executions {
		if c := m.byToken[e.token]; c == nil || !c.ordinary() {
			continue
		}
		if _, seen := first[e.conn]; !seen {
			first[e.conn] = i
			order = append(order, e.conn)
		}
		last[e.conn] = i
	}
	slices.SortFunc(order, func(a, b *simConn) int { return int(a.opened - b.opened) })
	for k := 1; k < len(order); k++ {
		a, b := order[k-1], order[k]
		lost := a.ending != simAlive || a.closed && a.closedAt <= m.w.executions[last[a]].at // by its silence: nobody waits for it any more
		if last[a] < first[b] || lost {
			continue
		}
		promoted, orderly, from, to := false, true, b.ponged, m.w.executions[first[b]].at
		for _, st := range only.steps {
			if st.a == promote && from <= st.at && st.at <= to { // one of them was its own
				promoted, orderly = true, orderly && st.e == drained
			}
		}
		if promoted && orderly && !m.lostBetween(from, to) {
			m.breaks("4: %s was executed on connection %d after %s on connection %d, which had taken its place", m.w.executions[last[a]].token, a.id, m.w.executions[first[b]].token, b.id)
		}
	}
}

// judgeClosings: "A connection is retired because a ready one takes its place, or because it is broken; never because time has run out."
func (m *simModel) judgeClosings() {
	for _, c := range m.w.conns {
		owner, used := m.owner[c]
		if !c.closed || c.closedAt >= m.closing || c.ending != simAlive || !used || owner != "" || c.outsized || m.silent(c, c.closedAt) {
			continue
		}
		if !slices.ContainsFunc(m.w.conns, func(o *simConn) bool {
			return o != c && o.dialled >= c.opened && o.ponged > 0 && o.ponged <= c.closedAt
		}) {
			m.breaks("9: connection %d was closed at %v, with nothing in its place", c.id, c.closedAt)
		}
	}
}

// judgeClosed: what fails with ErrClosed fails behind Close, or behind Shutdown's own context if it was given before Shutdown, which "waits
// for what is queued or in flight".
func (m *simModel) judgeClosed(c *simCall, name string) {
	if m.closing > c.ended && c.session == 0 {
		m.breaks("6: %s failed before the client was closed: %v", name, c.err)
	}
	for _, a := range m.s.actions {
		if a.what == simShutdown && c.ordinary() && c.began < m.closing && c.ended < m.closing+a.last {
			m.breaks("6: %s failed while Shutdown waited for it: %v", name, c.err)
		}
	}
}

// judgeRequests: Renew returns nil "or the last dial's error when DialTimeout (relaxed, during maintenance) has passed in vain for one", Shutdown
// nil when all that was outstanding is over. Both obey their contexts.
func (m *simModel) judgeRequests() {
	for _, r := range m.requests {
		name := fmt.Sprintf("%v (%v to %v)", r.simAction, r.began, r.ended)
		switch {
		case r.ended > r.began+r.last:
			m.breaks("1: %s ended after its context", name)
		case r.err == nil:
			for _, c := range m.calls {
				whole := c.what == simWatch && len(c.tokens) == 0 // a call of Watch, which is over when what it calls is
				if r.what == simShutdown && c.began < r.began && c.ended > r.ended && !whole {
					m.breaks("11: %s returned before %v, given at %v, was over", name, c.tokens, c.began)
				}
			}
		case simByContext(r.err) && r.ended == r.began+r.last:
		case r.what == simRenew && errors.Is(r.err, ErrClosed) && m.closing <= r.ended:
		case r.what == simRenew && (m.s.opts.CredentialsFail > 0 || m.endedBetween(r.began, r.ended) || errors.As(r.err, new(*net.DNSError))):
		case r.what == simRenew && slices.ContainsFunc(m.w.dials, func(d simDial) bool { return d.err != nil && r.began <= d.over && d.at <= r.ended }):
		default:
			m.breaks("6: %s failed, although no dial did: %v", name, r.err)
		}
	}
}

// judgeRenewals: Renew "replaces every connection by one whose dial began after the call", and returns when all are replaced.
func (m *simModel) judgeRenewals() {
	for token, touches := range m.w.touched {
		c, t := m.byToken[token], touches[0]
		if c == nil || !c.ordinary() {
			continue
		}
		for _, r := range m.requests {
			if r.what == simRenew && r.err == nil && c.began > r.ended && t.conn.opened < r.began {
				m.breaks("11: %s was written to connection %d, which Renew had replaced at %v", token, t.conn.id, r.ended)
			}
		}
	}
}

// judgeAnnouncements: "A higher number is a new one. The same, a lower or no number is a copy", until one dial after the deadline.
func (m *simModel) judgeAnnouncements() {
	told, joinedTo := map[string]bool{}, map[uint64]bool{}
	var until time.Duration
	if m.movesForEver() {
		return
	}
	for _, a := range m.s.actions {
		if _, behind, moves := strings.Cut(strings.ToUpper(a.frame), "MOVING\r\n"); moves {
			number, _, _ := strings.Cut(behind, "\r\n")
			if number = number[min(1, len(number)):]; strings.HasPrefix(behind, "$") || strings.HasPrefix(behind, "*") {
				number = "" // what is no number
			}
			told[number] = true
			until = max(until, a.at+a.last)
			if a.again {
				until += time.Second
			}
		}
	}
	if until+time.Second > m.c.pin.grace { // a number may be forgotten, and be new again
		return
	}
	for _, tr := range m.traces {
		for _, st := range tr.steps {
			if st.e == joined && !st.renewal {
				joinedTo[st.number] = true
			}
		}
	}
	if len(joinedTo) > len(told) {
		m.breaks("9: %d announcements were joined, and there were %d", len(joinedTo), len(told))
	}
}

// movesForEver says that a server tells each connection that opts in to move, until the end.
func (m *simModel) movesForEver() bool {
	return slices.ContainsFunc(m.s.actions, func(a simAction) bool {
		return a.what == simSays && a.again && simMoves(a.frame)
	})
}

// judgeJitter: before its dial a bridge "waits a random jitter, at most a tenth of the window and at most a second".
func (m *simModel) judgeJitter() {
	only := m.only()
	if only == nil || len(only.steps) < 2 || m.s.opts.RefuseFrom > 0 || m.s.opts.MaxAge > 0 || m.s.opts.CredentialsFail > 0 {
		return
	}
	st := only.steps[0]
	i := slices.IndexFunc(m.events, func(e Event) bool { return e.Kind == EventPreparing && e.Time.Sub(m.w.began) == st.at })
	if st.e != joined || st.renewal || !st.cur || i < 0 || len(m.calls) == 0 || m.s.opts.Named {
		return
	}
	e := m.events[i]
	newer := func(o Event) bool { // every dial follows the newest, on whatever connection that was read
		return o.Kind == EventNotification && o.Notification == "MOVING" && o.Seq != e.Seq
	}
	if slices.ContainsFunc(m.events, newer) {
		return
	}
	named := slices.IndexFunc(m.w.nodes, func(n *simNode) bool { return n.addr == e.Successor && n.id > 0 })
	latest := st.at + min(m.windowOf(e)/10, time.Second)
	if named < 0 || only.steps[1].at <= latest || m.closing <= latest || m.lostBetween(0, latest) || m.windowOf(e) < 0 {
		return
	}
	if !slices.ContainsFunc(m.w.dials, func(d simDial) bool {
		return d.addr == e.Successor && st.at <= d.at && d.at <= latest+m.s.opts.CredentialsTake
	}) {
		m.breaks("9: %s was announced at %v, and not dialled until %v", e.Successor, st.at, latest)
	}
}

// windowOf is the window of the notification that an event belongs to; negative if it is not known.
func (m *simModel) windowOf(of Event) time.Duration {
	for _, e := range m.events {
		if e.Kind == EventNotification && e.Notification == "MOVING" && e.Seq == of.Seq && !e.Time.After(of.Time) {
			return e.Window
		}
	}
	return -1
}

// judgeTransactions: contiguous, and all or nothing.
func (m *simModel) judgeTransactions() {
	for _, c := range m.calls {
		if c.what != simTx || !c.over {
			continue
		}
		first, done, refused := 0, 0, false
		var tx int
		for k, token := range c.tokens {
			if t := m.w.touched[token]; len(t) > 0 {
				if k == 0 {
					first = t[0].order
				} else if t[0].order != first+k {
					m.breaks("7: the transaction %v is not contiguous", c.tokens)
				}
			}
			if at := m.executed[token]; len(at) > 0 {
				e := &m.w.executions[at[0]]
				refused = refused || strings.HasPrefix(e.reply, "-")
				if e.tx != 0 {
					if done++; tx != 0 && tx != e.tx {
						m.breaks("7: the transaction %v was executed in parts", c.tokens)
					}
					tx = e.tx
				}
			}
		}
		switch {
		case done != 0 && done != len(c.tokens):
			m.breaks("7: %d commands of the transaction %v were executed", done, c.tokens)
		case c.err == nil && done == 0:
			m.breaks("7: the transaction %v succeeded, and was not executed", c.tokens)
		case done != 0 && c.err != nil && !MaybeExecuted(c.err) && !refused:
			m.breaks("7: the transaction %v was executed, and its caller told %v", c.tokens, c.err)
		}
	}
}

// judgeMachines replays what each bridge's machine was told, and looks at its holds.
func (m *simModel) judgeMachines() {
	for _, tr := range m.traces {
		b := tr.b
		var h handoff
		var held, entered time.Duration
		budget := m.c.opts.Maintenance.HoldCap
		for i, st := range tr.steps {
			if st.before.phase != h.phase || st.before.holdUntil != h.holdUntil || st.e != joined && st.before != h {
				m.breaks("replay: before step %d the machine was %+v, and is %+v in the replay", i, st.before, h)
			}
			if h = st.before; h.step(st.e, st.t) != st.a {
				m.breaks("replay: step %d of %+v gives another action than %d", i, st, st.a)
			}
			if b.hub != nil {
				continue
			}
			if st.e == joined && (i == 0 || tr.steps[i-1].number != st.number) {
				held = 0
			}
			if st.a == hold {
				entered = st.at
			}
			if st.before.phase == PhaseHolding && h.phase != PhaseHolding {
				if held += st.at - entered; held > max(budget, 0) {
					m.breaks("5: work was held for %v of %v", held, budget)
				}
				if st.e == timePassed && st.empty && st.cur {
					m.breaks("5: work was held until the budget was spent, with nothing in flight")
				}
			}
			if i > 0 && st.e == joined && st.number == tr.steps[i-1].number && st.a == prepare && (st.before.phase != PhaseDone || st.cur && st.attempt < st.number) {
				m.breaks("9: an announcement was joined again by its copy")
			}
		}
	}
}

// simWanted is one topic from a call of Subscribe or Add on.
type simWanted struct {
	name        string
	asked, sure time.Duration // the call began, and was over; never, if it failed
	cut, until  time.Duration // Remove was called, or the call failed: not before cut, and not after until if it was in the instant of asked
}

// wanted is what a subscription had asked for.
func (l *simListener) wanted() (all []simWanted) {
	for _, a := range l.asked {
		for _, name := range a.names {
			w := simWanted{name, a.began, a.ended, simForever, simForever}
			if a.err != nil {
				w.sure, w.until = simForever, a.ended
			}
			for _, r := range l.asked {
				if !r.removes || !slices.Contains(r.names, name) || r.err != nil && simByContext(r.err) {
					continue
				}
				if r.began >= a.began {
					w.cut = min(w.cut, r.began)
				}
				if r.began > a.began {
					w.until = min(w.until, r.began)
				}
			}
			if !a.removes {
				all = append(all, w)
			}
		}
	}
	return all
}

// simDue is a message for a subscription, on account of one of its topics.
type simDue struct {
	simPublished
	topic []simWanted // each time that it was asked for
	sure  bool        // it was certainly subscribed to then, and until the message came, or a later one
}

// due is what was published for a subscription, in the order in which it may hear of it, and where in that each is.
func (m *simModel) due(l *simListener) (due []simDue, place map[[2]string]int) {
	place = map[[2]string]int{}
	topics, when := map[string][]simWanted{}, map[string]time.Duration{}
	for _, p := range m.w.published {
		when[p.payload] = p.at
	}
	for _, w := range l.wanted() {
		topics[w.name] = append(topics[w.name], w)
	}
	latest := func(name string, until time.Duration) (at time.Duration) { // of what was heard
		for _, h := range l.heard {
			if h.name == name && h.at < until {
				at = max(at, when[h.payload])
			}
		}
		return at
	}
	for _, p := range m.w.published {
		names := []string{p.channel}
		if l.kind == "p" {
			names = slices.DeleteFunc(slices.Clone(simPatterns), func(of string) bool { return !strings.HasPrefix(p.channel, strings.TrimSuffix(of, "*")) })
		}
		for _, name := range names {
			d := simDue{p, topics[name], false}
			for _, w := range d.topic {
				d.sure = d.sure || w.sure < p.at && (w.cut == simForever || p.at < latest(name, w.cut))
			}
			if len(d.topic) > 0 && p.kind == strings.TrimSuffix(l.kind, "p") {
				place[[2]string{name, p.payload}] = len(due)
				due = append(due, d)
			}
		}
	}
	return due, place
}

// judgeListener: in order, nothing twice, nothing missed without a gap, "everything published from now on arrives" behind one, and no gap
// without a loss; from the end of Add on, until Remove, behind which "nothing that comes there is received any more, but what was queued before".
func (m *simModel) judgeListener(l *simListener) {
	name := fmt.Sprintf("the subscription of caller %d to %q", l.caller, l.kind)
	for _, a := range l.asked {
		m.judgeAsked(l, a, fmt.Sprintf("%s, asked at %v for %v", name, a.began, a.names))
	}
	if l.err != nil {
		m.judgeSubscribeError(l, l.err, l.ended, name)
	}
	due, place := m.due(l)
	last := map[string]int{}   // of each topic: the next that may be heard
	since := map[string]bool{} // topics of which something has come behind the gap: nothing of theirs is missing there any more
	next, gap, missed, lost, losses := 0, time.Duration(-1), 0, false, m.losses()
	skip := func(to int) {
		for ; next < to; next++ {
			if d := due[next]; d.sure && (d.at > gap || since[d.topic[0].name]) {
				m.breaks("8: %s missed %q, published at %v, without a gap", name, due[next].payload, due[next].at)
			}
			missed--
		}
	}
	for _, h := range l.heard {
		if h.at > l.left {
			m.breaks("8: %s heard %q at %v, and was closed at %v", name, h.payload, h.at, l.left)
		}
		if h.payload == "" {
			gap, missed, lost = h.at, h.missed, h.missed < 0
			clear(since)
			if h.missed < 0 && !slices.ContainsFunc(losses, func(t time.Duration) bool { return t <= h.at }) {
				m.breaks("8: %s had a gap at %v, and nothing was lost", name, h.at)
			}
			if h.missed > 0 && m.s.opts.MaxMessages == 0 {
				m.breaks("8: %s was too slow at %v for a queue of %d", name, h.at, m.c.opts.MaxMessages)
			}
			continue
		}
		i, known := place[[2]string{h.name, h.payload}]
		switch {
		case !known || !slices.ContainsFunc(due[i].topic, func(w simWanted) bool { return w.asked <= h.at && due[i].at <= w.until }):
			m.breaks("8: %s heard %q of %s at %v, which was not for it", name, h.payload, h.name, h.at)
			continue
		case i < last[h.name] || i < next && due[i].sure:
			m.breaks("8: %s heard %q at %v, twice or out of order", name, h.payload, h.at)
		case i >= next: // what comes before a topic is confirmed may be heard behind what comes of others
			was := gap
			skip(i)
			if was >= 0 && missed > 0 {
				m.breaks("8: %s was told of %d messages more than it missed", name, missed)
			}
			if next, missed = i+1, 0; !lost { // a loss is one of each topic, whatever comes of the others
				gap = -1
			}
		}
		last[h.name], since[h.name] = i+1, true
	}
	if l.s != nil && l.err == nil && l.left == simForever && !m.s.closes() {
		skip(len(due))
	}
}

// judgeAsked: Subscribe and Add end as any call does, Remove at once.
func (m *simModel) judgeAsked(l *simListener, a *simAsked, name string) {
	over := l.left <= a.ended || l.err != nil && (l.ended <= a.ended || l.err == a.err) || m.closing <= a.ended // who listens may learn it later
	removed := func(r *simAsked) bool {
		return r.removes && a.began <= r.began && r.began <= a.ended && slices.ContainsFunc(r.names, func(n string) bool { return slices.Contains(a.names, n) })
	}
	switch {
	case a.ended > max(a.limit, a.began):
		m.breaks("1: %s: it ended at %v, its context at %v", name, a.ended, a.limit)
	case a.err == nil:
	case simByContext(a.err) && !errors.Is(a.err, ErrNoConnection):
		if a.ended != max(a.limit, a.began) {
			m.breaks("8: %s: it failed at %v by its context, which ended at %v: %v", name, a.ended, a.limit, a.err)
		}
	case errors.Is(a.err, ErrTimeout):
		if t := m.c.opts.Timeout; a.removes || t <= 0 || a.ended-a.began < t {
			m.breaks("8: %s: it timed out after %v: %v", name, a.ended-a.began, a.err)
		}
	case strings.HasSuffix(a.err.Error(), "removed meanwhile") && slices.ContainsFunc(l.asked, removed):
	case a.removes && !over:
		m.breaks("8: %s: Remove failed: %v", name, a.err)
	default:
		m.judgeSubscribeError(l, a.err, a.ended, name)
	}
	if a.removes && a.ended != a.began {
		m.breaks("8: %s: Remove took %v", name, a.ended-a.began)
	}
}

// judgeSubscribeError: Subscribe or Add fails, or a subscription ends, because it was closed, or the server refuses it, or as any call.
func (m *simModel) judgeSubscribeError(l *simListener, err error, at time.Duration, name string) {
	refuses := m.refuses() || slices.ContainsFunc(m.s.links, func(l simLink) bool { return l.protocol2 })
	switch {
	case errors.Is(err, ErrClosed) && min(m.closing, l.left) <= at:
	case errors.Is(err, ErrNoConnection) && m.s.opts.FailFast:
	case !errors.Is(err, ErrNoConnection) && !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrClosed) && refuses:
	default:
		m.breaks("8: %s: %v", name, err)
	}
}

// refuses says that a server may have refused commands.
func (m *simModel) refuses() bool {
	return slices.ContainsFunc(m.s.actions, func(a simAction) bool { return a.state == simLoading || a.state == simMasterDown })
}

// judgeSubscribed: when all is quiet, the servers are subscribed to what is wanted and to nothing else.
func (m *simModel) judgeSubscribed() {
	wanted, served, unclear := map[string]bool{}, map[string]bool{}, m.s.closes() || m.s.opts.MaxAge > 0 || m.refuses() // UNSUBSCRIBE, too
	for _, l := range m.listeners {
		for _, w := range l.wanted() {
			unclear = unclear || w.cut != w.until // in one instant, or a call that failed with what another had asked for
			if l.s != nil && l.err == nil && l.left == simForever && w.cut == simForever {
				wanted[l.kind+":"+w.name] = true
			}
		}
	}
	for _, c := range m.w.conns {
		if !c.closed {
			maps.Copy(served, c.subs)
		}
	}
	if !unclear && !maps.Equal(wanted, served) {
		m.breaks("8: when all is quiet, servers are subscribed to %v, and %v is wanted", served, wanted)
	}
}

// losses are the times at which connections that had carried subscriptions ended without notice.
func (m *simModel) losses() (at []time.Duration) {
	for _, c := range m.w.conns {
		if c.everSub && c.ending != simAlive {
			at = append(at, c.endedAt)
		} else if c.everSub && c.closed && m.silent(c, c.closedAt) {
			at = append(at, c.closedAt)
		}
	}
	return at
}

// judgeStats holds Stats against the history.
func (m *simModel) judgeStats() {
	st := &m.stats
	if st.InFlight > m.s.opts.Conns+2 || st.Backlog != 0 {
		m.breaks("10: when all is quiet, stats are %+v", *st)
	}
	timedOut, failed, exact := uint64(0), uint64(0), true
	for _, c := range m.calls {
		switch {
		case c.what == simSession || c.what == simWatch || c.what == simListen || c.what == simTx:
			exact = false
		case c.err == nil || !c.over:
		case c.limit == c.began: // within an instant it is not known whether it was given
			exact = false
		case c.limit < c.began: // it was never given
		default:
			if errors.Is(c.err, ErrTimeout) {
				timedOut += uint64(c.want)
			}
			for _, r := range c.replies {
				if r == "" {
					failed++
				}
			}
		}
	}
	if exact && len(m.listeners) == 0 && (st.TimedOut != timedOut || st.Failed != failed) {
		m.breaks("10: %d commands timed out and %d failed; stats are %+v", timedOut, failed, *st)
	}
}

// judgeEnd: when all is well again a command succeeds.
func (m *simModel) judgeEnd() {
	if m.s.closes() {
		return
	}
	if m.final != nil {
		m.breaks("11: when all is well again: %v", m.final)
	}
	open, most := 0, m.s.opts.Conns
	for _, c := range m.w.conns {
		if !c.closed && m.owner[c] == "" {
			open++
		}
	}
	if len(m.listeners) > 0 {
		most++
	}
	for _, c := range m.s.callers {
		if c.kind == simPopper {
			most++ // what was used for its commands is kept for the next, and handed off
		}
	}
	if open > most && m.s.opts.MaxAge == 0 && !m.movesForEver() { // what ages, or is told so by each server, may be in the middle of a handoff
		m.breaks("11: %d connections are open, for %d bridges", open, most)
	}
	for _, b := range m.c.bridges {
		b.mu.Lock()
		m.judgeTimeline(b.record)
		b.mu.Unlock()
	}
}

// judgeTimeline: the steps of a handoff that have come are in their order.
func (m *simModel) judgeTimeline(h Handoff) {
	last := h.Received
	for _, at := range []time.Time{h.Began, h.Ready, h.Holding, h.Promoted} {
		if !at.IsZero() {
			if at.Before(last) {
				m.breaks("10: the timeline is out of order: %+v", h)
			}
			last = at
		}
	}
	if h.HeldMax > max(m.c.opts.Maintenance.HoldCap, 0) {
		m.breaks("5: the timeline says that a command was held for %v", h.HeldMax)
	}
}

// judgeLeaks: after Close every connection is closed.
func (x *simRun) judgeLeaks() {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	for _, c := range x.w.conns {
		if !c.closed {
			x.broken = append(x.broken, fmt.Sprintf("12: connection %d is still open", c.id))
		}
	}
}
