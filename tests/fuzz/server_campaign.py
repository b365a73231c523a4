"""Fuzzes the embedded Kinesis through its socket: ``python tests/fuzz/server_campaign.py --seconds 60``.

The campaign sends requests of every operation and of the control API, broken in a few places; cut off, reset, sent in
pieces, or many on one connection. The server must never answer 5xx, never show a traceback, never grow permanently, and
keep serving.
"""

import argparse
import contextlib
import json
import logging
import resource
import socket
import struct
import sys
import time
from dataclasses import replace
from random import Random

import msgspec
from campaign import whole_seconds
from test_corpus import mutated

from shardline.server.model.inputs import INPUTS
from shardline.testing import Limits, LocalKinesis

LOOK_EVERY = 200
WARM_UP = 50  # exchanges: imports and caches of the first ones do not count as growth
PATIENCE = 0.2  # seconds without an answer: the server waits for the rest of a request, which never comes
GROWTH_MAX_KIB = 200 * 1024
LIMITS = replace(Limits.without_rates(), shards_per_account=200)  # requested shards do not count as growth, either
PATHS = [b"/"] * 9 + [b"/_shardline/faults", b"/_shardline/streams", b"/_shardline/requests", b"/_shardline/clock"]
METHODS = [b"POST"] * 7 + [b"GET", b"PUT", b"DELETE"]
ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
SHARDS = ["shardId-000000000000", "shardId-000000000001"]
BUCKET = {"BucketARN": "arn:aws:s3:::records", "ExpectedBucketOwner": "000000000000"}
TABLE = {
    "TableBucketARN": "arn:aws:s3tables:us-east-1:000000000000:bucket/tables",
    "Namespace": "n",
    "TableName": "t",
    "CompressionType": "NONE",
}
MEMBERS = {  # every member that an operation has, with a valid value
    "AdjacentShardToMerge": SHARDS[1],
    "ChannelARN": "arn:aws:kinesis:us-east-1:000000000000:channel/c",
    "ChannelName": "c",
    "ConsumerARN": f"{ARN}/consumer/c:1",
    "ConsumerName": "c",
    "Data": "eA==",
    "DryRun": False,
    "EncryptionConfiguration": {"EncryptionType": "KMS", "KeyId": "key"},
    "EncryptionType": "KMS",
    "EnforceConsumerDeletion": True,
    "ExclusiveStartShardId": SHARDS[0],
    "ExclusiveStartStreamName": "a",
    "ExclusiveStartTagKey": "a",
    "ExplicitHashKey": "0",
    "KeyId": "key",
    "Limit": 10,
    "LoggingConfiguration": {"CloudWatchLogs": {"Enabled": True}},
    "MaxRecordSizeInKiB": 2048,
    "MaxResults": 10,
    "MinimumThroughputBillingCommitment": {"Status": "ENABLED"},
    "NewStartingHashKey": "1000",
    "NextToken": "AAAA",
    "PartitionKey": "k",
    "Policy": '{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "kinesis:*"}}',
    "RecordDistributionStrategy": "AUTO",
    "Records": [{"Data": "eA==", "PartitionKey": "k"}],
    "ResourceARN": ARN,
    "RetentionPeriodHours": 48,
    "S3DestinationConfiguration": {
        "DataFreshnessInSeconds": 300,
        "StorageConfiguration": BUCKET | {"CompressionType": "GZIP"},
    },
    "S3TablesDestinationConfiguration": {
        "DataFreshnessInSeconds": 300,
        "DeadLetterQueueS3Configuration": BUCKET,
        "S3TablesConfigurationList": [TABLE],
    },
    "ScalingType": "UNIFORM_SCALING",
    "SequenceNumberForOrdering": "1",
    "ServiceExecutionRoleARN": "arn:aws:iam::000000000000:role/r",
    "ShardCount": 2,
    "ShardFilter": {"Type": "AT_LATEST"},
    "ShardId": SHARDS[0],
    "ShardIterator": "AAAA",
    "ShardIteratorType": "TRIM_HORIZON",
    "ShardLevelMetrics": ["ALL"],
    "ShardToMerge": SHARDS[0],
    "ShardToSplit": SHARDS[0],
    "StartingPosition": {"Type": "LATEST"},
    "StartingSequenceNumber": "1",
    "StreamARN": ARN,
    "StreamConfigurationList": [{"StreamARN": ARN, "RecordConfiguration": {"RecordFormatType": "JSON"}}],
    "StreamCreationTimestamp": 0,
    "StreamFilter": [{"StreamARN": ARN}],
    "StreamId": "abcdefghij0123456789-abc",
    "StreamModeDetails": {"StreamMode": "ON_DEMAND"},
    "StreamName": "s",
    "TagKeys": ["a"],
    "Tags": {"a": "b"},
    "TargetShardCount": 3,
    "Timestamp": 0,
    "WarmThroughputMiBps": 1,
}
BOUNDARIES = [-1, 0, 1, 24, 50, 51, 100, 1024, 8760, 10_000, 10_001, 10_240, 1 << 31, 1 << 63, 1 << 64]
ODD = [None, True, "", "x" * 300, [], {}, 1.5, -1e300, *BOUNDARIES]


def members_of(rng, operation):
    """Return members that a client may send: most of those that the operation has, with varied values, and at times an
    invalid one.
    """
    known = msgspec.structs.fields(INPUTS[operation])
    names = [one.encode_name for one in known if rng.random() < (0.95 if one.required else 0.5)]
    if rng.random() < 0.2:
        names += rng.sample(sorted(MEMBERS), 2)
    return {name: varied(rng, MEMBERS[name]) for name in names}


def varied(rng, value):
    if type(value) is int and rng.random() < 0.7:
        return rng.choice([rng.randint(0, 20), rng.choice(BOUNDARIES)])
    return rng.choice(ODD) if rng.random() < 0.03 else value


def whole_request(rng):
    operation = rng.choice(sorted(INPUTS))
    body = json.dumps(members_of(rng, operation)).encode()
    if rng.random() < 0.2:  # invalid JSON in a complete request
        body = mutated(rng, body)
    method, path = rng.choice(METHODS), rng.choice(PATHS)
    content_type = b"application/x-amz-json-1.1" if path == b"/" else b"application/json"
    head = b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\n" % (method, path, content_type)
    head += b"X-Amz-Target: Kinesis_20131202.%b\r\nContent-Length: %d\r\n\r\n" % (operation.encode(), len(body))
    return head + body


def exchange(rng, address, data, *, finish=False, patience=PATIENCE):
    """Send the data in one of many ways, and return the answer, as far as there is one.

    With ``finish`` we close the connection afterwards, in one of several ways; usually no answer arrives.
    """
    with socket.create_connection(address, timeout=10) as one:
        one.settimeout(patience)
        answer = b""
        with contextlib.suppress(OSError):
            for piece in (data[: len(data) // 2], data[len(data) // 2 :]) if rng.random() < 0.3 else (data,):
                one.sendall(piece)
            if finish and rng.random() < 0.2:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            if finish:
                one.shutdown(socket.SHUT_WR)
            while piece := one.recv(65_536):
                answer += piece
        return answer


def check(answer, data):
    for part in answer.split(b"HTTP/1.1 ")[1:]:
        assert not part.startswith(b"5"), (part[:400], data)
    assert b"Traceback" not in answer, (answer[:2000], data)


def works(address):
    body = b'{"StreamName":"alive","Records":[{"Data":"eA==","PartitionKey":"k"}]}'
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.1\r\nConnection: close\r\n"
    head += b"X-Amz-Target: Kinesis_20131202.PutRecords\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = exchange(Random(1), address, head + body, patience=10)
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]


def one_exchange(rng, address):
    """Send a few requests on one connection. The last one ends it."""
    requests = [whole_request(rng) for _ in range(rng.choice([1, 1, 1, 3]))]
    requests[-1] = requests[-1].replace(b"Host: localhost\r\n", b"Host: localhost\r\nConnection: close\r\n", 1)
    data, is_broken = b"".join(requests), rng.random() < 0.3
    if is_broken:
        data = mutated(rng, data)
    check(exchange(rng, address, data, finish=rng.random() < (0.5 if is_broken else 0.1)), data)


def look(kinesis, address):
    """Check that the server still serves. Create the stream again if a request has deleted it."""
    kinesis.faults.clear()
    if "s" not in kinesis.streams:
        kinesis.create_stream("s", shards=2)
    works(address)


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def campaign(seconds, seed):
    """Run exchanges, and return how many there were."""
    rng = Random(seed)
    with LocalKinesis(shards=2, stream="s", limits=LIMITS) as kinesis:
        kinesis.create_stream("alive", shards=1)
        address = ("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2].strip("/")))
        for _ in range(WARM_UP):
            one_exchange(rng, address)
        count, before, end = WARM_UP, most_memory(), time.monotonic() + seconds
        while time.monotonic() < end:
            one_exchange(rng, address)
            count += 1
            if count % LOOK_EVERY == 0:
                look(kinesis, address)
        look(kinesis, address)
        grown = most_memory() - before
        assert grown < GROWTH_MAX_KIB, f"it grew by {grown} KiB"
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=whole_seconds, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.disable()  # errors of clients are expected
    try:
        count = campaign(options.seconds, options.seed)
    except Exception as error:
        error.add_note(f"seed {options.seed}: python tests/fuzz/server_campaign.py --seed {options.seed}")
        raise
    sys.stdout.write(f"ok  server           {count} exchanges (seed {options.seed})\n")


if __name__ == "__main__":
    main()
