"""The demo from beginning to end; every step either happens or ends the demo with its reason."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
from deltalake import DeltaTable
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dagster_jet import ExecutionRecord, Jet, JobStatus, StopKind
from demo.dagster_process import REPOSITORY, DagsterProcess, stop_kept
from demo.dataset import open_dataset
from demo.observer import PIPELINE, Observer
from demo.oracle import Verdict, check_kafka_outputs, check_lake_outputs, check_outputs
from demo.replay import (
    BAD_LINES_COUNT,
    Replayer,
    flights_in_order,
    longest_disorder,
    write_files,
    write_reference,
)
from demo.report import Figures, print_report
from demo.servers import Servers, started_servers
from pipelines.airport_delays.into_lake import HOURLY

POLL_SECONDS = 0.1
STEP_TIMEOUT_SECONDS = 240
_STOP_COMMAND = ".venv/bin/python -m demo --stop"


class DemoError(Exception):
    """A step did not come out as it should."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    folder: Path
    keep: bool = False
    kill: bool = True
    replay_seconds: float = 45.0
    kafka: bool = False
    lake: bool = False


@dataclass
class Recovery:
    """When things happened after the kill, in seconds since."""

    requested: float = 0.0
    execution: float = 0.0
    committed: float = 0.0


@dataclass
class Story:
    """One showing."""

    options: Options
    console: Console
    began: float = field(default_factory=time.monotonic)
    servers: Servers | None = None

    def tell(self) -> bool:
        """Run the demo; return whether every row came out right.

        Raises:
            DemoError, DatasetError, DagsterStartError, ServersError: a step failed; says which and
                how to look.
        """
        if not self.options.kafka:
            return self._tell()
        self._say("Starting Kafka and PostgreSQL; what is missing is installed ...")
        with started_servers() as self.servers:
            self._say(f"Kafka is at {self.servers.broker}, PostgreSQL beside it.")
            return self._tell()

    def _tell(self) -> bool:
        folder = self.options.folder
        if stop_kept(folder / "dagster_home"):
            self._say("Stopped the Dagster that an earlier KEEP=1 had left running.")
        shutil.rmtree(folder, ignore_errors=True)
        data = folder / "data"
        (data / "inbox").mkdir(parents=True)
        (data / "lake").mkdir()
        dataset = open_dataset(REPOSITORY / ".cache")
        write_reference(dataset, data / "reference")
        dagster = DagsterProcess(folder / "dagster_home", self._environment(data))
        dagster.start()
        kept = False
        try:
            self._say("Starting Dagster (webserver, daemon) and sorting flights by departure ...")
            dataset.write_csv(folder / "csv")
            flights = flights_in_order(dataset)
            paths = write_files(flights, folder / "staged")
            self._say(
                f"{len(flights):,} flights in {len(paths)} files, {BAD_LINES_COUNT} malformed "
                f"lines; out of order by up to {_hours(longest_disorder(flights))}."
            )
            dagster.wait_until_up()
            self._say(f"Dagster is up: [link]{dagster.url}[/link]")
            with Jet(store=_store_urls(data), backup_count=1) as jet:
                observer = Observer(dagster.url, jet)
                replayer = self._replayer(paths, data)
                try:
                    figures = self._stream(dagster, observer, replayer, len(flights))
                finally:
                    replayer.stop()
            verdict = self._check(folder, data)
            figures.seconds = time.monotonic() - self.began
            right = self._is_right(figures, verdict)
            print_report(
                self.console, figures, verdict, right, dagster.url, data, self.options.keep
            )
            self._write_result(figures, verdict, right)
            kept = self.options.keep
            if kept:
                self._say(f"Dagster stays up at {dagster.url}; stop it with: {_STOP_COMMAND}")
            return right
        except (DemoError, OSError):
            self.console.print(dagster.log_tail(), style="dim", markup=False, highlight=False)
            raise
        finally:
            if not kept:
                dagster.stop()

    def _stream(
        self, dagster: DagsterProcess, observer: Observer, replayer: Replayer, flights: int
    ) -> Figures:
        total = flights + BAD_LINES_COUNT
        self._until(
            "the supervisor sensor starts the job",
            lambda: _status(observer.record()) is JobStatus.RUNNING,
        )
        started = observer.record()
        assert started is not None and started.lease is not None
        self._say(f"The sensor started run {_short(started.lease.run_id)}; flights are departing.")
        replayer.start()
        recovery: Recovery | None = None
        with self._bars(total) as show:
            self._until(
                "half of the rows are committed", lambda: show(observer) >= total // 2, replayer
            )
            if self.options.kill:
                recovery = self._kill_and_wait(dagster, observer, lambda: show(observer), total)
            self._until("all rows are committed", lambda: show(observer) >= total, replayer)
        progress = observer.progress()
        # What an operator does when a stream is over: the inputs end, every window closes.
        observer.jet.job(PIPELINE).request_stop(StopKind.COMPLETE)
        self._until(
            "the job is COMPLETED", lambda: _status(observer.record()) is JobStatus.COMPLETED
        )
        self._until("the run has ended", lambda: observer.runs()[-1].status == "SUCCESS")
        record = observer.record()
        assert record is not None
        final = observer.progress()
        return Figures(
            rows_in=progress.rows_committed,
            late=max(progress.late, final.late),
            restarts=record.restarts,
            runs=[run.status for run in observer.runs()],
            recovery=None if recovery is None else recovery.__dict__,
            reported=final.numbers,
        )

    def _kill_and_wait(
        self, dagster: DagsterProcess, observer: Observer, show: Callable[[], int], total: int
    ) -> Recovery:
        before = observer.record()
        if before is None or before.lease is None:
            raise DemoError("the job has no lease half-way: there is nothing to kill.")
        pid = before.lease.pid
        if not dagster.is_ours(pid):
            raise DemoError(f"process {pid} holds the lease, but this demo did not start it.")
        victim = psutil.Process(pid)
        victim.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        self._until("the killed process is gone", lambda: _is_gone(victim))
        self._say(f"[bold red]SIGKILL[/bold red] to process {pid}, the run that drives Spark.")
        recovery = Recovery()
        runs_before = len(observer.runs())

        def since() -> float:
            return time.monotonic() - killed

        self._until("the sensor requests a new run", lambda: len(observer.runs()) > runs_before)
        recovery.requested = since()
        self._say(f"The sensor has requested another run after {recovery.requested:.1f} s.")

        def is_newer(record: ExecutionRecord | None) -> bool:
            return record is not None and record.execution_id > before.execution_id

        self._until("a new execution owns the job", lambda: is_newer(observer.record()))
        recovery.execution = since()
        self._say(f"A new execution owns the job after {recovery.execution:.1f} s.")

        def has_committed() -> bool:
            record = observer.record()
            if record is None or record.snapshot is None:
                return False
            is_of_new = record.snapshot.execution_id > before.execution_id
            # On a slow machine the killed run may have read all flights before: none is left.
            return record.snapshot.committed and (is_of_new or show() >= total)

        self._until("the new execution commits a snapshot", has_committed)
        recovery.committed = since()
        self._say(f"The new execution goes on [bold]{recovery.committed:.1f} s[/bold] after it.")
        return recovery

    def _replayer(self, paths: list[Path], data: Path) -> Replayer:
        seconds = self.options.replay_seconds
        if self.servers is not None:
            return self.servers.replayer(paths, data / "sent", seconds)
        return Replayer(paths, data / "inbox", seconds)

    def _check(self, folder: Path, data: Path) -> Verdict:
        self._say("Recomputing everything in DuckDB and comparing every output row ...")
        if self.servers is not None:
            messages, tables = data / "messages.json", data / "tables"
            self.servers.write_messages(messages)
            self.servers.write_tables(tables)
            return check_kafka_outputs(folder / "csv", messages, tables, data / "out")
        if self.options.lake:
            self._say(_lake_in_words(data / "lake"))
            return check_lake_outputs(folder / "csv", data / "inbox", data / "lake", data / "out")
        return check_outputs(folder / "csv", data / "inbox", data / "out")

    def _is_right(self, figures: Figures, verdict: Verdict) -> bool:
        as_killed = not self.options.kill or (
            figures.restarts == 1 and figures.runs == ["FAILURE", "SUCCESS"]
        )
        return (
            verdict.is_exact
            and verdict.flights + verdict.bad_lines == figures.rows_in
            and verdict.bad_lines == BAD_LINES_COUNT
            and figures.late == 0
            and as_killed
        )

    def _until(
        self, what: str, happened: Callable[[], bool], replayer: Replayer | None = None
    ) -> None:
        """Wait for something; while a replayer is at work the time begins when it is done."""
        deadline = time.monotonic() + STEP_TIMEOUT_SECONDS
        while not happened():
            if replayer is not None and not replayer.finished:
                deadline = time.monotonic() + STEP_TIMEOUT_SECONDS
            if time.monotonic() > deadline:
                raise DemoError(f"waited {STEP_TIMEOUT_SECONDS} s in vain: {what}.")
            time.sleep(POLL_SECONDS)

    def _bars(self, total: int) -> _Bars:
        return _Bars(self.console, total)

    def _environment(self, data: Path) -> dict[str, str]:
        return {
            "JET_DATA": str(data),
            "JET_REPORT_INTERVAL_SECONDS": "1",
            "JET_SUPERVISOR_SECONDS": "5",
            **({"JET_LAKE": str(data / "lake")} if self.options.lake else {}),
            **(self.servers.environment() if self.servers is not None else {}),
        }

    def _write_result(self, figures: Figures, verdict: Verdict, right: bool) -> None:
        content = {"right": right, **figures.as_dict(), **verdict.as_dict()}
        path = self.options.folder / "result.json"
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")

    def _say(self, text: str) -> None:
        self.console.print(
            f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {text}",
            highlight=False,
            soft_wrap=True,
        )


class _Bars:
    """A progress bar of committed rows; asks Dagster at most twice a second."""

    def __init__(self, console: Console, total: int) -> None:
        self._progress = Progress(
            TextColumn("         {task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._total, self._rows, self._asked = total, 0, 0.0

    def __enter__(self) -> Callable[[Observer], int]:
        self._progress.start()
        self._task = self._progress.add_task("rows committed", total=self._total)
        return self._show

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, observer: Observer) -> int:
        if time.monotonic() - self._asked > 0.5:
            self._rows = max(self._rows, observer.progress().rows_committed)
            self._asked = time.monotonic()
            self._progress.update(self._task, completed=self._rows)
        return self._rows


def _lake_in_words(lake: Path) -> str:
    history = DeltaTable(lake / HOURLY).history()
    compactions = sum(one["operation"] == "OPTIMIZE" for one in history)
    return f"The table {HOURLY!r} has {len(history)} versions; {compactions} are compactions."


def _store_urls(data: Path) -> list[str]:
    """The same members as in `resources/jet.py`."""
    (data / "store").mkdir(parents=True, exist_ok=True)
    return [f"file://{data}/store/{member}" for member in ("a", "b", "c")]


def _status(record: ExecutionRecord | None) -> JobStatus | None:
    return None if record is None else record.status


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _hours(span: timedelta) -> str:
    minutes = round(span.total_seconds() / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def _short(run_id: str | None) -> str:
    return (run_id or "?")[:8]
