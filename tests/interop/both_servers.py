"""Sends the same call to two servers, and compares their answers.

Sequence numbers are replaced by the order in which they were first seen: the same numbers must come back in the same
places, and ``order`` says how they sort within each shard. For the starting and ending numbers of a shard, the
comparison says whether another shard has the same. Times, iterators and tokens must exist, whatever their values.
Message texts, request ids and the account in ARNs may differ. Everything else is compared field by field.
"""

import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

ABSENT = "absent"
LONG = 40  # paths of a value that contains names and ids
ROUNDING = 10
TOKENS = ("ShardIterator", "NextShardIterator", "NextToken")
ACCOUNT = re.compile(r"(?<=:)\d{12}(?=:stream/)")
CONSUMER_AGE = re.compile(r"(?<=:)\d{10,13}$")


class StuckError(Exception):
    """A server did not reach the requested state."""


class Observed(NamedTuple):
    """One place where the answers to one call differ."""

    operation: str
    case: str
    path: str
    theirs: object
    ours: object


@dataclass
class Side:
    """One server: its client, the sequence numbers that it issued, and the answers that later calls refer to."""

    client: Any
    numbers: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    def answer(self, operation, params, keep):
        """Return the answer to a call: its members, or its error. A function in ``params`` reads ``kept``."""
        known = {name: value(self.kept) if callable(value) else value for name, value in params.items()}
        try:
            answer = getattr(self.client, operation)(**known)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            answer = {"Error": f"{error.response['Error']['Code']} ({status})"}
        answer.pop("ResponseMetadata", None)
        self.kept[keep] = answer
        return self.comparable("", answer)

    def comparable(self, name, value):
        if name == "SequenceNumber":
            return self.numbers.setdefault(value, f"number {len(self.numbers)}")
        if name in TOKENS:
            return "a token"
        if name == "StreamId":
            return "an id"
        if name == "MillisBehindLatest":
            return "behind" if value else 0
        if isinstance(value, datetime):
            return "a time"
        if isinstance(value, str):
            return CONSUMER_AGE.sub("0", ACCOUNT.sub("000000000000", value)) if value.startswith("arn:") else value
        if isinstance(value, dict):
            if "SequenceNumberRange" in value:
                value = value | {"SequenceNumberRange": self.span(value["ShardId"], value["SequenceNumberRange"])}
            return {key: self.comparable(key, inner) for key, inner in value.items()}
        if name == "ParentShards":  # in undocumented order
            return sorted(value)
        if isinstance(value, list):
            return [self.comparable("", inner) for inner in value]
        return value

    def span(self, shard_id, numbers):
        """Whether a shard has starting and ending numbers that no other shard of the stream has."""
        said = {}
        for name, number in numbers.items():
            owner = self.owners.setdefault(number, shard_id)
            said[name] = "its own" if owner == shard_id else "that of another shard"
        return said

    def order(self):
        """Return the sequence numbers that were seen, from the smallest to the largest in each shard."""
        shards = {}
        for number in sorted(self.numbers, key=int):
            # the layout of both servers: the shard is in the second-to-last digits
            shards.setdefault(int(number) >> 4 & 0xFFFFFFFF, []).append(self.numbers[number])
        return shards


class Both:
    """Two servers that get the same requests."""

    def __init__(self, theirs, ours):
        self.theirs, self.ours = Side(client_of(theirs)), Side(client_of(ours))
        self.observed = []
        self.calls = 0

    def __call__(self, operation, case="", keep="last", **params):
        """Send a call to both servers. Return our raw answer."""
        theirs, ours = (side.answer(operation, params, keep) for side in (self.theirs, self.ours))
        self.calls += 1
        if ("Error" in theirs) != ("Error" in ours):
            theirs, ours = ({"Error": answer.get("Error", "none")} for answer in (theirs, ours))
        self.observed += [Observed(operation, case, *one) for one in differences_of(theirs, ours)]
        return self.ours.kept[keep]

    def wait(self, stream):
        """Wait until the stream is ACTIVE on both servers."""
        self._wait(_stream_status, "ACTIVE", StreamName=stream)

    def wait_without(self, stream):
        """Wait until both servers have deleted the stream."""
        self._wait(_stream_status, None, StreamName=stream)

    def wait_without_consumer(self, stream_arn, name):
        """Wait until both servers have deregistered the consumer."""
        self._wait(_consumer_status, None, StreamARN=stream_arn, ConsumerName=name)

    def _wait(self, status, wanted, **named):
        for side in (self.theirs, self.ours):
            give_up_at = time.monotonic() + 20
            while status(side.client, **named) != wanted:
                if time.monotonic() > give_up_at:
                    raise StuckError(f"{named} does not become {wanted}")
                time.sleep(0.01)

    def create(self, stream, shards, **more):
        self("create_stream", StreamName=stream, ShardCount=shards, **more)
        self.wait(stream)

    def register(self, stream_arn, name, keep="last"):
        """Register a consumer, but not at the end of a second: the ARN contains the second, and kinesis-local may then
        lose it.
        """
        left = 1 - time.time() % 1
        if left < 0.4:
            time.sleep(left + 0.01)
        self("register_stream_consumer", keep=keep, StreamARN=stream_arn, ConsumerName=name)
        self._wait(_consumer_status, "ACTIVE", StreamARN=stream_arn, ConsumerName=name)

    def put(self, stream, hash_keys, **more):
        entries = [{"Data": b"at %d" % key, "PartitionKey": "k", "ExplicitHashKey": str(key)} for key in hash_keys]
        self("put_records", StreamName=stream, Records=entries, **more)

    def iterate(self, stream, shard_id, kind, *, case="", pages=1, limit=None, **more):
        """Get an iterator, and read pages with it."""
        params = {"StreamName": stream, "ShardId": shard_id, "ShardIteratorType": kind, **more}
        answer = self("get_shard_iterator", case, keep="page", **params)
        limits = {} if limit is None else {"Limit": limit}
        for _ in range(pages):
            if answer.get("ShardIterator") is None and answer.get("NextShardIterator") is None:
                return
            answer = self("get_records", case, keep="page", ShardIterator=_next_of, **limits)

    def close(self):
        for side in (self.theirs, self.ours):
            side.client.close()


def _next_of(kept):
    """Return the iterator of the last answer. A server that returned none refuses this."""
    page = kept["page"]
    return page.get("NextShardIterator") or page.get("ShardIterator") or "none"


def _stream_status(client, **named):
    try:
        return client.describe_stream_summary(**named)["StreamDescriptionSummary"]["StreamStatus"]
    except client.exceptions.ResourceNotFoundException:
        return None


def _consumer_status(client, **named):
    try:
        return client.describe_stream_consumer(**named)["ConsumerDescription"]["ConsumerStatus"]
    except client.exceptions.ResourceNotFoundException:
        return None


def client_of(url):
    """Return a client that validates nothing, so that the servers refuse invalid requests."""
    return boto3.client(
        "kinesis",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}, parameter_validation=False, read_timeout=60),
    )


def differences_of(theirs, ours, path=""):
    """Yield where two answers differ: the path, and the value of each. Entries of a list share one path."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in sorted({*theirs, *ours}):
            inner = f"{path}.{name}" if path else name
            yield from differences_of(theirs.get(name, ABSENT), ours.get(name, ABSENT), inner)
    elif _ids(theirs) != _ids(ours):
        yield path, _ids(theirs), _ids(ours)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for one, other in zip(theirs, ours, strict=True):
            yield from differences_of(one, other, f"{path}[]")
    elif theirs != ours:
        yield path, *_shown(path, theirs, ours)


def _shown(path, theirs, ours):
    """Return two different values as text, without parts that vary at random."""
    if ABSENT in (theirs, ours):
        is_short = [isinstance(one, int) or (isinstance(one, str) and len(one) < LONG) for one in (theirs, ours)]
        return tuple(one if short else "present" for one, short in zip((theirs, ours), is_short, strict=True))
    if path.endswith("HashKey") and abs(int(theirs) - int(ours)) < ROUNDING:
        return "rounded otherwise", "rounded"
    return theirs, ours


def _ids(answer):
    """Return the shards that a list refers to."""
    if isinstance(answer, list) and all(isinstance(one, dict) and "ShardId" in one for one in answer):
        return [one["ShardId"].removeprefix("shardId-").lstrip("0") or "0" for one in answer]
    return None
