"""What is on the broker is API: every name and argument stands here as a literal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlx_retry.broker.starts import marks_of
from celery_dlx_retry.core.backoff import MAX_DELAY_MS
from celery_dlx_retry.core.settings import Settings
from celery_dlx_retry.core.topology import (
    BindingSpec,
    ExchangeSpec,
    Names,
    QueueSpec,
    Topology,
    WorkQueue,
    around,
    foundation,
    lane,
)
from celery_dlx_retry.errors import InvalidSetting

NAMES = Names()
KINDS = ("classic", "quorum")


def test_the_names_of_version_1():
    names = Names(prefix="shop", dead_letter_queue="{queue}.dead")

    assert names.lane("classic", 1_000) == "shop.v1.wait.classic.000000001000"
    assert names.lane("quorum", 315_360_000_000) == "shop.v1.wait.quorum.315360000000"
    assert names.back("classic") == "shop.v1.return.classic"
    assert names.back("quorum") == "shop.v1.return.quorum"
    assert names.orphans("classic") == "shop.v1.orphans.classic"
    assert names.orphans("quorum") == "shop.v1.orphans.quorum"
    assert names.dead() == "shop.v1.dead"
    assert names.starts("0a1b2c") == "shop.v1.starts.0a1b2c"
    assert names.dead_letters("orders") == "orders.dead"


def test_a_classic_lane_of_version_1():
    assert lane(NAMES, "classic", 1_000) == Topology(
        exchanges=(ExchangeSpec(name="dlx.v1.wait.classic.000000001000", kind="fanout"),),
        queues=(
            QueueSpec(
                name="dlx.v1.wait.classic.000000001000",
                arguments=(
                    ("x-queue-type", "classic"),
                    ("x-message-ttl", 1_000),
                    ("x-dead-letter-exchange", "dlx.v1.return.classic"),
                ),
            ),
        ),
        bindings=(
            BindingSpec(
                exchange="dlx.v1.wait.classic.000000001000", queue="dlx.v1.wait.classic.000000001000", routing_key=""
            ),
        ),
    )


def test_a_quorum_lane_of_version_1():
    assert lane(NAMES, "quorum", 37) == Topology(
        exchanges=(ExchangeSpec(name="dlx.v1.wait.quorum.000000000037", kind="fanout"),),
        queues=(
            QueueSpec(
                name="dlx.v1.wait.quorum.000000000037",
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
                exchange="dlx.v1.wait.quorum.000000000037", queue="dlx.v1.wait.quorum.000000000037", routing_key=""
            ),
        ),
    )


def test_the_names_of_lanes_that_hold_so_many():
    names = Names.of(Settings(prefix="shop", max_waiting=1_000))

    assert names.lane("classic", 1_000) == "shop.v1.wait.classic.max1000.000000001000"
    assert names.lane("quorum", 37) == "shop.v1.wait.quorum.max1000.000000000037"
    assert names.back("classic") == Names(prefix="shop").back("classic")
    assert names.dead_letters("orders") == "orders.dead"


@pytest.mark.parametrize("kind", KINDS)
def test_a_lane_that_holds_so_many_is_the_same_but_for_that(kind):
    (plain,) = lane(NAMES, kind, 1_000).queues
    (limited,) = lane(Names(max_waiting=7), kind, 1_000).queues

    assert limited.name == f"dlx.v1.wait.{kind}.max7.000000001000"
    assert dict(limited.arguments) == {**dict(plain.arguments), "x-overflow": "reject-publish", "x-max-length": 7}
    assert len(dict(limited.arguments)) == len(limited.arguments)


def test_the_foundation_of_version_1():
    assert foundation(NAMES, ["quorum", "classic", "quorum"]) == Topology(
        exchanges=(
            ExchangeSpec(name="dlx.v1.dead", kind="direct"),
            ExchangeSpec(name="dlx.v1.orphans.classic", kind="fanout"),
            ExchangeSpec(
                name="dlx.v1.return.classic",
                kind="direct",
                arguments=(("alternate-exchange", "dlx.v1.orphans.classic"),),
            ),
            ExchangeSpec(name="dlx.v1.orphans.quorum", kind="fanout"),
            ExchangeSpec(
                name="dlx.v1.return.quorum",
                kind="direct",
                arguments=(("alternate-exchange", "dlx.v1.orphans.quorum"),),
            ),
        ),
        queues=(
            QueueSpec(name="dlx.v1.orphans.classic", arguments=(("x-queue-type", "classic"),)),
            QueueSpec(
                name="dlx.v1.orphans.quorum",
                arguments=(("x-queue-type", "quorum"), ("x-delivery-limit", 1_000_000_000)),
            ),
        ),
        bindings=(
            BindingSpec(exchange="dlx.v1.orphans.classic", queue="dlx.v1.orphans.classic", routing_key=""),
            BindingSpec(exchange="dlx.v1.orphans.quorum", queue="dlx.v1.orphans.quorum", routing_key=""),
        ),
    )


def test_the_foundation_of_one_type_has_nothing_of_the_other():
    topology = foundation(NAMES, ["classic"])

    assert "quorum" not in repr(topology)
    assert topology | foundation(NAMES, ["quorum"]) == foundation(NAMES, ["classic", "quorum"])


def test_around_a_classic_work_queue_of_version_1():
    assert around(NAMES, WorkQueue(name="orders")) == Topology(
        queues=(QueueSpec(name="orders.dead", arguments=(("x-queue-type", "classic"),)),),
        bindings=(
            BindingSpec(exchange="dlx.v1.return.classic", queue="orders", routing_key="orders"),
            BindingSpec(exchange="dlx.v1.dead", queue="orders.dead", routing_key="orders"),
        ),
    )


def test_around_a_quorum_work_queue_of_version_1():
    assert around(NAMES, WorkQueue(name="orders", kind="quorum")) == Topology(
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
    copy = WorkQueue(name="bcast.7d1f", family="news")

    assert around(NAMES, copy) == Topology(
        queues=(QueueSpec(name="news.dead", arguments=(("x-queue-type", "classic"),)),),
        bindings=(
            BindingSpec(exchange="dlx.v1.return.classic", queue="bcast.7d1f", routing_key="bcast.7d1f"),
            BindingSpec(exchange="dlx.v1.dead", queue="news.dead", routing_key="news"),
        ),
    )


def test_all_copies_of_a_broadcast_share_one_dead_letter_queue():
    first, second = WorkQueue(name="bcast.1", family="news"), WorkQueue(name="bcast.2", family="news")

    both = around(NAMES, first) | around(NAMES, second)

    assert [queue.name for queue in both.queues] == ["news.dead"]
    assert len(both.bindings) == 3


def test_the_marks_of_a_suspect_message_of_version_1():
    assert marks_of(NAMES, "7b1c") == QueueSpec(
        name="dlx.v1.starts.7c43167f762756b0dccbcef2b4441c0f",
        arguments=(("x-queue-type", "classic"), ("x-expires", 86_400_000)),
    )


def test_a_queue_without_a_family_is_its_own():
    assert WorkQueue(name="orders").family == "orders"


def test_the_queues_know_whether_they_are_quorum():
    assert [lane(NAMES, kind, 1).queues[0].is_quorum for kind in KINDS] == [False, True]


def test_the_settings_lead_to_the_names():
    names = Names.of(Settings(prefix="shop", dead_letter_queue="dead-{queue}"))

    assert names == Names(prefix="shop", dead_letter_queue="dead-{queue}")
    assert names.dead_letters("orders") == "dead-orders"


def test_two_prefixes_share_nothing_but_the_dead_letter_queue():
    def all_of(prefix):
        names = Names(prefix=prefix)
        return foundation(names, KINDS) | lane(names, "classic", 1) | around(names, WorkQueue(name="orders"))

    ours, theirs = all_of("a"), all_of("b")

    assert not set(ours.exchanges) & set(theirs.exchanges)
    assert not set(ours.bindings) & set(theirs.bindings)
    assert [queue.name for queue in set(ours.queues) & set(theirs.queues)] == ["orders.dead"]


def test_every_name_fits_an_amqp_short_string_for_the_longest_prefix_delay_and_queue():
    names = Names.of(Settings(prefix="p" * 100))
    queue = WorkQueue(name="q" * 250, kind="classic")

    whole = foundation(names, KINDS) | around(names, queue)
    for kind in KINDS:
        whole |= lane(names, kind, MAX_DELAY_MS)

    assert len(names.lane("classic", MAX_DELAY_MS)) == 129
    assert len(Names.of(Settings(prefix="p" * 100, max_waiting=999_999_999)).lane("classic", MAX_DELAY_MS)) == 142
    named = [spec.name for spec in whole.exchanges + whole.queues]
    assert max(len(name.encode()) for name in named) == 255
    assert max(len(binding.routing_key.encode()) for binding in whole.bindings) == 250


def test_lanes_sort_by_their_length_up_to_the_longest():
    names = [NAMES.lane("classic", delay_ms) for delay_ms in (1, 99, 1_000, 20_000, MAX_DELAY_MS)]

    assert names == sorted(names)
    assert len({len(name) for name in names}) == 1


@pytest.mark.parametrize("queue", ["q" * 251, "ä" * 126])
def test_a_dead_letter_queue_whose_name_does_not_fit_is_refused_before_the_broker_is_asked(queue):
    with pytest.raises(InvalidSetting) as caught:
        around(NAMES, WorkQueue(name=queue))

    assert str(caught.value) == (
        "dlx_dead_letter_queue is '{queue}.dead'; it must be a pattern that makes another name, of at most 255 bytes, "
        f"of '{queue}'."
    )


def test_a_work_queue_is_never_its_own_dead_letter_queue():
    with pytest.raises(InvalidSetting, match=r"^dlx_dead_letter_queue is 'celery'; .* of 'celery'\.$"):
        around(Names(dead_letter_queue="celery"), WorkQueue(name="celery"))


def test_a_pattern_without_the_queue_makes_one_dead_letter_queue_for_all():
    names = Names(dead_letter_queue="dead")

    both = around(names, WorkQueue(name="a")) | around(names, WorkQueue(name="b"))

    assert [queue.name for queue in both.queues] == ["dead"]
    assert [(each.queue, each.routing_key) for each in both.bindings if each.exchange == "dlx.v1.dead"] == [
        ("dead", "a"),
        ("dead", "b"),
    ]


def test_one_dead_letter_queue_for_both_types_is_a_mistake_in_the_settings():
    names = Names(dead_letter_queue="dead")

    with pytest.raises(InvalidSetting) as caught:
        around(names, WorkQueue(name="a")) | around(names, WorkQueue(name="b", kind="quorum"))

    assert str(caught.value) == (
        "dlx_dead_letter_queue is 'dead'; it must be another name, or dlx_queue_type one type: "
        "classic and quorum work queues would share it."
    )


parts = st.one_of(
    st.builds(lambda kind, delay_ms: lane(NAMES, kind, delay_ms), st.sampled_from(KINDS), st.integers(1, 5)),
    st.builds(lambda kinds: foundation(NAMES, kinds), st.sets(st.sampled_from(KINDS))),
    st.builds(lambda name: around(NAMES, WorkQueue(name=name)), st.sampled_from("abc")),
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
        assert set(getattr(union, kind)) == {spec for part in (a, b, c) for spec in getattr(part, kind)}


def test_an_expiring_lane_of_version_1():
    assert lane(NAMES, "classic", 37_000, expires_ms=600_000) == Topology(
        exchanges=(
            ExchangeSpec(name="dlx.v1.wait.classic.000000037000.000000637000", kind="fanout", auto_delete=True),
        ),
        queues=(
            QueueSpec(
                name="dlx.v1.wait.classic.000000037000.000000637000",
                arguments=(
                    ("x-queue-type", "classic"),
                    ("x-message-ttl", 37_000),
                    ("x-dead-letter-exchange", "dlx.v1.return.classic"),
                    ("x-expires", 637_000),
                ),
            ),
        ),
        bindings=(
            BindingSpec(
                exchange="dlx.v1.wait.classic.000000037000.000000637000",
                queue="dlx.v1.wait.classic.000000037000.000000637000",
            ),
        ),
    )
