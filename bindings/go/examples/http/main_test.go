package main

import "testing"

func TestRequests(t *testing.T) {
	for range 3 {
		if err := run(50); err != nil {
			t.Fatal(err)
		}
	}
}
