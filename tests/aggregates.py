"""Aggregates and packs as lists of records, for tests that look inside."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from shardline.codec.aggregation import encode_aggregate, encode_tags, split_columns
from shardline.codec.value_packing import split_length_prefixed, split_netstrings


class UserRecord(NamedTuple):
    key: str
    data: bytes
    explicit_hash_key: str | None = None


class HeadedRecord(NamedTuple):
    key: str
    data: bytes
    explicit_hash_key: str | None
    headers: Mapping[str, str]


def build_aggregate(records):
    """The aggregate of tuples (key, data[, explicit hash key])."""
    whole = [UserRecord(*one) for one in records]
    hash_keys = {place: one.explicit_hash_key for place, one in enumerate(whole) if one.explicit_hash_key is not None}
    return encode_aggregate([one.key for one in whole], [one.data for one in whole], hash_keys)


def split_aggregate(data):
    """The records of an aggregate; ``None`` for a plain record."""
    columns = split_columns(data)
    return None if columns is None else [UserRecord(*one) for one in zip(*columns[:3], strict=True)]


def build_headed(records):
    """The aggregate of tuples (key, data, explicit hash key or None, headers)."""
    hash_keys = {place: one[2] for place, one in enumerate(records) if one[2] is not None}
    tags = {place: encode_tags(one[3]) for place, one in enumerate(records) if one[3]}
    return encode_aggregate([one[0] for one in records], [one[1] for one in records], hash_keys, tags)


def split_headed(data):
    """The records of an aggregate, with their headers; ``None`` for a plain record."""
    columns = split_columns(data)
    if columns is None:
        return None
    return [HeadedRecord(*one) for one in zip(*columns[:3], columns.all_headers(), strict=True)]


SPLITTERS = {
    "json-lines": lambda data: data.split(b"\n")[:-1],
    "json-list": lambda data: [json.dumps(value).encode() for value in json.loads(data)],
    "netstrings": split_netstrings,
    "length-prefixed": split_length_prefixed,
}


def split_entry(entry, packing):
    """The records of an entry or of a stored record: of a pack, of an aggregate, or the only one."""
    if packing is None:
        return split_aggregate(entry.data) or [UserRecord(entry.key, entry.data, entry.explicit_hash_key)]
    return [UserRecord(entry.key, data, entry.explicit_hash_key) for data in SPLITTERS[packing](entry.data)]
