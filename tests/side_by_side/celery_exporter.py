"""celery-exporter of Dani Hodovic, in a separate environment: it asks for older libraries than we test with."""

from __future__ import annotations

from tests.side_by_side.environments import python_with

#: On PyPI the project has this name. ``celery-exporter`` is another project there, and ended in 2021.
REQUIREMENT = "prometheus-exporter-celery==0.11.2"
#: The package has no command.
COMMAND = "from src.cli import cli; cli(auto_envvar_prefix='CE')"


def command(*options: str) -> list[str]:
    """Return the command line; install the exporter if it is not there."""
    return [str(python_with("celery-exporter", REQUIREMENT)), "-c", COMMAND, *options]
