"""Implements the command ``shardline demo``."""
