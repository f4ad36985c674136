"""A local Iceberg table, the sink that writes to it, and what other writers do to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as LibraryTable
from pyiceberg.transforms import parse_transform

from dagster_jet import sinks
from dagster_jet.connectors.iceberg import IcebergSink
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.contract import CommitContext
from dagster_jet.snapshot.manifest import Artifact

from .delta_table import SCHEMA, rows
from .iceberg_rows import NAME, by_library, by_manifests, options_at

APPLICATION = Owner("", "", "j", "out").application(repeatable=False)


class Table:
    """A local table, and the sink that writes to it."""

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema = SCHEMA,
        *,
        by: tuple[tuple[str, str], ...] = (),
        **created: Any,
    ) -> None:
        self.folder, self.schema = folder, schema
        folder.mkdir(exist_ok=True)
        with self.catalog() as catalog:
            catalog.create_namespace_if_not_exists("space")
            table = catalog.create_table(NAME, schema, **created)
            if by:
                with table.update_spec() as spec:
                    for column, transform in by:
                        spec.add_field(column, parse_transform(transform))

    @contextmanager
    def catalog(self) -> Iterator[Any]:
        with closing(load_catalog("lake", **options_at(self.folder))) as catalog:
            yield catalog

    @contextmanager
    def opened(self) -> Iterator[LibraryTable]:
        with self.catalog() as catalog:
            yield catalog.load_table(NAME)

    @contextmanager
    def version(self) -> Iterator[TableVersion]:
        with self.opened() as table:
            yield TableVersion(table, "main")

    def sink(self, **options: Any) -> IcebergSink:
        place: Any = options_at(self.folder)
        made = sinks.iceberg("lake", NAME, catalog_options=place, **options)
        return made.at_start("j", "out", on_one_host=True)

    def ids(self, branch: str = "main") -> list[int]:
        """Ids as both readers see them."""
        found = sorted(row["id"] for row in by_manifests(self.folder, branch=branch))
        assert found == sorted(row["id"] for row in by_library(self.folder, branch=branch))
        return found

    def append(self, *ids: int) -> None:
        """Appends rows as another writer does."""
        with self.opened() as table:
            names = [name for name in SCHEMA.names if name in table.schema().column_names]
            added = pa.Table.from_batches([rows(*ids)]).select(names)
            table.append(added)

    def path_of(self, artifact: Artifact) -> Path:
        return self.folder / "warehouse" / "space" / "rows" / "data" / artifact.target


def commit(sink: IcebergSink, artifacts: Any, context: CommitContext) -> None:
    with closing(sink.open_committer(context.job, context.sink)) as committer:
        committer.commit(artifacts, context)


def has_committed(sink: IcebergSink, artifacts: Any, context: Any) -> bool:
    with closing(sink.open_committer("j", "out")) as committer:
        found: bool = committer.has_committed(artifacts, context)
        return found
