"""One run of a replay: its passes over the queues, its pace, and what it has to tell."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.dead_letter_moves import replay
from celery_dlx_retry.broker.paged_reader import PAGE
from celery_dlx_retry.cli.dead.canary import stores_no_result
from celery_dlx_retry.cli.dead.destinations import Destinations
from celery_dlx_retry.cli.output import echo, json_line
from celery_dlx_retry.errors import Unreadable
from celery_dlx_retry.wire.task_body import detached, links_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kombu.connection import Connection

    from celery_dlx_retry.cli.dead.known import KnownLetters
    from celery_dlx_retry.cli.dead.selection import Selection
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.errors import DLXError
    from celery_dlx_retry.values.amounts import Rate

# RabbitMQ closes the channel of who holds a message for longer than its consumer_timeout, half an hour by default. So
# after a while all that is held is given back, and the queues are read anew.
_PASS_SECONDS = 600.0

_EFFECTS = {
    "chord": "In a chord: {}. One that has counted a failure does not take it back.",
    "callbacks": "With links: {}. They are called after a success.",
    "errbacks": "With error links: {}. They are called again after another failure.",
    "chain": "In a chain: {}. It goes on after a success.",
    "unknown": "Not readable here: {}. Whether there are links, a chain or a chord is not known.",
    "unreadable": "With headers that cannot be read: {}. They are sent without these headers.",
    "result": "With a result: {}. The stored result stays until the task ends again and stores a new one.",
}


class ReplayRun:
    """What was moved, what was not, and what that means."""

    def __init__(
        self, selection: Selection, *, to_queue: str | None, detach: bool, pace: Rate | None, as_json: bool
    ) -> None:
        self._selection, self._detach = selection, detach
        self.destination = Destinations(selection.app, named=selection.named, to_queue=to_queue)
        self._pace, self._as_json = pace, as_json
        self.replayed = self.kept = 0
        self.missing = set(selection.chosen.ids)
        self._links: Counter[str] = Counter()
        #: What this run has moved, in few bytes each: if it dies again meanwhile, it is not for this run.
        self._done: set[int] = set()
        #: The task ids of canaries that have not been moved yet; None: no canaries.
        self._only: set[str] | None = None
        #: Those that somebody has agreed to; None: all that are meant.
        self.confirmed: KnownLetters | None = None

    def go(
        self,
        connection: Connection,
        step: Callable[[], None] = lambda: None,
        *,
        only: frozenset[str] | None = None,
    ) -> None:
        """Move all that are meant, or ``only`` one of each of these task ids: a sender can give many tasks one id."""
        self._only = None if only is None else set(only)
        before = frozenset(self._done)
        while not self._is_done_after_a_pass(connection, step, before):
            before = frozenset(self._done)

    def note(self, letter: DeadMessage) -> None:
        """Remember what follows from replaying it."""
        self.missing.discard(letter.record.task_id)
        if letter.unreadable:
            self._links["unreadable"] += 1
        if self._detach:
            return
        if self._selection.app.conf.result_backend and not stores_no_result(self._selection.app, letter):
            self._links["result"] += 1
        try:
            self._links.update(links_of(letter.message))
        except Unreadable:
            self._links["unknown"] += 1

    def forget(self) -> None:
        """It was only a plan."""
        self._links.clear()
        self.missing = set(self._selection.chosen.ids)

    def effects(self) -> list[str]:
        """What it does to chords, links and results."""
        return [text.format(self._links[name]) for name, text in _EFFECTS.items() if self._links[name]]

    def say(self, event: str, letter: DeadMessage, problem: DLXError | None = None) -> None:
        """One line about one letter."""
        task_id, queue = letter.record.task_id, self.destination.to_queue or letter.record.queue
        facts = {"event": event, "task_id": task_id, "task": letter.record.task, "queue": queue}
        if problem is not None:
            facts["problem"] = str(problem)
        self.tell(facts, f"{event} {task_id} to {queue}" if problem is None else f"{event} {task_id}: {problem}")

    def tell(self, facts: Mapping[str, Any], text: str) -> None:
        """In JSON or in words."""
        if self._as_json:
            json_line(facts)
        else:
            echo(text)

    def _is_done_after_a_pass(self, connection: Connection, step: Callable[[], None], before: frozenset[int]) -> bool:
        until = time.monotonic() + _PASS_SECONDS

        def wanted(letter: DeadMessage) -> bool:
            is_meant = (
                self._selection.wanted(letter)
                and (self._only is None or letter.record.task_id in self._only)
                and _mark(letter, letter.replays) not in before
                and (self.confirmed is None or self.confirmed.takes(letter))
            )
            if is_meant:
                self._keep_pace()
            return is_meant

        for queue in self._selection.queues(connection):
            with (
                self._selection.passing_over(queue),
                closing(
                    replay(
                        connection,
                        queue,
                        names=context_of(self._selection.app).names,
                        publisher=context_of(self._selection.app).publisher,
                        wanted=wanted,
                        destination=self.destination,
                        change=detached if self._detach else None,
                        page=self._page,
                    )
                ) as moved,
            ):
                for letter, problem in moved:
                    step()
                    self._count(letter, problem)
                    if time.monotonic() > until:
                        return False
        return True

    @property
    def _page(self) -> int:
        """No more than a minute's worth: what waits for its turn is held, too."""
        return PAGE if self._pace is None else max(1, min(PAGE, int(self._pace.per_second * 60)))

    def _count(self, letter: DeadMessage, problem: DLXError | None) -> None:
        self._done.add(_mark(letter, letter.replays + (problem is None)))
        if self._only is not None:
            self._only.discard(letter.record.task_id)
        self.note(letter)
        if problem is None:
            self.replayed += 1
            self.say("replayed", letter)
        else:
            self.kept += 1
            self.say("kept", letter, problem)

    def _keep_pace(self) -> None:
        if self._pace is not None:
            time.sleep(self._pace.seconds_to_wait(time.monotonic()))  # noqa: TID251 - that is what a rate is


def _mark(letter: DeadMessage, replays: int) -> int:
    """By what a letter is known when it is met again; one without a task id has its body, and counts its replays."""
    body = letter.message.body
    return hash(letter.record.task_id or (body if isinstance(body, str) else bytes(body), replays))
