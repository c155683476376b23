package baton

// This file holds the options, and one physical connection: dialling, the handshake, and then, under its bridge's lock, its out-buffer, flusher,
// reader, queue in flight and end. It must not know where to dial or when to move; what it needs of its bridge is connOwner.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/proxy"
)

const libVersion = "0.1.0" // what CLIENT SETINFO tells the server

// Errors to be tested with errors.Is. Each may be wrapped in text that says more.
var (
	ErrClosed       = errors.New("baton: closed")
	ErrNoConnection = errors.New("baton: no connection")
	ErrTimeout      = errors.New("baton: timeout")
	ErrBacklogFull  = errors.New("baton: the backlog is full")
	ErrNotHere      = errors.New("baton: this command must not be sent here")
	ErrTxAborted    = errors.New("baton: the transaction was aborted") // nothing of it was executed
	ErrGap          = errors.New("baton: messages were missed")        // see GapError
	// ErrMaintenance is found in the error of a command that failed while the server was under announced maintenance, beside its cause.
	ErrMaintenance = errors.New("baton: during maintenance")

	errLeft    = fmt.Errorf("%w: the caller of a blocking command left", ErrNoConnection)
	errRetired = errors.New("baton: retired") // how a connection ends on which nobody waits any more after another took its place
)

// commandError is why a command got no reply.
type commandError struct {
	cause error
	sent  bool // bytes of it may have reached a server
}

func (e *commandError) Unwrap() error { return e.cause }

func (e *commandError) Error() string {
	if e.sent {
		return withName(e.cause) + " (sent, no reply came: it may have been executed)"
	}
	return withName(e.cause) + " (never sent)"
}

// withName is the text of an error with the package's name at its beginning alone.
func withName(err error) string { return "baton: " + strings.ReplaceAll(err.Error(), "baton: ", "") }

// callError is why another call than that of a command failed.
type callError struct {
	call  string
	cause error
}

func (e *callError) Unwrap() error { return e.cause }
func (e *callError) Error() string { return withName(fmt.Errorf("%s: %w", e.call, e.cause)) }

// MaybeExecuted says of the error of a command whether bytes of it may have reached a server although no reply came back. False
// means that it was never sent, or that the server answered: in the first case it is safe to send it again.
func MaybeExecuted(err error) bool {
	var e *commandError
	return errors.As(err, &e) && e.sent
}

// Options configures a Client; the zero value of each field is its default. Dial copies it; what it points to must not be changed afterwards.
type Options struct {
	Network string // "tcp" (default) or "unix"
	Addr    string // "host:port" (port 6379 if missing, IPv6 in brackets), or a path; default 127.0.0.1:6379

	Username, Password string // a password alone is that of the user "default"
	// Credentials, if set, is asked on every dial, in place of Username and Password, and what it returns is not kept. It should
	// obey its context, as should Dialer: a call that takes longer than the dial is abandoned, and the next dial calls again.
	Credentials func(context.Context) (username, password string, err error)
	DB          int    // selected on every connection
	ClientName  string // CLIENT SETNAME on every connection

	TLS   *tls.Config // nil: plain. ServerName defaults to the configured host
	Proxy string      // "socks5://[user:pass@]host:port"
	// Dialer, if set, opens the connections; TLS, if set, is spoken over what it returns. Its context ends with the dial.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	// Resolver looks names up, afresh on every dial; nil: net.DefaultResolver. With a Dialer only if it is set: that is then given IP:port.
	Resolver *net.Resolver

	DialTimeout time.Duration // 5 s: connect, TLS and handshake together
	Timeout     time.Duration // 5 s: from call to reply; relaxed during maintenance, judged up to an eighth or 5 ms late; negative: none
	KeepAlive   time.Duration // 30 s without a byte read: PING; negative: never. No byte for twice the effective Timeout: dead
	MaxAge      time.Duration // 0: none; a connection that comes to it, or up to a tenth before, is replaced as by Renew
	Conns       int           // connections for ordinary commands: 1

	Backlog                     BacklogPolicy // Queue (default) or FailFast, while there is no connection
	MaxBacklog, MaxBacklogBytes int           // commands waiting unwritten: 65,536, of 64 MiB; beyond either ErrBacklogFull
	MaxInFlight                 int           // written and unanswered on one connection: 65,536; beyond it work waits in the backlog
	MaxDedicated                int           // connections for blocking commands and sessions: 64; beyond it callers wait, within their context
	MaxMessages                 int           // queued per Subscription: 4,096; beyond it messages are dropped, and a GapError says how many
	MaxReply                    int           // bytes in one reply: 512 MiB; what exceeds it or the next two breaks the connection
	MaxDepth, MaxElements       int           // nesting of one reply and elements in it: 128 and 1<<24

	Maintenance Maintenance
	// OnEvent is called in order, on a goroutine of its own. Up to 256 events wait for it; further ones are lost, see Stats.EventsLost.
	OnEvent func(Event)
	Logger  *slog.Logger // nil: silent; written to by the same goroutine
}

// Maintenance says how a client behaves when its server announces maintenance.
type Maintenance struct {
	Mode             Mode
	EndpointType     EndpointType
	RelaxedTimeout   time.Duration // 10 s: the least that Timeout and DialTimeout count as during maintenance; negative: off
	RelaxedWindowMax time.Duration // 3 × RelaxedTimeout: the longest that one window relaxes
	PostEventRelaxed time.Duration // 2 × RelaxedTimeout: relaxed for so long after the event; negative: none
	HoldCap          time.Duration // 50 ms: the longest that one announcement holds new work; negative: swap at once
	// AllowSuccessor, if set, is asked before an announced successor is dialled, and credentials sent to it. One that it
	// refuses counts as not named. It is not asked about where the configured name itself leads.
	AllowSuccessor func(addr string) bool
}

// Mode says whether maintenance notifications are asked for.
type Mode uint8

const (
	Auto     Mode = iota // ask; carry on without, quietly, where the server refuses
	Enabled              // a connection without notifications is an error
	Disabled             // do not ask
)

// EndpointType says how the server should name a successor.
type EndpointType uint8

const (
	EndpointAuto         EndpointType = iota // by the address of the live socket: private or not, TLS or not
	EndpointInternalIP                       // "internal-ip"
	EndpointInternalFQDN                     // "internal-fqdn"
	EndpointExternalIP                       // "external-ip"
	EndpointExternalFQDN                     // "external-fqdn"
	EndpointNone                             // "none": name nobody; the configured address is dialled at half of the window
)

var endpointNames = [...]string{"auto", "internal-ip", "internal-fqdn", "external-ip", "external-fqdn", "none"}

// Phase is where a bridge stands in a handoff. The table of what leaves each phase is at the type handoff.
type Phase uint8

const (
	PhaseDone      Phase = iota // no handoff is under way
	PhasePreparing              // the replacement is being dialled; work goes to the current connection
	PhaseHolding                // the replacement is ready; new work waits until the old connection is empty
)

func (p Phase) String() string { return [...]string{"done", "preparing", "holding"}[p] }

// EventKind says what happened, in words for a log.
type EventKind string

const (
	EventNotification  EventKind = "notification"           // a maintenance frame was read; copies on other connections are not reported
	EventRelaxed       EventKind = "timeouts relaxed"       // a relaxed window opened
	EventTightened     EventKind = "timeouts tightened"     // a window was closed by the server, or ran out; the time after the event is still relaxed
	EventPreparing     EventKind = "handoff preparing"      // a handoff began, or needs another replacement
	EventDialFailed    EventKind = "dial failed"            // an attempt to connect failed; it is made again
	EventReady         EventKind = "replacement ready"      // a replacement is ready
	EventHolding       EventKind = "holding"                // new work waits for the old connection to empty
	EventPromoted      EventKind = "promoted"               // the replacement took over
	EventLingering     EventKind = "old connection lingers" // it still has commands to answer, which Held counts
	EventOldClosed     EventKind = "old connection closed"  // of a handoff
	EventGivenUp       EventKind = "handoff given up"       // it ended without a replacement; the current connection serves on
	EventLost          EventKind = "connection lost"        // without notice
	EventConnected     EventKind = "connected again"        // a bridge that had lost its connection has one again, outside of a handoff
	EventRefused       EventKind = "notifications refused"  // the server will announce nothing, and Err says why; reported once
	EventSessionMoving EventKind = "session will be cut"    // at the end of Window; a session is never handed off
)

func (k EventKind) level() slog.Level {
	switch k {
	case EventDialFailed, EventGivenUp, EventLost, EventSessionMoving:
		return slog.LevelWarn
	case EventReady, EventHolding, EventLingering, EventOldClosed, EventRefused:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// Event is one thing that happened, for logs and tests. Fields that do not apply are zero.
type Event struct {
	Kind         EventKind
	Time         time.Time
	Addr         string // of the connection it happened to, as dialled; of a dial that failed Err says where it went
	Notification string // "MOVING" and so on
	Successor    string // as announced; empty: none was named
	Seq          int64
	Window       time.Duration
	Phase        Phase // after the event
	Held         int   // commands
	Err          error
}

const defaultRelaxed = 10 * time.Second // what every known client relaxes its timeouts to

// resolved is o with defaults in place of zeros, or what is wrong with it.
func (o Options) resolved() (Options, error) {
	o.DialTimeout, o.Timeout = cmp.Or(o.DialTimeout, 5*time.Second), cmp.Or(o.Timeout, 5*time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, 30*time.Second)
	m := &o.Maintenance
	base := min(cmp.Or(m.RelaxedTimeout, defaultRelaxed), maxSpan)
	m.RelaxedTimeout = base
	if base < 0 { // relaxation is off: the longest window still comes from the default, and there is no tail
		base, m.PostEventRelaxed = defaultRelaxed, -1
	}
	m.RelaxedWindowMax, m.PostEventRelaxed = cmp.Or(m.RelaxedWindowMax, 3*base), cmp.Or(m.PostEventRelaxed, 2*base)
	m.HoldCap = cmp.Or(m.HoldCap, 50*time.Millisecond)
	negative := o.DialTimeout < 0 || m.RelaxedWindowMax < 0
	for field, fallback := range map[*int]int{&o.Conns: 1, &o.MaxBacklog: 65536, &o.MaxBacklogBytes: 64 << 20, &o.MaxInFlight: 65536,
		&o.MaxReply: 512 << 20, &o.MaxDedicated: 64, &o.MaxMessages: 4096, &o.MaxDepth: 128, &o.MaxElements: 1 << 24, &o.DB: 0} {
		*field = cmp.Or(*field, fallback)
		negative = negative || *field < 0
	}
	o.Network = cmp.Or(o.Network, "tcp")
	host, port := splitEndpoint(cmp.Or(o.Addr, "127.0.0.1"))
	if o.TLS != nil && o.TLS.ServerName == "" {
		o.TLS = o.TLS.Clone()
		o.TLS.ServerName = host // the configured host, wherever a connection is dialled
	}
	switch {
	case negative:
		return o, errors.New("baton: options: DialTimeout, RelaxedWindowMax, DB or a bound is negative")
	case o.Backlog > FailFast || m.Mode > Disabled || m.EndpointType > EndpointNone:
		return o, errors.New("baton: options: a policy, mode or endpoint type that does not exist")
	case o.Network == "tcp" && host != "":
		o.Addr = net.JoinHostPort(host, cmp.Or(port, "6379"))
	case o.Network != "unix" || o.Addr == "":
		return o, fmt.Errorf("baton: options: want tcp and host:port, or unix and a path, not %q and %q", o.Network, o.Addr)
	}
	return o, nil
}

// splitEndpoint splits at the last colon: IPv6 comes with or without brackets, the port may be missing. The host is empty if
// there is none, if it is half an IPv6 address, or if the port is not a number from 1 to 65535.
func splitEndpoint(addr string) (host, port string) {
	host = addr
	if i := strings.LastIndexByte(addr, ':'); i >= 0 && !strings.HasSuffix(addr, "]") {
		host, port = addr[:i], addr[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", ""
		}
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String() // one spelling for each
	} else if strings.Contains(host, ":") {
		return "", ""
	}
	return host, port
}

// enumerations are the names of their values, as a URL writes them.
var enumerations = map[reflect.Type][]string{
	reflect.TypeFor[BacklogPolicy](): {"queue", "failfast"},
	reflect.TypeFor[Mode]():          {"auto", "enabled", "disabled"},
	reflect.TypeFor[EndpointType]():  endpointNames[:],
}

// set sets the field of o, or of o.Maintenance, that name is in snake case, but not where to connect to. Its errors do not repeat text, nor
// a name that is none.
func (o *Options) set(name, text string) (err error) {
	is := func(field string) bool {
		return field != "Network" && field != "Addr" && strings.EqualFold(field, strings.ReplaceAll(name, "_", ""))
	}
	v := reflect.ValueOf(&o.Maintenance).Elem().FieldByNameFunc(is)
	if !v.IsValid() {
		v = reflect.ValueOf(o).Elem().FieldByNameFunc(is)
	}
	if !v.IsValid() {
		return errors.New("an option that does not exist")
	}
	switch p := v.Addr().Interface().(type) {
	case *string:
		*p = text
	case *int:
		*p, err = strconv.Atoi(text)
	case *time.Duration:
		*p, err = time.ParseDuration(text)
	default:
		i := slices.Index(enumerations[v.Type()], strings.ToLower(text))
		if i < 0 {
			return fmt.Errorf("%s is none of %q", name, enumerations[v.Type()])
		}
		v.SetUint(uint64(i))
	}
	if err != nil {
		return fmt.Errorf("%s is no %v", name, v.Type())
	}
	return nil
}

// ParseURL reads options from redis://[user[:password]@]host[:port][/db][?option=value…], rediss:// (TLS) or
// unix://[user[:password]@]/path[?db=n…]. The options are the fields of Options (but Network and Addr) and Maintenance in snake case; durations are
// written as in "1.5s". An error never repeats the URL, which may hold a password.
func ParseURL(rawURL string) (Options, error) {
	var o Options
	u, err := url.Parse(rawURL)
	var query url.Values
	if err == nil {
		query, err = url.ParseQuery(u.RawQuery)
	}
	if err != nil || u.Opaque != "" || u.Fragment != "" { // a password with a # in it, for one
		return o, errors.New("baton: URL: not well formed")
	}
	switch host, _ := splitEndpoint(u.Host); {
	case u.Scheme == "unix" && u.Host == "":
		o.Network, o.Addr = "unix", u.Path
	case u.Scheme != "redis" && u.Scheme != "rediss" || host == "" && u.Host != "":
		return o, errors.New("baton: URL: want redis://host:port, rediss://host:port or unix:///path")
	default:
		o.Addr = u.Host
		if db := strings.Trim(u.Path, "/"); db != "" {
			query["db"] = append(query["db"], db)
		}
	}
	if u.Scheme == "rediss" {
		o.TLS = &tls.Config{}
	}
	o.Username = u.User.Username()
	o.Password, _ = u.User.Password()
	for _, name := range slices.Sorted(maps.Keys(query)) { // two spellings can mean the same option
		if err := o.set(name, query[name][len(query[name])-1]); err != nil {
			return o, fmt.Errorf("baton: URL: %w", err)
		}
	}
	_, err = o.resolved()
	return o, err
}

// within runs what a user supplied on a goroutine of its own, no longer than ctx, so that code that blocks for ever costs nothing else.
// After a success that comes too late it runs drop, if any. After an error f may still be running: what it sets must not be looked at.
func within(ctx context.Context, f func() error, drop func()) error {
	over := make(chan error)
	go func() {
		err := f()
		select {
		case over <- err:
		case <-ctx.Done():
			if err == nil && drop != nil {
				drop()
			}
		}
	}()
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lock is a mutex whose owner's invariants tests have checked at the end of every critical section.
type lock struct {
	sync.Mutex
	check func() // nil but in tests
}

func (l *lock) Unlock() {
	if l.check != nil {
		l.check()
	}
	l.Mutex.Unlock()
}

// connOwner is what a connection needs of its bridge. All but pushed are called under the bridge's lock.
type connOwner interface {
	topUpLocked(c *conn)                     // before a write: move what may go from the backlog to c
	answeredLocked(c *conn, replies int)     // so many replies were taken from c; its queue may be empty now
	readOnlyLocked(c *conn)                  // one of them says that the server takes no writes
	refusedLocked(c *conn, err error)        // the server refuses a command that stands before a fence's PING
	unsentLocked(c *conn, unsent []*message) // writing to c has ended; of these not a byte was sent, and they are the bridge's again
	endedLocked(c *conn, cut int)            // reading has ended too; so many commands are cut off
	pushed(c *conn, push Reply)              // c read a push frame; it runs on the reader, without the lock
}

// conn is one physical connection. Its life:
//
//	dialling  it is the dialler's; nobody else knows it                  → serving: its bridge starts it; or closed
//	serving   reader and flusher run                                     → retired: another took its place; broken
//	retired   nothing new is written to it; its reader goes on           → broken, with errRetired when nobody waits on it
//	broken    broken is set: writing has ended, or ends with the write under way; what was not sent goes back → ended
//	ended     reading has ended too: what was still in flight is cut off
//
// What holds whenever the lock is free:
//
//	C1  wrote ≤ taken ≤ given, and what was given and not taken is in out
//	C2  what was taken is written, is being written, or the connection is broken
//	C3  the messages in flight stand one behind the other in the count of bytes, and the last one ends at given, unless broken
//	C4  somebody will write what was given, and hang up when nobody waits on a retired connection: who writes, or the flusher
//	C5  while nobody reads, nothing that was taken waits for a reply, and the connection is not broken
//	C6  reading ends only when broken, and the connection when both have: with nothing in flight and nothing to write
type conn struct {
	// Set by the dialler before start, and read-only after it.
	nc       net.Conn // what is read and written: TLS, or raw itself
	raw      net.Conn // what is closed: closing TLS may block to say good-bye
	kernel   bool     // raw is a socket: what fits its buffer is written without blocking
	addr     string   // as dialled
	remote   string   // as connected, where it can be told
	attempt  uint64   // the number that the dial took when it began
	named    bool     // it was dialled because a server announced this address
	protocol int      // 2 or 3
	deaf     error    // why the server will announce nothing on it; nil: it will
	early    []Reply  // pushes that came in the handshake
	owner    connOwner
	mu       *lock // the bridge's
	kick     chan struct{}

	// Guarded by mu.
	inFlight                 queue
	out                      outBuffer
	spare                    []byte // memory for the next out-buffer
	given, taken             int64  // bytes: put into out since the beginning, and taken out to be written; the difference is in out
	writing                  bool   // somebody writes what was taken
	awake                    bool   // the flusher was kicked and has not gone back to sleep
	waking                   bool   // callers are being woken, and then the flusher, for what they have enqueued by then
	busy                     int    // a decayed peak of the commands in flight; tells a loaded connection from a quiet one
	broken                   error
	retired, readDone, ended bool
	quietFrom                tick  // silence counts from here: a long write got on
	swept, sweptTo           int64 // taken and wrote at the last sweep

	role    reading
	alone   int             // messages in a row that their callers wrote with nothing else in flight, each soon after the one before
	recall  chan struct{}   // of capacity one: the reader has the role again
	unused  *time.Timer     // runs out when nobody has had the role for some time; made by the reader
	watched <-chan struct{} // of the context whose callers may have the role, beside those whose context cannot end
	readErr error           // how reading ended for a caller; the reader sees to the rest

	lastRead atomic.Int64 // the tick of the last byte; written by who reads
	wrote    atomic.Int64 // bytes that the socket took; moved by the writer, and still while nobody writes

	// Owned by whoever has the role of reading.
	dec        *decoder
	frames     []frame
	deliveries []delivery
	aside      bool // the last reply left nothing in flight, as those before it
}

// reading says who reads from the connection. To wake the reader for each reply would cost more than all the rest of a lone command: a second
// thread. So where these follow each other closely it stands aside, and callers read; they never dial, close or settle. Who has the role owns the
// decoder; the next goes on where it stopped. (While nobody reads, a reply to nothing goes unseen: the next caller would take it for its own.)
//
//	byReader  the goroutine reads                                  → byNobody: it stands aside, as nothing is in flight
//	byNobody  nothing is in flight, or not yet taken to be written → byCaller: one writes its message; byReader: anything else is written,
//	                                                                 the connection is broken, or nobodyReads has passed
//	byCaller  one reads until its own message is complete          → byNobody; byReader: more is in flight, reading has failed, or the
//	                                                                 caller was tapped, to look at its context and signals as others do
type reading uint8

const (
	byReader reading = iota
	byNobody
	byCaller
)

// delivery is what one read brought to one message: the last of the replies that it has got.
type delivery struct {
	m       *message
	replies []frame
}

// outBuffer is what is to be written, large messages by reference. Once taken out it is the writer's, until its write has returned.
type outBuffer struct {
	sealed [][]byte // what comes before tail
	tail   []byte   // grows
}

// enqueueLocked puts m in flight and its bytes into the out-buffer.
func (c *conn) enqueueLocked(m *message) {
	m.begin, m.end = c.given, c.given+int64(len(m.buf))
	c.given = m.end
	if len(m.buf) <= maxCopy {
		c.out.tail = append(c.out.tail, m.buf...)
	} else {
		c.out.sealed, c.out.tail = append(c.out.sealed, c.out.tail, m.buf), nil
	}
	c.inFlight.pushLocked(m, inFlight)
}

// roomLocked says whether m may go out now. Otherwise it stands in the backlog, where work is bounded and can still be given up.
func (c *conn) roomLocked(m *message, maxInFlight int) bool {
	waits := c.given - c.taken
	return (c.inFlight.empty() || c.inFlight.commands+m.want <= maxInFlight) && (waits == 0 || waits+int64(len(m.buf)) <= maxCopy)
}

func (c *conn) aliveLocked() bool { return c != nil && c.broken == nil && !c.retired }

// wakeLocked makes the flusher look. The kick never blocks: one is under way only while awake is set.
func (c *conn) wakeLocked() {
	if !c.awake {
		c.awake = true
		c.kick <- struct{}{}
	}
}

const (
	yieldFrom    = 3        // commands in flight make a yield before a write pay: with 4 or 6 a fifth of the CPU, with 512 they are three times as fast
	callerWrites = 16 << 10 // the most that a caller writes by itself: it fits the smallest buffer of a socket (tcp_wmem), empty as that is with nothing in flight

	wakesFrom = 4                // callers woken by one read have one write begun in common: 512 of them cost a twelfth less, and wait a sixth less at worst
	asideFrom = 8                // messages alone in a row: if others come with every ninth, one wake-up in nine is for nothing
	closely   = time.Millisecond // from a reply to the next message: who takes longer is better served by a reader that notices the end of the connection
	// nobodyReads is how long a push or an end may wait behind the last reply. A timer that ends within a tick of the kernel (4 ms, mostly)
	// is set anew by each wait for the socket, which leaves the kernel of a virtual machine: 1 ms costs a third of the throughput, 20 ms a twentieth.
	nobodyReads = 20 * time.Millisecond
)

// departLocked has what was just enqueued sent out: by the caller, with write, if nothing else is in flight, since a wake-up would be most of the
// latency. (Only a server that answers without reading could make it wait, past its context.) It may then read, too, by from.readFor, until done.
func (c *conn) departLocked(m *message, done <-chan struct{}) (p outBuffer, writes bool, from *conn) {
	if !c.kernel || c.writing || c.awake || c.busy >= yieldFrom || c.inFlight.head != c.inFlight.tail || c.given-c.taken > callerWrites {
		if !c.writing && !c.waking { // who is writing looks again
			c.wakeLocked()
		}
		return outBuffer{}, false, nil
	}
	if c.alone++; tick(c.lastRead.Load()).until(m.start) > closely {
		c.alone = 0
	}
	switch {
	case done != nil && done != c.watched:
		c.watched = done
		fallthrough
	case c.alone == 0:
		c.recallLocked()
	case c.role == byNobody:
		c.role, from = byCaller, c
	}
	return c.takeLocked(), true, from
}

func (c *conn) takeLocked() outBuffer {
	c.writing, c.taken = true, c.given
	n := c.inFlight.commands
	if c.inFlight.head == c.inFlight.tail { // however many it is of, nobody else is there
		n = 1
	}
	c.busy = max(n, c.busy-(c.busy+7)/8)
	p := c.out
	c.out, c.spare = outBuffer{tail: c.spare}, nil
	return p
}

// write writes what was taken and settles what follows. No deadline interrupts it: half a command would leave the stream in pieces.
func (c *conn) write(p outBuffer) {
	var err error
	for _, part := range append(p.sealed, p.tail) {
		for n := 0; len(part) > 0 && err == nil; part = part[n:] {
			n, err = c.nc.Write(part[:min(len(part), 4*maxCopy)]) // a write that takes long is seen to get on
			if c.wrote.Add(int64(n)); n == 0 {
				err = cmp.Or(err, io.ErrShortWrite)
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("baton: connection to %s lost: write: %w", c.addr, err)
	}
	c.mu.Lock()
	c.writing = false
	if cap(p.tail) <= 4*maxCopy {
		c.spare = p.tail[:0]
	}
	if err != nil {
		c.breakLocked(err)
		// Replies that have arrived can be read even after a reset: a second is ample for them, and ends the wait for a peer that is gone.
		time.AfterFunc(time.Second, func() { c.raw.Close() })
	}
	c.owner.topUpLocked(c) // the flusher may have looked in vain meanwhile
	if c.given > c.taken && !c.waking || c.retired {
		c.wakeLocked()
	}
	c.settleAndUnlock()
}

// flush is the flusher's goroutine, the only way out beside a lone caller. It ends when the connection is broken.
func (c *conn) flush() {
	<-c.kick
	for loaded := false; ; {
		if loaded { // at the last write there was enough going on
			runtime.Gosched() // callers that were just woken add their commands to this write instead of causing the next
		}
		c.mu.Lock()
		if c.retired && !c.inFlight.attendedLocked() {
			c.hangUpLocked(errRetired)
		}
		c.owner.topUpLocked(c)
		if c.broken == nil && !c.writing && c.given > c.taken { // a caller who is writing looks again
			p := c.takeLocked()
			c.alone = 0
			c.recallLocked()
			loaded = c.busy >= yieldFrom
			c.mu.Unlock()
			c.write(p)
			continue
		}
		over := c.broken != nil
		c.awake = over // and stays so: nobody kicks again
		if c.settleAndUnlock(); over {
			return
		}
		<-c.kick
	}
}

// breakLocked ends writing: no further write begins. The first cause stands.
func (c *conn) breakLocked(cause error) {
	if c.broken == nil {
		c.broken = cause
		c.wakeLocked()
		c.recallLocked()
		c.tapLocked()
	}
}

// hangUpLocked ends reading as well. Closing is a system call, or a user's code, so not done under the lock.
func (c *conn) hangUpLocked(cause error) {
	c.breakLocked(cause)
	go c.raw.Close()
}

// retireLocked ends new work on a connection whose place another has taken, and returns what was not yet taken to be written.
func (c *conn) retireLocked() []*message {
	c.retired = true
	c.wakeLocked()
	return c.unsentFromLocked(c.taken)
}

// unsentFromLocked takes back what begins at byte from or later. What has a reply was received: written again it would shift all replies behind it.
func (c *conn) unsentFromLocked(from int64) []*message {
	var first *message
	for m := c.inFlight.tail; m != nil && m.begin >= from && m.got == 0; m = m.prev {
		first = m
	}
	c.out, c.given = outBuffer{}, c.taken
	return c.inFlight.cutLocked(first, queued)
}

// settleAndUnlock does what is due of the end of a broken connection, whenever something that the end waits for has happened. Once no
// write is under way, what the socket accepted no byte of goes back to the bridge; once reading has ended too, the rest fails.
func (c *conn) settleAndUnlock() {
	var cut []*message
	if c.broken != nil && !c.writing {
		c.owner.unsentLocked(c, c.unsentFromLocked(c.wrote.Load()))
		if c.readDone && !c.ended {
			c.ended = true
			cut = c.inFlight.cutLocked(c.inFlight.head, popped)
			c.owner.endedLocked(c, attended(cut))
		}
	}
	cause := c.broken
	c.mu.Unlock()
	failAll(cut, cause, true)
}

// read is the reader's goroutine.
func (c *conn) read() {
	var err error
	for err == nil {
		if err = c.readOnce(); err == nil && c.aside {
			err = c.standAside()
		}
	}
	c.mu.Lock()
	c.breakLocked(err)
	c.readDone = true
	c.settleAndUnlock()
	c.raw.Close() // a write under way ends, and settles; user code, so nobody may wait for it
}

func (c *conn) readOnce() (err error) {
	n, lost := c.dec.readFrom(c.nc)
	if n > 0 {
		c.lastRead.Store(int64(now()))
		err = c.deliver()
	}
	if err == nil && lost != nil {
		err = fmt.Errorf("baton: connection to %s lost: %w", c.addr, lost)
	}
	return err
}

// standAside is the reader leaving reading to callers, until the role is its own again. It is not woken while calls follow each other.
func (c *conn) standAside() error {
	deadlines := c.nc.SetReadDeadline(time.Time{}) // not every user's connection has them
	if c.unused == nil {
		c.unused = time.NewTimer(nobodyReads)
	}
	c.unused.Reset(nobodyReads)
	c.mu.Lock()
	defer c.mu.Unlock()
	if deadlines == nil && c.inFlight.empty() && c.aliveLocked() {
		c.role = byNobody
	}
	for c.role != byReader {
		watched := c.watched
		c.mu.Unlock()
		select {
		case <-c.recall:
			c.mu.Lock()
		case <-c.unused.C:
			c.mu.Lock()
			c.recallLocked()
		case <-watched:
			c.mu.Lock()
			c.tapLocked()
			c.watched = nil
		}
	}
	c.unused.Stop()
	c.nc.SetReadDeadline(time.Time{})
	c.alone, c.aside = 0, false
	return c.readErr
}

// recallLocked gives the role, if it is nobody's, to the reader, who stands aside.
func (c *conn) recallLocked() {
	if c.role == byNobody {
		c.role = byReader
		poke(c.recall)
	}
}

// tapLocked has a caller who reads leave the role. If it is about to leave by itself, the next one does.
func (c *conn) tapLocked() {
	if c.role == byCaller {
		c.nc.SetReadDeadline(time.Unix(1, 0)) // long past; no system call on what is a socket
	}
}

// readFor is a caller in the role. It reads until its message is complete, unless it is tapped.
func (c *conn) readFor(m *message) {
	var err error
	for err == nil && len(m.signals) == 0 {
		err = c.readOnce()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.role = byNobody
	if err == nil && c.inFlight.empty() && c.aliveLocked() {
		c.unused.Reset(nobodyReads)
		return
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		c.readErr = err
	}
	c.recallLocked()
}

// deliver hands out everything that one read brought, replies and pushes in their order.
func (c *conn) deliver() error {
	for {
		f, ok, bad := c.dec.next()
		if ok && f.kind != KindPush {
			c.frames = append(c.frames, f)
			continue
		}
		err := c.answer(c.frames, bad)
		if c.frames = c.frames[:0]; err != nil || !ok {
			return err
		}
		c.owner.pushed(c, c.dec.reply(f))
	}
}

// answer pops the messages that a run of replies completes, in one critical section, and completes them outside. A reply that belongs
// to no message, or to one that was not even written, breaks the connection, as does a violation behind them: no further one could be
// trusted to be its caller's.
func (c *conn) answer(run []frame, violation error) (err error) {
	if len(run) == 0 {
		return violation
	}
	c.mu.Lock()
	i, refusals := 0, 0
	for i < len(run) {
		m := c.inFlight.head
		if m == nil || m.end > c.taken {
			err = fmt.Errorf("baton: protocol error: %s sent a reply that no command asked for: %.60q", c.addr, c.dec.buf[run[i].start:run[i].end])
			break
		}
		// A PING is never told to go elsewhere: then the server had ended by itself what it is to end here, and the push was for that.
		if refused := run[i].kind == KindError; refused && (m.left > 0 || m.fence && bytes.HasPrefix(c.dec.buf[run[i].start:], []byte("-MOVED "))) {
			c.owner.refusedLocked(c, c.dec.reply(run[i]).Err())
			i, refusals = i+1, refusals+1
			continue
		}
		n := min(len(run)-i, m.want-m.got)
		c.deliveries = append(c.deliveries, delivery{m, run[i : i+n]})
		i, m.got, c.inFlight.commands = i+n, m.got+n, c.inFlight.commands-n
		if m.got == m.want {
			c.inFlight.removeLocked(m, popped)
			if len(m.buf) > maxCopy && m.end > c.wrote.Load() {
				m.buf = nil // the reply overtook the return of the write, which may refer to it still
			}
		}
	}
	if err = cmp.Or(err, violation); err != nil {
		c.breakLocked(err) // before anybody has his reply, and writes the next command
	}
	c.owner.answeredLocked(c, i-refusals)
	c.waking = len(c.deliveries) >= wakesFrom
	c.aside = c.alone >= asideFrom && c.inFlight.empty()
	for _, f := range run[:i] {
		if f.kind == KindError && bytes.HasPrefix(c.dec.buf[f.start:f.end], []byte("-READONLY ")) {
			c.owner.readOnlyLocked(c)
		}
	}
	c.mu.Unlock()
	for _, d := range c.deliveries {
		c.complete(d)
	}
	if len(c.deliveries) >= wakesFrom {
		c.mu.Lock()
		if c.waking = false; c.given > c.taken && !c.writing {
			c.wakeLocked()
		}
		c.mu.Unlock()
	}
	clear(c.deliveries)
	c.deliveries = c.deliveries[:0]
	return err
}

// complete stores replies in their message, which the reader alone may write; with the last it is its caller's again, or recycled if that has left.
func (c *conn) complete(d delivery) {
	m, final := d.m, d.m.got == d.m.want // no other goroutine counts them
	switch {
	case final && m.abandoned:
		m.recycle()
		return
	case m.replies != nil:
		c.dec.replies(d.replies, m.replies[m.got-len(d.replies):])
	case m.appending:
		m.dst, m.err = c.dec.appendText(m.dst, d.replies[0])
	default:
		m.reply = c.dec.reply(d.replies[0])
	}
	if final {
		m.signals <- done
	}
}

func (o *Options) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	direct := &net.Dialer{Resolver: o.Resolver}
	if o.Proxy == "" || network != "tcp" {
		return direct.DialContext(ctx, network, addr)
	}
	if u, err := url.Parse(o.Proxy); err == nil && u.Scheme == "socks5" {
		if d, err := proxy.FromURL(u, direct); err == nil {
			return d.(proxy.ContextDialer).DialContext(ctx, network, addr)
		}
	}
	return nil, errors.New("proxy: want socks5://[user:pass@]host:port")
}

// userDial has the user's Dialer connect; if there is a Resolver, to one address of the host after the other.
func (o *Options) userDial(ctx context.Context, network, addr string) (nc net.Conn, remote string, err error) {
	addrs := []string{addr}
	if o.Resolver != nil && network == "tcp" {
		host, port := splitEndpoint(addr)
		ips, err := o.Resolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, "", err
		}
		addrs = nil
		for _, ip := range ips {
			addrs = append(addrs, net.JoinHostPort(ip.Unmap().String(), port))
		}
	}
	for i, addr := range addrs {
		part, cancel := ctx, context.CancelFunc(func() {})
		if end, ok := ctx.Deadline(); ok { // so that one that is dead leaves time for the others
			part, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(addrs)-i))
		}
		var made net.Conn
		err = within(part, func() (err error) {
			if made, err = o.Dialer(part, network, addr); made == nil && err == nil {
				err = errors.New("the Dialer returned no connection")
			}
			return err
		}, func() { made.Close() })
		if cancel(); err == nil {
			return made, addr, nil
		}
	}
	return nil, "", err
}

// dial makes a ready connection before ctx ends; the error says which step failed, and wraps the cause. A successor's certificate may be for the
// announced name: a second attempt has that as its only name, so that what verifies is the TLS package itself, with all that the user's config asks.
func (o Options) dial(ctx context.Context, network, addr string, successor bool) (*conn, error) {
	c, err := o.dialOnce(ctx, network, addr)
	wrongName := o.TLS != nil && c != nil && errors.As(err, new(x509.HostnameError))
	if host, _ := splitEndpoint(addr); successor && wrongName && net.ParseIP(host) == nil {
		o.TLS = o.TLS.Clone()
		o.TLS.ServerName = host
		c, err = o.dialOnce(ctx, network, addr)
	}
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) { // a socket's deadline can come just before ctx's
		err = fmt.Errorf("%w: %w", cmp.Or(ctx.Err(), context.DeadlineExceeded), err)
	}
	return nil, &callError{"dial " + addr, err}
}

// dialOnce returns a connection also with an error, if it is the handshake that failed.
func (o Options) dialOnce(ctx context.Context, network, addr string) (c *conn, err error) {
	if o.Credentials != nil {
		ask := func() (err error) { o.Username, o.Password, err = o.Credentials(ctx); return err }
		if err = within(ctx, ask, nil); err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
	}
	c = &conn{addr: addr, kick: make(chan struct{}, 1), recall: make(chan struct{}, 1), dec: newDecoder(limits{o.MaxReply, o.MaxDepth, o.MaxElements})}
	if o.Dialer != nil {
		c.raw, c.remote, err = o.userDial(ctx, network, addr)
	} else if c.raw, err = o.connect(ctx, network, addr); err == nil {
		c.remote = c.raw.RemoteAddr().String()
	}
	if err != nil {
		return nil, err
	}
	c.nc = c.raw
	_, c.kernel = c.raw.(syscall.Conn)
	// Every read and write of the handshake ends when ctx does. No deadline does it: not every user's connection has them.
	stop := context.AfterFunc(ctx, func() { c.raw.Close() })
	if err = o.handshake(ctx, c); !stop() {
		err = cmp.Or(err, net.ErrClosed)
	}
	if err != nil {
		go c.raw.Close() // a user's code, which may block
	}
	c.lastRead.Store(int64(now()))
	return c, err
}

// handshake makes c ready. Nothing unanswered stands before the opt-in, which some proxies answer ahead of replies that are
// under way. The PING is behind it because it is what a server that is still loading refuses: ready means PONG.
func (o *Options) handshake(ctx context.Context, c *conn) error {
	if o.TLS != nil {
		t := tls.Client(c.raw, o.TLS)
		c.nc = t
		// The config's callbacks are a user's, too.
		if err := within(ctx, func() error { return t.HandshakeContext(ctx) }, nil); err != nil {
			return fmt.Errorf("TLS handshake: %w", err)
		}
	}
	if err := o.hello(c); err != nil {
		return err
	}
	setup := []step{{command: "CLIENT SETINFO LIB-NAME baton"}, {command: "CLIENT SETINFO LIB-VER " + libVersion}}
	if o.DB != 0 {
		setup = append(setup, step{command: "SELECT " + strconv.Itoa(o.DB), must: true})
	}
	if _, err := o.exchange(c, setup...); err != nil {
		return err
	}
	var optIn []step
	if c.protocol == 3 && o.Maintenance.Mode != Disabled {
		command := "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type " + o.endpointType(c)
		optIn = []step{{command: command, must: o.Maintenance.Mode == Enabled}}
	} else {
		c.deaf = errors.New("the server speaks protocol 2 only") // or nobody asked it
	}
	replies, err := o.exchange(c, append(optIn, step{command: "PING", must: true})...)
	if err != nil {
		return err
	}
	c.deaf = cmp.Or(c.deaf, replies[0].Err())
	switch pong, _ := replies[len(replies)-1].Text(); {
	case o.repeatedIn([]byte(pong)):
		return errors.New("PING: the answer repeats the password")
	case pong != "PONG":
		return fmt.Errorf("PING: the answer is %.60q", pong)
	}
	return nil
}

// repeatedIn says whether the password, or the beginning of a long one, is in what a server says. No error may show that.
func (o *Options) repeatedIn(said []byte) bool {
	return o.Password != "" && bytes.Contains(said, []byte(o.Password[:min(len(o.Password), 8)]))
}

// hello authenticates and chooses the protocol. A server or proxy that has no HELLO, or does not let this user say it, is
// spoken to in protocol 2; wrong or missing credentials never fall back, which would hide them.
func (o *Options) hello(c *conn) error {
	hello := step{command: "HELLO 3", must: o.Maintenance.Mode == Enabled}
	var two []step // what does the same in protocol 2
	if o.Username != "" || o.Password != "" {
		hello.args = []any{"AUTH", cmp.Or(o.Username, "default"), o.Password}
		two = []step{{"AUTH", hello.args[1:], true}}
		if o.Username == "" {
			two[0].args = hello.args[2:] // servers before ACLs take no name
		}
	}
	if o.ClientName != "" {
		hello.args = append(hello.args, "SETNAME", o.ClientName)
		two = append(two, step{"CLIENT SETNAME", []any{o.ClientName}, true})
	}
	replies, err := o.exchange(c, hello)
	if err != nil {
		return err
	}
	if refusal, ok := replies[0].Err().(*ServerError); ok {
		unknown := refusal.Code == "ERR" && strings.Contains(refusal.Message, "unknown command")
		if refusal.Code != "NOPERM" && refusal.Code != "NOPROTO" && !unknown {
			return fmt.Errorf("HELLO: %w", refusal)
		}
		c.protocol = 2
		for i := 0; i < len(two) && err == nil; i++ {
			_, err = o.exchange(c, two[i])
		}
		return err
	}
	answer, err := replies[0].Map()
	proto, bad := answer["proto"].Int64()
	if c.protocol = int(proto); proto != 3 && (proto != 2 || o.Maintenance.Mode == Enabled) {
		return fmt.Errorf("HELLO: protocol %d in place of 3: %w", proto, cmp.Or(err, bad, errors.ErrUnsupported))
	}
	return nil
}

// step is one command of a handshake.
type step struct {
	command string // its words, as errors name it
	args    []any  // strings that follow, which may be secret
	must    bool   // a refusal fails the handshake
}

// notReady says of an error in a handshake that the server will be ready later.
func notReady(err error) bool {
	var s *ServerError
	return errors.As(err, &s) && (s.Code == "LOADING" || s.Code == "MASTERDOWN" || s.Code == "BUSY")
}

// exchange makes steps of the handshake: it sends their commands in one write and reads their replies. Pushes in between are kept
// for the bridge: one can come in the segment of the opt-in's +OK. Nothing of what was read is left for the reader.
func (o *Options) exchange(c *conn, steps ...step) (replies []Reply, err error) {
	var out []byte
	for _, s := range steps {
		var args []any
		for word := range strings.FieldsSeq(s.command) {
			args = append(args, word)
		}
		out, _ = appendCommand(out, append(args, s.args...)) // strings can be sent
	}
	_, err = c.nc.Write(out)
	for err == nil {
		f, ok, bad := c.dec.next()
		switch {
		case ok && f.kind == KindPush && (len(c.early) == 256 || f.end-f.start > 4<<10): // no server has so much to say
		case ok && f.kind == KindPush:
			c.early = append(c.early, c.dec.reply(f))
		case ok && len(replies) < len(steps):
			s, r := steps[len(replies)], c.dec.reply(f)
			replies = append(replies, r)
			if refusal, ok := r.Err().(*ServerError); ok && o.Password != "" { // which some servers repeat, if it is long only in part
				refusal.Message = strings.ReplaceAll(refusal.Message, o.Password, "***")
				refusal.Message, _, _ = strings.Cut(refusal.Message, o.Password[:min(len(o.Password), 8)])
			}
			wrong := r.Err()
			if wrong == nil && s.command != "HELLO 3" {
				_, wrong = r.Text() // what is no text is no answer to any of the others
			}
			if wrong != nil && (s.must || r.Err() == nil) {
				return nil, fmt.Errorf("%s: %w", s.command, wrong)
			}
		case (ok || bad != nil) && o.repeatedIn(c.dec.buf):
			err = errors.New("protocol error, in which the password is repeated")
		case ok:
			err = fmt.Errorf("a reply that no command asked for: %.60q", c.dec.buf[f.start:f.end])
		case bad != nil:
			err = bad
		case len(replies) == len(steps):
			return replies, nil
		default:
			if n, lost := c.dec.readFrom(c.nc); n == 0 { // otherwise it comes again
				err = lost
			}
		}
	}
	return nil, fmt.Errorf("%s: %w", steps[len(steps)-1].command, err)
}

// endpointType is how c's server shall name a successor. Auto judges by the live socket's address, if that is the server's, without a lookup.
func (o *Options) endpointType(c *conn) string {
	peer, _ := netip.ParseAddrPort(fmt.Sprint(c.raw.RemoteAddr())) // which may be nil, or of any other kind
	ip, auto := peer.Addr().Unmap(), EndpointExternalIP
	shared := netip.MustParsePrefix("100.64.0.0/10") // between a provider and its customers (RFC 6598)
	if ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || shared.Contains(ip) {
		auto = EndpointInternalIP
	}
	if o.TLS != nil {
		auto++ // the name in place of the address, for the certificate's sake
	}
	if !ip.IsValid() || o.Proxy != "" {
		auto = EndpointNone
	}
	return endpointNames[cmp.Or(o.Maintenance.EndpointType, auto)]
}
