"""Unexpected errors beside the loop become errors of the library."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

import dagster_jet
from dagster_jet import Pipeline, sinks, sources
from dagster_jet.connectors.pages import PAGES
from dagster_jet.errors import ConfigurationError, Reaction, SourceError, StoreUnwritableError
from dagster_jet.execution.failures import Failures
from dagster_jet.execution.retrying import GivenUpError
from dagster_jet.execution.start_connectors import at_start
from dagster_jet.snapshot.protocol import Failed


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("SparkConf does not exist in the JVM"),  # as a proxy says it of a killed one
        Py4JError("An error occurred while calling o41.collectToPython"),
        Py4JNetworkError("Error while sending or receiving"),
        OSError(errno.ENOSPC, "No space left on device"),
        StoreUnwritableError("the disk of a member is full."),  # a sink stages there
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_new_execution_can_cure_restarts_the_job(error: Exception) -> None:
    event = Failures("job").event(error)
    assert isinstance(event, Failed) and event.restartable


@pytest.mark.parametrize(
    "error",
    [
        KeyError("shard"),
        Py4JError("An error occurred while calling o41.nosuch. Trace:\npy4j.Py4JException: no\n"),
        Py4JError("Trying to call a package."),
    ],
)
def test_a_bug_of_ours_does_not(error: Exception) -> None:
    """Failed before: a wrong call of the JVM restarted the job again and again."""
    failures = Failures("job")
    event = failures.event(error)
    assert isinstance(event, Failed) and not event.restartable
    assert failures.last is not None and failures.last.reaction is Reaction.FAIL


def test_an_error_of_a_source_leads_to_the_page_of_its_system() -> None:
    failures = Failures("job", {"orders": "docs/connectors/rabbitmq.md"})
    lost = SourceError(
        "the queue 'q' does not exist.", job="job", stage="orders", cure="Declare it."
    )
    for _ in range(2):  # it may be met again
        event = failures.event(lost)
    assert isinstance(event, Failed)
    assert event.reason.endswith("not exist. Declare it. See docs/connectors/rabbitmq.md.")
    assert pickle.loads(pickle.dumps(lost)).args == lost.args
    other = SourceError("it is gone.", job="job", stage="files")
    assert "See docs" not in str(failures.expected(other))


def test_an_error_at_the_start_leads_there_too() -> None:
    pipeline = Pipeline("p")
    queue = sources.rabbitmq("amqp://me@127.0.0.1:1", queue="q", schema="id long")
    pipeline.read_from(queue, name="orders").write_to(sinks.console(), name="shown")

    def refuse(name: str, definition: object, look: object) -> object:
        raise ConfigurationError("no.", job="p", stage=name)

    with pytest.raises(ConfigurationError, match=r"no\. See docs/connectors/rabbitmq\.md\.$"):
        at_start(pipeline.graph, "p", on_one_host=True, ask=refuse)


def test_every_page_that_an_error_leads_to_is_there() -> None:
    root = Path(dagster_jet.__file__).parents[1]
    assert [page for page in PAGES.values() if not (root / page).exists()] == []


def test_a_call_that_is_given_up_is_not_the_cause_of_the_end_that_has_it_given_up() -> None:
    failures = Failures("job")
    first = failures.expected(ConfigurationError("row 3 is no number."))
    failures.event(GivenUpError("the execution ends before its commit could be made."))
    assert failures.last is first
