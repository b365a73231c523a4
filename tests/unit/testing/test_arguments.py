"""Which arguments does a local Kinesis accept? None of these tests starts one."""

import pytest

from shardline.errors import UsageError
from shardline.testing import Delays, Limits, LocalKinesis


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 0}, "shards must be a whole number from 1 to 10000, not 0"),
        ({"shards": True}, "shards must be a whole number from 1 to 10000, not True"),
        ({"shards": "4"}, "shards must be a whole number from 1 to 10000, not '4'"),
        ({"port": -1}, "port must be a whole number from 0 .* to 65535, not -1"),
        ({"port": 65_536}, "port must be .*, not 65536"),
        ({"port": "80"}, "port must be .*, not '80'"),
        ({"limits": "yes"}, "limits must be True, False or a Limits, not 'yes'"),
        ({"limits": None}, "limits must be True, False or a Limits, not None"),
        (
            {"limits": Limits(write_records_per_second=-1)},
            "write_records_per_second must be a number above 0.*, not -1",
        ),
        (
            {"limits": Limits(control_calls_per_second={"ListShards": 0})},
            "ListShards must be a number above 0.*, not 0",
        ),
        (
            {"limits": Limits(control_calls_per_second={"PutRecords": 1})},
            "control_calls_per_second cannot have PutRecords: Kinesis limits it per shard",
        ),
        ({"limits": Limits(control_calls_per_second=5)}, "control_calls_per_second must map operations .*, not 5"),
        ({"delays": 3}, "delays must be a Delays, or None, not 3"),
        (
            {"delays": Delays(create=1e300)},
            "delays.create must be a number of seconds from 0 to 31536000, not 1e\\+300",
        ),
        ({"limits": Limits(page_max_records=10**400)}, "page_max_records must be a number above 0.*, not 10*"),
        ({"delays": Delays(create=-1)}, "delays.create must be a number of seconds from 0 to 31536000, not -1"),
        (
            {"delays": Delays(update=float("nan"))},
            "delays.update must be a number of seconds from 0 to 31536000, not nan",
        ),
        ({"stream": 5}, "a stream's name must be 1 to 128 of the characters .*, not 5"),
        ({"stream": "no spaces"}, "a stream's name must be 1 to 128 of the characters .*, not 'no spaces'"),
        ({"data": 5}, "data must be the path of a file, or None, not 5"),
        ({"data": ""}, "data must be the path of a file, or None, not ''"),
        ({"data": "/"}, "data must be the path of a file, but / is a directory"),
        ({"host": ""}, "host must be a name or an address such as '127.0.0.1', not ''"),
        ({"allow_host": "a:1"}, "an allowed host must be a name .*, not 'a:1'"),
        ({"allow_host": ["a", 7]}, "an allowed host must be a name .*, not 7"),
        ({"allow_host": 7}, "an allowed host must be a name .*, not 7"),
        ({"token": "short"}, "a token must be a str of 16 to 256 visible ASCII .*; this one is not"),
        ({"token": b"0123456789abcdef"}, "a token must be a str of .*; this one is not"),
        ({"host": "http://x"}, "host must be a name or an address .*, not 'http://x'"),
        ({"tls": 1}, "tls must be True or False, not 1"),
        ({"tls": "yes"}, "tls must be True or False, not 'yes'"),
        ({"verify_signatures": None}, "verify_signatures must be True or False, not None"),
        ({"region": "Europe"}, "region must be a region name such as 'us-east-1', not 'Europe'"),
        ({"account_id": "123"}, "account_id must be a str of 12 digits, not '123'"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
    ],
)
def test_a_wrong_argument_is_named_with_what_may_be(arguments, message):
    with pytest.raises(UsageError, match=f"{message}$"):
        LocalKinesis(**arguments)
