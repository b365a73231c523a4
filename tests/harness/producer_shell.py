"""The fake shell of the producer's machine, for unit tests, machines and the simulation alike.

It does what a real shell does, and no more: it puts into the intake, polls until there is nothing to send, and looks
again at the deadline. What becomes of the requests is up to the test that uses it.
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
    """One as ListShards tells of it."""
    return ShardShape(shard_id, HashKeyRangeShape(str(start), str(end)), SequenceNumberRangeShape("0"))


def stream_summary(*, auto=False, **told):
    """What DescribeStreamSummary tells."""
    distribution = "AUTO" if auto else None
    return StreamSummary(**{"name": "s", "arn": "arn", "status": "ACTIVE", "record_distribution": distribution} | told)


class ProducerShell:
    """One machine, and the time."""

    def __init__(self, config, now, rng=None, stream="s"):
        self.config = config
        self.now = now
        self.machine = ProducerMachine(StreamRef(stream), config, rng or Random(0), now)

    @property
    def intake(self):
        return self.machine.intake

    # ---- what a test says of the world

    def list_shards(self, request):
        """A ListShards is to be sent."""

    def describe_stream(self, request):
        """A DescribeStreamSummary is to be sent."""

    def put_records(self, number, request):
        """A PutRecords is to be sent, and answered under its number."""

    # ---- what a shell does

    def record(self, data=b"x", key="k", hash_key=None, *, waits=True, ttl=None, headers=None):
        """One that is put now."""
        expires_at = self.now + self.config.record_ttl
        extra_ttl = 0.0 if ttl is None else ttl - self.config.record_ttl
        self.intake.ttls_differ |= bool(extra_ttl)
        waiters = [] if waits else None
        tags = encode_tags(headers or {})
        return BufferedRecord(data, key, hash_key, expires_at, waiters=waiters, extra_ttl=extra_ttl, tags=tags)

    def accept(self, record):
        """What the intake answers. Where its gate is open, the record is appended without a call, as a shell does it."""
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
        """One round of polls. Says whether there may be more to do now."""
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
        """Poll until there is nothing to do; then the deadline lies ahead."""
        for _ in range(MOST_POLLS):
            if not self.poll():
                return
        raise AssertionError(f"it never comes to rest: {self.machine.next_deadline()} at {self.now}")


ACCEPTED = {Put.QUIET, Put.WAKE}
