"""Eager, called directly, or on a laptop: Celery's own behaviour."""

from __future__ import annotations

from contextlib import suppress

import pytest
from celery import Celery, Task
from celery.exceptions import Retry

from celery_dlx_retry import DEAD, Breaker, Budget, DeadLetter, DLXRetryTask, Fixed, On, RetryIn
from celery_dlx_retry.errors import InvalidPolicy, InvalidTask


@pytest.fixture
def app():
    return Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=False)


def test_an_eager_task_retries_inline(app):
    app.conf.task_always_eager = True

    @app.task(bind=True, base=DLXRetryTask, shared=False)
    def flaky(self):
        if self.request.retries < 2:
            raise self.retry(countdown=3600)
        return self.request.retries

    assert flaky.delay().get() == 2


def test_an_eager_task_that_fails_raises_its_own_error(app):
    app.conf.task_always_eager = True

    @app.task(base=DLXRetryTask, shared=False, policy=Fixed(1))
    def broken():
        raise KeyError("k")

    with pytest.raises(KeyError):
        broken.delay().get()


def eager(app, run, **options):
    """Run a task eagerly that fails as ``run(retries)`` does: its result, and how often it ran."""
    runs = []

    @app.task(bind=True, base=DLXRetryTask, shared=False, **options)
    def task(self):
        runs.append(self.request.retries)
        return run(self)

    result = task.apply()
    assert runs == list(range(len(runs)))
    return result, len(runs)


def failing(*errors):
    """Raise one error after the other, the last one again and again."""

    def run(task):
        raise errors[min(task.request.retries, len(errors) - 1)]

    return run


def test_an_eager_task_follows_its_policy_without_waiting(app):
    result, runs = eager(app, failing(OSError("down")), policy=[3600, 7200])

    assert (result.state, runs) == ("FAILURE", 3)
    with pytest.raises(OSError, match="down"):
        result.get()


def test_an_eager_task_that_succeeds_in_the_end_has_succeeded(app):
    result, _ = eager(app, lambda task: 1 // task.request.retries, policy=3600)

    assert result.get() == 1


RULED = Fixed(3600, retries=2, rules=[On(TimeoutError, Fixed(60, retries=2)), On(KeyError, DEAD)])


@pytest.mark.parametrize(
    ("errors", "runs"),
    [
        ([KeyError("k")], 1),
        ([TimeoutError()], 3),
        ([OSError(), OSError(), TimeoutError()], 5),
        ([TimeoutError(), OSError(), TimeoutError(), OSError()], 5),
        ([DeadLetter("no")], 1),
        ([RetryIn(37)], 3),
    ],
)
def test_an_eager_task_counts_each_rules_own_retries(app, errors, runs):
    assert eager(app, failing(*errors), policy=RULED)[1] == runs


def test_an_eager_task_may_choose_its_delay_without_a_policy(app):
    assert eager(app, failing(RetryIn(37)), max_retries=2)[1] == 3


def test_an_eager_task_that_asks_for_a_retry_asks_its_policy(app):
    def run(task):
        raise task.retry(exc=OSError("down"))

    result, runs = eager(app, run, policy=[3600, 7200])

    assert (type(result.result), runs) == (OSError, 3)


def test_an_error_after_a_swallowed_retry_is_not_retried_again(app):
    def run(task):
        with suppress(Retry):
            task.retry(countdown=5)
        raise OSError("down")

    assert eager(app, run, policy=[3600, 7200])[1] == 1


def test_a_retry_carries_no_header_but_what_the_policy_must_know(app):
    headers = []

    @app.task(bind=True, base=DLXRetryTask, shared=False, policy=[3600, 7200])
    def task(self, nested=False):  # noqa: FBT002
        if nested:
            raise self.retry(args=(), kwargs={}, exc=OSError("down"))
        headers.append(self.request.headers)
        if self.request.retries < 2:
            self(nested=True)

    assert task.apply().state == "SUCCESS"
    assert [set(each or ()) for each in headers] == [set(), {"dlx-first-failed-at"}, {"dlx-first-failed-at"}]


def test_an_eager_error_that_is_to_be_raised_is_raised(app):
    app.conf.update(task_always_eager=True, task_eager_propagates=True)

    @app.task(base=DLXRetryTask, shared=False, policy=Fixed(1))
    def broken():
        raise KeyError("k")

    with pytest.raises(KeyError):
        broken.delay()


def test_a_task_that_is_called_in_another_one_raises_its_error_there(app):
    @app.task(base=DLXRetryTask, shared=False, policy=Fixed(1))
    def inner():
        raise KeyError("k")

    def run(_task):
        with pytest.raises(KeyError):
            inner()

    assert eager(app, run, policy=[3600])[1] == 1


def test_a_direct_call_is_a_function_call(app):
    @app.task(bind=True, base=DLXRetryTask, shared=False)
    def double(self, number):
        assert self.request.called_directly
        return number * 2

    assert double(21) == 42


def test_retry_in_a_direct_call_raises_the_error_itself(app):
    @app.task(bind=True, base=DLXRetryTask, shared=False)
    def flaky(self, exc):
        raise self.retry(exc=exc)

    with pytest.raises(OSError, match="down"):
        flaky(OSError("down"))
    with pytest.raises(Retry):
        flaky(None)


def test_a_task_that_calls_itself_directly_is_not_confused(app):
    app.conf.task_always_eager = True

    @app.task(bind=True, base=DLXRetryTask, shared=False)
    def factorial(self, number):
        return 1 if number == 0 else number * self(number - 1)

    assert factorial.delay(5).get() == 120


def test_dead_letter_in_a_direct_call_is_an_exception(app):
    @app.task(bind=True, base=DLXRetryTask, shared=False)
    def hopeless(self):
        self.dead_letter("no")

    with pytest.raises(DeadLetter, match="no"):
        hopeless()


def test_an_eager_task_does_not_wait_for_its_countdown(app):
    app.conf.task_always_eager = True

    @app.task(base=DLXRetryTask, shared=False)
    def add(x, y):
        return x + y

    assert add.apply_async((1, 2), countdown=3600).get() == 3


@pytest.mark.parametrize("given", [{}, {"dlx_require_rabbitmq": True}])
def test_a_countdown_on_another_broker_is_celerys_own(app, given):
    app.conf.update(given)

    @app.task(base=DLXRetryTask, shared=False, name="add")
    def add(): ...

    add.apply_async(countdown=3600)

    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("celery").get_nowait()
        message.ack()
    assert message.headers["task"] == "add"
    assert message.headers["eta"]


def test_an_eager_task_has_no_budget_and_no_breaker(app):
    app.conf.task_always_eager = True

    @app.task(bind=True, base=DLXRetryTask, shared=False, budget=Budget(0.1, reserve=1), breaker=Breaker(1))
    def flaky(self):
        if self.request.retries < 3:
            raise self.retry(countdown=3600, max_retries=3)
        return self.request.retries

    assert [flaky.delay().get() for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"policy": "soon"}, "policy is 'soon'; it must be a policy, seconds, a list of seconds or a function."),
        ({"policy": [1, "a"]}, "policy[1] is 'a'; it must be a timedelta or a number of seconds, finite and not"),
        ({"policy": []}, "policy is []; it must be a list of at least one delay."),
        ({"policy": -5}, "policy is -5; it must be a timedelta or a number of seconds, finite and not negative."),
        ({"budget": -1}, "Budget.share is -1; it must be"),
        ({"breaker": 5}, "breaker is 5; it must be a Breaker, or None."),
    ],
)
def test_a_bad_option_names_its_task_and_what_was_written(app, options, problem):
    with pytest.raises(InvalidTask) as caught:

        @app.task(name="shop.charge", base=DLXRetryTask, shared=False, lazy=False, **options)
        def charge():
            """Never made."""

    assert str(caught.value).startswith(f"The task 'shop.charge': {problem}")


@pytest.mark.parametrize("limit", [{"budget": "20%"}, {"budget": True}, {"breaker": 5}])
def test_what_is_no_budget_and_no_breaker_fails_where_the_task_is_defined(app, limit):
    with pytest.raises(InvalidPolicy, match=next(iter(limit))):

        @app.task(base=DLXRetryTask, shared=False, lazy=False, **limit)
        def wrong():
            """Never made."""


@pytest.mark.parametrize("name", ["task", "request", "args", "kwargs", "hook", "body"])
def test_an_argument_of_a_direct_or_eager_call_may_have_any_name(app, name):
    @app.task(base=DLXRetryTask, shared=False)
    def echo(**kwargs):
        return kwargs

    assert echo(**{name: 1}) == echo.apply(kwargs={name: 1}).get() == {name: 1}


class Context(Task):
    """Another package's class, whose __call__ runs the body."""

    abstract = True
    entered = 0

    def __call__(self, *args, **kwargs):
        type(self).entered += 1
        return self.run(*args, **kwargs)


class PoliteContext(Context):
    abstract = True

    def __call__(self, *args, **kwargs):
        type(self).entered += 1
        return Task.__call__(self, *args, **kwargs)


@pytest.mark.parametrize("context", [Context, PoliteContext])
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_class_after_ours_is_called_in_direct_and_eager_calls_as_without_ours(app, context, is_direct):
    class Both(DLXRetryTask, context):
        abstract = True

    def body(self):
        request = self.request
        return self.entered, len(self.request_stack), request.called_directly, request.is_eager

    plain = app.task(body, bind=True, base=context, shared=False, name="plain")
    ours = app.task(body, bind=True, base=Both, shared=False, name="ours")

    seen = [task() if is_direct else task.apply().get() for task in (plain, ours)]

    assert seen[0] == seen[1]
    assert seen[1][0] == 1


def test_a_tracer_may_be_deleted_and_is_none_then(app):
    @app.task(base=DLXRetryTask, shared=False)
    def task():
        """Never run."""

    task.__trace__ = lambda: None
    del task.__trace__

    assert task.__trace__ is None
