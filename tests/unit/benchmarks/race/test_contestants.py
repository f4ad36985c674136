"""Programs, settings and queries of the race's engines exist."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from benchmarks.race import two_sinks
from benchmarks.race.contestants import CONTESTANTS, JET, SPARK, Contestant
from benchmarks.race.queries import QUERIES
from dagster_jet import JobConfig

ALL = [*CONTESTANTS.values(), *two_sinks.CONTESTANTS]


@pytest.mark.parametrize("contestant", ALL, ids=lambda one: one.name)
def test_each_contestant_is_a_program(contestant: Contestant) -> None:
    assert find_spec(f"benchmarks.race.engines.{contestant.module}") is not None


@pytest.mark.parametrize("settings", JET.sweep, ids=str)
def test_the_settings_of_our_sweep_are_settings_of_jobs(settings: dict[str, object]) -> None:
    config = JobConfig(**settings)
    given = config.model_dump(exclude_unset=True)
    assert set(given) == set(settings)


def test_our_sweep_begins_with_the_defaults() -> None:
    assert JET.sweep[0] == {}


@pytest.mark.parametrize("query", QUERIES)
def test_both_engines_on_spark_have_each_query(query: str) -> None:
    from benchmarks.nexmark.queries import QUERIES as OURS
    from benchmarks.race.engines.spark import QUERIES as PEERS

    assert query in OURS
    assert query in PEERS


def test_the_peer_is_swept() -> None:
    assert len({settings["files"] for settings in SPARK.sweep}) == len(SPARK.sweep) > 2
