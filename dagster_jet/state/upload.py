"""Uploads state into the store while its task, and then the next epoch, continues.

A thread of the task's worker process saves the state and writes the outcome into a file; snapshot
completion waits for this file. Used only if driver and workers are on one host: the file is local,
and so is the check whether the writing process is alive.
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
"""Number of shards of one worker whose state is written concurrently."""
_LOOK_EVERY_S = 0.002

SaveState = Callable[[], tuple[ChunkSet | None, int]]
"""Returns the chunk set written, if any state changed, and the number of superseded sets."""

_savers: dict[int, ThreadPoolExecutor] = {}
"""Executors by process: a forked child inherits the executor, but not its threads."""


def save_beside(save: SaveState, path: Path) -> Saving:
    """Begin to save, and return. A crash leaves chunks that nothing names, and no file.

    Args:
        path: file in an existing folder; once the folder is deleted, nothing waits for the file.
    """

    def work() -> None:
        try:
            chunk_set, dropped = save()
            saved = chunk_set and asdict(chunk_set)
            outcome: dict[str, Any] = {"chunk_set": saved, "chain_dropped": dropped}
        except BaseException as failure:  # noqa: BLE001 - reported through the file
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
        pass  # the folder is gone, which the waiting process has noticed
    except OSError as failure:
        try:
            # A full disk still has room for a name and a short link target.
            path.symlink_to(failure.strerror or type(failure).__name__)
        except OSError:
            os._exit(1)  # the waiting process then sees that this process is gone


def _read_outcome(path: Path) -> dict[str, Any]:
    if not path.is_symlink():
        outcome: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return outcome
    unwritten = f"the result of saving state could not be written to {path.parent}"
    return {"snapshot_error": f"{unwritten}: {path.readlink()}"}


def await_saved(ack: Ack, give_up: threading.Event) -> Ack:
    """Wait until the ack's state is saved, or has failed; return the ack with the result."""
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
            why_not = (
                f"the folder {path.parent}, where tasks write the result of saving state, is gone"
            )
        if why_not is not None and not os.path.lexists(path):
            return replace(ack, saving=None, snapshot_error=why_not)
    outcome = _read_outcome(path)
    path.unlink()
    if outcome.get("chunk_set") is not None:
        outcome["chunk_set"] = ChunkSet(**outcome["chunk_set"])
    return replace(ack, saving=None, **outcome)
