"""What stands is compared with what should, and nothing is changed by it."""

from __future__ import annotations

import pytest
from support import eventually

from celery_dlx_retry.broker.find_drift import find
from celery_dlx_retry.broker.management import management_of
from celery_dlx_retry.broker.permission_probe import forbidden
from celery_dlx_retry.broker.queue_status import states
from celery_dlx_retry.errors import BadManagementURL, NoManagement
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import Lane, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects, work_queue_objects
from celery_dlx_retry.topology.render import definitions
from celery_dlx_retry.topology.specs import QueueSpec, Topology
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record


@pytest.fixture
def api(bench, broker, management):
    if management is None:
        pytest.skip("no HTTP API")
    return management_of(bench.connection, broker.management_url)


def everything(bench, work):
    names = bench.names
    queue = WorkQueue(name=work)
    return shared_objects(names) | work_queue_objects(names, queue) | lane(names, queue, 60_000)


def kinds(drifts):
    return sorted((drift.kind, drift.name) for drift in drifts)


def test_what_stands_is_no_drift(bench, kind, api):
    topology = everything(bench, bench.queue("work", kind))
    bench.declare_topology(topology)

    assert list(find(bench.connection, topology, None)) == []
    assert list(find(bench.connection, topology, api)) == []


@pytest.mark.usefixtures("kind")
def test_looking_for_drift_makes_nothing(bench, api):
    topology = everything(bench, f"{bench.prefix}.work")

    found = list(find(bench.connection, topology, api))

    assert {drift.kind for drift in found} == {"missing"}
    assert len(found) == len(topology.queues) + len(topology.exchanges) + 1
    assert [bench.depth(queue.name) for queue in topology.queues] == [None] * len(topology.queues)
    assert not any(bench.has_exchange(exchange.name) for exchange in topology.exchanges)


def test_a_queue_with_other_arguments_is_a_mismatch_and_stays_as_it_is(bench):
    name = bench.queue("lane", x_message_ttl=5)
    bench.put(name, [])
    wanted = QueueSpec(name=name, arguments=(("x-queue-type", "classic"), ("x-message-ttl", 60_000)))

    (drift,) = find(bench.connection, Topology(queues=(wanted,)), None)

    assert drift.kind == "mismatch"
    assert "has x-message-ttl=5; it should be 60000" in drift.fact


def test_a_lost_binding_shows_over_http(bench, kind, api):
    work = bench.queue("work", kind)
    topology = everything(bench, work)
    bench.declare_topology(topology)
    bench.connection.default_channel.queue_unbind(work, bench.names.return_exchange(), routing_key=work)

    assert kinds(find(bench.connection, topology, api)) == [("unbound", f"{bench.names.return_exchange()} -> {work}")]


def test_a_policy_that_shortens_the_wait_shows_over_http(bench, api, management):
    work = bench.queue("work")
    topology = everything(bench, work)
    bench.declare_topology(topology)
    path = f"/policies/{management._vhost}/{bench.prefix}"
    policy = {"pattern": f"^{bench.prefix}.v2.wait", "definition": {"message-ttl": 1000}, "apply-to": "queues"}
    management.call("PUT", path, policy)
    try:
        found = eventually(lambda: list(find(bench.connection, topology, api)))
    finally:
        management.call("DELETE", path)

    assert kinds(found) == [("policy", bench.names.lane(WorkQueue(name=work), 60_000))]


def test_a_policy_that_takes_the_retries_of_a_missing_lane_shows_over_http(bench, api, management):
    topology = everything(bench, bench.queue("work"))
    bench.declare_topology(topology)
    unrouted = bench.queue("unrouted")
    bench.connection.default_channel.queue_bind(unrouted, "amq.fanout")
    path = f"/policies/{management._vhost}/{bench.prefix}"
    pattern = f"^{bench.prefix}[.]v2[.]wait$"
    management.call("PUT", path, {"pattern": pattern, "definition": {"alternate-exchange": "amq.fanout"}})
    try:
        found = eventually(lambda: list(find(bench.connection, topology, api)))
        with bench.publisher().producer() as producer:
            producer.publish("", exchange=bench.names.lanes(), routing_key="missing", headers={"id": 7})
    finally:
        management.call("DELETE", path)

    assert [(drift.kind, drift.object, drift.name) for drift in found] == [("policy", "exchange", bench.names.lanes())]
    assert bench.ids(unrouted) == [7]  # confirmed, and no retry


def test_who_may_not_configure_learns_what_could_not_be_checked(bench, limited_url):
    topology = everything(bench, bench.queue("work"))
    bench.declare_topology(topology)

    found = list(find(bench.connect(url=limited_url), topology, None))

    assert {drift.kind for drift in found} == {"unchecked"}


def test_the_definitions_make_what_the_plan_says(bench, kind, api, management):
    topology = everything(bench, bench.queue("work", kind))

    management.call("POST", "/definitions", definitions(topology, vhost=api.vhost))

    assert list(find(bench.connection, topology, api)) == []


def test_missing_permissions_are_told_and_nothing_is_made(bench, limited_url, management):
    work = WorkQueue(name=bench.queue("work"))
    bench.declare_topology(shared_objects(bench.names) | work_queue_objects(bench.names, work))
    connection = bench.connect(url=limited_url)

    def told(declares=True, **permissions):  # noqa: FBT002 - reads better
        user = limited_url.partition("//")[2].partition(":")[0]
        management.call("PUT", f"/permissions/{management._vhost}/{user}", permissions)
        found = forbidden(connection, bench.names, work_queues=[work], declares=declares, sends_by_name=True)
        return [sentence.partition(" may not ")[2].split()[0] for sentence in found]

    assert told(configure=".*", write=".*", read=".*") == []
    assert told(configure="", write=".*", read=".*") == ["configure"]
    assert told(configure="", write=".*", read="", declares=False) == []
    assert told(configure=".*", write="^$", read=".*") == ["write", "send", "bind"]
    assert told(configure=".*", write=".*", read="^$") == ["read", "bind"]
    ours = f"^{bench.prefix}"
    assert told(configure=ours, write=ours, read=ours) == ["send"]
    assert told(configure=ours, write=rf"{ours}|^amq\.default$", read=ours) == []
    assert [name for name in management.names("queues") if "nothing" in name] == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1:1", "refused"),
        ("ftp://127.0.0.1", "cannot be read"),
        ("http://nobody:geheim@{host}", "'nobody' may not use it"),
        ("http://{host}/elsewhere", "it answers 40"),
    ],
)
def test_an_api_that_does_not_answer_is_told_without_its_password(bench, broker, management, url, problem):
    if management is None:
        pytest.skip("no HTTP API")
    host = broker.management_url.rpartition("@")[2]

    def ask():
        return management_of(bench.connection, url.format(host=host)).version()

    with pytest.raises((NoManagement, BadManagementURL), match=problem) as caught:
        ask()

    assert "geheim" not in str(caught.value)
    assert "guest:" not in str(caught.value)


def test_the_api_is_looked_for_at_the_brokers_host(bench):
    for url, expected in (
        ("amqp://u:p@rabbit:5673/shop", "http://rabbit:15672"),
        ("amqps://u:p@rabbit//", "https://rabbit:15671"),
        ("amqp://u:p@[::1]:5672//", "http://[::1]:15672"),
    ):
        found = management_of(bench.connect(url=url), None)

        assert (found.url, found.user) == (expected, "u")


def test_the_state_tells_what_every_queue_holds_and_leaves_it_there(bench, kind, api):
    work = bench.work(kind)
    bench.lane(work, 60_000)
    waiting = Lane(name=bench.names.lane(work, 60_000), kind=kind, delay_ms=60_000, queue=work.name)
    dead, orphans = bench.names.dead_letters(work.name), bench.names.orphans()
    record = DeadRecord(
        reason=Reason.FAILED, task="t", task_id="1", queue=work.name, dead_letter_key=work.name, worker="", attempts=1,
        died_at_ms=1_700_000_000_000,
    )  # fmt: skip
    bench.put(work.name, [1])
    bench.put(waiting.name, [2, 3], headers={"dlx-history": '[[1, 1700000000000, "", 60000, "w"]]'})
    bench.put(dead, [4], headers=with_record({}, record))

    def state(management):
        found = states(bench.connect(), bench.names, work_queues={work: kind}, lanes=[waiting], management=management)
        return {(it.role, it.queue): it for it in found}

    found = state(None)

    assert {key: it.ready for key, it in found.items()} == {
        ("work", work.name): 1,
        ("wait", waiting.name): 2,
        ("dead", dead): 1,
        ("orphans", orphans): 0,
    }
    assert found["wait", waiting.name].next_ms == 1_700_000_060_000
    assert found["dead", dead].oldest_ms == 1_700_000_000_000
    assert found["work", work.name].unacked is None
    if kind == "classic":  # it takes the API five seconds to know
        eventually(lambda: state(api)["work", work.name].unacked == 0)
    assert (bench.ids(waiting.name), bench.ids(dead)) == ([2, 3], [4])


def test_a_queue_that_is_not_there_is_told_as_such(bench):
    work = WorkQueue(name=f"{bench.prefix}.gone")

    found = list(states(bench.connection, bench.names, work_queues={work: "classic"}, lanes=[], management=None))

    assert [(it.role, it.exists, it.ready) for it in found] == [
        ("work", False, 0), ("dead", False, 0), ("orphans", False, 0),
    ]  # fmt: skip
