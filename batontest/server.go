// Package batontest is a Redis-like server for tests: it runs in this process, announces maintenance as Redis Enterprise
// does, and misbehaves on demand.
//
// [NewServer] starts one. It keeps strings, lists, hashes and sets in memory, knows transactions, blocking commands and
// publish/subscribe, and speaks RESP2 and RESP3. With [InMemory] it opens no socket: clients reach it through
// [Server.Dial], and everything works in virtual time, in a bubble of testing/synctest:
//
//	synctest.Test(t, func(t *testing.T) {
//		a := batontest.NewServer(batontest.InMemory())
//		defer a.Close()
//		b := a.Sibling() // another address over the same data
//		defer b.Close()
//		client := dial(a.Addr(), a.Dial) // Dial knows a and b
//		a.Move(b.Addr(), 15*time.Second) // and in 15 s of virtual time a closes its connections
//		…
//	})
//
// [NewRelay] puts the same announcements before a real server, which makes none by itself.
//
// Every method may be called on any goroutine, at any time.
package batontest

// Here are the options and the server: what a connection's goroutine does with the commands that it reads. The commands
// themselves are in commands.go, connections and maintenance in node.go.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"maps"
	"math/big"
	"net"
	"strings"
	"time"
)

// An Option configures a [Server] or a [Relay].
type Option func(*config)

type config struct {
	inMemory, unix bool
	addr           string
	tls            *tls.Config
	users          map[string]string
	refuseOptIn    string
	protocol2      bool
	dropAfter      int
	outputLimit    int
	chunk          int
	refuse, stall  bool
	closeAfter     time.Duration
	hooks          map[string]hook
	greeting       string
	onCommand      func(conn int, args []string)
}

// InMemory opens no socket: the address is a made-up IP:port, distinct in the process, and Dial is the only way in.
func InMemory() Option { return func(c *config) { c.inMemory = true } }

// WithAddr chooses the address. In memory any name will do: "db.example.com:6379", "[2001:db8::5]:12075".
func WithAddr(addr string) Option { return func(c *config) { c.addr = addr } }

// Unix listens on a unix socket. A sibling needs an option with a path of its own.
func Unix(path string) Option { return func(c *config) { c.unix, c.addr = true, path } }

// WithTLS accepts TLS connections only.
func WithTLS(conf *tls.Config) Option { return func(c *config) { c.tls = conf } }

// WithUser demands authentication and adds a user; it may be given several times. A password alone is that of "default".
func WithUser(name, password string) Option {
	return func(c *config) {
		c.users = maps.Clone(c.users)
		if c.users == nil {
			c.users = map[string]string{}
		}
		c.users[name] = password
	}
}

// RefuseOptIn answers CLIENT MAINT_NOTIFICATIONS with this error, such as "ERR unknown subcommand
// 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.".
func RefuseOptIn(message string) Option { return func(c *config) { c.refuseOptIn = message } }

// Protocol2 does not know HELLO, as before Redis 6.
func Protocol2() Option { return func(c *config) { c.protocol2 = true } }

// DropAfter resets each connection when it has been sent n bytes.
func DropAfter(n int) Option { return func(c *config) { c.dropAfter = n } }

// OutputLimit resets a connection when more than n bytes wait for a client that does not read. The default is 64 MiB.
func OutputLimit(n int) Option { return func(c *config) { c.outputLimit = n } }

// Chunk delivers at most n bytes per Read of the client. On a socket the bytes are written in pieces of n, which the
// network may join again.
func Chunk(n int) Option { return func(c *config) { c.chunk = n } }

// RefuseConnections begins as Refuse(true) does.
func RefuseConnections() Option { return func(c *config) { c.refuse = true } }

// StallHandshakes begins as Stall(true) does.
func StallHandshakes() Option { return func(c *config) { c.stall = true } }

// CloseAfter closes connections that much later than the announced window. The default is 0.
func CloseAfter(extra time.Duration) Option { return func(c *config) { c.closeAfter = extra } }

// Respond begins as SetRespond does.
func Respond(command, raw string) Option {
	return withHook(command, func(h *hook) { h.raw = raw })
}

// Deny answers a command, or a subcommand such as "client setname", with -NOPERM.
func Deny(command string) Option {
	return withHook(command, func(h *hook) { h.deny = true })
}

func withHook(command string, change func(*hook)) Option {
	return func(c *config) {
		c.hooks = maps.Clone(c.hooks)
		setHook(&c.hooks, command, change)
	}
}

// Greeting sends these bytes to each connection, before it has said anything.
func Greeting(raw string) Option { return func(c *config) { c.greeting = raw } }

// OnCommand calls f with each command, before it is carried out, on the goroutine of its connection. conn is what CLIENT ID returns.
func OnCommand(f func(conn int, args []string)) Option { return func(c *config) { c.onCommand = f } }

var defaults = config{outputLimit: 64 << 20}

func configure(c config, opts []Option) config {
	for _, o := range opts {
		o(&c)
	}
	return c
}

// A Server is one address of a database.
type Server struct {
	*node
	store *store

	// Guarded by store.mu.
	counts   []int          // executed, by command.index
	unlisted map[string]int // the same for subcommands and for commands that only Respond knows
}

// NewServer starts a server, on 127.0.0.1 and a free port unless the options say otherwise. It panics if it cannot listen.
func NewServer(opts ...Option) *Server {
	return newServer(configure(defaults, opts), newSite(), newStore())
}

func newServer(c config, to *site, st *store) *Server {
	s := &Server{store: st, counts: make([]int, len(commandList)), unlisted: map[string]int{}}
	st.mu.Lock()
	maps.Copy(st.users, c.users)
	st.mu.Unlock()
	s.node = newNode(c, to, s.converse)
	s.node.start()
	return s
}

// Sibling starts another address over the same data, with the same options and those given here. Siblings share the
// users, the sequence numbers, and what is replayed to those who opt in.
func (s *Server) Sibling(opts ...Option) *Server {
	return newServer(s.siblingConfig(opts), s.site, s.store)
}

// SetUser adds a user or changes a password. Connections that are authenticated stay so.
func (s *Server) SetUser(name, password string) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.users[name] = password
}

// Executed is how often this address has executed a command; a subcommand is named like this: "client setname". Those of a
// transaction count at EXEC, refused ones do not.
func (s *Server) Executed(command string) int {
	name := strings.ToLower(command)
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if cmd := commands[name]; cmd != nil {
		return s.counts[cmd.index]
	}
	return s.unlisted[name]
}

// converse runs on the connection's goroutine, from its first byte to its last.
func (s *Server) converse(p *peer) {
	c := newSession(s, p)
	defer c.end()
	var args [][]byte
	for {
		var n int
		var err error
		args, n, err = parseCommand(args[:0], p.buf[p.r:p.w])
		switch {
		case err != nil:
			p.write([]byte("-ERR " + err.Error() + "\r\n"))
			return
		case n == 0:
			p.flush()
			if p.fill() != nil {
				return
			}
		default:
			p.r += n
			if len(args) > 0 && !s.execute(c, args) {
				return
			}
		}
	}
}

// execute carries out one command and has its reply written. It returns false when the connection is to end.
func (s *Server) execute(c *session, args [][]byte) bool {
	if f := s.cfg.onCommand; f != nil {
		f(int(c.p.id), texts(args))
	}
	s.store.mu.Lock()
	delay := c.dispatch(args)
	if delay <= 0 {
		c.answer()
	}
	waiter := c.waiter
	s.store.mu.Unlock()
	switch {
	case delay > 0:
		c.p.flush()
		c.p.wait(nil, delay)
		s.store.mu.Lock()
		c.answer()
		s.store.mu.Unlock()
	case waiter != nil:
		c.p.flush()
		c.p.wait(waiter.served, waiter.timeout)
		s.store.mu.Lock()
		c.giveUp(waiter)
		s.store.mu.Unlock()
	}
	return !c.quit
}

func texts(args [][]byte) []string {
	s := make([]string, len(args))
	for i, a := range args {
		s[i] = string(a)
	}
	return s
}

// SelfSigned makes a certificate for these names and IP addresses, and the pool that trusts it. It is
// valid by the clock of a bubble, too. It panics on failure.
func SelfSigned(hosts ...string) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "batontest"},
		// A bubble's clock begins in the year 2000, and its certificates may be checked outside, or the other way round.
		NotBefore:             time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:              time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(err)
	cert, err := x509.ParseCertificate(der)
	must(err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert}, pool
}

func must(err error) {
	if err != nil {
		panic("batontest: " + err.Error())
	}
}
