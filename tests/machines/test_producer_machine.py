"""Compares the producer's machine with a naive model: a dict of the records that were put and have not ended. Records
are put, answered, lost, listed and waited for in any order: every record ends once (P1), no entry mixes shards (P2),
the buffer is bounded (P7), and there is something to poll at a deadline.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.aggregates import split_entry
from tests.harness.producer_shell import ProducerShell, shard, stream_summary

from shardline.codec.shapes import ListShardsResponse, PutRecordsResponse, PutRecordsResult
from shardline.core.error_codes import Failure, FailureKind, classify
from shardline.core.producer.intake import Put
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import Receipt, Undelivered
from shardline.model.hashing import HASH_KEY_COUNT, hash_key_of

PARTS = 8
PART = HASH_KEY_COUNT // PARTS
REQUEST_CODES = [
    ("InternalFailure", 500),
    ("ProvisionedThroughputExceededException", 400),
    ("ValidationException", 400),
    ("AccessDeniedException", 400),
    ("ExpiredTokenException", 400),
]
ENTRY_CODES = ["InternalFailure", "ProvisionedThroughputExceededException", "KMSDisabledException"]

configs = st.builds(
    ProducerConfig,
    linger=st.sampled_from([0.0, 0.1]),
    record_ttl=st.sampled_from([1.0, 20.0]),
    aggregation=st.booleans(),
    aggregate_max_bytes=st.sampled_from([64, 51_200]),
    aggregate_max_count=st.sampled_from([None, 2]),
    request_max_entries=st.sampled_from([1, 3, 500]),
    records_per_second=st.sampled_from([1.0, 1000.0]),
    max_in_flight=st.sampled_from([1, 3]),
    buffer_max_records=st.sampled_from([4, 1000]),
    buffer_max_bytes=st.sampled_from([1024, 1 << 20]),
    ordered=st.booleans(),
    fail_if_throttled=st.booleans(),
    max_attempts=st.sampled_from([None, 2]),
) | st.builds(
    ProducerConfig,
    packing=st.sampled_from(["netstrings", "length-prefixed"]),
    linger=st.sampled_from([0.0, 0.1]),
    record_ttl=st.sampled_from([1.0, 20.0]),
    aggregate_max_bytes=st.sampled_from([64, 51_200]),
    aggregate_max_count=st.sampled_from([None, 2]),
    request_max_entries=st.sampled_from([1, 3, 500]),
    max_in_flight=st.sampled_from([1, 3]),
    buffer_max_records=st.sampled_from([4, 1000]),
    ordered=st.booleans(),
    max_attempts=st.sampled_from([None, 2]),
)


def place_of(entry):
    """Return the shard of a record. Without a key, which only AUTO distribution accepts, any shard is right."""
    if entry.explicit_hash_key is not None:
        return int(entry.explicit_hash_key)
    return hash_key_of(entry.key) if entry.key is not None else 0


class Drawn(ProducerShell):
    """A shell that only notes the requests: their answers are drawn."""

    def __init__(self, drawing, config):
        super().__init__(config, 50.0)
        self.drawing = drawing

    def list_shards(self, _):
        assert not self.drawing.listing, "one listing at a time"
        self.drawing.listing = True

    def describe_stream(self, _):
        self.drawing.summary = True

    def put_records(self, number, request):
        assert not self.drawing.closed, "nothing is sent after the end"
        self.drawing.requests[number] = request.entries
        self.drawing.check_entries(number, request.entries)


class Producing(RuleBasedStateMachine):
    @initialize(config=configs)
    def begin(self, config):
        self.config = config
        self.shell = Drawn(self, config)
        self.machine = self.shell.machine
        self.accepted = {}
        self.expires_at = {}
        self.unended = {}
        self.requests = {}  # number: entries
        self.listing = self.summary = self.closed = False
        self.generation = 0
        self.cuts = (0, PARTS)
        self.numbers = 0
        self.pump()

    # ---- the driver

    @property
    def now(self):
        return self.shell.now

    def pump(self):
        self.shell.pump()
        self.collect()
        for lane in self.machine._router.all_lanes():
            for record in lane.unsent():
                assert self.expires_at[record.data] > self.now - 1e-6, "its life is over, and it waits"

    def check_entries(self, number, entries):
        assert 0 < len(entries) <= self.config.request_max_entries
        shipments = self.machine._flights[number].group.shipments
        lanes = [lane for aggregate, lane in shipments for _ in range(aggregate.entry_count)]
        for entry, lane in zip(entries, lanes, strict=True):
            inner = split_entry(entry, self.config.packing)
            assert lane.shard_id is not None or len(inner) == 1 or self.config.packing, "P2"
            for one in inner:
                place = place_of(one)
                assert place in lane.hash_range, "P2"
                assert one.data in self.unended, "P1: it has ended, and is sent"
                if self.config.packing and self.unended[one.data].key is not None:
                    assert one.key == self.unended[one.data].key, "a packed record has the key of its values"

    def collect(self):
        ledger = self.machine.ledger
        finished, failed = [*ledger.finished], {id(record) for record in ledger.failed}
        for record in finished:
            data = self.accepted[id(record)]
            assert self.unended.pop(data) is record, "P1: told twice"
            assert type(record.conclusion) in (Receipt, Undelivered)
            if type(record.conclusion) is Undelivered and record.conclusion.code == "Expired":
                assert self.expires_at[data] <= self.now + 1e-6, "its life was not over"
        assert failed == {id(record) for record in finished if type(record.conclusion) is Undelivered}
        ledger.finished.clear()
        ledger.failed.clear()
        self.machine.take_events()

    # ---- the application

    @precondition(lambda self: not self.closed)
    @rule(
        place=st.none() | st.integers(0, PARTS - 1),
        key=st.sampled_from(["a", "b", None]),
        size=st.integers(0, 60),
        ttl=st.sampled_from([None, None, 0.2, 5.0, 30.0]),
    )
    def put(self, place, key, size, ttl):
        self.numbers += 1
        data = b"%d:" % self.numbers + bytes(size)
        hash_key = None if key is None or place is None else str(place * PART + 1)
        record = self.shell.record(data, key, hash_key, ttl=ttl)
        self.expires_at[data] = self.now + (self.config.record_ttl if ttl is None else ttl)
        fits = (
            len(self.unended) < self.config.buffer_max_records
            and self.buffered() + len(data) + len(key or "") <= self.config.buffer_max_bytes
        ) or not self.unended
        answer = self.shell.accept(record)
        assert (answer is not Put.FULL) is fits, "P7"
        if fits:
            self.accepted[id(record)] = data
            self.unended[data] = record
        if answer is Put.WAKE:
            self.pump()

    @rule()
    def flush(self):
        self.machine.flush()
        self.pump()

    @precondition(lambda self: not self.closed and self.numbers > 20)
    @rule()
    def abandon(self):
        self.closed = True
        self.machine.abandon("Closed", "over")
        self.pump()

    # ---- time

    @rule(share=st.sampled_from([0.3, 1.0]))
    def wait_for_deadline(self, share):
        deadline = self.machine.next_deadline()
        if deadline != float("inf"):
            self.shell.now = max(self.now, self.now + (deadline - self.now) * share, deadline if share == 1.0 else 0.0)
            if share == 1.0:
                self.pump()

    @rule(seconds=st.sampled_from([0.01, 0.5, 3.0]))
    def wait(self, seconds):
        self.shell.now += seconds
        self.pump()

    # ---- answers

    def take_request(self, pick):
        numbers = sorted(self.requests)
        number = numbers[pick % len(numbers)]
        return number, self.requests.pop(number)

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 5), refused=st.sets(st.integers(0, 6), max_size=3), code=st.sampled_from(ENTRY_CODES))
    def answer(self, pick, refused, code):
        number, entries = self.take_request(pick)
        results = []
        for at, entry in enumerate(entries):
            self.numbers += 1
            stored = PutRecordsResult(str(self.numbers), self.shard_of(place_of(entry)))
            results.append(PutRecordsResult(None, None, code, "why") if at in refused else stored)
        self.machine.handle_put(number, PutRecordsResponse(results), self.now)
        self.pump()

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 5), code=st.sampled_from(REQUEST_CODES))
    def refuse(self, pick, code):
        number, _ = self.take_request(pick)
        self.machine.handle_put(number, Failure(classify(*code), code[0], "why", code[1]), self.now)
        self.pump()

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 5), count=st.integers(0, 2))
    def miscount(self, pick, count):
        number, entries = self.take_request(pick)
        results = [PutRecordsResult("1", "x")] * (len(entries) + 1 if count else len(entries) - 1)
        self.machine.handle_put(number, PutRecordsResponse(results), self.now)
        self.pump()

    # ---- the stream

    def shard_of(self, place):
        part = place // PART
        start = max(cut for cut in self.cuts if cut <= part)
        return f"{self.generation}-{start}"

    @rule(cuts=st.sets(st.integers(1, PARTS - 1), max_size=3))
    def reshard(self, cuts):
        self.generation += 1
        self.cuts = (0, *sorted(cuts), PARTS)

    @precondition(lambda self: self.listing)
    @rule(well=st.booleans())
    def list_shards(self, well):
        self.listing = False
        shapes = [
            shard(f"{self.generation}-{start}", start * PART, end * PART - 1)
            for start, end in zip(self.cuts, self.cuts[1:], strict=False)
        ]
        failure = Failure(FailureKind.LIMIT_EXCEEDED, "LimitExceededException", "why", 400)
        self.machine.handle_list_shards(ListShardsResponse(shapes) if well else failure, self.now)
        self.pump()

    @precondition(lambda self: self.summary)
    @rule(told=st.sampled_from(["keys", "keys", "AUTO", "fails", "denied"]))
    def describe(self, told):
        self.summary = False
        if told == "fails":
            answer = Failure(FailureKind.TRANSIENT, "InternalFailure", "why", 500)
        elif told == "denied":
            answer = Failure(FailureKind.DENIED, "AccessDeniedException", "why", 400)
        else:
            answer = stream_summary(auto=told == "AUTO" and not self.config.ordered)
        self.machine.handle_summary(answer, self.now)
        self.pump()

    # ---- what always holds

    def buffered(self):
        return sum(len(data) + len(record.key or "") for data, record in self.unended.items())

    @invariant()
    def p1_p7_nothing_is_lost_or_counted_twice(self):
        assert self.machine.intake.outstanding == len(self.unended)
        assert self.machine.intake.buffered_bytes == self.buffered()
        assert {id(record) for record in self.machine.intake.unfinished()} == {id(one) for one in self.unended.values()}
        assert self.machine.intake.outstanding <= self.config.buffer_max_records

    def teardown(self):
        """Let the world become healthy, or silent: everything ends either way."""
        if not hasattr(self, "machine"):
            return
        for _ in range(3000):
            if self.listing:
                self.list_shards(well=True)
            elif self.summary:
                self.describe("keys")
            elif self.requests:
                self.answer(0, set(), "")
            elif self.machine.next_deadline() != float("inf"):
                self.wait_for_deadline(1.0)
            else:
                break
        assert self.unended == {}, "P1"
        assert self.machine.intake.outstanding == self.machine.intake.buffered_bytes == 0
        assert self.machine._collector.in_flight == 0


Producing.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestProducing = Producing.TestCase
