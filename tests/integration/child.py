"""The crash suite's pipeline, and the process that is killed while it runs it.

    python child.py <world folder> '{"until": "completed", "config": {...}, "start": {...}}'

The child is the driver. It starts a JVM of its own, or, where the environment names the test
session's gateway, attaches to that one as to a cluster that outlives it: half the time of a crash
test would be JVM start. Then what the dead driver's tasks still do meets its successor.

Two sources merged, a windowed aggregate, a second stateful stage behind it, and three sinks of
three formats that must be cut at one point.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dagster_jet import Jet, JobConfig, Pipeline, Stage, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.connectors.kafka import ranges
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import EpochCompleted, JobEvent
from dagster_jet.jobs import wiring
from dagster_jet.snapshot.job_state import CoordinatorConfig
from dagster_jet.store.members import lmdb_environment
from dagster_jet.system import failpoint

JOB = "crash"
SCHEMA = "k string, ts long, v long"
WINDOW_MS, ROLLUP_MS, BIG = 1000, 3000, 50
SPARK = {
    "spark.master": os.environ.get("JET_TEST_MASTER", "local[2]"),
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
}
CONFIG: dict[str, Any] = {
    "parallelism": 2,
    "snapshot_interval": "0 ms",
    "max_items_per_epoch": 1,  # one file of each source per epoch
}


def windows_over_windows(
    p: Pipeline, folder: Path | str, **place: Any
) -> tuple[Stage, Stage, Stage]:
    """Two sources merged, their rows counted by key and window, the counts by longer ones.

    `place`: what a source is told of the place that `folder` is in."""
    left, right = (
        p.read_from(
            sources.files(f"{folder}/in/{name}", format="json", schema=SCHEMA, **place), name=name
        ).with_timestamps("ts", allowed_lag="500 ms", idle_timeout="0 ms")
        for name in ("left", "right")
    )
    rows = left.merge(right)
    counts = (
        rows.group_by("k")
        .window(windows.tumbling(f"{WINDOW_MS} ms"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    rollup = (
        counts.group_by("k")
        .window(windows.tumbling(f"{ROLLUP_MS} ms"))
        .aggregate(n=agg.sum("n"), total=agg.sum("total"), name="rollup")
    )
    return rows, counts, rollup


def crash_pipeline(
    folder: Path | str,
    *,
    job: str = JOB,
    out: str = "out",
    changed: Callable[[Stage], Stage] = lambda rows: rows,
    **place: Any,
) -> Pipeline:
    """`changed`: what is done to the rows of one of the sinks before they are chosen."""
    p, out = Pipeline(job), f"{folder}/{out}"
    rows, counts, rollup = windows_over_windows(p, folder, **place)
    counts.write_to(sinks.files(f"{out}/counts", format="json", **place), name="counts_out")
    rollup.write_to(sinks.files(f"{out}/rollup", format="parquet", **place), name="rollup_out")
    changed(rows).filter(f"v >= {BIG}").write_to(
        sinks.files(f"{out}/big", format="csv", **place), name="big_out"
    )
    return p


def open_jet(
    folder: Path, members: Sequence[str] = "abc", backup_count: int = 1, **settings: Any
) -> Jet:
    """`members`: URLs, or names of folders in the world's own. `settings`: of `Jet`."""
    (folder / "store").mkdir(exist_ok=True)
    urls = [m if "://" in m else f"file://{folder}/store/{m}" for m in members]
    return Jet(
        store=urls,
        backup_count=backup_count,
        spark=SPARK,
        work_dir=folder / "work",
        **{"lease_ttl": "2 seconds", **settings},
    )


def attach() -> None:
    """Makes the JVM that ``PYSPARK_GATEWAY_PORT`` names this process's Spark."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    gateway = launch_gateway()
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java_context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(running)
    context = SparkContext(
        gateway=gateway, jsc=java_context, conf=SparkConf(_jconf=java_context.getConf())
    )
    # The JVM's environment is another process's: hand our own to our workers. What they do at fail
    # points comes with each job: drivers of the same environment share workers.
    context.environment.update(
        {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("JET_", "AWS_")) and not name.startswith("JET_FAIL_POINT")
        }
    )
    SparkSession(context)


def see(event: JobEvent, order: dict[str, Any]) -> None:
    print(event, flush=True)
    if isinstance(event, EpochCompleted) and event.epoch_id == order.get("kill_jvm_after"):
        from pyspark import SparkContext

        del order["kill_jvm_after"]
        SparkContext._gateway.proc.kill()


@contextmanager
def outside_of_lmdb() -> Iterator[None]:
    """No thread is inside a store's write transaction while the process is frozen.

    LMDB has one writer per folder: while a process is stopped (not killed) inside a write, the
    writes of others wait and then fail. docs/operations.md says so; it is not what is tested here.
    """
    lmdb_environment._before_fork()
    try:
        yield
    finally:
        lmdb_environment._after_fork()


def main(
    folder: Path, order: dict[str, Any], pipeline: Callable[[Path], Pipeline] = crash_pipeline
) -> int:
    failpoint.around_freeze = outside_of_lmdb
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        attach()
    SPARK["spark.master"] = order.get("master", SPARK["spark.master"])
    SPARK.update(order.get("spark", {}))
    if order.get("sharded"):
        epoch_driver.FEW_GROUPS = -1  # every shard is a task of its own, however small the epoch
    if order.get("many_tasks"):
        epoch_driver.SPARED_ROWS, ranges.ROWS_PER_TASK = 0, 1  # as many as Spark's parallelism
    if "snapshot_id_block" in order:
        block = order["snapshot_id_block"]
        config = partial(CoordinatorConfig, snapshot_id_block=block)
        wiring.CoordinatorConfig = config  # type: ignore[attr-defined]
    with open_jet(folder, **order.get("jet", {})) as jet:
        try:
            result = jet.run(
                pipeline(folder),
                JobConfig(**{**CONFIG, **order.get("config", {})}),
                until=order.get("until", "completed"),
                on_event=lambda event: see(event, order),
                **order.get("start", {}),
            )
        except Exception as error:
            print(f"ended by {type(error).__name__}: {error}", flush=True)
            return 3
    print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
