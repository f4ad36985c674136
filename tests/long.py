"""Which cases of a test run in `make test`, and which only in `make soak`.

`make test` should end within 15 minutes on two cores. What takes long and has not found
anything that its like did not find is marked `long`: `pytest` alone runs it, `make soak` does, and
`make test` does not. Of a matrix one case per kind stays. A whole test is marked if others of
`make test` go the same way: a longer story of kills, a contract that another connector of its kind
keeps, a page that is like another page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

long = pytest.mark.long


def long_but_for(cases: Iterable[Any], *kept: str) -> list[Any]:
    """The cases of a parameter, those marked that `kept` does not name.

    Args:
        kept: as `str` of a case, or the beginning of it.
    """
    all_cases = list(cases)
    for name in kept:
        assert any(str(case).startswith(name) for case in all_cases), f"no case is {name}"
    return [
        case if str(case).startswith(kept) else pytest.param(case, marks=long) for case in all_cases
    ]
