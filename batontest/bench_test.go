package batontest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	benchGet   = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
	benchReply = fmt.Sprintf("$64\r\n%s\r\n", strings.Repeat("x", 64))
)

// BenchmarkGet sends GETs of 64 bytes, a number of them at once on each connection.
func BenchmarkGet(b *testing.B) {
	s := NewServer()
	defer s.Close()
	r := NewRelay(s.Addr())
	defer r.Close()
	for _, via := range []struct {
		name string
		dial func() (net.Conn, error)
	}{
		{"memory", func() (net.Conn, error) { return s.Dial(context.Background(), "tcp", s.Addr()) }},
		{"tcp", func() (net.Conn, error) { return net.Dial("tcp", s.Addr()) }},
		{"relay", func() (net.Conn, error) { return net.Dial("tcp", r.Addr()) }},
	} {
		for _, shape := range []struct{ conns, pipeline int }{{1, 1}, {1, 64}, {64, 1}} {
			b.Run(fmt.Sprintf("via=%s/conns=%d/pipeline=%d", via.name, shape.conns, shape.pipeline), func(b *testing.B) {
				benchPipeline(b, via.dial, shape.conns, shape.pipeline)
			})
		}
	}
}

func benchPipeline(b *testing.B, dial func() (net.Conn, error), conns, pipeline int) {
	b.ReportAllocs()
	batch := bytes.Repeat([]byte(benchGet), pipeline)
	var rounds atomic.Int64
	var wg sync.WaitGroup
	for range conns {
		c, err := dial()
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "SET k %s\r\n", strings.Repeat("x", 64))
		r := bufio.NewReaderSize(c, 1<<16)
		if _, err := r.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			replies := make([]byte, len(benchReply)*pipeline)
			for rounds.Add(1) <= int64((b.N+pipeline-1)/pipeline) {
				if _, err := c.Write(batch); err != nil {
					b.Error(err)
					return
				}
				if _, err := io.ReadFull(r, replies); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
}
