"""Formats records for printing.

A format is ``raw`` (the data), ``base64``, ``json`` (a line that ``put --records`` reads), or a template such as
``{time} {key} {data}``.

Invariants:

- Data is printed byte for byte, except on a terminal: there, control characters and invalid UTF-8 are escaped.
- A template with an unknown field is rejected before anything is read.
"""

import base64
import re
import string
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from shardline.cli.terminal import printable
from shardline.cli.time_arguments import shown_time
from shardline.codec.record_lines import PlainRecord, line_of
from shardline.errors import UsageError
from shardline.model.record import Record

Format: TypeAlias = Callable[[Record], bytes]

NAMED: Final = ("raw", "json", "base64")
FIELDS: Final[dict[str, tuple[str, Callable[[Record], object]]]] = {
    "data": ("the data", lambda record: record.data),
    "base64": ("the data in base64", lambda record: base64.b64encode(record.data).decode()),
    "key": ("the partition key", lambda record: record.key or ""),
    "headers": (
        "the headers, as a JSON object",
        lambda record: msgspec.json.encode(dict(record.headers)).decode(),
    ),
    "hash_key": ("the explicit hash key, if the record has one", lambda record: record.explicit_hash_key or ""),
    "time": ("the arrival time, in UTC", lambda record: shown_time(record.arrived_at)),
    "timestamp": ("the arrival time, in seconds since 1970", lambda record: record.arrived_at or 0.0),
    "shard": ("the shard id", lambda record: record.shard_id or ""),
    "sequence": ("the sequence number", lambda record: record.sequence_number or ""),
    "sub_sequence": ("the position in the aggregate, from 0", lambda record: record.sub_sequence),
    "size": ("the size of the data in bytes", lambda record: len(record.data)),
    "lag": ("the seconds between arrival and reading", lambda record: record.lag or 0.0),
    "stream": ("the stream's name", lambda record: record.stream or ""),
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def unescaped(text: str) -> str:
    r"""Replace the escapes ``\n``, ``\t``, ``\r``, ``\0`` and ``\\``, which a shell passes on as typed."""
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text)


def make_format(chosen: str, *, keys: bool, times: bool, headers: bool, delimiter: str, is_terminal: bool) -> Format:
    """Return a function that formats a record.

    Args:
        chosen: one of ``NAMED``, or a template with fields in braces.
        keys: whether to print the key and a tab before the data.
        times: whether to print the arrival time and a tab before the data.
        headers: whether to print the headers and a tab before the data.
        delimiter: the text after each record. JSON is always followed by a newline.
        is_terminal: whether standard output is a terminal.

    Raises:
        UsageError: the format is invalid.
    """
    if chosen == "json":
        return json_line
    if "{" in chosen:
        template = chosen
    elif chosen in NAMED:
        template = "{base64}" if chosen == "base64" else "{data}"
    else:
        raise UsageError(
            f"a format is {', '.join(NAMED)}, or a template such as '{{time}} {{key}} {{data}}', not {chosen!r}"
        )
    before = [field for field, wanted in (("{time}", times), ("{key}", keys), ("{headers}", headers)) if wanted]
    template = "\t".join([*before, unescaped(template)]) + unescaped(delimiter)
    return _from_template(template, is_terminal=is_terminal)


def json_line(record: Record) -> bytes:
    """Return the record as a line of JSON, in the format of ``codec.record_lines``."""
    return line_of(
        PlainRecord(record.key, record.data, record.explicit_hash_key, record.headers),
        shard_id=record.shard_id,
        sequence_number=record.sequence_number,
        sub_sequence=record.sub_sequence,
        arrived_at=None if record.arrived_at is None else shown_time(record.arrived_at),
    )


def headers_json(record: Record) -> str:
    """Return the record's headers as a JSON object, on one line."""
    return str(FIELDS["headers"][1](record))


def _from_template(template: str, *, is_terminal: bool) -> Format:
    parts: list[Callable[[Record], bytes]] = []
    try:
        for literal, field, spec, conversion in string.Formatter().parse(template):
            if literal:
                parts.append(_literal(literal.encode()))
            if field is not None:
                parts.append(_field(field, spec or "", conversion, is_terminal=is_terminal))
    except UsageError:
        raise
    except ValueError as error:  # unbalanced braces
        raise UsageError(f"{template!r} is not a template: {error}") from None
    if len(parts) == 1:
        return parts[0]
    return lambda record: b"".join([part(record) for part in parts])


def _literal(text: bytes) -> Callable[[Record], bytes]:
    return lambda _: text


def _field(name: str, spec: str, conversion: str | None, *, is_terminal: bool) -> Callable[[Record], bytes]:
    if name not in FIELDS or conversion is not None:
        raise UsageError(f"a template's fields are {', '.join(FIELDS)}, not {name if name not in FIELDS else '!'}")
    _, value = FIELDS[name]
    if name == "data" and not spec and not is_terminal:
        return lambda record: record.data  # byte for byte

    def format_field(record: Record) -> bytes:
        found = value(record)
        text = format(found.decode(errors="backslashreplace") if isinstance(found, bytes) else found, spec)
        return (printable(text) if is_terminal else text).encode()

    try:
        format_field(_SAMPLE)
    except ValueError as error:
        raise UsageError(f"the field {name} cannot be shown as {spec!r}: {error}") from None
    return format_field


_SAMPLE: Final = Record(b"", "key", None, "1", 0, "shardId-000000000000", 0.0, "stream")
