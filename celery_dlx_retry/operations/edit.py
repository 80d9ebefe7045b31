"""Change the arguments of a dead letter, or bring its first arguments back. The letter stays dead."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery.utils.saferepr import saferepr

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.dead_letters import rewrite
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.errors import ArgumentsDoNotFit
from celery_dlx_retry.events import Edited, emit
from celery_dlx_retry.operations.connect import broker_iterator, connection_of
from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor
from celery_dlx_retry.operations.operation_errors import InvalidRequest
from celery_dlx_retry.operations.select_letters import LetterQuery, SelectedLetters
from celery_dlx_retry.wire.task_body import Payload, edited, payload_of, restored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.wire.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPlan:
    """A letter, and the message that would take its place."""

    letter: DeadMessage
    #: None if the edit changes nothing.
    changed: Message | None


def find_letter(
    app: Any,
    task_id: str,
    *,
    queues: tuple[str, ...] = (),
    management_url: str | None = None,
    monitor: Monitor = NO_MONITOR,
) -> DeadMessage | None:
    """Return the first dead letter with this task id, or None."""
    query = LetterQuery(queues=queues, filter=LetterFilter(ids=frozenset([task_id])), management_url=management_url)
    with SelectedLetters(app, query, monitor=monitor) as selected:
        letters = list(selected)  # to the end, so that they keep their order
    return letters[0] if letters else None


def set_arguments(app: Any, letter: DeadMessage, changes: Mapping[str, Any]) -> Payload:
    """Return the letter's arguments with these changes.

    A key is the name of an argument, or the position of a positional one, such as ``"0"``. Raise InvalidRequest if
    there is no such position, Unreadable if the body cannot be decoded safely.
    """
    payload = payload_of(letter.message)
    args, kwargs = list(payload.args), dict(payload.kwargs)
    signature = _signature(app, letter)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = enumerate(signature.parameters.values() if signature else ())
    positions = {one.name: number for number, one in parameters if one.kind in by_position}
    for name, value in changes.items():
        position = int(name[:9]) if name.isdecimal() else positions.get(name)
        if position is not None and name not in kwargs and position < len(args):
            args[position] = value
        elif name.isdecimal():
            problem = f"it has {len(args)} positional arguments, counted from 0."
            raise InvalidRequest(detail=f"Argument {name}: {problem}", name=name, problem=problem)
        else:
            kwargs[name] = value
    return replace(payload, args=args, kwargs=kwargs)


def plan_edit(app: Any, letter: DeadMessage, payload: Payload, *, check: bool = True) -> EditPlan:
    """Return the letter with these arguments; raise ArgumentsDoNotFit if the task does not take them."""
    if payload == payload_of(letter.message):
        return EditPlan(letter=letter, changed=None)
    if check:
        check_arguments(app, letter, payload)
    changed = edited(letter.message, payload, argsrepr=saferepr(payload.args), kwargsrepr=saferepr(payload.kwargs))
    return EditPlan(letter=letter, changed=changed)


def plan_restore(letter: DeadMessage) -> EditPlan:
    """Return the letter as it was before its first edit; raise Unreadable if it was not edited."""
    return EditPlan(letter=letter, changed=restored(letter.message))


def run_edit(app: Any, plan: EditPlan, *, operator: str = "", monitor: Monitor = NO_MONITOR) -> int:
    """Put the changed letter in the place of the old one, at the end of its queue; return how many were changed.

    It is 0 if the letter is no longer there as the plan saw it: a plan holds no message. It is more than 1 if the queue
    has equal letters.
    """
    letter, changed = plan.letter, plan.changed
    if changed is None:
        return 0

    def is_same(other: DeadMessage) -> bool:
        return other.record == letter.record and other.message.body == letter.message.body

    context = context_of(app)
    count = 0
    try:
        with connection_of(app) as connection:
            rewritten = rewrite(
                connection,
                letter.queue,
                names=context.names,
                publisher=context.publisher,
                wanted=is_same,
                change=lambda _: changed,
            )
            with broker_iterator(app, rewritten) as letters:
                for _ in letters:
                    count += 1
                    record = letter.record
                    emit(Edited(task=record.task, task_id=record.task_id, dead_letter_queue=letter.queue))
    finally:
        monitor.audit("dead edit", by=operator, edited=count, task_id=letter.record.task_id, queue=letter.queue)
    return count


def check_arguments(app: Any, letter: DeadMessage, payload: Payload) -> None:
    """Raise ArgumentsDoNotFit if the signature of the task does not take these arguments, or is not known."""
    name, signature = letter.record.task, _signature(app, letter)
    if signature is None:
        problem = "this app does not know the task, so they cannot be checked; --no-check writes them unchecked"
        raise ArgumentsDoNotFit(task=name, problem=problem)
    try:
        signature.bind(*payload.args, **payload.kwargs)
    except TypeError as exc:
        raise ArgumentsDoNotFit(task=name, problem=str(exc)) from exc


def _signature(app: Any, letter: DeadMessage) -> inspect.Signature | None:
    """Return the signature of the letter's task; None if the task is not registered here."""
    task = app.tasks.get(letter.record.task)
    return None if task is None else inspect.signature(task.run)
