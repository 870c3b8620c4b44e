package upstream;

import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.withSettings;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.Socket;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.service.BrokerService;
import org.mockito.invocation.InvocationOnMock;

/**
 * A running `txlog serve` with a store of its own, where a test expects a broker in its own process.
 *
 * <p>The launcher at the port of the property {@code upstream.launcher} starts the server and ends it
 * when the connection is closed.
 */
public final class Served implements AutoCloseable {
    private final ServiceConfiguration conf;
    private final Socket socket;
    private final BufferedReader in;
    private final PrintWriter out;
    private final PulsarService service;
    private final BrokerService broker;
    private Map<String, String> urls = Map.of();

    public Served(ServiceConfiguration conf) throws IOException {
        this.conf = conf;
        socket = new Socket("127.0.0.1", Integer.getInteger("upstream.launcher"));
        in = new BufferedReader(new InputStreamReader(socket.getInputStream()));
        out = new PrintWriter(socket.getOutputStream(), true);
        service = mock(PulsarService.class, withSettings().stubOnly().defaultAnswer(this::answer));
        broker = mock(BrokerService.class, withSettings().stubOnly().defaultAnswer(Served::brokerAnswer));
    }

    /** Starts it, at the same addresses and with the same store as before. */
    public void start() throws IOException {
        List<List<String>> servers = new ArrayList<>();
        if (conf.getBrokerServicePort().isPresent() || conf.getWebServicePort().isPresent()) {
            servers.add(new ArrayList<>(List.of("--pulsar", at("pulsar"), "--http", at("http"))));
        }
        if (conf.getBrokerServicePortTls().isPresent() || conf.getWebServicePortTls().isPresent()) {
            servers.add(new ArrayList<>(List.of(
                "--pulsar", at("pulsar+ssl"), "--http", at("https"),
                "--tls-cert", whole(conf.getTlsCertificateFilePath()),
                "--tls-key", whole(conf.getTlsKeyFilePath()))));
        }
        for (List<String> options : servers) {
            if (!conf.isAllowAutoTopicCreation()) {
                options.add("--no-topic-creation");
            }
        }
        ObjectMapper json = new ObjectMapper();
        out.println(json.writeValueAsString(Map.of(
            "start", servers, "settings", Map.of("max_message_bytes", conf.getMaxMessageSize()))));
        String line = in.readLine();
        if (line == null) {
            throw new IOException("the launcher ended");
        }
        JsonNode answer = json.readTree(line);
        if (answer.has("error")) {
            throw new IOException("txlog serve did not start: " + answer.get("error").asText());
        }
        Map<String, String> found = new HashMap<>();
        for (JsonNode url : answer.get("urls")) {
            found.put(url.asText().split("://")[0], url.asText());
        }
        urls = found;
    }

    /** Ends it, as the kernel does; the store stays. */
    public void stop() throws IOException {
        out.println("{\"stop\": true}");
        in.readLine();
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }

    /** Closes clients beside the test: Netty waits two seconds for each until it is quiet. */
    public static void closeLater(AutoCloseable... closeables) {
        Thread closer = new Thread(() -> {
            for (AutoCloseable closeable : closeables) {
                try {
                    closeable.close();
                } catch (Exception error) {
                    System.err.println("a client did not close: " + error);
                }
            }
        });
        closer.setDaemon(true);
        closer.start();
    }

    /** A broker that knows its addresses and its settings, and nothing else. */
    public PulsarService service() {
        return service;
    }

    /** The address for a scheme, or null if it is not served. */
    public String url(String scheme) {
        return urls.get(scheme);
    }

    private String at(String scheme) {
        String url = urls.get(scheme);
        return url == null ? "localhost:0" : url.split("://")[1];
    }

    /** The server runs in another folder than the tests. */
    private static String whole(String path) {
        return Path.of(path).toAbsolutePath().toString();
    }

    private Object answer(InvocationOnMock call) {
        switch (call.getMethod().getName()) {
            case "getBrokerServiceUrl":
                return url("pulsar");
            case "getSafeBrokerServiceUrl":
                return url("pulsar") != null ? url("pulsar") : url("pulsar+ssl");
            case "getBrokerServiceUrlTls":
                return url("pulsar+ssl");
            case "getWebServiceAddress":
                return url("http");
            case "getSafeWebServiceAddress":
                return url("http") != null ? url("http") : url("https");
            case "getWebServiceAddressTls":
                return url("https");
            case "getBrokerListenPort":
                return port("pulsar");
            case "getBrokerListenPortTls":
                return port("pulsar+ssl");
            case "getListenPortHTTP":
                return port("http");
            case "getListenPortHTTPS":
                return port("https");
            case "getConfiguration":
            case "getConfig":
                return conf;
            case "getBrokerId":
                return url("http") == null ? null : url("http").split("://")[1];
            case "getBrokerService":
                return broker;
            case "isRunning":
                return true;
            case "toString":
                return "txlog serve at " + url("pulsar");
            case "hashCode":
                return System.identityHashCode(this);
            default:
                throw new BrokerInsides("PulsarService." + call.getMethod().getName());
        }
    }

    /** Statistics are those of the moment, and no topic of a store is one of the system. */
    private static Object brokerAnswer(InvocationOnMock call) {
        switch (call.getMethod().getName()) {
            case "isSystemTopic":
                return false;
            case "updateRates":
                return null;
            default:
                throw new BrokerInsides("BrokerService." + call.getMethod().getName());
        }
    }

    private Optional<Integer> port(String scheme) {
        String url = url(scheme);
        return url == null ? Optional.empty() : Optional.of(Integer.valueOf(url.replaceAll(".*:", "")));
    }

    /** A test wants objects of the broker itself, which a server in another process does not have. */
    public static final class BrokerInsides extends RuntimeException {
        private static final long serialVersionUID = 1;

        BrokerInsides(String call) {
            super("needs the broker's insides: " + call);
        }
    }
}
