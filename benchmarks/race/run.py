"""The plan of a race: environments, sweeps, backlogs, half load and kills, two sinks, report."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.metered_child import EngineFailedError
from benchmarks.race import half_load, pictures, report, two_sinks
from benchmarks.race.backlog import TimeOutError, run_backlog
from benchmarks.race.contestants import CONTESTANTS, Contestant
from benchmarks.race.data import Stream
from benchmarks.race.environments import Environment, NoEnvironmentError, prepare
from benchmarks.race.half_load import QUERIES_AT_PACE, Schedule, run_paced
from benchmarks.race.oracle import WrongAnswerError
from benchmarks.race.queries import QUERIES
from benchmarks.race.results import BEST, DEFAULTS, Results, Tell
from benchmarks.race.two_sinks import run_two_sinks

PARTS = ("sweep", "backlog", "paced", "two_sinks")
_RUN_ERRORS = (EngineFailedError, TimeOutError, WrongAnswerError)


@dataclass(frozen=True)
class Sizes:
    """Settings of a race: events, rounds, queries, and kills."""

    events: int = 2_000_000
    sweep_events: int = 1_000_000
    rounds: int = 2
    queries: tuple[str, ...] = tuple(QUERIES)
    at_pace: tuple[str, ...] = QUERIES_AT_PACE
    schedule: Schedule = field(default_factory=Schedule)
    kills: int = 4
    seconds_between_kills: float = 20.0


QUICK = Sizes(
    events=200_000,
    rounds=1,
    queries=("q1", "q5", "q18"),
    at_pace=("q1",),
    schedule=half_load.QUICK,
    kills=1,
    seconds_between_kills=14.0,
)


class Race:
    """Runs what `results` does not have yet."""

    def __init__(
        self, cache: Path, scratch: Path, results: Results, sizes: Sizes, tell: Tell
    ) -> None:
        self._cache, self._scratch, self._results = cache, scratch, results
        self._sizes, self._tell = sizes, tell
        self._environments: dict[str, Environment] = {}

    def prepare(self, engines: Sequence[str]) -> None:
        """An environment each; who cannot be installed is left out, and the reason recorded."""
        for name in engines:
            try:
                environment = prepare(CONTESTANTS[name], self._cache / "environments")
            except NoEnvironmentError as error:
                self._results.data["engines"][name] = f"not raced: {error}"
                self._tell(f"{name} does not race: {error}")
            else:
                self._environments[name] = environment
                requirements = " ".join(CONTESTANTS[name].requirements)
                self._results.data["engines"][name] = requirements or "the project's environment"
        self._results.save()

    def sweep(self) -> None:
        """Each setting of those who have several, once each, to find the best."""
        stream = Stream(self._sizes.sweep_events)
        for query in self._sizes.queries:
            for contestant in self._racing():
                for settings in contestant.sweep if len(contestant.sweep) > 1 else ():
                    given = dict(settings)
                    self._backlog("sweep", contestant, query, stream, given, settings=given)

    def backlog(self) -> None:
        """Rounds of all engines in random order."""
        order = random.Random(5)
        stream = Stream(self._sizes.events)
        for number in range(self._sizes.rounds):
            for query in self._sizes.queries:
                entries = [
                    (contestant, entry)
                    for contestant in self._racing()
                    for entry in self._entries(contestant, query)
                ]
                order.shuffle(entries)
                for contestant, entry in entries:
                    settings = self._results.best(contestant.name, query) if entry == BEST else {}
                    self._backlog(
                        "backlog", contestant, query, stream, settings, entry=entry, round=number
                    )

    def _entries(self, contestant: Contestant, query: str) -> tuple[str, ...]:
        """Our engine races twice, unless no sweep has found its best settings."""
        if contestant.name != "jet":
            return (BEST,)
        is_swept = bool(self._results.of("sweep", engine="jet", query=query))
        return (DEFAULTS, BEST) if is_swept else (DEFAULTS,)

    def _backlog(
        self,
        kind: str,
        contestant: Contestant,
        query: str,
        stream: Stream,
        given: dict[str, Any],
        **what: Any,
    ) -> None:
        def run() -> dict[str, Any]:
            return run_backlog(
                contestant,
                self._environments[contestant.name],
                query,
                stream,
                self._cache,
                self._scratch / "slot",
                given,
            ).as_json()

        self._once(kind, run, engine=contestant.name, query=query, **what)

    def paced(self) -> None:
        """All engines at half the steady rate of the slowest, then killed."""
        for query in self._sizes.at_pace:
            steady = [
                self._results.median("backlog", "steady", engine=one.name, query=query)
                for one in self._racing()
            ]
            rate = half_of_slowest(steady)
            for contestant in self._racing():
                self._paced(contestant, query, rate)

    def _paced(self, contestant: Contestant, query: str, rate: int) -> None:
        # Nobody has a backlog at a pace: ours runs at its defaults, the peer with all there is.
        settings = {"files": 1000} if contestant.name == "spark" else {}

        def run() -> dict[str, Any]:
            return run_paced(
                contestant,
                self._environments[contestant.name],
                query,
                rate,
                self._sizes.schedule,
                self._cache,
                self._scratch / "paced",
                settings,
            ).as_json()

        self._once("paced", run, engine=contestant.name, query=query)

    def two_sinks(self) -> None:
        """C1, for those who have two sinks."""
        for contestant in two_sinks.CONTESTANTS:
            environment = self._environments.get("jet")
            if environment is not None:
                self._two_sinks(contestant, environment)

    def _two_sinks(self, contestant: Contestant, environment: Environment) -> None:
        def run() -> dict[str, Any]:
            folder = self._scratch / "two_sinks"
            kills, between = self._sizes.kills, self._sizes.seconds_between_kills
            return run_two_sinks(
                contestant, environment, self._cache, folder, kills, between
            ).as_json()

        self._once("two_sinks", run, engine=contestant.name)

    def _racing(self) -> list[Contestant]:
        return [one for name, one in CONTESTANTS.items() if name in self._environments]

    def _once(self, kind: str, run: Callable[[], dict[str, Any]], **what: Any) -> None:
        """Runs and records, unless that was done before; a failure is a result, too."""
        name = ", ".join([kind, *(f"{key} {value}" for key, value in what.items())])
        if self._results.of(kind, **what) or self._results.of("failed", kind=kind, **what):
            return
        try:
            record = run()
        except _RUN_ERRORS as error:
            self._results.add("failed", {"kind": kind, **what, "reason": str(error)[-2000:]})
            self._tell(f"{name}: FAILED: {str(error)[-400:]}")
            return
        self._results.add(kind, {**record, **what})
        self._tell(f"{name}: {_in_short(record)}")


def half_of_slowest(steady: Sequence[float]) -> int:
    """Half of the slowest engine's rate, in whole thousands; 10,000 if no rate is known."""
    known = [rate for rate in steady if rate == rate and rate > 0]
    return max(1000, round(min(known) / 2000) * 1000) if known else 10_000


def _in_short(record: dict[str, Any]) -> str:
    wanted = (
        "first_row_s", "total", "steady", "marginal", "cpu_s_per_m_steady", "peak_mib", "load",
        "p50_s", "p99_s", "recovery_s", "lost", "doubled", "final", "apart_after_kills",
    )  # fmt: skip
    return ", ".join(
        f"{key} {value:,.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in record.items()
        if key in wanted
    )


def main(
    root: Path,
    *,
    quick: bool,
    parts: Sequence[str],
    engines: Sequence[str] | None,
    queries: Sequence[str] | None,
    rounds: int | None,
    fresh: bool,
    tell: Tell,
) -> None:
    """Races, and writes JSON, tables and pictures after all.

    Args:
        root: the project's folder. Results go to benchmarks/results; a quick race's, which mean
            little, to its cache.
    """
    cache, folder = _places(root, quick=quick)
    if quick:
        shutil.rmtree(folder, ignore_errors=True)
    elif fresh:  # other benchmarks have their results beside it
        (folder / "race.json").unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = QUICK if quick else Sizes()
    sizes = replace(sizes, queries=tuple(queries or sizes.queries), rounds=rounds or sizes.rounds)
    results = Results(folder / "race.json")
    with tempfile.TemporaryDirectory(prefix="jet-race-") as scratch:
        race = Race(cache, Path(scratch), results, sizes, tell)
        race.prepare(engines or list(CONTESTANTS))
        for part in PARTS:
            if part in parts and not (part == "sweep" and quick):
                getattr(race, part)()
    write_report(root, quick=quick, tell=tell)


def write_report(root: Path, *, quick: bool, tell: Tell) -> None:
    """Writes tables, pictures and the README's table from the saved results; races nothing."""
    cache, folder = _places(root, quick=quick)
    results = Results(folder / "race.json")
    (folder / "race.md").write_text(report.page(results), encoding="utf-8")
    try:
        pictures.draw(results, folder, cache)
    except NoEnvironmentError as error:
        tell(f"No pictures: {error}")
    if not quick:
        report.put_into_readme(root / "README.md", results)
    tell(report.short_table(results))
    tell(f"All figures: {folder / 'race.md'}")


def _places(root: Path, *, quick: bool) -> tuple[Path, Path]:
    """The race's cache, and the folder of its results."""
    cache = root / ".cache" / "race"
    return cache, cache / "quick" if quick else root / "benchmarks" / "results"
