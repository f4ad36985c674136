"""The job as users' functions see it: parameters, and counters whose number is bounded."""

from __future__ import annotations

import json
from math import inf, nan

import pytest

from dagster_jet import JobConfig, Secret, job_context
from dagster_jet.core.job_context import COUNTERS_MAX, JobContext, Metrics, Parameters
from dagster_jet.core.measures import (
    Distribution,
    Measure,
    after_epoch,
    combined,
    counters_of,
    distributions_of,
    gauges_of,
)
from dagster_jet.errors import ConfigurationError, PipelineError, UserFunctionError


def test_a_function_reads_parameters_and_counts() -> None:
    def is_large(number: int) -> bool:
        context = job_context()
        large = number > context.parameters["limit"]
        context.metrics.counter("large").add(int(large))
        return large

    with JobContext("j", "s", {"limit": 2}).entered() as context:
        assert [is_large(n) for n in (1, 2, 3, 4)] == [False, False, True, True]
    assert context.metrics.counted == {"large": 2}
    with pytest.raises(PipelineError, match="outside of a function that a job calls"):
        is_large(1)


def test_names_and_numbers_are_bounded() -> None:
    metrics = Metrics("j", "s")
    for name in ("", "Bad", "9", "a b", "a" * 64):
        with pytest.raises(UserFunctionError, match=r"job 'j', stage 's'.*cannot name a counter"):
            metrics.counter(name)
    for number in (-1, 1.5, True):
        with pytest.raises(UserFunctionError, match=r"position 'counter n'.*a whole number"):
            metrics.counter("n").add(number)
    for number in range(COUNTERS_MAX - 1):
        metrics.counter(f"user_{number}").add()
    with pytest.raises(UserFunctionError, match=r"job 'j', stage 's'.*more than 50.*fixed names"):
        metrics.counter("one_more")
    assert len(metrics.counted) == COUNTERS_MAX


def test_gauges_and_histograms_are_taken_back_and_refused_like_counters() -> None:
    metrics = Metrics("j", "s")
    seconds, version = metrics.histogram("seconds", [0.5, 2]), metrics.gauge("version")
    seconds.record(0.5)
    version.set(3)
    before = metrics.totals
    seconds.record(7)
    version.set(1)
    assert metrics.gauges == {"version": 1}
    assert metrics.histograms == {"seconds": Distribution(2, 7.5, {0.5: 1, 2: 0, inf: 1})}
    metrics.take_back(before)
    assert metrics.gauges == {"version": 3} and metrics.histograms["seconds"].mean == 0.5
    metrics.take_back({})
    seconds.record(1)
    assert metrics.histograms == {"seconds": Distribution(1, 1, {0.5: 0, 2: 1, inf: 0})}
    for wrong in (nan, "1", True, inf):
        with pytest.raises(UserFunctionError, match=r"gauge version.*finite number"):
            version.set(wrong)
        with pytest.raises(UserFunctionError, match=r"histogram seconds.*finite number, 0 or more"):
            seconds.record(wrong)
    for buckets in ((), (2, 1), (1, inf), range(21)):
        with pytest.raises(UserFunctionError, match=r"no buckets: expected 1 to 20 numbers"):
            metrics.histogram("other", buckets)
    with pytest.raises(UserFunctionError, match=r"counter version.*a gauge already"):
        metrics.counter("version")
    metrics.end()
    with pytest.raises(UserFunctionError, match=r"gauge belongs to a task that has ended"):
        version.set(4)


def test_measures_of_tasks_and_epochs() -> None:
    """The tasks of an epoch give the largest gauge; several epochs give the newest that was set."""

    def task(gauge: float | None, *values: float) -> dict[str, Measure]:
        metrics = Metrics()
        if gauge is not None:
            metrics.gauge("g").set(gauge)
        for value in values:
            metrics.histogram("h", [1]).record(value)
            metrics.counter("c").add()
        return json.loads(json.dumps(metrics.totals))

    total = after_epoch({}, combined(task(5, 1, 2), task(7), task(None, 3)))
    assert (gauges_of(total), counters_of(total)) == ({"g": 7}, {"c": 3})
    total = after_epoch(total, combined(task(2), task(1)))
    assert gauges_of(total) == {"g": 2}
    total = after_epoch(total, combined(task(None, 0.5)))
    assert gauges_of(total) == {"g": 2} and counters_of(total) == {"c": 4}
    assert distributions_of(total) == {"h": Distribution(4, 6.5, {1: 2, inf: 2})}


def test_a_counter_of_an_ended_task_is_refused() -> None:
    metrics = Metrics("j", "s")
    kept = metrics.counter("rows")
    kept.add()
    metrics.end()
    with pytest.raises(UserFunctionError, match=r"a task that has ended.*in each call"):
        kept.add()
    assert metrics.counted == {"rows": 1}


def test_parameters_are_plain_and_small_and_their_values_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = JobConfig(parameters={"limit": 3, "hosts": ["a"], "token": "env:TOKEN"})
    assert config.parameters["token"] == Secret("TOKEN")
    parameters = Parameters(config.parameters)
    monkeypatch.setenv("TOKEN", "hidden")
    assert parameters["token"].value() == "hidden" and parameters["hosts"] == ["a"]
    shown = f"{config!r} {config} {parameters!r} {JobContext(parameters=parameters)!r}"
    assert "hidden" not in shown and "hosts=" not in shown and "'a'" not in shown
    with pytest.raises(KeyError, match=r"limits.*it has: limit, hosts, token.*JobConfig"):
        parameters["limits"]
    with pytest.raises(ConfigurationError, match=r"parameters: 'at' is a set"):
        JobConfig(parameters={"at": {1}})
    with pytest.raises(ConfigurationError, match=r"parameters: 'n' is a float"):
        JobConfig(parameters={"n": float("nan")})
    with pytest.raises(ConfigurationError, match=r"more than 16384 bytes.*enrich") as refused:
        JobConfig(parameters={"table": "x" * 20_000})
    assert "xxxx" not in str(refused.value)
