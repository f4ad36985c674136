"""Installs what the servers of the tests need; each kind's file says what, in its `install`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

from .packages import NotInstalledError


def main() -> int:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("_"):
            continue
        install = getattr(importlib.import_module(f"{__package__}.{module.name}"), "install", None)
        if install is not None:
            try:
                install()
            except NotInstalledError as error:
                print(error, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
