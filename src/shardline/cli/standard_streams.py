"""Keeps a command going when its output cannot be written.

Invariants:

- If the reader of a pipe has exited (``| head -1``), the command discards its output, does its work, and ends with its
  usual exit code.
- Any other failure to write standard output (a full disk) is kept: ``main`` reports it at the end, and the exit
  code is not 0.
- A failure to write standard error is ignored: standard error is only for people.
"""

import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO, final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ERROR_HANDLERS: Final = {"strict": "backslashreplace"}  # a character that the terminal cannot show becomes an escape


@final
class _TolerantOutput(io.FileIO):
    """A file descriptor that discards data that it cannot write."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.problem: OSError | None = None
        self.is_lost = False

    def write(self, data: "ReadableBuffer", /) -> int:
        if not self.is_lost:
            try:
                return super().write(data)
            except BrokenPipeError:
                self.is_lost = True
            except BlockingIOError:
                raise  # the BufferedWriter above handles the error
            except OSError as error:
                self.is_lost = True
                self.problem = error
        return memoryview(data).nbytes


def guard() -> None:
    """Replace standard output and standard error with tolerant ones for the rest of the process."""
    if sys.platform != "win32":  # Windows consoles are not file descriptors, and Windows has no broken pipes
        sys.stderr = _guarded(sys.stderr)
        sys.stdout = _guarded(sys.stdout)


def is_lost() -> bool:
    """Flush standard output, and return whether it can no longer be written, for example after the pipe was closed."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _TolerantOutput) and raw.is_lost


def take_problem() -> OSError | None:
    """Flush standard output, and return the error that keeps it from being written, if any. Later calls return None."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _TolerantOutput):
        return None
    problem, raw.problem = raw.problem, None
    return problem


def _guarded(stream: TextIO | None) -> TextIO:
    if stream is None:  # the parent process closed the stream (`>&-`)
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - a device, open until the end
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # the stream of a test has no descriptor
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_TolerantOutput(descriptor)),
        encoding=stream.encoding,
        errors=_ERROR_HANDLERS.get(stream.errors or "strict", stream.errors),
        line_buffering=bool(stream.line_buffering),
        write_through=getattr(stream, "write_through", False),
    )
