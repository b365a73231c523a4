"""Does a latch end a wait at the right time, and does it notice signals?"""

import os
import signal
import threading
import time

import pytest

from shardline.aio.loop.latch import Latch


@pytest.mark.parametrize("timeout", [None, 0.8, float("inf")])
def test_a_wait_ends_when_another_thread_wakes_it(timeout):
    latch = Latch()
    threading.Timer(0.7, latch.wake).start()
    assert latch.wait(timeout)


@pytest.mark.parametrize("timeout", [-1, 0, 0.05, 0.7])
def test_a_wait_ends_when_its_time_is_up(timeout):
    began_at = time.monotonic()
    assert not Latch().wait(timeout)
    assert max(0.0, timeout) <= time.monotonic() - began_at + 0.01


def test_a_latch_that_was_woken_twice_is_open_once():
    latch = Latch()
    latch.wake()
    latch.wake()
    assert latch.wait()
    assert not latch.wait(0)


class RangError(Exception):
    pass


def ring(*_):
    raise RangError


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="the system has no signal masks")
def test_a_signal_that_another_thread_takes_ends_the_wait_of_the_main_thread():
    """The main thread blocks the signal, so that the C handler runs in the other thread."""
    other = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    other.start()
    handler = signal.signal(signal.SIGUSR1, ring)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    began_at = time.monotonic()
    try:
        with pytest.raises(RangError):
            Latch().wait(30)
        assert time.monotonic() - began_at < 15
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        other.join()
        signal.signal(signal.SIGUSR1, handler)
