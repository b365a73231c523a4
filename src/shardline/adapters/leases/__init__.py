"""Lease stores. They hold the owner and the checkpoint of each shard of a consumer group."""
