"""Every private name of Celery, Kombu, billiard and py-amqp that we use, and what differs between Celery's versions.

No other module may use a private name of these libraries (tests/unit/test_celery_compat.py). Each function here names
the private names that it uses, and what happens without them: ``lacks()`` reports them when a worker starts. The same
test checks that the installed versions still have each name, and `make compat-next` checks the newest pre-releases.
"""

from __future__ import annotations

import functools
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar

from kombu.messaging import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery
    from kombu.entity import Queue

    Function = TypeVar("Function", bound=Callable[..., Any])

#: Private names, as ``module:owner.name``, and what happens without each.
USES: dict[str, str] = {}
#: Functions for a fault of Celery, and the first version of Celery without the fault.
ENDS: dict[str, str] = {}
#: Functions for a fault that no version has repaired, and the last version that we have checked.
STILL_IN: dict[str, str] = {}


def _uses(*names: str, without: str) -> Callable[[Function], Function]:
    def note(function: Function) -> Function:
        USES.update(dict.fromkeys(names, without))
        return function

    return note


def _ends(version: str, book: dict[str, str] = ENDS) -> Callable[[Function], Function]:
    def note(function: Function) -> Function:
        book[function.__name__] = version
        return function

    return note


def lacks() -> str:
    """Return one sentence about the private names that the installed libraries lack; empty if they have all."""
    missing = {name: without for name, without in USES.items() if not has(name)}
    if not missing:
        return ""
    from celery import __version__  # noqa: PLC0415 - a process that only publishes need not import it

    consequences = "; ".join(dict.fromkeys(missing.values()))
    return f"Celery {__version__} lacks {', '.join(missing)}, which celery_dlx_retry uses: {consequences}."


def has(use: str) -> bool:
    """Return whether the installed libraries have this name, written ``module:owner.name`` or ``module:name``."""
    module, _, path = use.partition(":")
    owner, _, name = path.rpartition(".")
    try:
        found: Any = import_module(module)
        found = getattr(found, owner) if owner else found
    except (ImportError, AttributeError):
        return False
    return name in dir(found) or name in _names_in(found)


def _names_in(owner: Any) -> set[str]:
    """Return the names in the code of a function, or of the methods of a class."""
    kinds = owner.__mro__ if isinstance(owner, type) else ()
    functions = [it for kind in kinds for it in vars(kind).values()] or [owner]
    return {name for it in functions if (code := getattr(it, "__code__", None)) for name in _names_in_code(code)}


def _names_in_code(code: CodeType) -> set[str]:
    inner = (_names_in_code(it) for it in code.co_consts if isinstance(it, CodeType))
    return {*code.co_names, *code.co_cellvars}.union(*inner)


# --- py-amqp and Kombu ---


@_uses("amqp.transport:TCPTransport._quick_recv", without="half a frame from the broker keeps the event loop busy")
def wrap_receive(transport: Any, wrap: Callable[[Callable[[int], bytes]], Callable[[int], bytes]]) -> None:
    """Wrap the function with which py-amqp reads from the socket."""
    if receive := getattr(transport, "_quick_recv", None):
        transport._quick_recv = wrap(receive)  # noqa: SLF001


@_uses("amqp.basic_message:Message._serialize_properties", without="a bad header costs the broker connection")
def encode_properties(message: Any) -> None:
    """Encode the properties and headers of a py-amqp message now, and not in the middle of its publish."""
    if encode := getattr(message, "_serialize_properties", None):
        octets = encode()
        message._serialize_properties = lambda: octets  # noqa: SLF001


class HookedProducer(Producer):
    """A Kombu producer that calls ``send()`` with the message that Kombu has written."""

    @_uses("kombu.messaging:Producer._publish", without="publishes are not encoded in advance")
    def _publish(  # noqa: PLR0913, PLR0917 - Kombu's own signature
        self,
        body: Any,
        priority: int | None,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,  # noqa: FBT001
        _immediate: bool,  # noqa: FBT001
        exchange: str,
        _declare: Any,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        *_: Any,
    ) -> None:
        message = (body, priority, content_type, content_encoding, headers, properties)
        options = {"mandatory": mandatory, "timeout": timeout, "confirm_timeout": confirm_timeout}
        self.send(message, exchange=exchange, routing_key=routing_key, **options)

    def send(self, message: tuple[Any, ...], *, exchange: str, routing_key: str, **options: Any) -> None:
        """Publish a message, given as the arguments of Kombu's ``prepare_message()``."""
        self.channel.basic_publish(
            self.channel.prepare_message(*message), exchange=exchange, routing_key=routing_key, **options
        )


@_uses("kombu.messaging:Consumer._active_tags", without="a delivery belongs to the queue named like its routing key")
def queues_by_tag(consumer: Any) -> dict[str, Queue]:
    """Return the queues of a Kombu consumer by consumer tag."""
    tags = getattr(consumer, "_active_tags", {})
    return {tags[queue.name]: queue for queue in consumer.queues if queue.name in tags}


@_uses("kombu.message:Message._state", without="Celery may acknowledge a delivery that went back to its queue")
def mark_requeued(message: Any) -> None:
    """Mark a Kombu message as given back to its queue, as its ``requeue()`` does."""
    message._state = "REQUEUED"  # noqa: SLF001


# --- Celery's apps and tasks ---


@_uses("celery._state:_get_active_apps", without="tests keep budgets and breakers of earlier tests")
def active_apps() -> set[Celery]:
    """Return all apps of this process."""
    from celery import _state  # noqa: PLC0415 - only for tests

    apps: set[Celery] = getattr(_state, "_get_active_apps", set)()
    return apps


@_uses("celery.app.base:Celery._fixups", without="tasks have no delay_on_commit() in Django projects")
def fixups(app: Celery) -> tuple[Any, ...]:
    """Return the fixups of an app, for example Celery's for Django."""
    return tuple(getattr(app, "_fixups", None) or ())


@_uses("celery.app.amqp:AMQP._event_dispatcher", without="task-sent events of waiting tasks are not sent")
def event_dispatcher(app: Celery) -> Any:
    """Return the dispatcher of task-sent events."""
    return getattr(app.amqp, "_event_dispatcher", None)


@_uses("celery.app.task:Task._get_exec_options", without="a task's class options are read one by one")
def exec_options(task: Any) -> dict[str, Any]:
    """Return the options of a task's class for ``apply_async()``."""
    if (read := getattr(task, "_get_exec_options", None)) is None:
        from celery.app.task import extract_exec_options as read_options  # noqa: PLC0415 - the slower public way

        read = functools.partial(read_options, task)
    options: dict[str, Any] = read()
    return options


@_uses("celery.app.task:Task._app", without="the doctor does not find a task class of the app")
def task_class_of(app: Celery) -> type:
    """Return the class in ``task_cls`` or ``app.Task``, without the subclass that Celery makes for each app."""
    kinds: tuple[type, ...] = app.Task.__mro__
    return next(kind for kind in kinds if "_app" not in vars(kind))


@_uses("celery.app.task:Context._protected", without="a task that calls itself is settled twice")
def protect(request: Any) -> bool:
    """Return whether a run is protected; protect it from now on, as Celery does while it calls the body."""
    before = bool(getattr(request, "_protected", False))
    request._protected = 1  # noqa: SLF001
    return before


@_uses("celery.app.trace:build_tracer.hostname", without="Celery formats every traceback of a retry")
def tracer_hostname(tracer: Any) -> str | None:
    """Return the hostname that a tracer has from ``build_tracer()``; None if it is not Celery's own tracer."""
    try:
        closure = dict(zip(tracer.__code__.co_freevars, tracer.__closure__ or (), strict=False))
        return str(closure["hostname"].cell_contents)
    except (AttributeError, KeyError):
        return None


# --- Celery's requests in the worker's main process ---

_REQUEST = "celery.worker.request:Request"


@_uses(f"{_REQUEST}._eta", without="Celery holds a due task once more")
def clear_eta(request: Any, *, is_watched: bool) -> None:
    """Let Celery run a request now. The task still sees its eta, and so does a monitor if there is one."""
    eta = request.request_dict.get("eta")
    is_shown = is_watched and isinstance(eta, str) and request.app.conf.event_serializer in _TEXT_SERIALIZERS
    request._eta = _PastEta(eta) if is_shown else None  # noqa: SLF001


# Other serializers cannot write a str of another class into an event, or bring it back as that class.
_TEXT_SERIALIZERS = frozenset(("json", "msgpack"))


class _PastEta(str):
    """An eta that Celery writes into the event task-received and does not wait for: it asks if the eta is true."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


@_uses(f"{_REQUEST}._delivery_info", without="a failed task cannot be settled")
def set_delivery_info(request: Any, info: dict[str, Any]) -> None:
    """Set the delivery info of a request, in the worker's main process and in the pool process."""
    request._delivery_info = request.request_dict["delivery_info"] = info  # noqa: SLF001


@_uses(f"{_REQUEST}._context", without="signals get a request that is made from the message")
def task_context(request: Any) -> Any:
    """Return the task request that Celery gives to signals and hooks in the main process."""
    if (context := getattr(request, "_context", None)) is None:
        from celery.app.task import Context  # noqa: PLC0415 - the slower public way

        context = Context(request.request_dict)
    return context


@_uses(
    *(f"{_REQUEST}._already_revoked", f"{_REQUEST}._already_cancelled"),
    without="a revoked or cancelled task is retried",
)
def is_revoked_or_cancelled(request: Any) -> bool:
    """Return whether Celery has revoked or cancelled a request."""
    return any(getattr(request, name, False) for name in ("_already_revoked", "_already_cancelled"))


@_uses(f"{_REQUEST}._terminate_on_ack", without="a task that is terminated at its start is retried")
def is_ended_by_celery(request: Any) -> bool:
    """Return whether Celery has revoked or cancelled a request, or terminates it as soon as it starts."""
    return is_revoked_or_cancelled(request) or bool(getattr(request, "_terminate_on_ack", None))


# --- Faults of Celery ---


@_ends("5.7")
def keep_ignore_result(options: dict[str, Any], headers: Mapping[str, Any]) -> None:
    """Celery forgets, when it retries a task, that it was called with ``ignore_result``."""
    if isinstance(ignored := headers.get("ignore_result"), bool):
        options.setdefault("ignore_result", ignored)


@_ends("5.7")
def storable(error: Any) -> Any:
    """Celery stores only errors that are an ``Exception``, and fails for any other."""
    from celery import VERSION  # noqa: PLC0415 - a process that only publishes need not import it
    from celery.utils.serialization import create_exception_cls  # noqa: PLC0415

    if isinstance(error, Exception) or not isinstance(error, BaseException) or VERSION[:2] >= (5, 7):
        return error
    kind = type(error)
    return create_exception_cls(kind.__name__, kind.__module__)(*error.args)


@_ends("5.7")
def dumps_models(task: Any) -> bool:
    """Celery does not dump arguments that are Pydantic models, and has no attribute that shows it."""
    return getattr(task, "_dump_pydantic_arguments", None) is not None


@_ends("5.7", STILL_IN)
def distrusts_stored_success(is_ours: Callable[[Any], bool]) -> Callable[[type], type]:
    """Celery takes a stored SUCCESS of a task's id for the result of a run whose pool process died.

    The id may have been used before, and no backend knows which run stored a result. So decorate a class of requests
    with this: a request of ours runs again. Only newer versions of Celery ask for a stored result.
    """

    def decorate(kind: type) -> type:
        if (of_celery := getattr(kind, "_success_was_stored", None)) is not None:
            answer = lambda request: False if is_ours(request) else of_celery(request)  # noqa: E731
            kind._success_was_stored = answer  # type: ignore[attr-defined]  # noqa: SLF001
        return kind

    return decorate


@_ends("5.7", STILL_IN)
@_uses(
    *("celery.concurrency.base:BasePool._pool", "billiard.pool:Pool._cache", "billiard.pool:Pool._state"),
    *("celery.concurrency.asynpool:AsynPool._active_writers", "billiard.pool:ApplyResult._write_to"),
    "celery.concurrency.asynpool:_get_job_writer._writer",
    without="a warm shutdown may run tasks twice",
)
def wait_for_what_is_given(pool: Any) -> None:
    """From 5.6 on Celery forgets, at a warm shutdown, jobs in the pipe of a process; they run, and run again.

    The process has not reported yet that it starts such a job. So Celery ignores its result, and the broker delivers
    the message again. Here a prefork pool keeps such jobs. You can call this more than once.
    """
    from celery.concurrency.asynpool import AsynPool  # noqa: PLC0415 - only for workers

    processes = getattr(pool, "_pool", None)
    if isinstance(processes, AsynPool) and all(
        hasattr(processes, it) for it in ("_cache", "_state", "_active_writers")
    ):
        pool.flush = functools.partial(_flush, processes)


def _flush(processes: Any) -> None:
    """Flush the pool. Celery also does this after a lost connection; then the broker delivers all jobs again."""
    from billiard.pool import CLOSE  # noqa: PLC0415 - only for workers

    jobs = processes._cache  # noqa: SLF001
    given = {number: job for number, job in jobs.items() if _is_given(processes, job)}
    processes.flush()
    if processes._state == CLOSE:  # noqa: SLF001
        jobs.update(given)


def _is_given(processes: Any, job: Any) -> bool:
    return job._write_to is not None and job._writer() not in processes._active_writers  # noqa: SLF001
