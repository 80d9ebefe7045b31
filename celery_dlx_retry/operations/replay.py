"""Put dead letters back on their work queues: all at once, at a rate, or a few canaries first."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker import dead_letters
from celery_dlx_retry.broker.paged_reader import PAGE
from celery_dlx_retry.errors import DLXError, NoDestination, Unreadable
from celery_dlx_retry.events import Replayed, emit
from celery_dlx_retry.operations.app_queues import Destinations
from celery_dlx_retry.operations.canary import (
    SUCCEEDED,
    UNKNOWN,
    Canaries,
    CanaryStop,
    CanaryTest,
    states_of,
    stores_no_result,
)
from celery_dlx_retry.operations.connect import broker_iterator
from celery_dlx_retry.operations.monitor import (
    NO_MONITOR,
    CanariesJudged,
    LetterKept,
    LetterPlanned,
    LetterReplayed,
    Monitor,
)
from celery_dlx_retry.operations.operation_errors import InvalidRequest
from celery_dlx_retry.operations.select_letters import LetterQuery, SeenLetters, SelectedLetters
from celery_dlx_retry.values.amounts import Rate
from celery_dlx_retry.wire.task_body import detached, links_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.operations.canary import States

# RabbitMQ closes a channel that holds a message for longer than consumer_timeout, which is 30 minutes by default. So a
# replay gives back what it holds after this time, and reads the queues again.
_PASS_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What a replay would do."""

    #: Dead-letter queue -> number of letters that would be replayed.
    per_queue: Mapping[str, int]
    #: How many letters would stay because their work queue is not known.
    kept: int
    #: Destinations that the app does not know.
    unknown_queues: frozenset[str]
    #: What a replay does besides running tasks again -> number of letters: "chord", "callbacks", "errbacks", "chain",
    #: "unknown links", "unreadable headers", "result".
    effects: Mapping[str, int]
    missing_ids: tuple[str, ...]
    absent_groups: tuple[str, ...]

    @property
    def total(self) -> int:
        """Return how many letters would be replayed."""
        return sum(self.per_queue.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a replay has done."""

    replayed: int
    kept: int
    #: As in ReplayPlan.
    effects: Mapping[str, int]
    #: Why the letters behind the canaries were not replayed; None if they were.
    stopped: CanaryStop | None
    #: Task ids of the query that no letter has; empty until all queues were read.
    missing_ids: tuple[str, ...]
    #: Groups of the query that no letter belongs to; empty until all queues were read.
    absent_groups: tuple[str, ...]
    #: Whether all queues were read. False if canaries or the caller stopped the operation, or if it failed.
    is_complete: bool


@final
class Replay:
    """One replay, as a context manager.

    ``run()`` replays the letters that ``plan()`` has seen; without a plan, every letter of the query. ``result`` says
    at any time what has been replayed so far. A replay that was stopped can be run again: it continues. ``operator``
    is who does it, for the audit log; by default the user of this process.

    Raise InvalidRequest if the query selects everything without saying so, or if canaries could not be judged.
    """

    def __init__(  # noqa: PLR0913 - which letters, where to, how fast
        self,
        app: Any,
        query: LetterQuery,
        *,
        to_queue: str | None = None,
        detach: bool = False,
        per_second: Fraction | None = None,
        canary: CanaryTest | None = None,
        operator: str = "",
        monitor: Monitor = NO_MONITOR,
    ) -> None:
        query.require_explicit()
        # A task id is enough to name a letter, also in a queue that the app does not know.
        self._letters = SelectedLetters(app, query, only_known=not query.filter.ids, monitor=monitor)
        self._app, self._query, self._monitor = app, query, monitor
        self._detach, self._operator = detach, operator
        self._destination = Destinations(app, named=query.queues, to_queue=to_queue)
        self._pace = Rate(per_second) if per_second else None
        self._canary, self._states = canary, _states(app, canary)
        self._stack = ExitStack()
        self._tally = _Tally(app, query, detach=detach)
        #: The letters of the plan; None: without a plan, every letter of the query.
        self._planned: SeenLetters | None = None
        #: The task ids of canaries that are still to be moved; None: letters need not be canaries.
        self._only_ids: set[str] | None = None
        #: Hashes of the letters that this replay has moved. A letter that dies again meanwhile is not moved again.
        self._done: set[int] = set()
        self._done_before_pass: frozenset[int] = frozenset()
        self._replayed = self._kept = 0
        self._stopped: CanaryStop | None = None
        self._is_complete = self._is_cancelled = False

    def __enter__(self) -> Replay:
        self._stack.enter_context(self._letters)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plan(self) -> ReplayPlan:
        """Read the letters and return what ``run()`` would do; notify LetterPlanned for each letter."""
        self._planned = self._stack.enter_context(SeenLetters())
        found: Counter[str] = Counter()
        kept, unknown = 0, set()
        tally = _Tally(self._app, self._query, detach=self._detach)
        for letter in self._letters:
            self._planned.add(letter)
            try:
                queue = self._destination(letter)
            except NoDestination as problem:
                kept += 1
                tally.missing_ids.discard(letter.record.task_id)
                self._monitor.notice(LetterPlanned(letter=letter, queue=self._queue_named(letter), problem=problem))
                continue
            found[letter.queue] += 1
            if not self._destination.is_queue_of_app(queue):
                unknown.add(queue)
            tally.add(letter)
            self._monitor.notice(LetterPlanned(letter=letter, queue=queue))
        return ReplayPlan(
            per_queue=found,
            kept=kept,
            unknown_queues=frozenset(unknown),
            effects=tally.effects,
            missing_ids=tuple(sorted(tally.missing_ids)),
            absent_groups=self._letters.absent_groups,
        )

    def run(self) -> ReplayResult:
        """Replay the canaries, if any, and then the rest; notify LetterReplayed or LetterKept for each letter."""
        self._letters.queues()  # if the broker is gone, it raises before anything has changed
        try:
            if self._canary is not None:
                self._stopped = self._replay_canaries(self._canary)
            if self._stopped is None:
                self._replay()
                self._is_complete = not self._is_cancelled
        finally:
            self._monitor.audit(
                "dead replay",
                by=self._operator,
                replayed=self._replayed,
                kept=self._kept,
                queues=",".join(self._query.queues) or "all",
                chosen=self._query.filter.told,
                to=self._destination.to_queue or "origin",
                detached=self._detach,
            )
        return self.result

    @property
    def result(self) -> ReplayResult:
        """Return what has been replayed so far."""
        return ReplayResult(
            replayed=self._replayed,
            kept=self._kept,
            effects=dict(self._tally.effects),
            stopped=self._stopped,
            missing_ids=tuple(sorted(self._tally.missing_ids)) if self._is_complete else (),
            absent_groups=self._letters.absent_groups if self._is_complete else (),
            is_complete=self._is_complete,
        )

    # --- canaries ---

    def _replay_canaries(self, test: CanaryTest) -> CanaryStop | None:
        """Return why the rest must not follow; None if it may."""
        canaries = Canaries(self._app, self._destination, self._states)
        count = 0
        for letter in self._letters:  # to the end, so that the letters keep their order
            count += 1
            if letter.record.task_id and len(canaries.outcomes) < test.count:
                with suppress(NoDestination):
                    canaries.add(letter)
        size = len(canaries.outcomes)
        if count and not size:
            return CanaryStop(reason="no canary")
        if not test.silence_is_success and not test.passes(len(canaries.mute), size):
            return CanaryStop(reason="no results", canaries=size, mute=len(canaries.mute))
        self._replay(only_ids=frozenset(canaries.outcomes))
        if not self._replayed:
            return CanaryStop(reason="none replayed", canaries=size) if count else None
        outcomes = canaries.wait(self._letters.connection, seconds=test.wait_seconds, monitor=self._monitor)
        self._monitor.notice(CanariesJudged(outcomes=canaries.outcomes))
        if self._monitor.is_cancelled:
            return CanaryStop(reason="cancelled", canaries=size, outcomes=outcomes)
        good = outcomes[SUCCEEDED] + (outcomes[UNKNOWN] if test.silence_is_success else 0)
        if test.passes(outcomes.total() - good, outcomes.total()):
            return None
        is_unknown = outcomes[UNKNOWN] and not test.silence_is_success
        reason: Literal["unknown outcomes", "bad outcomes"] = "unknown outcomes" if is_unknown else "bad outcomes"
        return CanaryStop(reason=reason, canaries=size, outcomes=outcomes)

    # --- passes over the queues ---

    def _replay(self, *, only_ids: frozenset[str] | None = None) -> None:
        """Move all letters, or one for each of these task ids: a sender can give many tasks one id."""
        self._only_ids = None if only_ids is None else set(only_ids)
        is_done = False
        while not is_done:
            self._done_before_pass = frozenset(self._done)
            is_done = self._pass_over_queues(until=time.monotonic() + _PASS_SECONDS)

    def _pass_over_queues(self, *, until: float) -> bool:
        """Read all queues and move letters; return False if the time was up before the end."""
        context = context_of(self._app)
        queues = self._letters.queues()
        total = self._replayed + self._kept + sum(queues.values())
        for queue in queues:
            moves = dead_letters.replay(
                self._letters.connection,
                queue,
                names=context.names,
                publisher=context.publisher,
                wanted=self._is_wanted,
                may_continue=self._wait_for_turn,
                destination=self._destination,
                change=detached if self._detach else None,
                page=self._page,
            )
            with self._letters.skip_forbidden(queue), broker_iterator(self._app, moves) as moved:
                for letter, problem in moved:
                    self._settle(letter, problem)
                    self._monitor.progress(self._replayed + self._kept, total)
                    if time.monotonic() > until:
                        return False
            if self._is_cancelled:
                break
        return True

    def _is_wanted(self, letter: DeadMessage) -> bool:
        """Return True if the query selects the letter, no earlier pass has moved it, and the plan has seen it.

        A letter that died after the plan was made is not in the plan.
        """
        return (
            self._letters.matches(letter)
            and (self._only_ids is None or letter.record.task_id in self._only_ids)
            and _mark(letter, letter.replays) not in self._done_before_pass
            and (self._planned is None or self._planned.take(letter))
        )

    def _wait_for_turn(self) -> bool:
        """Wait until the rate allows the next move; return False if the operation is cancelled."""
        seconds = self._pace.seconds_to_wait(time.monotonic()) if self._pace else 0.0
        self._is_cancelled |= not self._monitor.wait(seconds)
        return not self._is_cancelled

    @property
    def _page(self) -> int:
        """Hold no more letters than a minute's worth: what waits for its turn is held, too."""
        return PAGE if self._pace is None else max(1, min(PAGE, int(self._pace.per_second * 60)))

    def _settle(self, letter: DeadMessage, problem: DLXError | None) -> None:
        self._done.add(_mark(letter, letter.replays + (problem is None)))
        if self._only_ids is not None:
            self._only_ids.discard(letter.record.task_id)
        self._tally.add(letter)
        queue = self._queue_named(letter)
        if problem is None:
            self._replayed += 1
            record = letter.record
            emit(Replayed(task=record.task, task_id=record.task_id, queue=queue, dead_letter_queue=letter.queue))
            self._monitor.notice(LetterReplayed(letter=letter, queue=queue))
        else:
            self._kept += 1
            self._monitor.notice(LetterKept(letter=letter, queue=queue, problem=problem))

    def _queue_named(self, letter: DeadMessage) -> str:
        return self._destination.to_queue or letter.record.queue


class _Tally:
    """Counts what the replay of letters does to links, chains, chords and results."""

    def __init__(self, app: Any, query: LetterQuery, *, detach: bool) -> None:
        self._app, self._detach = app, detach
        self.missing_ids = set(query.filter.ids)
        self.effects: Counter[str] = Counter()

    def add(self, letter: DeadMessage) -> None:
        self.missing_ids.discard(letter.record.task_id)
        if letter.unreadable:
            self.effects["unreadable headers"] += 1
        if self._detach:
            return
        if self._app.conf.result_backend and not stores_no_result(self._app, letter):
            self.effects["result"] += 1
        try:
            self.effects.update(links_of(letter.message))
        except Unreadable:
            self.effects["unknown links"] += 1


def _states(app: Any, canary: CanaryTest | None) -> States | None:
    """Return how to ask for results; None if no canary needs them."""
    if canary is None:
        return None
    states, why = states_of(app)
    if why and not canary.silence_is_success:
        raise InvalidRequest(
            detail=f"--canary has to see its canaries succeed, and cannot: {why}. Nothing was moved. Give the app a "
            "result_backend that can be asked (Redis, files, a database), or say --silence-is-success: a canary "
            "that has not died again within --canary-wait has then succeeded."
        )
    return states


def _mark(letter: DeadMessage, replays: int) -> int:
    """Return a hash that finds a letter again; one without a task id has its body, and counts its replays."""
    body = letter.message.body
    return hash(letter.record.task_id or (body if isinstance(body, str) else bytes(body), replays))
