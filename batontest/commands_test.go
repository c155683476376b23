package batontest

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Each line is a command and its reply; where protocol 3 has another one, that follows.
var conversation = []struct{ command, reply, reply3 string }{
	{"PING", "+PONG\r\n", ""},
	{"ping hi", "$2\r\nhi\r\n", ""},
	{"PING a b", "-ERR wrong number of arguments for 'ping' command\r\n", ""},
	{"ECHO x", "$1\r\nx\r\n", ""},
	{"foo a b", "-ERR unknown command 'foo', with args beginning with: 'a' 'b' \r\n", ""},
	{"FOO", "-ERR unknown command 'FOO', with args beginning with: \r\n", ""},
	{"GET", "-ERR wrong number of arguments for 'get' command\r\n", ""},
	{"GET a b", "-ERR wrong number of arguments for 'get' command\r\n", ""},

	{"GET k", "$-1\r\n", "_\r\n"},
	{"SET k 10", "+OK\r\n", ""},
	{"GeT k", "$2\r\n10\r\n", ""},
	{"SET k 11 NX", "$-1\r\n", "_\r\n"},
	{"SET k 11 XX GET", "$2\r\n10\r\n", ""},
	{"SET new 1 XX", "$-1\r\n", "_\r\n"},
	{"SET new 1 NX GET", "$-1\r\n", "_\r\n"},
	{"SET k 11 NX XX", "-ERR syntax error\r\n", ""},
	{"SET k 11 WHAT", "-ERR syntax error\r\n", ""},
	{"SET k 11 EX", "-ERR syntax error\r\n", ""},
	{"SET k 11 EX 0", "-ERR invalid expire time in 'set' command\r\n", ""},
	{"SET k 11 EX x", "-ERR value is not an integer or out of range\r\n", ""},
	{"SET e 1 EX 100", "+OK\r\n", ""},
	{"TTL e", ":100\r\n", ""},
	{"SET e 2 KEEPTTL", "+OK\r\n", ""},
	{"PTTL e", ":100000\r\n", ""},
	{"PERSIST e", ":1\r\n", ""},
	{"TTL e", ":-1\r\n", ""},
	{"EXPIRE e 7", ":1\r\n", ""},
	{"TTL e", ":7\r\n", ""},
	{"SET e 1 EXAT 946684900", "+OK\r\n", ""}, // a bubble's clock begins at 946684800
	{"TTL e", ":100\r\n", ""},
	{"TTL nokey", ":-2\r\n", ""},
	{"EXPIRE nokey 1", ":0\r\n", ""},
	{"SETNX k 5", ":0\r\n", ""},
	{"SETNX k2 5", ":1\r\n", ""},
	{"GETSET k2 6", "$1\r\n5\r\n", ""},
	{"GETDEL k2", "$1\r\n6\r\n", ""},
	{"GETDEL k2", "$-1\r\n", "_\r\n"},
	{"APPEND s ab", ":2\r\n", ""},
	{"APPEND s c", ":3\r\n", ""},
	{"STRLEN s", ":3\r\n", ""},
	{"MSET m1 a m2 b", "+OK\r\n", ""},
	{"MSET m1 a m2", "-ERR wrong number of arguments for 'mset' command\r\n", ""},
	{"MGET m1 nokey m2", "*3\r\n$1\r\na\r\n$-1\r\n$1\r\nb\r\n", "*3\r\n$1\r\na\r\n_\r\n$1\r\nb\r\n"},
	{"INCR k", ":12\r\n", ""},
	{"DECR k", ":11\r\n", ""},
	{"INCRBY k 10", ":21\r\n", ""},
	{"DECRBY k 1", ":20\r\n", ""},
	{"INCR s", "-ERR value is not an integer or out of range\r\n", ""},
	{"INCRBY k x", "-ERR value is not an integer or out of range\r\n", ""},
	{"INCRBY k 9223372036854775807", "-ERR increment or decrement would overflow\r\n", ""},
	{"INCR nokey2", ":1\r\n", ""},
	{"INCRBYFLOAT f 1.5", "$3\r\n1.5\r\n", ""},
	{"INCRBYFLOAT f x", "-ERR value is not a valid float\r\n", ""},
	{"EXISTS k k nokey", ":2\r\n", ""},
	{"DEL k nokey e", ":2\r\n", ""},
	{"TYPE s", "+string\r\n", ""},
	{"TYPE nokey", "+none\r\n", ""},
	{"KEYS m*", "*2\r\n$2\r\nm1\r\n$2\r\nm2\r\n", ""},

	{"RPUSH l a b c", ":3\r\n", ""},
	{"LPUSH l z", ":4\r\n", ""},
	{"LRANGE l 0 -1", "*4\r\n$1\r\nz\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", ""},
	{"LRANGE l -2 100", "*2\r\n$1\r\nb\r\n$1\r\nc\r\n", ""},
	{"LRANGE l 3 1", "*0\r\n", ""},
	{"LLEN l", ":4\r\n", ""},
	{"LPOP l", "$1\r\nz\r\n", ""},
	{"RPOP l 2", "*2\r\n$1\r\nc\r\n$1\r\nb\r\n", ""},
	{"LPOP l -1", "-ERR value is out of range, must be positive\r\n", ""},
	{"LMOVE l l2 LEFT RIGHT", "$1\r\na\r\n", ""},
	{"LMOVE l l2 LEFT RIGHT", "$-1\r\n", "_\r\n"},
	{"LMOVE l l2 LEFT UP", "-ERR syntax error\r\n", ""},
	{"LMOVE l2 s LEFT LEFT", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", ""},
	{"EXISTS l", ":0\r\n", ""},
	{"LPOP l", "$-1\r\n", "_\r\n"},
	{"LPOP l 1", "*-1\r\n", "_\r\n"},
	{"BLPOP l l2 1", "*2\r\n$2\r\nl2\r\n$1\r\na\r\n", ""},
	{"BLPOP l 1", "*-1\r\n", "_\r\n"},
	{"BLMOVE l l2 LEFT LEFT 1", "*-1\r\n", "_\r\n"},
	{"BLPOP l -1", "-ERR timeout is negative\r\n", ""},
	{"BLPOP l x", "-ERR timeout is not a float or out of range\r\n", ""},
	{"LPUSH s x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", ""},
	{"BLPOP s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", ""},

	{"HSET h a 1 b 2", ":2\r\n", ""},
	{"HSET h a 3", ":0\r\n", ""},
	{"HSET h a", "-ERR wrong number of arguments for 'hset' command\r\n", ""},
	{"HGET h a", "$1\r\n3\r\n", ""},
	{"HGET h c", "$-1\r\n", "_\r\n"},
	{"HGETALL h", "*4\r\n$1\r\na\r\n$1\r\n3\r\n$1\r\nb\r\n$1\r\n2\r\n", "%2\r\n$1\r\na\r\n$1\r\n3\r\n$1\r\nb\r\n$1\r\n2\r\n"},
	{"HINCRBY h a 2", ":5\r\n", ""},
	{"HINCRBY h n 2", ":2\r\n", ""},
	{"HLEN h", ":3\r\n", ""},
	{"HDEL h a b n x", ":3\r\n", ""},
	{"TYPE h", "+none\r\n", ""},
	{"GET nokey3", "$-1\r\n", "_\r\n"},
	{"SADD set b a b", ":2\r\n", ""},
	{"SMEMBERS set", "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "~2\r\n$1\r\na\r\n$1\r\nb\r\n"},
	{"GET set", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", ""},

	{"SADD set a", ":0\r\n", ""},
	{"LLEN set", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", ""},
	{"SET set 1 GET", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", ""},
	{"LLEN nokey", ":0\r\n", ""},
	{"LRANGE nokey a b", "-ERR value is not an integer or out of range\r\n", ""},
	{"LRANGE nokey -9 9", "*0\r\n", ""},
	{"RPUSH ring a b", ":2\r\n", ""},
	{"LMOVE ring ring LEFT RIGHT", "$1\r\na\r\n", ""},
	{"RPOP ring", "$1\r\na\r\n", ""},
	{"HSET h2 a 1 b", "-ERR wrong number of arguments for 'hset' command\r\n", ""},
	{"HDEL h2 a", ":0\r\n", ""},
	{"HINCRBY h2 a x", "-ERR value is not an integer or out of range\r\n", ""},
	{"HSET h2 a x", ":1\r\n", ""},
	{"HINCRBY h2 a 1", "-ERR hash value is not an integer\r\n", ""},
	{"EXPIRE h2 x", "-ERR value is not an integer or out of range\r\n", ""},
	{"PERSIST h2", ":0\r\n", ""},
	{"INCRBY zero 0", ":0\r\n", ""},
	{"AUTH a b c", "-ERR syntax error\r\n", ""},

	{"SELECT 1", "+OK\r\n", ""},
	{"DBSIZE", ":0\r\n", ""},
	{"SELECT 16", "-ERR DB index is out of range\r\n", ""},
	{"SELECT x", "-ERR value is not an integer or out of range\r\n", ""},
	{"SELECT 0", "+OK\r\n", ""},
	{"WAIT 1 10", ":0\r\n", ""},

	{"CLIENT GETNAME", "$-1\r\n", "_\r\n"},
	{"CLIENT SETNAME bob", "+OK\r\n", ""},
	{"CLIENT GETNAME", "$3\r\nbob\r\n", ""},
	{"CLIENT SETINFO lib-name x", "+OK\r\n", ""},
	{"CLIENT NO-EVICT on", "+OK\r\n", ""},
	{"CLIENT FOO", "-ERR unknown subcommand 'FOO'. Try CLIENT HELP.\r\n", ""},
	{"CLIENT GETNAME x", "-ERR wrong number of arguments for 'client|getname' command\r\n", ""},
	{"CLIENT KILL ID 99999", ":0\r\n", ""},
	{"CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type sideways", "-ERR syntax error\r\n", ""},
	{"CLIENT MAINT_NOTIFICATIONS ON", "+OK\r\n", ""},
	{"CLIENT MAINT_NOTIFICATIONS OFF", "+OK\r\n", ""},

	{"HELLO 4", "-NOPROTO unsupported protocol version\r\n", ""},
	{"HELLO x", "-ERR Protocol version is not an integer or out of range\r\n", ""},
	{"HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'\r\n", ""},
	{"AUTH x", "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\r\n", ""},
	{"AUTH a b", "-WRONGPASS invalid username-password pair or user is disabled.\r\n", ""},

	{"MULTI", "+OK\r\n", ""},
	{"MULTI", "-ERR MULTI calls can not be nested\r\n", ""},
	{"WATCH k", "-ERR WATCH inside MULTI is not allowed\r\n", ""},
	{"SET t 1", "+QUEUED\r\n", ""},
	{"INCR t", "+QUEUED\r\n", ""},
	{"BLPOP nolist 0", "+QUEUED\r\n", ""},
	{"BLMOVE nolist l LEFT LEFT 0", "+QUEUED\r\n", ""},
	{"GET set", "+QUEUED\r\n", ""},
	{"EXEC", "*5\r\n+OK\r\n:2\r\n*-1\r\n$-1\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
		"*5\r\n+OK\r\n:2\r\n_\r\n_\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
	{"EXEC", "-ERR EXEC without MULTI\r\n", ""},
	{"MULTI", "+OK\r\n", ""},
	{"SET t 5", "+QUEUED\r\n", ""},
	{"NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: \r\n", ""},
	{"EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n", ""},
	{"MULTI", "+OK\r\n", ""},
	{"SET t 6", "+QUEUED\r\n", ""},
	{"DISCARD", "+OK\r\n", ""},
	{"DISCARD", "-ERR DISCARD without MULTI\r\n", ""},
	{"GET t", "$1\r\n2\r\n", ""},

	{"DEBUG PROTOCOL double", "$5\r\n3.141\r\n", ",3.141\r\n"},
	{"DEBUG PROTOCOL map", "*6\r\n:0\r\n:0\r\n:1\r\n:1\r\n:2\r\n:0\r\n", "%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n"},
	{"DEBUG PROTOCOL set", "*3\r\n:0\r\n:1\r\n:2\r\n", "~3\r\n:0\r\n:1\r\n:2\r\n"},
	{"DEBUG PROTOCOL array", "*3\r\n:0\r\n:1\r\n:2\r\n", ""},
	{"DEBUG PROTOCOL true", ":1\r\n", "#t\r\n"},
	{"DEBUG PROTOCOL null", "$-1\r\n", "_\r\n"},
	{"DEBUG PROTOCOL bignum", "$37\r\n1234567999999999999999999999999999999\r\n", "(1234567999999999999999999999999999999\r\n"},
	{"DEBUG PROTOCOL verbatim", "$25\r\nThis is a verbatim\nstring\r\n", "=29\r\ntxt:This is a verbatim\nstring\r\n"},

	{"FLUSHDB", "+OK\r\n", ""},
	{"DBSIZE", ":0\r\n", ""},
}

func TestConversation(t *testing.T) {
	for proto := 2; proto <= 3; proto++ {
		t.Run(fmt.Sprintf("proto=%d", proto), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := dial(t, inMemory(t))
				if proto == 3 {
					c.say("HELLO 3")
					c.skip("*0\r\n")
				}
				for _, line := range conversation {
					want := line.reply
					if proto == 3 && line.reply3 != "" {
						want = line.reply3
					}
					t.Log(line.command)
					c.ask(line.command, want)
				}
			})
		})
	}
}

// The table above is true of Redis itself, as far as the one at hand knows the command.
func TestConversationMatchesRedis(t *testing.T) {
	conn, err := net.Dial("unix", realRedis(t))
	c := newTalker(t, conn, err)
	for _, line := range conversation {
		t.Log(line.command)
		switch words := strings.Fields(line.command); {
		case line.command == "CLIENT SETINFO lib-name x", strings.Contains(line.command, "MAINT_"), words[0] == "DEBUG", words[0] == "PTTL":
		case strings.HasPrefix(line.command, "SET e 1 EXAT"):
			c.ask("SET e 1 EX 100", "+OK\r\n")
		case strings.HasPrefix(line.reply, "*2\r\n"): // of a set or of KEYS: in any order
			c.say(line.command)
			c.hear(line.reply[:4])
			c.r.Discard(len(line.reply) - 4)
		case words[0] == "HGETALL":
			c.say(line.command)
			c.r.Discard(len(line.reply))
		default:
			c.ask(line.command, line.reply)
		}
	}
}

func TestConversationPipelined(t *testing.T) {
	for _, chunk := range []int{0, 1, 7} {
		bubble(t, func(t *testing.T) {
			c := dial(t, inMemory(t, Chunk(chunk)))
			var want strings.Builder
			for _, line := range conversation {
				c.say(line.command)
				want.WriteString(line.reply)
			}
			c.hear(want.String())
		})
	}
}

func TestKeysExpire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := dial(t, inMemory(t))
		c.ask("SET k v PX 1500", "+OK\r\n")
		time.Sleep(1499 * time.Millisecond)
		c.ask("GET k", "$1\r\nv\r\n")
		time.Sleep(time.Millisecond)
		c.ask("GET k", "$-1\r\n")
	})
}

func TestHelloMap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := dial(t, inMemory(t))
		body := "$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n$5\r\nproto\r\n:%d\r\n$2\r\nid\r\n:1\r\n" +
			"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
		c.ask("HELLO 3 SETNAME me", "%7\r\n"+fmt.Sprintf(body, 3))
		c.ask("CLIENT GETNAME", "$2\r\nme\r\n")
		c.ask("CLIENT ID", ":1\r\n")
		c.ask("HELLO", "%7\r\n"+fmt.Sprintf(body, 3))
		c.ask("HELLO 2", "*14\r\n"+fmt.Sprintf(body, 2))
		c.ask("RESET", "+RESET\r\n")
		c.ask("CLIENT GETNAME", "$-1\r\n")
		c.ask("QUIT", "+OK\r\n")
		c.ended(io.EOF)
	})
}

func TestAuthentication(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t, WithUser("default", "secret"), WithUser("bob", "builder"))
		c := dial(t, s)
		noauth := "-NOAUTH Authentication required.\r\n"
		wrong := "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
		c.ask("GET k", noauth)
		c.ask("CLIENT MAINT_NOTIFICATIONS ON", noauth)
		c.ask("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: \r\n")
		c.say("HELLO 3")
		c.hear("-NOAUTH HELLO must be called with the client already authenticated")
		c.skip("\r\n")
		c.ask("HELLO 3 AUTH bob nonsense", wrong)
		c.ask("AUTH nonsense", wrong)
		c.ask("GET k", noauth)
		c.ask("AUTH secret", "+OK\r\n")
		c.ask("GET k", "$-1\r\n")
		c.ask("AUTH bob nonsense", wrong)
		c.ask("GET k", "$-1\r\n") // a failed AUTH keeps the old identity
		c.say("HELLO 3 AUTH bob builder")
		c.hear("%7\r\n")
		c.skip("*0\r\n")
		c.ask("RESET", "+RESET\r\n")
		c.ask("GET k", noauth)

		s.SetUser("bob", "changed")
		sibling := s.Sibling()
		defer sibling.Close()
		d := dial(t, sibling)
		d.ask("AUTH bob builder", wrong)
		d.ask("AUTH bob changed", "+OK\r\n")
	})
}

func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		a, b := dial(t, s), dial(t, s)
		for _, change := range []string{"SET k 2", "DEL k", "APPEND k x", "FLUSHALL", "INCR k", "EXPIRE k 5"} {
			a.ask("SET k 1", "+OK\r\n")
			a.ask("WATCH k other", "+OK\r\n")
			b.say(change)
			b.skip("\r\n")
			a.ask("MULTI", "+OK\r\n")
			a.ask("SET k mine", "+QUEUED\r\n")
			t.Log(change)
			a.ask("EXEC", "*-1\r\n")
		}
		a.ask("WATCH k", "+OK\r\n")
		b.ask("SET unrelated 1", "+OK\r\n")
		a.ask("MULTI", "+OK\r\n")
		a.ask("EXEC", "*0\r\n")
		a.ask("WATCH k", "+OK\r\n")
		b.ask("SET k 1", "+OK\r\n")
		a.ask("UNWATCH", "+OK\r\n")
		a.ask("MULTI", "+OK\r\n")
		a.ask("EXEC", "*0\r\n")
		equal(t, "watched keys", len(s.store.watched), 0)
	})
}

func TestBlockedClientsAreServedInTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		first, second, mover, other := dial(t, s), dial(t, s), dial(t, s), dial(t, s)
		for _, c := range []*talker{first, second} {
			c.say("BLPOP x l 0")
			c.say("PING")
			synctest.Wait()
		}
		mover.say("BLMOVE l moved LEFT RIGHT 0")
		synctest.Wait()
		other.ask("RPUSH l 1 2 3 4", ":4\r\n")
		first.hear("*2\r\n$1\r\nl\r\n$1\r\n1\r\n+PONG\r\n")
		second.hear("*2\r\n$1\r\nl\r\n$1\r\n2\r\n+PONG\r\n")
		mover.hear("$1\r\n3\r\n")
		other.ask("LRANGE l 0 -1", "*1\r\n$1\r\n4\r\n")
		other.ask("LRANGE moved 0 -1", "*1\r\n$1\r\n3\r\n")
		equal(t, "waiting", len(s.store.waiting), 0)
	})
}

func TestABlockedClientThatLeftGetsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		c, other := dial(t, s), dial(t, s)
		c.say("BLPOP l 0")
		synctest.Wait()
		c.Close()
		synctest.Wait()
		equal(t, "connections", s.Conns(), 1)
		other.ask("RPUSH l 1", ":1\r\n")
		other.ask("LLEN l", ":1\r\n")
	})
}

// A subscriber's commands and what it hears; a line that begins with < is a command of somebody else, and what the subscriber
// hears of it. Where protocol 3 has another reply, that follows.
var subscriber = []struct{ command, reply, reply3 string }{
	{"UNSUBSCRIBE", "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n", ">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n"},
	{"PUNSUBSCRIBE", "*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:0\r\n", ">3\r\n$12\r\npunsubscribe\r\n_\r\n:0\r\n"},
	{"SUNSUBSCRIBE", "*3\r\n$12\r\nsunsubscribe\r\n$-1\r\n:0\r\n", ">3\r\n$12\r\nsunsubscribe\r\n_\r\n:0\r\n"},
	{"UNSUBSCRIBE nosuch", "*3\r\n$11\r\nunsubscribe\r\n$6\r\nnosuch\r\n:0\r\n", ">3\r\n$11\r\nunsubscribe\r\n$6\r\nnosuch\r\n:0\r\n"},
	{"SUBSCRIBE", "-ERR wrong number of arguments for 'subscribe' command\r\n", ""},
	{"PING", "+PONG\r\n", ""},

	{"SUBSCRIBE a a b", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n",
		">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n"},
	{"SUBSCRIBE a", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:2\r\n", ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:2\r\n"},
	{"< PUBLISH a once", "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$4\r\nonce\r\n", ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$4\r\nonce\r\n"},
	{"PSUBSCRIBE a*", "*3\r\n$10\r\npsubscribe\r\n$2\r\na*\r\n:3\r\n", ">3\r\n$10\r\npsubscribe\r\n$2\r\na*\r\n:3\r\n"},
	{"SSUBSCRIBE a", "*3\r\n$10\r\nssubscribe\r\n$1\r\na\r\n:1\r\n", ">3\r\n$10\r\nssubscribe\r\n$1\r\na\r\n:1\r\n"},
	{"< PUBLISH a two", "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$3\r\ntwo\r\n*4\r\n$8\r\npmessage\r\n$2\r\na*\r\n$1\r\na\r\n$3\r\ntwo\r\n",
		">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$3\r\ntwo\r\n>4\r\n$8\r\npmessage\r\n$2\r\na*\r\n$1\r\na\r\n$3\r\ntwo\r\n"},
	{"< PUBLISH abc p", "*4\r\n$8\r\npmessage\r\n$2\r\na*\r\n$3\r\nabc\r\n$1\r\np\r\n", ">4\r\n$8\r\npmessage\r\n$2\r\na*\r\n$3\r\nabc\r\n$1\r\np\r\n"},
	{"< SPUBLISH a shard", "*3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$5\r\nshard\r\n", ">3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$5\r\nshard\r\n"},
	{"< PUBLISH nobody x", "", ""},
	{"< SPUBLISH abc x", "", ""},

	{"PING", "*2\r\n$4\r\npong\r\n$0\r\n\r\n", "+PONG\r\n"},
	{"PING x", "*2\r\n$4\r\npong\r\n$1\r\nx\r\n", "$1\r\nx\r\n"},
	{"PING x y", "-ERR wrong number of arguments for 'ping' command\r\n", ""},
	{"GET x", onlySubscribe("get"), "_\r\n"},
	{"PUBLISH a self", onlySubscribe("publish"), ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$4\r\nself\r\n" +
		">4\r\n$8\r\npmessage\r\n$2\r\na*\r\n$1\r\na\r\n$4\r\nself\r\n:2\r\n"},
	{"MULTI", onlySubscribe("multi"), "+OK\r\n"},
	{"DISCARD", onlySubscribe("discard"), "+OK\r\n"},
	{"BLPOP nolist 0.01", onlySubscribe("blpop"), "_\r\n"},

	{"PUNSUBSCRIBE nosuch", "*3\r\n$12\r\npunsubscribe\r\n$6\r\nnosuch\r\n:3\r\n", ">3\r\n$12\r\npunsubscribe\r\n$6\r\nnosuch\r\n:3\r\n"},
	{"SUNSUBSCRIBE", "*3\r\n$12\r\nsunsubscribe\r\n$1\r\na\r\n:0\r\n", ">3\r\n$12\r\nsunsubscribe\r\n$1\r\na\r\n:0\r\n"},
	{"PUNSUBSCRIBE", "*3\r\n$12\r\npunsubscribe\r\n$2\r\na*\r\n:2\r\n", ">3\r\n$12\r\npunsubscribe\r\n$2\r\na*\r\n:2\r\n"},
	{"UNSUBSCRIBE a", "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n", ">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n"},
	{"< PUBLISH a gone", "", ""},
	{"UNSUBSCRIBE", "*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n", ">3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n"},
	{"GET x", "$-1\r\n", "_\r\n"},
	{"SUBSCRIBE a", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"},
	{"RESET", "+RESET\r\n", ""},
	{"< PUBLISH a gone", "", ""},
	{"PING", "+PONG\r\n", ""},
}

func onlySubscribe(refused string) string {
	return "-ERR Can't execute '" + refused + "': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n"
}

func converses(t *testing.T, proto int, sub, other *talker) {
	if proto == 3 {
		sub.say("HELLO 3")
		sub.skip("*0\r\n")
	}
	for _, line := range subscriber {
		want := line.reply
		if proto == 3 && line.reply3 != "" {
			want = line.reply3
		}
		t.Log(line.command)
		if command, others := strings.CutPrefix(line.command, "< "); others {
			other.say(command)
			other.skip("\r\n")
			sub.hear(want)
			continue
		}
		sub.ask(line.command, want)
	}
}

func TestPubSub(t *testing.T) {
	for proto := 2; proto <= 3; proto++ {
		t.Run(fmt.Sprintf("proto=%d", proto), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := inMemory(t)
				sub, other := dial(t, s), dial(t, s)
				converses(t, proto, sub, other)
				other.ask("PUBLISH a x", ":0\r\n")
				two, three := dial(t, s), dial(t, s).optIn()
				two.ask("SUBSCRIBE a", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n")
				three.ask("PSUBSCRIBE a", ">3\r\n$10\r\npsubscribe\r\n$1\r\na\r\n:1\r\n")
				other.ask("PUBLISH a x", ":2\r\n")
			})
		})
	}
}

// The table above is true of Redis itself.
func TestPubSubMatchesRedis(t *testing.T) {
	sock := realRedis(t)
	for proto := 2; proto <= 3; proto++ {
		t.Run(fmt.Sprintf("proto=%d", proto), func(t *testing.T) {
			dial := func() *talker {
				conn, err := net.Dial("unix", sock)
				return newTalker(t, conn, err)
			}
			converses(t, proto, dial(), dial())
		})
	}
}

func TestALateSubscription(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		s.Delay("subscribe", time.Second)
		sub, other := dial(t, s).optIn(), dial(t, s)
		sub.say("SUBSCRIBE a")
		sub.say("PING")
		synctest.Wait()
		other.ask("PUBLISH a early", ":0\r\n")
		sub.silent(999 * time.Millisecond)
		sub.hear(">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n+PONG\r\n")
		other.ask("PUBLISH a x", ":1\r\n")
		sub.hear(">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n")
	})
}

// What is published after a subscription was confirmed comes behind the confirmation, in order, between replies.
func TestPubSubOrder(t *testing.T) {
	s := NewServer()
	defer s.Close()
	sub, pub := dialTCP(t, s.Addr()), dialTCP(t, s.Addr())
	sub.say("HELLO 3")
	sub.skip("*0\r\n")
	published := make(chan struct{})
	defer func() { pub.Close(); <-published }()
	go func() {
		defer close(published)
		go io.Copy(io.Discard, pub.r)
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(pub, "PUBLISH c %09d\r\n", i); err != nil {
				return
			}
		}
	}()
	sub.ask("SUBSCRIBE c", ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")
	sub.say("ECHO x")
	for last, heard := -1, 0; heard < 5000; {
		if b, _ := sub.r.Peek(1); b[0] == '$' {
			sub.ask("ECHO x", "$1\r\nx\r\n")
			continue
		}
		var n int
		sub.hear(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$9\r\n")
		if _, err := fmt.Fscanf(sub.r, "%d\r\n", &n); err != nil || last >= 0 && n != last+1 {
			t.Fatalf("message %d behind %d (%v)", n, last, err)
		}
		last, heard = n, heard+1
	}
}

func TestProtocolErrorEndsTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := dial(t, inMemory(t))
		c.say("PING")
		c.Write([]byte("*1\r\n+oops\r\n*1\r\n$4\r\nPING\r\n"))
		c.hear("+PONG\r\n-ERR Protocol error: expected '$', got '+'\r\n")
		c.ended(io.EOF)
	})
}

func TestClientKillAndList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inMemory(t)
		a, b := dial(t, s), dial(t, s)
		a.ask("PING", "+PONG\r\n")
		b.ask("CLIENT SETNAME b", "+OK\r\n")
		a.say("CLIENT LIST")
		a.skip("name=b db=0 sub=0 psub=0 ssub=0 user=default resp=2\n\r\n")
		a.ask("CLIENT KILL ID 2", ":1\r\n")
		b.ended(io.EOF)
		a.ask("CLIENT KILL ID 1", ":1\r\n")
		a.ended(io.EOF)
	})
}
