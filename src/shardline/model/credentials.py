"""AWS credentials.

Invariants:

- Neither repr, str nor any exception shows the secret key or the session token.
- A key can be sent in a header: it has no control character (such as a line break from a file) and no lone surrogate.
"""

import re
from dataclasses import dataclass, field
from typing import Final, final

from shardline.errors import UsageError

_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@final
@dataclass(frozen=True, slots=True)
class Credentials:
    """AWS credentials: an access key, a secret key, and a session token if the credentials are temporary."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check("access_key", self.access_key)
        _check("secret_key", self.secret_key)
        if self.session_token is not None and self.session_token != "":  # "" comes from an empty environment variable
            _check("session_token", self.session_token)


def _check(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} must be a str with at least one character")
    if _UNFIT.search(value):
        raise UsageError(f"{name} contains a control character, perhaps a line end")
