package upstream;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.admin.Clusters;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdmin;

/**
 * The stock admin client of a server whose one cluster cannot be made: it is there.
 *
 * <p>Set-ups of tests create a cluster and replicate namespaces to it. A store is one cluster, so for
 * these calls alone nothing is asked of the server.
 */
public final class Admin {
    private static final Set<String> CLUSTER_CALLS =
        Set.of("createCluster", "createClusterAsync", "updateCluster", "deleteCluster");
    private static final Set<String> NAMESPACE_CALLS =
        Set.of("setNamespaceReplicationClusters", "setNamespaceReplicationClustersAsync");

    private Admin() {}

    /** Wraps an admin client. */
    public static PulsarAdmin of(PulsarAdmin admin, String cluster) {
        return through(PulsarAdmin.class, admin, (name, arguments) -> {
            switch (name) {
                case "clusters":
                    return through(Clusters.class, admin.clusters(), (call, values) ->
                        call.equals("getClusters") ? List.of(cluster) : skipped(call, CLUSTER_CALLS));
                case "namespaces":
                    return through(Namespaces.class, admin.namespaces(), (call, values) ->
                        skipped(call, NAMESPACE_CALLS));
                default:
                    return Call.PASS;
            }
        });
    }

    private static Object skipped(String call, Set<String> calls) {
        if (!calls.contains(call)) {
            return Call.PASS;
        }
        return call.endsWith("Async") ? CompletableFuture.completedFuture(null) : null;
    }

    private interface Call {
        Object PASS = new Object();

        Object answer(String name, Object[] arguments);
    }

    private static <T> T through(Class<T> kind, T behind, Call call) {
        InvocationHandler handler = (proxy, method, arguments) -> {
            Object answer = call.answer(method.getName(), arguments);
            if (answer != Call.PASS) {
                return answer;
            }
            try {
                return method.invoke(behind, arguments);
            } catch (InvocationTargetException error) {
                throw error.getCause();
            }
        };
        return kind.cast(Proxy.newProxyInstance(kind.getClassLoader(), new Class<?>[] {kind}, handler));
    }
}
