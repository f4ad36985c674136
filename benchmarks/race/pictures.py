"""Pictures of a race; `plots` draws them, in its own environment."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.race import plots
from benchmarks.race.contestants import CONTESTANTS, Contestant
from benchmarks.race.environments import prepare
from benchmarks.race.queries import QUERIES
from benchmarks.race.report import raced_entries, raced_queries
from benchmarks.race.results import Results

_ROOT = Path(__file__).parent.parent.parent
_PLOTTER = Contestant("plots", "plots", "", "", requirements=plots.REQUIREMENTS)


def pictures(results: Results) -> list[dict[str, Any]]:
    queries = raced_queries(results)

    def bars(key: str, scale: float) -> dict[str, list[float | None]]:
        return {
            label: [
                _or_none(
                    results.median("backlog", key, query=q, engine=engine, entry=entry) * scale
                )
                for q in queries
            ]
            for (engine, entry), label in raced_entries(results).items()
        }

    titles = [f"{q}\n{QUERIES[q].title}" for q in queries]
    found = [
        {"file": "rate.png", "title": "Steady rate (higher is better)",
         "unit": "thousand events per second", "groups": titles, "series": bars("steady", 1e-3)},
        {"file": "cpu.png", "title": "CPU, steady (lower is better)",
         "unit": "CPU-seconds per million events", "groups": titles,
         "series": bars("cpu_s_per_m_steady", 1.0)},
        {"file": "start.png", "title": "Start to first committed row (lower is better)",
         "unit": "seconds", "groups": titles, "series": bars("first_row_s", 1.0)},
    ]  # fmt: skip
    paced = results.data.get("paced", [])
    at_pace = [q for q in QUERIES if any(run["query"] == q for run in paced)]
    for q in at_pace:
        runs = {CONTESTANTS[run["engine"]].label: run for run in paced if run["query"] == q}
        keys = {"p50_s": "p50", "p95_s": "p95", "p99_s": "p99", "recovery_s": "SIGKILL to new row"}
        found.append(
            {
                "file": f"half-load-{q}.png",
                "title": f"{q} at half load: latency from scheduled emission, and recovery",
                "unit": "seconds",
                "groups": list(keys.values()),
                "series": {label: [run[key] for key in keys] for label, run in runs.items()},
            }
        )
    return found


def draw(results: Results, folder: Path, cache: Path) -> None:
    """Raises: NoEnvironmentError: there is no matplotlib to be had."""
    environment = prepare(_PLOTTER, cache / "environments")
    order = cache / "pictures.json"
    order.write_text(json.dumps(pictures(results)), encoding="utf-8")
    subprocess.run(
        [str(environment.python), "-m", "benchmarks.race.plots", str(order), str(folder)],
        cwd=_ROOT,
        check=True,
    )


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
