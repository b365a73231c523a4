"""The ``extra`` of log records: the names under which log handlers and formatters find the context of a line."""

from shardline.events import EventSource


def log_context(source: EventSource, shard_id: str | None = None, code: str | None = None) -> dict[str, object]:
    """Return the ``extra`` of a log record. Values that do not apply are ``None``."""
    return {
        "stream": source.stream,
        "group": source.group,
        "worker": source.worker_id,
        "shard_id": shard_id,
        "code": code,
    }


def shard_and_code(event: object) -> tuple[str | None, str | None]:
    """Return the shard and the code of an event, with ``None`` for a value that the event does not have.

    The code is the error code of a failed request, or the type of the exception that a handler raised.
    """
    failure = getattr(event, "failure", None)
    code = getattr(event if failure is None else failure, "code", None) or getattr(event, "error_type", None)
    return getattr(event, "shard_id", None) or None, code
