import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The official Java client of RocketMQ 5 (rocketmq-client-java): what client.py does and prints, with its API. */
public class GrpcClient {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final long DEADLINE_S = 120;
    static String endpoint;
    static String suffix;

    public static void main(String[] a) throws Exception {
        endpoint = a[1];
        suffix = a[2];
        if (a[0].equals("flow")) flow();
        else decide();
        System.exit(0);
    }

    static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) line.append(line.length() == 0 ? "" : "\t").append(word);
        System.out.println(line);
        System.out.flush();
    }

    static ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false).setRequestTimeout(Duration.ofSeconds(15)).build();
    }

    static String topic(String name) {
        return "Grpc" + name + suffix;
    }

    static String body(MessageView m) {
        return StandardCharsets.UTF_8.decode(m.getBody()).toString();
    }

    static MessageBuilder made(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static PushConsumer push(String name, String group, CountDownLatch left, Map<String, FilterExpression> topics) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration()).setConsumerGroup(group + suffix)
            .setSubscriptionExpressions(topics).setMessageListener(m -> {
                String body = body(m);
                say(name, m.getTopic(), body, m.getTag().orElse("None"), m.getMessageGroup().orElse("None"), m.getDeliveryAttempt());
                left.countDown();
                return body.equals("fails") && m.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
    }

    static void flow() throws Exception {
        String plain = topic("Plain"), ordered = topic("Ordered"), later = topic("Later");
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(plain, ordered, later).build();
        FilterExpression all = FilterExpression.SUB_ALL;
        CountDownLatch pushed = new CountDownLatch(20 + 2 + 10 + 1);
        CountDownLatch inOrder = new CountDownLatch(10);
        PushConsumer push = push("push", "GrpcPush", pushed, Map.of(plain, all, ordered, all, later, all));
        PushConsumer orderly = push("in-order", "GrpcInOrder", inOrder, Map.of(ordered, all));
        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup("GrpcSimple" + suffix).setAwaitDuration(Duration.ofSeconds(10))
            .setSubscriptionExpressions(Map.of(plain, new FilterExpression("odd", FilterExpressionType.TAG))).build();
        for (int i = 0; i < 20; i++) {
            producer.send(made(plain, "plain-" + i).setTag(i % 2 == 1 ? "odd" : "even").setKeys("key-" + i).build());
        }
        producer.send(made(plain, "fails").build());
        for (int i = 0; i < 10; i++) producer.send(made(ordered, "ordered-" + i).setMessageGroup("one").build());
        long due = System.currentTimeMillis() / 1000 + 4;
        producer.send(made(later, "later-" + due).setDeliveryTimestamp(due * 1000).build());
        Set<String> taken = ConcurrentHashMap.newKeySet();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
        while (taken.size() < 10 && System.nanoTime() < end) {
            for (MessageView m : simple.receive(16, Duration.ofSeconds(20))) {
                say("simple", m.getTopic(), body(m), m.getTag().orElse("None"), m.getDeliveryAttempt());
                simple.ack(m);
                taken.add(body(m));
            }
        }
        pushed.await(DEADLINE_S, TimeUnit.SECONDS);
        inOrder.await(DEADLINE_S, TimeUnit.SECONDS);
        for (AutoCloseable one : List.of(push, orderly, simple, producer)) one.close();
    }

    static void decide() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        String decided = topic("Decided");
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(decided)
            .setTransactionChecker(m -> {
                String body = body(m);
                say("checked", body);
                if (body.equals("orphan")) asked.countDown();
                return body.equals("undone") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
            }).build();
        for (String body : List.of("committed", "undone", "orphan")) {
            Transaction transaction = producer.beginTransaction();
            SendReceipt receipt = producer.send(made(decided, body).setKeys(body).build(), transaction);
            say("half", body, receipt.getMessageId());
            if (body.equals("committed")) transaction.commit();
            else if (body.equals("undone")) transaction.rollback();
        }
        say("asked", asked.await(DEADLINE_S, TimeUnit.SECONDS) ? "True" : "False");
        Thread.sleep(1000); // its answer leaves in another thread
        producer.close();
    }
}
