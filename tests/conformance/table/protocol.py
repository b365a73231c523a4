"""Scenarios of the protocol itself: JSON and CBOR, headers, unreadable bodies, signatures."""

from tests.conformance.expectation import ANY_TEXT, ANYTHING, EXTENDED_ID, REQUEST_ID, SEQUENCE_NUMBER, Matching, Some
from tests.conformance.scenario import Call, Scenario, Stream, bare, not_found, ok, refused
from tests.conformance.table.streams import DESCRIBED, SHARD_0, shard
from tests.conformance.wire import CBOR, JSON

MISMATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and "
    "signing method. Consult the service documentation for details."
)
INVALID_TOKEN = "The security token included in the request is invalid."
NO_TARGET = {
    "status": 403,
    "error": "<AccessDeniedException>\n"
    "  <Message>Unable to determine service/operation name to be authorized</Message>\n"
    "</AccessDeniedException>\n",
}
OLD_PROTOCOL = {
    "status": 404,
    "error": {"Output": {"__type": "com.amazon.coral.service#UnknownOperationException"}, "Version": "1.0"},
}
NO_STRING = "class com.amazon.coral.value.json.numbers.TruncatingBigNumber can not be converted to an String"
SUMMARY = {"StreamName": "$nothing"}
SHOWN = ("content-type", "x-amzn-requestid", "x-amz-id-2")


def unreadable(**members):
    """A SerializationException. AWS describes the problem in a member with a capital M, or omits it."""
    return {"status": 400, "error": Some({"__type": "SerializationException", **members})}


def signed(how, expect):
    return Call("DescribeStreamSummary", SUMMARY, expect, signing=how)


SCENARIOS = (
    Scenario(
        "cbor",
        "CBOR has the same members as JSON, in requests, answers and errors",
        streams={"a": Stream(1, shared=True)},
        steps=(
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok({"StreamDescriptionSummary": Some(DESCRIBED)}),
                cbor=True,
            ),
            Call("ListShards", {"StreamName": "$a"}, ok({"Shards": [shard(SHARD_0)]}), cbor=True),
            Call(
                "PutRecord",
                {"StreamName": "$a", "Data": b"\x00\xff", "PartitionKey": "k"},
                ok({"ShardId": SHARD_0, "SequenceNumber": SEQUENCE_NUMBER}),
                cbor=True,
            ),
            Call("DescribeStreamSummary", SUMMARY, not_found(), cbor=True),
            Call("DescribeStreamSummary", {"StreamName": "a name"}, refused("ValidationException"), cbor=True),
            Call("ListStreams", {}, unreadable(), cbor=True, body=b"\xff"),
        ),
    ),
    Scenario(
        "headers",
        "Answers have a content type and two request ids",
        seconds=5,
        steps=(
            Call(
                "DescribeStreamSummary",
                SUMMARY,
                {
                    **not_found(),
                    "headers": {"content-type": JSON, "x-amzn-requestid": REQUEST_ID, "x-amz-id-2": EXTENDED_ID},
                },
                show_headers=SHOWN,
            ),
            Call(
                "DescribeStreamSummary",
                SUMMARY,
                {
                    **not_found(),
                    "headers": {"content-type": CBOR, "x-amzn-requestid": REQUEST_ID, "x-amz-id-2": EXTENDED_ID},
                },
                show_headers=SHOWN,
                cbor=True,
            ),
        ),
    ),
    Scenario(
        "unreadable",
        "Unknown operations, unreadable bodies and wrong types are refused",
        seconds=10,
        steps=(
            Call("NoSuchOperation", {}, bare("UnknownOperationException")),
            Call("", {}, bare("UnknownOperationException"), headers={"X-Amz-Target": None}),
            Call("ListStreams", {}, unreadable(), body=b"hello"),
            Call("ListStreams", {}, OLD_PROTOCOL, headers={"Content-Type": "application/json"}),
            Call("", {}, NO_TARGET, method="GET", body=b"", headers={"X-Amz-Target": None, "Content-Type": None}),
            Call("ListStreams", {}, unreadable(), body=b"[]"),
            Call("DescribeStreamSummary", {"StreamName": 7}, unreadable(Message=NO_STRING)),
            Call("PutRecords", {"StreamName": "$nothing", "Records": "x"}, unreadable(Message="Expected list or null")),
            Call(
                "CreateStream",
                {"StreamName": "$nothing", "ShardCount": "x"},
                unreadable(Message="class java.lang.String can not be converted to an Integer"),
            ),
            Call("PutRecord", {"StreamName": "$nothing", "Data": 7, "PartitionKey": "k"}, unreadable(Message=ANY_TEXT)),
            Call(
                "AddTagsToStream", {"StreamName": "$nothing", "Tags": "x"}, unreadable(Message="Expected map or null")
            ),
            Call(
                "DescribeStreamSummary",
                {"StreamName": []},
                unreadable(Message="Start of list found where not expected"),
            ),
            Call(
                "PutRecord",
                {"StreamName": "$nothing", "Data": "23456", "PartitionKey": "k"},
                unreadable(
                    Message="'23456' can not be converted to a Blob: Base64 encoded length is expected a multiple of 4 bytes but found: 5"
                ),
            ),
            Call(
                "PutRecord",
                {"StreamName": "$nothing", "Data": "=+/=", "PartitionKey": "k"},
                unreadable(Message="'=+/=' can not be converted to a Blob: Invalid Base64 character: '='"),
            ),
        ),
    ),
    Scenario(
        "signatures",
        "Requests that are unsigned or have a wrong signature are refused",
        seconds=10,
        steps=(
            signed("right", not_found()),
            signed("query", not_found()),
            signed("none", refused("MissingAuthenticationTokenException", "Missing Authentication Token")),
            signed("wrong secret", refused("InvalidSignatureException", MISMATCH)),
            signed("altered body", refused("InvalidSignatureException", MISMATCH)),
            signed("unknown key", refused("UnrecognizedClientException", INVALID_TOKEN)),
            signed("wrong token", refused("UnrecognizedClientException", INVALID_TOKEN)),
            signed(
                "wrong region",
                refused("InvalidSignatureException", Matching(r"Credential should be scoped to a valid region.*")),
            ),
            signed(
                "wrong service",
                refused(
                    "InvalidSignatureException",
                    Matching(r"Credential should be scoped to correct service: 'kinesis'\. "),
                ),
            ),
            signed(
                "at -900",
                refused(
                    "InvalidSignatureException",
                    Matching(
                        r"Signature expired: \d{8}T\d{6}Z is now earlier than \d{8}T\d{6}Z \(\d{8}T\d{6}Z - 5 min\.\)"
                    ),
                ),
            ),
            signed(
                "at 900",
                refused(
                    "InvalidSignatureException",
                    Matching(
                        r"Signature not yet current: \d{8}T\d{6}Z is still later than \d{8}T\d{6}Z \(\d{8}T\d{6}Z \+ 5 min\.\)"
                    ),
                ),
            ),
            Call(
                "DescribeStreamSummary",
                SUMMARY,
                refused("IncompleteSignatureException", ANYTHING),
                signing="none",
                headers={"Authorization": "AWS4-HMAC-SHA256 Credential=x", "X-Amz-Date": "20260101T000000Z"},
            ),
        ),
    ),
)
