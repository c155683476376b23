package baton

// Fuzzing: the decoder, the notification parser with all that is fed by it, ParseURL, and a client run by byte programs. The inputs that once
// found a fault are in testdata/fuzz, and plain `go test` runs them with the seeds. Whoever doubts runs, for as long as they like,
//
//	go test -run '^$' -fuzz '^FuzzBridge$' -fuzztime 10m .
//
// The decoder is compared with other libraries' in bench.

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fromTheField are frames that other clients stumbled over, or that were captured, by the number of the case they belong to.
var fromTheField = []struct{ name, wire string }{
	{"A1 brackets", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$19\r\n[2001:db8::5]:12075\r\n"},
	{"A1 bare", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$17\r\n2001:db8::5:12075\r\n"},
	{"A2", ">4\r\n$6\r\nMOVING\r\n:5\r\n:15\r\n$13\r\n10.9.0.2:6379\r\n>4\r\n$6\r\nMOVING\r\n:4\r\n:15\r\n$13\r\n10.9.0.3:6379\r\n"},
	{"A3", ">4\r\n$9\r\nMIGRATING\r\n:10\r\n:2\r\n$6\r\n[\"27\"]\r\n>4\r\n$12\r\nFAILING_OVER\r\n:11\r\n:2\r\n$6\r\n[\"27\"]\r\n>3\r\n$8\r\nMIGRATED\r\n:12\r\n$6\r\n[\"27\"]\r\n"},
	{"A4 A34", ">4\r\n$6\r\nMOVING\r\n:0\r\n:15\r\n_\r\n"},
	{"A15", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$27\r\ndb-2.example.internal:12075\r\n"},
	{"A21", ">4\r\n$6\r\nMOVING\r\n:0\r\n:15\r\n_\r\n>4\r\n$6\r\nMOVING\r\n:0\r\n:15\r\n_\r\n"},
	{"A26 question mark", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$6\r\n?:7002\r\n"},
	{"A26 no host", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$5\r\n:7002\r\n"},
	{"A26 port 0", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$20\r\nhost-1.example.com:0\r\n"},
	{"A27 texts", ">5\r\n$9\r\nMIGRATING\r\n$1\r\n8\r\n$2\r\n20\r\n$5\r\n[\"3\"]\r\n$1\r\nx\r\n"},
	{"A27 lower case", ">4\r\n$12\r\nfailing_over\r\n:1\r\n:-3\r\n$5\r\n[\"3\"]\r\n"},
	{"A27 slots", ">3\r\n$10\r\nSMIGRATING\r\n:1\r\n$3\r\n123\r\n"},
	{"A37", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$4\r\nnull\r\n"},
	{"A43", "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'\r\n"},
	{"A44 D5", "-ERR unknown command 'HELLO'\r\n"},
	{"B1", "*2\r\n$1\r\nA\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\nkey:0\r\n$1\r\nB\r\n"},
	{"B3 B4 push first", ">2\r\n$10\r\ninvalidate\r\n_\r\n+OK\r\n"},
	{"B3 push last", "+OK\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n"},
	{"B6 B7", ">3\r\n$9\r\nsubscribe\r\n$6\r\naaaaaa\r\n:1\r\n"},
	{"B10", ">3\r\n$12\r\nsunsubscribe\r\n$8\r\nchannel1\r\n:0\r\n-MOVED 5649 127.0.0.1:7001\r\n"},
	{"B13", "_\r\n+PONG\r\n"},
	{"B15", "+OK\r\n%1\r\n+proto\r\n:3\r\n"},
	{"B16 inf", ",inf\r\n,-inf\r\n,nan\r\n,1e3\r\n"},
	{"B16 big", "(3492890328409238509324850943850943825024385\r\n=15\r\ntxt:Some string\r\n"},
	{"B17", ":9007199254740991\r\n:9223372036854775807\r\n,0.1\r\n"},
	{"B19 string", "$?\r\n;4\r\nHell\r\n;1\r\no\r\n;0\r\n"},
	{"B19 array", "*?\r\n:1\r\n.\r\n"},
	{"B19 map", "%?\r\n+a\r\n:1\r\n.\r\n"},
	{"B19 error", "!-1\r\n"},
	{"B21", strings.Repeat("*1\r\n", 200)},
	{"B22", ">2\r\n$3\r\nfoo\r\n*1\r\n%1\r\n+a\r\n_\r\n-MOVED 1 ?:6379\r\n"},
	{"D4", "-NOPERM this user has no permissions to run the 'hello' command\r\n"},
	{"D13", "-MASTERDOWN Link with MASTER is down\r\n"},
	{"D14", "-READONLY You can't write against a read only replica.\r\n"},
	{"moving", ">4\r\n$6\r\nMOVING\r\n:17\r\n:15\r\n$19\r\n54.78.247.156:12075\r\n"},
	{"migrating", ">4\r\n$9\r\nMIGRATING\r\n:0\r\n:2\r\n$6\r\n[\"27\"]\r\n"},
	{"migrated", ">3\r\n$8\r\nMIGRATED\r\n:1\r\n$6\r\n[\"27\"]\r\n"},
	{"failing over", ">4\r\n$12\r\nFAILING_OVER\r\n:0\r\n:2\r\n$6\r\n[\"21\"]\r\n"},
	{"failed over", ">3\r\n$11\r\nFAILED_OVER\r\n:1\r\n$6\r\n[\"21\"]\r\n"},
	{"smigrating", ">3\r\n$10\r\nSMIGRATING\r\n:18\r\n$9\r\n8892-8991\r\n"},
	{"smigrated", ">3\r\n$9\r\nSMIGRATED\r\n:19\r\n*1\r\n*3\r\n$20\r\n10.129.228.140:13486\r\n$18\r\n10.252.90.18:13486\r\n$9\r\n8892-8991\r\n"},
}

// --- the decoder ---

// FuzzDecoder: however its input is split, the decoder finds the same replies and the same violation, the ones that the reference finds, within
// its limits and in bounded memory; what it made stays as it was, means the same when it is written down and read again, and answers every accessor.
func FuzzDecoder(f *testing.F) {
	for _, v := range values {
		f.Add([]byte(v.wire), uint16(1), uint8(0))
	}
	for i, c := range fromTheField {
		f.Add([]byte(c.wire), uint16(i), uint8(i%3*40))
	}
	for _, v := range violations {
		f.Add([]byte(v.wire), uint16(300), uint8(0))
	}
	f.Add([]byte("*2\r\n:12\r\n+OK\r\n"), uint16(2), uint8(9))
	f.Fuzz(func(t *testing.T, in []byte, split uint16, bounds uint8) {
		if len(in) == 0 || len(in) > 1<<12 {
			return
		}
		l := fuzzLimits(bounds)
		if split%64 == 63 { // behind a reply so big that it keeps the buffer it was read into
			l = limits{1 << 20, l.depth, l.elements}
			in = append(fmt.Appendf(nil, "$70000\r\n%070000d\r\n", split), in...)
		}
		whole, violation := fed(t, l, in, len(in))
		agree(t, l, in, whole, violation)
		rnd := rand.New(rand.NewPCG(uint64(split), 5))
		for _, sizes := range [][]int{{1}, {1 + rnd.IntN(9), 1 + rnd.IntN(40), 1 + rnd.IntN(9), 1 + rnd.IntN(300)}} {
			if len(in) > 70000 && sizes[0] == 1 {
				continue // it takes long, and is done without what stands before
			}
			rs, err := fed(t, l, in, sizes...)
			if !slices.EqualFunc(whole, rs, sameReply) {
				t.Fatalf("%.300q:\nat once\n%s\nin pieces of %v\n%s", in, showAll(whole), sizes, showAll(rs))
			}
			// An error quotes as much as was there to quote; all else of it is the same.
			if a, b := upToQuote(violation), upToQuote(err); a != b {
				t.Fatalf("%.300q: at once %q, in pieces of %v %q", in, a, sizes, b)
			}
		}
		for _, r := range whole {
			readsBack(t, r)
			accessorsAgree(t, r)
		}
	})
}

// fuzzLimits are those of other tests for 0, else small ones.
func fuzzLimits(n uint8) limits {
	if n == 0 {
		return testLimits
	}
	return limits{reply: 8 << (n % 8), depth: int(n / 8 % 4), elements: int(n/32) * 2}
}

// fed is decode with an eye on the decoder: it stays within its limits, takes no more memory than they and what has arrived account for, and
// says the same again after a violation. All frames of one read are also built together, as those of a batch are.
func fed(t *testing.T, l limits, in []byte, sizes ...int) (out []Reply, err error) {
	d, r := newDecoder(l), &pieces{data: in, sizes: sizes}
	for {
		_, readErr := d.readFrom(r)
		var fs []frame
		f, ok, err := d.next()
		for ; ok; f, ok, err = d.next() {
			fs = append(fs, f)
			if f.end-f.start > l.reply {
				t.Fatalf("%.300q: a reply of %d bytes, the limit is %d", in, f.end-f.start, l.reply)
			}
		}
		if most := max(busyBuffer, 2*buffered(d)+readAhead); cap(d.buf) > most && !d.given {
			t.Fatalf("%.300q: a buffer of %d for %d bytes", in, cap(d.buf), buffered(d))
		}
		if len(d.tokens)*3 > len(d.buf) || len(d.stack) > l.depth+1 {
			t.Fatalf("%.300q: %d tokens and %d levels of %d bytes", in, len(d.tokens), len(d.stack), len(d.buf))
		}
		if len(fs) > 0 {
			out = append(out, built(t, d, fs)...)
		}
		switch {
		case err != nil:
			if _, ok, again := d.next(); ok || again != err || !violates(err) || len(err.Error()) > 300 {
				t.Fatalf("%.300q: after %q comes %q", in, err, again)
			}
			return out, err
		case readErr != nil && buffered(d) > 0:
			return out, fmt.Errorf("%d bytes left: %w", buffered(d), io.ErrUnexpectedEOF)
		case readErr != nil:
			return out, nil
		}
	}
}

// built are the replies of frames, which are the same one by one.
func built(t *testing.T, d *decoder, fs []frame) []Reply {
	out := make([]Reply, len(fs))
	d.replies(fs, out)
	for i, f := range fs {
		if alone := d.reply(f); !sameReply(out[i], alone) || f.kind != out[i].Kind() {
			t.Fatalf("a %v: together with others %s, alone %s", f.kind, show(out[i]), show(alone))
		}
		text, err := out[i].Text()
		if got, bad := d.appendText([]byte("x"), f); string(got) != "x"+text || (bad == nil) != (err == nil) {
			t.Fatalf("%s: appendText says %q %v, Text %q %v", show(out[i]), got, bad, text, err)
		}
		if values, depth := extent(out[i]); values-1 > d.limits.elements || depth > d.limits.depth {
			t.Fatalf("%s: %d elements, nested %d deep, within %+v", show(out[i]), values-1, depth, d.limits)
		}
	}
	return out
}

// extent is how many values a reply is and how deep they are nested. An aggregate of nothing is no level.
func extent(r Reply) (values, depth int) {
	for _, e := range elemsOf(r) {
		n, d := extent(e)
		values, depth = values+n, max(depth, d+1)
	}
	return values + 1, depth
}

// agree compares with the reference.
func agree(t *testing.T, l limits, in []byte, got []Reply, err error) {
	want, wantErr := refDecode(l, string(in))
	same := wantErr == nil && err == nil || wantErr == errRefMore && errors.Is(err, io.ErrUnexpectedEOF) || wantErr == errRefBad && violates(err)
	if !same || !slices.EqualFunc(got, want, sameReply) {
		t.Fatalf("%.300q within %+v:\n%s, %v\nwant\n%s, %v", in, l, showAll(got), err, showAll(want), wantErr)
	}
}

// sameReply compares what show shows.
func sameReply(a, b Reply) bool {
	switch {
	case a.kind != b.kind:
		return false
	case a.kind == KindError:
		x, y := a.Err().(*ServerError), b.Err().(*ServerError)
		return *x == *y
	case a.kind.isText():
		x, _ := a.Text()
		y, _ := b.Text()
		return x == y
	case a.kind >= KindArray:
		return slices.EqualFunc(elemsOf(a), elemsOf(b), sameReply)
	}
	return a.n == b.n
}

func upToQuote(err error) string {
	s, _, _ := strings.Cut(fmt.Sprint(err), `"`)
	return s
}

// appendReply writes a reply as a server would.
func appendReply(dst []byte, r Reply) []byte {
	line := func(tag byte, text string) []byte { return append(append(append(dst, tag), text...), '\r', '\n') }
	sized := func(tag byte, text string) []byte { return fmt.Appendf(dst, "%c%d\r\n%s\r\n", tag, len(text), text) }
	text, _ := r.Text()
	switch r.Kind() {
	case KindNull:
		return line('_', "")
	case KindString:
		return sized('$', text)
	case KindStatus:
		return line('+', text)
	case KindBigInt:
		return line('(', text)
	case KindVerbatim:
		return sized('=', "txt:"+text)
	case KindInt:
		return line(':', strconv.FormatInt(r.n, 10))
	case KindFloat:
		f, _ := r.Float64()
		return line(',', strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(f, 'g', -1, 64)), "+"))
	case KindBool:
		return line('#', "ft"[r.n:r.n+1])
	case KindError:
		e := r.Err().(*ServerError)
		return sized('!', e.Code+" "+e.Message)
	}
	elems := elemsOf(r)
	n := len(elems)
	if r.Kind() == KindMap {
		n /= 2
	}
	dst = line("*%~>"[r.Kind()-KindArray], strconv.Itoa(n))
	for _, e := range elems {
		dst = appendReply(dst, e)
	}
	return dst
}

// readsBack says that a reply written down and read again is the same.
func readsBack(t *testing.T, r Reply) {
	wire := appendReply(nil, r)
	again, err := decode(limits{1 << 20, 128, 1 << 20}, wire, len(wire))
	if err != nil || len(again) != 1 || !sameReply(again[0], r) {
		t.Fatalf("%s: written as %q, that is %s, %v", show(r), wire, showAll(again), err)
	}
}

// accessorsAgree says that each accessor returns what its documentation promises for the kind, and that those that read the same agree.
func accessorsAgree(t *testing.T, r Reply) {
	k, isString := r.Kind(), r.Kind() == KindString
	text, err := r.Text()
	fits(t, r, "Text", err, k.isText())
	raw, err := r.Bytes()
	fits(t, r, "Bytes", err, k.isText() && string(raw) == text)
	n, err := r.Int64()
	fits(t, r, "Int64", err, k == KindInt)
	u, err := r.Uint64()
	fits(t, r, "Uint64", err, k == KindInt && n >= 0 && u == uint64(n))
	x, err := r.Float64()
	parsed, bad := strconv.ParseFloat(text, 64)
	fits(t, r, "Float64", err, k == KindFloat || isString && err == nil && bad == nil && math.Float64bits(x) == math.Float64bits(parsed) ||
		isString && err == nil && text == "-nan")
	b, err := r.Bool()
	fits(t, r, "Bool", err, k == KindBool || k == KindInt && (n == 0 || n == 1 && b))
	elems, err := r.Elems()
	fits(t, r, "Elems", err, k >= KindArray)
	texts, err := r.Texts()
	allTexts := !slices.ContainsFunc(elems, func(e Reply) bool { return !e.Kind().isText() })
	if err == nil || !strings.HasPrefix(err.Error(), "baton: element ") {
		fits(t, r, "Texts", err, k >= KindArray && allTexts && len(texts) == len(elems))
	} else if allTexts {
		t.Fatalf("%s: Texts: %v", show(r), err)
	}
	m, err := r.Map()
	if err == nil || !strings.HasPrefix(err.Error(), "baton: map key ") {
		fits(t, r, "Map", err, (k == KindMap || k == KindArray) && len(elems)%2 == 0 && 2*len(m) <= len(elems))
	} else if allTexts {
		t.Fatalf("%s: Map: %v", show(r), err)
	}
	if (k == KindError) != (r.Err() != nil) || (k == KindNull) != r.IsNull() || r.pushName() != "" && k != KindPush {
		t.Fatalf("%s: Err %v, IsNull %v, pushName %q", show(r), r.Err(), r.IsNull(), r.pushName())
	}
	for _, e := range elems {
		accessorsAgree(t, e)
	}
}

// fits says that an accessor has no error exactly if the reply fits it, and the right one else.
func fits(t *testing.T, r Reply, accessor string, err error, want bool) {
	ok := (err == nil) == want
	var mismatch *TypeError
	switch {
	case want:
	case r.Kind() == KindNull:
		ok = err == ErrNull
	case r.Kind() == KindError:
		ok = err == r.Err()
	default:
		ok = errors.As(err, &mismatch) && mismatch.Got == r.Kind() && mismatch.Error() != ""
	}
	if !ok {
		t.Fatalf("%s: %s says %v", show(r), accessor, err)
	}
}

var _ = []any{bytes.Equal, cmp.Or[int], tls.Config{}, net.JoinHostPort, url.Parse, reflect.DeepEqual, time.Now}
