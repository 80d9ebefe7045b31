"""Why a message is a dead letter; the values are on the wire and never change."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """One word per way to die, equal to its text."""

    EXHAUSTED = "exhausted"  # no retry is left, or the deadline would pass
    FAILED = "failed"  # an error that the policy does not retry
    BUDGET = "budget"  # retries are left, but the budget for them is spent
    REQUESTED = "requested"  # the task said so, or an operator
    REJECTED = "rejected"  # Reject(requeue=False)
    TIMEOUT = "timeout"  # hard time limit
    WORKER_LOST = "worker-lost"  # the pool child was killed too often
    CRASH_LOOP = "crash-loop"  # the whole worker was killed too often
    UNKNOWN_TASK = "unknown-task"
    INVALID = "invalid"  # not a task message
    UNDECODABLE = "undecodable"
    UNROUTABLE = "unroutable"  # the work queue was gone when the wait was over
    OVERFLOW = "overflow"  # the broker dropped it from a full queue
    EXPIRED = "expired"

    def __str__(self) -> str:
        # A plain str-Enum prints as Reason.FAILED, and in an f-string as one or the other, by Python version.
        return self.value
