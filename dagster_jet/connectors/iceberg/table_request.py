"""Requests to a catalog that change the metadata of a table, or of several tables at once.

Whether a request was carried out is seen in the tables only: an error does not say that it was not.
The library's own way to end a transaction is not used: after a conflict it drops the condition, and
after a lost answer it deletes the manifests of the commit that landed. It has no call that commits
several tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

_ROUTE = "transactions/commit"
_LACKING = {404, 405, 501}
_OF_TABLES = ("Table", "Namespace", "Tabular")
"""One of these is in the error's type if the route is known, and a table is not."""


class NoRouteError(Exception):
    """The catalog does not commit several tables, although it says so."""


@dataclass(frozen=True)
class TableRequest:
    """Changes of a table, on condition that it is as it was looked at."""

    table: Table
    conditions: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    def send(self) -> None:
        """
        Raises:
            Exception: of the catalog.
        """
        table = self.table
        answer = table.catalog.commit_table(table, self.conditions, self.updates)
        with suppress(Exception):  # files that are only old
            table.catalog._delete_old_metadata(table.io, table.metadata, answer.metadata)


def is_rest(catalog: Catalog) -> bool:
    """Returns whether the catalog speaks the REST protocol."""
    from pyiceberg.catalog.rest import RestCatalog

    return isinstance(catalog, RestCatalog)


def commits_several(catalog: Catalog) -> bool:
    """Returns whether a REST catalog says that it commits several tables in one step."""
    from pyiceberg.catalog.rest import API_PREFIX, Endpoint

    route = Endpoint.from_string(f"POST {API_PREFIX}/{_ROUTE}")
    return route in catalog._supported_endpoints  # type: ignore[attr-defined]


def send_together(catalog: Catalog, requests: Sequence[TableRequest]) -> None:
    """Changes all tables or none. The server removes their old metadata files.

    Args:
        catalog: a REST catalog, whose session is used.

    Raises:
        NoRouteError: the server does not know the request.
        Exception: of the catalog.
    """
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.exceptions import RESTError
    from pyiceberg.table import CommitTableRequest, TableIdentifier

    assert isinstance(catalog, RestCatalog)
    changes = []
    for one in requests:
        *namespace, name = one.table.name()
        identifier = TableIdentifier.model_validate({"namespace": namespace, "name": name})
        change = CommitTableRequest(
            identifier=identifier, requirements=one.conditions, updates=one.updates
        )
        changes.append(change.model_dump_json())
    body = f'{{"table-changes": [{", ".join(changes)}]}}'
    answer = catalog._session.post(catalog.url(_ROUTE), data=body.encode())
    if not answer.ok:
        is_lacking = answer.status_code in _LACKING and not _is_of_a_table(answer.text)
        kind = NoRouteError if is_lacking else RESTError
        raise kind(f"HTTP {answer.status_code}: {answer.text}")


def _is_of_a_table(answer: str) -> bool:
    """Returns whether a table was not found, so that the server does know the request."""
    from pydantic import ValidationError
    from pyiceberg.catalog.rest.response import ErrorResponse

    try:
        kind = ErrorResponse.model_validate_json(answer).error.type
    except ValidationError:  # a page for people, or of a proxy
        return False
    return any(word in kind for word in _OF_TABLES)
