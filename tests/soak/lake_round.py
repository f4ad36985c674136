"""A round out of Kafka into tables of Delta Lake and Iceberg, and Kafka. Beside the job another
writer appends, the tables are maintained, and commits are late or are not answered."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from typing import Any

from ..integration.connectors.kafka_world import KafkaWorld
from ..integration.connectors.plain_markers import KafkaMarkers
from ..integration.oracle import Rows
from ..servers import SharedServer, iceberg_catalog, launch, stop
from ..servers.members import AwsServer
from ..servers.proxy import Proxy
from ..unit.connectors.s3_folder import BUCKET, environment
from .kafka_round import KafkaRound
from .lake_driver import TABLES, TOPIC
from .lake_tables import (
    LOCAL_READERS,
    OTHERS,
    READERS,
    CutWatch,
    LakeTables,
    Maintenance,
    OtherWriter,
    Place,
    Recoveries,
)
from .late_requests import LateRequests
from .marker_watch import MarkerWatch
from .three_sinks_driver import COLUMNS

POINTS = (
    # In tasks; the decision; the request of the catalog, and the commits of Delta Lake; when all
    # sinks have committed, and this is recorded.
    "lake.write.before",
    "lake.prepare.before",
    "lake.prepare.after",
    "record.snapshot.before",
    "record.snapshot.after",
    "lake.merge.written",
    "lake.together.before",
    "lake.together.after",
    "lake.expire.before",
    "lake.expire.after",
    "lake.commit.before",
    "lake.commit.after",
    "record.committed.before",
    "record.committed.after",
)
_ARMED = 0.9
"""Share of the starts that die at one of them."""
_EPOCHS_MAX = 40
"""After so many, a start does not reach its point any more, and dies at random."""


def is_commit(sent: bytes) -> bool:
    """Is it a change of one table, or of several?"""
    head = sent.partition(b"\r\n")[0]
    return head.startswith(b"POST") and (b"/tables/" in head or b"/transactions/commit" in head)


class LakeRound(KafkaRound):
    """Most starts are ended at a named point, and the others at random."""

    driver_module = "tests.soak.lake_driver"
    topics = (TOPIC,)
    _catalog: SharedServer | None = None
    _late_commits: LateRequests | None = None
    _watch: MarkerWatch
    _is_armed = False
    _points_seen = 0
    _aws: AwsServer | None = None

    def _open_store(self) -> None:
        super()._open_store()
        place = self._open_place()
        (at := self.folder / "catalog").mkdir()
        warehouse = f"{place.url}/iceberg" if place.server else f"file://{place.url}/iceberg"
        self._catalog = launch("iceberg", at, iceberg_catalog.prepared(at, warehouse))
        port = self._catalog.facts["port"]
        proxy = Proxy(port, is_http=True)
        self._late_commits = LateRequests(
            proxy, lambda: is_commit, self.setting.seed + 1, loses_answers=True
        )
        self._late_commits.start()
        places = {
            "kafka": json.loads((self.folder / "broker.json").read_text())["servers"],
            "catalog": f"http://127.0.0.1:{proxy.port}",
            "delta": f"{place.url}/delta",
            "storage": place.of_sinks,
        }
        (self.folder / "places.json").write_text(json.dumps(places))
        server = iceberg_catalog.RestCatalog(port)
        self._tables = LakeTables(self.folder, place, server, self._members)
        self._tables.create()
        rolled, held = (
            KafkaMarkers(self._servers_of_kafka, "to_kafka", topic)
            for topic in ("dagster-jet-markers", "dagster-jet-markers-held")
        )
        self._readers = {**self._tables.readers(), "to_kafka": lambda: max(rolled(), held())}
        hidden = {"to_kafka"} if self.setting.held else set()
        self._watch = MarkerWatch(self._members, self._readers, hidden)
        seed = self.setting.seed
        self._other = OtherWriter(self._tables, seed)
        self._maintenance = Maintenance(self._tables, seed)
        self._cuts = CutWatch(self._tables, seed)
        tables = LakeTables(self.folder, place, server, self._members)
        self._recoveries = Recoveries(tables, seed)
        self._beside = (self._other, self._maintenance, self._cuts, self._recoveries)

    def _open_place(self) -> Place:
        if not self.setting.s3:
            return Place(str(self.folder))
        self._aws = AwsServer().__enter__()
        os.environ.update(environment(self._aws))
        self._aws.create_bucket(BUCKET)
        return Place(f"s3://{BUCKET}/lake", self._aws)

    def _kill_all(self) -> None:
        self._watch.start()
        for one in self._beside:
            one.start()
        super()._kill_all()

    def _complete(self) -> None:
        super()._complete()
        for one in self._beside:
            one.stop()
        self._watch.stop()

    def _end_all(self) -> None:
        if hasattr(self, "_beside"):
            for one in self._beside:
                one.stop()
            self._watch.stop()
        super()._end_all()
        if self._late_commits is not None:
            self._late_commits.stop()
        if self._catalog is not None:
            stop(self._catalog)
        if self._aws is not None:
            self._aws.close()

    # --- killing --------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        self._is_armed = not self._fed.is_set() and self._rng.random() < _ARMED
        if not self._is_armed:
            return {}
        rule = f"{self._rng.choice(POINTS)}:{self._rng.randint(1, 4)}=kill"
        return {"JET_FAIL_POINTS": rule, "JET_FAIL_POINT_LOG": str(self.folder / "points")}

    def _points(self) -> list[str]:
        """Returns the points at which drivers have died."""
        log = self.folder / "points"
        return re.findall("^(.+)=kill", log.read_text() if log.exists() else "", re.MULTILINE)

    def _restart_if_dead(self, until: str) -> None:
        for _ in (points := self._points())[self._points_seen :]:
            self._count("point")
        self._points_seen = len(points)
        super()._restart_if_dead(until)

    def _wait_for_a_moment(self) -> None:
        if not self._is_armed:
            super()._wait_for_a_moment()
            return
        assert self._driver is not None
        before = seen = self._epochs()
        self._waiting.progress()
        while self._driver.poll() is None and seen < before + _EPOCHS_MAX:
            self._check_progress()
            if (now := self._epochs()) > seen:
                seen = now
                self._waiting.progress()
            time.sleep(0.05)

    def _kill_someone(self) -> None:
        assert self._driver is not None
        if self._is_armed and self._driver.poll() is not None:  # it has ended there
            self._restart_if_dead("stopped")
        else:
            super()._kill_someone()

    def _kill_server(self, victim: str) -> None:
        if victim != "point":  # starts are armed, not killed there
            super()._kill_server(victim)

    # --- the verdict ----------------------------------------------------------------------------

    def _in_order(self) -> dict[str, Any]:
        """Behind a stage with state there is no order."""
        return {}

    def _expected(self) -> dict[str, Rows]:
        """What came out of Kafka is compared with what went in, and the tables with that."""
        sent = KafkaWorld(self._servers_of_kafka).rows("in")
        per_key = Counter(row["k"] for row in sent)
        all_rows = self._found("raw")
        newest: dict[str, Any] = {}
        for row in all_rows:
            newest[row[0]] = max(newest.get(row[0], row), row, key=lambda it: it[3])
        of_tables = {"plain": all_rows, "keyed": Counter(newest.values())}
        readers = READERS.keys() - (LOCAL_READERS if self.setting.s3 else set())
        return {
            "raw rows": Counter((row["k"], row["ts"], row["v"]) for row in sent),
            "raw numbers": Counter((k, n) for k, c in per_key.items() for n in range(1, c + 1)),
            **{f"{reader}, {name}": of_tables[name] for reader in readers for name in TABLES},
        }

    def _found(self, name: str) -> Rows:
        reader, _, table = name.partition(", ")
        if table:
            rows = self._tables.rows(reader, table)
            return Counter({r: count for r, count in rows.items() if not _is_other(r)})
        found = Counter(tuple(row[c] for c in COLUMNS) for row in self._rows_of(TOPIC))
        if name == "raw rows":
            return Counter(row[:3] for row in found.elements())
        if name == "raw numbers":
            return Counter((row[0], row[3]) for row in found.elements())
        return found

    def _judge(self) -> None:
        self._maintenance.once()
        super()._judge()
        verdict, watch, cuts = self.verdict, self._watch, self._cuts
        verdict.broken += watch.broken()
        verdict.broken += [one for beside in self._beside for one in beside.failures[:2]]
        if cuts.mixed:
            verdict.broken.append(f"{len(cuts.mixed)} mixed cuts: {cuts.mixed[:3]}")
        if len(cuts.cuts) < 3:
            verdict.broken.append(f"the tables were never seen between commits: {cuts.cuts}")
        ends = {sink: read() for sink, read in self._readers.items()}
        if len(set(ends.values())) != 1:
            verdict.broken.append(f"the sinks end at different epochs: {ends}")
        of_others = {
            "plain": ("pyiceberg", "plain"),
            "keyed": ("pyiceberg", "keyed"),
            "delta": ("deltalake", "plain"),
        }
        for place, (reader, table) in of_others.items():
            given = self._other.appended[place]
            found = self._tables.rows(reader, table)
            theirs = Counter({row: count for row, count in found.items() if _is_other(row)})
            if theirs != given:
                verdict.wrong[f"others in {place}"] = (
                    f"{(theirs - given).total() + (given - theirs).total()} rows"
                )
        late = self._late_commits
        assert late is not None
        points = Counter(self._points())
        if not points:
            verdict.broken.append("no start has died at a named point")
        verdict.notes += (
            f"points: {', '.join(f'{name} {n}' for name, n in sorted(points.items()))}\n"
            f"catalog: {late.late} late commits, {late.lost} lost, {late.unanswered} unanswered; "
            f"{self._recoveries.seen} recoveries; "
            f"{cuts.looks} looks, {len(cuts.cuts)} cuts, {len(cuts.mixed)} mixed; "
            f"others' rows: {sum(c.total() for c in self._other.appended.values())}; "
            f"maintenance: {dict(self._maintenance.done)}\n{watch.notes()}"
        )


def _is_other(row: tuple[Any, ...]) -> bool:
    return str(row[0]).startswith(OTHERS)
