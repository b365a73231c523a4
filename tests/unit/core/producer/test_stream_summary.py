"""Which facts does the stream's summary provide, and when is it requested?"""

from random import Random

import pytest
from msgspec import structs

from shardline.codec.shapes import StreamSummary
from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.stream_summary import StreamFacts
from shardline.core.producer_events import AggregationStopped, ChannelsFound, DistributionChanged, StreamUnknown
from shardline.core.requests import DescribeStreamSummary
from shardline.model.limits import MIB
from shardline.model.stream import parse_stream

STREAM = parse_stream("orders")
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "no", 400)
LOST = Failure(FailureKind.TRANSIENT, "ReadTimeout", "no answer")
FATAL = sorted(kind for kind in FailureKind if not Failure(kind, "", "").retryable)


def summary(*, max_kib=None, distribution=None, created_at=None, channels=None):
    return StreamSummary(
        name="orders",
        arn="arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
        status="ACTIVE",
        created_at=created_at,
        max_record_kib=max_kib,
        record_distribution=distribution,
        channels_shape=channels,
    )


def facts(**settings):
    return StreamFacts(STREAM, ProducerConfig(**settings), Random(1))


def answered(answer=None, **settings):
    """Return facts that were requested and answered at 0."""
    known = facts(**settings)
    known.poll_request(0.0)
    known.handle_summary(answer or summary(), 0.0)
    return known


def query_again(known, answer, now):
    known.query_again(now)
    assert known.poll_request(now) is not None
    return known.handle_summary(answer, now)


def test_the_stream_is_asked_at_once_and_once():
    known = facts()
    assert known.is_asking
    assert known.next_deadline() <= 0.0
    assert known.poll_request(0.0) == DescribeStreamSummary(STREAM)
    assert known.is_asking
    assert known.poll_request(1_000.0) is None
    assert known.next_deadline() == NEVER
    assert known.handle_summary(summary(), 0.1) is False
    assert not known.is_asking
    assert known.next_deadline() == NEVER
    assert known.poll_request(1_000.0) is None
    assert known.events == []


@pytest.mark.internal_error
def test_an_answer_that_was_not_asked_for_is_an_internal_error():
    with pytest.raises(AssertionError):
        facts().handle_summary(summary(), 0.0)


# ---- the record limit


def test_until_the_stream_has_answered_the_limit_is_the_highest_of_any_stream():
    assert facts().record_max_bytes == 10 * MIB


@pytest.mark.parametrize(("kib", "limit"), [(None, MIB), (1_024, MIB), (10_240, 10 * MIB)])
def test_then_it_is_what_the_stream_says(kib, limit):
    assert answered(summary(max_kib=kib)).record_max_bytes == limit


@pytest.mark.parametrize("answer", [summary(max_kib=10_240), DENIED])
def test_a_limit_that_the_user_set_stays(answer):
    assert facts(record_max_bytes=500).record_max_bytes == 500
    assert answered(answer, record_max_bytes=500).record_max_bytes == 500


@pytest.mark.parametrize("kind", FATAL)
def test_a_permanent_failure_leaves_the_default_and_is_reported(kind):
    failure = Failure(kind, "Code", "words", 400)
    known = answered(failure)
    assert known.record_max_bytes == MIB
    assert known.events == [StreamUnknown(failure)]
    assert known.may_predict
    if kind is FailureKind.NOT_FOUND:  # the stream may be created, or re-created
        assert 0.5 <= known.next_deadline() <= 1.0
        return
    assert not known.is_asking
    assert known.next_deadline() == NEVER


def test_what_the_stream_once_said_holds_when_it_is_asked_again_in_vain():
    """Regression: records of more than 1 MiB were refused from then on."""
    known = answered(summary(max_kib=10_240))
    query_again(known, DENIED, 5.0)
    assert known.record_max_bytes == 10 * MIB


def test_asked_again_before_it_ever_answered_and_refused_the_limit_is_the_default():
    known = facts()
    query_again(known, DENIED, 5.0)
    assert known.record_max_bytes == MIB


# ---- transient failures


def test_they_are_tried_again_after_one_to_thirty_seconds():
    known, now = facts(), 0.0
    for ceiling in (1, 2, 4, 8, 16, 30, 30):
        assert known.poll_request(now) is not None
        assert known.handle_summary(LOST, now) is False
        assert known.is_asking
        again_at = known.next_deadline()
        assert ceiling / 2 <= again_at - now <= ceiling
        assert known.poll_request(again_at - 0.001) is None
        now = again_at
    assert known.events == []
    assert known.record_max_bytes == 10 * MIB


@pytest.mark.parametrize(("asked", "pause"), [(17.0, 17.0), (3600.0, 30.0)])
def test_a_pause_that_the_service_asks_for_is_kept_within_reason(asked, pause):
    known = answered(LOST._replace(retry_after=asked))
    assert known.next_deadline() == pause


def test_after_an_answer_the_pauses_start_over():
    known, now = facts(), 0.0
    for _ in range(6):
        known.poll_request(now)
        known.handle_summary(LOST, now)
        now = known.next_deadline()
    known.poll_request(now)
    known.handle_summary(summary(), now)
    query_again(known, LOST, now)
    assert 0.5 <= known.next_deadline() - now <= 1.0
    assert known.has_unexplained_landings


# ---- AUTO record distribution


def test_a_stream_that_distributes_by_itself_is_not_aggregated_for():
    known = facts()
    known.poll_request(0.0)
    assert known.handle_summary(summary(distribution="AUTO"), 0.0) is True
    assert known.auto
    assert not known.may_predict
    assert known.events == [DistributionChanged(auto=True)]


@pytest.mark.parametrize("distribution", [None, "HASH_KEY", "UNIFORM"])
def test_every_other_way_is_by_hash_key(distribution):
    known = facts()
    known.poll_request(0.0)
    assert known.handle_summary(summary(distribution=distribution), 0.0) is False
    assert (known.auto, known.may_predict, known.events) == (False, True, [])


def test_it_can_be_switched_at_any_time_and_back():
    known = answered()
    assert query_again(known, summary(distribution="AUTO"), 5.0) is True
    assert not known.may_predict
    assert query_again(known, summary(distribution="AUTO"), 6.0) is False
    assert query_again(known, summary(), 7.0) is True
    assert known.may_predict
    assert known.events == [DistributionChanged(auto=True), DistributionChanged(auto=False)]


def test_a_stream_that_cannot_be_asked_why_is_not_aggregated_for():
    known = answered()
    assert query_again(known, DENIED, 5.0) is True
    assert known.events == [AggregationStopped(DENIED)]
    assert (known.auto, known.may_predict, known.has_unexplained_landings) == (False, False, False)


def test_until_it_has_said_why_the_question_stays_open():
    known = answered()
    known.query_again(5.0)
    assert known.has_unexplained_landings
    assert known.next_deadline() == 5.0
    known.poll_request(5.0)
    known.handle_summary(LOST, 5.0)
    assert known.has_unexplained_landings
    assert known.may_predict
    known.poll_request(known.next_deadline())
    known.handle_summary(summary(), 7.0)
    assert not known.has_unexplained_landings


def test_asking_again_while_it_is_asked_makes_no_second_request_and_no_sooner_one():
    known = facts()
    known.poll_request(0.0)
    known.query_again(0.1)
    assert known.poll_request(0.1) is None
    known.handle_summary(LOST, 0.2)
    again_at = known.next_deadline()
    known.query_again(0.3)
    assert known.next_deadline() == again_at > 0.6


@pytest.mark.parametrize("answer", [summary(), DENIED, LOST])
def test_any_answer_ends_the_wait_for_the_first_one(answer):
    known = facts()
    known.poll_request(0.0)
    assert known.answered is False
    known.handle_summary(answer, 0.1)
    assert known.answered is True


def test_under_auto_it_is_asked_every_minute_whether_keys_count_again():
    known = answered(summary(distribution="AUTO"))
    assert known.next_deadline() == 60.0
    assert known.poll_request(59.9) is None
    assert known.poll_request(60.0) is not None
    assert known.handle_summary(summary(), 60.1) is True
    assert known.may_predict
    assert known.next_deadline() == NEVER


def test_answers_that_explain_nothing_make_the_pauses_grow():
    known, now = answered(), 5.0
    pauses = []
    for _ in range(9):
        known.query_again(now)
        asked_at = known.next_deadline()
        pauses.append(asked_at - now)
        assert known.poll_request(asked_at) is not None
        known.handle_summary(summary(), asked_at)
        assert known.next_deadline() == NEVER
        now = asked_at
    assert pauses[0] == 0.0
    for pause, ceiling in zip(pauses[1:], [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], strict=True):
        assert ceiling / 2 - 1e-9 <= pause <= ceiling + 1e-9


def test_the_pauses_go_by_without_a_landing_too():
    known = answered()
    query_again(known, summary(), 5.0)
    known.query_again(5.2)
    assert known.next_deadline() == 5.2


@pytest.mark.parametrize("answer", [summary(distribution="AUTO"), summary(created_at=2.0)])
def test_an_answer_that_explains_it_ends_the_pauses(answer):
    known = answered(summary(created_at=1.0))
    query_again(known, summary(created_at=1.0), 5.0)
    known.query_again(5.01)
    known.poll_request(6.0)
    known.handle_summary(answer, 6.0)
    known.query_again(6.01)
    assert known.next_deadline() == 6.01


def test_that_keys_count_again_explains_it():
    known = answered(summary(distribution="AUTO"))
    query_again(known, summary(), 5.0)
    known.query_again(5.01)
    assert known.next_deadline() == 5.01


def test_after_a_long_quiet_time_the_pauses_start_over():
    known = answered()
    now = 5.0
    for _ in range(8):
        query_again(known, summary(), now)
        now += 5.0
    now += 70.0
    query_again(known, summary(), now)
    known.query_again(now)
    assert known.next_deadline() <= now + 0.1


def test_an_answer_to_no_landing_makes_no_pause():
    known = answered()
    known.query_again(0.0)
    assert known.next_deadline() == 0.0


def test_another_time_of_creation_is_another_stream():
    known = answered(summary(created_at=1.0))
    told = []
    for answer in (summary(created_at=1.0), summary(), LOST, summary(created_at=2.0), summary(created_at=2.0)):
        known._wanted_at = 0.0
        known.poll_request(1.0)
        known.handle_summary(answer, 1.0)
        told.append(known.recreated)
    assert told == [False, False, False, True, False]


def test_after_the_stream_was_missing_what_it_said_does_not_count_until_it_answers_again():
    known = answered(summary())
    assert known.is_current
    known.reset(5.0)
    assert (known.is_current, known.answered) == (False, False)
    assert known.poll_request(5.0) is not None
    known.handle_summary(Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "words", 400), 5.0)
    assert not known.is_current
    at = known.next_deadline()
    assert 5.5 <= at <= 6.0
    known.poll_request(at)
    known.handle_summary(structs.replace(summary(), status="DELETING"), at)
    assert not known.is_current
    later = known.next_deadline()
    assert at + 1.0 <= later <= at + 2.0
    known.poll_request(later)
    known.handle_summary(summary(), later)
    assert known.is_current


def test_an_answer_that_was_asked_for_before_is_not_used():
    known = answered(summary())
    known.query_again(4.0)
    assert known.poll_request(4.0) is not None
    known.reset(5.0)
    assert known.poll_request(5.0) is None
    assert known.handle_summary(summary(), 5.0) is False
    assert not known.is_current
    assert known.poll_request(5.0) is not None


def test_if_the_stream_may_not_be_asked_its_facts_are_done_without():
    known = answered(summary())
    known.reset(5.0)
    known.poll_request(5.0)
    known.handle_summary(DENIED, 5.0)
    assert known.is_current


# ---- channels


def test_channels_are_reported_once_and_the_stream_is_described_every_minute_until_they_are_gone():
    known = answered(summary(channels=2))
    assert known.events == [ChannelsFound(2)]
    assert (known.channels, known.may_predict) == (2, True)
    assert known.next_deadline() == 60.0
    known.poll_request(60.0)
    assert known.handle_summary(summary(channels=1), 60.0) is False
    assert (known.events, known.channels, known.next_deadline()) == ([ChannelsFound(2)], 1, 120.0)
    known.poll_request(120.0)
    known.handle_summary(summary(channels=0), 120.0)
    assert (known.events, known.channels, known.next_deadline()) == ([ChannelsFound(2)], 0, NEVER)


def test_while_there_are_channels_an_unexplained_landing_asks_at_once():
    known = answered(summary(channels=1))
    known.query_again(5.0)
    assert known.next_deadline() == 5.0


@pytest.mark.parametrize("settings", [{"aggregation": "force"}, {"aggregation": False}, {"packing": "json-lines"}])
def test_channels_do_not_matter_if_they_are_overridden_or_nothing_is_aggregated(settings):
    known = answered(summary(channels=3), **settings)
    assert (known.events, known.channels, known.next_deadline()) == ([], 0, NEVER)
    assert known.headers_refusal is None


def test_an_impossible_number_of_channels_is_none():
    assert answered(summary(channels=-1)).channels == 0


def test_headers_are_refused_wherever_aggregates_are():
    assert answered().headers_refusal is None
    assert "AUTO record distribution" in answered(summary(distribution="AUTO", channels=1)).headers_refusal
    assert (
        'channels of the stream cannot read: set aggregation="force"' in answered(summary(channels=1)).headers_refusal
    )
    known = answered()
    query_again(known, DENIED, 5.0)
    assert "DescribeStreamSummary failed" in known.headers_refusal


def test_a_producer_that_sends_looks_for_the_first_channel_every_five_minutes():
    known = answered()
    known.note_sent(299.0)
    assert known.next_deadline() == NEVER
    known.note_sent(300.0)
    known.note_sent(300.0)
    assert known.next_deadline() == 300.0
    assert known.poll_request(300.0) is not None
    known.note_sent(301.0)
    assert known.poll_request(301.0) is None
    known.handle_summary(summary(channels=1), 301.0)
    assert known.events == [ChannelsFound(1)]
    assert (known.may_aggregate, known.next_deadline()) == (False, 361.0)
    known.note_sent(700.0)
    assert known.next_deadline() == 361.0, "with channels, the summary is read every minute in any case"


def test_a_summary_without_channels_starts_the_five_minutes_again():
    known = answered()
    known.note_sent(1_000.0)
    known.poll_request(1_000.0)
    known.handle_summary(summary(), 1_001.0)
    assert (known.may_aggregate, known.events) == (True, [])
    known.note_sent(1_300.0)
    assert known.next_deadline() == NEVER
    known.note_sent(1_301.0)
    assert known.next_deadline() == 1_301.0


@pytest.mark.parametrize("aggregation", [False, "force"])
def test_without_aggregates_or_with_forced_ones_no_channel_is_looked_for(aggregation):
    known = answered(aggregation=aggregation)
    known.note_sent(10_000.0)
    assert known.next_deadline() == NEVER


def test_after_a_denied_summary_no_channel_is_looked_for():
    known = answered()
    known.note_sent(300.0)
    known.poll_request(300.0)
    known.handle_summary(DENIED, 300.0)
    known.note_sent(10_000.0)
    assert known.next_deadline() == NEVER
