"""What is on the broker is API: every name and argument stands here as a literal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlx_retry.broker.crash_marks import marks_of
from celery_dlx_retry.errors import InvalidSetting
from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.names import Names, WorkQueue, work_queue_of
from celery_dlx_retry.topology.objects import landing, lane, shared_objects, work_queue_objects
from celery_dlx_retry.topology.specs import BindingSpec, ExchangeSpec, QueueSpec, Topology

NAMES, QUORUM = Names(kind="classic"), Names(kind="quorum")
KINDS = ("classic", "quorum")
ORDERS = WorkQueue(name="orders")


@pytest.mark.parametrize("kind", KINDS)
def test_the_names(kind):
    names = Names(prefix="shop", kind=kind, dead_letter_queue="{queue}.dead")

    assert names.lanes() == "shop.v2.wait"
    assert names.lane(ORDERS, 1_000) == f"shop.v2.wait.{kind}.000000001000.orders"
    assert names.lane(ORDERS, 315_360_000_000) == f"shop.v2.wait.{kind}.315360000000.orders"
    assert names.landings() == f"shop.v2.landing.{kind}"
    assert names.landing(ORDERS) == f"shop.v2.landing.{kind}.orders"
    assert names.lock() == "shop.v2.lock"
    assert names.return_exchange() == f"shop.v1.return.{kind}"
    assert names.is_return_exchange("shop.v1.return.classic")
    assert names.is_return_exchange("shop.v12.return.quorum")
    assert not names.is_return_exchange("shop.v1.dead")
    assert not names.is_return_exchange("other.v1.return.quorum")
    assert not names.is_return_exchange("")
    assert names.orphans() == f"shop.v1.orphans.{kind}"
    assert names.dead() == "shop.v1.dead"
    assert names.crash_marks("0a1b2c") == "shop.v1.starts.0a1b2c"
    assert names.dead_letters("orders") == "orders.dead"


def test_a_classic_lane_of_one_work_queue():
    assert lane(NAMES, ORDERS, 1_000) == Topology(
        exchanges=(ExchangeSpec(name="dlx.v2.wait", kind="direct"),),
        queues=(
            QueueSpec(
                name="dlx.v2.wait.classic.000000001000.orders",
                arguments=(
                    ("x-queue-type", "classic"),
                    ("x-message-ttl", 1_000),
                    ("x-dead-letter-exchange", "dlx.v1.return.classic"),
                    ("x-dead-letter-routing-key", "orders"),
                ),
            ),
        ),
        bindings=(
            BindingSpec(
                exchange="dlx.v2.wait",
                queue="dlx.v2.wait.classic.000000001000.orders",
                routing_key="dlx.v2.wait.classic.000000001000.orders",
            ),
        ),
    )


def test_a_quorum_lane_of_one_work_queue():
    assert lane(QUORUM, ORDERS, 37) == Topology(
        exchanges=(ExchangeSpec(name="dlx.v2.wait", kind="direct"),),
        queues=(
            QueueSpec(
                name="dlx.v2.wait.quorum.000000000037.orders",
                arguments=(
                    ("x-queue-type", "quorum"),
                    ("x-delivery-limit", 1_000_000_000),
                    ("x-message-ttl", 37),
                    ("x-dead-letter-exchange", "dlx.v1.return.quorum"),
                    ("x-dead-letter-strategy", "at-least-once"),
                    ("x-overflow", "reject-publish"),
                    ("x-dead-letter-routing-key", "orders"),
                ),
            ),
        ),
        bindings=(
            BindingSpec(
                exchange="dlx.v2.wait",
                queue="dlx.v2.wait.quorum.000000000037.orders",
                routing_key="dlx.v2.wait.quorum.000000000037.orders",
            ),
        ),
    )


def test_a_lane_that_work_queues_share():
    shared = Names(kind="quorum", bulkheads=8)

    assert lane(shared, ORDERS, 37) == Topology(
        exchanges=(ExchangeSpec(name="dlx.v2.shared.quorum.000000000037.001", kind="fanout"),),
        queues=(
            QueueSpec(
                name="dlx.v2.shared.quorum.000000000037.001",
                arguments=(
                    ("x-queue-type", "quorum"),
                    ("x-delivery-limit", 1_000_000_000),
                    ("x-message-ttl", 37),
                    ("x-dead-letter-exchange", "dlx.v1.return.quorum"),
                    ("x-dead-letter-strategy", "at-least-once"),
                    ("x-overflow", "reject-publish"),
                ),
            ),
        ),
        bindings=(
            BindingSpec(
                exchange="dlx.v2.shared.quorum.000000000037.001", queue="dlx.v2.shared.quorum.000000000037.001"
            ),
        ),
    )
    assert shared.landing(ORDERS) == "dlx.v2.shared-landing.quorum.001"


def test_a_landing_queue_of_one_work_queue():
    assert landing(QUORUM, ORDERS) == Topology(
        queues=(
            QueueSpec(
                name="dlx.v2.landing.quorum.orders",
                arguments=(
                    ("x-queue-type", "quorum"),
                    ("x-delivery-limit", 1_000_000_000),
                    ("x-message-ttl", 1),
                    ("x-dead-letter-exchange", "dlx.v1.return.quorum"),
                    ("x-dead-letter-strategy", "at-least-once"),
                    ("x-overflow", "reject-publish"),
                ),
            ),
        ),
        bindings=(
            BindingSpec(exchange="dlx.v2.landing.quorum", queue="dlx.v2.landing.quorum.orders", routing_key="orders"),
        ),
    )


@given(st.integers(1, 999), st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=40, unique=True))
def test_bulkheads_bound_the_number_of_lanes_however_many_work_queues_there_are(bulkheads, queues):
    names = Names(bulkheads=bulkheads)

    lanes = {names.lane(WorkQueue(name=queue), 1_000) for queue in queues}

    assert len(lanes) <= min(bulkheads, len(queues))
    assert not any(names.has_own_lanes(WorkQueue(name=queue)) for queue in queues)


@given(st.lists(st.text(min_size=1, max_size=40), min_size=2, max_size=10, unique=True))
def test_without_bulkheads_no_two_work_queues_share_a_lane(queues):
    assert len({NAMES.lane(WorkQueue(name=queue), 1_000) for queue in queues}) == len(queues)


def test_the_copies_of_a_broadcast_queue_share_lanes_which_would_pile_up_otherwise():
    copies = [WorkQueue(name=f"bcast.{number}", dead_letter_key="news") for number in range(5)]

    assert len({NAMES.lane(copy, 1_000) for copy in copies}) == 1
    assert not NAMES.has_own_lanes(copies[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_of_lanes_that_hold_so_many(kind):
    names = Names.of(Settings(prefix="shop", queue_type=kind, max_waiting=1_000))

    assert names.lane(ORDERS, 1_000) == f"shop.v2.wait.{kind}.max1000.000000001000.orders"
    assert names.return_exchange() == Names(prefix="shop", kind=kind).return_exchange()
    assert names.dead_letters("orders") == "orders.dead"


@pytest.mark.parametrize("kind", KINDS)
def test_a_lane_that_holds_so_many_is_the_same_but_for_that(kind):
    (plain,) = lane(Names(kind=kind), ORDERS, 1_000).queues
    (limited,) = lane(Names(kind=kind, max_waiting=7), ORDERS, 1_000).queues

    assert limited.name == f"dlx.v2.wait.{kind}.max7.000000001000.orders"
    assert dict(limited.arguments) == {**dict(plain.arguments), "x-overflow": "reject-publish", "x-max-length": 7}
    assert len(dict(limited.arguments)) == len(limited.arguments)


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (NAMES, (("x-queue-type", "classic"),)),
        (QUORUM, (("x-queue-type", "quorum"), ("x-delivery-limit", 1_000_000_000))),
    ],
    ids=KINDS,
)
def test_the_foundation_of_version_1(names, arguments):
    orphans = f"dlx.v1.orphans.{names.kind}"

    assert shared_objects(names) == Topology(
        exchanges=(
            ExchangeSpec(name="dlx.v1.dead", kind="direct"),
            ExchangeSpec(name="dlx.v2.wait", kind="direct"),
            ExchangeSpec(name=orphans, kind="fanout"),
            ExchangeSpec(
                name=f"dlx.v1.return.{names.kind}", kind="direct", arguments=(("alternate-exchange", orphans),)
            ),
        ),
        queues=(QueueSpec(name=orphans, arguments=arguments),),
        bindings=(BindingSpec(exchange=orphans, queue=orphans, routing_key=""),),
    )


def test_classic_queues_around_a_work_queue_of_version_1():
    assert work_queue_objects(NAMES, WorkQueue(name="orders")) == Topology(
        queues=(QueueSpec(name="orders.dead", arguments=(("x-queue-type", "classic"),)),),
        bindings=(
            BindingSpec(exchange="dlx.v1.return.classic", queue="orders", routing_key="orders"),
            BindingSpec(exchange="dlx.v1.dead", queue="orders.dead", routing_key="orders"),
        ),
    )


def test_quorum_queues_around_a_work_queue_of_version_1():
    assert work_queue_objects(QUORUM, WorkQueue(name="orders")) == Topology(
        queues=(
            QueueSpec(
                name="orders.dead",
                arguments=(("x-queue-type", "quorum"), ("x-delivery-limit", 1_000_000_000)),
            ),
        ),
        bindings=(
            BindingSpec(exchange="dlx.v1.return.quorum", queue="orders", routing_key="orders"),
            BindingSpec(exchange="dlx.v1.dead", queue="orders.dead", routing_key="orders"),
        ),
    )


def test_a_broadcast_queue_comes_back_by_its_own_name_and_dies_by_its_familys():
    copy = WorkQueue(name="bcast.7d1f", dead_letter_key="news")

    assert work_queue_objects(NAMES, copy) == Topology(
        queues=(QueueSpec(name="news.dead", arguments=(("x-queue-type", "classic"),)),),
        bindings=(
            BindingSpec(exchange="dlx.v1.return.classic", queue="bcast.7d1f", routing_key="bcast.7d1f"),
            BindingSpec(exchange="dlx.v1.dead", queue="news.dead", routing_key="news"),
        ),
    )


def test_all_copies_of_a_broadcast_share_one_dead_letter_queue():
    first, second = WorkQueue(name="bcast.1", dead_letter_key="news"), WorkQueue(name="bcast.2", dead_letter_key="news")

    both = work_queue_objects(NAMES, first) | work_queue_objects(NAMES, second)

    assert [queue.name for queue in both.queues] == ["news.dead"]
    assert len(both.bindings) == 3


def test_the_marks_of_a_suspect_message_of_version_1():
    assert marks_of(NAMES, "7b1c", queue="orders") == QueueSpec(
        name="dlx.v1.starts.89ff1d2d8a578af2116b66f39520bead",
        arguments=(("x-queue-type", "classic"), ("x-expires", 86_400_000)),
    )


def test_a_queue_without_a_family_is_its_own():
    assert WorkQueue(name="orders").dead_letter_key == "orders"


def test_the_queues_know_whether_they_are_quorum():
    assert [lane(names, ORDERS, 1).queues[0].is_quorum for names in (NAMES, QUORUM)] == [False, True]


def test_the_settings_lead_to_the_names():
    names = Names.of(Settings(prefix="shop", queue_type="classic", dead_letter_queue="dead-{queue}"))

    assert names == Names(prefix="shop", kind="classic", dead_letter_queue="dead-{queue}")
    assert names.dead_letters("orders") == "dead-orders"


def test_two_prefixes_share_nothing_but_the_dead_letter_queue():
    def all_of(prefix):
        names = Names(prefix=prefix)
        return shared_objects(names) | lane(names, ORDERS, 1) | work_queue_objects(names, WorkQueue(name="orders"))

    ours, theirs = all_of("a"), all_of("b")

    assert not set(ours.exchanges) & set(theirs.exchanges)
    assert {queue.name for queue in set(ours.queues) & set(theirs.queues)} == {"orders.dead"}
    assert not set(ours.bindings) & set(theirs.bindings)


def test_every_name_fits_an_amqp_short_string_for_the_longest_prefix_delay_and_queue():
    names = Names.of(Settings(prefix="p" * 100))
    queue = WorkQueue(name="q" * 250)

    whole = (
        shared_objects(names)
        | work_queue_objects(names, queue)
        | lane(names, queue, MAX_DELAY_MS)
        | landing(names, queue)
    )

    named = [spec.name for spec in whole.exchanges + whole.queues]
    assert max(len(name.encode()) for name in named) == 255
    assert max(len(binding.routing_key.encode()) for binding in whole.bindings) == 250


@given(
    st.text("p", min_size=1, max_size=100), st.text(min_size=1, max_size=255).filter(lambda it: len(it.encode()) <= 255)
)
def test_the_longest_lane_of_any_work_queue_has_a_name_that_fits_and_tells_the_queue(prefix, queue):
    names = Names.of(Settings(prefix=prefix, queue_type="classic", max_waiting=999_999_999))
    work = WorkQueue(name=queue)

    name = names.lane(work, MAX_DELAY_MS, expires_ms=1)

    assert len(name.encode()) <= 255
    assert names.lane_of(name) is not None
    assert work_queue_of(name, queue) == queue


def test_lanes_sort_by_their_length_up_to_the_longest():
    names = [NAMES.lane(ORDERS, delay_ms) for delay_ms in (1, 99, 1_000, 20_000, MAX_DELAY_MS)]

    assert names == sorted(names)
    assert len({len(name) for name in names}) == 1


@pytest.mark.parametrize("queue", ["q" * 251, "ä" * 126])
def test_a_dead_letter_queue_whose_name_does_not_fit_is_refused_before_the_broker_is_asked(queue):
    with pytest.raises(InvalidSetting) as caught:
        work_queue_objects(NAMES, WorkQueue(name=queue))

    assert str(caught.value) == (
        "dlx_dead_letter_queue is '{queue}.dead'; it must be a pattern that makes another name, of at most 255 bytes, "
        f"of '{queue}'."
    )


def test_a_work_queue_is_never_its_own_dead_letter_queue():
    with pytest.raises(InvalidSetting, match=r"^dlx_dead_letter_queue is 'celery'; .* of 'celery'\.$"):
        work_queue_objects(Names(dead_letter_queue="celery"), WorkQueue(name="celery"))


def test_a_pattern_without_the_queue_makes_one_dead_letter_queue_for_all():
    names = Names(dead_letter_queue="dead")

    both = work_queue_objects(names, WorkQueue(name="a")) | work_queue_objects(names, WorkQueue(name="b"))

    assert [queue.name for queue in both.queues] == ["dead"]
    assert [(each.queue, each.routing_key) for each in both.bindings if each.exchange == "dlx.v1.dead"] == [
        ("dead", "a"),
        ("dead", "b"),
    ]


parts = st.one_of(
    st.builds(lane, st.sampled_from([NAMES, QUORUM]), st.just(ORDERS), st.integers(1, 5)),
    st.builds(shared_objects, st.sampled_from([NAMES, QUORUM])),
    st.builds(lambda name: work_queue_objects(NAMES, WorkQueue(name=name)), st.sampled_from("abc")),
)


@given(parts, parts, parts)
def test_a_union_is_idempotent_associative_and_keeps_its_order(a, b, c):
    union = a | b | c

    assert union | union == union
    assert union | b == union
    assert a | (b | c) == union
    for kind in ("exchanges", "queues", "bindings"):
        assert getattr(union, kind)[: len(getattr(a, kind))] == getattr(a, kind)
        assert len(set(getattr(union, kind))) == len(getattr(union, kind))
        assert set(getattr(union, kind)) == {*getattr(a, kind), *getattr(b, kind), *getattr(c, kind)}


def test_an_expiring_lane():
    assert lane(NAMES, ORDERS, 37_000, expires_ms=600_000) == Topology(
        exchanges=(ExchangeSpec(name="dlx.v2.wait", kind="direct"),),
        queues=(
            QueueSpec(
                name="dlx.v2.wait.classic.000000037000-000000637000.orders",
                arguments=(
                    ("x-queue-type", "classic"),
                    ("x-message-ttl", 37_000),
                    ("x-dead-letter-exchange", "dlx.v1.return.classic"),
                    ("x-dead-letter-routing-key", "orders"),
                    ("x-expires", 637_000),
                ),
            ),
        ),
        bindings=(
            BindingSpec(
                exchange="dlx.v2.wait",
                queue="dlx.v2.wait.classic.000000037000-000000637000.orders",
                routing_key="dlx.v2.wait.classic.000000037000-000000637000.orders",
            ),
        ),
    )


def test_a_shared_lane_that_expires_takes_its_exchange_with_it():
    (exchange,) = lane(Names(kind="classic", bulkheads=2), ORDERS, 37_000, expires_ms=600_000).exchanges

    assert exchange.kind == "fanout"
    assert exchange.auto_delete
