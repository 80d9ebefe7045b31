"""A private RabbitMQ node that may come from a root filesystem, and may speak TLS."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from celery_dlx_retry.testing.local_node import PACKAGED, SYSTEM_PATH, LocalNode, started
from celery_dlx_retry.testing.local_node import find_scripts as find_local_scripts
from celery_dlx_retry.testing.sandbox import LOOPBACK, WayFailed

if TYPE_CHECKING:
    from pathlib import Path

    from celery_dlx_retry.testing.sandbox import Account

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


def start_private_node(root: Path | None = None, *, certificates: Path | None = None) -> PrivateNode:
    """Start a node of the installed RabbitMQ, or of the one in the root filesystem ``root``.

    With a folder of ``ca.pem``, ``cert.pem`` and ``key.pem`` it also speaks TLS: see ``tls_url``.
    """
    scripts = find_scripts(root)

    def make() -> PrivateNode:
        node = PrivateNode(scripts, root=root)
        if certificates is not None:
            node.speak_tls(certificates)
        return node

    return started(make, PrivateNode.start)


def find_scripts(root: Path | None = None) -> Path:
    """Return the directory of rabbitmq-server and rabbitmqctl, as seen from inside ``root``."""
    if root is None:
        return find_local_scripts()
    if not os.access(root / PACKAGED.relative_to("/") / "rabbitmq-server", os.X_OK):
        raise WayFailed(way=str(root), problem="holds no root filesystem with Debian's rabbitmq-server")
    return PACKAGED


class PrivateNode(LocalNode):
    """A node with two more ports, for TLS."""

    port_count = 6

    def __init__(self, scripts: Path, *, root: Path | None = None, login: str = "") -> None:
        self._root = root
        super().__init__(scripts, login=login)
        if root:
            self._way, self._path = str(root), f"{scripts}:{SYSTEM_PATH}"
        self.tls_url = self.tls_management_url = ""

    def speak_tls(self, certificates: Path) -> None:
        """Have AMQP and the HTTP API on TLS ports as well, from the next start on."""
        amqp_port, management_port = self._ports[4:]
        for name in ("ca.pem", "cert.pem", "key.pem"):
            shutil.copy(certificates / name, self._sandbox.path / name)
            (self._sandbox.path / name).chmod(0o600)
        lines = [f"listeners.ssl.1 = {LOOPBACK}:{amqp_port}", f"management.ssl.port = {management_port}"]
        lines += [f"management.ssl.ip = {LOOPBACK}"]
        for section in ("ssl_options", "management.ssl"):
            files = {"cacertfile": "ca.pem", "certfile": "cert.pem", "keyfile": "key.pem"}
            lines += [f"{section}.{key} = {self._home()}/{name}" for key, name in files.items()]
        with (self._sandbox.path / "rabbitmq.conf").open("a") as conf:
            conf.write("\n".join([*lines, ""]))
        self._hand_over()
        self.tls_url = f"amqps://{self.login}@{LOOPBACK}:{amqp_port}//"
        self.tls_management_url = f"https://{self.login}@{LOOPBACK}:{management_port}"

    def _runs_as(self) -> Account | None:
        # Root enters the root filesystem, and chroot becomes the other user.
        return None if self._root else super()._runs_as()

    def _home(self) -> str:
        return "/mnt" if self._root else super()._home()

    def _command(self, program: str, *args: str) -> list[str]:
        if self._root is None:
            return super()._command(program, *args)
        # A user who is not root may still be root in a namespace of users.
        namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
        user = f"{self._account.uid}:{self._account.gid}" if self._account else ""
        shell = ["sh", "-ec", IN_ROOT, "sh", str(self._root), str(self._sandbox.path), user]
        return ["unshare", *namespaces, "--propagation", "private", *shell, program, *args]
