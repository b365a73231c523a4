"""Which values may the members of requests have?

The constraints are those of the service model [MODEL]; ``inputs`` and ``channel_inputs`` are made of these types.
"""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from shardline.model.limits import PUT_RECORDS_MAX_BYTES
from shardline.server.model.constraints import full_match

_NAME: Final = full_match(r"[a-zA-Z0-9_.-]+")
_STREAM_ARN: Final = full_match(r"arn:aws.*:kinesis:.*:\d{12}:stream/\S+")
_CONSUMER_ARN: Final = full_match(
    r"^(arn):aws.*:kinesis:.*:\d{12}:.*stream\/[a-zA-Z0-9_.-]+\/consumer\/[a-zA-Z0-9_.-]+:[0-9]+"
)
_CHANNEL_ARN: Final = full_match(r"arn:aws.*:kinesis:.*:\d{12}:channel/\S+")
_RESOURCE_ARN: Final = full_match(r"arn:aws.*:kinesis:.*:\d{12}:.*(stream|channel)/\S+")

StreamName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=_NAME)]
StreamArn: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2048, pattern=_STREAM_ARN)]
StreamId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=24, pattern=full_match("[a-z0-9]{20}-[a-z0-9]{3}"))]
ConsumerArn: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2048, pattern=_CONSUMER_ARN)]
ChannelArn: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2048, pattern=_CHANNEL_ARN)]
ResourceArn: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2048, pattern=_RESOURCE_ARN)]
ShardId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=_NAME)]
# The service model writes these two patterns with ^(...)$, AWS's recorded messages do not.
HashKey: TypeAlias = Annotated[str, Meta(pattern=full_match(r"0|([1-9]\d{0,38})"))]
SequenceNumber: TypeAlias = Annotated[str, Meta(pattern=full_match(r"0|([1-9]\d{0,128})"))]
PartitionKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Data: TypeAlias = Annotated[bytes, Meta(max_length=PUT_RECORDS_MAX_BYTES)]
ConsumerName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=_NAME)]
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
