"""The async consumer."""
