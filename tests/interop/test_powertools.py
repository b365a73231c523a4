"""Does ``shardline.awslambda`` work with aws-lambda-powertools, and report the same as its BatchProcessor?

Powertools continues after a failure and reports each failed record; ours stops at the first, to keep the order. Lambda
retries from the lowest sequence number, so both make Lambda retry from the same record.
"""

import asyncio
from base64 import b64encode

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.batch import (
    AsyncBatchProcessor,
    BatchProcessor,
    EventType,
    async_process_partial_response,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes import KinesisStreamEvent, event_source
from hypothesis import given
from hypothesis import strategies as st

from shardline import FailurePolicy, aggregate, deaggregate
from shardline.awslambda import KinesisEventSource

ONCE = FailurePolicy(attempts=1)


class Context:
    """The members that powertools reads."""

    function_name = "orders"
    memory_limit_in_mb = 128
    invoked_function_arn = "arn:aws:lambda:eu-west-1:123456789012:function:orders"
    aws_request_id = "52fdfc07-2182-154f-163f-5f0f9a621d72"

    def get_remaining_time_in_millis(self):
        return 10_000


def event_of(*payloads):
    """Return an event of Lambda. A list of payloads becomes an aggregate."""
    packed = [aggregate([("k", each) for each in one]) if isinstance(one, list) else one for one in payloads]
    return {
        "Records": [
            {
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": "k",
                    "sequenceNumber": str(49590338271490256608559692538361571095921575989136588898 + number),
                    "data": b64encode(data).decode(),
                    "approximateArrivalTimestamp": 1545084650.987,
                },
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": f"shardId-000000000006:{number}",
                "eventName": "aws:kinesis:record",
                "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
                "awsRegion": "us-east-2",
                "eventSourceARN": "arn:aws:kinesis:us-east-2:123456789012:stream/orders",
            }
            for number, data in enumerate(packed)
        ]
    }


def bill(record):
    """Our handler: takes a user record."""
    if record.data == b"bad":
        raise ValueError("bad")


def bill_kinesis_record(record):
    """The handler for powertools: takes a Kinesis record, and unpacks it."""
    for opened in deaggregate(record.raw_event):
        bill(opened)


def by_powertools(event):
    processor = BatchProcessor(event_type=EventType.KinesisDataStreams, raise_on_entire_batch_failure=False)
    return process_partial_response(
        event=event, record_handler=bill_kinesis_record, processor=processor, context=Context()
    )


def retried_from(response):
    """Return the record from which Lambda retries: the one with the lowest number."""
    return min((failure["itemIdentifier"] for failure in response["batchItemFailures"]), key=int, default=None)


payload = st.sampled_from([b"good", b"bad"])


@given(payloads=st.lists(payload | st.lists(payload, min_size=2, max_size=4), min_size=1, max_size=6))
def test_both_make_lambda_retry_from_the_same_record(payloads):
    event = event_of(*payloads)
    theirs = by_powertools(event)
    ours = KinesisEventSource(policy=ONCE).each_record(bill)(event, Context())
    assert ours.keys() == theirs.keys()
    assert retried_from(ours) == retried_from(theirs)
    assert len(ours["batchItemFailures"]) == min(1, len(theirs["batchItemFailures"]))


def test_a_poisonous_record_does_not_block_the_shard_with_dead_letters():
    letters = []
    event = event_of(b"good", b"bad", b"good")
    assert retried_from(by_powertools(event)) is not None
    function = KinesisEventSource(policy=ONCE, dead_letter=letters.append).each_record(bill)
    assert function(event, Context()) == {"batchItemFailures": []}
    assert len(letters) == 1


def test_both_in_one_function(capsys):
    """The decorators of powertools wrap ours, and its processor runs beside it, on the same event."""
    logger = Logger(service="orders")
    seen = []

    @KinesisEventSource(policy=ONCE).each_record
    def count(record):
        logger.info("counted", sequence_number=record.sequence_number)
        seen.append(record.data)

    @logger.inject_lambda_context
    @event_source(data_class=KinesisStreamEvent)
    def function(event, context):
        ours = count(event, context)
        theirs = by_powertools(event.raw_event)
        return {"batchItemFailures": ours["batchItemFailures"] + theirs["batchItemFailures"]}

    event = event_of(b"good", [b"good", b"bad"])
    assert function(event, Context()) == {
        "batchItemFailures": [{"itemIdentifier": event["Records"][1]["kinesis"]["sequenceNumber"]}]
    }
    assert seen == [b"good", b"good", b"bad"]
    assert capsys.readouterr().out.count('"function_request_id":"52fdfc07-2182-154f-163f-5f0f9a621d72"') == 3


def test_both_async_in_one_function():
    async def bill_async(record):
        await asyncio.sleep(0)
        bill(record)

    async def bill_kinesis_record_async(record):
        await asyncio.sleep(0)
        bill_kinesis_record(record)

    ours = KinesisEventSource(policy=ONCE).each_record(bill_async)

    def theirs(event):
        processor = AsyncBatchProcessor(event_type=EventType.KinesisDataStreams)
        return async_process_partial_response(
            event=event, record_handler=bill_kinesis_record_async, processor=processor, context=Context()
        )

    event = event_of([b"good", b"good"], b"bad", b"good")
    for _ in range(2):
        assert ours(event, Context()) == theirs(event)
