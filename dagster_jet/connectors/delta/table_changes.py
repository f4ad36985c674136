"""Files and rows that each version of a table added, by the files of its log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from dagster_jet.connectors.delta.log_folder import LOG
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.lake.added_rows import AddedFile
from dagster_jet.errors import SourceError


@dataclass(frozen=True)
class TableChanges:
    """Reads the versions of a table, in order."""

    url: str
    storage_options: StorageOptions
    skips_deletes: bool
    job: str
    stage: str

    def of_contents(self, log: TableLog) -> list[AddedFile]:
        """Returns the files of a version, as a new job reads them."""
        return contents_of(log)

    def of_version(self, version: int) -> list[AddedFile]:
        """Returns the files that a version added. Compaction adds no rows.

        Raises:
            SourceError: the log does not have the version any more, or it deletes rows.
        """
        added: list[dict[str, Any]] = []
        for action in self.actions(version):
            if "remove" in action and action["remove"].get("dataChange", True):
                if self.skips_deletes:
                    return []
                raise SourceError(
                    f"version {version} of the table {self.url!r} updates or deletes rows.",
                    job=self.job,
                    stage=self.stage,
                    position=str(version),
                    cure="Read a table that is only appended to, or skip such versions whole: "
                    'delta(..., deletes="skip").',
                )
            if "add" in action and action["add"].get("dataChange", True):
                added.append(action["add"])
        for one in added:
            self.check_whole(version, one)
        return [added_file(version, number, one) for number, one in enumerate(added)]

    def check_whole(self, version: int, action: Mapping[str, Any]) -> None:
        """Raises `SourceError` if not all rows of a file count."""
        if action.get("deletionVector") is not None:
            raise SourceError(
                f"version {version} of the table {self.url!r} has a file with a deletion vector.",
                job=self.job,
                stage=self.stage,
                position=action["path"],
                cure="Drop the feature deletionVectors of the table, and let a job of another name "
                "begin with a version behind that.",
            )

    def actions(self, version: int) -> Iterator[Mapping[str, Any]]:
        found = actions_of(self.url, self.storage_options, version)
        if found is None:
            raise SourceError(
                f"the log of the table {self.url!r} does not have version {version} any more.",
                job=self.job,
                stage=self.stage,
                position=str(version),
                cure="Keep the log for longer than a job is down (delta.logRetentionDuration). To "
                "read the table from its present contents on, start a job of another name.",
            )
        yield from found


def actions_of(
    url: str, storage_options: StorageOptions, version: int
) -> list[Mapping[str, Any]] | None:
    """Returns what the log's file of one version says; None if there is no such file."""
    body = _body(url, storage_options, version)
    return None if body is None else [json.loads(one) for one in body.splitlines() if one.strip()]


def digest_of(url: str, storage_options: StorageOptions, version: int) -> str | None:
    """Returns a digest of the log's file of one version; None if there is no such file."""
    body = _body(url, storage_options, version)
    return None if body is None else blake2b(body, digest_size=16).hexdigest()


def _body(url: str, storage_options: StorageOptions, version: int) -> bytes | None:
    place = open_input(url, storage_options)
    found = place.find(f"{url}/{LOG}/{version:020d}.json")
    if found is None:
        return None
    with place.open(found) as file:
        return file.read()


def added_file(version: int, number: int, action: Mapping[str, Any]) -> AddedFile:
    """Returns the file of an action of the log."""
    return AddedFile(
        version,
        number,
        unquote(action["path"]),
        action["size"],
        json.loads(action.get("stats") or "{}").get("numRecords"),
        tuple((n, v or None) for n, v in (action.get("partitionValues") or {}).items()),
    )


def contents_of(log: TableLog) -> list[AddedFile]:
    """Returns the files of a version, in an order that depends on their names only."""
    actions = pa.table(log.table.get_add_actions(flatten=False)).to_pylist()
    found = sorted(actions, key=lambda one: str(one["path"]))
    return [
        AddedFile(
            log.version,
            number,
            unquote(one["path"]),
            one["size_bytes"],
            one["num_records"],
            tuple((n, _text(v)) for n, v in (one.get("partition") or {}).items()),
        )
        for number, one in enumerate(found)
    ]


def _text(value: Any) -> str | None:
    """Returns the text that the log has. There an empty text is null."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value) or None
