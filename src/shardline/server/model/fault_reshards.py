"""How does a stream reshard out of the blue?

At once: no state in between, no delay, no limit. What cannot be is told, and nothing changes.
"""

from shardline.server.model.fault_rules import Reshard
from shardline.server.model.shards import ServerShard
from shardline.server.model.streams import ServerStream


def carry_out(rule: Reshard, stream: ServerStream, at: float, now: float) -> str | None:
    """Change the shards as of ``at``; give why that cannot be, if so."""
    # not before the shards it ends began, though another change may have come between `at` and `now`
    when = min(now, max([at, *(shard.created_at for shard in stream.open_shards)]))
    if rule.action == "scale":
        assert rule.shards is not None, "checked with the rule"
        stream.scale(rule.shards, when)
        return None
    shard = _chosen(rule, stream)
    if shard is None:
        return f"there is no open shard {rule.shard_id or ''} to {rule.action} in stream {stream.name}"
    if rule.action == "split":
        start, end = shard.hash_range.start, shard.hash_range.end
        stream.split(shard, start + (end - start + 1) // 2, when)
    else:
        stream.merge(shard, _upper(shard, stream), when)
    return None


def _chosen(rule: Reshard, stream: ServerStream) -> ServerShard | None:
    last = stream.open_shards[-1]
    for shard in stream.open_shards:
        can_split = shard.hash_range.start < shard.hash_range.end
        fits = can_split if rule.action == "split" else shard is not last
        if fits and rule.shard_id in {None, shard.shard_id}:
            return shard
    return None


def _upper(shard: ServerShard, stream: ServerStream) -> ServerShard:
    return stream.open_shards[stream.open_shards.index(shard) + 1]
