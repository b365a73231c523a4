"""Implements the command ``shardline tail``."""
