"""Does the compiled path of a put accept what the pure one accepts, and does its awaitable behave like a coroutine?"""

import asyncio
import copy
import gc
import inspect
import pickle
import time
import warnings
import weakref
from collections import deque
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.forms import KEYS
from tests.native.putters import LOOP, PureRoom, putter, sent, slowly

import shardline.sync
from shardline import Producer
from shardline._speedups import native, twin_method
from shardline.aio.producer.delivery import Delivery
from shardline.core.producer.producer_record import Attempt, BufferedRecord, History, Landing, Receipt, Sent

pytestmark = pytest.mark.skipif(native is None, reason="compares the compiled form with the pure one")

LANDING = Landing("shardId-000000000000", "4960", Sent(1.0, 0.5))
FIELDS = ("limit_bytes", "limit_records", "max_records", "quiet_bytes", "quiet_records")
NUMBERS = ("reserved_records", "reserved_bytes", *FIELDS)


class Text(str):
    __slots__ = ()


# ---- the room

CALLS = st.tuples(st.integers(1, 4), st.integers(0, 40), st.booleans())


@given(
    st.fixed_dictionaries({name: st.integers(-1, 60) for name in FIELDS}),
    st.booleans(),
    st.sampled_from([None, "closed"]),
    st.lists(CALLS, max_size=12),
)
def test_the_rooms_accept_the_same_records(numbers, is_contended, refusal, calls):
    rooms = [native.Room(), PureRoom()]
    for room in rooms:
        room.records, room.waiters, room.refusal = [], deque([1] * is_contended), refusal
        room.reserved_records = room.reserved_bytes = 0
        for name, value in numbers.items():
            setattr(room, name, value)
    for count, size, in_turn in calls:
        answers = [room.accept([size] * count, size, in_turn) for room in rooms]
        assert answers[0] == answers[1]
        assert [getattr(rooms[0], name) for name in NUMBERS] == [getattr(rooms[1], name) for name in NUMBERS]
        assert rooms[0].records == rooms[1].records


@pytest.mark.parametrize("arguments", [(), ((), 1, False), ([], "1", False), ([], -1, False), ([1], 1)])
def test_a_room_refuses_other_types(arguments):
    room = native.Room()
    room.records = []
    with pytest.raises(TypeError):
        room.accept(*arguments)
    room.records = ()
    with pytest.raises(TypeError):
        room.accept(*([1], 1, False))


# ---- which puts are compiled

DATA = st.one_of(st.binary(max_size=60), st.sampled_from([bytearray(b"x"), "text", None]))
ANY_KEY = st.one_of(KEYS, st.sampled_from([None, "", "x" * 257, Text("key"), 5]))


def may_pass(made, data, key, size):
    """Return whether the gate lets this record through, by the rules of ``Producer.put``."""
    if type(data) is not bytes or type(key) is not str or not key.isascii() or not 0 < len(key) <= 256:
        return False
    intake = made._intake
    return intake.reserved_records < intake.gate_records and intake.reserved_bytes + size <= intake.quiet_bytes


@given(st.lists(st.tuples(DATA, ANY_KEY), max_size=30), st.integers(0, 20), st.integers(0, 400), st.booleans())
def test_a_put_is_compiled_exactly_if_the_gate_lets_it_through(puts, records, size, blocking):
    made = putter(records, size)
    intake, kept = made._intake, []
    for data, key in puts:
        payload = len(data) + len(key) if isinstance(data, bytes) and isinstance(key, str) else 0
        passes, before = may_pass(made, data, key, payload), (intake.reserved_records, intake.reserved_bytes)
        began = time.monotonic()
        result = made.put_blocking(data, key=key) if blocking else sent(made.put(data, key=key))
        if not passes:
            assert result == "slow"
            assert made.slow.pop() == (data, key, {})
            assert (intake.reserved_records, intake.reserved_bytes) == before
            continue
        kept.append(result)
        assert (intake.reserved_records, intake.reserved_bytes) == (before[0] + 1, before[1] + payload)
        assert began + 30.0 <= result.expires_at <= time.monotonic() + 30.0
        model = Delivery(data, key, None, result.expires_at)
        names = Delivery.__struct_fields__
        assert [getattr(result, name) for name in names] == [getattr(model, name) for name in names]
    assert all(one is other for one, other in zip(intake.records, kept, strict=True))


def close_gate(made):
    made._intake.refuse("closed")


def let_a_caller_wait(made):
    made._intake.waiters.append(None)


def set_a_serializer(made):
    made._intake.serializes = True


def trace(made):
    made._trace = object()


def leave_the_loop(made):
    made._running_loop = object


def leave_the_library(made):
    def fail():
        raise RuntimeError("no running event loop")

    made._running_loop = fail


def have_to_yield(made):
    made._until_yield = 1


EVERYWHERE = [close_gate, let_a_caller_wait, set_a_serializer, trace]


@pytest.mark.parametrize("change", [*EVERYWHERE, leave_the_loop, leave_the_library, have_to_yield])
def test_the_pure_method_decides_about_every_other_put(change):
    made = putter()
    change(made)
    assert sent(made.put(b"x", key="k")) == "slow"
    if change in EVERYWHERE:
        assert made.put_blocking(b"x", key="k") == "slow"
    assert made._intake.records == []
    assert made.slow[0] == (b"x", "k", {})


@pytest.mark.parametrize("blocking", [False, True])
def test_a_put_outside_of_a_trace_is_compiled(blocking):
    made, variable, marks = putter(), ContextVar("variable"), [object(), object()]
    made._trace = gate = native.TraceGate()

    def put():
        return made.put_blocking(b"x", key="k") if blocking else sent(made.put(b"x", key="k"))

    assert put() == "slow", "the gate has no variable"
    gate.variable = "not a variable"
    assert put() == "slow"
    gate.variable = variable
    assert put() is made._intake.records[-1], "the variable is not set, and untraced is None"
    variable.set(marks[0])
    assert put() == "slow", "the first put in another context asks the tracing"
    gate.untraced = marks[0]
    assert put() is made._intake.records[-1]
    variable.set(marks[1])
    assert put() == "slow"
    assert len(made._intake.records) == 2


def test_an_option_is_left_to_the_pure_method():
    made = putter()
    assert sent(made.put(b"x", key="k", ttl=5)) == "slow"
    assert sent(made.put(b"x")) == "slow"
    assert made.put_blocking(b"x", key="k", timeout=5) == "slow"
    assert made.slow == [(b"x", "k", {"ttl": 5}), (b"x", None, {}), (b"x", "k", {"timeout": 5})]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        made.put()


def test_the_event_loop_is_asked_again_in_another_context():
    made, asked = putter(), []
    made._running_loop = lambda: asked.append(1) or LOOP
    for _ in range(5):
        sent(made.put(b"x", key="k"))
    assert len(asked) == 1
    made._running_loop = object
    assert sent(made.put(b"x", key="k")) is made._intake.records[-1], "the same callback of the same loop"
    assert copy_context().run(lambda: sent(made.put(b"x", key="k"))) == "slow"


def test_an_error_of_the_loops_library_is_raised():
    made = putter()

    def fail():
        raise ZeroDivisionError

    made._running_loop = fail
    with pytest.raises(ZeroDivisionError):
        made.put(b"x", key="k").send(None)
    assert made._intake.records == []


def test_a_wrong_class_of_deliveries_is_refused():
    made = putter()
    made._delivery_type = int
    with pytest.raises(TypeError, match="class of deliveries"):
        made.put_blocking(b"x", key="k")
    assert made._intake.reserved_records == 0


# ---- the awaitable


def test_a_put_accepts_its_record_when_it_is_awaited():
    made = putter()
    call = made.put(b"x", key="k")
    assert isinstance(call, Coroutine)
    assert made._intake.records == []
    assert sent(call) is made._intake.records[0]


def test_a_put_is_awaited_once():
    call = putter().put(b"x", key="k")
    sent(call)
    for again in (lambda: call.send(None), lambda: next(call), lambda: call.throw(ValueError())):
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            again()
    assert call.close() is None


def test_a_put_that_is_never_awaited_warns():
    with pytest.warns(RuntimeWarning, match="coroutine 'slowly' was never awaited"):
        putter().put(b"x", key="k")
    made = putter()
    made.itself = made.put(b"x", key="k")
    del made
    with pytest.warns(RuntimeWarning, match="never awaited"):
        gc.collect()


def test_a_put_that_is_closed_does_not_warn():
    made = putter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call = made.put(b"x", key="k")
        call.close()
        del call
    assert made._intake.records == []


def test_an_exception_can_be_thrown_into_a_put():
    made = putter()
    with pytest.raises(ZeroDivisionError):
        made.put(b"x", key="k").throw(ZeroDivisionError())
    assert made._intake.records == []
    assert made.slow == []


def test_a_put_that_has_not_started_takes_no_value():
    call = putter().put(b"x", key="k")
    with pytest.raises(TypeError, match="just-started"):
        call.send(1)
    call.close()


async def slowly_waiting(self, data, *, key=None):
    try:
        got = await asyncio.sleep(0, "woken")
    except asyncio.CancelledError:
        self.slow.append("cancelled")
        raise
    return got


def waiting_putter():
    made = putter(0, 0)
    type(made).put = native.make_method("put_async", slowly_waiting)
    return made


def test_a_put_that_waits_passes_everything_on():
    async def main():
        made = waiting_putter()
        made._running_loop = asyncio.get_running_loop
        assert await made.put(b"x", key="k") == "woken"
        assert await asyncio.gather(*(made.put(b"x", key="k") for _ in range(3))) == ["woken"] * 3
        task = asyncio.create_task(made.put(b"x", key="k"))
        assert "slowly_waiting" in repr(task)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert made.slow == ["cancelled"]
        call = made.put(b"x", key="k")
        call.send(None)
        call.close()
        with pytest.raises(RuntimeError, match="cannot reuse"):
            call.send(None)

    asyncio.run(main())


def test_the_state_of_a_put_is_that_of_a_coroutine():
    made = putter()
    call = made.put(b"x", key="k")
    assert inspect.getcoroutinestate(call) == inspect.CORO_CREATED
    assert call.cr_code is type(made).put.__code__
    assert sent(call) == "slow", "the coroutine of the pure method was needed for its state"
    call = made.put(b"x", key="k")
    assert sent(call) is made._intake.records[0]
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED
    assert (call.cr_frame, call.cr_await, call.cr_origin, call.cr_running) == (None, None, None, False)
    assert call.cr_code is type(made).put.__code__
    made, states = putter(), []
    made._running_loop = lambda: states.append(inspect.getcoroutinestate(call)) or object()
    call = made.put(b"x", key="k")
    assert sent(call) == "slow"
    assert states == [inspect.CORO_RUNNING]


def test_a_put_whose_state_was_read_still_warns_if_it_is_never_awaited():
    call = putter().put(b"x", key="k")
    assert call.cr_frame is not None
    with pytest.warns(RuntimeWarning, match="coroutine 'slowly' was never awaited"):
        del call


def test_a_task_shows_where_its_put_waits():
    async def main():
        made = waiting_putter()
        task = asyncio.create_task(made.put(b"x", key="k"))
        await asyncio.sleep(0)
        assert inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_SUSPENDED
        assert [frame.f_code.co_name for frame in task.get_stack()] == ["slowly_waiting"]
        assert await task == "woken"

    asyncio.run(main())


def test_a_traceback_leads_to_the_pure_method():
    async def fail(self, data, *, key=None):
        raise ZeroDivisionError(key)

    made = putter(0, 0)
    type(made).put = native.make_method("put_async", fail)
    with pytest.raises(ZeroDivisionError) as raised:
        made.put(b"x", key="k").send(None)
    assert raised.traceback[-1].name == "fail"


# ---- the methods


@pytest.mark.parametrize("kind", [Producer, shardline.sync.Producer])
def test_a_method_looks_like_the_pure_one(kind):
    pure = kind.put.__wrapped__
    assert type(kind.put) is native.Method
    assert inspect.signature(kind.put) == inspect.signature(pure)
    assert inspect.iscoroutinefunction(kind.put) is inspect.iscoroutinefunction(pure)
    assert inspect.getdoc(kind.put) == inspect.getdoc(pure)
    assert kind.put.__qualname__ == "Producer.put"
    assert kind.put.__module__ == kind.__module__
    assert repr(kind.put) == repr(pure)
    assert inspect.isroutine(kind.put)


@pytest.mark.parametrize("kind", [Producer, shardline.sync.Producer])
def test_a_method_can_be_copied_pickled_and_referred_to_weakly(kind):
    assert copy.deepcopy(kind.put) is kind.put
    assert pickle.loads(pickle.dumps(kind.put)) is kind.put
    assert weakref.ref(kind.put)() is kind.put
    made = putter()
    assert weakref.WeakMethod(made.put)() == made.put
    method = native.make_method("put_async", slowly)
    reference = weakref.ref(method)
    del method
    assert reference() is None


def test_only_known_methods_are_made():
    with pytest.raises(AttributeError, match="no method walk is compiled"):
        native.make_method("walk", slowly)
    with pytest.raises(TypeError):
        native.make_method("put_async", print)
    with pytest.raises(ImportError, match="C extension has no walk: run `make native`"):
        twin_method("walk")(slowly)


# ---- receipts

HISTORY = History(1, (Attempt(0.0, 0.1, None, None, "Throttled", "", maybe_stored=False),))


@given(st.sampled_from([None, HISTORY]), st.one_of(st.integers(0, 9_999), st.sampled_from(["4961", ""])))
def test_the_receipts_are_the_same(history, place):
    delivery = Delivery(None, "k", None, 0.0, ending=LANDING, place=place, history=history)
    blocking = shardline.sync.Delivery(None, "k", None, 0.0, ending=LANDING, place=place, history=history)
    expected = sent(Delivery.__await__.__wrapped__(delivery))
    for found in (sent(delivery.__await__()), blocking.result(), blocking.result(1.0), blocking.result(timeout=None)):
        assert type(found) is Receipt
        assert found == expected
        assert found.attempts == expected.attempts


def test_a_result_is_taken_once():
    ready = Delivery(None, "k", None, 0.0, ending=LANDING).__await__()
    assert sent(ready).sequence_number == "4960"
    with pytest.raises(RuntimeError, match="already awaited"):
        next(ready)


@pytest.mark.parametrize("timeout", [-1.0, "1", float("nan")])
def test_a_wrong_timeout_is_left_to_the_pure_method(timeout):
    delivery = shardline.sync.Delivery(None, "k", None, 0.0, ending=LANDING)
    with pytest.raises(shardline.UsageError):
        delivery.result(timeout)
    with pytest.raises(TypeError):
        delivery.result(1.0, 2.0)


@pytest.mark.parametrize("wrong", [(int, Landing), (Receipt, BufferedRecord), (Landing, Landing), (None, None)])
def test_only_receipts_and_landings_are_bound(wrong):
    with pytest.raises(TypeError):
        native.bind_receipt(*wrong)
    assert sent(Delivery(None, "k", None, 0.0, ending=LANDING).__await__()).shard_id == LANDING.shard_id
