//go:build !tls

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var (
	producerOptions []producer.Option
	consumerOptions []consumer.Option
)
