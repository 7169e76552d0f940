package arrival

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

func TestTheTimeIsThatOfTheArrival(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var clock Clock
	if !clock.Last().IsZero() {
		t.Error("a time before the first read")
	}
	conn, err := clock.Dial(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	// The kernel begins to note times a moment after the first socket has asked for it.
	for range 2 {
		if _, err := peer.Write([]byte("one")); err != nil {
			t.Fatal(err)
		}
		written := time.Now()
		// The process is late to read.
		time.Sleep(300 * time.Millisecond)
		buffer := make([]byte, 16)
		if length, err := conn.Read(buffer); err != nil || string(buffer[:length]) != "one" {
			t.Fatalf("%q, %v", buffer[:length], err)
		}
		if late := clock.Last().Sub(written).Abs(); late < 200*time.Millisecond {
			break
		} else if late > 400*time.Millisecond {
			t.Errorf("%v after the write", late)
		}
	}
	if late := time.Since(clock.Last()); late < 200*time.Millisecond {
		t.Errorf("the time of the read, %v ago, and not of the arrival", late)
	}
	peer.Close()
	if _, err := conn.Read(make([]byte, 16)); !errors.Is(err, io.EOF) {
		t.Errorf("%v at the end", err)
	}
}
