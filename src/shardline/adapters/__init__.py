"""Implementations of the ports. They may do I/O and do not know the state machines."""
