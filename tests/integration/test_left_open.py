"""A script that ends without closing its `Jet`: what it leaves, and its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources
from dagster_jet.execution.events import EpochCompleted

def broken(frame):
    raise ValueError("broken")

folder = sys.argv[1]
p = Pipeline("left")
rows = p.read_from(sources.items([{"n": n} for n in range(9)], schema="n long"), name="rows")
if sys.argv[2] == "broken":
    rows = rows.transform(broken)
rows.write_to(sinks.files(f"{folder}/out", format="json"), name="out")
seen = []
jet = Jet(store=[f"file://{folder}/store"], backup_count=0)
config = JobConfig(snapshot_interval="1 hour", restart_attempts_max=0)
job = jet.submit(p, config, on_event=seen.append)
while not job.done.is_set() and not any(isinstance(e, EpochCompleted) for e in seen):
    time.sleep(0.05)
print("the script ends")
"""


@pytest.mark.parametrize(
    ("pipeline", "code", "said"),
    [("whole", 0, "the program ends while left runs"), ("broken", 1, "job 'left' has failed: ")],
)
def test_a_script_ends_without_closing(tmp_path: Path, pipeline: str, code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), pipeline],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "the script ends\n"), done.stderr
    assert said in done.stderr and "WARN" not in done.stderr
    written = [line for f in (tmp_path / "out").glob("*.json") for line in f.open()]
    assert len(written) == (9 if code == 0 else 0), "a last snapshot is taken"
