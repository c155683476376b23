package batontest

// The data and the commands. A command runs on its connection's goroutine with store.mu held and appends its reply to
// session.reply. Everything here is guarded by store.mu; nothing here blocks: a blocking command leaves a waiter behind.

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A store is the data, and who waits for changes to it.
type store struct {
	mu       sync.Mutex
	dbs      [16]map[string]*entry
	users    map[string]string               // passwords; empty: nobody need authenticate
	sessions map[int64]*session              // by connection
	watched  map[place]map[*session]bool     // WATCH
	waiting  map[place][]*waiter             // blocking commands, first come first served
	filled   []place                         // lists that the command at hand has added to
	subs     [3]map[string]map[*session]bool // subscribers by kind and name
}

// A place is a key of a database.
type place struct {
	db  int
	key string
}

// An entry is a value: of the fields from str on, one is in use.
type entry struct {
	kind   kind
	expire time.Time // zero: never
	str    []byte
	list   [][]byte
	hash   map[string]string
	set    map[string]bool
}

type kind string

const (
	stringKind kind = "string"
	listKind   kind = "list"
	hashKind   kind = "hash"
	setKind    kind = "set"
)

// Kinds of subscription.
const (
	channels = iota
	patterns
	shardChannels
)

var subKinds = [3]struct{ prefix, message string }{{"", "message"}, {"p", "pmessage"}, {"s", "smessage"}}

// A waiter is a blocking command that has found nothing.
type waiter struct {
	c       *session
	places  []place
	pop     func(place) // takes from the list there, and replies
	none    func()      // replies that there was nothing
	served  chan struct{}
	timeout time.Duration // 0: none
}

func newStore() *store {
	st := &store{
		users:    map[string]string{},
		sessions: map[int64]*session{},
		watched:  map[place]map[*session]bool{},
		waiting:  map[place][]*waiter{},
	}
	for i := range st.dbs {
		st.dbs[i] = map[string]*entry{}
	}
	for i := range st.subs {
		st.subs[i] = map[string]map[*session]bool{}
	}
	return st
}

// A session is what the server knows about a connection.
type session struct {
	srv *Server
	p   *peer
	st  *store

	reply  []byte   // of the command at hand
	optIn  []string // the arguments of an opt-in at hand, which is carried out with its reply
	waiter *waiter
	quit   bool

	proto, db  int
	user, name string
	authed     bool
	subs       [3]map[string]bool

	multi   bool
	failed  bool // something could not be queued
	dirty   bool // a watched key has changed
	queue   []queued
	watches []place
}

type queued struct {
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
	c.unwatch()
	c.endMulti()
	for kind := range c.subs {
		for name := range c.subs[kind] {
			c.st.leave(c, kind, name)
		}
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

// answer has the reply written.
func (c *session) answer() {
	if c.optIn != nil {
		c.srv.node.optIn(c.p, c.optIn, c.proto)
		c.optIn = nil
	}
	c.p.write(c.reply)
}

// dispatch decides what becomes of a command, in the order in which Redis does. It returns how late the reply is to be.
func (c *session) dispatch(args [][]byte) time.Duration {
	c.reply, c.waiter = c.reply[:0], nil
	name, cmd := resolve(args)
	h := c.srv.hookFor(args)
	switch {
	case h.raw != "":
		c.srv.count(name, cmd)
		c.reply = append(c.reply, h.raw...)
	case !c.admit(name, cmd, args, h.deny):
		c.failed = c.multi
	case c.multi && !cmd.has(duringMulti):
		c.queue = append(c.queue, queued{cmd, clone(args)})
		c.simple("QUEUED")
		return 0
	default:
		c.run(name, cmd, args)
		c.st.serve()
	}
	if c.waiter != nil {
		return 0
	}
	return h.delay
}

func (c *session) run(name string, cmd *command, args [][]byte) {
	c.srv.count(name, cmd)
	cmd.run(c, args)
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

// admit replies with an error and returns false if the command is not to be carried out.
func (c *session) admit(name string, cmd *command, args [][]byte, deny bool) bool {
	subscriber := c.proto == 2 && len(c.subs[channels])+len(c.subs[patterns])+len(c.subs[shardChannels]) > 0
	switch {
	case cmd == nil || c.srv.cfg.protocol2 && cmd.name == "hello":
		c.unknown(args)
	case cmd.arity > 0 && len(args) != cmd.arity || len(args) < -cmd.arity:
		c.arity(cmd.name)
	case !c.authed && !cmd.has(beforeAuth):
		c.error("NOAUTH Authentication required.")
	case deny:
		c.reply = append(c.reply, noPermission(name)...)
	case subscriber && !cmd.has(whileSubscribed):
		c.error("ERR Can't execute '" + strings.ReplaceAll(name, " ", "|") +
			"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context")
	default:
		return true
	}
	return false
}

func (c *session) unknown(args [][]byte) {
	var b strings.Builder
	fmt.Fprintf(&b, "ERR unknown command '%.128s', with args beginning with: ", args[0])
	for _, a := range args[1:] {
		if b.Len() > 190 {
			break
		}
		fmt.Fprintf(&b, "'%.128s' ", a)
	}
	c.error(strings.NewReplacer("\r", " ", "\n", " ").Replace(b.String()))
}

// A command of the table. Arity counts the name; negative: at least.
type command struct {
	name  string
	arity int
	flags flag
	run   func(*session, [][]byte)
	index int
}

type flag int

const (
	beforeAuth      flag = 1 << iota
	whileSubscribed      // in protocol 2
	duringMulti          // carried out at once, not queued
	container            // has subcommands
)

func (cmd *command) has(f flag) bool { return cmd.flags&f != 0 }

var (
	commandList []*command
	commands    = map[string]*command{} // read-only after init; upper case as well, for speed
)

func init() {
	commandList = []*command{
		{"auth", -2, beforeAuth, cmdAuth, 0},
		{"hello", -1, beforeAuth, cmdHello, 0},
		{"quit", -1, beforeAuth | whileSubscribed | duringMulti, func(c *session, _ [][]byte) { c.ok(); c.quit = true }, 0},
		{"reset", 1, beforeAuth | whileSubscribed | duringMulti, func(c *session, _ [][]byte) { c.clear(); c.simple("RESET") }, 0},
		{"ping", -1, whileSubscribed, cmdPing, 0},
		{"echo", 2, 0, func(c *session, a [][]byte) { c.bulk(a[1]) }, 0},
		{"select", 2, 0, cmdSelect, 0},
		{"client", -2, container, cmdClient, 0},
		{"command", -1, 0, func(c *session, _ [][]byte) { c.array(0) }, 0},
		{"config", -2, container, func(c *session, _ [][]byte) { c.mapHead(0) }, 0},
		{"info", -1, 0, func(c *session, _ [][]byte) { c.verbatim("# Server\r\nredis_version:" + version + "\r\n") }, 0},
		{"debug", -2, container, cmdDebug, 0},
		{"wait", 3, 0, func(c *session, _ [][]byte) { c.int(0) }, 0},

		{"get", 2, 0, cmdGet, 0},
		{"set", -3, 0, cmdSet, 0},
		{"setnx", 3, 0, func(c *session, a [][]byte) { c.bool(c.setIf(a[1], a[2], false)) }, 0},
		{"getset", 3, 0, func(c *session, a [][]byte) { cmdGet(c, a[:2]); c.setUnlessError(a[1], a[2]) }, 0},
		{"getdel", 2, 0, func(c *session, a [][]byte) { cmdGet(c, a); c.deleteUnlessError(a[1]) }, 0},
		{"append", 3, 0, cmdAppend, 0},
		{"strlen", 2, 0, func(c *session, a [][]byte) { c.with(a[1], stringKind, func(e *entry) { c.int(len(e.str)) }) }, 0},
		{"mget", -2, 0, cmdMGet, 0},
		{"mset", -3, 0, cmdMSet, 0},
		{"incr", 2, 0, func(c *session, a [][]byte) { c.add(a[1], 1) }, 0},
		{"decr", 2, 0, func(c *session, a [][]byte) { c.add(a[1], -1) }, 0},
		{"incrby", 3, 0, func(c *session, a [][]byte) { c.addText(a[1], a[2], 1) }, 0},
		{"decrby", 3, 0, func(c *session, a [][]byte) { c.addText(a[1], a[2], -1) }, 0},
		{"incrbyfloat", 3, 0, cmdIncrByFloat, 0},

		{"del", -2, 0, func(c *session, a [][]byte) { c.countKeys(a[1:], c.delete) }, 0},
		{"unlink", -2, 0, func(c *session, a [][]byte) { c.countKeys(a[1:], c.delete) }, 0},
		{"exists", -2, 0, func(c *session, a [][]byte) { c.countKeys(a[1:], func(k []byte) bool { return c.get(k) != nil }) }, 0},
		{"type", 2, 0, cmdType, 0},
		{"expire", 3, 0, func(c *session, a [][]byte) { c.expire(a, time.Second) }, 0},
		{"pexpire", 3, 0, func(c *session, a [][]byte) { c.expire(a, time.Millisecond) }, 0},
		{"ttl", 2, 0, func(c *session, a [][]byte) { c.ttl(a[1], time.Second) }, 0},
		{"pttl", 2, 0, func(c *session, a [][]byte) { c.ttl(a[1], time.Millisecond) }, 0},
		{"persist", 2, 0, cmdPersist, 0},
		{"keys", 2, 0, cmdKeys, 0},
		{"dbsize", 1, 0, func(c *session, _ [][]byte) { c.int(len(c.st.dbs[c.db])) }, 0},
		{"flushdb", -1, 0, func(c *session, _ [][]byte) { c.st.flush(c.db); c.ok() }, 0},
		{"flushall", -1, 0, func(c *session, _ [][]byte) { c.st.flushAll(); c.ok() }, 0},

		{"lpush", -3, 0, func(c *session, a [][]byte) { cmdPush(c, a, true) }, 0},
		{"rpush", -3, 0, func(c *session, a [][]byte) { cmdPush(c, a, false) }, 0},
		{"lpop", -2, 0, func(c *session, a [][]byte) { cmdPop(c, a, true) }, 0},
		{"rpop", -2, 0, func(c *session, a [][]byte) { cmdPop(c, a, false) }, 0},
		{"llen", 2, 0, func(c *session, a [][]byte) { c.with(a[1], listKind, func(e *entry) { c.int(len(e.list)) }) }, 0},
		{"lrange", 4, 0, cmdLRange, 0},
		{"lmove", 5, 0, func(c *session, a [][]byte) { cmdLMove(c, a, false) }, 0},
		{"blmove", 6, 0, func(c *session, a [][]byte) { cmdLMove(c, a, true) }, 0},
		{"blpop", -3, 0, func(c *session, a [][]byte) { cmdBPop(c, a, true) }, 0},
		{"brpop", -3, 0, func(c *session, a [][]byte) { cmdBPop(c, a, false) }, 0},

		{"hset", -4, 0, cmdHSet, 0},
		{"hget", 3, 0, cmdHGet, 0},
		{"hdel", -3, 0, cmdHDel, 0},
		{"hgetall", 2, 0, cmdHGetAll, 0},
		{"hincrby", 4, 0, cmdHIncrBy, 0},
		{"hlen", 2, 0, func(c *session, a [][]byte) { c.with(a[1], hashKind, func(e *entry) { c.int(len(e.hash)) }) }, 0},
		{"sadd", -3, 0, cmdSAdd, 0},
		{"smembers", 2, 0, cmdSMembers, 0},

		{"multi", 1, duringMulti, cmdMulti, 0},
		{"exec", 1, duringMulti, cmdExec, 0},
		{"discard", 1, duringMulti, cmdDiscard, 0},
		{"watch", -2, duringMulti, cmdWatch, 0},
		{"unwatch", 1, 0, func(c *session, _ [][]byte) { c.unwatch(); c.ok() }, 0},

		{"subscribe", -2, whileSubscribed, func(c *session, a [][]byte) { c.subscribe(channels, a) }, 0},
		{"psubscribe", -2, whileSubscribed, func(c *session, a [][]byte) { c.subscribe(patterns, a) }, 0},
		{"ssubscribe", -2, whileSubscribed, func(c *session, a [][]byte) { c.subscribe(shardChannels, a) }, 0},
		{"unsubscribe", -1, whileSubscribed, func(c *session, a [][]byte) { c.unsubscribe(channels, a) }, 0},
		{"punsubscribe", -1, whileSubscribed, func(c *session, a [][]byte) { c.unsubscribe(patterns, a) }, 0},
		{"sunsubscribe", -1, whileSubscribed, func(c *session, a [][]byte) { c.unsubscribe(shardChannels, a) }, 0},
		{"publish", 3, 0, func(c *session, a [][]byte) { c.int(c.st.publish(channels, a[1], a[2])) }, 0},
		{"spublish", 3, 0, func(c *session, a [][]byte) { c.int(c.st.publish(shardChannels, a[1], a[2])) }, 0},
	}
	for i, cmd := range commandList {
		cmd.index = i
		commands[cmd.name], commands[strings.ToUpper(cmd.name)] = cmd, cmd
	}
}

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

func clone(args [][]byte) [][]byte {
	out := make([][]byte, len(args))
	for i, a := range args {
		out[i] = bytes.Clone(a)
	}
	return out
}

// Replies.

const (
	errWrongType = "WRONGTYPE Operation against a key holding the wrong kind of value"
	errNotInt    = "ERR value is not an integer or out of range"
	errNotFloat  = "ERR value is not a valid float"
	errSyntax    = "ERR syntax error"
	version      = "7.4.0"
)

func (c *session) simple(s string) { c.reply = append(append(append(c.reply, '+'), s...), "\r\n"...) }
func (c *session) error(s string)  { c.reply = append(append(append(c.reply, '-'), s...), "\r\n"...) }
func (c *session) arity(name string) {
	c.error("ERR wrong number of arguments for '" + name + "' command")
}
func (c *session) ok()           { c.simple("OK") }
func (c *session) int(n int)     { c.reply = appendHead(c.reply, ':', n) }
func (c *session) bulk(b []byte) { c.reply = appendBulk(c.reply, b) }
func (c *session) text(s string) { c.reply = appendBulk(c.reply, s) }
func (c *session) array(n int)   { c.reply = appendHead(c.reply, '*', n) }
func (c *session) head(kind byte, n int) { // an aggregate that protocol 2 sees as an array
	if c.proto == 2 {
		kind = '*'
	}
	c.reply = appendHead(c.reply, kind, n)
}

func (c *session) mapHead(n int) {
	if c.proto == 2 {
		n *= 2
	}
	c.head('%', n)
}

func (c *session) bool(b bool) {
	if b {
		c.int(1)
	} else {
		c.int(0)
	}
}

func (c *session) null()      { c.nullOr("$-1\r\n") }
func (c *session) nullArray() { c.nullOr("*-1\r\n") }

func (c *session) nullOr(proto2 string) {
	if c.proto == 2 {
		c.reply = append(c.reply, proto2...)
	} else {
		c.reply = append(c.reply, "_\r\n"...)
	}
}

func (c *session) verbatim(s string) {
	if c.proto == 2 {
		c.text(s)
	} else {
		c.reply = append(appendHead(c.reply, '=', len(s)+4), "txt:"+s+"\r\n"...)
	}
}

func (c *session) texts(list []string) {
	for _, s := range list {
		c.text(s)
	}
}

// Keys.

func (c *session) get(key []byte) *entry { return c.st.get(c.db, key) }

func (st *store) get(db int, key []byte) *entry {
	e := st.dbs[db][string(key)]
	if e != nil && !e.expire.IsZero() && !time.Now().Before(e.expire) {
		delete(st.dbs[db], string(key))
		return nil
	}
	return e
}

// with calls f with the value of that kind, an empty one if there is none, or replies with an error.
func (c *session) with(key []byte, k kind, f func(*entry)) {
	e := c.get(key)
	if e == nil {
		e = &entry{kind: k}
	}
	if e.kind != k {
		c.error(errWrongType)
		return
	}
	f(e)
}

// edit is with for those who change the value: afterwards it is stored, or deleted if it is empty. f returns whether
// it has changed anything.
func (c *session) edit(key []byte, k kind, f func(*entry) bool) {
	c.with(key, k, func(e *entry) {
		if !f(e) {
			return
		}
		if e.kind != stringKind && len(e.list)+len(e.hash)+len(e.set) == 0 {
			delete(c.st.dbs[c.db], string(key))
		} else {
			c.st.dbs[c.db][string(key)] = e
		}
		c.touch(key)
	})
}

// touch tells those who watch the key.
func (c *session) touch(key []byte) {
	if len(c.st.watched) > 0 {
		for w := range c.st.watched[place{c.db, string(key)}] {
			w.dirty = true
		}
	}
}

func (c *session) set(key, value []byte) *entry {
	e := c.st.dbs[c.db][string(key)]
	if e == nil || e.kind != stringKind {
		e = &entry{kind: stringKind}
		c.st.dbs[c.db][string(key)] = e
	}
	e.str, e.expire = append(e.str[:0], value...), time.Time{}
	c.touch(key)
	return e
}

func (c *session) setIf(key, value []byte, exists bool) bool {
	if (c.get(key) != nil) != exists {
		return false
	}
	c.set(key, value)
	return true
}

func (c *session) setUnlessError(key, value []byte) {
	if c.reply[0] != '-' {
		c.set(key, value)
	}
}

func (c *session) deleteUnlessError(key []byte) {
	if c.reply[0] != '-' {
		c.delete(key)
	}
}

func (c *session) delete(key []byte) bool {
	if c.get(key) == nil {
		return false
	}
	delete(c.st.dbs[c.db], string(key))
	c.touch(key)
	return true
}

func (c *session) countKeys(keys [][]byte, f func([]byte) bool) {
	n := 0
	for _, k := range keys {
		if f(k) {
			n++
		}
	}
	c.int(n)
}

func (st *store) flush(db int) {
	for at, watchers := range st.watched {
		if _, ok := st.dbs[db][at.key]; ok && at.db == db {
			for w := range watchers {
				w.dirty = true
			}
		}
	}
	clear(st.dbs[db])
}

func (st *store) flushAll() {
	for db := range st.dbs {
		st.flush(db)
	}
}

func parseInt(b []byte) (int, bool) {
	n, err := strconv.ParseInt(string(b), 10, 64)
	return int(n), err == nil
}

func (c *session) parseInt(b []byte) (int, bool) {
	n, ok := parseInt(b)
	if !ok {
		c.error(errNotInt)
	}
	return n, ok
}

func cmdGet(c *session, args [][]byte) {
	switch e := c.get(args[1]); {
	case e == nil:
		c.null()
	case e.kind != stringKind:
		c.error(errWrongType)
	default:
		c.bulk(e.str)
	}
}

func cmdSet(c *session, args [][]byte) {
	if len(args) == 3 {
		c.set(args[1], args[2])
		c.ok()
		return
	}
	opt, problem := parseSet(args[3:])
	old := c.get(args[1])
	switch {
	case problem != "":
		c.error(problem)
		return
	case opt.get && old != nil && old.kind != stringKind:
		c.error(errWrongType)
		return
	case opt.get:
		cmdGet(c, args[:2])
	}
	if opt.nx && old != nil || opt.xx && old == nil {
		if !opt.get {
			c.null()
		}
		return
	}
	var expire time.Time
	if old != nil && opt.keep {
		expire = old.expire
	}
	if !opt.expire.IsZero() {
		expire = opt.expire
	}
	c.set(args[1], args[2]).expire = expire
	if !opt.get {
		c.ok()
	}
}

type setOptions struct {
	nx, xx, get, keep bool
	expire            time.Time
}

func parseSet(args [][]byte) (o setOptions, problem string) {
	units := map[string]time.Duration{"EX": time.Second, "EXAT": time.Second, "PX": time.Millisecond, "PXAT": time.Millisecond}
	for i := 0; i < len(args); i++ {
		switch name := strings.ToUpper(string(args[i])); name {
		case "NX":
			o.nx = true
		case "XX":
			o.xx = true
		case "GET":
			o.get = true
		case "KEEPTTL":
			o.keep = true
		case "EX", "PX", "EXAT", "PXAT":
			i++
			if i == len(args) {
				return o, errSyntax
			}
			n, ok := parseInt(args[i])
			if !ok {
				return o, errNotInt
			}
			if n <= 0 {
				return o, "ERR invalid expire time in 'set' command"
			}
			o.expire = time.Now().Add(time.Duration(n) * units[name])
			if strings.HasSuffix(name, "AT") {
				o.expire = time.Unix(0, 0).Add(time.Duration(n) * units[name])
			}
		default:
			return o, errSyntax
		}
	}
	if o.nx && o.xx {
		return o, errSyntax
	}
	return o, ""
}

func cmdAppend(c *session, args [][]byte) {
	c.edit(args[1], stringKind, func(e *entry) bool {
		e.str = append(e.str, args[2]...)
		c.int(len(e.str))
		return true
	})
}

func cmdMGet(c *session, args [][]byte) {
	c.array(len(args) - 1)
	for _, k := range args[1:] {
		if e := c.get(k); e != nil && e.kind == stringKind {
			c.bulk(e.str)
		} else {
			c.null()
		}
	}
}

func cmdMSet(c *session, args [][]byte) {
	if len(args)%2 == 0 {
		c.arity("mset")
		return
	}
	for i := 1; i < len(args); i += 2 {
		c.set(args[i], args[i+1])
	}
	c.ok()
}

func (c *session) addText(key, by []byte, sign int) {
	if n, ok := c.parseInt(by); ok {
		c.add(key, sign*n)
	}
}

func (c *session) add(key []byte, by int) {
	c.edit(key, stringKind, func(e *entry) bool {
		sum, ok := c.sum(e.str, by, errNotInt)
		if ok {
			e.str = strconv.AppendInt(e.str[:0], int64(sum), 10)
			c.int(sum)
		}
		return ok
	})
}

// sum replies with an error if it returns false. Nothing counts as 0.
func (c *session) sum(b []byte, by int, problem string) (int, bool) {
	n, ok := 0, true
	if len(b) > 0 {
		n, ok = parseInt(b)
	}
	if !ok {
		c.error(problem)
		return 0, false
	}
	if sum := n + by; sum > n == (by > 0) {
		return sum, true
	}
	c.error("ERR increment or decrement would overflow")
	return 0, false
}

func cmdIncrByFloat(c *session, args [][]byte) {
	c.edit(args[1], stringKind, func(e *entry) bool {
		old, err1 := strconv.ParseFloat(string(e.str), 64)
		by, err2 := strconv.ParseFloat(string(args[2]), 64)
		if err1 != nil && len(e.str) > 0 || err2 != nil {
			c.error(errNotFloat)
			return false
		}
		e.str = strconv.AppendFloat(e.str[:0], old+by, 'f', -1, 64)
		c.bulk(e.str)
		return true
	})
}

func cmdType(c *session, args [][]byte) {
	if e := c.get(args[1]); e != nil {
		c.simple(string(e.kind))
	} else {
		c.simple("none")
	}
}

func (c *session) expire(args [][]byte, unit time.Duration) {
	n, ok := c.parseInt(args[2])
	if !ok {
		return
	}
	e := c.get(args[1])
	if e != nil {
		e.expire = time.Now().Add(time.Duration(n) * unit)
		c.touch(args[1])
	}
	c.bool(e != nil)
}

func (c *session) ttl(key []byte, unit time.Duration) {
	switch e := c.get(key); {
	case e == nil:
		c.int(-2)
	case e.expire.IsZero():
		c.int(-1)
	default:
		c.int(int((time.Until(e.expire) + unit/2) / unit))
	}
}

func cmdPersist(c *session, args [][]byte) {
	e := c.get(args[1])
	had := e != nil && !e.expire.IsZero()
	if had {
		e.expire = time.Time{}
		c.touch(args[1])
	}
	c.bool(had)
}

func cmdKeys(c *session, args [][]byte) {
	var found []string
	for _, k := range slices.Sorted(maps.Keys(c.st.dbs[c.db])) {
		if matches(string(args[1]), k) && c.get([]byte(k)) != nil {
			found = append(found, k)
		}
	}
	c.array(len(found))
	c.texts(found)
}

// matches knows patterns as path.Match does; to Redis a slash is nothing special.
func matches(pattern, name string) bool {
	unslash := strings.NewReplacer("/", "\x00")
	ok, _ := path.Match(unslash.Replace(pattern), unslash.Replace(name))
	return ok
}

// Lists.

func cmdPush(c *session, args [][]byte, left bool) {
	c.edit(args[1], listKind, func(e *entry) bool {
		for _, v := range args[2:] {
			e.insert(bytes.Clone(v), left)
		}
		c.int(len(e.list))
		c.st.filled = append(c.st.filled, place{c.db, string(args[1])})
		return true
	})
}

func (e *entry) insert(v []byte, left bool) {
	if left {
		e.list = slices.Insert(e.list, 0, v)
	} else {
		e.list = append(e.list, v)
	}
}

func (e *entry) take(left bool) (v []byte) {
	if last := len(e.list) - 1; left {
		v, e.list = e.list[0], e.list[1:]
	} else {
		v, e.list = e.list[last], e.list[:last]
	}
	return v
}

func cmdPop(c *session, args [][]byte, left bool) {
	n, ok := 1, true
	if len(args) > 2 {
		if n, ok = parseInt(args[2]); !ok || n < 0 {
			c.error("ERR value is out of range, must be positive")
			return
		}
	}
	c.edit(args[1], listKind, func(e *entry) bool {
		if len(args) > 2 && len(e.list) > 0 {
			n = min(n, len(e.list))
			c.array(n)
		}
		switch {
		case len(e.list) == 0 && len(args) > 2:
			c.nullArray()
			return false
		case len(e.list) == 0:
			c.null()
			return false
		}
		for range n {
			c.bulk(e.take(left))
		}
		return n > 0
	})
}

func cmdLRange(c *session, args [][]byte) {
	from, ok1 := parseInt(args[2])
	to, ok2 := parseInt(args[3])
	if !ok1 || !ok2 {
		c.error(errNotInt)
		return
	}
	c.with(args[1], listKind, func(e *entry) {
		if from < 0 {
			from = max(0, from+len(e.list))
		}
		if to < 0 {
			to += len(e.list)
		}
		to = min(to, len(e.list)-1)
		c.array(max(0, to-from+1))
		for ; from <= to; from++ {
			c.bulk(e.list[from])
		}
	})
}

func cmdLMove(c *session, args [][]byte, block bool) {
	left, ok1 := parseSide(args[3])
	toLeft, ok2 := parseSide(args[4])
	if !ok1 || !ok2 {
		c.error(errSyntax)
		return
	}
	to := bytes.Clone(args[2])
	move := func(from place) {
		if e := c.get(to); e != nil && e.kind != listKind {
			c.error(errWrongType)
			return
		}
		c.edit([]byte(from.key), listKind, func(e *entry) bool {
			v := e.take(left)
			c.bulk(v)
			if from.key == string(to) {
				e.insert(v, toLeft)
				return true
			}
			c.edit(to, listKind, func(e *entry) bool { e.insert(v, toLeft); return true })
			c.st.filled = append(c.st.filled, place{c.db, string(to)})
			return true
		})
	}
	if block {
		c.await(args[1:2], args[5], move, c.null)
		return
	}
	c.with(args[1], listKind, func(e *entry) {
		if len(e.list) == 0 {
			c.null()
		} else {
			move(place{c.db, string(args[1])})
		}
	})
}

func parseSide(b []byte) (left, ok bool) {
	s := strings.ToUpper(string(b))
	return s == "LEFT", s == "LEFT" || s == "RIGHT"
}

func cmdBPop(c *session, args [][]byte, left bool) {
	last := len(args) - 1
	c.await(args[1:last], args[last], func(at place) {
		c.edit([]byte(at.key), listKind, func(e *entry) bool {
			c.array(2)
			c.text(at.key)
			c.bulk(e.take(left))
			return true
		})
	}, c.nullArray)
}

// await calls pop at the first of the keys with a list that is not empty. If there is none, the connection waits; within a transaction
// it does not.
func (c *session) await(keys [][]byte, timeout []byte, pop func(place), none func()) {
	secs, err := strconv.ParseFloat(string(timeout), 64)
	switch {
	case err != nil || secs > 1e9:
		c.error("ERR timeout is not a float or out of range")
		return
	case secs < 0:
		c.error("ERR timeout is negative")
		return
	}
	w := &waiter{c: c, pop: pop, none: none, served: make(chan struct{}), timeout: time.Duration(secs * float64(time.Second))}
	for _, k := range keys {
		at := place{c.db, string(k)}
		switch e := c.get(k); {
		case e == nil:
			w.places = append(w.places, at)
		case e.kind != listKind:
			c.error(errWrongType)
			return
		default:
			pop(at)
			return
		}
	}
	if c.multi {
		none()
		return
	}
	c.waiter = w
	for _, at := range w.places {
		c.st.waiting[at] = append(c.st.waiting[at], w)
	}
}

// serve lets those who wait for the lists that have been added to take from them.
func (st *store) serve() {
	for len(st.filled) > 0 {
		at := st.filled[0]
		st.filled = st.filled[1:]
		for len(st.waiting[at]) > 0 {
			if e := st.get(at.db, []byte(at.key)); e == nil || e.kind != listKind {
				break
			}
			w := st.waiting[at][0]
			st.forget(w)
			if !w.c.p.alive() {
				continue
			}
			w.c.reply = w.c.reply[:0]
			w.pop(at)
			w.c.p.push(w.c.reply)
			close(w.served)
		}
	}
	st.filled = nil
}

func (st *store) forget(w *waiter) {
	for _, at := range w.places {
		st.waiting[at] = slices.DeleteFunc(st.waiting[at], func(o *waiter) bool { return o == w })
		if len(st.waiting[at]) == 0 {
			delete(st.waiting, at)
		}
	}
	w.c.waiter = nil
}

// giveUp ends the wait, unless it was served.
func (c *session) giveUp(w *waiter) {
	if c.waiter != w {
		return
	}
	c.st.forget(w)
	c.reply = c.reply[:0]
	w.none()
	c.p.write(c.reply)
}

// Hashes and sets.

func cmdHSet(c *session, args [][]byte) {
	if len(args)%2 != 0 {
		c.arity("hset")
		return
	}
	c.edit(args[1], hashKind, func(e *entry) bool {
		if e.hash == nil {
			e.hash = map[string]string{}
		}
		before := len(e.hash)
		for i := 2; i < len(args); i += 2 {
			e.hash[string(args[i])] = string(args[i+1])
		}
		c.int(len(e.hash) - before)
		return true
	})
}

func cmdHGet(c *session, args [][]byte) {
	c.with(args[1], hashKind, func(e *entry) {
		if v, ok := e.hash[string(args[2])]; ok {
			c.text(v)
		} else {
			c.null()
		}
	})
}

func cmdHDel(c *session, args [][]byte) {
	c.edit(args[1], hashKind, func(e *entry) bool {
		before := len(e.hash)
		for _, f := range args[2:] {
			delete(e.hash, string(f))
		}
		c.int(before - len(e.hash))
		return len(e.hash) < before
	})
}

func cmdHGetAll(c *session, args [][]byte) {
	c.with(args[1], hashKind, func(e *entry) {
		c.mapHead(len(e.hash))
		for _, f := range slices.Sorted(maps.Keys(e.hash)) {
			c.text(f)
			c.text(e.hash[f])
		}
	})
}

func cmdHIncrBy(c *session, args [][]byte) {
	by, ok := c.parseInt(args[3])
	if !ok {
		return
	}
	c.edit(args[1], hashKind, func(e *entry) bool {
		sum, ok := c.sum([]byte(e.hash[string(args[2])]), by, "ERR hash value is not an integer")
		if !ok {
			return false
		}
		if e.hash == nil {
			e.hash = map[string]string{}
		}
		e.hash[string(args[2])] = strconv.Itoa(sum)
		c.int(sum)
		return true
	})
}

func cmdSAdd(c *session, args [][]byte) {
	c.edit(args[1], setKind, func(e *entry) bool {
		if e.set == nil {
			e.set = map[string]bool{}
		}
		before := len(e.set)
		for _, m := range args[2:] {
			e.set[string(m)] = true
		}
		c.int(len(e.set) - before)
		return len(e.set) > before
	})
}

func cmdSMembers(c *session, args [][]byte) {
	c.with(args[1], setKind, func(e *entry) {
		c.head('~', len(e.set))
		c.texts(slices.Sorted(maps.Keys(e.set)))
	})
}

// Transactions.

func cmdMulti(c *session, _ [][]byte) {
	if c.multi {
		c.error("ERR MULTI calls can not be nested")
		return
	}
	c.multi = true
	c.ok()
}

func cmdExec(c *session, _ [][]byte) {
	queue := c.queue
	switch {
	case !c.multi:
		c.error("ERR EXEC without MULTI")
		return
	case c.failed:
		c.error("EXECABORT Transaction discarded because of previous errors.")
		queue = nil
	case c.dirty:
		c.nullArray()
		queue = nil
	default:
		c.array(len(queue))
	}
	for _, q := range queue {
		name, _ := resolve(q.args)
		c.run(name, q.cmd, q.args)
	}
	c.endMulti()
	c.unwatch()
}

func cmdDiscard(c *session, _ [][]byte) {
	if !c.multi {
		c.error("ERR DISCARD without MULTI")
		return
	}
	c.endMulti()
	c.unwatch()
	c.ok()
}

func (c *session) endMulti() { c.multi, c.failed, c.queue = false, false, nil }

func cmdWatch(c *session, args [][]byte) {
	if c.multi {
		c.error("ERR WATCH inside MULTI is not allowed")
		return
	}
	for _, k := range args[1:] {
		at := place{c.db, string(k)}
		if c.st.watched[at] == nil {
			c.st.watched[at] = map[*session]bool{}
		}
		c.st.watched[at][c] = true
		c.watches = append(c.watches, at)
	}
	c.ok()
}

func (c *session) unwatch() {
	for _, at := range c.watches {
		delete(c.st.watched[at], c)
		if len(c.st.watched[at]) == 0 {
			delete(c.st.watched, at)
		}
	}
	c.watches, c.dirty = nil, false
}

// Publish and subscribe.

func (c *session) subscribe(kind int, args [][]byte) {
	for _, a := range args[1:] {
		name := string(a)
		c.subs[kind][name] = true
		if c.st.subs[kind][name] == nil {
			c.st.subs[kind][name] = map[*session]bool{}
		}
		c.st.subs[kind][name][c] = true
		c.confirm(kind, "subscribe", name)
	}
}

func (c *session) unsubscribe(kind int, args [][]byte) {
	names := texts(args[1:])
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(c.subs[kind]))
	}
	for _, name := range names {
		delete(c.subs[kind], name)
		c.st.leave(c, kind, name)
		c.confirm(kind, "unsubscribe", name)
	}
	if len(names) == 0 {
		c.confirm(kind, "unsubscribe", "")
	}
}

func (st *store) leave(c *session, kind int, name string) {
	delete(st.subs[kind][name], c)
	if len(st.subs[kind][name]) == 0 {
		delete(st.subs[kind], name)
	}
}

// confirm counts shard channels apart, as Redis does.
func (c *session) confirm(kind int, verb, name string) {
	c.head('>', 3)
	c.text(subKinds[kind].prefix + verb)
	if name == "" && verb == "unsubscribe" {
		c.null()
	} else {
		c.text(name)
	}
	if kind == shardChannels {
		c.int(len(c.subs[shardChannels]))
	} else {
		c.int(len(c.subs[channels]) + len(c.subs[patterns]))
	}
}

func (st *store) publish(kind int, channel, payload []byte) (receivers int) {
	for to := range st.subs[kind][string(channel)] {
		to.deliver(subKinds[kind].message, channel, payload)
		receivers++
	}
	if kind == shardChannels {
		return receivers
	}
	for pattern, sessions := range st.subs[patterns] {
		if matches(pattern, string(channel)) {
			for to := range sessions {
				to.deliver("pmessage", []byte(pattern), channel, payload)
				receivers++
			}
		}
	}
	return receivers
}

func (c *session) deliver(kind string, parts ...[]byte) {
	head := byte('>')
	if c.proto == 2 {
		head = '*'
	}
	b := appendBulk(appendHead(nil, head, 1+len(parts)), kind)
	for _, part := range parts {
		b = appendBulk(b, part)
	}
	c.p.push(b)
}

// The connection.

func cmdPing(c *session, args [][]byte) {
	switch {
	case len(args) > 2:
		c.arity("ping")
	case c.proto == 2 && len(c.subs[channels])+len(c.subs[patterns])+len(c.subs[shardChannels]) > 0:
		c.array(2)
		c.text("pong")
		c.bulk(bytes.Join(args[1:], nil))
	case len(args) == 2:
		c.bulk(args[1])
	default:
		c.simple("PONG")
	}
}

func cmdSelect(c *session, args [][]byte) {
	n, ok := c.parseInt(args[1])
	switch {
	case !ok:
	case n < 0 || n >= len(c.st.dbs):
		c.error("ERR DB index is out of range")
	default:
		c.db = n
		c.ok()
	}
}

func cmdAuth(c *session, args [][]byte) {
	user, password := "default", string(args[len(args)-1])
	switch {
	case len(args) > 3:
		c.error(errSyntax)
		return
	case len(args) == 3:
		user = string(args[1])
	case c.st.users["default"] == "":
		c.error("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
		return
	}
	if c.login(user, password) {
		c.ok()
	}
}

// login replies with an error if it fails; the connection then stays what it was.
func (c *session) login(user, password string) bool {
	want, known := c.st.users[user]
	if known && want == password || len(c.st.users) == 0 && user == "default" {
		c.user, c.authed = user, true
		return true
	}
	c.error("WRONGPASS invalid username-password pair or user is disabled.")
	return false
}

func cmdHello(c *session, args [][]byte) {
	proto, name, ok := c.proto, c.name, true
	if len(args) > 1 {
		if proto, ok = parseInt(args[1]); !ok {
			c.error("ERR Protocol version is not an integer or out of range")
			return
		}
		if proto != 2 && proto != 3 {
			c.error("NOPROTO unsupported protocol version")
			return
		}
	}
	for i := 2; i < len(args); {
		switch opt, left := strings.ToUpper(string(args[i])), len(args)-i-1; {
		case opt == "AUTH" && left >= 2:
			if !c.login(string(args[i+1]), string(args[i+2])) {
				return
			}
			i += 3
		case opt == "SETNAME" && left >= 1:
			name = string(args[i+1])
			i += 2
		default:
			c.error("ERR Syntax error in HELLO option '" + string(args[i]) + "'")
			return
		}
	}
	if !c.authed {
		c.error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> " +
			"option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	}
	c.proto, c.name = proto, name
	if proto == 2 {
		c.srv.optOut(c.p)
	}
	c.mapHead(7)
	c.texts([]string{"server", "redis", "version", version, "proto"})
	c.int(proto)
	c.text("id")
	c.int(int(c.p.id))
	c.texts([]string{"mode", "standalone", "role", "master", "modules"})
	c.array(0)
}

func cmdClient(c *session, args [][]byte) {
	sub, n := strings.ToLower(string(args[1])), len(args)
	switch {
	case sub == "maint_notifications" && c.multi:
		c.error("ERR Command not allowed inside a transaction")
	case sub == "maint_notifications":
		c.optIn = texts(args[2:])
	case sub == "id" && n == 2:
		c.int(int(c.p.id))
	case sub == "getname" && n == 2:
		if c.name == "" {
			c.null()
		} else {
			c.text(c.name)
		}
	case sub == "setname" && n == 3:
		if bytes.ContainsAny(args[2], " \r\n") {
			c.error("ERR Client names cannot contain spaces, newlines or special characters.")
			return
		}
		c.name = string(args[2])
		c.ok()
	case sub == "info" && n == 2:
		c.verbatim(c.info())
	case sub == "list":
		var b strings.Builder
		for _, id := range slices.Sorted(maps.Keys(c.st.sessions)) {
			b.WriteString(c.st.sessions[id].info())
		}
		c.verbatim(b.String())
	case sub == "kill" && n == 4 && strings.EqualFold(string(args[2]), "id"):
		id, ok := c.parseInt(args[3])
		if !ok {
			return
		}
		c.kill(int64(id))
	case sub == "setinfo" && n == 4, (sub == "no-evict" || sub == "no-touch") && n == 3:
		c.ok()
	case slices.Contains([]string{"id", "getname", "setname", "info", "setinfo", "no-evict", "no-touch"}, sub):
		c.arity("client|" + sub)
	default:
		c.error("ERR unknown subcommand '" + string(args[1]) + "'. Try CLIENT HELP.")
	}
}

// kill spares this connection until it has its reply.
func (c *session) kill(id int64) {
	switch target := c.st.sessions[id]; target {
	case nil:
		c.int(0)
		return
	case c:
		c.quit = true
	default:
		target.p.kill(false)
	}
	c.int(1)
}

func (c *session) info() string {
	return fmt.Sprintf("id=%d addr=%s laddr=%s name=%s db=%d sub=%d psub=%d ssub=%d user=%s resp=%d\n", c.p.id, c.p.raw.RemoteAddr(),
		c.p.raw.LocalAddr(), c.name, c.db, len(c.subs[channels]), len(c.subs[patterns]), len(c.subs[shardChannels]), c.user, c.proto)
}

// cmdDebug is DEBUG PROTOCOL: one reply of each type.
func cmdDebug(c *session, args [][]byte) {
	if len(args) != 3 || !strings.EqualFold(string(args[1]), "protocol") {
		c.error("ERR unknown subcommand or wrong number of arguments for '" + string(args[1]) + "'. Try DEBUG HELP.")
		return
	}
	p2, p3 := "", ""
	switch strings.ToLower(string(args[2])) {
	case "string":
		p2 = "$11\r\nHello World\r\n"
	case "integer":
		p2 = ":12345\r\n"
	case "double":
		p2, p3 = "$5\r\n3.141\r\n", ",3.141\r\n"
	case "null":
		p2, p3 = "$-1\r\n", "_\r\n"
	case "array":
		p2 = "*3\r\n:0\r\n:1\r\n:2\r\n"
	case "set":
		p2, p3 = "*3\r\n:0\r\n:1\r\n:2\r\n", "~3\r\n:0\r\n:1\r\n:2\r\n"
	case "map":
		p2, p3 = "*6\r\n:0\r\n:0\r\n:1\r\n:1\r\n:2\r\n:0\r\n", "%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n"
	case "attrib":
		p2 = "$39\r\nSome real reply following the attribute\r\n"
		p3 = "|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n" + p2
	case "push":
		p2 = "-ERR RESP2 is not supported by this command\r\n"
		p3 = ">2\r\n$16\r\nserver-cpu-usage\r\n:42\r\n$40\r\nSome real reply following the push reply\r\n"
	case "verbatim":
		p2, p3 = "$25\r\nThis is a verbatim\nstring\r\n", "=29\r\ntxt:This is a verbatim\nstring\r\n"
	case "bignum":
		p2, p3 = "$37\r\n1234567999999999999999999999999999999\r\n", "(1234567999999999999999999999999999999\r\n"
	case "true":
		p2, p3 = ":1\r\n", "#t\r\n"
	case "false":
		p2, p3 = ":0\r\n", "#f\r\n"
	default:
		p2 = "-ERR Wrong protocol type name. Please use one of the following: string|integer|double|null|array|set|map|attrib|push|verbatim|true|false\r\n"
	}
	if c.proto == 3 && p3 != "" {
		p2 = p3
	}
	c.reply = append(c.reply, p2...)
}
