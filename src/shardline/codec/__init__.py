"""Encoders and decoders between bytes and values. They do no I/O."""
