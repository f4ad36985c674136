"""A script that ends without closing its `Jet`: what it leaves, and its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.long import long

SCRIPT = """
import sys, time
from pathlib import Path
from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources
from dagster_jet.execution.events import EpochCompleted
from dagster_jet.snapshot.protocol import StopKind

def broken(frame):
    raise ValueError("broken")

def slow(service, rows):
    Path(f"{folder}/inside").touch()
    time.sleep(90)
    return rows

folder = sys.argv[1]
p = Pipeline("left")
rows = p.read_from(sources.items([{"n": n} for n in range(9)], schema="n long"), name="rows")
if sys.argv[2] == "broken":
    rows = rows.transform(broken)
if sys.argv[2] == "released":
    rows = rows.map_using_service(slow, create=dict, output_schema="n long")
rows.write_to(sinks.files(f"{folder}/out", format="json"), name="out")
seen = []
jet = Jet(store=[f"file://{folder}/store"], backup_count=0)
config = JobConfig(snapshot_interval="1 hour", restart_attempts_max=0)
job = jet.submit(p, config, on_event=seen.append)
while not job.done.is_set() and not any(isinstance(e, EpochCompleted) for e in seen):
    time.sleep(0.05)
    if Path(f"{folder}/inside").exists():
        job.request_stop(StopKind.SHUTDOWN)
        job.release_lease()
        break
print("the script ends")
"""


def run(folder: Path, pipeline: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), pipeline],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("pipeline", "code", "said"),
    [
        ("whole", 0, "the program ends while left runs"),
        pytest.param("broken", 1, "job 'left' has failed: ", marks=long),
    ],
)
def test_a_script_ends_without_closing(tmp_path: Path, pipeline: str, code: int, said: str) -> None:
    done = run(tmp_path, pipeline)
    assert (done.returncode, done.stdout) == (code, "the script ends\n"), done.stderr
    assert said in done.stderr and "WARN" not in done.stderr
    written = [line for f in (tmp_path / "out").glob("*.json") for line in f.open()]
    assert len(written) == (9 if code == 0 else 0), "a last snapshot is taken"


@long  # a script ends without closing above, too
def test_an_execution_whose_lease_was_released_is_not_waited_for(tmp_path: Path) -> None:
    """A cancelled run releases its lease after its drain budget. Failed before: the process stayed
    for up to a minute more, announced a last snapshot, and blamed a newer execution."""
    done = run(tmp_path, "released")
    assert (done.returncode, done.stdout) == (0, "the script ends\n"), done.stderr
    assert "dagster-jet:" not in done.stderr
    assert not [*(tmp_path / "out").glob("*.json")]
