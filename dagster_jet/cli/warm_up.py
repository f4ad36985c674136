"""Builds the archive of Spark's classes that later starts of Spark on this machine use."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_jet.cli.options import errors_as_sentences
from dagster_jet.cli.output import say
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from dagster_jet.pipeline import Pipeline
    from dagster_jet.spark.cluster.class_archive import ClassArchive

_END_S = 300
_ROWS = [{"k": "a", "ts": second * 1000, "v": second} for second in range(20)]


def warm_up(
    quiet: Annotated[
        bool, typer.Option(help="Print nothing, and run with the lowest priority.")
    ] = False,
) -> None:
    """Makes Spark start in about half the time, by storing its classes for later starts.

    Runs automatically after the first run, or beside it after two minutes. Run it in the build of a
    container image. Takes about 20 seconds, and 170 MB below ~/.cache/dagster_jet
    (DAGSTER_JET_CLASS_ARCHIVE: another folder, or "off").
    """

    from dagster_jet.spark.cluster import class_archive

    if quiet:
        os.nice(19)
    with errors_as_sentences():
        said = _made(class_archive.for_this_machine())
    if not quiet:
        say(said)


def _made(archive: ClassArchive | None) -> str:
    """Builds the archive; returns the outcome as a sentence."""

    from dagster_jet.spark.cluster import class_archive

    if archive is None:
        raise ConfigurationError(
            f"there is no folder for the archive: {class_archive.VARIABLE} is off, or the cache "
            "is not this user's alone.",
            cure=f"Set {class_archive.VARIABLE} to a folder of your own.",
        )
    if not archive.claim():
        return "Another process is writing the archive."
    try:
        _record(archive)
        if archive.publish():
            return f"Spark's classes are in {archive.path}."
        return "This Java does not support an archive of classes; Spark starts without one."
    finally:
        archive.give_back()


def _record(archive: ClassArchive) -> None:
    """Runs a small job with typical stages; its JVM writes the archive when it exits."""

    from pyspark import SparkContext

    from dagster_jet.jet import Jet
    from dagster_jet.job_config import JobConfig
    from dagster_jet.spark.cluster import class_archive

    os.environ[class_archive.VARIABLE] = "off"  # this process neither uses nor requests an archive
    archive.hidden.unlink(missing_ok=True)
    options = class_archive.recording_options(archive)
    with tempfile.TemporaryDirectory(prefix="jet-warm-up-") as name:
        folder = Path(name)
        with Jet(
            store=[f"file://{folder}/{member}" for member in "abc"],
            spark={"spark.master": "local[2]", class_archive.OPTIONS[0]: options},
            work_dir=folder / "work",
        ) as jet:
            config = JobConfig(snapshot_interval="0 ms", max_items_per_epoch=len(_ROWS))
            jet.run(_pipeline(folder), config, until="completed")
            jet.session().stop()
    jvm = getattr(SparkContext._gateway, "proc", None)
    assert jvm is not None, "this process has started it"
    jvm.stdin.close()  # the JVM exits when its parent closes the pipe
    jvm.wait(_END_S)


def _pipeline(folder: Path) -> Pipeline:
    from dagster_jet import sinks, sources
    from dagster_jet.pipeline import Pipeline, windows
    from dagster_jet.pipeline import aggregates as agg

    for number in range(3):
        path = folder / "in" / f"{number}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(map(json.dumps, _ROWS)))
    p = Pipeline("warm_up")
    rows = p.read_from(
        sources.files(f"{folder}/in", format="json", schema="k string, ts long, v long"), name="in"
    ).with_timestamps("ts")
    rows.write_to(sinks.files(f"{folder}/raw", format="csv"), name="raw")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling("5 seconds"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    counts.write_to(sinks.files(f"{folder}/counts", format="parquet"), name="counts_out")
    numbered = rows.group_by("k").map_stateful(
        _number, create=int, output_schema="k string, n long", name="numbered"
    )
    numbered.write_to(sinks.files(f"{folder}/numbered", format="json"), name="numbered_out")
    return p


def _number(state, row):  # type: ignore[no-untyped-def]
    state.value += 1
    return {"k": row["k"], "n": state.value}
