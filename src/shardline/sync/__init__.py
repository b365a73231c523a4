"""The blocking facade: the same names as ``shardline``'s, for threads."""

from shardline.sync.consumer import Consumer as Consumer
from shardline.sync.delivery import Delivery as Delivery
from shardline.sync.producer import Producer as Producer

__all__ = ["Consumer", "Delivery", "Producer"]
