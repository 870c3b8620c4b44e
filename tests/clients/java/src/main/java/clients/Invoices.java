package clients;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Adds up invoice lines: Invoices URL LINES TOTALS. Lines are "quantity,amount"; of each batch the number
 * of lines and the sums go to TOTALS, in the transaction that acknowledges the lines. It may be killed
 * at any moment, and so may the server. It goes on until it is killed.
 */
public final class Invoices {
    static final int BATCH = 4000;

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = Bed.connected(args[0]);
                Producer<String> totals =
                        client.newProducer(Schema.STRING)
                                .topic(args[2])
                                .enableBatching(false)
                                .sendTimeout(0, TimeUnit.SECONDS)
                                .create()) {
            while (true) {
                try (Consumer<String> lines = subscribe(client, args[1])) {
                    work(client, lines, totals);
                } catch (Exception error) { // the server went away: begin again
                    System.err.println(error);
                    Thread.sleep(500);
                }
            }
        }
    }

    private static Consumer<String> subscribe(PulsarClient client, String topic) throws Exception {
        return client.newConsumer(Schema.STRING)
                .topic(topic)
                .subscriptionName("adder")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .receiverQueueSize(2 * BATCH)
                .batchReceivePolicy(
                        BatchReceivePolicy.builder()
                                .maxNumMessages(BATCH)
                                .maxNumBytes(-1)
                                .timeout(1, TimeUnit.SECONDS)
                                .build())
                .subscribe();
    }

    private static void work(
            PulsarClient client, Consumer<String> lines, Producer<String> totals) throws Exception {
        while (true) {
            Messages<String> batch = lines.batchReceive();
            if (batch.size() == 0) {
                continue;
            }
            Transaction txn =
                    client.newTransaction()
                            .withTransactionTimeout(10, TimeUnit.SECONDS)
                            .build()
                            .get(20, TimeUnit.SECONDS);
            try {
                add(batch, lines, totals, txn);
                txn.commit().get(20, TimeUnit.SECONDS);
            } catch (Exception error) {
                txn.abort(); // if it was committed after all, this is refused
                throw error;
            }
        }
    }

    private static void add(
            Messages<String> batch,
            Consumer<String> lines,
            Producer<String> totals,
            Transaction txn)
            throws Exception {
        long quantity = 0;
        long amount = 0;
        List<MessageId> ids = new ArrayList<>();
        for (Message<String> message : batch) {
            String[] parts = message.getValue().split(",");
            quantity += Long.parseLong(parts[0]);
            amount += Long.parseLong(parts[1]);
            ids.add(message.getMessageId());
        }
        String sum = ids.size() + "," + quantity + "," + amount;
        totals.newMessage(txn).value(sum).sendAsync().get(20, TimeUnit.SECONDS);
        lines.acknowledgeAsync(ids, txn).get(20, TimeUnit.SECONDS);
    }
}
