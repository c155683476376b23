package main

// The decoder against an independent one: baton and go-redis read the same bytes as the replies to two commands sent together. Where both
// accept, what they read must agree; where one refuses, the difference must be one of those that are explained here. baton is dialled anew
// each time, in a bubble of virtual time, which tells when it waits for more; go-redis keeps its connection.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/baton"
	goredis "github.com/redis/go-redis/v9"
)

// played is a connection that answers a handshake, and two commands with bytes; what it is asked beyond that is nothing, or io.EOF.
type played struct {
	raw  *string
	ends bool

	mu      sync.Mutex
	arrived sync.Cond
	out     []byte
	asked   bool
	closed  bool
}

func play(raw *string, ends bool) *played {
	p := &played{raw: raw, ends: ends}
	p.arrived.L = &p.mu
	return p
}

func (p *played) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for rest := b; len(rest) > 0; {
		args, n, err := parseCommand(rest)
		if n == 0 || err != nil {
			return 0, errors.New("a command in pieces")
		}
		rest = rest[n:]
		switch strings.ToUpper(args[0]) {
		case "HELLO":
			p.out = append(p.out, "%1\r\n+proto\r\n:3\r\n"...)
		case "CLIENT":
			p.out = append(p.out, "-ERR unknown subcommand\r\n"...)
		case "PING":
			p.out = append(p.out, "+PONG\r\n"...)
		default:
			if p.asked = !p.asked; p.asked { // the first of the two
				p.out = append(p.out, *p.raw...)
			}
		}
	}
	p.arrived.Broadcast()
	return len(b), nil
}

func (p *played) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closed:
			return 0, net.ErrClosed
		case len(p.out) > 0:
			n := copy(b, p.out)
			p.out = p.out[n:]
			return n, nil
		case p.ends:
			return 0, io.EOF
		}
		p.arrived.Wait()
	}
}

func (p *played) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.arrived.Broadcast()
	return nil
}

func (p *played) LocalAddr() net.Addr              { return cannedAddr }
func (p *played) RemoteAddr() net.Addr             { return cannedAddr }
func (p *played) SetDeadline(time.Time) error      { return nil }
func (p *played) SetReadDeadline(time.Time) error  { return nil }
func (p *played) SetWriteDeadline(time.Time) error { return nil }

// oracleLimits are far below what go-redis would make room for on the word of a length.
const oracleLimits = 1000

// readByBaton is what baton reads of raw; with more it waits for more, and an error is why it broke the connection.
func readByBaton(t *testing.T, raw string) (replies []baton.Reply, more bool, err error) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		c, bad := baton.Dial(context.Background(), baton.Options{MaxReply: 1 << 16, MaxElements: oracleLimits, MaxDepth: 100, KeepAlive: -1,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				if dials++; dials > 1 {
					return nil, io.EOF
				}
				return play(&raw, false), nil
			}})
		if bad != nil {
			t.Fatal(bad)
		}
		over := false
		go func() {
			var b baton.Batch
			b.Add("GET", "a")
			b.Add("GET", "b")
			replies, err = c.DoBatch(context.Background(), &b)
			over = true
		}()
		synctest.Wait()
		more = !over
		c.Close()
		synctest.Wait()
	})
	if more {
		return nil, true, nil
	}
	return replies, false, err
}

// oracle is go-redis.
type oracle struct {
	raw string
	c   *goredis.Client
}

func newOracle() *oracle {
	o := &oracle{}
	o.c = goredis.NewClient(&goredis.Options{Addr: cannedAddr.String(), Protocol: 3, PoolSize: 1, MaxRetries: -1, DisableIdentity: true,
		ReadBufferSize: 1 << 16, ReadTimeout: -2, WriteTimeout: -2, ContextTimeoutEnabled: false,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return play(&o.raw, true), nil }})
	return o
}

func (o *oracle) read(raw string) (values []any, errs []error) {
	o.raw = raw
	ctx := context.Background()
	pipe := o.c.Pipeline()
	cmds := []*goredis.Cmd{pipe.Do(ctx, "GET", "a"), pipe.Do(ctx, "GET", "b")}
	pipe.Exec(ctx)
	for _, cmd := range cmds {
		values, errs = append(values, cmd.Val()), append(errs, cmd.Err())
	}
	return values, errs
}

// FuzzOracle: bytes as they are, or, if there are none, replies whose shape the other argument decides.
func FuzzOracle(f *testing.F) {
	for _, wire := range oracleSeeds {
		f.Add([]byte(wire), []byte(nil))
	}
	for i := range 40 {
		f.Add([]byte(nil), []byte{byte(i), 3, byte(i * 7), 1, byte(i), 2, 9, 200, byte(i), 4, 77})
	}
	o := newOracle()
	f.Fuzz(func(t *testing.T, wire, shape []byte) {
		if len(wire) == 0 {
			wire = (&shaper{shape}).value(nil, 0)
		}
		if len(wire) > 1<<12 || tooLong.Match(wire) {
			return
		}
		raw := string(wire) + ":4711\r\n" // so that where the first reply ends is seen
		replies, more, err := readByBaton(t, raw)
		values, errs := o.read(raw)
		refuses := func(i int) bool { return more || i >= len(replies) || baton.MaybeExecuted(replies[i].Err()) }
		if !answeredBy(errs[1]) && refuses(1) { // both refuse the one or the other; go-redis says of both commands what was wrong with the second
			values, errs = values[:1], []error{nil}
			if values[0] == nil || more {
				return
			}
		}
		for i := range values {
			r := baton.Reply{}
			if i < len(replies) {
				r = replies[i]
			}
			refused := refuses(i)
			if refused || !answeredBy(errs[i]) {
				differs(t, raw, refused, more, err, r, values[i], errs[i])
				return // nothing behind can be compared
			}
			if why := disagree(r, values[i], errs[i]); why != "" {
				if shifts(raw) {
					return
				}
				t.Fatalf("%q: reply %d: baton reads %s, go-redis %v, %v: %s", raw, i, inWords(r), values[i], errs[i], why)
			}
			if odd(r) != "" {
				return
			}
		}
	})
}

// tooLong are lengths that go-redis would make room for.
var tooLong = regexp.MustCompile(`[$*%~>=!|][+]?0*[1-9][0-9]{4}`)

// answeredBy says whether go-redis has read a reply: an error can be one.
func answeredBy(err error) bool {
	var reply goredis.Error
	return err == nil || errors.As(err, &reply)
}

// differs is where one has refused, or waits for more.
func differs(t *testing.T, raw string, refused, more bool, err error, r baton.Reply, value any, oracleErr error) {
	switch {
	case refused && !answeredBy(oracleErr):
	case !refused: // go-redis takes less
		if why := odd(r); why == "" && !shifts(raw) {
			t.Fatalf("%q: baton reads %s, go-redis refuses: %v", raw, inWords(r), oracleErr)
		}
	case more:
		if !shifts(raw) && !(oracleErr != nil && holdsMore(raw)) { // a key that is null, or an error that it knows, ended its reading in the middle
			t.Fatalf("%q: baton waits for more, go-redis reads %v, %v", raw, value, oracleErr)
		}
	case !strayed(raw, err):
		t.Fatalf("%q: baton refuses, go-redis reads %v, %v: %v", raw, value, oracleErr, err)
	}
}

// odd says why go-redis may not take what baton does: "" if there is no reason.
func odd(r baton.Reply) string {
	elems, err := r.Elems()
	if err != nil {
		return ""
	}
	for i, e := range elems {
		_, isText := e.Text()
		switch {
		case r.Kind() == baton.KindMap && i%2 == 0 && (e.IsNull() || e.Kind() >= baton.KindError):
			return "go-redis has Go's maps, and no place for such a key"
		case r.Kind() == baton.KindMap && i%2 == 0 && isText != nil && e.Kind() == baton.KindFloat, r.Kind() == baton.KindMap && i%2 == 0 && e.Kind() == baton.KindBigInt:
			return "keys that are equal to none, or to more, in a Go map"
		case e.Kind() == baton.KindError:
			return "errors that it knows end its reading of what they are in"
		}
		if why := odd(e); why != "" {
			return why
		}
	}
	return ""
}

// wellFormed is what a line of each type may be, as the protocol's specification has it.
var wellFormed = map[byte]*regexp.Regexp{
	'+': regexp.MustCompile(`^[^\r\n]*$`), '-': regexp.MustCompile(`^[^\r\n]*$`), ':': regexp.MustCompile(`^[+-]?[0-9]+$`), '_': regexp.MustCompile(`^$`),
	'#': regexp.MustCompile(`^[tf]$`), ',': regexp.MustCompile(`^([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|-?inf|-?nan)$`), '(': regexp.MustCompile(`^[+-]?[0-9]+$`),
	'$': regexp.MustCompile(`^([0-9]+|-1)$`), '*': regexp.MustCompile(`^([0-9]+|-1)$`), '=': regexp.MustCompile(`^[0-9]+$`), '!': regexp.MustCompile(`^[0-9]+$`),
	'%': regexp.MustCompile(`^[0-9]+$`), '~': regexp.MustCompile(`^[0-9]+$`), '>': regexp.MustCompile(`^[0-9]+$`), '|': regexp.MustCompile(`^[0-9]+$`),
}

var atByte = regexp.MustCompile(`protocol error at byte ([0-9]+): ([a-z ]+)`)

// strayed says that baton had a reason to refuse what go-redis lets pass, and that it is so.
func strayed(raw string, err error) bool {
	found := atByte.FindStringSubmatch(fmt.Sprint(err))
	if found == nil {
		return false
	}
	at, _ := strconv.Atoi(found[1])
	at -= handshakeBytes
	if at >= len(raw) || !begins(raw, at) {
		return false
	}
	line, rest, _ := strings.Cut(raw[at+1:], "\r\n")
	n, _ := strconv.Atoi(line)
	switch found[2] {
	case "unknown type": // behind both replies, or inside of what go-redis passes over
		return wellFormed[raw[at]] == nil
	case "line feed without carriage return":
		first, _, ok := strings.Cut(raw[at:], "\n")
		return ok && !strings.HasSuffix(first, "\r")
	case "malformed value":
		_, err := strconv.ParseInt(line, 10, 64)
		return !wellFormed[raw[at]].MatchString(line) || raw[at] == ':' && err != nil || raw[at] == ',' && math.IsInf(parsed(line), 0)
	case "malformed length": // go-redis knows a negative one for each type, and signs
		return !wellFormed[raw[at]].MatchString(line) || len(line) > 18
	case "string does not end where its length says": // it does not look there
		return len(rest) < n+2 || rest[n:n+2] != "\r\n"
	case "verbatim string without its type": // in a push, whose parts it does not look at
		return raw[at] == '=' && (len(rest) < 4 || rest[3] != ':')
	case "push inside another value": // it takes one for an array
		return raw[at] == '>'
	case "length beyond the limit":
		return n > oracleLimits
	case "reply nested too deeply or of too many elements":
		return strings.Count(raw[:at], "\r\n") > 100
	}
	return false
}

// begins says whether a value begins at a byte of raw, if all is well before it.
func begins(raw string, at int) bool {
	i := 0
	for i < at {
		line, _, _ := strings.Cut(raw[i:], "\r\n")
		if n, err := strconv.Atoi(line[min(len(line), 1):]); err == nil && n >= 0 && strings.IndexByte("$=!", raw[i]) >= 0 {
			i += min(n, len(raw)) + 2
		}
		i += len(line) + 2
	}
	return i == at
}

// holdsMore says whether raw has an aggregate in it.
func holdsMore(raw string) bool {
	for at := range len(raw) {
		if strings.IndexByte("*%~", raw[at]) >= 0 && begins(raw, at) {
			return true
		}
	}
	return false
}

func parsed(s string) float64 { f, _ := strconv.ParseFloat(s, 64); return f }

// handshakeBytes are what a played connection says before the first command.
var handshakeBytes = len("%1\r\n+proto\r\n:3\r\n") + 3*len("-ERR unknown subcommand\r\n") + len("+PONG\r\n")

// shifts says that raw has something after which go-redis may be one reply ahead or behind: a push frame, which it may take for a reply, or an
// attribute inside another, which it takes for a value of that.
func shifts(raw string) bool {
	return strings.Contains("\n"+raw, "\n>") || strings.Count(raw, "|") > 1
}

// disagree says how two replies differ.
func disagree(r baton.Reply, v any, err error) string {
	if odd(r) != "" {
		return ""
	}
	switch {
	case errors.Is(err, goredis.Nil):
		if !r.IsNull() {
			return "null"
		}
		return ""
	case err != nil:
		if r.Err() == nil || strings.TrimSuffix(err.Error(), " ") != r.Err().Error() {
			return fmt.Sprintf("error %q", r.Err())
		}
		return ""
	}
	text, _ := r.Text()
	same := false
	switch x := v.(type) {
	case nil:
		same = r.IsNull()
	case string:
		same = (r.Kind() == baton.KindString || r.Kind() == baton.KindStatus || r.Kind() == baton.KindVerbatim) && text == x
	case int64:
		n, bad := r.Int64()
		same = bad == nil && n == x
	case float64:
		f, bad := r.Float64()
		same = bad == nil && r.Kind() == baton.KindFloat && (f == x && math.Signbit(f) == math.Signbit(x) || f != f && x != x)
	case bool:
		b, bad := r.Bool()
		same = bad == nil && r.Kind() == baton.KindBool && b == x
	case *big.Int:
		want, ok := new(big.Int).SetString(text, 10)
		same = r.Kind() == baton.KindBigInt && ok && want.Cmp(x) == 0
	case []any:
		elems, bad := r.Elems()
		return disagreeElems(elems, x, bad == nil && r.Kind() != baton.KindMap)
	case map[any]any:
		return disagreeMap(r, x)
	}
	if !same {
		return fmt.Sprintf("%T", v)
	}
	return ""
}

func disagreeElems(elems []baton.Reply, x []any, same bool) string {
	if !same || len(elems) != len(x) {
		return "an array"
	}
	for i := range elems {
		if why := disagree(elems[i], x[i], nil); why != "" {
			return fmt.Sprintf("element %d: %s", i, why)
		}
	}
	return ""
}

// disagreeMap compares by keys as go-redis has them; of equal ones the last wins.
func disagreeMap(r baton.Reply, x map[any]any) string {
	elems, _ := r.Elems()
	last := map[any]baton.Reply{}
	for i := 0; i < len(elems)-1; i += 2 {
		var key any
		switch k := elems[i]; k.Kind() {
		case baton.KindInt:
			key, _ = k.Int64()
		case baton.KindBool:
			key, _ = k.Bool()
		default:
			key, _ = k.Text()
		}
		last[key] = elems[i+1]
	}
	if r.Kind() != baton.KindMap || len(last) != len(x) {
		return fmt.Sprintf("a map of %d", len(last))
	}
	for _, key := range slices.Collect(maps.Keys(last)) {
		v, ok := x[key]
		if why := disagree(last[key], v, nil); why != "" || !ok {
			return fmt.Sprintf("key %v: %s", key, why)
		}
	}
	return ""
}

// inWords is a reply in words.
func inWords(r baton.Reply) string {
	if elems, err := r.Elems(); err == nil {
		var all []string
		for _, e := range elems {
			all = append(all, inWords(e))
		}
		return fmt.Sprintf("%v[%s]", r.Kind(), strings.Join(all, " "))
	}
	text, _ := r.Text()
	n, _ := r.Int64()
	return fmt.Sprintf("%v(%q %d %v)", r.Kind(), text, n, r.Err())
}

// shaper makes well-formed replies of bytes.
type shaper struct{ rest []byte }

func (s *shaper) next() (b byte) {
	if len(s.rest) > 0 {
		b, s.rest = s.rest[0], s.rest[1:]
	}
	return b
}

func (s *shaper) text() string {
	n := min(int(s.next())%24, len(s.rest))
	text := string(s.rest[:n])
	s.rest = s.rest[n:]
	return text
}

func (s *shaper) value(dst []byte, depth int) []byte {
	line := strings.NewReplacer("\r", "", "\n", "")
	switch b := s.next() % 16; b {
	case 0, 1:
		return append(dst, bulk(s.text())...)
	case 2:
		return fmt.Appendf(dst, "+%s\r\n", line.Replace(s.text()))
	case 3:
		return fmt.Appendf(dst, "-%s\r\n", line.Replace("ERR"+s.text()))
	case 4:
		return fmt.Appendf(dst, ":%d\r\n", (int64(s.next())-128)<<(s.next()%57))
	case 5:
		return fmt.Appendf(dst, ",%s\r\n", strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(math.Ldexp(float64(s.next())-128, int(s.next())*8-1024), "gef"[s.next()%3], -1, 64)), "+"))
	case 6:
		return fmt.Appendf(dst, "(%d%d\r\n", int64(s.next())-128, uint64(s.next())<<48)
	case 7:
		return fmt.Appendf(dst, "#%c\r\n", "tf"[s.next()%2])
	case 8:
		return append(dst, [...]string{"_\r\n", "$-1\r\n", "*-1\r\n"}[s.next()%3]...)
	case 9:
		text := "txt:" + s.text()
		return fmt.Appendf(dst, "=%d\r\n%s\r\n", len(text), text)
	case 10:
		text := "ERR " + s.text()
		return fmt.Appendf(dst, "!%d\r\n%s\r\n", len(text), text)
	case 11:
		return s.value(s.several(append(dst, "|1\r\n"...), 2, depth), depth)
	default:
		n := int(s.next()) % 6
		if depth > 8 {
			n = 0
		}
		dst = fmt.Appendf(dst, "%c%d\r\n", "*%~*"[b%4], n)
		if b%4 == 1 {
			n *= 2
		}
		return s.several(dst, n, depth)
	}
}

func (s *shaper) several(dst []byte, n, depth int) []byte {
	for range n {
		dst = s.value(dst, depth+1)
	}
	return dst
}

// oracleSeeds are values of each type, and what other clients stumbled over.
var oracleSeeds = []string{
	"+OK\r\n", "+\r\n", "-ERR no\r\n", "-LOADING\r\n", "!21\r\nSYNTAX invalid syntax\r\n", ":0\r\n", ":+7\r\n", ":9223372036854775807\r\n", "$5\r\nhello\r\n", "$0\r\n\r\n",
	"$4\r\n\r\n\r\n\r\n", "$-1\r\n", "*-1\r\n", "_\r\n", "*0\r\n", "*2\r\n$1\r\na\r\n:1\r\n", "*3\r\n$-1\r\n*-1\r\n_\r\n", "*2\r\n*2\r\n:1\r\n*0\r\n-ERR x\r\n", "%0\r\n",
	"%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n_\r\n", "~2\r\n+a\r\n+b\r\n", "#t\r\n", ",1.5\r\n", ",-1.7976931348623157e308\r\n", ",5E-324\r\n", ",inf\r\n", ",-inf\r\n", ",nan\r\n", ",-nan\r\n",
	"(3492890328409238509324850943850943825024385\r\n", "=15\r\ntxt:Some string\r\n", "|1\r\n+ttl\r\n:60\r\n$1\r\na\r\n", "*2\r\n|1\r\n+a\r\n%1\r\n+b\r\n+c\r\n:1\r\n:2\r\n",
	"|1\r\n+a\r\n+b\r\n|0\r\n*1\r\n|1\r\n+a\r\n+b\r\n|0\r\n:1\r\n", "%1\r\n_\r\n:1\r\n", "%1\r\n*0\r\n:1\r\n", "*1\r\n-MOVED 1 ?:6379\r\n", "%2\r\n+a\r\n:1\r\n+a\r\n:2\r\n",
	"*2\r\n$1\r\nA\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\nkey:0\r\n$1\r\nB\r\n",       // B1
	">2\r\n$10\r\ninvalidate\r\n_\r\n+OK\r\n", "+OK\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n", // B3
	">3\r\n$9\r\nsubscribe\r\n$6\r\naaaaaa\r\n:1\r\n",                                     // B6
	">3\r\n$12\r\nsunsubscribe\r\n$8\r\nchannel1\r\n:0\r\n-MOVED 5649 127.0.0.1:7001\r\n", // B10
	"_\r\n+PONG\r\n",                                                                                                              // B13
	"+OK\r\n%1\r\n+proto\r\n:3\r\n",                                                                                               // B15
	",inf\r\n,-inf\r\n,nan\r\n,1e3\r\n", ",1e3\r\n", "(3492890328409238509324850943850943825024385\r\n=15\r\ntxt:Some string\r\n", // B16
	":9007199254740991\r\n", ":9223372036854775807\r\n", ",0.1\r\n", ",9007199254740993\r\n", ":9007199254740991\r\n,0.1\r\n", // B17
	"$?\r\n;4\r\nHell\r\n;1\r\no\r\n;0\r\n", "*?\r\n:1\r\n.\r\n", "%?\r\n+a\r\n:1\r\n.\r\n", "!-1\r\n", // B19
	strings.Repeat("*1\r\n", 90), strings.Repeat("*1\r\n", 110), // B21
	">2\r\n$3\r\nfoo\r\n*1\r\n%1\r\n+a\r\n_\r\n-MOVED 1 ?:6379\r\n", // B22
	"-ERR *%~>| no\r\n", "$11\r\n*1\r\n$1\r\n>|\n\r\n", "*90\r\n" + strings.Repeat(":1\r\n", 90), // text like headers, and a long array
	"HTTP/1.1 400 Bad Request\r\n", "\r\n", "+OK\n", "$1\r\nab\r\n", "$9\r\nab", "$+1\r\na\r\n", "%-1\r\n", "_x\r\n", "+a\rb\r\n", ",0x10\r\n", ":99999999999999999999\r\n", "=3\r\ntxt\r\n",
}
