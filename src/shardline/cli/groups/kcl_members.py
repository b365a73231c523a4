"""Finds and shows the workers of a group whose table is shared with Java KCL workers.

Invariants:

- Without KCL workers, nothing is shown. If the KCL's rows cannot be read, the output says so, and nothing is guessed.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from shardline.core.consumer.kcl_fleet import FleetMember, fleet_members
from shardline.core.error_codes import Failure
from shardline.model.lease import Lease
from shardline.ports import KclFleetStore, LeaseStore


async def read_members(store: LeaseStore, leases: Iterable[Lease]) -> list[FleetMember] | Failure:
    """Return the workers of the fleet, or an empty list if no KCL worker is among them. ``leases`` are the unfinished
    leases.
    """
    if not isinstance(store, KclFleetStore) or not store.follows_kcl:
        return []
    rows = await store.read_kcl_rows()
    return rows if isinstance(rows, Failure) else fleet_members(rows, leases, time.time())


def members_text(members: Sequence[FleetMember]) -> str:
    """Return a sentence that says who leads, who follows, and what each worker runs."""
    shown = [f"{member.worker} ({member.version})" for member in members if member.part != "leader"]
    others = ", ".join(shown)
    leaders = [member for member in members if member.part == "leader"]
    if not leaders:
        return f"KCL workers share the leases, and no worker leads; the workers: {others}"
    (leader,) = leaders
    return f"{leader.worker} ({leader.version}) leads; the followers: {others or 'none'}"


def members_object(members: Sequence[FleetMember] | None) -> dict[str, Any] | None:
    """Return the workers as a JSON object, or ``None`` if no KCL worker is among them, or if they are unknown."""
    if not members:
        return None
    leader = next((member.worker for member in members if member.part == "leader"), None)
    return {"leader": leader, "workers": [{"worker": member.worker, "runs": member.version} for member in members]}
