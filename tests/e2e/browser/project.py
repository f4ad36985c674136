"""`make dev` as a process: this repository's own definitions, with a few days of real flights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dagster_jet import ExecutionRecord, Jet, JobStatus
from dagster_jet.ownership.record_keeper import read_record
from demo.dagster_process import REPOSITORY
from demo.dataset import Dataset, open_dataset
from demo.observer import PIPELINE, Observer
from demo.replay import flights_in_order, write_files

FLIGHTS = 4_000
FILES, BAD_LINES = 16, 3
DEPART_BY_THEMSELVES = 4
PATIENCE_SECONDS = 600


@dataclass
class Project:
    """A running `make dev`.

    Attributes:
        folder: of everything.
        process: `python -m demo.dev`.
        waiting: files of flights that `fly` lets depart, in order.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    waiting: list[Path]
    url: str = ""
    jet: Jet = field(init=False)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def observer(self) -> Observer:
        return Observer(self.url, self.jet)

    def run_statuses(self) -> list[str]:
        return [run.status for run in self.observer.runs()]

    def record(self) -> ExecutionRecord:
        record = read_record(self.jet.store, PIPELINE)
        assert record is not None
        return record

    def is_running(self, since: int = 0) -> bool:
        record = read_record(self.jet.store, PIPELINE)
        return (
            record is not None
            and record.execution_id > since
            and record.status is JobStatus.RUNNING
        )

    def fly(self, files: int = 1) -> int:
        """Let more flights depart; return how many rows the inbox has now."""
        for path in self.waiting[:files]:
            os.utime(path)
            path.rename(self.data / "inbox" / path.name)
        del self.waiting[:files]
        return self.rows_in_inbox()

    def rows_in_inbox(self) -> int:
        inbox = (self.data / "inbox").glob("*.json")
        return sum(len(path.read_text("utf-8").splitlines()) for path in inbox)

    def rows_committed(self) -> int:
        return self.observer.progress().rows_committed

    def wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not happened():
            ended = self.process.poll() is not None
            assert not ended and time.monotonic() < deadline, f"in vain: {what}\n{self.log()}"
            time.sleep(0.2)

    def log(self) -> str:
        """The end of what both have said."""
        said = [self.folder / "said", self.folder / "home" / "dagster.log"]
        return "\n".join(p.read_text("utf-8", "replace")[-6000:] for p in said if p.exists())

    def family(self) -> list[psutil.Process]:
        """The process and all that it has started, and they."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def kill_the_run(self) -> None:
        """SIGKILL to the process that works on the job."""
        lease = self.record().lease
        assert lease is not None
        assert lease.pid in {one.pid for one in self.family()}
        os.kill(lease.pid, signal.SIGKILL)

    def interrupt(self) -> int:
        """Sends SIGINT, as Ctrl-C does; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=PATIENCE_SECONDS)


@contextmanager
def started_project(folder: Path, *, lake: bool = False) -> Iterator[Project]:
    """`make dev` with an empty DAGSTER_HOME and data that nobody has made, but for the flights:
    the first files depart by themselves, the others when the test says so.

    Args:
        lake: whether the sinks are tables of a lake, as in `make demo LAKE=1`.
    """
    data = folder / "data"
    days = first_days()
    days.write_csv(folder / "csv")
    files = write_files(
        flights_in_order(days), data / "departing", files_count=FILES, bad_lines_count=BAD_LINES
    )
    (folder / "waiting").mkdir()
    (data / "lake").mkdir()
    waiting = [path.rename(folder / "waiting" / path.name) for path in files[DEPART_BY_THEMSELVES:]]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo.dev", "--port", "0"],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "JET_DATA": str(data),
                "DAGSTER_HOME": str(folder / "home"),
                "JET_REPORT_INTERVAL_SECONDS": "1",
                **({"JET_LAKE": str(data / "lake")} if lake else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    project = Project(folder, process, waiting)
    try:
        project.wait_for("it says where it is", lambda: "lineage" in (folder / "said").read_text())
        note = json.loads((folder / "home" / "process.json").read_text("utf-8"))
        project.url = note["url"]
        store = [f"file://{data}/store/{member}" for member in ("a", "b", "c")]
        with Jet(store=store, backup_count=1) as project.jet:
            yield project
    finally:
        if process.poll() is None:
            project.interrupt()


def first_days() -> Dataset:
    """The first flights of the year, with all tables."""
    whole = open_dataset(REPOSITORY / ".cache")
    flights = "".join(whole.flights.splitlines(keepends=True)[: FLIGHTS + 1])
    return Dataset(flights, whole.airlines, whole.weather)
