package clients;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichFilterFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.pulsar.sink.PulsarSink;
import org.apache.flink.connector.pulsar.source.PulsarSource;
import org.apache.flink.connector.pulsar.source.enumerator.cursor.StartCursor;
import org.apache.flink.connector.pulsar.source.enumerator.cursor.StopCursor;
import org.apache.flink.connector.pulsar.source.reader.deserializer.PulsarDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;

/**
 * Flink's connector: Flink URL ADMIN_URL [NUMBER...]. Doubles flink-in into flink-out, exactly once;
 * before it doubles one of the numbers for the first time it asks for the server to be killed.
 */
public final class Flink {
    private static final Set<String> KILLS = ConcurrentHashMap.newKeySet();

    public static void main(String[] args) throws Exception {
        KILLS.addAll(List.of(args).subList(2, args.length));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2);
        env.enableCheckpointing(500);
        PulsarSource<Tuple3<String, byte[], String>> source =
                PulsarSource.builder()
                        .setServiceUrl(args[0])
                        .setAdminUrl(args[1])
                        .setTopics("flink-in")
                        .setSubscriptionName("flink")
                        .setStartCursor(StartCursor.earliest())
                        .setBoundedStopCursor(StopCursor.latest())
                        .setDeserializationSchema(new Identified())
                        .build();
        PulsarSink<String> sink =
                PulsarSink.builder()
                        .setServiceUrl(args[0])
                        .setAdminUrl(args[1])
                        .setTopics("flink-out")
                        .setSerializationSchema(new SimpleStringSchema())
                        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                        .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "in")
                .keyBy(message -> message.f0)
                .filter(new Once())
                .map(message -> doubled(message.f2))
                .sinkTo(sink);
        env.execute("doubler");
        System.out.println("done");
        System.exit(0);
    }

    private static String doubled(String number) throws IOException {
        if (KILLS.remove(number)) {
            System.out.println("{\"pause\": \"kill\"}");
            System.in.read();
        }
        return String.valueOf(2 * Integer.parseInt(number));
    }

    /** A message as its topic, its id and its value. */
    private static final class Identified
            implements PulsarDeserializationSchema<Tuple3<String, byte[], String>> {
        @Override
        public void deserialize(
                Message<byte[]> message, Collector<Tuple3<String, byte[], String>> out) {
            String value = new String(message.getData(), StandardCharsets.UTF_8);
            byte[] id = message.getMessageId().toByteArray();
            out.collect(Tuple3.of(message.getTopicName(), id, value));
        }

        @Override
        public TypeInformation<Tuple3<String, byte[], String>> getProducedType() {
            return TypeInformation.of(new TypeHint<>() {});
        }
    }

    /**
     * Lets the messages of a topic pass once each, by their ids. The source hands on again, within
     * one attempt of the job, what a server delivers again to a consumer that has reconnected.
     */
    private static final class Once extends RichFilterFunction<Tuple3<String, byte[], String>> {
        private transient ValueState<byte[]> last;

        @Override
        public void open(Configuration configuration) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", byte[].class));
        }

        @Override
        public boolean filter(Tuple3<String, byte[], String> message) throws IOException {
            byte[] before = last.value();
            if (before != null
                    && MessageId.fromByteArray(message.f1)
                                    .compareTo(MessageId.fromByteArray(before))
                            <= 0) {
                return false;
            }
            last.update(message.f1);
            return true;
        }
    }
}
