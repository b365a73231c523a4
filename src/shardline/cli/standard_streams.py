"""Keeps a command going when its output cannot be written.

Invariants:

- A reader that has gone (``| head -1``) changes nothing: the command does its work, prints nowhere, and ends with
  the exit code that it would have had.
- Any other failure to write standard output (a full disk) is kept: ``main`` reports it at the end, and the exit
  code is not 0.
- Standard error is only for people: if it cannot be written, nothing happens.
"""

import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO, final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_REPLACED: Final = {"strict": "backslashreplace"}  # a terminal that cannot show a character shows an escape


@final
class _Forgiving(io.FileIO):
    """A file descriptor that swallows what it cannot write."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.problem: OSError | None = None
        self._is_lost = False

    def write(self, data: "ReadableBuffer", /) -> int:
        if not self._is_lost:
            try:
                return super().write(data)
            except BrokenPipeError:
                self._is_lost = True
            except BlockingIOError:
                raise  # the buffer above knows what to do
            except OSError as error:
                self._is_lost = True
                self.problem = error
        return memoryview(data).nbytes


def guard() -> None:
    """Take over standard output and standard error, for the rest of the process."""
    if sys.platform != "win32":  # its consoles are no file descriptors, and it has no broken pipes
        sys.stderr = _guarded(sys.stderr)
        sys.stdout = _guarded(sys.stdout)


def take_problem() -> OSError | None:
    """Write what is left to standard output; give why it can no longer be written, once."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Forgiving):
        return None
    problem, raw.problem = raw.problem, None
    return problem


def _guarded(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed by whoever started us (`>&-`)
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - a device, until the end
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a test's own stream
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Forgiving(descriptor)),
        encoding=stream.encoding,
        errors=_REPLACED.get(stream.errors or "strict", stream.errors),
        line_buffering=bool(stream.line_buffering),
        write_through=getattr(stream, "write_through", False),
    )
