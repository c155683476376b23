package main

// The libraries as their users encode commands and read replies with them. Every string that was read is a Go string in the end, and a map is
// a map; beyond that each library gives what it likes to give. What its users can use again is used again.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"example.com/baton"
	redigo "github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// A codecContender is a library in one configuration.
type codecContender struct {
	name, lib string
	open      func(dial dialer) (codecClient, error)
}

var codecContenders = []codecContender{
	{batonName, "baton", openCodecBaton(true)},
	{"baton, no socket", "baton", openCodecBaton(false)},
	{rueidisName, "rueidis", openCodecRueidis(rueidis.ClientOption{})},
	{"rueidis, one connection", "rueidis", openCodecRueidis(rueidis.ClientOption{PipelineMultiplex: -1})},
	{"go-redis", "go-redis", openCodecGoRedis},
	{"redigo", "redigo", openCodecRedigo},
}

// codecBatch is how many commands go together where one alone would be too little to see.
const codecBatch = 100

// A codecClient is for one caller. Its methods are the commands that they are named after, with these arguments; those in the plural
// are batches of codecBatch of the same.
type codecClient interface {
	Gets(ctx context.Context, args keyList, out *readout) error
	Incrs(ctx context.Context, args keyList, out *readout) error
	Refused(ctx context.Context, args keyList, out *readout) error // GETs that are answered with errors
	Get(ctx context.Context, args keyList, out *readout) error
	MGet(ctx context.Context, args keyList, out *readout) error
	HGetAll(ctx context.Context, args keyList, out *readout) error
	XRange(ctx context.Context, args keyList, out *readout) error // nested arrays; a library's own command might make maps
	Sets(ctx context.Context, args keyList, out *readout) error
	Set(ctx context.Context, args keyList, out *readout) error
	MSet(ctx context.Context, args keyList, out *readout) error
	Close()
}

// A readout is what was read in one call. While it only counts, it costs next to nothing.
type readout struct {
	sum   int // of the lengths of texts, of numbers, and 1 for each error
	keeps bool
	texts []string // what was read, if it keeps that
}

func (out *readout) text(s string) {
	if out.sum += len(s); out.keeps {
		out.keep(s)
	}
}

func (out *readout) pair(field, value string) {
	if out.sum += len(field) + len(value); out.keeps {
		out.keep(field + "=" + value)
	}
}

func (out *readout) number(n int64) {
	if out.sum += int(n); out.keeps {
		out.keep(strconv.FormatInt(n, 10))
	}
}

func (out *readout) failure(err error) {
	if err == nil {
		return
	}
	if out.sum++; out.keeps {
		out.keep(err.Error())
	}
}

func (out *readout) keep(s string) { out.texts = append(out.texts, s) }

// codecBaton is baton with its defaults.
type codecBaton struct {
	c     *baton.Client
	batch baton.Batch
	args  []any
}

// openCodecBaton: what a caller of baton does by itself over a socket, it leaves to goroutines over other connections, whose Write could
// keep it for long. Here no Write waits, so a connection may pass for a socket: then a call is codec, as a call of the others is.
func openCodecBaton(asSocket bool) func(dialer) (codecClient, error) {
	return func(dial dialer) (codecClient, error) {
		c, err := baton.Dial(context.Background(), baton.Options{
			Addr: cannedAddr.String(),
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				nc, err := dial(ctx, network, addr)
				if asSocket && err == nil {
					nc = socketLike{nc}
				}
				return nc, err
			},
		})
		return &codecBaton{c: c}, err
	}
}

// socketLike has the method by which baton knows a socket.
type socketLike struct{ net.Conn }

func (socketLike) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// each does a batch and has its replies read.
func (b *codecBaton) each(ctx context.Context, read func(baton.Reply) error, args ...any) error {
	b.batch.Reset()
	for range codecBatch {
		b.batch.Add(args...)
	}
	replies, err := b.c.DoBatch(ctx, &b.batch)
	for i := range replies {
		if err := read(replies[i]); err != nil {
			return err
		}
	}
	return err
}

func (b *codecBaton) Gets(ctx context.Context, args keyList, out *readout) error {
	return b.each(ctx, func(r baton.Reply) error {
		s, err := r.Text()
		out.text(s)
		return err
	}, "GET", args.names[0])
}

func (b *codecBaton) Incrs(ctx context.Context, args keyList, out *readout) error {
	return b.each(ctx, func(r baton.Reply) error {
		n, err := r.Int64()
		out.number(n)
		return err
	}, "INCR", args.names[0])
}

func (b *codecBaton) Refused(ctx context.Context, args keyList, out *readout) error {
	return b.each(ctx, func(r baton.Reply) error {
		out.failure(r.Err())
		return nil
	}, "GET", args.names[0])
}

func (b *codecBaton) Get(ctx context.Context, args keyList, out *readout) error {
	s, err := b.c.Do(ctx, "GET", args.names[0]).Text()
	out.text(s)
	return err
}

// with is a command of many arguments.
func (b *codecBaton) with(command string, args keyList) []any {
	b.args = append(append(b.args[:0], command), args.boxed...)
	return b.args
}

func (b *codecBaton) MGet(ctx context.Context, args keyList, out *readout) error {
	texts, err := b.c.Do(ctx, b.with("MGET", args)...).Texts()
	for _, s := range texts {
		out.text(s)
	}
	return err
}

func (b *codecBaton) HGetAll(ctx context.Context, args keyList, out *readout) error {
	fields, err := b.c.Do(ctx, "HGETALL", args.names[0]).Map()
	for field, r := range fields {
		value, err := r.Text()
		if err != nil {
			return err
		}
		out.pair(field, value)
	}
	return err
}

func (b *codecBaton) XRange(ctx context.Context, args keyList, out *readout) error {
	entries, err := b.c.Do(ctx, "XRANGE", args.names[0], args.names[1], args.names[2]).Elems()
	for i := range entries {
		if err := readBatonEntry(entries[i], out); err != nil {
			return err
		}
	}
	return err
}

func readBatonEntry(entry baton.Reply, out *readout) error {
	parts, err := entry.Elems()
	if err != nil || len(parts) != 2 {
		return errors.Join(err, errEntry)
	}
	id, err := parts[0].Text()
	if err != nil {
		return err
	}
	out.text(id)
	fields, err := parts[1].Elems()
	for i := range fields {
		s, err := fields[i].Text()
		if err != nil {
			return err
		}
		out.text(s)
	}
	return err
}

var errEntry = errors.New("an entry is not an identifier and fields")

func (b *codecBaton) Sets(ctx context.Context, args keyList, _ *readout) error {
	return b.each(ctx, baton.Reply.Err, "SET", args.names[0], args.names[1])
}

func (b *codecBaton) Set(ctx context.Context, args keyList, _ *readout) error {
	return b.c.Do(ctx, "SET", args.names[0], args.names[1]).Err()
}

func (b *codecBaton) MSet(ctx context.Context, args keyList, _ *readout) error {
	return b.c.Do(ctx, b.with("MSET", args)...).Err()
}

func (b *codecBaton) Close() { b.c.Close() }

// codecRueidis has no client-side cache, as nobody here caches.
type codecRueidis struct {
	c     rueidis.Client
	batch rueidis.Commands
}

func openCodecRueidis(opts rueidis.ClientOption) func(dialer) (codecClient, error) {
	opts.DisableCache = true
	opts.ForceSingleClient = true
	opts.InitAddress = []string{cannedAddr.String()}
	return func(dial dialer) (codecClient, error) {
		opts := opts
		opts.DialCtxFn = func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, "tcp", addr)
		}
		c, err := rueidis.NewClient(opts)
		return &codecRueidis{c: c}, err
	}
}

func (r *codecRueidis) each(ctx context.Context, read func(rueidis.RedisResult) error, build func() rueidis.Completed) error {
	r.batch = r.batch[:0]
	for range codecBatch {
		r.batch = append(r.batch, build())
	}
	for _, result := range r.c.DoMulti(ctx, r.batch...) {
		if err := read(result); err != nil {
			return err
		}
	}
	return nil
}

func (r *codecRueidis) get(args keyList) rueidis.Completed {
	return r.c.B().Get().Key(args.names[0]).Build()
}

func (r *codecRueidis) Gets(ctx context.Context, args keyList, out *readout) error {
	return r.each(ctx, func(result rueidis.RedisResult) error {
		s, err := result.ToString()
		out.text(s)
		return err
	}, func() rueidis.Completed { return r.get(args) })
}

func (r *codecRueidis) Incrs(ctx context.Context, args keyList, out *readout) error {
	return r.each(ctx, func(result rueidis.RedisResult) error {
		n, err := result.AsInt64()
		out.number(n)
		return err
	}, func() rueidis.Completed { return r.c.B().Incr().Key(args.names[0]).Build() })
}

func (r *codecRueidis) Refused(ctx context.Context, args keyList, out *readout) error {
	return r.each(ctx, func(result rueidis.RedisResult) error {
		out.failure(result.Error())
		return nil
	}, func() rueidis.Completed { return r.get(args) })
}

func (r *codecRueidis) Get(ctx context.Context, args keyList, out *readout) error {
	s, err := r.c.Do(ctx, r.get(args)).ToString()
	out.text(s)
	return err
}

func (r *codecRueidis) MGet(ctx context.Context, args keyList, out *readout) error {
	texts, err := r.c.Do(ctx, r.c.B().Mget().Key(args.names...).Build()).AsStrSlice()
	for _, s := range texts {
		out.text(s)
	}
	return err
}

func (r *codecRueidis) HGetAll(ctx context.Context, args keyList, out *readout) error {
	fields, err := r.c.Do(ctx, r.c.B().Hgetall().Key(args.names[0]).Build()).AsStrMap()
	for field, value := range fields {
		out.pair(field, value)
	}
	return err
}

func (r *codecRueidis) XRange(ctx context.Context, args keyList, out *readout) error {
	command := r.c.B().Xrange().Key(args.names[0]).Start(args.names[1]).End(args.names[2]).Build()
	entries, err := r.c.Do(ctx, command).ToArray()
	for i := range entries {
		if err := readRueidisEntry(&entries[i], out); err != nil {
			return err
		}
	}
	return err
}

func readRueidisEntry(entry *rueidis.RedisMessage, out *readout) error {
	parts, err := entry.ToArray()
	if err != nil || len(parts) != 2 {
		return errors.Join(err, errEntry)
	}
	id, err := parts[0].ToString()
	if err != nil {
		return err
	}
	out.text(id)
	fields, err := parts[1].ToArray()
	for i := range fields {
		s, err := fields[i].ToString()
		if err != nil {
			return err
		}
		out.text(s)
	}
	return err
}

func (r *codecRueidis) set(args keyList) rueidis.Completed {
	return r.c.B().Set().Key(args.names[0]).Value(args.names[1]).Build()
}

func (r *codecRueidis) Sets(ctx context.Context, args keyList, _ *readout) error {
	return r.each(ctx, rueidis.RedisResult.Error, func() rueidis.Completed { return r.set(args) })
}

func (r *codecRueidis) Set(ctx context.Context, args keyList, _ *readout) error {
	return r.c.Do(ctx, r.set(args)).Error()
}

// MSet takes all arguments at once: the typed command would take them pair by pair.
func (r *codecRueidis) MSet(ctx context.Context, args keyList, _ *readout) error {
	return r.c.Do(ctx, r.c.B().Arbitrary("MSET").Args(args.names...).Build()).Error()
}

func (r *codecRueidis) Close() { r.c.Close() }

// codecGoRedis is go-redis with its defaults.
type codecGoRedis struct{ c *goredis.Client }

func openCodecGoRedis(dial dialer) (codecClient, error) {
	return codecGoRedis{goredis.NewClient(&goredis.Options{Addr: cannedAddr.String(), Dialer: dial})}, nil
}

func (g codecGoRedis) each(ctx context.Context, add func(goredis.Pipeliner)) ([]goredis.Cmder, error) {
	pipe := g.c.Pipeline()
	for range codecBatch {
		add(pipe)
	}
	return pipe.Exec(ctx)
}

func (g codecGoRedis) gets(ctx context.Context, args keyList) ([]goredis.Cmder, error) {
	return g.each(ctx, func(pipe goredis.Pipeliner) { pipe.Get(ctx, args.names[0]) })
}

func (g codecGoRedis) Gets(ctx context.Context, args keyList, out *readout) error {
	commands, err := g.gets(ctx, args)
	for _, c := range commands {
		out.text(c.(*goredis.StringCmd).Val())
	}
	return err
}

func (g codecGoRedis) Incrs(ctx context.Context, args keyList, out *readout) error {
	commands, err := g.each(ctx, func(pipe goredis.Pipeliner) { pipe.Incr(ctx, args.names[0]) })
	for _, c := range commands {
		out.number(c.(*goredis.IntCmd).Val())
	}
	return err
}

// Refused passes over the error of Exec, which is that of the first command.
func (g codecGoRedis) Refused(ctx context.Context, args keyList, out *readout) error {
	commands, _ := g.gets(ctx, args)
	for _, c := range commands {
		out.failure(c.Err())
	}
	return nil
}

func (g codecGoRedis) Get(ctx context.Context, args keyList, out *readout) error {
	s, err := g.c.Get(ctx, args.names[0]).Result()
	out.text(s)
	return err
}

func (g codecGoRedis) MGet(ctx context.Context, args keyList, out *readout) error {
	values, err := g.c.MGet(ctx, args.names...).Result()
	for _, v := range values {
		s, _ := v.(string)
		out.text(s)
	}
	return err
}

func (g codecGoRedis) HGetAll(ctx context.Context, args keyList, out *readout) error {
	fields, err := g.c.HGetAll(ctx, args.names[0]).Result()
	for field, value := range fields {
		out.pair(field, value)
	}
	return err
}

func (g codecGoRedis) XRange(ctx context.Context, args keyList, out *readout) error {
	entries, err := g.c.Do(ctx, "XRANGE", args.boxed[0], args.boxed[1], args.boxed[2]).Slice()
	for _, entry := range entries {
		parts, _ := entry.([]any)
		if len(parts) != 2 {
			return errEntry
		}
		id, _ := parts[0].(string)
		out.text(id)
		fields, _ := parts[1].([]any)
		for _, f := range fields {
			s, _ := f.(string)
			out.text(s)
		}
	}
	return err
}

func (g codecGoRedis) Sets(ctx context.Context, args keyList, _ *readout) error {
	_, err := g.each(ctx, func(pipe goredis.Pipeliner) { pipe.Set(ctx, args.names[0], args.boxed[1], 0) })
	return err
}

func (g codecGoRedis) Set(ctx context.Context, args keyList, _ *readout) error {
	return g.c.Set(ctx, args.names[0], args.boxed[1], 0).Err()
}

func (g codecGoRedis) MSet(ctx context.Context, args keyList, _ *readout) error {
	return g.c.MSet(ctx, args.boxed...).Err()
}

func (g codecGoRedis) Close() { g.c.Close() }

// codecRedigo is one connection, without the pool. It speaks protocol 2.
type codecRedigo struct{ c redigo.Conn }

func openCodecRedigo(dial dialer) (codecClient, error) {
	nc, err := dial(context.Background(), "tcp", cannedAddr.String())
	if err != nil {
		return nil, err
	}
	return codecRedigo{redigo.NewConn(nc, 0, 0)}, nil
}

func (r codecRedigo) each(command string, args keyList) ([]any, error) {
	for range codecBatch {
		if err := r.c.Send(command, args.boxed...); err != nil {
			return nil, err
		}
	}
	return redigo.Values(r.c.Do(""))
}

func (r codecRedigo) Gets(_ context.Context, args keyList, out *readout) error {
	replies, err := r.each("GET", args)
	for _, reply := range replies {
		s, err := redigo.String(reply, nil)
		if err != nil {
			return err
		}
		out.text(s)
	}
	return err
}

func (r codecRedigo) Incrs(_ context.Context, args keyList, out *readout) error {
	replies, err := r.each("INCR", args)
	for _, reply := range replies {
		n, err := redigo.Int64(reply, nil)
		if err != nil {
			return err
		}
		out.number(n)
	}
	return err
}

func (r codecRedigo) Refused(_ context.Context, args keyList, out *readout) error {
	replies, err := r.each("GET", args)
	for _, reply := range replies {
		refusal, _ := reply.(error)
		out.failure(refusal)
	}
	return err
}

func (r codecRedigo) Get(_ context.Context, args keyList, out *readout) error {
	s, err := redigo.String(r.c.Do("GET", args.boxed...))
	out.text(s)
	return err
}

func (r codecRedigo) MGet(_ context.Context, args keyList, out *readout) error {
	texts, err := redigo.Strings(r.c.Do("MGET", args.boxed...))
	for _, s := range texts {
		out.text(s)
	}
	return err
}

func (r codecRedigo) HGetAll(_ context.Context, args keyList, out *readout) error {
	fields, err := redigo.StringMap(r.c.Do("HGETALL", args.boxed...))
	for field, value := range fields {
		out.pair(field, value)
	}
	return err
}

func (r codecRedigo) XRange(_ context.Context, args keyList, out *readout) error {
	entries, err := redigo.Values(r.c.Do("XRANGE", args.boxed...))
	for _, entry := range entries {
		parts, err := redigo.Values(entry, nil)
		if err != nil || len(parts) != 2 {
			return errors.Join(err, errEntry)
		}
		id, err := redigo.String(parts[0], nil)
		if err != nil {
			return err
		}
		out.text(id)
		fields, err := redigo.Strings(parts[1], nil)
		if err != nil {
			return err
		}
		for _, s := range fields {
			out.text(s)
		}
	}
	return err
}

func (r codecRedigo) Sets(_ context.Context, args keyList, _ *readout) error {
	replies, err := r.each("SET", args)
	for _, reply := range replies {
		if reply != "OK" {
			return fmt.Errorf("SET: %v", reply)
		}
	}
	return err
}

func (r codecRedigo) Set(_ context.Context, args keyList, _ *readout) error {
	_, err := r.c.Do("SET", args.boxed...)
	return err
}

func (r codecRedigo) MSet(_ context.Context, args keyList, _ *readout) error {
	_, err := r.c.Do("MSET", args.boxed...)
	return err
}

func (r codecRedigo) Close() { r.c.Close() }
