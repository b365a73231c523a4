"""Keeps secrets out of botocore's log while botocore fetches credentials.

At DEBUG, botocore logs everything that it sends and receives, including identity tokens, and STS responses that contain
the secret key and the session token.

Invariants:

- Inside ``keeping_secrets()``, botocore's DEBUG records of this thread are dropped. Botocore's records of a higher
  level are logged without their exception, which may quote a response. Records of other threads are unaffected.
"""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_LOGGERS_WITH_SECRETS: Final = tuple(
    f"botocore.{name}"
    for name in (
        "auth",
        "credentials",
        "endpoint",
        "handlers",
        "hooks",
        "httpsession",
        "parsers",
        "retryhandler",
        "tokens",
        "utils",
    )
)
_this_thread: Final = threading.local()


def _filter(record: logging.LogRecord) -> bool:
    """Return whether to log a record.

    Inside ``keeping_secrets()``, remove the exception from a record that is logged.
    """
    if not getattr(_this_thread, "depth", 0):
        return True
    record.exc_info = None
    return record.levelno > logging.DEBUG


@contextmanager
def keeping_secrets() -> Generator[None]:
    """Inside the ``with`` block, drop this thread's log records in which botocore could reveal a secret."""
    # Add the filter every time, because the program may have reconfigured logging. Adding a filter twice has no effect.
    for name in _LOGGERS_WITH_SECRETS:
        logging.getLogger(name).addFilter(_filter)
    _this_thread.depth = getattr(_this_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _this_thread.depth -= 1
