"""Registers are read and written through a `Store` that was opened before the members changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_jet.exports.export_list import read_exports
from dagster_jet.jobs.requests import request
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.ownership.supervision import (
    Intent,
    read_supervision,
    reserve_generation,
    resume,
    set_intent,
)
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.store import Store, StoreConfig

JOB = "flights"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Knows the members that there were before one joined and another one left."""
    urls = tuple(f"file://{tmp_path}/{m}" for m in "abc")
    with Store.open(StoreConfig(urls=urls, backup_count=1)) as store:
        set_intent(store, JOB, Intent.ALWAYS_ON)
        request(store, JOB, StopKind.SUSPEND, execution_id=1)
        with Store.open(StoreConfig(urls=urls, backup_count=1)) as other:
            other.add_member(f"file://{tmp_path}/d")
            other.remove_member(next(iter(other.config.member_ids)))
        yield store


def reserve(store: Store) -> object:
    return reserve_generation(
        store, JOB, 0, requested_at_ms=1, attempts=1, execution_id_seen=1, snapshot_id_seen=1
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda store: request(store, JOB, StopKind.CANCEL, execution_id=1),
        lambda store: set_intent(store, JOB, Intent.PAUSED),
        lambda store: resume(store, JOB, 1),
        lambda store: read_supervision(store, JOB),
        reserve,
    ],
    ids=["request", "set_intent", "resume", "read_supervision", "reserve_generation"],
)
def test_it_works_with_the_members_of_now(store: Store, use: Callable[[Store], object]) -> None:
    assert use(store) is not None


def test_what_is_not_there_is_not_an_error(store: Store) -> None:
    assert read_record(store, JOB) is None
    assert read_exports(store) == ()
