"""Does Ctrl-C reach the program, and never a task of ours (KI1)?"""

import signal

import anyio
import pytest
import trio

from shardline.aio.host import spawn
from shardline.aio.interrupts import uninterrupted


async def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


async def press_ctrl_c_deeper():
    """In a task that the call started by itself, as the race of two connections does."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(press_ctrl_c)


@pytest.mark.parametrize("call", [press_ctrl_c, press_ctrl_c_deeper])
def test_the_main_task_is_interrupted_and_the_host_lives_on(call):
    lived = []

    async def host():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(uninterrupted, call)
        lived.append("through it")

    async def main():
        spawn(host())
        try:
            await trio.sleep(5)
        finally:
            with trio.CancelScope(shield=True):
                while not lived:  # noqa: ASYNC110 - nothing tells
                    await trio.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert lived == ["through it"]


@pytest.mark.anyio
async def test_what_a_call_raises_is_passed_on(anyio_backend):
    async def fail(what):
        raise what

    with pytest.raises(ValueError, match="mine"):
        await uninterrupted(fail, ValueError("mine"))
