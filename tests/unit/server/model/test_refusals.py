"""Do refusals have AWS's types, statuses and messages?"""

import pytest

from shardline.server.model import refusals


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (refusals.not_found, "ResourceNotFoundException"),
        (refusals.in_use, "ResourceInUseException"),
        (refusals.invalid, "InvalidArgumentException"),
        (refusals.limit_exceeded, "LimitExceededException"),
        (refusals.throttled, "ProvisionedThroughputExceededException"),
        (refusals.expired_iterator, "ExpiredIteratorException"),
        (refusals.expired_token, "ExpiredNextTokenException"),
        (refusals.serialization, "SerializationException"),
    ],
)
def test_each_has_its_type(make, code):
    refusal = make("why")
    assert (refusal.code, refusal.message, refusal.status, str(refusal)) == (code, "why", 400, "why")


def test_an_unknown_operation():
    assert refusals.unknown_operation().code == "UnknownOperationException"


def test_broken_constraints_show_their_values():
    null = refusals.broken("data", None, refusals.NOT_NULL)
    empty = refusals.broken("streamName", "", "c")
    assert refusals.validation([null]).code == "ValidationException"
    assert refusals.validation([null]).message == (
        "1 validation error detected: Value null at 'data' failed to satisfy constraint: Member must not be null"
    )
    assert refusals.validation(iter([null, empty])).message == (
        "2 validation errors detected: Value null at 'data' failed to satisfy constraint: Member must not be null; "
        "Value '' at 'streamName' failed to satisfy constraint: c"
    )


def test_no_more_than_ten_broken_constraints_are_counted():
    message = refusals.validation(refusals.broken(f"records.{n}.member", None, "c") for n in range(1, 12)).message
    assert message.startswith("10 validation errors detected: ")
    assert message.count("Value null at") == 10
    assert "records.11." not in message


def test_a_dry_run_reports_that_nothing_was_done():
    refusal = refusals.dry_run("PutRecord")
    assert (refusal.code, refusal.status) == ("DryRunOperationException", 400)
    assert refusal.message.startswith("PutRecord ")


def test_an_operation_of_provisioned_streams_only():
    refusal = refusals.provisioned_only("s", "000000000000")
    assert refusal.code == "ValidationException"
    assert refusal.message == "Request is invalid. Stream s under account 000000000000 is in On-Demand mode."


def test_throttling_names_the_shard_or_the_stream():
    assert refusals.shard_throttling("PutRecord", "shardId-0", "s", "1") == (
        "Rate exceeded for shard shardId-0 in stream s under account 1."
    )
    assert refusals.shard_throttling("GetRecords", "shardId-0", "s", "1") == "Rate exceeded for Shard - 1/s/shardId-0"
    named, unnamed = refusals.call_throttled("s", "1"), refusals.call_throttled("", "1")
    assert (named.code, named.message) == ("LimitExceededException", "Rate exceeded for stream s under account 1.")
    assert unnamed.message == "Rate exceeded for account 1."
