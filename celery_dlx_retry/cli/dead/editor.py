"""Open the user's editor on text that must not stay on the disk."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

# Both end a process by default, without its `finally` blocks. Windows has no SIGHUP.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def in_editor(text: str) -> str:
    """Return the text as the user saved it.

    The file is in a directory that only this user may enter. The directory is deleted when the editor ends, together
    with the copies that editors leave beside a file, also if SIGTERM or SIGHUP ends the command. SIGKILL leaves it.
    """
    with _ended_by_exceptions(), TemporaryDirectory(prefix="celery-dlx-edit-", ignore_cleanup_errors=True) as folder:
        file = Path(folder, "arguments.json")
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as new:
            new.write(text)
        try:
            click.edit(filename=str(file))
        except ValueError as exc:  # of shlex
            raise click.UsageError(f"The editor cannot be started: EDITOR or VISUAL is not a command ({exc}).") from exc
        try:
            return file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as exc:
            raise click.ClickException("What the editor left cannot be read as UTF-8. Nothing was changed.") from exc


@contextmanager
def _ended_by_exceptions() -> Iterator[None]:
    """Let a signal that ends the process raise SystemExit instead; one that is ignored or handled stays so."""

    def end(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # others may not set handlers
    replaced = [each for each in _ENDING if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for each in replaced:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in replaced:
            signal.signal(each, signal.SIG_DFL)
