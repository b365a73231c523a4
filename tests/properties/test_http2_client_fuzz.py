"""Does anything that a server sends over HTTP/2 raise, leave an exchange open, or make the client keep too much?

The input is frames of all types, valid and invalid, in any order and cut anywhere, while the caller opens, reads and
cancels.
"""

import hpack
from hypothesis import event, given, settings
from hypothesis import strategies as st

from shardline.adapters.http.http2_connection import FRAME_MAX, STREAM_WINDOW_MAX, Http2Connection

STREAMS = st.sampled_from([1, 1, 1, 3, 3, 5, 7, 0, 2, 2**31 - 1])
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


GREETING = frame(SETTINGS, 0, 0, b"")


@st.composite
def heads(draw):
    fields = [(":status", draw(st.sampled_from(["200", "200", "200", "503", "100", "0", "abc"])))]
    fields += draw(
        st.lists(
            st.sampled_from([("content-length", "3"), ("content-length", "70000000"), ("x-a", "b"), ("X", "\x00")])
        )
    )
    block = hpack.Encoder().encode(fields)
    flags = draw(st.sampled_from([4, 4, 4, 5, 0, 0x2C]))
    return frame(HEADERS, flags, draw(STREAMS), block)


@st.composite
def frames(draw):
    """Draw frames that a server may send, and frames that it must not send."""
    number = st.integers(0, 2**32 - 1).map(lambda value: value.to_bytes(4, "big"))
    match draw(st.integers(0, 12)):
        case 0 | 1 | 2:
            return draw(heads())
        case 3 | 4 | 5:
            return frame(DATA, draw(st.sampled_from([0, 0, 1, 8, 9])), draw(STREAMS), draw(st.binary(max_size=40)))
        case 6:
            return frame(DATA, 0, draw(STREAMS), bytes(draw(st.sampled_from([1000, FRAME_MAX, FRAME_MAX + 1]))))
        case 7:
            setting = draw(st.integers(0, 8)).to_bytes(2, "big") + draw(number)
            return frame(SETTINGS, draw(st.sampled_from([0, 0, 1])), 0, setting * draw(st.integers(0, 3)))
        case 8:
            return frame(WINDOW, 0, draw(STREAMS), draw(number))
        case 9:
            return frame(RST, 0, draw(STREAMS), draw(number))
        case 10:
            return frame(GOAWAY, 0, 0, draw(STREAMS).to_bytes(4, "big") + draw(number) + draw(st.binary(max_size=9)))
        case 11:
            return frame(PING, draw(st.sampled_from([0, 1])), 0, draw(st.binary(min_size=8, max_size=8)))
        case _:
            kind = draw(st.integers(0, 20))
            return frame(kind, draw(st.integers(0, 255)), draw(STREAMS), draw(st.binary(max_size=30)))


STEPS = st.one_of(
    frames(),
    frames(),
    frames(),
    st.binary(max_size=20),
    st.sampled_from(["open", "open", "open large", "take", "whole", "cancel", "silence", "end"]),
)


def step_of_the_caller(connection, step, exchanges, now):
    """Draw an action of a caller or of the clock."""
    chosen = exchanges[len(exchanges) // 2] if exchanges else None
    if step.startswith("open"):
        if connection.capacity > 0:
            body = bytes(100_000) if step == "open large" else b"body"
            exchanges.append(connection.open("/", {"x": "y"}, body, now, is_whole=len(exchanges) % 2 == 0))
    elif step == "silence":
        connection.handle_silence(now, 15.0)
    elif step == "end":
        connection.handle_end("ConnectionReset", "", now)
    elif chosen is not None:
        {"take": connection.take, "whole": connection.want_whole, "cancel": lambda it: connection.cancel(it, now)}[
            step
        ](chosen)


@settings(deadline=None)
@given(steps=st.lists(STEPS, max_size=40), cut=st.sampled_from([1, 5, 64, 1 << 20]), is_greeted=st.integers(0, 9))
def test_nothing_that_a_server_sends_raises(steps, cut, is_greeted):
    now = 0.0
    connection = Http2Connection("host", now)
    exchanges = []
    if is_greeted:
        connection.handle_data(GREETING, now)
    for step in steps:
        now += 1.0
        if isinstance(step, str):
            step_of_the_caller(connection, step, exchanges, now)
        elif not connection.is_over:
            for at in range(0, len(step), max(cut, len(step) // 100)):
                if not connection.is_over:
                    connection.handle_data(step[at : at + max(cut, len(step) // 100)], now)
        connection.take_output(now)
        for exchange in connection.take_changed():
            assert exchange in exchanges
        for exchange in exchanges:
            assert not (exchange.complete and exchange.failure)
            assert exchange.is_whole or len(exchange.body) <= STREAM_WINDOW_MAX
        assert len(connection._held) <= FRAME_MAX + 9
    event(f"over: {connection.is_over}, exchanges: {min(len(exchanges), 3)}")
    cancelled = [
        exchange for exchange in exchanges if not exchange.is_over and exchange.number not in connection._exchanges
    ]
    connection.handle_end("ConnectionReset", "", now)
    assert connection.is_idle
    assert connection.is_over
    for exchange in exchanges:
        assert exchange.is_over or exchange in cancelled
        if exchange.complete:
            assert 200 <= exchange.status <= 999
    assert all(exchange.failure is None or "host" in exchange.failure.message for exchange in exchanges)
