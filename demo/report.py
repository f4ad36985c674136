"""The demo's last screen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.oracle import Verdict


@dataclass
class Figures:
    """What was counted while the demo ran."""

    rows_in: int
    late: int
    restarts: int
    runs: list[str]
    recovery: dict[str, float] | None
    reported: dict[str, dict[str, int]]
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def print_report(
    console: Console,
    figures: Figures,
    verdict: Verdict,
    right: bool,
    url: str,
    data: Path,
    keep: bool,
) -> None:
    """Print the result and where to look."""
    table = Table(title="Exactly once" if right else "[red]NOT as it should be[/red]")
    table.add_column("what")
    table.add_column("figure", justify="right")
    for name, value, good in _lines(figures, verdict):
        table.add_row(name, value if good else f"[red]{value}[/red]")
    console.print()
    console.print(table)
    for output in verdict.outputs:
        for problem in (*output.problems, *(f"stray file {f}" for f in output.stray_files)):
            console.print(f"[red]{output.name}: {problem}[/red]", highlight=False)
    console.print(f"Outputs: {data / 'out'}", highlight=False)
    if keep:
        console.print(
            f"Lineage:  {url}/asset-groups\n"
            f"Restart:  {url}/locations/jet/sensors/airport_delays_supervisor\n"
            f"Both runs: {url}/runs\n"
            f"Plots:    {url}/assets/airport_delays/hourly_out?view=plots",
            highlight=False,
        )
    else:
        console.print("To look around in Dagster's UI: make demo KEEP=1", highlight=False)


def _lines(figures: Figures, verdict: Verdict) -> list[tuple[str, str, bool]]:
    outputs = {output.name: output for output in verdict.outputs}
    total_in = verdict.flights + verdict.bad_lines
    duplicates = sum(output.duplicates for output in verdict.outputs)
    missing = sum(output.missing for output in verdict.outputs)
    wrong = sum(output.wrong for output in verdict.outputs)
    lines = [
        ("rows in (flights and bad lines)", f"{figures.rows_in:,}", figures.rows_in == total_in),
        *(
            (label, f"{outputs[name].found:,}", outputs[name].is_exact)
            for name, label in (
                ("hourly", "windows out (airport and hour)"),
                ("hourly_files", "the same windows, in Parquet"),
                ("badly_delayed", "badly delayed flights out"),
                ("bad_rows", "bad rows set aside"),
            )
            if name in outputs
        ),
        ("duplicates", f"{duplicates}", duplicates == 0),
        ("missing", f"{missing}", missing == 0),
        ("wrong", f"{wrong}", wrong == 0),
        ("late", f"{figures.late}", figures.late == 0),
        ("restarts", f"{figures.restarts}", True),
    ]
    if figures.recovery is not None:
        lines.append(
            ("kill to next committed snapshot", f"{figures.recovery['committed']:.1f} s", True)
        )
    return [*lines, ("the whole demo", f"{figures.seconds:.0f} s", True)]
