"""Installs what the servers of the tests need; each kind's file says what, in its `install`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .packages import NotInstalledError


def main() -> int:
    installs = [
        module.install
        for found in pkgutil.iter_modules([str(Path(__file__).parent)])
        if not found.name.startswith("_")
        and hasattr(module := importlib.import_module(f"{__package__}.{found.name}"), "install")
    ]
    # Jars come from elsewhere than packages: neither waits for the other.
    with ThreadPoolExecutor(len(installs)) as pool:
        missing = [error for error in pool.map(_error_of, installs) if error is not None]
    for error in missing:
        print(error, file=sys.stderr)
    return 1 if missing else 0


def _error_of(install: Callable[[], None]) -> NotInstalledError | None:
    try:
        install()
    except NotInstalledError as error:
        return error
    return None


if __name__ == "__main__":
    sys.exit(main())
