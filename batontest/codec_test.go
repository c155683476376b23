package batontest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParseCommand(t *testing.T) {
	for _, tc := range []struct{ in, args, problem string }{
		{"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "[GET k]", ""},
		{"*1\r\n$0\r\n\r\n", "[]", ""},
		{"*0\r\n", "[]", ""},
		{"*-1\r\n", "[]", ""},
		{"PING  a\r\n", "[PING a]", ""},
		{"\r\n", "[]", ""},
		{"*x\r\n", "", "invalid multibulk length"},
		{"*1\r\n:1\r\n", "", "expected '$', got ':'"},
		{"*1\r\n$-1\r\n", "", "invalid bulk length"},
		{"*1\r\n$99999999999\r\n", "", "invalid bulk length"},
		{"*9999999\r\n", "", "invalid multibulk length"},
		{strings.Repeat("x", maxInline+1), "", "too big inline request"},
	} {
		args, n, err := parseCommand(nil, []byte(tc.in+"rest"))
		switch {
		case tc.problem != "":
			if err == nil || err.Error() != "Protocol error: "+tc.problem {
				t.Errorf("%.40q: %v, want %v", tc.in, err, tc.problem)
			}
		case err != nil || n != len(tc.in) || fmt.Sprintf("%s", args) != tc.args:
			t.Errorf("%q: %q, %d bytes, %v", tc.in, args, n, err)
		}
		for cut := range min(len(tc.in), 100) {
			if _, n, err := parseCommand(nil, []byte(tc.in[:cut])); n != 0 || err != nil && tc.problem == "" {
				t.Errorf("%q: %d bytes, %v", tc.in[:cut], n, err)
			}
		}
	}
}

// Frames of every kind, and their first bytes.
var frames = []string{
	"+OK\r\n", "-ERR no\r\n", ":1\r\n", ",1.5\r\n", "#t\r\n", "(12345678901234567890\r\n", "_\r\n",
	"$5\r\na\r\nbc\r\n", "$0\r\n\r\n", "$-1\r\n", "=7\r\ntxt:abc\r\n", "!3\r\nERR\r\n",
	"*0\r\n", "*-1\r\n", anArray, "%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n:1\r\n:2\r\n", "~1\r\n_\r\n",
	"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n", aMessage, ">1\r\n$18\r\nnobody asks for it\r\n", ">0\r\n",
}

const (
	anArray  = "*2\r\n$1\r\na\r\n*1\r\n:1\r\n"
	aMessage = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\np\r\n"
)

func TestScannerFindsEndsWhereverTheStreamIsCut(t *testing.T) {
	stream := []byte(strings.Join(frames, ""))
	var ends []int
	var kinds []byte
	words := make([]string, len(frames))
	words[slices.Index(frames, aMessage)], words[slices.Index(frames, anArray)] = "message", "a"
	for _, f := range frames {
		kinds = append(kinds, f[0])
		ends = append(ends, len(f))
		if len(ends) > 1 {
			ends[len(ends)-1] += ends[len(ends)-2]
		}
	}
	for size := 1; size <= len(stream); size++ {
		var s scanner
		var gotEnds []int
		var gotKinds []byte
		var gotWords []string
		at := 0
		for part := range slices.Chunk(stream, size) {
			for len(part) > 0 {
				n, done := s.next(part)
				at += n
				part = part[n:]
				if done {
					gotEnds, gotKinds, gotWords = append(gotEnds, at), append(gotKinds, s.kind), append(gotWords, string(s.word))
				}
				if done != s.idle() {
					t.Fatalf("cut by %d, at %d: done %v, idle %v", size, at, done, s.idle())
				}
			}
		}
		if !slices.Equal(gotEnds, ends) || !bytes.Equal(gotKinds, kinds) || !slices.Equal(gotWords, words) {
			t.Fatalf("cut by %d: ends %v of kinds %q, want %v of %q", size, gotEnds, gotKinds, ends, kinds)
		}
	}
}

func TestPushFrames(t *testing.T) {
	got := appendValue(nil, 3, push{"SMIGRATED", 19, int64(2), nil, true, 1.5, []byte("b"), []any{[]string{"a:1", "b:2", "8892-8991"}, []any{}}})
	want := ">8\r\n$9\r\nSMIGRATED\r\n:19\r\n:2\r\n_\r\n#t\r\n,1.5\r\n$1\r\nb\r\n" +
		"*2\r\n*3\r\n$3\r\na:1\r\n$3\r\nb:2\r\n$9\r\n8892-8991\r\n*0\r\n"
	equal(t, "frame", string(got), want)
	defer func() {
		if recover() == nil {
			t.Error("a struct was encoded")
		}
	}()
	appendValue(nil, 3, struct{}{})
}

func FuzzParseCommand(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"))
	f.Add([]byte("PING\r\n*1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		args, n, err := parseCommand(nil, b)
		if n < 0 || n > len(b) || err != nil && n != 0 {
			t.Fatal(n, err)
		}
		size := 0
		for _, a := range args {
			size += len(a)
		}
		if size > len(b) {
			t.Fatal("arguments longer than the input")
		}
	})
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte(strings.Join(frames, "")), 3)
	f.Add([]byte("*1\r\n%1\r\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size <= 0 {
			return
		}
		var s scanner
		for part := range slices.Chunk(b, size) {
			for len(part) > 0 {
				n, _ := s.next(part)
				if n <= 0 || n > len(part) || s.skip < 0 || s.need < 0 {
					t.Fatal(n, s)
				}
				part = part[n:]
			}
		}
	})
}
