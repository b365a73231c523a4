"""HTTP transports, on asyncio and trio."""
