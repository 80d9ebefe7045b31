"""What is asked of a chaos run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from celery_dlx_retry.settings import QueueType

Pool = Literal["prefork", "solo", "threads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything; ``lanes`` is ``dlx_queue_type``."""

    tasks: int
    workers: int
    concurrency: int
    kills: int
    restarts: int
    queue_type: QueueType
    lanes: QueueType
    seconds: float
    seed: int
    pool: Pool = "prefork"

    @property
    def tasks_at_once(self) -> int:
        """How many tasks a worker runs at once."""
        return 1 if self.pool == "solo" else self.concurrency
