"""Emulates enhanced fan-out: registered consumers, and the events that are pushed to subscribers.

Invariants:

- A consumer has one subscription per shard. A second subscription is refused within 5 s after the first; later, it
  replaces the first.
- A subscription ends after 5 minutes, or at the end of its shard. In the latter case, its last event names the child
  shards.
- Each push begins with the record after the last record of the previous push. The pushes stay within the byte rate.
- While nothing touches the subscription's log, ``poll`` returns nothing before ``due_at``, so a shell need not call it.
"""

from typing import TYPE_CHECKING, Final, final

import msgspec

from shardline.server.model import inputs
from shardline.server.model.account import has_advantage
from shardline.server.model.buckets import Bucket
from shardline.server.model.descriptions import check_created, read_page_token, refuse_beside_token
from shardline.server.model.next_tokens import PageToken
from shardline.server.model.records import ChildShardOutput, child_shards, place_of
from shardline.server.model.refusals import dry_run, in_use, invalid, limit_exceeded, not_found
from shardline.server.model.shard_log import Page, ShardLog
from shardline.server.model.shards import ServerShard
from shardline.server.model.state import ServerConsumer, ServiceState
from shardline.server.model.streams import ServerStream
from shardline.server.model.tags import merged_tags

if TYPE_CHECKING:
    from shardline.server.model.fault_rules import PushEnding

_CONSUMERS_PER_PAGE: Final = 100
_EVENT_MAX_BYTES: Final = 1024 * 1024
_HEARTBEAT: Final = 5.0


class SubscribeToShardEvent(msgspec.Struct, rename="pascal", omit_defaults=True):
    records: Page
    millis_behind_latest: int
    continuation_sequence_number: str | None = None
    child_shards: list[ChildShardOutput] | None = None


def register(state: ServiceState, request: inputs.RegisterStreamConsumer) -> dict[str, object]:
    stream = state.find(None, request.stream_arn)
    existing = state.consumers_of(stream)
    if any(consumer.name == request.consumer_name for consumer in existing):
        raise in_use(
            f"Consumer {request.consumer_name} under stream {stream.name} already exists for account "
            f"{state.settings.account_id}."
        )
    limits = state.settings.limits
    most = limits.consumers_per_advantage_stream if has_advantage(state, stream) else limits.consumers_per_stream
    if most is not None and len(existing) >= most:
        raise limit_exceeded(f"A stream has at most {most} registered consumers.")
    creating = sum(consumer.status == "CREATING" for consumer in state.consumers.values())
    if limits.consumers_creating_at_once is not None and creating >= limits.consumers_creating_at_once:
        raise limit_exceeded(f"There are {creating} consumers in state CREATING, which is the limit.")
    arn = f"{stream.arn}/consumer/{request.consumer_name}:{int(state.now)}"
    consumer = state.consumers[arn] = ServerConsumer(
        name=request.consumer_name,
        arn=arn,
        stream_name=stream.name,
        created_at=state.now,
        ready_at=state.now + state.settings.delays.register,
        tags=merged_tags({}, request.tags or {}, arn),
    )
    described = _describe(consumer)
    state.note_change(consumer)
    return {"Consumer": described}


def describe(state: ServiceState, request: inputs.ConsumerInput) -> dict[str, object]:
    consumer = _find(state, request)
    stream = state.streams[consumer.stream_name]
    return {"ConsumerDescription": _describe(consumer) | {"StreamARN": stream.arn}}


def deregister(state: ServiceState, request: inputs.ConsumerInput) -> None:
    consumer = _find(state, request)
    if consumer.status == "DELETING":
        return  # a repeated request must not restart the delay
    consumer.status = "DELETING"
    consumer.ready_at = state.now + state.settings.delays.deregister
    state.note_change(consumer)


def list_consumers(state: ServiceState, request: inputs.ListStreamConsumers) -> dict[str, object]:
    stream = state.find(None, request.stream_arn)
    check_created(state, stream, request.stream_creation_timestamp)
    after = ""
    if request.next_token is not None:
        refuse_beside_token(StreamCreationTimestamp=request.stream_creation_timestamp)
        token = read_page_token(state, request.next_token, "ListStreamConsumers")
        if (token.stream, token.creation_second) != (stream.name, stream.creation_second):
            raise invalid("NextToken is invalid: it is of another stream.")
        after = token.after
    consumers = [consumer for consumer in state.consumers_of(stream) if consumer.name > after]
    consumers.sort(key=lambda consumer: consumer.name)
    shown = consumers[: min(request.max_results or _CONSUMERS_PER_PAGE, _CONSUMERS_PER_PAGE)]
    answer: dict[str, object] = {"Consumers": [_describe(consumer) for consumer in shown]}
    if len(shown) < len(consumers):
        token = PageToken("ListStreamConsumers", stream.name, stream.creation_second, shown[-1].name, None, state.now)
        answer["NextToken"] = state.tokens.write(token)
    return answer


def _describe(consumer: ServerConsumer) -> dict[str, object]:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status,
        "ConsumerCreationTimestamp": int(consumer.created_at),  # whole seconds, as in the ARN
    }


def _find(state: ServiceState, request: inputs.ConsumerInput) -> ServerConsumer:
    if request.consumer_arn is not None:
        found = state.consumers.get(request.consumer_arn)
        if found is None:
            raise not_found(f"Consumer {request.consumer_arn}, account {state.settings.account_id} not found.")
        named = (request.consumer_name or found.name, request.stream_arn or state.arn_of(found.stream_name))
        if named != (found.name, state.arn_of(found.stream_name)):
            raise invalid("ConsumerARN, ConsumerName and StreamARN name different consumers.")
        return found
    if request.stream_arn is None or request.consumer_name is None:
        raise invalid("Either ConsumerARN, or StreamARN and ConsumerName, must be provided.")
    stream = state.find(None, request.stream_arn)
    for consumer in state.consumers_of(stream):
        if consumer.name == request.consumer_name:
            return consumer
    raise not_found(
        f"Consumer {request.consumer_name}, account {state.settings.account_id} not found under stream {stream.name}."
    )


@final
class ServerSubscription:
    """One subscription. The shell calls ``poll`` for the next event to push."""

    def __init__(
        self, state: ServiceState, consumer: ServerConsumer, stream: ServerStream, shard: ServerShard, place: int
    ) -> None:
        self._state = state
        self._stream = stream
        self._shard = shard
        self._place = place
        self._pushed_at = state.now - _HEARTBEAT
        self._bytes = Bucket(state.settings.limits.fan_out_bytes_per_second, state.now)
        life = state.settings.limits.subscription_life
        self.ends_at: float | None = None if life is None else state.now + life
        self.began_at: float = state.now
        self.consumer = consumer
        self._changes_seen = -1  # the value of ``log.changes`` at the last poll
        self.due_at: float = state.now
        """When the next push is due, unless something touches the log earlier."""
        self.ended: bool = False
        """Whether the subscription has ended. ``Subscriptions`` also sets this when a new subscription replaces this
        one, and the endpoint sets it, too.
        """
        self.fault: PushEnding | None = None
        """How the subscription ended, if a fault ended it."""

    @property
    def log(self) -> ShardLog:
        """The log that the subscription reads. When the log is touched, the subscription must be polled again."""
        return self._shard.log

    def poll(self, now: float) -> SubscribeToShardEvent | None:
        """Return the next event to push, or ``None`` if no event is due. After the last event, ``ended`` is set."""
        now, log, faults = self._state.advance(now), self._shard.log, self._state.faults
        is_hit = faults is not None and bool(faults.for_pushes)
        if now < self.due_at and log.changes == self._changes_seen and not is_hit:
            return None
        self._changes_seen = log.changes
        event = self._next_event(now)
        blocked_until = self._bytes.positive_at(now)
        if blocked_until > now or self._place < log.next:
            self.due_at = blocked_until
        else:
            self.due_at = self._pushed_at + _HEARTBEAT
        if self.ends_at is not None:
            self.due_at = min(self.due_at, self.ends_at)
        return event

    def _next_event(self, now: float) -> SubscribeToShardEvent | None:
        state = self._state
        if (
            self.ended
            or state.streams.get(self._stream.name) is not self._stream
            or state.consumers.get(self.consumer.arn) is not self.consumer
            or (self.ends_at is not None and now >= self.ends_at)
        ):
            self.ended = True
            return None
        if self._is_hit(due=False):
            return None
        if not self._bytes.allows(0, now):
            return None
        log = self._shard.log
        log.trim(self._stream.trim_horizon(now))
        records, self._place, size = log.page(self._place, state.settings.limits.page_max_records, _EVENT_MAX_BYTES)
        waiting_since = log.arrival_of(self._place)
        is_over = waiting_since is None and not self._shard.is_open
        if not records and not is_over and now < self._pushed_at + _HEARTBEAT:
            return None
        if self._is_hit(due=True):
            return None
        if is_over:
            self.ended = True
            return SubscribeToShardEvent(records, 0, None, child_shards(self._stream, self._shard))
        self._pushed_at = now
        self._bytes.charge(size)
        behind = 0 if waiting_since is None else max(0, round((now - waiting_since) * 1000))
        return SubscribeToShardEvent(records, behind, self._continuation())

    def _is_hit(self, *, due: bool) -> bool:
        """Return whether a fault ends the subscription now. ``due`` means that an event is about to be pushed."""
        faults = self._state.faults
        if faults is not None and faults.for_pushes:
            self.fault = faults.push_ending(self._stream.name, self._shard.shard_id, due=due)
            self.ended = self.ended or self.fault is not None
        return self.fault is not None

    def _continuation(self) -> str:
        """Return the sequence number that a new subscription continues from.

        It lies after the last record that was pushed and before any later record. As on AWS (recorded in LocalStack's
        test_subscribe_to_shard), it is not the sequence number of a record: it contains a second in which the last
        record cannot have arrived.
        """
        numbering = self._shard.numbering
        second = max(numbering.began, int(self._pushed_at)) + 1
        return str(numbering.make(max(0, self._place - 1), second))


@final
class Subscriptions:
    """The live subscriptions, by consumer and shard."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], ServerSubscription] = {}

    def subscribe(self, state: ServiceState, request: inputs.SubscribeToShard) -> ServerSubscription:
        account = state.settings.account_id
        consumer = state.consumers.get(request.consumer_arn)
        if consumer is None:
            raise not_found(f"Consumer {request.consumer_arn}, account {account} not found.")
        if consumer.status != "ACTIVE":
            raise in_use(
                f"Consumer {consumer.name} with creation timestamp {int(consumer.created_at)} under stream: "
                f"{consumer.stream_name} , account {account} is not in ACTIVE status."
            )
        shard_id = state.resolve_shard_id(request.shard_id, consumer.stream_name)
        stream, shard = state.readable_shard(consumer.stream_name, shard_id)
        key = (consumer.arn, shard.shard_id)
        limits = state.settings.limits
        wait = limits.subscription_takeover_wait or 0.0
        pause = 1.0 / limits.subscribe_calls_per_second if limits.subscribe_calls_per_second else 0.0
        # A new subscription must wait even after an ended one. After this wait, the ended one is dropped, so that its
        # stream can be freed.
        self._live = {
            live_key: live
            for live_key, live in self._live.items()
            if not live.ended or state.now - live.began_at < max(wait, pause)
        }
        old = self._live.get(key)
        if old is not None and old.consumer is consumer and state.now - old.began_at < wait:
            raise in_use(
                f"Another active subscription exists for this consumer: {account}:{stream.name}:{shard.shard_id}:"
                f"{consumer.name}"
            )
        if old is not None and old.consumer is consumer and state.now - old.began_at < pause:
            raise limit_exceeded(f"SubscribeToShard was called too often for {consumer.arn} and {shard.shard_id}")
        start = request.starting_position
        place = place_of(
            state,
            stream,
            shard,
            kind=start.type,
            number=start.sequence_number,
            timestamp=start.timestamp,
            operation="SubscribeToShard",
        )
        if request.dry_run:
            raise dry_run("SubscribeToShard")
        shard.log.touched = state.touched
        if old is not None and not old.ended:
            old.ended = True
            old.log.touch()
        subscription = ServerSubscription(state, consumer, stream, shard, place)
        self._live[key] = subscription
        return subscription
