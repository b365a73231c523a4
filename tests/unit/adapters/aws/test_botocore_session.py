"""Does the session give the same settings as botocore, and raise only our own exceptions?"""

import logging
import os
import threading
from datetime import UTC, datetime, timedelta

import aiobotocore.session
import boto3
import botocore.session
import pytest
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import ClientError

from shardline.adapters.aws.aws_service import AwsSettings
from shardline.adapters.aws.botocore_session import BotocoreSession
from shardline.errors import CredentialsError, UsageError
from shardline.model.credentials import Credentials

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
MEMBERS = {
    "nothing": {},
    "name": {"StreamName": "orders"},
    "stream": {"StreamARN": ARN},
    "consumer": {"ConsumerARN": f"{ARN}/consumer/c:1"},
    "resource": {"ResourceARN": ARN},
    "channel": {"ChannelARN": "arn:aws:kinesis:us-east-1:123456789012:channel/x"},
}


def session_of(service="kinesis", **settings):
    return BotocoreSession(AwsSettings(**settings), service)


@pytest.fixture(autouse=True)
def no_ambient_aws(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("AWS_") or name == "REQUESTS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the-token")


class StoppedError(Exception):
    pass


def addresses_of_boto3(**config):
    """Return where a real boto3 client sends: found at the last moment before it does."""
    settings = Config(parameter_validation=False, retries={"total_max_attempts": 1}, **config)
    client = boto3.Session(region_name="us-east-1").client("kinesis", config=settings)
    seen = []

    def stop(request, **_):
        seen.append(request.url)
        raise StoppedError

    client.meta.events.register("before-send.kinesis", stop)

    def ask(method, params):
        with pytest.raises(StoppedError):
            getattr(client, method)(**params)
        return seen.pop()

    return client, ask


@pytest.mark.parametrize(
    ("fips", "dualstack", "account"),
    [
        (None, None, None),
        (True, None, None),
        (None, True, None),
        (True, True, None),
        (None, None, "123456789012"),
        (True, True, "123456789012"),
    ],
)
def test_every_operation_goes_where_boto3_sends_it(fips, dualstack, account, keys, monkeypatch):
    """This holds for each operation, however the stream is named."""
    if account is not None:
        monkeypatch.setenv("AWS_ACCOUNT_ID", account)
    client, real = addresses_of_boto3(use_fips_endpoint=fips, use_dualstack_endpoint=dualstack)
    ours = session_of(region="us-east-1", use_fips=fips, use_dualstack=dualstack)
    compared = 0
    hosts = set()
    for method, operation in client.meta.method_to_api_mapping.items():
        known = client.meta.service_model.operation_model(operation).input_shape.members
        for params in MEMBERS.values():
            if set(params) <= set(known):
                routing = {name: value for name, value in params.items() if name != "StreamName"}
                found = ours.endpoint(operation, routing)
                assert found == real(method, params), (operation, params)
                hosts.add(found)
                compared += 1
    assert compared > 80
    assert len(hosts) >= (2 if account else 3)


def test_an_operation_that_botocore_does_not_know_goes_where_descriptions_go(keys):
    session = session_of(region="eu-west-1")
    arn = ARN.replace("us-east-1", "eu-west-1")
    assert session.endpoint("FlyToTheMoon", {}) == "https://kinesis.eu-west-1.amazonaws.com/"
    found = session.endpoint("FlyToTheMoon", {"StreamARN": arn})
    assert found == "https://123456789012.control-kinesis.eu-west-1.amazonaws.com/"
    for member in ("ResourceARN", "ChannelARN", "ConsumerARN"):  # which a description does not accept
        assert session.endpoint("FlyToTheMoon", {member: arn}) == "https://kinesis.eu-west-1.amazonaws.com/"


@pytest.mark.parametrize(
    "params",
    [{"StreamARN": "no ARN"}, {"StreamARN": 7}, {"StreamARN": None}, {"StreamARN": ARN.replace("aws", "aws-cn", 1)}],
)
def test_an_address_that_there_is_not(params, keys):
    session = session_of(region="us-east-1")
    if params["StreamARN"] is None:
        assert session.endpoint("PutRecords", params) == "https://kinesis.us-east-1.amazonaws.com/"
        return
    with pytest.raises(UsageError, match="no endpoint for PutRecords"):
        session.endpoint("PutRecords", params)


@pytest.mark.parametrize("fips", [None, True])
def test_an_endpoint_of_the_environment_wins_as_in_boto3(fips, keys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:4567")
    _, real = addresses_of_boto3(use_fips_endpoint=fips)
    ours = session_of(region="us-east-1", use_fips=fips)
    for params in ({}, {"StreamARN": ARN}):
        assert ours.endpoint("PutRecords", params) == real("put_records", params) == "http://localhost:4567/"


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, "https://dynamodb.eu-west-1.amazonaws.com/"),
        ({"use_fips": True}, "https://dynamodb-fips.eu-west-1.amazonaws.com/"),
    ],
)
def test_another_service_has_addresses_of_its_own(settings, address, monkeypatch):
    session = session_of(service="dynamodb", region="eu-west-1", **settings)
    assert session.endpoint("UpdateItem", {}) == address
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://localhost:8000")
    local = session_of(service="dynamodb", region="eu-west-1", **settings)
    assert local.endpoint("Scan", {}) == "http://localhost:8000/"


def test_an_address_needs_no_credentials():
    assert session_of(region="us-east-1").endpoint("PutRecords", {}) == "https://kinesis.us-east-1.amazonaws.com/"
    explicit = Credentials("AKID", "s", "t")
    found = session_of(region="us-east-1", credentials=explicit).endpoint("PutRecords", {"StreamARN": ARN})
    assert found == "https://123456789012.data-kinesis.us-east-1.amazonaws.com/"


def test_an_address_is_learnt_before_anything_is_signed(keys, caplog):
    """botocore's signer logs the session token."""
    caplog.set_level(logging.DEBUG)
    session_of(region="us-east-1").endpoint("DeleteStream", {"StreamARN": ARN})
    assert "botocore" in caplog.text
    assert "the-token" not in caplog.text
    assert "the-secret" not in caplog.text


def test_addresses_can_be_asked_for_by_many_threads(keys):
    session = session_of(region="us-east-1")
    found = []

    def ask(number):
        session.credentials(reload=False)
        found.append(session.endpoint(("PutRecords", "ListShards")[number % 2], {}))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["https://kinesis.us-east-1.amazonaws.com/"] * 12


# ---- the region and the CA


def test_the_region_and_its_order(monkeypatch, tmp_path):
    session = session_of()
    with pytest.raises(UsageError, match="AWS_REGION"):
        _ = session.region
    (tmp_path / "config").write_text("[default]\nregion = us-west-1\n[profile p]\nregion = us-west-2\n")
    assert session_of().region == "us-west-1"
    assert session_of(profile="p").region == "us-west-2"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
    assert session_of(profile="p").region == "eu-west-2"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert session_of(profile="p").region == "eu-west-1"
    assert session_of(region="sa-east-1").region == "sa-east-1"


def test_the_region_is_that_of_botocores_own_calls(monkeypatch, tmp_path):
    (tmp_path / "config").write_text("[default]\nregion = us-west-1\n")
    seen = lambda session: session._session.get_config_variable("region")  # noqa: E731
    assert seen(session_of()) == "us-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert seen(session_of()) == "eu-west-1"
    assert seen(session_of(region="sa-east-1")) == "sa-east-1"
    given = boto3.Session(region_name="ap-south-1")
    assert seen(session_of(region="sa-east-1", session=given)) == "ap-south-1", "a given session is left as it is"


def test_the_region_of_a_given_session_comes_before_the_environments(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert session_of(session=boto3.Session(region_name="sa-east-1")).region == "sa-east-1"
    assert session_of(session=boto3.Session()).region == "eu-west-1"


def test_the_ca_bundle_and_its_order(monkeypatch, tmp_path):
    assert session_of().ca_bundle is None
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/requests.pem")
    assert session_of().ca_bundle == "/requests.pem"
    (tmp_path / "config").write_text("[default]\nca_bundle = /file.pem\n")
    assert session_of().ca_bundle == "/file.pem"
    monkeypatch.setenv("AWS_CA_BUNDLE", "/aws.pem")
    assert session_of().ca_bundle == "/aws.pem"


@pytest.mark.parametrize("ask", ["region", "ca_bundle"])
def test_a_configuration_that_cannot_be_read(ask, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="nobody"):
        getattr(session_of(), ask)
    monkeypatch.delenv("AWS_PROFILE")
    (tmp_path / "config").write_text("[broken")
    with pytest.raises(UsageError, match="cannot be read"):
        getattr(session_of(), ask)
    with pytest.raises(UsageError, match="cannot be read"):
        session_of(profile="p")


def test_an_unknown_profile_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match="they have: none"):
        session_of(profile="p")
    (tmp_path / "config").write_text("[default]\n[profile b]\n[profile a]\n")
    with pytest.raises(UsageError, match=r"'p'.*a, b, default"):
        session_of(profile="p")


@pytest.mark.parametrize(
    "session",
    [object(), "default", 7, boto3, aiobotocore.session.AioSession()],
    ids=["object", "text", "number", "module", "aiobotocore"],
)
def test_a_session_of_a_wrong_type(session):
    with pytest.raises(UsageError, match=r"session must be a boto3\.Session or a botocore Session"):
        session_of(session=session)


# ---- the credentials


def test_credentials_of_the_environment(keys, monkeypatch):
    session = session_of()
    assert session.credentials(reload=False) == (Credentials("AKIDEXAMPLE", "the-secret", "the-token"), False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNEW")
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    assert session.credentials(reload=False)[0].access_key == "AKIDEXAMPLE"
    assert session.credentials(reload=True) == (Credentials("AKIDNEW", "the-secret"), False)


def test_credentials_of_a_profile_and_a_file(tmp_path):
    (tmp_path / "credentials").write_text("[p]\naws_access_key_id = A\naws_secret_access_key = S\n")
    assert session_of(profile="p").credentials(reload=False)[0] == Credentials("A", "S")
    with pytest.raises(CredentialsError, match="AWS_ACCESS_KEY_ID"):
        session_of().credentials(reload=False)


def test_credentials_of_a_profile_that_has_gone(tmp_path):
    (tmp_path / "credentials").write_text("[p]\naws_access_key_id = A\naws_secret_access_key = S\n")
    session = session_of(profile="p")
    (tmp_path / "credentials").write_text("")
    with pytest.raises(CredentialsError, match="'p' is not in"):
        session.credentials(reload=True)


@pytest.mark.parametrize("wrap", [boto3.Session, lambda **keys: boto3.Session(**keys)._session])
def test_credentials_of_a_given_session(wrap):
    session = session_of(session=wrap(aws_access_key_id="A", aws_secret_access_key="S", aws_session_token="T"))
    assert session.credentials(reload=False) == (Credentials("A", "S", "T"), False)
    # The caller's session is not opened again.
    assert session.credentials(reload=True) == (Credentials("A", "S", "T"), False)


def given(credentials):
    session = botocore.session.Session()
    session._credentials = credentials
    return session_of(session=session)


def refreshable(refresh, seconds):
    expiry = datetime.now(UTC) + timedelta(seconds=seconds)
    return RefreshableCredentials("OLD", "S", "T", expiry, refresh, "test")


def test_credentials_that_can_be_refreshed_are_said_to_change():
    def refresh():
        later = datetime.now(UTC) + timedelta(hours=1)
        return {"access_key": "NEW", "secret_key": "S2", "token": "T2", "expiry_time": later.isoformat()}

    assert given(refreshable(refresh, 3600)).credentials(reload=False) == (Credentials("OLD", "S", "T"), True)
    assert given(refreshable(refresh, 5)).credentials(reload=False) == (Credentials("NEW", "S2", "T2"), True)


DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": "not you"}}, "AssumeRole")


@pytest.mark.parametrize(
    "error",
    [DENIED, OSError("no route"), ValueError("no JSON"), KeyError("AccessKeyId"), RuntimeError("still expired")],
)
def test_every_failed_refresh_is_reported_in_our_words(error):
    def refresh():
        raise error

    with pytest.raises(CredentialsError, match="could not be loaded") as caught:
        given(refreshable(refresh, 5)).credentials(reload=False)
    assert str(error) in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("process", ["/no/such/program", "false", "echo", "echo [", "echo {}", 'echo {"Version":2}'])
def test_a_credential_process_that_fails(process, tmp_path):
    (tmp_path / "config").write_text(f"[profile p]\ncredential_process = {process}\n")
    with pytest.raises(CredentialsError):
        session_of(profile="p").credentials(reload=False)


def test_a_role_that_cannot_be_assumed_without_a_network(tmp_path, monkeypatch):
    (tmp_path / "config").write_text(
        "[profile p]\nrole_arn = arn:aws:iam::123456789012:role/r\ncredential_source = Environment\nregion = us-east-1\n"
    )
    with pytest.raises(CredentialsError):
        session_of(profile="p").credentials(reload=False)


def test_credentials_that_cannot_be_sent(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush\n")
    with pytest.raises(CredentialsError, match="control character") as caught:
        session_of().credentials(reload=False)
    assert "hush" not in str(caught.value)


def test_half_a_key_pair_is_reported_in_our_words(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    with pytest.raises(CredentialsError):
        session_of().credentials(reload=False)
