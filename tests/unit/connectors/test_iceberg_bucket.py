"""An Iceberg table in a bucket, through moto's server."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import sinks
from dagster_jet.connectors.iceberg.table_version import SNAPSHOTS_KEPT, TableVersion
from tests.long import long

from .delta_table import SCHEMA, by, rows, stage
from .iceberg_rows import NAME, options_at
from .iceberg_table import commit, has_committed
from .s3_folder import S3Folder
from .s3_folder import s3 as s3
from .s3_folder import server as server


def test_a_table_in_a_bucket(s3: S3Folder, tmp_path: Path) -> None:
    """The start creates it; the library has the endpoint and the keys of `storage_options`."""
    place: Any = {**options_at(tmp_path), "warehouse": s3.url}
    options = dict(s3.storage_options)
    made = sinks.iceberg(
        "lake", NAME, partition_by="day(day)", catalog_options=place, storage_options=options
    )
    made.check("j", "out", is_new_job=True)
    made._of_rows.append(SCHEMA)
    made.claim_place("j", "out")
    sink = made.at_start("j", "out", on_one_host=False)
    staged = [*stage(sink, rows(1, 2)), *stage(sink, rows(3), epoch=2)]
    orphan = stage(sink, rows(4), epoch=3)
    commit(sink, staged, by())
    commit(sink, staged, by(2))
    assert has_committed(sink, staged, by(2)) and not has_committed(sink, orphan, by(2))
    with closing(sink.open_committer("j", "out")) as committer:
        assert committer.abort_orphans(by(2), ()) == len(orphan)
    with closing(sink._catalog()) as catalog:
        version = TableVersion.open(catalog, NAME, "main")
        assert version is not None
        assert sorted(version.table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
        assert len(version.paths()) == 3


def test_maintenance_in_a_bucket(s3: S3Folder, tmp_path: Path) -> None:
    place: Any = {**options_at(tmp_path), "warehouse": s3.url}
    options = dict(s3.storage_options)
    made = sinks.iceberg("lake", NAME, catalog_options=place, storage_options=options)
    made._of_rows.append(SCHEMA)
    made.claim_place("j", "out")
    sink = made.at_start("j", "out", on_one_host=False)
    lost = stage(sink, rows(1))
    for epoch in (1, 2):
        commit(sink, stage(sink, rows(epoch), epoch=epoch, execution=2), by())
    staged = stage(sink, rows(3), epoch=3)
    with closing(sink._catalog()) as catalog, catalog.load_table(NAME).transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(TableVersion, "compact", killed)
        sink.maintenance("j", "out").run(0, 1 << 20)
    dead = [name for name in s3.every_name() if "compacted-" in name]
    done = sink.maintenance("j", "out").run(0, 1 << 20)
    assert (done["files_added"], done["files_replaced"]) == (1, 2) and len(dead) == 1
    assert (done["snapshots_expired"], done["files_staged"]) == (2, 1)
    names = " ".join(s3.every_name())
    assert names.count("compacted-") == 1 and dead[0] not in names
    assert staged[0].target in names and lost[0].target not in names
    assert names.count("/snap-") == 1
    commit(sink, staged, by())
    with closing(sink._catalog()) as catalog:
        found = catalog.load_table(NAME).scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == [1, 2, 3]


@long  # those of a folder expire in test_iceberg_expiry.py, files of a bucket above
def test_snapshots_that_the_sink_lets_expire_in_a_bucket(s3: S3Folder, tmp_path: Path) -> None:
    place: Any = {**options_at(tmp_path), "warehouse": s3.url}
    options = dict(s3.storage_options)
    made = sinks.iceberg("lake", NAME, catalog_options=place, storage_options=options)
    made._of_rows.append(SCHEMA)
    made.claim_place("j", "out")
    sink = made.at_start("j", "out", on_one_host=False)

    def set_property(name: str, value: str) -> None:
        with closing(sink._catalog()) as catalog, catalog.load_table(NAME).transaction() as change:
            change.set_properties({name: value})

    set_property(SNAPSHOTS_KEPT, "4")
    for epoch in range(1, 10):
        commit(sink, stage(sink, rows(epoch), epoch=epoch), by())
    sink.maintenance("j", "out").run(0, 1 << 20)
    names = " ".join(s3.every_name())
    assert names.count("/snap-") == 10 and names.count("/expired-") == 2, "they are young"
    set_property("history.expire.max-snapshot-age-ms", "0")
    sink.maintenance("j", "out").run(0, 1 << 20)
    names = " ".join(s3.every_name())
    assert names.count("/snap-") == 1 and "/expired-" not in names
    with closing(sink._catalog()) as catalog:
        found = catalog.load_table(NAME).scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == [*range(1, 10)]


def killed(*given: Any) -> None:
    """A run that dies when its files are there."""
    raise KeyboardInterrupt


def test_a_merge_in_a_bucket(s3: S3Folder, tmp_path: Path) -> None:
    """Changes that are staged are no orphans of a sink that appends."""
    place: Any = {**options_at(tmp_path), "warehouse": s3.url}
    options: dict[str, Any] = {
        "catalog_options": place,
        "storage_options": dict(s3.storage_options),
    }
    made = sinks.iceberg("lake", NAME, mode="upsert", key="id", **options)
    made._of_rows.append(SCHEMA)
    made.claim_place("j", "out")
    sink = made.at_start("j", "out", on_one_host=False)
    commit(sink, stage(sink, rows(1, 2)), by())
    staged = stage(sink, rows(2, 3, text="new"), epoch=2)
    appending = sinks.iceberg("lake", NAME, **options)
    with closing(appending.open_committer("j", "out")) as committer:
        assert committer.abort_orphans(by(2), ()) == 0
    commit(sink, staged, by(2))
    with closing(sink._catalog()) as catalog:
        found = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    assert {row["id"]: row["text"] for row in found} == {1: "row 1", 2: "new", 3: "new"}
    assert len(found) == 3 and "_dagster_jet/part-" not in " ".join(s3.every_name())


def test_a_bucket_that_is_not_there_ends_the_start(s3: S3Folder, tmp_path: Path) -> None:
    place: Any = {**options_at(tmp_path), "warehouse": "s3://not-there/lake"}
    made = sinks.iceberg(
        "lake", NAME, catalog_options=place, storage_options=dict(s3.storage_options)
    )
    made._of_rows.append(SCHEMA)
    with pytest.raises(Exception, match=r"unavailable.*(not-there|NO_SUCH_BUCKET)"):
        made.claim_place("j", "out")
