"""Errors of a task are recognised on the driver, which gets only their text."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import ParseException

from dagster_jet.errors import (
    BadRowError,
    ExecutorLostError,
    InputLostError,
    JetError,
    MissingEnvironmentError,
    PipelineError,
    ProcessorError,
    Reaction,
    ResultError,
    SinkError,
    SourceUnavailableError,
    UserFunctionError,
)
from dagster_jet.spark.errors import translate
from dagster_jet.spark.planning.stateless import planning_of
from dagster_jet.system.failpoint import FailPointError
from dagster_jet.system.own_task import OwnTask


def test_a_sentence_of_another_ends_with_one_full_stop() -> None:
    """Failed before: "such file.. Try again."."""
    told = JetError(f"it cannot be read: {FileNotFoundError('no such file.')}.", cure="Try again.")
    assert str(told) == "it cannot be read: no such file. Try again."
    assert told.message == "it cannot be read: no such file."
    assert str(JetError("it is cut...")) == "it is cut..."


def at_driver(raised: Exception) -> JetError:
    """`raised` by an operator of the stage 'sum', after its way through Spark."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        raise raised
        yield

    try:
        list(OwnTask(run, "sum")([]))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
    return translate(Exception(f"Job aborted.\n{text}\tat org.apache.spark\n"), "p", ["filter_1"])


def test_an_error_without_a_stage_gets_the_stage_and_keeps_its_class():
    found = at_driver(BadRowError("1 of 2 rows have no event time.", cure="Filter them."))
    assert str(found) == "job 'p', stage 'sum': 1 of 2 rows have no event time. Filter them."
    assert type(found) is BadRowError and (found.job, found.stage) == ("p", "sum")


def test_an_error_that_names_its_stage_keeps_it():
    found = at_driver(UserFunctionError("f raised.", stage="other", position="""k="it's" at 1"""))
    assert type(found) is UserFunctionError
    assert (found.stage, found.position) == ("other", """k="it's" at 1""")
    assert str(found) == f"job 'p', stage 'other', position {found.position!r}: f raised."


def test_what_looks_like_the_place_of_an_error_is_part_of_its_text():
    raised = BadRowError("job 'q', stage 'r': no\nnumber: TaskError: {}.", cure="Position 'x': y.")
    found = at_driver(raised)
    assert (found.job, found.stage, found.position) == ("p", "sum", None)
    assert (found.message, found.cure) == (raised.message, raised.cure)


def test_where_no_function_of_a_user_is_called_none_is_blamed():
    found = translate(Exception("Job aborted.\n[INTERNAL_ERROR] a plan is wrong\n"), "p", [])
    assert type(found) is JetError and "bug in dagster_jet" in str(found)
    assert "Correct the data, or the expression that takes it" in str(found)
    found = translate(Exception("Job aborted.\n[CAST_INVALID_INPUT] 'x'\n"), "p", ["map_1"])
    assert type(found) is UserFunctionError and found.stage == "map_1"


def test_anything_else_says_what_was_raised_and_what_to_do():
    found = at_driver(TypeError("'<' not supported between\ninstances of 'int' and 'str'"))
    assert type(found) is JetError and found.reaction is Reaction.FAIL
    said = "job 'p', stage 'sum': raised TypeError: '<' not supported between instances of"
    assert said in str(found) and "Filter out" in str(found)


def test_a_wrong_call_of_the_jvm_is_no_lost_jvm() -> None:
    """Failed before: the class of the exception decided, and Py4J has one class for both."""
    called = "An error occurred while calling o41.nosuch"
    answer = "py4j.Py4JException: Method nosuch([]) does not exist"
    found = translate(Py4JError(f"{called}. Trace:\n{answer}\n\tat py4j.x\n"), "p", [])
    assert found.reaction is Reaction.FAIL
    assert str(found).startswith(f"job 'p': a call of Spark's JVM is wrong: {answer}")
    assert isinstance(translate(Py4JError(called), "p", []), ExecutorLostError)


def test_an_overflow_is_not_cured_by_turning_ansi_mode_off():
    said = "[ARITHMETIC_OVERFLOW] long overflow. If necessary set ansi.enabled to false"
    found = translate(Exception(f"Job aborted.\n{said}\n"), "p", [])
    assert type(found) is ResultError and found.cure.startswith("Cast to decimal or double")


def test_executors_without_the_engine_are_no_lost_workers():
    text = """Lost task 0.0 in stage 0.0 (TID 0) (host executor 1): org.apache.spark.SparkException:
Error from python worker:
  /usr/bin/python3: Error while finding module specification for \
'dagster_jet.spark.tasks.worker_daemon' (ModuleNotFoundError: No module named 'dagster_jet')
PYTHONPATH was:
  /opt/spark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number
"""
    found = translate(Exception(text), "p", [])
    assert type(found) is MissingEnvironmentError
    assert "No module named 'dagster_jet'" in str(found) and "pyspark.daemon" in found.cure


@pytest.mark.parametrize(
    "lost",
    [
        ExecutorLostError("the local state file x is gone.", stage="sum"),
        ExecutorLostError("the local state file x is gone."),
        OSError(28, "No space left on device"),
        FailPointError("fail point state.before"),
    ],
)
def test_what_restarts_a_job_still_does(lost):
    found = at_driver(lost)
    assert type(found) is ExecutorLostError and found.reaction is Reaction.RESTART
    assert found.stage == "sum" and str(lost).removeprefix("stage 'sum': ") in str(found)


@pytest.mark.parametrize(
    ("behind", "reaction"), [(KeyError("k"), Reaction.FAIL), (SinkError("full"), Reaction.RESTART)]
)
def test_a_processor_error_names_the_callback_and_reacts_as_what_is_behind_it(behind, reaction):
    raised = ProcessorError.of(behind, vertex="sum", index=3, callback="process()")
    found = at_driver(raised)
    assert type(found) is ProcessorError and found.reaction is reaction
    assert (found.vertex, found.index, found.callback) == ("sum", 3, "process()")
    assert str(found) == f"job 'p', {raised}"


# --- what Spark itself says -----------------------------------------------------------------------


def of_spark(*lines: str) -> JetError:
    """Translates an error of Spark 4.3, without most of its stack."""
    text = "\n".join(["An error occurred while calling o44.collectToPython.", *lines])
    return translate(Exception(f"{text}\n\tat org.apache.spark\n\t... 1 more\n"), "p", ["map_1"])


def lost_task(raised: str) -> str:
    return (
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 13.0 "
        "failed 1 times, most recent failure: Lost task 1.0 in stage 13.0 (TID 14) "
        f"(192.0.2.2 executor driver): {raised}"
    )


def reading(kind: str, file: str, raised: str) -> tuple[str, str]:
    said = f"[FAILED_READ_FILE.{kind}] Encountered error while reading file {file}. "
    return f": org.apache.spark.SparkException: {said} SQLSTATE: KD001", f"Caused by: {raised}"


@pytest.mark.parametrize(
    "raised",
    [
        "java.io.IOException: No space left on device",
        "java.io.IOException: Stale file handle",
        "java.nio.file.FileSystemException: /disk/x: Disk quota exceeded",
        "java.io.FileNotFoundException: /disk/x (Too many open files)",
        "java.io.FileNotFoundException: /tmp/blockmgr-d4cf/34/temp_shuffle_ea (No such file or "
        "directory)",
        "org.apache.spark.memory.SparkOutOfMemoryError: [SPILL_OUT_OF_MEMORY] Error while calling "
        "spill() on o.a.s.Sorter@1 : No space left on device",
    ],
)
def test_what_the_system_refuses_the_jvm_restarts_the_job(raised: str) -> None:
    found = of_spark(lost_task(raised), "", "Driver stacktrace:", f"Caused by: {raised}")
    assert type(found) is ExecutorLostError and found.reaction is Reaction.RESTART
    assert raised.rpartition(": ")[2].rpartition("(")[2] in str(found)
    assert "Correct the function" not in str(found)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("OSError: [Errno 28] No space left on device: '/x'", ExecutorLostError),
        ("OSError: [Errno 116] Stale file handle", ExecutorLostError),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'm.bin'", UserFunctionError),
        ("PermissionError: [Errno 13] Permission denied: '/root'", UserFunctionError),
        ("ValueError: No space left on device", UserFunctionError),
        ("ValueError: java.io.IOException: No space left", UserFunctionError),
    ],
)
def test_what_a_function_raises_is_its_own_unless_the_system_was_to_blame(
    raised: str, kind: type[JetError]
) -> None:
    found = of_spark("Traceback (most recent call last):", '  File "udf.py", line 1', raised)
    assert type(found) is kind and raised in str(found)


@pytest.mark.parametrize(
    ("lines", "kind", "said"),
    [
        (
            reading("NO_HINT", "file:///in/a%20b.json", "java.io.IOException: Input/output error"),
            SourceUnavailableError,
            "cannot be read now: Input/output error",
        ),
        (
            reading("FILE_NOT_EXIST", "file:///in/a%20b.json", "java.io.FileNotFoundException: x"),
            InputLostError,
            "Put the file back",
        ),
        (
            reading("NO_HINT", "file:///in/a%20b.json", "java.io.EOFException: Unexpected end"),
            BadRowError,
            "java.io.EOFException: Unexpected end",
        ),
        (
            reading("NO_HINT", "file:///in/a%20b.json", "x: a b.json is not a Parquet file."),
            BadRowError,
            "is not a Parquet file",
        ),
        (
            ("[PATH_NOT_FOUND] Path does not exist: file:/in/a%20b.json. SQLSTATE: 42K03",),
            InputLostError,
            "Put the file back",
        ),
        (
            (
                *reading(
                    "NO_HINT", "file:///x", "o.a.s.SparkIllegalArgumentException: CSV header "
                ),
                "CSV header does not conform to the schema.",
                " Header: k, other",
                " Schema: k, name",
                "Expected: name but found: other",
                "CSV file: file:///in/a%20b.json",
            ),
            BadRowError,
            "Header: k, other Schema: k, name Expected: name but found: other",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    lines: tuple[str, ...], kind: type[JetError], said: str
) -> None:
    found = of_spark(*lines)
    assert type(found) is kind and said in str(found)
    assert found.position == "/in/a b.json"


TRACEBACK = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/venv/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 2, in main
    process()
  File "/home/ann/flights.py", line 18, in quotient
    return 10 // v
           ~~~^^~~
  File "/venv/lib/python3.11/site-packages/numpy/core.py", line 7, in divide
    raise error
ZeroDivisionError: integer division or modulo by zero
"""


def test_an_error_of_a_users_function_in_a_worker_names_its_file_line_and_code_first():
    error = translate(RuntimeError(TRACEBACK), "shop", ("change",))
    assert str(error).startswith(
        "job 'shop', stage 'change': /home/ann/flights.py:18 `return 10 // v`: a row could not be "
        "processed: ZeroDivisionError: integer division or modulo by zero. Correct the function"
    )


def test_a_text_that_spark_cannot_parse_is_shown_with_its_position():
    said = (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near '>'. SQLSTATE: 42601 (line 1, pos 4)\n\n"
        "== SQL ==\nv > > 3\n----^^^\n\nJVM stacktrace:\norg.apache.spark..."
    )
    with pytest.raises(PipelineError) as caught, planning_of("shop", "filter_1"):
        raise ParseException(said)
    assert str(caught.value).endswith("SQLSTATE: 42601 (line 1, pos 4) The text: v > > 3")
