"""Adapters for other tools. Each one needs the extra of its name."""
