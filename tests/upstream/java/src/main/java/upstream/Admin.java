package upstream;

import static net.bytebuddy.matcher.ElementMatchers.named;
import static net.bytebuddy.matcher.ElementMatchers.namedOneOf;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import net.bytebuddy.ByteBuddy;
import net.bytebuddy.dynamic.ClassFileLocator;
import net.bytebuddy.dynamic.loading.ClassLoadingStrategy;
import net.bytebuddy.implementation.MethodDelegation;
import net.bytebuddy.pool.TypePool;

/**
 * The stock admin client of a server whose one cluster cannot be made: it is there.
 *
 * <p>Set-ups of tests create a cluster and replicate namespaces to it, by an admin client of the base
 * class or by one of their own. A store is one cluster, so for these calls alone nothing is asked of
 * the server.
 */
public final class Admin {
    private static final String PLACE = "org.apache.pulsar.client.admin.internal.";
    private static final CompletableFuture<Void> DONE = CompletableFuture.completedFuture(null);
    private static volatile String cluster = "test";
    private static volatile boolean isChecked;

    private Admin() {}

    /**
     * Says what the running test calls the cluster.
     *
     * @param isCheckedHere the test wants the server to check who a client is by the broker's classes;
     *     the server does not, so a test that passed would show nothing
     */
    public static void name(String name, boolean isCheckedHere) {
        cluster = name;
        isChecked = isCheckedHere;
    }

    /** What calls that make a cluster answer. */
    public static CompletableFuture<Void> done() {
        return isChecked
            ? CompletableFuture.failedFuture(new Served.BrokerInsides("its authentication"))
            : DONE;
    }

    /** What getClustersAsync answers. */
    public static CompletableFuture<List<String>> clusters() {
        return CompletableFuture.completedFuture(List.of(cluster));
    }

    private static MethodDelegation to(String name) {
        return MethodDelegation.withDefaultConfiguration().filter(named(name)).to(Admin.class);
    }

    /** Changes the classes of all admin clients, before the first one is made. */
    static void change() {
        TypePool types = TypePool.Default.ofSystemLoader();
        ClassFileLocator files = ClassFileLocator.ForClassLoader.ofSystemLoader();
        ClassLoader loader = Admin.class.getClassLoader();
        new ByteBuddy()
            .redefine(types.describe(PLACE + "ClustersImpl").resolve(), files)
            .method(namedOneOf("createClusterAsync", "updateClusterAsync", "deleteClusterAsync"))
            .intercept(to("done"))
            .method(named("getClustersAsync"))
            .intercept(to("clusters"))
            .make()
            .load(loader, ClassLoadingStrategy.Default.INJECTION);
        new ByteBuddy()
            .redefine(types.describe(PLACE + "NamespacesImpl").resolve(), files)
            .method(named("setNamespaceReplicationClustersAsync"))
            .intercept(to("done"))
            .make()
            .load(loader, ClassLoadingStrategy.Default.INJECTION);
    }
}
