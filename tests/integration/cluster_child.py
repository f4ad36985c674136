"""A job on two executor JVMs, in a process of its own.

    python cluster_child.py <folder> <parallelism>

Windows over windows, sessions and a user's function with state, all fed by one source, so that
frames are shared and stages pass results on. A row with ``v`` = `DEADLY` makes the user's function
kill the executor it runs in, if that is the `VICTIM`, and take that machine's files with it.

Afterwards the placement of shards alone is put to the hardest case, in the same executors.

Prints, as its last line, where every shard of every execution had its runs.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa

import dagster_jet
from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import ExecutorLostError, MissingEnvironmentError
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionRestarting,
    ExecutionStarted,
    JobEvent,
    SnapshotCommitted,
)
from dagster_jet.operators.operator import PARTITION_COLUMN
from dagster_jet.spark.cluster.executors import executors, executors_with
from dagster_jet.spark.cluster.placement import Anchored
from dagster_jet.spark.cluster.sample_session import sample_session
from dagster_jet.spark.cluster.session import is_local
from dagster_jet.spark.tasks.barrier import executor_name

from . import wide_epochs
from .world import wait_until, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "cluster"
DEADLY = -1
VICTIM = "0"
"""Spark's number of the executor."""
WINDOW_MS, ROLLUP_MS, GAP_MS, LAG_MS = 1_000, 4_000, 150, 400
RATE, KEYS = 200, 7
"""Rows per second, and number of keys, in the job that gets another executor."""
DIE_AT_ONCE = 3
"""Executors of this job that die as soon as they have joined."""
PATIENCE_S, QUIET_S = 60.0, 3.0
SPARK = {
    "spark.master": "local-cluster[2,2,1024]",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
}


def pipeline(folder: Path) -> Pipeline:
    p = Pipeline(JOB)
    source = sources.files(
        f"{folder}/in", format="json", schema="k string, ts long, v long", shared=True
    )
    rows = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag=f"{LAG_MS} ms")
    by_key = rows.group_by("k")
    counts = by_key.window(windows.tumbling(f"{WINDOW_MS} ms")).aggregate(
        n=agg.count(), total=agg.sum("v"), name="counts"
    )
    rollup = (
        counts.group_by("k")
        .window(windows.tumbling(f"{ROLLUP_MS} ms"))
        .aggregate(n=agg.sum("n"), total=agg.sum("total"), name="rollup")
    )
    session = by_key.window(windows.session(f"{GAP_MS} ms")).aggregate(
        n=agg.count(), top=agg.max("v"), name="sessions"
    )

    def running_total(state: Any, row: dict[str, Any]) -> dict[str, Any]:
        if row["v"] == DEADLY and not (folder / "killed").exists():
            end_if_victim(folder)
        state.value += row["v"]
        return {"k": row["k"], "ts": row["ts"], "total": state.value}

    totals = by_key.map_stateful(
        running_total,
        create=int,
        output_schema="k string, ts long, total long",
        order="arrival",
        name="totals",
    )
    for name, stage in {
        "counts": counts,
        "rollup": rollup,
        "sessions": session,
        "totals": totals,
    }.items():
        stage.write_to(
            sinks.files(f"{folder}/out/{name}", format="json", shared=True), name=f"{name}_out"
        )
    return p


def this_executor() -> tuple[psutil.Process, str]:
    """The JVM of the executor that this worker belongs to, and its number in Spark."""
    jvm = psutil.Process(os.getppid()).parent()
    assert jvm is not None and "CoarseGrainedExecutorBackend" in " ".join(jvm.cmdline())
    return jvm, jvm.cmdline()[jvm.cmdline().index("--executor-id") + 1]


def end_if_victim(folder: Path) -> None:
    """The end of a machine, seen from inside: its JVM, its workers, its local files."""
    jvm, number = this_executor()
    if number != VICTIM:
        return
    try:
        with open(folder / "killed", "x", encoding="utf-8") as file:
            file.write(executor_name())
    except FileExistsError:
        return  # another of its tasks is about to end it
    jvm.suspend()  # no other task of it tells that its runs are gone
    for runs in (folder / "work").rglob(executor_name()):
        shutil.rmtree(runs)
    jvm.kill()
    time.sleep(60)  # the daemon that started this worker ends it


def lose_the_last_to_work(session: SparkSession, folder: Path) -> tuple[float, str]:
    """Kills an executor when all tasks but its own are done: nobody is left to fail.

    Spark goes by a table of executors then, and waits if the dead one, with tasks that had no core
    yet, comes before the living one: so it is the one with the lower number that dies.

    Returns:
        How many seconds the Spark job went on, and what the placement says.
    """
    folder.mkdir()
    placement = Anchored(session, 8)  # two times as many as there are cores

    def tell(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"number": [this_executor()[1]]})

    placement.place()
    numbers = [row.number for row in placement.shards().mapInArrow(tell, "number string").collect()]
    victim = min(numbers, key=int)
    others = sum(number != victim for number in numbers)
    assert others

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)  # from now on no shuffle file is missed
        jvm, number = this_executor()
        if number == victim:
            while len(list(folder.iterdir())) < others:
                time.sleep(0.05)
            time.sleep(1)  # until the driver knows that they are done
            jvm.kill()
            time.sleep(60)
        (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        yield pa.RecordBatch.from_pydict({"rows": [len(rows)]})

    source = session.range(100).selectExpr(f"cast(id as int) as {PARTITION_COLUMN}")
    began = time.monotonic()
    try:
        placement.by_shard(source).mapInArrow(work, "rows long").collect()
        placement.check()
    except Exception:  # of Spark; the placement knows what it stands for
        took_s = time.monotonic() - began
        try:
            placement.check()
        except ExecutorLostError as error:
            return took_s, str(error)
    finally:
        placement.close()
    raise AssertionError("the executor was not missed")


def lose_one_while_placing(session: SparkSession) -> tuple[float, str]:
    """Kills an executor before any shard is placed.

    Returns:
        How many seconds the placing went on, and what the placement says.
    """
    placement = Anchored(session, 8)
    kill_an_executor()
    began = time.monotonic()
    with suppress(Exception):  # of Spark
        placement.place()
    try:
        while time.monotonic() - began < PATIENCE_S:
            placement.check()
            time.sleep(0.1)
    except ExecutorLostError as error:
        return time.monotonic() - began, str(error)
    finally:
        placement.close()
    raise AssertionError("the executor was not missed")


def join_while_placing(session: SparkSession) -> tuple[int, bool]:
    """Places shards after a loss, while the executor that replaces the lost one joins.

    Returns:
        How many executors have shards, and whether the placement takes itself for outgrown.
    """
    while True:
        if len(executors(session)) == 3:  # the last one that was killed is replaced
            kill_an_executor()
            wait_until(lambda: len(executors(session)) < 3, "it is missed")
        placement = Anchored(session, 8)
        if len(executors(session)) < 3:
            break
        placement.close()  # it has joined already
    wait_until(lambda: len(executors(session)) == 3, "another executor joins")
    try:
        placement.place()
        homes = executors_with(session, placement.shards(), 8)
        # Without shards it gets warm first.
        until = time.monotonic() + (QUIET_S if len(homes) == 2 else PATIENCE_S)
        while time.monotonic() < until and not placement.is_outgrown:
            time.sleep(0.1)
        return len(homes), placement.is_outgrown
    finally:
        placement.close()


def run_as_another_version(jet: Jet, folder: Path) -> str:
    """Returns the error of a start whose executors have another version than the driver."""
    own = dagster_jet.__version__
    dagster_jet.__version__ = "0.0.0"
    write_input(folder / "another" / "in", 0, [{"k": 1, "ts": 1}])
    try:
        jet.run(wide_epochs.pipeline(folder / "another"), until="completed")
    except MissingEnvironmentError as error:
        return str(error)
    finally:
        dagster_jet.__version__ = own
    raise AssertionError("it has run")


def run_before_all_have_joined(jet: Jet, folder: Path) -> int:
    """Runs a job at once in a Spark that has just started; returns its number of shards."""
    write_input(folder / "first" / "in", 0, [{"k": 1}])
    p = Pipeline("first")
    files = sources.files(f"{folder}/first/in", format="json", schema="k long", shared=True)
    total = (
        p.read_from(files, name="rows").group_by("k").rolling_aggregate(n=agg.count(), name="total")
    )
    out = sinks.files(f"{folder}/first/out", format="json", shared=True)
    total.write_to(out, name="out")
    jet.run(p, until="completed")
    return shards_of(jet, p.name, "total")


def shards_of(jet: Jet, job: str, stage: str) -> int:
    """Number of shards of the job's newest snapshot."""
    return len(jet.job(job).manifest().shards[stage])


def lose_one_and_get_another(
    jet: Jet, folder: Path
) -> tuple[list[list[str]], list[str], list[str], int, list[int]]:
    """Kills an executor of a job that keeps up, and `DIE_AT_ONCE` of those that replace it, each as
    soon as it has joined. The job goes on where it can, and spreads over both once one that
    replaces it is warm. It needs no restart for that if the last one joins while it restarts.

    Returns:
        By execution, the executors that had shards; the reasons of the restarts; what the log says
        of spreading; how many have joined and died; and the numbers of shards of all snapshots.
    """
    spreads: list[str] = []
    log = logging.getLogger("dagster_jet.execution.epoch_driver")
    log.setLevel(logging.INFO)
    log.addFilter(lambda record: spreads.append(record.getMessage()) or True)
    p = Pipeline("joined")
    rows = p.read_from(sources.sequence(rate=RATE), name="rows").with_timestamps("timestamp")
    by_key = rows.select(f"value % {KEYS} AS k", "value", "timestamp").group_by("k")
    counted = by_key.window(windows.tumbling("1 second")).aggregate(
        n=agg.count(), least=agg.min("value"), name="counts"
    )
    out = sinks.files(f"{folder}/joined", format="json", shared=True)
    counted.write_to(out, name="out")
    homes: list[set[str]] = []
    killed: list[int] = []
    restarts: list[str] = []
    shards: set[int] = set()
    session, began = jet.session(), time.monotonic()

    def lose_them() -> None:
        killed.append(kill_an_executor())
        for _ in range(DIE_AT_ONCE):
            wait_until(lambda: len(executors(session)) == 2, "one is left, beside the driver")
            wait_until(lambda: len(executors(session)) == 3, "another executor joins", 60)
            killed.append(kill_an_executor(-1))

    losing = threading.Thread(target=lose_them, daemon=True)

    def see(event: JobEvent) -> None:
        print(f"{time.monotonic() - began:.1f} s: {event}", flush=True)
        if isinstance(event, ExecutionStarted):
            homes.append(set())
        elif isinstance(event, ExecutionRestarting):
            restarts.append(event.reason)
        elif isinstance(event, SnapshotCommitted):
            shards.add(shards_of(jet, p.name, "counts"))
            if losing.ident is None:
                losing.start()
        elif isinstance(event, EpochCompleted):
            for run in (folder / "work").glob(f"**/{p.name}/{event.execution_id}/*/*/*.arrow"):
                homes[-1].add(run.parts[-3])
            is_over = len(killed) > DIE_AT_ONCE and not losing.is_alive() and len(homes[-1]) == 2
            if is_over or time.monotonic() - began > 240:
                threading.Thread(target=jet.job(p.name).suspend).start()

    jet.run(p, until="stopped", on_event=see)
    return [sorted(each) for each in homes], restarts, spreads, len(killed) - 1, sorted(shards)


def kill_an_executor(number: int = 0) -> int:
    """Kills one of this process's `local-cluster`, by the order of starts; returns its pid."""
    there = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
        and "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    ]
    victim = sorted(there, key=psutil.Process.create_time)[number]
    victim.kill()
    return victim.pid


class Watch:
    """Sees, after every epoch, on which executor every shard has written."""

    def __init__(self, folder: Path) -> None:
        self.work, self.killed = folder / "work", folder / "killed"
        self.failures: list[str] = []
        self.noticed_s = self.recovered_s = 0.0
        self.executions: list[int] = []
        self.restored: list[int | None] = []
        self.homes: dict[str, set[str]] = defaultdict(set)
        self.epoch_ms: list[int] = []

    def __call__(self, event: JobEvent) -> None:
        print(event, flush=True)
        if isinstance(event, ExecutionStarted):
            self.executions.append(event.execution_id)
            self.restored.append(event.restored_snapshot_id)
        elif isinstance(event, ExecutionRestarting):
            self.failures.append(event.reason)
            self.noticed_s = time.time() - self.killed.stat().st_mtime
        elif isinstance(event, EpochCompleted):
            self.epoch_ms.append(round(event.duration_ms))
            if self.failures and not self.recovered_s:
                self.recovered_s = time.time() - self.killed.stat().st_mtime
            for run in self.work.rglob("*.arrow"):
                execution, executor, vertex = run.parts[-4:-1]
                first, second = run.name.split("-")[:2]
                shard = second if first == "restored" else first
                self.homes[f"{execution} {vertex} {shard}"].add(executor)


def main(folder: Path, parallelism: int) -> None:
    watch = Watch(folder)
    (folder / "store").mkdir(exist_ok=True)
    members = [f"file://{folder}/store/{name}" for name in "abc"]
    config = JobConfig(
        parallelism=parallelism,
        snapshot_interval="500 ms",
        max_items_per_epoch=1,  # one file per epoch
    )
    with sample_session(SPARK) as opened:  # as a standby on a cluster; its JVM goes on
        assert opened is not None and is_local(opened())
    with Jet(store=members, spark=SPARK, work_dir=folder / "work") as jet:
        first_shards = run_before_all_have_joined(jet, folder)
        result = jet.run(pipeline(folder), config, until="completed", on_event=watch)
        joined, lost, spreads, died, shards = lose_one_and_get_another(jet, folder)
        refused = run_as_another_version(jet, folder)
        waited_s, said = lose_the_last_to_work(jet.session(), folder / "done")
        while_placing = lose_one_while_placing(jet.session())
        joined_meanwhile = join_while_placing(jet.session())
        jet.session().stop()  # else the executors are replaced as long as the JVM takes to end
    report = {
        "epochs": result.epochs,
        "restarts": result.restarts,
        "failures": watch.failures,
        "first_shards": first_shards,
        "shards": shards,
        "joined": joined,
        "died_at_once": died,
        "refused": refused,
        "noticed_s": round(watch.noticed_s, 1),
        "recovered_s": round(watch.recovered_s, 1),
        "last_to_work": [round(waited_s, 1), said],
        "while_placing": while_placing,
        "joined_meanwhile": joined_meanwhile,
        "lost": lost,
        "spreads": spreads,
        "restored": watch.restored,
        "homes": {shard: sorted(executors) for shard, executors in watch.homes.items()},
        "epoch_ms": watch.epoch_ms,
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
