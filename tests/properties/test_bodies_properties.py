"""Bodies for any value and any bytes, against botocore and cbor2.

Tests of ``codec.awsjson``, ``codec.awscbor`` and ``codec.envelope``.
"""

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import cache

import cbor2
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from shardline.codec import awscbor, awsjson, shapes
from shardline.codec.envelope import BodyError, read_error
from shardline.model.hashing import HASH_KEY_MAX
from shardline.model.record import Entry
from shardline.model.stream import parse_stream


def examples(count):
    """Set the number of examples, without a deadline, because the machine may be busy."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, suppress_health_check=slow)


MODEL = ServiceModel(Loader().load_service_model("kinesis", "service-2"), "kinesis")
OPERATIONS = sorted(MODEL.operation_names)
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
PAGES = [shapes.GetRecordsResponse, shapes.SubscribeToShardEvent]

# Words that our fast paths look for, in places where they mean nothing.
TRAPS = [
    "SequenceNumber",
    '"SequenceNumber"',
    '\\"SequenceNumber\\"',
    '"Data":"',
    '},{"Data":"',
    "null",
    "\x00",
    '"',
    "\\",
]

plain_text = st.text(st.characters(codec="utf-8"), max_size=12)
texts = plain_text | st.sampled_from(TRAPS) | st.tuples(plain_text, st.sampled_from(TRAPS), plain_text).map("".join)
keys = texts.filter(bool) | st.just("😀" * 256)
hash_keys = st.integers(0, HASH_KEY_MAX).map(str)
streams = st.sampled_from(["orders", "a.b-c_D", ARN]).map(parse_stream)
blobs = st.builds(lambda seed, times: seed * times, st.binary(max_size=40), st.sampled_from([0, 1, 1, 50, 200, 400]))
times = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
milliseconds = st.integers(0, 4_000_000_000_000)
entries = st.lists(st.builds(Entry, blobs, st.none() | keys, st.none() | hash_keys), max_size=6)


def botocore_body(operation, params):
    """Return the request as botocore writes it, decoded."""
    serializer = create_serializer("json", include_validation=False)
    return json.loads(serializer.serialize_to_request(params, MODEL.operation_model(operation))["body"])


def cbor_value(body):
    """Return the value that cbor2 reads, with times as their milliseconds."""
    return cbor2.loads(body, semantic_decoders={1: lambda value, _: ("milliseconds", value)})


def put_records_params(stream, given_entries):
    records = []
    for data, key, explicit_hash_key in given_entries:
        members = {"Data": data, "PartitionKey": key, "ExplicitHashKey": explicit_hash_key}
        records.append({name: value for name, value in members.items() if value is not None})
    return {"Records": records, "StreamName" if stream.arn is None else "StreamARN": str(stream)}


# ---- requests


@examples(100)
@given(streams, entries)
@example(parse_stream("orders"), [])
@example(parse_stream(ARN), [Entry(bytes(range(256)), '"\\\x00\x1f\x7f\u2028😀', "0")])
def test_put_records_is_what_botocore_writes(stream, given_entries):
    body = awsjson.encode_put_records(stream, given_entries)
    params = put_records_params(stream, given_entries)
    ours = json.loads(body)
    assert ours == botocore_body("PutRecords", params)
    assert [base64.b64decode(one["Data"], validate=True) for one in ours["Records"]] == [e.data for e in given_entries]
    assert ours == json.loads(awsjson.encode(params))


@examples(100)
@given(streams, entries)
def test_put_records_in_cbor_is_the_same_request(stream, given_entries):
    body = awscbor.encode_put_records(stream, given_entries)
    params = put_records_params(stream, given_entries)
    assert cbor_value(body) == params
    assert cbor_value(awscbor.encode(params)) == params


@cache
def values_of(name):
    """Draw any value of a shape of the service model, with every member present or absent."""
    shape = MODEL.shape_for(name)
    match shape.type_name:
        case "structure":
            members = {member: values_of(inner.name) for member, inner in shape.members.items()}
            return st.fixed_dictionaries({}, optional=members)
        case "list":
            return st.lists(values_of(shape.member.name), max_size=3)
        case "map":
            return st.dictionaries(texts, values_of(shape.value.name), max_size=3)
        case "string":
            return st.sampled_from(shape.enum) if shape.enum else texts
        case "integer" | "long":
            return st.integers(-(2**31), 2**53)
        case "double" | "float":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "timestamp":
            return times
        case "blob":
            return blobs
    raise AssertionError(f"no values for {shape}")


def same(theirs, ours, value):
    """Whether botocore and we wrote the same, times to the millisecond."""
    if isinstance(value, datetime):
        milliseconds = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        return round(ours * 1000) == milliseconds and -0.000_01 < theirs - ours < 0.001_01
    if isinstance(value, dict):
        return theirs.keys() == ours.keys() and all(same(theirs[k], ours[k], v) for k, v in value.items())
    if isinstance(value, list):
        return len(theirs) == len(ours) and all(map(same, theirs, ours, value))
    return theirs == ours and type(theirs) is type(ours)


def as_cbor2_reads(value):
    if isinstance(value, datetime):
        return ("milliseconds", (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))
    if isinstance(value, dict):
        return {name: as_cbor2_reads(member) for name, member in value.items()}
    if isinstance(value, list):
        return [as_cbor2_reads(item) for item in value]
    return value


@pytest.mark.parametrize("operation", OPERATIONS)
@examples(12)
@given(data=st.data())
def test_every_operations_parameters_are_what_botocore_writes_and_b1_the_same_in_cbor(operation, data):
    shape = MODEL.operation_model(operation).input_shape
    params = data.draw(values_of(shape.name)) if shape is not None else {}
    assert same(botocore_body(operation, params), json.loads(awsjson.encode(params)), params)
    assert cbor_value(awscbor.encode(params)) == as_cbor2_reads(params)


@examples(100)
@given(times)
def test_the_start_of_a_reader_is_the_same_time_in_both_protocols_and_in_botocore(when):
    params = {"ShardId": "s", "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": when, "StreamName": "orders"}
    ours = json.loads(awsjson.encode(params))["Timestamp"]
    assert round(ours * 1000) == cbor_value(awscbor.encode(params))["Timestamp"][1]
    assert -0.000_01 < botocore_body("GetShardIterator", params)["Timestamp"] - ours < 0.001_01


# ---- answers


def optional(**members):
    return st.fixed_dictionaries({}, optional=members)


def shuffled(strategy):
    """Return the same members in any order: the code path depends on it, the result must not."""
    return strategy.flatmap(lambda members: st.permutations(list(members.items())).map(dict))


def joined(*strategies):
    return st.tuples(*strategies).map(lambda parts: {name: value for part in parts for name, value in part.items()})


numbers = st.integers(0, 10**129 - 1).map(str)
hash_range = st.tuples(hash_keys, hash_keys).map(lambda two: sorted(two, key=int))
hash_ranges = hash_range.map(lambda two: {"StartingHashKey": two[0], "EndingHashKey": two[1]})
encryption = st.sampled_from(["NONE", "KMS"])
# Times are milliseconds here; each protocol converts them below.
records = shuffled(
    joined(
        st.fixed_dictionaries({"SequenceNumber": numbers | texts, "Data": blobs}),
        optional(PartitionKey=texts, ApproximateArrivalTimestamp=milliseconds, EncryptionType=encryption),
    )
)
children = st.fixed_dictionaries(
    {"ShardId": texts, "ParentShards": st.lists(texts, max_size=2), "HashKeyRange": hash_ranges}
)
pages = shuffled(
    joined(
        st.fixed_dictionaries({"Records": st.lists(records, max_size=4)}),
        optional(
            NextShardIterator=texts,
            ContinuationSequenceNumber=numbers,
            MillisBehindLatest=st.integers(0, 2**53),
            ChildShards=st.lists(children, max_size=2),
        ),
    )
)
put_answers = joined(
    st.fixed_dictionaries(
        {
            "Records": st.lists(
                optional(SequenceNumber=numbers, ShardId=texts, ErrorCode=texts, ErrorMessage=texts), max_size=5
            )
        }
    ),
    optional(FailedRecordCount=st.integers(0, 500), EncryptionType=encryption),
)
shards = joined(
    st.fixed_dictionaries(
        {
            "ShardId": texts,
            "HashKeyRange": hash_ranges,
            "SequenceNumberRange": joined(
                st.fixed_dictionaries({"StartingSequenceNumber": numbers}), optional(EndingSequenceNumber=numbers)
            ),
        }
    ),
    optional(ParentShardId=texts, AdjacentParentShardId=texts),
)
shard_lists = optional(Shards=st.lists(shards, max_size=4), NextToken=texts)
summaries = joined(
    st.fixed_dictionaries({"StreamName": texts, "StreamARN": texts, "StreamStatus": texts}),
    optional(
        RetentionPeriodHours=st.integers(24, 8_760),
        OpenShardCount=st.integers(0, 10_000),
        ConsumerCount=st.integers(0, 50),
        StreamCreationTimestamp=milliseconds,
        EncryptionType=encryption,
        KeyId=texts,
        StreamModeDetails=st.sampled_from(["PROVISIONED", "ON_DEMAND"]).map(lambda mode: {"StreamMode": mode}),
        MaxRecordSizeInKiB=st.integers(1024, 10_240),
        RecordDistributionStrategy=st.sampled_from(["AUTO", "CUSTOM"]),
    ),
).map(lambda summary: {"StreamDescriptionSummary": summary})

TIMES = {"ApproximateArrivalTimestamp", "StreamCreationTimestamp"}


def written(value, time, blob, name=""):
    """Return the answer as one protocol writes it."""
    if isinstance(value, dict):
        return {member: written(inner, time, blob, member) for member, inner in value.items()}
    if isinstance(value, list):
        return [written(inner, time, blob) for inner in value]
    if isinstance(value, bytes):
        return blob(value)
    return time(value) if name in TIMES else value


def in_json(answer, *, ascii_only=True):
    base = written(answer, lambda t: t / 1000, lambda b: base64.b64encode(b).decode())
    return json.dumps(base, ensure_ascii=ascii_only).encode()


def in_cbor(answer):
    return cbor2.dumps(written(answer, lambda t: cbor2.CBORTag(1, t), bytes))


def by_botocore(operation, body):
    response = {"body": body, "headers": {}, "status_code": 200}
    parsed = create_parser("json").parse(response, MODEL.operation_model(operation).output_shape)
    parsed.pop("ResponseMetadata", None)
    return parsed


def by_name(value):
    """Return a struct as the dict that botocore makes of the same answer. Members that are missing there are left out."""
    if isinstance(value, shapes.msgspec.Struct):
        fields = shapes.msgspec.structs.fields(value)
        named = {field.encode_name: by_name(getattr(value, field.name)) for field in fields}
        return {name: inner for name, inner in named.items() if inner is not None}
    if isinstance(value, (list, tuple)):
        return [by_name(inner) for inner in value]
    return value


def simple(value, name=""):
    """Return botocore's dict without its datetimes."""
    if isinstance(value, dict):
        return {member: simple(inner, member) for member, inner in value.items()}
    if isinstance(value, list):
        return [simple(inner) for inner in value]
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else value


def in_milliseconds(value, name=""):
    if isinstance(value, dict):
        return {member: in_milliseconds(inner, member) for member, inner in value.items()}
    if isinstance(value, list):
        return [in_milliseconds(inner) for inner in value]
    return round(value * 1000) if name in TIMES else value


ANSWERS = {
    "GetRecords": (shapes.GetRecordsResponse, pages),
    "PutRecords": (shapes.PutRecordsResponse, put_answers),
    "ListShards": (shapes.ListShardsResponse, shard_lists),
    "DescribeStreamSummary": (shapes.DescribeStreamSummaryResponse, summaries),
}


@pytest.mark.parametrize("operation", ANSWERS)
@examples(100)
@given(data=st.data())
def test_answers_are_read_as_botocore_reads_them_and_cbor_says_the_same(operation, data):
    shape, answers = ANSWERS[operation]
    answer = data.draw(answers)
    body = in_json(answer, ascii_only=data.draw(st.booleans()))
    ours = awsjson.decode(body, shape)
    theirs = simple(by_botocore(operation, body))
    if operation == "DescribeStreamSummary":
        theirs["StreamDescriptionSummary"].setdefault("RetentionPeriodHours", 24)
    assert in_milliseconds(by_name(ours)) == theirs
    assert awscbor.decode(in_cbor(answer), shape) == ours
    assert awscbor.decode(body, shape) == ours


@pytest.mark.parametrize("shape", PAGES)
@examples(120)
@given(pages, st.booleans())
def test_both_ways_to_read_a_page_give_the_same_and_the_choice_is_no_matter(shape, answer, ascii_only):
    body = in_json(answer, ascii_only=ascii_only)
    page = awsjson.decode(body, shape)
    assert awsjson._decode_large(body, shape) == page
    assert awsjson._decode_as(body, shape, "page") == page
    assert [record.data for record in page.records] == [record["Data"] for record in answer["Records"]]
    assert [record.sequence_number for record in page.records] == [r["SequenceNumber"] for r in answer["Records"]]


@pytest.mark.parametrize("operation", ANSWERS)
@examples(100)
@given(data=st.data())
def test_any_answer_comes_as_it_stands(operation, data):
    answer = data.draw(ANSWERS[operation][1])
    seconds = written(answer, lambda t: t / 1000, bytes)
    assert awsjson.decode_any(in_json(answer)) == seconds
    assert awscbor.decode_any(in_cbor(answer)) == seconds


# ---- invalid bodies

SHAPES = [
    value for value in vars(shapes).values() if isinstance(value, type) and issubclass(value, shapes.msgspec.Struct)
]
VOCABULARY = sorted({field.encode_name for shape in SHAPES for field in shapes.msgspec.structs.fields(shape)})
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["eHk=", "5", "0", ARN]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(VOCABULARY) | texts, inner, max_size=5),
    max_leaves=25,
)

junk_answers = junk | st.fixed_dictionaries({"Records": junk | st.lists(junk, max_size=3)})


def damaged(bodies):
    """Draw good bodies, cut off or with some bytes changed."""
    cut = st.builds(lambda body, at: body[: int(len(body) * at)], bodies, st.floats(0, 1))

    def change(body, at, new):
        place = int(len(body) * at)
        return body[:place] + new + body[place + len(new) :]

    return cut | st.builds(change, bodies, st.floats(0, 1), st.binary(min_size=1, max_size=3))


some_answers = st.one_of(*(answers for _, answers in ANSWERS.values()))
json_bodies = (
    st.binary(max_size=64)
    | junk_answers.map(lambda value: json.dumps(value).encode())
    | damaged(some_answers.map(in_json))
    | st.sampled_from([b"{", b"[", b'{"a":', b'{"Records":[']).map(lambda opening: opening * 20_000)
)
cbor_bodies = (
    st.binary(max_size=64)
    | junk_answers.map(cbor2.dumps)
    | damaged(some_answers.map(in_cbor))
    | st.sampled_from([b"\xa1\x61a", b"\x81", b"\xbf", b"\xc1", b"\x9f"]).map(lambda opening: opening * 20_000)
)


def only_body_errors(codec, body, shape):
    """Read a body in every way; any exception except a ``BodyError`` fails the test."""
    for read in (lambda: codec.decode(body, shape), lambda: codec.decode_any(body)):
        try:
            answer = read()
        except BodyError:
            continue
        assert isinstance(answer, (shape, dict))


@examples(300)
@given(json_bodies, st.sampled_from(SHAPES))
def test_a_json_body_that_does_not_fit_is_a_body_error_and_nothing_else(body, shape):
    only_body_errors(awsjson, body, shape)


@examples(300)
@given(cbor_bodies | json_bodies, st.sampled_from(SHAPES))
def test_a_cbor_body_that_does_not_fit_is_a_body_error_and_nothing_else(body, shape):
    only_body_errors(awscbor, body, shape)


OTHER_PAGES = {
    shapes.GetRecordsResponse: b"ContinuationSequenceNumber",
    shapes.SubscribeToShardEvent: b"NextShardIterator",
}


@pytest.mark.parametrize("shape", PAGES)
@examples(120)
@given(json_bodies)
def test_both_ways_to_read_a_page_refuse_the_same_bodies(shape, body):
    # The path for large answers also reads the one member that only the other kind of page has.
    assume(body and OTHER_PAGES[shape] not in body)
    results = []
    for read in (lambda: awsjson._decode_large(body, shape), lambda: awsjson._decode_as(body, shape, "page")):
        try:
            results.append(read())
        except BodyError:
            results.append(None)
    assert results[0] == results[1]


odd_values = st.recursive(
    junk
    | st.floats()
    | st.binary(max_size=4)
    | st.datetimes()
    | times
    | st.integers()
    | st.complex_numbers()
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("codec", [awsjson, awscbor])
@examples(100)
@given(odd_values)
def test_a_value_that_cannot_be_written_is_a_body_error_and_nothing_else(codec, value):
    try:
        body = codec.encode({"Value": value})
    except BodyError:
        return
    assert set(codec.decode_any(body)) == {"Value"}


header_names = st.sampled_from(["x-amzn-errortype", "x-amzn-requestid", "x-amz-request-id", "retry-after", "date"])
header_values = st.text(max_size=20) | st.sampled_from(["A:http://x/", "n#A", "5", "9" * 400])
error_bodies = (
    json_bodies
    | cbor_bodies
    | st.dictionaries(st.sampled_from(["__type", "code", "Code", "message", "Message"]), junk).map(cbor2.dumps)
    | st.dictionaries(st.sampled_from(["__type", "code", "message", "errorMessage"]), junk).map(
        lambda value: json.dumps(value).encode()
    )
    | st.text(max_size=40).map(lambda text: f"<html><style>{text}</html>".encode(errors="surrogatepass"))
)


@examples(300)
@given(st.integers(100, 599), st.dictionaries(header_names, header_values), error_bodies)
def test_every_answer_yields_a_code_and_a_message_and_nothing_is_raised(status, headers, body):
    told = read_error(status, headers, body)
    assert told.code
    assert told.message
    assert "#" not in told.code
    assert ":" not in told.code
    assert len(told.code) <= 1_000
    assert len(told.message) <= 1_000
    assert told.retry_after is None or 0 <= told.retry_after <= 86_400
