"""A sink below exactly-once in a job that is: its rows are visible with their epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_jet import sinks
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import ConfigurationError
from dagster_jet.execution.start_connectors import effective_guarantee
from dagster_jet.snapshot.protocol import Decide, Publish, Published
from tests.unit.snapshot.test_coordinator import acked, artifact, run_epoch, running_job, tell


def test_its_artifacts_are_published_and_only_the_others_wait_for_the_snapshot() -> None:
    job = running_job(published_sinks=frozenset({"log"}))
    epoch = run_epoch(job, at=1000)
    told = acked(epoch, 1000)
    log = replace(artifact(epoch.epoch_id), sink="log")
    writer = replace(told.acks[-1], vertex="log", artifacts=(log,))
    assert tell(job, replace(told, acks=(*told.acks, writer))) == [Publish(epoch.epoch_id, (log,))]
    (decide,) = tell(job, Published(epoch.epoch_id))
    assert isinstance(decide, Decide)
    assert decide.manifest.artifacts == (artifact(epoch.epoch_id),)


@pytest.mark.parametrize("wanted", Guarantee)
def test_the_effective_guarantee_is_the_weaker_one(wanted: Guarantee) -> None:
    exact = sinks.files("/out", format="json")
    lower = sinks.files("/out", format="json", guarantee="at-least-once")
    assert effective_guarantee(wanted, exact) is wanted
    weaker = Guarantee.NONE if wanted is Guarantee.NONE else Guarantee.AT_LEAST_ONCE
    assert effective_guarantee(wanted, lower) is weaker
    assert lower.describe()["guarantee"] == "at-least-once" and "guarantee" not in exact.describe()


def test_an_unknown_guarantee_is_refused() -> None:
    with pytest.raises(ConfigurationError, match='"at-least-once"'):
        sinks.map_entries("m", key="k", guarantee="mostly")
