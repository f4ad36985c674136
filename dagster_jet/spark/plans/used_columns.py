"""Finds the columns and struct fields of sources that a pipeline uses.

Spark's optimizer computes them for readers of Parquet. So the pipeline is analysed on empty Parquet
files, whatever its sources read, and the physical plans of all frames whose rows leave Spark name
the columns that would be read.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructField, StructType

from dagster_jet.spark.plans.nodes import kind, leaves, physical

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ASKS_FOR_FILES = ("input_file_name(", "input_file_block_", "_metadata")
_FILES = "FileSourceScanExec"
_KNOWN_LEAVES = frozenset(
    (
        *(_FILES, "RDDScanExec", "LocalTableScanExec", "RangeExec", "OneRowRelationExec"),
        *("EmptyRelationExec", "InMemoryTableScanExec"),
    )
)
"""Simple names of Spark's leaves that are not our sources, or that name their columns."""
_SHOWN_FIELDS = "spark.sql.debug.maxToStringFields"


@dataclass
class UsedColumns:
    """Used columns of sources whose frames were made here."""

    session: SparkSession
    _schemas: dict[str, StructType] = field(default_factory=dict)
    _folders: dict[str, str] = field(default_factory=dict)
    """Source by folder, as Spark writes it."""

    def empty_frame(self, source: str, schema: str) -> DataFrame:
        """A source's frame that is empty but not known to be so by Spark's optimizer."""
        folder = Path(tempfile.mkdtemp(prefix="jet-no-rows-"))
        try:
            frame = self.session.read.format("parquet").schema(schema).load(folder.as_uri())
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # it was listed and is not read
        self._folders[folder.as_uri()] = source
        self._schemas[source] = frame.schema
        return frame

    def of(self, ends: Iterable[DataFrame]) -> dict[str, StructType]:
        """By source, the columns used if only these frames are read; {}: unknown.

        Each has at least one column: a reader that reads nothing counts no rows.
        """
        if not self._schemas:
            return {}
        shown = self.session.conf.get(_SHOWN_FIELDS)
        self.session.conf.set(_SHOWN_FIELDS, 1_000_000)  # else plans leave out long parts
        try:
            return self._of(ends)
        except (PySparkException, Py4JError):  # optional, and epochs report the error
            return {}
        finally:
            self.session.conf.set(_SHOWN_FIELDS, shown or 25)

    def _of(self, ends: Iterable[DataFrame]) -> dict[str, StructType]:
        used = {source: StructType([]) for source in self._schemas}
        for end in ends:
            plan = physical(end, prepared=False)
            text = plan.toString()
            if any(asks in text for asks in _ASKS_FOR_FILES):
                return {}
            for leaf in leaves(plan):
                if kind(leaf) not in _KNOWN_LEAVES:
                    return {}
                source = self._source_of(leaf) if kind(leaf) == _FILES else None
                if source is not None:
                    read = StructType.fromJson(json.loads(leaf.requiredSchema().json()))
                    used[source] = StructType([*used[source], *read])
        return {
            source: _only(schema, used[source]) or StructType(schema.fields[:1])
            for source, schema in self._schemas.items()
        }

    def _source_of(self, leaf: Any) -> str | None:
        paths = leaf.relation().location().rootPaths()
        return self._folders.get(_uri(paths.head())) if paths.size() == 1 else None


def _only(whole: StructType, used: StructType) -> StructType | None:
    """The fields of `whole` that are in `used`, in their order; None if there are none."""
    kept = []
    for one in whole:
        types = [field.dataType for field in used if field.name == one.name]
        if types:
            kept.append(StructField(one.name, _only_type(one.dataType, types), one.nullable))
    return StructType(kept) if kept else None


def _only_type(whole: DataType, used: list[DataType]) -> DataType:
    if not isinstance(whole, StructType):
        return whole
    fields = [field for type in used if isinstance(type, StructType) for field in type]
    return _only(whole, StructType(fields)) or whole


def _uri(path: Any) -> str:
    """Formats a path like `Path.as_uri`; Hadoop leaves an empty host out."""
    return str(path.toString()).replace("file:/", "file:///", 1)
