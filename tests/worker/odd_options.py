"""Options of retry() that no broker takes, by what is wrong with them."""

from __future__ import annotations

ODD = {
    "a priority of 300": {"priority": 300},
    "a priority of text": {"priority": "high"},
    "a set": {"headers": {"odd": {1}}},
    "not a number": {"headers": {"odd": float("nan")}},
    "infinite": {"headers": {"odd": {"deep": [float("inf")]}}},
    "a long number": {"headers": {"odd": 2**70}},
    "a complex number": {"headers": {"odd": 1j}},
    "a long name": {"headers": {"o" * 300: 1}},
    "a number as a name": {"headers": {"odd": {5: 1}}},
    "a long reply_to": {"reply_to": "r" * 300},
    "another user": {"user_id": "somebody"},
}
