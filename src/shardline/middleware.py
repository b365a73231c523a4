"""Middleware: small functions around the put of a record, and around the handling of a record or batch.

Pass a list to ``Producer(middleware=[...])`` or ``Consumer(middleware=[...])``. The functions are called in the order
of the list, each with the result of the previous one. ``compress``, ``decompress`` and ``validate`` are ready to use.
Your own middleware is a function, or a coroutine function, that takes a record and returns it, or a changed copy
(``replace``). ``around`` makes a context manager the middleware of a consumer: it is open while a handler works.

Invariants:

- A record that a middleware of a producer refuses is not accepted: ``put`` raises.
- A record that a middleware of a consumer refuses fails as if its handler had raised. It is never skipped, not even if
  a context manager suppresses the exception of the handler.
- ``decompress`` never uses much more memory than ``max_bytes``, whatever the data is.
- The messages of exceptions contain no data from the record.
"""

import inspect
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, final

import msgspec

from shardline.errors import UsageError
from shardline.model.headers import Headers
from shardline.model.limits import RECORD_HIGHEST_MAX_BYTES
from shardline.model.record import Record

__all__ = [
    "Around",
    "ConsumerMiddleware",
    "ProducerMiddleware",
    "RecordToPut",
    "around",
    "compress",
    "decompress",
    "replace",
    "validate",
]

_Encoding: TypeAlias = Literal["gzip", "zstd"]

_HEADER: Final = "content-encoding"
_GZIP: Final = 16 + zlib.MAX_WBITS  # the format of gzip, instead of that of zlib
_HEADER_BYTES: Final = len(_HEADER) + len("gzip") + 8  # in an aggregate, a header takes a few more bytes than its text
_LEVELS: Final = {"gzip": range(1, 10), "zstd": range(1, 23)}
_DEFAULT_LEVELS: Final = {"gzip": 6, "zstd": 3}
_PATH: Final = re.compile(r" - at `([^`]*)`")


@final
class RecordToPut(msgspec.Struct, frozen=True):
    """A record on its way into a producer, after the serializer."""

    data: bytes
    key: str | None = None
    explicit_hash_key: str | None = None
    headers: Mapping[str, str] = {}


@final
@dataclass(frozen=True, slots=True)
class Around:
    """A middleware for a consumer that is open while a handler works. ``around`` makes it."""

    enter: Callable[[Any], AbstractContextManager[object] | AbstractAsyncContextManager[object]]
    """A function that takes the record or batch, and returns the context manager in which it is handled."""

    @property
    def is_async(self) -> bool:
        """Whether ``enter`` was made by ``asynccontextmanager``, so that it needs an async handler."""
        return inspect.isasyncgenfunction(inspect.unwrap(self.enter))


ProducerMiddleware: TypeAlias = Callable[[RecordToPut], RecordToPut | Awaitable[RecordToPut]]
"""A function that takes a record that is put, and returns the record to put instead."""
ConsumerMiddleware: TypeAlias = Callable[[Record[Any]], Record[Any] | Awaitable[Record[Any]]] | Around
"""A function that takes a record that was read and returns the record to hand out, or the result of ``around``."""

_RecordT = TypeVar("_RecordT", RecordToPut, Record[Any])


def replace(record: _RecordT, *, data: bytes | None = None, headers: Mapping[str, str] | None = None) -> _RecordT:
    """Return a copy of the record with other data or other headers. ``None`` keeps the data or the headers of the
    record.
    """
    return msgspec.structs.replace(
        record,
        data=record.data if data is None else data,
        headers=record.headers if headers is None else Headers(headers),
    )


def around(enter: Callable[[Any], AbstractContextManager[object] | AbstractAsyncContextManager[object]]) -> Around:
    """Return a middleware for a consumer that is open while a handler of ``run`` works.

    The middleware encloses the rest of the middleware list, and the handler. Its context manager receives any exception
    that these raise, and may raise another one. If it suppresses the exception, the record or batch fails nevertheless.

    Args:
        enter: takes what the handler is called with, a record or a batch, and returns a context manager. A function
            decorated with ``contextlib.contextmanager`` works with every handler, and a function decorated with
            ``asynccontextmanager`` only with async handlers.

    Raises:
        UsageError: ``enter`` is not callable.
    """
    if not callable(enter):
        raise UsageError(f"around takes a function that returns a context manager, not {type(enter).__name__}")
    return Around(enter)


def compress(
    encoding: _Encoding = "gzip",
    *,
    level: int | None = None,
    min_bytes: int = 256,
    max_bytes: int = RECORD_HIGHEST_MAX_BYTES,
) -> Callable[[RecordToPut], RecordToPut]:
    """Return a middleware for a producer that compresses the data, and adds the header ``content-encoding``.

    Records that would not get smaller, and records that already have this header, are put unchanged.

    Args:
        encoding: ``"gzip"``, or ``"zstd"``, which is faster and needs Python 3.14 or the extra ``shardline[zstd]``.
        level: from 1 (fast) to 9 (gzip) or 22 (zstd). ``None`` means 6 for gzip and 3 for zstd.
        min_bytes: smaller records are not compressed.
        max_bytes: larger records are refused, because ``decompress`` would refuse them.

    Raises:
        UsageError: an argument is invalid, or zstd is not installed.
    """
    return _Compress(encoding, _check_level(encoding, level), *_check_sizes(min_bytes=min_bytes, max_bytes=max_bytes))


def decompress(*, max_bytes: int = RECORD_HIGHEST_MAX_BYTES) -> Callable[[Record[Any]], Record[Any]]:
    """Return a middleware for a consumer that decompresses the data by the header ``content-encoding``.

    It removes the header. Records without the header are left unchanged. A record fails if its data is damaged, has an
    unknown encoding, or is larger than ``max_bytes`` when decompressed.

    Args:
        max_bytes: the maximum size of the decompressed data.

    Raises:
        UsageError: an argument is invalid.
    """
    return _Decompress(*_check_sizes(max_bytes=max_bytes))


def validate(schema: Any) -> Callable[[_RecordT], _RecordT]:
    """Return a middleware for a producer or a consumer that checks whether the data is JSON of this type.

    A producer refuses an invalid record with ``UsageError``. In a consumer, an invalid record fails with
    ``ValueError``.

    Args:
        schema: a model of pydantic, or any type that msgspec supports: a ``Struct``, a dataclass, a ``TypedDict``, ...

    Raises:
        UsageError: the type is not supported.
    """
    made = _Validate(schema)
    made.prepare()
    return made


@final
@dataclass(frozen=True, slots=True)
class _Compress:
    """The middleware that ``compress`` returns."""

    encoding: _Encoding
    level: int
    min_bytes: int
    max_bytes: int
    needs_headers: bool = field(default=True, init=False)
    """Tells the producer to refuse records if it cannot send headers."""

    def __call__(self, record: RecordToPut) -> RecordToPut:
        data = record.data
        if len(data) > self.max_bytes:
            raise UsageError(
                f"compress takes records of at most {self.max_bytes} bytes, this one has {len(data)}: set max_bytes in"
                " compress and in decompress"
            )
        if len(data) < self.min_bytes or _HEADER in record.headers:
            return record
        if self.encoding == "gzip":
            writer = zlib.compressobj(self.level, wbits=_GZIP)  # zlib writes no time, so equal data gives equal bytes
            packed = writer.compress(data) + writer.flush()
        else:
            packed = _zstd().compress(data, self.level)
        if len(packed) + _HEADER_BYTES >= len(data):
            return record
        return replace(record, data=packed, headers={**record.headers, _HEADER: self.encoding})


@final
@dataclass(frozen=True, slots=True)
class _Decompress:
    """The middleware that ``decompress`` returns."""

    max_bytes: int

    def __call__(self, record: Record[Any]) -> Record[Any]:
        encoding = record.headers.get(_HEADER)
        if encoding is None:
            return record
        if encoding == "gzip":
            data = self._read_gzip(record.data)
        elif encoding == "zstd":
            data = self._read_zstd(record.data)
        elif encoding == "identity":
            data = record.data
        else:
            raise ValueError("decompress knows the encodings gzip, zstd and identity, and this record has another one")
        headers = {name: value for name, value in record.headers.items() if name != _HEADER}
        return replace(record, data=data, headers=headers)

    def _read_gzip(self, packed: bytes) -> bytes:
        reader = zlib.decompressobj(wbits=_GZIP)
        try:
            return self._check("gzip", reader.decompress(packed, self.max_bytes + 1), reader)
        except zlib.error:
            raise _damaged("gzip") from None

    def _read_zstd(self, packed: bytes) -> bytes:
        zstd = _zstd()
        reader = zstd.ZstdDecompressor()
        try:
            return self._check("zstd", reader.decompress(packed, self.max_bytes + 1), reader)
        except zstd.ZstdError:
            raise _damaged("zstd") from None

    def _check(self, encoding: str, data: bytes, reader: Any) -> bytes:
        if len(data) > self.max_bytes:
            raise ValueError(f"the decompressed data has more than {self.max_bytes} bytes: see max_bytes of decompress")
        # Refuse data that consists of several compressed parts: reading millions of empty parts would take hours.
        if not reader.eof or reader.unused_data:
            raise _damaged(encoding)
        return data


@final
class _Validate:
    """The middleware that ``validate`` returns."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._check: Callable[[bytes], object] | None = None

    def prepare(self) -> Callable[[bytes], object]:
        """Return the function that raises if the data is invalid."""
        check = self._check
        if check is None:
            parse: Any = getattr(self._schema, "model_validate_json", None)  # of a pydantic model
            if parse is None:
                try:
                    parse = cast("Any", msgspec.json.Decoder)(self._schema).decode
                    kind = msgspec.inspect.type_info(self._schema)
                except (TypeError, NotImplementedError) as error:
                    raise UsageError(f"validate cannot check this type: {error}") from None
                if isinstance(kind, msgspec.inspect.CustomType):  # msgspec would refuse every record
                    raise UsageError(f"validate cannot check this type: msgspec does not know the class {self._name}")
            check = self._check = cast("Callable[[bytes], object]", parse)
        return check

    def __call__(self, record: _RecordT) -> _RecordT:
        try:
            self.prepare()(record.data)
        except (ValueError, RecursionError) as error:  # the exceptions of msgspec and pydantic are ValueErrors
            kind = UsageError if isinstance(record, RecordToPut) else ValueError
            raise kind(f"the data is not a valid {self._name}{_explain(error)}") from None
        return record

    @property
    def _name(self) -> str:
        return getattr(self._schema, "__name__", str(self._schema))

    def __repr__(self) -> str:
        return f"validate({self._name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Validate, (self._schema,))


def _explain(error: Exception) -> str:
    """Describe the fault in the data, without quoting its values."""
    list_errors: Any = getattr(error, "errors", None)  # of pydantic
    if list_errors is not None:
        kinds = sorted({found["type"] for found in list_errors(include_url=False, include_input=False)})
        return f": {', '.join(kinds)}"
    path = _PATH.search(str(error))
    return "" if path is None else f": wrong at {path[1]}"


def _damaged(encoding: str) -> ValueError:
    return ValueError(f"the data is not valid {encoding}, although its content-encoding says so")


def _zstd() -> Any:
    """Return the module ``compression.zstd`` of Python 3.14, or its backport."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - Python 3.14
    except ImportError:
        try:
            from backports import zstd  # type: ignore[import-not-found, unused-ignore, no-redef]  # noqa: PLC0415
        except ImportError:
            raise UsageError("zstd needs Python 3.14 or the extra: pip install 'shardline[zstd]'") from None
    return cast("Any", zstd)


def _check_level(encoding: object, level: int | None) -> int:
    if not isinstance(encoding, str) or encoding not in _LEVELS:
        raise UsageError(f"encoding must be 'gzip' or 'zstd', not {encoding!r}")
    if encoding == "zstd":
        _zstd()
    levels = _LEVELS[encoding]
    if level is None:
        return _DEFAULT_LEVELS[encoding]
    if isinstance(level, bool) or level not in levels:
        raise UsageError(f"level must be a whole number from {levels[0]} to {levels[-1]}, not {level!r}")
    return level


def _check_sizes(**sizes: object) -> list[int]:
    checked: list[int] = []
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{name} must be a whole number of bytes, 0 or more, not {value!r}")
        checked.append(value)
    return checked
