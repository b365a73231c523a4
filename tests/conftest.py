"""What holds for all tests."""

from hypothesis import HealthCheck, settings

if settings.get_current_profile_name() == "default":  # CI and the mutants have their own
    # A busy machine is slow: that says nothing about the code.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
