"""What a pipeline looks at of its sources' rows: columns, and fields of structs.

Spark's optimizer knows, and tells it to readers of Parquet. So the pipeline is analysed on Parquet
files without a row, whatever its sources read, and the physical plans of all that takes rows out of
Spark say what they would still read.
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

from dagster_jet.spark.planning.logical_plans import leaves

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
"""Spark's simple names of leaves that are no source of ours, or say what they read."""
_SHOWN_FIELDS = "spark.sql.debug.maxToStringFields"


@dataclass
class UsedColumns:
    """Of sources whose frames were made here."""

    session: SparkSession
    _schemas: dict[str, StructType] = field(default_factory=dict)
    _folders: dict[str, str] = field(default_factory=dict)
    """By folder, as Spark writes it, the source."""

    def empty_frame(self, source: str, schema: str) -> DataFrame:
        """No rows of a source, which Spark's optimizer does not know."""
        folder = Path(tempfile.mkdtemp(prefix="jet-no-rows-"))
        try:
            frame = self.session.read.format("parquet").schema(schema).load(folder.as_uri())
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # it was listed, and is not read
        self._folders[folder.as_uri()] = source
        self._schemas[source] = frame.schema
        return frame

    def of(self, ends: Iterable[DataFrame]) -> dict[str, StructType]:
        """By source, what is looked at where these frames are all that is read; {}: unknown.

        Each has a column at least: a reader that reads nothing counts no rows.
        """
        if not self._schemas:
            return {}
        shown = self.session.conf.get(_SHOWN_FIELDS)
        self.session.conf.set(_SHOWN_FIELDS, 1_000_000)  # else plans leave out what is long
        try:
            return self._of(ends)
        except (PySparkException, Py4JError):  # nothing depends on it, and epochs say what it is
            return {}
        finally:
            self.session.conf.set(_SHOWN_FIELDS, shown or 25)

    def _of(self, ends: Iterable[DataFrame]) -> dict[str, StructType]:
        used = {source: StructType([]) for source in self._schemas}
        for end in ends:
            plan = end._jdf.queryExecution().sparkPlan()
            text = plan.toString()
            if any(asks in text for asks in _ASKS_FOR_FILES):
                return {}
            for leaf in leaves(plan):
                kind = leaf.getClass().getSimpleName()
                if kind not in _KNOWN_LEAVES:
                    return {}
                source = self._source_of(leaf) if kind == _FILES else None
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
    """As `Path.as_uri` writes it: Hadoop leaves an empty host out."""
    return str(path.toString()).replace("file:/", "file:///", 1)
