package baton

// Each fault that users of other clients reported, and that this package must not have, has a number. The test that shows its kind has the
// number in its name, as in TestCaseA1…, or several in a row, as in TestCaseA5A44…. Here is the list of all, and what looks whether it is true.

import (
	"go/ast"
	"go/parser"
	files "go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cases are the numbers, and what must not happen again.
var cases = map[string]string{
	// Handoffs and notifications.
	"A1":  "an IPv6 successor is split at its first colon",
	"A2":  "a stale announcement has effects before it is found stale",
	"A3":  "the end of one kind of maintenance ends the relaxed timeouts of another",
	"A4":  "an announcement without a successor leads nowhere",
	"A5":  "notifications are asked for where nobody listens",
	"A7":  "an announcement read late from a retired connection counts as new",
	"A8":  "a connection that was being dialled during the announcement stays on the old node",
	"A10": "a connection that was told to leave serves again when the window is over",
	"A11": "relaxing shortens a timeout",
	"A12": "an unset timeout becomes a deadline in the past",
	"A14": "a relaxed timeout outlives its window",
	"A15": "TLS to a successor fails, or is verified for the wrong name",
	"A20": "one announcement, repeated to every new connection, makes a loop of reconnects",
	"A21": "sequence number 0 counts as none",
	"A22": "a name is resolved too early, and leads to the node that is going away",
	"A24": "a node that goes away without an announcement takes commands with it that were not written",
	"A25": "a successor that never answers is dialled for ever",
	"A26": "a placeholder is dialled",
	"A27": "a frame of another form is dropped",
	"A28": "one event is reported once for each connection",
	"A33": "a successor that refuses leaves writes paused",
	"A34": "an announcement that names nobody is unexpected where a name was asked for",
	"A35": "a command given just after the announcement times out early",
	"A37": "the text null is taken for a host",
	"A39": "a unix socket cannot be connected to, since it has no host",
	"A42": "each announcement costs a sleeping goroutine",
	"A43": "notifications granted once make a later refusal fatal",
	"A44": "notifications are asked for in protocol 2",
	"A45": "zero options panic",
	"A48": "handoffs, health checks and Close race",
	"A49": "an announcement in the middle of a write is missed, or holds writes without an end",
	"A50": "new credentials and a handoff fight for a connection",
	"A51": "a lookup only to choose a type of endpoint delays the connection",
	"A53": "commands behind a transaction that was refused hang",
	"A56": "a connection that dies while credentials are awaited stops reconnecting",
	// Pushes and parsing.
	"B1":  "a push in an array becomes an element",
	"B3":  "a push is handed to the waiting command",
	"B4":  "a push is an unknown type",
	"B5":  "a push behind a reply shifts what follows",
	"B6":  "a short push waits for more bytes",
	"B7":  "a push larger than a buffer is refused",
	"B8":  "a way of reading knows no pushes",
	"B10": "an unsolicited unsubscribe counts as a reply",
	"B11": "a SUBSCRIBE that is confirmed by pushes, or refused, never ends",
	"B12": "the end of a subscription that nobody has is a surprise",
	"B13": "a null that arrives in pieces misaligns the stream",
	"B15": "a reply before the handshake's own shifts all others",
	"B16": "infinities, big numbers and verbatim strings are misread",
	"B17": "numbers lose digits",
	"B19": "a streamed or malformed type hangs",
	"B21": "nesting overflows the stack",
	"B22": "an unknown push, or a redirection to nowhere, is acted upon",
	// Timeouts, cancellation, lost replies, retries.
	"C1":  "a cancelled command leaves its reply to the next",
	"C3":  "a retry reads the reply of the first try",
	"C4":  "the replies behind an error stay for the next batch",
	"C5":  "a connection with unread replies is used again",
	"C6":  "a batch of one is unwrapped in another way",
	"C7":  "callers hang when the socket dies or the password is wrong",
	"C8":  "after a freeze and a restart replies belong to others",
	"C9":  "an element is popped for a caller who left, without a word",
	"C11": "a command that was never sent fails as if it had been",
	"C13": "pieces of a transaction are sent again after a failover",
	"C14": "a command is repeated before its database is selected",
	"C15": "an increment is applied twice",
	"C16": "one caller's deadline fails another",
	"C17": "without a deadline nothing ends",
	"C18": "an old connection's timer ends a new one, or a close in the handshake ends reconnecting",
	"C19": "a timeout costs everybody the connection, or a dead one is kept",
	"C21": "a transaction without its MULTI counts as one",
	// Handshake, rights, servers without the feature.
	"D1":  "a server without notifications fills the log",
	"D2":  "a refusal of notifications counts as a failure",
	"D3":  "a server without notifications is asked more often than once a connection, or though it is turned off",
	"D4":  "a user who may not say HELLO cannot connect",
	"D5":  "a server that has no HELLO cannot be connected to",
	"D6":  "a fallback hides a wrong password",
	"D7":  "credentials come after a HELLO that needs them",
	"D9":  "commands that the user may not use are tried, and logged by the server",
	"D10": "a reconnect falls back to protocol 2 and nobody knows",
	"D13": "a replica that is not ready is taken for ready",
	"D14": "a client stays on a demoted server",
	"D15": "port 0 is dialled",
	// Credentials.
	"E2": "an expired token is used again",
	"E3": "AUTH on a connection with subscriptions blocks everything",
	"E4": "AUTH gets between MULTI and EXEC",
	"E5": "a rotation drops connections, or reaches one of many",
	"E6": "a refused password leaves an identity that nobody expects",
	"E7": "a lost subscription is not authenticated when it comes back",
	// Subscriptions and transactions.
	"F4":  "a client without a connection claims to be ready",
	"F5":  "messages are lost in a gap and nobody is told",
	"F6":  "what two connections deliver is delivered twice",
	"F7":  "half a transaction is executed outside of one",
	"F9":  "somebody else's WATCH aborts a transaction",
	"F10": "a subscriber stays on the old server until it is cut",
	// Addresses, names, TLS, size and speed.
	"G2": "the first address of a name is used for ever",
	"G3": "a cached answer outlives the window",
	"G4": "all nodes are verified for one name",
	"G5": "a successor is connected to with other settings",
	"G6": "a slow subscriber stalls the connection",
	"G8": "all clients come at once",
}

// exempt are the numbers that need no test here, and why.
var exempt = map[string]string{}

var caseNumber = regexp.MustCompile(`^[A-Z][0-9]+`)

// numbersIn are the numbers in a test's name.
func numbersIn(name string) (numbers []string) {
	rest, is := strings.CutPrefix(name, "TestCase")
	for n := caseNumber.FindString(rest); is && n != ""; n = caseNumber.FindString(rest) {
		numbers, rest = append(numbers, n), rest[len(n):]
	}
	return numbers
}

// TestEveryCaseHasItsTest looks for them in this package and in that of the server for tests.
func TestEveryCaseHasItsTest(t *testing.T) {
	shown := map[string]string{}
	for _, dir := range []string{"", "batontest/"} {
		names, err := filepath.Glob(dir + "*_test.go")
		if err != nil || len(names) == 0 {
			t.Fatalf("%d files: %v", len(names), err)
		}
		for _, name := range names {
			f, err := parser.ParseFile(files.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if test, ok := d.(*ast.FuncDecl); ok && test.Recv == nil {
					for _, n := range numbersIn(test.Name.Name) {
						shown[n] = test.Name.Name
					}
				}
			}
		}
	}
	for n, test := range shown {
		if cases[n] == "" {
			t.Errorf("%s shows %s, which is not in the list", test, n)
		}
		if exempt[n] != "" {
			t.Errorf("%s is exempt, and %s shows it", n, test)
		}
	}
	for n, what := range cases {
		if shown[n] == "" && exempt[n] == "" {
			t.Errorf("no test shows %s: %s", n, what)
		}
	}
	for n := range exempt {
		if cases[n] == "" {
			t.Errorf("%s is exempt, and not in the list", n)
		}
	}
	if len(cases) != 99 {
		t.Errorf("%d cases in the list, want 99", len(cases))
	}
}

func TestNumbersAreReadOutOfNames(t *testing.T) {
	for name, want := range map[string][]string{
		"TestCaseA1IPv6Successors":               {"A1"},
		"TestCaseA26A37D15PlaceholdersAreNobody": {"A26", "A37", "D15"},
		"TestCaseB1PushInsideArrayIsAViolation":  {"B1"},
		"TestCaseA42AThousandWaitsAreOne":        {"A42"},
		"TestCaseG8":                             {"G8"},
		"TestCasesOfEveryKind":                   nil,
		"TestA1":                                 nil,
		"TestCaseInsensitive":                    nil,
	} {
		if got := numbersIn(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
