"""Markers that nobody needs any more are removed: a folder whose readers take its files away does
not grow for ever.

A marker is old when its timeline has `KEPT` newer ones: no execution asks for it again, nor does a
start with an older snapshot. It is removed once no file of its epoch is in the folder. So a folder
has its newest markers, and those whose files are still there.

To find out takes two listings. They are made so rarely that they cost about one name per epoch,
however much is in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

from dagster_jet.connectors.files.places.place import EPOCHS_FOLDER, OutputPlace

KEPT = 1000
"""Of each timeline: more than an execution that was paused commits again, and than snapshots are
retained."""
_FOLDER = f"{EPOCHS_FOLDER}/"
_MARKER = re.compile(r"(\d{10,})(?:-line(\d+))?(?:-\d+)?\.json")
_FILE = re.compile(r"part-(\d{10,})-")


@dataclass
class OldMarkers:
    """Of one folder, for one process."""

    _period: int = KEPT
    """One of so many epochs looks for old markers."""

    def remove(self, place: OutputPlace, epoch_id: int) -> None:
        """After the commit of an epoch. A crash inside leaves some of them, for the next time.

        Raises:
            OSError: not now, or we may not.
        """
        # By the epoch's number, so that executions of a few epochs each take their turn, too; and
        # scattered, because a sink may have rows in every hundredth epoch only.
        if xxhash.xxh3_64_intdigest(epoch_id.to_bytes(8, "big")) % self._period:
            return
        markers = [found for name in place.names(_FOLDER) if (found := _MARKER.fullmatch(name))]
        there = {found[1] for name in place.names("part-") if (found := _FILE.match(name))}
        doomed = [found[0] for found in _old(markers) if found[1] not in there]
        place.remove_all([_FOLDER + name for name in doomed])
        self._period = max(KEPT, len(markers) - len(doomed) + len(there))


def _old(markers: Iterable[re.Match[str]]) -> Iterator[re.Match[str]]:
    timelines: dict[str | None, list[re.Match[str]]] = {}
    for found in markers:
        timelines.setdefault(found[2], []).append(found)
    for line in timelines.values():
        yield from sorted(line, key=lambda found: int(found[1]))[:-KEPT]
