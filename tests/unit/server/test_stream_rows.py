"""Tests of ``server.stream_rows``."""

import msgspec

from shardline.server.model.shards import ServerShard
from shardline.server.stream_rows import ShardRow, StreamRow, make_stream_row, restore_stream

from .conftest import POLICY


def members(kind):
    return {field.name for field in msgspec.structs.fields(kind)}


def test_every_attribute_of_a_stream_is_written_or_known_to_be_rebuilt(server):
    server.create()
    stream = server.service.state.streams["s"]
    anew = {"arn", "is_deleted", "_limits", "_records_held", "open_shards", "_endings", "_sweep_at"}
    assert set(vars(stream)) - anew == members(StreamRow) - {"channels", "consumers"}
    shard_anew = {"shard_id", "hash_range", "child_ids", "log", "is_unlimited", "numbering"}
    rates = {name for name in ServerShard.__slots__ if name.startswith("_")}
    assert set(ServerShard.__slots__) - shard_anew - rates == members(ShardRow) - {
        "start",
        "end",
        "first",
        "began",
        "layout",
    }


def test_what_was_written_and_put_back_is_written_the_same_again(make_server):
    server, other = make_server().create(shards=3, Tags={"a": "b"}), make_server()
    server.split(1, at=int(server.shards()[1]["HashKeyRange"]["StartingHashKey"]) + 1000)
    server.pass_time(3)
    server.merge(0, 3)
    consumer = server.register()
    for arn in (server.arn(), consumer):
        server.call("PutResourcePolicy", ResourceARN=arn, Policy=POLICY)
    server.call("UpdateShardCount", StreamName="s", TargetShardCount=4, ScalingType="UNIFORM_SCALING")
    written = make_stream_row(server.service.state, server.service.state.streams["s"])
    told = msgspec.json.decode(msgspec.json.encode(written), type=StreamRow)
    assert told == written
    stream = restore_stream(other.service.state, told)
    assert make_stream_row(other.service.state, stream) == written
    children = {one.shard_id: one.child_ids for one in stream.shards.values()}
    assert children == {one.shard_id: one.child_ids for one in server.service.state.streams["s"].shards.values()}
    assert [one.shard_id for one in stream.open_shards] == [
        one.shard_id for one in server.service.state.streams["s"].open_shards
    ]
