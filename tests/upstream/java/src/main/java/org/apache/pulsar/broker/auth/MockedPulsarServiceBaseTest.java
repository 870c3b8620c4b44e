package org.apache.pulsar.broker.auth;

import java.lang.reflect.Field;
import java.net.URI;
import java.net.URL;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Predicate;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.testcontext.PulsarTestContext;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminBuilder;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.impl.ProducerImpl;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.policies.data.TenantInfoImpl;
import org.apache.pulsar.common.policies.data.TopicType;
import org.apache.pulsar.tests.TestRetrySupport;
import org.testng.annotations.DataProvider;
import upstream.Admin;
import upstream.Served;

/** The base class of upstream's tests by its name and its members, over a running `txlog serve`. */
public abstract class MockedPulsarServiceBaseTest extends TestRetrySupport {
    public static final String CA_CERT_FILE_PATH = file("certificate-authority/certs/ca.cert.pem");
    public static final String BROKER_CERT_FILE_PATH =
        file("certificate-authority/server-keys/broker.cert.pem");
    public static final String BROKER_KEY_FILE_PATH =
        file("certificate-authority/server-keys/broker.key-pk8.pem");
    public static final String PROXY_CERT_FILE_PATH =
        file("certificate-authority/server-keys/proxy.cert.pem");
    public static final String PROXY_KEY_FILE_PATH =
        file("certificate-authority/server-keys/proxy.key-pk8.pem");
    public static final String BROKER_KEYSTORE_FILE_PATH =
        file("certificate-authority/jks/broker.keystore.jks");
    public static final String BROKER_TRUSTSTORE_FILE_PATH =
        file("certificate-authority/jks/broker.truststore.jks");
    public static final String BROKER_TRUSTSTORE_NO_PASSWORD_FILE_PATH =
        file("certificate-authority/jks/broker.truststore.nopassword.jks");
    public static final String BROKER_KEYSTORE_PW = "111111";
    public static final String BROKER_TRUSTSTORE_PW = "111111";
    public static final String CLIENT_KEYSTORE_FILE_PATH =
        file("certificate-authority/jks/client.keystore.jks");
    public static final String CLIENT_TRUSTSTORE_FILE_PATH =
        file("certificate-authority/jks/client.truststore.jks");
    public static final String CLIENT_TRUSTSTORE_NO_PASSWORD_FILE_PATH =
        file("certificate-authority/jks/client.truststore.nopassword.jks");
    public static final String CLIENT_KEYSTORE_PW = "111111";
    public static final String CLIENT_TRUSTSTORE_PW = "111111";
    public static final String PROXY_KEYSTORE_FILE_PATH =
        file("certificate-authority/jks/proxy.keystore.jks");
    public static final String PROXY_KEYSTORE_PW = "111111";
    public static final String PROXY_AND_CLIENT_TRUSTSTORE_FILE_PATH =
        file("certificate-authority/jks/proxy-and-client.truststore.jks");
    public static final String PROXY_AND_CLIENT_TRUSTSTORE_PW = "111111";
    public static final String CLIENT_KEYSTORE_CN = "clientuser";
    public static final String KEYSTORE_TYPE = "JKS";
    private static final String CLUSTER = "test";

    protected final String DUMMY_VALUE = "DUMMY_VALUE";
    protected final String GLOBAL_DUMMY_VALUE = "GLOBAL_DUMMY_VALUE";
    protected ServiceConfiguration conf = getDefaultConf();
    protected PulsarTestContext pulsarTestContext;
    protected PulsarService pulsar;
    protected PulsarAdmin admin;
    protected PulsarClient pulsarClient;
    protected boolean enableBrokerGateway;
    protected URL brokerUrl;
    protected URL brokerUrlTls;
    protected URI lookupUrl;
    protected boolean isTcpLookup;
    protected String configClusterName = CLUSTER;
    protected boolean enableBrokerInterceptor;
    protected boolean useTestZookeeper;
    private final List<AutoCloseable> closeables = new ArrayList<>();
    private Served served;

    protected abstract void setup() throws Exception;

    protected abstract void cleanup() throws Exception;

    private static String file(String name) {
        URL place = MockedPulsarServiceBaseTest.class.getClassLoader().getResource(name);
        return place == null ? name : place.getPath();
    }

    public static String getTlsFileForClient(String name) {
        return file("certificate-authority/client-keys/" + name + ".pem");
    }

    // --- the server --------------------------------------------------------------------------

    protected void setupWithClusterName(String name) throws Exception {
        conf.setClusterName(name);
        configClusterName = name;
        internalSetup();
    }

    protected final void internalSetup() throws Exception {
        incrementSetupNumber();
        doInitConf();
        startBroker();
        addresses();
        pulsarClient = newPulsarClient(lookupUrl.toString(), 0);
    }

    protected final void internalSetup(ServiceConfiguration given) throws Exception {
        conf = given;
        internalSetup();
    }

    protected final void internalSetupForStatsTest() throws Exception {
        doInitConf();
        startBroker();
        addresses();
        pulsarClient = newPulsarClient(lookupUrl.toString(), 1);
    }

    protected final void init() throws Exception {
        internalSetup();
    }

    protected void doInitConf() throws Exception {
        conf.setBrokerServicePort(Optional.of(0));
        conf.setWebServicePort(Optional.of(0));
        conf.setAdvertisedAddress("localhost");
    }

    protected void startBroker() throws Exception {
        if (served == null) {
            served = new Served(conf);
        }
        served.start();
        pulsar = served.service();
        afterPulsarStart(pulsar);
        addresses();
        closeAdmin();
        PulsarAdminBuilder builder = PulsarAdmin.builder()
            .serviceHttpUrl((brokerUrl != null ? brokerUrl : brokerUrlTls).toString());
        customizeNewPulsarAdminBuilder(builder);
        Admin.name(configClusterName, conf.isAuthenticationEnabled());
        admin = builder.build();
    }

    protected void stopBroker() throws Exception {
        served.stop();
    }

    protected void restartBroker() throws Exception {
        restartBroker(given -> {});
    }

    protected void restartBroker(Consumer<ServiceConfiguration> change) throws Exception {
        stopBroker();
        change.accept(conf);
        startBroker();
        if (pulsarClient == null || pulsarClient.isClosed()) {
            pulsarClient = newPulsarClient(lookupUrl.toString(), 0);
        }
    }

    private void addresses() throws Exception {
        brokerUrl = served.url("http") == null ? null : new URL(served.url("http"));
        brokerUrlTls = served.url("https") == null ? null : new URL(served.url("https"));
        String plain = served.url(isTcpLookup ? "pulsar" : "http");
        lookupUrl = URI.create(plain != null ? plain : served.url(isTcpLookup ? "pulsar+ssl" : "https"));
    }

    protected final void internalCleanup() throws Exception {
        if (pulsarClient != null) {
            Served.closeLater(pulsarClient::shutdown);
            pulsarClient = null;
        }
        closeAdmin();
        for (AutoCloseable closeable : closeables) {
            closeable.close();
        }
        closeables.clear();
        if (served != null) {
            served.close();
            served = null;
        }
        resetConfig();
        onCleanup();
        markCurrentSetupNumberCleaned();
    }

    protected void onCleanup() {}

    protected void closeAdmin() {
        if (admin != null) {
            Served.closeLater(admin);
            admin = null;
        }
    }

    protected <T extends AutoCloseable> T registerCloseable(T closeable) {
        closeables.add(closeable);
        return closeable;
    }

    protected PulsarService getPulsar() {
        return pulsar;
    }

    protected void beforePulsarStart(PulsarService service) throws Exception {}

    protected void afterPulsarStart(PulsarService service) throws Exception {}

    protected void customizeMainPulsarTestContextBuilder(PulsarTestContext.Builder builder) {}

    protected PulsarTestContext createAdditionalPulsarTestContext(ServiceConfiguration given) {
        throw new UnsupportedOperationException("needs the broker's insides: another broker");
    }

    // --- settings ----------------------------------------------------------------------------

    protected ServiceConfiguration getDefaultConf() {
        ServiceConfiguration made = new ServiceConfiguration();
        made.setClusterName(configClusterName == null ? CLUSTER : configClusterName);
        made.setAdvertisedAddress("localhost");
        made.setAllowAutoTopicCreationType(TopicType.NON_PARTITIONED);
        made.setBrokerServicePort(Optional.of(0));
        made.setWebServicePort(Optional.of(0));
        return made;
    }

    protected final void resetConfig() {
        conf = getDefaultConf();
    }

    // --- clients -----------------------------------------------------------------------------

    protected PulsarClient newPulsarClient(String url, int interval) throws PulsarClientException {
        ClientBuilder builder =
            PulsarClient.builder().serviceUrl(url).statsInterval(interval, TimeUnit.SECONDS);
        customizeNewPulsarClientBuilder(builder);
        return createNewPulsarClient(builder);
    }

    protected void customizeNewPulsarClientBuilder(ClientBuilder builder) {}

    protected void customizeNewPulsarAdminBuilder(PulsarAdminBuilder builder) {}

    protected PulsarClient createNewPulsarClient(ClientBuilder builder) throws PulsarClientException {
        return builder.build();
    }

    protected PulsarClient replacePulsarClient(ClientBuilder builder) throws PulsarClientException {
        if (pulsarClient != null) {
            Served.closeLater(pulsarClient::shutdown);
        }
        pulsarClient = createNewPulsarClient(builder);
        return pulsarClient;
    }

    protected TenantInfoImpl createDefaultTenantInfo() throws PulsarAdminException {
        return new TenantInfoImpl(Set.of("appid1", "appid2"), Set.of(configClusterName));
    }

    protected void setupDefaultTenantAndNamespace() throws Exception {
        if (!admin.tenants().getTenants().contains("public")) {
            admin.tenants().createTenant("public",
                TenantInfo.builder().allowedClusters(Set.of(configClusterName)).build());
        }
        if (!admin.namespaces().getNamespaces("public").contains("public/default")) {
            admin.namespaces().createNamespace("public/default");
        }
    }

    protected void deleteNamespaceWithRetry(String name, boolean force) throws Exception {
        deleteNamespaceWithRetry(name, force, admin);
    }

    protected void deleteNamespaceWithRetry(String name, boolean force, PulsarAdmin given)
        throws Exception {
        given.namespaces().deleteNamespace(name, force);
    }

    protected void waitForZooKeeperWatchers() {}

    protected void sleepSeconds(int seconds) {
        try {
            TimeUnit.SECONDS.sleep(seconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    protected void logTopicStats(String topic) {}

    public static boolean retryStrategically(Predicate<Void> isDone, int count, long pauseMs)
        throws Exception {
        for (int turn = 0; turn < count; turn++) {
            if (isDone.test(null)) {
                return true;
            }
            Thread.sleep(pauseMs + pauseMs * turn);
        }
        return isDone.test(null);
    }

    public static void setFieldValue(Class<?> kind, Object target, String name, Object value)
        throws Exception {
        Field field = kind.getDeclaredField(name);
        field.setAccessible(true);
        field.set(target, value);
    }

    protected ServiceProducer getServiceProducer(ProducerImpl<?> producer, String topic) {
        throw new UnsupportedOperationException("needs the broker's insides: its producers");
    }

    /** What tests of a broker's own producers ask for. */
    public static class ServiceProducer {}

    @DataProvider(name = "invalidPersistentPolicies")
    public Object[][] incorrectPersistentPolicies() {
        return new Object[][] {{0, 0, 0}, {1, 0, 0}, {0, 0, 1}, {0, 1, 0}, {1, 1, 0}, {1, 0, 1}};
    }
}
