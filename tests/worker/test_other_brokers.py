"""On a broker that is not RabbitMQ: the policy decides, Celery's own retry waits, and every option is Celery's."""

from __future__ import annotations

import secrets
from inspect import getattr_static
from itertools import pairwise

import pytest
from celery import Celery
from celery.app.task import Task
from harness import Project
from support import eventually

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.app.context import context_of


def on_redis(request, pool, **conf):
    """A project whose broker is Redis, with a worker."""
    url, folders = (request.getfixturevalue(name) for name in ("redis_url", "tmp_path_factory"))
    prefix = f"t{secrets.token_hex(4)}"
    project = Project(url=url, backend=url, prefix=prefix, folder=folders.mktemp(prefix))
    project.conf |= conf
    project.start(module="project_elsewhere", pool=pool).wait_until_ready()
    return project


@pytest.fixture(scope="module", params=["prefork", "solo", "threads"])
def project(request):
    it = on_redis(request, request.param)
    yield it
    it.close()


def run(project, name, *args):
    """Send a task and wait for its end: its result, its state, and how long it waited before each retry."""
    result = project.app.send_task(f"elsewhere.{name}", args)
    eventually(lambda: result.state in {"SUCCESS", "FAILURE"}, within=30)
    at = [row["at"] for row in project.records(id=result.id)]
    return result, [later - earlier for earlier, later in pairwise(at)]


def test_a_policy_retries_and_the_task_succeeds(project):
    result, waits = run(project, "ruled", "OSError", "OSError")

    assert (result.state, result.result) == ("SUCCESS", 2)
    assert waits[0] >= 0.1
    assert waits[1] >= 0.2


def test_what_is_exhausted_is_a_plain_failure(project):
    result, waits = run(project, "ruled", "OSError", "OSError", "OSError")

    assert (result.state, type(result.result)) == ("FAILURE", OSError)
    assert len(waits) == 2


def test_each_rule_counts_its_own_retries(project):
    errors = ["OSError", "TimeoutError", "OSError", "TimeoutError"]

    survived, _ = run(project, "ruled", *errors)
    spent, waits = run(project, "ruled", *errors, "TimeoutError")

    assert (survived.state, survived.result) == ("SUCCESS", 4)
    assert (spent.state, type(spent.result)) == ("FAILURE", TimeoutError)
    assert len(waits) == 4


def test_a_rule_that_says_dead_is_a_plain_failure_at_once(project):
    result, waits = run(project, "ruled", "KeyError")

    assert (result.state, waits) == ("FAILURE", [])


def test_retry_in_chooses_the_wait(project):
    result, waits = run(project, "ruled", "Later")

    assert result.state == "SUCCESS"
    assert waits[0] >= 0.4


def test_retry_in_needs_no_policy_and_ends_at_max_retries(project):
    result, waits = run(project, "later")

    assert result.state == "FAILURE"
    assert len(waits) == 1
    assert waits[0] >= 0.3


def test_self_retry_asks_the_policy(project):
    result, waits = run(project, "asks")

    assert (result.state, type(result.result)) == ("FAILURE", OSError)
    assert len(waits) == 2
    assert waits[0] >= 0.1
    assert waits[1] >= 0.2


def test_no_retry_starts_after_the_deadline(project):
    result, waits = run(project, "patient")

    assert result.state == "FAILURE"
    assert 1 <= len(waits) <= 3
    assert sum(waits[:-1]) < 0.7


def test_a_task_that_gives_up_is_a_plain_failure(project):
    result, waits = run(project, "gives_up")

    assert (result.state, waits) == ("FAILURE", [])


def test_a_killed_pool_process_is_celerys_business(request):
    project = on_redis(request, "prefork", task_acks_late=True, task_reject_on_worker_lost=True)
    try:
        result = project.app.send_task("elsewhere.is_killed")

        assert result.get(timeout=30) == "ran again"
    finally:
        project.close()


CONFIGURATIONS = [
    {},
    {"task_acks_late": True, "task_reject_on_worker_lost": True},
    {"task_acks_on_failure_or_timeout": False},
    {"task_annotations": {"*": {"acks_late": True, "rate_limit": "5/s"}}},
]
#: What a task class has for itself; all else must be the same.
OWN = {"name", "policy", "budget", "breaker", "Request", "abstract", "request_stack", "run"}


def options_of(app, base, **options):
    @app.task(base=base, name=base.__name__, shared=False, **options)
    def task(): ...

    found = {name: getattr_static(Task, name) for name in dir(Task) if not name.startswith("_") and name not in OWN}
    plain = (type(None), bool, int, float, str, tuple, dict)
    return {name: getattr(task, name) for name, value in found.items() if isinstance(value, plain)}


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@pytest.mark.parametrize("given", [{}, {"acks_late": True, "reject_on_worker_lost": True}, {"acks_late": False}])
@pytest.mark.parametrize("url", ["memory://", "redis://127.0.0.1:1/0"])
def test_on_another_broker_every_option_is_that_of_a_plain_task(url, given, conf):
    app = Celery("plain", broker=url, set_as_current=False)
    app.conf.update(conf)

    assert options_of(app, DLXRetryTask, **given) == options_of(app, Task, **given)


def test_a_class_that_inherits_a_bound_one_has_its_own_options():
    app = Celery("family", broker="amqp://127.0.0.1:1//", set_as_current=False)

    class Parent(DLXRetryTask):
        name = "parent"

        def run(self): ...

    app.register_task(Parent())
    app.conf.broker_url = "memory://"

    class Child(Parent):
        name = "child"

    app.register_task(Child())

    assert (Parent.acks_late, Child.acks_late, Child.reject_on_worker_lost) == (True, False, None)


def test_a_broker_that_is_named_late_decides_when_the_worker_starts():
    app = Celery("late", broker="amqp://127.0.0.1:1//", set_as_current=False)
    app.conf.task_reject_on_worker_lost = True

    @app.task(base=DLXRetryTask, shared=False, lazy=False)
    def task(): ...

    app.finalize()  # Celery binds each task again here, and not later
    before = (task.acks_late, task.reject_on_worker_lost)
    app.conf.broker_url = "memory://"
    context_of(app).use_flags({})
    with pytest.warns(UserWarning, match="no dead letters"):
        assert not context_of(app).is_rabbitmq

    assert before == (True, False)
    assert (task.acks_late, task.reject_on_worker_lost) == (False, True)


def test_a_task_is_bound_to_an_app_whose_transport_lacks_its_library():
    """Kombu's Kafka transport raises NameError then."""
    app = Celery("kafka", broker="confluentkafka://127.0.0.1:1//", set_as_current=False)

    @app.task(name="kafka.bound", base=DLXRetryTask, shared=False)
    def task():
        """Never run."""

    assert task.name in app.tasks
    assert not task.acks_late
