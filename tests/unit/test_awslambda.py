"""Tests of ``shardline.awslambda`` without a stream: plain and async handlers, the latter on asyncio and uvloop."""

import asyncio
import json
import logging
import time
from base64 import b64encode
from contextvars import ContextVar
from functools import partial

import pytest
import uvloop
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from shardline import Batch, FailurePolicy, HandlerFailed, Record, UsageError, WaitTimeout, aggregate
from shardline.aio.loop import process_loop
from shardline.awslambda import KinesisEventSource
from shardline.core.consumer.consumer_events import HandlerRetried, HandlingStopped
from shardline.events import EventSource, instrument
from shardline.sinks import OpenTelemetrySink

STOP = FailurePolicy(attempts=2)


class FakeClock:
    """A clock on which time passes only while something waits."""

    def __init__(self):
        self.time = 100.0
        self.slept = []

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds


class Context:
    """The context that Lambda passes beside the event."""

    def __init__(self, seconds):
        self.seconds = seconds

    def get_remaining_time_in_millis(self):
        return int(self.seconds * 1000)


def event_of(*payloads, first=1, **fields):
    """Return an event with a Kinesis record for each payload. A list of payloads becomes an aggregate."""
    records = []
    for number, payload in enumerate(payloads, first):
        data = aggregate([("k", each) for each in payload]) if isinstance(payload, list) else payload
        kinesis = {
            "partitionKey": "k",
            "sequenceNumber": str(number),
            "data": b64encode(data).decode(),
            "approximateArrivalTimestamp": time.time() - 60,
        }
        arn = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
        records.append(
            {"eventSource": "aws:kinesis", "eventID": f"shardId-7:{number}", "eventSourceARN": arn, "kinesis": kinesis}
        )
    return {"Records": records} | fields


def window_of(*payloads, state=None, is_final=False):
    return event_of(
        *payloads,
        window={"start": "2020-12-09T07:04:00Z", "end": "2020-12-09T07:06:00Z"},
        state=state or {},
        shardId="shardId-7",
        isFinalInvokeForWindow=is_final,
        isWindowTerminatedEarly=False,
    )


def failed(*numbers):
    return {"batchItemFailures": [{"itemIdentifier": str(number)} for number in numbers]}


@pytest.fixture
def new_loop():
    """Start without an event loop, and end the loop with the test."""
    process_loop._runner.cache_clear()
    yield
    if process_loop._runner.cache_info().currsize:
        process_loop._runner().close()
    process_loop._runner.cache_clear()


@pytest.fixture(params=["plain", "asyncio", "uvloop"])
def kind(request, new_loop):
    """Make a handler of a plain function: the function itself, or a coroutine function on a loop of this kind."""
    name = request.param
    if name == "uvloop":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield name
    asyncio.set_event_loop_policy(None)


@pytest.fixture
def made(kind):
    def make(function):
        if kind == "plain":
            return function

        async def handler(*arguments):
            await asyncio.sleep(0)
            assert type(asyncio.get_running_loop()).__module__.startswith(kind)
            return function(*arguments)

        return handler

    return make


@pytest.fixture
def clock():
    return FakeClock()


class BadError(Exception):
    pass


def call(handler, record):
    """A plain function that returns an awaitable."""
    return handler(record)


def fails_on(*poison):
    """Return a handler that fails on these data, and the list of the data that it was called with."""
    seen = []

    def handle(given):
        records = given if isinstance(given, Batch) else [given]
        seen.append(b",".join(record.data for record in records))
        if any(record.data in poison for record in records):
            raise BadError("too bad")

    return handle, seen


# ---- records


def test_each_record_is_handled_in_order(made):
    handle, seen = fails_on()
    function = KinesisEventSource().each_record(made(handle))
    assert function(event_of(b"a", [b"b", b"c"], b"d"), None) == {"batchItemFailures": []}
    assert seen == [b"a", b"b", b"c", b"d"]
    assert function(event_of(), Context(5)) == {"batchItemFailures": []}


def test_a_record_has_its_value_and_its_lag(made):
    seen = []
    function = KinesisEventSource(deserializer=json.loads).each_record(made(seen.append))
    function(event_of(b'{"n": 1}', [b"2", b"3"]), None)
    assert [record.value for record in seen] == [{"n": 1}, 2, 3]
    assert all(59 < record.lag < 90 for record in seen)
    assert {(record.stream, record.shard_id, record.lease) for record in seen} == {("orders", "shardId-7", None)}


def test_a_failing_record_is_retried_by_the_clock_and_then_reported(made, clock, caplog):
    handle, seen = fails_on(b"b")
    source = KinesisEventSource(policy=FailurePolicy(attempts=3, backoff=8, backoff_max=9), clock=clock)
    began = time.monotonic()
    assert source.each_record(made(handle))(event_of(b"a", b"b", b"c"), None) == failed(2)
    assert seen == [b"a", b"b", b"b", b"b"]
    assert 4 <= clock.slept[0] <= 8
    assert 4.5 <= clock.slept[1] <= 9
    assert time.monotonic() - began < 4
    assert "orders: the handler failed for good; stopping the run, 1 record will come again: BadError" in caplog.text


def test_a_clock_may_be_async(made, clock):
    class AsyncClock(FakeClock):
        async def sleep(self, seconds):
            await asyncio.sleep(0)
            super().sleep(seconds)

    clock = AsyncClock()
    handle, seen = fails_on(b"a")
    assert KinesisEventSource(policy=STOP, clock=clock).each_record(made(handle))(event_of(b"a"), None) == failed(1)
    assert (len(seen), len(clock.slept)) == (2, 1)


def test_without_a_clock_the_time_is_the_machines(made):
    handle, seen = fails_on(b"a")
    source = KinesisEventSource(policy=FailurePolicy(attempts=2, backoff=0.1))
    began = time.monotonic()
    assert source.each_record(made(handle))(event_of(b"a"), Context(60)) == failed(1)
    assert (len(seen), time.monotonic() - began >= 0.05) == (2, True)


def test_inside_of_an_aggregate_the_whole_kinesis_record_is_reported(made, clock):
    handle, seen = fails_on(b"c")
    function = KinesisEventSource(policy=STOP, clock=clock).each_record(made(handle))
    assert function(event_of(b"a", [b"b", b"c", b"d"], b"e"), None) == failed(2)
    assert seen == [b"a", b"b", b"c", b"c"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_dead_letters_let_the_next_records_follow(made, clock, asynchronous):
    letters = []

    async def write(letter):
        await asyncio.sleep(0)
        letters.append(letter)

    handle, seen = fails_on(b"b")
    source = KinesisEventSource(policy=STOP, dead_letter=write if asynchronous else letters.append, clock=clock)
    assert source.each_record(made(handle))(event_of([b"a", b"b", b"c"]), None) == failed()
    assert seen == [b"a", b"b", b"b", b"c"]
    [letter] = letters
    assert ([record.data for record in letter.records], letter.attempts, type(letter.error)) == ([b"b"], 2, BadError)


def test_dead_letters_in_a_file(made, clock, tmp_path):
    handle, _ = fails_on(b"a", b"c")
    source = KinesisEventSource(policy=STOP, dead_letter=tmp_path / "dead.jsonl", clock=clock)
    assert source.each_record(made(handle))(event_of(b"a", b"b", b"c"), None) == failed()
    lines = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert [(line["data"], line["sequence_number"], line["stream"]) for line in lines] == [
        ("a", "1", "orders"),
        ("c", "3", "orders"),
    ]
    source.close()


def test_a_dead_letter_that_cannot_be_written_is_reported(made, clock, tmp_path, caplog):
    handle, _ = fails_on(b"b")
    source = KinesisEventSource(policy=STOP, dead_letter=tmp_path / "no" / "file", clock=clock)
    assert source.each_record(made(handle))(event_of(b"a", b"b", b"c"), None) == failed(2)
    assert "dead letters cannot be written; stopping the run" in caplog.text


def test_events_go_to_the_sink(made, clock):
    events = []
    handle, _ = fails_on(b"a")
    KinesisEventSource(policy=STOP, sinks=[events.append], clock=clock).each_record(made(handle))(event_of(b"a"), None)
    assert [type(event) for event in events] == [HandlerRetried, HandlingStopped]
    assert (events[0].shard_id, events[0].sequence_number, events[0].error_type) == ("shardId-7", "1", "BadError")
    assert "(test_awslambda.py:" in events[0].place


def test_batches(made):
    handle, seen = fails_on()
    source = KinesisEventSource(deserializer=int)
    event = event_of(b"1", [b"2", b"3"], b"4", b"5")
    assert source.each_batch(2)(made(handle))(event, None) == failed()
    assert seen == [b"1,2", b"3,4", b"5"]
    batches = []
    source.each_batch()(made(batches.append))(event, None)
    [batch] = batches
    assert (batch.values, batch.shard_id, batch.ack()) == ([1, 2, 3, 4, 5], "shardId-7", False)


def test_a_failing_batch_is_bisected(made, clock):
    letters = []
    handle, _ = fails_on(b"d")
    source = KinesisEventSource(policy=STOP, dead_letter=letters.append, clock=clock)
    assert source.each_batch()(made(handle))(event_of(*[bytes([97 + n]) for n in range(8)]), None) == failed()
    assert [[record.data for record in letter.records] for letter in letters] == [[b"d"]]
    handle, seen = fails_on(b"d")
    source = KinesisEventSource(policy=STOP, clock=clock)
    assert source.each_batch()(made(handle))(event_of(b"a", b"b", b"c", b"d", b"e"), None) == failed(4)
    assert seen[-1] == b"d"


# ---- failures that are raised


def test_a_function_without_reports_raises(made, clock):
    handle, _ = fails_on(b"b")
    source = KinesisEventSource(policy=STOP, report_failures=False, clock=clock)
    function = source.each_record(made(handle))
    with pytest.raises(HandlerFailed, match="record 2 of shardId-7") as raised:
        function(event_of(b"a", b"b"), None)
    assert isinstance(raised.value.__cause__, BadError)
    assert [record.data for record in raised.value.records] == [b"b"]
    assert function(event_of(b"a", b"c"), None) == failed()


def test_an_exit_of_the_handler_ends_the_invocation(made):
    def leave(_):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        KinesisEventSource().each_record(made(leave))(event_of(b"a"), None)


def test_another_kind_of_event_is_refused(made):
    handle, seen = fails_on()
    with pytest.raises(UsageError, match="record 0 is a record of 'aws:sqs'"):
        KinesisEventSource().each_record(made(handle))({"Records": [{"eventSource": "aws:sqs"}]}, None)
    assert seen == []


# ---- time


@pytest.mark.parametrize("batch", [None, 1])
def test_no_call_begins_in_the_margin(made, clock, batch, caplog):
    def handle(given):
        clock.time += 1

    source = KinesisEventSource(margin=2, clock=clock)
    function = source.each_record(made(handle)) if batch is None else source.each_batch(1)(made(handle))
    event = event_of(b"a", b"b", [b"c", b"d", b"e"], b"f")
    assert function(event, Context(6)) == failed(3)
    assert "orders: the time of the invocation is up, and 2 of 6 records are not done, from record 3/2" in caplog.text
    raising = KinesisEventSource(margin=2, clock=clock, report_failures=False).each_record(made(handle))
    with pytest.raises(WaitTimeout, match="2 of 6 records are not done"):
        raising(event, Context(6))


def test_the_margin_is_at_most_half_of_the_time(made, clock):
    """Otherwise a function with a short time limit would never handle a record."""

    def handle(_):
        clock.time += 1

    function = KinesisEventSource(margin=60, clock=clock).each_record(made(handle))
    assert function(event_of(b"a", b"b", b"c"), Context(4)) == failed(3)


def test_a_retry_that_would_come_too_late_is_not_waited_for(made, clock, caplog):
    handle, seen = fails_on(b"a")
    source = KinesisEventSource(policy=FailurePolicy(backoff=20), clock=clock)
    assert source.each_record(made(handle))(event_of(b"a"), Context(8)) == failed(1)
    assert (seen, clock.slept) == ([b"a"], [])
    assert "whose handler failed with BadError; Lambda retries them" in caplog.text


def test_an_async_handler_is_cancelled(new_loop):
    seen = []

    async def handle(record):
        seen.append(record.data)
        try:
            await asyncio.sleep(30 if record.data == b"b" else 0)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    began = time.monotonic()
    function = KinesisEventSource(margin=0.7).each_record(handle)
    assert function(event_of(b"a", b"b", b"c"), Context(1)) == failed(2)
    assert seen == [b"a", b"b", "cancelled"]
    assert time.monotonic() - began < 20
    assert KinesisEventSource(margin=0.7).each_batch()(handle_batch)(event_of(b"a"), Context(1)) == failed(1)


async def handle_batch(_):
    await asyncio.sleep(30)


def test_an_awaitable_that_a_plain_handler_returns_is_cancelled(new_loop):
    function = KinesisEventSource(margin=0.7).each_record(lambda _: handle_batch(None))
    assert function(event_of(b"a"), Context(1)) == failed(1)


def test_a_handler_that_finishes_in_spite_of_the_cancellation_is_done(new_loop):
    async def handle(_):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return

    assert KinesisEventSource(margin=0.7).each_record(handle)(event_of(b"a", b"b"), Context(1)) == failed(2)


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError, asyncio.TimeoutError])
def test_a_timeout_of_the_handler_itself_is_a_failure_of_the_handler(new_loop, clock, error):
    letters = []

    async def handle(_):
        raise error

    source = KinesisEventSource(policy=STOP, dead_letter=letters.append, clock=clock)
    assert source.each_record(handle)(event_of(b"a"), Context(60)) == failed()
    assert source.each_record(partial(call, handle))(event_of(b"a"), Context(60)) == failed()
    assert [type(letter.error) for letter in letters] == [error, error]


def test_a_dead_letter_that_takes_too_long_is_cancelled(new_loop, clock):
    handle, _ = fails_on(b"a")
    source = KinesisEventSource(policy=FailurePolicy(attempts=1), dead_letter=handle_batch, margin=0.1)
    assert source.each_record(handle)(event_of(b"a", b"b"), Context(0.4)) == failed(1)


def test_a_context_without_a_time_sets_no_limit(made):
    handle, _ = fails_on()
    assert KinesisEventSource(margin=900).each_record(made(handle))(event_of(b"a"), object()) == failed()


# ---- the event loop


def test_all_invocations_share_one_event_loop(new_loop):
    loops = []

    async def handle(_):
        loops.append(asyncio.get_running_loop())

    first, second = (KinesisEventSource().each_record(handle) for _ in range(2))
    first(event_of(b"a"), None)
    first(event_of(b"a"), None)
    second(event_of(b"a"), None)
    KinesisEventSource().each_record(partial(call, handle))(event_of(b"a"), None)
    assert len(loops) == 4
    assert len(set(loops)) == 1


def test_the_handler_runs_in_the_context_of_the_caller(made):
    trace = ContextVar("trace")
    token = trace.set("7")
    seen = []
    KinesisEventSource().each_record(made(lambda _: seen.append(trace.get())))(event_of(b"a"), None)
    trace.reset(token)
    assert seen == ["7"]


def test_a_plain_handler_may_run_a_loop_of_its_own(new_loop):
    def handle(_):
        asyncio.run(asyncio.sleep(0))

    assert KinesisEventSource().each_record(handle)(event_of(b"a"), None) == failed()


def test_a_function_that_is_called_in_an_event_loop(new_loop):
    async def main():
        plain = KinesisEventSource().each_record(fails_on()[0])
        assert plain(event_of(b"a"), None) == failed()
        function = KinesisEventSource().each_record(handle_nothing)
        with pytest.raises(UsageError, match="inside a running event loop, and it has its own: call it in a thread"):
            function(event_of(b"a"), None)
        assert await asyncio.to_thread(function, event_of(b"a"), None) == failed()

    asyncio.run(main())


async def handle_nothing(_):
    pass


def test_other_tasks_of_the_loop_run_while_records_are_handled(new_loop):
    """The async producer is one of these tasks."""
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    async def handle(record):
        if record.data == b"first":
            tasks.append(asyncio.create_task(tick()))
        time.sleep(0.011)  # noqa: ASYNC251 - it never suspends

    tasks = []
    KinesisEventSource().each_record(handle)(event_of(b"first", *[b"x"] * 10), None)
    assert len(ticks) >= 5


# ---- windows


def count(batch, window):
    return {"n": window.state.get("n", 0) + len(batch)}


def test_the_state_of_a_window_goes_through_the_handler(made):
    ends = []
    function = KinesisEventSource().each_window(on_end=made(ends.append), max_records=2)(made(count))
    assert function(window_of(b"a", [b"b", b"c"]), None) == {"batchItemFailures": [], "state": {"n": 3}}
    assert function(window_of(b"d", state={"n": 3}), None) == {"batchItemFailures": [], "state": {"n": 4}}
    assert ends == []
    assert function(window_of(state={"n": 4}, is_final=True), None) == {"batchItemFailures": [], "state": {"n": 4}}
    [window] = ends
    assert (dict(window.state), window.is_final, window.shard_id) == ({"n": 4}, True, "shardId-7")
    assert (window.starts_at, window.ends_at) == (1607497440.0, 1607497560.0)
    json.dumps(function(window_of(b"a", is_final=True), None))
    assert dict(ends[1].state) == {"n": 1}


def test_the_state_without_the_records_that_come_again(made, clock):
    def handle(batch, window):
        if batch[0].data == b"d":
            raise BadError
        return count(batch, window)

    ends = []
    function = KinesisEventSource(policy=STOP, clock=clock).each_window(on_end=ends.append, max_records=1)(made(handle))
    response = function(window_of(b"a", b"b", [b"c", b"d"], state={"n": 7}, is_final=True), None)
    assert response == failed(3) | {"state": {"n": 9}}
    assert ends == [], "the window ends when its last records are done"


def test_a_handler_that_returns_nothing_keeps_the_state(made):
    function = KinesisEventSource().each_window()(made(lambda *_: None))
    assert function(window_of(b"a", state={"n": 7}, is_final=True), None) == failed() | {"state": {"n": 7}}


def test_a_state_that_is_no_mapping_is_refused(made):
    function = KinesisEventSource().each_window()(made(lambda *_: 7))
    with pytest.raises(UsageError, match="must return its new state, a mapping, or None to keep the state, not int"):
        function(window_of(b"a"), None)


def test_a_window_needs_its_event(made):
    function = KinesisEventSource().each_window()(made(count))
    with pytest.raises(UsageError, match="set TumblingWindowInSeconds in the event source mapping"):
        function(event_of(b"a"), None)


def test_without_a_window_handler_the_state_is_passed_through(made, clock):
    """Lambda treats a response without a state as a failure."""
    handle, _ = fails_on(b"b")
    source = KinesisEventSource(policy=STOP, clock=clock)
    response = source.each_record(made(handle))(window_of(b"a", b"b", state={"n": 7}), None)
    assert response == failed(2) | {"state": {"n": 7}}


def test_an_end_of_a_window_that_fails_is_raised(made):
    def end(_):
        raise BadError

    function = KinesisEventSource().each_window(on_end=made(end))(made(count))
    with pytest.raises(BadError):
        function(window_of(is_final=True), None)


def test_an_end_of_a_window_that_takes_too_long_is_cancelled(new_loop):
    async def handle(batch, window):
        return count(batch, window)

    function = KinesisEventSource(margin=0.1).each_window(on_end=handle_batch)(handle)
    with pytest.raises(WaitTimeout, match="on_end was cancelled"):
        function(window_of(is_final=True), Context(0.3))


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"deserializer": 7}, "deserializer must be callable, or None, not int"),
        ({"sinks": "x"}, "sinks must be a list of callables and of sinks such as LogSink.., not str"),
        ({"policy": 7}, "policy must be a FailurePolicy, not int"),
        ({"policy": FailurePolicy(finally_="dead-letter")}, "needs dead_letter="),
        ({"dead_letter": 7}, "dead_letter must be a callable, a stream's name or ARN, a Producer, or a pathlib.Path"),
        ({"dead_letter": "no name"}, r"dead_letter: .*; for a file pass a pathlib.Path"),
        ({"producer": object()}, "producer must be a shardline.Producer, a shardline.sync.Producer, or None"),
        ({"producer": partial}, "producer must be"),
        ({"margin": -1}, "margin must be a number from 0 to 900"),
        ({"margin": None}, "margin must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        KinesisEventSource(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda source: source.each_record(7), "handler must be callable"),
        (lambda source: source.each_record(lambda _: (yield)), "must not be a generator function"),
        (lambda source: source.each_batch(0), "max_records must be a whole number, 1 or more, or None, not 0"),
        (lambda source: source.each_batch(handle_nothing), "max_records must be"),
        (lambda source: source.each_batch(1)("x"), "handler must be callable"),
        (lambda source: source.each_window(on_end=7), "on_end must be callable, or None, not int"),
        (lambda source: source.each_window(max_records=True), "max_records must be"),
    ],
)
def test_wrong_handlers_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make(KinesisEventSource())


def test_the_function_has_the_name_of_the_handler(made):
    @KinesisEventSource().each_record
    def bill(record: Record) -> None:
        """Bill it."""

    assert (bill.__name__, bill.__doc__, bill.__module__) == ("bill", "Bill it.", __name__)
    nameless = KinesisEventSource().each_record(partial(bill, None))
    assert nameless.__name__ == "function"


def test_nothing_is_logged_when_all_is_well(made, caplog):
    caplog.set_level(logging.DEBUG, "shardline")
    KinesisEventSource().each_record(made(fails_on()[0]))(event_of(b"a"), Context(10))
    assert [record for record in caplog.records if record.name.startswith("shardline")] == []


# ---- traces


class Traces:
    """An OpenTelemetry sink that keeps its spans, and the records that were put under a span of each name."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.sink = OpenTelemetrySink(tracer_provider=provider)

    def put(self, *names):
        """Return an aggregate with a record of each span, and the contexts of the spans."""
        records, contexts = [], []
        for name in names:
            with self.tracer.start_as_current_span(name) as span:
                headers = self.sink.tracing(EventSource("producer", "orders")).put_headers()
                records.append(("k", name.encode(), None, headers))
                contexts.append(span.get_span_context())
        return aggregate(records), contexts

    def spans(self):
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith("process")]


def ids(context):
    return context.trace_id, context.span_id


def test_a_handler_continues_the_trace_of_each_record_that_carries_one(made):
    traces, seen = Traces(), []
    data, contexts = traces.put("first", "second")
    source = KinesisEventSource(sinks=[traces.sink])
    handler = source.each_record(made(lambda _: seen.append(trace.get_current_span().get_span_context())))
    assert handler(event_of(data, b"without headers"), None) == failed()
    spans = traces.spans()
    assert [span.name for span in spans] == ["process orders"] * 2, "the spans have ended with the invocation"
    assert [ids(span.parent) for span in spans] == [ids(context) for context in contexts]
    assert [ids(link.context) for span in spans for link in span.links] == [ids(context) for context in contexts]
    assert [ids(context) for context in seen[:2]] == [ids(span.get_span_context()) for span in spans]
    assert not seen[2].is_valid


def test_a_batch_is_one_span_with_a_link_to_each_trace(made):
    traces, seen = Traces(), []
    data, contexts = traces.put("first", "second")
    source = KinesisEventSource(sinks=[traces.sink])
    handler = source.each_batch()(made(lambda _: seen.append(trace.get_current_span().get_span_context())))
    assert handler(event_of(data), None) == failed()
    [span] = traces.spans()
    assert span.parent is None
    assert [ids(link.context) for link in span.links] == [ids(context) for context in contexts]
    assert (span.attributes["messaging.batch.message_count"], ids(seen[0])) == (2, ids(span.get_span_context()))


def test_a_window_and_a_failure_are_traced(made):
    traces = Traces()
    data, [context] = traces.put("first")

    def handle(batch, window):
        raise ValueError(batch[0].data)

    source = KinesisEventSource(sinks=[traces.sink], policy=FailurePolicy(attempts=1), clock=FakeClock())
    assert source.each_window()(made(handle))(window_of(data), None)["batchItemFailures"]
    [span] = traces.spans()
    assert ids(span.parent) == ids(context)
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "ValueError")


class Broken:
    """A sink whose tracing raises."""

    def __call__(self, event):
        pass

    def tracing(self, _):
        return self

    def handling(self, _):
        raise RuntimeError("broken")

    def flush(self, _):
        raise RuntimeError("broken, too")


def test_a_tracing_that_raises_costs_no_record_and_is_logged_once(made, caplog):
    traces, seen = Traces(), []
    data, _ = traces.put("first", "second")
    handler = KinesisEventSource(sinks=[Broken()]).each_record(made(lambda record: seen.append(record.data)))
    assert handler(event_of(data), None) == failed()
    assert seen == [b"first", b"second"]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["orders: the tracing failed; the records are handled without it"]


def test_instrumented_sinks_trace_lambda_functions(made):
    traces = Traces()
    data, _ = traces.put("first")
    handler = KinesisEventSource().each_record(made(lambda _: None))
    with instrument(traces.sink):
        handler(event_of(data), None)
    handler(event_of(data), None)
    assert len(traces.spans()) == 1
