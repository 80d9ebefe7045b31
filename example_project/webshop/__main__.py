"""Both shops on one RabbitMQ, orders from outside, and what became of them: ``make shop``.

It needs no RabbitMQ of yours: it starts one, and leaves nothing behind. Exit code 0: as promised. 1: not. 2: no broker.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from kombu.connection import Connection

from celery_dlx_retry.broker.deadletters import browse
from celery_dlx_retry.errors import DLXError, NoBroker
from celery_dlx_retry.testing import provide
from celery_dlx_retry.testing.sandbox import LOOPBACK, Sandbox, free_ports, listens, wait_until
from celery_dlx_retry.worker.runtime import runtime_of
from example_project.webshop import world

PACKAGE = "example_project.webshop"
DJANGO = [sys.executable, "-m", "django"]
SITES = {
    "django": ([*DJANGO, "runserver", "--noreload"], f"{PACKAGE}.django_shop"),
    "flask": ([sys.executable, "-m", "flask", "--app", f"{PACKAGE}.flask_shop:flask_app", "run", "-p"],
              f"{PACKAGE}.flask_shop:celery_app"),
}  # fmt: skip
ORDERS = [
    {"amount": "12", "picture": "hat.png"},
    {"amount": "15", "picture": "100-gigapixels.png"},
    {"amount": "12,50 EUR", "picture": "shoe.png"},
]
WANTED = {("draw_thumbnail", "worker-lost"), ("book", "failed")}
PATIENCE_SECONDS = 60


class BrokenPromise(Exception):
    """What happened instead."""


def main():
    # Whoever ends us politely gets the same tidy end as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with provide(say=print) as broker, ExitStack() as stack:
            print(f"RabbitMQ {broker.version} at {broker.shown_url} ({broker.origin})")
            return tell(broker, stack)
    except NoBroker as exc:
        print(exc, file=sys.stderr)
        return 2
    except (BrokenPromise, DLXError) as exc:
        print(f"Not as promised: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def tell(broker, stack):
    name = f"shop-{secrets.token_hex(3)}"
    ports = free_ports(4)
    if not broker.can_restart:
        stack.callback(delete_names, name, broker.url)
    sandbox = Sandbox(name)
    stack.callback(sandbox.close)
    environment = os.environ | {
        "SHOP_BROKER_URL": broker.url,
        "SHOP_DATABASE": str(sandbox.path / "shop.sqlite3"),
        "SHOP_NAME": name,
        "SHOP_WORLD": f"{LOOPBACK}:{ports[0]}",
        "DJANGO_SETTINGS_MODULE": f"{PACKAGE}.django_shop.settings",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONWARNINGS": "ignore",
        "C_FORCE_ROOT": "1",  # containers run as root, and Celery minds
    }
    for site, (_, app) in SITES.items():
        flags = ("-l", "INFO", "-c", "2", "-n", f"{site}@{name}", "--without-gossip", "--without-mingle")
        sandbox.spawn(f"{site}-worker", celery(app, "worker", *flags), environment)
    subprocess.run([*DJANGO, "migrate", "--run-syncdb", "-v", "0"], env=environment, cwd=sandbox.path, check=True)
    for (site, (web, _)), port in zip(SITES.items(), ports[2:], strict=True):
        sandbox.spawn(f"{site}-web", [*web, str(port)], environment)
    if not wait_until(lambda: are_ready(sandbox, ports[2:]), within=PATIENCE_SECONDS):
        said = {file.name: sandbox.said(file.name) for file in sandbox.path.glob("*.out")}
        raise BrokenPromise(f"not ready after {PATIENCE_SECONDS} s: {said}")
    print(f"Two shops, {name}.django and {name}.flask, each with a web process and a worker, are ready.")

    outside = stack.enter_context(world.running(ports[0]))
    print(f"The bank is busy, the mail server flaky, and the partner's webhook down for {world.DOWN_SECONDS} seconds.")
    placed = [post(port, order) for port in ports[2:] for order in ORDERS]
    print(f"Orders: {', '.join(placed)}. One of each shop has a picture that kills its worker's process,")
    print("and one an amount that is no number.")

    letters = watch(outside, placed, {site: f"{name}.{site}" for site in SITES}, broker.url)
    for site, found in letters.items():
        if found != WANTED:
            raise BrokenPromise(f"the dead letters of {site} are {found}; they should be {WANTED}")
    command = celery(SITES["django"][1], "dlx", "dead", "list", "-q", f"{name}.django")
    print(f"$ {' '.join(command[2:])}", flush=True)
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=True)
    print("The Flask shop has the same two.")
    print(f"{len(placed)} orders paid, confirmed and told; nothing lost, and what no retry can heal is kept.")
    return 0


def watch(outside, placed, queues, url):
    """Say every second what got through, until all is done or dead; return the dead letters."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        letters = {site: dead_letters(url, queue) for site, queue in queues.items()}
        line = ", ".join(f"{kind} {len(seen)}" for kind, seen in outside.seen.items())
        print(f"  {line}, dead letters {sum(map(len, letters.values()))}", flush=True)
        got_through = all(set(placed) == outside.seen[kind] for kind in ("payments", "mails", "webhook"))
        if got_through and all(len(found) >= len(WANTED) for found in letters.values()):
            return letters
        if time.monotonic() > deadline:
            raise BrokenPromise(f"that took more than {PATIENCE_SECONDS} s")
        time.sleep(1)  # noqa: TID251 - the pace of the lines


def celery(app, *arguments):
    return [sys.executable, "-m", "celery", "-A", app, *arguments]


def are_ready(sandbox, ports):
    logs = [(sandbox.path / f"{site}-worker.out").read_text(errors="replace") for site in SITES]
    return all(" ready." in log for log in logs) and all(map(listens, ports))


def post(port, order):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{LOOPBACK}:{port}/orders", json.dumps(order).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own
        return json.load(answer)["order"]


def dead_letters(url, queue):
    with Connection(url) as connection:
        return {
            (it.record.task.rpartition(".")[2], str(it.record.reason)) for it in browse(connection, f"{queue}.dead")
        }


def delete_names(name, url):
    """Leave a broker that is not ours as it was."""
    from example_project.webshop.flask_shop import celery_app  # noqa: PLC0415 - it reads the environment

    celery_app.conf.update(broker_url=url, dlx_prefix=name)
    runtime = runtime_of(celery_app)
    queues = [celery_app.amqp.Queues([])[f"{name}.{site}"] for site in SITES]
    topology = runtime.plan(queues)
    names = {f"{name}.{site}" for site in SITES} | runtime.wait_queues()
    names |= {it.name for it in (*topology.queues, *topology.exchanges)}
    with Connection(url) as connection:
        for each in sorted(names):
            connection.default_channel.queue_delete(each)
            connection.default_channel.exchange_delete(each)


if __name__ == "__main__":
    sys.exit(main())
