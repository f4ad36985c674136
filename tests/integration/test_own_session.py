"""A user's Spark session stays as it is, whether a job runs beside it or is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaClass
from pyspark.sql import functions as F

from dagster_jet.spark.cluster.executors import memory_bytes
from dagster_jet.spark.cluster.session import (
    SQL_DEFAULTS,
    SQL_REQUIRED,
    activate,
    open_session,
)
from tests.long import long

from . import child
from .world import World

USERS = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from dagster_jet.errors import ConfigurationError
from tests.integration import child

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
spark.sparkContext.setLogLevel("WARN")

def settings():
    return {row.key: row.value for row in spark.sql("SET").collect()}

def hour():
    return spark.sql("SELECT hour(timestamp_millis(0))").first()[0]

before = settings()
folder = Path(sys.argv[1])
child.SPARK["spark.master"] = "local[1]"
try:
    with child.open_jet(folder) as jet:
        jet.run(child.crash_pipeline(folder))
    raise SystemExit("not refused")
except ConfigurationError as error:
    assert "already runs Spark with spark.master=local[2]" in str(error), error
assert settings() == before

child.SPARK["spark.master"] = "local[2]"
with child.open_jet(folder) as jet:
    result = jet.run(child.crash_pipeline(folder), until="completed")
    ours = jet.session()
    assert ours is not spark and ours.sparkContext is spark.sparkContext
assert settings() == before, sorted(set(settings().items()) ^ set(before.items()))
assert hour() == 9
assert SparkSession.builder.getOrCreate().conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
assert SparkSession.getActiveSession().conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
level = spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString()
assert level == "WARN", level
print(result.status.value)
"""


@long  # sessions beside each other have their own settings below
def test_a_users_session_is_not_changed(world: World) -> None:
    """Another program has started this process's Spark, with settings of its own."""
    world.fill(files=2)
    run = subprocess.run(
        [sys.executable, "-c", USERS, str(world.folder)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("COMPLETED\n")
    world.assert_exactly_once()


@pytest.mark.usefixtures("spark")
def test_sessions_have_the_settings_that_they_were_asked_for() -> None:
    other = {
        **child.SPARK,
        "spark.sql.shuffle.partitions": "5",
        "spark.sql.adaptive.enabled": "true",
    }
    ours, others = open_session(child.SPARK), open_session(other)
    assert open_session(dict(child.SPARK)) is ours and open_session(other) is others is not ours
    for session, partitions in ((ours, "2"), (others, "5")):
        wanted = {**SQL_DEFAULTS, **SQL_REQUIRED, "spark.sql.shuffle.partitions": partitions}
        assert {name: session.conf.get(name) for name in wanted} == wanted


@pytest.mark.usefixtures("spark")
def test_spark_says_how_much_memory_it_has() -> None:
    """The driver's, where tasks run in it: an epoch is bounded by that."""
    session = open_session(child.SPARK)
    heap = int(session._jvm.java.lang.Runtime.getRuntime().maxMemory())
    assert 0.3 * heap < memory_bytes(session) < heap


@pytest.mark.usefixtures("spark")
def test_an_expression_asks_the_jvm_for_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's notes of where it stands in the code would be several more."""
    activate(open_session(child.SPARK))
    one = F.lit(1) + F.lit(1)  # in a process it asks once whether to take notes
    calls: list[str] = []
    send = JavaClass.__getattr__

    def noted(self: JavaClass, name: str) -> object:
        calls.append(f"{self._fqn}.{name}")
        return send(self, name)

    monkeypatch.setattr(JavaClass, "__getattr__", noted)
    _ = one + F.lit(2)
    assert calls == ["org.apache.spark.sql.functions.lit"]


@pytest.mark.usefixtures("spark")
def test_a_large_task_leaves_no_file() -> None:
    """Failed before: PySpark wrote each task of more than 1 MB to a file, which stayed as long as
    the Spark context."""
    session = open_session(child.SPARK)
    folder, held = Path(session.sparkContext._temp_dir), os.urandom(5 << 20)

    def measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"bytes": [len(held)]})

    before = set(folder.iterdir())
    rows = session.range(0, 2, 1, 2).mapInArrow(measure, "bytes long").collect()
    assert [row.bytes for row in rows] == [len(held)] * 2
    assert set(folder.iterdir()) == before
