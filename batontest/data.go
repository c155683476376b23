package batontest

// The data: keys of four kinds, who watches them and who waits for them. Everything is guarded by store.mu.

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A store is what siblings share.
type store struct {
	mu       sync.Mutex
	dbs      [16]map[string]*entry
	users    map[string]string               // passwords; empty: nobody need authenticate
	sessions map[int64]*session              // by connection
	watched  map[place]map[*session]bool     // WATCH
	subs     [3]map[string]map[*session]bool // subscribers by kind and name
	waiting  map[place][]*waiter             // blocking commands, first come first served
	filled   []place                         // lists that the command at hand has added to
}

// A place is a key of a database.
type place struct {
	db  int
	key string
}

// An entry is a value. It is never empty, except in the hands of a command.
type entry struct {
	kind   status            // as TYPE replies
	expire time.Time         // zero: never
	str    []byte            // of a string
	list   [][]byte          // of a list
	hash   map[string]string // of a hash; a set's members are keys
}

const (
	stringKind = status("string")
	listKind   = status("list")
	hashKind   = status("hash")
	setKind    = status("set")
)

// A waiter is a blocking command that has found nothing.
type waiter struct {
	c       *session
	places  []place
	take    func(place) any // from the list there: the reply
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

func join[K comparable](groups map[K]map[*session]bool, k K, c *session) {
	if groups[k] == nil {
		groups[k] = map[*session]bool{}
	}
	groups[k][c] = true
}

func leave[K comparable](groups map[K]map[*session]bool, k K, c *session) {
	delete(groups[k], c)
	if len(groups[k]) == 0 {
		delete(groups, k)
	}
}

// Keys.

func (c *session) get(key []byte) *entry {
	e := c.st.dbs[c.db][string(key)]
	if e != nil && !e.expire.IsZero() && !time.Now().Before(e.expire) {
		delete(c.st.dbs[c.db], string(key))
		return nil
	}
	return e
}

// touch tells those who watch the key.
func (c *session) touch(key []byte) {
	if len(c.st.watched) > 0 {
		for w := range c.st.watched[place{c.db, string(key)}] {
			w.dirty = true
		}
	}
}

// set replaces whatever is there.
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

func (c *session) delete(key []byte) bool {
	if c.get(key) == nil {
		return false
	}
	delete(c.st.dbs[c.db], string(key))
	c.touch(key)
	return true
}

// reads makes a command of one that looks at the value of args[1], which is an empty one if there is none.
func reads(kind status, f func(e *entry, args [][]byte) any) handler {
	return func(c *session, args [][]byte) any {
		e := c.get(args[1])
		if e == nil {
			e = &entry{kind: kind}
		}
		if e.kind != kind {
			return errWrongType
		}
		return f(e, args)
	}
}

// edits is reads for commands that change the value.
func edits(kind status, f func(c *session, e *entry, args [][]byte) any) handler {
	return func(c *session, args [][]byte) any {
		return c.edit(args[1], kind, func(e *entry) any { return f(c, e, args) })
	}
}

// edit stores the value that f has changed, or deletes it if it is empty now. f returns an error or unchanged if it has not.
func (c *session) edit(key []byte, kind status, f func(*entry) any) any {
	e := c.get(key)
	fresh := e == nil
	if fresh {
		e = &entry{kind: kind}
	}
	if e.kind != kind {
		return errWrongType
	}
	reply := f(e)
	switch reply.(type) {
	case fault, unchanged:
		return reply
	}
	if kind != stringKind && len(e.list)+len(e.hash) == 0 {
		delete(c.st.dbs[c.db], string(key))
	} else if fresh {
		c.st.dbs[c.db][string(key)] = e
	}
	c.touch(key)
	return reply
}

func count(keys [][]byte, f func([]byte) bool) (n int) {
	for _, k := range keys {
		n += oneIf(f(k))
	}
	return n
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (st *store) flush(db int) {
	for at, watchers := range st.watched {
		if at.db == db && st.dbs[db][at.key] != nil {
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

func cmdType(c *session, args [][]byte) any {
	if e := c.get(args[1]); e != nil {
		return e.kind
	}
	return status("none")
}

func (c *session) expire(args [][]byte, unit time.Duration) any {
	n, err := strconv.Atoi(string(args[2]))
	if err != nil {
		return errNotInt
	}
	e := c.get(args[1])
	if e != nil {
		e.expire = time.Now().Add(time.Duration(n) * unit)
		c.touch(args[1])
	}
	return oneIf(e != nil)
}

func (c *session) ttl(key []byte, unit time.Duration) any {
	switch e := c.get(key); {
	case e == nil:
		return -2
	case e.expire.IsZero():
		return -1
	default:
		return int((time.Until(e.expire) + unit/2) / unit)
	}
}

func cmdPersist(c *session, args [][]byte) any {
	e := c.get(args[1])
	if e == nil || e.expire.IsZero() {
		return 0
	}
	e.expire = time.Time{}
	c.touch(args[1])
	return 1
}

func cmdKeys(c *session, args [][]byte) any {
	found := []string{}
	for _, k := range slices.Sorted(maps.Keys(c.st.dbs[c.db])) {
		if matches(string(args[1]), k) && c.get([]byte(k)) != nil {
			found = append(found, k)
		}
	}
	return found
}

// matches knows patterns as path.Match does; to Redis a slash is nothing special.
func matches(pattern, name string) bool {
	matched, _ := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(name, "/", "\x00"))
	return matched
}

// Strings.

func cmdGet(c *session, args [][]byte) any {
	switch e := c.get(args[1]); {
	case e == nil:
		return nil
	case e.kind != stringKind:
		return errWrongType
	default:
		return e
	}
}

func cmdGetDel(c *session, args [][]byte) any {
	old := cmdGet(c, args)
	if e, found := old.(*entry); found {
		c.delete(args[1])
		return e
	}
	return old
}

func cmdSet(c *session, args [][]byte) any {
	opt, problem := parseSet(args[3:])
	if problem != "" {
		return problem
	}
	old := c.get(args[1])
	var reply any
	if opt.get {
		if old != nil && old.kind != stringKind {
			return errWrongType
		}
		if old != nil {
			reply = bytes.Clone(old.str)
		}
	}
	if opt.nx && old != nil || opt.xx && old == nil {
		return reply
	}
	if opt.keep && old != nil {
		opt.expire = old.expire
	}
	c.set(args[1], args[2]).expire = opt.expire
	if !opt.get {
		return ok
	}
	return reply
}

type setOptions struct {
	nx, xx, get, keep bool
	expire            time.Time
}

func parseSet(args [][]byte) (o setOptions, problem fault) {
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
			if i++; i == len(args) {
				return o, errSyntax
			}
			if o.expire, problem = parseExpire(name, string(args[i])); problem != "" {
				return o, problem
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

func parseExpire(name, text string) (time.Time, fault) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return time.Time{}, errNotInt
	}
	if n <= 0 {
		return time.Time{}, "ERR invalid expire time in 'set' command"
	}
	d, from := time.Duration(n)*time.Second, time.Now()
	if name[0] == 'P' {
		d = time.Duration(n) * time.Millisecond
	}
	if strings.HasSuffix(name, "AT") {
		from = time.Unix(0, 0)
	}
	return from.Add(d), ""
}

func cmdMGet(c *session, args [][]byte) any {
	values := make([]any, len(args)-1)
	for i, k := range args[1:] {
		if e := c.get(k); e != nil && e.kind == stringKind {
			values[i] = e
		}
	}
	return values
}

func cmdMSet(c *session, args [][]byte) any {
	if len(args)%2 == 0 {
		return errArity("mset")
	}
	for i := 1; i < len(args); i += 2 {
		c.set(args[i], args[i+1])
	}
	return ok
}

func (c *session) addText(key, by []byte, sign int) any {
	n, err := strconv.Atoi(string(by))
	if err != nil {
		return errNotInt
	}
	return c.add(key, sign*n)
}

func (c *session) add(key []byte, by int) any {
	return c.edit(key, stringKind, func(e *entry) any {
		sum, problem := add(string(e.str), by, errNotInt)
		if problem != "" {
			return problem
		}
		e.str = strconv.AppendInt(e.str[:0], int64(sum), 10)
		return sum
	})
}

// add takes nothing for 0.
func add(text string, by int, notInt fault) (int, fault) {
	n := 0
	if text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			return 0, notInt
		}
	}
	sum := n + by
	if (sum > n) != (by > 0) && by != 0 {
		return 0, "ERR increment or decrement would overflow"
	}
	return sum, ""
}

func cmdIncrByFloat(_ *session, e *entry, args [][]byte) any {
	old, err1 := strconv.ParseFloat(string(e.str), 64)
	by, err2 := strconv.ParseFloat(string(args[2]), 64)
	if err1 != nil && len(e.str) > 0 || err2 != nil {
		return fault("ERR value is not a valid float")
	}
	e.str = strconv.AppendFloat(e.str[:0], old+by, 'f', -1, 64)
	return e
}

// Lists.

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

func cmdPush(left bool) func(*session, *entry, [][]byte) any {
	return func(c *session, e *entry, args [][]byte) any {
		for _, v := range args[2:] {
			e.insert(bytes.Clone(v), left)
		}
		c.st.filled = append(c.st.filled, place{c.db, string(args[1])})
		return len(e.list)
	}
}

func cmdPop(left bool) func(*session, *entry, [][]byte) any {
	return func(_ *session, e *entry, args [][]byte) any {
		if len(args) == 2 {
			if len(e.list) == 0 {
				return unchanged{nil}
			}
			return e.take(left)
		}
		n, err := strconv.Atoi(string(args[2]))
		if err != nil || n < 0 {
			return fault("ERR value is out of range, must be positive")
		}
		if len(e.list) == 0 {
			return unchanged{noList{}}
		}
		taken := []any{}
		for len(taken) < n && len(e.list) > 0 {
			taken = append(taken, e.take(left))
		}
		return taken
	}
}

func cmdLRange(e *entry, args [][]byte) any {
	from, err1 := strconv.Atoi(string(args[2]))
	to, err2 := strconv.Atoi(string(args[3]))
	if err1 != nil || err2 != nil {
		return errNotInt
	}
	if from < 0 {
		from = max(0, from+len(e.list))
	}
	if to < 0 {
		to += len(e.list)
	}
	values := []any{}
	for ; from <= min(to, len(e.list)-1); from++ {
		values = append(values, e.list[from])
	}
	return values
}

// cmdLMove is LMOVE and, with a timeout, BLMOVE.
func cmdLMove(c *session, args [][]byte) any {
	left, known1 := parseSide(args[3])
	toLeft, known2 := parseSide(args[4])
	if !known1 || !known2 {
		return errSyntax
	}
	to := bytes.Clone(args[2])
	move := func(from place) any {
		if e := c.get(to); e != nil && e.kind != listKind {
			return errWrongType
		}
		return c.edit([]byte(from.key), listKind, func(e *entry) any {
			if len(e.list) == 0 {
				return unchanged{nil}
			}
			v := e.take(left)
			if from.key == string(to) {
				e.insert(v, toLeft)
				return v
			}
			c.edit(to, listKind, func(e *entry) any { e.insert(v, toLeft); return v })
			c.st.filled = append(c.st.filled, place{c.db, string(to)})
			return v
		})
	}
	if len(args) == 6 {
		return c.await(args[1:2], args[5], move, nil)
	}
	return move(place{c.db, string(args[1])})
}

func parseSide(b []byte) (left, known bool) {
	s := strings.ToUpper(string(b))
	return s == "LEFT", s == "LEFT" || s == "RIGHT"
}

func cmdBPop(left bool) handler {
	return func(c *session, args [][]byte) any {
		last := len(args) - 1
		return c.await(args[1:last], args[last], func(at place) any {
			return c.edit([]byte(at.key), listKind, func(e *entry) any { return []any{at.key, e.take(left)} })
		}, noList{})
	}
}

// await takes from the first of the lists that is not empty. If there is none the connection waits; within a
// transaction it replies with none instead.
func (c *session) await(keys [][]byte, timeout []byte, take func(place) any, none any) any {
	secs, err := strconv.ParseFloat(string(timeout), 64)
	if err != nil || secs > 1e9 {
		return fault("ERR timeout is not a float or out of range")
	}
	if secs < 0 {
		return fault("ERR timeout is negative")
	}
	w := &waiter{c: c, take: take, served: make(chan struct{}), timeout: time.Duration(secs * float64(time.Second))}
	for _, k := range keys {
		at := place{c.db, string(k)}
		if e := c.get(k); e != nil && e.kind != listKind {
			return errWrongType
		} else if e != nil {
			return take(at)
		}
		w.places = append(w.places, at)
	}
	if c.multi {
		return none
	}
	c.waiter = w
	for _, at := range w.places {
		c.st.waiting[at] = append(c.st.waiting[at], w)
	}
	return several{}
}

// serve lets those who wait for the lists that have been added to take from them.
func (st *store) serve() {
	for len(st.filled) > 0 {
		at := st.filled[0]
		st.filled = st.filled[1:]
		for len(st.waiting[at]) > 0 && st.dbs[at.db][at.key] != nil && st.dbs[at.db][at.key].kind == listKind {
			w := st.waiting[at][0]
			st.forget(w)
			if w.c.p.alive() {
				w.c.p.push(appendValue(nil, w.c.proto, w.take(at)))
				close(w.served)
			}
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
	if c.waiter == w {
		c.st.forget(w)
		c.p.write(appendValue(nil, c.proto, noList{}))
	}
}

// Hashes and sets.

func (e *entry) put(field, value string) {
	if e.hash == nil {
		e.hash = map[string]string{}
	}
	e.hash[field] = value
}

func cmdHSet(_ *session, e *entry, args [][]byte) any {
	if len(args)%2 != 0 {
		return errArity("hset")
	}
	before := len(e.hash)
	for i := 2; i < len(args); i += 2 {
		e.put(string(args[i]), string(args[i+1]))
	}
	return len(e.hash) - before
}

func cmdHGet(e *entry, args [][]byte) any {
	if v, found := e.hash[string(args[2])]; found {
		return v
	}
	return nil
}

func cmdHDel(_ *session, e *entry, args [][]byte) any {
	before := len(e.hash)
	for _, f := range args[2:] {
		delete(e.hash, string(f))
	}
	if len(e.hash) == before {
		return unchanged{0}
	}
	return before - len(e.hash)
}

func cmdHGetAll(e *entry, _ [][]byte) any {
	var all dict
	for _, f := range slices.Sorted(maps.Keys(e.hash)) {
		all = append(all, f, e.hash[f])
	}
	return all
}

func cmdHIncrBy(_ *session, e *entry, args [][]byte) any {
	by, err := strconv.Atoi(string(args[3]))
	if err != nil {
		return errNotInt
	}
	sum, problem := add(e.hash[string(args[2])], by, "ERR hash value is not an integer")
	if problem != "" {
		return problem
	}
	e.put(string(args[2]), strconv.Itoa(sum))
	return sum
}

func cmdSAdd(_ *session, e *entry, args [][]byte) any {
	before := len(e.hash)
	for _, m := range args[2:] {
		e.put(string(m), "")
	}
	if len(e.hash) == before {
		return unchanged{0}
	}
	return len(e.hash) - before
}
