"""``python -m dagster_jet.cli``: the same as ``dagster-jet``."""

from dagster_jet.cli.app import app

app()
