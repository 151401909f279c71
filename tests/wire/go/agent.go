// Command agent drives the RocketMQ Go client for tests: a JSON line in is a command, a JSON line out its answer.
//
//	-> {"id": 7, "op": "send", "topic": "orders", ...}
//	<- {"id": 7, "result": [...]}       or   {"id": 7, "error": "...", "trace": ""}
//
// Commands run side by side. The process ends with its standard input, and so with the test that started it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const sendWithin = 10 * time.Second

type command struct {
	ID       int               `json:"id"`
	Op       string            `json:"op"`
	Name     string            `json:"name"`
	Namesrv  string            `json:"namesrv"`
	Topic    string            `json:"topic"`
	Group    string            `json:"group"`
	How      string            `json:"how"`
	Bodies   []string          `json:"bodies"`
	Tag      string            `json:"tag"`
	Key      string            `json:"key"`
	Headers  map[string]string `json:"headers"`
	Level    int               `json:"level"`
	Selector string            `json:"selector"`
	Orderly  bool              `json:"orderly"`
	Failures int32             `json:"failures"`
	Access   string            `json:"access_key"`
	Secret   string            `json:"secret_key"`
}

// credentials sign each request, unless the access key is empty.
func (asked command) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: asked.Access, SecretKey: asked.Secret}
}

// seen is one message as a listener got it.
type seen struct {
	Body       string            `json:"body"`
	Queue      int               `json:"queue"`
	Offset     int64             `json:"offset"`
	Tag        string            `json:"tag"`
	Key        string            `json:"key"`
	Properties map[string]string `json:"properties"`
	Attempt    int32             `json:"attempt"`
	AtMs       int64             `json:"at_ms"`
}

type push struct {
	consumer rocketmq.PushConsumer
	mutex    sync.Mutex
	seen     []seen
}

var (
	pushes = map[string]*push{}
	mutex  sync.Mutex
)

func main() {
	rlog.SetLogLevel("error")
	rlog.SetOutputPath("/dev/stderr")
	answers := json.NewEncoder(os.Stdout)
	var writing sync.Mutex
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var asked command
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		go func() {
			result, err := run(asked)
			answer := map[string]any{"id": asked.ID, "result": result}
			if err != nil {
				answer = map[string]any{"id": asked.ID, "error": err.Error(), "trace": ""}
			}
			writing.Lock()
			defer writing.Unlock()
			_ = answers.Encode(answer)
		}()
	}
}

func run(asked command) (any, error) {
	switch asked.Op {
	case "send":
		return send(asked)
	case "open":
		return open(asked)
	case "seen":
		return find(asked.Name).drain(), nil
	case "close":
		opened := find(asked.Name)
		err := opened.consumer.Shutdown()
		return opened.drain(), err
	}
	return nil, fmt.Errorf("no such command: %s", asked.Op)
}

// send answers [[queue, offset, message id], ...]; one-way sends have none.
func send(asked command) (any, error) {
	sender, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{asked.Namesrv})),
		producer.WithGroupName("go-" + asked.Topic),
		producer.WithSendMsgTimeout(sendWithin),
		producer.WithRetry(2),
		producer.WithCredentials(asked.credentials()),
	}, producerOptions...)...)
	if err != nil {
		return nil, err
	}
	if err = sender.Start(); err != nil {
		return nil, err
	}
	defer func() { _ = sender.Shutdown() }()
	var messages []*primitive.Message
	for _, body := range asked.Bodies {
		messages = append(messages, message(asked, body))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*sendWithin)
	defer cancel()
	stored := [][]any{}
	note := func(result *primitive.SendResult) {
		stored = append(stored, []any{result.MessageQueue.QueueId, result.QueueOffset, result.MsgID})
	}
	switch asked.How {
	case "batch":
		result, err := sender.SendSync(ctx, messages...)
		if err != nil {
			return nil, err
		}
		note(result)
	case "async":
		var waiting sync.WaitGroup
		var noting sync.Mutex
		var failed error
		for _, each := range messages {
			waiting.Add(1)
			err := sender.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				defer waiting.Done()
				noting.Lock()
				defer noting.Unlock()
				if err != nil {
					failed = err
				} else {
					note(result)
				}
			}, each)
			if err != nil {
				return nil, err
			}
		}
		waiting.Wait()
		if failed != nil {
			return nil, failed
		}
	case "oneway":
		for _, each := range messages {
			if err := sender.SendOneWay(ctx, each); err != nil {
				return nil, err
			}
		}
		time.Sleep(100 * time.Millisecond) // The producer closes its connection with what was not written.
	default:
		for _, each := range messages {
			result, err := sender.SendSync(ctx, each)
			if err != nil {
				return nil, err
			}
			note(result)
		}
	}
	return stored, nil
}

func message(asked command, body string) *primitive.Message {
	made := primitive.NewMessage(asked.Topic, []byte(body))
	if asked.Tag != "" {
		made.WithTag(asked.Tag)
	}
	if asked.Key != "" {
		made.WithKeys([]string{asked.Key})
	}
	if asked.Level != 0 {
		made.WithDelayTimeLevel(asked.Level)
	}
	for name, value := range asked.Headers {
		made.WithProperty(name, value)
	}
	return made
}

// open starts a push consumer that fails each message so many times before it takes it.
func open(asked command) (any, error) {
	opened := &push{}
	started, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{asked.Namesrv})),
		consumer.WithGroupName(asked.Group),
		consumer.WithInstance(asked.Name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(asked.Orderly),
		consumer.WithCredentials(asked.credentials()),
	}, consumerOptions...)...)
	if err != nil {
		return nil, err
	}
	opened.consumer = started
	selector := consumer.MessageSelector{}
	if asked.Selector != "" {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: asked.Selector}
	}
	err = started.Subscribe(asked.Topic, selector, func(
		ctx context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		failing := false
		for _, each := range messages {
			opened.take(each)
			failing = failing || each.ReconsumeTimes < asked.Failures
		}
		if failing {
			if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrently.DelayLevelWhenNextConsume = 1
			}
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	mutex.Lock()
	pushes[asked.Name] = opened
	mutex.Unlock()
	return true, started.Start()
}

func find(name string) *push {
	mutex.Lock()
	defer mutex.Unlock()
	return pushes[name]
}

func (opened *push) take(each *primitive.MessageExt) {
	opened.mutex.Lock()
	defer opened.mutex.Unlock()
	opened.seen = append(opened.seen, seen{
		string(each.Body), each.Queue.QueueId, each.QueueOffset, each.GetTags(), each.GetKeys(), each.GetProperties(),
		each.ReconsumeTimes, time.Now().UnixMilli(),
	})
}

func (opened *push) drain() []seen {
	opened.mutex.Lock()
	defer opened.mutex.Unlock()
	drained := opened.seen
	opened.seen = nil
	if drained == nil {
		return []seen{}
	}
	return drained
}
