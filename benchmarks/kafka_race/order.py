"""What an engine's process is asked for, and what it tells."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Case = Literal["window", "table"]
CASES: tuple[Case, ...] = ("window", "table")
TITLES = {"window": "Kafka → window → Kafka", "table": "Kafka → PostgreSQL"}


@dataclass(frozen=True)
class Order:
    """One run of one engine."""

    engine: Literal["ours", "peer"]
    case: Case
    servers: str
    source: str
    """The topic that is read."""
    target: str
    """A topic, or a table of the database."""
    database: str
    """As a URL of SQLAlchemy's."""
    folder: str
    """For its state, its checkpoints, and `told.json`."""
    seconds: float | None = None
    """So long it runs, on a topic that grows; None: until it has read what is there."""
    trigger_rows: int | None = None
    """The peer's `maxOffsetsPerTrigger`."""
    jars: tuple[str, ...] = ()
    """Of the peer."""

    @classmethod
    def read(cls, path: Path) -> Order:
        given = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**given, "jars": tuple(given["jars"])})


@dataclass
class Told:
    """Commits: (wall-clock seconds, messages of which all results are visible), in order."""

    commits: list[tuple[float, int]] = field(default_factory=list)
    done_at: float = 0.0

    def write(self, folder: str) -> None:
        Path(folder, "told.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Told:
        return cls(**json.loads((folder / "told.json").read_text(encoding="utf-8")))
