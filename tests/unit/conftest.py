"""A store of its own for a test that drives a stage's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_jet.store import Store, StoreConfig
from tests.unit.operators.stepping import PARTITIONS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0, partition_count=PARTITIONS)
    with Store.open(config) as store:
        yield store
