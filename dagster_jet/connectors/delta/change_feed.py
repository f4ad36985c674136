"""The change data feed of a table: rows that each version inserted, updated or deleted.

A version that has change files is described by them alone. In another one each row of a file that
was added is an insertion, and each row of a file that was removed a deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from dagster_jet.connectors.delta.table_changes import TableChanges, added_file, contents_of
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.lake.added_rows import AddedFile
from dagster_jet.errors import SourceError

TYPE, VERSION, TIME = "_change_type", "_commit_version", "_commit_timestamp"
COLUMNS = f"{TYPE} string, {VERSION} bigint, {TIME} timestamp"
"""Columns of a change, behind those of the table."""
_PROPERTY = "delta.enableChangeDataFeed"
_INSERTED, _DELETED = "insert", "delete"


def has_feed(properties: Mapping[str, str]) -> bool:
    return properties.get(_PROPERTY, "false").lower() == "true"


def no_feed(url: str, version: int, job: str, stage: str) -> SourceError:
    return SourceError(
        f"version {version} of the table {url!r} has no change data feed.",
        job=job,
        stage=stage,
        position=str(version),
        cure=f"Set {_PROPERTY} of the table to true, and let a job of another name begin with that "
        "version or a later one: delta(..., changes=True, start=...).",
    )


@dataclass(frozen=True)
class ChangeFeed(TableChanges):
    """Reads the changes of a table, version by version."""

    def of_contents(self, log: TableLog) -> list[AddedFile]:
        """Returns the files of a version, whose rows a new job reads as insertions."""
        try:
            committed_ms = _committed_ms(self.actions(log.version))
        except SourceError:
            committed_ms = None  # a checkpoint has replaced the version's own file
        return [_marked(one, _INSERTED, committed_ms) for one in contents_of(log)]

    def of_version(self, version: int) -> list[AddedFile]:
        """Returns the files with the changes of a version, deletions before insertions. Its change
        files are read in one epoch: a row may leave one of them and come in another one.

        Raises:
            SourceError: the log does not have the version any more, or the feed was turned off.
        """
        actions = list(self.actions(version))
        for action in actions:
            if "metaData" in action and not has_feed(action["metaData"].get("configuration", {})):
                raise no_feed(self.url, version, self.job, self.stage)
        committed_ms = _committed_ms(actions)
        if changes := [action["cdc"] for action in actions if "cdc" in action]:
            return [
                replace(_marked(added_file(version, n, one), None, committed_ms), is_joined=n > 0)
                for n, one in enumerate(changes)
            ]
        found: list[AddedFile] = []
        for kind, type in (("remove", _DELETED), ("add", _INSERTED)):
            for action in actions:
                if kind in action and action[kind].get("dataChange", True):
                    self.check_whole(version, action[kind])
                    self._check_complete(version, action[kind])
                    file = added_file(version, len(found), action[kind])
                    found.append(_marked(file, type, committed_ms))
        return found

    def _check_complete(self, version: int, action: Mapping[str, Any]) -> None:
        if "size" not in action or action.get("partitionValues") is None:
            raise SourceError(
                f"version {version} of the table {self.url!r} removes a file, and its log does not "
                "say the file's size and partition (extendedFileMetadata).",
                job=self.job,
                stage=self.stage,
                position=action["path"],
                cure="Let a job of another name begin with a later version.",
            )


def _marked(file: AddedFile, type: str | None, committed_ms: int | None) -> AddedFile:
    """Adds the columns of the change. Change files have their rows' types."""
    when = None
    if committed_ms is not None:
        when = str(datetime.fromtimestamp(committed_ms / 1000, timezone.utc).replace(tzinfo=None))
    types = () if type is None else ((TYPE, type),)
    marks = (*types, (VERSION, str(file.version)), (TIME, when))
    return replace(file, partition=(*file.partition, *marks))


def _committed_ms(actions: Any) -> int | None:
    for action in actions:
        if "commitInfo" in action:
            info = action["commitInfo"]
            committed: int | None = info.get("inCommitTimestamp", info.get("timestamp"))
            return committed
    return None
