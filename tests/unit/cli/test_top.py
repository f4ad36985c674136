"""``dagster-jet top``: a table for pipes, and a live screen in a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dagster_jet.cli import app
from dagster_jet.cli.top import Order
from dagster_jet.execution.events import SourceProgress, StageProgress
from dagster_jet.observe.reading.overview import JobOverview, Overviews
from dagster_jet.ownership.lease import new_lease, wall_clock_ms
from dagster_jet.snapshot.record import Doing, ExecutionRecord, JobStatus, SnapshotRef
from dagster_jet.store import Store, StoreConfig

from .job_in_store import StoredJob

DEAD_PID = 2**22 + 1
"""Process id above the kernel's largest one."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreConfig((f"file://{tmp_path}/a",), backup_count=0)) as store:
        yield store


def some_jobs(store: Store) -> StoredJob:
    now_ms = wall_clock_ms()
    StoredJob(store, "billing").is_at(JobStatus.FAILED, failure="[red]no such topic", restarts=5)
    shop = StoredJob(store, "shop", 3)
    taken = SnapshotRef(9, 9, 3, "m", 0, now_ms - 90_000, 10, committed=True)
    shop.is_at(JobStatus.RUNNING, Doing.EPOCH, 1_000, snapshots=(taken,), restarts=2)
    shop.reports(
        sources={"a": SourceProgress(5, {}, {"rows": 2_000}), "b": SourceProgress(5, {}, {})},
        stages={"hourly": StageProgress(1, 1, watermark_ms=now_ms - 240_000)},
        rows_per_second=312.4,
        last_epoch_ms=87.0,
    )
    return shop


def run(tmp_path: Path, *arguments: str) -> Any:
    environment = {"DAGSTER_JET_STORE": f"file://{tmp_path}/a", "COLUMNS": "160"}
    return CliRunner().invoke(app, ["top", *arguments], env=environment)


# --- not a terminal -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--once",)])
def test_a_pipe_gets_one_table(store: Store, tmp_path: Path, options: tuple[str, ...]) -> None:
    some_jobs(store)
    shown = run(tmp_path, *options)
    assert shown.exit_code == 0, shown.stderr
    rows = {
        (cells := [cell.strip() for cell in line.strip("│").split("│")])[0]: cells[1:]
        for line in shown.stdout.splitlines()
        if line.startswith("│")
    }
    assert list(rows) == ["billing", "shop"]
    assert rows["billing"] == ["FAILED", "", "", "", "", "", "5", "[red]no such topic"]
    status, rate, waiting, watermark, epoch, age, restarts, doing = rows["shop"]
    assert (status, rate, waiting, epoch, restarts) == (
        "RUNNING",
        "312",
        "2.0 k rows",
        "87 ms",
        "2",
    )
    assert watermark.startswith("4 min") and age.startswith("1 min 3")
    assert doing == "running an epoch for 1 s"


def test_programs_get_one_document_in_the_order_they_ask_for(store: Store, tmp_path: Path) -> None:
    some_jobs(store)
    documents = json.loads(run(tmp_path, "--json", "--sort", "rows").stdout)
    assert [document["job"] for document in documents] == ["shop", "billing"]
    assert documents[0]["lag"] == {"rows": 2_000}
    assert documents[1]["rows_per_second"] is None


def test_a_store_without_jobs(store: Store, tmp_path: Path) -> None:
    assert "0 jobs" in run(tmp_path).stdout


@pytest.mark.parametrize(
    ("order", "first"), [("job", "a"), ("status", "c"), ("rows", "b"), ("restarts", "c")]
)
def test_what_is_largest_stands_first_and_what_is_not_known_last(order: str, first: str) -> None:
    jobs = [
        JobOverview("a", JobStatus.RUNNING, "", rows_per_second=None),
        JobOverview("b", JobStatus.RUNNING, "", rows_per_second=7.0),
        JobOverview("c", JobStatus.FAILED, "", rows_per_second=3.0, restarts=1),
    ]
    assert Order(order).sorted(jobs)[0].job == first
    assert Order.ROWS.sorted(jobs)[-1].job == "a"
    following = [Order.JOB]
    while (order_after := following[-1].next) is not Order.JOB:
        following.append(order_after)
    assert following == list(Order)


def test_a_dead_owner_is_seen_without_waiting_for_its_lease(store: Store) -> None:
    job = StoredJob(store, "shop")
    lease = replace(new_lease("o", 60_000, None), pid=DEAD_PID)
    job._register.write(ExecutionRecord("shop", 1, JobStatus.RUNNING, lease=lease).to_bytes())
    (overview,) = Overviews(store).look()
    assert overview.status is JobStatus.NOT_RUNNING and "is gone" in overview.doing


# --- a terminal ---------------------------------------------------------------------------------


class Terminal:
    """A real one, with `top` in it."""

    def __init__(self, tmp_path: Path) -> None:
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 160, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        script = (
            "import fcntl, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0)\n"
            "from dagster_jet.cli import app; app(['top', '--every', '0.1'])"
        )
        self.child = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
            env={
                **os.environ, "TERM": "xterm", "DAGSTER_JET_STORE": f"file://{tmp_path}/a",
            },
        )  # fmt: skip
        self.written = ""

    def until(self, text: str, timeout_s: float = 120) -> None:
        """Reads until it has been written from now on."""
        seen = ""
        while text not in _plain(seen):
            ready, _, _ = select.select([self.master], [], [], timeout_s)
            assert ready, f"{text!r} did not appear: {self.written[-3000:]!r}"
            piece = os.read(self.master, 65536).decode(errors="replace")
            seen, self.written = seen + piece, self.written + piece

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    def end(self) -> int:
        """Reads what is left, as a terminal does, and returns the exit code."""
        while self.child.poll() is None:
            if select.select([self.master], [], [], 0.05)[0]:
                self.written += os.read(self.master, 65536).decode(errors="replace")
        while select.select([self.master], [], [], 0)[0]:
            self.written += os.read(self.master, 65536).decode(errors="replace")
        after = termios.tcgetattr(self.slave)
        os.close(self.slave)
        os.close(self.master)
        assert after == self.before  # echo and lines are back
        return self.child.wait()


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_it_refreshes_in_place_sorts_and_ends_with_q(store: Store, tmp_path: Path) -> None:
    shop = some_jobs(store)
    terminal = Terminal(tmp_path)
    terminal.until("312")
    shop.reports(rows_per_second=777.0)  # meanwhile, by another process
    terminal.until("777")
    terminal.press("s")
    terminal.until("by status")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.written.count("\x1b[?1049h") == terminal.written.count("\x1b[?1049l") == 1
    assert "\x1b[2J" not in terminal.written.split("\x1b[?1049h")[1].split("\x1b[H", 1)[1]
    assert "Traceback" not in terminal.written


def test_ctrl_c_ends_it_without_a_stack(store: Store, tmp_path: Path) -> None:
    some_jobs(store)
    terminal = Terminal(tmp_path)
    terminal.until("312")
    terminal.press("\x03")
    assert terminal.end() == 0
    assert terminal.written.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert "Traceback" not in terminal.written and "Aborted" not in terminal.written
