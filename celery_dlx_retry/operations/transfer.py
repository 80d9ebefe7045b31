"""Write dead letters to a file as lines of JSON, and put them back."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, final

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.bound_publish import publish_to_queue
from celery_dlx_retry.broker.counts import depth
from celery_dlx_retry.broker.dead_letters import browse, check_message, takes_body
from celery_dlx_retry.deadletters.export import from_line, to_line
from celery_dlx_retry.deadletters.letter import DeadMessage, dead_message
from celery_dlx_retry.errors import InvalidExportLine, LetterError, Missing, Unpublishable
from celery_dlx_retry.events import Imported, emit
from celery_dlx_retry.operations.connect import broker_errors, broker_iterator, connection_of, require_rabbitmq
from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor
from celery_dlx_retry.operations.operation_errors import InvalidRequest
from celery_dlx_retry.operations.select_letters import LetterQuery, SeenLetters, SelectedLetters
from celery_dlx_retry.values.escaping import printable
from celery_dlx_retry.values.queue_names import name_problem

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator


# RabbitMQ takes no message over 512 MiB. A longer line is not from an export.
_LONGEST_LINE = 768 * 2**20
# RabbitMQ 4 takes messages of 16 MiB by default, older versions take 128 MiB.
_SMALLEST_LIMIT = 2**24


def export_letters(letters: Iterable[DeadMessage], file: IO[str]) -> int:
    """Write letters, with their arguments, one line of JSON each; return how many. The letters stay in their queues."""
    count = 0
    for letter in letters:
        file.write(f"{to_line(letter)}\n")
        count += 1
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """What an import would do."""

    #: The queues that the file's letters go to.
    queues: frozenset[str]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """What an import has done."""

    imported: int
    #: Equal letters are there already.
    already_there: int
    #: An edited version is there already.
    edited: int
    #: How many lines the next import must skip to continue.
    lines_done: int
    #: Whether all lines are done. False if the operation was cancelled, or failed.
    is_complete: bool


@final
class Import:
    """One import, as a context manager: ``plan()`` checks the file, ``run()`` imports its letters.

    ``lines`` is a binary file that can be read twice. ``skip`` is how many lines an earlier import has done. A letter
    that is in its queue already is not imported again. With ``again``, a letter is imported even if its queue has an
    edited version of it. The audit log gets ``source``, the name of the file, and ``operator``, by default the user of
    this process. ``result`` says at any time what has been imported so far.
    """

    def __init__(  # noqa: PLR0913 - which letters, where to
        self,
        app: Any,
        lines: IO[bytes],
        *,
        to_queue: str | None = None,
        skip: int = 0,
        again: bool = False,
        management_url: str | None = None,
        source: str = "",
        operator: str = "",
        monitor: Monitor = NO_MONITOR,
    ) -> None:
        require_rabbitmq(app)
        self._app, self._monitor, self._again, self._skip = app, monitor, again, skip
        self._to_queue, self._query = to_queue, LetterQuery(management_url=management_url)
        self._lines, self._source, self._operator = lines, source, operator
        self._publisher, self._names = context_of(app).publisher, context_of(app).names
        self._stack = ExitStack()
        self._planned: ImportPlan | None = None
        self._allowed: Container[str] = ()
        self._seen: SeenLetters | None = None
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Import:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plan(self) -> ImportPlan:
        """Check every line; raise InvalidExportLine if a letter cannot be imported, Missing if its queue is not there.

        So ``run()`` imports nothing of a file with a bad line.
        """
        self._allowed = self._allowed_queues()
        queues: set[str] = set()
        count, largest, its_line = 0, 0, 0
        for number, letter in self._file_letters():
            queues.add(letter.queue)
            count += 1
            if len(letter.message.body) > largest:
                largest, its_line = len(letter.message.body), number
        if largest > _SMALLEST_LIMIT and not takes_body(self._publisher, self._names, largest):
            raise InvalidExportLine(line=its_line, problem=f"the broker takes no body of {largest} bytes")
        self._planned = ImportPlan(queues=frozenset(queues), total=count)
        return self._planned

    def prepare(self) -> None:
        """Read which letters are in the queues already. ``run()`` calls it if you did not."""
        plan = self._planned or self.plan()
        seen = self._stack.enter_context(SeenLetters())
        with connection_of(self._app) as connection:
            with broker_errors(self._app):
                depths = {it: count for it in sorted(plan.queues) if (count := depth(connection, it)) is not None}
            done, total = 0, sum(depths.values())
            for queue in depths:
                with broker_iterator(self._app, browse(connection, queue)) as letters:
                    for letter in letters:
                        seen.add(letter)
                        done += 1
                        self._monitor.progress(done, total)
        with broker_errors(self._app), self._publisher.connection():
            pass  # the publisher can connect, too
        self._seen = seen

    def run(self) -> ImportResult:
        """Import the letters, one after the other."""
        plan = self._planned or self.plan()
        if self._seen is None:
            self.prepare()
        try:
            for _, letter in self._file_letters():
                if self._monitor.is_cancelled:
                    break
                self._counts[self._import(letter)] += 1
                self._monitor.progress(self._counts.total(), plan.total)
        except InvalidExportLine as exc:
            raise LetterError(detail=f"The file has changed since it was checked: {exc.problem}.") from exc
        finally:
            self._monitor.audit(
                "dead import",
                by=self._operator,
                imported=self._counts["imported"],
                already_there=self._counts["already there"],
                edited=self._counts["edited"],
                file=printable(self._source),
            )
        return self.result

    @property
    def result(self) -> ImportResult:
        """Return what has been imported so far."""
        done = self._counts.total()
        return ImportResult(
            imported=self._counts["imported"],
            already_there=self._counts["already there"],
            edited=self._counts["edited"],
            lines_done=self._skip + done,
            is_complete=self._planned is not None and done >= self._planned.total,
        )

    def _allowed_queues(self) -> Container[str]:
        """Return the queues that letters may go to: the dead-letter queues of this prefix that exist, or the named."""
        if self._to_queue is None:
            with SelectedLetters(self._app, self._query, monitor=self._monitor) as selected:
                return selected.queues()
        if problem := name_problem(self._to_queue):
            raise InvalidRequest(detail=f"{self._to_queue!r:.80} is not the name of a queue: {problem}.")
        with connection_of(self._app) as connection, broker_errors(self._app):
            if depth(connection, self._to_queue) is None:
                raise Missing(kind="queue", name=self._to_queue, cure="Nothing was imported.")
        return {self._to_queue}

    def _import(self, letter: DeadMessage) -> str:
        """Put a letter into its queue if it is not there; return the key of its count."""
        if self._seen is not None and self._seen.take(letter):
            return "already there"
        if self._seen is not None and not self._again and self._seen.has_other_version(letter):
            return "edited"
        publish_to_queue(self._publisher, self._names, letter.queue, letter.message, as_found=True)
        record = letter.record
        emit(Imported(task=record.task, task_id=record.task_id, dead_letter_queue=letter.queue))
        return "imported"

    def _file_letters(self) -> Iterator[tuple[int, DeadMessage]]:
        """Yield the letters of the file, as they will be in their queues, each with its line.

        Every iteration checks every line: the file may change.
        """
        self._lines.seek(0)
        number = 0
        while line := self._lines.readline(_LONGEST_LINE + 1):
            number += 1
            if number > self._skip:
                yield number, self._letter(line, number)

    def _letter(self, line: bytes, number: int) -> DeadMessage:
        if len(line) > _LONGEST_LINE:
            raise InvalidExportLine(line=number, problem=f"it is longer than {_LONGEST_LINE} bytes")
        named, message = from_line(line, number=number)
        queue = self._to_queue or named
        if queue not in self._allowed:
            problem = f"{queue!r:.300} is not a dead-letter queue of this app that exists; --to-queue names another one"
            raise InvalidExportLine(line=number, problem=problem)
        try:
            check_message(message)
            return dead_message(message, queue=queue, exchange="", routing_key=queue)
        except Unpublishable as exc:
            raise InvalidExportLine(line=number, problem=f"{exc.what} {exc.problem}") from exc
