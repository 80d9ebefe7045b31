"""A day of both shops on one RabbitMQ, and what became of each task: ``make shop``.

It needs no RabbitMQ of yours: it starts one, and leaves nothing behind. ``--before`` is the same day on plain Celery.
Exit code 0: as promised. 1: not. 2: no broker.
"""

import argparse
import os
import pty
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

from celery_dlx_retry.errors import DLXError, NoBroker
from celery_dlx_retry.testing.sandbox import wait_until
from example_project.webshop import world
from example_project.webshop.shops import SITES, Shops
from tests.provision import provide

ORDERS = [
    {"amount": "12", "picture": "hat.png"},
    {"amount": "15", "picture": "100-gigapixels.png"},
    {"amount": "12,50 EUR", "picture": "shoe.png"},
]
LATE_ORDERS = [{"amount": "20", "picture": "1000-gigapixels.png"}, {"amount": "21", "picture": "scarf.png"}]
WORK = {
    "charge": "payments",
    "send_receipt": "mails",
    "tell_partner": "webhook",
    "draw_thumbnail": "thumbnails",
    "book": "books",
}
KEPT = {("book", "failed"), ("draw_thumbnail", "worker-lost"), ("draw_thumbnail", "crash-loop")}
LOST_BEFORE = {"draw_thumbnail", "book"}
PATIENCE_SECONDS = 90


class BrokenPromise(Exception):
    """What happened instead."""


def main():
    # After SIGTERM clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parse()
    try:
        with provide(say=print) as broker, ExitStack() as stack:
            print(f"RabbitMQ {broker.version} at {broker.shown_url} ({broker.origin})")
            shops = Shops(f"shop-{secrets.token_hex(3)}", broker.url, is_before=options.before)
            if not broker.can_restart:
                stack.callback(shops.delete_names)
            stack.callback(shops.close)
            (PlainDay if options.before else Day)(shops, stack, down_seconds=options.down).tell()
    except NoBroker as exc:
        print(exc, file=sys.stderr)
        return 2
    except (BrokenPromise, DLXError) as exc:
        print(f"Not as promised: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parse():
    parser = argparse.ArgumentParser(prog="python -m example_project.webshop", description=__doc__.partition("\n")[0])
    parser.add_argument("--before", action="store_true", help="the same day on plain Celery")
    parser.add_argument(
        *("--down", "--down-seconds"),
        type=float,
        default=world.DOWN_SECONDS,
        metavar="SECONDS",
        help="how long the partner's webhook is down (%(default)s); 180 are three minutes",
    )
    return parser.parse_args()


class Day:
    """On our tasks."""

    tasks = "celery_dlx_retry"

    def __init__(self, shops, stack, *, down_seconds):
        self._shops, self._stack, self._down_seconds = shops, stack, down_seconds
        self._placed = []
        self._last_line = ""

    def tell(self):
        shops = self._shops
        shops.start()
        if not wait_until(shops.are_ready, within=PATIENCE_SECONDS):
            raise BrokenPromise(f"not ready after {PATIENCE_SECONDS} s: {shops.said()}")
        print(
            f"Two shops on {self.tasks}, {' and '.join(shops.queues.values())}, are ready: a web process and a worker"
        )
        print(
            f"each. The bank is busy, the mail server flaky, the partner's webhook down for {self._down_seconds:g} s."
        )
        self._world = self._stack.enter_context(world.running(shops.world_port, down_seconds=self._down_seconds))
        self.place(ORDERS)
        print("One picture of each shop kills the process that draws it, and one amount is not a number.")
        self.watch(until=self.is_noon)
        self.place(LATE_ORDERS)
        print("One picture of each shop takes its whole worker down, with kill -9.")
        self.watch(until=self.is_evening)
        self.sum_up()

    def place(self, orders):
        placed = [self._shops.order(site, order) for site in SITES for order in orders]
        self._placed += placed
        print(f"Orders: {', '.join(placed)}.")

    def watch(self, *, until):
        """Say what is new, and restart workers that were killed, until it is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS + 2 * self._down_seconds
        while True:
            for site in self._shops.restart_killed():
                print(f"  The worker of {self._shops.queues[site]} was killed; it is started again, as systemd would.")
            self._say_what_is_new()
            if until():
                self._say_what_is_new()  # it may be newer than the last line
                return
            if time.monotonic() > deadline:
                raise BrokenPromise(f"that took too long; {self._last_line.strip()}; {self._shops.said()}")
            time.sleep(0.5)  # noqa: TID251 - the pace of the lines

    def is_noon(self):
        """The first orders are paid and confirmed, and their pictures are drawn or will never be."""
        return self.are_through("payments", "mails") and all(len(it) == len(KEPT) - 1 for it in self._dead())

    def is_evening(self):
        return self.are_through("payments", "mails", "webhook") and all(len(it) >= len(KEPT) for it in self._dead())

    def are_through(self, *kinds):
        return all(set(self._placed) == self._world.seen[kind] for kind in kinds)

    def look(self):
        return f"waiting in the broker {self._shops.waiting()}, dead letters {sum(map(len, self._dead()))}"

    def sum_up(self):
        for site in SITES:
            if (found := self._shops.dead_letters(site)) != KEPT:
                raise BrokenPromise(f"the dead letters of {site} are {found}; they should be {KEPT}")
        show(*self._shops.command("django", "dlx", "dead", "list", "-q", self._shops.queues["django"]))
        print("The Flask shop has the same three.")
        times = " and ".join(f"{self._shops.killed[site]} times" for site in SITES)
        print(f"The workers were killed {times}.")
        print(f"{len(self._placed)} orders paid, confirmed and sent; nothing lost, and what no retry can heal is kept.")

    def _dead(self):
        return [self._shops.dead_letters(site) for site in SITES]

    def _say_what_is_new(self):
        done = ", ".join(f"{kind} {len(seen)}" for kind, seen in self._world.seen.items())
        line = f"  {done} | {self.look()}"
        if line != self._last_line:
            self._last_line = line
            print(line, flush=True)


class PlainDay(Day):
    """On the tasks of ``before``."""

    tasks = "plain Celery"

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._held, self._most_held, self._idle_looks = None, 0, 0

    def look(self):
        self._held = self._shops.held()
        if self._held is None:
            return "a worker does not answer"
        waiting, running = self._held
        self._most_held = max(self._most_held, waiting)
        self._idle_looks = 0 if waiting or running or self._shops.queued() else self._idle_looks + 1
        return f"held by workers {waiting}"

    def is_noon(self):
        return self.are_through("payments", "mails")

    def is_evening(self):
        """Each worker has been killed, and none has had anything to do the last two times that we looked."""
        return len(self._shops.killed) == len(SITES) and self._idle_looks > 1

    def sum_up(self):
        self._shops.stop_workers()
        queued = self._shops.queued()
        print(f"Up to {self._most_held} retries at once were held by workers, in memory.")
        print(f"Now the workers are stopped; in the queues are {queued} tasks. What became of them:")
        lost = set()
        for task, kind in WORK.items():
            missing = [it for it in self._placed if it not in self._world.seen[kind]]
            what = f"{len(missing)} lost: {', '.join(missing)}" if missing else "none lost"
            print(f"  {task:<14} {len(self._placed) - len(missing):>2} done, {what}")
            lost |= {task} if missing else set()
        print("Lost tasks were acknowledged before they ran. No queue has them; only a line in a log is left.")
        if queued or not lost >= LOST_BEFORE:
            raise BrokenPromise(f"plain Celery should lose of {LOST_BEFORE}; it lost of {lost}")


def show(typed, command, environment):
    """Run a command as in a terminal: elsewhere its lines are for cut and awk."""
    print(f"$ {typed}", flush=True)
    ours, its = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=its, stderr=subprocess.DEVNULL) as running:
        os.close(its)
        with os.fdopen(ours, errors="replace") as told, suppress(OSError):  # Linux: no end of the file, but an error
            for line in told:
                print(line.rstrip(), flush=True)
    if running.returncode:
        raise BrokenPromise(f"{typed} failed with {running.returncode}")


if __name__ == "__main__":
    sys.exit(main())
