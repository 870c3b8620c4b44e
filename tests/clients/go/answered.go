package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// What a run sends; tests/clients/answered.py says what each field means.
type plan struct {
	Count, DelayMs, Keys, Delayed, Gap, Refused, Txn, Kills int
	Named                                                   bool
}

// Counts answers, and has the server killed when some of them have come.
type answers struct {
	sync.Mutex
	stored []string
	failed int
	kills  []int
	wanted chan bool
}

func (a *answers) add(values []string, failed int) {
	a.Lock()
	defer a.Unlock()
	a.stored = append(a.stored, values...)
	a.failed += failed
	for len(a.kills) > 0 && len(a.stored)+a.failed >= a.kills[0] {
		a.kills = a.kills[1:]
		a.wanted <- true
	}
}

// Sends what the plan says to a topic: clients URL TOPIC, with the plan in PLAN. It prints the
// messages that were answered, and of transactions those whose commit was.
func answered(text string) {
	var p plan
	must(json.Unmarshal([]byte(text), &p))
	settings := options(patience)
	settings.EnableTransaction = true
	client, err := pulsar.NewClient(settings)
	must(err)
	found := &answers{wanted: make(chan bool, p.Kills)}
	for kill := range p.Kills {
		found.kills = append(found.kills, p.Count*(kill+1)/(p.Kills+1))
	}
	go func() {
		for range found.wanted {
			killed()
		}
	}()
	made := pulsar.ProducerOptions{
		Topic: os.Args[2], SendTimeout: 20 * time.Second,
		BatchingMaxPublishDelay: time.Duration(p.DelayMs) * time.Millisecond,
	}
	if p.Keys > 0 {
		made.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	}
	if p.Named {
		made.Name = "own-" + os.Args[2]
	}
	producer, err := client.CreateProducer(made)
	must(err)
	step := p.Txn
	if step == 0 {
		step = p.Count
	}
	for first := 0; first < p.Count; first += step {
		p.part(client, producer, first, min(first+step, p.Count), found)
	}
	line, err := json.Marshal(map[string]any{"answered": found.stored, "failed": found.failed})
	must(err)
	printing.Lock()
	fmt.Println(string(line))
	os.Exit(0)
}

// Sends some messages, in a transaction of their own if the plan has transactions.
func (p plan) part(
	client pulsar.Client, producer pulsar.Producer, first, stop int, found *answers,
) {
	var txn pulsar.Transaction
	for p.Txn > 0 {
		begun, err := client.NewTransaction(time.Minute)
		if err == nil {
			txn = begun
			break
		}
	}
	var waiting sync.WaitGroup
	var lock sync.Mutex
	values := []string{}
	for n := first; n < stop; n++ {
		waiting.Add(1)
		message := p.message(n)
		message.Transaction = txn
		producer.SendAsync(context.Background(), message,
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				defer waiting.Done()
				value := string(message.Payload)
				switch {
				case err != nil:
					found.add(nil, 1)
				case txn == nil:
					found.add([]string{value}, 0)
				default:
					lock.Lock()
					values = append(values, value)
					lock.Unlock()
				}
			})
	}
	_ = producer.FlushWithCtx(context.Background()) // each message has its own answer
	waiting.Wait()
	if txn == nil {
		return
	}
	if err := txn.Commit(context.Background()); err != nil {
		found.add(nil, len(values)) // nobody knows what became of it
	} else {
		found.add(values, 0)
	}
}

func (p plan) message(n int) *pulsar.ProducerMessage {
	message := &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(n))}
	if p.Gap > 0 {
		number := int64(n * p.Gap)
		message.SequenceID = &number
	}
	if p.Keys > 0 {
		message.Key = fmt.Sprint("key ", n%p.Keys)
	}
	if p.Delayed > 0 && n%p.Delayed == 1 {
		message.DeliverAfter = time.Millisecond
	}
	if p.Refused > 0 && n%p.Refused == p.Refused-1 {
		message.Key = strings.Repeat("x", 70_000)
	}
	return message
}
