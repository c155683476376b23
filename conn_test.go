package baton

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

func TestHandshakeIsWrittenAsWireMdSays(t *testing.T) {
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
