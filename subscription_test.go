package baton

// Subscriptions. Scripted peers say byte for byte what a server may say to one; a radio plays the server where that matters less
// than what goes on air when: one database's channels as several addresses serve them, each connection in the test's hands.
// The handoffs of subscriptions are in overlap_test.go.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"runtime"
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

// --- the radio ---

// radio is the channels of a database. What is published goes to every connection that is subscribed at that moment, at whatever
// address.
type radio struct {
	t *testing.T

	mu     sync.Mutex // guards the rest, and the lines
	dials  []string   // the addresses dialled, in order
	lines  []*line    // connections, in order
	sick   map[string]bool
	denied map[string]string // by topic, with which error it is refused
	wire   func(addr string) (up, down time.Duration)
	lag    map[string]time.Duration // how much later an address learns of what is published
	late   map[string][]func()      // what it has not learned of yet, oldest first
	aired  map[string]int           // how much was published, by channel
	hook   func(airStep)
}

// airStep is a command that a connection has been sent after its handshake.
type airStep struct {
	l       *line
	command string
	after   bool // it is carried out, and the answer on its way
}

func (s airStep) String() string {
	return fmt.Sprintf("%s#%d %s %s", letters[s.l.addr], s.l.number, map[bool]string{true: "after", false: "before"}[s.after], s.command)
}

// line is the radio's end of a connection. Guarded by radio.mu.
type line struct {
	*peer
	r        *radio
	number   int
	up, down time.Duration // what a command and an answer take
	ready    bool          // it has shaken hands
	frozen   bool          // it neither obeys nor sends
	gone     bool
	over     chan struct{}   // closed with gone
	topics   map[string]bool // subscribed; a topic is a channel, or a pattern or shard channel behind "p:" or "s:"
	heard    chan parcel
	out      []parcel
	change   sync.Cond // broadcast when something of this has changed
}

// parcel is something under way until at.
type parcel struct {
	text string
	at   time.Time
}

// newRadio is a radio and a client of it.
func newRadio(t *testing.T, change func(*Options)) (*radio, *Client) {
	t.Helper()
	r := &radio{t: t, sick: map[string]bool{}, denied: map[string]string{}, lag: map[string]time.Duration{}, late: map[string][]func(){},
		aired: map[string]int{}}
	t.Cleanup(r.off)
	o := Options{Addr: addrA, Dialer: r.dial, KeepAlive: -1}
	if change != nil {
		change(&o)
	}
	return r, dialOptions(t, o)
}

// dial fits Options.Dialer. An address that is sick refuses; if "" is, all do.
func (r *radio) dial(_ context.Context, network, addr string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dials = append(r.dials, addr)
	if r.sick[addr] || r.sick[""] {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	client, server := batontest.Pipe()
	l := &line{peer: &peer{Conn: server, t: r.t, addr: addr, r: bufio.NewReader(server)}, r: r, number: len(r.lines),
		topics: map[string]bool{}, heard: make(chan parcel, 256), over: make(chan struct{})}
	l.change.L = &r.mu
	if r.wire != nil {
		l.up, l.down = r.wire(addr)
	}
	r.lines = append(r.lines, l)
	go l.listen()
	go l.obey()
	go l.speak()
	return &addressed{client, addr}, nil
}

func (l *line) listen() {
	defer close(l.heard)
	defer l.kill()
	for command := l.command(); command != ""; command = l.command() {
		l.heard <- parcel{command, time.Now().Add(l.up)}
	}
}

func (l *line) obey() {
	for p := range l.heard {
		l.until(p.at)
		l.r.mu.Lock()
		hook := l.r.hook
		if !l.ready || l.gone {
			hook = nil
		}
		l.r.mu.Unlock()
		if hook != nil {
			hook(airStep{l, p.text, false})
		}
		l.r.mu.Lock()
		for l.frozen && !l.gone {
			l.change.Wait()
		}
		if !l.gone {
			l.obeyLocked(p.text)
		}
		l.r.mu.Unlock()
		if hook != nil {
			hook(airStep{l, p.text, true})
		}
	}
}

// until waits until a time, or the end of the connection.
func (l *line) until(at time.Time) {
	if wait := time.Until(at); wait > 0 {
		select {
		case <-time.After(wait):
		case <-l.over:
		}
	}
}

// kinds are the prefixes of topics, by that of a command.
var kinds = map[string]string{"": "", "P": "p:", "S": "s:"}

func (l *line) obeyLocked(command string) {
	words := strings.Split(command, " ")
	verb, off := strings.CutSuffix(words[0], "UNSUBSCRIBE")
	on := false
	if !off {
		verb, on = strings.CutSuffix(words[0], "SUBSCRIBE")
	}
	kind := kinds[verb]
	switch {
	case off && len(words) == 1:
		for topic := range l.topics {
			if name := strings.TrimPrefix(topic, kind); len(topic) == len(kind)+len(name) && (kind != "" || !strings.Contains(topic, ":")) {
				words = append(words, name)
			}
		}
		if len(words) == 1 {
			l.sayLocked(fmt.Sprintf(">3\r\n+%s\r\n_\r\n:0\r\n", strings.ToLower(words[0])))
		}
		fallthrough
	case off:
		for _, name := range words[1:] {
			delete(l.topics, kind+name)
			l.sayLocked(confirmation(words[0], name, len(l.topics)))
		}
	case on:
		for _, name := range words[1:] {
			if refusal := l.r.denied[kind+name]; refusal != "" {
				l.sayLocked("-" + refusal + "\r\n")
				return
			}
			l.topics[kind+name] = true
			l.sayLocked(confirmation(words[0], name, len(l.topics)))
		}
		if len(words) == 1 {
			l.r.t.Errorf("the client sent %s without a name", words[0])
		}
	default:
		l.sayLocked(answers(nil).to(command))
		l.ready = l.ready || command == "PING"
	}
}

// confirmation is what a server pushes for a SUBSCRIBE or the like.
func confirmation(command, name string, count int) string {
	verb := strings.ToLower(command)
	return fmt.Sprintf(">3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n:%d\r\n", len(verb), verb, len(name), name, count)
}

func (l *line) sayLocked(raw string) {
	l.out = append(l.out, parcel{raw, time.Now().Add(l.down)})
	l.change.Broadcast()
}

// say has raw bytes sent between two frames.
func (l *line) say(raw string) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.sayLocked(raw)
}

func (l *line) speak() {
	for {
		l.r.mu.Lock()
		for (len(l.out) == 0 || l.frozen) && !l.gone {
			l.change.Wait()
		}
		if l.gone {
			l.r.mu.Unlock()
			return
		}
		if at := l.out[0].at; at.After(time.Now()) {
			l.r.mu.Unlock()
			l.until(at)
			continue
		}
		var raw strings.Builder
		for len(l.out) > 0 && !l.out[0].at.After(time.Now()) {
			raw.WriteString(l.out[0].text)
			l.out = l.out[1:]
		}
		l.r.mu.Unlock()
		l.says(raw.String())
	}
}

// kill ends the connection. What it has not sent is lost.
func (l *line) kill() {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.killLocked()
}

func (l *line) killLocked() {
	if !l.gone {
		l.gone = true
		close(l.over)
		clear(l.topics)
		l.Close()
		l.change.Broadcast()
	}
}

// endOne has the server end one of the connection's subscriptions, unasked; which one is chosen by n, which is given how many there are.
func (l *line) endOne(n func(int) int) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	if len(l.topics) == 0 {
		return
	}
	topic := slices.Sorted(maps.Keys(l.topics))[n(len(l.topics))]
	delete(l.topics, topic)
	verb, name := "UNSUBSCRIBE", topic
	for prefix, kind := range map[string]string{"p:": "P", "s:": "S"} {
		if of, is := strings.CutPrefix(topic, prefix); is {
			verb, name = kind+verb, of
		}
	}
	l.sayLocked(confirmation(verb, name, len(l.topics)))
}

// freeze has the connection stand still, as a host that is gone.
func (l *line) freeze() {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.frozen = true
	l.change.Broadcast()
}

// move announces on this connection that it will be closed after a window, and closes it then.
func (l *line) move(seq, seconds int, successor string) {
	l.say(movingFrame(seq, seconds, successor))
	time.AfterFunc(time.Duration(seconds)*time.Second, l.kill)
}

// off ends all.
func (r *radio) off() { r.set(func() { r.hook = nil; r.killLocked() }) }

func (r *radio) killLocked() {
	for _, l := range r.lines {
		l.killLocked()
	}
}

func (r *radio) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// publish puts the next number of each channel on air; "s:" stands before a shard channel.
func (r *radio) publish(channels ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, channel := range channels {
		r.aired[channel]++
		r.publishLocked(channel, strconv.Itoa(r.aired[channel]))
	}
}

func (r *radio) say(channel, payload string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publishLocked(channel, payload)
}

func (r *radio) publishLocked(channel, payload string) {
	at := map[string][]*line{}
	for _, l := range r.lines {
		at[l.addr] = append(at[l.addr], nil)
	}
	for addr := range at {
		deliver := func() {
			for _, l := range r.lines {
				if l.addr == addr && !l.gone {
					l.deliverLocked(channel, payload)
				}
			}
		}
		lag := r.lag[addr]
		if lag == 0 {
			deliver()
			continue
		}
		r.late[addr] = append(r.late[addr], deliver)
		time.AfterFunc(lag, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			next := r.late[addr][0]
			r.late[addr] = r.late[addr][1:]
			next()
		})
	}
}

func (l *line) deliverLocked(channel, payload string) {
	name, shard := strings.CutPrefix(channel, "s:")
	switch {
	case shard && l.topics[channel]:
		l.sayLocked(framed("smessage", name, payload))
	case shard:
		return
	case l.topics[channel]:
		l.sayLocked(framed("message", name, payload))
	}
	for topic := range l.topics {
		if pattern, is := strings.CutPrefix(topic, "p:"); is {
			if matched, _ := path.Match(pattern, name); matched && !shard {
				l.sayLocked(framed("pmessage", pattern, name, payload))
			}
		}
	}
}

// hub is the one connection that is subscribed.
func (r *radio) hub() *line {
	r.t.Helper()
	all := r.tuned()
	if len(all) != 1 {
		r.t.Fatalf("%d connections are subscribed, want one", len(all))
	}
	return all[0]
}

// tuned are the connections that are subscribed to anything.
func (r *radio) tuned() (tuned []*line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		if len(l.topics) > 0 {
			tuned = append(tuned, l)
		}
	}
	return tuned
}

// on are the topics of a connection, in order.
func (r *radio) on(l *line) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var topics []string
	for topic := range l.topics {
		topics = append(topics, topic)
	}
	slices.Sort(topics)
	return strings.Join(topics, " ")
}

func (r *radio) dialled() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dials)
}

// --- the ear ---

// ear receives all that a subscription gets, until it ends.
type ear struct {
	sub *Subscription

	mu    sync.Mutex
	heard []string // a message is its channel and its payload, of a pattern "pattern>channel"; a gap is "gap" and its number
	err   error    // which ended it
}

func listen(s *Subscription) *ear {
	e := &ear{sub: s}
	e.hear(0)
	return e
}

// hear begins to listen, and pauses after each message.
func (e *ear) hear(pause time.Duration) {
	go func() {
		for over := false; !over; time.Sleep(pause) {
			m, err := e.sub.Receive(background)
			e.mu.Lock()
			var gap *GapError
			switch {
			case errors.As(err, &gap) && errors.Is(err, ErrGap):
				e.heard = append(e.heard, "gap "+strconv.Itoa(gap.Missed))
			case err != nil:
				e.err, over = err, true
			default:
				e.heard = append(e.heard, heardAs(m))
			}
			e.mu.Unlock()
		}
	}()
}

func heardAs(m Message) string {
	channel := m.Channel
	if m.Pattern != "" {
		channel = m.Pattern + ">" + channel
	}
	return channel + " " + string(m.Payload)
}

// notes writes something down behind what was there to be heard.
func (e *ear) notes(text string) {
	time.Sleep(time.Nanosecond) // all that was there is heard when a clock of virtual time moves
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, text)
}

// all is what was heard so far, and what ended it.
func (e *ear) all() ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard), e.err
}

// hears says that this is all that was heard so far.
func (e *ear) hears(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got, err := e.all(); !slices.Equal(got, want) || err != nil {
		t.Errorf("heard %q, %v, want %q", got, err, want)
	}
}

// ended says that the subscription has ended, and with what.
func (e *ear) ended(t *testing.T, want error) {
	t.Helper()
	synctest.Wait()
	if _, err := e.all(); !errors.Is(err, want) {
		t.Errorf("the subscription ended with %v, want %v", err, want)
	}
}

// refused says that the subscription has ended with a server's error of this code.
func (e *ear) refused(t *testing.T, code string) {
	t.Helper()
	synctest.Wait()
	_, err := e.all()
	refusedWith(t, err, code)
}

func refusedWith(t *testing.T, err error, code string) {
	t.Helper()
	var refusal *ServerError
	if !errors.As(err, &refusal) || refusal.Code != code {
		t.Errorf("the error is %v, want the server's %s", err, code)
	}
}

// gaps are how many of them were heard.
func (e *ear) gaps() (n int) {
	heard, _ := e.all()
	for _, h := range heard {
		if strings.HasPrefix(h, "gap") {
			n++
		}
	}
	return n
}

// judge holds what was heard of a topic against the numbers from from+1 to to. missed are those in the place of which there is no gap;
// repeated were heard before, or when a higher one was. Notes say when the topic was "added" and how much had been published by then: all
// that follows must come. Before that, from "adding" or "removed" on, nothing need come. A negative from says that the topic is added later.
func (e *ear) judge(topic string, from, to int) (missed, repeated []int) {
	heard, _ := e.all()
	last, due, gap := from, from >= 0, false // heard last; what comes after it must come; and there is a gap
	excused := from                          // up to there
	for _, h := range heard {
		name, rest, _ := strings.Cut(h, " ")
		switch noted, number, _ := strings.Cut(rest, " "); {
		case name == "gap":
			gap = true
			continue
		case (name == "adding" || name == "removed") && noted == topic:
			due = false
			continue
		case name == "added" && noted == topic:
			excused, _ = strconv.Atoi(number)
			due = true
			continue
		case name != topic:
			continue
		}
		n, _ := strconv.Atoi(rest)
		if n <= last {
			if !gap { // behind one it may be
				repeated = append(repeated, n)
			}
			continue
		}
		for m := max(last, excused) + 1; m < n && due && !gap; m++ {
			missed = append(missed, m)
		}
		last, excused, gap = n, 0, false
	}
	for m := max(last, excused) + 1; m <= to && due && !gap; m++ {
		missed = append(missed, m)
	}
	return missed, repeated
}

// tune subscribes to channels and listens.
func tune(t *testing.T, c *Client, channels ...string) *ear {
	t.Helper()
	s, err := c.Subscribe(background, channels...)
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	return listen(s)
}

// receives says what the next messages are, and that they are there.
func receives(t *testing.T, s *Subscription, want ...string) {
	t.Helper()
	for _, w := range want {
		ctx, cancel := contextFor(time.Millisecond)
		m, err := s.Receive(ctx)
		cancel()
		got := heardAs(m)
		var gap *GapError
		if errors.As(err, &gap) {
			got, err = "gap "+strconv.Itoa(gap.Missed), nil
		}
		if got != w || err != nil {
			t.Errorf("received %q, %v, want %q", got, err, w)
		}
	}
}

// receivesNothing says that nothing is there.
func receivesNothing(t *testing.T, s *Subscription) {
	t.Helper()
	ctx, cancel := contextFor(time.Millisecond)
	defer cancel()
	if m, err := s.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrGap) {
		t.Errorf("received %q, %v, want nothing", heardAs(m), err)
	}
}

// --- byte for byte ---

// tuned is what a call of Subscribe and the like returned.
type tuned struct {
	s   *Subscription
	err error
}

// subscribing is a Subscribe under way.
func subscribing(c *Client, channels ...string) func() tuned {
	return later(func() tuned { s, err := c.Subscribe(background, channels...); return tuned{s, err} })
}

// sentNow is what the client has sent that was not looked at yet.
func (p *peer) sentNow() (commands []string) {
	for {
		synctest.Wait()
		p.SetReadDeadline(time.Now().Add(time.Microsecond))
		_, err := p.r.Peek(1)
		p.SetReadDeadline(time.Time{})
		if err != nil {
			return commands
		}
		commands = append(commands, p.command())
	}
}

// confirms is what Redis says to a command of a subscriber.
func confirms(command string) (raw string) {
	words := strings.Split(command, " ")
	if !strings.HasSuffix(words[0], "SUBSCRIBE") {
		return answers(nil).to(command)
	}
	for _, name := range words[1:] {
		raw += confirmation(words[0], name, 1)
	}
	return raw
}

// obeys answers all that the client sends until it is quiet, with what answers has for a command and confirms for all others.
func (p *peer) obeys(a answers) (commands []string) {
	for now := p.sentNow(); len(now) > 0; now = p.sentNow() {
		for _, command := range now {
			raw, special := a[command]
			if !special {
				raw = confirms(command)
			}
			p.says(raw)
		}
		commands = append(commands, now...)
	}
	return commands
}

// onAir is a client that is subscribed, and the peers of its ordinary connection and of its subscriptions'.
func onAir(t *testing.T, o Options, channels ...string) (c *Client, s *script, hub *peer, sub *Subscription) {
	t.Helper()
	s = newScript(t)
	o.KeepAlive = -1
	c, _ = s.connect(o)
	done := subscribing(c, channels...)
	hub = s.accept()
	hub.handshake()
	hub.obeys(nil)
	r := done()
	if r.err != nil {
		t.Fatal(r.err)
	}
	return c, s, hub, r.s
}

// wordsOf are the names of the commands of a kind.
func wordsOf(commands []string, verb string) (names []string) {
	for _, c := range commands {
		if words := strings.Split(c, " "); words[0] == verb {
			names = append(names, words[1:]...)
		}
	}
	slices.Sort(names)
	return names
}

func TestSubscribeOnTheWire(t *testing.T) {
	for _, x := range []struct {
		verb      string
		subscribe func(*Client, context.Context, ...string) (*Subscription, error)
		message   string
		want      Message
	}{
		{"SUBSCRIBE", (*Client).Subscribe, framed("message", "one", "a\r\nb\x00"), Message{"one", "", []byte("a\r\nb\x00")}},
		{"PSUBSCRIBE", (*Client).PSubscribe, framed("pmessage", "one", "oh one", ""), Message{"oh one", "one", []byte{}}},
		{"SSUBSCRIBE", (*Client).SSubscribe, framed("smessage", "one", "x"), Message{"one", "", []byte("x")}},
	} {
		sub(t, x.verb, func(t *testing.T) {
			s := newScript(t)
			c, ordinary := s.connect(Options{KeepAlive: -1})
			if n := len(s.dialled()); n != 1 {
				t.Errorf("%d dials before the first subscription", n)
			}
			done := later(func() tuned { s, err := x.subscribe(c, background, "one", "two"); return tuned{s, err} })
			hub := s.accept()
			hub.handshake()
			hub.expects(x.verb+" one", x.verb+" two", "PING")
			hub.says(confirmation(x.verb, "one", 1) + confirmation(x.verb, "two", 2) + "+PONG\r\n")
			r := done()
			if r.err != nil {
				t.Fatal(r.err)
			}
			hub.says(x.message)
			m, err := r.s.Receive(background)
			if err != nil || m.Channel != x.want.Channel || m.Pattern != x.want.Pattern || string(m.Payload) != string(x.want.Payload) {
				t.Errorf("received %+v, %v, want %+v", m, err, x.want)
			}
			pendingPeer(t, ordinary)
			if n := len(s.dialled()); n != 2 {
				t.Errorf("%d dials", n)
			}
		})
	}
}

// Of the answers before the PONG, an error belongs to the first channel that was not confirmed.
func TestSubscribeRefusedInPart(t *testing.T) {
	const no = "-NOPERM No permissions to access a channel\r\n"
	names := []string{"a", "b", "c"}
	for _, refused := range []string{"a", "b", "c", "ab", "bc", "ac", "abc"} {
		sub(t, refused, func(t *testing.T) {
			c, _, hub, other := onAir(t, Options{}, "other")
			says := answers{}
			for _, r := range refused {
				says["SUBSCRIBE "+string(r)] = no
			}
			done := subscribing(c, names...)
			commands := hub.obeys(says)
			r := done()
			refusedWith(t, r.err, "NOPERM")
			if r.s != nil {
				t.Error("there is a subscription beside the error")
			}
			var confirmed []string
			for _, name := range names {
				if !strings.Contains(refused, name) {
					confirmed = append(confirmed, name)
				}
			}
			if got := wordsOf(commands, "UNSUBSCRIBE"); !slices.Equal(got, confirmed) {
				t.Errorf("%q were unsubscribed, want what had been confirmed, %q", got, confirmed)
			}
			hub.says(framed("message", "a", "nobody's") + framed("message", "other", "1"))
			receives(t, other, "other 1")
			again := subscribing(c, names...) // none of it has stayed
			commands = hub.obeys(nil)
			if got := wordsOf(commands, "SUBSCRIBE"); !slices.Equal(got, names) {
				t.Errorf("then %q were subscribed", got)
			}
			hub.says(framed("message", "a", "2"))
			receives(t, again().s, "a 2")
		})
	}
}

// Answers reach the caller whose channels they are about, whatever was sent when.
func TestSubscribeOfSeveralCallers(t *testing.T) {
	const no = "-NOPERM no\r\n"
	for _, x := range []struct {
		name    string
		calls   [2][]string
		refused string
		fails   [2]bool
		left    []string // unsubscribed
	}{
		{"the first", [2][]string{{"a", "b"}, {"c", "d"}}, "b", [2]bool{true, false}, []string{"a"}},
		{"the second", [2][]string{{"a", "b"}, {"c", "d"}}, "c", [2]bool{false, true}, []string{"d"}},
		{"the same channel", [2][]string{{"a"}, {"a"}}, "a", [2]bool{true, true}, nil},
		{"one has what the other may not", [2][]string{{"a", "b"}, {"a"}}, "b", [2]bool{true, false}, nil},
		{"the other way round", [2][]string{{"a"}, {"b", "a"}}, "b", [2]bool{false, true}, nil},
	} {
		sub(t, x.name, func(t *testing.T) {
			c, _, hub, other := onAir(t, Options{}, "other")
			calls := []func() tuned{subscribing(c, x.calls[0]...)}
			synctest.Wait()
			calls = append(calls, subscribing(c, x.calls[1]...))
			commands := hub.obeys(answers{"SUBSCRIBE " + x.refused: no + framed("message", "other", "1")})
			for i, done := range calls {
				if r := done(); !x.fails[i] && r.err != nil {
					t.Errorf("caller %d: %v", i, r.err)
				} else if x.fails[i] {
					refusedWith(t, r.err, "NOPERM")
				} else {
					hub.says(framed("message", x.calls[i][0], "2"))
					receives(t, r.s, x.calls[i][0]+" 2")
				}
			}
			if got := wordsOf(commands, "UNSUBSCRIBE"); !slices.Equal(got, x.left) {
				t.Errorf("%q were unsubscribed, want %q", got, x.left)
			}
			if n := len(wordsOf(commands, "SUBSCRIBE")); x.name == "the same channel" && n > 2 {
				t.Errorf("one channel was subscribed %d times", n)
			}
			receives(t, other, "other 1")
		})
	}
}

func TestMessagesBehindTheirConfirmationAreNotLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _, hub, _ := onAir(t, Options{}, "other")
		done := subscribing(c, "a", "b")
		hub.expects("SUBSCRIBE a", "SUBSCRIBE b", "PING")
		hub.says(confirmation("SUBSCRIBE", "a", 2) + framed("message", "a", "1") + confirmation("SUBSCRIBE", "b", 3) +
			framed("message", "b", "2") + framed("message", "a", "3"))
		synctest.Wait()
		hub.says("+PONG\r\n" + framed("message", "b", "4"))
		receives(t, done().s, "a 1", "b 2", "a 3", "b 4")
	})
}

// A caller who leaves leaves nothing behind, and the next is not given what was said to him.
func TestSubscribeThatIsGivenUp(t *testing.T) {
	for name, x := range map[string]struct {
		o     Options
		after time.Duration
		cause error
	}{
		"ctx":     {Options{}, time.Second, context.DeadlineExceeded},
		"Timeout": {Options{Timeout: time.Second}, 1125 * time.Millisecond, ErrTimeout},
	} {
		for _, again := range []string{"before the answer", "after the answer"} {
			for _, answer := range []string{"confirmed", "refused"} {
				sub(t, name+", "+answer+", called again "+again, func(t *testing.T) {
					c, _, hub, _ := onAir(t, x.o, "other")
					ctx, cancel := background, context.CancelFunc(func() {})
					if name == "ctx" {
						ctx, cancel = contextFor(x.after)
					}
					defer cancel()
					start := time.Now()
					s, err := c.Subscribe(ctx, "a")
					if took := time.Since(start); !errors.Is(err, x.cause) || took > x.after || took < x.after*8/9 || s != nil {
						t.Errorf("Subscribe returned %v after %v, want %v after %v", err, took, x.cause, x.after)
					}
					first := hub.sentNow()
					if len(first) < 2 || first[0] != "SUBSCRIBE a" || first[1] != "PING" {
						t.Fatalf("the client sent %q", first)
					}
					var done func() tuned
					if again == "before the answer" {
						done = subscribing(c, "b")
						synctest.Wait()
					}
					if answer == "confirmed" {
						hub.says(confirms("SUBSCRIBE a"))
					} else {
						hub.says("-NOPERM no\r\n")
					}
					for _, command := range first[1:] {
						hub.says(confirms(command))
					}
					commands := append(first, hub.obeys(nil)...)
					if got := wordsOf(commands, "UNSUBSCRIBE"); answer == "confirmed" && !slices.Equal(got, []string{"a"}) {
						t.Errorf("%q were unsubscribed, want what nobody waits for any more", got)
					}
					if done == nil {
						done = subscribing(c, "b")
						hub.obeys(nil)
					}
					r := done()
					if r.err != nil {
						t.Fatalf("the next call: %v", r.err)
					}
					hub.says(framed("message", "a", "0") + framed("message", "b", "1"))
					receives(t, r.s, "b 1")
				})
			}
		}
	}
}

func TestTheSameNamesAfterACallThatWasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _, hub, _ := onAir(t, Options{}, "other")
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		c.Subscribe(ctx, "a")
		done := subscribing(c, "a")
		hub.obeys(nil)
		r := done()
		if r.err != nil {
			t.Fatal(r.err)
		}
		hub.obeys(nil)
		hub.says(framed("message", "a", "1"))
		receives(t, r.s, "a 1")
	})
}

func TestCloseDuringASubscribe(t *testing.T) {
	for _, stage := range []string{"dialling", "written", "half confirmed"} {
		sub(t, stage, func(t *testing.T) {
			s := newScript(t)
			c, _ := s.connect(Options{})
			done := subscribing(c, "a", "b")
			hub := s.accept()
			if stage != "dialling" {
				hub.handshake()
				hub.expects("SUBSCRIBE a", "SUBSCRIBE b", "PING")
			}
			if stage == "half confirmed" {
				hub.says(confirms("SUBSCRIBE a"))
			}
			synctest.Wait()
			c.Close()
			if r := done(); !errors.Is(r.err, ErrClosed) {
				t.Errorf("Subscribe: %v", r.err)
			}
			if !hub.hungUp() {
				t.Error("the connection is open")
			}
			if _, err := c.Subscribe(background, "a"); !errors.Is(err, ErrClosed) {
				t.Errorf("Subscribe on a closed client: %v", err)
			}
		})
	}
}

func TestASubscriptionThatIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _, hub, s := onAir(t, Options{}, "a")
		waiting := later(func() error { _, err := s.Receive(background); return err })
		synctest.Wait()
		closing := later(s.Close)
		if commands := hub.obeys(nil); !slices.Equal(wordsOf(commands, "UNSUBSCRIBE"), []string{"a"}) {
			t.Errorf("the client sent %q", commands)
		}
		if err := closing(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := waiting(); !errors.Is(err, ErrClosed) {
			t.Errorf("a Receive that waited: %v", err)
		}
		for what, err := range map[string]error{"Add": s.Add(background, "b"), "Remove": s.Remove(background, "a")} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close again: %v", err)
		}
		if commands := hub.obeys(nil); len(wordsOf(commands, "SUBSCRIBE"))+len(wordsOf(commands, "UNSUBSCRIBE")) > 0 {
			t.Errorf("afterwards the client sent %q", commands)
		}
		done := subscribing(c, "a")
		hub.obeys(nil)
		hub.says(framed("message", "a", "1"))
		receives(t, done().s, "a 1")
	})
	sub(t, "what is queued is dropped", func(t *testing.T) {
		_, _, hub, s := onAir(t, Options{}, "a")
		hub.says(framed("message", "a", "1"))
		synctest.Wait()
		later(s.Close)
		hub.obeys(nil)
		if m, err := s.Receive(background); !errors.Is(err, ErrClosed) {
			t.Errorf("received %q, %v", heardAs(m), err)
		}
	})
	sub(t, "while it adds", func(t *testing.T) {
		c, _, hub, s := onAir(t, Options{}, "a")
		adding := later(func() error { return s.Add(background, "b") })
		hub.expects("SUBSCRIBE b", "PING")
		closing := later(s.Close)
		synctest.Wait()
		hub.says(confirms("SUBSCRIBE b") + "+PONG\r\n")
		commands := hub.obeys(nil)
		if got := wordsOf(commands, "UNSUBSCRIBE"); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%q were unsubscribed", got)
		}
		if err := closing(); err != nil {
			t.Error(err)
		}
		if err := adding(); err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("Add: %v", err)
		}
		done := subscribing(c, "b")
		hub.obeys(nil)
		hub.says(framed("message", "b", "1"))
		receives(t, done().s, "b 1")
	})
}

func TestAClientThatIsClosedEndsItsSubscriptions(t *testing.T) {
	for name, end := range map[string]func(c *Client) error{
		"Close":    (*Client).Close,
		"Shutdown": func(c *Client) error { return c.Shutdown(background) },
	} {
		sub(t, name, func(t *testing.T) {
			c, _, hub, s := onAir(t, Options{}, "a")
			e := listen(s)
			start := time.Now()
			if err := end(c); err != nil || time.Since(start) != 0 {
				t.Errorf("%s returned %v after %v", name, err, time.Since(start))
			}
			e.ended(t, ErrClosed)
			if err := s.Add(background, "b"); !errors.Is(err, ErrClosed) {
				t.Errorf("Add: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if !hub.hungUp() {
				t.Error("the connection is open")
			}
		})
	}
}

// Shutdown lets what is outstanding finish, and subscriptions go on until then; but nothing is added.
func TestSubscriptionsLastUntilAShutdownIsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, s, hub, one := onAir(t, Options{Timeout: -1}, "a")
		slow := async(c, "GET", "1")
		shut := later(func() error { return c.Shutdown(background) })
		synctest.Wait()
		if _, err := c.Subscribe(background, "b"); !errors.Is(err, ErrClosed) {
			t.Errorf("Subscribe: %v", err)
		}
		if err := one.Add(background, "b"); !errors.Is(err, ErrClosed) {
			t.Errorf("Add: %v", err)
		}
		hub.says(framed("message", "a", "1"))
		receives(t, one, "a 1")
		if commands := hub.obeys(nil); len(wordsOf(commands, "SUBSCRIBE")) > 0 {
			t.Errorf("the client sent %q", commands)
		}
		e := listen(one)
		c.Close()
		failedWith(t, "the command", slow, ErrClosed, true)
		if err := shut(); err != nil {
			t.Error(err)
		}
		e.ended(t, ErrClosed)
		if d := s.dialled(); len(d) != 2 {
			t.Errorf("dialled %v", d)
		}
	})
}

// --- who is subscribed to what ---

func TestSubscriptionsShareAChannel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _, hub, one := onAir(t, Options{}, "a", "b")
		done := subscribing(c, "a", "c")
		commands := hub.obeys(nil)
		two := done().s
		if got := wordsOf(commands, "SUBSCRIBE"); !slices.Equal(got, []string{"c"}) {
			t.Errorf("%q were subscribed, want what nobody had", got)
		}
		hub.says(framed("message", "a", "1") + framed("message", "c", "2"))
		receives(t, one, "a 1")
		receives(t, two, "a 1", "c 2")
		closing := later(one.Close)
		if got := wordsOf(hub.obeys(nil), "UNSUBSCRIBE"); !slices.Equal(got, []string{"b"}) {
			t.Errorf("%q were unsubscribed, want what nobody else has", got)
		}
		closing()
		hub.says(framed("message", "a", "3"))
		receives(t, two, "a 3")
		closing = later(two.Close)
		if got := wordsOf(hub.obeys(nil), "UNSUBSCRIBE"); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("%q were unsubscribed in the end", got)
		}
		closing()
	})
}

func TestANameGivenTwiceCountsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, hub, s := onAir(t, Options{}, "a", "b", "a")
		adding := later(func() error { return s.Add(background, "a", "c", "c") })
		if got := wordsOf(hub.obeys(nil), "SUBSCRIBE"); !slices.Equal(got, []string{"c"}) {
			t.Errorf("%q were subscribed", got)
		}
		if err := adding(); err != nil {
			t.Fatal(err)
		}
		hub.says(framed("message", "a", "1") + framed("message", "c", "2"))
		receives(t, s, "a 1", "c 2")
		receivesNothing(t, s)
		removing := later(func() error { return s.Remove(background, "a") })
		if got := wordsOf(hub.obeys(nil), "UNSUBSCRIBE"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%q were unsubscribed", got)
		}
		if err := removing(); err != nil {
			t.Fatal(err)
		}
		hub.says(framed("message", "a", "3"))
		receivesNothing(t, s)
	})
}

func TestAChannelAPatternAndAShardChannelOfOneName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		channel := tune(t, c, "x")
		p, err := c.PSubscribe(background, "x")
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.SSubscribe(background, "x")
		if err != nil {
			t.Fatal(err)
		}
		pattern, shard := listen(p), listen(s)
		if got := r.on(r.hub()); got != "p:x s:x x" {
			t.Errorf("subscribed to %q", got)
		}
		r.publish("x", "s:x")
		channel.hears(t, "x 1")
		pattern.hears(t, "x>x 1")
		shard.hears(t, "x 1")
		for _, s := range []*Subscription{p, channel.sub} {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if got := r.on(r.hub()); got != "s:x" {
			t.Errorf("then subscribed to %q", got)
		}
	})
}

func TestAddAndRemove(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		for _, kind := range []struct {
			prefix    string
			subscribe func(*Client, context.Context, ...string) (*Subscription, error)
		}{{"", (*Client).Subscribe}, {"p:", (*Client).PSubscribe}, {"s:", (*Client).SSubscribe}} {
			s, err := kind.subscribe(c, background, "a")
			if err != nil {
				t.Fatal(err)
			}
			on := func(want ...string) {
				t.Helper()
				for i := range want {
					want[i] = kind.prefix + want[i]
				}
				synctest.Wait()
				if got := r.on(r.hub()); got != strings.Join(want, " ") {
					t.Errorf("subscribed to %q, want %q", got, want)
				}
			}
			call := func(f func(context.Context, ...string) error, names ...string) {
				t.Helper()
				if err := f(background, names...); err != nil {
					t.Errorf("%q: %v", names, err)
				}
			}
			call(s.Add, "b", "c")
			on("a", "b", "c")
			call(s.Remove, "a", "c", "never had")
			on("b")
			call(s.Add)
			call(s.Remove)
			on("b")
			call(s.Add, "a")
			on("a", "b")
			keep := tune(t, c, "keep")
			s.Close()
			synctest.Wait()
			if got := r.on(r.hub()); got != "keep" {
				t.Errorf("then subscribed to %q", got)
			}
			keep.sub.Close()
			synctest.Wait()
		}
	})
}

func TestAddRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		e := tune(t, c, "a")
		r.set(func() { r.denied["no"] = "NOPERM no" })
		refusedWith(t, e.sub.Add(background, "b", "no", "c"), "NOPERM")
		synctest.Wait()
		if got := r.on(r.hub()); got != "a" {
			t.Errorf("subscribed to %q, want what it was before", got)
		}
		r.publish("a", "b", "c")
		e.hears(t, "a 1")
		r.set(func() { clear(r.denied) })
		if err := e.sub.Add(background, "b", "no"); err != nil {
			t.Errorf("when it is allowed: %v", err)
		}
		r.publish("a", "b", "no")
		e.hears(t, "a 1", "a 2", "b 2", "no 1")
	})
}

// An UNSUBSCRIBE that a SUBSCRIBE follows at once: whatever is on the wire when, the last call counts, and its server's answer to the first
// is nothing unsolicited.
func TestRemoveAndAddAtOnce(t *testing.T) {
	for _, x := range []struct {
		name  string
		calls string // R: Remove; A: Add; each without waiting for the one before, if in lower case
		on    bool
	}{{"", "RA", true}, {"", "rA", true}, {"", "rArA", true}, {"", "RARAR", false}, {"", "raR", false}} {
		sub(t, x.calls, func(t *testing.T) {
			r, c := newRadio(t, func(o *Options) {})
			r.set(func() {
				r.wire = func(string) (time.Duration, time.Duration) { return time.Millisecond, time.Millisecond }
			})
			e := tune(t, c, "keep", "a")
			for _, call := range x.calls {
				f := e.sub.Add
				if call == 'R' || call == 'r' {
					f = e.sub.Remove
				}
				over := later(func() error { return f(background, "a") })
				synctest.Wait()
				if call == 'R' || call == 'A' {
					if err := over(); err != nil {
						t.Error(err)
					}
				}
			}
			time.Sleep(time.Second)
			if got, want := r.on(r.hub()), map[bool]string{true: "a keep", false: "keep"}[x.on]; got != want {
				t.Errorf("subscribed to %q, want %q", got, want)
			}
			r.publish("a", "keep")
			time.Sleep(time.Second)
			if x.on {
				e.hears(t, "a 1", "keep 1")
			} else {
				e.hears(t, "keep 1")
			}
			if d := r.dialled(); len(d) != 2 {
				t.Errorf("dialled %v", d)
			}
		})
	}
}

// What arrives of a channel before its UNSUBSCRIBE has taken effect is not heard by who subscribes to it next: between that and what
// comes after his own SUBSCRIBE there would be a hole that nobody told him of.
func TestWhatCameBeforeAnUnsubscribeIsNotTheNextSubscribers(t *testing.T) {
	for _, again := range []string{"Subscribe", "Add"} {
		sub(t, again, func(t *testing.T) {
			c, _, hub, one := onAir(t, Options{}, "a", "other")
			removing := later(func() error { return one.Remove(background, "a") })
			sent := hub.sentNow()
			var s *Subscription
			over := later(func() error {
				if s = one; again == "Add" {
					return one.Add(background, "a")
				}
				var err error
				s, err = c.Subscribe(background, "a")
				return err
			})
			sent = append(sent, hub.sentNow()...)
			hub.says(framed("message", "a", "1"))
			for _, command := range sent {
				hub.says(confirms(command))
			}
			hub.obeys(nil)
			if err := errors.Join(removing(), over()); err != nil {
				t.Fatal(err)
			}
			hub.says(framed("message", "a", "3"))
			receives(t, s, "a 3")
		})
	}
}

// To Redis the empty name is one like any other; and no name at all must not become the command that means all.
func TestEmptyNames(t *testing.T) {
	sub(t, "the empty name", func(t *testing.T) {
		r, c := newRadio(t, nil)
		e := tune(t, c, "")
		r.publish("")
		e.hears(t, " 1")
	})
	sub(t, "no name", func(t *testing.T) {
		r, c := newRadio(t, nil)
		keep := tune(t, c, "keep")
		s, err := c.Subscribe(background)
		if err == nil {
			if err := s.Add(background, "a"); err != nil {
				t.Error(err)
			}
			r.publish("a")
			receives(t, s, "a 1")
			if err := s.Remove(background, "a"); err != nil {
				t.Error(err)
			}
			s.Close()
		}
		if err := keep.sub.Remove(background); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := r.on(r.hub()); got != "keep" {
			t.Errorf("subscribed to %q", got)
		}
		r.publish("keep")
		keep.hears(t, "keep 1")
	})
}

// --- no connection ---

func TestSubscribeNeedsProtocol3(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := memoryServer(t, batontest.Protocol2())
		c := dialMemory(t, s, nil)
		start := time.Now()
		for _, subscribe := range []func(*Client, context.Context, ...string) (*Subscription, error){
			(*Client).Subscribe, (*Client).PSubscribe, (*Client).SSubscribe,
		} {
			if _, err := subscribe(c, background, "a"); err == nil || !strings.Contains(strings.ToLower(err.Error()), "protocol") {
				t.Errorf("the error is %v, want one that says protocol", err)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v", took)
		}
		if n := s.Executed("subscribe") + s.Executed("psubscribe") + s.Executed("ssubscribe"); n > 0 {
			t.Errorf("%d were sent", n)
		}
		if err := c.Do(background, "SET", "k", "v").Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestSubscribeWithoutAConnection(t *testing.T) {
	sub(t, "FailFast, the first", func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.Backlog = FailFast })
		r.set(func() { r.sick[""] = true })
		start := time.Now()
		if _, err := c.Subscribe(background, "a"); !errors.Is(err, ErrNoConnection) || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		r.set(func() { clear(r.sick) })
		time.Sleep(2 * time.Second) // back-off
		e := tune(t, c, "b")
		r.publish("a", "b")
		e.hears(t, "b 1")
		if got := r.on(r.hub()); got != "b" {
			t.Errorf("subscribed to %q", got)
		}
	})
	sub(t, "FailFast, lost", func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.Backlog = FailFast })
		e := tune(t, c, "a")
		r.set(func() { r.sick[""] = true })
		r.hub().kill()
		time.Sleep(time.Second)
		start := time.Now()
		if _, err := c.Subscribe(background, "b"); !errors.Is(err, ErrNoConnection) || time.Since(start) > 2*time.Second {
			t.Errorf("Subscribe: %v after %v", err, time.Since(start))
		}
		if err := e.sub.Add(background, "b"); !errors.Is(err, ErrNoConnection) {
			t.Errorf("Add: %v", err)
		}
		r.set(func() { clear(r.sick) })
		time.Sleep(2 * time.Second)
		r.publish("a", "b")
		e.hears(t, "gap -1", "a 1")
	})
	sub(t, "Queue", func(t *testing.T) {
		r, c := newRadio(t, nil)
		r.set(func() { r.sick[""] = true })
		done := subscribing(c, "a")
		time.Sleep(3 * time.Second)
		r.set(func() { clear(r.sick) })
		s := done()
		if s.err != nil {
			t.Fatal(s.err)
		}
		r.publish("a")
		receives(t, s.s, "a 1") // and no gap: it is new
	})
	sub(t, "Queue, Timeout", func(t *testing.T) {
		r, c := newRadio(t, nil)
		r.set(func() { r.sick[""] = true })
		start := time.Now()
		_, err := c.Subscribe(background, "a")
		if took := time.Since(start); !errors.Is(err, ErrTimeout) || !around(took, 5*time.Second) {
			t.Errorf("%v after %v", err, took)
		}
		r.set(func() { clear(r.sick) })
		time.Sleep(2 * time.Second)
		if n := len(r.tuned()); n > 0 {
			t.Error("what was given up was subscribed later")
		}
	})
	sub(t, "Queue, ctx", func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.Timeout = -1 })
		r.set(func() { r.sick[""] = true })
		ctx, cancel := contextFor(7 * time.Second)
		defer cancel()
		start := time.Now()
		_, err := c.Subscribe(ctx, "a")
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != 7*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestAddAcrossALoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		e := tune(t, c, "a")
		old := r.hub()
		old.freeze()
		adding := later(func() error { return e.sub.Add(background, "b") })
		time.Sleep(time.Second)
		old.kill()
		if err := adding(); err != nil {
			t.Errorf("Add: %v", err)
		}
		r.publish("a", "b")
		e.hears(t, "gap -1", "a 1", "b 1")
	})
}

// --- pushes and replies (B) ---

// TestCaseB3B4B5B6B8B10B12PushesAndReplies has everything that a server may say on the connection of the subscriptions come between a SUBSCRIBE and its
// PONG, or behind it, split at every byte. None of it is taken for a reply, and no reply for it.
func TestCaseB3B4B5B6B8B10B12PushesAndReplies(t *testing.T) {
	const (
		name   = "aaaaaa"
		pong   = "+PONG\r\n"
		hidden = ">2\r\n$10\r\ninvalidate\r\n_\r\n"
	)
	confirmed := ">3\r\n$9\r\nsubscribe\r\n$6\r\naaaaaa\r\n:1\r\n"
	for _, x := range []struct {
		name, raw string
		heard     []string
	}{
		{"B6: a short name", confirmed + pong, nil},
		{"B3: a push before", hidden + confirmed + pong, nil},
		{"B3: a push between", confirmed + hidden + pong, nil},
		{"B5: a push behind", confirmed + pong + hidden, nil},
		{"B4: a push alone", confirmed + ">1\r\n+x\r\n" + pong, nil},
		{"B8: a message for nobody first", framed("message", "zz", "x") + confirmed + pong, nil},
		{"messages between", confirmed + framed("message", name, "1") + pong + framed("message", name, "2"), []string{"aaaaaa 1", "aaaaaa 2"}},
		{"of other kinds", confirmed + framed("smessage", name, "1") + framed("pmessage", name, name, "1") + framed("pmessage", "*", name, "1") + pong, nil},
		{"B12: an unsubscribe of nothing", ">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n" + confirmed + pong, nil},
		{"B12: of nobody's channel", confirmation("unsubscribe", "zz", 0) + confirmed + confirmation("punsubscribe", name, 0) + pong, nil},
		{"B10: a sunsubscribe", confirmed + confirmation("sunsubscribe", "channel1", 0) + pong + confirmation("sunsubscribe", name, 0), nil},
		{"a confirmation of nobody's channel", confirmation("subscribe", "zz", 1) + confirmed + pong, nil},
		{"a confirmation twice", confirmed + confirmed + pong, nil},
		{"a notification", confirmed + ">4\r\n$9\r\nMIGRATING\r\n:0\r\n:2\r\n$6\r\n[\"27\"]\r\n" + pong, nil},
		{"an unknown one", ">2\r\n$3\r\nfoo\r\n*1\r\n%1\r\n+a\r\n_\r\n" + confirmed + pong, nil},
		{"empty ones", ">0\r\n" + confirmed + ">1\r\n_\r\n>1\r\n*0\r\n" + pong, nil},
		{"messages that are none", confirmed + ">1\r\n+message\r\n>2\r\n+message\r\n+aaaaaa\r\n>3\r\n+message\r\n*0\r\n+x\r\n>3\r\n+pmessage\r\n+p\r\n+c\r\n" + pong, nil},
		{"simple strings", ">3\r\n+subscribe\r\n+aaaaaa\r\n:1\r\n" + pong + ">3\r\n+message\r\n+aaaaaa\r\n+1\r\n", []string{"aaaaaa 1"}},
		{"an attribute", "|1\r\n+ttl\r\n:3\r\n" + confirmed + "|1\r\n+ttl\r\n:3\r\n" + pong, nil},
		{"more elements", ">4\r\n$9\r\nsubscribe\r\n$6\r\naaaaaa\r\n:1\r\n+more\r\n" + pong, nil},
	} {
		sub(t, x.name, func(t *testing.T) {
			c, s, hub, _ := onAir(t, Options{}, "other")
			for cut := range len(x.raw) {
				done := subscribing(c, name)
				hub.expects("SUBSCRIBE "+name, "PING")
				hub.says(x.raw[:cut])
				synctest.Wait()
				hub.says(x.raw[cut:])
				r := done()
				if r.err != nil {
					t.Fatalf("cut at %d: %v", cut, r.err)
				}
				receives(t, r.s, x.heard...)
				receivesNothing(t, r.s)
				hub.obeys(nil) // what nobody asked for may be unsubscribed
				refused := subscribing(c, "zz")
				if got := wordsOf(hub.obeys(answers{"SUBSCRIBE zz": "-NOPERM no\r\n"}), "SUBSCRIBE"); !slices.Equal(got, []string{"zz"}) {
					t.Errorf("%q were subscribed", got)
				}
				refusedWith(t, refused().err, "NOPERM")
				closing := later(r.s.Close)
				if commands := hub.obeys(nil); !slices.Equal(wordsOf(commands, "UNSUBSCRIBE"), []string{name}) {
					t.Fatalf("cut at %d: the client sent %q", cut, commands)
				}
				closing()
				if t.Failed() {
					t.Fatalf("cut at %d", cut)
				}
			}
			if d := s.dialled(); len(d) != 2 {
				t.Errorf("dialled %v", d)
			}
		})
	}
	sub(t, "B6: byte by byte, and each as soon as it is whole", func(t *testing.T) {
		c, _, hub, _ := onAir(t, Options{}, "other")
		done := subscribing(c, name)
		hub.expects("SUBSCRIBE "+name, "PING")
		for _, b := range []byte(confirmed + pong) {
			hub.says(string(b))
			synctest.Wait()
		}
		s := done().s
		for i, b := range []byte(framed("message", name, "1")) {
			if i > 0 {
				receivesNothing(t, s)
			}
			hub.says(string(b))
		}
		receives(t, s, name+" 1")
	})
	sub(t, "B8: in the handshake", func(t *testing.T) {
		s := newScript(t)
		c, _ := s.connect(Options{KeepAlive: -1})
		done := subscribing(c, name)
		hub := s.accept()
		hub.handshakeSaying(hidden + framed("message", name, "0") + confirmation("unsubscribe", name, 0))
		hub.obeys(nil)
		r := done()
		if r.err != nil {
			t.Fatal(r.err)
		}
		hub.says(framed("message", name, "1"))
		receives(t, r.s, name+" 1")
	})
}

// B10: what another client took for the reply of its SUNSUBSCRIBE, and then shifted all that followed.
func TestCaseB10AnErrorBehindAnUnsolicitedUnsubscribe(t *testing.T) {
	for _, first := range []bool{true, false} {
		sub(t, fmt.Sprintf("the push first %v", first), func(t *testing.T) {
			c, s, hub, _ := onAir(t, Options{}, "other")
			done := later(func() tuned { s, err := c.SSubscribe(background, "channel1", "channel2"); return tuned{s, err} })
			hub.obeys(nil)
			r := done()
			removing := later(func() error { return r.s.Remove(background, "channel1") })
			push, moved := ">3\r\n$12\r\nsunsubscribe\r\n$8\r\nchannel1\r\n:0\r\n", "-MOVED 5649 127.0.0.1:7001\r\n"
			if !first {
				push, moved = moved, push
			}
			hub.obeys(answers{"SUNSUBSCRIBE channel1": push + moved})
			removing()
			next := subscribing(c, "a")
			hub.obeys(answers{"SUBSCRIBE a": "-NOPERM no\r\n"})
			refusedWith(t, next().err, "NOPERM")
			next = subscribing(c, "b")
			hub.obeys(nil)
			if n := next(); n.err != nil {
				t.Fatal(n.err)
			} else {
				hub.says(framed("message", "b", "1") + framed("smessage", "channel2", "2"))
				receives(t, n.s, "b 1")
				receives(t, r.s, "channel2 2")
			}
			if d := s.dialled(); len(d) != 2 || slices.Contains(d, "127.0.0.1:7001") {
				t.Errorf("dialled %v", d)
			}
		})
	}
}

// B7: read buffers of any size, on the way through a handoff.
func TestCaseB7ReadsOfAnySize(t *testing.T) {
	for _, size := range []int{1, 2, 7, 16, 35} {
		sub(t, strconv.Itoa(size), func(t *testing.T) {
			s := newStage(t, nil, batontest.Chunk(size))
			e := tune(t, s.c, "aaaaaa", "b")
			for i := range 20 {
				if i == 10 {
					s.move(1)
				}
				if err := s.c.Do(background, "PUBLISH", "aaaaaa", i+1).Err(); err != nil {
					t.Error(err)
				}
				time.Sleep(20 * time.Millisecond)
			}
			if missed, repeated := e.judge("aaaaaa", 0, 20); len(missed)+len(repeated)+e.gaps() > 0 {
				t.Errorf("missed %v, repeated %v, %d gaps", missed, repeated, e.gaps())
			}
		})
	}
}

// A server that unsubscribes unasked, as one does when a slot or a right has gone, is asked again, and the gap is told.
func TestAnUnsolicitedUnsubscribe(t *testing.T) {
	for verb, subscribe := range map[string]func(*Client, context.Context, ...string) (*Subscription, error){
		"SUBSCRIBE": (*Client).Subscribe, "PSUBSCRIBE": (*Client).PSubscribe, "SSUBSCRIBE": (*Client).SSubscribe,
	} {
		off := strings.ToLower(strings.TrimSuffix(verb, "SUBSCRIBE") + "UNSUBSCRIBE")
		message := func(name, payload string) string {
			switch verb {
			case "PSUBSCRIBE":
				return framed("pmessage", name, name, payload)
			case "SSUBSCRIBE":
				return framed("smessage", name, payload)
			}
			return framed("message", name, payload)
		}
		as := func(name, payload string) string {
			if verb == "PSUBSCRIBE" {
				name += ">" + name
			}
			return name + " " + payload
		}
		start := func(t *testing.T) (hub *peer, one, two *Subscription) {
			c, _, hub, _ := onAir(t, Options{}, "other")
			var got []*Subscription
			for _, names := range [][]string{{"a", "b"}, {"b"}} {
				done := later(func() tuned { s, err := subscribe(c, background, names...); return tuned{s, err} })
				hub.obeys(nil)
				got = append(got, done().s)
			}
			hub.says(message("a", "1") + message("b", "1") + confirmation(off, "a", 1))
			return hub, got[0], got[1]
		}
		sub(t, verb+", confirmed again", func(t *testing.T) {
			hub, one, two := start(t)
			if got := wordsOf(hub.obeys(nil), verb); !slices.Equal(got, []string{"a"}) {
				t.Errorf("%q were subscribed again", got)
			}
			hub.says(message("a", "5") + message("b", "2"))
			receives(t, one, as("a", "1"), as("b", "1"), "gap -1", as("a", "5"), as("b", "2"))
			receives(t, two, as("b", "1"), as("b", "2"))
			receivesNothing(t, one)
		})
		sub(t, verb+", refused", func(t *testing.T) {
			hub, one, two := start(t)
			commands := hub.obeys(answers{verb + " a": "-NOPERM no\r\n"})
			if got := wordsOf(commands, verb); !slices.Equal(got, []string{"a"}) {
				t.Errorf("%q were subscribed again", got)
			}
			e := listen(one)
			e.refused(t, "NOPERM")
			hub.says(message("b", "2"))
			receives(t, two, as("b", "1"), as("b", "2"))
			if heard, _ := e.all(); !slices.Contains(heard, as("a", "1")) {
				t.Errorf("heard %q, want what was queued before", heard)
			}
		})
	}
}

// --- slow subscribers (G6) ---

func TestAFullQueueDropsAndSaysHowMany(t *testing.T) {
	for _, x := range []struct {
		name      string
		published []int // in turn,
		taken     []int // and taken after each
		want      []string
	}{
		{"as many as there is room", []int{3}, []int{9}, []string{"1", "2", "3"}},
		{"one more", []int{4}, []int{9}, []string{"1", "2", "3", "gap 1"}},
		{"many more, and more after", []int{9, 2}, []int{9, 9}, []string{"1", "2", "3", "gap 6", "10", "11"}},
		{"a gap that grows", []int{4, 5}, []int{0, 9}, []string{"1", "2", "3", "gap 6"}},
		{"several gaps", []int{5, 5, 5}, []int{9, 9, 9}, []string{"1", "2", "3", "gap 2", "6", "7", "8", "gap 2", "11", "12", "13", "gap 2"}},
	} {
		sub(t, x.name, func(t *testing.T) {
			r, c := newRadio(t, func(o *Options) { o.MaxMessages = 3 })
			s, err := c.Subscribe(background, "a")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, n := range x.published {
				for range n {
					r.publish("a")
				}
				synctest.Wait()
				for range x.taken[i] {
					ctx, cancel := contextFor(time.Millisecond)
					m, err := s.Receive(ctx)
					cancel()
					var gap *GapError
					switch {
					case errors.As(err, &gap) && errors.Is(err, ErrGap):
						got = append(got, "gap "+strconv.Itoa(gap.Missed))
					case err == nil:
						got = append(got, string(m.Payload))
					}
				}
			}
			if !slices.Equal(got, x.want) {
				t.Errorf("received %q, want %q", got, x.want)
			}
		})
	}
}

func TestAGapSaysHowMany(t *testing.T) {
	for missed, want := range map[int]string{-1: "baton: messages were missed", 3: "baton: messages were missed: 3"} {
		if err := error(&GapError{missed}); err.Error() != want || !errors.Is(err, ErrGap) {
			t.Errorf("%d: %v", missed, err)
		}
	}
}

// Whatever is taken when, a gap stands where the messages are missing and says how many they are.
func TestGapsStandInTheirPlace(t *testing.T) {
	for room := 1; room <= 5; room++ {
		for take := 1; take <= 3; take++ {
			bubble(t, func(t *testing.T) {
				r, c := newRadio(t, func(o *Options) { o.MaxMessages = room })
				s, err := c.Subscribe(background, "a")
				if err != nil {
					t.Fatal(err)
				}
				last, gaps := 0, 0
				receive := func() bool {
					ctx, cancel := contextFor(time.Millisecond)
					defer cancel()
					m, err := s.Receive(ctx)
					var gap *GapError
					switch {
					case errors.As(err, &gap):
						if gap.Missed < 1 {
							t.Errorf("room for %d, taking %d: a gap of %d", room, take, gap.Missed)
						}
						last, gaps = last+gap.Missed, gaps+1
					case err != nil:
						return false
					default:
						n, _ := strconv.Atoi(string(m.Payload))
						if n != last+1 {
							t.Errorf("room for %d, taking %d: %d came after %d", room, take, n, last)
						}
						last = n
					}
					return true
				}
				for i := range 60 {
					for range 1 + i%4 {
						r.publish("a")
					}
					synctest.Wait()
					for range take {
						receive()
					}
				}
				for receive() {
				}
				if r.mu.Lock(); last != r.aired["a"] || gaps == 0 && room < 4 && take == 1 {
					t.Errorf("room for %d, taking %d: %d of %d, %d gaps", room, take, last, r.aired["a"], gaps)
				}
				r.mu.Unlock()
			})
		}
	}
}

// A gap of which nobody knows how long it is, next to one that was counted, is one gap, of unknown length.
func TestGapsNextToEachOtherAreOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.MaxMessages = 2 })
		s, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			r.publish("a")
		}
		synctest.Wait()
		r.hub().kill()
		time.Sleep(time.Second)
		receives(t, s, "a 1", "a 2", "gap -1")
		receivesNothing(t, s)
		r.publish("a")
		receives(t, s, "a 6")
	})
}

// TestCaseG6ASlowSubscriberStallsNobody: neither the reader, nor other subscriptions, nor commands, nor a handoff.
func TestCaseG6ASlowSubscriberStallsNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		slow, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		quick := tune(t, c, "a")
		old := r.hub()
		for i := range 3000 {
			for range 10 {
				r.publish("a")
			}
			if i == 1000 {
				old.move(1, 1, addrB)
			}
			if i%100 == 99 {
				start := time.Now()
				if err := c.Do(background, "SET", "k", "v").Err(); err != nil || time.Since(start) != 0 {
					t.Errorf("a command ended with %v after %v", err, time.Since(start))
				}
				synctest.Wait()
				for _, l := range r.tuned() {
					r.set(func() {
						if len(l.out) > 0 {
							t.Errorf("%d messages wait to be read", len(l.out))
						}
					})
				}
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if h := r.hub(); h.addr != addrB || c.Stats().Handoffs != 1 {
			t.Errorf("subscribed at %s after %d handoffs", h.addr, c.Stats().Handoffs)
		}
		if missed, repeated := quick.judge("a", 0, 30000); len(missed)+len(repeated)+quick.gaps() > 0 {
			t.Errorf("another subscriber missed %d, was repeated %d, and had %d gaps", len(missed), len(repeated), quick.gaps())
		}
		for n := 1; n <= 4096; n++ {
			if m, err := slow.Receive(background); err != nil || string(m.Payload) != strconv.Itoa(n) {
				t.Fatalf("message %d is %q, %v", n, m.Payload, err)
			}
		}
		receives(t, slow, fmt.Sprintf("gap %d", 30000-4096))
		r.publish("a")
		receives(t, slow, "a 30001")
	})
}

func TestConcurrentReceivers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		s, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(background)
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			seen = map[string]int{}
		)
		for range 8 {
			wg.Go(func() {
				for last := 0; ; {
					m, err := s.Receive(ctx)
					if err != nil {
						return
					}
					n, _ := strconv.Atoi(string(m.Payload))
					if n <= last {
						t.Errorf("one receiver got %d after %d", n, last)
					}
					last = n
					mu.Lock()
					seen[string(m.Payload)]++
					mu.Unlock()
				}
			})
		}
		for i := range 1000 {
			if r.publish("a"); i%7 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		for i := range 1000 {
			if n := seen[strconv.Itoa(i+1)]; n != 1 {
				t.Errorf("message %d was received %d times", i+1, n)
			}
		}
	})
}

// As many as wait are woken as messages come, also if they come together.
func TestEveryReceiverIsWoken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		s, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		var woken [8]func() error
		for i := range woken {
			woken[i] = later(func() error {
				ctx, cancel := contextFor(time.Minute)
				defer cancel()
				_, err := s.Receive(ctx)
				return err
			})
		}
		synctest.Wait()
		for range woken {
			r.say("a", "x")
		}
		for i := range woken {
			if err := woken[i](); err != nil {
				t.Errorf("receiver %d: %v", i, err)
			}
		}
		for i := range woken {
			woken[i] = later(func() error { _, err := s.Receive(background); return err })
		}
		synctest.Wait()
		s.Close()
		for i := range woken {
			if err := woken[i](); !errors.Is(err, ErrClosed) {
				t.Errorf("receiver %d of a subscription that is closed: %v", i, err)
			}
		}
	})
}

func TestNothingIsKeptOfWhatWasReceived(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		s, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		var received atomic.Int64
		go func() {
			for range s.All(background) {
				received.Add(1)
			}
		}()
		heap := func() uint64 {
			synctest.Wait()
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before, payload := heap(), strings.Repeat("x", 1<<10)
		for range 100 {
			for range 100 {
				r.say("a", payload)
			}
			synctest.Wait()
		}
		if after := heap(); after > before+4<<20 || received.Load() != 10_000 {
			t.Errorf("after %d messages of a KiB the heap has gone from %d KiB to %d", received.Load(), before>>10, after>>10)
		}
	})
}

// A Receive that ends by its context, in the moment in which a message comes, has taken it or left it.
func TestAReceiveThatEndsTakesNothingWithIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		s, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		const messages = 500
		go func() {
			for range messages {
				time.Sleep(time.Millisecond)
				r.publish("a")
			}
		}()
		ended := 0
		for want := 1; want <= messages; {
			ctx, cancel := contextFor(time.Millisecond)
			m, err := s.Receive(ctx)
			cancel()
			switch {
			case err == nil && string(m.Payload) == strconv.Itoa(want):
				want++
			case errors.Is(err, context.DeadlineExceeded) && ended < 2*messages:
				ended++
			default:
				t.Fatalf("received %q, %v, want %d", m.Payload, err, want)
			}
		}
		ctx, cancel := context.WithCancel(background)
		cancel()
		if _, err := s.Receive(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Receive with a context that has ended: %v", err)
		}
	})
}

func TestAPayloadBelongsToItsReceiver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		var all []*Subscription
		for range 2 {
			s, err := c.Subscribe(background, "a")
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		var kept [][]byte
		for i := range 100 {
			r.say("a", strings.Repeat(strconv.Itoa(i%10), 100))
			m, err := all[0].Receive(background)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, m.Payload)
			_ = append(m.Payload, "more"...)
			for j := range m.Payload {
				m.Payload[j]++
			}
		}
		for i, p := range kept {
			if want := strings.Repeat(string(byte('1'+i%10)), 100); string(p) != want {
				t.Fatalf("payload %d became %q", i, p)
			}
		}
		for i := range 100 {
			if m, err := all[1].Receive(background); err != nil || string(m.Payload) != strings.Repeat(strconv.Itoa(i%10), 100) {
				t.Fatalf("another subscriber received %q, %v", m.Payload, err)
			}
		}
	})
}

// --- All ---

func TestAll(t *testing.T) {
	start := func(t *testing.T) (*radio, *Client, *Subscription) {
		r, c := newRadio(t, func(o *Options) { o.MaxMessages = 3 })
		s, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		return r, c, s
	}
	// yields collects what All yields until it ends, or until it has yielded as many as limit.
	yields := func(ctx context.Context, s *Subscription, limit int) (got []string, last error) {
		for m, err := range s.All(ctx) {
			var gap *GapError
			switch {
			case last != nil:
				return append(got, "after "+last.Error()), last
			case errors.As(err, &gap):
				got = append(got, "gap "+strconv.Itoa(gap.Missed))
			case err != nil:
				last = err
			default:
				got = append(got, string(m.Payload))
			}
			if len(got) == limit {
				break
			}
		}
		return got, last
	}
	is := func(t *testing.T, got []string, err error, cause error, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) || !errors.Is(err, cause) || (err == nil) != (cause == nil) {
			t.Errorf("it yielded %q, %v, want %q, %v", got, err, want, cause)
		}
	}
	sub(t, "yields, gaps too, and stops at break", func(t *testing.T) {
		r, _, s := start(t)
		for range 5 {
			r.publish("a")
		}
		synctest.Wait()
		got, err := yields(background, s, 1)
		is(t, got, err, nil, "1")
		got, err = yields(background, s, 3)
		is(t, got, err, nil, "2", "3", "gap 2")
		r.publish("a")
		got, err = yields(background, s, 1)
		is(t, got, err, nil, "6")
	})
	sub(t, "ends with ctx", func(t *testing.T) {
		r, _, s := start(t)
		r.publish("a")
		ctx, cancel := contextFor(time.Second)
		defer cancel()
		begin := time.Now()
		got, err := yields(ctx, s, 9)
		is(t, got, err, context.DeadlineExceeded, "1")
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it took %v", took)
		}
		r.publish("a")
		receives(t, s, "a 2")
	})
	for name, end := range map[string]func(*Client, *Subscription) error{
		"ends with Close":               func(_ *Client, s *Subscription) error { return s.Close() },
		"ends with Close, the client's": func(c *Client, _ *Subscription) error { return c.Close() },
	} {
		sub(t, name, func(t *testing.T) {
			r, c, s := start(t)
			r.publish("a")
			result := later(func() tuned {
				got, err := yields(background, s, 9)
				is(t, got, err, ErrClosed, "1")
				return tuned{}
			})
			time.Sleep(time.Second)
			if err := end(c, s); err != nil {
				t.Error(err)
			}
			result()
		})
	}
	sub(t, "goes on across a loss, and ends with a refusal", func(t *testing.T) {
		r, _, s := start(t)
		result := later(func() tuned {
			got, err := yields(background, s, 9)
			refusedWith(t, err, "NOPERM")
			is(t, got, nil, nil, "1", "gap -1", "2", "3")
			return tuned{}
		})
		r.publish("a")
		synctest.Wait()
		r.hub().kill()
		time.Sleep(time.Second)
		r.publish("a", "a")
		synctest.Wait()
		r.set(func() { r.denied["a"] = "NOPERM no" })
		r.hub().kill()
		result()
	})
}

// --- loss without notice ---

// TestCaseF5ALossIsToldOnce, whatever becomes of the first attempts to come back.
func TestCaseF5ALossIsToldOnce(t *testing.T) {
	for name, world := range map[string]func(r *radio) (again func()){
		"at once":              func(r *radio) func() { return func() {} },
		"after failed redials": func(r *radio) func() { r.sick[""] = true; return func() { clear(r.sick) } },
		"after stalled handshakes": func(r *radio) func() {
			r.wire = func(string) (time.Duration, time.Duration) { return time.Hour, 0 }
			return func() { r.wire = nil }
		},
	} {
		sub(t, name, func(t *testing.T) {
			r, c := newRadio(t, nil)
			one, two := tune(t, c, "a", "b"), tune(t, c, "b")
			p, err := c.PSubscribe(background, "a*")
			if err != nil {
				t.Fatal(err)
			}
			s, err := c.SSubscribe(background, "s")
			if err != nil {
				t.Fatal(err)
			}
			pattern, shard := listen(p), listen(s)
			all := []string{"a", "b", "s:s"}
			r.publish(all...)
			synctest.Wait()
			old := r.hub()
			topics := r.on(old)
			var again func()
			r.set(func() { again = world(r) })
			old.kill()
			r.publish(all...)
			time.Sleep(20 * time.Second)
			r.set(again)
			time.Sleep(20 * time.Second)
			if got := r.on(r.hub()); got != topics {
				t.Errorf("subscribed to %q again, want %q", got, topics)
			}
			one.hears(t, "a 1", "b 1", "gap -1") // told before there is a message, too
			r.publish(all...)
			first := map[bool]string{true: "2", false: "3"}[false]
			one.hears(t, "a 1", "b 1", "gap -1", "a "+first, "b "+first)
			two.hears(t, "b 1", "gap -1", "b "+first)
			pattern.hears(t, "a*>a 1", "gap -1", "a*>a "+first)
			shard.hears(t, "s 1", "gap -1", "s "+first)
			if st := c.Stats(); st.Reconnects != 1 {
				t.Errorf("%d reconnects", st.Reconnects)
			}
		})
	}
}

// Lost again at each step of the way back.
func TestCaseF5LostAgainWhileItResubscribes(t *testing.T) {
	for at := range 8 {
		for _, times := range []int{1, 3} {
			sub(t, fmt.Sprintf("at step %d, %d times", at, times), func(t *testing.T) {
				r, c := newRadio(t, nil)
				one, two := tune(t, c, "a", "b"), tune(t, c, "b", "c")
				r.publish("a", "b", "c")
				synctest.Wait()
				old, n, deaths := r.hub(), 0, 0
				var counts sync.Mutex // of the two: there is a hook for each line
				r.set(func() {
					r.hook = func(s airStep) {
						r.publish("a", "b", "c") // some of it is heard before the connection is lost again, and never counts
						counts.Lock()
						defer counts.Unlock()
						n++
						if n > at && deaths < times && s.command != "SET" && !(s.after && s.command == "PING") {
							n, deaths = 0, deaths+1
							s.l.kill()
						}
					}
				})
				old.kill()
				time.Sleep(time.Minute)
				r.set(func() { r.hook = nil })
				r.publish("a", "b", "c")
				time.Sleep(time.Second)
				if deaths == 0 {
					t.Skip("there are not so many steps")
				}
				for e, topics := range map[*ear][]string{one: {"a", "b"}, two: {"b", "c"}} {
					heard, _ := e.all()
					if n := e.gaps(); n != 1 || len(heard) < 5 || heard[2] != "gap -1" {
						t.Errorf("heard %q, want one gap, behind what came before the loss", heard)
					}
					for _, topic := range topics {
						if missed, repeated := e.judge(topic, 0, r.aired[topic]); len(missed)+len(repeated) > 0 {
							t.Errorf("of %s missed %v, repeated %v: %q", topic, missed, repeated, heard)
						}
					}
				}
			})
		}
	}
}

func TestWhatWasQueuedBeforeALossComesBeforeTheGap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		s, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		r.publish("a", "a")
		synctest.Wait()
		r.hub().kill()
		time.Sleep(time.Second)
		r.publish("a")
		synctest.Wait()
		r.hub().kill()
		time.Sleep(time.Second)
		r.publish("a")
		synctest.Wait()
		receives(t, s, "a 1", "a 2", "gap -1", "a 3", "gap -1", "a 4")
		receivesNothing(t, s)
	})
}

func TestRefusedAfterALoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		one, two, three := tune(t, c, "a", "b"), tune(t, c, "b"), tune(t, c, "a")
		r.publish("a", "b")
		synctest.Wait()
		r.set(func() { r.denied["a"] = "NOPERM no" })
		r.hub().kill()
		time.Sleep(time.Second)
		r.publish("a", "b")
		synctest.Wait()
		if got := r.on(r.hub()); got != "b" {
			t.Errorf("subscribed to %q", got)
		}
		one.refused(t, "NOPERM")
		three.refused(t, "NOPERM")
		two.hears(t, "b 1", "gap -1", "b 2")
		if err := one.sub.Add(background, "c"); err == nil {
			t.Error("a subscription that has failed takes another channel")
		}
		if err := one.sub.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	sub(t, "what is queued comes first", func(t *testing.T) {
		r, c := newRadio(t, nil)
		s, err := c.Subscribe(background, "a")
		if err != nil {
			t.Fatal(err)
		}
		r.publish("a", "a")
		synctest.Wait()
		r.set(func() { r.denied["a"] = "NOPERM no" })
		r.hub().kill()
		time.Sleep(time.Second)
		receives(t, s, "a 1", "a 2")
		e := listen(s)
		e.refused(t, "NOPERM")
		_, err = s.Receive(background)
		refusedWith(t, err, "NOPERM")
	})
}

// F4: with nowhere to go to the client says so, and comes back when there is.
func TestCaseF4NoConnectionIsNoQuietState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		j := &journal{}
		r, c := newRadio(t, func(o *Options) { o.OnEvent = j.add })
		e := tune(t, c, "a")
		r.set(func() { r.sick[""] = true; r.killLocked() })
		time.Sleep(time.Minute)
		if lost, failed := j.count(EventLost), j.count(EventDialFailed); lost != 2 || failed < 60 {
			t.Errorf("%d losses and %d failed dials were told in a minute without a connection", lost, failed)
		}
		if n := c.Stats().Conns; n != 0 {
			t.Errorf("%d connections", n)
		}
		r.set(func() { clear(r.sick) })
		time.Sleep(2 * time.Second)
		r.publish("a")
		e.hears(t, "gap -1", "a 1")
		if n := j.count(EventConnected); n != 2 {
			t.Errorf("%d times connected again", n)
		}
	})
}

// E7, E3, E2: on each connection AUTH comes before SUBSCRIBE, with what was asked for at that dial, and never again.
func TestCaseE2E3E7CredentialsOfSubscriptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var (
			mu       sync.Mutex
			said     = map[int][]string{} // by connection
			asked    int
			password = "secret-0"
		)
		a := memoryServer(t, batontest.WithUser("app", "secret-0"), batontest.OnCommand(func(conn int, args []string) {
			mu.Lock()
			defer mu.Unlock()
			said[conn] = append(said[conn], strings.Join(args, " "))
		}))
		b := sibling(t, a)
		c := dialMemory(t, a, func(o *Options) {
			o.Credentials = func(context.Context) (string, string, error) {
				mu.Lock()
				defer mu.Unlock()
				asked++
				return "app", password, nil
			}
		})
		rotate := func() {
			mu.Lock()
			defer mu.Unlock()
			password += "x"
			a.SetUser("app", password)
		}
		e := tune(t, c, "a")
		publish := func(n int) {
			t.Helper()
			if err := c.Do(background, "PUBLISH", "a", n).Err(); err != nil {
				t.Error(err)
			}
		}
		publish(1)
		synctest.Wait()
		rotate()
		a.Cut()
		time.Sleep(time.Second)
		publish(2)
		rotate() // and the connections live on
		time.Sleep(time.Second)
		publish(3)
		a.Move(b.Addr(), time.Second)
		time.Sleep(2 * time.Second)
		publish(4)
		e.hears(t, "a 1", "gap -1", "a 2", "a 3", "a 4")
		mu.Lock()
		defer mu.Unlock()
		if asked != len(said) || asked != 6 {
			t.Errorf("credentials were asked for %d times for %d connections, want 6", asked, len(said))
		}
		subscribed := 0
		for _, commands := range said {
			if !strings.HasPrefix(commands[0], "HELLO 3 AUTH app secret-") {
				t.Errorf("a connection began with %q", commands[0])
			}
			for _, command := range commands[1:] {
				if strings.HasPrefix(command, "AUTH") || strings.HasPrefix(command, "HELLO") {
					t.Errorf("%q on a live connection", command)
				}
				if command == "SUBSCRIBE a" {
					subscribed++
				}
			}
		}
		if subscribed != 3 {
			t.Errorf("subscribed on %d connections, want 3", subscribed)
		}
	})
}

// --- idle, silent, old ---

func TestAnIdleSubscriptionIsKeptAlive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.KeepAlive, o.Timeout = 10*time.Second, time.Second })
		e := tune(t, c, "a")
		hub := r.hub()
		var pings atomic.Int64
		r.set(func() {
			r.hook = func(s airStep) {
				if s.l == hub && s.command == "PING" && !s.after {
					pings.Add(1)
				}
			}
		})
		time.Sleep(time.Minute)
		if n := pings.Load(); n < 4 || n > 6 {
			t.Errorf("%d PINGs in a minute of silence, with one every ten seconds", n)
		}
		for range 60 {
			r.publish("a")
			time.Sleep(time.Second)
		}
		if n := pings.Load(); n > 7 {
			t.Errorf("%d PINGs, and a message came every second", n)
		}
		if e.gaps() > 0 || r.hub() != hub {
			t.Error("the connection was lost")
		}
	})
}

func TestASilentHostIsNoticedAndTheGapTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.KeepAlive, o.Timeout = 10*time.Second, time.Second })
		e := tune(t, c, "a")
		r.publish("a")
		synctest.Wait()
		r.hub().freeze()
		start := time.Now()
		r.publish("a")
		for e.gaps() == 0 && time.Since(start) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(start); took < 11*time.Second || took > 16*time.Second {
			t.Errorf("it was noticed after %v, with a PING after 10 s and 2 s for the answer", took)
		}
		r.publish("a")
		e.hears(t, "a 1", "gap -1", "a 3")
	})
	sub(t, "with a call under way", func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.Timeout = time.Second })
		e := tune(t, c, "a")
		r.hub().freeze()
		if err := e.sub.Add(background, "b"); !errors.Is(err, ErrTimeout) {
			t.Errorf("Add: %v", err)
		}
		time.Sleep(5 * time.Second)
		r.publish("a", "b")
		e.hears(t, "gap -1", "a 1")
	})
}

func TestSubscriptionsGrowOld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, func(o *Options) { o.MaxAge = 10 * time.Second })
		e := tune(t, c, "a", "b")
		for range 65_000 / 50 {
			r.publish("a", "b")
			time.Sleep(50 * time.Millisecond)
		}
		if n := len(r.dialled()); n < 2+2*5 || n > 2+2*8 {
			t.Errorf("%d dials of two connections in 65 s, with a MaxAge of ten", n)
		}
		for _, topic := range []string{"a", "b"} {
			if missed, repeated := e.judge(topic, 0, 1300); len(missed)+len(repeated)+e.gaps() > 0 {
				t.Errorf("of %s missed %v, repeated %v, %d gaps", topic, missed, repeated, e.gaps())
			}
		}
	})
}

// --- what is seen of it, and what is left ---

func TestStatsOfSubscriptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		if n := c.Stats().Conns; n != 1 {
			t.Errorf("%d connections before the first subscription", n)
		}
		e := tune(t, c, "a")
		if st := c.Stats(); st.Conns != 2 || st.InFlight != 0 || st.Backlog != 0 || st.Failed != 0 {
			t.Errorf("when subscribed: %+v", st)
		}
		r.hub().move(1, 1, addrB)
		time.Sleep(5 * time.Second)
		if st := c.Stats(); st.Conns != 2 || st.Handoffs != 1 || st.Reconnects != 0 || st.InFlight != 0 || st.Backlog != 0 || st.Failed != 0 {
			t.Errorf("after a handoff: %+v", st)
		} else {
			checkTimeline(t, st.LastHandoff)
		}
		r.hub().kill()
		time.Sleep(time.Second)
		if st := c.Stats(); st.Conns != 2 || st.Reconnects != 1 || st.InFlight != 0 || st.Backlog != 0 {
			t.Errorf("after a loss: %+v", st)
		}
		r.publish("a")
		e.hears(t, "gap -1", "a 1")
	})
}

func TestSubscriptionsLeaveNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	s := batontest.NewServer()
	for _, closes := range []bool{true, false} {
		c, err := Dial(background, Options{Addr: s.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		var all []*ear
		for i := range 20 {
			all = append(all, tune(t, c, "a", strconv.Itoa(i)))
		}
		if err := c.Do(background, "PUBLISH", "a", "1").Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "every subscriber hears it", func() bool {
			return !slices.ContainsFunc(all, func(e *ear) bool { heard, _ := e.all(); return len(heard) == 0 })
		})
		for _, e := range all {
			if closes {
				e.sub.Close()
			}
		}
		c.Close()
		eventually(t, "every subscriber has ended", func() bool {
			return !slices.ContainsFunc(all, func(e *ear) bool { _, err := e.all(); return err == nil })
		})
	}
	s.Close()
	settled(t, before)
}
