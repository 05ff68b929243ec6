import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/**
 * How long the producer waits for the answer to one message, and to a batch of two, with each property given as
 * NAME=VALUE. Arguments: NameServer address, topic, properties. One fact a send: took, single or batch, property,
 * status, milliseconds.
 */
public class Waiting {
    public static void main(String[] a) {
        try {
            run(a);
            System.exit(0);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1); // the client's threads would keep the process
        }
    }

    static void run(String[] a) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("java_waiting");
        p.setNamesrvAddr(a[0]);
        p.setSendMsgTimeout(30000);
        p.setMqClientApiTimeout(15000);
        p.setRetryTimesWhenSendFailed(0);
        p.start();
        p.send(message(a[1], "WAIT=true")); // the topic is there from here on, and the connection is open
        for (int i = 2; i < a.length; i++) {
            long begin = System.nanoTime();
            SendResult single = p.send(message(a[1], a[i]));
            took("single", a[i], single, begin);
            List<Message> batch = new ArrayList<>();
            for (int j = 0; j < 2; j++) batch.add(message(a[1], a[i]));
            begin = System.nanoTime();
            took("batch", a[i], p.send(batch), begin);
        }
        p.shutdown();
    }

    static Message message(String topic, String property) {
        Message m = new Message(topic, "body".getBytes(StandardCharsets.UTF_8));
        int at = property.indexOf('=');
        MessageAccessor.putProperty(m, property.substring(0, at), property.substring(at + 1));
        return m;
    }

    static void took(String kind, String property, SendResult r, long begin) {
        System.out.println("took\t" + kind + "\t" + property + "\t" + r.getSendStatus() + "\t"
            + (System.nanoTime() - begin) / 1000000);
    }
}
