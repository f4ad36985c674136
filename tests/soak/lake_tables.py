"""Tables of the soak's lake, read by plain clients, and what goes on beside the job: another
writer, maintenance, and a look at two tables of one catalog at one moment."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from dagster_jet import Jet, JetError
from dagster_jet.connectors.iceberg.table_version import SNAPSHOTS_KEPT
from dagster_jet.connectors.lake.lake_sink import LakeSink
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.errors import ConfigurationError

from ..integration import polars_reader
from ..integration.oracle import Rows
from ..servers import duckdb_reader
from .driver import JOB
from .lake_catalogs import DOWN, LakeCatalog, RestCatalog
from .lake_driver import SPACE, TABLES, pipeline
from .three_sinks_driver import COLUMNS

SCHEMA = pa.schema([("k", pa.string()), *((name, pa.int64()) for name in COLUMNS[1:])])
OTHERS = "other-"
"""Keys of another writer begin with it."""
_KEPT_S, _SNAPSHOTS_KEPT = 15, 8
_EPOCH = (1 << 40) - 1


@dataclass(frozen=True)
class Place:
    """Place of the tables.

    Attributes:
        url: of the folder of all tables, local or in a bucket.
        endpoint_url: of the bucket's server; "" if the folder is local.
    """

    url: str
    endpoint_url: str = ""

    @property
    def of_deltalake(self) -> dict[str, str]:
        if not self.endpoint_url:
            return {}
        return {
            "aws_endpoint_url": self.endpoint_url,
            "aws_allow_http": "true",
            "aws_region": "us-east-1",
            "conditional_put": "etag",
        }

    @property
    def of_pyiceberg(self) -> dict[str, str]:
        if not self.endpoint_url:
            return {}
        return {"s3.endpoint": self.endpoint_url, "s3.region": "us-east-1"}


class LakeTables:
    """Tables of both formats, as a plain client reaches them.

    Args:
        members: of the job's store.
    """

    def __init__(
        self, folder: Path, place: Place, of_iceberg: LakeCatalog, members: Sequence[str]
    ) -> None:
        self.folder, self.place, self.of_iceberg = folder, place, of_iceberg
        self.members = list(members)
        self._opened: dict[str, deltalake.DeltaTable] = {}

    def create(self) -> None:
        """Creates them, so that they keep the past for some seconds only."""
        with closing(self.catalog()) as catalog:
            catalog.create_namespace(SPACE)
            kept = {
                "history.expire.max-snapshot-age-ms": str(_KEPT_S * 1000),
                SNAPSHOTS_KEPT: str(_SNAPSHOTS_KEPT),
            }
            for name in TABLES:
                catalog.create_table(f"{SPACE}.{name}", SCHEMA, properties=kept)
        for name in TABLES:
            deltalake.DeltaTable.create(
                self.delta(name),
                deltalake.Schema.from_arrow(SCHEMA),
                configuration={"delta.deletedFileRetentionDuration": f"interval {_KEPT_S} seconds"},
                storage_options=self.place.of_deltalake,
            )

    def catalog(self) -> Any:
        return load_catalog("lake", **self.of_iceberg.of_clients, **self.place.of_pyiceberg)

    def delta(self, name: str) -> str:
        return f"{self.place.url}/delta/{name}"

    def opened(self, name: str) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.delta(name), storage_options=self.place.of_deltalake)

    @cached_property
    def home(self) -> tuple[str, str]:
        """Store and namespace of the job."""
        with Jet(store=self.members) as jet:
            return jet.store.store_id, jet.store.config.namespace

    def readers(self) -> dict[str, Callable[[], int]]:
        """Returns what reads the epoch of each sink's marker."""
        found: dict[str, Callable[[], int]] = {}
        for name in TABLES:
            found[f"delta_{name}"] = partial(self._of_delta, name)
            found[f"iceberg_{name}"] = partial(self._of_iceberg, name)
        return found

    def most_epochs(self, name: str) -> int:
        """Returns the largest number of epochs that a version of a Delta Lake table has added."""
        spans = (one.get("dagster_jet.epochs") for one in self.opened(name).history())
        ends = (span.split("-") for span in spans if span)
        return max((int(last) - int(first) + 1 for first, last in ends), default=0)

    def _of_delta(self, name: str) -> int:
        owner = Owner(*self.home, JOB, f"delta_{name}")
        if name not in self._opened:
            self._opened[name] = self.opened(name)
        (table := self._opened[name]).update_incremental()
        return (table.transaction_version(owner.application(repeatable=False)) or 0) & _EPOCH

    def _of_iceberg(self, name: str) -> int:
        return self.of_iceberg.mark(name) & _EPOCH

    def rows(self, reader: str, name: str) -> Rows:
        return Counter(tuple(row[c] for c in COLUMNS) for row in READERS[reader](self, name))

    def by_deltalake(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pa.table(self.opened(name).to_pyarrow_table()).to_pylist()
        return found

    def by_pyiceberg(self, name: str) -> list[dict[str, Any]]:
        with closing(self.catalog()) as catalog:
            table = catalog.load_table(f"{SPACE}.{name}")
            found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
            return found

    def by_duckdb_delta(self, name: str) -> list[dict[str, Any]]:
        return duckdb_reader.delta_rows(self.delta(name), self.place.endpoint_url)

    def by_duckdb_iceberg(self, name: str) -> list[dict[str, Any]]:
        return duckdb_reader.iceberg_rows(self._metadata_of(name), self.place.endpoint_url)

    def by_polars_delta(self, name: str) -> list[dict[str, Any]]:
        return polars_reader.delta_rows(self.delta(name), self.place.of_deltalake)

    def by_polars_iceberg(self, name: str) -> list[dict[str, Any]]:
        return polars_reader.iceberg_rows(self._metadata_of(name), self.place.of_pyiceberg)

    def _metadata_of(self, name: str) -> Path:
        """The catalog keeps it in memory."""
        with closing(self.catalog()) as catalog:
            metadata = catalog.load_table(f"{SPACE}.{name}").metadata.model_dump_json()
        (kept := self.folder / f"{name}.metadata.json").write_text(metadata)
        return kept


READERS: Mapping[str, Callable[[LakeTables, str], list[dict[str, Any]]]] = {
    "deltalake": LakeTables.by_deltalake,
    "pyiceberg": LakeTables.by_pyiceberg,
    "DuckDB Delta": LakeTables.by_duckdb_delta,
    "DuckDB Iceberg": LakeTables.by_duckdb_iceberg,
    "polars Delta": LakeTables.by_polars_delta,
    "polars Iceberg": LakeTables.by_polars_iceberg,
}


class Beside:
    """Does something again and again on a thread of its own, until it is stopped.

    A catalog that is down is met by the next look.

    Attributes:
        failures: what it must not have met.
    """

    every_s: tuple[float, float]

    def __init__(self, tables: LakeTables, seed: int) -> None:
        self.tables, self.rng = tables, random.Random(seed)
        self.failures: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(120)

    def once(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._over.wait(self.rng.uniform(*self.every_s)):
            try:
                self.once()
            except DOWN:
                continue
            except Exception as error:  # nobody else would see it
                self.failures.append(f"{type(self).__name__}: {type(error).__name__}: {error}")


class OtherWriter(Beside):
    """Appends rows of keys that the job does not have."""

    every_s = (1.0, 4.0)
    _number = 0

    def __init__(self, tables: LakeTables, seed: int) -> None:
        super().__init__(tables, seed)
        self.appended: dict[str, Rows] = {f: Counter() for f in ("plain", "keyed", "delta")}
        self.unknown: Rows = Counter()
        """Rows that were on their way when the catalog was killed."""

    def once(self) -> None:
        self._number += 1
        place = self.rng.choice(list(self.appended))
        row = (f"{OTHERS}{self._number}", self._number, 0, 1)
        rows = pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True))], SCHEMA)
        if place == "delta":
            deltalake.write_deltalake(
                self.tables.delta("plain"),
                rows,
                mode="append",
                storage_options=self.tables.place.of_deltalake,
            )
        else:
            with closing(self.tables.catalog()) as catalog:
                try:
                    catalog.load_table(f"{SPACE}.{place}").append(rows)
                except CommitFailedException:  # the job came first
                    return
                except DOWN:
                    self.unknown[row] += 1
                    return
        self.appended[place][row] += 1


class Maintenance(Beside):
    """Our own maintenance of all tables."""

    every_s = (2.0, 8.0)

    def __init__(self, tables: LakeTables, seed: int) -> None:
        super().__init__(tables, seed)
        self.done: Counter[str] = Counter()

    @cached_property
    def _maintained(self) -> list[Any]:
        with Jet(store=self.tables.members) as jet:
            nodes = pipeline(self.tables.folder).graph.sinks
            pairs = [(node.name, node.sink.with_store(jet.store)) for node in nodes]
        return [s.maintenance(JOB, name) for name, s in pairs if isinstance(s, LakeSink)]

    def once(self) -> None:
        one = self.rng.choice(self._maintained)
        try:
            for what, count in one.run(0, 1 << 20).items():
                if isinstance(count, int) and what not in ("table_version", "snapshots"):
                    self.done[what] += count
            self.done["runs"] += 1
        except ConfigurationError:
            raise
        except JetError:  # the network, or another commit came first
            self.done["busy"] += 1


class CutWatch(Beside):
    """Looks whether the tables of one catalog show one cut. A table whose rows wait may be behind
    the other one, and is never ahead."""

    every_s = (0.02, 0.2)

    def __init__(
        self, tables: LakeTables, seed: int, catalog: RestCatalog, *, waits: bool = False
    ) -> None:
        super().__init__(tables, seed)
        self._catalog, self._waits = catalog, waits
        self.looks, self.cuts, self.mixed = 0, set[int](), list[dict[str, int]]()

    def once(self) -> None:
        marks = self._catalog.marks()
        self.looks += 1
        self.cuts |= set(marks.values())
        is_behind = self._waits and marks.get("plain", 0) <= marks.get("keyed", 0)
        if len(set(marks.values())) > 1 and not is_behind:
            self.mixed.append(marks)

    def notes(self) -> str:
        return f"{self.looks} looks, {len(self.cuts)} cuts, {len(self.mixed)} mixed; "

    def broken(self) -> list[str]:
        found = [f"{len(self.mixed)} mixed cuts: {self.mixed[:3]}"] if self.mixed else []
        if len(self.cuts) < 3:
            found.append(f"the tables were never seen between commits: {self.cuts}")
        return found


class Recoveries(Beside):
    """Looks after each recovery whether all tables have what the restored snapshot owed.

    Args:
        tables: not those of another thread.
    """

    every_s = (0.1, 0.3)
    seen = 0
    _read = 0

    def __init__(self, tables: LakeTables, seed: int) -> None:
        super().__init__(tables, seed)
        self._with_rows: set[int] = set()
        """Epochs with rows. Others leave no marker."""

    def once(self) -> None:
        with (self.tables.folder / "driver.out").open("rb") as said:
            said.seek(self._read)
            lines = said.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                return
            if found := re.match(rb"EpochCompleted\(.*epoch_id=(\d+), rows=(\d+)", line):
                epoch = int(found[1])
                (self._with_rows.add if int(found[2]) else self._with_rows.discard)(epoch)
            if found := re.match(rb"ExecutionStarted\(.*restored_epoch_id=(\d+)", line):
                self._check(int(found[1]))
            self._read += len(line)

    def _check(self, restored: int) -> None:
        epoch = max((one for one in self._with_rows if one <= restored), default=0)
        if not any(self._are_at(epoch) for _ in range(3)):
            self.failures.append(f"after the recovery of epoch {epoch} a table lacks it")
        self.seen += 1

    def _are_at(self, epoch: int) -> bool:
        """A commit may come between two of the reads."""
        found = {read() for read in self.tables.readers().values()}
        return min(found) >= epoch or len(found) == 1
