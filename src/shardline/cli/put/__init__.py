"""``shardline put``."""
