"""The differences from plain Celery that are right. The job and docs/compatibility.md both read this list."""

from __future__ import annotations

from celery_suite.compare import Difference

WRAPPED_TRACER = (
    "Our task class wraps the tracer that Celery gives it, so `task.__trace__` is not the object that was set."
)
WRAPPED_HOOK = (
    "Our task class wraps `before_start` to keep its failures. "
    "The hook is called, but the test cannot read the calls of its `Mock` through the task."
)
NAMED_CLASS = (
    "Celery gives `DjangoTask` only to apps that name no task class, and this job names ours. "
    "Our tasks still have `delay_on_commit()` and `apply_async_on_commit()`."
)
LATE = "`acks_late` is on by default: a task is acknowledged when it has ended, not when it starts."

TRACE = "t/unit/tasks/test_trace.py::test_trace"
REQUEST = "t/unit/worker/test_request.py::test_Request"

DIFFERENCES = (
    *(
        difference
        for suite in ("unit", "unit-rabbitmq")
        for difference in (
            Difference(suite=suite, tests=(f"{TRACE}::test_outside_body_error",), reason=WRAPPED_TRACER),
            Difference(suite=suite, tests=(f"{TRACE}::test_trace_before_start",), reason=WRAPPED_HOOK),
        )
    ),
    Difference(
        suite="unit-rabbitmq",
        tests=(f"{REQUEST}::test_on_accepted_acks_early", f"{REQUEST}::test_on_success_acks_early"),
        reason=LATE,
    ),
    Difference(
        suite="integration",
        tests=("t/integration/test_worker.py::test_django_fixup_installs_django_task_for_celery_subclass",),
        reason=NAMED_CLASS,
    ),
)
