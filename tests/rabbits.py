"""The RabbitMQ that a run of the matrix asks for by its version: ``DLX_TEST_RABBITMQ=4.0``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from celery_dlx_retry.testing.rabbitmq import IMAGE
from tests.provision.rabbitmq import ROOT

VERSION = "DLX_TEST_RABBITMQ"
RECORD = "DLX_TEST_RECORD"  # where a session of the matrix writes what came of it
ROOTS = "DLX_TEST_RABBITMQ_ROOTS"  # a folder of root filesystems, as ../shared/tools makes them
DEFAULT_ROOTS = "~/.cache/dlx-tools/rootfs"
VERSIONS = ("3.10", "4.0", "4.3")


def root_of(version: str) -> Path | None:
    """A root filesystem with this RabbitMQ in it: this machine's own, or one of the folder."""
    roots = [Path("/"), *(mark.parent for mark in sorted(folder().glob("*/.complete")))]
    return next((root for root in roots if any(root.glob(f"usr/lib/rabbitmq/lib/rabbitmq_server-{version}.*"))), None)


def folder() -> Path:
    return Path(os.environ.get(ROOTS) or DEFAULT_ROOTS).expanduser()


def is_there(version: str) -> bool:
    """Whether it can be started without asking a network for it."""
    return root_of(version) is not None or has_image(image(version))


def image(version: str) -> str:
    return f"rabbitmq:{version}-management"


def has_image(name: str) -> bool:
    try:
        shown = subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return shown.returncode == 0


def ask_for(version: str) -> None:
    """Let ``provide()`` take this one, here and in every process that is started from here."""
    if root := root_of(version):
        os.environ[ROOT] = str(root)
    else:
        os.environ.pop(ROOT, None)
        os.environ[IMAGE] = image(version)


def is_of(version: str, exact: str) -> bool:
    """Whether what answered is what was asked for; an empty version is any."""
    return not version or f"{exact}.".startswith(f"{version}.")
