"""The types of request members, with their constraints.

The constraints come from the service model [MODEL]. ``inputs`` and ``channel_inputs`` use these types.
"""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from shardline.model.limits import PUT_RECORDS_MAX_BYTES
from shardline.server.model.constraints import full_match

_NAME: Final = r"[a-zA-Z0-9_.-]+"


def matching(pattern: str, longest: int, shortest: int = 1) -> Meta:
    """Return the constraints on a string: its minimum and maximum length, and a pattern that must match the whole
    string.
    """
    return Meta(min_length=shortest, max_length=longest, pattern=full_match(pattern))


StreamName: TypeAlias = Annotated[str, matching(_NAME, 128)]
StreamArn: TypeAlias = Annotated[str, matching(r"arn:aws.*:kinesis:.*:\d{12}:stream/\S+", 2048)]
StreamId: TypeAlias = Annotated[str, matching("[a-z0-9]{20}-[a-z0-9]{3}", 24)]
ConsumerArn: TypeAlias = Annotated[
    str, matching(r"^(arn):aws.*:kinesis:.*:\d{12}:.*stream\/[a-zA-Z0-9_.-]+\/consumer\/[a-zA-Z0-9_.-]+:[0-9]+", 2048)
]
ChannelArn: TypeAlias = Annotated[str, matching(r"arn:aws.*:kinesis:.*:\d{12}:channel/\S+", 2048)]
ResourceArn: TypeAlias = Annotated[str, matching(r"arn:aws.*:kinesis:.*:\d{12}:.*(stream|channel)/\S+", 2048)]
ShardId: TypeAlias = Annotated[str, matching(_NAME, 128)]
# The service model writes ^(...)$ around the next two patterns, but AWS's recorded messages do not show it.
HashKey: TypeAlias = Annotated[str, Meta(pattern=full_match(r"0|([1-9]\d{0,38})"))]
SequenceNumber: TypeAlias = Annotated[str, Meta(pattern=full_match(r"0|([1-9]\d{0,128})"))]
PartitionKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Data: TypeAlias = Annotated[bytes, Meta(max_length=PUT_RECORDS_MAX_BYTES)]
ConsumerName: TypeAlias = Annotated[str, matching(_NAME, 128)]
Token: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_048_576)]
Int: TypeAlias = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
PositiveInt: TypeAlias = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
NaturalInt: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
KeyId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2048)]
Distribution: TypeAlias = Literal["AUTO", "USER_PARTITION_KEY"]
MetricsName: TypeAlias = Literal[
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
    "ALL",
]
TagKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
TagKeys: TypeAlias = Annotated[list[TagKey], Meta(min_length=1, max_length=50)]
TagMap: TypeAlias = Annotated[
    dict[TagKey, Annotated[str, Meta(min_length=0, max_length=256)]], Meta(min_length=1, max_length=200)
]
PositionType: TypeAlias = Literal[
    "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"
]
