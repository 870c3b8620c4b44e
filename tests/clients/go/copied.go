package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	// How long a transaction waits for one more message.
	lull       = 200 * time.Millisecond
	txnTimeout = 10 * time.Second
)

// How a run copies; tests/clients/copied.py says what each field means.
type copier struct {
	Most, DelayMs, Queue int
	client               pulsar.Client
	input                pulsar.Consumer
	output               pulsar.Producer
}

// Copies a topic to another in transactions: clients URL INPUT OUTPUT, with the plan in COPY. It
// goes on after any error, until it is killed, as it may be at any moment.
func copied(text string) {
	var c copier
	must(json.Unmarshal([]byte(text), &c))
	settings := options(patience)
	settings.EnableTransaction = true
	var err error
	c.client, err = pulsar.NewClient(settings)
	must(err)
	c.output = tried(func() (pulsar.Producer, error) {
		return c.client.CreateProducer(pulsar.ProducerOptions{
			Topic: os.Args[3], SendTimeout: 20 * time.Second,
			BatchingMaxPublishDelay: time.Duration(c.DelayMs) * time.Millisecond,
		})
	})
	c.input = tried(func() (pulsar.Consumer, error) {
		return c.client.Subscribe(pulsar.ConsumerOptions{
			Topic: os.Args[2], SubscriptionName: "copier", Type: pulsar.Shared,
			ReceiverQueueSize: c.Queue, NackRedeliveryDelay: 100 * time.Millisecond,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
	})
	for {
		messages := c.received()
		if len(messages) == 0 {
			continue
		}
		refused, err := c.copy(messages)
		if err != nil {
			fmt.Fprintln(os.Stderr, time.Now().Format(time.StampMilli), len(messages), err)
		}
		for _, message := range refused { // an abort gives the others back
			c.input.Nack(message)
		}
	}
}

// Does something again until it succeeds: the server may be away.
func tried[T any](act func() (T, error)) T {
	for {
		result, err := act()
		if err == nil {
			return result
		}
		fmt.Fprintln(os.Stderr, time.Now().Format(time.StampMilli), err)
		time.Sleep(100 * time.Millisecond)
	}
}

// The next messages: none if none comes for a while. What was given back may come twice.
func (c *copier) received() []pulsar.Message {
	var messages []pulsar.Message
	values := map[string]bool{}
	for len(messages) < c.Most {
		message := within(c.input, lull)
		if message == nil {
			break
		}
		if !values[text(message)] {
			values[text(message)] = true
			messages = append(messages, message)
		}
	}
	return messages
}

// Returns the messages that were not acknowledged.
func (c *copier) copy(messages []pulsar.Message) ([]pulsar.Message, error) {
	txn := tried(func() (pulsar.Transaction, error) {
		return c.client.NewTransaction(txnTimeout)
	})
	var waiting sync.WaitGroup
	failures := make([]error, len(messages), 2*len(messages))
	var refused []pulsar.Message
	for n, message := range messages {
		waiting.Add(1)
		copy := pulsar.ProducerMessage{Payload: message.Payload(), Transaction: txn}
		c.output.SendAsync(context.Background(), &copy,
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				failures[n] = err
				waiting.Done()
			})
	}
	waiting.Wait()
	for _, message := range messages {
		if err := c.input.AckWithTxn(message, txn); err != nil {
			failures = append(failures, err)
			refused = append(refused, message)
		}
	}
	if err := errors.Join(failures...); err != nil {
		_ = txn.Abort(context.Background()) // Go's client refuses that after some failures
		return refused, err
	}
	return nil, txn.Commit(context.Background())
}
