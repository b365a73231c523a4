// An HTTP/2 server that we did not write: Node's, which is nghttp2. It plays as much of Kinesis as the test asks for.
// Environment: EVENT (one event of a subscription, base64), and CERT and KEY for TLS. Prints its port.
"use strict";
const fs = require("node:fs");
const http2 = require("node:http2");

const event = Buffer.from(process.env.EVENT, "base64");
const counts = { sessions: 0, open: 0, pongs: 0, resets: 0 };

function stored(records) {
  return { FailedRecordCount: 0, Records: records.map(() => ({ SequenceNumber: "1", ShardId: "shardId-0" })) };
}

function page() {
  const record = { Data: "QUJD".repeat(25000), SequenceNumber: "1", PartitionKey: "k", ApproximateArrivalTimestamp: 1.5 };
  return { Records: Array(50).fill(record), NextShardIterator: "next", MillisBehindLatest: 0 };
}

function answer(stream, target, body) {
  const say = (value) => {
    stream.respond({ ":status": 200, "content-type": "application/x-amz-json-1.1" });
    stream.end(JSON.stringify(value));
  };
  const name = body.StreamName;
  if (name === "refused") return stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
  if (name === "broken") return stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR);
  if (name === "leaving") stream.session.close(); // GOAWAY; the streams that are open go on
  if (name === "pinged") return stream.session.ping((error) => { if (!error) counts.pongs += 1; say(stored(body.Records)); });
  if (name === "settled") stream.session.settings({ initialWindowSize: 20000, maxFrameSize: 16384, headerTableSize: 0 });
  switch (target) {
    case "Kinesis_20131202.GetRecords": return say(page());
    case "Kinesis_20131202.DescribeLimits": return say(counts);
    case "Kinesis_20131202.SubscribeToShard": {
      stream.respond({ ":status": 200, "content-type": "application/vnd.amazon.eventstream" });
      const push = () => { if (!stream.destroyed && !stream.writableEnded) { stream.write(event); setTimeout(push, 20); } };
      if (body.ShardId === "shardId-bulk") {
        let left = 20000;
        const pump = () => { while (left-- > 0) if (!stream.write(event)) return stream.once("drain", pump); stream.end(); };
        return pump();
      }
      return push();
    }
    default: return say(stored(body.Records));
  }
}

const options = { settings: { maxConcurrentStreams: 10 } };
const server = process.env.CERT
  ? http2.createSecureServer({ ...options, cert: fs.readFileSync(process.env.CERT), key: fs.readFileSync(process.env.KEY) })
  : http2.createServer(options);
server.on("session", (session) => {
  counts.sessions += 1;
  session.on("error", () => {});
});
server.on("stream", (stream, headers) => {
  const parts = [];
  counts.open += 1;
  stream.on("error", () => {});
  stream.on("close", () => { counts.open -= 1; if (stream.rstCode) counts.resets += 1; });
  stream.on("data", (part) => parts.push(part));
  stream.on("end", () => { if (!stream.destroyed) answer(stream, headers["x-amz-target"], JSON.parse(Buffer.concat(parts))); });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.on("end", () => process.exit(0)).resume();
