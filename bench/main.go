// Bench compares baton with other Redis clients for Go, and with what the machine allows, under steady load and while a server is
// handed over. One command runs everything on one machine and writes tables, CSV and plots:
//
//	go run .            # more than an hour
//	go run . -short     # two minutes, for a look
//
// README.md says how it measures and what came out.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
)

// A config is what the command line asks for. It does not change once the runs begin.
type config struct {
	short   bool
	out     string         // the directory for tables, CSV and plots
	server  string         // auto, redis or inprocess
	rounds  int            // how often each contender has its turn in each cell
	pace    pace           // of the turns
	only    string         // one part, or empty for all
	cells   *regexp.Regexp // the cells to run, by name
	clients *regexp.Regexp // the contenders of the steady part, by name
}

// A part is one comparison of the whole.
type part struct {
	name  string
	run   func(config) error
	brief bool // -short runs it, too
}

var parts = []part{
	{"steady", runSteady, true},
	{"handoff", runHandoffs, true},
	{"codec", runCodec, true},
	{"scale", runScale, false},
}

func main() {
	cfg, err := parseFlags(os.Args[1:])
	if err == nil {
		err = run(cfg)
	}
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string) (cfg config, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&cfg.short, "short", false, "two minutes in total instead of what the figures deserve")
	flags.StringVar(&cfg.out, "out", "latest", "the `directory` for tables, CSV and plots")
	flags.StringVar(&cfg.server, "server", "auto", "redis: a redis-server from PATH; inprocess: batontest; auto: redis if there is one")
	flags.IntVar(&cfg.rounds, "rounds", 0, "how often each contender has its turn in each cell (default 5, with -short 3)")
	flags.StringVar(&cfg.only, "only", "", "run one part: steady, handoff, codec or scale")
	cells := flags.String("cells", "", "run the cells whose names match this regular `expression`")
	clients := flags.String("clients", "", "in the steady part: the contenders whose names match this regular `expression`")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.pace = paceOf(cfg.short, cfg.rounds)
	cfg.rounds = cfg.pace.rounds
	if cfg.only != "" && !slices.ContainsFunc(parts, func(p part) bool { return p.name == cfg.only }) {
		return cfg, fmt.Errorf("-only %s: there is no such part", cfg.only)
	}
	if cfg.cells, err = regexp.Compile(*cells); err != nil {
		return cfg, err
	}
	cfg.clients, err = regexp.Compile(*clients)
	return cfg, err
}

func run(cfg config) error {
	if err := os.MkdirAll(cfg.out, 0o755); err != nil {
		return err
	}
	for _, p := range parts {
		if cfg.only != p.name && (cfg.only != "" || cfg.short && !p.brief) {
			continue
		}
		if err := p.run(cfg); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}
