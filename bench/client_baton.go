package main

import (
	"context"

	"example.com/baton"
)

const (
	batonName       = "baton"
	batonAppendName = "baton DoAppend"
)

var batons = []contender{
	{batonName, "baton", func(addr string, _ int) (client, error) { return openBaton(baton.Options{Addr: addr}) }},
	{batonAppendName, "baton", func(addr string, _ int) (client, error) {
		c, err := openBaton(baton.Options{Addr: addr})
		return &batonAppend{batonClient: c}, err
	}},
}

// A batonClient does everything with Do, and pipelines with DoBatch. What can be used again, its caller keeps.
type batonClient struct {
	c     *baton.Client
	batch baton.Batch
	mget  []any // the arguments of an MGET
}

func openBaton(opts baton.Options) (*batonClient, error) {
	c, err := baton.Dial(context.Background(), opts)
	return &batonClient{c: c}, err
}

func (b *batonClient) forCaller() client { return &batonClient{c: b.c} }

func (b *batonClient) Get(ctx context.Context, key string) (int, error) {
	s, err := b.c.Do(ctx, "GET", key).Text()
	return len(s), err
}

func (b *batonClient) Set(ctx context.Context, key, value string) error {
	return b.c.Do(ctx, "SET", key, value).Err()
}

func (b *batonClient) MGet(ctx context.Context, keys keyList) (int, error) {
	b.mget = append(append(b.mget[:0], "MGET"), keys.boxed...)
	elems, err := b.c.Do(ctx, b.mget...).Elems()
	if err != nil {
		return 0, err
	}
	return textBytes(elems)
}

func (b *batonClient) Pipeline(ctx context.Context, keys keyList) (int, error) {
	b.batch.Reset()
	for _, key := range keys.names {
		b.batch.Add("GET", key)
	}
	replies, err := b.c.DoBatch(ctx, &b.batch)
	if err != nil {
		return 0, err
	}
	return textBytes(replies)
}

func textBytes(replies []baton.Reply) (n int, err error) {
	for i := range replies {
		s, err := replies[i].Text()
		if err != nil {
			return n, err
		}
		n += len(s)
	}
	return n, nil
}

func (b *batonClient) Close() { b.c.Close() }

// A batonAppend reads single values into memory of its caller.
type batonAppend struct {
	*batonClient
	value []byte
}

func (b *batonAppend) forCaller() client { return &batonAppend{batonClient: &batonClient{c: b.c}} }

func (b *batonAppend) Get(ctx context.Context, key string) (n int, err error) {
	b.value, err = b.c.DoAppend(ctx, b.value[:0], "GET", key)
	return len(b.value), err
}
