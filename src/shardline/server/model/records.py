"""Emulates the operations on records: PutRecords, PutRecord, GetShardIterator and GetRecords.

Invariants:

- Each entry of PutRecords is stored or refused independently. If an entry is invalid, the whole request is refused.
- A refused record is not stored and costs nothing. A dry run is refused last, after all other checks have passed.
- A page never skips a record: the next iterator continues after the last record of the page.
"""

from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, TypeAlias, final

import msgspec

from shardline.model.hashing import hash_digest_of
from shardline.model.limits import KIB, MIB
from shardline.server.model import sequence_numbers
from shardline.server.model.inputs import GetRecords, GetShardIterator, PutRecord, PutRecords, PutRecordsRequestEntry
from shardline.server.model.next_tokens import IteratorToken
from shardline.server.model.refusals import (
    NOT_NULL,
    THROTTLED,
    Refused,
    blob,
    broken,
    dry_run,
    expired_iterator,
    internal_failure,
    invalid,
    not_found,
    shard_throttling,
    throttled,
    validation,
)
from shardline.server.model.shard_log import Page, StoredRecord
from shardline.server.model.shards import ServerShard, shard_id_of
from shardline.server.model.state import ServiceState, Stored
from shardline.server.model.streams import ServerStream

if TYPE_CHECKING:
    from shardline.server.model.faults import Faults

_Entries: TypeAlias = tuple[list[PutRecordsRequestEntry], list[int], list[ServerShard]]
"""The entries of a request, their sizes, and the shards that they go to."""

_HASH_KEYS: Final = 1 << 128


class PutResult(msgspec.Struct, rename="pascal", gc=False, omit_defaults=True):
    sequence_number: str | None = None
    shard_id: str | None = None
    error_code: str | None = None
    error_message: str | None = None


class PutRecordsOutput(msgspec.Struct, rename="pascal", omit_defaults=True):
    failed_record_count: int
    records: list[PutResult]
    encryption_type: str | None = None


class ChildShardOutput(msgspec.Struct, rename="pascal"):
    shard_id: str
    parent_shards: list[str]
    hash_key_range: dict[str, str]


class GetRecordsOutput(msgspec.Struct, rename="pascal", omit_defaults=True):
    records: Page
    millis_behind_latest: int
    next_shard_iterator: str | None = None
    child_shards: list[ChildShardOutput] | None = None


def put_records(state: ServiceState, request: PutRecords) -> PutRecordsOutput:
    stream = state.serving(request.stream_name, request.stream_arn)
    entries = request.records
    sizes = _check_request(state, stream, entries)
    if request.dry_run and stream.record_distribution == "AUTO":
        raise dry_run("PutRecords")  # raised before _shards_for would draw random shards
    shards = _shards_for(state, stream, entries)
    if request.dry_run:
        raise dry_run("PutRecords")
    if state.faults is not None and state.faults.has_entries:
        return _put_with_faults(state, stream, state.faults, (entries, sizes, shards))
    return _put(state, stream, (entries, sizes, shards))


def _put(state: ServiceState, stream: ServerStream, batch: _Entries) -> PutRecordsOutput:
    now = state.now
    store = _Store(state, stream)
    results: list[PutResult] = []
    failed = 0
    for entry, size, shard in zip(*batch, strict=True):
        if shard.is_unlimited or shard.may_write(size, now):
            results.append(PutResult(store.add(shard, entry, size), shard.shard_id))
        else:
            failed += 1
            results.append(PutResult(error_code=THROTTLED, error_message=_rate_exceeded(state, stream, shard)))
    store.finish()
    return PutRecordsOutput(failed, results, _encryption(stream))


def _put_with_faults(state: ServiceState, stream: ServerStream, faults: "Faults", batch: _Entries) -> PutRecordsOutput:
    """Like ``_put``, but faults may fail entries, at no cost, and may add or remove results."""
    entries, sizes, shards = batch
    failed = faults.failed_entries(stream, shards)
    kept = [at for at in range(len(shards)) if at not in failed]
    output = _put(
        state, stream, ([entries[at] for at in kept], [sizes[at] for at in kept], [shards[at] for at in kept])
    )
    for at in sorted(failed):
        code, message = failed[at]
        message = message or _rate_exceeded(state, stream, shards[at])
        output.records.insert(at, PutResult(error_code=code, error_message=message))
    output.failed_record_count += len(failed)
    delta = faults.result_delta(stream, shards)
    if delta < 0:
        del output.records[delta:]
    else:
        output.records.extend(output.records[-1:] * delta)
    return output


def put_record(state: ServiceState, request: PutRecord) -> dict[str, object]:
    stream = state.serving(request.stream_name, request.stream_arn)
    entry = PutRecordsRequestEntry(request.data, request.partition_key, request.explicit_hash_key)
    size = _check_entry(stream, entry)
    _check_ordering(state, stream, request.sequence_number_for_ordering)
    if request.dry_run:
        raise _dry_run_of_put(state, stream, entry, size)
    shard = _shard_for(state, stream, entry)
    if not shard.may_write(size, state.now):
        raise throttled(_rate_exceeded(state, stream, shard))
    answer: dict[str, object] = {"ShardId": shard.shard_id}
    store = _Store(state, stream)
    answer["SequenceNumber"] = store.add(shard, entry, size)
    store.finish()
    if stream.key_id is not None:
        answer["EncryptionType"] = stream.encryption_type
    return answer


def _check_ordering(state: ServiceState, stream: ServerStream, after: str | None) -> None:
    """Refuse a SequenceNumberForOrdering that AWS refuses: an unreadable one, and one from the future.

    Numbers of other shards and of AWS's older layouts are accepted (recorded in kinesalite's putRecord.js). The new
    record needs no special treatment: its number is greater than every earlier number of its shard and of the parents.
    """
    if after is None:
        return
    parts = sequence_numbers.parse(after)
    if parts is None or _is_future(state, stream, parts):
        account = state.settings.account_id
        raise invalid(
            f"ExclusiveMinimumSequenceNumber {after} used in PutRecord on stream {stream.name} under account {account} "
            "is invalid."
        )


def _is_future(state: ServiceState, stream: ServerStream, parts: sequence_numbers.Parts) -> bool:
    shard = stream.shards.get(shard_id_of(parts.shard_index))
    if shard is None or not shard.numbering.covers(parts):
        return parts.second > state.now
    # The second in the number cannot be compared with the time: the numbers of a child begin in the second after its
    # parent's end.
    return shard.is_open and parts.number >= shard.log.next


def _dry_run_of_put(state: ServiceState, stream: ServerStream, entry: PutRecordsRequestEntry, size: int) -> Refused:
    """Return the answer to a dry run of PutRecord. It charges nothing and draws no random number."""
    shards = stream.open_shards if stream.record_distribution == "AUTO" else [_shard_for(state, stream, entry)]
    if any(shard.may_write(size, state.now, is_dry=True) for shard in shards):
        return dry_run("PutRecord")
    return throttled(_rate_exceeded(state, stream, shards[0]))


def _check_request(state: ServiceState, stream: ServerStream, entries: list[PutRecordsRequestEntry]) -> list[int]:
    """Return the sizes of the entries.

    Raises:
        Refused: an entry is invalid, or the request is too large.
    """
    sizes: list[int] = []
    most = stream.max_record_kib * KIB
    for entry in entries:
        key = entry.partition_key
        # This is the fast path for ASCII keys. Any other entry gets a size over the limit, and _check_entry decides.
        size = len(entry.data) + len(key) if isinstance(key, str) and key.isascii() else most + 1
        sizes.append(size if size <= most else _check_entry(stream, entry, entries))
    limit = state.settings.limits.request_max_bytes
    if limit is not None and sum(sizes) > limit:
        raise invalid(f"Records size exceeds {limit / MIB:g} MB limit")
    return sizes


def _check_entry(
    stream: ServerStream, entry: PutRecordsRequestEntry, entries: list[PutRecordsRequestEntry] | None = None
) -> int:
    """Return the size of an entry.

    Raises:
        Refused: the entry is invalid for the stream. The refusal names every invalid entry of PutRecords' ``entries``.
    """
    if _problem(stream, entry, "") is None:
        return _size_of(entry)
    at = [("", entry)] if entries is None else [(f"records.{n}.member.", other) for n, other in enumerate(entries, 1)]
    raise validation(problem for path, other in at if (problem := _problem(stream, other, path)) is not None)


def _problem(stream: ServerStream, entry: PutRecordsRequestEntry, path: str) -> str | None:
    if not isinstance(entry.partition_key, str) and stream.record_distribution != "AUTO":
        return broken(f"{path}partitionKey", None, NOT_NULL)
    limit = stream.max_record_kib * KIB
    if _size_of(entry) <= limit:
        return None
    return broken(f"{path}data", blob(len(entry.data)), f"Member must have length less than or equal to {limit}")


def _size_of(entry: PutRecordsRequestEntry) -> int:
    key = entry.partition_key
    return len(entry.data) + (len(key.encode()) if isinstance(key, str) else 0)


def _shards_for(state: ServiceState, stream: ServerStream, entries: list[PutRecordsRequestEntry]) -> list[ServerShard]:
    if stream.record_distribution == "AUTO":
        return [_shard_for(state, stream, entry) for entry in entries]
    shard_of = stream.shard_of
    return [
        shard_of(hash_digest_of(key))
        if entry.explicit_hash_key is None and isinstance(key := entry.partition_key, str)
        else _shard_for(state, stream, entry)
        for entry in entries
    ]


def _shard_for(state: ServiceState, stream: ServerStream, entry: PutRecordsRequestEntry) -> ServerShard:
    """Return the shard for a record. With AUTO distribution it is random, whatever the record's key is."""
    if stream.record_distribution == "AUTO":
        return state.rng.choice(stream.open_shards)
    text = entry.explicit_hash_key
    if text is None:
        key = entry.partition_key
        assert isinstance(key, str), "_check_entry has refused an entry without a key"
        return stream.shard_of(hash_digest_of(key))
    hash_key = int(text)
    if hash_key >= _HASH_KEYS:
        allowed = "ExplicitHashKey must be in the range: [0, 2^128-1]"
        raise invalid(f"Invalid ExplicitHashKey. {allowed}. Specified value was {text}")
    return stream.shard_of(hash_key.to_bytes(16, "big"))


@final
@dataclass(slots=True)
class _Batch:
    """The records that one request puts into one shard."""

    shard: ServerShard
    number: int
    """The sequence number of the next record."""
    records: list[StoredRecord] = field(default_factory=list[StoredRecord])
    sizes: list[int] = field(default_factory=list[int])


@final
class _Store:
    """Collects the records of one request by shard. ``finish`` stores them, all with the same arrival time."""

    __slots__ = ("_batches", "_encryption", "_now", "_state", "_stream")

    def __init__(self, state: ServiceState, stream: ServerStream) -> None:
        self._state = state
        self._stream = stream
        self._now = round(state.now, 3)
        self._batches: dict[int, _Batch] = {}
        self._encryption = msgspec.UNSET if stream.key_id is None else stream.encryption_type

    def add(self, shard: ServerShard, entry: PutRecordsRequestEntry, size: int) -> str:
        """Add a record and return its sequence number."""
        batch = self._batches.get(shard.index)
        if batch is None:
            number = shard.numbering.make(shard.log.next, int(self._now))
            batch = self._batches[shard.index] = _Batch(shard, number)
        text = str(batch.number)
        batch.number += sequence_numbers.STEP
        batch.records.append(StoredRecord(text, self._now, entry.data, entry.partition_key, self._encryption))
        batch.sizes.append(size)
        return text

    def finish(self) -> None:
        for batch in self._batches.values():
            if self._state.keeps_stored:
                self._state.stored.append(Stored(self._stream, batch.shard, batch.shard.log.next, batch.records))
            batch.shard.log.extend(batch.records, batch.sizes)


def _java_date(at: float) -> str:
    """Write a time as Java does: ``Tue Nov 14 22:13:20 UTC 2023``."""
    weekday, day, month, year, time, _ = formatdate(at, usegmt=True).split()
    return f"{weekday[:3]} {month} {day} {time} UTC {year}"


def _rate_exceeded(state: ServiceState, stream: ServerStream, shard: ServerShard, operation: str = "PutRecords") -> str:
    return shard_throttling(operation, shard.shard_id, stream.name, state.settings.account_id)


def _encryption(stream: ServerStream) -> str | None:
    return None if stream.key_id is None else stream.encryption_type


# ---- reading


def get_shard_iterator(state: ServiceState, request: GetShardIterator) -> dict[str, object]:
    name = state.name_of(request.stream_name, request.stream_arn)
    stream, shard = state.readable_shard(name, state.resolve_shard_id(request.shard_id, name))
    if not shard.may_iterate(state.now, is_dry=bool(request.dry_run)):
        raise throttled(_rate_exceeded(state, stream, shard))
    place = place_of(
        state,
        stream,
        shard,
        kind=request.shard_iterator_type,
        number=request.starting_sequence_number,
        timestamp=request.timestamp,
        operation="GetShardIterator",
    )
    if request.dry_run:
        raise dry_run("GetShardIterator")
    return {"ShardIterator": write_iterator(state, stream, shard, place)}


def place_of(
    state: ServiceState,
    stream: ServerStream,
    shard: ServerShard,
    *,
    kind: str,
    number: str | None,
    timestamp: float | None,
    operation: str,
) -> int:
    """Return the place in a shard that a starting position refers to.

    Raises:
        Refused: the position is invalid.
    """
    shard.log.trim(stream.trim_horizon(state.now))
    if kind in {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"}:
        where = f"{operation} on shard {shard.shard_id} in stream {stream.name}"
        if number is None:
            raise _wrong_pair(f"{kind} and no StartingSequenceNumber")
        return _place_of_number(shard, kind, number, f"{where} under account {state.settings.account_id}")
    if number is not None:
        raise _wrong_pair(f"{kind} and also a StartingSequenceNumber")
    if kind == "AT_TIMESTAMP":
        if timestamp is None:
            raise invalid(
                "Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP. Current request has no "
                "timestamp parameter."
            )
        # Arrival times are rounded to milliseconds. A client that passes a record's arrival time must find that record.
        timestamp = round(timestamp, 3)
        if timestamp > round(state.now, 3):
            raise invalid(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {timestamp * 1000:.0f}, currentTimestampInMillis: {state.now * 1000:.0f}"
            )
        return shard.log.place_of_time(timestamp)
    return shard.log.first if kind == "TRIM_HORIZON" else shard.log.next


def _wrong_pair(specified: str) -> Refused:
    return invalid(
        "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and StartingSequenceNumber or (2) "
        f"TRIM_HORIZON or LATEST and no StartingSequenceNumber. Request specified {specified}."
    )


def _place_of_number(shard: ServerShard, kind: str, number: str, where: str) -> int:
    parts = sequence_numbers.parse(number)
    if parts is None:
        raise invalid(f"StartingSequenceNumber {number} used in {where} is invalid.")
    if parts.shard_index != shard.index:
        raise invalid(
            f"Invalid StartingSequenceNumber. It encodes {shard_id_of(parts.shard_index)}, while it was used in a call "
            f"to a shard with {shard.shard_id}"
        )
    if parts.version == 0:
        raise internal_failure()  # as AWS does for numbers of version 0: recorded in kinesalite's getShardIterator.js
    is_future = parts.number >= shard.log.next and int(number) != shard.ending_sequence_number
    if is_future or not shard.numbering.covers(parts):
        raise invalid(
            f"StartingSequenceNumber {number} used in {where} is invalid because it did not come from this stream."
        )
    skips_record = kind == "AFTER_SEQUENCE_NUMBER" or _is_after_record(shard, parts.number, number)
    return min(parts.number + skips_record, shard.log.next)


def _is_after_record(shard: ServerShard, place: int, number: str) -> bool:
    """Return whether a sequence number lies after the record at its place. A subscription's continuation does."""
    log = shard.log
    return log.first <= place < log.next and int(number) > int(log.between(place, place + 1)[0].sequence_number)


def write_iterator(state: ServiceState, stream: ServerStream, shard: ServerShard, place: int) -> str:
    token = IteratorToken(stream.name, stream.creation_second, shard.index, place, state.now, state.rng.getrandbits(32))
    return state.tokens.write(token)


def get_records(state: ServiceState, request: GetRecords) -> GetRecordsOutput:
    stream, shard, place = _read_iterator(state, request)
    if not shard.may_read(state.now, is_dry=bool(request.dry_run)):
        raise throttled(_rate_exceeded(state, stream, shard, "GetRecords"))
    if request.dry_run:
        raise dry_run("GetRecords")
    limits = state.settings.limits
    log = shard.log
    log.trim(stream.trim_horizon(state.now))
    chance = state.settings.empty_page_chance
    if chance and log.arrival_of(place) is not None and state.rng.random() < chance:
        most = 0
    else:
        most = min(request.limit or limits.page_max_records, limits.page_max_records)
    records, after, size = log.page(place, most, limits.page_max_bytes)
    shard.charge_read(size)
    waiting_since = log.arrival_of(after)
    behind = 0 if waiting_since is None else max(0, round((state.now - waiting_since) * 1000))
    if waiting_since is None and not shard.is_open:
        return GetRecordsOutput(records, 0, None, child_shards(stream, shard))
    return GetRecordsOutput(records, behind, write_iterator(state, stream, shard, after))


def child_shards(stream: ServerStream, shard: ServerShard) -> list[ChildShardOutput]:
    """Return the child shards of a closed shard."""
    children = [stream.shards[child] for child in shard.child_ids if child in stream.shards]
    return [ChildShardOutput(child.shard_id, child.parent_ids, hash_key_range(child)) for child in children]


def hash_key_range(shard: ServerShard) -> dict[str, str]:
    return {"StartingHashKey": str(shard.hash_range.start), "EndingHashKey": str(shard.hash_range.end)}


def _read_iterator(state: ServiceState, request: GetRecords) -> tuple[ServerStream, ServerShard, int]:
    token = state.tokens.read_iterator(request.shard_iterator)
    if token is None:
        raise invalid("Invalid ShardIterator.")
    if request.stream_arn is not None and state.name_of(None, request.stream_arn) != token.stream:
        raise invalid(f"ShardIterator is of stream {token.stream}, and not of {request.stream_arn}.")
    life = state.settings.limits.iterator_life
    if life is not None and state.now - token.made_at > life:
        raise expired_iterator(
            f"Iterator expired. The iterator was created at time {_java_date(token.made_at)} while right now it is "
            f"{_java_date(state.now)} which is further in the future than the tolerated delay of {life * 1000:.0f} "
            "milliseconds."
        )
    stream, shard = state.readable_shard(token.stream, shard_id_of(token.shard_index))
    if stream.creation_second != token.creation_second:
        raise not_found(f"Stream {token.stream} under account {state.settings.account_id} not found.")
    return stream, shard, token.place
