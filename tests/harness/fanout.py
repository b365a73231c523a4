"""The shell of one ``FanOutReader``, and a service whose events the test writes."""

from random import Random

from shardline.codec.shapes import ChildShardShape, HashKeyRangeShape, RawRecord, SubscribeToShardEvent
from shardline.core.clock import NEVER
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.fanout_reader import FanOutReader, NextEvent
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.trim_watch import TrimWatch
from shardline.core.requests import SubscribeToShard
from shardline.model.limits import MIB
from shardline.model.position import TRIM_HORIZON
from shardline.model.stream import StreamRef

STREAM = StreamRef("s")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s/consumer/billing:1700000000"
CHILD = ChildShardShape("b", ("a",), HashKeyRangeShape("0", "9"))
SAME = "same"  # by default, the continuation number is that of the last record


class FanOutShell:
    """One reader. The shell sends each request as soon as the reader makes it."""

    def __init__(self, start=TRIM_HORIZON, *, budget=None, done=None, rng=None, lease=None, counts=None):
        self.now = 100.0
        self.budget = budget or PrefetchBudget(MIB)
        self.trims = TrimWatch()
        self.reader = FanOutReader(
            STREAM,
            "a",
            start,
            consumer_arn=ARN,
            budget=self.budget,
            deaggregator=Deaggregator("s", "a", done=done),
            trims=self.trims,
            rng=rng or Random(0),
            now=self.now,
            lease=lease,
            counts=counts,
        )

    def ask(self):
        """Return the next request, at the time when it is due."""
        deadline = self.reader.next_deadline()
        self.now = self.now if deadline == NEVER else max(self.now, deadline)
        return self.reader.poll_request(self.now)

    def subscribe(self):
        """Begin a subscription. Returns its position."""
        request = self.ask()
        assert isinstance(request, SubscribeToShard), request
        self.reader.handle_subscribed(self.now)
        return request.position

    def wait(self, seconds=0.0):
        """Request an event, and let time pass until it comes."""
        assert isinstance(self.ask(), NextEvent)
        self.now += seconds

    def event(self, *raws, after=SAME, behind=0, children=None, data=b"x", arrived_at=None, wait=0.0):
        """Push an event with records, or their numbers. ``after`` is the continuation number."""
        self.wait(wait)
        arrived_at = self.now - (behind or 0) / 1000 if arrived_at is None else arrived_at
        records = [raw if isinstance(raw, RawRecord) else RawRecord(data, str(raw), "k", arrived_at) for raw in raws]
        if after == SAME:
            after = records[-1].sequence_number if records else None
        after = None if after is None else str(after)
        self.reader.handle_event(SubscribeToShardEvent(records, after, behind, children), self.now)

    def end(self):
        """End the subscription, as the service would."""
        self.wait()
        self.reader.handle_end(self.now)

    def fail(self, failure):
        assert self.ask() is not None
        self.reader.handle_failure(failure, self.now)

    def numbers(self):
        """The numbers of the records that the user gets now."""
        return [int(record.sequence_number) for page in self.reader.take_pages() for record in page.records]
