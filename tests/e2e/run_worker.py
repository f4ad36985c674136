"""Run workers of the tiny job: processes of their own on one Dagster instance and one store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import psutil

from dagster_jet import Jet
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

from .tiny import put_file

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_SECONDS = 240


@dataclass
class Worker:
    """A process that runs the tiny job until it is stopped."""

    folder: Path
    process: subprocess.Popen[bytes]
    instance: dg.DagsterInstance
    jet: Jet

    def wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not happened():
            assert self.process.poll() is None, f"the worker ended before: {what}"
            assert time.monotonic() < deadline, f"in vain: {what}"
            time.sleep(0.05)

    def run(self) -> dg.DagsterRun:
        """The newest one."""
        return self.instance.get_runs(limit=1)[0]

    def record(self) -> ExecutionRecord:
        record = read_record(self.jet.store, "tiny")
        assert record is not None
        return record

    def is_running(self, after: int = 0) -> bool:
        """An execution after that one has decided a snapshot of its own."""
        record = read_record(self.jet.store, "tiny")
        return (
            record is not None
            and record.execution_id > after
            and record.status is JobStatus.RUNNING
            and record.snapshot is not None
            and record.snapshot.execution_id == record.execution_id
        )

    def inside(self) -> psutil.Process:
        """The worker itself: of a pod, `unshare` only waits for it."""
        (process,) = psutil.Process(self.process.pid).children()
        return process

    def end(self) -> None:
        self.process.wait(TIMEOUT_SECONDS)


@dataclass
class Host:
    """Instance, store and input folder for workers that run one after the other."""

    folder: Path
    instance: dg.DagsterInstance
    jet: Jet
    environment: Mapping[str, str]

    @contextmanager
    def worker(
        self, *, within: Sequence[str] = (), tags: Mapping[str, str] | None = None, **more: str
    ) -> Iterator[Worker]:
        """Start one.

        Args:
            within: a command that starts it, with its arguments.
            tags: of the run.
            more: of its environment.
        """
        environment = {**self.environment, "TINY_RUN_TAGS": json.dumps(dict(tags or {})), **more}
        process = subprocess.Popen(
            [*within, sys.executable, "-m", "tests.e2e.tiny"], cwd=REPOSITORY, env=environment
        )
        try:
            yield Worker(self.folder, process, self.instance, self.jet)
        finally:
            process.kill()
            process.wait()

    def pod(self, **more: str) -> AbstractContextManager[Worker]:
        """A worker as process 1 of a PID namespace of its own; all pods have the host's name."""
        namespaces = ["--pid", "--fork", "--kill-child", "--mount-proc"]
        if os.geteuid() != 0:
            namespaces.append("--map-root-user")
        return self.worker(within=["unshare", *namespaces], **more)


@contextmanager
def open_host(folder: Path, store: str | None = None) -> Iterator[Host]:
    """Makes a host on which nothing runs yet, and without input.

    Args:
        store: the member's URL; by default a folder.
    """
    home, store = folder / "home", store or f"file://{folder}/store"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "TINY_FOLDER": str(folder),
        "TINY_STORE": store,
    }
    with (
        Jet(store=[store], backup_count=0) as jet,
        dg.DagsterInstance.from_config(str(home)) as instance,
    ):
        yield Host(folder, instance, jet, environment)


@contextmanager
def start_worker(tmp_path: Path, **more_environment: str) -> Iterator[Worker]:
    """The only one on its host, with one file to read."""
    put_file(tmp_path, 0)
    with open_host(tmp_path) as host, host.worker(**more_environment) as worker:
        yield worker
