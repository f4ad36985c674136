"""A standby's reads of the record and of what is wanted, on a real store and without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.execution.stopping import StopSignal, parse_until
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.standby import Standby
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import record_register
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
def order(store: Store, tmp_path: Path) -> Order:
    p = Pipeline("j")
    rows = p.read_from(sources.files(f"{tmp_path}/in", format="json", schema="v long"), name="in")
    rows.write_to(sinks.files(f"{tmp_path}/out", format="json"), name="out")
    return Order(
        "j", p.graph, JobConfig(), StartOptions(), parse_until("stopped"), store, tmp_path / "work"
    )


@pytest.fixture
def standby(order: Order) -> Standby:
    return Standby(order, StopSignal(), lambda event: None, None)


def test_a_pause_that_came_after_the_last_read_of_the_intent_is_respected(
    standby: Standby, store: Store
) -> None:
    assert standby.sees(RUNNING) is Succession.WAITS
    set_intent(store, "j", Intent.PAUSED)
    assert standby.sees(SHUT_DOWN) is Succession.ENDS
    set_intent(store, "j", Intent.ALWAYS_ON)
    assert standby.sees(SHUT_DOWN) is Succession.TAKES_OVER


class WarmStandby(Standby):
    """Needs no Spark."""

    def _warm_up(self) -> None:
        pass


def test_an_owner_may_come_through_an_outage_of_the_store(
    order: Order, store: Store, tmp_path: Path
) -> None:
    """It could not renew its lease. Failed before: the first read took the job over."""
    lease = replace(new_lease("owner", 2_000, None), host="elsewhere")
    register = store.register(record_register("j"))
    register.claim(1, "owner").write(replace(RUNNING, lease=lease).to_bytes())
    announced, seen = threading.Event(), []
    standby = WarmStandby(order, StopSignal(), lambda event: announced.set(), None)
    waiting = threading.Thread(target=lambda: seen.append(standby.wait()), daemon=True)
    waiting.start()
    assert announced.wait(30)
    for member in "bc":
        (tmp_path / member).rename(tmp_path / f"away-{member}")
    time.sleep(3)
    for member in "bc":
        (tmp_path / f"away-{member}").rename(tmp_path / member)
    waiting.join(1)
    assert waiting.is_alive(), "it has the time to live again"
    waiting.join(30)
    assert seen == [Succession.TAKES_OVER], "it did not come"


def test_a_record_is_read_again_before_its_job_has_been_down_for_long(standby: Standby) -> None:
    began = time.monotonic()
    standby.pause(RUNNING)
    assert time.monotonic() - began < 0.9
