"""Shows a stream: as text for people, and as JSON."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

from rich.text import Text

from shardline.cli.quantities import in_units
from shardline.cli.streams.shard_tree import FANCY, PLAIN, draw
from shardline.cli.streams.stream_settings import shown_encryption, shown_hours, shown_mode
from shardline.cli.terminal import can_show, print_lines, printable
from shardline.cli.time_arguments import shown_time
from shardline.codec.shapes import StreamConsumer, StreamListing, StreamSummary
from shardline.model.shard import Shard

_STATUS_STYLES: Final = {"ACTIVE": "green", "DELETING": "red"}


@final
class StreamView(NamedTuple):
    """A stream with its shards and registered consumers."""

    summary: StreamSummary
    shards: Sequence[Shard]
    consumers: Sequence[StreamConsumer] | None
    """The registered consumers, or ``None`` if they could not be listed."""


@final
class UndescribedStream(NamedTuple):
    """A stream that was listed, but could not be described."""

    listing: StreamListing
    problem: str


def listed_json(stream: StreamSummary | UndescribedStream) -> dict[str, Any]:
    """Return a listed stream as a JSON object. Unknown values are null, and ``problem`` says why they are unknown."""
    if isinstance(stream, StreamSummary):
        return summary_json(stream) | {"problem": None}
    listing, problem = stream
    created_at = None if listing.created_at is None else shown_time(listing.created_at)
    known = {"name": listing.name, "arn": listing.arn, "status": listing.status, "created_at": created_at}
    fields = summary_json(StreamSummary(name="", arn="", status=""))
    return dict.fromkeys(fields) | known | {"problem": problem}


def listed_row(stream: StreamSummary | UndescribedStream) -> list[str]:
    """Return a listed stream as a row: its name, status, mode, open shards and retention."""
    if isinstance(stream, UndescribedStream):
        return [stream.listing.name, stream.listing.status or "-", "-", "-", "-"]
    shards = str(stream.open_shard_count or "-")
    return [stream.name, stream.status, shown_mode(stream), shards, f"{stream.retention_hours} h"]


def summary_json(summary: StreamSummary) -> dict[str, Any]:
    """Return a stream's summary as a JSON object."""
    return {
        "name": summary.name,
        "arn": summary.arn,
        "status": summary.status,
        "mode": summary.mode,
        "open_shards": summary.open_shard_count,
        "retention_hours": summary.retention_hours,
        "created_at": None if summary.created_at is None else shown_time(summary.created_at),
        "encryption": summary.encryption_type or "NONE",
        "kms_key_id": summary.key_id,
        "max_record_bytes": summary.max_record_bytes,
        "record_distribution": summary.record_distribution,
        "consumer_count": summary.consumer_count,
        "channel_count": summary.channel_count,
    }


def stream_json(view: StreamView) -> dict[str, Any]:
    """Return a stream with its shards and consumers as a JSON object."""
    children: dict[str, list[str]] = {}
    for shard in view.shards:
        for parent in shard.parent_ids:
            children.setdefault(parent, []).append(shard.shard_id)
    return summary_json(view.summary) | {
        "open_shards": sum(shard.is_open for shard in view.shards),
        "closed_shards": sum(not shard.is_open for shard in view.shards),
        "shards": [_shard_json(shard, children.get(shard.shard_id, [])) for shard in view.shards],
        "consumers": None if view.consumers is None else [consumer_json(consumer) for consumer in view.consumers],
    }


def consumer_json(consumer: StreamConsumer) -> dict[str, Any]:
    """Return a registered consumer as a JSON object."""
    return {
        "name": consumer.name,
        "arn": consumer.arn,
        "status": consumer.status,
        "created_at": None if consumer.created_at is None else shown_time(consumer.created_at),
    }


def _shard_json(shard: Shard, children: list[str]) -> dict[str, Any]:
    ending = shard.ending_sequence_number
    return {
        "shard_id": shard.shard_id,
        "state": "open" if shard.is_open else "closed",
        "share": shard.hash_range.share,
        "starting_hash_key": str(shard.hash_range.start),
        "ending_hash_key": str(shard.hash_range.end),
        "starting_sequence_number": str(shard.starting_sequence_number),
        "ending_sequence_number": None if ending is None else str(ending),
        "parents": list(shard.parent_ids),
        "children": children,
    }


def print_stream(view: StreamView, *, only_open: bool) -> None:
    """Print the facts about a stream, and its shards as a tree. With ``only_open``, list only the open shards."""
    summary = view.summary
    opened = [shard for shard in view.shards if shard.is_open]
    closed_count = len(view.shards) - len(opened)
    facts: dict[str, Text | str] = {
        "stream": Text(printable(summary.name), style="bold"),
        "ARN": summary.arn,
        "status": Text(summary.status, style=_STATUS_STYLES.get(summary.status, "yellow")),
        "mode": shown_mode(summary),
        "created": shown_time(summary.created_at),
        "retention": shown_hours(summary.retention_hours),
        "encryption": shown_encryption(summary),
        "record limit": f"{in_units(summary.max_record_bytes)} with its key",
        "consumers": _consumers(view),
        "shards": f"{len(opened)} open" + (f", {closed_count} closed" if closed_count else ""),
    }
    if summary.record_distribution not in (None, "KEY_BASED"):
        facts["distribution"] = str(summary.record_distribution)
    if summary.channel_count:
        facts["channels"] = str(summary.channel_count)
    print_lines(_fact(name, value) for name, value in facts.items())
    print_lines([""])
    print_lines(_open_lines(opened) if only_open else _tree_lines(view.shards))


def _fact(name: str, value: Text | str) -> Text:
    return Text(f"{name:<13} ") + (value if isinstance(value, Text) else Text(printable(value)))


def _consumers(view: StreamView) -> str:
    if view.consumers is None:
        return "unknown" if view.summary.consumer_count is None else str(view.summary.consumer_count)
    names = [f"{consumer.name} ({consumer.status})" for consumer in view.consumers]
    return f"{len(names)}: {', '.join(names)}" if names else "none"


def _tree_lines(shards: Sequence[Shard]) -> list[Text]:
    lines = draw(shards, FANCY if can_show("".join(FANCY)) else PLAIN)
    width = max((len(line.branches) + len(line.shard.shard_id) for line in lines), default=0)
    return [_shard_line(line.branches, line.shard, width, line.note) for line in lines]


def _open_lines(shards: Sequence[Shard]) -> list[Text]:
    width = max((len(shard.shard_id) for shard in shards), default=0)
    return [_shard_line("", shard, width, "") for shard in sorted(shards, key=lambda shard: shard.hash_range)]


def _shard_line(branches: str, shard: Shard, width: int, note: str) -> Text:
    state = Text("open  ", style="green") if shard.is_open else Text("closed", style="dim")
    share = Text(f"  {shard.hash_range.share:7.2%}" + (f"  {note}" if note else ""))
    return Text(f"{branches}{printable(shard.shard_id)}".ljust(width) + "  ") + state + share
