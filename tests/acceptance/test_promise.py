"""What the project promises, shown on a whole system: a real broker, real workers, real kills."""

from __future__ import annotations

from collections import Counter

from kombu.connection import Connection
from support import eventually

WAITING = 1000
SECONDS = 30


def test_a_plain_queue_full_of_messages_is_adopted_as_it_is(project):
    before = project.app.amqp.queues[project.queue]
    with Connection(project.url) as connection:
        before(connection.default_channel).declare()
        results = [project.send("heal", 1) for _ in range(10)]
        eventually(lambda: project.depth(project.queue) == 10)

        with project.worker():
            for result in results:
                assert result.get(timeout=20) == "healed"

        before(connection.channel()).declare()  # with another argument the broker would answer 406
    assert project.dead() == []


def test_a_thousand_waiting_retries_cost_the_worker_nothing_and_survive_it_and_the_broker(project, broker):
    results = [project.send("heal", 1, SECONDS) for _ in range(WAITING)]
    lane = project.grid_lane(SECONDS * 1000)
    worker = project.start().wait_until_ready()
    eventually(lambda: project.depth(lane) == WAITING, within=60)
    assert len(project.records()) == WAITING

    # The worker holds none of them, in whatever way.
    assert unacknowledged(broker, project) == 0
    assert project.app.control.inspect(timeout=5).scheduled() == {f"w1.{project.prefix}@h": []}
    assert project.app.control.inspect(timeout=5).reserved() == {f"w1.{project.prefix}@h": []}
    # A new task runs at once.
    assert project.send("succeed", "hello").get(timeout=3) == "hello"

    worker.kill()
    broker.restart()
    project.start().wait_until_ready()
    eventually(lambda: len(project.records(task="project.heal", retries=1)) >= WAITING, within=90)

    runs = Counter((run["id"], run["retries"]) for run in project.records(task="project.heal"))
    assert runs == {(result.id, retries): 1 for result in results for retries in (0, 1)}
    first = {run["id"]: run["at"] for run in project.records(task="project.heal", retries=0)}
    second = {run["id"]: run["at"] for run in project.records(task="project.heal", retries=1)}
    assert min(second[one] - first[one] for one in first) >= SECONDS
    assert project.dead() == []


def unacknowledged(broker, project) -> int:
    rows = broker.ctl("list_queues", "--silent", "name", "messages_unacknowledged").splitlines()
    return sum(int(row.split("\t")[1]) for row in rows if project.prefix in row)
