"""Jobs whose tasks raise, in our code or a user's, and the errors that they report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from dagster_jet import Jet, JobConfig, JournalConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.connectors.files import parquet_tasks, text_tasks
from dagster_jet.connectors.generated import items
from dagster_jet.connectors.generated.nexmark import nexmark_source as nexmark
from dagster_jet.connectors.maps import entries, journal
from dagster_jet.dag import ItemProcessor
from dagster_jet.errors import JetError
from dagster_jet.pipeline import Stage
from dagster_jet.spark import runtime, state_frame
from dagster_jet.spark.cluster import versions
from dagster_jet.spark.errors import translate
from dagster_jet.spark.frames import column_names
from dagster_jet.system.own_task import OwnTask

from .child import open_jet
from .world import write_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "k string, ts long, v long"
SHARED = {"shared": True}
Row = dict[str, Any]
Change = Callable[[Stage], Stage]


# --- ours -----------------------------------------------------------------------------------------


def breaks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A bug of this library's, whatever the task was to do."""
    for _ in batches:
        pass
    yield [][0]


@contextmanager
def broken(module: ModuleType, stage: str | None = None) -> Iterator[None]:
    """Every task that the module makes, or those of a stage, break; nothing around them does."""

    def own(run: Any, named: str | None = None) -> OwnTask:
        return OwnTask(breaks if stage is None or named == stage else run, named)

    with mock.patch.object(module, OwnTask.__name__, own):
        yield


def rows(folder: Path) -> None:
    for number in range(2):
        write_input(
            folder / "in", number, [{"k": "a", "ts": number * 5_000 + n, "v": n} for n in range(9)]
        )


def over(source: Any, folder: Path, change: Change) -> Pipeline:
    p = Pipeline("whose")
    changed = change(p.read_from(source, name="rows"))
    changed.write_to(sinks.files(f"{folder}/out", format="json", **SHARED), name="out")
    return p


def from_files(folder: Path, change: Change, format: str = "json") -> Pipeline:
    source = sources.files(f"{folder}/in", format=format, schema=SCHEMA, **SHARED)
    return over(source, folder, change)


def as_it_is(stage: Stage) -> Stage:
    return stage.transform(lambda frame: frame.filter("true"), name="users")


def counted(stage: Stage) -> Stage:
    """Pipeline with a user's function that Spark calls, and that must not be blamed."""
    timed = as_it_is(stage).with_timestamps("ts")
    keyed = timed.group_by("k").window(windows.tumbling("1 second"))
    return keyed.aggregate(n=agg.count(), name="counts")


def run(jet: Jet, p: Pipeline, until: str = "completed") -> None:
    jet.run(p, JobConfig(parallelism=2), until=until)


def reading(module: ModuleType, source: Callable[[Jet, Path], Any]) -> Callable[[Jet, Path], None]:
    """The tasks that read a source break."""

    def play(jet: Jet, folder: Path) -> None:
        p = over(source(jet, folder), folder, as_it_is)
        with broken(module):
            run(jet, p)

    return play


def of_parquet(jet: Jet, folder: Path) -> Any:
    """Parquet files with other types than declared; Spark reads only files with the declared
    types."""
    (folder / "in").mkdir()
    table = pa.table({"k": ["a"], "ts": [1], "v": pa.array([1], pa.int32())})
    pq.write_table(table, folder / "in" / "1.parquet")
    return sources.files(f"{folder}/in", format="parquet", schema=SCHEMA, **SHARED)


def of_csv(jet: Jet, folder: Path) -> Any:
    (folder / "in").mkdir()
    (folder / "in" / "1.csv").write_text("a,1,1\n")
    return sources.files(f"{folder}/in", format="csv", schema=SCHEMA, **SHARED)


def of_json(jet: Jet, folder: Path) -> Any:
    rows(folder)
    return sources.files(f"{folder}/in", format="json", schema=SCHEMA, **SHARED)


def of_map(make: Callable[..., Any]) -> Callable[[Jet, Path], Any]:
    def source(jet: Jet, folder: Path) -> Any:
        jet.map("given", journal=JournalConfig()).put("a", {"k": "a", "ts": 1, "v": 1})
        return make("given", schema=SCHEMA)

    return source


def the_stage(jet: Jet, folder: Path) -> None:
    rows(folder)
    with broken(column_names, "counts"):
        run(jet, from_files(folder, counted))


def the_sink(jet: Jet, folder: Path) -> None:
    rows(folder)
    with broken(column_names, "out"):
        run(jet, from_files(folder, as_it_is))


def the_restore(jet: Jet, folder: Path) -> None:
    rows(folder)
    p = from_files(folder, counted)
    run(jet, p, "drained")
    with broken(runtime):
        run(jet, p)


def the_state(jet: Jet, folder: Path) -> None:
    rows(folder)
    run(jet, from_files(folder, counted), "drained")
    with broken(state_frame):
        try:
            jet.job("whose").read_state_frame("counts").collect()
        except PySparkException as raised:
            raise translate(raised, "whose", ()) from raised


OURS: Mapping[str, Callable[[Jet, Path], None]] = {
    "a stage": the_stage,
    "a sink": the_sink,
    "a restore": the_restore,
    "JSON": reading(text_tasks, of_json),
    "CSV": reading(text_tasks, of_csv),
    "Parquet": reading(parquet_tasks, of_parquet),
    "items": reading(items, lambda *_: sources.items([("a", 1, 1)], schema=SCHEMA)),
    "nexmark": reading(nexmark, lambda *_: sources.nexmark(count=9)),
    "map_entries": reading(entries, of_map(sources.map_entries)),
    "map_journal": reading(journal, of_map(sources.map_journal)),
}


# --- a user's -------------------------------------------------------------------------------------


def oops(*_: Any) -> Any:
    raise LookupError("oops")


def in_a_udf(stage: Stage) -> Stage:
    def change(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return frame.withColumn("v", F.udf(oops, "long")("v"))

    return stage.transform(change, name="users")


def in_arrow(stage: Stage) -> Stage:
    def change(frame: DataFrame) -> DataFrame:
        def batches(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from map(oops, given)

        return frame.mapInArrow(batches, frame.schema)

    return stage.transform(change, name="users")


def in_a_function(stage: Stage) -> Stage:
    keyed = stage.with_timestamps("ts").group_by("k")
    return keyed.map_stateful(oops, create=int, output_schema=SCHEMA, name="users")


def in_an_aggregate(stage: Stage) -> Stage:
    keyed = stage.with_timestamps("ts").group_by("k").window(windows.tumbling("1 second"))
    total = agg.custom(int, oops, oops, oops, columns=["v"], result_type="bigint")
    return keyed.aggregate(total=total, name="users")


def in_a_processor(stage: Stage) -> Stage:
    class Broken(ItemProcessor):
        def process_item(self, ordinal: int, item: Any) -> bool:
            return bool(oops())

    return stage.group_by("k").apply_processor(Broken, output_schema=SCHEMA, name="users")


THEIRS: Mapping[str, Change] = {
    "udf": in_a_udf,
    "mapInArrow": in_arrow,
    "map_stateful": in_a_function,
    "custom": in_an_aggregate,
    "apply_processor": in_a_processor,
}


# --- in a process ---------------------------------------------------------------------------------


def said(work: Callable[[Jet], None], folder: Path) -> JetError:
    with open_jet(folder, "a", 0) as jet:
        try:
            work(jet)
        except JetError as error:
            return error
    raise AssertionError("it has not failed")


def of_ours(case: str, folder: Path) -> JetError:
    folder.mkdir()
    return said(lambda jet: OURS[case](jet, folder), folder)


def of_theirs(case: str, folder: Path) -> JetError:
    folder.mkdir()
    rows(folder)
    return said(lambda jet: run(jet, from_files(folder, THEIRS[case])), folder)


def of_executors(folder: Path) -> JetError:
    """Error of a start whose executors cannot report their versions."""
    folder.mkdir()
    rows(folder)
    with mock.patch.object(versions, "_reporter", _no_reporter):
        return said(lambda jet: run(jet, from_files(folder, counted)), folder)


def _no_reporter() -> Callable[[Iterable[Any]], Iterator[Any]]:
    def report(batches: Iterable[Any]) -> Iterator[Any]:
        raise ImportError("no pyarrow")

    return report
