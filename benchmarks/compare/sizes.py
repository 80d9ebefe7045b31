"""How much is measured: the full run, the quick one, and the smallest that touches everything."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.compare.contenders import ALL, CELERYS, CLASSIC, COUNTDOWN, FLOOR, FLOORS, NATIVE, QUORUM, Contender


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The defaults are the full run's."""

    contenders: tuple[Contender, ...] = ALL
    #: Those of them that are in all other measurements than throughput; they run tasks.
    celerys: tuple[Contender, ...] = CELERYS
    #: Where everybody's throughput is measured, and how often; and the others, once.
    pool: str = "prefork"
    turns: int = 3
    pools: tuple[str, ...] = ("solo", "threads")
    #: Tasks in circulation, runs before the window, and its seconds.
    circulating: int = 3_000
    warm: int = 300
    window_seconds: float = 2.0
    depths: tuple[int, ...] = (1_000, 10_000, 100_000)
    probes_at: int = 10_000
    #: New tasks in a round, and rounds without and with those that wait.
    fresh: int = 40
    rounds: int = 3
    #: Further retries while others wait, so many at a time, and how many times.
    retries: int = 150
    batches: int = 2
    late: int = 80
    crowd: int = 50_000
    crowd_seconds: int = 15
    starts: int = 2
    tasks: int = 200
    work_queues: tuple[int, ...] = (1, 50)
    growths: int = 2
    #: Messages in a second, where it is measured what each step costs the broker.
    steps: int = 500
    wire: int = 100
    #: Nothing is begun that is likely to end later.
    minutes: float = 14.7

    def depths_of(self, contender: Contender) -> tuple[int, ...]:
        """How many wait, in turn."""
        return tuple(depth for depth in self.depths if depth <= contender.share * self.depths[-1])

    def crowd_seconds_of(self, contender: Contender) -> int:
        """How long those wait that expire at the same time."""
        return contender.patience * self.crowd_seconds

    def rounds_of(self, contender: Contender) -> int:
        """How often 10,000 are put to wait; it takes the broker long to put them on Celery's ladder."""
        return 1 if contender is NATIVE else self.rounds

    def fresh_seconds(self, contender: Contender) -> float:
        """About how long it takes to put them to wait, and to send new tasks beside them."""
        return 10 + self.rounds_of(contender) * (3 + self.probes_at / (500 if contender is NATIVE else 3_000))

    def waiting_seconds(self, contender: Contender) -> float:
        """About how long all depths take, and the recovery."""
        return 10 + self.depths_of(contender)[-1] / (1_200 if contender is COUNTDOWN else 2_500)

    def lateness_seconds(self, contender: Contender) -> float:
        """About how long it takes until all of a crowd have come back."""
        return 10 + self.crowd_seconds_of(contender) + self.crowd / (500 if contender is NATIVE else 2_500)


FULL = Sizes()
#: How the cost of a retry grows up to a million that wait; ours alone.
DEEP = Sizes(celerys=(CLASSIC, QUORUM), depths=(1_000, 10_000, 100_000, 1_000_000), minutes=30)
QUICK = Sizes(
    contenders=(*CELERYS, *FLOORS),
    celerys=(COUNTDOWN, QUORUM),
    turns=1, pools=(),
    circulating=1_500, warm=200, window_seconds=1.5,
    depths=(1_000, 2_000), probes_at=1_000, fresh=30, rounds=1, retries=150, batches=1,
    late=10, crowd=1_000, crowd_seconds=2,
    starts=1, work_queues=(), wire=0, steps=0,
    minutes=1.85,
)  # fmt: skip
TINY = Sizes(
    contenders=(CLASSIC, FLOOR),
    celerys=(CLASSIC,),
    pool="solo", turns=1, pools=(),
    circulating=50, warm=10, window_seconds=1.5,  # each comes round once a second
    depths=(200,), probes_at=200, fresh=3, rounds=2, retries=10, batches=1,
    late=2, crowd=20, crowd_seconds=1,
    starts=1, tasks=3, work_queues=(), wire=0, steps=50,
    minutes=1.0,
)  # fmt: skip
