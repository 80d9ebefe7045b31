"""A countdown or an eta waits in the broker, whoever sends it, and is kept."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery, Task, chain, chord, group, signals
from celery.beat import ScheduleEntry, Scheduler
from celery.exceptions import TaskRevokedError
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from support import eventually

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.app import routes
from celery_dlx_retry.topology.names import WorkQueue
from tests.worker.stage import stage

SOON = 1.5  # longer than it takes to look into the ladder


class Web(Celery):
    """A process that sends: it has the tasks, and no worker."""

    def __init__(self, project, **conf):
        super().__init__("web", config_source={**project.conf, "timezone": "Asia/Tokyo", **conf}, set_as_current=False)

        @self.task(name="later.note", base=DLXRetryTask, shared=False, default_retry_delay=0.7)
        def note(*args): ...

        @self.task(name="later.total", base=DLXRetryTask, shared=False)
        def total(numbers): ...

        self.note, self.total = note, total
        project._apps[f"web {len(project._apps)}"] = self  # which ends it, with its results


@pytest.fixture(scope="module")
def project(request):
    """A worker, a ladder of 1.5 s, and lanes that expire, which classic ones may."""
    conf = {"dlx_queue_type": "classic", "dlx_ladder_range": 1, "dlx_lane_expires": 140, "task_send_sent_event": True}
    with stage(request, **conf) as it:
        it.start(module="project_later").wait_until_ready()
        yield it


@pytest.fixture(scope="module")
def web(project):
    return Web(project)


@pytest.fixture
def nobody(project, request):
    """A work queue that nobody consumes."""
    return f"{project.prefix}.{abs(hash(request.node.name)):x}"


def ran(project, result, *, within=20):
    """The one run of a task."""
    (run,) = eventually(lambda: project.records(id=result.id), within=within)
    return run


def rung(project, number):
    return project.names.rung(100, number)


def in_the_ladder(project, names=None):
    return sum(project.depth((names or project.names).rung(100, number)) or 0 for number in range(4))


def test_a_base_class_that_sends_a_countdown_only_once_may_send_nothing(web):
    class Once(Task):
        """As celery-once has it: while one waits, the next call publishes nothing."""

        abstract = True

        def apply_async(self, *_args, **_options):
            return None

    class Both(DLXRetryTask, Once):
        abstract = True

    @web.task(name="later.once", base=Both, shared=False)
    def once(): ...

    assert once.apply_async(countdown=SOON) is None


def test_a_countdown_waits_in_the_broker_and_no_worker_has_it(project, web):
    sent = time.time()

    result = web.note.apply_async((1, 2), countdown=1.5)

    assert in_the_ladder(project) == 1
    run = ran(project, result)
    assert run["at"] >= sent + 1.5
    assert run["at"] < sent + 1.5 + 5
    assert result.get(timeout=20) == 3
    assert project.records(id=result.id) == [run]
    assert "sent on" not in project_log(project)


def project_log(project):
    (worker,) = project._running
    return worker.log


def test_it_waits_where_no_worker_has_ever_run_and_lies_in_its_queue_then(project, web, nobody):
    sent = time.monotonic()

    web.note.apply_async(queue=nobody, countdown=SOON)

    assert project.depth(nobody) == 0
    eventually(lambda: project.depth(nobody) == 1)
    assert time.monotonic() - sent >= SOON


@pytest.mark.parametrize("kind", ["aware", "elsewhere", "naive", "iso"])
def test_an_eta_is_kept_in_every_notation(project, web, kind):
    at = datetime.now(timezone.utc) + timedelta(seconds=SOON)
    tokyo = timezone(timedelta(hours=9))
    eta = {
        "aware": at,
        "elsewhere": at.astimezone(tokyo),
        "naive": at.replace(tzinfo=None),
        "iso": at.astimezone(tokyo).isoformat(),
    }[kind]

    result = web.note.apply_async(eta=eta)

    assert in_the_ladder(project) >= 1
    assert at.timestamp() <= ran(project, result)["at"] < at.timestamp() + 5


def test_the_task_sees_its_eta_as_with_celery(project, web):
    at = datetime.now(timezone.utc) + timedelta(seconds=0.2)

    by_eta, by_countdown = web.note.apply_async(eta=at), web.note.apply_async(countdown=0.2)

    assert ran(project, by_eta)["eta"] == at.isoformat()
    shown = datetime.fromisoformat(ran(project, by_countdown)["eta"])
    assert abs(shown - at) < timedelta(seconds=5)
    assert shown.utcoffset() == timedelta(hours=9)


def test_a_retry_that_has_waited_runs_although_the_clock_of_its_sender_was_ahead(project, web):
    queue, task_id = project.conf["task_default_queue"], "sent-by-a-clock-that-is-ahead"
    ahead = datetime.now(timezone.utc) + timedelta(hours=1)
    lane = Queue(
        f"{project.prefix}.ahead",
        queue_arguments={"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue},
    )
    message = web.amqp.as_task_v2(task_id, "later.note", eta=ahead, retries=1)

    with web.connection_for_write() as connection:
        connection.Producer().publish(message.body, routing_key=lane.name, headers=message.headers, declare=[lane])

    assert ran(project, web.AsyncResult(task_id))["eta"] == ahead.isoformat()


def test_what_is_past_or_now_runs_at_once(project, web):
    past = datetime.now(timezone.utc) - timedelta(days=1)

    results = [web.note.apply_async(**when) for when in ({"eta": past}, {"countdown": 0}, {"countdown": -5})]

    assert in_the_ladder(project) == 0
    for result in results:
        ran(project, result)


def test_a_countdown_that_a_task_announced_takes_its_lane(project, web, nobody):
    web.note.apply_async(queue=nobody, countdown=0.7)

    assert project.depth(project.names.lane(WorkQueue(name=nobody), 700)) == 1
    assert in_the_ladder(project) == 0
    eventually(lambda: project.depth(nobody) == 1)


def test_a_worker_makes_appointments_too(project):
    sent = time.time()

    result = project.app.send_task("later.send", (SOON,))

    (run,) = eventually(lambda: project.records(id=result.get(timeout=20)))
    assert run["at"] >= sent + SOON
    assert run["args"] == [1, 2]


def test_beat_makes_appointments_too(project, web, nobody):
    entry = ScheduleEntry("n", "later.note", options={"countdown": SOON, "queue": nobody}, schedule=1, app=web)
    with web.producer_or_acquire() as producer:
        Scheduler(web, lazy=True).apply_async(entry, producer=producer, advance=False)

    assert in_the_ladder(project) == 1
    eventually(lambda: project.depth(nobody) == 1)


def test_a_delay_beyond_the_ladder_goes_down_again_for_the_rest(project, web):
    sent = time.time()

    result = web.note.apply_async(countdown=2.5)

    run = ran(project, result)
    assert sent + 2.5 <= run["at"] < sent + 7.5
    assert f"sent on task=later.note id={result.id}" in project_log(project)
    assert "rungs missing" not in project_log(project)


def test_what_an_app_sends_that_does_not_know_the_task_is_not_held_by_the_worker_either(project):
    sent = time.time()

    result = project.app.send_task("later.note", (1, 2), countdown=1.2)

    eventually(lambda: f"sent on task=later.note id={result.id}" in project_log(project))
    (scheduled,) = project.app.control.inspect(timeout=1).scheduled().values()
    assert scheduled == []
    assert ran(project, result)["at"] >= sent + 1.2
    assert result.get(timeout=20) == 3


def test_what_cannot_be_sent_on_now_is_tried_again_and_holds_nobody_up(project, web, broker):
    if not broker.can_restart:
        pytest.skip("rabbitmqctl is only for a broker of our own")
    full = '{"max-length": 0, "overflow": "reject-publish"}'
    broker.ctl("set_policy", project.prefix, f"^{project.prefix}.v2.ladder", full, "--apply-to", "queues")
    try:
        sent = time.time()
        early = project.app.send_task("later.note", (1, 1), countdown=4)
        eventually(lambda: "not sent on, trying again" in project_log(project))
        assert web.note.delay(1, 2).get(timeout=10) == 3
        assert project.records(id=early.id) == []
    finally:
        broker.ctl("clear_policy", project.prefix)

    assert ran(project, early)["at"] >= sent + 4
    assert early.get(timeout=20) == 2


def test_a_rung_that_somebody_took_away_makes_nothing_early_and_is_put_back(project, web):
    ran(project, web.note.apply_async(countdown=0.1))
    ran(project, project.app.send_task("later.note"))
    early = project.app.send_task("later.note", countdown=0.8)
    eventually(lambda: f"sent on task=later.note id={early.id}" in project_log(project))
    ran(project, early)  # and now both, who sends and who works, have made sure of the ladder
    with Connection(project.url) as connection:
        connection.default_channel.queue_delete(rung(project, 3))
    sent = time.time()

    result = web.note.apply_async(countdown=1.3)

    assert ran(project, result)["at"] >= sent + 1.3
    eventually(lambda: project.depth(rung(project, 3)) is not None)


def test_expires_is_kept_and_is_no_shorter_time_on_the_way(project, web, nobody):
    result = web.note.apply_async(countdown=SOON, expires=30)
    web.note.apply_async(queue=nobody, countdown=0.3, expires=30)

    assert datetime.fromisoformat(ran(project, result)["expires"]) > datetime.now(timezone.utc)
    eventually(lambda: project.depth(nobody) == 1)
    with Connection(project.url) as connection:
        assert "expiration" not in connection.default_channel.basic_get(nobody, no_ack=True).properties


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_a_copy_of_an_appointment_reaches_its_queue_once(project, web, nobody, name):
    with Connection(project.url) as connection:
        connection.default_channel.queue_declare(nobody, durable=True, auto_delete=False)
    sent = time.time()

    result = web.note.apply_async(countdown=SOON, headers={name: [nobody]})

    assert ran(project, result)["at"] >= sent + SOON
    eventually(lambda: project.depth(nobody) == 1)
    eventually(lambda: in_the_ladder(project) == 0)
    assert len(project.records(id=result.id)) == 1


def test_what_expires_while_it_waits_is_revoked_and_not_run(project, web):
    result = web.note.apply_async(countdown=0.8, expires=0.4)

    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=20)
    assert project.records(id=result.id) == []


def test_what_is_revoked_while_it_waits_is_not_run(project, web):
    result = web.note.apply_async(countdown=1)

    result.revoke()

    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)
    eventually(lambda: in_the_ladder(project) == 0)
    web.note.apply_async().get(timeout=20)
    assert project.records(id=result.id) == []


# --- canvas ---


def test_a_group_with_a_countdown(project, web):
    sent = time.time()

    result = group([web.note.s(number) for number in range(3)], app=web).apply_async(countdown=SOON)

    assert result.get(timeout=20) == [0, 1, 2]
    assert all(ran(project, member)["at"] >= sent + SOON for member in result)


def test_a_chain_with_a_countdown_on_a_member(project, web):
    result = chain(web.note.s(1), web.note.s(10).set(countdown=SOON), web.note.s(100), app=web).apply_async()

    assert result.get(timeout=20) == 111
    first, second, third = (ran(project, one) for one in (result.parent.parent, result.parent, result))
    assert second["at"] >= first["at"] + SOON
    assert third["at"] >= second["at"]


def test_a_chord_with_countdowns_and_a_link(project, web):
    sent = time.time()
    header = [web.note.s(number).set(countdown=0.3) for number in range(3)]
    body = web.total.s().set(countdown=0.3, link=web.note.s(5))

    result = chord(header, body, app=web).apply_async()

    assert result.get(timeout=20) == 3
    assert ran(project, result)["at"] >= sent + 0.6
    eventually(lambda: [run for run in project.records(task="later.note") if run["args"] == [3, 5]])


# --- Celery's routes ---


@pytest.fixture(scope="module")
def routed(project):
    prefix = project.prefix
    topic, direct = Exchange(f"{prefix}.t", type="topic"), Exchange(f"{prefix}.d")
    queues = [
        Queue(project.queue, Exchange(project.queue), routing_key=project.queue),
        Queue(f"{prefix}.one", direct, routing_key="one.key"),
        Queue(f"{prefix}.red", topic, routing_key="red.#"),
        Queue(f"{prefix}.all", topic, routing_key="*.all"),
    ]
    asked = []

    def route(name, args, *_, **__):
        asked.append(name)
        return {"queue": f"{prefix}.one"} if args and args[0] == "by function" else None

    app = Web(project, task_queues=queues, task_routes=(route, {"later.total": {"queue": f"{prefix}.red"}}))
    app.asked = asked
    return app


@pytest.mark.parametrize(
    ("task", "options", "queue"),
    [
        ("note", {"args": ("by function",)}, "one"),
        ("note", {"queue": ".one"}, "one"),
        ("total", {"args": ([],), "queue": ".one"}, "one"),
    ],
)
def test_it_comes_back_to_the_queue_that_celery_would_send_it_to(project, routed, task, options, queue):
    options = {key: project.prefix + value if value and value[0] == "." else value for key, value in options.items()}
    del routed.asked[:]

    getattr(routed, task).apply_async(countdown=SOON, **options)

    assert len(routed.asked) == 1
    assert in_the_ladder(project) == 1
    eventually(lambda: project.depth(f"{project.prefix}.{queue}") == 1)
    with Connection(project.url) as connection:
        connection.default_channel.queue_purge(f"{project.prefix}.{queue}")


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("note", {"exchange": ".d", "routing_key": "one.key"}),
        ("note", {"exchange": ".t", "routing_key": "red.or.dead"}),
        ("total", {"args": ([],)}),
    ],
)
def test_what_goes_through_an_exchange_is_left_to_celery_for_others_may_be_bound_to_it(project, routed, task, options):
    options = {key: project.prefix + value if value and value[0] == "." else value for key, value in options.items()}

    sent = routes.routed(getattr(routed, task), options.pop("args", ()), {}, options)

    assert routes.destination(routed, sent) is None


def test_what_leads_to_two_queues_is_left_to_celery_and_reaches_both(project, routed):
    with routed.connection_for_write() as connection:
        for name in ("red", "all"):
            routed.amqp.queues[f"{project.prefix}.{name}"](connection.default_channel).declare()

    routed.note.apply_async(countdown=60, exchange=f"{project.prefix}.t", routing_key="red.all")

    for name in ("red", "all"):
        eventually(lambda: project.depth(f"{project.prefix}.{name}") == 1)  # noqa: B023
    assert in_the_ladder(project) == 0


# --- the sender's side ---


def test_a_producer_or_a_connection_of_the_callers_does_as_well(project, web, nobody):
    with web.connection_for_write() as connection, web.amqp.Producer(connection, auto_declare=False) as producer:
        web.note.apply_async(countdown=SOON, queue=nobody, connection=connection)
        web.note.apply_async(countdown=SOON, queue=nobody, producer=producer)

    assert in_the_ladder(project) == 2
    eventually(lambda: project.depth(nobody) == 2)


def test_what_is_to_go_to_another_broker_goes_there(project, web, nobody):
    with Connection("memory://", virtual_host=nobody) as elsewhere:
        web.note.apply_async(countdown=60, queue=nobody, connection=elsewhere)

        assert elsewhere.SimpleQueue(nobody).qsize() == 1
    assert in_the_ladder(project) == 0


def test_signals_see_the_message_and_may_change_it(project, web):
    seen = []

    def before(headers, **_):
        headers["tenant"] = "7"
        seen.append(("before", headers["eta"]))

    def after(headers, **_):
        seen.append(("after", headers["eta"]))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        result = web.note.apply_async(countdown=0.1)
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)

    run = ran(project, result)
    assert "tenant" in run["headers"]
    assert seen == [("before", run["eta"]), ("after", run["eta"])]


def test_a_sent_event_that_nobody_hears_does_no_harm_and_one_that_is_heard_tells_queue_and_eta(project):
    app = Web(project, event_exchange=f"{project.prefix}.ev")
    heard = []

    unheard = app.note.apply_async(countdown=0.1)
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"task-sent": heard.append})
        with receiver.consumer_context() as (opened, _, _):
            result = app.note.apply_async(countdown=0.1)
            opened.drain_events(timeout=10)

    assert ran(project, unheard)
    assert [(event["uuid"], event["queue"]) for event in heard] == [(result.id, project.queue)]
    assert heard[0]["eta"] == ran(project, result)["eta"]


def test_a_retry_is_not_made_twice_by_a_sent_event_that_nobody_hears(project):
    result = project.app.send_task("later.retry")

    assert result.get(timeout=20) == "came back"
    assert [run["retries"] for run in project.records(id=result.id)] == [0, 1]


def test_a_retry_takes_a_lane_that_expires_if_the_setting_says_so_and_an_announced_delay_does_not(project):
    project.app.send_task("later.retry").get(timeout=20)

    length_ms = project.names.lane_of(project.grid_lane(200)).delay_ms
    expiring = project.names.lane(WorkQueue(name=project.queue), length_ms, expires_ms=140_000)
    assert project.depth(expiring) == 0
    assert project.depth(project.grid_lane(200)) is None
    assert project.depth(project.lane(700)) == 0


def test_a_lane_or_rung_that_vanished_is_declared_again_and_nothing_is_lost(project, web, nobody):
    web.note.apply_async(countdown=0.4, queue=nobody)
    eventually(lambda: project.depth(nobody) == 1)
    with Connection(project.url) as connection:
        connection.default_channel.exchange_delete(rung(project, 2))

    web.note.apply_async(countdown=0.4, queue=nobody)

    eventually(lambda: project.depth(nobody) == 2)


def test_a_broker_that_is_down_is_celerys_own_error(project):
    app = Web(project, broker_url="amqp://127.0.0.1:1//")

    with pytest.raises(OperationalError):
        app.note.apply_async(countdown=5, retry_policy={"max_retries": 1})


def test_who_may_not_declare_leaves_it_to_celery(project, nobody):
    app = Web(project, dlx_prefix=f"{project.prefix}.other", dlx_declare=False)

    app.note.apply_async(countdown=60, queue=nobody)

    eventually(lambda: project.depth(nobody) == 1)


def test_a_setting_turns_it_off(project, nobody):
    app = Web(project, dlx_countdown=False)

    app.note.apply_async(countdown=60, queue=nobody)

    eventually(lambda: project.depth(nobody) == 1)
    assert in_the_ladder(project) == 0


def test_rubbish_is_celerys_to_refuse(web):
    with pytest.raises(TypeError):
        web.note.apply_async(countdown="5")
    with pytest.raises(OverflowError):
        web.note.apply_async(countdown=1e15)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("ladder", ["classic", "quorum"])
def test_both_types_of_ladder_and_of_work_queue(project, nobody, kind, ladder):
    queue = Queue(nobody, Exchange(nobody), routing_key=nobody, queue_arguments={"x-queue-type": kind})
    app = Web(project, task_queues=[queue], task_default_queue=nobody, dlx_queue_type=ladder)

    app.note.apply_async(countdown=SOON)
    app.note.apply_async(countdown=SOON)

    assert in_the_ladder(project, replace(project.names, kind=ladder)) == 2
    eventually(lambda: project.depth(nobody) == 2)


def test_after_all_this_nothing_ran_twice_or_died_or_is_an_orphan(project):
    ids = [run["id"] for run in project.records(event="run", retries=0)]

    assert len(ids) == len(set(ids))
    assert project.dead() == []
    assert project.depth(project.names.orphans()) == 0
