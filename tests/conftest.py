"""What holds for all tests."""

import pytest
from hypothesis import HealthCheck, settings

if settings.get_current_profile_name() == "default":  # CI and the mutants have their own
    # A busy machine is slow: that says nothing about the code.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")

EVENT_LOOPS = {"asyncio": ("asyncio", {}), "uvloop": ("asyncio", {"use_uvloop": True}), "trio": ("trio", {})}


@pytest.fixture(params=EVENT_LOOPS)
def event_loop_kind(request):
    """The event loop that an async test runs on. A test that needs fewer is parametrized with them, indirectly."""
    return request.param


@pytest.fixture
def anyio_backend(event_loop_kind):
    """``event_loop_kind`` as anyio wants it; ``anyio_backend_name`` is "asyncio" on uvloop too."""
    return EVENT_LOOPS[event_loop_kind]
