"""Aggregates of any records and any bytes, alone and against protobuf and aws_kinesis_agg.

Tests of ``shardline.codec.aggregation`` and ``shardline.codec.protobuf``.

Cases in which aws_kinesis_agg 1.2.3 is known to be wrong are left out: its reader gives a record without an explicit
hash key the first one of the table, and its writer drops an explicit hash key of "" and counts the sizes of text keys
wrongly. So it gets keys as bytes, and all records have an explicit hash key or none has. protobuf itself accepts more
than we do (see ``test_what_we_open_protobuf_opens``), so that comparison is one-way.
"""

import random
from base64 import b64decode, b64encode
from hashlib import md5

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.aggregates import build_aggregate as build
from tests.aggregates import build_headed, split_aggregate, split_headed

from shardline.codec.aggregation import MAGIC, is_framed
from shardline.codec.protobuf import WireError, encode_varint, read_varint, skip_unknown, varint_size
from shardline.codec.raw_records import aggregate, deaggregate
from shardline.model.headers import check_headers
from shardline.model.record import Record

thorough = settings(max_examples=70, deadline=None)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["a", "b", "c", "k" * 200])
hash_keys = st.integers(0, 2**128 - 1).map(str) | st.sampled_from(["0", "7"])
payloads = st.binary(max_size=60) | st.integers(100, 140).map(bytes) | st.integers(16_370, 16_390).map(bytes)
records = st.lists(st.tuples(texts, payloads, st.none() | hash_keys), min_size=1, max_size=30)
header_names = st.text(st.sampled_from("abcXYZ019!#$%&'*+-.^_`|~"), min_size=1, max_size=8) | st.just("traceparent")
header_values = texts | st.sampled_from(["", "v" * 127, "v" * 128, "v" * 2_048])
headers_of_one = st.just({}) | st.dictionaries(header_names, header_values, max_size=4)
headed = st.lists(st.tuples(texts, payloads, st.none() | hash_keys, headers_of_one), min_size=1, max_size=20)
varied = settings(parent=thorough, max_examples=250)


def frame(message):
    return MAGIC + message + md5(message, usedforsecurity=False).digest()


def message_class():
    """Return ``AggregatedRecord`` as a protobuf class of old readers, for which tags are an unknown field."""
    file = descriptor_pb2.FileDescriptorProto(name="aggregate.proto", package="shardline.test", syntax="proto2")
    field = descriptor_pb2.FieldDescriptorProto
    one = file.message_type.add(name="Record")
    one.field.add(name="key_index", number=1, type=field.TYPE_UINT64, label=field.LABEL_REQUIRED)
    one.field.add(name="hash_key_index", number=2, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    one.field.add(name="data", number=3, type=field.TYPE_BYTES, label=field.LABEL_REQUIRED)
    whole = file.message_type.add(name="AggregatedRecord")
    whole.field.add(name="keys", number=1, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    whole.field.add(name="hash_keys", number=2, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    whole.field.add(
        name="records",
        number=3,
        type=field.TYPE_MESSAGE,
        type_name=".shardline.test.Record",
        label=field.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shardline.test.AggregatedRecord"))


AggregatedRecord = message_class()


def protobuf_message(many):
    message = AggregatedRecord()
    for key, data, hash_key in many:
        if key not in message.keys:
            message.keys.append(key)
        one = message.records.add(key_index=list(message.keys).index(key), data=data)
        if hash_key is not None:
            if hash_key not in message.hash_keys:
                message.hash_keys.append(hash_key)
            one.hash_key_index = list(message.hash_keys).index(hash_key)
    return message


def protobuf_split(blob):
    """Return the records that protobuf finds. Raises if it finds no valid aggregate."""
    message = AggregatedRecord()
    message.ParseFromString(blob[4:-16])
    keys, named = list(message.keys), list(message.hash_keys)
    return [
        (keys[one.key_index], one.data, named[one.hash_key_index] if one.HasField("hash_key_index") else None)
        for one in message.records
    ]


class TestRoundTrips:
    @thorough
    @given(records)
    def test_what_is_built_is_split(self, many):
        blob = build(many)
        assert split_aggregate(blob) == many
        assert is_framed(blob)

    @thorough
    @given(st.lists(st.tuples(texts.filter(bool), payloads, st.none() | hash_keys), min_size=1, max_size=10))
    def test_aggregate_and_deaggregate(self, many):
        blob = aggregate(many)
        assert blob == build(many)
        assert deaggregate([b"before", blob]) == [
            Record(b"before", None),
            *(
                Record(data, key, hash_key, sub_sequence=place, aggregated=True)
                for place, (key, data, hash_key) in enumerate(many)
            ),
        ]

    @thorough
    @given(headed)
    def test_headers_come_back(self, many):
        blob = build_headed(many)
        assert split_headed(blob) == many
        assert deaggregate(aggregate([(key or "k", *rest) for key, *rest in many])) == [
            Record(data, key or "k", hash_key, sub_sequence=place, aggregated=True, headers=headers)
            for place, (key, data, hash_key, headers) in enumerate(many)
        ]

    @thorough
    @given(headed)
    def test_readers_that_know_no_headers_find_the_rest(self, many):
        blob = build_headed(many)
        assert split_aggregate(blob) == protobuf_split(blob) == [one[:3] for one in many]

    @thorough
    @given(records)
    def test_an_aggregate_in_an_aggregate(self, many):
        """P12: a wrapped aggregate is not unpacked."""
        inner = build(many)
        assert split_aggregate(build([("k", inner)])) == [("k", inner, None)]

    @given(st.integers(0, 2**64 - 1), st.binary(max_size=5))
    def test_varints(self, value, before):
        encoded = encode_varint(value)
        assert len(encoded) == varint_size(value)
        assert read_varint(before + encoded + b"\xff", len(before)) == (value, len(before) + len(encoded))


class TestAgainstProtobuf:
    @thorough
    @given(records)
    def test_the_bytes_are_the_same(self, many):
        assert build(many) == frame(protobuf_message(many).SerializeToString())

    @varied
    @given(
        st.lists(st.tuples(texts, st.binary(max_size=60) | st.integers(0, 2_100).map(bytes)), min_size=1, max_size=40)
    )
    def test_also_without_explicit_hash_keys_where_every_head_is_ready(self, many):
        whole = [(key, data, None) for key, data in many]
        assert build(whole) == frame(protobuf_message(whole).SerializeToString())

    def test_also_for_many_keys_and_long_data(self):
        rng = random.Random(7)
        many = [
            (f"key-{rng.randrange(3_000)}", rng.randbytes(rng.randrange(300)), str(rng.randrange(2_000)))
            for _ in range(4_000)
        ]
        blob = build(many)
        assert split_aggregate(blob) == many
        assert protobuf_split(blob) == many

    @thorough
    @given(records)
    def test_it_reads_ours(self, many):
        assert protobuf_split(build(many)) == many


def agg_split(blob):
    """Return the records that aws_kinesis_agg's reader finds."""
    from aws_kinesis_agg.deaggregator import deaggregate_records

    raw = {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": "outer",
            "sequenceNumber": "1",
            "data": b64encode(blob).decode(),
            "approximateArrivalTimestamp": 1.0,
        }
    }
    found = deaggregate_records([raw])
    assert [one["kinesis"]["subSequenceNumber"] for one in found] == list(range(len(found)))
    return [
        (one["kinesis"]["partitionKey"], b64decode(one["kinesis"]["data"]), one["kinesis"]["explicitHashKey"])
        for one in found
    ]


class TestAgainstAwsKinesisAgg:
    some = st.tuples(texts, payloads)
    uniform = st.lists(some.map(lambda one: (*one, None)), min_size=1, max_size=20) | st.lists(
        st.tuples(texts, payloads, hash_keys), min_size=1, max_size=20
    )

    @thorough
    @given(uniform)
    def test_it_reads_ours(self, many):
        assert agg_split(build(many)) == many

    @thorough
    @given(uniform, st.lists(headers_of_one, min_size=20, max_size=20))
    def test_it_reads_ours_with_headers_as_without(self, many, headers):
        headed = [(*one, own) for one, own in zip(many, headers, strict=False)]
        assert agg_split(build_headed(headed)) == many

    @thorough
    @given(headed)
    def test_its_protobuf_class_finds_the_tags(self, many):
        from aws_kinesis_agg import aggregator

        theirs = aggregator.messages_pb2.AggregatedRecord()
        theirs.ParseFromString(build_headed(many)[4:-16])
        assert [{tag.key: tag.value for tag in one.tags} for one in theirs.records] == [one[3] for one in many]
        assert split_headed(frame(theirs.SerializeToString())) == many

    @thorough
    @given(uniform)
    def test_we_read_its_and_write_the_same(self, many):
        from aws_kinesis_agg.aggregator import AggRecord

        theirs = AggRecord()
        for key, data, hash_key in many:
            assert theirs.add_user_record(key.encode(), data, None if hash_key is None else hash_key.encode())
        _, _, blob = theirs.get_contents()
        assert split_aggregate(blob) == many
        assert build(many) == blob


def mutate(message, edits):
    """Change, remove, insert and repeat bytes."""
    for kind, where, what in edits:
        at = where % (len(message) + 1)
        if kind == "change":
            message = message[:at] + what + message[at + len(what) :]
        elif kind == "remove":
            message = message[:at] + message[at + len(what) :]
        elif kind == "insert":
            message = message[:at] + what + message[at:]
        else:
            message = message[:at] + message[at // 2 :]
    return message


small = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "鍵", "k" * 130]),
        st.binary(max_size=12) | st.just(b"x" * 130),
        st.none() | st.sampled_from(["0", "7"]),
    ),
    min_size=1,
    max_size=6,
)
# Bytes that mean something in the format, so that one edit makes another valid or nearly valid message.
telling = st.sampled_from(
    [bytes((byte,)) for byte in b"\x00\x01\x02\x08\x0a\x0d\x10\x12\x18\x1a\x20\x22\x28\x2a\x2b\x7f\x80\xff"]
)
edits = st.lists(
    st.tuples(
        st.sampled_from(["change", "change", "insert", "remove", "repeat"]),
        st.integers(0, 2_000),
        telling
        | st.binary(min_size=1, max_size=4)
        | st.sampled_from([b"\xff" * 9 + b"\x01", b"\x28\x00", b"\x22\x00"]),
    ),
    max_size=4,
)


class TestAnyBytes:
    """The result is ``None`` or records, never an exception."""

    @staticmethod
    def check(blob):
        found = split_aggregate(blob)
        assert split_aggregate(bytearray(blob)) == found
        if found is not None:
            assert found
            assert is_framed(blob)
            for key, data, hash_key in found:
                assert type(key) is str
                assert type(data) is bytes
                assert hash_key is None or type(hash_key) is str
            for one in split_headed(blob):
                assert check_headers(one.headers) == one.headers, "they can be put again"
        return found

    @thorough
    @given(st.binary(max_size=200))
    @example(MAGIC)
    @example(MAGIC + md5(b"", usedforsecurity=False).digest())
    def test_alone_after_the_magic_and_in_a_frame(self, noise):
        assert self.check(noise) is None
        self.check(MAGIC + noise)
        self.check(frame(noise))

    @varied
    @given(small, edits)
    def test_what_we_open_protobuf_opens(self, many, changes):
        """The result is the same, too. The reverse does not hold: protobuf takes known fields of a wrong wire type for
        unknown ones, and accepts padded tags, groups, and numbers cut to 64 bits.
        """
        blob = frame(mutate(build(many)[4:-16], changes))
        found = self.check(blob)
        if found is not None:
            assert protobuf_split(blob) == found

    @thorough
    @given(small, st.data())
    def test_truncated(self, many, draw):
        message = build(many)[4:-16]
        end = draw.draw(st.integers(0, len(message) - 1))
        found = self.check(frame(message[:end]))
        assert found is None or found == many[: len(found)]  # cut between two records, it is a smaller aggregate
        assert self.check(build(many)[: end + 4]) is None

    @thorough
    @given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 5))
    def test_the_parts_of_the_parser(self, buffer, at, known):
        """They advance, or raise one of two exceptions."""
        for read in (lambda: read_varint(buffer, at)[1], lambda: skip_unknown(buffer, at, known)):
            try:
                after = read()
            except (WireError, IndexError):
                continue
            assert after > at

    def test_the_edits_reach_both_verdicts(self):
        """A fuzzer that only makes garbage proves little, so the outcomes with a fixed seed are counted."""
        rng = random.Random(1)
        message = build([("a", b"x", "7"), ("b", b"y", None), ("a", b"z" * 130, None)])[4:-16]
        verdicts = {True: 0, False: 0}
        for _ in range(3_000):
            changed = bytearray(message)
            for _ in range(rng.randrange(1, 3)):
                changed[rng.randrange(len(changed))] = rng.choice(b"\x00\x01\x08\x0a\x10\x12\x1a\x22\x7f\x80\xff")
            verdicts[self.check(frame(bytes(changed))) is not None] += 1
        assert min(verdicts.values()) > 300


def test_the_message_class_is_the_kpls():
    """Our protobuf oracle reads what aws_kinesis_agg's generated class writes."""
    from aws_kinesis_agg import aggregator

    theirs = aggregator.messages_pb2.AggregatedRecord(partition_key_table=["a"], explicit_hash_key_table=["7"])
    theirs.records.add(partition_key_index=0, explicit_hash_key_index=0, data=b"x").tags.add(key="k", value="v")
    blob = frame(theirs.SerializeToString())
    assert split_aggregate(blob) == protobuf_split(blob) == [("a", b"x", "7")]
