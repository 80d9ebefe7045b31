"""Why a message is a dead letter. The values are on the wire and never change."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """One word for each reason; a member is equal to its text."""

    EXHAUSTED = "exhausted"  # no retry is left, or the deadline would pass
    FAILED = "failed"  # the policy does not retry this error
    BUDGET = "budget"  # retries are left, but the budget is spent
    REQUESTED = "requested"  # the task or an operator asked for it
    REJECTED = "rejected"  # Reject(requeue=False)
    TIMEOUT = "timeout"  # hard time limit
    WORKER_LOST = "worker-lost"  # its pool process was killed too often
    CRASH_LOOP = "crash-loop"  # the whole worker was killed too often
    UNKNOWN_TASK = "unknown-task"
    INVALID = "invalid"  # not a task message
    UNDECODABLE = "undecodable"
    UNROUTABLE = "unroutable"  # the work queue was gone when the wait was over
    OVERFLOW = "overflow"  # the broker dropped it from a full queue
    EXPIRED = "expired"

    def __str__(self) -> str:
        # A plain str-Enum prints as Reason.FAILED; what an f-string prints depends on the version of Python.
        return self.value
