package main

// What clients hold on to when nobody uses them.

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"example.com/baton"
)

// A retained is memory that stays, and goroutines.
type retained struct {
	heap, stacks int64
	goroutines   int
}

// retain collects twice: what is pooled survives the first collection.
func retain() retained {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return retained{int64(m.HeapAlloc), int64(m.StackInuse), runtime.NumGoroutine()}
}

func (r retained) since(before retained) retained {
	return retained{r.heap - before.heap, r.stacks - before.stacks, r.goroutines - before.goroutines}
}

func kib(bytes int64) float64 { return float64(bytes) / 1024 }

// crew is how many clients are opened to see what one takes.
const crew = 100

// idleTable is what one idle client takes that has answered once.
func idleTable(cfg config, addr string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "| one of %d idle clients | heap and stacks, KiB | goroutines |\n|---|--:|--:|\n", crew)
	for _, who := range append(contenders(), batonOfConns(2), batonOfConns(8)) {
		if !cfg.clients.MatchString(who.name) || who.name == batonAppendName {
			continue
		}
		r, err := idle(who, addr)
		if err != nil {
			return "", fmt.Errorf("%s: %w", who.name, err)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", who.name, figure(kib(r.heap+r.stacks)/crew), figure(float64(r.goroutines)/crew))
	}
	return b.String(), nil
}

func batonOfConns(n int) contender {
	return contender{fmt.Sprintf("baton, %d connections", n), batonName, func(addr string, _ int) (client, error) {
		c, err := openBaton(baton.Options{Addr: addr, Conns: n})
		if err != nil {
			return nil, err
		}
		for end := time.Now().Add(patience); c.c.Stats().Conns < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				c.Close()
				return nil, fmt.Errorf("%d of %d connections", c.c.Stats().Conns, n)
			}
		}
		return c, nil
	}}
}

func idle(who contender, addr string) (retained, error) {
	clients := make([]client, 0, crew)
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	before := retain()
	for range crew {
		c, err := who.open(addr, 1)
		if err != nil {
			return retained{}, err
		}
		clients = append(clients, c)
		if _, err := c.Get(context.Background(), smallKey); err != nil {
			return retained{}, err
		}
	}
	time.Sleep(settling)
	return retain().since(before), nil
}

// settling is for what a client does after its first command: goroutines of the handshake end.
const settling = 100 * time.Millisecond
