"""A lease store in DynamoDB, which can be shared with the Java KCL.

The table has the KCL's format: one row per shard. One table belongs to one group, as it would belong to one KCL
application. The group reads one stream, or it reads several streams, and the rows have the KCL's format for several
streams. As in the KCL, the two formats do not mix: a table has rows of one format.

Invariants:

- A write is one conditional request. If the condition fails, the current row comes with the error, or is read with a
  consistent read.
- Listings are consistent and read every page.
- A table with another key, with rows of another group, or with rows of the other format, is refused. A table of one
  stream is refused for another stream.
- In a table of several streams, the key of a row contains the time at which its stream was created. If all rows of a
  stream belong to an earlier stream of this name, the table is refused, because the group would start again without
  notice.
- Only rows that are leases are written, because older KCLs fail at any other row.
- An owner whose row states no lease duration may be a Java KCL worker. It counts as dead after ``kcl_failover``
  seconds.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

import anyio
import msgspec

from shardline.adapters.aws.aws_service import AwsAccess, connect_dynamodb
from shardline.adapters.http.http_failures import broken
from shardline.adapters.leases.dynamodb_items import (
    KEY,
    Item,
    decode_item,
    foreign_user,
    group_and_stream,
    identifier_of,
    is_lease,
    key_of,
    names_stream,
    stream_identifier,
)
from shardline.adapters.leases.dynamodb_writes import request_of
from shardline.adapters.leases.kcl_rows import (
    COORDINATION_SUFFIX,
    METRICS_SUFFIX,
    decode_kcl_rows,
    metrics_request,
)
from shardline.adapters.leases.lease_rows import RowError
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.kcl_requests import DeleteMetrics, KclRows, WriteMetrics
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


class _KeyElement(msgspec.Struct, rename="pascal"):
    attribute_name: str
    key_type: str


class _AttributeDefinition(msgspec.Struct, rename="pascal"):
    attribute_name: str
    attribute_type: str


class _Table(msgspec.Struct, rename="pascal"):
    table_status: str
    key_schema: list[_KeyElement] = []
    attribute_definitions: list[_AttributeDefinition] = []


class _Response(msgspec.Struct, rename="pascal"):
    """The members that we read from any response."""

    table: _Table | None = None
    item: Item | None = None
    attributes: Item | None = None
    items: list[Item] = []
    last_evaluated_key: Item | None = None


_decode: Final = msgspec.json.Decoder(_Response).decode


@final
class DynamoDbLeases:
    """``LeaseStore`` in a KCL lease table.

    Args:
        access: the settings for AWS.
        table: the table's name.
        group: the consumer group.
        stream: the stream.
        existing: use an existing table; never create one.
        kcl_failover: the failover time, in seconds, of Java KCL workers that share the table.
        follows_kcl: whether workers look for a KCL fleet on the table and follow it.
        is_shared: whether the table has the rows of several streams. If so, call ``identify`` before ``open``.

    Raises:
        UsageError: ``kcl_failover`` is out of range.
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
        follows_kcl: bool = False,
        is_shared: bool = False,
    ) -> None:
        self.is_shared: Final = is_shared
        self._identifier: str | None = None
        self.kcl_failover: Final = _check_kcl_failover(kcl_failover)
        self.follows_kcl: Final = follows_kcl
        self._other_items: list[Item] = []  # the rows of the last listing that are not leases
        self._access = access
        self._http: SignedHttp | None = None
        self._table = table
        self.group: Final = group
        self.stream: Final = stream
        self._existing = existing

    def for_stream(self, stream: str) -> "DynamoDbLeases":
        """Return the store of the same group for one of several streams."""
        return DynamoDbLeases(
            self._access,
            self._table,
            self.group,
            stream,
            existing=self._existing,
            kcl_failover=self.kcl_failover,
            is_shared=True,
        )

    def identify(self, account_id: str, created_at: float) -> None:
        """Set the account and the creation time of the stream, which are in the keys of its rows."""
        self._identifier = stream_identifier(account_id, self.stream, created_at)

    async def open(self) -> Failure | None:
        """Create the table if it is missing, wait until it is usable, and check that its rows belong to this group."""
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
                problem = self._check_key(described.table)
                # The listing fails if the table has rows of another group.
                listed = [] if problem or self._existing else await self.list_leases()
                return listed if isinstance(listed, Failure) else problem
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        message = f"the table {self._table!r} did not become usable in two minutes"
        return Failure(FailureKind.TRANSIENT, "TableNotReady", message, maybe_received=False)

    async def list_leases(self) -> list[Lease] | Failure:
        items = await self._scan()
        if isinstance(items, Failure):
            return items
        leases: list[Lease] = []
        self._other_items = [item for item in items if not is_lease(item)]
        found = self._rows_of_stream([item for item in items if is_lease(item)])
        if isinstance(found, Failure):
            return found
        for item in found:
            lease = self._lease(item)
            if isinstance(lease, Failure):
                return lease
            leases.append(lease)
        return sorted(leases, key=lambda lease: lease.shard_id)

    async def apply(self, operation: LeaseOperation) -> Lease | Refused | Failure | None:
        name, members = request_of(operation, self._table, self.group, self.stream, self._identifier)
        answer = await self._send(name, members)
        if isinstance(answer, Failure):
            return answer
        status, response = answer
        if status != 200:  # noqa: PLR2004 - HTTP: the condition did not hold
            return await self._refusal(operation, response)
        if name == "UpdateItem":
            return self._lease(response.attributes or {})
        result = apply(None, operation)  # the condition of a create or a delete held: the new lease, or None
        assert not isinstance(result, Refused), operation
        return result

    async def read_kcl_rows(self) -> KclRows | Failure:
        """Return the rows that a KCL fleet keeps in its own tables, and those that the last listing found among the
        leases.
        """
        metrics = await self._scan(self._table + METRICS_SUFFIX)
        has_metrics_table = not isinstance(metrics, Failure)
        coordination = await self._scan(self._table + COORDINATION_SUFFIX)
        for answer in (metrics, coordination):
            if isinstance(answer, Failure) and answer.kind is not FailureKind.NOT_FOUND:
                return answer
        found = [] if isinstance(metrics, Failure) else metrics
        found += [] if isinstance(coordination, Failure) else coordination
        return decode_kcl_rows(found, self._other_items, has_metrics_table=has_metrics_table)

    async def write_metrics(self, request: WriteMetrics | DeleteMetrics) -> Failure | None:
        """Write or delete the metrics row of a worker."""
        answer = await self._send(*metrics_request(request, self._table))
        return answer if isinstance(answer, Failure) else None

    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Return the group and the stream that the rows name, whatever this store's own group is.

        The list is empty if the table is empty. Rows that only a KCL wrote name neither the group nor the stream: both
        are then ``None``.
        """
        items = await self._scan()
        if isinstance(items, Failure):
            return items
        found = {GroupOnStream(*group_and_stream(item)) for item in filter(is_lease, items)}
        # If some rows name their group, a KCL's rows in the same table also belong to that group.
        groups = {one.group for one in found} - {None}
        if len(groups) == 1:
            (group,) = groups
            found = {one._replace(group=group) for one in found if one.stream is not None}
        unnamed = GroupOnStream(None, None)
        named = sorted(found - {unnamed}, key=lambda one: (one.group or "", one.stream or ""))
        return named or [unnamed] * bool(found)

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            with anyio.CancelScope(shield=True):
                await http.close()

    def __repr__(self) -> str:
        return f"<DynamoDbLeases of group {self.group!r} on {self.stream!r} in {self._table!r}>"

    # ---- rows

    async def _refusal(self, operation: LeaseOperation, response: _Response) -> Lease | Refused | Failure | None:
        """Return why a write whose condition has failed is refused, judging by the current row.

        The error response contains the row, unless there is no row or the server is an emulator. In these cases, the
        row is read.
        """
        if not response.item:
            members = {
                "TableName": self._table,
                "Key": key_of(operation.shard_id, self._identifier),
                "ConsistentRead": True,
            }
            answer = await self._call("GetItem", members)
            if isinstance(answer, Failure):
                return answer
            response = answer
        current = self._lease(response.item) if response.item else None
        if isinstance(current, Failure):
            return current
        decision = apply(current, operation)
        if isinstance(decision, Refused) or (decision is None and current is None):
            return decision
        # The row would permit the write now: another worker has changed it since the condition failed.
        message = f"the lease {operation.shard_id} in {self._table!r} changed again in the meantime"
        return Failure(FailureKind.TRANSIENT, "Contended", message, maybe_received=False)

    def _rows_of_stream(self, items: list[Item]) -> list[Item] | Failure:
        """Return the rows of this stream. In a table of one stream, these are all rows."""
        if self._existing and not self.is_shared:
            self._adopt(items)
        mine = self._identifier
        if mine is None:
            return items
        named: list[Item] = []
        earlier: list[str] = []
        for item in items:
            identifier = identifier_of(item)
            if identifier is None or identifier == mine:
                named.append(item)  # rows of the other format are refused later
            elif names_stream(identifier, self.stream) and identifier.partition(":")[0] == mine.partition(":")[0]:
                earlier.append(identifier)
        if earlier and not named:
            return _invalid(
                "StreamRecreated",
                f"the table {self._table!r} has the leases of an earlier stream named {self.stream!r} "
                f"({earlier[0]}), which was deleted: delete these rows to begin with the new stream",
            )
        return named

    def _adopt(self, items: list[Item]) -> None:
        """Find out from the rows which stream of this name the table has, if it is a table of several streams."""
        identifiers = {one for item in items if (one := identifier_of(item)) is not None}
        ours = [one for one in identifiers if names_stream(one, self.stream)]
        # The newest stream counts. If the table has other streams only, no row is ours.
        newest = max(ours, key=_created_at, default=next(iter(identifiers), None) and f":{self.stream}:0")
        self._identifier = newest

    def _lease(self, item: Item) -> Lease | Failure:
        try:
            user = foreign_user(item, self.group, self.stream, is_shared=self._identifier is not None)
            if user is None:
                return decode_item(item)
        except RowError as error:
            return _invalid("UnreadableRow", f"the table {self._table!r} has a row that cannot be read: {error}")
        problem = f"the table {self._table!r} belongs to {user}, not to group {self.group!r} on stream {self.stream!r}"
        return _invalid("ForeignTable", f"{problem}: use another table")

    async def _scan(self, table: str | None = None) -> list[Item] | Failure:
        items: list[Item] = []
        start: Item | None = None
        while True:
            members: dict[str, object] = {"TableName": table or self._table, "ConsistentRead": True}
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

    async def _create(self) -> _Response | Failure:
        members: dict[str, object] = {
            "TableName": self._table,
            "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        created = await self._call("CreateTable", members)
        if isinstance(created, Failure) and created.kind is FailureKind.IN_USE:
            return _Response()  # another worker is creating the table
        return created

    def _missing(self) -> Failure:
        message = f"there is no table {self._table!r}: no group has leases there"
        return Failure(FailureKind.NOT_FOUND, "NoSuchStore", message, maybe_received=False)

    def _check_key(self, table: _Table) -> Failure | None:
        keys = [(element.attribute_name, element.key_type) for element in table.key_schema]
        if keys == [(KEY, "HASH")] and _AttributeDefinition(KEY, "S") in table.attribute_definitions:
            return None
        problem = f"the table {self._table!r} is not a lease table: its key is {keys}, not {KEY} alone"
        return _invalid("ForeignTable", f"{problem}: use another table")

    # ---- requests

    async def _call(self, operation: str, members: Mapping[str, object]) -> _Response | Failure:
        answer = await self._send(operation, members)
        return answer if isinstance(answer, Failure) else answer[1]

    async def _send(self, operation: str, members: Mapping[str, object]) -> tuple[int, _Response] | Failure:
        http = self._http
        if http is None:
            return _invalid("NotOpen", f"the store in {self._table!r} is not open: open it first")
        if self._access.before_call is not None:
            await self._access.before_call(operation)
        answer = await http.post(operation, _CONTENT_TYPE, _encode(members), {}, None, expected=_REFUSED)
        if isinstance(answer, Failure):
            return answer
        try:
            return answer.status, _decode(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return broken("BadAnswer", http.host_of(operation, None), error)


def _created_at(identifier: str) -> int:
    created_at = identifier.rpartition(":")[2]
    return int(created_at) if created_at.isdigit() else 0


def _check_kcl_failover(seconds: object) -> float:
    low, high = _KCL_FAILOVER_RANGE
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not low <= seconds <= high:
        raise UsageError(f"kcl_failover must be a number of seconds from {low:g} to {high:g}, not {seconds!r}")
    return float(seconds)


def _invalid(code: str, message: str) -> Failure:
    return Failure(FailureKind.INVALID, code, message, maybe_received=False)
