package pagewire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

func pair(t *testing.T) (a, b *Host) {
	t.Helper()
	var hosts [2]*Host
	for at, address := range []string{"addr=10.0.0.1/24,addr=fd00::1/64", "addr=10.0.0.2/24,addr=fd00::2/64"} {
		host, err := Open("pair=" + t.Name() + "," + address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { host.Close() })
		hosts[at] = host
	}
	return hosts[0], hosts[1]
}

func connected(t *testing.T, address string) (client, server net.Conn) {
	t.Helper()
	a, b := pair(t)
	listener, err := b.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if client, err = a.Dial("tcp", address); err != nil {
		t.Fatal(err)
	}
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestStreams(t *testing.T) {
	for name, address := range map[string]string{"v4": "10.0.0.2:80", "v6": "[fd00::2]:80"} {
		t.Run(name, func(t *testing.T) {
			client, server := connected(t, address)
			if client.RemoteAddr().String() != address || server.RemoteAddr().String() != client.LocalAddr().String() {
				t.Fatal(client.RemoteAddr(), server.RemoteAddr(), client.LocalAddr())
			}
			data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
			go func() {
				client.Write(data)
				client.(*Conn).CloseWrite()
			}()
			got, err := io.ReadAll(server)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatal(len(got), err)
			}
		})
	}
}

func TestDeadlinesAndCloseEndWaits(t *testing.T) {
	client, server := connected(t, "10.0.0.2:80")
	read := func(after time.Duration, change func(), want error) {
		t.Helper()
		timer := time.AfterFunc(after, change)
		defer timer.Stop()
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Fatalf("%v, not %v", err, want)
		}
	}
	server.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	read(time.Hour, func() {}, os.ErrDeadlineExceeded)
	server.SetReadDeadline(time.Time{})
	read(30*time.Millisecond, func() { server.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded)
	server.SetDeadline(time.Now().Add(time.Hour))
	data := make([]byte, 64<<20)
	client.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	if sent, err := client.Write(data); !os.IsTimeout(err) || sent == 0 {
		t.Fatal(sent, err)
	}
	io.CopyN(io.Discard, server, 1)
	one, other := connected(t, "10.0.0.2:81")
	server = one
	read(30*time.Millisecond, func() { one.Close() }, net.ErrClosed)
	server = other
	read(time.Hour, func() {}, io.EOF)
}

func TestErrors(t *testing.T) {
	if _, err := Open("pair=x,addr=10.0.0.1/24,colour=red"); !errors.Is(err, syscall.EINVAL) {
		t.Fatal(err)
	}
	a, _ := pair(t)
	if _, err := a.Dial("tcp", "10.0.0.2:9"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := a.DialContext(ctx, "tcp", "10.0.0.77:80"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := a.Dial("udp", "10.0.0.2:9"); err == nil {
		t.Fatal("a network that is none")
	}
}

func TestManyConnections(t *testing.T) {
	a, b := pair(t)
	listener, err := b.Listen("tcp", "10.0.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for range 4 {
		go func() {
			for {
				server, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					io.Copy(server, server)
					server.Close()
				}()
			}
		}()
	}
	var all sync.WaitGroup
	for number := range 100 {
		all.Add(1)
		go func() {
			defer all.Done()
			client, err := a.Dial("tcp", "10.0.0.2:80")
			if err != nil {
				t.Error(err)
				return
			}
			defer client.Close()
			data := bytes.Repeat([]byte{byte(number)}, 10_000)
			client.Write(data)
			got := make([]byte, len(data))
			if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, data) {
				t.Error(number, err)
			}
		}()
	}
	all.Wait()
}
