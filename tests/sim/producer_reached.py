"""Counts the interesting states that were reached, over many seeds, and observes the machine to find them."""

from contextlib import ExitStack, contextmanager

from shardline.core.producer import responses as settlement
from shardline.core.producer.lane import Lane
from shardline.core.producer.responses import ResponseHandler
from shardline.core.producer.retries import Retries
from shardline.core.producer.shard_map import ShardMap
from shardline.core.producer.stream_summary import StreamFacts
from shardline.core.producer.verdicts import Rules
from shardline.core.producer_events import (
    AggregationStopped,
    ChannelsFound,
    DistributionChanged,
    ShardMapFailed,
    StreamUnknown,
)

STATES = frozenset({
    "buffer full",
    "stamped",
    "put interrupted",
    "put interrupted after the append",
    "sorted in slices",
    "abandoned",
    "linger changed while records waited",
    "rates changed by the user",
    "parked",
    "delivered after a wrong shard",
    "bisected down to a record inside an aggregate",
    "innocent beside a poisonous record delivered",
    "isolated an entry that the service named",
    "invalid records at a steady rate",
    "isolation kept its pace",
    "circuit open",
    "circuit closed again",
    "rates lowered",
    "rates recovered",
    "several keys of an ordered lane under way",
    "stream re-created, and recognised by a sequence number",
    "stream re-created, and recognised by its age",
    "lane distrusted",
    "lane trusted again",
    "held lane",
    "held lane released",
    "sent without a map",
    "switched to AUTO",
    "keys count again",
    "aggregation stopped",
    "stream unknown",
    "map failed",
    "dissolved a vanished lane",
    "keyless record chose another lane",
    "expired in a lane",
    "expired without a map",
    "expired while parked",
    "expired while isolated",
    "expired in flight",
    "expired by its own TTL",
    "sent after record_ttl, by its own TTL",
    "wrapped a payload that looks like an aggregate",
    "headers sent alone",
    "headers read back",
    "headers refused at the put",
    "headers refused after the put",
    "channels found",
    "packed without a map",
    "packs of a lane under way together",
    "delivered in a pack",
    "larger than a request, alone",
    "delivered after trouble that was shorter than its life",
})  # fmt: skip

_JUDGES = ("judge_landing", "judge_range", "judge_refused", "judge_request")


class Reached:
    """The states that were seen, over all seeds."""

    def __init__(self):
        self.states = set()
        self.rules = set()

    def add(self, state):
        assert state in STATES, state
        self.states.add(state)

    def see_event(self, event):
        match event:
            case DistributionChanged(auto):
                self.add("switched to AUTO" if auto else "keys count again")
            case AggregationStopped():
                self.add("aggregation stopped")
            case ChannelsFound():
                self.add("channels found")
            case StreamUnknown():
                self.add("stream unknown")
            case ShardMapFailed():
                self.add("map failed")

    def missing(self):
        rules = [rule.when for rule in Rules.ALL if rule not in self.rules]
        return sorted(STATES - self.states) + rules

    @contextmanager
    def watching(self):
        """Note every rule that a verdict uses, and where records expire."""
        with ExitStack() as taps:
            for name in _JUDGES:
                taps.enter_context(_tap(settlement, name, self._see_verdict))
            taps.enter_context(_tap(ShardMap, "note_foreign_number", self._see_foreign_number))
            taps.enter_context(_tap(StreamFacts, "handle_summary", self._see_summary))
            taps.enter_context(_tap(Lane, "take_expired", self._see_expired_in_lane))
            taps.enter_context(_tap(ResponseHandler, "expire_parked", self._see_failures("expired while parked")))
            taps.enter_context(_tap(Retries, "expire_isolated", self._see_failures("expired while isolated")))
            yield self

    def _see_verdict(self, judge, *arguments, **named):
        rule = judge(*arguments, **named)
        if rule is not None:
            self.rules.add(rule)
        return rule

    def _see_foreign_number(self, note, *arguments):
        self.add("stream re-created, and recognised by a sequence number")
        return note(*arguments)

    def _see_summary(self, handle, facts, *arguments):
        changed = handle(facts, *arguments)
        if facts.recreated:
            self.add("stream re-created, and recognised by its age")
        return changed

    def _see_expired_in_lane(self, take_expired, lane, now):
        expired = take_expired(lane, now)
        if expired:
            self.add("expired without a map" if lane.shard_id is None else "expired in a lane")
        return expired

    def _see_failures(self, state):
        def watch(expire, owner, now):
            before = owner._ledger.failed_records
            expire(owner, now)
            if owner._ledger.failed_records > before:
                self.add(state)

        return watch


@contextmanager
def _tap(owner, name, watch):
    """Pass the calls of a function to ``watch``, which makes them."""
    function = getattr(owner, name)
    setattr(owner, name, lambda *arguments, **named: watch(function, *arguments, **named))
    try:
        yield
    finally:
        setattr(owner, name, function)
