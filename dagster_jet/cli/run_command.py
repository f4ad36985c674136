"""`dagster-jet run`: runs a pipeline in this process until its end."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_jet.cli.options import Target, on_store
from dagster_jet.cli.output import show
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from dagster_jet.snapshot.adaptation import Adaptation

RenamedOption = Annotated[
    list[str],
    typer.Option(
        "--renamed",
        metavar="FORMER=PRESENT",
        help="A stage, source or sink that has another name now keeps its state, or its folder. "
        "Repeat it for each.",
    ),
]
DroppedOption = Annotated[
    list[str],
    typer.Option(
        "--dropped-state",
        metavar="STAGE",
        help="State that the pipeline cannot use is dropped. Repeat the option for each stage.",
    ),
]


@on_store
def run(
    target: Target,
    pipeline: Annotated[
        str,
        typer.Argument(
            help="The pipeline, as package.module:name; a function is called without arguments."
        ),
    ],
    until: Annotated[
        str,
        typer.Option(
            help="When the job ends: drained, completed, stopped, or a duration as '10 minutes'."
        ),
    ] = "drained",
    parallelism: Annotated[
        int | None, typer.Option(help="Shards per stage; default: as many as Spark runs at once.")
    ] = None,
    initial_snapshot: Annotated[
        str | None, typer.Option(help="Id of a retained snapshot, or name of an exported one.")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option(help="Continue although staged rows or input are lost.")
    ] = False,
    repeat_output: Annotated[
        bool, typer.Option(help="Go back although sinks have later output, and write it again.")
    ] = False,
    refused_to_dead_letters: Annotated[
        bool,
        typer.Option(help="Send decided rows that a sink refuses to its dead-letter sink."),
    ] = False,
    parameter: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE",
            help="A parameter that functions read. The value is JSON, a text, or env:NAME. "
            "Repeat it for each.",
        ),
    ] = [],  # noqa: B006
    renamed: RenamedOption = [],  # noqa: B006 - Typer reads it
    dropped_state: DroppedOption = [],  # noqa: B006
) -> None:
    """Runs a pipeline here and waits for its end. A store that does not exist is created.

    Ctrl-C asks the job for a last snapshot; the next run continues from it.
    """
    from dagster_jet.job_config import JobConfig
    from dagster_jet.pipeline.reference import load_pipeline

    config = JobConfig(parallelism=parallelism, parameters=parameters_of(parameter))
    found = load_pipeline(pipeline)
    with target.open_jet(create=True) as jet:
        result = jet.run(
            found,
            config,
            until=until,
            initial_snapshot=initial_snapshot,
            accept_loss=accept_loss,
            repeat_output=repeat_output,
            refused_to_dead_letters=refused_to_dead_letters,
            renamed=names_of(renamed),
            dropped_state=dropped_state,
        )
    row: dict[str, Any] = {
        "job": found.name,
        "status": result.status.value,
        "rows_in": result.rows_in,
        "rows_out": result.rows_out,
        "rejected": result.rows_rejected or None,
        "counted": {stage: dict(counted) for stage, counted in result.counted.items()} or None,
        "snapshot": result.snapshot_id,
        "epochs": result.epochs,
    }
    show([row], title=f"Result of {found.name}", as_json=target.as_json)


def command(pipeline: str, needs: Adaptation) -> str:
    """Returns the command that starts a pipeline with these words. The store is that of the
    environment."""
    words = [f"--renamed {shlex.quote(f'{a}={b}')}" for a, b in sorted(needs.renamed.items())]
    words += [f"--dropped-state {shlex.quote(stage)}" for stage in sorted(needs.dropped)]
    return " ".join(["dagster-jet run", shlex.quote(pipeline), *words])


def names_of(renamed: Sequence[str]) -> dict[str, str]:
    """Present name by former name.

    Raises:
        ConfigurationError: a text is not of the form FORMER=PRESENT.
    """
    return _pairs(renamed, "--renamed", "FORMER=PRESENT", "hourly=per_hour")


def parameters_of(given: Sequence[str]) -> dict[str, Any]:
    """Values of parameters by name: of JSON, or else the text.

    Raises:
        ConfigurationError: a text is not of the form NAME=VALUE.
    """
    pairs = _pairs(given, "--parameter", "NAME=VALUE", "limit=15")
    return {name: _value(text) for name, text in pairs.items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _pairs(given: Sequence[str], option: str, form: str, example: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    wrong = [number for number, (a, _, b) in enumerate(pairs, 1) if not (a and b)]
    if wrong:  # its text may be a secret
        raise ConfigurationError(
            f"{option}: expected {form}; text {wrong[0]} of {len(pairs)} is not of this form.",
            cure=f"For example {option} {example}.",
        )
    return {name: value for name, _, value in pairs}
