"""Validates records and the arguments of a producer.

Invariants:

- P6: ``put`` refuses an invalid record, before it can share a request with valid ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from typing import TypeVar as PlainTypeVar

from shardline._speedups import twin
from shardline.aio.client import Client
from shardline.codec.aggregation import is_framed
from shardline.codec.value_packing import Packing
from shardline.core.producer.aggregate import KEYLESS_KEY_LENGTH, WRAP_MAX_BYTES, bytes_alone
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import OptionalTags
from shardline.errors import UsageError
from shardline.model.hashing import check_partition_key, parse_explicit_hash_key
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH, RECORD_DEFAULT_MAX_BYTES
from shardline.model.record import check_data, options_of_tuple

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    DataT_contra = TypeVar("DataT_contra", contravariant=True, default=bytes)
    SerializedT = TypeVar("SerializedT", default=Any)
else:  # type checkers know the defaults of type variables; at run time, only Python 3.13 and later do
    from typing import TypeVar

    DataT_contra = TypeVar("DataT_contra", contravariant=True)
    SerializedT = TypeVar("SerializedT")

Serializer: TypeAlias = Callable[[Any], bytes]
_D = PlainTypeVar("_D")


def check_record(
    data: object,
    key: object,
    explicit_hash_key: object,
    max_bytes: int,
    packing: Packing | None = None,
    *,
    tags: bytes = b"",
    stamp: bytes = b"",
) -> tuple[bytes, str | None, str | None]:
    """Return the data of a record as bytes, and its key and explicit hash key as plain ``str``.

    ``stamp`` is a stamp like the one that the record will get, if the producer stamps its records (``dedup``).

    Subclasses of ``str`` are converted, because some encoders refuse them.

    Raises:
        UsageError: the data is not bytes, the key or the explicit hash key is invalid, or the record is larger than
            the stream accepts.
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
            raise UsageError(
                "an explicit hash key needs a key: the producer chooses the hash key of a record without a key"
            )
        plain_hash_key = str(
            parse_explicit_hash_key(explicit_hash_key)
        )  # a valid hash key has only one spelling, so the text stays the same
    wrapping = 0
    is_near_limit = max_bytes - WRAP_MAX_BYTES - len(tags) < size <= max_bytes
    all_tags = stamp + tags
    if is_near_limit and (packing is not None or all_tags or is_framed(payload)):
        wrapping = max(0, bytes_alone(payload, plain_key, plain_hash_key, packing, all_tags) - size)
    if size + wrapping > max_bytes:
        details = " with its generated key" if key is None else ""
        reason = "because its data is itself an aggregate" if packing is None else f"packed as {packing.name}"
        reason = "for its headers" if tags else "for its stamp (dedup=True)" if stamp else reason
        details += f", and needs {wrapping} more, {reason}" if wrapping else ""
        limit = f"a record of this stream takes at most {max_bytes} bytes with its key"
        raise UsageError(f"{limit}, this one has {size}{details}")
    return payload, plain_key, plain_hash_key


def check_tagged_record(
    data: object,
    key: object,
    explicit_hash_key: object,
    max_bytes: int,
    packing: Packing | None,
    *,
    tags: bytes,
    stamp: bytes,
) -> tuple[bytes, str | None, str | None, bytes]:
    """Like ``check_record``, but also return the tags. Tags of a trace are left out unless they are certain to fit."""
    if tags and type(tags) is OptionalTags:
        checked = check_record(data, key, explicit_hash_key, max_bytes, packing, stamp=stamp)
        size = len(checked[0]) + (KEYLESS_KEY_LENGTH if checked[1] is None else len(checked[1].encode()))
        # Before the stream's limit is known, ``max_bytes`` is the highest limit that a stream can have. Most streams
        # have the default.
        limit = min(max_bytes, RECORD_DEFAULT_MAX_BYTES) if size <= RECORD_DEFAULT_MAX_BYTES else max_bytes
        return (*checked, tags if size + len(tags) + WRAP_MAX_BYTES <= limit else b"")
    return (*check_record(data, key, explicit_hash_key, max_bytes, packing, tags=tags, stamp=stamp), tags)


def serialized(serializer: Serializer, data: object) -> bytes:
    """Return the data as serialized by the user's serializer. Exceptions of the serializer are not caught.

    Raises:
        UsageError: the serializer did not return bytes.
    """
    payload = serializer(data)
    try:
        return check_data(payload)
    except UsageError as error:
        raise UsageError(f"the serializer returned invalid data: {error}") from None


def packing_serializer(serializer: Serializer | None, packing: Packing | None) -> Serializer | None:
    """Return a serializer that also checks its result against the packing format, or ``serializer`` itself if the
    format needs no check.
    """
    check = None if packing is None else packing.check
    if check is None:
        return serializer

    def serialize_and_check(data: object) -> bytes:
        payload = check_data(data) if serializer is None else serialized(serializer, data)
        check(payload)
        return payload

    return serialize_and_check


def check_item(
    record: object,
    serializer: Serializer | None,
    max_bytes: int,
    packing: Packing | None,
    tags_of: Callable[[Any], bytes],
    *,
    stamp: bytes = b"",
) -> tuple[str | None, bytes, str | None, bytes]:
    """Validate a record for ``put_many``, and return it as a tuple of (key, data, explicit hash key, tags).

    Raises:
        UsageError: the record is not a tuple for ``put_many``, or is invalid.
    """
    key, data, explicit_hash_key, headers = fields_of(record)
    payload = data if serializer is None else serialized(serializer, data)
    tags = tags_of(headers)
    checked = check_tagged_record(payload, key, explicit_hash_key, max_bytes, packing, tags=tags, stamp=stamp)
    payload, key, explicit_hash_key, tags = checked
    return key, payload, explicit_hash_key, tags


def is_plain(record: Any, max_bytes: int) -> bool:
    """Return whether a quick check proves the record valid. The check covers the common case in a fifth of the time of
    ``check_record``. All other records need ``check_record``.
    """
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


@twin
def make_plain(delivery_type: type[_D], items: list[Any], max_bytes: int, key_max_length: int, /) -> list[_D]:  # noqa: ARG001
    """Return the deliveries of the first items, up to the first item that is not known to be valid.

    ``max_bytes`` limits the data and the key together. The pure form returns no deliveries, so ``is_plain`` looks at
    every item: only the compiled form looks ahead.
    """
    return []


def fields_of(record: Any) -> tuple[Any, Any, Any, Any]:
    """Return the key, data, explicit hash key and headers of a record for ``put_many``."""
    if issubclass(type(record), tuple) and len(record) in {2, 3, 4}:
        return (record[0], record[1], *options_of_tuple(record))
    raise UsageError("not a tuple of (key or None, data[, explicit hash key][, headers])")


def check_config(config: object, packing: Any = None, dedup: Any = None) -> ProducerConfig:
    """Return the settings of a producer. ``packing`` and ``dedup``, if set, replace the settings of the same names."""
    if config is None:
        config = ProducerConfig()
    if not isinstance(config, ProducerConfig):
        raise UsageError(f"config must be a ProducerConfig, not {type(config).__name__}")
    changes = {"packing": packing, "dedup": dedup}
    changes = {name: value for name, value in changes.items() if value is not None}
    return replace(config, **changes) if changes else config


def check_callable(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise UsageError(f"{name} must be callable, not {type(value).__name__}")
    return value


def check_timeout(name: str, seconds: object) -> float | None:
    if seconds is None:
        return None
    expected = f"{name} must be a number of seconds, 0 or more, or None, not"
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise UsageError(f"{expected} {seconds!r}")
    try:
        limit = float(seconds)
    except OverflowError:
        raise UsageError(f"{expected} an int that is too large for a float") from None
    if not limit >= 0:
        raise UsageError(f"{expected} {seconds!r}")
    return limit


def check_client(facade: str, client: object, connection: Mapping[str, Any]) -> tuple[Client, bool]:
    """Return the client of a ``Producer`` or ``Consumer``, and whether this function created the client."""
    if "sink" in connection:
        raise UsageError(f"{facade} takes no sink=, but a list: pass sinks=[...]")
    if client is None:
        try:
            return Client(**connection), True
        except TypeError as error:
            raise UsageError(f"neither {facade} nor Client takes this argument: {error}") from None
    if not isinstance(client, Client):
        raise UsageError(f"client must be a shardline.Client, not {type(client).__name__}")
    if connection:
        raise UsageError(
            f"{', '.join(sorted(connection))}: cannot be combined with client=, which has its own connection settings"
        )
    return client, False
