"""The network and the service behind it: the server's pure model, and the faults of the scenario."""

from dataclasses import replace
from random import Random

import msgspec
from producer_scenario import POISON, REQUEST_ERRORS, TRANSPORT_ERRORS

from shardline.codec.shapes import ListShardsResponse, PutRecordsResponse, PutRecordsResult, StreamSummary
from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind, classify
from shardline.server.model import inputs
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings

BEGIN = 1_700_000_000.0
STREAM = "s"
TIMEOUT = 3.0
ODD_SHARD = "shardId-000000009999"  # no stream here has this many shards


class Endpoint:
    """Decides for each request how long it takes, what the service does, and what the client sees of it."""

    def __init__(self, scenario):
        self.scenario = scenario
        self.rng = Random(f"network {scenario.seed}")
        limits = replace(
            Limits.without_rates(),
            write_records_per_second=scenario.record_rate,
            write_bytes_per_second=scenario.byte_rate,
        )
        settings = ServiceSettings(limits=limits, on_demand_shards=scenario.shards)
        if scenario.recreated is not None:
            settings = replace(settings, delays=replace(settings.delays, delete=0.0, create=0.0))
        self.service = Service(settings, Random(f"service {scenario.seed}"), BEGIN)
        self.faults = Faults(Random(f"faults {scenario.seed}"), lambda: self.service.state.now)
        self.service.use_faults(self.faults)
        self._create()
        self.stale_listing = None
        self.stale_summary = None
        self.listings = 0
        self.bad_listings = 0
        """The number of listings that failed or were wrong."""
        self.changes = 0
        """How often the shards or their distribution changed."""
        self.auto_ever = scenario.auto_at_first
        self.channels = scenario.channels_at_first
        self.channels_ever = bool(self.channels)
        self.past_shards = []
        """The shards of the deleted stream."""
        self.oddities = 0
        """How often an answer named a shard that does not exist."""
        self.frozen = None  # the shards of a listing that stays stale

    def _create(self):
        if self.scenario.on_demand:
            members = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
            if self.scenario.auto_at_first:
                members["RecordDistributionStrategy"] = "AUTO"
        else:
            members = {"ShardCount": self.scenario.shards}
        answer = self.service.handle("CreateStream", {"StreamName": STREAM} | members, BEGIN)
        assert answer.refusal is None, answer.refusal

    @property
    def stream(self):
        return self.service.state.streams[STREAM]

    # ---- changes of the world

    def reshard(self, kind, now):
        self.service.state.advance(BEGIN + now)
        stream, at = self.stream, BEGIN + now
        self.stale_listing = self._list(None, now)
        shards = stream.open_shards
        if kind == "split":
            shard = self.rng.choice(shards)
            if shard.hash_range.size > 16:
                middle = shard.hash_range.start + int(shard.hash_range.size * self.rng.choice([0.5, 0.3, 0.9]))
                stream.split(shard, middle, at)
        elif kind == "merge" and len(shards) > 1:
            place = self.rng.randrange(len(shards) - 1)
            stream.merge(shards[place], shards[place + 1], at)
        elif kind == "double":
            stream.scale(min(len(shards) * 2, 40), at)
        elif kind == "halve":
            stream.scale(max(1, len(shards) // 2), at)
        self.changes += 1

    def freeze(self, now):
        self.frozen = self._list_all(now)

    @property
    def is_blacked_out_for_good(self):
        blackout = self.scenario.blackout
        return blackout is not None and blackout.end == NEVER

    def delete(self, now):
        self.past_shards += self.stream.shards.values()
        self.stale_listing = None
        answer = self.service.handle("DeleteStream", {"StreamName": STREAM}, BEGIN + now)
        assert answer.refusal is None, answer.refusal
        self.changes += 1

    def recreate(self, shards, now):
        answer = self.service.handle("CreateStream", {"StreamName": STREAM, "ShardCount": shards}, BEGIN + now)
        assert answer.refusal is None, answer.refusal
        self.changes += 1

    @property
    def exists(self):
        return STREAM in self.service.state.streams

    def toggle(self, now):
        self.stale_summary = self._summary(now)
        self.stream.record_distribution = "USER_PARTITION_KEY" if self.is_auto else "AUTO"
        self.changes += 1
        self.auto_ever = True

    def toggle_channels(self, now):
        self.stale_summary = self._summary(now)
        self.channels = 0 if self.channels else 1
        self.channels_ever = True

    @property
    def is_auto(self):
        return self.stream.record_distribution == "AUTO"

    # ---- the network

    def latency(self):
        low, high = self.scenario.latency
        if self.rng.random() < self.scenario.slow_chance:
            return self.rng.uniform(0.5, 2.0)
        return self.rng.uniform(low, high) / 2

    def draw_fault(self, kinds, now):
        if not self.scenario.faulty_at(now):
            return None
        for kind, probability in kinds.items():
            if self.rng.random() < probability:
                return kind
        return None

    # ---- PutRecords

    def put(self, request, now):
        """Return the answer that the client gets, and its extra delay."""
        fault = self.draw_fault(self.scenario.faults, now)
        if fault in TRANSPORT_ERRORS:
            code, received, done = TRANSPORT_ERRORS[fault]
            if done == "yes" or (done == "either" and self.rng.random() < 0.5):
                self._store(request, now)
            late = TIMEOUT if fault == "timeout" else 0.0
            return Failure(FailureKind.TRANSIENT, code, "sim", maybe_received=received), late
        if fault in REQUEST_ERRORS:
            code, status, done = REQUEST_ERRORS[fault]
            if done == "either" and self.rng.random() < 0.5:
                self._store(request, now)
            after = self.rng.choice([None, 0.3]) if status == 503 else None
            return Failure(classify(code, status, "sim"), code, "sim", status, retry_after=after), 0.0
        guilty = [place for place, entry in enumerate(request.entries) if POISON in entry.data]
        if guilty:
            return Failure(FailureKind.INVALID, "ValidationException", self._refusal_of(guilty), 400), 0.0
        if fault is not None:
            self._prepare(fault, len(request.entries))
        answer = self._store(request, now)
        if fault == "odd-shard" and isinstance(answer, PutRecordsResponse):
            self._name_an_odd_shard(answer.records)
        self.faults.clear()
        return answer, 0.0

    def _refusal_of(self, guilty):
        """Return the refusal in AWS's words, which count entries from 1."""
        named = guilty[: {"none": 0, "one": 1, "ten": 10}[self.scenario.naming]]
        if not named:
            return "poison"
        values = [f"Value at 'records.{place + 1}.member.data' failed to satisfy constraint: poison" for place in named]
        noun = "error" if len(values) == 1 else "errors"
        return f"{len(values)} validation {noun} detected: {'; '.join(values)}"

    def _prepare(self, fault, count):
        some = self.rng.randint(1, count)
        match fault:
            case "entry-throttle":
                self.faults.throttle(operation="PutRecords", count=1)
            case "entry-internal":
                self.faults.fail_entries(k=some, count=1)
            case "entry-kms":
                self.faults.fail_entries(k=1, code="KMSDisabledException", message="sim", count=1)
            case "wrong-count":
                self.faults.wrong_count(self.rng.choice([-1, 1]), count=1)

    def _name_an_odd_shard(self, results):
        """Name a wrong shard in the answer, although the entry is stored where it belongs."""
        place = self.rng.randrange(len(results))
        if results[place].sequence_number is not None:
            self.oddities += 1
            results[place] = msgspec.structs.replace(results[place], shard_id=ODD_SHARD)

    def _store(self, request, now):
        entries = [
            inputs.PutRecordsRequestEntry(
                entry.data, msgspec.UNSET if entry.key is None else entry.key, entry.explicit_hash_key
            )
            for entry in request.entries
        ]
        members = inputs.PutRecords(stream_name=STREAM, records=entries)
        answer = self.service.handle("PutRecords", members, BEGIN + now)
        if answer.refusal is not None:
            refusal = answer.refusal
            return Failure(classify(refusal.code, 400, refusal.message), refusal.code, refusal.message, 400)
        return PutRecordsResponse([
            PutRecordsResult(one.sequence_number, one.shard_id, one.error_code, one.error_message)
            for one in answer.body.records
        ])  # fmt: skip

    # ---- ListShards, DescribeStreamSummary

    def list_shards(self, request, has_map, now):
        """List the shards. ``has_map``: whether the producer already has a map, which it keeps during a blackout."""
        self.listings += 1
        blackout = self.scenario.blackout
        if blackout and has_map and request.next_token is None and blackout.start <= now < blackout.end:
            self.bad_listings += 1
            if blackout.kind == "stale":
                return self.frozen, 0.0
            code = "AccessDeniedException" if blackout.kind == "denied" else "LimitExceededException"
            return Failure(classify(code, 400), code, "sim", 400), 0.0
        return self._list_with_faults(request, now)

    def _list_with_faults(self, request, now):
        fault = self.draw_fault(self.scenario.listing_faults, now)
        answer = self._list(request.next_token, now)
        self.bad_listings += fault in {"fails", "denied", "stale", "gap", "broken"} or isinstance(answer, Failure)
        match fault:
            case "fails":
                return Failure(FailureKind.LIMIT_EXCEEDED, "LimitExceededException", "sim", 400), 0.0
            case "denied":
                return Failure(FailureKind.DENIED, "AccessDeniedException", "sim", 400), 0.0
            case "stale" if self.stale_listing is not None and request.next_token is None:
                return self.stale_listing, 0.0
            case "gap" if isinstance(answer, ListShardsResponse) and answer.shards:
                return ListShardsResponse(answer.shards[1:], answer.next_token), 0.0
            case "broken" if isinstance(answer, ListShardsResponse) and answer.shards:
                bad = msgspec.structs.replace(answer.shards[0].hash_key_range, ending_hash_key="x")
                broken = msgspec.structs.replace(answer.shards[0], hash_key_range=bad)
                return ListShardsResponse([broken], None), 0.0
        return answer, 1.5 if fault == "slow" else 0.0

    def _list(self, token, now):
        members = {"NextToken": token} if token else {"StreamName": STREAM, "ShardFilter": {"Type": "AT_LATEST"}}
        answer = self.service.handle("ListShards", members | {"MaxResults": self.scenario.page_size}, BEGIN + now)
        if answer.refusal is not None:
            return Failure(classify(answer.refusal.code, 400), answer.refusal.code, answer.refusal.message, 400)
        listing = msgspec.convert(answer.body, ListShardsResponse)
        if self.scenario.lists_closed and token is None:
            closed = [shape for shape in self._list_all(now).shards if not _is_open(shape)]
            return ListShardsResponse(closed + listing.shards, listing.next_token)
        return listing

    def _list_all(self, now):
        """List every shard, closed or not, in one page."""
        answer = self.service.handle("ListShards", {"StreamName": STREAM, "MaxResults": 1000}, BEGIN + now)
        return msgspec.convert(answer.body, ListShardsResponse)

    def summary(self, now):
        fault = self.draw_fault(self.scenario.summary_faults, now)
        match fault:
            case "fails":
                return Failure(FailureKind.TRANSIENT, "InternalFailure", "sim", 500), 0.0
            case "denied":
                return Failure(FailureKind.DENIED, "AccessDeniedException", "sim", 400), 0.0
            case "stale" if self.stale_summary is not None:
                return self.stale_summary, 0.0
        return self._summary(now), 1.5 if fault == "slow" else 0.0

    def _summary(self, now):
        answer = self.service.handle("DescribeStreamSummary", {"StreamName": STREAM}, BEGIN + now)
        if answer.refusal is not None:
            return Failure(classify(answer.refusal.code, 400), answer.refusal.code, answer.refusal.message, 400)
        told = answer.body["StreamDescriptionSummary"] | {"ChannelCount": self.channels}
        return msgspec.convert(told, StreamSummary)


def _is_open(shape):
    return shape.sequence_number_range.ending_sequence_number is None
