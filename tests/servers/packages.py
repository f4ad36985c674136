"""Packages of the servers: the machine's own, and jars from Maven's registry."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

JARS = Path(__file__).parents[2] / ".cache" / "jars"
_NO_STARTS = Path("/usr/sbin/policy-rc.d")
_apt = threading.Lock()
"""Guard of apt, which has a lock of its own and refuses whom it keeps out."""


class NotInstalledError(Exception):
    """One sentence: what to install."""


def executable(name: str, *places: str) -> Path | None:
    """Path of a program: on the PATH, or in one of these glob patterns under the root."""
    if found := shutil.which(name):
        return Path(found)
    found_there = sorted(path for place in places for path in Path("/").glob(place.lstrip("/")))
    return found_there[-1] if found_there else None


def install_packages(*names: str) -> None:
    """Installs Debian packages, without starting their services.

    Raises:
        NotInstalledError: we may not, or it fails.
    """
    packages = " ".join(names)
    if not shutil.which("apt-get"):
        raise NotInstalledError(f"The tests need {packages}: install them, and try again.")
    if os.geteuid() != 0:
        raise NotInstalledError(
            f"The tests need {packages}: `sudo apt-get install {packages}`, and try again."
        )
    with _apt, _services_stay_down():
        _update_lists()
        _run_apt("install", "-y", "-qq", "--no-install-recommends", *names)


@cache
def _update_lists() -> None:
    _run_apt("update", "-qq")


def _run_apt(*arguments: str) -> None:
    command = ["apt-get", *arguments]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=os.environ | quiet, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotInstalledError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")


def fetch_jars(folder: str, group: str, name: str, version: str) -> Path:
    """An artifact with all that it depends on, by the Ivy that PySpark ships; fetched once.

    Raises:
        NotInstalledError: it cannot be fetched.
    """
    import pyspark

    jars = JARS / folder
    if (jars / ".complete").exists():
        return jars
    shutil.rmtree(jars, ignore_errors=True)
    jars.mkdir(parents=True)
    spark = Path(pyspark.__file__).parent / "jars"
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    command: Sequence[str] = [
        str(java), "-cp", f"{spark}/*", "org.apache.ivy.Main", "-dependency", group, name, version,
        "-retrieve", f"{jars}/[artifact]-[revision].[ext]", "-confs", "default",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not any(jars.glob(f"{name}-*.jar")):
        raise NotInstalledError(
            f"{group}:{name}:{version} cannot be fetched: {(done.stdout + done.stderr)[-500:]}"
        )
    (jars / ".complete").touch()
    return jars


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Debian starts a service when it is installed; the tests start their own, elsewhere."""
    if _NO_STARTS.exists():
        yield
        return
    _NO_STARTS.write_text("#!/bin/sh\nexit 101\n")
    _NO_STARTS.chmod(0o755)
    try:
        yield
    finally:
        _NO_STARTS.unlink(missing_ok=True)
