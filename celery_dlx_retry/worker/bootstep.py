"""The worker's bootstep: the topology stands before the first task is consumed, at start and after every reconnect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.bootsteps import StartStopStep
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from click import ClickException

from celery_dlx_retry.errors import ConfigurationError, TopologyError
from celery_dlx_retry.worker.runtime import runtime_of
from celery_dlx_retry.worker.strays import keep_strays
from celery_dlx_retry.worker.versions import wait_for_what_is_given

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)


def install(app: Celery) -> None:
    """Add the bootstep to an app's workers; using DLXRetryTask does it, this is for those who want to see it."""
    app.steps["consumer"].add(Topology)


class Topology(StartStopStep):
    """Declare, or check, lanes, return, dead-letter and orphan parts, and bind the consumed queues."""

    # After Tasks the work queues are declared; nothing is consumed before the last step, Evloop.
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        flags = {name: value for name, value in options.items() if name.startswith("dlx_") and value is not None}
        self._runtime = runtime_of(consumer.app)
        try:
            self._runtime.use_flags(flags)
            self.enabled = self._runtime.is_rabbitmq
            # Before the pool forks: its children inherit what is computed here.
            self._runtime.foresee()
        except ConfigurationError as exc:
            raise ClickException(str(exc)) from exc  # one sentence and exit code 1, where the command line can show it
        if self.enabled:
            keep_strays(consumer)
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        """Called at every connect, so all of it can be repeated."""
        self._runtime.consumer = consumer
        wait_for_what_is_given(consumer.pool)
        try:
            topology = self._runtime.stand(consumer.connection, [*consumer.app.amqp.queues.consume_from.values()])
        except (TopologyError, ConfigurationError) as exc:
            # Without its topology a worker would lose what it retries; better that it does not run.
            logger.critical("%s", exc)
            raise WorkerShutdown(EX_FAILURE) from exc
        logger.info(
            "topology stands prefix=%s lanes=%d work_queues=%d",
            self._runtime.settings.prefix, len(self._runtime.exact_lanes), len(consumer.task_consumer.queues),
        )  # fmt: skip
        logger.debug("topology %r", topology)
