import java.io.File;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory with Apache's DefaultMessageStore, appends messages, and closes it or stops dead.
 * Arguments: directory, "close" or "halt", then TOPIC=COUNT for each run of messages; sizes are those of test_store.py.
 * Prints "at:" and the physical offset of each message.
 */
public class StorePut {
    public static void main(String[] a) throws Exception {
        MessageStoreConfig c = new MessageStoreConfig();
        c.setStorePathRootDir(a[0]);
        c.setStorePathCommitLog(a[0] + File.separator + "commitlog");
        c.setMappedFileSizeCommitLog(128 * 1024);
        c.setMappedFileSizeConsumeQueue(1200);
        c.setMaxHashSlotNum(100);
        c.setMaxIndexNum(400);
        c.setHaListenPort(0);
        BrokerConfig b = new BrokerConfig();
        b.setBrokerName("put");
        DefaultMessageStore store =
            new DefaultMessageStore(c, new BrokerStatsManager("put", true), null, b, new ConcurrentHashMap<>());
        if (!store.load()) {
            System.exit(2);
        }
        store.start();
        for (int k = 2; k < a.length; k++) {
            String topic = a[k].substring(0, a[k].indexOf('='));
            int count = Integer.parseInt(a[k].substring(topic.length() + 1));
            for (int i = 0; i < count; i++) {
                MessageExtBrokerInner m = new MessageExtBrokerInner();
                MessageAccessor.setProperties(m, new HashMap<>());
                m.setTopic(topic);
                m.setQueueId(i % 2);
                m.setBody(("java-" + topic + "-" + i).getBytes(StandardCharsets.UTF_8));
                m.setTags("t");
                m.setKeys("java-" + topic + "-" + i);
                m.setBornTimestamp(System.currentTimeMillis());
                m.setBornHost(new InetSocketAddress("127.0.0.1", 1));
                m.setStoreHost(new InetSocketAddress("127.0.0.1", 2));
                m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
                m.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, "t"));
                PutMessageResult r = store.putMessage(m);
                if (!r.isOk()) {
                    throw new IllegalStateException(r.toString());
                }
                System.out.println("at:" + r.getAppendMessageResult().getWroteOffset());
            }
        }
        System.out.flush();
        if (a[1].equals("close")) {
            store.shutdown();
        }
        Runtime.getRuntime().halt(0);
    }
}
