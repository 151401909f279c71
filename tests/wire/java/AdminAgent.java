import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Apache RocketMQ's admin command line, mqadmin, in one JVM: a call runs one subcommand and answers what it printed. Words
 * that a subcommand does not know end the JVM, as they end the command line.
 */
final class AdminAgent {
    /** Opens what the command line keeps to itself and its heirs. */
    private static final class Startup extends MQAdminStartup {
        static List<SubCommand> commands() {
            initCommand();
            return SUB_COMMANDS;
        }

        /** Some subcommands keep the client of their first run, which may be that of another broker. */
        static void forgetClients() {
            SUB_COMMANDS.clear();
        }
    }

    public static void main(String[] unused) throws Exception {
        Map<String, Agent.Command> commands = new TreeMap<>();
        commands.put("run", AdminAgent::run);
        commands.put("list", args -> list());
        Agent.serve(commands);
    }

    /**
     * A client that shuts down waits for this thread of its own to look again, up to three seconds: wake it. Runs as long
     * as a subcommand, because a look at the stacks of all threads takes a millisecond of the processor.
     */
    private static void hurry() {
        while (true) {
            Map<Thread, StackTraceElement[]> threads = Thread.getAllStackTraces();
            if (threads.values().stream().anyMatch(AdminAgent::isShuttingDown)) {
                for (Thread each : threads.keySet()) {
                    if (each.getName().contains("NettyEventExecutor")) {
                        each.interrupt();
                    }
                }
            }
            try {
                Thread.sleep(20);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private static boolean isShuttingDown(StackTraceElement[] stack) {
        return Arrays.stream(stack).anyMatch(frame ->
                frame.getMethodName().equals("shutdown") && frame.getClassName().endsWith(".NettyRemotingClient"));
    }

    /** The subcommands by name, each with what it says of itself. */
    private static synchronized Object list() {
        Map<String, String> found = new TreeMap<>();
        for (SubCommand each : Startup.commands()) {
            found.put(each.commandName(), each.commandDesc());
        }
        return found;
    }

    /** Signs each request with the access key that the arguments name; null without one. */
    private static RPCHook signing(JsonObject args) {
        if (!Agent.has(args, "access_key")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(
                args.get("access_key").getAsString(), args.get("secret_key").getAsString()));
    }

    /** One at a time: what is printed goes to the one standard output that a process has. */
    private static synchronized Object run(JsonObject args) {
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
        Thread hurry = new Thread(AdminAgent::hurry);
        hurry.start();
        try {
            Startup.forgetClients();
            MQAdminStartup.main0(words.toArray(new String[0]), signing(args));
        } finally {
            hurry.interrupt();
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }
}
