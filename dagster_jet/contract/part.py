"""Base class of all that a connector consists of. It checks subclasses when they are created."""

from __future__ import annotations

from abc import ABC
from difflib import get_close_matches
from typing import Any, ClassVar

from dagster_jet.errors import PipelineError, Reaction

_SIMILAR = 0.8
"""Similarity from which a name counts as misspelt: one letter in five differs."""


def _is_contract(cls: type) -> bool:
    return cls.__module__.startswith(f"{__package__}.")


def _check_spelling(cls: type, contract: type) -> None:
    own = {name for name in vars(contract) if not name.startswith("_")}
    for name in vars(cls):
        if name.startswith("_") or any(name in vars(base) for base in cls.__mro__[1:]):
            continue
        similar = get_close_matches(name, own - vars(cls).keys(), 1, _SIMILAR)
        if similar:
            raise TypeError(
                f"{cls.__qualname__}.{name} is not part of the contract of {contract.__name__}. "
                f"If it is meant to be {similar[0]!r}, correct its name; if not, choose a name "
                "that differs more, or one that begins with an underscore."
            )


def _check_whole(cls: type, contract: type, members: tuple[str, ...]) -> None:
    present: list[str] = []
    missing: list[str] = []
    for name in members:
        nearest = next(base for base in cls.__mro__ if name in vars(base))
        is_default = vars(nearest)[name] is vars(contract)[name]
        if is_default and nearest is not contract:
            return  # a switch that is set to "off"
        (missing if is_default else present).append(name)
    if present and missing:
        raise TypeError(
            f"{cls.__qualname__} has {', '.join(present)}, but not {', '.join(missing)}: together "
            f"they are one capability of a {contract.__name__}. Add what is missing, or remove the "
            "rest."
        )


class ConnectorPart(ABC):  # noqa: B024 - abstract methods are in its subclasses
    """A source, a reader, a sink, a writer, a committer or a table.

    Abstract methods are what every connector has. All others are optional: their defaults say
    "no". A class that implements a part of an optional capability is refused when it is created.
    """

    _TOGETHER: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Capabilities of several members, which a class overrides all together or not at all."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """
        Raises:
            TypeError: the class has a part of a capability, or a public name that is nearly one of
                the contract's.
        """
        super().__init_subclass__(**arguments)
        for contract in filter(_is_contract, cls.__mro__):
            if contract is not cls:
                _check_spelling(cls, contract)
                for members in vars(contract).get("_TOGETHER", ()):
                    _check_whole(cls, contract, members)


class ClassifiesErrors(ConnectorPart):
    """A part that knows what errors of its client library mean."""

    def reaction(self, error: Exception) -> Reaction | None:
        """Returns how the job reacts to an error that is not a `JetError`.

        RETRY the same call, RESTART from the last snapshot, FAIL until a person has changed
        something, or STOP, because a newer owner has fenced this one. None: not classified.
        """
        return None


def check_is_a(kind: type, part: object, *, job: str, stage: str) -> None:
    """
    Raises:
        PipelineError: what a user passed or a connector returned is not a `kind`.
    """
    if not isinstance(part, kind):
        raise PipelineError(
            f"a {type(part).__name__} is not a {kind.__name__}.",
            job=job,
            stage=stage,
            cure="Use a result of dagster_jet.sources, sinks or tables, or an object of your own "
            f"subclass of dagster_jet.contract.{kind.__name__}.",
        )
