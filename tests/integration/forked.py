"""Drivers that are there at once: forked from a process that has imported the engine already.

Starting Python and importing was a third of a crash test. What is forked is a process as any
other: it has a pid of its own, dies alone, and shares nothing that is written from then on.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from dagster_jet.system import failpoint

from . import child

Main = Callable[[Path, dict[str, Any]], int]
"""A driver's main function, found by its module and name; returns the exit code."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([child.__name__])


def fork(
    main: Main, folder: Path, order: Mapping[str, Any], environment: Mapping[str, str], output: Path
) -> ForkServerProcess:
    """Starts `main(folder, order)` in a fork; what it and its JVM print is appended to `output`."""
    everything = {**os.environ, **environment}
    process = _CONTEXT.Process(target=_live, args=(main, folder, dict(order), everything, output))
    process.start()
    return process


def _live(
    main: Main, folder: Path, order: dict[str, Any], environment: dict[str, str], output: Path
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    failpoint.configure(environment.get("JET_FAIL_POINTS", ""))
    said = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.exit(main(folder, order))
