"""Why a JVM has ended, from what it wrote."""

from __future__ import annotations

import logging

import pytest
from pyspark.logger import PySparkLogger

from dagster_jet.spark.cluster.jvm_log import reason, start_jvm

NEWER = (
    "java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main has been compiled by a "
    "more recent version of the Java Runtime (class file version 61.0), this version of the Java "
    "Runtime only recognizes class file versions up to"
)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        (
            "Error: A JNI error has occurred, please check your installation and try again\n"
            f'Exception in thread "main" {NEWER} 52.0\n\tat java.lang.ClassLoader.defineClass1\n',
            8,
        ),
        (
            "Error: LinkageError occurred while loading main class "
            f"org.apache.spark.launcher.Main\n\t{NEWER} 55.0\n",
            11,
        ),
    ],
)
def test_a_java_that_is_too_old_is_named(output: str, version: int) -> None:
    assert reason(output).startswith(f"it is Java {version}, and Spark needs 17 or newer.")


def test_loggers_of_stacks_are_silent_and_those_of_others_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Failed before: a logger that another thread made meanwhile was one of PySpark's."""
    switched: list[object] = []
    monkeypatch.setattr(logging, "setLoggerClass", switched.append)
    monkeypatch.setattr(logging.Logger.manager, "loggerDict", {})
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # no JVM is started
    kept = logging.getLogger("DataFrameQueryContextLogger")
    start_jvm({})
    made = logging.getLogger("SQLQueryContextLogger")
    assert kept.disabled and made.disabled and isinstance(made, PySparkLogger)
    assert not switched


def test_another_end_is_the_innermost_cause() -> None:
    output = "Exception: a\nCaused by: b\n\tat c\nCaused by: d\n\tat e\n"
    assert reason(output) == "Caused by: d"
    assert reason("") == "it wrote nothing."
