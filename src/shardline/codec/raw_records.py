"""Aggregates and deaggregates raw records, for code that uses neither our producer nor our consumer.

``aggregate`` is for code that calls PutRecords itself. ``deaggregate`` is for code that gets raw records from
GetRecords, in a Lambda function or in a Firehose transformation.

Invariants:

- Every record is checked before it is aggregated, and an error names the invalid record.
- ``deaggregate`` loses no record and keeps the order. A plain record is returned as one record, with the same data.
- The records of one aggregate share what the service reports about the aggregate. Their ``sub_sequence`` counts from 0.
- A record from an aggregate is not deaggregated again: its data may look like an aggregate without being one (P12).
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Final, TypeAlias, cast

import pybase64

from shardline.codec.aggregation import (
    FRAMES_AT_ONCE,
    Columns,
    encode_aggregate,
    encode_tags,
    find_frames,
    split_frame,
)
from shardline.codec.shapes import GetRecordsResponse, RawRecord, SubscribeToShardEvent
from shardline.errors import UsageError
from shardline.model.hashing import HashRange, check_partition_key, hash_key_of, parse_explicit_hash_key
from shardline.model.headers import NO_HEADERS, HeadersToPut, check_headers
from shardline.model.record import UNKNOWN_ORIGIN, Record, check_data, make_structs, options_of_tuple

UserTuple: TypeAlias = (
    tuple[str, bytes]
    | tuple[str, bytes, str | None]
    | tuple[str, bytes, HeadersToPut]
    | tuple[str, bytes, str | None, HeadersToPut | None]
)
"""A record to aggregate: the partition key, the data, and optionally an explicit hash key, headers or both."""

Page: TypeAlias = GetRecordsResponse | SubscribeToShardEvent
"""A page of records that our own client returns."""

Raw: TypeAlias = bytes | bytearray | memoryview | Record | RawRecord | Mapping[str, object]
"""A raw record in one of the forms that ``deaggregate`` accepts."""

_ALLOWED: Final = (
    "bytes, a page or record of Client, a GetRecords record (with 'Data'), a Lambda record (with 'kinesis'), a Firehose"
    " record (with 'recordId' and 'data'), a response or event that holds such records, a shardline Record, or an"
    " iterable of these"
)

_TUPLES: Final = "(key, data), or with an explicit hash key, headers or both behind them"


def aggregate(records: Iterable[UserTuple], *, within: HashRange | None = None) -> bytes:
    """Return one aggregate of all records, in the KPL's format. It is the data of a single Kinesis record.

    An aggregate must hold records of one shard only. Kinesis stores the whole aggregate in the shard that its own
    partition key (or explicit hash key) selects, but readers check the keys inside: the KCL drops the *whole* aggregate
    if one of them belongs to another shard. So group the records by shard first, and pass the shard's hash range as
    ``within`` to have this checked. Put the aggregate under the key of one of its records, and under that record's
    explicit hash key if it has one.

    Args:
        records: tuples (key, data), (key, data, explicit hash key or None), (key, data, headers) or (key, data,
            explicit hash key or None, headers or None); at least one. Headers are a mapping, as for ``put``.
        within: the hash range of the shard that the aggregate is meant for.

    Raises:
        UsageError: there is no record, or a record is invalid or outside ``within``. The message names the record.
    """
    if within is not None and not isinstance(within, HashRange):
        raise UsageError(f"within= takes a HashRange, not {_kind(within)}")
    keys: list[str] = []
    payloads: list[bytes] = []
    hash_keys: dict[int, str] = {}
    tags: dict[int, bytes] = {}
    for index, record in enumerate(_iterate(records, "aggregate takes an iterable of tuples (key, data)")):
        try:
            key, data, explicit_hash_key, hash_key, own_tags = _check_user_tuple(record)
        except UsageError as error:
            raise UsageError(f"record {index}: {error}") from error.__cause__
        if within is not None and hash_key not in within:
            raise UsageError(
                f"record {index} (key {key!r}) belongs to another shard: its hash key {hash_key} is outside of"
                f" {within.start}..{within.end}, and readers drop aggregates that mix shards"
            )
        keys.append(key)
        payloads.append(data)
        if explicit_hash_key is not None:
            hash_keys[index] = explicit_hash_key
        if own_tags:
            tags[index] = own_tags
    if not keys:
        raise UsageError("an aggregate needs at least one record")
    return encode_aggregate(keys, payloads, hash_keys, tags)


def deaggregate(records: Raw | Page | Iterable[Raw]) -> list[Record]:
    """Return the user records in ``records``, in order. Aggregates are unpacked; plain records are unchanged.

    ``records`` is one raw record or an iterable of them. A raw record is any of

    - its data: ``bytes``, ``bytearray`` or ``memoryview``;
    - a record from our client's ``get_records`` or ``subscribe_to_shard``, or the whole page or event;
    - a record from boto3's ``get_records``, or the whole response;
    - a Kinesis record from a Lambda event, or the whole event;
    - a record from a Firehose transformation event, or the whole event;
    - one of our ``Record`` objects. If it comes from an aggregate, it is returned unchanged.

    Records of an aggregate have ``aggregated=True``, their own key, explicit hash key and headers, their index in the
    aggregate as ``sub_sequence``, and the sequence number, arrival time, shard and stream of the aggregate, as far as
    these are known.

    Raises:
        UsageError: a record has another type, or its data is not valid base64. The message names the record by its
            index, counted from 0 over all records.
    """
    found: list[Record] = []
    outers = _outer_records(records)
    while some := list(islice(outers, FRAMES_AT_ONCE)):
        blobs = [b"" if outer.aggregated else bytes(outer.data) for outer in some]
        for outer, blob, is_framed in zip(some, blobs, find_frames(blobs), strict=True):
            columns = split_frame(blob) if is_framed else None
            if columns is None:
                found.append(outer)
            else:
                found += _members(outer, columns)
    return found


def _outer_records(records: Raw | Page | Iterable[Raw]) -> Iterator[Record]:
    """Convert raw records of any form to ``Record``s, without unpacking them."""
    for index, (raw, stream) in enumerate(_flatten(records)):
        try:
            yield _outer_record(raw, stream)
        except UsageError as error:
            raise UsageError(f"record {index}: {error}") from None


def _members(outer: Record, columns: Columns) -> list[Record]:
    """Return the records of an aggregate, each with the aggregate's shard, stream, sequence number and arrival time."""
    count = len(columns.payloads)
    fields = (
        columns.payloads,
        columns.keys,
        columns.explicit_hash_keys,
        (outer.sequence_number,),
        list(range(count)),
        (outer.shard_id,),
        (outer.arrived_at,),
        (outer.stream,),
        (True,),
        (UNKNOWN_ORIGIN,),
        columns.all_headers() if columns.headers else (NO_HEADERS,),
    )
    return make_structs(Record, count, fields)


def _check_user_tuple(record: object) -> tuple[str, bytes, str | None, int, bytes]:
    """Return the key, data, explicit hash key, effective hash key and tags of a record to aggregate."""
    if not isinstance(record, (tuple, list)):
        raise UsageError(f"expected a tuple {_TUPLES}, not {_kind(record)}")
    fields = cast("tuple[object, ...] | list[object]", record)
    if len(fields) not in (2, 3, 4):
        raise UsageError(f"expected {_TUPLES}, not {len(fields)} values")
    key, data = check_partition_key(fields[0]), check_data(fields[1])
    text, headers = options_of_tuple(fields)
    tags = encode_tags(check_headers(headers))
    if text is None:
        return key, data, None, hash_key_of(key), tags
    hash_key = parse_explicit_hash_key(text)
    return key, data, str(hash_key), hash_key, tags  # a valid explicit hash key is canonical, so this is the same text


def _flatten(records: object) -> Iterator[tuple[object, str | None]]:
    """Yield each raw record, and the name of the stream if the event around the record contains it."""
    if isinstance(records, (bytes, bytearray, memoryview, Record, RawRecord)):
        yield records, None
    elif isinstance(records, (GetRecordsResponse, SubscribeToShardEvent)):
        yield from ((record, None) for record in records.records)
    elif isinstance(records, Mapping):
        yield from _flatten_mapping(cast("Mapping[str, object]", records))
    else:
        for record in _iterate(records, f"deaggregate takes {_ALLOWED}"):
            if isinstance(record, Mapping):
                yield from _flatten_mapping(cast("Mapping[str, object]", record))
            else:
                yield record, None


def _flatten_mapping(mapping: Mapping[str, object]) -> Iterator[tuple[object, str | None]]:
    """Yield the records of an event or response. Any other mapping is a record itself."""
    stream = _stream_name(mapping.get("sourceKinesisStreamArn"))
    for name in ("Records", "records"):
        if name in mapping:
            for record in _iterate(mapping[name], f"{name!r} must hold a list of records"):
                yield record, stream
            return
    yield mapping, None


def _iterate(values: object, expectation: str) -> Iterable[object]:
    kind = _kind(values)
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes, bytearray, memoryview, Mapping)):
        return cast("Iterable[object]", values)
    raise UsageError(f"{expectation}, not {kind}")


def _outer_record(raw: object, stream: str | None) -> Record:
    """Convert a raw record of any form to a ``Record``, without unpacking it."""
    kind = _kind(raw)
    if isinstance(raw, RawRecord):
        return Record(raw.data, raw.key, None, raw.sequence_number, 0, None, raw.arrived_at)
    if isinstance(raw, Record):
        return cast("Record", raw)
    if isinstance(raw, (bytes, bytearray, memoryview)):
        return Record(check_data(cast("object", raw)), None)
    if isinstance(raw, Mapping):
        mapping = cast("Mapping[str, object]", raw)
        if "Data" in mapping:
            return _from_get_records(mapping)
        if "kinesis" in mapping:
            return _from_lambda(mapping, _mapping(mapping, "kinesis"))
        if "recordId" in mapping and "data" in mapping:
            return _from_firehose(mapping, stream)
    raise UsageError(f"expected {_ALLOWED}, not {kind}")


def _from_get_records(record: Mapping[str, object]) -> Record:
    if isinstance(record["Data"], str):
        raise UsageError("'Data' must be bytes, as boto3 returns it, not str: decode its base64 first")
    return Record(
        data=check_data(record["Data"]),
        key=_text(record, "PartitionKey"),
        sequence_number=_text(record, "SequenceNumber"),
        arrived_at=_arrival(record, "ApproximateArrivalTimestamp"),
    )


def _from_lambda(event: Mapping[str, object], record: Mapping[str, object]) -> Record:
    shard_id, colon, _ = (_text(event, "eventID") or "").partition(":")  # "shardId-000000000006:<sequence number>"
    return Record(
        data=_decode(record.get("data")),
        key=_text(record, "partitionKey"),
        sequence_number=_text(record, "sequenceNumber"),
        shard_id=shard_id if colon else None,
        arrived_at=_arrival(record, "approximateArrivalTimestamp"),
        stream=_stream_name(event.get("eventSourceARN")),
    )


def _from_firehose(record: Mapping[str, object], stream: str | None) -> Record:
    """Convert a Firehose record. A record without ``kinesisRecordMetadata`` was put into Firehose directly."""
    metadata = _mapping(record, "kinesisRecordMetadata")
    sub_sequence = _count(metadata, "subsequenceNumber")
    return Record(
        data=_decode(record["data"]),
        key=_text(metadata, "partitionKey"),
        sequence_number=_text(metadata, "sequenceNumber"),
        sub_sequence=sub_sequence,
        shard_id=_text(metadata, "shardId"),
        arrived_at=_arrival(metadata or record, "approximateArrivalTimestamp", per_second=1000),
        stream=stream,
        aggregated=sub_sequence > 0,  # Firehose has unpacked the aggregate already
    )


def _decode(data: object) -> bytes:
    if not isinstance(data, str):
        raise UsageError(f"its data must be a str of base64, not {_kind(data)}")
    try:
        return pybase64.b64decode(data, validate=True)
    except ValueError as error:
        raise UsageError(f"its data is not valid base64 ({error})") from None


def _mapping(record: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return the member ``name``, which must be a mapping. If it is missing, return an empty mapping."""
    value = record.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{name!r} must be a mapping, not {_kind(value)}")
    return cast("Mapping[str, object]", value or {})


def _text(record: Mapping[str, object], name: str) -> str | None:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name!r} must be a str, not {_kind(value)}")
    return value


def _count(record: Mapping[str, object], name: str) -> int:
    """Return a value as a number. The value may be missing, empty, or written as text."""
    value = record.get(name)
    text = "" if value is None else str(value)
    if text and not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name!r} must be a number, not {value!r}")
    return int(text or 0)


def _arrival(record: Mapping[str, object], name: str, *, per_second: int = 1) -> float | None:
    """Return a time in seconds since 1970. ``per_second`` says how many units of the value make a second."""
    value = record.get(name)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError(f"{name!r} needs a time zone: {value!r} has none")
        return value.timestamp()
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return value / per_second
        except OverflowError:
            raise UsageError(f"{name!r} is not a time: the number is too large") from None
    raise UsageError(f"{name!r} must be a datetime or a number, not {_kind(value)}")


def _stream_name(arn: object) -> str | None:
    """Return the name of a stream, from the ARN of the stream or of one of its registered consumers."""
    if not isinstance(arn, str):
        return None
    return arn.partition(":stream/")[2].partition("/")[0] or None


def _kind(value: object) -> str:
    return type(value).__name__
