"""Read the state of a task from a result backend, and no other part of its result.

Celery's ``get_task_meta()`` decodes the whole result: it can unpickle it, and it calls the class of a stored exception.
So this module only reads backends that store the state in a column, or the result as JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend

from celery_dlx_retry.wire.task_body import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Task id -> its state and the time of that state; None if the backend has no result.
    States = Callable[[str], tuple[str, str] | None]


def states_of(app: Any) -> tuple[States | None, str]:
    """Return a function that reads states from the app's result backend, or None and the reason."""
    try:
        backend = app.backend
        read = _reader(backend)
        if read is None:
            return None, _why_not(backend)
        read(backend, str(uuid4()))
    except Exception as exc:  # noqa: BLE001 - each backend has other errors
        return None, f"the result backend does not answer ({type(exc).__name__})"

    def states(task_id: str) -> tuple[str, str] | None:
        try:
            return read(backend, task_id)
        except Exception:  # noqa: BLE001 - each backend has other errors; a stored value may not be JSON
            return None

    return states, ""


def _why_not(backend: Any) -> str:
    if isinstance(backend, DisabledBackend):
        return "this app has no result backend"
    if isinstance(backend, RPCBackend):
        return "rpc:// gives a result only to the sender of the task"
    if any(_name(cls) in _JSON_READERS for cls in type(backend).__mro__):
        how = f"compressed ({backend.compression})" if _is_compressed(backend) else f"as {backend.serializer}"
        return f"this app stores its results {how}, and only plain JSON is read here"
    return f"{type(backend).__name__} cannot be asked for the state of a task without decoding its result"


def _reader(backend: Any) -> Callable[[Any, str], tuple[str, str] | None] | None:
    for name in map(_name, type(backend).__mro__):
        if name in _COLUMN_READERS:
            return _COLUMN_READERS[name]
        if name in _JSON_READERS:
            return _JSON_READERS[name] if backend.serializer == "json" and not _is_compressed(backend) else None
    return None


def _is_compressed(backend: Any) -> bool:
    return bool(getattr(backend, "compression", None))  # older versions of Celery have no such attribute


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _from_json(backend: Any, task_id: str) -> tuple[str, str] | None:
    stored = backend.get(backend.get_key_for_task(task_id))
    if not stored or len(stored) > MOST_BYTES:
        return None
    meta = json.loads(stored)
    return str(meta["status"]), str(meta.get("date_done"))


def _from_sqlalchemy(backend: Any, task_id: str) -> tuple[str, str] | None:
    # Only these two columns: SQLAlchemy or Celery would unpickle some of the others.
    table = backend.task_cls
    session = backend.ResultSession()
    try:
        found = session.query(table.status, table.date_done).filter(table.task_id == task_id).first()
    finally:
        session.close()
    return found and (str(found[0]), str(found[1]))


def _from_django(backend: Any, task_id: str) -> tuple[str, str] | None:
    rows = backend.TaskModel._default_manager.filter(task_id=task_id)  # noqa: SLF001 - Django's public name for it
    found = rows.values_list("status", "date_done").first()
    return found and (str(found[0]), str(found[1]))


# By name: the library of a backend may not be installed. Memcached is not among them: its clients unpickle.
_COLUMN_READERS = {
    "celery.backends.database.DatabaseBackend": _from_sqlalchemy,
    "django_celery_results.backends.database.DatabaseBackend": _from_django,
}
_JSON_READERS = {
    "celery.backends.redis.RedisBackend": _from_json,
    "celery.backends.filesystem.FilesystemBackend": _from_json,
}
