"""Spark's errors as ours: what happened, where, and how the job should react."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence

from py4j.protocol import Py4JError, Py4JJavaError

from dagster_jet import errors
from dagster_jet.errors import BadRowError, ExecutorLostError, JetError, UserFunctionError

_OURS = re.compile(r"dagster_jet\.errors\.(\w+): ([^\n]*)")
_FAIL_POINT = re.compile(r"FailPointError: (fail point \S+)")
_OUR_FRAME = "dagster_jet/connectors/"
_MALFORMED = ("MALFORMED_RECORD_IN_PARSING", "Malformed records are detected")
_LOST = (
    "ExecutorLostFailure",
    "FetchFailed",
    "SparkContext was shut down",
    "Connection refused",
    "Answer from Java side is empty",
    "Python worker exited unexpectedly",
    "PYTHON_WORKER_CRASHED",
    "EOFException",
    "BlockNotFoundException",
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",
)
_SCHEMA = (
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH",
    "CANNOT_READ_FILE_FOOTER",
    "PARQUET_TYPE",
    "FAILED_READ_FILE",
    "CSV header does not conform",
)


def translate(error: BaseException, job: str, user_stages: Sequence[str]) -> JetError:
    """The `JetError` that a failed Spark job stands for."""
    text = str(error)
    if _is_jvm_gone(error):
        return ExecutorLostError(f"Spark's JVM does not answer: {_first_line(text)}", job=job)
    ours = _OURS.search(text)
    if ours is not None:
        kind = getattr(errors, ours.group(1), JetError)
        return kind(ours.group(2), job=job) if issubclass(kind, JetError) else JetError(text)
    if any(mark in text for mark in _MALFORMED):
        return BadRowError(
            "a row does not fit the source's schema.",
            job=job,
            cure="Correct the input, or set bad rows aside with dead_letter_to().",
        )
    fail_point = _FAIL_POINT.search(text)
    if fail_point is not None:
        return ExecutorLostError(fail_point.group(1), job=job)
    if any(mark in text for mark in _LOST):
        return ExecutorLostError(f"Spark lost a worker: {_first_line(text)}", job=job)
    cause = _cause(text)
    if _OUR_FRAME in text and _is_os_error(cause):
        return ExecutorLostError(
            f"a task could not read or write: {cause}.",
            job=job,
            cure="The job restarts from its last snapshot.",
        )
    if any(mark in text for mark in _SCHEMA):
        return BadRowError(
            f"an input file does not fit the declared schema: {_line_with(_SCHEMA, text)}",
            job=job,
            cure="Correct the schema of the source, or the file.",
        )
    if cause.startswith("ModuleNotFoundError"):
        return UserFunctionError(
            f"Spark's Python workers cannot import what a function needs: {cause}.",
            job=job,
            stage=", ".join(user_stages) or None,
            cure="Install that module where the executors run.",
        )
    return UserFunctionError(
        f"a row could not be processed: {cause}",
        job=job,
        stage=", ".join(user_stages) or None,
        cure="Correct the function or the data; nothing of this epoch was written.",
    )


def _is_jvm_gone(error: BaseException) -> bool:
    """Any trouble of the gateway itself; what Java code raised arrives as `Py4JJavaError`."""
    if isinstance(error, Py4JError):
        return not isinstance(error, Py4JJavaError)
    return isinstance(error, ConnectionError | EOFError)


def _is_os_error(cause: str) -> bool:
    kind = getattr(builtins, cause.partition(":")[0], None)
    return isinstance(kind, type) and issubclass(kind, OSError)


def _line_with(marks: Sequence[str], text: str) -> str:
    """The first line that has one of the marks, without the class names before it."""
    for line in text.splitlines():
        if any(mark in line for mark in marks):
            return line[max(line.find("["), 0) :].strip()[:500]
    return _first_line(text)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:500]


def _cause(text: str) -> str:
    """The line that says most: what a Python traceback ends with, else the first one."""
    in_traceback = False
    for line in text.splitlines():
        if line.startswith("Traceback (most recent call last)"):
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            return line.strip()[:500]
    return _first_line(text)
