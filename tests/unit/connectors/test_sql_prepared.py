"""Versions of servers that do not keep prepared transactions, which no test has at hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_jet.connectors.sql.prepared import MariaPrepared


@pytest.mark.parametrize(
    ("is_mariadb", "version", "detaches", "says"),
    [
        (True, (10, 5, 9), None, "MariaDB before 10.6 does not keep"),
        (True, (10, 11, 6), None, None),
        (False, (5, 7, 44), None, "MySQL before 8.0.29 does not part"),
        (False, (8, 0, 28), None, "MySQL before 8.0.29 does not part"),
        (False, (8, 0, 29), "OFF", "xa_detach_on_prepare is OFF"),
        (False, (8, 4, 0), "ON", None),
    ],
)
def test_who_cannot_hold_transactions(
    is_mariadb: bool, version: tuple[int, ...], detaches: str | None, says: str | None
) -> None:
    shown = [] if detaches is None else [("xa_detach_on_prepare", detaches)]
    connection: Any = SimpleNamespace(
        dialect=SimpleNamespace(is_mariadb=is_mariadb, server_version_info=version),
        exec_driver_sql=lambda asked: shown,
    )
    problem = MariaPrepared().problem(connection, 4)
    assert problem is None if says is None else says in str(problem)
