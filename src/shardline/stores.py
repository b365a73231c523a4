"""Everything that a lease store needs: the protocols, the rows, the operations with their rules, and the failures.

Pass an object that implements ``LeaseStore`` as ``Consumer(store=...)``. ``apply`` decides every operation, so a store
only has to read a row, call ``apply`` and write the result, atomically. ``shardline.testing.LeaseStoreContract`` tests
a store.
"""

from shardline.adapters.leases.lease_rows import RowError, decode_row, encode_row
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    LeaseOperation,
    Refused,
    ReleaseLease,
    RenewLease,
    ResetLease,
    TakeLease,
    WriteChildren,
    apply,
    apply_to,
    landed,
)
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.lease import Checkpoint, Fence, Incarnation, Lease
from shardline.model.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    PositionKind,
    at_sequence_number,
    at_timestamp,
)
from shardline.model.sequence import SequenceNumber
from shardline.ports import BatchingLeaseStore, GroupOnStream, KclLeaseStore, LeaseAnswer, LeaseCatalog, LeaseStore

__all__ = [
    "HASH_KEY_MAX",
    "LATEST",
    "SHARD_END",
    "TRIM_HORIZON",
    "AskHandOver",
    "BatchingLeaseStore",
    "CancelHandOver",
    "Checkpoint",
    "CommitCheckpoint",
    "CreateLease",
    "DeleteLease",
    "Failure",
    "FailureKind",
    "Fence",
    "FinishHandOver",
    "GroupOnStream",
    "HashRange",
    "Incarnation",
    "KclLeaseStore",
    "Lease",
    "LeaseAnswer",
    "LeaseCatalog",
    "LeaseOperation",
    "LeaseStore",
    "Position",
    "PositionKind",
    "Refused",
    "ReleaseLease",
    "RenewLease",
    "ResetLease",
    "RowError",
    "SequenceNumber",
    "TakeLease",
    "WriteChildren",
    "apply",
    "apply_to",
    "at_sequence_number",
    "at_timestamp",
    "decode_row",
    "encode_row",
    "landed",
]
