"""The async producer."""
