"""The public API: each call gives a sound value, or one of our errors, TypeError or ValueError in one sentence."""

from __future__ import annotations

import pickle
from datetime import timedelta
from inspect import Parameter, signature

import pytest
from celery import Celery
from kombu.entity import Exchange, Queue

import celery_dlx_retry
from celery_dlx_retry import DEAD, LET_FAIL, DLXRetryTask, Exponential, Fixed, FullJitter, On, Policy, RetryIn
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.policy.decision import Dead, LetFail, Wait, decide
from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from tests.fuzz import values
from tests.fuzz.verdict import check_sentence

CALLS = {
    name: it
    for name in celery_dlx_retry.__all__
    if callable(it := getattr(celery_dlx_retry, name)) and it not in (DLXError, DLXRetryTask, Policy)
}
DOCUMENTED = (DLXError, TypeError, ValueError)
SECONDS = (0, 1, 0.5, 60, timedelta(hours=1), 10**9)
PLAUSIBLE = {
    "retries": (0, 1, 3, None),
    "jitter": (None, FullJitter()),
    "rules": ((), [On(KeyError, DEAD)], [On(OSError, Fixed(3)), On(Exception, LET_FAIL)]),
    "errors": (Exception, (OSError, KeyError), lambda _error: True),
    "match": (Exception, (OSError, KeyError), lambda error: error.nothing),
    "then": (DEAD, LET_FAIL, 5, [1, 2], Fixed(1)),
    "delays": ([1, 2, 3], (1,)),
    "function": (lambda retry, _error: retry, lambda _retry, _error: "soon"),
    "factor": (1, 2, 1.5, 10),
    "share": (0.1, 1),
    "per_minute": (1, 0.5),
    "reserve": (1, 10),
    "over": (DEAD, 60),
    "after": (1, 5),
    "detail": ("why",),
    "name": ("orders",),
    "queue_type": ("classic", "quorum"),
    "exchange": (None, "shop", Exchange("shop")),
    "routing_key": (None, "orders"),
    "delivery_limit": (None, 5),
    "max_length": (None, 5),
    "max_priority": (None, 5),
    "delayed_retry": (None, 1, (1, 2)),
    "prefix": ("dlx",),
    "app": (Celery("fuzz", set_as_current=False),),
}


class Hostile(Exception):
    """As a server may answer: anything in ``retry_after``, and anything in its headers."""

    def __init__(self, hint, headers):
        super().__init__("later")
        self.retry_after, self.headers = hint, headers


def arguments(it, function):
    """Arguments that fit, mostly, with values that do not."""
    args, kwargs = [], {}
    for parameter in signature(function).parameters.values():
        is_needed = parameter.default is Parameter.empty
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) or not (is_needed or it.is_one_in(4)):
            continue
        good = PLAUSIBLE.get(parameter.name, SECONDS)
        value = it.choice(good) if it.is_one_in(2) else values.anything(it)
        if parameter.kind is Parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    if it.is_one_in(30):
        it.one(lambda _: args.append(1), lambda _: kwargs.update(unheard_of=1), lambda _: args.clear())
    return args, kwargs


def check(made, it):
    """A value that was made works."""
    repr(made)
    if isinstance(made, Policy):
        hash_free = pickle.loads(pickle.dumps(made)) if not any_function(made) else made  # noqa: S301 - our own
        assert repr(hash_free) == repr(made)
        for delay in (made.within(1000), made):
            assert all(isinstance(each, int) and each >= 0 for each in delay.known_delays_ms())
        for _ in range(3):
            error = it.one(
                ValueError("x"), RetryIn(3), Hostile(values.anything(it), {"Retry-After": values.anything(it)})
            )
            decision = decide(
                made, error, attempt=it.choice([1, 2, 64, 10**6]), elapsed_ms=it.choice([0, 10**9]),
                chance=it.random(), now=1.7e9,
            )  # fmt: skip
            assert isinstance(decision, (Wait, Dead, LetFail))
            assert not isinstance(decision, Wait) or 0 <= decision.delay_ms <= MAX_DELAY_MS
    if isinstance(made, Queue):
        assert isinstance(made.name, str)
        assert 1 <= len(made.name.encode()) <= 200
        assert all(isinstance(each, (str, int)) for each in made.queue_arguments.values())


def any_function(policy):
    """Whether it holds a function, which pickle does not take."""
    return "<" in repr(policy) or "lambda" in repr(policy)


def refused(exc):
    """One of the documented errors, in a sentence. Python's own TypeError for a wrong call is one."""
    assert isinstance(exc, DOCUMENTED), repr(exc)
    check_sentence(exc)


def test_every_public_call_gives_a_sound_value_or_a_documented_error(fuzz):
    def attempt(it):
        name = it.choice(sorted(CALLS))
        if it.is_one_in(6):
            return attempt_task(it)
        args, kwargs = arguments(it, CALLS[name])
        it.note(f"{name}(*{args!r}, **{kwargs!r})")
        try:
            made = CALLS[name](*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - any other is what this looks for
            return refused(exc)
        return check(made, it)

    fuzz.each("api", attempt)


def attempt_task(it):
    """``policy=``, ``budget=`` and ``breaker=`` of a task, as the app and the worker read them."""
    options = {
        name: it.one(*map(constant, good), values.anything)
        for name, good in {
            "policy": (None, 5, [1, 2], Exponential(1, jitter=FullJitter())),
            "budget": (None, 0.1, celery_dlx_retry.Budget(per_minute=3)),
            "breaker": (None, celery_dlx_retry.Breaker(3)),
        }.items()
    }
    it.note(f"@app.task(base=DLXRetryTask, **{options!r})")
    app = Celery("fuzz", broker="memory://", set_as_current=False)
    try:
        app.task(body, name="fuzz.task", shared=False, base=DLXRetryTask, **options)
        app.finalize()
        context_of(app).plan(list(app.amqp.queues.values()))
    except Exception as exc:  # noqa: BLE001 - any other is what this looks for
        refused(exc)
    finally:
        app.close()


def body():
    """Of a task."""


def constant(value):
    return lambda _: value


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_public_name_has_plausible_arguments(name):
    """So that half of the inputs reach what is behind the checks of types."""
    known = {*PLAUSIBLE, "seconds", "delay", "start", "step", "limit", "deadline", "retry_after", "probe_every"}
    assert set(signature(CALLS[name]).parameters) <= known
