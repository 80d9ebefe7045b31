"""Differences between the broker and the plan: missing, mismatched, unbound, overridden by a policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies
    from celery_dlx_retry.topology.specs import BindingSpec, QueueSpec, Topology

Kind = Literal["missing", "mismatch", "unbound", "policy", "unchecked"]

# These harm a queue that keeps tasks. If the arguments and a policy set a number, RabbitMQ takes the smaller one.
_HARM = {
    "message-ttl": "its messages expire after {value} ms",
    "expires": "the broker deletes the queue and its messages after {value} ms without a consumer",
    "max-length": "above {value} messages it drops or refuses some",
    "max-length-bytes": "above {value} bytes it drops or refuses some",
    "delivery-limit": "the broker drops a message that was read {value} times",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One difference. ``unchecked`` is not a difference: the user lacked the permission to look."""

    kind: Kind
    object: Literal["queue", "exchange", "binding"]
    name: str
    fact: str
    cure: str


def unbound(topology: Topology, existing: Collection[BindingSpec]) -> Iterator[Drift]:
    """Yield the missing bindings. Those that exist have sorted arguments."""
    for binding in topology.bindings:
        if replace(binding, arguments=tuple(sorted(binding.arguments))) not in existing:
            arguments = "".join(f" {key}={value}" for key, value in binding.arguments)
            yield Drift(
                kind="unbound",
                object="binding",
                name=f"{binding.exchange} -> {binding.queue}",
                fact=f"The queue {binding.queue!r} is not bound to {binding.exchange!r} "
                f"with the routing key {binding.routing_key!r}{' and' if arguments else ''}{arguments}.",
                cure="Run `celery dlx declare`, or start a worker.",
            )


def overridden(topology: Topology, policies: BrokerPolicies) -> Iterator[Drift]:
    """Yield our queues and exchanges for which a policy or operator policy sets something that loses messages."""
    for queue in topology.queues:
        definition = policies.definition(queue.name, "quorum" if queue.is_quorum else "classic")
        for key, value in sorted(definition.items()):
            if key in _HARM and _wins(queue, key, value):
                yield _by_policy("queue", queue.name, f"{key}={value}: {_HARM[key].format(value=value)}.")
    for exchange in topology.exchanges:
        # RabbitMQ prefers the argument of an exchange to a policy.
        if "alternate-exchange" not in dict(exchange.arguments) and (
            other := policies.alternate_exchange(exchange.name)
        ):
            harm = "a task whose queue does not exist yet goes there, and the broker confirms it."
            yield _by_policy("exchange", exchange.name, f"alternate-exchange={other}: {harm}")


def _by_policy(kind: Literal["queue", "exchange"], name: str, gift: str) -> Drift:
    cure = "Change the policy's pattern so that it does not match this name."
    return Drift(kind="policy", object=kind, name=name, fact=f"A policy gives the {kind} {name!r} {gift}", cure=cure)


def _wins(queue: QueueSpec, key: str, value: Any) -> bool:
    ours = dict(queue.arguments).get(f"x-{key}")
    return not isinstance(ours, int) or (isinstance(value, int) and value < ours)
