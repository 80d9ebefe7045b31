"""The one screen fits any terminal: columns go and texts get shorter, and numbers and ids are whole."""

from __future__ import annotations

import pytest

from celery_dlx_retry.broker.queue_status import QueueState
from celery_dlx_retry.cli.screen import Column, fitted, group_page, screen
from celery_dlx_retry.doctor.rules import Finding
from celery_dlx_retry.operations.overview import GroupLine, Overview, QueueLine

NOW_MS = 1_790_000_000_000
QUEUE = QueueLine(
    queue="orders.of.the.whole.wide.world", ready=1_234_567, running=16, waiting=2_700, next_ms=NOW_MS + 500_000,
    dead=8_000, dead_lately=123, workers=12,
)  # fmt: skip
MISSING = QueueLine(queue="payments", exists=False, waiting=2_700, dead=4)
GROUP = GroupLine(
    group="3d666e04", count=7_654_321, tasks={"shop.tasks.charge_the_card_of_the_customer": 3, "shop.refund": 1},
    queues={"orders": 4}, reasons={"exhausted": 4}, error="requests.exceptions.ConnectionError",
    where="shop/tasks.py:charge_the_card", first_ms=NOW_MS - 7_200_000, last_ms=NOW_MS - 120_000, trend="▁▂▃▄▅▆▇█▇▆▅▄",
    sample_id="6f44607b-fec2-4443-ba01-a6af7d4259e6", sample_error="the bank answers 503",
)  # fmt: skip
LANE = QueueState(
    role="wait", queue="dlx.v2.wait.quorum.000000600000.orders", type="quorum", exists=True, ready=2_700, consumers=0,
    next_ms=NOW_MS + 500_000,
)  # fmt: skip


def finding(fact, severity="error"):
    return Finding(code="orphans", severity=severity, fact=fact, consequence="", cure="")


def an_overview(*, queues=(QUEUE, MISSING), groups=(GROUP,) * 30, problems=(), lanes=(LANE,)):
    return Overview(
        read_at_ms=NOW_MS, broker="RabbitMQ 4.3.6", problems=tuple(problems), queues=tuple(queues), orphans=3,
        lanes=tuple(lanes), groups=groups,
    )  # fmt: skip


def texts(lines):
    return [line.text for line in lines]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 10), (100, 30), (160, 50)])
def test_the_screen_fits_with_whole_numbers_and_ids(width, height):
    problems = [finding(f"The work queue 'payments{number}' does not exist, and 2700 tasks wait for it. " * 2)
                for number in range(9)]  # fmt: skip

    shown = texts(screen(an_overview(problems=problems), width=width, height=height))

    assert max(map(len, shown)) <= width
    assert len(shown) <= max(height, 17)
    words = " ".join(shown).split()
    assert {"1234567", "2700", "8000", "7654321", "3d666e04"} <= set(words)


@pytest.mark.parametrize("width", [80, 160])
def test_what_is_wrong_comes_first_then_queues_then_groups(width):
    lines = screen(an_overview(problems=[finding("3 orphans: tasks without a work queue.")]), width=width)

    assert (lines[0].text, lines[0].colour) == ("3 orphans: tasks without a work queue.", "red")
    heads = [number for number, line in enumerate(lines) if line.text.startswith(("work queue ", "group "))]
    assert heads == sorted(heads)
    assert [line.colour for line in lines if line.text.startswith("payments")] == ["red"]
    assert not any(line.text.startswith("dlx.v2.wait") for line in lines)


def test_a_wide_screen_has_all_columns_and_a_narrow_one_the_needed_ones():
    wide, narrow = ("\n".join(texts(screen(an_overview(), width=width))) for width in (220, 80))

    for name in ("work queue", "ready", "waiting", "dead", "group", "count", "task", "error", "last seen"):
        assert name in wide
        assert name in narrow
    assert {"where", "trend", "workers"} <= set(wide.split())
    assert "where" not in narrow.split()


def test_times_are_relative_and_what_is_not_known_is_a_dash():
    shown = texts(screen(an_overview(), width=160))
    (queue,) = (line.split() for line in shown if line.startswith("orders"))
    (missing,) = (line.split() for line in shown if line.startswith("payments"))

    assert queue == ["orders.of.the.whole.wide.world", "1234567", "16", "2700", "in", "8", "min", "8000", "123", "12"]
    assert missing == ["payments", "missing", "-", "2700", "-", "4", "-", "0"]
    assert "2 min ago" in "\n".join(shown)


def test_nothing_wrong_is_said_and_lanes_are_shown_if_asked_for():
    shown = screen(an_overview(), width=100, lanes=True)

    assert (shown[0].text, shown[0].colour) == ("Nothing is wrong now.", "green")
    assert any(line.text.startswith(LANE.queue) and line.text.endswith("in 8 min") for line in shown)
    assert shown[-1].text.startswith("1234567 ready, 2700 waiting in 1 lane, 8004 dead, 3 orphans; RabbitMQ 4.3.6, ")


def test_many_queues_and_groups_say_how_many_more_there_are():
    queues = [QueueLine(queue=f"queue-{number:02}") for number in range(50)]

    shown = texts(screen(an_overview(queues=queues), width=80, height=24))

    assert next(line for line in shown if line.startswith("and ")).endswith(" more work queues")
    assert shown[-3].endswith(" more groups")
    assert len(shown) <= 24


def test_text_of_a_message_steers_no_terminal():
    group = GroupLine(
        **{
            name: getattr(GROUP, name)
            for name in GROUP.__slots__
            if name not in {"error", "sample_error", "sample_id", "tasks"}
        },
        error="\x1b[2J\n", sample_error="\x1b[2J\n", sample_id="\r", tasks={"\x9b2J": 1},
    )  # fmt: skip

    for lines in (screen(an_overview(groups=(group,)), width=80), group_page(group, width=80, now_ms=NOW_MS)):
        assert all(line.isprintable() for line in texts(lines))


def test_the_page_of_a_group_has_its_whole_ids_and_the_next_commands():
    shown = "\n".join(texts(group_page(GROUP, width=80, now_ms=NOW_MS)))

    assert f"dlx dead show {GROUP.sample_id}\n" in shown
    assert "dlx dead replay --group 3d666e04 --canary 1" in shown
    assert "shop.tasks.charge_the_card_of_the_customer: 3" in shown
    assert "2 min ago" in " ".join(shown.split())


def test_columns_are_dropped_in_their_order_and_only_if_needed():
    columns = (Column(name="id"), Column(name="text", least=4), Column(name="a", drop=1), Column(name="b", drop=2))
    row = ("12345678", "abcdefgh", "aaaa", "bbbb")

    assert fitted(columns, [row], 40)[1] == "12345678  abcdefgh  aaaa  bbbb"
    assert fitted(columns, [row], 28)[1] == "12345678  abcd…  aaaa  bbbb".replace("abcd…", "abcde…")
    assert fitted(columns, [row], 20)[1] == "12345678  abc…  aaaa"
    assert fitted(columns, [row], 14)[1] == "12345678  abc…"
