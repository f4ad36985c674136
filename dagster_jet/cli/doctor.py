"""``dagster-jet doctor``: checks whether a Dagster instance suits streams."""

from __future__ import annotations

from typing import Annotated

import typer

from dagster_jet.cli.options import errors_as_sentences
from dagster_jet.cli.output import say, show_answers, show_json
from dagster_jet.core.answers import as_rows, breaks_the_recipe


def doctor(
    home: Annotated[
        str | None,
        typer.Option(help="Folder of dagster.yaml. Default: the environment's DAGSTER_HOME."),
    ] = None,
    streams: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of streams that are to run at the same time. Default: those that have a "
            "run now, or wait for one.",
        ),
    ] = None,
    standbys: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of runs that stand by beside them. Default: those that have a run now, or "
            "wait for one.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Checks the Dagster instance: slots of the run queue, run monitoring, retries, limits, ticks
    and runs that are kept, daemons. Says what to write into dagster.yaml. It changes nothing.

    Exit code 1: streams would starve, or could not be stopped. 2: the instance cannot be opened.
    """
    # Loads Dagster, which other commands do without.
    from dagster_jet.orchestration.instance_check import (
        InstanceCheck,
        open_instance,
        standbys_of,
        streams_of,
    )

    with errors_as_sentences(), open_instance(home) as instance:
        number = streams_of(instance) if streams is None else streams
        waiting = standbys_of(instance) if standbys is None else standbys
        answers = InstanceCheck(instance, number, waiting).answers()
    is_good = not breaks_the_recipe(answers)
    if as_json:
        show_json(
            {
                "streams": number,
                "standbys": waiting,
                "suits_streams": is_good,
                "answers": as_rows(answers),
            }
        )
    else:
        beside = f", {waiting} standbys" if waiting else ""
        show_answers(answers, title=f"Dagster instance, {number} streams{beside}")
        say(
            "The instance suits its streams."
            if is_good
            else "The instance does not suit its streams: see the answers that are no."
        )
    if not is_good:
        raise typer.Exit(1)
