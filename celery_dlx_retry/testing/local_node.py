"""A node of the installed RabbitMQ: its own directory, cookie, epmd and ports, all on loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar

from celery_dlx_retry.testing.broker import RESEND_SOON, START_SECONDS, CommandFailed, RabbitMQ
from celery_dlx_retry.testing.sandbox import (
    LOOPBACK,
    Sandbox,
    WayFailed,
    free_ports,
    is_free,
    listens,
    unprivileged,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.testing.sandbox import Account

Broker = TypeVar("Broker", bound=RabbitMQ)

WAY = "a local rabbitmq-server"
# Debian's and Red Hat's packages put a wrapper into /usr/sbin that becomes the user rabbitmq, with the system's cookie
# and data; the scripts that it runs are here.
PACKAGED = Path("/usr/lib/rabbitmq/bin")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ON_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"
EPMD_SECONDS = 10.0
CTL_SECONDS = 120
STOP_SECONDS = 30.0
PORT_ATTEMPTS = 5


class PortTaken(WayFailed):
    """Another process took a port first; other ports will do."""


def start_local_node() -> LocalNode:
    """Start a node of the installed RabbitMQ."""
    scripts = find_scripts()
    return started(lambda: LocalNode(scripts), LocalNode.start)


def started(make: Callable[[], Broker], start: Callable[[Broker], None]) -> Broker:
    """Make a broker and start it; take another one, with other ports, if another process took a port first."""
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        broker = make()
        try:
            start(broker)
        except BaseException as exc:
            broker.close()
            if not (isinstance(exc, PortTaken) and attempts_left):
                raise
        else:
            return broker
    raise AssertionError


def find_scripts() -> Path:
    """Return the directory of rabbitmq-server and rabbitmqctl."""
    # A normal user's PATH often lacks sbin.
    found = shutil.which("rabbitmq-server", path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        raise WayFailed(way=WAY, problem="not installed")
    scripts = Path(found).parent
    packaged = scripts in {Path("/usr/sbin"), Path("/sbin")} and (PACKAGED / "rabbitmq-server").exists()
    return PACKAGED if packaged else scripts


class LocalNode(RabbitMQ):
    """A node that writes only into its directory. It does not use the machine's node, cookie and /etc/rabbitmq."""

    origin = "local"
    can_restart = True

    #: AMQP, distribution, epmd and the HTTP API, in this order.
    port_count: ClassVar[int] = 4

    def __init__(self, scripts: Path, *, login: str = "") -> None:
        #: How errors name this node.
        self._way = WAY
        self._path = f"{scripts}:{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
        #: USER:PASSWORD, which only this process and its children know; there is no user guest.
        self.login = login or f"dlx{secrets.token_hex(3)}:{secrets.token_hex(16)}"
        # Another root filesystem has its own folder of scripts.
        self._account = unprivileged("rabbitmq", reaching=[it for it in (Path(gettempdir()), scripts) if it.exists()])
        self._ports = free_ports(self.port_count)
        self._amqp_port, self._dist_port, self._epmd_port, management_port = self._ports[:4]
        self._name = f"dlx{self._amqp_port}@localhost"
        super().__init__(
            f"amqp://{self.login}@{LOOPBACK}:{self._amqp_port}//",
            management_url=f"http://{self.login}@{LOOPBACK}:{management_port}",
        )
        self._sandbox = Sandbox("rabbitmq")
        self._write_files(management_port)

    @property
    def pid(self) -> int | None:
        """Return the pid of the Erlang VM; None if it is down."""
        return self._sandbox.pid("rabbitmq")

    def start(self) -> None:
        """Start epmd if it is not there yet, then the node."""
        if self.pid:
            return
        self._start_epmd()
        self._spawn("rabbitmq", self._command("rabbitmq-server"))
        in_time = wait_until(lambda: not self._is_alive() or self.answers(), within=START_SECONDS)
        if not self._is_alive():
            self._fail("the node ended during its start")
        if not in_time:
            self._fail(f"the node did not answer within {START_SECONDS:.0f} s")

    def stop(self) -> None:
        """Send SIGTERM, after which RabbitMQ shuts down cleanly."""
        self._sandbox.terminate("rabbitmq", within=STOP_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL to the node and its helper processes; epmd stays."""
        self._sandbox.kill("rabbitmq")

    def pause(self) -> None:
        """Send SIGSTOP: the kernel still accepts connections, as for any process that hangs."""
        self._sandbox.pause("rabbitmq")

    def resume(self) -> None:
        """Send SIGCONT."""
        self._sandbox.resume("rabbitmq")

    def ctl(self, *args: str) -> str:
        """Run rabbitmqctl, which is a separate Erlang VM: it takes a second, and half a minute on a busy machine."""
        account = self._runs_as()
        done = subprocess.run(  # noqa: S603 - rabbitmqctl with the arguments of a test
            self._command("rabbitmqctl", "--quiet", *args),
            env=self._environment(),
            cwd=self._sandbox.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CTL_SECONDS,
            check=False,
            **(account.popen if account else {}),
        )
        if done.returncode:
            raise CommandFailed(command=f"rabbitmqctl {' '.join(args)}", output=(done.stderr or done.stdout).strip())
        return str(done.stdout)

    def close(self) -> None:
        """Kill the node: a clean shutdown takes seconds, and its data is deleted anyway."""
        self._sandbox.close()

    def _start_epmd(self) -> None:
        # Left alone, the node starts one as a daemon that outlives it, on every interface.
        if self._sandbox.pid("epmd"):
            return
        command = self._command("epmd", "-port", str(self._epmd_port), "-address", LOOPBACK)
        self._spawn("epmd", command)
        wait_until(lambda: not self._sandbox.pid("epmd") or listens(self._epmd_port), within=EPMD_SECONDS)
        if not self._sandbox.pid("epmd"):
            self._fail("epmd did not start")

    def _spawn(self, name: str, command: list[str]) -> None:
        self._sandbox.spawn(name, command, self._environment(), account=self._runs_as())

    def _is_alive(self) -> bool:
        # epmd ends, without a word and with status 0, when it finds another one at its port.
        return bool(self.pid and self._sandbox.pid("epmd"))

    def _fail(self, problem: str) -> NoReturn:
        said = self._sandbox.said("rabbitmq.out", "epmd.out", f"log/{self._name}.log")
        self._sandbox.kill("rabbitmq")
        self._sandbox.kill("epmd")
        failure = WayFailed if all(map(is_free, self._ports)) else PortTaken
        raise failure(way=self._way, problem=f"{problem}: {said}")

    def _runs_as(self) -> Account | None:
        """Return the user that starts the processes; None for the user of this process."""
        return self._account

    def _home(self) -> str:
        """Return the node's directory, as the node sees it."""
        return str(self._sandbox.path)

    def _command(self, program: str, *args: str) -> list[str]:
        return [shutil.which(program, path=self._path) or program, *args]

    def _environment(self) -> dict[str, str]:
        home = self._home()
        return {
            "PATH": self._path,
            "HOME": home,  # of the Erlang cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_CRASH_DUMP": f"{home}/erl_crash.dump",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/no-rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_CONFIG_FILES": f"{home}/conf.d",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_PID_FILE": f"{home}/server-pid",
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self._amqp_port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),  # the default, 20000 more than the other, may not exist
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{ON_LOOPBACK} {RESEND_SOON}",
            "RABBITMQ_CTL_ERL_ARGS": ON_LOOPBACK,
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the Erlang VM, so that we signal the node itself
        }

    def _write_files(self, management_port: int) -> None:
        directory = self._sandbox.path
        for name in ("mnesia", "log", "conf.d"):
            (directory / name).mkdir()
        cookie = directory / ".erlang.cookie"
        cookie.touch(mode=0o600)
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (directory / "hosts").write_text(f"{LOOPBACK} localhost {socket.gethostname()}\n")
        (directory / "advanced.config").write_text("[].\n")
        # Management lists and deletes what a test left behind in milliseconds; rabbitmqctl needs a second to start.
        (directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
        user, _, password = self.login.partition(":")
        conf = directory / "rabbitmq.conf"
        conf.touch(mode=0o600)
        conf.write_text(
            f"default_user = {user}\ndefault_pass = {password}\n"
            f"management.tcp.ip = {LOOPBACK}\nmanagement.tcp.port = {management_port}\n"
        )
        self._hand_over()

    def _hand_over(self) -> None:
        """Let the node's user own its files."""
        if self._account:
            self._account.own(self._sandbox.path)
