"""Servers that are not supported, which no test has at hand, are refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.supported import check_supported
from dagster_jet.errors import ConfigurationError


@pytest.mark.parametrize(
    ("kind", "is_mariadb", "version", "words", "says"),
    [
        ("mysql", True, (10, 5, 9), "", "is a MariaDB before 10.6"),
        ("mariadb", True, (10, 11, 6), "", None),
        ("mysql", False, (8, 4, 0), "", "is no MariaDB"),
        ("postgresql", False, (15, 8), "PostgreSQL 15.8 on x86", None),
        ("postgresql", False, (11, 2), "PostgreSQL 11.2 on x86", "is a PostgreSQL before 12"),
        ("postgresql", False, (11, 2), "PostgreSQL 11.2-YB-2.21 on x86", "PostgreSQL 11.2-YB"),
        ("postgresql", False, (13,), "CockroachDB CCL v23.1.1 (x86)", "no PostgreSQL: Coc"),
        ("postgresql", False, (8, 0, 2), "PostgreSQL 8.0.2 on i686, Redshift 1", "is no Postgre"),
        ("sqlite", False, (3, 40), "", None),
    ],
)  # fmt: skip
def test_what_is_not_tested_is_refused(
    kind: str, is_mariadb: bool, version: tuple[int, ...], words: str, says: str | None
) -> None:
    connection: Any = SimpleNamespace(
        dialect=SimpleNamespace(name=kind, is_mariadb=is_mariadb, server_version_info=version),
        exec_driver_sql=lambda asked: SimpleNamespace(scalar=lambda: words),
        rollback=lambda: None,
    )
    place = SqlPlace("postgresql://host/db", "t")
    if says is None:
        check_supported(connection, place, "j", "out")
        return
    with pytest.raises(ConfigurationError, match=says):
        check_supported(connection, place, "j", "out")
