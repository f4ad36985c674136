"""A cluster whose hosts share only Kafka and the members of the store, and lose each other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.long import long

from . import hosts_child
from .hosts import as_a_host

CONTAINED = ("--pid", "--fork", "--kill-child", "--mount-proc")
"""All processes end with the first one."""


@long
def test_a_host_is_cut_off_for_a_while_and_another_one_until_it_is_given_up(tmp_path: Path) -> None:
    """No connection is reset: packets are lost, and Spark learns of it by silence only."""
    command = [*CONTAINED, sys.executable, "-m", hosts_child.__name__, str(tmp_path)]
    with open(tmp_path / "log.txt", "wb") as log:
        run = subprocess.run(
            as_a_host(command), stdout=log, stderr=log, timeout=900, check=False,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
    said = (tmp_path / "log.txt").read_text("utf-8")
    assert run.returncode == 0, said[-5000:]
    report = json.loads(said.splitlines()[-1])
    for name in ("counts", "big"):
        assert report[name]["rows"] > 0 and not report[name]["wrong"], (name, report)
    assert len(report["restarts"]) > report["restarts_by_the_first"], report
