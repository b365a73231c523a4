"""The state machines that make all decisions. They do no I/O, read no clock and create no random numbers."""
