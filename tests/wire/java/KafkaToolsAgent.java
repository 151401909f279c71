import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/** Kafka's command-line tools in one JVM: a call runs the main class of one script and answers what it printed. */
final class KafkaToolsAgent {
    /** The script's name to the class that it starts. */
    private static final Map<String, String> TOOLS = Map.of(
            "kafka-acls.sh", "org.apache.kafka.tools.AclCommand",
            "kafka-configs.sh", "kafka.admin.ConfigCommand");

    /** Takes the place of the end of the JVM, which is how a tool says that it failed. */
    private static final class Exited extends RuntimeException {
        final int status;

        Exited(int status) {
            this.status = status;
        }
    }

    public static void main(String[] unused) throws Exception {
        Exit.setExitProcedure((status, message) -> {
            throw new Exited(status);
        });
        Agent.serve(Map.of("run", KafkaToolsAgent::run));
    }

    /** One at a time: what is printed goes to the one standard output that a process has. */
    private static synchronized Object run(JsonObject args) throws Exception {
        List<String> words = new ArrayList<>();
        for (JsonElement each : args.getAsJsonArray("words")) {
            words.add(each.getAsString());
        }
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        int status;
        try {
            status = status(args.get("tool").getAsString(), words.toArray(new String[0]));
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return Map.of("status", status, "printed", printed.toString(StandardCharsets.UTF_8));
    }

    private static int status(String tool, String[] words) throws Exception {
        try {
            Class.forName(TOOLS.get(tool)).getMethod("main", String[].class).invoke(null, (Object) words);
            return 0;
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (error.getCause() instanceof Exited exited) {
                return exited.status;
            }
            throw error;
        }
    }
}
