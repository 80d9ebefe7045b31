"""The differences from plain Celery that are right. The job and docs/compatibility.md both read this list."""

from __future__ import annotations

from celery_suite.compare import Difference

DIFFERENCES = (
    Difference(
        suite="unit",
        tests=(
            "t/unit/worker/test_request.py::test_Request::test_on_accepted_acks_early",
            "t/unit/worker/test_request.py::test_Request::test_on_success_acks_early",
        ),
        reason="`acks_late` is on by default.",
    ),
)
