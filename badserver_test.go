package baton

// Servers that break the protocol, by mistake or on purpose, on one connection after the other. What each of them costs is an error that
// says what was wrong, memory for what was really sent, and dials with back-off; nobody reads what is not his, the other connections of
// the client do not notice, and when the server is good again so is the client. What no client can notice is said where it is tested.

import (
	"errors"
	"fmt"
	"io"
	"runtime"

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
	if len(at) == 0 {
		r.t.Fatal("nothing was dialled again")
	}
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

// answering behaves well but for what it answers to commands that begin with step.
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
		"answers PING with much":             {answering("PING", "$500000\r\n"+strings.Repeat("x", 500_000)+"\r\n"), 0, []string{"PING", "xxx"}},
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

// --- a connection that was good ---

// badLengths are lengths that no server means, of values that have one. Where "-1" is protocol 2's null it is a reply like any other.
func badLengths() (all []string) {
	for _, n := range []string{"4611686018427387904", "9223372036854775807", "9223372036854775808", "18446744073709551616", "999999999999999999",
		"1000000000000000000000000000000", "2147483648", "-1", "-2", "-0", "-9223372036854775808", "+5", " 5", "5 ", "", "-", "0x5", "5.0", "1e3", "?"} {
		for _, tag := range "$=!*%~>|" {
			if raw := string(tag) + n + "\r\n"; raw != "$-1\r\n" && raw != "*-1\r\n" {
				all = append(all, raw)
			}
		}
	}
	return all
}

// lengthIsBad is what is said of them.
func lengthIsBad(t *testing.T, raw string, err error) {
	t.Helper()
	text := fmt.Sprint(err)
	if !strings.Contains(text, "malformed length") && !strings.Contains(text, "length beyond the limit") || !strings.Contains(text, strconv.Quote(raw[:min(len(raw)-1, 40)])) || len(text) > 400 {
		t.Errorf("%q: %.500s", raw, text)
	}
}

// TestBadServersWhenIdle: the handshake is good, and a little later every connection says what nobody asked for, or what means nothing.
func TestBadServersWhenIdle(t *testing.T) {
	const asked = "a reply that no command asked for"
	for name, x := range map[string]struct {
		raw   string
		words []string
	}{
		"a status":                          {"+stray\r\n", []string{asked, "stray", addrA}},
		"an error":                          {"-ERR Closing idle connection\r\n", []string{asked, "Closing idle", addrA}},
		"a string":                          {"$5\r\nstray\r\n", []string{asked, "stray", addrA}},
		"a long string":                     {"$500000\r\n" + strings.Repeat("x", 500_000) + "\r\n", []string{asked, "$500000", addrA}},
		"null":                              {"_\r\n", []string{asked, addrA}},
		"null of protocol 2":                {"$-1\r\n", []string{asked, addrA}},
		"null array of protocol 2":          {"*-1\r\n", []string{asked, addrA}},
		"a message of protocol 2":           {"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n", []string{asked, "message", addrA}},
		"a command":                         {string(command("PING")), []string{asked, "PING", addrA}},
		"a map":                             {helloThree, []string{asked, "server", addrA}},
		"a reply behind a push":             {">1\r\n+foo\r\n+stray\r\n", []string{asked, "stray", addrA}},
		"a reply before a push":             {"+stray\r\n>1\r\n+foo\r\n", []string{asked, "stray", addrA}},
		"a push in a push":                  {">2\r\n+foo\r\n>1\r\n+a\r\n", []string{"push inside another value"}},
		"a push in an array":                {"*1\r\n>1\r\n+a\r\n", []string{"push inside another value"}},
		"garbage":                           {"garbage\r\n", []string{"unknown type", "garbage"}},
		"zeros":                             {strings.Repeat("\x00", 1000), []string{"unknown type", `\x00`}},
		"a number that is none":             {":1x\r\n", []string{"malformed value", ":1x"}},
		"a boolean that is none":            {"#maybe\r\n", []string{"malformed value", "maybe"}},
		"a float that is none":              {",0x1p3\r\n", []string{"malformed value", "0x1p3"}},
		"a line that ends wrongly":          {"+a\n", []string{"line feed without carriage return", "+a"}},
		"a string that is longer than said": {"$3\r\nabcdef\r\n", []string{"string does not end where its length says"}},
		"a line without end":                {"+" + strings.Repeat("x", 2<<20), []string{"reply of too many bytes"}},
		"a number without end":              {":" + strings.Repeat("1", 2<<20), []string{"reply of too many bytes"}},
		"a length without end":              {"*" + strings.Repeat("0", 2<<20), []string{"reply of too many bytes"}},
		"100,000 arrays in each other":      {strings.Repeat("*1\r\n", 100_000), []string{"nested too deeply"}},
		"100,000 maps in each other":        {strings.Repeat("%1\r\n+a\r\n", 100_000), []string{"nested too deeply"}},
		"100,000 maps as keys":              {strings.Repeat("%1\r\n", 100_000), []string{"nested too deeply"}},
		"100,000 sets in each other":        {strings.Repeat("~1\r\n", 100_000), []string{"nested too deeply"}},
		"100,000 attributes in each other":  {strings.Repeat("|1\r\n", 100_000), []string{"nested too deeply"}},
		"100,000 arrays in a push":          {">1\r\n" + strings.Repeat("*1\r\n", 100_000), []string{"nested too deeply"}},
		"100,000 attributes in a row":       {strings.Repeat("|0\r\n", 300_000), []string{"reply of too many bytes"}},
	} {
		sub(t, name, func(t *testing.T) {
			r := newRogue(t, Options{MaxReply: 1 << 20}, func(p *peer) {
				p.handshake()
				time.Sleep(20 * time.Millisecond)
				p.says(x.raw)
			})
			time.Sleep(20 * time.Second)
			r.backsOff(20 * time.Millisecond)
			if dials := len(r.book.to()) - 2; dials > 6+20*4/3 {
				t.Errorf("%d redials in 20 s", dials)
			}
			lost := r.j.of(EventLost)
			if len(lost) < 10 {
				t.Fatalf("%d losses were told in 20 s", len(lost))
			}
			for _, e := range lost[1:4] {
				explained(t, fmt.Errorf("%s: %w", e.Addr, e.Err), x.words...)
			}
			r.good.Store(true)
			time.Sleep(2 * time.Second)
			r.serves()
			if st := r.c.Stats(); st.Conns != 2 || st.Failed != 0 || r.j.count(EventDialFailed) != 0 {
				t.Errorf("in the end: %+v", st)
			}
		})
	}
}

// TestBadServersForAReply: what is said in place of a reply, behind a good one, is the end of that connection alone. Who got his reply
// before keeps it, and who waits is told what came; the next connection answers each what he asks.
func TestBadServersForAReply(t *testing.T) {
	for _, raw := range badLengths() {
		sub(t, fmt.Sprintf("%q", raw), func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{Timeout: time.Hour})
			waiting := []<-chan Reply{async(c, "ECHO", "one"), async(c, "ECHO", "two"), async(c, "ECHO", "three")}
			p.expects("ECHO one", "ECHO two", "ECHO three")
			sent := "+one\r\n" + raw + strings.Repeat("x", 1000)
			took := allocated(func() {
				p.says(sent)
				answered(t, waiting[0], "one")
				for _, ch := range waiting[1:] {
					err := reply(t, ch).Err()
					if !MaybeExecuted(err) {
						t.Errorf("%v, and it was never sent", err)
					}
					lengthIsBad(t, raw, err)
				}
			})
			if most := uint64(1 << 20); took > most {
				t.Errorf("%d bytes were taken for %d, of which most never came", took, len(sent))
			}
			q := s.readyAt(addrA)
			go q.echo()
			for i := range 3 {
				if got := textOf(c.Do(background, "GET", i)); got != fmt.Sprint("GET ", i) {
					t.Errorf("GET %d is answered with %q", i, got)
				}
			}
			if !p.hungUp() || len(s.dialled()) != 2 {
				t.Errorf("dialled %v", s.dialled())
			}
		})
	}
	// Leading zeros are read for what they mean; where there are more than of any number, they are refused.
	for raw, want := range map[string]string{"$003\r\nabc\r\n": "abc", "$000000000000000003\r\nabc\r\n": "abc", "$0000000000000000003\r\nabc\r\n": "", ":0012\r\n": "12", ":+12\r\n": "12"} {
		sub(t, fmt.Sprintf("zeros, %q", raw), func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{})
			got := async(c, "GET", "k")
			behind := async(c, "GET", "behind")
			p.expects("GET k", "GET behind")
			p.says(raw + "+behind\r\n")
			r := reply(t, got)
			text, _ := r.Text()
			if n, err := r.Int64(); err == nil {
				text = strconv.FormatInt(n, 10)
			}
			if text != want || want == "" && !MaybeExecuted(r.Err()) {
				t.Errorf("%q, %v, want %q", text, r.Err(), want)
			}
			if got := textOf(reply(t, behind)); want != "" && got != "behind" {
				t.Errorf("what is behind it is %q", got)
			}
		})
	}
}

// --- memory ---

// kept is the memory in use.
func kept() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestAnnouncedAndNeverSent: lengths within all limits are believed, and cost what has come, and not what was announced. The connection is
// silent then, and ends like any other that is.
func TestAnnouncedAndNeverSent(t *testing.T) {
	for _, raw := range []string{"$536870000\r\nx", "=536870000\r\ntxt:", "!536870000\r\nERR ", "*16777216\r\n:1\r\n", "~16777216\r\n:1\r\n", "%8388607\r\n+a\r\n",
		">16777216\r\n+foo\r\n", "|8388607\r\n+a\r\n", strings.Repeat("*100000\r\n", 127) + "$500000000\r\nx"} {
		for _, inHandshake := range []bool{false, true} {
			sub(t, fmt.Sprintf("%.20q, in the handshake: %v", raw, inHandshake), func(t *testing.T) {
				s, j := newScript(t), &journal{}
				c, p := s.connect(Options{OnEvent: j.add, KeepAlive: -1})
				if inHandshake {
					p.Close()
					p = s.accept()
					p.expects("HELLO 3")
				}
				waiting := async(c, "GET", "k")
				start, before := time.Now(), kept()
				took := allocated(func() {
					p.says(raw)
					failedWith(t, "what waits for it", waiting, ErrTimeout, !inHandshake)
				})
				if most := 2 << 20; int(took) > most || kept()-before > most {
					t.Errorf("%d bytes were taken, and %d are kept, for %d that came", took, kept()-before, len(raw))
				}
				q := s.accept()
				if took := time.Since(start); took > 12*time.Second {
					t.Errorf("the connection was given up after %v", took)
				}
				q.handshake()
				go q.echo()
				served(t, c, "on the next connection")
				synctest.Wait() // events are told on a goroutine of their own
				if e := j.of(EventLost); !inHandshake && (len(e) != 1 || !strings.Contains(e[0].Err.Error(), "not a byte for")) {
					t.Errorf("the events of loss are %v", e)
				}
			})
		}
	}
}

// TestRepliesWithoutEnd: what grows and grows is cut off at MaxReply. No more than that is read, and what it takes meanwhile is a small
// multiple of it: for strings what append wastes, for elements what they are in memory in place of three bytes.
func TestRepliesWithoutEnd(t *testing.T) {
	const limit = 1 << 20
	for name, x := range map[string]struct {
		first, more string
		most        int // that may be in use
	}{
		"a status":              {"+", "xxxxxxxx", 4 * limit},
		"an error":              {"-ERR ", "xxxxxxxx", 4 * limit},
		"a number":              {":", "11111111", 4 * limit},
		"a length":              {"$", "00000000", 4 * limit},
		"strings in an array":   {"*1000000\r\n", "$8\r\nxxxxxxxx\r\n", 8 * limit},
		"nulls in an array":     {"*1000000\r\n", "_\r\n", 32 * limit},
		"numbers in a map":      {"%1000000\r\n", ":1\r\n", 32 * limit},
		"empty arrays in a set": {"~1000000\r\n", "*0\r\n", 32 * limit},
		"attributes":            {"", "|0\r\n", 4 * limit},
		"attributes of much":    {"", "|1\r\n+a\r\n+b\r\n", 4 * limit},
		"a push":                {">1000000\r\n+foo\r\n", "$8\r\nxxxxxxxx\r\n", 8 * limit},
	} {
		for _, inHandshake := range []bool{false, true} {
			sub(t, fmt.Sprintf("%s, in the handshake: %v", name, inHandshake), func(t *testing.T) {
				s := newScript(t)
				c, p := s.connect(Options{MaxReply: limit, Timeout: time.Hour, KeepAlive: -1})
				if inHandshake {
					p.Close()
					p = s.accept()
					p.expects("HELLO 3")
				}
				waiting := async(c, "GET", "k")
				chunk, before, sent := strings.Repeat(x.more, 32<<10/len(x.more)), kept(), 0
				p.says(x.first)
				for {
					n, err := io.WriteString(p.Conn, chunk)
					if sent += n; err != nil {
						break
					}
					synctest.Wait()
					if sent%(4*len(chunk)) == 0 && kept()-before > x.most {
						t.Fatalf("%d bytes are kept of %d", kept()-before, sent)
					}
				}
				if sent > limit+2*len(chunk) {
					t.Errorf("%d bytes were taken from the server, with a limit of %d", sent, limit)
				}
				q := s.readyAt(addrA)
				if !inHandshake {
					err := reply(t, waiting).Err()
					if !MaybeExecuted(err) {
						t.Errorf("%v, and it was never sent", err)
					}
					if text := err.Error(); !strings.Contains(text, "reply of too many bytes") && !strings.Contains(text, "length beyond the limit") || len(text) > 400 {
						t.Errorf("the error does not say why: %.500s", text)
					}
					waiting = async(c, "GET", "k")
				}
				q.expects("GET k")
				q.says("+v\r\n")
				answered(t, waiting, "v")
				if grown := kept() - before; grown > limit {
					t.Errorf("%d bytes are kept when it is over", grown)
				}
			})
		}
	}
}

// pushesWithoutEnd are pushes of which one follows the other. %d is their number.
var pushesWithoutEnd = map[string]string{
	"unknown ones":               ">2\r\n$3\r\nfoo\r\n$100\r\n" + strings.Repeat("x", 100) + "\r\n",
	"invalidations":              ">2\r\n$10\r\ninvalidate\r\n*1\r\n$12\r\nkey:%08d\r\n",
	"messages that nobody wants": ">3\r\n$7\r\nmessage\r\n$12\r\nnew:%08d\r\n$1\r\nx\r\n",
	"messages of a subscription": ">3\r\n$7\r\nmessage\r\n$4\r\nmine\r\n$100\r\n" + strings.Repeat("x", 92) + "%08d\r\n",
	"confirmations":              ">3\r\n$9\r\nsubscribe\r\n$12\r\nnew:%08d\r\n:1\r\n",
	"ends of what nobody has":    ">3\r\n$11\r\nunsubscribe\r\n$12\r\nnew:%08d\r\n:1\r\n",
	"replayed completions":       ">2\r\n$8\r\nMIGRATED\r\n:%d\r\n",
	"openers, each news":         ">4\r\n$9\r\nMIGRATING\r\n:%d\r\n:2\r\n$100\r\n" + strings.Repeat("x", 100) + "\r\n",
	"openers, in large frames":   ">5\r\n$9\r\nMIGRATING\r\n:%d\r\n:2\r\n$1\r\nx\r\n$100000\r\n" + strings.Repeat("x", 100_000) + "\r\n",
	"slots that migrated":        ">3\r\n$9\r\nSMIGRATED\r\n:%d\r\n*2\r\n*3\r\n+a:1\r\n+b:1\r\n+1-2\r\n*1\r\n_\r\n",
	"the same announcement":      ">5\r\n$6\r\nMOVING\r\n:7\r\n:3600\r\n$14\r\n10.9.0.99:6379\r\n:%d\r\n",
	"numbers of nothing":         ">1\r\n:%d\r\n",
}

// TestPushesWithoutEnd: none of them is kept, beyond what the client has bounds for, on whatever connection they come; and commands there
// and elsewhere are answered meanwhile.
func TestPushesWithoutEnd(t *testing.T) {
	for name, frame := range pushesWithoutEnd {
		for _, where := range []string{"an ordinary connection", "that of the subscriptions", "a session's"} {
			sub(t, name+" on "+where, func(t *testing.T) {
				t.Cleanup(func() { time.Sleep(10 * time.Second) })
				s := newScript(t)
				s.refuseAll("10.9.0.99:6379")
				all := gather(s, func(p *peer) {
					p.handshake()
					p.serve(func(command string) string {
						if verb, name, _ := strings.Cut(command, " "); verb == "SUBSCRIBE" {
							return confirmation(verb, name, 1)
						}
						return answers(nil).to(command)
					})
				})
				c := dialOptions(t, Options{Addr: addrA, Dialer: s.dial, KeepAlive: -1, MaxMessages: 100})
				unchecked(c)
				ask := c.Do
				switch where {
				case "that of the subscriptions":
					subscription, err := c.Subscribe(background, "mine")
					if err != nil {
						t.Fatal(err)
					}
					defer subscription.Close()
				case "a session's":
					ask = loneSession(t, c).Do
				}
				flooded := all.at(addrA)
				p, sent, before := flooded[len(flooded)-1], 0, kept()
				for i := 0; sent < 2<<20; {
					var b strings.Builder
					for ; b.Len() < 64<<10; i++ {
						if strings.Contains(frame, "%") {
							fmt.Fprintf(&b, frame, i)
						} else {
							b.WriteString(frame)
						}
					}
					p.says(b.String())
					sent += b.Len()
					if time.Sleep(time.Millisecond); sent/(1<<18) != (sent-b.Len())/(1<<18) {
						want := fmt.Sprint("meanwhile ", i)
						if got := textOf(ask(background, "ECHO", want)); got != want {
							t.Errorf("%q is answered with %q", want, got)
						}
						if got := textOf(c.Do(background, "ECHO", want)); got != want {
							t.Errorf("elsewhere %q is answered with %q", want, got)
						}
						if grown := kept() - before; grown > 1<<20 {
							t.Fatalf("%d bytes are kept of %d", grown, sent)
						}
					}
				}
				if st := c.Stats(); st.Reconnects != 0 || st.Failed != 0 || len(all.at(addrA)) != len(flooded) {
					t.Errorf("%+v", st)
				}
				if d := s.dialled(); len(d) > len(flooded)+10 {
					t.Errorf("%d dials", len(d))
				}
			})
		}
	}
}

// --- other connections than those for ordinary commands ---

// elsewhere is a server of which the connection for ordinary commands is good, and so are all others when it is good.
func elsewhere(t *testing.T, o Options, good *atomic.Bool, bad func(p *peer)) (c *Client, all *crowd, book *dialBook, j *journal) {
	t.Helper()
	t.Cleanup(func() { time.Sleep(time.Second) })
	s := newScript(t)
	book, j = &dialBook{}, &journal{}
	var dials atomic.Int32
	all = gather(s, func(p *peer) {
		if dials.Add(1) > 1 && !good.Load() {
			bad(p)
			p.hangsOn()
			return
		}
		p.handshake()
		p.serve(func(command string) string {
			switch verb, name, _ := strings.Cut(command, " "); verb {
			case "SUBSCRIBE":
				return confirmation(verb, name, 1)
			case "BLPOP":
				return "*2\r\n+" + strings.TrimSuffix(name, " 0") + "\r\n+element\r\n"
			}
			return answers(nil).to(command)
		})
	})
	o.Addr, o.Dialer, o.OnEvent, o.KeepAlive = addrA, book.over(s.dial), j.add, -1
	return dialOptions(t, o), all, book, j
}

// bounded says that so many dials in so long are those of a back-off.
func bounded(t *testing.T, dials int, in time.Duration) {
	t.Helper()
	if most := 6 + int(in*4/3/time.Second); dials < 2 || dials > most {
		t.Errorf("%d dials in %v, want at most %d", dials, in, most)
	}
}

// TestBadServersOfSubscriptions: the connection is lost, and those that are to take its place break off, one way or the other, when they
// are subscribed. The gap is told once, and when the server is good everything is heard again.
func TestBadServersOfSubscriptions(t *testing.T) {
	confirmed := confirmation("subscribe", "a", 1)
	for name, a := range map[string]answers{
		"hang up":                    {"SUBSCRIBE": hangUp},
		"hang up behind it":          {"SUBSCRIBE": confirmed + "+PONG\r\n" + "\x01"},
		"speak garbage":              {"SUBSCRIBE": "garbage\r\n"},
		"speak garbage behind it":    {"SUBSCRIBE": confirmed + "garbage\r\n"},
		"nest it":                    {"SUBSCRIBE": ">3\r\n+subscribe\r\n" + strings.Repeat("*1\r\n", 100_000)},
		"answer the PING twice":      {"SUBSCRIBE": confirmed, "PING": "+PONG\r\n+PONG\r\n"},
		"answer with too many":       {"SUBSCRIBE": confirmed + "+PONG\r\n+stray\r\n"},
		"speak 2^62":                 {"SUBSCRIBE": ">4611686018427387904\r\n"},
		"push 2^62 for a channel":    {"SUBSCRIBE": ">3\r\n+subscribe\r\n$4611686018427387904\r\n"},
		"are not ready, all of them": {"SUBSCRIBE": "-LOADING Redis is loading the dataset in memory\r\n"},
	} {
		sub(t, name, func(t *testing.T) {
			var good atomic.Bool
			good.Store(true)
			c, all, book, j := elsewhere(t, Options{}, &good, func(p *peer) {
				p.handshake()
				p.serve(func(command string) string {
					raw := a.to(command)
					if strings.HasSuffix(raw, "\x01") {
						p.says(raw[:len(raw)-1])
						return hangUp
					}
					return raw
				})
			})
			e := tune(t, c, "a")
			time.Sleep(5 * time.Second)
			good.Store(false)
			all.at(addrA)[1].Close()
			for range 20 {
				if got := textOf(c.Do(background, "ECHO", "meanwhile")); got != "meanwhile" {
					t.Errorf("meanwhile a command is answered with %q", got)
				}
				time.Sleep(time.Second)
			}
			bounded(t, len(book.to())-2, 20*time.Second)
			if n := e.gaps(); n > 1 && name != "hang up behind it" { // which is in service for a moment each time
				t.Errorf("%d gaps were told before there was a connection", n)
			}
			told := 0
			for _, e := range append(j.of(EventLost), j.of(EventDialFailed)...) {
				if text := fmt.Sprint(e.Err); len(text) > 400 || e.Err == nil {
					t.Errorf("an event says %.500s", text)
				}
				told++
			}
			if told < 10 {
				t.Errorf("%d losses were told", told)
			}
			good.Store(true)
			time.Sleep(2 * time.Second)
			open := all.at(addrA)
			if len(open) != 2 {
				t.Fatalf("%d connections in the end", len(open))
			}
			open[1].says(framed("message", "a", "1"))
			if synctest.Wait(); e.gaps() < 1 {
				t.Error("the gap was not told")
			}
			if heard, err := e.all(); err != nil || heard[len(heard)-1] != "a 1" {
				t.Errorf("heard %q, %v", heard, err)
			}
		})
	}
	// What stands for a confirmation and is none is an answer all the same: that nothing was confirmed.
	for name, raw := range map[string]string{
		"protocol 2's":          "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
		"PONG alone":            "",
		"of another channel":    confirmation("subscribe", "b", 1),
		"of another kind":       confirmation("psubscribe", "a", 1),
		"a message":             framed("message", "a", "0"),
		"an end":                confirmation("unsubscribe", "a", 0),
		"a status":              "+OK\r\n",
		"a name that is a list": ">3\r\n+subscribe\r\n*1\r\n+a\r\n:1\r\n",
	} {
		sub(t, "confirm by "+name, func(t *testing.T) {
			var good atomic.Bool
			c, all, book, _ := elsewhere(t, Options{}, &good, func(p *peer) { p.handshake(); p.serve(answers{"SUBSCRIBE": raw}.to) })
			start := time.Now()
			s, err := c.Subscribe(background, "a")
			if err == nil || s != nil || len(err.Error()) > 400 || time.Since(start) > 6*time.Second {
				t.Errorf("%v, %v after %v", s, err, time.Since(start))
			}
			time.Sleep(20 * time.Second)
			if n := len(book.to()) - 1; n > 6+5*4/3 { // in the 5 s that Subscribe has
				t.Errorf("%d dials", n)
			}
			good.Store(true)
			for _, p := range all.at(addrA)[1:] {
				p.Close()
			}
			if _, err := c.Subscribe(background, "a"); err != nil {
				t.Errorf("when it is good: %v", err)
			}
			if got := textOf(c.Do(background, "ECHO", "x")); got != "x" {
				t.Errorf("a command is answered with %q", got)
			}
		})
	}
}

// TestBadServersOfBlockingCommands: callers who come again as soon as they have failed are no loop of dials, and when the server is good
// they are served. What comes too much behind a pop is not the next one's.
func TestBadServersOfBlockingCommands(t *testing.T) {
	element := "*2\r\n+k\r\n+element\r\n"
	for name, x := range map[string]struct {
		bad  func(p *peer)
		pops bool // some succeed
	}{
		"hang up at once":              {func(p *peer) { p.Close() }, false},
		"hang up behind the PONG":      {func(p *peer) { p.handshake(); p.Close() }, false},
		"hang up at the command":       {func(p *peer) { p.handshake(); p.serve(answers{"BLPOP": hangUp}.to) }, false},
		"speak garbage":                {func(p *peer) { p.handshake(); p.serve(answers{"BLPOP": "garbage\r\n"}.to) }, false},
		"speak 2^62":                   {func(p *peer) { p.handshake(); p.serve(answers{"BLPOP": "*4611686018427387904\r\n"}.to) }, false},
		"nest it":                      {func(p *peer) { p.handshake(); p.serve(answers{"BLPOP": strings.Repeat("*1\r\n", 100_000)}.to) }, false},
		"answer twice":                 {func(p *peer) { p.handshake(); p.serve(answers{"BLPOP": element + element}.to) }, true},
		"answer before they are asked": {func(p *peer) { p.serve(answers{"PING": "+PONG\r\n*2\r\n+k\r\n+stray\r\n", "BLPOP": element}.to) }, false},
	} {
		sub(t, name, func(t *testing.T) {
			var good atomic.Bool
			c, _, book, _ := elsewhere(t, Options{MaxDedicated: 1}, &good, x.bad)
			over := time.Now().Add(20 * time.Second)
			done, failed := 0, 0
			for time.Now().Before(over) {
				ctx, cancel := contextFor(5 * time.Second) // without a connection it would wait for ever
				r := c.Do(ctx, "BLPOP", "k", 0)
				cancel()
				switch {
				case r.Err() == nil && x.pops:
					if texts, err := r.Texts(); err != nil || texts[1] != "element" {
						t.Errorf("popped %q, %v", texts, err)
					}
					done++
				case r.Err() == nil:
					t.Errorf("popped %v", r.Kind())
					over = time.Now()
				default:
					failed++
				}
				if got := textOf(c.Do(background, "ECHO", "meanwhile")); got != "meanwhile" {
					t.Errorf("meanwhile a command is answered with %q", got)
				}
			}
			bounded(t, len(book.to())-1, 20*time.Second)
			if x.pops != (done > 0) || !x.pops && failed == 0 {
				t.Errorf("%d popped, %d failed", done, failed)
			}
			good.Store(true)
			time.Sleep(time.Second)
			for i := 0; i < 3; i++ {
				switch texts, err := c.Do(background, "BLPOP", "k", 0).Texts(); {
				case err != nil && i == 0: // the connection may have been bad when it was made
				case err != nil || texts[1] != "element":
					t.Errorf("when it is good: %q, %v", texts, err)
				}
			}
		})
	}
}

// TestBadServersOfSessions: what a session gets too much ends it, before anything else is read from it, and every later call fails never sent.
func TestBadServersOfSessions(t *testing.T) {
	for _, raw := range []string{"+stray\r\n", "_\r\n", "-ERR stray\r\n", "garbage\r\n", "$4611686018427387904\r\n", strings.Repeat("*1\r\n", 100_000)} {
		sub(t, fmt.Sprintf("%.20q", raw), func(t *testing.T) {
			var good atomic.Bool
			good.Store(true)
			c, all, book, _ := elsewhere(t, Options{}, &good, nil)
			s := loneSession(t, c)
			if err := s.Do(background, "WATCH", "k").Err(); err != nil {
				t.Fatal(err)
			}
			all.at(addrA)[1].says(raw)
			time.Sleep(time.Second)
			for range 3 {
				if err := s.Do(background, "ECHO", "two").Err(); !errors.Is(err, ErrNoConnection) || MaybeExecuted(err) || len(err.Error()) > 400 {
					t.Errorf("%.500v", err)
				}
			}
			b := &Batch{}
			b.Add("SET", "k", "v")
			if replies, err := s.DoTx(background, b); !errors.Is(err, ErrTxAborted) || MaybeExecuted(err) || replies != nil {
				t.Errorf("EXEC behind a WATCH that is gone: %v, %v", replies, err)
			}
			if n := len(book.to()); n != 2 {
				t.Errorf("%d dials: a session has no other connection", n)
			}
			next := loneSession(t, c)
			if got := textOf(next.Do(background, "ECHO", "three")); got != "three" {
				t.Errorf("another session reads %q", got)
			}
		})
	}
}

// --- answers that are good, but not for who reads them ---

// TestAServerThatAnswersTwice: a caller who is alone has his reply, and the second one is nobody's: it ends the connection. When several are
// in flight the second answer to one looks like the answer to the next, which no client can tell: replies have no names. What can be told
// is told as soon as it can: the last reply is one too many. That the answers to two commands come in the wrong order cannot be told at all,
// by anybody; nor can what comes before its time, between a command and its own answer.
func TestAServerThatAnswersTwice(t *testing.T) {
	sub(t, "callers who are alone", func(t *testing.T) {
		var good atomic.Bool
		r := newRogue(t, Options{}, func(p *peer) {
			p.handshake()
			for !good.Load() {
				command := p.command()
				if command == "" {
					return
				}
				p.says(strings.Repeat(answers(nil).to(command), 2))
			}
		})
		synctest.Wait()
		for i := range 400 {
			want := strconv.Itoa(i)
			if got := textOf(r.c.Do(background, "ECHO", want)); got != want {
				t.Errorf("%q is answered with %q", want, got)
			}
		}
		took := time.Since(r.lost)
		bounded(t, len(r.book.to())-2, took)
		lost := r.j.of(EventLost)
		if len(lost) < 10 {
			t.Fatalf("%d losses were told", len(lost))
		}
		for _, e := range lost[1:3] {
			explained(t, e.Err, "a reply that no command asked for")
		}
		if st := r.c.Stats(); st.Failed != 0 {
			t.Errorf("%+v", st)
		}
	})
	for _, size := range []int{1, 2, 3, 10} {
		sub(t, fmt.Sprintf("a batch of %d and one reply too many", size), func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{})
			for round := range 3 {
				var b Batch
				all := ""
				for i := range size {
					b.Add("ECHO", fmt.Sprint(round, ":", i))
					all += fmt.Sprintf("+%d:%d\r\n", round, i)
				}
				got := batchLater(c, &b)
				for i := range size {
					p.expects(fmt.Sprint("ECHO ", round, ":", i))
				}
				p.says(all + fmt.Sprintf("+%d:%d\r\n", round, size-1))
				r := got()
				for i := range size {
					if text := textOf(r.replies[i]); r.err != nil || text != fmt.Sprint(round, ":", i) {
						t.Errorf("round %d: reply %d is %q, %v", round, i, text, r.err)
					}
				}
				q := s.readyAt(addrA)
				if !p.hungUp() {
					t.Error("the connection is open")
				}
				p = q
			}
		})
	}
	sub(t, "several in flight", func(t *testing.T) {
		s, j := newScript(t), &journal{}
		c, p := s.connect(Options{OnEvent: j.add})
		one, two := async(c, "ECHO", "one"), async(c, "ECHO", "two")
		p.expects("ECHO one", "ECHO two")
		p.says("+one\r\n+one\r\n+two\r\n+two\r\n")
		answered(t, one, "one")
		reply(t, two) // his or not, nobody knows
		q := s.readyAt(addrA)
		go q.echo()
		served(t, c, "on the next connection")
		if e := j.of(EventLost); len(e) != 1 {
			t.Errorf("%d losses", len(e))
		} else {
			explained(t, e[0].Err, "a reply that no command asked for", "two")
		}
	})
	sub(t, "a reply too few", func(t *testing.T) { // which is a reply that never comes
		s := newScript(t)
		c, p := s.connect(Options{KeepAlive: -1})
		var b Batch
		b.Add("ECHO", "one")
		b.Add("ECHO", "two")
		got := batchLater(c, &b)
		p.expects("ECHO one", "ECHO two")
		p.says("+one\r\n")
		if r := got(); !errors.Is(r.err, ErrTimeout) || !MaybeExecuted(r.err) {
			t.Errorf("%v, %v", r.replies, r.err)
		}
		start := time.Now()
		q := s.accept()
		if took := time.Since(start); took > 7*time.Second {
			t.Errorf("the connection was kept for another %v of silence", took)
		}
		q.handshake()
		go q.echo()
		served(t, c, "on the next connection")
	})
}

// TestAReplyByteByByte: a server that speaks is not silent, so a reply that never ends keeps its connection, as a long reply over a slow
// line must. It costs those who wait there their Timeout and nobody else anything, and if it ends after all nothing is shifted.
func TestAReplyByteByByte(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, j := newScript(t), &journal{}
		c, p := s.connect(Options{Conns: 2, KeepAlive: -1, OnEvent: j.add})
		q := s.readyAt(addrA)
		go q.echo()
		slow := async(c, "GET", "slow")
		select {
		case <-slow: // it went to the other connection; the next does not
			slow = async(c, "GET", "slow")
		default:
		}
		p.expects("GET slow")
		p.says("$1000\r\n")
		before := kept()
		for i := range 1000 {
			p.says("x")
			if time.Sleep(100 * time.Millisecond); i%50 != 0 {
				continue
			}
			done := 0
			for range 2 { // one on each connection
				ctx, cancel := contextFor(time.Millisecond)
				if r := c.Do(ctx, "GET", "fast"); r.Err() == nil && textOf(r) == "GET fast" {
					done++
				} else if !MaybeExecuted(r.Err()) {
					t.Errorf("%v", r.Err())
				}
				cancel()
			}
			if done != 1 {
				t.Errorf("after %d bytes %d of 2 commands were answered", i, done)
			}
		}
		failedWith(t, "who waits for it", slow, ErrTimeout, true)
		if grown := kept() - before; grown > 1<<20 {
			t.Errorf("%d bytes are kept", grown)
		}
		p.says("\r\n")
		go p.echo() // also to those who have left
		time.Sleep(time.Second)
		for range 4 {
			served(t, c, "when it has ended")
		}
		if n := len(s.dialled()); n != 2 || j.count(EventLost) != 0 {
			t.Errorf("%d dials, %d losses", n, j.count(EventLost))
		}
	})
}

// TestWhoComesBehindAReplyTooMany: the same caller, as soon as he has his reply, whoever read it. The connection is known to be broken then, so his
// next command waits for another; it is not written to this one, to fail, maybe executed.
func TestWhoComesBehindAReplyTooMany(t *testing.T) {
	for alone, more := range map[int]string{0: "+stray\r\n", 1: "garbage\r\n", 2 * asideFrom: "+stray\r\n", 2*asideFrom + 1: "garbage\r\n"} {
		sub(t, fmt.Sprintf("%q behind %d commands", more, alone), func(t *testing.T) { // of so many the callers read for themselves
			failed := 0
			for range 50 {
				s := newScript(t)
				var sent atomic.Int32
				s.attend(func(p *peer) {
					p.handshake()
					p.serve(func(command string) string {
						raw := answers(nil).to(command)
						if sent.Add(1) == int32(alone)+1 {
							return raw + more
						}
						return raw
					})
				})
				c := dialOptions(t, Options{Addr: addrA, Dialer: s.dial, KeepAlive: -1})
				for i := range alone + 3 {
					want := strconv.Itoa(i)
					if got, err := c.Do(background, "ECHO", want).Text(); err == nil && got != want {
						t.Errorf("%q is answered with %q", want, got)
					} else if err != nil {
						failed++
					}
				}
				c.Close()
			}
			if failed > 0 {
				t.Errorf("in 50 runs %d commands were written to a connection that was known to be broken", failed)
			}
		})
	}
}

// TestPushesWithoutEndInTheHandshake: what may be kept of them for later is bounded by number and by size.
func TestPushesWithoutEndInTheHandshake(t *testing.T) {
	for name, frame := range pushesWithoutEnd {
		for _, step := range []string{"HELLO", "CLIENT MAINT"} {
			sub(t, name+" before the answer to "+step, func(t *testing.T) {
				s := newScript(t)
				dialled := later(func() error {
					c, err := Dial(background, Options{Addr: addrA, Dialer: s.dial, KeepAlive: -1})
					if err == nil {
						time.Sleep(time.Second)
						c.Close()
					}
					return err
				})
				p, n := s.accept(), 0
				p.serve(func(command string) string {
					if command == "PING" {
						defer p.Close() // not before its answer is read
						p.says("+PONG\r\n")
						time.Sleep(time.Second)
						return ""
					}
					before := kept()
					for sent := 0; strings.HasPrefix(command, step) && sent < 2<<20; n++ {
						raw := frame
						if strings.Contains(frame, "%") {
							raw = fmt.Sprintf(frame, n)
						}
						p.says(raw)
						sent += len(raw)
					}
					synctest.Wait()
					if grown := kept() - before; grown > 5<<18 {
						t.Errorf("%d bytes are kept of %d pushes", grown, n)
					}
					return answers(nil).to(command)
				})
				if err := dialled(); err != nil || n < 10 {
					t.Errorf("%v after %d pushes", err, n)
				}
			})
		}
	}
}
