"""``shardline demo``."""
