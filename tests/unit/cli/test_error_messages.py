"""Tests of ``cli.error_messages``."""

import click
import pytest

from shardline import UsageError
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_catalog
from shardline.cli.error_messages import WrongUsage, as_click, asks_for_json
from shardline.cli.invocation import Invocation


def worded(error):
    return as_click(error, Invocation(region="eu-west-1")).format_message()


@pytest.mark.parametrize(
    ("ours", "shown"),
    [
        (
            "endpoint_url must look like https://host or http://host:port, not 'nowhere'",
            "--endpoint-url must look like https://host or http://host:port, not 'nowhere'",
        ),
        (
            "no connection to x: check endpoint_url, the network",
            "no connection to x: check --endpoint-url, the network",
        ),
        ("no host: check the region or endpoint_url, and DNS", "no host: check the region or --endpoint-url, and DNS"),
        ("the look-up continues: pass endpoint_url=", "the look-up continues: give --endpoint-url"),
        ("no region: pass region=, or set AWS_REGION", "no region: give --region, or set AWS_REGION"),
    ],
)
def test_arguments_of_the_library_are_options_here(ours, shown):
    assert worded(UsageError(ours)) == shown


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://t?endpoint_url=http://x",
        "dynamo://table?endpoint_url=x",
        "dynamodb://table?endpoint_url=a&endpoint_url=b",
    ],
)
def test_an_invalid_store_url_is_quoted_unchanged(url):
    with pytest.raises(UsageError) as caught:
        lease_catalog(url, AwsAccess(lambda: 0.0))
    assert worded(caught.value) == str(caught.value)
    assert url in worded(caught.value)
    assert "--endpoint-url" not in worded(caught.value)


def test_the_endpoint_of_a_store_is_not_the_option():
    with pytest.raises(UsageError) as caught:
        lease_catalog("dynamodb://table?endpoint_url=nowhere", AwsAccess(lambda: 0.0))
    assert worded(caught.value) == (
        "store 'dynamodb://table?endpoint_url=nowhere': its endpoint_url must look like https://host or "
        "http://host:port, not 'nowhere'"
    )


def test_a_bug_is_a_sentence_with_exit_code_1():
    error = as_click(LookupError("what now?"), Invocation())
    assert error.format_message() == "internal error: LookupError: what now? (-v shows the traceback)"
    assert error.exit_code == 1
    assert as_click(UsageError("no"), Invocation()).exit_code == 2
    kept = WrongUsage("x")
    assert as_click(kept, Invocation()) is kept
    assert isinstance(as_click(OSError(28, "No space left on device", "f"), Invocation()), click.ClickException)
    assert worded(OSError(28, "No space left on device", "f")) == "f: No space left on device"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("streams list", False),
        ("streams list --output json", True),
        ("streams list --output=json", True),
        ("-ojson streams list", True),
        ("streams list -vo json", True),
        ("-o json streams list -o text", False),
        ("--output json streams list --output=text", False),
        ("put orders -- -o json", False),
        ("streams list -o", False),
    ],
)
def test_json_is_asked_for_by_the_last_option(arguments, wanted):
    assert asks_for_json(arguments.split()) is wanted
