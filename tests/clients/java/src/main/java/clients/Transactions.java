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
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClientException;

/** Transactions: all of it happens, or none. */
final class Transactions {
    static void into(Map<String, Scenario> all) {
        all.put("txn_commit", Transactions::commit);
        all.put("txn_abort", Transactions::abort);
        all.put("txn_batches", Transactions::batches);
        all.put("txn_cumulative", Transactions::cumulative);
        all.put("txn_conflict", Transactions::conflict);
        all.put("txn_timeout", Transactions::timeout);
        all.put("txn_order", Transactions::order);
        all.put("txn_holds_nobody_up", Transactions::holdsNobodyUp);
        all.put("txn_killed", Transactions::killed);
    }

    private static Transaction begin(Bed bed, int seconds) throws Exception {
        return bed.client
                .newTransaction()
                .withTransactionTimeout(seconds, TimeUnit.SECONDS)
                .build()
                .get(Bed.PATIENCE_S, TimeUnit.SECONDS);
    }

    private static Transaction begin(Bed bed) throws Exception {
        return begin(bed, 60);
    }

    /** Takes two messages, answers them on two topics. */
    private static Transaction work(Bed bed, Consumer<String> input) throws Exception {
        Transaction txn = begin(bed);
        try (Producer<String> a = bed.producer(bed.topic("a")).create();
                Producer<String> b = bed.producer(bed.topic("b")).create()) {
            for (int n = 0; n < 2; n++) {
                Message<String> message = next(input);
                a.newMessage(txn).value(message.getValue()).send();
                b.newMessage(txn).value(message.getValue()).send();
                input.acknowledgeAsync(message.getMessageId(), txn).get();
            }
        }
        return txn;
    }

    static void commit(Bed bed) throws Exception {
        bed.send(bed.topic(), 3);
        try (Consumer<String> a = bed.subscribe(bed.topic("a"));
                Consumer<String> b = bed.subscribe(bed.topic("b"));
                Consumer<String> input = bed.subscribe(bed.topic())) {
            Transaction txn = work(bed, input);
            nothing(a);
            nothing(b);
            txn.commit().get();
            same(txn.getState(), Transaction.State.COMMITTED);
            same(texts(next(a, 2)), values(0, 2));
            same(texts(next(b, 2)), values(0, 2));
        }
        try (Consumer<String> input = bed.subscribe(bed.topic())) {
            same(next(input).getValue(), "m2");
            nothing(input);
        }
    }

    static void abort(Bed bed) throws Exception {
        bed.send(bed.topic(), 3);
        try (Consumer<String> a = bed.subscribe(bed.topic("a"))) {
            try (Consumer<String> input = bed.subscribe(bed.topic())) {
                work(bed, input).abort().get();
            }
            nothing(a);
            bed.send(bed.topic("a"), 1);
            same(next(a).getValue(), "m0");
        }
        try (Consumer<String> input = bed.subscribe(bed.topic())) {
            same(texts(next(input, 3)), values(0, 3));
        }
    }

    private static void batches(Bed bed) throws Exception {
        bed.sendBatch(bed.topic(), 10);
        try (Consumer<String> out = bed.subscribe(bed.topic("out"));
                Producer<String> producer =
                        bed.client
                                .newProducer(Schema.STRING)
                                .topic(bed.topic("out"))
                                .sendTimeout(0, TimeUnit.SECONDS)
                                .batchingMaxMessages(10)
                                .create()) {
            Transaction txn = begin(bed);
            try (Consumer<String> input =
                    bed.consumer(bed.topic(), SubscriptionType.Shared)
                            .enableBatchIndexAcknowledgment(true)
                            .subscribe()) {
                List<Message<String>> messages = next(input, 10);
                for (int n = 0; n < 10; n++) {
                    producer.newMessage(txn).value("m" + n).sendAsync();
                    if (n % 2 == 0) {
                        input.acknowledgeAsync(messages.get(n).getMessageId(), txn).get();
                    }
                }
                txn.commit().get();
            }
            same(texts(next(out, 10)), values(0, 10));
            try (Consumer<String> input =
                    bed.consumer(bed.topic(), SubscriptionType.Shared)
                            .enableBatchIndexAcknowledgment(true)
                            .subscribe()) {
                sameSet(texts(next(input, 5)), List.of("m1", "m3", "m5", "m7", "m9"));
                nothing(input);
            }
        }
    }

    private static void cumulative(Bed bed) throws Exception {
        bed.send(bed.topic(), 6);
        try (Consumer<String> input = bed.subscribe(bed.topic())) {
            Transaction txn = begin(bed);
            MessageId third = next(input, 3).get(2).getMessageId();
            input.acknowledgeCumulativeAsync(third, txn).get();
            txn.commit().get();
        }
        try (Consumer<String> input = bed.subscribe(bed.topic())) {
            same(texts(next(input, 3)), values(3, 6));
            Transaction txn = begin(bed);
            input.acknowledgeCumulativeAsync(bed.send(bed.topic(), 1).get(0), txn).get();
            txn.abort().get();
        }
        try (Consumer<String> input = bed.subscribe(bed.topic())) {
            same(texts(next(input, 4)), List.of("m3", "m4", "m5", "m0"));
        }
    }

    private static void conflict(Bed bed) throws Exception {
        bed.send(bed.topic(), 2);
        try (Consumer<String> input =
                bed.consumer(bed.topic(), SubscriptionType.Shared).subscribe()) {
            MessageId id = next(input).getMessageId();
            Transaction first = begin(bed);
            Transaction second = begin(bed);
            input.acknowledgeAsync(id, first).get();
            fails(
                    () -> input.acknowledgeAsync(id, second).get(),
                    PulsarClientException.TransactionConflictException.class);
            first.commit().get();
            second.abort().get();
        }
        try (Consumer<String> input =
                bed.consumer(bed.topic(), SubscriptionType.Shared).subscribe()) {
            same(next(input).getValue(), "m1");
            nothing(input);
        }
    }

    private static void timeout(Bed bed) throws Exception {
        bed.send(bed.topic(), 1);
        try (Consumer<String> input =
                        bed.consumer(bed.topic(), SubscriptionType.Shared).subscribe();
                Consumer<String> out = bed.subscribe(bed.topic("out"));
                Producer<String> producer = bed.producer(bed.topic("out")).create()) {
            Transaction txn = begin(bed, 3);
            producer.newMessage(txn).value("never").send();
            input.acknowledgeAsync(next(input).getMessageId(), txn).get();
            Thread.sleep(4500);
            fails(
                    () -> txn.commit().get(),
                    TransactionCoordinatorClientException.class,
                    PulsarClientException.class);
            producer.send("plain");
            same(next(out).getValue(), "plain");
        }
        try (Consumer<String> input =
                bed.consumer(bed.topic(), SubscriptionType.Shared).subscribe()) {
            same(next(input).getValue(), "m0"); // given back
        }
    }

    private static void order(Bed bed) throws Exception {
        try (Consumer<String> out = bed.subscribe(bed.topic());
                Producer<String> producer = bed.producer(bed.topic()).create()) {
            for (int n = 0; n < 3; n++) {
                Transaction txn = begin(bed);
                producer.newMessage(txn).value("m" + 2 * n).send();
                producer.newMessage(txn).value("m" + (2 * n + 1)).send();
                txn.commit().get();
            }
            List<Message<String>> messages = next(out, 6);
            same(texts(messages), values(0, 6));
            for (int n = 1; n < 6; n++) {
                MessageId before = messages.get(n - 1).getMessageId();
                check(
                        before.compareTo(messages.get(n).getMessageId()) < 0,
                        "ids are not in order");
            }
            out.acknowledge(messages.get(3));
            out.seek(messages.get(2).getMessageId());
            same(texts(next(out, 2)), List.of("m3", "m4"));
        }
    }

    /** Apache Pulsar fails here: a reader stops at the first message of an open transaction. */
    private static void holdsNobodyUp(Bed bed) throws Exception {
        Transaction txn = begin(bed);
        try (Producer<String> producer = bed.producer(bed.topic()).create();
                Consumer<String> consumer = bed.subscribe(bed.topic());
                Reader<String> reader =
                        bed.client
                                .newReader(Schema.STRING)
                                .topic(bed.topic())
                                .startMessageId(MessageId.earliest)
                                .create()) {
            producer.newMessage(txn).value("open").send();
            producer.send("plain");
            Message<String> read = reader.readNext(Bed.PATIENCE_S, TimeUnit.SECONDS);
            check(read != null, "the open transaction holds the reader up");
            same(read.getValue(), "plain");
            same(next(consumer).getValue(), "plain");
            txn.commit().get();
            same(reader.readNext(Bed.PATIENCE_S, TimeUnit.SECONDS).getValue(), "open");
            same(next(consumer).getValue(), "open");
        }
    }

    private static void killed(Bed bed) throws Exception {
        bed.send(bed.topic(), 3);
        try (Consumer<String> a = bed.subscribe(bed.topic("a"));
                Consumer<String> input =
                        bed.consumer(bed.topic(), SubscriptionType.Shared).subscribe()) {
            Transaction txn = work(bed, input);
            Bed.killed();
            try (Producer<String> producer = bed.producer(bed.topic("a")).create()) {
                producer.newMessage(txn).value("after").send();
            }
            txn.commit().get();
            sameSet(texts(next(a, 3)), List.of("m0", "m1", "after"));
        }
        try (Consumer<String> input =
                bed.consumer(bed.topic(), SubscriptionType.Shared).subscribe()) {
            same(next(input).getValue(), "m2");
            nothing(input);
        }
    }
}
