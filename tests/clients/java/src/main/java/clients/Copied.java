package clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Copies a topic to another in transactions: Copied URL INPUT OUTPUT, with the plan in COPY, whose fields
 * tests/clients/copied.py explains. It goes on after any error, until it is killed, as it may be at any
 * moment.
 */
public final class Copied {
    /** How long a transaction waits for one more message. */
    private static final int LULL_MS = 200;

    private static final int TXN_TIMEOUT_S = 10;
    private static final int ANSWER_S = 20;

    private final PulsarClient client;
    private final Producer<byte[]> output;
    private final Consumer<byte[]> input;
    private final int most;

    private Copied(PulsarClient client, String from, String to, String plan) throws Exception {
        this.client = client;
        this.most = field(plan, "Most");
        this.output =
                tried(
                        () ->
                                client.newProducer()
                                        .topic(to)
                                        .sendTimeout(ANSWER_S, TimeUnit.SECONDS)
                                        .blockIfQueueFull(true)
                                        .batchingMaxPublishDelay(
                                                field(plan, "DelayMs"), TimeUnit.MILLISECONDS)
                                        .create());
        this.input =
                tried(
                        () ->
                                client.newConsumer()
                                        .topic(from)
                                        .subscriptionName("copier")
                                        .subscriptionType(SubscriptionType.Shared)
                                        .subscriptionInitialPosition(
                                                SubscriptionInitialPosition.Earliest)
                                        .receiverQueueSize(field(plan, "Queue"))
                                        .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                                        .subscribe());
    }

    public static void main(String[] args) throws Exception {
        PulsarClient client = Bed.connected(args[0]);
        Copied run = new Copied(client, args[1], args[2], System.getenv("COPY"));
        while (true) {
            List<Message<byte[]>> messages = run.received();
            if (messages.isEmpty()) {
                continue;
            }
            try {
                run.copy(messages);
            } catch (Exception error) { // the server went away: they come again
                System.err.println(messages.size() + " " + error);
            }
        }
    }

    /** Does something again until it succeeds: the server may be away. */
    private static <T> T tried(Callable<T> act) throws InterruptedException {
        while (true) {
            try {
                return act.call();
            } catch (Exception error) {
                System.err.println(error);
                Thread.sleep(100);
            }
        }
    }

    /** The next messages: none if none comes for a while. What was given back may come twice. */
    private List<Message<byte[]>> received() throws Exception {
        List<Message<byte[]>> messages = new ArrayList<>();
        Set<String> values = new HashSet<>();
        while (messages.size() < most) {
            Message<byte[]> message = input.receive(LULL_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            if (values.add(new String(message.getValue(), StandardCharsets.UTF_8))) {
                messages.add(message);
            }
        }
        return messages;
    }

    private void copy(List<Message<byte[]>> messages) throws Exception {
        Transaction txn =
                tried(
                        () ->
                                client.newTransaction()
                                        .withTransactionTimeout(TXN_TIMEOUT_S, TimeUnit.SECONDS)
                                        .build()
                                        .get(ANSWER_S, TimeUnit.SECONDS));
        List<CompletableFuture<?>> sent = new ArrayList<>();
        List<CompletableFuture<?>> taken = new ArrayList<>();
        for (Message<byte[]> message : messages) {
            sent.add(output.newMessage(txn).value(message.getValue()).sendAsync());
            taken.add(input.acknowledgeAsync(message.getMessageId(), txn));
        }
        Exception failure = null;
        for (CompletableFuture<?> answer : sent) {
            try {
                answer.get(ANSWER_S, TimeUnit.SECONDS);
            } catch (Exception error) {
                failure = error;
            }
        }
        for (int n = 0; n < taken.size(); n++) {
            try {
                taken.get(n).get(ANSWER_S, TimeUnit.SECONDS);
            } catch (Exception error) { // an abort gives the others back
                failure = error;
                input.negativeAcknowledge(messages.get(n));
            }
        }
        if (failure != null) {
            txn.abort().get(ANSWER_S, TimeUnit.SECONDS);
            throw failure;
        }
        txn.commit().get(ANSWER_S, TimeUnit.SECONDS);
    }

    private static int field(String plan, String name) {
        Matcher found = Pattern.compile("\"" + name + "\": (\\d+)").matcher(plan);
        if (!found.find()) {
            throw new IllegalArgumentException("the plan has no " + name);
        }
        return Integer.parseInt(found.group(1));
    }
}
