"""Order for an engine's process, and its answer."""

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
    """Database as a URL of SQLAlchemy's."""
    folder: str
    """Folder for its state, its checkpoints, and `told.json`."""
    seconds: float | None = None
    """Running time on a topic that grows; None: until all messages that are there are read."""
    trigger_rows: int | None = None
    """The peer's `maxOffsetsPerTrigger`."""
    jars: tuple[str, ...] = ()
    """Jars for the peer."""

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
