"""What nobody foresaw beside the loop, as an error of ours."""

from __future__ import annotations

import errno

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from dagster_jet.errors import Reaction
from dagster_jet.execution.failures import Failures
from dagster_jet.snapshot.protocol import Failed


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("SparkConf does not exist in the JVM"),  # as a proxy says it of a killed one
        Py4JNetworkError("Error while sending or receiving"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_new_execution_can_cure_restarts_the_job(error: Exception) -> None:
    event = Failures("job").event(error)
    assert isinstance(event, Failed) and event.restartable


def test_a_bug_of_ours_does_not() -> None:
    failures = Failures("job")
    event = failures.event(KeyError("shard"))
    assert isinstance(event, Failed) and not event.restartable
    assert failures.last is not None and failures.last.reaction is Reaction.FAIL
