"""Which clock do leases use?"""

import runpy
import sys
import time

import pytest

from shardline.aio.loop import boot_clock


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this clock")
def test_it_is_the_clock_that_counts_suspension(monkeypatch):
    slept = 3_600.0
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0 + slept, time.CLOCK_MONOTONIC: 7.0}.get)
    assert boot_clock.boot_time() == 7.0 + slept


def test_without_a_boot_clock_the_monotonic_clock_is_used(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert runpy.run_path(boot_clock.__file__)["boot_time"] is time.monotonic


def test_it_never_goes_back():
    times = [boot_clock.boot_time() for _ in range(10_000)]
    assert times == sorted(times)
