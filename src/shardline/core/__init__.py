"""What decides: state machines and their values, with no I/O, no clock and no chance of their own."""
