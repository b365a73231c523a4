"""The producer's machines: from ``put`` to receipt, without I/O. ``machine`` composes them all."""
