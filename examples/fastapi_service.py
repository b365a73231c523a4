"""A web service that puts what it is sent, with FastAPI: ``STREAM=orders uvicorn fastapi_service:app``.

The producer starts and ends with the application (its lifespan). Three ways to answer a request:

- ``POST /orders``: 202 when the order is accepted; what becomes of it is the producer's business, and ``on_failure``'s.
- ``POST /orders?wait=true``: 201 with the receipt when it is stored, or 502 with the reason.
- ``GET /health``: 503 when the oldest record has waited for too long.

A misspelt stream, or one that may not be written to, ends the start: no request is taken that could not be served.
On SIGTERM the server takes no more requests and ends the lifespan: everything that was accepted is delivered first.
"""

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from shardline import BufferFull, Delivery, Producer, UsageError

log = logging.getLogger("orders")
TOO_OLD = 20.0  # seconds, of the 30 that a record is tried


def bury(delivery: Delivery) -> None:
    """Called with every order that was given up: it must not get lost without a trace."""
    log.error("lost: %s %r", delivery.key, delivery.data)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Producer]]:
    serializer = lambda order: json.dumps(order).encode()  # noqa: E731 - said where it is used
    async with Producer(os.environ["STREAM"], serializer=serializer, on_failure=bury) as producer:
        await producer.wait_ready(timeout=20)
        yield {"producer": producer}  # as request.state.producer


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def take_order(
    order: dict[str, Any], request: Request, response: Response, *, wait: bool = False
) -> dict[str, Any]:
    producer: Producer = request.state.producer
    try:
        delivery = producer.put_nowait(order, key=str(order["customer"]))
    except BufferFull:
        raise HTTPException(503, "busy: try again later", {"Retry-After": "1"}) from None
    except (KeyError, UsageError) as error:
        raise HTTPException(422, f"no order: {error}") from None
    if not wait:
        response.status_code = 202
        return {"accepted": True}
    outcome = await delivery.outcome()
    if not outcome.delivered:
        raise HTTPException(502, f"{outcome.code}: {outcome.message}")
    response.status_code = 201
    return {"shard": outcome.shard_id, "sequence_number": outcome.sequence_number}


@app.get("/health")
async def health(request: Request, response: Response) -> dict[str, Any]:
    stats = request.state.producer.stats()
    if stats.oldest_waiting > TOO_OLD:
        response.status_code = 503
    return {"outstanding": stats.outstanding, "oldest_waiting": stats.oldest_waiting, "failed": stats.failed_records}
