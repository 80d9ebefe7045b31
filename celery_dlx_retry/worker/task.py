"""DLXRetryTask: the task base class whose retries wait in the broker and whose failures are kept."""

from __future__ import annotations

import functools
import operator
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from celery.app.task import Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.utils.log import get_logger
from kombu.serialization import registry

from celery_dlx_retry.app.clock import delay_ms, now_ms
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.task_options import bind_with_options, is_acknowledged_early
from celery_dlx_retry.celery_compat import keep_ignore_result, protect
from celery_dlx_retry.errors import (
    DeadLetter,
    InvalidDelay,
    InvalidPolicy,
    InvalidRoute,
    InvalidTask,
    PublishError,
    TopologyError,
)
from celery_dlx_retry.policy.breaker import Breaker
from celery_dlx_retry.policy.budget import as_budget
from celery_dlx_retry.policy.decision import MAX_DELAY_MS, Wait, as_policy
from celery_dlx_retry.policy.rule_retries import history_facts, with_rule_retry
from celery_dlx_retry.topology.lanes import backoff_delays_ms
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.durations import to_ms
from celery_dlx_retry.values.escaping import escaped
from celery_dlx_retry.wire.headers import Failure, own_headers, with_failure
from celery_dlx_retry.wire.message import PreparedRetry
from celery_dlx_retry.worker.celery_publish import emit_retry, send_retry, write
from celery_dlx_retry.worker.countdown import is_appointment, make, not_before_due
from celery_dlx_retry.worker.dead_letter import text_of
from celery_dlx_retry.worker.django import keep_on_commit
from celery_dlx_retry.worker.expires import without_time_to_live
from celery_dlx_retry.worker.give_back import give_back
from celery_dlx_retry.worker.install import install
from celery_dlx_retry.worker.other_brokers import carried_headers, retry_elsewhere
from celery_dlx_retry.worker.patch_detection import is_internal, is_map
from celery_dlx_retry.worker.process_budget import retry_within
from celery_dlx_retry.worker.run import guard_hooks, guarded
from celery_dlx_retry.worker.run_state import addressed, is_ours, run_state_of
from celery_dlx_retry.worker.task_decision import decision_on, grant_retry

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
                    cls.name,
                )
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
        attempt = run_state_of(request)
        attempt.is_last_word = throw
        attempt.error = exc if isinstance(exc, BaseException) else sys.exc_info()[1]
        when = {"eta": eta, "countdown": countdown, "max_retries": max_retries}
        granted = grant_retry(self, attempt, exc, when)
        attempt.rule = granted.rule if granted else None
        limit = self.max_retries if when["max_retries"] is None else when["max_retries"]
        attempt.is_exhausted = limit is not None and request.retries >= limit
        ask = functools.partial(super().retry, args, kwargs, exc, throw, **options)
        if not is_ours(request):
            return retry_elsewhere(attempt, ask, when)
        try:
            if attempt.is_exhausted:
                return ask(**when)
            if when["countdown"] is None and not when["eta"]:
                when["countdown"] = self._default_delay(context_of(self.app).settings.max_delay_ms)
            length_ms = delay_ms(self.app, countdown=when["countdown"], eta=when["eta"])
            wait = Wait(length_ms, granted.latest_ms if granted else None)
            return retry_within(self, attempt, ask, wait, when)
        except (PublishError, TopologyError) as problem:
            raise give_back(self, request.delivery_info, problem, task_id=request.id) from problem
        except Reject as reject:
            # Celery's word for "the retry could not be published", and its end of the task.
            if isinstance(reject.reason, (PublishError, TopologyError, SoftTimeLimitExceeded)):
                raise give_back(self, request.delivery_info, reject.reason, task_id=request.id) from reject
            raise reject.reason from reject

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
        now = {"argsrepr": (args, request.args), "kwargsrepr": (kwargs, request.kwargs)}
        for name, (given, before) in now.items():
            # Celery writes them anew, and so shows in its logs what the caller had hidden.
            if _is_unchanged(given, before) and isinstance(text := info.message.headers.get(name), str):
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
            return self._retry_async(functools.partial(super().apply_async, args, kwargs), options, *wait)
        if not is_internal(self.name) and is_appointment(self.app, options):
            return make(self, super().apply_async, args, kwargs, options)
        if not is_internal(self.name):
            options = without_time_to_live(self, options)
        return super().apply_async(args, kwargs, **options)

    def start_strategy(self, app: Celery, consumer: Any, **kwargs: Any) -> Any:
        """Celery's way to ask what a worker does with a message of this task."""
        handle = super().start_strategy(app, consumer, **kwargs)
        return handle if is_internal(self.name) else not_before_due(handle, self, consumer)

    def _retry_async(
        self, apply_async: Any, options: dict[str, Any], queue: WorkQueue, wait_ms: int, request: Any
    ) -> Any:
        attempt, info = run_state_of(request), request.delivery_info
        context = context_of(self.app)
        there = None
        if info.is_bound:
            context.mark_bound(info.queue)
        if info.forwards and attempt.is_last_word and queue.name == info.queue.name:
            there = context.lanes.plain(queue, wait_ms)
        # If the lane may be missing, this process publishes by itself, which makes the lane.
        is_forwarded = there is not None and context.lanes.expects(there) and _REFUSABLE.isdisjoint(_names(options))
        if there is None or not is_forwarded:
            there = context.wait_route(queue, wait_ms, wish=WaitKind.RETRY)
        error = text_of(attempt.error) if attempt.error is not None else ""
        failure = Failure(
            attempt=request.retries + 1,
            at_ms=now_ms(),
            error=error,
            delay_ms=there.length_ms,
            worker=request.hostname or "",
            **history_facts(attempt.rule),
        )
        # retry(headers=...) replaces the headers that the message came with; ours stay.
        headers = {**(options.get("headers") or {}), **own_headers(info.message.headers)}
        headers = with_failure(with_rule_retry(headers, attempt.rule, retries=request.retries), failure)
        options["headers"] = addressed(headers, info, queue=info.queue, to=queue)
        options["add_to_parent"] = False
        if is_forwarded:
            result, message = write(self, apply_async, options, queue=queue, there=there)
            parcel = PreparedRetry(message=message, length_ms=there.length_ms, error=error)
            if len(message.body) <= max(_SURELY_TAKEN_BYTES, len(info.message.body)):
                attempt.parcel, attempt.is_handed_over = parcel, True
                return result
            # The broker has not taken so long a body of this task yet, and may refuse it.
            context.publish_retry(parcel, queue)
        else:
            result = send_retry(self, apply_async, options, queue=queue, there=there)
            context.published(there)
        attempt.is_handed_over = True
        emit_retry(request, task=self.name, delay_ms=there.length_ms, queue=queue.name, error=error)
        return result

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
        delays = {to_ms(cls._default_delay(longest_ms), what=f"{cls.name}.default_retry_delay")}
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
    def _default_delay(cls, longest_ms: int) -> float:
        """What retry() waits that says nothing; three minutes are Celery's word and nobody's wish."""
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


def _names(options: dict[str, Any]) -> set[str]:
    return {*options, *(options.get("headers") or ())}


def _is_unchanged(given: Any, before: Any) -> bool:
    """Whether a retry has the arguments that it had, or a copy of them; by identity, for not all can be compared."""
    if given is None or before is None:
        return given is None
    if isinstance(given, dict):
        return given.keys() == before.keys() and all(given[key] is before[key] for key in given)
    return len(given) == len(before) and all(map(operator.is_, given, before))
