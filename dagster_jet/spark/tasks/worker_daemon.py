"""Process from which Spark forks its Python workers, with the engine already imported.

Spark starts it by `spark.python.daemon.module`. Spark's own daemon imports almost nothing: every
worker compiles PySpark from the sources in ``pyspark.zip``, then imports Arrow and the engine, 1.2
seconds before the first row. Workers forked from here start at once and share that memory.

A worker collects garbage after each task. Imported objects are frozen, so that the collector skips
them (30 ms of CPU a task with pandas installed).

Threads that a fork would lose belong to libraries that handle forks (Arrow's allocator, OpenBLAS);
the engine starts none at import.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def prefer_installed(path: Sequence[str]) -> list[str]:
    """Returns a module search path with PySpark's own zips after the package that contains them.

    Spark puts them first, and modules in a zip are not cached compiled. A zip of another
    installation (``SPARK_HOME``) keeps its place.
    """
    return sorted(path, key=lambda entry: _is_copy_of_installed(Path(entry), path))


def _is_copy_of_installed(entry: Path, path: Sequence[str]) -> bool:
    package = entry.parent.parent.parent  # <package>/python/lib/<name>.zip
    return entry.suffix == ".zip" and package.name == "pyspark" and str(package.parent) in path


def main() -> None:
    """Imports the modules that workers run, then forks a worker whenever Spark asks."""
    sys.path[:] = prefer_installed(sys.path)
    from pyspark import daemon, worker  # noqa: F401

    from dagster_jet.connectors.files import parquet_tasks, text_tasks  # noqa: F401
    from dagster_jet.spark.tasks import fused_task  # noqa: F401

    with suppress(ImportError):  # if installed, Arrow imports it in every worker
        import pandas  # type: ignore[import-untyped]  # noqa: F401

    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
