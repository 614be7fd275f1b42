import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads committed records of partition 0 to its end; prints value and ID of each. */
public class Copies {
    /** Arguments: the bootstrap address and the topic. */
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "isolation.level", "read_committed",
            "key.deserializer", StringDeserializer.class,
            "value.deserializer", StringDeserializer.class);
        List<TopicPartition> copies = List.of(new TopicPartition(arguments[1], 0));
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.assign(copies);
            consumer.seekToBeginning(copies);
            long end = consumer.endOffsets(copies).get(copies.get(0));
            while (consumer.position(copies.get(0)) < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    byte[] id = record.headers().lastHeader("amcast.id").value();
                    System.out.println(record.value() + " " + new String(id));
                }
            }
        }
    }
}
