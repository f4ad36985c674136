"""A round under Dagster: run worker, daemon, webserver and code server are the victims.

The supervisor at its default settings is all that starts the job. Three things are judged beside
the rows: no two executions live at once; when none does a tick says why; runs that are dead are
reported. Plain code reads the rest, as it would after Dagster is gone for good.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import suppress
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.definitions.run_request import InstigatorType

from dagster_jet import Jet

from .dagster_services import SERVICES, DagsterServices
from .dagster_watch import Span, Watch, absences, longest_silence
from .driver import JOB
from .round import Round

_MARK = "JET_SOAK_FOLDER"
_TICK_SECONDS = 10.0
"""The supervisor's default interval."""
_SLOW_SECONDS = 30.0
"""What a loaded machine may add: a tick starts a process for the store's members."""
_BACK_SECONDS = 120.0
"""In which a killed daemon or code server has to tick again."""


class DagsterRound(Round):
    """The job runs in run workers that the code server starts; the round starts only services."""

    def _open_store(self) -> None:
        super()._open_store()
        self._services = DagsterServices(
            self.folder / "dagster",
            Path(__file__).with_name("dagster_definitions.py"),
            {_MARK: str(self.folder), "JET_SOAK_MEMBERS": json.dumps(self._members)},
            mark=_MARK,
        )
        self._jet = Jet(store=self._members)
        self._watch = Watch(self._jet, JOB)
        self._killed_at: list[float] = []
        """When a service was killed without which there is no tick."""

    def _start(self, until: str) -> None:
        if until == "completed":
            super()._start(until)
            return
        self._services.start()
        self._watch.start()

    def _restart_if_dead(self, until: str) -> None:
        if until == "completed":
            super()._restart_if_dead(until)

    def _kill_someone(self) -> None:
        victim = self._rng.choice(self.setting.victims)
        if victim in SERVICES:
            if self._services.kill(victim):
                self._count(victim)
                if victim != "webserver":
                    self._killed_at.append(time.time())
            return
        driver = self._watch.driver
        if driver is not None:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(driver.pid).kill()
                self._count(victim)

    def _complete(self) -> None:
        self._wait_for_progress()
        self._watch.stop()
        self._services.stop()
        self._start("completed")
        self._wait_for_completion()

    def _judge(self) -> None:
        super()._judge()
        self.verdict.starts += self._watch.executions
        ticks, unfinished = self._asked_dagster()
        if unfinished > 1:  # the newest was killed with everything else
            self.verdict.broken.append(f"{unfinished} runs are still started")
        away = absences(self._killed_at, ticks, _BACK_SECONDS)
        outages = [outage for outage in self._watch.outages if outage.end < float("inf")]
        silences = [longest_silence(outage, ticks, away) for outage in outages]
        for outage, silence in zip(outages, silences, strict=True):
            if silence > _TICK_SECONDS + _SLOW_SECONDS:
                self.verdict.broken.append(
                    f"nobody drove the job for {outage.seconds:.0f} s, and for {silence:.0f} s of "
                    "it no tick said why"
                )
        self.verdict.broken += self._watch.doubles
        self.verdict.notes = _told(outages, silences)

    def _asked_dagster(self) -> tuple[list[float], int]:
        """When ticks of the supervisor ended, in order; how many runs have no end."""
        with dg.DagsterInstance.from_config(str(self._services.home)) as instance:
            (state,) = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
            ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
            runs = instance.get_runs()
        ended = sorted(
            tick.end_timestamp or tick.timestamp for tick in ticks if not tick.is_failure
        )
        return ended, sum(not run.is_finished for run in runs)

    def _end_all(self) -> None:
        self._watch.stop()
        self._services.stop()
        self._jet.close()
        super()._end_all()


def _told(outages: list[Span], silences: list[float]) -> str:
    lengths = [outage.seconds for outage in outages]
    return (
        f"{len(outages)} times without an execution: {statistics.median(lengths):.0f} s in the "
        f"median, {max(lengths):.0f} s at most; without a word for {max(silences):.0f} s at most"
    )
