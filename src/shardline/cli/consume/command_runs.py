"""Runs a command for each record, or for each batch of records.

Invariants:

- The command gets all of the data on standard input, byte for byte, or it is not started. Its standard input is a file
  in memory, not a pipe: if this process dies, the command cannot mistake the first part of a record for the whole.
- No shell is involved. Facts about the record are passed as environment variables, so no character of a record is
  interpreted.
- The exit code 0 means success. Any other exit code, or an end by a signal, raises an exception, so that the consumer's
  failure policy decides.
- If the command cannot be started, the record is not the cause. The run then ends with a ``SystemExit``, which the
  failure policy does not handle, so the record is not retried, dead-lettered or committed.
- The command runs in its own session, so that Ctrl-C does not reach it. If the consumer cancels the call (because the
  time to finish is over, or the lease is lost), the command and its children get SIGTERM, and soon after SIGKILL. The
  call returns only when the command has ended.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Final, final

import anyio
from anyio.abc import Process

from shardline.aio.consumer.batches import Batch
from shardline.cli.quantities import counted
from shardline.cli.tail.record_formats import headers_json, json_line
from shardline.cli.terminal import notice
from shardline.cli.time_arguments import shown_time
from shardline.errors import UsageError
from shardline.model.record import Record

_PREFIX: Final = "SHARDLINE_"
_OF_RECORD: Final = ("KEY", "EXPLICIT_HASH_KEY", "SEQUENCE_NUMBER", "SUB_SEQUENCE", "ARRIVED_AT", "HEADERS")
_OF_CALL: Final = ("STREAM", "GROUP", "SHARD_ID", "LEASE_TOKEN", "RECORD_COUNT")
VARIABLES: Final = tuple(f"{_PREFIX}{name}" for name in (*_OF_CALL, *_OF_RECORD))
"""The environment variables that the command gets. Variables that do not apply to the record or batch are not set."""
_KILL_AFTER: Final = 1.0  # seconds from SIGTERM to SIGKILL; below 2 s, so that leases can still be released


class CommandFailed(Exception):  # noqa: N818 - names what happened
    """The command ended with an exit code other than 0, or a signal ended it."""


@final
class CommandRuns:
    """Runs the command. The two ``handle_`` methods of this class are handlers for ``Consumer.run``."""

    def __init__(self, command: Sequence[str], group: str) -> None:
        self._command = command
        self._group = group
        self._environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        self.handled_count = 0
        """How many records the command has handled successfully."""
        self.terminated_count = 0
        """The number of commands that were terminated."""
        self.start_error: OSError | None = None
        """The error that kept the command from being started, or ``None`` if there was no such error."""

    async def handle_record(self, record: Record) -> None:
        """Run the command with the data of one record.

        Raises:
            CommandFailed: the command failed.
            UsageError: an environment variable cannot hold the record's key.
            SystemExit: the command cannot be started.
        """
        if record.key is not None and "\0" in record.key:
            raise UsageError("the key has a NUL character, which an environment variable cannot hold: use --batch")
        await self._handle([record], record.data, _record_variables(record))

    async def handle_batch(self, batch: Batch) -> None:
        """Run the command with the records of one batch, as lines of JSON.

        Raises:
            CommandFailed: the command failed.
            SystemExit: the command cannot be started.
        """
        await self._handle(batch.records, b"".join(map(json_line, batch.records)), {})

    async def _handle(self, records: Sequence[Record], data: bytes, variables: dict[str, str]) -> None:
        first = records[0]
        about = variables | {
            "STREAM": first.stream or "",
            "GROUP": self._group,
            "SHARD_ID": first.shard_id or "",
            "RECORD_COUNT": str(len(records)),
        }
        if first.lease is not None:
            about["LEASE_TOKEN"] = str(first.lease.token)
        # fsdecode preserves bytes that are invalid in the machine's encoding, so the variable is always UTF-8.
        environment = {f"{_PREFIX}{name}": os.fsdecode(value.encode()) for name, value in about.items()}
        code = await self._run(data, self._environment | environment)
        if code != 0:
            ending = shown_ending(code)
            notice(f"the command {ending} at {shown_records(records)}")
            raise CommandFailed(f"the command {ending}")
        self.handled_count += len(records)

    async def _run(self, data: bytes, environment: Mapping[str, str]) -> int:
        """Run the command until it ends, and return its exit code."""
        with _file_of(data) as file:
            try:
                process = await anyio.open_process(
                    self._command, stdin=file, stdout=None, stderr=None, env=environment, start_new_session=True
                )
            except OSError as error:
                self.start_error = self.start_error or error
                raise SystemExit(1) from error
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                self.terminated_count += 1
                with anyio.CancelScope(shield=True):
                    await _terminate(process)


def shown_records(records: Sequence[Record]) -> str:
    """Return a text that identifies records of one shard: ``record 4959..:2 of shardId-000000000000``."""
    first = records[0]
    name = f"{first.sequence_number}:{first.sub_sequence} of {first.shard_id}"
    return f"record {name}" if len(records) == 1 else f"{counted(len(records), 'record')} from {name}"


def shown_ending(code: int) -> str:
    """Describe how a process with this return code ended."""
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was ended by signal {-code}"


def _record_variables(record: Record) -> dict[str, str]:
    values = {
        "KEY": record.key,
        "EXPLICIT_HASH_KEY": record.explicit_hash_key,
        "SEQUENCE_NUMBER": record.sequence_number,
        "SUB_SEQUENCE": str(record.sub_sequence),
        "ARRIVED_AT": None if record.arrived_at is None else shown_time(record.arrived_at),
        "HEADERS": headers_json(record) if record.headers else None,
    }
    return {name: value for name, value in values.items() if value is not None}


async def _terminate(process: Process) -> None:
    """End the process and its children: first with SIGTERM, then with SIGKILL."""
    _send(process, is_kill=False)
    with anyio.move_on_after(_KILL_AFTER):
        await process.wait()
    _send(process, is_kill=True)  # even if the process has ended, because its children may still be running
    await process.wait()


def _send(process: Process, *, is_kill: bool) -> None:
    try:
        if sys.platform == "win32":  # Windows has no process groups
            if process.returncode is None:
                process.terminate()
        else:
            os.killpg(process.pid, signal.SIGKILL if is_kill else signal.SIGTERM)
    except (ProcessLookupError, PermissionError):  # macOS refuses a signal to a group that has ended
        return


@contextmanager
def _file_of(data: bytes) -> Generator[IO[bytes]]:
    """Yield an unnamed file that contains this data. The file is positioned at its beginning."""
    with _nameless_file() as file:
        file.write(data)
        file.seek(0)
        yield file


def _nameless_file() -> IO[bytes]:
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("shardline"), "w+b")
    return tempfile.TemporaryFile()
