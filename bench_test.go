package baton

// Benchmarks of every hot path, and the allocations that they may cost as tests. They need nothing but this process: the server
// is an in-process one behind loopback sockets, whose work and allocations count, too. With BATON_BENCH_ADDR=host:port it is a
// server of your own (keys that begin with "baton:bench:" are written and deleted). Names hold their dimensions, for
//
//	go test -run '^$' -bench Do -count 10 . | tee out && benchstat -col /client out
//
// where client=naive is what one would write in an afternoon.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/baton/batontest"
)

var (
	parallels = []int{1, 8, 64, 512}
	payloads  = []int{64, 64 << 10}
)

const benchKey = "baton:bench:"

// benchServer is a server with an address for as long as the benchmark runs.
func benchServer(b *testing.B) (addr string) {
	b.Helper()
	if addr = os.Getenv("BATON_BENCH_ADDR"); addr == "" {
		s := batontest.NewServer()
		b.Cleanup(s.Close)
		addr = s.Addr()
	}
	return addr
}

// benchClient is a client of a server in which the keys benchKey, benchKey+"0" to benchKey+"999" have values of payload bytes.
func benchClient(b *testing.B, addr string, payload int) *Client {
	b.Helper()
	c, err := Dial(background, Options{Addr: addr})
	if err != nil {
		b.Fatal(err)
	}
	var batch Batch
	batch.Add("SET", benchKey, strings.Repeat("x", payload))
	names := []any{"DEL", benchKey}
	for i := range 1000 {
		key := benchKey + strconv.Itoa(i)
		batch.Add("SET", key, strings.Repeat("x", min(payload, 64)))
		names = append(names, key)
	}
	if _, err := c.DoBatch(background, &batch); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		c.Do(background, names...)
		c.Close()
	})
	return c
}

// size writes a number of bytes as the dimension of a name.
func size(n int) string {
	if n >= 1<<10 {
		return strconv.Itoa(n>>10) + "KiB"
	}
	return strconv.Itoa(n)
}

// callers has do called b.N times, by n callers at the same time. The first error fails the benchmark.
func callers(b *testing.B, n int, do func(caller int) error) {
	b.Helper()
	var wg sync.WaitGroup
	failed := make(chan error, n)
	if err := do(0); err != nil { // warms up
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for caller := range n {
		times := b.N / n
		if caller < b.N%n {
			times++
		}
		wg.Go(func() {
			for range times {
				if err := do(caller); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	if len(failed) > 0 {
		b.Fatal(<-failed)
	}
}

// contexts runs a benchmark with a context that cannot end and with one that can.
func contexts(b *testing.B, run func(b *testing.B, ctx context.Context)) {
	b.Run("context=background/client=baton", func(b *testing.B) { run(b, background) })
	b.Run("context=cancellable/client=baton", func(b *testing.B) {
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		run(b, ctx)
	})
}

// naive is a client with one connection, one mutex and one command at a time.
type naive struct {
	mu  sync.Mutex
	nc  net.Conn
	r   *bufio.Reader
	out []byte
}

func newNaive(b *testing.B, addr string) *naive {
	b.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { nc.Close() })
	return &naive{nc: nc, r: bufio.NewReader(nc)}
}

// do sends one command and reads its reply: a status, a string, or an array of strings.
func (n *naive) do(args ...any) (texts []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.out, err = appendCommand(n.out[:0], args); err != nil {
		return nil, err
	}
	if _, err = n.nc.Write(n.out); err != nil {
		return nil, err
	}
	for replies := 1; replies > 0 && err == nil; replies-- {
		var line string
		if line, err = n.r.ReadString('\n'); err != nil {
			break
		}
		count, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
		switch line[0] {
		case '+':
			texts = append(texts, strings.TrimSpace(line[1:]))
		case '*':
			replies += count
		case '$':
			text := make([]byte, count+2)
			_, err = io.ReadFull(n.r, text)
			texts = append(texts, string(text[:count]))
		default:
			err = errors.New(line)
		}
	}
	return texts, err
}

func BenchmarkDo(b *testing.B) {
	addr := benchServer(b)
	for _, op := range []string{"GET", "SET"} {
		for _, payload := range payloads {
			args := []any{op, benchKey}
			if op == "SET" {
				args = append(args, strings.Repeat("y", payload))
			}
			for _, parallel := range parallels {
				b.Run(fmt.Sprintf("op=%s/payload=%s/parallel=%d", op, size(payload), parallel), func(b *testing.B) {
					contexts(b, func(b *testing.B, ctx context.Context) {
						c := benchClient(b, addr, payload)
						callers(b, parallel, func(int) error { return c.Do(ctx, args...).Err() })
					})
					b.Run("context=background/client=naive", func(b *testing.B) {
						benchClient(b, addr, payload)
						n := newNaive(b, addr)
						callers(b, parallel, func(int) error { _, err := n.do(args...); return err })
					})
				})
			}
		}
	}
}

func BenchmarkDoAppend(b *testing.B) {
	addr := benchServer(b)
	for _, payload := range payloads {
		for _, parallel := range parallels {
			b.Run(fmt.Sprintf("op=GET/payload=%s/parallel=%d", size(payload), parallel), func(b *testing.B) {
				contexts(b, func(b *testing.B, ctx context.Context) {
					c, dst := benchClient(b, addr, payload), make([][]byte, parallel)
					callers(b, parallel, func(caller int) (err error) {
						dst[caller], err = c.DoAppend(ctx, dst[caller][:0], "GET", benchKey)
						return err
					})
				})
			})
		}
	}
}

func BenchmarkDoBatch(b *testing.B) {
	addr := benchServer(b)
	for _, parallel := range []int{1, 8} {
		b.Run(fmt.Sprintf("op=GET/commands=100/payload=64/parallel=%d", parallel), func(b *testing.B) {
			contexts(b, func(b *testing.B, ctx context.Context) {
				c, batches := benchClient(b, addr, 64), make([]Batch, parallel)
				for i := range batches {
					for range 100 {
						batches[i].Add("GET", benchKey)
					}
				}
				callers(b, parallel, func(caller int) error { _, err := c.DoBatch(ctx, &batches[caller]); return err })
			})
			b.Run("context=background/client=naive", func(b *testing.B) {
				benchClient(b, addr, 64)
				n := newNaive(b, addr)
				callers(b, parallel, func(int) error {
					for range 100 {
						if _, err := n.do("GET", benchKey); err != nil {
							return err
						}
					}
					return nil
				})
			})
		})
	}
}

// mget is an MGET of the thousand keys of benchClient.
func mget() []any {
	args := []any{"MGET"}
	for i := range 1000 {
		args = append(args, benchKey+strconv.Itoa(i))
	}
	return args
}

func BenchmarkMGET(b *testing.B) {
	addr, args := benchServer(b), mget()
	for _, parallel := range []int{1, 8} {
		b.Run(fmt.Sprintf("keys=1000/payload=64/parallel=%d", parallel), func(b *testing.B) {
			contexts(b, func(b *testing.B, ctx context.Context) {
				c := benchClient(b, addr, 64)
				callers(b, parallel, func(int) error { return c.Do(ctx, args...).Err() })
			})
			b.Run("context=background/client=naive", func(b *testing.B) {
				benchClient(b, addr, 64)
				n := newNaive(b, addr)
				callers(b, parallel, func(int) error { _, err := n.do(args...); return err })
			})
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, bb := range []struct {
		name string
		args []any
	}{
		{"command=GET", []any{"GET", "some:key:of:a:usual:length"}},
		{"command=SET/payload=64", []any{"SET", "some:key", strings.Repeat("x", 64)}},
		{"command=SET/payload=64KiB", []any{"SET", "some:key", make([]byte, 64<<10)}},
		{"command=SETEX/numbers=3", []any{"SETEX", 1234567, int64(-60), 3.14159}},
		{"command=MGET/keys=1000", mget()},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf, _ = appendCommand(buf[:0], bb.args)
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}

// endless is a reader of the same bytes over and over.
type endless struct {
	wire string
	at   int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) && n < 64<<10 { // what a socket brings at most, in one go
		copied := copy(p[n:], e.wire[e.at:])
		n, e.at = n+copied, (e.at+copied)%len(e.wire)
	}
	return n, nil
}

// nextFrame reads until a frame is complete.
func nextFrame(b *testing.B, d *decoder, r io.Reader) frame {
	for {
		switch f, ok, err := d.next(); {
		case ok:
			return f
		case err != nil:
			b.Fatal(err)
		}
		d.readFrom(r)
	}
}

func bulk(n int) string { return fmt.Sprintf("$%d\r\n%s\r\n", n, strings.Repeat("x", n)) }

func BenchmarkDecode(b *testing.B) {
	type wire struct{ name, text string }
	cases := []wire{
		{"type=status", "+OK\r\n"},
		{"type=null", "_\r\n"},
		{"type=integer", ":1234567\r\n"},
		{"type=float", ",3.14159\r\n"},
		{"type=bool", "#t\r\n"},
		{"type=bigint", "(12345678901234567890123\r\n"},
		{"type=verbatim", "=19\r\ntxt:some plain text\r\n"},
		{"type=error", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		{"type=nested", "*3\r\n*2\r\n:1\r\n$1\r\na\r\n%1\r\n+k\r\n*1\r\n_\r\n~2\r\n:1\r\n:2\r\n"},
	}
	for _, n := range []int{16, 64, 1 << 10, 64 << 10, 1 << 20} {
		cases = append(cases, wire{"type=string/size=" + size(n), bulk(n)})
	}
	for _, n := range []int{10, 1000} {
		cases = append(cases,
			wire{fmt.Sprintf("type=array/size=%d", n), fmt.Sprintf("*%d\r\n%s", n, strings.Repeat(bulk(64), n))},
			wire{fmt.Sprintf("type=set/size=%d", n), fmt.Sprintf("~%d\r\n%s", n, strings.Repeat(":1234567\r\n", n))},
			wire{fmt.Sprintf("type=map/size=%d", n), fmt.Sprintf("%%%d\r\n%s", n, strings.Repeat(bulk(16)+bulk(64), n))})
	}
	for _, bb := range cases {
		d := newDecoder(limits{512 << 20, 128, 1 << 24})
		r := &endless{wire: bb.text}
		b.Run(bb.name+"/into=reply", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bb.text)))
			for b.Loop() {
				d.reply(nextFrame(b, d, r))
			}
		})
		if !strings.HasPrefix(bb.name, "type=string") {
			continue
		}
		b.Run(bb.name+"/into=dst", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bb.text)))
			var dst []byte
			for b.Loop() {
				dst, _ = d.appendText(dst[:0], nextFrame(b, d, r))
			}
		})
	}
}

func BenchmarkTickDeadline(b *testing.B) {
	var d TickDeadline
	d.Extend(time.Hour)
	b.Run("op=Pending", func(b *testing.B) {
		for b.Loop() {
			d.Pending()
		}
	})
	b.Run("op=pendingAt", func(b *testing.B) { // the clock was read before
		t := now()
		for b.Loop() {
			d.pendingAt(t)
		}
	})
	b.Run("op=Remaining", func(b *testing.B) {
		for b.Loop() {
			d.Remaining()
		}
	})
	b.Run("op=Extend/contended=no", func(b *testing.B) {
		for b.Loop() {
			d.Extend(2 * time.Hour)
		}
	})
	b.Run("op=Extend/contended=yes", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				d.Extend(2 * time.Hour)
			}
		})
	})
}

// lined is a queue of n messages that begin to wait one tick after the other, and those messages.
func lined(n int) (*queue, []*message) {
	q, all, pool := &queue{}, make([]*message, n), &sync.Pool{}
	for i := range all {
		all[i] = newMessage(pool, 1)
		all[i].start = tick(1000 + i)
		q.pushLocked(all[i], queued)
	}
	return q, all
}

func BenchmarkBacklog(b *testing.B) {
	for _, depth := range []int{1, 1000, 65536} {
		b.Run(fmt.Sprintf("op=push-pop/depth=%d", depth), func(b *testing.B) {
			b.ReportAllocs()
			q, _ := lined(depth)
			for b.Loop() {
				m := q.head
				q.removeLocked(m, withCaller)
				q.pushLocked(m, queued)
			}
		})
		b.Run(fmt.Sprintf("op=give-up/depth=%d", depth), func(b *testing.B) {
			b.ReportAllocs()
			q, all := lined(depth)
			for b.Loop() { // from the middle
				m := all[depth/2]
				after := m.prev
				q.removeLocked(m, withCaller)
				q.insertLocked(m, after, queued)
			}
		})
		b.Run(fmt.Sprintf("op=return/depth=%d", depth), func(b *testing.B) {
			b.ReportAllocs()
			q, _ := lined(depth)
			for b.Loop() { // a connection gives back all that it has not written
				q.returnLocked(q.cutLocked(q.head, queued))
			}
		})
	}
}

func BenchmarkSweep(b *testing.B) {
	for _, depth := range []int{1, 1000, 65536} {
		q, _ := lined(depth)
		b.Run(fmt.Sprintf("due=none/depth=%d", depth), func(b *testing.B) {
			for b.Loop() {
				q.sweepLocked(0, 999)
			}
		})
		b.Run(fmt.Sprintf("due=all/depth=%d", depth), func(b *testing.B) { // their callers are told once, and have not left yet
			for b.Loop() {
				q.sweepLocked(0, never)
			}
		})
	}
}

// announcer is a server or a relay, as far as a handoff from it is concerned.
type announcer interface {
	Addr() string
	OptedIn() int
	Push(frame ...any)
	NextSeq() int64
	Move(successor string, window time.Duration)
}

// Handoffs one after the other, in memory, among eight callers: dial, handshake, hold and promote.
func BenchmarkHoldAndPromote(b *testing.B) {
	server := batontest.NewServer(batontest.InMemory())
	defer server.Close()
	sibling := server.Sibling()
	defer sibling.Close()
	from, to := announcer(server), announcer(sibling)
	promoted := make(chan Event, 1)
	c, err := Dial(background, Options{Addr: from.Addr(), Dialer: server.Dial, OnEvent: func(e Event) {
		if e.Kind == EventPromoted {
			promoted <- e
		}
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	stop, _ := stalls(c, 8)
	var held time.Duration
	for b.Loop() {
		from.Push("MOVING", from.NextSeq(), 0, to.Addr()) // a window of no time is not waited in
		<-promoted
		held += c.Stats().LastHandoff.HeldMax
		from, to = to, from
	}
	if _, failed := stop(); len(failed) > 0 {
		b.Fatalf("%d commands failed: %v", len(failed), failed[0])
	}
	b.ReportMetric(float64(held.Microseconds())/float64(b.N), "hold-µs/op")
}

// stalls keeps callers busy until stop is called, which says how many commands there were, and which failed. longest returns the
// longest time that a command took since it was called last.
func stalls(c *Client, callers int) (stop func() (commands int64, failed []error), longest func() time.Duration) {
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		failed   []error
		over     atomic.Bool
		commands atomic.Int64
		worst    = make([]atomic.Int64, callers)
	)
	for caller := range callers {
		wg.Go(func() {
			for key := "baton:bench:" + strconv.Itoa(caller); !over.Load(); {
				start := time.Now()
				if err := c.Do(background, "INCR", key).Err(); err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
				}
				commands.Add(1)
				if took := int64(time.Since(start)); took > worst[caller].Load() {
					worst[caller].Store(took)
				}
			}
		})
	}
	stop = func() (int64, []error) {
		over.Store(true)
		wg.Wait()
		for caller := range callers {
			c.Do(background, "DEL", "baton:bench:"+strconv.Itoa(caller))
		}
		return commands.Load(), failed
	}
	return stop, func() (longest time.Duration) {
		for caller := range worst {
			longest = max(longest, time.Duration(worst[caller].Swap(0)))
		}
		return longest
	}
}

// One handoff of a window of a second per operation, over sockets, under load. It fails if a command does. max-stall-ms is the
// longest that a command took from the announcement to the end of the window, max-before-ms the same before any handoff.
func BenchmarkHandoff(b *testing.B) {
	for _, parallel := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("window=1s/parallel=%d/client=baton", parallel), func(b *testing.B) { benchmarkHandoff(b, parallel) })
	}
}

func benchmarkHandoff(b *testing.B, parallel int) {
	from, to := announcers(b)
	c, err := Dial(background, Options{Addr: from.Addr()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	stop, longest := stalls(c, parallel)
	time.Sleep(200 * time.Millisecond)
	longest()
	time.Sleep(time.Second)
	before := longest()
	b.ResetTimer()
	for range b.N {
		window, err := net.Dial("tcp", from.Addr()) // it ends with the window, when the server closes what is left
		if err != nil {
			b.Fatal(err)
		}
		from.Move(to.Addr(), time.Second)
		io.Copy(io.Discard, window)
		window.Close()
		from, to = to, from
	}
	b.StopTimer()
	stall, handoffs := longest(), c.Stats().Handoffs
	commands, failed := stop()
	if len(failed) > 0 || handoffs != uint64(b.N) {
		b.Fatalf("%d of %d commands failed %v; %d handoffs, want %d", len(failed), commands, failed[:min(1, len(failed))], handoffs, b.N)
	}
	b.ReportMetric(float64(stall.Microseconds())/1000, "max-stall-ms")
	b.ReportMetric(float64(before.Microseconds())/1000, "max-before-ms")
}

// announcers are two addresses of one database, on sockets.
func announcers(b *testing.B) (from, to announcer) {
	if addr := os.Getenv("BATON_BENCH_ADDR"); addr != "" {
		r := batontest.NewRelay(addr)
		b.Cleanup(r.Close)
		s := r.Sibling()
		b.Cleanup(s.Close)
		return r, s
	}
	r := batontest.NewServer()
	b.Cleanup(r.Close)
	s := r.Sibling()
	b.Cleanup(s.Close)
	return r, s
}

// canned has the peer answer each request of so many bytes with the same bytes, without allocating.
func (p *peer) canned(request int, answer []byte) {
	buf, owed := make([]byte, 64<<10), 0
	for {
		n, err := p.r.Read(buf)
		if err != nil {
			return
		}
		for owed += n; owed >= request; owed -= request {
			if _, err := p.Write(answer); err != nil {
				return
			}
		}
	}
}

// What a command may allocate, in the client alone: its server does not.
func TestCommandAllocations(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector has pools drop what they hold")
	}
	var batch Batch
	for range 100 {
		batch.Add("GET", "key")
	}
	value, many, dst := strings.Repeat("x", 64), mget(), make([]byte, 0, 128)
	for _, tt := range []struct {
		name    string
		most    float64
		request []byte
		answer  string
		do      func(context.Context, *Client) error
	}{
		{"GET", 1, command("GET", "key"), bulk(64), func(ctx context.Context, c *Client) error { return c.Do(ctx, "GET", "key").Err() }},
		{"SET", 0, command("SET", "key", value), "+OK\r\n", func(ctx context.Context, c *Client) error { return c.Do(ctx, "SET", "key", value).Err() }},
		{"INCRBY", 0, command("INCRBY", "key", "7000"), ":7000\r\n", func(ctx context.Context, c *Client) error { return c.Do(ctx, "INCRBY", "key", 7000).Err() }},
		{"DoAppend", 0, command("GET", "key"), bulk(64), func(ctx context.Context, c *Client) error {
			_, err := c.DoAppend(ctx, dst, "GET", "key")
			return err
		}},
		{"batch of 100", 4, batch.buf, strings.Repeat(bulk(64), 100), func(ctx context.Context, c *Client) error {
			_, err := c.DoBatch(ctx, &batch)
			return err
		}},
		{"MGET of 1,000", 4, command(many...), "*1000\r\n" + strings.Repeat(bulk(64), 1000), func(ctx context.Context, c *Client) error { return c.Do(ctx, many...).Err() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, p := newScript(t).connect(Options{Timeout: time.Hour})
			unchecked(c)
			go p.canned(len(tt.request), []byte(tt.answer))
			cancellable, cancel := context.WithCancel(background)
			defer cancel()
			for name, ctx := range map[string]context.Context{"background": background, "cancellable": cancellable} {
				run := func() {
					if err := tt.do(ctx, c); err != nil {
						t.Fatal(err)
					}
				}
				for range 100 {
					run()
				}
				if got := testing.AllocsPerRun(500, run); got > tt.most {
					t.Errorf("with a context that is %s: %v allocations, want %v at most", name, got, tt.most)
				}
			}
		})
	}
}

// command is a command as it goes over the wire.
func command(args ...any) []byte {
	wire, err := appendCommand(nil, args)
	if err != nil {
		panic(err)
	}
	return wire
}
