package org.apache.pulsar.broker.transaction;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminBuilder;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.tests.TestRetrySupport;
import upstream.Admin;
import upstream.Served;

/** The base class of upstream's tests of transactions by its name, over a running `txlog serve`. */
public abstract class TransactionTestBase extends TestRetrySupport {
    public static final String CLUSTER_NAME = "test";
    public static final String TENANT = "tnx";
    protected static final String NAMESPACE1 = TENANT + "/ns1";

    protected final List<PulsarService> pulsarServiceList = new ArrayList<>();
    protected PulsarAdmin admin;
    protected PulsarClient pulsarClient;
    protected ServiceConfiguration conf = new ServiceConfiguration();
    private final List<ServiceConfiguration> configurations = new ArrayList<>();
    private int brokerCount;
    private Served served;

    public void internalSetup() throws Exception {
        startBroker();
        admin = createNewPulsarAdmin(PulsarAdmin.builder().serviceHttpUrl(served.url("http")));
        pulsarClient = PulsarClient.builder().serviceUrl(served.url("pulsar")).build();
    }

    protected void startBroker() throws Exception {
        conf.setClusterName(CLUSTER_NAME);
        conf.setBrokerServicePort(Optional.of(0));
        conf.setWebServicePort(Optional.of(0));
        served = new Served(conf);
        served.start();
        for (int broker = 0; broker < brokerCount; broker++) {
            configurations.add(conf);
            pulsarServiceList.add(served.service());
        }
    }

    protected void setUpBase(int brokers, int coordinators, String topic, int partitions)
        throws Exception {
        setBrokerCount(brokers);
        internalSetup();
        if (topic != null && partitions == 0) {
            admin.topics().createNonPartitionedTopic(topic);
        } else if (topic != null) {
            admin.topics().createPartitionedTopic(topic, partitions);
        }
        Served.closeLater(pulsarClient::shutdown);
        pulsarClient = createNewPulsarClient(PulsarClient.builder()
            .serviceUrl(served.url("pulsar"))
            .statsInterval(0, TimeUnit.SECONDS)
            .enableTransaction(true));
    }

    protected PulsarClient createNewPulsarClient(ClientBuilder builder) throws PulsarClientException {
        return builder.build();
    }

    protected PulsarAdmin createNewPulsarAdmin(PulsarAdminBuilder builder)
        throws PulsarClientException {
        Admin.name(CLUSTER_NAME, false);
        return builder.build();
    }

    /** The server has its coordinator from the start. */
    protected void createTransactionCoordinatorAssign(int count) {}

    protected final void internalCleanup() {
        try {
            if (pulsarClient != null) {
                Served.closeLater(pulsarClient::shutdown);
            }
            if (admin != null) {
                Served.closeLater(admin);
            }
            if (served != null) {
                served.close();
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        pulsarServiceList.clear();
        configurations.clear();
    }

    protected void deleteNamespaceWithRetry(String name, boolean force) throws Exception {
        deleteNamespaceWithRetry(name, force, admin);
    }

    protected void deleteNamespaceWithRetry(String name, boolean force, PulsarAdmin given)
        throws Exception {
        given.namespaces().deleteNamespace(name, force);
    }

    public void setBrokerCount(int count) {
        brokerCount = count;
    }

    public int getBrokerCount() {
        return brokerCount;
    }

    public List<ServiceConfiguration> getServiceConfigurationList() {
        return configurations;
    }

    public List<PulsarService> getPulsarServiceList() {
        return pulsarServiceList;
    }
}
