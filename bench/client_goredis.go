package main

import (
	"context"
	"runtime"

	"github.com/redis/go-redis/v9"
)

var goRedises = []contender{
	{"go-redis", "go-redis", func(addr string, _ int) (client, error) {
		return &goRedisClient{Cmdable: redis.NewClient(&redis.Options{Addr: addr})}, nil
	}},
	{"go-redis, large pool", "go-redis", func(addr string, callers int) (client, error) {
		size := max(callers, 10*runtime.GOMAXPROCS(0)) // its default, or a connection for each caller
		return &goRedisClient{Cmdable: redis.NewClient(&redis.Options{Addr: addr, PoolSize: size})}, nil
	}},
	{"go-redis, auto-pipeline", "go-redis", openAutoPipeline(nil)},
	// what go-redis measures its own auto-pipeline with
	{"go-redis, auto-pipeline, unordered", "go-redis", openAutoPipeline(
		&redis.AutoPipelineOptions{MaxBatchSize: 300, MaxConcurrentBatches: 80, Unordered: true})},
}

type goRedisClient struct {
	redis.Cmdable
	pool *redis.Client // below an auto-pipeline
}

// openAutoPipeline opens the face whose calls block until they are answered, as all others here do.
func openAutoPipeline(opts *redis.AutoPipelineOptions) func(string, int) (client, error) {
	return func(addr string, _ int) (client, error) {
		pool := redis.NewClient(&redis.Options{Addr: addr})
		auto, err := pool.AutoPipelineWithOptions(opts)
		if err != nil {
			pool.Close()
			return nil, err
		}
		return &goRedisClient{auto, pool}, nil
	}
}

func (g *goRedisClient) Get(ctx context.Context, key string) (int, error) {
	s, err := g.Cmdable.Get(ctx, key).Result()
	return len(s), err
}

func (g *goRedisClient) Set(ctx context.Context, key, value string) error {
	return g.Cmdable.Set(ctx, key, value, 0).Err()
}

func (g *goRedisClient) MGet(ctx context.Context, keys keyList) (n int, err error) {
	values, err := g.Cmdable.MGet(ctx, keys.names...).Result()
	for _, v := range values {
		s, _ := v.(string)
		n += len(s)
	}
	return n, err
}

func (g *goRedisClient) Pipeline(ctx context.Context, keys keyList) (n int, err error) {
	pipe := g.Cmdable.Pipeline()
	for _, key := range keys.names {
		pipe.Get(ctx, key)
	}
	commands, err := pipe.Exec(ctx)
	for _, c := range commands {
		n += len(c.(*redis.StringCmd).Val())
	}
	return n, err
}

func (g *goRedisClient) Close() {
	if c, ok := g.Cmdable.(interface{ Close() error }); ok {
		c.Close()
	}
	if g.pool != nil {
		g.pool.Close()
	}
}
