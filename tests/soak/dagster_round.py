"""A round under Dagster: run worker, daemon, webserver and code server are the victims.

The supervisor at its default settings is all that starts the job. Four things are judged beside
the rows: no two executions live at once; when none does every tick says why, and says the truth; no
longer than a tick and a start-up does none, but for a back-off that a tick announced; runs that are
dead are reported. Plain code reads the rest, as it would after Dagster is gone for good.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.definitions.run_request import InstigatorType

from dagster_jet import Jet

from ..servers.postgres import postgres
from ..servers.shared import new_run, stop_all
from .dagster_services import ON_POSTGRES, ON_SQLITE, SERVICES, DagsterServices
from .dagster_watch import Patience, Span, Tick, Watch, faults
from .driver import JOB
from .round import Round

_MARK = "JET_SOAK_FOLDER"


class DagsterRound(Round):
    """The job runs in run workers that the code server starts; the round starts only services."""

    _servers_of_storage: Path | None = None

    def _open_store(self) -> None:
        super()._open_store()
        environment = {_MARK: str(self.folder), "JET_SOAK_MEMBERS": json.dumps(self._members)}
        if self.setting.postgres:
            self._servers_of_storage = new_run()
            environment |= (storage := postgres().dagster_variables)
            os.environ.update(storage)  # this process reads the instance, too
        self._services = DagsterServices(
            self.folder / "dagster",
            Path(__file__).with_name("dagster_definitions.py"),
            environment,
            mark=_MARK,
            settings=ON_POSTGRES if self.setting.postgres else ON_SQLITE,
        )
        self._jet = Jet(store=self._members)
        self._watch = Watch(self._jet, JOB)
        self._killed_at: list[float] = []
        """Times at which a service was killed, or started, without which there is no tick."""

    def _start(self, until: str) -> None:
        if until == "completed":
            super()._start(until)
            return
        self._services.start()
        self._killed_at.append(time.time())
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
        self._write_files()  # by now all others may have been read
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
        patience = Patience().on_a_machine_so_slow(self._waiting.slowest)
        outages = [outage for outage in self._watch.outages if outage.end < float("inf")]
        for outage in outages:
            self.verdict.broken += faults(outage, ticks, self._killed_at, patience)
        self.verdict.broken += self._watch.doubles
        if self._watch.died:
            self.verdict.broken.append(f"the watch of the job is dead: {self._watch.died}")
        storage = "PostgreSQL" if self.setting.postgres else "SQLite"
        self.verdict.notes = f"Dagster's storage is {storage}; {_told(outages, ticks)}"

    def _asked_dagster(self) -> tuple[list[Tick], int]:
        """The ticks of the supervisor, in order; how many runs have no end."""
        with dg.DagsterInstance.from_config(str(self._services.home)) as instance:
            (state,) = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
            ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
            runs = instance.get_runs()
        told = [
            Tick(
                tick.timestamp,
                tick.end_timestamp or tick.timestamp,
                "restart" if tick.run_ids or tick.run_keys else tick.skip_reason or "",
            )
            for tick in ticks
            if tick.is_completed and not tick.is_failure
        ]
        told.sort(key=lambda tick: tick.begun)
        return told, sum(not run.is_finished for run in runs)

    def _end_all(self) -> None:
        self._watch.stop()
        self._services.stop()
        self._jet.close()
        if self._servers_of_storage is not None:
            stop_all(self._servers_of_storage)
        super()._end_all()


def _told(outages: list[Span], ticks: list[Tick]) -> str:
    lengths = [outage.seconds for outage in outages]
    said = Counter(
        tick.verdict
        for tick in ticks
        for outage in outages
        if outage.begin < tick.begun and tick.ended < outage.end
    )
    return (
        f"{len(outages)} times without an execution: {statistics.median(lengths):.0f} s in the "
        f"median, {max(lengths):.0f} s at most; of ticks in them "
        f"{', '.join(f'{count} said {verdict}' for verdict, count in said.items())}"
    )
