"""The blocking API: the same names as in ``shardline``, for programs without an event loop."""

from shardline.sync.blocking_consumer import Consumer as Consumer
from shardline.sync.blocking_delivery import Delivery as Delivery
from shardline.sync.blocking_producer import Producer as Producer

__all__ = ["Consumer", "Delivery", "Producer"]
