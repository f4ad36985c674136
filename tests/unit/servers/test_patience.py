"""How long the soak waits on a machine that others use, too."""

from __future__ import annotations

import os
import time

import pytest

from tests.soak.patience import Waiting


@pytest.mark.parametrize(("load", "lasts"), [(1.0, True), (40.0, False)])
def test_of_a_shared_machine_our_share_counts(
    monkeypatch: pytest.MonkeyPatch, load: float, lasts: bool
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    waiting = Waiting(60)
    now[0] = 100
    assert waiting.has_lasted() is lasts and waiting.slowest == max(1, load / 2)
    waiting.progress()
    assert not waiting.has_lasted()
