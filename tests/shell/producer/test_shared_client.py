"""What happens to producers whose shared ``Client`` is closed while they use it?"""

import time

import anyio
import pytest

from shardline import Client, Closed

pytestmark = pytest.mark.anyio


@pytest.fixture
def make_shared(kinesis):
    return lambda: Client(
        endpoint_url=kinesis.endpoint_url, region=kinesis.region, credentials=kinesis.credentials, max_connections=4
    )


async def test_all_of_them_fail_at_once_with_closed(make_producer, make_shared, complaints, kinesis):
    """This includes records that linger, that are in flight, and that wait for room."""
    kinesis.faults.latency(30, operation="PutRecords")
    client, given_up = make_shared(), []
    await client.start()
    lingering = make_producer(client=client, linger=5.0, on_failure=given_up.append)
    sending = make_producer(client=client, linger=0.0)
    full = make_producer(client=client, linger=5.0, buffer_max_records=1)
    for producer in (lingering, sending, full):
        await producer.start()
    first = [await lingering.put(b"1", key="k"), await sending.put(b"2", key="k"), await full.put(b"3", key="k")]
    await anyio.sleep(0.2)
    refused = []

    async def wait_for_room():
        with pytest.raises(Closed, match="the Client that this Producer uses was closed") as caught:
            await full.put(b"4", key="k")
        refused.append(caught)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_room)
            await anyio.sleep(0.05)
            began = time.monotonic()
            await client.close()
            with pytest.raises(Closed, match="the Client that this Producer uses was closed"):
                lingering.put_nowait(b"5", key="k")
            outcomes = [await delivery.outcome() for delivery in first]
            took = time.monotonic() - began
    assert [(outcome.code, outcome.message) for outcome in outcomes] == [
        ("Closed", "the Client that this Producer uses was closed")
    ] * 3
    assert [outcome.maybe_stored for outcome in outcomes] == [False, True, False]
    assert took < 2
    assert len(refused) == 1
    assert given_up == first[:1]
    with anyio.fail_after(5):
        for producer in (lingering, sending, full):
            assert await producer.close() == []  # they have failed before
    assert [text for level, text in complaints() if level == "ERROR"] == [
        "s: 1 record given up: Closed: the Client that this Producer uses was closed"
    ] * 3


async def test_one_that_is_closed_before_has_nothing_to_do_with_it(make_producer, make_shared, stored, complaints):
    async with make_shared() as client, make_producer(client=client) as producer:
        await producer.put(b"1", key="k")
    assert len(stored()) == 1
    assert client._users == []
    assert complaints() == []


async def test_one_that_starts_just_as_the_client_is_closed_ends(make_producer, make_shared):
    client = make_shared()
    await client.start()
    producer = make_producer(client=client, linger=5.0)
    await producer.start()
    delivery = producer.put_nowait(b"1", key="k")
    await client.close()  # its host has not run yet
    with anyio.fail_after(5):
        assert (await delivery.outcome()).code == "Closed"
        assert await producer.close() == []


async def test_a_closed_one_starts_no_producer(make_producer, make_shared):
    client = make_shared()
    await client.start()
    await client.close()
    with pytest.raises(Closed):
        await make_producer(client=client).start()
