import com.google.gson.JsonObject;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's Java client with its settings as shipped, as fast as it goes. */
final class KafkaLoad {
    private KafkaLoad() {}

    static Object produce(JsonObject args) throws Exception {
        String topic = args.get("topic").getAsString();
        byte[] body = Load.body(args.get("size").getAsInt());
        AtomicReference<Exception> failure = new AtomicReference<>();
        long sent = 0;
        try (KafkaProducer<byte[], byte[]> producer = producer(args, Map.of())) {
            producer.partitionsFor(topic);
            long start = System.nanoTime();
            long until = start + Load.nanos(args.get("seconds").getAsDouble());
            for (; (sent & 63) != 0 || System.nanoTime() < until; sent++) {
                producer.send(new ProducerRecord<>(topic, body), (metadata, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                });
            }
            producer.flush();
            if (failure.get() != null) {
                throw failure.get();
            }
            return Load.ran(sent, System.nanoTime() - start);
        }
    }

    /** Sends in transactions, each of which is committed after `commit_ms`; counts what was committed. */
    static Object produceInTransactions(JsonObject args) throws Exception {
        String topic = args.get("topic").getAsString();
        byte[] body = Load.body(args.get("size").getAsInt());
        long each = args.get("commit_ms").getAsLong() * 1_000_000;
        long sent = 0;
        try (KafkaProducer<byte[], byte[]> producer = producer(args, Map.of("transactional.id", topic))) {
            producer.initTransactions();
            producer.partitionsFor(topic);
            long start = System.nanoTime();
            long until = start + Load.nanos(args.get("seconds").getAsDouble());
            for (long now = start; now < until; now = System.nanoTime()) {
                producer.beginTransaction();
                for (long end = now + each; (sent & 15) != 0 || System.nanoTime() < end; sent++) {
                    producer.send(new ProducerRecord<>(topic, body));
                }
                producer.commitTransaction(); // Raises what any of the sends met.
            }
            return Load.ran(sent, System.nanoTime() - start);
        }
    }

    /** Reads `count` messages from the beginning. */
    static Object consume(JsonObject args) throws Exception {
        long count = args.get("count").getAsLong();
        long deadline = System.nanoTime() + Load.nanos(120);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(args)) {
            List<TopicPartition> partitions = assignAll(consumer, args.get("topic").getAsString());
            long start = System.nanoTime();
            consumer.seekToBeginning(partitions);
            long got = 0;
            while (got < count) {
                got += consumer.poll(Duration.ofMillis(100)).count();
                Load.notAfter(deadline, got);
            }
            return Load.ran(got, System.nanoTime() - start);
        }
    }

    // -- One message in flight

    static Load.Sender sender(JsonObject args) {
        String topic = args.get("topic").getAsString();
        Map<String, Object> settings = new HashMap<>(Map.of("linger.ms", 0));
        if (Agent.has(args, "client_id")) {
            settings.put("client.id", args.get("client_id").getAsString());
        }
        KafkaProducer<byte[], byte[]> producer = producer(args, settings);
        producer.partitionsFor(topic);
        return new Load.Sender() {
            @Override
            public void send(byte[] body) throws Exception {
                producer.send(new ProducerRecord<>(topic, body)).get();
            }

            @Override
            public void close() {
                producer.close();
            }
        };
    }

    static Load.Receiver receiver(JsonObject args, Load.Inbox inbox) {
        KafkaConsumer<byte[], byte[]> consumer = consumer(args);
        List<TopicPartition> partitions = assignAll(consumer, args.get("topic").getAsString());
        consumer.seekToEnd(partitions);
        partitions.forEach(consumer::position);
        Thread poller = new Thread(() -> {
            while (!inbox.closed()) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> inbox.put(record.value()));
            }
            consumer.close();
        });
        poller.start();
        return poller::join;
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonObject args, Map<String, Object> settings) {
        Map<String, Object> conf = new HashMap<>(settings);
        conf.put("bootstrap.servers", args.get("kafka").getAsString());
        return new KafkaProducer<>(conf, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonObject args) {
        Map<String, Object> conf = Map.of("bootstrap.servers", args.get("kafka").getAsString());
        return new KafkaConsumer<>(conf, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<TopicPartition> assignAll(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (PartitionInfo each : consumer.partitionsFor(topic)) {
            partitions.add(new TopicPartition(topic, each.partition()));
        }
        consumer.assign(partitions);
        return partitions;
    }
}
