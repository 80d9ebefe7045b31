"""Forged messages for a real worker: it lives, and each is done, waits or is dead; the honest ones are done once."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing, suppress

import pytest
from amqp.exceptions import AMQPError
from harness import Project
from support import eventually

from tests.fuzz import forged
from tests.fuzz.house import House
from tests.fuzz.verdict import SECRETS

TASKS = ("hostile.succeed", "hostile.fail", "hostile.retry", "hostile.obey", "hostile.unheard_of")
#: One honest message after so many forged ones.
HONEST = 5
SECONDS = 120.0
MOST_RUNS = 2
#: A wait queue out of which messages come back within seconds.
SHORT_LANE = re.compile(r"\.wait\.\w+\.0{8}")


class WorkedHouse(House):
    """With a real worker on one more queue."""

    def __init__(self, vhost, redis_url, folder):
        super().__init__(vhost, redis_url)
        self.project = Project(url=vhost.url, backend=redis_url, prefix="fz", folder=folder)
        self.project.conf["worker_prefetch_multiplier"] = 16
        self.worker = self.project.start(module="project_hostile").wait_until_ready()
        self.queues = self.all_queues()

    def close(self):
        self.project.close()
        super().close()


@pytest.fixture(scope="module")
def worked(vhost, redis_url, tmp_path_factory):
    with closing(WorkedHouse(vhost, redis_url, tmp_path_factory.mktemp("worked"))) as it:
        yield it


def lay(it, house):
    """Publish one; return how many copies the broker makes of it, by its own rules for CC and BCC."""
    it.token = token = house.token()
    queue = house.project.queue
    letters = house.names.dead_letters(queue)
    sound = {"lang": "py", "task": it.choice(TASKS), "id": token, "retries": 0}
    headers = forged.forge(it, sound, (house.VICTIM, letters, house.WORK[0], "nowhere"), ours=it.is_one_in(2))
    headers |= {"fuzz-token": token, "hostile-number": token}
    sent = {**forged.content(it), **forged.properties(it)}
    it.note(f"{token}: {forged.shown(headers)}" + f", {sent!r}"[:300])
    try:
        house.send(queue, token, headers, **sent)
    except AMQPError:
        return 0
    copied = {each for key in ("CC", "BCC") for each in headers.get(key, ())}
    return 1 + len(copied & house.queues)


def may_be_expired(it):
    return "'expires'" in it.made[0]


def places(house):
    """How often each message was done, and the queues in which it lies, by its token."""
    done = Counter(row["number"] for row in house.project.records(event="done"))
    return done, house.census()


def test_each_forged_message_is_done_waits_or_is_dead_and_the_honest_are_done_once(fuzz, worked):
    inputs, copies, honest = {}, {}, []
    for it in fuzz.inputs("messages"):
        if count := lay(it, worked):
            inputs[it.token], copies[it.token] = it, count
        if it.number % HONEST == 0:
            honest.append(token := worked.token())
            headers = {"lang": "py", "task": "hostile.succeed", "id": token, "retries": 0, "hostile-number": token}
            worked.send(worked.project.queue, token, headers)
    everything = [*inputs.values()]

    with fuzz.judging(*everything, seconds=SECONDS):
        with suppress(AssertionError):
            eventually(lambda: is_settled(worked, sum(copies.values()) + len(honest)), within=60)
        assert worked.worker.process.poll() is None, worked.worker.log[-1500:]
        worked.worker.stop()
        done, lying = places(worked)
        for token, it in inputs.items():
            count = done[token] + len(lying.get(token, ()))
            least = 0 if may_be_expired(it) else copies[token]
            if not least <= count <= copies[token]:
                fuzz.fail(f"{count} places for {copies[token]} copies: done {done[token]}, {lying.get(token)}", it)
        runs = Counter(row["number"] for row in worked.project.records(event="run"))
        for token, count in runs.items():
            if count > MOST_RUNS * copies.get(token, 1):
                fuzz.fail(f"{count} runs of {copies.get(token, 1)} copies", inputs[token])
        assert {token: done[token] for token in honest} == dict.fromkeys(honest, 1)
        assert [token for token in honest if token in lying] == []
        assert set(lying) <= {*inputs, *honest}
    for secret in SECRETS:
        if secret in worked.worker.log:
            fuzz.fail("a password is in the worker's log", *everything[:1])
    fuzz.report()


def is_settled(house, count):
    """Whether every message is done or rests; roughly, and without taking one out. Or there is no worker any more."""
    if house.worker.process.poll() is not None:
        return True
    done = len(house.project.records(event="done"))
    resting = [queue for queue in house.all_queues() if queue != house.project.queue and not SHORT_LANE.search(queue)]
    return done + sum(map(house.depth, resting)) >= count
