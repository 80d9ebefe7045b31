"""A project of a user's, and pytest in it: it has nothing to do with ours."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PLUGINS = ("-p", "no:celery", "-p", "no:cacheprovider")


def write(folder, files, **names):
    """These files, with ``@name@`` replaced."""
    for file, text in files.items():
        text = textwrap.dedent(text)  # noqa: PLW2901
        for name, value in names.items():
            text = text.replace(f"@{name}@", value)  # noqa: PLW2901
        (folder / file).write_text(text)


def run_pytest(folder, *flags, broker=None):
    """As a user would."""
    environment = {
        key: value for key, value in os.environ.items() if key not in {"PYTEST_ADDOPTS", "DLX_TEST_BROKER_URL"}
    }
    if broker is not None:
        environment["DLX_TEST_BROKER_URL"] = broker.url
    command = [sys.executable, "-m", "pytest", *PLUGINS, "--rootdir", str(folder), *flags]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=90)
    return done.stdout + done.stderr
