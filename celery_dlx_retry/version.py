"""The version of the installed distribution; pyproject.toml has the number."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("celery-dlx-retry")
except PackageNotFoundError:  # a checkout on PYTHONPATH that is not installed
    __version__ = "unknown"
