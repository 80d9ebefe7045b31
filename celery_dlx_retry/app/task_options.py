"""Celery's options for acknowledging: on RabbitMQ a task keeps its message, on any other broker they stay Celery's.

They choose between losing a task and running it again for ever. On RabbitMQ a failure is a retry or a dead letter, and
is acknowledged then. Elsewhere nothing is kept, so the user's choice must count.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.app.task import Task

from celery_dlx_retry.values.broker_urls import check_broker_urls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

_KEEPING = {
    "reject_on_worker_lost": False,
    "retry_on_worker_lost": False,
    "acks_on_failure_or_timeout": True,
    "acks_on_failure": True,
    "acks_on_timeout": True,
}
# Not every version of Celery has all of them.
_OPTIONS = ("acks_late", *(name for name in _KEEPING if hasattr(Task, name)))
_UNSET: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What plain Celery gives these options, and whether the user left ``acks_late`` to us."""

    celerys: Mapping[str, Any]
    is_late_unset: bool
    is_keeping: bool


def bind_with_options(cls: Any, app: Celery, celerys_bind: Callable[[Celery], Celery]) -> Celery:
    """Bind a task class by Celery's own ``bind``, and choose its options for the broker that is configured now."""
    for name in _OPTIONS:
        _undo(cls, name)
    app = celerys_bind(app)
    is_late_unset = cls.acks_late is _UNSET
    if is_late_unset:
        cls.acks_late = app.conf.task_acks_late
    _choose(cls, {name: getattr(cls, name) for name in _OPTIONS}, is_late_unset, is_keeping=_has_amqp(app))
    return app


def choose_again(cls: Any, *, is_keeping: bool) -> None:
    """Choose the options of a bound task class again, if the broker is of another kind than when it was bound."""
    options: Options | None = vars(cls).get("_dlx_options")
    if options is not None and options.is_keeping is not is_keeping:
        _choose(cls, options.celerys, options.is_late_unset, is_keeping=is_keeping)


def is_acknowledged_early(cls: Any) -> bool:
    """Whether RabbitMQ cannot keep a bound task because the user wants it acknowledged before it runs."""
    options: Options = cls._dlx_options
    return options.is_keeping and not cls.acks_late


def is_ours(task: Any) -> bool:
    """Whether a task, or None, is a DLXRetryTask. This layer cannot import that class."""
    return hasattr(task, "known_delays_ms")


def has_amqp(app: Celery) -> bool:
    """Whether the broker of the app can be RabbitMQ: whether Kombu talks to it by py-amqp."""
    check_urls(app)
    transport = app.connection_for_write().get_transport_cls()
    return (transport.driver_type, transport.driver_name) == ("amqp", "py-amqp")


def check_urls(app: Celery) -> None:
    """Raise BadBrokerURL before Kombu can quote a part of a URL that it cannot read."""
    conf: Any = app.conf
    for setting in (conf.broker_read_url, conf.broker_write_url):
        check_broker_urls(setting)


def _has_amqp(app: Celery) -> bool:
    try:
        return has_amqp(app)
    except (ImportError, NameError, AttributeError, KeyError, ValueError):
        return False  # a broker URL that Celery cannot use either, and names when it is used


def _undo(cls: Any, name: str) -> None:
    """Give an option the value that plain Celery would find: Celery binds a class twice, and a class may inherit it."""
    owner = next(each for each in cls.__mro__ if name in vars(each))
    options: Options | None = vars(owner).get("_dlx_options")
    value = vars(owner)[name] if options is None else options.celerys[name]
    if name == "acks_late" and (value is None if options is None else options.is_late_unset):
        # None is for Celery to replace, and annotations may do so afterwards.
        value = _UNSET
    setattr(cls, name, value)


def _choose(cls: Any, celerys: Mapping[str, Any], is_late_unset: bool, *, is_keeping: bool) -> None:  # noqa: FBT001
    cls._dlx_options = Options(celerys=celerys, is_late_unset=is_late_unset, is_keeping=is_keeping)
    chosen = dict(celerys)
    if is_keeping:
        chosen |= {name: value for name, value in _KEEPING.items() if name in celerys}
        chosen["acks_late"] = True if is_late_unset else celerys["acks_late"]
    for name, value in chosen.items():
        setattr(cls, name, value)


def warn_elsewhere(transport: str) -> None:
    """Say what a worker on this transport cannot do."""
    warnings.warn(
        f"DLXRetryTask needs RabbitMQ; the broker transport is {transport!r}. Policies decide here as well, but "
        "Celery's own retries carry the wait, in the worker's memory. There are no dead letters, budgets and breakers "
        "here: what fails is not kept. Set dlx_require_rabbitmq = True to make this an error.",
        stacklevel=3,
    )
