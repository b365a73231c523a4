"""Which settings come from AWS's environment and files, and when does an explicit argument override them?"""

import json
import ssl
import sys
from types import ModuleType

import boto3
import pytest

from shardline import Client, Credentials, CredentialsError, ServiceError, TransportError, UsageError
from shardline.aio.connection import current_backend

# The source of settings does not depend on the event loop.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("wire", [("asyncio", False)], indirect=True, ids=[""])]

ENTRIES = [(b"x", "k")]
KEYS = Credentials("AKIDEXPLICIT", "explicit-secret")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


@pytest.fixture
def environment(monkeypatch):
    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.fixture
def ambient_keys(environment):
    environment(AWS_ACCESS_KEY_ID="AKIDAMBIENT", AWS_SECRET_ACCESS_KEY="ambient-secret")


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config").write_text(
        "[default]\nregion = us-west-2\n"
        "[profile blue]\nregion = eu-north-1\naws_access_key_id = AKIDBLUE\naws_secret_access_key = blue-secret\n"
        "[profile bare]\n"
    )
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = file-secret\n"
    )


async def region_of(**settings):
    async with Client(credentials=KEYS, **settings) as client:
        return client.region


async def address_of(stream="orders", **settings):
    """Return the address of a request from the client's endpoints, without sending it."""
    async with Client(**settings) as client:
        arn = stream if stream.startswith("arn:") else None
        found = await client.api._http._endpoints.find("PutRecords", {} if arn is None else {"StreamARN": arn}, arn)
        return found.url if hasattr(found, "url") else found


async def sender_of(server, **settings):
    async with Client(endpoint_url=server.url, **settings) as client:
        await client.put_records("orders", ENTRIES)
    scope = server.requests[-1].headers["authorization"].partition("Credential=")[2].split("/")
    return scope[0], scope[2]


# ---- the region


async def test_the_region_is_that_of_the_profile_session_or_argument(config):
    """The tests of ``BotocoreSession`` check which of them wins."""
    assert await region_of() == "us-west-2"
    assert await region_of(session=boto3.Session(region_name="ca-central-1")) == "ca-central-1"
    assert await region_of(region="sa-east-1") == "sa-east-1"
    async with Client(profile="blue") as client:
        assert client.region == "eu-north-1"


@pytest.mark.parametrize("wrong", ["", "EU", "eu west", "eu-west-1/", 7, "eu-west-1\n"])
async def test_a_wrong_region(wrong):
    with pytest.raises(UsageError, match="region"):
        Client(region=wrong)


# ---- the credentials


async def test_the_credentials(server, environment, config):
    assert await sender_of(server) == ("AKIDFILE", "us-west-2")
    assert await sender_of(server, profile="blue") == ("AKIDBLUE", "eu-north-1")
    environment(AWS_ACCESS_KEY_ID="AKIDAMBIENT", AWS_SECRET_ACCESS_KEY="s", AWS_SESSION_TOKEN="the-token")
    assert await sender_of(server) == ("AKIDAMBIENT", "us-west-2")
    assert server.requests[-1].headers["x-amz-security-token"] == "the-token"
    assert await sender_of(server, credentials=KEYS) == ("AKIDEXPLICIT", "us-west-2")
    session = boto3.Session(aws_access_key_id="AKIDSESSION", aws_secret_access_key="s", region_name="eu-west-3")
    assert await sender_of(server, session=session) == ("AKIDSESSION", "eu-west-3")
    assert await sender_of(server, session=session._session) == ("AKIDSESSION", "eu-west-3")
    assert await sender_of(server, session=session, credentials=KEYS) == ("AKIDEXPLICIT", "eu-west-3")


async def test_the_credentials_of_the_profile_that_the_environment_names(server, environment, config):
    environment(AWS_PROFILE="blue")
    assert await sender_of(server) == ("AKIDBLUE", "eu-north-1")


async def test_no_credentials(server, environment):
    environment(AWS_REGION="eu-west-1")
    async with Client(endpoint_url=server.url) as client:
        with pytest.raises(CredentialsError, match="AWS_ACCESS_KEY_ID"):
            await client.put_records("orders", ENTRIES)
        environment(AWS_ACCESS_KEY_ID="AKIDLATE", AWS_SECRET_ACCESS_KEY="s")
        await client.put_records("orders", ENTRIES)  # found at the next call
    assert len(server.requests) == 1


# ---- invalid settings


@pytest.mark.parametrize("settings", [{}, {"region": "eu-west-1"}, {"region": "eu-west-1", "credentials": KEYS}])
async def test_an_unknown_profile_in_the_environment(settings, environment, config):
    environment(AWS_PROFILE="green")
    with pytest.raises(UsageError, match="green"):
        await Client(**settings).start()


async def test_an_unknown_profile_does_not_matter_where_nothing_is_asked_of_it(server, environment):
    environment(AWS_PROFILE="green")
    assert await sender_of(server, region="eu-west-1", credentials=KEYS) == ("AKIDEXPLICIT", "eu-west-1")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"profile": "blue", "session": boto3}, "profile"),
        ({"profile": "blue", "credentials": KEYS}, "profile"),
        ({"credentials": ("AKID", "s")}, "Credentials"),
        ({"protocol": "xml"}, "protocol"),
        ({"use_fips": "yes"}, "use_fips"),
        ({"use_fips": True, "endpoint_url": "http://127.0.0.1:1"}, "use_fips"),
        ({"use_dualstack": True, "endpoint_url": "http://127.0.0.1:1"}, "use_dualstack"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"read_timeout": float("nan")}, "read_timeout"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_connections": True}, "max_connections"),
        ({"verify": None}, "verify"),
        ({"endpoint_url": "127.0.0.1:4567"}, "endpoint_url"),
        ({"endpoint_url": "ftp://127.0.0.1"}, "endpoint_url"),
        ({"endpoint_url": "http://[::1"}, "endpoint_url"),
        ({"endpoint_url": "http://host:port"}, "endpoint_url"),
        ({"endpoint_url": "http://ho st"}, "endpoint_url"),
        ({"endpoint_url": "http://host/?q=1"}, "endpoint_url"),
        ({"endpoint_url": 4567}, "endpoint_url"),
    ],
)
async def test_a_wrong_argument_is_named(settings, words):
    with pytest.raises(UsageError, match=words):
        Client(**settings)


def test_a_client_needs_a_loop(wire):
    with pytest.raises(UsageError, match="asyncio or trio"):
        current_backend()


async def test_a_client_is_opened_while_another_thread_imports_trio(wire, monkeypatch):
    for name in ("trio", "trio.lowlevel"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # it exists, but is still empty
    assert current_backend() == "asyncio"


# ---- the endpoint


async def test_an_endpoint_of_the_environment(server, start_server, environment, ambient_keys):
    special, general = server, start_server()
    environment(AWS_REGION="eu-west-1", AWS_ENDPOINT_URL=general.url)
    async with Client() as client:
        await client.put_records("orders", ENTRIES)
        await client.put_records(ARN, ENTRIES)
    assert (len(general.requests), special.connections) == (2, 0)
    environment(AWS_ENDPOINT_URL_KINESIS=special.url)
    async with Client() as client:
        await client.put_records("orders", ENTRIES)
        assert json.loads(special.requests[0].body)["StreamName"] == "orders"
    assert (len(general.requests), len(special.requests)) == (2, 1)
    async with Client(endpoint_url=general.url) as client:
        await client.put_records("orders", ENTRIES)
    assert (len(general.requests), len(special.requests)) == (3, 1)


async def test_an_endpoint_of_a_profile(server, tmp_path):
    (tmp_path / "config").write_text(
        f"[profile own]\nregion = eu-west-1\naws_access_key_id = A\naws_secret_access_key = s\nservices = local\n"
        f"[services local]\nkinesis =\n  endpoint_url = {server.url}\n"
    )
    async with Client(profile="own") as client:
        await client.put_records("orders", ENTRIES)
    assert len(server.requests) == 1


async def test_configured_endpoints_can_be_ignored(environment, ambient_keys):
    environment(
        AWS_REGION="eu-west-1", AWS_ENDPOINT_URL="http://127.0.0.1:1", AWS_IGNORE_CONFIGURED_ENDPOINT_URLS="true"
    )
    assert await address_of() == "https://kinesis.eu-west-1.amazonaws.com/"


async def test_an_invalid_endpoint_in_the_environment(environment, ambient_keys):
    environment(AWS_REGION="eu-west-1", AWS_ENDPOINT_URL="http://user:hush@127.0.0.1:1")
    async with Client() as client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
    assert (caught.value.code, caught.value.kind, caught.value.maybe_received) == ("NoEndpoint", "invalid", False)
    assert "hush" not in str(caught.value)


async def test_the_endpoint_follows_from_the_region_the_arn_and_the_arguments(environment, ambient_keys):
    """The tests of ``BotocoreSession`` check that each operation has the endpoint of boto3."""
    assert await address_of(region="cn-north-1") == "https://kinesis.cn-north-1.amazonaws.com.cn/"
    assert await address_of(region="eu-west-1", use_dualstack=True) == "https://kinesis.eu-west-1.api.aws/"
    data = "https://123456789012.data-kinesis.eu-west-1.amazonaws.com/"
    assert await address_of(ARN, region="eu-west-1") == data
    environment(AWS_USE_FIPS_ENDPOINT="true")
    assert await address_of(region="us-east-1") == "https://kinesis-fips.us-east-1.amazonaws.com/"
    assert await address_of(region="us-east-1", use_fips=False) == "https://kinesis.us-east-1.amazonaws.com/"


async def test_a_url_with_a_path_or_a_default_port(server, make_client):
    async with make_client(f"{server.url}/a/path") as client:
        await client.put_records("orders", ENTRIES)
    assert server.requests[0].target == "/a/path"
    assert "127.0.0.1:80'" not in repr(make_client("http://127.0.0.1:80"))


async def test_verify_is_not_looked_at_for_a_plain_endpoint(server, make_client):
    async with make_client(server, verify=ssl.create_default_context()) as client:
        await client.put_records("orders", ENTRIES)
    assert len(server.requests) == 1


async def test_an_unknown_operation(server, make_client):
    server.reply(b'{"__type":"UnknownOperationException"}', status=400)
    async with make_client(server) as client:
        with pytest.raises(ServiceError) as caught:
            await client.call("FlyToTheMoon", {"StreamName": "orders"})
    assert (caught.value.operation, caught.value.kind) == ("FlyToTheMoon", "invalid")
    assert server.requests[0].operation == "FlyToTheMoon"
