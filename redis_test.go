package baton

// Tests against a real redis-server, with a relay before it where something is to be announced, since Redis itself
// announces nothing. They run in real time. Without a redis-server they are skipped; with BATON_REQUIRE_REDIS=1 they
// fail instead.

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/baton/batontest"
)

// redis is a redis-server that ends with the test.
type redis struct {
	t        *testing.T
	version  [2]int
	dir      string
	addr     string   // a free port of 127.0.0.1; it stays the same when the server is started again
	socket   string   // where it listens, too
	settings []string // further ones, as on its command line

	ended  *exec.Cmd // runs the server, and kills it when its standard input is closed
	killed io.Closer
}

// startRedis starts a server that keeps nothing on disk, unless the settings say otherwise.
func startRedis(t *testing.T, settings ...string) *redis {
	t.Helper()
	out, err := exec.Command("redis-server", "--version").Output()
	r := &redis{t: t, settings: settings}
	_, version, _ := strings.Cut(string(out), "v=")
	fmt.Sscanf(version, "%d.%d", &r.version[0], &r.version[1])
	switch {
	case r.version[0] >= 7:
	case os.Getenv("BATON_REQUIRE_REDIS") == "1":
		t.Fatalf("there is no redis-server of version 7 or newer: %v %s", err, out)
	default:
		t.Skipf("there is no redis-server of version 7 or newer: %v %s", err, out)
	}
	r.dir, err = os.MkdirTemp("", "baton") // t.TempDir is too long a name for a unix socket's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(r.dir) })
	r.socket = filepath.Join(r.dir, "redis.sock")
	t.Cleanup(r.kill)
	for range 3 { // the free port may be somebody else's by the time that the server listens
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r.addr = free.Addr().String()
		free.Close()
		if r.run() {
			return r
		}
		r.kill()
	}
	r.start()
	return r
}

// start starts the server, again after kill, and returns when it answers, if only that it is loading.
func (r *redis) start(settings ...string) {
	r.t.Helper()
	if !r.run(settings...) {
		log, _ := os.ReadFile(filepath.Join(r.dir, "redis.log"))
		r.t.Fatalf("redis-server does not answer:\n%s", log)
	}
}

func (r *redis) run(settings ...string) (answers bool) {
	r.t.Helper()
	_, port, _ := net.SplitHostPort(r.addr)
	args := []string{"--port", port, "--bind", "127.0.0.1", "--unixsocket", r.socket, "--dir", r.dir, "--save", "",
		"--enable-debug-command", "yes", "--loglevel", "warning", "--logfile", "redis.log"}
	// A shell holds the server, so that it ends with this process however that ends.
	const hold = `"$@" & server=$!; read nothing; kill -9 $server; wait $server`
	cmd := exec.Command("sh", append([]string{"-c", hold, "sh", "redis-server"}, slices.Concat(args, r.settings, settings)...)...)
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.ended, r.killed = cmd, stdin
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if r.ping() != "" {
			return true
		}
	}
	return false
}

// ping is what the server answers to a PING on its unix socket, "" if nothing.
func (r *redis) ping() string {
	c, err := net.Dial("unix", r.socket)
	if err != nil {
		return ""
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	io.WriteString(c, "PING\r\n")
	answer := make([]byte, 256)
	n, _ := c.Read(answer)
	return string(answer[:n])
}

// kill ends the server with SIGKILL.
func (r *redis) kill() {
	if r.ended != nil {
		r.killed.Close()
		r.ended.Wait() // its status says that the server was killed
		r.ended = nil
	}
}

// client is a client of the server itself, with options that change may have changed.
func (r *redis) client(change func(*Options)) *Client {
	r.t.Helper()
	o := Options{Addr: r.addr}
	if change != nil {
		change(&o)
	}
	return dialOptions(r.t, o)
}

// admin is a client for what a test does to its server.
func (r *redis) admin() *Client {
	r.t.Helper()
	return r.client(func(o *Options) { o.Maintenance.Mode = Disabled; o.ClientName = "admin" })
}

// must carries out commands, words separated by blanks.
func must(t *testing.T, c *Client, commands ...string) {
	t.Helper()
	for _, command := range commands {
		if err := c.Do(background, words(command)...).Err(); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
	}
}

// words are the arguments of a command written with blanks between them.
func words(command string) (args []any) {
	for _, word := range strings.Fields(command) {
		args = append(args, word)
	}
	return args
}

// spell writes a reply down with its kinds, so that it can be compared.
func spell(r Reply) string {
	elems := make([]string, len(elemsOf(r)))
	for i, elem := range elemsOf(r) {
		elems[i] = spell(elem)
	}
	inner := strings.Join(elems, " ")
	switch r.Kind() {
	case KindNull:
		return "null"
	case KindString:
		return strconv.Quote(textOf(r))
	case KindStatus:
		return "+" + textOf(r)
	case KindBigInt:
		return "(" + textOf(r)
	case KindVerbatim:
		return "=" + strconv.Quote(textOf(r))
	case KindInt:
		return strconv.FormatInt(r.n, 10)
	case KindFloat:
		return strconv.FormatFloat(math.Float64frombits(uint64(r.n)), 'g', -1, 64) + "f"
	case KindBool:
		return strconv.FormatBool(r.n == 1)
	case KindArray:
		return "[" + inner + "]"
	case KindMap:
		return "{" + inner + "}"
	case KindSet:
		slices.Sort(elems) // a server is free to choose their order
		return "<" + strings.Join(elems, " ") + ">"
	case KindError:
		return "-" + r.Err().Error()
	}
	return "?"
}

func TestRedisAnswersOfEveryKind(t *testing.T) {
	r := startRedis(t)
	c := r.client(nil)
	must(t, c, "SET text Hello", "HSET hash a 1 b 2", "ZADD zset 1.5 x inf y", "SADD set b a", "RPUSH list l0 l1", "SET s1 ohmytext",
		"SET s2 mynewtext", "SET empty 0", "SETRANGE empty 0 0")
	for _, tt := range []struct{ command, want string }{
		{"SET text Hello", "+OK"},
		{"GET text", `"Hello"`},
		{"GET none", "null"},
		{"GETRANGE text 1 0", `""`},
		{"STRLEN text", "5"},
		{"DECRBY counter 9223372036854775807", "-9223372036854775807"},
		{"LRANGE list 0 -1", `["l0" "l1"]`},
		{"LRANGE none 0 -1", "[]"},
		{"MGET text none text", `["Hello" null "Hello"]`},
		{"HGETALL hash", `{"a" "1" "b" "2"}`},
		{"HGETALL none", "{}"},
		{"SMEMBERS set", `<"a" "b">`},
		{"ZSCORE zset x", "1.5f"},
		{"ZSCORE zset y", "+Inff"},
		{"ZSCORE zset none", "null"},
		{"ZRANGE zset 0 -1 WITHSCORES", `[["x" 1.5f] ["y" +Inff]]`},
		{"LCS s1 s2", `"mytext"`},
		{"LCS s1 s2 IDX", `{"matches" [[[4 7] [5 8]] [[2 3] [0 1]]] "len" 6}`},
		{"INCR text", "-ERR value is not an integer or out of range"},
		{"DEBUG PROTOCOL string", `"Hello World"`},
		{"DEBUG PROTOCOL integer", "12345"},
		{"DEBUG PROTOCOL double", "3.141f"},
		{"DEBUG PROTOCOL null", "null"},
		{"DEBUG PROTOCOL array", "[0 1 2]"},
		{"DEBUG PROTOCOL set", "<0 1 2>"},
		{"DEBUG PROTOCOL map", "{0 false 1 true 2 false}"},
		{"DEBUG PROTOCOL attrib", `"Some real reply following the attribute"`},
		{"DEBUG PROTOCOL push", `"Some real reply following the push reply"`},
		{"DEBUG PROTOCOL verbatim", `="This is a verbatim\nstring"`},
		{"DEBUG PROTOCOL true", "true"},
		{"DEBUG PROTOCOL false", "false"},
		{"DEBUG PROTOCOL bignum", "(1234567999999999999999999999999999999"},
	} {
		if got := spell(c.Do(background, words(tt.command)...)); got != tt.want {
			t.Errorf("%s: the answer is %s, want %s", tt.command, got, tt.want)
		}
	}
	const script = `redis.setresp(3)
		return {1, "two", {3, {4, {}}}, false, true, {ok="FINE"}, {err="BAD thing"}, {double=-0.5}, {map={a={1}}},
			{set={x=true}}, {big_number="12345678901234567890123"}, {verbatim_string={string="hi", format="txt"}}, redis.call("hgetall", "hash")}`
	const want = `[1 "two" [3 [4 []]] false true +FINE -BAD thing -0.5f {"a" [1]} <"x"> (12345678901234567890123 ="hi" {"a" "1" "b" "2"}]`
	if got := spell(c.Do(background, "EVAL", script, 0)); got != want {
		t.Errorf("the script's answer is %s\nwant %s", got, want)
	}
}

func TestRedisTakesArgumentsOfEveryType(t *testing.T) {
	c := startRedis(t).client(nil)
	for _, tt := range []struct {
		arg  any
		want string
	}{
		{"text", "text"}, {"", ""}, {[]byte("\x00\r\n\xff"), "\x00\r\n\xff"}, {[]byte(nil), ""}, {-7, "-7"}, {int64(math.MinInt64), "-9223372036854775808"},
		{uint64(math.MaxUint64), "18446744073709551615"}, {uint8(8), "8"}, {1.5, "1.5"}, {float32(0.1), "0.1"}, {math.Inf(-1), "-inf"},
		{true, "1"}, {false, "0"},
	} {
		if got, err := c.Do(background, "ECHO", tt.arg).Text(); got != tt.want || err != nil {
			t.Errorf("ECHO of %T %v: %q, %v", tt.arg, tt.arg, got, err)
		}
	}
	if got, err := c.Do(background, "INCRBYFLOAT", "float", math.Pi).Float64(); got != math.Pi || err != nil {
		t.Errorf("INCRBYFLOAT: %v, %v", got, err)
	}
}

func TestRedisErrorsCarryTheirCode(t *testing.T) {
	c := startRedis(t).client(nil)
	must(t, c, "RPUSH list a", "SET text Hello")
	for _, tt := range []struct{ command, code, message string }{
		{"INCR list", "WRONGTYPE", "Operation against a key"},
		{"GET list", "WRONGTYPE", "Operation against a key"},
		{"INCR text", "ERR", "not an integer"},
		{"NOSUCHCOMMAND a", "ERR", "unknown command"},
		{"GET", "ERR", "wrong number of arguments"},
		{"EVALSHA 0123456789012345678901234567890123456789 0", "NOSCRIPT", "No matching script"},
		{"XREADGROUP GROUP g c STREAMS s >", "NOGROUP", "No such key"},
	} {
		err := c.Do(background, words(tt.command)...).Err()
		var s *ServerError
		if !errors.As(err, &s) || s.Code != tt.code || !strings.Contains(s.Message, tt.message) || MaybeExecuted(err) {
			t.Errorf("%s: the error is %v (maybe executed: %v), want %s …%s…", tt.command, err, MaybeExecuted(err), tt.code, tt.message)
		}
	}
	for command, get := range map[string]func(Reply) error{
		"GET text":           func(r Reply) error { _, err := r.Int64(); return err },
		"STRLEN text":        func(r Reply) error { _, err := r.Text(); return err },
		"LRANGE list 0 0":    func(r Reply) error { _, err := r.Map(); return err },
		"HGETALL none":       func(r Reply) error { _, err := r.Bool(); return err },
		"DECR negative":      func(r Reply) error { _, err := r.Uint64(); return err },
		"SET text Hello":     func(r Reply) error { _, err := r.Elems(); return err },
		"SMISMEMBER set a b": func(r Reply) error { _, err := r.Float64(); return err },
	} {
		r := c.Do(background, words(command)...)
		var wrong *TypeError
		if err := get(r); !errors.As(err, &wrong) || wrong.Got != r.Kind() {
			t.Errorf("%s, read as what it is not: %v", command, err)
		}
	}
	if _, err := c.Do(background, "GET", "none").Text(); err != ErrNull {
		t.Errorf("GET of a key that is missing, as text: %v, want ErrNull", err)
	}
	if got, err := c.Do(background, "ECHO", "still here").Text(); got != "still here" || err != nil {
		t.Errorf("the connection does not work after errors: %q, %v", got, err)
	}
	if n := c.Stats().Reconnects; n != 0 {
		t.Errorf("the connection was lost %d times", n)
	}
}

func TestRedisUsers(t *testing.T) {
	r := startRedis(t)
	admin := r.admin()
	must(t, admin, "ACL SETUSER app on >secret ~app:* +@all -config", "ACL SETUSER noping on >secret ~* +@all -ping",
		"ACL SETUSER off off >secret ~* +@all", "ACL SETUSER bare on >secret ~* +ping +get")
	dial := func(username, password string) error {
		c, err := Dial(background, Options{Addr: r.addr, Username: username, Password: password})
		if err == nil {
			c.Close()
		}
		return err
	}
	code := func(err error) string {
		var s *ServerError
		errors.As(err, &s)
		if s == nil {
			return fmt.Sprint(err)
		}
		return s.Code
	}
	c := r.client(func(o *Options) { o.Username, o.Password = "app", "secret" })
	if got, _ := c.Do(background, "ACL", "WHOAMI").Text(); got != "app" {
		t.Errorf("the user is %q, want app", got)
	}
	must(t, c, "SET app:a 1")
	for _, command := range []string{"CONFIG GET dir", "GET other"} {
		if err := c.Do(background, words(command)...).Err(); code(err) != "NOPERM" || MaybeExecuted(err) {
			t.Errorf("%s: %v, want NOPERM", command, err)
		}
	}
	bare := r.client(func(o *Options) { o.Username, o.Password = "bare", "secret" })
	if err := bare.Do(background, "GET", "a").Err(); err != nil {
		t.Errorf("a user who may say PING and GET only: %v", err)
	}
	if err := dial("noping", "secret"); code(err) != "NOPERM" || !strings.Contains(err.Error(), "PING") {
		t.Errorf("a user who may not say PING: %v, want NOPERM of PING", err)
	}
	for _, who := range [][2]string{{"app", "wrong"}, {"nobody", "secret"}, {"off", "secret"}, {"app", ""}} {
		if err := dial(who[0], who[1]); code(err) != "WRONGPASS" {
			t.Errorf("dial as %q: %v, want WRONGPASS", who, err)
		}
	}
	must(t, admin, "CONFIG SET requirepass top")
	if err := dial("", ""); code(err) != "NOAUTH" {
		t.Errorf("dial without a password: %v, want NOAUTH", err)
	}
	if err := dial("", "wrong"); code(err) != "WRONGPASS" {
		t.Errorf("dial with a wrong password alone: %v, want WRONGPASS", err)
	}
	if err := dial("", "top"); err != nil {
		t.Errorf("dial with a password alone: %v", err)
	}
}

func TestRedisCredentialsAreAskedOnEveryDial(t *testing.T) {
	r := startRedis(t)
	admin := r.admin()
	must(t, admin, "ACL SETUSER app on >first ~* +@all")
	var password atomic.Value
	password.Store("first")
	c := r.client(func(o *Options) {
		o.Credentials = func(context.Context) (string, string, error) { return "app", password.Load().(string), nil }
	})
	must(t, c, "SET a 1")
	password.Store("second")
	must(t, admin, "ACL SETUSER app resetpass >second", "CLIENT KILL USER app")
	eventually(t, "a new connection", func() bool { return c.Stats().Reconnects == 1 })
	must(t, c, "SET a 2")
}

func TestRedisWithoutNotifications(t *testing.T) {
	r := startRedis(t)
	before, j, logged := runtime.NumGoroutine(), &journal{}, &lines{}
	c := r.client(func(o *Options) { o.OnEvent, o.Logger = j.add, slog.New(slog.NewTextHandler(logged, nil)) })
	must(t, c, "SET a 1")
	if r.version[0] == 7 {
		if c.bridges[0].cur.deaf == nil {
			t.Error("Redis 7 has granted notifications, which it does not have")
		}
		o := Options{Addr: r.addr}
		o.Maintenance.Mode = Enabled
		_, err := Dial(background, o)
		var s *ServerError
		if !errors.As(err, &s) || s.Code != "ERR" || !strings.Contains(err.Error(), "MAINT_NOTIFICATIONS") {
			t.Errorf("notifications are demanded of a server that has none: %v, want its refusal of the opt-in", err)
		}
	}
	c.Close()
	settled(t, before) // what there is to report is reported
	if text := logged.text(); text != "" {
		t.Errorf("a refused opt-in is not quiet: %s", text)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, e := range j.events {
		if e.Kind != EventRefused || i > 0 {
			t.Errorf("a refused opt-in is not quiet: %v", e)
		}
	}
}

// lines is a log.
type lines struct {
	mu      sync.Mutex
	written []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written = append(l.written, b...)
	return len(b), nil
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.written)
}

func TestRedisDatabaseAndNames(t *testing.T) {
	r := startRedis(t)
	c, zero := r.client(func(o *Options) { o.DB, o.ClientName = 3, "some-name" }), r.client(nil)
	must(t, c, "SET where three")
	must(t, zero, "SET where zero")
	if got, _ := c.Do(background, "GET", "where").Text(); got != "three" {
		t.Errorf("in database 3 there is %q", got)
	}
	if got, _ := c.Do(background, "CLIENT", "GETNAME").Text(); got != "some-name" {
		t.Errorf("CLIENT GETNAME: %q", got)
	}
	info, err := c.Do(background, "CLIENT", "INFO").Text()
	info = " " + strings.Join(strings.Fields(info), " ") + " "
	for _, want := range []string{" name=some-name ", " db=3 ", " resp=3 ", " lib-name=baton ", " lib-ver=" + libVersion + " "} {
		if !strings.Contains(info, want) && (!strings.Contains(want, "lib") || slices.Compare(r.version[:], []int{7, 2}) >= 0) {
			t.Errorf("CLIENT INFO lacks %q: %s, %v", want, info, err)
		}
	}
	if err := c.Do(background, "SELECT", 0).Err(); !errors.Is(err, ErrNotHere) || MaybeExecuted(err) {
		t.Errorf("SELECT: %v, want ErrNotHere", err)
	}
	if _, err := Dial(background, Options{Addr: r.addr, DB: 99}); err == nil || !strings.Contains(err.Error(), "SELECT 99: ERR DB index") {
		t.Errorf("dial of database 99: %v, want the refusal of SELECT", err)
	}
}

func TestRedisOverItsUnixSocket(t *testing.T) {
	r := startRedis(t)
	c := r.client(func(o *Options) { o.Network, o.Addr, o.Maintenance.Mode = "unix", r.socket, Auto })
	must(t, c, "SET a 1")
	must(t, r.admin(), "CLIENT KILL TYPE normal")
	eventually(t, "a new connection", func() bool { return c.Stats().Reconnects == 1 })
	must(t, c, "SET a 2")
}

func TestRedisLargeValues(t *testing.T) {
	c := startRedis(t).client(nil)
	for _, size := range []int{0, 1, 16 << 10, 64<<10 - 1, 64 << 10, 1 << 20, 16 << 20} {
		value := make([]byte, size)
		for i := range value {
			value[i] = byte(i * 31 >> 3)
		}
		must(t, c, "DEL large")
		if err := c.Do(background, "SET", "large", value).Err(); err != nil {
			t.Fatalf("SET of %d bytes: %v", size, err)
		}
		if got, err := c.Do(background, "GET", "large").Text(); got != string(value) || err != nil {
			t.Errorf("GET of %d bytes: %d others, %v", size, len(got), err)
		}
		if got, err := c.DoAppend(background, []byte("x"), "GET", "large"); string(got[:1]) != "x" || !bytes.Equal(got[1:], value) || err != nil {
			t.Errorf("DoAppend of %d bytes: %d others, %v", size, len(got), err)
		}
	}
	var wg sync.WaitGroup // small ones among large ones
	for w := range 8 {
		wg.Go(func() {
			key, value := fmt.Sprintf("mixed:%d", w), strings.Repeat(strconv.Itoa(w), 1+(w%2)<<20)
			for range 4 {
				if err := c.Do(background, "SET", key, value).Err(); err != nil {
					t.Errorf("SET of %d bytes: %v", len(value), err)
				}
				if got, err := c.Do(background, "GET", key).Text(); got != value || err != nil {
					t.Errorf("GET of %d bytes: %d others, %v", len(value), len(got), err)
				}
			}
		})
	}
	wg.Wait()
}

func TestRedisBatches(t *testing.T) {
	c := startRedis(t).client(nil)
	set, get, want := []any{"MSET"}, []any{"MGET"}, make([]string, 1000)
	for i := range want {
		want[i] = strings.Repeat(strconv.Itoa(i), i%64+1)
		set, get = append(set, i, want[i]), append(get, i)
	}
	if err := c.Do(background, set...).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Do(background, get...).Texts(); !slices.Equal(got, want) || err != nil {
		t.Errorf("MGET of 1,000: %d replies, %v", len(got), err)
	}
	var b Batch
	for i := range want {
		b.Add("GET", i)
	}
	b.Add("INCR", 999)
	b.Add("PING")
	replies, err := c.DoBatch(background, &b)
	if err != nil || len(replies) != 1002 {
		t.Fatalf("a batch of 1,002: %d replies, %v", len(replies), err)
	}
	for i := range want {
		if got, err := replies[i].Text(); got != want[i] || err != nil {
			t.Fatalf("reply %d of the batch: %q, %v", i, got, err)
		}
	}
	if got := spell(replies[1000]) + spell(replies[1001]); got != "-ERR value is not an integer or out of range+PONG" {
		t.Errorf("the batch ends with %s", got)
	}
	b.Reset()
	big := strings.Repeat("x", 100_000)
	for range 50 {
		b.Add("ECHO", big)
		b.Add("INCR", "n")
	}
	if replies, err = c.DoBatch(background, &b); err != nil || len(replies) != 100 {
		t.Fatalf("a batch of 5 MB: %d replies, %v", len(replies), err)
	}
	for i := 0; i < 100; i += 2 {
		if n, _ := replies[i+1].Int64(); textOf(replies[i]) != big || n != int64(i/2+1) {
			t.Fatalf("reply %d of the batch of 5 MB is wrong", i)
		}
	}
}

// eventually waits in real time until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	if !comes(so) {
		t.Fatalf("%s: not within %v", what, patience)
	}
}

// patience is for what must come, on whatever machine.
const patience = 2 * time.Minute

// comes waits until something is so, or there is no patience left.
func comes(so func() bool) bool {
	for end := time.Now().Add(patience); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// counters is load that knows what a counter may be. Each worker increments a key of its own, which begins far from all others,
// so a reply that is not its next number, give or take the INCRs that may have been executed before, is somebody
// else's, or its INCR was lost or executed twice.
type counters struct {
	t        *testing.T
	base     string
	c        *Client
	over     atomic.Bool
	wg       sync.WaitGroup
	acked    []atomic.Int64 // by worker, and so are the others
	maybe    []atomic.Int64
	unsent   []atomic.Int64
	mu       sync.Mutex
	failures map[string]int // by text
}

const apart = 1 << 32

// count starts workers that increment until stop is called.
func count(t *testing.T, c *Client, base string, workers int) *counters {
	t.Helper()
	l := &counters{t: t, base: base, c: c, acked: make([]atomic.Int64, workers), maybe: make([]atomic.Int64, workers),
		unsent: make([]atomic.Int64, workers), failures: map[string]int{}}
	for w := range workers {
		if err := c.Do(background, "SET", l.key(w), w*apart).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for w := range workers {
		l.wg.Go(func() {
			for !l.over.Load() {
				l.increment(w)
			}
		})
	}
	return l
}

func (l *counters) key(w int) string { return l.base + strconv.Itoa(w) }

func (l *counters) increment(w int) {
	n, err := l.c.Do(background, "INCR", l.key(w)).Int64()
	n -= int64(w) * apart
	low := l.acked[w].Load() + 1
	high := low + l.maybe[w].Load()
	switch {
	case err == nil:
		if l.acked[w].Store(low); n < low || n > high {
			l.t.Errorf("%s: the answer is %d, want %d to %d", l.key(w), n, low, high)
			l.over.Store(true)
		}
		return
	case MaybeExecuted(err):
		l.maybe[w].Add(1)
	default:
		l.unsent[w].Add(1)
	}
	l.mu.Lock()
	l.failures[err.Error()]++
	l.mu.Unlock()
	time.Sleep(time.Millisecond) // what fails at once would fail a million times
}

// sums are how many INCRs were answered, may have been executed without an answer, and failed without having been sent.
func (l *counters) sums() (acked, maybe, unsent int64) {
	for w := range l.acked {
		acked, maybe, unsent = acked+l.acked[w].Load(), maybe+l.maybe[w].Load(), unsent+l.unsent[w].Load()
	}
	return acked, maybe, unsent
}

// further waits until n more are answered.
func (l *counters) further(n int64) {
	l.t.Helper()
	from, _, _ := l.sums()
	eventually(l.t, fmt.Sprintf("%d more answers", n), func() bool { acked, _, _ := l.sums(); return acked >= from+n })
}

// stop ends the load and compares each counter with what was answered.
func (l *counters) stop() (acked, maybe, unsent int64) {
	l.t.Helper()
	l.over.Store(true)
	l.wg.Wait()
	for w := range l.acked {
		n, err := l.c.Do(background, "GET", l.key(w)).Text()
		got, _ := strconv.ParseInt(n, 10, 64)
		got -= int64(w) * apart
		if low, high := l.acked[w].Load(), l.acked[w].Load()+l.maybe[w].Load(); got < low || got > high || err != nil {
			l.t.Errorf("%s is %d after %d answers and %d more that may have been executed (%v)", l.key(w), got, low, high-low, err)
		}
	}
	acked, maybe, unsent = l.sums()
	l.t.Logf("%d answered, %d maybe executed, %d never sent %v", acked, maybe, unsent, l.failures)
	return acked, maybe, unsent
}

func TestRedisKilledAndStartedAgainUnderLoad(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, policy := range []BacklogPolicy{Queue, FailFast} {
		t.Run([]string{"queue", "failfast"}[policy], func(t *testing.T) {
			r := startRedis(t, "--appendonly", "yes", "--appendfsync", "no") // what was answered is in the file, which outlives the process
			c := r.client(func(o *Options) { o.Backlog = policy })
			l := count(t, c, "k", 32)
			for range 2 {
				l.further(2000)
				r.kill()
				if policy == FailFast {
					eventually(t, "a failure that was never sent", func() bool { _, _, unsent := l.sums(); return unsent > 0 })
				}
				r.start()
				l.further(2000)
			}
			_, maybe, unsent := l.stop()
			if maybe > 2*32 { // each worker has one command in flight
				t.Errorf("%d may have been executed, though no more than 64 were in flight", maybe)
			}
			if policy == Queue && unsent > 0 {
				t.Errorf("%d were never sent, though they could have waited", unsent)
			}
			if n := c.Stats().Reconnects; n != 2 {
				t.Errorf("%d reconnects, want 2", n)
			}
		})
		settled(t, before)
	}
}

func TestRedisIsWaitedForWhileItLoads(t *testing.T) {
	r := startRedis(t, "--appendonly", "yes", "--appendfsync", "no")
	c := r.client(nil)
	var b Batch
	for i := range 2500 {
		b.Add("SET", i, i)
	}
	if _, err := c.DoBatch(background, &b); err != nil {
		t.Fatal(err)
	}
	r.kill()
	r.start("--key-load-delay", "100")
	if answer := r.ping(); !strings.HasPrefix(answer, "-LOADING") {
		t.Skipf("the server is not loading: %q", answer)
	}
	fresh := r.client(nil) // while it loads
	for _, c := range []*Client{c, fresh} {
		if got, err := c.Do(background, "GET", 2499).Text(); got != "2499" || err != nil {
			t.Errorf("GET after loading: %q, %v", got, err)
		}
	}
}

func TestRedisKillsTheConnection(t *testing.T) {
	r := startRedis(t)
	c, admin := r.client(nil), r.admin()
	must(t, admin, "CLIENT KILL TYPE normal")
	eventually(t, "a new connection", func() bool { return c.Stats().Reconnects == 1 })
	must(t, c, "SET a 1") // an idle one that was lost costs nobody anything
	l := count(t, c, "k", 32)
	for range 3 {
		l.further(1000)
		must(t, admin, "CLIENT KILL TYPE normal")
	}
	l.further(1000)
	_, maybe, unsent := l.stop()
	if maybe > 3*32 || unsent > 0 {
		t.Errorf("%d may have been executed, want no more than were in flight; %d were never sent, though they could have waited", maybe, unsent)
	}
}

func TestRedisPausesForLongerThanTimeout(t *testing.T) {
	r := startRedis(t)
	c, admin := r.client(func(o *Options) { o.Timeout = 200 * time.Millisecond }), r.admin()
	l := count(t, c, "k", 32)
	l.further(1000)
	must(t, admin, "CLIENT PAUSE 1200 ALL")
	l.further(1000)
	if _, maybe, unsent := l.stop(); maybe < 32 || unsent == 0 { // those in flight at first, and those that waited for a new connection
		t.Errorf("%d may have been executed and %d were never sent, want at least 32 and some", maybe, unsent)
	}
	for text := range l.failures {
		if !strings.Contains(text, "timeout") && !strings.Contains(text, "not a byte") {
			t.Errorf("an error that is no timeout: %s", text)
		}
	}
	if n := c.Stats().TimedOut; n == 0 {
		t.Error("Stats counts no timeout")
	}
}

// variant is a loaded client of a server behind two relays.
type variant struct {
	name     string
	workers  int
	target   string // of the relays
	change   func(*Options)
	relays   []batontest.Option
	from, to *batontest.Relay
	c        *Client
	load     *counters
	events   journal
}

func (v *variant) begin(t *testing.T) {
	v.from = batontest.NewRelay(v.target, append(v.relays, batontest.CloseAfter(2*time.Second))...) // a machine may stand still for longer than the window
	t.Cleanup(v.from.Close)
	v.to = v.from.Sibling()
	t.Cleanup(v.to.Close)
	o := Options{Addr: v.from.Addr(), OnEvent: v.events.add}
	o.Maintenance.Mode = Enabled
	if v.change != nil {
		v.change(&o)
	}
	v.c = dialOptions(t, o)
	v.load = count(t, v.c, v.name, v.workers)
}

// conns is how many connections move.
func (v *variant) conns() int { return len(v.c.bridges) }

// verdict ends the load after so many handoffs: none may have cost anything.
func (v *variant) verdict(t *testing.T, handoffs int) {
	acked, maybe, unsent := v.load.stop()
	if maybe > 0 || unsent > 0 {
		t.Errorf("of %d INCRs %d may have been executed and %d were never sent", acked, maybe, unsent)
	}
	s := v.c.Stats()
	if s.Failed > 0 || s.TimedOut > 0 || s.Reconnects > 0 || s.HandoffsGivenUp > 0 || s.Handoffs != uint64(handoffs*v.conns()) {
		t.Errorf("Stats: %+v", s)
	}
	for _, kind := range []EventKind{EventLost, EventDialFailed, EventGivenUp} {
		if e := v.events.of(kind); len(e) > 0 {
			t.Errorf("events: %v", e)
		}
	}
	h := s.LastHandoff
	if h.Cut > 0 || h.Closed.Before(h.Promoted) || h.Promoted.Before(h.Ready) || h.Ready.Before(h.Began) || h.Began.Before(h.Received) {
		t.Errorf("the last handoff: %+v", h)
	}
}

// Several clients move back and forth between the relays before one server, all at the same time, since each window takes three seconds.
func TestRedisHandoffsUnderLoad(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("variants", func(t *testing.T) {
		r := startRedis(t)
		must(t, r.admin(), "ACL SETUSER app on >secret ~acl* resetchannels +@all -@dangerous")
		certificate, roots := batontest.SelfSigned("127.0.0.1")
		encrypted := batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})
		variants := []*variant{
			{name: "plain", workers: 64, target: r.addr},
			{name: "tls", workers: 48, target: r.addr, relays: []batontest.Option{encrypted},
				change: func(o *Options) { o.TLS = &tls.Config{RootCAs: roots} }},
			{name: "acl", workers: 32, target: r.addr, change: func(o *Options) { o.Username, o.Password = "app", "secret" }},
			{name: "unix", workers: 32, target: r.socket},
			{name: "conns", workers: 64, target: r.addr, change: func(o *Options) { o.Conns = 2 }},
		}
		for _, v := range variants {
			v.begin(t)
		}
		const handoffs = 3
		for n := 1; n <= handoffs; n++ {
			windows := make([]net.Conn, len(variants)) // each ends with a window, when the relay closes what is left on it
			for i, v := range variants {
				v.load.further(500)
				eventually(t, v.name+": all connections", func() bool { return v.from.OptedIn() == v.conns() })
				var err error
				if windows[i], err = net.Dial("tcp", v.from.Addr()); err != nil {
					t.Fatal(err)
				}
				v.from.Move(v.to.Addr(), time.Second)
			}
			for i, v := range variants {
				eventually(t, v.name+": the handoff", func() bool { return v.c.Stats().Handoffs == uint64(n*v.conns()) })
				io.Copy(io.Discard, windows[i])
				windows[i].Close()
				v.from, v.to = v.to, v.from
			}
		}
		for _, v := range variants {
			t.Run(v.name, func(t *testing.T) { v.verdict(t, handoffs) })
		}
	})
	settled(t, before)
}
