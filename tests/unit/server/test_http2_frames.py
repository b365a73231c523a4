"""Are only GOAWAY frames removed from the bytes?"""

import random

import pytest

from shardline.server.http2_frames import PREFACE, GoawayFilter


def frame(kind, payload=b"", stream=0, flags=0):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


DATA, PING, GOAWAY = (frame(0, bytes(300), 1), frame(6, bytes(8)), frame(7, bytes(8)))


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 10, 17, 24, 25, 100_000])
def test_goaway_is_taken_out_however_the_bytes_are_cut(size):
    sent = PREFACE + b"".join([frame(4), DATA, GOAWAY, PING, frame(7, bytes(40)), GOAWAY, DATA])
    incoming = GoawayFilter()
    passed = b"".join(incoming.feed(sent[at : at + size]) for at in range(0, len(sent), size))
    assert passed == PREFACE + b"".join([frame(4), DATA, PING, DATA])
    assert incoming.saw_goaway


def test_without_goaway_all_bytes_are_passed_on():
    rng = random.Random(1)
    frames = [frame(rng.choice([0, 1, 3, 4, 6, 8, 9]), rng.randbytes(rng.randrange(600))) for _ in range(200)]
    sent, incoming, at, passed = PREFACE + b"".join(frames), GoawayFilter(), 0, b""
    while at < len(sent):
        size = rng.randrange(1, 700)
        passed += incoming.feed(sent[at : at + size])
        at += size
        assert len(sent[:at]) - len(passed) < 9
    assert passed == sent
    assert not incoming.saw_goaway


@pytest.mark.parametrize(
    "malformed",
    [frame(7, bytes(7)), frame(7, bytes(8), stream=1), frame(7, bytes(16_385))],
    ids=["short", "stream", "long"],
)
def test_a_malformed_goaway_is_passed_on(malformed):
    incoming = GoawayFilter()
    assert incoming.feed(PREFACE + malformed) == PREFACE + malformed
    assert not incoming.saw_goaway


def test_bytes_that_are_no_preface_are_passed_on():
    incoming = GoawayFilter()
    assert incoming.feed(b"\xff" * 24) == b"\xff" * 24
