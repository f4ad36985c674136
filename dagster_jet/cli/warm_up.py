"""Builds the archive of Spark's classes that later starts of Spark on this machine use."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_jet.cli.options import errors_as_sentences
from dagster_jet.cli.output import say
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from dagster_jet.spark.cluster.class_archive import ClassArchive

_END_S = 300


def warm_up(
    quiet: Annotated[
        bool, typer.Option(help="Print nothing, and run with the lowest priority.")
    ] = False,
) -> None:
    """Makes Spark start in about half the time, by storing its classes for later starts.

    Runs automatically after the first run, or beside it after two minutes. Run it in the build of a
    container image. Takes some 50 seconds of CPU time, and 170 MB below ~/.cache/dagster_jet
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
        if not _record(archive):
            return f"The archive was not written within {_END_S} s; Spark starts without one."
        if archive.publish():
            return f"Spark's classes are in {archive.path}."
        return "This Java does not support an archive of classes; Spark starts without one."
    finally:
        archive.give_back()


def _record(archive: ClassArchive) -> bool:
    """Runs a small job with typical stages; its JVM writes the archive when it exits. Returns
    whether it has exited in time."""

    from pyspark import SparkContext

    from dagster_jet.jobs.sample_job import run_sample
    from dagster_jet.spark.cluster import class_archive
    from dagster_jet.spark.cluster.session import open_session

    os.environ[class_archive.VARIABLE] = "off"  # this process neither uses nor requests an archive
    archive.hidden.unlink(missing_ok=True)
    options = class_archive.recording_options(archive)
    opened = partial(open_session, {"spark.master": "local[2]", class_archive.OPTIONS[0]: options})
    with tempfile.TemporaryDirectory(prefix="jet-warm-up-") as folder:
        run_sample(opened, Path(folder))
        opened().stop()
    jvm = getattr(SparkContext._gateway, "proc", None)
    assert jvm is not None, "this process has started it"
    jvm.stdin.close()  # the JVM exits when its parent closes the pipe
    try:
        jvm.wait(_END_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        archive.hidden.unlink(missing_ok=True)
        return False
    return True
