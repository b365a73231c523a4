"""A FastAPI service that puts orders into a stream: ``STREAM=orders uvicorn fastapi_service:app``.

The producer starts and ends with the application (its lifespan). The service answers:

- ``POST /orders``: 202 when the order is accepted. If its delivery fails later, ``on_failure`` is called.
- ``POST /orders?wait=true``: 201 with the receipt when the order is stored, or 502 with the reason.
- ``GET /health``: 503 when the oldest record has waited too long.

If the stream does not exist or may not be written to, the start fails, so that no request is accepted in vain. On
SIGTERM the server stops accepting requests and ends the lifespan, which first delivers every accepted order.
"""

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from shardline import BufferFull, Delivery, Producer, Undelivered, UsageError

log = logging.getLogger("orders")
Order = dict[str, Any]
TOO_OLD = 20.0  # seconds; a record is retried for 30 (record_ttl)


def encode(order: Order) -> bytes:
    return json.dumps(order).encode()


def log_failure(delivery: Delivery) -> None:
    """Log an order that was not delivered, so that it is not lost silently."""
    log.error("lost: %s %r", delivery.key, delivery.data)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Producer[Order]]]:
    async with Producer(os.environ["STREAM"], serializer=encode, on_failure=log_failure) as producer:
        await producer.wait_ready(timeout=20)
        yield {"producer": producer}  # available as request.state.producer


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def take_order(order: Order, request: Request, response: Response, *, wait: bool = False) -> dict[str, Any]:
    producer: Producer[Order] = request.state.producer
    try:
        delivery = producer.put_nowait(order, key=str(order["customer"]))
    except BufferFull:
        raise HTTPException(503, "busy: try again later", {"Retry-After": "1"}) from None
    except (KeyError, UsageError) as error:
        raise HTTPException(422, f"invalid order: {error}") from None
    if not wait:
        response.status_code = 202
        return {"accepted": True}
    outcome = await delivery.outcome()
    if isinstance(outcome, Undelivered):
        raise HTTPException(502, f"{outcome.code}: {outcome.message}")
    response.status_code = 201
    return {"shard": outcome.shard_id, "sequence_number": outcome.sequence_number}


@app.get("/health")
async def health(request: Request, response: Response) -> dict[str, Any]:
    stats = request.state.producer.stats()
    if stats.oldest_waiting > TOO_OLD:
        response.status_code = 503
    return {"outstanding": stats.outstanding, "oldest_waiting": stats.oldest_waiting, "failed": stats.failed_records}
