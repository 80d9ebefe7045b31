"""Dead letters for unit tests. Import it as ``from tests.unit.letters import a_letter``."""

from __future__ import annotations

from typing import Any

from celery_dlx_retry.deadletters.letter import DeadMessage
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.wire.dead_record import DeadRecord
from celery_dlx_retry.wire.message import Message


def a_message(body: bytes = b"[[], {}, {}]", **facts: Any) -> Message:
    values = {"content_type": "application/json", "content_encoding": "utf-8", "headers": {}, "properties": {}}
    return Message(body=body, **{**values, **facts})


def a_letter(*, message: Message | None = None, **facts: Any) -> DeadMessage:
    values = {
        "reason": Reason.FAILED,
        "task": "shop.charge",
        "task_id": "1",
        "queue": "orders",
        "dead_letter_key": "orders",
        "worker": "w@h",
        "attempts": 1,
        "died_at_ms": 1_000,
        "error_type": "ValueError",
        "error": "no",
    }
    record = DeadRecord(**{**values, **facts})
    return DeadMessage(message=message or a_message(), record=record, history=(), replays=0, queue="orders.dead")
