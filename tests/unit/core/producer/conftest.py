"""A test bench for the producer's machine: tests put records, inspect its requests, and answer them."""

from random import Random

import pytest
from tests.aggregates import split_aggregate, split_headed
from tests.harness.producer_shell import ProducerShell, shard, stream_summary

from shardline.codec.shapes import ListShardsResponse, PutRecordsResponse, PutRecordsResult
from shardline.core.error_codes import Failure, FailureKind, classify
from shardline.core.producer.producer_config import ProducerConfig
from shardline.model.hashing import HASH_KEY_COUNT

SIXTEENTH = HASH_KEY_COUNT // 16


def at(place):
    """Return a hash key in the middle of a sixteenth of the ring."""
    return str(place * SIXTEENTH + SIXTEENTH // 2)


class Rig(ProducerShell):
    """One machine. Shards are named by letters; ``a=(0, 8)`` is the lower half of the ring, in sixteenths."""

    def __init__(self, *, facts=True, auto=False, shards=None, **settings):
        super().__init__(ProducerConfig(**settings), 100.0, Random(1))
        self.machine.ledger.observe()
        self.numbers = iter(range(1, 10**6))
        if facts:
            assert self.machine.poll_summary(self.now) is not None
            self.summary(auto=auto)
        if shards is not None:
            assert self.machine.poll_list_shards(self.now) is not None
            self.listed(**shards)
            self.now += 1.0  # requests from now on are newer than the map
        self.began = self.now

    # ---- commands

    def put(self, data=b"data", key="k", place=None, *, waits=True, ttl=None, headers=None):
        record = self.record(data, key, None if place is None else at(place), waits=waits, ttl=ttl, headers=headers)
        self.answer = self.accept(record)
        return record

    def puts(self, *places):
        """Put one record for each place in the ring, each named by a letter."""
        return [self.put(b"%d" % number, f"key {place}", place) for number, place in enumerate(places)]

    def wait(self, seconds):
        self.now += seconds
        return self

    def to_deadline(self):
        deadline = self.machine.next_deadline()
        assert self.now < deadline < float("inf"), deadline
        self.now = deadline
        return self

    # ---- requests

    def send(self):
        """Return the next request: for each entry, the data of its records."""
        polled = self.machine.poll_put(self.now)
        while polled is None and self.machine._backlog:
            polled = self.machine.poll_put(self.now)  # it has sorted a slice of the records
        if polled is None:
            return None
        self.number, self.request = polled
        opened = [split_aggregate(entry.data) for entry in self.request.entries]
        return [
            [entry.data] if inner is None else [one.data for one in inner]
            for entry, inner in zip(self.request.entries, opened, strict=True)
        ]

    def lanes(self, number=None):
        """Return the lane of each entry of a request."""
        shipments = self.machine._flights[self.number if number is None else number].group.shipments
        return [lane for aggregate, lane in shipments for _ in range(aggregate.entry_count)]

    def sort(self):
        """Sort the records into lanes, without a request."""
        self.machine._sort(len(self.intake.records), self.now)

    def flush(self):
        self.machine.flush()
        return self.send()

    # ---- answers

    def stored(self, *shards, number=None):
        """Answer that each entry was stored in this shard; by default, in the predicted one."""
        number = self.number if number is None else number
        predicted = [lane.shard_id or "a" for lane in self.lanes(number)]
        return self.results(*(shards or predicted), number=number)

    def results(self, *ends, number=None):
        """Answer with a shard's letter for each stored entry, or with an error code."""
        told = [
            PutRecordsResult(str(next(self.numbers)), end)
            if len(end) == 1
            else PutRecordsResult(None, None, end, "why")
            for end in ends
        ]
        self.machine.handle_put(self.number if number is None else number, PutRecordsResponse(told), self.now)
        return self

    def failed(self, code="InternalFailure", status=500, number=None, message="why", **more):
        failure = Failure(classify(code, status), code, message, status, **more)
        self.machine.handle_put(self.number if number is None else number, failure, self.now)
        return self

    def lost(self, number=None, *, received=True):
        failure = Failure(FailureKind.TRANSIENT, "ConnectionReset", "why", maybe_received=received)
        self.machine.handle_put(self.number if number is None else number, failure, self.now)
        return self

    def asks_for_map(self):
        return self.machine.poll_list_shards(self.now) is not None

    def listed(self, next_page=None, **shards):
        shapes = [shard(name, start * SIXTEENTH, end * SIXTEENTH - 1) for name, (start, end) in shards.items()]
        self.machine.handle_list_shards(ListShardsResponse(shapes, next_page), self.now)
        return self

    def not_listed(self, code="LimitExceededException"):
        self.machine.handle_list_shards(Failure(classify(code, 400), code, "why", 400), self.now)
        return self

    def asks_for_summary(self):
        return self.machine.poll_summary(self.now) is not None

    def summary(self, *, auto=False, kib=1024, created_at=None, channels=0):
        told = {"created_at": created_at, "max_record_kib": kib, "channels_shape": channels}
        self.machine.handle_summary(stream_summary(auto=auto, **told), self.now)
        return self

    def new_summary(self, **told):
        """The stream is asked again, for a reason that is not told here."""
        self.machine._facts._wanted_at = self.now
        assert self.asks_for_summary()
        return self.summary(**told)

    def sent_headers(self):
        """The headers of each record of the last request, by entry."""
        opened = [split_headed(entry.data) for entry in self.request.entries]
        return [[] if inner is None else [dict(one.headers) for one in inner] for inner in opened]

    def no_summary(self, code="AccessDeniedException"):
        self.machine.handle_summary(Failure(classify(code, 400), code, "why", 400), self.now)
        return self

    # ---- queries

    @property
    def elapsed(self):
        return self.now - self.began

    def lane(self, name):
        (found,) = [lane for lane in self.machine._router.all_lanes() if lane.shard_id == name]
        return found

    @property
    def is_empty(self):
        machine = self.machine
        return machine.intake.outstanding == machine.intake.buffered_bytes == 0 and machine.intake.unfinished() == []


@pytest.fixture
def rig():
    """Return a function that makes a machine, with a map of two halves by default."""

    def make(**changes):
        return Rig(**{"shards": {"a": (0, 8), "b": (8, 16)}} | changes)

    return make
