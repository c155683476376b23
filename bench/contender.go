package main

// What is compared: a contender is a library in one configuration, a client is one opened instance of it, shared by all callers
// of a cell. Each library has a file of its own, client_*.go, that knows its API; nothing else here does.

import "context"

// A contender is a client library in one configuration.
type contender struct {
	name string
	lib  string
	open func(addr string, callers int) (client, error) // callers: how many will use it at once
}

// A client does what the cells measure. Values are taken as the
// library's users take them, and no reply is left unread: the number of bytes is what all values came to. Callers that call at the
// same time each have it by forCaller.
type client interface {
	Get(ctx context.Context, key string) (bytes int, err error)
	Set(ctx context.Context, key, value string) error
	MGet(ctx context.Context, keys keyList) (bytes int, err error)
	Pipeline(ctx context.Context, keys keyList) (bytes int, err error) // a GET of each, in one go
	Close()
}

// A keeper is a client that keeps memory for each caller: its methods are for one caller at a time.
type keeper interface{ forCaller() client }

// forCaller is the client as one more caller has it.
func forCaller(c client) client {
	if k, ok := c.(keeper); ok {
		return k.forCaller()
	}
	return c
}

// A keyList is the same keys as strings and as values of type any, so that no library has to convert them while it is measured.
type keyList struct {
	names []string
	boxed []any
}

func newKeyList(names []string) keyList {
	boxed := make([]any, len(names))
	for i, name := range names {
		boxed[i] = name
	}
	return keyList{names, boxed}
}

// contenders are all configurations, baton's first.
func contenders() []contender {
	var all []contender
	for _, of := range [][]contender{batons, rueidises, goRedises, redigos} {
		all = append(all, of...)
	}
	return all
}
