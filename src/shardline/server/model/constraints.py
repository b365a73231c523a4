"""Answers requests with invalid members as AWS does: with the same errors, in the same words and order.

The module is called only after msgspec has refused a request; it never sees a request that msgspec accepts. It takes
the constraints from the structs that msgspec decodes into, so that there is no second list of constraints.

AWS converts members before it checks them. A member that cannot be converted causes a SerializationException about that
member alone. If all conversions succeed, AWS names every violated constraint with its value in one ValidationException.
A few conversions succeed although msgspec refuses the value, and then the request may be valid after all: a fraction
becomes a whole number, and ``"yes"`` becomes a boolean.

The texts and the order of the errors were recorded from AWS by kinesalite's tests (see docs/tested/differences.md).
Members have the order of a Java 7 ``HashMap`` of their names, and the values of an enum have the order of their plain
hash codes. This reproduces all recordings except one, of GetShardIterator. Since 2016 AWS's order varies, so no client
can rely on it.
"""

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import suppress
from functools import cache
from itertools import chain
from math import isfinite
from sys import float_info
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct, inspect

from shardline.server.model.refusals import NOT_NULL, blob, broken, serialization, validation

_INT_MAX: Final = (1 << 31) - 1
_FLOAT_MAX: Final = float_info.max
_PATTERN: Final = ("(?a)^(?:", ")\\Z")
_LIST: Final = "Start of list found where not expected"
_MAP: Final = "Start of structure or map found where not expected."
_NUMBER: Final = "com.amazon.coral.value.json.numbers.TruncatingBigNumber"
_JAVA_CLASSES: Final[Mapping[type, str]] = {
    bool: "java.lang.Boolean",
    str: "java.lang.String",
    int: _NUMBER,
    float: _NUMBER,
    bytes: "java.nio.HeapByteBuffer",
}
_WANTED: Final[Mapping[type, str]] = {
    inspect.IntType: "an Integer",
    inspect.FloatType: "milliseconds since epoch",
    inspect.BoolType: "an Boolean",
    inspect.BytesType: "a Blob",
}
_BOOLEANS: Final = {"TRUE": True, "1": True, "YES": True, "FALSE": False, "0": False, "NO": False}
_FOREIGN_BASE64: Final = re.compile(r"[^a-zA-Z0-9+/=]|=(?=[^=])")
_BASE64_QUANTUM: Final = 4
_BUCKETS: Final = 16

_Input = TypeVar("_Input", bound=Struct)
_Constraint = tuple[str, Callable[[Any], bool]]


def full_match(pattern: str) -> str:
    """Convert a pattern of the service model for msgspec: it must match the whole text, and its digits are ASCII."""
    return pattern.join(_PATTERN)


def reread(kind: type[_Input], members: object) -> _Input:
    """Read, as AWS does, the members of a request that msgspec has refused.

    Raises:
        Refused: a member has the wrong type, or constraints are violated.
    """
    if not isinstance(members, dict):
        raise serialization()
    converted = _convert(_shape_of(kind), cast("object", members))
    problems = _struct_problems(kind, converted, "")
    if (first := next(problems, None)) is not None:
        raise validation(chain([first], problems))
    return msgspec.convert(converted, kind)


@cache
def _shape_of(kind: type[Struct]) -> inspect.StructType:
    return cast("inspect.StructType", inspect.type_info(kind))


@cache
def _types_of(kind: type[Struct]) -> Mapping[str, inspect.Type]:
    return {field.encode_name: _bare(field.type) for field in _shape_of(kind).fields}


def _bare(shape: inspect.Type) -> inspect.Type:
    """Return the type of a member without the alternative ``None``."""
    if isinstance(shape, inspect.UnionType):
        return next(option for option in shape.types if not isinstance(option, inspect.NoneType))
    return shape


def _convert(shape: inspect.Type, value: Any) -> Any:
    """Convert a value to the type of its member. Members of a structure that are null or unknown are dropped."""
    if value is None:
        return None
    match shape:
        case inspect.StructType(cls=kind):
            known = _types_of(kind)
            given = _collection(dict, value, "Expected null").items()
            members = {name: _convert(known[name], item) for name, item in given if name in known}
            return {name: item for name, item in members.items() if item is not None}
        case inspect.ListType(item_type=item_type):
            return [_convert(item_type, item) for item in _collection(list, value, "Expected list or null")]
        case inspect.DictType(key_type=key_type, value_type=value_type):
            given = _collection(dict, value, "Expected map or null").items()
            return {_convert(key_type, name): _convert(value_type, item) for name, item in given}
        case scalar:
            return _scalar(scalar, value)


def _collection(kind: type, value: Any, otherwise: str) -> Any:
    if isinstance(value, kind):
        return value
    raise serialization(_LIST if isinstance(value, list) else _MAP if isinstance(value, dict) else otherwise)


def _scalar(shape: inspect.Type, value: object) -> object:
    if isinstance(value, (list, dict)):
        raise serialization(_LIST if isinstance(value, list) else _MAP)
    is_number = not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    )
    match shape:
        case inspect.IntType() if is_number:
            return max(-_INT_MAX - 1, min(_INT_MAX, int(cast("float", value))))
        case inspect.FloatType() if is_number and abs(cast("float", value)) <= _FLOAT_MAX:
            return value
        case inspect.BoolType() if isinstance(value, (bool, float)):
            return bool(value)
        case inspect.BoolType() if isinstance(value, str):
            if value.upper() in _BOOLEANS:
                return _BOOLEANS[value.upper()]
            raise serialization(f"'{value.upper()}' can not be converted to an Boolean")
        case inspect.StrType() | inspect.LiteralType() if isinstance(value, str):
            return value
        case inspect.BytesType() if isinstance(value, (bytes, str)):
            return value if isinstance(value, bytes) else _from_base64(value)
        case _:
            java = _JAVA_CLASSES.get(type(value), "java.lang.Object")
            raise serialization(f"class {java} can not be converted to {_WANTED.get(type(shape), 'an String')}")


def _from_base64(text: str) -> bytes:
    reason = ""
    if len(text) % _BASE64_QUANTUM:
        reason = f"Base64 encoded length is expected a multiple of 4 bytes but found: {len(text)}"
    elif foreign := _FOREIGN_BASE64.search(text):
        reason = f"Invalid Base64 character: '{foreign[0]}'"
    else:
        with suppress(ValueError):  # padding in a wrong place, such as ``a===``
            data = a2b_base64(text)
            if b2a_base64(data, newline=False).decode() == text:
                return data
        reason = "Invalid last non-pad Base64 character dectected"  # as AWS spells it
    raise serialization(f"'{text}' can not be converted to a Blob: {reason}")


class _Member(NamedTuple):
    """A member of a structure, under the name that messages use."""

    name: str
    field: inspect.Field
    shape: inspect.Type
    constraints: "list[_Constraint]"


@cache
def _members_of(kind: type[Struct]) -> list[_Member]:
    """Return the members of a structure in AWS's order. Within a bucket, the order is reverse alphabetical."""
    members: list[_Member] = []
    for field in _shape_of(kind).fields:
        shape = _bare(field.type)
        members.append(
            _Member(field.encode_name[:1].lower() + field.encode_name[1:], field, shape, _constraints(shape))
        )
    members.sort(key=lambda member: member.name, reverse=True)
    return sorted(members, key=lambda member: _bucket_of(member.name))


def _struct_problems(kind: type[Struct], values: Mapping[str, Any], path: str) -> Iterator[str]:
    for member in _members_of(kind):
        value = values.get(member.field.encode_name)
        if value is not None:
            yield from _member_problems(member, value, path + member.name)
        elif member.field.required:
            yield broken(path + member.name, None, NOT_NULL)


def _member_problems(member: _Member, value: Any, at: str) -> Iterator[str]:
    for constraint, is_kept in member.constraints:
        if not is_kept(value):
            yield broken(at, _shown(member.shape, value), constraint)
    match member.shape:
        case inspect.StructType(cls=kind):
            yield from _struct_problems(kind, value, f"{at}.")
        case inspect.ListType(item_type=inspect.StructType(cls=kind)):
            for number, item in enumerate(value, 1):
                if item is None:
                    yield broken(f"{at}.{number}.member", None, NOT_NULL)
                else:
                    yield from _struct_problems(kind, item, f"{at}.{number}.member.")
        case inspect.ListType(item_type=item_type):
            yield from _item_problems(item_type, value, "Member", (at, _shown(member.shape, value)))
        case inspect.DictType(key_type=key_type, value_type=value_type):
            where = (at, _shown(member.shape, value))
            yield from _item_problems(key_type, list(value), "Map keys", where)
            yield from _item_problems(value_type, list(value.values()), "Map value", where)
        case _:
            pass


def _item_problems(shape: inspect.Type, items: list[Any], what: str, where: tuple[str, str]) -> Iterator[str]:
    """Check the items of a collection of scalars. AWS reports all constraints of the items as one problem."""
    constraints = _constraints(shape)
    if not all(item is not None and all(is_kept(item) for _, is_kept in constraints) for item in items):
        yield broken(*where, f"{what} must satisfy constraint: [{', '.join(text for text, _ in constraints)}]")


def _constraints(shape: inspect.Type) -> list[_Constraint]:
    """Return the constraints of a member: AWS's sentence, and a function that checks a value."""
    constraints: list[_Constraint] = []
    match shape:
        case inspect.LiteralType(values=values):
            names = sorted(cast("tuple[str, ...]", values), key=lambda name: _java_hash(name) % _BUCKETS)
            constraints = [(f"Member must satisfy enum value set: [{', '.join(names)}]", names.__contains__)]
        case inspect.IntType(ge=least, le=most):
            constraints = _bounds("value", int, least, most)
        case inspect.StrType(min_length=least, max_length=most, pattern=pattern):
            if pattern is not None:
                text = pattern.removeprefix(_PATTERN[0]).removesuffix(_PATTERN[1])
                is_match = cast("Callable[[Any], bool]", re.compile(pattern).search)
                constraints = [(f"Member must satisfy regular expression pattern: {text}", is_match)]
            constraints += _bounds("length", len, least, most)
        case (
            inspect.BytesType(min_length=least, max_length=most)
            | inspect.ListType(min_length=least, max_length=most)
            | inspect.DictType(min_length=least, max_length=most)
        ):
            constraints = _bounds("length", len, least, most)
        case _:
            pass
    return constraints


def _bounds(what: str, measure: Callable[[Any], int], least: int | None, most: int | None) -> list[_Constraint]:
    bounds: list[_Constraint] = []
    if most is not None:
        bounds.append((f"Member must have {what} less than or equal to {most}", lambda value: measure(value) <= most))
    if least is not None:
        bounds.append(
            (f"Member must have {what} greater than or equal to {least}", lambda value: measure(value) >= least)
        )
    return bounds


def _shown(shape: inspect.Type, value: Any) -> str:
    """Render a value as Java's ``toString`` does."""
    match shape:
        case inspect.BytesType():
            return blob(len(cast("Sized", value)))
        case inspect.ListType(item_type=inspect.StructType(cls=cls)):
            # The digits are the hash code of the entry. They were recorded for an entry without key and data.
            return f"[{', '.join([f'com.amazonaws.kinesis.v20131202.{cls.__name__}@c965e310'] * len(value))}]"
        case inspect.ListType():
            return f"[{', '.join(map(_item, value))}]"
        case inspect.DictType():
            return f"{{{', '.join(f'{name}={_item(value[name])}' for name in value)}}}"
        case _:
            return str(value)


def _item(value: str | None) -> str:
    return "null" if value is None else value


def _java_hash(text: str) -> int:
    code = 0
    for unit in text:
        code = (31 * code + ord(unit)) & 0xFFFF_FFFF
    return code


def _bucket_of(name: str) -> int:
    """Return the bucket of a name in a ``HashMap`` of Java 7, which puts a new entry at the front of its bucket."""
    code = _java_hash(name)
    code ^= (code >> 20) ^ (code >> 12)
    return (code ^ (code >> 7) ^ (code >> 4)) % _BUCKETS
