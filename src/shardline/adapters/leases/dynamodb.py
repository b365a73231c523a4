"""How do workers of a fleet share leases through DynamoDB, and with the Java KCL?

In a table that the KCL could have made: a row a shard. One table serves one group on one stream, as it would serve one
KCL application.

Invariants:

- A write is one conditional request; what refused it comes back with the refusal, or is read consistently after it.
- Listings are consistent, and have every page.
- A table of another shape, or with rows that serve another stream or group, is refused.
- No row is ever put here that is no lease: older KCLs stop at it.
- An owner that does not state its lease duration may be a Java KCL: ``kcl_failover`` is how it is judged.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

import anyio
import msgspec

from shardline.adapters.aws.aws_service import AwsAccess, connect_dynamodb
from shardline.adapters.http.http_failures import broken
from shardline.adapters.leases.dynamodb_items import KEY, Item, decode_item, foreign, is_lease, key_of, served
from shardline.adapters.leases.dynamodb_writes import request_of
from shardline.adapters.leases.lease_rows import RowError
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import LeaseOperation, Refused, apply
from shardline.errors import UsageError
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream

if TYPE_CHECKING:
    from shardline.adapters.aws.signed_http import SignedHttp

_CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_REFUSED: Final = frozenset({"ConditionalCheckFailedException"})
_READY_CHECKS: Final = 130
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})
KCL_FAILOVER: Final = 10.0
"""The KCL's own default (``failoverTimeMillis``), in seconds."""
_KCL_FAILOVER_RANGE: Final = (0.1, 3_600.0)

_encode: Final = msgspec.json.Encoder().encode


class _Key(msgspec.Struct, rename="pascal"):
    attribute_name: str
    key_type: str


class _Kind(msgspec.Struct, rename="pascal"):
    attribute_name: str
    attribute_type: str


class _Table(msgspec.Struct, rename="pascal"):
    table_status: str
    key_schema: list[_Key] = []
    attribute_definitions: list[_Kind] = []


class _Answer(msgspec.Struct, rename="pascal"):
    """What we look at in any answer."""

    table: _Table | None = None
    item: Item | None = None
    attributes: Item | None = None
    items: list[Item] = []
    last_evaluated_key: Item | None = None


_decode: Final = msgspec.json.Decoder(_Answer).decode


@final
class DynamoDbLeases:
    """``LeaseStore`` in a KCL lease table.

    Args:
        access: how to reach AWS.
        table: the table's name.
        group: the consumer group.
        stream: the stream.
        existing: use only a table that is there, never make a new one.
        kcl_failover: the failover time, in seconds, of Java KCL workers that share the table.

    Raises:
        UsageError: ``kcl_failover`` is no such time.
    """

    scan_interval: float = 2.0
    checkpoint_interval: float = 10.0

    def __init__(
        self,
        access: AwsAccess,
        table: str,
        group: str,
        stream: str,
        *,
        existing: bool = False,
        kcl_failover: float = KCL_FAILOVER,
    ) -> None:
        self.kcl_failover: Final = _check_kcl_failover(kcl_failover)
        self._access = access
        self._http: SignedHttp | None = None
        self._table = table
        self.group: Final = group
        self.stream: Final = stream
        self._existing = existing

    async def open(self) -> Failure | None:
        """Make the table if it is missing, wait until it can be used, and look whom it serves."""
        if self._http is None:
            try:
                self._http = await connect_dynamodb(self._access)
            except UsageError as error:
                return _invalid("Settings", str(error))
        pause = _FIRST_PAUSE
        for _ in range(_READY_CHECKS):
            described = await self._call("DescribeTable", {"TableName": self._table})
            if isinstance(described, Failure) and described.kind is FailureKind.NOT_FOUND:
                described = self._missing() if self._existing else await self._create()
            if isinstance(described, Failure):
                return described
            if described.table is not None and described.table.table_status in _USABLE:
                problem = self._shape(described.table)
                listed = [] if problem or self._existing else await self.list_leases()  # rows that cannot be ours
                return listed if isinstance(listed, Failure) else problem
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        told = f"the table {self._table!r} did not become usable in two minutes"
        return Failure(FailureKind.TRANSIENT, "TableNotReady", told, maybe_received=False)

    async def list_leases(self) -> list[Lease] | Failure:
        items = await self._scan()
        if isinstance(items, Failure):
            return items
        leases: list[Lease] = []
        for item in filter(is_lease, items):
            lease = self._lease(item)
            if isinstance(lease, Failure):
                return lease
            leases.append(lease)
        return sorted(leases, key=lambda lease: lease.shard_id)

    async def apply(self, operation: LeaseOperation) -> Lease | Refused | Failure | None:
        name, members = request_of(operation, self._table, self.group, self.stream)
        answer = await self._send(name, members)
        if isinstance(answer, Failure):
            return answer
        status, told = answer
        if status != 200:  # noqa: PLR2004 - HTTP: the condition did not hold
            return await self._refusal(operation, told)
        if name == "UpdateItem":
            return self._lease(told.attributes or {})
        done = apply(None, operation)  # made or gone: no row stood in its way
        assert not isinstance(done, Refused), operation
        return done

    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Whom the table serves, as its rows say, whatever this store's own group is; none as long as it is empty."""
        items = await self._scan()
        if isinstance(items, Failure):
            return items
        named = {GroupOnStream(*served(item)) for item in filter(is_lease, items)}
        nobody = GroupOnStream(None, None)
        return sorted(named - {nobody}) or [nobody] * bool(named)  # beside rows that say it, a KCL's are of the same

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            with anyio.CancelScope(shield=True):
                await http.close()

    def __repr__(self) -> str:
        return f"<DynamoDbLeases of group {self.group!r} on {self.stream!r} in {self._table!r}>"

    # ---- rows

    async def _refusal(self, operation: LeaseOperation, told: _Answer) -> Lease | Refused | Failure | None:
        """What refused a write: sent with the refusal, unless there is no row or the server is an emulator."""
        if not told.item:
            members = {"TableName": self._table, "Key": key_of(operation.shard_id), "ConsistentRead": True}
            answer = await self._call("GetItem", members)
            if isinstance(answer, Failure):
                return answer
            told = answer
        current = self._lease(told.item) if told.item else None
        if isinstance(current, Failure):
            return current
        now = apply(current, operation)
        if isinstance(now, Refused) or (now is None and current is None):
            return now
        crowd = f"the lease {operation.shard_id} in {self._table!r} changed again meanwhile"
        return Failure(FailureKind.TRANSIENT, "Contended", crowd, maybe_received=False)

    def _lease(self, item: Item) -> Lease | Failure:
        try:
            owner = foreign(item, self.group, self.stream)
            if owner is None:
                return decode_item(item)
        except RowError as error:
            return _invalid("UnreadableRow", f"the table {self._table!r} has a row that cannot be read: {error}")
        told = f"the table {self._table!r} serves {owner}, not group {self.group!r} on stream {self.stream!r}"
        return _invalid("ForeignTable", f"{told}: name another table")

    async def _scan(self) -> list[Item] | Failure:
        items: list[Item] = []
        start: Item | None = None
        while True:
            members: dict[str, object] = {"TableName": self._table, "ConsistentRead": True}
            if start:
                members["ExclusiveStartKey"] = start
            page = await self._call("Scan", members)
            if isinstance(page, Failure):
                return page
            items += page.items
            start = page.last_evaluated_key
            if not start:
                return items

    # ---- the table

    async def _create(self) -> _Answer | Failure:
        members: dict[str, object] = {
            "TableName": self._table,
            "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        made = await self._call("CreateTable", members)
        if isinstance(made, Failure) and made.kind is FailureKind.IN_USE:
            return _Answer()  # someone else makes it right now
        return made

    def _missing(self) -> Failure:
        told = f"there is no table {self._table!r}: no group has leases there"
        return Failure(FailureKind.NOT_FOUND, "NoSuchStore", told, maybe_received=False)

    def _shape(self, table: _Table) -> Failure | None:
        keys = [(one.attribute_name, one.key_type) for one in table.key_schema]
        if keys == [(KEY, "HASH")] and _Kind(KEY, "S") in table.attribute_definitions:
            return None
        told = f"the table {self._table!r} is no lease table: its key is {keys}, not {KEY} alone: name another table"
        return _invalid("ForeignTable", told)

    # ---- requests

    async def _call(self, operation: str, members: Mapping[str, object]) -> _Answer | Failure:
        answer = await self._send(operation, members)
        return answer if isinstance(answer, Failure) else answer[1]

    async def _send(self, operation: str, members: Mapping[str, object]) -> tuple[int, _Answer] | Failure:
        http = self._http
        if http is None:
            return _invalid("NotOpen", f"the store in {self._table!r} is not open: open it first")
        answer = await http.post(operation, _CONTENT_TYPE, _encode(members), {}, None, expected=_REFUSED)
        if isinstance(answer, Failure):
            return answer
        try:
            return answer.status, _decode(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return broken("BadAnswer", http.host_of(operation, None), error)


def _check_kcl_failover(seconds: object) -> float:
    low, high = _KCL_FAILOVER_RANGE
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not low <= seconds <= high:
        raise UsageError(f"kcl_failover must be a number of seconds from {low:g} to {high:g}, not {seconds!r}")
    return float(seconds)


def _invalid(code: str, message: str) -> Failure:
    return Failure(FailureKind.INVALID, code, message, maybe_received=False)
