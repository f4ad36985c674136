"""Starts Dagster with its streams, feeds them, kills one, and looks at all of it every minute."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import psutil

from benchmarks.ten_streams import storage
from benchmarks.ten_streams.names import FOLDER, STREAMS, name_of
from benchmarks.ten_streams.processes import Usage
from benchmarks.ten_streams.world import World
from dagster_jet import Jet
from tests.servers.postgres import PostgresDatabase, postgres, postgres_server
from tests.servers.shared import new_run, stop_all, wait_until
from tests.soak.dagster_services import ON_POSTGRES, DagsterServices
from tests.soak.dagster_watch import Watch

_LEAST_FREE = 1.5 * 2**30
"""Bytes; with less the measurement ends, before the kernel ends something else."""
_MIB = 2**20


@dataclass(frozen=True)
class Plan:
    """Size and duration of a measurement.

    Attributes:
        streams: how many, in one code location.
        minutes: how long, starts included.
        file_every_s: seconds between two files of a stream.
        sample_every_s: seconds between two looks.
    """

    streams: int = 10
    minutes: float = 60
    file_every_s: float = 45
    sample_every_s: float = 60


def run(folder: Path, plan: Plan, *, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measures; leaves no process.

    Args:
        folder: is made.
        plan: how long, and how much.
        tell: gets a line per look.
    """
    world = World(folder, plan.streams, plan.file_every_s)
    servers = new_run()
    try:
        database = postgres()
        os.environ.update(database.dagster_variables)  # this process reads the instance, too
        services = DagsterServices(
            folder / "home",
            Path(__file__).with_name("location.py"),
            {FOLDER: str(folder), STREAMS: str(plan.streams), **database.dagster_variables},
            mark=FOLDER,
            settings=ON_POSTGRES,
        )
        try:
            return _Measurement(plan, world, services, database, tell).run()
        finally:
            world.stop()
            services.stop()
    finally:
        stop_all(servers)


@dataclass
class _Measurement:
    plan: Plan
    world: World
    services: DagsterServices
    database: PostgresDatabase
    tell: Callable[[str], None]

    def run(self) -> dict[str, Any]:
        begun, usage = time.time(), Usage()
        samples: list[dict[str, Any]] = []
        kill: dict[str, Any] = {}
        self.services.start()
        self.world.start()
        with dg.DagsterInstance.from_config(str(self.services.home)) as instance:
            while (passed := time.time() - begun) < self.plan.minutes * 60:
                if not kill and passed > self.plan.minutes * 30:
                    kill = self._kill(self.plan.streams // 2)
                samples.append({"s": round(time.time() - begun, 1), **self._looked(usage)})
                if psutil.virtual_memory().available < _LEAST_FREE:
                    self.tell("ends early: the machine has no memory left")
                    break
                every = self.plan.sample_every_s
                time.sleep(every - (time.time() - begun) % every)
            self.world.stop()
            return {
                "plan": asdict(self.plan),
                "begun": begun,
                "files": self.world.files,
                "first_rows_s": [
                    round(times[0] - begun, 1) if times else None
                    for times in map(self.world.commits, range(self.plan.streams))
                ],
                "kill": kill,
                "samples": samples,
                "rows": self.world.compared(),
                "ticks": storage.ticks(instance),
                "runs": storage.runs(instance),
                "storage": storage.contents(self.database),
            }

    def _looked(self, usage: Usage) -> dict[str, Any]:
        keeper = psutil.Process(postgres_server().keeper)
        known = {kind: [process] for kind, process in self.services.running().items()}
        known["PostgreSQL"] = [keeper, *keeper.children(recursive=True)]
        memory = usage.look({**known, "family": list(self.services.family())})
        load = os.getloadavg()[0]
        told = ", ".join(f"{len(each)} {kind} {sum(each):,.0f}" for kind, each in memory.items())
        self.tell(f"load {load:.1f}; MiB: {told}")
        return {
            "load": load,
            "machine_cpu_percent": psutil.cpu_percent(),
            "machine_available_mib": psutil.virtual_memory().available // _MIB,
            "memory_mib": {kind: [round(mib) for mib in each] for kind, each in memory.items()},
            "cpu_s": {kind: round(seconds, 1) for kind, seconds in usage.cpu_seconds.items()},
            "storage": storage.stored(self.database),
            "streaming": sum(
                bool(self.world.commits(stream)) for stream in range(self.plan.streams)
            ),
        }

    def _kill(self, stream: int) -> dict[str, Any]:
        """SIGKILL to the process of one run; returns how its stream came back."""
        with Jet(store=self.world.members) as jet:
            watch = Watch(jet, name_of(stream))
            watch.start()
            try:
                wait_until(lambda: watch.driver is not None, within=30)
                driver = watch.driver
                assert driver is not None
                at = time.time()
                psutil.Process(driver.pid).kill()
                self.world.write(stream)
                result: dict[str, Any] = {"stream": stream, "at": at}
                with suppress(TimeoutError):
                    wait_until(lambda: self.world.last_commit(stream) > at, within=600)
                    result["committed_after_s"] = self.world.last_commit(stream) - at
            except TimeoutError:
                return {"stream": stream, "failed": f"nobody drives it {watch.died}"}
            finally:
                watch.stop()
        result["without_execution_s"] = [outage.seconds for outage in watch.outages[1:]]
        result["doubles"] = watch.doubles
        self.tell(f"killed: {result}")
        return result
