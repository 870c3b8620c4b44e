package clients;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Sends what a plan says to a topic: Answered URL TOPIC, with the plan in PLAN, whose fields
 * tests/clients/answered.py explains. It prints the messages that were answered, and of transactions those
 * whose commit was.
 */
public final class Answered {
    private final String text;
    private final List<String> stored = new ArrayList<>();
    private final List<Integer> kills = new ArrayList<>();
    private int failed;

    private Answered(String text) {
        this.text = text;
        int count = field("Count");
        int total = field("Kills");
        for (int kill = 1; kill <= total; kill++) {
            kills.add(count * kill / (total + 1));
        }
    }

    public static void main(String[] args) throws Exception {
        Answered run = new Answered(System.getenv("PLAN"));
        try (PulsarClient client = Bed.connected(args[0])) {
            run.send(client, args[1]);
        }
        System.out.printf(
                "{\"answered\": [%s], \"failed\": %d}%n",
                run.stored.stream().map(n -> "\"" + n + "\"").collect(Collectors.joining(", ")),
                run.failed);
        System.out.flush();
        System.exit(0);
    }

    private void send(PulsarClient client, String topic) throws Exception {
        ProducerBuilder<String> builder =
                client.newProducer(Schema.STRING)
                        .topic(topic)
                        .sendTimeout(0, TimeUnit.SECONDS)
                        .blockIfQueueFull(true)
                        .maxPendingMessages(1000)
                        .batchingMaxPublishDelay(field("DelayMs"), TimeUnit.MILLISECONDS);
        if (field("Keys") > 0) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        if (text.contains("\"Named\": true")) {
            builder.producerName("own-" + topic);
        }
        int count = field("Count");
        int step = field("Txn") > 0 ? field("Txn") : count;
        try (Producer<String> producer = builder.create()) {
            for (int first = 0; first < count; first += step) {
                part(client, producer, first, Math.min(first + step, count));
            }
        }
    }

    private void part(PulsarClient client, Producer<String> producer, int first, int stop)
            throws Exception {
        Transaction txn = null;
        while (field("Txn") > 0 && txn == null) {
            try {
                txn =
                        client.newTransaction()
                                .withTransactionTimeout(1, TimeUnit.MINUTES)
                                .build()
                                .get();
            } catch (Exception error) { // the server went away
                Thread.sleep(100);
            }
        }
        List<CompletableFuture<?>> sent = new ArrayList<>();
        List<String> values = new ArrayList<>();
        for (int n = first; n < stop; n++) {
            String value = String.valueOf(n);
            boolean isInTxn = txn != null;
            CompletableFuture<MessageId> future = message(producer, txn, n).sendAsync();
            sent.add(
                    future.handle(
                            (id, error) -> {
                                if (error != null) {
                                    add(List.of(), 1);
                                } else if (!isInTxn) {
                                    add(List.of(value), 0);
                                } else {
                                    synchronized (values) {
                                        values.add(value);
                                    }
                                }
                                return null;
                            }));
        }
        producer.flushAsync();
        for (CompletableFuture<?> each : sent) {
            each.get();
        }
        if (txn == null) {
            return;
        }
        try {
            txn.commit().get();
            add(values, 0);
        } catch (Exception error) { // nobody knows what became of it
            add(List.of(), values.size());
        }
    }

    private TypedMessageBuilder<String> message(
            Producer<String> producer, Transaction txn, int n) {
        TypedMessageBuilder<String> message =
                txn == null ? producer.newMessage() : producer.newMessage(txn);
        message.value(String.valueOf(n));
        if (field("Gap") > 0) {
            message.sequenceId((long) n * field("Gap"));
        }
        int refused = field("Refused");
        if (refused > 0 && n % refused == refused - 1) {
            message.key("x".repeat(70_000));
        } else if (field("Keys") > 0) {
            message.key("key " + n % field("Keys"));
        }
        if (field("Delayed") > 0 && n % field("Delayed") == 1) {
            message.deliverAfter(1, TimeUnit.MILLISECONDS);
        }
        return message;
    }

    /** Counts answers, and has the server killed when some of them have come. */
    private synchronized void add(List<String> values, int more) {
        stored.addAll(values);
        failed += more;
        while (!kills.isEmpty() && stored.size() + failed >= kills.get(0)) {
            kills.remove(0);
            System.out.println("{\"pause\": \"kill\"}");
            System.out.flush();
        }
    }

    private int field(String name) {
        Matcher found = Pattern.compile("\"" + name + "\": (\\d+)").matcher(text);
        return found.find() ? Integer.parseInt(found.group(1)) : 0;
    }
}
