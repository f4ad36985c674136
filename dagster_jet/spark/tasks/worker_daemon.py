"""The process from which Spark forks its Python workers, with the engine imported already.

Spark starts it by `spark.python.daemon.module`. Its own daemon imports next to nothing: every
worker compiles PySpark from the sources in ``pyspark.zip``, then imports Arrow and the engine,
1.2 seconds before the first row. Workers forked from here begin at once and share that memory.

A worker collects garbage behind each task. What was imported here is none: frozen, it is not
looked at (30 ms of CPU a task with pandas installed).

Threads that a fork would lose belong to libraries that see to it themselves (Arrow's allocator,
OpenBLAS); the engine starts none at import.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def prefer_installed(path: Sequence[str]) -> list[str]:
    """A module search path on which PySpark's own zips come behind the package they lie in.

    Spark puts them first, and nothing in a zip is kept compiled. A zip that belongs to another
    installation (``SPARK_HOME``) stays where it is.
    """
    return sorted(path, key=lambda entry: _is_copy_of_installed(Path(entry), path))


def _is_copy_of_installed(entry: Path, path: Sequence[str]) -> bool:
    package = entry.parent.parent.parent  # <package>/python/lib/<name>.zip
    return entry.suffix == ".zip" and package.name == "pyspark" and str(package.parent) in path


def main() -> None:
    """Imports what workers run, then forks one whenever Spark asks."""
    sys.path[:] = prefer_installed(sys.path)
    from pyspark import daemon, worker  # noqa: F401

    from dagster_jet.connectors.files import parquet_tasks, text_tasks  # noqa: F401
    from dagster_jet.spark.tasks import fused_task  # noqa: F401

    with suppress(ImportError):  # where it is installed, Arrow imports it in every worker
        import pandas  # type: ignore[import-untyped]  # noqa: F401

    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
