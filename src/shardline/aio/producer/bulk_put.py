"""Validates the records of one ``put_many`` call and collects the deliveries for its caller.

Invariants:

- P6, P7: a collection is validated as a whole before its first record is accepted. Any other iterable is taken record
  by record: each record is validated when it is taken, and accepted before the next one is taken.
- The deliveries are in the order of the records. With ``on_invalid="fail"``, an invalid record also has a delivery,
  which has failed with the code ``InvalidRecord``.
- If ``put_many`` raises a ``ShardlineError``, its ``deliveries`` are those of the records before the one that was not
  accepted. So the caller knows which records were accepted, and where to continue.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeGuard, TypeVar, cast, final

from shardline.aio.producer.delivery import SettledRecord
from shardline.aio.producer.put_chain import PutChain
from shardline.aio.producer.trace_headers import TRACED_MAX_BYTES
from shardline.aio.producer.validation import Serializer, check_item, fields_of, is_plain, make_plain
from shardline.codec.aggregation import encode_tags
from shardline.codec.value_packing import Packing
from shardline.core.producer.aggregate import WRAP_MAX_BYTES
from shardline.core.producer.intake import Intake
from shardline.core.producer.producer_record import INVALID, Undelivered
from shardline.core.setting_checks import check_choice
from shardline.errors import ShardlineError, UsageError
from shardline.model.headers import HeadersToPut, check_headers
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH

_T = TypeVar("_T")
Item: TypeAlias = (
    tuple[str | None, _T]
    | tuple[str | None, _T, str | None]
    | tuple[str | None, _T, HeadersToPut]
    | tuple[str | None, _T, str | None, HeadersToPut | None]
)
"""A record for ``put_many``: (key or None, data), optionally followed by an explicit hash key, headers or both."""

OnInvalid: TypeAlias = Literal["raise", "fail"]
"""The action for an invalid record: ``put_many`` raises, or the delivery of the record fails."""

_D = TypeVar("_D", bound=SettledRecord)


@final
class BulkPut(Generic[_D]):
    """One call of ``put_many``.

    Args:
        make: the class of the deliveries.
        intake: takes the invalid records, which the host reports.
        serializer: converts the data of a record to bytes.
        chain: the middleware, if there is any. The chain also calls the serializer.
        packing: the format that the records must fit, if the producer packs.
        tags_of: validates the headers of a record, and returns them in the encoded form.
        stamp: a stamp like the one that each record will get, if the producer stamps its records.
        on_invalid: see ``put_many``.
        extra_ttl: how much longer than ``record_ttl`` the records live.
        wake: wakes the host.
    """

    def __init__(
        self,
        make: type[_D],
        *,
        intake: Intake,
        serializer: Serializer | None,
        chain: PutChain | None,
        packing: Packing | None,
        tags_of: Callable[[Any], bytes],
        stamp: bytes,
        on_invalid: OnInvalid,
        extra_ttl: float,
        wake: Callable[[], None],
    ) -> None:
        check_choice("on_invalid", on_invalid, "raise", "fail")
        self._make = make
        self._intake = intake
        self._serializer = serializer
        self._chain = chain
        self._packing = packing
        self._tags_of = tags_of
        self._stamp = stamp
        self._fails_invalid = on_invalid == "fail"
        self._extra_ttl = extra_ttl
        self._wake = wake
        self.deliveries: list[_D] = []
        """The deliveries of the records so far, in their order."""
        self.pending: _D | None = None
        """The first delivery of a collection that is not accepted yet. The producer sets this."""

    @contextmanager
    def reporting(self) -> Generator[None, None, None]:
        """Add the deliveries to an error that the block raises."""
        try:
            yield
        except ShardlineError as error:
            if not error.deliveries:  # an error of the user's generator may already carry deliveries
                places = [place for place, known in enumerate(self.deliveries) if known is self.pending]
                error.deliveries = tuple(self.deliveries[: places[0]] if places else self.deliveries)
            raise

    def check_all(self, records: Collection[Any]) -> list[_D]:
        """Validate all records. Return the deliveries of the valid ones. The caller puts them.

        Raises:
            UsageError: a record is invalid, and ``on_invalid`` is ``"raise"``.
        """
        make: Callable[..., _D] = self._make
        max_bytes = self._intake.record_max_bytes
        tags = self._tags_of(None)  # the headers of a trace, which are the same for all records
        checked: list[_D] = []
        if tags:
            make, max_bytes = partial(self._make, tags=tags), min(max_bytes, TRACED_MAX_BYTES)
        elif self._serializer is None and _is_list(records):
            checked = make_plain(self._make, records, max_bytes - WRAP_MAX_BYTES, PARTITION_KEY_MAX_LENGTH)
        for place, record in enumerate(islice(records, len(checked), None), len(checked)):
            if self._serializer is None and is_plain(record, max_bytes):  # the common case, with few function calls
                checked.append(make(record[1], record[0], None, 0.0))
            else:
                checked.append(self._checked(place, record))
        if self._extra_ttl:
            for delivery in checked:
                delivery.extra_ttl = self._extra_ttl
        self.deliveries = checked
        if not self._fails_invalid:
            return checked
        self._report([delivery for delivery in checked if delivery.ending is not None])
        return [delivery for delivery in checked if delivery.ending is None]

    def check(self, record: Any) -> _D | None:
        """Validate the next record. Return its delivery, for the caller to put, or ``None`` if the record is invalid.

        Raises:
            UsageError: the record is invalid, and ``on_invalid`` is ``"raise"``.
        """
        delivery = self._checked(len(self.deliveries), record)
        if delivery.ending is None:
            return delivery
        self.deliveries.append(delivery)
        self._report([delivery])
        return None

    def _checked(self, place: int, record: Any) -> _D:
        """Return the delivery of a record. The delivery of an invalid record has already failed."""
        max_bytes = self._intake.record_max_bytes
        try:
            checked = check_item(
                record if self._chain is None else self._changed(self._chain, record),
                None if self._chain is not None else self._serializer,
                max_bytes,
                self._packing,
                self._tags_of,
                stamp=self._stamp,
            )
        except UsageError as error:
            if self._fails_invalid:
                return self._failed(record, str(error))
            raise UsageError(f"record {place}: {error}", index=place) from error.__cause__
        except Exception as error:  # raised by the user's serializer or middleware
            if self._fails_invalid:  # do not include the error's text, which may quote the data
                origin = "serializer" if self._chain is None else "serializer or a middleware"
                return self._failed(record, f"the {origin} raised {type(error).__name__}")
            raise
        key, data, explicit_hash_key, tags = checked
        return self._make(data, key, explicit_hash_key, 0.0, extra_ttl=self._extra_ttl, tags=tags)

    def _changed(self, chain: PutChain, record: Any) -> tuple[Any, ...]:
        """Apply the middleware to a record, and return the result as a tuple of the same form."""
        if type(record) is Changed:
            if record.error is not None:
                raise record.error
            return record.fields
        key, data, explicit_hash_key, headers = fields_of(record)
        data, key, explicit_hash_key, headers = chain.prepare(data, key, explicit_hash_key, headers)
        return key, data, explicit_hash_key, headers

    def _failed(self, record: Any, reason: str) -> _D:
        """Return the failed delivery of an invalid record. The fields of the delivery have the given values, whatever
        their types.

        Invalid headers are left out, because a delivery stores its headers in the encoded form.
        """
        given: Any = record.given if type(record) is Changed else record
        try:
            key, data, explicit_hash_key, headers = fields_of(given)
        except UsageError:
            key, data, explicit_hash_key, headers = None, given, None, None
        try:
            tags = encode_tags(check_headers(headers))
        except UsageError:
            tags = b""
        return self._make(data, key, explicit_hash_key, 0.0, ending=Undelivered(INVALID, reason), tags=tags)

    def _report(self, invalid: list[_D]) -> None:
        """Let the host count the invalid records, and call ``on_failure`` with their deliveries."""
        if invalid:
            self._intake.invalid += invalid
            self._wake()


@final
class Changed(NamedTuple):
    """A record of ``put_many`` after async middleware, or the error that it raised."""

    given: Any
    fields: tuple[Any, ...]
    error: Exception | None = None


async def change(chain: PutChain, record: Any) -> Changed:
    """Pass a record of ``put_many`` through async middleware."""
    try:
        key, data, explicit_hash_key, headers = fields_of(record)
        data, key, explicit_hash_key, headers = await chain.prepare_async(data, key, explicit_hash_key, headers)
    except Exception as error:  # noqa: BLE001 - raised again when the record is checked
        return Changed(record, (), error)
    return Changed(record, (key, data, explicit_hash_key, headers))


def iterate(records: object) -> Iterator[Any]:
    """Return an iterator over the records of a ``put_many`` call.

    Raises:
        UsageError: the records are not iterable.
    """
    try:
        return iter(cast("Iterable[Any]", records))
    except TypeError:
        kinds = "an iterable of (key, data) tuples"
        hint = ": only the async Producer takes an async iterable" if hasattr(records, "__aiter__") else ""
        raise UsageError(f"records must be {kinds}, not {type(records).__name__}{hint}") from None


def close_if_generator(iterator: Iterator[Any]) -> None:
    """Close a generator that ``put_many`` does not exhaust, so that its ``finally`` blocks run now."""
    if isinstance(iterator, Generator):
        cast("Generator[Any, None, None]", iterator).close()


def _is_list(records: Collection[Any]) -> TypeGuard[list[Any]]:
    """Return whether this is exactly a ``list``.

    A subclass may define its own iterator, which ``make_plain`` would not call.
    """
    return type(records) is list
