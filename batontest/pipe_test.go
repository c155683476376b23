package batontest

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

func TestPipeIsAConn(t *testing.T) {
	nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
		a, b = Pipe()
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

func TestPipeWriteBlocksWhenFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := Pipe()
		defer a.Close()
		defer b.Close()
		a.SetWriteDeadline(time.Now().Add(time.Minute))
		n, err := a.Write(make([]byte, pipeBuffer+1))
		equal(t, "written", n, pipeBuffer)
		equal(t, "a timeout", errors.Is(err, os.ErrDeadlineExceeded), true)

		a.SetWriteDeadline(time.Time{})
		wrote := make(chan error)
		go func() {
			_, err := a.Write([]byte("more"))
			wrote <- err
		}()
		synctest.Wait()
		b.Read(make([]byte, 4))
		if err := <-wrote; err != nil {
			t.Error("after room was made:", err)
		}
	})
}

func TestPipeEnds(t *testing.T) {
	for _, tc := range []struct {
		name        string
		end         func(net.Conn)
		read, write error // of the other end, when it has read what was buffered
		local       error
	}{
		{"Close", func(c net.Conn) { c.Close() }, io.EOF, syscall.EPIPE, net.ErrClosed},
		{"CloseWrite", func(c net.Conn) { c.(interface{ CloseWrite() error }).CloseWrite() }, io.EOF, nil, syscall.EPIPE},
		{"Reset", func(c net.Conn) { c.(interface{ Reset() }).Reset() }, syscall.ECONNRESET, syscall.ECONNRESET, net.ErrClosed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := Pipe()
			a.Write([]byte("last words"))
			tc.end(a)
			buf := make([]byte, 100)
			n, err := b.Read(buf)
			if string(buf[:n]) != "last words" || err != nil {
				t.Errorf("first read: %q, %v", buf[:n], err)
			}
			if _, err := b.Read(buf); !errors.Is(err, tc.read) {
				t.Errorf("second read: %v, want %v", err, tc.read)
			}
			if _, err := b.Write(buf); !errors.Is(err, tc.write) {
				t.Errorf("write: %v, want %v", err, tc.write)
			}
			if _, err := a.Write(buf); !errors.Is(err, tc.local) {
				t.Errorf("write of the end that closed: %v, want %v", err, tc.local)
			}
		})
	}
}

func TestPipeCloseWakesTheOtherEnd(t *testing.T) {
	for _, reset := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			a, b := Pipe()
			errs := make(chan error, 2)
			go func() { _, err := b.Read(make([]byte, 1)); errs <- err }()
			go func() { _, err := b.Write(make([]byte, 2*pipeBuffer)); errs <- err }()
			synctest.Wait()
			b.SetDeadline(time.Now().Add(time.Hour)) // its timers must not outlive b
			if reset {
				a.(interface{ Reset() }).Reset()
			} else {
				a.Close()
			}
			for range 2 {
				if err := <-errs; err == nil {
					t.Error("no error")
				}
			}
			b.Close()
		})
	}
}
