"""Markers that nobody needs any more are removed: a folder whose readers take its files away does
not grow for ever.

A marker is old when its timeline has `KEPT` newer ones, and nobody asks for it again: neither a
repetition of the commit that is under way, which may be of many epochs, nor a start with the oldest
snapshot that is retained. It is removed once no file of its epoch is in the folder. So a folder has
its newest markers, those of retained snapshots, and those whose files are still there.

To find out takes two listings. They are made so rarely that they cost about one name per epoch,
however much is in the folder.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

from dagster_jet.connectors.files.places.place import EPOCHS_FOLDER, OutputPlace

KEPT = 1000
"""Of each timeline: more than an execution that was paused commits again."""
_FOLDER = f"{EPOCHS_FOLDER}/"
_MARKER = re.compile(r"(\d{10,})(?:-line(\d+))?(?:-\d+)?\.json")
_FILE = re.compile(r"part-(\d{10,})-")


@dataclass
class OldMarkers:
    """Of one folder, for one process."""

    _period: int = KEPT
    """One of so many epochs looks for old markers."""

    def remove(self, place: OutputPlace, epoch_id: int, needed: int) -> None:
        """After the commit of an epoch. A crash inside leaves some of them, for the next time.

        Args:
            needed: of each timeline, the newest marker up to this epoch stays, and all newer ones.

        Raises:
            OSError: not now, or we may not.
        """
        # By the epoch's number, so that executions of a few epochs each take their turn, too; and
        # scattered, because a sink may have rows in every hundredth epoch only.
        if xxhash.xxh3_64_intdigest(epoch_id.to_bytes(8, "big")) % self._period:
            return
        markers = [found for name in place.names(_FOLDER) if (found := _MARKER.fullmatch(name))]
        there = {found[1] for name in place.names("part-") if (found := _FILE.match(name))}
        doomed = [found[0] for found in _old(markers, needed) if found[1] not in there]
        place.remove_all([_FOLDER + name for name in doomed])
        self._period = max(KEPT, len(markers) - len(doomed) + len(there))


def _old(markers: Iterable[re.Match[str]], needed: int) -> Iterator[re.Match[str]]:
    timelines: dict[str | None, list[re.Match[str]]] = {}
    for found in markers:
        timelines.setdefault(found[2], []).append(found)
    for line in timelines.values():
        line.sort(key=_epoch_id)
        up_to_needed = bisect_right(line, needed, key=_epoch_id)
        yield from line[: max(0, min(len(line) - KEPT, up_to_needed - 1))]


def _epoch_id(marker: re.Match[str]) -> int:
    return int(marker[1])
