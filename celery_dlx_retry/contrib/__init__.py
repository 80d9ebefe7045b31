"""Subscribers and adapters for other tools; each needs an extra of its own."""
