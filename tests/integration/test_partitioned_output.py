"""Into partitioned files every row is written once, whenever the driver dies; Spark and DuckDB read
them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from dagster_jet import Jet, JobConfig, JobResult, Pipeline, sinks, sources
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing import collected
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long

from . import child, partition_child
from .oracle import Rows, parts_of
from .world import OUTPUTS, World, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ = {
    "counts": "read_json('{}', columns={{window_start: 'timestamptz', window_end: 'timestamptz', "
    "n: 'long', total: 'long'}}, hive_partitioning=true)",
    "rollup": "read_parquet('{}')",
    "big": "read_json('{}', hive_partitioning=true, hive_types={{'v': bigint}})",
}


class PartitionedWorld(World):
    """A world whose outputs DuckDB reads: the files that markers list."""

    driver = staticmethod(partition_child.main)

    def committed(self) -> dict[str, Rows]:
        found: dict[str, Rows] = {}
        for name, columns in OUTPUTS.items():
            folder = self.folder / "out" / name
            parts = parts_of(folder)
            rows: Rows = Counter()
            for part in parts:
                shown = (f"epoch_ms({c}) AS {c}" if "window_" in c else c for c in columns)
                query = f"SELECT {', '.join(shown)} FROM {READ[name].format(folder / part['name'])}"
                of_file = duckdb.sql(query).fetchall()
                assert len(of_file) == part["rows"], part
                rows.update(of_file)
            found[name] = rows
        return found

    def assert_nothing_doubled(self) -> None:
        expected, found = self.expected(), self.committed()
        assert not any(found[name] - expected[name] for name in found)

    def assert_listed(self) -> None:
        """Asserts that at the end a plain listing has the files that the markers list."""
        for name in OUTPUTS:
            folder = self.folder / "out" / name
            shown = [str(path.relative_to(folder)) for path in folder.rglob("part-*")
                     if ".staging" not in path.parts]  # fmt: skip
            assert sorted(shown) == sorted(part["name"] for part in parts_of(folder))

    def run(self, until: str = "completed") -> JobResult:  # type: ignore[override]
        with self.jet() as jet:
            return jet.run(
                partition_child.partition_pipeline(self.folder),
                JobConfig(**child.CONFIG),
                until=until,
                on_event=self.see,
            )


@pytest.mark.parametrize(
    "rules",
    [
        "files.commit.file:9=kill",
        pytest.param("files.commit.file:2=kill", marks=long),
        pytest.param("files.commit.file:31=kill", marks=long),
        pytest.param("files.prepare.after:7=kill", marks=long),
        pytest.param("files.commit.renamed:2=kill", marks=long),
        pytest.param("files.commit.marker:3=kill", marks=long),
    ],
)
def test_killed_between_two_files_of_an_epoch(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, rules: str
) -> None:
    world = PartitionedWorld(tmp_path, fail_points, spark)
    world.fill(files=3)
    world.run_child(rules)
    world.assert_nothing_doubled()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    world.assert_listed()
    assert world.staged() == []


NAMES = ["FR", "a/b=c", "100%", "ä ü", "[x]*?", None]


def test_our_source_and_spark_read_the_folders(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        {"id": n, "day": f"2026-07-{15 + n % 2}", "c": NAMES[n % 6], "list": [n]} for n in range(24)
    ]
    schema, shape = "id bigint, day date, c string", "id bigint, list array<bigint>"
    out = f"{tmp_path}/out"
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0, spark=child.SPARK) as jet:
        p = Pipeline("write")
        items = p.read_from(sources.items(rows, schema="id long, day string, c string, "
                                          "list array<bigint>"), name="items")  # fmt: skip
        typed = items.select("id", "list", "date(day) AS day", "c")
        typed.write_to(sinks.files(out, format="json", partition_by=["day", "c"]), name="out")
        jet.run(p, until="completed")
        p = Pipeline("read")
        source = sources.files(f"{out}/day=*/c=*/*.json", format="json", schema=schema)
        p.read_from(source, name="files").write_to(sinks.collect("read"), name="out")
        jet.run(p, until="drained")
    ours = collected("read").to_pylist()
    expected = Counter((r["id"], r["day"], r["c"]) for r in rows)
    assert Counter((r["id"], str(r["day"]), r["c"]) for r in ours) == expected
    frame = spark.read.schema(f"{shape}, day date, c string").json(out)
    theirs = frame.collect()
    assert Counter((r["id"], str(r["day"]), r["c"]) for r in theirs) == expected
    assert all(row["list"] == [row["id"]] for row in theirs)
    # Spark gives the folders the same names.
    again = tmp_path / "spark"
    frame.write.partitionBy("day", "c").json(str(again))
    assert folders(again) == folders(Path(out))


def folders(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.glob("day=*/*")}


def test_a_start_with_other_partitions_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    write_input(tmp_path / "in", 0, [{"id": n, "third": n % 3} for n in range(6)])
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0, spark=child.SPARK) as jet:

        def run(partition_by: str | tuple[str, ...], out: str = "out") -> None:
            p = Pipeline("changing")
            source = sources.files(f"{tmp_path}/in", format="json", schema="id int, third int")
            sink = sinks.files(f"{tmp_path}/{out}", format="json", partition_by=partition_by)
            p.read_from(source, name="files").write_to(sink, name="out")
            jet.run(p, until="drained")

        run("third")
        for by in ((), "id"):
            with pytest.raises(ConfigurationError, match="has files that are partitioned by third"):
                run(by)
        with pytest.raises(ConfigurationError, match="'day' is not a column; there are id, third"):
            run("day", out="other")
    assert len(list((tmp_path / "out").glob("third=*/*"))) == 3
