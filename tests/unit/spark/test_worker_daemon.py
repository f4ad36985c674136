"""Spark's Python workers import PySpark from the right place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from dagster_jet.spark.tasks.worker_daemon import prefer_installed

SITE = str(Path(pyspark.__file__).parents[1])
ZIPS = [f"{SITE}/pyspark/python/lib/pyspark.zip", f"{SITE}/pyspark/python/lib/py4j-0.10-src.zip"]


def test_the_zips_of_an_installed_pyspark_come_last() -> None:
    assert prefer_installed(["", *ZIPS, "/jars/x.jar", SITE]) == ["", "/jars/x.jar", SITE, *ZIPS]


def test_the_zips_of_another_spark_stay_first() -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-src.zip", SITE]
    assert prefer_installed(path) == path
    not_on_the_path = [*ZIPS, "/elsewhere"]
    assert prefer_installed(not_on_the_path) == not_on_the_path


def test_its_first_line_needs_no_pyspark() -> None:
    """Otherwise the zip's PySpark would be imported before the search path is in order."""
    asks = (
        "import dagster_jet.spark.tasks.worker_daemon, sys; "
        "print([m for m in sys.modules if m.partition('.')[0] in ('pyspark', 'py4j')])"
    )
    run = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
