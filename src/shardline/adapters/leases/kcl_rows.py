"""Encodes and decodes the rows that a KCL fleet keeps beside its leases.

KCL 3.0 to 3.4 keep these rows in two tables of their own, whose names begin with the name of the lease table. KCL 3.5
can keep them in the lease table, and marks them with an entity type.

Invariants:

- A row that cannot be read is skipped: it may belong to a newer KCL.
- Our metrics row has no metrics, so a KCL leader judges the worker by the throughput of its leases. An attribute that
  the KCL ignores marks the row as ours.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from shardline import __version__
from shardline.adapters.leases.dynamodb_items import KEY, Attribute, Item, number, text
from shardline.core.kcl_requests import DeleteMetrics, KclRows, LeaderRow, MetricsPlace, MetricsRow, WriteMetrics

METRICS_SUFFIX: Final = "-WorkerMetricStats"
COORDINATION_SUFFIX: Final = "-CoordinatorState"
_METRICS_KEY: Final = "wid"
_STATE_KEY: Final = "key"
_METRICS_ENTITY: Final = "WORKER_METRIC_STATS"
_MARK: Final = "shardlineVersion"
_SHARES_TABLE: Final = 1  # the KCL's support code for one table


def decode_kcl_rows(items: Iterable[Item], among_leases: Iterable[Item], *, has_metrics_table: bool) -> KclRows:
    """Return the rows of a KCL fleet.

    Args:
        items: the rows of the KCL's own tables.
        among_leases: the rows of the lease table that are not leases.
        has_metrics_table: whether the KCL's own table for metrics exists.
    """
    others = [*among_leases]
    metrics: dict[str, MetricsRow] = {}
    state: dict[str, Item] = {}
    for item in [*items, *others]:
        with suppress(ValueError, KeyError, TypeError):
            key = _text(item, _METRICS_KEY) or _text(item, _STATE_KEY) or _text(item, KEY)
            if "lut" in item:
                row = _metrics(key, item, MetricsPlace.LEASE_TABLE if KEY in item else MetricsPlace.OWN_TABLE)
                # A row that was moved to the lease table may still exist in the other table.
                if key not in metrics or metrics[key].updated_at < row.updated_at:
                    metrics[key] = row
            else:
                state[key] = item
    return KclRows(
        _leader(state.get("Leader", {})),
        tuple(metrics[worker] for worker in sorted(metrics)),
        _text(state.get("Migration3.0", {}), "cv") or None,
        _text(state.get("TableMigration3.5", {}), "tm") or None,
        has_metrics_table,
        bool(others),
    )


def metrics_request(request: WriteMetrics | DeleteMetrics, lease_table: str) -> tuple[str, dict[str, object]]:
    """Return the DynamoDB operation that writes or deletes a metrics row, and the members of its request."""
    is_among_leases = request.place is MetricsPlace.LEASE_TABLE
    table = lease_table if is_among_leases else lease_table + METRICS_SUFFIX
    key = {KEY if is_among_leases else _METRICS_KEY: text(request.worker)}
    members: dict[str, object] = {"TableName": table, "Key": key}
    if isinstance(request, DeleteMetrics):
        return "DeleteItem", members
    row: Item = {"lut": number(request.updated_at), "sts": {"M": {}}, "opr": {"M": {}}, _MARK: text(__version__)}
    if is_among_leases:
        row["entityType"] = text(_METRICS_ENTITY)
    if request.can_share_table:
        row |= {"sup": number(_SHARES_TABLE), "slu": number(request.updated_at)}
    members |= {
        "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in row),
        "ExpressionAttributeNames": {f"#{name}": name for name in row},
        "ExpressionAttributeValues": {f":{name}": value for name, value in row.items()},
    }
    return "UpdateItem", members


def _metrics(worker: str, item: Item, place: MetricsPlace) -> MetricsRow:
    return MetricsRow(worker, int(item["lut"]["N"]), "sup" in item, _text(item, _MARK) or None, place)


def _leader(item: Item) -> LeaderRow | None:
    worker, version = _text(item, "ownerName"), _text(item, "recordVersionNumber")
    return LeaderRow(worker, version, "isReleased" in item) if worker and version else None


def _text(item: Mapping[str, Attribute], name: str) -> str:
    found = item.get(name, {}).get("S", "")
    return found if isinstance(found, str) else ""
