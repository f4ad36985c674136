"""Input at a steady pace: a file appears every 100 ms, whether the engine keeps up or not."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.race.data import Stream, cut, put_file, write_sentinels

PERIOD_S = 0.1


@dataclass(frozen=True)
class Pace:
    """A stream at `rate` events per second for `seconds`."""

    rate: int
    seconds: float

    def __post_init__(self) -> None:
        # Events come out of order within a group: part of one would hold numbers of later events,
        # which the answer leaves out.
        if self.events % self.stream.model.group:
            raise ValueError(f"{self.events} events are not whole groups of the model")

    @property
    def per_file(self) -> int:
        return max(1, round(self.rate * PERIOD_S))

    @property
    def files(self) -> int:
        return round(self.seconds / PERIOD_S)

    @property
    def events(self) -> int:
        return self.files * self.per_file

    @property
    def stream(self) -> Stream:
        return Stream(self.events, self.per_file)

    def write(self, cache: Path) -> Path:
        """The files, made of the lines of whole 20,000s; kept for all engines."""
        folder = self.stream.folder(cache)
        source = folder / "in"
        if not (folder / "done").exists():
            whole = Stream(-(-self.events // 20_000) * 20_000).write(cache)
            source.mkdir(parents=True, exist_ok=True)
            start_s = self.stream.model.time_ms(0) // 1000
            for number, text in enumerate(cut(whole, self.events, self.per_file)):
                put_file(source / f"{number:06d}.json", text, start_s + number)
            write_sentinels(self.stream.model, source, self.files)
            (folder / "done").touch()
        return source


class Replayer:
    """Lets the files of `source` appear in `inbox` on time, each by its schedule.

    A file that comes late, because this thread was not given a core, does not move the schedule.
    """

    def __init__(self, source: Path, inbox: Path, period_s: float = PERIOD_S) -> None:
        inbox.mkdir(parents=True, exist_ok=True)
        self._inbox, self._period_s = inbox, period_s
        self.started_at = time.time()
        self._files = sorted(source.glob("*.json"))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def scheduled(self, file: int) -> float:
        """Time at which file number `file` was to appear."""
        return self.started_at + file * self._period_s

    @property
    def ends_at(self) -> float:
        return self.scheduled(len(self._files))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for number, path in enumerate(self._files):
            wait = self.scheduled(number) - time.time()
            if self._stop.wait(max(0.0, wait)):
                return
            os.link(path, self._inbox / path.name)
