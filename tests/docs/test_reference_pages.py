"""Do the pages on the client's operations and on errors match the code?"""

import re

from tests.docs import pages
from tests.docs.programs import run

import shardline
from shardline import Client, errors
from shardline.core.error_codes import Failure, FailureKind


def test_the_operations_are_the_methods_of_the_client():
    rows = pages.table_of("docs/reference/client.md", "for")
    listed = [name for _, methods in rows for name in re.findall(r"`(\w+)[`(]", methods)]
    known = {name for name in dir(Client) if not name.startswith("_") and callable(getattr(Client, name))}
    assert len(listed) == len(set(listed)) + 1, "call is shown twice"
    assert set(listed) <= known
    not_operations = {"start", "close", "api", "used_by", "access_settings"}
    assert {name for name in known - set(listed) if not name.startswith("refuse_after_")} <= not_operations


def test_the_exceptions_exist():
    rows = pages.table_of("docs/reference/errors.md", "exception")
    listed = {name.strip("`") for name, _ in rows}
    known = {name for name, one in vars(errors).items() if isinstance(one, type) and one.__module__ == errors.__name__}
    assert listed == known - {"ShardlineError", "RequestError"}
    assert all(hasattr(shardline, name) for name in listed)


def test_every_kind_of_failure_is_listed_with_its_retryability():
    rows = pages.table_of("docs/reference/errors.md", "`kind`")
    listed = {kind.strip("`"): retryable == "yes" for kind, _, retryable in rows}
    assert listed == {kind.value: Failure(kind, "", "").retryable for kind in FailureKind}


def test_the_error_of_the_reference(local_kinesis, tmp_path):
    [block] = pages.blocks_of("docs/reference/errors.md", "python")
    code = block + (
        "\n\nimport asyncio\n\n\nasync def main() -> None:\n"
        "    async with Client() as client:\n"
        "        print([await put(client, b'x') for _ in range(2)])\n\n\nasyncio.run(main())\n"
    )
    local_kinesis.faults.throttle(operation="PutRecord", count=1)
    printed = run(code, local_kinesis, tmp_path).splitlines()
    assert printed == ["throttled ProvisionedThroughputExceededException True True", "[False, True]"]
