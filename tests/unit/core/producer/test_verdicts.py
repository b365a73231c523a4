"""The retry table."""

import pytest

from shardline.codec.shapes import PutRecordsResult
from shardline.core.error_codes import KIND_BY_CODE, Failure, FailureKind, classify
from shardline.core.producer.verdicts import (
    COUNT_MISMATCH,
    Action,
    Rule,
    Rules,
    judge_landing,
    judge_range,
    judge_refused,
    judge_request,
)
from shardline.model.hashing import HASH_KEY_MAX, HashRange

A, B = "shardId-000000000000", "shardId-000000000001"
THROUGHPUT = "ProvisionedThroughputExceededException"
RANGE = HashRange(1_000, 1_999)
RETRYABLE = {kind for kind in FailureKind if Failure(kind, "", "").retryable}


def digests(*numbers):
    return [number.to_bytes(16, "big") for number in numbers]


def refused(code, *, strict=False, message="words"):
    return judge_refused(PutRecordsResult(error_code=code, error_message=message), fail_if_throttled=strict)


def failed(kind, *, records=10, strict=False, code="Code", keyless=False):
    return judge_request(Failure(kind, code, "words", 400), records, keyless=keyless, fail_if_throttled=strict)


def judged(predicted, landed, count, hash_keys=(), landed_in=None):
    """Judge as the code for responses does: by the landing, and by the ranges if that does not decide."""
    rule = judge_landing(predicted, landed, alone=count == 1)
    return rule if rule is not None else judge_range(digests(*hash_keys), landed_in)


# The whole table: each row, with answers that it covers.
REACHED = {
    "STORED": [judged(A, A, 5), judged(None, A, 5), judged(None, A, 1), judged(A, A, 1)],
    "STORED_ALONE": [judged(A, B, 1)],
    "STORED_IN_RANGE": [judged(A, B, 3, (1_000, 1_500, 1_999), RANGE), judged(A, B, 2, (1_700, 1_700), RANGE)],
    "STORED_OUT_OF_RANGE": [judged(A, B, 2, (999, 1_500), RANGE), judged(A, B, 2, (1_500, 2_000), RANGE)],
    "STORED_UNKNOWN": [judged(A, B, 2, (1_500, 1_501), None)],
    "ENTRY_THROTTLED": [refused(THROUGHPUT), refused("ThrottlingException"), refused("KMSThrottlingException")],
    "ENTRY_THROTTLED_FATAL": [refused(THROUGHPUT, strict=True)],
    "ENTRY_REFUSED": [refused("InternalFailure"), refused("InternalFailure", strict=True), refused("NewCode")],
    "ENTRY_FATAL": [refused("KMSDisabledException"), refused("AccessDeniedException"), refused("ValidationException")],
    "REQUEST_THROTTLED": [failed(FailureKind.THROTTLED), failed(FailureKind.THROTTLED, records=1)],
    "REQUEST_THROTTLED_FATAL": [failed(FailureKind.THROTTLED, strict=True)],
    "REQUEST_LOST": [failed(kind) for kind in sorted(RETRYABLE - {FailureKind.THROTTLED})],
    "REQUEST_KEYLESS": [
        failed(FailureKind.INVALID, keyless=True),
        failed(FailureKind.INVALID, records=1, keyless=True),
    ],
    "REQUEST_INVALID": [failed(FailureKind.INVALID, records=2), failed(FailureKind.INVALID, records=5_000)],
    "REQUEST_INVALID_ALONE": [failed(FailureKind.INVALID, records=1)],
    "REQUEST_FATAL": [
        failed(kind, records=records)
        for kind in sorted(set(FailureKind) - RETRYABLE - {FailureKind.INVALID})
        for records in (1, 10)
    ],
    "COUNT_MISMATCH": [
        failed(FailureKind.TRANSIENT, code=COUNT_MISMATCH, strict=strict, records=records)
        for strict in (False, True)
        for records in (1, 10)
    ],
}
# These depend on the record's age and number of attempts, not on the answer: the code for responses applies them.
NOT_OF_THE_ANSWER = {"EXPIRED", "TOO_MANY_ATTEMPTS"}
NAMED = {name: rule for name, rule in vars(Rules).items() if isinstance(rule, Rule)}


def test_the_table_has_every_rule_once_and_in_the_order_of_its_definition():
    assert list(Rules.ALL) == list(NAMED.values())
    assert len(set(Rules.ALL)) == len(Rules.ALL)
    assert len({rule.when for rule in Rules.ALL}) == len(Rules.ALL)


def test_every_rule_is_reached_by_an_answer_or_is_no_matter_of_the_answer():
    assert set(REACHED) | NOT_OF_THE_ANSWER == set(NAMED)
    assert not set(REACHED) & NOT_OF_THE_ANSWER


@pytest.mark.parametrize("name", REACHED)
def test_what_falls_under_a_rule_falls_under_it_alone(name):
    assert REACHED[name]
    assert all(rule is NAMED[name] for rule in REACHED[name])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("kind", FailureKind)
def test_every_kind_of_failure_has_a_rule(kind, records, strict):
    rule = failed(kind, records=records, strict=strict)
    assert rule in Rules.ALL
    assert rule.when.startswith("request")
    assert rule.throttled is (kind is FailureKind.THROTTLED)
    assert (rule.action is Action.RESEND) == (kind in RETRYABLE and not (strict and rule.throttled))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("code", [*sorted(KIND_BY_CODE), "SomethingNew"])
def test_p5_every_code_of_an_entry_has_a_rule_by_its_kind(code, strict):
    kind = classify(code, 500)
    rule = refused(code, strict=strict)
    assert rule.when.startswith("entry")
    assert rule.throttled is (kind is FailureKind.THROTTLED)
    may_go_again = kind in RETRYABLE and not (strict and rule.throttled)
    assert rule.action is (Action.RESEND if may_go_again else Action.FAIL)


@pytest.mark.parametrize("code", [None, ""])
def test_an_entry_refused_without_a_code_is_sent_again(code):
    assert refused(code) is Rules.ENTRY_REFUSED
    assert refused(code, message=None) is Rules.ENTRY_REFUSED


def test_p5_only_throttling_slows_a_shard_down():
    assert {rule.when for rule in Rules.ALL if rule.throttled} == {
        Rules.ENTRY_THROTTLED.when,
        Rules.ENTRY_THROTTLED_FATAL.when,
        Rules.REQUEST_THROTTLED.when,
        Rules.REQUEST_THROTTLED_FATAL.when,
    }


def test_only_landing_elsewhere_makes_the_map_stale():
    assert [rule for rule in Rules.ALL if rule.stale_map] == [
        Rules.STORED_ALONE,
        Rules.STORED_IN_RANGE,
        Rules.STORED_OUT_OF_RANGE,
        Rules.STORED_UNKNOWN,
    ]


@pytest.mark.parametrize("action", Action)
def test_every_action_is_that_of_some_rule(action):
    assert any(rule.action is action for rule in Rules.ALL)


def test_p4_p5_what_no_kind_of_failure_decides_has_its_action():
    """The KPL would acknowledge the records of an aggregate that are in range, although a KCL reader drops them."""
    rules = [*Rules.ALL[:5], Rules.REQUEST_INVALID, Rules.REQUEST_INVALID_ALONE, Rules.EXPIRED, Rules.TOO_MANY_ATTEMPTS]
    delivered, given_up = [Action.DELIVER] * 3, [Action.FAIL] * 3
    assert [rule.action for rule in rules] == [*delivered, Action.REROUTE, Action.PARK, Action.BISECT, *given_up]


# ---- P4: where it landed


@pytest.mark.parametrize("hash_key", [0, 999, 1_000, 1_999, 2_000, HASH_KEY_MAX])
def test_p4_every_record_of_an_aggregate_must_be_inside_at_both_edges(hash_key):
    expected = Rules.STORED_IN_RANGE if hash_key in RANGE else Rules.STORED_OUT_OF_RANGE
    for place in range(3):
        numbers = [1_200, 1_300]
        numbers.insert(place, hash_key)
        assert judge_range(digests(*numbers), RANGE) is expected
