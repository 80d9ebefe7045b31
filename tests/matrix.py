"""Run the matrix of tox.ini: ``python tests/matrix.py all`` and its page, or ``ends``: the oldest and the newest.

All of it has to be there for ``all``. An end whose Python or RabbitMQ cannot be had is said, and passed over.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import matrix_page
import rabbits

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "build" / "compat"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TOOLS = ROOT.parent / "shared" / "tools" / "build-images.sh"
TARGETS = {"4.0": "rootfs-trixie", "4.3": "rootfs-forky"}  # of the tools
BUILD_SECONDS = 100


class NotToBeHad(Exception):
    """Says what, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One corner of what we support."""

    name: str
    python: str
    celery: str
    rabbitmq: str

    def __str__(self) -> str:
        return f"{self.name}: Python {self.python}, Celery {self.celery}, RabbitMQ {self.rabbitmq}"

    def run_if_there(self) -> int:
        try:
            path = path_with(self.python)
            rabbit(self.rabbitmq)
        except NotToBeHad as problem:
            say(f"{self}: not run, {problem}")
            return 0
        say(str(self))
        env = {rabbits.VERSION: self.rabbitmq, rabbits.RECORD: str(ROOT / "build" / "ends" / f"{self.name}.json")}
        return tox(path, [f"smoke-py{self.python}-celery{self.celery}".replace(".", "")], env)


ENDS = (
    End(name="oldest", python=PYTHONS[0], celery="5.5", rabbitmq=rabbits.VERSIONS[0]),
    End(name="newest", python=PYTHONS[-1], celery="5.7", rabbitmq=rabbits.VERSIONS[-1]),
)


def ends() -> int:
    """0 also if neither could be run."""
    return max(end.run_if_there() for end in ENDS)


def everything(*only: str) -> int:
    """Run it, or only these environments, and write the page of what has been recorded so far."""
    path = path_with(*PYTHONS)
    for version in rabbits.VERSIONS:
        rabbit(version)
    code = tox(path, only or matrix_page.environments(ROOT / "tox.ini"))
    matrix_page.write(ROOT / "docs" / "compatibility.md", RECORDS)
    return code


def path_with(*versions: str) -> str:
    """A PATH on which tox finds these Pythons first; pyenv's own commands for them may lead nowhere."""
    return os.pathsep.join([*(str(interpreter(version).parent) for version in versions), os.environ["PATH"]])


def interpreter(version: str) -> Path:
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python{version}")]
    for path in filter(None, found):
        works = subprocess.run([path, "-c", "import venv"], capture_output=True, check=False)
        if works.returncode == 0:
            return Path(path)
    raise NotToBeHad(f"there is no python{version}, neither on PATH nor of pyenv")


def rabbit(version: str) -> None:
    """Make sure that there is one; the tools, if they are there, need a minute for it."""
    if rabbits.is_there(version):
        return
    if version not in TARGETS or not TOOLS.exists():
        raise NotToBeHad(f"there is no RabbitMQ {version} here, in {rabbits.folder()} or as an image")
    say(f"RabbitMQ {version}: {TOOLS.name} {TARGETS[version]}")
    command, env = [TOOLS, TARGETS[version]], {"MIRROR": mirror(), **os.environ}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=env, **pipes, text=True, start_new_session=True) as build:
        try:
            said, _ = build.communicate(timeout=BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(build.pid, signal.SIGTERM)  # with all that it has started
            raise NotToBeHad(f"{TOOLS.name} has not made RabbitMQ {version} within {BUILD_SECONDS} s") from None
    if not rabbits.is_there(version):
        said = said.strip().rpartition("\n")[2] or f"exit {build.returncode}"
        raise NotToBeHad(f"{TOOLS.name} made no RabbitMQ {version}: {said}")


def mirror() -> str:
    """Where this machine's apt gets Debian from. The tools look for it in a file that newer Debians do not have."""
    apt = shutil.which("apt-get")
    told = apt and subprocess.run(
        [apt, "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=False
    )
    return next((uri for uri in told.stdout.split() if uri.rstrip("/").endswith("/debian")), "") if told else ""


def tox(path: str, names: list[str] | tuple[str, ...], env: dict[str, str] | None = None) -> int:
    command = [sys.executable, "-m", "tox", "run", "-q", "-c", str(ROOT / "tox.ini"), "-e", ",".join(names)]
    return subprocess.run(command, env={**os.environ, **(env or {}), "PATH": path}, check=False).returncode


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    what, *names = sys.argv[1:]
    try:
        sys.exit({"ends": ends, "all": everything}[what](*names))
    except NotToBeHad as problem:
        sys.exit(f"The matrix needs all of it: {problem}.")
