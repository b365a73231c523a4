"""A plain ASGI application that puts request bodies: ``STREAM=orders uvicorn examples.asgi_producer:app``.

The producer starts and ends with the application. In FastAPI and Starlette, do the same in ``lifespan=``. A request is
answered with 202 when its record is accepted, or with 503 when the buffer is full.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from shardline import BufferFull, Producer, UsageError

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    else:
        await take_order(scope["state"]["producer"], receive, send)


async def lifespan(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Start the producer when the application starts, and close it when the application ends."""
    await receive()  # lifespan.startup
    producer = Producer(os.environ["STREAM"])
    try:
        await producer.start()
    except UsageError as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    scope["state"]["producer"] = producer
    await send({"type": "lifespan.startup.complete"})
    await receive()  # lifespan.shutdown
    await producer.close()
    await send({"type": "lifespan.shutdown.complete"})


async def take_order(producer: Producer, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    try:
        producer.put_nowait(body)
        status = 202
    except UsageError:
        status = 413
    except BufferFull:
        status = 503
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})
