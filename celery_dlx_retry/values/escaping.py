"""Make text from messages safe for terminals and readers of JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from celery_dlx_retry.errors import Unreadable

# The deepest nesting of a value that json.dumps() refuses and that we convert.
_LEVELS = 100


def printable(text: str) -> str:
    r"""Return the text on one line, with escapes for control characters: ``\n``, ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)


def json_text(value: Any) -> str:
    r"""Return strict JSON in ASCII.

    JSON has no NaN and no infinity: they become ``{"$float": "nan"}``, as in an export. Strict readers refuse a lone
    surrogate: it becomes the six characters ``\ud800``. A value nested too deeply becomes ``{"$deep": true}``.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        pass
    else:
        # With ensure_ascii each surrogate begins like this. Some Korean letters do, too; they only cost time.
        if "\\ud" not in text:
            return text
    return json.dumps(_strict(value, _LEVELS))


def readable_json(value: Any) -> str:
    r"""Return indented JSON for an editor: only characters that are not printable are escaped, as ``\u202e``."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError as exc:
        raise Unreadable(problem="it is nested too deeply for an editor") from exc
    # JSON is ASCII outside of strings, so this changes only strings, and not their values.
    return "".join(it if it.isprintable() or it == "\n" else json.dumps(it)[1:-1] for it in text)


def _strict(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, (dict, list, tuple)) and not levels:
        return {"$deep": True}
    if isinstance(value, dict):
        return {_strict(str(key), 0): _strict(item, levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item, levels - 1) for item in value]
    return value
