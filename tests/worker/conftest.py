"""Real workers in processes of their own."""

from harness import project

__all__ = ["project"]
