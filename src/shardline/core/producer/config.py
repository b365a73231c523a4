"""How shall a producer behave?

Invariants:

- Y1: a config is valid from the moment it exists: a wrong value is a ``UsageError`` that names the field, the value and
  what is allowed. It never changes.
- Y2: the defaults keep the service's own limits per shard.
"""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Self, final

from shardline.core.producer.kpl_properties import translate
from shardline.errors import UsageError
from shardline.model.limits import (
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

_LONG: Final = 365 * 86_400.0  # a year: longer than any sensible time, and finite
_MANY: Final = 10**12


def _setting(default: Any, lowest: float, highest: float, about: str, *, optional: bool = False) -> Any:
    """A number and its range. A float takes whole numbers too."""
    whole = not isinstance(default, float) and (default is not None or optional)
    rules = {"lowest": lowest, "highest": highest, "whole": whole, "optional": optional, "about": about}
    return field(default=default, metadata=rules)


def _switch(*, default: bool, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The knobs of a producer. Times are seconds; rates are per shard and second.

    ``dataclasses.replace`` makes a changed copy. What each knob costs and brings stands in the producer's page.
    """

    linger: float = _setting(0.1, 0.0, 3600.0, "how long a record may wait for company; less than record_ttl")
    record_ttl: float = _setting(30.0, 0.001, _LONG, "how long a record is tried before it is given up")
    aggregation: bool = _switch(default=True, about="pack records of one shard into one entry, in the KPL's format")
    aggregate_max_bytes: int = _setting(51_200, 64, RECORD_HIGHEST_MAX_BYTES - KIB, "the size of a full aggregate")
    aggregate_max_count: int | None = _setting(None, 1, _MANY, "records in a full aggregate", optional=True)
    request_max_entries: int = _setting(
        PUT_RECORDS_MAX_ENTRIES, 1, PUT_RECORDS_MAX_ENTRIES, "entries in a full request"
    )
    request_max_bytes: int = _setting(1 * MIB, 1 * KIB, PUT_RECORDS_MAX_BYTES, "the size of a full request")
    shard_burst_bytes: int = _setting(256 * KIB, 1, _MANY, "bytes waiting for one shard that send a request at once")
    records_per_second: float = _setting(SHARD_WRITE_RECORDS_PER_SECOND, 0.001, _MANY, "entries sent to a shard")
    bytes_per_second: float = _setting(SHARD_WRITE_BYTES_PER_SECOND, 1.0, _MANY, "bytes sent to a shard")
    max_in_flight: int = _setting(24, 1, 10_000, "requests under way at a time")
    isolation_calls_per_second: int = _setting(
        100, 1, 10_000, "calls that may be spent on finding invalid records while none delivers anything; per producer"
    )
    buffer_max_bytes: int = _setting(
        64 * MIB, 1 * KIB, _MANY, "data and keys (by characters) of undelivered records: then put waits"
    )
    buffer_max_records: int = _setting(100_000, 1, _MANY, "undelivered records: then put waits")
    record_max_bytes: int | None = _setting(
        None, 1, RECORD_HIGHEST_MAX_BYTES, "the largest record; unset, the stream is asked", optional=True
    )
    ordered: bool = _switch(default=False, about="keep the order of records of one key through retries and resharding")
    fail_if_throttled: bool = _switch(default=False, about="a throttled record fails at once")
    max_attempts: int | None = _setting(None, 1, _MANY, "give a record up after so many", optional=True)
    retry_backoff: float = _setting(0.1, 0.001, 3600.0, "the first pause after a failure; each further one doubles")
    retry_backoff_max: float = _setting(5.0, 0.001, 3600.0, "the longest pause between attempts")
    closed_shard_ttl: float = _setting(60.0, 0.0, 3600.0, "how long a closed shard's range is remembered")
    untranslated: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What ``from_kpl_properties`` found and could not take over, and where it belongs."""

    def __post_init__(self) -> None:
        for knob in fields(self):
            if "lowest" in knob.metadata:
                _check_number(knob.name, getattr(self, knob.name), knob.metadata)
            elif knob.metadata and not isinstance(getattr(self, knob.name), bool):
                raise UsageError(f"{knob.name} must be True or False, not {getattr(self, knob.name)!r}")
        if self.linger >= self.record_ttl:  # a record that is due when its life ends is never sent
            raise UsageError(
                f"linger must be less than record_ttl: {self.linger!r} is not less than {self.record_ttl!r}"
            )
        for smaller, larger in (
            ("retry_backoff", "retry_backoff_max"),
            ("aggregate_max_bytes", "request_max_bytes"),
        ):
            low, high = getattr(self, smaller), getattr(self, larger)
            if low > high:
                raise UsageError(f"{smaller} must be at most {larger}: {low!r} is more than {high!r}")

    @classmethod
    def from_kpl_properties(cls, path: "str | PathLike[str]", **changes: Any) -> Self:
        """The settings of a ``KinesisProducerConfiguration`` properties file, for those who come from the KPL.

        Args:
            path: the file.
            changes: further settings under our names: they win.

        Raises:
            UsageError: a property has a value that the KPL would refuse as well, or that no setting of ours allows.
            OSError: the file cannot be read.
        """
        with open(path, encoding="latin-1") as file:  # noqa: PTH123 - a config is no machine, and pathlib no pure import
            text = file.read()
        settings, untranslated = translate(text)
        taken: dict[str, Any] = {**settings, "untranslated": untranslated, **changes}
        return cls(**taken)

    @property
    def known_record_max_bytes(self) -> int:
        """The largest record while the stream has not been asked."""
        return RECORD_DEFAULT_MAX_BYTES if self.record_max_bytes is None else self.record_max_bytes


def _check_number(name: str, value: object, rules: Any) -> None:
    lowest, highest, whole = rules["lowest"], rules["highest"], rules["whole"]
    if value is None and rules["optional"]:
        return
    kinds = (int,) if whole else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not lowest <= value <= highest:
        noun = "a whole number" if whole else "a number"
        allowed = f"{noun} from {lowest:,} to {highest:,}" + (", or None" if rules["optional"] else "")
        raise UsageError(f"{name} must be {allowed}, not {value!r}")
