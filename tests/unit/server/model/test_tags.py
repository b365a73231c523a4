"""Which tags may a resource have, and how are they listed?"""

import pytest


def test_tags_of_resources(server):
    server.create()
    consumer = server.register()
    for arn in (server.arn(), consumer):
        server.call("TagResource", ResourceARN=arn, Tags={"of": arn})
        assert server.call("ListTagsForResource", ResourceARN=arn) == {"Tags": [{"Key": "of", "Value": arn}]}
    server.call("UntagResource", ResourceARN=consumer, TagKeys=["of"])
    assert server.call("ListTagsForResource", ResourceARN=consumer) == {"Tags": []}
    assert len(server.call("ListTagsForResource", ResourceARN=server.arn())["Tags"]) == 1


@pytest.mark.parametrize("suffix", ["x", "/consumer/nobody:1"])
def test_what_is_not_there_has_no_tags(server, suffix):
    server.create()
    arn = server.arn() + suffix
    assert server.refused("TagResource", ResourceARN=arn, Tags={"a": "b"}) == "ResourceNotFoundException"
    assert server.refused("UntagResource", ResourceARN=arn, TagKeys=["a"]) == "ResourceNotFoundException"
    assert server.refused("ListTagsForResource", ResourceARN=arn) == "ResourceNotFoundException"
    assert server.call("ListTagsForResource", ResourceARN=server.arn())["Tags"] == []


def test_a_resource_has_50_tags_and_no_more(server):
    tags = {str(number): "" for number in range(51)}
    assert server.refused("CreateStream", StreamName="s", ShardCount=1, Tags=tags) == "InvalidArgumentException"
    server.create()
    consumer = server.register()
    for arn in (server.arn(), consumer):
        assert server.refused("TagResource", ResourceARN=arn, Tags=tags) == "InvalidArgumentException"
    assert server.refused("AddTagsToStream", StreamName="s", Tags=tags) == "InvalidArgumentException"
    tags.popitem()
    server.call("AddTagsToStream", StreamName="s", Tags=tags)
    assert server.refused("AddTagsToStream", StreamName="s", Tags={"one more": ""}) == "InvalidArgumentException"


INVALID = (
    "Some tags contain invalid characters. Valid characters: Unicode letters, digits, white space, _ . / = + - % @."
)
ILLEGAL = (
    "because some tags contained illegal characters. The allowed characters are Unicode letters, white-spaces, "
    "'_',',','/','=','+','-','@'."
)


def taggers(server):
    """Return every request that sets tags."""
    consumer = server.register()
    return [
        lambda tags: ("AddTagsToStream", {"StreamName": "s", "Tags": tags}),
        lambda tags: ("TagResource", {"ResourceARN": server.arn(), "Tags": tags}),
        lambda tags: ("TagResource", {"ResourceARN": consumer, "Tags": tags}),
        lambda tags: ("CreateStream", {"StreamName": "t", "ShardCount": 1, "Tags": tags}),
        lambda tags: ("RegisterStreamConsumer", {"StreamARN": server.arn(), "ConsumerName": "d", "Tags": tags}),
    ]


@pytest.mark.parametrize("text", ["abc;def", "abc\tdef", "abc\ndef", "abc,def", "\u20ac", "\U0001f600"])
def test_characters_that_aws_does_not_know_are_refused_in_its_words(server, text):
    """Recorded in kinesalite's addTagsToStream.js and removeTagsFromStream.js."""
    server.create()
    for request in taggers(server):
        for tags in ({text: "1"}, {"a": text}):
            operation, members = request(tags)
            assert server.refused(operation, **members) == "InvalidArgumentException"
            assert server.why(operation, **members) == INVALID
    assert server.why("RemoveTagsFromStream", StreamName="s", TagKeys=[text]) == INVALID
    assert server.why("UntagResource", ResourceARN=server.arn(), TagKeys=[text]) == INVALID
    assert server.call("ListStreams")["StreamNames"] == ["s"]
    assert server.call("ListTagsForStream", StreamName="s")["Tags"] == []


def test_a_percent_sign_is_refused_in_words_of_its_own(server):
    server.create()
    for request in taggers(server):
        for tags in ({"a%b": "1"}, {"a": "%"}):
            operation, members = request(tags)
            assert server.refused(operation, **members) == "InvalidArgumentException"
            assert server.why(operation, **members).endswith(ILLEGAL)
    stream = "stream s under account 000000000000"
    assert server.why("AddTagsToStream", StreamName="s", Tags={"a": "%"}) == f"Failed to add tags to {stream} {ILLEGAL}"
    why = server.why("RemoveTagsFromStream", StreamName="s", TagKeys=["abc%def"])
    assert why == f"Failed to remove tags from {stream} {ILLEGAL}"


def test_characters_that_aws_knows(server):
    """Recorded in kinesalite's addTagsToStream.js and listTagsForStream.js, except for the colon."""
    tags = {
        "a": "a",
        "\u00fc0 _.": "a",
        "/=+-@": "a",
        "b": "\u00fc0 _./=+-@",
        "c": "",
        "\u7edf\u4e00": "\u0661",
        "x:y": "z",
    }
    server.create(Tags=tags)
    server.call("RegisterStreamConsumer", StreamARN=server.arn(), ConsumerName="d", Tags=tags)
    listed = server.call("ListTagsForStream", StreamName="s")["Tags"]
    assert [one["Key"] for one in listed] == sorted(tags)
    server.call("RemoveTagsFromStream", StreamName="s", TagKeys=list(tags))
    assert server.call("ListTagsForStream", StreamName="s")["Tags"] == []
    unknown = server.call("ListTagsForStream", StreamName="s", ExclusiveStartTagKey="$Z%*(*&@,,.,,ZAC")
    assert unknown == {"Tags": [], "HasMoreTags": False}


def test_the_limit_and_reserved_keys_hold_wherever_tags_are_given(server):
    server.create()
    too_many = {f"{number}": "" for number in range(51)}
    for request in taggers(server):
        for tags in (too_many, {"aws:x": "1"}):
            operation, members = request(tags)
            assert server.refused(operation, **members) == "InvalidArgumentException"
    assert server.why("AddTagsToStream", StreamName="s", Tags=too_many) == (
        "Failed to add tags to stream s under account 000000000000 because a given stream cannot have more than 10 tags "
        "associated with it."
    )
