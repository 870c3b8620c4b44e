package clients;

import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.schema.SchemaType;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.pulsar.annotation.EnablePulsar;
import org.springframework.pulsar.annotation.PulsarListener;
import org.springframework.pulsar.config.ConcurrentPulsarListenerContainerFactory;
import org.springframework.pulsar.core.DefaultPulsarConsumerFactory;
import org.springframework.pulsar.core.DefaultPulsarProducerFactory;
import org.springframework.pulsar.core.PulsarConsumerFactory;
import org.springframework.pulsar.core.PulsarProducerFactory;
import org.springframework.pulsar.core.PulsarTemplate;
import org.springframework.pulsar.listener.AckMode;
import org.springframework.pulsar.listener.PulsarContainerProperties;
import org.springframework.pulsar.transaction.PulsarTransactionManager;

/**
 * Spring for Apache Pulsar: Spring URL COUNT [NUMBER...]. A listener doubles what a template sends,
 * in a transaction with the acknowledgement; a transaction that is rolled back leaves nothing. At
 * each of the numbers it asks for the server to be killed, and goes on without waiting for that.
 */
@Configuration
@EnablePulsar
public class Spring {
    static String url;
    static final BlockingQueue<String> HEARD = new LinkedBlockingQueue<>();
    static final Set<String> KILLS = ConcurrentHashMap.newKeySet();

    @Autowired(required = false)
    PulsarTemplate<String> template;

    @Bean
    PulsarClient client() throws PulsarClientException {
        return PulsarClient.builder().serviceUrl(url).enableTransaction(true).build();
    }

    @Bean
    static PulsarTransactionManager transactionManager(PulsarClient client) {
        return new PulsarTransactionManager(client);
    }

    @Bean
    static PulsarProducerFactory<String> producers(PulsarClient client) {
        return new DefaultPulsarProducerFactory<>(client);
    }

    @Bean
    static PulsarTemplate<String> template(PulsarProducerFactory<String> producers) {
        PulsarTemplate<String> template = new PulsarTemplate<>(producers);
        template.transactions().setEnabled(true);
        return template;
    }

    @Bean
    static PulsarConsumerFactory<?> consumers(PulsarClient client) {
        return new DefaultPulsarConsumerFactory<>(client, List.of());
    }

    @Bean
    static ConcurrentPulsarListenerContainerFactory<?> pulsarListenerContainerFactory(
            PulsarConsumerFactory<Object> consumers, PulsarTransactionManager manager) {
        PulsarContainerProperties properties = new PulsarContainerProperties();
        properties.setAckMode(AckMode.RECORD);
        properties.transactions().setEnabled(true);
        properties.transactions().setTransactionManager(manager);
        return new ConcurrentPulsarListenerContainerFactory<>(consumers, properties);
    }

    @PulsarListener(
            topics = "spring-in",
            subscriptionName = "doubler",
            subscriptionType = SubscriptionType.Shared,
            schemaType = SchemaType.STRING)
    void doubled(String number) {
        if (KILLS.remove(number)) {
            System.out.println("{\"pause\": \"kill\"}");
        }
        template.send("spring-out", String.valueOf(2 * Integer.parseInt(number)));
    }

    @PulsarListener(
            topics = "spring-out",
            subscriptionName = "hearer",
            subscriptionType = SubscriptionType.Shared,
            schemaType = SchemaType.STRING)
    void heard(String number) {
        HEARD.add(number);
    }

    public static void main(String[] args) throws Exception {
        url = args[0];
        int wanted = Integer.parseInt(args[1]);
        KILLS.addAll(List.of(args).subList(2, args.length));
        try (var context = new AnnotationConfigApplicationContext(Spring.class)) {
            @SuppressWarnings("unchecked")
            PulsarTemplate<String> template = context.getBean(PulsarTemplate.class);
            try {
                template.executeInTransaction(
                        inside -> {
                            inside.send("spring-in", "1000");
                            throw new IllegalStateException("rolled back");
                        });
            } catch (IllegalStateException expected) {
                // nothing of it is to be heard of
            }
            template.executeInTransaction(
                    inside -> {
                        for (int n = 1; n <= wanted; n++) {
                            inside.send("spring-in", String.valueOf(n));
                        }
                        return null;
                    });
            Set<Integer> heard = new TreeSet<>();
            int count = 0;
            for (; heard.size() < wanted; count++) {
                String number = HEARD.poll(60, TimeUnit.SECONDS);
                if (number == null) {
                    break;
                }
                heard.add(Integer.parseInt(number));
            }
            String more = HEARD.poll(1, TimeUnit.SECONDS);
            System.out.println("heard " + count + " more " + more + " " + heard);
        }
        System.exit(0);
    }
}
