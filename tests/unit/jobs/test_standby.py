"""A standby's reads of the record and of what is wanted, on a real store and without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.execution.stopping import StopSignal, parse_until
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.standby import Standby
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.succession import Succession
from dagster_jet.ownership.supervision import Intent, set_intent
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Store, StoreConfig

RUNNING = ExecutionRecord("j", 1, JobStatus.RUNNING, lease=new_lease("owner", 10_000, None))
SHUT_DOWN = ExecutionRecord("j", 1, JobStatus.NOT_RUNNING, cause=StopCause.SHUTDOWN)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreConfig(tuple(f"file://{tmp_path}/{m}" for m in "abc"))) as store:
        yield store


@pytest.fixture
def standby(store: Store, tmp_path: Path) -> Standby:
    p = Pipeline("j")
    rows = p.read_from(sources.files(f"{tmp_path}/in", format="json", schema="v long"), name="in")
    rows.write_to(sinks.files(f"{tmp_path}/out", format="json"), name="out")
    order = Order(
        "j", p.graph, JobConfig(), StartOptions(), parse_until("stopped"), store, tmp_path / "work"
    )
    return Standby(order, StopSignal(), lambda event: None, None)


def test_a_pause_that_came_after_the_last_read_of_the_intent_is_respected(
    standby: Standby, store: Store
) -> None:
    assert standby.sees(RUNNING) is Succession.WAITS
    set_intent(store, "j", Intent.PAUSED)
    assert standby.sees(SHUT_DOWN) is Succession.ENDS
    set_intent(store, "j", Intent.ALWAYS_ON)
    assert standby.sees(SHUT_DOWN) is Succession.TAKES_OVER


def test_a_record_is_read_again_before_its_job_has_been_down_for_long(standby: Standby) -> None:
    began = time.monotonic()
    standby.pause(RUNNING)
    assert time.monotonic() - began < 0.9
