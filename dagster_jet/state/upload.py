"""State on its way into the store while its task, and then the next epoch, goes on.

The task's worker process saves it on a thread of its own and says in a file how that ended; the
completion of the snapshot waits for this file. Only where driver and workers are on one host: the
file is local, and so is the question whether the process that should write it is alive.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dagster_jet.snapshot.manifest import Ack, ChunkSet, Saving
from dagster_jet.system.process import is_alive, start_ticks

AT_ONCE = 2
"""Shards of one worker that write their state at one time."""
_LOOK_EVERY_S = 0.002

SaveState = Callable[[], tuple[ChunkSet | None, int]]
"""Returns what was written, if anything had changed, and how many older sets it supersedes."""

_savers: dict[int, ThreadPoolExecutor] = {}
"""By process: a fork has the executor, but not its threads."""


def save_beside(save: SaveState, path: Path) -> Saving:
    """Begins to save, and returns. A crash leaves chunks that nothing names, and no file.

    Args:
        path: in a folder that is there; once it is gone, nobody waits.
    """

    def work() -> None:
        try:
            chunk_set, dropped = save()
            saved = chunk_set and asdict(chunk_set)
            outcome: dict[str, Any] = {"chunk_set": saved, "chain_dropped": dropped}
        except Exception as failure:  # noqa: BLE001 - nobody else would hear of it
            outcome = {"snapshot_error": str(failure) or type(failure).__name__}
        _write_outcome(path, outcome)

    if os.getpid() not in _savers:
        _savers[os.getpid()] = ThreadPoolExecutor(AT_ONCE, "jet-save")
    _savers[os.getpid()].submit(work)
    return Saving(str(path), os.getpid(), start_ticks(os.getpid()) or 0)


def _write_outcome(path: Path, outcome: Mapping[str, Any]) -> None:
    hidden = path.with_name(f".{path.name}")
    try:
        hidden.write_text(json.dumps(outcome), encoding="utf-8")
        hidden.rename(path)
    except FileNotFoundError:
        pass  # the folder is gone, and whoever waited has seen that
    except OSError as failure:
        try:
            # On a full disk there is room for a name, and for what a short link points to.
            path.symlink_to(failure.strerror or type(failure).__name__)
        except OSError:
            os._exit(1)  # whoever waits sees at least that nobody will say


def _read_outcome(path: Path) -> dict[str, Any]:
    if not path.is_symlink():
        outcome: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return outcome
    unwritten = f"what became of saving state could not be written to {path.parent}"
    return {"snapshot_error": f"{unwritten}: {path.readlink()}"}


def await_saved(ack: Ack, give_up: threading.Event) -> Ack:
    """The ack as it is once its state is saved, or known not to be: then it says why."""
    if ack.saving is None:
        return ack
    path = Path(ack.saving.path)
    while not os.path.lexists(path):
        why_not = None
        if give_up.wait(_LOOK_EVERY_S):
            why_not = "the execution has ended"
        elif not is_alive(ack.saving.pid, ack.saving.started):
            why_not = "the process that was saving state is gone"
        elif not path.parent.is_dir():
            why_not = f"{path.parent} is gone, where a task says what became of saving state"
        if why_not is not None and not os.path.lexists(path):
            return replace(ack, saving=None, snapshot_error=why_not)
    outcome = _read_outcome(path)
    path.unlink()
    if outcome.get("chunk_set") is not None:
        outcome["chunk_set"] = ChunkSet(**outcome["chunk_set"])
    return replace(ack, saving=None, **outcome)
