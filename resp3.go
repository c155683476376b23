package baton

// This file holds the RESP3 codec: Reply, the encoder of commands, and a decoder that can stop and go on at any byte. It knows no sockets, locks
// or time. A decoder belongs to whoever reads its connection; a Reply never changes once built, so any number of goroutines may read it.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unsafe"
)

// Kind says what a Reply is.
type Kind uint8

// The kinds, in the order of kindNames.
const (
	KindNull Kind = iota // also protocol 2's null string and null array
	KindString
	KindStatus
	KindBigInt
	KindVerbatim
	KindInt
	KindFloat
	KindBool
	KindError
	KindArray
	KindMap
	KindSet
	KindPush
)

var kindOf = [256]Kind{'$': KindString, '+': KindStatus, '(': KindBigInt, '=': KindVerbatim, ':': KindInt, ',': KindFloat, '#': KindBool,
	'-': KindError, '!': KindError, '*': KindArray, '%': KindMap, '~': KindSet, '>': KindPush, '|': KindMap} // |: an attribute; else: null
var kindNames = strings.Fields("null string status big-integer verbatim integer float boolean error array map set push")

func (k Kind) String() string { return kindNames[k] }
func (k Kind) isText() bool   { return KindString <= k && k <= KindVerbatim }

// ErrNull is what an accessor returns for a null reply: a missing key, a BLPOP whose time is up.
var ErrNull = errors.New("baton: reply is null")

// ServerError is an error that the server answered with. The connection is fine.
type ServerError struct{ Code, Message string } // "WRONGTYPE", the rest

func (e *ServerError) Error() string { return strings.TrimSuffix(e.Code+" "+e.Message, " ") }

// TypeError says that an accessor does not fit its reply.
type TypeError struct {
	Want string
	Got  Kind
}

func (e *TypeError) Error() string { return "baton: reply is " + kindNames[e.Got] + ", not " + e.Want }

// Reply is what the server answered to one command, or why there is no answer. The zero Reply is null. It stays valid for as long as it is kept. The
// strings and elements of one reply, or of one batch, are parts of a few blocks of memory, and each keeps its block: use strings.Clone for a small
// part of a big reply that is to live long. Compare what the accessors return: == and reflect.DeepEqual see where a reply is, not what it holds.
type Reply struct {
	kind Kind
	n    int64          // KindInt; KindBool: 0 or 1; KindFloat: its bits; KindError: 1 if it is the server's; else how much there is at
	at   unsafe.Pointer // bytes, elements, a ServerError or another error. With a field for each, an array would take three times the memory
}

// failure is the reply that stands for an answer that did not come. Its Err is err itself.
func failure(err error) Reply { return Reply{kind: KindError, at: unsafe.Pointer(&err)} }

// Err is what took the place of an answer: a *ServerError, a failure of ours, or nil. Null is no error.
func (r Reply) Err() error {
	switch {
	case r.kind != KindError:
		return nil
	case r.n == 0:
		return *(*error)(r.at)
	}
	return (*ServerError)(r.at)
}

// Kind says what the reply is. It is KindError exactly if Err is not nil.
func (r Reply) Kind() Kind { return r.kind }

// IsNull reports whether the reply is null.
func (r Reply) IsNull() bool { return r.kind == KindNull }

// accessed is what an accessor returns: v if it fits, else why not.
func accessed[T any](r Reply, v T, fits bool, want string) (none T, err error) {
	switch {
	case fits:
		return v, nil
	case r.kind == KindNull:
		return none, ErrNull
	case r.kind == KindError:
		return none, r.Err()
	}
	return none, &TypeError{Want: want, Got: r.kind}
}

// Text returns a string, a status, a verbatim string without its "txt:", or the digits of a big integer.
func (r Reply) Text() (string, error) {
	if r.kind.isText() {
		return unsafe.String((*byte)(r.at), r.n), nil
	}
	return accessed(r, "", false, "text")
}

// Bytes returns what Text does, as a copy that belongs to the caller.
func (r Reply) Bytes() ([]byte, error) { s, err := r.Text(); return []byte(s), err }

// Int64 returns an integer.
func (r Reply) Int64() (int64, error) { return accessed(r, r.n, r.kind == KindInt, "an integer") }

// Uint64 returns an integer. A negative one is a *TypeError, too.
func (r Reply) Uint64() (uint64, error) {
	return accessed(r, uint64(r.n), r.kind == KindInt && r.n >= 0, "an integer of 0 or more")
}

// Float64 returns a float, or a string that spells one (protocol 2).
func (r Reply) Float64() (float64, error) {
	f, err := math.Float64frombits(uint64(r.n)), error(nil)
	if r.kind == KindString {
		f, err = parseFloat(unsafe.String((*byte)(r.at), r.n))
	}
	return accessed(r, f, (r.kind == KindFloat || r.kind == KindString) && err == nil, "a float")
}

// Bool returns a boolean, or the integers 0 and 1 as one (protocol 2).
func (r Reply) Bool() (bool, error) {
	return accessed(r, r.n == 1, r.kind == KindBool || r.kind == KindInt && uint64(r.n) <= 1, "a boolean")
}

// Elems returns the elements of an array, set, push or map (key, value, key, value); any may be an error. Do not modify them.
func (r Reply) Elems() ([]Reply, error) {
	if r.kind >= KindArray {
		return unsafe.Slice((*Reply)(r.at), r.n), nil
	}
	return accessed(r, []Reply(nil), false, "an array")
}

// Map returns a map, or an array of keys and values in turn (protocol 2). Keys are read by Text; of equal ones the last wins.
func (r Reply) Map() (map[string]Reply, error) {
	elems, _ := r.Elems()
	if r.kind != KindMap && (r.kind != KindArray || len(elems)%2 != 0) {
		return accessed(r, map[string]Reply(nil), false, "a map")
	}
	m := make(map[string]Reply, len(elems)/2)
	for i := 0; i < len(elems); i += 2 {
		key, err := elems[i].Text()
		if err != nil {
			return nil, fmt.Errorf("baton: map key %d: %w", i/2, err)
		}
		m[key] = elems[i+1]
	}
	return m, nil
}

// Texts returns the elements, each read by Text. The first that is null, an error or no text is the error, with its index.
func (r Reply) Texts() ([]string, error) {
	elems, err := r.Elems()
	texts := make([]string, len(elems))
	for i := range elems {
		if texts[i], err = elems[i].Text(); err != nil {
			return nil, fmt.Errorf("baton: element %d: %w", i, err)
		}
	}
	return texts, err
}

// pushName is the first element of a push frame, lower-cased, or "".
func (r Reply) pushName() (name string) {
	if elems, _ := r.Elems(); r.kind == KindPush && len(elems) > 0 {
		name, _ = elems[0].Text()
	}
	return strings.ToLower(name)
}

// appendCommand appends a command as it goes over the wire. After an error dst is as long as before. args must not escape
// (so fmt may see their types only): a caller's variables then cost no allocation on their way into `any`.
func appendCommand(dst []byte, args []any) ([]byte, error) {
	if len(args) == 0 {
		return dst, errors.New("baton: empty command")
	}
	start := len(dst)
	dst = appendHeader(dst, '*', len(args))
	var room [32]byte // for a number; the longest has 24 bytes
	for i, arg := range args {
		text := room[:0]
		switch v := arg.(type) {
		case string:
			text = unsafe.Slice(unsafe.StringData(v), len(v)) // which append only reads
		case []byte:
			text = v
		case int, int8, int16, int32, int64:
			text = strconv.AppendInt(text, reflect.ValueOf(v).Int(), 10)
		case uint, uint8, uint16, uint32, uint64:
			text = strconv.AppendUint(text, reflect.ValueOf(v).Uint(), 10)
		case float32, float64:
			f := reflect.ValueOf(v)
			text = strconv.AppendFloat(text, f.Float(), 'g', -1, f.Type().Bits()) // the shortest that reads back the same
			if text[len(text)-1] > '9' {
				text = bytes.ToLower(bytes.TrimPrefix(text, []byte("+"))) // +Inf, -Inf and NaN as Redis spells them
			}
		case bool:
			if text = append(text, '0'); v {
				text[0] = '1'
			}
		default:
			return dst[:start], fmt.Errorf("baton: argument %d is of type %v, which cannot be sent", i, reflect.TypeOf(arg))
		}
		dst = append(append(appendHeader(dst, '$', len(text)), text...), '\r', '\n')
	}
	return dst, nil
}

func appendHeader(dst []byte, tag byte, n int) []byte {
	switch { // by hand, since these are most: a SET takes two thirds of the time
	case n < 10:
		return append(dst, tag, byte('0'+n), '\r', '\n')
	case n < 100:
		return append(dst, tag, byte('0'+n/10), byte('0'+n%10), '\r', '\n')
	}
	return append(strconv.AppendInt(append(dst, tag), int64(n), 10), '\r', '\n')
}

// limits bound one reply, attributes included: its bytes on the wire, aggregates within each other, elements of all of them.
type limits struct{ reply, depth, elements int }

const (
	idleBuffer = 16 << 10 // the read buffer of a connection that does little
	busyBuffer = 64 << 10 // its size once a read has filled it; larger reads save no system calls worth having
	keepReads  = 16       // larger ones, of tokens too, are given back after so many reads in a row that busyBuffer was enough for
	readAhead  = 1 << 20  // memory taken on the word of a header, before the bytes are there
)

// token is what the scanner found out about a value, for the builder.
type token struct {
	kind Kind
	at   int64 // where its text is, in the connection's bytes
	n    int64 // the length of its text; or its number, as in Reply; or how many elements it has
}

// frame is one complete top-level value in the decoder's buffer. It is valid until the next readFrom.
type frame struct {
	kind        Kind // of the value itself, not of an attribute before it
	start, end  int  // offsets in the buffer
	first, last int  // offsets in the decoder's tokens, of its own and those of all its elements, in the order of the wire
}

// level is an aggregate or an attribute that pos is inside of.
type level struct {
	tag   byte
	left  int64 // values to come
	token int   // its own, counted from first
}

// decoder makes replies of bytes, in two passes. The scanner (next) validates everything and finds the end of a top-level value; it
// keeps its place between reads. The builder (replies) gets what is complete and correct: it cannot fail, and knows its need of memory.
type decoder struct {
	limits     limits
	err        error   // of the protocol: where the next reply begins is unknown, so nothing is decoded after it
	buf        []byte  // what was read; the next read goes between its length and its capacity
	base       int64   // offset of buf[0] in the connection's bytes
	given      bool    // buf has become the memory of a reply: no read may write to it
	spare      []byte  // the last buffer that was not larger than busyBuffer; the next, if buf is given
	quiet      int     // reads in a row that busyBuffer was enough for, and as much for tokens
	begin, pos int     // where the value being scanned begins, and where its scanning goes on
	searched   int     // the line at pos does not end before here
	want       int     // bytes from begin on that the string at pos needs; 0 is unknown
	stack      []level // innermost last
	tokens     []token // of the frames since the last read, and of the value being scanned
	first      int     // of the latter: where its tokens begin
}

func newDecoder(l limits) *decoder { return &decoder{limits: l} }

// readFrom reads once and returns what Read returned. Frames found before are invalid from now on: it first drops what is consumed.
// What is left moves once for each value, and again only into twice the room or all that it needs, so the work stays linear.
func (d *decoder) readFrom(r io.Reader) (int, error) {
	rest, to := len(d.buf)-d.begin, d.buf
	if d.quiet++; max(rest, d.want, len(d.tokens)*int(unsafe.Sizeof(token{}))) >= busyBuffer {
		d.quiet = 0
	}
	d.tokens = d.tokens[:copy(d.tokens, d.tokens[d.first:])]
	if d.given {
		to, d.given = d.spare, false
	}
	size := max(cap(to), idleBuffer)
	if d.quiet == keepReads {
		size, d.tokens = idleBuffer, append([]token(nil), d.tokens...)
	} else if max(len(to), d.want) >= size { // probably more is waiting
		size = max(size, busyBuffer)
	}
	if most := rest + max(rest, readAhead); d.want <= most || rest >= size {
		size = max(size, min(d.want, most))
	}
	for size <= rest {
		size *= 2
	}
	if size != cap(to) {
		var b strings.Builder // whose memory nobody clears: of a megabyte that would take half as long as to fill it
		b.Grow(size)
		b.WriteByte(0)
		to = unsafe.Slice(unsafe.StringData(b.String()), size)
	}
	from := d.buf[d.begin:]
	d.buf = to[:rest]
	if unsafe.SliceData(from) != unsafe.SliceData(to) { // else a large reply would be moved onto itself at each read
		copy(d.buf, from)
	}
	if size <= busyBuffer {
		d.spare = to[:0]
	}
	d.base, d.pos, d.searched, d.begin, d.first = d.base+int64(d.begin), d.pos-d.begin, d.searched-d.begin, 0, 0
	n, err := r.Read(d.buf[rest:cap(d.buf)])
	d.buf = d.buf[:rest+n]
	return n, err
}

// next finds the next complete frame. False: it needs more bytes. An error is final: the server broke the protocol.
func (d *decoder) next() (frame, bool, error) {
	for d.want = 0; d.err == nil && d.pos < len(d.buf) && d.scan(); {
		if len(d.stack) == 0 && d.first < len(d.tokens) { // an attribute leaves no token
			f := frame{kind: d.tokens[d.first].kind, start: d.begin, end: d.pos, first: d.first, last: len(d.tokens)}
			d.begin, d.first = d.pos, len(d.tokens)
			return f, true, nil
		}
	}
	return frame{}, false, d.err
}

func (d *decoder) fail(what string) bool {
	seen, _, _ := bytes.Cut(d.buf[d.pos:min(d.pos+40, len(d.buf))], []byte("\n"))
	d.err = fmt.Errorf("baton: protocol error at byte %d: %s: %q", d.base+int64(d.pos), what, seen)
	return false
}

// scan takes one header, with the string behind it if it has one. False: not all of it is there, or it is a violation.
func (d *decoder) scan() bool {
	buf, tag, next := d.buf, d.buf[d.pos], d.pos+1
	t := token{kind: kindOf[tag], at: d.base + int64(next)}
	for most := min(len(buf), next+18); next < most && buf[next]-'0' <= 9; next++ { // no length is longer, and few numbers are
		t.n = 10*t.n + int64(buf[next]-'0')
	}
	number := next > d.pos+1 && next+1 < len(buf) && string(buf[next:next+2]) == "\r\n"
	if next += 2; !number {
		if next = d.searched + bytes.IndexByte(buf[d.searched:], '\n') + 1; next == d.searched {
			next, d.searched = len(buf), len(buf)
		}
	}
	switch {
	case t.kind == KindNull && tag != '_':
		return d.fail("unknown type") // if it speaks something else, its first byte will tell
	case tag == '>' && len(d.stack) > 0:
		// Servers have put one into an array: whether as an element cannot be known, and a wrong guess shifts replies.
		return d.fail("push inside another value")
	case next-d.begin > d.limits.reply:
		return d.fail("reply of too many bytes")
	case d.searched == len(buf):
		return false
	case number && tag == ':':
		return d.add(t, next)
	case number && (tag == '$' || tag == '=' || tag == '!' || t.kind >= KindArray):
		return d.scanSized(t, tag, next)
	case next-d.pos < 3 || buf[next-2] != '\r':
		return d.fail("line feed without carriage return")
	}
	line, ok, err := buf[d.pos+1:next-2], true, error(nil)
	switch tag {
	case '+', '-':
		t.n, ok = int64(len(line)), bytes.IndexByte(line, '\r') < 0
	case '(':
		sign := bytes.TrimRight(line, "0123456789")
		t.n, ok = int64(len(line)), len(sign) < min(2, len(line)) && strings.Contains("+-", string(sign))
	case ':':
		t.n, err = strconv.ParseInt(string(line), 10, 64)
	case ',':
		f, malformed := parseFloat(string(line))
		t.n, err = int64(math.Float64bits(f)), malformed
	case '#':
		t.n, ok = int64(strings.Index("ft", string(line))), string(line) == "t" || string(line) == "f"
	case '_':
		ok = len(line) == 0
	default: // The protocol has a form without a length, "?", that no server sends: it is refused.
		if t = (token{}); string(line) != "-1" || tag != '$' && tag != '*' { // null, of protocol 2
			return d.fail("malformed length")
		}
	}
	if !ok || err != nil {
		return d.fail("malformed value")
	}
	return d.add(t, next)
}

// scanSized takes what begins with a length.
func (d *decoder) scanSized(t token, tag byte, next int) bool {
	end := next + int(t.n) + 2
	switch {
	case t.kind >= KindArray && t.n > int64(d.limits.elements), t.kind < KindArray && t.n > int64(d.limits.reply-(next-d.begin)-2):
		return d.fail("length beyond the limit")
	case t.kind >= KindArray:
		if tag == '%' || tag == '|' {
			t.n *= 2
		}
		// The header is counted as one more value inside, which ends here: so an empty aggregate needs no care.
		d.stack = append(d.stack, level{tag: tag, left: t.n + 1, token: len(d.tokens) - d.first})
		return d.add(t, next)
	case end > len(d.buf):
		d.want = end - d.begin
		return false
	case string(d.buf[end-2:end]) != "\r\n":
		return d.fail("string does not end where its length says")
	case tag == '=' && (t.n < 4 || d.buf[next+3] != ':'):
		return d.fail("verbatim string without its type")
	case tag == '=':
		t.n, next = t.n-4, next+4
	}
	t.at = d.base + int64(next)
	return d.add(t, end)
}

// add takes the token of what ends at next, and leaves whatever it is the last part of.
func (d *decoder) add(t token, next int) bool {
	d.tokens = append(d.tokens, t)
	d.pos, d.searched = next, next
	for n := len(d.stack) - 1; n >= 0; n-- {
		top := &d.stack[n]
		if top.left--; top.left > 0 {
			break
		}
		d.stack = d.stack[:n]
		if top.tag == '|' { // nobody asks for attributes, and they are no values of what they are in
			d.tokens = d.tokens[:d.first+top.token]
			break
		}
	}
	fits := len(d.stack) <= d.limits.depth && len(d.tokens)-d.first-1 <= d.limits.elements
	return fits || d.fail("reply nested too deeply or of too many elements")
}

// parseFloat reads a float in decimal, an infinity or a NaN ("-nan" is how C prints some). Go's parser alone takes more.
func parseFloat(s string) (float64, error) {
	if strings.Trim(s, "0123456789+-.eE") != "" && s != "inf" && s != "-inf" && s != "nan" && s != "-nan" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(strings.Replace(s, "-nan", "nan", 1), 64)
}

// reply builds the Reply of a frame, with memory of its own.
func (d *decoder) reply(f frame) Reply {
	var r [1]Reply
	d.replies([]frame{f}, r[:])
	return r[0]
}

// replies builds the Replies of frames into out. All of them share one block for text and one for elements.
func (d *decoder) replies(fs []frame, out []Reply) {
	first, last := &fs[0], &fs[len(fs)-1]
	b := builder{d: d, end: last.end - 2, next: first.first, elems: make([]Reply, last.last-first.first-len(fs))}
	if n := first.end - first.start; n == cap(d.buf) && n > busyBuffer {
		// It fills the memory made for it, and keeps it. A string must never change; this one does not, since no read writes there any more.
		d.given, b.text, b.from = true, unsafe.String(&d.buf[0], n), d.base
	}
	for i := range fs {
		b.value(&out[i])
	}
}

// appendText appends the text of a frame to dst, by the rules of Reply.Text. Only a larger dst and errors take memory.
func (d *decoder) appendText(dst []byte, f frame) ([]byte, error) {
	if t := d.tokens[f.first]; f.kind.isText() {
		return append(dst, d.buf[t.at-d.base:][:t.n]...), nil
	}
	_, err := d.reply(f).Text()
	return dst, err
}

type builder struct {
	d         *decoder
	end, next int     // of the text of all frames, in the buffer; the first token that is not built yet
	text      string  // what the strings are parts of: a copy from the first on. One large copy takes less time than many small ones
	from      int64   // where that begins, in the connection's bytes
	elems     []Reply // what is left of the block of elements
}

func (b *builder) value(r *Reply) {
	t := b.d.tokens[b.next]
	b.next++
	switch *r = (Reply{kind: t.kind, n: t.n}); {
	case t.kind.isText():
		r.at = unsafe.Pointer(unsafe.StringData(b.string(t)))
	case t.kind >= KindArray:
		elems := b.elems[:t.n]
		b.elems, r.at = b.elems[t.n:], unsafe.Pointer(unsafe.SliceData(elems))
		for i := range elems {
			b.value(&elems[i])
		}
	case t.kind == KindError:
		code, message, _ := strings.Cut(b.string(t), " ")
		r.n, r.at = 1, unsafe.Pointer(&ServerError{Code: code, Message: message})
	}
}

func (b *builder) string(t token) string {
	switch at := t.at - b.d.base; {
	case t.n == 2 && string(b.d.buf[at:at+2]) == "OK":
		return "OK" // the usual answer to writes needs no memory
	case b.text == "":
		b.from, b.text = t.at, string(b.d.buf[at:b.end])
	}
	return b.text[t.at-b.from:][:t.n]
}
