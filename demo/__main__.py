"""``python -m demo``: see the module's docstring, or ``--help``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from dagster_jet import JetError
from demo.dagster_process import REPOSITORY, DagsterStartError, GraphqlError, stop_kept
from demo.dataset import DatasetError
from demo.servers import ServersError
from demo.story import DemoError, Options, Story


def main() -> int:
    """Return 0 if every row came out right, 1 if not, 2 if the demo could not run."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave Dagster's UI running")
    parser.add_argument("--stop", action="store_true", help="stop what --keep left running")
    parser.add_argument("--no-kill", action="store_true", help="let the run live")
    parser.add_argument(
        "--kafka", action="store_true", help="flights through Kafka into PostgreSQL and Parquet"
    )
    parser.add_argument(
        "--lake", action="store_true", help="flights into tables of Delta Lake and Iceberg"
    )
    parser.add_argument("--replay-seconds", type=float, default=45.0, help="time for all files")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / ".demo", help="working folder")
    arguments = parser.parse_args()
    console = Console()
    folder = arguments.folder.absolute()
    if arguments.stop:
        stopped = stop_kept(folder / "dagster_home")
        console.print("Stopped." if stopped else "Nothing is running.")
        return 0
    options = Options(
        folder,
        arguments.keep,
        kill=not arguments.no_kill,
        replay_seconds=arguments.replay_seconds,
        kafka=arguments.kafka,
        lake=arguments.lake,
    )
    try:
        return 0 if Story(options, console).tell() else 1
    except (
        DemoError, ServersError, DatasetError, DagsterStartError, GraphqlError, JetError,
    ) as error:  # fmt: skip
        console.print(f"[red]{error}[/red]", markup=True, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
