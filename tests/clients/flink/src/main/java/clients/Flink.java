package clients;

import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.pulsar.sink.PulsarSink;
import org.apache.flink.connector.pulsar.source.PulsarSource;
import org.apache.flink.connector.pulsar.source.enumerator.cursor.StartCursor;
import org.apache.flink.connector.pulsar.source.enumerator.cursor.StopCursor;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Flink's connector: Flink URL ADMIN_URL. Doubles flink-in into flink-out, exactly once. */
public final class Flink {
    public static void main(String[] args) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2);
        env.enableCheckpointing(500);
        PulsarSource<String> source =
                PulsarSource.builder()
                        .setServiceUrl(args[0])
                        .setAdminUrl(args[1])
                        .setTopics("flink-in")
                        .setSubscriptionName("flink")
                        .setStartCursor(StartCursor.earliest())
                        .setBoundedStopCursor(StopCursor.latest())
                        .setDeserializationSchema(new SimpleStringSchema())
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
                .map(number -> String.valueOf(2 * Integer.parseInt(number)))
                .sinkTo(sink);
        env.execute("doubler");
        System.out.println("done");
        System.exit(0);
    }
}
