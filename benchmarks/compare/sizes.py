"""How much is measured: the full run, the quick one, and the smallest that touches everything."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.compare.contenders import ALL, CELERYS, CLASSIC, COUNTDOWN, FLOOR, QUORUM, Contender


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The defaults are the full run's."""

    contenders: tuple[Contender, ...] = ALL
    #: Those of them that are in all other measurements than throughput; they run tasks.
    celerys: tuple[Contender, ...] = CELERYS
    #: How often each pool is measured.
    pools: tuple[tuple[str, int], ...] = (("prefork", 2), ("solo", 1), ("threads", 1))
    #: Tasks in circulation, runs before the window, and its seconds.
    circulating: int = 3_000
    warm: int = 300
    window_seconds: float = 3.0
    depths: tuple[int, ...] = (1_000, 10_000, 100_000)
    probes_at: int = 10_000
    #: New tasks in a round, and rounds without and with those that wait.
    fresh: int = 50
    rounds: int = 2
    retries: int = 500
    late: int = 80
    crowd: int = 50_000
    crowd_seconds: int = 20
    starts: int = 2
    tasks: int = 200
    work_queues: tuple[int, ...] = (1, 50)
    #: Messages in a second, where it is measured what each step costs the broker.
    steps: int = 500
    wire: int = 100
    #: Nothing new is begun after this; the longest takes four.
    minutes: float = 11.0

    def depths_of(self, contender: Contender) -> tuple[int, ...]:
        """How many wait, in turn."""
        return tuple(depth for depth in self.depths if depth <= contender.share * self.depths[-1])

    def crowd_seconds_of(self, contender: Contender) -> int:
        """How long those wait that expire at the same time."""
        return contender.patience * self.crowd_seconds


FULL = Sizes()
#: How the cost of a retry grows up to a million that wait; ours alone.
DEEP = Sizes(celerys=(CLASSIC, QUORUM), depths=(1_000, 10_000, 100_000, 1_000_000), minutes=30)
QUICK = Sizes(
    contenders=(*CELERYS, FLOOR),
    celerys=(COUNTDOWN, CLASSIC),
    pools=(("prefork", 1),),
    circulating=1_500, warm=200, window_seconds=1.5,
    depths=(1_000, 3_000), probes_at=1_000, fresh=50, rounds=1, retries=150,
    late=20, crowd=2_000, crowd_seconds=3,
    starts=1, work_queues=(), wire=0, steps=0,
    minutes=1.8,
)  # fmt: skip
TINY = Sizes(
    contenders=(CLASSIC, FLOOR),
    celerys=(CLASSIC,),
    pools=(("solo", 1),),
    circulating=50, warm=10, window_seconds=1.5,  # each comes round once a second
    depths=(200,), probes_at=200, fresh=3, rounds=2, retries=10,
    late=2, crowd=20, crowd_seconds=1,
    starts=1, tasks=3, work_queues=(), wire=0, steps=50,
    minutes=1.0,
)  # fmt: skip
