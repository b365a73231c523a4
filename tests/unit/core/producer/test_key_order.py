"""Which record of a key may be sent next? The invariants are those of ``shardline.core.producer.key_order``."""

from shardline.core.clock import NEVER
from shardline.core.producer.key_order import KeyOrder
from shardline.core.producer.producer_record import BufferedRecord, Undelivered


def record(key, put_at=0.0):
    return BufferedRecord(b"data", key, None, put_at + 10.0)


def test_p9_the_first_record_of_each_key_goes_and_the_others_wait():
    order = KeyOrder()
    a1, b1, a2, a3 = (record(key) for key in "abaa")
    assert not order.has_heads
    assert order.admit([a1, b1, a2, a3]) == [a1, b1]
    assert order.has_heads
    assert order.waiting == 2
    assert order.end([b1]) == []
    assert order.end([a1]) == [a2]
    assert order.end([a2]) == [a3]
    assert order.end([a3]) == []
    assert (order.waiting, order.has_heads) == (0, False)


def test_p9_a_record_that_is_refused_stays_the_head_of_its_key():
    order = KeyOrder()
    first, second = record("a"), record("a")
    order.admit([first, second])
    assert order.admit([first]) == [first]
    assert order.end([second]) == []  # it is not the head: nothing follows it
    assert order.waiting == 1


def test_keyless_records_wait_for_none():
    order = KeyOrder()
    first, second = record(None), record(None)
    assert order.admit([first, second]) == [first, second]
    assert order.end([first]) == []
    order.forget([first, second])
    assert order.in_order([first, second]) == [first, second]


def test_what_expires_while_it_waits_leaves_and_the_others_keep_their_places():
    order = KeyOrder()
    head, old, young, other, last = record("a"), record("a", 1), record("a", 3), record("b", 2), record("b", 4)
    order.admit([head, old, other, young, last])
    assert order.expires_at() == 11.0
    assert order.take_expired(10.9) == []
    assert order.take_expired(11.0) == [old]
    assert order.expires_at() == 13.0
    assert order.end([head]) == [young]
    assert order.expires_at() == 13.0  # the time of a record that has left: an early time is harmless
    assert order.take_expired(13.0) == []
    assert order.expires_at() == 14.0
    assert order.end([other]) == [last]
    assert order.expires_at() == NEVER


def test_all_of_it_in_the_order_of_the_puts():
    order = KeyOrder()
    head, second, third, late, other = record("a"), record("a"), record("a"), record("a"), record("b", -1)
    order.admit([head, second, third])
    assert order.in_order([late, head, other]) == [other, head, second, third, late]
    order.forget([head])
    assert order.waiting == 0
    assert order.admit([second]) == [second]


def test_a_hundred_thousand_records_of_one_key_expire_one_by_one_at_little_cost():
    """The head never ends: each record behind it leaves at its own time, and none is visited twice."""
    order = KeyOrder()
    records = [record("a", put_at / 1000) for put_at in range(100_000)]
    order.admit(records)
    looked_at = 0

    class Counted(type(order._behind["a"])):
        def __iter__(self):
            nonlocal looked_at
            looked_at += len(self)
            return super().__iter__()

    order._behind["a"] = Counted(order._behind["a"])
    for waiting in records[1:]:
        assert order.take_expired(waiting.expires_at) == [waiting]
    assert looked_at == 0
    assert order.waiting == 0
    assert order.end(records[:1]) == []


def test_records_that_went_on_long_ago_are_not_kept_for_their_expiry():
    order = KeyOrder()
    head, *others = (record("a", put_at) for put_at in range(200))
    order.admit([head, *others])
    for follower in others[:-1]:
        assert order.end([head]) == [follower]
        head = follower
    assert order.waiting == 1
    assert len(order._by_expiry) <= 66
    assert order.take_expired(1000.0) == [others[-1]]


def test_a_record_with_a_ttl_of_its_own_expires_before_or_after_those_around_it():
    order = KeyOrder()
    head, long, plain, short, last = (record("a", put_at) for put_at in range(5))
    long.extra_ttl, short.extra_ttl = 30.0, -9.0
    order.admit([head, long, plain, short, last])
    assert (order.expires_at(), order.oldest()) == (4.0, 11.0)
    assert order.take_expired(4.0) == [short]
    assert order.take_expired(12.0) == [plain]
    assert order.waiting == 2
    assert order.end([head]) == [long]
    assert order.take_expired(14.0) == [last]
    assert order.take_expired(41.0) == []  # it is the head now, which the lane expires
    assert (order.waiting, order.oldest()) == (0, NEVER)


def test_an_entry_of_a_record_that_has_ended_is_passed_over():
    order = KeyOrder()
    head, second, third = record("a"), record("a", 1), record("a", 2)
    order.admit([head, second, third])
    order.end([head])
    second.ending = Undelivered("Closed", "")
    fourth = record("a", 3)
    order.end([second])
    order.admit([fourth])
    assert order.take_expired(11.0) == []
    assert order.take_expired(13.0) == [fourth]
