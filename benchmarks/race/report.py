"""Tables of a race, in markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.race.contestants import CONTESTANTS
from benchmarks.race.measures import geometric_mean
from benchmarks.race.queries import QUERIES
from benchmarks.race.results import BEST, DEFAULTS, Record, Results

Entry = tuple[str, str]
OURS, OURS_BEST, PEER = ("jet", DEFAULTS), ("jet", BEST), ("spark", BEST)
ENTRIES: dict[Entry, str] = {
    OURS: "dagster_jet, defaults",
    OURS_BEST: "dagster_jet, best",
    PEER: "Structured Streaming, best trigger",
    ("flink", BEST): "PyFlink",
    ("bytewax", BEST): "Bytewax",
    ("pathway", BEST): "Pathway",
}
OTHERS: tuple[Entry, ...] = (("flink", BEST), ("bytewax", BEST), ("pathway", BEST))


@dataclass(frozen=True)
class Measure:
    """A column of runs from a backlog."""

    key: str
    title: str
    says: str
    text: Callable[[float], str]


def thousands(value: float) -> str:
    return "–" if math.isnan(value) else f"{value / 1000:,.0f} k"


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def count(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def ratio(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


WHOLE_RUN = Measure("total", "Whole run", "events/s from the start of the process on", thousands)
MEASURES = (
    WHOLE_RUN,
    Measure("steady", "Steady rate",
            "events/s from first to last committed row; coarse where there are few commits (below)",
            thousands),
    Measure("marginal", "Marginal rate", "events/s from half of the input on", thousands),
    Measure("commits", "Commits", "moments at which newly committed rows were seen", count),
    Measure("first_row_s", "Start-up", "seconds from start to first committed row", number),
    Measure("cpu_s_per_m_steady", "CPU", "CPU-seconds per million events, steady", number),
    Measure("cpu_s_per_m", "CPU, whole run", "CPU-seconds per million events, start-up included",
            number),
    Measure("peak_mib", "Peak memory", "MiB, PSS of all processes", number),
    Measure("written_mb", "Written", "MB to disks", number),
)  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def raced_queries(results: Results) -> list[str]:
    return [name for name in QUERIES if results.of("backlog", query=name)]


def raced_entries(results: Results) -> dict[Entry, str]:
    return {
        entry: label
        for entry, label in ENTRIES.items()
        if results.of("backlog", engine=entry[0], entry=entry[1])
    }


def measure_table(
    results: Results, measure: Measure, entries: Mapping[Entry, str] | None = None
) -> str:
    """Args: entries: the columns; None: all that raced."""
    entries = raced_entries(results) if entries is None else entries
    rows = [
        [
            f"{query}, {QUERIES[query].title}",
            *(
                measure.text(
                    results.median("backlog", measure.key, query=query, engine=engine, entry=entry)
                )
                for engine, entry in entries
            ),
        ]
        for query in raced_queries(results)
    ]
    return table(["query", *entries.values()], rows)


def ratios(results: Results, measure: str, ours: Entry, theirs: Entry) -> dict[str, float]:
    found = {query: results.ratio(measure, query, ours, theirs) for query in raced_queries(results)}
    return {query: value for query, value in found.items() if not math.isnan(value)}


def goal_table(results: Results) -> str:
    """The issue's goals: what was asked, what was measured."""
    rows = []

    def add(title: str, measure: str, ours: Entry, theirs: Entry, goal: str) -> None:
        found = ratios(results, measure, ours, theirs)
        if found:
            each = ", ".join(f"{query} {value:.2f}" for query, value in found.items())
            rows.append([title, goal, ratio(geometric_mean(found.values())), each])

    add("rate at defaults / at best", "steady", OURS, OURS_BEST, "each ≥ 0.9")
    add("rate / Structured Streaming", "steady", OURS, PEER, "≥ 1.5, none below 1.0")
    add("CPU per row / Structured Streaming", "cpu_s_per_m_steady", OURS, PEER, "≤ 0.7")
    for entry in OTHERS:
        add(f"rate / {ENTRIES[entry]}", "steady", OURS, entry, "≥ 1.0")
    add("start-up / Structured Streaming", "first_row_s", OURS, PEER, "≤ 0.5")
    for key, title, goal in (
        ("recovery_s", "SIGKILL to first new row / Structured Streaming", "≤ 0.5"),
        ("p99_s", "p99 latency at half load / Structured Streaming", "≤ 0.5"),
    ):
        found = {}
        for query in QUERIES:
            ours, theirs = (
                results.median("paced", key, engine=engine, query=query)
                for engine in ("jet", "spark")
            )
            if not math.isnan(ours / theirs if theirs else math.nan):
                found[query] = ours / theirs
        if found:
            each = ", ".join(f"{query} {value:.2f}" for query, value in found.items())
            rows.append([title, goal, ratio(geometric_mean(found.values())), each])
    return table(["ours / theirs", "goal", "geometric mean", "each query"], rows)


def paced_table(results: Results) -> str:
    rows = []
    for run in results.data.get("paced", []):
        rows.append(
            [
                run["query"],
                CONTESTANTS[run["engine"]].label,
                thousands(run["rate"]),
                *(ratio(_float(run[key])) for key in ("p50_s", "p95_s", "p99_s")),
                *(number(_float(run[key])) for key in ("cold_start_s", "recovery_s")),
                f"{run['lost']:,}",
                f"{run['doubled']:,}",
                number(_float(run["cpu_share"])),
                number(_float(run["load"])),
            ]
        )
    head = ["query", "engine", "events/s", "p50, s", "p95, s", "p99, s", "first row, s",
            "SIGKILL to new row, s", "lost", "doubled", "cores busy", "load before"]  # fmt: skip
    return table(head, rows)


def two_sinks_table(results: Results) -> str:
    rows = []
    for run in results.data.get("two_sinks", []):
        final = run["final"]
        counted = [f"{final[key]:,}" for key in ("lost", "doubled", "diverged", "miscounted")]
        apart = ", ".join(f"{rows:,}" for rows in run["apart_after_kills"])
        rows.append([run["label"], str(run["kills"]), f"{final['expected']:,}", *counted, apart])
    head = ["engine", "kills", "bids", "lost", "doubled", "diverged", "miscounted",
            "in one sink only, right after each kill"]  # fmt: skip
    return table(head, rows)


def sweep_table(results: Results) -> str:
    rows = []
    for query in QUERIES:
        for engine in CONTESTANTS:
            tried = results.of("sweep", engine=engine, query=query)
            if tried:
                best = results.best(engine, query)
                each = "; ".join(
                    f"{_settings(run['settings'])}: {thousands(_float(run['steady']))}"
                    for run in tried
                )
                rows.append([query, CONTESTANTS[engine].label, _settings(best), each])
    return table(["query", "engine", "best", "all tried, steady events/s"], rows)


def best_in_words(results: Results) -> str:
    """Explains the entry `best`, and names the queries for which ours is the defaults."""
    if not results.of("sweep"):
        return "There was no sweep: nobody raced at its best."
    raced = results.of("backlog", engine="jet", entry=BEST)
    same = {run["query"] for run in raced if not run["settings"]}
    names = [query for query in raced_queries(results) if query in same]
    said = f"`best`: the settings that won a sweep of {_of_sweep(results)}."
    if names:
        said += (
            f" For {_listed(names)} ours are the defaults, so the difference between `defaults` "
            "and `best` is chance there."
        )
    return said


def _of_sweep(results: Results) -> str:
    events = sorted({run["events"] for run in results.of("sweep")})
    return f"one run each over {_listed([f'{number:,}' for number in events])} events"


def failures(results: Results) -> str:
    lines = [
        f"- {name}: {said}"
        for name, said in results.data["engines"].items()
        if said.startswith("not raced")
    ]
    for failed in results.data.get("failed", []):
        what = ", ".join(f"{k} {v}" for k, v in failed.items() if k != "reason")
        lines.append(f"- {what}: {_first_line(failed['reason'])}")
    return "\n".join(lines) or "None."


def page(results: Results) -> str:
    """The whole report."""
    backlog = results.data.get("backlog", [])
    events = backlog[0]["events"] if backlog else 0
    rounds = 1 + max((run["round"] for run in backlog), default=0)
    loads = [run["load"] for run in backlog]
    machine = results.data["machine"]
    parts = [
        "# The race",
        f"{events:,} NEXMark events in JSON files of 20,000, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {rounds} round(s), medians. Made by `make bench`; how, and "
        "what the words mean: [benchmarks](../README.md). Every figure is of a run whose rows were "
        "all right.",
        f"Load of the machine before the runs of rates: median {number(_median(loads))}, highest "
        f"{number(max(loads, default=math.nan))}.",
        f"Rates were measured on {results.days('backlog')}, half load on {results.days('paced')}, "
        f"two sinks on {results.days('two_sinks')}.",
        best_in_words(results),
        "## Goals",
        goal_table(results),
    ]
    for measure in MEASURES:
        parts += [f"## {measure.title}", f"{measure.says[0].upper()}{measure.says[1:]}."]
        parts.append(measure_table(results, measure))
    parts += [
        "## Half load, and a kill",
        "Input at half the rate of the slowest engine, a file every 100 ms. Latency is from the "
        "*scheduled* time of the last event that a row needs to the row's commit.",
        paced_table(results),
        "## Two sources, two sinks, killed",
        two_sinks_table(results),
        "## Sweeps",
        f"{_of_sweep(results).capitalize()}.\n\n{sweep_table(results)}"
        if results.of("sweep")
        else "There was none.",
        "## What did not run, or was wrong",
        failures(results),
    ]
    return "\n\n".join(parts) + "\n"


def short_table(results: Results) -> str:
    """Table for the project's README: events per second of the whole run, ours at defaults."""
    entries = raced_entries(results)
    entries.pop(OURS_BEST, None)
    return measure_table(results, WHOLE_RUN, entries)


def put_into_readme(readme: Path, results: Results) -> None:
    put_between(readme, "race", short_table(results))


def put_between(page: Path, name: str, text: str) -> None:
    """Replaces what is between the marks `<!-- name -->` and `<!-- /name -->` of a page."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, mark, after = rest.partition(end)
    if mark:
        page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def _settings(settings: Record) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "defaults"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _float(value: float | None) -> float:
    return math.nan if value is None else value


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else math.nan


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{lines[0]} … {lines[-1]}" if len(lines) > 1 else "".join(lines)
