"""What does a record keep about its put and its attempts?"""

import gc
import sys

import pytest

from shardline.core.producer.producer_record import (
    Attempt,
    BufferedRecord,
    History,
    Landing,
    Receipt,
    Sent,
    Undelivered,
    date_records,
    note_attempt,
    payload_bytes,
    undelivered,
)


def attempt(number=0, *, code="InternalFailure", stored=False):
    return Attempt(1_700_000_000.0 + number, 0.02, "shardId-000000000000", None, code, "words", stored)


STORED = Attempt(
    started_at=1_700_000_100.0,
    duration=0.01,
    shard_id="shardId-000000000007",
    sequence_number="4959",
    code=None,
    message=None,
    maybe_stored=True,
)
LANDING = Landing("shardId-000000000007", "4959", Sent(STORED.started_at, STORED.duration))


def record(data=b"data", key="key", hash_key=None):
    return BufferedRecord(data, key, hash_key, 30.0)


def tried(count, *, stored=()):
    """Return a record that failed this often. Some of the attempts may have left a copy."""
    one = record()
    for number in range(count):
        note_attempt([one], attempt(number, stored=number in stored))
    return one


# ---- the outcome


def test_a_record_that_has_not_ended_concludes_nothing():
    one = record()
    assert one.ending is None
    assert one.conclusion is None
    assert one.attempt_count == 0


def test_a_record_delivered_at_once_has_one_attempt():
    one = record()
    one.ending = LANDING
    one.place = 4
    assert one.conclusion == Receipt("shardId-000000000007", "4959", 4, (STORED,), 1)
    assert one.conclusion.delivered is True


def test_p11_the_attempt_of_a_record_that_went_alone_is_made_when_someone_asks():
    short = Receipt("shardId-000000000007", "4959", 0, Sent(STORED.started_at, STORED.duration))
    full = Receipt("shardId-000000000007", "4959", 0, (STORED,))
    assert short.attempts == full.attempts == (STORED,)
    assert short == full
    assert (hash(short), repr(short)) == (hash(full), repr(full))
    assert short != Receipt("shardId-000000000007", "4960", 0, (STORED,))
    assert short != (STORED,)


@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_a_record_alone_tells_what_one_in_an_aggregate_does(count):
    together, alone = tried(count), tried(count)
    together.ending = LANDING
    alone.ending, alone.place = Landing(LANDING.shard_id, "", LANDING.sent), "4959"
    assert alone.conclusion == together.conclusion
    assert alone.conclusion.sequence_number == "4959"


def test_a_record_given_up_untried_says_so():
    reason = undelivered(record(), "Closed", "the producer was closed")
    assert (reason.attempts, reason.attempt_count, reason.maybe_stored) == ((), 0, False)


@pytest.mark.parametrize("value", [attempt(), LANDING, LANDING.sent, Undelivered("c", "m"), History(0, ())])
def test_what_is_shared_does_not_change(value):
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], "changed")


def test_a_receipt_after_very_many_attempts_has_the_first_and_the_good_one():
    one = tried(50)
    one.ending = LANDING
    receipt = one.conclusion
    assert receipt.attempt_count == 51
    assert len(receipt.attempts) == 16
    assert receipt.attempts[0] == attempt(0)
    assert receipt.attempts[-1] == STORED


# ---- the history


@pytest.mark.parametrize("which", range(0, 40, 3))
def test_a_copy_that_may_be_stored_is_reported_even_if_its_attempt_is_no_longer_kept(which):
    """Regression: only the kept attempts were searched, so the error said that sending again is safe."""
    assert undelivered(tried(40, stored={which}), "Expired", "too late").maybe_stored is True


def test_p4_wrong_landings_are_counted_even_if_their_attempts_are_no_longer_kept():
    one = record()
    for number in range(60):
        note_attempt([one], attempt(number, code="WrongShard" if number in {7, 8, 30} else "ConnectError"))
    assert one.history.wrong_landings == 3


def test_an_attempt_of_no_records_is_noted_nowhere():
    one = record()
    note_attempt([], attempt())
    assert one.history is None


# ---- the cost


def test_p11_a_record_is_one_slotted_object_that_the_garbage_collector_does_not_see():
    one = record()
    assert not gc.is_tracked(one)
    assert not hasattr(one, "__dict__")
    assert sys.getsizeof(one) <= 96


def test_p11_neither_are_endings_attempts_and_histories():
    reason = undelivered(tried(2), "Expired", "too late")
    values = [attempt(), LANDING, reason, tried(1).history, Receipt("s", "1", 0, (STORED,))]
    assert not any(gc.is_tracked(value) for value in values)


def test_records_are_compared_by_identity():
    """Two puts of the same data are two records."""
    one, other = record(), record()
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.parametrize(
    ("data", "key", "size"), [(b"data", "key", 7), (b"data", None, 4), (b"", "k", 1), (b"", None, 0)]
)
def test_a_record_counts_its_data_and_key_against_the_buffer(data, key, size):
    assert payload_bytes(record(data, key)) == size


@pytest.mark.internal_error
def test_records_are_dated_and_counted_together():
    records = [BufferedRecord(b"data", "key", None, 0.0), BufferedRecord(b"", None, None, 0.0, tags=b"tags")]
    assert date_records(records, 5.0) == sum(map(payload_bytes, records)) == 11
    assert [record.expires_at for record in records] == [5.0, 5.0]
    assert date_records([], 5.0) == 0


def test_a_delivered_record_counts_no_more():
    one = record()
    one.data = None
    with pytest.raises(AssertionError, match="delivered"):
        payload_bytes(one)
