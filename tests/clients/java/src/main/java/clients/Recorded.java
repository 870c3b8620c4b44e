package clients;

import java.io.IOException;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import sun.misc.Signal;

/**
 * A producer or a consumer that records its calls: Recorded URL TOPIC OUTPUT, with its part in RECORDED, whose
 * fields tests/clients/recorded.py explains. It goes on after any error until SIGTERM, or until it is killed, as
 * it may be at any moment.
 */
public final class Recorded {
    private static final int PAUSE_MS = 50;
    private static final int LULL_MS = 300;
    private static final int ANSWER_S = 20;
    private static final int TXN_TIMEOUT_S = 10;

    private final CountDownLatch over;
    private final PulsarClient client;
    private final Log log;
    private final String part;
    private final String topic;
    private final String output;

    private Recorded(
            PulsarClient client,
            Log log,
            String part,
            String topic,
            String output,
            CountDownLatch over) {
        this.over = over;
        this.client = client;
        this.log = log;
        this.part = part;
        this.topic = topic;
        this.output = output;
    }

    public static void main(String[] args) throws Exception {
        String part = System.getenv("RECORDED");
        CountDownLatch over = new CountDownLatch(1);
        Signal.handle(new Signal("TERM"), signal -> over.countDown());
        PulsarClient client = Bed.connected(args[0]);
        Log log = new Log(word(part, "File"), word(part, "Name"));
        Recorded run = new Recorded(client, log, part, args[1], args[2], over);
        if (word(part, "Role").equals("producer")) {
            run.produce();
        } else {
            run.consume();
        }
        Runtime.getRuntime().halt(0);
    }

    /** Whether SIGTERM has come within this time. */
    private boolean ends(int pauseMs) throws InterruptedException {
        return over.await(pauseMs, TimeUnit.MILLISECONDS);
    }

    /** Does something again until it succeeds: the server may be away. At the end it returns null. */
    private <T> T tried(Callable<T> act) throws InterruptedException {
        while (!ends(PAUSE_MS)) {
            try {
                return act.call();
            } catch (Exception error) {
                System.err.println(error);
            }
        }
        return null;
    }

    // --- producing ---------------------------------------------------------------------------

    private void produce() throws Exception {
        int delay = field("DelayMs");
        ProducerBuilder<String> builder =
                client.newProducer(Schema.STRING)
                        .topic(topic)
                        .producerName(word("Name"))
                        .sendTimeout(0, TimeUnit.SECONDS)
                        .blockIfQueueFull(true)
                        .enableBatching(delay > 0)
                        .batchingMaxPublishDelay(Math.max(delay, 1), TimeUnit.MILLISECONDS);
        if (word("Kind").equals("key_shared")) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        Producer<String> producer = tried(builder::create);
        int number = field("First");
        List<CompletableFuture<?>> sent = new ArrayList<>();
        while (producer != null && !ends(PAUSE_MS)) {
            sent.clear();
            for (int n = 0; n < field("Burst"); n++) {
                sent.add(send(producer, number++));
            }
            producer.flushAsync();
            CompletableFuture.allOf(sent.toArray(new CompletableFuture<?>[0])).get();
        }
        if (producer != null) {
            producer.close();
        }
    }

    private CompletableFuture<?> send(Producer<String> producer, int number) throws IOException {
        String value = word("Name") + ":" + number;
        String session = word("Name") + " " + field("Life");
        TypedMessageBuilder<String> message =
                producer.newMessage().value(value).sequenceId(number);
        String args = pair("topic", topic) + ", " + pair("value", value) + ", ";
        args += pair("producer", word("Name")) + ", \"sequence\": " + number;
        if (field("Keys") > 0) {
            String key = "k" + number % field("Keys");
            message.key(key);
            args += ", " + pair("key", key);
            if (word("Kind").equals("key_shared")) { // a batch for each key has an order of its own
                session += " " + key;
            }
        }
        if (field("Delayed") == 0) { // delayed messages go ahead of batches
            args += ", " + pair("session", session);
        } else if (number % field("Delayed") == 1) {
            long due = System.currentTimeMillis() + 400;
            message.deliverAt(due);
            args += ", \"deliver_at_ms\": " + due;
        }
        int call = log.invoke("send", args);
        return message.sendAsync()
                .handle(
                        (id, error) -> {
                            log.end(call, error, error == null ? receipt(id) : "");
                            return null;
                        });
    }

    private static String receipt(MessageId id) {
        MessageIdAdv place = (MessageIdAdv) id;
        if (place.getLedgerId() < 0) {
            return "\"duplicate\": true";
        }
        return place(place);
    }

    private static String place(MessageIdAdv id) {
        String text = id.getLedgerId() + ":" + id.getEntryId() + ":" + id.getBatchIndex();
        return "\"partition\": " + Math.max(id.getPartitionIndex(), 0) + ", " + pair("id", text);
    }

    // --- consuming ---------------------------------------------------------------------------

    private void consume() throws Exception {
        Producer<String> copies = null;
        if (field("Txn") > 0) {
            copies =
                    tried(
                            () ->
                                    client.newProducer(Schema.STRING)
                                            .topic(output)
                                            .sendTimeout(ANSWER_S, TimeUnit.SECONDS)
                                            .blockIfQueueFull(true)
                                            .create());
        }
        for (int count = 1; !ends(0); count++) {
            String name = word("Name") + "." + field("Life") + "." + count;
            String where = pair("topic", topic) + ", " + pair("subscription", "s");
            String args = where + ", " + pair("consumer", name);
            Consumer<String> consumer = tried(() -> subscribed(args));
            if (consumer != null) {
                receive(consumer, copies, args);
            }
        }
    }

    private Consumer<String> subscribed(String where) throws Exception {
        String kind = word("Kind");
        String args = where + ", " + pair("kind", kind) + ", " + pair("initial", "earliest");
        int call = log.invoke("subscribe", args + ", \"is_ahead\": true");
        Map<String, SubscriptionType> types =
                Map.of(
                        "exclusive", SubscriptionType.Exclusive,
                        "failover", SubscriptionType.Failover,
                        "shared", SubscriptionType.Shared,
                        "key_shared", SubscriptionType.Key_Shared);
        try {
            Consumer<String> consumer =
                    client.newConsumer(Schema.STRING)
                            .topic(topic)
                            .subscriptionName("s")
                            .subscriptionType(types.get(kind))
                            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                            .receiverQueueSize(field("Queue"))
                            .isAckReceiptEnabled(true)
                            .enableBatchIndexAcknowledgment(true)
                            .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS) // else it answers
                            // for a part of a batch before it has sent the acknowledgement
                            .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                            .subscribe();
            log.end(call, null, "");
            return consumer;
        } catch (PulsarClientException error) {
            log.end(call, error, "");
            throw error;
        }
    }

    /** Receives some messages, acknowledges them and closes the consumer. */
    private void receive(Consumer<String> consumer, Producer<String> copies, String where)
            throws Exception {
        for (int count = 0; count < field("Close") && !ends(0); ) {
            List<Message<String>> messages = received(consumer, where);
            count += messages.size();
            if (messages.isEmpty()) {
                continue;
            }
            if (copies != null) {
                copy(consumer, copies, messages, where);
            } else {
                acknowledge(consumer, messages.get(0), where);
            }
        }
        int call = log.invoke("close", where);
        try {
            consumer.close();
            log.end(call, null, "");
        } catch (PulsarClientException error) {
            log.end(call, error, "");
        }
    }

    /** The next message, or those for a transaction; none if none comes for a while. */
    private List<Message<String>> received(Consumer<String> consumer, String where)
            throws Exception {
        List<Message<String>> messages = new ArrayList<>();
        Set<String> seen = new HashSet<>(); // what was given back may come twice
        while (messages.size() < Math.max(field("Txn"), 1)) {
            int call = log.invoke("receive", where);
            Message<String> message = consumer.receive(LULL_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                log.end(call, null, "\"messages\": []");
                break;
            }
            String row = pair("topic", topic) + ", " + pair("value", message.getValue()) + ", ";
            row += place((MessageIdAdv) message.getMessageId());
            log.end(call, null, "\"messages\": [{" + row + "}]");
            if (seen.add(message.getValue())) {
                messages.add(message);
            }
        }
        return messages;
    }

    private void acknowledge(Consumer<String> consumer, Message<String> message, String where) {
        boolean isCumulative = part.contains("\"Cumulative\": true");
        String args = where + ", \"values\": [\"" + message.getValue() + "\"]";
        int call = log.invoke("acknowledge", args + (isCumulative ? ", \"cumulative\": true" : ""));
        try {
            if (isCumulative) {
                consumer.acknowledgeCumulative(message);
            } else {
                consumer.acknowledge(message);
            }
            log.end(call, null, "");
        } catch (PulsarClientException error) {
            log.end(call, error, "");
        }
    }

    /** Copies messages to another topic and acknowledges them, in a transaction. */
    private void copy(
            Consumer<String> consumer,
            Producer<String> copies,
            List<Message<String>> messages,
            String where)
            throws Exception {
        int begin = log.invoke("begin", "");
        Transaction txn;
        try {
            txn =
                    client.newTransaction()
                            .withTransactionTimeout(TXN_TIMEOUT_S, TimeUnit.SECONDS)
                            .build()
                            .get(ANSWER_S, TimeUnit.SECONDS);
        } catch (Exception error) {
            log.end(begin, error, "");
            giveBack(consumer, messages, where);
            return;
        }
        String name = txn.getTxnID().getMostSigBits() + ":" + txn.getTxnID().getLeastSigBits();
        String inTxn = pair("txn", name);
        log.end(begin, null, inTxn);
        List<CompletableFuture<Boolean>> sent = new ArrayList<>();
        List<CompletableFuture<Boolean>> taken = new ArrayList<>();
        for (Message<String> message : messages) {
            String copy = message.getValue() + "@" + name;
            String args = pair("topic", output) + ", " + pair("value", copy) + ", " + inTxn;
            int sending = log.invoke("send", args);
            sent.add(answered(copies.newMessage(txn).value(copy).sendAsync(), sending));
            String values = "\"values\": [\"" + message.getValue() + "\"], ";
            int taking = log.invoke("acknowledge", where + ", " + values + inTxn);
            taken.add(answered(consumer.acknowledgeAsync(message.getMessageId(), txn), taking));
        }
        boolean isDone = true;
        for (CompletableFuture<Boolean> each : sent) {
            isDone &= each.get();
        }
        List<Message<String>> refused = new ArrayList<>();
        for (int n = 0; n < taken.size(); n++) {
            if (!taken.get(n).get()) {
                refused.add(messages.get(n));
            }
        }
        isDone &= refused.isEmpty();
        int call = log.invoke(isDone ? "commit" : "abort", inTxn);
        answered(isDone ? txn.commit() : txn.abort(), call).get();
        giveBack(consumer, refused, where); // the abort gives the others back
    }

    /** Whether a call succeeds, which is recorded. */
    private CompletableFuture<Boolean> answered(CompletableFuture<?> answer, int call) {
        return answer.orTimeout(ANSWER_S, TimeUnit.SECONDS)
                .handle(
                        (done, error) -> {
                            log.end(call, error, "");
                            return error == null;
                        });
    }

    /** The client asks for messages again after a while, so nobody knows when the call ends. */
    private void giveBack(Consumer<String> consumer, List<Message<String>> messages, String where) {
        for (Message<String> message : messages) {
            int call =
                    log.invoke("nack", where + ", \"values\": [\"" + message.getValue() + "\"]");
            consumer.negativeAcknowledge(message);
            log.end(call, new IllegalStateException("asked for later"), "");
        }
    }

    // --- the record --------------------------------------------------------------------------

    /** Writes the calls of this process; tests/history/events.py says what an event has. */
    private static final class Log {
        private final Writer file;
        private final String process;
        private final Map<Integer, String> ops = new HashMap<>();
        private int calls;

        Log(String path, String process) throws IOException {
            this.file =
                    Files.newBufferedWriter(
                            Path.of(path), StandardCharsets.UTF_8, StandardOpenOption.APPEND);
            this.process = process;
        }

        synchronized int invoke(String op, String args) {
            calls++;
            ops.put(calls, op);
            write("invoke", op, calls, "\"args\": {" + args + "}");
            return calls;
        }

        /** Records the end of a call; what fails may still have happened. */
        synchronized void end(int call, Throwable error, String answer) {
            String op = ops.remove(call);
            if (error != null) {
                write("unknown", op, call, pair("error", error.getClass().getSimpleName()));
            } else {
                write("ok", op, call, "\"answer\": {" + answer + "}");
            }
        }

        private void write(String type, String op, int call, String more) {
            String event = "{\"n\": " + System.nanoTime(); // CLOCK_MONOTONIC, as in Python
            event += ", \"at\": " + System.currentTimeMillis() + ", \"call\": " + call;
            event += ", " + pair("process", process) + ", " + pair("type", type);
            try {
                file.write(event + ", " + pair("op", op) + ", " + more + "}\n");
                file.flush();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static String pair(String name, String value) {
        return "\"" + name + "\": \"" + value + "\"";
    }

    private String word(String name) {
        return word(part, name);
    }

    private static String word(String part, String name) {
        return matched(part, name, "\"([^\"]*)\"");
    }

    private int field(String name) {
        return Integer.parseInt(matched(part, name, "(\\d+)"));
    }

    private static String matched(String part, String name, String value) {
        Matcher found = Pattern.compile("\"" + name + "\": " + value).matcher(part);
        if (!found.find()) {
            throw new IllegalArgumentException("the part has no " + name);
        }
        return found.group(1);
    }
}
