"""The service of a simulated fleet: the server's pure model with its real limits, behind a network that loses and
delays.
"""

from dataclasses import replace
from random import Random

import msgspec
from fleet_scenario import READ_FAULTS
from producer_endpoint import BEGIN, STREAM, TIMEOUT, Endpoint

from shardline.codec.shapes import (
    ChildShardShape,
    GetRecordsResponse,
    GetShardIteratorResponse,
    HashKeyRangeShape,
    ListShardsResponse,
    RawRecord,
    StreamSummary,
    SubscribeToShardEvent,
)
from shardline.core.error_codes import Failure, FailureKind, classify
from shardline.server.model import inputs
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.settings import Delays, Limits, ServiceSettings

STALE_FOR = 0.8  # a listing may be this old: consumers list again after a second before they believe an odd one
TAKEOVER_WAIT = 1.0  # in place of the service's 5 s
SILENCE = 6.0  # in place of the reader's 30 s: the service pushes every 5 s
PUSH_DISTANCE = 0.1  # how often a subscription checks for records
DELETION = 0.5  # how long the deletion of a stream takes


class FleetService(Endpoint):
    """Answers the requests of producers and readers."""

    def __init__(self, fleet, truth):
        self.fleet = fleet
        self.truth = truth
        self.scenario = fleet.producing
        self.rng = Random(f"network {fleet.seed}")
        limits = replace(
            Limits(),
            write_records_per_second=self.scenario.record_rate,
            write_bytes_per_second=self.scenario.byte_rate,
            iterator_life=fleet.iterator_life,
            subscription_life=fleet.subscription_life,
            subscription_takeover_wait=TAKEOVER_WAIT,
            update_shard_count_per_day=None,
        )
        settings = ServiceSettings(
            limits=limits,
            delays=Delays(update=fleet.update_delay, delete=DELETION),
            empty_page_chance=fleet.empty_page_chance,
        )
        self.service = Service(settings, Random(f"service {fleet.seed}"), BEGIN)
        self.service.state.keeps_stored = True
        self.faults = Faults(Random(f"faults {fleet.seed}"), lambda: self.service.state.now)
        self.service.use_faults(self.faults)
        self._create()
        self._prepare_stream()
        # A stream with a registered consumer cannot be deleted.
        self.consumer_arn = self._register() if any(plan.fan_out for plan in fleet.workers) else None
        self.stale_listing = None
        self.stale_summary = None
        self.listings = self.bad_listings = self.changes = self.oddities = 0
        self.auto_ever = False
        self.past_shards = []
        self._stale_until = -1.0
        self.retention = fleet.retention
        self.retentions = []  # earlier retentions: until when each applied, and its value
        self._stale_reading = None
        self.stalled = set()  # subscriptions

    def _register(self):
        members = {"StreamARN": self.stream.arn, "ConsumerName": "sim"}
        return self.service.handle("RegisterStreamConsumer", members, BEGIN).body["Consumer"]["ConsumerARN"]

    def _prepare_stream(self):
        if self.fleet.retention is not None:
            self.stream.retention_hours = self.fleet.retention / 3600.0
        self.truth.see_shards(self.stream)

    # ---- changes of the world

    def reshard(self, kind, now):
        """Reshard as an operator does: through the service's operations, which may refuse."""
        stream = self.service.state.streams.get(STREAM)
        if stream is None:
            return "no stream"
        self.stale_listing = self._list(None, now)
        self._stale_reading, self._stale_until = self._list_all(None, now), now + STALE_FOR
        operation, members = self._change(kind, stream.open_shards)
        if operation is None:
            return "nothing to do"
        answer = self.service.handle(operation, {"StreamName": STREAM} | members, BEGIN + now)
        self.changes += 1
        return operation if answer.refusal is None else answer.refusal.code

    def _change(self, kind, shards):
        count = len(shards)
        if kind == "split" and count < 12:
            shard = self.rng.choice(shards)
            middle = shard.hash_range.start + int(shard.hash_range.size * self.rng.choice([0.5, 0.3, 0.9]))
            return "SplitShard", {"ShardToSplit": shard.shard_id, "NewStartingHashKey": str(middle)}
        if kind == "merge" and count > 1:
            place = self.rng.randrange(count - 1)
            low, high = shards[place : place + 2]
            return "MergeShards", {"ShardToMerge": low.shard_id, "AdjacentShardToMerge": high.shard_id}
        target = {"double": 2 * count, "halve": (count + 1) // 2, "update": self.rng.randint(1, 2 * count)}.get(kind)
        if target is None or target == count or 2 * target < count or target > 10:
            return None, {}
        return "UpdateShardCount", {"TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}

    def delete(self, now):
        self.service.handle("DeleteStream", {"StreamName": STREAM}, BEGIN + now)
        self.changes += 1

    def create_again(self, now):
        self.service.state.advance(BEGIN + now)
        shards = self.rng.randint(1, self.scenario.shards + 2)
        answer = self.service.handle("CreateStream", {"StreamName": STREAM, "ShardCount": shards}, BEGIN + now)
        assert answer.refusal is None, answer.refusal
        self.truth.begin_anew()
        self._prepare_stream()
        self.stale_listing = self._stale_reading = None
        self.changes += 1

    def change_retention(self, seconds, now):
        self.advance(now)  # records that the old retention has removed stay removed
        self.retentions.append((now, self.retention))
        self.retention = seconds
        self.stream.retention_hours = seconds / 3600.0
        self.advance(now)

    def advance(self, now):
        """Run the changes that are due, even without a request."""
        self.service.state.advance(BEGIN + now)
        stream = self.service.state.streams.get(STREAM)
        if stream is not None:
            if self.retention is not None:
                stream.trim(BEGIN + now)
            self.truth.see_shards(stream)

    def horizon_at(self, now):
        """Return the time before which arrived records had been removed by then, in the world's time."""
        past = [until - seconds for until, seconds in self.retentions if until <= now]
        later = [seconds for until, seconds in self.retentions if until > now]
        return max([now - (later[0] if later else self.retention), *past])

    @property
    def is_changing(self):
        """Whether a requested reshard is still to come."""
        stream = self.service.state.streams.get(STREAM)
        return stream is not None and stream.pending is not None

    def _store(self, request, now):
        answer = super()._store(request, now)
        stored = self.service.take_stored()
        if stored:
            self.truth.see_shards(self.stream)
            self.truth.see_stored(stored)
        return answer

    # ---- requests of readers

    def read_fault(self, now, kinds):
        """Return the fault that hits this request, if there is one, and after how long the client learns of it."""
        if not self.fleet.reads_faulty_at(now):
            return None, 0.0
        for kind, chance in self.fleet.read_faults.items():
            if kind in kinds and self.rng.random() < chance:
                code, status = READ_FAULTS[kind]
                if status is None:
                    received = kind == "timeout"
                    failure = Failure(FailureKind.TRANSIENT, code, "sim", maybe_received=received)
                    return failure, TIMEOUT if received else 0.0
                after = self.rng.choice([None, 0.3]) if kind == "throttled" else None
                return Failure(classify(code, status), code, "sim", status, retry_after=after), 0.0
        return None, 0.0

    def get_shard_iterator(self, request, now):
        fault, late = self.read_fault(now, READ_FAULTS.keys() - {"expired-iterator"})
        if fault is not None:
            return fault, late
        position = request.position
        number = None if position.sequence_number is None else str(position.sequence_number.number)
        members = inputs.GetShardIterator(
            stream_name=STREAM,
            shard_id=request.shard_id,
            shard_iterator_type=position.kind.value,
            starting_sequence_number=number,
            timestamp=position.timestamp,
        )
        body = self._ask("GetShardIterator", members, now)
        return body if isinstance(body, Failure) else GetShardIteratorResponse(body["ShardIterator"]), 0.0

    def get_records(self, request, now):
        fault, late = self.read_fault(now, READ_FAULTS)
        if fault is not None:
            return fault, late
        body = self._ask("GetRecords", inputs.GetRecords(shard_iterator=request.iterator, limit=request.limit), now)
        if isinstance(body, Failure):
            return body, 0.0
        records = [RawRecord(one.data, one.sequence_number, one.key, one.arrived_at) for one in body.records]
        children = tuple(map(_child, body.child_shards or ()))
        response = GetRecordsResponse(records, body.next_shard_iterator, body.millis_behind_latest, children)
        return response, 0.0

    def subscribe(self, request, now):
        fault, late = self.read_fault(now, READ_FAULTS.keys() - {"expired-iterator"})
        if fault is not None:
            return fault, late
        position = request.position
        number = None if position.sequence_number is None else str(position.sequence_number.number)
        start = inputs.StartingPosition(position.kind.value, number, position.timestamp)
        members = inputs.SubscribeToShard(request.consumer_arn, request.shard_id, start)
        answer = self.service.handle("SubscribeToShard", members, BEGIN + now)
        refusal = answer.refusal
        if refusal is None:
            return answer.subscription, 0.0
        return Failure(classify(refusal.code, 400, refusal.message), refusal.code, refusal.message, 400), 0.0

    def next_event(self, subscription, now):
        """Return the event that a subscription pushes, and its delay; ``nothing`` if there is none yet, or ``stalled``
        if there will be none.
        """
        if subscription in self.stalled:
            return "stalled", 0.0
        body = subscription.poll(BEGIN + now)
        if body is None:
            return (None, 0.0) if subscription.ended else ("nothing", PUSH_DISTANCE)
        records = [RawRecord(one.data, one.sequence_number, one.key, one.arrived_at) for one in body.records]
        children = None if body.child_shards is None else tuple(map(_child, body.child_shards))
        event = SubscribeToShardEvent(records, body.continuation_sequence_number, body.millis_behind_latest, children)
        return self._spoil(subscription, event, now)

    def _spoil(self, subscription, event, now):
        """Apply a fault to an event on its way. An event that does not arrive is the last one of its subscription."""
        faults = self.fleet.push_faults.items() if self.fleet.reads_faulty_at(now) else ()
        fault = next((kind for kind, chance in faults if self.rng.random() < chance), None)
        if fault == "late":
            return event, self.rng.uniform(0.5, 2 * SILENCE)
        if fault is None:
            return event, 0.0
        if fault == "stall":
            self.stalled.add(subscription)
            return "stalled", 0.0
        subscription.ended = True
        if fault == "end":
            return None, 0.0
        if fault == "break":
            return Failure(FailureKind.TRANSIENT, "ConnectionReset", "sim"), 0.0
        return Failure(FailureKind.IN_USE, "ResourceInUseException", "sim", 400), 0.0

    def close(self, subscription):
        """Close the connection, as the client. If the connection has stalled, the service does not learn of it."""
        if subscription not in self.stalled:
            subscription.ended = True

    def list_all(self, request, now):
        """Answer a consumer's ListShards with all shards, including closed ones. The answer may be slightly out of
        date.
        """
        fault = self._listing_fault(now)
        fault, late = (None, 1.5) if fault == "slow" else (fault, 0.0)
        if fault == "fails":
            return Failure(FailureKind.LIMIT_EXCEEDED, "LimitExceededException", "sim", 400), late
        whole = request.next_token is None and request.shard_filter is None
        if fault == "stale" and whole and now < self._stale_until and self._stale_reading is not None:
            self.truth.reached.add("a stale listing")
            return self._stale_reading, late
        return self._list_all(request, now), late

    def _listing_fault(self, now):
        if not self.fleet.reads_faulty_at(now):
            return None
        faults = self.fleet.listing_faults.items()
        return next((kind for kind, chance in faults if self.rng.random() < chance), None)

    def _list_all(self, request, now):
        if request is None or request.next_token is None:
            members = {"StreamName": STREAM}
            if request is not None and request.shard_filter is not None:
                members["ShardFilter"] = {"Type": "AT_TIMESTAMP", "Timestamp": request.shard_filter.timestamp}
        else:
            members = {"NextToken": request.next_token}
        if request is not None:
            members["MaxResults"] = self.scenario.page_size
        body = self._ask("ListShards", members, now)
        return body if isinstance(body, Failure) else msgspec.convert(body, ListShardsResponse)

    def describe(self, now):
        if self.fleet.reads_faulty_at(now):
            for kind, chance in self.fleet.summary_faults.items():
                if self.rng.random() < chance:
                    code, status = {"fails": ("InternalFailure", 500), "denied": ("AccessDeniedException", 400)}[kind]
                    return Failure(classify(code, status), code, "sim", status), 0.0
        body = self._ask("DescribeStreamSummary", {"StreamName": STREAM}, now)
        if isinstance(body, Failure):
            return body, 0.0
        return _summary(body["StreamDescriptionSummary"]), 0.0

    def _summary(self, now):
        """The summary for producers."""
        body = self._ask("DescribeStreamSummary", {"StreamName": STREAM}, now)
        return body if isinstance(body, Failure) else _summary(body["StreamDescriptionSummary"])

    def _ask(self, operation, members, now):
        answer = self.service.handle(operation, members, BEGIN + now)
        refusal = answer.refusal
        if refusal is None:
            return answer.body
        return Failure(classify(refusal.code, 400, refusal.message), refusal.code, refusal.message, 400)


def _summary(members):
    """Return a summary with a retention in seconds, which the service could not express in hours."""
    summary = msgspec.convert(members | {"RetentionPeriodHours": 24}, StreamSummary)
    return msgspec.structs.replace(summary, retention_hours=members["RetentionPeriodHours"])


def _child(child):
    hash_range = HashKeyRangeShape(child.hash_key_range["StartingHashKey"], child.hash_key_range["EndingHashKey"])
    return ChildShardShape(child.shard_id, tuple(child.parent_shards), hash_range)
