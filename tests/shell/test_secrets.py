"""Does a secret get anywhere but into the headers of a request?"""

import base64
import json
import logging
import traceback

import anyio
import boto3
import pytest

from shardline import Client, Credentials, ShardlineError, UsageError

pytestmark = pytest.mark.anyio

ENTRIES = [(b"x", "k")]
SECRET, TOKEN, PASSWORD = "wJalrXUtnFEMI-SECRET", "session-token-SECRET", "proxy-SECRET"
HIDDEN = ("SECRET", base64.b64encode(f"user:{PASSWORD}".encode()).decode())


def assert_clean(text):
    for secret in HIDDEN:
        assert secret not in text


def our_objects(root):
    """Everything of ours that hangs on ``root``."""
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
    """All that any logger says, down to the last detail."""
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
    """botocore's signer logs what it signs, with the session token."""
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
    assert "botocore.regions" in spoken.text  # it was listened to
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
