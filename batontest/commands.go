package batontest

// The commands. Each runs on its connection's goroutine with store.mu held, returns its reply for appendValue to encode, and never
// blocks: a blocking command leaves a waiter behind. Everything here is guarded by store.mu.

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const version = "7.4.0"

const (
	ok            = status("OK")
	errWrongType  = fault("WRONGTYPE Operation against a key holding the wrong kind of value")
	errNotInt     = fault("ERR value is not an integer or out of range")
	errSyntax     = fault("ERR syntax error")
	errNoMulti    = fault("ERR Command not allowed inside a transaction")
	errNoAuth     = fault("NOAUTH Authentication required.")
	errWrongPass  = fault("WRONGPASS invalid username-password pair or user is disabled.")
	errNoPassword = fault("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
	errHelloAuth  = fault("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> " +
		"option can be used to authenticate the client and select the RESP protocol version at the same time")
)

func errArity(name string) fault {
	return fault("ERR wrong number of arguments for '" + strings.ReplaceAll(name, " ", "|") + "' command")
}

func noPermission(name string) fault {
	return fault("NOPERM this user has no permissions to run the '" + strings.ReplaceAll(name, " ", "|") + "' command")
}

// A command of the table. Arity counts the name; negative: at least.
type command struct {
	name  string
	arity int
	flags flag
	run   handler
	index int // in the table
}

type handler func(c *session, args [][]byte) any

type flag int

const (
	beforeAuth      flag = 1 << iota
	whileSubscribed      // in protocol 2
	duringMulti          // carried out at once, not queued
	container            // has subcommands
	withReply            // takes effect with its reply when that is delayed

	anyTime = beforeAuth | whileSubscribed | duringMulti
)

func (cmd *command) has(f flag) bool { return cmd.flags&f != 0 }

var commandList = []command{
	{"auth", -2, beforeAuth, cmdAuth, 0},
	{"hello", -1, beforeAuth, cmdHello, 0},
	{"quit", -1, anyTime, func(c *session, _ [][]byte) any { c.quit = true; return ok }, 0},
	{"reset", 1, anyTime, func(c *session, _ [][]byte) any { c.clear(); return status("RESET") }, 0},
	{"ping", -1, whileSubscribed, cmdPing, 0},
	{"echo", 2, 0, func(_ *session, a [][]byte) any { return a[1] }, 0},
	{"select", 2, 0, cmdSelect, 0},
	{"client", -2, container, cmdClient, 0},
	{"command", -1, container, constant([]any{}), 0},
	{"config", -2, container, constant(dict{}), 0},
	{"info", -1, 0, constant(verbatim("# Server\r\nredis_version:" + version + "\r\n")), 0},
	{"debug", -2, container, cmdDebug, 0},
	{"wait", 3, 0, constant(0), 0},

	{"get", 2, 0, cmdGet, 0},
	{"set", -3, 0, cmdSet, 0},
	{"setnx", 3, 0, func(c *session, a [][]byte) any { return oneIf(c.get(a[1]) == nil && c.set(a[1], a[2]) != nil) }, 0},
	{"getset", 3, 0, func(c *session, a [][]byte) any { return cmdSet(c, append(a, []byte("GET"))) }, 0},
	{"getdel", 2, 0, cmdGetDel, 0},
	{"append", 3, 0, edits(stringKind, func(_ *session, e *entry, a [][]byte) any { e.str = append(e.str, a[2]...); return len(e.str) }), 0},
	{"strlen", 2, 0, reads(stringKind, func(e *entry, _ [][]byte) any { return len(e.str) }), 0},
	{"mget", -2, 0, cmdMGet, 0},
	{"mset", -3, 0, cmdMSet, 0},
	{"incr", 2, 0, func(c *session, a [][]byte) any { return c.add(a[1], 1) }, 0},
	{"decr", 2, 0, func(c *session, a [][]byte) any { return c.add(a[1], -1) }, 0},
	{"incrby", 3, 0, func(c *session, a [][]byte) any { return c.addText(a[1], a[2], 1) }, 0},
	{"decrby", 3, 0, func(c *session, a [][]byte) any { return c.addText(a[1], a[2], -1) }, 0},
	{"incrbyfloat", 3, 0, edits(stringKind, cmdIncrByFloat), 0},

	{"del", -2, 0, func(c *session, a [][]byte) any { return count(a[1:], c.delete) }, 0},
	{"unlink", -2, 0, func(c *session, a [][]byte) any { return count(a[1:], c.delete) }, 0},
	{"exists", -2, 0, func(c *session, a [][]byte) any { return count(a[1:], func(k []byte) bool { return c.get(k) != nil }) }, 0},
	{"type", 2, 0, cmdType, 0},
	{"expire", 3, 0, func(c *session, a [][]byte) any { return c.expire(a, time.Second) }, 0},
	{"pexpire", 3, 0, func(c *session, a [][]byte) any { return c.expire(a, time.Millisecond) }, 0},
	{"ttl", 2, 0, func(c *session, a [][]byte) any { return c.ttl(a[1], time.Second) }, 0},
	{"pttl", 2, 0, func(c *session, a [][]byte) any { return c.ttl(a[1], time.Millisecond) }, 0},
	{"persist", 2, 0, cmdPersist, 0},
	{"keys", 2, 0, cmdKeys, 0},
	{"dbsize", 1, 0, func(c *session, _ [][]byte) any { return len(c.st.dbs[c.db]) }, 0},
	{"flushdb", -1, 0, func(c *session, _ [][]byte) any { c.st.flush(c.db); return ok }, 0},
	{"flushall", -1, 0, func(c *session, _ [][]byte) any { c.st.flushAll(); return ok }, 0},

	{"lpush", -3, 0, edits(listKind, cmdPush(true)), 0},
	{"rpush", -3, 0, edits(listKind, cmdPush(false)), 0},
	{"lpop", -2, 0, edits(listKind, cmdPop(true)), 0},
	{"rpop", -2, 0, edits(listKind, cmdPop(false)), 0},
	{"llen", 2, 0, reads(listKind, func(e *entry, _ [][]byte) any { return len(e.list) }), 0},
	{"lrange", 4, 0, reads(listKind, cmdLRange), 0},
	{"lmove", 5, 0, cmdLMove, 0},
	{"blmove", 6, 0, cmdLMove, 0},
	{"blpop", -3, 0, cmdBPop(true), 0},
	{"brpop", -3, 0, cmdBPop(false), 0},

	{"hset", -4, 0, edits(hashKind, cmdHSet), 0},
	{"hget", 3, 0, reads(hashKind, cmdHGet), 0},
	{"hdel", -3, 0, edits(hashKind, cmdHDel), 0},
	{"hgetall", 2, 0, reads(hashKind, cmdHGetAll), 0},
	{"hincrby", 4, 0, edits(hashKind, cmdHIncrBy), 0},
	{"hlen", 2, 0, reads(hashKind, func(e *entry, _ [][]byte) any { return len(e.hash) }), 0},
	{"sadd", -3, 0, edits(setKind, cmdSAdd), 0},
	{"smembers", 2, 0, reads(setKind, func(e *entry, _ [][]byte) any { return set(anys(slices.Sorted(maps.Keys(e.hash)))) }), 0},

	{"multi", 1, duringMulti, cmdMulti, 0},
	{"exec", 1, duringMulti, cmdExec, 0},
	{"discard", 1, duringMulti, cmdDiscard, 0},
	{"watch", -2, duringMulti, cmdWatch, 0},
	{"unwatch", 1, 0, func(c *session, _ [][]byte) any { c.unwatch(); return ok }, 0},

	{"publish", 3, 0, func(c *session, a [][]byte) any { return c.st.publish(channels, a[1], a[2]) }, 0},
	{"spublish", 3, 0, func(c *session, a [][]byte) any { return c.st.publish(shardChannels, a[1], a[2]) }, 0},
	{"subscribe", -2, whileSubscribed | withReply, subscribes(channels), 0},
	{"psubscribe", -2, whileSubscribed | withReply, subscribes(patterns), 0},
	{"ssubscribe", -2, whileSubscribed | withReply, subscribes(shardChannels), 0},
	{"unsubscribe", -1, whileSubscribed, unsubscribes(channels), 0},
	{"punsubscribe", -1, whileSubscribed, unsubscribes(patterns), 0},
	{"sunsubscribe", -1, whileSubscribed, unsubscribes(shardChannels), 0},
}

// commands is the table by name, in upper case as well for speed; read-only after init.
var commands = map[string]*command{}

func init() {
	for i := range commandList {
		cmd := &commandList[i]
		cmd.index = i
		commands[cmd.name], commands[strings.ToUpper(cmd.name)] = cmd, cmd
	}
}

func constant(v any) handler { return func(*session, [][]byte) any { return v } }

// resolve returns the name in lower case, with that of the subcommand if there is one, and the command, nil if unknown.
func resolve(args [][]byte) (string, *command) {
	cmd := commands[string(args[0])]
	if cmd == nil {
		name := strings.ToLower(string(args[0]))
		if cmd = commands[name]; cmd == nil {
			return name, nil
		}
	}
	if cmd.has(container) && len(args) > 1 {
		return cmd.name + " " + strings.ToLower(string(args[1])), cmd
	}
	return cmd.name, cmd
}

// A session is what the server knows about a connection.
type session struct {
	srv *Server
	p   *peer
	st  *store

	reply  []byte  // of the command at hand
	late   func()  // carries it out and answers it, in place of reply; nil: it was carried out
	waiter *waiter // set while the connection waits
	quit   bool

	proto, db  int
	user, name string
	authed     bool
	subs       [3]map[string]bool // names by kind

	multi   bool
	failed  bool // something could not be queued
	dirty   bool // a watched key has changed
	queue   []queued
	watches []place
}

type queued struct {
	name string
	cmd  *command
	args [][]byte
}

func newSession(s *Server, p *peer) *session {
	c := &session{srv: s, p: p, st: s.store}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	c.clear()
	s.store.sessions[p.id] = c
	return c
}

// clear is RESET.
func (c *session) clear() {
	c.endMulti()
	for kind := range c.subs {
		c.unsubscribe(kind, nil)
		c.subs[kind] = map[string]bool{}
	}
	c.proto, c.db, c.user, c.name, c.authed = 2, 0, "default", "", len(c.st.users) == 0
	c.srv.optOut(c.p)
}

func (c *session) end() {
	c.st.mu.Lock()
	defer c.st.mu.Unlock()
	c.clear()
	delete(c.st.sessions, c.p.id)
}

// dispatch decides what becomes of a command, in the order in which Redis does, and encodes its reply. It returns how
// late that is to be.
func (c *session) dispatch(args [][]byte) time.Duration {
	name, cmd := resolve(args)
	h := c.srv.hookFor(name)
	var reply any
	if problem := c.refuse(name, cmd, args, h.deny); h.raw != "" {
		c.srv.count(name, cmd)
		reply = raw(h.raw)
	} else if problem != "" {
		c.failed = c.multi
		reply = problem
	} else if c.multi && !cmd.has(duringMulti) {
		c.queue = append(c.queue, queued{name, cmd, clone(args)})
		h.delay = 0
		reply = status("QUEUED")
	} else if c.srv.count(name, cmd); h.delay > 0 && cmd.has(withReply) {
		args = clone(args)
		c.late = func() { c.p.write(appendValue(nil, c.proto, cmd.run(c, args))) }
	} else {
		reply = cmd.run(c, args)
		c.st.serve()
	}
	c.reply = appendValue(c.reply[:0], c.proto, reply)
	if c.waiter != nil {
		return 0
	}
	return h.delay
}

// answer has the reply written.
func (c *session) answer() {
	if late := c.late; late != nil {
		c.late = nil
		late()
		return
	}
	c.p.write(c.reply)
}

// count is called with store.mu held.
func (s *Server) count(name string, cmd *command) {
	if cmd != nil {
		s.counts[cmd.index]++
	}
	if cmd == nil || cmd.has(container) {
		s.unlisted[name]++
	}
}

// refuse returns why a command is not to be carried out, or "".
func (c *session) refuse(name string, cmd *command, args [][]byte, deny bool) fault {
	switch {
	case cmd == nil || c.srv.cfg.protocol2 && cmd.name == "hello":
		return unknown(args)
	case cmd.arity > 0 && len(args) != cmd.arity || len(args) < -cmd.arity:
		return errArity(cmd.name)
	case !c.authed && !cmd.has(beforeAuth):
		return errNoAuth
	case deny:
		return noPermission(name)
	case c.proto == 2 && c.subscribed() && !cmd.has(whileSubscribed):
		return fault("ERR Can't execute '" + strings.ReplaceAll(name, " ", "|") +
			"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context")
	}
	return ""
}

func unknown(args [][]byte) fault {
	var b strings.Builder
	fmt.Fprintf(&b, "ERR unknown command '%.128s', with args beginning with: ", args[0])
	for i := 1; i < len(args) && b.Len() < 190; i++ {
		fmt.Fprintf(&b, "'%.128s' ", args[i])
	}
	return fault(b.String())
}

func clone(args [][]byte) [][]byte {
	out := make([][]byte, len(args))
	for i, a := range args {
		out[i] = bytes.Clone(a)
	}
	return out
}

// The connection.

func cmdPing(c *session, args [][]byte) any {
	switch {
	case len(args) > 2:
		return errArity("ping")
	case c.proto == 2 && c.subscribed():
		return []any{"pong", bytes.Join(args[1:], nil)}
	case len(args) == 2:
		return args[1]
	}
	return status("PONG")
}

func cmdSelect(c *session, args [][]byte) any {
	n, err := strconv.Atoi(string(args[1]))
	if err != nil {
		return errNotInt
	}
	if n < 0 || n >= len(c.st.dbs) {
		return fault("ERR DB index is out of range")
	}
	c.db = n
	return ok
}

func cmdAuth(c *session, args [][]byte) any {
	switch {
	case len(args) > 3:
		return errSyntax
	case len(args) == 3:
		return c.login(string(args[1]), string(args[2]))
	case c.st.users["default"] == "":
		return errNoPassword
	}
	return c.login("default", string(args[1]))
}

// login returns ok, or an error: then the connection stays what it was.
func (c *session) login(user, password string) any {
	want, known := c.st.users[user]
	if known && want == password || len(c.st.users) == 0 && user == "default" {
		c.user, c.authed = user, true
		return ok
	}
	return errWrongPass
}

func cmdHello(c *session, args [][]byte) any {
	proto, name := c.proto, c.name
	if len(args) > 1 {
		var err error
		if proto, err = strconv.Atoi(string(args[1])); err != nil {
			return fault("ERR Protocol version is not an integer or out of range")
		}
		if proto != 2 && proto != 3 {
			return fault("NOPROTO unsupported protocol version")
		}
	}
	for i := 2; i < len(args); {
		switch opt, left := strings.ToUpper(string(args[i])), len(args)-i-1; {
		case opt == "AUTH" && left >= 2:
			if problem := c.login(string(args[i+1]), string(args[i+2])); problem != ok {
				return problem
			}
			i += 3
		case opt == "SETNAME" && left >= 1:
			name = string(args[i+1])
			i += 2
		default:
			return fault("ERR Syntax error in HELLO option '" + string(args[i]) + "'")
		}
	}
	if !c.authed {
		return errHelloAuth
	}
	c.proto, c.name = proto, name
	if proto == 2 {
		c.srv.optOut(c.p)
	}
	return dict{"server", "redis", "version", version, "proto", proto, "id", c.p.id, "mode", "standalone", "role", "master", "modules", []any{}}
}

func cmdClient(c *session, args [][]byte) any {
	sub, rest := strings.ToLower(string(args[1])), args[2:]
	arity := map[string]int{"id": 0, "getname": 0, "setname": 1, "info": 0, "setinfo": 2, "no-evict": 1, "no-touch": 1}
	if want, listed := arity[sub]; listed && want != len(rest) {
		return errArity("client " + sub)
	}
	switch sub {
	case "maint_notifications":
		if c.multi {
			return errNoMulti
		}
		opt := texts(rest)
		c.late = func() { c.srv.node.optIn(c.p, opt, c.proto) }
		return several{}
	case "id":
		return c.p.id
	case "getname":
		if c.name == "" {
			return nil
		}
		return c.name
	case "setname":
		if bytes.ContainsAny(rest[0], " \r\n") {
			return fault("ERR Client names cannot contain spaces, newlines or special characters.")
		}
		c.name = string(rest[0])
		return ok
	case "info":
		return verbatim(c.info())
	case "list":
		var b strings.Builder
		for _, id := range slices.Sorted(maps.Keys(c.st.sessions)) {
			b.WriteString(c.st.sessions[id].info())
		}
		return verbatim(b.String())
	case "kill":
		return c.kill(texts(rest))
	case "setinfo", "no-evict", "no-touch":
		return ok
	}
	return fault("ERR unknown subcommand '" + string(args[1]) + "'. Try CLIENT HELP.")
}

// kill knows the form ID n. It spares this connection until it has its reply.
func (c *session) kill(args []string) any {
	if len(args) != 2 || !strings.EqualFold(args[0], "id") {
		return errSyntax
	}
	id, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return fault("ERR client-id should be greater than 0")
	}
	switch target := c.st.sessions[id]; target {
	case nil:
		return 0
	case c:
		c.quit = true
	default:
		target.p.kill(false)
	}
	return 1
}

func (c *session) info() string {
	return fmt.Sprintf("id=%d addr=%s laddr=%s name=%s db=%d sub=%d psub=%d ssub=%d user=%s resp=%d\n", c.p.id, c.p.raw.RemoteAddr(),
		c.p.raw.LocalAddr(), c.name, c.db, len(c.subs[channels]), len(c.subs[patterns]), len(c.subs[shardChannels]), c.user, c.proto)
}

// Replies of DEBUG PROTOCOL, which has one of each type: in protocol 2, and in 3 where that differs.
var debugReplies = map[string][2]string{
	"string":   {"$11\r\nHello World\r\n"},
	"integer":  {":12345\r\n"},
	"double":   {"$5\r\n3.141\r\n", ",3.141\r\n"},
	"null":     {"$-1\r\n", "_\r\n"},
	"array":    {"*3\r\n:0\r\n:1\r\n:2\r\n"},
	"set":      {"*3\r\n:0\r\n:1\r\n:2\r\n", "~3\r\n:0\r\n:1\r\n:2\r\n"},
	"map":      {"*6\r\n:0\r\n:0\r\n:1\r\n:1\r\n:2\r\n:0\r\n", "%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n"},
	"attrib":   {"$5\r\nreply\r\n", "|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n$5\r\nreply\r\n"},
	"push":     {"-ERR RESP2 is not supported by this command\r\n", ">2\r\n$16\r\nserver-cpu-usage\r\n:42\r\n$5\r\nreply\r\n"},
	"verbatim": {"$25\r\nThis is a verbatim\nstring\r\n", "=29\r\ntxt:This is a verbatim\nstring\r\n"},
	"bignum":   {"$37\r\n1234567999999999999999999999999999999\r\n", "(1234567999999999999999999999999999999\r\n"},
	"true":     {":1\r\n", "#t\r\n"},
	"false":    {":0\r\n", "#f\r\n"},
}

func cmdDebug(c *session, args [][]byte) any {
	if len(args) == 3 && strings.EqualFold(string(args[1]), "protocol") {
		forms := debugReplies[strings.ToLower(string(args[2]))]
		if c.proto == 3 && forms[1] != "" {
			return raw(forms[1])
		}
		if forms[0] != "" {
			return raw(forms[0])
		}
	}
	return fault("ERR unknown subcommand or wrong number of arguments for '" + string(args[1]) + "'. Try DEBUG HELP.")
}

// Transactions.

func cmdMulti(c *session, _ [][]byte) any {
	if c.multi {
		return fault("ERR MULTI calls can not be nested")
	}
	c.multi = true
	return ok
}

func cmdExec(c *session, _ [][]byte) any {
	defer c.endMulti()
	switch {
	case !c.multi:
		return fault("ERR EXEC without MULTI")
	case c.failed:
		return fault("EXECABORT Transaction discarded because of previous errors.")
	case c.dirty:
		return noList{}
	}
	replies := []any{}
	for _, q := range c.queue {
		c.srv.count(q.name, q.cmd)
		replies = append(replies, raw(appendValue(nil, c.proto, q.cmd.run(c, q.args))))
	}
	return replies
}

func cmdDiscard(c *session, _ [][]byte) any {
	if !c.multi {
		return fault("ERR DISCARD without MULTI")
	}
	c.endMulti()
	return ok
}

func (c *session) endMulti() {
	c.multi, c.failed, c.queue = false, false, nil
	c.unwatch()
}

func cmdWatch(c *session, args [][]byte) any {
	if c.multi {
		return fault("ERR WATCH inside MULTI is not allowed")
	}
	for _, k := range texts(args[1:]) {
		at := place{c.db, k}
		join(c.st.watched, at, c)
		c.watches = append(c.watches, at)
	}
	return ok
}

func (c *session) unwatch() {
	for _, at := range c.watches {
		leave(c.st.watched, at, c)
	}
	c.watches, c.dirty = nil, false
}

// Publish and subscribe.

const (
	channels = iota
	patterns
	shardChannels
)

var subPrefix = [3]string{"", "p", "s"}

func (c *session) subscribed() bool {
	return len(c.subs[channels])+len(c.subs[patterns])+len(c.subs[shardChannels]) > 0
}

func subscribes(kind int) handler {
	return func(c *session, args [][]byte) any { return c.subscribe(kind, texts(args[1:])) }
}

func unsubscribes(kind int) handler {
	return func(c *session, args [][]byte) any { return c.unsubscribe(kind, texts(args[1:])) }
}

func (c *session) subscribe(kind int, names []string) any {
	var confirmed several
	for _, name := range names {
		c.subs[kind][name] = true
		join(c.st.subs[kind], name, c)
		confirmed = append(confirmed, c.confirm(kind, "subscribe", name))
	}
	return confirmed
}

func (c *session) unsubscribe(kind int, names []string) any {
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(c.subs[kind]))
	}
	var confirmed several
	for _, name := range names {
		delete(c.subs[kind], name)
		leave(c.st.subs[kind], name, c)
		confirmed = append(confirmed, c.confirm(kind, "unsubscribe", name))
	}
	if len(names) == 0 {
		return c.confirm(kind, "unsubscribe", nil)
	}
	return confirmed
}

// confirm counts shard channels apart, as Redis does.
func (c *session) confirm(kind int, verb string, name any) push {
	n := len(c.subs[channels]) + len(c.subs[patterns])
	if kind == shardChannels {
		n = len(c.subs[shardChannels])
	}
	return push{subPrefix[kind] + verb, name, n}
}

func (st *store) publish(kind int, channel, payload []byte) (receivers int) {
	deliver := func(to map[*session]bool, message push) {
		for c := range to {
			c.p.push(appendValue(nil, c.proto, message))
		}
		receivers += len(to)
	}
	deliver(st.subs[kind][string(channel)], push{subPrefix[kind] + "message", channel, payload})
	if kind == channels {
		for pattern, to := range st.subs[patterns] {
			if matches(pattern, string(channel)) {
				deliver(to, push{"pmessage", pattern, channel, payload})
			}
		}
	}
	return receivers
}
