"""Tests of ``shardline.aio.stream_sink``."""

import pytest

from shardline.aio.stream_sink import OfStream, StreamSink
from shardline.events import EventSource

FIRST, OTHER = EventSource("consumer", "s"), EventSource("consumer", "t")


class Opened:
    def __init__(self, source, log, error=None):
        self.source, self.log, self.error = source.stream, log, error

    def __call__(self, event):
        self.log.append((self.source, event))

    def end_batch(self):
        self.log.append((self.source, "end of batch"))
        if self.error is not None:
            raise self.error

    def close(self):
        self.log.append((self.source, "closed"))


class Sink:
    def __init__(self, error=None):
        self.log, self.error = [], error

    def open(self, source):
        return Opened(source, self.log, self.error)


def test_a_sink_is_opened_once_for_each_stream_and_closed_with_it():
    sink = Sink()
    adapted = StreamSink(sink)
    assert adapted.__qualname__ == "Sink", "log lines name the sink"
    opened = adapted.open(FIRST)
    opened("a")
    opened(OfStream(OTHER, "b"))
    opened(OfStream(OTHER, "c"))
    opened.end_batch()
    opened(OfStream(OTHER, None))
    opened(OfStream(OTHER, None))
    opened.end_batch()
    opened.close()
    assert sink.log == [
        ("s", "a"),
        ("t", "b"),
        ("t", "c"),
        ("t", "end of batch"),
        ("s", "end of batch"),
        ("t", "closed"),
        ("s", "end of batch"),
        ("s", "closed"),
    ]


def test_a_function_gets_the_events_of_all_streams():
    seen = []
    opened = StreamSink(seen.append).open(FIRST)
    opened("a")
    opened(OfStream(OTHER, "b"))
    opened(OfStream(OTHER, None))
    opened.end_batch()
    opened.close()
    assert seen == ["a", "b"]


def test_an_error_in_one_stream_does_not_prevent_the_others():
    sink = Sink(ValueError("broken"))
    opened = StreamSink(sink).open(FIRST)
    opened(OfStream(OTHER, "b"))
    with pytest.raises(ValueError, match="broken"):
        opened.end_batch()
    assert [entry for entry in sink.log if entry[1] == "end of batch"] == [("t", "end of batch"), ("s", "end of batch")]


def test_a_sink_must_open_a_callable():
    class Wrong:
        def open(self, source):
            return source.stream

    with pytest.raises(TypeError, match="not callable"):
        StreamSink(Wrong()).open(FIRST)
