"""The crash suite's pipeline with large epochs, on executors of a cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from . import child
from .child import crash_pipeline
from .differential import FEW_GROUPS
from .other_spark import CLUSTER
from .several_tasks import FEW_ROWS, large_from_few_rows_on
from .world import World, random_rows, write_input

FILES, ROWS, KEYS = 4, 12_000, 200_000
"""Sizes of each of two sources. One file of each makes an epoch, with more rows and keys than one
task takes."""
assert max(FEW_ROWS, FEW_GROUPS) < 2 * ROWS


def main(folder: Path, order: dict[str, Any]) -> int:
    child.SPARK |= {"spark.executor.memory": "768m"}
    with large_from_few_rows_on():
        return child.main(folder, order, partial(crash_pipeline, shared=True))


class LargeWorld(World):
    """All of its drivers have JVMs of their own: executors belong to one driver."""

    driver = staticmethod(main)
    patience_s = 600

    def fill(self, *_: int, **__: int) -> LargeWorld:
        for number in range(FILES):
            for side, name in enumerate(("left", "right")):
                rows = random_rows(number, ROWS, side, KEYS)
                write_input(self.folder / "in" / name, number, rows)
        return self

    def kill(self, rules: str) -> None:
        self.run_child(rules, own_jvm=True, master=CLUSTER)

    def finish(self) -> str:
        """Finishes with another number of shards than before."""
        return self.finish_child(master=CLUSTER, config={"parallelism": 3})
