"""Tables that a sink must not append to: where markers expire, or where a writer owes more than
files."""

from __future__ import annotations

from dagster_jet.connectors.delta.table_log import TableLog

_RETENTION = "delta.setTransactionRetentionDuration"
_MAPPING = "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."
_APPEND_ONLY = "delta.appendOnly"
_KNOWN = frozenset(
    (
        *("appendOnly", "invariants", "checkConstraints", "generatedColumns"),
        *("changeDataFeed", "timestampNtz"),
    )
)
"""Features that ask nothing of an append, unless a column or a property uses them: see `unfit`."""
_READER_MAX, _WRITER_MAX = 3, 7
"""Protocol versions; the last ones list their features."""


def unfit(log: TableLog, *, merges: bool = False) -> str | None:
    """Returns why a sink must not write to the table; None if it may.

    Args:
        merges: whether it also updates and removes rows.
    """
    properties, protocol = log.properties, log.table.protocol()
    columns = log.columns()
    if _RETENTION in properties:
        return f"it has the property {_RETENTION}, by which the markers of commits expire"
    if properties.get(_MAPPING, "none") != "none":
        return f"it has the property {_MAPPING}: its files have other names of columns"
    if merges and properties.get(_APPEND_ONLY, "false") == "true":
        return f"it has the property {_APPEND_ONLY}"
    if ruled := [name for name in properties if name.startswith(_CONSTRAINT)]:
        return f"it has the constraint {ruled[0].removeprefix(_CONSTRAINT)!r}"
    if columns.ruled:
        return f"its writers check or compute the column {columns.ruled[0]!r}"
    if columns.has_inner_not_null:
        return f"a part of the column {columns.has_inner_not_null[0]!r} is never null"
    if protocol.min_writer_version > _WRITER_MAX or protocol.min_reader_version > _READER_MAX:
        return f"it has the protocol {protocol.min_reader_version}/{protocol.min_writer_version}"
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    if unknown := sorted(features - _KNOWN):
        return f"it has the feature {unknown[0]!r}"
    return None


def unreadable(log: TableLog) -> str | None:
    """Returns why a source cannot read the table's files; None if it can."""
    properties, protocol = log.properties, log.table.protocol()
    if properties.get(_MAPPING, "none") != "none":
        return f"it has the property {_MAPPING}: its files have other names of columns"
    kinds = log.columns().types
    for name in log.partition_by:
        if kinds[name] == "binary":
            return f"it is partitioned by bytes, the column {name!r}: the log has them as texts"
    unknown = sorted(set(protocol.reader_features or ()) - _KNOWN)
    return f"it has the feature {unknown[0]!r}" if unknown else None
