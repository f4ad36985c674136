"""The store: snapshot, restore, repair and single operations, each beside the same work raw.

Processes like Spark's executors write and read; this one, the driver, only tells them to, and its
memory is watched meanwhile.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import store_operations as operations
from benchmarks import store_requests as requests
from benchmarks import store_snapshot as snapshot
from benchmarks.interleaved import OURS
from benchmarks.ratios import Ratio
from benchmarks.store_places import places_of

GOAL = 0.5
"""Snapshot at one replica, as a share of what the same bytes take raw."""

SIZES = ("100MB", "1GB")
_QUICK_SIZES = ("8MB",)
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_SMALL_BYTES = 200 * 10**6
"""Size up to which there are all rounds, and backups for Redis too; above, memory and time set
limits."""


class SizeError(ValueError):
    """A size that cannot be read."""


@dataclass(frozen=True)
class Case:
    """Settings of one row of the table."""

    kind: str
    backups: int
    size: str
    rounds: int


def parse_size(text: str) -> int:
    """`100MB` in bytes; units are powers of ten."""
    found = re.fullmatch(r"(\d+)(KB|MB|GB)", text.strip().upper())
    if found is None:
        raise SizeError(f"{text!r} is no size; write it like 100MB or 1GB.")
    return int(found[1]) * _UNITS[found[2]]


def cases(sizes: Sequence[str], *, quick: bool) -> list[Case]:
    found = []
    for size in sizes:
        is_small = parse_size(size) <= _SMALL_BYTES
        rounds = 1 if quick else 5 if is_small else 3
        for kind, backups in (("file", 0), ("file", 1), ("redis", 0), ("redis", 1)):
            if is_small or (kind, backups) != ("redis", 1):
                found.append(Case(kind, backups, size, rounds))
    return found


def run(folder: Path, sizes: Sequence[str], *, quick: bool, console: Console) -> dict[str, Any]:
    result: dict[str, Any] = {"snapshots": [], "operations": [], "requests": []}
    wanted = cases(sizes or (_QUICK_SIZES if quick else SIZES), quick=quick)
    written, read = _snapshot_table(), _restore_table()
    for case in wanted:
        label = f"{case.kind}, {case.backups} backups, {case.size}"
        console.print(f"{label}:")
        with places_of(case.kind, folder) as places:
            rounds = snapshot.run_rounds(
                places,
                case.backups,
                parse_size(case.size),
                case.rounds,
                quick=quick,
                tell=console.print,
            )
        found = _summary(rounds)
        _add_snapshot(written, case, found)
        _add_restore(read, case, found)
        result["snapshots"].append(
            {**asdict(case), **found, "rounds_measured": snapshot.as_json(rounds)}
        )
    seconds, rounds_count = (0.2, 1) if quick else (2.0, 5)
    single = _operations_table()
    for kind, backups in (("file", 0), ("file", 1), ("redis", 0), ("redis", 1)):
        console.print(f"{kind}, {backups} backups: operations")
        with places_of(kind, folder) as places:
            measured = operations.run_rounds(places, backups, rounds_count, seconds, folder)
        result["operations"].append(_add_operations(single, kind, backups, measured))
    console.print("s3, dynamodb: requests")
    counted = requests.count(*((2 * 10**6, (2,)) if quick else (20 * 10**6, (1, 2, 4))))
    result["requests"] = [asdict(one) for one in counted]
    for shown in (written, read, single, _requests_table(counted)):
        console.print(shown)
    return result


def _summary(rounds: list[list[snapshot.Slot]]) -> dict[str, Any]:
    ours = [slot for slots in rounds for slot in slots if slot.engine == OURS]
    raw = [slot for slots in rounds for slot in slots if slot.engine != OURS]

    def median(slots: list[snapshot.Slot], name: str) -> float:
        return statistics.median(getattr(slot, name) for slot in slots)

    rates = ("snapshot_mb_s", "restore_mb_s", "put_mb_s", "get_mb_s", "repair_mb_s")
    return {
        **{name: median(ours, name) for name in rates},
        "cpu_s_per_gb": median(ours, "cpu_s") / median(ours, "state_mb") * 1000,
        "raw_cpu_s_per_gb": median(raw, "cpu_s") / median(raw, "state_mb") * 1000,
        "raw_write_mb_s": median(raw, "snapshot_mb_s"),
        "raw_read_mb_s": median(raw, "restore_mb_s"),
        "snapshot_ratio": asdict(_ratio(rounds, "snapshot_mb_s")),
        "restore_ratio": asdict(_ratio(rounds, "restore_mb_s")),
        "snapshot_ratio_undisturbed": asdict(_ratio(rounds, "snapshot_mb_s", True)),
        "restore_ratio_undisturbed": asdict(_ratio(rounds, "restore_mb_s", True)),
        "disturbed": sum(slot.disturbed for slots in rounds for slot in slots),
        "slots": sum(map(len, rounds)),
        "driver_mb_max": max(slot.driver_mb for slot in ours),
        "repairer_mb_max": max(slot.repairer_mb for slot in ours),
    }


def _ratio(rounds: list[list[snapshot.Slot]], name: str, undisturbed_only: bool = False) -> Ratio:
    return snapshot.compare(rounds, name, undisturbed_only=undisturbed_only)


def _snapshot_table() -> Table:
    names = ("member", "backups", "state", "MB/s", "map only", "raw", "ratio", "goal", "CPU")
    title = (
        "snapshot: MB/s of state, medians; ratio to raw [95 %]; CPU-seconds per GB, ours and raw"
    )
    return _table(title, (*names, "disturbed"))


def _restore_table() -> Table:
    names = ("member", "backups", "state", "MB/s", "map only", "raw", "ratio", "repair", "driver")
    return _table("restore and repair: MB/s; driver: MB its memory grew by, repairing", names)


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _add_snapshot(table: Table, case: Case, found: dict[str, Any]) -> None:
    ratio = Ratio(**found["snapshot_ratio"])
    reached = "reached" if ratio.median >= GOAL else "MISSED"
    table.add_row(
        case.kind,
        str(case.backups),
        case.size,
        f"{found['snapshot_mb_s']:,.0f}",
        f"{found['put_mb_s']:,.0f}",
        f"{found['raw_write_mb_s']:,.0f}",
        _shown(ratio),
        f"{GOAL} {reached}" if case.backups == 0 else "",
        f"{found['cpu_s_per_gb']:.1f}, {found['raw_cpu_s_per_gb']:.1f}",
        f"{found['disturbed']}/{found['slots']}",
    )


def _add_restore(table: Table, case: Case, found: dict[str, Any]) -> None:
    table.add_row(
        case.kind,
        str(case.backups),
        case.size,
        f"{found['restore_mb_s']:,.0f}",
        f"{found['get_mb_s']:,.0f}",
        f"{found['raw_read_mb_s']:,.0f}",
        _shown(Ratio(**found["restore_ratio"])),
        f"{found['repair_mb_s']:,.0f}" if case.backups else "",
        f"+{found['driver_mb_max']:.0f}"
        + (f", +{found['repairer_mb_max']:.0f}" if case.backups else ""),
    )


def _shown(ratio: Ratio) -> str:
    """One round has no interval."""
    return str(ratio) if ratio.rounds > 1 else f"{ratio.median:.2f}"


def _operations_table() -> Table:
    title = "operations per second: medians, and ratios to raw [95 %]"
    return _table(title, ("member", "backups", *operations.NAMES))


def _add_operations(
    table: Table, kind: str, backups: int, rounds: list[list[operations.Operations]]
) -> dict[str, Any]:
    ours = [slot.per_second for slots in rounds for slot in slots if slot.engine == OURS]
    medians = {n: statistics.median(one[n] for one in ours) for n in operations.NAMES}
    ratios = {name: operations.compare(rounds, name) for name in operations.NAMES}
    cells = [
        f"{medians[name]:,.0f}" + (f"\n{_shown(ratios[name])}" if ratios[name].rounds else "")
        for name in operations.NAMES
    ]
    table.add_row(kind, str(backups), *cells)
    return {
        "kind": kind,
        "backups": backups,
        "per_second": medians,
        "ratios": {name: asdict(one) for name, one in ratios.items() if one.rounds},
        "rounds": [[asdict(slot) for slot in slots] for slots in rounds],
    }


def _requests_table(counted: list[requests.Requests]) -> Table:
    names = ("member", "shards", "chunks", "state MB", "snapshot", "restore")
    table = _table("requests (moto: counts, no speeds)", names)
    for one in counted:
        table.add_row(
            one.kind,
            str(one.shards),
            str(one.chunks),
            f"{one.state_mb:.0f}",
            _methods(one.snapshot),
            _methods(one.restore),
        )
    return table


def _methods(found: dict[str, int]) -> str:
    return ", ".join(f"{n} {method}" for method, n in found.items()) or "none"
