"""Results of the race in one JSON file, written after every run: a race can be continued."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.race.contestants import CONTESTANTS
from benchmarks.race.measures import best_setting

Record = dict[str, Any]
DEFAULTS, BEST = "defaults", "best"


class Results:
    """Runs by kind ("sweep", "backlog", "paced", "two_sinks", "failed"), each with its labels."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.data: Record = {"machine": machine(), "engines": {}}
        if path.exists():
            self.data |= json.loads(path.read_text(encoding="utf-8"))

    def of(self, kind: str, /, **wanted: Any) -> list[Record]:
        return [
            record
            for record in self.data.get(kind, [])
            if all(record.get(key) == value for key, value in wanted.items())
        ]

    def add(self, kind: str, record: Record) -> None:
        """Adds a run with the day of its end: a race can be continued on another day."""
        self.data.setdefault(kind, []).append({**record, "on": date.today().isoformat()})
        self.save()

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(without_nan(self.data), indent=1)
        self._path.write_text(text + "\n", encoding="utf-8")

    def days(self, kind: str) -> str:
        """The days on which runs of this kind ended."""
        return " and ".join(sorted({run["on"] for run in self.data.get(kind, [])})) or "no day"

    # What tables and plots ask for.

    def best(self, engine: str, query: str) -> Record:
        """The settings that the sweep has found best, the defaults if there was none."""
        tried = self.of("sweep", engine=engine, query=query)
        if not tried:
            return dict(CONTESTANTS[engine].sweep[0])
        rates = {json.dumps(run["settings"]): rate_of(run) for run in tried}
        chosen: Record = json.loads(best_setting(rates))
        return chosen

    def median(self, kind: str, measure: str, **wanted: Any) -> float:
        values = [run[measure] for run in self.of(kind, **wanted)]
        values = [value for value in values if value is not None]
        return statistics.median(values) if values else math.nan

    def ratio(
        self, measure: str, query: str, ours: tuple[str, str], theirs: tuple[str, str]
    ) -> float:
        """Ratio of medians; entries are (engine, defaults or best)."""
        values = [
            self.median("backlog", measure, query=query, engine=engine, entry=entry)
            for engine, entry in (ours, theirs)
        ]
        return values[0] / values[1] if values[1] else math.nan


def rate_of(run: Record) -> float:
    """Rate that a sweep compares: the steady one, or the whole run's if all came in one commit."""
    steady = run["steady"]
    return float(run["total"] if steady is None or math.isnan(steady) else steady)


def machine() -> Record:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def without_nan(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Tell = Callable[[str], None]
