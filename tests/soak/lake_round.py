"""A round out of Kafka into tables of Delta Lake and Iceberg, and Kafka. Beside the job another
writer appends, the tables are maintained, and commits are late or are not answered."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ..integration.connectors.kafka_world import KafkaWorld
from ..integration.connectors.plain_markers import KafkaMarkers
from ..integration.oracle import Rows
from ..servers import SharedServer, iceberg_catalog, launch, stop
from ..servers.proxy import Proxy
from .kafka_round import KafkaRound
from .lake_driver import TABLES, TOPIC
from .lake_tables import (
    OTHERS,
    READERS,
    CutWatch,
    LakeTables,
    Maintenance,
    OtherWriter,
    Recoveries,
)
from .late_requests import LateRequests
from .marker_watch import MarkerWatch
from .three_sinks_driver import COLUMNS

_POINTS = (
    "lake.prepare.after",
    "record.snapshot.before",
    "record.snapshot.after",
    "lake.together.before",
    "lake.together.after",
    "lake.commit.before",
    "lake.commit.after",
    "lake.merge.written",
    "record.committed.before",
)


def is_commit(sent: bytes) -> bool:
    """Is it a change of one table, or of several?"""
    head = sent.partition(b"\r\n")[0]
    return head.startswith(b"POST") and (b"/tables/" in head or b"/transactions/commit" in head)


class LakeRound(KafkaRound):
    """Of the named points of a commit, one is armed at some starts."""

    driver_module = "tests.soak.lake_driver"
    topics = (TOPIC,)
    _catalog: SharedServer | None = None
    _late_commits: LateRequests | None = None
    _watch: MarkerWatch
    _is_armed = False
    _points_seen = 0

    def _open_store(self) -> None:
        super()._open_store()
        (at := self.folder / "catalog").mkdir()
        self._catalog = launch("iceberg", at, iceberg_catalog.prepared(at))
        port = self._catalog.facts["port"]
        proxy = Proxy(port, is_http=True)
        self._late_commits = LateRequests(
            proxy, lambda: is_commit, self.setting.seed + 1, loses_answers=True
        )
        self._late_commits.start()
        places = {
            "kafka": json.loads((self.folder / "broker.json").read_text())["servers"],
            "catalog": f"http://127.0.0.1:{proxy.port}",
        }
        (self.folder / "places.json").write_text(json.dumps(places))
        server = iceberg_catalog.RestCatalog(port)
        self._tables = LakeTables(self.folder, server, self._members)
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
        self._recoveries = Recoveries(LakeTables(self.folder, server, self._members), seed)
        self._beside = (self._other, self._maintenance, self._cuts, self._recoveries)

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

    # --- killing --------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        if not self._is_armed or self._fed.is_set():
            return {}
        self._is_armed = False
        rule = f"{self._rng.choice(_POINTS)}:{self._rng.randint(1, 4)}=kill"
        return {"JET_FAIL_POINTS": rule, "JET_FAIL_POINT_LOG": str(self.folder / "points")}

    def _restart_if_dead(self, until: str) -> None:
        log = self.folder / "points"
        hits = log.read_text().splitlines() if log.exists() else []
        for _ in hits[self._points_seen :]:
            self._count("point")
        self._points_seen = len(hits)
        super()._restart_if_dead(until)

    def _kill_server(self, victim: str) -> None:
        if victim == "point":  # the next start dies there
            self._is_armed = True
            return
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
        verdict.notes += (
            f"catalog: {late.late} late commits, {late.lost} lost, {late.unanswered} unanswered; "
            f"{self._recoveries.seen} recoveries; "
            f"{cuts.looks} looks, {len(cuts.cuts)} cuts, {len(cuts.mixed)} mixed; "
            f"others' rows: {sum(c.total() for c in self._other.appended.values())}; "
            f"maintenance: {dict(self._maintenance.done)}\n{watch.notes()}"
        )


def _is_other(row: tuple[Any, ...]) -> bool:
    return str(row[0]).startswith(OTHERS)
