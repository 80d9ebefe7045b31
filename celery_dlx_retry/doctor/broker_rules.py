"""The rules about the broker as a cluster: known bugs by version, where leaders are, how many queues move letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_dlx_retry.doctor.rule import dotted, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.doctor.facts import Facts

_RESTARTS = "#16652"
_MOST_AT_LEAST_ONCE = 200
_FEW_LANES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBug:
    """A bug of RabbitMQ that meets our queues. ``fixed`` has one version for each release series with the fix."""

    issue: str
    #: The first series with the bug, as far as it is known.
    since: tuple[int, ...]
    fixed: tuple[tuple[int, ...], ...]
    effect: str
    #: A single node does not have the bug.
    needs_cluster: bool = False

    def affects(self, version: tuple[int, ...]) -> bool:
        """Return whether this version has the bug: it is older than the fix of its series, or than the newest fix."""
        if len(version) < len(self.fixed[0]):
            return False  # only the series is known
        series = [it for it in self.fixed if it[:2] == version[:2]]
        return self.since <= version < (series or [max(self.fixed)])[0]


#: From RabbitMQ's release notes.
BUGS = (
    BrokerBug(
        issue="rabbitmq-server#16203",
        since=(3, 10),
        fixed=((4, 2, 7), (4, 3, 1)),
        effect="a lane may send its commands to the wrong node, and its tasks stay there",
        needs_cluster=True,
    ),
    BrokerBug(
        issue="rabbitmq-server#16652",
        since=(3, 10),
        fixed=((4, 3, 3),),
        effect="a lane may stop for good after its members have changed several times",
        needs_cluster=True,
    ),
    BrokerBug(
        issue="ra#637",
        since=(4, 3),
        fixed=((4, 3, 3),),
        effect="the leader of a quorum queue may confirm too early",
        needs_cluster=True,
    ),
    BrokerBug(
        issue="rabbitmq-server#16974",
        since=(4, 3),
        fixed=((4, 3, 4),),
        effect="quorum queues that began with RabbitMQ 3.13 take no snapshots after a restart, and the disk fills",
    ),
    BrokerBug(
        issue="rabbitmq-server#17012",
        since=(4, 3),
        fixed=((4, 3, 5),),
        effect="a quorum queue that recovers may have lost a part of its state",
    ),
    BrokerBug(
        issue="rabbitmq-server#14522",
        since=(4, 0),
        fixed=((4, 3, 0),),
        effect="lanes keep files of tasks that have left them, for weeks: watch the disk",
    ),
)


@warning(
    "broker-bug",
    consequence="RabbitMQ's release notes and issues say more.",
    cure="Upgrade RabbitMQ; in the series 4.3 to 4.3.5 or newer.",
)
def _broker_bug(facts: Facts) -> Iterator[str]:
    has_quorum = facts.lanes == "quorum" or any(it.kind == "quorum" for it in facts.queues)
    if facts.product != "RabbitMQ" or not facts.version or not has_quorum or facts.transport != "amqp":
        return
    for bug in BUGS:
        if bug.affects(facts.version) and (len(facts.nodes) > 1 or not bug.needs_cluster):
            yield f"RabbitMQ {dotted(facts.version)} has the bug {bug.issue}: {bug.effect}."


@warning(
    "leaders-on-one-node",
    consequence="That node does the work of all lanes, and all of them wait for an election if it goes.",
    cure="Run `rabbitmq-queues rebalance quorum`, and set queue_leader_locator = balanced.",
)
def _leaders(facts: Facts) -> Iterator[str]:
    lanes = sum(facts.lane_leaders.values())
    if len(facts.nodes) > 1 and len(facts.lane_leaders) == 1 and lanes >= _FEW_LANES:
        yield f"The leaders of all {lanes} quorum lanes are on {next(iter(facts.lane_leaders))}."


@warning(
    "many-at-least-once",
    consequence="If many of them restart at once, RabbitMQ gives up, and lanes stop for good (rabbitmq-server#16652).",
    cure="Upgrade to RabbitMQ 4.3.3; set dlx_bulkheads to share lanes, or prune lanes that no task needs.",
)
def _many_at_least_once(facts: Facts) -> Iterator[str]:
    (bug,) = (it for it in BUGS if it.issue.endswith(_RESTARTS))
    if facts.at_least_once > _MOST_AT_LEAST_ONCE and facts.product == "RabbitMQ" and bug.affects(facts.version):
        yield f"{facts.at_least_once} queues of this virtual host move messages at least once."
