"""Implements the command ``shardline consume``."""
