"""One engine, once, by itself: `python -m benchmarks.lake_race.engine order.json`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.lake_race.order import Order


def main() -> None:
    order = Order.read(Path(sys.argv[1]))
    if order.engine == "peer":
        from benchmarks.lake_race.peer import run
    elif order.engine == "flink":
        from benchmarks.lake_race.flink import run
    else:
        from benchmarks.lake_race.ours import run
    run(order).write(order.folder)


if __name__ == "__main__":
    main()
