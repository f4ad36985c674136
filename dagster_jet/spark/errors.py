"""Translates Spark's errors to `JetError`s: the failure, its place, and the job's reaction."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from py4j.protocol import (
    Py4JAuthenticationError,
    Py4JError,
    Py4JJavaError,
    Py4JNetworkError,
)

from dagster_jet.errors import (
    BadRowError,
    ExecutorLostError,
    InputLostError,
    JetError,
    MissingEnvironmentError,
    ResultError,
    SourceUnavailableError,
    UserFunctionError,
    is_of_user,
)
from dagster_jet.system.own_task import handed_over
from dagster_jet.system.transient import DENIED, TRANSIENT, TRANSIENT_TEXTS

_TEXTS = "|".join(map(re.escape, sorted(TRANSIENT_TEXTS)))
_JAVA_IO = re.compile(
    rf"java\.(?:io|nio)\.[\w.]+Exception: ((?:[^\n]*[:(] ?)?(?:{_TEXTS})\)?)$"
    r"|java\.(?:io|nio)\.[\w.]+Exception: ([^\n]*/blockmgr-[^\n]*)$"
    r"|\[SPILL_OUT_OF_MEMORY\] ([^\n]*)$",
    re.MULTILINE,
)
"""Transient OS errors in the JVM, at the end of a line. An error of a user's function with the same
words is not a Java exception and does not match."""
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in [^\n]*(?:\n {4,}(\S[^\n]*))?')
_ERRNO = re.compile(r"\[Errno (\d+)\]|[Ee]rrno (\d+)")
_READING = re.compile(r"\[FAILED_READ_FILE[^\]]*\] Encountered error while reading file (\S+)\.\s")
_NOT_THERE = re.compile(
    r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (\S+)\.\s"
    r"|\[PATH_NOT_FOUND\] Path does not exist: (\S+)\.\s"
)
_HEADER = re.compile(
    r"(CSV header does not conform to the schema|Number of column in CSV header is not equal to "
    r"number of fields in the schema)[.:]\n(.*?)\nCSV file: (\S+)",
    re.DOTALL,
)
_MALFORMED = ("MALFORMED_RECORD_IN_PARSING", "Malformed records are detected")
_OVERFLOW = "[ARITHMETIC_OVERFLOW"
_OTHER_PYTHON = "[PYTHON_VERSION_MISMATCH]"
_NO_WORKER = re.compile(r"Error from python worker:\n.*?(No module named '?[\w.]+'?)", re.DOTALL)
"""Text of the process that forks workers (`worker_daemon.py`) if it cannot import something."""
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
_UNANSWERED = re.compile(r"An error occurred while calling [^\n]*|[^\n]* does not exist in the JVM")
"""Text of a `Py4JError` if the JVM did not answer. If the JVM has answered that the call is wrong,
Py4J raises the same class, and the answer follows."""
_SCHEMA = ("PARQUET_COLUMN_DATA_TYPE_MISMATCH", "CANNOT_READ_FILE_FOOTER", "PARQUET_TYPE")


def translate(
    error: BaseException, job: str, user_stages: Sequence[str], scratch: str | None = None
) -> JetError:
    """Translates the error of a failed Spark job.

    Args:
        user_stages: stages with users' functions that Spark itself calls. All other errors are not
            the user's.
        scratch: folder in which the JVM keeps shuffled and cached rows; its errors do not name it.
    """
    text = str(error)
    if _is_jvm_gone(error):
        return ExecutorLostError(f"Spark's JVM does not answer: {_first_line(text)}", job=job)
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return JetError(
            f"a call of Spark's JVM is wrong: {_first_line(text.partition('Trace:')[2] or text)}",
            job=job,
            cure="If the call is not from your own code, please report it as a bug.",
        )
    ours = handed_over(text, job)
    if ours is not None:
        return ours
    if any(mark in text for mark in _MALFORMED):
        return BadRowError(
            "a row does not fit the source's schema.",
            job=job,
            cure="Correct the input, or write bad rows to dead letters with dead_letter_to().",
        )
    refused = _refused(text)
    if refused is not None:
        return _passing(refused, text, job, scratch)
    if (unread := _unread(text, job)) is not None:
        return unread
    if unstarted := _NO_WORKER.search(text):
        return MissingEnvironmentError(
            f"Spark's Python workers cannot be started: {unstarted[1]}.",
            job=job,
            cure="Install the same image, or the same packages, on the executors as on the driver. "
            "If the executors get them with the job, set spark.python.daemon.module to "
            "pyspark.daemon.",
        )
    if any(mark in text for mark in _LOST):
        return ExecutorLostError(f"Spark lost a worker: {_first_line(text)}", job=job)
    if _OVERFLOW in text:
        # Spark's own advice is to turn ANSI mode off; sums would then be silently wrong.
        return ResultError(
            f"a number does not fit its type: {_line_with([_OVERFLOW], text)}",
            job=job,
            cure="Cast to decimal or double before the computation. If it is an event time, "
            "filter out rows whose time is near the limits of its type.",
        )
    cause = _cause(text).rstrip(".")
    if _OTHER_PYTHON in text:
        return MissingEnvironmentError(
            "Spark's workers run another Python version than the driver: "
            f"{_line_with([_OTHER_PYTHON], text)}",
            job=job,
            cure="Install the same image, or the same Python, on the executors as on the driver.",
        )
    if cause.startswith("ModuleNotFoundError"):
        return UserFunctionError(
            f"Spark's Python workers cannot import what a function needs: {cause}.",
            job=job,
            stage=", ".join(user_stages) or None,
            cure="Install that module where the executors run.",
        )
    if not user_stages:
        return JetError(
            f"a row could not be processed: {cause}.",
            job=job,
            cure="Correct the data, or the expression that takes it; if both are right, this is a "
            "bug in dagster_jet. Nothing of this epoch was written.",
        )
    return UserFunctionError(
        f"{_where(text)}a row could not be processed: {cause}.",
        job=job,
        stage=", ".join(user_stages),
        cure="Correct the function or the data; nothing of this epoch was written.",
    )


def _refused(text: str) -> str | None:
    """Text of an OS error after which the same call may succeed later."""
    found = _JAVA_IO.search(text)
    if found is not None:
        return next(said for said in found.groups() if said).strip()
    cause = _cause(text)
    number = _ERRNO.search(cause) if _is_os_error(cause) else None
    if number is not None and int(number[1] or number[2]) in TRANSIENT - DENIED:
        return cause  # a denied access may be a function's own mistake
    return None


def _passing(refused: str, text: str, job: str, scratch: str | None) -> JetError:
    reading = _READING.search(text)
    if reading is not None:
        return SourceUnavailableError(
            f"an input file cannot be read now: {refused}.",
            job=job,
            position=_path(reading[1]),
            cure="Bring the file system back; meanwhile the job restarts from its last snapshot.",
        )
    cure = "Free disk space or bring the file system back"
    if "/blockmgr-" in refused:
        cure = "Exclude spark.local.dir from the cleanup of temporary folders, and restart this "
        cure += "process if its folder is gone"
    where = f" (Spark's scratch folder is {scratch})" if scratch and "/" not in refused else ""
    return ExecutorLostError(
        f"a task could not read or write: {refused}{where}.",
        job=job,
        cure=f"{cure}. Meanwhile the job restarts from its last snapshot.",
    )


def _unread(text: str, job: str) -> JetError | None:
    """Error for an input file that is missing or does not fit its declaration."""
    gone = _NOT_THERE.search(text)
    if gone is not None:
        return InputLostError(
            "an input file is gone.",
            job=job,
            position=_path(gone[1] or gone[2]),
            cure="Put the file back and start again. Without it its rows are missing.",
        )
    header = _HEADER.search(text)
    if header is not None:
        return BadRowError(
            f"the header of the file does not fit the schema: {' '.join(header[2].split())}.",
            job=job,
            position=_path(header[3]),
            cure="Use the file's column names in schema=, in its order. Or match columns by "
            'position: options={"enforceSchema": "true"}.',
        )
    reading = _READING.search(text)
    if reading is None and not any(mark in text for mark in _SCHEMA):
        return None
    why = [line.partition("Caused by: ")[2] for line in text.splitlines() if "Caused by: " in line]
    said = _line_with(_SCHEMA, text) if any(mark in text for mark in _SCHEMA) else None
    said = said or (why[0] if why else _first_line(text))
    return BadRowError(
        f"an input file does not fit the declared format or schema: {said[:500]}",
        job=job,
        position=None if reading is None else _path(reading[1]),
        cure="Correct the format or the schema, or the file.",
    )


def _path(url: str) -> str:
    return unquote(urlsplit(url).path) if url.startswith("file:") else url


def is_of_gateway(error: BaseException) -> bool:
    """Whether a call has not reached the JVM, or had no answer: the JVM is gone. A call that the
    JVM refuses, because it is wrong, is none; Java's own errors are `Py4JJavaError`."""
    if isinstance(error, Py4JNetworkError | Py4JAuthenticationError):
        return True
    return type(error) is Py4JError and _UNANSWERED.fullmatch(str(error)) is not None


def is_of_spark(error: BaseException | None) -> bool:
    """Whether Spark has raised it: its text may be the stack of a JVM."""
    from pyspark.errors import PySparkException

    return isinstance(error, Py4JError | PySparkException)


def _is_jvm_gone(error: BaseException) -> bool:
    return is_of_gateway(error) or isinstance(error, ConnectionError | EOFError)


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


def _where(text: str) -> str:
    """File, line and code of the last frame of the user's in the traceback of a Python worker."""
    frames = [found for found in _FRAME.findall(text) if is_of_user(found[0])]
    if not frames:
        return ""
    file, line, code = frames[-1]
    return f"{file}:{line} `{code}`: " if code else f"{file}:{line}: "


def _cause(text: str) -> str:
    """The most informative line: the last of a Python traceback, else the first one."""
    in_traceback = False
    for line in text.splitlines():
        if line.startswith("Traceback (most recent call last)"):
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            return line.strip()[:500]
    return _first_line(text)
