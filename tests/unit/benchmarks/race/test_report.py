"""Results come back as they were saved, and tables say what they hold."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.race import report
from benchmarks.race.results import BEST, DEFAULTS, Results

(steady,) = (measure for measure in report.MEASURES if measure.key == "steady")


def run(engine: str, entry: str, steady: float | None, **more: Any) -> dict[str, Any]:
    measured = {measure.key: 1.0 for measure in report.MEASURES}
    names = {"engine": engine, "entry": entry, "query": "q1", "round": 0, "events": 10, "load": 0.5}
    return {**measured, **names, "steady": steady, **more}


def results(tmp_path: Path, *runs: dict[str, Any]) -> Results:
    found = Results(tmp_path / "race.json")
    for one in runs:
        found.add("backlog", one)
    return found


def test_a_race_is_continued_from_its_file(tmp_path: Path) -> None:
    results(tmp_path, run("jet", DEFAULTS, 100.0), run("jet", DEFAULTS, math.nan, round=1))
    text = (tmp_path / "race.json").read_text(encoding="utf-8")
    assert json.loads(text)["backlog"][1]["steady"] is None
    again = Results(tmp_path / "race.json")
    assert len(again.of("backlog", engine="jet", query="q1")) == 2
    assert again.of("backlog", engine="jet", round=2) == []
    assert again.median("backlog", "steady", engine="jet") == 100


def test_the_best_of_a_sweep_races(tmp_path: Path) -> None:
    found = Results(tmp_path / "race.json")
    assert found.best("spark", "q1") == {"files": 5}
    for files, steady, total in ((5, 10.0, 1.0), (10, 30.0, 1.0), (20, None, 20.0)):
        settings = {"files": files}
        record = {"settings": settings, "steady": steady, "total": total}
        found.add("sweep", {"engine": "spark", "query": "q1", **record})
    assert found.best("spark", "q1") == {"files": 10}
    assert "files 10" in report.sweep_table(found)


def test_ratios_are_of_medians(tmp_path: Path) -> None:
    ours = (run("jet", DEFAULTS, rate) for rate in (10.0, 30.0, 20.0))
    found = results(tmp_path, *ours, run("spark", BEST, 40.0))
    assert report.ratios(found, "steady", report.OURS, report.PEER) == {"q1": 0.5}
    line = next(line for line in report.goal_table(found).splitlines() if "rate / Struc" in line)
    assert line == "| rate / Structured Streaming | ≥ 1.5, none below 1.0 | 0.50 | q1 0.50 |"


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    found = results(tmp_path, run("jet", DEFAULTS, 212_600.0), run("spark", BEST, None))
    assert report.measure_table(found, steady).splitlines() == [
        "| query | dagster_jet, defaults | Structured Streaming, best trigger |",
        "| --- | --- | --- |",
        "| q1, stateless map | 213 k | – |",
    ]


def test_the_short_table_has_whole_runs_and_ours_at_its_defaults(tmp_path: Path) -> None:
    ours = (run("jet", entry, 1.0, total=98_400.0) for entry in (DEFAULTS, BEST))
    found = results(tmp_path, *ours, run("flink", BEST, 1.0, total=86_000.0))
    assert report.short_table(found).splitlines() == [
        "| query | dagster_jet, defaults | PyFlink |",
        "| --- | --- | --- |",
        "| q1, stateless map | 98 k | 86 k |",
    ]


def test_the_page_says_where_the_best_settings_are_the_defaults(tmp_path: Path) -> None:
    settings = {"q1": {}, "q5": {"target_epoch_duration": "200 ms"}, "q18": {}}
    found = results(
        tmp_path,
        *(run("jet", BEST, 1.0, query=query, settings=its) for query, its in settings.items()),
    )
    for query, its in settings.items():
        tried = {"steady": 1.0, "total": 1.0, "events": 1_000_000}
        found.add("sweep", {"engine": "jet", "query": query, "settings": its, **tried})
    page = report.page(found)
    assert "a sweep of one run each over 1,000,000 events. For q1 and q18 ours are the" in page
    assert "## Sweeps\n\nOne run each over 1,000,000 events." in page


def test_the_page_names_who_failed(tmp_path: Path) -> None:
    found = results(tmp_path, run("jet", DEFAULTS, 100.0))
    found.data["engines"] = {"jet": "here", "flink": "not raced: no Java"}
    found.add("failed", {"kind": "backlog", "engine": "spark", "reason": "first\nlast\n"})
    page = report.page(found)
    assert "nobody raced at its best" in page
    assert "- flink: not raced: no Java" in page
    assert f"- kind backlog, engine spark, on {date.today()}: first … last" in page


def test_the_readme_changes_between_its_marks_only(tmp_path: Path) -> None:
    found = results(tmp_path, run("jet", DEFAULTS, 1.0, total=100_000.0))
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- race -->\nold\n<!-- /race -->\nafter\n", encoding="utf-8")
    for _ in range(2):
        report.put_into_readme(readme, found)
        text = readme.read_text(encoding="utf-8")
        assert text.startswith("before\n<!-- race -->\n| query |")
        assert text.endswith("| q1, stateless map | 100 k |\n<!-- /race -->\nafter\n")


def test_a_readme_without_marks_stays_as_it_is(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no marks\n", encoding="utf-8")
    report.put_into_readme(readme, results(tmp_path, run("jet", DEFAULTS, 1.0)))
    assert readme.read_text(encoding="utf-8") == "no marks\n"
