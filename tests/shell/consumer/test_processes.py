"""Does ``run(processes=...)`` keep the order and commit rules, and survive processes that die or hang?"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.shell.blocking import EVERY_API
from tests.shell.consumer import process_handlers as handlers

from shardline import FailurePolicy, HandlerFailed, HandlerProcessFailed, UsageError
from shardline.aio.consumer import handler_processes

pytestmark = pytest.mark.anyio

HASTY = FailurePolicy(attempts=2, backoff=0.01, backoff_max=0.02)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(handlers.FOLDER, str(tmp_path))
    return tmp_path


def is_alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


async def until(condition, seconds=60):
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - another process makes it true
            await anyio.sleep(0.02)


def check_notes(count, again=0):
    """Check that each record was handled, in the order of its key, and that no process is left. Return the lines.

    So many calls got a record that another call had got before.
    """
    lines = [line.split() for line in handlers.notes()]
    assert sorted({int(number) for *_, number in lines}) == list(range(count))
    assert len(lines) == count + again
    by_key = defaultdict(list)
    for _, key, number in lines:
        by_key[key].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "the order of a key"
    assert not any(is_alive(pid) for pid, *_ in lines), "a process is left"
    return lines


@EVERY_API
async def test_the_records_of_a_key_are_handled_in_order_in_several_processes(make_consumer, put):
    await put(range(300), keys=20)
    async with make_consumer(until="latest") as consumer:
        await consumer.run(handlers.handle, processes=2, order="key")
    assert len({pid for pid, *_ in check_notes(300)} - {str(os.getpid())}) == 2


async def test_batches_and_async_handlers_run_in_processes(make_consumer, put):
    await put(range(100), keys=5)
    async with make_consumer(until="latest") as consumer:
        await consumer.run(handlers.handle_batch, processes=2, batch=10, max_wait=0.05)
    batches = [line.split()[2:] for line in handlers.notes()]
    assert sorted(int(number) for batch in batches for number in batch) == list(range(100))
    assert max(map(len, batches)) == 10
    (Path(os.environ[handlers.FOLDER]) / "notes").unlink()
    async with make_consumer(until="latest") as consumer:
        await consumer.run(handlers.handle_later, processes=1)
    check_notes(100)


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
@pytest.mark.parametrize("order", ["key", "shard"])
@pytest.mark.parametrize("kind", ["raise", "base", "memory", "exit", "kill", "segfault", "hang", "fork", "close"])
async def test_a_process_that_dies_or_hangs_is_replaced_and_its_record_comes_again(make_consumer, put, kind, order):
    await put(range(60), keys=6)
    events = []
    handler = partial(handlers.fail_once, kind)
    async with make_consumer(until="latest", sinks=[events.append]) as consumer:
        await consumer.run(handler, processes=2, order=order, policy=HASTY, handler_timeout=1.0)
    check_notes(60)
    (retried,) = [event for event in events if type(event).__name__ == "HandlerRetried"]
    named = {"raise": "UnpicklableError", "base": "StrangeError", "memory": "MemoryError", "fork": "ValueError"}
    assert (retried.error_type, retried.attempts) == (named.get(kind, "HandlerProcessFailed"), 1)


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
@pytest.mark.parametrize("order", ["key", "shard"])
async def test_the_last_record_of_a_process_that_cannot_answer_comes_again(make_consumer, put, order):
    """The handler returned for all records of the message, but the program does not know it of the last one."""
    await put(range(60), keys=6)
    events = []
    async with make_consumer(until="latest", sinks=[events.append]) as consumer:
        await consumer.run(handlers.close_once, processes=2, order=order, policy=HASTY)
    check_notes(60, again=1)
    (retried,) = [event for event in events if type(event).__name__ == "HandlerRetried"]
    assert (retried.error_type, retried.attempts) == ("HandlerProcessFailed", 1)


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_a_process_that_sends_something_else_is_replaced_and_its_record_comes_again(make_consumer, put):
    await put(range(60), keys=6)
    events = []
    async with make_consumer(until="latest", sinks=[events.append]) as consumer:
        await consumer.run(handlers.send_junk, processes=2, order="key", policy=HASTY)
    numbers = [int(line.split()[2]) for line in handlers.notes()]
    assert {*numbers} == {*range(60)}
    (retried,) = [event for event in events if type(event).__name__ == "HandlerRetried"]
    assert retried.error_type == "HandlerProcessFailed"


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_a_process_that_announces_a_message_and_does_not_send_it_is_replaced(make_consumer, put):
    await put(range(60), keys=6)
    events = []
    async with make_consumer(until="latest", sinks=[events.append]) as consumer:
        await consumer.run(handlers.announce_junk, processes=2, order="key", policy=HASTY, handler_timeout=2.0)
    assert {int(line.split()[2]) for line in handlers.notes()} == {*range(60)}
    (retried,) = [event for event in events if type(event).__name__ == "HandlerRetried"]
    assert retried.message == "a handler's process has stopped in the middle of a message: it was killed"


@pytest.mark.parametrize("event_loop_kind", ["asyncio", "trio"], indirect=True)
async def test_a_process_that_stops_while_it_waits_is_replaced_when_a_large_record_comes(make_consumer, client_of):
    events = []
    async with make_consumer(sinks=[events.append]) as consumer, client_of() as client:
        await client.put_records("s", [(b"small", "k")])
        async with anyio.create_task_group() as tasks:
            run = partial(consumer.run, handlers.stop_afterwards, processes=1, policy=HASTY, handler_timeout=2.0)
            tasks.start_soon(run)
            await until(handlers.notes)
            pid = handlers.notes()[0].split()[0]
            await until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            await client.put_records("s", [(bytes(900_000), "k")])  # more than a pipe holds
            await until(lambda: len(handlers.notes()) == 2)
            tasks.cancel_scope.cancel()
    assert [line.split()[1:] for line in handlers.notes()] == [["k", "5"], ["k", "900000"]]
    assert not is_alive(pid)
    (retried,) = [event for event in events if type(event).__name__ == "HandlerRetried"]
    assert retried.message == "a handler's process has stopped in the middle of a message: it was killed"


class FailsOnce:
    """The context of multiprocessing when the system has no file, or no process, left for the second process."""

    def __init__(self, kind, context):
        self.kind, self.context, self.count = kind, context, 0
        self.RawValue = context.RawValue

    def Pipe(self):
        self.count += 1
        if self.kind == "file":
            self.fail()
        return self.context.Pipe()

    def Process(self, **arguments):
        process = self.context.Process(**arguments)
        if self.kind == "process" and self.count == 2:
            process.start = self.fail
        return process

    def fail(self):
        if self.count == 2:
            raise OSError(11, f"no {self.kind} left")


@pytest.mark.parametrize("event_loop_kind", ["asyncio", "trio"], indirect=True)
@pytest.mark.parametrize("kind", ["file", "process"])
async def test_a_process_that_cannot_be_started_is_started_later(make_consumer, put, monkeypatch, kind):
    await put(range(60), keys=6)
    monkeypatch.setattr(handler_processes, "_spawn", FailsOnce(kind, handler_processes._spawn))
    events = []
    policy = FailurePolicy(attempts=3, backoff=0.01, backoff_max=0.02)
    async with make_consumer(until="latest", sinks=[events.append]) as consumer:
        await consumer.run(partial(handlers.fail_once, "exit"), processes=1, order="key", policy=policy)
    check_notes(60)
    assert [event.message for event in events if type(event).__name__ == "HandlerRetried"] == [
        "a handler's process exited with code 3 while it handled records",
        f"a handler's process could not be started: [Errno 11] no {kind} left",
    ]


@pytest.mark.parametrize("event_loop_kind", ["asyncio", "blocking"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("file", UsageError, "cannot import the handler: FileNotFoundError: settings.toml"),
        ("end", UsageError, "cannot import the handler: EOFError: of the settings"),
        ("base", UsageError, "cannot import the handler: StrangeError: of the module"),
        ("interrupt", UsageError, "cannot import the handler: KeyboardInterrupt: in the module"),
        ("exit", UsageError, "cannot import the handler: SystemExit: 5"),
        ("text", UsageError, "cannot import the handler: TypeError: it is a str after it was unpickled"),
        ("end of the process", HandlerProcessFailed, "exited with code 3 before it had imported the handler"),
    ],
)
async def test_a_handler_that_a_process_cannot_load_ends_the_run_with_the_reason(
    make_consumer, put, group, kind, error, message
):
    await put(range(10))
    async with make_consumer(group=group, store="memory:") as consumer:
        with pytest.raises(error, match=message):
            await consumer.run(handlers.LoadsBadly(kind), processes=2)
        with pytest.raises(error, match=message):  # the consumer is as good as before
            await consumer.run(handlers.LoadsBadly(kind), processes=2)
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert len([record async for record in consumer]) == 10


async def test_a_record_that_always_kills_its_process_is_dead_lettered(make_consumer, put):
    await put(range(3), keys=3)
    letters = []

    async def keep(letter):
        letters.append(letter)

    async with make_consumer(until="latest") as consumer:
        await consumer.run(handlers.always_die, processes=1, order="key", policy=HASTY, dead_letter=keep)
    assert sorted(int(letter.records[0].data) for letter in letters) == [0, 1, 2]
    assert all(isinstance(letter.error, HandlerProcessFailed) and letter.attempts == 2 for letter in letters)


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_without_dead_letters_a_record_that_kills_its_process_stops_the_run(make_consumer, put):
    await put(range(1))
    async with make_consumer(until="latest") as consumer:
        with pytest.raises(HandlerFailed) as caught:
            await consumer.run(handlers.always_die, processes=1, policy=HASTY)
    assert "exited with code 3" in str(caught.value.__cause__)


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_an_exception_that_is_too_large_to_send_is_described(make_consumer, put):
    await put(range(1))
    async with make_consumer(until="latest") as consumer:
        with pytest.raises(HandlerFailed) as caught:
            await consumer.run(handlers.raise_huge, processes=1, policy=FailurePolicy(attempts=1))
    cause = caught.value.__cause__
    assert isinstance(cause, HandlerProcessFailed)
    assert re.fullmatch(
        r"the handler raised HugeError, which has 20,\d+,\d+ bytes and is too large to send", str(cause)
    )
    assert "with all its data" in cause.__notes__[0]


@pytest.mark.parametrize("event_loop_kind", ["asyncio", "trio", "blocking"], indirect=True)
async def test_an_exit_in_a_process_ends_the_run(make_consumer, put):
    await put(range(1))
    async with make_consumer(until="latest") as consumer:
        with pytest.raises(SystemExit) as caught:
            await consumer.run(handlers.leave, processes=1)
    assert caught.value.code == 7


@pytest.mark.parametrize("event_loop_kind", ["asyncio", "trio", "blocking"], indirect=True)
async def test_an_interrupt_in_a_process_ends_the_run(make_consumer, put):
    await put(range(1))
    async with make_consumer(until="latest") as consumer:
        with pytest.raises(KeyboardInterrupt):
            await consumer.run(handlers.interrupt, processes=1)


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_a_handler_may_print_and_return_anything(make_consumer, put):
    await put(range(20), keys=4)
    async with make_consumer(until="latest") as consumer:
        await consumer.run(handlers.return_something, processes=2, order="key")
    check_notes(20)


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_a_handler_that_another_process_cannot_import_is_refused(make_consumer, put):
    class Local:
        def handle(self, record):
            pass

    async with make_consumer(until="latest") as consumer:
        for handler in (lambda _: None, Local().handle, partial(print, lambda: None)):
            with pytest.raises(UsageError, match="must be importable"):
                await consumer.run(handler, processes=1)
        for settings in ({"concurrency": 2, "processes": 2}, {"processes": 0}, {"handler_timeout": 1.0}):
            with pytest.raises(UsageError):
                await consumer.run(handlers.handle, **settings)
    async with make_consumer(until="latest", deserializer=lambda data: data) as consumer:
        with pytest.raises(UsageError, match="must be importable"):
            await consumer.run(handlers.handle, processes=1)
    async with make_consumer(until="latest", ack="manual") as consumer:
        with pytest.raises(UsageError, match="ack='auto'"):
            await consumer.run(handlers.handle, processes=1)


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_the_process_deserializes_the_records_and_large_ones_travel_alone(make_consumer, client_of):
    rows = [(json.dumps("x" * 700_000).encode(), f"k{number}") for number in range(4)]
    async with client_of() as client:
        await client.put_records("s", rows)
    async with make_consumer(until="latest", deserializer=json.loads) as consumer:
        await consumer.run(handlers.value_of, processes=1)
    lines = [line.split() for line in handlers.notes()]
    assert [(len(value), held, lag) for *_, value, held, lag in lines] == [(700_000, "True", "True")] * 4


async def test_cancelling_the_run_kills_the_processes(make_consumer, put):
    await put(range(10))
    async with make_consumer() as consumer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(consumer.run, handlers.work_on, processes=2))
            await until(lambda: len(handlers.notes()) >= 2)
            tasks.cancel_scope.cancel()
        assert not any(is_alive(line.split()[0]) for line in handlers.notes())


PROGRAM = """
import sys
from shardline import Credentials
from shardline.sync import Consumer
from tests.shell.consumer import process_handlers as handlers

def handle(record):
    handlers.{handler}(record)

def main():
    place = {{"endpoint_url": sys.argv[1], "region": "us-east-1", "credentials": Credentials("a", "b")}}
    with Consumer("s", **place) as consumer:
        consumer.run(handle, processes=2, handler_timeout=600)

{guard}main()
"""


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
@pytest.mark.parametrize(
    ("number", "handler"),
    [
        (signal.SIGINT, "work_on"),
        (signal.SIGTERM, "work_on"),
        (signal.SIGKILL, "work_on"),
        pytest.param(
            signal.SIGKILL,
            "hold_the_lock",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills such a process at once"),
        ),
    ],
)
async def test_no_process_outlives_the_program(kinesis, put, folder, number, handler):
    """The signal goes to the whole process group, as Ctrl-C does, except SIGKILL, which only the parent gets."""
    await put(range(10))
    path = folder / "program.py"
    path.write_text(PROGRAM.format(handler=handler, guard="if __name__ == '__main__':\n    "))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    command = [sys.executable, str(path), kinesis.endpoint_url]
    program = subprocess.Popen(  # noqa: ASYNC220
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    await until(lambda: len(handlers.notes()) >= 2 or program.poll() is not None)
    pids = [line.split()[0] for line in handlers.notes()]
    assert len(pids) == 2
    if number == signal.SIGKILL:
        program.kill()
    else:
        os.killpg(program.pid, number)
    errors = (await anyio.to_thread.run_sync(partial(program.communicate, timeout=40)))[1]
    await until(lambda: not any(map(is_alive, pids)), 10)
    assert errors.count("Traceback") == (number == signal.SIGINT), errors
    assert "handler_child" not in errors


HANDLING = """
import sys
from shardline import ConsumerConfig, Credentials
from shardline.sync import Consumer
from tests.shell.consumer import process_handlers as handlers

def main():
    place = {"endpoint_url": sys.argv[1], "region": "us-east-1", "credentials": Credentials("a", "b")}
    config = ConsumerConfig(lease_duration=2.0, checkpoint_interval=0.05)
    with Consumer("s", group="g", store=sys.argv[2], config=config, **place) as consumer:
        print("runs", flush=True)
        consumer.run(handlers.handle_slowly, processes=4, order="key")

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("handled", [0, 1, 30])
async def test_a_signal_at_any_moment_loses_no_record(make_consumer, kinesis, put, folder, number, handled):
    """The signal comes while the processes start, at the first record, or in the midst of the records."""
    await put(range(300), keys=20)
    path, store = folder / "program.py", f"sqlite:///{folder}/leases.db"
    path.write_text(HANDLING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    command = [sys.executable, str(path), kinesis.endpoint_url, store]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    program = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)  # noqa: ASYNC220
    assert await anyio.to_thread.run_sync(program.stdout.readline) == "runs\n"
    await until(lambda: len(handlers.notes()) >= handled or program.poll() is not None)
    os.killpg(program.pid, number)
    errors = (await anyio.to_thread.run_sync(partial(program.communicate, timeout=40)))[1]
    assert program.returncode == -number, errors
    assert errors.count("\nKeyboardInterrupt") == (number == signal.SIGINT), (
        "only the program is interrupted\n" + errors
    )
    lines = [line.split() for line in handlers.notes()]
    await until(lambda: not any(is_alive(pid) for pid, *_ in lines), 10)
    async with make_consumer(group="g", store=store, until="latest") as consumer:
        rest = [int(record.data) async for record in consumer]
    assert {*rest} | {int(number) for *_, number in lines} == {*range(300)}


@pytest.mark.parametrize("event_loop_kind", ["asyncio"], indirect=True)
async def test_a_program_without_a_guard_is_told_so(kinesis, put, folder):
    await put(range(1))
    path = folder / "program.py"
    path.write_text(PROGRAM.format(handler="work_on", guard=""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    command = [sys.executable, str(path), kinesis.endpoint_url]
    done = await anyio.to_thread.run_sync(
        partial(subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    )
    assert done.returncode == 1
    assert "if __name__ ==" in done.stderr
    assert done.stderr.count("Traceback (most") == 1, done.stderr
