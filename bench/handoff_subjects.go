package main

// The clients that are led through handoffs. A subject is a library in one configuration; here, and only here, its API is known.
// All of them dial through the stage, which counts dials and knows where the configured address leads. What a library offers
// against lost connections is left on, as its defaults have it; pools are large enough for all callers.

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"time"

	"example.com/baton"
	redigo "github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/redis/rueidis"
)

// A dialer opens a connection, as net.Dialer does.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// A subject is what a scenario is played to.
type subject struct {
	name string
	told bool // it asks for notifications: without them no successor is known, and what befalls one makes no difference
	lead func(dial dialer, callers int) (mover, error)
}

// A mover is an opened subject. All methods but Close may be called at the same time.
type mover interface {
	Append(ctx context.Context, list string, number int) error
	Pop(ctx context.Context, list string, patience time.Duration) (string, error) // BLPOP; an error if nothing came
	// Listen subscribes and hears on one goroutine until ctx ends, subscribing again after what the library gives back as an error.
	Listen(ctx context.Context, channel string, hear func(payload string)) error
	Close()
}

// announcer is a mover that says how long it waited on purpose before it acted on the last announcement.
type announcer interface {
	Jitter() (time.Duration, bool)
}

// subjects are in the order of the table, baton last: its promise stands beside it.
var subjects = []subject{
	{"go-redis", true, leadGoRedis(maintnotifications.ModeEnabled)},
	{"go-redis, notifications off", false, leadGoRedis(maintnotifications.ModeDisabled)},
	{"rueidis", false, leadRueidis},
	{"redigo", false, leadRedigo},
	{batonName, true, leadBaton},
}

// usual are the timeouts of those that have none by themselves, the default of the others.
const usual = 5 * time.Second

var errNothingCame = errors.New("nothing came")

type batonMover struct{ c *baton.Client }

func leadBaton(dial dialer, _ int) (mover, error) {
	ctx, cancel := context.WithTimeout(context.Background(), usual)
	defer cancel()
	c, err := baton.Dial(ctx, baton.Options{
		Addr:        frontDoor,
		Dialer:      dial,
		Maintenance: baton.Maintenance{Mode: baton.Enabled}, // no notifications: nothing to measure
	})
	if err != nil {
		return nil, err
	}
	return batonMover{c}, nil
}

func (m batonMover) Append(ctx context.Context, list string, number int) error {
	return m.c.Do(ctx, "RPUSH", list, number).Err()
}

func (m batonMover) Pop(ctx context.Context, list string, patience time.Duration) (string, error) {
	return popped(m.c.Do(ctx, "BLPOP", list, patience.Seconds()).Texts())
}

func (m batonMover) Listen(ctx context.Context, channel string, hear func(string)) error {
	sub, err := m.c.Subscribe(ctx, channel)
	if err != nil {
		return err
	}
	defer sub.Close()
	for {
		message, err := sub.Receive(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, baton.ErrGap): // what is missing is counted by its numbers
		case err != nil:
			return err
		default:
			hear(string(message.Payload))
		}
	}
}

func (m batonMover) Jitter() (time.Duration, bool) {
	h := m.c.Stats().LastHandoff
	return h.Began.Sub(h.Received), !h.Began.IsZero()
}

func (m batonMover) Close() { m.c.Close() }

// popped is the element of what BLPOP returns, the list's name and the element.
func popped(reply []string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	if len(reply) != 2 {
		return "", errNothingCame
	}
	return reply[1], nil
}

type goRedisMover struct{ c *goredis.Client }

func leadGoRedis(mode maintnotifications.Mode) func(dialer, int) (mover, error) {
	return func(dial dialer, callers int) (mover, error) {
		logging.Disable() // it reports each step of each connection on standard error
		c := goredis.NewClient(&goredis.Options{
			Addr:                     frontDoor,
			Dialer:                   dial,
			Protocol:                 3,
			PoolSize:                 callers,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: mode},
		})
		if err := c.Ping(context.Background()).Err(); err != nil {
			c.Close()
			return nil, err
		}
		return goRedisMover{c}, nil
	}
}

func (m goRedisMover) Append(ctx context.Context, list string, number int) error {
	return m.c.RPush(ctx, list, number).Err()
}

func (m goRedisMover) Pop(ctx context.Context, list string, patience time.Duration) (string, error) {
	return popped(m.c.BLPop(ctx, patience, list).Result())
}

func (m goRedisMover) Listen(ctx context.Context, channel string, hear func(string)) error {
	sub := m.c.Subscribe(ctx, channel)
	defer sub.Close()
	messages := sub.Channel(goredis.WithChannelSize(4096)) // it reconnects and subscribes again by itself
	for {
		select {
		case message := <-messages:
			hear(message.Payload)
		case <-ctx.Done():
			return nil
		}
	}
}

func (m goRedisMover) Close() { m.c.Close() }

type rueidisMover struct{ c rueidis.Client }

func leadRueidis(dial dialer, _ int) (mover, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{frontDoor},
		ForceSingleClient: true,
		DisableCache:      true,
		DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, "tcp", addr)
		},
	})
	if err != nil {
		return nil, err
	}
	return rueidisMover{c}, nil
}

func (m rueidisMover) Append(ctx context.Context, list string, number int) error {
	return m.c.Do(ctx, m.c.B().Rpush().Key(list).Element(strconv.Itoa(number)).Build()).Error()
}

func (m rueidisMover) Pop(ctx context.Context, list string, patience time.Duration) (string, error) {
	return popped(m.c.Do(ctx, m.c.B().Blpop().Key(list).Timeout(patience.Seconds()).Build()).AsStrSlice())
}

func (m rueidisMover) Listen(ctx context.Context, channel string, hear func(string)) error {
	for ctx.Err() == nil {
		m.c.Receive(ctx, m.c.B().Subscribe().Channel(channel).Build(), func(message rueidis.PubSubMessage) { hear(message.Message) })
	}
	return nil
}

func (m rueidisMover) Close() { m.c.Close() }

type redigoMover struct {
	pool *redigo.Pool
	dial dialer
}

func leadRedigo(dial dialer, callers int) (mover, error) {
	m := redigoMover{dial: dial}
	m.pool = &redigo.Pool{MaxIdle: callers, MaxActive: callers, Wait: true, DialContext: m.connect}
	c := m.pool.Get()
	defer c.Close()
	if err := c.Err(); err != nil {
		return nil, err
	}
	return m, nil
}

func (m redigoMover) connect(ctx context.Context) (redigo.Conn, error) {
	return redigo.DialContext(ctx, "tcp", frontDoor, redigo.DialContextFunc(m.dial), redigo.DialReadTimeout(usual), redigo.DialWriteTimeout(usual))
}

func (m redigoMover) Append(_ context.Context, list string, number int) error {
	c := m.pool.Get()
	defer c.Close()
	_, err := c.Do("RPUSH", list, number)
	return err
}

func (m redigoMover) Pop(_ context.Context, list string, patience time.Duration) (string, error) {
	c := m.pool.Get()
	defer c.Close()
	return popped(redigo.Strings(redigo.DoWithTimeout(c, patience+usual, "BLPOP", list, patience.Seconds())))
}

func (m redigoMover) Listen(ctx context.Context, channel string, hear func(string)) error {
	for ctx.Err() == nil {
		if m.listenOnce(ctx, channel, hear) != nil {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// listenOnce returns when the connection is lost, or ctx ends.
func (m redigoMover) listenOnce(ctx context.Context, channel string, hear func(string)) error {
	c, err := m.connect(ctx)
	if err != nil {
		return err
	}
	sub := redigo.PubSubConn{Conn: c}
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { sub.Close() })()
	if err := sub.Subscribe(channel); err != nil {
		return err
	}
	for {
		switch v := sub.ReceiveWithTimeout(0).(type) {
		case redigo.Message:
			hear(string(v.Data))
		case error:
			return v
		}
	}
}

func (m redigoMover) Close() { m.pool.Close() }
