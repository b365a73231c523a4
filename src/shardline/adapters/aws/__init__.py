"""AWS settings, credentials, endpoints and signed requests."""
