"""Measure the ways for a retry to wait, side by side, on a RabbitMQ of our own that is gone afterwards.

python -m benchmarks.compare             # under 15 minutes on two cores
python -m benchmarks.compare --quick     # under two
python -m benchmarks.compare --deep --only waiting   # up to a million that wait, of ours alone
DLX_BENCH_ALSO_ROOT=<root filesystem with another RabbitMQ> adds the latency of new tasks on that one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.compare import sizes
from benchmarks.compare.run import PARTS, run
from celery_dlx_retry.errors import DLXError


def main() -> None:
    """Writes figures.json and figures.png, and shows the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="QUICK", default="FULL")
    size.add_argument("--tiny", dest="size", action="store_const", const="TINY", help="only to see that it works")
    size.add_argument("--deep", dest="size", action="store_const", const="DEEP", help="a million waiting; ours alone")
    size.add_argument("--from", dest="source", type=Path, help="measure nothing: show the figures of this JSON file")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part alone; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of figures.json and figures.png")
    parser.add_argument("--page", type=Path, help="write the tables into this page, JSON and plot beside it")
    options = parser.parse_args()
    try:
        from benchmarks.compare import plot, report  # noqa: PLC0415 - to say what to install if they are missing
    except ImportError as problem:
        raise SystemExit(f"{problem}: pip install 'celery-dlx-retry[bench]'") from problem
    text = options.source.read_text(encoding="utf-8") if options.source else measured(options)
    found = json.loads(text)
    options.out.mkdir(parents=True, exist_ok=True)
    places = [options.out / "figures.json", *([options.page.with_suffix(".json")] if options.page else [])]
    for place in places:
        place.write_text(text, encoding="utf-8")
        plot.draw(found, place.with_suffix(".png"))
    if options.page:
        report.write_into(options.page, found)
    report.show(found)
    print("written:", *places, *(place.with_suffix(".png") for place in places))


def measured(options: argparse.Namespace) -> str:
    """The figures of a new run, as JSON."""
    command = "make bench" if options.page else "python -m benchmarks.compare"
    try:
        found = run(getattr(sizes, options.size), tuple(options.only or PARTS), command=command)
    except DLXError as problem:
        raise SystemExit(str(problem)) from problem
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    main()
