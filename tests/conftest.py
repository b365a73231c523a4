"""Settings and fixtures for all tests."""

import gc
import os
import signal

import pytest
import tests.sim.keep_assertions  # noqa: F401 - before the modules whose assertions it keeps
from hypothesis import HealthCheck, settings

if not __debug__:  # programs that tests start use the same setting
    os.environ["PYTHONOPTIMIZE"] = "1"

# A shell without job control starts background jobs with SIGINT ignored. Many tests send SIGINT, to themselves and to
# others.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if settings.get_current_profile_name() == "default":  # CI and the mutants have their own profiles
    # A busy machine is slow, which proves nothing about the code.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


@pytest.hookimpl(trylast=True)  # after the fixtures, which may restore it
def pytest_runtest_teardown():
    """Fail a test that leaves SIGINT ignored: later tests would fail, because their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pytest.fail("this test leaves SIGINT ignored")


def pytest_collection_modifyitems(config, items):
    """Under ``python -O``, the code under test has no assertions to check."""
    if not __debug__:
        without = [item for item in items if item.get_closest_marker("internal_error") is not None]
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


def pytest_collection_finish():
    """Take the collected tests out of the garbage collector's sight.

    A process that has collected all tests holds more than a million objects. Many tests call ``gc.collect()``, which took
    seconds each time, only to look at these objects.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """After the last test of a module, do the same with what the module has left behind, such as caches."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


EVENT_LOOPS = {"asyncio": ("asyncio", {}), "uvloop": ("asyncio", {"use_uvloop": True}), "trio": ("trio", {})}


@pytest.fixture(params=EVENT_LOOPS)
def event_loop_kind(request):
    """The event loop that an async test runs on. A test that needs only some of them is parametrized with them,
    indirectly.
    """
    return request.param


@pytest.fixture
def anyio_backend(event_loop_kind):
    """Return ``event_loop_kind`` in anyio's form. ``anyio_backend_name`` is "asyncio" on uvloop, too."""
    return EVENT_LOOPS[event_loop_kind]
