"""Are the tracings of the sinks called around puts and handlers, and are their exceptions contained?"""

import asyncio
import contextvars
import threading
from contextlib import contextmanager
from functools import partial

import pytest

from shardline.aio.consumer.batches import Batch
from shardline.aio.tracing import Tracings, find_tracings
from shardline.events import EventSource
from shardline.model.record import Record

SOURCE = EventSource("consumer", "orders", "billing", "worker-1", None)
RECORD = Record(b"data", "key")
CURRENT = contextvars.ContextVar("current", default="outside")


class Traced:
    """A tracing that remembers what happened, and sets a context variable."""

    def __init__(self, headers=None):
        self.headers = headers
        self.seen = []

    def put_headers(self):
        return self.headers

    @contextmanager
    def handling(self, records):
        self.seen.append(records)
        token = CURRENT.set("inside")
        try:
            yield
        except BaseException as error:
            self.seen.append(type(error))
            raise
        finally:
            CURRENT.reset(token)
            self.seen.append("left")


class Broken:
    """A tracing that raises in one of its methods."""

    def __init__(self, where):
        self.where = where

    def _raise(self, here):
        if self.where == here:
            raise RuntimeError(here)

    def put_headers(self):
        self._raise("put_headers")

    def handling(self, _):
        self._raise("handling")
        return self

    def __enter__(self):
        self._raise("enter")

    def __exit__(self, *_):
        self._raise("exit")


class Reports(list):
    def __call__(self, what, error):
        self.append((what, str(error)))


@pytest.fixture
def reports():
    return Reports()


class WithTracing:
    def __init__(self, tracing):
        self.tracing = lambda _: tracing


def test_only_sinks_that_trace_this_source_count(reports):
    tracing = Traced({"a": "b"})
    sinks = [print, WithTracing(None), WithTracing(tracing)]
    assert find_tracings(sinks, SOURCE, reports).put_headers() == {"a": "b"}
    assert find_tracings(sinks[:2], SOURCE, reports) is None
    assert find_tracings([], SOURCE, reports) is None


def test_a_sink_whose_tracing_cannot_be_made_is_reported(reports):
    broken = WithTracing(None)
    broken.tracing = lambda _: 1 / 0
    assert find_tracings([broken], SOURCE, reports) is None
    assert reports == [("the tracing", "division by zero")]


# ---- puts


def test_the_first_of_several_headers_wins(reports):
    tracings = Tracings([Traced(), Traced({"a": "1", "b": "1"}), Traced({"b": "2", "c": "2"})], reports)
    assert tracings.put_headers() == {"a": "1", "b": "1", "c": "2"}
    assert Tracings([Traced(), Traced({})], reports).put_headers() is None


def test_a_tracing_that_raises_adds_no_headers(reports):
    assert Tracings([Broken("put_headers"), Traced({"a": "1"})], reports).put_headers() == {"a": "1"}
    assert reports == [("the tracing", "put_headers")]


def test_the_variable_of_a_single_tracing_is_known(reports):
    with_variable = Traced()
    with_variable.put_context = CURRENT
    assert Tracings([with_variable], reports).put_context is CURRENT
    assert Tracings([with_variable, with_variable], reports).put_context is None
    assert Tracings([Traced()], reports).put_context is None


# ---- handlers


def call(handler, argument, tracing, *, is_async, reports=None):
    """Call the handler in a thread if it is plain, and await what it returns in the event loop, as ``run`` does."""
    traced = Tracings(tracing if isinstance(tracing, list) else [tracing], reports).wrap(handler, is_async=is_async)

    async def run():
        result = traced(argument) if is_async else await asyncio.to_thread(traced, argument)
        if result is not None:
            await result
        assert CURRENT.get() == "outside"

    asyncio.run(run())


@pytest.mark.parametrize("argument", [RECORD, Batch([RECORD, RECORD], lambda _: True)])
@pytest.mark.parametrize("kind", ["async", "plain", "returns an awaitable"])
def test_a_handler_is_called_inside_the_tracing(argument, kind):
    tracing, calls = Traced(), []

    async def handle(argument):
        calls.append((argument, CURRENT.get(), threading.current_thread() is threading.main_thread()))
        await asyncio.sleep(0)
        calls.append((argument, CURRENT.get(), threading.current_thread() is threading.main_thread()))

    def handle_plain(argument):
        calls.append((argument, CURRENT.get(), threading.current_thread() is threading.main_thread()))

    handlers = {"async": handle, "plain": handle_plain, "returns an awaitable": partial(handle)}
    call(handlers[kind], argument, tracing, is_async=kind == "async")
    assert calls == ([(argument, "inside", False)] if kind == "plain" else [(argument, "inside", True)] * 2)
    assert tracing.seen == [(RECORD,) if argument is RECORD else argument, "left"]


@pytest.mark.parametrize("kind", ["async", "plain", "returns an awaitable"])
def test_an_exception_of_the_handler_passes_through_the_tracing(kind):
    tracing = Traced()

    async def fail(_):
        raise ValueError(CURRENT.get())

    def fail_plain(_):
        raise ValueError(CURRENT.get())

    handlers = {"async": fail, "plain": fail_plain, "returns an awaitable": partial(fail)}
    reports = Reports()
    with pytest.raises(ValueError, match="inside"):
        call(handlers[kind], RECORD, tracing, is_async=kind == "async", reports=reports)
    assert tracing.seen == [(RECORD,), ValueError, "left"]
    assert reports == []


def test_variables_that_the_handler_sets_are_there_while_its_result_is_awaited(reports):
    own, seen = contextvars.ContextVar("own", default=None), []

    async def finish():
        seen.append(own.get())

    def handle(_):
        own.set("of the handler")
        return finish()

    call(handle, RECORD, Traced(), is_async=False)
    assert seen == ["of the handler"]


@pytest.mark.parametrize("where", ["handling", "enter", "exit"])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_tracing_that_raises_costs_no_call(where, is_async, reports):
    calls, other = [], Traced()

    async def handle(argument):
        calls.append((argument, CURRENT.get()))

    def handle_plain(argument):
        calls.append((argument, CURRENT.get()))

    call(handle if is_async else handle_plain, RECORD, [Broken(where), other], is_async=is_async, reports=reports)
    assert calls == [(RECORD, "inside")]
    assert other.seen == [(RECORD,), "left"]
    assert reports == [("the tracing", where)]


def test_a_tracing_may_leave_records_out(reports):
    tracing, calls = Traced(), []
    tracing.handling = lambda _: None
    call(calls.append, RECORD, tracing, is_async=False, reports=reports)
    assert calls == [RECORD]
