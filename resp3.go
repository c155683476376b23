// The RESP3 codec: Reply and its accessors, the encoder of commands, and a decoder that can stop and go on at any byte.
// It knows no sockets, locks or time. A decoder belongs to whoever reads its connection, one goroutine at a time. A Reply
// is a value that never changes once built: any number of goroutines may read it.

package baton

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// Kind says what a Reply is.
type Kind uint8

// The kinds, in the order of typeBytes and kindNames.
const (
	KindNull Kind = iota // also protocol 2's null string and null array
	KindString
	KindStatus
	KindInt
	KindFloat
	KindBool
	KindBigInt
	KindVerbatim
	KindArray
	KindMap
	KindSet
	KindError
	KindPush
)

const typeBytes = "_$+:,#(=*%~->" + "!" /* KindError, too */ + "|;." /* no values */

var kindNames = [...]string{"null", "string", "status", "integer", "float", "boolean", "big integer", "verbatim string",
	"array", "map", "set", "error", "push"}

func (k Kind) String() string { return kindNames[k] }

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

func (e *TypeError) Error() string {
	return "baton: reply is of kind " + e.Got.String() + ", not " + e.Want
}

// Reply is what the server answered to one command, or why there is no answer. The zero Reply is null.
//
// A Reply stays valid for as long as it is kept. The strings and elements of one reply, or of one batch, are parts of a few
// blocks of memory, and each keeps its block: use strings.Clone for a small part of a big reply that is to live long.
type Reply struct {
	kind  Kind
	n     int64   // KindInt; KindBool: 0 or 1; KindFloat: its bits
	str   string  // KindString, KindStatus, KindBigInt, KindVerbatim
	elems []Reply // KindArray, KindSet, KindPush; KindMap: key, value, key, value
	err   error   // KindError: a *ServerError, or what kept the answer from coming
}

// failure is the reply that stands for an answer that did not come. Its Err is err itself.
func failure(err error) Reply { return Reply{kind: KindError, err: err} }

// Err is what took the place of an answer: a *ServerError, a failure of ours, or nil. Null is no error.
func (r Reply) Err() error { return r.err }

// Kind says what the reply is. It is KindError exactly if Err is not nil.
func (r Reply) Kind() Kind { return r.kind }

// IsNull reports whether the reply is null.
func (r Reply) IsNull() bool { return r.kind == KindNull }

// accessed is what an accessor returns: v if it fits, else why not.
func accessed[T any](r *Reply, v T, fits bool, want string) (T, error) {
	var zero T
	switch {
	case fits:
		return v, nil
	case r.kind == KindError:
		return zero, r.err
	case r.kind == KindNull:
		return zero, ErrNull
	}
	return zero, &TypeError{Want: want, Got: r.kind}
}

// Text returns a string, a status, a verbatim string without its "txt:", or the digits of a big integer.
func (r Reply) Text() (string, error) {
	fits := r.kind == KindString || r.kind == KindStatus || r.kind == KindVerbatim || r.kind == KindBigInt
	return accessed(&r, r.str, fits, "text")
}

// Bytes returns what Text does, as a copy that belongs to the caller.
func (r Reply) Bytes() ([]byte, error) {
	s, err := r.Text()
	return []byte(s), err
}

// Int64 returns an integer.
func (r Reply) Int64() (int64, error) { return accessed(&r, r.n, r.kind == KindInt, "an integer") }

// Uint64 returns an integer. A negative one is a *TypeError, too.
func (r Reply) Uint64() (uint64, error) {
	return accessed(&r, uint64(r.n), r.kind == KindInt && r.n >= 0, "an integer of 0 or more")
}

// Float64 returns a float, or a string that spells one (protocol 2).
func (r Reply) Float64() (float64, error) {
	if r.kind == KindFloat {
		return math.Float64frombits(uint64(r.n)), nil
	}
	f, ok := parseFloat(r.str)
	return accessed(&r, f, ok && r.kind == KindString, "a float")
}

// Bool returns a boolean, or the integers 0 and 1 as one (protocol 2).
func (r Reply) Bool() (bool, error) {
	return accessed(&r, r.n == 1, r.kind == KindBool || r.kind == KindInt && uint64(r.n) <= 1, "a boolean")
}

// Elems returns the elements of an array, set or push; of a map key, value, key, value. Each may be null or an error of its
// own (EXEC): ask it. The slice is the reply's and must not be modified.
func (r Reply) Elems() ([]Reply, error) {
	return accessed(&r, r.elems, r.kind >= KindArray && r.kind != KindError, "an array")
}

// Map returns a map, or an array of keys and values in turn (protocol 2). Keys are read by Text; of equal ones the last wins.
func (r Reply) Map() (map[string]Reply, error) {
	if r.kind != KindMap && (r.kind != KindArray || len(r.elems)%2 != 0) {
		return accessed(&r, map[string]Reply(nil), false, "a map")
	}
	m := make(map[string]Reply, len(r.elems)/2)
	for i := 0; i < len(r.elems); i += 2 {
		key, err := r.elems[i].Text()
		if err != nil {
			return nil, fmt.Errorf("baton: map key %d: %w", i/2, err)
		}
		m[key] = r.elems[i+1]
	}
	return m, nil
}

// Texts returns the elements, each read by Text. The first that is null, an error or no text is the error, with its index.
func (r Reply) Texts() ([]string, error) {
	elems, err := r.Elems()
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(elems))
	for i := range elems {
		if texts[i], err = elems[i].Text(); err != nil {
			return nil, fmt.Errorf("baton: element %d: %w", i, err)
		}
	}
	return texts, nil
}

// pushName is the first element of a push frame, lower-cased, or "".
func (r Reply) pushName() string {
	if r.kind != KindPush || len(r.elems) == 0 {
		return ""
	}
	return strings.ToLower(r.elems[0].str)
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
		switch v := arg.(type) {
		case string:
			dst = append(appendHeader(dst, '$', len(v)), v...)
		case []byte:
			dst = append(appendHeader(dst, '$', len(v)), v...)
		default:
			n := appendNumber(room[:0], reflect.ValueOf(arg))
			if len(n) == 0 {
				return dst[:start], fmt.Errorf("baton: argument %d is of type %v; want string, []byte, integer, float or bool",
					i, reflect.TypeOf(arg))
			}
			dst = append(appendHeader(dst, '$', len(n)), n...)
		}
		dst = append(dst, '\r', '\n')
	}
	return dst, nil
}

// appendHeader appends a type byte and a length.
func appendHeader(dst []byte, tag byte, n int) []byte {
	return append(strconv.AppendInt(append(dst, tag), int64(n), 10), '\r', '\n')
}

// appendNumber appends a number as Redis spells it, a float by the shortest text that reads back the same. It appends nothing
// for anything else, nor for a type with a name of its own: what a time.Duration should mean is not ours to guess.
func appendNumber(dst []byte, v reflect.Value) []byte {
	switch {
	case !v.IsValid() || v.Type().PkgPath() != "" || v.Kind() == reflect.Uintptr:
	case v.CanInt():
		return strconv.AppendInt(dst, v.Int(), 10)
	case v.CanUint():
		return strconv.AppendUint(dst, v.Uint(), 10)
	case v.CanFloat() && (math.IsInf(v.Float(), 0) || math.IsNaN(v.Float())):
		return append(dst, strings.ToLower(strings.TrimPrefix(fmt.Sprint(v.Float()), "+"))...)
	case v.CanFloat():
		return strconv.AppendFloat(dst, v.Float(), 'g', -1, v.Type().Bits())
	case v.Kind() == reflect.Bool && v.Bool():
		return append(dst, '1')
	case v.Kind() == reflect.Bool:
		return append(dst, '0')
	}
	return dst
}

// limits bound one reply, attributes included: its bytes on the wire, aggregates within each other, elements of all of them.
type limits struct{ reply, depth, elements int }

const (
	idleBuffer = 16 << 10 // the read buffer of a connection that does little
	busyBuffer = 64 << 10 // its size once a read has filled it; larger reads save no system calls worth having
	keepReads  = 16       // a larger buffer is given back after so many reads in a row that busyBuffer was enough for,
	keepBuffer = 1 << 20  // one larger than this after the first
	minRead    = 512      // reading into less room would take needlessly many calls
	readAhead  = 1 << 20  // memory taken on the word of a header, before the bytes are there
	takeOver   = 32 << 10 // a text from this size on is left where it is rather than copied
)

// protocolError says that the server broke the protocol: where its next reply begins is unknown.
type protocolError struct{ text string }

func (e *protocolError) Error() string { return e.text }

// frame is one complete top-level value in the decoder's buffer. It is valid until the next readFrom.
type frame struct {
	kind        Kind // of the value itself, not of an attribute before it
	start, end  int  // offsets in the buffer
	elems, text int  // how many elements and bytes of text its Reply takes
}

// item is what the wire is made of: a header, with the string behind it if it announces one.
type item struct {
	tag  byte
	kind Kind   // if it is a value
	n    int64  // a number, as in Reply; or how many values follow inside, -1 if it is streamed
	text []byte // in the buffer
	end  int    // where the next item begins
}

// level is an aggregate, or a streamed string ('$'), that the scanner is inside of. left is how many values are to come; if it
// is streamed, -1 less those that have come: never 0.
type level struct {
	tag  byte
	left int
}

// decoder makes replies of bytes, in two passes. The scanner (next) validates everything and finds the end of a top-level
// value, keeping its place between reads. The builder (replies) then works on frames that are complete and correct: it cannot
// fail, and knows how much memory it needs. An attribute counts as an aggregate that ends with the value it belongs to.
type decoder struct {
	limits limits
	err    error // a *protocolError; nothing is decoded after it

	buf    []byte // what was read; the next read goes between its length and its capacity
	base   int64  // offset of buf[0] in the connection's bytes
	given  bool   // buf has become the memory of a reply and must not be written again
	filled bool   // the last read took all the room there was: probably more is waiting
	quiet  int    // reads in a row that busyBuffer was enough for

	begin       int     // where the value being scanned begins
	kind        Kind    // as in frame, so far
	elems, text int     // as in frame, so far
	stack       []level // what pos is inside of, innermost last
	pos         int     // the item that is scanned next; nothing before it is looked at again
	searched    int     // its line does not end before here
	want        int     // bytes from begin on that its string needs; 0 is unknown
	item        item    // what read has read last, for either pass
}

func newDecoder(l limits) *decoder { return &decoder{limits: l} }

// buffered is the number of bytes that were read and are in no frame yet.
func (d *decoder) buffered() int { return len(d.buf) - d.begin }

// readFrom reads once and returns what Read returned. Frames found before are invalid from now on.
func (d *decoder) readFrom(r io.Reader) (int, error) {
	d.makeRoom()
	room := d.buf[len(d.buf):cap(d.buf)]
	n, err := r.Read(room)
	d.buf = d.buf[:len(d.buf)+n]
	d.filled = n == len(room) && d.want == 0
	return n, err
}

// makeRoom drops what is consumed. What is left moves once for each value, and again only when the buffer doubles or reaches
// the size that the value needs: the work is linear in the bytes, however they arrive.
func (d *decoder) makeRoom() {
	rest, size := d.buffered(), cap(d.buf)
	if d.quiet++; max(rest, d.want) > busyBuffer {
		d.quiet = 0
	}
	switch {
	case d.given, size > busyBuffer && d.quiet >= keepReads, size > busyBuffer+keepBuffer && d.quiet > 0:
		size = idleBuffer
	case d.filled:
		size = max(size, busyBuffer)
	default:
		size = max(size, idleBuffer)
	}
	if d.want <= rest+max(rest, readAhead) {
		size = max(size, d.want)
	}
	for (d.want <= rest || d.want > size) && size-rest < minRead {
		size *= 2
	}
	if d.given || size != cap(d.buf) {
		d.buf = append(make([]byte, 0, size), d.buf[d.begin:]...)
		d.given = false
	} else if d.begin > 0 {
		d.buf = d.buf[:copy(d.buf, d.buf[d.begin:])]
	}
	d.base += int64(d.begin)
	d.pos, d.searched, d.begin = d.pos-d.begin, d.searched-d.begin, 0
}

// next finds the next complete frame. False: it needs more bytes. An error is a *protocolError, and final.
func (d *decoder) next() (frame, bool, error) {
	for d.want = 0; d.err == nil && d.pos < len(d.buf) && d.scan(); {
		if len(d.stack) == 0 {
			f := frame{kind: d.kind, start: d.begin, end: d.pos, elems: d.elems, text: d.text}
			d.begin, d.elems, d.text = d.pos, 0, 0
			return f, true, nil
		}
	}
	return frame{}, false, d.err
}

// fail records that what begins at an offset of the buffer is a violation.
func (d *decoder) fail(at int, what string) bool {
	seen, _, _ := strings.Cut(string(d.buf[at:min(at+40, len(d.buf))]), "\n")
	d.err = &protocolError{fmt.Sprintf("baton: protocol error at byte %d: %s: %q", d.base+int64(at), what, seen)}
	return false
}

// scan takes the item at pos. False: not all of it is there, or it is a violation.
func (d *decoder) scan() bool {
	at, tag, top := d.pos, d.buf[d.pos], level{}
	if len(d.stack) > 0 {
		top = d.stack[len(d.stack)-1]
	}
	inside := slices.ContainsFunc(d.stack, func(l level) bool { return l != level{'|', 1} }) // of more than attributes
	switch {
	case (top.tag == '$') != (tag == ';'):
		return d.fail(at, "a streamed string and its parts belong together")
	case tag == '.' && (top.left >= 0 || top.tag == '%' && top.left%2 == 0):
		return d.fail(at, "no stream can end here")
	case tag == '>' && inside:
		// Some servers have put a push into an array. Whether it stands for an element or beside them cannot be known,
		// and a wrong guess gives callers each other's replies.
		return d.fail(at, "push inside another value")
	case !d.read(at):
		return false
	}
	it := &d.item
	d.pos = it.end
	d.text += len(it.text)
	if !inside {
		d.kind = it.kind
	}
	switch {
	case tag == ';' && len(it.text) > 0:
		return true
	case tag == ';' || tag == '.':
		d.stack = d.stack[:len(d.stack)-1]
	case it.kind >= KindArray && it.kind != KindError || it.kind == KindString && it.n < 0:
		left := max(int(it.n), -1) + 1 // with the header as one that ends below, which does for empty aggregates, too
		if tag == '|' {
			left++
		}
		if len(d.stack) >= d.limits.depth {
			return d.fail(at, "reply nested too deeply")
		}
		d.stack = append(d.stack, level{tag: tag, left: left})
		d.elems += max(int(it.n), 0)
	}
	for ; len(d.stack) > 0; d.stack = d.stack[:len(d.stack)-1] { // a value ends, and whatever it is the last part of
		top := &d.stack[len(d.stack)-1]
		if top.left--; top.left < 0 {
			d.elems++
		}
		if top.left != 0 {
			break
		}
	}
	return d.elems <= d.limits.elements || d.fail(at, "reply of too many elements")
}

// read reads and checks the item at an offset of the buffer. False: not all of it is there, or it is a violation.
func (d *decoder) read(at int) (ok bool) {
	from := at + 1
	if at == d.pos {
		from = max(from, d.searched)
	}
	i := bytes.IndexByte(d.buf[from:], '\n')
	it := &d.item
	*it = item{tag: d.buf[at], end: from + i + 1}
	if i < 0 {
		it.end, d.searched = len(d.buf), len(d.buf)
	}
	kind := strings.IndexByte(typeBytes, it.tag)
	switch {
	case kind < 0:
		return d.fail(at, "unknown type") // found out by one byte, for whoever speaks something else
	case it.end-d.begin > d.limits.reply:
		return d.fail(at, "reply of too many bytes")
	case i < 0:
		return false
	case it.end-at < 3 || d.buf[it.end-2] != '\r':
		return d.fail(at, "line feed without carriage return")
	}
	it.kind = Kind(kind)
	line := d.buf[at+1 : it.end-2]
	switch it.tag {
	case '$', '*', '%', '~', '>', '=', '!', '|', ';':
		return d.readSized(at, line)
	case '+', '-':
		it.text, ok = line, bytes.IndexByte(line, '\r') < 0
	case '(':
		sign := bytes.TrimRight(line, "0123456789")
		it.text, ok = line, len(sign) < len(line) && slices.Contains([]string{"", "-", "+"}, string(sign))
	case ':':
		n, err := strconv.ParseInt(string(line), 10, 64)
		it.n, ok = n, err == nil
	case ',':
		f, isFloat := parseFloat(string(line))
		it.n, ok = int64(math.Float64bits(f)), isFloat
	case '#':
		it.n, ok = int64(strings.Index("ft", string(line))), string(line) == "t" || string(line) == "f"
	case '_', '.':
		ok = len(line) == 0
	}
	return ok || d.fail(at, "malformed value")
}

// readSized is read for what begins with a length: '?' if it is streamed, -1 for protocol 2's nulls.
func (d *decoder) readSized(at int, line []byte) bool {
	it := &d.item
	n, err := strconv.Atoi(string(line))
	isString := strings.IndexByte("$=!;", it.tag) >= 0
	switch {
	case string(line) == "-1" && (it.tag == '$' || it.tag == '*'):
		it.kind = KindNull
		return true
	case string(line) == "?" && strings.IndexByte("$*%~>", it.tag) >= 0:
		it.n = -1
		return true
	case err != nil || line[0] < '0' || len(line) > 19 || it.tag == '=' && n < 4:
		return d.fail(at, "malformed length") // more digits are none: they are read again whenever bytes of the string arrive
	case it.tag == ';' && n == 0:
		return true
	case isString && n > d.limits.reply-(it.end-d.begin)-2, !isString && n > d.limits.elements:
		return d.fail(at, "length beyond the limit")
	case it.tag == '%' || it.tag == '|':
		n *= 2
		fallthrough
	case !isString:
		it.n = int64(n)
		return true
	case it.end+n+2 > len(d.buf):
		d.want = it.end + n + 2 - d.begin
		return false
	case it.tag == '!':
		it.kind = KindError
	}
	it.text = d.buf[it.end : it.end+n]
	it.end += n + 2
	switch {
	case string(d.buf[it.end-2:it.end]) != "\r\n":
		return d.fail(at, "string does not end where its length says")
	case it.tag == '=' && it.text[3] != ':':
		return d.fail(at, "verbatim string without its type")
	case it.tag == '=':
		it.text = it.text[4:]
	}
	return true
}

// parseFloat reads a float in decimal, an infinity or a NaN ("-nan" is how C prints some). Go's parser alone takes more.
func parseFloat(s string) (float64, bool) {
	if s == "-nan" {
		s = "nan"
	}
	if strings.Trim(s, "0123456789+-.eE") != "" && !slices.Contains([]string{"inf", "+inf", "-inf", "nan"}, s) {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil
}

// takesOver reports whether the text of a frame stays where it is, and the buffer becomes its Reply's: if it is one long string,
// or so much that the buffer would not be kept; but not if the buffer is much larger than the text that would hold on to it.
func (d *decoder) takesOver(f frame) bool {
	return f.text >= takeOver && f.text >= cap(d.buf)/4 && (f.elems == 0 || f.text >= keepBuffer)
}

// reply builds the Reply of a frame, with memory of its own.
func (d *decoder) reply(f frame) Reply {
	var r [1]Reply
	d.replies([]frame{f}, r[:])
	return r[0]
}

// replies builds the Replies of frames into out. All of them share one block for text and one for elements.
func (d *decoder) replies(fs []frame, out []Reply) {
	b, elems := builder{d: d}, 0
	for _, f := range fs {
		elems += f.elems
		if !d.takesOver(f) {
			b.need += f.text
		}
	}
	b.elems = make([]Reply, elems)
	for i, f := range fs {
		b.pos, b.inPlace = f.start, d.takesOver(f)
		d.given = d.given || b.inPlace // the buffer is the reply's from here on
		out[i] = Reply{}
		if b.value(&out[i]); b.pos != f.end {
			panic("baton: BUG: the builder and the scanner disagree about a frame")
		}
	}
}

// appendText appends the text of a frame to dst, by the rules of Reply.Text. It never takes the buffer over, and allocates
// nothing but a larger dst, errors, and what attributes and streamed strings need.
func (d *decoder) appendText(dst []byte, f frame) ([]byte, error) {
	b := builder{d: d, pos: f.start, need: f.text, inPlace: f.kind != KindError, elems: make([]Reply, f.elems)}
	var r Reply
	b.value(&r)
	text, err := r.Text()
	return append(dst, text...), err
}

// builder is the second pass.
type builder struct {
	d       *decoder
	pos     int
	inPlace bool            // strings stay in the decoder's buffer
	need    int             // bytes of all strings that do not
	text    strings.Builder // those, each a part of it; it never grows beyond need
	elems   []Reply         // what is left of the block of elements
}

// next reads the next item.
func (b *builder) next() *item {
	if !b.d.read(b.pos) {
		panic("baton: BUG: a frame is not complete and correct")
	}
	b.pos = b.d.item.end
	return &b.d.item
}

// value builds the value at pos into r.
func (b *builder) value(r *Reply) {
	it := b.next()
	for ; it.tag == '|'; it = b.next() {
		b.elements(it.n) // dropped: an attribute's memory is wasted, but servers send next to none
	}
	r.kind = it.kind
	switch {
	case it.kind == KindError:
		code, message, _ := strings.Cut(b.string(it.text), " ")
		r.err = &ServerError{Code: code, Message: message}
	case it.kind >= KindArray:
		r.elems = b.elements(it.n)
	case it.kind == KindString && it.n < 0:
		var s []byte
		for it = b.next(); len(it.text) > 0; it = b.next() {
			s = append(s, it.text...)
		}
		r.str = string(s)
	default:
		r.n, r.str = it.n, b.string(it.text)
	}
}

// elements builds n elements. A streamed aggregate, whose n is -1, gets memory of its own.
func (b *builder) elements(n int64) []Reply {
	if n < 0 {
		var elems []Reply
		for b.d.buf[b.pos] != '.' {
			elems = append(elems, Reply{})
			b.value(&elems[len(elems)-1])
		}
		b.next()
		return slices.Clip(elems)
	}
	elems := b.elems[:n:n]
	b.elems = b.elems[n:]
	for i := range elems {
		b.value(&elems[i])
	}
	return elems
}

// string makes p a string of the reply.
func (b *builder) string(p []byte) string {
	switch {
	case string(p) == "OK": // the usual answers to writes need no memory
		return "OK"
	case string(p) == "QUEUED":
		return "QUEUED"
	case b.inPlace:
		// A string must never change. This one does not: reads are the only thing that writes to a buffer, replies has
		// marked this one as given, and makeRoom takes another before the next read. (appendText copies it before.)
		return unsafe.String(unsafe.SliceData(p), len(p))
	case len(p) == b.need:
		return string(p) // the only one
	}
	if b.text.Cap() == 0 {
		b.text.Grow(b.need)
	}
	from := b.text.Len()
	b.text.Write(p)
	return b.text.String()[from:]
}
