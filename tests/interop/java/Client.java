import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's Java clients and mqadmin, driven from the interop tests: a command a line on standard input, tab-separated:
 * subcommand, NameServer address, then the subcommand's own. Facts come out as tab-separated lines; a line that begins
 * with @@end closes the answer. One process serves many commands, because each start of Java costs seconds.
 */
public class Client {
    static final long WAIT_SECONDS = 60;
    static final int API_TIMEOUT_MS = 15000;

    public static void main(String[] unused) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                run(line.split("\t"));
                System.out.println("\n@@end\tok");
            } catch (Throwable e) {
                e.printStackTrace(System.out);
                System.out.println("\n@@end\tfailed");
            }
            System.out.flush();
        }
        System.exit(0);
    }

    static void run(String[] a) throws Exception {
        switch (a[0]) {
            case "mqadmin": MQAdminStartup.main0(Arrays.copyOfRange(a, 1, a.length), null); break;
            case "produce": produce(a[1], a[2], Integer.parseInt(a[3])); break;
            case "batch": batch(a[1], a[2], Integer.parseInt(a[3])); break;
            case "ordered": ordered(a[1], a[2], Integer.parseInt(a[3])); break;
            case "delayed": delayed(a[1], a[2]); break;
            case "transactions": transactions(a[1], a[2]); break;
            case "consume": consume(a[1], a[2], a[3], a[4], Integer.parseInt(a[5]), a[6]); break;
            case "litepull": litepull(a[1], a[2], a[3], Integer.parseInt(a[4])); break;
            case "listen": listen(a[1], a[2], a[3]); break;
            case "heard": heard(a[1], Integer.parseInt(a[2])); break;
            case "suspend": listeners.get(a[1]).consumer.suspend(); break;
            case "resume": listeners.get(a[1]).consumer.resume(); break;
            case "leave": listeners.remove(a[1]).consumer.shutdown(); break;
            default: throw new IllegalArgumentException(a[0]);
        }
    }

    static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("java_producer");
        p.setNamesrvAddr(namesrv);
        p.setSendMsgTimeout(API_TIMEOUT_MS);
        p.setMqClientApiTimeout(API_TIMEOUT_MS);
        p.start();
        return p;
    }

    static void sent(SendResult r, String body) {
        System.out.println("sent\t" + r.getSendStatus() + "\t" + r.getMessageQueue().getQueueId() + "\t" + r.getQueueOffset()
            + "\t" + r.getMsgId() + "\t" + r.getOffsetMsgId() + "\t" + body);
    }

    static Message message(String topic, int i) {
        String body = "body-" + i;
        Message m = new Message(topic, i % 2 == 0 ? "even" : "odd", "key-" + i, body.getBytes(StandardCharsets.UTF_8));
        m.putUserProperty("number", String.valueOf(i));
        return m;
    }

    static void produce(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer p = producer(namesrv);
        for (int i = 0; i < count; i++) sent(p.send(message(topic, i)), "body-" + i);
        p.shutdown();
    }

    static void batch(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer p = producer(namesrv);
        List<Message> list = new ArrayList<>();
        for (int i = 0; i < count; i++) list.add(message(topic, i));
        sent(p.send(list), "batch");
        p.shutdown();
    }

    static void ordered(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer p = producer(namesrv);
        for (int i = 0; i < count; i++) {
            sent(p.send(message(topic, i), (queues, m, arg) -> queues.get((Integer) arg % queues.size()), i % 2), "body-" + i);
        }
        p.shutdown();
    }

    static void delayed(String namesrv, String topic) throws Exception {
        DefaultMQProducer p = producer(namesrv);
        Message level = message(topic, 1);
        level.setDelayTimeLevel(1);
        sent(p.send(level), "level");
        Message timer = message(topic, 2);
        timer.setDeliverTimeMs(System.currentTimeMillis() + 3000);
        sent(p.send(timer), "timer");
        Message seconds = message(topic, 3);
        seconds.setDelayTimeSec(2);
        sent(p.send(seconds), "seconds");
        p.shutdown();
    }

    /** Bodies 0 commit, 1 roll back, 2 unknown and committed by the check, 3 unknown and rolled back by the check. */
    static void transactions(String namesrv, String topic) throws Exception {
        ConcurrentHashMap<String, Integer> numbers = new ConcurrentHashMap<>();
        CountDownLatch checked = new CountDownLatch(2);
        TransactionMQProducer p = new TransactionMQProducer("java_transactions");
        p.setNamesrvAddr(namesrv);
        p.setMqClientApiTimeout(API_TIMEOUT_MS);
        p.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                int i = (Integer) arg;
                numbers.put(m.getTransactionId(), i);
                return i == 0 ? LocalTransactionState.COMMIT_MESSAGE
                    : i == 1 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                int i = numbers.get(m.getTransactionId());
                System.out.println("checked\t" + i);
                checked.countDown();
                return i == 2 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        p.start();
        for (int i = 0; i < 4; i++) {
            SendResult r = p.sendMessageInTransaction(message(topic, i), i);
            sent(r, "body-" + i);
        }
        System.out.println("all-checked\t" + checked.await(WAIT_SECONDS, TimeUnit.SECONDS));
        Thread.sleep(1000); // the answers to the checks are one-way: let them leave before the connection closes
        p.shutdown();
    }

    static void got(MessageExt m) {
        System.out.println("got\t" + m.getQueueId() + "\t" + m.getQueueOffset() + "\t" + m.getReconsumeTimes() + "\t" + m.getTags()
            + "\t" + m.getMsgId() + "\t" + new String(m.getBody(), StandardCharsets.UTF_8) + "\t" + m.getBornTimestamp()
            + "\t" + m.getStoreTimestamp());
    }

    /** Mode: concurrent, orderly, retry (every message fails once). Expression: * or tags, or sql:EXPRESSION. */
    static void consume(String namesrv, String group, String topic, String expression, int count, String mode) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(namesrv);
        c.setMqClientApiTimeout(API_TIMEOUT_MS);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (expression.startsWith("sql:")) c.subscribe(topic, MessageSelector.bySql(expression.substring(4)));
        else c.subscribe(topic, expression);
        if (mode.startsWith("pop")) c.setClientRebalance(false);
        AtomicInteger failures = new AtomicInteger();
        if (mode.equals("orderly")) {
            c.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt m : messages) { got(m); left.countDown(); }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt m : messages) {
                    if (mode.endsWith("retry") && m.getReconsumeTimes() == 0) {
                        context.setDelayLevelWhenNextConsume(1);
                        failures.incrementAndGet();
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                    got(m);
                    left.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        c.start();
        boolean all = left.await(WAIT_SECONDS, TimeUnit.SECONDS);
        Thread.sleep(500); // a message too many would arrive now
        System.out.println("done\t" + all + "\t" + failures.get());
        c.shutdown();
    }

    static void litepull(String namesrv, String group, String topic, int count) throws Exception {
        DefaultLitePullConsumer c = new DefaultLitePullConsumer(group);
        c.setNamesrvAddr(namesrv);
        c.setMqClientApiTimeout(API_TIMEOUT_MS);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(topic, "*");
        c.start();
        int seen = 0;
        long deadline = System.currentTimeMillis() + WAIT_SECONDS * 1000;
        while (seen < count && System.currentTimeMillis() < deadline) {
            for (MessageExt m : c.poll(1000)) { got(m); seen++; }
        }
        c.commitSync();
        System.out.println("done\t" + (seen == count) + "\t0");
        c.shutdown();
    }

    /** A push consumer that stays between commands, and what it has got. */
    static class Listener {
        final DefaultMQPushConsumer consumer;
        final List<MessageExt> got = new ArrayList<>();

        Listener(String group) {
            consumer = new DefaultMQPushConsumer(group);
        }
    }

    static final ConcurrentHashMap<String, Listener> listeners = new ConcurrentHashMap<>();

    static void listen(String namesrv, String group, String topic) throws Exception {
        Listener listener = new Listener(group);
        DefaultMQPushConsumer c = listener.consumer;
        c.setNamesrvAddr(namesrv);
        c.setInstanceName(group); // a client of its own, which asks for routes as often as this one wants
        c.setMqClientApiTimeout(API_TIMEOUT_MS);
        c.setPollNameServerInterval(1000);
        c.setHeartbeatBrokerInterval(1000);
        c.setPersistConsumerOffsetInterval(1000);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (listener.got) {
                listener.got.addAll(messages);
                listener.got.notifyAll();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        listeners.put(group, listener);
    }

    /** All that a listener has got, once that is so many or the time is up. */
    static void heard(String group, int count) throws Exception {
        List<MessageExt> got = listeners.get(group).got;
        long deadline = System.currentTimeMillis() + WAIT_SECONDS * 1000;
        synchronized (got) {
            while (got.size() < count && System.currentTimeMillis() < deadline) got.wait(100);
            for (MessageExt m : got) got(m);
        }
    }
}
