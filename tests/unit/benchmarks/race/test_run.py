"""The plan of a race: what was done is not done again, what failed is told and does not end it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.race import pictures, report, run
from benchmarks.race.contestants import Contestant
from benchmarks.race.environments import Environment, NoEnvironmentError
from benchmarks.race.oracle import WrongAnswerError
from benchmarks.race.results import BEST, DEFAULTS, Results
from benchmarks.race.run import QUICK, Race

Started = tuple[str, str, str]


class Runs:
    """Stands in for runs; Bytewax's rows are wrong."""

    def __init__(self) -> None:
        self.started: list[Started] = []

    def __call__(self, contestant: Contestant, _: Any, query: str, *rest: Any) -> Runs:
        self.started.append((contestant.name, query, str(rest[-1])))
        if contestant.name == "bytewax":
            raise WrongAnswerError("one row is missing")
        return self

    def as_json(self) -> dict[str, Any]:
        return {"settings": {}, "steady": 10.0, "total": 5.0}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    def prepare(contestant: Contestant, cache: Path) -> Environment:
        if contestant.name == "flink":
            raise NoEnvironmentError("no Java")
        return Environment(Path(sys.executable), {})

    runs = Runs()
    monkeypatch.setattr(run, "run_backlog", runs)
    monkeypatch.setattr(run, "prepare", prepare)
    return runs


def race(folder: Path, told: list[str]) -> Race:
    results = Results(folder / "race.json")
    made = Race(folder / "cache", folder / "scratch", results, QUICK, told.append)
    made.prepare(["jet", "spark", "flink", "bytewax"])
    return made


def test_a_failure_is_recorded_and_the_race_goes_on(runs: Runs, tmp_path: Path) -> None:
    told: list[str] = []
    race(tmp_path, told).backlog()
    assert len(runs.started) == 3 * len(QUICK.queries)
    results = Results(tmp_path / "race.json")
    assert len(results.of("failed", kind="backlog", engine="bytewax")) == len(QUICK.queries)
    assert len(results.of("backlog", engine="spark", entry=BEST)) == len(QUICK.queries)
    assert any("FAILED: one row is missing" in text for text in told)


def test_a_race_that_was_stopped_goes_on(runs: Runs, tmp_path: Path) -> None:
    race(tmp_path, []).backlog()
    before = len(runs.started)
    race(tmp_path, []).backlog()
    assert len(runs.started) == before


def test_who_cannot_be_installed_is_left_out(runs: Runs, tmp_path: Path) -> None:
    race(tmp_path, []).backlog()
    assert "flink" not in {engine for engine, _, _ in runs.started}
    assert Results(tmp_path / "race.json").data["engines"]["flink"] == "not raced: no Java"


def test_ours_races_at_its_defaults_and_at_what_a_sweep_found(runs: Runs, tmp_path: Path) -> None:
    swept = race(tmp_path, [])
    swept.sweep()
    runs.started.clear()
    swept.backlog()
    found = Results(tmp_path / "race.json").of("backlog", engine="jet", query="q1")
    assert sorted(record["entry"] for record in found) == sorted([DEFAULTS, BEST])


def test_the_report_is_written_anew_without_a_race(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(contestant: Contestant, cache: Path) -> Environment:
        raise NoEnvironmentError("no network")

    monkeypatch.setattr(pictures, "prepare", prepare)
    folder, readme = tmp_path / "benchmarks" / "results", tmp_path / "README.md"
    measured = {measure.key: 2e6 for measure in report.MEASURES}
    names = {"engine": "jet", "entry": DEFAULTS, "query": "q1", "round": 0, "events": 10, "load": 0}
    Results(folder / "race.json").add("backlog", {**measured, **names})
    readme.write_text("<!-- race -->\n<!-- /race -->\n", encoding="utf-8")
    before, told = (folder / "race.json").read_bytes(), list[str]()
    run.write_report(tmp_path, quick=False, tell=told.append)
    assert "| q1, stateless map | 2,000 k |" in readme.read_text(encoding="utf-8")
    assert "| q1, stateless map | 2,000 k |" in (folder / "race.md").read_text(encoding="utf-8")
    assert told[0] == "No pictures: no network"
    assert (folder / "race.json").read_bytes() == before
    assert runs.started == []
