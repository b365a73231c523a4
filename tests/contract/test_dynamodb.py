"""Can a fleet move between the Java KCL and us in one table, and what can go wrong?"""

import json
import time

import anyio
import boto3
import pytest
from botocore.config import Config
from tests.unit.adapters.leases.test_dynamodb_items import END, JAVA_ROW, SHARD

from shardline import __version__
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.aws.credential_provider import CredentialSource
from shardline.adapters.aws.endpoints import Endpoints, parse_endpoint
from shardline.adapters.aws.signed_http import SignedHttp
from shardline.adapters.http.http_failures import broken
from shardline.adapters.http.http_settings import HttpSettings
from shardline.adapters.leases import dynamodb as module
from shardline.adapters.leases.dynamodb import DynamoDbLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.kcl_requests import DeleteMetrics, KclRows, MetricsPlace, MetricsRow, WriteMetrics
from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    ResetLease,
    TakeLease,
    WriteChildren,
)
from shardline.model.credentials import Credentials
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, TRIM_HORIZON, at_sequence_number
from shardline.model.sequence import SequenceNumber
from shardline.ports import HttpResponse
from shardline.testing import lease_store_contract

pytestmark = pytest.mark.anyio

KEYS = Credentials("AKIDEXAMPLE", "secret")
FIVE = Checkpoint(at_sequence_number(SequenceNumber(5, 2)))

# Attributes that later versions of the Java KCL add to their rows.
OTHERS = {
    "pendingCheckpoint": {"S": "14"},
    "pendingCheckpointSubSequenceNumber": {"N": "0"},
    "pendingCheckpointState": {"B": b"state"},
    "addedIn2030": {"M": {"deep": {"L": [{"N": "1"}, {"NULL": True}]}}},
}
CORE = {
    "leaseKey": "S",
    "leaseCounter": "N",
    "ownerSwitchesSinceCheckpoint": "N",
    "checkpoint": "S",
    "checkpointSubSequenceNumber": "N",
}


@pytest.fixture(params=["dynalite", "ministack"])
def server_url(request):
    return request.getfixturevalue(f"{request.param}_url")


def store_at(url, table, group="billing", stream="orders", **http):
    settings = HttpSettings(**({"connect_timeout": 3, "read_timeout": 5} | http))
    access = AwsAccess(wall_time=time.time, region="eu-west-1", endpoint_url=url, credentials=KEYS, http=settings)
    return DynamoDbLeases(access, table, group, stream)


@pytest.fixture
def store(server_url, unique):
    return store_at(server_url, unique)


@pytest.fixture
async def opened(store):
    assert await store.open() is None
    yield store
    await store.close()


@pytest.fixture
def raw(server_url):
    """A DynamoDB client that is not ours."""
    return boto3.client(
        "dynamodb",
        region_name="eu-west-1",
        endpoint_url=server_url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )


def row_of(raw, table, shard_id=SHARD):
    return raw.get_item(TableName=table, Key={"leaseKey": {"S": shard_id}}, ConsistentRead=True)["Item"]


# ---- with the Java KCL


async def test_the_table_is_the_kcls_and_paid_by_request(opened, raw, unique):
    table = raw.describe_table(TableName=unique)["Table"]
    assert table["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
    assert table["AttributeDefinitions"] == [{"AttributeName": "leaseKey", "AttributeType": "S"}]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


async def test_a_kcl_application_moves_here_and_back(opened, raw, unique):
    """Java has stopped; we list, take over, read on from its checkpoint, commit and release. Everything that it wrote
    is kept.
    """
    raw.put_item(TableName=unique, Item=JAVA_ROW | OTHERS)
    (lease,) = await opened.list_leases()
    assert lease.resume_at == at_sequence_number("12")
    assert (lease.owner, lease.hash_range) == ("java-1", HashRange(0, int(END)))
    taken = await opened.apply(TakeLease(SHARD, "py-1", lease.fence))
    assert (taken.counter, taken.owner, taken.owner_switches) == (39, "py-1", 1)
    renewed = await opened.apply(RenewLease(SHARD, "py-1", 39))
    row = row_of(raw, unique)
    assert {name: row[name] for name in OTHERS} == OTHERS  # no attribute was lost
    committed = await opened.apply(CommitCheckpoint(SHARD, "py-1", renewed.counter, FIVE))
    await opened.apply(ReleaseLease(SHARD, "py-1", committed.counter))
    row = row_of(raw, unique)
    assert row == {
        "leaseKey": {"S": SHARD},
        "leaseCounter": {"N": "42"},
        "checkpoint": {"S": "5"},
        "checkpointSubSequenceNumber": {"N": "2"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": END},
        "throughputKBps": {"N": row["throughputKBps"]["N"]},
        "addedIn2030": OTHERS["addedIn2030"],
        "shardlineGroup": {"S": "billing"},
        "shardlineStream": {"S": "orders"},
    }


async def test_a_java_leader_asks_us_for_a_lease(opened, raw, unique):
    """A hand-over as KCL 3 writes it: we notice it, commit, and hand over."""
    await opened.apply(CreateLease(Lease(SHARD, counter=3, owner="py-1")))
    raw.update_item(
        TableName=unique,
        Key={"leaseKey": {"S": SHARD}},
        UpdateExpression="SET leaseOwner = :new, checkpointOwner = :old",
        ConditionExpression="leaseOwner = :old AND attribute_not_exists(checkpointOwner)",
        ExpressionAttributeValues={":new": {"S": "java-2"}, ":old": {"S": "py-1"}},
    )
    learnt = await opened.apply(RenewLease(SHARD, "py-1", 3))
    assert (learnt.owner, learnt.checkpoint_owner, learnt.counter) == ("java-2", "py-1", 4)
    committed = await opened.apply(CommitCheckpoint(SHARD, "py-1", 4, FIVE))
    assert isinstance(await opened.apply(FinishHandOver(SHARD, "py-1", committed.counter)), Lease)
    row = row_of(raw, unique)
    assert "checkpointOwner" not in row
    assert (row["leaseOwner"], row["leaseCounter"]) == ({"S": "java-2"}, {"N": "6"})
    assert row["ownerSwitchesSinceCheckpoint"] == {"N": "1"}


async def test_we_ask_a_java_worker_for_a_lease(opened, raw, unique):
    raw.put_item(TableName=unique, Item=JAVA_ROW)
    asked = await opened.apply(AskHandOver(SHARD, "py-1", "java-1"))
    assert (asked.counter, asked.owner, asked.checkpoint_owner) == (38, "py-1", "java-1")
    row = row_of(raw, unique)
    assert (row["leaseOwner"], row["checkpointOwner"]) == ({"S": "py-1"}, {"S": "java-1"})


async def test_every_row_has_what_a_java_reader_needs_after_every_operation(opened, raw, unique):
    parents = frozenset({"shardId-000000000008"})
    steps = [
        CreateLease(Lease(SHARD, parent_ids=parents, hash_range=HashRange(0, 9))),
        TakeLease(SHARD, "a", Lease(SHARD).fence),
        RenewLease(SHARD, "a", 1, throughput=0.5),
        AskHandOver(SHARD, "c", "a"),
        CancelHandOver(SHARD, "c", "a"),
        AskHandOver(SHARD, "b", "a"),
        CommitCheckpoint(SHARD, "a", 2, FIVE),
        FinishHandOver(SHARD, "a", 3),
        WriteChildren(SHARD, frozenset({"c", "d"})),
        ReleaseLease(SHARD, "b", 4),
    ]
    for step in steps:
        assert isinstance(await opened.apply(step), Lease), step
        row = row_of(raw, unique)
        assert all(list(row[name]) == [kind] for name, kind in CORE.items()), step
        assert row["parentShardId"] == {"SS": ["shardId-000000000008"]}
    assert sorted(row["childShardIds"]["SS"]) == ["c", "d"]
    assert "leaseOwner" not in row


async def test_a_row_without_owner_switches_gets_them_when_it_is_taken(opened, raw, unique):
    """Other libraries omit this attribute, and Java throws without it."""
    item = {name: value for name, value in JAVA_ROW.items() if name != "ownerSwitchesSinceCheckpoint"}
    raw.put_item(TableName=unique, Item=item)
    (lease,) = await opened.list_leases()
    await opened.apply(TakeLease(SHARD, "java-1", lease.fence))
    assert row_of(raw, unique)["ownerSwitchesSinceCheckpoint"] == {"N": "0"}


async def test_latest_is_pinned_beside_what_java_reads(opened, raw, unique):
    lease = Lease(SHARD, checkpoint=Checkpoint(LATEST), latest_at=1_700_000_000.5)
    await opened.apply(CreateLease(lease))
    row = row_of(raw, unique)
    assert (row["checkpoint"], row["shardlineStartAt"]) == ({"S": "LATEST"}, {"N": "1700000000.5"})
    await opened.apply(TakeLease(SHARD, "a", lease.fence))
    await opened.apply(CommitCheckpoint(SHARD, "a", 1, FIVE))
    assert "shardlineStartAt" not in row_of(raw, unique)


async def test_without_a_kcl_nothing_is_found_and_nothing_is_created(opened, raw, unique):
    assert await opened.read_kcl_rows() == KclRows()
    assert [name for name in raw.list_tables()["TableNames"] if name.startswith(unique)] == [unique]
    written = await opened.write_metrics(WriteMetrics("me", 17, MetricsPlace.OWN_TABLE, can_share_table=False))
    assert written.kind is FailureKind.NOT_FOUND


async def test_a_metrics_row_beside_those_of_the_kcl(opened, raw, unique):
    raw.create_table(
        TableName=f"{unique}-WorkerMetricStats",
        AttributeDefinitions=[{"AttributeName": "wid", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "wid", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    raw.get_waiter("table_exists").wait(TableName=f"{unique}-WorkerMetricStats", WaiterConfig={"Delay": 1})
    assert await opened.write_metrics(WriteMetrics("me", 17, MetricsPlace.OWN_TABLE, can_share_table=True)) is None
    [row] = (await opened.read_kcl_rows()).metrics
    assert row == MetricsRow("me", 17, can_share_table=True, shardline=__version__)
    assert await opened.write_metrics(DeleteMetrics("me", MetricsPlace.OWN_TABLE)) is None
    assert await opened.read_kcl_rows() == KclRows(has_metrics_table=True)


async def test_a_metrics_row_in_the_one_table_of_the_kcl_3_5(opened):
    assert await opened.write_metrics(WriteMetrics("me", 17, MetricsPlace.LEASE_TABLE, can_share_table=True)) is None
    assert await opened.list_leases() == []
    [row] = (await opened.read_kcl_rows()).metrics
    among = MetricsPlace.LEASE_TABLE
    assert row == MetricsRow("me", 17, can_share_table=True, shardline=__version__, place=among)


async def test_rows_that_are_no_leases_are_passed_over(opened, raw, unique):
    """KCL 3.5 keeps its workers' metrics and its leader in the same table."""
    raw.put_item(TableName=unique, Item=JAVA_ROW | {"entityType": {"S": "LEASE"}})
    raw.put_item(TableName=unique, Item={"leaseKey": {"S": "w"}, "entityType": {"S": "WORKER_METRIC_STATS"}})
    raw.put_item(TableName=unique, Item={"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}})
    assert [lease.shard_id for lease in await opened.list_leases()] == [SHARD]


# ---- tables that are not ours


async def test_a_table_of_several_streams_is_refused(opened, raw, unique):
    raw.put_item(TableName=unique, Item=JAVA_ROW | {"leaseKey": {"S": f"123456789012:orders:1700000000:{SHARD}"}})
    failure = await opened.list_leases()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "ForeignTable")
    assert "several streams" in failure.message


# ---- tables of several streams

IDENTIFIER = "123456789012:orders:1700000000"
JAVA_ROW_OF_SEVERAL = JAVA_ROW | {
    "leaseKey": {"S": f"{IDENTIFIER}:{SHARD}"},
    "streamName": {"S": IDENTIFIER},
    "shardId": {"S": SHARD},
}


@pytest.fixture
async def shared(store):
    """The store of one of several streams."""
    found = store.for_stream("orders")
    found.identify("123456789012", 1_700_000_000.5)
    assert await found.open() is None
    yield found
    await found.close()


async def test_a_row_of_several_streams_is_the_kcls(shared, raw, unique):
    await shared.apply(CreateLease(Lease(SHARD, parent_ids=frozenset({"shardId-000000000007"}))))
    row = row_of(raw, unique, f"{IDENTIFIER}:{SHARD}")
    assert (row["streamName"], row["shardId"]) == ({"S": IDENTIFIER}, {"S": SHARD})
    assert row["parentShardId"] == {"SS": ["shardId-000000000007"]}
    assert {"leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpoint"} <= row.keys()


async def test_a_kcl_application_of_several_streams_moves_here_and_back(shared, raw, unique):
    other = JAVA_ROW_OF_SEVERAL | {
        "leaseKey": {"S": f"123456789012:payments:1700000000:{SHARD}"},
        "streamName": {"S": "123456789012:payments:1700000000"},
    }
    raw.put_item(TableName=unique, Item=JAVA_ROW_OF_SEVERAL)
    raw.put_item(TableName=unique, Item=other)
    before = row_of(raw, unique, other["leaseKey"]["S"])
    (lease,) = await shared.list_leases()
    assert lease.shard_id == SHARD
    taken = await shared.apply(TakeLease(SHARD, "w", lease.fence))
    assert (taken.owner, taken.counter) == ("w", lease.counter + 1)
    row = row_of(raw, unique, f"{IDENTIFIER}:{SHARD}")
    assert (row["leaseOwner"], row["streamName"]) == ({"S": "w"}, {"S": IDENTIFIER})
    assert row_of(raw, unique, other["leaseKey"]["S"]) == before
    visitor = DynamoDbLeases(shared._access, unique, "billing", "orders", existing=True)
    assert await visitor.open() is None
    assert await visitor.list_groups() == [("billing", "orders"), ("billing", "payments")]
    assert await visitor.list_leases() == [taken]
    reset = await visitor.apply(ResetLease(SHARD, taken.fence, Checkpoint(TRIM_HORIZON)))
    assert (reset.owner, row_of(raw, unique, f"{IDENTIFIER}:{SHARD}")["checkpoint"]) == (None, {"S": "TRIM_HORIZON"})
    await visitor.close()


async def test_a_visitor_of_another_stream_sees_no_rows(shared, unique):
    await shared.apply(CreateLease(Lease(SHARD)))
    visitor = DynamoDbLeases(shared._access, unique, "billing", "audit", existing=True)
    assert await visitor.open() is None
    assert await visitor.list_leases() == []
    await visitor.close()


async def test_the_two_formats_do_not_mix(shared, store, raw, unique):
    await shared.apply(CreateLease(Lease(SHARD)))
    failure = await store.open()
    assert (failure.code, "several streams" in failure.message) == ("ForeignTable", True)
    await store.close()
    raw.put_item(TableName=unique, Item=JAVA_ROW)
    failure = await shared.list_leases()
    assert (failure.code, "an application of one stream" in failure.message) == ("ForeignTable", True)


async def test_the_rows_of_an_earlier_stream_are_not_passed_over(shared, raw, unique):
    earlier = IDENTIFIER.replace("1700000000", "1600000000")
    raw.put_item(
        TableName=unique,
        Item=JAVA_ROW_OF_SEVERAL | {"leaseKey": {"S": f"{earlier}:{SHARD}"}, "streamName": {"S": earlier}},
    )
    failure = await shared.list_leases()
    assert (failure.code, failure.retryable) == ("StreamRecreated", False)
    assert earlier in failure.message
    raw.put_item(TableName=unique, Item=JAVA_ROW_OF_SEVERAL)
    assert [lease.shard_id for lease in await shared.list_leases()] == [SHARD], "the group goes on with the new stream"


async def test_a_table_of_another_shape_is_refused(server_url, raw, unique):
    raw.create_table(
        TableName=unique,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    store = store_at(server_url, unique)
    failure = await store.open()
    await store.close()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "ForeignTable")


async def test_rows_of_another_group_are_written_by_none_of_our_operations(opened, server_url, raw, unique):
    await opened.apply(CreateLease(Lease(SHARD, counter=1, owner="a", checkpoint_owner=None)))
    before = row_of(raw, unique)
    other = store_at(server_url, unique, group="audit")
    assert (await other.open()).code == "ForeignTable"
    for operation in lease_store_contract._EVERY_OPERATION:
        assert (await other.apply(operation)).code == "ForeignTable", operation
    assert row_of(raw, unique) == before
    await other.close()


async def test_whom_a_table_serves_can_be_asked_by_anyone(opened, server_url, raw, unique):
    """Rows of a KCL name no group. Beside rows that name one, they belong to the same group."""
    visitor = DynamoDbLeases(opened._access, unique, "-", "-", existing=True)
    assert await visitor.open() is None
    assert await visitor.list_groups() == []
    kcl = {"leaseKey": {"S": "shardId-000000000001"}, "leaseCounter": {"N": "7"}, "checkpoint": {"S": "TRIM_HORIZON"}}
    raw.put_item(TableName=unique, Item=kcl)
    assert await visitor.list_groups() == [(None, None)]
    raw.put_item(TableName=unique, Item={"leaseKey": {"S": "Worker-1"}, "entityType": {"S": "WORKER_METRICS"}})
    assert await visitor.list_groups() == [(None, None)]
    await opened.apply(CreateLease(Lease(SHARD)))
    assert await visitor.list_groups() == [("billing", "orders")]
    assert (await visitor.list_leases()).code == "ForeignTable"
    await visitor.close()


async def test_a_reset_of_a_row_of_the_kcl_leaves_it_to_whoever_comes(opened, raw, unique):
    kcl = {"leaseKey": {"S": SHARD}, "leaseCounter": {"N": "7"}, "checkpoint": {"S": "SHARD_END"}}
    kcl |= {"leaseOwner": {"S": "java"}, "pendingCheckpoint": {"S": "9"}, "other": {"S": "kept"}}
    raw.put_item(TableName=unique, Item=kcl)
    (row,) = await opened.list_leases()
    await opened.apply(ResetLease(SHARD, row.fence, Checkpoint(LATEST), 5.0))
    item = row_of(raw, unique)
    assert (item["leaseCounter"]["N"], item["checkpoint"]["S"], item["other"]["S"]) == ("8", "LATEST", "kept")
    assert float(item["shardlineStartAt"]["N"]) == 5
    assert not {"leaseOwner", "pendingCheckpoint", "shardlineGroup", "shardlineStream"} & item.keys()


async def test_a_row_that_cannot_be_read_is_an_error_that_names_it(opened, raw, unique):
    raw.put_item(TableName=unique, Item={"leaseKey": {"S": SHARD}, "checkpoint": {"S": "LATEST"}})
    failure = await opened.list_leases()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "UnreadableRow")
    assert SHARD in failure.message
    assert "leaseCounter" in failure.message


async def test_a_table_that_was_deleted_is_a_failure(opened, raw, unique):
    raw.delete_table(TableName=unique)
    with anyio.fail_after(10):
        while isinstance(failure := await opened.list_leases(), list):  # noqa: ASYNC110 - dynalite takes a moment
            await anyio.sleep(0.05)
    assert failure.kind is FailureKind.NOT_FOUND


# ---- failures, with scripted answers


class Scripted:
    """An ``HttpTransport`` that gives prepared answers in turn, and remembers the requests."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def post(self, _, headers, body):
        self.asked.append((headers["X-Amz-Target"], json.loads(body)))
        return self.answers.pop(0)

    async def close(self):
        pass


def told(body, status=200):
    return HttpResponse(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def error(code, status=400, **members):
    return told({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "so"} | members, status)


def scripted(*answers):
    transport = Scripted(*answers)
    store = store_at("http://localhost:1", "table")
    store._http = SignedHttp(
        transport=transport,
        credentials=CredentialSource(None, KEYS),
        endpoints=Endpoints(None, parse_endpoint("http://localhost:1")),
        region="eu-west-1",
        service="dynamodb",
        target_prefix="DynamoDB_20120810",
        user_agent="test",
        wall_time=lambda: 1.7e9,
    )
    return store, transport


RENEW = RenewLease(SHARD, "a", 1)
ACTIVE = {
    "Table": {
        "TableStatus": "ACTIVE",
        "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
    }
}


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ProvisionedThroughputExceededException", 400, FailureKind.THROTTLED),
        ("ThrottlingException", 400, FailureKind.THROTTLED),
        ("RequestLimitExceeded", 400, FailureKind.THROTTLED),
        ("InternalServerError", 500, FailureKind.TRANSIENT),
        ("ServiceUnavailable", 503, FailureKind.TRANSIENT),
        ("ReplicatedWriteConflictException", 400, FailureKind.TRANSIENT),
        ("AccessDeniedException", 400, FailureKind.DENIED),
        ("ExpiredTokenException", 400, FailureKind.EXPIRED_CREDENTIALS),
        ("ResourceNotFoundException", 400, FailureKind.NOT_FOUND),
        ("ValidationException", 400, FailureKind.INVALID),
    ],
)
async def test_an_error_answer_is_a_failure_of_its_kind_after_one_attempt(code, status, kind):
    store, transport = scripted(error(code, status), error(code, status))
    failure = await store.apply(RENEW)
    assert (failure.kind, failure.code, failure.status) == (kind, code, status)
    assert (await store.list_leases()).kind is kind
    assert len(transport.asked) == 2


async def test_a_broken_connection_is_a_failure():
    failure = broken("ReadTimeout", "host")
    store, _ = scripted(failure, failure)
    assert await store.apply(RENEW) is failure
    assert await store.list_leases() is failure


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b"\xff", b'{"Items":7}', b'{"Items":[7]}', b'{"Items":[{"a":1}]}']
)
async def test_what_is_no_answer_is_a_failure(body):
    store, _ = scripted(told(body), told(body))
    assert (await store.list_leases()).code == "BadAnswer"
    assert (await store.apply(RENEW)).code in {"BadAnswer", "UnreadableRow"}


async def test_what_refused_a_write_comes_with_the_refusal():
    store, transport = scripted(error("ConditionalCheckFailedException", Item=JAVA_ROW))
    answer = await store.apply(RENEW)
    assert isinstance(answer, Refused)
    assert answer.current.owner == "java-1"
    assert [target for target, _ in transport.asked] == ["DynamoDB_20120810.UpdateItem"]


async def test_or_is_read_after_it():
    store, transport = scripted(error("ConditionalCheckFailedException"), told({"Item": JAVA_ROW}))
    assert (await store.apply(RENEW)).current.counter == 38
    assert transport.asked[1][1]["ConsistentRead"] is True
    store, _ = scripted(error("ConditionalCheckFailedException"), told({}))
    assert await store.apply(RENEW) == Refused(None)
    store, _ = scripted(error("ConditionalCheckFailedException"), error("ThrottlingException"))
    assert (await store.apply(RENEW)).kind is FailureKind.THROTTLED


async def test_a_row_that_changed_back_meanwhile_is_no_refusal():
    """The row that caused the refusal is gone when we read it: the same write may succeed now."""
    fits = {**JAVA_ROW, "leaseOwner": {"S": "a"}, "leaseCounter": {"N": "1"}}
    store, _ = scripted(error("ConditionalCheckFailedException"), told({"Item": fits}))
    failure = await store.apply(RENEW)
    assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.TRANSIENT, "Contended", False)
    store, _ = scripted(error("ConditionalCheckFailedException"), told({}))
    assert await store.apply(DeleteLease(SHARD, 1)) is None  # another worker deleted it


async def test_every_page_is_read_consistently():
    second = {**JAVA_ROW, "leaseKey": {"S": "shardId-000000000001"}}
    key = {"leaseKey": {"S": SHARD}}
    store, transport = scripted(
        told({"Items": [second], "LastEvaluatedKey": key}), told({"LastEvaluatedKey": key}), told({"Items": [JAVA_ROW]})
    )
    assert [lease.shard_id for lease in await store.list_leases()] == [SHARD, "shardId-000000000001"]
    assert all(asked["ConsistentRead"] for _, asked in transport.asked)
    assert [asked.get("ExclusiveStartKey") for _, asked in transport.asked] == [None, key, key]


async def test_a_page_that_fails_fails_the_listing():
    store, _ = scripted(told({"Items": [], "LastEvaluatedKey": {"leaseKey": {"S": "x"}}}), error("ThrottlingException"))
    assert (await store.list_leases()).kind is FailureKind.THROTTLED


async def test_a_table_that_someone_else_makes_is_waited_for(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)
    store, transport = scripted(
        error("ResourceNotFoundException"),
        error("ResourceInUseException"),
        told({"Table": {"TableStatus": "CREATING"}}),
        told(ACTIVE),
        told({"Items": []}),
    )
    assert await store.open() is None
    names = [target.partition(".")[2] for target, _ in transport.asked]
    assert names == ["DescribeTable", "CreateTable", "DescribeTable", "DescribeTable", "Scan"]


async def test_a_table_that_is_never_ready_is_a_failure(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "_READY_CHECKS", 3)
    store, _ = scripted(*[told({"Table": {"TableStatus": "DELETING"}})] * 3)
    failure = await store.open()
    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "TableNotReady")


async def test_who_may_not_make_or_see_the_table_is_denied():
    store, _ = scripted(error("AccessDeniedException"))
    assert (await store.open()).kind is FailureKind.DENIED
    store, _ = scripted(error("ResourceNotFoundException"), error("AccessDeniedException"))
    assert (await store.open()).kind is FailureKind.DENIED


async def test_a_store_that_is_not_open_says_so():
    store = store_at("http://localhost:1", "table")
    for failure in (await store.list_leases(), await store.apply(RENEW), await store.list_groups()):
        assert (failure.kind, failure.code) == (FailureKind.INVALID, "NotOpen")
    await store.close()


async def test_settings_that_lead_nowhere_are_a_failure(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = DynamoDbLeases(AwsAccess(wall_time=time.time), "table", "billing", "orders")
    failure = await store.open()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "Settings")
    assert "region" in failure.message


async def test_without_an_endpoint_aws_rules_decide(monkeypatch, tmp_path, dynalite_url, unique):
    """The ordinary environment names credentials and a local endpoint."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynalite_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    store = DynamoDbLeases(AwsAccess(wall_time=time.time), unique, "billing", "orders")
    assert await store.open() is None
    assert await store.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)
    await store.close()


async def test_a_service_that_is_gone_is_a_failure(free_port_of):
    store = store_at(f"http://127.0.0.1:{free_port_of()}", "table")
    failure = await store.open()
    assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.TRANSIENT, "ConnectError", False)
    await store.close()


async def test_a_service_that_does_not_answer_is_a_failure_in_time():
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as mute:
        port = mute.extra(anyio.abc.SocketAttribute.local_port)
        store = store_at(f"http://127.0.0.1:{port}", "table", read_timeout=0.2)
        failure = await store.open()
        assert isinstance(failure, Failure)
        assert (failure.code, failure.maybe_received) == ("ReadTimeout", True)
        await store.close()
