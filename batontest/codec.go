package batontest

// RESP as a server needs it: commands are parsed in place, replies appended to a buffer, and frames told apart without
// being decoded. Nothing here knows of connections or locks.

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// protocolError is answered as -ERR Protocol error: …; the connection cannot be used any further.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

const (
	maxArgs   = 1 << 20   // as Redis: elements in a command
	maxBulk   = 512 << 20 // as Redis: proto-max-bulk-len
	maxInline = 64 << 10  // as Redis
)

// parseCommand appends the arguments of the command at the head of b to args; they alias b. n is the command's length,
// 0 while it is incomplete.
func parseCommand(args [][]byte, b []byte) (_ [][]byte, n int, err error) {
	if len(b) == 0 {
		return args, 0, nil
	}
	if b[0] != '*' {
		return parseInline(args, b)
	}
	count, i, ok := parseLength(b, 1)
	if !ok || count > maxArgs {
		return args, 0, protocolError("invalid multibulk length")
	}
	if i == 0 {
		return args, 0, nil
	}
	for ; count > 0; count-- {
		if i >= len(b) {
			return args, 0, nil
		}
		if b[i] != '$' {
			return args, 0, protocolError(fmt.Sprintf("expected '$', got '%c'", b[i]))
		}
		size, start, ok := parseLength(b, i+1)
		if !ok || start != 0 && (size < 0 || size > maxBulk) {
			return args, 0, protocolError("invalid bulk length")
		}
		if start == 0 || start+size+2 > len(b) {
			return args, 0, nil
		}
		args = append(args, b[start:start+size:start+size])
		i = start + size + 2
	}
	return args, i, nil
}

func parseInline(args [][]byte, b []byte) ([][]byte, int, error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		if len(b) > maxInline {
			return args, 0, protocolError("too big inline request")
		}
		return args, 0, nil
	}
	return append(args, bytes.Fields(b[:end])...), end + 1, nil
}

// parseLength reads the number at b[i:] up to its CRLF. next is the index behind that, 0 while it is incomplete.
func parseLength(b []byte, i int) (v, next int, ok bool) {
	negative := i < len(b) && b[i] == '-'
	start := i
	if negative {
		i++
	}
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case c >= '0' && c <= '9':
			if v = v*10 + int(c-'0'); v > 1<<40 {
				return 0, 0, false
			}
		case c == '\r' && i > start:
			if i+1 == len(b) {
				return 0, 0, true
			}
			if negative {
				v = -v
			}
			return v, i + 2, b[i+1] == '\n'
		default:
			return 0, 0, false
		}
	}
	return 0, 0, true
}

// A scanner finds where frames end in a stream of replies that is cut anywhere.
type scanner struct {
	kind byte   // the first byte of the frame being scanned; valid while it is, and when next returns done
	need int    // values still to come in this frame
	skip int    // bytes of a blob still to come, its CRLF included
	line []byte // the beginning of a header that was cut

	values int    // of the frame so far, itself included
	first  int    // bytes still to come of the first value in it
	word   []byte // that value, if it is a short string: a push says in it what it is; valid as kind is
}

const maxWord = 16 // bytes: "punsubscribe" is the longest that anybody asks for

// idle says whether the stream stands between two frames.
func (s *scanner) idle() bool { return s.need == 0 && s.skip == 0 && len(s.line) == 0 }

// next consumes b up to the end of the current frame, or all of it.
func (s *scanner) next(b []byte) (n int, done bool) {
	for n < len(b) {
		if s.skip > 0 {
			k := min(s.skip, len(b)-n)
			if w := min(s.first, k); w > 0 {
				s.word = append(s.word, b[n:n+w]...)
				s.first -= w
			}
			s.skip -= k
			n += k
		} else {
			if s.idle() {
				s.kind, s.need, s.values, s.word = b[n], 1, 0, s.word[:0]
			}
			i := bytes.IndexByte(b[n:], '\n')
			if i < 0 {
				s.line = append(s.line, b[n:]...)
				return len(b), false
			}
			line := b[n : n+i+1]
			if len(s.line) > 0 {
				line = append(s.line, line...)
				s.line = s.line[:0]
			}
			n += i + 1
			s.header(line)
		}
		if s.need == 0 && s.skip == 0 {
			return n, true
		}
	}
	return n, false
}

func (s *scanner) header(line []byte) {
	s.need--
	s.values++
	size, _, _ := parseLength(line, 1)
	switch line[0] {
	case '$', '=', '!':
		if size >= 0 && line[1] != '-' {
			s.skip = size + 2
		}
		if s.values == 2 && size <= maxWord {
			s.first = max(size, 0)
		}
	case '*', '~', '>':
		s.need += max(size, 0)
	case '%':
		s.need += 2 * size
	case '|':
		s.need += 2*size + 1 // an attribute is no value: the one that it belongs to follows
	}
}

func appendHead(b []byte, kind byte, n int) []byte {
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}

func appendBulk[T []byte | string](b []byte, v T) []byte {
	b = appendHead(b, '$', len(v))
	b = append(b, v...)
	return append(b, '\r', '\n')
}

// Replies that are not what their Go type suggests.
type (
	status    string // +OK
	fault     string // -ERR …
	verbatim  string // a string to protocol 2, as numbers are that are not integers
	raw       string // RESP already
	dict      []any  // keys and values in turn; an array to protocol 2, as the next two
	set       []any
	push      []any
	several   []any               // one after another
	noList    struct{}            // a null which in protocol 2 differs from others
	unchanged struct{ reply any } // of a command that has changed nothing
)

// oneLine keeps what a client has said from ending the line that quotes it.
var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// appendValue encodes for protocol 2 or 3.
func appendValue(b []byte, proto int, v any) []byte {
	three := proto == 3
	switch v := v.(type) {
	case nil:
		return append(b, pick(three, "_\r\n", "$-1\r\n")...)
	case noList:
		return append(b, pick(three, "_\r\n", "*-1\r\n")...)
	case *entry:
		return appendBulk(b, v.str)
	case string:
		return appendBulk(b, v)
	case []byte:
		return appendBulk(b, v)
	case int:
		return appendHead(b, ':', v)
	case int64:
		return appendHead(b, ':', int(v))
	case bool:
		return append(b, pick(v, pick(three, "#t\r\n", ":1\r\n"), pick(three, "#f\r\n", ":0\r\n"))...)
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !three {
			return appendBulk(b, text)
		}
		return append(append(append(b, ','), text...), "\r\n"...)
	case status:
		return append(append(append(b, '+'), v...), "\r\n"...)
	case fault:
		return append(append(append(b, '-'), oneLine.Replace(string(v))...), "\r\n"...)
	case verbatim:
		if !three {
			return appendBulk(b, string(v))
		}
		return append(appendHead(b, '=', len(v)+4), "txt:"+v+"\r\n"...)
	case raw:
		return append(b, v...)
	case dict:
		if !three {
			return appendAll(appendHead(b, '*', len(v)), proto, v)
		}
		return appendAll(appendHead(b, '%', len(v)/2), proto, v)
	case set:
		return appendAll(appendHead(b, pick(three, byte('~'), '*'), len(v)), proto, v)
	case push:
		return appendAll(appendHead(b, pick(three, byte('>'), '*'), len(v)), proto, v)
	case []any:
		return appendAll(appendHead(b, '*', len(v)), proto, v)
	case []string:
		return appendAll(appendHead(b, '*', len(v)), proto, anys(v))
	case several:
		return appendAll(b, proto, v)
	case unchanged:
		return appendValue(b, proto, v.reply)
	}
	panic(fmt.Sprintf("batontest: %T cannot be sent", v))
}

func appendAll(b []byte, proto int, values []any) []byte {
	for _, v := range values {
		b = appendValue(b, proto, v)
	}
	return b
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}
