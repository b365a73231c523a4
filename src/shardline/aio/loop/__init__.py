"""The event loop of a host: its tasks, wake-ups, forks and exits."""
