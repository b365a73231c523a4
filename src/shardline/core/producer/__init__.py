"""The state machines of the producer, from ``put`` to the receipt. ``machine`` composes them."""
