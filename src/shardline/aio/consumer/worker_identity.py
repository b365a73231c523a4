"""Under which name does a worker hold its leases, and which of its lives is this?

Invariants:

- No two consumers have the same name unless the user gives it: a container's PID is 1 in all of them, and a
  restarted process must not pass for the one that died.
- No two consumers have the same incarnation, whatever their names are.
"""

import os
import secrets
import socket
from typing import Final

_HOST_MAX_LENGTH: Final = 200


def new_worker_id() -> str:
    """Host, process, and chance: the first two are for those who look."""
    host = "".join(character for character in socket.gethostname() if character.isprintable())[:_HOST_MAX_LENGTH]
    return f"{host or 'host'}:{os.getpid()}:{secrets.token_hex(4)}"


def new_incarnation() -> str:
    """What tells this consumer from every other of its name."""
    return secrets.token_hex(8)
