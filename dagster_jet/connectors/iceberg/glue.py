"""AWS Glue as a catalog: whether its server refuses updates that come too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_INPUT = (
    "Name", "Description", "Owner", "Retention", "StorageDescriptor", "PartitionKeys",
    "TableType", "Parameters",
)  # fmt: skip
"""Fields of a table that an update has, too."""


def is_glue(catalog: Catalog) -> bool:
    """Returns whether the catalog is a Glue catalog."""
    return type(catalog).__name__ == "GlueCatalog"  # importing the class needs boto3


def ignores_versions(catalog: Any, table: str) -> bool:
    """Asks for an update that changes nothing, on condition of the version before the newest one.
    Glue refuses it. A server that carries it out would let a late update take the rows of another
    one away.

    Returns:
        Whether it was carried out. False for a table that was never updated.

    Raises:
        Exception: of the catalog.
    """
    space, _, name = table.rpartition(".")
    found = catalog.glue.get_table(DatabaseName=space, Name=name)["Table"]
    version = int(found.get("VersionId", 0))
    if version < 2:
        return False
    try:
        catalog.glue.update_table(
            DatabaseName=space,
            TableInput={field: found[field] for field in _INPUT if field in found},
            VersionId=str(version - 1),
        )
    except catalog.glue.exceptions.ConcurrentModificationException:
        return False
    return True
