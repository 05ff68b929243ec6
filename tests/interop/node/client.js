'use strict';
// ali-ons, the Node client that speaks the remoting protocol. One line per fact, its fields separated by tabs:
//   sent  status queueId queueOffset msgId      got  queueId queueOffset tags body reconsumeTimes      done  true
const { Producer, Consumer, Message } = require('ali-ons');

const fact = (...fields) => console.log(fields.join('\t'));
// The package wants an HTTP client for address lookup, which a given NameServer address makes idle.
const httpclient = { request() { throw new Error('no lookup was expected'); } };
const quiet = { info() {}, warn() {}, error: (...args) => console.error(...args), debug() {} };

async function produce(nameSrv, topic, count) {
  const producer = new Producer({ nameSrv, httpclient, logger: quiet, producerGroup: 'node_producer' });
  await producer.ready();
  for (let i = 0; i < Number(count); i++) {
    const message = new Message(topic, i % 2 ? 'odd' : 'even', `body-${i}`);
    message.keys = [`key-${i}`];
    const result = await producer.send(message);
    fact('sent', result.sendStatus, result.messageQueue.queueId, result.queueOffset, result.msgId);
  }
  await producer.close();
}

// Ends after `count` messages were taken. A body in `refused` fails until it was tried once.
async function consume(nameSrv, topic, count, group, tags, refused) {
  const consumer = new Consumer({
    nameSrv, httpclient, logger: quiet, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  let taken = 0;
  const finished = new Promise(resolve => {
    consumer.subscribe(topic, tags, async message => {
      const body = message.body.toString();
      fact('got', message.queueId, message.queueOffset, message.tags, body, message.reconsumeTimes);
      if (body === refused && message.reconsumeTimes === 0) throw new Error('refused once');
      if (++taken >= Number(count)) resolve();
    });
  });
  await consumer.ready();
  await finished;
  await consumer.close();
  fact('done', true);
}

const [command, ...rest] = process.argv.slice(2);
({ produce, consume })[command](...rest).then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
