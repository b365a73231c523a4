"""Implementations of the ports. They may do I/O, and know no state machine."""
