"""Delete dead letters for good."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from celery_dlx_retry.broker.dead_letters import discard
from celery_dlx_retry.events import Purged, emit
from celery_dlx_retry.operations.connect import broker_iterator
from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor
from celery_dlx_retry.operations.select_letters import LetterQuery, SeenLetters, SelectedLetters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.deadletters.letter import DeadMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """How many letters a purge would delete."""

    #: Dead-letter queue -> number of letters.
    per_queue: Mapping[str, int]

    @property
    def total(self) -> int:
        """Return the number of letters."""
        return sum(self.per_queue.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """What a purge has deleted."""

    purged: int
    #: Letters in these queues that stay: the query does not select them, or they died after the plan.
    kept: int
    #: The dead-letter queues that it read.
    queues: tuple[str, ...]
    #: Task ids of the query that no letter has; empty until all queues were read.
    missing_ids: tuple[str, ...]
    #: Groups of the query that no letter belongs to; empty until all queues were read.
    absent_groups: tuple[str, ...]
    #: Whether all queues were read. False if the operation was cancelled, or failed.
    is_complete: bool


@final
class Purge:
    """One purge, as a context manager.

    ``run()`` deletes the letters that ``plan()`` has seen; without a plan, every letter of the query. ``result`` says
    at any time what has been deleted so far. ``operator`` is who does it, for the audit log; by default the user of
    this process.
    """

    def __init__(self, app: Any, query: LetterQuery, *, operator: str = "", monitor: Monitor = NO_MONITOR) -> None:
        query.require_explicit()
        self._letters = SelectedLetters(app, query, only_known=True, monitor=monitor)
        self._app, self._monitor, self._operator = app, monitor, operator
        self._planned: SeenLetters | None = None
        self._stack = ExitStack()
        #: Dead-letter queue -> number of deleted letters.
        self._purged: Counter[str] = Counter()
        self._is_cancelled = False
        self._kept = 0
        self._missing = set(query.filter.ids)
        self._queues: tuple[str, ...] = ()
        self._is_complete = False

    def __enter__(self) -> Purge:
        self._stack.enter_context(self._letters)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plan(self) -> PurgePlan:
        """Count the letters that the query selects now."""
        self._planned = self._stack.enter_context(SeenLetters())
        found: Counter[str] = Counter()
        for letter in self._letters:
            found[letter.queue] += 1
            self._planned.add(letter)
        return PurgePlan(per_queue=found)

    def run(self) -> PurgeResult:
        """Delete the letters."""
        queues = self._letters.queues()
        self._queues, total = tuple(queues), sum(queues.values())
        try:
            for queue in queues:
                self._purge(queue, total)
        finally:
            for queue, count in self._purged.items():
                emit(Purged(dead_letter_queue=queue, count=count))
            purged = self._purged.total()
            self._monitor.audit("dead purge", by=self._operator, purged=purged, queues=",".join(queues))
        self._is_complete = not self._is_cancelled
        return self.result

    def _purge(self, queue: str, total: int) -> None:
        discarded = discard(
            self._letters.connection, queue, wanted=self._is_wanted, may_continue=self._is_not_cancelled
        )
        with self._letters.skip_forbidden(queue), broker_iterator(self._app, discarded) as letters:
            for letter in letters:
                self._purged[queue] += 1
                self._missing.discard(letter.record.task_id)
                self._monitor.progress(self._purged.total(), total)

    @property
    def result(self) -> PurgeResult:
        """Return what has been deleted so far."""
        return PurgeResult(
            purged=self._purged.total(),
            kept=self._kept,
            queues=self._queues,
            missing_ids=tuple(sorted(self._missing)) if self._is_complete else (),
            absent_groups=self._letters.absent_groups if self._is_complete else (),
            is_complete=self._is_complete,
        )

    def _is_wanted(self, letter: DeadMessage) -> bool:
        """Return True if the query selects the letter and the plan has seen it; a new letter is not in the plan."""
        is_wanted = self._letters.matches(letter) and (self._planned is None or self._planned.take(letter))
        self._kept += not is_wanted
        return is_wanted

    def _is_not_cancelled(self) -> bool:
        self._is_cancelled |= self._monitor.is_cancelled
        return not self._is_cancelled
