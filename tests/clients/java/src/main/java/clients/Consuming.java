package clients;

import static clients.Bed.check;
import static clients.Bed.fails;
import static clients.Bed.next;
import static clients.Bed.nothing;
import static clients.Bed.same;
import static clients.Bed.sameSet;
import static clients.Bed.texts;
import static clients.Bed.values;

import clients.Main.Scenario;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

/** Consumers and readers: who gets what, and what comes again. */
final class Consuming {
    static void into(Map<String, Scenario> all) {
        all.put("exclusive", Consuming::exclusive);
        all.put("failover", Consuming::failover);
        all.put("shared", Consuming::shared);
        all.put("key_shared", Consuming::keyShared);
        all.put("acknowledge", Consuming::acknowledge);
        all.put("acknowledge_cumulative", Consuming::acknowledgeCumulative);
        all.put("acknowledge_in_batch", Consuming::acknowledgeInBatch);
        all.put("nack", Consuming::nack);
        all.put("ack_timeout", Consuming::ackTimeout);
        all.put("redeliver", Consuming::redeliver);
        all.put("seek", Consuming::seek);
        all.put("seek_time", Consuming::seekTime);
        all.put("reader", Consuming::reader);
        all.put("last_message_id", Consuming::lastMessageId);
        all.put("id_bytes", Consuming::idBytes);
        all.put("many_topics", Consuming::manyTopics);
        all.put("regex", Consuming::regex);
        all.put("dead_letters", Consuming::deadLetters);
        all.put("retry_letters", Consuming::retryLetters);
        all.put("unsubscribe", Consuming::unsubscribe);
        all.put("table_view", Consuming::tableView);
    }

    private static void exclusive(Bed bed) throws Exception {
        bed.send(bed.topic(), 10);
        try (Consumer<String> first = bed.subscribe(bed.topic())) {
            fails(
                    () -> bed.subscribe(bed.topic()),
                    PulsarClientException.ConsumerBusyException.class);
            same(texts(next(first, 10)), values(0, 10));
        }
        try (Consumer<String> second = bed.subscribe(bed.topic())) {
            same(texts(next(second, 10)), values(0, 10));
        }
    }

    /** Which of them is the active one is the server's affair. */
    private static void failover(Bed bed) throws Exception {
        Consumer<String> active =
                bed.consumer(bed.topic(), SubscriptionType.Failover).consumerName("a").subscribe();
        Consumer<String> waiting =
                bed.consumer(bed.topic(), SubscriptionType.Failover).consumerName("b").subscribe();
        bed.send(bed.topic(), 10);
        Message<String> first = null;
        for (int turn = 0; first == null; turn++) {
            check(turn < 2 * Bed.PATIENCE_S, "no message came");
            first = active.receive(500, TimeUnit.MILLISECONDS);
            if (first == null) {
                Consumer<String> other = active;
                active = waiting;
                waiting = other;
            }
        }
        same(first.getValue(), "m0");
        List<Message<String>> messages = next(active, 9);
        same(texts(messages), values(1, 10));
        nothing(waiting);
        active.acknowledgeCumulative(messages.get(3));
        active.close();
        same(texts(next(waiting, 5)), values(5, 10));
        waiting.close();
    }

    private static void shared(Bed bed) throws Exception {
        try (Consumer<String> first =
                        bed.consumer(bed.topic(), SubscriptionType.Shared)
                                .receiverQueueSize(5)
                                .subscribe();
                Consumer<String> second =
                        bed.consumer(bed.topic(), SubscriptionType.Shared)
                                .receiverQueueSize(5)
                                .subscribe()) {
            bed.send(bed.topic(), 100);
            List<String> found = new ArrayList<>();
            int[] counts = new int[2];
            while (found.size() < 100) {
                for (Consumer<String> consumer : List.of(first, second)) {
                    Message<String> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        found.add(message.getValue());
                        counts[consumer == first ? 0 : 1]++;
                        consumer.acknowledge(message);
                    }
                }
            }
            sameSet(found, values(0, 100));
            check(counts[0] > 0 && counts[1] > 0, "one of them got everything");
            nothing(first);
            nothing(second);
        }
    }

    private static void keyShared(Bed bed) throws Exception {
        try (Consumer<String> first =
                        bed.consumer(bed.topic(), SubscriptionType.Key_Shared).subscribe();
                Consumer<String> second =
                        bed.consumer(bed.topic(), SubscriptionType.Key_Shared).subscribe();
                Producer<String> producer = bed.producer(bed.topic()).create()) {
            for (int n = 0; n < 200; n++) {
                producer.newMessage().key("key " + n % 20).value("m" + n).sendAsync();
            }
            producer.flush();
            Map<String, Consumer<String>> owners = new HashMap<>();
            Map<String, Integer> newest = new HashMap<>();
            int count = 0;
            while (count < 200) {
                for (Consumer<String> consumer : List.of(first, second)) {
                    Message<String> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                    if (message == null) {
                        continue;
                    }
                    count++;
                    Consumer<String> owner = owners.putIfAbsent(message.getKey(), consumer);
                    check(owner == null || owner == consumer, "a key went to both");
                    int number = Integer.parseInt(message.getValue().substring(1));
                    Integer before = newest.put(message.getKey(), number);
                    check(before == null || before < number, "a key lost its order");
                    consumer.acknowledge(message);
                }
            }
            same(new HashSet<>(owners.values()).size(), 2);
        }
    }

    private static void acknowledge(Bed bed) throws Exception {
        bed.send(bed.topic(), 10);
        try (Consumer<String> consumer =
                bed.consumer(bed.topic(), SubscriptionType.Shared)
                        .isAckReceiptEnabled(true)
                        .subscribe()) {
            List<Message<String>> messages = next(consumer, 10);
            for (int n = 0; n < 10; n += 2) {
                consumer.acknowledge(messages.get(n));
            }
        }
        try (Consumer<String> consumer =
                bed.consumer(bed.topic(), SubscriptionType.Shared).subscribe()) {
            sameSet(texts(next(consumer, 5)), List.of("m1", "m3", "m5", "m7", "m9"));
            nothing(consumer);
        }
    }

    private static void acknowledgeCumulative(Bed bed) throws Exception {
        bed.send(bed.topic(), 10);
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            consumer.acknowledgeCumulative(next(consumer, 6).get(5));
        }
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            same(texts(next(consumer, 4)), values(6, 10));
        }
    }

    private static void acknowledgeInBatch(Bed bed) throws Exception {
        bed.sendBatch(bed.topic(), 10);
        try (Consumer<String> consumer =
                bed.consumer(bed.topic(), SubscriptionType.Shared)
                        .enableBatchIndexAcknowledgment(true)
                        .isAckReceiptEnabled(true)
                        .subscribe()) {
            List<Message<String>> messages = next(consumer, 10);
            for (int n = 0; n < 10; n += 2) {
                consumer.acknowledge(messages.get(n));
            }
        }
        try (Consumer<String> consumer =
                bed.consumer(bed.topic(), SubscriptionType.Shared)
                        .enableBatchIndexAcknowledgment(true)
                        .subscribe()) {
            sameSet(texts(next(consumer, 5)), List.of("m1", "m3", "m5", "m7", "m9"));
            nothing(consumer);
        }
    }

    private static void nack(Bed bed) throws Exception {
        bed.send(bed.topic(), 3);
        try (Consumer<String> consumer =
                bed.consumer(bed.topic(), SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(500, TimeUnit.MILLISECONDS)
                        .subscribe()) {
            List<Message<String>> messages = next(consumer, 3);
            consumer.acknowledge(messages.get(0));
            consumer.negativeAcknowledge(messages.get(1));
            consumer.acknowledge(messages.get(2));
            Message<String> again = next(consumer);
            same(again.getValue(), "m1");
            same(again.getRedeliveryCount(), 1);
            consumer.negativeAcknowledge(again);
            again = next(consumer);
            same(again.getRedeliveryCount(), 2);
            consumer.acknowledge(again);
            nothing(consumer);
        }
    }

    private static void ackTimeout(Bed bed) throws Exception {
        bed.send(bed.topic(), 2);
        try (Consumer<String> consumer =
                bed.consumer(bed.topic(), SubscriptionType.Shared)
                        .ackTimeout(1, TimeUnit.SECONDS)
                        .subscribe()) {
            consumer.acknowledge(next(consumer));
            next(consumer);
            Message<String> again = next(consumer);
            same(again.getValue(), "m1");
            check(again.getRedeliveryCount() > 0, "it is not counted");
            consumer.acknowledge(again);
        }
    }

    private static void redeliver(Bed bed) throws Exception {
        bed.send(bed.topic(), 5);
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            List<Message<String>> messages = next(consumer, 5);
            consumer.acknowledgeCumulative(messages.get(1));
            consumer.redeliverUnacknowledgedMessages();
            same(texts(next(consumer, 3)), values(2, 5));
        }
        try (Consumer<String> consumer =
                bed.consumer(bed.topic(), SubscriptionType.Shared)
                        .subscriptionName("other")
                        .subscribe()) {
            next(consumer, 5);
            consumer.redeliverUnacknowledgedMessages();
            sameSet(texts(next(consumer, 5)), values(0, 5));
        }
    }

    private static void seek(Bed bed) throws Exception {
        List<MessageId> ids = bed.send(bed.topic(), 10);
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            consumer.acknowledgeCumulative(next(consumer, 10).get(9));
            consumer.seek(ids.get(4));
            same(texts(next(consumer, 5)), values(5, 10));
            consumer.seek(MessageId.earliest);
            same(texts(next(consumer, 10)), values(0, 10));
            consumer.seek(MessageId.latest);
            bed.send(bed.topic(), 1);
            same(texts(next(consumer, 1)), values(0, 1));
        }
        try (Consumer<String> consumer =
                bed.consumer(bed.topic(), SubscriptionType.Exclusive)
                        .subscriptionName("inclusive")
                        .startMessageIdInclusive()
                        .subscribe()) {
            consumer.seek(ids.get(4));
            same(texts(next(consumer, 6)).subList(0, 6), values(4, 10));
        }
    }

    private static void seekTime(Bed bed) throws Exception {
        bed.send(bed.topic(), 5);
        Thread.sleep(50);
        long between = System.currentTimeMillis();
        Thread.sleep(50);
        try (Producer<String> producer = bed.producer(bed.topic()).create()) {
            producer.send("m5");
        }
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            next(consumer, 6);
            consumer.seek(between);
            same(next(consumer).getValue(), "m5");
        }
    }

    private static ReaderBuilder<String> reading(Bed bed) {
        return bed.client.newReader(Schema.STRING).topic(bed.topic());
    }

    private static List<String> rest(Reader<String> reader) throws Exception {
        List<String> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            found.add(reader.readNext(Bed.PATIENCE_S, TimeUnit.SECONDS).getValue());
        }
        return found;
    }

    private static void reader(Bed bed) throws Exception {
        List<MessageId> ids = bed.send(bed.topic(), 10);
        try (Reader<String> reader = reading(bed).startMessageId(MessageId.earliest).create()) {
            same(rest(reader), values(0, 10));
            check(!reader.hasMessageAvailable(), "more is said to come");
            reader.seek(ids.get(7));
            same(rest(reader), values(8, 10));
        }
        try (Reader<String> reader = reading(bed).startMessageId(ids.get(3)).create()) {
            same(rest(reader), values(4, 10));
        }
        try (Reader<String> reader =
                reading(bed).startMessageId(ids.get(3)).startMessageIdInclusive().create()) {
            same(rest(reader), values(3, 10));
        }
        try (Reader<String> reader = reading(bed).startMessageId(MessageId.latest).create()) {
            same(rest(reader), List.of());
            bed.send(bed.topic(), 2);
            same(rest(reader), values(0, 2));
        }
    }

    private static void lastMessageId(Bed bed) throws Exception {
        MessageId last = bed.send(bed.topic(), 3).get(2);
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            same(consumer.getLastMessageIds().get(0).compareTo(last), 0);
            last = bed.sendBatch(bed.topic(), 4).get(3);
            same(consumer.getLastMessageIds().get(0).compareTo(last), 0);
        }
    }

    private static void idBytes(Bed bed) throws Exception {
        List<MessageId> ids = bed.sendBatch(bed.topic(), 6);
        List<Message<String>> messages;
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            messages = next(consumer, 6);
        }
        for (int n = 0; n < 6; n++) {
            MessageId read = MessageId.fromByteArray(messages.get(n).getMessageId().toByteArray());
            same(read.compareTo(messages.get(n).getMessageId()), 0);
            same(read.compareTo(ids.get(n)), 0);
            try (Reader<String> reader = reading(bed).startMessageId(read).create()) {
                same(rest(reader), values(n + 1, 6));
            }
        }
    }

    private static void manyTopics(Bed bed) throws Exception {
        List<String> topics = List.of(bed.topic("a"), bed.topic("b"), bed.topic("c"));
        try (Consumer<String> consumer =
                bed.client
                        .newConsumer(Schema.STRING)
                        .topics(topics)
                        .subscriptionName("s")
                        .subscribe()) {
            for (String topic : topics) {
                bed.send(topic, 2);
            }
            Set<String> seen = new HashSet<>();
            for (Message<String> message : next(consumer, 6)) {
                seen.add(message.getTopicName());
                consumer.acknowledge(message);
            }
            same(seen, new HashSet<>(topics));
        }
    }

    private static void regex(Bed bed) throws Exception {
        bed.send(bed.topic("x-1"), 1);
        bed.send(bed.topic("x-2"), 1);
        bed.send(bed.topic("y"), 1);
        try (Consumer<String> consumer =
                bed.client
                        .newConsumer(Schema.STRING)
                        .topicsPattern(Pattern.compile(bed.topic("x-.*")))
                        .patternAutoDiscoveryPeriod(1, TimeUnit.HOURS)
                        .subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
            next(consumer, 2);
            bed.send(bed.topic("x-3"), 1);
            same(next(consumer).getTopicName(), bed.topic("x-3"));
            nothing(consumer);
        }
    }

    private static void deadLetters(Bed bed) throws Exception {
        bed.send(bed.topic(), 1);
        try (Consumer<String> consumer =
                        bed.consumer(bed.topic(), SubscriptionType.Shared)
                                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                                .deadLetterPolicy(
                                        DeadLetterPolicy.builder()
                                                .maxRedeliverCount(2)
                                                .deadLetterTopic(bed.topic("dead"))
                                                .build())
                                .subscribe();
                Consumer<String> dead = bed.subscribe(bed.topic("dead"))) {
            for (int n = 0; n < 3; n++) {
                Message<String> message = next(consumer);
                same(message.getRedeliveryCount(), n);
                consumer.negativeAcknowledge(message);
            }
            same(next(dead).getValue(), "m0");
            nothing(consumer);
        }
    }

    private static void retryLetters(Bed bed) throws Exception {
        bed.send(bed.topic(), 1);
        try (Consumer<String> consumer =
                        bed.consumer(bed.topic(), SubscriptionType.Shared)
                                .enableRetry(true)
                                .deadLetterPolicy(
                                        DeadLetterPolicy.builder()
                                                .maxRedeliverCount(1)
                                                .retryLetterTopic(bed.topic("retry"))
                                                .deadLetterTopic(bed.topic("dead"))
                                                .build())
                                .subscribe();
                Consumer<String> dead = bed.subscribe(bed.topic("dead"))) {
            consumer.reconsumeLater(next(consumer), 500, TimeUnit.MILLISECONDS);
            Message<String> again = next(consumer);
            same(again.getProperty("RECONSUMETIMES"), "1");
            consumer.reconsumeLater(again, 500, TimeUnit.MILLISECONDS);
            same(next(dead).getValue(), "m0");
        }
    }

    private static void unsubscribe(Bed bed) throws Exception {
        bed.send(bed.topic(), 3);
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            consumer.acknowledgeCumulative(next(consumer, 3).get(2));
            consumer.unsubscribe();
        }
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            same(texts(next(consumer, 3)), values(0, 3));
        }
    }

    private static void tableView(Bed bed) throws Exception {
        try (Producer<String> producer = bed.producer(bed.topic()).create()) {
            producer.newMessage().key("a").value("1").send();
            producer.newMessage().key("b").value("2").send();
            producer.newMessage().key("a").value("3").send();
        }
        try (TableView<String> view =
                bed.client.newTableView(Schema.STRING).topic(bed.topic()).create()) {
            same(view.get("a"), "3");
            same(view.get("b"), "2");
            same(view.size(), 2);
        }
    }
}
