"""The rows that a KCL fleet keeps in addition to its leases, and the requests that read or write these rows.

This module contains values only. ``core.consumer.kcl_fleet`` decides which request is sent.
``adapters.leases.kcl_rows`` encodes the rows.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias, final


@final
class MetricsPlace(Enum):
    """Where the fleet keeps its metrics rows."""

    __hash__ = object.__hash__

    OWN_TABLE = "the table <application>-WorkerMetricStats (KCL 3.0 to 3.4)"
    LEASE_TABLE = "the lease table (KCL 3.5 and later)"


@final
class LeaderRow(NamedTuple):
    """The lock of the leader of a KCL 3 fleet."""

    worker: str
    version: str
    """An id that changes whenever the leader renews its lock."""
    is_released: bool = False


@final
class MetricsRow(NamedTuple):
    """The metrics row of a worker of a KCL 3 fleet."""

    worker: str
    updated_at: int
    """When the row was written, in seconds since 1970, by the worker's clock."""
    can_share_table: bool = False
    """Whether the worker can keep all rows in the lease table, as KCL 3.5 and later can."""
    shardline: str | None = None
    """The version of Shardline that the worker runs, or ``None`` for a KCL worker."""
    place: MetricsPlace = MetricsPlace.OWN_TABLE


@final
class KclRows(NamedTuple):
    """The rows that a KCL fleet keeps in addition to its leases."""

    leader: LeaderRow | None = None
    metrics: tuple[MetricsRow, ...] = ()
    client_version: str | None = None
    """The state of the migration from KCL 2 (``Migration3.0``)."""
    table_migration: str | None = None
    """The state of the migration to one table (``TableMigration3.5``)."""
    has_metrics_table: bool = False
    has_rows_among_leases: bool = False
    """Whether the lease table itself contains any of these rows."""


@final
@dataclass(frozen=True, slots=True)
class ReadKclRows:
    """Read the rows that a KCL fleet keeps in addition to its leases."""


@final
@dataclass(frozen=True, slots=True)
class WriteMetrics:
    """Write the metrics row of this worker."""

    worker: str
    updated_at: int
    place: MetricsPlace
    can_share_table: bool
    """Whether to state that this worker can keep all rows in the lease table. KCL 3.5 waits until all workers do so."""


@final
@dataclass(frozen=True, slots=True)
class DeleteMetrics:
    """Delete the metrics row of this worker."""

    worker: str
    place: MetricsPlace


KclRequest: TypeAlias = ReadKclRows | WriteMetrics | DeleteMetrics
