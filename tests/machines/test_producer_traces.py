"""Tests that the headers of a trace cost no record, whatever the producer learns about the stream after the put.

The tests use the stream of ``test_producer_promises.py``.
"""

import pytest
from tests.aggregates import split_headed
from tests.harness.producer_shell import ACCEPTED, stream_summary
from tests.machines.test_producer_promises import HALF, HASH_KEY_MAX, Stream, shard, whole_request

from shardline.core.producer.producer_record import OptionalTags

TRACE = {"traceparent": "00-1"}
FORBIDDEN = {"AUTO": {"record_distribution": "AUTO"}, "channels": {"channels_shape": 1}}


class TracedStream(Stream):
    """A stream about which a producer learns, while its records wait or are in flight, that headers are forbidden."""

    def __init__(self, **config):
        self.told = {}
        super().__init__(shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX), **config)

    def describe_stream(self, _):
        self.answers.append((self.now + self.latency, self.machine.handle_summary, stream_summary(**self.told)))

    def put_with(self, tags, data, place):
        record = self.record(data, f"k{place}", str(place), headers=TRACE)
        record.tags = tags(record.tags)
        assert self.accept(record) in ACCEPTED
        self.records.append(record)
        return record

    def forbid_headers(self, told):
        self.told = told
        self.machine._facts._wanted_at = self.now
        self.pump()

    def sent_headers(self):
        return [one.headers for entry in self.sent() for one in split_headed(entry.data) or [] if one.headers]


@pytest.mark.parametrize("told", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_record_in_a_trace_is_delivered_without_it_and_one_with_headers_of_its_caller_fails(told, ordered):
    stream = TracedStream(linger=0.5, ordered=ordered)
    stream.run(0.1)
    for number in range(4):
        stream.put_with(OptionalTags, b"%d" % number, number)
        stream.put_with(bytes, b"9", number)
    stream.pump()
    stream.forbid_headers(told)
    stream.run(2.0)
    assert stream.delivered() == [True, False] * 4
    assert sorted(stream.stored()) == [0, 1, 2, 3]
    assert stream.sent_headers() == []
    assert stream.intake.buffered_bytes == 0


@pytest.mark.parametrize("refusal", [("InternalFailure", 500), ("ValidationException", 400)])
@pytest.mark.parametrize("is_distrusted", [True, False])
@pytest.mark.parametrize("told", FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_record_in_a_trace_that_is_refused_in_flight_is_sent_again_without_it(told, is_distrusted, refusal):
    stream = TracedStream(linger=0.1, latency=0.3)
    stream.run(1.0)
    if is_distrusted:
        for lane in stream.machine._router.lanes:
            stream.machine._retries.distrust(lane, stream.now, stream.now)
    stream.fail = whole_request(*refusal, 1)
    for number in range(4):
        stream.put_with(OptionalTags, b"%d" % number, number)
        stream.put_with(bytes, b"9", number)
    stream.flush()
    assert len(stream.requests) == 1
    first = len(stream.sent_headers())
    stream.latency = 0.0
    stream.forbid_headers(told)
    stream.run(3.0)
    assert stream.delivered() == [True, False] * 4
    assert first > 0
    assert len(stream.sent_headers()) == first
    assert stream.intake.buffered_bytes == 0
