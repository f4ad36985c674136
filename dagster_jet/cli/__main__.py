"""``python -m dagster_jet.cli``: same as ``dagster-jet``."""

from dagster_jet.cli.app import app

app()
