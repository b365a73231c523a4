"""What is refused has AWS's type, status and words."""

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


@pytest.mark.parametrize(
    ("value", "constraint", "shown"),
    [
        ("x", "c", "Value 'x' at"),
        (5, "c", "Value '5' at"),
        (None, "c", "Value at"),
        (None, "Member must not be null", "Value null at"),
    ],
)
def test_a_broken_constraint_shows_the_value(value, constraint, shown):
    assert (
        f"{shown} 'member' failed to satisfy constraint: {constraint}"
        in refusals.validation("member", value, constraint).message
    )


def test_a_dry_run_is_told_that_nothing_was_done():
    refusal = refusals.dry_run("PutRecord")
    assert (refusal.code, refusal.status) == ("DryRunOperationException", 400)
    assert refusal.message.startswith("PutRecord ")


def test_an_operation_of_provisioned_streams_only():
    assert refusals.provisioned_only("SplitShard").code == "ValidationException"
