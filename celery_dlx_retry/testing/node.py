"""A private RabbitMQ node: its own directory, cookie, epmd and ports, all on loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from tempfile import gettempdir
from typing import NoReturn

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

# A private mount namespace goes with the last process in it; `exec` all the way keeps the pid of the node.
IN_ROOT = """
root=$1 dir=$2 user=$3; shift 3
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount --bind "$dir" "$root/mnt"
mount --bind "$dir/hosts" "$root/etc/hosts"
mount -o remount,bind,ro "$root" 2>/dev/null || true
exec chroot ${user:+"--userspec=$user"} "$root" env -C /mnt "$@"
"""


class PortTaken(WayFailed):
    """Somebody else was quicker; other ports will do."""


def start_private_node(root: Path | None = None, *, certificates: Path | None = None) -> PrivateNode:
    """Start a node of the installed RabbitMQ, or of the one in the root filesystem ``root``.

    With a folder of ``ca.pem``, ``cert.pem`` and ``key.pem`` it also speaks TLS: see ``tls_url``.
    """
    scripts = find_scripts(root)
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        node = PrivateNode(scripts, root=root)
        if certificates is not None:
            node.speak_tls(certificates)
        try:
            node.start()
        except BaseException as exc:
            node.close()
            if not (isinstance(exc, PortTaken) and attempts_left):
                raise
        else:
            return node
    raise AssertionError


def find_scripts(root: Path | None = None) -> Path:
    """Return the directory of rabbitmq-server and rabbitmqctl, as seen from inside ``root``."""
    if root is not None:
        if not os.access(root / PACKAGED.relative_to("/") / "rabbitmq-server", os.X_OK):
            raise WayFailed(way=str(root), problem="holds no root filesystem with Debian's rabbitmq-server")
        return PACKAGED
    # A normal user's PATH often lacks sbin.
    found = shutil.which("rabbitmq-server", path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        raise WayFailed(way=WAY, problem="not installed")
    scripts = Path(found).parent
    packaged = scripts in {Path("/usr/sbin"), Path("/sbin")} and (PACKAGED / "rabbitmq-server").exists()
    return PACKAGED if packaged else scripts


class PrivateNode(RabbitMQ):
    """Nothing outside its directory is written; the machine's own node, cookie and /etc/rabbitmq are not used."""

    origin = "local"
    can_restart = True

    def __init__(self, scripts: Path, *, root: Path | None = None, login: str = "") -> None:
        self._scripts = scripts
        self._root = root
        #: USER:PASSWORD, for whom only this process and its children know; there is no user guest.
        self.login = login or f"dlx{secrets.token_hex(3)}:{secrets.token_hex(16)}"
        self._account = unprivileged("rabbitmq", reaching=[Path(gettempdir()), *([scripts] if root is None else [])])
        self._ports = free_ports(6)
        self._amqp_port, self._dist_port, self._epmd_port, management_port, *self._tls_ports = self._ports
        self.tls_url = self.tls_management_url = ""
        self._name = f"dlx{self._amqp_port}@localhost"
        super().__init__(
            f"amqp://{self.login}@{LOOPBACK}:{self._amqp_port}//",
            management_url=f"http://{self.login}@{LOOPBACK}:{management_port}",
        )
        self._sandbox = Sandbox("rabbitmq")
        self._write_files(management_port)

    def speak_tls(self, certificates: Path) -> None:
        """Have AMQP and the HTTP API on TLS ports as well, from the next start on."""
        amqp_port, management_port = self._tls_ports
        home = self._environment()["HOME"]
        for name in ("ca.pem", "cert.pem", "key.pem"):
            shutil.copy(certificates / name, self._sandbox.path / name)
            (self._sandbox.path / name).chmod(0o600)
        lines = [f"listeners.ssl.1 = {LOOPBACK}:{amqp_port}", f"management.ssl.port = {management_port}"]
        lines += [f"management.ssl.ip = {LOOPBACK}"]
        for section in ("ssl_options", "management.ssl"):
            files = {"cacertfile": "ca.pem", "certfile": "cert.pem", "keyfile": "key.pem"}
            lines += [f"{section}.{key} = {home}/{name}" for key, name in files.items()]
        with (self._sandbox.path / "rabbitmq.conf").open("a") as conf:
            conf.write("\n".join([*lines, ""]))
        self._hand_over()
        self.tls_url = f"amqps://{self.login}@{LOOPBACK}:{amqp_port}//"
        self.tls_management_url = f"https://{self.login}@{LOOPBACK}:{management_port}"

    @property
    def pid(self) -> int | None:
        """The Erlang VM's, or None if it is down."""
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
        """SIGTERM, which RabbitMQ answers with a clean shutdown."""
        self._sandbox.terminate("rabbitmq", within=STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL to the node and its helper processes; epmd stays."""
        self._sandbox.kill("rabbitmq")

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections, as for any process that hangs."""
        self._sandbox.pause("rabbitmq")

    def resume(self) -> None:
        """SIGCONT."""
        self._sandbox.resume("rabbitmq")

    def ctl(self, *args: str) -> str:
        """Takes a second, and half a minute on a busy machine: rabbitmqctl is an Erlang VM of its own."""
        try:
            done = subprocess.run(  # noqa: S603 - rabbitmqctl with the arguments of a test
                self._command("rabbitmqctl", "--quiet", *args),
                env=self._environment(),
                cwd=self._sandbox.path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CTL_SECONDS,
                check=False,
                **(self._account.popen if self._account and self._root is None else {}),
            )
        except subprocess.TimeoutExpired as late:
            raise CommandFailed(
                command=f"rabbitmqctl {' '.join(args)}", output=f"no answer in {CTL_SECONDS} s"
            ) from late
        if done.returncode:
            raise CommandFailed(command=f"rabbitmqctl {' '.join(args)}", output=(done.stderr or done.stdout).strip())
        return str(done.stdout)

    def close(self) -> None:
        """No clean shutdown, which takes seconds: the data goes anyway."""
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
        # A root filesystem is entered by root, and chroot becomes the other user.
        account = self._account if self._root is None else None
        self._sandbox.spawn(name, command, self._environment(), account=account)

    def _is_alive(self) -> bool:
        # epmd ends, without a word and with status 0, when it finds another one at its port.
        return bool(self.pid and self._sandbox.pid("epmd"))

    def _fail(self, problem: str) -> NoReturn:
        said = self._sandbox.said("rabbitmq.out", "epmd.out", f"log/{self._name}.log")
        self._sandbox.kill("rabbitmq")
        self._sandbox.kill("epmd")
        failure = WayFailed if all(map(is_free, self._ports)) else PortTaken
        raise failure(way=str(self._root or WAY), problem=f"{problem}: {said}")

    def _command(self, program: str, *args: str) -> list[str]:
        if self._root is None:
            return [shutil.which(program, path=self._environment()["PATH"]) or program, *args]
        # Who is not root may still be root in a namespace of users.
        namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
        user = f"{self._account.uid}:{self._account.gid}" if self._account else ""
        shell = ["sh", "-ec", IN_ROOT, "sh", str(self._root), str(self._sandbox.path), user]
        return ["unshare", *namespaces, "--propagation", "private", *shell, program, *args]

    def _environment(self) -> dict[str, str]:
        home = str(self._sandbox.path) if self._root is None else "/mnt"
        path = f"{self._scripts}:{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
        return {
            "PATH": path if self._root is None else f"{self._scripts}:{SYSTEM_PATH}",
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
