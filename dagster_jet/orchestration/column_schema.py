"""Parses a DDL string into Dagster columns, without Spark, so that definitions load fast."""

from __future__ import annotations

import re

import dagster as dg

from dagster_jet.core.ddl import split_ddl

_NOT_NULL = re.compile(r"\s+NOT\s+NULL\b", re.IGNORECASE)
_COMMENT = re.compile(r"\s+COMMENT\s+'((?:[^'\\]|\\.)*)'", re.IGNORECASE)


def columns_from_ddl(ddl: str) -> dg.TableSchema:
    """Return the columns of a Spark DDL string such as ``"flight string, delay double NOT NULL"``.

    Invalid DDL is not refused here and gives odd types; Spark refuses it when the job starts.
    """
    return dg.TableSchema(columns=[_column(name, rest) for name, rest in split_ddl(ddl)])


def _column(name: str, rest: str) -> dg.TableColumn:
    comment = _COMMENT.search(rest)
    type_text = _COMMENT.sub("", rest)
    nullable = _NOT_NULL.search(type_text) is None
    return dg.TableColumn(
        name=name,
        type=_NOT_NULL.sub("", type_text).strip() or "string",
        description=comment.group(1) if comment else None,
        constraints=dg.TableColumnConstraints(nullable=nullable),
    )
