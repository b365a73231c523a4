"""Emulates the tags of streams, consumers and channels."""

import unicodedata
from collections.abc import Iterable
from typing import Final

from shardline.model.limits import TAGS_PER_STREAM
from shardline.server.model import inputs
from shardline.server.model.refusals import invalid
from shardline.server.model.state import ServiceState

_RESERVED: Final = "aws:"  # the reserved prefix of tag keys
_VALID: Final = "_.:/=+-@%"  # valid characters besides letters, numbers and spaces


def add_tags(state: ServiceState, request: inputs.AddTagsToStream) -> None:
    stream = state.find(request.stream_name, request.stream_arn)
    stream.tags = merged_tags(stream.tags, request.tags, stream_resource(state, stream.name))
    state.changed.add(stream.name)


def remove_tags(state: ServiceState, request: inputs.RemoveTagsFromStream) -> None:
    stream = state.find(request.stream_name, request.stream_arn)
    _check_characters(request.tag_keys, f"Failed to remove tags from {stream_resource(state, stream.name)}")
    for key in request.tag_keys:
        stream.tags.pop(key, None)
    state.changed.add(stream.name)


def list_tags(state: ServiceState, request: inputs.ListTagsForStream) -> dict[str, object]:
    stream = state.find(request.stream_name, request.stream_arn)
    keys = sorted(key for key in stream.tags if key > (request.exclusive_start_tag_key or ""))
    shown = keys[: request.limit or TAGS_PER_STREAM]
    tags = [{"Key": key, "Value": stream.tags[key]} for key in shown]
    return {"Tags": tags, "HasMoreTags": len(shown) < len(keys)}


def tag_resource(state: ServiceState, request: inputs.TagResource) -> None:
    resource = state.resource(request.resource_arn)
    resource.tags = merged_tags(resource.tags, request.tags, request.resource_arn)
    state.changed.add(resource.stream_name)


def untag_resource(state: ServiceState, request: inputs.UntagResource) -> None:
    resource = state.resource(request.resource_arn)
    _check_characters(request.tag_keys, f"Failed to remove tags from {request.resource_arn}")
    for key in request.tag_keys:
        resource.tags.pop(key, None)
    state.changed.add(resource.stream_name)


def list_tags_for_resource(state: ServiceState, request: inputs.ResourceInput) -> dict[str, object]:
    tags = state.resource(request.resource_arn).tags
    return {"Tags": [{"Key": key, "Value": tags[key]} for key in sorted(tags)]}


def merged_tags(tags: dict[str, str], more: dict[str, str], resource: str = "the resource") -> dict[str, str]:
    """Return the tags of a resource after more tags were added.

    Raises:
        Refused: a key is reserved, a character is not allowed, or there are too many tags.
    """
    merged = tags | more
    failed = f"Failed to add tags to {resource}"
    _check_characters([*more, *more.values()], failed)
    if any(key.startswith(_RESERVED) for key in more):
        raise invalid(f"{failed} because keys that begin with {_RESERVED} are reserved.")
    if len(merged) > TAGS_PER_STREAM:
        # AWS's text (kinesalite's addTagsToStream.js). The limit was raised to 50, but the text still says 10.
        raise invalid(f"{failed} because a given stream cannot have more than 10 tags associated with it.")
    return merged


def _check_characters(texts: Iterable[str], failed: str) -> None:
    """Refuse the characters that AWS refuses, with AWS's two messages (recorded in kinesalite's addTagsToStream.js).

    AWS does not count a tab or a line feed as white space, and it refuses a percent sign although its message lists it
    as valid. The message does not list the colon, but tags with colons are common, and other services of AWS list it.
    """
    characters = {character for text in texts for character in text}
    if any(unicodedata.category(character)[0] not in "LNZ" and character not in _VALID for character in characters):
        raise invalid(
            "Some tags contain invalid characters. Valid characters: Unicode letters, digits, white space, "
            "_ . / = + - % @."
        )
    if "%" in characters:
        raise invalid(
            f"{failed} because some tags contained illegal characters. The allowed characters are Unicode letters, "
            "white-spaces, '_',',','/','=','+','-','@'."
        )


def stream_resource(state: ServiceState, stream_name: str) -> str:
    """Return the name of a stream as AWS's messages write it."""
    return f"stream {stream_name} under account {state.settings.account_id}"
