package baton

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"
)

var testLimits = limits{reply: 1 << 20, depth: 128, elements: 1 << 16}

// pieces reads from data in pieces of the given sizes, in turn.
type pieces struct {
	data  []byte
	sizes []int
	turn  int
}

func (p *pieces) Read(buf []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := min(p.sizes[p.turn%len(p.sizes)], len(p.data), len(buf))
	p.turn++
	copy(buf, p.data[:n])
	p.data = p.data[n:]
	return n, nil
}

// decode reads everything in pieces of the given sizes and returns the replies before the end or the violation.
func decode(l limits, data []byte, sizes ...int) ([]Reply, error) {
	d, r := newDecoder(l), &pieces{data: data, sizes: sizes}
	var out []Reply
	for {
		_, readErr := d.readFrom(r)
		for {
			f, ok, err := d.next()
			if err != nil {
				return out, err
			}
			if !ok {
				break
			}
			if f.kind != d.reply(f).Kind() {
				return out, fmt.Errorf("frame is a %v, its reply a %v", f.kind, d.reply(f).Kind())
			}
			out = append(out, d.reply(f))
		}
		if readErr != nil {
			if n := buffered(d); n > 0 {
				return out, fmt.Errorf("%d bytes left: %w", n, io.ErrUnexpectedEOF)
			}
			return out, nil
		}
	}
}

// buffered is the number of bytes that were read and are in no frame yet.
func buffered(d *decoder) int { return len(d.buf) - d.begin }

// violates says whether an error is the decoder's, of the protocol.
func violates(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "baton: protocol error at byte ")
}

// one decodes input that is one value.
func one(t testing.TB, input string) Reply {
	t.Helper()
	rs, err := decode(testLimits, []byte(input), len(input))
	if err != nil || len(rs) != 1 {
		t.Fatalf("%.60q: %d replies, %v", input, len(rs), err)
	}
	return rs[0]
}

// show writes a reply exactly: kinds, values, bits of floats.
func show(r Reply) string {
	var b strings.Builder
	var walk func(Reply)
	walk = func(r Reply) {
		switch r.kind {
		case KindError:
			var se *ServerError
			errors.As(r.Err(), &se)
			fmt.Fprintf(&b, "error(%q %q)", se.Code, se.Message)
		case KindArray, KindMap, KindSet, KindPush:
			fmt.Fprintf(&b, "%v[", r.kind)
			for i, e := range elemsOf(r) {
				if i > 0 {
					b.WriteByte(' ')
				}
				walk(e)
			}
			b.WriteByte(']')
		case KindInt, KindBool:
			fmt.Fprintf(&b, "%v(%d)", r.kind, r.n)
		case KindFloat:
			fmt.Fprintf(&b, "float(%x)", uint64(r.n))
		default:
			text, _ := r.Text()
			fmt.Fprintf(&b, "%v(%q)", r.kind, text)
		}
	}
	walk(r)
	return b.String()
}

func showAll(rs []Reply) string {
	var all []string
	for _, r := range rs {
		all = append(all, show(r))
	}
	return strings.Join(all, "\n")
}

func ofText(k Kind, s string) Reply {
	return Reply{kind: k, n: int64(len(s)), at: unsafe.Pointer(unsafe.StringData(s))}
}

func elemsOf(r Reply) []Reply { elems, _ := r.Elems(); return elems }

func ofElems(k Kind, elems []Reply) Reply {
	return Reply{kind: k, n: int64(len(elems)), at: unsafe.Pointer(unsafe.SliceData(elems))}
}

func float(f float64) string { return fmt.Sprintf("float(%x)", math.Float64bits(f)) }

// values is every form of value that the decoder accepts, and what it is.
var values = []struct{ wire, want string }{
	{"+OK\r\n", `status("OK")`},
	{"+\r\n", `status("")`},
	{"+Background saving\r\n", `status("Background saving")`},
	{"-ERR no\r\n", `error("ERR" "no")`},
	{"-WRONGTYPE Operation against a key\r\n", `error("WRONGTYPE" "Operation against a key")`},
	{"-LOADING\r\n", `error("LOADING" "")`},
	{"!21\r\nSYNTAX invalid syntax\r\n", `error("SYNTAX" "invalid syntax")`},
	{"!7\r\nERR\r\n a\r\n", `error("ERR\r\n" "a")`},
	{":0\r\n", "integer(0)"},
	{":+7\r\n", "integer(7)"},
	{":-0\r\n", "integer(0)"},
	{":9007199254740993\r\n", "integer(9007199254740993)"},
	{":9223372036854775807\r\n", "integer(9223372036854775807)"},
	{":-9223372036854775808\r\n", "integer(-9223372036854775808)"},
	{":000000000000000000000000001\r\n", "integer(1)"},
	{"$5\r\nhello\r\n", `string("hello")`},
	{"$0\r\n\r\n", `string("")`},
	{"$4\r\n\r\n\r\n\r\n", `string("\r\n\r\n")`},
	{"$-1\r\n", `null("")`},
	{"*-1\r\n", `null("")`},
	{"_\r\n", `null("")`},
	{"*0\r\n", "array[]"},
	{"*2\r\n$1\r\na\r\n:1\r\n", `array[string("a") integer(1)]`},
	{"*3\r\n$-1\r\n*-1\r\n_\r\n", `array[null("") null("") null("")]`},
	{"*2\r\n*2\r\n:1\r\n*0\r\n-ERR x\r\n", `array[array[integer(1) array[]] error("ERR" "x")]`},
	{"%0\r\n", "map[]"},
	{"%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n_\r\n", `map[status("a") integer(1) status("b") map[status("c") null("")]]`},
	{"~2\r\n+a\r\n+b\r\n", `set[status("a") status("b")]`},
	{"#t\r\n", "boolean(1)"},
	{"#f\r\n", "boolean(0)"},
	{",1.5\r\n", float(1.5)},
	{",10\r\n", float(10)},
	{",0.1\r\n", float(0.1)},
	{",-1.7976931348623157e308\r\n", float(-math.MaxFloat64)},
	{",5E-324\r\n", float(5e-324)},
	{",1e3\r\n", float(1000)},
	{",inf\r\n", float(math.Inf(1))},
	{",-inf\r\n", float(math.Inf(-1))},
	{",nan\r\n", float(math.NaN())},
	{",-nan\r\n", float(math.NaN())},
	{"(3492890328409238509324850943850943825024385\r\n", `big-integer("3492890328409238509324850943850943825024385")`},
	{"(-1\r\n", `big-integer("-1")`},
	{"(+0\r\n", `big-integer("+0")`},
	{"=15\r\ntxt:Some string\r\n", `verbatim("Some string")`},
	{"=4\r\nmkd:\r\n", `verbatim("")`},
	{">0\r\n", "push[]"},
	{">2\r\n$10\r\ninvalidate\r\n_\r\n", `push[string("invalidate") null("")]`},
	{"|1\r\n+ttl\r\n:60\r\n$1\r\na\r\n", `string("a")`},
	{"|1\r\n+a\r\n*1\r\n$1\r\nb\r\n|0\r\n>1\r\n+p\r\n", `push[status("p")]`},
	{"*2\r\n|1\r\n+a\r\n%1\r\n+b\r\n+c\r\n:1\r\n:2\r\n", "array[integer(1) integer(2)]"},
	{"|1\r\n|1\r\n+x\r\n+y\r\n+a\r\n+b\r\n*1\r\n|1\r\n+c\r\n*0\r\n_\r\n", `array[null("")]`},
	{"*2\r\n*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n+z\r\n", `array[array[integer(1) integer(2)] status("z")]`},
	{"|1\r\n+a\r\n+b\r\n|0\r\n*1\r\n|1\r\n+a\r\n+b\r\n|0\r\n:1\r\n", "array[integer(1)]"},
	{"*3\r\n$2\r\nOK\r\n+QUEUED\r\n+PONG\r\n", `array[string("OK") status("QUEUED") status("PONG")]`},
}

func TestDecodesEveryType(t *testing.T) {
	for _, v := range values {
		if got := show(one(t, v.wire)); got != v.want {
			t.Errorf("%q: %s, want %s", v.wire, got, v.want)
		}
	}
}

func TestEveryFrameSplitAtEveryByte(t *testing.T) {
	for _, v := range values {
		// A value before and one behind show that nothing shifts.
		wire := []byte("+before\r\n" + v.wire + ":42\r\n")
		want := "status(\"before\")\n" + v.want + "\ninteger(42)"
		check := func(sizes ...int) {
			rs, err := decode(testLimits, wire, sizes...)
			if got := showAll(rs); got != want || err != nil {
				t.Errorf("%q in pieces of %v: %s, %v", wire, sizes, got, err)
			}
		}
		for at := 1; at < len(wire); at++ {
			check(at, len(wire))
			_, err := decode(testLimits, wire[:at], at)
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%q: %v before all of it is there", wire[:at], err)
			}
		}
		for _, size := range []int{1, 2, 3, 7} {
			check(size)
		}
	}
}

func TestManyFramesInOneRead(t *testing.T) {
	var wire, want []string
	for range 20 {
		for _, v := range values {
			wire, want = append(wire, v.wire), append(want, v.want)
		}
	}
	all := []byte(strings.Join(wire, ""))
	for _, size := range []int{len(all), 5000, 100, 1} {
		rs, err := decode(testLimits, all, size)
		if err != nil || showAll(rs) != strings.Join(want, "\n") {
			t.Errorf("in pieces of %d: %d replies, %v", size, len(rs), err)
		}
	}
}

// violations are what the decoder refuses.
var violations = []struct {
	wire string
	at   int // where it is
	want string
}{
	{"HTTP/1.1 400 Bad Request\r\n", 0, `unknown type: "H`},
	{"\r\n", 0, "unknown type"},
	{"+OK\r\n\x00", 5, "unknown type"},
	{"+OK\n", 0, "line feed without carriage return"},
	{"\n", 0, "unknown type"},
	{"+\n", 0, "line feed without carriage return"},
	{"$\r\n", 0, "malformed length"},
	{"+a\rb\r\n", 0, "malformed value"},
	{"-a\nb\r\n", 0, "line feed without"},
	{":\r\n", 0, "malformed value"},
	{":1a\r\n", 0, `malformed value: ":1a`},
	{":--1\r\n", 0, "malformed value"},
	{":9223372036854775808\r\n", 0, "malformed value"},
	{":-9223372036854775809\r\n", 0, "malformed value"},
	{":18446744073709551616\r\n", 0, "malformed value"},
	{":99999999999999999999999\r\n", 0, "malformed value"},
	{"$-2\r\n", 0, "malformed length"},
	{"$+1\r\n", 0, "malformed length"},
	{"$-01\r\n", 0, "malformed length"},
	{"$1x\r\n", 0, "malformed length"},
	{"$9223372036854775808\r\n", 0, "malformed length"},
	{"$00000000000000000000\r\n", 0, "malformed length"},
	{"$4611686018427387904\r\n", 0, "malformed length"},
	{"*-2\r\n", 0, "malformed length"},
	{"%-1\r\n", 0, "malformed length"},
	{"~-1\r\n", 0, "malformed length"},
	{">-1\r\n", 0, "malformed length"},
	{"|-1\r\n", 0, "malformed length"},
	{"|?\r\n", 0, "malformed length"},
	{"!-1\r\n", 0, "malformed length"},
	{"=-1\r\n", 0, "malformed length"},
	{"!?\r\n", 0, "malformed length"},
	{"=?\r\n", 0, "malformed length"},
	{"*9223372036854775807\r\n", 0, "malformed length"},
	{"$1048577\r\n", 0, "length beyond the limit"},
	{"*65537\r\n", 0, "length beyond the limit"},
	{"$999999999999999999\r\n", 0, "length beyond the limit"},
	{"%999999999999999999\r\n", 0, "length beyond the limit"},
	{"%4611686018427387904\r\n", 0, "malformed length"},
	{"|9223372036854775807\r\n", 0, "malformed length"},
	{"$1\r\nab\r\n", 0, "string does not end"},
	{"$1\r\na\rb", 0, "string does not end"},
	{"=3\r\ntxt\r\n", 0, "verbatim string without its type"},
	{"=0\r\n\r\n", 0, "verbatim string without its type"},
	{"*-\r\n", 0, "malformed length"},
	{"$-\r\n", 0, "malformed length"},
	{"$-0\r\n", 0, "malformed length"},
	{"$+\r\n", 0, "malformed length"},
	{"$ 1\r\n", 0, "malformed length"},
	{"$1_0\r\n", 0, "malformed length"},
	{"$0x1\r\n", 0, "malformed length"},
	{"$:1\r\n", 0, "malformed length"},
	{"=5\r\ntxt;x\r\n", 0, "verbatim string without its type"},
	{"#\r\n", 0, "malformed value"},
	{"#true\r\n", 0, "malformed value"},
	{"#x\r\n", 0, "malformed value"},
	{"#ft\r\n", 0, "malformed value"},
	{"_x\r\n", 0, "malformed value"},
	{",\r\n", 0, "malformed value"},
	{",0x10\r\n", 0, "malformed value"},
	{",1_000\r\n", 0, "malformed value"},
	{",Infinity\r\n", 0, "malformed value"},
	{",1e400\r\n", 0, "malformed value"},
	{",1.2.3\r\n", 0, "malformed value"},
	{"(\r\n", 0, "malformed value"},
	{"(-\r\n", 0, "malformed value"},
	{"(+-\r\n", 0, "malformed value"},
	{"(+-1\r\n", 0, "malformed value"},
	{"(1-2\r\n", 0, "malformed value"},
	{"(12a\r\n", 0, "malformed value"},
	{".\r\n", 0, "unknown type"},
	{"*1\r\n.\r\n", 4, "unknown type"},
	{";1\r\na\r\n", 0, "unknown type"},
	{"$?\r\n;1\r\na\r\n;0\r\n", 0, "malformed length"},
	{"*?\r\n.\r\n", 0, "malformed length"},
	{"%?\r\n+a\r\n:1\r\n.\r\n", 0, "malformed length"},
	{"~?\r\n+a\r\n.\r\n", 0, "malformed length"},
	{">?\r\n+a\r\n.\r\n", 0, "malformed length"},
	{"*1\r\n*?\r\n.\r\n", 4, "malformed length"},
	{"|1\r\n$?\r\n;0\r\n+b\r\n+c\r\n", 4, "malformed length"},
	{"*1\r\n>1\r\n+a\r\n", 4, "push inside another value"},
	{">1\r\n>1\r\n+a\r\n", 4, "push inside another value"},
	{"|1\r\n>1\r\n+a\r\n+b\r\n+c\r\n", 4, "push inside another value"},
	{"*1\r\n|1\r\n+a\r\n+b\r\n>0\r\n", 16, "push inside another value"},
	{"+fine\r\n:1\r\n:x\r\n", 11, "byte 11: malformed value"},
}

func TestViolations(t *testing.T) {
	for _, v := range violations {
		for _, size := range []int{len(v.wire), 1, 3} {
			_, err := decode(testLimits, []byte(v.wire), size)
			if !violates(err) {
				t.Errorf("%q: %v, want a violation", v.wire, err)
				continue
			}
			if s := err.Error(); !strings.HasPrefix(s, fmt.Sprintf("baton: protocol error at byte %d: ", v.at)) || !strings.Contains(s, v.want) {
				t.Errorf("%q in pieces of %d: %v, want %q at byte %d", v.wire, size, err, v.want, v.at)
			} else if len(s) > 300 {
				t.Errorf("%q: an error of %d bytes", v.wire, len(s))
			}
		}
	}
}

func TestViolationIsFinal(t *testing.T) {
	d := newDecoder(testLimits)
	d.readFrom(strings.NewReader("+a\r\n?\r\n+b\r\n"))
	if f, ok, err := d.next(); !ok || err != nil || show(d.reply(f)) != `status("a")` {
		t.Fatal("the reply before the violation is lost")
	}
	_, ok, first := d.next()
	if ok || first == nil {
		t.Fatal("no violation")
	}
	d.readFrom(strings.NewReader("+c\r\n"))
	if _, ok, err := d.next(); ok || err != first {
		t.Errorf("after the violation: %v, %v", ok, err)
	}
}

// allocated is how many bytes f takes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestLimitsCostNoMemory(t *testing.T) {
	big := limits{reply: 512 << 20, depth: 128, elements: 1 << 24}
	for _, c := range []struct {
		wire string
		l    limits
		want string
	}{
		{strings.Repeat("*1\r\n", 100_000), big, "byte 516: reply nested too deeply"}, // 129 * 4
		{strings.Repeat("|1\r\n", 100_000), big, "byte 516: reply nested too deeply"},
		{strings.Repeat("|0\r\n", 100_000), limits{1000, 9, 9}, "byte 1000: reply of too many bytes"},
		{"*16777217\r\n", big, "length beyond the limit"},
		{"*3\r\n*2\r\n:1\r\n:2\r\n*1\r\n:3\r\n:4\r\n", limits{1000, 9, 5}, "byte 28: reply nested too deeply or of too many elements"},
		{"$536870913\r\n", big, "length beyond the limit"},
		{"$536870900\r\n", big, "length beyond the limit"},
		{strings.Repeat("*25\r\n", 3) + strings.Repeat(":1\r\n", 100), limits{1000, 9, 50}, "byte 211: reply nested"},
		{"|50\r\n" + strings.Repeat("+a\r\n+b\r\n", 50), limits{1 << 20, 200, 50}, "too many elements"},
		{"+" + strings.Repeat("x", 1000), limits{1000, 9, 9}, "reply of too many bytes"},
		{"(" + strings.Repeat("1", 998) + "\r\n", limits{1000, 9, 9}, "reply of too many bytes"},
		{"*2\r\n$500\r\n" + strings.Repeat("x", 500) + "\r\n$500\r\n", limits{1000, 9, 9}, "length beyond the limit"},
		{"*1000\r\n" + strings.Repeat(":1\r\n", 1000), limits{1000, 9, 1000}, "reply of too many bytes"},
		{"*2\r\n:12\r\n+OK\r\n", limits{13, 9, 9}, "byte 9: reply of too many bytes"},
	} {
		var err error
		got := allocated(func() { _, err = decode(c.l, []byte(c.wire), 1<<20) })
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.30q: %v, want %q", c.wire, err, c.want)
		}
		if budget := uint64(len(c.wire) + 100<<10); got > budget {
			t.Errorf("%.30q: took %d bytes, want at most %d", c.wire, got, budget)
		}
	}
}

func TestJustWithinTheLimits(t *testing.T) {
	deep := strings.Repeat("*1\r\n", 128) + ":1\r\n"
	for _, c := range []struct {
		wire string
		l    limits
	}{
		{deep, testLimits},
		{"*3\r\n:1\r\n:2\r\n:3\r\n", limits{16, 1, 3}},
		{"$4\r\nabcd\r\n", limits{10, 0, 0}},
		{"+abcdefg\r\n", limits{10, 0, 0}},
		{"*1\r\n*1\r\n*1\r\n_\r\n", limits{100, 3, 3}},
	} {
		for _, size := range []int{len(c.wire), 1} {
			if _, err := decode(c.l, []byte(c.wire+c.wire), size); err != nil {
				t.Errorf("%.30q: %v", c.wire, err)
			}
		}
	}
}

// An announced length takes at most readAhead, or as much again as has arrived.
func TestAnnouncedLengthTakesNoMemoryBeforeItsBytes(t *testing.T) {
	l := limits{reply: 1 << 30, depth: 9, elements: 9}
	d := newDecoder(l)
	step := func(s string) {
		d.readFrom(strings.NewReader(s))
		if _, ok, err := d.next(); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	step("$1000000000\r\n")
	if got := allocated(func() { step("x") }); got > readAhead+busyBuffer {
		t.Errorf("a length of 1e9 and one byte took %d bytes", got)
	}
	d = newDecoder(l)
	step("$1000000\r\n")
	step("x")
	if want := len("$1000000\r\n\r\n") + 1000000; cap(d.buf) != want {
		t.Errorf("a string of 1,000,000 is read into %d bytes, want %d at once", cap(d.buf), want)
	}
}

// Nothing is scanned twice and little is moved twice, in however small pieces a big value arrives.
func TestWorkIsLinear(t *testing.T) {
	for _, wire := range []string{
		"*150000\r\n" + strings.Repeat("$1\r\na\r\n", 150_000),
		"%75000\r\n" + strings.Repeat("$1\r\na\r\n", 150_000),
		"$3000000\r\n" + strings.Repeat("x", 3_000_000) + "\r\n",
		"+" + strings.Repeat("x", 1_000_000) + "\r\n",
		"*10000\r\n" + strings.Repeat("$100\r\n"+strings.Repeat("y", 100)+"\r\n", 10_000),
		"*1000\r\n" + strings.Repeat("$1000\r\n"+strings.Repeat("y", 1000)+"\r\n", 1000),
		strings.Repeat("|1\r\n+a\r\n+b\r\n", 100_000) + ":1\r\n",
	} {
		d := newDecoder(limits{reply: 1 << 30, depth: 9, elements: 1 << 24})
		r := &pieces{data: []byte(wire), sizes: []int{100}}
		moved, frames := 0, 0
		var last *byte
		for {
			before, begin := buffered(d), d.begin
			if _, err := d.readFrom(r); err != nil {
				break
			}
			if p := unsafe.SliceData(d.buf); p != last || begin > 0 {
				moved, last = moved+before, p
			}
			if _, ok, err := d.next(); err != nil {
				t.Fatal(err)
			} else if ok {
				frames++
				continue
			}
			// What the next call will look at again: the header of a string that is not all there, or a part of a line.
			if again := len(d.buf) - max(d.pos, d.searched); d.want == 0 && again > 0 {
				t.Fatalf("%.20q: %d bytes are scanned again", wire, again)
			}
			if d.want > 0 && d.want < buffered(d) {
				t.Fatalf("%.20q: wants %d bytes and has %d", wire, d.want, buffered(d))
			}
		}
		if frames != 1 || moved > 4*len(wire) {
			t.Errorf("%.20q: %d frames; moved %d bytes for %d", wire, frames, moved, len(wire))
		}
	}
}

func TestBufferShrinks(t *testing.T) {
	d := newDecoder(testLimits)
	feed := func(s string) {
		for r := strings.NewReader(s); r.Len() > 0; {
			d.readFrom(r)
			for {
				if _, ok, _ := d.next(); !ok {
					break
				}
			}
		}
	}
	feed("+x\r\n")
	if cap(d.buf) != idleBuffer {
		t.Errorf("idle: %d", cap(d.buf))
	}
	feed(strings.Repeat("+hello\r\n", 20_000))
	if cap(d.buf) != busyBuffer {
		t.Errorf("under load: %d", cap(d.buf))
	}
	feed("$900000\r\n" + strings.Repeat("x", 900_000) + "\r\n")
	feed("+x\r\n")
	if cap(d.buf) < 900_000 {
		t.Errorf("just after a big reply that nobody took over: %d", cap(d.buf))
	}
	feed("*50000\r\n" + strings.Repeat(":1\r\n", 50_000))
	if cap(d.tokens) < 50_000 {
		t.Errorf("tokens of a long reply: %d", cap(d.tokens))
	}
	quiet := func() {
		t.Helper()
		for range keepReads + 1 { // the first one drops what was long
			feed("+x\r\n")
		}
		if cap(d.buf) != idleBuffer || cap(d.tokens) > 100 {
			t.Errorf("a while after: a buffer of %d, %d tokens", cap(d.buf), cap(d.tokens))
		}
	}
	quiet()
	feed("*10000\r\n" + strings.Repeat(":1\r\n", 10_000)) // many tokens in a buffer that is not large
	quiet()
}

func TestBigReplyKeepsTheMemoryThatWasMadeForIt(t *testing.T) {
	big := func(c string) string { return strings.Repeat(c, 100_000) }
	var wire, want []string
	for _, c := range []string{"a", "b", "c", "d"} {
		wire = append(wire, "+before\r\n", "$100000\r\n"+big(c)+"\r\n", "$4\r\ntail\r\n")
		want = append(want, "before", big(c), "tail")
	}
	for _, size := range []int{100, idleBuffer, busyBuffer, 1 << 20} {
		d := newDecoder(testLimits)
		var rs []Reply
		given := 0
		for r := (&pieces{data: []byte(strings.Join(wire, "")), sizes: []int{size}}); ; {
			if _, err := d.readFrom(r); err != nil {
				break
			}
			for f, ok, _ := d.next(); ok; f, ok, _ = d.next() {
				text, err := d.appendText([]byte("<"), f)
				if d.given {
					t.Error("appendText gave the buffer away")
				}
				reply := d.reply(f)
				if got, _ := reply.Text(); string(text) != "<"+got || err != nil {
					t.Errorf("appendText of reply %d: %.10q, %v", len(rs), text, err)
				}
				if d.given {
					given++
					if got, _ := reply.Text(); len(got) != 100_000 || cap(d.buf) != len("$100000\r\n\r\n")+100_000 {
						t.Errorf("a text of %d bytes keeps a buffer of %d", len(got), cap(d.buf))
					}
				}
				rs = append(rs, reply)
			}
		}
		if given != 4 {
			t.Errorf("in pieces of %d: %d of 4 big texts stay where they were read", size, given)
		}
		if cap(d.buf) > busyBuffer {
			t.Errorf("in pieces of %d: a buffer of %d is left", size, cap(d.buf))
		}
		for i, r := range rs { // nothing was written to what they keep
			if got, err := r.Text(); i >= len(want) || got != want[i] || err != nil {
				t.Errorf("in pieces of %d: reply %d is %.20q, %v", size, i, got, err)
			}
		}
		if len(rs) != len(want) {
			t.Errorf("in pieces of %d: %d replies", size, len(rs))
		}
	}
}

// What was read before a big reply, and what comes with the next, costs no other buffer.
func TestBigReplyGivesTheSmallBufferBack(t *testing.T) {
	d := newDecoder(testLimits)
	wire := "$100000\r\n" + strings.Repeat("x", 100_000) + "\r\n"
	var r Reply
	read := func() {
		for in := strings.NewReader(wire); in.Len() > 0; {
			d.readFrom(in)
			for f, ok, _ := d.next(); ok; f, ok, _ = d.next() {
				r = d.reply(f)
			}
		}
	}
	read()
	if got := testing.AllocsPerRun(100, read); got > 2 { // the reader is one
		t.Errorf("%v allocations, want its own memory alone", got-1)
	}
	if text, _ := r.Text(); len(text) != 100_000 {
		t.Errorf("%d bytes", len(text))
	}
}

func TestAppendTextFollowsTheRulesOfText(t *testing.T) {
	for _, v := range values {
		d := newDecoder(testLimits)
		d.readFrom(strings.NewReader(v.wire))
		f, ok, _ := d.next()
		if !ok {
			t.Fatalf("%q: no frame", v.wire)
		}
		want, wantErr := d.reply(f).Text()
		got, err := d.appendText([]byte("x"), f)
		if string(got) != "x"+want || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("%q: %q %v, Text says %q %v", v.wire, got, err, want, wantErr)
		}
	}
}

func TestRepliesOfABatch(t *testing.T) {
	d := newDecoder(testLimits)
	var wire, want []string
	for _, v := range values {
		wire, want = append(wire, v.wire), append(want, v.want)
	}
	d.readFrom(strings.NewReader(strings.Join(wire, "")))
	var fs []frame
	for f, ok, _ := d.next(); ok; f, ok, _ = d.next() {
		fs = append(fs, f)
	}
	out := make([]Reply, len(fs))
	for i := range out {
		out[i] = failure(io.EOF) // what stands there must not show through
	}
	d.replies(fs, out)
	d.readFrom(strings.NewReader(strings.Repeat("+junk\r\n", 1000)))
	if got := showAll(out); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestSlicesOfOneReplyDoNotOverlap(t *testing.T) {
	r := one(t, "*2\r\n*2\r\n:1\r\n:2\r\n*1\r\n:3\r\n")
	outer, _ := r.Elems()
	inner, _ := outer[0].Elems()
	_ = append(inner, Reply{})
	if got := show(r); got != "array[array[integer(1) integer(2)] array[integer(3)]]" {
		t.Errorf("appending to one slice changed another: %s", got)
	}
	if cap(outer) != 2 || cap(inner) != 2 {
		t.Errorf("capacities %d and %d", cap(outer), cap(inner))
	}
}

func TestReadErrorsAndCounts(t *testing.T) {
	d := newDecoder(testLimits)
	n, err := d.readFrom(readerFunc(func(p []byte) (int, error) { return copy(p, "+OK\r\n:1"), io.EOF }))
	if n != 7 || err != io.EOF || buffered(d) != 7 {
		t.Errorf("%d bytes, %v, %d buffered", n, err, buffered(d))
	}
	if f, ok, _ := d.next(); !ok || show(d.reply(f)) != `status("OK")` || buffered(d) != 2 {
		t.Errorf("what came with the error is lost; %d buffered", buffered(d))
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestAccessors(t *testing.T) {
	calls := map[string]func(Reply) (any, error){
		"Text":    func(r Reply) (any, error) { return r.Text() },
		"Bytes":   func(r Reply) (any, error) { b, err := r.Bytes(); return string(b), err },
		"Int64":   func(r Reply) (any, error) { return r.Int64() },
		"Uint64":  func(r Reply) (any, error) { return r.Uint64() },
		"Float64": func(r Reply) (any, error) { return r.Float64() },
		"Bool":    func(r Reply) (any, error) { return r.Bool() },
		"Elems":   func(r Reply) (any, error) { e, err := r.Elems(); return len(e), err },
		"Map":     func(r Reply) (any, error) { m, err := r.Map(); return len(m), err },
		"Texts":   func(r Reply) (any, error) { s, err := r.Texts(); return strings.Join(s, ","), err },
	}
	for _, c := range []struct {
		wire string
		fits map[string]any // what fits; everything else is a *TypeError
	}{
		{"$1\r\na\r\n", map[string]any{"Text": "a", "Bytes": "a"}},
		{"$3\r\n1.5\r\n", map[string]any{"Text": "1.5", "Bytes": "1.5", "Float64": 1.5}},
		{"$4\r\n-inf\r\n", map[string]any{"Text": "-inf", "Bytes": "-inf", "Float64": math.Inf(-1)}},
		{"+OK\r\n", map[string]any{"Text": "OK", "Bytes": "OK"}},
		{"+1\r\n", map[string]any{"Text": "1", "Bytes": "1"}},
		{"=5\r\ntxt:v\r\n", map[string]any{"Text": "v", "Bytes": "v"}},
		{"(12345678901234567890\r\n", map[string]any{"Text": "12345678901234567890", "Bytes": "12345678901234567890"}},
		{":7\r\n", map[string]any{"Int64": int64(7), "Uint64": uint64(7)}},
		{":1\r\n", map[string]any{"Int64": int64(1), "Uint64": uint64(1), "Bool": true}},
		{":0\r\n", map[string]any{"Int64": int64(0), "Uint64": uint64(0), "Bool": false}},
		{":-1\r\n", map[string]any{"Int64": int64(-1)}},
		{",2.5\r\n", map[string]any{"Float64": 2.5}},
		{"#t\r\n", map[string]any{"Bool": true}},
		{"#f\r\n", map[string]any{"Bool": false}},
		{"*2\r\n+a\r\n+b\r\n", map[string]any{"Elems": 2, "Map": 1, "Texts": "a,b"}},
		{"*1\r\n+a\r\n", map[string]any{"Elems": 1, "Texts": "a"}},
		{"*0\r\n", map[string]any{"Elems": 0, "Map": 0, "Texts": ""}},
		{"~2\r\n+a\r\n+b\r\n", map[string]any{"Elems": 2, "Texts": "a,b"}},
		{">2\r\n+a\r\n+b\r\n", map[string]any{"Elems": 2, "Texts": "a,b"}},
		{"%1\r\n+a\r\n+b\r\n", map[string]any{"Elems": 2, "Map": 1, "Texts": "a,b"}},
	} {
		r := one(t, c.wire)
		for name, call := range calls {
			got, err := call(r)
			want, fits := c.fits[name]
			var te *TypeError
			switch {
			case fits && (got != want || err != nil):
				t.Errorf("%q.%s: %v, %v, want %v", c.wire, name, got, err, want)
			case !fits && (!errors.As(err, &te) || te.Got != r.Kind() || !strings.HasPrefix(err.Error(), "baton: ")):
				t.Errorf("%q.%s: %v, %v, want a *TypeError", c.wire, name, got, err)
			case !fits && !reflect.ValueOf(got).IsZero():
				t.Errorf("%q.%s: %v beside an error", c.wire, name, got)
			}
		}
	}
	gone := errors.New("gone")
	for name, call := range calls {
		if _, err := call(failure(gone)); err != gone {
			t.Errorf("%s of a failure: %v", name, err)
		}
		if _, err := call(Reply{}); err != ErrNull {
			t.Errorf("%s of null: %v", name, err)
		}
		var se *ServerError
		if _, err := call(one(t, "-ERR a b\r\n")); !errors.As(err, &se) || *se != (ServerError{"ERR", "a b"}) || err.Error() != "ERR a b" {
			t.Errorf("%s of a server's error: %v", name, err)
		}
	}
}

func TestAccessorsOfElements(t *testing.T) {
	if _, err := one(t, "*3\r\n+a\r\n_\r\n+c\r\n").Texts(); !errors.Is(err, ErrNull) || !strings.Contains(err.Error(), "element 1") {
		t.Errorf("Texts with a null: %v", err)
	}
	var se *ServerError
	if _, err := one(t, "*2\r\n+a\r\n-ERR x\r\n").Texts(); !errors.As(err, &se) || !strings.Contains(err.Error(), "element 1") {
		t.Errorf("Texts with an error: %v", err)
	}
	var te *TypeError
	if _, err := one(t, "*1\r\n:1\r\n").Texts(); !errors.As(err, &te) || te.Got != KindInt {
		t.Errorf("Texts with an integer: %v", err)
	}
	if _, err := one(t, "%1\r\n:1\r\n+a\r\n").Map(); !errors.As(err, &te) || !strings.Contains(err.Error(), "key 0") {
		t.Errorf("Map with a key that is no text: %v", err)
	}
	m, err := one(t, "%3\r\n+a\r\n:1\r\n+b\r\n_\r\n+a\r\n:2\r\n").Map()
	if n, _ := m["a"].Int64(); err != nil || len(m) != 2 || n != 2 || !m["b"].IsNull() {
		t.Errorf("Map: %v, %v", m, err)
	}
	r := one(t, "$1\r\na\r\n")
	b, _ := r.Bytes()
	b[0] = 'z'
	if s, _ := r.Text(); s != "a" {
		t.Error("Bytes is no copy")
	}
	if r := (Reply{}); !r.IsNull() || r.Kind() != KindNull || r.Err() != nil {
		t.Error("the zero Reply is not null")
	}
	if r := one(t, "*1\r\n-EXECABORT x\r\n"); r.Err() != nil || elemsOf(r)[0].Err() == nil || elemsOf(r)[0].Kind() != KindError {
		t.Error("an error inside an array is an element, and no error of the array")
	}
	if size := unsafe.Sizeof(Reply{}); size > 24 {
		t.Errorf("a Reply has %d bytes", size)
	}
}

func TestPushName(t *testing.T) {
	for wire, want := range map[string]string{
		">4\r\n$6\r\nMOVING\r\n:0\r\n:15\r\n_\r\n": "moving",
		">1\r\n+Failing_Over\r\n":                  "failing_over",
		">0\r\n":                                   "",
		">1\r\n:1\r\n":                             "",
		">1\r\n*1\r\n+a\r\n":                       "",
		"*1\r\n+moving\r\n":                        "",
		"+moving\r\n":                              "",
	} {
		if got := one(t, wire).pushName(); got != want {
			t.Errorf("%q: %q, want %q", wire, got, want)
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for k := KindNull; k <= KindPush; k++ {
		seen[k.String()] = true
	}
	if len(seen) != 13 || seen[""] {
		t.Errorf("%v", seen)
	}
}

func TestAppendCommand(t *testing.T) {
	for _, c := range []struct {
		args []any
		want string
	}{
		{[]any{"PING"}, "*1\r\n$4\r\nPING\r\n"},
		{[]any{"SET", "k", []byte("v\r\n")}, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nv\r\n\r\n"},
		{[]any{"", []byte(nil)}, "*2\r\n$0\r\n\r\n$0\r\n\r\n"},
		{[]any{0, int8(-8), int16(16), int32(-32), int64(math.MinInt64)}, "*5\r\n$1\r\n0\r\n$2\r\n-8\r\n$2\r\n16\r\n$3\r\n-32\r\n$20\r\n-9223372036854775808\r\n"},
		{[]any{uint(1), uint8(8), uint16(16), uint32(32), uint64(math.MaxUint64)}, "*5\r\n$1\r\n1\r\n$1\r\n8\r\n$2\r\n16\r\n$2\r\n32\r\n$20\r\n18446744073709551615\r\n"},
		{[]any{1.5, 0.1, float32(0.1), -1e300}, "*4\r\n$3\r\n1.5\r\n$3\r\n0.1\r\n$3\r\n0.1\r\n$7\r\n-1e+300\r\n"},
		{[]any{math.Inf(1), math.Inf(-1), math.NaN(), float32(math.Inf(1))}, "*4\r\n$3\r\ninf\r\n$4\r\n-inf\r\n$3\r\nnan\r\n$3\r\ninf\r\n"},
		{[]any{true, false}, "*2\r\n$1\r\n1\r\n$1\r\n0\r\n"},
		{[]any{strings.Repeat("x", 123)}, "*1\r\n$123\r\n" + strings.Repeat("x", 123) + "\r\n"},
	} {
		got, err := appendCommand([]byte("before"), c.args)
		if string(got) != "before"+c.want || err != nil {
			t.Errorf("%v: %q, %v, want %q", c.args, got, err, c.want)
		}
	}
	type key string
	for _, c := range []struct {
		args []any
		want string
	}{
		{nil, "empty command"},
		{[]any{"GET", nil}, "argument 1 is of type <nil>"},
		{[]any{"GET", "k", time.Second}, "argument 2 is of type time.Duration"},
		{[]any{key("k")}, "argument 0 is of type baton.key"},
		{[]any{"GET", []string{"a"}}, "argument 1 is of type []string"},
		{[]any{struct{}{}}, "struct {}"},
		{[]any{uintptr(1)}, "uintptr"},
		{[]any{new(int)}, "*int"},
		{[]any{1i}, "complex128"},
	} {
		got, err := appendCommand([]byte("before"), c.args)
		if string(got) != "before" || err == nil || !strings.HasPrefix(err.Error(), "baton: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %q, %v, want %q", c.args, got, err, c.want)
		}
	}
}

func TestEncodeDecodeRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var args []any
		var want []string
		for range 1 + rnd.IntN(120) {
			switch rnd.IntN(3) {
			case 0:
				b := make([]byte, rnd.IntN(300))
				for i := range b {
					b[i] = byte(rnd.IntN(256))
				}
				args, want = append(args, b), append(want, string(b))
			case 1:
				n := int64(rnd.Uint64()) >> rnd.IntN(64)
				args, want = append(args, n), append(want, strconv.FormatInt(n, 10))
			case 2:
				f := math.Float64frombits(rnd.Uint64())
				if f != f {
					continue
				}
				args = append(args, f)
				want = append(want, strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(f, 'g', -1, 64)), "+"))
			}
		}
		if len(args) == 0 {
			continue
		}
		wire, err := appendCommand(nil, args)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := one(t, string(wire)).Texts()
		if err != nil || !reflect.DeepEqual(texts, want) {
			t.Fatalf("%q, %v, want %q", texts, err, want)
		}
		for i, a := range args {
			if f, ok := a.(float64); ok {
				if got, err := ofText(KindString, texts[i]).Float64(); got != f || err != nil {
					t.Fatalf("%v reads back as %v, %v", f, got, err)
				}
			}
		}
	}
}

// The cases about parsing that users of other clients reported.

func TestCaseB1PushInsideArrayIsAViolation(t *testing.T) {
	rs, err := decode(testLimits, []byte("*2\r\n$1\r\nA\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\nkey:0\r\n$1\r\nB\r\n"), 1000)
	if len(rs) != 0 || !violates(err) || !strings.Contains(err.Error(), "push inside another value") {
		t.Errorf("%v, %v", rs, err)
	}
}

// sequence decodes wire in pieces of every kind and wants these replies.
func sequence(t *testing.T, wire string, want ...string) {
	t.Helper()
	for size := 1; size <= len(wire); size++ {
		rs, err := decode(testLimits, []byte(wire), size)
		if got := showAll(rs); err != nil || got != strings.Join(want, "\n") {
			t.Errorf("%q in pieces of %d: %s, %v", wire, size, got, err)
		}
	}
}

func TestCaseB3PushAndReplyInOneSegment(t *testing.T) {
	push, ok := `push[string("invalidate") null("")]`, `status("OK")`
	sequence(t, ">2\r\n$10\r\ninvalidate\r\n_\r\n+OK\r\n", push, ok)
	sequence(t, "+OK\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n", ok, push)
}

func TestCaseB4PushTypeByteIsAccepted(t *testing.T) {
	if r := one(t, ">2\r\n$10\r\ninvalidate\r\n_\r\n"); r.Kind() != KindPush || r.pushName() != "invalidate" {
		t.Errorf("%v", show(r))
	}
}

func TestCaseB5PushBehindReplyShiftsNothing(t *testing.T) {
	sequence(t, "$1\r\na\r\n>1\r\n+x\r\n$1\r\nb\r\n", `string("a")`, `push[status("x")]`, `string("b")`)
}

func TestCaseB6ShortPushIsDeliveredAtOnce(t *testing.T) {
	sequence(t, ">3\r\n$9\r\nsubscribe\r\n$6\r\naaaaaa\r\n:1\r\n", `push[string("subscribe") string("aaaaaa") integer(1)]`)
}

func TestCaseB7PushSplitInItsName(t *testing.T) {
	wire := []byte(">2\r\n$9\r\nsubscribe\r\n+x\r\n")
	d := newDecoder(testLimits)
	d.buf = make([]byte, 0, 16) // a buffer smaller than the frame
	for r := (&pieces{data: wire, sizes: []int{9}}); ; {
		if _, err := d.readFrom(r); err != nil {
			t.Fatal("the push was not found")
		}
		if f, ok, err := d.next(); err != nil {
			t.Fatal(err)
		} else if ok {
			if d.reply(f).pushName() != "subscribe" {
				t.Errorf("%v", show(d.reply(f)))
			}
			return
		}
	}
}

func TestCaseB10UnsolicitedPushesAreNotReplies(t *testing.T) {
	sequence(t, ">3\r\n$12\r\nsunsubscribe\r\n$8\r\nchannel1\r\n:0\r\n-MOVED 5649 127.0.0.1:7001\r\n$1\r\nv\r\n",
		`push[string("sunsubscribe") string("channel1") integer(0)]`, `error("MOVED" "5649 127.0.0.1:7001")`, `string("v")`)
}

func TestCaseB13NullSplit(t *testing.T) {
	sequence(t, "_\r\n+PONG\r\n", `null("")`, `status("PONG")`)
}

func TestCaseB16DoublesBigNumbersVerbatimAndAttributes(t *testing.T) {
	sequence(t, ",inf\r\n,-inf\r\n,nan\r\n,1e3\r\n(3492890328409238509324850943850943825024385\r\n=15\r\ntxt:Some string\r\n|1\r\n+a\r\n:1\r\n:2\r\n",
		float(math.Inf(1)), float(math.Inf(-1)), float(math.NaN()), float(1000),
		`big-integer("3492890328409238509324850943850943825024385")`, `verbatim("Some string")`, "integer(2)")
}

func TestCaseB17NumbersAreExact(t *testing.T) {
	sequence(t, ":9007199254740991\r\n:9007199254740993\r\n:9223372036854775807\r\n,0.1\r\n",
		"integer(9007199254740991)", "integer(9007199254740993)", "integer(9223372036854775807)", float(0.1))
}

// Neither was ever seen from a server. They are refused at their first line, however they arrive, and what came before is kept.
func TestCaseB19StreamedTypesAndNullErrorsAreRefused(t *testing.T) {
	for _, wire := range []string{"$?\r\n;4\r\nHell\r\n;1\r\no\r\n;0\r\n", "*?\r\n:1\r\n.\r\n", "%?\r\n+a\r\n:1\r\n.\r\n", "!-1\r\n"} {
		for size := 1; size <= len(wire); size++ {
			for _, l := range []int{4, 5, len(wire)} {
				rs, err := decode(testLimits, []byte("+ok\r\n"+wire[:min(l, len(wire))]), size)
				if showAll(rs) != `status("ok")` || !violates(err) && l > 4 {
					t.Errorf("%q in pieces of %d: %s, %v", wire, size, showAll(rs), err)
				}
				if violates(err) && !strings.Contains(err.Error(), "byte 5: malformed length") {
					t.Errorf("%q: %v", wire, err)
				}
			}
		}
	}
}

func TestCaseB21DeepNestingIsAnError(t *testing.T) {
	_, err := decode(testLimits, []byte(strings.Repeat("*1\r\n", 100_000)), 1000)
	if err == nil || !strings.Contains(err.Error(), "nested too deeply") {
		t.Errorf("%v", err)
	}
}

func TestCaseB22UnknownPushKinds(t *testing.T) {
	sequence(t, ">2\r\n$3\r\nfoo\r\n*1\r\n%1\r\n+a\r\n_\r\n-MOVED 1 ?:6379\r\n",
		`push[string("foo") array[map[status("a") null("")]]]`, `error("MOVED" "1 ?:6379")`)
}

// framesOf reads wire at once and returns its frames.
func framesOf(t testing.TB, wire string) (*decoder, []frame) {
	d := newDecoder(testLimits)
	for r := strings.NewReader(wire); r.Len() > 0; {
		d.readFrom(r)
	}
	var fs []frame
	for f, ok, err := d.next(); ok; f, ok, err = d.next() {
		if err != nil {
			t.Fatal(err)
		}
		fs = append(fs, f)
	}
	return d, fs
}

func TestAllocations(t *testing.T) {
	pin := func(name string, most float64, f func()) {
		t.Helper()
		if got := testing.AllocsPerRun(200, f); got > most {
			t.Errorf("%s: %v allocations, want at most %v", name, got, most)
		}
	}
	get := "$64\r\n" + strings.Repeat("x", 64) + "\r\n"
	var r Reply
	dst := make([]byte, 0, 1000)

	d, fs := framesOf(t, get)
	pin("GET", 1, func() { r = d.reply(fs[0]) })
	pin("appendText", 0, func() { dst, _ = d.appendText(dst[:0], fs[0]) })

	d, fs = framesOf(t, "+OK\r\n:1\r\n_\r\n,1.5\r\n#t\r\n")
	pin("OK, integer, null, float, boolean", 0, func() {
		for _, f := range fs {
			r = d.reply(f)
		}
	})

	d, fs = framesOf(t, "*1000\r\n"+strings.Repeat(get, 1000))
	pin("MGET of 1,000", 2, func() { r = d.reply(fs[0]) })
	if cap(elemsOf(r)) != 1000 {
		t.Errorf("elements of MGET: %d", cap(elemsOf(r)))
	}
	d, fs = framesOf(t, "*1000\r\n"+strings.Repeat(":7\r\n", 1000))
	pin("1,000 integers", 1, func() { r = d.reply(fs[0]) })

	d, fs = framesOf(t, "-WRONGTYPE "+strings.Repeat("x", 50)+"\r\n")
	pin("an error", 2, func() { r = d.reply(fs[0]) })
	if a, b := r.Err(), r.Err(); a != b {
		t.Error("Err is another error each time")
	}

	out := make([]Reply, 100)
	d, fs = framesOf(t, strings.Repeat(get, 100))
	pin("batch of 100 GETs", 1, func() { d.replies(fs, out) })
	d, fs = framesOf(t, strings.Repeat("*2\r\n"+get+":1\r\n", 100))
	pin("batch of 100 arrays", 2, func() { d.replies(fs, out) })

	steady := &steadyReader{wire: []byte(get)}
	pin("reading and scanning", 0, func() {
		d.readFrom(steady)
		if _, ok, err := d.next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
	})

	key, val, n, f, raw := get[:20], get, time.Now().UnixNano(), math.Sqrt(float64(len(get))), []byte(get)
	pin("appendCommand", 0, func() {
		dst, _ = appendCommand(dst[:0], []any{"SET", key, val, raw, n, uint8(n), f, float32(f), n > 0})
	})
	_ = r
}

type steadyReader struct{ wire []byte }

func (s *steadyReader) Read(p []byte) (int, error) { return copy(p, s.wire), nil }

// The reference decoder: recursive, on the whole input, written for nothing but to be obviously right.

var errRefMore, errRefBad = errors.New("needs more"), errors.New("violation")

type reference struct {
	l      limits
	in     string
	begin  int // of the top-level value, for the limit on bytes
	pos    int
	values int // so far, but for those of attributes that are over; an attribute counts while it lasts
}

// counted is called when a value is known to be one: a string at its end, an aggregate at its header. One with which an attribute is
// over is forgotten at once, and not judged.
func (d *reference) counted(last bool) error {
	if d.values++; d.values > d.l.elements+1 && !last {
		return errRefBad
	}
	return nil
}

func (d *reference) line() (string, error) {
	i := strings.IndexByte(d.in[d.pos:], '\n')
	end := d.pos + i + 1
	if i < 0 {
		end = len(d.in)
	}
	switch {
	case end-d.begin > d.l.reply:
		return "", errRefBad
	case i < 0:
		return "", errRefMore
	}
	s := d.in[d.pos : d.pos+i]
	if !strings.HasSuffix(s, "\r") || strings.Contains(s[:len(s)-1], "\r") {
		return "", errRefBad
	}
	d.pos = end
	return s[:len(s)-1], nil
}

func (d *reference) count(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || len(s) > 18 || s[0] < '0' {
		return 0, errRefBad
	}
	return int(n), nil
}

func (d *reference) payload(n int) (string, error) {
	if n > d.l.reply-(d.pos-d.begin)-2 {
		return "", errRefBad
	}
	if d.pos+n+2 > len(d.in) {
		return "", errRefMore
	}
	s := d.in[d.pos : d.pos+n]
	if d.in[d.pos+n:d.pos+n+2] != "\r\n" {
		return "", errRefBad
	}
	d.pos += n + 2
	return s, nil
}

// value parses one; last says that an attribute ends with it.
func (d *reference) value(depth int, pushAllowed, last bool) (Reply, error) {
	before := d.values
	r, err := d.parse(depth, pushAllowed, last)
	if err == nil && d.values == before { // no aggregate
		err = d.counted(last)
	}
	return r, err
}

func (d *reference) parse(depth int, pushAllowed, last bool) (r Reply, err error) {
	if d.pos == len(d.in) {
		return r, errRefMore
	}
	tag := d.in[d.pos]
	if !strings.ContainsRune("+-:$*_#,(!=%~>|", rune(tag)) || tag == '>' && !pushAllowed {
		return r, errRefBad
	}
	d.pos++
	line, err := d.line()
	if err != nil {
		return r, err
	}
	switch tag {
	case '+':
		return ofText(KindStatus, line), nil
	case '-':
		code, message, _ := strings.Cut(line, " ")
		return failure(&ServerError{code, message}), nil
	case ':':
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return r, errRefBad
		}
		return Reply{kind: KindInt, n: n}, nil
	case '_':
		if line != "" {
			return r, errRefBad
		}
		return r, nil
	case '#':
		if line != "t" && line != "f" {
			return r, errRefBad
		}
		return Reply{kind: KindBool, n: int64(strings.Index("ft", line))}, nil
	case ',':
		f, err := strconv.ParseFloat(strings.Replace(line, "-nan", "nan", 1), 64)
		plain := strings.IndexFunc(line, func(c rune) bool { return !strings.ContainsRune("0123456789+-.eE", c) }) < 0
		if err != nil || !plain && line != "inf" && line != "-inf" && line != "nan" && line != "-nan" {
			return r, errRefBad
		}
		return Reply{kind: KindFloat, n: int64(math.Float64bits(f))}, nil
	case '(':
		digits := line
		if line != "" && (line[0] == '-' || line[0] == '+') {
			digits = line[1:]
		}
		if digits == "" || strings.Trim(digits, "0123456789") != "" {
			return r, errRefBad
		}
		return ofText(KindBigInt, line), nil
	case '$', '=', '!':
		return d.str(tag, line)
	}
	return d.aggregate(tag, line, depth, pushAllowed, last)
}

func (d *reference) str(tag byte, line string) (r Reply, err error) {
	if tag == '$' && line == "-1" {
		return r, nil
	}
	n, err := d.count(line)
	if err != nil {
		return r, errRefBad
	}
	s, err := d.payload(n)
	if err != nil {
		return r, err
	}
	switch {
	case tag == '!':
		code, message, _ := strings.Cut(s, " ")
		return failure(&ServerError{code, message}), nil
	case tag == '=' && (n < 4 || s[3] != ':'):
		return r, errRefBad
	case tag == '=':
		return ofText(KindVerbatim, s[4:]), nil
	}
	return ofText(KindString, s), nil
}

func (d *reference) aggregate(tag byte, line string, depth int, pushAllowed, last bool) (r Reply, err error) {
	if tag == '*' && line == "-1" {
		return r, nil
	}
	n, err := d.count(line)
	if err != nil || n > d.l.elements {
		return r, errRefBad
	}
	if tag == '%' || tag == '|' {
		n *= 2
	}
	if depth >= d.l.depth && n != 0 {
		return r, errRefBad
	}
	before := d.values
	if tag != '|' || n > 0 {
		if err := d.counted(last && n == 0); err != nil {
			return r, err
		}
	}
	var elems []Reply
	for i := range n {
		e, err := d.value(depth+1, false, i == n-1 && (last || tag == '|'))
		if err != nil {
			return r, err
		}
		elems = append(elems, e)
	}
	if tag == '|' {
		d.values = before
		return d.value(depth, pushAllowed, last)
	}
	kind := map[byte]Kind{'*': KindArray, '%': KindMap, '~': KindSet, '>': KindPush}[tag]
	return ofElems(kind, elems), nil
}

// refDecode is what decode should return; the error is errRefMore, errRefBad or nil.
func refDecode(l limits, in string) (out []Reply, err error) {
	for pos := 0; pos < len(in); {
		d := reference{l: l, in: in, begin: pos, pos: pos}
		r, err := d.value(0, true, false)
		if err != nil {
			return out, err
		}
		out, pos = append(out, r), d.pos
	}
	return out, nil
}

func compare(t *testing.T, in []byte, sizes ...int) {
	t.Helper()
	want, wantErr := refDecode(testLimits, string(in))
	got, err := decode(testLimits, in, sizes...)
	same := wantErr == nil && err == nil || wantErr == errRefMore && errors.Is(err, io.ErrUnexpectedEOF) || wantErr == errRefBad && violates(err)
	if !same || showAll(got) != showAll(want) {
		t.Fatalf("%q in pieces of %v:\n%s, %v\nwant\n%s, %v", in, sizes, showAll(got), err, showAll(want), wantErr)
	}
}

// TestAgainstReference decodes random inputs, made of plausible parts so that most of them mean something.
func TestAgainstReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	parts := []string{"*?\r\n", "$?\r\n", ";1\r\nx\r\n", ";0\r\n", ".\r\n", "*1\r\n", "*2\r\n", "%1\r\n", "|1\r\n", "|0\r\n", ">1\r\n", "~?\r\n", "%?\r\n", "\r\n", "x"}
	for range 8_000 {
		var in []byte
		for range 1 + rnd.IntN(8) {
			if rnd.IntN(2) == 0 {
				in = append(in, values[rnd.IntN(len(values))].wire...)
			} else {
				in = append(in, parts[rnd.IntN(len(parts))]...)
			}
		}
		if rnd.IntN(4) == 0 {
			in[rnd.IntN(len(in))] = byte(rnd.IntN(128))
		}
		compare(t, in, 1+rnd.IntN(9), 1+rnd.IntN(9), 1+rnd.IntN(30))
		compare(t, in, len(in))
	}
}
