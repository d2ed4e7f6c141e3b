// What an application does with kafkajs: produce, transactions that commit and abort, a group reader.
// One JSON line per step.
const { Kafka, logLevel } = require("kafkajs");

const kafka = new Kafka({ brokers: [process.argv[2]], clientId: "js", logLevel: logLevel.NOTHING });

function say(step, values) {
  console.log(JSON.stringify({ step, values: values.sort() }));
}

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic: "js-in", numPartitions: 1 }], waitForLeaders: true });
  await admin.disconnect();

  const writer = kafka.producer({ transactionalId: "js-writer", idempotent: true, maxInFlightRequests: 1 });
  await writer.connect();
  for (let number = 0; number < 4; number++) {
    const transaction = await writer.transaction();
    for (let i = 0; i < 5; i++)
      await transaction.send({ topic: "js-in", messages: [{ key: "k", value: `txn${number}-${i}` }] });
    if (number % 2 === 0) await transaction.commit();
    else await transaction.abort();
  }
  await writer.disconnect();

  const values = [];
  const consumer = kafka.consumer({ groupId: "js-readers", readUncommitted: false });
  await consumer.connect();
  await consumer.subscribe({ topic: "js-in", fromBeginning: true });
  await new Promise((resolve) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        values.push(message.value.toString());
        if (values.length === 10) resolve();
      },
    });
  });
  await consumer.disconnect();
  say("out", values);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
