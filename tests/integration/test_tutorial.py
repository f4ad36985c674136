"""The tutorials and the README do what they say, from an empty folder, from top to bottom."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from tests.long import long
from tests.servers import duckdb_reader

from .connectors.kafka_world import KafkaWorld

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def run_blocks(page: str, **replaced: str) -> dict[str, Any]:
    """Runs the Python of a page; returns the names that it has defined. A block that begins with
    the name of a file is saved there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        code = block[1]
        for what, by in replaced.items():
            code = code.replace(what, by)
        if saved := re.match(r"# (\w+\.py)\n", code):
            Path(saved[1]).write_text(code, encoding="utf-8")
            continue
        line = text.count("\n", 0, block.start(1))
        # Blank lines in front: a traceback names the line of the page.
        exec(compile("\n" * line + code, page, "exec", dont_inherit=True), names)
    return names


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as of a session in that folder
    names = run_blocks("docs/tutorial.md")
    assert len(names["results"]()) == 2
    assert names["process"].returncode == -signal.SIGKILL


@long  # the other two pages are not; Kafka and Iceberg have tests of their own
def test_from_kafka_to_iceberg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    broker = KafkaWorld()
    page = "docs/kafka-to-iceberg.md"
    names = run_blocks(page, **{"localhost:9092": broker.servers})
    assert names["job"].returncode == -signal.SIGKILL
    sent = Counter((row["id"], row["customer"], row["amount"]) for row in broker.rows("orders"))
    (metadata,) = names["catalog"].load_table("shop.orders").metadata_location.split("file://")[1:]
    rows = duckdb_reader.iceberg_rows(Path(metadata))
    assert Counter((row["id"], row["customer"], row["amount"]) for row in rows) == sent


def test_the_readme(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jet").mkdir()
    (tmp_path / "in").mkdir()
    flights = [
        {"flight": f"DL{n}", "origin": "JFK", "at": "2026-01-01T08:05:00Z", "delay": 10.0 * n}
        for n in range(5)
    ]
    (tmp_path / "in" / "a.json").write_text("".join(json.dumps(row) + "\n" for row in flights))
    names = run_blocks(
        "README.md", **{"/var/jet": str(tmp_path / "jet"), "/tmp/jet": str(tmp_path / "first")}
    )
    said = capsys.readouterr().out
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows_shown = re.findall(r"^│ .* │$", text, re.MULTILINE)
    assert len(rows_shown) == 5
    assert sorted(re.findall(r"^│ .* │$", said, re.MULTILINE)) == rows_shown
    assert names["result"].rows_in == 5
    late = (tmp_path / "out" / "late").glob("*.json")
    rows = [json.loads(line) for path in late for line in path.read_text().splitlines()]
    assert sorted(row["flight"] for row in rows) == ["DL2", "DL3", "DL4"]
    assert [key.to_user_string() for key in sorted(names["airport_delays_assets"].keys)]
    repository = names["defs"].get_repository_def()
    sensor = repository.get_sensor_def("airport_delays_supervisor")
    assert [target.job_name for target in sensor.targets] == ["airport_delays_job"]
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert repository.has_job("airport_delays_job")
