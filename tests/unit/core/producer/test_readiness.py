"""When can a producer reach its stream?"""

import pytest

from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.readiness import Readiness

K = FailureKind


def failure(kind):
    return Failure(kind, "Code", "why")


@pytest.fixture
def readiness():
    return Readiness()


def seen(readiness):
    return readiness.is_ready, readiness.is_hopeless


def test_before_the_first_answer_nothing_is_known(readiness):
    assert seen(readiness) == (False, False)
    assert readiness.failure is None


def test_a_map_is_enough(readiness):
    readiness.handle_listing(None, has_map=True)
    assert seen(readiness) == (True, False)
    readiness.handle_summary(failure(K.DENIED))
    assert seen(readiness) == (True, False)


def test_a_page_that_is_not_the_last_and_a_summary_are_not(readiness):
    readiness.handle_listing(None, has_map=False)
    readiness.handle_summary(None)
    assert seen(readiness) == (False, False)


@pytest.mark.parametrize("kind", [K.DENIED, K.INVALID, K.NO_CREDENTIALS, K.UNTRUSTED])
def test_who_can_never_list_the_shards_is_ready_if_the_summary_shows_the_stream(readiness, kind):
    readiness.handle_listing(failure(kind), has_map=False)
    assert seen(readiness) == (False, False), "the summary decides"
    readiness.handle_summary(failure(K.TRANSIENT))
    assert seen(readiness) == (False, False)
    readiness.handle_summary(None)
    assert seen(readiness) == (True, False)


@pytest.mark.parametrize("kind", [K.DENIED, K.INVALID, K.NO_CREDENTIALS, K.UNTRUSTED])
def test_it_is_hopeless_if_both_would_fail_again(readiness, kind):
    readiness.handle_summary(failure(kind))
    assert seen(readiness) == (False, False)
    readiness.handle_listing(failure(kind), has_map=False)
    assert seen(readiness) == (False, True)
    assert readiness.failure == failure(kind)


@pytest.mark.parametrize("summary", [None, failure(K.TRANSIENT), failure(K.NOT_FOUND)])
def test_a_stream_that_is_not_there_is_hopeless(readiness, summary):
    readiness.handle_listing(failure(K.NOT_FOUND), has_map=False)
    assert seen(readiness) == (False, True)
    readiness.handle_summary(summary)
    assert seen(readiness) == (False, True)


@pytest.mark.parametrize("kind", [K.TRANSIENT, K.THROTTLED, K.IN_USE, K.EXPIRED_CREDENTIALS, K.LIMIT_EXCEEDED])
@pytest.mark.parametrize("summary", [None, failure(K.TRANSIENT), failure(K.DENIED)])
def test_what_may_pass_is_waited_out(readiness, kind, summary):
    readiness.handle_listing(failure(kind), has_map=False)
    readiness.handle_summary(summary)
    assert seen(readiness) == (False, False)


def test_a_stream_that_is_created_later_makes_it_ready(readiness):
    readiness.handle_listing(failure(K.NOT_FOUND), has_map=False)
    readiness.handle_listing(None, has_map=True)
    assert seen(readiness) == (True, False)


def test_a_failed_refresh_of_a_map_changes_nothing(readiness):
    readiness.handle_listing(None, has_map=True)
    readiness.handle_listing(failure(K.TRANSIENT), has_map=True)
    assert seen(readiness) == (True, False)
    readiness.handle_listing(failure(K.NOT_FOUND), has_map=True)
    assert seen(readiness) == (True, False)
