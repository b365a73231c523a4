"""Handlers that run in other processes: they note in a file what they saw."""

import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

FOLDER = "SHARDLINE_TEST_FOLDER"


def note(line):
    with (Path(os.environ[FOLDER]) / "notes").open("a") as file:
        file.write(f"{line}\n")


def notes():
    path = Path(os.environ[FOLDER]) / "notes"
    return path.read_text().splitlines() if path.exists() else []


def is_first(name):
    """Whether this is the first call with this name, over all processes."""
    path = Path(os.environ[FOLDER]) / f"seen-{name}"
    if path.exists():
        return False
    path.touch()
    return True


def handle(record):
    note(f"{os.getpid()} {record.key} {record.data.decode()}")


def handle_slowly(record):
    time.sleep(0.005)
    handle(record)


def handle_batch(batch):
    note(f"{os.getpid()} {batch[0].shard_id} {' '.join(record.data.decode() for record in batch)}")


async def handle_later(record):
    handle(record)


class UnpicklableError(Exception):
    def __init__(self):
        super().__init__("no")
        self.hook = lambda: None


class HugeError(Exception):
    def __init__(self):
        super().__init__("with all its data")
        self.data = bytes(20_000_000)


class StrangeError(BaseException):
    pass


def close_files():
    os.closerange(3, 256)  # also the connection to the program


def die(kind):
    match kind:
        case "base":
            raise StrangeError
        case "memory":
            limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 2**28
            resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
            bytearray(2**30)
        case "close":
            close_files()
            raise ValueError("nobody can be told of it")
        case "raise":
            raise UnpicklableError
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), 9)
        case "segfault":
            ctypes.string_at(0)
        case "hang":
            time.sleep(60)
        case "fork":
            if os.fork() == 0:
                return  # the copy goes on as if it were the process
            raise ValueError("the first call fails")


def fail_once(kind, record):
    """Fail on record 5, the first time."""
    if record.data == b"5" and is_first("failure"):
        die(kind)
    else:
        handle(record)


def close_once(record):
    """Handle a record. After record 5, the first time, close all files."""
    handle(record)
    if record.data == b"5" and is_first("close"):
        close_files()


def send_junk(record):
    """Handle a record. At record 5, the first time, write to the connection to the program."""
    if record.data == b"5" and is_first("junk"):
        for connection in gc.get_objects():
            if isinstance(connection, Connection) and connection.writable:
                connection.send_bytes(b"junk")
    handle(record)


def raise_huge(record):
    raise HugeError


def announce_junk(record):
    """Handle a record. At record 5, the first time, announce a message to the program, and do not send it."""
    if record.data == b"5" and is_first("junk"):
        for connection in gc.get_objects():
            if isinstance(connection, Connection) and connection.writable:
                os.write(connection.fileno(), (1_000_000).to_bytes(4, "big"))
    handle(record)


def stop_afterwards(record):
    """Handle a record. After the first one, stop the process a moment later, so that it is stopped while it waits."""
    note(f"{os.getpid()} {record.key} {len(record.data)}")
    if is_first("stop"):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()


def leave(record):
    sys.exit(7)


def interrupt(record):
    raise KeyboardInterrupt


def return_something(record):
    """Print, and return something that cannot be pickled."""
    print(record)  # noqa: T201 - the handler of a user may print
    handle(record)
    return lambda: record


def work_on(record):
    note(f"{os.getpid()} begins")
    while True:
        sum(range(10_000))


def hold_the_lock(record):
    """Keep all other threads of the process from running."""
    note(f"{os.getpid()} begins")
    ctypes.PyDLL(None).sleep(30)


def fail_to_load(kind):
    match kind:
        case "file":
            raise FileNotFoundError("settings.toml")
        case "end":
            raise EOFError("of the settings")
        case "base":
            raise StrangeError("of the module")
        case "interrupt":
            raise KeyboardInterrupt("in the module")
        case "exit":
            sys.exit(5)
        case "end of the process":
            os._exit(3)
        case "text":
            return "text"
    return handle


class LoadsBadly:
    """A handler that another process cannot load, as if the import of its module failed there."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return fail_to_load, (self.kind,)

    def __call__(self, record):
        handle(record)


def value_of(record):
    note(f"{os.getpid()} {record.key} {record.value} {record.lease.held} {record.lag is not None}")


def always_die(record):
    os._exit(3)
