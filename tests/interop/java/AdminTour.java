import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs many mqadmin commands in one process: one command a line on standard input, its output between markers. */
public class AdminTour {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println("<<< " + line);
            try {
                MQAdminStartup.main0(line.trim().split("\\s+"), null);
            } catch (Throwable error) {
                error.printStackTrace(System.out);
            }
            System.out.println(">>>");
            System.out.flush();
        }
        System.exit(0);
    }
}
