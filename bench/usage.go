package main

// What a turn costs this process. It is the client's cost alone if the server is another process.

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"time"
)

// A usage is what the process has used, since it began or between two moments.
type usage struct {
	mallocs   uint64
	processor time.Duration
	calls     int64 // reads and writes, which on Linux include those of sockets
}

// begin reads the allocations last, and since reads them first: what reading allocates is not counted.
func begin() (u usage) {
	u.calls, u.processor = readsAndWrites(), processorTime()
	u.mallocs = mallocs()
	return u
}

func (u usage) since() usage {
	m, p := mallocs(), processorTime()
	return usage{m - u.mallocs, p - u.processor, readsAndWrites() - u.calls}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// readsAndWrites counts the system calls of the kinds read and write, which is what package net uses for sockets: with strace -c
// beside it the two agree. Waiting for sockets (epoll) and for other threads (futex) is not among them. 0 if the system does not say.
func readsAndWrites() (calls int64) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var name string
		var n int64
		if fmt.Sscan(lines.Text(), &name, &n); name == "syscr:" || name == "syscw:" {
			calls += n
		}
	}
	return calls
}
