"""What may botocore log while it fetches credentials for us?

At DEBUG it logs whatever it sends and receives: an identity token, and the answer of STS, with the secret key and the
session token in it.

Invariants:

- Inside of ``keeping_secrets()`` no such record of this thread gets out. What other threads log does, and so does
  what botocore has to say at a higher level, without the exception: that may quote an answer.
"""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_TELLTALE: Final = tuple(
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
_here: Final = threading.local()


def _may_be_said(record: logging.LogRecord) -> bool:
    if not getattr(_here, "depth", 0):
        return True
    record.exc_info = None
    return record.levelno > logging.DEBUG


@contextmanager
def keeping_secrets() -> Generator[None]:
    for name in _TELLTALE:  # again each time: whoever configures logging may have taken it off. Twice is once
        logging.getLogger(name).addFilter(_may_be_said)
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
