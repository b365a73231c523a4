"""Ports made real: what does I/O, and knows no machine."""
