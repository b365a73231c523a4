"""What can go wrong with a Redis?"""

import contextlib
import json
import socket
import ssl
import threading

import pytest
import redis
import trustme

from shardline.adapters.leases import redis as redis_leases
from shardline.adapters.leases.lease_rows import encode_row
from shardline.adapters.leases.redis import PREFIX, RedisLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import CommitCheckpoint, CreateLease, DeleteLease, Refused, RenewLease, TakeLease
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import at_sequence_number

pytestmark = pytest.mark.anyio
SHARD = "shardId-000000000000"


@contextlib.asynccontextmanager
async def opened(url, group="billing", **settings):
    store = RedisLeases(url, group, "orders", **settings)
    try:
        assert await store.open() is None
        yield store
    finally:
        await store.close()


@pytest.fixture
def url(valkey_port):
    return f"redis://127.0.0.1:{valkey_port}/0"


@pytest.fixture
async def store(url, unique):
    async with opened(url, unique) as one:
        yield one


@pytest.fixture
def raw(url):
    client = redis.Redis.from_url(url)
    yield client
    client.close()


async def test_rows_are_readable_and_never_expire(store, raw, unique):
    await store.apply(CreateLease(Lease(SHARD)))
    key = f"{PREFIX}{unique}:orders"
    assert json.loads(raw.hget(key, SHARD)) == {"shard_id": SHARD, "counter": 0, "checkpoint": "TRIM_HORIZON"}
    assert raw.ttl(key) == -1


async def test_a_swap_that_comes_too_late_decides_again(store, url, unique):
    """Between our read and our write of the row, another worker commits: its commit stays, and ours is refused."""
    await store.apply(CreateLease(Lease(SHARD, owner="a")))
    five = CommitCheckpoint(SHARD, "a", 0, Checkpoint(at_sequence_number("5")))
    async with opened(url, unique) as other:
        assert isinstance(await other.apply(five), Lease)
    answer = await store.apply(CommitCheckpoint(SHARD, "a", 0, Checkpoint(at_sequence_number("9"))))
    assert answer == Refused(Lease(SHARD, owner="a", counter=1, checkpoint=five.checkpoint))


async def test_nothing_is_refused_because_of_what_is_remembered(store, raw):
    await store.apply(CreateLease(Lease(SHARD, owner="b")))
    raw.hset(store._hash, SHARD, encode_row(Lease(SHARD, counter=7, owner="a")))
    assert (await store.apply(RenewLease(SHARD, "a", 7))).counter == 8
    raw.hdel(store._hash, SHARD)
    assert await store.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)
    raw.hset(store._hash, SHARD, "nonsense")
    assert (await store.apply(RenewLease(SHARD, "a", 0))).code == "UnreadableRow"
    raw.hset(store._hash, SHARD, encode_row(Lease(SHARD, counter=3, owner="a")))
    assert (await store.apply(RenewLease(SHARD, "a", 3))).counter == 4
    raw.hdel(store._hash, SHARD)
    assert await store.apply(DeleteLease(SHARD, 4)) is None
    assert await store.apply(RenewLease(SHARD, "a", 4)) == Refused(None)


def server_time(raw):
    seconds, microseconds = raw.time()
    return seconds * 1000 + microseconds // 1000


def take(row, by="a"):
    return TakeLease(SHARD, by, row.fence, floor=1)


async def test_a_token_is_no_less_than_the_servers_time(store, raw):
    row = await store.apply(CreateLease(Lease(SHARD)))
    before = server_time(raw)
    taken = await store.apply(take(row))
    assert before <= taken.counter <= server_time(raw)
    assert await store.list_leases() == [taken]
    again = await store.apply(take(taken, "b"))
    assert again.counter > taken.counter
    assert await store.apply(RenewLease(SHARD, "a", taken.counter)) == Refused(again)
    assert (await store.apply(RenewLease(SHARD, "b", again.counter))).counter == again.counter + 1


@pytest.mark.parametrize("ahead", [60_000, 10 * 365 * 86_400_000, 2**53 + 5])
async def test_a_server_whose_clock_is_behind_takes_back_no_token(store, raw, ahead):
    """This happens after a fail-over to a server whose clock is behind that of the first."""
    last = ahead + (0 if ahead > 2**53 else server_time(raw))
    row = await store.apply(CreateLease(Lease(SHARD, counter=last, owner="a")))
    assert (await store.apply(take(row, "b"))).counter == last + 1


@pytest.mark.parametrize("comes_back", ["empty", "old"])
async def test_a_store_that_has_forgotten_gives_out_no_token_again(store, raw, url, unique, comes_back):
    row = await store.apply(CreateLease(Lease(SHARD)))
    first = await store.apply(take(row))
    backup = raw.hget(store._hash, SHARD)
    second = await store.apply(take(first, "b"))
    while server_time(raw) <= second.counter:  # two takes in one millisecond: no fail-over is that quick
        pass
    raw.delete(store._hash)
    async with opened(url, unique) as fresh:
        if comes_back == "old":
            raw.hset(store._hash, SHARD, backup)
            assert await fresh.list_leases() == [first]
            row = first
        else:
            row = await fresh.apply(CreateLease(Lease(SHARD)))
        third = await fresh.apply(take(row, "c"))
    assert first.counter < second.counter < third.counter


async def test_a_row_of_an_earlier_version_is_taken(store, raw):
    raw.hset(store._hash, SHARD, json.dumps({"shard_id": SHARD, "counter": 17, "checkpoint": "5", "owner": "a"}))
    (row,) = await store.list_leases()
    me = Incarnation("b", "1f", 10.0)
    taken = await store.apply(TakeLease(SHARD, "b", row.fence, me, floor=1))
    assert (taken.incarnation, taken.checkpoint) == (me, Checkpoint(at_sequence_number("5")))
    assert json.loads(raw.hget(store._hash, SHARD))["incarnation"] == {"owner": "b", "id": "1f", "lease_duration": 10.0}


async def test_a_row_that_never_holds_still_is_a_failure(store, monkeypatch):
    await store.apply(CreateLease(Lease(SHARD)))
    monkeypatch.setattr(redis_leases, "_SWAP", "return {redis.call('HGET', KEYS[1], ARGV[1])}")
    failure = await store.apply(TakeLease(SHARD, "a", Lease(SHARD).fence))
    assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.TRANSIENT, "Contended", False)


async def test_of_many_operations_each_ends_by_itself(store, raw):
    await store.apply_many([CreateLease(Lease(name)) for name in "abc"])
    raw.hset(store._hash, "b", "nonsense")
    answers = await store.apply_many([TakeLease(name, "me", Lease(name).fence) for name in "abcd"])
    assert [getattr(answer, "owner", None) for answer in answers] == ["me", None, "me", None]
    assert (answers[1].kind, answers[1].code, answers[3]) == (FailureKind.INVALID, "UnreadableRow", Refused(None))


async def test_a_script_that_fails_fails_its_own(store, monkeypatch):
    await store.apply_many([CreateLease(Lease(name)) for name in "ab"])
    monkeypatch.setattr(redis_leases, "_SWAP", "if ARGV[1] == 'b' then return redis.error_reply('no') end return {}")
    answers = await store.apply_many([TakeLease(name, "me", Lease(name).fence) for name in "ab"])
    assert isinstance(answers[0], Lease)
    assert (answers[1].kind, answers[1].code, answers[1].maybe_received) == (FailureKind.INVALID, "RedisError", False)


async def test_what_a_newer_version_wrote_into_a_row_stays(store, raw):
    await store.apply(CreateLease(Lease(SHARD)))
    row = json.loads(raw.hget(store._hash, SHARD)) | {"added_in_2030": [1]}
    raw.hset(store._hash, SHARD, json.dumps(row))
    taken = await store.apply(TakeLease(SHARD, "a", Lease(SHARD).fence))
    assert await store.apply(RenewLease(SHARD, "a", taken.counter))
    assert json.loads(raw.hget(store._hash, SHARD))["added_in_2030"] == [1]


async def test_a_row_that_cannot_be_read_is_an_error_that_says_so(store, raw):
    raw.hset(store._hash, SHARD, "nonsense")
    for failure in (await store.list_leases(), await store.apply(RenewLease(SHARD, "a", 0))):
        assert (failure.kind, failure.code) == (FailureKind.INVALID, "UnreadableRow")


async def test_a_key_of_another_program_is_an_error(store, raw):
    raw.set(store._hash, "a text")
    failure = await store.list_leases()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "RedisError")
    assert "WRONGTYPE" in failure.message


async def test_groups_with_any_name_are_listed(url, unique, raw):
    async with opened(url, f"{unique}:ü %x") as store:
        await store.apply(CreateLease(Lease(SHARD)))
        raw.set(f"{PREFIX}of-another-program", "x")
        assert (f"{unique}:ü %x", "orders") in await store.list_groups()
        raw.delete(f"{PREFIX}of-another-program")


@pytest.mark.parametrize(
    ("policy", "memory", "refused"),
    [("allkeys-lru", "100mb", True), ("volatile-lru", "100mb", False), ("allkeys-lru", "0", False)],
)
async def test_a_server_that_may_evict_leases_is_refused(start_valkey, policy, memory, refused):
    port = start_valkey("--maxmemory", memory, "--maxmemory-policy", policy)
    store = RedisLeases(f"redis://127.0.0.1:{port}", "billing", "orders")
    failure = await store.open()
    await store.close()
    assert (failure is not None) is refused
    if refused:
        assert (failure.kind, failure.code) == (FailureKind.INVALID, "EvictingServer")
        assert "allkeys-lru" in failure.message


async def test_a_wrong_password_is_denied_and_not_repeated(start_valkey):
    port = start_valkey("--requirepass", "right-SECRET")
    for login in ("", ":wrong-SECRET@", "someone:wrong-SECRET@"):
        store = RedisLeases(f"redis://{login}127.0.0.1:{port}", "billing", "orders")
        failure = await store.open()
        await store.close()
        assert (failure.kind, failure.code) == (FailureKind.DENIED, "Denied")
        assert "SECRET" not in failure.message + repr(store) + repr(failure)
    async with opened(f"redis://:right-SECRET@127.0.0.1:{port}"):
        pass


def make_user(port, *rules):
    with redis.Redis(port=port) as admin:
        admin.execute_command("ACL SETUSER", "worker", "on", ">pw", "~*", *rules)
    return f"redis://worker:pw@127.0.0.1:{port}"


async def test_who_may_not_ask_for_settings_may_still_keep_leases(start_valkey):
    async with opened(make_user(start_valkey(), "+@all", "-info")) as store:
        assert await store.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)


async def test_who_may_not_write_is_denied(start_valkey):
    async with opened(make_user(start_valkey(), "+@read", "+ping")) as store:
        failure = await store.apply(CreateLease(Lease(SHARD)))
        assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.DENIED, "Denied", False)


async def test_a_full_server_is_a_failure(start_valkey):
    port = start_valkey("--maxmemory", "1", "--maxmemory-policy", "noeviction")
    async with opened(f"redis://127.0.0.1:{port}") as store:
        failure = await store.apply(CreateLease(Lease(SHARD)))
        assert (failure.kind, failure.code, failure.retryable) == (FailureKind.LIMIT_EXCEEDED, "OutOfMemory", True)


async def test_a_replica_is_a_failure_that_may_pass(start_valkey):
    port = start_valkey()
    async with opened(f"redis://127.0.0.1:{port}") as store:
        store._servers.client().replicaof("127.0.0.1", 1)
        failure = await store.apply(CreateLease(Lease(SHARD)))
        assert failure.kind is FailureKind.TRANSIENT
        store._servers.client().replicaof("NO", "ONE")
        assert await store.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)


async def test_a_server_that_is_gone_is_a_failure_and_comes_back(start_valkey, free_port_of):
    port = free_port_of()
    store = RedisLeases(f"redis://127.0.0.1:{port}", "billing", "orders")
    for failure in (await store.open(), await store.list_leases(), await store.apply(RenewLease(SHARD, "a", 0))):
        assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "ConnectionError")
        assert str(port) in failure.message
    await store.close()


async def test_connections_that_the_server_cut_are_failures_then_it_goes_on(store, raw):
    await store.apply(CreateLease(Lease(SHARD, owner="a")))
    raw.execute_command("CLIENT KILL TYPE normal SKIPME yes")
    answers = [await store.apply(RenewLease(SHARD, "a", 0)) for _ in range(3)]
    assert isinstance(answers[-1], (Lease, Refused))
    assert all(answer.kind is FailureKind.TRANSIENT for answer in answers if isinstance(answer, Failure))


async def test_a_server_that_does_not_answer_is_a_failure_in_time():
    """There is one attempt: redis-py must not retry on its own."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        accepted = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(mute.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        store = RedisLeases(f"redis://127.0.0.1:{mute.getsockname()[1]}", "billing", "orders", limit=0.2)
        failure = await store.apply(RenewLease(SHARD, "a", 0))
        assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.TRANSIENT, "Timeout", True)
        await store.close()
        mute.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        assert len(accepted) == 1
        for one in accepted:
            one.close()


@contextlib.contextmanager
def answering(reply, tls=None):
    """A server that answers HVALS with these bytes, after the usual handshake."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            peer, _ = server.accept()
            if tls is not None:
                try:
                    peer = tls.wrap_socket(peer, server_side=True)
                except ssl.SSLError:  # the client does not trust the certificate
                    return
            with peer:
                while b"HVALS" not in (received := peer.recv(10_000)) and received:
                    peer.sendall(b"+OK\r\n" * received.count(b"CLIENT") + b"+PONG\r\n" * received.count(b"PING"))
                peer.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"redis{'' if tls is None else 's'}://127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", FailureKind.TRANSIENT, "BadAnswer"),
        (b"", FailureKind.TRANSIENT, "ConnectionError"),
        (b"-MOVED 1234 10.0.0.1:6379\r\n", FailureKind.INVALID, "RedisCluster"),
        (b"-CLUSTERDOWN The cluster is down\r\n", FailureKind.TRANSIENT, "ClusterDown"),
        (b"-LOADING is loading the dataset in memory\r\n", FailureKind.TRANSIENT, "Loading"),
        (b"-TRYAGAIN later\r\n", FailureKind.TRANSIENT, "TryAgain"),
        (b"-READONLY You can't write against a read only replica.\r\n", FailureKind.TRANSIENT, "ReadOnly"),
        (b"-ERR something else\r\n", FailureKind.INVALID, "RedisError"),
    ],
)
async def test_every_answer_is_a_value(reply, kind, code):
    with answering(reply) as url:
        store = RedisLeases(url, "billing", "orders", limit=1)
        failure = await store.list_leases()
        await store.close()
    assert (failure.kind, failure.code) == (kind, code)
    assert ("use redis+cluster://" in failure.message) is (code == "RedisCluster")


async def test_tls_is_verified(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with answering(b"*0\r\n", context) as url:
        store = RedisLeases(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}", "billing", "orders", limit=2)
        assert await store.list_leases() == []
        await store.close()
    with answering(b"*0\r\n", context) as url:
        store = RedisLeases(url, "billing", "orders", limit=2)
        failure = await store.list_leases()
        await store.close()
    assert (failure.kind, failure.code) == (FailureKind.UNTRUSTED, "CertificateError")
