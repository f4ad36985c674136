"""How results are shown: a table for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def show(rows: Sequence[Mapping[str, Any]], *, title: str, as_json: bool) -> None:
    """Prints rows that share their keys."""
    if as_json:
        print(json.dumps(list(rows), indent=1, default=str))
        return
    console = Console()
    if not rows:
        console.print(f"{title}: nothing there")
        return
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*["" if value is None else str(value) for value in row.values()])
    console.print(table)
