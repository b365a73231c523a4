"""The async shell, on asyncio and trio. Only this package reads the clock."""
