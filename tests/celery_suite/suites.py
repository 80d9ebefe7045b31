"""The suites that ``make celery-suite`` runs, and the packages that have none in their source distribution."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests in one source distribution.

    ``shadow`` is the package beside them, which is removed so that the installed one is tested.
    ``needs_broker``: with a RabbitMQ and a Redis, as TEST_BROKER and TEST_BACKEND.
    ``replaces_broker``: with that RabbitMQ in place of the broker that the suite configures.
    ``unloads``: plugins of other suites that would change this one.
    """

    name: str
    package: str
    shadow: str
    paths: tuple[str, ...]
    is_about: str
    needs_broker: bool = False
    replaces_broker: bool = False
    unloads: tuple[str, ...] = ("django",)


SUITES = (
    Suite(
        name="unit",
        package="celery",
        shadow="celery",
        paths=("t/unit/tasks", "t/unit/app", "t/unit/worker"),
        is_about="`t/unit/{tasks,app,worker}` with Celery's in-memory broker",
    ),
    Suite(
        name="unit-rabbitmq",
        package="celery",
        shadow="celery",
        # Not test_strategy.py: its consumers and messages are Mocks, so no broker gave them and ours cannot use them.
        # Not t/unit/app: a test of threads never ends with a real broker, also with plain Celery.
        paths=("t/unit/tasks", "t/unit/worker/test_request.py"),
        is_about="`t/unit/tasks` and `t/unit/worker/test_request.py`, with a real RabbitMQ as the test app's broker",
        needs_broker=True,
        replaces_broker=True,
    ),
    Suite(
        name="integration",
        package="celery",
        shadow="celery",
        # test_worker.py is the last: it starts workers in the test's process, where result.get() is then refused.
        paths=tuple(f"t/integration/test_{name}.py" for name in ("tasks", "canvas", "group_chains", "worker")),
        is_about="`t/integration`: tasks and retries, canvas, group chains and worker; prefork, RabbitMQ and Redis",
        needs_broker=True,
    ),
    Suite(
        name="django-celery-results",
        package="django-celery-results",
        shadow="django_celery_results",
        paths=("t/unit",),
        is_about="all its unit tests",
        unloads=(),
    ),
    Suite(
        name="django-celery-beat",
        package="django-celery-beat",
        shadow="django_celery_beat",
        paths=("t/unit",),
        is_about="all its unit tests",
        unloads=(),
    ),
    Suite(
        name="celery-redbeat",
        package="celery-redbeat",
        shadow="redbeat",
        paths=("tests",),
        is_about="all its tests, which make no tasks: they show only that the scheduler accepts such an app",
    ),
)

WITHOUT_TESTS = {
    "celery-batches": "0.11",
    "celery-once": "3.0.1",
    "celery-singleton": "0.3.1",
    "flask-celeryext": "0.5.1",
}
