"""Names of a sink's data files. They say who has written a file, and for which epoch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

import xxhash

from dagster_jet.connectors.sink_owner import SinkOwner
from dagster_jet.contract import CommitContext, TransactionId

APPLICATIONS = "dagster-jet/"
"""Beginning of the ids of markers, and of the names of tags."""
_EPOCH_BITS = 40
_NAME = re.compile(r"(?:part|merged)-([0-9a-f]{16})-(\d+)-(\d+)-\d+-(\d+)-.*\.parquet")


@dataclass(frozen=True)
class Owner(SinkOwner):
    """Owner of markers in a table's metadata, and of data files."""

    def application(self, *, repeatable: bool) -> str:
        """Returns the id of its markers in a table's metadata.

        Args:
            repeatable: see `CommitContext`.
        """
        parts = (self.store, self.namespace, self.job, self.sink)
        more = "/repeatable" if repeatable else ""
        return APPLICATIONS + "/".join(quote(part, safe="") for part in parts) + more

    @property
    def short(self) -> str:
        return xxhash.xxh3_64_hexdigest(self.application(repeatable=False).encode())

    @property
    def beginning(self) -> str:
        """Returns the beginning of its files' names."""
        return f"part-{self.short}-"

    @property
    def beginning_of_merged(self) -> str:
        """Returns the beginning of the names of files that phase 2 has written. A start does not
        remove them as orphans: a late commit of a dead driver may still name them."""
        return f"merged-{self.short}-"

    @property
    def beginning_of_compacted(self) -> str:
        """Returns the beginning of the names of files that maintenance has written together."""
        return f"compacted-{self.short}-"

    def file_name(self, transaction: TransactionId, number: int, beginning: str = "") -> str:
        """Returns the name of a writer's file, without its folder.

        Args:
            beginning: by default the one of a task's file of an epoch.
        """
        t, beginning = transaction, beginning or self.beginning
        return (
            f"{beginning}{t.timeline}-{t.epoch_id:010d}-{t.shard:04d}-{t.execution_id}-"
            f"{quote(t.attempt, safe='')}-{number}.parquet"
        )


@dataclass(frozen=True)
class StagedName:
    """Who has written a file, and for which epoch."""

    owner: str
    timeline: int
    epoch_id: int
    execution_id: int

    @classmethod
    def of(cls, path: str) -> StagedName | None:
        """Returns None for a path that is no sink's."""
        found = _NAME.fullmatch(path.rpartition("/")[2])
        return None if found is None else cls(found[1], *map(int, found.groups()[1:]))

    def may_be_committed(self, exactly_once: int, repeatable: int) -> bool:
        """Returns whether the file's epoch is not above the two markers."""
        return (
            marker_of(self.timeline, self.epoch_id) <= exactly_once
            or marker_of(self.execution_id, self.epoch_id) <= repeatable
        )


def marker_of(line: int, epoch_id: int) -> int:
    """Returns the number of a marker: the newest one of a sink is that of its last epoch."""
    return line << _EPOCH_BITS | epoch_id


def line_of(context: CommitContext) -> int:
    """Returns the first part of a marker: below exactly-once a later execution may use an epoch's
    id again."""
    return context.execution_id if context.repeatable else context.timeline


def may_hold_data(folder: str) -> bool:
    """False of folders of a table's format, such as `_delta_log`. A partition by a column whose
    name begins with "_" has a "="."""
    return not folder.startswith("_") or "=" in folder
