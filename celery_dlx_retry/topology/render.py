"""Write a topology for other tools: table rows, JSON, Mermaid, RabbitMQ's definitions, Terraform."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery_dlx_retry.topology.specs import Topology

_END = "DEFINITIONS"


def facts(topology: Topology) -> Iterator[dict[str, Any]]:
    """Yield one flat object for each exchange, queue and binding, for ``--json``."""
    for exchange in topology.exchanges:
        arguments = dict(exchange.arguments)
        yield {"object": "exchange", "name": exchange.name, "type": exchange.kind, "arguments": arguments}
    for queue in topology.queues:
        yield {"object": "queue", "name": queue.name, "arguments": dict(queue.arguments)}
    for binding in topology.bindings:
        ends = {"exchange": binding.exchange, "queue": binding.queue, "routing_key": binding.routing_key}
        yield {"object": "binding", **ends, "arguments": dict(binding.arguments)}


def rows(topology: Topology) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the name and the arguments of each object."""
    for fact in facts(topology):
        name = fact.get("name") or f"{fact['exchange']} -> {fact['queue']}"
        details = [fact.get("type"), f"routing key {key}" if (key := fact.get("routing_key")) else None]
        pairs = [f"{key}={value}" for key, value in fact["arguments"].items()]
        yield fact["object"], name, " ".join([*filter(None, details), *pairs])


def mermaid(topology: Topology) -> str:
    """Return a picture. Exchanges are hexagons, our queues drums, work queues boxes; a dotted line is the broker's."""
    ids: dict[tuple[str, str], str] = {}

    def node(kind: str, name: str) -> str:
        return ids.setdefault((kind, name), f"n{len(ids)}")

    edges = []
    for binding in topology.bindings:
        label = f'|"{_quoted(binding.routing_key)}"|' if binding.routing_key else ""
        edges.append(f"{node('exchange', binding.exchange)} -->{label} {node('queue', binding.queue)}")
    for queue in topology.queues:
        arguments = dict(queue.arguments)
        if back := arguments.get("x-dead-letter-exchange"):
            label = f'|"after {arguments["x-message-ttl"]} ms"|' if "x-message-ttl" in arguments else ""
            edges.append(f"{node('queue', queue.name)} -.->{label} {node('exchange', str(back))}")
    edges += [
        f'{node("exchange", exchange.name)} -.->|"no such queue"| {node("exchange", str(other))}'
        for exchange in topology.exchanges
        if (other := dict(exchange.arguments).get("alternate-exchange"))
    ]
    ours = {queue.name for queue in topology.queues}
    nodes = []
    for (kind, name), identity in ids.items():
        left, right = ("{{", "}}") if kind == "exchange" else ("[(", ")]") if name in ours else ("[", "]")
        nodes.append(f'{identity}{left}"{_quoted(name)}"{right}')
    return "\n".join(["flowchart LR", *(f"    {line}" for line in [*nodes, *edges])])


def definitions(topology: Topology, *, vhost: str) -> dict[str, Any]:
    """Return definitions for ``rabbitmqctl import_definitions`` and ``POST /api/definitions``."""
    common = {"vhost": vhost, "durable": True, "auto_delete": False}
    return {
        "exchanges": [
            {"name": it.name, **common, "type": it.kind, "internal": False, "arguments": dict(it.arguments)}
            for it in topology.exchanges
        ],
        "queues": [{"name": it.name, **common, "arguments": dict(it.arguments)} for it in topology.queues],
        "bindings": [
            {"source": it.exchange, "vhost": vhost, "destination": it.queue, "destination_type": "queue"}
            | {"routing_key": it.routing_key, "arguments": dict(it.arguments)}
            for it in topology.bindings
        ],
    }


def rabbitmqctl(topology: Topology, *, vhost: str) -> str:
    """Return a shell command that imports the definitions; rabbitmqctl has no command for a single queue."""
    body = json.dumps(definitions(topology, vhost=vhost), indent=2)
    return f"rabbitmqctl import_definitions --format json <<'{_END}'\n{body}\n{_END}"


def terraform(topology: Topology, *, vhost: str) -> str:
    """Return resources of the provider cyrilgdn/rabbitmq, without work queues: these belong to the app."""
    return "\n\n".join(_resources(topology, vhost=_string(vhost)))


def _resources(topology: Topology, *, vhost: str) -> Iterator[str]:
    labels = _labels([*(it.name for it in topology.exchanges), *(it.name for it in topology.queues)])
    ours = {queue.name for queue in topology.queues}
    for exchange in topology.exchanges:
        settings = {"type": _string(exchange.kind), "durable": "true", "auto_delete": "false"}
        if exchange.arguments:
            settings["arguments"] = _map(exchange.arguments)
        yield _block("rabbitmq_exchange", labels[exchange.name], _named(exchange.name, vhost), settings)
    for queue in topology.queues:
        arguments = f"jsonencode({_map(queue.arguments)})"
        settings = {"durable": "true", "auto_delete": "false", "arguments_json": arguments}
        yield _block("rabbitmq_queue", labels[queue.name], _named(queue.name, vhost), settings)
    for number, binding in enumerate(topology.bindings):
        is_ours = binding.queue in ours
        values = {
            "source": f"rabbitmq_exchange.{labels[binding.exchange]}.name",
            "vhost": vhost,
            "destination": f"rabbitmq_queue.{labels[binding.queue]}.name" if is_ours else _string(binding.queue),
            "destination_type": _string("queue"),
            "routing_key": _string(binding.routing_key),
        }
        if binding.arguments:
            values["arguments_json"] = f"jsonencode({_map(binding.arguments)})"
        yield _block("rabbitmq_binding", f"binding_{number}", values)


def _named(name: str, vhost: str) -> dict[str, str]:
    return {"name": _string(name), "vhost": vhost}


def _quoted(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;")


def _labels(names: Iterable[str]) -> dict[str, str]:
    """Return a Terraform identifier for each name; a number distinguishes names that would have the same one."""
    labels: dict[str, str] = {}
    for name in dict.fromkeys(names):
        label = re.sub(r"\W", "_", name, flags=re.ASCII)
        label = label if label[:1].isalpha() else f"q_{label}"
        labels[name] = label if label not in labels.values() else f"{label}_{len(labels)}"
    return labels


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _map(arguments: Iterable[tuple[str, str | int | bool]]) -> str:
    pairs = (f"{_string(key)} = {_string(it) if isinstance(it, str) else json.dumps(it)}" for key, it in arguments)
    return f"{{ {', '.join(pairs)} }}"


def _block(kind: str, label: str, values: Mapping[str, str], settings: Mapping[str, str] | None = None) -> str:
    lines = [f'resource "{kind}" "{label}" {{', *_assignments(values, indent=2)]
    if settings:
        lines += ["", "  settings {", *_assignments(settings, indent=4), "  }"]
    return "\n".join([*lines, "}"])


def _assignments(values: Mapping[str, str], *, indent: int) -> list[str]:
    width = max(map(len, values))
    return [f"{' ' * indent}{key:<{width}} = {value}" for key, value in values.items()]
