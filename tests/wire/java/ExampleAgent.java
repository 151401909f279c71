import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

/**
 * Programs in one JVM that know nothing of each other: each has its own copy of the client's classes, and the output of
 * its threads is identified by their thread group. What is on the JVM's own classpath is loaded once.
 */
final class ExampleAgent {
    private static final Map<String, Program> PROGRAMS = new ConcurrentHashMap<>();

    public static void main(String[] unused) throws Exception {
        Map<String, Agent.Command> commands = new TreeMap<>();
        commands.put("start", ExampleAgent::start);
        commands.put("await", ExampleAgent::await);
        commands.put("stop", ExampleAgent::stop);
        Agent.serve(commands);
    }

    /** Run "main" with "arguments"; its classes are searched in the directories and jars that "own" names. */
    private static synchronized Object start(JsonObject args) throws Exception {
        if (!(System.out instanceof Router)) {
            System.setOut(new Router(System.err));
            System.setErr(new Router(System.err));
        }
        Program program = new Program(args);
        PROGRAMS.put(args.get("name").getAsString(), program);
        program.start();
        return null;
    }

    private static Program program(JsonObject args) {
        return PROGRAMS.get(args.get("name").getAsString());
    }

    /** What a program has printed, once "pattern" is found "times" in it, or after "within_ms". */
    private static Object await(JsonObject args) throws Exception {
        Pattern pattern = Pattern.compile(args.get("pattern").getAsString());
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(args.get("within_ms").getAsLong());
        int size = -1;
        while (true) {
            String text = program(args).printed.toString(StandardCharsets.UTF_8);
            boolean isNew = text.length() > size;
            size = text.length();
            if (isNew && pattern.matcher(text).results().count() >= args.get("times").getAsLong() || System.nanoTime() > until) {
                return text;
            }
            Thread.sleep(50);
        }
    }

    /** Shut down what it left running, as the end of its process would; not waited for, for a client takes seconds. */
    private static Object stop(JsonObject args) {
        Program program = program(args);
        new Thread(program.group, program::shutDown).start();
        return null;
    }

    private static final class Program {
        final ThreadGroup group;
        final ByteArrayOutputStream printed = new ByteArrayOutputStream();
        private final URLClassLoader loader;
        private final String main;
        private final String[] arguments;

        Program(JsonObject args) throws Exception {
            main = args.get("main").getAsString();
            group = new ThreadGroup(args.get("name").getAsString());
            List<String> words = new ArrayList<>();
            args.getAsJsonArray("arguments").forEach(each -> words.add(each.getAsString()));
            arguments = words.toArray(new String[0]);
            List<URL> urls = new ArrayList<>();
            for (JsonElement each : args.getAsJsonArray("own")) {
                urls.add(Path.of(each.getAsString()).toUri().toURL());
            }
            loader = new URLClassLoader(urls.toArray(new URL[0]), ExampleAgent.class.getClassLoader());
        }

        void start() {
            Thread thread = new Thread(group, this::run, "main");
            thread.setContextClassLoader(loader);
            thread.start();
        }

        private void run() {
            try {
                loader.loadClass(main).getMethod("main", String[].class).invoke(null, (Object) arguments);
            } catch (InvocationTargetException error) {
                error.getCause().printStackTrace();
            } catch (ReflectiveOperationException error) {
                error.printStackTrace();
            }
        }

        /** All clients of a process are in one table of the library's. */
        void shutDown() {
            try {
                Object all = loader.loadClass("org.apache.rocketmq.client.impl.MQClientManager").getMethod("getInstance").invoke(null);
                for (Object client : table(all, "factoryTable")) {
                    for (String name : List.of("consumerTable", "producerTable")) {
                        for (Object each : table(client, name)) {
                            each.getClass().getMethod("shutdown").invoke(each);
                        }
                    }
                }
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
        }

        private static List<Object> table(Object owner, String name) throws ReflectiveOperationException {
            Field field = owner.getClass().getDeclaredField(name);
            field.setAccessible(true);
            return new ArrayList<>(((Map<?, ?>) field.get(owner)).values());
        }
    }

    /** Standard output for all: what a thread prints goes to the program that its group belongs to. */
    private static final class Router extends PrintStream {
        Router(PrintStream otherwise) {
            super(new OutputStream() {
                @Override
                public void write(int one) {
                    write(new byte[] {(byte) one}, 0, 1);
                }

                @Override
                public void write(byte[] bytes, int from, int count) {
                    for (ThreadGroup group = Thread.currentThread().getThreadGroup(); group != null; group = group.getParent()) {
                        Program program = PROGRAMS.get(group.getName());
                        if (program != null) {
                            program.printed.write(bytes, from, count);
                            return;
                        }
                    }
                    otherwise.write(bytes, from, count);
                }
            }, true);
        }
    }
}
