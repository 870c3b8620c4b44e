package clients;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * The client of `python -m bench guarantees`: Guarantees URL DEPTH SECONDS WARM_UP PATIENCE. Each of DEPTH
 * threads receives 10 messages of `input`, sends each to `a` and `b`, acknowledges the 10 and commits, in one
 * transaction. It prints what `bench/guarantees/worker.py` does.
 */
public final class Guarantees {
    private static final int BATCH = 10;
    private static final int TIMEOUT_S = 10;

    private record End(long at, long took) {}

    private final List<End> ends = Collections.synchronizedList(new ArrayList<>());
    private final List<Producer<byte[]>> producers = new ArrayList<>();
    private final AtomicInteger errors = new AtomicInteger();
    private final AtomicInteger moved = new AtomicInteger();
    private final AtomicInteger opened = new AtomicInteger();
    private final AtomicLong last = new AtomicLong(System.nanoTime());
    private final PulsarClient client;
    private final boolean isTimed;
    private final double patienceS;
    private volatile String error = "";
    private volatile boolean isOver;

    private Guarantees(PulsarClient client, boolean isTimed, double patienceS) {
        this.client = client;
        this.isTimed = isTimed;
        this.patienceS = patienceS;
    }

    public static void main(String[] args) throws Exception {
        int depth = Integer.parseInt(args[1]);
        double seconds = Double.parseDouble(args[2]);
        PulsarClient client = Bed.connected(args[0]);
        new Guarantees(client, seconds > 0, Double.parseDouble(args[4]))
                .run(depth, seconds, Double.parseDouble(args[3]));
        System.in.read();
        System.exit(0);
    }

    private void run(int depth, double seconds, double warmUp) throws Exception {
        for (String topic : List.of("a", "b")) {
            producers.add(
                    client.newProducer()
                            .topic("persistent://public/default/" + topic)
                            .batchingMaxPublishDelay(1, TimeUnit.MILLISECONDS)
                            .blockIfQueueFull(true)
                            .sendTimeout(0, TimeUnit.SECONDS)
                            .create());
        }
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < depth; n++) {
            Thread thread = new Thread(this::loop);
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        while (isTimed && (opened.get() < depth || ends.isEmpty()) && !isOver) {
            Thread.sleep(10);
        }
        Thread.sleep((long) (warmUp * 1000));
        System.out.println("ready");
        long began = System.nanoTime();
        while (threads.stream().anyMatch(Thread::isAlive) && !isOver) {
            if (isTimed && System.nanoTime() > began + seconds * 1e9) {
                break;
            }
            Thread.sleep(10);
        }
        isOver = true;
        System.out.println(figures(began));
    }

    private void loop() {
        Consumer<byte[]> consumer = null;
        while (!isOver) {
            Messages<byte[]> messages = null;
            try {
                if (consumer == null) {
                    consumer = consumer();
                    opened.incrementAndGet();
                    last.set(System.nanoTime()); // to subscribe may take longer than the patience
                }
                long began = System.nanoTime();
                messages = consumer.batchReceive();
                if (messages.size() > 0) {
                    move(consumer, messages);
                    long now = System.nanoTime();
                    ends.add(new End(now, now - began));
                    moved.addAndGet(messages.size());
                    last.set(now);
                } else if (!consumer.isConnected()) {
                    last.set(System.nanoTime()); // the service is down
                } else if (!isTimed && System.nanoTime() > last.get() + patienceS * 1e9) {
                    return;
                }
            } catch (Exception failure) {
                errors.incrementAndGet();
                error = String.valueOf(failure).replaceAll("[^ -~]|[\"\\\\]", " ");
                last.set(System.nanoTime());
                isOver = isOver || isTimed;
                if (messages != null) {
                    consumer.negativeAcknowledge(messages);
                }
            }
        }
    }

    private Consumer<byte[]> consumer() throws Exception {
        return client.newConsumer()
                .topic("persistent://public/default/input")
                .subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared)
                .receiverQueueSize(2 * BATCH)
                .negativeAckRedeliveryDelay(500, TimeUnit.MILLISECONDS)
                .batchReceivePolicy(
                        BatchReceivePolicy.builder()
                                .maxNumMessages(BATCH)
                                .timeout(200, TimeUnit.MILLISECONDS)
                                .build())
                .subscribe();
    }

    private void move(Consumer<byte[]> consumer, Messages<byte[]> messages) throws Exception {
        Transaction txn =
                client.newTransaction()
                        .withTransactionTimeout(TIMEOUT_S, TimeUnit.SECONDS)
                        .build()
                        .get(TIMEOUT_S, TimeUnit.SECONDS);
        List<CompletableFuture<?>> futures = new ArrayList<>();
        List<MessageId> ids = new ArrayList<>();
        for (Message<byte[]> message : messages) {
            ids.add(message.getMessageId());
            for (Producer<byte[]> producer : producers) {
                futures.add(producer.newMessage(txn).value(message.getValue()).sendAsync());
            }
        }
        futures.add(consumer.acknowledgeAsync(ids, txn));
        try {
            CompletableFuture.allOf(futures.toArray(new CompletableFuture[0]))
                    .get(TIMEOUT_S, TimeUnit.SECONDS);
        } catch (Exception failure) {
            txn.abort();
            throw failure;
        }
        txn.commit().get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private String figures(long began) {
        List<End> timed =
                new ArrayList<>(ends).stream().filter(end -> end.at() >= began).toList();
        long[] took = timed.stream().mapToLong(End::took).sorted().toArray();
        long until = timed.stream().mapToLong(End::at).max().orElse(began + 1_000_000_000);
        return String.format(
                Locale.ROOT,
                "{\"rate\": %f, \"p50_ms\": %f, \"p99_ms\": %f, \"ended\": %d, \"moved\": %d, "
                        + "\"errors\": %d, \"error\": \"%s\"}",
                timed.size() * 1e9 / (until - began),
                took.length == 0 ? 0 : took[took.length / 2] / 1e6,
                took.length == 0 ? 0 : took[took.length * 99 / 100] / 1e6,
                took.length,
                moved.get(),
                errors.get(),
                error);
    }
}
