import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own Java client behind JSON lines: producers, consumers by assignment, group members, the admin client. */
final class KafkaAgent {
    private static final Duration POLL = Duration.ofMillis(50);
    /** By bootstrap servers; those that were used last come last. */
    private static final Map<String, Admin> ADMINS = new LinkedHashMap<>();
    private static final int ADMINS_MAX = 2;
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, Load> LOADS = new ConcurrentHashMap<>();
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    public static void main(String[] unused) throws Exception {
        Map<String, Agent.Command> commands = new HashMap<>();
        commands.put("write", KafkaAgent::write);
        commands.put("read", KafkaAgent::read);
        commands.put("join", args -> MEMBERS.put(name(args), new Member(args)) == null);
        commands.put("member", args -> MEMBERS.get(name(args)).act(args));
        commands.put("leave", args -> MEMBERS.remove(name(args)).leave());
        commands.put("open_producer", args -> PRODUCERS.put(name(args), producer(args)) == null);
        commands.put("producer", KafkaAgent::transactional);
        commands.put("pipe", KafkaAgent::pipe);
        commands.put("load_start", args -> LOADS.put(name(args), new Load(args)) == null);
        commands.put("load_stop", args -> LOADS.remove(name(args)).stop());
        commands.put("list_transactions", KafkaAgent::listTransactions);
        commands.put("describe_transaction", KafkaAgent::describeTransaction);
        commands.put("open_transactions", KafkaAgent::openTransactions);
        commands.put("abort_transactions", KafkaAgent::abortTransactions);
        commands.put("create_topic", KafkaAgent::createTopic);
        commands.put("create_partitions", KafkaAgent::createPartitions);
        commands.put("delete_topic", args -> admin(args).deleteTopics(List.of(topic(args))).all().get());
        commands.put("describe_topic", KafkaAgent::describeTopic);
        commands.put("describe_topics", KafkaAgent::describeTopics);
        commands.put("describe_quorum", KafkaAgent::describeQuorum);
        commands.put("list_client_metrics", args -> admin(args).listClientMetricsResources().all().get(20, TimeUnit.SECONDS)
                .size());
        commands.put("list_topics", args -> admin(args).listTopics().names().get());
        commands.put("topic_config", KafkaAgent::topicConfig);
        commands.put("set_topic_config", KafkaAgent::setTopicConfig);
        commands.put("broker_config", KafkaAgent::brokerConfig);
        commands.put("offsets", KafkaAgent::offsets);
        commands.put("delete_records", KafkaAgent::deleteRecords);
        commands.put("describe_group", KafkaAgent::describeGroup);
        commands.put("group_offsets", KafkaAgent::groupOffsets);
        commands.put("set_group_offsets", KafkaAgent::setGroupOffsets);
        commands.put("list_groups", args -> admin(args).listConsumerGroups().all().get().stream()
                .map(group -> group.groupId()).toList());
        commands.put("delete_group", args -> admin(args).deleteConsumerGroups(List.of(name(args))).all().get());
        Agent.serve(commands);
    }

    // -- Writing and reading

    /** Sends each record alone and waits for it, or with "together" all of them and then waits, so that they share batches. */
    private static Object write(JsonObject args) throws Exception {
        List<long[]> positions = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(args)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonElement each : args.getAsJsonArray("messages")) {
                sent.add(producer.send(record(topic(args), each.getAsJsonObject())));
                if (!Agent.flag(args, "together")) {
                    sent.get(sent.size() - 1).get(30, TimeUnit.SECONDS);
                }
            }
            producer.flush();
            for (Future<RecordMetadata> each : sent) {
                RecordMetadata stored = each.get(30, TimeUnit.SECONDS);
                positions.add(new long[] {stored.partition(), stored.offset(), stored.timestamp()});
            }
        }
        return positions;
    }

    // -- Transactions

    /** One step of a producer that was opened before; "do" says which. */
    private static Object transactional(JsonObject args) throws Exception {
        KafkaProducer<byte[], byte[]> producer = PRODUCERS.get(name(args));
        switch (args.get("do").getAsString()) {
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (JsonElement each : args.getAsJsonArray("messages")) {
                    sent.add(producer.send(record(topic(args), each.getAsJsonObject())));
                }
                producer.flush();
                List<long[]> positions = new ArrayList<>();
                for (Future<RecordMetadata> each : sent) {
                    positions.add(new long[] {each.get().partition(), each.get().offset()});
                }
                return positions;
            }
            case "offsets" -> {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                args.getAsJsonObject("offsets").asMap().forEach((queue, offset) -> offsets.put(
                        new TopicPartition(topic(args), Integer.parseInt(queue)),
                        new OffsetAndMetadata(offset.getAsLong())));
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(args.get("group").getAsString()));
            }
            case "metrics" -> {
                return metrics(producer.metrics());
            }
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> PRODUCERS.remove(name(args)).close(Duration.ofSeconds(1));
            default -> throw new IllegalArgumentException(args.toString());
        }
        return true;
    }

    /** Moves records from one topic to the same queues of another, exactly once, until something fails for good. */
    private static Object pipe(JsonObject args) throws Exception {
        String id = args.get("transactional_id").getAsString();
        Map<String, Object> config = config(args);
        config.put("group.id", args.get("group").getAsString());
        config.put("group.instance.id", id); // So that a new run takes the place of the one that was killed.
        config.put("session.timeout.ms", "6000");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("isolation.level", "read_committed");
        config.put("max.poll.records", "20");
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        JsonObject out = args.deepCopy();
        JsonObject settings = new JsonObject();
        settings.addProperty("transactional.id", id);
        settings.addProperty("transaction.timeout.ms", "10000");
        settings.addProperty("reconnect.backoff.max.ms", "200");
        out.add("config", settings);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config);
                KafkaProducer<byte[], byte[]> producer = producer(out)) {
            producer.initTransactions();
            consumer.subscribe(List.of(args.get("source").getAsString()));
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) {
                    move(consumer, producer, records, args.get("target").getAsString());
                }
            }
        }
    }

    private static void move(KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer,
            ConsumerRecords<byte[], byte[]> records, String target) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        producer.beginTransaction();
        try {
            for (ConsumerRecord<byte[], byte[]> each : records) {
                producer.send(new ProducerRecord<>(target, each.partition(), null, each.value()));
                offsets.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
        } catch (KafkaException error) {
            producer.abortTransaction(); // Throws if the error was for good.
            Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
            committed.forEach((partition, at) -> consumer.seek(partition, at == null ? 0 : at.offset()));
        }
    }

    /** Sends small records, "pause_ms" apart, one partition after the other; keeps where and when each was acknowledged. */
    private static final class Load {
        private final KafkaProducer<byte[], byte[]> producer;
        private final Thread thread;
        private final List<Object> acknowledged = new ArrayList<>();
        private final List<String> failures = new ArrayList<>();
        private volatile boolean stopping;

        Load(JsonObject args) {
            producer = producer(args);
            thread = new Thread(() -> run(
                    topic(args), name(args), (int) Agent.number(args, "partitions", 1), Agent.number(args, "pause_ms", 10)));
            thread.start();
        }

        private void run(String topic, String prefix, int partitions, long pauseMs) {
            for (int n = 0; !stopping; n++) {
                String body = prefix + "-" + n;
                ProducerRecord<byte[], byte[]> record =
                        new ProducerRecord<>(topic, n % partitions, null, body.getBytes(StandardCharsets.UTF_8));
                producer.send(record, (stored, error) -> note(body, stored, error));
                try {
                    Thread.sleep(pauseMs);
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        private void note(String body, RecordMetadata stored, Exception error) {
            synchronized (acknowledged) {
                if (error == null) {
                    acknowledged.add(List.of(body, stored.partition(), stored.offset(), System.currentTimeMillis()));
                } else {
                    failures.add(body + ": " + error);
                }
            }
        }

        Object stop() throws Exception {
            stopping = true;
            thread.join();
            producer.close(Duration.ofSeconds(60));
            synchronized (acknowledged) {
                return Map.of("acknowledged", acknowledged, "failures", failures);
            }
        }
    }

    private static Object listTransactions(JsonObject args) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (TransactionListing each : admin(args).listTransactions().all().get(20, TimeUnit.SECONDS)) {
            found.put(each.transactionalId(), each.state().toString());
        }
        return found;
    }

    private static Object describeTransaction(JsonObject args) throws Exception {
        TransactionDescription found = admin(args).describeTransactions(List.of(name(args))).description(name(args))
                .get(20, TimeUnit.SECONDS);
        Map<String, Object> described = new TreeMap<>();
        described.put("state", found.state().toString());
        described.put("producer_id", found.producerId());
        described.put("epoch", found.producerEpoch());
        described.put("timeout_ms", found.transactionTimeoutMs());
        described.put("is_open", found.transactionStartTimeMs().isPresent());
        described.put("partitions", partitions(found.topicPartitions()));
        return described;
    }

    /** The producers of one partition that have an open transaction in it. */
    private static List<ProducerState> open(JsonObject args, TopicPartition partition) throws Exception {
        return admin(args).describeProducers(List.of(partition)).partitionResult(partition).get(20, TimeUnit.SECONDS)
                .activeProducers().stream().filter(each -> each.currentTransactionStartOffset().isPresent()).toList();
    }

    private static Object openTransactions(JsonObject args) throws Exception {
        TopicPartition partition = new TopicPartition(topic(args), args.get("queue").getAsInt());
        List<Object> found = new ArrayList<>();
        for (ProducerState each : open(args, partition)) {
            found.add(new long[] {each.producerId(), each.currentTransactionStartOffset().getAsLong()});
        }
        return found;
    }

    /** As `kafka-transactions.sh abort` does it. */
    private static Object abortTransactions(JsonObject args) throws Exception {
        TopicPartition partition = new TopicPartition(topic(args), args.get("queue").getAsInt());
        for (ProducerState each : open(args, partition)) {
            admin(args).abortTransaction(new AbortTransactionSpec(partition, each.producerId(),
                    (short) each.producerEpoch(), each.coordinatorEpoch().orElse(0))).all().get(20, TimeUnit.SECONDS);
        }
        return true;
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, JsonObject message) {
        Integer partition = Agent.has(message, "queue") ? message.get("queue").getAsInt() : null;
        Long timestamp = Agent.has(message, "timestamp_ms") ? message.get("timestamp_ms").getAsLong() : null;
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                topic, partition, timestamp, Agent.bytes(message, "key"), Agent.bytes(message, "body"));
        for (JsonElement each : message.getAsJsonArray("headers")) {
            JsonObject header = each.getAsJsonObject();
            record.headers().add(header.get("name").getAsString(), Agent.bytes(header, "value"));
        }
        return record;
    }

    /** Reads every partition of the topics from its start until each topic gave as many records as asked for. */
    private static Object read(JsonObject args) throws Exception {
        Map<String, Integer> missing = new TreeMap<>();
        args.getAsJsonObject("topics").asMap().forEach((topic, count) -> missing.put(topic, count.getAsInt()));
        missing.values().removeIf(count -> count == 0);
        List<Object> seen = new ArrayList<>();
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Agent.number(args, "timeout_ms", 30_000));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(args)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : missing.keySet()) {
                consumer.partitionsFor(topic).forEach(p -> partitions.add(new TopicPartition(topic, p.partition())));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (!missing.isEmpty()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    seen.add(seen(record));
                    missing.computeIfPresent(record.topic(), (topic, count) -> count == 1 ? null : count - 1);
                }
                if (System.nanoTime() > until && !missing.isEmpty()) {
                    throw new TimeoutException("read " + seen.size() + " records; still missing " + missing);
                }
            }
        }
        return seen;
    }

    private static Map<String, Object> seen(ConsumerRecord<byte[], byte[]> record) throws Exception {
        Map<String, Object> seen = new HashMap<>();
        List<Map<String, Object>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            Map<String, Object> each = new HashMap<>();
            each.put("name", header.key());
            each.put("value", Agent.base64(header.value()));
            headers.add(each);
        }
        seen.put("topic", record.topic());
        seen.put("queue", record.partition());
        seen.put("offset", record.offset());
        seen.put("key", Agent.base64(record.key()));
        seen.put("head", Agent.head(record.value()));
        seen.put("fingerprint", Agent.fingerprint(record.value()));
        seen.put("headers", headers);
        seen.put("timestamp_ms", record.timestamp());
        seen.put("timestamp_type", record.timestampType().name);
        return seen;
    }

    // -- Members of a group

    /** A consumer with the thread that it must stay on: it polls all the time, and between two polls does what it is asked. */
    private static final class Member implements ConsumerRebalanceListener, Runnable {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final ConcurrentLinkedQueue<Runnable> asked = new ConcurrentLinkedQueue<>();
        private final List<Object> seen = new ArrayList<>();
        private final List<Object> events = new ArrayList<>();
        private final Thread thread = new Thread(this);
        private volatile boolean leaving;
        private volatile Throwable failure;

        Member(JsonObject args) {
            consumer = consumer(args);
            if (Agent.has(args, "pattern")) {
                consumer.subscribe(Pattern.compile(args.get("pattern").getAsString()), this);
            } else {
                List<String> topics = new ArrayList<>();
                args.getAsJsonArray("topics").forEach(topic -> topics.add(topic.getAsString()));
                consumer.subscribe(topics, this);
            }
            thread.start();
        }

        @Override
        public void run() {
            try (consumer) {
                while (!leaving) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                    synchronized (seen) {
                        for (ConsumerRecord<byte[], byte[]> record : records) {
                            Map<String, Object> each = seen(record);
                            each.put("at_ms", System.currentTimeMillis());
                            seen.add(each);
                        }
                    }
                    for (Runnable each = asked.poll(); each != null; each = asked.poll()) {
                        each.run();
                    }
                }
            } catch (Throwable error) {
                failure = error;
            }
        }

        Object leave() throws Exception {
            leaving = true;
            thread.join(15_000);
            return drain();
        }

        Object act(JsonObject args) throws Exception {
            if (failure != null) {
                throw new IllegalStateException("the member's thread ended: " + failure, failure);
            }
            String action = args.get("action").getAsString();
            if (action.equals("seen")) {
                return drain();
            }
            if (action.equals("metrics")) {
                return metrics(consumer.metrics());
            }
            return onThread(switch (action) {
                case "assignment" -> () -> partitions(consumer.assignment());
                case "commit_sync" -> () -> commitSync(args);
                case "commit_async" -> null; // Its own answer: see below.
                case "committed" -> () -> committed();
                case "seek" -> () -> seek(args);
                case "pause" -> () -> pause(true);
                case "resume" -> () -> pause(false);
                case "positions" -> () -> positions();
                case "offsets_for_time" -> () -> offsetsForTime(Agent.number(args, "timestamp_ms", 0));
                case "end_offsets" -> () -> byPartition(consumer.endOffsets(consumer.assignment()));
                case "lag" -> () -> lag();
                case "group" -> () -> List.of(
                        consumer.groupMetadata().generationId(), consumer.groupMetadata().memberId());
                default -> throw new IllegalArgumentException("no such action: " + action);
            });
        }

        private Object onThread(Callable<Object> work) throws Exception {
            CompletableFuture<Object> done = new CompletableFuture<>();
            asked.add(() -> {
                try {
                    if (work == null) {
                        commitAsync(done);
                    } else {
                        done.complete(work.call());
                    }
                } catch (Throwable error) {
                    done.completeExceptionally(error);
                }
            });
            return done.get(20, TimeUnit.SECONDS);
        }

        private Object drain() {
            synchronized (seen) {
                Map<String, Object> all = Map.of("seen", new ArrayList<>(seen), "events", new ArrayList<>(events));
                seen.clear();
                events.clear();
                return all;
            }
        }

        private Object commitSync(JsonObject args) {
            if (Agent.has(args, "offset")) {
                consumer.commitSync(Map.of(partition(args), new OffsetAndMetadata(args.get("offset").getAsLong(), "note")));
            } else {
                consumer.commitSync();
            }
            return committed();
        }

        private void commitAsync(CompletableFuture<Object> done) {
            consumer.commitAsync((offsets, error) -> {
                if (error != null) {
                    done.completeExceptionally(error);
                } else {
                    done.complete(offsets(offsets));
                }
            });
        }

        private Object committed() {
            return offsets(consumer.committed(consumer.assignment()));
        }

        private Object seek(JsonObject args) {
            consumer.seek(partition(args), args.get("offset").getAsLong());
            return true;
        }

        private Object pause(boolean pause) {
            if (pause) {
                consumer.pause(consumer.assignment());
            } else {
                consumer.resume(consumer.assignment());
            }
            return partitions(consumer.paused());
        }

        private Object positions() {
            Map<String, Object> positions = new TreeMap<>();
            consumer.assignment().forEach(each -> positions.put(each.toString(), consumer.position(each)));
            return positions;
        }

        private Object lag() {
            Map<String, Object> lag = new TreeMap<>();
            consumer.assignment().forEach(each -> lag.put(each.toString(), consumer.currentLag(each).orElse(-1)));
            return lag;
        }

        private Object offsetsForTime(long timestamp) {
            Map<TopicPartition, Long> times = new HashMap<>();
            consumer.assignment().forEach(each -> times.put(each, timestamp));
            Map<String, Object> found = new TreeMap<>();
            for (Map.Entry<TopicPartition, OffsetAndTimestamp> each : consumer.offsetsForTimes(times).entrySet()) {
                OffsetAndTimestamp at = each.getValue();
                found.put(each.getKey().toString(), at == null ? null : List.of(at.offset(), at.timestamp()));
            }
            return found;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            note("revoked", partitions);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            note("assigned", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            note("lost", partitions);
        }

        private void note(String what, Collection<TopicPartition> partitions) {
            synchronized (seen) {
                events.add(Map.of("what", what, "partitions", partitions(partitions), "at_ms", System.currentTimeMillis()));
            }
        }
    }

    // -- Topics

    private static Object createTopic(JsonObject args) throws Exception {
        NewTopic topic = new NewTopic(topic(args), (int) Agent.number(args, "partitions", -1), (short) -1);
        topic.configs(strings(args, "topic_config"));
        return admin(args).createTopics(List.of(topic)).all().get(20, TimeUnit.SECONDS);
    }

    private static Object createPartitions(JsonObject args) throws Exception {
        NewPartitions total = NewPartitions.increaseTo((int) Agent.number(args, "partitions", 0));
        return admin(args).createPartitions(Map.of(topic(args), total)).all().get(20, TimeUnit.SECONDS);
    }

    private static Object describeTopic(JsonObject args) throws Exception {
        var topic = admin(args).describeTopics(List.of(topic(args))).allTopicNames().get(20, TimeUnit.SECONDS).get(topic(args));
        return Map.of(
                "internal", topic.isInternal(),
                "id", topic.topicId().toString(),
                "partitions", topic.partitions().stream().map(p -> p.partition()).toList(),
                "leaders", topic.partitions().stream().map(p -> p.leader().id()).toList());
    }

    /** Of all topics named: their numbers of partitions, asked for page by page. */
    private static Object describeTopics(JsonObject args) throws Exception {
        List<String> topics = new ArrayList<>();
        args.getAsJsonArray("topics").forEach(topic -> topics.add(topic.getAsString()));
        DescribeTopicsOptions options = new DescribeTopicsOptions()
                .partitionSizeLimitPerResponse((int) Agent.number(args, "page", 2000));
        Map<String, Object> found = new TreeMap<>();
        admin(args).describeTopics(topics, options).allTopicNames().get(20, TimeUnit.SECONDS)
                .forEach((name, topic) -> found.put(name, topic.partitions().stream().map(p -> p.partition()).toList()));
        return found;
    }

    private static Object describeQuorum(JsonObject args) throws Exception {
        QuorumInfo quorum = admin(args).describeMetadataQuorum().quorumInfo().get(20, TimeUnit.SECONDS);
        return Map.of(
                "leader", quorum.leaderId(),
                "epoch", quorum.leaderEpoch(),
                "high_watermark", quorum.highWatermark(),
                "voters", quorum.voters().stream().map(each -> each.replicaId()).toList(),
                "log_ends", quorum.voters().stream().map(each -> each.logEndOffset()).toList(),
                "observers", quorum.observers().size());
    }

    private static Object topicConfig(JsonObject args) throws Exception {
        return config(args, new ConfigResource(ConfigResource.Type.TOPIC, topic(args)));
    }

    private static Object brokerConfig(JsonObject args) throws Exception {
        int node = admin(args).describeCluster().nodes().get().iterator().next().id();
        return config(args, new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(node)));
    }

    private static Object config(JsonObject args, ConfigResource resource) throws Exception {
        Map<String, Object> values = new TreeMap<>();
        admin(args).describeConfigs(List.of(resource)).all().get(20, TimeUnit.SECONDS).get(resource).entries()
                .forEach(entry -> values.put(entry.name(), entry.value()));
        return values;
    }

    private static Object setTopicConfig(JsonObject args) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic(args));
        List<AlterConfigOp> changes = new ArrayList<>();
        strings(args, "topic_config").forEach((name, value) ->
                changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        return admin(args).incrementalAlterConfigs(Map.of(resource, changes)).all().get(20, TimeUnit.SECONDS);
    }

    /** "at" is "earliest", "latest" or a timestamp; the answer is {"topic-partition": [offset, timestamp]}. */
    private static Object offsets(JsonObject args) throws Exception {
        String at = Agent.text(args, "at", "latest");
        OffsetSpec spec = switch (at) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max_timestamp" -> OffsetSpec.maxTimestamp();
            default -> OffsetSpec.forTimestamp(Long.parseLong(at));
        };
        Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
        for (TopicPartition each : partitionsOf(args)) {
            asked.put(each, spec);
        }
        Map<String, Object> found = new TreeMap<>();
        for (Map.Entry<TopicPartition, ListOffsetsResultInfo> each :
                admin(args).listOffsets(asked).all().get(20, TimeUnit.SECONDS).entrySet()) {
            found.put(each.getKey().toString(), List.of(each.getValue().offset(), each.getValue().timestamp()));
        }
        return found;
    }

    private static Object deleteRecords(JsonObject args) throws Exception {
        RecordsToDelete before = RecordsToDelete.beforeOffset(Agent.number(args, "offset", 0));
        return admin(args).deleteRecords(Map.of(partition(args), before)).all().get(20, TimeUnit.SECONDS);
    }

    // -- Groups

    private static Object describeGroup(JsonObject args) throws Exception {
        var group = admin(args).describeConsumerGroups(List.of(name(args))).all().get(20, TimeUnit.SECONDS).get(name(args));
        List<Object> members = new ArrayList<>();
        group.members().forEach(member -> members.add(Map.of(
                "id", member.consumerId(),
                "client", member.clientId(),
                "instance", member.groupInstanceId().orElse(""),
                "partitions", partitions(member.assignment().topicPartitions()))));
        return Map.of("assignor", group.partitionAssignor(), "members", members);
    }

    private static Object groupOffsets(JsonObject args) throws Exception {
        return offsets(admin(args).listConsumerGroupOffsets(name(args)).partitionsToOffsetAndMetadata().get(20, TimeUnit.SECONDS));
    }

    private static Object setGroupOffsets(JsonObject args) throws Exception {
        OffsetAndMetadata offset = new OffsetAndMetadata(Agent.number(args, "offset", 0));
        return admin(args).alterConsumerGroupOffsets(name(args), Map.of(partition(args), offset)).all().get(20, TimeUnit.SECONDS);
    }

    // -- Arguments and answers

    private static String topic(JsonObject args) {
        return args.get("topic").getAsString();
    }

    private static String name(JsonObject args) {
        return args.get("name").getAsString();
    }

    private static TopicPartition partition(JsonObject args) {
        return new TopicPartition(topic(args), (int) Agent.number(args, "queue", 0));
    }

    private static List<TopicPartition> partitionsOf(JsonObject args) throws Exception {
        return admin(args).describeTopics(List.of(topic(args))).allTopicNames().get(20, TimeUnit.SECONDS).get(topic(args))
                .partitions().stream().map(each -> new TopicPartition(topic(args), each.partition())).toList();
    }

    private static Map<String, String> strings(JsonObject args, String name) {
        Map<String, String> strings = new HashMap<>();
        if (Agent.has(args, name)) {
            args.getAsJsonObject(name).asMap().forEach((key, value) -> strings.put(key, value.getAsString()));
        }
        return strings;
    }

    private static Map<String, Object> config(JsonObject args) {
        Map<String, Object> config = new HashMap<>(strings(args, "config"));
        config.put("bootstrap.servers", args.get("bootstrap").getAsString());
        return config;
    }

    /** One admin client for each broker. Others are closed: to a broker that has ended, they connect again and again. */
    private static synchronized Admin admin(JsonObject args) {
        String bootstrap = args.get("bootstrap").getAsString();
        Admin known = ADMINS.remove(bootstrap);
        Admin own = known == null
                ? Admin.create(Map.of(
                        "bootstrap.servers", bootstrap,
                        "default.api.timeout.ms", "15000",
                        "request.timeout.ms", "10000"))
                : known;
        ADMINS.put(bootstrap, own);
        if (ADMINS.size() > ADMINS_MAX) {
            ADMINS.remove(ADMINS.keySet().iterator().next()).close(Duration.ZERO);
        }
        return own;
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonObject args) {
        Map<String, Object> config = config(args);
        config.putIfAbsent("key.serializer", ByteArraySerializer.class.getName());
        config.putIfAbsent("value.serializer", ByteArraySerializer.class.getName());
        return new KafkaProducer<>(config);
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonObject args) {
        Map<String, Object> config = config(args);
        config.putIfAbsent("key.deserializer", ByteArrayDeserializer.class.getName());
        config.putIfAbsent("value.deserializer", ByteArrayDeserializer.class.getName());
        config.putIfAbsent("auto.offset.reset", "earliest");
        config.putIfAbsent("enable.auto.commit", "false");
        return new KafkaConsumer<>(config);
    }

    /** The client's totals over all its connections, by name. */
    private static Map<String, Object> metrics(Map<MetricName, ? extends Metric> metrics) {
        Map<String, Object> totals = new TreeMap<>();
        metrics.forEach((name, metric) -> {
            if (name.name().endsWith("-total") && name.tags().keySet().equals(Set.of("client-id"))) {
                totals.put(name.name(), metric.metricValue());
            }
        });
        return totals;
    }

    private static List<String> partitions(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().toList();
    }

    private static Map<String, Object> byPartition(Map<TopicPartition, Long> values) {
        Map<String, Object> sorted = new TreeMap<>();
        values.forEach((partition, value) -> sorted.put(partition.toString(), value));
        return sorted;
    }

    private static Map<String, Object> offsets(Map<TopicPartition, OffsetAndMetadata> offsets) {
        Map<String, Object> sorted = new TreeMap<>();
        offsets.forEach((partition, at) -> sorted.put(partition.toString(), at == null ? null : at.offset()));
        return sorted;
    }
}
