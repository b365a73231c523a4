"""``shardline groups``."""
