"""Is every constraint of botocore's model of Kinesis enforced, and refused as AWS does?

Each constraint of each member of each operation is violated by itself, in an otherwise valid request: a required member
is missing, a value is too short, too long, too small, too large or outside its pattern or enum, or has a type that AWS
does not convert. The requests go as bytes to the endpoint, in JSON and in CBOR.
"""

import copy
import json
import re
from collections import Counter
from random import Random
from typing import NamedTuple

import botocore.session
import pytest

from shardline.codec import cbor
from shardline.server import bodies
from shardline.server.endpoint import TARGET_PREFIX, Endpoint
from shardline.server.model.inputs import INPUTS
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings
from shardline.server.server_clock import ServerClock

MODEL = botocore.session.get_session().get_service_model("kinesis")
ACCOUNT = "arn:aws:kinesis:us-east-1:000000000000"
BUCKET = "arn:aws:s3:::bucket"
SAMPLES = {
    "StreamName": "s",
    "StreamARN": f"{ACCOUNT}:stream/s",
    "StreamId": "a" * 20 + "-abc",
    "ConsumerARN": f"{ACCOUNT}:stream/s/consumer/c:1",
    "ResourceARN": f"{ACCOUNT}:stream/s",
    "ChannelARN": f"{ACCOUNT}:channel/c",
    "ShardId": "shardId-000000000000",
    "HashKey": "1",
    "SequenceNumber": "1",
    "RoleARN": "arn:aws:iam::000000000000:role/r",
    "GSRSchemaARN": "arn:aws:glue:us-east-1:000000000000:schema/r/s",
    "BucketARN": BUCKET,
    "TableBucketARN": "arn:aws:s3tables:us-east-1:000000000000:bucket/bucket",
    "ExpectedBucketOwner": "000000000000",
}
"""A value of each shape whose pattern ``x`` does not match."""
OTHER_PATTERNS = {"HashKey": r"0|([1-9]\d{0,38})", "SequenceNumber": r"0|([1-9]\d{0,128})"}
"""Patterns that AWS's recorded messages print without the ``^(...)$`` of the model."""
OFF_PATTERN = ("a b", ":", "\u00e9", "a b" * 8, " " * 12)
"""Texts such that each pattern refuses one."""
LIST = "Start of list found where not expected"
MAP = "Start of structure or map found where not expected."
NUMBER = "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to {}"
STRING = "class java.lang.String can not be converted to {}"
BOOLEAN = "class java.lang.Boolean can not be converted to {}"
WRONG_TYPES = {
    "string": [(True, BOOLEAN.format("an String")), (23, NUMBER.format("an String")), ([], LIST), ({}, MAP)],
    "integer": [("23", STRING.format("an Integer")), (True, BOOLEAN.format("an Integer")), ([], LIST), ({}, MAP)],
    "boolean": [("23", "'23' can not be converted to an Boolean"), (23, NUMBER.format("an Boolean")), ([], LIST), ({}, MAP)],
    "blob": [(True, BOOLEAN.format("a Blob")), (23, NUMBER.format("a Blob")), ([], LIST), ({}, MAP)],
    "timestamp": [
        ("23", STRING.format("milliseconds since epoch")), (True, BOOLEAN.format("milliseconds since epoch")), ([], LIST),
        ({}, MAP),
    ],
    "list": [("23", "Expected list or null"), (True, "Expected list or null"), (23, "Expected list or null"), ({}, MAP)],
    "map": [("23", "Expected map or null"), (True, "Expected map or null"), (23, "Expected map or null"), ([], LIST)],
    "structure": [("23", "Expected null"), (True, "Expected null"), (23, "Expected null"), ([], LIST)],
}  # fmt: skip
"""By type: a value that AWS does not convert, and AWS's message (kinesalite, test/helpers.js, assertType)."""


class Broken(NamedTuple):
    """One violated constraint: the request, and AWS's message."""

    operation: str
    path: tuple
    kind: str
    members: dict
    code: str
    sentence: str
    """The whole message of a SerializationException, or the part of a ValidationException about the member."""

    def __str__(self):
        return f"{self.operation}-{'.'.join(map(str, self.path))}-{self.kind}"


def sample(shape):
    """Return a value that satisfies all constraints, with every member."""
    match shape.type_name:
        case "structure":
            return {name: sample(member) for name, member in shape.members.items()}
        case "list":
            return [sample(shape.member)]
        case "map":
            return {sample(shape.key): sample(shape.value)}
        case "string":
            return shape.enum[0] if shape.enum else SAMPLES.get(shape.name, "x")
        case "integer":
            return shape.metadata.get("min", 1)
        case other:
            return {"boolean": True, "timestamp": 1.5, "blob": b"x"}[other]


def place(members, path, value):
    """Return a copy of the members with another value at the path; ``Ellipsis`` removes it."""
    members = copy.deepcopy(members)
    inner = members
    for name in path[:-1]:
        inner = inner[name]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return members


def named(path):
    """Return a path as messages write it."""
    return ".".join(f"{name + 1}.member" if isinstance(name, int) else name[:1].lower() + name[1:] for name in path)


def shown(value, shape=None):
    """Return a value as messages show it. Structures in a list have the name of their shape."""
    if isinstance(value, bytes):
        return f"java.nio.HeapByteBuffer[pos=0 lim={len(value)} cap={len(value)}]"
    if isinstance(value, list):
        is_named = shape is not None and shape.member.type_name == "structure"
        name = f"com.amazonaws.kinesis.v20131202.{shape.member.name}@c965e310" if is_named else ""
        return f"[{', '.join(name or shown(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}={shown(item)}' for name, item in value.items())}}}"
    return str(value)


def constraints(shape):
    """Yield the constraints of a shape: the kind, AWS's sentence, and a value that violates it (``None``: there is
    none).
    """
    metadata, what = shape.metadata, "value" if shape.type_name == "integer" else "length"
    if shape.type_name == "string" and shape.enum:
        yield "enum", "Member must satisfy enum value set: [", "NO"
    if "pattern" in metadata:
        pattern = OTHER_PATTERNS.get(shape.name, metadata["pattern"])
        lengths = range(metadata.get("min", 0), metadata.get("max", 10**9) + 1)
        off = next(text for text in OFF_PATTERN if len(text) in lengths and not re.fullmatch(pattern, text))
        yield "pattern", f"Member must satisfy regular expression pattern: {pattern}", off
    if "max" in metadata:
        yield (
            "max",
            f"Member must have {what} less than or equal to {metadata['max']}",
            sized(shape, metadata["max"] + 1),
        )
    if "min" in metadata:
        least = metadata["min"]
        shorter = least - 1 if what == "value" else sized(shape, least - 1) if least else None
        yield "min", f"Member must have {what} greater than or equal to {least}", shorter


def sized(shape, size):
    """Return a value of a length, or a number."""
    match shape.type_name:
        case "integer":
            return size
        case "string":
            text = SAMPLES.get(shape.name, "x")
            return text[:size] + text[-1:] * (size - len(text))
        case "blob":
            return bytes(size)
        case "list":
            return [sample(shape.member)] * size
        case "map":
            return {f"{sample(shape.key)}{number}": sample(shape.value) for number in range(size)}
    raise AssertionError(shape)


def breaks(shape, whole, path, operation):
    """Yield every way to violate one constraint of a value and of its parts."""
    for wrong, message in WRONG_TYPES[shape.type_name]:
        kind = f"type {type(wrong).__name__}"
        yield Broken(operation, path, kind, place(whole, path, wrong), "SerializationException", message)
    for kind, sentence, wrong in constraints(shape):
        members = None if wrong is None else place(whole, path, wrong)
        yield Broken(operation, path, kind, members, "ValidationException", at(path, shown(wrong, shape), sentence))
    match shape.type_name:
        case "structure":
            yield from member_breaks(shape, whole, path, operation)
        case "list":
            yield from item_breaks(shape.member, whole, (*path, 0), operation, "Member")
        case "map":
            key = sample(shape.key)
            yield from item_breaks(shape.value, whole, (*path, key), operation, "Map value")
            yield from key_breaks(shape, whole, path, operation)


def member_breaks(shape, whole, path, operation):
    for name, member in shape.members.items():
        if name in shape.required_members:
            members = place(whole, (*path, name), ...)
            sentence = at((*path, name), None, "Member must not be null")
            yield Broken(operation, (*path, name), "required", members, "ValidationException", sentence)
        yield from breaks(member, whole, (*path, name), operation)


def item_breaks(shape, whole, path, operation, what):
    """Yield the violations of an item of a list or map. The constraints of scalars are named at the collection."""
    if shape.type_name == "structure":
        yield from breaks(shape, whole, path, operation)
        return
    for wrong, message in WRONG_TYPES[shape.type_name]:
        kind = f"type {type(wrong).__name__}"
        yield Broken(operation, path, kind, place(whole, path, wrong), "SerializationException", message)
    for kind, sentence, wrong in constraints(shape):
        members = None if wrong is None else place(whole, path, wrong)
        yield Broken(operation, path, kind, members, "ValidationException", inside(path[:-1], members, what, sentence))


def key_breaks(shape, whole, path, operation):
    for kind, sentence, wrong in constraints(shape.key):
        members = place(whole, path, {wrong: sample(shape.value)})
        yield Broken(
            operation, path, f"key {kind}", members, "ValidationException", inside(path, members, "Map keys", sentence)
        )


def at(path, value, sentence):
    """Return the part of a message about a member, as a pattern; ``None`` is null."""
    said = "null" if value is None else f"'{value}'"
    start = re.escape(f"Value {said} at '{named(path)}' failed to satisfy constraint: {sentence}")
    return start + (r"[^;]*\]" if sentence.endswith("[") else r"(;|$)")


def inside(path, members, what, sentence):
    value = members
    for name in path:
        value = value[name] if value is not None else None
    member = re.escape(
        f"Value '{shown(value)}' at '{named(path)}' failed to satisfy constraint: {what} must satisfy constraint: ["
    )
    return rf"{member}.*{re.escape(sentence)}.*\]"


def all_broken():
    for operation in MODEL.operation_names:
        shape = MODEL.operation_model(operation).input_shape
        if operation in INPUTS and shape is not None:
            yield from member_breaks(shape, sample(shape), (), operation)


CASES = list(all_broken())


@pytest.fixture(scope="module")
def endpoint():
    settings = ServiceSettings(limits=Limits.without_rates())
    return Endpoint(Service(settings, Random(1), 1_700_000_000.0), ServerClock())


def ask(endpoint, content_type, operation, body):
    headers = {"content-type": content_type, "x-amz-target": TARGET_PREFIX + operation}
    reply = endpoint.reply(headers, body)
    return reply.status, json.loads(reply.body) if content_type == bodies.JSON else cbor.decode(reply.body)


def to_json(members):
    return json.dumps(members, default=lambda data: "eA==" if data == b"x" else base64_zeros(len(data))).encode()


def base64_zeros(size):
    return "A" * (size // 3 * 4) + {0: "", 1: "AA==", 2: "AAA="}[size % 3]


@pytest.mark.parametrize("operation", sorted({case.operation for case in CASES}))
def test_every_constraint_is_enforced_and_refused_as_aws_does(endpoint, operation):
    for case in CASES:
        if case.operation != operation or case.members is None:
            continue
        status, answer = ask(endpoint, bodies.JSON, operation, to_json(case.members))
        assert (status, answer["__type"]) == (400, case.code), (str(case), answer)
        if case.code == "SerializationException":
            assert answer == {"__type": case.code, "Message": case.sentence}, str(case)
        else:
            assert re.match(r"\d+ validation errors? detected: Value ", answer["message"]), str(case)
            assert re.search(case.sentence, answer["message"], re.DOTALL), (str(case), answer["message"][:2_000])
        assert ask(endpoint, bodies.CBOR, operation, cbor.encode(case.members)) == (status, answer), str(case)


@pytest.mark.parametrize("operation", sorted({case.operation for case in CASES}))
def test_the_request_is_right_before_it_is_broken(endpoint, operation):
    """Without this, a request could be refused for another reason."""
    members = sample(MODEL.operation_model(operation).input_shape)
    for content_type, body in ((bodies.JSON, to_json(members)), (bodies.CBOR, cbor.encode(members))):
        headers = {"content-type": content_type, "x-amz-target": TARGET_PREFIX + operation}
        reply = endpoint.reply(headers, body)
        assert b"failed to satisfy constraint" not in reply.body
        assert b"SerializationException" not in reply.body


def test_the_values_of_enums_are_all_named(endpoint):
    for case in CASES:
        if case.kind == "enum":
            _, answer = ask(endpoint, bodies.JSON, case.operation, to_json(case.members))
            shape = MODEL.operation_model(case.operation).input_shape
            for name in case.path:
                shape = shape.member if isinstance(name, int) else shape.members[name]
            (values,) = re.findall(r"enum value set: \[(.*?)\]", answer["message"])
            assert sorted(values.split(", ")) == sorted(shape.enum)


def test_the_constraints_and_the_exceptions_are_counted():
    """The only exceptions are lengths of at least 0 (data, and the values of tags): no value is shorter."""
    kinds = Counter(case.kind.removeprefix("key ").split()[0] for case in CASES)
    assert set(kinds) == {"type", "required", "min", "max", "pattern", "enum"}
    assert len(CASES) >= 1_100
    exceptions = [case for case in CASES if case.members is None]
    assert {(case.path[0], case.kind) for case in exceptions} == {("Data", "min"), ("Records", "min"), ("Tags", "min")}
    assert all("greater than or equal to 0" in case.sentence.replace("\\", "") for case in exceptions)
    assert len(exceptions) <= 8


ODD = (
    None, True, 0, -1, 2**31, 2**63, 1.5, 1e308, "", "x", "a b", "=", "a===", "YQ==", "+/+=", "\x00", "\u00e9" * 300, "yes",
    [], {}, [[]], [None], {"": ""}, {"a": None},
)  # fmt: skip
"""Values that some members do not accept."""


def spoilt(value, rng):
    """Return the value with some of its parts replaced, removed or repeated."""
    if rng.random() < 0.1:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {name: spoilt(item, rng) for name, item in value.items() if rng.random() > 0.05}
    if isinstance(value, list):
        return [spoilt(item, rng) for item in value] * rng.choice([1, 1, 2])
    return value


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_broken_at_once_is_refused_and_never_a_failure(endpoint, seed):
    rng = Random(seed)
    codes = Counter()
    for _ in range(1_000):
        operation = rng.choice(sorted({case.operation for case in CASES}))
        members = spoilt(sample(MODEL.operation_model(operation).input_shape), rng)
        for content_type, body in ((bodies.JSON, to_json(members)), (bodies.CBOR, cbor.encode(members))):
            headers = {"content-type": content_type, "x-amz-target": TARGET_PREFIX + operation}
            reply = endpoint.reply(headers, body)
            assert reply.status in {200, 400}, (operation, members, reply.body)
            codes[reply.headers.get("x-amzn-ErrorType")] += 1
    assert codes["SerializationException"] > 100
    assert codes["ValidationException"] > 100
