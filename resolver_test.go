package baton

// Where a client goes when nobody names a successor: what it asks DNS, when it dials without, and what becomes of its
// commands. The resolver is a real net.Resolver, and the DNS server behind it a small one in memory whose records tests move.

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/baton/batontest"
	"golang.org/x/net/dns/dnsmessage"
)

// --- a DNS server ---

const (
	zoneName = "db.baton.test"
	zoneAddr = zoneName + ":6379"
	nodeA    = "10.1.0.1:6379"
	nodeB    = "10.1.0.2:6379"
	nodeC    = "10.1.0.3:6379"
)

// zone is a DNS server that knows one name. It ends with the test.
type zone struct {
	t *testing.T

	mu      sync.Mutex
	records []netip.Addr
	code    dnsmessage.RCode // a failure in place of the records
	silent  bool             // queries are not answered
	turning bool             // the first record moves to the end with each answer
	asked   []time.Time      // when an address of the name was asked for; several queries of one moment are one look-up
	conns   map[net.Conn]struct{}
	closed  bool
}

// newZone has the name stand for the hosts of these addresses.
func newZone(t *testing.T, addrs ...string) *zone {
	z := &zone{t: t, conns: map[net.Conn]struct{}{}}
	z.set(addrs...)
	t.Cleanup(z.close)
	return z
}

// set makes the name stand for the hosts of these addresses, of which the port does not matter, and ends all failures.
func (z *zone) set(addrs ...string) {
	z.change(func() {
		z.code, z.silent, z.records = dnsmessage.RCodeSuccess, false, nil
		for _, addr := range addrs {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				z.t.Fatal(err)
			}
			z.records = append(z.records, netip.MustParseAddr(host))
		}
	})
}

// setAfter is set in a while.
func (z *zone) setAfter(d time.Duration, addrs ...string) {
	timer := time.AfterFunc(d, func() { z.set(addrs...) })
	z.t.Cleanup(func() { timer.Stop() })
}

func (z *zone) fail(code dnsmessage.RCode) { z.change(func() { z.code = code }) }
func (z *zone) hang()                      { z.change(func() { z.silent = true }) }

func (z *zone) change(f func()) {
	z.mu.Lock()
	defer z.mu.Unlock()
	f()
}

// lookups are the moments at which the name was looked up.
func (z *zone) lookups() []time.Time {
	synctest.Wait()
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

// between counts the look-ups from one moment to another.
func (z *zone) between(from, to time.Time) (n int) {
	for _, at := range z.lookups() {
		if !at.Before(from) && !at.After(to) {
			n++
		}
	}
	return n
}

func (z *zone) close() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.closed = true
	for nc := range z.conns {
		nc.Close()
	}
}

// resolver asks this server, whatever the machine's own are.
func (z *zone) resolver() *net.Resolver { return &net.Resolver{PreferGo: true, Dial: z.dial} }

// dial connects to the server in memory. A connection that is no net.PacketConn is spoken to as over TCP.
func (z *zone) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if z.closed {
		return nil, errors.New("the DNS server has ended")
	}
	client, server := batontest.Pipe()
	z.conns[server] = struct{}{}
	go z.serve(server)
	return client, nil
}

func (z *zone) serve(nc net.Conn) {
	defer func() {
		nc.Close()
		z.change(func() { delete(z.conns, nc) })
	}()
	for {
		var size [2]byte
		if _, err := io.ReadFull(nc, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(nc, query); err != nil {
			return
		}
		if answer := z.answer(query); answer != nil {
			nc.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
		}
	}
}

// answer is nil when there is none.
func (z *zone) answer(query []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	q, err2 := p.Question()
	if err != nil || err2 != nil {
		z.t.Errorf("a DNS query that is none: %v, %v", err, err2)
		return nil
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: head.ID, Response: true, Authoritative: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q}}
	switch name := strings.ToLower(q.Name.String()); {
	case name != zoneName+".": // by the machine's search list
		reply.RCode = dnsmessage.RCodeNameError
	default:
		if q.Type == dnsmessage.TypeA {
			if now := time.Now(); len(z.asked) == 0 || now.After(z.asked[len(z.asked)-1]) {
				z.asked = append(z.asked, now)
			}
		}
		if z.silent {
			return nil
		}
		if reply.RCode = z.code; z.code == dnsmessage.RCodeSuccess {
			reply.Answers = z.answersLocked(q)
		}
	}
	packed, err := reply.Pack()
	if err != nil {
		z.t.Errorf("a DNS answer that is none: %v", err)
	}
	return packed
}

func (z *zone) answersLocked(q dnsmessage.Question) (answers []dnsmessage.Resource) {
	head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 5}
	for _, ip := range z.records {
		switch {
		case q.Type == dnsmessage.TypeA && ip.Is4():
			answers = append(answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: ip.As4()}})
		case q.Type == dnsmessage.TypeAAAA && ip.Is6():
			answers = append(answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
		}
	}
	if z.turning && q.Type == dnsmessage.TypeA && len(z.records) > 1 {
		z.records = append(z.records[1:], z.records[0])
	}
	return answers
}

// TestZone is a test of the rig.
func TestZone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		z := newZone(t, nodeA, "[2001:db8::5]:1", nodeB)
		r := z.resolver()
		for _, name := range []string{zoneName, zoneName + ".", strings.ToUpper(zoneName)} {
			ips, err := r.LookupNetIP(background, "ip", name)
			slices.SortFunc(ips, netip.Addr.Compare)
			if got := fmt.Sprint(ips); got != "[10.1.0.1 10.1.0.2 2001:db8::5]" || err != nil {
				t.Errorf("%s stands for %s, %v", name, got, err)
			}
			time.Sleep(time.Second)
		}
		if n := len(z.lookups()); n != 3 {
			t.Errorf("%d look-ups were counted, there were 3", n)
		}
		if _, err := r.LookupNetIP(background, "ip", "other.baton.test"); err == nil {
			t.Error("another name is known")
		}
		for _, code := range []dnsmessage.RCode{dnsmessage.RCodeServerFailure, dnsmessage.RCodeNameError} {
			z.fail(code)
			var failure *net.DNSError
			if _, err := r.LookupNetIP(background, "ip", zoneName); !errors.As(err, &failure) || failure.IsNotFound != (code == dnsmessage.RCodeNameError) {
				t.Errorf("%v: %v", code, err)
			}
		}
		z.set()
		if ips, err := r.LookupNetIP(background, "ip", zoneName); err == nil {
			t.Errorf("without records: %v", ips)
		}
		z.hang()
		ctx, cancel := contextFor(300 * time.Millisecond)
		defer cancel()
		from := time.Now()
		if _, err := r.LookupNetIP(ctx, "ip", zoneName); err == nil || time.Since(from) != 300*time.Millisecond {
			t.Errorf("a silent server: %v after %v", err, time.Since(from))
		}
	})
}

// --- help ---

// noName is a MOVING that names nobody.
func noName(seq, seconds int) string {
	return fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:%d\r\n:%d\r\n_\r\n", seq, seconds)
}

// naming is a MOVING that names a successor.
func naming(seq, seconds int, successor string) string {
	return fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:%d\r\n:%d\r\n$%d\r\n%s\r\n", seq, seconds, len(successor), successor)
}

// echoes are scripted servers at all addresses, which shake hands by themselves and answer each command with itself.
type echoes struct {
	*script
	c     *Client
	book  *dialBook
	j     *journal
	began time.Time // of the first announcement

	told   sync.Mutex               // guards the rest
	behind func(addr string) string // what each new connection is told with its opt-in
	peers  []*peer                  // in the order in which they were ready
}

// newEchoes connects a client, by zoneAddr unless o says otherwise.
func newEchoes(t *testing.T, o Options) *echoes {
	t.Helper()
	e := &echoes{script: newScript(t), book: &dialBook{}, j: &journal{}}
	e.attend(func(p *peer) {
		e.told.Lock()
		say := ""
		if e.behind != nil {
			say = e.behind(p.addr)
		}
		e.told.Unlock()
		p.handshakeSaying(say)
		e.told.Lock()
		e.peers = append(e.peers, p)
		e.told.Unlock()
		p.echo()
		p.Close()
	})
	if o.Addr == "" {
		o.Addr = zoneAddr
	}
	o.Dialer, o.OnEvent = e.book.over(e.connect), e.j.add
	e.c = dialOptions(t, o)
	time.Sleep(time.Millisecond) // so that what follows is later than these dials
	return e
}

// connect is like the script's dial, but a connection to a name knows no address, and looks none up.
func (e *echoes) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	nc, err := e.dial(ctx, network, addr)
	if _, bad := netip.ParseAddrPort(addr); bad != nil && err == nil {
		return nc.(*addressed).Conn, nil
	}
	return nc, err
}

// repeat has every new connection told this.
func (e *echoes) repeat(frame string) {
	e.told.Lock()
	defer e.told.Unlock()
	e.behind = func(string) string { return frame }
}

// connected are the connections so far that were ready.
func (e *echoes) connected() []*peer {
	synctest.Wait()
	e.told.Lock()
	defer e.told.Unlock()
	return slices.Clone(e.peers)
}

// announce tells everybody who is connected, now.
func (e *echoes) announce(frame string) {
	e.began = time.Now()
	for _, p := range e.connected() {
		p.says(frame)
	}
	synctest.Wait()
}

// dialledAt are the dials since the first announcement: when, and where to.
func (e *echoes) dialledAt() (at []time.Duration, to []string) {
	addrs := e.book.to()
	for i, when := range e.book.when() {
		if !e.began.IsZero() && !when.Before(e.began) && i < len(addrs) {
			at, to = append(at, when.Sub(e.began)), append(to, addrs[i])
		}
	}
	return at, to
}

// answers says that a command is answered, at once.
func (e *echoes) answers() {
	e.t.Helper()
	from := time.Now()
	if got, err := e.c.Do(background, "GET", "1").Text(); err != nil || got != "GET 1" || time.Since(from) > 100*time.Millisecond {
		e.t.Errorf("a command got %q, %v, after %v", got, err, time.Since(from))
	}
}

// spans says that a span is from one to another.
func spans(t *testing.T, what string, got, from, to time.Duration) {
	t.Helper()
	if got < from || got > to {
		t.Errorf("%s after %v, want from %v to %v", what, got, from, to)
	}
}

// domain is a database that has a name: a client of it by that name, servers in memory at nodeA, where the name leads at first,
// nodeB and nodeC, and everything written down.
type domain struct {
	t       *testing.T
	zone    *zone
	a, b, x *batontest.Server
	c       *Client
	j       *journal
	book    *dialBook
	began   time.Time
}

func newDomain(t *testing.T, change func(*Options), more ...batontest.Option) *domain {
	t.Helper()
	n := &domain{t: t, zone: newZone(t, nodeA), j: &journal{}, book: &dialBook{}}
	n.a = memoryServer(t, append(more, batontest.WithAddr(nodeA))...)
	n.b = n.a.Sibling(batontest.WithAddr(nodeB))
	n.x = n.a.Sibling(batontest.WithAddr(nodeC))
	t.Cleanup(n.b.Close)
	t.Cleanup(n.x.Close)
	o := Options{Addr: zoneAddr, Dialer: asSockets(n.a.Dial), Resolver: n.zone.resolver(), OnEvent: n.j.add}
	if change != nil {
		change(&o)
	}
	o.Dialer = n.book.over(o.Dialer)
	n.c = dialOptions(t, o)
	synctest.Wait()
	n.began = time.Now()
	return n
}

// tell announces a move to who is connected to a server now, and to nobody who comes later. The server does nothing about it.
func (n *domain) tell(s *batontest.Server, seconds int) {
	n.began = time.Now()
	s.Push("MOVING", s.NextSeq(), seconds, nil)
	synctest.Wait()
}

// until waits until so long after the announcement.
func (n *domain) until(d time.Duration) { time.Sleep(time.Until(n.began.Add(d))) }

// at says how many connections each server has.
func (n *domain) at(a, b int) {
	n.t.Helper()
	synctest.Wait()
	if gotA, gotB := n.a.Conns(), n.b.Conns(); gotA != a || gotB != b {
		n.t.Errorf("%v after the announcement %d connections to the old server and %d to the new one, want %d and %d", time.Since(n.began), gotA, gotB, a, b)
	}
}

// given is one INCR of a key of its own.
type given struct {
	key      string
	from, to time.Time
	n        int64
	err      error
}

// steadily gives so many commands a second, each whatever becomes of the others, until stop is called. One in ten is an INCRBY,
// which a test may have answered slowly: see slow.
func steadily(c *Client, perSecond int) (stop func() []*given) {
	var (
		all     []*given
		wg      sync.WaitGroup
		over    = make(chan struct{})
		stopped = make(chan struct{})
	)
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			g, args := &given{key: fmt.Sprintf("given:%d/%d", perSecond, len(all)), from: time.Now()}, []any{"INCR", nil}
			if len(all)%10 == 0 {
				args = []any{"INCRBY", nil, 1}
			}
			args[1], all = g.key, append(all, g)
			wg.Go(func() {
				g.n, g.err = c.Do(background, args...).Int64()
				g.to = time.Now()
			})
		}
	}()
	return func() []*given {
		close(over)
		<-stopped
		wg.Wait()
		return all
	}
}

// slow makes that something is in flight most of the time.
func (n *domain) slow() { n.a.Delay("INCRBY", 15*time.Millisecond) }

// judge says that of all commands none was executed twice, and that none failed, but for those that were in flight when the
// server closed, if it did so: those may have been executed.
func (n *domain) judge(all []*given, closed time.Time) {
	n.t.Helper()
	executed, bad := 0, 0
	for _, g := range all {
		if g.err == nil && g.n == 1 {
			executed++
			continue
		}
		value, err := n.c.Do(background, "GET", g.key).Text()
		if executed++; errors.Is(err, ErrNull) {
			executed--
		} else if err != nil || value != "1" || !MaybeExecuted(g.err) {
			n.t.Errorf("%s was answered %d, %v, and is %q, %v", g.key, g.n, g.err, value, err)
		}
		inFlight := !closed.IsZero() && !g.from.After(closed) && !g.to.Before(closed) && g.to.Sub(closed) < 2*time.Second
		if inFlight && MaybeExecuted(g.err) {
			continue
		}
		if bad++; bad < 4 {
			n.t.Errorf("a command given %v after the announcement failed at %v, maybe executed %v: %v", g.from.Sub(n.began), g.to.Sub(n.began), MaybeExecuted(g.err), g.err)
		}
	}
	if bad > 0 {
		n.t.Errorf("%d of %d commands failed that must not", bad, len(all))
	}
	times := 0
	for _, s := range []*batontest.Server{n.a, n.b, n.x} {
		times += s.Executed("INCR") + s.Executed("INCRBY")
	}
	if times != executed {
		n.t.Errorf("%d commands were executed, %d times in all", executed, times)
	}
	if len(all) == 0 {
		n.t.Error("there was no load")
	}
}

// running counts the goroutines of this bubble that are a client's, or net's on its behalf.
func running() (n int, stacks string) {
	buf := make([]byte, 16<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	_, bubble, _ := strings.Cut(all[0], "synctest bubble ")
	bubble, _, _ = strings.Cut(bubble, "]")
	for _, stack := range all[1:] {
		head, frames, _ := strings.Cut(stack, "\n")
		if strings.Contains(head, "synctest bubble "+bubble+"]") && whose.MatchString(frames) {
			n, stacks = n+1, stacks+stack+"\n\n"
		}
	}
	return n, stacks
}

var whose = regexp.MustCompile(`baton\.\(\*(Client|bridge|conn|pin)\)|net\.\(\*Resolver\)`)

// --- the poll ---

// TestPollOnceASecond for all bridges together, although they are told one after the other.
func TestPollOnceASecond(t *testing.T) {
	for _, conns := range []int{1, 4} {
		for _, name := range []string{zoneAddr, zoneName + ".:6379", zoneName} {
			sub(t, fmt.Sprintf("conns=%d %s", conns, name), func(t *testing.T) {
				z := newZone(t, nodeA)
				e := newEchoes(t, Options{Addr: name, Resolver: z.resolver(), Conns: conns})
				if at, to := e.dialledAt(); len(at) != 0 || !slices.Equal(e.book.to(), slices.Repeat([]string{nodeA}, conns)) {
					t.Fatalf("dialled %v", to)
				}
				e.began = time.Now()
				for _, p := range e.connected() {
					p.says(noName(7, 60))
					time.Sleep(300 * time.Millisecond)
				}
				time.Sleep(time.Until(e.began.Add(20500 * time.Millisecond)))
				asked := z.lookups()
				asked = asked[slices.IndexFunc(asked, func(at time.Time) bool { return !at.Before(e.began) }):]
				spans(t, "the first look-up", asked[0].Sub(e.began), 0, 10*time.Millisecond)
				for i := range asked[1:] {
					spans(t, "the next look-up", asked[i+1].Sub(asked[i]), 990*time.Millisecond, 1100*time.Millisecond)
				}
				if len(asked) < 19 || len(asked) > 21 {
					t.Errorf("%d look-ups in 20.5 s", len(asked))
				}
				if _, to := e.dialledAt(); len(to) != 0 {
					t.Errorf("dialled %v, and DNS has not moved", to)
				}
				z.set(nodeB)
				time.Sleep(2200 * time.Millisecond) // a second, and the jitter
				at, to := e.dialledAt()
				if !slices.Equal(to, slices.Repeat([]string{nodeB}, conns)) {
					t.Errorf("dialled %v at %v when DNS had moved to %s", to, at, nodeB)
				}
				found := time.Now()
				time.Sleep(5 * time.Minute)
				if k := z.between(found, time.Now()); k != 0 {
					t.Errorf("%d look-ups after all are there", k)
				}
				if _, to := e.dialledAt(); len(to) != conns || e.c.Stats().Handoffs != uint64(conns) {
					t.Errorf("%d dials and %d handoffs in the end", len(to), e.c.Stats().Handoffs)
				}
				e.answers()
			})
		}
	}
}

// TestPollFinds looks at the moment at which what DNS says is dialled: up to a second later, and the jitter.
func TestPollFinds(t *testing.T) {
	for _, conns := range []int{1, 4} {
		for _, moves := range []time.Duration{-time.Second, 0, 500 * time.Millisecond, 4400 * time.Millisecond, 6 * time.Second} {
			sub(t, fmt.Sprintf("conns=%d %v", conns, moves), func(t *testing.T) {
				n := newDomain(t, func(o *Options) { o.Conns = conns })
				stop := steadily(n.c, 100)
				if moves < 0 {
					n.zone.set(nodeB)
					time.Sleep(-moves)
				} else {
					n.zone.setAfter(moves, nodeB)
				}
				n.tell(n.a, 15)
				n.until(15 * time.Second)
				n.at(0, conns)
				for i, to := range n.book.to()[conns:] {
					if to != nodeB {
						t.Errorf("dialled %s", to)
					}
					spans(t, "the dial", n.book.when()[conns+i].Sub(n.began), max(moves, 0), max(moves, 0)+2*time.Second)
				}
				if n.book.count(nodeB) != conns {
					t.Errorf("dialled %v", n.book.to())
				}
				n.judge(stop(), time.Time{})
			})
		}
	}
}

// TestPollEnds when nobody needs it any more, whatever the reason.
func TestPollEnds(t *testing.T) {
	quiet := func(t *testing.T, z *zone, what string) {
		t.Helper()
		synctest.Wait()
		from := time.Now().Add(1)
		time.Sleep(30 * time.Second)
		if k := z.between(from, time.Now()); k != 0 {
			t.Errorf("%d look-ups after %s", k, what)
		}
	}
	sub(t, "a newer announcement names a successor", func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver()})
		e.announce(noName(1, 60))
		time.Sleep(3 * time.Second)
		e.announce(naming(2, 60, nodeC))
		quiet(t, z, "it")
		if _, to := e.dialledAt(); !slices.Equal(to, []string{nodeC}) {
			t.Errorf("dialled %v", to)
		}
	})
	sub(t, "a newer announcement that names nobody takes it over", func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver()})
		e.announce(noName(1, 60))
		time.Sleep(400 * time.Millisecond)
		e.announce(noName(2, 60))
		time.Sleep(10 * time.Second)
		if k := z.between(e.began.Add(time.Second/10), time.Now()); k < 9 || k > 11 {
			t.Errorf("%d look-ups in 10 s", k)
		}
	})
	sub(t, "the client is closed", func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
		e.announce(noName(1, 60))
		time.Sleep(3 * time.Second)
		e.c.Close()
		quiet(t, z, "Close")
	})
	sub(t, "DNS never changes, and the window is over", func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
		e.announce(noName(1, 10))
		time.Sleep(25 * time.Second) // the window, and one dial at its longest
		quiet(t, z, "the window")
		e.answers()
	})
	sub(t, "the server says it again and again, and the window is over", func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
		e.repeat(noName(1, 10))
		e.announce(noName(1, 10))
		time.Sleep(25 * time.Second)
		quiet(t, z, "the window")
		e.answers()
	})
}

// TestPollServesWhoIsToldLater: what was found is dialled by a bridge that is told later, and nobody looks again.
func TestPollServesWhoIsToldLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
		one, two := e.connected()[0], e.connected()[1]
		e.began = time.Now()
		one.says(noName(1, 60))
		z.setAfter(2500*time.Millisecond, nodeB)
		time.Sleep(10 * time.Second)
		at, to := e.dialledAt()
		if !slices.Equal(to, []string{nodeB}) {
			t.Fatalf("dialled %v at %v", to, at)
		}
		told := time.Now()
		two.says(noName(1, 60))
		time.Sleep(20 * time.Second)
		at, to = e.dialledAt()
		if !slices.Equal(to, []string{nodeB, nodeB}) || z.between(told, time.Now()) != 0 {
			t.Fatalf("dialled %v at %v, with %d look-ups more", to, at, z.between(told, time.Now()))
		}
		spans(t, "the second bridge dialled", e.began.Add(at[1]).Sub(told), 0, time.Second)
	})
}

// TestPollAfterPoll: each place that was found is left in its turn.
func TestPollAfterPoll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newDomain(t, func(o *Options) { o.Conns = 2 })
		stop := steadily(n.c, 100)
		for i, step := range []struct {
			from *batontest.Server
			to   string
		}{{n.a, nodeB}, {n.b, nodeC}, {n.x, nodeA}, {n.a, nodeB}} {
			n.zone.setAfter(2500*time.Millisecond, step.to)
			n.tell(step.from, 15)
			n.until(2400 * time.Millisecond)
			if step.from.Conns() != 2 {
				t.Errorf("step %d: it was left before DNS has moved: dialled %v", i+1, n.book.to())
			}
			n.until(4100 * time.Millisecond)
			if step.from.Conns() != 0 || n.book.count(step.to) == 0 {
				t.Errorf("step %d: %d connections to the old place, dialled %v", i+1, step.from.Conns(), n.book.to())
			}
		}
		if to := n.book.to(); len(to) != 10 {
			t.Errorf("dialled %v", to)
		}
		n.judge(stop(), time.Time{})
	})
}

// TestOldConnectionDiesDuringThePoll: what took its place at the old address is moved, too, once DNS has moved.
func TestOldConnectionDiesDuringThePoll(t *testing.T) {
	for _, repeats := range []bool{true, false} {
		for _, refuses := range []bool{true, false} {
			sub(t, fmt.Sprintf("repeats %v, refuses %v", repeats, refuses), func(t *testing.T) {
				n := newDomain(t, nil)
				n.slow()
				stop := steadily(n.c, 200)
				n.zone.setAfter(6200*time.Millisecond, nodeB)
				n.began = time.Now()
				if repeats {
					n.a.Move("", 15*time.Second)
				} else {
					n.tell(n.a, 15)
				}
				n.until(3300 * time.Millisecond)
				closed := time.Now()
				n.a.Cut()
				n.a.Refuse(refuses)
				time.Sleep(100 * time.Millisecond)
				if n.a.Conns() == 0 != refuses {
					t.Errorf("%d connections after it", n.a.Conns())
				}
				n.until(8300 * time.Millisecond)
				n.at(0, 1)
				n.until(20 * time.Second)
				n.judge(stop(), closed)
				if to := n.book.to(); !refuses && !slices.Equal(to, []string{nodeA, nodeA, nodeB}) || n.book.count(nodeB) != 1 {
					t.Errorf("dialled %v", to)
				}
			})
		}
	}
}

// TestEveryDialFollowsWhatWasFound while the window is open, and the configured name afterwards.
func TestEveryDialFollowsWhatWasFound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
		one, two := e.connected()[0], e.connected()[1]
		z.set(nodeB)
		e.began = time.Now()
		one.says(noName(1, 20))
		time.Sleep(2500 * time.Millisecond)
		z.set(nodeC)
		two.Close() // it was never told
		time.Sleep(100 * time.Millisecond)
		if at, to := e.dialledAt(); !slices.Equal(to, []string{nodeB, nodeB}) {
			t.Errorf("dialled %v at %v", to, at)
		}
		time.Sleep(time.Minute)
		e.connected()[2].Close()
		time.Sleep(100 * time.Millisecond)
		if at, to := e.dialledAt(); !slices.Equal(to, []string{nodeB, nodeB, nodeC}) {
			t.Errorf("dialled %v at %v", to, at)
		}
	})
}

// TestWithoutAConnectionNothingIsWaitedFor: neither the poll, nor half of the window, nor a jitter.
func TestWithoutAConnectionNothingIsWaitedFor(t *testing.T) {
	for _, moved := range []bool{false, true} {
		sub(t, fmt.Sprintf("DNS has moved: %v", moved), func(t *testing.T) {
			z := newZone(t, nodeA)
			e := newEchoes(t, Options{Resolver: z.resolver()})
			e.announce(noName(1, 60))
			time.Sleep(3300 * time.Millisecond)
			want := nodeA
			if moved {
				z.set(nodeB) // which the poll would find at 4 s
				want = nodeB
			}
			e.connected()[0].Close()
			time.Sleep(100 * time.Millisecond)
			at, to := e.dialledAt()
			if !slices.Equal(to, []string{want}) {
				t.Fatalf("dialled %v at %v", to, at)
			}
			e.answers()
		})
	}
}

// --- half of the window ---

// TestHalfOfTheWindow is when the configured address is dialled if there is nothing to ask DNS, and then DNS is not asked.
func TestHalfOfTheWindow(t *testing.T) {
	for _, kind := range []struct {
		name   string
		change func(*Options, *zone)
		to     string
		dials  int // look-ups for each dial
	}{
		{"an IP", func(o *Options, z *zone) { o.Addr = nodeA }, nodeA, 0},
		{"an IP with a Resolver", func(o *Options, z *zone) { o.Addr, o.Resolver = nodeA, z.resolver() }, nodeA, 0},
		{"an IPv6 with a Resolver", func(o *Options, z *zone) { o.Addr, o.Resolver = "[2001:db8::5]:6379", z.resolver() }, "[2001:db8::5]:6379", 0},
		{"a Dialer without a Resolver", func(o *Options, z *zone) {}, zoneAddr, 0},
		{"a unix socket", func(o *Options, z *zone) { o.Network, o.Addr, o.Resolver = "unix", "/run/"+zoneName, z.resolver() }, "/run/" + zoneName, 0},
		{"a proxy", func(o *Options, z *zone) { o.Proxy, o.Resolver = "socks5://10.9.9.9:1080", z.resolver() }, nodeA, 1},
		{"DNS never changes", func(o *Options, z *zone) { o.Resolver = z.resolver() }, nodeA, -1},
	} {
		for _, seconds := range []int{0, 1, 2, 15, 60, 3600} {
			sub(t, fmt.Sprintf("%s, %d s", kind.name, seconds), func(t *testing.T) {
				z := newZone(t, nodeA)
				o := Options{KeepAlive: -1}
				kind.change(&o, z)
				e := newEchoes(t, o)
				before := len(z.lookups())
				e.announce(noName(1, seconds))
				window := time.Duration(seconds) * time.Second
				time.Sleep(window/2 + min(window/10, time.Second) + 20*time.Millisecond)
				at, to := e.dialledAt()
				if !slices.Equal(to, []string{kind.to}) {
					t.Fatalf("dialled %v at %v", to, at)
				}
				spans(t, "the dial", at[0], window/2, window/2+min(window/10, time.Second))
				e.answers()
				time.Sleep(window + time.Minute)
				if got, want := len(z.lookups())-before, kind.dials; want >= 0 && got != want {
					t.Errorf("%d look-ups, want %d", got, want)
				}
				if at, to := e.dialledAt(); len(to) != 1 || e.c.Stats().Handoffs != 1 {
					t.Errorf("dialled %v at %v, %d handoffs", to, at, e.c.Stats().Handoffs)
				}
				e.answers()
			})
		}
	}
}

// TestHalfOfTheWindowBehindAProxy has a real one: the name is the proxy's to look up.
func TestHalfOfTheWindowBehindAProxy(t *testing.T) {
	s := batontest.NewServer()
	defer s.Close()
	before := runtime.NumGoroutine()
	var asked atomic.Value
	z := newZone(t, nodeA)
	c, err := Dial(background, Options{Addr: zoneAddr, Proxy: "socks5://" + socks5(t, s.Addr(), "", "", &asked), Resolver: z.resolver()})
	if err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	s.Push("MOVING", 1, 1, nil)
	for c.Stats().Handoffs == 0 && time.Since(from) < 10*time.Second {
		time.Sleep(5 * time.Millisecond)
	}
	if took := time.Since(from); took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("the handoff came after %v", took)
	}
	if asked.Load() != zoneAddr {
		t.Errorf("the proxy was asked for %v", asked.Load())
	}
	z.mu.Lock()
	if len(z.asked) != 0 {
		t.Errorf("the name was looked up %d times", len(z.asked))
	}
	z.mu.Unlock()
	c.Close()
	settled(t, before+1) // the proxy's
}

// TestJitterAtHalfOfTheWindow spreads many clients.
func TestJitterAtHalfOfTheWindow(t *testing.T) {
	for _, seconds := range []int{2, 10, 60} {
		sub(t, fmt.Sprintf("%d s", seconds), func(t *testing.T) {
			z := newZone(t, nodeA)
			e := newEchoes(t, Options{Conns: 40, Resolver: z.resolver(), KeepAlive: -1})
			e.announce(noName(1, seconds))
			window := time.Duration(seconds) * time.Second
			most := min(window/10, time.Second)
			time.Sleep(window)
			at, _ := e.dialledAt()
			if len(at) != 40 {
				t.Fatalf("%d dials", len(at))
			}
			first, last := slices.Min(at), slices.Max(at)
			spans(t, "the first dial", first, window/2, window/2+most/2)
			spans(t, "the last dial", last, window/2+most/2, window/2+most)
			distinct := slices.Compact(slices.Sorted(slices.Values(at)))
			if len(distinct) < 35 {
				t.Errorf("%d clients dialled at %d moments", len(at), len(distinct))
			}
		})
	}
	sub(t, "and when DNS has moved", func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Conns: 40, Resolver: z.resolver()})
		z.set(nodeB)
		e.announce(noName(1, 60))
		time.Sleep(1100 * time.Millisecond)
		at, _ := e.dialledAt()
		if len(at) != 40 || slices.Max(at)-slices.Min(at) < 300*time.Millisecond || slices.Max(at) > 1010*time.Millisecond {
			t.Errorf("dialled at %v", at)
		}
	})
}

// TestUnnamedFrames have forms of their own, and each its time.
func TestUnnamedFrames(t *testing.T) {
	for _, c := range []struct {
		name, frame string
		o           Options
		half, most  time.Duration
	}{
		{"without an endpoint", ">3\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n", Options{}, 7500 * time.Millisecond, time.Second},
		{"without a time", ">4\r\n$6\r\nMOVING\r\n:1\r\n_\r\n_\r\n", Options{}, 5 * time.Second, time.Second},
		{"without either", ">2\r\n$6\r\nMOVING\r\n:1\r\n", Options{}, 5 * time.Second, time.Second},
		{"without a time, relaxed to 4 s", ">2\r\n$6\r\nMOVING\r\n:1\r\n", Options{Maintenance: Maintenance{RelaxedTimeout: 4 * time.Second}}, 2 * time.Second, 400 * time.Millisecond},
		{"without a time, relaxation off", ">2\r\n$6\r\nMOVING\r\n:1\r\n", Options{Maintenance: Maintenance{RelaxedTimeout: -1}}, 5 * time.Second, time.Second},
		{"without a number", ">4\r\n$6\r\nMOVING\r\n_\r\n:15\r\n_\r\n", Options{}, 7500 * time.Millisecond, time.Second},
		{"with texts for numbers", ">4\r\n+moving\r\n+1\r\n+15\r\n+null\r\n", Options{}, 7500 * time.Millisecond, time.Second},
		{"with a time that has passed", ">4\r\n$6\r\nMOVING\r\n:1\r\n:-3\r\n_\r\n", Options{}, 0, 0},
		{"with more behind", ">5\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n_\r\n$9\r\n1.2.3.4:5\r\n", Options{}, 7500 * time.Millisecond, time.Second},
	} {
		for _, named := range []bool{false, true} {
			sub(t, fmt.Sprintf("%s, by name: %v", c.name, named), func(t *testing.T) {
				z := newZone(t, nodeA)
				o := c.o
				if o.Resolver = z.resolver(); !named {
					o.Addr = nodeA
				}
				e := newEchoes(t, o)
				e.announce(c.frame)
				time.Sleep(c.half + c.most + 10*time.Millisecond)
				at, to := e.dialledAt()
				if !slices.Equal(to, []string{nodeA}) {
					t.Fatalf("dialled %v at %v", to, at)
				}
				spans(t, "the dial", at[0], c.half, c.half+c.most)
				e.answers()
			})
		}
	}
}

// TestConnectionsThatDoNotSayWhere they are connected are where they were dialled.
func TestConnectionsThatDoNotSayWhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		z := newZone(t, nodeA)
		a := memoryServer(t, batontest.WithAddr(nodeA))
		b := a.Sibling(batontest.WithAddr(nodeB))
		t.Cleanup(b.Close)
		book := &dialBook{}
		hidden := through(a.Dial, func(nc net.Conn) net.Conn { return nowhere{nc} })
		c := dialOptions(t, Options{Addr: zoneAddr, Resolver: z.resolver(), Dialer: book.over(hidden)})
		a.Push("MOVING", 1, 15, nil)
		time.Sleep(3500 * time.Millisecond)
		if to := book.to(); len(to) != 1 {
			t.Errorf("dialled %v", to)
		}
		z.set(nodeB)
		time.Sleep(2100 * time.Millisecond)
		if b.Conns() != 1 || a.Conns() != 0 {
			t.Errorf("dialled %v", book.to())
		}
		if err := c.Do(background, "PING").Err(); err != nil {
			t.Error(err)
		}
	})
}

// nowhere is a connection that knows no addresses.
type nowhere struct{ net.Conn }

func (nowhere) RemoteAddr() net.Addr { return nil }

// --- told again ---

// TestToldAgain has the old server say it to every connection that comes: one more attempt at half of what is left, three times.
func TestToldAgain(t *testing.T) {
	for _, conns := range []int{1, 4} {
		sub(t, fmt.Sprintf("conns=%d", conns), func(t *testing.T) {
			e := newEchoes(t, Options{Addr: nodeA, Conns: conns})
			e.repeat(noName(5, 16))
			e.announce(noName(5, 16))
			time.Sleep(5 * time.Minute)
			at, to := e.dialledAt()
			if len(at) != 4*conns {
				t.Fatalf("dialled %v at %v", to, at)
			}
			slices.Sort(at)
			for i := range 4 {
				// Each is due at half of what was left at the moment at which the one before was ready.
				earliest, latest := 8*time.Second, 9*time.Second
				for range i {
					earliest, latest = earliest+(16*time.Second-earliest)/2, latest+(16*time.Second-latest)/2+time.Second
				}
				for _, d := range at[i*conns : (i+1)*conns] {
					spans(t, fmt.Sprintf("dial %d of a bridge", i+1), d, earliest, latest)
				}
			}
			if conns == 1 {
				for i := range 3 {
					due := at[i] + (16*time.Second-at[i])/2
					spans(t, fmt.Sprintf("dial %d", i+2), at[i+1], due, due+time.Second)
				}
			}
			if got := e.c.Stats().Handoffs; got != uint64(4*conns) {
				t.Errorf("%d handoffs", got)
			}
			e.answers()
		})
	}
	sub(t, "a renewal in between does not begin it anew", func(t *testing.T) {
		e := newEchoes(t, Options{Addr: nodeA, KeepAlive: -1})
		e.repeat(noName(5, 600))
		e.announce(noName(5, 600))
		time.Sleep(570 * time.Second)
		for range 3 {
			if err := e.c.Renew(background); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Minute)
		if at, to := e.dialledAt(); len(to) != 4+3 {
			t.Errorf("dialled %v at %v, with three renewals", to, at)
		}
	})
	sub(t, "nor does MaxAge", func(t *testing.T) {
		e := newEchoes(t, Options{Addr: nodeA, KeepAlive: -1, MaxAge: 10 * time.Second})
		e.repeat(noName(5, 3600))
		e.announce(noName(5, 3600))
		time.Sleep(3605 * time.Second)
		announced := slices.DeleteFunc(e.j.of(EventPreparing), func(e Event) bool { return e.Seq != 5 })
		if len(announced) > 4 {
			t.Errorf("%d handoffs for one announcement", len(announced))
		}
	})
	sub(t, "a name that never moves: the third waits for DNS alone", func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver()})
		e.repeat(noName(5, 16))
		e.announce(noName(5, 16))
		time.Sleep(18500 * time.Millisecond)
		at, to := e.dialledAt()
		if len(to) != 3 || slices.Contains(to, nodeB) {
			t.Errorf("dialled %v at %v", to, at)
		}
		z.set(nodeB) // 2.5 s after the window, and before the handoff is given up
		time.Sleep(2200 * time.Millisecond)
		at, to = e.dialledAt()
		if len(to) != 4 || to[3] != nodeB {
			t.Errorf("dialled %v at %v when DNS has moved", to, at)
		}
		time.Sleep(5 * time.Minute)
		if at, to := e.dialledAt(); len(to) != 4 {
			t.Errorf("dialled %v at %v", to, at)
		}
		e.answers()
	})
	sub(t, "as soon as DNS has moved", func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver()})
		e.told.Lock()
		e.behind = func(addr string) string {
			if addr == nodeA {
				return noName(5, 60)
			}
			return ""
		}
		e.told.Unlock()
		e.announce(noName(5, 60))
		time.Sleep(35 * time.Second) // at the old server again
		z.set(nodeB)
		time.Sleep(2200 * time.Millisecond)
		at, to := e.dialledAt()
		if !slices.Equal(to, []string{nodeA, nodeB}) {
			t.Errorf("dialled %v at %v", to, at)
		}
		time.Sleep(5 * time.Minute)
		if at, to := e.dialledAt(); len(to) != 2 {
			t.Errorf("dialled %v at %v", to, at)
		}
	})
}

// TestOneAnnouncementForEver is repeated to each new connection of each node. It costs a bridge one dial if it names a successor, and at
// most four if it does not.
func TestOneAnnouncementForEver(t *testing.T) {
	type cell struct {
		name  string
		frame func(seconds int) string
		dials int
		moves func(window time.Duration) time.Duration // of the name; negative: never
		o     Options
	}
	never := func(time.Duration) time.Duration { return -1 }
	cells := []cell{
		{"named", func(s int) string { return naming(3, s, nodeB) }, 1, never, Options{}},
		{"named, no number", func(s int) string { return strings.Replace(naming(3, s, nodeB), ":3\r\n", "_\r\n", 1) }, 1, never, Options{}},
		{"named as where we are connected", func(s int) string { return naming(3, s, nodeA) }, 4, never, Options{}},
		{"named as what we dial", func(s int) string { return naming(3, s, zoneAddr) }, 4, never, Options{}},
		{"named, and refused", func(s int) string { return naming(3, s, nodeB) }, 4, never, Options{Maintenance: Maintenance{AllowSuccessor: func(string) bool { return false }}}},
		{"unnamed, an IP", func(s int) string { return noName(3, s) }, 4, never, Options{Addr: nodeA}},
		{"unnamed, never moves", func(s int) string { return noName(3, s) }, 4, never, Options{}},
		{"unnamed, moved before", func(s int) string { return noName(3, s) }, 4, func(w time.Duration) time.Duration { return 0 }, Options{}},
		{"unnamed, moves early", func(s int) string { return noName(3, s) }, 4, func(w time.Duration) time.Duration { return w / 4 }, Options{}},
		{"unnamed, moves late", func(s int) string { return noName(3, s) }, 4, func(w time.Duration) time.Duration { return w * 9 / 10 }, Options{}},
		{"unnamed, moves after", func(s int) string { return noName(3, s) }, 4, func(w time.Duration) time.Duration { return w + 2*time.Second }, Options{}},
	}
	for _, c := range cells {
		for _, seconds := range []int{0, 1, 2, 15, 60} {
			for _, conns := range []int{1, 4} {
				sub(t, fmt.Sprintf("%s, %d s, conns=%d", c.name, seconds, conns), func(t *testing.T) {
					z := newZone(t, nodeA)
					o := c.o
					o.Resolver, o.Conns, o.KeepAlive = z.resolver(), conns, -1
					e := newEchoes(t, o)
					window := time.Duration(seconds) * time.Second
					if d := c.moves(window); d >= 0 {
						z.setAfter(d, nodeB)
						time.Sleep(time.Nanosecond)
					}
					e.repeat(c.frame(seconds))
					e.announce(c.frame(seconds))
					time.Sleep(1000 * time.Second)
					at, to := e.dialledAt()
					if len(to) > c.dials*conns || c.dials == 1 && len(to) != conns || len(to) == 0 {
						t.Errorf("%d dials of %d bridges, want at most %d of each: %v at %v", len(to), conns, c.dials, to[:min(len(to), 12)], at[:min(len(at), 12)])
					}
					e.answers()
					if st := e.c.Stats(); st.Failed != 0 || st.Reconnects != 0 {
						t.Errorf("stats: %+v", st)
					}
				})
			}
		}
	}
}

// TestOneAnnouncementFromEverNewAddresses: DNS gives another address each second, and from each the same is heard.
func TestOneAnnouncementFromEverNewAddresses(t *testing.T) {
	for _, seconds := range []int{15, 600} {
		sub(t, fmt.Sprintf("%d s", seconds), func(t *testing.T) {
			z := newZone(t, nodeA)
			e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
			for i := range 700 {
				z.setAfter(time.Duration(i)*time.Second+500*time.Millisecond, fmt.Sprintf("10.2.%d.%d:6379", i/200, i%200+1))
			}
			e.repeat(noName(1, seconds))
			e.announce(noName(1, seconds))
			time.Sleep(1000 * time.Second)
			if at, to := e.dialledAt(); len(to) > 8 || len(to) < 2 {
				t.Errorf("%d dials of 2 bridges: %v at %v", len(to), to[:min(len(to), 12)], at[:min(len(at), 12)])
			}
			e.answers()
		})
	}
}

// --- resolvers that are of no use ---

// TestUselessResolvers: traffic goes on, and the server's close is survived as an ordinary loss.
func TestUselessResolvers(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(z *zone)
	}{
		{"SERVFAIL", func(z *zone) { z.fail(dnsmessage.RCodeServerFailure) }},
		{"NXDOMAIN", func(z *zone) { z.fail(dnsmessage.RCodeNameError) }},
		{"REFUSED", func(z *zone) { z.fail(dnsmessage.RCodeRefused) }},
		{"no records", func(z *zone) { z.set() }},
		{"silent", func(z *zone) { z.hang() }},
		{"unchanged", func(z *zone) {}},
	} {
		for _, back := range []time.Duration{5 * time.Second, 16500 * time.Millisecond} {
			sub(t, fmt.Sprintf("%s, until %v", c.name, back), func(t *testing.T) {
				n := newDomain(t, nil, batontest.CloseAfter(700*time.Millisecond))
				n.slow()
				stop := steadily(n.c, 100)
				c.breaks(n.zone)
				n.began = time.Now()
				n.a.Move("", 15*time.Second)
				n.zone.setAfter(back, nodeB)
				n.until(15690 * time.Millisecond)
				if st := n.c.Stats(); st.Failed != 0 || st.Backlog > 10 {
					t.Errorf("before the close: %+v", st)
				}
				n.until(23 * time.Second)
				n.judge(stop(), n.began.Add(15700*time.Millisecond))
				n.until(30 * time.Second)
				n.at(0, 1)
				if asked := n.zone.between(n.began, n.began.Add(15*time.Second)); asked > 40 {
					t.Errorf("%d look-ups in the window", asked)
				}
			})
		}
	}
	sub(t, "silent for a while: found all the same", func(t *testing.T) {
		n := newDomain(t, nil)
		n.zone.hang()
		n.zone.setAfter(4*time.Second, nodeB)
		n.tell(n.a, 60)
		n.until(29 * time.Second)
		n.at(0, 1)
	})
	sub(t, "deaf to its context, for ever", func(t *testing.T) {
		n := newDomain(t, func(o *Options) {
			var dials atomic.Int32
			resolver, release := o.Resolver, make(chan struct{})
			t.Cleanup(func() { close(release) })
			connect := resolver.Dial
			resolver.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) > 2 { // A and AAAA of the first look-up
					<-release
					return nil, errors.New("released")
				}
				return connect(ctx, network, addr)
			}
		})
		n.slow()
		stop := steadily(n.c, 100)
		n.began = time.Now()
		n.a.Move("", 30*time.Second)
		n.until(29 * time.Second)
		n.at(1, 0)
		if running, stacks := running(); running > 40 {
			t.Errorf("%d goroutines run:\n%s", running, stacks)
		}
		n.judge(stop(), time.Time{})
		from := time.Now()
		if n.c.Close(); time.Since(from) != 0 {
			t.Errorf("Close took %v", time.Since(from))
		}
	})
	sub(t, "never changes: the close is an ordinary loss", func(t *testing.T) {
		n := newDomain(t, nil, batontest.CloseAfter(6600*time.Millisecond)) // at +21.6 s, as seen once
		n.slow()
		stop := steadily(n.c, 200)
		n.began = time.Now()
		n.a.Move("", 15*time.Second)
		n.until(40 * time.Second)
		n.at(1, 0)
		n.judge(stop(), n.began.Add(21600*time.Millisecond))
		if lost := n.j.count(EventLost); lost != 1 {
			t.Errorf("%d connections were lost without notice", lost)
		}
	})
}

// --- a resolver that lags ---

// TestLaggingResolver: DNS follows as measured, 4.4 to 18.7 s after an announcement of 15 s, once 3 s after the close, which comes 15.7
// to 19.1 s after it. Nothing fails if DNS has moved a look-up and a jitter before the close; else only what is in flight then does.
func TestLaggingResolver(t *testing.T) {
	t.Parallel()
	const afterClose = -1
	closings := []time.Duration{17 * time.Second, 15700 * time.Millisecond, 19100 * time.Millisecond}
	for _, dns := range []float64{4.4, 6, 7.5, 9, 11, 13.2, 14.5, 15.5, 16.5, 18.7, afterClose} {
		for i, closes := range closings {
			moves := time.Duration(dns * float64(time.Second))
			if dns == afterClose {
				moves = closes + 3*time.Second
			}
			settled := moves + 2100*time.Millisecond
			if i > 0 && settled < closings[1] {
				continue // it is all over before any of the closes
			}
			for _, repeats := range []bool{true, false} {
				if i > 0 && !repeats && dns != 14.5 {
					continue
				}
				sub(t, fmt.Sprintf("DNS moves at %v, closes at %v, repeats %v", moves, closes, repeats), func(t *testing.T) {
					busy := time.Duration(0)
					if i > 0 || !repeats && settled > closes {
						busy = 12 * time.Second // what comes before is as in other cells
					}
					lag(t, moves, closes, settled, repeats, busy)
				})
			}
		}
	}
}

// lag is one cell. repeats: the old server says it again to each new connection in the window. There are 450 commands a second from
// busy on, a tenth of that before.
func lag(t *testing.T, moves, closes, settled time.Duration, repeats bool, busy time.Duration) {
	n := newDomain(t, nil, batontest.CloseAfter(closes-15*time.Second))
	n.slow()
	some := steadily(n.c, 45)
	time.Sleep(100 * time.Millisecond)
	n.zone.setAfter(moves, nodeB)
	n.began = time.Now()
	if repeats {
		n.a.Move("", 15*time.Second)
	} else {
		n.tell(n.a, 15)
		time.AfterFunc(closes, n.a.Cut)
	}
	time.AfterFunc(closes, func() { n.a.Refuse(true) }) // it is gone
	n.until(busy)
	most := steadily(n.c, 405)
	stop := func() []*given { return append(some(), most()...) }
	if settled <= closes {
		n.until(settled)
		n.at(0, 1)
		n.judge(stop(), time.Time{})
		n.until(closes + time.Second)
	} else {
		n.until(max(closes, moves) + 2*time.Second)
		n.judge(stop(), n.began.Add(closes))
	}
	n.at(0, 1)
	if dials := n.book.to(); len(dials) > 5 && moves < closes {
		t.Errorf("%d dials: %v", len(dials), dials)
	}
	if st := n.c.Stats(); settled <= closes && (st.Failed != 0 || st.Reconnects != 0) {
		t.Errorf("stats: %+v", st)
	}
}

// --- names of several addresses ---

func TestNamesOfSeveralAddresses(t *testing.T) {
	sub(t, "one of two leaves: the other is at hand", func(t *testing.T) {
		n := newDomain(t, nil)
		n.zone.set(nodeA, nodeB)
		stop := steadily(n.c, 100)
		n.tell(n.a, 15)
		n.until(1100 * time.Millisecond)
		n.at(0, 1)
		n.judge(stop(), time.Time{})
	})
	sub(t, "one of two leaves, and who is at the other stays", func(t *testing.T) {
		z := newZone(t, nodeA, nodeB)
		z.turning = true
		e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
		if to := e.book.to(); !slices.Equal(slices.Sorted(slices.Values(to)), []string{nodeA, nodeB}) {
			t.Fatalf("dialled %v", to)
		}
		for _, p := range e.connected() {
			if p.addr == nodeA {
				p.says(noName(1, 15))
			}
		}
		e.began = time.Now()
		time.Sleep(time.Minute)
		if at, to := e.dialledAt(); !slices.Equal(to, []string{nodeB}) || at[0] > time.Second {
			t.Errorf("dialled %v at %v", to, at)
		}
	})
	sub(t, "both leave: a third is waited for", func(t *testing.T) {
		z := newZone(t, nodeA, nodeB)
		z.turning = true
		e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
		e.announce(noName(1, 15))
		time.Sleep(3500 * time.Millisecond)
		if at, to := e.dialledAt(); len(to) != 0 {
			t.Fatalf("dialled %v at %v", to, at)
		}
		z.set(nodeA, nodeB, nodeC)
		time.Sleep(2100 * time.Millisecond)
		if at, to := e.dialledAt(); !slices.Equal(to, []string{nodeC, nodeC}) {
			t.Errorf("dialled %v at %v", to, at)
		}
	})
	sub(t, "both leave, and the other is told a moment later", func(t *testing.T) {
		z := newZone(t, nodeA, nodeB)
		z.turning = true
		e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 8})
		e.told.Lock()
		e.behind = func(addr string) string {
			if addr == nodeC {
				return ""
			}
			return noName(1, 15)
		}
		e.told.Unlock()
		e.began = time.Now()
		for _, leaving := range []string{nodeA, nodeB} {
			for _, p := range e.connected() {
				if p.addr == leaving {
					p.says(noName(1, 15))
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		z.setAfter(3300*time.Millisecond, nodeB, nodeC)
		time.Sleep(6 * time.Second)
		at, to := e.dialledAt()
		there, elsewhere := 0, 0
		for _, addr := range to {
			if addr == nodeC {
				there++
			} else {
				elsewhere++
			}
		}
		if there != 8 || elsewhere > 4 { // those whose jitter was short
			t.Errorf("dialled %v at %v", to, at)
		}
		time.Sleep(time.Minute)
		if _, to := e.dialledAt(); len(to) != there+elsewhere {
			t.Errorf("%d dials more", len(to)-there-elsewhere)
		}
	})
	sub(t, "an address is told by its host, whatever the port", func(t *testing.T) {
		const elsewhere = "10.1.0.2:12075"
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver()})
		e.announce(naming(1, 15, elsewhere))
		z.set(nodeB)
		time.Sleep(time.Minute)
		e.announce(noName(2, 15))
		time.Sleep(3500 * time.Millisecond)
		if at, to := e.dialledAt(); len(to) != 0 {
			t.Errorf("dialled %v at %v", to, at)
		}
		z.set(nodeC)
		time.Sleep(2100 * time.Millisecond)
		if at, to := e.dialledAt(); !slices.Equal(to, []string{nodeC}) {
			t.Errorf("dialled %v at %v", to, at)
		}
	})
	sub(t, "the one that we are at stays in DNS beside a new one", func(t *testing.T) {
		n := newDomain(t, nil)
		n.zone.setAfter(2500*time.Millisecond, nodeA, nodeB)
		n.tell(n.a, 15)
		n.until(4100 * time.Millisecond)
		n.at(0, 1)
	})
	sub(t, "the first of two new ones refuses", func(t *testing.T) {
		n := newDomain(t, nil)
		stop := steadily(n.c, 100)
		n.b.Refuse(true)
		n.zone.setAfter(2500*time.Millisecond, nodeB, nodeC)
		n.tell(n.a, 15)
		n.until(15 * time.Second)
		n.at(0, 0)
		if n.x.Conns() != 1 {
			t.Error("nobody is at the second")
		}
		n.judge(stop(), time.Time{})
	})
}

func TestPollIPv6(t *testing.T) {
	const a, b = "[2001:db8::1]:6379", "[2001:db8::2]:6379"
	for _, c := range []struct {
		name        string
		before, now []string
		to          string
	}{
		{"IPv6 to IPv6", []string{a}, []string{b}, b},
		{"IPv6 to IPv4", []string{a}, []string{nodeB}, nodeB},
		{"IPv4 to IPv6", []string{nodeA}, []string{b}, b},
		{"IPv4 in IPv6's clothes", []string{nodeA}, []string{"[::ffff:10.1.0.1]:1", "[::ffff:10.1.0.2]:1"}, nodeB},
	} {
		sub(t, c.name, func(t *testing.T) {
			z := newZone(t, c.before...)
			e := newEchoes(t, Options{Resolver: z.resolver()})
			e.announce(noName(1, 15))
			time.Sleep(2500 * time.Millisecond)
			if at, to := e.dialledAt(); len(to) != 0 {
				t.Fatalf("dialled %v at %v", to, at)
			}
			z.set(c.now...)
			time.Sleep(1700 * time.Millisecond)
			if at, to := e.dialledAt(); !slices.Equal(to, []string{c.to}) {
				t.Errorf("dialled %v at %v", to, at)
			}
			e.answers()
		})
	}
}

// TestFoundAddressWithTLS is verified as the configured name.
func TestFoundAddressWithTLS(t *testing.T) {
	good, trusted := batontest.SelfSigned(zoneName)
	bad, alsoTrusted := batontest.SelfSigned("10.1.0.2", "other.baton.test")
	for _, c := range []struct {
		name string
		cert tls.Certificate
		ok   bool
	}{{"the right certificate", good, true}, {"one of the address alone", bad, false}} {
		sub(t, c.name, func(t *testing.T) {
			pool := trusted.Clone()
			if !c.ok {
				pool = alsoTrusted.Clone()
				pool.AddCert(good.Leaf)
			}
			z := newZone(t, nodeA)
			a := memoryServer(t, batontest.WithAddr(nodeA), batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{good}}))
			b := a.Sibling(batontest.WithAddr(nodeB), batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{c.cert}}))
			t.Cleanup(b.Close)
			j := &journal{}
			client := dialOptions(t, Options{Addr: zoneAddr, Dialer: asSockets(a.Dial), Resolver: z.resolver(), TLS: &tls.Config{RootCAs: pool}, OnEvent: j.add})
			z.set(nodeB)
			a.Push("MOVING", 1, 15, nil)
			time.Sleep(3 * time.Second)
			if (b.Conns() == 1) != c.ok || (a.Conns() == 0) != c.ok {
				t.Errorf("%d connections to the old server, %d to the new one, failures %+v", a.Conns(), b.Conns(), j.of(EventDialFailed))
			}
			if got, err := client.Do(background, "ECHO", "x").Text(); got != "x" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// --- the address that was found ---

func TestFoundAddressThatRefuses(t *testing.T) {
	sub(t, "it is tried with back-off, and from half of the window on the configured name in turn", func(t *testing.T) {
		n := newDomain(t, nil)
		stop := steadily(n.c, 100)
		n.b.Refuse(true)
		n.zone.set(nodeB)
		n.tell(n.a, 16)
		n.until(1500 * time.Millisecond)
		n.zone.set(nodeC) // which nobody looks at before half of the window
		n.until(7900 * time.Millisecond)
		early := n.book.to()[1:]
		if slices.Contains(early, nodeC) || len(early) < 5 || len(early) > 16 {
			t.Errorf("dialled %v before half of the window", early)
		}
		n.at(1, 0)
		n.until(11 * time.Second)
		if n.x.Conns() != 1 {
			t.Errorf("not at the configured name: dialled %v", n.book.to())
		}
		n.judge(stop(), time.Time{})
	})
	sub(t, "until it accepts", func(t *testing.T) {
		n := newDomain(t, nil)
		stop := steadily(n.c, 100)
		n.b.Refuse(true)
		n.zone.set(nodeB)
		n.tell(n.a, 60)
		n.until(10 * time.Second)
		n.at(1, 0)
		n.b.Refuse(false)
		n.until(11100 * time.Millisecond)
		n.at(0, 1)
		n.judge(stop(), time.Time{})
	})
	sub(t, "for ever, and the old server closes", func(t *testing.T) {
		n := newDomain(t, nil)
		n.slow()
		stop := steadily(n.c, 100)
		n.b.Refuse(true)
		n.zone.set(nodeB)
		n.began = time.Now()
		n.a.Move("", 10*time.Second)
		n.until(11 * time.Second)
		n.zone.set(nodeC)
		n.until(20 * time.Second)
		if n.x.Conns() != 1 {
			t.Errorf("not at the configured name: dialled %v", n.book.to())
		}
		n.judge(stop(), n.began.Add(10*time.Second))
	})
	sub(t, "it stalls", func(t *testing.T) {
		n := newDomain(t, func(o *Options) { o.DialTimeout = time.Second; o.Maintenance.RelaxedTimeout = time.Second })
		stop := steadily(n.c, 100)
		n.b.Stall(true)
		n.zone.set(nodeB)
		n.tell(n.a, 16)
		n.until(2500 * time.Millisecond)
		n.zone.set(nodeC)
		n.until(14 * time.Second)
		if n.x.Conns() != 1 || n.a.Conns() != 0 {
			t.Errorf("not at the configured name: dialled %v", n.book.to())
		}
		n.judge(stop(), time.Time{})
	})
}

// TestRefusedSuccessorIsLookedFor: one that AllowSuccessor refuses, and one that is where we are, count as unnamed.
func TestRefusedSuccessorIsLookedFor(t *testing.T) {
	for _, c := range []struct{ name, successor string }{
		{"refused", "10.6.6.6:6379"},
		{"refused, and DNS leads there", nodeB},
		{"where we are connected", nodeA},
		{"what we dialled", zoneAddr},
	} {
		for _, moves := range []time.Duration{0, 3300 * time.Millisecond} {
			sub(t, fmt.Sprintf("%s, DNS moves at %v", c.name, moves), func(t *testing.T) {
				var mu sync.Mutex
				var shown []string
				z := newZone(t, nodeA)
				e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2, Maintenance: Maintenance{AllowSuccessor: func(addr string) bool {
					mu.Lock()
					defer mu.Unlock()
					shown = append(shown, addr)
					return addr == nodeA || addr == zoneAddr
				}}})
				z.setAfter(moves, nodeB)
				time.Sleep(time.Nanosecond)
				e.announce(naming(1, 15, c.successor))
				time.Sleep(7 * time.Second)
				at, to := e.dialledAt()
				if !slices.Equal(to, []string{nodeB, nodeB}) {
					t.Fatalf("dialled %v at %v", to, at)
				}
				for _, d := range at { // the jitter, a second, and the jitter again if that is how it is refused
					spans(t, "the dial", d, moves, moves+3*time.Second)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, addr := range shown {
					if addr != c.successor {
						t.Errorf("AllowSuccessor was shown %s, which nobody announced", addr)
					}
				}
				if n := z.between(e.began, e.began.Add(7*time.Second)); n > 6 {
					t.Errorf("%d look-ups", n)
				}
				if e := e.j.of(EventNotification); len(e) != 1 || e[0].Successor != c.successor {
					t.Errorf("events: %+v", e)
				}
			})
		}
	}
}

// --- the end of the client ---

func TestCloseDuringAPoll(t *testing.T) {
	for _, how := range []string{"Close", "Shutdown"} {
		for _, c := range []struct {
			name string
			set  func(z *zone)
			at   time.Duration
		}{
			{"as it begins", func(z *zone) {}, 0},
			{"between two look-ups", func(z *zone) {}, 2500 * time.Millisecond},
			{"while a look-up hangs", func(z *zone) { z.hang() }, 700 * time.Millisecond},
			{"while a later look-up hangs", func(z *zone) { time.AfterFunc(1500*time.Millisecond, z.hang) }, 2500 * time.Millisecond},
			{"while look-ups fail", func(z *zone) { z.fail(dnsmessage.RCodeServerFailure) }, 2500 * time.Millisecond},
			{"in the jitter of what was found", func(z *zone) { z.set(nodeB) }, time.Millisecond},
			{"while the dial at half of the window hangs", func(z *zone) { time.AfterFunc(6*time.Second, z.hang) }, 8200 * time.Millisecond},
			{"when told again", func(z *zone) {}, 9 * time.Second},
		} {
			sub(t, how+" "+c.name, func(t *testing.T) {
				z := newZone(t, nodeA)
				e := newEchoes(t, Options{Resolver: z.resolver()})
				e.repeat(noName(1, 15))
				c.set(z)
				e.announce(noName(1, 15))
				time.Sleep(c.at)
				from := time.Now()
				if how == "Close" {
					e.c.Close()
				} else if err := e.c.Shutdown(background); err != nil {
					t.Error(err)
				}
				if took := time.Since(from); took != 0 {
					t.Errorf("it took %v", took)
				}
				dials := len(e.book.to())
				time.Sleep(12 * time.Second) // a look-up that the poll and a dial share is net's, which asks twice, for 5 s each
				asked := len(z.lookups())
				time.Sleep(time.Minute)
				if len(z.lookups()) != asked || len(e.book.to()) != dials {
					t.Errorf("%d look-ups and %d dials after it", len(z.lookups())-asked, len(e.book.to())-dials)
				}
				if left, stacks := running(); left > 0 {
					t.Errorf("%d goroutines are left:\n%s", left, stacks)
				}
				if _, err := e.c.Do(background, "GET", "1").Text(); !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			})
		}
	}
	sub(t, "Shutdown waits for what is in flight, and the poll does not", func(t *testing.T) {
		n := newDomain(t, nil)
		n.a.Delay("ECHO", 5*time.Second)
		n.tell(n.a, 15)
		n.until(2500 * time.Millisecond)
		got := async(n.c, "ECHO", "x")
		from := time.Now()
		if err := n.c.Shutdown(background); err != nil {
			t.Error(err)
		}
		spans(t, "Shutdown returned", time.Since(from), 5*time.Second, 5*time.Second)
		answered(t, got, "x")
		end := time.Now()
		time.Sleep(time.Minute)
		if k := n.zone.between(end.Add(1), time.Now()); k != 0 {
			t.Errorf("%d look-ups after the client has ended", k)
		}
	})
}

func TestShutdownBeginsNoPoll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newDomain(t, nil)
		n.a.Delay("ECHO", 3*time.Second)
		got := async(n.c, "ECHO", "x")
		done := later(func() error { return n.c.Shutdown(background) })
		synctest.Wait()
		n.zone.set(nodeB)
		n.tell(n.a, 15)
		if err := done(); err != nil {
			t.Error(err)
		}
		answered(t, got, "x")
		if asked, dials := len(n.zone.lookups()), len(n.book.to()); asked != 1 || dials != 1 {
			t.Errorf("%d look-ups and %d dials in all", asked, dials)
		}
	})
}

// --- cases ---

// TestCaseA42AThousandAnnouncements that name nobody are one timer and one poll, not a sleeping goroutine for each.
func TestCaseA42AThousandAnnouncements(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		seq  func(i int) int
		set  func(z *zone)
	}{
		{"rising numbers", func(i int) int { return i }, func(z *zone) {}},
		{"one number", func(i int) int { return 5 }, func(z *zone) {}},
		{"falling numbers", func(i int) int { return 5000 - i }, func(z *zone) {}},
		{"rising numbers, and DNS is silent", func(i int) int { return i }, func(z *zone) { z.hang() }},
		{"rising numbers, and DNS fails", func(i int) int { return i }, func(z *zone) { z.fail(dnsmessage.RCodeServerFailure) }},
	} {
		for _, spread := range []time.Duration{0, time.Millisecond} {
			sub(t, fmt.Sprintf("%s, each %v", c.name, spread), func(t *testing.T) {
				z := newZone(t, nodeA)
				e := newEchoes(t, Options{Resolver: z.resolver(), Conns: 2})
				before, _ := running()
				c.set(z)
				most := 0
				for i := range 1000 {
					for _, p := range e.connected()[:2] {
						p.says(noName(c.seq(i), 15))
					}
					if time.Sleep(spread); i%250 == 249 {
						synctest.Wait()
						now, _ := running()
						most = max(most, now-before)
					}
				}
				// The poll, its look-up with what net runs for it, and a dialler for each bridge.
				if most > 10 {
					t.Errorf("%d goroutines more than before", most)
				}
				e.began = time.Now()
				time.Sleep(5500 * time.Millisecond)
				if k := z.between(e.began.Add(1), time.Now()); k > 6 {
					t.Errorf("%d look-ups in 5.5 s", k)
				}
				e.answers()
				z.set(nodeA)
				time.Sleep(time.Minute)
				if at, to := e.dialledAt(); len(to) > 8 || len(to) < 2 {
					t.Errorf("dialled %v at %v", to, at)
				}
				e.c.Close()
				synctest.Wait()
				if left, stacks := running(); left > 0 {
					t.Errorf("%d goroutines are left:\n%s", left, stacks)
				}
			})
		}
	}
}

// TestCaseA4A34NullMovingReconnects: relaxed now, dialled at half of the window and the jitter, earlier if DNS has moved. A26, A34 and A37 are the
// other ways to name nobody, also to a connection that asked for a name.
func TestCaseA4A34NullMovingReconnects(t *testing.T) {
	for _, endpoint := range []string{"_", "$-1", "$0\r\n", "$4\r\nnull", "$1\r\n?", "$6\r\n?:7002", "$5\r\n:7002", "$20\r\nhost-1.example.com:0"} {
		for _, moves := range []time.Duration{-1, 0, 3300 * time.Millisecond} {
			sub(t, fmt.Sprintf("%q, DNS moves at %v", endpoint, moves), func(t *testing.T) {
				z := newZone(t, nodeA)
				e := newEchoes(t, Options{Resolver: z.resolver(), Timeout: 500 * time.Millisecond, Maintenance: Maintenance{EndpointType: EndpointInternalIP}})
				want, from, to := nodeA, 7500*time.Millisecond, 8500*time.Millisecond
				if moves >= 0 {
					z.setAfter(moves, nodeB)
					time.Sleep(time.Nanosecond)
					want, from, to = nodeB, moves, moves+2*time.Second
				}
				e.announce(">4\r\n$6\r\nMOVING\r\n:0\r\n:15\r\n" + endpoint + "\r\n")
				e.c.bridges[0].mu.Lock()
				relaxed := e.c.relax.effective(500*time.Millisecond, now())
				e.c.bridges[0].mu.Unlock()
				if relaxed != 10*time.Second {
					t.Errorf("the timeout is %v", relaxed)
				}
				time.Sleep(9 * time.Second)
				at, dialled := e.dialledAt()
				if !slices.Equal(dialled, []string{want}) {
					t.Fatalf("dialled %v at %v", dialled, at)
				}
				spans(t, "the dial", at[0], from, to)
				if e := e.j.of(EventNotification); len(e) != 1 || e[0].Successor != "" || e[0].Window != 15*time.Second {
					t.Errorf("events: %+v", e)
				}
				e.answers()
			})
		}
	}
}

// TestCaseA34NobodyIsNamedWhereNoneWasAskedFor asks for no name, and gets none.
func TestCaseA34NobodyIsNamedWhereNoneWasAskedFor(t *testing.T) {
	for _, endpoint := range []EndpointType{EndpointNone, EndpointAuto} {
		sub(t, fmt.Sprint(endpoint), func(t *testing.T) {
			n := newDomain(t, func(o *Options) { o.Maintenance.EndpointType = endpoint })
			stop := steadily(n.c, 100)
			n.zone.setAfter(3300*time.Millisecond, nodeC)
			n.began = time.Now()
			n.a.Move(nodeB, 15*time.Second)
			n.until(16 * time.Second)
			want := n.b
			if endpoint == EndpointNone {
				want = n.x
			}
			if want.Conns() != 1 {
				t.Errorf("dialled %v", n.book.to())
			}
			n.judge(stop(), time.Time{})
		})
	}
}

// TestCaseA22ResolvedTooEarly: DNS gives the old address for 9 s of 15. And if it never changes, the close at +21.6 s is survived.
func TestCaseA22ResolvedTooEarly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newDomain(t, nil, batontest.CloseAfter(6600*time.Millisecond))
		n.slow()
		stop := steadily(n.c, 200)
		n.began = time.Now()
		n.zone.setAfter(9*time.Second, nodeB)
		n.a.Move("", 15*time.Second)
		n.until(11200 * time.Millisecond)
		n.at(0, 1)
		n.until(25 * time.Second)
		n.judge(stop(), time.Time{})
		if lost := n.j.count(EventLost); lost != 0 {
			t.Errorf("%d connections were lost without notice", lost)
		}
	})
}

// TestCaseA24SilentClose: MIGRATING, MIGRATED, DNS drops the address, and 13 s later the socket dies without a word.
func TestCaseA24SilentClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newDomain(t, nil)
		n.slow()
		stop := steadily(n.c, 450)
		n.began = time.Now()
		n.until(4300 * time.Millisecond)
		n.a.Push("MIGRATING", n.a.NextSeq(), 2, `["27"]`)
		n.until(16600 * time.Millisecond)
		n.a.Push("MIGRATED", n.a.NextSeq(), `["27"]`)
		n.until(21400 * time.Millisecond)
		n.zone.set(nodeB)
		n.until(34700 * time.Millisecond)
		closed := time.Now()
		n.a.Refuse(true)
		n.a.Cut()
		time.Sleep(200 * time.Millisecond)
		n.at(0, 1)
		time.Sleep(3 * time.Second)
		all := stop()
		failed := 0
		for _, g := range all {
			if g.err != nil {
				failed++
			}
		}
		if failed > 5 {
			t.Errorf("%d commands failed, of which no more than what was in flight may", failed)
		}
		n.judge(all, closed)
	})
}

// TestCaseA25DeadAddressesAreLeft: the successor refuses for ever, and so does every address that was found, and the name
// leads elsewhere meanwhile.
func TestCaseA25DeadAddressesAreLeft(t *testing.T) {
	sub(t, "a named successor, and the old server dies", func(t *testing.T) {
		n := newDomain(t, nil)
		n.a.Push("MOVING", n.a.NextSeq(), 8, "10.6.6.6:6379")
		n.zone.setAfter(2*time.Second, nodeB)
		n.until(3 * time.Second)
		n.a.Refuse(true)
		n.a.Cut()
		n.until(6500 * time.Millisecond) // half of the window, and a back-off of two turns
		n.at(0, 1)
	})
	sub(t, "after the window every dial looks the name up", func(t *testing.T) {
		n := newDomain(t, nil)
		n.a.Push("MOVING", n.a.NextSeq(), 2, "10.6.6.6:6379")
		n.until(time.Second)
		n.a.Refuse(true)
		n.a.Cut()
		n.until(10 * time.Second)
		dials, asked := len(n.book.to()), len(n.zone.lookups())
		n.until(15 * time.Minute)
		after := n.book.to()[dials:]
		if slices.Contains(after, "10.6.6.6:6379") {
			t.Error("the successor is dialled after its window")
		}
		if looked := len(n.zone.lookups()) - asked; looked < len(after)-1 || looked > len(after)+1 || looked < 800 {
			t.Errorf("%d dials with %d look-ups in a quarter of an hour", len(after), looked)
		}
		n.zone.set(nodeB)
		time.Sleep(1100 * time.Millisecond)
		n.at(0, 1)
	})
}

// TestCaseA33MovingToAClosedPort: work goes on at the old server, the dials do, and the close is survived.
func TestCaseA33MovingToAClosedPort(t *testing.T) {
	for _, named := range []bool{true, false} {
		sub(t, fmt.Sprintf("named: %v", named), func(t *testing.T) {
			n := newDomain(t, nil)
			n.slow()
			n.b.Refuse(true)
			stop := steadily(n.c, 200)
			n.began = time.Now()
			successor := nodeB
			if !named {
				successor = ""
				n.zone.set(nodeB)
			}
			n.a.Move(successor, 6*time.Second)
			n.until(2900 * time.Millisecond)
			n.at(1, 0)
			if st := n.c.Stats(); st.Failed != 0 || st.Backlog > 10 {
				t.Errorf("stats: %+v", st)
			}
			if n.book.count(nodeB) < 3 {
				t.Errorf("dialled %v", n.book.to())
			}
			n.until(5990 * time.Millisecond)
			if failed := n.c.Stats().Failed; failed != 0 {
				t.Errorf("%d failed before the close", failed)
			}
			n.until(8 * time.Second)
			n.b.Refuse(false)
			n.zone.set(nodeB)
			n.until(12 * time.Second)
			n.judge(stop(), n.began.Add(6*time.Second))
		})
	}
}

// TestCaseA51NoLookupsBesidesThoseOfDials: what a connection is told to ask for comes from its socket.
func TestCaseA51NoLookupsBesidesThoseOfDials(t *testing.T) {
	for _, mode := range []Mode{Auto, Enabled, Disabled} {
		sub(t, fmt.Sprint(mode), func(t *testing.T) {
			z := newZone(t, nodeA)
			z.hang()
			e := newEchoes(t, Options{Addr: nodeA, Resolver: z.resolver(), Maintenance: Maintenance{Mode: mode}})
			if n := len(z.lookups()); n != 0 {
				t.Errorf("an IP: %d look-ups", n)
			}
			e.answers()
			z.set(nodeA)
			e = newEchoes(t, Options{Resolver: z.resolver(), Maintenance: Maintenance{Mode: mode}})
			if n := len(z.lookups()); n != 1 {
				t.Errorf("a name: %d look-ups", n)
			}
			e.answers()
		})
		sub(t, fmt.Sprintf("%v, a Dialer without a Resolver", mode), func(t *testing.T) {
			z := newZone(t, nodeA)
			usual := net.DefaultResolver
			net.DefaultResolver = z.resolver()
			defer func() { net.DefaultResolver = usual }()
			e := newEchoes(t, Options{Maintenance: Maintenance{Mode: mode}})
			e.announce(noName(1, 4))
			time.Sleep(3 * time.Second)
			if n := len(z.lookups()); n != 0 {
				t.Errorf("%d look-ups", n)
			}
			dials := 2
			if mode == Disabled {
				dials = 1
			}
			if to := e.book.to(); !slices.Equal(to, slices.Repeat([]string{zoneAddr}, dials)) {
				t.Errorf("dialled %v", to)
			}
		})
	}
	sub(t, "a resolver that blocks for 30 s costs a dial, and no more", func(t *testing.T) {
		z := newZone(t, nodeA)
		z.hang()
		from := time.Now()
		_, err := Dial(background, Options{Addr: zoneAddr, Dialer: newScript(t).dial, Resolver: z.resolver(), DialTimeout: 2 * time.Second})
		if err == nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(from) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(from))
		}
	})
}

// TestCaseG2EveryDialResolves: the hosts change, the connection drops.
func TestCaseG2EveryDialResolves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		z := newZone(t, nodeA)
		e := newEchoes(t, Options{Resolver: z.resolver()})
		for i, next := range []string{nodeB, nodeC, nodeA, nodeB} {
			z.set(next)
			time.Sleep(10 * time.Second)
			e.connected()[i].Close()
			time.Sleep(100 * time.Millisecond)
			if to := e.book.to(); len(to) != i+2 || to[i+1] != next {
				t.Fatalf("dialled %v", to)
			}
			if n := len(z.lookups()); n != i+2 {
				t.Errorf("%d look-ups for %d dials", n, i+2)
			}
			e.answers()
		}
	})
}

// TestCaseG3AnswerThatOutlivesTheGrace: DNS is stale until long after the close, and the old address refuses.
func TestCaseG3AnswerThatOutlivesTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newDomain(t, nil, batontest.CloseAfter(700*time.Millisecond))
		n.began = time.Now()
		n.a.Move("", 15*time.Second)
		n.until(15690 * time.Millisecond)
		n.a.Refuse(true)
		n.until(46 * time.Second)
		n.at(0, 0)
		from := time.Now()
		if err := n.c.Do(background, "INCR", "x").Err(); err == nil || MaybeExecuted(err) || !errors.Is(err, ErrTimeout) {
			t.Errorf("a command meanwhile: %v", err)
		}
		if took := time.Since(from); took > 12*time.Second {
			t.Errorf("a command waited %v", took)
		}
		queued := async(n.c, "INCR", "x")
		n.zone.set(nodeB)
		from = time.Now()
		if got, err := reply(t, queued).Int64(); got != 1 || err != nil {
			t.Errorf("%d, %v", got, err)
		}
		spans(t, "the new address was found", time.Since(from), 0, 1100*time.Millisecond)
	})
}

// --- over real sockets ---

// TestPollOnLoopback has no Dialer, and a DNS server that is asked over UDP.
func TestPollOnLoopback(t *testing.T) {
	z := newZone(t)
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		buf := make([]byte, 1500)
		for {
			k, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			udp.WriteTo(z.answer(buf[:k]), from)
		}
	}()
	defer func() { udp.Close(); <-served }()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", udp.LocalAddr().String())
	}}
	for _, byDefault := range []bool{false, true} {
		t.Run(fmt.Sprintf("by default: %v", byDefault), func(t *testing.T) {
			a := batontest.NewServer()
			defer a.Close()
			_, port, _ := net.SplitHostPort(a.Addr())
			if l, err := net.Listen("tcp", "127.0.0.2:"+port); err != nil {
				t.Skip(err)
			} else {
				l.Close()
			}
			b := a.Sibling(batontest.WithAddr("127.0.0.2:" + port))
			defer b.Close()
			z.set(a.Addr())
			j := &journal{}
			o := Options{Addr: zoneName + ":" + port, Resolver: resolver, OnEvent: j.add}
			if byDefault {
				usual := net.DefaultResolver
				net.DefaultResolver = resolver
				defer func() { net.DefaultResolver = usual }()
				o.Resolver = nil
			}
			c := dialOptions(t, o)
			defer c.Close()
			stop := load(t, c, 4, time.Millisecond)
			z.set(b.Addr())
			a.Move("", 10*time.Second)
			for end := time.Now().Add(10 * time.Second); c.Stats().Handoffs == 0 && time.Now().Before(end); {
				time.Sleep(5 * time.Millisecond)
			}
			done, failed := stop()
			if len(failed) > 0 || done == 0 {
				t.Errorf("%d of %d commands failed: %v", len(failed), done, failed)
			}
			if e := j.of(EventReady); len(e) != 1 || e[0].Addr != b.Addr() {
				t.Errorf("found by the poll: %+v", e)
			}
			if b.Conns() != 1 || b.Executed("INCR")+a.Executed("INCR") != done {
				t.Errorf("%d connections to the new server; %d commands executed of %d", b.Conns(), b.Executed("INCR")+a.Executed("INCR"), done)
			}
		})
	}
}
