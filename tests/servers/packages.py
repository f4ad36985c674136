"""Packages of the servers: the machine's own, and jars from Maven's registry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

_CACHE = Path(__file__).parents[2] / ".cache"
JARS = _CACHE / "jars"
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


def go_program(package: str, version: str) -> Path:
    """A program that Go builds; built once.

    Raises:
        NotInstalledError: Go is not there, or cannot build it.
    """
    name = package.rpartition("/")[2]
    program = _CACHE / f"{name}-{version}"
    if program.exists():
        return program
    places = program.with_suffix(".building")
    environment = os.environ | {"GOBIN": str(places), "CGO_ENABLED": "0"}
    _run("go", "install", f"{package}@{version}", env=environment)
    (places / name).rename(program)
    places.rmdir()
    return program


def npm_package(name: str, version: str) -> Path:
    """The folder of a package that npm installs; installed once.

    Raises:
        NotInstalledError: npm is not there, or cannot install it.
    """
    folder = _CACHE / f"{name}-{version}"
    if not folder.exists():
        new = folder.with_suffix(".installing")
        _run("npm", "install", "--prefix", str(new), "--no-save", f"{name}@{version}")
        new.rename(folder)
    return folder / "node_modules" / name


def python_packages(folder: str, *packages: str) -> Path:
    """A folder with Python packages that the lock does not have, at its versions of those that both
    have; installed once.

    Raises:
        NotInstalledError: pip cannot install them.
    """
    place = _CACHE / folder
    if not place.exists():
        new = place.with_suffix(".installing")
        shutil.rmtree(new, ignore_errors=True)
        with tempfile.NamedTemporaryFile("w") as versions:
            ours = (d for d in distributions() if d.name != "dagster_jet")
            versions.writelines(f"{one.name}=={one.version}\n" for one in ours)
            versions.flush()
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile")
            _run(*pip, "--target", str(new), "--constraint", versions.name, *packages)
        new.rename(place)
    return place


def _run(*command: str, env: Mapping[str, str] | None = None) -> None:
    if not shutil.which(command[0]):
        raise NotInstalledError(f"The tests need {command[0]}: install it, and try again.")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalledError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")


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
