"""Bound the values of a metric's label: a sender, or a class that is made at run time, must not make series."""

from __future__ import annotations

from threading import Lock

#: How many different values a label has at most; all further ones are ``other``.
MOST_NAMES = 500
MOST_QUEUES = 500
MOST_EXCEPTIONS = 100
OTHER, UNKNOWN, NONE = "other", "unknown", "none"

_LONGEST = 200


class Bounded:
    """Returns the values of a label: the first ones as they are, all further ones as ``other``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()
        self._lock = Lock()

    def __call__(self, value: str) -> str:
        """Return what the label says."""
        # Text that cannot be encoded would fail every scrape.
        value = str(value)[:_LONGEST].encode("utf-8", "replace").decode() or NONE
        if value not in self._seen:
            with self._lock:
                if len(self._seen) >= self._most:
                    return OTHER
                self._seen.add(value)
        return value
