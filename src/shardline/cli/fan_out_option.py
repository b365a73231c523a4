"""Checks the value of ``--fan-out``, the name or the ARN of a registered consumer."""

from shardline.aio.consumer.fan_out import FanOut, check_fan_out
from shardline.cli.error_messages import WrongUsage
from shardline.errors import UsageError
from shardline.model.stream import parse_stream


def checked_fan_out(name: str | None, stream: str) -> FanOut | None:
    """Return the registered consumer to read with, or ``None`` if the option is not given.

    Raises:
        WrongUsage: the value is invalid, or names a consumer of another stream.
    """
    try:
        return check_fan_out(name, parse_stream(stream))
    except UsageError as error:
        message = str(error).replace("fan_out", "--fan-out").replace("this Consumer reads", "the command reads")
        raise WrongUsage(message) from None
