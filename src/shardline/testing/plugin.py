"""Fixtures for pytest: a Kinesis for each test, and a stream in it.

Opt in from the ``conftest.py`` at the root of your tests with ``pytest_plugins = ["shardline.testing.plugin"]``, or on
the command line with ``-p shardline.testing.plugin``. No server starts until a test uses a fixture.

To change the settings of the server, define a fixture ``kinesis_settings`` in a test module or a ``conftest.py``. This
fixture returns the arguments of ``LocalKinesis``. ``kinesis_session`` and ``kinesis_session_settings`` do the same for
a server that all tests of a session share.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from shardline.errors import UsageError

if TYPE_CHECKING:  # at run time, these are loaded when a test uses a fixture
    from shardline.testing.local_kinesis import LocalKinesis
    from shardline.testing.local_streams import LocalStream


@pytest.fixture
def kinesis_settings() -> Mapping[str, Any]:
    """The arguments of ``LocalKinesis``. Override this fixture to change them."""
    return {}


@pytest.fixture
def kinesis(kinesis_settings: Mapping[str, Any]) -> "Iterator[LocalKinesis]":
    """A new local Kinesis for this test, with AWS's limits."""
    with _make_kinesis("kinesis_settings", kinesis_settings) as running:
        yield running


@pytest.fixture(scope="session")
def kinesis_session_settings() -> Mapping[str, Any]:
    """The arguments of the ``LocalKinesis`` that all tests of a session share. Override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def kinesis_session(kinesis_session_settings: Mapping[str, Any]) -> "Iterator[LocalKinesis]":
    """One local Kinesis for all tests of the session. Call its ``reset()`` between two tests."""
    with _make_kinesis("kinesis_session_settings", kinesis_session_settings) as running:
        yield running


@pytest.fixture
def kinesis_environment(kinesis: "LocalKinesis", monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Point the AWS SDKs of this process at ``kinesis`` during the test. Return the variables that were set.

    Variables that would point elsewhere, such as the developer's own profile, are unset during the test.
    """
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in kinesis.environment.items():
        monkeypatch.setenv(name, value)
    return kinesis.environment


@pytest.fixture
def kinesis_stream(kinesis: "LocalKinesis", request: pytest.FixtureRequest) -> "LocalStream":
    """An ACTIVE stream, named after the test."""
    name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", request.node.name)[:128]
    return kinesis.streams.get(name) or kinesis.create_stream(name)


def _make_kinesis(fixture: str, settings: Mapping[str, Any]) -> "LocalKinesis":
    from shardline.testing.local_kinesis import LocalKinesis  # noqa: PLC0415 - loaded on first use

    try:
        return LocalKinesis(**settings)
    except TypeError as error:
        raise UsageError(f"the fixture {fixture} must return arguments of LocalKinesis: {error}") from None
