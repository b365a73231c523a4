"""``shardline local``."""
