"""What has the local server stored?

Invariants:

- What is shown is what is stored, past every limit, fault and signature; looking changes nothing.
- It is shown as it is at the server's time: changes that have come due are carried out.
- It can still be looked at when the server has ended.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, final

from shardline.errors import Closed, UsageError
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard
from shardline.server.model.shards import ServerShard
from shardline.server.model.state import ServiceState
from shardline.server.model.streams import ServerStream
from shardline.server.running_server import RunningServer

T = TypeVar("T")


@final
class LocalStream:
    """A stream as the server holds it."""

    def __init__(self, server: RunningServer, name: str) -> None:
        self._server = server
        self.name = name

    def __repr__(self) -> str:
        return f"<LocalStream {self.name}>"

    @property
    def arn(self) -> str:
        return self._look(lambda stream: stream.arn)

    @property
    def status(self) -> str:
        """``CREATING``, ``ACTIVE``, ``UPDATING`` or ``DELETING``."""
        return self._look(lambda stream: stream.status)

    @property
    def shards(self) -> list[Shard]:
        """All shards, closed ones too, in the order of their ids."""
        return self._look(lambda stream: [_shard(shard) for shard in stream.shards.values()])

    @property
    def records(self) -> list[Record]:
        """Every record that is stored, shard by shard, each in its order. Aggregates are not opened."""
        return self._look(lambda stream: [one for shard in stream.shards.values() for one in _records(stream, shard)])

    @property
    def record_count(self) -> int:
        """How many records there are, without making a list of them."""
        return self._look(lambda stream: stream.record_count)

    def _look(self, read: Callable[[ServerStream], T]) -> T:
        def find(state: ServiceState) -> T:
            stream = state.streams.get(self.name)
            if stream is None:
                raise UsageError(f"the stream {self.name} has been deleted")
            return read(stream)

        return look(self._server, find)


@final
class LocalStreams(Mapping[str, LocalStream]):
    """The streams of a server, by name."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def __getitem__(self, name: str) -> LocalStream:
        if name not in self._names():
            raise KeyError(name)
        return LocalStream(self._server, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"<LocalStreams {', '.join(self._names()) or 'none'}>"

    def _names(self) -> list[str]:
        return look(self._server, lambda state: sorted(state.streams))


def look(server: RunningServer, read: Callable[[ServiceState], T]) -> T:
    """What ``read`` finds or does in the service, at the server's time; what that changed is kept.

    Raises:
        Closed: the server was never started.
    """

    def work() -> T:
        assert server.service is not None
        state = server.service.state
        state.advance(server.clock.now())
        found = read(state)
        state.advance(server.clock.now())  # what was begun and takes no time
        server.keep()
        return found

    if server.service is None:
        raise Closed("this LocalKinesis does not run: use 'with' or 'async with', or start()")
    return server.call(work)


def _records(stream: ServerStream, shard: ServerShard) -> list[Record]:
    return [
        Record(
            data=one.data,
            key=one.key if isinstance(one.key, str) else None,
            sequence_number=one.sequence_number,
            shard_id=shard.shard_id,
            arrived_at=one.arrived_at,
            stream=stream.name,
        )
        for one in shard.log.records
    ]


def _shard(shard: ServerShard) -> Shard:
    ending = shard.ending_sequence_number
    return Shard(
        shard_id=shard.shard_id,
        hash_range=shard.hash_range,
        starting_sequence_number=SequenceNumber(shard.starting_sequence_number),
        ending_sequence_number=None if ending is None else SequenceNumber(ending),
        parent_id=shard.parent_id,
        adjacent_parent_id=shard.adjacent_parent_id,
    )
