package main

// What encoding commands and decoding replies costs each library, through its public API. All get the same canned replies over a
// connection in memory, so that neither sockets nor a server take part, in calls in which the codec dominates: batches of small commands, or
// one that is large. One caller; turns as under steady load.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A codecCase is one kind of call.
type codecCase struct {
	name    string
	call    codecCall
	command []string // as it has to arrive, this many times
	times   int
	replies [2]string // in protocols 2 and 3
	want    []string  // the texts that the replies hold
	moved   int       // bytes on the wire in the direction that matters, or 0 where nobody asks how many
}

const refusal = "WRONGTYPE Operation against a key holding the wrong kind of value"

func codecCases() []codecCase {
	return []codecCase{
		decodes("GET 64B ×100", codecClient.Gets, codecBatch, bulk(smallValue), smallValue, "GET", smallKey),
		decodes("INCR ×100", codecClient.Incrs, codecBatch, ":1234567\r\n", "1234567", "INCR", smallKey).unmeasured(),
		decodes("error ×100", codecClient.Refused, codecBatch, "-"+refusal+"\r\n", refusal, "GET", smallKey).unmeasured(),
		decodesGet("GET 64KiB", medium),
		decodesGet("GET 1MiB", large),
		decodesMGet(),
		decodesHGetAll(),
		decodesXRange(),
		encodes("SET 64B ×100", codecClient.Sets, codecBatch, "SET", setKey, smallValue),
		encodes("SET 64KiB", codecClient.Set, 1, "SET", setKey, strings.Repeat("x", medium)),
		encodesMSet(),
	}
}

type codecCall = func(codecClient, context.Context, keyList, *readout) error

// decodes is a case in which all replies, of one text each, are the same.
func decodes(name string, call codecCall, times int, reply, text string, command ...string) codecCase {
	return codecCase{
		name:    "decode " + name,
		call:    call,
		command: command,
		times:   times,
		replies: [2]string{reply, reply},
		want:    slices.Repeat([]string{text}, times),
		moved:   times * len(reply),
	}
}

func (c codecCase) unmeasured() codecCase {
	c.moved = 0
	return c
}

func decodesGet(name string, size int) codecCase {
	value := strings.Repeat("x", size)
	return decodes(name, codecClient.Get, 1, bulk(value), value, "GET", mediumKey)
}

// decodesOne is a case of one command, with many texts in its reply.
func decodesOne(name string, call codecCall, replies [2]string, want []string, command ...string) codecCase {
	c := decodes(name, call, 1, replies[1], "", command...)
	c.replies, c.want = replies, want
	return c
}

func decodesMGet() codecCase {
	values := make([]string, len(manyKeys.names))
	for i := range values {
		values[i] = fmt.Sprintf("%0*d", small, i)
	}
	reply := aggregate('*', bulks(values)...)
	return decodesOne("MGET 1000", codecClient.MGet, [2]string{reply, reply}, values, append([]string{"MGET"}, manyKeys.names...)...)
}

func decodesHGetAll() codecCase {
	var parts, pairs []string
	for i := range 100 {
		field, value := fmt.Sprintf("field:%d", i), fmt.Sprintf("%032d", i)
		parts, pairs = append(parts, field, value), append(pairs, field+"="+value)
	}
	replies := [2]string{aggregate('*', bulks(parts)...), aggregate('%', bulks(parts)...)}
	return decodesOne("HGETALL 100", codecClient.HGetAll, replies, pairs, "HGETALL", smallKey)
}

func decodesXRange() codecCase {
	var entries, texts []string
	for i := range 100 {
		id, fields := fmt.Sprintf("1700000000000-%d", i), []string(nil)
		for j := range 10 {
			fields = append(fields, fmt.Sprintf("field:%d", j), fmt.Sprintf("%016d", i*j))
		}
		entries = append(entries, aggregate('*', bulk(id), aggregate('*', bulks(fields)...)))
		texts = append(append(texts, id), fields...)
	}
	reply := aggregate('*', entries...)
	return decodesOne("XRANGE 100 of 10 fields", codecClient.XRange, [2]string{reply, reply}, texts, "XRANGE", smallKey, "-", "+")
}

func encodes(name string, call codecCall, times int, command ...string) codecCase {
	return codecCase{
		name:    "encode " + name,
		call:    call,
		command: command,
		times:   times,
		replies: [2]string{"+OK\r\n", "+OK\r\n"},
		moved:   times * len(encoded(command...)),
	}
}

func encodesMSet() codecCase {
	command := []string{"MSET"}
	for _, key := range manyKeys.names {
		command = append(command, key, smallValue)
	}
	return encodes("MSET 1000 pairs", codecClient.MSet, 1, command...)
}

func bulks(texts []string) []string {
	out := make([]string, len(texts))
	for i, s := range texts {
		out[i] = bulk(s)
	}
	return out
}

// aggregate is an array or, of keys and values in turn, a map.
func aggregate(tag byte, parts ...string) string {
	n := len(parts)
	if tag == '%' {
		n /= 2
	}
	return fmt.Sprintf("%c%d\r\n", tag, n) + strings.Join(parts, "")
}

func (c codecCase) server() *canned { return newCanned(c.command, c.times, c.replies[0], c.replies[1]) }

// check has a contender do a case once, and looks at every command and every text. The sum is that of what it read.
func (c codecCase) check(who codecContender) (sum int, err error) {
	s := c.server()
	s.heard = &heard{}
	opened, err := who.open(s.dial)
	if err != nil {
		return 0, err
	}
	defer opened.Close()
	read := readout{keeps: true}
	if err := c.call(opened, context.Background(), newKeyList(c.command[1:]), &read); err != nil {
		return 0, err
	}
	if !s.heard.are(c.command, c.times) {
		return 0, fmt.Errorf("it did not send %d × %.60q", c.times, c.command)
	}
	if got := inOrder(c, read.texts); !slices.Equal(got, inOrder(c, c.want)) {
		return 0, fmt.Errorf("it read %.200q", got)
	}
	return read.sum, nil
}

// inOrder sorts what comes out of maps.
func inOrder(c codecCase, texts []string) []string {
	if strings.HasPrefix(c.replies[1], "%") {
		return slices.Sorted(slices.Values(texts))
	}
	return texts
}

// checked is the case as it is done over and over: the sum of what it reads is right.
func (c codecCase) checked(opened codecClient, sum int) func(context.Context) error {
	args, read := newKeyList(c.command[1:]), &readout{}
	return func(ctx context.Context) error {
		read.sum = 0
		err := c.call(opened, ctx, args, read)
		if err == nil && read.sum != sum {
			err = fmt.Errorf("what it read came to %d instead of %d", read.sum, sum)
		}
		return err
	}
}

// enter opens a contender for its turns.
func (c codecCase) enter(who codecContender, sum int, kept notes) (*entrant, error) {
	opened, err := who.open(c.server().dial)
	if err != nil {
		return nil, err
	}
	do := []func(context.Context) error{c.checked(opened, sum)}
	one := crowd{do: do, contexts: []context.Context{context.Background()}, notes: kept}
	return &entrant{name: who.name, lib: who.lib, take: one.takeSome, close: opened.Close}, nil
}

// takeSome takes a turn again if no call ended in it: that says nothing, and happens if turns are as short as those of tests.
func (c *crowd) takeSome(warmUp, counted time.Duration) (t turn, err error) {
	for t.perSecond == 0 && err == nil {
		t, err = c.take(warmUp, counted)
	}
	return t, err
}

// run gives everybody their turns.
func (c codecCase) run(p pace) (result, error) {
	r, kept := result{cell: cell{op: operation{name: c.name}}}, newNotes(1, p.counted)
	defer func() {
		for _, e := range r.entrants {
			e.close()
		}
	}()
	for _, who := range codecContenders {
		sum, err := c.check(who)
		if err != nil {
			return r, fmt.Errorf("%s: %w", who.name, err)
		}
		e, err := c.enter(who, sum, kept)
		if err != nil {
			return r, fmt.Errorf("%s: %w", who.name, err)
		}
		r.entrants = append(r.entrants, e)
	}
	return r, r.play(p)
}

// codecPace is shorter than that of steady load: without sockets there is less to even out.
func codecPace(cfg config) pace {
	opening, warmUp, counted := 80*time.Millisecond, 70*time.Millisecond, 270*time.Millisecond
	if cfg.short {
		opening, warmUp, counted = 10*time.Millisecond, 10*time.Millisecond, 40*time.Millisecond
	}
	p := cfg.pace
	return pace{min(p.opening, opening), min(p.warmUp, warmUp), min(p.counted, counted), p.rounds}
}

func runCodec(cfg config) error {
	cfg.pace = codecPace(cfg)
	head := fmt.Sprintf("# Codecs\n\n%s.\n\n", about(&server{name: "A connection in memory"}, cfg)) +
		"To baton it passes for a socket. \"baton, no socket\" has to do without that, and leaves writing and reading to goroutines.\n\n" +
		"| call | client | µs a call | allocations | MB/s |\n|---|---|--:|--:|--:|\n"
	fmt.Print(head)
	var text, reached strings.Builder
	lines := [][]string{{"call", "client", "round", callTime.name, allocs.name, "MB/s"}}
	for _, c := range codecCases() {
		if !cfg.cells.MatchString(c.name) {
			continue
		}
		r, err := c.run(cfg.pace)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Print(c.table(r))
		text.WriteString(c.table(r))
		reached.WriteString(c.verdict(r))
		lines = append(lines, c.csvLines(r)...)
	}
	verdicts := "\n## No slower than the best of the others\n\nTime of a call: ratio of the medians (range of the rounds).\n\n" +
		"| call | reached | |\n|---|---|---|\n" + reached.String()
	fmt.Println(verdicts)
	if err := os.WriteFile(filepath.Join(cfg.out, "codec.md"), []byte(head+text.String()+verdicts), 0o644); err != nil {
		return err
	}
	return writeCSV(filepath.Join(cfg.out, "codec.csv"), lines)
}

// callTime is what a call takes from one to the next, garbage collection and all.
var callTime = metric{name: "µs a call", value: func(t turn) float64 { return 1e6 / t.perSecond }}

// rate is the megabytes a second that a case moves.
func (c codecCase) rate() metric {
	return metric{value: func(t turn) float64 { return float64(c.moved) * t.perSecond / 1e6 }}
}

// table is a line for each entrant.
func (c codecCase) table(r result) string {
	var b strings.Builder
	for _, e := range r.entrants {
		rate := ""
		if c.moved > 0 {
			rate = shortSpread(e.spread(c.rate()), false)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", c.name, e.name,
			shortSpread(e.spread(callTime), true), shortSpread(e.spread(allocs), false), rate)
	}
	return b.String()
}

// verdict compares baton with the best of the others.
func (c codecCase) verdict(r result) string {
	judged, ok := judge(goal{of: callTime, bound: 1, against: bestPeer, who: batonName}, r)
	if !ok {
		return ""
	}
	return fmt.Sprintf("| %s | %s | %s |\n", c.name, judged.result(), judged.verdict())
}

func (c codecCase) csvLines(r result) (lines [][]string) {
	for _, e := range r.entrants {
		for round, t := range e.turns {
			line := []string{c.name, e.name, strconv.Itoa(round + 1)}
			for _, m := range []metric{callTime, allocs, c.rate()} {
				line = append(line, precise(m.value(t)))
			}
			if c.moved == 0 {
				line[len(line)-1] = ""
			}
			lines = append(lines, line)
		}
	}
	return lines
}
