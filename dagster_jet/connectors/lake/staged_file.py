"""A data file that is durable at its final place and that no version of the table names yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dagster_jet.connectors.files.places.place import Sealed
from dagster_jet.contract import TransactionId
from dagster_jet.snapshot.manifest import Artifact


def artifact_of(
    transaction: TransactionId, path: str, sealed: Sealed, rows: int, kept: Mapping[str, Any]
) -> Artifact:
    """Returns the artifact; its token begins with the path.

    Args:
        kept: what the commit needs, as JSON: partition values, statistics.
    """
    return Artifact(
        sink=transaction.sink,
        epoch_id=transaction.epoch_id,
        token=f"{path}#{json.dumps(kept, separators=(',', ':'))}",
        target=path,
        rows=rows,
        bytes=sealed.bytes,
        checksum=sealed.checksum,
    )


def kept_in(artifact: Artifact) -> dict[str, Any]:
    """Returns what the commit needs."""
    kept: dict[str, Any] = json.loads(artifact.token.partition("#")[2])
    return kept


def path_in(token: str) -> str:
    """Returns the path in an artifact's token."""
    return token.partition("#")[0]
