// Command handoff shows what baton is for: under load, a Redis connection hands itself to another server, and no
// command fails, is lost, or is executed twice.
//
//	go run ./cmd/handoff            two servers in this process, flat out, and a timeline at the end
//	go run ./cmd/handoff -soak 10m  handoffs and faults at random, and whether memory, goroutines and descriptors stay flat
//	go run ./cmd/handoff -help      the flags
package main

// This file holds the flags, the two servers, and the order of events. load.go is what happens meanwhile, mix.go what -mix
// adds to that, report.go what is told about it. With -soak everything is soak.go's.

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"example.com/baton"
	"example.com/baton/batontest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status. When ctx ends, it ends early, with the verdict so far.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "handoff: %v (-help lists the flags)\n", err)
		return 2
	}
	if cfg.soak > 0 {
		return runSoak(ctx, cfg, stdout, stderr)
	}
	v, err := demonstrate(ctx, cfg, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "handoff: %v\n", err)
		return 1
	}
	if cfg.json {
		v.writeJSON(stdout)
	} else {
		v.write(stdout)
	}
	if !v.good() {
		return 1
	}
	return 0
}

// demonstrate is one run, from the first server's start to the comparison of what was reported with what was stored.
func demonstrate(ctx context.Context, cfg config, stdout, stderr io.Writer) (*verdict, error) {
	s, err := setUp(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	client, err := baton.Dial(ctx, s.client)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	defer client.Close()
	var m *mix
	if cfg.mix {
		if m, err = newMix(ctx, client, cfg, s); err != nil {
			return nil, err
		}
	}
	if !cfg.json {
		fmt.Fprintln(stdout, cfg.intention(s))
	}
	l := newLoad(client, cfg, s.keys)
	live := showLive(stderr, l)
	var mixed error
	if cfg.mix {
		m.begin(l)
	}
	l.drive(ctx, cfg, s)
	if cfg.mix {
		mixed = m.finish()
	}
	live.stop()
	stats := client.Stats()
	client.Close()
	stored, err := s.counters(l.workers)
	if err = errors.Join(err, mixed); err != nil {
		return nil, fmt.Errorf("reading back what was stored: %w", err)
	}
	return judge(cfg, l, m, stats, stored), nil
}

type config struct {
	rate, workers, conns int
	window, duration     time.Duration
	tls, json, mix       bool
	addr, to             string
	soak                 time.Duration // 0: a demonstration
	seed                 uint64
	csv                  string
}

const usage = `handoff shows a Redis connection handing itself to another server under load.

Without -addr two servers are started in this process, over the same data. With -addr and -to real ones are used,
through relays that announce the move for them, since open-source Redis announces nothing. The two must be addresses
over the same data: the same redis-server twice, which is what -addr alone means, or two proxies before one database.
Counters are written under keys of their own, and deleted at the end, and so are the lists of -mix.

With -mix the client also pops from lists, blocking, subscribes to channels, and moves amounts between two counters in
transactions, each at a modest pace; the elements and the messages are sent past it, numbered. Two of the pops are
outstanding at the announcement and answered 3 and 12 seconds later, or sooner if the window is shorter.

With -soak handoffs and faults follow each other at random under full load, on three addresses over the same data: moves
that are named, unnamed, repeated, overlapping, to a successor that is dead, refuses or stalls; cuts, refusals, freezes, slow
servers, and Renew. Beside the workers there are contexts that end, batches, sessions, blocking commands, subscriptions that
come and go, an impatient client that fails fast, and clients that are dialled and closed. What a cut finds in flight may fail,
and nothing may because of a handoff. Every few seconds the load rests, and the live heap after garbage collection, the goroutines
and the descriptors of this process are read: a line on standard error for each. At the end none may rise: the range of
its slope (Theil and Sen's, 99.9 %, without the first fifth) must reach down to zero. What falls is named, and does no harm. A
soak of less than about a minute may be too short for slopes: it looks for violations alone, says so, and can still go well.
-seed repeats the script, though not the order of goroutines.

Exit status: 0 if all went well, 1 if a command failed, was lost or was executed twice, or a message was missed, repeated
or out of order, or in a soak something rises, 2 for wrong flags.

`

// margin is the least time before the announcement and after the window: enough to warm up and have something to
// compare with, and to see that nothing follows the closing of the old server's sockets.
const margin = 500 * time.Millisecond

// maxWorkers is as far as the histograms, 16 KiB for each worker, stay out of the way.
const maxWorkers = 4096

func parse(args []string, stderr io.Writer) (cfg config, err error) {
	f := flag.NewFlagSet("handoff", flag.ContinueOnError)
	f.IntVar(&cfg.rate, "rate", 0, "commands a second, over all workers; 0: flat out")
	f.IntVar(&cfg.workers, "workers", 64, "goroutines that send one command after the other")
	f.IntVar(&cfg.conns, "conns", 1, "connections of the client")
	f.DurationVar(&cfg.window, "window", 5*time.Second, "from the announcement until the old server closes its sockets")
	f.DurationVar(&cfg.duration, "duration", 8*time.Second, "of the load, at least the window and a second")
	f.BoolVar(&cfg.mix, "mix", false, "add pops that block, a subscription and transactions to the load")
	f.BoolVar(&cfg.tls, "tls", false, "speak TLS")
	f.BoolVar(&cfg.json, "json", false, "write one JSON object to standard output, and nothing else")
	f.StringVar(&cfg.addr, "addr", "", "real server to begin with, `host:port` or the path of a unix socket")
	f.StringVar(&cfg.to, "to", "", "real server to move to, `host:port` or the path of a unix socket (default -addr)")
	f.DurationVar(&cfg.soak, "soak", 0, "play handoffs and faults at random for so long, in place of one handoff")
	f.Uint64Var(&cfg.seed, "seed", 0, "of the -soak; 0: any, and it is told")
	f.StringVar(&cfg.csv, "csv", "", "write the readings of the -soak to this `file`")
	f.SetOutput(io.Discard) // run says what is wrong
	if err = f.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stderr, usage)
		f.SetOutput(stderr)
		f.PrintDefaults()
	}
	if err != nil {
		return cfg, err
	}
	if f.NArg() > 0 {
		return cfg, fmt.Errorf("%q is not a flag", f.Arg(0))
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if err = cfg.checkSoak(given); err != nil {
		return cfg, err
	}
	return cfg, cfg.check()
}

// checkSoak looks for flags that do not go together, and chooses the seed.
func (cfg *config) checkSoak(given map[string]bool) error {
	if !given["soak"] {
		for _, name := range []string{"seed", "csv"} {
			if given[name] {
				return fmt.Errorf("-%s is for a -soak", name)
			}
		}
		return nil
	}
	for name, instead := range map[string]string{"window": "windows are of all lengths in it", "duration": "-soak is the duration"} {
		if given[name] {
			return fmt.Errorf("-%s does not go with -soak: %s", name, instead)
		}
	}
	switch {
	case cfg.soak < time.Second:
		return errors.New("-soak must be at least 1s, and minutes to say something about slopes")
	case cfg.workers > maxSoakWorkers:
		return fmt.Errorf("-workers must be at most %d with -soak: a slow server has to answer them all within a window", maxSoakWorkers)
	}
	for cfg.seed == 0 {
		cfg.seed = rand.Uint64N(1e9) // short, to be typed again
	}
	return nil
}

func (cfg *config) check() error {
	switch {
	case cfg.rate < 0:
		return errors.New("-rate must not be negative")
	case cfg.workers < 1 || cfg.workers > maxWorkers:
		return fmt.Errorf("-workers must be from 1 to %d", maxWorkers)
	case cfg.conns < 1:
		return errors.New("-conns must be at least 1")
	case cfg.window < time.Second:
		return errors.New("-window must be at least 1s: it is announced in whole seconds")
	case cfg.duration < cfg.window+2*margin:
		return fmt.Errorf("-duration must be at least %v: -window and a second", cfg.window+2*margin)
	case cfg.addr == "" && cfg.to != "":
		return errors.New("-to needs -addr")
	}
	if cfg.addr == "" {
		return nil
	}
	if err := checkAddr(cfg.addr); err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	cfg.to = cmp.Or(cfg.to, cfg.addr)
	if err := checkAddr(cfg.to); err != nil {
		return fmt.Errorf("-to: %w", err)
	}
	return nil
}

func checkAddr(addr string) error {
	if strings.Contains(addr, "/") {
		return nil
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return fmt.Errorf("%q is neither host:port nor a path", addr)
	}
	return nil
}

// announceAt is when the move is announced: after a quarter of the run, or earlier if the window would not fit.
func (cfg *config) announceAt() time.Duration {
	return min(cfg.duration/4, cfg.duration-cfg.window-margin)
}

// endpoint is a server of this process, or a relay before a real one.
type endpoint interface {
	Addr() string
	Move(successor string, window time.Duration)
	Conns() int
	Close()
}

// stage is two addresses over the same data.
type stage struct {
	from, to endpoint
	client   baton.Options // of the client that is shown
	direct   baton.Options // to the data, past relays and without notifications
	keys     string        // what the counters' names begin with
}

func setUp(ctx context.Context, cfg config) (*stage, error) {
	var opts []batontest.Option
	var clientTLS *tls.Config
	if cfg.tls {
		cert, pool := batontest.SelfSigned("127.0.0.1")
		opts = append(opts, batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{cert}}))
		clientTLS = &tls.Config{RootCAs: pool}
	}
	s := &stage{keys: "baton:handoff:" + strconv.FormatInt(time.Now().UnixNano(), 36) + ":"}
	if cfg.addr == "" {
		a := batontest.NewServer(opts...)
		s.from, s.to = a, a.Sibling()
		s.direct = baton.Options{Addr: s.to.Addr(), TLS: clientTLS}
	} else {
		if err := checkShared(ctx, cfg, s.keys+"shared"); err != nil {
			return nil, err
		}
		a := batontest.NewRelay(cfg.addr, opts...)
		s.from, s.to = a, a.SiblingTo(cfg.to)
		s.direct = directly(cfg.to)
	}
	s.direct.Maintenance.Mode = baton.Disabled
	s.client = baton.Options{Addr: s.from.Addr(), TLS: clientTLS, Conns: cfg.conns}
	s.client.Maintenance.Mode = baton.Enabled // without notifications there is nothing to show
	return s, nil
}

func (s *stage) close() {
	s.from.Close()
	s.to.Close()
}

func directly(addr string) baton.Options {
	o := baton.Options{Addr: addr}
	if strings.Contains(addr, "/") {
		o.Network = "unix"
	}
	o.Maintenance.Mode = baton.Disabled
	return o
}

// checkShared finds out whether what is written at one address is read at the other. If not, everything would be lost
// in the handoff, and no client could help it.
func checkShared(ctx context.Context, cfg config, key string) error {
	a, err := baton.Dial(ctx, directly(cfg.addr))
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	defer a.Close()
	b, err := baton.Dial(ctx, directly(cfg.to))
	if err != nil {
		return fmt.Errorf("-to: %w", err)
	}
	defer b.Close()
	if err := a.Do(ctx, "SET", key, "1", "PX", 60000).Err(); err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	defer a.Do(ctx, "DEL", key)
	reply := b.Do(ctx, "GET", key)
	if err := reply.Err(); err != nil {
		return fmt.Errorf("-to: %w", err)
	}
	if reply.IsNull() {
		return fmt.Errorf("%s and %s do not hold the same data", cfg.addr, cfg.to)
	}
	return nil
}

// counters reads what the workers have counted up, in their order, and deletes it.
func (s *stage) counters(workers []*worker) ([]int64, error) {
	ctx := context.Background() // also after Ctrl-C; the client's timeouts bound it
	c, err := baton.Dial(ctx, s.direct)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var b baton.Batch
	for _, w := range workers {
		b.Add("GET", w.key)
		b.Add("DEL", w.key)
	}
	replies, err := c.DoBatch(ctx, &b)
	if err != nil {
		return nil, err
	}
	stored := make([]int64, len(workers))
	for i := range stored {
		text, err := replies[2*i].Text()
		if errors.Is(err, baton.ErrNull) {
			continue // it was never incremented
		}
		if err == nil {
			stored[i], err = strconv.ParseInt(text, 10, 64)
		}
		if err != nil {
			return nil, err
		}
	}
	return stored, nil
}
