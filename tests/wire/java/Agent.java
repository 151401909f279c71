import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * The loop that both agents share: a JSON line in is a command, a JSON line out its answer.
 *
 * <pre>
 *   -> {"id": 7, "op": "read", "topics": {"t": 3}}
 *   <- {"id": 7, "result": [...]}       or   {"id": 7, "error": "TimeoutException: ...", "trace": "..."}
 * </pre>
 *
 * Commands run side by side, so a long read holds up nobody; answers come in the order they are ready. The process ends
 * with its standard input, and so with the test that started it.
 */
final class Agent {
    static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final int HEAD_BYTES = 64;

    interface Command {
        Object run(JsonObject args) throws Exception;
    }

    static void serve(Map<String, Command> commands) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err); // What a client prints must not end up between the answers.
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            threads.execute(() -> {
                byte[] answer = (GSON.toJson(answer(commands, request)) + "\n").getBytes(StandardCharsets.UTF_8);
                synchronized (answers) {
                    answers.write(answer, 0, answer.length);
                    answers.flush();
                }
            });
        }
        Runtime.getRuntime().halt(0); // Clients' shutdown hooks would wait for brokers that are already gone.
    }

    private static JsonObject answer(Map<String, Command> commands, JsonObject request) {
        JsonObject answer = new JsonObject();
        answer.add("id", request.get("id"));
        try {
            Command command = commands.get(request.get("op").getAsString());
            if (command == null) {
                throw new IllegalArgumentException("no such command: " + request.get("op"));
            }
            answer.add("result", GSON.toJsonTree(command.run(request)));
        } catch (Throwable error) {
            Throwable cause = error instanceof java.util.concurrent.ExecutionException ? error.getCause() : error;
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            answer.addProperty("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
            answer.addProperty("trace", trace.toString());
        }
        return answer;
    }

    // -- Values on the line

    static byte[] bytes(JsonObject from, String name) {
        return has(from, name) ? Base64.getDecoder().decode(from.get(name).getAsString()) : null;
    }

    static String base64(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    /** The first bytes only: a body of a megabyte is distinguished by its fingerprint. */
    static String head(byte[] body) {
        return body == null ? null : base64(Arrays.copyOf(body, Math.min(body.length, HEAD_BYTES)));
    }

    static String fingerprint(byte[] body) throws Exception {
        if (body == null) {
            return null;
        }
        byte[] digest = MessageDigest.getInstance("SHA-1").digest(body);
        return body.length + ":" + HexFormat.of().formatHex(digest);
    }

    static boolean has(JsonObject from, String name) {
        return from.has(name) && !from.get(name).isJsonNull();
    }

    static String text(JsonObject from, String name, String otherwise) {
        return has(from, name) ? from.get(name).getAsString() : otherwise;
    }

    static long number(JsonObject from, String name, long otherwise) {
        return has(from, name) ? from.get(name).getAsLong() : otherwise;
    }

    static boolean flag(JsonObject from, String name) {
        return has(from, name) && from.get(name).getAsBoolean();
    }
}
