"""``shardline consume``."""
