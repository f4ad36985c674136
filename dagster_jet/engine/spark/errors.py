"""Spark's errors as ours: what happened, where, and how the job should react."""

from __future__ import annotations

import builtins
import re
from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError

from dagster_jet import errors
from dagster_jet.errors import (
    BadRowError,
    ExecutorLostError,
    JetError,
    ProcessorError,
    ResultError,
    UserFunctionError,
)

_OURS = re.compile(r"dagster_jet\.errors\.(\w+): ([^\n]*)")
_PLACE = re.compile(r"(job|stage|position) ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")(?:, |: )")
"""What `JetError` puts in front of its message."""
_CALLED = re.compile(r"processor (\d+), (.*)")
_RAISED = re.compile(r"raised (\w+): ")
_FAIL_POINT = re.compile(r"FailPointError: (fail point \S+)")
_OUR_FRAME = "dagster_jet/connectors/"
_MALFORMED = ("MALFORMED_RECORD_IN_PARSING", "Malformed records are detected")
_OVERFLOW = "[ARITHMETIC_OVERFLOW"
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


@contextmanager
def naming(stage: str, job: str | None = None) -> Iterator[None]:
    """Errors of ours that name no stage are of this one."""
    try:
        yield
    except JetError as error:
        if error.stage is not None:
            raise
        raise type(error)(str(error), job=job, stage=stage) from error


@contextmanager
def at_stage(stage: str) -> Iterator[None]:
    """In a task: whatever is raised names the stage. Only the text of it reaches the driver."""
    try:
        with naming(stage):
            yield
    except JetError:
        raise
    except OSError as error:
        # Operators do no I/O; what is around them reads and writes local state.
        raise ExecutorLostError(
            f"a task could not read or write: {_said(error)}.",
            stage=stage,
            cure="The job restarts from its last snapshot.",
        ) from error
    except Exception as error:
        raise JetError(
            f"raised {_said(error)}.",
            stage=stage,
            cure="Filter out rows with values that the stage cannot work with; if there are none, "
            "this is a bug in dagster_jet. Nothing of this epoch was written.",
        ) from error


def translate(error: BaseException, job: str, user_stages: Sequence[str]) -> JetError:
    """The `JetError` that a failed Spark job stands for."""
    text = str(error)
    if _is_jvm_gone(error):
        return ExecutorLostError(f"Spark's JVM does not answer: {_first_line(text)}", job=job)
    ours = _OURS.findall(text)
    if ours:
        kind, message = ours[-1]  # a traceback ends with what was raised last
        return _ours(kind, message, job)
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
    if _OVERFLOW in text:
        # Spark's own advice is to turn ANSI mode off; sums would be wrong without a word.
        return ResultError(
            f"a number does not fit its type: {_line_with([_OVERFLOW], text)}",
            job=job,
            cure="Cast to decimal or double before summing or computing.",
        )
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


def _ours(kind: str, text: str, job: str) -> JetError:
    """The error that a task raised, from its class and its text."""
    places = {"job": job}
    while (place := _PLACE.match(text)) is not None:
        places[place[1]] = literal_eval(place[2])
        text = text[place.end() :]
    called = _CALLED.fullmatch(places.get("position", ""))
    if kind == ProcessorError.__name__ and called is not None and "stage" in places:
        error = ProcessorError(
            text,
            job=places["job"],
            vertex=places["stage"],
            index=int(called[1]),
            callback=called[2],
        )
        behind = _RAISED.match(text)
        error.reaction = _class_of(behind[1] if behind else "").reaction
        return error
    return _class_of(kind)(text, **places)


def _class_of(name: str) -> type[JetError]:
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, JetError) and found is not ProcessorError:
        return found
    return JetError


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


def _said(error: Exception) -> str:
    """In one line: that is what the driver reads."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
