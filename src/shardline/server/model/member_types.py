"""Which values may the members of requests have?

The constraints are those of the service model [MODEL]; ``inputs`` and ``channel_inputs`` are made of these types.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from shardline.model.limits import PUT_RECORDS_MAX_BYTES

StreamName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+\Z")]
Arn: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2048, pattern=r"^arn:aws.*:kinesis:.*:[0-9]{12}:.*")]
ShardId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+\Z")]
HashKey: TypeAlias = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,38})\Z")]
PartitionKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Data: TypeAlias = Annotated[bytes, Meta(max_length=PUT_RECORDS_MAX_BYTES)]
SequenceNumber: TypeAlias = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,128})\Z")]
ConsumerName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+\Z")]
Token: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_048_576)]
PositiveInt: TypeAlias = Annotated[int, Meta(ge=1)]
NaturalInt: TypeAlias = Annotated[int, Meta(ge=0)]
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
TagMap: TypeAlias = dict[
    Annotated[str, Meta(min_length=1, max_length=128)], Annotated[str, Meta(min_length=0, max_length=256)]
]
PositionType: TypeAlias = Literal[
    "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"
]
