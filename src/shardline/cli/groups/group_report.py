"""Shows groups, leases and checkpoints: as tables for people, and as JSON.

Invariants:

- An unknown value is ``null`` in JSON and ``?`` in a table, never a guess.
- JSON and pipes get full sequence numbers, times and worker names. A narrow terminal gets them shortened to fit 80
  columns, and without the columns READ BY and COUNTER.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from shardline.cli.groups.apply_reset import Outcome
from shardline.cli.groups.group_lag import Lag
from shardline.cli.groups.group_store import Watch
from shardline.cli.groups.position_effects import Effect, EffectKind
from shardline.cli.groups.reset_plan import Action, Step
from shardline.cli.terminal import console, make_table, print_table
from shardline.cli.time_arguments import shown_time
from shardline.model.lease import Lease
from shardline.model.position import SHARD_END, PositionKind
from shardline.model.shard import Shard
from shardline.ports import GroupOnStream

_NARROW: Final = 110
_DIGITS_SHOWN: Final = 10
_OWNER_SHOWN: Final = 15
_SHARD_NUMBERS: Final = ("BEHIND", "COUNTER")
_VERBS: Final = {
    Action.RESET: "reset",
    Action.CREATE: "created",
    Action.REPLACE: "re-created",
    Action.DELETE: "deleted",
    Action.KEEP: "kept",
}
_EFFECTS: Final = {
    EffectKind.NONE: "-",
    EffectKind.START: "starts there",
    EffectKind.REPLAY: "replays",
    EffectKind.SKIP: "skips",
    EffectKind.UNKNOWN: "?",
}


def group_object(name: GroupOnStream, seen: Watch) -> dict[str, Any]:
    """Return one group as a JSON object."""
    leases: dict[str, int] = {}
    for row in seen.held.values():
        if row.holder is not None:
            leases[row.holder] = leases.get(row.holder, 0) + 1
    return {
        "group": name.group,
        "stream": name.stream,
        "rows": len(seen.rows),
        "finished": sum(row.checkpoint.is_finished for row in seen.rows.values()),
        "held": len(seen.held),
        "alive": seen.is_alive,
        "judged_by": _judged_by(seen),
        "watched_seconds": round(seen.seconds, 3),
        "owners": [
            {"worker": worker, "leases": leases[worker], "alive": True if moved else None}
            for worker, moved in seen.holders.items()
        ],
    }


def _judged_by(seen: Watch) -> str:
    if seen.is_alive is False:
        return "no lease has an owner"
    watched = f"{seen.seconds:.1f} s"
    return f"a lease changed within {watched}" if seen.is_alive else f"no lease changed for {watched}"


def print_groups(found: Sequence[tuple[GroupOnStream, Watch]]) -> None:
    print_table(
        ("GROUP", "STREAM", "SHARDS", "HELD", "WORKERS", "STATE"),
        [
            (
                name.group or "?",
                name.stream or "?",
                str(len(seen.rows)),
                str(len(seen.held)),
                str(len(seen.holders)),
                seen.judgement,
            )
            for name, seen in found
        ],
        right=("SHARDS", "HELD", "WORKERS"),
    )


def shard_objects(
    seen: Watch, shards: Mapping[str, Shard] | None, lags: Mapping[str, Lag] | None
) -> list[dict[str, Any]]:
    """Return every shard of the stream and every row of the group as JSON objects."""
    names = sorted({*seen.rows, *(shards or ())})
    return [_shard_object(name, seen, shards, lags) for name in names]


def _shard_object(
    shard_id: str, seen: Watch, shards: Mapping[str, Shard] | None, lags: Mapping[str, Lag] | None
) -> dict[str, Any]:
    row = seen.rows.get(shard_id)
    lag = (lags or {}).get(shard_id, Lag())
    common: dict[str, Any] = {"shard_id": shard_id, "state": _state(shard_id, shards), "has_row": row is not None}
    if row is None:
        return common | {"lag_ms": lag.millis, "lag_problem": lag.problem}
    reader = row.incarnation_of(row.holder)
    return common | {
        "owner": row.holder,
        "next_owner": None if row.checkpoint_owner is None else row.owner,
        "read_by": None if reader is None else reader.read_by,
        "owner_alive": True if row.holder is not None and seen.holders.get(row.holder) else None,
        "counter": row.counter,
        "checkpoint": checkpoint_object(row),
        "finished": row.checkpoint.is_finished,
        "lag_ms": lag.millis,
        "checkpoint_arrived_at": None if lag.arrived_at is None else shown_time(lag.arrived_at),
        "lag_problem": lag.problem,
    }


def _state(shard_id: str, shards: Mapping[str, Shard] | None) -> str | None:
    if shards is None:
        return None
    shard = shards.get(shard_id)
    return "gone" if shard is None else "open" if shard.is_open else "closed"


def checkpoint_object(row: Lease | None) -> dict[str, Any] | None:
    """Return the checkpoint of a row as a JSON object."""
    if row is None:
        return None
    position = row.checkpoint.position
    number = position.sequence_number
    since = row.latest_at if position.timestamp is None else position.timestamp
    return {
        "kind": position.kind.value,
        "sequence_number": None if number is None else str(number),
        "sub_sequence": None if number is None else number.sub_sequence,
        "since": None if since is None else shown_time(since),
    }


def shown_checkpoint(row: Lease | None) -> str:
    """Return the checkpoint of a row as text."""
    if row is None:
        return "no row"
    position = row.checkpoint.position
    if position == SHARD_END:
        return "finished"
    number = position.sequence_number
    if number is not None:
        digits = str(number)
        if _is_narrow() and len(digits) > _DIGITS_SHOWN:
            digits = f"..{digits[-_DIGITS_SHOWN:]}"
        return digits if number.sub_sequence == 0 else f"{digits}:{number.sub_sequence}"
    since = row.latest_at if position.timestamp is None else position.timestamp
    if since is None:
        return position.kind.value
    if _is_narrow():
        return "LATEST" if position.kind is PositionKind.LATEST else f"{shown_time(since)[5:16].replace('T', ' ')}Z"
    name = "LATEST" if position.kind is PositionKind.LATEST else "at"
    return f"{name} {shown_time(since)}"


def _is_narrow() -> bool:
    out = console()
    return out.is_terminal and out.width < _NARROW


def shard_table(seen: Watch, shards: Mapping[str, Shard] | None, lags: Mapping[str, Lag] | None) -> Table:
    """Return every shard of the stream and every row of the group as a table, for a terminal."""
    columns, rows = _shard_cells(seen, shards, lags)
    return make_table(columns, rows, right=_SHARD_NUMBERS)


def print_shards(seen: Watch, shards: Mapping[str, Shard] | None, lags: Mapping[str, Lag] | None) -> None:
    columns, rows = _shard_cells(seen, shards, lags)
    print_table(columns, rows, right=_SHARD_NUMBERS)


def _shard_cells(
    seen: Watch, shards: Mapping[str, Shard] | None, lags: Mapping[str, Lag] | None
) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the columns and the rows of the table of shards."""
    columns = ("SHARD", "", "CHECKPOINT", "BEHIND", "OWNER", "READ BY", "COUNTER")
    shown = columns[:-2] if _is_narrow() else columns
    return shown, [_cells_of(name, seen, shards, lags)[: len(shown)] for name in sorted({*seen.rows, *(shards or ())})]


def _cells_of(
    shard_id: str, seen: Watch, shards: Mapping[str, Shard] | None, lags: Mapping[str, Lag] | None
) -> tuple[str, ...]:
    row = seen.rows.get(shard_id)
    state = _state(shard_id, shards) or ""
    behind = ""
    if lags is not None and (shard_id in lags if row is None else not row.checkpoint.is_finished):
        millis = lags.get(shard_id, Lag()).millis
        behind = "?" if millis is None else shown_behind(millis)
    if row is None:
        return (shard_id, state, "no row", behind, "", "", "")
    return (shard_id, state, shown_checkpoint(row), behind, _owner(row, seen), _read_by(row), str(row.counter))


def _read_by(row: Lease) -> str:
    """Return how the holder reads the shard (by polling or by fan-out), according to the row."""
    if row.holder is None or row.checkpoint.is_finished:
        return "-"
    holder = row.incarnation_of(row.holder)
    return "?" if holder is None or holder.read_by is None else holder.read_by


def _owner(row: Lease, seen: Watch) -> str:
    if row.holder is None or row.checkpoint.is_finished:
        return "-"
    owner = row.holder
    if _is_narrow() and len(owner) > _OWNER_SHOWN:
        owner = f"..{owner[-_OWNER_SHOWN + 2 :]}"
    return owner if not seen.seconds or seen.holders.get(row.holder) else f"{owner} (silent)"


def shown_behind(millis: int) -> str:
    """Return a lag in the unit that fits: ``2.5 s``, ``90 min``, ``3 h``."""
    seconds = millis / 1000
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 120:  # noqa: PLR2004
        return f"{minutes:.0f} min"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"  # noqa: PLR2004


def step_objects(
    steps: Sequence[Step], outcome: Outcome | None, effects: Mapping[str, Effect] | None = None
) -> list[dict[str, Any]]:
    """Return the planned or completed steps as JSON objects, with their effects if the effects are known."""
    done = set[str]() if outcome is None else set(outcome.done)
    return [
        {
            "shard_id": step.shard_id,
            "action": step.action.value,
            "owner": None if step.before is None else step.before.holder,
            "before": checkpoint_object(step.before),
            "after": checkpoint_object(step.after),
            "done": step.shard_id in done,
        }
        | ({} if effects is None else _effect_object(effects[step.shard_id]))
        for step in steps
    ]


def _effect_object(effect: Effect) -> dict[str, Any]:
    return {"effect": effect.kind.value, "effect_ms": None if effect.seconds is None else round(effect.seconds * 1000)}


def _shown_effect(effect: Effect) -> str:
    verb = _EFFECTS[effect.kind]
    return verb if effect.seconds is None else f"{verb} {shown_behind(round(effect.seconds * 1000))}"


def print_steps(steps: Sequence[Step], outcome: Outcome | None, effects: Mapping[str, Effect] | None = None) -> None:
    done = {step.shard_id for step in steps} if outcome is None else set(outcome.done)
    rows = [
        (
            step.shard_id,
            _VERBS[step.action] if step.shard_id in done else "NOT DONE",
            shown_checkpoint(step.before),
            "-" if step.after is None else shown_checkpoint(step.after),
            *(() if effects is None else (_shown_effect(effects[step.shard_id]),)),
        )
        for step in steps
    ]
    print_table(("SHARD", "ROW", "FROM", "TO", *(() if effects is None else ("EFFECT",))), rows)
