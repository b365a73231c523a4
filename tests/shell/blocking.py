"""Lets a test of the async API also run on the blocking API."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from shardline import sync

EVERY_API = pytest.mark.parametrize("event_loop_kind", ["asyncio", "uvloop", "trio", "blocking"], indirect=True)


def kind_for(request, api, blocking):
    """Return the class for this test. The blocking class has its own event loop; the test itself runs on asyncio."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    return blocking if parameters.get("event_loop_kind") == "blocking" else api


async def in_thread(threads, call, *arguments, **settings):
    return await asyncio.get_running_loop().run_in_executor(threads, partial(call, *arguments, **settings))


class Blocking:
    """A blocking object with the methods of the async one. One thread iterates and leaves the block; others do the
    rest.
    """

    waiting = ("start", "close", "wait_ready")

    def __init__(self, inner):
        self._inner = inner
        self._iterating, self._others = ThreadPoolExecutor(1), ThreadPoolExecutor()
        for name in self.waiting:
            setattr(self, name, partial(self._wait_for, getattr(inner, name)))

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __repr__(self):
        return repr(self._inner)

    async def __aenter__(self):
        await in_thread(self._iterating, self._inner.start)
        return self

    async def __aexit__(self, *error):
        await in_thread(self._iterating, self._inner.__exit__, *error)

    async def _wait_for(self, call, *arguments, **settings):
        return await in_thread(self._others, call, *arguments, **settings)


class BlockingConsumer(Blocking):
    waiting = (
        *Blocking.waiting,
        "run",
        "commit",
        "pause",
        "resume",
        "seek",
        "reconfigure",
        "add_stream",
        "remove_stream",
    )

    def __init__(self, *arguments, **settings):
        super().__init__(sync.Consumer(*arguments, **settings))

    def __aiter__(self):
        return self._asking(iter(self._inner))

    def batches(self, *arguments, **settings):
        return self._asking(self._inner.batches(*arguments, **settings))

    async def _asking(self, iterator):
        while (handed := await in_thread(self._iterating, next, iterator, None)) is not None:
            yield handed


class BlockingProducer(Blocking):
    waiting = (*Blocking.waiting, "put", "put_many", "flush", "reconfigure")

    def __init__(self, *arguments, **settings):
        super().__init__(sync.Producer(*arguments, **settings))

    def put_nowait(self, *arguments, **settings):
        return AwaitedDelivery(self._inner.put_nowait(*arguments, **settings))

    async def _wait_for(self, call, *arguments, **settings):
        made = await super()._wait_for(call, *arguments, **settings)
        if isinstance(made, list):
            return [AwaitedDelivery(one) for one in made]
        return AwaitedDelivery(made) if isinstance(made, sync.Delivery) else made


class AwaitedDelivery:
    """A delivery of the blocking producer that can be awaited."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __eq__(self, other):
        return self._inner is other._inner

    __hash__ = None

    def __await__(self):
        return in_thread(None, self._inner.result, 20).__await__()

    async def outcome(self):
        return await in_thread(None, self._inner.outcome, 20)
