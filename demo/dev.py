"""`make dev`: this project in Dagster's UI, with flights that depart while you look.

Everything is made that is not there: folders, tables, flights. A day of the year 2013 departs every
five seconds, and when the year is over the stream waits for more. What has departed stays departed:
the next `make dev` goes on with the day after.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from demo.dagster_process import (
    REPOSITORY,
    DagsterProcess,
    DagsterStartError,
    free_port,
    is_free,
    stop_kept,
)
from demo.dataset import Dataset, DatasetError, open_dataset
from demo.replay import FILES_COUNT, Replayer, flights_in_order, write_files, write_reference
from resources.jet import DATA

YEAR_SECONDS = 1800.0
_MORE_OFTEN = {"JET_REPORT_INTERVAL_SECONDS": "5", "JET_SUPERVISOR_SECONDS": "5"}
_TO_SEE = """\
[bold]{url}[/bold]
  lineage        {url}/asset-groups
  live numbers   {url}/assets/airport_delays/hourly_out?view=plots
  the run        {url}/runs
  who starts it  {url}/locations/jet/sensors/airport_delays_supervisor
Kill the run's process if you like: the sensor starts the next one, and no row is lost.
Ctrl-C ends all of it."""


def main() -> int:
    """Return 0 when it was interrupted, 1 if Dagster ended by itself, 2 if it could not start."""
    parser = argparse.ArgumentParser(prog="python -m demo.dev", description=__doc__)
    parser.add_argument("--port", type=int, default=3000, help="of the UI, if nobody listens there")
    arguments = parser.parse_args()
    # A shell that starts us in the background has us ignore the first.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.default_int_handler)
    console = Console()
    home = Path(os.environ.get("DAGSTER_HOME") or REPOSITORY / ".dagster_home").absolute()
    stop_kept(home)  # of an earlier one that was killed
    port = arguments.port if is_free(arguments.port) else free_port()
    environment = {"JET_DATA": str(DATA), **_MORE_OFTEN, **os.environ}
    dagster = DagsterProcess(home, environment, port)
    replayer: Replayer | None = None
    try:
        dataset = open_dataset(REPOSITORY / ".cache")
        make_tables(dataset, DATA)
        dagster.start()
        console.print(f"Starting Dagster; its log is {dagster.log_file}", highlight=False)
        departing = flights_to_depart(dataset, DATA)
        seconds = YEAR_SECONDS * len(departing) / FILES_COUNT
        replayer = Replayer(departing, DATA / "inbox", seconds)
        replayer.start()
        dagster.wait_until_up()
        console.print(_TO_SEE.format(url=dagster.url), highlight=False, soft_wrap=True)
        _show(console, dagster, replayer, days_before=FILES_COUNT - len(departing))
    except KeyboardInterrupt:
        return 0
    except (DatasetError, DagsterStartError) as error:
        console.print(f"{error}", style="red", markup=False, highlight=False)
        return 2
    finally:
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, signal.SIG_IGN)  # a second Ctrl-C would leave processes behind
        if replayer is not None:
            replayer.stop()
        console.print("Ending: the stream takes its last snapshot ...")
        dagster.stop()
    console.print(dagster.log_tail(), style="dim", markup=False, highlight=False)
    return 1


def make_tables(dataset: Dataset, data: Path) -> None:
    """What the stream reads and is enriched with, before the definitions are loaded."""
    (data / "inbox").mkdir(parents=True, exist_ok=True)
    write_reference(dataset, data / "reference")


def flights_to_depart(dataset: Dataset, data: Path) -> list[Path]:
    """The files of flights that are not in the inbox yet, in order; made by the first call."""
    waiting = data / "departing"
    if not waiting.exists():
        unfinished = data / "departing.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        write_files(flights_in_order(dataset), unfinished)
        unfinished.rename(waiting)
    return sorted(waiting.glob("*.json"))


def _show(console: Console, dagster: DagsterProcess, replayer: Replayer, days_before: int) -> None:
    """How far the year is, until Dagster ends."""
    with console.status("") as line:
        while dagster.is_running():
            days = days_before + replayer.published
            line.update(
                f"{days} of {FILES_COUNT} days have departed"
                if days < FILES_COUNT
                else "the year is over, the stream waits for more; "
                f"to begin anew: rm -r {DATA} {dagster.home}"
            )
            time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
