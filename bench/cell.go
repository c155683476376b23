package main

// The cells of the comparison: what is done, by how many callers, with which context.

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"
)

// A cell is one line of the comparison.
type cell struct {
	op          operation
	callers     int
	cancellable bool // each caller has a context that can end
	beside      bool // one more caller reads largeKey over and over, uncounted
	brief       bool // part of -short
}

// An operation is what a caller does over and over. Its name begins the names of its cells.
type operation struct {
	name  string
	bytes int // of all values that it reads
	do    func(ctx context.Context, c client) (bytes int, err error)
	// the same on the wire, for the floor
	request, reply string
}

const (
	smallKey  = "baton:bench:small"
	mediumKey = "baton:bench:medium"
	largeKey  = "baton:bench:large"
	setKey    = "baton:bench:set"

	small  = 64
	medium = 64 << 10
	large  = 1 << 20
)

var (
	smallValue = strings.Repeat("x", small)
	manyKeys   = newKeyList(numbered("baton:bench:many:", 1000))
	batchKeys  = newKeyList(numbered("baton:bench:many:", 100))
)

func numbered(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
	}
	return names
}

// prepare writes the values that the cells read. It uses redigo, the simplest of the clients.
func prepare(addr string) error {
	conn, err := redis.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	for key, size := range map[string]int{smallKey: small, mediumKey: medium, largeKey: large} {
		conn.Send("SET", key, strings.Repeat("x", size))
	}
	for _, size := range payloads {
		conn.Send("SET", sizeKey(size), strings.Repeat("x", size))
	}
	for _, key := range manyKeys.names {
		conn.Send("SET", key, smallValue)
	}
	_, err = conn.Do("")
	return err
}

var (
	getSmall  = get(smallKey, small)
	getMedium = get(mediumKey, medium)
	getLarge  = get(largeKey, large)
	setSmall  = operation{
		name: "SET 64B",
		do: func(ctx context.Context, c client) (int, error) {
			return 0, c.Set(ctx, setKey, smallValue)
		},
		request: encoded("SET", setKey, smallValue),
		reply:   "+OK\r\n",
	}
	mgetMany = operation{
		name:    "MGET 1000",
		bytes:   len(manyKeys.names) * small,
		do:      func(ctx context.Context, c client) (int, error) { return c.MGet(ctx, manyKeys) },
		request: encoded(append([]string{"MGET"}, manyKeys.names...)...),
		reply:   fmt.Sprintf("*%d\r\n", len(manyKeys.names)) + strings.Repeat(bulk(smallValue), len(manyKeys.names)),
	}
	pipelineMany = operation{
		name:    "pipeline 100",
		bytes:   len(batchKeys.names) * small,
		do:      func(ctx context.Context, c client) (int, error) { return c.Pipeline(ctx, batchKeys) },
		request: strings.Repeat(encoded("GET", smallKey), len(batchKeys.names)),
		reply:   strings.Repeat(bulk(smallValue), len(batchKeys.names)),
	}
)

func get(key string, size int) operation {
	name := fmt.Sprintf("GET %dB", size)
	switch {
	case size >= 1<<20:
		name = fmt.Sprintf("GET %dMiB", size>>20)
	case size >= 1<<10:
		name = fmt.Sprintf("GET %dKiB", size>>10)
	}
	return operation{
		name:    name,
		bytes:   size,
		do:      func(ctx context.Context, c client) (int, error) { return c.Get(ctx, key) },
		request: encoded("GET", key),
		reply:   bulk(strings.Repeat("x", size)),
	}
}

// encoded is a command on the wire.
func encoded(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		b.WriteString(bulk(arg))
	}
	return b.String()
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// steadyCells are all cells, those of few callers first.
func steadyCells() (cells []cell) {
	for _, callers := range []int{1, 8, 64, 512, 4096} {
		for _, op := range []operation{getSmall, setSmall} {
			brief := op.name == getSmall.name && callers <= 64
			cells = append(cells,
				cell{op: op, callers: callers, brief: true},
				cell{op: op, callers: callers, cancellable: true, brief: brief})
		}
	}
	return append(cells,
		cell{op: getMedium, callers: 1, brief: true},
		cell{op: getMedium, callers: 8, brief: true},
		cell{op: getLarge, callers: 1, brief: true},
		cell{op: mgetMany, callers: 1, brief: true},
		cell{op: pipelineMany, callers: 1, brief: true},
		cell{op: pipelineMany, callers: 8, brief: true},
		cell{op: getSmall, callers: 8, beside: true, brief: true},
	)
}

// name is what -cells looks at, as in "GET 64B/8 cancellable".
func (c cell) name() string {
	name := fmt.Sprintf("%s/%d background", c.op.name, c.callers)
	if c.cancellable {
		name = fmt.Sprintf("%s/%d cancellable", c.op.name, c.callers)
	}
	if c.beside {
		name += " beside a reader of 1MiB"
	}
	return name
}

// contexts are those of the callers, each its own, as requests to a service have. They end with release.
func (c cell) contexts() (contexts []context.Context, release func()) {
	var cancels []context.CancelFunc
	for range c.callers {
		ctx := context.Background()
		if c.cancellable {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			cancels = append(cancels, cancel)
		}
		contexts = append(contexts, ctx)
	}
	return contexts, func() {
		for _, cancel := range cancels {
			cancel()
		}
	}
}

// checked is the operation as the callers do it: what it reads has the right size.
func (o operation) checked(c client) func(context.Context) error {
	return func(ctx context.Context) error {
		n, err := o.do(ctx, c)
		if err == nil && n != o.bytes {
			err = fmt.Errorf("%s: read %d bytes instead of %d", o.name, n, o.bytes)
		}
		return err
	}
}
