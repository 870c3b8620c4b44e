package clients;

import static clients.Bed.fails;
import static clients.Bed.next;
import static clients.Bed.same;

import clients.Main.Scenario;
import java.util.Map;
import java.util.Objects;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericRecord;

/** Typed topics: what fits goes through, and a change that would break readers is refused. */
final class Schemas {
    static void into(Map<String, Scenario> all) {
        all.put("schema_json", bed -> roundTrip(bed, Schema.JSON(Order.class)));
        all.put("schema_avro", bed -> roundTrip(bed, Schema.AVRO(Order.class)));
        all.put("schema_refused", Schemas::refused);
        all.put("schema_evolved", Schemas::evolved);
    }

    /** An order. */
    public static class Order {
        public String customer;
        public int quantity;
        public Double price;

        @Override
        public boolean equals(Object other) {
            return other instanceof Order order
                    && Objects.equals(customer, order.customer)
                    && quantity == order.quantity
                    && Objects.equals(price, order.price);
        }

        @Override
        public int hashCode() {
            return Objects.hash(customer, quantity, price);
        }
    }

    /** The same record with a number where the text was. */
    public static class Broken {
        public int customer;
    }

    /** The same record with one field more, that may be missing. */
    public static class Newer {
        public String customer;
        public int quantity;
        public Double price;
        public String note;
    }

    private static Order order() {
        Order order = new Order();
        order.customer = "Ada";
        order.quantity = 3;
        order.price = 2.5;
        return order;
    }

    private static <T> Consumer<T> subscribe(Bed bed, Schema<T> schema) throws Exception {
        return bed.client
                .newConsumer(schema)
                .topic(bed.topic())
                .subscriptionName("s" + System.nanoTime())
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }

    private static void roundTrip(Bed bed, Schema<Order> schema) throws Exception {
        try (Producer<Order> producer = bed.client.newProducer(schema).topic(bed.topic()).create()) {
            producer.send(order());
        }
        try (Consumer<Order> consumer = subscribe(bed, schema)) {
            same(next(consumer).getValue(), order());
        }
        try (Consumer<GenericRecord> consumer = subscribe(bed, Schema.AUTO_CONSUME())) {
            Message<GenericRecord> message = next(consumer);
            same(message.getValue().getField("customer"), "Ada");
            same(message.getValue().getField("quantity"), 3);
        }
    }

    private static void refused(Bed bed) throws Exception {
        try (Producer<Order> producer =
                bed.client.newProducer(Schema.AVRO(Order.class)).topic(bed.topic()).create()) {
            producer.send(order());
        }
        fails(
                () -> bed.client.newProducer(Schema.AVRO(Broken.class)).topic(bed.topic()).create(),
                PulsarClientException.IncompatibleSchemaException.class);
        fails(
                () -> subscribe(bed, Schema.AVRO(Broken.class)),
                PulsarClientException.IncompatibleSchemaException.class);
    }

    private static void evolved(Bed bed) throws Exception {
        try (Producer<Order> producer =
                bed.client.newProducer(Schema.AVRO(Order.class)).topic(bed.topic()).create()) {
            producer.send(order());
        }
        Newer newer = new Newer();
        newer.customer = "Bob";
        newer.note = "new";
        try (Producer<Newer> producer =
                bed.client.newProducer(Schema.AVRO(Newer.class)).topic(bed.topic()).create()) {
            producer.send(newer);
        }
        try (Consumer<Newer> consumer = subscribe(bed, Schema.AVRO(Newer.class))) {
            same(next(consumer).getValue().note, null);
            same(next(consumer).getValue().note, "new");
        }
    }
}
