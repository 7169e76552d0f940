package main

import (
	"io"
	"testing"
)

func TestFlags(t *testing.T) {
	o, err := parse([]string{"--leader-election-id=x", "--record=/dev/null"}, io.Discard)
	if err != nil || !o.leaderElect || o.leaderID != "x" || o.recordFile != "/dev/null" {
		t.Errorf("%+v, %v", o, err)
	}
	if o.webhooks.server() != nil {
		t.Error("webhooks are on by default")
	}
	o, err = parse([]string{"--webhook-port=9443", "--webhook-cert-dir=/certs", "--webhook-references"}, io.Discard)
	if err != nil || o.webhooks.server() == nil || o.webhooks.certDir != "/certs" || !o.webhooks.references {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := parse([]string{"--no-such"}, io.Discard); err == nil {
		t.Error("an unknown flag passed")
	}
}
