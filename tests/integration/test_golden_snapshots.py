"""Snapshots that older versions wrote: today's code goes on from them, and refuses newer ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from dagster_jet import Jet, JobConfig, Pipeline
from dagster_jet.errors import JetError, StoreMismatchError
from dagster_jet.snapshot.manifest import MANIFEST_FORMAT
from dagster_jet.snapshot.record import RECORD_FORMAT
from tests.golden.pipeline import golden_pipeline, oracle, outputs
from tests.golden.snapshot import FOLDER, GoldenSnapshot, state_in
from tests.golden.write import batches, open_jet, write
from tests.long import long_but_for
from tests.unit.operators import naive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = sorted(path.name for path in FOLDER.glob("snapshot-*.json"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> GoldenSnapshot:
    return GoldenSnapshot.read(FOLDER / getattr(request, "param", FILES[-1]))


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with open_jet(tmp_path) as jet:
        yield jet


def continued(golden: GoldenSnapshot, out: Path) -> tuple[Pipeline, list[Any]]:
    """The golden pipeline with more input, and all its input."""
    inputs = [
        [*old, *batches(f"more {side}", 2, first=len(old))]
        for side, old in (("rows", golden.rows), ("others", golden.others))
    ]
    rows, others = inputs
    return golden_pipeline(rows, others, out), inputs


@pytest.mark.parametrize("golden", long_but_for(FILES, *FILES[:1], FILES[-1]), indirect=True)
def test_todays_code_goes_on_from_it(
    spark: SparkSession, jet: Jet, golden: GoldenSnapshot, tmp_path: Path
) -> None:
    cloudpickle.register_pickle_by_value(naive)
    golden.put_into(jet.store)
    pipeline, inputs = continued(golden, tmp_path / "out")
    assert not [change for change in jet.plan(pipeline) if change.is_refused]
    jet.run(pipeline, JobConfig(parallelism=3), until="completed")
    found, truth = outputs(tmp_path / "out"), oracle(*inputs)
    for stage in golden.outputs:
        before = golden.outputs[stage]
        if stage == "rolling":  # the last word counts
            before -= before
        assert found[stage] + before == truth[stage], stage
    assert set(golden.outputs) <= set(truth)


@pytest.mark.parametrize("what", ["record", "manifest", "state"])
def test_a_newer_one_is_refused_and_stays_as_it_is(
    spark: SparkSession, jet: Jet, golden: GoldenSnapshot, tmp_path: Path, what: str
) -> None:
    plan = json.loads(golden.manifest)["plan"]
    plan["session"]["format"] = 99
    newest = MANIFEST_FORMAT + 1
    newer, said = {
        "record": (
            golden.with_record(format=RECORD_FORMAT + 1),
            f"execution record has format {RECORD_FORMAT + 1}",
        ),
        "manifest": (golden.with_manifest(format=newest), f"manifest has format {newest}"),
        "state": (golden.with_manifest(plan=plan), "'session': .* newer version of dagster-jet"),
    }[what]
    newer.put_into(jet.store)
    before = state_in(jet.store, newer.job)
    pipeline, _ = continued(golden, tmp_path / "out")
    with pytest.raises(JetError, match=said) as told:
        jet.run(pipeline, JobConfig(parallelism=3), until="completed")
    if what != "state":
        assert isinstance(told.value, StoreMismatchError)
        assert "Upgrade dagster-jet" in str(told.value)
    assert state_in(jet.store, newer.job) == before
    assert not any(outputs(tmp_path / "out").values())
    if what != "record":
        (ref,) = json.loads(newer.record)["snapshots"]
        assert [(r.snapshot_id, r.manifest_checksum) for r in jet.job(newer.job).snapshots()] == [
            (ref["snapshot_id"], ref["manifest_checksum"])
        ]


def test_a_golden_file_is_never_replaced() -> None:
    for name in FILES:
        with pytest.raises(FileExistsError, match="never replaced"):
            write(int(name.removeprefix("snapshot-").removesuffix(".json")))
