"""Looks, while processes are killed, whether any sink is ahead of what the job has decided, and
whether the job's ledger is ahead of any sink.

What is to be the lesser one is read first. Both only ever move on: a marker that is beyond the
record then was written before its decision, and a ledger that is beyond the markers then has
promised what nobody could read.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

import psycopg
from confluent_kafka import KafkaException

from dagster_jet import Jet, JetError, Job
from dagster_jet.observe.reading.ledger import Ledger, LedgerOrigin
from dagster_jet.snapshot.manifest import Manifest

from ..integration.connectors.plain_markers import Reader
from .driver import JOB


class MarkerWatch:
    """Reads markers by plain clients, on a thread of its own.

    Args:
        members: of the store.
        readers: by sink.
        hidden: sinks whose markers plain readers may see later than they are committed: a held
            transaction of Kafka hides what is behind it in its partition.

    Attributes:
        looked: by sink, how often a marker was compared with the record.
        asked: by sink, how often what its place told the ledger was compared with a marker.
        ahead: who was ahead of whom.
        died: why the watch has ended before its time; "" if it has not.
    """

    def __init__(
        self,
        members: Sequence[str],
        readers: Mapping[str, Reader],
        hidden: Collection[str] = (),
    ) -> None:
        self._members, self._readers, self._hidden = members, readers, hidden
        self.looked: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.ahead: list[str] = []
        self.died = ""
        self._manifests: dict[int, Manifest] = {}
        """Manifests of all snapshots that were seen, by snapshot id."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="marker watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops after a last look: if the job has completed, that look covers all epochs."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(60)
            if self._thread.is_alive():
                self.died = "it hangs"

    def broken(self) -> list[str]:
        """Faults that were found, and sinks whose markers were never compared."""
        found = self.ahead[:3]
        if self.died:
            found.append(f"the watch of the markers is dead: {self.died}")
        if unseen := [sink for sink in self._readers if not self.looked[sink]]:
            found.append(f"no marker of {unseen} was ever compared")
        seen = set(self._readers) - set(self._hidden)
        if unasked := sorted(sink for sink in seen if not self.asked[sink]):
            found.append(f"{unasked} never told the ledger anything")
        return found

    def notes(self) -> str:
        looked = ", ".join(f"{sink} {self.looked[sink]}" for sink in self._readers)
        asked = ", ".join(f"{sink} {self.asked[sink]}" for sink in self._readers)
        return (
            f"markers compared with the record: {looked}; the ledger with markers: {asked}; "
            f"ahead: {len(self.ahead)}"
        )

    def _watch(self) -> None:
        try:
            with Jet(store=list(self._members)) as jet:
                while not self._over.wait(0.5):
                    self._look(jet)
                self._look(jet)
        except Exception as error:  # nobody else would see it
            self.died = f"{type(error).__name__}: {error}"

    def _look(self, jet: Jet) -> None:
        ledger = Ledger()
        with suppress(JetError):
            ledger = jet.job(JOB).ledger()
        markers: dict[str, int] = {}
        for sink, read in self._readers.items():
            # A server that is killed does not answer; the next look is soon.
            with suppress(KafkaException, psycopg.Error, OSError):
                markers[sink] = read()
        with suppress(JetError):
            record = jet.job(JOB).record()
            decided = 0 if record is None or record.snapshot is None else record.snapshot.epoch_id
            for sink, epoch in markers.items():
                self._compare(sink, epoch, decided)
        with suppress(JetError):
            self._compare_ledger(ledger, markers, jet.job(JOB))

    def _compare(self, sink: str, epoch: int, decided: int) -> None:
        if epoch == 0:
            return
        self.looked[sink] += 1
        if epoch > decided:
            self.ahead.append(f"{sink} has epoch {epoch}, the record {decided}")

    def _compare_ledger(self, ledger: Ledger, markers: Mapping[str, int], job: Job) -> None:
        for ref in job.snapshots():
            if ref.snapshot_id not in self._manifests:
                self._manifests[ref.snapshot_id] = job.manifest(ref.snapshot_id)
        consistent = ledger.consistent_epoch
        for entry in ledger.entries.values():
            sink, epoch = entry.sink, entry.epoch_id
            if sink not in markers or sink in self._hidden:
                continue
            if epoch is not None and entry.origin is LedgerOrigin.MARKERS:
                self.asked[sink] += 1
            for who, said in (("the ledger", epoch), ("the consistent epoch", consistent)):
                needed = self._needed(sink, said)
                if needed > markers[sink]:
                    self.ahead.append(
                        f"{who} says {said}: {sink} has to have epoch {needed}, and has "
                        f"{markers[sink]} ({entry.origin.value})"
                    )

    def _needed(self, sink: str, epoch: int | None) -> int:
        """Newest epoch up to a given one for which a sink has something to commit: not every epoch
        has."""
        return max(
            (
                artifact.epoch_id
                for manifest in self._manifests.values()
                if manifest.epoch_id <= (epoch or 0)
                for artifact in manifest.artifacts
                if artifact.sink == sink
            ),
            default=0,
        )
