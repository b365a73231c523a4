"""Plans the change of one setting of a stream: its retention, mode, encryption, record size or tags.

Invariants:

- An invalid value is rejected with the allowed range before any request changes the stream.
- A change to the current value is not needed, so nothing is sent for it.
- A change that loses records or protection, or that uses up a daily limit, names its risk, so that the user can confirm
  it.
- Tags are added before others are removed, so that a failure in between loses no tag.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, final

from shardline.cli.quantities import in_units
from shardline.codec.shapes import StreamSummary
from shardline.errors import UsageError
from shardline.model.limits import (
    KIB,
    MIB,
    RECORD_HIGHEST_MAX_BYTES,
    RETENTION_MAX_HOURS,
    RETENTION_MIN_HOURS,
    TAGS_PER_STREAM,
    UPDATE_STREAM_MODE_PER_DAY,
)

MODES: Final = {"provisioned": "PROVISIONED", "on-demand": "ON_DEMAND"}
"""The modes as they are typed, and AWS's names for them."""
_SHOWN_MODES: Final = {"PROVISIONED": "provisioned", "ON_DEMAND": "on demand"}
_DEFAULT_KEY: Final = "alias/aws/kinesis"  # [API] StartStreamEncryption: the key that AWS manages for Kinesis
_HOUR: Final = 3600
_DAY_HOURS: Final = 24
_TAG_KEY_MAX_LENGTH: Final = 128  # [MODEL] TagKey
_TAG_VALUE_MAX_LENGTH: Final = 256  # [MODEL] TagValue


@final
class SettingChange(NamedTuple):
    """The value of a setting before and after a change."""

    setting: str
    """The setting's name in JSON, as in the output of ``streams describe``."""
    label: str
    """The setting's name in text output."""
    before: Any
    after: Any
    shown_before: str
    shown_after: str
    risk: str | None = None
    """The effect that the user must confirm. ``None`` means that no confirmation is needed."""

    @property
    def is_needed(self) -> bool:
        return bool(self.before != self.after)

    @property
    def sentence(self) -> str:
        """The change as text, without a verb: ``retention 24 h (1 d) -> 48 h (2 d)``."""
        return f"{self.label} {self.shown_before} -> {self.shown_after}"


def shown_mode(summary: StreamSummary) -> str:
    return _SHOWN_MODES.get(summary.mode, summary.mode)


def shown_hours(hours: int) -> str:
    return f"{hours} h" if hours % _DAY_HOURS else f"{hours} h ({hours // _DAY_HOURS} d)"


def shown_encryption(summary: StreamSummary) -> str:
    if summary.encryption_type in {None, "NONE"}:
        return "none"
    return f"{summary.encryption_type} {summary.key_id or ''}".strip()


def retention_change(summary: StreamSummary, seconds: float) -> SettingChange:
    """Return the change that sets the retention to a duration.

    Raises:
        UsageError: the service does not allow that retention.
    """
    hours = round(seconds / _HOUR)
    if hours * _HOUR != seconds or not RETENTION_MIN_HOURS <= hours <= RETENTION_MAX_HOURS:
        raise UsageError(
            f"retention is a whole number of hours from {RETENTION_MIN_HOURS}h to {RETENTION_MAX_HOURS}h (365d), "
            f"not {_shown_duration(seconds)}"
        )
    risk = f"records older than {shown_hours(hours)} are deleted" if hours < summary.retention_hours else None
    shown_before, shown_after = shown_hours(summary.retention_hours), shown_hours(hours)
    return SettingChange(
        "retention_hours", "retention", summary.retention_hours, hours, shown_before, shown_after, risk
    )


def _shown_duration(seconds: float) -> str:
    return f"{seconds / _HOUR:g} h" if seconds >= _HOUR else f"{seconds:g} s"


def mode_change(summary: StreamSummary, mode: str) -> SettingChange:
    """Return the change that sets the capacity mode to one of ``MODES``."""
    risk = f"the service allows {UPDATE_STREAM_MODE_PER_DAY} changes of the mode in 24 hours, and the price changes"
    after = MODES[mode]
    return SettingChange("mode", "mode", summary.mode, after, shown_mode(summary), _SHOWN_MODES[after], risk)


def encryption_change(summary: StreamSummary, key: str | None) -> SettingChange:
    """Return the change that encrypts the stream with a KMS key. ``None`` ends the encryption."""
    is_encrypted = summary.encryption_type not in {None, "NONE"}
    before = summary.key_id or _DEFAULT_KEY if is_encrypted else None
    risk = None if key is not None else "new records are stored unencrypted"
    shown_after = "none" if key is None else f"KMS {key}"
    return SettingChange("kms_key_id", "encryption", before, key, shown_encryption(summary), shown_after, risk)


def record_size_change(summary: StreamSummary, size_bytes: int) -> SettingChange:
    """Return the change that sets the maximum record size, which includes the key.

    Raises:
        UsageError: the service does not allow that size.
    """
    if size_bytes % KIB or not MIB <= size_bytes <= RECORD_HIGHEST_MAX_BYTES:
        raise UsageError(
            f"the record size is a whole number of KiB from {in_units(MIB)} to {in_units(RECORD_HIGHEST_MAX_BYTES)}, "
            f"not {size_bytes:,} bytes"
        )
    before = summary.max_record_bytes
    return SettingChange("max_record_bytes", "record size", before, size_bytes, in_units(before), in_units(size_bytes))


def parse_tag(text: str) -> tuple[str, str]:
    """Return the key and the value of ``KEY=VALUE``.

    Raises:
        UsageError: the text is not a tag, or the service does not allow the tag.
    """
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise UsageError(f"a tag is written as KEY=VALUE, not {text!r}")
    if len(key) > _TAG_KEY_MAX_LENGTH or len(value) > _TAG_VALUE_MAX_LENGTH:
        raise UsageError(
            f"the key of a tag has at most {_TAG_KEY_MAX_LENGTH} characters and its value at most "
            f"{_TAG_VALUE_MAX_LENGTH}: {key[:_TAG_KEY_MAX_LENGTH]!r} has {len(key)} and {len(value)}"
        )
    if key.startswith("aws:"):
        raise UsageError(f"keys of tags that begin with aws: are reserved for AWS: {key!r}")
    return key, value


def tag_change(before: Mapping[str, str], added: Iterable[str], removed: Iterable[str]) -> SettingChange:
    """Return the change that adds tags to a stream and removes others.

    Args:
        before: the current tags.
        added: the tags to add or to replace, as ``KEY=VALUE``.
        removed: the keys of the tags to remove. A missing tag is not an error.

    Raises:
        UsageError: a tag is invalid or named twice, or the stream would have too many tags.
    """
    new: dict[str, str] = {}
    for key, value in map(parse_tag, added):
        if key in new:
            raise UsageError(f"the tag {key!r} is given twice")
        new[key] = value
    gone = frozenset(removed)
    if contradictory := sorted(gone & new.keys()):
        raise UsageError(f"the tag {contradictory[0]!r} cannot be added and removed in one command")
    count = len(before.keys() | new.keys())
    if count > TAGS_PER_STREAM:
        raise UsageError(
            f"a stream has at most {TAGS_PER_STREAM} tags, and this would make {count}: remove others first, in a "
            "command of their own"
        )
    after = {key: value for key, value in {**before, **new}.items() if key not in gone}
    return SettingChange("tags", "tags", dict(before), after, shown_tags(before), shown_tags(after))


def shown_tags(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "none"
