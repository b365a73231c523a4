"""Serves the web console beside ``shardline local`` and ``shardline demo``.

The ``console`` package uses functions of the command line, so the command line does not import it at the top of a
module. It is imported by its name, and only if the console is requested, so that other commands do not spend time on
it.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from anyio.from_thread import start_blocking_portal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from shardline.aio.client import Client
    from shardline.testing.local_kinesis import LocalKinesis

_MODULE: Final = "shardline.console.console_command"
_CALLS_PER_MINUTE: Final = 6_000  # calls to a local server are free


@asynccontextmanager
async def console_for(
    kinesis: "LocalKinesis", client: "Client", stores: "list[Any]", **how: Any
) -> "AsyncGenerator[str]":
    """Serve the console for a local Kinesis while the block runs. Yield the console's address, which contains a secret.

    Do not share ``client``: the console counts and delays all calls that are made through it.
    """
    serving: Callable[..., AbstractAsyncContextManager[str]] = import_module(_MODULE).serving
    settings = {"place": kinesis.endpoint_url, "calls_per_minute": _CALLS_PER_MINUTE, "kinesis": kinesis} | how
    async with client, serving(client, stores, **settings) as url:
        yield url


@contextmanager
def console_in_thread(kinesis: "LocalKinesis", stores: "list[Any]", **how: Any) -> Generator[str]:
    """Serve the console in its own thread while the block runs. Yield the console's address."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(console_for(kinesis, kinesis.client(), stores, **how)) as url,
    ):
        yield url
