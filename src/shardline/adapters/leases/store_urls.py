"""Creates the lease store that a URL names.

Invariants:

- A URL that does not have one of the forms below raises a ``UsageError`` that lists the forms. Nothing is guessed.
- No password gets into a message.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn, Protocol, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.aws.endpoints import parse_endpoint, shown_url
from shardline.errors import UsageError
from shardline.ports import LeaseCatalog, LeaseStore

FORMS: Final = (
    "memory:",
    "sqlite:///relative/path.db",
    "sqlite:////absolute/path.db",
    "redis://[user:password@]host[:port][/database]",
    "redis+sentinel://[user:password[,sentinel-user:sentinel-password]@]host[:port][,host...]/service[/database]",
    "redis+cluster://[user:password@]host[:port][,host...]",
    "rediss..://... (the same over TLS)",
    "postgresql://[user:password@]host[:port][/database]",
    "dynamodb://table[?region=...&endpoint_url=...&kcl_failover=...&kcl=auto|off]",
)
_NAME_MAX: Final = 256
_TABLE: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")  # DynamoDB's rule
_REGION: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_DYNAMODB_SETTINGS: Final = frozenset({"region", "endpoint_url", "kcl_failover", "kcl"})
_METHODS: Final = ("open", "list_leases", "apply", "close")


class _Store(LeaseStore, LeaseCatalog, Protocol):
    """The type of every lease store that a URL can name."""


def lease_store(store: object, *, group: str, stream: str, aws: AwsAccess, existing: bool = False) -> LeaseStore:
    """Return the store that a URL names, or ``store`` itself if it is a store. The store is not opened.

    Args:
        store: a URL in one of ``FORMS``, or a ``LeaseStore`` of this group and stream.
        group: the consumer group.
        stream: the stream, under the name that all workers of the group use.
        aws: the settings for AWS, used only by ``dynamodb://``. A region and an endpoint in the URL override them.
        existing: open only an existing file or table; never create one.

    Raises:
        UsageError: ``store`` is neither a URL nor a store, or an extra is not installed.
    """
    for name, value in (("group", group), ("stream", stream)):
        if not isinstance(value, str) or not 0 < len(value) <= _NAME_MAX or not value.isprintable():
            raise UsageError(f"{name} must be a text of 1 to {_NAME_MAX} printable characters, not {value!r}")
    if isinstance(store, str):
        return _from_url(store, group, stream, aws, existing=existing)
    if not all(callable(getattr(store, name, None)) for name in _METHODS):
        _refuse(f"store must be a URL or a lease store, not {type(store).__name__}")
    given = cast("LeaseStore", store)
    if (given.group, given.stream) != (group, stream):
        raise UsageError(
            f"the store belongs to group {given.group!r} on stream {given.stream!r}, not to {group!r} on {stream!r}"
        )
    return given


def lease_catalog(url: str, aws: AwsAccess) -> LeaseCatalog:
    """Return the store that ``url`` names, to list the groups in it. The store is not opened.

    Raises:
        UsageError: the URL does not name a store, or an extra is not installed.
    """
    return _from_url(url, "-", "-", aws, existing=True)


def _from_url(url: str, group: str, stream: str, aws: AwsAccess, *, existing: bool) -> _Store:
    match url.partition(":")[0].lower():
        case "memory":
            return _memory(url, group, stream)
        case "sqlite":
            return _sqlite(url, group, stream, existing=existing)
        case "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redis+sentinel" | "rediss+sentinel":
            return _redis(url, group, stream)
        case "postgresql" | "postgres":
            return _postgres(url, group, stream, existing=existing)
        case "dynamodb":
            return _dynamodb(url, group, stream, aws, existing=existing)
        case _:
            return _refuse(f"store {shown_url(url)} has an unknown scheme")


def _memory(url: str, group: str, stream: str) -> _Store:
    from shardline.adapters.leases.memory import MemoryLeases  # noqa: PLC0415 - a store's module is loaded when needed

    if url.lower() != "memory:":
        _refuse(f"store {shown_url(url)} is not 'memory:'")
    return MemoryLeases.shared(group, stream)


def _sqlite(url: str, group: str, stream: str, *, existing: bool) -> _Store:
    from shardline.adapters.leases.sqlite import SqliteLeases  # noqa: PLC0415

    path = unquote(url[len("sqlite:///") :])
    if not url.lower().startswith("sqlite:///") or "?" in url or "#" in url or path.strip("/") in {"", ":memory:"}:
        _refuse(f"store {shown_url(url)} names no file")
    if "\0" in path or path.endswith("/"):
        _refuse(f"store {shown_url(url)} names no file")
    return SqliteLeases(Path(path), group, stream, existing=existing)


def _redis(url: str, group: str, stream: str) -> _Store:
    try:
        from shardline.adapters.leases.redis import RedisLeases  # noqa: PLC0415 - an extra
        from shardline.adapters.leases.redis_servers import parse_address  # noqa: PLC0415
    except ImportError:
        raise UsageError("a store in Redis needs an extra: pip install 'shardline[redis]'") from None
    if parse_address(url) is None:
        _refuse(f"store {shown_url(url)} names no Redis database")
    return RedisLeases(url, group, stream)


def _postgres(url: str, group: str, stream: str, *, existing: bool) -> _Store:
    if not re.match(r"postgres(ql)?://[^/?#]", url, re.IGNORECASE):
        _refuse(f"store {shown_url(url)} names no PostgreSQL server")
    try:
        from shardline.adapters.leases.postgres import PostgresLeases  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("a store in PostgreSQL needs an extra: pip install 'shardline[postgres]'") from None
    return PostgresLeases(url, group, stream, existing=existing)


def _dynamodb(url: str, group: str, stream: str, aws: AwsAccess, *, existing: bool) -> _Store:
    from shardline.adapters.leases.dynamodb import KCL_FAILOVER, DynamoDbLeases  # noqa: PLC0415

    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        _refuse(f"store {shown_url(url)} is not a valid URL")
    if not _TABLE.fullmatch(parts.netloc) or parts.path not in {"", "/"} or parts.fragment:
        _refuse(f"store {shown_url(url)} names no table (3 to 255 of the characters a-z A-Z 0-9 _ . -)")
    settings = dict(given)
    if len(settings) != len(given) or not settings.keys() <= _DYNAMODB_SETTINGS:
        allowed = "region, endpoint_url, kcl_failover and kcl"
        _refuse(f"store {shown_url(url)} may have only the parameters {allowed}, each once")
    if settings.get("kcl", "auto") not in {"auto", "off"}:
        raise UsageError(f"the parameter kcl of a store must be 'auto' or 'off', not {settings['kcl']!r}")
    if "region" in settings and not _REGION.fullmatch(settings["region"]):
        raise UsageError(f"the region of a store must look like 'eu-west-1', not {settings['region']!r}")
    if "endpoint_url" in settings:
        try:
            parse_endpoint(settings["endpoint_url"])
        except UsageError as error:
            raise UsageError(f"store {shown_url(url)}: its {error}") from None
    access = replace(
        aws, region=settings.get("region", aws.region), endpoint_url=settings.get("endpoint_url", aws.endpoint_url)
    )
    failover: object = settings.get("kcl_failover", KCL_FAILOVER)
    if isinstance(failover, str) and _SECONDS.fullmatch(failover):
        failover = float(failover)
    kcl_failover = cast("float", failover)  # the store refuses any other value
    return DynamoDbLeases(
        access,
        parts.netloc,
        group,
        stream,
        existing=existing,
        kcl_failover=kcl_failover,
        follows_kcl=settings.get("kcl") != "off",
    )


def _refuse(problem: str) -> NoReturn:
    raise UsageError(f"{problem}; a store is one of: {', '.join(FORMS)}")
