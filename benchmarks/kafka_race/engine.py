"""One engine, once, by itself: `python -m benchmarks.kafka_race.engine order.json`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.kafka_race.order import Order


def main() -> None:
    order = Order.read(Path(sys.argv[1]))
    if order.engine == "ours":
        from benchmarks.kafka_race.ours import run
    else:
        from benchmarks.kafka_race.peer import run
    run(order).write(order.folder)


if __name__ == "__main__":
    main()
