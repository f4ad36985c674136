"""Iceberg tables in a Glue catalog: moto's, whose server checks the version of an update first, as
AWS does and moto does not."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.exceptions import CommitFailedException

from dagster_jet import sinks
from dagster_jet.connectors.iceberg import IcebergSink
from dagster_jet.connectors.lake.lake_committer import Change
from dagster_jet.connectors.lake.staged_names import marker_of
from dagster_jet.errors import ConfigurationError
from tests.long import long

from .delta_table import SCHEMA, by, rows, stage
from .iceberg_table import APPLICATION, commit, has_committed
from .s3_folder import S3Folder
from .s3_folder import s3 as s3
from .s3_folder import server as server


class GlueTable:
    """A table in a catalog of its own namespace, which a start has created."""

    def __init__(self, s3: S3Folder, **how: Any) -> None:
        self.name = f"s{uuid.uuid4().hex}.rows"
        self.options: dict[str, Any] = {
            "catalog_options": {
                "type": "glue",
                "warehouse": s3.url,
                "glue.endpoint": s3.server.endpoint_url,
                "glue.region": "us-east-1",
            },
            "storage_options": s3.storage_options,
        }
        made = self.sink(**how)
        made.check("j", "out", is_new_job=True)
        made._of_rows.append(SCHEMA)
        made.claim_place("j", "out")
        self.out = made.at_start("j", "out", on_one_host=False)

    def sink(self, **how: Any) -> IcebergSink:
        return sinks.iceberg("lake", self.name, **how, **self.options)

    def rows(self) -> dict[int, str]:
        with closing(self.out._catalog()) as catalog:
            found = catalog.load_table(self.name).scan().to_arrow().to_pylist()
        assert len({row["id"] for row in found}) == len(found), "doubled"
        return {row["id"]: row["text"] for row in found}


def test_a_table_is_created_and_appended_to(s3: S3Folder) -> None:
    table = GlueTable(s3, partition_by="day(day)")
    sink = table.out
    staged = [*stage(sink, rows(1, 2)), *stage(sink, rows(3), epoch=2)]
    commit(sink, staged, by())
    commit(sink, staged, by(2))
    later = stage(sink, rows(4), epoch=3)
    assert has_committed(sink, staged, by(2)) and not has_committed(sink, later, by(2))
    commit(sink, later, by(2))
    assert table.rows().keys() == {1, 2, 3, 4}


@long  # as with any catalog
def test_rows_are_merged(s3: S3Folder) -> None:
    table = GlueTable(s3, mode="upsert", key="id")
    sink = table.out
    commit(sink, stage(sink, rows(1, 2)), by())
    commit(sink, stage(sink, rows(2, 3, text="new"), epoch=2), by(2))
    assert table.rows() == {1: "row 1", 2: "new", 3: "new"}


def test_a_server_that_ignores_the_condition_is_refused(s3: S3Folder) -> None:
    """moto's own Glue: a late update takes the rows of another one away."""
    table = GlueTable(s3)
    sink = table.out
    for epoch in (1, 2):
        commit(sink, stage(sink, rows(epoch), epoch=epoch), by())
    sink.check("j", "out", is_new_job=False)
    s3.server.ignore("VersionId")
    with pytest.raises(ConfigurationError, match="'lake' ignores VersionId"):
        sink.check("j", "out", is_new_job=False)
    assert table.rows().keys() == {1, 2}


@pytest.mark.parametrize(
    "is_ahead",
    [pytest.param(True, marks=long, id="same-epoch"), pytest.param(False, id="other-writer")],
)
def test_an_update_that_is_late_is_refused(s3: S3Folder, *, is_ahead: bool) -> None:
    """Another update lands after the late one has read the table and written its metadata."""
    table = GlueTable(s3)
    sink = table.out
    commit(sink, stage(sink, rows(1)), by())
    staged = stage(sink, rows(2), epoch=2)
    with closing(sink.open_committer("j", "out")) as dead:
        version = dead.open()
        assert version is not None
        catalog = version.table.catalog
        assert isinstance(catalog, GlueCatalog)
        send = catalog._update_glue_table

        def late(*given: Any, **more: Any) -> None:
            catalog._update_glue_table = send
            if is_ahead:
                commit(sink, staged, by(2))
            else:
                other = table.sink()
                with closing(other.open_committer("k", "out")) as committer:
                    committer.commit(stage(other, rows(9), epoch=9), by())
            send(*given, **more)

        catalog._update_glue_table = late
        with pytest.raises(CommitFailedException, match="concurrent update"):
            dead.append(Change(version, staged, APPLICATION, marker_of(1, 2), {}))
        dead.commit(staged, by())
    assert table.rows().keys() == ({1, 2} if is_ahead else {1, 2, 9})
