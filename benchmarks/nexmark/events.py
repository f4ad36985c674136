"""First stages of every query: the stream with its event time, and the suite's three views of
it."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.nexmark.generator import Format
from dagster_jet import Pipeline, Stage, sources
from dagster_jet.connectors.generated.nexmark.model import AUCTION, BID, PERSON, Model
from dagster_jet.connectors.generated.nexmark.schema import spark_ddl
from dagster_jet.core.durations import Duration


class Events:
    """A pipeline's event stream and its views; a view that no query asks for is not made.

    Args:
        source: the folder with the files of the stream.
        allowed_lag: how far events may be out of order; default: as far as the model's are, so
            that none is late.
        place: what the source is told of the folder's place.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: Path,
        model: Model,
        *,
        format: Format = "json",
        allowed_lag: Duration | None = None,
        **place: Any,
    ) -> None:
        if allowed_lag is None:
            allowed_lag = timedelta(milliseconds=model.disorder_ms)
        self.auction_life = timedelta(milliseconds=model.auction_life_ms)
        """No auction lasts longer: what bounds the joins."""
        files = sources.files(str(source), format=format, schema=spark_ddl(), **place)
        self._untimed = pipeline.read_from(files, name="events")
        self._allowed_lag = allowed_lag

    @cached_property
    def all(self) -> Stage:
        return self._untimed.with_timestamps("date_time", allowed_lag=self._allowed_lag)

    @cached_property
    def persons(self) -> Stage:
        return self._view("person", PERSON)

    @cached_property
    def auctions(self) -> Stage:
        return self._view("auction", AUCTION)

    @cached_property
    def bids(self) -> Stage:
        return self._view("bid", BID)

    @cached_property
    def bids_as_read(self) -> Stage:
        """The bids with the time at which they are read, `read_at`, as their event time."""
        stream = self._untimed.with_ingestion_timestamps(column="read_at")
        return stream.filter(f"event_type = {BID}").select("read_at", "bid.*")

    def _view(self, name: str, kind: int) -> Stage:
        rows = self.all.filter(f"event_type = {kind}", name=f"{name}_events")
        return rows.select("number", "date_time", f"{name}.*", name=f"{name}s")
