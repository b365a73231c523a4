"""Does the exception tree match the drawing in its docstring?"""

import inspect
import pickle
import re

import pytest

from shardline import errors
from shardline.errors import (
    Closed,
    CredentialsError,
    HandlerFailed,
    RequestError,
    ServiceError,
    ShardlineError,
    StoreError,
    TransportError,
    UsageError,
    WaitTimeout,
)
from shardline.model.record import Record

DEFINED = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, BaseException)
}


def drawn_tree():
    """Return the parent of each child, and the built-ins beside them, from the drawing."""
    parents, builtins, branch = {}, {}, {}
    for line in inspect.getdoc(errors).splitlines():
        found = re.match(r"^(\s*(?:│\s*)*(?:[├└]── )?)([A-Z][A-Za-z]+)(?: \(also ([A-Za-z]+)\))?(\s|$)", line)
        if found is None or found[2] not in DEFINED:
            continue
        level = len(found[1])
        branch[level] = found[2]
        above = [name for depth, name in sorted(branch.items()) if depth < level]
        parents[found[2]] = above[-1] if above else None
        builtins[found[2]] = found[3]
    return parents, builtins


def test_the_drawing_is_the_tree():
    parents, builtins = drawn_tree()
    assert set(parents) == set(DEFINED)
    for name, parent in parents.items():
        bases = {base.__name__ for base in DEFINED[name].__bases__}
        expected = {parent or "Exception"} | ({builtins[name]} if builtins[name] else set())
        assert bases == expected


def test_one_except_clause_catches_everything():
    assert all(issubclass(value, ShardlineError) for value in DEFINED.values())


def test_errors_that_have_a_builtin_counterpart_are_caught_by_it_too():
    with pytest.raises(ValueError, match=r"^wrong$"):
        raise UsageError("wrong")
    with pytest.raises(TimeoutError, match=r"^late$"):
        raise WaitTimeout("late")


@pytest.mark.parametrize("kind", [Closed, CredentialsError, UsageError, WaitTimeout])
def test_a_plain_error_says_its_sentence(kind):
    assert str(kind("a sentence")) == "a sentence"


@pytest.mark.parametrize("kind", [RequestError, ServiceError, TransportError])
def test_a_request_error_carries_the_facts(kind):
    error = kind(
        "PutRecords failed",
        operation="PutRecords",
        kind="throttled",
        code="SlowDown",
        message="words",
        status=503,
        request_id="id",
        retry_after=1.5,
        maybe_received=False,
        retryable=True,
    )
    assert str(error) == "PutRecords failed"
    assert vars(error) == {
        "operation": "PutRecords",
        "kind": "throttled",
        "code": "SlowDown",
        "message": "words",
        "status": 503,
        "request_id": "id",
        "retry_after": 1.5,
        "maybe_received": False,
        "retryable": True,
    }


def test_a_request_error_without_facts_supposes_the_worst():
    error = RequestError("broken")
    assert error.maybe_received
    assert not error.retryable
    assert (error.status, error.request_id, error.retry_after) == (None, None, None)
    assert (error.operation, error.kind, error.code, error.message) == ("", "", "", "")


@pytest.mark.parametrize("kind", [RequestError, ServiceError, StoreError, TransportError])
def test_an_error_survives_the_way_between_processes(kind):
    error = pickle.loads(pickle.dumps(kind("broken", code="SlowDown", status=503)))
    assert type(error) is kind
    assert (str(error), error.code, error.status) == ("broken", "SlowDown", 503)


def test_service_and_transport_errors_are_separate_classes():
    assert not issubclass(ServiceError, TransportError)
    assert not issubclass(TransportError, ServiceError)


def test_a_handler_that_failed_says_on_what_without_the_data():
    record = Record(b"secret", "key", sequence_number="5")
    one, many = HandlerFailed("shard-1", [record], 3), HandlerFailed("shard-1", [record] * 4, 3)
    assert str(one) == "the handler failed for good on record 5 of shard-1, and the policy is to stop"
    assert "4 records of shard-1" in str(many)
    again = pickle.loads(pickle.dumps(one))
    assert (again.shard_id, again.records[0].data, again.attempts) == ("shard-1", b"secret", 3)
