package main

import (
	"context"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
)

func init() {
	scenarios["schema_json"] = func(b *bed) {
		roundTrip(b, pulsar.NewJSONSchema(definition, nil))
	}
	scenarios["schema_avro"] = func(b *bed) {
		roundTrip(b, pulsar.NewAvroSchema(definition, nil))
	}
	scenarios["schema_refused"] = schemaRefused
}

const definition = `{"type": "record", "name": "Order", "namespace": "clients", "fields": [
	{"name": "customer", "type": "string"}, {"name": "quantity", "type": "int"}]}`

type order struct {
	Customer string `json:"customer" avro:"customer"`
	Quantity int    `json:"quantity" avro:"quantity"`
}

func roundTrip(b *bed, schema pulsar.Schema) {
	producer := b.producer(pulsar.ProducerOptions{Schema: schema})
	defer producer.Close()
	_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Value: &order{"Ada", 3}})
	must(err)
	consumer := b.consumer(pulsar.ConsumerOptions{Schema: schema})
	defer consumer.Close()
	var found order
	must(next(consumer).GetSchemaValue(&found))
	same(found, order{"Ada", 3})
}

func schemaRefused(b *bed) {
	b.producer(pulsar.ProducerOptions{Schema: pulsar.NewAvroSchema(definition, nil)}).Close()
	broken := pulsar.NewAvroSchema(strings.Replace(definition, "string", "int", 1), nil)
	_, err := b.client.CreateProducer(pulsar.ProducerOptions{Topic: b.topic(), Schema: broken})
	fails(err, "IncompatibleSchema")
}
