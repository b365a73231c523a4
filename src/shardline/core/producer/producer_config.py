"""The settings of a producer.

Invariants:

- A config is always valid, and never changes. An invalid value raises a ``UsageError`` that names the field, the value
  and the allowed values.
- The default rates are the service's own limits per shard. ``model/limits.py`` defines them and the limits of an
  aggregate.
"""

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, final

from shardline.codec.value_packing import PACKINGS, PackingName
from shardline.core.producer.kpl_properties import translate
from shardline.core.setting_checks import check_choice, check_number
from shardline.errors import UsageError
from shardline.model.limits import (
    AGGREGATE_DEFAULT_MAX_BYTES,
    AGGREGATE_DEFAULT_MAX_COUNT,
    AGGREGATE_HIGHEST_MAX_BYTES,
    AGGREGATE_LOWEST_MAX_BYTES,
    KIB,
    MIB,
    PUT_RECORDS_MAX_BYTES,
    PUT_RECORDS_MAX_ENTRIES,
    RECORD_DEFAULT_MAX_BYTES,
    RECORD_HIGHEST_MAX_BYTES,
    SHARD_WRITE_BYTES_PER_SECOND,
    SHARD_WRITE_RECORDS_PER_SECOND,
)

if TYPE_CHECKING:
    from os import PathLike

_LONG: Final = 365 * 86_400.0  # a year: longer than any sensible duration, but finite
_TTL_LOWEST: Final = 0.001
_MANY: Final = 10**12
FORCE: Final = "force"
"""The value of ``aggregation`` that aggregates even if the stream has channels."""


def _setting(default: Any, lowest: float, highest: float, about: str, *, optional: bool = False) -> Any:
    """Return a field for a number in a range. A field with a float default also accepts whole numbers."""
    whole = not isinstance(default, float) and (default is not None or optional)
    rules = {"lowest": lowest, "highest": highest, "whole": whole, "optional": optional, "about": about}
    return field(default=default, metadata=rules)


def _switch(*, default: bool, about: str) -> Any:
    return field(default=default, metadata={"about": about})


def _check_setting(name: str, value: object, rules: dict[str, Any]) -> None:
    """Check one value against the metadata of its field. A field without metadata is not a setting."""
    about = rules.pop("about", None)
    if "choices" in rules:
        check_choice(name, value, *rules["choices"], None)
    elif "or" in rules:
        if not isinstance(value, bool) and value != rules["or"]:
            raise UsageError(f"{name} must be True, False or {rules['or']!r}, not {value!r}")
    elif rules:
        check_number(name, value, **rules)
    elif about is not None and not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, not {value!r}")


@final
class SettingChanges(NamedTuple):
    """The settings that can change while a producer runs. ``None`` means that a setting stays the same."""

    linger: float | None = None
    records_per_second: float | None = None
    bytes_per_second: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Every setting of a producer. Durations are in seconds, and rates are per shard.

    A config never changes. ``dataclasses.replace`` makes a changed copy. The settings page of the documentation
    explains when to change each setting.
    """

    linger: float = _setting(
        0.1, 0.0, 3600.0, "The longest time a record waits for others to share its request. Less than record_ttl."
    )
    record_ttl: float = _setting(30.0, _TTL_LOWEST, _LONG, "A record that is not stored within this time fails.")
    aggregation: bool | Literal["force"] = field(
        default=True,
        metadata={
            "about": "Packs records for the same shard into one Kinesis record, in the KPL's format. A stream with "
            'channels gets no aggregates, except with "force".',
            "or": FORCE,
        },
    )
    packing: PackingName | None = field(
        default=None,
        metadata={
            "about": "Packs records of the same key into one Kinesis record in this format, instead of the KPL's.",
            "choices": tuple(PACKINGS),
        },
    )
    aggregate_max_bytes: int = _setting(
        AGGREGATE_DEFAULT_MAX_BYTES,
        AGGREGATE_LOWEST_MAX_BYTES,
        AGGREGATE_HIGHEST_MAX_BYTES,
        "The size at which an aggregate or a packed record is full.",
    )
    aggregate_max_count: int | None = _setting(
        AGGREGATE_DEFAULT_MAX_COUNT,
        1,
        _MANY,
        "The number of records at which an aggregate or a packed record is full.",
        optional=True,
    )
    request_max_entries: int = _setting(
        PUT_RECORDS_MAX_ENTRIES, 1, PUT_RECORDS_MAX_ENTRIES, "The number of entries at which a request is full."
    )
    request_max_bytes: int = _setting(1 * MIB, 1 * KIB, PUT_RECORDS_MAX_BYTES, "The size at which a request is full.")
    shard_burst_bytes: int = _setting(
        256 * KIB,
        1,
        _MANY,
        "When this much data waits for one shard, it is sent immediately, even if the request is not full.",
    )
    records_per_second: float = _setting(
        SHARD_WRITE_RECORDS_PER_SECOND, 0.001, _MANY, "Entries per second that the producer sends to a shard."
    )
    bytes_per_second: float = _setting(
        SHARD_WRITE_BYTES_PER_SECOND, 1.0, _MANY, "Bytes per second that the producer sends to a shard."
    )
    max_in_flight: int = _setting(24, 1, 10_000, "The number of concurrent requests.")
    isolation_calls_per_second: int = _setting(
        100,
        1,
        10_000,
        "Calls per second that the producer may spend on isolating invalid records while these calls deliver nothing.",
    )
    buffer_max_bytes: int = _setting(
        64 * MIB,
        1 * KIB,
        _MANY,
        "Bytes of undelivered data, plus one per character of their keys, at which put waits.",
    )
    buffer_max_records: int = _setting(100_000, 1, _MANY, "The number of undelivered records at which put waits.")
    record_max_bytes: int | None = _setting(
        None,
        1,
        RECORD_HIGHEST_MAX_BYTES,
        "The largest record that put accepts. If unset, the producer uses the stream's own limit.",
        optional=True,
    )
    ordered: bool = _switch(default=False, about="Keeps the order of each key's records, even when they are retried.")
    dedup: bool = _switch(
        default=False,
        about="Stamps each record, so that consumers can drop the copies that retries stored.",
    )
    fail_if_throttled: bool = _switch(default=False, about="A throttled record fails immediately.")
    max_attempts: int | None = _setting(None, 1, _MANY, "A record fails after this many attempts.", optional=True)
    retry_backoff: float = _setting(
        0.1, 0.001, 3600.0, "The pause after the first failure. Each further failure doubles it."
    )
    retry_backoff_max: float = _setting(5.0, 0.001, 3600.0, "The longest pause between two attempts.")
    closed_shard_ttl: float = _setting(
        60.0, 0.0, 3600.0, "How long the producer remembers the hash range of a closed shard."
    )
    untranslated: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """A sentence about each property that ``from_kpl_properties`` found and could not translate."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_setting(setting.name, getattr(self, setting.name), dict(setting.metadata))
        if self.linger >= self.record_ttl:  # a record that expires when it becomes due is never sent
            raise UsageError(
                f"linger must be less than record_ttl: {self.linger!r} is not less than {self.record_ttl!r}"
            )
        if self.packing is not None and not self.aggregation:
            raise UsageError(
                "packing needs aggregation=True. To send one value in each packed record, set aggregate_max_count=1"
            )
        if self.dedup and self.headers_refusal is not None:
            raise UsageError(f"dedup=True stamps each record in a header, and {self.headers_refusal}")
        for smaller, larger in (
            ("retry_backoff", "retry_backoff_max"),
            ("aggregate_max_bytes", "request_max_bytes"),
        ):
            low, high = getattr(self, smaller), getattr(self, larger)
            if low > high:
                raise UsageError(f"{smaller} must be at most {larger}: {low!r} is more than {high!r}")

    @classmethod
    def from_kpl_properties(cls, path: "str | PathLike[str]", **changes: Any) -> Self:
        """Read the settings from a KPL properties file (``KinesisProducerConfiguration``).

        ``untranslated`` explains the properties that have no counterpart.

        Args:
            path: the file.
            changes: further settings, under their Shardline names. These settings override the file.

        Raises:
            UsageError: a property is unknown, or has a value that the KPL or Shardline does not allow.
            OSError: the file cannot be read.
        """
        with open(path, encoding="latin-1") as file:  # noqa: PTH123 - core/ must not import pathlib
            text = file.read()
        settings, untranslated = translate(text)
        taken: dict[str, Any] = {**settings, "untranslated": untranslated, **changes}
        return cls(**taken)

    def changed(self, changes: SettingChanges) -> Self:
        """Return a copy of the settings with these changes.

        Raises:
            UsageError: a value is invalid.
        """
        given: dict[str, Any] = {name: value for name, value in changes._asdict().items() if value is not None}
        return replace(self, **given)

    def extra_ttl(self, ttl: object) -> float:
        """Return how much longer than ``record_ttl`` a record with this TTL lives. A TTL of ``None`` is ``record_ttl``.

        Raises:
            UsageError: the TTL is not a number in the range that ``record_ttl`` allows, or is not more than ``linger``.
        """
        if ttl is None:
            return 0.0
        check_number("ttl", ttl, _TTL_LOWEST, _LONG)
        assert isinstance(ttl, (int, float))
        if ttl <= self.linger:  # a record that expires when it becomes due is never sent
            raise UsageError(f"ttl must be more than linger: {ttl!r} is not more than {self.linger!r}")
        return ttl - self.record_ttl

    @property
    def headers_refusal(self) -> str | None:
        """Why these settings do not allow headers, or ``None`` if headers are allowed."""
        if self.packing is not None:
            return f"headers are sent in the KPL's aggregates, and packing={self.packing!r} replaces those"
        return None if self.aggregation else "headers are sent in aggregates, and aggregation=False allows none"

    @property
    def heeds_channels(self) -> bool:
        """Whether to stop aggregating if the stream has channels."""
        return self.aggregation is True and self.packing is None

    @property
    def known_record_max_bytes(self) -> int:
        """The limit for the size of a record that applies until the stream's summary has been read."""
        return RECORD_DEFAULT_MAX_BYTES if self.record_max_bytes is None else self.record_max_bytes
