package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"golang.org/x/sys/unix"
)

const (
	burstPause = 50 * time.Millisecond
	answerTime = 20 * time.Second
)

// The part of a producer or a consumer; tests/clients/recorded.py says what each field means.
type part struct {
	Role, Name, File, Kind                                        string
	Life, First, Burst, DelayMs, Keys, Delayed, Queue, Close, Txn int
	Cumulative                                                    bool
	client                                                        pulsar.Client
	topic                                                         string
	over                                                          chan os.Signal
	isOver                                                        bool
}

type fields map[string]any

// Writes the calls of this process to its file; tests/history/events.py says what an event has.
type events struct {
	sync.Mutex
	file    *os.File
	process string
	calls   int
	ops     map[int]string
}

func (e *events) write(kind, op string, call int, more fields) {
	var now unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	event := fields{
		"n": now.Nano(), "process": e.process, "call": call, "type": kind, "op": op,
		"at": time.Now().UnixMilli(),
	}
	for name, value := range more {
		event[name] = value
	}
	line, err := json.Marshal(event)
	must(err)
	_, err = e.file.Write(append(line, '\n'))
	must(err)
}

func (e *events) invoke(op string, args fields) int {
	e.Lock()
	defer e.Unlock()
	e.calls++
	e.ops[e.calls] = op
	e.write("invoke", op, e.calls, fields{"args": args})
	return e.calls
}

// Records the end of a call; what fails may still have happened.
func (e *events) end(call int, err error, answer fields) {
	e.Lock()
	defer e.Unlock()
	op := e.ops[call]
	delete(e.ops, call)
	if err != nil {
		e.write("unknown", op, call, fields{"error": err.Error()})
	} else {
		e.write("ok", op, call, fields{"answer": answer})
	}
}

// Plays a part until SIGTERM: clients URL TOPIC OUTPUT, with the part in RECORDED. It goes on after
// any error, until it is killed, as it may be at any moment.
func recorded(text string) {
	p := part{topic: os.Args[2], over: make(chan os.Signal, 1)}
	must(json.Unmarshal([]byte(text), &p))
	signal.Notify(p.over, syscall.SIGTERM)
	file, err := os.OpenFile(p.File, os.O_APPEND|os.O_WRONLY, 0)
	must(err)
	e := &events{file: file, process: p.Name, ops: map[int]string{}}
	settings := options(answerTime)
	settings.EnableTransaction = true
	p.client = untilDone(&p, func() (pulsar.Client, error) { return pulsar.NewClient(settings) })
	if p.client != nil && p.Role == "producer" {
		p.produce(e)
	} else if p.client != nil {
		p.consume(e)
	}
	os.Exit(0)
}

// Whether SIGTERM has come within this time.
func (p *part) ends(pause time.Duration) bool {
	select {
	case <-p.over:
		p.isOver = true
	case <-time.After(pause):
	}
	return p.isOver
}

// Does something again until it succeeds: the server may be away. At the end it returns nothing.
func untilDone[T any](p *part, act func() (T, error)) (result T) {
	for !p.ends(0) {
		made, err := act()
		if err == nil {
			return made
		}
		p.ends(burstPause)
	}
	return
}

func (p *part) produce(e *events) {
	made := pulsar.ProducerOptions{
		Topic: p.topic, Name: p.Name, DisableBatching: p.DelayMs == 0, SendTimeout: -1,
		BatchingMaxPublishDelay: time.Duration(max(p.DelayMs, 1)) * time.Millisecond,
	}
	if p.Kind == "key_shared" {
		made.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	}
	producer := untilDone(p, func() (pulsar.Producer, error) { return p.client.CreateProducer(made) })
	for number := p.First; !p.ends(burstPause); {
		for range p.Burst {
			p.send(e, producer, number)
			number++
		}
		_ = producer.FlushWithCtx(context.Background()) // each message has its own answer
	}
	if producer != nil {
		_ = producer.FlushWithCtx(context.Background())
		producer.Close()
	}
}

func (p *part) send(e *events, producer pulsar.Producer, number int) {
	value, sequence := fmt.Sprintf("%s:%d", p.Name, number), int64(number)
	args := fields{"topic": p.topic, "value": value, "producer": p.Name, "sequence": number}
	message := &pulsar.ProducerMessage{Payload: []byte(value), SequenceID: &sequence}
	session := fmt.Sprintf("%s %d", p.Name, p.Life)
	if p.Keys > 0 {
		message.Key = fmt.Sprintf("k%d", number%p.Keys)
		args["key"] = message.Key
	}
	if p.Kind == "key_shared" { // a batch for each key has an order of its own
		session += " " + message.Key
	}
	if p.Delayed == 0 { // delayed messages go ahead of batches
		args["session"] = session
	} else if number%p.Delayed == 1 {
		message.DeliverAt = time.Now().Add(400 * time.Millisecond)
		args["deliver_at_ms"] = message.DeliverAt.UnixMilli()
	}
	call := e.invoke("send", args)
	producer.SendAsync(context.Background(), message,
		func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				e.end(call, err, nil)
			} else if id.LedgerID() < 0 {
				e.end(call, nil, fields{"duplicate": true})
			} else {
				partition := max(id.PartitionIdx(), 0)
				e.end(call, nil, fields{"partition": partition, "id": idText(id)})
			}
		})
}

func idText(id pulsar.MessageID) string {
	return fmt.Sprintf("%d:%d:%d", id.LedgerID(), id.EntryID(), id.BatchIdx())
}

func (p *part) consume(e *events) {
	types := map[string]pulsar.SubscriptionType{
		"exclusive": pulsar.Exclusive, "failover": pulsar.Failover,
		"shared": pulsar.Shared, "key_shared": pulsar.KeyShared,
	}
	var output pulsar.Producer
	if p.Txn > 0 {
		output = untilDone(p, func() (pulsar.Producer, error) {
			return p.client.CreateProducer(pulsar.ProducerOptions{
				Topic: os.Args[3], SendTimeout: answerTime,
			})
		})
	}
	for count := 1; !p.ends(0); count++ {
		where := fields{
			"topic": p.topic, "subscription": "s",
			"consumer": fmt.Sprintf("%s.%d.%d", p.Name, p.Life, count),
		}
		args := with(where, fields{"kind": p.Kind, "initial": "earliest", "is_ahead": true})
		consumer := untilDone(p, func() (pulsar.Consumer, error) {
			call := e.invoke("subscribe", args)
			made, err := p.client.Subscribe(pulsar.ConsumerOptions{
				Topic: p.topic, SubscriptionName: "s", Type: types[p.Kind],
				ReceiverQueueSize:           p.Queue,
				SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
				AckWithResponse:             true, EnableBatchIndexAcknowledgment: true,
				NackRedeliveryDelay: 100 * time.Millisecond,
			})
			e.end(call, err, fields{})
			return made, err
		})
		if consumer != nil {
			p.receive(e, consumer, output, where)
		}
	}
}

// Receives some messages, acknowledges them and closes the consumer.
func (p *part) receive(
	e *events, consumer pulsar.Consumer, output pulsar.Producer, where fields,
) {
	for count := 0; count < p.Close && !p.ends(0); {
		messages := p.received(e, consumer, where)
		count += len(messages)
		if len(messages) > 0 && p.Txn > 0 {
			p.copy(e, consumer, output, messages, where)
		} else if len(messages) > 0 {
			p.acknowledge(e, consumer, messages[0], where)
		}
	}
	call := e.invoke("close", where)
	consumer.Close()
	e.end(call, nil, fields{})
}

// The next message, or those for a transaction; none if none comes for a while.
func (p *part) received(e *events, consumer pulsar.Consumer, where fields) []pulsar.Message {
	var messages []pulsar.Message
	seen := map[string]bool{} // what was given back may come twice
	for len(messages) < max(p.Txn, 1) {
		call := e.invoke("receive", where)
		message := within(consumer, lull)
		if message == nil {
			e.end(call, nil, fields{"messages": []fields{}})
			break
		}
		e.end(call, nil, fields{"messages": []fields{{
			"topic": p.topic, "partition": max(message.ID().PartitionIdx(), 0),
			"id": idText(message.ID()), "value": text(message),
		}}})
		if !seen[text(message)] {
			seen[text(message)] = true
			messages = append(messages, message)
		}
	}
	return messages
}

func with(where fields, more fields) fields {
	args := fields{}
	for _, each := range []fields{where, more} {
		for name, value := range each {
			args[name] = value
		}
	}
	return args
}

func (p *part) acknowledge(
	e *events, consumer pulsar.Consumer, message pulsar.Message, where fields,
) {
	args := with(where, fields{"values": []string{text(message)}})
	if p.Cumulative {
		args["cumulative"] = true
		call := e.invoke("acknowledge", args)
		e.end(call, consumer.AckCumulative(message), fields{})
		return
	}
	call := e.invoke("acknowledge", args)
	e.end(call, consumer.Ack(message), fields{})
}

// Copies messages to another topic and acknowledges them, in a transaction.
func (p *part) copy(
	e *events, consumer pulsar.Consumer, output pulsar.Producer,
	messages []pulsar.Message, where fields,
) {
	begin := e.invoke("begin", fields{})
	txn, err := p.client.NewTransaction(txnTimeout)
	if err != nil {
		e.end(begin, err, nil)
		p.giveBack(e, consumer, messages, where)
		return
	}
	id := txn.GetTxnID()
	name := fmt.Sprintf("%d:%d", id.MostSigBits, id.LeastSigBits)
	e.end(begin, nil, fields{"txn": name})
	var waiting sync.WaitGroup
	failures := make([]error, len(messages), 2*len(messages))
	var refused []pulsar.Message
	for n, message := range messages {
		value := fmt.Sprintf("%s@%s", text(message), name)
		call := e.invoke("send", fields{"topic": os.Args[3], "value": value, "txn": name})
		waiting.Add(1)
		copy := pulsar.ProducerMessage{Payload: []byte(value), Transaction: txn}
		output.SendAsync(context.Background(), &copy,
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				e.end(call, err, fields{})
				failures[n] = err
				waiting.Done()
			})
	}
	waiting.Wait()
	for _, message := range messages {
		args := with(where, fields{"values": []string{text(message)}, "txn": name})
		call := e.invoke("acknowledge", args)
		err := consumer.AckWithTxn(message, txn)
		e.end(call, err, fields{})
		if err != nil {
			failures = append(failures, err)
			refused = append(refused, message)
		}
	}
	if errors.Join(failures...) != nil {
		call := e.invoke("abort", fields{"txn": name})
		e.end(call, txn.Abort(context.Background()), fields{})
		p.giveBack(e, consumer, refused, where) // the abort gives the others back
		return
	}
	call := e.invoke("commit", fields{"txn": name})
	e.end(call, txn.Commit(context.Background()), fields{})
}

// The client asks for messages again after a while, so nobody knows when the call ends.
func (p *part) giveBack(
	e *events, consumer pulsar.Consumer, messages []pulsar.Message, where fields,
) {
	for _, message := range messages {
		call := e.invoke("nack", with(where, fields{"values": []string{text(message)}}))
		consumer.Nack(message)
		e.end(call, errors.New("asked for later"), nil)
	}
}
