"""The shell of one ``PollingReader``, and a service whose answers the test chooses."""

from random import Random

from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse, RawRecord
from shardline.core.clock import NEVER
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.polling_reader import PollingReader
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.consumer.trim_watch import TrimWatch
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.model.limits import MIB
from shardline.model.position import TRIM_HORIZON
from shardline.model.stream import StreamRef

STREAM = StreamRef("s")


def polling_reader(start, now, *, shard_id="a", budget, idle=10.0, done=None, trims=None, rng=None, **settings):
    return PollingReader(
        STREAM,
        shard_id,
        start,
        budget=budget,
        pace=ReadPace(5.0, 2.0 * MIB, idle, rng or Random(0), now),
        deaggregator=Deaggregator("s", shard_id, done=done),
        trims=trims or TrimWatch(),
        **settings,
    )


class ReaderShell:
    """One reader. The shell polls it as soon as it is due."""

    def __init__(self, start=TRIM_HORIZON, *, budget=None, **settings):
        self.now = 100.0
        self.budget = budget or PrefetchBudget(MIB)
        self.trims = TrimWatch()
        self.reader = polling_reader(start, self.now, budget=self.budget, trims=self.trims, **settings)
        self.request = None  # the last request

    def ask(self):
        """Return the next request, at the time when it is due."""
        deadline = self.reader.next_deadline()
        self.now = self.now if deadline == NEVER else max(self.now, deadline)
        self.request = self.reader.poll_request(self.now)
        return self.request

    def start(self):
        assert isinstance(self.ask(), GetShardIterator)
        self.reader.handle_iterator(GetShardIteratorResponse("it-0"), self.now)
        return self

    def page(self, *raws, behind=0, following="it-1", data=b"x", children=(), arrived_at=None, latency=0.0):
        """Answer the next request with records, or with records of these numbers. Return how long the reader waited
        before the request.
        """
        began = self.now
        assert isinstance(self.ask(), GetRecords)
        waited = self.now - began
        arrived_at = self.now - (behind or 0) / 1000 if arrived_at is None else arrived_at
        self.now += latency
        records = [raw if isinstance(raw, RawRecord) else RawRecord(data, str(raw), "k", arrived_at) for raw in raws]
        self.reader.handle_page(GetRecordsResponse(records, following, behind, children), self.now)
        return waited

    def fail(self, failure):
        assert self.ask() is not None
        self.reader.handle_failure(failure, self.now)

    def numbers(self):
        """The numbers of the records that the user gets now."""
        return [int(record.sequence_number) for page in self.reader.take_pages() for record in page.records]

    def summarize(self, hours):
        """Pass a stream summary with this retention to the reader, and return the events that it reports."""
        self.trims.handle_requested(self.now)
        self.trims.handle_summary(hours, self.now)
        return self.trims.take_events()
