//go:build tls

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// The last release, 2.1.2, has no TLS; tls.mod names a later commit. It does not verify the broker's certificate.
var (
	producerOptions = []producer.Option{producer.WithTls(true)}
	consumerOptions = []consumer.Option{consumer.WithTls(true)}
)
