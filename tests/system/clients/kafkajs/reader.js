// Reads committed records of partition 0 up to the copy of one message; prints value and ID of each.
//     node reader.js BOOTSTRAP TOPIC GROUP LAST_ID
const { Kafka, logLevel } = require('kafkajs');

const [bootstrap, topic, groupId, last] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });
const consumer = kafka.consumer({ groupId }); // readUncommitted is false unless asked for

async function main() {
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  let ended;
  const end = new Promise((resolve) => { ended = resolve; });
  let isOver = false;
  await consumer.run({
    eachMessage: async ({ message }) => {
      if (isOver) return;
      const id = message.headers['amcast.id'].toString();
      console.log(`${message.value} ${id}`);
      if (id === last) { isOver = true; ended(); }
    },
  });
  await end;
  await consumer.disconnect();
}

main().catch((error) => { console.error(error); process.exit(1); });
