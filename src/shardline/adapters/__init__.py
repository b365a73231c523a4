"""Implementations of the protocols in ``shardline.ports``. Adapters may do I/O, and do not know the state machines."""
