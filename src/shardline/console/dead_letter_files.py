"""Shows the newest dead letters of a group, from the file to which its workers write them.

Invariants:

- Only the end of the file is read, so that a large file costs no more than a small one. If the newest dead letter is
  longer than that, more is read, up to ``_LINE_MAX`` bytes: without this, a dead letter of 10 MiB would not be found.
- A line that is not a record is counted and skipped, so that one broken line hides no other.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, final

import msgspec

from shardline.cli.error_messages import WrongUsage
from shardline.codec.record_lines import record_of
from shardline.console.record_views import data_json
from shardline.errors import UsageError

_READ_MAX: Final = 1024 * 1024
_LINE_MAX: Final = 16 * 1024 * 1024
"""The maximum length of a line: a record of 10 MiB in base64, with the facts about the record."""
_SHOWN: Final = 50
_STREAM: Final = "stream:"
_FACTS: Final = ("error", "message", "attempts", "failed_at", "stream", "shard_id", "sequence_number", "sub_sequence")


@final
class DeadLetterPlace(NamedTuple):
    """Where the dead letters of a group are: in a file, or in a stream."""

    path: Path | None = None
    stream: str | None = None


def parse_places(options: Sequence[str]) -> dict[str, DeadLetterPlace]:
    """Return the places by group, from values such as ``billing=failed.jsonl`` and ``billing=stream:orders-failed``.

    Raises:
        WrongUsage: a value has another form.
    """
    found: dict[str, DeadLetterPlace] = {}
    for option in options:
        group, _, place = option.partition("=")
        if not group or not place.removeprefix(_STREAM):
            raise WrongUsage(f"--dead-letters takes GROUP=FILE or GROUP=stream:NAME, not {option!r}")
        is_stream = place.startswith(_STREAM)
        found[group] = DeadLetterPlace(stream=place[len(_STREAM) :]) if is_stream else DeadLetterPlace(Path(place))
    return found


def newest_dead_letters(path: Path) -> dict[str, Any]:
    """Return the newest dead letters of a file, newest first, as a JSON object."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            content = _end_of(file, size, _READ_MAX)
            if size > _READ_MAX and content.count(b"\n") <= 1:
                content = _end_of(file, size, _LINE_MAX)
    except FileNotFoundError:
        return {"file": path.name, "letters": [], "unreadable": 0, "more": False}
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}") from None
    is_all = len(content) >= size
    lines = content.split(b"\n")[0 if is_all else 1 :]
    letters: list[dict[str, Any]] = []
    unreadable = 0
    for line in reversed(lines):
        if not line.strip():
            continue
        if len(letters) == _SHOWN:
            break
        try:
            letters.append(_letter(line))
        except (UsageError, msgspec.DecodeError):
            unreadable += 1
    more = not is_all or len(letters) == _SHOWN < len(lines) - 1
    return {"file": path.name, "letters": letters, "unreadable": unreadable, "more": more}


def _end_of(file: BinaryIO, size: int, length: int) -> bytes:
    file.seek(max(0, size - length))
    return file.read(length)


def _letter(line: bytes) -> dict[str, Any]:
    record = record_of(line)
    members: Mapping[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    return {name: members.get(name) for name in _FACTS} | {
        "key": record.key,
        "explicit_hash_key": record.explicit_hash_key,
        "headers": dict(record.headers or {}),
        "arrived_at": members.get("arrived_at"),
        **data_json(record.data),
        "base64": base64.b64encode(record.data).decode(),  # when it is sent again, the file may have changed
    }
