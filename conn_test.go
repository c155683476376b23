package baton

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"example.com/baton/batontest"
)

// --- options ---

func TestOptionsDefaultsAreThoseOfTheirDocumentation(t *testing.T) {
	o, err := Options{}.resolved()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		got, want any
	}{
		{"Network", o.Network, "tcp"},
		{"Addr", o.Addr, "127.0.0.1:6379"},
		{"DialTimeout", o.DialTimeout, 5 * time.Second},
		{"Timeout", o.Timeout, 5 * time.Second},
		{"KeepAlive", o.KeepAlive, 30 * time.Second},
		{"MaxBacklog", o.MaxBacklog, 65536},
		{"MaxBacklogBytes", o.MaxBacklogBytes, 64 << 20},
		{"MaxInFlight", o.MaxInFlight, 65536},
		{"MaxReply", o.MaxReply, 512 << 20},
		{"MaxDepth", o.MaxDepth, 128},
		{"MaxElements", o.MaxElements, 1 << 24},
		{"Backlog", o.Backlog, Queue},
		{"Mode", o.Maintenance.Mode, Auto},
		{"EndpointType", o.Maintenance.EndpointType, EndpointAuto},
		{"RelaxedTimeout", o.Maintenance.RelaxedTimeout, 10 * time.Second},
		{"RelaxedWindowMax", o.Maintenance.RelaxedWindowMax, 30 * time.Second},
		{"PostEventRelaxed", o.Maintenance.PostEventRelaxed, 20 * time.Second},
		{"HoldCap", o.Maintenance.HoldCap, 50 * time.Millisecond},
	} {
		if c.got != c.want {
			t.Errorf("%s is %v by default, want %v", c.name, c.got, c.want)
		}
	}
	if o.Conns < 1 {
		t.Errorf("Conns is %d by default", o.Conns)
	}
}

func TestOptionsDerivedFromTheRelaxedTimeout(t *testing.T) {
	for _, c := range []struct{ relaxed, window, tail time.Duration }{
		{2 * time.Second, 6 * time.Second, 4 * time.Second},
		{-1, 30 * time.Second, -1}, // off: the longest window still comes from 10 s, and there is no tail
	} {
		o, err := Options{Maintenance: Maintenance{RelaxedTimeout: c.relaxed}}.resolved()
		if m := o.Maintenance; err != nil || m.RelaxedWindowMax != c.window || min(m.PostEventRelaxed, c.tail) != m.PostEventRelaxed || (c.tail < 0) != (m.PostEventRelaxed < 0) {
			t.Errorf("RelaxedTimeout %v gives %v and %v (%v), want %v and %v", c.relaxed, m.RelaxedWindowMax, m.PostEventRelaxed, err, c.window, c.tail)
		}
	}
}

func TestOptionsAddresses(t *testing.T) {
	for _, c := range []struct{ addr, want string }{
		{"", "127.0.0.1:6379"},
		{"localhost", "localhost:6379"},
		{"db.example.com:7000", "db.example.com:7000"},
		{"10.0.0.1", "10.0.0.1:6379"},
		{"[::1]", "[::1]:6379"},
		{"[::1]:7000", "[::1]:7000"},
		{"[2001:db8::5]:12075", "[2001:db8::5]:12075"},
		{"[fe80::1%eth0]:7000", "[fe80::1%eth0]:7000"},
	} {
		if o, err := (Options{Addr: c.addr}).resolved(); err != nil || o.Addr != c.want {
			t.Errorf("Addr %q is dialled as %q (%v), want %q", c.addr, o.Addr, err, c.want)
		}
	}
	for _, bad := range []string{":6379", "localhost:0", "localhost:65536", "localhost:http", "localhost:", "localhost:-1", "[::1]:0", "::1"} {
		if o, err := (Options{Addr: bad}).resolved(); err == nil {
			t.Errorf("Addr %q is accepted, and dialled as %q", bad, o.Addr)
		} else if !strings.Contains(err.Error(), strconv.Quote(bad)) {
			t.Errorf("Addr %q: the error does not name it: %v", bad, err)
		}
	}
}

func TestOptionsRefusesBadValues(t *testing.T) {
	dials := 0
	dial := func(context.Context, string, string) (net.Conn, error) { dials++; return nil, io.EOF }
	for name, o := range map[string]Options{
		"a network that is neither tcp nor unix": {Network: "udp"},
		"a unix socket without a path":           {Network: "unix"},
		"a negative DialTimeout":                 {DialTimeout: -1},
		"a negative number of connections":       {Conns: -1},
		"a negative MaxBacklog":                  {MaxBacklog: -1},
		"a negative MaxBacklogBytes":             {MaxBacklogBytes: -1},
		"a negative MaxInFlight":                 {MaxInFlight: -1},
		"a negative MaxReply":                    {MaxReply: -1},
		"a negative MaxDepth":                    {MaxDepth: -1},
		"a negative MaxElements":                 {MaxElements: -1},
		"a negative database":                    {DB: -1},
		"an unknown policy":                      {Backlog: 7},
		"an unknown mode":                        {Maintenance: Maintenance{Mode: 7}},
		"an unknown endpoint type":               {Maintenance: Maintenance{EndpointType: 70}},
		"a negative RelaxedWindowMax":            {Maintenance: Maintenance{RelaxedWindowMax: -1}},
	} {
		o.Dialer = dial
		c, err := Dial(background, o)
		if err == nil || c != nil || errors.Is(err, io.EOF) || !strings.HasPrefix(err.Error(), "baton: options: ") {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	if dials > 0 {
		t.Errorf("%d dials were made with bad options", dials)
	}
}

func TestParseURLReadsWhatItSays(t *testing.T) {
	for raw, want := range map[string]Options{
		"redis://":                      {},
		"redis://db.example.com":        {Addr: "db.example.com"},
		"redis://db.example.com:7000/3": {Addr: "db.example.com:7000", DB: 3},
		"redis://db.example.com/":       {Addr: "db.example.com"},
		"redis:///3":                    {DB: 3},
		"redis://[2001:db8::5]:7000":    {Addr: "[2001:db8::5]:7000"},
		"redis://[::1]/1":               {Addr: "[::1]", DB: 1},
		"redis://:secret@h":             {Addr: "h", Password: "secret"},
		"redis://alice:s%40c%2Fr%3Aet@h:1?client_name=a+b": {Addr: "h:1", Username: "alice", Password: "s@c/r:et", ClientName: "a b"},
		"unix:///tmp/redis.sock?db=2":                      {Network: "unix", Addr: "/tmp/redis.sock", DB: 2},
		"unix://alice:secret@/tmp/redis.sock":              {Network: "unix", Addr: "/tmp/redis.sock", Username: "alice", Password: "secret"},
		"redis://h?db=1&timeout=1.5s&dial_timeout=2s&keep_alive=-1s&conns=3&backlog=failfast&max_backlog=4&max_backlog_bytes=5" +
			"&max_in_flight=6&max_reply=7&max_depth=8&max_elements=9&proxy=socks5://p:1080": {
			Addr: "h", DB: 1, Timeout: 1500 * time.Millisecond, DialTimeout: 2 * time.Second, KeepAlive: -time.Second, Conns: 3, Backlog: FailFast,
			MaxBacklog: 4, MaxBacklogBytes: 5, MaxInFlight: 6, MaxReply: 7, MaxDepth: 8, MaxElements: 9, Proxy: "socks5://p:1080"},
		"redis://h?mode=enabled&endpoint_type=external-fqdn&relaxed_timeout=1s&relaxed_window_max=2s&post_event_relaxed=-1s&hold_cap=3ms": {
			Addr: "h", Maintenance: Maintenance{Mode: Enabled, EndpointType: EndpointExternalFQDN, RelaxedTimeout: time.Second,
				RelaxedWindowMax: 2 * time.Second, PostEventRelaxed: -time.Second, HoldCap: 3 * time.Millisecond}},
		"redis://h?mode=disabled": {Addr: "h", Maintenance: Maintenance{Mode: Disabled}},
	} {
		got, err := ParseURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		} else if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
			t.Errorf("%s:\n got %s\nwant %s", raw, g, w)
		}
	}
	if o, err := ParseURL("rediss://h"); err != nil || o.TLS == nil || o.TLS.InsecureSkipVerify {
		t.Errorf("rediss:// gives %+v, %v, want TLS that verifies", o.TLS, err)
	}
	if o, err := ParseURL("redis://h"); err != nil || o.TLS != nil {
		t.Errorf("redis:// gives %+v, %v, want no TLS", o.TLS, err)
	}
}

func TestParseURLErrorsNeverHoldThePassword(t *testing.T) {
	for _, raw := range []string{
		"http://u:hunter2@h", "u:hunter2@h", "redis://u:hunter2%zz@h", "redis://u:hunter2@h:port", "redis://u:hunter2@h:0",
		"redis://u:hunter2@h/x", "redis://u:hunter2@h/-1", "redis://u:hunter2@h/1/2", "redis://u:hunter2@h?nosuch=1", "redis://u:hunter2@h?timeout=5",
		"redis://u:hunter2@h?db=x", "redis://u:hunter2@h?mode=sometimes", "redis://u:hunter2@h?%zz", "redis://u:hunter2@h?dialer=1",
		"redis://u:hunter2@h?tls=1", "redis://u:hunter2@h?network=udp", "redis://u:hunter2@[::1", "unix://u:hunter2@", "redis://u:hunter2@h?conns=-1",
		"redis://u:hunter2@h?proxy=http://p:1",
		// Passwords whose special characters were not escaped end up in other parts of the URL.
		"redis://u:1/hunter2@h", "redis://u:1#hunter2@h", "redis://u:1?hunter2@h", "redis://u:99999#hunter2@h", "redis://u/hunter2@h:1", "redis://u:hunter2/x@h",
		"redis://u:hunter2#@h:1", "unix://u:1/hunter2@/tmp/s", "redis://u:hunter2 x@h",
	} {
		_, err := ParseURL(raw)
		if err == nil {
			if !strings.ContainsAny(raw[len("redis://u:"):], "/#?") { // those may have another meaning
				t.Errorf("%s is accepted", raw)
			}
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error holds the password: %v", raw, err)
		}
		if !strings.HasPrefix(err.Error(), "baton: ") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, digits := range []string{"redis://u:99999#x@h", "redis://u:99999/x@h"} {
		if _, err := ParseURL(digits); err != nil && strings.Contains(err.Error(), "99999") {
			t.Errorf("%s: the error holds the password: %v", digits, err)
		}
	}
}

// A45: the zero Options work. So that no real server is needed here, one is given by a Dialer.
func TestCaseA45ZeroOptionsWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := memoryServer(t, batontest.WithAddr("127.0.0.1:6379"))
		c := dialOptions(t, Options{Dialer: s.Dial})
		if got, err := c.Do(background, "PING").Text(); got != "PONG" || err != nil {
			t.Errorf("PING: %q, %v", got, err)
		}
	})
}

// --- the handshake ---

// dialScript dials a scripted server on which every connection answers a, and closes the client at once if that succeeds.
// sent is what was written, one string a write.
func dialScript(t *testing.T, o Options, a answers) (sent []string, err error) {
	t.Helper()
	s := newScript(t)
	s.attend(func(p *peer) { p.serve(a.to) })
	var r *recorder
	o.Dialer = through(s.dial, func(nc net.Conn) net.Conn { r = &recorder{Conn: nc}; return r })
	o.Addr = cmp.Or(o.Addr, "10.9.0.1:6379")
	ctx, cancel := context.WithTimeout(background, time.Second)
	defer cancel()
	c, err := Dial(ctx, o)
	if err == nil {
		defer c.Close()
	}
	return r.written(), err
}

const (
	setInfo = "CLIENT SETINFO LIB-NAME baton | CLIENT SETINFO LIB-VER " + libVersion
	optIn   = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip"
)

func TestHandshakeIsWrittenInTheseSteps(t *testing.T) {
	credentials := func(context.Context) (string, string, error) { return "bob", "fresh", nil }
	for _, c := range []struct {
		name string
		o    Options
		a    answers
		want []string
	}{
		{"bare", Options{}, nil, []string{"HELLO 3", setInfo, optIn + " | PING"}},
		{"a user and a password", Options{Username: "alice", Password: "secret"}, nil, []string{"HELLO 3 AUTH alice secret", setInfo, optIn + " | PING"}},
		{"a password alone (E4, D7)", Options{Password: "secret"}, nil, []string{"HELLO 3 AUTH default secret", setInfo, optIn + " | PING"}},
		{"credentials in place of both", Options{Username: "alice", Password: "old", Credentials: credentials}, nil,
			[]string{"HELLO 3 AUTH bob fresh", setInfo, optIn + " | PING"}},
		{"a name", Options{ClientName: "me"}, nil, []string{"HELLO 3 SETNAME me", setInfo, optIn + " | PING"}},
		{"everything", Options{Password: "secret", ClientName: "me", DB: 3}, nil,
			[]string{"HELLO 3 AUTH default secret SETNAME me", setInfo + " | SELECT 3", optIn + " | PING"}},
		{"disabled (D3)", Options{Maintenance: Maintenance{Mode: Disabled}}, nil, []string{"HELLO 3", setInfo, "PING"}},
		{"enabled", Options{Maintenance: Maintenance{Mode: Enabled}}, nil, []string{"HELLO 3", setInfo, optIn + " | PING"}},
		{"no HELLO (A44, D5)", Options{Username: "alice", Password: "secret", ClientName: "me", DB: 3}, answers{"HELLO": "-ERR unknown command 'HELLO'\r\n"},
			[]string{"HELLO 3 AUTH alice secret SETNAME me", "AUTH alice secret", "CLIENT SETNAME me", setInfo + " | SELECT 3", "PING"}},
		{"no HELLO, a password alone, before there were users", Options{Password: "secret"}, answers{"HELLO": "-ERR unknown command `HELLO`, with args\r\n"},
			[]string{"HELLO 3 AUTH default secret", "AUTH secret", setInfo, "PING"}},
		{"NOPROTO", Options{}, answers{"HELLO": "-NOPROTO unsupported protocol version\r\n"}, []string{"HELLO 3", setInfo, "PING"}},
		{"NOPERM on HELLO (D4)", Options{Username: "alice", Password: "secret"}, answers{"HELLO": "-NOPERM this user has no permissions to run the 'hello' command\r\n"},
			[]string{"HELLO 3 AUTH alice secret", "AUTH alice secret", setInfo, "PING"}},
		{"no HELLO, disabled", Options{Maintenance: Maintenance{Mode: Disabled}}, answers{"HELLO": "-ERR unknown command 'HELLO'\r\n"},
			[]string{"HELLO 3", setInfo, "PING"}},
		{"HELLO answered with protocol 2, as a map", Options{}, answers{"HELLO": "%2\r\n+server\r\n+redis\r\n+proto\r\n:2\r\n"}, []string{"HELLO 3", setInfo, "PING"}},
		{"HELLO answered with protocol 2, as an array", Options{}, answers{"HELLO": "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n"}, []string{"HELLO 3", setInfo, "PING"}},
		{"SETINFO refused", Options{DB: 1}, answers{"CLIENT SETINFO": "-ERR unknown subcommand\r\n"}, []string{"HELLO 3", setInfo + " | SELECT 1", optIn + " | PING"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				sent, err := dialScript(t, c.o, c.a)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(sent, c.want) {
					t.Errorf("the client wrote %q, want %q", sent, c.want)
				}
			})
		})
	}
}

// A handshake succeeds or fails with the error that the server gave, naming the step, whatever the mode; and never
// hides credentials that are wrong, nor shows right ones.
func TestHandshakeAnswers(t *testing.T) {
	const any, auto, disabled, enabled = "auto disabled enabled", "auto", "disabled", "enabled"
	const ok = "ok"
	for _, c := range []struct {
		name  string
		modes string
		a     answers
		want  string // in the error; or ok
		code  string // of the *ServerError
	}{
		{"A43 opt-in unknown", "auto disabled", answers{"CLIENT MAINT": "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"}, ok, ""},
		{"A43 opt-in unknown, demanded", enabled, answers{"CLIENT MAINT": "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"}, "MAINT_NOTIFICATIONS", "ERR"},
		{"opt-in disabled on the server", auto, answers{"CLIENT MAINT": "-ERR maintenance notifications are disabled on this server\r\n"}, ok, ""},
		{"opt-in disabled on the server, demanded", enabled, answers{"CLIENT MAINT": "-ERR maintenance notifications are disabled on this server\r\n"}, "disabled on this server", "ERR"},
		{"D1 no CLIENT command (a proxy)", "auto disabled", answers{"CLIENT": "-ERR unknown command 'client'\r\n"}, ok, ""},
		{"no CLIENT command, demanded", enabled, answers{"CLIENT": "-ERR unknown command 'client'\r\n"}, "MAINT_NOTIFICATIONS", "ERR"},
		{"opt-in refused to this user", auto, answers{"CLIENT MAINT": "-NOPERM no\r\n"}, ok, ""},
		{"opt-in refused to this user, demanded", enabled, answers{"CLIENT MAINT": "-NOPERM no\r\n"}, "MAINT_NOTIFICATIONS", "NOPERM"},
		{"opt-in refused as a blob error", auto, answers{"CLIENT MAINT": "!9\r\nERR never\r\n"}, ok, ""},
		{"A44 D5 no HELLO", "auto disabled", answers{"HELLO": "-ERR unknown command 'HELLO'\r\n"}, ok, ""},
		{"A44 D5 no HELLO, demanded", enabled, answers{"HELLO": "-ERR unknown command 'HELLO'\r\n"}, "HELLO", "ERR"},
		{"D4 HELLO not allowed, demanded", enabled, answers{"HELLO": "-NOPERM this user has no permissions to run the 'hello' command\r\n"}, "HELLO", "NOPERM"},
		{"D5 protocol 3 unknown, demanded", enabled, answers{"HELLO": "-NOPROTO sorry\r\n"}, "HELLO", "NOPROTO"},
		{"protocol 2 came back, demanded", enabled, answers{"HELLO": "%1\r\n+proto\r\n:2\r\n"}, "protocol 2", ""},
		{"protocol 2 came back", "auto disabled", answers{"HELLO": "%1\r\n+proto\r\n:2\r\n"}, ok, ""},
		{"D6 wrong password", any, answers{"HELLO": "-WRONGPASS invalid username-password pair or user is disabled.\r\n"}, "HELLO", "WRONGPASS"},
		{"D7 no credentials", any, answers{"HELLO": "-NOAUTH HELLO must be called with the client already authenticated\r\n"}, "HELLO", "NOAUTH"},
		{"no HELLO, and no credentials", "auto disabled", answers{"HELLO": "-ERR unknown command 'HELLO'\r\n", "": "-NOAUTH Authentication required.\r\n"}, "Authentication required", "NOAUTH"},
		{"no HELLO, wrong password", "auto disabled", answers{"HELLO": "-ERR unknown command 'HELLO'\r\n", "AUTH": "-WRONGPASS no\r\n"}, "AUTH", "WRONGPASS"},
		{"PING not allowed", any, answers{"PING": "-NOPERM this user has no permissions to run the 'ping' command\r\n"}, "PING", "NOPERM"},
		{"SELECT refused", any, answers{"SELECT": "-ERR DB index is out of range\r\n"}, "SELECT", "ERR"},
		{"the server is full", any, answers{"HELLO": "-ERR max number of clients reached\r\n", "": hangUp}, "max number of clients reached", "ERR"},
		{"protected mode", any, answers{"HELLO": "-DENIED Redis is running in protected mode\r\n", "": hangUp}, "protected mode", "DENIED"},
		{"B15 a status in place of HELLO's map", any, answers{"HELLO": "+OK\r\n"}, "HELLO", ""},
		{"B15 a reply too many before HELLO's", any, answers{"HELLO": "+OK\r\n" + helloThree}, "HELLO", ""},
		{"B15 an error too many before HELLO's", any, answers{"HELLO": "-ERR what?\r\n" + helloThree}, "", ""},
		{"a reply too many behind HELLO's", any, answers{"HELLO": helloThree + "+OK\r\n"}, "", ""},
		{"a reply too many behind SETINFO's", any, answers{"CLIENT SETINFO LIB-VER": "+OK\r\n+OK\r\n"}, "", ""},
		{"a PONG too many behind SETINFO's", any, answers{"CLIENT SETINFO LIB-VER": "+OK\r\n+PONG\r\n"}, "", ""},
		{"B15 a reply too many behind the PONG", any, answers{"PING": "+PONG\r\n+stray\r\n"}, "stray", ""},
		{"an error too many behind the PONG", any, answers{"PING": "+PONG\r\n-ERR stray\r\n"}, "stray", ""},
		{"garbage behind the PONG", any, answers{"PING": "+PONG\r\nHTTP/1.1 400\r\n"}, "protocol error", ""},
		{"HELLO answered with an integer", any, answers{"HELLO": ":3\r\n"}, "HELLO", ""},
		{"HELLO answered with null", any, answers{"HELLO": "_\r\n"}, "HELLO", ""},
		{"HELLO answered with an array of three", any, answers{"HELLO": "*3\r\n+proto\r\n:3\r\n+x\r\n"}, "HELLO", ""},
		{"HELLO answered with a map without proto", any, answers{"HELLO": "%1\r\n+server\r\n+redis\r\n"}, "HELLO", ""},
		{"HELLO answered with an empty map", any, answers{"HELLO": "%0\r\n"}, "HELLO", ""},
		{"HELLO answered with a map of protocol 4", any, answers{"HELLO": "%1\r\n+proto\r\n:4\r\n"}, "HELLO", ""},
		{"HELLO answered with a map keyed by arrays", any, answers{"HELLO": "%1\r\n*1\r\n+proto\r\n:3\r\n"}, "HELLO", ""},
		{"HELLO answered in an array, protocol 3", any, answers{"HELLO": "*2\r\n+proto\r\n:3\r\n"}, ok, ""},
		{"HTTP", any, answers{"HELLO": "HTTP/1.1 400 Bad Request\r\n\r\n"}, `"HTTP/1.1 400`, ""},
		{"PING answered with something else", any, answers{"PING": "$3\r\nfoo\r\n"}, `"foo"`, ""},
		{"PING answered with a bulk PONG", any, answers{"PING": "$4\r\nPONG\r\n"}, ok, ""},
		{"PING answered with null", any, answers{"PING": "_\r\n"}, "PING", ""},
		{"closed at HELLO", any, answers{"HELLO": hangUp}, "HELLO", ""},
		{"closed at SETINFO", any, answers{"CLIENT SETINFO": hangUp}, "EOF", ""},
		{"closed at PING", any, answers{"PING": hangUp}, "PING", ""},
	} {
		for mode, name := range []string{auto, enabled, disabled} {
			if !strings.Contains(c.modes, name) {
				continue
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					o := Options{Username: "alice", Password: "hunter2", DB: 1, Maintenance: Maintenance{Mode: Mode(mode)}}
					_, err := dialScript(t, o, c.a)
					var s *ServerError
					switch {
					case c.want == ok:
						if err != nil {
							t.Errorf("the dial failed: %v", err)
						}
						return
					case err == nil:
						t.Fatal("the dial succeeded")
					case !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "10.9.0.1:6379"):
						t.Errorf("the error does not say %q, or where: %v", c.want, err)
					case c.code != "" && (!errors.As(err, &s) || s.Code != c.code):
						t.Errorf("the error is no *ServerError with %s: %v", c.code, err)
					case MaybeExecuted(err):
						t.Errorf("a dial was maybe executed: %v", err)
					}
					if strings.Contains(err.Error(), "hunter2") {
						t.Errorf("the error holds the password: %v", err)
					}
				})
			})
		}
	}
}

// Redis before 6 repeats the arguments of a command that it does not know.
func TestHandshakeErrorNeverHoldsThePassword(t *testing.T) {
	for name, a := range map[string]answers{
		"HELLO": {"HELLO": "-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `alice`, `hunter2`, \r\n"},
		"AUTH": {"HELLO": "-ERR unknown command 'HELLO'\r\n",
			"AUTH": "-ERR unknown command 'AUTH', with args beginning with: 'alice' 'hunter2' \r\n"},
	} {
		for _, mode := range []Mode{Auto, Enabled} {
			bubble(t, func(t *testing.T) {
				_, err := dialScript(t, Options{Username: "alice", Password: "hunter2", Maintenance: Maintenance{Mode: mode}}, a)
				if err != nil && strings.Contains(err.Error(), "hunter2") {
					t.Errorf("%s, mode %d: the error holds the password: %v", name, mode, err)
				}
			})
		}
	}
}

// B8: a push can come at every place of the handshake, and is neither taken for an answer nor lost.
func TestCaseB8PushesInTheHandshake(t *testing.T) {
	const unknown, moving = ">2\r\n$3\r\nfoo\r\n_\r\n", ">4\r\n$6\r\nMOVING\r\n:7\r\n:15\r\n$13\r\n10.9.0.2:6379\r\n"
	for name, a := range map[string]answers{
		"before HELLO's answer":       {"HELLO": unknown + moving + helloThree},
		"behind HELLO's answer":       {"HELLO": helloThree + moving},
		"between the SETINFOs":        {"CLIENT SETINFO LIB-NAME": "+OK\r\n" + moving},
		"before the opt-in's answer":  {"CLIENT MAINT": moving + "+OK\r\n"},
		"behind the opt-in's answer":  {"CLIENT MAINT": "+OK\r\n" + moving + unknown},
		"before the PONG":             {"PING": unknown + moving + "+PONG\r\n"},
		"right behind the PONG":       {"PING": "+PONG\r\n" + moving},
		"unknown ones behind it, too": {"PING": "+PONG\r\n" + unknown + moving + unknown},
	} {
		for _, chunk := range []int{0, 1} {
			t.Run(fmt.Sprint(name, "/chunk=", chunk), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					j := &journal{}
					s := newScript(t)
					s.attend(func(p *peer) {
						if p.addr == "10.9.0.2:6379" {
							p.serve(answers(nil).to) // the successor repeats nothing
						}
						p.serve(a.to)
					})
					dial := through(s.dial, func(nc net.Conn) net.Conn { return &chunked{nc, chunk} })
					c := dialOptions(t, Options{Addr: "10.9.0.1:6379", Dialer: dial, OnEvent: j.add})
					time.Sleep(5 * time.Second)
					if n := j.of(EventNotification); len(n) != 1 || n[0].Seq != 7 || n[0].Successor != "10.9.0.2:6379" {
						t.Errorf("5 s later the notifications are %v, want the one MOVING", n)
					}
					if n := j.count(EventPromoted); n != 1 {
						t.Errorf("%d handoffs within 5 s, want 1", n)
					}
					if got, err := c.Do(background, "ECHO", "hello").Text(); got != "hello" || err != nil {
						t.Errorf("ECHO hello: %q, %v", got, err)
					}
				})
			})
		}
	}
}

// chunked reads at most n bytes at a time; 0 is no limit.
type chunked struct {
	net.Conn
	n int
}

func (c *chunked) Read(b []byte) (int, error) {
	if c.n > 0 && len(b) > c.n {
		b = b[:c.n]
	}
	return c.Conn.Read(b)
}

// The type of endpoint that is asked for depends on the address of the live socket and on TLS.
func TestEndpointTypeFollowsTheLiveSocket(t *testing.T) {
	certificate, pool := batontest.SelfSigned("db")
	for _, c := range []struct{ addr, want string }{
		{"10.1.2.3:6379", "internal"},
		{"172.16.0.1:6379", "internal"},
		{"172.31.255.254:6379", "internal"},
		{"172.32.0.1:6379", "external"},
		{"192.168.7.7:6379", "internal"},
		{"192.169.0.1:6379", "external"},
		{"127.0.0.1:6379", "internal"},
		{"127.9.9.9:6379", "internal"},
		{"169.254.1.1:6379", "internal"},
		{"100.64.0.1:6379", "internal"},
		{"100.127.255.255:6379", "internal"},
		{"100.63.255.255:6379", "external"},
		{"100.128.0.1:6379", "external"},
		{"54.78.247.156:12075", "external"},
		{"[::1]:6379", "internal"},
		{"[fc00::1]:6379", "internal"},
		{"[fdff::1]:6379", "internal"},
		{"[fe80::1]:6379", "internal"},
		{"[febf::1]:6379", "internal"},
		{"[fec0::1]:6379", "external"},
		{"[2001:db8::5]:12075", "external"},
		{"[::ffff:10.0.0.1]:6379", "internal"},
		{"[::ffff:54.78.247.156]:6379", "external"},
	} {
		for _, secure := range []bool{false, true} {
			var o Options
			if secure {
				o.TLS = &tls.Config{RootCAs: pool, ServerName: "db"}
			}
			want := c.want + map[bool]string{false: "-ip", true: "-fqdn"}[secure]
			bubble(t, func(t *testing.T) {
				if got := optInOf(t, c.addr, o, certificate); got != want {
					t.Errorf("%s, TLS %v: asked for %q, want %q", c.addr, secure, got, want)
				}
			})
		}
	}
	for name, remote := range map[string]net.Addr{"a unix socket": &net.UnixAddr{Net: "unix", Name: "/tmp/s"}, "no address": nil, "a name": named("pipe")} {
		bubble(t, func(t *testing.T) {
			if got := optInOf(t, "10.1.2.3:6379", Options{}, certificate, func(nc net.Conn) net.Conn { return &elsewhereConn{nc, remote} }); got != "none" {
				t.Errorf("%s: asked for %q, want none", name, got)
			}
		})
	}
	for e, want := range map[EndpointType]string{EndpointInternalIP: "internal-ip", EndpointInternalFQDN: "internal-fqdn",
		EndpointExternalIP: "external-ip", EndpointExternalFQDN: "external-fqdn", EndpointNone: "none"} {
		bubble(t, func(t *testing.T) {
			if got := optInOf(t, "10.1.2.3:6379", Options{Maintenance: Maintenance{EndpointType: e}}, certificate); got != want {
				t.Errorf("endpoint type %d: asked for %q, want %q", e, got, want)
			}
		})
	}
}

// optInOf dials a scripted server and returns the endpoint type that the opt-in asks for.
func optInOf(t *testing.T, addr string, o Options, certificate tls.Certificate, wraps ...func(net.Conn) net.Conn) (endpoint string) {
	s := newScript(t)
	s.attend(func(p *peer) {
		if o.TLS != nil {
			p.Conn = tls.Server(p.Conn, &tls.Config{Certificates: []tls.Certificate{certificate}})
			p.r.Reset(p.Conn)
		}
		p.serve(func(command string) string {
			if t, ok := strings.CutPrefix(command, "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type "); ok {
				endpoint = t
			}
			return answers(nil).to(command)
		})
	})
	o.Addr, o.Dialer = addr, s.dial
	for _, wrap := range wraps {
		o.Dialer = through(o.Dialer, wrap)
	}
	dialOptions(t, o).Close()
	return endpoint
}

// elsewhereConn says that its remote address is another.
type elsewhereConn struct {
	net.Conn
	remote net.Addr
}

func (c *elsewhereConn) RemoteAddr() net.Addr { return c.remote }

type named string

func (n named) Network() string { return string(n) }
func (n named) String() string  { return string(n) }

// --- connecting ---

// works says whether the client gets answers from s, on a connection that is told of maintenance.
func works(t *testing.T, c *Client, s *batontest.Server) {
	t.Helper()
	if got, err := c.Do(background, "ECHO", "hello").Text(); got != "hello" || err != nil {
		t.Errorf("ECHO hello: %q, %v", got, err)
	}
	if s.Conns() != 1 || s.OptedIn() != 1 {
		t.Errorf("the server has %d connections, %d of them told of maintenance, want one", s.Conns(), s.OptedIn())
	}
}

// leavesNothing runs f, outside of a bubble, and checks that no goroutine is left and no socket.
func leavesNothing(t *testing.T, f func(t *testing.T)) {
	before, files := runtime.NumGoroutine(), openFiles()
	t.Run("", f)
	settled(t, before)
	for end := time.Now().Add(5 * time.Second); openFiles() > files; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d files are open, there were %d before", openFiles(), files)
		}
	}
}

// openFiles counts this process's files; -1 where that cannot be told.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

func TestConnectingOverRealSockets(t *testing.T) {
	certificate, pool := batontest.SelfSigned("db.example.com", "127.0.0.1")
	_, stranger := batontest.SelfSigned("db.example.com", "127.0.0.1")
	secure := batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})
	path := filepath.Join(t.TempDir(), "redis.sock")
	for _, c := range []struct {
		name  string
		s     []batontest.Option
		o     Options
		fails string
	}{
		{"TCP", nil, Options{}, ""},
		{"a unix socket", []batontest.Option{batontest.Unix(path)}, Options{Network: "unix"}, ""},
		{"a unix socket with a user (A39)", []batontest.Option{batontest.Unix(path), batontest.WithUser("alice", "secret")},
			Options{Network: "unix", Username: "alice", Password: "secret"}, ""},
		{"TLS to the configured IP address", []batontest.Option{secure}, Options{TLS: &tls.Config{RootCAs: pool}}, ""},
		{"TLS with a ServerName", []batontest.Option{secure}, Options{TLS: &tls.Config{RootCAs: pool, ServerName: "db.example.com"}}, ""},
		{"TLS with a wrong name", []batontest.Option{secure}, Options{TLS: &tls.Config{RootCAs: pool, ServerName: "other.example.com"}}, "certificate"},
		{"TLS with a wrong authority", []batontest.Option{secure}, Options{TLS: &tls.Config{RootCAs: stranger}}, "certificate"},
		{"TLS to a server without", nil, Options{TLS: &tls.Config{RootCAs: pool}}, "TLS"},
		{"plain to a server with TLS", []batontest.Option{secure}, Options{}, "HELLO"},
		{"a wrong password", []batontest.Option{batontest.WithUser("alice", "secret")}, Options{Username: "alice", Password: "wrong"}, "WRONGPASS"},
		{"a refused dial", []batontest.Option{batontest.RefuseConnections()}, Options{}, "refused"},
		{"a stalled handshake", []batontest.Option{batontest.StallHandshakes()}, Options{DialTimeout: 50 * time.Millisecond}, "HELLO"},
		{"a stalled TLS handshake", []batontest.Option{secure, batontest.StallHandshakes()},
			Options{TLS: &tls.Config{RootCAs: pool}, DialTimeout: 50 * time.Millisecond}, "TLS handshake"},
	} {
		t.Run(c.name, func(t *testing.T) {
			leavesNothing(t, func(t *testing.T) {
				s := batontest.NewServer(c.s...)
				defer s.Close()
				c.o.Addr = s.Addr()
				client, err := Dial(background, c.o)
				if c.fails == "" {
					if err != nil {
						t.Fatal(err)
					}
					works(t, client, s)
					client.Close()
				} else if err == nil || !strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "secret") {
					t.Errorf("the error does not say %q: %v", c.fails, err)
				}
				var v *tls.CertificateVerificationError
				if strings.Contains(c.fails, "certificate") && !errors.As(err, &v) {
					t.Errorf("no *tls.CertificateVerificationError: %v", err)
				}
				if c.fails == "refused" && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("no ECONNREFUSED: %v", err)
				}
				if c.o.DialTimeout > 0 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("no DeadlineExceeded: %v", err)
				}
			})
		})
	}
}

// socks5 is a small SOCKS5 proxy on loopback. It knows one user, if pass is not empty, and sends everybody to target.
func socks5(t *testing.T, target, user, pass string, asked *atomic.Value) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	serve := func(nc net.Conn) error {
		defer nc.Close()
		read := func(n int) []byte {
			b := make([]byte, n)
			if _, e := io.ReadFull(nc, b); e != nil {
				err = e
			}
			return b
		}
		if head := read(2); head[0] != 5 || len(read(int(head[1]))) == 0 {
			return errors.New("not SOCKS5")
		}
		if pass == "" {
			nc.Write([]byte{5, 0})
		} else {
			nc.Write([]byte{5, 2})
			u := read(int(read(2)[1]))
			p := read(int(read(1)[0]))
			if string(u) != user || string(p) != pass {
				nc.Write([]byte{1, 1})
				return nil
			}
			nc.Write([]byte{1, 0})
		}
		var host string
		switch head := read(4); head[3] {
		case 1:
			host = net.IP(read(4)).String()
		case 3:
			host = string(read(int(read(1)[0])))
		case 4:
			host = net.IP(read(16)).String()
		}
		port := read(2)
		asked.Store(net.JoinHostPort(host, strconv.Itoa(int(port[0])<<8|int(port[1]))))
		up, err := net.Dial("tcp", target)
		if err != nil {
			nc.Write([]byte{5, 5, 0, 1, 0, 0, 0, 0, 0, 0}) // connection refused
			return nil
		}
		defer up.Close()
		nc.Write([]byte{5, 0, 0, 1, 127, 0, 0, 1, 0, 1})
		go func() { io.Copy(struct{ io.Writer }{up}, struct{ io.Reader }{nc}); up.Close() }() // without splice, whose pipes stay open
		io.Copy(struct{ io.Writer }{nc}, struct{ io.Reader }{up})
		return nil
	}
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go serve(nc)
		}
	}()
	return l.Addr().String()
}

func TestConnectingThroughAProxy(t *testing.T) {
	for _, c := range []struct{ name, at, user, pass, scheme, fails string }{
		{"without a user", "", "", "", "socks5", ""},
		{"with a user", "u:secret@", "u", "secret", "socks5", ""},
		{"with a wrong password", "u:secret@", "u", "other", "socks5", "proxy"},
		{"that is none we know", "u:secret@", "", "", "http", "socks5://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			leavesNothing(t, func(t *testing.T) {
				var endpoint, asked atomic.Value
				s := batontest.NewServer(batontest.OnCommand(func(_ int, args []string) {
					if len(args) == 5 && strings.EqualFold(args[1], "MAINT_NOTIFICATIONS") {
						endpoint.Store(args[4])
					}
				}))
				defer s.Close()
				proxy := socks5(t, s.Addr(), c.user, c.pass, &asked)
				client, err := Dial(background, Options{Addr: "db.example.com:7000", Proxy: c.scheme + "://" + c.at + proxy})
				if c.fails != "" {
					if err == nil || !strings.Contains(err.Error(), c.fails) && !strings.Contains(err.Error(), "socks") || strings.Contains(err.Error(), "secret") {
						t.Errorf("the error does not say %q: %v", c.fails, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				works(t, client, s)
				client.Close()
				if asked.Load() != "db.example.com:7000" {
					t.Errorf("the proxy was asked for %v, want the name, which is its to look up", asked.Load())
				}
				if endpoint.Load() != "none" {
					t.Errorf("endpoint type %v behind a proxy, want none", endpoint.Load())
				}
			})
		})
	}
	leavesNothing(t, func(t *testing.T) { // a proxy that accepts and says nothing
		s := batontest.NewServer(batontest.StallHandshakes())
		defer s.Close()
		_, err := Dial(background, Options{Addr: "db:7000", Proxy: "socks5://" + s.Addr(), DialTimeout: 50 * time.Millisecond})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a stalled proxy: %v, want DeadlineExceeded", err)
		}
	})
}

// nameServer is a resolver that answers every question about a name with the addresses that lookup gives, all in memory.
func nameServer(lookup func(name string) []string) *net.Resolver {
	serve := func(nc net.Conn) {
		defer nc.Close()
		for {
			var size [2]byte
			if _, err := io.ReadFull(nc, size[:]); err != nil {
				return
			}
			raw := make([]byte, int(size[0])<<8|int(size[1]))
			if _, err := io.ReadFull(nc, raw); err != nil {
				return
			}
			var q dnsmessage.Message
			if err := q.Unpack(raw); err != nil {
				return
			}
			q.Response, q.Additionals = true, nil
			addrs := lookup(strings.TrimSuffix(q.Questions[0].Name.String(), "."))
			if addrs == nil {
				q.RCode = dnsmessage.RCodeNameError
			}
			for _, a := range addrs {
				ip := netip.MustParseAddr(a)
				head := dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Type: q.Questions[0].Type, Class: dnsmessage.ClassINET, TTL: 5}
				switch {
				case ip.Is4() && head.Type == dnsmessage.TypeA:
					q.Answers = append(q.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: ip.As4()}})
				case ip.Is6() && head.Type == dnsmessage.TypeAAAA:
					q.Answers = append(q.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
				}
			}
			out, err := q.Pack()
			if err != nil {
				panic(err)
			}
			nc.Write(append([]byte{byte(len(out) >> 8), byte(len(out))}, out...))
		}
	}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		client, server := batontest.Pipe() // no net.PacketConn: the resolver speaks DNS as over TCP
		go serve(server)
		return client, nil
	}}
}

func TestADialerWithoutAResolverIsGivenTheName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		s.connect(Options{Addr: "db.example.com:7000"})
		if got := s.dialled(); !slices.Equal(got, []string{"db.example.com:7000"}) {
			t.Errorf("the Dialer was given %q", got)
		}
	})
}

// G2: every dial resolves afresh, and tries what the name stands for, one address after the other.
func TestCaseG2ADialerWithAResolverIsGivenAddresses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var addrs atomic.Value
		addrs.Store([]string{"10.9.0.1"})
		s := newScript(t)
		s.fail = func(addr string) error {
			if addr == "10.9.0.2:7000" || addr == "[2001:db8::9]:7000" {
				return syscall.ECONNREFUSED
			}
			return nil
		}
		c, p := s.connect(Options{Addr: "db.example.com:7000", KeepAlive: -1, Resolver: nameServer(func(name string) []string {
			if name != "db.example.com" {
				return nil
			}
			return addrs.Load().([]string)
		})})
		time.Sleep(time.Minute)
		addrs.Store([]string{"10.9.0.2", "2001:db8::9", "10.9.0.3"})
		p.Close()
		q := s.accept()
		q.handshake()
		if got := s.dialled(); got[0] != "10.9.0.1:7000" || got[len(got)-1] != "10.9.0.3:7000" {
			t.Errorf("the Dialer was given %q", got)
		}
		reply := later(func() Reply { return c.Do(background, "GET", "k") })
		q.expects("GET k")
		q.says("+v\r\n")
		if got, err := reply().Text(); got != "v" || err != nil {
			t.Error(got, err)
		}
	})
}

// An address that does not answer must not take the time of those behind it, as with net.Dialer.
func TestADialerWithAResolverGetsPastAnAddressThatDoesNotAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := memoryServer(t, batontest.WithAddr("10.9.0.3:7000"))
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != s.Addr() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return s.Dial(ctx, network, addr)
		}
		c, err := Dial(background, Options{Addr: "db.example.com:7000", Dialer: dial,
			Resolver: nameServer(func(string) []string { return []string{"10.9.0.2", "10.9.0.3"} })})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
}

func TestANameThatCannotBeLookedUpIsADialError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for name, lookup := range map[string]func(string) []string{
			"unknown":         func(string) []string { return nil },
			"without address": func(string) []string { return []string{} },
			"slow":            func(string) []string { time.Sleep(time.Minute); return nil },
		} {
			start := time.Now()
			c, err := Dial(background, Options{Addr: "db.example.com:7000", Resolver: nameServer(lookup),
				Dialer: func(context.Context, string, string) (net.Conn, error) { panic("nothing to dial") }})
			var d *net.DNSError
			if err == nil || c != nil || !errors.As(err, &d) || time.Since(start) > 5*time.Second {
				t.Errorf("%s: %v, %v after %v", name, c, err, time.Since(start))
			}
			if name == "slow" && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("slow: %v is no DeadlineExceeded", err)
			}
			time.Sleep(2 * time.Minute) // for the name server
		}
	})
}

// A51: no name is looked up but to be dialled, in no mode.
func TestCaseA51NoLookupForTheEndpointType(t *testing.T) {
	for _, mode := range []Mode{Auto, Enabled, Disabled} {
		bubble(t, func(t *testing.T) {
			lookups := 0
			s := memoryServer(t)
			c := dialMemory(t, s, func(o *Options) {
				o.Maintenance.Mode = mode
				o.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					lookups++
					<-ctx.Done()
					return nil, ctx.Err()
				}}
			})
			if err := c.Do(background, "PING").Err(); err != nil || lookups > 0 {
				t.Errorf("mode %d: %v, %d lookups", mode, err, lookups)
			}
		})
	}
}

// A dial that stalls at any step ends with DialTimeout, or with its context, says which step it was, and leaves nothing.
func TestADialThatStallsEndsInTime(t *testing.T) {
	stalls := map[string]func(t *testing.T, o *Options){
		"connect": func(t *testing.T, o *Options) {
			o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		},
		"connect, deaf to its context": func(t *testing.T, o *Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				time.Sleep(time.Hour)
				client, server := batontest.Pipe()
				go func() {
					if _, err := server.Read(make([]byte, 1)); err != io.EOF {
						t.Errorf("the connection that came too late was not closed: %v", err)
					}
				}()
				return client, nil
			}
		},
		"credentials": func(t *testing.T, o *Options) {
			o.Credentials = func(ctx context.Context) (string, string, error) { <-ctx.Done(); return "", "", ctx.Err() }
		},
		"credentials, deaf to their context": func(t *testing.T, o *Options) {
			o.Credentials = func(context.Context) (string, string, error) { time.Sleep(time.Hour); return "", "", nil }
		},
		"TLS handshake": func(t *testing.T, o *Options) {
			s := newScript(t)
			s.attend(func(p *peer) { io.Copy(io.Discard, p) })
			o.Dialer, o.TLS = s.dial, &tls.Config{}
		},
	}
	for step, command := range map[string]string{"HELLO": "HELLO", "SETINFO": "CLIENT SETINFO", "SELECT": "SELECT", "PING": "PING", "opt-in": "CLIENT MAINT"} {
		for suffix, answer := range map[string]string{"": "", ", half of the answer": "%7\r\n+ser"} {
			stalls[step+suffix] = func(t *testing.T, o *Options) {
				s := newScript(t)
				s.attend(func(p *peer) { p.serve(answers{command: answer}.to) })
				o.Dialer = s.dial
				if step == "SELECT" {
					o.DB = 1
				}
			}
		}
		stalls[step+", pushes for ever"] = func(t *testing.T, o *Options) {
			s := newScript(t)
			s.attend(func(p *peer) {
				p.serve(func(c string) string {
					for strings.HasPrefix(c, command) {
						if _, err := io.WriteString(p, ">1\r\n+foo\r\n"); err != nil {
							break
						}
						time.Sleep(time.Millisecond)
					}
					return answers(nil).to(c)
				})
			})
			o.Dialer = s.dial
			if step == "SELECT" {
				o.DB = 1
			}
		}
	}
	for name, stall := range stalls {
		for _, how := range []string{"DialTimeout", "a deadline", "a cancellation"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					o := Options{Addr: "10.9.0.1:6379"}
					stall(t, &o)
					ctx, cancel := context.WithCancel(background)
					want, limit := context.DeadlineExceeded, 5*time.Second
					switch how {
					case "DialTimeout":
					case "a deadline":
						limit = time.Second
						ctx, cancel = context.WithTimeout(background, limit)
					case "a cancellation":
						limit, want = time.Second, context.Canceled
						time.AfterFunc(limit, cancel)
					}
					defer cancel()
					start := time.Now()
					c, err := Dial(ctx, o)
					if took := time.Since(start); took != limit {
						t.Errorf("it took %v, want %v", took, limit)
					}
					if c != nil || !errors.Is(err, want) {
						t.Errorf("%v, %v, want %v", c, err, want)
					}
					step, _, _ := strings.Cut(name, ",")
					if step = map[string]string{"connect": "dial", "opt-in": "PING"}[step]; step != "" && !strings.Contains(err.Error(), step) {
						t.Errorf("the error does not say %q: %v", step, err)
					}
					time.Sleep(2 * time.Hour) // for what was left behind to show itself
				})
			})
		}
	}
}

// D13, and LOADING: not ready means try again, at whichever step it is said, within DialTimeout.
func TestCaseD13NotReadyMeansTryAgain(t *testing.T) {
	for _, command := range []string{"HELLO", "SELECT", "PING"} {
		for _, raw := range []string{"-LOADING Redis is loading the dataset in memory\r\n", "-MASTERDOWN Link with MASTER is down\r\n", "-BUSY Redis is busy running a script\r\n"} {
			t.Run(command+raw[:5], func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s, start := newScript(t), time.Now()
					s.attend(func(p *peer) {
						p.serve(func(c string) string {
							if strings.HasPrefix(c, command) && time.Since(start) < 2*time.Second {
								return raw
							}
							return answers(nil).to(c)
						})
					})
					c := dialOptions(t, Options{Addr: "10.9.0.1:6379", DB: 1, Dialer: s.dial})
					if took := time.Since(start); took < 2*time.Second || took > 3*time.Second {
						t.Errorf("it took %v", took)
					}
					if n := len(s.dialled()); n < 3 || n > 12 {
						t.Errorf("%d dials within 2 s", n)
					}
					if err := c.Do(background, "PING").Err(); err != nil {
						t.Error(err)
					}
				})
				bubble(t, func(t *testing.T) { // it never becomes ready
					start := time.Now()
					s := newScript(t)
					s.attend(func(p *peer) { p.serve(answers{command: raw}.to) })
					_, err := Dial(background, Options{Addr: "10.9.0.1:6379", DB: 1, Dialer: s.dial})
					var server *ServerError
					if !errors.As(err, &server) || server.Code != raw[1:strings.Index(raw, " ")] || time.Since(start) > 5*time.Second {
						t.Errorf("%v after %v", err, time.Since(start))
					}
					ctx, cancel := context.WithTimeout(background, time.Second)
					defer cancel()
					if _, err = Dial(ctx, Options{Addr: "10.9.0.1:6379", DB: 1, Dialer: s.dial}); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("when ctx ran out: %v, want DeadlineExceeded as Dial's doc says", err)
					}
				})
			})
		}
	}
	bubble(t, func(t *testing.T) { // from a command it is an answer as any other
		s := newScript(t)
		s.attend(func(p *peer) { p.serve(answers{"GET": "-MASTERDOWN Link with MASTER is down\r\n"}.to) })
		c := dialOptions(t, Options{Addr: "10.9.0.1:6379", Dialer: s.dial})
		err := c.Do(background, "GET", "k").Err()
		var server *ServerError
		if !errors.As(err, &server) || server.Code != "MASTERDOWN" || MaybeExecuted(err) || len(s.dialled()) != 1 {
			t.Errorf("%v, %d dials", err, len(s.dialled()))
		}
	})
}

// --- commands ---

// scripted is a client of a scripted server on whose connections every command gets a's answer.
func scripted(t *testing.T, o Options, a answers) (*Client, *script) {
	t.Helper()
	s := newScript(t)
	s.attend(func(p *peer) { p.serve(a.to) })
	o.Addr, o.Dialer = cmp.Or(o.Addr, "10.9.0.1:6379"), s.dial
	return dialOptions(t, o), s
}

func TestArgumentsOfEveryTypeGoOverTheWire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, p := newScript(t).connect(Options{})
		reply := later(func() Reply {
			return c.Do(background, "SET", []byte("k\r\n\x00"), "", []byte(nil), int(-1), int8(-8), int16(16), int32(-32), int64(-1<<63), uint(1), uint8(8), uint16(16),
				uint32(32), uint64(1<<64-1), float32(0.1), 1e300, true, false)
		})
		p.expects("SET k\r\n\x00   -1 -8 16 -32 -9223372036854775808 1 8 16 32 18446744073709551615 0.1 1e+300 1 0")
		p.says("+OK\r\n")
		if err := reply().Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestArgumentsThatCannotBeSentSendNothing(t *testing.T) {
	type myString string
	bubble(t, func(t *testing.T) {
		c, p := newScript(t).connect(Options{})
		for name, args := range map[string][]any{
			"none": {}, "nil": {"GET", nil}, "a struct": {"GET", struct{}{}}, "a slice": {"GET", []string{"k"}}, "a pointer": {"GET", new(int)},
			"an error": {"GET", io.EOF}, "a duration": {"EXPIRE", "k", time.Second}, "a time": {"SET", "k", time.Now()}, "a type of one's own": {"GET", myString("k")},
			"complex": {"GET", 1i}, "a map": {"GET", map[string]string{}}, "the command's name is wrong": {nil}, "the last of many": {"MSET", "a", 1, "b", nil},
		} {
			dst := []byte("as it was")
			var b Batch
			b.Add("PING")
			b.Add(args...)
			b.Add("PING")
			_, batchErr := c.DoBatch(background, &b)
			dst, appendErr := c.DoAppend(background, dst, args...)
			for _, err := range []error{c.Do(background, args...).Err(), appendErr, batchErr} {
				if err == nil || MaybeExecuted(err) || !strings.HasPrefix(err.Error(), "baton: ") {
					t.Errorf("%s: %v", name, err)
				}
			}
			if string(dst) != "as it was" {
				t.Errorf("%s: DoAppend returned %q", name, dst)
			}
			b.Reset()
			if replies, err := c.DoBatch(background, &b); replies != nil || err != nil {
				t.Errorf("an empty batch: %v, %v", replies, err)
			}
		}
		go c.Do(background, "ECHO", "first")
		p.expects("ECHO first")
		if s := c.Stats(); s.InFlight != 1 || s.Backlog != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// What may be sent where is in the table rules of bridge.go, and once more here.
func TestWhatMayNotBeSentHereIsRefusedAndNothingSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, p := newScript(t).connect(Options{})
		for _, text := range []string{
			"SUBSCRIBE a", "PSUBSCRIBE a", "SSUBSCRIBE a", "UNSUBSCRIBE", "PUNSUBSCRIBE a", "SUNSUBSCRIBE a", "MONITOR", "SELECT 1", "AUTH p", "AUTH u p", "HELLO", "HELLO 3",
			"RESET", "QUIT", "MULTI", "EXEC", "DISCARD", "WATCH k", "UNWATCH", "READONLY", "READWRITE", "ASKING", "SYNC", "PSYNC ? -1", "REPLCONF ACK 1", "SCRIPT DEBUG SYNC",
			"CLIENT REPLY OFF", "CLIENT TRACKING ON", "CLIENT CACHING YES", "CLIENT SETNAME x", "CLIENT NO-EVICT ON", "CLIENT NO-TOUCH ON", "CLIENT MAINT_NOTIFICATIONS ON", "CLIENT CAPA redirect", "CLIENT IMPORT-SOURCE ON",
			"WAIT 1 0", "WAITAOF 1 0 0",
		} {
			for _, spelled := range []string{text, strings.ToLower(text), text[:1] + strings.ToLower(text[1:])} {
				var asStrings, asBytes []any
				for _, word := range strings.Fields(spelled) {
					asStrings, asBytes = append(asStrings, word), append(asBytes, []byte(word))
				}
				for _, args := range [][]any{asStrings, asBytes} {
					err := c.Do(background, args...).Err()
					_, appendErr := c.DoAppend(background, nil, args...)
					for _, err := range []error{err, appendErr} {
						if !errors.Is(err, ErrNotHere) || MaybeExecuted(err) || !strings.Contains(err.Error(), strings.Fields(text)[0]) {
							t.Errorf("%s: %v", spelled, err)
						}
					}
					if strings.HasPrefix(text, "WAIT") {
						continue // they may go in a batch, which has a connection of its own then
					}
					var b Batch
					b.Add("PING")
					b.Add(args...)
					if replies, err := c.DoBatch(background, &b); !errors.Is(err, ErrNotHere) || MaybeExecuted(err) || replies != nil {
						t.Errorf("%s in a batch: %v, %v", spelled, replies, err)
					}
				}
			}
		}
		if s := c.Stats(); s.Sent != 0 || s.InFlight != 0 || s.Backlog != 0 {
			t.Errorf("something was sent: %+v", s)
		}
		go c.Do(background, "PING")
		p.expects("PING")
	})
}

func TestWhatMayBeSentIsSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _ := scripted(t, Options{}, nil)
		for _, text := range []string{
			"CLIENT GETNAME", "CLIENT ID", "CLIENT", "client list", "CLIENT INFO", "CLIENT UNBLOCK 7", "CLIENT KILL ID 7", "PUBLISH a b", "SPUBLISH a b", "XREAD STREAMS s 0", "XREAD COUNT 1 STREAMS s 0",
			"XREAD STREAMS BLOCK 0", "XREAD STREAMS block s 0 0", "XREADGROUP GROUP g me STREAMS s >", "XREADGROUP GROUP g me STREAMS BLOCK >", "XREADGROUP GROUP block me STREAMS s >",
			"XREADGROUP GROUP g block STREAMS s >", "GET SELECT", "SET MULTI EXEC", "PUBSUB CHANNELS", "LPOP k", "LMPOP 1 k LEFT", "ZMPOP 1 k MIN", "EVAL x 0", "WAITFOR", "SELECTED",
			"A-VERY-LONG-COMMAND-NAME-THAT-NO-BUFFER-HOLDS-THAT-IS-MEANT-FOR-NAMES", "XREAD", "ACL WHOAMI", "COMMAND", "PING",
		} {
			var args []any
			for _, word := range strings.Fields(text) {
				args = append(args, word)
			}
			if err := c.Do(background, args...).Err(); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	})
}

func TestDoAppend(t *testing.T) {
	big := strings.Repeat("x", 200<<10)
	for _, c := range []struct {
		raw, want string
		fails     bool
	}{
		{"$5\r\nhello\r\n", "hello", false},
		{"$0\r\n\r\n", "", false},
		{"+OK\r\n", "OK", false},
		{"=9\r\ntxt:hello\r\n", "hello", false},
		{"(12345678901234567890123\r\n", "12345678901234567890123", false},
		{"|1\r\n+ttl\r\n:3\r\n$5\r\nhello\r\n", "hello", false},
		{"$204800\r\n" + big + "\r\n", big, false},
		{"_\r\n", "", true},
		{"$-1\r\n", "", true},
		{":1\r\n", "", true},
		{"*1\r\n+a\r\n", "", true},
		{"#t\r\n", "", true},
		{"-WRONGTYPE no\r\n", "", true},
		{"!5\r\nERR x\r\n", "", true},
	} {
		bubble(t, func(t *testing.T) {
			client, _ := scripted(t, Options{}, answers{"GET": c.raw})
			for _, room := range []int{0, 3, 1 << 20} {
				dst := append(make([]byte, 0, room+3), "as "...)
				got, err := client.DoAppend(background, dst, "GET", "k")
				if (err != nil) != c.fails || string(got) != "as "+c.want || MaybeExecuted(err) {
					t.Errorf("%.40q: %.40q, %v", c.raw, got, err)
				}
				if room >= len(c.want) && len(got) > 0 && &got[0] != &dst[0] {
					t.Errorf("%.40q: dst had room, and was not used", c.raw)
				}
			}
		})
	}
}

// dst belongs to the caller again when DoAppend has returned, whenever the reply comes.
func TestDoAppendDoesNotWriteToDstAfterItsReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, p := newScript(t).connect(Options{})
		for i := range 200 {
			dst := make([]byte, 0, 64)
			ctx, cancel := context.WithCancel(background)
			result := later(func() error {
				got, err := c.DoAppend(ctx, dst, "GET", "k")
				if err == nil && string(got) != "hello" || err != nil && len(got) > 0 {
					t.Errorf("%q, %v", got, err)
				}
				clear(dst[:cap(dst)])
				return err
			})
			p.expects("GET k")
			if i%2 == 0 {
				cancel()
				err := result()
				if !errors.Is(err, context.Canceled) || !MaybeExecuted(err) {
					t.Fatal(err)
				}
				p.says("$5\r\nhello\r\n")
				synctest.Wait()
			} else { // both at once
				go cancel()
				p.says("$5\r\nhello\r\n")
				result()
				synctest.Wait()
			}
			if s := string(dst[:cap(dst)]); strings.Trim(s, "\x00") != "" {
				t.Fatalf("dst was written to: %q", s)
			}
			cancel()
		}
	})
}

// C4, C6: a batch gets as many replies as it has commands, in their order, errors among them.
func TestCaseC4C6ABatchGetsAllItsReplies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _ := scripted(t, Options{}, answers{"FAIL": "-ERR no\r\n", "HGETALL": "%1\r\n+a\r\n+b\r\n", "NULL": "_\r\n"})
		var b Batch
		for round := range 3 {
			b.Reset()
			b.Add("FAIL")
			b.Add("ECHO", round)
			b.Add("FAIL")
			b.Add("NULL")
			b.Add("HGETALL", "h")
			if b.Len() != 5 {
				t.Fatalf("Len is %d", b.Len())
			}
			replies, err := c.DoBatch(background, &b)
			if err != nil || len(replies) != 5 {
				t.Fatal(replies, err)
			}
			text, _ := replies[1].Text()
			var s *ServerError
			if !errors.As(replies[0].Err(), &s) || text != strconv.Itoa(round) || replies[2].Err() == nil || !replies[3].IsNull() || replies[4].Kind() != KindMap {
				t.Errorf("%v", replies)
			}
			if MaybeExecuted(replies[0].Err()) {
				t.Error("a server's error was maybe executed")
			}
			if got, _ := c.Do(background, "ECHO", "next").Text(); got != "next" {
				t.Errorf("the next command read %q", got)
			}
		}
		b.Reset()
		b.Add("HGETALL", "h")
		if replies, err := c.DoBatch(background, &b); err != nil || len(replies) != 1 || replies[0].Kind() != KindMap {
			t.Errorf("a batch of one: %v, %v", replies, err)
		}
		if replies, err := c.DoBatch(background, &Batch{}); err != nil || len(replies) != 0 {
			t.Errorf("an empty batch: %v, %v", replies, err)
		}
	})
}

// A batch is the caller's again after the call, also when its caller left: what is then added does not reach the server.
func TestABatchMayBeReusedAfterTheCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{})
		p.Close() // so that the batch waits in the backlog
		synctest.Wait()
		var b Batch
		b.Add("SET", "a", 1)
		b.Add("SET", "b", 2)
		ctx, cancel := context.WithCancel(background)
		result := later(func() error { _, err := c.DoBatch(ctx, &b); return err })
		p = s.accept()
		synctest.Wait()
		p.handshake()
		p.expects("SET a 1")
		cancel()
		if err := result(); !MaybeExecuted(err) {
			t.Error(err)
		}
		b.Reset()
		b.Add("SET", "x", 9)
		p.expects("SET b 2")
	})
}

// When a connection is cut in the middle of a batch, the replies that came are kept.
func TestABatchThatIsCutKeepsTheRepliesThatCame(t *testing.T) {
	for replies := range 5 {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{})
			var b Batch
			for i := range 4 {
				b.Add("ECHO", i)
			}
			got := batchLater(c, &b)
			p.expects("ECHO 0", "ECHO 1", "ECHO 2", "ECHO 3")
			for i := range replies {
				p.says(fmt.Sprintf(":%d\r\n", i))
				synctest.Wait()
			}
			p.Close()
			r := got()
			switch {
			case replies == 4:
				if r.err != nil || len(r.replies) != 4 {
					t.Errorf("all came: %v", r)
				}
			case !MaybeExecuted(r.err) || errors.Is(r.err, io.EOF) == false:
				t.Errorf("%d came: the error is %v", replies, r.err)
			case replies > 0 && len(r.replies) != 4:
				t.Errorf("%d came: %v", replies, r.replies)
			}
			for i, reply := range r.replies {
				if n, err := reply.Int64(); i < replies && (err != nil || n != int64(i)) || i >= replies && !MaybeExecuted(err) {
					t.Errorf("%d came: reply %d is %v, %v", replies, i, n, err)
				}
			}
			s.accept()
		})
	}
}

// A caller who leaves in the middle of a batch's replies does not disturb anybody.
func TestABatchWhoseCallerLeavesInTheMiddle(t *testing.T) {
	for replies := range 4 {
		bubble(t, func(t *testing.T) {
			c, p := newScript(t).connect(Options{})
			var b Batch
			for i := range 4 {
				b.Add("ECHO", i)
			}
			ctx, cancel := context.WithCancel(background)
			got := later(func() error { _, err := c.DoBatch(ctx, &b); return err })
			p.expects("ECHO 0", "ECHO 1", "ECHO 2", "ECHO 3")
			for i := range replies {
				p.says(fmt.Sprintf(":%d\r\n", i))
			}
			synctest.Wait()
			cancel()
			if err := got(); !errors.Is(err, context.Canceled) || !MaybeExecuted(err) {
				t.Errorf("%v", err)
			}
			next := later(func() Reply { return c.Do(background, "ECHO", "next") })
			p.expects("ECHO next")
			for i := replies; i < 4; i++ {
				p.says(fmt.Sprintf(":%d\r\n", i))
			}
			p.says("+next\r\n")
			if got, err := next().Text(); got != "next" {
				t.Errorf("the next command read %q, %v", got, err)
			}
			if n := c.Stats().InFlight; n != 0 {
				t.Errorf("%d in flight", n)
			}
		})
	}
}

// MaybeExecuted is true of an error exactly if bytes of the command may have reached a server and no reply came.
func TestMaybeExecutedInEveryEnding(t *testing.T) {
	get := func(c *Client, ctx context.Context) func() error {
		return later(func() error { return c.Do(ctx, "GET", "k").Err() })
	}
	over, cancelled := context.WithCancel(background)
	cancelled()
	for _, c := range []struct {
		name  string
		o     Options
		end   func(t *testing.T, s *script, c *Client, p *peer) error
		is    error
		maybe bool
	}{
		{"the context was over before", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			return c.Do(over, "GET", "k").Err()
		}, context.Canceled, false},
		{"the client was closed before", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			c.Close()
			return c.Do(background, "GET", "k").Err()
		}, ErrClosed, false},
		{"the client was shut down before", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			c.Shutdown(background)
			return c.Do(background, "GET", "k").Err()
		}, ErrClosed, false},
		{"C11: time out in the backlog", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			p.Close()
			synctest.Wait()
			err := get(c, background)()
			if !strings.Contains(err.Error(), "never sent") {
				t.Errorf("the error does not say that it was never sent: %v", err)
			}
			return err
		}, ErrTimeout, false},
		{"cancelled in the backlog", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			p.Close()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			return get(c, ctx)()
		}, context.DeadlineExceeded, false},
		{"closed in the backlog", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			p.Close()
			synctest.Wait()
			err := get(c, background)
			synctest.Wait()
			c.Close()
			return err()
		}, ErrClosed, false},
		{"shut down in the backlog, for too long", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			p.Close()
			synctest.Wait()
			err := get(c, background)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			if err := c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Shutdown: %v", err)
			}
			return err()
		}, ErrClosed, false},
		{"the backlog was full", Options{MaxBacklog: 2}, func(t *testing.T, s *script, c *Client, p *peer) error {
			p.Close()
			synctest.Wait()
			get(c, background)
			get(c, background)
			synctest.Wait()
			return c.Do(background, "GET", "k").Err()
		}, ErrBacklogFull, false},
		{"FailFast without a connection", Options{Backlog: FailFast}, func(t *testing.T, s *script, c *Client, p *peer) error {
			p.Close()
			synctest.Wait()
			return c.Do(background, "GET", "k").Err()
		}, ErrNoConnection, false},
		{"FailFast, unwritten when the connection was lost", Options{Backlog: FailFast, MaxInFlight: 1}, func(t *testing.T, s *script, c *Client, p *peer) error {
			get(c, background)
			p.expects("GET k")
			err := get(c, background)
			synctest.Wait()
			p.Close()
			return err()
		}, ErrNoConnection, false},
		{"a server's error", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			err := get(c, background)
			p.expects("GET k")
			p.says("-LOADING wait\r\n")
			return err()
		}, nil, false},
		{"C15: cut off", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			err := get(c, background)
			p.expects("GET k")
			p.Close()
			return err()
		}, io.EOF, true},
		{"C7: reset", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			err := get(c, background)
			p.expects("GET k")
			p.Conn.(interface{ Reset() }).Reset()
			return err()
		}, syscall.ECONNRESET, true},
		{"cut off in the middle of the reply", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			err := get(c, background)
			p.expects("GET k")
			p.says("$5\r\nhel")
			p.Close()
			return err()
		}, io.EOF, true},
		{"half-closed by the server", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			err := get(c, background)
			p.expects("GET k")
			p.Conn.(interface{ CloseWrite() error }).CloseWrite()
			return err()
		}, io.EOF, true},
		{"timed out", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			return get(c, background)()
		}, ErrTimeout, true},
		{"cancelled in flight", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			ctx, cancel := context.WithCancel(background)
			err := get(c, ctx)
			p.expects("GET k")
			cancel()
			return err()
		}, context.Canceled, true},
		{"closed in flight", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			err := get(c, background)
			p.expects("GET k")
			c.Close()
			return err()
		}, ErrClosed, true},
		{"shut down in flight, for too long", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			err := get(c, background)
			p.expects("GET k")
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			c.Shutdown(ctx)
			return err()
		}, ErrClosed, true},
		{"answered with garbage", Options{}, func(t *testing.T, s *script, c *Client, p *peer) error {
			err := get(c, background)
			p.expects("GET k")
			p.says("HTTP/1.1 400 Bad Request\r\n")
			e := err()
			if !strings.Contains(e.Error(), "HTTP/1.1 400") {
				t.Errorf("the error does not say what was seen: %v", e)
			}
			return e
		}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newScript(t)
				client, p := s.connect(c.o)
				s.fail = func(string) error { return syscall.ECONNREFUSED }
				err := c.end(t, s, client, p)
				if err == nil || c.is != nil && !errors.Is(err, c.is) || MaybeExecuted(err) != c.maybe {
					t.Errorf("%v: maybe executed: %v, want %v and %v", err, MaybeExecuted(err), c.is, c.maybe)
				}
				if MaybeExecuted(fmt.Errorf("wrapped: %w", err)) != c.maybe {
					t.Errorf("wrapped, it is another")
				}
				if c.is != context.Canceled && errors.Is(err, context.Canceled) {
					t.Errorf("%v is Canceled, which nobody did", err)
				}
			})
		})
	}
	if MaybeExecuted(nil) || MaybeExecuted(io.EOF) {
		t.Error("nil, or somebody else's error, was maybe executed")
	}
}

// --- whose reply is whose ---

// C1, C3, C5, C16: a caller who leaves, by its context or its Timeout, leaves its place in line behind, and nobody reads
// somebody else's reply; the connection is not closed for it.
func TestCaseC1C3C5C16NobodyReadsSomebodyElsesReply(t *testing.T) {
	for _, o := range []Options{{}, {Timeout: 3 * time.Millisecond}, {Timeout: -1}, {MaxInFlight: 7}, {Conns: 3}, {Timeout: 8 * time.Millisecond, MaxInFlight: 3, MaxBacklog: 20}} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			s.attend(func(p *peer) {
				random := rand.New(rand.NewPCG(1, 2))
				p.serve(func(command string) string {
					if command != "PING" && !strings.HasPrefix(command, "CLIENT") && !strings.HasPrefix(command, "HELLO") && random.IntN(8) == 0 {
						time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
					}
					return strings.Repeat(">2\r\n+foo\r\n_\r\n", random.IntN(20)/19) + answers(nil).to(command)
				})
			})
			o.Addr, o.Dialer = "10.9.0.1:6379", s.dial
			c := dialOptions(t, o)
			var wg sync.WaitGroup
			var done, left, failed atomic.Int64
			for w := range 24 {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(7, uint64(w)))
					dst := make([]byte, 0, 64)
					for i := range 80 {
						ctx, cancel := context.WithCancel(background)
						switch random.IntN(4) {
						case 0:
							ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(2000))*time.Microsecond)
						case 1:
							yields := random.IntN(5)
							go func() {
								for range yields {
									runtime.Gosched()
								}
								cancel()
							}()
						}
						want, got := fmt.Sprintf("%d:%d", w, i), ""
						var err error
						commands := int64(1)
						switch random.IntN(3) {
						case 0:
							got, err = c.Do(ctx, "ECHO", want).Text()
						case 1:
							dst, err = c.DoAppend(ctx, dst[:0], "ECHO", want)
							got = string(dst)
						case 2:
							commands = 3
							var b Batch
							b.Add("ECHO", want)
							b.Add("SET", "k", "v")
							b.Add("ECHO", want)
							var replies []Reply
							if replies, err = c.DoBatch(ctx, &b); err == nil {
								first, _ := replies[0].Text()
								if got, err = replies[2].Text(); first != got {
									t.Errorf("a batch read %q and %q", first, got)
								}
							}
						}
						cancel()
						switch {
						case err == nil && got == want:
							done.Add(1)
						case err == nil:
							t.Errorf("the reply to %q is %q", want, got)
						case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrTimeout), errors.Is(err, ErrBacklogFull):
							left.Add(1)
							failed.Add(commands)
						default:
							t.Errorf("%q: %v", want, err)
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(20 * time.Second) // what is left is answered, and dropped
			if st := c.Stats(); st.InFlight != 0 || st.Backlog != 0 || st.Reconnects != 0 || st.Conns != max(o.Conns, 1) {
				t.Errorf("afterwards: %+v", st)
			} else if st.Sent != st.Answered || int64(st.Failed) > failed.Load() {
				t.Errorf("%d commands failed; %+v", failed.Load(), st)
			}
			if done.Load() == 0 || left.Load() == 0 {
				t.Errorf("%d succeeded and %d left: the test shows nothing", done.Load(), left.Load())
			}
		})
	}
}

// B3, B4, B5, B22: pushes before, between and behind replies, in one segment or byte by byte, are never taken for replies.
func TestCaseB3B5B22PushesAreNeverTakenForReplies(t *testing.T) {
	const invalidate, unknown, orphan = ">2\r\n$10\r\ninvalidate\r\n_\r\n", ">2\r\n$3\r\nfoo\r\n*1\r\n%1\r\n+a\r\n_\r\n", ">3\r\n$12\r\nsunsubscribe\r\n$8\r\nchannel1\r\n:0\r\n"
	for name, raw := range map[string]string{
		"before":             invalidate + "+one\r\n",
		"behind":             "+one\r\n" + invalidate,
		"both":               unknown + "+one\r\n" + invalidate,
		"many":               strings.Repeat(unknown+invalidate+orphan, 300) + "+one\r\n" + strings.Repeat(invalidate, 300),
		"B10 sunsubscribe":   orphan + "+one\r\n" + orphan,
		"B12 unsubscribe":    ">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n+one\r\n",
		"empty":              ">0\r\n+one\r\n>0\r\n",
		"of numbers":         ">2\r\n:1\r\n:2\r\n+one\r\n",
		"with an attribute":  "|1\r\n+a\r\n:1\r\n>1\r\n+foo\r\n+one\r\n",
		"a malformed MOVING": ">2\r\n$6\r\nMOVING\r\n*0\r\n>1\r\n+MOVING\r\n>4\r\n+MOVING\r\n_\r\n_\r\n*1\r\n_\r\n+one\r\n",
		"a MOVED in time":    orphan + "-MOVED 1 ?:6379\r\n",
	} {
		for _, chunk := range []int{0, 1, 7} {
			bubble(t, func(t *testing.T) {
				s := newScript(t)
				c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &chunked{nc, chunk} })})
				for range 3 {
					first := later(func() Reply { return c.Do(background, "GET", "a") })
					p.expects("GET a")
					second := later(func() Reply { return c.Do(background, "GET", "b") })
					p.expects("GET b")
					p.says(raw + "$3\r\ntwo\r\n")
					if name == "a MOVED in time" {
						if err := first().Err(); err == nil || err.Error() != "MOVED 1 ?:6379" {
							t.Errorf("%s, chunk %d: %v", name, chunk, err)
						}
					} else if got, err := first().Text(); got != "one" {
						t.Errorf("%s, chunk %d: the first reply is %q, %v", name, chunk, got, err)
					}
					if got, err := second().Text(); got != "two" {
						t.Errorf("%s, chunk %d: the second reply is %q, %v", name, chunk, got, err)
					}
				}
				if n := len(s.dialled()); n != 1 {
					t.Errorf("%s, chunk %d: %d dials", name, chunk, n)
				}
			})
		}
	}
}

// B10: a reply that no command asked for breaks the connection; nobody gets it.
func TestCaseB10AReplyThatNobodyAskedForBreaksTheConnection(t *testing.T) {
	for name, c := range map[string]struct {
		asked int    // commands in flight
		raw   string // what the server says, with asked replies in front
		seen  string
	}{
		"when idle":                        {0, "+stray\r\n", "+stray"},
		"when idle, an error":              {0, "-ERR max number of clients reached\r\n", "max number of clients"},
		"when idle, a null":                {0, "_\r\n", "_"},
		"behind the last reply":            {2, "+1\r\n+2\r\n+stray\r\n", "+stray"},
		"behind a push":                    {1, "+1\r\n>1\r\n+foo\r\n$5\r\nstray\r\n", "stray"},
		"garbage when idle":                {0, "HTTP/1.1 400 Bad Request\r\n", `"H`},
		"garbage behind the replies":       {2, "+1\r\n+2\r\n\r\n", `"\r`},
		"a bad length behind the replies":  {2, "+1\r\n+2\r\n$-7\r\n", "$-7"},
		"a push inside behind the replies": {2, "+1\r\n+2\r\n*1\r\n>1\r\n+a\r\n", "push inside"},
	} {
		for _, chunk := range []int{0, 1} {
			bubble(t, func(t *testing.T) {
				s, j := newScript(t), &journal{}
				client, p := s.connect(Options{OnEvent: j.add, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &chunked{nc, chunk} })})
				var replies []func() Reply
				for i := range c.asked {
					replies = append(replies, later(func() Reply { return client.Do(background, "ECHO", i+1) }))
					p.expects(fmt.Sprint("ECHO ", i+1))
				}
				p.says(c.raw)
				for i, reply := range replies {
					if got, err := reply().Text(); got != strconv.Itoa(i+1) {
						t.Errorf("%s: reply %d is %q, %v", name, i+1, got, err)
					}
				}
				q := s.accept()
				q.handshake()
				if !p.closed() {
					t.Errorf("%s: the connection is still open", name)
				}
				next := later(func() Reply { return client.Do(background, "ECHO", "next") })
				q.expects("ECHO next")
				q.says("+next\r\n")
				if got, err := next().Text(); got != "next" {
					t.Errorf("%s: the next reply is %q, %v", name, got, err)
				}
				synctest.Wait()
				if lost := j.of(EventLost); len(lost) != 1 || !strings.Contains(lost[0].Err.Error(), c.seen) || !strings.Contains(lost[0].Err.Error(), "protocol error") {
					t.Errorf("%s: the events of loss are %v, want one that says %q", name, lost, c.seen)
				}
			})
		}
	}
}

// A reply to what was not even written is nobody's either: commands behind a write that is stuck must not be answered by it.
func TestAReplyAheadOfItsCommandBreaksTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		gate := make(chan struct{}, 1)
		c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &gated{nc, gate} })})
		first := later(func() Reply { return c.Do(background, "ECHO", "1") })
		p.expects("ECHO 1")
		gate <- struct{}{}
		second := later(func() Reply { return c.Do(background, "ECHO", "2") })
		synctest.Wait() // it is being written, or about to
		third := later(func() Reply { return c.Do(background, "ECHO", "3") })
		synctest.Wait()
		p.says("+1\r\n+2\r\n+3\r\n") // 3 was not written
		synctest.Wait()
		<-gate
		if got, err := first().Text(); got != "1" {
			t.Errorf("the first reply is %q, %v", got, err)
		}
		if got, err := second().Text(); got != "2" && !MaybeExecuted(err) {
			t.Errorf("the second reply is %q, %v", got, err)
		}
		q := s.accept()
		q.handshake()
		q.expects("ECHO 3")
		q.says("+3\r\n")
		if got, err := third().Text(); got != "3" {
			t.Errorf("the third reply is %q, %v", got, err)
		}
	})
}

// gated writes only while there is room in its gate.
type gated struct {
	net.Conn
	gate chan struct{}
}

func (g *gated) Write(b []byte) (int, error) {
	g.gate <- struct{}{}
	defer func() { <-g.gate }()
	return g.Conn.Write(b)
}

// C8, C18, C19: replies belong to a connection and go with it; an old one cannot harm a new one.
func TestCaseC8C18FreezeKillRestartUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := memoryServer(t)
		c := dialMemory(t, s, func(o *Options) { o.Timeout = 200 * time.Millisecond })
		var wg sync.WaitGroup
		over := make(chan struct{})
		var done, failed atomic.Int64
		for w := range 32 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-over:
						return
					case <-time.After(time.Millisecond):
					}
					want := fmt.Sprintf("%d:%d", w, i)
					if got, err := c.Do(background, "ECHO", want).Text(); err == nil && got != want {
						t.Errorf("the reply to %q is %q", want, got)
					} else if err == nil {
						done.Add(1)
					} else {
						failed.Add(1)
					}
				}
			})
		}
		for range 20 {
			time.Sleep(20 * time.Millisecond)
			s.Freeze(true)
			time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
			s.Cut()
			s.Freeze(false)
		}
		time.Sleep(2 * time.Second)
		before := failed.Load()
		time.Sleep(time.Second)
		if after := failed.Load(); after != before || done.Load() < 1000 {
			t.Errorf("%d succeeded, %d failed after it was over", done.Load(), after-before)
		}
		close(over)
		wg.Wait()
		if n := s.Conns(); n != 1 {
			t.Errorf("%d connections are left", n)
		}
	})
}

// C7: when the connection dies everybody who waits for a reply fails at once, with the cause; with what was refused at
// the redial for a cause, too.
func TestCaseC7AllFailPromptlyWithTheCause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{})
		var replies []func() Reply
		for range 10 {
			replies = append(replies, later(func() Reply { return c.Do(background, "GET", "k") }))
			p.expects("GET k")
		}
		start := time.Now()
		p.Conn.(interface{ Reset() }).Reset()
		for _, reply := range replies {
			if err := reply().Err(); !errors.Is(err, syscall.ECONNRESET) || !MaybeExecuted(err) || !strings.Contains(err.Error(), "10.9.0.1:6379") {
				t.Errorf("%v", err)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("they failed after %v", took)
		}
		q := s.accept()
		q.expects("HELLO 3")
		s.attend(func(p *peer) { p.serve(answers{"HELLO": "-WRONGPASS no\r\n"}.to) })
		q.Close()
		err := c.Do(background, "GET", "k").Err()
		var server *ServerError
		if !errors.Is(err, ErrTimeout) || !errors.As(err, &server) || server.Code != "WRONGPASS" || MaybeExecuted(err) {
			t.Errorf("after Timeout: %v, want it to name WRONGPASS", err)
		}
	})
}

// C17: with a dead server and a context without end, Timeout is the bound; of reads as of writes.
func TestCaseC17BoundedByTimeout(t *testing.T) {
	for _, end := range []func(p *peer){func(p *peer) {}, func(p *peer) { p.Close() }} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{})
			s.fail = func(string) error { return syscall.ECONNREFUSED }
			end(p)
			synctest.Wait()
			start := time.Now()
			if err := c.Do(background, "GET", "k").Err(); !errors.Is(err, ErrTimeout) {
				t.Error(err)
			}
			if took := time.Since(start); took < 5*time.Second || took > 5*time.Second*9/8 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// --- silence ---

// With something outstanding, no byte for twice the effective Timeout means dead.
func TestASilentConnectionIsGivenUpAfterTwiceTheTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{0, 40 * time.Millisecond, time.Second, 20 * time.Second} {
		bubble(t, func(t *testing.T) {
			s, j := newScript(t), &journal{}
			c, p := s.connect(Options{Timeout: timeout, OnEvent: j.add})
			timeout = cmp.Or(timeout, 5*time.Second)
			slack := max(min(timeout/8, time.Second), 5*time.Millisecond)
			time.Sleep(timeout / 3)
			start := time.Now()
			err := c.Do(background, "GET", "k").Err()
			if took := time.Since(start); !errors.Is(err, ErrTimeout) || took < timeout || took > timeout+slack {
				t.Errorf("timeout %v: %v after %v", timeout, err, took)
			}
			p.expects("GET k")
			q := s.accept() // the dialler comes again
			if took := time.Since(start); took < 2*timeout || took > 2*timeout+2*slack {
				t.Errorf("timeout %v: given up after %v", timeout, took)
			}
			q.handshake()
			synctest.Wait()
			if lost := j.of(EventLost); len(lost) != 1 || !strings.Contains(lost[0].Err.Error(), "not a byte") {
				t.Errorf("the events of loss are %v", lost)
			}
			if !p.closed() {
				t.Error("the silent connection is still open")
			}
		})
	}
}

// Any byte counts: a push, or a piece of a long reply; C19: timeouts of callers do not end a connection that speaks.
func TestCaseC19AConnectionThatSpeaksIsNotGivenUp(t *testing.T) {
	for name, word := range map[string]string{"pushes": ">1\r\n+foo\r\n", "pieces of a reply": "x"} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{Timeout: time.Second})
			reply := later(func() Reply { return c.Do(background, "GET", "k") })
			p.expects("GET k")
			if name != "pushes" {
				p.says("$20\r\n")
			}
			for range 20 {
				time.Sleep(1500 * time.Millisecond)
				p.says(word)
			}
			if err := reply().Err(); !errors.Is(err, ErrTimeout) {
				t.Error(err)
			}
			next := later(func() Reply { return c.Do(background, "GET", "k") })
			p.expects("GET k")
			p.says("\r\n$4\r\nlast\r\n"[map[bool]int{true: 2}[name == "pushes"]:])
			if name == "pushes" {
				p.says("$4\r\nnext\r\n")
			} else {
				p.says("")
			}
			want := map[bool]string{true: "next", false: "last"}[name == "pushes"]
			if got, err := next().Text(); got != want {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			if n := len(s.dialled()); n != 1 {
				t.Errorf("%s: %d dials", name, n)
			}
		})
	}
}

// An idle connection is asked after KeepAlive without a byte; without an answer it is dead after twice the Timeout.
func TestKeepAlive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{})
		start := time.Now()
		for i := range 3 {
			p.expects("PING")
			if took := time.Since(start); took < 30*time.Second || took > 38*time.Second {
				t.Errorf("PING number %d came after %v", i, took)
			}
			p.says("+PONG\r\n")
			start = time.Now()
		}
		reply := later(func() Reply { return c.Do(background, "GET", "k") })
		p.expects("GET k")
		time.Sleep(4 * time.Second)
		p.says("+v\r\n")
		start = time.Now()
		reply()
		p.expects("PING") // which nobody answers
		if took := time.Since(start); took < 30*time.Second || took > 38*time.Second {
			t.Errorf("a PING came %v after the last byte", took)
		}
		start = time.Now()
		q := s.accept()
		if took := time.Since(start); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("the dialler came %v after the PING", took)
		}
		q.handshake()
		if err := c.Do(background, "GET", "k").Err(); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
	})
	for name, o := range map[string]Options{"KeepAlive negative": {KeepAlive: -1}, "Timeout negative": {Timeout: -1}} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			_, p := s.connect(o)
			time.Sleep(time.Hour)
			synctest.Wait()
			if n := len(s.dialled()); n != 1 || p.closed() {
				t.Errorf("%s: %d dials, closed: %v", name, n, p.closed())
			}
			p.SetReadDeadline(time.Now())
			if b, err := p.r.Peek(1); err == nil {
				t.Errorf("%s: something was sent: %q", name, b)
			}
		})
	}
	bubble(t, func(t *testing.T) { // busy connections are not asked
		s := memoryServer(t)
		c := dialMemory(t, s, nil)
		for range 100 {
			c.Do(background, "SET", "k", "v")
			time.Sleep(10 * time.Second)
		}
		if n := s.Executed("PING"); n != 1 {
			t.Errorf("%d PINGs, want the handshake's alone", n)
		}
	})
}

// A negative Timeout is none: nobody is woken, and only the reply, the context or the end ends the wait.
func TestANegativeTimeoutIsNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: -1, KeepAlive: time.Second})
		reply := later(func() Reply { return c.Do(background, "GET", "k") })
		p.expects("GET k")
		time.Sleep(24 * time.Hour)
		p.says("+late\r\n")
		if got, err := reply().Text(); got != "late" {
			t.Error(got, err)
		}
		s.fail = func(string) error { return syscall.ECONNREFUSED }
		p.Close()
		reply = later(func() Reply { return c.Do(background, "GET", "k") })
		time.Sleep(time.Hour)
		c.Close()
		if err := reply().Err(); !errors.Is(err, ErrClosed) || MaybeExecuted(err) {
			t.Error(err)
		}
	})
}

// The sweep wakes those who are late, within an eighth, and nobody else.
func TestTheSweepWakesOnlyWhoIsLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: 800 * time.Millisecond})
		type ending struct {
			err  error
			took time.Duration
		}
		var ends []func() ending
		for range 40 {
			ends = append(ends, later(func() ending {
				start := time.Now()
				err := c.Do(background, "GET", "k").Err()
				return ending{err, time.Since(start)}
			}))
			p.expects("GET k")
			time.Sleep(37 * time.Millisecond)
			p.says(">1\r\n+foo\r\n") // or it would be silent
		}
		for _, end := range ends {
			if e := end(); !errors.Is(e.err, ErrTimeout) || e.took < 800*time.Millisecond || e.took > 900*time.Millisecond {
				t.Errorf("%v after %v", e.err, e.took)
			}
		}
		if st := c.Stats(); st.TimedOut != 40 || st.Failed != 40 || st.InFlight != 40 {
			t.Errorf("%+v", st)
		}
		p.says(strings.Repeat("+late\r\n", 40)) // dropped
		next := later(func() Reply { return c.Do(background, "GET", "next") })
		p.expects("GET next")
		p.says("+mine\r\n")
		if got, err := next().Text(); got != "mine" {
			t.Error(got, err)
		}
		if st := c.Stats(); st.InFlight != 0 || st.Answered != 41 {
			t.Errorf("%+v", st)
		}
	})
}

// A reply that races with the sweep, a cancellation and the cut ends the wait exactly once, with its own reply or none.
func TestAReplyThatRacesWithTheSweep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: 80 * time.Millisecond})
		late, answered := 0, 0
		for i := range 1500 {
			want := strconv.Itoa(i)
			reply := later(func() Reply { return c.Do(background, "ECHO", want) })
			p.expects("ECHO " + want)
			// The first sweep that finds it late is between 80 and 90 ms after it was given.
			wait := 80*time.Millisecond + time.Duration(i%11)*time.Millisecond
			if i%2 == 0 {
				time.Sleep(wait)
				for range i % 7 {
					runtime.Gosched()
				}
				p.says("+" + want + "\r\n")
			} else {
				go func() { time.Sleep(wait); p.says("+" + want + "\r\n") }()
				time.Sleep(wait)
			}
			switch got, err := reply().Text(); {
			case err == nil && got == want:
				answered++
			case errors.Is(err, ErrTimeout) && MaybeExecuted(err):
				late++
			default:
				t.Fatalf("the reply to %s is %q, %v", want, got, err)
			}
			synctest.Wait()
		}
		if late == 0 || answered == 0 {
			t.Errorf("%d were late, %d answered: the test shows nothing", late, answered)
		}
		if st := c.Stats(); st.InFlight != 0 || int(st.TimedOut) != late || st.Reconnects != 0 {
			t.Errorf("%d late: %+v", late, st)
		}
	})
}

// --- the end of a connection, by byte counts ---

// stingy accepts so many bytes more and then fails every write. Before it is armed it accepts everything.
type stingy struct {
	net.Conn
	left atomic.Int64 // negative: no limit
	err  error
}

func (s *stingy) Write(b []byte) (int, error) {
	left := s.left.Load()
	if left < 0 {
		return s.Conn.Write(b)
	}
	n, err := s.Conn.Write(b[:min(left, int64(len(b)))])
	s.left.Store(left - int64(n))
	if err == nil && n < len(b) {
		err = s.err
	}
	return n, err
}

// Of a pipelined write of which k bytes are accepted: messages of which no byte was accepted are executed exactly once,
// on the next connection, in order; those partly or wholly accepted fail, maybe executed, unless their reply comes, for
// which there is a second.
func TestTheEndOfAConnectionByByteCounts(t *testing.T) {
	const messages = 5
	size := len("*2\r\n$4\r\nECHO\r\n$2\r\nm0\r\n")
	for k := range messages*size + 1 {
		for _, answers := range []string{"none", "all that came whole", "all that came whole, 900 ms later"} {
			bubble(t, func(t *testing.T) {
				s := newScript(t)
				gate, st, cause := make(chan struct{}, 1), &stingy{err: syscall.EPIPE}, error(syscall.EPIPE)
				if k%5 == 0 {
					st.err, cause = nil, io.ErrShortWrite
				}
				st.left.Store(-1)
				c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn {
					if st.Conn != nil {
						return nc
					}
					st.Conn = nc
					if k%2 == 0 {
						return &gated{st, gate}
					}
					return &addressed{&gated{st, gate}, "10.9.0.1:6379"} // a socket, to which callers may write by themselves
				})})
				gate <- struct{}{}
				first := later(func() Reply { return c.Do(background, "GET", "first") })
				synctest.Wait()
				var replies [messages]func() Reply
				for i := range messages {
					replies[i] = later(func() Reply { return c.Do(background, "ECHO", fmt.Sprint("m", i)) })
					synctest.Wait()
				}
				st.left.Store(int64(k + len("*2\r\n$3\r\nGET\r\n$5\r\nfirst\r\n")))
				<-gate
				start := time.Now()
				p.expects("GET first")
				p.says("+1\r\n")
				whole, touched := k/size, (k+size-1)/size
				for i := range whole {
					p.expects(fmt.Sprint("ECHO m", i))
				}
				if strings.HasSuffix(answers, "later") {
					time.Sleep(900 * time.Millisecond)
				}
				if answers != "none" {
					for i := range whole {
						p.says(fmt.Sprintf("+m%d\r\n", i))
					}
				}
				if k == messages*size { // everything was accepted: nothing has ended
					if answers == "none" {
						p.Close()
					}
				} else {
					q := s.accept()
					q.handshake()
					for i := touched; i < messages; i++ {
						q.expects(fmt.Sprint("ECHO m", i))
						q.says(fmt.Sprintf("+m%d\r\n", i))
					}
					last := later(func() Reply { return c.Do(background, "ECHO", "last") })
					q.expects("ECHO last")
					q.says("+last\r\n")
					if got, err := last().Text(); got != "last" {
						t.Errorf("k=%d: the last is %q, %v", k, got, err)
					}
				}
				if got, err := first().Text(); got != "1" {
					t.Errorf("k=%d, %s: the first is %q, %v", k, answers, got, err)
				}
				for i, reply := range replies {
					got, err := reply().Text()
					answered := i < whole && answers != "none" || i >= touched
					if answered && got != fmt.Sprint("m", i) || !answered && (!MaybeExecuted(err) || k < messages*size && !errors.Is(err, cause)) {
						t.Errorf("k=%d, %s: m%d is %q, %v", k, answers, i, got, err)
					}
				}
				if took := time.Since(start); took > 1050*time.Millisecond {
					t.Errorf("k=%d, %s: it took %v", k, answers, took)
				}
				if stats := c.Stats(); stats.InFlight+stats.Backlog != 0 {
					t.Errorf("k=%d: %+v", k, stats)
				}
			})
		}
	}
}

// The same with messages above and below 64 KiB, whose payload arrives whole, in order and once, however the writes end.
func TestLargeAndSmallMessagesSurviveWriteErrors(t *testing.T) {
	certificate, pool := batontest.SelfSigned("db")
	for seed := range uint64(6) {
		bubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			var o Options
			var secure batontest.Option = batontest.InMemory()
			if seed%2 == 1 { // in TLS a record that was cut reaches nobody
				o.TLS = &tls.Config{RootCAs: pool, ServerName: "db"}
				secure = batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})
			}
			s := memoryServer(t, secure)
			var mu sync.Mutex
			dial := through(s.Dial, func(nc net.Conn) net.Conn {
				mu.Lock()
				defer mu.Unlock()
				st := &stingy{Conn: nc, err: syscall.ECONNRESET}
				st.left.Store(int64(5000 + random.IntN(2<<20)))
				return st
			})
			c := dialMemory(t, s, func(p *Options) { p.Dialer, p.Timeout, p.TLS = dial, time.Minute, o.TLS })
			var wg sync.WaitGroup
			var sent, maybe [4]atomic.Int64
			for w := range 4 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(w)+100))
					list := fmt.Sprint("list:", w)
					for i := range 25 {
						size := []int{10, 1000, 64<<10 - 40, 64 << 10, 64<<10 + 1, 300 << 10}[r.IntN(6)]
						payload := fmt.Sprintf("%d:%0*d", i, size, i)
						err := c.Do(background, "RPUSH", list, payload).Err()
						switch {
						case err == nil:
							sent[w].Add(1)
						case MaybeExecuted(err):
							maybe[w].Add(1)
						default:
							t.Errorf("%v", err)
						}
					}
				})
			}
			wg.Wait()
			for w := range 4 {
				var texts []string
				var err error
				for range 50 { // this needs a connection that is less stingy than its reply is long
					if texts, err = c.Do(background, "LRANGE", fmt.Sprint("list:", w), 0, -1).Texts(); err == nil {
						break
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if n := int64(len(texts)); n < sent[w].Load() || n > sent[w].Load()+maybe[w].Load() {
					t.Errorf("%d were executed, %d succeeded, %d maybe", n, sent[w].Load(), maybe[w].Load())
				}
				before := -1
				for _, text := range texts {
					number, digits, _ := strings.Cut(text, ":")
					n, _ := strconv.Atoi(number)
					if n <= before || strings.TrimLeft(digits, "0") != strings.TrimLeft(number, "0") {
						t.Errorf("after number %d came %.20q… of %d bytes", before, text, len(text))
					}
					before = n
				}
			}
			if c.Stats().Reconnects == 0 {
				t.Error("no connection was lost: the test shows nothing")
			}
		})
	}
}

// --- reconnecting ---

// E2, E4, E6, C14, D10: every dial asks for credentials, says HELLO 3 and SELECTs anew; what is not answered is not replayed.
func TestCaseC14D10E2EveryDialStartsAfresh(t *testing.T) {
	bubble(t, func(t *testing.T) {
		asked := 0
		s := newScript(t)
		c, p := s.connect(Options{DB: 1, ClientName: "me", KeepAlive: -1, Credentials: func(context.Context) (string, string, error) {
			asked++
			return "alice", fmt.Sprint("token-", asked), nil
		}})
		handshake := func(p *peer, token int) {
			t.Helper()
			p.expects(fmt.Sprint("HELLO 3 AUTH alice token-", token, " SETNAME me"))
			p.says(helloThree)
			p.expects(strings.Split(setInfo+" | SELECT 1", " | ")...)
			p.says("+OK\r\n+OK\r\n+OK\r\n")
			p.expects(optIn, "PING")
			p.says("-ERR unknown subcommand\r\n+PONG\r\n") // A43: once granted, later refused
		}
		first := later(func() Reply { return c.Do(background, "INCR", "unanswered") })
		p.expects("INCR unanswered")
		time.Sleep(2 * time.Second)
		p.Close()
		if err := first().Err(); !MaybeExecuted(err) {
			t.Error(err)
		}
		second := later(func() Reply { return c.Do(background, "INCR", "waiting") })
		p = s.accept() // D10: this one fails behind TCP
		p.expects("HELLO 3 AUTH alice token-2 SETNAME me")
		p.Close()
		p = s.accept() // E6: this one is refused
		p.expects("HELLO 3 AUTH alice token-3 SETNAME me")
		p.says("-WRONGPASS no\r\n")
		p = s.accept() // C18: and this one is closed at SETINFO
		p.expects("HELLO 3 AUTH alice token-4 SETNAME me")
		p.says(helloThree)
		p.expects("CLIENT SETINFO LIB-NAME baton")
		p.Close()
		p = s.accept()
		handshake(p, 5)
		p.expects("INCR waiting")
		p.says(":1\r\n")
		if err := second().Err(); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Minute)
		p.Close()
		p = s.accept()
		handshake(p, 6)
		if got := s.dialled(); len(got) != 6 {
			t.Errorf("dials: %q", got)
		}
	})
}

// A56: a credentials function that blocks costs its attempt, and nothing else.
func TestCaseA56CredentialsThatBlock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var asked atomic.Int64
		s := newScript(t)
		c, p := s.connect(Options{Timeout: time.Minute, Credentials: func(context.Context) (string, string, error) {
			if n := asked.Add(1); n == 2 || n == 3 {
				<-release // whatever its context says
			}
			return "", "", nil
		}})
		p.Close()
		start := time.Now()
		reply := later(func() Reply { return c.Do(background, "GET", "k") })
		p = s.accept()
		if took := time.Since(start); took < 10*time.Second || took > 12*time.Second || asked.Load() != 4 {
			t.Errorf("connected after %v and %d calls", took, asked.Load())
		}
		p.handshake()
		p.expects("GET k")
		p.says("+v\r\n")
		if got, err := reply().Text(); got != "v" {
			t.Error(got, err)
		}
		close(release)
		synctest.Wait()
	})
	bubble(t, func(t *testing.T) { // Close does not wait for it
		release := make(chan struct{})
		asked := 0
		s := newScript(t)
		c, p := s.connect(Options{Credentials: func(context.Context) (string, string, error) {
			if asked++; asked > 1 {
				<-release
			}
			return "", "", nil
		}})
		p.Close()
		synctest.Wait()
		start := time.Now()
		c.Close()
		if took := time.Since(start); took > 0 {
			t.Errorf("Close took %v", took)
		}
		close(release)
	})
	bubble(t, func(t *testing.T) { // one that fails fails the dial, with its error
		mine := errors.New("no token today")
		_, err := Dial(background, Options{Dialer: newScript(t).dial, Credentials: func(context.Context) (string, string, error) { return "", "", mine }})
		if !errors.Is(err, mine) || !strings.Contains(err.Error(), "credentials") {
			t.Error(err)
		}
	})
}

// The first redial is made at once; further ones back off from 50 ms to 1 s, also when connections are made but short-lived.
func TestRedialsBackOff(t *testing.T) {
	for _, how := range []string{"refused", "closed in the handshake", "closed right after it", "garbage right after it"} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{})
			time.Sleep(5 * time.Second)
			var mu sync.Mutex
			var times []time.Time
			s.fail = func(string) error {
				mu.Lock()
				defer mu.Unlock()
				times = append(times, time.Now())
				if how == "refused" {
					return syscall.ECONNREFUSED
				}
				return nil
			}
			s.attend(func(p *peer) {
				if how != "closed in the handshake" {
					p.handshake()
				}
				if how == "garbage right after it" {
					p.says("garbage\r\n")
				}
				p.Close()
			})
			start := time.Now()
			p.Close()
			time.Sleep(20 * time.Second)
			c.Close()
			time.Sleep(10 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			if len(times) < 18 || len(times) > 40 {
				t.Fatalf("%s: %d dials within 20 s", how, len(times))
			}
			if took := times[0].Sub(start); took > time.Millisecond {
				t.Errorf("%s: the first redial after %v, want at once", how, took)
			}
			want := 50 * time.Millisecond
			for i := 1; i < len(times); i++ {
				if d := times[i].Sub(times[i-1]); d < want*7/10 || d > want*21/10 {
					t.Errorf("%s: redial %d after %v, want about %v", how, i, d, want)
				}
				want = min(2*want, time.Second)
			}
		})
	}
}

// A connection that held for a while is redialled at once, however bad the times before were.
func TestALossAfterALongLifeIsRedialledAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		_, p := s.connect(Options{KeepAlive: -1})
		for range 5 {
			p.Close() // short-lived ones
			p = s.accept()
			p.handshake()
		}
		for range 3 {
			time.Sleep(10 * time.Second)
			start := time.Now()
			p.Close()
			p = s.accept()
			if took := time.Since(start); took > time.Millisecond {
				t.Errorf("redialled after %v", took)
			}
			p.handshake()
		}
	})
}

// --- the backlog's policies and bounds ---

func TestQueueKeepsTheOrderThroughReconnects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []string
		s := newScript(t)
		s.attend(func(p *peer) {
			p.handshake()
			for range 7 { // and then it is cut, with whatever is behind
				command := p.command()
				mu.Lock()
				seen = append(seen, command)
				mu.Unlock()
				p.says("+OK\r\n")
			}
			p.Close()
		})
		c := dialOptions(t, Options{Addr: "10.9.0.1:6379", Dialer: s.dial, MaxInFlight: 3, Timeout: -1})
		var results []func() error
		for i := range 100 {
			results = append(results, later(func() error { return c.Do(background, "ECHO", i).Err() }))
			synctest.Wait()
		}
		maybe, before := map[int]bool{}, -1
		for i, result := range results {
			if err := result(); err != nil && !MaybeExecuted(err) {
				t.Errorf("%d: %v", i, err)
			} else {
				maybe[i] = err != nil
			}
		}
		count := map[int]int{}
		for _, command := range seen {
			i, _ := strconv.Atoi(strings.TrimPrefix(command, "ECHO "))
			if i < before {
				t.Errorf("%d came after %d", i, before)
			}
			before = i
			count[i]++
		}
		for i := range 100 {
			if count[i] > 1 || count[i] == 0 && !maybe[i] {
				t.Errorf("%d was executed %d times", i, count[i])
			}
		}
	})
}

func TestMaxInFlightIsRespected(t *testing.T) {
	for _, most := range []int{1, 2, 10} {
		bubble(t, func(t *testing.T) {
			c, p := newScript(t).connect(Options{MaxInFlight: most, Timeout: -1})
			var got atomic.Int64
			go func() {
				for p.command() != "" {
					got.Add(1)
				}
			}()
			const n = 25
			var replies []func() Reply
			for i := range n {
				replies = append(replies, later(func() Reply { return c.Do(background, "ECHO", i) }))
				synctest.Wait()
			}
			for i := range n {
				synctest.Wait()
				if unanswered := int(got.Load()) - i; unanswered != min(most, n-i) {
					t.Errorf("MaxInFlight %d: %d are written and unanswered, want %d", most, unanswered, min(most, n-i))
				}
				if st := c.Stats(); st.InFlight+st.Backlog != n-i {
					t.Errorf("%+v", st)
				}
				p.says(fmt.Sprintf(":%d\r\n", i))
			}
			for i, reply := range replies {
				if got, err := reply().Int64(); got != int64(i) || err != nil {
					t.Error(got, err)
				}
			}
			// A batch that is larger goes alone.
			ahead := later(func() Reply { return c.Do(background, "ECHO", "ahead") })
			synctest.Wait()
			got.Store(0)
			var b Batch
			for range 2 * most {
				b.Add("PING")
			}
			batch := later(func() error { _, err := c.DoBatch(background, &b); return err })
			synctest.Wait()
			if n := got.Load(); n > 0 && most < 3 {
				t.Errorf("MaxInFlight %d: %d of a batch were written while one was in flight", most, n)
			}
			p.says("+x\r\n")
			ahead()
			synctest.Wait()
			if n := got.Load(); n != int64(2*most) {
				t.Errorf("MaxInFlight %d: %d of a batch were written", most, n)
			}
			p.says(strings.Repeat("+PONG\r\n", 2*most))
			if err := batch(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTheBacklogIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		o     Options
		size  int // of each command's argument
		batch int // commands at a time; 0: Do
		fit   int // calls
	}{
		"in commands":            {Options{MaxBacklog: 5}, 1, 0, 5},
		"in commands of batches": {Options{MaxBacklog: 5}, 1, 2, 2},
		"in bytes":               {Options{MaxBacklogBytes: 5 * 1024}, 1000, 0, 5},
		"in bytes of batches":    {Options{MaxBacklogBytes: 5 * 1024}, 1000, 2, 2},
		"in commands, each larger than bytes are bound": {Options{MaxBacklogBytes: 10}, 1000, 0, 1},
		"in batches, each larger than the bound":        {Options{MaxBacklog: 2}, 1, 10, 1},
	} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			client, p := s.connect(c.o)
			call := func(ctx context.Context) error {
				if c.batch == 0 {
					return client.Do(ctx, "ECHO", strings.Repeat("x", c.size)).Err()
				}
				var b Batch
				for range c.batch {
					b.Add("ECHO", strings.Repeat("x", c.size))
				}
				_, err := client.DoBatch(ctx, &b)
				return err
			}
			p.Close()
			synctest.Wait()
			ctx, cancel := context.WithCancel(background)
			first := later(func() error { return call(ctx) })
			synctest.Wait()
			var calls []func() error
			for range c.fit - 1 {
				calls = append(calls, later(func() error { return call(background) }))
			}
			synctest.Wait()
			for range 3 {
				start := time.Now()
				if err := call(background); !errors.Is(err, ErrBacklogFull) || MaybeExecuted(err) || time.Since(start) > 0 {
					t.Errorf("%s: one too many: %v", name, err)
				}
			}
			cancel()
			if err := first(); !errors.Is(err, context.Canceled) || MaybeExecuted(err) {
				t.Error(err)
			}
			calls = append(calls, later(func() error { return call(background) })) // into the room that it left
			synctest.Wait()
			if err := call(background); !errors.Is(err, ErrBacklogFull) {
				t.Errorf("%s: one too many: %v", name, err)
			}
			q := s.accept()
			q.handshake()
			go q.serve(answers(nil).to)
			for _, call := range calls {
				if err := call(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if n := client.Stats().Backlog; n != 0 {
				t.Errorf("%s: %d are left", name, n)
			}
		})
	}
}

// A peer that does not read: what fits goes out, the rest waits in the bounded backlog, where its callers can still leave,
// never sent; and when it reads again everything is there, in order.
func TestAPeerThatDoesNotReadIsFeltAsBackPressure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: -1, MaxBacklog: 10})
		payload := strings.Repeat("x", 30<<10)
		var written []func() Reply
		ctx, cancel := context.WithCancel(background)
		for i := 0; c.Stats().Backlog < 10; i++ {
			written = append(written, later(func() Reply { return c.Do(ctx, "ECHO", fmt.Sprint(i, payload)) }))
			synctest.Wait()
		}
		if n := len(written); n < 15 || n > 40 {
			t.Errorf("%d commands of 30 KiB found room", n)
		}
		if err := c.Do(background, "PING").Err(); !errors.Is(err, ErrBacklogFull) {
			t.Error(err)
		}
		start := time.Now()
		cancel()
		maybe := 0
		for i, reply := range written {
			err := reply().Err()
			if !errors.Is(err, context.Canceled) || MaybeExecuted(err) != (i < len(written)-10) {
				t.Errorf("number %d of %d: %v", i, len(written), err)
			}
			if MaybeExecuted(err) {
				maybe++
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("leaving took %v", took)
		}
		for i := range maybe {
			p.expects(fmt.Sprint("ECHO ", i, payload))
			p.says("+late\r\n")
		}
		reply := later(func() Reply { return c.Do(background, "ECHO", "mine") })
		p.expects("ECHO mine")
		p.says("+mine\r\n")
		if got, err := reply().Text(); got != "mine" {
			t.Error(got, err)
		}
	})
}

// A peer that does not read is cut off: what the socket took is maybe executed, the rest goes to the next connection.
func TestAPeerThatDoesNotReadIsCutOff(t *testing.T) {
	for _, how := range []string{"closed", "reset", "silent"} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{Timeout: time.Minute, KeepAlive: -1})
			payload := strings.Repeat("x", 30<<10)
			var replies []func() Reply
			for i := range 40 {
				replies = append(replies, later(func() Reply { return c.Do(background, "ECHO", fmt.Sprint(i, payload)) }))
				synctest.Wait()
			}
			switch how {
			case "closed":
				p.Close()
			case "reset":
				p.Conn.(interface{ Reset() }).Reset()
			case "silent": // for as long as we are writing it is not dead
				time.Sleep(30 * time.Second)
				p.Close()
			}
			q := s.accept()
			q.handshake()
			from := -1
			go q.serve(func(command string) string {
				i, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(command, "ECHO "), payload))
				if from < 0 {
					from = i
				}
				return answers(nil).to(command)
			})
			cut := 0
			for i, reply := range replies {
				got, err := reply().Text()
				switch {
				case MaybeExecuted(err):
					if cut++; cut != i+1 {
						t.Errorf("number %d is cut off behind one that was answered", i)
					}
				case err != nil || got != fmt.Sprint(i, payload):
					t.Errorf("number %d: %.20q, %v", i, got, err)
				}
			}
			// 256 KiB fit into the pipe: eight whole messages and a piece of the ninth.
			if cut != 9 || from != 9 {
				t.Errorf("%s: %d were cut off, the first to be written again is number %d", how, cut, from)
			}
		})
	}
}

// FailFast at each moment: the first dial waits, then without a connection commands fail at once, at the door and in the
// backlog; with one they do not.
func TestFailFastAtEachMoment(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Backlog: FailFast, MaxInFlight: 2})
		var replies []func() Reply
		for i := range 5 {
			replies = append(replies, later(func() Reply { return c.Do(background, "ECHO", i) }))
			synctest.Wait()
		}
		p.expects("ECHO 0", "ECHO 1")
		start := time.Now()
		s.fail = func(string) error { return syscall.ECONNREFUSED }
		p.Close()
		for i, reply := range replies {
			if err := reply().Err(); MaybeExecuted(err) != (i < 2) || errors.Is(err, ErrNoConnection) != (i >= 2) {
				t.Errorf("number %d: %v", i, err)
			}
		}
		for range 3 {
			if err := c.Do(background, "PING").Err(); !errors.Is(err, ErrNoConnection) || MaybeExecuted(err) || time.Since(start) > 3*time.Second {
				t.Errorf("at the door: %v", err)
			}
			time.Sleep(time.Second)
		}
		if err := c.Do(background, "PING").Err(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the error does not hold the reason: %v", err)
		}
		s.mu.Lock()
		s.fail = nil
		s.mu.Unlock()
		q := s.accept()
		if err := c.Do(background, "PING").Err(); !errors.Is(err, ErrNoConnection) {
			t.Errorf("during the handshake: %v", err)
		}
		q.handshake()
		synctest.Wait()
		reply := later(func() Reply { return c.Do(background, "ECHO", "back") })
		q.expects("ECHO back")
		q.says("+back\r\n")
		if got, err := reply().Text(); got != "back" {
			t.Error(got, err)
		}
	})
	bubble(t, func(t *testing.T) { // of several connections those that were not there yet are waited for
		s := newScript(t)
		s.attend(func(p *peer) { time.Sleep(time.Second); p.serve(answers(nil).to) })
		c := dialOptions(t, Options{Addr: "10.9.0.1:6379", Dialer: s.dial, Backlog: FailFast, Conns: 3})
		for range 6 {
			if err := c.Do(background, "PING").Err(); err != nil {
				t.Error(err)
			}
		}
	})
}

// --- Close and Shutdown ---

// Close ends everybody's wait at once, with ErrClosed, and leaves neither goroutine (the bubble looks) nor socket.
func TestCloseEndsEverything(t *testing.T) {
	for name, prepare := range map[string]func(s *batontest.Server, c *Client){
		"idle":                 func(s *batontest.Server, c *Client) {},
		"under load":           func(s *batontest.Server, c *Client) { s.Delay("echo", time.Second) },
		"against a frozen one": func(s *batontest.Server, c *Client) { s.Freeze(true) },
		"without a connection": func(s *batontest.Server, c *Client) { s.Refuse(true); s.Cut() },
		"during a handshake":   func(s *batontest.Server, c *Client) { s.Stall(true); s.Cut() },
		"just cut":             func(s *batontest.Server, c *Client) { s.Cut() },
	} {
		for _, conns := range []int{1, 4} {
			for _, wait := range []time.Duration{0, 3 * time.Millisecond, 300 * time.Millisecond} {
				bubble(t, func(t *testing.T) {
					s := memoryServer(t)
					c := dialMemory(t, s, func(o *Options) { o.Conns, o.MaxInFlight = conns, 10 })
					time.Sleep(time.Millisecond)
					prepare(s, c)
					var calls []func() error
					for i := range 100 {
						calls = append(calls, later(func() error {
							if i%10 == 0 {
								var b Batch
								b.Add("ECHO", i)
								b.Add("ECHO", strings.Repeat("x", 100<<10))
								_, err := c.DoBatch(background, &b)
								return err
							}
							return c.Do(background, "ECHO", i).Err()
						}))
					}
					time.Sleep(wait)
					start := time.Now()
					if err := c.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
					for _, call := range calls {
						if err := call(); err != nil && !errors.Is(err, ErrClosed) && name != "just cut" {
							t.Errorf("%s: %v", name, err)
						}
					}
					if err := c.Do(background, "PING").Err(); !errors.Is(err, ErrClosed) || MaybeExecuted(err) {
						t.Errorf("after Close: %v", err)
					}
					if err := c.Close(); err != nil {
						t.Errorf("Close again: %v", err)
					}
					synctest.Wait()
					if took := time.Since(start); took > 0 {
						t.Errorf("%s: it took %v", name, took)
					}
					s.Freeze(false)
					s.Delay("echo", 0)
					time.Sleep(time.Minute)
					if n := s.Conns(); n != 0 {
						t.Errorf("%s: %d connections are left", name, n)
					}
					if st := c.Stats(); st.InFlight+st.Backlog+st.Conns != 0 {
						t.Errorf("%s: %+v", name, st)
					}
				})
			}
		}
	}
}

// Close while many callers come and go, at any moment.
func TestCloseRacesWithEverything(t *testing.T) {
	for seed := range uint64(60) {
		bubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			s := memoryServer(t)
			c := dialMemory(t, s, func(o *Options) { o.Conns = 1 + random.IntN(3); o.Backlog = BacklogPolicy(random.IntN(2)) })
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					for i := 0; ; i++ {
						want := fmt.Sprint(w, ":", i)
						got, err := c.Do(background, "ECHO", want).Text()
						if errors.Is(err, ErrClosed) {
							return
						} else if err == nil && got != want {
							t.Errorf("the reply to %q is %q", want, got)
						}
						time.Sleep(time.Duration(i%3) * 100 * time.Microsecond)
					}
				})
			}
			for range random.IntN(4) {
				time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
				s.Cut()
			}
			time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
			for range random.IntN(50) {
				runtime.Gosched()
			}
			go c.Close()
			c.Close()
			wg.Wait()
			time.Sleep(time.Second)
			if n := s.Conns(); n != 0 {
				t.Errorf("%d connections are left", n)
			}
		})
	}
}

// Shutdown refuses new work, waits for what is queued and in flight, and closes.
func TestShutdownWaitsForWhatIsOutstanding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{MaxInFlight: 2})
		var replies []func() Reply
		for i := range 5 {
			replies = append(replies, later(func() Reply { return c.Do(background, "ECHO", i) }))
			synctest.Wait()
		}
		ended := later(func() error { return c.Shutdown(background) })
		synctest.Wait()
		if err := c.Do(background, "PING").Err(); !errors.Is(err, ErrClosed) || MaybeExecuted(err) {
			t.Errorf("new work: %v", err)
		}
		p.expects("ECHO 0", "ECHO 1")
		time.Sleep(time.Second)
		p.says("+0\r\n+1\r\n")
		p.expects("ECHO 2", "ECHO 3")
		p.Close() // what is queued still waits for the next connection
		q := s.accept()
		q.handshake()
		q.expects("ECHO 4")
		time.Sleep(time.Second)
		synctest.Wait()
		if q.closed() {
			t.Error("it was closed with a command in flight")
		}
		q.says("+4\r\n")
		if err := ended(); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		for i, reply := range replies {
			if got, err := reply().Text(); got != strconv.Itoa(i) && !(MaybeExecuted(err) && (i == 2 || i == 3)) {
				t.Errorf("number %d: %q, %v", i, got, err)
			}
		}
		synctest.Wait()
		if !q.closed() {
			t.Error("the connection is still open")
		}
	})
}

func TestShutdownEndsWhateverEndsTheWork(t *testing.T) {
	type end func(t *testing.T, c *Client, p *peer, cancel func())
	for name, end := range map[string]end{
		"nothing is outstanding":     nil,
		"the reply comes":            func(t *testing.T, c *Client, p *peer, cancel func()) { p.says("+v\r\n+v\r\n") },
		"the connection ends":        func(t *testing.T, c *Client, p *peer, cancel func()) { p.Close() },
		"it times out":               func(t *testing.T, c *Client, p *peer, cancel func()) {},
		"its caller leaves":          func(t *testing.T, c *Client, p *peer, cancel func()) { p.Close(); synctest.Wait(); cancel() },
		"somebody closes the client": func(t *testing.T, c *Client, p *peer, cancel func()) { c.Close() },
		"its caller leaves, in doubt": func(t *testing.T, c *Client, p *peer, cancel func()) {
			cancel()
			synctest.Wait()
			p.says("+v\r\n+v\r\n")
		},
	} {
		for _, policy := range []BacklogPolicy{Queue, FailFast} {
			for _, shutdowns := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/policy=%d/shutdowns=%d", name, policy, shutdowns), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						s := newScript(t)
						c, p := s.connect(Options{Backlog: policy, MaxInFlight: 1})
						s.fail = func(string) error { return syscall.ECONNREFUSED }
						ctx, cancel := context.WithCancel(background)
						defer cancel()
						var calls []func() Reply
						if end != nil {
							for range 2 {
								calls = append(calls, later(func() Reply { return c.Do(ctx, "GET", "k") }))
								synctest.Wait()
							}
						}
						var ends []func() error
						for range shutdowns {
							ends = append(ends, later(func() error {
								ctx, cancel := context.WithTimeout(background, time.Minute)
								defer cancel()
								return c.Shutdown(ctx)
							}))
						}
						synctest.Wait()
						if end != nil {
							end(t, c, p, cancel)
						}
						for _, call := range calls {
							call()
						}
						for _, ended := range ends {
							if err := ended(); err != nil {
								t.Errorf("Shutdown: %v", err)
							}
						}
						if err := c.Do(background, "PING").Err(); !errors.Is(err, ErrClosed) {
							t.Errorf("after it: %v", err)
						}
					})
				})
			}
		}
	}
}

func TestShutdownIsCloseWhenItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := memoryServer(t)
		c := dialMemory(t, s, nil)
		s.Delay("echo", time.Hour)
		reply := later(func() Reply { return c.Do(background, "ECHO", 1) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		start := time.Now()
		if err := c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Shutdown: %v after %v", err, time.Since(start))
		}
		if err := reply().Err(); !errors.Is(err, ErrClosed) || !MaybeExecuted(err) {
			t.Error(err)
		}
		s.Delay("echo", 0)
		s.Close()
	})
}

// A callback that blocks for ever costs its own goroutine and the events that it misses, which are counted.
func TestAnOnEventThatBlocksHarmsNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var seen atomic.Int64
		s := memoryServer(t)
		c := dialMemory(t, s, func(o *Options) { o.OnEvent = func(Event) { seen.Add(1); <-release } })
		for range 300 {
			s.Cut()
			time.Sleep(2 * time.Second)
			if err := c.Do(background, "PING").Err(); err != nil {
				t.Fatal(err)
			}
		}
		if n := seen.Load(); n != 1 {
			t.Errorf("OnEvent was called %d times at once", n)
		}
		st := c.Stats()
		if st.Reconnects != 300 || st.EventsLost < 300 {
			t.Errorf("%+v", st)
		}
		start := time.Now()
		c.Close()
		if took := time.Since(start); took > 0 {
			t.Errorf("Close took %v", took)
		}
		close(release)
		synctest.Wait()
		if n := seen.Load() + int64(c.Stats().EventsLost); n < 600 {
			t.Errorf("%d events were seen or lost, of at least 600", n)
		}
	})
}

// No goroutine and no socket of a dial is left when Close comes in the middle of it; nor when the client is never closed but
// the dial fails: the bubble of TestADialThatStallsEndsInTime looks at that.
func TestCloseDuringARedial(t *testing.T) {
	for _, command := range []string{"HELLO", "CLIENT SETINFO", "CLIENT MAINT", "PING"} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{})
			var stalled atomic.Pointer[peer]
			s.attend(func(p *peer) { stalled.Store(p); p.serve(answers{command: ""}.to) })
			p.Close()
			time.Sleep(time.Second)
			reply := later(func() Reply { return c.Do(background, "GET", "k") })
			synctest.Wait()
			start := time.Now()
			c.Close()
			if err := reply().Err(); !errors.Is(err, ErrClosed) || MaybeExecuted(err) || time.Since(start) > 0 {
				t.Errorf("%s: %v after %v", command, err, time.Since(start))
			}
			synctest.Wait()
			if p := stalled.Load(); p == nil || !p.closed() {
				t.Errorf("%s: the connection is still open", command)
			}
		})
	}
}

// A server that reads and never answers is silent, however steadily it is written to; and when every caller has left, too.
func TestSilenceUnderSteadyWritesAndBehindCallersWhoLeft(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 50 * time.Millisecond, 900 * time.Millisecond} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{Timeout: time.Second})
			go io.Copy(io.Discard, p)
			over := make(chan struct{})
			go func() {
				for {
					select {
					case <-over:
						return
					case <-time.After(every):
						go c.Do(background, "GET", "k")
					}
				}
			}()
			start := time.Now()
			s.accept().handshake()
			if took := time.Since(start); took < 2*time.Second || took > 2*time.Second+every+300*time.Millisecond {
				t.Errorf("with a command every %v it was given up after %v", every, took)
			}
			close(over)
		})
	}
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, _ := s.connect(Options{Timeout: time.Second})
		ctx, cancel := context.WithTimeout(background, time.Millisecond)
		defer cancel()
		start := time.Now()
		c.Do(ctx, "GET", "k")
		s.accept().handshake()
		if took := time.Since(start); took < 2*time.Second || took > 2300*time.Millisecond {
			t.Errorf("with nobody waiting it was given up after %v", took)
		}
	})
}

// B21: what is beyond the limits breaks the connection with an error that says so; the process lives, and so does the client.
func TestCaseB21RepliesBeyondTheLimits(t *testing.T) {
	for name, c := range map[string]struct{ raw, seen string }{
		"depth":    {strings.Repeat("*1\r\n", 100_000), "nested"},
		"bytes":    {"$2000000\r\n", "limit"},
		"elements": {"*2000000\r\n", "limit"},
		"a line":   {"+" + strings.Repeat("x", 2_000_000), "bytes"},
	} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			client, p := s.connect(Options{MaxReply: 1 << 20, MaxElements: 1 << 20})
			reply := later(func() Reply { return client.Do(background, "GET", "k") })
			p.expects("GET k")
			go p.says(c.raw)
			if err := reply().Err(); !MaybeExecuted(err) || !strings.Contains(err.Error(), c.seen) || len(err.Error()) > 300 {
				t.Errorf("%s: %.400v", name, err)
			}
			q := s.accept()
			q.handshake()
			reply = later(func() Reply { return client.Do(background, "GET", "k") })
			q.expects("GET k")
			q.says("+v\r\n")
			if got, err := reply().Text(); got != "v" {
				t.Error(got, err)
			}
		})
	}
}

// D1: where the opt-in is refused there is nothing to warn of, however often.
func TestCaseD1ARefusedOptInIsQuiet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		j := &journal{}
		s := memoryServer(t, batontest.RefuseOptIn("ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."))
		c := dialMemory(t, s, func(o *Options) {
			o.OnEvent = j.add
			o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		for range 3 {
			time.Sleep(10 * time.Second)
			s.Cut()
			if err := c.Do(background, "PING").Err(); err != nil { // D2
				t.Error(err)
			}
		}
		c.Close()
		synctest.Wait()
		if n := strings.Count(log.String(), "MAINT_NOTIFICATIONS"); n > 1 || j.count(EventDialFailed) > 0 {
			t.Errorf("it is mentioned %d times:\n%s", n, log.String())
		}
	})
}

// What a user's Dialer may do wrong is a dial that failed, not the end of the process.
func TestADialerThatReturnsNothingIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		defer func() {
			if r := recover(); r != nil {
				t.Errorf("panic: %v", r)
			}
		}()
		c, err := Dial(background, Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, nil }})
		if c != nil || err == nil {
			t.Errorf("%v, %v", c, err)
		}
	})
}

// tunnel is a connection without deadlines, as those of golang.org/x/crypto/ssh.
type tunnel struct{ net.Conn }

func (tunnel) SetDeadline(time.Time) error      { return errors.New("deadline not supported") }
func (tunnel) SetReadDeadline(time.Time) error  { return errors.New("deadline not supported") }
func (tunnel) SetWriteDeadline(time.Time) error { return errors.New("deadline not supported") }

// A connection that knows no deadlines can be used as any other; a dial that stalls on it ends in time.
func TestAConnectionWithoutDeadlines(t *testing.T) {
	wrap := func(nc net.Conn) net.Conn { return tunnel{nc} }
	bubble(t, func(t *testing.T) {
		s := memoryServer(t)
		c := dialMemory(t, s, func(o *Options) { o.Dialer = through(s.Dial, wrap) })
		if err := c.Do(background, "PING").Err(); err != nil {
			t.Error(err)
		}
	})
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		s.attend(func(p *peer) { p.serve(answers{"PING": ""}.to) })
		start := time.Now()
		_, err := Dial(background, Options{Addr: "10.9.0.1:6379", Dialer: through(s.dial, wrap)})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
	bubble(t, func(t *testing.T) { // nor does what is in flight wait longer than a second for its reply after a write error
		s := newScript(t)
		st := &stingy{err: syscall.EPIPE}
		st.left.Store(-1)
		c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn {
			if st.Conn != nil {
				return nc
			}
			st.Conn = tunnel{nc}
			return st
		})})
		first := later(func() Reply { return c.Do(background, "GET", "a") })
		p.expects("GET a")
		st.left.Store(3)
		start := time.Now()
		if err := c.Do(background, "GET", "b").Err(); !errors.Is(err, syscall.EPIPE) || !MaybeExecuted(err) || time.Since(start) > 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := first().Err(); !errors.Is(err, syscall.EPIPE) || !MaybeExecuted(err) {
			t.Error(err)
		}
		st.left.Store(-1)
		s.accept().handshake()
	})
}

func TestADialWithAContextThatIsOverMakesNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(background)
		cancel()
		c, err := Dial(ctx, Options{Dialer: memoryServer(t).Dial})
		if c != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", c, err)
		}
	})
}

// The context of Dial bounds the call alone, not the client.
func TestTheContextOfDialDoesNotBoundTheClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := memoryServer(t)
		ctx, cancel := context.WithCancel(background)
		c, err := Dial(ctx, Options{Addr: s.Addr(), Dialer: s.Dial})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		cancel()
		s.Cut()
		for range 3 {
			if err := c.Do(background, "PING").Err(); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
		}
	})
}

// A callback may use the client, and close it.
func TestOnEventMayCloseTheClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := memoryServer(t)
		clients := make(chan *Client, 1)
		ended := make(chan error, 1)
		c := dialMemory(t, s, func(o *Options) {
			o.OnEvent = func(e Event) {
				if e.Kind == EventConnected {
					c := <-clients
					if err := c.Do(background, "PING").Err(); err != nil {
						t.Error(err)
					}
					ended <- c.Close()
				}
			}
		})
		clients <- c
		s.Cut()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := c.Do(background, "PING").Err(); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// At Close, what was not taken to be written was never sent, also if a write is stuck; what was taken may have been executed.
func TestCloseTellsThoseWhoWereNotTakenThatTheyWereNeverSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{}, 1)
		s := newScript(t)
		c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &gated{nc, gate} })})
		first := later(func() Reply { return c.Do(background, "GET", "first") })
		p.expects("GET first")
		gate <- struct{}{}
		taken := later(func() Reply { return c.Do(background, "GET", "taken") })
		synctest.Wait()
		var rest []func() Reply
		for range 10 {
			rest = append(rest, later(func() Reply { return c.Do(background, "SET", "k", strings.Repeat("x", 20<<10)) }))
			synctest.Wait()
		}
		c.Close()
		for _, reply := range []func() Reply{first, taken} {
			if err := reply().Err(); !errors.Is(err, ErrClosed) || !MaybeExecuted(err) {
				t.Errorf("written, or being written: %v", err)
			}
		}
		for i, reply := range rest {
			if err := reply().Err(); !errors.Is(err, ErrClosed) || MaybeExecuted(err) {
				t.Errorf("untaken, number %d: %v", i, err)
			}
		}
		<-gate
	})
}

// Under a write that is stuck everybody still obeys context and Timeout at once.
func TestAWriteThatIsStuckHoldsUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{}, 1)
		s := newScript(t)
		c, p := s.connect(Options{Timeout: time.Second, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &gated{nc, gate} })})
		go c.Do(background, "GET", "first")
		p.expects("GET first")
		gate <- struct{}{}
		go c.Do(background, "GET", "second") // which the flusher writes
		synctest.Wait()
		for i := range 1 {
			ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
			start := time.Now()
			if err := c.Do(ctx, "GET", "k").Err(); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 300*time.Millisecond {
				t.Errorf("number %d: %v after %v", i, err, time.Since(start))
			}
			start = time.Now()
			if err := c.Do(background, "SET", "k", strings.Repeat("x", 100<<10)).Err(); !errors.Is(err, ErrTimeout) || MaybeExecuted(err) || time.Since(start) > 1200*time.Millisecond {
				t.Errorf("number %d, large: %v after %v", i, err, time.Since(start))
			}
			cancel()
		}
		<-gate
		p.expects("GET second")
		p.expects("GET k") // its caller has left; its place is kept
		p.says(strings.Repeat("+late\r\n", 3))
		mine := later(func() Reply { return c.Do(background, "GET", "mine") })
		p.expects("GET mine")
		p.says("+mine\r\n")
		if got, err := mine().Text(); got != "mine" {
			t.Error(got, err)
		}
		if n := len(s.dialled()); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
}

// clogged is a connection whose peer, when it is full, takes no byte any more.
type clogged struct {
	net.Conn
	full   atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (c *clogged) Write(b []byte) (int, error) {
	if c.full.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *clogged) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// clogging is the script's dialer, and the connections that it has made, in order.
func clogging(s *script) (dial dialer, made chan *clogged) {
	made = make(chan *clogged, 8)
	return through(s.dial, func(nc net.Conn) net.Conn {
		w := &clogged{Conn: nc, closed: make(chan struct{})}
		made <- w
		return w
	}), made
}

// A write that gets nowhere is silence, as with a host that is gone under load: the connection is given up after twice the Timeout, and
// what was not taken goes to the next one.
func TestAWriteThatGetsNowhereIsSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		dial, made := clogging(s)
		c, p := s.connect(Options{Timeout: time.Second, Dialer: dial})
		go c.Do(background, "GET", "first")
		p.expects("GET first")
		(<-made).full.Store(true)
		lost := later(func() Reply { return c.Do(background, "GET", "second") }) // stuck in the flusher's write
		start := time.Now()
		time.Sleep(1500 * time.Millisecond)
		kept := later(func() Reply { return c.Do(background, "GET", "third") })
		next := s.accept()
		if took := time.Since(start); took < 2*time.Second || took > 2300*time.Millisecond {
			t.Errorf("given up after %v, want twice the Timeout", took)
		}
		if err := lost().Err(); !errors.Is(err, ErrTimeout) || !MaybeExecuted(err) {
			t.Error(err)
		}
		next.handshake()
		next.expects("GET third")
		next.says("+third\r\n")
		if got, err := kept().Text(); got != "third" {
			t.Error(got, err)
		}
	})
}

// paced takes its time for each write of the command that is as long as several.
type paced struct {
	net.Conn
	each time.Duration
}

func (p *paced) Write(b []byte) (int, error) {
	if len(b) == 4*maxCopy {
		time.Sleep(p.each)
	}
	return p.Conn.Write(b)
}

// The caller's time is up all the same, but what is on its way is not given up: it would have to begin anew, and for ever.
func TestAWriteThatTakesLongButGetsOnIsNotSilence(t *testing.T) {
	for each, lost := range map[time.Duration]bool{700 * time.Millisecond: false, 5 * time.Second: true} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			c, p := s.connect(Options{Timeout: time.Second, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &paced{nc, each} })})
			size := 10 * 4 * maxCopy
			if err := c.Do(background, "SET", "k", strings.Repeat("x", size)).Err(); !errors.Is(err, ErrTimeout) || !MaybeExecuted(err) {
				t.Error(err)
			}
			if lost {
				s.accept()
				return
			}
			p.expects("SET k " + strings.Repeat("x", size))
			p.says("+OK\r\n")
			next := later(func() Reply { return c.Do(background, "GET", "k") })
			p.expects("GET k")
			p.says("$1\r\nx\r\n")
			if got, err := next().Text(); got != "x" {
				t.Error(got, err)
			}
			if st := c.Stats(); st.Reconnects != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// eager returns the end of the stream together with the last bytes before it, as a Read may.
type eager struct{ net.Conn }

func (e *eager) Read(b []byte) (int, error) {
	n, err := e.Conn.Read(b)
	if err == nil {
		e.Conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		defer e.Conn.SetReadDeadline(time.Time{})
		var more int
		if more, err = e.Conn.Read(b[n:]); errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		n += more
	}
	return n, err
}

func TestRepliesThatComeTogetherWithTheEndAreDelivered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &eager{nc} })})
		first := later(func() Reply { return c.Do(background, "GET", "a") })
		p.expects("GET a")
		second := later(func() Reply { return c.Do(background, "GET", "b") })
		p.expects("GET b")
		p.says("+1\r\n")
		p.Close()
		if got, err := first().Text(); got != "1" {
			t.Errorf("%q, %v", got, err)
		}
		if err := second().Err(); !errors.Is(err, io.EOF) || !MaybeExecuted(err) {
			t.Error(err)
		}
		s.accept().handshake()
	})
}

// fickle reads so many bytes and writes so many, and then fails, in pieces of any size.
type fickle struct {
	net.Conn
	reads, writes atomic.Int64
}

func (f *fickle) Read(b []byte) (int, error) {
	left := f.reads.Load()
	if left <= 0 {
		return 0, syscall.ECONNRESET
	}
	n, err := f.Conn.Read(b[:min(int64(len(b)), left, 1+rand.Int64N(300))])
	f.reads.Add(-int64(n))
	return n, err
}

func (f *fickle) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		left := f.writes.Load()
		if left <= 0 {
			return n, syscall.EPIPE
		}
		var k int
		k, err = f.Conn.Write(b[n:min(int64(len(b)), int64(n)+left, int64(n)+1+rand.Int64N(300))])
		f.writes.Add(-int64(k))
		n += k
	}
	return n, err
}

// However connections end and callers leave: what succeeded was executed, once; what was never sent was not; only what is in
// doubt may have been; and the commands of one caller are executed in their order.
func TestCaseC15NothingIsExecutedTwiceHoweverConnectionsEnd(t *testing.T) {
	for seed := range uint64(24) {
		bubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 5))
			s := memoryServer(t)
			o := Options{
				Addr: s.Addr(), Timeout: []time.Duration{-1, 20 * time.Millisecond, time.Minute}[random.IntN(3)], Backlog: BacklogPolicy(random.IntN(2)),
				MaxInFlight: []int{0, 1, 5}[random.IntN(3)], MaxBacklog: []int{0, 6}[random.IntN(2)], Conns: []int{1, 1, 3}[random.IntN(3)],
			}
			mean := int64(500 << random.IntN(5))
			o.Dialer = through(s.Dial, func(nc net.Conn) net.Conn {
				f := &fickle{Conn: nc}
				f.reads.Store(300 + rand.Int64N(2*mean))
				f.writes.Store(300 + rand.Int64N(2*mean))
				if seed%2 == 1 {
					return &addressed{f, s.Addr()} // a socket, to which callers may write by themselves
				}
				return f
			})
			var c *Client
			for c == nil {
				c, _ = Dial(background, o)
			}
			defer c.Close()
			s.Delay("incr", time.Duration(random.IntN(3))*time.Millisecond)
			const workers = 12
			var succeeded, doubtful, wrong [workers]int64
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(w)+100))
					last, key := int64(0), fmt.Sprint("key:", w)
					for range 60 {
						ctx, cancel := context.WithCancel(background)
						if r.IntN(5) == 0 {
							ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(6))*time.Millisecond)
						}
						commands, got := int64(1), int64(0)
						var err error
						if r.IntN(4) == 0 {
							commands = 2
							var b Batch
							b.Add("INCR", key)
							b.Add("INCR", key)
							var replies []Reply
							if replies, err = c.DoBatch(ctx, &b); err == nil {
								got, err = replies[1].Int64()
							}
						} else {
							got, err = c.Do(ctx, "INCR", key).Int64()
						}
						cancel()
						switch {
						case err == nil:
							if got < last+commands || got > last+commands+doubtful[w] {
								wrong[w]++
								t.Errorf("%s: %d came after %d", key, got, last)
							}
							last = got
							succeeded[w] += commands
						case MaybeExecuted(err):
							doubtful[w] += commands
						}
						time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
					}
				})
			}
			wg.Wait()
			time.Sleep(5 * time.Second)
			for w := range workers {
				var n int64
				err := ErrNoConnection
				for range 1000 {
					var text string
					if text, err = c.Do(background, "GET", fmt.Sprint("key:", w)).Text(); err == nil {
						n, _ = strconv.ParseInt(text, 10, 64)
					} else if errors.Is(err, ErrNull) {
						err = nil
					}
					if err == nil {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				if err != nil || n < succeeded[w] || n > succeeded[w]+doubtful[w] {
					t.Errorf("seed %d: %d succeeded, %d are in doubt, %d were executed (%v)", seed, succeeded[w], doubtful[w], n, err)
				}
			}
		})
	}
}

// sluggish takes a while for each write.
type sluggish struct {
	net.Conn
	most time.Duration
}

func (s *sluggish) Write(b []byte) (int, error) {
	time.Sleep(rand.N(s.most))
	return s.Conn.Write(b)
}

// The time in which we are writing does not count; the time between does, however many writes there are.
func TestSilenceUnderWritesThatTakeAWhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: time.Second, Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &sluggish{nc, time.Millisecond} })})
		go io.Copy(io.Discard, p)
		over := make(chan struct{})
		go func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(1300 * time.Microsecond):
					go c.Do(background, "GET", "k")
				}
			}
		}()
		start := time.Now()
		select {
		case p := <-s.peers:
			go p.serve(answers(nil).to)
			if took := time.Since(start); took < 2*time.Second || took > 5*time.Second {
				t.Errorf("it was given up after %v", took)
			}
		case <-time.After(30 * time.Second):
			t.Error("it was not given up within 30 s")
		}
		close(over)
		c.Close()
		time.Sleep(time.Second) // for the last write
	})
}

// Between the moment when the reader takes a message out of its queue and the one when it is done with it, dst is the reader's, and a
// caller whose context ends waits that long. A long reply makes that time long enough to be met.
func TestACallerWhoLeavesWhileItsReplyIsBeingStoredWaitsForIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 512 << 10
		c, p := newScript(t).connect(Options{})
		raw := fmt.Sprintf("$%d\r\n%s\r\n", size, strings.Repeat("x", size))
		dst, untouched := make([]byte, 0, size), make([]byte, size)
		for i := range 80 {
			ctx, cancel := context.WithCancel(background)
			result := later(func() error {
				got, err := c.DoAppend(ctx, dst, "GET", "k")
				if err == nil && len(got) != size || err != nil && (len(got) > 0 || !MaybeExecuted(err)) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				clear(dst[:size])
				return err
			})
			p.expects("GET k")
			p.says(raw)
			for range i * 100 {
				runtime.Gosched()
			}
			cancel()
			result()
			synctest.Wait()
			if !bytes.Equal(dst[:size], untouched) {
				t.Fatal("dst was written to after the return")
			}
		}
		if st := c.Stats(); st.Answered != 80 || st.InFlight != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// refusing is a connection that, when it is armed, holds a write at its gate and then fails without having sent a byte of it.
type refusing struct {
	net.Conn
	armed *atomic.Bool
	gate  chan struct{}
}

func (r *refusing) Write(b []byte) (int, error) {
	if r.armed.Load() {
		<-r.gate
		return 0, io.ErrClosedPipe
	}
	return r.Conn.Write(b)
}

// What has a reply was received, whatever the socket says of the write: written again on the next connection, it would shift every
// reply behind it.
func TestABatchThatHasAReplyIsNeverWrittenAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		var armed atomic.Bool
		gate := make(chan struct{})
		c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &refusing{nc, &armed, gate} })})
		armed.Store(true)
		batch := later(func() error {
			var b Batch
			b.Add("ECHO", "1")
			b.Add("ECHO", "2")
			_, err := c.DoBatch(background, &b)
			return err
		})
		synctest.Wait()
		mine := later(func() Reply { return c.Do(background, "ECHO", "mine") })
		synctest.Wait()
		p.says("-ERR idle for too long, closing\r\n")
		synctest.Wait()
		p.Close()
		armed.Store(false)
		close(gate)
		next := s.accept()
		next.handshake()
		next.expects("ECHO mine")
		next.says("+mine\r\n")
		if err := batch(); !MaybeExecuted(err) {
			t.Errorf("the batch that was answered in part: %v", err)
		}
		if text, err := mine().Text(); text != "mine" {
			t.Errorf("the command behind it was answered %q, %v", text, err)
		}
	})
}

// No Timeout is so long that it comes around to the past.
func TestTheLongestTimeoutIsLong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{Timeout: math.MaxInt64})
		reply := later(func() Reply { return c.Do(background, "GET", "k") })
		p.expects("GET k")
		time.Sleep(time.Minute)
		p.says("+ok\r\n")
		if text, err := reply().Text(); text != "ok" {
			t.Error(text, err)
		}
	})
}

// reluctant is a connection whose Close blocks, as one that sends its good-bye first may.
type reluctant struct {
	net.Conn
	block chan struct{}
}

func (r *reluctant) Close() error { <-r.block; return r.Conn.Close() }

func TestAConnectionWhoseCloseBlocksHoldsUpNobody(t *testing.T) {
	for _, ends := range []string{"by the server", "by Close"} {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			block := make(chan struct{})
			time.AfterFunc(time.Hour, func() { close(block) })
			c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &reluctant{nc, block} })})
			reply := later(func() Reply { return c.Do(background, "GET", "k") })
			p.expects("GET k")
			start := time.Now()
			if ends == "by Close" {
				c.Close()
			} else {
				p.Close()
			}
			if err := reply().Err(); !MaybeExecuted(err) || time.Since(start) > 0 {
				t.Errorf("ended %s: %v after %v", ends, err, time.Since(start))
			}
			if c.Close(); time.Since(start) > 0 {
				t.Errorf("ended %s: Close took %v", ends, time.Since(start))
			}
			time.Sleep(2 * time.Hour)
		})
	}
}

// The callbacks of a TLS configuration are a user's: one that blocks for ever costs its own goroutine, not the bridge its dialler.
func TestATLSCallbackThatBlocksDoesNotEndTheDialling(t *testing.T) {
	bubble(t, func(t *testing.T) {
		certificate, _ := batontest.SelfSigned("db")
		s := memoryServer(t, batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{certificate}}))
		block := make(chan struct{})
		var handshakes atomic.Int32
		c := dialMemory(t, s, func(o *Options) {
			o.TLS = &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error {
				if handshakes.Add(1) == 2 {
					<-block
				}
				return nil
			}}
		})
		time.Sleep(2 * time.Second)
		s.Cut()
		time.Sleep(time.Minute)
		if err := c.Do(background, "PING").Err(); err != nil {
			t.Errorf("a minute after a TLS callback blocked: %v", err)
		}
		close(block)
	})
}

func TestPushesInAHandshakeTakeBoundedMemory(t *testing.T) {
	var before, after runtime.MemStats
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		go func() {
			p := s.accept()
			large := ">2\r\n+x\r\n$2000000\r\n" + strings.Repeat("x", 2000000) + "\r\n"
			runtime.GC()
			runtime.ReadMemStats(&before)
			for range 50 {
				p.says(large)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			p.handshake()
		}()
		dialOptions(t, Options{Addr: "10.9.0.1:6379", Dialer: s.dial})
	})
	if grown := (int(after.HeapAlloc) - int(before.HeapAlloc)) >> 20; grown > 20 {
		t.Errorf("%d MiB are kept of what a server said before the handshake", grown)
	}
}

// Room in the queue of those in flight is for whoever is next, also when the one before it has left.
func TestRoomIsNoticedWhenTheHeadOfTheBacklogLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		c, p := s.connect(Options{MaxInFlight: 10, Timeout: -1})
		for range 8 {
			go c.Do(background, "GET", "slow")
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(background)
		var b Batch
		for range 5 {
			b.Add("GET", "batch")
		}
		go c.DoBatch(ctx, &b)
		synctest.Wait()
		go c.Do(background, "GET", "single")
		synctest.Wait()
		cancel()
		for range 8 {
			p.expects("GET slow")
		}
		p.expects("GET single")
	})
}

// Close first marks every bridge closed: a dialler that waits for its moment ends, and a dial that is cancelled is no failure.
func TestCloseDuringADialIsNoFailedDial(t *testing.T) {
	for range 50 {
		bubble(t, func(t *testing.T) {
			s := newScript(t)
			j := &journal{}
			c, p := s.connect(Options{OnEvent: j.add, Conns: 2})
			p.Close()
			synctest.Wait()
			c.Close()
			time.Sleep(time.Second)
			if failed := j.of(EventDialFailed); len(failed) > 0 {
				t.Errorf("Close is reported as %v", failed)
			}
		})
	}
}

// halting is a connection that, once, writes half of what it is given and the rest only when its gate opens.
type halting struct {
	net.Conn
	once sync.Once
	gate chan struct{}
}

func (h *halting) Write(b []byte) (n int, err error) {
	if len(b) > maxCopy {
		h.once.Do(func() {
			n, err = h.Conn.Write(b[:len(b)/2])
			<-h.gate
		})
	}
	if err != nil {
		return n, err
	}
	m, err := h.Conn.Write(b[n:])
	return n + m, err
}

// A large value is written from where it was encoded. When its reply overtakes the write, which only a server that answers before it
// has read all can make it do, that memory is not used again while the write goes on.
func TestAReplyThatOvertakesALargeWriteDoesNotFreeItsMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript(t)
		gate := make(chan struct{})
		c, p := s.connect(Options{Dialer: through(s.dial, func(nc net.Conn) net.Conn { return &halting{Conn: nc, gate: gate} })})
		value := strings.Repeat("a", 3*maxCopy)
		first := later(func() Reply { return c.Do(background, "SET", "a", value) })
		synctest.Wait()
		p.says("+OK\r\n")
		if err := first().Err(); err != nil {
			t.Fatal(err)
		}
		second := later(func() Reply { return c.Do(background, "SET", "b", strings.Repeat("b", 3*maxCopy)) })
		synctest.Wait()
		close(gate)
		if got := p.command(); got != "SET a "+value {
			t.Errorf("the value arrived changed: %d of its letters are another's", strings.Count(got, "b"))
		}
		p.command()
		p.says("+OK\r\n")
		if err := second().Err(); err != nil {
			t.Error(err)
		}
	})
}
