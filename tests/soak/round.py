"""One world, killed again and again at random moments, completed, and judged by its rows."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.servers.members import RedisServer

from ..integration.child import ROLLUP_MS, WINDOW_MS
from ..integration.oracle import Rows, by_manifest, committed, input_rows, windowed
from ..integration.world import random_rows, write_input
from .driver import OUTPUTS
from .patience import Waiting

SERVERS = ("member", "broker", "database", "catalog", "point")
WITH_A_STANDBY = ("standby", "sleeping driver")
VICTIMS = ("driver", "jvm", "worker", "executor", *SERVERS, *WITH_A_STANDBY)
UNDER_DAGSTER = ("run worker", "daemon", "webserver", "code server")
LAKE_PLACES = ("local", "s3", "rest-s3", "rest")
"""A local folder or a bucket, and a catalog in a file, or a REST server. The bucket is moto's, or a
real server's behind the REST catalog."""
_PROGRESS_S = 300.0
"""Longest time until the next committed epoch of a job that is not killed, start included, on our
own machine."""
FILES_AHEAD = 12
"""Files per source that may wait for the job: as many as one execution or two can read."""
ROWS = 12
TASKS = 12
"""Tasks of each stage where the order of rows is checked: their numbers have two digits."""


@dataclass(frozen=True)
class Setting:
    """Settings of a round."""

    seed: int
    kills: int
    cluster: bool
    redis: bool
    kafka: bool = False
    """Rows come from Kafka and go to Kafka."""
    three_sinks: bool = False
    """Rows come from Kafka and files, and go to Kafka, PostgreSQL and Parquet."""
    lake: str = ""
    """Rows come from Kafka and go to tables of Delta Lake and Iceberg, and to Kafka: which of
    `LAKE_PLACES` has the tables."""
    postgres: bool = False
    """Rows come from Kafka and go to tables of PostgreSQL. Under Dagster: its storage is there."""
    held: bool = False
    """Sinks of Kafka and PostgreSQL write into transactions that are held over the snapshot."""
    waits: bool = False
    """Rows of lake tables that are appended to wait for larger files, and many tasks write them."""
    dagster: bool = False
    """The job runs under Dagster, whose processes are the victims."""
    standby: bool = False
    """A second process waits for the job, and takes it over."""

    @property
    def has_servers(self) -> bool:
        sinks = self.kafka or self.three_sinks or self.postgres or bool(self.lake)
        return sinks and not self.dagster

    @property
    def is_in_bucket(self) -> bool:
        return self.lake.endswith("s3")

    @property
    def has_rest_catalog(self) -> bool:
        return self.lake.startswith("rest")

    @property
    def tasks(self) -> int | None:
        if self.lake and not self.waits:
            return 2
        return TASKS if self.has_servers else None

    @property
    def master(self) -> str:
        cores = TASKS if self.waits else 2
        return "local-cluster[2,1,512]" if self.cluster else f"local[{cores}]"

    @property
    def victims(self) -> list[str]:
        if self.dagster:
            return list(UNDER_DAGSTER)
        absent = {"executor"} if not self.cluster else set()
        absent |= {"member"} if not self.redis else set()
        with_database = self.three_sinks or self.postgres
        absent |= {"broker"} if not (self.kafka or with_database or self.lake) else set()
        absent |= {"point"} if not self.lake else set()
        absent |= {"catalog"} if not self.has_rest_catalog else set()
        absent |= {"database"} if not with_database else set()
        absent |= set(WITH_A_STANDBY) if not self.standby else set()
        return [victim for victim in VICTIMS if victim not in absent]


@dataclass
class Verdict:
    """Result of a round."""

    setting: Setting
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    rows: int = 0
    wrong: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Promises that are not about rows."""
    notes: str = ""

    @property
    def rows_wrong(self) -> int:
        return sum(int(text.split()[0]) for text in self.wrong.values())


class Round:
    """A folder, a store, a job in a process of its own; whoever enters must leave."""

    driver_module = "tests.soak.driver"

    def __init__(
        self,
        folder: Path,
        setting: Setting,
        tell: Callable[[str], None],
        until: float = float("inf"),
    ) -> None:
        """`until`, on the monotonic clock: nobody is killed any more, and the rows are compared."""
        self.folder, self.setting, self._tell, self._until = folder, setting, tell, until
        self._rng = random.Random(setting.seed)
        self.verdict = Verdict(setting)
        self._servers: list[RedisServer] = []
        self._driver: subprocess.Popen[bytes] | None = None
        self._started: dict[int, psutil.Process] = {}
        """Every process of ours that was ever seen, so that none outlives the round."""
        self._files = 0
        self._waiting = Waiting(_PROGRESS_S)
        self._fed = threading.Event()

    def play(self) -> Verdict:
        feeder = threading.Thread(target=self._feed, daemon=True)
        try:
            self._open_store()
            feeder.start()
            self._start("stopped")
            self._kill_all()
            self._fed.set()
            feeder.join()
            self._complete()
            self._judge()
        finally:
            self._fed.set()
            self._end_all()
        return self.verdict

    # --- the world ------------------------------------------------------------------------------

    def _open_store(self) -> None:
        if self.setting.redis:
            for _ in range(3):
                server = RedisServer(appendonly=True)
                self._servers.append(server)
                server.start()

    @property
    def _members(self) -> list[str]:
        if self._servers:
            return [server.url for server in self._servers]
        (self.folder / "store").mkdir(exist_ok=True)
        return [f"file://{self.folder}/store/{name}" for name in "abc"]

    def _feed(self) -> None:
        while not self._fed.wait(0.1):
            if self._files > 2 * self._epochs() + FILES_AHEAD:
                continue
            self._write_files()

    def _write_files(self) -> None:
        for side, name in enumerate(("left", "right")):
            rows = random_rows(self._files, ROWS, 2 * self.setting.seed + side)
            write_input(self.folder / "in" / name, self._files, rows)
        self._files += 1

    def _start(self, until: str) -> None:
        self._driver = self._launch(until)

    def _launch(self, until: str, *, standby: bool = False) -> subprocess.Popen[bytes]:
        order = {
            "members": self._members,
            "standby": standby,
            "master": self.setting.master,
            "until": until,
            "held": self.setting.held,
            "waits": self.setting.waits,
            "tasks": self.setting.tasks,
        }
        with open(self.folder / "driver.out", "ab") as said:
            self.verdict.starts += 1
            return subprocess.Popen(
                [sys.executable, "-m", self.driver_module, str(self.folder), json.dumps(order)],
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                env=os.environ | self._environment(),
            )

    def _environment(self) -> dict[str, str]:
        """Additional environment variables of the next driver."""
        return {}

    def _restart_if_dead(self, until: str) -> None:
        """The supervisor."""
        if self._driver is None or self._driver.poll() is not None:
            self._start(until)

    def _kill_all(self) -> None:
        while self.verdict.kills.total() < self.setting.kills and time.monotonic() < self._until:
            self._wait_for_a_moment()
            self._kill_someone()

    # --- killing --------------------------------------------------------------------------------

    def _wait_for_a_moment(self) -> None:
        """Any moment: one time in three right after the last kill, in the middle of recovery."""
        if self._rng.random() > 1 / 3:
            self._wait_for_progress()
        time.sleep(self._rng.uniform(0, 1.5))

    def _wait_for_progress(self) -> None:
        before = self._epochs()
        self._waiting.progress()
        while self._epochs() <= before:
            self._restart_if_dead("stopped")
            self._check_progress()
            time.sleep(0.05)

    def _check_progress(self) -> None:
        if self._waiting.has_lasted():
            raise TimeoutError(f"no epoch was committed for {_PROGRESS_S:.0f} s: {self.folder}")

    def _epochs(self) -> int:
        """Committed ones: of the sink that has rows in every one."""
        return sum(1 for _ in (self.folder / "out" / "raw" / "_epochs").glob("*.json"))

    def _kill_someone(self) -> None:
        self._kill(self._rng.choice(self.setting.victims))

    def _kill(self, victim: str) -> None:
        self._restart_if_dead("stopped")
        if victim in SERVERS:
            self._kill_server(victim)
            return
        found = list(self._processes(victim))
        if not found:
            return  # not there at this moment: another moment, another victim
        process = self._rng.choice(found)
        with suppress(psutil.NoSuchProcess):
            process.kill()
            self._count(victim)
        if victim == "driver":
            assert self._driver is not None
            self._driver.wait()

    def _kill_server(self, victim: str) -> None:
        server = self._rng.choice(self._servers)
        server.kill()
        self._count("member")
        time.sleep(self._rng.uniform(0, 2))
        server.restart(empty=False)

    def _count(self, victim: str) -> None:
        self.verdict.kills[victim] += 1
        self._tell(victim)

    def _processes(self, kind: str) -> Iterator[psutil.Process]:
        assert self._driver is not None
        for process in self._tree():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if _kind(process, self._driver.pid) == kind:
                    yield process

    def _tree(self) -> list[psutil.Process]:
        assert self._driver is not None
        return self._tree_of(self._driver)

    def _tree_of(self, root: subprocess.Popen[bytes]) -> list[psutil.Process]:
        try:
            driver = psutil.Process(root.pid)
            tree = [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        self._started.update({process.pid: process for process in tree})
        return tree

    def _end_all(self) -> None:
        """Everything that we have started and that runs still, orphans included."""
        if self._driver is not None:
            self._tree()
        for process in self._started.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()  # a pid that was given to another process is not killed by psutil
        if self._driver is not None:
            self._driver.wait()
        for server in self._servers:
            server.close()

    # --- the verdict ----------------------------------------------------------------------------

    def _complete(self) -> None:
        """One kill more, which is not counted, and a start that reads to the end."""
        assert self._driver is not None
        self._tree()
        self._driver.kill()
        self._driver.wait()
        self._start("completed")
        self._wait_for_completion()

    def _wait_for_completion(self) -> None:
        assert self._driver is not None
        before = self._epochs()
        self._waiting.progress()
        while self._driver.poll() != 0:
            self._restart_if_dead("completed")
            if (now := self._epochs()) > before:
                before = now
                self._waiting.progress()
            if self._waiting.has_lasted():
                raise TimeoutError(f"not completed: {self.folder}")
            time.sleep(0.1)

    def _expected(self) -> dict[str, Rows]:
        rows = [row for name in ("left", "right") for row in input_rows(self.folder / "in" / name)]
        counts = windowed(rows, WINDOW_MS)
        results = [
            {"k": k, "last": end - 1, "n": n, "total": total} for k, _, end, n, total in counts
        ]
        per_key = Counter(row["k"] for row in rows)
        return {
            "counts": counts,
            "rollup": windowed(results, ROLLUP_MS, time="last", n="n", total="total"),
            "numbered": Counter(
                (k, n) for k, total in per_key.items() for n in range(1, total + 1)
            ),
            "raw": Counter((row["k"], row["ts"], row["v"]) for row in rows),
        }

    def _found(self, name: str) -> Rows:
        folder = self.folder / "out" / name
        found = by_manifest(folder, OUTPUTS[name])
        committed(folder, OUTPUTS[name])  # listing and manifests say the same
        return found

    def _judge(self) -> None:
        for name, expected in self._expected().items():
            self.verdict.rows += expected.total()
            found = self._found(name)
            missing, extra = (expected - found), (found - expected)
            if missing or extra:
                self.verdict.wrong[name] = (
                    f"{missing.total() + extra.total()} rows: missing {sorted(missing)[:3]}, "
                    f"too many {sorted(extra)[:3]}"
                )


def _kind(process: psutil.Process, driver: int) -> str:
    if process.pid == driver:
        return "driver"
    line = " ".join(process.cmdline())
    if "CoarseGrainedExecutorBackend" in line:
        return "executor"
    if os.path.basename(process.name()) == "java":
        return "jvm"
    return "worker" if "daemon" in line else "other"
