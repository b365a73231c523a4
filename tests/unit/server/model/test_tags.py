"""Which tags may a resource have, and how are they listed?"""

import pytest


def test_tag_keys_of_aws_are_reserved(server):
    server.create()
    assert server.refused("AddTagsToStream", StreamName="s", Tags={"aws:x": "1"}) == "InvalidArgumentException"
    assert server.call("ListTagsForStream", StreamName="s")["Tags"] == []


def test_tags_of_a_stream(server):
    server.create(Tags={"a": "1"})
    server.call("AddTagsToStream", StreamName="s", Tags={"b": "2", "a": "3"})
    assert server.call("ListTagsForStream", StreamName="s") == {
        "Tags": [{"Key": "a", "Value": "3"}, {"Key": "b", "Value": "2"}],
        "HasMoreTags": False,
    }
    page = server.call("ListTagsForStream", StreamName="s", Limit=1)
    assert page == {"Tags": [{"Key": "a", "Value": "3"}], "HasMoreTags": True}
    page = server.call("ListTagsForStream", StreamName="s", ExclusiveStartTagKey="a")
    assert page["Tags"] == [{"Key": "b", "Value": "2"}]
    server.call("RemoveTagsFromStream", StreamName="s", TagKeys=["a", "unknown"])
    assert server.call("ListTagsForResource", ResourceARN=server.arn()) == {"Tags": [{"Key": "b", "Value": "2"}]}


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
