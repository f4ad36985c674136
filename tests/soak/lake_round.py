"""A round out of Kafka into tables of Delta Lake and Iceberg, and Kafka. Beside the job another
writer appends, the tables are maintained, and commits are late or are not answered."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from ..integration.connectors.kafka_world import KafkaWorld
from ..integration.connectors.plain_markers import KafkaMarkers
from ..integration.oracle import Rows
from ..servers import SharedServer, launch, stop, versitygw
from ..servers.members import AwsServer
from ..servers.proxy import Proxy
from ..unit.connectors.s3_folder import BUCKET, environment
from .kafka_round import KafkaRound
from .lake_catalogs import LakeCatalog, RestCatalog, SqlCatalog
from .lake_driver import TABLES, TOPIC
from .lake_tables import (
    OTHERS,
    READERS,
    Beside,
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
    # In tasks; the decision; the commits of Delta Lake, and of a catalog that changes one table at
    # a time; when all sinks have committed, and this is recorded.
    "lake.write.before",
    "lake.prepare.before",
    "lake.prepare.after",
    "record.snapshot.before",
    "record.snapshot.after",
    "lake.merge.written",
    "lake.expire.before",
    "lake.expire.after",
    "lake.commit.before",
    "lake.commit.after",
    "record.committed.before",
    "record.committed.after",
)
TOGETHER = ("lake.together.before", "lake.together.after")
"""Around the request of a catalog that changes several tables at once."""
WAITING = ("lake.gather.before", "lake.gather.written", "lake.gather.after")
"""Around the files with the rows of those that have waited."""
_ARMED = 0.9
"""Share of the starts that die at one of them."""
_SERVER_TOO, _WITHIN_S = 0.5, 20.0
"""Share of these starts in which a server is killed as well, and the seconds within which it is."""
_EPOCHS_MAX = 40
"""Number of epochs after which a start no longer reaches its point, and is killed at random."""


def creates_version(sent: bytes) -> bool:
    """Whether a request to a bucket is the commit of a table of Delta Lake."""
    head = sent.partition(b"\r\n")[0]
    return head.startswith(b"PUT ") and b"_delta_log/" in head and b".json" in head


class LakeRound(KafkaRound):
    """Round in which most starts end at a named point, and the others at random."""

    driver_module = "tests.soak.lake_driver"
    topics = (TOPIC,)
    _catalog: LakeCatalog | None = None
    _late_versions: LateRequests | None = None
    _cuts: CutWatch | None = None
    _watch: MarkerWatch
    _is_armed = False
    _points_seen = 0
    _aws: AwsServer | None = None
    _real_s3: SharedServer | None = None

    def _open_store(self) -> None:
        super()._open_store()
        place = self._open_place()
        storage = {}
        if place.endpoint_url:
            proxy = Proxy(urlsplit(place.endpoint_url).port or 0, is_http=True)
            self._late_versions = LateRequests(
                proxy, lambda: creates_version, self.setting.seed + 2, loses_answers=True
            )
            self._late_versions.start()
            storage = {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        warehouse = f"{place.url}/iceberg" if place.endpoint_url else f"file://{place.url}/iceberg"
        self._catalog = catalog = (
            RestCatalog(self.folder, warehouse, self.setting.seed + 1)
            if self.setting.has_rest_catalog
            else SqlCatalog(self.folder, warehouse, place.of_pyiceberg)
        )
        places = {
            "kafka": json.loads((self.folder / "broker.json").read_text())["servers"],
            "catalog": catalog.of_job,
            "delta": f"{place.url}/delta",
            "storage": storage,
        }
        (self.folder / "places.json").write_text(json.dumps(places))
        self._tables = LakeTables(self.folder, place, catalog, self._members)
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
        tables = LakeTables(self.folder, place, catalog, self._members)
        self._recoveries = Recoveries(tables, seed)
        self._beside: list[Beside] = [self._other, self._maintenance, self._recoveries]
        if isinstance(catalog, RestCatalog):
            self._cuts = CutWatch(self._tables, seed, catalog, waits=self.setting.waits)
            self._beside.append(self._cuts)

    def _open_place(self) -> Place:
        if not self.setting.is_in_bucket:
            return Place(str(self.folder))
        self._aws = AwsServer()
        os.environ.update(environment(self._aws))
        if self.setting.has_rest_catalog:
            (at := self.folder / "s3").mkdir()
            self._real_s3 = launch("versitygw", at, versitygw.prepared(at, BUCKET))
            endpoint_url = str(self._real_s3.facts["endpoint_url"])
        else:
            self._aws.__enter__()
            self._aws.create_bucket(BUCKET)
            endpoint_url = self._aws.endpoint_url
        return Place(f"s3://{BUCKET}/lake", endpoint_url)

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
        if self._late_versions is not None:
            self._late_versions.stop()
        if self._catalog is not None:
            self._catalog.close()
        if self._aws is not None:
            self._aws.close()
        if self._real_s3 is not None:
            stop(self._real_s3)

    # --- killing --------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        self._is_armed = not self._fed.is_set() and self._rng.random() < _ARMED
        if not self._is_armed:
            return {}
        points = [*POINTS, *(TOGETHER if self.setting.has_rest_catalog else ())]
        points += WAITING * 2 if self.setting.waits else ()
        rule = f"{self._rng.choice(points)}:{self._rng.choice((1, 1, 2, 3))}=kill"
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
        kills_server_at = time.monotonic() + self._rng.uniform(0, _WITHIN_S)
        if self._rng.random() > _SERVER_TOO:
            kills_server_at = float("inf")
        while self._driver.poll() is None and seen < before + _EPOCHS_MAX:
            if time.monotonic() > self._until:
                return
            self._check_progress()
            if time.monotonic() > kills_server_at:
                kills_server_at = float("inf")
                self._kill_server(self._rng.choice(self._servers_beside()))
            if (now := self._epochs()) > seen:
                seen = now
                self._waiting.progress()
            time.sleep(0.1)

    def _servers_beside(self) -> list[str]:
        return [one for one in self.setting.victims if one in ("broker", "catalog")]

    def _kill_someone(self) -> None:
        assert self._driver is not None
        if self._is_armed and self._driver.poll() is not None:  # it has ended there
            self._restart_if_dead("stopped")
        else:
            super()._kill_someone()

    def _kill_server(self, victim: str) -> None:
        if victim == "catalog":
            assert self._catalog is not None
            self._catalog.kill()
            self._count(victim)
            time.sleep(self._rng.uniform(0, 2))
            self._catalog.restart()
        elif victim != "point":  # starts are armed, not killed there
            super()._kill_server(victim)

    # --- the verdict ----------------------------------------------------------------------------

    def _in_order(self) -> dict[str, Any]:
        """Behind a stage with state there is no order."""
        return {}

    def _expected(self) -> dict[str, Rows]:
        """Expected rows of the tables, computed from the Kafka output; that is compared with the
        input."""
        sent = KafkaWorld(self._servers_of_kafka).rows("in")
        per_key = Counter(row["k"] for row in sent)
        all_rows = self._found("raw")
        newest: dict[str, Any] = {}
        for row in all_rows:
            newest[row[0]] = max(newest.get(row[0], row), row, key=lambda it: it[3])
        of_tables = {"plain": all_rows, "keyed": Counter(newest.values())}
        return {
            "raw rows": Counter((row["k"], row["ts"], row["v"]) for row in sent),
            "raw numbers": Counter((k, n) for k, c in per_key.items() for n in range(1, c + 1)),
            **{f"{reader}, {name}": of_tables[name] for reader in READERS for name in TABLES},
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
        verdict.broken += cuts.broken() if cuts else []
        ends = {sink: read() for sink, read in self._readers.items()}
        if len(set(ends.values())) != 1:
            verdict.broken.append(f"the sinks end at different epochs: {ends}")
        of_others = {
            "plain": ("pyiceberg", "plain"),
            "keyed": ("pyiceberg", "keyed"),
            "delta": ("deltalake", "plain"),
        }
        for place, (reader, table) in of_others.items():
            found = self._tables.rows(reader, table)
            theirs = Counter({row: count for row, count in found.items() if _is_other(row)})
            given = self._other.appended[place] | (self._other.unknown & theirs)
            if theirs != given:
                verdict.wrong[f"others in {place}"] = (
                    f"{(theirs - given).total() + (given - theirs).total()} rows"
                )
        points = Counter(self._points())
        if not points and time.monotonic() < self._until:
            verdict.broken.append("no start has died at a named point")
        together = self._tables.most_epochs("plain")
        if self.setting.waits and together < 2:
            verdict.broken.append("no version has rows of two epochs: they have not waited")
        verdict.notes += (
            f"points: {', '.join(f'{name} {n}' for name, n in sorted(points.items()))}\n"
            f"{self._late_requests()}{self._recoveries.seen} recoveries; "
            f"{cuts.notes() if cuts else ''}"
            f"others' rows: {sum(c.total() for c in self._other.appended.values())}; "
            f"maintenance: {dict(self._maintenance.done)}; "
            f"at most {together} epochs in a version\n{watch.notes()}"
        )

    def _late_requests(self) -> str:
        late = {
            "catalog": self._catalog.late if self._catalog else None,
            "Delta Lake": self._late_versions,
        }
        return "".join(f"{name}: {one.note()}; " for name, one in late.items() if one is not None)


def _is_other(row: tuple[Any, ...]) -> bool:
    return str(row[0]).startswith(OTHERS)
