"""Read and write the header of traces: which spans a task has left so far, also days and a replay ago."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ``first,previous,published``: W3C traceparents of the first attempt, of the attempt before the next one, and of the
#: publish of this message. Each may be empty.
TRACE = "dlx-trace"

_SPAN = r"(00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})?"
_TRACE = re.compile(f"{_SPAN},{_SPAN},{_SPAN}", re.ASCII)
_LONGEST = 3 * 55 + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTrace:
    """The spans of one task, as traceparents. An empty text means that there is no such span."""

    first: str = ""
    previous: str = ""
    published: str = ""

    def __bool__(self) -> bool:
        return bool(self.first or self.previous or self.published)

    def __str__(self) -> str:
        return f"{self.first},{self.previous},{self.published}"


def trace_of(headers: Mapping[str, Any]) -> TaskTrace:
    """Return the spans that a message names; none if the header is missing, or not as we write it."""
    value = headers.get(TRACE)
    if not isinstance(value, str) or len(value) > _LONGEST or (found := _TRACE.fullmatch(value)) is None:
        return TaskTrace()
    first, previous, published = (span or "" for span in found.groups())
    return TaskTrace(first=first, previous=previous, published=published)
