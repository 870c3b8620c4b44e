package clients;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions a second: Bench URL TOPIC COUNT AT_ONCE. Each sends one message of 100 bytes to each of
 * two topics, and commits. It prints how many a second, after a warm-up.
 */
public final class Bench {
    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[2]);
        int atOnce = Integer.parseInt(args[3]);
        try (PulsarClient client = Bed.connected(args[0])) {
            List<Producer<byte[]>> producers = new ArrayList<>();
            for (String side : List.of("a", "b")) {
                producers.add(
                        client.newProducer()
                                .topic(args[1] + side)
                                .enableBatching(false)
                                .sendTimeout(0, TimeUnit.SECONDS)
                                .create());
            }
            run(client, producers, Math.min(count, 200), atOnce);
            long began = System.nanoTime();
            run(client, producers, count, atOnce);
            System.out.println(Math.round(count * 1e9 / (System.nanoTime() - began)));
        }
        System.exit(0);
    }

    private static void run(
            PulsarClient client, List<Producer<byte[]>> producers, int count, int atOnce)
            throws Exception {
        ArrayDeque<CompletableFuture<Void>> open = new ArrayDeque<>();
        for (int n = 0; n < count; n++) {
            if (open.size() == atOnce) {
                open.remove().get();
            }
            open.add(one(client, producers));
        }
        for (CompletableFuture<Void> each : open) {
            each.get();
        }
    }

    private static CompletableFuture<Void> one(
            PulsarClient client, List<Producer<byte[]>> producers) {
        return client.newTransaction()
                .withTransactionTimeout(1, TimeUnit.MINUTES)
                .build()
                .thenCompose(txn -> sent(producers, txn).thenCompose(nothing -> txn.commit()));
    }

    private static CompletableFuture<Void> sent(
            List<Producer<byte[]>> producers, Transaction txn) {
        List<CompletableFuture<?>> sent = new ArrayList<>();
        for (Producer<byte[]> producer : producers) {
            sent.add(producer.newMessage(txn).value(new byte[100]).sendAsync());
        }
        return CompletableFuture.allOf(sent.toArray(new CompletableFuture[0]));
    }
}
