package clients;

import static clients.Bed.check;
import static clients.Bed.fails;
import static clients.Bed.next;
import static clients.Bed.nothing;
import static clients.Bed.same;
import static clients.Bed.texts;
import static clients.Bed.values;

import clients.Main.Scenario;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;

/** Producers: what is sent arrives, once, in order, under the id that was answered. */
final class Sending {
    static void into(Map<String, Scenario> all) {
        all.put("send", Sending::send);
        all.put("send_async", Sending::sendAsync);
        all.put("batches", Sending::batches);
        all.put("compression", Sending::compression);
        all.put("chunks", Sending::chunks);
        all.put("metadata", Sending::metadata);
        all.put("null_value", Sending::nullValue);
        all.put("delayed", Sending::delayed);
        all.put("deduplication", Sending::deduplication);
        all.put("exclusive_producer", Sending::exclusiveProducer);
        all.put("waiting_producer", Sending::waitingProducer);
        all.put("fencing_producer", Sending::fencingProducer);
        all.put("partitions", Sending::partitions);
    }

    private static void send(Bed bed) throws Exception {
        List<MessageId> ids = bed.send(bed.topic(), 5);
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            List<Message<String>> messages = next(consumer, 5);
            same(texts(messages), values(0, 5));
            for (int n = 0; n < 5; n++) {
                same(messages.get(n).getMessageId(), ids.get(n));
                check(n == 0 || ids.get(n - 1).compareTo(ids.get(n)) < 0, "ids are not in order");
            }
        }
    }

    private static void sendAsync(Bed bed) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<String> producer = bed.producer(bed.topic()).create()) {
            for (int n = 0; n < 200; n++) {
                sent.add(producer.sendAsync("m" + n));
            }
            producer.flush();
        }
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            List<Message<String>> messages = next(consumer, 200);
            same(texts(messages), values(0, 200));
            for (int n = 0; n < 200; n++) {
                same(messages.get(n).getMessageId(), sent.get(n).get());
            }
        }
    }

    private static void batches(Bed bed) throws Exception {
        List<MessageId> ids = bed.sendBatch(bed.topic(), 20);
        bed.send(bed.topic(), 1);
        ids.addAll(bed.sendBatch(bed.topic(), 20));
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            List<Message<String>> messages = next(consumer, 41);
            messages.remove(20);
            for (int n = 0; n < 40; n++) {
                same(messages.get(n).getValue(), "m" + n % 20);
                same(messages.get(n).getMessageId().compareTo(ids.get(n)), 0);
                check(n == 0 || ids.get(n - 1).compareTo(ids.get(n)) < 0, "ids are not in order");
            }
        }
    }

    private static void compression(Bed bed) throws Exception {
        String value = "compressible ".repeat(1000);
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            for (CompressionType type : CompressionType.values()) {
                for (boolean batching : List.of(false, true)) {
                    try (Producer<String> producer =
                            bed.client
                                    .newProducer(Schema.STRING)
                                    .topic(bed.topic())
                                    .compressionType(type)
                                    .enableBatching(batching)
                                    .create()) {
                        producer.sendAsync(value + type);
                        producer.sendAsync(value + "again");
                        producer.flush();
                    }
                    same(texts(next(consumer, 2)), List.of(value + type, value + "again"));
                }
            }
        }
    }

    private static void chunks(Bed bed) throws Exception {
        String value = "0123456789abcdef".repeat(200_000);
        try (Producer<String> producer =
                        bed.producer(bed.topic())
                                .enableChunking(true)
                                .chunkMaxMessageSize(500_000)
                                .create();
                Consumer<String> consumer = bed.subscribe(bed.topic())) {
            producer.send("before");
            producer.send(value);
            producer.send("behind");
            List<Message<String>> messages = next(consumer, 3);
            same(texts(messages), List.of("before", value, "behind"));
            for (Message<String> message : messages) {
                consumer.acknowledge(message);
            }
            nothing(consumer);
        }
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            nothing(consumer);
        }
    }

    private static void metadata(Bed bed) throws Exception {
        try (Producer<String> producer = bed.producer(bed.topic()).producerName("named").create();
                Consumer<String> consumer = bed.subscribe(bed.topic())) {
            producer.newMessage()
                    .key("a key")
                    .property("p", "v")
                    .property("empty", "")
                    .eventTime(1234567890123L)
                    .value("v")
                    .send();
            producer.newMessage().keyBytes(new byte[] {0, (byte) 255}).value("w").send();
            Message<String> message = next(consumer);
            same(message.getKey(), "a key");
            same(message.getProperties(), Map.of("p", "v", "empty", ""));
            same(message.getEventTime(), 1234567890123L);
            same(message.getSequenceId(), 0L);
            same(message.getProducerName(), "named");
            same(message.getTopicName(), bed.topic());
            check(message.getPublishTime() > 1234567890123L, "it has no time");
            byte[] key = next(consumer).getKeyBytes();
            check(key.length == 2 && key[0] == 0 && key[1] == -1, "another key came");
        }
    }

    private static void nullValue(Bed bed) throws Exception {
        try (Producer<String> producer = bed.producer(bed.topic()).create();
                Consumer<String> consumer = bed.subscribe(bed.topic())) {
            producer.newMessage().key("k").value(null).send();
            producer.newMessage().key("k").value("").send();
            Message<String> message = next(consumer);
            same(message.getKey(), "k");
            same(message.getValue(), null);
            same(next(consumer).getValue(), "");
        }
    }

    private static void delayed(Bed bed) throws Exception {
        try (Producer<String> producer = bed.producer(bed.topic()).create();
                Consumer<String> consumer =
                        bed.consumer(bed.topic(), SubscriptionType.Shared).subscribe()) {
            long at = System.currentTimeMillis() + 2000;
            producer.newMessage().deliverAt(at).value("later").send();
            producer.newMessage().value("now").send();
            Set<String> came = new HashSet<>();
            for (int n = 0; n < 2; n++) {
                Message<String> message = next(consumer);
                boolean isEarly = System.currentTimeMillis() < at - 1000;
                check(!isEarly || message.getValue().equals("now"), "it came too early");
                came.add(message.getValue());
                consumer.acknowledge(message);
            }
            same(came, Set.of("now", "later"));
        }
    }

    private static void deduplication(Bed bed) throws Exception {
        for (int round = 0; round < 2; round++) {
            try (Producer<String> producer =
                    bed.producer(bed.topic()).producerName("p").create()) {
                same(producer.getLastSequenceId(), round == 0 ? -1L : 4L);
                for (int n = 0; n < 5; n++) {
                    producer.newMessage().sequenceId(n).value("m" + n).send();
                }
            }
        }
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            same(texts(next(consumer, 5)), values(0, 5));
            nothing(consumer);
        }
    }

    private static void exclusiveProducer(Bed bed) throws Exception {
        try (Producer<String> first =
                bed.producer(bed.topic()).accessMode(ProducerAccessMode.Exclusive).create()) {
            fails(
                    () -> bed.producer(bed.topic()).create(),
                    PulsarClientException.ProducerBusyException.class);
            fails(
                    () ->
                            bed.producer(bed.topic())
                                    .accessMode(ProducerAccessMode.Exclusive)
                                    .create(),
                    PulsarClientException.ProducerBusyException.class,
                    PulsarClientException.ProducerFencedException.class);
            first.send("m0");
        }
        bed.send(bed.topic(), 1);
    }

    private static void waitingProducer(Bed bed) throws Exception {
        Producer<String> first =
                bed.producer(bed.topic()).accessMode(ProducerAccessMode.Exclusive).create();
        CompletableFuture<Producer<String>> second =
                bed.producer(bed.topic())
                        .accessMode(ProducerAccessMode.WaitForExclusive)
                        .createAsync();
        first.send("m0");
        check(!second.isDone(), "it did not wait");
        first.close();
        second.get(Bed.PATIENCE_S, TimeUnit.SECONDS).send("m1");
        try (Consumer<String> consumer = bed.subscribe(bed.topic())) {
            same(texts(next(consumer, 2)), values(0, 2));
        }
        second.get().close();
    }

    private static void fencingProducer(Bed bed) throws Exception {
        try (Producer<String> first =
                        bed.producer(bed.topic())
                                .accessMode(ProducerAccessMode.Exclusive)
                                .create();
                Producer<String> second =
                        bed.producer(bed.topic())
                                .accessMode(ProducerAccessMode.ExclusiveWithFencing)
                                .create()) {
            second.send("m0");
            fails(
                    () -> first.send("m1"),
                    PulsarClientException.ProducerFencedException.class,
                    PulsarClientException.AlreadyClosedException.class);
            second.send("m2");
        }
    }

    private static void partitions(Bed bed) throws Exception {
        same(bed.client.getPartitionsForTopic(bed.topic()).get().size(), 3);
        try (Producer<String> producer = bed.producer(bed.topic()).create();
                Consumer<String> consumer = bed.subscribe(bed.topic())) {
            for (int n = 0; n < 30; n++) {
                producer.send("m" + n);
            }
            Set<String> topics = new HashSet<>();
            Map<String, Integer> seen = new HashMap<>();
            for (Message<String> message : next(consumer, 30)) {
                topics.add(message.getTopicName());
                int number = Integer.parseInt(message.getValue().substring(1));
                Integer before = seen.put(message.getTopicName(), number);
                check(before == null || before < number, "they are not in order");
                consumer.acknowledge(message);
            }
            same(topics.size(), 3);
            Set<String> ofKey = new HashSet<>();
            for (int n = 0; n < 10; n++) {
                producer.newMessage().key("the key").value("m" + n).send();
            }
            for (Message<String> message : next(consumer, 10)) {
                ofKey.add(message.getTopicName());
            }
            same(ofKey.size(), 1);
        }
        String second = bed.topic() + "-partition-1";
        try (Consumer<String> consumer =
                bed.consumer(second, SubscriptionType.Exclusive).subscriptionName("one").subscribe()) {
            same(next(consumer).getTopicName(), second);
        }
    }
}
