"""An environment per engine, made by pip from wherever pip is configured to look."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.race.contestants import Contestant

_TIMEOUT_S = 1200


class NoEnvironmentError(Exception):
    """An engine cannot be installed here; the message has the reason, and the race goes on."""


@dataclass(frozen=True)
class Environment:
    """Interpreter and variables that start an engine's program."""

    python: Path
    variables: dict[str, str]


def prepare(contestant: Contestant, cache: Path) -> Environment:
    """Makes the environment if it is not there.

    Raises:
        NoEnvironmentError: pip has ended with an error.
    """
    cache.mkdir(parents=True, exist_ok=True)
    if not contestant.requirements:
        return _own(cache)
    key = hashlib.sha256("\n".join([sys.version, *contestant.requirements]).encode()).hexdigest()
    folder = cache / f"{contestant.name}-{key[:8]}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _call(sys.executable, "-m", "venv", str(folder), log=folder.with_suffix(".log"))
        _call(
            str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet",
            "--disable-pip-version-check", *contestant.requirements,
            log=folder.with_suffix(".log"),
        )  # fmt: skip
        (folder / "done").touch()
    return Environment(folder / "bin" / "python", dict(os.environ))


def _own(cache: Path) -> Environment:
    """The project's environment, with the class archive that a user has after the first run."""
    archive = Path(os.environ.get("DAGSTER_JET_CLASS_ARCHIVE", cache.parent.parent))
    variables = {**os.environ, "DAGSTER_JET_CLASS_ARCHIVE": str(archive)}
    _call(
        sys.executable, "-m", "dagster_jet.cli", "warm-up",
        log=cache / "warm-up.log", variables=variables,
    )  # fmt: skip
    return Environment(Path(sys.executable), variables)


def _call(*command: str, log: Path, variables: dict[str, str] | None = None) -> None:
    with open(log, "ab") as file:
        done = subprocess.run(
            command, stdout=file, stderr=file, env=variables, timeout=_TIMEOUT_S, check=False
        )
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace")[-1500:]
        raise NoEnvironmentError(f"{' '.join(command[1:4])} ended with {done.returncode}: {tail}")
