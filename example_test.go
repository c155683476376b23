package baton_test

import (
	"context"
	"fmt"

	"example.com/baton"
	"example.com/baton/batontest"
)

func Example() {
	server := batontest.NewServer() // a Redis-like server in this process
	defer server.Close()
	fmt.Println(greet(context.Background(), server.Addr()))
	// Output: hello <nil>
}

// greet is the README's example.
func greet(ctx context.Context, addr string) (string, error) {
	client, err := baton.Dial(ctx, baton.Options{Addr: addr})
	if err != nil {
		return "", err // says which step failed: connect, TLS, HELLO, …
	}
	defer client.Close()

	if err := client.Do(ctx, "SET", "greeting", "hello").Err(); err != nil {
		if !baton.MaybeExecuted(err) {
			fmt.Println("never sent, or refused by the server: it is safe to try again")
		}
		return "", err
	}
	return client.Do(ctx, "GET", "greeting").Text()
}
