package clients;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Messages a second: Rates URL TOPIC COUNT. Messages of 100 bytes are sent in batches of up to 1,000, and
 * read; then they are read again, with a transaction open that has sent to the topic before all of them. It
 * prints these three rates; the last is 0 if nothing comes for 5 seconds.
 */
public final class Rates {
    private static final int SILENCE_S = 5;

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[2]);
        try (PulsarClient client = Bed.connected(args[0])) {
            send(client, args[1] + "-warm", count / 4);
            System.out.println(send(client, args[1], count));
            System.out.println(read(client, args[1], count));
            Transaction txn =
                    client.newTransaction()
                            .withTransactionTimeout(2, TimeUnit.MINUTES)
                            .build()
                            .get(Bed.PATIENCE_S, TimeUnit.SECONDS);
            String open = args[1] + "-open";
            try (Producer<byte[]> producer =
                    client.newProducer()
                            .topic(open)
                            .enableBatching(false)
                            .sendTimeout(0, TimeUnit.SECONDS)
                            .create()) {
                producer.newMessage(txn).value(new byte[100]).send();
            }
            send(client, open, count);
            System.out.println(read(client, open, count));
            txn.abort().get(Bed.PATIENCE_S, TimeUnit.SECONDS);
        }
        System.exit(0);
    }

    private static long send(PulsarClient client, String topic, int count) throws Exception {
        try (Producer<byte[]> producer =
                client.newProducer()
                        .topic(topic)
                        .batchingMaxMessages(1000)
                        .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS)
                        .maxPendingMessages(50_000)
                        .blockIfQueueFull(true)
                        .sendTimeout(0, TimeUnit.SECONDS)
                        .create()) {
            byte[] value = new byte[100];
            CompletableFuture<MessageId> last = null;
            long began = System.nanoTime();
            for (int n = 0; n < count; n++) {
                last = producer.sendAsync(value);
            }
            producer.flush();
            last.get(Bed.PATIENCE_S, TimeUnit.SECONDS);
            return Math.round(count * 1e9 / (System.nanoTime() - began));
        }
    }

    private static long read(PulsarClient client, String topic, int count) throws Exception {
        try (Reader<byte[]> reader =
                client.newReader()
                        .topic(topic)
                        .startMessageId(MessageId.earliest)
                        .receiverQueueSize(10_000)
                        .create()) {
            long began = System.nanoTime();
            long last = began;
            int seen = 0;
            while (seen < count) {
                Message<byte[]> message = reader.readNext(SILENCE_S, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                seen++;
                last = System.nanoTime();
            }
            return seen == 0 ? 0 : Math.round(seen * 1e9 / (last - began));
        }
    }
}
