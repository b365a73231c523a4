"""The async API, on asyncio and trio, and everything that does I/O for it. Only this package reads the clock."""
