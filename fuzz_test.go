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
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
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
	{"A28", ">4\r\n$9\r\nMIGRATING\r\n:5\r\n:2\r\n$5\r\n[\"3\"]\r\n>4\r\n$9\r\nMIGRATING\r\n:5\r\n:2\r\n$5\r\n[\"3\"]\r\n"},
	{"A33", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$11\r\n127.0.0.1:1\r\n"},
	{"A37", ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$4\r\nnull\r\n"},
	{"A43", "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'\r\n"},
	{"A44 D5", "-ERR unknown command 'HELLO'\r\n"},
	{"B1", "*2\r\n$1\r\nA\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\nkey:0\r\n$1\r\nB\r\n"},
	{"B3 B4 push first", ">2\r\n$10\r\ninvalidate\r\n_\r\n+OK\r\n"},
	{"B3 push last", "+OK\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n"},
	{"B6 B7", ">3\r\n$9\r\nsubscribe\r\n$6\r\naaaaaa\r\n:1\r\n"},
	{"B10", ">3\r\n$12\r\nsunsubscribe\r\n$8\r\nchannel1\r\n:0\r\n-MOVED 5649 127.0.0.1:7001\r\n"},
	{"B11 confirmed", ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n+PONG\r\n"},
	{"B11 refused", "-NOPERM No permissions to access a channel\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:1\r\n+PONG\r\n"},
	{"B12", ">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n"},
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
	{"C13", "+OK\r\n-READONLY You can't write against a read only replica.\r\n"},
	{"C21", "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n+QUEUED\r\n-ERR EXEC without MULTI\r\n"},
	{"D4", "-NOPERM this user has no permissions to run the 'hello' command\r\n"},
	{"D5", "-NOPROTO unsupported protocol version\r\n"},
	{"D6", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"},
	{"D7", "-NOAUTH HELLO must be called with the client already authenticated\r\n"},
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

// FuzzDecoder: however its input is split, and a short one is split at every byte, the decoder finds the same replies and the same violation, the
// ones that the reference finds, within its limits and in bounded memory; what it made stays as it was, means the same when it is written down and
// read again, and answers every accessor.
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
		cuttings := [][]int{{1 + rnd.IntN(9), 1 + rnd.IntN(40), 1 + rnd.IntN(9), 1 + rnd.IntN(300)}}
		if len(in) < 70000 { // else it takes long, and is done without what stands before
			cuttings = append(cuttings, []int{1})
		}
		for i := 1; i < len(in) && len(in) <= 200; i++ {
			cuttings = append(cuttings, []int{i, len(in) - i})
		}
		for _, sizes := range cuttings {
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

// --- notifications ---

// fuzzPlain are push frames in a form that a fuzzer can vary: a frame on each line, its elements between blanks; what begins with ':', ',', '#', '_', '*' or
// '-' is of that type, everything else a string.
func fuzzPlain(plain string) (pushes []Reply) {
	for line := range strings.Lines(plain) {
		var elems []Reply
		for _, word := range strings.Split(strings.TrimSuffix(line, "\n"), " ") {
			r := ofText(KindString, word)
			if word != "" && strings.Contains(":,#_*-", word[:1]) {
				if rs, err := decode(testLimits, []byte(word+"\r\n"), 100); err == nil && len(rs) == 1 {
					r = rs[0]
				}
			}
			elems = append(elems, r)
		}
		pushes = append(pushes, ofElems(KindPush, elems))
	}
	return pushes
}

// FuzzNotification: whatever a push frame holds, what is read of it is within bounds, and so is what follows: the relaxed windows are those of a
// naive model, an announcement is never changed by a copy, a dial goes to a place that was named, found or configured and is due in time, and the
// machine holds no longer than it may.
func FuzzNotification(f *testing.F) {
	for i, c := range fromTheField {
		if strings.HasPrefix(c.wire, ">") {
			f.Add([]byte(c.wire), "", []byte{byte(i), 30, 33, 35})
		}
	}
	for _, plain := range []string{
		"MOVING :17 :15 54.78.247.156:12075\nMOVING :17 :15 54.78.247.156:12075\nMOVING :18 :2 _",
		"MIGRATING :10 :2\nFAILING_OVER :11 :2\nMIGRATED :12\nFAILED_OVER :13",
		"moving 7 -3 [2001:db8::5]:12075\nMOVING _ _ db.example.com.:1\nMOVING",
		"SMIGRATING :18 8892-8991\nSMIGRATED :19 *0\nMOVING :1 h:65536\nMOVING :1 h:65535",
		"MOVING :1 :1 a:1\nMOVING :2 :1 b:1\nMOVING :3 :1 a:1\nMOVING :4 :1 b:1\nMOVING :5 :1 a:1",
		"MOVING :1 :999999999999 ?:1\nMOVING :2 :9223372036854775807 fe80::1%eth0:1\nMIGRATING :-1 :-1",
	} {
		f.Add([]byte(nil), plain, []byte{0, 30, 1, 33, 2, 31, 6, 34, 7, 5})
	}
	f.Fuzz(func(t *testing.T, wire []byte, plain string, clock []byte) {
		if len(wire)+len(plain) > 1<<12 || len(clock) > 1<<8 {
			return
		}
		pushes, _ := decode(testLimits, wire, max(len(wire), 1))
		w := newFuzzWatch(t, clock)
		for _, push := range append(pushes, fuzzPlain(plain)...) {
			n, ok := parseNotification(push)
			if judged(t, push, n, ok); ok {
				w.told(n)
			}
			w.passes()
		}
	})
}

// judged says that what was read of a frame is within its bounds.
func judged(t *testing.T, push Reply, n notification, ok bool) {
	known, want := frames[push.pushName()]
	if ok != want || n.name != known.name || n.kind != known.kind || n.closes != known.closes {
		t.Fatalf("%s is %+v, %v", show(push), n, ok)
	}
	opens := ok && !n.closes && n.kind != slotMigrating
	if n.window < 0 || n.window > time.Hour || n.window%time.Second != 0 || n.timed && !opens || n.window != 0 && !n.timed || n.seq != 0 && !n.numbered {
		t.Fatalf("%s is %+v", show(push), n)
	}
	if n.successor == "" {
		return
	}
	host, port, err := net.SplitHostPort(n.successor)
	number, bad := strconv.Atoi(port)
	if err != nil || bad != nil || number < 1 || number > 65535 || host == "" || host == "?" || len(host) > 253 || n.kind != moving || n.closes {
		t.Fatalf("%s names a successor that cannot be dialled: %q (%v)", show(push), n.successor, err)
	}
	if again := usableEndpoint(n.successor); again != n.successor {
		t.Fatalf("%s names %q, which as a name is %q", show(push), n.successor, again)
	}
}

// fuzzWatch is all that notifications are fed to, with a clock that the input drives.
type fuzzWatch struct {
	*testing.T
	clock []byte
	t     tick
	m     Maintenance

	r       *relaxation
	pin     *pin
	counter uint64
	hand    handoff
	q       quest
	here    location
	// The naive model of the relaxed windows.
	until   [windowKinds]tick
	openers [windowKinds]int
	tail    tick
	seen    []notification
}

func newFuzzWatch(t *testing.T, clock []byte) *fuzzWatch {
	w := &fuzzWatch{T: t, clock: clock, t: now(), counter: 1}
	b := w.next()
	w.m.RelaxedTimeout = [...]time.Duration{0, -1, time.Millisecond, time.Hour, 1, 20 * time.Second, 0, 0}[b%8]
	w.m.RelaxedWindowMax = [...]time.Duration{0, time.Second, 1, 24 * time.Hour}[b/8%4]
	w.m.HoldCap = [...]time.Duration{0, -1, 1, time.Hour}[b/32%4]
	o, err := Options{Maintenance: w.m}.resolved()
	if err != nil {
		t.Fatal(err)
	}
	w.m = o.Maintenance
	w.r = &relaxation{m: &w.m}
	w.pin = &pin{configured: addrA, grace: max(o.DialTimeout, w.m.RelaxedTimeout)}
	if b >= 128 {
		w.pin.configured, w.pin.host, w.pin.port = "db.example.com:6379", "db.example.com", "6379"
	}
	w.here = location{w.pin.configured, addrA, 1}
	return w
}

// next is the next byte of the clock's, 0 behind them.
func (w *fuzzWatch) next() (b byte) {
	if len(w.clock) > 0 {
		b, w.clock = w.clock[0], w.clock[1:]
	}
	return b
}

// told does what a bridge does that is told n on its current connection.
func (w *fuzzWatch) told(n notification) {
	if n.kind == moving && !n.timed {
		if n.window = w.m.RelaxedTimeout; n.window < 0 {
			n.window = defaultRelaxed
		}
	}
	before, ok := w.pin.remembered(w.t)
	if copied := n.kind == moving && ok && before.covers(&n); !copied {
		w.observed(n)
	}
	if n.kind != moving {
		return
	}
	a := w.pin.announce(&n, w.t, func() uint64 { w.counter++; return w.counter })
	switch covered := ok && before.covers(&n); {
	case covered && !reflect.DeepEqual(a, before):
		w.Fatalf("a copy, %+v, changed what was announced from %+v to %+v", n, before, a)
	case !covered && (a.number != w.counter || a.number <= before.number || a.received != w.t || a.successor != n.successor || a.seq != n.seq):
		w.Fatalf("%+v is announced as %+v", n, a)
	}
	if span := a.received.until(a.deadline()); span < 0 || span > max(time.Hour, w.m.RelaxedTimeout) {
		w.Fatalf("%+v lasts for %v", a, span)
	}
	if w.here.attempt < a.number {
		w.pin.tell(a.number, w.here.remote)
	}
	if w.here.attempt < a.number && w.q.number != a.number && w.hand.phase != PhaseHolding {
		w.joins(a)
	}
}

func (w *fuzzWatch) observed(n notification) {
	var got, want []EventKind
	w.r.observe(&n, w.t, func(k EventKind) { got = append(got, k) })
	same := func(s notification) bool {
		return n.numbered && s.numbered && s.name == n.name && s.seq == n.seq && w.t < s.received+tick(w.m.RelaxedWindowMax)
	}
	if !slices.ContainsFunc(w.seen[max(len(w.seen)-64, 0):], same) {
		want = append(want, EventNotification)
		n.received = w.t
		w.seen = append(w.seen, n)
		want = append(want, w.modelled(n)...)
	}
	if !slices.Equal(got, want) {
		w.Fatalf("%+v is told as %q, the model says %q", n, got, want)
	}
	w.consistent()
}

// modelled is what the naive model makes of a notification that is no copy.
func (w *fuzzWatch) modelled(n notification) (told []EventKind) {
	open := w.until[n.kind] > w.t
	switch {
	case w.m.RelaxedTimeout < 0:
	case n.closes:
		w.tail = max(w.tail, w.t+tick(w.m.PostEventRelaxed))
		if w.openers[n.kind]--; open && w.openers[n.kind] == 0 {
			w.until[n.kind] = 0
			told = append(told, EventTightened)
		}
	default:
		if !open {
			w.openers[n.kind] = 0
			told = append(told, EventRelaxed)
		}
		w.openers[n.kind]++
		w.until[n.kind] = max(w.until[n.kind], w.t+tick(min(max(n.window, w.m.RelaxedTimeout), w.m.RelaxedWindowMax)))
	}
	return told
}

// consistent compares the relaxed windows with the model, and with what must always be true of them.
func (w *fuzzWatch) consistent() {
	relaxed := w.tail > w.t
	for k := range w.r.windows {
		open := w.r.windows[k].pendingAt(w.t)
		relaxed = relaxed || open
		switch {
		case open != (w.until[k] > w.t) || open && w.r.windows[k].tick() != w.until[k]:
			w.Fatalf("%s: open is %v until %v, the model says until %v", windowNames[k], open, w.r.windows[k].tick(), w.until[k])
		case open && (w.r.openers[k] != w.openers[k] || w.openers[k] < 1):
			w.Fatalf("%s: open with %d openers, the model has %d", windowNames[k], w.r.openers[k], w.openers[k])
		case w.r.windows[k].tick() > w.t.add(w.m.RelaxedWindowMax):
			w.Fatalf("%s: relaxed for %v, at most it is %v", windowNames[k], w.t.until(w.r.windows[k].tick()), w.m.RelaxedWindowMax)
		}
	}
	for _, timeout := range []time.Duration{-1, 0, 1, time.Second, time.Minute} {
		want := timeout
		if relaxed && timeout >= 0 {
			want = max(timeout, w.m.RelaxedTimeout)
		}
		if got := w.r.effective(timeout, w.t); got != want {
			w.Fatalf("%v counts as %v, want %v (relaxed: %v)", timeout, got, want, relaxed)
		}
	}
	if len(w.r.seen) > 64 || w.r.failover.tick() > w.t.add(w.m.RelaxedWindowMax) {
		w.Fatalf("%d notifications are remembered, a failover until %v", len(w.r.seen), w.r.failover.tick())
	}
}

// joins sets out for an announcement, as a bridge does.
func (w *fuzzWatch) joins(a announcement) {
	if a.number != w.q.number {
		w.hand.budget = w.m.HoldCap
	}
	latest := w.t.add(cmp.Or(a.window, w.pin.grace) / 2)
	w.q.join(a, w.t, w.t, latest, true)
	soonest, last := w.t, max(w.t.add(min(a.window/10, time.Second)+1), w.q.spaced)
	if w.q.at < soonest || w.q.at > last || w.q.spaced > max(latest, w.t) && w.q.spaced > w.q.last.add(maxSpacing) {
		w.Fatalf("the dial for %+v is in %v, after at most %v", a, w.t.until(w.q.at), w.t.until(last))
	}
	w.hand.giveUpAt = max(a.deadline(), w.q.at).add(w.pin.grace)
	w.steps(joined)
}

// steps feeds the machine and says what it may do: the table at the type handoff, row by row.
func (w *fuzzWatch) steps(e happening) {
	before := w.hand
	a := w.hand.step(e, w.t)
	may := map[Phase]map[action]Phase{
		PhaseDone:      {nothing: PhaseDone, prepare: PhasePreparing},
		PhasePreparing: {nothing: PhasePreparing, prepare: PhasePreparing, hold: PhaseHolding, promote: PhaseDone, giveUp: PhaseDone},
		PhaseHolding:   {nothing: PhaseHolding, prepare: PhasePreparing, promote: PhaseDone},
	}
	after, ok := may[before.phase][a]
	switch {
	case !ok || after != w.hand.phase || e == joined && before.phase != PhaseHolding && a != prepare:
		w.Fatalf("%+v is told %d, does %d and is %+v", before, e, a, w.hand)
	case w.hand.budget > before.budget || w.hand.budget > max(w.m.HoldCap, 0):
		w.Fatalf("%+v is told %d and has %v left to hold", before, e, w.hand.budget)
	case a == hold && (before.budget <= 0 || w.hand.holdUntil > w.t.add(w.m.HoldCap)):
		w.Fatalf("%+v is told %d and holds for %v", before, e, w.t.until(w.hand.holdUntil))
	case a == giveUp && w.t < before.giveUpAt:
		w.Fatalf("%+v gives up %v too early", before, w.t.until(before.giveUpAt))
	}
	if w.hand.phase == PhaseDone && w.hand.next() != never {
		w.Fatalf("%+v has time to wait for", w.hand)
	}
}

// passes lets time pass, windows run out, and a dial happen if one is due.
func (w *fuzzWatch) passes() {
	b := w.next()
	if b < 200 {
		w.t = w.t.add(time.Duration(1) << (b % 42))
	}
	over := w.r.expired(w.t, func(string) {})
	if over <= w.t {
		w.Fatalf("the next window to run out has run out %v ago", over.until(w.t))
	}
	w.consistent()
	w.dials(w.next())
	if e := happening(w.next() % 16); joined < e && e <= timePassed {
		w.steps(e)
	}
}

func (w *fuzzWatch) dials(b byte) {
	at, to := w.pin.plan(w.t, &w.q, w.here)
	a, remembered := w.pin.remembered(w.t)
	switch {
	case to.addr != w.pin.configured && to.addr != a.successor && to.addr != a.found,
		to.named && (to.addr != a.successor || to.addr == "" || !remembered),
		to.number != 0 && (to.number != a.number || !remembered):
		w.Fatalf("a dial goes to %+v, announced is %+v", to, a)
	case at == never && w.q.again < maxAgain || at != never && at > max(w.q.at, a.half().add(w.q.jitter)):
		w.Fatalf("a dial in %v, due in %v", w.t.until(at), w.t.until(w.q.at))
	}
	if b%4 == 0 {
		w.pin.find(a.number, []string{"10.9.0.1", "10.9.0.7"})
	}
	if b%4 == 1 {
		w.pin.refuse(a.number)
	}
	if at > w.t || b%2 == 0 {
		return
	}
	w.counter++
	w.q.begun(to, w.t)
	if b < 128 {
		w.q.retry(w.t, 1)
		if wait := w.t.until(w.q.at); wait < 0 || wait > time.Second {
			w.Fatalf("after a failure the next dial is in %v", wait)
		}
		return
	}
	w.here = location{to.addr, to.addr, w.counter}
	w.steps(ready)
}

// --- URLs ---

// urlOptions are the options that a URL may hold, as its documentation names them, and where each is. Where to connect to is none.
var urlOptions = map[string]func(o *Options) any{
	"username": func(o *Options) any { return &o.Username }, "password": func(o *Options) any { return &o.Password },
	"client_name": func(o *Options) any { return &o.ClientName }, "proxy": func(o *Options) any { return &o.Proxy },
	"db": func(o *Options) any { return &o.DB }, "conns": func(o *Options) any { return &o.Conns },
	"max_backlog": func(o *Options) any { return &o.MaxBacklog }, "max_backlog_bytes": func(o *Options) any { return &o.MaxBacklogBytes },
	"max_in_flight": func(o *Options) any { return &o.MaxInFlight }, "max_dedicated": func(o *Options) any { return &o.MaxDedicated },
	"max_messages": func(o *Options) any { return &o.MaxMessages }, "max_reply": func(o *Options) any { return &o.MaxReply },
	"max_depth": func(o *Options) any { return &o.MaxDepth }, "max_elements": func(o *Options) any { return &o.MaxElements },
	"dial_timeout": func(o *Options) any { return &o.DialTimeout }, "timeout": func(o *Options) any { return &o.Timeout },
	"keep_alive": func(o *Options) any { return &o.KeepAlive }, "max_age": func(o *Options) any { return &o.MaxAge },
	"relaxed_timeout":    func(o *Options) any { return &o.Maintenance.RelaxedTimeout },
	"relaxed_window_max": func(o *Options) any { return &o.Maintenance.RelaxedWindowMax },
	"post_event_relaxed": func(o *Options) any { return &o.Maintenance.PostEventRelaxed },
	"hold_cap":           func(o *Options) any { return &o.Maintenance.HoldCap },
	"backlog":            func(o *Options) any { return &o.Backlog },
	"mode":               func(o *Options) any { return &o.Maintenance.Mode },
	"endpoint_type":      func(o *Options) any { return &o.Maintenance.EndpointType },
}

// urlOption is the option that a name in a query means: letters in upper case and missing underscores are let pass.
func urlOption(name string) (option string, ok bool) {
	for option := range urlOptions {
		if strings.EqualFold(strings.ReplaceAll(option, "_", ""), strings.ReplaceAll(name, "_", "")) {
			return option, true
		}
	}
	return "", false
}

// urlValue sets what an option's text means; false: nothing.
func urlValue(o *Options, option, text string) bool {
	var err error
	named := func(names ...string) uint8 {
		i := slices.Index(names, strings.ToLower(text))
		if i < 0 {
			err = errors.ErrUnsupported
		}
		return uint8(i)
	}
	switch p := urlOptions[option](o).(type) {
	case *string:
		*p = text
	case *int:
		*p, err = strconv.Atoi(text)
	case *time.Duration:
		*p, err = time.ParseDuration(text)
	case *BacklogPolicy:
		*p = BacklogPolicy(named("queue", "failfast"))
	case *Mode:
		*p = Mode(named("auto", "enabled", "disabled"))
	case *EndpointType:
		*p = EndpointType(named("auto", "internal-ip", "internal-fqdn", "external-ip", "external-fqdn", "none"))
	}
	return err == nil
}

// FuzzParseURL: what is accepted means what its parts say, each option has taken effect, and it means the same however often it is read; what is
// refused is refused in words that hold nothing of the URL but names of options.
func FuzzParseURL(f *testing.F) {
	for _, raw := range []string{
		"redis://", "redis://db.example.com:7000/3", "redis:///3", "redis://[2001:db8::5]:7000", "redis://[::1]/1", "rediss://:secret@h",
		"redis://alice:s%40c%2Fr%3Aet@h:1?client_name=a+b", "unix:///tmp/redis.sock?db=2", "unix://alice:secret@/tmp/redis.sock",
		"redis://h?db=1&timeout=1.5s&dial_timeout=2s&keep_alive=-1s&conns=3&backlog=failfast&max_backlog=4&max_backlog_bytes=5",
		"redis://h?max_in_flight=6&max_reply=7&max_depth=8&max_elements=9&proxy=socks5://p:1080&max_age=1h&max_messages=2&max_dedicated=1",
		"redis://h?mode=enabled&endpoint_type=external-fqdn&relaxed_timeout=1s&relaxed_window_max=2s&post_event_relaxed=-1s&hold_cap=3ms",
		"redis://h?mode=Disabled&HoldCap=1s&username=u&password=p", "http://u:hunter2@h", "redis://u:hunter2%zz@h", "redis://u:hunter2@h:port",
		"redis://u:hunter2@h/x", "redis://u:hunter2@h?nosuch=1", "redis://u:hunter2@h?timeout=5", "redis://u:1#hunter2@h", "redis://u:1?hunter2@h",
		"redis://h?network=unix&addr=/tmp/s", "redis://h?conns=1&Conns=2", "redis://h?network=udp", "redis://h/3?db=4", "redis://h?timeout=1s&timeout=2s", "redis:h:1", "redis://h#f",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if len(raw) > 1<<11 {
			return
		}
		o, err := ParseURL(raw)
		for range 3 {
			if again, bad := ParseURL(raw); (bad == nil) != (err == nil) || err == nil && !sameOptions(o, again) {
				t.Fatalf("%q is read as %+v, %v, and then as %+v, %v", raw, o, err, again, bad)
			}
		}
		if _, rest, ok := strings.Cut(raw, "://"); ok {
			marked := raw[:len(raw)-len(rest)] + "u:hunter2@" + rest[strings.LastIndexByte(rest, '@')+1:]
			if _, err := ParseURL(marked); err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("%q: the error holds the password: %v", marked, err)
			}
		}
		if err != nil {
			holdsNothingOf(t, raw, err)
			return
		}
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatalf("%q is accepted, and is no URL: %v", raw, err)
		}
		if want, ok := meant(u); !ok || !sameOptions(o, want) {
			t.Fatalf("%q is read as\n%+v, it says\n%+v, %v", raw, o, want, ok)
		}
		if again, err := ParseURL(u.String()); err != nil || !sameOptions(o, again) {
			t.Fatalf("%q is written as %q, and that read as %+v, %v", raw, u, again, err)
		}
		resolved, err := o.resolved()
		if again, bad := resolved.resolved(); err != nil || bad != nil || !sameOptions(resolved, again) {
			t.Fatalf("%q: resolved as %+v, %v, and then as %+v, %v", raw, resolved, err, again, bad)
		}
	})
}

// meant is what a URL says by its documentation. False: it should have been refused.
func meant(u *url.URL) (o Options, ok bool) {
	o.Addr, o.Username = u.Host, u.User.Username()
	o.Password, _ = u.User.Password()
	query := u.Query()
	switch ok = u.Opaque == "" && u.Fragment == ""; u.Scheme {
	case "rediss":
		o.TLS = &tls.Config{}
		fallthrough
	case "redis":
		if db := strings.Trim(u.Path, "/"); db != "" {
			query.Add("db", db)
		}
	case "unix":
		o.Network, o.Addr = "unix", u.Path
	default:
		return o, false
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		all := query[name]
		option, known := urlOption(name)
		ok = ok && known && urlValue(&o, option, all[len(all)-1])
	}
	return o, ok
}

func sameOptions(a, b Options) bool {
	if (a.TLS == nil) != (b.TLS == nil) || a.TLS != nil && a.TLS.ServerName != b.TLS.ServerName {
		return false
	}
	a.TLS, b.TLS = nil, nil
	return reflect.DeepEqual(a, b)
}

// holdsNothingOf says that no word of the error, those that every such error may have left aside, is from the URL.
func holdsNothingOf(t *testing.T, raw string, err error) {
	const own = "baton URL not well formed want redis host port rediss unix path options option that does not exist none negative DialTimeout " +
		"RelaxedWindowMax bound policy mode endpoint type int time Duration string queue failfast auto enabled disabled internal external fqdn which is"
	words := strings.Fields(own)
	isWord := func(c rune) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= 0x80
	}
	for word := range strings.FieldsFuncSeq(err.Error(), func(c rune) bool { return !isWord(c) }) {
		if _, option := urlOption(word); len(word) > 4 && !option && !slices.Contains(words, word) && strings.Contains(raw, word) {
			t.Fatalf("%q: the error repeats %q: %v", raw, word, err)
		}
	}
	if !strings.HasPrefix(err.Error(), "baton: ") {
		t.Fatalf("%q: %v", raw, err)
	}
}

// --- programs against a client ---

// FuzzBridge: a program of bytes drives a client and its server, step by step in virtual time: calls of every kind, contexts that end, replies whole, in
// parts or wrong, announcements, cuts, stalls. The numbered invariants hold at the end of every critical section. In the end the server is well again:
// then every call has ended, with what the contract says of its ending, the client serves, and after Close nothing is left.
func FuzzBridge(f *testing.F) {
	for _, p := range fuzzPrograms {
		f.Add([]byte(p))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) < 4 || len(program) > 2*48 {
			return
		}
		bubble(t, func(t *testing.T) { newPuppeteer(t, program[0], program[1]).play(program[2:]) })
	})
}

// fuzzPrograms are beginnings: the options in two bytes, then an operation and its argument in two each. From A2 on they play
// what happened in the cases that they are named after.
var fuzzPrograms = []string{
	"\x00\x00" + "\x00\x00\x0b\x01\x00\x00\x07\x00\x10\x02",                 // a handoff with a command in flight
	"\x00\x00" + "\x01\x03\x0e\x00\x00\x00\x10\x08\x11\x00",                 // a cut, and a context that ends
	"\x01\x00" + "\x00\x00\x07\x00\x00\x00\x07\x00\x00\x00\x07\x00",         // calls that follow each other
	"\x40\x20" + "\x03\x00\x03\x00\x04\x00\x0b\x09\x14\x00\x10\x05",         // dedicated connections, told to move
	"\x04\x00" + "\x05\x00\x08\x00\x0d\x00\x0b\x01\x08\x00\x0d\x00\x08\x00", // a subscription is handed off
	"\x08\x00" + "\x02\x02\x02\x02\x09\x05\x0a\x00\x0f\x00\x12\x00\x10\x04", // transactions, a partial reply, a wrong one
	"\x10\x10" + "\x17\x02\x0e\x00\x00\x00\x16\x00\x12\x00\x13\x00",         // dials that fail
	"\x20\x40" + "\x15\x12\x00\x00\x01\x02\x0f\x01\x10\x0a\x15\x00\x08\x00", // writes that stall
	"\x02\x08" + "\x0c\x02\x18\x03\x00\x00\x08\x00\x0c\x04\x10\x09\x1a\x00", // a failover
	"\x00\x04" + "\x12\x00\x00\x00\x12\x00\x10\x06\x07\x00\x13\x00\x10\x07", // renewals, and a shutdown

	"\x00\x00" + "\x00\x00\x0b\x00\x10\x06\x0b\x48\x00\x00\x08\x00",                                                                 // A2: a lower number on the new connection
	"\x40\x00" + "\x0c\x00\x0c\x04\x0c\x08\x00\x00\x10\x07\x0c\x0c\x08\x00",                                                         // A3: two kinds of maintenance overlap; the one ends, a command is slow, the other ends
	"\x00\x00" + "\x0b\xc0\x00\x00\x10\x08\x10\x06\x08\x00\x0e\x00\x00\x00\x08\x00",                                                 // A4 A22 A34: no successor is named
	"\x00\x00" + "\x00\x00\x0b\x00\x10\x07\x0b\x41\x00\x00\x08\x00",                                                                 // A7: the retired connection is told again
	"\x02\x00" + "\x17\x02\x0e\x00\x0b\x00\x10\x08\x00\x00\x08\x00",                                                                 // A8: a dial is under way when another connection is told
	"\x00\x00" + "\x04\x00\x0b\x00\x10\x0a\x14\x01\x08\x00\x16\x01\x04\x00\x08\x00",                                                 // A10: a session outlasts the window
	"\xc0\x00" + "\x0c\x00\x00\x00\x10\x08\x08\x00",                                                                                 // A11: a reply that is late, in a window
	"\x00\x00" + "\x0c\x00\x03\x00\x10\x09\x08\x00",                                                                                 // A12: a blocking command in a window
	"\x40\x00" + "\x0c\x00\x10\x09\x1b\x08\x10\x09\x1b\x08\x00\x00\x10\x07\x08\x00",                                                 // A14: a window ends while nothing comes but pushes; a command is slow
	"\x00\x00" + "\x0b\x00\x0b\x00\x10\x07\x10\x07\x00\x00\x08\x00\x10\x09",                                                         // A20: every new connection is told again
	"\x00\x00" + "\x0b\x04\x0b\x04\x00\x00\x08\x00",                                                                                 // A21: number 0, twice
	"\x00\x00" + "\x17\x01\x17\x01\x17\x01\x17\x01\x17\x01\x17\x01\x17\x01\x17\x01\x0b\x20\x10\x08\x0e\x00\x00\x00\x10\x07\x08\x00", // A25: the successor refuses, and the window ends
	"\x02\x00" + "\x0b\x00\x0b\x05\x00\x00\x08\x00\x10\x06\x00\x00\x08\x00",                                                         // A28: each of two connections is told
	"\x00\x00" + "\x00\x00\x17\x01\x17\x01\x17\x01\x17\x01\x0b\x00\x10\x06\x00\x00\x08\x00\x0e\x00\x00\x00\x08\x00",                 // A33: the successor refuses; then the cut
	"\xc0\x40" + "\x17\x02\x0b\x00\x10\x02\x00\x00\x10\x07\x08\x00",                                                                 // A35: a command just after an idle connection is told; the successor is slow
	"\x00\x00" + "\x0b\xc0\x0b\xc0\x0b\xc0\x0b\xc0\x0b\xc0\x0b\xc0\x10\x09",                                                         // A42: many without a successor
	"\x00\x00" + "\x17\x03\x0e\x00\x00\x00\x08\x00\x0b\x00\x10\x06",                                                                 // A43: the second connection's opt-in is refused
	"\x00\x00" + "\x17\x04\x0e\x00\x00\x00\x08\x00\x1b\x08",                                                                         // A44: the second connection speaks protocol 2
	"\x08\x00" + "\x81\x03\x81\x03\x8b\x00\x01\x03\x10\x02\x07\x04\x10\x03\x00\x00\x10\x09",                                         // A49: told between the writes of batches; then the server is silent
	"\x00\x00" + "\x00\x00\x92\x00\x0b\x00\x08\x00\x10\x06\x00\x00\x08\x00",                                                         // A50: a renewal at the same moment
	"\x00\x00" + "\x04\x00\x15\x03\x08\x00\x0b\x00\x14\x01\x10\x06\x08\x00\x0e\x00\x15\x02",                                         // A53: a session's transactions, before the cut and behind it
	"\x00\x00" + "\x17\x07\x17\x08\x17\x06\x0e\x00\x00\x00\x10\x08\x08\x00",                                                         // A56 B15 C18: handshakes that are cut, silent, and answered by something else
	"\x00\x00" + "\x01\x01\x0a\x1c\x08\x00\x00\x00\x08\x00",                                                                         // B1: a push in an array
	"\x00\x00" + "\x00\x00\x00\x00\x9b\x08\x07\x00\x9b\x08\x07\x00",                                                                 // B3 B5: pushes before a reply and behind one
	"\x00\x00" + "\x01\x03\x9b\x08\x02\x01\x9b\x10\x08\x00",                                                                         // B8: pushes before the replies of a batch and a transaction
	"\x00\x00" + "\x05\x00\x08\x00\x96\x00\x1b\x14\x00\x00\x18\x09\x00\x00\x08\x00",                                                 // B10 B12: the end of a subscription is pushed unasked; then -MOVED
	"\x00\x00" + "\x05\x00\x05\x10\x09\x04\x08\x00\x0d\x00\x0d\x04\x08\x00",                                                         // B11: subscriptions confirmed in two pieces
	"\x00\x00" + "\x00\x00\x09\x04\x0b\x00\x10\x03\x0e\x01\x10\x06\x00\x00\x08\x00",                                                 // B13: cut in the middle of a reply, during a handoff
	"\x01\x00" + "\x00\x00\x11\x00\x00\x00\x07\x00\x07\x00",                                                                         // C1 C5: the reply of a caller who left comes before another's
	"\xc0\x00" + "\x00\x00\x10\x04\x10\x04\x18\x00\x00\x00\x07\x00",                                                                 // C3: a refusal that comes too late
	"\x00\x00" + "\x01\x02\x18\x04\x07\x08\x00\x00\x08\x00",                                                                         // C4: the first of a batch is refused
	"\x00\x00" + "\x80\x00\x80\x00\x80\x00\x01\x03\x17\x0a\x0e\x00\x10\x06",                                                         // C7: a reset while calls wait; then a wrong password
	"\x40\x00" + "\x00\x00\x00\x00\x10\x07\x0e\x00\x17\x01\x00\x00\x10\x07\x08\x00",                                                 // C8: a freeze, a kill, a restart
	"\x00\x00" + "\x03\x00\x11\x00\x08\x00\x03\x00\x08\x00",                                                                         // C9: the caller of a blocking command leaves
	"\x48\x00" + "\x00\x00\x00\x00\x00\x00\x10\x07\x10\x07\x08\x00",                                                                 // C11: time runs out in the backlog
	"\x00\x00" + "\x02\x02\x07\x00\x18\x00\x0f\x00\x00\x00\x08\x00",                                                                 // C13: a transaction is refused in the middle, and the connection ends
	"\x00\x00" + "\x00\x00\x0f\x00\x00\x00\x08\x00",                                                                                 // C15: sent, and no reply
	"\x00\x00" + "\x80\x00\x00\xf1\x10\x04\x07\x04",                                                                                 // C16: one of two contexts ends
	"\x00\x00" + "\x00\x00\x17\x02\x17\x02\x10\x0a\x00\x00\x10\x0a",                                                                 // C17: a dead server, and no context that ends
	"\x40\x08" + "\x00\x00\x10\x05\x07\x00\x00\x00\x10\x06\x10\x07\x00\x00\x10\x09",                                                 // C19: a slow reply, and then none
	"\x00\x00" + "\x17\x05\x17\x05\x0e\x00\x00\x00\x10\x07\x08\x00",                                                                 // D13: not ready yet
	"\x00\x00" + "\x0c\x04\x80\x00\x00\x00\x18\x00\x10\x06\x00\x00\x0c\x0c\x08\x00",                                                 // D14: READONLY during a failover
	"\x00\x00" + "\x05\x00\x08\x00\x00\x00\x12\x00\x10\x06\x08\x00\x0d\x00\x08\x00",                                                 // E3: a renewal with a subscription
	"\x00\x00" + "\x05\x00\x08\x00\x0d\x00\x17\x01\x0e\x00\x0d\x00\x10\x06\x08\x00\x0d\x00\x08\x00",                                 // F4 F5: messages during a gap
	"\x00\x00" + "\x05\x00\x08\x00\x0d\x00\x8b\x00\x0d\x00\x10\x06\x07\x00\x0d\x00\x08\x00\x0d\x00\x08\x00",                         // F6: messages while two connections deliver
	"\x00\x00" + "\x02\x03\x19\x90\x02\x03\x10\x06\x08\x00",                                                                         // F7: cut while a transaction is written
	"\x00\x00" + "\x05\x00\x08\x00\x0b\x00\x10\x06\x0d\x00\x08\x00\x0e\x01\x0d\x00",                                                 // F10: the old server of a subscription goes away
	"\x00\x00" + "\x00\x00\x0b\x00\x0b\x40\x10\x03\x0b\x80\x10\x06\x08\x00",                                                         // told of a second successor before the first is ready, and of a third
	"\x00\x80" + "\x00\x00\x0b\x00\x10\x06\x00\x00\x0b\x41\x10\x06\x08\x00\x10\x07",                                                 // told again while holding
	"\x00\x00" + "\x0c\x00\x0c\x04\x0c\x0c\x10\x0a\x0c\x08\x17\x09\x0e\x00\x00\x00\x08\x00",                                         // what ends a window comes late, and to a new connection
}

// puppeteer is the server of a program. Its connections answer inside their Write what belongs to a handshake, and all else when the program says.
type puppeteer struct {
	t    *testing.T
	c    *Client
	opts Options

	mu      sync.Mutex // guards all that follows, and all puppets
	puppets []*puppet
	dials   []byte // how the next dials end
	eager   bool   // everything is answered at once
	seq     int    // of the latest announcement
	replay  string // said to whoever opts in
	broken  string // a promise that was seen to be broken where no test can be ended

	waited    time.Duration // for how long something has waited for the server
	step      int           // counts the moments at which everything had come to rest
	deeds     []*deed
	sessions  []*Session
	subs      []*puppetEar
	ids       map[string]*errand
	published []string
	stuck     bool        // a write was
	strained  bool        // things happened for which commands may fail
	stalled   int         // writes that wait
	crowded   bool        // more than one thing happens at this moment
	short     []time.Time // when a write ended in the middle
	lied      bool        // a server said what it should not have
	ended     bool        // by Close or Shutdown
}

// errand is one command, by the name that it alone has.
type errand struct {
	step     int
	executed int
	begun    bool // a byte of the message that it is in was taken from the client
	by       *puppet
	refused  bool // the server answered with an error
}

// deed is one call of the client.
type deed struct {
	what    string
	ids     []string
	cancel  context.CancelFunc
	over    bool
	ended   time.Time
	blurred bool // at its end a write waited, or bytes may have been between the queue and a write
	replies []Reply
	err     error
}

// puppetEar is a subscription and what it received; a gap is "".
type puppetEar struct {
	s   *Subscription
	got []string
}

// puppet is the server's end of one connection, and the client's.
type puppet struct {
	s              *puppeteer
	addr           string
	moved          sync.Cond
	in, out, later []byte // written and not parsed; to be read; and to be read when it is let go
	holds          bool   // what is said waits in later
	manner         byte   // how it shakes hands
	ready          bool   // hands are shaken
	pending        []query
	queued         []string // in a transaction; nil: outside
	topics         map[string]bool
	last           int // the step of the last command

	closed, deadline bool // by the client
	eof, reset       bool
	takes            int  // bytes that are taken before writing fails, or stalls; -1: all
	stalls           bool // rather than fails
	lies             bool
}

// query is a command that waits for its answer.
type query struct {
	reply string
	topic string // is subscribed to with the answer, or no more if leave
	leave bool
	id    string
}

// How a dial ends.
const (
	dialWell = iota
	dialRefused
	dialStalls
	dialDeaf    // the opt-in is refused
	dialOld     // protocol 2
	dialLoading // at the PING
	dialGarbage // in place of HELLO's answer
	dialCut     // after HELLO
	dialSilent  // from HELLO on
	dialHistory // the opt-in's answer comes with what closed a window once
	dialWrongPass
	dialManners
)

func newPuppeteer(t *testing.T, b0, b1 byte) *puppeteer {
	s := &puppeteer{t: t, ids: map[string]*errand{}}
	bit := func(b byte, n int) bool { return b>>n&1 == 1 }
	o := Options{Addr: addrA, OnEvent: func(Event) {}, Dialer: func(ctx context.Context, _, addr string) (net.Conn, error) {
		p, err := s.dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		if bit(b0, 0) {
			return socketPuppet{p}, nil
		}
		return p, nil
	}}
	if bit(b0, 1) {
		o.Conns = 2
	}
	if bit(b0, 2) {
		o.Backlog = FailFast
	}
	if bit(b0, 3) {
		o.MaxInFlight = 2
	}
	if bit(b0, 4) {
		o.MaxBacklog = 3
	}
	if bit(b0, 5) {
		o.Maintenance.HoldCap = -1
	}
	o.Timeout = [...]time.Duration{0, time.Second, -1, 100 * time.Millisecond}[b0>>6]
	if bit(b1, 0) {
		o.Maintenance.RelaxedTimeout = -1
	}
	o.Maintenance.Mode = [...]Mode{Auto, Enabled, Disabled, Auto}[b1>>1&3]
	if bit(b1, 3) {
		o.KeepAlive = 5 * time.Second
	}
	if bit(b1, 4) {
		o.MaxAge = 10 * time.Second
	}
	if bit(b1, 5) {
		o.MaxDedicated = 1
	}
	if bit(b1, 6) {
		o.DialTimeout = time.Second
	}
	if bit(b1, 7) {
		o.Maintenance.HoldCap = time.Hour
	}
	c, err := Dial(background, o)
	if err != nil {
		t.Fatal(err)
	}
	s.c, s.opts = c, c.opts
	t.Cleanup(func() { c.Close() })
	return s
}

// socketPuppet counts as a socket.
type socketPuppet struct{ *puppet }

func (socketPuppet) SyscallConn() (syscall.RawConn, error) { return nil, syscall.ENOTSUP }

func (s *puppeteer) dial(ctx context.Context, addr string) (*puppet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	manner := byte(dialWell)
	if len(s.dials) > 0 {
		manner, s.dials = s.dials[0], s.dials[1:]
	}
	switch manner {
	case dialRefused:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case dialStalls:
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	p := &puppet{s: s, addr: addr, manner: manner, takes: -1, topics: map[string]bool{}}
	p.moved.L = &s.mu
	s.puppets = append(s.puppets, p)
	return p, nil
}

func (p *puppet) Write(b []byte) (n int, err error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	defer func() { p.s.begins(b, n) }()
	for n < len(b) {
		take := len(b) - n
		if p.takes >= 0 {
			take = min(take, p.takes)
			p.takes -= take
		}
		if p.closed || p.reset {
			return n, syscall.EPIPE
		}
		p.in = append(p.in, b[n:n+take]...)
		p.hears()
		switch n += take; {
		case n == len(b):
		case p.stalls:
			p.s.stalled++
			p.moved.Wait()
			p.s.stalled--
		case p.takes == 0:
			return n, syscall.ECONNRESET
		}
	}
	return n, nil
}

// begins notes of which messages in a write some byte was taken. A transaction is one from its MULTI on.
func (s *puppeteer) begins(written []byte, taken int) {
	if taken < len(written) {
		s.short = append(s.short, time.Now())
	}
	at, first, within := 0, 0, false
	for words, n := commandAt(written); n > 0; words, n = commandAt(written[at:]) {
		if !within {
			first = at
		}
		within = words[0] == "MULTI" || within && words[0] != "EXEC"
		if len(words) > 1 && first < taken && s.ids[words[1]] != nil {
			s.ids[words[1]].begun = true
		}
		at += n
	}
}

func (p *puppet) Read(b []byte) (int, error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for {
		switch {
		case p.closed:
			return 0, net.ErrClosed
		case p.deadline:
			return 0, os.ErrDeadlineExceeded
		case len(p.out) > 0:
			n := copy(b, p.out)
			p.out = p.out[n:]
			return n, nil
		case p.reset:
			return 0, syscall.ECONNRESET
		case p.eof:
			return 0, io.EOF
		}
		p.moved.Wait()
	}
}

func (p *puppet) Close() error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.closed = true
	p.moved.Broadcast()
	return nil
}

// SetReadDeadline is asked for none, or for one that has passed.
func (p *puppet) SetReadDeadline(t time.Time) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.deadline = !t.IsZero()
	p.moved.Broadcast()
	return nil
}

func (p *puppet) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (p *puppet) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
func (p *puppet) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (p *puppet) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// hears takes the commands that are complete.
func (p *puppet) hears() {
	for {
		words, n := commandAt(p.in)
		if n == 0 {
			return
		}
		p.in = p.in[n:]
		if p.ready {
			p.executes(words)
		} else {
			p.greets(strings.Join(words, " "))
		}
	}
}

// commandAt is the command that b begins with, and its length; 0 if it is not complete.
func commandAt(b []byte) (words []string, length int) {
	rest := b
	number := func() (n int, ok bool) {
		line, after, ok := bytes.Cut(rest, []byte("\r\n"))
		if ok {
			n, _ = strconv.Atoi(string(line[1:]))
			rest = after
		}
		return n, ok
	}
	count, ok := number()
	for range count {
		size, ok := number()
		if !ok || len(rest) < size+2 {
			return nil, 0
		}
		words, rest = append(words, string(rest[:size])), rest[size+2:]
	}
	if !ok {
		return nil, 0
	}
	return words, len(b) - len(rest)
}

// greets plays a server's part in the handshake.
func (p *puppet) greets(command string) {
	name, _, _ := strings.Cut(command, " ")
	optIn := strings.HasPrefix(command, "CLIENT MAINT")
	switch {
	case p.manner == dialSilent:
	case name == "HELLO" && p.manner == dialOld:
		p.says("-ERR unknown command 'HELLO'\r\n")
	case name == "HELLO" && p.manner == dialGarbage:
		p.says("HTTP/1.1 400 Bad Request\r\n\r\n")
	case name == "HELLO" && p.manner == dialWrongPass:
		p.says("-WRONGPASS invalid username-password pair\r\n")
	case name == "HELLO":
		p.says(helloThree)
		if p.manner == dialCut {
			p.eof = true
		}
	case optIn && p.manner == dialDeaf:
		p.says("-ERR unknown subcommand 'MAINT_NOTIFICATIONS'\r\n")
	case optIn && p.manner == dialHistory:
		p.says("+OK\r\n>3\r\n$8\r\nMIGRATED\r\n:1\r\n$3\r\n[1]\r\n" + p.s.replay)
	case optIn:
		p.says("+OK\r\n" + p.s.replay)
	case name == "PING" && p.manner == dialLoading:
		p.says("-LOADING Redis is loading the dataset in memory\r\n")
	case name == "PING":
		p.ready = true
		p.says("+PONG\r\n")
	default:
		p.says("+OK\r\n")
	}
}

// executes notes a command, and answers it, if not now, then when the program says.
func (p *puppet) executes(words []string) {
	ask, id := query{reply: "+OK\r\n"}, ""
	switch words[0] {
	case "PING":
		ask.reply = "+PONG\r\n"
	case "ECHO", "BLPOP":
		id, ask.id = words[1], words[1]
		ask.reply = loneBulk(id)
	case "MULTI":
		p.queued = []string{}
	case "EXEC":
		ask.reply = fmt.Sprintf("*%d\r\n", len(p.queued))
		for _, id := range p.queued {
			p.done(id)
			ask.reply += loneBulk(id)
		}
		p.queued = nil
	case "SUBSCRIBE":
		ask = query{topic: words[1]}
		ask.reply = fmt.Sprintf(">3\r\n$9\r\nsubscribe\r\n%s:1\r\n", loneBulk(words[1]))
	case "UNSUBSCRIBE":
		for _, topic := range words[1:] {
			p.asked(query{topic: topic, leave: true, reply: fmt.Sprintf(">3\r\n$11\r\nunsubscribe\r\n%s:0\r\n", loneBulk(topic))})
		}
		return
	}
	switch {
	case id != "" && p.queued != nil:
		p.queued, ask.reply = append(p.queued, id), "+QUEUED\r\n"
	case id != "":
		p.done(id)
		if e := p.s.ids[id]; e != nil && words[0] == "ECHO" {
			if e.step < p.last && !p.s.stuck { // what was stuck in a write comes behind what did not wait for it
				p.s.broken = fmt.Sprintf("%s overtook what was given before it", id)
			}
			p.last = e.step
		}
	}
	p.asked(ask)
}

func (p *puppet) done(id string) {
	e := p.s.ids[id]
	if e == nil {
		p.s.broken = fmt.Sprintf("%q was never given", id)
		return
	}
	e.executed, e.by = e.executed+1, p
	if e.executed > 1 {
		p.s.broken = id + " is executed twice"
	}
}

// asked answers at once a PING that stands behind nothing, and everything if the server is eager.
func (p *puppet) asked(q query) {
	p.pending = append(p.pending, q)
	if p.s.eager || len(p.pending) == 1 && q.reply == "+PONG\r\n" {
		p.answers(len(p.pending))
	}
}

// answers gives the first n answers that are due.
func (p *puppet) answers(n int) {
	for range min(n, len(p.pending)) {
		q := p.pending[0]
		p.pending = p.pending[1:]
		if q.topic != "" {
			p.topics[q.topic] = !q.leave
		}
		p.says(q.reply)
	}
}

func (p *puppet) says(raw string) {
	if p.holds {
		p.later = append(p.later, raw...)
	} else if !p.eof {
		p.out = append(p.out, raw...)
	}
	p.moved.Broadcast()
}

// letGo says what was held back.
func (p *puppet) letGo() {
	p.holds = false
	p.says(string(p.later))
	p.later = nil
}

// lie notes that what the client is told from here on is not its fault.
func (p *puppet) lie(raw string) {
	p.lies, p.s.lied, p.s.strained = true, true, true
	p.says(raw)
}

// cut ends the connection abruptly.
func (p *puppet) cut() {
	p.s.strained, p.reset = true, true
	p.moved.Broadcast()
}

// --- what a program can do ---

func (s *puppeteer) play(program []byte) {
	for ; len(program) >= 2; program = program[2:] {
		together := program[0] >= 0x80 // the next comes at the same moment
		s.mu.Lock()
		s.crowded = s.crowded || together
		s.mu.Unlock()
		if s.operate(program[0]&0x7f, program[1]); !together {
			s.rests()
		}
	}
	s.recovers()
	s.c.Close()
	s.rests()
	s.judges()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.puppets {
		if !p.closed {
			s.t.Errorf("the connection to %s is not closed", p.addr)
		}
	}
}

// rests waits until everything has come to rest, and looks whether a promise was broken.
func (s *puppeteer) rests() {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crowded = false
	if s.step++; s.broken != "" {
		s.t.Fatal(s.broken)
	}
}

func (s *puppeteer) operate(op, arg byte) {
	switch op % 28 {
	case 0:
		s.calls(arg, 1, "ECHO", func(ctx context.Context, d *deed) {
			d.replies = []Reply{s.c.Do(ctx, "ECHO", d.ids[0])}
			d.err = d.replies[0].Err()
		})
	case 1:
		s.calls(arg, 1+int(arg%4), "DoBatch", func(ctx context.Context, d *deed) { d.replies, d.err = s.c.DoBatch(ctx, d.batch()) })
	case 2:
		s.calls(arg, 1+int(arg%4), "DoTx", func(ctx context.Context, d *deed) { d.replies, d.err = s.c.DoTx(ctx, d.batch()) })
	case 3:
		s.calls(arg, 1, "BLPOP", func(ctx context.Context, d *deed) {
			d.replies = []Reply{s.c.Do(ctx, "BLPOP", d.ids[0], arg%8)}
			d.err = d.replies[0].Err()
		})
	case 4:
		s.calls(arg, 0, "Session", func(ctx context.Context, d *deed) {
			var own *Session
			if own, d.err = s.c.Session(ctx); d.err == nil {
				s.mu.Lock()
				late := s.eager
				s.sessions = append(s.sessions, own)
				s.mu.Unlock()
				if late { // others wait for its place
					own.Close()
				}
			}
		})
	case 5:
		s.calls(arg, 0, "Subscribe", func(ctx context.Context, d *deed) {
			var sub *Subscription
			if sub, d.err = s.c.Subscribe(ctx, "news"+strconv.Itoa(int(arg/16%2))); d.err == nil {
				s.listens(sub)
			}
		})
	case 6:
		s.calls(arg, 1, "DoAppend", func(ctx context.Context, d *deed) {
			var text []byte
			if text, d.err = s.c.DoAppend(ctx, []byte("x"), "ECHO", d.ids[0]); d.err == nil {
				d.replies = []Reply{ofText(KindString, string(text[1:]))}
			}
		})
	case 20, 21:
		s.inSession(op%28 == 21, arg)
	case 16:
		s.passes([...]time.Duration{0, time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond, 300 * time.Millisecond,
			time.Second, 3 * time.Second, 8 * time.Second, 15 * time.Second, 40 * time.Second, 5 * time.Minute}[arg%12])
	case 17:
		if n := len(s.deeds); n > 0 {
			s.deeds[n-1-int(arg)%n].cancel()
		}
	case 18:
		s.calls(arg, 0, "Renew", func(ctx context.Context, d *deed) { d.err = s.c.Renew(ctx) })
	case 19:
		s.ends(arg)
	case 22:
		s.c.Stats()
		if n := len(s.sessions); n > 0 && arg%2 == 1 {
			s.sessions[int(arg/2)%n].Close()
		}
		if n := len(s.subs); n > 0 && arg%2 == 0 {
			s.subs[int(arg/2)%n].s.Close()
		}
	default:
		s.serves(op%28, arg)
	}
}

// batch is a batch of a deed's commands.
func (d *deed) batch() *Batch {
	var b Batch
	for _, id := range d.ids {
		b.Add("ECHO", id)
	}
	return &b
}

// calls has a call run on a goroutine of its own, with so many commands. A context that ends by itself is for some.
func (s *puppeteer) calls(arg byte, n int, what string, f func(ctx context.Context, d *deed)) {
	if len(s.deeds) == 64 {
		return
	}
	ctx, cancel := context.WithCancel(background)
	if arg >= 0xf0 {
		ctx, cancel = context.WithTimeout(background, time.Duration(arg&7)*20*time.Millisecond)
	}
	d := &deed{what: what, cancel: cancel}
	s.mu.Lock()
	for range n {
		id := fmt.Sprintf("id%04d", len(s.ids))
		s.ids[id] = &errand{step: s.step}
		d.ids = append(d.ids, id)
	}
	s.mu.Unlock()
	s.deeds = append(s.deeds, d)
	go func() {
		f(ctx, d)
		s.mu.Lock()
		defer s.mu.Unlock()
		d.over, d.ended, d.blurred = true, time.Now(), s.crowded || s.stalled > 0
	}()
}

func (s *puppeteer) listens(sub *Subscription) {
	l := &puppetEar{s: sub}
	s.mu.Lock()
	s.subs = append(s.subs, l)
	s.mu.Unlock()
	go func() {
		for m, err := range sub.All(background) {
			s.mu.Lock()
			if l.got = append(l.got, string(m.Payload)); err != nil {
				l.got[len(l.got)-1] = ""
			}
			s.mu.Unlock()
		}
	}()
}

// inSession uses one of the sessions that are open.
func (s *puppeteer) inSession(tx bool, arg byte) {
	s.mu.Lock()
	n := len(s.sessions)
	s.mu.Unlock()
	if n == 0 {
		return
	}
	own := s.sessions[int(arg/4)%n]
	switch {
	case tx:
		s.calls(arg, 1+int(arg%4), "Session.DoTx", func(ctx context.Context, d *deed) { d.replies, d.err = own.DoTx(ctx, d.batch()) })
	case arg%4 == 0:
		s.calls(arg, 1, "Session BLPOP", func(ctx context.Context, d *deed) {
			d.replies = []Reply{own.Do(ctx, "BLPOP", d.ids[0], arg%8)}
			d.err = d.replies[0].Err()
		})
	default:
		s.calls(arg, 1, "Session.Do", func(ctx context.Context, d *deed) {
			d.replies = []Reply{own.Do(ctx, "ECHO", d.ids[0])}
			d.err = d.replies[0].Err()
		})
	}
}

// passes lets time pass. Where something waits for the server for long, it may be given up.
func (s *puppeteer) passes(d time.Duration) {
	synctest.Wait() // for what is given at the same moment
	s.mu.Lock()
	if slices.ContainsFunc(s.puppets, func(p *puppet) bool { return len(p.pending) > 0 || p.holds || p.takes >= 0 }) {
		s.waited += d
	} else {
		s.waited = 0
	}
	s.strained = s.strained || s.opts.Timeout > 0 && s.waited >= min(s.opts.Timeout, s.opts.DialTimeout)
	s.mu.Unlock()
	time.Sleep(d)
}

// ends is the end of the client by a call of the program, now and then.
func (s *puppeteer) ends(arg byte) {
	s.ended = true
	if arg < 128 {
		s.calls(0, 0, "Shutdown", func(ctx context.Context, d *deed) {
			ctx, cancel := context.WithTimeout(ctx, time.Duration(arg)*time.Second)
			defer cancel()
			d.err = s.c.Shutdown(ctx)
		})
		return
	}
	s.c.Close()
}

// serves is what the server does.
func (s *puppeteer) serves(op, arg byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op == 23 {
		if s.dials = append(s.dials, arg%dialManners); arg%dialManners != dialHistory && arg%dialManners != dialWell {
			s.strained = true
		}
		return
	}
	var open []*puppet
	for _, p := range s.puppets {
		if !p.closed && !p.reset {
			open = append(open, p)
		}
	}
	if len(open) == 0 {
		return
	}
	p := open[len(open)-1-int(arg&3)%len(open)]
	arg >>= 2
	switch op {
	case 7:
		p.letGo()
		p.answers(1 + int(arg%4))
	case 8:
		for _, p := range open {
			p.letGo()
			p.answers(len(p.pending))
		}
	case 9: // the first bytes of an answer
		if len(p.pending) > 0 {
			p.letGo()
			full := p.pending[0].reply
			n := int(arg) % len(full)
			p.pending[0].reply = full[:n]
			p.answers(1)
			p.holds, p.later = true, []byte(full[n:])
		}
	case 10:
		p.lie([...]string{"+OK\r\n", ":1\r\n", "$4\r\nthat\r\n", "*2\r\n:1\r\n", "?\r\n", "-ERR no\r\n", "$999999999999\r\n", "*1\r\n>1\r\n+x\r\n"}[arg%8])
	case 11:
		s.moves(p, arg)
	case 12:
		s.seq++
		p.says(fmt.Sprintf([...]string{">4\r\n$9\r\nMIGRATING\r\n:%d\r\n:2\r\n$3\r\n[1]\r\n", ">4\r\n$12\r\nFAILING_OVER\r\n:%d\r\n:2\r\n$3\r\n[1]\r\n",
			">3\r\n$8\r\nMIGRATED\r\n:%d\r\n$3\r\n[1]\r\n", ">3\r\n$11\r\nFAILED_OVER\r\n:%d\r\n$3\r\n[1]\r\n", ">3\r\n$10\r\nSMIGRATING\r\n:%d\r\n+1\r\n"}[arg%5], s.seq))
	case 13:
		s.publishes("news" + strconv.Itoa(int(arg%2)))
	case 14:
		p.cut()
	case 15:
		s.strained, p.eof = true, true
		p.moved.Broadcast()
	case 24: // a refusal, which is an answer
		if len(p.pending) > 0 && p.pending[0].id != "" && p.queued == nil {
			s.ids[p.pending[0].id].refused = true
			p.pending[0].reply = [...]string{"-READONLY You can't write against a read only replica.\r\n", "-ERR no\r\n", "-MOVED 1 ?:6379\r\n"}[arg%3]
			p.letGo()
			p.answers(1)
		}
	case 25:
		p.takes, p.stalls, s.strained, s.stuck = int(arg), false, true, true
	case 26:
		p.takes, p.stalls, s.strained, s.stuck = int(arg), true, true, true
	case 27: // no harm can come of such
		p.says([...]string{">0\r\n", ">1\r\n$6\r\nMOVING\r\n", ">2\r\n$3\r\nfoo\r\n_\r\n", ">4\r\n+MOVING\r\n$1\r\nx\r\n:-5\r\n$2\r\n?:\r\n", "|1\r\n+a\r\n+b\r\n>1\r\n+x\r\n",
			">3\r\n$11\r\nunsubscribe\r\n$5\r\nnews0\r\n:0\r\n", ">3\r\n$9\r\nsubscribe\r\n$5\r\nnews1\r\n:1\r\n", ">2\r\n$7\r\nmessage\r\n_\r\n"}[arg%8])
	}
}

// moves announces: the next number, the same, or a lower one, of several places and windows.
func (s *puppeteer) moves(p *puppet, arg byte) {
	s.seq += [...]int{1, 0, -1, 1}[arg&3]
	arg >>= 2
	window := [...]int{15, 0, 2, 30}[arg&3]
	where := [...]string{loneBulk(addrB), loneBulk(addrC), loneBulk(addrA), "_\r\n"}[arg>>2]
	raw := fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:%d\r\n:%d\r\n%s", s.seq, window, where)
	p.says(raw)
	if s.seq%2 == 0 {
		s.replay = raw
	}
}

// publishes a message to whoever is subscribed.
func (s *puppeteer) publishes(topic string) {
	payload := fmt.Sprintf("%s:%04d", topic, len(s.published))
	s.published = append(s.published, payload)
	for _, p := range s.puppets {
		if p.topics[topic] {
			p.says(">3\r\n$7\r\nmessage\r\n" + loneBulk(topic) + loneBulk(payload))
		}
	}
}

// --- how it must end ---

// recovers has the server be well again, and says what must then have become of everything.
func (s *puppeteer) recovers() {
	s.mu.Lock()
	s.dials, s.eager, s.replay = nil, true, ""
	for _, p := range s.puppets {
		if p.lies || p.takes >= 0 || !p.ready {
			p.cut()
		}
		p.letGo()
		p.answers(len(p.pending))
	}
	sessions := s.sessions
	s.mu.Unlock()
	for _, own := range sessions {
		own.Close()
	}
	time.Sleep(time.Minute) // a window takes 30 seconds at most; a dial, and what is between handoffs, 10
	s.rests()
	s.mu.Lock()
	for _, d := range s.deeds {
		if !d.over {
			s.t.Errorf("%s %v has not ended although the server is well", d.what, d.ids)
		}
	}
	s.mu.Unlock()
	if s.ended {
		return
	}
	ctx, cancel := contextFor(time.Minute)
	defer cancel()
	if text, err := s.c.Do(ctx, "PING").Text(); text != "PONG" || err != nil {
		s.t.Errorf("the client does not serve although the server is well: %q, %v", text, err)
	}
	s.rests()
	open := 0
	s.mu.Lock()
	for _, p := range s.puppets {
		if !p.closed {
			open++
		}
	}
	s.mu.Unlock()
	if stats := s.c.Stats(); stats.InFlight != 0 || stats.Backlog != 0 || stats.Conns != open {
		s.t.Errorf("at rest, with %d connections open: %+v", open, stats)
	}
}

// judges what became of each call and each subscription.
func (s *puppeteer) judges() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.deeds {
		if !d.over {
			s.t.Fatalf("%s %v has not ended by Close", d.what, d.ids)
		}
		s.judgesErr(d)
		for i, id := range d.ids {
			r := failure(d.err)
			if i < len(d.replies) {
				r = d.replies[i]
			}
			if d.err != nil || len(d.replies) == len(d.ids) {
				s.judgesReply(d, id, r)
			} else {
				s.t.Errorf("%s %v: %d replies", d.what, d.ids, len(d.replies))
			}
		}
	}
	for _, l := range s.subs {
		s.judgesMessages(l.got)
	}
}

// judgesErr says of a failed call that it had a reason to fail.
func (s *puppeteer) judgesErr(d *deed) {
	switch err := d.err; {
	case err == nil, isAnswer(err), s.strained:
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrClosed), errors.Is(err, ErrBacklogFull):
	case errors.Is(err, ErrTimeout), strings.HasPrefix(d.what, "Session"): // its own, which is closed when what blocks is given up
	default:
		s.t.Errorf("%s %v failed without a reason: %v", d.what, d.ids, err)
	}
}

// isAnswer says that an error is what the server said to a command, not why there is no connection.
func isAnswer(err error) bool {
	var answer *ServerError
	var none *commandError
	return errors.As(err, &answer) && !errors.As(err, &none)
}

// leaves says that an error is why a caller did not wait for what would become of its bytes.
func leaves(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrClosed)
}

func (s *puppeteer) judgesReply(d *deed, id string, r Reply) {
	e, err := s.ids[id], r.Err()
	text, _ := r.Text()
	switch {
	case isAnswer(err): // to any command of a transaction
		if !e.refused && !s.lied && !strings.HasSuffix(d.what, "DoTx") {
			s.t.Errorf("%s %s: the server answered %v, which it did not", d.what, id, err)
		}
	case err != nil && !MaybeExecuted(err):
		if e.begun && (!s.lied || errors.As(err, new(*commandError))) {
			s.t.Errorf("%s %s was begun to be sent, and executed %d times: %v", d.what, id, e.executed, err)
		}
	case err != nil:
		begun := slices.ContainsFunc(d.ids, func(id string) bool { return s.ids[id].begun })
		blurred := d.blurred || slices.ContainsFunc(s.short, d.ended.Equal)
		if !begun && !s.lied && !(blurred && leaves(err)) {
			s.t.Errorf("%s %s was never sent: %v", d.what, id, err)
		}
	case s.lied && (e.by == nil || e.by.lies):
	case text != id || e.executed != 1:
		s.t.Errorf("%s %s: answered %q, executed %d times", d.what, id, show(r), e.executed)
	}
}

// judgesMessages says that nothing came twice or out of order, and that nothing is missing where no gap was told.
func (s *puppeteer) judgesMessages(got []string) {
	last := -1
	for _, payload := range got {
		if s.lied {
			return
		}
		if payload == "" {
			last = -1
			continue
		}
		at := slices.Index(s.published, payload)
		if at <= last && last >= 0 || at < 0 {
			s.t.Errorf("%q came behind %q", payload, s.published[last])
			return
		}
		for i := last + 1; last >= 0 && i < at; i++ {
			if topic, _, _ := strings.Cut(payload, ":"); strings.HasPrefix(s.published[i], topic+":") {
				s.t.Errorf("%q is missing in %q", s.published[i], got)
			}
		}
		last = at
	}
}
