"""Lease stores: where a group keeps who reads which shard, and how far it came."""
