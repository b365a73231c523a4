"""Runs a piece of the producer in its pure form, beside the compiled one."""

from contextlib import contextmanager

from hypothesis import strategies as st

from shardline._speedups import pure_twins
from shardline.codec.aggregation import MAGIC, encode_aggregate, encode_tags
from shardline.core.producer import aggregate as aggregate_module
from shardline.core.producer.producer_record import BufferedRecord


@contextmanager
def pure(module, *names):
    """Replace the compiled functions of a module by their pure twins."""
    compiled = {name: getattr(module, name) for name in names}
    try:
        for name in names:
            setattr(module, name, pure_twins[name])
        yield
    finally:
        for name, function in compiled.items():
            setattr(module, name, function)


def pure_aggregates():
    return pure(aggregate_module, "KeyTable", "add_ordinary", "encode_records")


KEYS = st.one_of(
    st.text(min_size=1, max_size=12),
    st.sampled_from(["a", "b", "user-1", "user-2", "\x00", "é", "😀" * 5, "x" * 127, "x" * 128, "ü" * 256, "z" * 256]),
    st.uuids(version=4).map(str),
)
FRAMED = encode_aggregate(["k"], [b"inner"], {})
DATA = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([0, 1, 122, 123, 124, 127, 128, 129, 16_367, 16_368, 16_380, 16_384, 40_000]).map(bytes),
    st.sampled_from([FRAMED, MAGIC, MAGIC + b"rest"]),
)
HASH_KEYS = st.one_of(st.integers(0, 2**128 - 1), st.sampled_from([0, 1, 2**32, 2**64, 2**96, 2**127, 2**128 - 1]))
TAGS = st.sampled_from([{"a": "b"}, {"name": "v" * 200}]).map(encode_tags)


@st.composite
def records(draw, kinds=("ordinary", "ordinary", "ordinary", "keyless", "hash key", "tags")):
    """Records of every kind; most are ordinary."""
    kind = draw(st.sampled_from(kinds))
    key = None if kind == "keyless" else draw(KEYS)
    hash_key = str(draw(HASH_KEYS)) if kind == "hash key" else None
    tags = draw(TAGS) if kind == "tags" else b""
    return BufferedRecord(draw(DATA), key, hash_key, draw(st.floats(0, 100)), tags=tags)


def copy_of(record):
    return BufferedRecord(
        record.data, record.key, record.explicit_hash_key, record.expires_at, tags=record.tags, waiters=record.waiters
    )
