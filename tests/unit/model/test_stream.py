"""How streams are named."""

import pytest

from shardline.errors import UsageError
from shardline.model.stream import StreamRef, consumer_created_at, is_consumer_name, parse_consumer_arn, parse_stream

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
CONSUMER = f"{ARN}/consumer/billing:1731672000"


@pytest.mark.parametrize("name", ["o", "orders", "Orders_1.2-3", "a" * 128, ".", "-", "_", "arn", "0"])
def test_a_name_names_a_stream_and_nothing_else(name):
    assert parse_stream(name) == StreamRef(name, None, None, None)
    assert str(parse_stream(name)) == name


@pytest.mark.parametrize(
    ("arn", "region"),
    [
        (ARN, "eu-west-1"),
        ("arn:aws-cn:kinesis:cn-north-1:123456789012:stream/orders", "cn-north-1"),
        ("arn:aws-us-gov:kinesis:us-gov-west-1:123456789012:stream/orders", "us-gov-west-1"),
        ("arn:aws-iso-b:kinesis:us-isob-east-1:123456789012:stream/orders", "us-isob-east-1"),
    ],
)
def test_an_arn_tells_name_region_and_account(arn, region):
    ref = parse_stream(arn)
    assert ref == StreamRef("orders", arn, region, "123456789012")
    assert str(ref) == arn


def test_a_name_in_an_arn_has_the_same_bounds():
    assert parse_stream(f"arn:aws:kinesis:eu-west-1:123456789012:stream/{'a' * 128}").name == "a" * 128
    with pytest.raises(UsageError, match="not a stream ARN"):
        parse_stream(f"arn:aws:kinesis:eu-west-1:123456789012:stream/{'a' * 129}")


@pytest.mark.parametrize(
    "text", ["", " ", "orders\n", "\norders", "my orders", "orders/1", "ördërs", "o:1", "a" * 129, "a*"]
)
def test_what_is_no_name_is_refused(text):
    with pytest.raises(UsageError, match="not a stream name: expected 1 to 128 of the characters"):
        parse_stream(text)


@pytest.mark.parametrize(
    "text",
    [
        "arn:",
        ARN + "\n",
        ARN + " ",
        ARN + "/",
        CONSUMER,
        "arn:aws:kinesis:eu-west-1:12345678901:stream/orders",
        "arn:aws:kinesis:eu-west-1:1234567890123:stream/orders",
        "arn:aws:kinesis:eu-west-1:12345678901\N{ARABIC-INDIC DIGIT TWO}:stream/orders",
        "arn:aws:kinesis::123456789012:stream/orders",
        "arn:aws:dynamodb:eu-west-1:123456789012:stream/orders",
        "arn:aws:kinesis:eu-west-1:123456789012:stream/",
        "arn:aws:kinesis:eu-west-1:123456789012:table/orders",
        "arn:gcp:kinesis:eu-west-1:123456789012:stream/orders",
    ],
)
def test_what_begins_as_an_arn_must_be_a_stream_arn(text):
    with pytest.raises(UsageError, match="is not a stream ARN: expected arn:aws:kinesis"):
        parse_stream(text)


@pytest.mark.parametrize("value", [None, 1, b"orders", StreamRef("orders")])
def test_a_stream_is_named_by_a_str(value):
    with pytest.raises(UsageError, match=f"named by a str .* not {type(value).__name__}$"):
        parse_stream(value)


def test_a_huge_name_is_not_repeated_in_the_message():
    with pytest.raises(UsageError) as caught:
        parse_stream("a" * 1_000_000)
    assert len(str(caught.value)) < 300


def test_a_consumer_arn_contains_its_stream():
    assert parse_consumer_arn(CONSUMER) == parse_stream(ARN)
    assert consumer_created_at(CONSUMER) == 1_731_672_000


@pytest.mark.parametrize("partition", ["aws-cn", "aws-us-gov"])
def test_consumers_exist_in_every_partition(partition):
    arn = CONSUMER.replace("arn:aws:", f"arn:{partition}:")
    assert parse_consumer_arn(arn).arn == arn.partition("/consumer/")[0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "",
        "billing",
        ARN,
        CONSUMER + "\n",
        CONSUMER.rpartition(":")[0],
        f"{ARN}/consumer/:1",
        f"{ARN}/consumer/{'b' * 129}:1",
        f"{ARN}/consumer/billing:x",
        f"{ARN}/consumer/billing:",
    ],
)
def test_what_is_no_consumer_arn_is_refused(value):
    with pytest.raises(UsageError, match="is not a consumer ARN: expected"):
        parse_consumer_arn(value)


@pytest.mark.parametrize(("name", "is_valid"), [("billing", True), ("a" * 128, True), ("", False), ("a/b", False)])
def test_a_registered_consumer_has_a_name_like_a_stream(name, is_valid):
    assert is_consumer_name(name) is is_valid
