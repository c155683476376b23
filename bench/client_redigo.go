package main

import (
	"context"

	"github.com/gomodule/redigo/redis"
)

// redigoPool: with more connections than this it did no better with 64, 512 or 4,096 callers.
const redigoPool = 64

var redigos = []contender{{"redigo", "redigo", openRedigo}}

type redigoClient struct{ pool *redis.Pool }

func openRedigo(addr string, callers int) (client, error) {
	size := min(callers, redigoPool)
	return redigoClient{&redis.Pool{
		MaxIdle: size, MaxActive: size, Wait: true,
		DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr) },
	}}, nil
}

// do uses a context only if it can end: redigo starts a goroutine for each call with one.
func (r redigoClient) do(ctx context.Context, command string, args ...any) (any, error) {
	if ctx.Done() == nil {
		conn := r.pool.Get()
		defer conn.Close()
		return conn.Do(command, args...)
	}
	conn, err := r.pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return redis.DoContext(conn, ctx, command, args...)
}

func (r redigoClient) Get(ctx context.Context, key string) (int, error) {
	b, err := redis.Bytes(r.do(ctx, "GET", key))
	return len(b), err
}

func (r redigoClient) Set(ctx context.Context, key, value string) error {
	_, err := r.do(ctx, "SET", key, value)
	return err
}

func (r redigoClient) MGet(ctx context.Context, keys keyList) (int, error) {
	return bytesOf(redis.Values(r.do(ctx, "MGET", keys.boxed...)))
}

func (r redigoClient) Pipeline(ctx context.Context, keys keyList) (int, error) {
	conn, err := r.pool.GetContext(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	for i := range keys.boxed {
		if err := conn.Send("GET", keys.boxed[i:i+1]...); err != nil {
			return 0, err
		}
	}
	return bytesOf(redis.Values(conn.Do("")))
}

func bytesOf(values []any, err error) (n int, _ error) {
	for _, v := range values {
		b, _ := v.([]byte)
		n += len(b)
	}
	return n, err
}

func (r redigoClient) Close() { r.pool.Close() }
