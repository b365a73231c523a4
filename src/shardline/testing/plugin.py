"""Fixtures for pytest: a Kinesis for each test, and a stream in it.

Opt in from the ``conftest.py`` at the root of your tests with ``pytest_plugins = ["shardline.testing.plugin"]``, or on
the command line with ``-p shardline.testing.plugin``. No server starts until a test uses a fixture.

To change the settings of the server, define a fixture ``kinesis_settings`` in a test module or a ``conftest.py``. It
returns the arguments of ``LocalKinesis``.
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
    from shardline.testing.local_kinesis import LocalKinesis  # noqa: PLC0415 - loaded on first use

    try:
        local = LocalKinesis(**kinesis_settings)
    except TypeError as error:
        raise UsageError(f"the fixture kinesis_settings must return arguments of LocalKinesis: {error}") from None
    with local as running:
        yield running


@pytest.fixture
def kinesis_stream(kinesis: "LocalKinesis", request: pytest.FixtureRequest) -> "LocalStream":
    """An ACTIVE stream, named after the test."""
    name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", request.node.name)[:128]
    return kinesis.streams.get(name) or kinesis.create_stream(name)
