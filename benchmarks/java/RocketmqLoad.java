import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;

/** RocketMQ's Java client with its settings as shipped, as fast as it goes. */
final class RocketmqLoad {
    private static final AtomicLong COUNT = new AtomicLong();
    private static final int LABELS = 8;
    private static final long PUSH_WITHIN_S = 180;

    private RocketmqLoad() {}

    /**
     * Threads that each send and wait, for `seconds` or until `count` are stored: single messages, batches, or
     * transactions of one message that are committed at once. A "limited" load goes on where a quota refuses a send.
     */
    static Object send(JsonObject args) throws Exception {
        DefaultMQProducer producer = Agent.flag(args, "transactional") ? transactional(args) : producer(args);
        try {
            Batches batches = new Batches(producer, args);
            batches.sendOne(1); // Finds the route, makes the topic.
            long start = System.nanoTime();
            batches.sendAll(args.get("threads").getAsInt(), Agent.has(args, "seconds") ? args.get("seconds").getAsDouble() : 600);
            return Load.ran(batches.stored.get(), System.nanoTime() - start);
        } finally {
            producer.shutdown();
        }
    }

    /** What the threads of one load share. */
    private static final class Batches {
        final AtomicLong stored = new AtomicLong();
        final AtomicReference<Exception> failure = new AtomicReference<>();
        private final AtomicLong claimed = new AtomicLong();
        private final DefaultMQProducer producer;
        private final String topic;
        private final byte[] body;
        private final int batch;
        private final long limit;
        private final boolean labelled;
        private final boolean limited;

        Batches(DefaultMQProducer producer, JsonObject args) {
            this.producer = producer;
            topic = args.get("topic").getAsString();
            body = Load.body(args.get("size").getAsInt());
            batch = (int) Agent.number(args, "batch", 1);
            limit = Agent.number(args, "count", Long.MAX_VALUE);
            labelled = Agent.flag(args, "labelled");
            limited = Agent.flag(args, "limited");
        }

        /** Have so many threads send, until `limit` messages are claimed or the time is over. */
        void sendAll(int count, double seconds) throws Exception {
            long until = System.nanoTime() + Load.nanos(seconds);
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                threads.add(new Thread(() -> sendUntil(until)));
            }
            threads.forEach(Thread::start);
            for (Thread each : threads) {
                each.join();
            }
            if (failure.get() != null) {
                throw failure.get();
            }
        }

        void sendUntil(long until) {
            try {
                while (System.nanoTime() < until && failure.get() == null && claimed.getAndAdd(batch) < limit) {
                    try {
                        sendOne(batch);
                        stored.addAndGet(batch);
                    } catch (MQClientException | MQBrokerException error) {
                        if (!limited || codeOf(error) != ResponseCode.SYSTEM_BUSY) {
                            throw error;
                        }
                    }
                }
            } catch (Exception error) {
                failure.set(error);
            }
        }

        void sendOne(int batch) throws Exception {
            if (producer instanceof TransactionMQProducer transactional) {
                check(transactional.sendMessageInTransaction(new Message(topic, body), null));
                return;
            }
            if (batch == 1) {
                check(producer.send(new Message(topic, body)));
                return;
            }
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                messages.add(message(i % LABELS));
            }
            check(producer.send(messages));
        }

        private Message message(int label) {
            Message message = new Message(topic, body);
            if (labelled) {
                message.setTags("t" + label);
                message.putUserProperty("a", String.valueOf(label));
            }
            return message;
        }
    }

    /** The code of a send that failed; after its retries, the client wraps what the broker has answered. */
    private static int codeOf(Exception error) {
        return error instanceof MQBrokerException answered
                ? answered.getResponseCode()
                : ((MQClientException) error).getResponseCode();
    }

    private static void check(SendResult result) {
        // Under SYNC_FLUSH only the status reports a late flush.
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not stored: " + result.getSendStatus());
        }
    }

    /**
     * A fresh push consumer that reads `count` messages from the beginning; timed from the first one on. It may be
     * "orderly", want those of one "tag" or "sql" only, or "pop".
     */
    static Object push(JsonObject args) throws Exception {
        String topic = args.get("topic").getAsString();
        Progress progress = new Progress(args.get("count").getAsLong());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(unique("consumer"));
        consumer.setInstanceName(unique("instance"));
        consumer.setNamesrvAddr(args.get("namesrv").getAsString());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (Agent.has(args, "sql")) {
            consumer.subscribe(topic, MessageSelector.bySql(args.get("sql").getAsString()));
        } else {
            consumer.subscribe(topic, Agent.text(args, "tag", "*"));
        }
        if (Agent.flag(args, "orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> progress.orderly(messages));
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) progress::concurrently);
        }
        if (Agent.flag(args, "pop")) {
            havePopped(args, topic, consumer.getConsumerGroup());
            consumer.setClientRebalance(false);
        }
        consumer.start();
        try {
            progress.await();
            return Load.ran(progress.got.get(), System.nanoTime() - progress.start.get());
        } finally {
            consumer.shutdown();
        }
    }

    /** A push consumer that fails each message once, and who sends to it. One at a time. */
    private static final class Failing {
        final DefaultMQProducer producer;
        final DefaultMQPushConsumer consumer;
        volatile Progress progress;

        Failing(JsonObject args) throws Exception {
            producer = producer(args);
            new Batches(producer, args).sendOne(1);
            progress = new Progress(1);
            consumer = RocketmqLoad.consumer(
                    args, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, (messages, context) -> progress.failing(messages, context));
        }

    }

    private static Failing failing;

    /** Start it, and wait until one message came back: by then its retry topic is there, and the client has found it. */
    static Object failingStart(JsonObject args) throws Exception {
        failing = new Failing(args);
        failing.progress.await();
        return null;
    }

    /** Send "count" messages, and wait until all have come back. */
    static Object failingRun(JsonObject args) throws Exception {
        try {
            Batches batches = new Batches(failing.producer, args);
            long start = System.nanoTime();
            failing.progress = new Progress(args.get("count").getAsLong());
            batches.sendAll(args.get("threads").getAsInt(), PUSH_WITHIN_S);
            failing.progress.await();
            return Load.ran(failing.progress.got.get(), System.nanoTime() - start);
        } finally {
            failing.consumer.shutdown();
            failing.producer.shutdown();
        }
    }

    /** How far a push consumer is. */
    private static final class Progress {
        final CountDownLatch done = new CountDownLatch(1);
        final AtomicLong got = new AtomicLong();
        final AtomicLong start = new AtomicLong();
        final long count;

        Progress(long count) {
            this.count = count;
        }

        void await() throws Exception {
            if (!done.await(PUSH_WITHIN_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException("got " + got + " of " + count + " messages");
            }
        }

        ConsumeConcurrentlyStatus concurrently(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            take(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        ConsumeConcurrentlyStatus failing(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            if (messages.get(0).getReconsumeTimes() > 0) {
                return concurrently(messages, context);
            }
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }

        ConsumeOrderlyStatus orderly(List<MessageExt> messages) {
            take(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        }

        private void take(List<MessageExt> messages) {
            if (start.get() == 0) {
                start.compareAndSet(0, System.nanoTime());
            }
            if (got.addAndGet(messages.size()) >= count) {
                done.countDown();
            }
        }
    }

    /** Have the brokers of a topic give a group its messages by POP: what `mqadmin setConsumeMode` does. */
    private static void havePopped(JsonObject args, String topic, String group) throws Exception {
        DefaultMQProducer producer = producer(args);
        try {
            MQClientAPIImpl api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
            for (BrokerData each : api.getTopicRouteInfoFromNameServer(topic, 5_000).getBrokerDatas()) {
                api.setMessageRequestMode(each.selectBrokerAddr(), topic, group, MessageRequestMode.POP, 0, 5_000);
            }
        } finally {
            producer.shutdown();
        }
    }

    /** Tries until a message is stored; gives the monotonic time of that, for the caller who started the broker. */
    static Object firstSend(JsonObject args) throws Exception {
        DefaultMQProducer producer = producer(args);
        Message message = new Message(args.get("topic").getAsString(), Load.body(16));
        long deadline = System.nanoTime() + Load.nanos(120);
        try {
            while (true) {
                try {
                    check(producer.send(message));
                    return System.nanoTime() / 1e9; // CLOCK_MONOTONIC, as Python's time.monotonic().
                } catch (Exception error) {
                    Load.notAfter(deadline, 0);
                    Thread.sleep(10);
                }
            }
        } finally {
            producer.shutdown();
        }
    }

    // -- One message in flight

    static Load.Sender sender(JsonObject args) throws Exception {
        String topic = args.get("topic").getAsString();
        DefaultMQProducer producer = producer(args);
        return new Load.Sender() {
            @Override
            public void send(byte[] body) throws Exception {
                check(producer.send(new Message(topic, body)));
            }

            @Override
            public void close() {
                producer.shutdown();
            }
        };
    }

    static Load.Receiver receiver(JsonObject args, Load.Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = consumer(args, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, (messages, context) -> {
            messages.forEach(message -> inbox.put(message.getBody()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer::shutdown;
    }

    static DefaultMQProducer producer(JsonObject args) throws Exception {
        return started(new DefaultMQProducer(unique("producer")), args);
    }

    /** Each message's transaction is over, and committed, as soon as its half message is stored. */
    private static DefaultMQProducer transactional(JsonObject args) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(unique("producer"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return started(producer, args);
    }

    private static DefaultMQProducer started(DefaultMQProducer producer, JsonObject args) throws Exception {
        producer.setInstanceName(unique("instance"));
        producer.setNamesrvAddr(args.get("namesrv").getAsString());
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(JsonObject args, ConsumeFromWhere from, MessageListenerConcurrently listener)
            throws Exception {
        return consumer(args, from, List.of(args.get("topic").getAsString()), listener);
    }

    static DefaultMQPushConsumer consumer(
            JsonObject args, ConsumeFromWhere from, List<String> topics, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(unique("consumer"));
        consumer.setInstanceName(unique("instance"));
        consumer.setNamesrvAddr(args.get("namesrv").getAsString());
        consumer.setConsumeFromWhere(from);
        for (String topic : topics) {
            consumer.subscribe(topic, "*");
        }
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    private static String unique(String what) {
        return "bench-" + what + "-" + ProcessHandle.current().pid() + "-" + System.currentTimeMillis() + "-" + COUNT.incrementAndGet();
    }
}
