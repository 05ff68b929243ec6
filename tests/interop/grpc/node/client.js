'use strict';
// Apache's Node client of RocketMQ 5 (rocketmq-client-nodejs): what client.py does and prints, with its API.
const { Producer, PushConsumer, SimpleConsumer, ConsumeResult } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [command, endpoints, suffix] = process.argv.slice(2);
const DEADLINE_MS = 120000;
const topic = name => `Grpc${name}${suffix}`;
const say = (...words) => console.log(words.join('\t'));
const quiet = { info() {}, warn() {}, debug() {}, error: (...args) => console.error(...args) };
const given = { endpoints, namespace: '', logger: quiet, requestTimeout: 15000 };
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

// Of one topic each: the package waits for settings once all routes are there, so that a client of several topics waits
// for ever when they were answered with the first route.
async function produce(topic, ...messages) {
  const producer = new Producer({ ...given, topics: [topic] });
  await producer.startup();
  for (const message of messages) await producer.send({ topic, ...message, body: Buffer.from(message.body) });
}

async function push(name, group, wanted, topic) {
  let finish;
  const done = new Promise(resolve => { finish = resolve; });
  const consumer = new PushConsumer({
    ...given,
    consumerGroup: group,
    subscriptions: new Map([[topic, '*']]),
    messageListener: {
      async consume(m) {
        const body = m.body.toString();
        say(name, m.topic, body, m.tag ?? 'None', m.messageGroup ?? 'None', m.deliveryAttempt);
        if (--wanted === 0) finish();
        return body === 'fails' && m.deliveryAttempt === 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  return Promise.race([done, pause(DEADLINE_MS)]);
}

async function flow() {
  const [plain, ordered, later] = ['Plain', 'Ordered', 'Later'].map(topic);
  const pushed = [];
  const consumers = [['push', `GrpcPush${suffix}`, 22, plain], ['push', `GrpcPushOrdered${suffix}`, 10, ordered],
    ['push', `GrpcPushLater${suffix}`, 1, later], ['in-order', `GrpcInOrder${suffix}`, 10, ordered]];
  for (const one of consumers) pushed.push(push(...one));
  const simple = new SimpleConsumer({
    ...given, consumerGroup: 'GrpcSimple' + suffix, subscriptions: new Map([[plain, 'odd']]), awaitDuration: 5000,
  });
  await simple.startup();
  const numbers = count => [...Array(count).keys()];
  await produce(plain, ...numbers(20).map(n => ({ body: `plain-${n}`, tag: n % 2 ? 'odd' : 'even', keys: [`key-${n}`] })),
    { body: 'fails' });
  await produce(ordered, ...numbers(10).map(n => ({ body: `ordered-${n}`, messageGroup: 'one' })));
  const due = Math.floor(Date.now() / 1000) + 4;
  await produce(later, { body: `later-${due}`, deliveryTimestamp: new Date(due * 1000) });
  const taken = new Set();
  for (const end = Date.now() + DEADLINE_MS; taken.size < 10 && Date.now() < end;) {
    for (const m of await simple.receive(16, 20000)) {
      say('simple', m.topic, m.body.toString(), m.tag ?? 'None', m.deliveryAttempt);
      await simple.ack(m);
      taken.add(m.body.toString());
    }
  }
  await Promise.all(pushed);
}

async function decide() {
  let asked = false;
  const checker = {
    async check(m) {
      const body = m.body.toString();
      say('checked', body);
      asked = asked || body === 'orphan';
      return body === 'undone' ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
    },
  };
  const producer = new Producer({ ...given, topics: [topic('Decided')], checker });
  await producer.startup();
  for (const body of ['committed', 'undone', 'orphan']) {
    const transaction = producer.beginTransaction();
    const receipt = await producer.send({ topic: topic('Decided'), body: Buffer.from(body), keys: [body] }, transaction);
    say('half', body, receipt.messageId);
    if (body === 'committed') await transaction.commit();
    if (body === 'undone') await transaction.rollback();
  }
  for (const end = Date.now() + DEADLINE_MS; !asked && Date.now() < end;) await pause(100);
  say('asked', asked ? 'True' : 'False');
  await pause(1000); // its answer leaves later
}

({ flow, decide })[command]().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
