import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** Apache RocketMQ's own Java client behind JSON lines. The header form is the client's system property, one for each JVM. */
final class RocketmqAgent {
    /** The producers of each name server, by their other properties; the name server that was used last comes last. */
    private static final Map<String, Map<String, DefaultMQProducer>> PRODUCERS = new LinkedHashMap<>();
    private static final int NAME_SERVERS_MAX = 2;
    private static final Map<String, Transactional> TRANSACTIONALS = new ConcurrentHashMap<>();
    private static final Map<String, Push> PUSHES = new ConcurrentHashMap<>();
    private static final Map<String, Load> LOADS = new ConcurrentHashMap<>();
    private static final Map<String, TransactionalLoad> TRANSACTIONAL_LOADS = new ConcurrentHashMap<>();
    private static final AtomicInteger COUNT = new AtomicInteger();

    public static void main(String[] unused) throws Exception {
        Map<String, Agent.Command> commands = new HashMap<>();
        commands.put("write", RocketmqAgent::write);
        commands.put("write_oneway", RocketmqAgent::writeOneway);
        commands.put("write_delayed", RocketmqAgent::writeDelayed);
        commands.put("recall", RocketmqAgent::recall);
        commands.put("read_push", RocketmqAgent::readPush);
        commands.put("read_lite", RocketmqAgent::readLite);
        commands.put("read_pull", RocketmqAgent::readPull);
        commands.put("open", args -> PUSHES.put(name(args), new Push(args)) == null);
        commands.put("seen", args -> PUSHES.get(name(args)).drain());
        commands.put("suspend", args -> PUSHES.get(name(args)).suspend(Agent.flag(args, "on")));
        commands.put("queues", args -> PUSHES.get(name(args)).queues());
        commands.put("close", args -> PUSHES.remove(name(args)).close());
        commands.put("offsets", RocketmqAgent::offsets);
        commands.put("committed", RocketmqAgent::committed);
        commands.put("tx_open", args -> TRANSACTIONALS.put(name(args), new Transactional(args)) == null);
        commands.put("tx_send", args -> TRANSACTIONALS.get(name(args)).send(args));
        commands.put("tx_checked", args -> TRANSACTIONALS.get(name(args)).drain());
        commands.put("tx_close", args -> TRANSACTIONALS.remove(name(args)).close());
        commands.put("request", RocketmqAgent::request);
        commands.put("tx_load_start", args -> TRANSACTIONAL_LOADS.put(name(args), new TransactionalLoad(args)) == null);
        commands.put("tx_load_stop", args -> TRANSACTIONAL_LOADS.get(name(args)).stop());
        commands.put("tx_load_close", args -> TRANSACTIONAL_LOADS.remove(name(args)).close());
        commands.put("load_start", args -> LOADS.put(name(args), new Load(args)) == null);
        commands.put("load_stop", args -> LOADS.remove(name(args)).stop());
        Agent.serve(commands);
    }

    // -- Writing

    /** Sends by the way named by "how"; the answer has [queue, offset, msgId, offsetMsgId] for each message. */
    private static Object write(JsonObject args) throws Exception {
        DefaultMQProducer producer = producer(args);
        String how = Agent.text(args, "how", "sync");
        List<Message> messages = messages(args);
        if (how.equals("batch")) {
            return batch(producer, args, messages);
        }
        List<Object> stored = new ArrayList<>();
        List<CompletableFuture<SendResult>> waiting = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            JsonElement each = args.getAsJsonArray("messages").get(i);
            waiting.add(send(producer, how, messages.get(i), (int) Agent.number(each.getAsJsonObject(), "queue", -1)));
        }
        for (CompletableFuture<SendResult> each : waiting) {
            stored.add(stored(each.get(20, TimeUnit.SECONDS)));
        }
        return stored;
    }

    private static CompletableFuture<SendResult> send(DefaultMQProducer producer, String how, Message message, int queue)
            throws Exception {
        CompletableFuture<SendResult> done = new CompletableFuture<>();
        switch (how) {
            case "sync" -> done.complete(
                    queue < 0 ? producer.send(message) : producer.send(message, queue(producer, message.getTopic(), queue)));
            case "selector" -> done.complete(producer.send(message, RocketmqAgent::select, queue));
            case "async" -> {
                SendCallback callback = new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        done.complete(result);
                    }

                    @Override
                    public void onException(Throwable error) {
                        done.completeExceptionally(error);
                    }
                };
                if (queue < 0) {
                    producer.send(message, callback);
                } else {
                    producer.send(message, queue(producer, message.getTopic(), queue), callback);
                }
            }
            default -> throw new IllegalArgumentException("no such way to send: " + how);
        }
        return done;
    }

    private static MessageQueue select(List<MessageQueue> queues, Message message, Object wanted) {
        return queues.stream().filter(queue -> wanted.equals(queue.getQueueId())).findFirst().orElseThrow();
    }

    private static Object batch(DefaultMQProducer producer, JsonObject args, List<Message> messages) throws Exception {
        int queue = (int) Agent.number(args.getAsJsonArray("messages").get(0).getAsJsonObject(), "queue", -1);
        SendResult result = queue < 0
                ? producer.send(messages)
                : producer.send(messages, queue(producer, messages.get(0).getTopic(), queue));
        stored(result);
        String[] ids = result.getMsgId().split(",");
        String[] offsetIds = result.getOffsetMsgId().split(",");
        List<Object> stored = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            stored.add(List.of(result.getMessageQueue().getQueueId(), result.getQueueOffset() + i, ids[i], offsetIds[i]));
        }
        return stored;
    }

    private static Object writeOneway(JsonObject args) throws Exception {
        DefaultMQProducer producer = producer(args);
        List<String> ids = new ArrayList<>();
        List<Message> messages = messages(args);
        for (int i = 0; i < messages.size(); i++) {
            JsonObject each = args.getAsJsonArray("messages").get(i).getAsJsonObject();
            producer.sendOneway(messages.get(i), queue(producer, messages.get(i).getTopic(), (int) Agent.number(each, "queue", 0)));
            ids.add(MessageClientIDSetter.getUniqID(messages.get(i)));
        }
        return ids;
    }

    /** Sends a request and waits for its reply: the reply's body. */
    private static Object request(JsonObject args) throws Exception {
        Message asked = new Message(args.get("topic").getAsString(), args.get("text").getAsString().getBytes(StandardCharsets.UTF_8));
        long timeoutMs = Agent.number(args, "timeout_ms", 10_000);
        if (!Agent.flag(args, "callback")) {
            return new String(producer(args).request(asked, timeoutMs).getBody(), StandardCharsets.UTF_8);
        }
        CompletableFuture<String> done = new CompletableFuture<>();
        producer(args).request(asked, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                done.complete(new String(reply.getBody(), StandardCharsets.UTF_8));
            }

            @Override
            public void onException(Throwable error) {
                done.completeExceptionally(error);
            }
        }, timeoutMs);
        return done.get(timeoutMs + 5_000, TimeUnit.MILLISECONDS);
    }

    /** Sends one by one; the answer has [msgId, recall handle] for each message. */
    private static Object writeDelayed(JsonObject args) throws Exception {
        DefaultMQProducer producer = producer(args);
        List<Object> sent = new ArrayList<>();
        for (Message message : messages(args)) {
            SendResult result = producer.send(message);
            Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
            sent.add(List.of(result.getMsgId(), handle == null ? "" : handle));
        }
        return sent;
    }

    /** Takes a delayed message back by its handle; the answer is its msgId. Clients of 4.9 cannot. */
    private static Object recall(JsonObject args) throws Exception {
        DefaultMQProducer producer = producer(args);
        try {
            return DefaultMQProducer.class
                    .getMethod("recallMessage", String.class, String.class)
                    .invoke(producer, args.get("topic").getAsString(), args.get("handle").getAsString());
        } catch (InvocationTargetException error) {
            throw new IllegalStateException(error.getCause());
        }
    }

    /**
     * A TransactionMQProducer. Each message says by its properties "local" and "check" (commit, rollback, unknown) what
     * its transaction and a later check give; what it was checked for is kept until "tx_checked".
     */
    private static final class Transactional implements TransactionListener {
        private final TransactionMQProducer producer;
        private final List<Object> checked = new ArrayList<>();
        private final String check; // for all messages, if it is not empty

        Transactional(JsonObject args) throws Exception {
            check = Agent.text(args, "check", "");
            producer = new TransactionMQProducer(Agent.text(args, "group", unique("transaction")), signing(args));
            producer.setInstanceName(unique("transaction"));
            producer.setNamesrvAddr(args.get("namesrv").getAsString());
            producer.setSendMsgTimeout(10_000);
            producer.setTransactionListener(this);
            producer.start();
        }

        Object send(JsonObject args) throws Exception {
            List<Object> sent = new ArrayList<>();
            for (Message each : messages(args)) {
                TransactionSendResult result = producer.sendMessageInTransaction(each, null);
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("send was answered with " + result.getSendStatus());
                }
                sent.add(Map.of(
                        "msg_id", result.getMsgId(),
                        "transaction_id", result.getTransactionId(),
                        "half_offset", result.getQueueOffset()));
            }
            return sent;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message.getUserProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Map<String, Object> seen = seenMessage(message);
            seen.put("transaction_id", message.getTransactionId());
            synchronized (checked) {
                checked.add(seen);
            }
            return state(check.isEmpty() ? message.getUserProperty("check") : check);
        }

        private static LocalTransactionState state(String name) {
            return switch (name == null ? "unknown" : name) {
                case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
                case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            };
        }

        Object drain() {
            synchronized (checked) {
                List<Object> all = new ArrayList<>(checked);
                checked.clear();
                return all;
            }
        }

        Object close() {
            producer.shutdown();
            return drain();
        }
    }

    /**
     * Threads that send in transactions until they are stopped. What becomes of a message follows from its body, so that
     * whoever is asked says the same. Each line of `log` is there before the broker can know of it, whatever is killed:
     * "half body" before its verdict is given, "check body" before its check is answered.
     */
    private static final class TransactionalLoad implements TransactionListener {
        private final TransactionMQProducer producer;
        private final FileOutputStream log;
        private final Set<String> doubted = ConcurrentHashMap.newKeySet();
        private final List<Thread> threads = new ArrayList<>();
        private volatile boolean stopping;

        TransactionalLoad(JsonObject args) throws Exception {
            log = new FileOutputStream(args.get("log").getAsString(), true);
            producer = new TransactionMQProducer(args.get("group").getAsString());
            producer.setInstanceName(unique("load"));
            producer.setNamesrvAddr(args.get("namesrv").getAsString());
            producer.setSendMsgTimeout(3_000);
            producer.setRetryTimesWhenSendFailed(0); // Else one call may leave two half messages.
            producer.setTransactionListener(this);
            producer.start();
            for (int i = 0; i < Agent.number(args, "threads", 2); i++) {
                String prefix = name(args) + "-" + i + "-";
                threads.add(new Thread(() -> run(args.get("topic").getAsString(), prefix)));
            }
            threads.forEach(Thread::start);
        }

        private void run(String topic, String prefix) {
            for (int n = 0; !stopping; n++) {
                String body = prefix + n;
                try {
                    producer.sendMessageInTransaction(new Message(topic, body.getBytes(StandardCharsets.UTF_8)), null);
                    Load.pause(2);
                } catch (Exception error) {
                    Load.pause(20);
                }
            }
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            note("half " + body);
            return hash(body) / 8 % 3 == 0 ? LocalTransactionState.UNKNOW : verdict(body);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            note("check " + body);
            boolean doubts = hash(body) / 32 % 4 == 0 && doubted.add(body);
            return doubts ? LocalTransactionState.UNKNOW : verdict(body);
        }

        private static LocalTransactionState verdict(String body) {
            boolean commits = hash(body) % 4 != 0;
            return commits ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        private static long hash(String body) {
            CRC32 crc = new CRC32();
            crc.update(body.getBytes(StandardCharsets.UTF_8));
            return crc.getValue();
        }

        private void note(String line) {
            try {
                log.write((line + "\n").getBytes(StandardCharsets.UTF_8)); // One system call: whole lines, and kept.
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        /** Sends no more, but goes on to answer checks. */
        Object stop() throws Exception {
            stopping = true;
            for (Thread each : threads) {
                each.join(15_000);
            }
            return true;
        }

        Object close() {
            producer.shutdown();
            return true;
        }
    }

    private static Object stored(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("send was answered with " + result.getSendStatus());
        }
        return List.of(
                result.getMessageQueue().getQueueId(), result.getQueueOffset(), result.getMsgId(), result.getOffsetMsgId());
    }

    private static MessageQueue queue(DefaultMQProducer producer, String topic, int id) throws Exception {
        return select(producer.fetchPublishMessageQueues(topic), null, id);
    }

    private static List<Message> messages(JsonObject args) throws ReflectiveOperationException {
        List<Message> messages = new ArrayList<>();
        for (JsonElement each : args.getAsJsonArray("messages")) {
            messages.add(message(args.get("topic").getAsString(), each.getAsJsonObject()));
        }
        return messages;
    }

    private static Message message(String topic, JsonObject from) throws ReflectiveOperationException {
        Message message = new Message(topic, Agent.bytes(from, "body"));
        if (Agent.has(from, "tags")) {
            message.setTags(from.get("tags").getAsString());
        }
        if (Agent.has(from, "key")) {
            message.setKeys(new String(Agent.bytes(from, "key"), StandardCharsets.UTF_8));
        }
        for (JsonElement each : from.getAsJsonArray("headers")) {
            JsonObject header = each.getAsJsonObject();
            message.putUserProperty(
                    header.get("name").getAsString(), new String(Agent.bytes(header, "value"), StandardCharsets.UTF_8));
        }
        if (Agent.has(from, "delay_level")) {
            message.setDelayTimeLevel(from.get("delay_level").getAsInt());
        }
        for (String setter : List.of("setDeliverTimeMs", "setDelayTimeMs", "setDelayTimeSec")) { // not in 4.9
            if (Agent.has(from, setter)) {
                Message.class.getMethod(setter, long.class).invoke(message, from.get(setter).getAsLong());
            }
        }
        message.setWaitStoreMsgOK(!Agent.flag(from, "no_wait"));
        return message;
    }

    /**
     * One producer for each name server and compression. The client reads its codec from a system property when made.
     * Those of name servers that were not used lately are shut down: a client of 5.x that does nothing takes half a
     * percent of a core, because two threads of its ProduceAccumulator wake up all the time.
     */
    private static synchronized DefaultMQProducer producer(JsonObject args) throws Exception {
        String namesrv = args.get("namesrv").getAsString();
        String codec = Agent.text(args, "compress", "none");
        boolean trace = Agent.flag(args, "trace");
        String key = codec + (trace ? " trace" : "") + " " + Agent.text(args, "access_key", "") + " "
                + Agent.text(args, "secret_key", "");
        Map<String, DefaultMQProducer> known = PRODUCERS.remove(namesrv);
        Map<String, DefaultMQProducer> own = known == null ? new HashMap<>() : known;
        PRODUCERS.put(namesrv, own);
        if (PRODUCERS.size() > NAME_SERVERS_MAX) {
            Collection<DefaultMQProducer> unused = PRODUCERS.remove(PRODUCERS.keySet().iterator().next()).values();
            new Thread(() -> unused.forEach(DefaultMQProducer::shutdown)).start(); // Waits for a broker that is paused.
        }
        if (!own.containsKey(key)) {
            System.setProperty("rocketmq.message.compressType", codec.equals("none") ? "ZLIB" : codec.toUpperCase());
            System.setProperty("com.rocketmq.recall.default.trace.enable", "true"); // Where messages are traced at all.
            DefaultMQProducer producer = new DefaultMQProducer(unique("producer"), signing(args), trace, null);
            producer.setInstanceName(unique("producer"));
            producer.setNamesrvAddr(namesrv);
            producer.setSendMsgTimeout(10_000);
            producer.setDefaultTopicQueueNums((int) Agent.number(args, "queues", 4));
            producer.setCompressMsgBodyOverHowmuch(codec.equals("none") ? Integer.MAX_VALUE : 100);
            producer.start();
            own.put(key, producer);
        }
        return own.get(key);
    }

    /** Signs each request with the access key that the arguments name; null without one. */
    private static RPCHook signing(JsonObject args) {
        if (!Agent.has(args, "access_key")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(
                args.get("access_key").getAsString(), args.get("secret_key").getAsString()));
    }

    // -- Reading

    /** A push consumer; "seen" drains what its listener was given. */
    private static final class Push {
        private final DefaultMQPushConsumer consumer;
        private final List<Object> seen = new ArrayList<>();
        private final long started_ms;
        private final int failures;
        private final int retryLevel;
        private final DefaultMQProducer replier;

        Push(JsonObject args) throws Exception {
            failures = (int) Agent.number(args, "failures", 0);
            retryLevel = (int) Agent.number(args, "retry_level", 0);
            replier = Agent.flag(args, "replies") ? producer(args) : null;
            consumer = new DefaultMQPushConsumer(
                    Agent.text(args, "group", unique("push")), signing(args), new AllocateMessageQueueAveragely());
            consumer.setInstanceName(unique("push"));
            if (Agent.has(args, "attempts")) {
                consumer.setMaxReconsumeTimes(args.get("attempts").getAsInt());
            }
            if (Agent.flag(args, "broadcast")) {
                consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
            }
            if (Agent.flag(args, "assigned")) { // The broker says who has which queue; clients of 4.9 do not ask.
                DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
                DefaultMQPushConsumer.class
                        .getMethod("setPopInvisibleTime", long.class)
                        .invoke(consumer, Agent.number(args, "invisible_ms", 60_000));
            }
            consumer.setSuspendCurrentQueueTimeMillis(100);
            consumer.setNamesrvAddr(args.get("namesrv").getAsString());
            consumer.setConsumeFromWhere(switch (Agent.text(args, "from", "first")) {
                case "first" -> ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
                case "last" -> ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET;
                default -> ConsumeFromWhere.CONSUME_FROM_TIMESTAMP;
            });
            if (Agent.has(args, "timestamp")) {
                consumer.setConsumeTimestamp(args.get("timestamp").getAsString()); // yyyyMMddHHmmss, local time
            }
            for (Map.Entry<String, JsonElement> each : args.getAsJsonObject("topics").entrySet()) {
                if (Agent.has(args, "sql")) {
                    consumer.subscribe(each.getKey(), MessageSelector.bySql(args.get("sql").getAsString()));
                } else {
                    consumer.subscribe(each.getKey(), Agent.text(args, "expression", "*"));
                }
            }
            consumer.setConsumeThreadMin(1); // One thread, so that "seen" has each queue's messages in their order.
            consumer.setConsumeThreadMax(1);
            consumer.setPersistConsumerOffsetInterval((int) Agent.number(args, "persist_ms", 5000));
            if (Agent.flag(args, "orderly")) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> take(messages)
                        ? ConsumeOrderlyStatus.SUCCESS
                        : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    context.setDelayLevelWhenNextConsume(retryLevel);
                    return take(messages)
                            ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                            : ConsumeConcurrentlyStatus.RECONSUME_LATER;
                });
            }
            started_ms = System.currentTimeMillis();
            consumer.start();
        }

        /** Keep what came; false if one of them is bad and has not failed often enough yet. */
        private boolean take(List<MessageExt> messages) {
            boolean good = true;
            for (MessageExt each : messages) {
                Map<String, Object> one = seenMessage(each);
                one.put("at_ms", System.currentTimeMillis());
                one.put("attempt", each.getReconsumeTimes());
                synchronized (seen) {
                    seen.add(one);
                }
                good &= each.getReconsumeTimes() >= failures || each.getBody() == null || each.getBody()[0] != 'b';
                reply(each);
            }
            return good;
        }

        private void reply(MessageExt message) {
            if (replier != null && message.getProperty("CORRELATION_ID") != null) {
                try {
                    byte[] body = ("re: " + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(message, body), 3_000);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
        }

        Object suspend(boolean on) {
            if (on) {
                consumer.suspend();
            } else {
                consumer.resume();
            }
            return on;
        }

        Object drain() {
            synchronized (seen) {
                Map<String, Object> all = Map.of("seen", new ArrayList<>(seen), "started_ms", started_ms);
                seen.clear();
                return all;
            }
        }

        /** The queues that this member owns now, retry topics left out. */
        Object queues() {
            Map<String, List<Integer>> owned = new TreeMap<>();
            for (MessageQueue each : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
                if (!each.getTopic().startsWith("%RETRY%")) {
                    owned.computeIfAbsent(each.getTopic(), unused -> new ArrayList<>()).add(each.getQueueId());
                }
            }
            owned.values().forEach(queues -> queues.sort(null));
            return owned;
        }

        Object close() {
            consumer.shutdown();
            return drain();
        }
    }

    private static Object readPush(JsonObject args) throws Exception {
        Missing missing = new Missing(args);
        Push push = new Push(args);
        try {
            while (missing.any()) {
                Thread.sleep(20);
                synchronized (push.seen) {
                    missing.take(push.seen);
                    push.seen.clear();
                }
            }
        } finally {
            push.close();
        }
        return missing.seen;
    }

    private static Object readLite(JsonObject args) throws Exception {
        Missing missing = new Missing(args);
        DefaultLitePullConsumer consumer =
                new DefaultLitePullConsumer(Agent.text(args, "group", unique("lite")));
        consumer.setInstanceName(unique("lite"));
        consumer.setNamesrvAddr(args.get("namesrv").getAsString());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        for (String topic : missing.counts.keySet()) {
            consumer.subscribe(topic, "*");
        }
        consumer.start();
        try {
            while (missing.any()) {
                missing.take(seenMessages(consumer.poll(100)));
            }
        } finally {
            consumer.shutdown(); // Also writes the group's offsets.
        }
        return missing.seen;
    }

    /** Pulls each queue from its minimum to its maximum offset, without a group's help. */
    @SuppressWarnings("deprecation")
    private static Object readPull(JsonObject args) throws Exception {
        Missing missing = new Missing(args);
        DefaultMQPullConsumer consumer = pullConsumer(args);
        try {
            for (String topic : Set.copyOf(missing.counts.keySet())) {
                for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                    long offset = consumer.minOffset(queue);
                    long end = consumer.maxOffset(queue);
                    while (offset < end && missing.inTime()) {
                        PullResult pulled = consumer.pull(queue, "*", offset, 32);
                        if (pulled.getPullStatus() == PullStatus.FOUND) {
                            missing.take(seenMessages(pulled.getMsgFoundList()));
                        }
                        if (pulled.getNextBeginOffset() <= offset) {
                            throw new IllegalStateException("pull at " + offset + " of " + end + " stays there: " + pulled);
                        }
                        offset = pulled.getNextBeginOffset();
                    }
                }
            }
        } finally {
            consumer.shutdown();
        }
        missing.check();
        return missing.seen;
    }

    @SuppressWarnings("deprecation")
    private static DefaultMQPullConsumer pullConsumer(JsonObject args) throws Exception {
        DefaultMQPullConsumer consumer =
                new DefaultMQPullConsumer(Agent.text(args, "group", unique("pull")));
        consumer.setInstanceName(unique("pull"));
        consumer.setNamesrvAddr(args.get("namesrv").getAsString());
        consumer.start();
        return consumer;
    }

    /** How many messages of each topic are still to come, and the moment that ends the patience. */
    private static final class Missing {
        final Map<String, Integer> counts = new TreeMap<>();
        final List<Object> seen = new ArrayList<>();
        private final long until_ns;

        Missing(JsonObject args) {
            args.getAsJsonObject("topics").asMap().forEach((topic, count) -> counts.put(topic, count.getAsInt()));
            until_ns = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Agent.number(args, "timeout_ms", 30_000));
        }

        @SuppressWarnings("unchecked")
        void take(Collection<?> messages) {
            for (Object each : messages) {
                seen.add(each);
                String topic = (String) ((Map<String, Object>) each).get("topic");
                counts.computeIfPresent(topic, (unused, count) -> count == 1 ? null : count - 1);
            }
        }

        boolean inTime() throws TimeoutException {
            if (System.nanoTime() > until_ns) {
                check();
            }
            return true;
        }

        boolean any() throws TimeoutException {
            return !counts.isEmpty() && inTime();
        }

        void check() throws TimeoutException {
            if (!counts.isEmpty()) {
                throw new TimeoutException("read " + seen.size() + " messages; still missing " + counts);
            }
        }
    }

    private static List<Object> seenMessages(Collection<MessageExt> messages) {
        List<Object> seen = new ArrayList<>();
        messages.forEach(each -> seen.add(seenMessage(each)));
        return seen;
    }

    private static Map<String, Object> seenMessage(MessageExt message) {
        try {
            byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
            Map<String, Object> seen = new HashMap<>();
            seen.put("topic", message.getTopic());
            seen.put("queue", message.getQueueId());
            seen.put("offset", message.getQueueOffset());
            seen.put("offset_msg_id", message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId());
            seen.put("properties", new TreeMap<>(message.getProperties()));
            seen.put("born_ms", message.getBornTimestamp());
            seen.put("store_ms", message.getStoreTimestamp());
            seen.put("head", Agent.head(body));
            seen.put("fingerprint", Agent.fingerprint(body));
            return seen;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    // -- Offsets

    /** {queue: offset}; "at" is "min", "max" or a timestamp to search. */
    @SuppressWarnings("deprecation")
    private static Object offsets(JsonObject args) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer(args);
        try {
            Map<String, Object> offsets = new TreeMap<>();
            String at = Agent.text(args, "at", "max");
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(args.get("topic").getAsString())) {
                long offset = switch (at) {
                    case "min" -> consumer.minOffset(queue);
                    case "max" -> consumer.maxOffset(queue);
                    default -> consumer.searchOffset(queue, Long.parseLong(at));
                };
                offsets.put(String.valueOf(queue.getQueueId()), offset);
            }
            return offsets;
        } finally {
            consumer.shutdown();
        }
    }

    @SuppressWarnings("deprecation")
    private static Object committed(JsonObject args) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer(args);
        try {
            Map<String, Object> offsets = new TreeMap<>();
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(args.get("topic").getAsString())) {
                offsets.put(String.valueOf(queue.getQueueId()), consumer.fetchConsumeOffset(queue, true));
            }
            return offsets;
        } finally {
            consumer.shutdown();
        }
    }

    // -- Load

    /** Threads that send small messages, "pause_ms" apart; keeps what was acknowledged, for the test to look for. */
    private static final class Load {
        private final DefaultMQProducer producer;
        private final long pauseMs;
        private final List<Thread> threads = new ArrayList<>();
        private final List<Object> acknowledged = new ArrayList<>();
        private final Map<String, Integer> failures = new TreeMap<>();
        private volatile boolean stopping;

        Load(JsonObject args) throws Exception {
            producer = new DefaultMQProducer(unique("load"));
            producer.setInstanceName(unique("load"));
            producer.setNamesrvAddr(args.get("namesrv").getAsString());
            producer.setSendMsgTimeout(3_000);
            producer.setRetryAnotherBrokerWhenNotStoreOK(true);
            producer.start();
            pauseMs = Agent.number(args, "pause_ms", 1);
            for (int i = 0; i < Agent.number(args, "threads", 2); i++) {
                String prefix = name(args) + "-" + i + "-";
                threads.add(new Thread(() -> run(args.get("topic").getAsString(), prefix)));
            }
            threads.forEach(Thread::start);
        }

        private void run(String topic, String prefix) {
            for (int n = 0; !stopping; n++) {
                String body = prefix + n;
                try {
                    SendResult result = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
                    stored(result);
                    note(body, result);
                    pause(pauseMs);
                } catch (Exception error) {
                    synchronized (acknowledged) {
                        failures.merge(error.getClass().getSimpleName(), 1, Integer::sum);
                    }
                    pause(10);
                }
            }
        }

        private void note(String body, SendResult result) {
            synchronized (acknowledged) {
                acknowledged.add(List.of(
                        body, result.getMessageQueue().getQueueId(), result.getQueueOffset(), System.currentTimeMillis()));
            }
        }

        static void pause(long ms) {
            try {
                Thread.sleep(ms);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }

        Object stop() throws Exception {
            stopping = true;
            for (Thread each : threads) {
                each.join(15_000);
            }
            producer.shutdown();
            synchronized (acknowledged) {
                return Map.of("acknowledged", acknowledged, "failures", failures);
            }
        }
    }

    /** A name for a group or a client that no other agent of any run uses. */
    private static String unique(String what) {
        return "wire-" + what + "-" + System.currentTimeMillis() + "-" + ProcessHandle.current().pid() + "-" + COUNT.incrementAndGet();
    }

    private static String name(JsonObject args) {
        return args.get("name").getAsString();
    }
}
