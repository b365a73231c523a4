"""Names and ARNs of streams.

Invariants:

- A stream is addressed by its name or by its ARN, never by both. The name or ARN is checked before any request is sent.
- A registered consumer (enhanced fan-out) is addressed by its ARN, which contains the ARN of its stream.
"""

import re
from dataclasses import dataclass
from typing import Final, final

from shardline.errors import UsageError
from shardline.model.limits import STREAM_NAME_MAX_LENGTH

# [MODEL] StreamARN, ConsumerARN: partitions (aws, aws-cn, aws-us-gov, ...), region, 12-digit account.
_STREAM_ARN: Final = re.compile(
    r"arn:aws[a-z0-9-]*:kinesis:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):stream/(?P<name>[a-zA-Z0-9_.-]{1,128})"
)
_CONSUMER_ARN: Final = re.compile(
    r"(?P<stream>arn:aws[a-z0-9-]*:kinesis:[a-z0-9-]+:[0-9]{12}:stream/[a-zA-Z0-9_.-]{1,128})"
    r"/consumer/(?P<name>[a-zA-Z0-9_.-]{1,128}):(?P<created>[0-9]+)"
)
_NAME: Final = re.compile(rf"[a-zA-Z0-9_.-]{{1,{STREAM_NAME_MAX_LENGTH}}}")


@final
@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream, as the caller named it."""

    name: str
    arn: str | None = None
    region: str | None = None
    account_id: str | None = None

    def __str__(self) -> str:
        return self.arn or self.name


def parse_stream(text: object) -> StreamRef:
    """Return the stream with this name or ARN.

    Raises:
        UsageError: the text is neither a name nor an ARN.
    """
    if not isinstance(text, str):
        raise UsageError(f"a stream is named by a str (its name or ARN), not {type(text).__name__}")
    if text.startswith("arn:"):
        match = _STREAM_ARN.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} is not a stream ARN: expected arn:aws:kinesis:<region>:<12-digit account>:stream/<name>"
            )
        return StreamRef(match["name"], text, match["region"], match["account"])
    if _NAME.fullmatch(text) is None:
        shown = text if len(text) <= STREAM_NAME_MAX_LENGTH + 1 else f"{text[:STREAM_NAME_MAX_LENGTH]}..."
        raise UsageError(f"{shown!r} is not a stream name: expected 1 to 128 of the characters a-z A-Z 0-9 _ . -")
    return StreamRef(text)


def parse_consumer_arn(text: object) -> StreamRef:
    """Return the stream of a registered consumer, from the consumer's ARN.

    Raises:
        UsageError: the text is not a consumer ARN.
    """
    match = _CONSUMER_ARN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UsageError(
            f"{text!r} is not a consumer ARN: expected "
            "arn:aws:kinesis:<region>:<12-digit account>:stream/<name>/consumer/<name>:<creation time>"
        )
    return parse_stream(match["stream"])


def consumer_created_at(consumer_arn: str) -> int:
    """Return the time at which a consumer was registered, in whole seconds since 1970. Its ARN contains this time."""
    parse_consumer_arn(consumer_arn)
    return int(consumer_arn.rpartition(":")[2])


def is_consumer_name(text: str) -> bool:
    """Return whether a text can be the name of a registered consumer.

    The rule is the same as for the name of a stream.
    """
    return _NAME.fullmatch(text) is not None
