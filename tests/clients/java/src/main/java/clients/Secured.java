package clients;

import static clients.Bed.check;
import static clients.Bed.fails;
import static clients.Bed.next;
import static clients.Bed.same;
import static clients.Bed.texts;
import static clients.Bed.values;

import clients.Main.Scenario;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;

/** A server with TLS and rules. What clients log in with lies in the folder CREDENTIALS. */
final class Secured {
    static final Path SECRETS = Path.of(String.valueOf(System.getenv("CREDENTIALS")));
    /** Connections that TLS refuses are tried again until a call's time is over. */
    static final int SOON_S = 3;

    static void into(Map<String, Scenario> all) {
        all.put("tls", Secured::tls);
        all.put("tls_reloaded", Secured::reloaded);
        all.put("token_roles", bed -> eachWhatItMay(bed, Secured::byToken));
        all.put("token_refused", Secured::refused);
        all.put("token_renewed", Secured::renewed);
        all.put("certificate_roles", Secured::certificates);
        all.put("token_txn", Secured::transactions);
    }

    private static ClientBuilder builder(Bed bed, Authentication who, String authority, int seconds) {
        return Bed.builder(bed.url)
                .authentication(who)
                .tlsTrustCertsFilePath(SECRETS.resolve(authority + ".pem").toString())
                .enableTlsHostnameVerification(true)
                .operationTimeout(seconds, TimeUnit.SECONDS)
                .lookupTimeout(seconds, TimeUnit.SECONDS);
    }

    private static Bed withClient(Bed bed, Authentication who, String authority, int seconds)
            throws PulsarClientException {
        return bed.with(builder(bed, who, authority, seconds).build());
    }

    private static Bed withClient(Bed bed, Authentication who) throws PulsarClientException {
        return withClient(bed, who, "ca", Bed.PATIENCE_S);
    }

    private static String token(String role) {
        try {
            return Files.readString(SECRETS.resolve(role + ".token"));
        } catch (IOException thrown) {
            throw new AssertionError(thrown);
        }
    }

    private static Authentication byToken(String role) {
        return AuthenticationFactory.token(token(role));
    }

    private static Authentication byCertificate(String role) {
        return AuthenticationFactory.TLS(
                SECRETS.resolve(role + ".pem").toString(), SECRETS.resolve(role + ".key").toString());
    }

    private static void tls(Bed bed) throws Exception {
        try (Bed known = withClient(bed, byToken("worker"))) {
            known.send(bed.topic(), 3);
            same(texts(next(known.subscribe(bed.topic()), 3)), values(0, 3));
        }
        try (Bed unknown = withClient(bed, byToken("worker"), "other", SOON_S)) {
            fails(() -> unknown.subscribe(bed.topic()), PulsarClientException.class);
        }
    }

    private static void reloaded(Bed bed) throws Exception {
        try (Bed known = withClient(bed, byToken("worker"));
                Producer<String> producer = known.producer(bed.topic()).create()) {
            producer.send("m0");
            Bed.pause("certificate");
            producer.send("m1");
            try (Bed later = withClient(bed, byToken("worker"), "other", Bed.PATIENCE_S)) {
                same(texts(next(later.subscribe(bed.topic()), 2)), values(0, 2));
            }
        }
        try (Bed late = withClient(bed, byToken("worker"), "ca", SOON_S)) {
            fails(() -> late.subscribe(bed.topic()), PulsarClientException.class);
        }
    }

    /** One may produce, one consume, one nothing, and none of them anything else. */
    private static void eachWhatItMay(Bed bed, Function<String, Authentication> loggedIn)
            throws Exception {
        Class<?> refused = PulsarClientException.NotAllowedException.class;
        String topic = bed.topic();
        try (Bed sender = withClient(bed, loggedIn.apply("sender"));
                Bed reader = withClient(bed, loggedIn.apply("reader"));
                Bed idle = withClient(bed, loggedIn.apply("idle"))) {
            sender.send(topic, 2);
            same(texts(next(reader.subscribe(topic), 2)), values(0, 2));
            fails(() -> sender.subscribe(topic), refused);
            fails(() -> reader.send(topic, 1), refused);
            fails(() -> idle.subscribe(topic), refused);
            fails(() -> idle.send(topic, 1), refused);
            fails(() -> sender.send("persistent://acme/shop/orders", 1), refused);
        }
    }

    private static void certificates(Bed bed) throws Exception {
        eachWhatItMay(bed, Secured::byCertificate);
        try (Bed stranger = withClient(bed, byCertificate("stranger"), "ca", SOON_S)) {
            fails(() -> stranger.subscribe(bed.topic()), PulsarClientException.class);
        }
    }

    private static void refused(Bed bed) throws Exception {
        for (String name : new String[] {"expired", "forged"}) {
            try (Bed one = withClient(bed, byToken(name))) {
                fails(() -> one.send(bed.topic(), 1), PulsarClientException.AuthenticationException.class);
                fails(
                        () -> one.subscribe(bed.topic()),
                        PulsarClientException.AuthenticationException.class);
            }
        }
        try (Bed nobody = withClient(bed, null)) {
            fails(() -> nobody.send(bed.topic(), 1), PulsarClientException.AuthenticationException.class);
        }
    }

    private static void renewed(Bed bed) throws Exception {
        AtomicBoolean isLate = new AtomicBoolean();
        CountDownLatch wasAsked = new CountDownLatch(1);
        Authentication supplied =
                AuthenticationFactory.token(
                        () -> {
                            if (isLate.get()) {
                                wasAsked.countDown();
                                return token("sender");
                            }
                            Bed.pause("token"); // a new one: it may be asked before it has sent
                            return token("short");
                        });
        try (Bed known = withClient(bed, supplied);
                Producer<String> producer = known.producer(bed.topic()).create()) {
            producer.send("m0");
            isLate.set(true);
            // in half the time: its connection ends after 30 s, and then any client asks anew
            check(
                    wasAsked.await(Bed.PATIENCE_S / 2, TimeUnit.SECONDS),
                    "it was not asked for another token");
            producer.send("m1");
        }
    }

    private static void transactions(Bed bed) throws Exception {
        ClientBuilder builder = builder(bed, byToken("worker"), "ca", Bed.PATIENCE_S);
        try (Bed worker = bed.with(builder.enableTransaction(true).build())) {
            Transactions.commit(worker.of("commit"));
            Transactions.abort(worker.of("abort"));
        }
    }
}
