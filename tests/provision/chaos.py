"""The chaos run on what only this repository starts: a RabbitMQ of a root filesystem, or a cluster of three nodes.

python -m tests.provision.chaos --cluster
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.testing.chaos.breaks import Broken, Ways, kills, outage, take_down
from celery_dlx_retry.testing.chaos.command import chaos
from celery_dlx_retry.testing.chaos.command import main as of_the_wheel
from tests.provision.cluster import start_cluster
from tests.provision.rabbitmq import ROOT, provide

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.provision.cluster import Cluster

CLUSTER = click.Option(
    ["--cluster"], is_flag=True, help="Start three nodes, with quorum queues, and kill single nodes."
)


class BreakClusterNode:
    """One node after the other, chosen by chance, and the next only when the cluster is whole: a majority lives."""

    def __init__(self, cluster: Cluster, chance: random.Random, *, ways: Ways) -> None:
        self._cluster, self._chance = cluster, chance
        self._kills = kills(ways)

    def __call__(self) -> Broken:
        """See ``Break``."""
        node = self._chance.choice(self._cluster.nodes)
        broken = take_down(node, node.name, kill=next(self._kills))
        outage(self._chance)
        node.start()
        self._cluster.wait_until_whole()
        return broken


@click.command(params=[*of_the_wheel.params, CLUSTER], context_settings=of_the_wheel.context_settings)
def main(*, cluster: bool, **options: Any) -> None:
    """Break things while tasks run, and count what became of every one of them."""
    if not cluster:
        chaos(lambda say: provide(say=say), **options)
    if options["url"] or options["queue_type"] == "classic":
        raise click.UsageError("--cluster starts its own nodes, with quorum queues.")
    chaos(_three_nodes, break_with=BreakClusterNode, default_queue_type="quorum", **options)


def _three_nodes(say: Callable[[str], None]) -> Cluster:
    say("starting three nodes")
    return start_cluster(Path(root).resolve() if (root := os.environ.get(ROOT)) else None)


if __name__ == "__main__":
    main()
