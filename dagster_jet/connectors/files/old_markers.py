"""Removes old markers, so that a folder whose readers take files away does not grow without bound.

A marker is old if its timeline has `KEPT` newer ones, and it is needed neither by a repetition of
the current commit, which may span many epochs, nor by a start from the oldest retained snapshot. It
is removed once no file of its epoch is in the folder. So a folder keeps its newest markers, those
of retained snapshots, and those whose files still exist.

The check needs two listings. It runs so rarely that it costs about one name per epoch, whatever the
size of the folder.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

from dagster_jet.connectors.files.places.place import EPOCHS_FOLDER, OutputPlace

KEPT = 1000
"""Markers kept per timeline: more than a paused execution commits again."""
_FOLDER = f"{EPOCHS_FOLDER}/"
_MARKER = re.compile(r"(\d{10,})(?:-line(\d+))?(?:-\d+)?\.json")
_FILE = re.compile(r"part-(\d{10,})-")


@dataclass
class OldMarkers:
    """Removes the old markers of one folder; one instance per process."""

    _period: int = KEPT
    """Average number of epochs between two checks."""

    def remove(self, place: OutputPlace, epoch_id: int, needed: int) -> None:
        """Called after the commit of an epoch. After a crash a later call removes the rest.

        Args:
            needed: in each timeline the newest marker up to this epoch and all newer ones stay.

        Raises:
            OSError: temporarily unavailable, or access denied.
        """
        # Decided by the epoch's number, so that short executions check, too. Hashed, because a
        # sink may have rows only in every hundredth epoch.
        if xxhash.xxh3_64_intdigest(epoch_id.to_bytes(8, "big")) % self._period:
            return
        markers = [found for name in place.names(_FOLDER) if (found := _MARKER.fullmatch(name))]
        there = {found[1] for name in place.published() if (found := _FILE.match(name))}
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
