package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func init() {
	for name, scenario := range map[string]func(*bed){
		"send": send, "send_async": sendAsync, "batches": batches, "compression": compression,
		"chunks": chunks, "metadata": metadata, "delayed": delayed, "deduplication": deduplication,
		"exclusive_producer": exclusiveProducer, "waiting_producer": waitingProducer,
		"partitions": partitions, "null_value": nullValue,
	} {
		scenarios[name] = scenario
	}
}

func arrived(messages []pulsar.Message, ids []pulsar.MessageID) {
	for n, message := range messages {
		same(compare(message.ID(), ids[n]), 0)
		check(n == 0 || compare(ids[n-1], ids[n]) < 0, "ids are not in order")
	}
}

func send(b *bed) {
	ids := b.send(b.topic(), 5)
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	messages := some(consumer, 5)
	same(texts(messages), values(0, 5))
	arrived(messages, ids)
}

func sendAsync(b *bed) {
	producer := b.plain(b.topic())
	defer producer.Close()
	ids := sendAll(producer, 200, nil)
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	messages := some(consumer, 200)
	same(texts(messages), values(0, 200))
	arrived(messages, ids)
}

// With transactions a client gets the messages one by one, with other ids than its receipts have.
func batches(b *bed) {
	client, err := pulsar.NewClient(options(patience))
	must(err)
	defer client.Close()
	plain := *b
	plain.client = client
	b = &plain
	ids := b.sendBatch(b.topic(), 20)
	ids = append(ids, b.send(b.topic(), 1)...)
	ids = append(ids, b.sendBatch(b.topic(), 20)...)
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	messages := some(consumer, 41)
	same(texts(messages[21:]), values(0, 20))
	arrived(messages, ids)
}

func compression(b *bed) {
	value := strings.Repeat("compressible ", 1000)
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	for _, kind := range []pulsar.CompressionType{
		pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY,
	} {
		for _, alone := range []bool{true, false} {
			producer := b.producer(
				pulsar.ProducerOptions{CompressionType: kind, DisableBatching: alone})
			sent(producer, value)
			producer.Close()
			same(text(next(consumer)), value)
		}
	}
}

func chunks(b *bed) {
	value := strings.Repeat("0123456789abcdef", 200_000)
	larger := strings.Repeat("0123456789", 600_000) // than a frame: it also comes in chunks
	producer := b.producer(pulsar.ProducerOptions{
		DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 500_000,
	})
	defer producer.Close()
	consumer := b.subscribe(b.topic())
	for _, each := range []string{"before", value, larger, "behind"} {
		sent(producer, each)
	}
	messages := some(consumer, 4)
	same(texts(messages), []string{"before", value, larger, "behind"})
	for _, message := range messages {
		must(consumer.Ack(message))
	}
	nothing(consumer)
	consumer.Close()
	consumer = b.subscribe(b.topic())
	defer consumer.Close()
	nothing(consumer)
}

func metadata(b *bed) {
	producer := b.producer(pulsar.ProducerOptions{Name: "named", DisableBatching: true})
	defer producer.Close()
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	at := time.UnixMilli(1234567890123)
	sentMessage(producer, pulsar.ProducerMessage{
		Payload: []byte("v"), Key: "a key", EventTime: at,
		Properties: map[string]string{"p": "v", "empty": ""},
	})
	message := next(consumer)
	same(message.Key(), "a key")
	same(message.Properties(), map[string]string{"p": "v", "empty": ""})
	same(message.EventTime().UnixMilli(), at.UnixMilli())
	same(message.ProducerName(), "named")
	same(message.Topic(), b.topic())
	check(message.PublishTime().After(at), "it has no time")
}

// A message of no bytes comes as such, in a batch or not, and ends its key in a table view.
func nullValue(b *bed) {
	for _, alone := range []bool{true, false} {
		topic := b.topic(fmt.Sprint(alone))
		producer := b.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: alone})
		for _, pair := range []string{"a=1", "b=2", "a=", "c=3", "b="} {
			key, value, _ := strings.Cut(pair, "=")
			sentMessage(producer, pulsar.ProducerMessage{Key: key, Payload: []byte(value)})
		}
		sentMessage(producer, pulsar.ProducerMessage{Key: "c"})
		sentMessage(producer, pulsar.ProducerMessage{Key: "d", Payload: []byte("4")})
		producer.Close()
		consumer := b.subscribe(topic)
		messages := some(consumer, 7)
		same(texts(messages), []string{"1", "2", "", "3", "", "", "4"})
		same(messages[5].Key(), "c")
		for _, message := range messages {
			must(consumer.Ack(message))
		}
		nothing(consumer)
		consumer.Close()
		view, err := b.client.CreateTableView(pulsar.TableViewOptions{
			Topic: topic, Schema: pulsar.NewStringSchema(nil),
			SchemaValueType: reflect.TypeOf(new(string)),
		})
		must(err)
		same(view.Keys(), []string{"d"})
		view.Close()
	}
}

func delayed(b *bed) {
	producer := b.plain(b.topic())
	defer producer.Close()
	consumer := b.shared()
	defer consumer.Close()
	at := time.Now().Add(2 * time.Second)
	sentMessage(producer, pulsar.ProducerMessage{Payload: []byte("later"), DeliverAt: at})
	sent(producer, "now")
	came := []string{}
	for range 2 {
		message := next(consumer)
		isEarly := time.Now().Before(at.Add(-time.Second))
		check(!isEarly || text(message) == "now", "it came too early")
		came = append(came, text(message))
		must(consumer.Ack(message))
	}
	sameSet(came, []string{"now", "later"})
}

func deduplication(b *bed) {
	for range 2 {
		producer := b.producer(pulsar.ProducerOptions{Name: "p", DisableBatching: true})
		for n := range int64(5) {
			sentMessage(producer,
				pulsar.ProducerMessage{Payload: []byte(fmt.Sprint("m", n)), SequenceID: &n})
		}
		producer.Close()
	}
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	same(texts(some(consumer, 5)), values(0, 5))
	nothing(consumer)
}

func exclusiveProducer(b *bed) {
	options := pulsar.ProducerOptions{
		Topic: b.topic(), ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	}
	first := b.producer(options)
	_, err := b.client.CreateProducer(options)
	fails(err, "ProducerFenced", "ProducerBusy")
	sent(first, "m0")
	first.Close()
	b.send(b.topic(), 1)
}

func waitingProducer(b *bed) {
	first := b.producer(
		pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	made := make(chan pulsar.Producer)
	go func() {
		made <- b.producer(pulsar.ProducerOptions{
			ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive,
		})
	}()
	sent(first, "m0")
	select {
	case <-made:
		panic("it did not wait")
	case <-time.After(silence):
	}
	first.Close()
	second := <-made
	defer second.Close()
	sent(second, "m1")
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	same(texts(some(consumer, 2)), values(0, 2))
}

func partitions(b *bed) {
	names, err := b.client.TopicPartitions(b.topic())
	must(err)
	same(len(names), 3)
	producer := b.producer(pulsar.ProducerOptions{DisableBatching: true,
		MessageRouter: func(m *pulsar.ProducerMessage, t pulsar.TopicMetadata) int {
			return len(m.Payload) % int(t.NumPartitions())
		}})
	defer producer.Close()
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	for n := range 30 {
		sent(producer, strings.Repeat("x", n+1))
	}
	newest := map[string]int{}
	for _, message := range some(consumer, 30) {
		length := len(message.Payload())
		before, seen := newest[message.Topic()]
		check(!seen || before < length, "they are not in order")
		newest[message.Topic()] = length
		must(consumer.Ack(message))
	}
	same(len(newest), 3)
	one := b.consumer(pulsar.ConsumerOptions{Topic: names[1], SubscriptionName: "one"})
	defer one.Close()
	same(next(one).Topic(), names[1])
}
