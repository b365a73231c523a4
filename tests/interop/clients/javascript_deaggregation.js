// What does the module aws-kinesis-agg read from Kinesis records?
//
// Run as `node javascript_deaggregation.js DATA...`, with the module on NODE_PATH; DATA is the data of a Kinesis record in
// base64. Prints the user records of each, as JSON. The checksum of an aggregate is verified.
"use strict";

const { deaggregateSync } = require("aws-kinesis-agg");

const opened = process.argv.slice(2).map((data) => {
  let found;
  const record = { data, partitionKey: "outer", sequenceNumber: "1" };
  deaggregateSync(record, true, (error, records) => {
    if (error) throw error;
    found = records;
  });
  return found.map((one) => [one.partitionKey, one.data, one.subSequenceNumber ?? null]);
});
process.stdout.write(JSON.stringify(opened));
