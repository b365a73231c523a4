"""Which tags do streams, consumers and channels have?"""

from typing import Final

from shardline.model.limits import TAGS_PER_STREAM
from shardline.server.model import inputs
from shardline.server.model.refusals import invalid
from shardline.server.model.state import ServiceState

_RESERVED: Final = "aws:"  # of tag keys


def add_tags(state: ServiceState, request: inputs.AddTagsToStream) -> None:
    stream = state.find(request.stream_name, request.stream_arn)
    stream.tags = merged_tags(stream.tags, request.tags)
    state.changed.add(stream.name)


def remove_tags(state: ServiceState, request: inputs.RemoveTagsFromStream) -> None:
    stream = state.find(request.stream_name, request.stream_arn)
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
    resource.tags = merged_tags(resource.tags, request.tags)
    state.changed.add(resource.stream_name)


def untag_resource(state: ServiceState, request: inputs.UntagResource) -> None:
    resource = state.resource(request.resource_arn)
    for key in request.tag_keys:
        resource.tags.pop(key, None)
    state.changed.add(resource.stream_name)


def list_tags_for_resource(state: ServiceState, request: inputs.ResourceInput) -> dict[str, object]:
    tags = state.resource(request.resource_arn).tags
    return {"Tags": [{"Key": key, "Value": tags[key]} for key in sorted(tags)]}


def merged_tags(tags: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """The tags of a resource that gets more of them.

    Raises:
        Refused: a key is reserved, or there are too many.
    """
    merged = tags | more
    if any(key.startswith(_RESERVED) for key in more):
        raise invalid(f"Tag keys that begin with {_RESERVED} are reserved.")
    if len(merged) > TAGS_PER_STREAM:
        raise invalid(f"A resource has at most {TAGS_PER_STREAM} tags: this request would make {len(merged)}.")
    return merged
