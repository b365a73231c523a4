"""A polling reader on the server's model, through throttling, outages, expired iterators, crashes and the end of the
shard: it returns the records that were put, in order, and after a crash again from the checkpoint on.
"""

from random import Random

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.harness.reader import polling_reader

from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse
from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import ReadFailed
from shardline.core.consumer.polling_reader import ReaderState
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.error_codes import Failure, FailureKind, classify
from shardline.core.requests import GetShardIterator
from shardline.model.hashing import HASH_KEY_COUNT
from shardline.model.limits import MIB
from shardline.model.position import TRIM_HORIZON, at_sequence_number
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings

BEGIN = 1_700_000_000.0
SHARD = "shardId-000000000000"


class Reading(RuleBasedStateMachine):
    @initialize(empty=st.sampled_from([0.0, 0.3]), limit=st.integers(1, 7), room=st.sampled_from([65_536, MIB]))
    def begin(self, empty, limit, room):
        # The rates of a real shard, so that a reader that asks too fast is refused.
        self.service = Service(ServiceSettings(limits=Limits(), empty_page_chance=empty), Random(0), BEGIN)
        self.now = BEGIN
        self.limit = limit
        self.room = room
        self.expected = []
        self.seen = []
        self.checkpoint = None  # the place of the last record that the user has finished
        self.count = 0
        self.ended = False
        self.call("CreateStream", StreamName="s", ShardCount=1)
        self.now += 30.0
        self.start()

    def start(self):
        """Start a new reader at the checkpoint."""
        self.budget = PrefetchBudget(self.room)
        start = TRIM_HORIZON if self.checkpoint is None else at_sequence_number(self.checkpoint)
        settings = {"done": self.checkpoint, "page_max_records": self.limit, "idle": 1.0, "rng": Random(1)}
        self.reader = polling_reader(start, self.now, shard_id=SHARD, budget=self.budget, **settings)
        self.request = None

    def call(self, operation, **members):
        answer = self.service.handle(operation, members, self.now)
        assert answer.refusal is None, answer.refusal.message
        return msgspec.to_builtins(answer.body, builtin_types=(bytes,), enc_hook=list)

    # ---- rules

    @precondition(lambda self: not self.ended)
    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5), large=st.booleans())
    def put(self, sizes, large):
        """Put plain records and aggregates."""
        self.now += 1.0
        for size in sizes:
            new = [(f"k{self.count + place}", b"%d" % (self.count + place)) for place in range(size)]
            self.count += size
            data = new[0][1] + b" " * (100_000 * large) if size == 1 else aggregate(new)
            body = self.call("PutRecords", StreamName="s", Records=[{"Data": data, "PartitionKey": new[0][0]}])
            assert body["FailedRecordCount"] == 0
            self.expected += [payload for _, payload in new]
            self.now += 0.2 * large

    @precondition(lambda self: not self.ended)
    @rule()
    def split(self):
        self.now += 5.0
        self.call("SplitShard", StreamName="s", ShardToSplit=SHARD, NewStartingHashKey=str(HASH_KEY_COUNT // 2))
        self.now += 60.0
        self.ended = True

    @rule(seconds=st.sampled_from([0.01, 0.5, 20.0, 301.0]))
    def wait(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.request is None)
    @rule(jump=st.booleans())
    def poll(self, jump):
        deadline = self.reader.next_deadline()
        if jump and deadline < NEVER:
            self.now = max(self.now, deadline)
        self.request = self.reader.poll_request(self.now)
        assert self.request is None or deadline <= self.now or deadline == NEVER

    @precondition(lambda self: self.request is not None)
    @rule()
    def answer(self):
        request, self.request = self.request, None
        asks = isinstance(request, GetShardIterator)
        if asks:
            members = {"StreamName": "s", "ShardId": SHARD, "ShardIteratorType": request.position.kind.value}
            if request.position.sequence_number is not None:
                members["StartingSequenceNumber"] = str(request.position.sequence_number)
        else:
            members = {"ShardIterator": request.iterator, "Limit": request.limit}
        answer = self.service.handle("GetShardIterator" if asks else "GetRecords", members, self.now)
        if answer.refusal is not None:
            kind = classify(answer.refusal.code, 400, answer.refusal.message)
            assert kind is not FailureKind.THROTTLED, "at its pace nothing is refused"
            self.reader.handle_failure(Failure(kind, answer.refusal.code, answer.refusal.message, 400), self.now)
            return
        body = msgspec.to_builtins(answer.body, builtin_types=(bytes,), enc_hook=list)
        if asks:
            self.reader.handle_iterator(msgspec.convert(body, GetShardIteratorResponse), self.now)
        else:
            self.reader.handle_page(msgspec.convert(body, GetRecordsResponse, builtin_types=(bytes,)), self.now)

    @rule(times=st.integers(1, 6))
    def read(self, times):
        """Read for a while without faults."""
        for _ in range(times):
            if self.request is None:
                self.poll(jump=True)
            if self.request is not None:
                self.answer()

    @precondition(lambda self: self.request is not None)
    @rule(kind=st.sampled_from([FailureKind.THROTTLED, FailureKind.TRANSIENT, FailureKind.EXPIRED_ITERATOR]))
    def fail(self, kind):
        self.request = None
        self.reader.handle_failure(Failure(kind, "x", "y"), self.now)

    @rule()
    def take(self):
        """Let the user take and finish the available records."""
        for page in self.reader.take_pages():
            self.seen += [record.data.rstrip() for record in page.records]
            assert page.is_last == (self.reader.state is ReaderState.ENDED and page.is_last)
            assert not page.is_last or len(page.child_shards) == 2
            self.budget.release(self.reader.key, page.held_bytes)
            if page.records:
                self.checkpoint = page.records[-1].order
        assert self.seen == self.expected[: len(self.seen)], "pages come out in the order of the shard"

    @rule(done=st.integers(0, 5))
    def crash(self, done):
        """Hand a page to the user, who finishes a part of it. Then everything is lost except the checkpoint."""
        for page in self.reader.take_pages()[:1]:
            for record in page.records[:done]:
                self.seen.append(record.data.rstrip())
                self.checkpoint = record.order
        assert self.seen == self.expected[: len(self.seen)], (
            "what is at or before the checkpoint is skipped, by (sequence number, sub-sequence)"
        )
        self.reader.stop()
        self.now += 1.0  # a process does not start faster, and the next reader shares the shard's limits with this one
        self.start()

    def teardown(self):
        """Check that every record was seen once in the end."""
        if not hasattr(self, "reader"):
            return
        for _ in range(400):
            if self.request is not None:
                self.answer()
            self.take()
            for event in self.reader.take_events():
                assert isinstance(event, ReadFailed)
            if self.reader.is_over or (not self.ended and self.seen == self.expected):
                break
            self.poll(jump=True)
        assert self.seen == self.expected
        assert (self.reader.state is ReaderState.ENDED) == self.ended


TestReading = Reading.TestCase
TestReading.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
