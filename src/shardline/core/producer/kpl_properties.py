"""Translates a KPL properties file into the settings of a producer.

The KPL's ``KinesisProducerConfiguration`` reads Java properties. This module translates the properties that have a
counterpart in Shardline, and explains why each other property has no counterpart. No property is dropped silently.

Invariants:

- Every property of the KPL 1.0 is either translated or explained. A property that the KPL does not know is an error.
- Milliseconds become seconds. A rate limit in per cent becomes rates per shard.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from shardline.errors import UsageError
from shardline.model.limits import (
    AGGREGATE_HIGHEST_MAX_BYTES,
    MIB,
    PUT_RECORDS_MAX_BYTES,
    SHARD_WRITE_BYTES_PER_SECOND,
    SHARD_WRITE_RECORDS_PER_SECOND,
)

_LINE: Final = re.compile(r"([^\s=:]+)\s*[=:\s]\s*(.*)")
# ``str.splitlines`` would not do: it also splits at other characters, which a UTF-8 comment that is read as Latin-1 may
# contain.
_END_OF_LINE: Final = re.compile(r"\r\n?|\n")
_UNLIMITED_COUNT: Final = 4_294_967_295  # the KPL's default: no limit

_YEAR: Final = 365 * 86_400.0  # caps RecordTtl; the KPL accepts longer TTLs, but these make no difference


def _seconds(text: str) -> float:
    return int(text) / 1000


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _count(text: str) -> int | None:
    return None if int(text) >= _UNLIMITED_COUNT else int(text)


# Maps a property to our setting and to the function that reads the property's value.
_SETTINGS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "AggregationEnabled": ("aggregation", _flag),
    "AggregationMaxCount": ("aggregate_max_count", _count),
    "AggregationMaxSize": ("aggregate_max_bytes", lambda text: min(int(text), AGGREGATE_HIGHEST_MAX_BYTES)),
    "CollectionMaxCount": ("request_max_entries", int),
    "CollectionMaxSize": ("request_max_bytes", lambda text: min(int(text), PUT_RECORDS_MAX_BYTES)),
    "FailIfThrottled": ("fail_if_throttled", _flag),
    "MaxConnections": ("max_in_flight", int),
    "MaxUserRecordSize": ("record_max_bytes", int),
    "RecordMaxBufferedTime": ("linger", _seconds),
    "RecordTtl": ("record_ttl", lambda text: min(_seconds(text), _YEAR)),
}

_CLIENT: Final = "belongs to the client: pass it to Producer or Client as"
_NO_DAEMON: Final = "has no counterpart: there is no native process"
_SINK: Final = "belongs to the sinks: CloudWatchSink can send the KPL's metrics"
_ALWAYS: Final = "is always on"

_EXPLAINED: Final[dict[str, str]] = {
    "CaCertFile": f"{_CLIENT} verify=",
    "CaCertPath": f"{_CLIENT} verify=",
    "CloudwatchEndpoint": _SINK,
    "CloudwatchPort": _SINK,
    "ConnectTimeout": f"{_CLIENT} connect_timeout= (seconds)",
    "CredentialsRefreshDelay": "has no counterpart: credentials are refreshed when they need to be",
    "DaemonHealthCheckTimeoutMs": _NO_DAEMON,
    "EnableCoreDumps": _NO_DAEMON,
    "EnableDaemonHealthCheck": _NO_DAEMON,
    "EnableOldestFutureTracker": "has no counterpart: Producer.stats() reports the age of the oldest record",
    "GlueSchemaRegistryPropertiesFilePath": "has no counterpart: encode with serializer=",
    "KinesisEndpoint": f"{_CLIENT} endpoint_url=",
    "KinesisPort": f"{_CLIENT} endpoint_url=",
    "LogLevel": "has no counterpart: the loggers are shardline.*, set their level with the logging module",
    "MetricsGranularity": _SINK,
    "MetricsLevel": _SINK,
    "MetricsNamespace": _SINK,
    "MetricsUploadDelay": _SINK,
    "MinConnections": "has no counterpart: the KPL does not use it either",
    "NativeExecutable": _NO_DAEMON,
    "ProxyHost": f"{_CLIENT} proxies=",
    "ProxyPassword": f"{_CLIENT} proxies=",
    "ProxyPort": f"{_CLIENT} proxies=",
    "ProxyUserName": f"{_CLIENT} proxies=",
    "Region": f"{_CLIENT} region=",
    "RequestTimeout": f"{_CLIENT} read_timeout= (seconds)",
    "ReturnUserRecordOnFailure": f"{_ALWAYS}: a failed delivery keeps its data",
    "StsEndpoint": "has no counterpart: the KPL does not use it either",
    "StsPort": "has no counterpart: the KPL does not use it either",
    "TempDirectory": _NO_DAEMON,
    "ThreadingModel": _NO_DAEMON,
    "ThreadPoolSize": _NO_DAEMON,
    "UserRecordTimeoutInMillis": "has no counterpart: wait with a timeout, or lower record_ttl",
    "VerifyCertificate": f"{_CLIENT} verify=",
}


def translate(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings under their Shardline names, and a sentence about each untranslated property.

    Raises:
        UsageError: a line is not a property, the KPL does not know a property, or a value cannot be read.
    """
    settings: dict[str, Any] = {}
    untranslated: list[str] = []
    for name, value in _properties(text):
        try:
            if name == "RateLimit":
                settings["records_per_second"] = SHARD_WRITE_RECORDS_PER_SECOND * int(value) / 100
                settings["bytes_per_second"] = SHARD_WRITE_BYTES_PER_SECOND * int(value) / 100
            elif name in _SETTINGS:
                setting, read = _SETTINGS[name]
                settings[setting] = read(value)
            elif name in _EXPLAINED:
                untranslated.append(f"{name} {_EXPLAINED[name]}")
            else:
                raise UsageError(f"the KPL has no property {name!r}")
        except (ValueError, KeyError, OverflowError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"the property {name} has a value that cannot be read: {value[:80]!r}") from None
    if settings.get("aggregate_max_bytes", 0) > settings.get("request_max_bytes", MIB):
        settings["request_max_bytes"] = settings["aggregate_max_bytes"]
    return settings, tuple(untranslated)


def _properties(text: str) -> list[tuple[str, str]]:
    """Return the names and values in a Java properties file.

    The format has comments, lines that continue on the next line, and ``=``, ``:`` or a space as the separator.
    """
    found: list[tuple[str, str]] = []
    lines = iter(_END_OF_LINE.split(text))
    for line in lines:
        whole = line.lstrip()
        if not whole or whole[0] in "#!":  # a comment is never continued
            continue
        while _ends_open(whole):
            whole = whole[:-1] + next(lines, "").lstrip()
        match = _LINE.fullmatch(whole.rstrip())
        if match is None:
            raise UsageError(f"not a property: {whole[:80]!r}")
        found.append((match[1], match[2]))
    return found


def _ends_open(line: str) -> bool:
    """Return whether the next line continues this line, that is, whether this line ends with an odd number of
    backslashes.
    """
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1
