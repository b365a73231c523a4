"""What goes into a stream, and what does a reader hand to the user?"""

from typing import NamedTuple, final

from shardline.model.sequence import SequenceNumber


@final
class Entry(NamedTuple):
    """One entry of a PutRecords request: a plain record, or an aggregate."""

    data: bytes
    key: str | None
    """The partition key. ``None`` sends none: for streams under AUTO record distribution."""
    explicit_hash_key: str | None = None


@final
class Record(NamedTuple):
    """One user record: plain, or taken out of an aggregate. A tuple, for it is made once per record read."""

    data: bytes
    key: str | None
    """The partition key. ``None`` where the service keeps none (AUTO record distribution)."""
    explicit_hash_key: str | None = None
    sequence_number: str | None = None
    """The service's number; records of one aggregate share it."""
    sub_sequence: int = 0
    """The place inside the aggregate, from 0; 0 for a plain record."""
    shard_id: str | None = None
    arrived_at: float | None = None
    """When the service took it, approximately: seconds since 1970."""
    stream: str | None = None
    aggregated: bool = False
    """Whether it came out of an aggregate."""

    @property
    def order(self) -> SequenceNumber:
        """Its place in the shard: comparable with that of every record of the same shard."""
        return SequenceNumber.parse(self.sequence_number or "0", self.sub_sequence)
