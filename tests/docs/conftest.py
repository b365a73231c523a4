"""The Kinesis that the pages' examples are run against."""

import shutil

import boto3
import pytest
from tests.contract import conftest as servers

from shardline.testing import LocalKinesis

KEYS = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}


@pytest.fixture
def local_kinesis():
    with LocalKinesis(shards=2, stream="orders") as running:
        yield running


@pytest.fixture
def kinesis(local_kinesis, monkeypatch):
    """The Kinesis that the environment points to."""
    for name, value in local_kinesis.environment.items():
        monkeypatch.setenv(name, value)
    return local_kinesis


@pytest.fixture(params=["asyncio", "trio"])
def backend(request):
    return request.param


@pytest.fixture(scope="session")
def dynalite(tmp_path_factory):
    servers.require_installed("package.json", servers.NODE)
    script = servers.NODE / "node_modules/dynalite/cli.js"
    line = [shutil.which("node"), script, "--host", "127.0.0.1", "--createTableMs", "50"]
    with servers.running(lambda port: [*line, "--port", port], tmp_path_factory.mktemp("dynalite")) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def dynamodb_url(dynalite):
    """A DynamoDB without tables."""
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynalite, **KEYS)
    for table in client.list_tables()["TableNames"]:
        client.delete_table(TableName=table)
        client.get_waiter("table_not_exists").wait(TableName=table, WaiterConfig={"Delay": 1})
    client.close()
    return dynalite
