package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestSequencesTellWhatBecameOfNumbers(t *testing.T) {
	for _, c := range []struct {
		come                          string
		missing, repeated, outOfOrder int
	}{
		{"1 2 3 4 5", 0, 0, 0},
		{"1 2 3", 2, 0, 0},
		{"4 5", 3, 0, 0},
		{"", 5, 0, 0},
		{"1 2 2 3 4 5 5 5", 0, 3, 0},
		{"1 3 2 4 5", 0, 0, 1},
		{"1 4 2 3 5", 0, 0, 2},
		{"1 2 3 1 2 3 4 5", 0, 3, 0}, // what came again is not out of order as well
		{"2 1 1 5", 2, 1, 1},
	} {
		var q sequence
		for text := range strings.FieldsSeq(c.come) {
			if err := q.note(text); err != nil {
				t.Fatal(err)
			}
		}
		if missing := q.missing(5, nil); missing != c.missing || q.repeated != c.repeated || q.outOfOrder != c.outOfOrder {
			t.Errorf("%s: %d missing, %d repeated, %d out of order", c.come, missing, q.repeated, q.outOfOrder)
		}
	}
	var q sequence
	if q.note("1"); q.missing(3, map[int]bool{2: true}) != 1 {
		t.Error("what may not have been sent is not missing")
	}
	for _, text := range []string{"", "x", "0", "-1", "99999999999"} {
		if q.note(text) == nil {
			t.Errorf("%q was taken for a number that was sent", text)
		}
	}
}

// What the parts of the mix have noted, each in its place.
func TestVerdictOfTheMix(t *testing.T) {
	noted := func(numbers string) (q sequence) {
		for text := range strings.FieldsSeq(numbers) {
			q.note(text)
		}
		return q
	}
	failed := failures{failed: 1, firstErr: errors.New("first")}
	for _, c := range []struct {
		name   string
		change func(*mix)
		want   verdict
	}{
		{"nothing", func(m *mix) {}, verdict{}},
		{"a lost element", func(m *mix) { m.lists[0].popped = noted("1 3") }, verdict{Lost: 1}},
		{"one that a failed pop may have taken", func(m *mix) { m.lists[0].popped, m.lists[0].unsure = noted("1 3"), 1 }, verdict{}},
		{"an element popped twice", func(m *mix) { m.lists[0].popped = noted("1 2 2 3") }, verdict{ExecutedTwice: 1}},
		{"elements out of order", func(m *mix) { m.lists[0].popped = noted("2 1 3") }, verdict{Failed: 1}},
		{"a lost long one", func(m *mix) { m.long[0].popped = sequence{} }, verdict{Lost: 1}},
		{"a missed message", func(m *mix) { *m.ear.heard["c"] = noted("2 3") }, verdict{Missed: 1}},
		{"a repeated message", func(m *mix) { *m.ear.heard["c"] = noted("1 2 3 2") }, verdict{Repeated: 1}},
		{"messages out of order", func(m *mix) { *m.ear.heard["c"] = noted("1 3 2") }, verdict{OutOfOrder: 1}},
		{"a push that failed", func(m *mix) { m.pusher.failures = failed }, verdict{Failed: 1}},
		{"a long one's push", func(m *mix) { m.long[0].from.failures = failed }, verdict{Failed: 1}},
		{"a PUBLISH that failed", func(m *mix) { m.publisher.failures = failed }, verdict{Failed: 1}},
		{"a pop that failed", func(m *mix) { m.lists[0].failures = failed }, verdict{Failed: 1}},
		{"a long one", func(m *mix) { m.long[0].failures = failed }, verdict{Failed: 1}},
		{"the subscription", func(m *mix) { m.ear.failures = failed }, verdict{Failed: 1}},
		{"a transaction", func(m *mix) { m.movers[0].failures = failed }, verdict{Failed: 1}},
		{"what was found", func(m *mix) { m.found = failed }, verdict{Failed: 1}},
	} {
		m := &mix{pusher: newProducer("RPUSH", 0, "l"), publisher: newProducer("PUBLISH", 0, "c"), movers: []*mover{{}},
			ear: ear{heard: map[string]*sequence{"c": {}}}}
		m.pusher.sent, m.publisher.sent = 3, 3
		m.lists = []*list{{from: m.pusher, popped: noted("1 2 3")}}
		m.long = []*list{{from: newProducer("RPUSH", 0, "x"), popped: noted("1")}}
		m.long[0].from.sent = 1
		*m.ear.heard["c"] = noted("1 2 3")
		c.change(m)
		var got verdict
		got.addMix(m)
		got.firstErr = nil
		if got != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestLongPopsAreAnsweredWithinTheWindow(t *testing.T) {
	for window, want := range map[time.Duration][2]time.Duration{
		time.Second:      {time.Second / 3, time.Second / 2},
		5 * time.Second:  {3 * time.Second, 4500 * time.Millisecond},
		15 * time.Second: {3 * time.Second, 12 * time.Second},
	} {
		cfg := config{window: window}
		if got := cfg.longPops(); got[0].Round(time.Millisecond) != want[0].Round(time.Millisecond) || got[1] != want[1] {
			t.Errorf("in a window of %v: after %v", window, got)
		}
	}
}
