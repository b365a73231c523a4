"""The fake shell of the producer's machine, for unit tests, machines and the simulation alike.

It does only what a real shell does: it puts records into the intake, polls until there is nothing to send, and polls
again at the deadline. The test that uses it decides the outcome of the requests.
"""

from random import Random

from shardline.codec.aggregation import encode_tags
from shardline.codec.shapes import HashKeyRangeShape, SequenceNumberRangeShape, ShardShape, StreamSummary
from shardline.core.producer.intake import Put
from shardline.core.producer.machine import ProducerMachine
from shardline.core.producer.producer_record import BufferedRecord, payload_bytes
from shardline.model.hashing import HASH_KEY_MAX
from shardline.model.stream import StreamRef

MOST_POLLS = 10_000


def shard(shard_id, start=0, end=HASH_KEY_MAX):
    """Return a shard as ListShards describes it."""
    return ShardShape(shard_id, HashKeyRangeShape(str(start), str(end)), SequenceNumberRangeShape("0"))


def stream_summary(*, auto=False, **told):
    """Return a response of DescribeStreamSummary."""
    distribution = "AUTO" if auto else None
    return StreamSummary(**{"name": "s", "arn": "arn", "status": "ACTIVE", "record_distribution": distribution} | told)


class ProducerShell:
    """One machine, and its clock."""

    def __init__(self, config, now, rng=None, stream="s"):
        self.config = config
        self.now = now
        self.machine = ProducerMachine(StreamRef(stream), config, rng or Random(0), now)

    @property
    def intake(self):
        return self.machine.intake

    # ---- the outputs: a test overrides these

    def list_shards(self, request):
        """Send a ListShards."""

    def describe_stream(self, request):
        """Send a DescribeStreamSummary."""

    def put_records(self, number, request):
        """Send a PutRecords, to be answered under this number."""

    # ---- the actions of a shell

    def record(self, data=b"x", key="k", hash_key=None, *, waits=True, ttl=None, headers=None):
        """Return a record that is put now."""
        expires_at = self.now + self.config.record_ttl
        extra_ttl = 0.0 if ttl is None else ttl - self.config.record_ttl
        self.intake.ttls_differ |= bool(extra_ttl)
        waiters = [] if waits else None
        tags = encode_tags(headers or {})
        return BufferedRecord(data, key, hash_key, expires_at, waiters=waiters, extra_ttl=extra_ttl, tags=tags)

    def accept(self, record):
        """Put a record, and return the answer of the intake. If the gate is open, append it without a call, as a shell
        does.
        """
        intake, size = self.intake, payload_bytes(record)
        if intake.reserved_records < intake.gate_records and intake.reserved_bytes + size <= intake.quiet_bytes:
            intake.reserved_records += 1
            intake.reserved_bytes += size
            intake.records.append(record)
            return Put.QUIET
        return intake.put(record, size)

    def accept_many(self, records):
        return self.intake.put_many(records, sum(map(payload_bytes, records)))

    def poll(self):
        """Poll once. Return whether there may be more to do now."""
        listing = self.machine.poll_list_shards(self.now)
        summary = self.machine.poll_summary(self.now)
        put = self.machine.poll_put(self.now)
        if listing is not None:
            self.list_shards(listing)
        if summary is not None:
            self.describe_stream(summary)
        if put is not None:
            self.put_records(*put)
        return (listing, summary, put) != (None, None, None) or self.machine.next_deadline() <= self.now

    def pump(self):
        """Poll until there is nothing to do, so that the deadline is in the future."""
        for _ in range(MOST_POLLS):
            if not self.poll():
                return
        raise AssertionError(f"it never comes to rest: {self.machine.next_deadline()} at {self.now}")


ACCEPTED = {Put.QUIET, Put.WAKE}
