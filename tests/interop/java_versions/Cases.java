import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Every case of one version of Apache's Java client, at once and in one process: arguments are the NameServer and a
 * prefix of topics and groups. It is compiled against each version, so it asks by reflection for what 4.9 lacks. Facts:
 * sent CASE STATUS QUEUE OFFSET BODY, got CASE QUEUE OFFSET FAILURES TAGS BODY, checked BODY, done CASE ALL-CAME, absent CASE.
 */
public class Cases {
    static final long WAIT_S = 120;
    static String namesrv;
    static String prefix;

    static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) line.append(line.length() == 0 ? "" : "\t").append(word);
        System.out.println(line);
        System.out.flush();
    }

    static boolean tryToSet(Object on, String name, Class<?> kind, Object value) throws Exception {
        try {
            on.getClass().getMethod(name, kind).invoke(on, value);
            return true;
        } catch (NoSuchMethodException absent) {
            return false;
        }
    }

    static <T extends ClientConfig> T made(T client) throws Exception {
        client.setNamesrvAddr(namesrv);
        tryToSet(client, "setMqClientApiTimeout", int.class, 15000);
        client.setPollNameServerInterval(2000);
        return client;
    }

    static Message message(String topic, String body, String tag) {
        Message m = new Message(prefix + topic, tag, "key-" + body, body.getBytes(StandardCharsets.UTF_8));
        m.putUserProperty("number", body.substring(body.lastIndexOf('-') + 1));
        return m;
    }

    static void sent(String name, SendResult r, String body) {
        say("sent", name, r.getSendStatus(), r.getMessageQueue().getQueueId(), r.getQueueOffset(), body);
    }

    static void got(String name, MessageExt m) {
        say("got", name, m.getQueueId(), m.getQueueOffset(), m.getReconsumeTimes(), m.getTags(), new String(m.getBody(), StandardCharsets.UTF_8));
    }

    /** A push consumer of a case; it fails each message once where the case is called retry. */
    static class Push {
        final String name;
        final CountDownLatch left;
        final DefaultMQPushConsumer consumer;

        Push(String name, String topic, String expression, int count) throws Exception {
            this.name = name;
            left = new CountDownLatch(count);
            consumer = made(new DefaultMQPushConsumer(prefix + name));
            consumer.setInstanceName(prefix + name);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            if (expression.startsWith("sql:")) consumer.subscribe(prefix + topic, MessageSelector.bySql(expression.substring(4)));
            else consumer.subscribe(prefix + topic, expression);
            if (name.equals("ordered")) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    for (MessageExt m : messages) take(m);
                    return ConsumeOrderlyStatus.SUCCESS;
                });
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    for (MessageExt m : messages) take(m);
                    if (!name.startsWith("retry") || messages.get(0).getReconsumeTimes() > 0) return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                });
            }
        }

        void take(MessageExt m) {
            got(name, m);
            left.countDown();
        }

        void end() throws Exception {
            boolean all = left.await(WAIT_S, TimeUnit.SECONDS);
            say("done", name, all);
        }
    }

    static void send() throws Exception {
        TransactionMQProducer p = made(new TransactionMQProducer(prefix + "producer"));
        p.setSendMsgTimeout(15000);
        Map<String, String> bodies = new ConcurrentHashMap<>();
        CountDownLatch checked = new CountDownLatch(2);
        p.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                return arg.equals("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : arg.equals("undo") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                String body = new String(m.getBody(), StandardCharsets.UTF_8);
                say("checked", body);
                if (body.startsWith("later") && bodies.putIfAbsent(body, "") == null) checked.countDown();
                return body.endsWith("undo") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        p.start();
        for (int i = 0; i < 10; i++) sent("kinds", p.send(message("Kinds", "sync-" + i, i % 2 == 0 ? "even" : "odd")), "sync-" + i);
        CountDownLatch async = new CountDownLatch(10);
        for (int i = 0; i < 10; i++) {
            String body = "async-" + i;
            p.send(message("Kinds", body, i % 2 == 0 ? "even" : "odd"), new SendCallback() {
                @Override
                public void onSuccess(SendResult r) {
                    sent("kinds", r, body);
                    async.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    say("failed", body, e);
                    async.countDown();
                }
            });
        }
        async.await(WAIT_S, TimeUnit.SECONDS);
        for (int i = 0; i < 5; i++) p.sendOneway(message("Kinds", "oneway-" + i, "oneway"));
        List<MessageQueue> queues = p.fetchPublishMessageQueues(prefix + "Kinds");
        for (int i = 0; i < 4; i++) sent("kinds", p.send(message("Kinds", "queue-" + i, "even"), queues.get(i % queues.size())), "queue-" + i);
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 6; i++) batch.add(message("Batch", "batch-" + i, i % 2 == 0 ? "even" : "odd"));
        sent("batch", p.send(batch), "batch");
        for (int i = 0; i < 40; i++) {
            String body = "order-" + i;
            sent("ordered", p.send(message("Ordered", body, "t"), (all, m, arg) -> all.get((Integer) arg), i % 2), body);
        }
        for (int i = 0; i < 3; i++) sent("retry", p.send(message("Retry", "retry-" + i, "t")), "retry-" + i);
        for (int i = 0; i < 20; i++) sent("pop", p.send(message("Pop", "pop-" + i, "t")), "pop-" + i);
        Message level = message("Delayed", "level-1", "t");
        level.setDelayTimeLevel(1);
        sent("delayed", p.send(level), "level-1");
        Message timer = message("Delayed", "timer-1", "t");
        if (tryToSet(timer, "setDelayTimeMs", long.class, 2500L)) sent("delayed", p.send(timer), "timer-1");
        else say("absent", "timer");
        for (String what : new String[] {"now-commit", "now-undo", "later-commit", "later-undo"}) {
            sent("decided", p.sendMessageInTransaction(message("Decided", what, "t"), what.startsWith("now") ? what.substring(4) : "unknown"), what);
        }
        say("asked", checked.await(WAIT_S, TimeUnit.SECONDS));
        Thread.sleep(1000); // the answers to the checks are one-way: let them leave before the connection closes
        p.shutdown();
    }

    public static void main(String[] a) throws Exception {
        namesrv = a[0];
        prefix = a[1];
        boolean hasTimers = true;
        try {
            Message.class.getMethod("setDelayTimeMs", long.class);
        } catch (NoSuchMethodException absent) {
            hasTimers = false;
        }
        List<Push> all = new ArrayList<>();
        all.add(new Push("kinds", "Kinds", "*", 10 + 10 + 5 + 4));
        all.add(new Push("tag", "Kinds", "odd", 10));
        all.add(new Push("sql", "Kinds", "sql:number >= 3 AND number < 7 AND TAGS <> 'oneway'", 9));
        all.add(new Push("batch", "Batch", "*", 6));
        all.add(new Push("ordered", "Ordered", "*", 40));
        all.add(new Push("retry", "Retry", "*", 6));
        all.add(new Push("delayed", "Delayed", "*", hasTimers ? 2 : 1));
        all.add(new Push("decided", "Decided", "*", 2));
        for (Push pop : new Push[] {new Push("pop", "Pop", "*", 20), new Push("retry-pop", "Pop", "*", 40)}) {
            if (tryToSet(pop.consumer, "setClientRebalance", boolean.class, false)) all.add(pop);
            else say("absent", pop.name);
        }
        for (Push one : all) one.consumer.start();
        send();
        DefaultLitePullConsumer lite = made(new DefaultLitePullConsumer(prefix + "lite"));
        lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        lite.subscribe(prefix + "Batch", "*");
        lite.start();
        int seen = 0;
        for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S); seen < 6 && System.nanoTime() < end;) {
            for (MessageExt m : lite.poll(1000)) {
                got("lite", m);
                seen++;
            }
        }
        lite.commitSync();
        say("done", "lite", seen == 6);
        lite.shutdown();
        for (Push one : all) one.end();
        Thread.sleep(1500); // a message too many would arrive now
        for (Push one : all) one.consumer.shutdown();
        System.exit(0);
    }
}
