"""``shardline streams consumers`` lists, registers and deregisters the consumers of a stream.

The real command, as a process of its own.
"""

import json
import re

import pytest

from shardline.testing import Delays, LocalKinesis

COMMAND = ("streams", "consumers")
ARN = re.compile(r"arn:aws:kinesis:us-east-1:000000000000:stream/orders/consumer/billing:\d+")


@pytest.fixture
def kinesis():
    """Registering and deregistering take a moment."""
    with LocalKinesis(shards=2, stream="orders", delays=Delays(register=0.3, deregister=0.3)) as running:
        yield running


def listed(shardline):
    return json.loads(shardline(*COMMAND, "list", "orders", "--output", "json").stdout)


def test_a_consumer_is_registered_listed_and_deregistered(shardline):
    assert shardline(*COMMAND, "list", "orders").stderr == "orders has no registered consumers\n"
    (line,) = shardline(*COMMAND, "register", "orders", "billing").lines
    result, arn = line.rsplit(", ", 1)
    assert result == "registered billing: ACTIVE"
    assert ARN.fullmatch(arn)
    (consumer,) = listed(shardline)
    assert (consumer["name"], consumer["status"], consumer["arn"]) == ("billing", "ACTIVE", arn)
    heading, row = shardline(*COMMAND, "list", "orders").lines
    assert heading.split() == ["NAME", "STATUS", "CREATED", "ARN"]
    assert row.split() == ["billing", "ACTIVE", consumer["created_at"], arn]
    assert shardline(*COMMAND, "deregister", "orders", "billing", "--yes").lines == ["deregistered billing"]
    assert listed(shardline) == []


def test_a_second_registration_is_an_error_unless_it_is_allowed(shardline):
    first = json.loads(shardline(*COMMAND, "register", "orders", "billing", "-o", "json").stdout)
    assert (first["registered"], first["status"]) == (True, "ACTIVE")
    assert "(ResourceInUseException)" in shardline(*COMMAND, "register", "orders", "billing", code=1).stderr
    again = json.loads(shardline(*COMMAND, "register", "orders", "billing", "--exist-ok", "-o", "json").stdout)
    assert again == first | {"registered": False}


def test_without_waiting_the_change_goes_on(shardline, eventually):
    assert shardline(*COMMAND, "register", "orders", "billing", "--no-wait").stdout.startswith(
        b"registered billing: CREATING, "
    )
    eventually(lambda: listed(shardline)[0]["status"] == "ACTIVE")
    result = json.loads(shardline(*COMMAND, "deregister", "orders", "billing", "--yes", "--no-wait", "-ojson").stdout)
    assert result == {"name": "billing", "stream": "orders", "deregistered": True}
    eventually(lambda: listed(shardline) == [])


def test_nothing_is_deregistered_without_a_confirmation(shardline, on_terminal):
    shardline(*COMMAND, "register", "orders", "billing")
    ended = shardline(*COMMAND, "deregister", "orders", "billing", stdin=b"y\n", code=2)
    assert ended.stderr == "Error: not a terminal: pass --yes to confirm that billing of orders is deregistered\n"
    shown, code = on_terminal(*COMMAND, "deregister", "orders", "billing", typed=b"n\n", columns=300)
    assert code == 1
    assert "Workers that read with it end with an error." in shown
    assert "nothing was deregistered" in shown
    assert len(listed(shardline)) == 1
    shown, code = on_terminal(*COMMAND, "deregister", "orders", "billing", typed=b"y\n", columns=300)
    assert code == 0
    assert listed(shardline) == []


def test_errors_are_one_sentence(shardline, kinesis):
    ended = shardline(*COMMAND, "deregister", "orders", "nothing", "--yes", code=1)
    assert "`shardline streams consumers list` shows the registered consumers)\n" in ended.stderr
    assert "`shardline streams list`" in shardline(*COMMAND, "list", "order", code=1).stderr
    assert "a consumer name has 1 to 128" in shardline(*COMMAND, "register", "orders", "a/b", code=2).stderr
    kinesis.faults.error("LimitExceededException", "20 consumers", operation="RegisterStreamConsumer")
    ended = shardline(*COMMAND, "register", "orders", "billing", code=1)
    assert ended.stderr == "Error: RegisterStreamConsumer: 20 consumers (LimitExceededException)\n"
