"""Schema and column lineage of a run's assets, taken from Spark's plans."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import dagster as dg

from dagster_jet.core.columns import StageColumn
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.materialization import Metadata

_logger = logging.getLogger(__name__)

Columns = Mapping[str, tuple[StageColumn, ...]]
_WAIT_S = 10.0
_LINEAGE_CHARACTERS_MAX = 20_000
"""Larger column lineages are omitted: every materialization stores one, for ever."""


@dataclass
class TableFacts:
    """Fetches the columns on a separate thread, because the run's main thread never calls Spark.

    Attributes:
        keys: keys of the assets that columns come from, by name of the stage or enrichment.
    """

    keys: Mapping[str, dg.AssetKey] = field(default_factory=dict)
    _known: threading.Event = field(default_factory=threading.Event, init=False)
    _facts: dict[str, Metadata] = field(default_factory=dict, init=False)
    _is_asked: bool = field(default=False, init=False)

    def ask(self, columns: Callable[[], Columns]) -> None:
        """Start fetching, once; later executions of the same run have the same columns."""
        if self._is_asked:
            return
        self._is_asked = True
        threading.Thread(target=self._ask, args=(columns,), name="jet-columns", daemon=True).start()

    def of(self, stage: str) -> Metadata:
        """Return the facts about a stage's columns, after waiting up to `_WAIT_S` for them.

        Returns nothing if nothing was fetched or the answer is late; that is not an error.
        """
        if self._is_asked and not self._known.wait(_WAIT_S):
            self._known.set()  # later calls do not wait again
        return self._facts.get(stage, {})

    def _ask(self, columns: Callable[[], Columns]) -> None:
        try:
            found = columns()
            self._facts = {stage: table_facts(each, self.keys) for stage, each in found.items()}
        except Exception as error:  # noqa: BLE001 - Spark may end at any time
            _logger.info("the columns of the assets could not be determined: %s", error)
        finally:
            self._known.set()


def table_facts(columns: tuple[StageColumn, ...], keys_: Mapping[str, dg.AssetKey]) -> Metadata:
    """Return the schema and the lineage of one asset as Dagster metadata. Pure.

    Args:
        columns: columns of the asset.
        keys_: keys of the origin assets, by stage; origins that are not assets are left out.
    """
    schema = dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                column.type,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in columns
        ]
    )
    facts: dict[str, dg.MetadataValue] = {
        keys.DAGSTER_COLUMN_SCHEMA: dg.MetadataValue.table_schema(schema)
    }
    lineage = {
        column.name: [
            dg.TableColumnDep(keys_[origin.stage], origin.column)
            for origin in column.origins
            if origin.stage in keys_
        ]
        for column in columns
    }
    lineage = {name: deps for name, deps in lineage.items() if deps}
    if lineage and _size(lineage) <= _LINEAGE_CHARACTERS_MAX:
        facts[keys.DAGSTER_COLUMN_LINEAGE] = dg.MetadataValue.column_lineage(
            dg.TableColumnLineage(lineage)
        )
    return facts


def _size(lineage: Mapping[str, list[dg.TableColumnDep]]) -> int:
    return sum(
        len(name) + len(dep.asset_key.to_user_string()) + len(dep.column_name)
        for name, deps in lineage.items()
        for dep in deps
    )
