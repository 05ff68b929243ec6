import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Lite topics with the official Java client: sends, subscriptions, retries, exclusive groups, quotas, offsets. Consumers
 * are not closed: each would wait for its last receive, half a minute.
 */
public class LiteClient {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final String PARENT = "LiteParent";
    static String endpoint;

    public static void main(String[] a) throws Exception {
        endpoint = a[0];
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(PARENT).build();
        flow(producer);
        exclusive(producer);
        quota();
        offsets(producer);
        Runtime.getRuntime().halt(0);
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

    static void send(Producer producer, String liteTopic, String body) throws Exception {
        producer.send(PROVIDER.newMessageBuilder().setTopic(PARENT).setLiteTopic(liteTopic).setBody(body.getBytes(StandardCharsets.UTF_8)).build());
    }

    static LitePushConsumer consumer(String group, MessageListener listener) throws Exception {
        return PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration()).setConsumerGroup(group)
            .bindTopic(PARENT).setMessageListener(listener).setConsumptionThreadCount(1).build();
    }

    /** Prints what comes until there were `count` of it. */
    static MessageListener listener(String name, CountDownLatch left) {
        return m -> {
            String body = StandardCharsets.UTF_8.decode(m.getBody()).toString();
            say(name, m.getLiteTopic().orElse("None"), body, m.getDeliveryAttempt(), m.getTopic());
            left.countDown();
            return body.equals("fails") && m.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
    }

    static void await(CountDownLatch left) throws Exception {
        if (!left.await(90, TimeUnit.SECONDS)) say("missing", left.getCount());
    }

    static void flow(Producer producer) throws Exception {
        CountDownLatch left = new CountDownLatch(10 + 5 + 2 + 1);
        LitePushConsumer consumer = consumer("LiteFlow", listener("flow", left));
        consumer.subscribeLite("one");
        consumer.subscribeLite("two");
        send(producer, "three", "not subscribed");
        for (int i = 0; i < 10; i++) send(producer, "one", "one-" + i);
        for (int i = 0; i < 5; i++) send(producer, "two", "two-" + i);
        send(producer, "one", "fails");
        send(producer, "one", "behind");
        await(left);
        say("sets", consumer.getLiteTopicSet().contains("one"), consumer.getLiteTopicSet().size());
    }

    static void exclusive(Producer producer) throws Exception {
        CountDownLatch left = new CountDownLatch(1);
        Set<String> who = ConcurrentHashMap.newKeySet();
        LitePushConsumer first = consumer("LiteExclusive", m -> {
            who.add("first");
            left.countDown();
            return ConsumeResult.SUCCESS;
        });
        LitePushConsumer second = consumer("LiteExclusive", m -> {
            who.add("second");
            left.countDown();
            return ConsumeResult.SUCCESS;
        });
        first.subscribeLite("mine");
        second.subscribeLite("mine");
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (first.getLiteTopicSet().contains("mine") && System.nanoTime() < end) Thread.onSpinWait();
        say("evicted", !first.getLiteTopicSet().contains("mine"));
        send(producer, "mine", "exclusive");
        await(left);
        say("exclusive", String.join(",", who));
    }

    static void quota() throws Exception {
        LitePushConsumer consumer = consumer("LiteQuota", m -> ConsumeResult.SUCCESS);
        consumer.subscribeLite("q1");
        consumer.subscribeLite("q2");
        try {
            consumer.subscribeLite("q3");
            say("quota", "none");
        } catch (Exception e) {
            say("quota", e.getClass().getSimpleName());
        }
        consumer.unsubscribeLite("q1");
        consumer.subscribeLite("q3");
    }

    static void offsets(Producer producer) throws Exception {
        for (int i = 0; i < 4; i++) send(producer, "old", "old-" + i);
        CountDownLatch all = new CountDownLatch(4), last = new CountDownLatch(2), none = new CountDownLatch(1);
        for (Map.Entry<String, OffsetOption> one : Map.of("min", OffsetOption.MIN_OFFSET, "two", OffsetOption.ofOffset(2), "max", OffsetOption.MAX_OFFSET).entrySet()) {
            CountDownLatch left = one.getKey().equals("min") ? all : one.getKey().equals("two") ? last : none;
            LitePushConsumer consumer = consumer("LiteOffsets" + one.getKey(), listener("from-" + one.getKey(), left));
            consumer.subscribeLite("old", one.getValue());
            if (one.getKey().equals("max")) send(producer, "old", "new");
            await(left);
        }
    }
}
