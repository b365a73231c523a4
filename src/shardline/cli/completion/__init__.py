"""Implements the command ``shardline completion``, and the completion of stream names."""
