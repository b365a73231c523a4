"""Implements the command ``shardline local``."""
