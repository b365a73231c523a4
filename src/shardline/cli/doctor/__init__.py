"""Implements the command ``shardline doctor``."""
