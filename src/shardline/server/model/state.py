"""The state of the service: its streams, consumers, channels and call rates.

Invariants:

- The caller passes the time, and time never goes back: an earlier ``now`` counts as the latest one so far.
- A stream that is CREATING or DELETING serves no records. Requests for its records are answered as if it did not exist.
- Advancing the time costs nothing until a change is due. The cost of a change does not depend on the number of streams.
- Two streams with the same name differ in their creation time and in their sequence numbers, even if one is
  deleted and the other created in the same second. Client libraries, iterators and page tokens rely on that. On AWS,
  deleting a stream takes longer than a second.
"""

import re
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, final

from msgspec import Struct

from shardline.server.model.buckets import Bucket
from shardline.server.model.channel_inputs import (
    ChannelEncryption,
    ChannelLogging,
    RecordConfiguration,
    S3Destination,
    S3TablesDestination,
)
from shardline.server.model.commitment import Commitment
from shardline.server.model.next_tokens import Tokens
from shardline.server.model.refusals import Refused, call_throttled, in_use, invalid, not_found
from shardline.server.model.schedule import Schedule
from shardline.server.model.settings import ServiceSettings
from shardline.server.model.shard_log import RecordCount, ShardLog, StoredRecord
from shardline.server.model.shards import ServerShard, full_shard_id
from shardline.server.model.streams import ServerStream

if TYPE_CHECKING:
    from random import Random

    from shardline.server.model.faults import Faults

T = TypeVar("T", bound="_Resource")

_SERVING: Final = frozenset({"ACTIVE", "UPDATING"})
# The operations whose control rates are per stream; the other rates are per account.
_PER_STREAM: Final = frozenset(
    {"ListShards", "DescribeStreamConsumer", "DeregisterStreamConsumer", "ListStreamConsumers"}
)
_RATES_KEPT: Final = 1_000
_REMEMBERED: Final = 60.0  # seconds; the numbers of a stream begin less than this before its creation
# The ARN of a stream or of one of its consumers. The region is not compared: local clients may have any region.
_ARN: Final = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:([0-9]{12}):stream/([a-zA-Z0-9_.-]{1,128})(/consumer/\S+)?")


class _Resource(Struct, kw_only=True):
    """A resource that belongs to a stream. The storage writes its fields unchanged."""

    name: str
    arn: str
    stream_name: str = ""
    created_at: float
    ready_at: float
    status: str = "CREATING"
    tags: dict[str, str]


@final
class ServerConsumer(_Resource, kw_only=True):
    policy: str | None = None


@final
class ChannelSettings(Struct, frozen=True):
    """The records that a channel delivers and their destination. Exactly one of the two destinations is set."""

    role_arn: str
    record: RecordConfiguration
    s3: S3Destination | None
    s3_tables: S3TablesDestination | None
    encryption: ChannelEncryption | None
    logging: ChannelLogging

    @property
    def destination_type(self) -> str:
        return "S3" if self.s3_tables is None else "S3_TABLES"


@final
class ServerChannel(_Resource, kw_only=True):
    settings: ChannelSettings


@final
class Stored(NamedTuple):
    """Records that one request put into a shard. They must be persisted before the answer is sent."""

    stream: ServerStream
    shard: ServerShard
    first: int
    records: list[StoredRecord]


class _DeletedStream(NamedTuple):
    """The times of a deleted stream that a new stream of the same name must not have."""

    creation_second: int
    last_began: int


@final
class ServiceState:
    """The state that the operations read and change."""

    def __init__(self, settings: ServiceSettings, rng: "Random", now: float) -> None:
        self.settings = settings
        self.rng = rng
        self.now: float = now
        self.tokens: Tokens = Tokens(rng.randbytes(16))
        self.streams: dict[str, ServerStream] = {}
        self.consumers: dict[str, ServerConsumer] = {}
        self.channels: dict[str, ServerChannel] = {}
        self.commitment: Commitment = Commitment()
        self.records_held: RecordCount = RecordCount()
        """The number of records that all streams hold."""
        self.keeps_stored = False
        """Whether ``stored`` is filled. ``Storage`` sets this, and then takes the records from ``stored``."""
        self.stored: list[Stored] = []
        self.changed: set[str] = set()
        """The names of streams that were deleted, or whose description, consumers or channels changed."""
        self.touched: set[ShardLog] = set()
        """The logs whose subscriptions must be polled, because of new records or a changed shard, stream or consumer.

        Each ``ShardLog`` adds itself, and ``Wakeups`` clears the set.
        """
        self.faults: Faults | None = None
        """The faults to apply to requests. ``Service.use_faults`` sets it."""
        self._deleted: dict[str, _DeletedStream] = {}
        self._schedule = Schedule()
        self._rates: dict[tuple[str, str], Bucket] = {}

    def advance(self, now: float) -> float:
        """Advance the time, carry out the changes that are due, and return the current time."""
        self.now = max(self.now, now)
        if self.now >= self._schedule.due_at:
            self._apply_due_changes()
        if self.faults is not None and self.faults.for_time:
            resharded = self.faults.handle_time(self.streams, self.now)
            if resharded:
                self.changed |= resharded
                for name in resharded:
                    self.streams[name].touch()
                    self.reschedule(self.streams[name])
        return self.now

    @property
    def due_at(self) -> float:
        """The time at which ``advance`` next has something to do, if no request arrives earlier."""
        if self.faults is None or not self.faults.for_time:
            return self._schedule.due_at
        planned = [fault.at for fault in list(self.faults.for_time.values())]
        # An overdue reshard waits until its stream is ACTIVE. The schedule contains the time of that stream's change.
        return min([self._schedule.due_at, *(at for at in planned if at is not None and at > self.now)])

    def reschedule(self, resource: "ServerStream | _Resource") -> None:
        """Update the time at which a new or changed resource next has something to do."""
        if isinstance(resource, ServerStream):  # a stream's name is never an ARN, so the keys differ
            self._schedule.set(resource.name, resource.due_at)
        else:
            self._schedule.set(resource.arn, inf if resource.status == "ACTIVE" else resource.ready_at)

    def note_change(self, resource: "ServerStream | _Resource") -> None:
        """Register that a stream, a consumer or a channel has changed. A change without a delay is applied
        immediately.
        """
        self.changed.add(resource.stream_name)
        self.reschedule(resource)
        if self.now >= self._schedule.due_at:
            self._apply_due_changes()

    def _apply_due_changes(self) -> None:
        for key in self._schedule.take_due(self.now):
            if key in self.streams:
                self._apply_to_stream(self.streams[key])
            elif key in self.consumers:
                self._settle(self.consumers, self.consumers[key])
            elif key in self.channels:
                self._settle(self.channels, self.channels[key])

    def _apply_to_stream(self, stream: ServerStream) -> None:
        """Carry out the changes of a stream that are due."""
        if stream.pending is not None and stream.pending.ready_at <= self.now:
            self.changed.add(stream.name)
        stream.advance(self.now)
        if not stream.is_deleted:
            self.reschedule(stream)
            return
        del self.streams[stream.name]
        self._remember(stream)
        self.records_held.value -= stream.record_count
        self.consumers = {arn: other for arn, other in self.consumers.items() if other.stream_name != stream.name}
        self.channels = {arn: other for arn, other in self.channels.items() if other.stream_name != stream.name}

    def _settle(self, resources: dict[str, T], resource: T) -> None:
        """Complete the creation, the update or the deletion of a consumer or a channel."""
        self.changed.add(resource.stream_name)
        if resource.status == "DELETING":
            del resources[resource.arn]
            self.streams[resource.stream_name].touch()
        else:
            resource.status = "ACTIVE"

    def make_distinct(self, stream: ServerStream) -> None:
        """Give a new stream a creation time and starting numbers that no earlier stream of the same name had."""
        deleted = self._deleted.pop(stream.name, None)
        if deleted is not None:
            stream.creation_second = max(stream.creation_second, deleted.creation_second + 1)
            stream.numbers_begin = max(stream.numbers_begin, deleted.last_began + 1)

    def _remember(self, stream: ServerStream) -> None:
        """Keep the times of a deleted stream for ``make_distinct``, as long as a new stream could get them again."""
        self._deleted = {
            name: deleted for name, deleted in self._deleted.items() if max(deleted) > self.now - _REMEMBERED
        }
        self._deleted[stream.name] = _DeletedStream(stream.creation_second, stream.last_began)

    def check_rate(self, operation: str, stream: str) -> None:
        """Refuse a control call that exceeds its rate."""
        rate = self.settings.limits.control_calls_per_second.get(operation)
        if rate is None:
            return
        key = (operation, stream if operation in _PER_STREAM else "")
        bucket = self._rates.get(key)
        if bucket is None:
            # Clients can send any number of stream names. A full bucket has the same effect as no bucket, so drop it.
            if len(self._rates) >= _RATES_KEPT:
                self._rates = {
                    known: other for known, other in self._rates.items() if other.balance(self.now) < other.rate
                }
            bucket = self._rates[key] = Bucket(rate, self.now)
        if not bucket.take(1, self.now):
            raise call_throttled(stream, self.settings.account_id)

    def arn_of(self, stream_name: str) -> str:
        settings = self.settings
        return f"arn:aws:kinesis:{settings.region}:{settings.account_id}:stream/{stream_name}"

    def name_of(self, stream_name: str | None, stream_arn: str | None) -> str:
        """Return the name of the stream that a request names, by name or ARN."""
        if stream_arn is not None:
            account, name = _parts_of(stream_arn)
            if stream_name is not None and stream_name != name:
                raise invalid("StreamName and StreamARN name different streams.")
            if account != self.settings.account_id:
                raise not_found(f"Stream {name} under account {account} not found.")
            return name
        if stream_name is None:
            raise invalid("Either StreamName or StreamARN must be provided.")
        return stream_name

    def find(self, stream_name: str | None, stream_arn: str | None) -> ServerStream:
        """Return the stream that a request names, in any status."""
        name = self.name_of(stream_name, stream_arn)
        stream = self.streams.get(name)
        if stream is None:
            raise not_found(f"Stream {name} under account {self.settings.account_id} not found.")
        return stream

    def active(self, stream_name: str | None, stream_arn: str | None) -> ServerStream:
        """Return the stream if it is ACTIVE, so that it can be changed."""
        stream = self.find(stream_name, stream_arn)
        self.check_active(stream)
        return stream

    def check_active(self, stream: ServerStream) -> None:
        if stream.status != "ACTIVE":
            account = self.settings.account_id
            raise in_use(f"Stream {stream.name} under account {account} not ACTIVE, instead in state {stream.status}")

    def resource(self, arn: str) -> "ServerStream | ServerConsumer | ServerChannel":
        """Return the stream, the consumer or the channel with this ARN."""
        if "/consumer/" in arn:
            consumer = self.consumers.get(arn)
            if consumer is None:
                raise not_found(f"Consumer {arn}, account {self.settings.account_id} not found.")
            return consumer
        return self.channel(arn) if ":channel/" in arn else self.find(None, arn)

    def channel(self, arn: str) -> ServerChannel:
        channel = self.channels.get(arn)
        if channel is None:
            raise not_found(f"Channel {arn} under account {self.settings.account_id} not found.")
        return channel

    def serving(self, stream_name: str | None, stream_arn: str | None) -> ServerStream:
        """Return the stream that a request names, if it serves records."""
        stream = self.find(stream_name, stream_arn)
        if stream.status not in _SERVING:
            raise not_found(f"Stream {stream.name} under account {self.settings.account_id} not found.")
        return stream

    def resolve_shard_id(self, text: str, stream_name: str) -> str:
        """Return the full id of the shard that a request names. AWS checks the id before it looks for the stream."""
        shard_id = full_shard_id(text)
        if shard_id is None:
            raise self.shard_not_found(text, stream_name)
        return shard_id

    def shard_not_found(self, shard_id: str, stream_name: str) -> Refused:
        account = self.settings.account_id
        return not_found(f"Could not find shard {shard_id} in stream {stream_name} under account {account}.")

    def readable_shard(self, stream_name: str, shard_id: str) -> tuple[ServerStream, ServerShard]:
        """Return a stream and its shard to read from. AWS uses one text for a missing stream or shard."""
        stream = self.streams.get(stream_name)
        shard = None if stream is None or stream.status not in _SERVING else stream.shards.get(shard_id)
        if stream is None or shard is None:
            account = self.settings.account_id
            raise not_found(f"Shard {shard_id} in stream {stream_name} under account {account} does not exist")
        return stream, shard

    def channels_of(self, stream: ServerStream) -> list[ServerChannel]:
        return [channel for channel in self.channels.values() if channel.stream_name == stream.name]

    def consumers_of(self, stream: ServerStream) -> list[ServerConsumer]:
        return [consumer for consumer in self.consumers.values() if consumer.stream_name == stream.name]

    def shard_count(self) -> int:
        """Return the number of open shards of the account, including those of streams that are CREATING."""
        pending = [stream.pending for stream in self.streams.values() if stream.pending is not None]
        creating = sum(change.number for change in pending if change.kind == "create")
        return creating + sum(len(stream.open_shards) for stream in self.streams.values())


def _parts_of(arn: str) -> tuple[str, str]:
    """Return the account and the stream's name in an ARN."""
    parts = _ARN.fullmatch(arn)
    if parts is None:
        raise invalid(f"{arn} is no ARN of a stream or of a consumer.")
    return parts[1], parts[2]
