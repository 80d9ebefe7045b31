"""Wrong types, huge numbers and strange names: each is taken, or refused in one short sentence."""

import time
from datetime import timedelta

import pytest

import celery_dlx_retry as dlx
from celery_dlx_retry.errors import ConfigurationError
from celery_dlx_retry.settings import NAMES, Settings


class Unprintable:
    def __repr__(self):
        raise RuntimeError


VALUES = [
    *(None, True, False, 0, 1, -1, 256, 2**31, 2**63, 2**64, 10**400, 10**5000, -(10**5000), 10**100_000),
    *(0.0, 0.5, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, 1j),
    *("", "x", "x" * 300, "x" * 1_000_000, "a\nb", "\x1b[2J", "größe", "\u202e", "\ud800", "amq.x", "1", "{queue}\n"),
    *(b"", b"x", [], [1], ["x"], (), (1,), (1, 2), {}, {"a": 1}, set(), range(3), object(), Unprintable()),
    *(int, str, ValueError, dlx.Budget, dlx.Fixed, dlx.FullJitter, len, lambda: 1, lambda retry, error: 1),  # noqa: ARG005
    *(timedelta(0), timedelta(days=1), timedelta(days=-1), timedelta.max, timedelta.min),
]


def used(policy):
    """What a worker does with a policy."""
    repr(policy)
    policy.within(60_000).known_delays_ms()
    for retry in (1, 50, 10**6):
        policy.delay_ms(retry, ValueError())


MAKERS = {
    **{name: lambda value, name=name: repr(Settings.read({name: value})) for name in sorted(NAMES)},
    "dlx_queue": dlx.dlx_queue,
    **{
        f"dlx_queue {kind} {argument}": lambda value, kind=kind, argument=argument: dlx.dlx_queue(
            "q", **{"queue_type": kind, argument: value}
        )
        for kind in ("classic", "quorum")
        for argument in (
            *("queue_type", "exchange", "routing_key", "delivery_limit", "max_length", "max_priority"),
            *("delayed_retry", "prefix"),
        )
    },
    **{
        f"{kind.__name__}": lambda value, kind=kind: used(kind(value))
        for kind in (dlx.Fixed, dlx.Linear, dlx.Exponential, dlx.Delays)
    },
    "Custom": lambda value: repr(dlx.Custom(value)),
    **{
        f"{kind.__name__} {argument}": lambda value, kind=kind, argument=argument: used(kind(1, **{argument: value}))
        for kind, arguments in (
            (dlx.Fixed, ("retries", "jitter", "deadline", "rules", "errors", "retry_after")),
            (dlx.Linear, ("step", "limit")),
            (dlx.Exponential, ("factor", "limit")),
        )
        for argument in arguments
    },
    "Delays retries": lambda value: used(dlx.Delays([1], retries=value)),
    **{
        f"Budget {argument}": lambda value, argument=argument: repr(
            dlx.Budget(**{"share": 0.5, argument: value}).open(now_ms=0).after_first_attempt(now_ms=60_000)
        )
        for argument in ("share", "per_minute", "reserve", "over")
    },
    **{
        f"Breaker {argument}": lambda value, argument=argument: repr(dlx.Breaker(**{argument: value}))
        for argument in ("after", "probe_every")
    },
    "ProportionalJitter": lambda value: repr(dlx.ProportionalJitter(value)),
    "On match": lambda value: repr(dlx.On(value, dlx.DEAD)),
    "On then": lambda value: repr(dlx.On(ValueError, value)),
    "RetryIn": lambda value: repr(dlx.RetryIn(value)),
    "RetryIn detail": lambda value: repr(dlx.RetryIn(1, value)),
    "DeadLetter": lambda value: str(dlx.DeadLetter(value)),
    "install": dlx.install,
}


def refusal(make, value):
    try:
        make(value)
    except ConfigurationError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("name", MAKERS)
def test_every_value_is_taken_or_refused_in_one_short_sentence(name):
    begun = time.monotonic()
    for value in VALUES:
        sentence = refusal(MAKERS[name], value)
        assert sentence.isprintable()
        assert sentence == "" or sentence.endswith(".")
        assert len(sentence) < 1_000

    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: dlx.dlx_queue(5), "dlx_queue(5): this is not a name for a queue: it must be a str."),
        (lambda: dlx.dlx_queue(b"x"), "dlx_queue(b'x'): this is not a name for a queue: it must be a str."),
        (
            lambda: dlx.dlx_queue("\ud800"),
            "dlx_queue('\\ud800'): this is not a name for a queue: it must be valid Unicode, and has a lone surrogate.",
        ),
        (
            lambda: dlx.dlx_queue("a\nb"),
            "dlx_queue('a\\nb'): this is not a name for a queue: it must have printable characters only.",
        ),
        (
            lambda: dlx.dlx_queue("amq.x"),
            "dlx_queue('amq.x'): this is not a name for a queue: RabbitMQ keeps names that begin with 'amq.' ",
        ),
        (lambda: dlx.dlx_queue("q", exchange=5), "dlx_queue('q'): exchange is 5; it must be a str."),
        (
            lambda: dlx.dlx_queue("q", routing_key="k" * 256),
            f"dlx_queue('q'): routing_key is '{'k' * 199}…; it must have 1 to 255 bytes, and has 256.",
        ),
        (
            lambda: dlx.dlx_queue("q", max_priority=256),
            "dlx_queue('q'): max_priority is 256; it must be a whole number from 1 to 255.",
        ),
        (lambda: dlx.RetryIn(10**5000), "RetryIn.seconds is <int>; it must be a timedelta or a number of seconds, "),
        (lambda: dlx.Fixed(1, errors=lambda: True), "Fixed.errors is <function "),
        (lambda: dlx.install(5), "install(app) is 5; it must be a Celery app."),
    ],
)
def test_a_refusal_says_what_is_and_what_must_be(make, sentence):
    with pytest.raises(ConfigurationError) as caught:
        make()

    assert str(caught.value).startswith(sentence)
