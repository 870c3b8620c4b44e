import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Runs pulsar-admin for each line of stdin, arguments between tabs, in one process: a start takes
 * seconds. What it prints ends with a line {@code = true} or {@code = false}, for its exit code.
 * Arguments: its URL, and properties of client.conf as NAME=VALUE.
 */
final class Admin extends PulsarAdminTool {
    private Admin(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.put("webServiceUrl", args[0]);
        for (int n = 1; n < args.length; n++) {
            String[] property = args[n].split("=", 2);
            properties.put(property[0], property[1]);
        }
        System.setOut(
                new PrintStream(System.out, true) {
                    @Override
                    public void close() { // as broker-stats does after its answer
                        flush();
                    }
                });
        System.setErr(System.out);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        Admin tool = new Admin(properties);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            boolean isDone = tool.run(line.split("\t"));
            System.out.println("\n= " + isDone); // not every command ends its last line
        }
        Runtime.getRuntime().halt(0);
    }
}
