"""Lease stores. A lease store holds the owner and the checkpoint of each shard of a consumer group."""
