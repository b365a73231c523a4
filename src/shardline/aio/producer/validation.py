"""Is this a record that can be put?

Invariants:

- P6: what is wrong with a record is said at ``put``, before it can share a request with good ones.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

from shardline.aio.client import Client
from shardline.codec.aggregation import is_framed
from shardline.core.producer.aggregate import KEYLESS_KEY_LENGTH, WRAP_MAX_BYTES, wrapped_bytes
from shardline.core.producer.producer_config import ProducerConfig
from shardline.errors import UsageError
from shardline.model.hashing import check_partition_key, parse_explicit_hash_key
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH
from shardline.model.record import check_data

Serializer = Callable[[Any], bytes]


def check_record(
    data: object, key: object, explicit_hash_key: object, max_bytes: int
) -> tuple[bytes, str | None, str | None]:
    """The data of a record as bytes, its key and explicit hash key as plain ``str``: not every encoder takes others.

    Raises:
        UsageError: the data is not bytes, the key is no partition key, the explicit hash key is none, or together
            they are larger than a record of the stream may be.
    """
    payload = check_data(data)
    size = len(payload)
    plain_key = plain_hash_key = None
    if key is None:
        size += KEYLESS_KEY_LENGTH
    else:
        plain_key = check_partition_key(key)
        size += len(plain_key.encode())
    if explicit_hash_key is not None:
        if key is None:
            raise UsageError("an explicit hash key goes with a key: a record without a key goes where there is room")
        plain_hash_key = str(parse_explicit_hash_key(explicit_hash_key))  # a valid one is canonical: the same text
    wrapping = 0
    if max_bytes - WRAP_MAX_BYTES < size <= max_bytes:
        wrapping = max(0, wrapped_bytes(payload, plain_key, plain_hash_key) - size) if is_framed(payload) else 0
    if size + wrapping > max_bytes:
        more = " with the key that it gets" if key is None else ""
        more += f", and {wrapping} to wrap it: its data is an aggregate itself" if wrapping else ""
        most = f"a record of this stream takes at most {max_bytes} bytes with its key"
        raise UsageError(f"{most}, this one has {size}{more}")
    return payload, plain_key, plain_hash_key


def serialized(serializer: Serializer, data: object) -> bytes:
    """What the user's serializer makes of ``data``.

    Raises:
        UsageError: it makes something other than bytes. What it raises itself is passed on.
    """
    payload = serializer(data)
    try:
        return check_data(payload)
    except UsageError as error:
        raise UsageError(f"the serializer's result: {error}") from None


def tuples(
    records: object, serializer: Serializer | None, max_bytes: int
) -> list[tuple[str | None, bytes, str | None]]:
    """Many records as (key, data, explicit hash key), each of them checked.

    Raises:
        UsageError: it is no iterable of tuples, or one of them is wrong; the message says which.
    """
    try:
        given: Iterator[Any] = iter(cast("Any", records))
    except TypeError:
        raise UsageError(f"records must be an iterable of (key, data) tuples, not {type(records).__name__}") from None
    checked: list[tuple[str | None, bytes, str | None]] = []
    for place, record in enumerate(given):
        if serializer is None and _is_plain(record, max_bytes):
            checked.append((record[0], record[1], None))
            continue
        try:
            key, data, explicit_hash_key = _fields(record)
            payload = data if serializer is None else serialized(serializer, data)
            payload, key, explicit_hash_key = check_record(payload, key, explicit_hash_key, max_bytes)
            checked.append((key, payload, explicit_hash_key))
        except UsageError as error:
            raise UsageError(f"record {place}: {error}") from None
    return checked


def _is_plain(record: Any, max_bytes: int) -> bool:
    """Whether nothing can be wrong with it: nearly all records, in a fifth of the time of ``check_record``."""
    if not issubclass(type(record), tuple) or len(record) != 2:  # noqa: PLR2004
        return False
    key, data = record
    if key is None:
        return type(data) is bytes and len(data) <= max_bytes - WRAP_MAX_BYTES
    return (
        type(data) is bytes
        and type(key) is str
        and 0 < len(key) <= PARTITION_KEY_MAX_LENGTH
        and key.isascii()
        and len(data) + len(key) <= max_bytes - WRAP_MAX_BYTES
    )


def _fields(record: Any) -> tuple[Any, Any, Any]:
    if issubclass(type(record), tuple) and len(record) in {2, 3}:
        return record if len(record) == 3 else (*record, None)  # noqa: PLR2004
    raise UsageError("not a tuple of (key or None, data[, explicit hash key])")


def check_config(config: object) -> ProducerConfig:
    if config is None:
        return ProducerConfig()
    if not isinstance(config, ProducerConfig):
        raise UsageError(f"config must be a ProducerConfig, not {type(config).__name__}")
    return config


def check_callable(name: str, given: Any) -> Any:
    if given is not None and not callable(given):
        raise UsageError(f"{name} must be callable, not {type(given).__name__}")
    return given


def check_timeout(name: str, seconds: object) -> float | None:
    if seconds is None:
        return None
    expected = f"{name} must be a number of seconds from 0, or None, not"
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise UsageError(f"{expected} {seconds!r}")
    try:
        limit = float(seconds)
    except OverflowError:
        raise UsageError(f"{expected} an int that no float can hold") from None
    if not limit >= 0:
        raise UsageError(f"{expected} {seconds!r}")
    return limit


def check_client(facade: str, client: object, connection: dict[str, Any]) -> tuple[Client, bool]:
    """The client of a ``Producer`` or ``Consumer``, and whether it is its own."""
    if client is None:
        try:
            return Client(**connection), True
        except TypeError as error:
            raise UsageError(f"not an argument of {facade} or Client: {error}") from None
    if not isinstance(client, Client):
        raise UsageError(f"client must be a shardline.Client, not {type(client).__name__}")
    if connection:
        raise UsageError(f"{', '.join(sorted(connection))}: goes with no client, which says how to connect")
    return client, False
