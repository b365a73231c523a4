"""Under which name does a worker hold its leases?

Invariants:

- WI1: no two consumers have the same name unless the user gives it: a container's PID is 1 in all of them, and a
  restarted process must not pass for the one that died.
"""

import os
import secrets
import socket
from typing import Final

_HOST_MAX_LENGTH: Final = 200


def new_worker_id() -> str:
    """Host, process, and chance (WI1): the first two are for those who look."""
    host = "".join(character for character in socket.gethostname() if character.isprintable())[:_HOST_MAX_LENGTH]
    return f"{host or 'host'}:{os.getpid()}:{secrets.token_hex(4)}"
