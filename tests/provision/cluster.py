"""Private RabbitMQ nodes joined into one cluster, each of which may be killed and started by itself."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from celery_dlx_retry.testing.broker import CommandFailed, RabbitMQ
from celery_dlx_retry.testing.local_node import started
from celery_dlx_retry.testing.sandbox import WayFailed, wait_until
from tests.provision.node import PrivateNode, find_scripts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 3
WHOLE_SECONDS = 90.0


def start_cluster(root: Path | None = None, *, size: int = SIZE) -> Cluster:
    """Start nodes of the installed RabbitMQ, or of the one in the root filesystem ``root``, and join them."""
    scripts = find_scripts(root)

    def make() -> Cluster:
        first = ClusterNode(scripts, root=root)
        return Cluster([first, *(ClusterNode(scripts, root=root, first=first) for _ in range(size - 1))])

    return started(make, Cluster.form)


class ClusterNode(PrivateNode):
    """A node that shares cookie and epmd with the ``first``; that epmd outlives a kill of its node."""

    def __init__(self, scripts: Path, *, root: Path | None = None, first: ClusterNode | None = None) -> None:
        super().__init__(scripts, root=root, login=first.login if first else "")
        self._first = first
        if first is not None:
            self._epmd_port = first._epmd_port
            cookie = self._sandbox.path / ".erlang.cookie"
            cookie.chmod(0o600)
            cookie.write_text((first._sandbox.path / cookie.name).read_text())
            cookie.chmod(0o400)

        # RabbitMQ 3 keeps its queues' names in Mnesia: whoever is cut off from the majority has to stop by itself.
        with (self._sandbox.path / "rabbitmq.conf").open("a") as conf:
            conf.write("cluster_partition_handling = pause_minority\n")

    @property
    def name(self) -> str:
        """As Erlang knows it."""
        return self._name

    def prepare(self) -> None:
        """Start the epmd that all nodes need."""
        self._start_epmd()

    def join(self) -> None:
        """Become a member of the first node's cluster; what was in this node is gone."""
        if self._first is not None:
            self.ctl("stop_app")
            self.ctl("join_cluster", self._first.name)
            self.ctl("start_app")

    def _start_epmd(self) -> None:
        if self._first is None:
            super()._start_epmd()

    def _is_alive(self) -> bool:
        return super()._is_alive() if self._first is None else bool(self.pid)


class Cluster(RabbitMQ):
    """``url`` names all nodes, for clients that fail over; ``nodes`` are to be killed and started one by one."""

    origin = "cluster"
    can_restart = True

    def __init__(self, nodes: list[ClusterNode]) -> None:
        super().__init__(";".join(node.url for node in nodes), management_url=nodes[0].management_url)
        self.nodes = nodes

    def form(self) -> None:
        """Start all nodes and join them."""
        first, *others = self.nodes
        first.prepare()
        self._start_all()
        for node in others:  # one after the other: two that join at once may refuse each other
            node.join()
        self.version = first.version
        self.wait_until_whole()

    def start(self) -> None:
        """Start the nodes that are down."""
        self._start_all()
        self.wait_until_whole()

    def stop(self) -> None:
        """Shut all nodes down cleanly."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Crash all nodes."""
        for node in self.nodes:
            node.kill()

    def ctl(self, *args: str) -> str:
        """Ask the first node that runs."""
        return next(node for node in self.nodes if node.pid).ctl(*args)

    def close(self) -> None:
        """End all nodes, and remove their data."""
        with ExitStack() as stack:
            for node in self.nodes:  # the first, whose epmd it is, comes last
                stack.callback(node.close)

    def leader_of(self, queue: str) -> ClusterNode:
        """The node on which a quorum queue's leader runs."""
        rows = json.loads(self.ctl("list_queues", "--formatter", "json", "name", "leader"))
        leader = next(row["leader"] for row in rows if row["name"] == queue)
        return next(node for node in self.nodes if node.name == leader)

    @contextmanager
    def cut_off(self, node: ClusterNode) -> Iterator[None]:
        """Let no other node talk to this one, though clients still can: the others no longer know its password."""
        others = ", ".join(f"'{other.name}'" for other in self.nodes if other is not node)
        node.ctl("eval", f"[begin erlang:set_cookie(N, cut_off), erlang:disconnect_node(N) end || N <- [{others}]].")
        try:
            yield
        finally:
            node.ctl("eval", f"[erlang:set_cookie(N, erlang:get_cookie()) || N <- [{others}]].")

    def wait_until_whole(self) -> None:
        """Wait until every node is a running member, and every quorum queue has all its members back."""
        if not wait_until(self.is_whole, within=WHOLE_SECONDS):
            raise WayFailed(way="a cluster", problem=f"was not whole again within {WHOLE_SECONDS:.0f} s")

    def is_whole(self) -> bool:
        """Say whether nothing is missing."""
        try:
            status = json.loads(self.ctl("cluster_status", "--formatter", "json"))
            rows = json.loads(self.ctl("list_queues", "--formatter", "json", "name", "type", "members", "online"))
        except CommandFailed:  # while a node is on its way
            return False
        if len(status["running_nodes"]) < len(self.nodes):
            return False
        return all(len(row["online"]) >= len(row["members"]) for row in rows if row["type"] == "quorum")

    def _start_all(self) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(ClusterNode.start, self.nodes))
