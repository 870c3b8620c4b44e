// Runs the scenarios that are named, or all: clients URL PREFIX [NAME ...]. It prints a JSON object
// for each: its name, whether it held, and why not. Topics have names that begin with the prefix.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	atOnce   = 4
	patience = 30 * time.Second
	// How long nothing has to come for it to be "nothing".
	silence = 700 * time.Millisecond
)

var (
	scenarios = map[string]func(*bed){}
	printing  sync.Mutex
	pausing   sync.Mutex
	input     = bufio.NewReader(os.Stdin)
)

// What scenarios share: one client, names of topics, and checks, which panic.
type bed struct {
	client  pulsar.Client
	prefix  string
	withTxn bool // whether further clients of the scenario use transactions
}

func main() {
	if text := os.Getenv("PLAN"); text != "" {
		answered(text)
	}
	if text := os.Getenv("COPY"); text != "" {
		copied(text)
	}
	if text := os.Getenv("RECORDED"); text != "" {
		recorded(text)
	}
	var client pulsar.Client
	if secrets == "" {
		var err error
		plain := options(patience)
		plain.EnableTransaction = true
		client, err = pulsar.NewClient(plain)
		must(err)
	} else {
		scenarios = secured
	}
	names := os.Args[3:]
	if len(names) == 0 {
		for name := range scenarios {
			names = append(names, name)
		}
		sort.Strings(names)
	}
	var running sync.WaitGroup
	places := make(chan bool, atOnce)
	for _, name := range names {
		if isAlone(name) {
			continue
		}
		running.Add(1)
		go func() {
			defer running.Done()
			places <- true
			run(client, name)
			<-places
		}()
	}
	running.Wait()
	for _, name := range names {
		if isAlone(name) {
			run(client, name)
		}
	}
	os.Exit(0) // whatever a scenario left running
}

func options(wait time.Duration) pulsar.ClientOptions {
	quiet := logrus.New()
	quiet.SetLevel(logrus.PanicLevel)
	return pulsar.ClientOptions{
		URL: os.Args[1], OperationTimeout: wait, Logger: log.NewLoggerWithLogrus(quiet),
	}
}

// They stop or change the server: each runs alone, behind the others.
func isAlone(name string) bool {
	return name == "txn_killed" || name == "tls_reloaded"
}

func run(client pulsar.Client, name string) {
	b := &bed{client: client, prefix: os.Args[2] + "-" + strings.ReplaceAll(name, "_", "-")}
	failure := ""
	func() {
		defer func() {
			if found := recover(); found != nil {
				failure = fmt.Sprint(found)
			}
		}()
		scenarios[name](b)
	}()
	say(map[string]string{"scenario": name, "error": failure})
}

func say(what map[string]string) {
	line, err := json.Marshal(what)
	must(err)
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

// Tells whoever runs this to kill the server and start another, and waits until it has.
func killed() {
	pause("kill")
}

// Asks whoever runs this for something, and waits until it is done.
func pause(wish string) {
	pausing.Lock()
	defer pausing.Unlock()
	say(map[string]string{"pause": wish})
	_, _ = input.ReadString('\n')
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, otherwise string) {
	if !holds {
		panic(otherwise)
	}
}

func same(found, expected any) {
	check(reflect.DeepEqual(found, expected), fmt.Sprintf("expected %v, found %v", expected, found))
}

func sameSet(found, expected []string) {
	a, b := append([]string{}, found...), append([]string{}, expected...)
	sort.Strings(a)
	sort.Strings(b)
	same(a, b)
}

func fails(err error, texts ...string) {
	check(err != nil, "no error came")
	for _, text := range texts {
		if strings.Contains(err.Error(), text) {
			return
		}
	}
	panic(err)
}

func (b *bed) topic(parts ...string) string {
	return "persistent://public/default/" + strings.Join(append([]string{b.prefix}, parts...), "-")
}

func (b *bed) producer(options pulsar.ProducerOptions) pulsar.Producer {
	if options.Topic == "" {
		options.Topic = b.topic()
	}
	producer, err := b.client.CreateProducer(options)
	must(err)
	return producer
}

func (b *bed) plain(topic string) pulsar.Producer {
	return b.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
}

func (b *bed) consumer(options pulsar.ConsumerOptions) pulsar.Consumer {
	consumer, err := b.tryConsumer(options)
	must(err)
	return consumer
}

func (b *bed) tryConsumer(options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	if options.Topic == "" && options.Topics == nil && options.TopicsPattern == "" {
		options.Topic = b.topic()
	}
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	return b.client.Subscribe(options)
}

func (b *bed) subscribe(topic string) pulsar.Consumer {
	return b.consumer(pulsar.ConsumerOptions{Topic: topic})
}

func (b *bed) shared() pulsar.Consumer {
	return b.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
}

// Sends m0, m1, ... one by one.
func (b *bed) send(topic string, count int) []pulsar.MessageID {
	producer := b.plain(topic)
	defer producer.Close()
	var ids []pulsar.MessageID
	for n := range count {
		ids = append(ids, sent(producer, fmt.Sprint("m", n)))
	}
	return ids
}

// Sends m0, m1, ... in one batch.
func (b *bed) sendBatch(topic string, count int) []pulsar.MessageID {
	producer := b.producer(pulsar.ProducerOptions{
		Topic: topic, BatchingMaxMessages: uint(count), BatchingMaxPublishDelay: time.Second,
	})
	defer producer.Close()
	return sendAll(producer, count, nil)
}

// Sends m0, m1, ... without waiting in between.
func sendAll(producer pulsar.Producer, count int, txn pulsar.Transaction) []pulsar.MessageID {
	ids := make([]pulsar.MessageID, count)
	var waiting sync.WaitGroup
	var failure error
	waiting.Add(count)
	for n := range count {
		message := pulsar.ProducerMessage{Payload: []byte(fmt.Sprint("m", n)), Transaction: txn}
		producer.SendAsync(context.Background(), &message,
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				ids[n] = id
				if err != nil {
					failure = err
				}
				waiting.Done()
			})
	}
	must(producer.FlushWithCtx(context.Background()))
	waiting.Wait()
	must(failure)
	return ids
}

func sent(producer pulsar.Producer, value string) pulsar.MessageID {
	return sentMessage(producer, pulsar.ProducerMessage{Payload: []byte(value)})
}

func sentMessage(producer pulsar.Producer, message pulsar.ProducerMessage) pulsar.MessageID {
	id, err := producer.Send(context.Background(), &message)
	must(err)
	return id
}

func values(from, until int) []string {
	found := []string{}
	for n := from; n < until; n++ {
		found = append(found, fmt.Sprint("m", n))
	}
	return found
}

func within(consumer pulsar.Consumer, wait time.Duration) pulsar.Message {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	message, err := consumer.Receive(ctx)
	if err != nil {
		check(ctx.Err() != nil, fmt.Sprint(err))
		return nil
	}
	return message
}

func next(consumer pulsar.Consumer) pulsar.Message {
	message := within(consumer, patience)
	check(message != nil, "no message came")
	return message
}

func some(consumer pulsar.Consumer, count int) []pulsar.Message {
	var found []pulsar.Message
	for range count {
		found = append(found, next(consumer))
	}
	return found
}

func texts(messages []pulsar.Message) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, text(message))
	}
	return found
}

func text(message pulsar.Message) string {
	return string(message.Payload())
}

func nothing(consumer pulsar.Consumer) {
	if message := within(consumer, silence); message != nil {
		panic("a message came: " + text(message))
	}
}

// The order of ids in one partition.
func compare(a, b pulsar.MessageID) int {
	for _, pair := range [][2]int64{
		{a.LedgerID(), b.LedgerID()},
		{a.EntryID(), b.EntryID()},
		{int64(a.BatchIdx()), int64(b.BatchIdx())},
	} {
		if pair[0] != pair[1] {
			if pair[0] < pair[1] {
				return -1
			}
			return 1
		}
	}
	return 0
}
