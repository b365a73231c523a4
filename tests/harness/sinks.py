"""Waits until the sinks of producers and consumers have received every event."""

import anyio


async def sinks_are_up_to_date(*sources, limit=20.0):
    """Wait until the sinks have received every event that these producers or consumers have emitted."""
    with anyio.fail_after(limit):
        for thread in [thread for source in sources for thread in threads_of(source)]:
            while thread._taken < thread._emitted:  # noqa: ASYNC110 - the thread of a sink notifies no task
                await anyio.sleep(0.005)
    await anyio.sleep(0.02)  # the last events are counted before the sinks are called with them


def threads_of(source):
    """The threads that call the sinks of a producer or a consumer."""
    driver = source._session.driver if hasattr(source, "_session") else source._driver
    return driver.sinks._threads
