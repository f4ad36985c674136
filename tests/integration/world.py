"""One test's world: input folders, a fresh store of three members, outputs, children to kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_jet import Jet, JobConfig, JobResult, Pipeline
from dagster_jet.execution.events import ExecutionRestarting, JobEvent
from dagster_jet.observe.reading.ledger import Ledger, LedgerEntry, LedgerOrigin
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.start_options import StartOptions
from dagster_jet.testing.failpoints import Death, FailPoints

from . import child
from .forked import Main, fork
from .oracle import Rows, by_manifest, committed, difference, input_rows, visible_files, windowed

WINDOW_COLUMNS = ("k", "window_start", "window_end", "n", "total")
START_OPTIONS = {field.name for field in fields(StartOptions)}
OUTPUTS = {"counts": WINDOW_COLUMNS, "rollup": WINDOW_COLUMNS, "big": ("k", "ts", "v")}
if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from pyspark.sql import SparkSession

_FIRST_MTIME_NS = 1_700_000_000_000_000_000


def write_input(folder: Path, number: int, rows: Iterable[Mapping[str, Any]]) -> Path:
    """One finished JSON-lines file; `number` decides about its place in the order."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:05d}.json"
    hidden = folder / f".{path.name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    mtime_ns = _FIRST_MTIME_NS + number * 1_000_000_000
    os.utime(hidden, ns=(mtime_ns, mtime_ns))
    hidden.rename(path)
    return path


def random_rows(number: int, rows: int, seed: int, keys: int = 5) -> list[dict[str, Any]]:
    """Rows of about second `number`, one after the other, but for up to 250 ms: under a lag of 500
    none is late, wherever between two of them an epoch ends."""
    rng = random.Random(f"{seed}/{number}")
    order = sorted(rng.randrange(1000) for _ in range(rows))
    return [
        {
            "k": f"key-{rng.randrange(keys)}",
            "ts": max(0, number * 1000 + at + rng.randrange(-250, 250)),
            "v": rng.randrange(100),
        }
        for at in order
    ]


@contextmanager
def known_to_tasks(spark: SparkSession, variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process, which its children inherit, and of the session's tasks."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    spark.sparkContext.environment.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del spark.sparkContext.environment[name]
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    return stat.rpartition(")")[2].split()[0] == "T"


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    """Polls a condition; fails loudly when it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


class World:
    """A folder with everything one crash test needs."""

    driver: ClassVar[Main] = staticmethod(child.main)
    """Main function of a child process."""
    pipeline: ClassVar[Callable[[Path], Pipeline]] = staticmethod(child.crash_pipeline)
    """Builds the pipeline that this process runs."""
    job: ClassVar[str] = child.JOB
    patience_s: ClassVar[float] = 240
    """How long a child may take to its death, or its end."""

    def __init__(
        self,
        folder: Path,
        fail_points: FailPoints | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """Without the last two arguments the world is only filled and looked at."""
        self.folder = folder
        if fail_points is not None:
            self.fail_points = fail_points
        if spark is not None:
            self.spark = spark
        self.events: list[JobEvent] = []

    # --- input and expectation ------------------------------------------------------------------

    def fill(self, files: int = 5, rows: int = 12, *, first: int = 0, seed: int = 1) -> World:
        for number in range(first, first + files):
            for side, name in enumerate(("left", "right")):
                write_input(
                    self.folder / "in" / name, number, random_rows(number, rows, 2 * seed + side)
                )
        return self

    def expected(self) -> dict[str, Rows]:
        rows = [row for name in ("left", "right") for row in input_rows(self.folder / "in" / name)]
        counts = windowed(rows, child.WINDOW_MS)
        results = [
            {"k": k, "last": end - 1, "n": n, "total": total} for k, _, end, n, total in counts
        ]
        return {
            "counts": counts,
            "rollup": windowed(results, child.ROLLUP_MS, time="last", n="n", total="total"),
            "big": Counter((r["k"], r["ts"], r["v"]) for r in rows if r["v"] >= child.BIG),
        }

    # --- what is there --------------------------------------------------------------------------

    def committed(self) -> dict[str, Rows]:
        return {
            name: committed(self.folder / "out" / name, columns)
            for name, columns in OUTPUTS.items()
        }

    def visible(self) -> dict[str, bytes]:
        return visible_files(self.folder / "out")

    def assert_exactly_once(self) -> None:
        """Every row that the oracle knows is committed once, and nothing else is."""
        found, expected = self.committed(), self.expected()
        wrong = {name: difference(found[name], expected[name]) for name in expected}
        assert not any(wrong.values()), wrong

    def assert_nothing_doubled(self) -> None:
        """Half-way: what is committed is part of the truth. Listings may be ahead of manifests,
        because the death may have come between a file's rename and its epoch's manifest."""
        expected = self.expected()
        for name, columns in OUTPUTS.items():
            found = by_manifest(self.folder / "out" / name, columns)
            assert not found - expected[name], (name, found - expected[name])

    def assert_ledger_is_true(self) -> tuple[LedgerEntry, ...]:
        """Asserts that the ledger equals each sink's markers, read here by plain clients. Before
        the first snapshot the ledger is empty."""
        read: list[Ledger] = []

        def reads_markers() -> bool:
            # In Kafka the open transaction of a dead sink hides markers behind it, until it ends.
            read.append(job.ledger())
            return all(e.origin is LedgerOrigin.MARKERS for e in read[-1].entries.values())

        with self.jet() as jet:
            job = jet.job(self.job)
            wait_until(reads_markers, "the markers of all sinks are read")
            ledger = read[-1]
            manifests = [job.manifest(ref.snapshot_id) for ref in job.snapshots()]
        entries = tuple(ledger.entries.values())
        assert bool(entries) == bool(manifests)
        for entry in entries:
            named = {a.epoch_id for m in manifests for a in m.artifacts if a.sink == entry.sink}
            unmarked = named - self.marked(entry.sink, named)
            missing = min(unmarked, default=None)
            whole = [m.epoch_id for m in manifests if missing is None or m.epoch_id < missing]
            assert entry.epoch_id == max(whole, default=None), (entry, sorted(unmarked))
        epochs = [entry.epoch_id for entry in entries]
        known = [epoch for epoch in epochs if epoch is not None]
        least = min(known) if known and None not in epochs else None
        assert ledger.consistent_epoch == least
        return entries

    def marked(self, sink: str, epochs: set[int]) -> set[int]:
        """Those of the epochs that have a marker at the sink's place."""
        folder = self.folder / "out" / sink.removesuffix("_out") / "_epochs"
        return epochs & {int(path.stem) for path in folder.glob("[!.]*.json")}

    def visible_rows(self) -> int:
        return sum(rows.total() for rows in self.committed().values())

    def staged(self) -> list[Path]:
        """Files of phase 1 that nobody has committed or rolled back."""
        return [p for p in (self.folder / "out").rglob(".staging/**/*") if p.is_file()]

    # --- running --------------------------------------------------------------------------------

    def run_child(self, rules: str, *, own_jvm: bool = False, **order: Any) -> Death:
        """Runs the pipeline in a process of its own until a fail point kills it."""
        death = self._until_death(rules, order, own_jvm=own_jvm)
        wanted = [rule.partition("=")[0].partition(":")[0] for rule in rules.split(";")]
        assert death.was_killed, f"{rules}: the child ended with {death.returncode}\n{death.output}"
        assert set(wanted) <= set(death.reached), f"{rules}: reached only {death.reached}"
        return death

    @contextmanager
    def asleep(self, point: str, **order: Any) -> Iterator[None]:
        """A driver of its own sleeps at a fail point (`name:hit`) while the body runs, wakes up
        behind it, and ends with an error."""
        name, seen = point.partition(":")[0], len(self.fail_points.reached)
        # A JVM of its own: a shared one would wait for what its scheduler sends to the sleeper.
        sleeper = self.start_child(f"{point}=freeze", own_jvm=True, **order)
        try:
            wait_until(
                lambda: name in self.fail_points.reached[seen:] and is_stopped(sleeper.pid),
                f"the child sleeps at {name}",
            )
            yield
            os.kill(sleeper.pid, signal.SIGCONT)
            sleeper.join(60)
            assert sleeper.exitcode == 3, self.child_output.read_text()
        finally:
            sleeper.kill()
            sleeper.join()

    def finish_child(self, **order: Any) -> str:
        """Runs the pipeline to its end in a process and a JVM of its own; returns what it said."""
        death = self._until_death("", order, own_jvm=True)
        assert death.returncode == 0, death.output
        return death.output

    def start_child(self, rules: str, *, own_jvm: bool = False, **order: Any) -> ForkServerProcess:
        """Starts it in a fork, attached to this session's JVM as to a cluster that outlives it."""
        environment = {} if own_jvm else self.gateway()
        environment |= self.fail_points.environment(rules)
        return fork(self.driver, self.folder, order, environment, self.child_output)

    def _until_death(self, rules: str, order: Mapping[str, Any], *, own_jvm: bool) -> Death:
        before = len(self.fail_points.reached)
        process = self.start_child(rules, own_jvm=own_jvm, **order)
        process.join(self.patience_s)
        returncode = process.exitcode
        process.kill()
        process.join()
        assert returncode is not None, f"{rules}: not over\n{self.child_output.read_text()}"
        reached = self.fail_points.reached[before:]
        return Death(returncode, reached, self.child_output.read_text("utf-8"))

    @property
    def child_output(self) -> Path:
        return self.folder / "child.out"

    def run(self, until: str = "completed", *, members: str = "abc", **settings: Any) -> JobResult:
        """Runs the pipeline in this process, on the shared Spark session.

        `settings`: of `JobConfig`, and options of the start.
        """
        start = {name: settings.pop(name) for name in START_OPTIONS & settings.keys()}
        with self.jet(members) as jet:
            return jet.run(
                type(self).pipeline(self.folder),
                JobConfig(**{**child.CONFIG, **settings}),
                until=until,
                on_event=self.see,
                **start,
            )

    def jet(self, members: Sequence[str] = "abc", backup_count: int = 1, **settings: Any) -> Jet:
        return child.open_jet(self.folder, members, backup_count, **settings)

    def record(self, members: str = "abc") -> ExecutionRecord | None:
        with self.jet(members) as jet:
            return read_record(jet.store, child.JOB)

    @contextmanager
    def rules_in_workers(self, rules: str) -> Iterator[None]:
        """Fail points for the tasks of this process, until they have made an execution restart."""
        os.environ |= self.fail_points.environment(rules)
        try:
            yield
        finally:
            self._cure_workers()

    def _cure_workers(self) -> None:
        os.environ.pop("JET_FAIL_POINTS", None)

    def see(self, event: JobEvent) -> None:
        self.events.append(event)
        if isinstance(event, ExecutionRestarting):
            self._cure_workers()

    def lose_member(self, member: str) -> None:
        (self.folder / "store" / member).rename(self.folder / f"lost-{member}")

    def bring_member_back(self, member: str) -> None:
        shutil.rmtree(self.folder / "store" / member, ignore_errors=True)
        (self.folder / f"lost-{member}").rename(self.folder / "store" / member)

    def events_of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def gateway(self) -> dict[str, str]:
        parameters = self.spark.sparkContext._gateway.gateway_parameters
        return {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }
