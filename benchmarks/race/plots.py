"""Pictures of a race: `python -m benchmarks.race.plots RESULTS.json FOLDER`.

Runs in an environment of its own, which the harness makes: nothing else here needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REQUIREMENTS = ("matplotlib>=3.9",)


def draw(pictures: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """One PNG of grouped bars per picture: file, title, unit, groups, series {label: values}."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    for picture in pictures:
        groups, series = picture["groups"], picture["series"]
        figure, axes = plt.subplots(figsize=(max(7.0, 1.7 * len(groups)), 4.2), dpi=110)
        width = 0.84 / max(1, len(series))
        for place, (label, values) in enumerate(series.items()):
            at = [group + (place - (len(series) - 1) / 2) * width for group in range(len(groups))]
            heights = [value or 0 for value in values]
            axes.bar(at, heights, width, label=label)
            for x, value in zip(at, values, strict=True):
                text = "–" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
                axes.annotate(
                    text, (x, value or 0), ha="center", va="bottom", fontsize=6.5, rotation=90,
                    xytext=(0, 2), textcoords="offset points",
                )  # fmt: skip
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylabel(picture["unit"])
        axes.set_title(picture["title"], fontsize=11)
        axes.margins(y=0.18)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7.5, frameon=False, ncols=3, loc="upper center",
                    bbox_to_anchor=(0.5, -0.1))  # fmt: skip
        figure.tight_layout()
        figure.savefig(folder / picture["file"])
        plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
