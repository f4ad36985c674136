"""Probes whether an Iceberg table can be written to, by its catalog and its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dagster_jet.connectors.iceberg.catalog import CatalogPlace, errors_named
from dagster_jet.connectors.iceberg.iceberg_sink import checked_storage
from dagster_jet.connectors.iceberg.storage import folder_at
from dagster_jet.connectors.iceberg.table_request import commits_several, is_rest
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.lake_probe import fits, writes_files
from dagster_jet.core.answers import Answer, answered
from dagster_jet.core.secret import Url, named, text_of
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def probe(url: Url, options: Mapping[str, str], storage: Mapping[str, str]) -> list[Answer]:
    """Returns all answers about `iceberg://catalog/namespace.table`.

    Args:
        options: `catalog_options` of the sink; values may name secrets.
        storage: `storage_options` of the sink; likewise.

    Raises:
        JetError: the catalog cannot be opened, or the name or an option is not valid.
    """
    parts = urlsplit(text_of(url))
    table = parts.path.strip("/")
    if not parts.netloc or "." not in table:
        raise ConfigurationError(
            f"{text_of(url)!r} names no table.", cure="Write iceberg://catalog/namespace.table."
        )
    place = CatalogPlace(parts.netloc, tuple((n, named(v)) for n, v in options.items()))
    reached = checked_storage(tuple(storage.items()))
    with errors_named(table, "", "", is_start=True), closing(place.open(reached)) as catalog:
        version = TableVersion.open(catalog, table, "main")
        if version is None:
            return [fits(None, is_there=False)]
        answers = [writes_files(folder_at(version.data, reached), version.data)]
        answers.append(fits(version.unfit(), is_there=True))
        return [*answers, _several_tables(catalog)] if is_rest(catalog) else answers


def _several_tables(catalog: Catalog) -> Answer:
    return answered(
        "Does it commit several tables in one step?",
        commits_several(catalog),
        yes="Readers see the tables of one job at one epoch.",
        no="It does not name transactions/commit among its endpoints: tables are committed one "
        "after the other.",
    )
