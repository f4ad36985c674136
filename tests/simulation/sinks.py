"""Transactional sinks: rows are staged under a name, and committed by an idempotent rename."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from dagster_jet.snapshot.manifest import Artifact


class ArtifactGone(Exception):
    """Artifact that is neither staged nor committed: the sink lost what it had promised to
    commit."""


class Sink:
    """One place outside the engine; knows nothing of records or ballots."""

    def __init__(self, name: str, on_commit: Callable[[Artifact, tuple[int, ...]], None]) -> None:
        self.name = name
        self.staged: dict[str, tuple[int, tuple[int, ...]]] = {}
        """Token to (execution, rows)."""
        self.shards: dict[str, int] = {}
        """Shard that staged rows, by their token."""
        self.committed: dict[str, tuple[int, ...]] = {}
        self.rows: Counter[int] = Counter()
        """Rows that a reader of the sink sees."""
        self._on_commit = on_commit
        self._had: dict[str, tuple[int, ...]] = {}

    def stage(
        self,
        sink: str,
        rows: tuple[int, ...],
        execution_id: int,
        epoch_id: int,
        shard: int,
        attempt: str,
    ) -> Artifact:
        """`sink`: as the pipeline calls it."""
        name = f"{sink}-{execution_id}-{epoch_id}-{shard}-{attempt}"
        token = f"{self.name}/staged/{name}"
        self.staged[token] = (execution_id, rows)
        self.shards[token] = shard
        return Artifact(
            sink=sink,
            epoch_id=epoch_id,
            token=token,
            target=f"{self.name}/{name}",
            rows=len(rows),
            bytes=8 * len(rows),
            checksum=sum(rows),
        )

    def commit(self, artifact: Artifact) -> None:
        if artifact.target in self.committed:
            self.staged.pop(artifact.token, None)
            return
        if artifact.token not in self.staged:
            raise ArtifactGone(artifact.token)
        _, rows = self.staged.pop(artifact.token)
        self.committed[artifact.target] = rows
        self.rows.update(rows)
        self._on_commit(artifact, rows)

    def set_back(self, targets: Iterable[str]) -> None:
        """The place is another one, which does not have these."""
        self._had = {target: self.committed.pop(target) for target in targets}

    def bring_back(self) -> None:
        self.committed |= self._had
        self._had = {}

    def has_lost(self, target: str) -> bool:
        """The place had it, and is set back."""
        return target in self._had

    def shown(self, target: str) -> tuple[int, ...]:
        """Rows of a target once the place is brought back."""
        return self.committed.get(target) or self._had.get(target, ())

    @property
    def is_set_back(self) -> bool:
        return bool(self._had)

    def roll_back(self, wanted: Callable[[str, int], bool]) -> list[str]:
        gone = [token for token, (by, _) in self.staged.items() if wanted(token, by)]
        for token in gone:
            del self.staged[token]
        return gone
