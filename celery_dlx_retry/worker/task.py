"""DLXRetryTask: the task base class whose retries wait in the broker and whose failures are kept."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn

from celery.app.task import Task
from celery.utils.log import get_logger
from kombu.serialization import registry

from celery_dlx_retry.app.clock import delay_ms
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.task_options import bind_with_options, is_acknowledged_early
from celery_dlx_retry.celery_compat import keep_ignore_result, protect
from celery_dlx_retry.errors import (
    DeadLetter,
    InvalidDelay,
    InvalidPolicy,
    InvalidRoute,
    InvalidTask,
)
from celery_dlx_retry.policy.breaker import Breaker
from celery_dlx_retry.policy.budget import as_budget
from celery_dlx_retry.policy.policies import MAX_DELAY_MS, as_policy
from celery_dlx_retry.topology.lanes import backoff_delays_ms
from celery_dlx_retry.values.durations import to_ms
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.worker.countdown import is_appointment, make, not_before_due
from celery_dlx_retry.worker.django import keep_on_commit
from celery_dlx_retry.worker.expires import without_time_to_live
from celery_dlx_retry.worker.install import install
from celery_dlx_retry.worker.other_brokers import carried_headers
from celery_dlx_retry.worker.patch_detection import is_internal, is_map
from celery_dlx_retry.worker.run import guard_hooks, guarded
from celery_dlx_retry.worker.run_state import is_ours
from celery_dlx_retry.worker.task_decision import decision_on

if TYPE_CHECKING:
    from celery import Celery

    from celery_dlx_retry.policy.budget import BudgetLike
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.policy.policies import PolicyLike
    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.worker.run_state import DeliveryInfo

logger = escaped(get_logger(__name__))

# The broker may refuse a message for it, and closes the channel then. The one of the main process is shared by all
# retries, so the pool process publishes such a message by itself.
_REFUSABLE = frozenset(("user_id",))
_SURELY_TAKEN_BYTES = 65_536


class DLXRetryTask(Task):
    """Use it as ``base=`` of a task; everything else about the task stays Celery's.

    ``policy`` says which errors are retried, when, and how often: a Policy, a list of delays, a delay, or a function.
    Without it Celery's own options do (``autoretry_for``, ``retry_backoff``, ``max_retries``, …).
    ``budget`` limits how many retries all messages of the task may have together: a Budget, or a share.
    ``breaker``, a Breaker, stops running a task that fails every time.
    """

    abstract = True
    policy: PolicyLike | None = None
    budget: BudgetLike | None = None
    breaker: Breaker | None = None
    Request = "celery_dlx_retry.worker.request:DLXRequest"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard_hooks(cls)

    @classmethod
    def bind(cls, app: Celery) -> Celery:
        """Celery's hook for a task that meets its app: here we install ourselves."""
        if is_internal(cls.name):
            # Celery(task_cls=DLXRetryTask) makes Celery's own tasks of our class, too.
            cls.acks_late, cls.Request = Task.acks_late, Task.Request
            app = super().bind(app)
        else:
            install(app)
            try:
                cls._check_options()
            except (InvalidPolicy, InvalidDelay) as problem:
                raise InvalidTask(task=cls.name, problem=str(problem)) from problem
            app = bind_with_options(cls, app, super().bind)
            if is_acknowledged_early(cls):
                logger.warning(
                    "task %s is acknowledged early (acks_late=False): it is lost if its worker dies; "
                    "remove that option",
                    cls.name, extra=log_fields("AcknowledgedEarly", task=cls.name),
                )  # fmt: skip
        guard_hooks(cls)  # task_annotations replace methods
        keep_on_commit(DLXRetryTask, app)
        return app

    @classmethod
    def _check_options(cls) -> None:
        if cls.policy is not None:
            policy = as_policy(cls.policy)
            cls.policy, cls.max_retries = policy, policy.retries
        if cls.budget is not None:
            cls.budget = as_budget(cls.budget)
        if cls.breaker is not None and not isinstance(cls.breaker, Breaker):
            raise InvalidPolicy(what="breaker", value=cls.breaker, wanted="a Breaker, or None")

    @guarded
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the body; the worker comes here, and so does who calls the task as a function."""
        request, call = self.request, super().__call__
        # A class after ours in the MRO may have a __call__. Celery's own pushes a second request in an eager run.
        is_celerys = getattr(call, "__func__", None) is Task.__call__
        if request.called_directly or not is_celerys or protect(request):
            return call(*args, **kwargs)
        return self.run(*args, **kwargs)

    @property
    def __trace__(self) -> Any:
        """Celery's tracer for this task, which the worker sets, in our wrapping."""
        return self.__dict__.get("_dlx_trace")

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        if tracer is not None:
            # Celery sets a tracer in workers only, and its module imports the worker's.
            from celery_dlx_retry.worker.trace import traced  # noqa: PLC0415

            tracer = traced(tracer, task=self)
        self.__dict__["_dlx_trace"] = tracer

    @__trace__.deleter
    def __trace__(self) -> None:
        self.__dict__.pop("_dlx_trace", None)

    @property
    def override_max_retries(self) -> int:
        """What retry(max_retries=…) leaves for Celery's autoretry. Celery leaves it to every later task, too."""
        try:
            limit: int = self.request.__dict__["_dlx_max_retries"]
        except KeyError:
            raise AttributeError("override_max_retries") from None
        return limit

    @override_max_retries.setter
    def override_max_retries(self, limit: int) -> None:
        self.request.__dict__["_dlx_max_retries"] = limit

    @override_max_retries.deleter
    def override_max_retries(self) -> None:
        self.request.__dict__.pop("_dlx_max_retries", None)

    def dead_letter(self, reason: str = "") -> NoReturn:
        """Give up now: the message becomes a dead letter, whatever the policy says."""
        raise DeadLetter(reason)

    def retry(  # noqa: PLR0913, PLR0917 - Celery's own signature
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,  # noqa: FBT001, FBT002
        eta: Any = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Celery's ``retry()``: same arguments, same meaning; it waits in the broker."""
        request = self.request
        if request.called_directly or is_internal(self.name):
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if isinstance(exc, DeadLetter):
            raise exc  # autoretry_for=(Exception,) must not retry what asked for the end
        from celery_dlx_retry.worker.retry import RetryCall, retry  # noqa: PLC0415 - for workers only

        call = RetryCall(
            celerys_retry=super().retry,
            celerys_apply_async=super().apply_async,
            args=args,
            kwargs=kwargs,
            exc=exc,
            throw=throw,
            eta=eta,
            countdown=countdown,
            max_retries=max_retries,
            options=options,
        )
        return retry(self, call)

    def signature_from_request(
        self, request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **options: Any
    ) -> Any:
        """Celery's way to say "this task again"; ours goes through a lane, around every route."""
        signature = super().signature_from_request(request, args, kwargs, queue, **options)
        request = self.request if request is None else request
        publish = signature.options
        if self.policy is not None and (request.is_eager or not is_ours(request)):
            publish["headers"] = carried_headers(publish.get("headers"), request)
        if not is_ours(request):
            return signature
        info: DeliveryInfo = request.delivery_info
        wait_ms = delay_ms(self.app, countdown=publish.pop("countdown", None), eta=publish.pop("eta", None))
        for option in ("exchange", "routing_key", "queue", "redelivered"):
            publish.pop(option, None)
        publish["dlx_wait"] = (self._return_address(info, queue, options), wait_ms, request)
        # The message is to come back as it came, also when this app would now write it otherwise.
        publish.setdefault("serializer", registry.type_to_name.get(info.message.content_type))
        publish.setdefault("compression", info.message.compression)
        from celery_dlx_retry.worker.retry_message import is_unchanged  # noqa: PLC0415 - for workers only

        now = {"argsrepr": (args, request.args), "kwargsrepr": (kwargs, request.kwargs)}
        for name, (given, before) in now.items():
            # Celery writes them anew, and so shows in its logs what the caller had hidden.
            if is_unchanged(given, before) and isinstance(text := info.message.headers.get(name), str):
                publish.setdefault(name, text)
        keep_ignore_result(publish, info.message.headers)
        return signature

    def apply_async(  # noqa: PLR0913, PLR0917 - Celery's own signature
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: Any = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: Any = None,
        **options: Any,
    ) -> Any:
        """Celery's ``apply_async()``; a countdown or an eta waits in the broker, and so does a retry.

        A retry is recognised by what ``signature_from_request`` left in its options.
        """
        named = {"task_id": task_id, "producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        options |= {name: value for name, value in named.items() if value is not None}
        wait = options.pop("dlx_wait", None)
        if wait is not None:
            from celery_dlx_retry.worker.retry import retry_async  # noqa: PLC0415 - for workers only

            return retry_async(self, functools.partial(super().apply_async, args, kwargs), options, *wait)
        if not is_internal(self.name) and is_appointment(self.app, options):
            return make(self, super().apply_async, args, kwargs, options)
        if not is_internal(self.name):
            options = without_time_to_live(self, options)
        return super().apply_async(args, kwargs, **options)

    def start_strategy(self, app: Celery, consumer: Any, **kwargs: Any) -> Any:
        """Celery's way to ask what a worker does with a message of this task."""
        handle = super().start_strategy(app, consumer, **kwargs)
        return handle if is_internal(self.name) else not_before_due(handle, self, consumer)

    @classmethod
    def known_delays_ms(cls, longest_ms: int = MAX_DELAY_MS) -> frozenset[int]:
        """Every delay that this task is known to need, before it has ever failed, where none may be longer."""
        if is_internal(cls.name):
            return frozenset()
        limits: frozenset[int] = frozenset()
        if cls.budget is not None:
            limits |= as_budget(cls.budget).known_delays_ms()
        if cls.breaker is not None:
            limits |= cls.breaker.known_delays_ms()
        if cls.policy is not None:
            return as_policy(cls.policy).within(longest_ms).known_delays_ms() | limits
        if is_map(cls.name):
            return limits  # it calls no retry() itself, and lanes that nothing announces are made when needed
        delays = {to_ms(cls.default_delay(longest_ms), what=f"{cls.name}.default_retry_delay")}
        countdown = getattr(cls, "retry_kwargs", {}).get("countdown")
        if isinstance(countdown, (int, float)):
            delays.add(to_ms(countdown, what=f"{cls.name}.retry_kwargs['countdown']"))
        if getattr(cls, "retry_backoff", False) and not getattr(cls, "retry_jitter", True):
            delays |= backoff_delays_ms(
                factor=float(cls.retry_backoff),
                maximum=getattr(cls, "retry_backoff_max", 600),
                retries=cls.max_retries,
            )
        return limits | delays

    @classmethod
    def default_delay(cls, longest_ms: int) -> float:
        """Return what retry() waits if it names no delay. Celery's three minutes give way to dlx_max_delay."""
        delay: float = cls.default_retry_delay
        return min(delay, longest_ms / 1000) if delay == Task.default_retry_delay else delay

    def decide(self, error: BaseException, *, request: Any = None) -> Decision:
        """What the policy says to this error, now; without one, only RetryIn is retried."""
        return decision_on(self, error, request=self.request if request is None else request)

    def _return_address(self, info: DeliveryInfo, queue: Any, options: dict[str, Any]) -> WorkQueue:
        """Where the retry is to come back to: the queue that it was consumed from, or the one that was asked for."""
        exchange, routing_key = options.get("exchange"), options.get("routing_key")
        queues = self.app.amqp.queues
        if queue is None and exchange is None and routing_key is None:
            return info.queue
        if queue is None:
            queue = next(
                (q for q in queues.values() if (q.exchange.name, q.routing_key) == (str(exchange or ""), routing_key)),
                None,
            )
        if queue is None:
            raise InvalidRoute(exchange=exchange, routing_key=routing_key)
        return context_of(self.app).ensure_work_queue(queues[queue] if isinstance(queue, str) else queue)
