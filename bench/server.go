package main

// The server that is measured against: a redis-server that this program starts and ends itself, or one in this process.

import (
	"fmt"
	"net"
	"os/exec"
	"time"

	"example.com/baton/batontest"
)

// A server is what the clients talk to.
type server struct {
	addr    string
	name    string // for the tables: what it is
	process bool   // it is another process: what this one costs is the client's
	stop    func()
}

// startServer starts the kind of server that the flag -server names.
func startServer(kind string) (*server, error) {
	switch kind {
	case "redis":
		return startRedis()
	case "inprocess":
		return startInProcess(), nil
	case "auto":
		if _, err := exec.LookPath("redis-server"); err != nil {
			return startInProcess(), nil
		}
		return startRedis()
	}
	return nil, fmt.Errorf("-server %s: it is auto, redis or inprocess", kind)
}

// startPrepared starts a server that has what the operations read.
func startPrepared(kind string) (*server, error) {
	srv, err := startServer(kind)
	if err != nil {
		return nil, err
	}
	if err := prepare(srv.addr); err != nil {
		srv.stop()
		return nil, err
	}
	return srv, nil
}

func startInProcess() *server {
	s := batontest.NewServer()
	return &server{addr: s.Addr(), name: "batontest, in this process", stop: s.Close}
}

// startRedis starts a redis-server on a free port of the loopback. It keeps nothing on disk.
func startRedis() (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-server", "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--maxclients", "20000")
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() { cmd.Process.Kill(); cmd.Wait() }
	if err := awaitListener(addr, 5*time.Second); err != nil {
		stop()
		return nil, err
	}
	return &server{addr: addr, name: redisVersion(), process: true, stop: stop}, nil
}

// freeAddr is an address of the loopback that was free a moment ago.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// awaitListener returns when somebody accepts connections at addr, or an error when nobody did in time.
func awaitListener(addr string, patience time.Duration) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var nc net.Conn
		if nc, err = net.Dial("tcp", addr); err == nil {
			return nc.Close()
		}
	}
	return fmt.Errorf("no redis-server at %s: %w", addr, err)
}

// redisVersion is what the redis-server in PATH says about itself.
func redisVersion() string {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return "redis-server"
	}
	var version string
	if _, err := fmt.Sscanf(string(out), "Redis server v=%s", &version); err != nil {
		return "redis-server"
	}
	return "redis-server " + version
}
