// Command http runs net/http's server and its client over a pair of Pagewire hosts, in one process.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"time"

	pagewire "pagewire.example/pagewire"
)

func run(requests int) error {
	near, err := pagewire.Open("pair=http,addr=10.0.0.1/24")
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := pagewire.Open("pair=http,addr=10.0.0.2/24")
	if err != nil {
		return err
	}
	defer far.Close()
	listener, err := far.Listen("tcp", "10.0.0.2:80")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s from %s: %s", r.URL.Path, strings.Split(r.RemoteAddr, ":")[0], body)
	})}
	go server.Serve(listener)
	defer server.Close()

	transport := &http.Transport{DialContext: near.DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	done := make(chan error)
	for number := range requests {
		go func() { done <- ask(client, number) }()
	}
	for range requests {
		if why := <-done; why != nil {
			err = why
		}
	}
	return err
}

func ask(client *http.Client, number int) error {
	body := strings.Repeat(fmt.Sprint(number), 100_000)
	answer, err := client.Post(fmt.Sprintf("http://10.0.0.2/%d", number), "text/plain", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if want := fmt.Sprintf("/%d from 10.0.0.1: %s", number, body); err == nil && string(got) != want {
		err = fmt.Errorf("an answer of %d bytes, not %d", len(got), len(want))
	}
	return err
}

func main() {
	if err := run(50); err != nil {
		log.Fatal(err)
	}
	fmt.Println("50 requests")
}
