package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestEveryLibrarySendsAndReadsWhatACodecCaseSays(t *testing.T) {
	for _, c := range codecCases() {
		for _, who := range codecContenders {
			t.Run(c.name+"/"+who.name, func(t *testing.T) {
				sum, err := c.check(who)
				if err != nil {
					t.Fatal(err)
				}
				if decodes := len(c.want) > 0; decodes != (sum > 0) {
					t.Errorf("what it read came to %d", sum)
				}
			})
		}
	}
}

func TestACodecCaseNoticesWhatIsWrong(t *testing.T) {
	gets, sets := codecCases()[0], encodes("", codecClient.Set, 1, "SET", setKey, smallValue)
	otherTexts, fewerTexts, otherArguments, oneMore := gets, gets, sets, sets
	otherTexts.replies = [2]string{bulk(strings.Repeat("y", small)), bulk(strings.Repeat("y", small))}
	fewerTexts.want = gets.want[1:]
	otherArguments.call = codecClient.MSet
	oneMore.times++
	for name, wrong := range map[string]codecCase{
		"other texts": otherTexts, "fewer texts": fewerTexts, "another command": otherArguments, "one command more": oneMore,
	} {
		for _, who := range codecContenders {
			if _, err := wrong.check(who); err == nil {
				t.Errorf("%s by %s was not noticed", name, who.name)
			}
		}
	}
}

func TestAWrongSumFailsACodecTurn(t *testing.T) {
	c := decodes("", codecClient.Get, 1, bulk(smallValue), smallValue, "GET", smallKey)
	for _, who := range codecContenders {
		e, err := c.enter(who, small+1, newNotes(1, time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.turn(0, time.Hour); err == nil {
			t.Errorf("%s: it was counted", who.name)
		}
		e.close()
	}
}

func TestCodecsLeaveATurnOfEverybodyInEveryCase(t *testing.T) {
	out := t.TempDir()
	cfg := config{out: out, short: true, cells: regexp.MustCompile(""),
		pace: pace{opening: time.Millisecond, counted: 2 * time.Millisecond, rounds: 2}}
	if err := runCodec(cfg); err != nil {
		t.Fatal(err)
	}
	turns := turnsIn(t, filepath.Join(out, "codec.csv"))
	text, err := os.ReadFile(filepath.Join(out, "codec.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range codecCases() {
		for _, who := range codecContenders {
			if n := turns[c.name+" by "+who.name]; n != 2 {
				t.Errorf("%s had %d turns in %s", who.name, n, c.name)
			}
		}
		if verdict := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(c.name) + ` \| [^|]* × [^|]* \| (yes|\*\*no\*\*) \|$`); !verdict.Match(text) {
			t.Errorf("no verdict about %s", c.name)
		}
	}
}

// dialCanned is a connection to a server that answers GET key with a reply.
func dialCanned(t *testing.T, reply string) net.Conn {
	t.Helper()
	nc, err := newCanned([]string{"GET", "key"}, 3, reply, reply).dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func TestACannedConnectionAnswersInOrderHoweverCommandsAndRepliesAreCut(t *testing.T) {
	command, reply := encoded("GET", "key"), bulk("value")
	all := command + strings.ToLower(command) + encoded("PING") + strings.Repeat(command, 4) + encoded("ECHO", "key") + command
	want := reply + reply + "+PONG\r\n" + strings.Repeat(reply, 6)
	for size := range len(all) {
		nc := dialCanned(t, reply)
		for rest := all; rest != ""; {
			n := min(size+1, len(rest))
			if _, err := io.WriteString(nc, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		got := make([]byte, len(want))
		for n := 0; n < len(got); {
			read, err := nc.Read(got[n:min(n+size+1, len(got))])
			if err != nil {
				t.Fatal(err)
			}
			n += read
		}
		if string(got) != want {
			t.Fatalf("in pieces of %d: %q, want %q", size+1, got, want)
		}
	}
}

func TestACannedConnectionRefusesWhatIsNoCommand(t *testing.T) {
	if _, err := io.WriteString(dialCanned(t, "+OK\r\n"), "GET key\r\n"); err == nil {
		t.Error("it was taken")
	}
}

func TestAReadFromACannedConnectionWaits(t *testing.T) {
	read := func(nc net.Conn) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := nc.Read(make([]byte, 1))
			done <- err
		}()
		return done
	}
	for name, tt := range map[string]struct {
		first, then func(net.Conn)
		want        error
	}{
		"for a reply":             {nil, func(nc net.Conn) { io.WriteString(nc, encoded("PING")) }, nil},
		"for the end":             {nil, func(nc net.Conn) { nc.Close() }, io.EOF},
		"until a deadline":        {func(nc net.Conn) { nc.SetDeadline(time.Now().Add(time.Millisecond)) }, nil, os.ErrDeadlineExceeded},
		"until a deadline is set": {nil, func(nc net.Conn) { nc.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			nc := dialCanned(t, "+OK\r\n")
			if tt.first != nil {
				tt.first(nc)
			}
			done := read(nc)
			if tt.then != nil {
				tt.then(nc)
			}
			if err := <-done; !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func BenchmarkCodec(b *testing.B) {
	for _, c := range codecCases() {
		for _, who := range codecContenders {
			b.Run("call="+c.name+"/client="+who.name, func(b *testing.B) {
				sum, err := c.check(who)
				if err != nil {
					b.Fatal(err)
				}
				opened, err := who.open(c.server().dial)
				if err != nil {
					b.Fatal(err)
				}
				defer opened.Close()
				do := c.checked(opened, sum)
				b.SetBytes(int64(c.moved))
				b.ReportAllocs()
				for b.Loop() {
					if err := do(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
