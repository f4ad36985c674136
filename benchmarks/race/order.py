"""Order for an engine: one JSON file, the same for all."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Order:
    """Run this query from `source` to `output`, and keep all else in `state`, until killed.

    A second start with the same order goes on where the first was killed.
    """

    query: str
    source: str
    """A folder of JSON lines, in order of name and of modification time; more files may come."""
    output: str
    state: str
    lag_ms: int
    """No row is more than this behind the newest row before it."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that the engine's own sweep may change; empty: its defaults."""
    standby: bool = False
    """Wait until the process that runs the query is gone."""
    spark: dict[str, str] = field(default_factory=dict)
    """Settings of a cluster; empty: two cores of this process."""
    members: list[str] = field(default_factory=list)
    """URLs of our store's members; empty: three folders in `state`."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_order() -> Order:
    """The order in the file that the program's first argument names."""
    return Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
