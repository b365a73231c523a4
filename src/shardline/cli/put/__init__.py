"""Implements the command ``shardline put``."""
