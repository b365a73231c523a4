"""HTTP/1.1 answers under Hypothesis: ``shardline.codec.http1``, compared with h11."""

import h11
from hypothesis import given
from hypothesis import strategies as st

from shardline.codec.http1 import HttpError, ResponseReader

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True).filter(
    lambda name: name.lower() not in {"content-length", "transfer-encoding", "connection"}
)
VALUES = st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)


@st.composite
def answers(draw):
    """Draw the bytes of an answer, and its body."""
    body = draw(st.binary(max_size=300))
    lines = [f"{name}: {value}".encode() for name, value in draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))]
    if draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=4)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        sent = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"
        lines.append(b"Transfer-Encoding: chunked")
    else:
        sent = body
        lines.append(b"Content-Length: %d" % len(body))
    status = draw(st.sampled_from([200, 400, 403, 500, 503]))
    return b"\r\n".join([b"HTTP/1.1 %d Some Words" % status, *lines, b"", b""]) + sent, status, body


def cut(data, places):
    places = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(answers(), st.lists(st.integers(0, 2000), max_size=12))
def test_any_pieces_give_the_same_answer_as_h11(answer, places):
    data, status, body = answer
    reader = ResponseReader()
    taken = b""
    for piece in cut(data, places):
        reader.feed(piece)
        taken += reader.take()
    assert (reader.status, reader.complete, reader.keep_alive, taken) == (status, True, True, body)

    other = h11.Connection(h11.CLIENT)
    other.send(h11.Request(method="POST", target="/", headers=[("Host", "h"), ("Content-Length", "0")]))
    other.receive_data(data)
    head = other.next_event()
    assert head.status_code == status
    assert {name.decode() for name, _ in head.headers} == set(reader.headers)
    theirs = b""
    while isinstance(event := other.next_event(), h11.Data):
        theirs += event.data
    assert (type(event), theirs) == (h11.EndOfMessage, body)


@given(st.one_of(st.binary(max_size=200), answers().map(lambda answer: answer[0])), st.data())
def test_garbage_is_an_answer_or_an_http_error(data, draw):
    """The input is random bytes, and answers with changed bytes."""
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 4))):
        if changed:
            changed[draw.draw(st.integers(0, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    reader = ResponseReader()
    try:
        for piece in cut(bytes(changed), draw.draw(st.lists(st.integers(0, 400), max_size=3))):
            reader.feed(piece)
        reader.feed_end()
    except HttpError:
        return
    assert reader.complete
    assert 200 <= reader.status <= 999
