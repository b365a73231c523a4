"""The SQL statements for the positions that ``exactly_once`` keeps in the user's database.

``shardline_positions`` has a row per shard: the fencing token of its last owner, and the watermark. ``shardline_done``
has a row per record that is done beyond the watermark. PostgreSQL and SQLite get the same statements, except for the
types, the locks and the parameter markers.

Invariants:

- Two statements never wait for each other: a transaction locks only one row of ``shardline_positions``, after all its
  other locks.
- A claim waits for the transactions of the earlier owner that have locked the row. After the claim, no transaction of
  that owner can be committed.
- Sequence numbers are text without leading zeros, and compare by their length and then by their digits.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, final

from shardline.model.sequence import SequenceNumber

Statement: TypeAlias = tuple[str, tuple[Any, ...]]

_ROWS_MAX: Final = 1_000  # SQLite takes 32,766 parameters in a statement (https://www.sqlite.org/limits.html)

_POSITIONS: Final = """
CREATE TABLE IF NOT EXISTS shardline_positions (
    consumer_group {text} NOT NULL,
    stream {text} NOT NULL,
    shard_id {text} NOT NULL,
    token bigint NOT NULL,
    sequence_number {text} NOT NULL,
    sub_sequence integer NOT NULL,
    updated_at {time} NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (consumer_group, stream, shard_id)
)"""
_DONE: Final = """
CREATE TABLE IF NOT EXISTS shardline_done (
    consumer_group {text} NOT NULL,
    stream {text} NOT NULL,
    shard_id {text} NOT NULL,
    sequence_number {text} NOT NULL,
    sub_sequence integer NOT NULL,
    PRIMARY KEY (consumer_group, stream, shard_id, sequence_number, sub_sequence)
)"""
_OF_SHARD: Final = "consumer_group = ? AND stream = ? AND shard_id = ?"
_CLAIM: Final = """
INSERT INTO shardline_positions (consumer_group, stream, shard_id, token, sequence_number, sub_sequence)
VALUES (?, ?, ?, ?, '0', -1)
ON CONFLICT (consumer_group, stream, shard_id)
DO UPDATE SET token = excluded.token WHERE shardline_positions.token <= excluded.token"""
_READ: Final = f"SELECT token, sequence_number, sub_sequence FROM shardline_positions WHERE {_OF_SHARD}"  # noqa: S608 - constants
_READ_DONE: Final = f"SELECT sequence_number, sub_sequence FROM shardline_done WHERE {_OF_SHARD}"  # noqa: S608 - constants
_ADD_DONE: Final = """
INSERT INTO shardline_done (consumer_group, stream, shard_id, sequence_number, sub_sequence) VALUES {rows}
ON CONFLICT DO NOTHING RETURNING sub_sequence"""
_MOVE: Final = f"""
UPDATE shardline_positions SET sequence_number = ?, sub_sequence = ?, updated_at = CURRENT_TIMESTAMP
WHERE {_OF_SHARD}"""  # noqa: S608 - constants
_PRUNE: Final = f"""
DELETE FROM shardline_done
WHERE {_OF_SHARD} AND (length(sequence_number), sequence_number, sub_sequence) <= (?, ?, ?)"""  # noqa: S608 - constants


@final
class ShardKey(NamedTuple):
    """Identifies the row of a shard."""

    group: str
    stream: str
    shard_id: str


@final
class PositionTables:
    """Builds the SQL statements for PostgreSQL or SQLite."""

    def __init__(self, *, is_postgres: bool) -> None:
        self._is_postgres = is_postgres

    def find(self) -> Statement:
        """Count how many of our two tables exist."""
        if self._is_postgres:
            return self._statement(
                "SELECT num_nonnulls(to_regclass('shardline_positions'), to_regclass('shardline_done'))"
            )
        return self._statement(
            "SELECT count(*) FROM sqlite_master WHERE name IN ('shardline_positions', 'shardline_done')"
        )

    def create(self) -> list[Statement]:
        """Create the tables. Other workers may do the same at the same time."""
        types = (
            {"text": 'text COLLATE "C"', "time": "timestamptz"}
            if self._is_postgres
            else {"text": "text", "time": "text"}
        )
        tables = [self._statement(table.format(**types)) for table in (_POSITIONS, _DONE)]
        # PostgreSQL may fail if two sessions create a table of the same name, although both say IF NOT EXISTS.
        lock = [self._statement("SELECT pg_advisory_xact_lock(hashtext('shardline_positions'))")]
        return [*lock, *tables] if self._is_postgres else tables

    def claim(self, key: ShardKey, token: int) -> Statement:
        """Store the token, unless the row already has a greater one."""
        return self._statement(_CLAIM, *key, token)

    def read(self, key: ShardKey) -> Statement:
        return self._statement(_READ, *key)

    def read_done(self, key: ShardKey) -> Statement:
        """Read the records that are done beyond the watermark."""
        return self._statement(_READ_DONE, *key)

    def lock(self, key: ShardKey, *, is_exclusive: bool) -> Statement:
        """Read the row, and keep others from claiming the shard until our transaction has ended.

        Args:
            key: identifies the shard.
            is_exclusive: also exclude our own transactions for records of the shard that have other partition keys,
                because this transaction moves the watermark.
        """
        how = " FOR NO KEY UPDATE" if is_exclusive else " FOR SHARE"
        return self._statement(_READ + how if self._is_postgres else _READ, *key)

    def add_done(self, key: ShardKey, records: Sequence[SequenceNumber]) -> list[Statement]:
        """Add records beyond the watermark. The statement returns one row for each record that was not in the table
        yet.
        """
        parts = [records[first : first + _ROWS_MAX] for first in range(0, len(records), _ROWS_MAX)]
        return [
            self._statement(
                _ADD_DONE.format(rows=", ".join(["(?, ?, ?, ?, ?)"] * len(part))),
                *[value for record in part for value in (*key, str(record), record.sub_sequence)],
            )
            for part in parts
        ]

    def move(self, key: ShardKey, through: SequenceNumber) -> Statement:
        """Move the watermark of the shard to this record."""
        return self._statement(_MOVE, str(through), through.sub_sequence, *key)

    def prune(self, key: ShardKey, through: SequenceNumber) -> Statement:
        """Remove the rows of the records that the watermark has passed."""
        return self._statement(_PRUNE, *key, len(str(through)), str(through), through.sub_sequence)

    def _statement(self, text: str, *parameters: object) -> Statement:
        return text.replace("?", "%s") if self._is_postgres else text, parameters


def parse_numbers(rows: Iterable[Sequence[Any]]) -> list[SequenceNumber]:
    """Return the sequence numbers that the rows contain. The last two columns of each row are the sequence number and
    the sub-sequence number of a record.
    """
    return [SequenceNumber.parse(row[-2], row[-1]) for row in rows]
