"""``shardline doctor``."""
