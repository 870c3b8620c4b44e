package clients;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Runs the scenarios that are named, or all: Main URL PREFIX [NAME ...]. It prints a JSON object for
 * each: its name, whether it held, and why not. Topics have names that begin with the prefix.
 */
public final class Main {
    static final int AT_ONCE = 4;
    /** They stop or change the server: each runs alone, behind the others. */
    static final Set<String> ALONE = Set.of("txn_killed", "tls_reloaded");

    public static void main(String[] args) throws Exception {
        Map<String, Scenario> all = new LinkedHashMap<>();
        boolean isSecured = System.getenv("CREDENTIALS") != null;
        if (isSecured) {
            Secured.into(all);
        } else {
            Sending.into(all);
            Consuming.into(all);
            Schemas.into(all);
            Transactions.into(all);
        }
        List<String> names = new ArrayList<>(List.of(args).subList(2, args.length));
        if (names.isEmpty()) {
            names.addAll(all.keySet());
        }
        try (Bed bed = isSecured ? new Bed(null, args[0], args[1]) : new Bed(args[0], args[1])) {
            ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE);
            List<Future<?>> running = new ArrayList<>();
            for (String name : names) {
                if (!ALONE.contains(name)) {
                    running.add(pool.submit(() -> run(bed, name, all.get(name))));
                }
            }
            for (Future<?> each : running) {
                each.get();
            }
            pool.shutdown();
            for (String name : names) {
                if (ALONE.contains(name)) {
                    run(bed, name, all.get(name));
                }
            }
        }
        System.exit(0); // whatever a scenario left running
    }

    private static void run(Bed bed, String name, Scenario scenario) {
        String error = "";
        try {
            scenario.run(bed.of(name));
        } catch (Throwable thrown) { // also a failed check
            error = thrown.toString();
            if (System.getenv("TRACE") != null) {
                thrown.printStackTrace();
            }
        }
        synchronized (Main.class) {
            System.out.printf("{\"scenario\": \"%s\", \"error\": \"%s\"}%n", name, escaped(error));
            System.out.flush();
        }
    }

    private static String escaped(String text) {
        return text.replace("\\", "/").replace("\"", "'").replaceAll("\\s+", " ");
    }

    /** What a client should be able to do. */
    interface Scenario {
        void run(Bed bed) throws Exception;
    }
}
