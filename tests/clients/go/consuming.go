package main

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func init() {
	for name, scenario := range map[string]func(*bed){
		"exclusive": exclusive, "failover": failover, "shared": shared, "key_shared": keyShared,
		"acknowledge": acknowledge, "acknowledge_cumulative": acknowledgeCumulative,
		"acknowledge_in_batch": acknowledgeInBatch, "nack": nack, "seek": seek,
		"seek_time": seekTime, "reader": reader, "last_message_id": lastMessageID,
		"id_bytes": idBytes, "many_topics": manyTopics, "regex": regex,
		"dead_letters": deadLetters, "retry_letters": retryLetters, "unsubscribe": unsubscribe,
		"table_view": tableView,
	} {
		scenarios[name] = scenario
	}
}

func exclusive(b *bed) {
	b.send(b.topic(), 10)
	first := b.subscribe(b.topic())
	_, err := b.tryConsumer(pulsar.ConsumerOptions{})
	fails(err, "ConsumerBusy")
	same(texts(some(first, 10)), values(0, 10))
	first.Close()
	second := b.subscribe(b.topic())
	defer second.Close()
	same(texts(some(second, 10)), values(0, 10))
}

// Which of them is the active one is the server's affair.
func failover(b *bed) {
	active := b.consumer(pulsar.ConsumerOptions{Type: pulsar.Failover, Name: "a"})
	waiting := b.consumer(pulsar.ConsumerOptions{Type: pulsar.Failover, Name: "b"})
	b.send(b.topic(), 10)
	var first pulsar.Message
	for turn := 0; first == nil; turn++ {
		check(turn < 60, "no message came")
		if first = within(active, 500*time.Millisecond); first == nil {
			active, waiting = waiting, active
		}
	}
	same(text(first), "m0")
	messages := some(active, 9)
	same(texts(messages), values(1, 10))
	nothing(waiting)
	must(active.AckCumulative(messages[3]))
	time.Sleep(200 * time.Millisecond) // acknowledgements are sent in groups
	active.Close()
	same(texts(some(waiting, 5)), values(5, 10))
	waiting.Close()
}

func shared(b *bed) {
	options := pulsar.ConsumerOptions{Type: pulsar.Shared, ReceiverQueueSize: 5}
	consumers := []pulsar.Consumer{b.consumer(options), b.consumer(options)}
	defer consumers[0].Close()
	defer consumers[1].Close()
	b.send(b.topic(), 100)
	found := []string{}
	counts := [2]int{}
	for len(found) < 100 {
		for n, consumer := range consumers {
			if message := within(consumer, 100*time.Millisecond); message != nil {
				found = append(found, text(message))
				counts[n]++
				must(consumer.Ack(message))
			}
		}
	}
	sameSet(found, values(0, 100))
	check(counts[0] > 0 && counts[1] > 0, "one of them got everything")
}

func keyShared(b *bed) {
	options := pulsar.ConsumerOptions{Type: pulsar.KeyShared}
	consumers := []pulsar.Consumer{b.consumer(options), b.consumer(options)}
	defer consumers[0].Close()
	defer consumers[1].Close()
	producer := b.plain(b.topic())
	defer producer.Close()
	for n := range 100 {
		sentMessage(producer, pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprintf("%03d", n)), Key: fmt.Sprint("key ", n%20),
		})
	}
	owners, newest, used := map[string]int{}, map[string]string{}, map[int]bool{}
	for count := 0; count < 100; {
		for n, consumer := range consumers {
			message := within(consumer, 100*time.Millisecond)
			if message == nil {
				continue
			}
			count++
			owner, seen := owners[message.Key()]
			check(!seen || owner == n, "a key went to both")
			check(newest[message.Key()] < text(message), "a key lost its order")
			owners[message.Key()], newest[message.Key()], used[n] = n, text(message), true
			must(consumer.Ack(message))
		}
	}
	same(len(used), 2)
}

func acknowledge(b *bed) {
	b.send(b.topic(), 10)
	consumer := b.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared, AckWithResponse: true})
	for n, message := range some(consumer, 10) {
		if n%2 == 0 {
			must(consumer.Ack(message))
		}
	}
	consumer.Close()
	consumer = b.shared()
	defer consumer.Close()
	sameSet(texts(some(consumer, 5)), []string{"m1", "m3", "m5", "m7", "m9"})
	nothing(consumer)
}

func acknowledgeCumulative(b *bed) {
	b.send(b.topic(), 10)
	consumer := b.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
	must(consumer.AckCumulative(some(consumer, 6)[5]))
	consumer.Close()
	consumer = b.subscribe(b.topic())
	defer consumer.Close()
	same(texts(some(consumer, 4)), values(6, 10))
}

func acknowledgeInBatch(b *bed) {
	b.sendBatch(b.topic(), 10)
	options := pulsar.ConsumerOptions{
		Type: pulsar.Shared, AckWithResponse: true, EnableBatchIndexAcknowledgment: true,
	}
	consumer := b.consumer(options)
	for n, message := range some(consumer, 10) {
		if n%2 == 0 {
			must(consumer.Ack(message))
		}
	}
	consumer.Close()
	consumer = b.consumer(options)
	defer consumer.Close()
	sameSet(texts(some(consumer, 5)), []string{"m1", "m3", "m5", "m7", "m9"})
	nothing(consumer)
}

func nack(b *bed) {
	b.send(b.topic(), 3)
	consumer := b.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, NackRedeliveryDelay: 500 * time.Millisecond,
	})
	defer consumer.Close()
	messages := some(consumer, 3)
	must(consumer.Ack(messages[0]))
	consumer.Nack(messages[1])
	must(consumer.Ack(messages[2]))
	for count := range 2 {
		again := next(consumer)
		same(text(again), "m1")
		same(again.RedeliveryCount(), uint32(count+1))
		if count == 0 {
			consumer.Nack(again)
		} else {
			must(consumer.Ack(again))
		}
	}
	nothing(consumer)
}

func seek(b *bed) {
	ids := b.send(b.topic(), 10)
	consumer := b.subscribe(b.topic())
	must(consumer.AckCumulative(some(consumer, 10)[9]))
	must(consumer.Seek(pulsar.NewMessageID(-1, -1, -1, 0)))
	same(texts(some(consumer, 10)), values(0, 10))
	must(consumer.Seek(pulsar.NewMessageID(math.MaxInt64, math.MaxInt64, -1, 0)))
	b.send(b.topic(), 1)
	same(texts(some(consumer, 1)), values(0, 1))
	consumer.Close()
	inclusive := b.consumer(pulsar.ConsumerOptions{
		SubscriptionName: "inclusive", StartMessageIDInclusive: true,
	})
	defer inclusive.Close()
	some(inclusive, 10)
	must(inclusive.Seek(ids[4]))
	same(texts(some(inclusive, 6)), values(4, 10))
}

func seekTime(b *bed) {
	b.send(b.topic(), 5)
	time.Sleep(50 * time.Millisecond)
	between := time.Now()
	time.Sleep(50 * time.Millisecond)
	producer := b.plain(b.topic())
	defer producer.Close()
	sent(producer, "m5")
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	some(consumer, 6)
	must(consumer.SeekByTime(between))
	same(text(next(consumer)), "m5")
}

func rest(reader pulsar.Reader) []string {
	found := []string{}
	for reader.HasNext() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		message, err := reader.Next(ctx)
		cancel()
		must(err)
		found = append(found, text(message))
	}
	return found
}

func (b *bed) reader(start pulsar.MessageID, inclusive bool) pulsar.Reader {
	found, err := b.client.CreateReader(pulsar.ReaderOptions{
		Topic: b.topic(), StartMessageID: start, StartMessageIDInclusive: inclusive,
	})
	must(err)
	return found
}

func reader(b *bed) {
	ids := b.send(b.topic(), 10)
	first := b.reader(pulsar.EarliestMessageID(), false)
	defer first.Close()
	same(rest(first), values(0, 10))
	must(first.Seek(ids[7]))
	same(rest(first), values(8, 10))
	second := b.reader(ids[3], false)
	defer second.Close()
	same(rest(second), values(4, 10))
	third := b.reader(ids[3], true)
	defer third.Close()
	same(rest(third), values(3, 10))
	newest := b.reader(pulsar.LatestMessageID(), false)
	defer newest.Close()
	check(!newest.HasNext(), "more is said to come")
	b.send(b.topic(), 2)
	for n := range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		message, err := newest.Next(ctx)
		cancel()
		must(err)
		same(text(message), fmt.Sprint("m", n))
	}
}

func lastMessageID(b *bed) {
	last := b.send(b.topic(), 3)[2]
	consumer := b.subscribe(b.topic())
	defer consumer.Close()
	found, err := consumer.GetLastMessageIDs()
	must(err)
	same(found[0].LedgerID(), last.LedgerID())
	same(found[0].EntryID(), last.EntryID())
}

func idBytes(b *bed) {
	b.sendBatch(b.topic(), 6)
	consumer := b.subscribe(b.topic())
	messages := some(consumer, 6)
	consumer.Close()
	for n, message := range messages {
		read, err := pulsar.DeserializeMessageID(message.ID().Serialize())
		must(err)
		same(compare(read, message.ID()), 0)
		reader := b.reader(read, false)
		same(rest(reader), values(n+1, 6))
		reader.Close()
	}
}

func manyTopics(b *bed) {
	topics := []string{b.topic("a"), b.topic("b"), b.topic("c")}
	consumer := b.consumer(pulsar.ConsumerOptions{Topics: topics})
	defer consumer.Close()
	for _, topic := range topics {
		b.send(topic, 2)
	}
	seen := map[string]int{}
	for _, message := range some(consumer, 6) {
		seen[message.Topic()]++
		must(consumer.Ack(message))
	}
	same(seen, map[string]int{topics[0]: 2, topics[1]: 2, topics[2]: 2})
}

func regex(b *bed) {
	b.send(b.topic("x-1"), 1)
	b.send(b.topic("x-2"), 1)
	b.send(b.topic("y"), 1)
	consumer := b.consumer(pulsar.ConsumerOptions{
		TopicsPattern: b.topic("x-.*"), AutoDiscoveryPeriod: time.Second,
	})
	defer consumer.Close()
	some(consumer, 2)
	b.send(b.topic("x-3"), 1)
	same(next(consumer).Topic(), b.topic("x-3"))
	nothing(consumer)
}

func deadLetters(b *bed) {
	b.send(b.topic(), 1)
	consumer := b.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, NackRedeliveryDelay: 200 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: b.topic("dead")},
	})
	defer consumer.Close()
	dead := b.subscribe(b.topic("dead"))
	defer dead.Close()
	for range 2 {
		consumer.Nack(next(consumer))
	}
	same(text(next(dead)), "m0")
	nothing(consumer)
}

func retryLetters(b *bed) {
	b.send(b.topic(), 1)
	consumer := b.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{
			MaxDeliveries: 1, DeadLetterTopic: b.topic("dead"), RetryLetterTopic: b.topic("retry"),
		},
	})
	defer consumer.Close()
	dead := b.subscribe(b.topic("dead"))
	defer dead.Close()
	consumer.ReconsumeLater(next(consumer), 500*time.Millisecond)
	again := next(consumer)
	same(again.Properties()["RECONSUMETIMES"], "1")
	consumer.ReconsumeLater(again, 500*time.Millisecond)
	same(text(next(dead)), "m0")
}

func unsubscribe(b *bed) {
	b.send(b.topic(), 3)
	consumer := b.subscribe(b.topic())
	must(consumer.AckCumulative(some(consumer, 3)[2]))
	must(consumer.Unsubscribe())
	consumer.Close()
	consumer = b.subscribe(b.topic())
	defer consumer.Close()
	same(texts(some(consumer, 3)), values(0, 3))
}

func tableView(b *bed) {
	producer := b.producer(pulsar.ProducerOptions{Schema: pulsar.NewStringSchema(nil)})
	defer producer.Close()
	for _, pair := range []string{"a=1", "b=2", "a=3"} {
		key, value, _ := strings.Cut(pair, "=")
		sentMessage(producer, pulsar.ProducerMessage{Key: key, Payload: []byte(value)})
	}
	view, err := b.client.CreateTableView(pulsar.TableViewOptions{
		Topic: b.topic(), Schema: pulsar.NewStringSchema(nil), SchemaValueType: reflect.TypeOf(new(string)),
	})
	must(err)
	defer view.Close()
	same(view.Size(), 2)
	same(*view.Get("a").(*string), "3")
	same(*view.Get("b").(*string), "2")
}
