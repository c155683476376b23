package baton

import (
	"testing"
	"time"
)

func TestHandoffUnderLoadTmp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := memoryServer(t)
		b := sibling(t, a)
		j := &journal{}
		c := dialMemory(t, a, func(o *Options) { o.OnEvent = j.add })
		stop := load(t, c, 64, time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		a.Move(b.Addr(), 5*time.Second)
		time.Sleep(8 * time.Second)
		n, failed := stop()
		t.Log(n, failed, a.Executed("INCR"), b.Executed("INCR"))
		for _, e := range j.events {
			t.Logf("%v %v", e.Kind, e)
		}
		t.Logf("%+v", c.Stats())
	})
}
