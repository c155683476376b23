package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

const rueidisName = "rueidis"

// rueidises: by default rueidis opens a connection for each processor, rounded down to 1, 2 or 4; a negative PipelineMultiplex
// makes it one. 20 µs is the flush delay that its documentation proposes.
var rueidises = []contender{
	{rueidisName, "rueidis", openRueidis(rueidis.ClientOption{})},
	{"rueidis, one connection", "rueidis", openRueidis(rueidis.ClientOption{PipelineMultiplex: -1})},
	{"rueidis, one, 20 µs delay", "rueidis", openRueidis(rueidis.ClientOption{PipelineMultiplex: -1, MaxFlushDelay: 20 * time.Microsecond})},
}

type rueidisClient struct{ c rueidis.Client }

func openRueidis(opts rueidis.ClientOption) func(string, int) (client, error) {
	opts.DisableCache = true // nobody here caches
	opts.ForceSingleClient = true
	return func(addr string, _ int) (client, error) {
		opts := opts
		opts.InitAddress = []string{addr}
		c, err := rueidis.NewClient(opts)
		return rueidisClient{c}, err
	}
}

func (r rueidisClient) Get(ctx context.Context, key string) (int, error) {
	s, err := r.c.Do(ctx, r.c.B().Get().Key(key).Build()).ToString()
	return len(s), err
}

func (r rueidisClient) Set(ctx context.Context, key, value string) error {
	return r.c.Do(ctx, r.c.B().Set().Key(key).Value(value).Build()).Error()
}

// MGet takes the array's elements as they are: AsStrSlice would make another array.
func (r rueidisClient) MGet(ctx context.Context, keys keyList) (n int, err error) {
	elems, err := r.c.Do(ctx, r.c.B().Mget().Key(keys.names...).Build()).ToArray()
	if err != nil {
		return 0, err
	}
	for i := range elems {
		s, err := elems[i].ToString()
		if err != nil {
			return n, err
		}
		n += len(s)
	}
	return n, nil
}

func (r rueidisClient) Pipeline(ctx context.Context, keys keyList) (n int, err error) {
	commands := make(rueidis.Commands, len(keys.names))
	for i, key := range keys.names {
		commands[i] = r.c.B().Get().Key(key).Build()
	}
	for _, result := range r.c.DoMulti(ctx, commands...) {
		s, err := result.ToString()
		if err != nil {
			return n, err
		}
		n += len(s)
	}
	return n, nil
}

func (r rueidisClient) Close() { r.c.Close() }
