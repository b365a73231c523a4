"""``shardline streams``."""
