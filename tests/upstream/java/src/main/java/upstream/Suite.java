package upstream;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.testng.IAnnotationTransformer;
import org.testng.IMethodInstance;
import org.testng.IMethodInterceptor;
import org.testng.ITestContext;
import org.testng.ITestListener;
import org.testng.ITestResult;
import org.testng.TestNG;
import org.testng.annotations.ITestAnnotation;
import org.testng.xml.XmlSuite;

/**
 * Runs test classes one after the other and prints a JSON object when a test begins and when it ends.
 *
 * <p>The argument is the limit of a test in milliseconds. Each line of its input is CLASS or
 * CLASS#METHOD,METHOD, each perhaps with !METHOD,METHOD behind it, which do not run. A test is named
 * CLASS.METHOD, and #2 and so on for its further invocations with other arguments.
 */
public final class Suite implements ITestListener, IAnnotationTransformer, IMethodInterceptor {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final PrintStream out;
    private final long limitMs;
    private final Set<String> wanted;
    private final Set<String> unwanted;
    private final Map<String, Integer> counts = new LinkedHashMap<>();
    private final Map<ITestResult, String> names = new LinkedHashMap<>();

    private Suite(PrintStream out, long limitMs, Set<String> wanted, Set<String> unwanted) {
        this.out = out;
        this.limitMs = limitMs;
        this.wanted = wanted;
        this.unwanted = unwanted;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        Admin.change();
        long limitMs = Long.parseLong(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] all = line.split("!");
            String[] parts = all[0].split("#");
            Suite suite = new Suite(out, limitMs, methods(parts), methods(all));
            run(suite, parts[0]);
            suite.say(parts[0], "done", null, 0);
        }
        System.exit(0);
    }

    private static Set<String> methods(String[] parts) {
        return parts.length == 1 ? Set.of() : Set.of(parts[1].split(","));
    }

    private static void run(Suite suite, String name) {
        try {
            TestNG runner = new TestNG(false);
            runner.setVerbose(0);
            // what one test leaves behind is not the fault of the next
            runner.setConfigFailurePolicy(XmlSuite.FailurePolicy.CONTINUE);
            runner.addListener(suite);
            runner.setTestClasses(new Class<?>[] {Class.forName(name)});
            runner.run();
        } catch (Throwable error) {
            suite.say(name.replaceAll(".*\\.", "") + ".*", "fail", error, 0);
        }
    }

    @Override
    public void transform(ITestAnnotation annotation, Class kind, Constructor made, Method method) {
        if (annotation.getTimeOut() == 0 || annotation.getTimeOut() > limitMs) {
            annotation.setTimeOut(limitMs);
        }
    }

    @Override
    public List<IMethodInstance> intercept(List<IMethodInstance> methods, ITestContext context) {
        List<IMethodInstance> chosen = new ArrayList<>();
        for (IMethodInstance method : methods) {
            String name = method.getMethod().getMethodName();
            if ((wanted.isEmpty() || wanted.contains(name)) && !unwanted.contains(name)) {
                chosen.add(method);
            }
        }
        return chosen;
    }

    @Override
    public void onTestStart(ITestResult result) {
        say(name(result), "begin", null, 0);
    }

    @Override
    public void onTestSuccess(ITestResult result) {
        end(result, "pass");
    }

    @Override
    public void onTestFailure(ITestResult result) {
        end(result, "fail");
    }

    @Override
    public void onTestSkipped(ITestResult result) {
        end(result, "fail");
    }

    private void end(ITestResult result, String status) {
        say(name(result), status, result.getThrowable(), result.getEndMillis() - result.getStartMillis());
    }

    private synchronized String name(ITestResult result) {
        return names.computeIfAbsent(result, key -> {
            String name = result.getTestClass().getRealClass().getSimpleName() + "."
                + result.getMethod().getMethodName();
            int count = counts.merge(name, 1, Integer::sum);
            return count == 1 ? name : name + "#" + count;
        });
    }

    private synchronized void say(String name, String status, Throwable error, long ms) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("test", name);
        line.put("status", status);
        line.put("ms", ms);
        line.put("error", error == null ? "" : reason(error));
        try {
            out.println(JSON.writeValueAsString(line));
        } catch (java.io.IOException broken) {
            throw new IllegalStateException(broken);
        }
        out.flush();
    }

    /** The error, its causes, and the places in tests that it came from. */
    private static String reason(Throwable error) {
        StringBuilder text = new StringBuilder();
        Set<Throwable> seen = new HashSet<>();
        for (Throwable each = error; each != null && seen.add(each); each = each.getCause()) {
            text.append(each == error ? "" : " < ").append(each.toString().replaceAll("\\s+", " "));
            for (StackTraceElement place : each.getStackTrace()) {
                if (place.getClassName().matches("org.apache.pulsar.*(Test|Base).*")) {
                    text.append(" at ").append(place.getMethodName()).append(':').append(place.getLineNumber());
                    break;
                }
            }
        }
        return text.length() > 800 ? text.substring(0, 800) : text.toString();
    }
}
