"""Compares the shard map with a naive one, of lists and linear search, on a stream that splits and merges while it is
listed. In any order of events: there is one request at a time, each is answered once, the old snapshot is used until
the next one is complete, failures are followed by pauses of 1 to 30 s, and only news causes a refresh (P3).
"""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.harness.producer_shell import shard

from shardline.codec.shapes import ListShardsResponse
from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.shard_map import MapState, ShardMap
from shardline.core.requests import ShardFilter
from shardline.model.hashing import HASH_KEY_COUNT, HashRange
from shardline.model.stream import parse_stream

CLOSED_SHARD_TTL = 60.0
LATE = st.sampled_from([0.0, 0.001, 0.3, 7.0])  # seconds until an answer arrives


def page(shards, token):
    return ListShardsResponse([shard(*one) for one in shards], token)


def covers_the_ring(shards):
    """Whether every hash key has exactly one owner: each shard starts where another one ends."""
    ends = sorted(end + 1 for _, _, end in shards)
    starts = sorted(start for _, start, _ in shards)
    return bool(shards) and starts == [0, *ends[:-1]] and ends[-1] == HASH_KEY_COUNT


class ShardMaps(RuleBasedStateMachine):
    @initialize(shards=st.integers(1, 5), seed=st.integers(0, 100))
    def begin(self, shards, seed):
        self.now = 100.0
        self.map = ShardMap(parse_stream("orders"), Random(seed))
        # the stream
        self.count = 0
        edges = [HASH_KEY_COUNT * part // shards for part in range(shards + 1)]
        self.open = [self.born(start, end - 1) for start, end in pairwise(edges)]
        # the naive map
        self.wanted_at = -NEVER
        self.token = None
        self.in_flight = False
        self.collected = []
        self.asked_at = None
        self.failures = 0
        self.snapshot = None
        self.is_unchanged = False
        self.doubts = 0
        self.updated_at = -NEVER
        self.known = {}
        self.closed_at = {}
        # the observations
        self.requests = 0
        self.answers = 0

    def born(self, start, end):
        self.count += 1
        return f"shardId-{self.count:012d}", start, end

    # ---- the stream changes, and time passes

    @rule(pick=st.integers(0, 100), fraction=st.floats(0.05, 0.95))
    def split(self, pick, fraction):
        at = pick % len(self.open)
        _, start, end = self.open[at]
        middle = start + int((end - start) * fraction)
        if len(self.open) < 8 and start < middle <= end:
            self.open[at : at + 1] = [self.born(start, middle - 1), self.born(middle, end)]

    @precondition(lambda self: len(self.open) > 1)
    @rule(pick=st.integers(0, 100))
    def merge(self, pick):
        at = pick % (len(self.open) - 1)
        (_, start, _), (_, _, end) = self.open[at : at + 2]
        self.open[at : at + 2] = [self.born(start, end)]

    @rule(seconds=st.sampled_from([0.001, 0.3, 1.0, 7.0, 31.0, 61.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def wait_until_it_wants_something(self):
        deadline = self.map.next_deadline()
        if deadline != NEVER:
            self.now = max(self.now, deadline)

    # ---- requests

    @rule()
    def poll(self):
        request = self.map.poll_request(self.now)
        assert (request is not None) == (not self.in_flight and self.now >= self.wanted_at)
        if request is None:
            return
        self.requests += 1
        self.in_flight = True
        assert request.max_results == 1_000
        assert request.next_token == self.token
        assert request.shard_filter == (ShardFilter("AT_LATEST") if self.token is None else None)
        if self.token is None:
            self.collected, self.asked_at = [], self.now
        assert self.map.poll_request(self.now) is None  # single flight

    @precondition(lambda self: self.in_flight)
    @rule(size=st.sampled_from([1, 2, 3, 1_000]), late=LATE)
    def answer(self, size, late):
        """Answer with a page of the current shards. If they have changed since the previous page, the listing may be
        inconsistent.
        """
        self.now += late
        at = int(self.token or 0)
        shards = self.open[at : at + size]
        more = str(at + size) if at + size < len(self.open) else None
        self.handle(page(shards, more), shards, more)

    @precondition(lambda self: self.in_flight)
    @rule(kind=st.sampled_from(FailureKind), retry_after=st.sampled_from([None, None, 0.0, 3.0, 45.0]))
    def fail(self, kind, retry_after):
        is_page_token = self.token is not None
        self.answered()
        failure = Failure(kind, "Code", "words", 400, retry_after=retry_after)
        assert self.map.handle_page(failure, self.now) is False
        if is_page_token and kind in {FailureKind.INVALID, FailureKind.EXPIRED_TOKEN}:
            failure = failure._replace(kind=FailureKind.TRANSIENT)  # the token is too old, the request itself is right
        assert self.map.failure == failure
        self.failed(min(retry_after or 0.0, 30.0))

    @precondition(lambda self: self.in_flight)
    @rule(shard=st.sampled_from([("x", "7", "6"), ("x", "-1", "5"), ("x", "", "5"), ("x", "0", str(HASH_KEY_COUNT))]))
    def answer_nonsense(self, shard):
        self.answered()
        assert self.map.handle_page(page([shard], None), self.now) is False
        assert self.map.failure.code == "BadShardList"
        self.failed()

    @precondition(lambda self: not self.in_flight and self.wanted_at != NEVER and len(self.open) > 1)
    @rule(kind=st.sampled_from(FailureKind), late=LATE)
    def break_off_between_two_pages(self, kind, late):
        """The next listing starts over: the pages of two listings do not fit together."""
        self.wait_until_it_wants_something()
        self.poll()
        self.answer(1, late)
        if self.token is not None:
            self.poll()
            self.fail(kind, None)
            self.wait_until_it_wants_something()
            self.poll()

    @rule(late=LATE)
    def come_to_rest(self, late):
        """Let the map come to rest without further events. Pages that do not fit together are requested again once."""
        for _ in range(3):
            if self.wanted_at == NEVER and not self.in_flight:
                return
            self.wait_until_it_wants_something()
            self.poll()
            self.answer(1_000, late)
        assert self.wanted_at == NEVER

    @precondition(lambda self: __debug__ and not self.in_flight)  # -O removes the assertion
    @rule()
    def answer_what_was_not_asked(self):
        with pytest.raises(AssertionError):
            self.map.handle_page(page(self.open, None), self.now)

    def answered(self):
        self.in_flight = False
        self.answers += 1

    def handle(self, answer, shards, more):
        self.answered()
        changed = self.map.handle_page(answer, self.now)
        self.collected += shards
        self.token = more
        whole = sorted(set(self.collected), key=lambda shard: shard[1])
        if more is not None:
            assert changed is False
            self.wanted_at = self.now
        elif covers_the_ring(whole):
            assert changed is True
            self.install(whole)
        else:
            assert changed is False
            self.failed()

    def failed(self, at_least=0.0):
        """Check that the drawn pause lies in its interval. From here on the map's own value is used."""
        self.token = None
        self.failures += 1
        ceiling = min(30.0, 2.0 ** (self.failures - 1))
        self.wanted_at = self.map.next_deadline()
        assert self.now + max(ceiling / 2, at_least) <= self.wanted_at + 1e-9
        assert self.wanted_at <= self.now + max(ceiling, at_least) + 1e-9

    def install(self, whole):
        self.failures = 0
        self.wanted_at = NEVER
        self.is_unchanged = whole == self.snapshot
        self.doubts = self.doubts if self.is_unchanged else 0
        self.snapshot = whole
        self.updated_at = self.asked_at
        opened = {shard_id: HashRange(start, end) for shard_id, start, end in whole}
        for shard_id in self.known:
            if shard_id not in opened:
                self.closed_at.setdefault(shard_id, self.now)
        self.closed_at = {
            shard_id: at
            for shard_id, at in self.closed_at.items()
            if shard_id not in opened and self.now - at < CLOSED_SHARD_TTL
        }
        self.known = {shard_id: self.known[shard_id] for shard_id in self.closed_at} | opened

    # ---- entries land elsewhere than predicted

    @rule(
        age=st.sampled_from([0.0, 0.001, 0.5, 5.0, 100.0]) | st.just("updated"),
        who=st.sampled_from(["open", "closed", "unknown", "none"]),
        pick=st.integers(0, 100),
    )
    def invalidate(self, age, who, pick):
        seen_at = self.updated_at if age == "updated" else self.now - age
        snapshot_ids = [shard_id for shard_id, _, _ in self.snapshot or ()]
        among = {"open": snapshot_ids, "closed": sorted(self.closed_at), "unknown": ["shardId-unknown"], "none": [None]}
        predicted = among[who][pick % len(among[who])] if among[who] else "shardId-unknown"
        idle = self.wanted_at == NEVER and not self.in_flight
        news = idle and seen_at > self.updated_at and (predicted is None or predicted in snapshot_ids)
        assert self.map.invalidate(seen_at, predicted, self.now) is news
        if news:
            self.expect_invalidated()

    def expect_invalidated(self):
        """Expect an invalidation at once, unless the last listing brought nothing new."""
        self.wanted_at = self.now
        if self.is_unchanged:
            longest = min(30.0, 2.0**self.doubts)
            self.doubts += 1
            self.wanted_at = self.map.next_deadline()
            assert longest / 2 <= self.wanted_at - self.now + 1e-9 <= longest + 2e-9

    # ---- invariants

    @invariant()
    def the_map_is_that_of_the_lists(self):
        if not hasattr(self, "map"):
            return
        assert self.requests - self.answers == self.in_flight  # each request is answered once
        assert self.map.next_deadline() == (NEVER if self.in_flight else max(0.0, self.wanted_at))
        assert self.map.updated_at == self.updated_at
        if self.snapshot is None:
            assert self.map.snapshot is None
            assert self.map.state is (MapState.UPDATING if self.in_flight else MapState.INVALID)
            return
        idle = self.wanted_at == NEVER and not self.in_flight
        assert self.map.state is (MapState.READY if idle else MapState.UPDATING)
        # P3: the last complete snapshot is used, at both edges of each of its ranges.
        for shard_id, start, end in self.snapshot:
            for hash_key in (start, end):
                assert self.map.snapshot.predict(hash_key.to_bytes(16, "big")) == shard_id
        # Only open shards and recently closed ones.
        names = [f"shardId-{number:012d}" for number in range(1, self.count + 1)]
        assert {name: found for name in names if (found := self.map.hash_range(name, "1"))} == self.known

    def teardown(self):
        """Check that the map comes to rest without further events, and that one more refresh gives the current stream."""
        if not hasattr(self, "map"):
            return
        self.come_to_rest(0.0)
        self.now += 1.0
        assert self.map.invalidate(self.now, None, self.now) is True
        self.expect_invalidated()
        self.come_to_rest(0.3)
        assert self.snapshot == self.open
        self.the_map_is_that_of_the_lists()
        assert self.map.state is MapState.READY
        assert self.map.failure is None


TestShardMaps = ShardMaps.TestCase
TestShardMaps.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
