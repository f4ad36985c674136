"""Catalogs, through the package `pyiceberg`: how they are opened, and what their errors mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.storage import library_options
from dagster_jet.connectors.lake.lake_committer import first_line
from dagster_jet.core.library import library, missing
from dagster_jet.core.secret import Secret, holds_password, named
from dagster_jet.errors import (
    ConfigurationError,
    JetError,
    SinkError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.system.transient import DENIED, is_transient

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_EXTRAS = {"psycopg": "dagster-jet[postgres]"}
"""Extra that installs the package of a kind of catalog, by package."""
CONNECT_S, ANSWER_S = 10, 60
"""Time limits, in seconds, for a connection to a REST catalog and for an answer."""
_SECRET_NAME = re.compile("key|secret|token|password|credential")


def iceberg_library() -> Any:
    """Returns the package. Raises `MissingEnvironmentError`."""
    needs = "Iceberg tables need the package 'pyiceberg'"
    library("pyiceberg.catalog", "dagster-jet[iceberg]", needs)
    return library("pyiceberg", "dagster-jet[iceberg]", needs)


@dataclass(frozen=True)
class CatalogPlace:
    """A catalog: its name, and the properties by which `pyiceberg` opens it."""

    name: str
    options: StorageOptions = ()

    def __post_init__(self) -> None:
        options = {name: named(value) for name, value in self.options}
        for name, value in options.items():
            is_secret = _SECRET_NAME.search(name) is not None or holds_password(value)
            if is_secret and not isinstance(value, Secret):
                raise ConfigurationError(
                    f"catalog_options: {name} has a secret in plain text.",
                    cure='Name an environment variable that holds it: Secret(env="...").',
                )
        object.__setattr__(self, "options", tuple(sorted(options.items())))

    def url_of(self, table: str, branch: str = "main") -> str:
        """Returns what a table is known by in lineage, in each process that names the catalog so:
        `iceberg://lake/flights.late`, and as Spark writes it for another branch than main
        `iceberg://lake/flights.late.branch_audit`."""
        of_branch = "" if branch == "main" else f".branch_{branch}"
        return f"iceberg://{self.name}/{table}{of_branch}"

    def open(self, storage: StorageOptions) -> Catalog:
        """Opens the catalog. The caller closes it.

        Args:
            storage: how the tables' files are reached.

        Raises:
            MissingEnvironmentError: a package that only this kind of catalog needs is missing.
        """
        library = iceberg_library()
        _limit_rest_requests()
        given = {n: v.value() if isinstance(v, Secret) else v for n, v in self.options}
        in_bucket = given.get("warehouse", "").startswith("s3")
        reached = library_options(storage, in_bucket=in_bucket)
        try:
            catalog: Catalog = library.catalog.load_catalog(self.name, **{**reached, **given})
        except library.exceptions.NotInstalledError as error:
            package = getattr(error.__cause__, "name", None)
            if package is None:
                raise
            needs = f"the catalog {self.name!r} needs the package {package!r}"
            raise missing(_EXTRAS.get(package, package), needs) from error
        return catalog


@cache
def _limit_rest_requests() -> None:
    """Gives requests to REST catalogs a time limit, in all of this process. The library has none:
    it waits for ever for an answer that a network has lost."""
    rest: Any = import_module("pyiceberg.catalog.rest")
    unlimited = rest.Session

    def limited() -> Any:
        session = unlimited()
        session.request = partial(session.request, timeout=(CONNECT_S, ANSWER_S))
        return session

    rest.Session = limited


@contextmanager
def errors_named(table: str, job: str, stage: str, *, is_start: bool = False) -> Iterator[None]:
    """Converts errors of the library, of the catalog and of the place.

    Raises:
        SinkUnavailableError: one of them does not answer as it should; the call may be repeated.
        SinkError: the place does not exist, or the table's metadata cannot be used.
        ConfigurationError: access is denied, and this is a start.
    """
    try:
        yield
    except JetError:
        raise
    except Exception as error:
        is_denied, may_repeat = _nature(error)
        kind: type[JetError] = SinkUnavailableError if may_repeat else SinkError
        raise (ConfigurationError if is_start and is_denied else kind)(
            f"the table {table!r} is unavailable: {first_line(error)}.",
            job=job,
            stage=stage,
            cure="Bring the catalog and the table's files back, or correct credentials and "
            "permissions. Nothing is lost: what is staged is committed then.",
        ) from error


@contextmanager
def reading_errors_named(table: str, job: str, stage: str) -> Iterator[None]:
    """Converts errors of the library, of the catalog and of the place, for a source.

    Raises:
        SourceUnavailableError: one of them does not answer as it should; the call may be repeated.
        SourceError: the place does not exist, or the table's metadata cannot be used.
    """
    try:
        yield
    except JetError:
        raise
    except Exception as error:
        _, may_repeat = _nature(error)
        raise (SourceUnavailableError if may_repeat else SourceError)(
            f"the table {table!r} cannot be read: {first_line(error)}.",
            job=job,
            stage=stage,
            cure="Bring the catalog and the table's files back, or correct credentials and "
            "permissions.",
        ) from error


def _nature(error: Exception) -> tuple[bool, bool]:
    """Returns whether access is denied, and whether the call may be repeated."""
    found = iceberg_library().exceptions
    if isinstance(error, (found.UnauthorizedError, found.ForbiddenError, found.OAuthError)):
        return True, False
    if isinstance(error, found.RESTError):
        return False, not isinstance(error, found.BadRequestError)
    if isinstance(error, OSError):
        return error.errno in DENIED, is_transient(error)
    try:
        from sqlalchemy.exc import InterfaceError, OperationalError
    except ImportError:  # a catalog that is no database
        return False, False
    return False, isinstance(error, (OperationalError, InterfaceError))
