"""One snapshot of a given size, written, restored and repaired, against the same bytes raw."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import psutil

from benchmarks.interleaved import LOOP_TOLERANCE, OURS, PEER, cpu_loop_ms
from benchmarks.ratios import Ratio, ratio
from benchmarks.store_places import MEMBERS, Places
from benchmarks.store_workers import Workers, seconds
from dagster_jet.store import DEFAULT_PARTITION_COUNT, Store, StoreConfig, UpkeepProgress

PROCESSES = 2
_MB = 1e6
_SAMPLE_S = 0.01


@dataclass(frozen=True)
class Slot:
    """One engine, once. Rates are of the bytes of the state, counted once whatever the replicas.

    `put_mb_s` and `get_mb_s` are of the map's calls alone, without sorting, serialising and
    checking in the task. `cpu_s` is what all processes have worked for the snapshot, servers too.
    Zero: not measured in this slot.
    """

    engine: str
    state_mb: float
    snapshot_mb_s: float
    restore_mb_s: float
    cpu_s: float
    put_mb_s: float = 0.0
    get_mb_s: float = 0.0
    repair_mb_s: float = 0.0
    repaired_mb: float = 0.0
    driver_mb: float = 0.0
    repairer_mb: float = 0.0
    loop_ms: float = 0.0
    load: float = 0.0
    disturbed: bool = False


class PeakMemory:
    """Rise of this process's resident memory above what it was, in MB.

    Args:
        mapped: count pages of mapped files too; LMDB maps all that it reads, and the kernel takes
            these back when it needs them.
    """

    def __init__(self, *, mapped: bool = True) -> None:
        self._mapped = mapped
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.risen_mb = 0.0

    def __enter__(self) -> PeakMemory:
        self._before = self._resident()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.risen_mb = max(self.risen_mb, (self._resident() - self._before) / _MB)

    def _resident(self) -> int:
        memory = self._process.memory_info()
        return memory.rss if self._mapped else memory.rss - memory.shared


def run_ours(places: Places, backups: int, state_bytes: int) -> Slot:
    """Snapshot and restore by the workers, then, if there are backups, one member lost."""
    places.clear()
    with Store.open(StoreConfig(places.urls, backup_count=backups)) as store:
        with Workers(state_bytes, PROCESSES, store.partition_count) as workers:
            expected = {at: done.result for at, done in enumerate(workers.together("ready"))}
            workers.together("warm_up", store.handle())
            workers.together("warm_memory")
            before_s = places.cpu_s()
            with PeakMemory() as driver:
                written = workers.together("snapshot", store.handle())
                servers_s = places.cpu_s() - before_s
                sets = [done.result for done in written]
                read = workers.together("restore", store.handle(), sets)
            if dict(done.result for done in read) != expected:
                raise AssertionError("the restored rows are not those of the snapshot")
        state_mb = sum(one.bytes for one in sets) / _MB
        slot = Slot(
            engine=OURS,
            state_mb=state_mb,
            snapshot_mb_s=state_mb / seconds(written),
            restore_mb_s=state_mb / seconds(read),
            cpu_s=servers_s + sum(done.cpu_s for done in written),
            put_mb_s=state_mb / max(done.store_s for done in written),
            get_mb_s=state_mb / max(done.store_s for done in read),
            driver_mb=driver.risen_mb,
        )
        if backups:
            slot = _repaired(slot, store, places, chunks=sum(one.chunks for one in sets))
    places.clear()
    return slot


def _repaired(slot: Slot, store: Store, places: Places, chunks: int) -> Slot:
    """Empties one member; `store.repair` rebuilds it and compares all copies."""
    places.lose(0)
    copied: list[UpkeepProgress] = []

    def watch(progress: UpkeepProgress) -> None:
        if progress.step == "copy":
            copied[:] = [progress]

    with PeakMemory(mapped=False) as repairer:
        changes = store.repair(on_progress=watch)
    verified = changes.verified
    if verified is None or not verified.is_whole or verified.keys < chunks or not store.is_safe():
        raise AssertionError(f"the repair left the store like this: {verified}")
    least = slot.state_mb * _MB * (1 + store.config.backup_count) / MEMBERS / 2
    if changes.migrated.bytes < least:
        raise AssertionError(f"the repair copied only {changes.migrated.bytes} bytes")
    return replace(
        slot,
        repair_mb_s=changes.migrated.bytes / _MB / copied[0].seconds,
        repaired_mb=changes.migrated.bytes / _MB,
        repairer_mb=repairer.risen_mb,
    )


def run_peer(places: Places, state_bytes: int) -> Slot:
    """The bytes that our snapshot writes, from as many processes."""
    places.clear()
    with Workers(state_bytes, PROCESSES, DEFAULT_PARTITION_COUNT) as workers:
        state_mb = sum(done.result for done in workers.together("serialise")) / _MB
        places.write_raw(workers, warm_up=True)
        workers.together("warm_memory")
        before_s = places.cpu_s()
        written = places.write_raw(workers)
        servers_s = places.cpu_s() - before_s
        read = places.read_raw(workers)
    places.clear()
    return Slot(
        engine=PEER,
        state_mb=state_mb,
        snapshot_mb_s=state_mb / seconds(written),
        restore_mb_s=state_mb / seconds(read),
        cpu_s=servers_s + sum(done.cpu_s for done in written),
    )


def run_rounds(
    places: Places,
    backups: int,
    state_bytes: int,
    rounds: int,
    *,
    quick: bool,
    tell: Callable[[str], None],
) -> list[list[Slot]]:
    """All slots, by round; a slot whose CPU loop was off is marked, not repeated."""
    order = random.Random(7)
    reference = min(cpu_loop_ms() for _ in range(5))
    done: list[list[Slot]] = []
    for _ in range(rounds):
        engines = [OURS, PEER, PEER, OURS] if order.random() < 0.5 else [PEER, OURS, OURS, PEER]
        slots = []
        for engine in engines[:2] if quick else engines:
            loop_ms, load = cpu_loop_ms(), os.getloadavg()[0]
            if engine == OURS:
                slot = run_ours(places, backups, state_bytes)
            else:
                slot = run_peer(places, state_bytes)
            disturbed = abs(loop_ms / reference - 1) > LOOP_TOLERANCE
            slot = replace(slot, loop_ms=loop_ms, load=load, disturbed=disturbed)
            slots.append(slot)
            tell(_described(slot))
        done.append(slots)
    return done


def compare(rounds: list[list[Slot]], name: str, *, undisturbed_only: bool) -> Ratio:
    """Ratio of our snapshot or restore rates to the raw ones."""

    def values(engine: str) -> list[list[float]]:
        return [
            [
                getattr(slot, name)
                for slot in slots
                if slot.engine == engine and not (undisturbed_only and slot.disturbed)
            ]
            for slots in rounds
        ]

    return ratio(values(OURS), values(PEER))


def as_json(rounds: list[list[Slot]]) -> list[list[dict[str, Any]]]:
    return [[asdict(slot) for slot in slots] for slots in rounds]


def _described(slot: Slot) -> str:
    rates = [
        f"{field.name.removesuffix('_mb_s')} {getattr(slot, field.name):,.0f}"
        for field in fields(slot)
        if field.name.endswith("_mb_s") and getattr(slot, field.name)
    ]
    memory = f"; driver +{slot.driver_mb:.1f} MB" if slot.engine == OURS else ""
    cpu = f"; {slot.cpu_s:.2f} CPU s"
    return f"  {slot.engine:<4} {', '.join(rates)} MB/s{cpu}{memory}; load {slot.load:.1f}" + (
        " DISTURBED" if slot.disturbed else ""
    )
