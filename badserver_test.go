package baton

// Servers that break the protocol, by mistake or on purpose, on one connection after the other. What each of them costs is an error that
// says what was wrong, memory for what was really sent, and dials with back-off; nobody reads what is not his, the other connections of
// the client do not notice, and when the server is good again so is the client. What no client can notice is said where it is tested.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// rogue is a server that is bad on every connection but the first two, until it is good. Its client has two for ordinary commands: the
// second is sound throughout, the first is lost at the beginning and dialled again and again.
type rogue struct {
	*script
	c    *Client
	book *dialBook
	j    *journal
	good atomic.Bool
	lost time.Time // when the first connection was
}

const roguePassword = "hunter2-and-more"

// newRogue sets that scene: bad is what the server does on a connection.
func newRogue(t *testing.T, o Options, bad func(p *peer)) *rogue {
	t.Helper()
	t.Cleanup(func() { time.Sleep(time.Second) }) // so that whoever says something notices that nobody listens
	r := &rogue{script: newScript(t), book: &dialBook{}, j: &journal{}}
	var dials atomic.Int32
	first := make(chan *peer, 1)
	r.attend(func(p *peer) {
		switch n := dials.Add(1); {
		case n > 2 && !r.good.Load():
			bad(p)
			p.hangsOn()
		case n == 1:
			first <- p
			fallthrough
		default:
			p.serve(answers(nil).to)
		}
	})
	o.Addr, o.Dialer, o.OnEvent, o.Conns, o.KeepAlive = addrA, r.book.over(r.dial), r.j.add, 2, -1
	r.c = dialOptions(t, o)
	time.Sleep(5 * time.Second) // what lived for so long is dialled again at once
	r.lost = time.Now()
	(<-first).Close()
	synctest.Wait()
	return r
}

// serves says that both connections answer, each what it was asked.
func (r *rogue) serves() {
	r.t.Helper()
	for i := range 4 {
		want := fmt.Sprint("after it all ", i)
		if got := textOf(r.c.Do(background, "ECHO", want)); got != want {
			r.t.Errorf("%q is answered with %q", want, got)
		}
	}
}

// undisturbed says that the sound connection answers at once. Every second command goes there; the others are given up, never sent.
func (r *rogue) undisturbed() {
	r.t.Helper()
	done := 0
	for i := range 4 {
		want := fmt.Sprint("meanwhile ", i)
		ctx, cancel := contextFor(time.Millisecond)
		switch got, err := r.c.Do(ctx, "ECHO", want).Text(); {
		case err == nil && got == want:
			done++
		case err == nil || MaybeExecuted(err):
			r.t.Errorf("%q is answered with %q, %v", want, got, err)
		}
		cancel()
	}
	if done != 2 {
		r.t.Errorf("%d of 4 commands were answered meanwhile, want the two of the sound connection", done)
	}
}

// backsOff says of the redials so far that the first was made at once and the others ever later, up to a second after the one before and
// what that took.
func (r *rogue) backsOff(took time.Duration) {
	r.t.Helper()
	at := r.book.when()[2:]
	if first := at[0].Sub(r.lost); first != 0 {
		r.t.Errorf("the first redial came after %v, want at once", first)
	}
	want := 50 * time.Millisecond
	for i := 1; i < len(at); i++ {
		if pause := at[i].Sub(at[i-1]); pause < want*3/4 || pause > want+took {
			r.t.Errorf("redial %d came %v after the one before, want %v less up to a quarter, and at most %v for that", i, pause, want, took)
		}
		want = min(2*want, time.Second)
	}
}

// explained says that err tells in a few words where and what was wrong, and nothing that is secret.
func explained(t *testing.T, err error, words ...string) {
	t.Helper()
	text := fmt.Sprint(err)
	for _, word := range append(words, addrA) {
		if !strings.Contains(text, word) {
			t.Errorf("the error does not say %q: %.500s", word, text)
		}
	}
	if len(text) > 400 || strings.Contains(text, roguePassword[:8]) || strings.Count(text, "baton: ") > 1 {
		t.Errorf("the error has %d bytes, says whose it is twice, or tells a password: %.500s", len(text), text)
	}
}

// --- the handshake ---

// says behaves well but for what it answers to commands that begin with step.
func answering(step, raw string) func(p *peer) {
	return func(p *peer) { p.serve(answers{step: raw}.to) }
}

// wrongTypes are answers that no step of a handshake has: not errors, which are refusals, and not statuses.
var wrongTypes = map[string]string{
	"integer": ":1\r\n", "array": "*1\r\n+OK\r\n", "map": "%1\r\n+a\r\n+b\r\n", "set": "~1\r\n+OK\r\n", "null": "_\r\n", "boolean": "#t\r\n", "float": ",1.5\r\n",
}

// badHandshakes are what a server does on a connection that is never ready, and what the error must say. What takes a while to be found
// out is given how long.
func badHandshakes() map[string]badHandshake {
	all := map[string]badHandshake{
		"hangs up at once":                   {func(p *peer) { p.Close() }, 0, []string{"HELLO"}},
		"is reset at once":                   {func(p *peer) { p.reset() }, 0, []string{"HELLO"}},
		"hangs up at HELLO":                  {answering("HELLO", hangUp), 0, []string{"HELLO", "EOF"}},
		"hangs up at PING":                   {answering("PING", hangUp), 0, []string{"PING", "EOF"}},
		"says a status when it accepts":      {before("+OK\r\n"), 0, []string{"HELLO"}},
		"says PONG when it accepts":          {before("+PONG\r\n"), 0, []string{"HELLO"}},
		"says null when it accepts":          {before("_\r\n"), 0, []string{"HELLO"}},
		"says an error when it accepts":      {before("-ERR what?\r\n"), 0, []string{"HELLO"}},
		"is full":                            {full, 0, []string{"HELLO", "max number of clients"}},
		"greets when it accepts":             {before(helloThree), 0, nil},
		"is no Redis":                        {answering("HELLO", "HTTP/1.1 400 Bad Request\r\n\r\n"), 0, []string{"HELLO", "HTTP/1.1"}},
		"speaks TLS":                         {answering("HELLO", "\x15\x03\x01\x00\x02\x02\x46"), 0, []string{"HELLO", `\x15\x03`}},
		"says garbage behind HELLO's answer": {answering("HELLO", helloThree+"\x00garbage\r\n"), 0, []string{"unknown type", "garbage"}},
		"says a line too many":               {answering("HELLO", helloThree+"\r\n"), 0, []string{"unknown type"}},
		"answers HELLO twice":                {answering("HELLO", helloThree+helloThree), 0, []string{"a reply that no command asked for"}},
		"answers PING twice":                 {answering("PING", "+PONG\r\n+PONG\r\n"), 0, []string{"a reply that no command asked for"}},
		"answers each command twice":         {twice, 0, []string{"a reply that no command asked for"}},
		"answers with a map without proto":   {answering("HELLO", "%1\r\n+server\r\n+redis\r\n"), 0, []string{"HELLO", "protocol"}},
		"answers with protocol 2^62":         {answering("HELLO", "%1\r\n+proto\r\n:4611686018427387904\r\n"), 0, []string{"HELLO", "protocol"}},
		"answers HELLO with a status":        {answering("HELLO", "+OK\r\n"), 0, []string{"HELLO", "status"}},
		"answers PING with another status":   {answering("PING", "+QUEUED\r\n"), 0, []string{"PING", "QUEUED"}},
		"answers PING with much":             {answering("PING", "$500000\r\n"+strings.Repeat("x", 500_000)+"\r\n"), 0, []string{"PING", "string"}},
		"repeats the password at PING":       {answering("PING", "+"+roguePassword+"\r\n"), 0, []string{"PING"}},
		"never answers HELLO":                {answering("HELLO", ""), 5 * time.Second, []string{"HELLO", "deadline"}},
		"never ends HELLO's answer":          {withoutEnd("%3\r\n+server\r\n+", "x"), 5 * time.Second, []string{"HELLO", "deadline"}},
		"pushes without end":                 {withoutEnd("", ">2\r\n$3\r\nfoo\r\n$1\r\nx\r\n"), 5 * time.Second, []string{"HELLO", "deadline"}},
		"announces without end":              {withoutEnd("", movingFrame(1, 15, addrB)), 5 * time.Second, []string{"HELLO", "deadline"}},
		"never ends a line":                  {answering("HELLO", "+"+strings.Repeat("x", 2<<20)), 0, []string{"HELLO", "reply of too many bytes"}},
		"never ends a length":                {answering("HELLO", "$"+strings.Repeat("1", 2<<20)), 0, []string{"HELLO", "reply of too many bytes"}},
		"announces too much":                 {answering("HELLO", "$100000000\r\n"), 0, []string{"HELLO", "length beyond the limit"}},
		"answers with 2^62 pairs":            {answering("HELLO", "%4611686018427387904\r\n"), 0, []string{"HELLO", "malformed length"}},
		"nests 100,000 arrays":               {answering("HELLO", strings.Repeat("*1\r\n", 100_000)), 0, []string{"HELLO", "nested"}},
		"nests 100,000 arrays in a push":     {answering("HELLO", ">1\r\n"+strings.Repeat("*1\r\n", 100_000)), 0, []string{"HELLO", "nested"}},
		"nests 100,000 attributes":           {answering("HELLO", strings.Repeat("|1\r\n", 100_000)), 0, []string{"HELLO", "nested"}},
	}
	for kind, raw := range wrongTypes {
		if kind != "array" && kind != "map" { // an array is protocol 2's map
			all["answers HELLO with "+kind] = badHandshake{answering("HELLO", raw), 0, []string{"HELLO", kind}}
		}
		for _, step := range []string{"CLIENT SETINFO LIB-NAME", "CLIENT SETINFO LIB-VER", "SELECT", "CLIENT MAINT_NOTIFICATIONS", "PING"} {
			all["answers "+step+" with "+kind] = badHandshake{answering(step, raw), 0, []string{step, kind}}
		}
		for _, step := range []string{"AUTH", "CLIENT SETNAME"} {
			a := answers{"HELLO": "-ERR unknown command 'HELLO'\r\n", step: raw}
			all["answers "+step+" of protocol 2 with "+kind] = badHandshake{func(p *peer) { p.serve(a.to) }, 0, []string{step, kind}}
		}
	}
	return all
}

type badHandshake struct {
	does  func(p *peer)
	takes time.Duration
	words []string
}

// before says something that nothing asked for, and then behaves well.
func before(raw string) func(p *peer) {
	return func(p *peer) { p.says(raw); p.serve(answers(nil).to) }
}

// full is what a server with too many clients does.
func full(p *peer) { p.says("-ERR max number of clients reached\r\n"); p.command(); p.Close() }

// twice gives every answer twice.
func twice(p *peer) {
	p.serve(func(command string) string { return strings.Repeat(answers(nil).to(command), 2) })
}

// withoutEnd says first, and then raw a thousand times in a tenth of a second, for as long as anybody listens.
func withoutEnd(first, raw string) func(p *peer) {
	return func(p *peer) {
		for p.says(first); ; {
			if _, err := io.WriteString(p.Conn, strings.Repeat(raw, 100)); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func TestBadServersInTheHandshake(t *testing.T) {
	o := Options{Username: "alice", Password: roguePassword, ClientName: "me", DB: 1, MaxReply: 1 << 20, Timeout: time.Hour}
	for name, x := range badHandshakes() {
		sub(t, name, func(t *testing.T) {
			r := newRogue(t, o, x.does)
			var waiting []<-chan Reply
			for i := range 6 {
				waiting = append(waiting, async(r.c, "ECHO", i))
			}
			for range 10 {
				r.undisturbed()
				time.Sleep(2 * time.Second)
			}
			r.backsOff(x.takes)
			dials := len(r.book.to()) - 2
			if most, least := 6+int(20*time.Second*4/3/(time.Second+x.takes)), 3; dials > most || dials < least {
				t.Errorf("%d redials in 20 s, want at most %d", dials, most)
			}
			failed := r.j.of(EventDialFailed)
			if len(failed) < dials-1 {
				t.Errorf("%d redials and %d failures were told", dials, len(failed))
			}
			for _, e := range failed[:min(len(failed), 3)] {
				explained(t, e.Err, x.words...)
			}
			r.good.Store(true)
			start := time.Now()
			for i, ch := range waiting {
				answered(t, ch, strconv.Itoa(i))
			}
			if took := time.Since(start); took > time.Second+x.takes {
				t.Errorf("it has been good for %v before it was used again", took)
			}
			r.serves()
			if st := r.c.Stats(); st.Reconnects != 1 || st.Conns != 2 || st.Failed > 20 || st.InFlight+st.Backlog != 0 {
				t.Errorf("in the end: %+v", st)
			}
		})
		sub(t, name+", and is the first", func(t *testing.T) {
			t.Cleanup(func() { time.Sleep(time.Second) })
			s, start := newScript(t), time.Now()
			s.attend(func(p *peer) { x.does(p); p.hangsOn() })
			first := o
			first.Addr, first.Dialer = addrA, s.dial
			c, err := Dial(background, first)
			if err == nil {
				c.Close()
				t.Fatal("it is taken for a good one")
			}
			explained(t, err, x.words...)
			if took := time.Since(start); took > x.takes || len(s.dialled()) != 1 {
				t.Errorf("it took %v and %d dials", took, len(s.dialled()))
			}
		})
	}
}

var _ = []any{context.Background, errors.Is, runtime.GC, slices.Clone[[]int]}
