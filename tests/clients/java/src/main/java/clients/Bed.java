package clients;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** What scenarios share: one client, names of topics, and checks. */
final class Bed implements AutoCloseable {
    static final int PATIENCE_S = 30;
    /** How long nothing has to come for it to be "nothing". */
    static final int SILENCE_MS = 700;

    private static final BufferedReader INPUT =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    final PulsarClient client;
    final String url;
    private final String prefix;

    Bed(String url, String prefix) throws PulsarClientException {
        this(connected(url), url, prefix);
    }

    Bed(PulsarClient client, String url, String prefix) {
        this.client = client;
        this.url = url;
        this.prefix = prefix;
    }

    static PulsarClient connected(String url) throws PulsarClientException {
        return builder(url).enableTransaction(true).build();
    }

    static ClientBuilder builder(String url) {
        return PulsarClient.builder()
                .serviceUrl(url)
                .operationTimeout(PATIENCE_S, TimeUnit.SECONDS)
                .maxBackoffInterval(1, TimeUnit.SECONDS);
    }

    /** The same with another client. */
    Bed with(PulsarClient other) {
        return new Bed(other, url, prefix);
    }

    Bed of(String scenario) {
        return new Bed(client, url, prefix + "-" + scenario.replace('_', '-'));
    }

    String topic() {
        return "persistent://public/default/" + prefix;
    }

    String topic(String name) {
        return topic() + "-" + name;
    }

    ProducerBuilder<String> producer(String topic) {
        return client.newProducer(Schema.STRING).topic(topic).enableBatching(false);
    }

    ConsumerBuilder<String> consumer(String topic, SubscriptionType type) {
        return client.newConsumer(Schema.STRING)
                .topic(topic)
                .subscriptionName("s")
                .subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    /** A consumer whose position outlives it, from the first message on. */
    Consumer<String> subscribe(String topic) throws PulsarClientException {
        return consumer(topic, SubscriptionType.Exclusive).subscribe();
    }

    /** Sends m0, m1, ... one by one. */
    List<MessageId> send(String topic, int count) throws PulsarClientException {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<String> producer = producer(topic).create()) {
            for (int n = 0; n < count; n++) {
                ids.add(producer.send("m" + n));
            }
        }
        return ids;
    }

    /** Sends m0, m1, ... in one batch. */
    List<MessageId> sendBatch(String topic, int count) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<String> producer =
                client.newProducer(Schema.STRING)
                        .topic(topic)
                        .batchingMaxMessages(count)
                        .batchingMaxPublishDelay(1, TimeUnit.SECONDS)
                        .create()) {
            for (int n = 0; n < count; n++) {
                sent.add(producer.sendAsync("m" + n));
            }
            producer.flush();
        }
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> each : sent) {
            ids.add(each.get(PATIENCE_S, TimeUnit.SECONDS));
        }
        return ids;
    }

    static List<String> values(int from, int until) {
        List<String> values = new ArrayList<>();
        for (int n = from; n < until; n++) {
            values.add("m" + n);
        }
        return values;
    }

    static <T> Message<T> next(Consumer<T> consumer) throws PulsarClientException {
        Message<T> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        check(message != null, "no message came");
        return message;
    }

    static List<Message<String>> next(Consumer<String> consumer, int count)
            throws PulsarClientException {
        List<Message<String>> messages = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            messages.add(next(consumer));
        }
        return messages;
    }

    static void nothing(Consumer<String> consumer) throws PulsarClientException {
        Message<String> message = consumer.receive(SILENCE_MS, TimeUnit.MILLISECONDS);
        check(message == null, message == null ? "" : "a message came: " + message.getValue());
    }

    static List<String> texts(Collection<Message<String>> messages) {
        return messages.stream().map(Message::getValue).toList();
    }

    static void same(Object found, Object expected) {
        check(Objects.equals(found, expected), "expected " + expected + ", found " + found);
    }

    static void sameSet(Collection<?> found, Collection<?> expected) {
        same(found.size(), expected.size());
        same(new HashSet<>(found), new HashSet<>(expected));
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    interface Act {
        void run() throws Exception;
    }

    /** The act fails with one of these classes, itself or as a cause. */
    static void fails(Act act, Class<?>... kinds) throws Exception {
        try {
            act.run();
        } catch (Exception thrown) {
            for (Throwable each = thrown; each != null; each = each.getCause()) {
                for (Class<?> kind : kinds) {
                    if (kind.isInstance(each)) {
                        return;
                    }
                }
            }
            throw thrown;
        }
        throw new AssertionError("nothing was raised");
    }

    /** Tells whoever runs this to kill the server and start another, and waits until it has. */
    static void killed() throws Exception {
        pause("kill");
    }

    /** Asks whoever runs this for something, and waits until it is done. */
    static synchronized void pause(String wish) {
        System.out.println("{\"pause\": \"" + wish + "\"}");
        System.out.flush();
        try {
            INPUT.readLine();
        } catch (IOException thrown) {
            throw new AssertionError(thrown);
        }
    }

    @Override
    public void close() throws PulsarClientException {
        if (client != null) {
            client.close();
        }
    }
}
