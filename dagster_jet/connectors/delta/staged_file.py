"""A data file that is durable at its final place and that no version of the table names yet."""

from __future__ import annotations

import json

from dagster_jet.connectors.delta.statistics import Statistics
from dagster_jet.connectors.delta.table_log import DataFile
from dagster_jet.connectors.files.places.place import Sealed
from dagster_jet.contract import TransactionId
from dagster_jet.snapshot.manifest import Artifact


def artifact_of(
    transaction: TransactionId,
    path: str,
    sealed: Sealed,
    partition: dict[str, str | None],
    statistics: Statistics,
) -> Artifact:
    """Returns the artifact; its token begins with the path and carries what the log keeps."""
    kept = {"partition": partition, "statistics": statistics.as_json()}
    return Artifact(
        sink=transaction.sink,
        epoch_id=transaction.epoch_id,
        token=f"{path}#{json.dumps(kept, separators=(',', ':'))}",
        target=path,
        rows=statistics.rows,
        bytes=sealed.bytes,
        checksum=sealed.checksum,
    )


def data_file_of(artifact: Artifact) -> DataFile:
    """Returns the file for the table's log."""
    path, _, kept = artifact.token.partition("#")
    parsed = json.loads(kept)
    return DataFile(path, artifact.bytes, parsed["partition"], parsed["statistics"])


def path_in(token: str) -> str:
    """Returns the path in an artifact's token."""
    return token.partition("#")[0]
