package baton

// Whom a client trusts: TLS, credentials and AllowSuccessor at successors that were announced, and successors that mean no good.
// All of it with traffic, which flows on the old connection as long as that lives.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/baton/batontest"
)

// --- help ---

// authority is a certificate authority.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool // trusts it alone
	last int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	root := &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.key = a.newKey()
	a.cert = a.sign(root, a.key, root, a.key)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *authority) sign(c *x509.Certificate, key *ecdsa.PrivateKey, by *x509.Certificate, byKey *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	a.last++
	c.SerialNumber = big.NewInt(a.last)
	if c.NotBefore.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, byKey)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// issue makes a certificate for servers of these names and IP addresses, or for a client.
func (a *authority) issue(hosts ...string) *tls.Certificate {
	return a.issueAs(&x509.Certificate{}, hosts...)
}

// issueAs is issue with what as says besides.
func (a *authority) issueAs(as *x509.Certificate, hosts ...string) *tls.Certificate {
	a.t.Helper()
	as.KeyUsage = x509.KeyUsageDigitalSignature
	if as.ExtKeyUsage == nil {
		as.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			as.IPAddresses = append(as.IPAddresses, ip)
		} else {
			as.DNSNames = append(as.DNSNames, host)
		}
	}
	key := a.newKey()
	cert := a.sign(as, key, a.cert, a.key)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// guests is what a TLS server saw: the name that each client asked for, in order, "" for none.
type guests struct {
	mu    sync.Mutex
	names []string
}

func (g *guests) asked() []string {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.names)
}

// config is that of a server with this certificate, which g watches.
func (g *guests) config(cert *tls.Certificate) *tls.Config {
	conf := &tls.Config{Certificates: []tls.Certificate{*cert}}
	conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.names = append(g.names, hello.ServerName)
		return nil, nil
	}
	return conf
}

const (
	homeName = "db.example.com"
	homeAddr = homeName + ":6379"
	nextName = "db-2.example.internal"
	nextAddr = nextName + ":12075"
	nextIP   = "10.9.0.2"
	secret   = "s3cr3t-Passw0rd"
)

// home is a client over TLS of a server with the configured name, and a successor that a test chooses.
type home struct {
	t     *testing.T
	ca    *authority
	a, b  *batontest.Server
	c     *Client
	j     *journal
	dials *dialBook
	atB   guests
	said  atomic.Int64 // commands that b was given
	user  *tls.Config  // what the client was configured with
}

// newHome sets the scene. b has the certificate that cert gives, nil: it speaks plainly.
func newHome(t *testing.T, successor string, cert func(ca *authority) *tls.Certificate, change func(*Options)) *home {
	t.Helper()
	h := &home{t: t, ca: newAuthority(t), j: &journal{}, dials: &dialBook{}}
	var nobody guests
	h.a = memoryServer(t, batontest.WithAddr(homeAddr), batontest.WithUser("default", secret),
		batontest.WithTLS(nobody.config(h.ca.issue(homeName, "tls.example.net"))))
	var conf *tls.Config
	if c := cert(h.ca); c != nil {
		conf = h.atB.config(c)
	}
	h.b = h.a.Sibling(batontest.WithAddr(successor), batontest.WithTLS(conf), batontest.OnCommand(func(int, []string) { h.said.Add(1) }))
	t.Cleanup(h.b.Close)
	h.user = &tls.Config{RootCAs: h.ca.pool}
	h.c = dialMemory(t, h.a, func(o *Options) {
		o.TLS, o.OnEvent, o.Password = h.user, h.j.add, secret
		o.DialTimeout, o.Maintenance.RelaxedTimeout = time.Second, time.Second
		o.Dialer = h.a.Dial
		if change != nil {
			change(o)
		}
		o.Dialer = h.dials.over(o.Dialer)
	})
	return h
}

// traffic is load that ends with the test, if not before.
func traffic(t *testing.T, c *Client, workers int, pause time.Duration) (stop func() (int, []error)) {
	stop = sync.OnceValues(load(t, c, workers, pause))
	t.Cleanup(func() { stop() })
	return stop
}

// diverted is dial, but for one address, where meets connects to somebody else.
func diverted(dial dialer, address string, meets func(context.Context) (net.Conn, error)) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == address {
			return meets(ctx)
		}
		return dial(ctx, network, addr)
	}
}

// distant is slow for servers that have names, which nobody can look up.
func distant(dial dialer, rtt time.Duration) dialer {
	return through(slow(dial, rtt), func(nc net.Conn) net.Conn { return nc.(*addressed).Conn })
}

// --- TLS ---

// TestCaseA15CertificatesOfTheSuccessor: the certificate must be valid for the configured name or for the successor's, and for one
// of the two in every other respect, too.
func TestCaseA15CertificatesOfTheSuccessor(t *testing.T) {
	type cert struct {
		name        string
		make        func(ca *authority, other *authority, names ...string) *tls.Certificate
		home, next  bool // the name is in it
		explicit    bool // tls.example.net is in it
		ip          bool
		neverTrust  bool // whatever the names
		hostnameToo bool // its names may be found wanting before the rest is
	}
	valid := func(ca, _ *authority, names ...string) *tls.Certificate { return ca.issue(names...) }
	certs := []cert{
		{name: "for the configured name only", make: valid, home: true},
		{name: "for the successor's name only", make: valid, next: true},
		{name: "for both", make: valid, home: true, next: true},
		{name: "for neither", make: valid},
		{name: "for an explicit ServerName only", make: valid, explicit: true},
		{name: "for the successor's IP only", make: valid, ip: true},
		{name: "expired", neverTrust: true, home: true, next: true, explicit: true, ip: true, make: func(ca, _ *authority, names ...string) *tls.Certificate {
			return ca.issueAs(&x509.Certificate{NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)}, names...)
		}},
		{name: "not valid yet", neverTrust: true, home: true, next: true, explicit: true, make: func(ca, _ *authority, names ...string) *tls.Certificate {
			return ca.issueAs(&x509.Certificate{NotBefore: time.Now().Add(24 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour)}, names...)
		}},
		{name: "of an unknown authority", neverTrust: true, home: true, next: true, explicit: true, make: func(_, other *authority, names ...string) *tls.Certificate {
			return other.issue(names...)
		}},
		{name: "of an unknown authority, for the successor's name only", neverTrust: true, next: true, hostnameToo: true,
			make: func(_, other *authority, names ...string) *tls.Certificate { return other.issue(names...) }},
		{name: "expired, for the successor's name only", neverTrust: true, next: true, hostnameToo: true, make: func(ca, _ *authority, names ...string) *tls.Certificate {
			return ca.issueAs(&x509.Certificate{NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)}, names...)
		}},
		{name: "of a client, for both", neverTrust: true, home: true, next: true, explicit: true, make: func(ca, _ *authority, names ...string) *tls.Certificate {
			return ca.issueAs(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, names...)
		}},
		{name: "signed by itself", neverTrust: true, home: true, next: true, explicit: true, make: func(_, _ *authority, names ...string) *tls.Certificate {
			c, _ := batontest.SelfSigned(names...)
			return &c
		}},
	}
	for _, c := range certs {
		for _, successor := range []string{nextAddr, nextIP + ":12075"} {
			for _, serverName := range []string{"", "tls.example.net"} {
				var names []string
				for name, in := range map[string]bool{homeName: c.home, nextName: c.next, "tls.example.net": c.explicit, nextIP: c.ip} {
					if in {
						names = append(names, name)
					}
				}
				if len(names) == 0 {
					names = []string{"elsewhere.example.org"}
				}
				named := successor == nextAddr
				first := c.home // whether it is valid for the name that is asked for first
				asked := []string{homeName}
				if serverName != "" {
					first, asked = c.explicit, []string{serverName}
				}
				second := !first && named // whether the successor's name is tried, too
				if second {
					asked = append(asked, nextName)
				}
				trusted := !c.neverTrust && (first || second && c.next)
				if c.neverTrust && (serverName != "" || !named) && c.name != "of an unknown authority" {
					continue // which name is asked for makes no difference
				}
				sub(t, fmt.Sprintf("%s, successor=%s, ServerName=%q", c.name, successor, serverName), func(t *testing.T) {
					h := newHome(t, successor, func(ca *authority) *tls.Certificate { return c.make(ca, newAuthority(t), names...) },
						func(o *Options) { o.TLS.ServerName = serverName })
					stop := traffic(t, h.c, 3, 20*time.Millisecond)
					time.Sleep(100 * time.Millisecond)
					h.a.Push("MOVING", 5, 10, successor)
					time.Sleep(2 * time.Second) // jitter, and then some; less than half of the window
					st, failures := h.c.Stats(), h.j.of(EventDialFailed)
					if trusted != (st.Handoffs == 1) || trusted != (len(failures) == 0) || st.Reconnects > 0 {
						t.Errorf("trusted: %v, want %v; %d dials failed: %v", st.Handoffs == 1, trusted, len(failures), failures)
					}
					if got := h.said.Load() > 0; got != trusted {
						t.Errorf("something was said to the successor: %v, want %v", got, trusted)
					}
					// Of each attempt the names in this order, and no more than these.
					got := h.atB.asked()
					most := max(len(failures), 1) * len(asked)
					exact := !c.hostnameToo && !(c.neverTrust && second)
					if len(got) == 0 || len(got) > most || exact && len(got) != most || h.dials.count(successor) != len(got) {
						t.Errorf("%d attempts made %d connections that asked for %v", max(len(failures), 1), h.dials.count(successor), got)
					}
					for i, name := range got {
						if exact && name != asked[i%len(asked)] || !slices.Contains(asked, name) {
							t.Errorf("the names asked for are %v, want those of %v", got, asked)
							break
						}
					}
					for _, e := range failures {
						var verification *tls.CertificateVerificationError
						if !errors.As(e.Err, &verification) {
							t.Errorf("a dial failed for another reason than its certificate: %v", e.Err)
						}
					}
					done, failed := stop()
					if len(failed) > 0 || done == 0 || h.a.Executed("INCR")+h.b.Executed("INCR") != done {
						t.Errorf("%d commands failed: %v", len(failed), failed)
					}
					if h.user.InsecureSkipVerify || h.user.ServerName != serverName {
						t.Error("the user's configuration was changed")
					}
				})
			}
		}
	}
}

// TestCaseG4EachNodeHasItsOwnName: nodes with certificates for their own names only, one after the other, and back.
func TestCaseG4EachNodeHasItsOwnName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHome(t, nextAddr, func(ca *authority) *tls.Certificate { return ca.issue(nextName) }, nil)
		var atC guests
		third := h.a.Sibling(batontest.WithAddr("db-3.example.internal:12075"), batontest.WithTLS(atC.config(h.ca.issue("db-3.example.internal"))))
		t.Cleanup(third.Close)
		stop := traffic(t, h.c, 3, 20*time.Millisecond)
		h.a.Push("MOVING", 1, 10, nextAddr)
		time.Sleep(2 * time.Second)
		if h.b.Conns() != 1 {
			t.Fatal("the client is not at the second node")
		}
		h.b.Push("MOVING", 2, 10, third.Addr())
		time.Sleep(2 * time.Second)
		if third.Conns() != 1 {
			t.Fatal("the client is not at the third node")
		}
		if done, failed := stop(); len(failed) > 0 {
			t.Errorf("%d of %d commands failed: %v", len(failed), done+len(failed), failed[0])
		}
		if got := h.atB.asked(); !slices.Equal(got, []string{homeName, nextName}) {
			t.Errorf("the second node was asked for %v", got)
		}
		if got := atC.asked(); !slices.Equal(got, []string{homeName, "db-3.example.internal"}) {
			t.Errorf("the third node was asked for %v: it has a name of its own", got)
		}
		// A loss within the window follows the pin, and is verified in the same way.
		third.Cut()
		time.Sleep(time.Second)
		if got := atC.asked(); len(got) != 4 || third.Conns() != 1 {
			t.Errorf("after a loss the third node was asked for %v, and has %d connections", got, third.Conns())
		}
		// After the window it is the configured name again.
		time.Sleep(time.Minute)
		third.Cut()
		time.Sleep(time.Second)
		if h.a.Conns() != 1 {
			t.Error("after the window the client is not at the configured address")
		}
		if err := h.c.Do(background, "PING").Err(); err != nil {
			t.Error(err)
		}
	})
}

// TestTheSecondNameIsTriedWithinTheSameDial: the connection for the successor's name gets what is left of the dial's time.
func TestTheSecondNameIsTriedWithinTheSameDial(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var begun []time.Time // a dial that is out of time is abandoned: the next may overtake it
		h := newHome(t, nextAddr, func(ca *authority) *tls.Certificate { return ca.issue(nextName) }, func(o *Options) {
			o.DialTimeout, o.Maintenance.RelaxedTimeout = 2*time.Second, 2*time.Second
			serves := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr == nextAddr {
					mu.Lock()
					begun = append(begun, time.Now())
					second := len(begun)%2 == 0
					mu.Unlock()
					if second {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					select {
					case <-time.After(1500 * time.Millisecond):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				return serves(ctx, network, addr)
			}
		})
		stop := traffic(t, h.c, 2, 20*time.Millisecond)
		h.a.Push("MOVING", 1, 20, nextAddr)
		time.Sleep(4 * time.Second)
		failures := h.j.of(EventDialFailed)
		mu.Lock()
		defer mu.Unlock()
		if len(failures) == 0 || len(begun) < 2 {
			t.Fatalf("%d dials failed, %d connections were begun", len(failures), len(begun))
		}
		if took := failures[0].Time.Sub(begun[0]); took != 2*time.Second || begun[1].Sub(begun[0]) != 1500*time.Millisecond {
			t.Errorf("the second connection began after %v, and the dial failed after %v; want 1.5 s and DialTimeout, 2 s", begun[1].Sub(begun[0]), took)
		}
		if !errors.Is(failures[0].Err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", failures[0].Err)
		}
		if _, failed := stop(); len(failed) > 0 {
			t.Errorf("%d commands failed: %v", len(failed), failed[0])
		}
	})
}

// TestTheUsersVerificationIsAsked: VerifyConnection and VerifyPeerCertificate see what they saw of the first connection, and have
// the last word.
func TestTheUsersVerificationIsAsked(t *testing.T) {
	for _, c := range []struct {
		name  string
		cert  []string
		asked string // the name that the verified connection is for
	}{
		{"valid for the configured name", []string{homeName}, homeName},
		{"valid for the successor's name", []string{nextName}, nextName},
	} {
		for _, refuses := range []string{"", "VerifyConnection", "VerifyPeerCertificate"} {
			sub(t, fmt.Sprintf("%s, refused by %q", c.name, refuses), func(t *testing.T) {
				var mu sync.Mutex
				var names []string
				var peers, unverified int
				errNo := errors.New("not with us")
				ofB := func(leaf []byte) bool { // it is not that of the first server, which has the explicit name, too
					cert, err := x509.ParseCertificate(leaf)
					return err == nil && !slices.Contains(cert.DNSNames, "tls.example.net")
				}
				h := newHome(t, nextAddr, func(ca *authority) *tls.Certificate { return ca.issue(c.cert...) }, func(o *Options) {
					o.TLS.VerifyConnection = func(cs tls.ConnectionState) error {
						mu.Lock()
						defer mu.Unlock()
						if len(cs.VerifiedChains) == 0 {
							unverified++
						}
						if !ofB(cs.PeerCertificates[0].Raw) {
							return nil
						}
						if names = append(names, cs.ServerName); refuses == "VerifyConnection" {
							return errNo
						}
						return nil
					}
					o.TLS.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
						mu.Lock()
						defer mu.Unlock()
						if len(chains) == 0 {
							unverified++
						}
						if !ofB(raw[0]) {
							return nil
						}
						if peers++; refuses == "VerifyPeerCertificate" {
							return errNo
						}
						return nil
					}
				})
				stop := traffic(t, h.c, 2, 20*time.Millisecond)
				h.a.Push("MOVING", 1, 10, nextAddr)
				time.Sleep(2 * time.Second)
				if _, failed := stop(); len(failed) > 0 {
					t.Errorf("%d commands failed: %v", len(failed), failed[0])
				}
				mu.Lock()
				defer mu.Unlock()
				if unverified > 0 {
					t.Error("the certificate was not verified before the user was asked")
				}
				if peers == 0 || len(names) == 0 && refuses != "VerifyPeerCertificate" {
					t.Errorf("VerifyPeerCertificate was asked %d times, VerifyConnection about %v", peers, names)
				}
				for _, name := range names {
					if name != c.asked {
						t.Errorf("VerifyConnection was asked about %q, want %q", name, c.asked)
					}
				}
				if trusted := refuses == ""; (h.c.Stats().Handoffs == 1) != trusted || h.said.Load() > 0 != trusted {
					t.Errorf("handoffs: %d, commands said to the successor: %d", h.c.Stats().Handoffs, h.said.Load())
				}
				for _, e := range h.j.of(EventDialFailed) {
					if !errors.Is(e.Err, errNo) {
						t.Errorf("a dial failed with %v, want the user's error", e.Err)
					}
				}
				// A refusal by the user is no wrong name: it is not asked again under another.
				attempts := len(h.j.of(EventDialFailed))
				if got := h.atB.asked(); refuses != "" && c.asked == homeName && len(got) != attempts {
					t.Errorf("%d attempts asked for %v", attempts, got)
				}
			})
		}
	}
	sub(t, "alone, where the user has switched the usual verification off", func(t *testing.T) {
		var calls atomic.Int32
		var no atomic.Bool
		errNo := errors.New("not with us")
		h := newHome(t, nextAddr, func(*authority) *tls.Certificate { return newAuthority(t).issue("elsewhere.example.org") }, func(o *Options) {
			o.TLS.InsecureSkipVerify = true
			o.TLS.VerifyConnection = func(cs tls.ConnectionState) error {
				if calls.Add(1); no.Load() {
					return errNo
				}
				return nil
			}
		})
		no.Store(true)
		h.a.Push("MOVING", 1, 10, nextAddr)
		time.Sleep(2 * time.Second)
		if calls.Load() < 2 || h.said.Load() > 0 || h.c.Stats().Handoffs != 0 {
			t.Errorf("the user was asked %d times, and said no; %d commands were said to the successor", calls.Load(), h.said.Load())
		}
		no.Store(false)
		time.Sleep(2 * time.Second)
		if h.c.Stats().Handoffs != 1 {
			t.Error("the user has accepted the successor, and there was no handoff")
		}
	})
}

// tap is a connection that remembers everything that the client said on it.
type tap struct {
	mu    sync.Mutex
	heard [][]byte // one for each connection
}

// dial is a trap that records what it hears and has f speak.
func (r *tap) dial(t *testing.T, f func(nc net.Conn)) trap {
	return func(context.Context) (net.Conn, error) {
		client, server := batontest.Pipe()
		r.mu.Lock()
		r.heard = append(r.heard, nil)
		k := len(r.heard) - 1
		r.mu.Unlock()
		go func() {
			f(&tapped{server, func(b []byte) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.heard[k] = append(r.heard[k], b...)
			}})
			server.Close()
		}()
		return client, nil
	}
}

func (r *tap) all() [][]byte {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.heard)
}

type tapped struct {
	net.Conn
	heard func([]byte)
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.heard(b[:n])
	return n, err
}

// TestNoCredentialsWithoutTLS: a client that was configured with TLS says nothing but a TLS handshake to a peer that does not
// finish it to its satisfaction, whatever that says instead.
func TestNoCredentialsWithoutTLS(t *testing.T) {
	drain := func(nc net.Conn) { io.Copy(io.Discard, nc) }
	says := func(raw string) func(*testing.T, *authority, func([]byte)) func(net.Conn) {
		return func(*testing.T, *authority, func([]byte)) func(net.Conn) {
			return func(nc net.Conn) { io.WriteString(nc, raw); drain(nc) }
		}
	}
	// speaks ends the TLS handshake as far as it can and then notes what it is told, in plain text.
	speaks := func(conf func(t *testing.T, ca *authority) *tls.Config) func(*testing.T, *authority, func([]byte)) func(net.Conn) {
		return func(t *testing.T, ca *authority, note func([]byte)) func(net.Conn) {
			c := conf(t, ca)
			return func(nc net.Conn) {
				server := tls.Server(nc, c)
				server.Handshake()
				io.WriteString(server, "+PONG\r\n")
				buf := make([]byte, 4096)
				for {
					n, err := server.Read(buf)
					if note(buf[:n]); err != nil {
						return
					}
				}
			}
		}
	}
	for name, peer := range map[string]func(t *testing.T, ca *authority, note func([]byte)) func(net.Conn){
		"that speaks plainly and says yes to all": says(helloThree + strings.Repeat("+OK\r\n", 5) + "+PONG\r\n"),
		"that asks for plain text":                says("-ERR this server speaks no TLS, say HELLO in plain text\r\n"),
		"that announces in plain text":            says(movingFrame(9, 10, "10.9.0.9:6379")),
		"that says nothing":                       says(""),
		"that sends an alert":                     says("\x15\x03\x03\x00\x02\x02\x46"),
		"that sends rubbish":                      says(strings.Repeat("\x16\x03\x03\x40\x00", 4000)),
		"with a certificate for another name": speaks(func(t *testing.T, ca *authority) *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{*ca.issue("elsewhere.example.org")}}
		}),
		"with a certificate of an unknown authority": speaks(func(t *testing.T, ca *authority) *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{*newAuthority(t).issue(homeName, nextName)}}
		}),
		"of an unknown authority, in TLS 1.2": speaks(func(t *testing.T, ca *authority) *tls.Config {
			return &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*newAuthority(t).issue(homeName, nextName)}}
		}),
		"that knows old versions only": speaks(func(t *testing.T, ca *authority) *tls.Config {
			return &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, Certificates: []tls.Certificate{*ca.issue(homeName, nextName)}}
		}),
		"that has no certificate": speaks(func(t *testing.T, ca *authority) *tls.Config {
			return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }}
		}),
	} {
		for _, successor := range []string{nextAddr, nextIP + ":12075"} {
			if successor != nextAddr && !strings.Contains(name, "certificate") {
				continue
			}
			sub(t, "a successor "+name+", "+successor, func(t *testing.T) {
				var r tap
				var mu sync.Mutex
				var told []byte
				ca := newAuthority(t)
				meets := r.dial(t, peer(t, ca, func(b []byte) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, b...)
				}))
				h := newHome(t, "unused.example.com:1", func(*authority) *tls.Certificate { return nil }, func(o *Options) {
					o.TLS.RootCAs.AddCert(ca.cert)
					o.Username, o.ClientName, o.DB = "default", "my-name", 3
					o.Dialer = diverted(o.Dialer, successor, meets)
				})
				stop := traffic(t, h.c, 2, 50*time.Millisecond)
				h.a.Push("MOVING", 1, 8, successor)
				time.Sleep(3 * time.Second)
				if h.c.Stats().Handoffs != 0 || h.j.count(EventDialFailed) == 0 {
					t.Errorf("%d handoffs, %d dials failed", h.c.Stats().Handoffs, h.j.count(EventDialFailed))
				}
				heard := r.all()
				if len(heard) == 0 {
					t.Fatal("the successor was not dialled")
				}
				for _, b := range heard {
					if len(b) < 3 || b[0] != 0x16 && b[0] != 0x15 || b[1] != 3 {
						t.Errorf("the client began with %.20q, want a TLS record", b)
					}
					for _, word := range []string{secret, "HELLO", "AUTH", "default", "my-name", "MAINT"} {
						if bytes.Contains(b, []byte(word)) {
							t.Errorf("the client said %q in plain text", word)
						}
					}
				}
				mu.Lock()
				if len(told) > 0 {
					t.Errorf("a peer that is not trusted was told %q over TLS", told)
				}
				mu.Unlock()
				time.Sleep(7 * time.Second)
				if _, failed := stop(); len(failed) > 0 {
					t.Errorf("%d commands failed: %v", len(failed), failed[0])
				}
				if slices.Contains(h.dials.to(), "10.9.0.9:6379") {
					t.Error("what a peer announced that is not trusted was followed")
				}
			})
		}
	}
}

// TestCaseG5EverySettingIsInherited by the connection to a successor, by which name it may be trusted: mutual TLS, protocols,
// versions, user, password, name, database, the opt-in.
func TestCaseG5EverySettingIsInherited(t *testing.T) {
	for _, c := range []struct {
		name      string
		successor string
		cert      string
		asks      string // the endpoint type
	}{
		{"trusted by the configured name", nextAddr, homeName, "internal-fqdn"},
		{"trusted by the successor's name", nextAddr, nextName, "internal-fqdn"},
		{"an IP", nextIP + ":12075", homeName, "internal-fqdn"},
	} {
		for _, conns := range []int{1, 3} {
			sub(t, fmt.Sprintf("%s, conns=%d", c.name, conns), func(t *testing.T) {
				var mu sync.Mutex
				var said []string
				var hellos []*tls.ClientHelloInfo
				ca := newAuthority(t)
				mine := ca.issue("client.example.com")
				conf := func(cert *tls.Certificate) *tls.Config {
					return &tls.Config{Certificates: []tls.Certificate{*cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool, NextProtos: []string{"redis"},
						GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
							mu.Lock()
							defer mu.Unlock()
							hellos = append(hellos, h)
							return nil, nil
						}}
				}
				note := batontest.OnCommand(func(_ int, args []string) {
					mu.Lock()
					defer mu.Unlock()
					if name := strings.ToUpper(args[0]); name != "INCR" {
						said = append(said, strings.Join(args, " "))
					}
				})
				a := memoryServer(t, batontest.WithAddr(homeAddr), batontest.WithTLS(conf(ca.issue(homeName))), batontest.WithUser("alice", secret), note)
				b := a.Sibling(batontest.WithAddr(c.successor), batontest.WithTLS(conf(ca.issue(c.cert))), note)
				t.Cleanup(b.Close)
				client := dialMemory(t, a, func(o *Options) {
					o.TLS = &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{*mine}, MinVersion: tls.VersionTLS13, NextProtos: []string{"redis"}}
					o.Username, o.Password, o.ClientName, o.DB, o.Conns, o.Dialer = "alice", secret, "my-name", 5, conns, a.Dial
					o.Maintenance.Mode = Enabled
				})
				stop := traffic(t, client, 3, 10*time.Millisecond)
				time.Sleep(100 * time.Millisecond)
				mu.Lock()
				atHome := slices.Clone(said)
				said, hellos = nil, nil
				mu.Unlock()
				a.Move(c.successor, 4*time.Second)
				time.Sleep(10 * time.Second)
				if _, failed := stop(); len(failed) > 0 {
					t.Errorf("%d commands failed: %v", len(failed), failed[0])
				}
				if client.Stats().Handoffs != uint64(conns) || b.Conns() != conns {
					t.Fatalf("%d handoffs, %d connections to the successor", client.Stats().Handoffs, b.Conns())
				}
				mu.Lock()
				defer mu.Unlock()
				slices.Sort(atHome)
				slices.Sort(said)
				if !slices.Equal(atHome, said) || !slices.Contains(said, "HELLO 3 AUTH alice "+secret+" SETNAME my-name") ||
					!slices.Contains(said, "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type "+c.asks) || !slices.Contains(said, "SELECT 5") {
					t.Errorf("the successor was told %q, the first server %q", said, atHome)
				}
				for _, h := range hellos {
					if !slices.Equal(h.SupportedProtos, []string{"redis"}) || !slices.Equal(h.SupportedVersions, []uint16{tls.VersionTLS13}) {
						t.Errorf("the TLS handshake offers protocols %v, versions %v", h.SupportedProtos, h.SupportedVersions)
					}
				}
			})
		}
	}
}

// TestAPlainClientStaysPlain: it does not begin to speak TLS, and a successor that speaks TLS is no use to it.
func TestAPlainClientStaysPlain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ca := newAuthority(t)
		var r tap
		meets := r.dial(t, func(nc net.Conn) {
			tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{*ca.issue(homeName, nextName)}}).Handshake()
		})
		s := newStage(t, func(o *Options) { o.Dialer = diverted(o.Dialer, nextAddr, meets) })
		stop := traffic(t, s.c, 2, 20*time.Millisecond)
		s.a.Push("MOVING", 1, 10, nextAddr)
		time.Sleep(4 * time.Second)
		if s.c.Stats().Handoffs != 0 || s.j.count(EventDialFailed) == 0 {
			t.Errorf("%d handoffs, %d dials failed", s.c.Stats().Handoffs, s.j.count(EventDialFailed))
		}
		s.nothingFailed(stop)
		for _, b := range r.all() {
			if !bytes.HasPrefix(b, []byte("*2\r\n$5\r\nHELLO")) {
				t.Errorf("the client began with %q", b)
			}
		}
	})
}

// --- AllowSuccessor ---

// TestARefusedSuccessorGetsNothing: it is not dialled, for whatever reason a connection is, and what refuses one announcement
// says nothing of the next.
func TestARefusedSuccessorGetsNothing(t *testing.T) {
	sub(t, "a loss within the window", func(t *testing.T) {
		s := newStage(t, func(o *Options) {
			o.Password = secret
			o.Maintenance.AllowSuccessor = func(string) bool { return false }
		}, batontest.WithUser("default", secret))
		s.a.Push("MOVING", 1, 20, s.b.Addr())
		time.Sleep(3 * time.Second)
		for range 5 {
			s.a.Cut()
			time.Sleep(500 * time.Millisecond)
			s.serves(s.a)
		}
		time.Sleep(time.Minute)
		s.serves(s.a)
		if n := s.dials.count(s.b.Addr()); n > 0 || s.b.Executed("HELLO") > 0 {
			t.Errorf("the refused successor was dialled %d times", n)
		}
	})
	sub(t, "the next announcement is asked about anew", func(t *testing.T) {
		var mu sync.Mutex
		asked := map[string]int{}
		s := newScript(t)
		c, a := s.connect(Options{Maintenance: Maintenance{AllowSuccessor: func(addr string) bool {
			mu.Lock()
			defer mu.Unlock()
			asked[addr]++
			return addr == addrC
		}}})
		a.moving(1, 20, addrB)
		time.Sleep(3 * time.Second)
		a.moving(2, 20, "[2001:db8::5]:6379")
		time.Sleep(3 * time.Second)
		if n := len(s.dialled()); n != 1 {
			t.Errorf("dialled %v", s.dialled())
		}
		a.moving(3, 20, addrC)
		s.readyAt(addrC)
		inPhase(t, c, PhaseDone)
		mu.Lock()
		defer mu.Unlock()
		if asked[addrB] == 0 || asked["[2001:db8::5]:6379"] == 0 || asked[addrC] == 0 || len(asked) != 3 {
			t.Errorf("asked about %v", asked)
		}
		if asked[addrB] > 3 {
			t.Errorf("the same successor was asked about %d times, although it was refused", asked[addrB])
		}
	})
	sub(t, "the address that is configured needs no permission", func(t *testing.T) {
		var asked atomic.Int32
		s := newScript(t)
		c, a := s.connect(Options{Maintenance: Maintenance{AllowSuccessor: func(string) bool { asked.Add(1); return false }}})
		a.says(">4\r\n$6\r\nMOVING\r\n:1\r\n:4\r\n_\r\n")
		s.readyAt(addrA)
		inPhase(t, c, PhaseDone)
		if c.Stats().Handoffs != 1 || asked.Load() != 0 {
			t.Errorf("%d handoffs, asked %d times", c.Stats().Handoffs, asked.Load())
		}
	})
}

// --- hostile successors ---

// flow is steady traffic and what became of it.
type flow struct {
	mu      sync.Mutex
	done    int
	failed  []error
	longest time.Duration // that a command waited
	at      time.Duration // when that one was given
}

// steady keeps three workers incrementing keys of their own, back to back for the time of busy, so that there is always something in
// flight, and then one each in five seconds.
func steady(t *testing.T, c *Client, busy time.Duration) (stop func() *flow) {
	f, over, began := &flow{}, make(chan struct{}), time.Now()
	var wg sync.WaitGroup
	for w := range 3 {
		key := fmt.Sprintf("flow:%d:%d", began.UnixNano(), w)
		wg.Go(func() {
			for want := int64(1); ; want++ {
				given := time.Now()
				got, err := c.Do(background, "INCR", key).Int64()
				took := time.Since(given)
				f.mu.Lock()
				switch {
				case err != nil:
					f.failed = append(f.failed, fmt.Errorf("after %v: %w", given.Sub(began), err))
					want--
				case got != want:
					t.Errorf("%s: INCR number %d answered %d", key, want, got)
					want = got
				}
				if err == nil {
					f.done++
				}
				if took > f.longest {
					f.longest, f.at = took, given.Sub(began)
				}
				f.mu.Unlock()
				if time.Since(began) <= busy && err == nil {
					select {
					case <-over:
						return
					default: // not a timer of no length: run by who waits for it, it confuses the race detector
						continue
					}
				}
				select {
				case <-over:
					return
				case <-time.After(5 * time.Second):
				}
			}
		})
	}
	stop = sync.OnceValue(func() *flow {
		close(over)
		wg.Wait()
		return f
	})
	t.Cleanup(func() { stop() })
	return stop
}

const (
	hostileRTT  = 20 * time.Millisecond  // the round trip to every server here
	hostileHold = 50 * time.Millisecond  // HoldCap
	hostileRun  = 1000 * time.Second     // for how long each is watched
	relaxedDial = 10 * time.Second       // DialTimeout as maintenance relaxes it
	hostileEps  = 100 * time.Microsecond // in which nothing is measured
)

// undisturbed says that nothing failed, nothing was executed twice and nobody waited longer than one hold and a round trip.
func (f *flow) undisturbed(t *testing.T, servers ...*batontest.Server) {
	t.Helper()
	executed := 0
	for _, s := range servers {
		executed += s.Executed("INCR")
	}
	if len(f.failed) > 0 {
		t.Errorf("%d of %d commands failed, the first %v", len(f.failed), f.done+len(f.failed), f.failed[0])
	}
	if executed != f.done || f.done < 500 {
		t.Errorf("%d commands were answered and %d executed", f.done, executed)
	}
	if f.longest > hostileHold+hostileRTT+hostileEps {
		t.Errorf("a command waited for %v, %v after the beginning; want at most %v, a hold and a round trip", f.longest, f.at, hostileHold+hostileRTT)
	}
}

// TestHostileSuccessorsThatAreNeverReady has a successor that takes no client, in every way and for ever; the old server closes
// nothing and serves on. Traffic flows there throughout, and for 1,000 s the client does not dial more than it may.
func TestHostileSuccessorsThatAreNeverReady(t *testing.T) {
	t.Parallel()
	type successor struct {
		name  string
		meets func(t *testing.T) trap
		mode  Mode
		tls   bool
	}
	saying := func(f func(p *peer)) func(t *testing.T) trap {
		return func(t *testing.T) trap { return trapped(t, func(p *peer) { f(p); p.hangsOn() }) }
	}
	answering := func(step, raw string) func(t *testing.T) trap {
		return func(t *testing.T) trap { return answersStep(t, step, raw) }
	}
	withTLS := func(conf func(t *testing.T) *tls.Config) func(t *testing.T) trap {
		return func(t *testing.T) trap {
			c := conf(t)
			return trapped(t, func(p *peer) {
				p.Conn = tls.Server(p.Conn, c)
				if p.Conn.(*tls.Conn).Handshake() == nil {
					io.Copy(io.Discard, p.Conn)
				}
				p.Close()
			})
		}
	}
	megabyte := ">2\r\n$3\r\nfoo\r\n$1048576\r\n" + strings.Repeat("x", 1<<20) + "\r\n"
	for _, c := range []successor{
		{name: "refuses", meets: func(*testing.T) trap {
			return func(context.Context) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
		}},
		{name: "is a blackhole", meets: func(*testing.T) trap {
			return func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		}},
		{name: "stalls after TCP", meets: saying(func(*peer) {})},
		{name: "stalls in TLS, at once", tls: true, meets: saying(func(*peer) {})},
		{name: "stalls in TLS, in the middle of it", tls: true, meets: func(t *testing.T) trap {
			ca := newAuthority(t)
			return trapped(t, func(p *peer) { // it stops in its first flight, of which a kilobyte is not all
				tls.Server(&stalling{Conn: p.Conn, left: 300}, &tls.Config{Certificates: []tls.Certificate{*ca.issue(homeName)}}).Handshake()
				p.hangsOn()
			})
		}},
		{name: "stalls after HELLO", meets: answering("CLIENT SETINFO LIB-NAME", "stall")},
		{name: "stalls after +OK", meets: answering("PING", "stall")},
		{name: "hangs up at once", meets: saying(func(p *peer) { p.Close() })},
		{name: "hangs up after HELLO", meets: answering("CLIENT SETINFO LIB-NAME", "")},
		{name: "speaks garbage", meets: saying(func(p *peer) { p.says(strings.Repeat("\x00\xffgarbage\r\n", 1000)) })},
		{name: "speaks garbage for HELLO", meets: answering("HELLO", "?garbage\r\n")},
		{name: "never ends a line", meets: saying(func(p *peer) { p.says("+" + strings.Repeat("x", 200<<10)) })},
		{name: "has a certificate for another name", tls: true, meets: withTLS(func(t *testing.T) *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{*newAuthority(t).issue("elsewhere.example.org")}}
		})},
		{name: "has a certificate of another authority", tls: true, meets: withTLS(func(t *testing.T) *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{*newAuthority(t).issue(homeName, nextName)}}
		})},
		{name: "is plain where TLS is due", tls: true, meets: saying(func(p *peer) { p.says(helloThree + strings.Repeat("+OK\r\n", 5) + "+PONG\r\n") })},
		{name: "speaks protocol 2 only", mode: Enabled, meets: answering("HELLO", "-ERR unknown command 'HELLO'\r\n")},
		{name: "answers HELLO with protocol 2", mode: Enabled, meets: answering("HELLO", "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n")},
		{name: "asks for a password", meets: answering("HELLO", "-NOAUTH HELLO must be called with the client already authenticated\r\n")},
		{name: "wants another password", meets: answering("HELLO", "-WRONGPASS invalid username-password pair or user is disabled.\r\n")},
		{name: "is loading for ever", meets: answering("PING", "-LOADING Redis is loading the dataset in memory\r\n")},
		{name: "sends a push of 1 MB and stalls", meets: saying(func(p *peer) { p.says(megabyte) })},
		{name: "sends pushes of 1 MB without end", meets: saying(func(p *peer) {
			for range 50 {
				if _, err := io.WriteString(p.Conn, megabyte); err != nil {
					return
				}
			}
		})},
		{name: "sends announcements in its handshake and stalls", meets: func(t *testing.T) trap {
			var seq atomic.Int32
			return trapped(t, func(p *peer) {
				p.expects("HELLO 3 AUTH default " + secret)
				for range 2000 {
					p.says(movingFrame(int(seq.Add(1))+100, 1, "10.9.0.9:6379"))
				}
				p.hangsOn()
			})
		}},
	} {
		for _, window := range []int{15, 3600} {
			if window == 3600 && c.name != "refuses" && c.name != "wants another password" && c.name != "is a blackhole" {
				continue // a dial a second for 1,000 s each: three of them tell enough
			}
			sub(t, fmt.Sprintf("%s, window=%ds", c.name, window), func(t *testing.T) {
				ca := newAuthority(t)
				meets, dials, j := c.meets(t), &dialBook{}, &journal{}
				more := []batontest.Option{batontest.WithAddr(homeAddr), batontest.WithUser("default", secret)}
				if c.tls {
					more = append(more, batontest.WithTLS(&tls.Config{Certificates: []tls.Certificate{*ca.issue(homeName)}}))
				}
				a := memoryServer(t, more...)
				client := dialMemory(t, a, func(o *Options) {
					o.Password, o.OnEvent, o.Maintenance.Mode, o.Conns = secret, j.add, c.mode, 1
					if c.tls {
						o.TLS = &tls.Config{RootCAs: ca.pool}
					}
					o.Dialer = dials.over(distant(func(ctx context.Context, network, addr string) (net.Conn, error) {
						if addr == homeAddr {
							return a.Dial(ctx, network, addr)
						}
						return meets(ctx)
					}, hostileRTT))
				})
				t.Cleanup(func() { client.Close(); time.Sleep(time.Second) })
				stop := steady(t, client, 11*time.Second)
				time.Sleep(time.Second)
				start := time.Now()
				a.Push("MOVING", 7, window, nextAddr)
				time.Sleep(time.Duration(min(window, int(hostileRun/time.Second)))*time.Second/2 - time.Second)
				if st := client.Stats(); st.Handoffs != 0 || st.Held != 0 || j.count(EventDialFailed) == 0 && dials.count(nextAddr) != 1 {
					t.Errorf("in the first half of the window: %d handoffs, %d commands held, dials of %v", st.Handoffs, st.Held, dials.to())
				}
				time.Sleep(time.Until(start.Add(hostileRun)))
				f := stop()
				f.undisturbed(t, a)
				// By back-off: 5 in the first 1.2 s, and then one in at least 750 ms; two connections for each where the name may be
				// wrong. In the second half the configured address has its turn, and takes the client.
				most := 8 + int(min(float64(window)/2, hostileRun.Seconds())/0.75)
				if c.tls {
					most *= 2
				}
				if n := dials.count(nextAddr); n < 1 || n > most {
					t.Errorf("the successor was dialled %d times, want at most %d", n, most)
				}
				if n := dials.count(homeAddr); window == 15 && n != 2 || window == 3600 && n != 1 {
					t.Errorf("the configured address was dialled %d times: %v", n, dials.to())
				}
				for i, at := range dials.when() {
					if since := at.Sub(start); since > time.Duration(window)*time.Second+relaxedDial {
						t.Errorf("%s was dialled %v after the announcement", dials.to()[i], since)
					}
				}
				if n := dials.count("10.9.0.9:6379"); n > 0 {
					t.Errorf("what a replacement announced that was never ready was followed, %d times", n)
				}
				if st := client.Stats(); st.Reconnects != 0 || st.Failed != 0 || a.Conns() != 1 {
					t.Errorf("%d connections to the old server, stats: %+v", a.Conns(), st)
				}
			})
		}
	}
}

// stalling is a connection that takes so many bytes and then stalls.
type stalling struct {
	net.Conn
	left int
}

func (h *stalling) Write(b []byte) (int, error) {
	n := min(len(b), h.left)
	h.left -= n
	h.Conn.Write(b[:n])
	if n < len(b) {
		io.Copy(io.Discard, h.Conn)
		return n, io.ErrClosedPipe
	}
	return n, nil
}

// TestHostileSuccessorsThatHangUp: they shake hands, and then close.
func TestHostileSuccessorsThatHangUp(t *testing.T) {
	for _, window := range []int{0, 15, 3600} {
		sub(t, fmt.Sprintf("right after the handshake, window=%ds", window), func(t *testing.T) {
			a, dials := memoryServer(t), &dialBook{}
			meets := trapped(t, func(p *peer) { p.handshake(); p.Close() })
			client := dialMemory(t, a, func(o *Options) {
				o.Dialer = dials.over(distant(func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr == a.Addr() {
						return a.Dial(ctx, network, addr)
					}
					return meets(ctx)
				}, hostileRTT))
			})
			t.Cleanup(func() { client.Close(); time.Sleep(time.Second) })
			stop := steady(t, client, hostileRun) // so there is always something in flight, so that it is found out in the hold
			time.Sleep(1007 * time.Millisecond)   // out of step with the round trips, so that the replacement is ready while they are under way
			start := time.Now()
			a.Push("MOVING", 7, window, addrB)
			end := min(hostileRun, time.Duration(window)*time.Second+15*time.Second) // an hour of it is like the first minute
			if window == 3600 {
				end = time.Minute
			}
			time.Sleep(end)
			f := stop()
			f.undisturbed(t, a)
			stop = steady(t, client, 0)
			time.Sleep(time.Until(start.Add(hostileRun)))
			stop()
			most := 8 + int(min(float64(window)/2, end.Seconds())/0.75)
			if window < 3600 {
				if n := dials.count(addrB); n < 1 || n > most+3 {
					t.Errorf("the successor was dialled %d times, want at most %d", n, most)
				}
				for i, at := range dials.when() {
					if since := at.Sub(start); since > time.Duration(window)*time.Second+relaxedDial+time.Second {
						t.Errorf("%s was dialled %v after the announcement", dials.to()[i], since)
					}
				}
			}
			if n := len(dials.to()); n > 8+int(hostileRun.Seconds()/0.75) {
				t.Errorf("%d dials", n)
			}
			if client.Stats().Reconnects > 0 && window < 3600 {
				t.Errorf("%d reconnects", client.Stats().Reconnects)
			}
		})
	}
	for _, after := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
		// It is found good, takes over and then closes. That is an ordinary loss, for which there is no cure; but there is a bound.
		sub(t, fmt.Sprintf("%v after the handshake, every time", after), func(t *testing.T) {
			a, dials := memoryServer(t), &dialBook{}
			meets := trapped(t, func(p *peer) {
				p.handshake()
				go func() { time.Sleep(after); p.Close() }()
				p.serve(func(string) string { return ":1\r\n" })
			})
			client := dialMemory(t, a, func(o *Options) {
				o.Dialer = dials.over(func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr == a.Addr() {
						return a.Dial(ctx, network, addr)
					}
					return meets(ctx)
				})
			})
			a.Push("MOVING", 7, 15, addrB)
			time.Sleep(hostileRun)
			// A loss within a second of the last is redialled with back-off, one after a longer life at once.
			most := 1 + 8 + int(16/min(max(after.Seconds(), 0.75), 3)) + 8
			if n := len(dials.to()); n > most {
				t.Errorf("%d dials, want at most %d: %v", n, most, dials.to())
			}
			if got, err := client.Do(background, "PING").Text(); err != nil || got != "PONG" || a.Conns() != 1 {
				t.Errorf("in the end: %q, %v, %d connections to the configured address", got, err, a.Conns())
			}
		})
	}
}

// TestHostileSuccessorsThatAnnounce: they work, and answer everything with a MOVING to themselves, for ever.
func TestHostileSuccessorsThatAnnounce(t *testing.T) {
	t.Parallel()
	for _, everywhere := range []bool{false, true} { // whether the configured address leads to the same kind
		for _, window := range []string{"0", "1", "15", "3600", "4611686018427387904", "-7"} {
			for _, number := range []string{"the same number", "rising numbers", "no number"} {
				for _, names := range []string{"itself", "the other"} {
					if names == "the other" && (!everywhere || number != "rising numbers") ||
						window[0] != '0' && window[0] != '1' && number == "no number" {
						continue
					}
					where := "the successor announces"
					if everywhere {
						where = "every server announces"
					}
					sub(t, fmt.Sprintf("%s %s with %s, window=%ss", where, names, number, window), func(t *testing.T) {
						testAnnouncing(t, everywhere, window, number, names)
					})
				}
			}
		}
	}
}

func testAnnouncing(t *testing.T, everywhere bool, window, number, names string) {
	var evil atomic.Bool
	var seq atomic.Int64
	var a, b *batontest.Server
	// Each handshake, and each command after it, has the server tell all its connections once more.
	announces := func(me, other **batontest.Server) batontest.Option {
		return batontest.OnCommand(func(_ int, args []string) {
			if !evil.Load() || args[0] != "PING" && args[0] != "INCR" {
				return
			}
			n := ":7"
			switch number {
			case "rising numbers":
				n = fmt.Sprintf(":%d", 7+seq.Add(1))
			case "no number":
				n = "_"
			}
			to := (*me).Addr()
			if names == "the other" {
				to = (*other).Addr()
			}
			(*me).PushRaw([]byte(fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n%s\r\n:%s\r\n$%d\r\n%s\r\n", n, window, len(to), to)))
		})
	}
	if everywhere {
		a = memoryServer(t, announces(&a, &b))
	} else {
		a = memoryServer(t)
	}
	b = a.Sibling(announces(&b, &a))
	t.Cleanup(b.Close)
	dials := &dialBook{}
	client := dialMemory(t, a, func(o *Options) { o.Dialer = dials.over(distant(o.Dialer, hostileRTT)) })
	t.Cleanup(func() { client.Close(); time.Sleep(time.Second) })
	stop := steady(t, client, 10*time.Second)
	time.Sleep(time.Second)
	start := time.Now()
	a.Push("MOVING", 7, 4, b.Addr())
	evil.Store(true)
	time.Sleep(8 * time.Second) // the announcement is remembered
	eight := len(dials.to())
	time.Sleep(12 * time.Second)
	twenty := len(dials.to())
	time.Sleep(time.Until(start.Add(hostileRun)))
	stop().undisturbed(t, a, b)
	n := len(dials.to())
	// From the third on they are half a second to ten apart, but never later than half of their window, or of the time that an
	// announcement of no window is remembered.
	gap := map[string]time.Duration{"0": 5 * time.Second, "-7": 5 * time.Second, "1": 500 * time.Millisecond, "15": 7500 * time.Millisecond}[window]
	gap = cmp.Or(gap, 10*time.Second)
	switch {
	case number != "rising numbers" && eight != 2:
		t.Errorf("one announcement, of a named successor, made %d dials: %v", eight-1, dials.to())
	case number == "the same number" && !everywhere && n > 3: // when it is forgotten it may be believed once more
		t.Errorf("%d dials: %v", n, dials.to())
	case n > 2+5+int(hostileRun/gap)+10: // two at once, five half a second and more apart, and then evenly
		t.Errorf("%d dials in %v", n, hostileRun)
	case twenty > 2+5+int(20*time.Second/gap)+3:
		t.Errorf("%d dials in the first 20 s", twenty)
	}
	if st := client.Stats(); st.Reconnects != 0 || st.Failed != 0 || a.Conns()+b.Conns() != 1 {
		t.Errorf("%d and %d connections, stats: %+v", a.Conns(), b.Conns(), st)
	}
	if b.Executed("INCR") == 0 && (number != "rising numbers" || !everywhere) {
		t.Error("the client never moved")
	}
}

// TestHostileSuccessorsWithMuchToSay: huge pushes, and thousands of them, before the handshake is over. They shake hands all the
// same, so the client moves there, once, and takes no harm.
func TestHostileSuccessorsWithMuchToSay(t *testing.T) {
	megabyte := ">2\r\n$3\r\nfoo\r\n$1048576\r\n" + strings.Repeat("x", 1<<20) + "\r\n"
	var rising, migrating strings.Builder
	for i := range 3000 {
		rising.WriteString(movingFrame(100+i, 2, "10.9.0.9:6379"))
		fmt.Fprintf(&migrating, ">4\r\n$9\r\nMIGRATING\r\n:%d\r\n:2\r\n$6\r\n[\"27\"]\r\n", 1000+i)
	}
	for name, c := range map[string]struct {
		raw   string
		loops bool // it names somebody who does not exist
	}{
		"a push of 1 MB":                  {megabyte, false},
		"a MOVING of 1 MB":                {">4\r\n$6\r\nMOVING\r\n:99\r\n:5\r\n$1048576\r\n" + strings.Repeat("h", 1<<20) + "\r\n", false},
		"thousands of pushes":             {strings.Repeat(">2\r\n$3\r\nfoo\r\n$1\r\nx\r\n", 5000), false},
		"thousands of MIGRATING":          {migrating.String(), false},
		"thousands of MOVING to nobody":   {rising.String(), true},
		"thousands of the same MOVING":    {strings.Repeat(movingFrame(7, 10, "10.9.0.9:6379"), 5000), false},
		"thousands of replayed MIGRATED":  {strings.Repeat(">2\r\n$8\r\nMIGRATED\r\n:3\r\n", 5000), false},
		"thousands of MOVING from before": {strings.Repeat(movingFrame(3, 10, "10.9.0.9:6379"), 5000), false},
	} {
		for _, before := range []string{"HELLO", "the opt-in", "PING"} {
			if before != "PING" && !strings.Contains(name, "1 MB") && !strings.Contains(name, "nobody") {
				continue
			}
			sub(t, name+", before the answer to "+before, func(t *testing.T) {
				a, dials := memoryServer(t), &dialBook{}
				b := a.Sibling()
				t.Cleanup(b.Close)
				step := map[string]string{"HELLO": "HELLO", "the opt-in": "CLIENT MAINT", "PING": "PING"}[before]
				client := dialMemory(t, a, func(o *Options) {
					o.Dialer = dials.over(distant(func(ctx context.Context, network, addr string) (net.Conn, error) {
						nc, err := a.Dial(ctx, network, addr)
						if err == nil && addr == b.Addr() {
							nc = &interposed{Conn: nc, before: step, raw: []byte(c.raw)}
						}
						return nc, err
					}, hostileRTT))
				})
				t.Cleanup(func() { client.Close(); time.Sleep(time.Second) })
				stop := steady(t, client, 7*time.Second)
				time.Sleep(time.Second)
				a.Push("MOVING", 7, 10, b.Addr())
				time.Sleep(5 * time.Second)
				if client.Stats().Handoffs == 0 || b.Executed("INCR") == 0 {
					t.Errorf("there was no handoff, for all that it said; dials of %v", dials.to())
				}
				time.Sleep(hostileRun)
				stop().undisturbed(t, a, b)
				if n := dials.count(b.Addr()); n != 1 {
					t.Errorf("it was dialled %d times", n)
				}
				nobody := dials.count("10.9.0.9:6379")
				if !c.loops && nobody > 0 || nobody > 20 || len(dials.to()) > 30 {
					t.Errorf("dials of %v", dials.to())
				}
				if st := client.Stats(); st.Reconnects != 0 || st.Failed != 0 {
					t.Errorf("stats: %+v", st)
				}
			})
		}
	}
}

// interposed is a connection on which raw comes before the answer to the first command that begins with before. PING is written
// together with the opt-in, so before its answer there is the opt-in's.
type interposed struct {
	net.Conn
	before string
	raw    []byte

	mu   sync.Mutex
	due  bool
	once bool
}

func (c *interposed) Write(b []byte) (int, error) {
	c.mu.Lock()
	if !c.once && strings.Contains(" | "+commandsIn(b), " | "+c.before) {
		c.once, c.due = true, true
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *interposed) Read(b []byte) (int, error) {
	for {
		c.mu.Lock()
		if c.due && len(c.raw) > 0 {
			n := copy(b, c.raw)
			c.raw = c.raw[n:]
			c.mu.Unlock()
			return n, nil
		}
		c.mu.Unlock()
		n, err := c.Conn.Read(b)
		c.mu.Lock()
		if !c.due || len(c.raw) == 0 || err != nil {
			c.mu.Unlock()
			return n, err
		}
		// The answer is here: what comes before it goes first.
		answer, first := string(b[:n]), ""
		if ok := "+OK\r\n"; c.before == "PING" && strings.HasPrefix(answer, ok) {
			first, answer = ok, answer[len(ok):]
		}
		c.raw = []byte(first + string(c.raw) + answer)
		c.mu.Unlock()
	}
}

// TestAWrongNameElsewhereIsNoMatterOfTheSuccessor: what a user supplies may talk TLS to others, or to the server by itself, and fail
// for a name there. That is a dial that failed, no more.
func TestAWrongNameElsewhereIsNoMatterOfTheSuccessor(t *testing.T) {
	wrong := fmt.Errorf("token service: %w", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "tokens.example.com"})
	for _, source := range []string{"Dialer", "Credentials"} {
		sub(t, source, func(t *testing.T) {
			var bad atomic.Bool
			var calls atomic.Int32
			s := newStage(t, func(o *Options) {
				serves := o.Dialer
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr == nextAddr {
						if calls.Add(1); source == "Dialer" && bad.Load() {
							return nil, wrong
						}
						addr = "10.9.0.77:6379"
					}
					return serves(ctx, network, addr)
				}
				o.Credentials = func(context.Context) (string, string, error) {
					if calls.Add(1); source == "Credentials" && bad.Load() {
						return "", "", wrong
					}
					return "", "", nil
				}
			})
			next := s.a.Sibling(batontest.WithAddr("10.9.0.77:6379"))
			t.Cleanup(next.Close)
			bad.Store(true)
			stop := traffic(t, s.c, 2, 20*time.Millisecond)
			s.a.Push("MOVING", 1, 10, nextAddr)
			time.Sleep(2 * time.Second)
			if s.j.count(EventDialFailed) == 0 || s.c.Stats().Handoffs != 0 {
				t.Errorf("%d dials failed, %d handoffs", s.j.count(EventDialFailed), s.c.Stats().Handoffs)
			}
			bad.Store(false)
			time.Sleep(2 * time.Second)
			if s.c.Stats().Handoffs != 1 || next.Conns() != 1 {
				t.Errorf("%d handoffs, %d connections to the successor", s.c.Stats().Handoffs, next.Conns())
			}
			if _, failed := stop(); len(failed) > 0 {
				t.Errorf("%d commands failed: %v", len(failed), failed[0])
			}
		})
	}
}
