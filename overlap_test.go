package baton

// Handoffs of subscriptions: a radio publishes at every step of one, and at each something else may happen. Nothing may be missed or
// repeated while nothing dies; when something does, a gap must stand wherever messages are missing. Then many of them, in an order
// that a seed chooses, and a lot of traffic through a lot of them.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// scene is a client with subscriptions of every kind, two of which share a channel.
type scene struct {
	*radio
	t     *testing.T
	c     *Client
	old   *line           // the connection of the subscriptions
	ears  map[string]*ear // one, two, pattern and shard
	pause time.Duration   // that every step is given to sink in

	step         sync.Mutex // guards the rest, and is held while something happens at a step
	steps        []airStep
	fenced       bool // the old connection has answered its first PING
	unsubscribed bool // it was asked to unsubscribe
	unheard      []string
}

// onScene are the topics of each subscription of a scene, and sceneChannels what is published.
var (
	onScene       = map[string][]string{"one": {"a", "p1"}, "two": {"a"}, "pattern": {"p*>p1"}, "shard": {"s"}}
	sceneChannels = []string{"a", "p1", "s:s", "n"}
)

// airedAs is what is published where a topic is heard.
func airedAs(topic string) string {
	_, channel, pattern := strings.Cut(topic, ">")
	switch {
	case pattern:
		return channel
	case strings.HasPrefix(topic, "s"):
		return "s:" + topic
	}
	return topic
}

func newScene(t *testing.T, change func(*Options)) *scene {
	t.Helper()
	sc := &scene{t: t}
	sc.radio, sc.c = newRadio(t, change)
	p, err := sc.c.PSubscribe(background, "p*")
	s, err2 := sc.c.SSubscribe(background, "s")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	sc.ears = map[string]*ear{"one": tune(t, sc.c, "a", "p1"), "two": tune(t, sc.c, "a"), "pattern": listen(p), "shard": listen(s)}
	sc.publish(sceneChannels...)
	sc.publish(sceneChannels...)
	synctest.Wait()
	sc.old = sc.hub()
	return sc
}

// newest is the connection that was made last.
func (sc *scene) newest() *line {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.lines[len(sc.lines)-1]
}

// play has begin start a handoff, and at step number at of it does happen. Something is published at every step, and as long as the old
// connection is subscribed it must be heard at once. Minutes later, when all is over, more is published.
func (sc *scene) play(begin func(), at int, does func()) {
	sc.set(func() {
		sc.hook = func(s airStep) {
			sc.step.Lock()
			i := len(sc.steps)
			sc.steps = append(sc.steps, s)
			if s.l == sc.old {
				sc.fenced = sc.fenced || s.command == "PING" && s.after
				sc.unsubscribed = sc.unsubscribed || strings.Contains(s.command, "UNSUBSCRIBE")
			}
			sc.step.Unlock()
			time.Sleep(sc.pause)
			if i < 200 {
				sc.publish(sceneChannels...)
			}
			if i == at {
				does()
			}
			time.Sleep(sc.pause)
			sc.step.Lock()
			defer sc.step.Unlock()
			sc.mu.Lock()
			alive, aired := !sc.old.gone && !sc.old.frozen && sc.old.topics["a"], sc.aired["a"]
			sc.mu.Unlock()
			if heard, err := sc.ears["two"].all(); sc.pause > 0 && alive && err == nil && !slices.Contains(heard, "a "+strconv.Itoa(aired)) {
				sc.unheard = append(sc.unheard, s.String())
			}
		}
	})
	begin()
	time.Sleep(3 * time.Minute)
	sc.set(func() { sc.hook = nil })
	sc.publish(sceneChannels...)
	sc.publish(sceneChannels...)
	synctest.Wait()
}

// moves is the usual begin.
func (sc *scene) moves() { sc.old.move(1, 30, addrB) }

// heardAll says that a subscription has heard everything once, in order, and without a gap.
func (sc *scene) heardAll(names ...string) {
	sc.t.Helper()
	for _, name := range names {
		e := sc.ears[name]
		for _, topic := range onScene[name] {
			missed, repeated := e.judge(topic, 0, sc.aired[airedAs(topic)])
			if _, err := e.all(); len(missed)+len(repeated)+e.gaps() > 0 || err != nil {
				sc.t.Errorf("%s of %s: missed %v, repeated %v, %d gaps, ended with %v", name, topic, missed, repeated, e.gaps(), err)
			}
		}
	}
}

// wasTold says that a subscription goes on, has heard everything once and in order, and that gaps, no more than two for a topic, stand where it has
// not.
func (sc *scene) wasTold(names ...string) {
	sc.t.Helper()
	for _, name := range names {
		e := sc.ears[name]
		for _, topic := range onScene[name] {
			missed, repeated := e.judge(topic, 0, sc.aired[airedAs(topic)])
			if _, err := e.all(); len(missed)+len(repeated) > 0 || e.gaps() > 2*len(onScene[name]) || err != nil {
				sc.t.Errorf("%s of %s: missed %v and was not told, repeated %v; %d gaps, ended with %v", name, topic, missed, repeated, e.gaps(), err)
			}
		}
	}
}

var everyone = []string{"one", "two", "pattern", "shard"}

// endsAt says where the one connection of the subscriptions is in the end, if that is certain, and that nothing else is left.
func (sc *scene) endsAt(addr string) {
	sc.t.Helper()
	if l := sc.hub(); l.addr != addr && addr != "" {
		sc.t.Errorf("subscribed at %s, want %s", letters[l.addr], letters[addr])
	}
	open := 0
	for _, l := range sc.lines {
		if !l.gone {
			open++
		}
	}
	if st := sc.c.Stats(); open != 2 || st.Conns != 2 || st.InFlight != 0 || st.Backlog != 0 {
		sc.t.Errorf("%d connections are open; stats: %d, %d in flight, %d in the backlog", open, st.Conns, st.InFlight, st.Backlog)
	}
}

// since says that from a number on, at the latest, everything of a topic was heard once and in order.
func (sc *scene) since(what string, e *ear, topic string, from int) {
	sc.t.Helper()
	first, heard := from+1, 0
	all, _ := e.all()
	for _, h := range all {
		if text, is := strings.CutPrefix(h, topic+" "); is {
			n, _ := strconv.Atoi(text)
			if heard++; heard == 1 {
				first = min(first, n)
			}
		}
	}
	if missed, repeated := e.judge(topic, first-1, sc.aired[airedAs(topic)]); len(missed)+len(repeated)+e.gaps() > 0 {
		sc.t.Errorf("%s of %s, from %d: missed %v, repeated %v, %d gaps", what, topic, from+1, missed, repeated, e.gaps())
	}
}

// until says that what was heard of a topic, up to wherever it ended, was heard once and in order.
func (sc *scene) until(what string, e *ear, topic string) {
	sc.t.Helper()
	all, _ := e.all()
	last := 0
	for _, h := range all {
		if text, is := strings.CutPrefix(h, topic+" "); is {
			last, _ = strconv.Atoi(text)
		}
	}
	if missed, repeated := e.judge(topic, 0, last); len(missed)+len(repeated)+e.gaps() > 0 || last < 2 {
		sc.t.Errorf("%s of %s, to %d: missed %v, repeated %v, %d gaps", what, topic, last, missed, repeated, e.gaps())
	}
}

// --- nothing happens ---

// F5, F6, F10: a subscriber who is told to move is on the other server long before the first one closes, and has missed nothing and heard
// nothing twice; what the old connection brings is heard at once.
func TestCaseF5F6F10HandoffOfSubscriptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"":                nil,
		"HoldCap is off":  func(o *Options) { o.Maintenance.HoldCap = -1 },
		"HoldCap is tiny": func(o *Options) { o.Maintenance.HoldCap = 1 },
		"FailFast":        func(o *Options) { o.Backlog = FailFast },
		"no Timeout":      func(o *Options) { o.Timeout = -1 },
		"no relaxation":   func(o *Options) { o.Maintenance.RelaxedTimeout = -1 },
	} {
		for _, pause := range []time.Duration{0, time.Millisecond} {
			sub(t, fmt.Sprintf("%s, pause %v", name, pause), func(t *testing.T) {
				sc := newScene(t, change)
				sc.pause = pause
				topics := sc.on(sc.old)
				sc.play(func() {
					sc.moves()
					time.Sleep(4 * time.Second)
					if sc.mu.Lock(); !sc.old.gone {
						t.Error("4 s into a window of 30 s the old connection is open")
					}
					sc.mu.Unlock()
				}, -1, nil)
				sc.heardAll(everyone...)
				sc.endsAt(addrB)
				if got := sc.on(sc.hub()); got != topics {
					t.Errorf("subscribed to %q, want %q", got, topics)
				}
				if len(sc.unheard) > 0 {
					t.Errorf("what the old connection brought was not heard at once at %v", sc.unheard)
				}
				if st := sc.c.Stats(); st.Handoffs != 1 || st.Reconnects != 0 {
					t.Errorf("%d handoffs, %d reconnects", st.Handoffs, st.Reconnects)
				}
				sc.mayNotBeReordered()
			})
		}
	}
}

// mayNotBeReordered says in which order the steps of a handoff must be: the old connection's first PING when all is confirmed on the new
// one, and its UNSUBSCRIBE when the new one has answered another PING. What is compared is when the server got each: that it has answered
// is noted behind its write, and perhaps behind what the client does next.
func (sc *scene) mayNotBeReordered() {
	sc.t.Helper()
	at := func(old bool, command string, nth int) int {
		for i, s := range sc.steps {
			if (s.l == sc.old) == old && strings.HasPrefix(s.command, command) && !s.after {
				if nth--; nth == 0 {
					return i
				}
			}
		}
		sc.t.Fatalf("%q is not among the steps %v", command, sc.steps)
		return 0
	}
	confirmed, fence1 := at(false, "PING", 1), at(true, "PING", 1)
	fence2, leaves := at(false, "PING", 2), at(true, "UNSUBSCRIBE", 1)
	if confirmed > fence1 || fence1 > fence2 || fence2 > leaves {
		sc.t.Errorf("the steps were %v", sc.steps)
	}
}

// What is confirmed on its replacement, and brought by that alone, waits until the old connection has brought all that it will.
func TestTheNewConnectionsMessagesWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		e := tune(t, c, "a")
		old := r.hub()
		r.publish("a")
		var before, after []string
		r.set(func() {
			r.hook = func(s airStep) {
				if s.l != old || !strings.HasPrefix(s.command, "UNSUBSCRIBE") {
					return
				}
				if s.after {
					r.publish("a") // only the new one brings this
					time.Sleep(time.Millisecond)
					before, _ = e.all()
					time.Sleep(time.Millisecond)
					return
				}
				r.set(func() { old.down = time.Second }) // the last of the old one is slow
				r.publish("a")
				time.Sleep(time.Millisecond)
			}
		})
		old.move(1, 10, addrB)
		time.Sleep(8 * time.Second)
		after, _ = e.all()
		if !slices.Equal(before, []string{"a 1"}) || !slices.Equal(after, []string{"a 1", "a 2", "a 3"}) {
			t.Errorf("heard %q, then %q", before, after)
		}
	})
}

// --- something happens at each step ---

// trial is something that happens at one step of a handoff, and what must be true in the end.
type trial struct {
	does   func(sc *scene)
	judge  func(sc *scene)
	before func(sc *scene)
	change func(*Options)
}

// strictly is wasTold of everyone; if it can be known that nothing was missed, nobody may have been told so.
func strictly(sc *scene, sure bool) {
	sc.t.Helper()
	sc.wasTold(everyone...)
	for name, e := range sc.ears {
		if n := e.gaps(); sure && sc.pause > 0 && n > 0 {
			sc.t.Errorf("%s was told of %d gaps", name, n)
		}
	}
}

// remember is a trial that judges by what was so when it happened.
func remember[T any](does func(sc *scene) T, judge func(sc *scene, was T)) func() trial {
	return func() trial {
		var was T
		return trial{does: func(sc *scene) { was = does(sc) }, judge: func(sc *scene) { judge(sc, was) }}
	}
}

// keptAlive is a trial of which nobody would learn without PINGs, if nothing is outstanding when it happens.
func keptAlive(new func() trial) func() trial {
	return func() trial {
		x := new()
		x.change = func(o *Options) { o.KeepAlive = 20 * time.Second }
		return x
	}
}

// handoffTrials are what can happen in the middle of a handoff.
var handoffTrials = map[string]func() trial{
	"the old connection ends": remember(func(sc *scene) bool {
		sc.old.kill()
		return sc.fencedNow()
	}, func(sc *scene, fenced bool) {
		strictly(sc, fenced)
		sc.endsAt(addrB)
	}),
	"the old connection is reset": remember(func(sc *scene) bool {
		sc.old.reset()
		return sc.fencedNow()
	}, func(sc *scene, fenced bool) {
		strictly(sc, fenced)
		sc.endsAt(addrB)
	}),
	"the old connection stands still": keptAlive(remember(func(sc *scene) bool {
		sc.old.freeze()
		return false
	}, func(sc *scene, _ bool) {
		sc.wasTold(everyone...)
		sc.endsAt(addrB)
	})),
	"the new connection ends": remember(func(sc *scene) bool {
		sc.newest().kill()
		return !sc.unsubscribedNow()
	}, neverLeft),
	"the new connection is reset": remember(func(sc *scene) bool {
		sc.newest().reset()
		return !sc.unsubscribedNow()
	}, neverLeft),
	"the new connection stands still": keptAlive(remember(func(sc *scene) bool {
		sc.newest().freeze()
		return !sc.unsubscribedNow()
	}, neverLeft)),
	"the new connection ends, and there is no other": func() trial {
		var on, silent bool
		return trial{does: func(sc *scene) {
			sc.set(func() { sc.sick[""] = true })
			sc.newest().kill()
			time.AfterFunc(10*time.Second, func() { // whatever was asked of the old connection, it serves on
				sc.publish("a")
				time.Sleep(time.Millisecond)
				sc.mu.Lock()
				last := "a " + strconv.Itoa(sc.aired["a"])
				on = !sc.old.gone
				sc.mu.Unlock()
				heard, _ := sc.ears["two"].all()
				silent = !slices.Contains(heard, last)
			})
			time.AfterFunc(time.Minute, func() { sc.set(func() { clear(sc.sick) }) })
		}, judge: func(sc *scene) {
			if on && silent {
				sc.t.Error("10 s later the old connection lives, and nothing is heard")
			}
			sc.wasTold(everyone...)
			sc.endsAt("")
		}}
	},
	"both end": remember(func(sc *scene) bool {
		sc.old.kill()
		sc.newest().kill()
		return false
	}, func(sc *scene, _ bool) { sc.wasTold(everyone...) }),
	"the new one ends, then the old one": remember(func(sc *scene) bool {
		sc.newest().kill()
		time.Sleep(10 * time.Millisecond)
		sc.old.kill()
		return false
	}, func(sc *scene, _ bool) { sc.wasTold(everyone...) }),
	"the old one ends, then the new one": remember(func(sc *scene) bool {
		sc.old.kill()
		time.Sleep(10 * time.Millisecond)
		sc.newest().kill()
		return false
	}, func(sc *scene, _ bool) { sc.wasTold(everyone...) }),
	"another announcement": remember(func(sc *scene) bool {
		sc.mu.Lock()
		told := []*line{sc.old, sc.lines[len(sc.lines)-1]}
		sc.mu.Unlock()
		for _, l := range told {
			l.move(2, 40, addrC)
		}
		return true
	}, func(sc *scene, _ bool) {
		sc.heardAll(everyone...)
		sc.endsAt(addrC)
	}),
	"another announcement, on the old connection": remember(func(sc *scene) bool {
		sc.old.move(2, 40, addrC)
		return true
	}, func(sc *scene, _ bool) { sc.heardAll(everyone...) }),
	"another announcement, on the new connection": remember(func(sc *scene) bool {
		sc.newest().move(2, 40, addrC)
		return true
	}, func(sc *scene, _ bool) { sc.heardAll(everyone...) }),
	"a copy of the announcement": remember(func(sc *scene) bool {
		sc.old.say(movingFrame(1, 30, addrB))
		sc.newest().say(movingFrame(1, 30, addrB))
		return true
	}, func(sc *scene, _ bool) {
		sc.heardAll(everyone...)
		sc.endsAt(addrB)
	}),
	"Renew": remember(func(sc *scene) func() error {
		return later(func() error { return sc.c.Renew(background) })
	}, func(sc *scene, renewed func() error) {
		if err := renewed(); err != nil {
			sc.t.Errorf("Renew: %v", err)
		}
		sc.heardAll(everyone...)
	}),
	"Subscribe": func() trial {
		var over func() tuned
		var e *ear
		var from int
		return trial{change: func(o *Options) { o.Backlog = FailFast }, does: func(sc *scene) {
			over = later(func() tuned {
				s, err := sc.c.Subscribe(background, "n", "a")
				if err == nil {
					sc.mu.Lock()
					from = sc.aired["n"] // "a" is published as often
					sc.mu.Unlock()
					e = listen(s)
				}
				return tuned{s, err}
			})
		}, judge: func(sc *scene) {
			if err := over().err; err != nil {
				sc.t.Fatalf("Subscribe: %v", err)
			}
			sc.since("the new subscription", e, "n", from)
			sc.since("the new subscription", e, "a", from)
			sc.heardAll(everyone...)
			sc.endsAt(addrB)
		}}
	},
	"Add": func() trial {
		var over func() error
		var from int
		return trial{change: func(o *Options) { o.Backlog = FailFast }, does: func(sc *scene) {
			over = later(func() error {
				err := sc.ears["two"].sub.Add(background, "n", "p1")
				sc.mu.Lock()
				from = sc.aired["n"]
				sc.mu.Unlock()
				return err
			})
		}, judge: func(sc *scene) {
			if err := over(); err != nil {
				sc.t.Fatalf("Add: %v", err)
			}
			sc.since("what was added", sc.ears["two"], "n", from)
			sc.since("what was added", sc.ears["two"], "p1", from)
			sc.heardAll(everyone...)
			sc.endsAt(addrB)
		}}
	},
	"Add, refused": func() trial {
		var over func() error
		return trial{before: func(sc *scene) { sc.denied["n"] = "NOPERM no" }, does: func(sc *scene) {
			over = later(func() error { return sc.ears["two"].sub.Add(background, "x", "n") })
		}, judge: func(sc *scene) {
			refusedWith(sc.t, over(), "NOPERM")
			sc.heardAll(everyone...)
			sc.endsAt(addrB)
			if on := sc.on(sc.hub()); on != "a p1 p:p* s:s" {
				sc.t.Errorf("subscribed to %q", on)
			}
		}}
	},
	"Remove": remember(func(sc *scene) func() error {
		return later(func() error { return sc.ears["one"].sub.Remove(background, "a", "p1") })
	}, func(sc *scene, over func() error) {
		if err := over(); err != nil {
			sc.t.Errorf("Remove: %v", err)
		}
		sc.until("before it was removed", sc.ears["one"], "a")
		sc.until("before it was removed", sc.ears["one"], "p1")
		if heard, _ := sc.ears["one"].all(); slices.Contains(heard, "p1 "+strconv.Itoa(sc.aired["p1"])) {
			sc.t.Error("it is still heard")
		}
		sc.heardAll("two", "pattern", "shard")
		sc.endsAt(addrB)
		if on := sc.on(sc.hub()); on != "a p:p* s:s" {
			sc.t.Errorf("subscribed to %q", on)
		}
	}),
	"Remove and Add at once": func() trial {
		var over func() error
		return trial{does: func(sc *scene) {
			over = later(func() error {
				e := sc.ears["one"]
				for range 3 {
					e.notes("removed p1")
					if err := e.sub.Remove(background, "p1"); err != nil {
						return err
					}
					e.notes("adding p1")
					if err := e.sub.Add(background, "p1"); err != nil {
						return err
					}
					sc.mu.Lock()
					aired := sc.aired["p1"]
					sc.mu.Unlock()
					e.notes("added p1 " + strconv.Itoa(aired))
				}
				return nil
			})
		}, judge: func(sc *scene) {
			if err := over(); err != nil {
				sc.t.Errorf("Remove or Add: %v", err)
			}
			sc.heardAll(everyone...)
			sc.endsAt(addrB)
		}}
	},
	"Subscription.Close": remember(func(sc *scene) func() error {
		return later(func() error { return errors.Join(sc.ears["two"].sub.Close(), sc.ears["pattern"].sub.Close()) })
	}, func(sc *scene, over func() error) {
		if err := over(); err != nil {
			sc.t.Errorf("Close: %v", err)
		}
		sc.ears["two"].ended(sc.t, ErrClosed)
		sc.ears["pattern"].ended(sc.t, ErrClosed)
		sc.heardAll("one", "shard")
		sc.endsAt(addrB)
		if on := sc.on(sc.hub()); on != "a p1 s:s" {
			sc.t.Errorf("subscribed to %q", on)
		}
	}),
	"Client.Close": remember(func(sc *scene) time.Duration {
		start := time.Now()
		sc.c.Close()
		return time.Since(start)
	}, func(sc *scene, took time.Duration) {
		if took != 0 {
			sc.t.Errorf("Close took %v", took)
		}
		sc.over()
	}),
	"Client.Shutdown": remember(func(sc *scene) func() error {
		return later(func() error {
			ctx, cancel := contextFor(time.Minute)
			defer cancel()
			return sc.c.Shutdown(ctx)
		})
	}, func(sc *scene, shut func() error) {
		if err := shut(); err != nil {
			sc.t.Errorf("Shutdown: %v", err)
		}
		sc.over()
	}),
}

// neverLeft judges what happens to the new connection: as long as the old one is subscribed, nobody may notice.
func neverLeft(sc *scene, subscribed bool) {
	sc.t.Helper()
	if subscribed && sc.pause > 0 {
		sc.heardAll(everyone...)
	} else {
		sc.wasTold(everyone...)
	}
	sc.endsAt("") // when it was current already, what is noticed after the window leads to the configured address
}

func (sc *scene) fencedNow() bool {
	sc.step.Lock()
	defer sc.step.Unlock()
	return sc.fenced
}

func (sc *scene) unsubscribedNow() bool {
	sc.step.Lock()
	defer sc.step.Unlock()
	return sc.unsubscribed
}

// over says that the client is closed, and all that was its.
func (sc *scene) over() {
	sc.t.Helper()
	for _, name := range everyone {
		sc.ears[name].ended(sc.t, ErrClosed)
		for _, topic := range onScene[name] {
			sc.until("before the end", sc.ears[name], topic)
		}
	}
	for _, l := range sc.lines {
		if !l.gone {
			sc.t.Errorf("connection %d is open", l.number)
		}
	}
}

// TestHandoffOfSubscriptionsStepByStep has each trial happen at each step of a handoff.
func TestHandoffOfSubscriptionsStepByStep(t *testing.T) {
	t.Parallel()
	var steps int
	bubble(t, func(t *testing.T) {
		sc := newScene(t, nil)
		sc.play(sc.moves, -1, nil)
		steps = len(sc.steps)
	})
	if steps < 20 {
		t.Fatalf("a handoff of four topics has %d steps", steps)
	}
	for name, new := range handoffTrials {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, pause := range []time.Duration{0, time.Millisecond} {
				for at := 0; at < steps; at += map[bool]int{true: 1, false: 3}[pause > 0] {
					bubble(t, func(t *testing.T) {
						x := new()
						sc := newScene(t, x.change)
						if sc.pause = pause; x.before != nil {
							sc.set(func() { x.before(sc) })
						}
						happened := false
						sc.play(sc.moves, at, func() { happened = true; x.does(sc) })
						if !happened {
							t.Skip("there are not so many steps")
						}
						if x.judge(sc); t.Failed() {
							t.Errorf("it happened at %v (step %d, pause %v)", sc.steps[at], at, pause)
						}
					})
					if t.Failed() {
						return
					}
				}
			}
		})
	}
}

// What is under way to the old connection when the new one is ready may be confirmed on the new one first.
func TestMovedWhileASubscribeIsUnderWay(t *testing.T) {
	t.Parallel()
	for _, up := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond} {
		for _, before := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond} {
			sub(t, fmt.Sprintf("up=%v, called %v before", up, before), func(t *testing.T) {
				sc := newScene(t, nil)
				sc.set(func() { sc.old.up = up })
				stop := make(chan struct{})
				go func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(7 * time.Millisecond):
							sc.publish(sceneChannels...)
						}
					}
				}()
				over := later(func() tuned { s, err := sc.c.Subscribe(background, "n"); return tuned{s, err} })
				time.Sleep(before)
				sc.old.move(1, 5, addrB)
				r := over()
				if r.err != nil {
					t.Fatal(r.err)
				}
				sc.mu.Lock()
				from := sc.aired["n"]
				sc.mu.Unlock()
				e := listen(r.s)
				time.Sleep(4 * time.Second)
				close(stop)
				time.Sleep(time.Second)
				sc.since("the new subscription", e, "n", from)
				sc.heardAll(everyone...)
			})
		}
	}
}

// A new connection that has taken over is in service, and may be slow: a limit for dials would leave nobody subscribed.
func TestSlowJustAfterItHasTakenOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sc := newScene(t, func(o *Options) { o.DialTimeout, o.Maintenance.RelaxedTimeout = time.Second, -1 })
		slow := false
		sc.play(func() {
			sc.set(func() {
				play := sc.hook
				sc.hook = func(s airStep) {
					if s.l != sc.old && sc.unsubscribedNow() && s.command == "PING" && !s.after && !slow {
						slow = true
						time.Sleep(3 * time.Second)
					}
					play(s)
				}
			})
			sc.moves()
		}, -1, nil)
		if !slow {
			t.Fatal("nothing was slow")
		}
		sc.heardAll(everyone...)
		sc.endsAt(addrB)
		if n := sc.c.Stats().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
	})
}

// The first connection of the subscriptions is told to move before, while and after the first channels are confirmed on it.
func TestMovedWhileItFirstSubscribes(t *testing.T) {
	for at := range 6 {
		sub(t, strconv.Itoa(at), func(t *testing.T) {
			r, c := newRadio(t, nil)
			var n atomic.Int64
			r.set(func() {
				r.hook = func(s airStep) {
					if n.Add(1) == int64(at+1) {
						s.l.move(1, 10, addrB)
					}
					r.publish("a", "b")
				}
			})
			s, err := c.Subscribe(background, "a", "b")
			if err != nil {
				t.Fatal(err)
			}
			r.mu.Lock()
			from := r.aired["a"]
			r.mu.Unlock()
			e := listen(s)
			time.Sleep(time.Minute)
			r.set(func() { r.hook = nil })
			r.publish("a", "b")
			synctest.Wait()
			sc := &scene{t: t, radio: r}
			sc.since("it", e, "a", from)
			sc.since("it", e, "b", from)
			if l := r.hub(); l.addr != addrB {
				t.Errorf("subscribed at %s", l.addr)
			}
		})
	}
}

// A replacement that has become current before all was confirmed on it is told to move in its turn: its own replacement waits for that.
func TestMovedOnWhileItTakesOver(t *testing.T) {
	for _, up := range []time.Duration{time.Millisecond, 50 * time.Millisecond, 2 * time.Second} {
		sub(t, up.String(), func(t *testing.T) {
			sc := newScene(t, nil)
			sc.set(func() {
				sc.wire = func(addr string) (time.Duration, time.Duration) { return map[string]time.Duration{addrB: up}[addr], 0 }
			})
			sc.play(sc.moves, 0, func() { // the first thing that it was asked is on its way
				sc.old.kill()
				sc.newest().say(movingFrame(2, 1, addrC))
			})
			sc.wasTold(everyone...)
			sc.endsAt(addrC)
			for name, e := range sc.ears {
				if n := e.gaps(); n != 1 {
					t.Errorf("%s was told of %d gaps, want one", name, n)
				}
			}
		})
	}
}

// A first subscription while the pin is in force goes where that says.
func TestTheFirstSubscriptionFollowsThePin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, c := newRadio(t, nil)
		r.lines[0].move(1, 10, addrB)
		time.Sleep(5 * time.Second)
		tune(t, c, "a")
		if l := r.hub(); l.addr != addrB {
			t.Errorf("subscribed at %s", l.addr)
		}
	})
}

// A topic that is refused on the replacement fails its owners, who have heard all until then, and holds up nobody.
func TestRefusedOnTheReplacement(t *testing.T) {
	for topic, owners := range map[string][]string{"a": {"one", "two"}, "p1": {"one"}, "p:p*": {"pattern"}, "s:s": {"shard"}} {
		sub(t, topic, func(t *testing.T) {
			sc := newScene(t, nil)
			sc.set(func() { sc.denied[topic] = "NOPERM no" })
			sc.play(sc.moves, -1, nil)
			var others []string
			for _, name := range everyone {
				if !slices.Contains(owners, name) {
					others = append(others, name)
					continue
				}
				sc.ears[name].refused(t, "NOPERM")
				for _, topic := range onScene[name] {
					sc.until(name, sc.ears[name], topic)
				}
			}
			sc.heardAll(others...)
			sc.endsAt(addrB)
			want := map[string]string{"a": "p:p* s:s", "p1": "a p:p* s:s", "p:p*": "a p1 s:s", "s:s": "a p1 p:p*"}[topic]
			if got := sc.on(sc.hub()); got != want {
				t.Errorf("subscribed to %q, want %q", got, want)
			}
			if n := sc.c.Stats().Handoffs; n != 1 {
				t.Errorf("%d handoffs", n)
			}
		})
	}
	sub(t, "all", func(t *testing.T) {
		sc := newScene(t, nil)
		sc.set(func() {
			for _, topic := range []string{"a", "p1", "p:p*", "s:s"} {
				sc.denied[topic] = "NOPERM no"
			}
		})
		sc.play(sc.moves, -1, nil)
		for _, name := range everyone {
			sc.ears[name].refused(t, "NOPERM")
		}
		sc.set(func() { clear(sc.denied) })
		e := tune(t, sc.c, "a")
		sc.set(func() { clear(sc.aired) })
		sc.publish("a")
		e.hears(t, "a 1")
	})
}

// --- where it can go ---

func TestHandoffOfSubscriptionsWithABadSuccessor(t *testing.T) {
	t.Parallel()
	sub(t, "it refuses, and the configured address does not", func(t *testing.T) {
		sc := newScene(t, nil)
		sc.set(func() { sc.sick[addrB] = true })
		sc.play(sc.moves, -1, nil)
		sc.heardAll(everyone...)
		sc.endsAt(addrA)
	})
	sub(t, "nobody answers until the window has ended", func(t *testing.T) {
		sc := newScene(t, nil)
		sc.set(func() { sc.sick[""] = true })
		time.AfterFunc(35*time.Second, func() { sc.publish(sceneChannels...) })
		time.AfterFunc(50*time.Second, func() { sc.set(func() { clear(sc.sick) }) })
		sc.play(sc.moves, -1, nil)
		for _, name := range everyone {
			if n := sc.ears[name].gaps(); n != 1 {
				t.Errorf("%s was told of %d gaps, want 1", name, n)
			}
		}
		sc.wasTold(everyone...)
		sc.endsAt(addrA)
	})
	sub(t, "it is loading", func(t *testing.T) {
		sc := newScene(t, nil)
		sc.set(func() { sc.denied["a"] = "LOADING Redis is loading the dataset in memory" })
		time.AfterFunc(5*time.Second, func() { sc.set(func() { clear(sc.denied) }) })
		sc.play(sc.moves, -1, nil)
		sc.heardAll(everyone...)
		sc.endsAt(addrB)
	})
	sub(t, "it never confirms, and meanwhile a lot comes", func(t *testing.T) {
		sc := newScene(t, nil)
		sc.set(func() {
			sc.wire = func(addr string) (time.Duration, time.Duration) {
				return 0, map[string]time.Duration{addrB: time.Hour}[addr]
			}
		})
		sc.old.say(movingFrame(1, 10, addrB))
		for range 660 { // together more than is kept for two connections to be compared
			for range 100 {
				sc.publish("a")
			}
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		sc.publish(sceneChannels...)
		synctest.Wait()
		sc.heardAll(everyone...)
	})
	sub(t, "it never confirms", func(t *testing.T) {
		sc := newScene(t, nil)
		sc.set(func() {
			sc.wire = func(addr string) (time.Duration, time.Duration) {
				if addr == addrB {
					return 0, time.Hour
				}
				return 0, 0
			}
		})
		sc.play(func() { sc.old.say(movingFrame(1, 10, addrB)) }, -1, nil) // and the old server does not close
		sc.heardAll(everyone...)
		sc.tuned()
	})
}

// With nobody named, it goes to the configured address at half of the window.
func TestHandoffOfSubscriptionsWithoutASuccessor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sc := newScene(t, nil)
		start := time.Now()
		sc.play(func() {
			sc.old.say(noName(1, 10))
			time.AfterFunc(10*time.Second, sc.old.kill)
			for sc.hub(); len(sc.dialled()) < 3 && time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
			}
			spans(t, "the dial", time.Since(start), 5*time.Second, 6100*time.Millisecond)
		}, -1, nil)
		sc.heardAll(everyone...)
		sc.endsAt(addrA)
	})
}

// Of a subscriber who does not receive, the queue is full before, in and after the overlap: what he missed is counted to the message.
func TestGapsAcrossAHandoffAreExact(t *testing.T) {
	for room := 1; room < 40; room += 3 {
		for _, pause := range []time.Duration{0, time.Millisecond} {
			bubble(t, func(t *testing.T) {
				sc := newScene(t, func(o *Options) { o.MaxMessages = room })
				s, err := sc.c.Subscribe(background, "n")
				if err != nil {
					t.Fatal(err)
				}
				sc.mu.Lock()
				last := sc.aired["n"]
				sc.mu.Unlock()
				var taken sync.WaitGroup
				taken.Go(func() { // in the middle of it, and then nothing for long
					ctx, cancel := contextFor(time.Minute)
					defer cancel()
					for range 5 { // or fewer, if what there is has become one gap
						var gap *GapError
						if _, err := s.Receive(ctx); err == nil {
							last++
						} else if errors.As(err, &gap) {
							last += gap.Missed
						}
					}
				})
				sc.pause = pause
				sc.play(sc.moves, -1, nil)
				taken.Wait()
				for {
					ctx, cancel := contextFor(time.Millisecond)
					m, err := s.Receive(ctx)
					cancel()
					var gap *GapError
					if errors.As(err, &gap) {
						if last += gap.Missed; gap.Missed < 1 {
							t.Errorf("room for %d: a gap of %d", room, gap.Missed)
						}
						continue
					} else if err != nil {
						break
					}
					if n, _ := strconv.Atoi(string(m.Payload)); n != last+1 {
						t.Errorf("room for %d, pause %v: %d came after %d", room, pause, n, last)
					}
					last++
				}
				if last != sc.aired["n"] {
					t.Errorf("room for %d, pause %v: %d of %d", room, pause, last, sc.aired["n"])
				}
			})
		}
	}
}

// A gap is not told because of a handoff that came to nothing.
func TestAHandoffOfSubscriptionsThatIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sc := newScene(t, nil)
		sc.set(func() { sc.sick[""] = true })
		sc.play(func() { sc.old.say(movingFrame(1, 2, addrB)) }, -1, nil)
		sc.heardAll(everyone...)
		if n := sc.c.Stats().HandoffsGivenUp; n != 1 || sc.hub() != sc.old {
			t.Errorf("%d handoffs were given up", n)
		}
	})
}

// --- payloads that cannot be told apart, and proxies that lag ---

// TestEqualPayloadsAllArrive publishes of few different payloads, so that the overlap looks like many others: none may be missing, in
// order, and no more is repeated than both connections brought.
func TestEqualPayloadsAllArrive(t *testing.T) {
	for alphabet := 1; alphabet <= 3; alphabet++ {
		for seed := range uint64(20) {
			sub(t, fmt.Sprintf("of %d, seed %d", alphabet, seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 5))
				equalPayloads(t, time.Duration(seed%2)*time.Millisecond, func(int) (payloads []string) {
					for range random.IntN(4) {
						payloads = append(payloads, string(rune('x'+random.IntN(alphabet))))
					}
					return payloads
				})
			})
		}
	}
	t.Run("two at any two steps", func(t *testing.T) {
		for first := range 15 {
			for second := first; second < 15; second += 1 + first%2 {
				bubble(t, func(t *testing.T) {
					equalPayloads(t, time.Millisecond, func(step int) (payloads []string) {
						if step == first {
							payloads = append(payloads, "x")
						}
						if step == second {
							payloads = append(payloads, "x")
						}
						return payloads
					})
				})
			}
		}
	})
}

// equalPayloads publishes at each step of a handoff what payloads says, and looks at what is heard of it. Step 0 is before it.
func equalPayloads(t *testing.T, pause time.Duration, payloads func(step int) []string) {
	r, c := newRadio(t, nil)
	e := tune(t, c, "a")
	old := r.hub()
	var mu sync.Mutex
	var published []string
	step, twice := 0, 0
	say := func() {
		mu.Lock()
		defer mu.Unlock()
		for _, payload := range payloads(step) {
			if len(r.tuned()) == 2 {
				twice++
			}
			published = append(published, "a "+payload)
			r.say("a", payload)
		}
		step++
	}
	r.set(func() { r.hook = func(airStep) { say(); time.Sleep(pause) } })
	say()
	old.move(1, 10, addrB)
	time.Sleep(time.Minute)
	say()
	synctest.Wait()
	heard, _ := e.all()
	rest := published
	for _, h := range heard {
		if len(rest) > 0 && h == rest[0] {
			rest = rest[1:]
		}
	}
	if more := len(heard) - len(published); len(rest) > 0 || more < 0 || more > twice || e.gaps() > 0 {
		t.Errorf("published %q, heard %q; %d came twice", published, heard, twice)
	}
}

// TestLaggingProxies has messages and answers take their time, in order, on the old connection, the new one or both: all is as if they
// did not.
func TestLaggingProxies(t *testing.T) {
	t.Parallel()
	waits := []time.Duration{0, 3 * time.Millisecond, 200 * time.Millisecond}
	for _, old := range waits {
		for _, up := range waits {
			for _, down := range waits {
				sub(t, fmt.Sprintf("old=%v new=%v/%v", old, up, down), func(t *testing.T) {
					r, c := newRadio(t, nil)
					r.set(func() {
						r.wire = func(addr string) (time.Duration, time.Duration) {
							if addr == addrB {
								return up, down
							}
							return old / 2, old
						}
					})
					e := tune(t, c, "a", "b")
					hub := r.hub()
					for i := range 1000 {
						if i == 100 {
							hub.move(1, 8, addrB)
						}
						r.publish("a", "b")
						time.Sleep(time.Duration(1+i%9) * time.Millisecond)
					}
					time.Sleep(time.Minute)
					for _, topic := range []string{"a", "b"} {
						if missed, repeated := e.judge(topic, 0, 1000); len(missed)+len(repeated)+e.gaps() > 0 {
							t.Errorf("of %s missed %v, repeated %v, %d gaps", topic, missed, repeated, e.gaps())
						}
					}
					if l := r.hub(); l.addr != addrB || c.Stats().Handoffs != 1 {
						t.Errorf("subscribed at %s after %d handoffs", l.addr, c.Stats().Handoffs)
					}
				})
			}
		}
	}
}

// A new proxy that learns late of what is published never makes a message be lost. What it brings after the fences may be heard again.
func TestANewProxyThatLearnsLate(t *testing.T) {
	for _, lag := range []time.Duration{100 * time.Microsecond, time.Millisecond, 20 * time.Millisecond, 700 * time.Millisecond} {
		sub(t, lag.String(), func(t *testing.T) {
			r, c := newRadio(t, nil)
			r.set(func() {
				r.wire = func(string) (time.Duration, time.Duration) { return 200 * time.Microsecond, 200 * time.Microsecond }
			})
			e := tune(t, c, "a")
			hub := r.hub()
			r.set(func() { r.lag[addrB] = lag })
			for i := range 3000 {
				if i == 500 {
					hub.move(1, 2, addrB)
				}
				r.publish("a")
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Minute)
			if missed, repeated := e.judge("a", 0, 3000); len(missed)+e.gaps() > 0 || len(repeated) > int(lag/time.Millisecond)+10 {
				t.Errorf("missed %v, repeated %d, %d gaps", missed, len(repeated), e.gaps())
			}
		})
	}
}

// TestTheServerEndsASubscriptionOnTheReplacement: what the old connection has delivered behind it is not repeated.
func TestTheServerEndsASubscriptionOnTheReplacement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, s, old, sub := onAir(t, Options{}, "a", "b")
		old.moving(1, 30, addrB)
		fresh := s.accept()
		fresh.handshake()
		fresh.sentNow() // SUBSCRIBE a b, PING
		fresh.says(confirms("SUBSCRIBE a") + confirms("SUBSCRIBE b") + "+PONG\r\n")
		old.sentNow() // PING
		one, two := framed("message", "a", "1"), framed("message", "a", "2")
		old.says("+PONG\r\n" + one + two)
		synctest.Wait()
		fresh.says(one + confirmation("UNSUBSCRIBE", "a", 1))
		fresh.sentNow() // PING
		fresh.says("+PONG\r\n")
		old.obeys(nil)
		fresh.obeys(nil)
		time.Sleep(time.Second)
		fresh.obeys(nil) // it is subscribed to again
		if got, want := heardOf(sub), []string{"a 1", "a 2", "gap -1"}; !slices.Equal(got, want) {
			t.Errorf("heard %q, want %q", got, want)
		}
	})
}

// TestEqualPayloadsWhenTheOldConnectionEndsInTheTakeOver: that the new one brought a payload twice does not say that the old one did.
func TestEqualPayloadsWhenTheOldConnectionEndsInTheTakeOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, s, old, sub := onAir(t, Options{}, "a")
		old.moving(1, 30, addrB)
		fresh := s.accept()
		fresh.handshake()
		fresh.sentNow() // SUBSCRIBE a, PING
		x := framed("message", "a", "x")
		old.says(x + x) // before the new one is subscribed
		synctest.Wait()
		fresh.says(confirms("SUBSCRIBE a") + "+PONG\r\n")
		old.sentNow() // PING
		old.says("+PONG\r\n")
		fresh.sentNow()                 // PING
		fresh.says(x + x + "+PONG\r\n") // which the old one does not live to deliver
		old.sentNow()                   // UNSUBSCRIBE, PING
		old.Close()
		synctest.Wait()
		fresh.obeys(nil)
		fresh.says(framed("message", "a", "y"))
		if got, want := heardOf(sub), []string{"a x", "a x", "a x", "a y"}; !slices.Equal(got, want) { // the shortest overlap is one
			t.Errorf("heard %q, want %q", got, want)
		}
	})
}

// heardOf is what a subscription has to say now.
func heardOf(s *Subscription) (all []string) {
	for {
		ctx, cancel := contextFor(time.Millisecond)
		m, err := s.Receive(ctx)
		cancel()
		var gap *GapError
		switch {
		case errors.As(err, &gap):
			all = append(all, "gap "+strconv.Itoa(gap.Missed))
		case err != nil:
			return all
		default:
			all = append(all, heardAs(m))
		}
	}
}

// --- random orders ---

var overlapSeeds = flag.Int("baton.overlaps", 40, "how many seeds TestRandomOverlaps tries")

// TestRandomOverlaps plays what can happen to subscriptions in an order that a seed chooses, every other time with deaths. A failure
// names its seed: go test -run RandomOverlaps -baton.seed=N
func TestRandomOverlaps(t *testing.T) {
	t.Parallel()
	if *randomSeed != 0 {
		bubble(t, func(t *testing.T) { randomOverlap(t, *randomSeed) })
		return
	}
	seeds := *overlapSeeds
	if testing.Short() {
		seeds = min(seeds, 20)
	}
	base := uint64(time.Now().UnixNano()) | 1
	for round := range 4 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			for i := range seeds / 4 {
				seed := base + uint64(round*seeds+i)
				bubble(t, func(t *testing.T) { randomOverlap(t, seed) })
			}
		})
	}
}

// listener is a subscription of a random overlap.
type listener struct {
	*ear
	subscribe func(*Client, context.Context, ...string) (*Subscription, error)
	prefix    string   // of its topics on a line
	names     []string // that it may have
	as        func(name string) (topic, channel string)

	turn   chan struct{} // of capacity one, full during a call: who waits for a mutex stops the clock
	has    map[string]bool
	slow   time.Duration // it pauses after each message; what it has does not change
	closed bool
}

// worlds are the kinds of listeners: what they may subscribe to, how it is heard and what is published for it.
var worlds = []listener{
	{subscribe: (*Client).Subscribe, prefix: "", names: []string{"a", "b", "p1", "p2"}, as: func(n string) (string, string) { return n, n }},
	{subscribe: (*Client).PSubscribe, prefix: "p:", names: []string{"p1*", "p2*"}, as: func(n string) (string, string) { return n + ">" + n[:2], n[:2] }},
	{subscribe: (*Client).SSubscribe, prefix: "s:", names: []string{"s"}, as: func(n string) (string, string) { return n, "s:" + n }},
}

func randomOverlap(t *testing.T, seed uint64) {
	t.Cleanup(func() {
		if time.Sleep(time.Second); t.Failed() { // when every pause is over
			t.Logf("seed %d", seed)
		}
	})
	random := rand.New(rand.NewPCG(seed, 13))
	deadly := seed%2 == 0
	var dice sync.Mutex // guards random, which the radio throws too
	n := func(limit int) int {
		dice.Lock()
		defer dice.Unlock()
		return random.IntN(limit)
	}
	upTo := func(d time.Duration) time.Duration { return time.Duration(n(int(d) + 1)) }
	r, c := newRadio(t, func(o *Options) {
		o.Maintenance.HoldCap = []time.Duration{-1, 0, time.Second}[n(3)]
		o.Conns = 1 + n(2)
		if n(3) == 0 {
			o.MaxMessages = 1 + n(20)
		}
		if n(4) == 0 {
			o.Timeout, o.DialTimeout = time.Second, time.Second
		}
	})
	farthest := []time.Duration{0, time.Millisecond, 30 * time.Millisecond}[n(3)]
	r.set(func() {
		r.wire = func(string) (time.Duration, time.Duration) { return upTo(farthest), upTo(farthest) }
	})
	var (
		wg       sync.WaitGroup
		over     atomic.Bool
		ended    atomic.Bool // the server has ended a subscription
		all      []*listener
		channels = []string{"a", "b", "p1", "p2", "s:s"}
		addrs    = []string{addrA, addrB, addrC}
		seq      = 0
	)
	var calm atomic.Bool
	for _, channel := range channels {
		pace := time.Millisecond + upTo(40*time.Millisecond)
		wg.Go(func() {
			for !over.Load() {
				for range 1 + n(3) {
					r.publish(channel)
				}
				if time.Sleep(upTo(2 * pace)); calm.Load() {
					time.Sleep(time.Second)
				}
			}
		})
	}
	aired := func(channel string) int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.aired[channel]
	}
	some := func(l *listener, has bool) (names []string) {
		for _, name := range l.names {
			if l.has[name] == has && n(2) == 0 {
				names = append(names, name)
			}
		}
		return names
	}
	// added writes down what a call has added, or that it has not.
	added := func(l *listener, names []string, err error) {
		if err != nil && !deadly && !errors.Is(err, ErrClosed) {
			t.Errorf("Subscribe or Add of %q: %v", names, err)
		}
		for _, name := range names {
			topic, channel := l.as(name)
			if l.has[name] = err == nil; err == nil {
				l.notes(fmt.Sprintf("added %s %d", topic, aired(channel)))
			} else {
				l.notes("removed " + topic)
			}
		}
	}
	begin := func() {
		w := &worlds[n(len(worlds))]
		l := &listener{prefix: w.prefix, subscribe: w.subscribe, names: w.names, as: w.as, has: map[string]bool{}, turn: make(chan struct{}, 1)}
		names := some(l, false)
		if len(names) == 0 {
			names = l.names[:1]
		}
		s, err := l.subscribe(c, background, names...)
		if err != nil {
			if !deadly {
				t.Errorf("Subscribe of %q: %v", names, err)
			}
			return
		}
		published := map[string]int{}
		for _, name := range names {
			_, channel := l.as(name)
			published[name] = aired(channel)
		}
		l.ear = &ear{sub: s}
		for _, name := range names {
			topic, _ := l.as(name)
			l.notes("adding " + topic)
			l.has[name] = true
		}
		if n(3) == 0 {
			l.slow = upTo(30 * time.Millisecond)
		}
		l.hear(l.slow)
		for _, name := range names {
			topic, _ := l.as(name)
			l.notes(fmt.Sprintf("added %s %d", topic, published[name]))
		}
		dice.Lock()
		defer dice.Unlock()
		all = append(all, l)
	}
	anybody := func() *listener {
		dice.Lock()
		defer dice.Unlock()
		if len(all) == 0 {
			return nil
		}
		return all[random.IntN(len(all))]
	}
	change := func(l *listener, what int) {
		l.turn <- struct{}{}
		defer func() { <-l.turn }()
		switch {
		case l.closed || l.slow > 0 && what != 2:
		case what == 0:
			names := some(l, false)
			for _, name := range names {
				topic, _ := l.as(name)
				l.notes("adding " + topic)
			}
			added(l, names, l.sub.Add(background, names...))
		case what == 1:
			names := some(l, true)
			for _, name := range names {
				topic, _ := l.as(name)
				l.notes("removed " + topic)
				l.has[name] = false
			}
			if err := l.sub.Remove(background, names...); err != nil && !deadly {
				t.Errorf("Remove of %q: %v", names, err)
			}
		case what == 2:
			l.closed = true
			l.sub.Close()
		}
	}
	begin()
	for range 10 + n(20) {
		time.Sleep(upTo([]time.Duration{0, 5 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second}[n(4)]))
		told := r.tuned()
		switch what := n(19); {
		case what < 5 && len(told) > 0:
			l := told[n(len(told))]
			to := addrs[n(len(addrs))]
			seq++
			window := 1 + n(4)
			if l.say(movingFrame(seq, window, to)); deadly {
				time.AfterFunc(time.Duration(window)*time.Second, l.kill)
			}
		case what < 7:
			wg.Go(begin)
		case what < 12:
			if l := anybody(); l != nil {
				wg.Go(func() { change(l, []int{0, 0, 0, 1, 1, 1, 2}[n(7)]) })
			}
		case what == 12:
			wg.Go(func() { c.Renew(background) })
		case what >= 16 && len(told) > 0: // as when a slot moves
			ended.Store(true)
			told[n(len(told))].endOne(n)
		case !deadly || len(told) == 0:
		case what == 13:
			told[n(len(told))].kill()
		case what == 14:
			addr := append(addrs, "")[n(len(addrs)+1)]
			r.set(func() { r.sick[addr] = true })
			time.AfterFunc(upTo(3*time.Second), func() { r.set(func() { delete(r.sick, addr) }) })
		case what == 15:
			l := told[n(len(told))]
			l.freeze()
			time.AfterFunc(upTo(20*time.Second), l.kill)
		}
	}
	calm.Store(true)
	time.Sleep(90 * time.Second)
	over.Store(true)
	wg.Wait()
	r.publish(channels...)
	time.Sleep(3 * time.Minute) // until the slowest has heard all that is queued
	want := map[string]bool{}
	for i, l := range all {
		if l.closed {
			continue
		}
		heard, err := l.ear.all()
		if err != nil {
			t.Errorf("listener %d ended with %v", i, err)
		}
		for _, name := range l.names {
			topic, channel := l.as(name)
			missed, repeated := l.judge(topic, -1, aired(channel))
			if len(missed) > 0 || len(repeated) > 0 {
				t.Errorf("listener %d of %s: missed %d, %v…, repeated %d, %v…", i, topic, len(missed), missed[:min(5, len(missed))], len(repeated), repeated[:min(5, len(repeated))])
			}
			if l.has[name] {
				want[l.prefix+name] = true
			}
		}
		unknown := slices.Contains(heard, "gap -1")
		if unknown && !deadly && !ended.Load() || l.gaps() > 0 && !unknown && l.slow == 0 && c.opts.MaxMessages == 4096 {
			t.Errorf("listener %d has %d gaps (of unknown length %v)", i, l.gaps(), unknown)
		}
	}
	if len(want) > 0 {
		l := r.hub()
		for topic := range want {
			r.set(func() {
				if !l.topics[topic] {
					t.Errorf("not subscribed to %s", topic)
				}
			})
		}
		if got := r.on(l); len(strings.Fields(got)) != len(want) {
			t.Errorf("subscribed to %q, want %v", got, want)
		}
	}
	if st := c.Stats(); st.InFlight != 0 || st.Backlog != 0 {
		t.Errorf("%+v", st)
	}
	open := 0
	for _, l := range r.lines {
		r.set(func() {
			if !l.gone {
				open++
			}
		})
	}
	if open > c.opts.Conns+1 {
		t.Errorf("%d connections are open", open)
	}
}

// --- a lot of it ---

// TestTenThousandMessagesASecond go out on a hundred channels, numbered, while their subscriber is handed to and fro.
func TestTenThousandMessagesASecond(t *testing.T) {
	const (
		channels = 100
		handoffs = 100
	)
	bubble(t, func(t *testing.T) {
		s := newStage(t, nil)
		publisher := dialMemory(t, sibling(t, s.a), func(o *Options) { o.Maintenance.Mode = Disabled })
		unchecked(s.c)
		var names []string
		for i := range channels {
			names = append(names, "channel:"+strconv.Itoa(i))
		}
		subscription, err := s.c.Subscribe(background, names...)
		if err != nil {
			t.Fatal(err)
		}
		var missed, repeated, gaps atomic.Int64
		var next [channels]atomic.Int64
		go func() {
			for m, err := range subscription.All(background) {
				if errors.Is(err, ErrGap) {
					gaps.Add(1)
				}
				if err != nil {
					continue
				}
				i, _ := strconv.Atoi(strings.TrimPrefix(m.Channel, "channel:"))
				n, _ := strconv.ParseInt(string(m.Payload), 10, 64)
				switch due := next[i].Load() + 1; {
				case n < due:
					repeated.Add(1)
				default:
					missed.Add(n - due)
					next[i].Store(n)
				}
			}
		}()
		var sent [channels]int64
		at := 0
		// publish sends for a while, ten messages each millisecond.
		publish := func(d time.Duration) {
			var b Batch
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
				b.Reset()
				for range 10 {
					sent[at]++
					b.Add("PUBLISH", names[at], sent[at])
					at = (at + 1) % channels
				}
				if _, err := publisher.DoBatch(background, &b); err != nil {
					t.Error(err)
				}
			}
		}
		heap := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		var used uint64
		var running int
		for i := range handoffs {
			if i == handoffs/5 {
				used, running = heap(), goroutines()
			}
			if i%10 == 0 { // one in ten is announced; the others are renewals, which may follow each other closely and lead back
				s.move(1)
				publish(1010 * time.Millisecond)
				continue
			}
			renewed := later(func() error { return s.c.Renew(background) })
			publish(20 * time.Millisecond)
			if err := renewed(); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if n := goroutines(); n > running+4 {
			t.Errorf("%d goroutines, %d after a fifth of it", n, running)
		}
		if n := heap(); n > used+2<<20 {
			t.Errorf("a heap of %d KiB, %d after a fifth of it", n>>10, used>>10)
		}
		for i := range channels {
			missed.Add(sent[i] - next[i].Load())
		}
		if missed.Load()+repeated.Load()+gaps.Load() > 0 {
			t.Errorf("missed %d, repeated %d, %d gaps", missed.Load(), repeated.Load(), gaps.Load())
		}
		if st := s.c.Stats(); st.Handoffs != 2*handoffs || st.Reconnects != 0 { // of two connections
			t.Errorf("%d handoffs, %d reconnects", st.Handoffs, st.Reconnects)
		}
	})
}
