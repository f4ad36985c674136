"""Other engines run in environments that have none of this package's dependencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def test_the_columns_of_nexmark_need_no_dependency() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from dagster_jet.connectors.generated.nexmark.schema import VIEWS\n"
        "print(*VIEWS)"
    )
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert bare.stdout.split() == ["person", "auction", "bid"], bare.stderr
