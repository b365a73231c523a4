"""Implements the command ``shardline streams``."""
