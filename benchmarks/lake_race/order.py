"""Order for an engine's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Case = Literal["files", "kafka"]
Engine = Literal["parquet", "lake", "peer", "flink"]
CASES: tuple[Case, ...] = ("files", "kafka")
ENGINES: dict[Case, tuple[Engine, ...]] = {
    "files": ("parquet", "lake", "peer"),
    "kafka": ("parquet", "lake", "peer", "flink"),
}
SOURCES = {"files": "JSON files", "kafka": "Kafka"}
LAKES = {"files": "Delta Lake", "kafka": "Iceberg"}


@dataclass(frozen=True)
class Order:
    """One run of one engine, which reads all that is there."""

    engine: Engine
    case: Case
    source: str
    """A folder of JSON lines, or a topic."""
    servers: str
    """Bootstrap servers of Kafka."""
    folder: str
    """Folder for its output in `out`, its state, and its answer."""
    trigger_rows: int | None = None
    """`maxOffsetsPerTrigger` of Structured Streaming."""
    jars: tuple[str, ...] = ()
    """Jars for the peers."""

    @property
    def out(self) -> str:
        return f"{self.folder}/out"

    @classmethod
    def read(cls, path: Path) -> Order:
        given = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**given, "jars": tuple(given["jars"])})
