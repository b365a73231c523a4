"""What holds for all tests."""

import os
import signal

import pytest
import tests.sim.keep_assertions  # noqa: F401 - before the modules whose assertions it keeps
from hypothesis import HealthCheck, settings

if not __debug__:  # the programs that tests start run as the tests do
    os.environ["PYTHONOPTIMIZE"] = "1"

# A shell without job control starts background jobs with SIGINT ignored. Many tests send it, to themselves and others.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if settings.get_current_profile_name() == "default":  # CI and the mutants have their own
    # A busy machine is slow: that says nothing about the code.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


@pytest.hookimpl(trylast=True)  # after the fixtures, which may put it back
def pytest_runtest_teardown():
    """A test that leaves SIGINT ignored would make the tests after it fail, whose children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pytest.fail("this test leaves SIGINT ignored")


def pytest_collection_modifyitems(config, items):
    """Under ``python -O`` the code under test has no assertions to check."""
    if not __debug__:
        without = [item for item in items if item.get_closest_marker("internal_error") is not None]
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


EVENT_LOOPS = {"asyncio": ("asyncio", {}), "uvloop": ("asyncio", {"use_uvloop": True}), "trio": ("trio", {})}


@pytest.fixture(params=EVENT_LOOPS)
def event_loop_kind(request):
    """The event loop that an async test runs on. A test that needs fewer is parametrized with them, indirectly."""
    return request.param


@pytest.fixture
def anyio_backend(event_loop_kind):
    """``event_loop_kind`` as anyio wants it; ``anyio_backend_name`` is "asyncio" on uvloop too."""
    return EVENT_LOOPS[event_loop_kind]
