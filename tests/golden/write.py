"""Writes a new golden snapshot with today's code:

    python -m tests.golden.write <number>

ADD one, with the next number, when something that is stored has changed: when `RECORD_FORMAT`,
`MANIFEST_FORMAT`, `INDEX_FORMAT` or a stage's `state_format` grows, when an operator or a partial
keeps its state in another form, and when the pipeline here gained a stage (of a new kind, or with a
new partial). NEVER REPLACE one: each stands for stores that exist, and the tests restore them all.
If today's code cannot go on from an older file, that is the bug; migrate the state as it is read.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from dagster_jet import Jet, JobConfig
from tests.golden.pipeline import JOB, PARTITION_COUNT, golden_pipeline, outputs
from tests.golden.snapshot import FOLDER, GoldenSnapshot, take
from tests.integration.child import SPARK
from tests.integration.test_operators import events
from tests.unit.operators import naive

_EPOCHS = 3


def write(number: int) -> Path:
    """
    Raises:
        FileExistsError: there is one of this number.
    """
    path = FOLDER / f"snapshot-{number}.json"
    if path.exists():
        raise FileExistsError(f"{path.name} is never replaced: add one with the next number")
    cloudpickle.register_pickle_by_value(naive)
    rows, others = (batches(f"golden {side} {number}", _EPOCHS) for side in ("rows", "others"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        pipeline = golden_pipeline(rows, others, out)
        with open_jet(Path(folder)) as jet:
            # A snapshot per epoch: chains of chunk sets.
            config = JobConfig(parallelism=2, snapshot_interval="0 ms", retained_snapshots=1)
            jet.run(pipeline, config, until="drained")
            golden = GoldenSnapshot(rows, others, outputs(out), *take(jet.store, JOB))
        golden.write(path)
    return path


def batches(seed: str, count: int, first: int = 0) -> list[list[dict[str, Any]]]:
    """Rows with the columns that every aggregate finds its own in. No NaN: JSON has none."""
    rng = random.Random(seed)
    found = []
    for batch in events(seed, first + count, rows=12)[first:]:
        for row in batch:
            v = row["v"] = rng.choice([n for n in range(40) if n % 5 != 4])
            row.update(x=naive.as_float(v), s=str(v))
        found.append(batch)
    return found


def open_jet(folder: Path) -> Jet:
    return Jet(
        store=[f"file://{folder}/store"],
        backup_count=0,
        partition_count=PARTITION_COUNT,
        spark=SPARK,
        work_dir=folder / "work",
    )


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    print(write(int(sys.argv[1])))
