"""The async shell, on asyncio and trio: the only reader of the clock."""
