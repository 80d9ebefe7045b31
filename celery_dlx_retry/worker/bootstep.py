"""The worker's bootstep: the topology stands before the first task is consumed, at start and after every reconnect."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError
from celery.bootsteps import StartStopStep
from celery.concurrency import prefork, solo
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.consumer.connection import Connection as Connected
from celery.worker.consumer.tasks import Tasks
from celery.worker.strategy import default
from click import ClickException

from celery_dlx_retry.app.context import QUICK_MS, context_of
from celery_dlx_retry.broker.async_publisher import Pipeline
from celery_dlx_retry.broker.declare import check
from celery_dlx_retry.broker.header_frames import accept_undecodable_headers
from celery_dlx_retry.broker.orphans import MOST_ORPHANS, count_orphans, return_orphans
from celery_dlx_retry.broker.work_queues import check_prefix, has_delayed_retry
from celery_dlx_retry.celery_compat import lacks, wait_for_what_is_given
from celery_dlx_retry.errors import (
    ConfigurationError,
    DLXError,
    Forbidden,
    ForeignStrategy,
    LanesBusy,
    MetricsNotServed,
    Missing,
    NoAnswer,
    TopologyError,
)
from celery_dlx_retry.topology.broker_requirements import Server, problems
from celery_dlx_retry.topology.objects import shared_objects
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.worker import retry  # noqa: F401 - before the pool forks: no first retry waits for an import
from celery_dlx_retry.worker.pool_events import bring_pool_events
from celery_dlx_retry.worker.unprocessable import keep_strays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from kombu.connection import Connection
    from kombu.entity import Queue

    from celery_dlx_retry.topology.specs import Topology as Objects

logger = escaped(get_logger(__name__))

# How long a worker's start waits for a quorum queue that recovers. 2,600,000 letters took 12 s.
RECOVERY_SECONDS = 120.0
# How long it waits for one answer. Beside a frozen node RabbitMQ 3.10 to 4.3 answers after 60 to 75 s: then it takes
# that node for dead.
ANSWER_SECONDS = 90.0
# How often it says that it waits.
WORD_SECONDS = 10.0


class Topology(StartStopStep):
    """Declare, or check, lanes, return, dead-letter and orphan parts, and bind the consumed queues."""

    # After Tasks the work queues are declared; nothing is consumed before the last step, Evloop.
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        flags = {name: value for name, value in options.items() if name.startswith("dlx_") and value is not None}
        metrics_port = flags.pop("dlx_metrics_port", None)
        self._context = context_of(consumer.app)
        self._has_stood = False
        self._context.start_id = secrets.token_hex(8)
        try:
            self._context.use_flags(flags)
            self.enabled = self._context.is_rabbitmq
            # Before the pool forks: its children inherit what is computed here.
            self._context.validate_delays()
            # Before the queues are declared: their arguments cannot be changed afterwards.
            for queue in consumer.app.amqp.queues.consume_from.values() if self.enabled else ():
                check_prefix(queue, self._context.names)
            if self.enabled:
                _check_strategies(consumer.app)
            if metrics_port is not None:
                _serve_metrics(metrics_port)
        except ConfigurationError as exc:
            raise ClickException(str(exc)) from exc  # one sentence and exit code 1, where the command line can show it
        if self.enabled:
            if sentence := lacks():
                logger.warning("%s", sentence, extra=log_fields("CeleryNameMissing"))
            keep_strays(consumer)
        if isinstance(consumer.pool, prefork.TaskPool):
            bring_pool_events()
        super().__init__(consumer, **options)

    def include(self, parent: Any) -> bool:
        """Come before Celery's Control, whose queue is exclusive.

        If the broker does not answer us, Celery connects again, and that queue would still belong to the connection
        that was given up.
        """
        return _behind(Tasks, parent, is_included=bool(super().include(parent)))

    def start(self, consumer: Any) -> None:
        """Called at every connect, so all of it can be repeated."""
        self._context.consumer = consumer
        wait_for_what_is_given(consumer.pool)
        queues = [*consumer.app.amqp.queues.consume_from.values()]
        try:
            with _answers_within(consumer.connection, ANSWER_SECONDS):
                self._know(consumer.connection, queues)
                topology = self._stand(consumer.connection, queues)
        except (TopologyError, ConfigurationError) as exc:
            # Without its topology a worker would lose what it retries; better that it does not run.
            logger.critical("%s", exc, extra=log_fields("StartRefused", cause=type(exc).__name__))
            raise WorkerShutdown(EX_FAILURE) from exc
        self._has_stood = True
        lanes = sum("x-message-ttl" in dict(queue.arguments) for queue in topology.queues)
        prefix, work_queues = self._context.settings.prefix, len(consumer.task_consumer.queues)
        logger.info(
            "topology stands prefix=%s lanes=%d work_queues=%d",
            prefix, lanes, work_queues,
            extra=log_fields("TopologyStands", prefix=prefix, lanes=lanes, work_queues=work_queues),
        )  # fmt: skip
        logger.debug("topology %r", topology, extra=log_fields("TopologyObjects"))
        self._return_orphans(consumer.connection, {queue.name for queue in queues})
        self._open_pipeline(consumer)

    def stop(self, _consumer: Any) -> None:
        """Called when the worker stops, and when its connection is lost."""
        pipeline, self._context.pipeline = self._context.pipeline, None
        if pipeline is not None:
            if state.should_stop is not None:
                # A message whose confirm comes soon is acknowledged; the others run again.
                pipeline.drain(within=QUICK_MS / 1000)
            pipeline.close()

    def _open_pipeline(self, consumer: Any) -> None:
        """Let the main process publish retries, if its event loop takes the results of the pool."""
        context = self._context
        if consumer.hub is not None and isinstance(consumer.pool, (prefork.TaskPool, solo.TaskPool)):
            context.pipeline = Pipeline(
                context.connect_quickly,
                hub=consumer.hub,
                confirm_timeout_ms=context.settings.confirm_timeout_ms,
                write_timeout_ms=min(context.settings.confirm_timeout_ms, QUICK_MS),
                probe_at=context.names.lanes(),
            )

    def _stand(self, connection: Connection, queues: list[Queue]) -> Objects:
        """Declare or check; wait for a quorum queue that recovers, and for other processes that make or prune lanes."""
        deadline = None
        while True:
            try:
                return self._context.declare_topology(connection, queues)
            except (NoAnswer, LanesBusy) as exc:
                deadline = deadline or time.monotonic() + RECOVERY_SECONDS
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                if isinstance(exc, LanesBusy):
                    fields = log_fields("LanesBusy", left_s=int(left))
                    logger.warning("Other processes hold the lock of the lanes; waiting %d s more.", left, extra=fields)
                else:
                    fields = log_fields("QueueRecovering", queue=exc.name, left_s=int(left))
                    sentence = "The quorum queue %r does not answer yet; waiting %d s more."
                    logger.warning(sentence, exc.name, left, extra=fields)
            state.maybe_shutdown()

    def _know(self, connection: Connection, queues: list[Queue]) -> None:
        """Raise Unsuitable unless the broker can do what we need of it; a failover may have led to another one."""
        server = Server.of(connection.connection.server_properties)
        delayed = [queue.name for queue in queues if has_delayed_retry(queue)]
        for problem in problems(server, lanes=self._context.settings.queue_type, delayed_retry=delayed):
            raise problem
        if not server.is_rabbitmq:
            sentence = "The broker is %s, not RabbitMQ: what is promised was never tested with it."
            logger.warning(sentence, server, extra=log_fields("ForeignBroker", server=str(server)))
        if self._has_stood and self._is_bare(connection):
            logger.warning(
                "What stood at the last connect is not there: this is another broker, or it has lost its data. What "
                "waits at the other one stays there until a worker is back. Several broker URLs are meant for the "
                "nodes of one cluster.",
                extra=log_fields("BrokerIsEmpty"),
            )

    def _return_orphans(self, connection: Connection, queues: set[str]) -> None:
        """Bring home what found none of these queues while it was gone; a problem here must not stop the worker."""
        names, publisher = self._context.names, self._context.publisher
        try:
            with connection.clone() as own, _answers_within(own, ANSWER_SECONDS):
                found = count_orphans(own, names)
                if found > MOST_ORPHANS:
                    logger.warning(
                        "%d orphans are too many to look through at a start: see `celery dlx dead list -q %s`",
                        found, names.orphans(), extra=log_fields("TooManyOrphans", count=found),
                    )  # fmt: skip
                elif found and (returned := return_orphans(own, names, queues, publisher=publisher)):
                    fields = log_fields("OrphansReturned", count=returned)
                    logger.warning("orphans returned to their work queues count=%d", returned, extra=fields)
        except (DLXError, AMQPError, OSError) as problem:
            fields = log_fields("OrphansNotRead", cause=type(problem).__name__)
            logger.warning("orphans not looked through: %s", problem, extra=fields)

    def _is_bare(self, connection: Connection) -> bool:
        # Not by the cluster's name: unless somebody sets it, each node may tell its own.
        try:
            check(connection, shared_objects(self._context.names))
        except Missing:
            return True
        except Forbidden:
            return False
        return False


class StartWatch(StartStopStep):
    """Write a log line every few seconds while a start waits for the broker, in a step of ours or of Celery's.

    On RabbitMQ 3.10 it is Celery's own queue.bind that waits beside a frozen node. Nothing was read before this step,
    so it guards the connection, too.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self.enabled = context_of(consumer.app).has_amqp
        self._over = threading.Event()
        super().__init__(consumer, **options)

    def include(self, parent: Any) -> bool:
        """Come right behind the connection."""
        return _behind(Connected, parent, is_included=bool(super().include(parent)))

    def start(self, consumer: Any) -> None:
        """Called at every connect."""
        accept_undecodable_headers(consumer.connection)
        self._over = threading.Event()
        threading.Thread(target=_report, args=(consumer, self._over), name="dlx-start-watch", daemon=True).start()

    def stop(self, _consumer: Any) -> None:
        """Called when the worker stops, and when its connection is lost."""
        self._over.set()


def _behind(step: type[StartStopStep], parent: Any, *, is_included: bool) -> bool:
    """Move the last step behind this one: Celery leaves the order of steps that do not need each other to chance."""
    if is_included:
        place = next((i for i, it in enumerate(parent.steps, 1) if isinstance(it, step)), len(parent.steps))
        parent.steps.insert(place, parent.steps.pop())
    return is_included


def _report(consumer: Any, over: threading.Event) -> None:
    begun = time.monotonic()
    steps = [step for step in consumer.steps if step is not None]
    while not over.wait(WORD_SECONDS):
        step = steps[consumer.blueprint.started - 1]
        if step is steps[-1]:
            return  # the event loop runs
        waited = int(time.monotonic() - begun)
        logger.warning(
            "The worker start has waited %d s for the broker, in the step %s. "
            "A broker node may be frozen or recovering.",
            waited, step.alias, extra=log_fields("StartWaits", waited_s=waited, step=step.alias),
        )  # fmt: skip


@contextmanager
def _answers_within(connection: Connection, seconds: float) -> Iterator[None]:
    """Raise TimeoutError if the broker is silent for so long; Celery then connects again, perhaps to another node."""
    sock = connection.connection.transport.sock
    before = sock.gettimeout()
    sock.settimeout(seconds)
    try:
        yield
    except TimeoutError:
        sentence = "The broker did not answer within %d s at the start of the worker."
        logger.warning(sentence, seconds, extra=log_fields("NoAnswer", waited_s=int(seconds)))
        raise
    finally:
        with suppress(OSError):  # the connection is lost
            sock.settimeout(before)


def _serve_metrics(port: int) -> None:
    """Start the server before the pool forks: a port that is taken must stop the worker."""
    try:
        serve = symbol_by_name("celery_dlx_retry.contrib.prometheus:serve")
    except ModuleNotFoundError as exc:
        raise MetricsNotServed(port=port, problem=str(exc)[:1].lower() + str(exc)[1:]) from exc
    serve(port)


def _check_strategies(app: Celery) -> None:
    """Raise ForeignStrategy for a task of ours that the worker would not run message by message."""
    ours = [task for task in app.tasks.values() if hasattr(task, "known_delays_ms")]
    for task in sorted(ours, key=lambda task: (task.name.startswith("celery."), task.name)):
        strategy = symbol_by_name(task.Strategy)
        if strategy is not default:
            module, name = getattr(strategy, "__module__", "?"), getattr(strategy, "__qualname__", repr(strategy))
            raise ForeignStrategy(task=task.name, strategy=f"{module}.{name}")
