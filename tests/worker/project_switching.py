"""The project with threads that take turns as often as Python lets them, so that a race shows."""

from __future__ import annotations

import sys

from project import app

__all__ = ["app"]

sys.setswitchinterval(1e-6)
