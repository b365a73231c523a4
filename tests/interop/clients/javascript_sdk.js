// Does the AWS SDK for JavaScript get along with the server, with its default HTTP handler (HTTP/2)?
//
// Run as `node javascript_sdk.js ENDPOINT_URL`, with the SDK on NODE_PATH; prints what it saw, as JSON. The SDK sends
// GOAWAY as soon as the head of an answer has come: the sessions are watched to see that events come after it.
"use strict";

const http2 = require("node:http2");

const sessions = [];
const connect = http2.connect;
http2.connect = (...args) => {
  const session = connect(...args);
  sessions.push(session);
  return session;
};

const {
  CreateStreamCommand,
  DescribeStreamSummaryCommand,
  GetRecordsCommand,
  GetShardIteratorCommand,
  KinesisClient,
  ListShardsCommand,
  PutRecordCommand,
  PutRecordsCommand,
  RegisterStreamConsumerCommand,
  SubscribeToShardCommand,
} = require("@aws-sdk/client-kinesis");

const [endpoint] = process.argv.slice(2);
const client = new KinesisClient({
  endpoint,
  region: "us-east-1",
  credentials: { accessKeyId: "AKIDEXAMPLE", secretAccessKey: "secret" },
  maxAttempts: 1,
});
const StreamName = "from-javascript";
const ShardId = "shardId-000000000000";
const text = (record) => Buffer.from(record.Data).toString();

async function advance(seconds) {
  const answer = await fetch(`${endpoint}/_shardline/clock`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ advance: seconds }),
  });
  if (!answer.ok) throw new Error(`the clock was not moved: ${answer.status} ${await answer.text()}`);
}

const put = (data) =>
  client.send(new PutRecordCommand({ StreamName, PartitionKey: "k", Data: Buffer.from(data) }));

async function roundTrip() {
  await client.send(new CreateStreamCommand({ StreamName, ShardCount: 1 }));
  const described = await client.send(new DescribeStreamSummaryCommand({ StreamName }));
  const shards = await client.send(new ListShardsCommand({ StreamName }));
  const Records = Array.from({ length: 4 }, (_, n) => ({ PartitionKey: "k", Data: Buffer.alloc(900_000, n) }));
  const failed = (await client.send(new PutRecordsCommand({ StreamName, Records }))).FailedRecordCount;
  const concurrent = await Promise.all(Array.from({ length: 100 }, (_, n) => put(`concurrent ${n}`)));
  const place = { StreamName, ShardId, ShardIteratorType: "TRIM_HORIZON" };
  const { ShardIterator } = await client.send(new GetShardIteratorCommand(place));
  const page = await client.send(new GetRecordsCommand({ ShardIterator }));
  const sizes = page.Records.slice(0, 4).map((record) => record.Data.length);
  let refused = null;
  try {
    await client.send(new DescribeStreamSummaryCommand({ StreamName: "nothing" }));
  } catch (error) {
    refused = { name: error.name, status: error.$metadata.httpStatusCode, requestId: Boolean(error.$metadata.requestId) };
  }
  return {
    arn: described.StreamDescriptionSummary.StreamARN,
    shards: shards.Shards.length,
    failed,
    concurrent: new Set(concurrent.map((one) => one.SequenceNumber)).size,
    sizes,
    read: page.Records.length,
    refused,
  };
}

async function subscribe(ConsumerARN, StartingPosition, onEvent) {
  const before = sessions.length;
  const controller = new AbortController();
  const command = new SubscribeToShardCommand({ ConsumerARN, ShardId, StartingPosition });
  const answer = await client.send(command, { abortSignal: controller.signal });
  const [session] = sessions.slice(before);
  for await (const item of answer.EventStream) {
    const event = item.SubscribeToShardEvent;
    if (event && (await onEvent(event, session.closed)) === "stop") break; // closed: its GOAWAY is sent
  }
  controller.abort(); // resets the stream, if it has not ended
}

// Minutes of a subscription, by the server's clock: a record, then heartbeats, until five minutes end it.
async function longSubscription(ConsumerARN) {
  const seen = { records: [], events: 0, eventsAfterGoaway: 0, continuation: null };
  await subscribe(ConsumerARN, { Type: "LATEST" }, async (event, isClosed) => {
    seen.events += 1;
    seen.eventsAfterGoaway += isClosed ? 1 : 0;
    seen.records.push(...event.Records.map(text));
    seen.continuation = event.ContinuationSequenceNumber;
    if (event.Records.length) await advance(30); // which brings a heartbeat
    else await put(`record ${seen.events}`);
  });
  return seen;
}

async function resubscription(ConsumerARN, after) {
  await put("put between two subscriptions");
  const records = [];
  const position = { Type: "AFTER_SEQUENCE_NUMBER", SequenceNumber: after };
  await subscribe(ConsumerARN, position, async (event) => {
    records.push(...event.Records.map(text));
    return records.length ? "stop" : undefined;
  });
  return records;
}

async function main() {
  const seen = await roundTrip();
  const registered = await client.send(new RegisterStreamConsumerCommand({ StreamARN: seen.arn, ConsumerName: "c" }));
  const ConsumerARN = registered.Consumer.ConsumerARN;
  seen.subscription = await longSubscription(ConsumerARN);
  seen.resubscribed = await resubscription(ConsumerARN, seen.subscription.continuation);
  seen.protocols = [...new Set(sessions.map((session) => session.alpnProtocol))];
  seen.sessions = sessions.length;
  seen.handler = client.config.requestHandler.constructor.name;
  client.destroy();
  process.stdout.write(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
