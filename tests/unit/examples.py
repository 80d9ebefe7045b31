"""How many examples a property gets that needs more of them than the others."""

from __future__ import annotations

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")


def many(count: int) -> int:
    """So many in `make test`, and a tenth in `make unit`."""
    return count // 10 if PROFILE == "loop" else count
