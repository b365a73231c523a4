"""Checks the arguments of ``LocalKinesis``.

An invalid argument raises a ``UsageError`` that names the argument, its value, and the allowed values.
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Final, TypeGuard, cast

from shardline.errors import UsageError
from shardline.server.access import Access, host_of
from shardline.server.model.inputs import DATA_PLANE
from shardline.server.model.settings import Delays, Limits

_SHARDS_MAX: Final = 10_000
_DELAY_MAX: Final = 31_536_000  # a year
_LIMIT_MAX: Final = 1_000_000_000_000
_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d{1,2}")
_STREAM: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_ACCOUNT: Final = re.compile(r"\d{12}")


def check_shards(shards: object) -> int:
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= _SHARDS_MAX:
        raise UsageError(f"shards must be a whole number from 1 to {_SHARDS_MAX}, not {shards!r}")
    return shards


def check_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} must be True or False, not {value!r}")


def check_place(*, host: object, region: object, account_id: object) -> None:
    """Check where the server listens, and the region and the account that it emulates."""
    if not isinstance(host, str) or not host or any(character in host for character in " /@[]"):
        raise UsageError(f"host must be a name or an address such as '127.0.0.1', not {host!r}")
    if not isinstance(region, str) or not _REGION.fullmatch(region):
        raise UsageError(f"region must be a region name such as 'us-east-1', not {region!r}")
    if not isinstance(account_id, str) or not _ACCOUNT.fullmatch(account_id):
        raise UsageError(f"account_id must be a str of 12 digits, not {account_id!r}")


def check_access(allow_host: object, host: str, token: object) -> Access:
    """Return the access rules. Clients may use the allowed hosts, the host that the server binds to, and IP
    addresses.
    """
    return Access([*_as_list(allow_host), *_as_list(host_of(host))], token=token)


def _as_list(given: object) -> list[object]:
    """Return one or several values as a list, and ``None`` as an empty list."""
    if given is None:
        return []
    has_several = isinstance(given, Iterable) and not isinstance(given, str)
    return list(cast("Iterable[object]", given)) if has_several else [given]


def check_seed(seed: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UsageError(f"seed must be a whole number, not {seed!r}")


def check_data(data: object) -> Path | None:
    if data is None:
        return None
    if not isinstance(data, (str, Path)) or not str(data) or "\0" in str(data):
        raise UsageError(f"data must be the path of a file, or None, not {data!r}")
    if Path(data).is_dir():
        raise UsageError(f"data must be the path of a file, but {data} is a directory")
    return Path(data)


def check_stream(stream: object) -> str:
    if not isinstance(stream, str) or not _STREAM.fullmatch(stream):
        allowed = "1 to 128 of the characters a-z, A-Z, 0-9, '_', '.' and '-'"
        raise UsageError(f"a stream's name must be {allowed}, not {stream!r}")
    return stream


def check_streams(streams: object) -> list[str]:
    """Return the names of the given streams, as a list that may be empty."""
    return [check_stream(name) for name in _as_list(streams)]


def check_delays(delays: object) -> Delays:
    if delays is None:
        return Delays()
    if not isinstance(delays, Delays):
        raise UsageError(f"delays must be a Delays, or None, not {delays!r}")
    for field in fields(delays):
        value: object = getattr(delays, field.name)
        if not (_is_number(value) and 0 <= value <= _DELAY_MAX):
            raise UsageError(f"delays.{field.name} must be a number of seconds from 0 to {_DELAY_MAX}, not {value!r}")
    return delays


def check_limits(limits: object) -> Limits:
    if isinstance(limits, bool):
        return Limits() if limits else Limits.without_rates()
    if not isinstance(limits, Limits):
        raise UsageError(f"limits must be True, False or a Limits, not {limits!r}")
    values: dict[str, object] = {field.name: getattr(limits, field.name) for field in fields(limits)}
    rates = values.pop("control_calls_per_second")
    if not isinstance(rates, dict):
        raise UsageError(f"limits.control_calls_per_second must map operations to rates, not {rates!r}")
    for name in DATA_PLANE.intersection(cast("dict[str, object]", rates)):
        raise UsageError(f"limits.control_calls_per_second cannot have {name}: Kinesis limits it per shard")
    for name, value in (values | cast("dict[str, object]", rates)).items():
        if value is not None and not (_is_number(value) and 0 < value <= _LIMIT_MAX):
            allowed = f"a number above 0, up to {_LIMIT_MAX}, or None for no limit"
            raise UsageError(f"limits: {name} must be {allowed}, not {value!r}")
    return limits


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
