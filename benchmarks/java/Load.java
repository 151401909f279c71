import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Loads by the Java clients of both protocols, in one long-lived JVM, so that its code is warm in every round. */
final class Load {
    private static final int LATENCY_BODY_BYTES = 128;
    private static final long RECEIPT_WITHIN_S = 10;

    /** Sends one message and returns when the broker has answered. */
    interface Sender extends AutoCloseable {
        void send(byte[] body) throws Exception;

        @Override
        void close();
    }

    interface Receiver {
        void stop() throws Exception;
    }

    public static void main(String[] unused) throws Exception {
        Map<String, Agent.Command> commands = new HashMap<>();
        commands.put("kafka_produce", KafkaLoad::produce);
        commands.put("kafka_transactions", KafkaLoad::produceInTransactions);
        commands.put("kafka_consume", KafkaLoad::consume);
        commands.put("rocketmq_send", RocketmqLoad::send);
        commands.put("rocketmq_push", RocketmqLoad::push);
        commands.put("rocketmq_failing_start", RocketmqLoad::failingStart);
        commands.put("rocketmq_failing_run", RocketmqLoad::failingRun);
        commands.put("rocketmq_first_send", RocketmqLoad::firstSend);
        commands.put("rocketmq_delays", DelayLoad::run);
        commands.put("one_in_flight", Load::oneInFlight);
        commands.put("paced_sends", Load::pacedSends);
        Agent.serve(commands);
    }

    // -- Latency

    /** Where a receiver puts what came: the sender's thread waits here for its message. */
    static final class Inbox {
        private final LinkedBlockingQueue<long[]> receipts = new LinkedBlockingQueue<>();
        private volatile boolean closed;

        void put(byte[] body) {
            long now = System.nanoTime();
            receipts.add(new long[] {ByteBuffer.wrap(body).getLong(), now});
        }

        /** When message `number` was received; earlier ones are passed over. */
        long await(long number, long timeout, TimeUnit unit) throws Exception {
            while (true) {
                long[] receipt = receipts.poll(timeout, unit);
                if (receipt == null) {
                    return -1;
                }
                if (receipt[0] == number) {
                    return receipt[1];
                }
            }
        }

        boolean closed() {
            return closed;
        }
    }

    /** From the call of send to the receipt by a consumer of either protocol, one message at a time. */
    private static Object oneInFlight(JsonObject args) throws Exception {
        int count = args.get("count").getAsInt();
        int warmup = args.get("warmup").getAsInt();
        Inbox inbox = new Inbox();
        try (Sender sender = sender(args)) {
            sender.send(numbered(-1)); // Makes the topic, if need be.
            Receiver receiver = isKafka(args, "to") ? KafkaLoad.receiver(args, inbox) : RocketmqLoad.receiver(args, inbox);
            try {
                awaitReceiver(sender, inbox);
                long[] nanos = new long[count];
                for (int i = -warmup; i < count; i++) {
                    long start = System.nanoTime();
                    sender.send(numbered(i));
                    long received = inbox.await(i, RECEIPT_WITHIN_S, TimeUnit.SECONDS);
                    if (received < 0) {
                        throw new TimeoutException("message " + i + " was not received within " + RECEIPT_WITHIN_S + " s");
                    }
                    if (i >= 0) {
                        nanos[i] = received - start;
                    }
                }
                return percentiles(nanos);
            } finally {
                inbox.closed = true;
                receiver.stop();
            }
        }
    }

    /** A consumer that starts at the end may need a while to get there: sends until one message has come. */
    private static void awaitReceiver(Sender sender, Inbox inbox) throws Exception {
        long deadline = System.nanoTime() + nanos(60);
        for (long number = Long.MIN_VALUE; ; number++) {
            sender.send(numbered(number));
            if (inbox.await(number, 200, TimeUnit.MILLISECONDS) >= 0) {
                return;
            }
            notAfter(deadline, 0);
        }
    }

    /**
     * From the call of send to the answer, at a steady rate; a late send counts from when it should have been. With
     * `each`, all times are returned.
     */
    private static Object pacedSends(JsonObject args) throws Exception {
        double rate = args.get("rate").getAsDouble();
        int count = (int) (rate * args.get("seconds").getAsDouble());
        long[] nanos = new long[count];
        try (Sender sender = sender(args)) {
            for (int i = 0; i < rate; i++) {
                sender.send(numbered(i));
            }
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                long due = start + (long) (i * 1e9 / rate);
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    Thread.sleep(0, (int) Math.min(999_999, due - now));
                }
                sender.send(numbered(i));
                nanos[i] = System.nanoTime() - due;
            }
        }
        if (args.has("each")) {
            return Map.of("each_ms", Arrays.stream(nanos).mapToDouble(each -> each / 1e6).toArray());
        }
        return percentiles(nanos);
    }

    private static Sender sender(JsonObject args) throws Exception {
        return isKafka(args, "from") ? KafkaLoad.sender(args) : RocketmqLoad.sender(args);
    }

    private static boolean isKafka(JsonObject args, String side) {
        return args.get(side).getAsString().equals("kafka");
    }

    private static byte[] numbered(long number) {
        return ByteBuffer.allocate(LATENCY_BODY_BYTES).putLong(number).array();
    }

    private static Object percentiles(long[] nanos) {
        Arrays.sort(nanos);
        return Map.of(
                "mean_ms", Arrays.stream(nanos).average().orElse(0) / 1e6,
                "p50_ms", nanos[nanos.length / 2] / 1e6,
                "p99_ms", nanos[(int) (nanos.length * 0.99)] / 1e6,
                "max_ms", nanos[nanos.length - 1] / 1e6);
    }

    // -- What the loads share

    /** Bytes that are neither all alike nor worth compressing. */
    static byte[] body(int size) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) ((i * 7919 >> 3) % 251);
        }
        return body;
    }

    static long nanos(double seconds) {
        return (long) (seconds * 1e9);
    }

    static Object ran(long messages, long nanos) {
        return Map.of("messages", messages, "seconds", nanos / 1e9);
    }

    static void notAfter(long deadline, long got) throws TimeoutException {
        if (System.nanoTime() > deadline) {
            throw new TimeoutException("too late, with " + got + " messages");
        }
    }
}
