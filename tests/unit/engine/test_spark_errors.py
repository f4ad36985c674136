"""What a task raises, as the driver knows it: only the text comes across."""

from __future__ import annotations

import traceback

import pytest

from dagster_jet.core.failpoint import FailPointError
from dagster_jet.engine.spark.errors import at_stage, translate
from dagster_jet.errors import (
    BadRowError,
    ExecutorLostError,
    JetError,
    ProcessorError,
    Reaction,
    ResultError,
    UserFunctionError,
)


def at_driver(raised: Exception) -> JetError:
    """`raised` by an operator of the stage 'sum', after its way through Spark."""
    try:
        with at_stage("sum"):
            raise raised
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


def test_anything_else_says_what_was_raised_and_what_to_do():
    found = at_driver(TypeError("'<' not supported between\ninstances of 'int' and 'str'"))
    assert type(found) is JetError and found.reaction is Reaction.FAIL
    said = "job 'p', stage 'sum': raised TypeError: '<' not supported between instances of"
    assert said in str(found) and "Filter out" in str(found)


def test_an_overflow_is_not_cured_by_turning_ansi_mode_off():
    said = "[ARITHMETIC_OVERFLOW] long overflow. If necessary set ansi.enabled to false"
    found = translate(Exception(f"Job aborted.\n{said}\n"), "p", [])
    assert type(found) is ResultError and found.cure.startswith("Cast to decimal or double")


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
    ("said", "reaction"), [("KeyError: 'k'", Reaction.FAIL), ("SinkError: full", Reaction.RESTART)]
)
def test_a_processor_error_names_the_callback_and_reacts_as_what_is_behind_it(said, reaction):
    raised = ProcessorError(f"raised {said}", vertex="sum", index=3, callback="process()")
    found = at_driver(raised)
    assert type(found) is ProcessorError and found.reaction is reaction
    assert (found.vertex, found.index, found.callback) == ("sum", 3, "process()")
    assert str(found) == f"job 'p', {raised}"
