"""Bytes to values and back: pure functions, no state that outlives a call."""
