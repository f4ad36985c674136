"""A local Delta Lake table, the sink that writes to it, and what other writers do to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from dagster_jet import sinks
from dagster_jet.connectors.delta import DeltaSink
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.contract import CommitContext, Sink, TransactionId
from dagster_jet.snapshot.manifest import Artifact

from .delta_rows import by_library, by_log

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.date32())])
APPLICATION = Owner("", "", "j", "out").application(repeatable=False)


class Table:
    """A local table, and the sink that writes to it."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA, **created: Any) -> None:
        self.folder, self.schema = folder / "table", schema
        deltalake.DeltaTable.create(self.folder, schema, **created)

    def sink(self, **options: Any) -> DeltaSink:
        return sinks.delta(str(self.folder), **options).at_start("j", "out", on_one_host=True)

    @property
    def now(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.folder)

    def ids(self) -> list[int]:
        """Ids as both readers see them."""
        found = sorted(row["id"] for row in by_log(self.folder))
        assert found == sorted(row["id"] for row in by_library(str(self.folder)))
        return found

    def append(self, *ids: int) -> None:
        """Appends rows as another writer does."""
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        deltalake.write_deltalake(self.folder, rows, mode="append", schema_mode="merge")

    def set_property(self, name: str, value: str) -> None:
        """Sets a property as a writer that the library does not refuse, such as Spark, would."""
        self._change(lambda data: data["configuration"].update({name: value}))

    def change_type(self, column: str, type: str) -> None:
        def change(data: dict[str, Any]) -> None:
            schema = json.loads(data["schemaString"])
            for field in schema["fields"]:
                field["type"] = type if field["name"] == column else field["type"]
            data["schemaString"] = json.dumps(schema)

        self._change(change)

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        log = self.folder / "_delta_log"
        lines = [line for p in sorted(log.glob("*.json")) for line in p.read_text().splitlines()]
        newest = [json.loads(line)["metaData"] for line in lines if "metaData" in line][-1]
        change(newest)
        version = self.now.version() + 1
        (log / f"{version:020d}.json").write_text(json.dumps({"metaData": newest}) + "\n")


def rows(*ids: int, **values: Any) -> pa.RecordBatch:
    made = [{"id": n, "text": f"row {n}", "day": date(2026, 1, n % 28 + 1), **values} for n in ids]
    return pa.RecordBatch.from_pylist(made, SCHEMA)


def stage(
    sink: Sink,
    batch: pa.RecordBatch,
    *,
    epoch: int = 1,
    execution: int = 1,
    timeline: int = 1,
    name: str = "out",
) -> tuple[Artifact, ...]:
    writer = sink.open_writer(TransactionId("j", name, timeline, execution, epoch, 0, "a0"))
    writer.write(batch)
    return writer.prepare()


def by(
    execution: int = 1, timeline: int = 1, *, accept_loss: bool = False, name: str = "out"
) -> CommitContext:
    """`name`: of the sink."""
    return CommitContext("j", name, timeline, execution, execution > 1, accept_loss)


def commit(sink: DeltaSink, artifacts: Any, context: CommitContext | None = None) -> None:
    context = context or by()
    sink.open_committer(context.job, context.sink).commit(artifacts, context)
