"""Cost of a commit in a table with many snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Snapshot

from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.snapshot.manifest import Artifact

from .delta_table import by, rows, stage
from .iceberg_table import APPLICATION, Table, commit


def copies(version: TableVersion, staged: Sequence[Artifact]) -> int:
    """Counts the snapshots that the library copies while a commit is prepared."""
    count = 0
    original: Any = Snapshot.__deepcopy__

    def counting(self: Snapshot, memo: Any = None) -> Any:
        nonlocal count
        count += 1
        return original(self, memo)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Snapshot, "__deepcopy__", counting)
        version.append(staged, APPLICATION, 1 << 41, {})
        version.replace((), staged, APPLICATION, 1 << 41, {})
    return count


def test_a_commit_copies_the_newest_snapshot_only(tmp_path: Path) -> None:
    table = Table(tmp_path / "lake")
    sink = table.sink()
    found = {}
    for epoch in range(1, 9):
        staged = stage(sink, rows(epoch), epoch=epoch)
        if epoch in (2, 8):
            with table.version() as version:
                assert len(version.metadata.snapshots) == epoch - 1
                found[epoch] = copies(version, staged)
        commit(sink, staged, by())
    assert 0 < found[2] == found[8]
    assert table.ids() == list(range(1, 9))
