"""What follows a snapshot's acks, on a thread that must never end without an answer."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from dagster_jet.engine.settler import Progress, Settler
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.manifest import Ack, Saving


def test_an_answer_that_cannot_be_read_fails_the_snapshot(tmp_path: Path) -> None:
    told: queue.SimpleQueue[protocol.Event] = queue.SimpleQueue()

    def handle(event: protocol.Event) -> list[protocol.Command]:
        told.put(event)
        return []

    anything: Any = Mock()
    settler = Settler(handle, anything, anything, anything, anything, anything, lambda: 7)
    path = tmp_path / "told.json"
    path.write_text("{", encoding="utf-8")
    ack = Ack("hourly", 0, "a0", saving=Saving(str(path), 1))
    settler.begin(protocol.AwaitSaved(2, (ack,)), Progress({}, {}))
    saved = told.get(timeout=30)
    assert isinstance(saved, protocol.Saved) and saved.snapshot_id == 2
    assert saved.acks[0].snapshot_error
    settler.close()
    assert not [one for one in threading.enumerate() if one.name == "jet-settler"]
