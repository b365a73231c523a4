"""How did each record end, and what room does that free? P1, P7 and P11 are invariants of
``shardline.core.producer.ledger``.
"""

import pytest
from msgspec.structs import replace

from shardline.codec.shapes import PutRecordsResult
from shardline.core.producer.aggregate import Aggregate, KeylessAddress
from shardline.core.producer.intake import Intake
from shardline.core.producer.ledger import Ledger
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import (
    Attempt,
    BufferedRecord,
    Landing,
    Receipt,
    Sent,
    Undelivered,
    note_attempt,
    payload_bytes,
)
from shardline.core.producer_events import RecordsFailed

STORED = Attempt(
    started_at=1_700_000_000.0,
    duration=0.01,
    shard_id="shardId-000000000000",
    sequence_number="4959",
    code=None,
    message=None,
    maybe_stored=True,
)
LANDING = Landing("shardId-000000000000", "4959", Sent(STORED.started_at, STORED.duration))


def record(data=b"data", key="key", *, awaited=False):
    return BufferedRecord(data, key, None, 30.0, waiters=[object()] if awaited else None)


def ledger():
    return Ledger(Intake(ProducerConfig()))


def put(book, *records):
    """Put records, and return them as one aggregate."""
    whole = Aggregate(0.1, KeylessAddress("k", "7"))
    for one in records:
        book._intake.put(one, payload_bytes(one))
        whole.add(one, 1 << 40)
    return whole


def room(book):
    """Return the room in use."""
    return book._intake.outstanding, book._intake.buffered_bytes


# ---- room


def test_p7_a_new_ledger_is_empty():
    book = ledger()
    assert (room(book), book.events) == ((0, 0), [])
    assert (book.delivered_records, book.delivered_bytes, book.failed_records, book.retried_records) == (0, 0, 0, 0)
    assert not book.finished
    assert not book.failed


@pytest.mark.parametrize("keys", [("a", "b"), (None, None), ("a", None), ("é", "鍵")])
def test_p7_what_ends_makes_room_for_exactly_as_much(keys):
    delivered, failed = [record(b"x" * 10, key) for key in keys], [record(b"y" * 20, key) for key in keys]
    book = ledger()
    whole = put(book, *delivered)
    put(book, *failed)
    book.deliver(whole, LANDING)
    assert room(book) == (2, 40 + sum(len(key or "") for key in keys))
    book.fail(failed, "Expired", "too late")
    assert room(book) == (0, 0)


# ---- endings


def test_p1_delivery_gives_every_record_its_place_and_one_shared_landing():
    book, records = ledger(), [record(), record(), record()]
    book.deliver(put(book, *records), LANDING)
    assert [one.conclusion for one in records] == [
        Receipt("shardId-000000000000", "4959", place, (STORED,)) for place in range(3)
    ]
    assert all(one.ending is LANDING for one in records)
    assert (book.delivered_records, book.delivered_bytes) == (3, 21)
    assert book.events == []  # deliveries are reported once per request


SENT = Sent(1.0, 0.5)
HERE, THERE, REFUSED = PutRecordsResult("7", "s"), PutRecordsResult("8", "t"), PutRecordsResult(error_code="No")


def receipt(number, shard_id="s"):
    return Receipt(shard_id, number, 0, (Attempt(1.0, 0.5, shard_id, number, None, None, maybe_stored=True),))


@pytest.mark.parametrize(("shard_id", "others"), [("s", [1, 2]), (None, [1])])
def test_p1_records_of_a_bundle_land_each_by_itself_and_the_others_are_named(shard_id, others):
    book = ledger()
    first, refused, last = record(b"1", "é", awaited=True), record(b"22", "b"), record(b"333", None)
    bundle = put(book, first, refused, last)
    assert book.deliver_alone(bundle, [HERE, REFUSED, THERE], shard_id, SENT) == others
    assert first.conclusion == receipt("7")
    assert last.conclusion == (None if shard_id else receipt("8", "t"))
    assert (first.data, refused.ending, refused.data) == (None, None, b"22")
    assert last.data == (b"333" if shard_id else None)
    assert refused.place == 0
    assert room(book) == ((2, 6) if shard_id else (1, 3))
    assert (book.delivered_records, book.delivered_bytes) == ((1, 2) if shard_id else (2, 5))
    assert [*book.finished] == [first]
    book.fail([one for one in bundle.records if one.ending is None], "Expired", "too late")
    assert room(book) == (0, 0)


def test_p1_a_bundle_whose_records_all_landed_leaves_none_and_one_that_was_refused_all():
    book = ledger()
    assert book.deliver_alone(put(book, record(), record()), [HERE, HERE], "s", SENT) == []
    assert book.deliver_alone(put(book, record(), record()), [REFUSED, REFUSED], "s", SENT) == [0, 1]
    assert (room(book)[0], book.delivered_records) == (2, 2)


def test_a_record_that_landed_alone_in_the_end_tells_of_all_attempts():
    book, one = ledger(), record()
    bundle = put(book, one)
    note_attempt([one], STORED)
    assert book.deliver_alone(bundle, [HERE], "s", SENT) == []
    assert one.conclusion == Receipt("s", "7", 0, (STORED, receipt("7").attempts[0]), 2)


@pytest.mark.internal_error
@pytest.mark.parametrize("how", ["delivered", "failed"])
def test_p1_a_record_of_a_bundle_that_has_ended_does_not_end_again(how):
    """Regression: only the presence of its data was checked, and a failed record keeps its data."""
    book, one = ledger(), record()
    bundle = put(book, one)
    if how == "delivered":
        book.deliver_alone(bundle, [HERE], "s", SENT)
    else:
        book.fail([one], "Expired", "too late")
    with pytest.raises(AssertionError, match="P1"):
        book.deliver_alone(bundle, [THERE], None, SENT)


def test_p11_data_is_dropped_on_delivery_and_kept_on_failure():
    book, good, bad = ledger(), record(), record()
    book.deliver(put(book, good), LANDING)
    put(book, bad)
    book.fail([bad], "Expired", "too late")
    assert good.data is None
    assert bad.data == b"data"


def test_p1_failure_gives_every_record_the_reason_and_its_own_attempts():
    book, fresh, tried = ledger(), record(), record()
    attempt = replace(STORED, code="InternalFailure", message="again", maybe_stored=False)
    note_attempt([tried], attempt)
    put(book, fresh, tried)
    book.fail([fresh, tried], "Expired", "too late")
    assert fresh.conclusion == Undelivered("Expired", "too late")
    assert tried.conclusion == Undelivered("Expired", "too late", (attempt,), 1)
    assert book.failed_records == 2
    assert book.events == [RecordsFailed(2, "Expired", "too late")]


def test_the_failure_of_nothing_is_no_event():
    book = ledger()
    book.fail([], "Expired", "too late")
    assert book.events == []
    assert not book.failed


@pytest.mark.internal_error
@pytest.mark.parametrize("first", ["deliver", "fail"])
@pytest.mark.parametrize("second", ["deliver", "fail"])
def test_p1_a_record_that_ends_twice_is_an_internal_error(first, second):
    book, one = ledger(), record()
    whole = put(book, one)

    def end(how):
        if how == "deliver":
            book.deliver(whole, LANDING)
        else:
            book.fail([one], "Expired", "too late")

    end(first)
    with pytest.raises(AssertionError, match="P1"):
        end(second)


# ---- reports


def test_only_records_that_someone_waits_for_are_named():
    book = ledger()
    awaited, unheard, lost = record(awaited=True), record(), record(awaited=True)
    book.deliver(put(book, awaited, unheard), LANDING)
    put(book, lost)
    book.fail([lost], "Closed", "closed")
    assert [*book.finished] == [awaited, lost]


def test_all_that_failed_are_named():
    book = ledger()
    one, two, three = record(awaited=True), record(), record()
    put(book, one, two, three)
    book.fail([one, two], "Expired", "too late")
    book.fail([three], "Closed", "closed")
    assert [*book.failed] == [one, two, three]
