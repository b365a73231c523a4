"""``shardline tail``."""
