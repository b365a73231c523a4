"""The Kinesis that the pages' examples are run against."""

import pytest

from shardline.testing import LocalKinesis


@pytest.fixture
def local_kinesis():
    with LocalKinesis(shards=2, stream="orders") as running:
        yield running


@pytest.fixture
def kinesis(local_kinesis, monkeypatch):
    """Where the environment leads to."""
    for name, value in local_kinesis.environment.items():
        monkeypatch.setenv(name, value)
    return local_kinesis


@pytest.fixture(params=["asyncio", "trio"])
def backend(request):
    return request.param
