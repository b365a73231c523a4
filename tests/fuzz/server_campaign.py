"""Throw whatever a socket carries at the embedded Kinesis for a while: ``python tests/fuzz/server_campaign.py --seconds 60``.

Requests of every operation, and of the control endpoint, broken in a few places; cut off, reset, sent in pieces, many on one
connection. It never answers 5xx, never shows a traceback, never grows for good, and goes on serving.
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
from random import Random

from test_corpus import mutated

from shardline.server.model.inputs import INPUTS
from shardline.testing import LocalKinesis

LOOK_EVERY = 200
GROWTH_MAX_KIB = 200 * 1024
PATHS = [b"/", b"/", b"/", b"/_shardline/faults", b"/_shardline/streams", b"/_shardline/requests", b"/_shardline/clock"]
MEMBERS = {
    "StreamName": "s",
    "ShardId": "shardId-000000000000",
    "ShardIteratorType": "TRIM_HORIZON",
    "Data": "eA==",
    "PartitionKey": "k",
    "Records": [{"Data": "eA==", "PartitionKey": "k"}],
    "ShardFilter": {"Type": "AT_LATEST"},
    "Limit": 10,
}


def whole_request(chance):
    operation = chance.choice(sorted(INPUTS))
    body = json.dumps(dict(chance.sample(sorted(MEMBERS.items(), key=str), chance.randint(0, 5)))).encode()
    head = b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-amz-json-1.1\r\n" % (
        chance.choice([b"POST", b"POST", b"POST", b"GET", b"PUT", b"DELETE"]),
        chance.choice(PATHS),
    )
    head += b"X-Amz-Target: Kinesis_20131202.%b\r\nContent-Length: %d\r\n\r\n" % (operation.encode(), len(body))
    return head + body


def exchange(chance, address, data, *, finish=True):
    """Send it in one of many ways; what came back, as far as anything did. With ``finish`` we send no more after it."""
    with socket.create_connection(address, timeout=10) as one:
        one.settimeout(5)
        answer = b""
        with contextlib.suppress(OSError):
            for piece in (data[: len(data) // 2], data[len(data) // 2 :]) if chance.random() < 0.3 else (data,):
                one.sendall(piece)
            if finish and chance.random() < 0.2:
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
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-amz-json-1.1\r\nConnection: close\r\n"
    head += b"X-Amz-Target: Kinesis_20131202.PutRecords\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = exchange(Random(1), address, head + body, finish=False)
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]


def campaign(seconds, seed):
    """How many exchanges there were."""
    chance, count, before = Random(seed), 0, None
    logging.disable()  # what clients send is no news
    with LocalKinesis(shards=2, stream="s", limits=False) as kinesis:
        kinesis.create_stream("alive", shards=1)
        address = ("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2].strip("/")))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            data = b"".join(whole_request(chance) for _ in range(chance.choice([1, 1, 1, 3])))
            data = mutated(chance, data) if chance.random() < 0.9 else data
            data = data.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n", 1)
            check(exchange(chance, address, data, finish=chance.random() < 0.8), data)
            count += 1
            if count % LOOK_EVERY == 0:
                kinesis.faults.clear()
                works(address)
                before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        kinesis.faults.clear()
        works(address)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - (before or 1 << 40)
        assert grown < GROWTH_MAX_KIB, f"it grew by {grown} KiB"
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    count = campaign(options.seconds, options.seed)
    sys.stdout.write(f"ok  server           {count} exchanges (seed {options.seed})\n")


if __name__ == "__main__":
    main()
