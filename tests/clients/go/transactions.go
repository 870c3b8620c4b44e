package main

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func init() {
	for name, scenario := range map[string]func(*bed){
		"txn_commit": commit, "txn_abort": abort, "txn_batches": txnBatches,
		"txn_conflict": conflict, "txn_timeout": timeout, "txn_order": order3,
		"txn_holds_nobody_up": holdsNobodyUp, "txn_killed": txnKilled,
	} {
		scenarios[name] = scenario
	}
}

func (b *bed) begin(timeout time.Duration) pulsar.Transaction {
	txn, err := b.client.NewTransaction(timeout)
	must(err)
	return txn
}

// Takes two messages, answers them on two topics.
func (b *bed) work(input pulsar.Consumer) pulsar.Transaction {
	txn := b.begin(time.Minute)
	for _, message := range some(input, 2) {
		for _, topic := range []string{b.topic("a"), b.topic("b")} {
			producer := b.plain(topic)
			sentMessage(producer,
				pulsar.ProducerMessage{Payload: message.Payload(), Transaction: txn})
			producer.Close()
		}
		must(input.AckWithTxn(message, txn))
	}
	return txn
}

func commit(b *bed) {
	b.send(b.topic(), 3)
	one, two, input := b.subscribe(b.topic("a")), b.subscribe(b.topic("b")), b.shared()
	defer one.Close()
	defer two.Close()
	txn := b.work(input)
	nothing(one)
	nothing(two)
	must(txn.Commit(context.Background()))
	same(texts(some(one, 2)), values(0, 2))
	same(texts(some(two, 2)), values(0, 2))
	input.Close()
	input = b.shared()
	defer input.Close()
	same(text(next(input)), "m2")
	nothing(input)
}

func abort(b *bed) {
	b.send(b.topic(), 3)
	one, input := b.subscribe(b.topic("a")), b.shared()
	defer one.Close()
	must(b.work(input).Abort(context.Background()))
	nothing(one)
	input.Close()
	input = b.shared()
	defer input.Close()
	sameSet(texts(some(input, 3)), values(0, 3))
}

func txnBatches(b *bed) {
	producer := b.producer(pulsar.ProducerOptions{BatchingMaxMessages: 10})
	defer producer.Close()
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	txn := b.begin(time.Minute)
	sendAll(producer, 25, txn)
	nothing(consumer)
	must(txn.Commit(context.Background()))
	same(texts(some(consumer, 25)), values(0, 25))
}

func conflict(b *bed) {
	b.send(b.topic(), 2)
	input := b.shared()
	message := next(input)
	first, second := b.begin(time.Minute), b.begin(time.Minute)
	must(input.AckWithTxn(message, first))
	fails(input.AckWithTxn(message, second), "TransactionConflict", "conflict")
	must(first.Commit(context.Background()))
	input.Close()
	input = b.shared()
	defer input.Close()
	same(text(next(input)), "m1")
	nothing(input)
}

func timeout(b *bed) {
	producer := b.plain(b.topic())
	defer producer.Close()
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	txn := b.begin(3 * time.Second)
	sentMessage(producer, pulsar.ProducerMessage{Payload: []byte("never"), Transaction: txn})
	time.Sleep(4500 * time.Millisecond)
	check(txn.Commit(context.Background()) != nil, "it was committed")
	sent(producer, "plain")
	same(text(next(consumer)), "plain")
}

func order3(b *bed) {
	producer := b.plain(b.topic())
	defer producer.Close()
	for n := range 3 {
		txn := b.begin(time.Minute)
		for _, number := range []int{2 * n, 2*n + 1} {
			sentMessage(producer, pulsar.ProducerMessage{
				Payload: []byte(fmt.Sprint("m", number)), Transaction: txn,
			})
		}
		must(txn.Commit(context.Background()))
	}
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	messages := some(consumer, 6)
	same(texts(messages), values(0, 6))
	for n := 1; n < 6; n++ {
		check(compare(messages[n-1].ID(), messages[n].ID()) < 0, "ids are not in order")
	}
}

// Apache Pulsar fails here: a reader stops at the first message of an open transaction.
func holdsNobodyUp(b *bed) {
	txn := b.begin(time.Minute)
	producer := b.plain(b.topic())
	defer producer.Close()
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	sentMessage(producer, pulsar.ProducerMessage{Payload: []byte("open"), Transaction: txn})
	sent(producer, "plain")
	message := within(consumer, patience)
	check(message != nil, "the open transaction holds the consumer up")
	same(text(message), "plain")
	must(txn.Commit(context.Background()))
	same(text(next(consumer)), "open")
}

func txnKilled(b *bed) {
	b.send(b.topic(), 3)
	one, input := b.subscribe(b.topic("a")), b.shared()
	defer one.Close()
	txn := b.work(input)
	killed()
	producer := b.plain(b.topic("a"))
	sentMessage(producer, pulsar.ProducerMessage{Payload: []byte("after"), Transaction: txn})
	producer.Close()
	must(txn.Commit(context.Background()))
	sameSet(texts(some(one, 3)), []string{"m0", "m1", "after"})
	input.Close()
	input = b.shared()
	defer input.Close()
	same(text(next(input)), "m2")
	nothing(input)
}
