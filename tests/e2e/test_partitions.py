"""A backfill beside a live job: each partition a job of its own, its rows exactly once. Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_jet import Jet, JetResource, Pipeline, jet_assets
from dagster_jet.orchestration.last_reports import newest_materialization
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

from .test_materialize import materialize
from .tiny import committed_rows, jet_resource, put_file, tiny

DAYS = dg.StaticPartitionsDefinition(["mon", "tue", "wed"])
Rows = Counter[tuple[tuple[str, object], ...]]


def tiny_by_day(folder: Path) -> dg.AssetsDefinition:
    def of_day(day: str) -> Pipeline:
        return tiny(folder / day).renamed("tiny_by_day")

    def stream(context, jet):
        yield from jet.run(context=context)

    stream.__annotations__["jet"] = JetResource
    return jet_assets(pipeline=of_day, partitions_def=DAYS)(stream)


def run(folder: Path, instance: dg.DagsterInstance, day: str, **config: Any) -> Any:
    return dg.materialize(
        [tiny_by_day(folder)],
        partition_key=day,
        resources={"jet": jet_resource(folder)},
        run_config={"ops": {"tiny_by_day_partition": {"config": config}}},
        instance=instance,
        raise_on_error=False,
    )


def rows(folder: Path) -> Rows:
    return Counter(tuple(sorted(row.items())) for row in committed_rows(folder))


def of_hours(folder: Path, hours: int) -> tuple[Rows, Rows]:
    """Expected rows of both sinks when everything is read, computed from what `put_file` has
    written."""
    copied: Rows = Counter()
    totals: dict[tuple[str, int], list[float]] = {}
    for hour in range(hours):
        for i in range(60):
            at = f"2024-01-01T{hour:02d}:{i % 60:02d}:00.000000Z"
            copied[("at", at), ("k", f"k{i % 3}"), ("v", float(i))] += 1
            totals.setdefault((f"k{i % 3}", hour), []).append(float(i))
    per_hour: Rows = Counter()
    for (key, hour), values in totals.items():
        per_hour[
            ("k", key),
            ("n", len(values)),
            ("total", sum(values)),
            ("window_end", f"2024-01-01T{hour + 1:02d}:00:00.000000Z"),
            ("window_start", f"2024-01-01T{hour:02d}:00:00.000000Z"),
        ] += 1
    return copied, per_hour


def record(folder: Path, job: str) -> ExecutionRecord:
    with Jet(store=[f"file://{folder}/store"], backup_count=0) as jet:
        found = jet.job(job).record()
    assert found is not None
    return found


def test_two_partitions_beside_a_live_job(tmp_path: Path) -> None:
    put_file(tmp_path, 0)
    for day, hours in (("mon", 2), ("tue", 1)):
        for hour in range(hours):
            put_file(tmp_path / day, hour)
    with dg.DagsterInstance.ephemeral() as instance:
        assert materialize(tmp_path, "drained", instance=instance).success
        live = record(tmp_path, "tiny")

        for day, hours in (("mon", 2), ("tue", 1)):
            assert run(tmp_path, instance, day).success
            assert record(tmp_path, f"tiny_by_day@{day}").status is JobStatus.COMPLETED
            found = rows(tmp_path / day / "copy"), rows(tmp_path / day / "per_hour")
            assert found == of_hours(tmp_path / day, hours), "and all windows are closed"
        out = dg.AssetKey(["tiny_by_day", "per_hour_out"])
        assert instance.get_materialized_partitions(out) == {"mon", "tue"}

        assert record(tmp_path, "tiny") == live, "it was not touched"
        put_file(tmp_path, 1)
        assert materialize(tmp_path, "completed", instance=instance).success
        found = rows(tmp_path / "copy"), rows(tmp_path / "per_hour")
        assert found == of_hours(tmp_path, 2), "it goes on where it was"

        _is_computed_anew(tmp_path, instance)
        _is_empty(tmp_path, instance)


def _is_computed_anew(folder: Path, instance: dg.DagsterInstance) -> None:
    """Not by accident; then as another job, whose rows replace those of the one before. Failed
    before: the sinks refused it until somebody had emptied their folders."""
    before = version(instance, "mon")
    assert run(folder, instance, "mon").success, "there is nothing to do"
    assert version(instance, "mon") == before
    assert run(folder, instance, "mon", anew=True).success
    found = rows(folder / "mon" / "copy"), rows(folder / "mon" / "per_hour")
    assert found == of_hours(folder / "mon", 2)
    assert len(list((folder / "mon" / "copy").glob("part-*"))) == len(
        {row["name"] for row in _listed(folder / "mon" / "copy")}
    ), "no file of the first computation is left"
    assert version(instance, "mon") != before, "as many rows, but others"


def version(instance: dg.DagsterInstance, day: str) -> str:
    key = dg.AssetKey(["tiny_by_day", "copy_out"])
    event = newest_materialization(instance, key, day)
    assert event is not None and event.tags is not None
    return event.tags["dagster/data_version"]


def _listed(sink: Path) -> list[dict[str, object]]:
    markers = (sink / "_epochs").glob("[!.]*.json")
    return [file for each in markers for file in json.loads(each.read_text("utf-8"))["files"]]


def _is_empty(folder: Path, instance: dg.DagsterInstance) -> None:
    """A day without input is done, with no rows; a backfill does not try it for ever."""
    (folder / "wed" / "in").mkdir(parents=True)
    result = run(folder, instance, "wed")
    assert result.success
    events = result.get_asset_materialization_events()
    assert {event.partition for event in events} == {"wed"}
    assert [e.materialization.metadata["dagster/row_count"].value for e in events[-2:]] == [0, 0]
    assert run(folder, instance, "wed").success, "there is nothing to do"
    assert run(folder, instance, "wed", anew=True).success
