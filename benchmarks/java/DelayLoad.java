import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Delayed messages with RocketMQ's Java client, and how late they are: by the time the broker stored them in their queue,
 * and by the time the listener got them. Both sides run on one machine, so it is one clock. A message's body begins with its
 * due time.
 */
final class DelayLoad {
    private static final long MARGIN_S = 60;
    private static final int CURVE_STEPS = 200;

    private DelayLoad() {}

    /**
     * Sends `count` messages to `topics` in turn with `threads`: all due within `spread_ms` from `lead_ms` after now, or
     * by delay `level` (due so many `level_ms` after each send), or at `rate` a second with random delays between
     * `delay_from_ms` and `delay_to_ms`. With a `beside_rate` ordinary messages go to the topic `beside` at that rate
     * while they are delivered.
     */
    static Object run(JsonObject args) throws Exception {
        Plan plan = new Plan(args);
        List<String> topics = new ArrayList<>();
        for (JsonElement each : args.getAsJsonArray("topics")) {
            topics.add(each.getAsString());
        }
        DefaultMQProducer producer = RocketmqLoad.producer(args);
        for (String topic : topics) {
            producer.send(new Message(topic, new byte[1])); // Finds the route, makes the topic.
        }
        Receipts receipts = new Receipts(plan.count);
        DefaultMQPushConsumer consumer = RocketmqLoad.consumer(args, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, topics, receipts::take);
        try {
            plan.begin();
            send(producer, topics, plan);
            long sentMs = System.currentTimeMillis();
            Ordinary ordinary = new Ordinary(producer, args, plan, receipts.done);
            ordinary.start();
            long waitMs = plan.lastDueMs() - sentMs + MARGIN_S * 1000;
            receipts.done.await(waitMs, TimeUnit.MILLISECONDS);
            Map<String, Object> summary = receipts.summary(plan, sentMs);
            summary.putAll(ordinary.summary());
            return summary;
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private static void send(DefaultMQProducer producer, List<String> topics, Plan plan) throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicReference<Exception> failure = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < plan.threads; i++) {
            threads.add(new Thread(() -> {
                try {
                    for (int n = next.getAndIncrement(); n < plan.count && failure.get() == null; n = next.getAndIncrement()) {
                        plan.pace(n);
                        producer.send(plan.message(topics.get(n % topics.size()), n));
                    }
                } catch (Exception error) {
                    failure.set(error);
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread each : threads) {
            each.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    /** Sends at a steady rate from half a second before the first is due until all were received. */
    private static final class Ordinary extends Thread {
        private static final long LEAD_MS = 500;
        private final DefaultMQProducer producer;
        private final String topic;
        private final long rate;
        private final long startMs;
        private final CountDownLatch done;
        private final Queue<Long> tookNanos = new ConcurrentLinkedQueue<>();
        private int sends;
        private volatile Exception failure;

        Ordinary(DefaultMQProducer producer, JsonObject args, Plan plan, CountDownLatch done) {
            this.producer = producer;
            this.topic = args.get("beside").getAsString();
            this.rate = Agent.number(args, "beside_rate", 0);
            this.startMs = plan.firstDueMs() - LEAD_MS;
            this.done = done;
        }

        @Override
        public void run() {
            try {
                if (rate == 0) {
                    return;
                }
                for (int i = 0; i < rate; i++) {
                    producer.send(new Message(topic, new byte[128])); // Finds the route, warms up.
                }
                Thread.sleep(Math.max(0, startMs - System.currentTimeMillis()));
                long start = System.nanoTime();
                for (long i = 0; done.getCount() > 0; i++) {
                    long due = start + i * 1_000_000_000L / rate;
                    for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                        Thread.sleep(0, (int) Math.min(999_999, due - now));
                    }
                    producer.send(new Message(topic, new byte[128]), answered(due)); // A slow one does not hold up the next.
                    sends++;
                }
            } catch (Exception error) {
                failure = error;
            }
        }

        /** Counts from when it should have been sent: waiting in the client counts. */
        private SendCallback answered(long dueNanos) {
            return new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    tookNanos.add(System.nanoTime() - dueNanos);
                }

                @Override
                public void onException(Throwable error) {
                    failure = new IllegalStateException("an ordinary send failed", error);
                }
            };
        }

        Map<String, Object> summary() throws Exception {
            join(MARGIN_S * 1000);
            while (failure == null && tookNanos.size() < sends) {
                Thread.sleep(10); // A send that is not answered fails after three seconds.
            }
            if (failure != null) {
                throw failure;
            }
            double[] tookMs = tookNanos.stream().mapToDouble(nanos -> nanos / 100_000 / 10.0).sorted().toArray();
            int last = tookMs.length - 1;
            return last < 0
                    ? Map.of()
                    : Map.of("beside", Map.of("sends", tookMs.length, "p50", tookMs[last / 2], "p99", tookMs[(int) (last * 0.99)], "max", tookMs[last]));
        }
    }

    /** When each message is sent, and due. */
    private static final class Plan {
        final int count;
        final int threads;
        private final long leadMs;
        private final long spreadMs;
        private final int level;
        private final long levelMs;
        private final long rate;
        private final long delayFromMs;
        private final long delayToMs;
        private final int size;
        private long startMs;
        private volatile long lastDueMs;

        Plan(JsonObject args) {
            count = (int) Agent.number(args, "count", 0);
            threads = (int) Agent.number(args, "threads", 32);
            leadMs = Agent.number(args, "lead_ms", 0);
            spreadMs = Agent.number(args, "spread_ms", 0);
            level = (int) Agent.number(args, "level", 0);
            levelMs = Agent.number(args, "level_ms", 0);
            rate = Agent.number(args, "rate", 0);
            delayFromMs = Agent.number(args, "delay_from_ms", 0);
            delayToMs = Agent.number(args, "delay_to_ms", 0);
            size = (int) Agent.number(args, "size", 200);
        }

        void begin() {
            startMs = System.currentTimeMillis();
        }

        void pace(int n) throws InterruptedException {
            if (rate > 0) {
                long aheadMs = startMs + n * 1000L / rate - System.currentTimeMillis();
                if (aheadMs > 0) {
                    Thread.sleep(aheadMs);
                }
            }
        }

        Message message(String topic, int n) {
            long nowMs = System.currentTimeMillis();
            long dueMs;
            Message message = new Message(topic, null);
            if (level > 0) {
                dueMs = nowMs + levelMs;
                message.setDelayTimeLevel(level);
            } else {
                dueMs = rate > 0
                        ? nowMs + ThreadLocalRandom.current().nextLong(delayFromMs, delayToMs)
                        : startMs + leadMs + n * spreadMs / count;
                message.setDeliverTimeMs(dueMs);
            }
            byte[] body = Load.body(size);
            ByteBuffer.wrap(body).putLong(dueMs);
            message.setBody(body);
            lastDueMs = Math.max(lastDueMs, dueMs);
            return message;
        }

        long lastDueMs() {
            return lastDueMs;
        }

        long firstDueMs() {
            return startMs + leadMs;
        }
    }

    /** How late each message was; a level's due time is by the sender's clock, before the broker's. */
    private static final class Receipts {
        final CountDownLatch done = new CountDownLatch(1);
        private final long[] stored;
        private final long[] received;
        private final AtomicInteger got = new AtomicInteger();
        private volatile long lastStoredMs;
        private volatile long lastReceivedMs;

        Receipts(int count) {
            stored = new long[count];
            received = new long[count];
        }

        ConsumeConcurrentlyStatus take(List<MessageExt> messages, Object context) {
            long nowMs = System.currentTimeMillis();
            for (MessageExt each : messages) {
                if (each.getBody().length < 8) {
                    continue; // What made the topic.
                }
                long dueMs = ByteBuffer.wrap(each.getBody()).getLong();
                int n = got.getAndIncrement();
                if (n >= stored.length) {
                    continue; // Delivered twice: counted by the number alone.
                }
                stored[n] = each.getStoreTimestamp() - dueMs;
                received[n] = nowMs - dueMs;
                lastStoredMs = Math.max(lastStoredMs, each.getStoreTimestamp());
                lastReceivedMs = nowMs;
                if (n == stored.length - 1) {
                    done.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        Map<String, Object> summary(Plan plan, long sentMs) {
            int count = Math.min(got.get(), stored.length);
            Map<String, Object> summary = new HashMap<>();
            summary.put("messages", got.get());
            summary.put("early", IntStream.range(0, count).filter(n -> stored[n] < 0 || received[n] < 0).count());
            summary.put("stored", percentiles(Arrays.copyOf(stored, count)));
            summary.put("received", percentiles(Arrays.copyOf(received, count)));
            summary.put("curve", curve(Arrays.copyOf(received, count)));
            summary.put("stored_within_ms", lastStoredMs - plan.lastDueMs());
            summary.put("received_within_ms", lastReceivedMs - plan.lastDueMs());
            summary.put("sent_in_time", plan.rate > 0 || plan.level > 0 || sentMs < plan.firstDueMs());
            return summary;
        }

        /** By when each of CURVE_STEPS equal shares of the messages had come. */
        private static long[] curve(long[] late) {
            Arrays.sort(late);
            int last = late.length - 1;
            return last < 0
                    ? new long[0]
                    : IntStream.rangeClosed(0, CURVE_STEPS).mapToLong(n -> late[(int) ((long) last * n / CURVE_STEPS)]).toArray();
        }

        private static Object percentiles(long[] late) {
            Arrays.sort(late);
            int last = late.length - 1;
            return late.length == 0
                    ? Map.of()
                    : Map.of("p50", late[last / 2], "p99", late[(int) (last * 0.99)], "p999", late[(int) (last * 0.999)], "max", late[last]);
        }
    }
}
