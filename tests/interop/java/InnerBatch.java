import java.io.File;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory in which topic "Batch" has batch queues, with Apache's DefaultMessageStore.
 * Arguments: directory, then numbers: each is put as an inner batch of that many messages, 0 as an ordinary message.
 * Prints "put:" and the queue offset of each, then "queue:" min max, then "get:" queue offset and body of all messages.
 */
public class InnerBatch {
    static DefaultMessageStore store;
    static int number = 0;

    public static void main(String[] a) throws Exception {
        MessageStoreConfig c = new MessageStoreConfig();
        c.setStorePathRootDir(a[0]);
        c.setStorePathCommitLog(a[0] + File.separator + "commitlog");
        c.setMappedFileSizeCommitLog(128 * 1024);
        c.setMappedFileSizeConsumeQueue(1200);
        c.setMapperFileSizeBatchConsumeQueue(46 * 8);
        c.setMaxHashSlotNum(100);
        c.setMaxIndexNum(400);
        c.setHaListenPort(0);
        BrokerConfig b = new BrokerConfig();
        b.setBrokerName("batch");
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        TopicConfig topic = new TopicConfig("Batch", 1, 1);
        Map<String, String> attributes = new HashMap<>();
        attributes.put("queue.type", "BatchCQ");
        topic.setAttributes(attributes);
        topics.put("Batch", topic);
        store = new DefaultMessageStore(c, new BrokerStatsManager("batch", true), null, b, topics);
        if (!store.load()) {
            System.exit(2);
        }
        store.start();
        number = (int) store.getMaxOffsetInQueue("Batch", 0);
        for (int k = 1; k < a.length; k++) {
            put(Integer.parseInt(a[k]));
        }
        for (int wait = 0; wait < 200 && store.getMaxOffsetInQueue("Batch", 0) < number; wait++) {
            Thread.sleep(50);
        }
        show();
        System.out.flush();
        store.shutdown();
        Runtime.getRuntime().halt(0);
    }

    static void put(int count) {
        MessageExtBrokerInner m = new MessageExtBrokerInner();
        MessageAccessor.setProperties(m, new HashMap<>());
        m.setTopic("Batch");
        m.setQueueId(0);
        m.setTags("t");
        m.setBornTimestamp(System.currentTimeMillis());
        m.setBornHost(new InetSocketAddress("127.0.0.1", 1));
        m.setStoreHost(new InetSocketAddress("127.0.0.1", 2));
        if (count == 0) {
            m.setBody(("body " + number++).getBytes(StandardCharsets.UTF_8));
        } else {
            List<Message> parts = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                parts.add(new Message("Batch", ("body " + number++).getBytes(StandardCharsets.UTF_8)));
            }
            m.setBody(MessageDecoder.encodeMessages(parts));
            m.setSysFlag(MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG);
            MessageAccessor.putProperty(m, MessageConst.PROPERTY_INNER_NUM, String.valueOf(count));
        }
        m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
        m.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, "t"));
        PutMessageResult r = store.putMessage(m);
        if (!r.isOk()) {
            throw new IllegalStateException(r.toString());
        }
        System.out.println("put:" + r.getAppendMessageResult().getLogicsOffset());
    }

    static void show() throws Exception {
        long end = store.getMaxOffsetInQueue("Batch", 0);
        long offset = store.getMinOffsetInQueue("Batch", 0);
        System.out.println("queue:" + offset + " " + end);
        while (offset < end) {
            GetMessageResult found = store.getMessage("g", "Batch", 0, offset, 32, null);
            for (ByteBuffer data : found.getMessageBufferList()) {
                MessageExt record = MessageDecoder.decode(data);
                List<MessageExt> messages = new ArrayList<>();
                if (MessageSysFlag.check(record.getSysFlag(), MessageSysFlag.INNER_BATCH_FLAG)
                    && MessageSysFlag.check(record.getSysFlag(), MessageSysFlag.NEED_UNWRAP_FLAG)) {
                    MessageDecoder.decodeMessage(record, messages);
                } else {
                    messages.add(record);
                }
                for (MessageExt one : messages) {
                    System.out.println("get:" + one.getQueueOffset() + " " + new String(one.getBody(), StandardCharsets.UTF_8));
                }
            }
            System.out.println("next:" + found.getNextBeginOffset() + " " + found.getStatus() + " " + found.getMessageCount());
            if (found.getNextBeginOffset() <= offset) {
                break;
            }
            offset = found.getNextBeginOffset();
            found.release();
        }
    }
}
