"""Generates the name that identifies a worker in the lease store, and the id of its incarnation.

Invariants:

- Two consumers have the same name only if the user chose that name. Host and PID are not enough: the PID is 1 in every
  container, and a restarted process must not be mistaken for the one that died.
- No two consumers have the same incarnation, whatever their names are.
"""

import os
import secrets
import socket
from typing import Final

_HOST_MAX_LENGTH: Final = 200


def new_worker_id() -> str:
    """Return a new name: host and PID, which help people to find the worker, and a random part."""
    host = "".join(character for character in socket.gethostname() if character.isprintable())[:_HOST_MAX_LENGTH]
    return f"{host or 'host'}:{os.getpid()}:{secrets.token_hex(4)}"


def new_incarnation() -> str:
    """Return a new id, which distinguishes this consumer from all others with the same name."""
    return secrets.token_hex(8)
