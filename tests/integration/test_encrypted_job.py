"""A job on an encrypted store: its tasks read the keys from their own environment."""

from __future__ import annotations

import base64

import pytest

from dagster_jet import Jet, JobConfig, Secret
from dagster_jet.errors import StoreMismatchError
from dagster_jet.store import FileMember

from . import child
from .world import World

VARIABLE = "JET_TEST_KEYS"


def test_a_job_writes_and_restores_encrypted_state(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]
    (world.folder / "store").mkdir()
    members = [f"file://{world.folder}/store/{member}" for member in "abc"]

    def run(keys: str, until: str) -> None:
        monkeypatch.setenv(VARIABLE, keys)
        world.spark.sparkContext.environment[VARIABLE] = keys
        try:
            with Jet(
                store=members,
                spark=child.SPARK,
                work_dir=world.folder / "work",
                encryption_keys=Secret(env=VARIABLE),
            ) as jet:
                pipeline = child.crash_pipeline(world.folder)
                jet.run(pipeline, JobConfig(**child.CONFIG), until=until)
        finally:
            del world.spark.sparkContext.environment[VARIABLE]

    world.fill(files=3)
    run(keys[0], "drained")
    for member in "abc":
        place = FileMember(f"{world.folder}/store/{member}")
        copies = [copy for copy in place.get_many(place.list_keys(b"map/")) if copy]
        assert copies and not [copy for copy in copies if b"key-" in copy]
        place.close()
    with pytest.raises(StoreMismatchError, match="is encrypted with the key"):
        world.jet()
    world.fill(files=2, first=3)
    run(f"{keys[1]},{keys[0]}", "completed")
    world.assert_exactly_once()
