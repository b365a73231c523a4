"""Shows the streams that the local server has stored.

Invariants:

- Reading bypasses limits, faults and signatures, and changes nothing that is stored.
- Changes that are due at the server's time are carried out before reading.
- The streams can still be read after the server has stopped.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, final

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
    """A stream that the server has stored."""

    def __init__(self, server: Any, name: str) -> None:
        self._server: RunningServer = server
        self.name = name

    def __repr__(self) -> str:
        return f"<LocalStream {self.name}>"

    @property
    def arn(self) -> str:
        return self._read(lambda stream: stream.arn)

    @property
    def status(self) -> str:
        """``CREATING``, ``ACTIVE``, ``UPDATING`` or ``DELETING``."""
        return self._read(lambda stream: stream.status)

    @property
    def shards(self) -> list[Shard]:
        """All shards, including closed ones, in the order of their ids."""
        return self._read(lambda stream: [_shard(shard) for shard in stream.shards.values()])

    @property
    def records(self) -> list[Record]:
        """All stored records, shard by shard, in the order of their sequence numbers. Aggregates are not opened."""
        return self._read(lambda stream: [rec for shard in stream.shards.values() for rec in _records(stream, shard)])

    @property
    def record_count(self) -> int:
        """The number of stored records. This is cheaper than ``len(records)``."""
        return self._read(lambda stream: stream.record_count)

    def _read(self, read: Callable[[ServerStream], T]) -> T:
        def find(state: ServiceState) -> T:
            stream = state.streams.get(self.name)
            if stream is None:
                raise UsageError(f"the stream {self.name} has been deleted")
            return read(stream)

        return access_state(self._server, find)


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
        return access_state(self._server, lambda state: sorted(state.streams))


def access_state(server: RunningServer, access: Callable[[ServiceState], T]) -> T:
    """Call ``access`` with the state of the service at the server's time, save its changes, and return its result.

    Raises:
        Closed: the server was never started.
    """

    def work() -> T:
        assert server.service is not None
        state = server.service.state
        state.advance(server.clock.now())
        result = access(state)
        state.advance(server.clock.now())  # completes changes that have no delay
        server.keep()
        return result

    if server.service is None:
        raise Closed("this LocalKinesis is not running: use 'with' or 'async with', or call start()")
    return server.call(work)


def _records(stream: ServerStream, shard: ServerShard) -> list[Record]:
    return [
        Record(
            data=record.data,
            key=record.key if isinstance(record.key, str) else None,
            sequence_number=record.sequence_number,
            shard_id=shard.shard_id,
            arrived_at=record.arrived_at,
            stream=stream.name,
        )
        for record in shard.log.records
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
