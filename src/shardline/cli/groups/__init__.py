"""Implements the command ``shardline groups``."""
