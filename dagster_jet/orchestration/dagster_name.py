"""Names in Dagster: ASCII letters, digits and underscores; by default made of a pipeline's name."""

from __future__ import annotations

from dagster_jet.errors import ConfigurationError
from dagster_jet.pipeline import Pipeline


def dagster_name(name: str) -> str:
    """Returns the name with each character that Dagster refuses replaced by an underscore.

    Example:
        >>> dagster_name("airport-delays.v2")
        'airport_delays_v2'
    """
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)


def given_name(name: str | None, default: str) -> str:
    """Returns the `name` of a definition, or the default if none is given.

    Raises:
        ConfigurationError: the name is empty.
    """
    if name == "":
        raise ConfigurationError(
            "name: it is empty.", cure=f"Give a name, or leave it out for {default!r}."
        )
    return default if name is None else name


def pipeline_name(pipeline: Pipeline | str) -> str:
    """Returns the name of a pipeline that may be given by its name.

    Raises:
        ConfigurationError: it is neither a pipeline nor a name that a pipeline can have.
    """
    if isinstance(pipeline, Pipeline):
        return pipeline.name
    if not isinstance(pipeline, str):
        raise ConfigurationError(
            f"pipeline: expected a Pipeline or its name, not {type(pipeline).__name__}: "
            f"{pipeline!r:.80}"
        )
    return Pipeline(pipeline).name
