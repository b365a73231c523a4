"""Which headers does a trace add to a put, and what if they cannot be sent?"""

import contextvars

import pytest

from shardline import ProducerConfig
from shardline.aio.producer.trace_headers import TraceHeaders
from shardline.aio.producer.validation import check_tagged_record
from shardline.aio.tracing import Tracings
from shardline.codec.aggregation import decode_tags, encode_tags
from shardline.core.producer.aggregate import KEYLESS_KEY_LENGTH, WRAP_MAX_BYTES
from shardline.core.producer.intake import Intake
from shardline.core.producer.producer_record import OptionalTags
from shardline.errors import UsageError
from shardline.model.limits import RECORD_DEFAULT_MAX_BYTES, RECORD_HIGHEST_MAX_BYTES

TRACE = contextvars.ContextVar("trace", default=None)
HEADERS = {"traceparent": "00-1"}


class Tracing:
    """A tracing whose headers are the value of a variable."""

    def __init__(self, *, has_variable=True):
        self.calls = 0
        if has_variable:
            self.put_context = TRACE

    def put_headers(self):
        self.calls += 1
        return TRACE.get()


class Put:
    """Puts of one producer, with what was logged and reported."""

    def __init__(self, tracing, **settings):
        self.logged, self.reported = [], []
        self.intake = Intake(ProducerConfig(**settings))
        tracings = Tracings([tracing], lambda what, error: self.reported.append((what, str(error))))
        self.headers = TraceHeaders(tracings, self.intake, self.logged.append)

    def tags(self, trace):
        def run():
            TRACE.set(trace)
            return self.headers.tags()

        return contextvars.copy_context().run(run)

    def merged(self, trace, headers):
        def run():
            TRACE.set(trace)
            return self.headers.merge(headers)

        return contextvars.copy_context().run(run)


def test_a_put_in_a_trace_has_its_headers():
    put = Put(Tracing())
    tags = put.tags(HEADERS)
    assert decode_tags(tags) == HEADERS
    assert type(tags) is OptionalTags


def test_the_same_headers_are_encoded_once():
    put = Put(Tracing())
    assert put.tags(HEADERS) is put.tags(HEADERS)
    assert decode_tags(put.tags({"traceparent": "00-2"})) == {"traceparent": "00-2"}


def test_outside_of_a_trace_the_tracing_is_not_called_while_the_variable_stays_the_same():
    tracing = Tracing()
    put = Put(tracing)
    assert put.headers.untraced is put.headers.get_context(None)
    assert put.tags(None) == b""
    assert tracing.calls == 0
    nothing = {}
    tracing.put_headers = lambda: None
    assert put.tags(nothing) == b""
    assert put.headers.untraced is nothing


def test_a_tracing_without_a_variable_is_called_for_each_put():
    tracing = Tracing(has_variable=False)
    put = Put(tracing)
    assert [put.tags(None), put.tags(None)] == [b"", b""]
    assert tracing.calls == 2
    assert put.headers.get_context(None) is not put.headers.untraced
    assert decode_tags(put.tags(HEADERS)) == HEADERS


def test_invalid_headers_are_reported_and_left_out():
    put = Put(Tracing())
    assert put.tags({"trace parent": "00-1"}) == b""
    [(what, message)] = put.reported
    assert what == "the tracing"
    assert "a header's name has 1 to 128 ASCII letters" in message


def test_headers_of_the_caller_win():
    put = Put(Tracing())
    assert put.merged(HEADERS, {"tenant": "acme"}) == {"traceparent": "00-1", "tenant": "acme"}
    assert put.merged(HEADERS, {"traceparent": "own"}) == {"traceparent": "own"}
    assert put.merged(None, {"tenant": "acme"}) == {"tenant": "acme"}


def test_headers_of_the_caller_are_sent_alone_if_there_is_no_room_for_both():
    full = {f"h{place}": "x" for place in range(64)}
    assert Put(Tracing()).merged(HEADERS, full) == full


@pytest.mark.parametrize("settings", [{"aggregation": False}, {"packing": "json-lines"}])
def test_where_headers_cannot_be_sent_this_is_logged_once_and_the_tracing_is_not_called(settings):
    tracing = Tracing()
    put = Put(tracing, **settings)
    assert put.tags(None) == b""
    assert put.logged == []
    assert put.tags(HEADERS) == put.tags(HEADERS) == b""
    assert put.logged == [put.intake.headers_refusal]
    assert tracing.calls == 0


def test_headers_are_sent_once_the_stream_allows_them_again():
    put = Put(Tracing())
    put.intake.headers_refusal = "the stream has channels"
    assert put.tags(HEADERS) == b""
    put.intake.headers_refusal = None
    assert decode_tags(put.tags(HEADERS)) == HEADERS


# ---- the size of a record


DEFAULT, HIGHEST = RECORD_DEFAULT_MAX_BYTES, RECORD_HIGHEST_MAX_BYTES
ROOM = WRAP_MAX_BYTES + 20  # for the tags below


@pytest.mark.parametrize(
    ("size", "limit", "is_traced"),
    [
        (100, DEFAULT, True),
        (DEFAULT - ROOM, DEFAULT, True),
        (DEFAULT - ROOM + 1, DEFAULT, False),
        (DEFAULT - ROOM + 1, HIGHEST, False),  # the limit may not be known yet
        (DEFAULT, HIGHEST, False),
        (DEFAULT + 1, HIGHEST, True),
        (HIGHEST - ROOM, HIGHEST, True),
        (HIGHEST - ROOM + 1, HIGHEST, False),
        (HIGHEST, HIGHEST, False),
        (500, 500 + ROOM, True),
        (501, 500 + ROOM, False),
    ],
)
@pytest.mark.parametrize("key", ["k", "é", None])
def test_a_record_is_put_without_its_trace_if_both_may_not_fit(size, limit, is_traced, key):
    data = b"x" * (size - (KEYLESS_KEY_LENGTH if key is None else len(key.encode())))
    tags = OptionalTags(b"t" * 20)
    payload, checked_key, _, kept = check_tagged_record(data, key, None, limit, None, tags=tags, stamp=b"")
    assert (len(payload), checked_key) == (len(data), key)
    assert kept == (tags if is_traced else b"")


def test_a_record_that_does_not_fit_with_the_headers_of_its_caller_is_refused():
    with pytest.raises(UsageError, match="for its headers"):
        check_tagged_record(b"x" * (DEFAULT - 1), "k", None, DEFAULT, None, tags=encode_tags(HEADERS), stamp=b"")
