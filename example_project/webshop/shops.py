"""Both shops as processes, a web server and a worker each, and what can be seen of them from outside."""

import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

from kombu.connection import Connection

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.counts import counts
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.testing.sandbox import LOOPBACK, Sandbox, free_ports, listens
from celery_dlx_retry.testing.worker_process import is_ready
from celery_dlx_retry.topology.names import WorkQueue
from example_project.webshop.flask_shop import celery_app
from example_project.webshop.plain import lay_out

PACKAGE = "example_project.webshop"
DJANGO = [sys.executable, "-m", "django"]
SITES = {
    "django": ([*DJANGO, "runserver", "--noreload"], f"{PACKAGE}.django_shop"),
    "flask": ([sys.executable, "-m", "flask", "--app", f"{PACKAGE}.flask_shop:flask_app", "run", "-p"],
              f"{PACKAGE}.flask_shop:celery_app"),
}  # fmt: skip


class Shops:
    """On our tasks, or on those of ``before``."""

    def __init__(self, name, url, *, is_before):
        self.name, self._url = name, url
        self.queues = {site: f"{name}.{site}" for site in SITES}
        self.killed = Counter()
        self.world_port, _, *ports = free_ports(4)  # the world's mail server has the second
        self._ports = dict(zip(SITES, ports, strict=True))
        self._sandbox = Sandbox(name)
        self._environment = os.environ | {
            "SHOP_BROKER_URL": url,
            "SHOP_DATABASE": str(self._sandbox.path / "shop.sqlite3"),
            "SHOP_NAME": name,
            "SHOP_WORLD": f"{LOOPBACK}:{self.world_port}",
            "DJANGO_SETTINGS_MODULE": f"{PACKAGE}.django_shop.settings",
            "PYTHONPATH": str(lay_out(self._sandbox.path / "before") if is_before else Path(__file__).parents[2]),
            "PYTHONWARNINGS": "ignore",
            "C_FORCE_ROOT": "1",  # containers run as root, and Celery minds
        }
        # With this app of ours we look at the broker; the shops have theirs.
        celery_app.conf.update(broker_url=url, dlx_prefix=name)

    def start(self):
        for site in SITES:
            self._start_worker(site)
        migrate = [*DJANGO, "migrate", "--run-syncdb", "-v", "0"]
        subprocess.run(migrate, env=self._environment, cwd=self._sandbox.path, check=True)
        for site, (web, _) in SITES.items():
            self._sandbox.spawn(f"{site}-web", [*web, str(self._ports[site])], self._environment)

    def are_ready(self):
        logs = [self._sandbox.path / f"{site}-worker.out" for site in SITES]
        return all(map(is_ready, logs)) and all(map(listens, self._ports.values()))

    def said(self):
        return {file.name: self._sandbox.said(file.name) for file in self._sandbox.path.glob("*.out")}

    def order(self, site, wanted):
        address, headers = f"http://{LOOPBACK}:{self._ports[site]}/orders", {"Content-Type": "application/json"}
        request = urllib.request.Request(address, json.dumps(wanted).encode(), headers)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own
            return json.load(answer)["order"]

    def restart_killed(self):
        """What systemd does with ``Restart=always``; returns whose worker it was."""
        killed = [site for site in SITES if self._sandbox.pid(f"{site}-worker") is None]
        for site in killed:
            self.killed[site] += 1
            self._sandbox.kill(f"{site}-worker")  # what is left of it
            self._start_worker(site)
        return killed

    def stop_workers(self):
        """As a deployment does: what they hold goes back to its queue."""
        for site in SITES:
            self._sandbox.terminate(f"{site}-worker", within=10)

    def dead_letters(self, site):
        with Connection(self._url) as connection:
            letters = list(browse(connection, f"{self.queues[site]}.dead"))
        return {(letter.record.task.rpartition(".")[2], str(letter.record.reason)) for letter in letters}

    def waiting(self):
        """How many wait in the broker, in the lanes that the tasks' policies and options name."""
        context = context_of(celery_app)
        return self._count(
            [context.names.lane(queue, ms) for queue in self._work_queues() for ms in context.exact_lanes]
        )

    def _work_queues(self):
        return [WorkQueue(name=name) for name in self.queues.values()]

    def queued(self):
        """How many no worker has taken."""
        return self._count(self.queues.values())

    def held(self):
        """How many wait in a worker's memory and how many are about to run; None unless both workers answer."""
        workers = [f"{site}@{self.name}" for site in SITES]
        asked = celery_app.control.inspect(workers, timeout=1, limit=len(workers))
        answers = [asked.scheduled(), asked.reserved(), asked.active()]
        if any(set(answer or ()) != set(workers) for answer in answers):
            return None
        scheduled, *others = (sum(map(len, answer.values())) for answer in answers)
        return scheduled, sum(others)

    def command(self, site, *arguments):
        """What an operator types, and how it is run."""
        typed = ["celery", "-A", SITES[site][1], *arguments]
        return " ".join(typed), [sys.executable, "-m", *typed], self._environment

    def close(self):
        self._sandbox.close()

    def delete_names(self):
        """Leave a broker that is not ours as it was."""
        context = context_of(celery_app)
        topology = context.plan([celery_app.amqp.Queues([])[queue] for queue in self.queues.values()])
        names = {*self.queues.values(), *context.wait_queues(self._work_queues())}
        names |= {it.name for it in (*topology.queues, *topology.exchanges)}
        with Connection(self._url) as connection:
            for each in sorted(names):
                connection.default_channel.queue_delete(each)
                connection.default_channel.exchange_delete(each)

    def _start_worker(self, site):
        flags = ("-l", "INFO", "-c", "2", "-n", f"{site}@{self.name}", "--without-gossip", "--without-mingle")
        _, command, environment = self.command(site, "worker", *flags)
        self._sandbox.spawn(f"{site}-worker", command, environment)

    def _count(self, queues):
        with Connection(self._url) as connection:
            return sum(there.ready for there in counts(connection, queues).values())
