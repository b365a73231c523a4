"""Does the compiled form survive a failing allocation at every place, and does it leak nothing?"""

import gc
import subprocess
import sys
import tracemalloc
from collections import deque
from functools import cache
from hashlib import md5
from pathlib import Path

import pytest
from tests.native.putters import putter, sent

from shardline._speedups import native
from shardline.aio.producer.delivery import Delivery
from shardline.core.producer.producer_record import BufferedRecord, Landing, Sent

pytestmark = pytest.mark.skipif(native is None, reason="the pure form allocates nothing itself")

ROOT = Path(__file__).parents[2]
LANDING = Landing("shardId-000000000000", "4960", Sent(1.0, 0.5))
ENDINGS = tuple(((number + 1) * 2**128 // 8 - 1).to_bytes(16, "big") for number in range(8))
WRONG = BufferedRecord(b"x", 5, None, 0.0)


def some_records():
    # No key may be a word of the interpreter's own, such as "key": the interpreter refers to those from many places.
    made = [BufferedRecord(b"data" * 10, f"key {number % 300}", None, 0.0) for number in range(400)]
    made += [
        BufferedRecord(b"x", "schlüssel \U0001f600", None, 0.0),
        BufferedRecord(b"y", "a key with a hash key", "12345678901234567890", 0.0),
    ]
    return made


def digests(records):
    return native.md5_many([record.data for record in records])


def sorting(records):
    return native.make_lane_table(ENDINGS).sort(records)


def packing(records):
    keys, ours = native.KeyTable(), []
    at, _, _ = native.add_ordinary(keys, ours, records, 0, 20, 1 << 40)
    assert len(ours) == at
    keys.add("another key")
    return at, keys.number_of("another key"), len(native.without_ended(ours))


def encoding(records):
    return native.encode_records([(records[:200], ""), (records[200:401], ""), (records[:3], "")])


def settling(records):
    for record in records:
        record.data, record.ending, record.waiters = b"again", None, [print]
    return native.settle_delivered(records, LANDING, deque())


def dating(records):
    for record in records:
        record.data = b"again"
    items = [(record.key, record.data) for record in records]
    count = len(native.make_plain(Delivery, items, 1_000, 256))
    return count, native.date_records(records, 1e9), native.keep_order(records, 0.5), native.keep_order(records, 2e9)


def summing(records):
    return [native.join_frame([record.data] * 30) for record in records[:20]]


@cache
def one_putter():
    """Return the only putter: CPython 3.12.1 itself crashes if memory ends while a class or a function is made."""
    return putter()


def putting(records):
    """Put records, in the event loop and blocking, and read their receipts."""
    for record in records:
        record.data = b"again"
    producer = one_putter()
    intake = producer._intake
    intake.records.clear()
    intake.reserved_records = intake.reserved_bytes = 0
    intake.mark(1_000, 100_000)
    producer._until_yield = 10_000
    made = [sent(producer.put(record.data, key=record.key)) for record in records[:20]]
    made += [producer.put_blocking(record.data, key=record.key) for record in records[:20]]
    accepted = intake.reserved_records
    native.settle_delivered(made, LANDING, deque())
    places = [sent(delivery.__await__()).sub_sequence for delivery in made]
    return accepted, places


CALLS = {call.__name__: call for call in (digests, sorting, packing, encoding, settling, dating, summing, putting)}

NO_MEMORY = """
import sys
sys.path.insert(0, ".")
from _testcapi import remove_mem_hooks, set_nomemory
from tests.native.test_memory import CALLS, some_records
call, records = CALLS[sys.argv[1]], some_records()
expected = call(records)
failures = 0
for place in range(5000):
    set_nomemory(place, place + 1)
    try:
        found = call(records)
    except MemoryError:
        found = None
    finally:
        remove_mem_hooks()
    if found is None:
        failures += 1
    else:
        assert found == expected, place
        if place > 2 * failures + 100:  # far beyond the last allocation
            break
print(failures)
"""


@pytest.mark.parametrize("name", CALLS)
def test_any_allocation_may_fail(name):
    pytest.importorskip("_testcapi")
    done = subprocess.run(
        [sys.executable, "-c", NO_MEMORY, name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 0


def fails(function, *arguments):
    try:
        function(*arguments)
    except (TypeError, ValueError, AssertionError):
        return
    pytest.fail("this call must fail")


def failing_calls(records):
    """Calls that stop in the middle."""
    ended = [*records[:20], BufferedRecord(b"x", "k", None, 0.0, ending=LANDING)]
    for record in ended[:20]:
        record.ending, record.data = None, b"data"
    fails(native.md5_many, [b"a"] * 20 + [None])
    fails(sorting, [*records, WRONG])
    fails(native.add_ordinary, native.KeyTable(), [], [*records[:20], None], 0, 20, 1 << 40)
    fails(native.encode_records, [(records[:200], ""), ([*records[:20], WRONG], "")])
    fails(native.settle_delivered, ended, LANDING, deque())
    fails(native.date_records, [*records, WRONG], 1.0)
    fails(native.keep_order, [*records[:20], None], 1.0)
    fails(native.join_frame, ["text"])
    fails(native.join_frame, "text")
    fails(native.make_lane_table, (*ENDINGS, b"short"))


@pytest.mark.parametrize("call", [*CALLS.values(), failing_calls], ids=[*CALLS, "failing"])
def test_nothing_leaks(call):
    records = some_records()
    watched = [LANDING, records[0], records[0].key, records[-1].key, WRONG]

    def use():
        for _ in range(30):
            call(records)
        gc.collect()

    tracemalloc.start()
    try:
        use()
        before = [sys.getrefcount(value) for value in watched]
        memory, _ = tracemalloc.get_traced_memory()
        none = sys.getrefcount(None)
        use()
        grown = tracemalloc.get_traced_memory()[0] - memory
        nones = sys.getrefcount(None) - none
    finally:
        tracemalloc.stop()
    assert [sys.getrefcount(value) for value in watched] == before
    assert abs(nones) < 30
    assert grown < 3_000


def test_the_calls_really_ran():
    records = some_records()
    assert digests(records)[0] == md5(b"data" * 10).digest()
    assert packing(records) == (401, 301, 401)
    assert settling(records) == len(records)
