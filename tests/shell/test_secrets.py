"""Does a secret get anywhere except into the headers of a request?"""

import base64
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace

import anyio
import boto3
import pytest

from shardline import (
    Client,
    Consumer,
    Credentials,
    CredentialsError,
    Producer,
    ProducerConfig,
    ShardlineError,
    UsageError,
)
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.http.http_settings import HttpSettings
from shardline.adapters.leases.store_urls import lease_store
from shardline.core.error_codes import Failure, to_error

pytestmark = pytest.mark.anyio

ENTRIES = [(b"x", "k")]
SECRET, TOKEN, PASSWORD = "wJalrXUtnFEMI-SECRET", "session-token-SECRET", "proxy-SECRET"
HIDDEN = ("SECRET", base64.b64encode(f"user:{PASSWORD}".encode()).decode())


def assert_clean(text):
    for secret in HIDDEN:
        assert secret not in text


def our_objects(root):
    """Return all of our objects that are reachable from ``root``."""
    seen, found, left = set(), [], [root]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, (list, set, tuple)):
            left.extend(one)
        if type(one).__module__.startswith("shardline"):
            found.append(one)
            names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            left.extend(getattr(one, name) for name in names if hasattr(one, name))
            left.extend(getattr(one, "__dict__", {}).values())
    return found


@pytest.fixture
def spoken(caplog):
    """All records of every logger, at every level."""
    caplog.set_level(logging.DEBUG)
    return caplog


async def test_no_object_shows_a_secret(server, make_client):
    proxies = {"http": f"http://user:{PASSWORD}@{server.host}"}
    async with make_client("http://kinesis.example", proxies=proxies) as client:
        await client.put_records("orders", ENTRIES)
        objects = our_objects(client)
        names = {type(one).__name__ for one in objects}
        assert {"Client", "ConnectionSettings", "HttpSettings", "SignedHttp", "Signer", "Credentials"} <= names
        for one in objects:
            assert_clean(repr(one))
            assert_clean(str(one))
    assert TOKEN in server.requests[0].headers["x-amz-security-token"]
    assert HIDDEN[1] in server.requests[0].headers["proxy-authorization"]


async def test_no_log_line_shows_a_secret(server, *, tls_server, ca_path, start_server, make_client, spoken):
    proxy = start_server()
    proxy.tunnel(("127.0.0.1", tls_server.port))
    proxies = {"https": f"http://user:{PASSWORD}@{proxy.host}"}
    async with make_client(tls_server, verify=ca_path, proxies=proxies) as client:
        await client.put_records("orders", ENTRIES)
    server.reset().reply(b"", status=500).reply(b"garbage")
    async with make_client(server) as client:
        for _ in range(3):
            with pytest.raises(ShardlineError):
                await client.put_records("orders", ENTRIES)
    logging.getLogger("test").info("listened")
    assert "listened" in spoken.text
    assert_clean(spoken.text)


async def test_no_log_line_shows_a_secret_of_the_aws_settings(server, wire, monkeypatch, spoken):
    """botocore's signer logs the text that it signs, with the session token."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    async with Client(region="eu-west-1", http2=wire.http2) as client:
        await client.put_records("orders", ENTRIES)
        await client.put_records("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", ENTRIES)
    session = boto3.Session(aws_access_key_id="A", aws_secret_access_key=SECRET, aws_session_token=TOKEN)
    async with Client(region="eu-west-1", session=session, http2=wire.http2) as client:
        await client.put_records("orders", ENTRIES)
    assert len(server.requests) == 3
    assert "botocore.regions" in spoken.text  # the log was captured
    assert_clean(spoken.text)


FETCHED = (
    f"<AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{TOKEN}</SessionToken>"
    "<Expiration>2100-01-01T00:00:00Z</Expiration>"
)
OF_A_CONTAINER = json.dumps(
    {"AccessKeyId": "ASIA", "SecretAccessKey": SECRET, "Token": TOKEN, "Expiration": "2100-01-01T00:00:00Z"}
).encode()


def of_sts(operation):
    inner = f"<{operation}Result><Credentials>{FETCHED}</Credentials></{operation}Result>"
    space = "https://sts.amazonaws.com/doc/2011-06-15/"
    return f'<{operation}Response xmlns="{space}">{inner}</{operation}Response>'.encode()


@pytest.mark.parametrize(
    ("way", "answer", "status", "is_told"),
    [
        ("role", of_sts("AssumeRole"), 200, None),
        ("web identity", of_sts("AssumeRoleWithWebIdentity"), 200, None),
        ("container", OF_A_CONTAINER, 200, None),
        ("container", OF_A_CONTAINER[:-9], 200, "Unable to parse JSON"),
        ("container", OF_A_CONTAINER, 500, "non 200 response 500 from container metadata"),
    ],
)
async def test_credentials_that_are_fetched_get_into_no_log_line_and_no_exception(
    way, answer, status, is_told, *, server, start_server, monkeypatch, spoken, tmp_path
):
    """botocore logs its requests to STS, and the responses."""
    agency = start_server()
    for _ in range(20):
        agency.reply(answer, status=status)
    source = f"[profile source]\naws_access_key_id = AKID\naws_secret_access_key = {SECRET}\n"
    role = "role_arn = arn:aws:iam::123456789012:role/r\n"
    (tmp_path / "identity").write_text("an-identity-SECRET")
    config = {
        "role": f"[default]\n{role}source_profile = source\n{source}",
        "web identity": f"[default]\n{role}web_identity_token_file = {tmp_path / 'identity'}\n",
        "container": "",
    }
    (tmp_path / "config").write_text(config[way])
    if way == "container":
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agency.url}/here")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", agency.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", server.url)
    async with Client(region="eu-west-1") as client:  # the region is also used for STS
        if is_told is None:
            await client.put_records("orders", ENTRIES)
        else:
            with pytest.raises(CredentialsError, match=is_told) as caught:
                await client.put_records("orders", ENTRIES)
            below = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # this test knows the answer
            assert_clean("".join(traceback.TracebackException.from_exception(below, capture_locals=True).format()))
    if is_told is None:
        assert server.requests[0].headers["x-amz-security-token"] == TOKEN
    assert agency.requests
    assert_clean(spoken.text)


@pytest.mark.parametrize("script", ["reset", "refuse", "garbage", "expire", "skew"])
async def test_no_exception_shows_a_secret(script, server, make_client):
    body = {"__type": "ExpiredTokenException" if script == "expire" else "AccessDeniedException", "message": "no"}
    match script:
        case "reset":
            server.reset()
        case "garbage":
            server.raw(b"garbage")
        case "skew":
            server.reply(b'{"__type":"RequestExpired"}', status=400, headers={"Date": "Thu, 01 Jan 2099 00:00:00 GMT"})
        case _:
            server.reply(json.dumps(body).encode(), status=400)
    async with make_client(server, proxies={"https": f"http://user:{PASSWORD}@{server.host}"}) as client:
        try:
            await client.put_records("orders", ENTRIES)
        except ShardlineError as caught:
            error = caught
    whole = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert_clean("".join(whole.format()))
    assert_clean(repr(error) + str(vars(error)))


async def test_an_exception_group_of_cancelled_calls_shows_no_secret(server, make_client):
    server.then_stay()

    async def fail_beside(client):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.put_records, "orders", ENTRIES)
            await anyio.sleep(0.02)
            raise ZeroDivisionError

    async with make_client(server) as client:
        with pytest.raises(BaseExceptionGroup) as caught:
            await fail_beside(client)
    assert_clean("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint_url": f"https://user:{PASSWORD}@host"},
        {"endpoint_url": f"https://user:{PASSWORD}@host:port"},
        {"endpoint_url": f"https://user:{PASSWORD}@[::1"},
        {"endpoint_url": f"ftp://user:{PASSWORD}@host"},
        {"endpoint_url": f"http://user:{PASSWORD}"},
        {"endpoint_url": f"https://user:{PASSWORD}%40host"},
        {"endpoint_url": f"https%3A//user%3A{PASSWORD}%40host"},
        {"proxies": {"https": f"https://user:{PASSWORD}@host:port"}},
        {"proxies": {"https": f"socks5://user:{PASSWORD}@host"}},
        {"proxies": f"https://user:{PASSWORD}@host"},
        {"credentials": (SECRET, TOKEN)},
    ],
)
def test_no_complaint_about_an_argument_shows_a_secret(settings):
    with pytest.raises(UsageError) as caught:
        Client(**settings)
    assert_clean("".join(traceback.format_exception(caught.value)))


def test_no_complaint_about_credentials_shows_a_secret():
    for wrong in (("A", SECRET + "\n"), ("A", SECRET, TOKEN + "\n"), ("A", SECRET + "\ud800")):
        with pytest.raises(UsageError) as caught:
            Credentials(*wrong)
        assert_clean("".join(traceback.format_exception(caught.value)))
    assert_clean(repr(Credentials("A", SECRET, TOKEN)) + str(Credentials("A", SECRET, TOKEN)))


# ---- producers, consumers and stores


@pytest.fixture
def told(spoken, monkeypatch):
    """Everything that a person could read afterwards: log lines, events, and the output at exit."""
    lines = []

    class Told:
        def event(self, event):
            lines.append(f"{event!r} {event}")

        def add(self, *values):
            for value in values:
                lines.append(f"{value!r} {value}")
                if isinstance(value, BaseException):
                    whole = traceback.TracebackException.from_exception(value, capture_locals=True)
                    lines.append("".join(whole.format()))

        def assert_clean(self):
            logging.getLogger("test").info("listened")
            assert "listened" in spoken.text
            assert_clean(spoken.text + "\n".join(lines))

    return Told()


# AWS's answer to a wrong signature, with the text that should have been signed.
ECHO = f"The Canonical String should have been 'POST x-amz-security-token:{TOKEN} key {SECRET}' {'.' * 800} {TOKEN * 9}"
FAILURES = {
    "reset": lambda server: server.reset(),
    "garbage": lambda server: server.raw(b"garbage"),
    "denied": lambda server: server.reply(b'{"__type":"AccessDeniedException","message":"no"}', status=400),
    "signature": lambda server: server.reply(b'{"__type":"InvalidSignatureException","message":"no"}', status=403),
    "expired": lambda server: server.reply(b'{"__type":"ExpiredTokenException","message":"no"}', status=400),
    "echo": lambda server: server.reply(
        json.dumps({"__type": "InvalidSignatureException", "message": ECHO}).encode(), status=403
    ),
    "echo page": lambda server: server.reply(f"<html>{ECHO}</html>".encode(), status=502),
    "html": lambda server: server.reply(b"<html>proxy says no</html>", status=502),
    "nothing": lambda server: server.then_stay(),
}


@pytest.mark.parametrize("script", sorted(FAILURES))
async def test_a_producer_under_any_failure_tells_no_secret(script, *, server, make_client, told):
    for _ in range(40):
        FAILURES[script](server)
    config = ProducerConfig(linger=0.0, record_ttl=0.4, retry_backoff=0.02)
    client = make_client(server, read_timeout=0.2, proxies={"https": f"http://user:{PASSWORD}@{server.host}"})
    async with client:
        producer = Producer("orders", client=client, config=config, sinks=[told.event], close_timeout=1.0)
        async with producer:
            delivery = await producer.put(b"x", key="k")
            outcome = await delivery.outcome()
            assert not outcome.delivered
            try:
                await delivery
            except ShardlineError as error:
                told.add(error)
            told.add(producer, delivery, outcome, producer.stats(), *our_objects(producer))
    assert server.requests
    told.assert_clean()


@pytest.mark.parametrize("script", sorted(FAILURES))
async def test_a_consumer_under_any_failure_tells_no_secret(script, *, server, make_client, told, tmp_path):
    for _ in range(40):
        FAILURES[script](server)
    client = make_client(server, read_timeout=0.2, proxies={"https": f"http://user:{PASSWORD}@{server.host}"})
    async with client:
        consumer = Consumer(
            "orders",
            group="g",
            store=f"sqlite:///{tmp_path}/l.db",
            client=client,
            sinks=[told.event],
            close_timeout=1.0,
        )
        try:
            with anyio.move_on_after(1.5):
                async with consumer:
                    told.add(consumer, *our_objects(consumer))
                    async for record in consumer:
                        told.add(record)
        except ShardlineError as error:
            told.add(error)
    assert server.requests
    told.assert_clean()


AWS = AwsAccess(wall_time=time.time, region="eu-west-1", credentials=Credentials("AKID", SECRET, TOKEN))


@pytest.mark.parametrize("script", sorted(FAILURES))
async def test_a_store_in_dynamodb_under_any_failure_tells_no_secret(script, *, server, told):
    for _ in range(10):
        FAILURES[script](server)
    url = f"dynamodb://table?endpoint_url={server.url}"
    store = lease_store(url, group="g", stream="s", aws=replace(AWS, http=HttpSettings(read_timeout=0.2)))
    told.add(store, AWS)
    for call in (store.open, store.list_leases):
        try:
            failure = await call()
        except ShardlineError as error:
            told.add(error)
        else:
            assert isinstance(failure, Failure)
            told.add(failure, to_error(failure, "ListLeases"), *our_objects(store))
    await store.close()
    assert server.requests
    assert TOKEN in server.requests[0].headers["x-amz-security-token"]
    told.assert_clean()


REDIS_ANSWERS = [
    b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    b"-NOAUTH Authentication required.\r\n",
    b"-ERR unknown command\r\n",
    b"garbage\r\n",
    b"",
]


@pytest.mark.parametrize("said", REDIS_ANSWERS)
async def test_a_store_in_redis_under_any_failure_tells_no_secret(said, *, told):
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    one, _ = listener.accept()
                except OSError:
                    return
                with one:
                    asked.append(one.recv(4096))
                    one.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        store = lease_store(f"redis://user:{PASSWORD}@127.0.0.1:{port}/0", group="g", stream="s", aws=AWS)
        for call in (store.open, store.list_leases):
            failure = await call()
            assert isinstance(failure, Failure)
            told.add(failure, to_error(failure, "ListLeases"))
        told.add(store, *our_objects(store))
        await store.close()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert any(PASSWORD.encode() in request for request in asked), "it was sent, and so could have been told"
    told.assert_clean()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{PASSWORD}@host:port/0",
        f"redis://user:{PASSWORD}@host/0/1",
        f"redis://user:{PASSWORD}@/0",
        f"redis://:{PASSWORD}",
        f"redis://user:{PASSWORD}",
        f"redis://user:{PASSWORD}@[::1/0",
        f"redis://user:{PASSWORD}%40host:port/0",
        f"redis://user:{PASSWORD}@host/0#fragment",
        f"redis://user:{PASSWORD}@host/0?nonsense=1",
        f"redis://user:{PASSWORD}@host/0?socket_timeout=x",
        f"rediss://user:{PASSWORD}@host/x",
        f"postgres://user:{PASSWORD}@host/0?x=1",
        f"postgresql://user@host/0?password={PASSWORD}",
        f"sqlite://user:{PASSWORD}@host/x.db",
        f"memory:user:{PASSWORD}@host",
        f"dynamodb://table?endpoint_url=http://user:{PASSWORD}@host",
        f"dynamodb://table?endpoint_url=http%3A%2F%2Fuser%3A{PASSWORD}%40host",
        f"dynamodb://table?endpoint_url=http%3A%2F%2Fuser%3A{PASSWORD}%40host&region=eu-west-1&x=1",
        f"dynamodb://user:{PASSWORD}@table",
    ],
)
def test_no_complaint_about_a_store_shows_a_password(url):
    with pytest.raises(UsageError) as caught:
        lease_store(url, group="g", stream="s", aws=AWS)
    assert_clean("".join(traceback.format_exception(caught.value)))


# ---- the command line


@pytest.mark.parametrize("loud", [(), ("-v",)], ids=["quiet", "verbose"])
@pytest.mark.parametrize(
    "command",
    [
        ("streams", "list"),
        ("streams", "describe", "orders"),
        ("doctor", "orders"),
        ("tail", "orders", "--from", "TRIM_HORIZON"),
        ("groups", "list", "--store", f"redis://user:{PASSWORD}@127.0.0.1:1/0"),
        ("groups", "list", "--store", f"redis://user:{PASSWORD}"),
        ("--endpoint-url", f"http://user:{PASSWORD}@127.0.0.1:1", "streams", "list"),
    ],
    ids=" ".join,
)
def test_the_command_line_tells_no_secret(command, loud, server, tmp_path):
    """Every command fails: the service denies access, and the store is missing."""
    for _ in range(30):
        FAILURES["denied"](server)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_KINESIS": server.url,
        "AWS_ENDPOINT_URL": server.url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    done = subprocess.run(
        [sys.executable, "-m", "shardline", *loud, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr + done.stdout
    assert_clean(done.stdout + done.stderr)
