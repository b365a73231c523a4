"""Aggregates as lists of records, for tests that look inside."""

from typing import NamedTuple

from shardline.codec.aggregation import encode_aggregate, split_columns


class UserRecord(NamedTuple):
    key: str
    data: bytes
    explicit_hash_key: str | None = None


def build_aggregate(records):
    """The aggregate of tuples (key, data[, explicit hash key])."""
    whole = [UserRecord(*one) for one in records]
    hash_keys = {place: one.explicit_hash_key for place, one in enumerate(whole) if one.explicit_hash_key is not None}
    return encode_aggregate([one.key for one in whole], [one.data for one in whole], hash_keys)


def split_aggregate(data):
    """The records of an aggregate; ``None`` for a plain record."""
    columns = split_columns(data)
    return None if columns is None else [UserRecord(*one) for one in zip(*columns, strict=True)]
