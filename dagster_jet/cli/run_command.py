"""`dagster-jet run`: runs a pipeline in this process until its end."""

from __future__ import annotations

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
        help="A stage or source that has another name now keeps its state. Repeat it for each.",
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
            help="When the run ends: drained, completed, stopped, or a duration as '10 minutes'."
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
    renamed: RenamedOption = [],  # noqa: B006 - Typer reads it
    dropped_state: DroppedOption = [],  # noqa: B006
) -> None:
    """Runs a pipeline here and waits for its end. A store that does not exist is created.

    Ctrl-C asks the job for a last snapshot; the next run continues from it.
    """
    from dagster_jet.job_config import JobConfig
    from dagster_jet.pipeline.reference import load_pipeline

    found = load_pipeline(pipeline)
    with target.open_jet(create=True) as jet:
        result = jet.run(
            found,
            JobConfig(parallelism=parallelism),
            until=until,
            initial_snapshot=initial_snapshot,
            accept_loss=accept_loss,
            renamed=names_of(renamed),
            dropped_state=dropped_state,
        )
    row: dict[str, Any] = {
        "job": found.name,
        "status": result.status.value,
        "rows_in": result.rows_in,
        "rows_out": result.rows_out,
        "rejected": result.rows_rejected or None,
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
    pairs = [text.partition("=") for text in renamed]
    wrong = [text for text, (a, _, b) in zip(renamed, pairs, strict=True) if not (a and b)]
    if wrong:
        raise ConfigurationError(
            f"--renamed: expected FORMER=PRESENT, not {wrong[0]!r}.",
            cure="For example --renamed hourly=per_hour.",
        )
    return {former: present for former, _, present in pairs}
