"""Structured Streaming: a query as its checkpoint folder shows it. Spark is not needed.

A query writes ``offsets/N`` before epoch N and ``commits/N`` after it, and keeps the last hundred.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_jet.connectors.files.places.location import absolute, storage_options
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.core.secret import Secret
from dagster_jet.errors import SourceError
from dagster_jet.orchestration.outside.kafka_lag import Offsets, kafka_lag
from dagster_jet.orchestration.outside.reading import Reading

_OFFSETS_READ = ("v1",)
_NO_OFFSET = "-"


@dataclass(frozen=True)
class LoggedEpoch:
    """A file of ``offsets``: what an epoch read.

    Attributes:
        watermark_ms: watermark under which the epoch ran; 0 before the first event.
        sources: end position of each source, as the source writes it; None: not read by it yet.
    """

    watermark_ms: int
    sources: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> LoggedEpoch:
        """Raises `SourceError`: the text is not an offsets file of a known version."""
        version, _, rest = text.partition("\n")
        lines = rest.splitlines()
        if version.strip() not in _OFFSETS_READ or not lines:
            raise SourceError(f"offsets of Structured Streaming begin with v1, not {version!r}.")
        metadata = _json(lines[0]) or {}
        return cls(
            int(metadata.get("batchWatermarkMs", 0)),
            tuple(None if line == _NO_OFFSET else _json(line) for line in lines[1:]),
        )

    def kafka_offsets(self) -> Offsets:
        """Returns the end offsets of all Kafka sources, by topic and partition."""
        found: dict[tuple[str, int], int] = {}
        for source in self.sources:
            if not isinstance(source, Mapping):
                continue
            for topic, partitions in source.items():
                if _are_offsets(partitions):
                    found |= {(topic, int(number)): end for number, end in partitions.items()}
        return found


def _are_offsets(partitions: Any) -> bool:
    """Whether an entry of a source's position is a Kafka topic's. Shards of Kinesis have texts."""
    return isinstance(partitions, Mapping) and all(
        number.isdecimal() and isinstance(end, int) for number, end in partitions.items()
    )


def next_watermark(text: str) -> int:
    """Returns the watermark in ms that a file of ``commits`` names, for the epoch after it."""
    metadata = _json(text.rpartition("\n")[2]) or {}
    return int(metadata.get("nextBatchWatermarkMs", 0))


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint folder of a query.

    Attributes:
        cluster: the cluster of its Kafka sources, for their unread rows. A checkpoint has offsets,
            but no addresses.
    """

    url: str
    options: tuple[tuple[str, str | Secret], ...] = ()
    cluster: Cluster | None = None

    @classmethod
    def at(
        cls, url: str, options: Mapping[str, str | Secret], cluster: Cluster | None
    ) -> Checkpoint:
        """Raises `ConfigurationError`: the place or an option is not valid."""
        place = absolute(url)
        return cls(place, storage_options(place, options), cluster)

    def read(self) -> Reading:
        """Reads the newest epochs.

        Raises:
            OSError: the folder is missing or cannot be read.
            SourceError: a file has a format that is not known, or the cluster does not answer.
        """
        offsets, commits = self._epochs("offsets"), self._epochs("commits")
        if not offsets:
            return Reading("", "without an epoch yet")
        newest, began = max(offsets), offsets[max(offsets)].mtime_ns // 1_000_000
        done = max(commits, default=None)
        if done is None:
            return Reading("", f"in its first epoch, {newest}", committed_at_ms=began)
        epoch = LoggedEpoch.parse(self._text("offsets", offsets[done])) if done in offsets else None
        watermark_ms = next_watermark(self._text("commits", commits[done]))
        ends = {} if epoch is None else epoch.kafka_offsets()
        lag = kafka_lag(self.cluster, ends) if self.cluster is not None and ends else None
        running = newest if newest > done else None
        state = f"in epoch {running}" if running is not None else f"after epoch {done}"
        return Reading(
            str(done),
            state,
            is_idle=lag == 0 and running is None,
            committed_at_ms=commits[done].mtime_ns // 1_000_000,
            watermark_ms=watermark_ms or None,
            lag=lag,
            details={"epoch": done, "sources": _shown(() if epoch is None else epoch.sources)}
            | ({} if running is None else {"epoch_running": running}),
        )

    def _epochs(self, folder: str) -> dict[int, InputFile]:
        """Returns the files of a log by epoch."""
        files = open_input(f"{self.url}/{folder}", self.options).listing().files
        named = ((file.path.rpartition("/")[2], file) for file in files)
        return {int(name): file for name, file in named if name.isdecimal()}

    def _text(self, folder: str, file: InputFile) -> str:
        with open_input(f"{self.url}/{folder}", self.options).open(file) as opened:
            return opened.read().decode().strip()


_SHOWN_CHARACTERS = 500


def _shown(sources: Sequence[Any]) -> list[str]:
    """Returns the positions of sources as text, cut: a topic may have thousands of partitions."""
    return [json.dumps(source)[:_SHOWN_CHARACTERS] for source in sources]
